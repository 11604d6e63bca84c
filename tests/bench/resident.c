/* SPDX-License-Identifier: MIT */
/*
 * The set-up of the hit cases: see resident.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "resident.h"

#define FILL_BATCH  64u
#define HEAT_PASSES 3 /* reads that make a page as hot as it gets: then readers write nothing */
#define WARM_BYTES  (1u << 20)

/* ---- pools and files ---- */

uint64_t bench_pool_memory(uint64_t bytes)
{
    return bytes + bytes / 100 * 3 + (64u << 20);
}

int bench_pool_open(const struct bench *b, uint64_t memory, enum bp_choice huge, bp_pool **pool)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .huge = huge, .io = b->io, .error = &error};

    if (bp_pool_open(&o, pool)) {
        *pool = NULL;
        return bench_error("opening a pool: %s", error.text);
    }
    return 0;
}

void bench_pool_close(bp_pool *pool)
{
    struct bp_error error = {0};

    if (pool && bp_pool_close(pool, &error))
        bench_error("closing the pool: %s", error.text);
}

int bench_sparse_open(const struct bench *b, uint64_t bytes, bp_pool *pool, uint32_t extent_bytes, bp_file **file,
                      int *fd)
{
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .extent_bytes = extent_bytes, .error = &error, .readahead = BP_OFF};
    char path[4096];
    int made = bench_file_make(b, path);
    int rc = 0;

    if (made < 0)
        return -1;
    if (ftruncate(made, (off_t)bytes))
        rc = bench_error("%s: %s", path, strerror(errno));
    if (!rc && pool && bp_file_open(pool, path, &o, file))
        rc = bench_error("%s: %s", path, error.text);
    unlink(path);
    if (fd && !rc)
        *fd = made;
    else
        close(made);
    return rc;
}

int bench_misses(bp_pool *pool, uint64_t *misses)
{
    struct bp_stats s = {.size = sizeof(s)};
    int rc = bp_pool_stats(pool, &s);

    if (rc)
        return bench_code(rc, "the pool's statistics");
    *misses = s.misses;
    return 0;
}

int bench_fill(const struct bench *b, bp_session *s, bp_file *file, uint64_t pages, const char **first, bool *in_order)
{
    struct bench_progress progress = {.bench = b, .what = "reading the file into the pool"};
    struct bp_ref ref[FILL_BATCH];
    uint64_t page[FILL_BATCH];

    *in_order = true;
    for (uint64_t from = 0; from < pages; from += FILL_BATCH) {
        unsigned n = pages - from < FILL_BATCH ? (unsigned)(pages - from) : FILL_BATCH;
        int rc;

        for (unsigned i = 0; i < n; i++)
            page[i] = from + i;
        rc = bp_get_many(s, file, page, n, BP_SHARED, ref);
        if (rc)
            return bench_error("reading the file into the pool: %s", bp_session_error(s));
        if (from == 0)
            *first = ref[0].data;
        for (unsigned i = 0; i < n; i++)
            *in_order &= (const char *)ref[i].data == *first + (page[i] << BP_PAGE_SHIFT);
        bp_put_many(ref, n);
        bench_progress(&progress, from, pages);
    }
    return 0;
}

int bench_heat(bp_session *s, bp_file *file, uint64_t pages)
{
    for (uint64_t i = 0; i < HEAT_PASSES * pages; i++) {
        struct bp_view view;

        if (bp_read(s, file, i % pages, &view))
            return bench_error("heating the pages: %s", bp_session_error(s));
    }
    return 0;
}

/* ---- contents ---- */

static int collect_hints(struct resident *r, bp_session *s)
{
    for (uint64_t page = 0; page < r->pages; page++) {
        struct bp_view view;

        if (bp_read_hinted(s, r->file, page, &r->hint[page], &view))
            return bench_error("collecting hints: %s", bp_session_error(s));
    }
    return 0;
}

static int write_pages(struct resident *r, bp_session *s)
{
    struct bench_progress progress = {.bench = r->bench, .what = "writing into the pages"};

    for (uint64_t page = 0; page < r->pages; page++) {
        struct bp_ref ref;
        uint64_t *word;

        if (bp_get(s, r->file, page, BP_EXCLUSIVE, &ref))
            return bench_error("writing into the pages: %s", bp_session_error(s));
        word = ref.data;
        word[0] = r->next[page];
        word[1] = r->hint[r->next[page]].word;
        bp_put(&ref);
        if (page % 4096 == 0)
            bench_progress(&progress, page, r->pages);
    }
    return 0;
}

/* A mapping of the same content. */
static char *copy_pages(const struct resident *r, bool huge)
{
    char *to = bench_alloc(r->pages << BP_PAGE_SHIFT, huge);

    for (uint64_t page = 0; to && page < r->pages; page++) {
        uint64_t *word = (uint64_t *)(void *)(to + (page << BP_PAGE_SHIFT));

        word[0] = r->next[page];
        word[1] = r->hint[r->next[page]].word;
    }
    return to;
}

static bool wants_table(const struct bench *b)
{
    return bench_wants(b, "page-table") || bench_wants(b, "page-table-shared");
}

