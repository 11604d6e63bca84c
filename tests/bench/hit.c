/* SPDX-License-Identifier: MIT */
/*
 * Hits that do not depend on one another: pages at random. The CPU overlaps the cache misses of several accesses by
 * itself, as far as the instructions and the atomics between them let it; a batch says outright which pages are wanted.
 */
#include <errno.h>
#include <unistd.h>

#include "resident.h"

static int hit_array(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    const char *base = r->base;
    uint64_t pages = r->pages;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--)
        sum += bench_word(base + (bench_random_page(&random, pages) << BP_PAGE_SHIFT));
    t->random = random;
    t->sum += sum;
    return 0;
}

static int hit_table(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, r->pages);
        uint64_t word;

        while (unlikely(!table_read(r, page, &word))) {
        }
        sum += word;
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

static int hit_table_shared(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, r->pages);

        while (unlikely(!table_pin(r, page))) {
        }
        sum += bench_word(r->small + (page << BP_PAGE_SHIFT));
        table_unpin(r, page);
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

static int hit_read(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t pages = r->pages;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, pages);
        struct bp_view view;
        uint64_t word;

        do {
            int rc = bp_read(session, file, page, &view);

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

static int hit_hinted(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t pages = r->pages;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, pages);
        struct bp_hint hint = r->hint[page];
        struct bp_view view;
        uint64_t word;

        do {
            int rc = bp_read_hinted(session, file, page, &hint, &view);

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

static int hit_get(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t pages = r->pages;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_get(session, file, bench_random_page(&random, pages), BP_SHARED, &ref);

        if (unlikely(rc))
            return rc;
        sum += bench_word(ref.data);
        bp_put(&ref);
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

static int hit_pread(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    _Alignas(64) char buffer[BP_PAGE_SIZE];

    while (ops--) {
        uint64_t page = bench_random_page(&t->random, r->pages);

        if (unlikely(pread(r->fd, buffer, sizeof(buffer), (off_t)(page << BP_PAGE_SHIFT)) != (ssize_t)sizeof(buffer)))
            return -EIO;
        t->sum += bench_word(buffer);
    }
    return 0;
}

/* ---- batches ---- */

#define BATCH_MAX 32u

static unsigned draw(struct bench_thread *t, uint64_t pages, uint64_t page[], uint64_t left, unsigned batch)
{
    unsigned n = left < batch ? (unsigned)left : batch;
    uint64_t random = t->random;

    for (unsigned i = 0; i < n; i++)
        page[i] = bench_random_page(&random, pages);
    t->random = random;
    return n;
}

/* What asking together costs by itself: a batch's last misses are waited for before the next one begins. */
static int batch_array_32(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    uint64_t page[BATCH_MAX];
    uint64_t sum = 0;

    while (ops) {
        unsigned n = draw(t, r->pages, page, ops, 32);

        for (unsigned i = 0; i < n; i++)
            __builtin_prefetch(r->base + (page[i] << BP_PAGE_SHIFT), 0, 3);
        for (unsigned i = 0; i < n; i++)
            sum += bench_word(r->base + (page[i] << BP_PAGE_SHIFT));
        ops -= n;
    }
    t->sum += sum;
    return 0;
}

static inline int read_batches(struct bench_thread *t, uint64_t ops, unsigned batch)
{
    const struct resident *r = t->fixture;
    struct bp_view view[BATCH_MAX];
    uint64_t page[BATCH_MAX];
    uint64_t sum = 0;

    while (ops) {
        unsigned n = draw(t, r->pages, page, ops, batch);
        int rc = bp_read_many(t->session, r->file, page, n, view);

        if (unlikely(rc))
            return rc;
        for (unsigned i = 0; i < n; i++) {
            uint64_t word = bench_word(view[i].data);

            while (unlikely(!bp_view_valid(&view[i]))) {
                rc = bp_read(t->session, r->file, page[i], &view[i]);
                if (rc)
                    return rc;
                word = bench_word(view[i].data);
            }
            sum += word;
        }
        ops -= n;
    }
    t->sum += sum;
    return 0;
}

static int batch_read_8(struct bench_thread *t, uint64_t ops)
{
    return read_batches(t, ops, 8);
}

static int batch_read_32(struct bench_thread *t, uint64_t ops)
{
    return read_batches(t, ops, 32);
}

static int batch_get_32(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    struct bp_ref ref[BATCH_MAX];
    uint64_t page[BATCH_MAX];
    uint64_t sum = 0;

    while (ops) {
        unsigned n = draw(t, r->pages, page, ops, 32);
        int rc = bp_get_many(t->session, r->file, page, n, BP_SHARED, ref);

        if (unlikely(rc))
            return rc;
        for (unsigned i = 0; i < n; i++)
            sum += bench_word(ref[i].data);
        bp_put_many(ref, n);
        ops -= n;
    }
    t->sum += sum;
    return 0;
}

/* ---- the cases ---- */

static const struct bench_variant hit_variants[] = {
    {.name = "array", .loop = hit_array},
    {.name = "page-table", .loop = hit_table},
    {.name = "page-table-shared", .loop = hit_table_shared},
    {.name = "read", .loop = hit_read, .also = "page-table"},
    {.name = "get-shared", .loop = hit_get, .also = "page-table-shared"},
    {.name = "hinted", .loop = hit_hinted, .also = "page-table"},
    {.name = "pread", .loop = hit_pread},
};

const struct bench_case bench_hit = {.name = "hit",
                                     .text = "pages in memory, at random, independent of one another",
                                     .fixture = &bench_resident,
                                     .variant = hit_variants,
                                     .variant_count = BENCH_COUNT(hit_variants),
                                     .ops = 1000000,
                                     .bytes = 1u << 30,
                                     .clock = BENCH_CPU};

static const struct bench_variant get_variants[] = {
    {.name = "page-table-shared", .loop = hit_table_shared},
    {.name = "get-shared", .loop = hit_get},
};

const struct bench_case bench_get_shared = {.name = "get-shared",
                                            .text = "pages in memory, at random, pinned and let go",
                                            .fixture = &bench_resident,
                                            .variant = get_variants,
                                            .variant_count = BENCH_COUNT(get_variants),
                                            .ops = 1000000,
                                            .bytes = 1u << 30,
                                            .clock = BENCH_CPU};

static const struct bench_variant batch_variants[] = {
    {.name = "array", .loop = hit_array},
    {.name = "array-32", .loop = batch_array_32},
    {.name = "read", .loop = hit_read},
    {.name = "many-8", .loop = batch_read_8, .also = "read"},
    {.name = "many-32", .loop = batch_read_32, .also = "read"},
    {.name = "get-many-32", .loop = batch_get_32, .also = "read"},
};

const struct bench_case bench_batch_hit = {.name = "batch-hit",
                                           .text = "pages in memory, at random, asked for together",
                                           .fixture = &bench_resident,
                                           .variant = batch_variants,
                                           .variant_count = BENCH_COUNT(batch_variants),
                                           .ops = 1000000,
                                           .bytes = 1u << 30,
                                           .clock = BENCH_CPU};
