/* SPDX-License-Identifier: MIT */
/*
 * Memory that is rearranged while it is in use, on a device that answers at once.
 *
 *   compact   an operation is an extent of 2 MiB in a pool of which a tenth is free, page by page: what lies in one block
 *             moves elsewhere. Beside it, copying as many pages and nothing else.
 *   shrink    an operation is a MiB that bp_pool_resize gives back; alone, and beside two threads that read at random.
 *             Checked: resident memory falls by 95 % of it at least.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define PIECES      10u        /* one page in so many is free */
#define LARGE_BYTES (2u << 20) /* and no more than a thirty-second of the pool */
#define LOADS       2u

struct arena {
    const struct bench *bench;
    bp_pool *pool;
    bp_file *file, *gap, *large;
    bp_session *s;
    uint64_t bytes;
    uint64_t frames;
    uint32_t extent; /* bytes of one of the large file */
    uint64_t next;   /* of them */
    uint64_t blocks, copied;
    char *buffer;
    bool stop; /* atomic */
    pthread_t thread[LOADS];
    uint64_t returned, fell; /* bytes: by the pool's account, by the kernel's */
};

static uint64_t rss_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f && fscanf(f, "%lu %lu", &total, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return (uint64_t)resident * BP_PAGE_SIZE;
}

static int open_file(struct arena *a, uint32_t extent, bp_file **file)
{
    struct bp_file_options o = {.size = sizeof(o), .extent_bytes = extent, .null_bytes = 1ull << 40};

    return bp_file_open(a->pool, "null", &o, file);
}

static uint64_t stat_moved(struct arena *a, uint64_t *frames)
{
    struct bp_stats st = {.size = sizeof(st)};

    if (bp_pool_stats(a->pool, &st))
        return 0;
    *frames = st.frames_total;
    return st.frames_moved;
}

static void arena_close(void *fixture)
{
    struct arena *a = fixture;

    if (!a)
        return;
    if (a->s && bp_session_close(a->s))
        bench_error("a session does not close");
    if (a->pool && bp_pool_close(a->pool, NULL))
        bench_error("a pool does not close");
    free(a->buffer);
    free(a);
}

static int arena_open(const struct bench *b, void **fixture)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = b->bytes, .io = BP_IO_NULL};
    struct arena *a = calloc(1, sizeof(*a));
    int rc = a ? 0 : -1;

    *fixture = a;
    if (rc)
        return bench_error("out of memory");
    a->bench = b;
    a->bytes = b->bytes;
    a->buffer = malloc(2 * (size_t)LARGE_BYTES);
    a->extent = LARGE_BYTES;
    while (a->extent > b->bytes / 32)
        a->extent /= 2;
    a->extent = a->extent < BP_PAGE_SIZE ? BP_PAGE_SIZE : a->extent;
    rc = bp_pool_open(&o, &a->pool);
    if (!rc)
        rc = bp_session_open(a->pool, NULL, &a->s);
    if (!rc)
        rc = open_file(a, 0, &a->file);
    if (!rc)
        stat_moved(a, &a->frames);
    return rc || !a->buffer ? bench_code(rc, "a pool") : 0;
}

static int no_thread(struct bench_thread *t)
{
    (void)t;
    return 0;
}

static void no_thread_close(struct bench_thread *t)
{
    (void)t;
}

/* ---- compact ---- */

/* Full of single pages; then one in PIECES goes. */
static int take_to_pieces(struct bench_thread *t)
{
    struct arena *a = t->fixture;
    int rc = 0;

    if (a->large && bp_file_close(a->large, NULL))
        return bench_error("a file does not close");
    a->large = NULL;
    if (bp_file_close(a->file, NULL) || open_file(a, 0, &a->file) || open_file(a, 0, &a->gap))
        return bench_error("a file does not close, or open");
    for (uint64_t i = 0; i < a->frames && !rc; i++) {
        struct bp_view view;

        rc = bp_read(a->s, i % PIECES ? a->file : a->gap, i, &view);
    }
    if (!rc)
        rc = bp_file_close(a->gap, NULL);
    if (!rc)
        rc = open_file(a, a->extent, &a->large);
    a->next = 0;
    return rc ? bench_code(rc, "taking memory to pieces") : 0;
}

static int compact_move(struct bench_thread *t, uint64_t ops)
{
    struct arena *a = t->fixture;
    uint64_t frames, before = stat_moved(a, &frames);
    int rc = 0;

    for (uint64_t i = 0; i < ops && !rc; i++) {
        struct bp_view view;

        rc = bp_read(a->s, a->large, a->next++ * (a->extent / BP_PAGE_SIZE), &view);
    }
    a->blocks += ops;
    a->copied += stat_moved(a, &frames) - before;
    return rc;
}

