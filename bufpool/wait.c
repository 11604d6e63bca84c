/* SPDX-License-Identifier: MIT */
/*
 * Parking and waking. A thread that waits for a latch or a read parks on the low half of the frame's state word; one
 * that waits for a frame parks in turn.c. Every wait has an end in time.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/pool.h"

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

void bpi_frame_wait(struct frame *f, uint64_t seen, uint64_t until_ns)
{
    uint64_t word = frame_await(f, seen);

    if (word)
        park(low_half(f), (uint32_t)word, until_ns);
}

void bpi_frame_wake(struct frame *f)
{
    frame_clear_waiters(f);
    wake(low_half(f), INT_MAX);
}

void bpi_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    park((uint32_t *)(void *)word, seen, until_ns);
}

void bpi_futex_wake(_Atomic uint32_t *word, int count)
{
    wake((uint32_t *)(void *)word, count);
}

void bpi_release_notify(bp_pool *pool)
{
    if (likely(!atomic_load_explicit(&pool->starving, memory_order_relaxed)))
        return;
    bpi_turn_call(pool);
}

/* Tell every session whether its puts must look for somebody who waits. Under pool.lock. */
static void set_calm(bp_pool *pool, uint32_t calm)
{
    for (bp_session *s = pool->session; s; s = s->next)
        atomic_store_explicit(&s->calm, calm, memory_order_relaxed);
}

void bpi_puts_watch(bp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    if (pool->watching++ == 0)
        set_calm(pool, 0);
    pthread_mutex_unlock(&pool->lock);
    /* a put that saw its session calm took its pin away before this, and we see that (bp_hot_unpin is seq_cst) */
    atomic_thread_fence(memory_order_seq_cst);
}

void bpi_puts_unwatch(bp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    if (--pool->watching == 0)
        set_calm(pool, 1);
    pthread_mutex_unlock(&pool->lock);
}
