/* SPDX-License-Identifier: MIT */
/*
 * A lock of four bytes that may stand in every node of the index: one CAS to take, one exchange to give back, and a
 * futex for those who wait. Not recursive, not fair; held for some dozens of instructions and never while anything else
 * is waited for but another such lock further down (R9).
 *
 *      0 free      1 taken      2 taken, and somebody may be asleep
 */
#ifndef BUFPOOL_LOCK_H
#define BUFPOOL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint32_t slim_lock; /* 0 is a free one */

/* The slow halves. */
void bpi_lock_wait(slim_lock *);
void bpi_lock_wake(slim_lock *);

/* Not if it is taken. acquire: as below */
static inline bool slim_lock_try(slim_lock *l)
{
    uint32_t free = 0;

    return atomic_compare_exchange_strong_explicit(l, &free, 1, memory_order_acquire, memory_order_relaxed);
}

/* acquire: what the last holder wrote is ours to read */
static inline void slim_lock_take(slim_lock *l)
{
    if (__builtin_expect(!slim_lock_try(l), 0))
        bpi_lock_wait(l);
}

/* release: what we wrote is the next holder's to read. An exchange, since a sleeper may come between look and store */
static inline void slim_lock_give(slim_lock *l)
{
    if (__builtin_expect(atomic_exchange_explicit(l, 0, memory_order_release) == 2, 0))
        bpi_lock_wake(l);
}

#endif
