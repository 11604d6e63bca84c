/* SPDX-License-Identifier: MIT */
/*
 * What a fault does to its frame before anybody sees it: everything with plain stores, and then one that publishes
 * (after M. Gorman's "mm: Non-atomically mark page accessed in write_begin where possible", 2014). The old way
 * publishes a bare frame and marks it afterwards, when that takes an atomic operation.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bufpool/frame.h"

#define FRAMES 4096u /* descriptors that stay in the cache */

/* Back to the free list, as an eviction leaves it: only the version stays. */
static inline void recycle(struct frame *f)
{
    uint64_t seen = atomic_load_explicit(&f->state, memory_order_relaxed);

    atomic_store_explicit(&f->state, (seen & FRAME_VERSION) + FRAME_VERSION_ONE, memory_order_relaxed);
}

static int atomic_after(struct bench_thread *t, uint64_t ops)
{
    struct frame *frame = t->local;

    for (uint64_t i = 0; i < ops; i++) {
        struct frame *f = &frame[i % FRAMES];

        frame_publish(f, i, 0, 0);
        frame_warm(f, atomic_load_explicit(&f->state, memory_order_relaxed));
        recycle(f);
    }
    return 0;
}

static int plain_before(struct bench_thread *t, uint64_t ops)
{
    struct frame *frame = t->local;

    for (uint64_t i = 0; i < ops; i++) {
        struct frame *f = &frame[i % FRAMES];

        frame_publish(f, i, 0, 1);
        recycle(f);
    }
    return 0;
}

static int publish_open(const struct bench *b, void **fixture)
{
    (void)b;
    *fixture = NULL;
    return 0;
}

static void publish_close(void *fixture)
{
    (void)fixture;
}

static int publish_thread_open(struct bench_thread *t)
{
    t->local = aligned_alloc(64, FRAMES * sizeof(struct frame));
    if (!t->local)
        return -1;
    memset(t->local, 0, FRAMES * sizeof(struct frame));
    return 0;
}

static void publish_thread_close(struct bench_thread *t)
{
    free(t->local);
}

static const struct bench_fixture fixture = {.open = publish_open,
                                             .close = publish_close,
                                             .thread_open = publish_thread_open,
                                             .thread_close = publish_thread_close};

static const struct bench_variant variants[] = {{.name = "atomic-after", .loop = atomic_after},
                                                {.name = "plain-before", .loop = plain_before}};

const struct bench_case bench_fault_init = {.name = "fault-init",
                                            .text = "a new frame made visible with its heat",
                                            .fixture = &fixture,
                                            .variant = variants,
                                            .variant_count = BENCH_COUNT(variants),
                                            .ops = 2000000,
                                            .clock = BENCH_CPU};
