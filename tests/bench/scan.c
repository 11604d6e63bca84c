/* SPDX-License-Identifier: MIT */
/*
 * Whole extents in sequence, everything in memory: how much of the speed of adding up a plain array is left when its
 * pieces are got from a pool and put back. An operation is a page of 4 KiB; the adding is the same function for all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resident.h"

#define LARGE_BYTES (2u << 20)
#define LARGE_PAGES (LARGE_BYTES / BP_PAGE_SIZE)
#define PIECES      64u

/* One pool with one file in extents of one size. */
struct extents {
    bp_pool *pool;
    bp_file *file;
    uint64_t misses;
};

struct scan {
    uint64_t pages;
    char *array;
    struct extents large, small;
};

struct scan_thread {
    bp_session *large, *small;
    char *to; /* for copies */
    bp_scan *scan;
};

/* ---- loops ---- */

static int sum_array(struct bench_thread *t, uint64_t ops)
{
    const struct scan *s = t->fixture;

    while (ops) {
        uint64_t n = LARGE_PAGES - t->page % LARGE_PAGES; /* in pieces, as the largest extents are */

        n = n < ops ? n : ops;
        n = n < s->pages - t->page ? n : s->pages - t->page;
        t->sum += bench_sum_words(s->array + (t->page << BP_PAGE_SHIFT), n << BP_PAGE_SHIFT);
        t->page = t->page + n < s->pages ? t->page + n : 0;
        ops -= n;
    }
    return 0;
}

static inline int sum_extents(struct bench_thread *t, uint64_t ops, bp_session *session, bp_file *file)
{
    const struct scan *s = t->fixture;

    while (ops) {
        struct bp_ref ref;
        int rc = bp_get(session, file, t->page, BP_SHARED, &ref);
        uint64_t n;

        if (unlikely(rc))
            return rc;
        n = ref.bytes >> BP_PAGE_SHIFT;
        n = n < ops ? n : ops;
        t->sum += bench_sum_words(ref.data, n << BP_PAGE_SHIFT);
        bp_put(&ref);
        t->page = t->page + n < s->pages ? t->page + n : 0;
        ops -= n;
    }
    return 0;
}

static int sum_large(struct bench_thread *t, uint64_t ops)
{
    return sum_extents(t, ops, ((struct scan_thread *)t->local)->large, ((struct scan *)t->fixture)->large.file);
}

static int sum_small(struct bench_thread *t, uint64_t ops)
{
    return sum_extents(t, ops, ((struct scan_thread *)t->local)->small, ((struct scan *)t->fixture)->small.file);
}

/* ---- copies ---- */

/* Pieces of so many bytes, one after the other. */
typedef int copy_piece(bp_session *, bp_file *, uint64_t offset, size_t bytes, char *to);

static int copy_pages(bp_session *session, bp_file *file, uint64_t offset, size_t bytes, char *to)
{
    for (size_t done = 0; done < bytes; done += BP_PAGE_SIZE) {
        uint64_t page = (offset + done) >> BP_PAGE_SHIFT;
        struct bp_ref ref;
        int rc = bp_get(session, file, page, BP_SHARED, &ref);

        if (unlikely(rc))
            return rc;
        memcpy(to + done, (const char *)ref.data + ((page - ref.page) << BP_PAGE_SHIFT), BP_PAGE_SIZE);
        bp_put(&ref);
    }
    return 0;
}

static int copy_extents(bp_session *session, bp_file *file, uint64_t offset, size_t bytes, char *to)
{
    size_t done;
    int rc = bp_copy_out(session, file, offset, bytes, to, &done);

    return rc ? rc : done == bytes ? 0 : -EUCLEAN;
}

static inline int copy_loop(struct bench_thread *t, uint64_t ops, size_t bytes, copy_piece *copy)
{
    struct scan *s = t->fixture;
    struct scan_thread *local = t->local;
    uint64_t pages = bytes >> BP_PAGE_SHIFT;
    int rc = 0;

    for (; ops && !rc; ops = ops > pages ? ops - pages : 0) {
        rc = copy(local->large, s->large.file, t->page << BP_PAGE_SHIFT, bytes, local->to);
        t->sum += *(const uint64_t *)(const void *)local->to;
        t->page = t->page + 2 * pages <= s->pages ? t->page + pages : 0;
    }
    return rc;
}

