/* SPDX-License-Identifier: MIT */
/*
 * Ranges: bp_copy_out. A stretch of extents is pinned together, so that its misses go to the device in one
 * submission, and each is copied at its own size, not page by page (after B. Wang's "mm: shmem: improve the tmpfs large
 * folio read performance", Linux 6.12).
 */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

#define STRETCH_MAX 32u /* extents pinned at once */
/* at most this part of the pool, so that many copies at once do not starve each other */
#define STRETCH_SHARE 16u

static unsigned stretch_limit(const bp_pool *pool, unsigned order)
{
    uint32_t limit = pool->frames_total / STRETCH_SHARE >> order;

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

int bp_copy_out(bp_session *s, bp_file *file, uint64_t offset, size_t len, void *to, size_t *done)
{
    struct bp_ref ref[STRETCH_MAX];
    uint64_t page[STRETCH_MAX];
    unsigned limit;
    uint64_t end;
    int rc = 0;

    *done = 0;
    if (bpi_forked(s))
        return BP_FORKED;
    end = len > UINT64_MAX - offset ? UINT64_MAX : offset + len;
    if (end > atomic_load_explicit(&file->bytes, memory_order_relaxed)) {
        uint64_t bytes;

        rc = bp_file_size(file, &bytes); /* it may have grown */
        if (rc)
            return bpi_session_fail(s, rc, "size of %s: %s", file->name, bp_strerror(rc));
        end = end < bytes ? end : bytes;
    }
    limit = stretch_limit(s->pool, file->order);
    while (!rc && offset < end) {
        unsigned n = list_pages(file, offset, end, limit, page);
        size_t copied;

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
