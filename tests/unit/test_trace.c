/* SPDX-License-Identifier: MIT */
/* Recording what a program asks for. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "bufpool/pool.h"

#define PAGES 4000u

struct bench {
    bp_pool *pool;
    bp_file *file;
    bp_session *me;
};

static struct bench bench_open(uint32_t frames)
{
    struct bp_pool_options o = {
        .size = sizeof(o), .memory = 32 << 20, .io = BP_IO_NULL, .frames_max = frames, .policy = BP_POLICY_RECENT};
    struct bp_file_options fo = {.size = sizeof(fo), .null_bytes = (uint64_t)PAGES * BP_PAGE_SIZE};
    struct bench b;

    cr_assert_eq(bp_pool_open(&o, &b.pool), 0);
    cr_assert_eq(bp_file_open(b.pool, "traced", &fo, &b.file), 0);
    cr_assert_eq(bp_session_open(b.pool, NULL, &b.me), 0);
    return b;
}

static void bench_close(struct bench *b)
{
    struct bp_error error = {0};

    cr_assert_eq(bp_pool_check(b->pool, &error), 0, "%s", error.text);
    cr_assert_eq(bp_session_close(b->me), 0);
    cr_assert_eq(bp_pool_close(b->pool, &error), 0, "%s", error.text);
}

static void look(struct bench *b, uint64_t page)
{
    struct bp_view view;

    cr_assert_eq(bp_read(b->me, b->file, page, &view), 0, "%s", bp_session_error(b->me));
}

static struct bp_trace_options want(uint32_t one_in, uint32_t entries)
{
    return (struct bp_trace_options){.size = sizeof(struct bp_trace_options), .one_in = one_in, .entries = entries};
}

/* All misses, in order, of all pages; nothing before the start and after the end. */
Test(trace, misses_in_order)
{
    struct bench b = bench_open(0);
    struct bp_trace_options o = want(0, 0);
    struct bp_trace_entry entry[64];
    uint64_t lost = 1;

    look(&b, 7);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 64, &lost), -EINVAL);
    cr_assert_eq(bp_pool_trace_start(b.pool, &o), 0);
    cr_assert_eq(bp_pool_trace_start(b.pool, NULL), -EALREADY);
    for (unsigned i = 0; i < 50; i++)
        look(&b, 100 + 3 * i);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 20, &lost), 20);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry + 20, 44, &lost), 30);
    cr_assert_eq(lost, 0);
    for (unsigned i = 0; i < 50; i++) {
        cr_assert_eq(entry[i].page, 100 + 3 * i);
        cr_assert_eq(entry[i].file, b.file);
        cr_assert_eq(entry[i].kind, BP_TRACE_MISS);
    }
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 64, NULL), 0);
    cr_assert_eq(bp_pool_trace_stop(b.pool), 0);
    look(&b, 3999);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 64, &lost), -EINVAL);
    cr_assert_eq(bp_pool_trace_start(b.pool, NULL), 0);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 64, NULL), 0);
    bench_close(&b); /* while it is recorded */
}

/* A ring that is full keeps the latest, and says how many it lost. */
Test(trace, ring_keeps_the_latest)
{
    struct bench b = bench_open(0);
    struct bp_trace_options o = want(1, 10); /* 16 */
    struct bp_trace_entry entry[64];
    uint64_t lost;

    cr_assert_eq(bp_pool_trace_start(b.pool, &o), 0);
    for (unsigned i = 0; i < 100; i++)
        look(&b, i);
    cr_assert_eq(bp_pool_trace_read(b.pool, entry, 64, &lost), 16);
    cr_assert_eq(lost, 84);
    for (unsigned i = 0; i < 16; i++)
        cr_assert_eq(entry[i].page, 84 + i);
    bench_close(&b);
    o = want(1, UINT32_MAX);
    b = bench_open(0);
    cr_assert_eq(bp_pool_trace_start(b.pool, &o), -EINVAL);
    bench_close(&b);
}

/* One page in eight, the same ones each time, and no pattern. */
Test(trace, sample)
{
    struct bench b = bench_open(64);
    struct bp_trace_options o = want(8, 0);
    static struct bp_trace_entry first[PAGES], second[PAGES];
    unsigned neighbours = 0;
    int n;

    cr_assert_eq(bp_pool_trace_start(b.pool, &o), 0);
    for (unsigned i = 0; i < PAGES; i++)
        look(&b, i);
    n = bp_pool_trace_read(b.pool, first, PAGES, NULL);
    cr_assert_gt(n, (int)PAGES / 8 - 120);
    cr_assert_lt(n, (int)PAGES / 8 + 120);
    for (int i = 1; i < n; i++)
        neighbours += first[i].page == first[i - 1].page + 1;
    cr_assert_gt(neighbours, 10);
    cr_assert_lt(neighbours, 150);
    for (unsigned i = 0; i < PAGES; i++)
        look(&b, i);
    cr_assert_eq(bp_pool_trace_read(b.pool, second, PAGES, NULL), n);
    for (int i = 0; i < n; i++)
        cr_assert_eq(first[i].page, second[i].page);
    bench_close(&b);
}

/* Every access to a page of the sample, in order, however hot: also of pages that were hot before. */
Test(trace, hits_too)
{
    static struct bp_trace_entry entry[20000];
    static uint64_t asked[20000];

    for (uint32_t one_in = 1; one_in < 6; one_in += 4) {
        struct bench b = bench_open(60);
        struct bp_trace_options o = want(one_in, 20000);
        bool sampled[100] = {false};
        uint64_t random = 1;
        unsigned at = 0, misses = 0;
        int n;

        for (unsigned i = 0; i < 500; i++)
            look(&b, i % 50);
        cr_assert_eq(bp_pool_trace_start(b.pool, &o), 0);
        for (unsigned i = 0; i < 10000; i++) {
            struct bp_ref ref;

            random = random * 6364136223846793005u + 1442695040888963407u;
            asked[i] = random >> 60 ? (random >> 33) % 40 : (random >> 33) % 100;
            if (random >> 32 & 1) {
                look(&b, asked[i]);
            } else {
                cr_assert_eq(bp_get(b.me, b.file, asked[i], random >> 50 & 1 ? BP_SHARED : BP_EXCLUSIVE, &ref), 0);
                bp_put(&ref);
            }
        }
        n = bp_pool_trace_read(b.pool, entry, 20000, NULL);
        for (int i = 0; i < n; i++) {
            sampled[entry[i].page] = true;
            misses += entry[i].kind == BP_TRACE_MISS;
        }
        for (unsigned i = 0; i < 10000; i++)
            if (sampled[asked[i]]) {
                cr_assert(at < (unsigned)n && entry[at].page == asked[i], "access %u, entry %u of %d", i, at, n);
                at++;
            }
        cr_assert_eq((int)at, n);
        cr_assert(one_in > 1 || at == 10000);
        cr_assert_gt(misses, 100 / one_in);
        cr_assert_lt(misses, at / 4);
        bench_close(&b);
    }
}
