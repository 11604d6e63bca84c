/* SPDX-License-Identifier: MIT */
/*
 * One budget: whatever is asked for, in the worst of patterns, the process does not grow by more than the pool was given,
 * and the statistics say what it is for.
 */
#include <pthread.h>

#include "tests/unit/made_up.h"
#include "tests/unit/pool_fixture.h"

#define MIB    ((uint64_t)1 << 20)
#define MEMORY (64 * MIB)
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER_SLACK (16ull << 20) /* its shadows and what it keeps of freed memory */
#endif
#endif
#ifndef SANITIZER_SLACK
#define SANITIZER_SLACK 0ull
#endif
#define SLACK (2 * MIB) /* threads, the C library, and the kernel's figure, which is not exact */

static uint64_t rss_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    cr_assert(f && fscanf(f, "%lu %lu", &total, &resident) == 2);
    fclose(f);
    return (uint64_t)resident * 4096;
}

static struct io_ops made_up;

static bp_pool *open_made_up(uint64_t memory, uint64_t max)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .memory_max = max, .io = BP_IO_NULL};
    bp_pool *pool = NULL;

    o.huge = BP_OFF; /* what is resident is what was touched */
    made_up = made_up_ops();
    cr_assert_eq(bpi_pool_open(&o, &made_up, &pool), 0);
    return pool;
}

static bp_file *open_null(bp_pool *pool)
{
    struct bp_file_options o = {.size = sizeof(o), .null_bytes = 1ull << 44};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, "made up", &o, &file), 0);
    return file;
}

static uint64_t charged(bp_pool *pool)
{
    static const char *const parts[] = {"memory_frames", "memory_descriptors", "memory_index",
                                        "memory_policy", "memory_io",          "memory_sessions"};
    uint64_t sum = 0;

    for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        uint64_t part = stat_of(pool, parts[i]);

        cr_assert_gt(part, 0, "%s", parts[i]);
        sum += part;
    }
    return sum;
}

struct stroller {
    bp_pool *pool;
    bp_file *file;
    uint64_t random, reads;
    int error;
    pthread_t thread;
};

/* Pages that are alone in their leaves, and batches of them, so that reads are under way all the time. */
static void *stroll(void *arg)
{
    struct stroller *r = arg;
    bp_session *s = open_session(r->pool, "stroller");

    for (uint64_t n = 0; n < r->reads && !r->error; n += 64) {
        uint64_t page[64];
        struct bp_ref ref[64];

        for (unsigned i = 0; i < 64; i++) {
            r->random = r->random * 6364136223846793005u + 1442695040888963407u;
            page[i] = (r->random >> 32) % (1u << 31);
        }
        r->error = bp_get_many(s, r->file, page, 64, BP_SHARED, ref);
        for (unsigned i = 0; i < 64 && !r->error; i++)
            r->error = made_up_right(page[i], ref[i].data) ? 0 : -1;
        if (!r->error)
            bp_put_many(ref, 64);
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

static void stroll_all(bp_pool *pool, bp_file *file, uint64_t reads)
{
    struct stroller r[3];

    for (unsigned i = 0; i < 3; i++) {
        r[i] = (struct stroller){.pool = pool, .file = file, .random = i + 1, .reads = reads / 3};
        pthread_create(&r[i].thread, NULL, stroll, &r[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(r[i].thread, NULL);
        cr_assert_eq(r[i].error, 0, "%s", bp_strerror(r[i].error));
    }
}

static void check_within(bp_pool *pool, uint64_t before, const char *when)
{
    uint64_t grown = rss_bytes() - before;

    cr_assert_leq(charged(pool), MEMORY, "%s: %lu KiB charged", when, (unsigned long)(charged(pool) / 1024));
    cr_assert_leq(grown, MEMORY + SLACK + SANITIZER_SLACK, "%s: %lu KiB resident", when, (unsigned long)(grown / 1024));
}

/* From the beginning: nodes take the place of frames before these have memory. */
Test(budget, pages_alone_in_their_leaves, .timeout = 60)
{
    uint64_t before = rss_bytes();
    bp_pool *pool = open_made_up(MEMORY, 0);
    bp_file *file = open_null(pool);
    bp_session *s = open_session(pool, "s");
    uint64_t frames = stat_of(pool, "frames_total");

    stroll_all(pool, file, 3 * frames);
    check_within(pool, before, "alone");
    cr_assert_lt(stat_of(pool, "frames_total"), frames, "nodes have to come from somewhere");
    cr_assert_gt(stat_of(pool, "frames_total"), frames / 100 * 70);
    cr_assert_gt(bp_file_resident(file), stat_of(pool, "frames_total") * 4096 / 100 * 90,
                 "and then all of them are used");
    cr_assert_gt(charged(pool), MEMORY / 100 * 90);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* The pool is full already: slabs leave for the nodes. */
Test(budget, alone_after_dense_ones, .timeout = 60)
{
    uint64_t before = rss_bytes();
    bp_pool *pool = open_made_up(MEMORY, 0);
    bp_file *file = open_null(pool);
    bp_session *s = open_session(pool, "s");
    uint64_t frames = stat_of(pool, "frames_total");

    for (uint64_t page = 0; page < frames; page++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, page, &view), 0);
    }
    check_within(pool, before, "dense");
    stroll_all(pool, file, 3 * frames);
    check_within(pool, before, "alone");
    cr_assert_lt(stat_of(pool, "frames_total"), frames);
    cr_assert_gt(bp_file_resident(file), stat_of(pool, "frames_total") * 4096 / 100 * 85);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* A pool that was larger: what stays of that is charged to what is left. */
Test(budget, what_stays_of_a_larger_pool, .timeout = 60)
{
    uint64_t before = rss_bytes();
    bp_pool *pool = open_made_up(2 * MEMORY, 0);
    bp_file *file = open_null(pool);
    bp_session *s = open_session(pool, "s");

    stroll_all(pool, file, 2 * stat_of(pool, "frames_total"));
    cr_assert_eq(bp_pool_resize(pool, MEMORY, NULL), 0);
    check_within(pool, before, "resized");
    stroll_all(pool, file, 2 * stat_of(pool, "frames_total"));
    check_within(pool, before, "and used");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}
