/* SPDX-License-Identifier: MIT */
/*
 * Ranges: bp_copy_out. What is there is copied in runs: a leaf of the index is held, and with it all its pages are, by
 * one count instead of a pin each (R15; after F. Yin's "filemap: batch PTE mappings", Linux 6.3). Larger extents are
 * pinned, some together, and each is copied at its own size, not page by page (after B. Wang's "mm: shmem: improve the
 * tmpfs large folio read performance", Linux 6.12). Of what is missing a stretch is asked for together, and waited for
 * in order. A bad page is in none of these (R24): what comes before it is copied, and the call ends with its error.
 */
#include <errno.h>
#include <string.h>

#include "bufpool/held.h"

#define SPAN_EXTENTS  32u /* pinned at once */
#define STRETCH_SHARE 16u /* part of the pool that is asked for at once, so that many copies do not starve each other */

/* A run of pages: where from, where to, and where it ends. */
struct run {
    bp_session *s;
    const bp_file *file;
    uint64_t at; /* bytes */
    uint64_t end;
    char *to;
};

/* A page of a leaf that is held. */
static inline bool copy_page(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct run *r = arg;
    uint32_t number = entry_number(e);
    struct frame *f = &r->s->frame[number];
    size_t skip = r->at % BP_PAGE_SIZE;
    size_t bytes = r->end - r->at < BP_PAGE_SIZE - skip ? (size_t)(r->end - r->at) : BP_PAGE_SIZE - skip;
    uint64_t seen;

    (void)before;
    (void)pages; /* only extents of one page */
    if (!held_page(r->s, r->file, page, e, &seen))
        return false;
    hit_warm(r->s, f, seen);
    memcpy(r->to, (const char *)frame_data(r->s, number) + skip, bytes);
    r->at += bytes;
    r->to += bytes;
    return true;
}

/* What is there from `at` on in one leaf, in pages of their own. Returns the bytes copied, 0 if there is nothing. */
static size_t copy_run(bp_session *s, bp_file *file, uint64_t at, uint64_t end, char *to)
{
    struct run r = {.s = s, .file = file, .at = at, .end = end, .to = to};
    uint64_t page = at >> BP_PAGE_SHIFT;
    uint64_t last = (end - 1) >> BP_PAGE_SHIFT;
    const _Atomic index_entry *slot;
    struct node_head *leaf = index_hold(&file->index, page, &slot);
    uint64_t pages;
    uint64_t count;

    if (!leaf)
        return 0;
    if (last > (page | (INDEX_SLOTS - 1)))
        last = page | (INDEX_SLOTS - 1);
    SYNC_POINT("copy:held");
    count = index_slots_run(slot, true, &page, last - page + 1, 0, &pages, copy_page, &r);
    index_unhold(leaf);
    counter_add(&s->count.hits, count);
    return (size_t)(r.at - at);
}

/* What is there in extents of any size. Returns the bytes copied. */
static size_t copy_span(bp_session *s, bp_file *file, uint64_t at, uint64_t end, char *to)
{
    struct pinned pin[SPAN_EXTENTS];
    unsigned n = bpi_span_pin(s, file, at >> BP_PAGE_SHIFT, (end - 1) >> BP_PAGE_SHIFT, SPAN_EXTENTS, true, pin);
    uint64_t start = at;

    for (unsigned i = 0; i < n; i++) {
        size_t skip = at % BP_PAGE_SIZE;
        size_t bytes = ((size_t)pin[i].pages << BP_PAGE_SHIFT) - skip;

        if (bytes > end - at)
            bytes = (size_t)(end - at);
        memcpy(to + (at - start), (const char *)frame_data(s, pin[i].frame) + skip, bytes);
        at += bytes;
        span_unpin(s, pin[i].head);
    }
    return (size_t)(at - start);
}

/* What is not there: the page of `at`, to the end of its extent, when it has come. */
static int copy_missing(bp_session *s, bp_file *file, uint64_t at, uint64_t end, char *to, size_t *copied)
{
    size_t skip = at % BP_PAGE_SIZE;
    struct bp_ref ref;
    int rc = bp_get(s, file, at >> BP_PAGE_SHIFT, BP_SHARED, &ref);

    *copied = 0;
    if (rc)
        return rc;
    *copied = ref.bytes - skip < end - at ? ref.bytes - skip : (size_t)(end - at);
    memcpy(to, (const char *)ref.data + skip, *copied);
    bp_put(&ref);
    return 0;
}

/* Ask for what is missing from `at` on, a stretch of it; the byte behind that. */
static uint64_t ask(bp_session *s, bp_file *file, uint64_t at, uint64_t end)
{
    uint64_t first = at >> BP_PAGE_SHIFT;
    uint64_t last = (end - 1) >> BP_PAGE_SHIFT;
    uint64_t most = frames_limit(s->pool) / STRETCH_SHARE;

    if (last - first >= most)
        last = first + (most ? most - 1 : 0);
    if (last > first)
        bpi_range_read(s, file, first, last);
    return (last + 1) << BP_PAGE_SHIFT;
}

int bpi_range_end(bp_session *s, bp_file *file, uint64_t offset, size_t len, uint64_t *end)
{
    *end = len > UINT64_MAX - offset ? UINT64_MAX : offset + len;
    if (*end > atomic_load_explicit(&file->bytes, memory_order_relaxed)) {
        uint64_t bytes;
        int rc = bp_file_size(file, &bytes); /* it may have grown */

        if (rc)
            return bpi_session_fail(s, rc, "size of %s: %s", file->name, bp_strerror(rc));
        *end = *end < bytes ? *end : bytes;
    }
    return 0;
}

int bp_copy_out(bp_session *s, bp_file *file, uint64_t offset, size_t len, void *to, size_t *done)
{
    uint64_t asked = offset;
    uint64_t end;
    int rc;

    *done = 0;
    if (bpi_forked(s))
        return BP_FORKED;
    rc = bpi_range_end(s, file, offset, len, &end);
    while (!rc && offset < end) {
        size_t copied = copy_run(s, file, offset, end, (char *)to + *done);

        if (!copied)
            copied = copy_span(s, file, offset, end, (char *)to + *done);
        if (!copied && offset >= asked) {
            asked = ask(s, file, offset, end);
            continue;
        }
        ahead_check(s);
        if (!copied)
            rc = copy_missing(s, file, offset, end, (char *)to + *done, &copied);
        *done += copied;
        offset += copied;
    }
    return rc == BP_EOF ? 0 : rc; /* truncated meanwhile: that is the end of the file */
}
