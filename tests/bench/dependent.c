/* SPDX-License-Identifier: MIT */
/*
 * Hits that depend on one another: the number of the next page is read from the page before, as in a walk down a tree.
 * Nothing overlaps, so each cache miss on the way is paid in full: one for the array (the data), and on top of it
 * whatever a technique needs to find the data and to know that it is still the page.
 */
#include <errno.h>
#include <unistd.h>

#include "resident.h"

static int walk_array(struct bench_thread *t, uint64_t ops)
{
    const char *base = ((struct resident *)t->fixture)->base;
    uint64_t page = t->page;

    while (ops--)
        page = bench_word(base + (page << BP_PAGE_SHIFT));
    t->page = page;
    return 0;
}

static int walk_table(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    uint64_t page = t->page;

    while (ops--) {
        uint64_t next;

        while (unlikely(!table_read(r, page, &next))) {
        }
        page = next;
    }
    t->page = page;
    return 0;
}

static int walk_table_shared(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    uint64_t page = t->page;

    while (ops--) {
        uint64_t next;

        while (unlikely(!table_pin(r, page))) {
        }
        next = bench_word(r->small + (page << BP_PAGE_SHIFT));
        table_unpin(r, page);
        page = next;
    }
    t->page = page;
    return 0;
}

static int walk_read(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t page = t->page;

    while (ops--) {
        struct bp_view view;
        uint64_t next;

        do {
            int rc = bp_read(session, file, page, &view);

            if (unlikely(rc))
                return rc;
            next = bench_word(view.data);
        } while (unlikely(!bp_view_valid(&view)));
        page = next;
    }
    t->page = page;
    return 0;
}

static int walk_hinted(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t page = t->page;
    struct bp_hint hint = r->hint[page];

    while (ops--) {
        struct bp_hint next_hint;
        struct bp_view view;
        uint64_t next;

        do {
            int rc = bp_read_hinted(session, file, page, &hint, &view);

            if (unlikely(rc))
                return rc;
            next = bench_word(view.data);
            next_hint.word = bench_word((const char *)view.data + sizeof(uint64_t));
        } while (unlikely(!bp_view_valid(&view)));
        page = next;
        hint = next_hint;
    }
    t->page = page;
    return 0;
}

static int walk_get(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    bp_session *session = t->session;
    bp_file *file = r->file;
    uint64_t page = t->page;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_get(session, file, page, BP_SHARED, &ref);

        if (unlikely(rc))
            return rc;
        page = bench_word(ref.data);
        bp_put(&ref);
    }
    t->page = page;
    return 0;
}

/* The file holds zeros; what comes next is found beside it, and still only after the data. */
static int walk_pread(struct bench_thread *t, uint64_t ops)
{
    const struct resident *r = t->fixture;
    _Alignas(64) char buffer[BP_PAGE_SIZE];
    uint64_t page = t->page;

    while (ops--) {
        if (unlikely(pread(r->fd, buffer, sizeof(buffer), (off_t)(page << BP_PAGE_SHIFT)) != (ssize_t)sizeof(buffer)))
            return -EIO;
        page = r->next[page] + bench_word(buffer);
    }
    t->page = page;
    return 0;
}

static const struct bench_variant variants[] = {
    {.name = "array", .loop = walk_array},
    {.name = "page-table", .loop = walk_table},
    {.name = "page-table-shared", .loop = walk_table_shared},
    {.name = "read", .loop = walk_read, .also = "page-table"},
    {.name = "get-shared", .loop = walk_get, .also = "page-table-shared"},
    {.name = "hinted", .loop = walk_hinted, .also = "page-table"},
    {.name = "pread", .loop = walk_pread},
};

const struct bench_case bench_hit_dependent = {.name = "hit-dependent",
                                               .text = "pages in memory, the next one depends on the data",
                                               .fixture = &bench_resident,
                                               .variant = variants,
                                               .variant_count = BENCH_COUNT(variants),
                                               .ops = 500000,
                                               .bytes = 1u << 30,
                                               .clock = BENCH_CPU};