#define COPY_LOOPS(size, bytes)                                          \
    static int copy_pages_##size(struct bench_thread *t, uint64_t ops)   \
    {                                                                    \
        return copy_loop(t, ops, bytes, copy_pages);                     \
    }                                                                    \
    static int copy_extents_##size(struct bench_thread *t, uint64_t ops) \
    {                                                                    \
        return copy_loop(t, ops, bytes, copy_extents);                   \
    }                                                                    \
    static const struct bench_variant copy_variants_##size[] = {         \
        {.name = "per-page", .loop = copy_pages_##size},                 \
        {.name = "per-extent", .loop = copy_extents_##size},             \
    };
COPY_LOOPS(4k, 4096)
COPY_LOOPS(64k, 65536)
COPY_LOOPS(2m, LARGE_BYTES)

/* ---- pins ---- */

/* The first word of each page, every page pinned and put back by itself. */
static int pin_pages(struct bench_thread *t, uint64_t ops)
{
    const struct scan *s = t->fixture;
    const struct scan_thread *local = t->local;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_get(local->small, s->small.file, t->page, BP_SHARED, &ref);

        if (unlikely(rc))
            return rc;
        t->sum += *(const uint64_t *)ref.data;
        bp_put(&ref);
        t->page = t->page + 1 < s->pages ? t->page + 1 : 0;
    }
    return 0;
}

/* The same by a scan, which pins runs. */
static int pin_runs(struct bench_thread *t, uint64_t ops)
{
    const struct scan *s = t->fixture;
    struct scan_thread *local = t->local;

    while (ops) {
        struct bp_piece piece[PIECES];
        unsigned got = 0;
        int rc = 0;

        if (!local->scan)
            rc = bp_scan_open(local->small, s->small.file, 0, s->pages - 1, 0, &local->scan);
        if (!rc)
            rc = bp_scan_next(local->scan, piece, PIECES, &got);
        if (unlikely(rc))
            return rc;
        for (unsigned i = 0; i < got; i++)
            for (uint64_t at = 0; at < piece[i].bytes && ops; at += BP_PAGE_SIZE, ops--)
                t->sum += *(const uint64_t *)(const void *)((const char *)piece[i].data + at);
        if (!got) {
            bp_scan_close(local->scan);
            local->scan = NULL;
        }
    }
    return 0;
}

/* ---- set-up ---- */

/* Page i begins with i + 1; the rest is zero. */
static int write_pages(const struct bench *b, bp_session *s, bp_file *file, uint64_t pages)
{
    struct bench_progress progress = {.bench = b, .what = "writing into the pages"};

    for (uint64_t page = 0; page < pages; page++) {
        struct bp_ref ref;

        if (bp_get(s, file, page, BP_EXCLUSIVE, &ref))
            return bench_error("writing into the pages: %s", bp_session_error(s));
        *(uint64_t *)ref.data = page + 1;
        bp_put(&ref);
        if (page % 4096 == 0)
            bench_progress(&progress, page, pages);
    }
    return 0;
}

static int open_extents(const struct bench *b, uint32_t extent_bytes, uint64_t pages, struct extents *e)
{
    uint64_t bytes = pages << BP_PAGE_SHIFT;
    const char *first;
    bp_session *s;
    bool in_order;
    int rc;

    if (bench_pool_open(b, bench_pool_memory(bytes), BP_TRY, &e->pool) ||
        bench_sparse_open(b, bytes, e->pool, extent_bytes, &e->file, NULL))
        return -1;
    rc = bp_session_open(e->pool, NULL, &s);
    if (rc)
        return bench_code(rc, "opening a session");
    rc = bench_fill(b, s, e->file, pages, &first, &in_order);
    if (!rc)
        rc = write_pages(b, s, e->file, pages);
    if (!rc)
        rc = bench_heat(s, e->file, pages);
    if (bp_session_close(s))
        rc = bench_error("closing the session");
    return rc ? rc : bench_misses(e->pool, &e->misses);
}

static int make_array(struct scan *s)
{
    s->array = bench_alloc(s->pages << BP_PAGE_SHIFT, true);
    if (!s->array)
        return -1;
    for (uint64_t page = 0; page < s->pages; page++)
        *(uint64_t *)(void *)(s->array + (page << BP_PAGE_SHIFT)) = page + 1;
    return 0;
}

static int scan_open(const struct bench *b, void **fixture)
{
    struct scan *s = calloc(1, sizeof(*s));

    *fixture = s;
    if (!s)
        return bench_error("no memory");
    s->pages = b->bytes / LARGE_BYTES * LARGE_PAGES;
    if (!s->pages || s->pages >> 32)
        return bench_error("--bytes: from 2 MiB to 16 TiB");
    if (bench_memory_check(3 * bench_pool_memory(b->bytes)) || (bench_wants(b, "array") && make_array(s)) ||
        ((bench_wants(b, "extents-2m") || bench_wants(b, "per-page") || bench_wants(b, "per-extent")) &&
         open_extents(b, LARGE_BYTES, s->pages, &s->large)) ||
        ((bench_wants(b, "extents-4k") || bench_wants(b, "per-run")) &&
         open_extents(b, BP_PAGE_SIZE, s->pages, &s->small)))
        return -1;
    return 0;
}

