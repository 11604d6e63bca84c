/* SPDX-License-Identifier: MIT */
/*
 * Who sleeps where: one word per ring says who sleeps in the kernel for everybody (the leaders, two at most) and
 * what they wait for, how many threads are parked behind them, and how many requests are in flight.
 *
 * Why leaders: the kernel wakes every thread that sleeps on a ring for each completion. So few sleep there, and the
 * others on a futex, from which they are woken one by one or by what they wait for. Why two: the kernel has a
 * completion posted by the thread that submitted, which must be woken for it. If that one is parked, it posts, the
 * leader wakes, reaps, and wakes it again: three steps where one does if it sleeps in the kernel itself. Two threads
 * that share a ring had 0.82 times the reads of two rings with one leader, and 0.9 times with two.
 *
 * Why one word: each of the questions below depends on two of its parts, and a single read-modify-write puts the two
 * sides in an order. Whoever comes second sees the first, so no wake-up falls between looking and sleeping:
 *
 *   leader leaves:   clears itself, sees parked and no other leader -> moves seq on and wakes one, to take over.
 *   thread parks:    reads seq, adds itself, then looks: no leader -> does not sleep but leads. If there was one
 *                    still, the last one's leaving comes later, sees the parked, and moves seq on after seq was
 *                    read: the futex refuses to sleep, or the sleeper is woken.
 *   parked wakes:    it may be the one that is to take over, and have no use for it. So it becomes a leader first
 *                    if there is a place, looks then, and its leaving wakes the next one. So at any time, if
 *                    somebody sleeps parked with requests in flight, there is a leader or a thread that was woken
 *                    to become one.
 *   submit:          adds to the requests in flight; sees parked and no leader (they had nothing to sleep for in
 *                    the kernel) -> wakes one. A thread that parks after that sees the request and leads.
 *   announce(words): they were stored before; a read-modify-write that changes nothing. Sees parked -> moves
 *                    seq on and wakes those with the words' bits; sees a leader that waits for one -> has it
 *                    kicked. Who parks or leads after that reads the new word and does not sleep.
 *   reap:            takes from the requests in flight; threads parked without a word -> wakes them all.
 *
 * A wake-up too many only makes a thread look again.
 */
#ifndef IO_PARK_H
#define IO_PARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The parts of the word, from the low end; IO_DEPTH_MAX fits into 17 bits. */
#define PARK_LEADERS    0xfffull     /* 2 times 6 bits: 0: nobody; else that leader's tag */
#define PARK_LEADER     0x3full      /* one of them */
#define PARK_FLIGHT_ONE (1ull << 12) /* 17 bits: requests taken and not yet reaped */
#define PARK_PARKED_ONE (1ull << 29) /* 17 bits: threads parked or about to */
#define PARK_ANY_ONE    (1ull << 46) /* 18 bits: of these, threads that any reaping should wake */

#define PARK_BITS_ALL UINT32_MAX

struct park {
    _Atomic uint64_t state;
    _Atomic uint32_t seq; /* the futex: moves on before each wake-up */
};

static inline unsigned park_flight(uint64_t state)
{
    return (unsigned)(state / PARK_FLIGHT_ONE) & 0x1ffff;
}

static inline unsigned park_parked(uint64_t state)
{
    return (unsigned)(state / PARK_PARKED_ONE) & 0x1ffff;
}

static inline unsigned park_any(uint64_t state)
{
    return (unsigned)(state / PARK_ANY_ONE);
}

static inline uint64_t park_state(struct park *p)
{
    return atomic_load_explicit(&p->state, memory_order_acquire);
}

/* What a thread waits for, in few bits: 1 to 31 for a word, by its address; 32: none, so any reaping. */
static inline unsigned park_tag(const _Atomic uint64_t *word)
{
    return word ? 1 + (unsigned)(((uintptr_t)word >> 3) * 0x9e3779b97f4a7c15u >> 32) % 31 : 32;
}