static int compact_copy(struct bench_thread *t, uint64_t ops)
{
    struct arena *a = t->fixture;
    uint32_t pages = a->extent / BP_PAGE_SIZE;

    for (uint64_t i = 0; i < ops; i++)
        for (uint32_t page = 0; page < pages / PIECES * (PIECES - 1); page++)
            memcpy(a->buffer + (size_t)page * BP_PAGE_SIZE,
                   a->buffer + LARGE_BYTES + bench_random_page(&t->random, pages) * BP_PAGE_SIZE, BP_PAGE_SIZE);
    return 0;
}

static int compact_check(void *fixture)
{
    struct arena *a = fixture;

    if (a->blocks)
        bench_note("%llu extents, %.1f frames copied for each", (unsigned long long)a->blocks,
                   (double)a->copied / (double)a->blocks);
    return a->blocks && !a->copied && a->extent > BP_PAGE_SIZE ? bench_error("nothing was moved") : 0;
}

static const struct bench_fixture compact_fixture = {.open = arena_open,
                                                     .close = arena_close,
                                                     .thread_open = no_thread,
                                                     .thread_close = no_thread_close,
                                                     .prepare = take_to_pieces,
                                                     .check = compact_check};

static const struct bench_variant compact_variants[] = {{.name = "copy", .loop = compact_copy},
                                                        {.name = "move", .loop = compact_move}};

const struct bench_case bench_compact = {.name = "compact",
                                         .text = "an extent of 2 MiB where a tenth is free in pieces",
                                         .fixture = &compact_fixture,
                                         .variant = compact_variants,
                                         .variant_count = BENCH_COUNT(compact_variants),
                                         .ops = 8,
                                         .bytes = 256u << 20,
                                         .clock = BENCH_CPU};

/* ---- shrink ---- */

static void *load(void *arg)
{
    struct arena *a = arg;
    uint64_t random = (uintptr_t)&random;
    bp_session *s;

    if (bp_session_open(a->pool, NULL, &s))
        return NULL;
    while (!__atomic_load_n(&a->stop, __ATOMIC_RELAXED)) {
        struct bp_view view;

        if (bp_read(s, a->file, bench_random_page(&random, 2 * a->frames), &view))
            break;
    }
    if (bp_session_close(s))
        bench_error("a session does not close");
    return NULL;
}

static int fill(struct bench_thread *t)
{
    struct arena *a = t->fixture;
    int rc = bp_pool_resize(a->pool, a->bytes, NULL);

    for (uint64_t i = 0; i < a->frames && !rc; i++) {
        struct bp_view view;

        rc = bp_read(a->s, a->file, i, &view);
    }
    return rc ? bench_code(rc, "filling the pool") : 0;
}

static int shrink(struct bench_thread *t, uint64_t ops, bool loaded)
{
    struct arena *a = t->fixture;
    uint64_t to = ops << 20 < a->bytes - BP_MEMORY_MIN ? a->bytes - (ops << 20) : BP_MEMORY_MIN;
    unsigned threads = 0;
    uint64_t before, after;
    int rc;

    __atomic_store_n(&a->stop, false, __ATOMIC_RELAXED);
    while (loaded && threads < LOADS && !pthread_create(&a->thread[threads], NULL, load, a))
        threads++;
    before = rss_bytes();
    rc = bp_pool_resize(a->pool, to, NULL);
    after = rss_bytes();
    __atomic_store_n(&a->stop, true, __ATOMIC_RELAXED);
    while (threads)
        pthread_join(a->thread[--threads], NULL);
    a->returned += a->bytes - to;
    a->fell += before > after ? before - after : 0;
    return rc;
}

static int shrink_idle(struct bench_thread *t, uint64_t ops)
{
    return shrink(t, ops, false);
}

static int shrink_loaded(struct bench_thread *t, uint64_t ops)
{
    return shrink(t, ops, true);
}

static int shrink_check(void *fixture)
{
    struct arena *a = fixture;

    bench_note("resident memory fell by %.1f %% of what was given back", 100.0 * (double)a->fell / (double)a->returned);
    return a->fell < a->returned / 100 * 95 ? bench_error("that is less than 95 %%") : 0;
}

static const struct bench_fixture shrink_fixture = {.open = arena_open,
                                                    .close = arena_close,
                                                    .thread_open = no_thread,
                                                    .thread_close = no_thread_close,
                                                    .prepare = fill,
                                                    .check = shrink_check};

static const struct bench_variant shrink_variants[] = {{.name = "idle", .loop = shrink_idle},
                                                       {.name = "two-sessions", .loop = shrink_loaded}};

const struct bench_case bench_shrink = {.name = "shrink",
                                        .text = "a MiB given back by bp_pool_resize",
                                        .fixture = &shrink_fixture,
                                        .variant = shrink_variants,
                                        .variant_count = BENCH_COUNT(shrink_variants),
                                        .ops = 768,
                                        .bytes = 1u << 30,
                                        .clock = BENCH_WALL};
