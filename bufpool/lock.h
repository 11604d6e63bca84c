/* SPDX-License-Identifier: MIT */
/*
 * A lock of four bytes that may stand in every node of the index: one locked instruction to take, one to give back, and
 * a futex for those who wait. Not recursive, not fair; mostly held for some dozens of instructions and never while
 * anything else is waited for but another lock further down (R9). Also where a mutex would do, but a miss would take it:
 * that is some 45 instructions more each time.
 *
 *      bit 0       taken
 *      bit 1       somebody may be asleep
 *      bits 2..31  holds: a count that goes up and down beside the lock, whoever has it. Whoever takes the lock after
 *                  somebody added a hold sees it, and whoever adds a hold after somebody took the lock sees what that
 *                  one did before: they change the same word.
 */
#ifndef BUFPOOL_LOCK_H
#define BUFPOOL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint32_t slim_lock; /* 0 is a free one */

#define SLIM_TAKEN  1u
#define SLIM_WAITED 2u
#define SLIM_HOLD   4u

/* The slow halves. */
void bpi_lock_wait(slim_lock *);
void bpi_lock_wake(slim_lock *);

/* Not if it is taken. acq_rel: as below */
static inline bool slim_lock_try(slim_lock *l)
{
    return !(atomic_fetch_or_explicit(l, SLIM_TAKEN, memory_order_acq_rel) & SLIM_TAKEN);
}

/* acquire: what the last one wrote is ours to read. release: what we did before is seen by who adds a hold after us */
static inline void slim_lock_take(slim_lock *l)
{
    if (__builtin_expect(!slim_lock_try(l), 0))
        bpi_lock_wait(l);
}

/* release: what we wrote is the next one's to read */
static inline void slim_lock_give(slim_lock *l)
{
    if (__builtin_expect(atomic_fetch_sub_explicit(l, SLIM_TAKEN, memory_order_release) & SLIM_WAITED, 0))
        bpi_lock_wake(l);
}

/*
 * Whether the lock was taken at that moment; if not, whoever takes it later sees the hold, and we see what all did that
 * had it before. seq_cst: as in slim_is_held.
 */
static inline bool slim_hold(slim_lock *l)
{
    return atomic_fetch_add_explicit(l, SLIM_HOLD, memory_order_seq_cst) & SLIM_TAKEN;
}

/* release: our use of what was held comes before anybody's who finds no hold */
static inline void slim_unhold(slim_lock *l)
{
    atomic_fetch_sub_explicit(l, SLIM_HOLD, memory_order_release);
}

/*
 * While the lock is taken: final as far as the caller is concerned, who sees all holds that were there before he took
 * it. Without it: seq_cst, so that of two who each do something and then ask what the other did, one sees it at least.
 */
static inline bool slim_is_held(const slim_lock *l)
{
    return atomic_load_explicit(l, memory_order_seq_cst) >= SLIM_HOLD;
}

#endif
