/* SPDX-License-Identifier: MIT */
/*
 * Named places where a test may stop a thread to force an interleaving. They exist only in the library that is built
 * for white-box tests (BP_TESTING); in what ships the macro is nothing.
 */
#ifndef BUFPOOL_SYNC_POINT_H
#define BUFPOOL_SYNC_POINT_H

#ifdef BP_TESTING
#include <stdatomic.h>
/* Called with the name of the place; NULL: none. Set by the test before threads start. */
extern void (*_Atomic bpi_sync_hook)(const char *name);
static inline void sync_point(const char *name)
{
    void (*hook)(const char *) = atomic_load_explicit(&bpi_sync_hook, memory_order_acquire);

    if (hook)
        hook(name);
}
#define SYNC_POINT(name) sync_point(name)
#else
#define SYNC_POINT(name) ((void)0)
#endif

#endif