/* The same as a futex' bit. */
static inline uint32_t park_bit(const _Atomic uint64_t *word)
{
    return 1u << (park_tag(word) - 1);
}

/* Parked threads that need a leader and have none. */
static inline bool park_orphaned(uint64_t state)
{
    return !(state & PARK_LEADERS) && park_parked(state) && park_flight(state);
}

/* Move seq on and wake up to count threads parked with one of these bits. */
void bpi_park_wake(struct park *, uint32_t bits, int count);

/* Become a leader: the place, 1 or 1 << 6; 0 if both are taken, or there is nothing to sleep for. */
static inline uint64_t park_lead(struct park *p, const _Atomic uint64_t *word)
{
    uint64_t state = atomic_load_explicit(&p->state, memory_order_relaxed);
    uint64_t place;

    do {
        place = !(state & PARK_LEADER) ? 1 : !(state & PARK_LEADER << 6) ? 1 << 6 : 0;
        if (!place || !park_flight(state))
            return 0;
    } while (!atomic_compare_exchange_weak_explicit(&p->state, &state, state + place * park_tag(word),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return place;
}

static inline void park_leave(struct park *p, uint64_t place)
{
    uint64_t before = atomic_fetch_and_explicit(&p->state, ~(PARK_LEADER * place), memory_order_acq_rel);

    if (park_orphaned(before & ~(PARK_LEADER * place)))
        bpi_park_wake(p, PARK_BITS_ALL, 1);
}

static inline void park_submitted(struct park *p, unsigned n)
{
    uint64_t more = n * PARK_FLIGHT_ONE;
    uint64_t before = atomic_fetch_add_explicit(&p->state, more, memory_order_acq_rel);

    if (park_orphaned(before + more))
        bpi_park_wake(p, PARK_BITS_ALL, 1);
}

static inline void park_reaped(struct park *p, unsigned n)
{
    if (park_any(atomic_fetch_sub_explicit(&p->state, n * PARK_FLIGHT_ONE, memory_order_acq_rel)))
        bpi_park_wake(p, park_bit(NULL), INT32_MAX);
}

/* True: a leader may be waiting for one of these words; it sleeps in the kernel: the caller must get it out of there.
 */
static inline bool park_announce(struct park *p, const _Atomic uint64_t *const word[], unsigned n)
{
    uint64_t state = atomic_fetch_add_explicit(&p->state, 0, memory_order_acq_rel);
    uint32_t parked = 0;
    bool leader = false;

    if (!(state & PARK_LEADERS) && !park_parked(state))
        return false;
    for (unsigned i = 0; i < n; i++) {
        parked |= park_bit(word[i]);
        leader |= (state & PARK_LEADER) == park_tag(word[i]) || (state >> 6 & PARK_LEADER) == park_tag(word[i]);
    }
    if (park_parked(state))
        bpi_park_wake(p, parked, INT32_MAX);
    return leader;
}

/*
 * Parking: begin, look again whether there is reason to sleep, sleep or not, end. word may be NULL. Begin
 * returns the state with the caller in it, and in *seq what to hand to sleep. Sleep returns for any reason, at the
 * latest at until_ns (CLOCK_MONOTONIC).
 */
static inline uint64_t park_begin(struct park *p, const _Atomic uint64_t *word, uint32_t *seq)
{
    uint64_t me = PARK_PARKED_ONE + (word ? 0 : PARK_ANY_ONE);

    *seq = atomic_load_explicit(&p->seq, memory_order_acquire);
    return atomic_fetch_add_explicit(&p->state, me, memory_order_acq_rel) + me;
}

void bpi_park_sleep(struct park *, const _Atomic uint64_t *word, uint32_t seq, uint64_t until_ns);

static inline void park_end(struct park *p, const _Atomic uint64_t *word)
{
    atomic_fetch_sub_explicit(&p->state, PARK_PARKED_ONE + (word ? 0 : PARK_ANY_ONE), memory_order_acq_rel);
}

#endif