static void scan_close(void *fixture)
{
    struct scan *s = fixture;

    if (!s)
        return;
    bench_pool_close(s->large.pool);
    bench_pool_close(s->small.pool);
    bench_free(s->array, s->pages << BP_PAGE_SHIFT);
    free(s);
}

/* Once over everything, at the start: the sum must be right. */
static int check_sum(struct bench_thread *t, bench_loop *loop)
{
    uint64_t pages = ((const struct scan *)t->fixture)->pages;
    struct bench_thread once = *t;
    int rc = loop(&once, pages);

    if (!rc && once.sum != pages * (pages + 1) / 2)
        rc = -EUCLEAN;
    return rc;
}

static int scan_thread_open(struct bench_thread *t)
{
    struct scan *s = t->fixture;
    struct scan_thread *local = calloc(1, sizeof(*local));
    int rc = 0;

    t->local = local;
    if (!local)
        return -ENOMEM;
    local->to = bench_alloc(LARGE_BYTES, true);
    if (!local->to)
        return -ENOMEM;
    if (s->large.pool)
        rc = bp_session_open(s->large.pool, NULL, &local->large);
    if (!rc && s->small.pool)
        rc = bp_session_open(s->small.pool, NULL, &local->small);
    if (!rc && s->array)
        rc = check_sum(t, sum_array);
    if (!rc && s->large.pool)
        rc = check_sum(t, sum_large);
    if (!rc && s->small.pool)
        rc = check_sum(t, sum_small);
    t->page = s->pages / t->count * t->number / LARGE_PAGES * LARGE_PAGES;
    return rc;
}

static void scan_thread_close(struct bench_thread *t)
{
    struct scan_thread *local = t->local;

    if (!local)
        return;
    bp_scan_close(local->scan);
    if ((local->large && bp_session_close(local->large)) || (local->small && bp_session_close(local->small)))
        bench_error("closing a session");
    bench_free(local->to, LARGE_BYTES);
    free(local);
}

static int check_misses(const struct extents *e)
{
    uint64_t misses = 0;

    if (!e->pool)
        return 0;
    if (bench_misses(e->pool, &misses))
        return -1;
    return misses == e->misses ? 0 : bench_error("%llu accesses missed", (unsigned long long)(misses - e->misses));
}

static int scan_check(void *fixture)
{
    struct scan *s = fixture;

    return check_misses(&s->large) || check_misses(&s->small) ? -1 : 0;
}

static const struct bench_fixture fixture = {.open = scan_open,
                                             .close = scan_close,
                                             .thread_open = scan_thread_open,
                                             .thread_close = scan_thread_close,
                                             .check = scan_check};

static const struct bench_variant variants[] = {
    {.name = "array", .loop = sum_array},
    {.name = "extents-2m", .loop = sum_large},
    {.name = "extents-4k", .loop = sum_small},
};

const struct bench_case bench_scan_warm = {.name = "scan-warm",
                                           .text = "adding up everything, in memory, in order; an operation is a page",
                                           .fixture = &fixture,
                                           .variant = variants,
                                           .variant_count = BENCH_COUNT(variants),
                                           .ops = 262144,
                                           .bytes = 1u << 30,
                                           .clock = BENCH_CPU,
                                           .rate = BENCH_MIB};

#define COPY_CASE(its_name)                                                                                    \
    const struct bench_case bench_copy_out_##its_name = {                                                      \
        .name = "copy-out-" #its_name,                                                                         \
        .text = "copying everything out of extents of 2 MiB, " #its_name " at a time; an operation is a page", \
        .fixture = &fixture,                                                                                   \
        .variant = copy_variants_##its_name,                                                                   \
        .variant_count = BENCH_COUNT(copy_variants_##its_name),                                                \
        .ops = 262144,                                                                                         \
        .bytes = 1u << 30,                                                                                     \
        .clock = BENCH_CPU,                                                                                    \
        .rate = BENCH_MIB}
COPY_CASE(4k);
COPY_CASE(64k);
COPY_CASE(2m);

static const struct bench_variant pin_variants[] = {{.name = "per-page", .loop = pin_pages},
                                                    {.name = "per-run", .loop = pin_runs}};

const struct bench_case bench_pin_run = {.name = "pin-run",
                                         .text =
                                             "a word of every page of 4 KiB, in order: pinned one by one, and in runs",
                                         .fixture = &fixture,
                                         .variant = pin_variants,
                                         .variant_count = BENCH_COUNT(pin_variants),
                                         .ops = 262144,
                                         .bytes = 1u << 30,
                                         .clock = BENCH_CPU};
