/* SPDX-License-Identifier: MIT */
#include "bufpool/sync_point.h"

#ifdef BP_TESTING
void (*_Atomic bpi_sync_hook)(const char *name);
#else
typedef int nothing_of_it_ships; /* a file must hold something */
#endif
