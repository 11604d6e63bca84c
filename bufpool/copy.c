/* SPDX-License-Identifier: MIT */
/*
 * Ranges: bp_copy_out. What is there is copied in runs: a leaf of the index is held, and with it all its pages are, by
 * one count instead of a pin each (R15; after F. Yin's "filemap: batch PTE mappings", Linux 6.3). Of the rest a stretch
 * of extents is pinned together, so that its misses go to the device in one submission, and each is copied at its own
 * size, not page by page (after B. Wang's "mm: shmem: improve the tmpfs large folio read performance", Linux 6.12).
 */
#include <errno.h>
#include <string.h>

#include "bufpool/held.h"

#define STRETCH_MAX 32u /* extents pinned at once */
/* at most this part of the pool, so that many copies at once do not starve each other */
#define STRETCH_SHARE 16u

static unsigned stretch_limit(const bp_pool *pool, unsigned order)
{
    uint32_t limit = frames_limit(pool) / STRETCH_SHARE >> order;

    return limit < 1 ? 1 : limit > STRETCH_MAX ? STRETCH_MAX : limit;
}

/* The pages with which the extents of [at, end) begin, if all are of the file's size. */
static unsigned list_pages(const bp_file *file, uint64_t at, uint64_t end, unsigned limit, uint64_t page[])
{
    uint64_t next = at >> BP_PAGE_SHIFT;
    unsigned n = 0;

    while (n < limit && next << BP_PAGE_SHIFT < end) {
        page[n++] = next;
        next = (next | extent_mask(file->order)) + 1;
    }
    return n;
}

/* Copy from the pinned; ends early where an extent is smaller than expected. Returns the bytes copied. */
static size_t copy_refs(const struct bp_ref ref[], unsigned n, uint64_t at, uint64_t end, char *to)
{
    uint64_t start = at;

    for (unsigned i = 0; i < n && at < end && ref[i].page == at >> BP_PAGE_SHIFT; i++) {
        size_t skip = at % BP_PAGE_SIZE;
        size_t bytes = ref[i].bytes - skip;

        if (bytes > end - at)
            bytes = (size_t)(end - at);
        memcpy(to + (at - start), (const char *)ref[i].data + skip, bytes);
        at += bytes;
    }
    return (size_t)(at - start);
}

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
    struct bp_ref ref[STRETCH_MAX];
    uint64_t page[STRETCH_MAX];
    unsigned limit;
    uint64_t end;
    int rc;

    *done = 0;
    if (bpi_forked(s))
        return BP_FORKED;
    rc = bpi_range_end(s, file, offset, len, &end);
    limit = stretch_limit(s->pool, file->order);
    while (!rc && offset < end) {
        size_t copied = file->order == 0 ? copy_run(s, file, offset, end, (char *)to + *done) : 0;
        unsigned n;

        if (copied) {
            *done += copied;
            offset += copied;
            continue;
        }
        n = list_pages(file, offset, end, limit, page);
        rc = bp_get_many(s, file, page, n, BP_SHARED, ref);
        if (rc == -EBUSY && limit > 1) { /* a full pool may still have one */
            limit = 1;
            rc = 0;
            continue;
        }
        if (rc)
            break;
        copied = copy_refs(ref, n, offset, end, (char *)to + *done);
        bp_put_many(ref, n);
        *done += copied;
        offset += copied;
    }
    return rc == BP_EOF ? 0 : rc; /* truncated meanwhile: that is the end of the file */
}
