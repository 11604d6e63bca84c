/* SPDX-License-Identifier: MIT */
/*
 * What huge pages are worth: the same hits in a pool on 4 KiB pages and in one on huge pages, half of --bytes each.
 */
#include <stdlib.h>

#include "resident.h"

struct pages_of {
    bp_pool *pool;
    bp_file *file;
    uint64_t misses;
};

struct huge {
    uint64_t pages; /* of each */
    struct pages_of with_4k, with_huge;
};

struct huge_thread {
    bp_session *with_4k, *with_huge;
};

static int fill(const struct bench *b, struct pages_of *p, uint64_t pages)
{
    const char *first;
    bp_session *s;
    bool in_order;
    int rc = bp_session_open(p->pool, NULL, &s);

    if (rc)
        return bench_code(rc, "opening a session");
    rc = bench_fill(b, s, p->file, pages, &first, &in_order);
    if (!rc)
        rc = bench_heat(s, p->file, pages);
    if (bp_session_close(s))
        rc = bench_error("closing the session");
    return rc ? rc : bench_misses(p->pool, &p->misses);
}

static int open_pages(const struct bench *b, enum bp_choice choice, uint64_t pages, struct pages_of *p)
{
    uint64_t bytes = pages << BP_PAGE_SHIFT;

    if (bench_pool_open(b, bench_pool_memory(bytes), choice, &p->pool) ||
        bench_sparse_open(b, bytes, p->pool, 0, &p->file, NULL))
        return -1;
    return fill(b, p, pages);
}

static int huge_open(const struct bench *b, void **fixture)
{
    struct huge *h = calloc(1, sizeof(*h));
    struct bp_stats stats = {.size = sizeof(stats)};

    *fixture = h;
    if (!h)
        return bench_error("no memory");
    h->pages = b->bytes >> BP_PAGE_SHIFT >> 1;
    if (h->pages < 64 || h->pages >> 32)
        return bench_error("--bytes: from 512 KiB to 16 TiB");
    if (bench_memory_check(2 * bench_pool_memory(b->bytes / 2)) ||
        (bench_wants(b, "read-4k") && open_pages(b, BP_OFF, h->pages, &h->with_4k)) ||
        (bench_wants(b, "read-huge") && open_pages(b, BP_TRY, h->pages, &h->with_huge)))
        return -1;
    if (h->with_huge.pool && !bp_pool_stats(h->with_huge.pool, &stats) && !stats.slabs_thp && !stats.slabs_hugetlb)
        bench_note("this machine gave no huge pages: read-huge is on small ones");
    return 0;
}

static void huge_close(void *fixture)
{
    struct huge *h = fixture;

    if (!h)
        return;
    bench_pool_close(h->with_4k.pool);
    bench_pool_close(h->with_huge.pool);
    free(h);
}

static int huge_thread_open(struct bench_thread *t)
{
    struct huge *h = t->fixture;
    struct huge_thread *local = calloc(1, sizeof(*local));
    int rc = 0;

    t->local = local;
    if (!local)
        return -12; /* ENOMEM */
    if (h->with_4k.pool)
        rc = bp_session_open(h->with_4k.pool, NULL, &local->with_4k);
    if (!rc && h->with_huge.pool)
        rc = bp_session_open(h->with_huge.pool, NULL, &local->with_huge);
    return rc;
}

static void huge_thread_close(struct bench_thread *t)
{
    struct huge_thread *local = t->local;

    if (!local)
        return;
    if ((local->with_4k && bp_session_close(local->with_4k)) ||
        (local->with_huge && bp_session_close(local->with_huge)))
        bench_error("closing a session");
    free(local);
}

static int check_misses(const struct pages_of *p)
{
    uint64_t misses = 0;

    if (!p->pool)
        return 0;
    if (bench_misses(p->pool, &misses))
        return -1;
    return misses == p->misses ? 0 : bench_error("%llu accesses missed", (unsigned long long)(misses - p->misses));
}

static int huge_check(void *fixture)
{
    struct huge *h = fixture;

    return check_misses(&h->with_4k) || check_misses(&h->with_huge) ? -1 : 0;
}

static inline int read_pages(struct bench_thread *t, uint64_t ops, bp_session *s, bp_file *file)
{
    uint64_t pages = ((const struct huge *)t->fixture)->pages;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, pages);
        struct bp_view view;
        uint64_t word;

        do {
            int rc = bp_read(s, file, page, &view);

            if (unlikely(rc))
                return rc;
            word = bench_word(view.data);
        } while (unlikely(!bp_view_valid(&view)));
        sum += word;
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

static int read_4k(struct bench_thread *t, uint64_t ops)
{
    return read_pages(t, ops, ((struct huge_thread *)t->local)->with_4k, ((struct huge *)t->fixture)->with_4k.file);
}

static int read_huge(struct bench_thread *t, uint64_t ops)
{
    return read_pages(t, ops, ((struct huge_thread *)t->local)->with_huge, ((struct huge *)t->fixture)->with_huge.file);
}

static const struct bench_fixture fixture = {.open = huge_open,
                                             .close = huge_close,
                                             .thread_open = huge_thread_open,
                                             .thread_close = huge_thread_close,
                                             .check = huge_check};

static const struct bench_variant variants[] = {
    {.name = "read-4k", .loop = read_4k},
    {.name = "read-huge", .loop = read_huge},
};

const struct bench_case bench_hit_huge = {.name = "hit-huge",
                                          .text = "bp_read at random, pool on 4 KiB pages and on huge pages",
                                          .fixture = &fixture,
                                          .variant = variants,
                                          .variant_count = BENCH_COUNT(variants),
                                          .ops = 1000000,
                                          .bytes = 1u << 30,
                                          .clock = BENCH_CPU};