static int make_table(struct resident *r)
{
    if (!wants_table(r->bench))
        return 0;
    r->small = copy_pages(r, false);
    r->state = bench_alloc(r->pages * sizeof(*r->state), true);
    return r->small && r->state ? 0 : -1;
}

/* pread gets the file from the page cache, and only from there. */
static int warm_page_cache(struct resident *r)
{
    char *buffer;
    int rc = 0;

    if (!bench_wants(r->bench, "pread"))
        return 0;
    if (r->bench->bytes > bench_memory_machine() / 4) {
        r->no_pread = "the file is more than a quarter of this machine's memory, so the page cache may not keep it";
        return 0;
    }
    buffer = malloc(WARM_BYTES);
    if (!buffer)
        return bench_error("no memory");
    for (uint64_t at = 0; at < r->bench->bytes && !rc; at += WARM_BYTES)
        if (pread(r->fd, buffer, WARM_BYTES, (off_t)at) < 0)
            rc = bench_error("reading through the page cache: %s", strerror(errno));
    free(buffer);
    return rc;
}

static int fill_contents(struct resident *r, bp_session *s)
{
    const char *first = NULL;
    bool in_order;
    int rc = bench_fill(r->bench, s, r->file, r->pages, &first, &in_order);

    r->next = bench_alloc(r->pages * sizeof(*r->next), true);
    r->hint = bench_alloc(r->pages * sizeof(*r->hint), true);
    if (rc || !r->next || !r->hint)
        return -1;
    bench_cycle(r->next, r->pages);
    if (collect_hints(r, s) || write_pages(r, s) || bench_heat(s, r->file, r->pages))
        return -1;
    if (in_order) {
        r->base = (char *)(uintptr_t)first; /* read only from here on */
    } else {
        bench_note("the pool's frames are not in the pages' order: the array is a copy");
        r->base = r->copy = copy_pages(r, true);
    }
    return r->base ? 0 : -1;
}

/* ---- the fixture ---- */

static int resident_open(const struct bench *b, void **fixture)
{
    struct resident *r = calloc(1, sizeof(*r));
    uint64_t need = bench_pool_memory(b->bytes) + (128u << 20);
    bp_session *s = NULL;
    int rc;

    *fixture = r;
    if (!r)
        return bench_error("no memory");
    r->bench = b;
    r->fd = -1;
    r->pages = b->bytes >> BP_PAGE_SHIFT;
    if (r->pages < FILL_BATCH || r->pages >> 32)
        return bench_error("--bytes: from 256 KiB to 16 TiB");
    if (wants_table(b))
        need += b->bytes + b->bytes / 256;
    if (bench_memory_check(need) || bench_pool_open(b, bench_pool_memory(b->bytes), BP_TRY, &r->pool) ||
        bench_sparse_open(b, b->bytes, r->pool, 0, &r->file, &r->fd))
        return -1;
    rc = bp_session_open(r->pool, NULL, &s);
    if (rc)
        return bench_code(rc, "opening a session");
    rc = fill_contents(r, s);
    if (bp_session_close(s))
        rc = bench_error("closing the session");
    if (!rc)
        rc = make_table(r);
    if (!rc)
        rc = warm_page_cache(r);
    if (!rc)
        rc = bench_misses(r->pool, &r->misses);
    return rc;
}

static void resident_close(void *fixture)
{
    struct resident *r = fixture;

    if (!r)
        return;
    bench_pool_close(r->pool);
    if (r->fd >= 0)
        close(r->fd);
    bench_free(r->copy, r->pages << BP_PAGE_SHIFT);
    bench_free(r->small, r->pages << BP_PAGE_SHIFT);
    bench_free((void *)r->state, r->pages * sizeof(*r->state));
    bench_free(r->next, r->pages * sizeof(*r->next));
    bench_free(r->hint, r->pages * sizeof(*r->hint));
    free(r);
}

static int resident_thread_open(struct bench_thread *t)
{
    struct resident *r = t->fixture;

    t->page = r->pages / t->count * t->number;
    return bp_session_open(r->pool, NULL, &t->session);
}

static void resident_thread_close(struct bench_thread *t)
{
    if (t->session && bp_session_close(t->session))
        bench_error("closing a session: %s", bp_session_error(t->session));
}

/* Every access was to be a hit. */
static int resident_check(void *fixture)
{
    struct resident *r = fixture;
    uint64_t misses = 0;

    if (bench_misses(r->pool, &misses))
        return -1;
    if (misses != r->misses)
        return bench_error("%llu accesses missed; all were to be hits", (unsigned long long)(misses - r->misses));
    return 0;
}

static const char *resident_absent(const void *fixture, const char *variant)
{
    const struct resident *r = fixture;

    return strcmp(variant, "pread") == 0 ? r->no_pread : NULL;
}

const struct bench_fixture bench_resident = {.open = resident_open,
                                             .close = resident_close,
                                             .thread_open = resident_thread_open,
                                             .thread_close = resident_thread_close,
                                             .check = resident_check,
                                             .absent = resident_absent};
