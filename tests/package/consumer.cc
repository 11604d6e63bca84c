/* SPDX-License-Identifier: MIT */
/*
 * The same user, as C++.
 */
#include "consumer.c"
