/* SPDX-License-Identifier: MIT */
/*
 * Parking and waking. A thread that waits for a latch or a read parks on the low half of the frame's state word; one
 * that waits for a frame parks on the pool's `released`. Every wait has an end in time.
 *
 * Puts that are inlined into programs tell nobody (R12), so whoever waits for pins to go looks again after a slice.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/pool.h"

#define PIN_SLICE_NS     (NS_PER_MS / 5) /* a look at one word */
#define RELEASE_SLICE_NS (5 * NS_PER_MS) /* a sweep for something that can be evicted */

uint64_t bpi_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The kernel compares 32 bits: the half of the state word that holds latch and flags. */
static uint32_t *low_half(struct frame *f)
{
    return (uint32_t *)(void *)&f->state + (__BYTE_ORDER == __BIG_ENDIAN ? 1 : 0);
}

static void park(uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};

    /* spurious returns, EINTR and ETIMEDOUT are all the same to the caller: it looks again */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake(uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);
}

/* until_ns, but no longer than a slice from now */
static uint64_t soon(uint64_t until_ns, uint64_t slice_ns)
{
    uint64_t slice_end = bpi_now_ns() + slice_ns;

    return slice_end < until_ns ? slice_end : until_ns;
}

void bpi_frame_wait(struct frame *f, uint64_t seen, uint64_t until_ns)
{
    uint64_t word = frame_await(f, seen);

    if (word)
        park(low_half(f), (uint32_t)word, seen & FRAME_PINS ? soon(until_ns, PIN_SLICE_NS) : until_ns);
}

void bpi_frame_wake(struct frame *f)
{
    frame_clear_waiters(f);
    wake(low_half(f), INT_MAX);
}

void bpi_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    park((uint32_t *)(void *)word, seen, soon(until_ns, RELEASE_SLICE_NS));
}

void bpi_futex_wake(_Atomic uint32_t *word, int count)
{
    wake((uint32_t *)(void *)word, count);
}

void bpi_release_notify(bp_pool *pool)
{
    if (likely(!atomic_load_explicit(&pool->starving, memory_order_relaxed)))
        return;
    /* release: pairs with the acquire load of whoever is woken and looks for what we released */
    atomic_fetch_add_explicit(&pool->released, 1, memory_order_release);
    bpi_futex_wake(&pool->released, 1);
}

void bpi_puts_watch(bp_pool *pool)
{
    /* a put that did not see this took its pin away before, and we see that: its unpin is seq_cst, as the fence is */
    atomic_fetch_add_explicit(&pool->watching, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

void bpi_puts_unwatch(bp_pool *pool)
{
    atomic_fetch_sub_explicit(&pool->watching, 1, memory_order_relaxed);
}
