/* SPDX-License-Identifier: MIT */
/*
 * Scans: stretches of a file in order, without copying. A batch is what can be had at once from where the scan is:
 *
 *   pages of their own   the leaf of the index that they are in is held, one count for all of them (R15); neighbours in
 *                        memory come as one piece
 *   larger extents, and  refs, several reads in one submission
 *   what is not there
 *
 * A forward scan asks for what comes next before it is there: a window that begins small and doubles as long as the scan
 * goes on, up to a share of the pool. What passes by is not warmed, so that a scan does not make its pages look wanted.
 */
#include <errno.h>
#include <stdlib.h>

#include "bufpool/held.h"

#define SCAN_REFS 32u /* extents of a batch that are not in a held leaf */
/* The window, bytes: to begin with, and at the most; and never more than this part of the pool. */
#define WINDOW_FIRST (128u << 10)
#define WINDOW_MOST  (4u << 20)
#define WINDOW_SHARE 8u
/* A file that is truncated again and again while it is scanned. */
#define TRUNCATED_MAX 8u

struct bp_scan {
    bp_session *s;
    bp_file *file;
    uint64_t first, last; /* pages still to come */
    uint64_t ahead;       /* the first page that was not asked for yet */
    uint64_t window;      /* pages */
    bool backward;
    bool over;
    struct node_head *leaf; /* held, or NULL */
    uint64_t held;          /* pages of it */
    unsigned careful;       /* extents to be got one by one */
    unsigned refs;
    struct bp_ref ref[SCAN_REFS];
};

int bp_scan_open(bp_session *s, bp_file *file, uint64_t first, uint64_t last, unsigned flags, bp_scan **out)
{
    bp_scan *scan;
    uint64_t bytes;
    int rc;

    *out = NULL;
    if (bpi_forked(s))
        return BP_FORKED;
    if (flags & ~(unsigned)BP_SCAN_BACKWARD)
        return bpi_session_fail(s, -EINVAL, "scan of %s: unknown flags %#x", file->name, flags);
    if (first > last)
        return bpi_session_fail(s, -EINVAL, "scan of %s: from page %llu to %llu", file->name, (unsigned long long)first,
                                (unsigned long long)last);
    rc = bp_file_size(file, &bytes);
    if (rc)
        return bpi_session_fail(s, rc, "size of %s: %s", file->name, bp_strerror(rc));
    scan = calloc(1, sizeof(*scan));
    if (!scan)
        return bpi_session_fail(s, -ENOMEM, "no memory for a scan");
    bytes = (bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT; /* pages from here on */
    scan->s = s;
    scan->file = file;
    scan->over = first >= bytes;
    scan->first = scan->ahead = first;
    scan->last = last < bytes ? last : bytes - 1;
    scan->window = WINDOW_FIRST >> BP_PAGE_SHIFT;
    scan->backward = flags & BP_SCAN_BACKWARD;
    *out = scan;
    return 0;
}

static void release(bp_scan *scan)
{
    if (scan->leaf) {
        index_unhold(scan->leaf);
        counter_add(&scan->s->puts, scan->held);
        scan->leaf = NULL;
    }
    bp_put_many(scan->ref, scan->refs);
    scan->refs = 0;
}

int bp_scan_close(bp_scan *scan)
{
    if (!scan)
        return 0;
    if (bpi_forked(scan->s))
        return BP_FORKED;
    release(scan);
    free(scan);
    return 0;
}

int bp_scan_seek(bp_scan *scan, uint64_t page)
{
    if (bpi_forked(scan->s))
        return BP_FORKED;
    release(scan);
    if (scan->over || page < scan->first || page > scan->last)
        scan->over = true;
    else if (scan->backward)
        scan->last = page;
    else
        scan->first = page;
    if (scan->ahead < scan->first)
        scan->ahead = scan->first;
    return 0;
}

/* ---- pieces ---- */

struct pieces {
    const bp_scan *scan;
    struct bp_piece *piece;
    unsigned most, got;
};

/* One more stretch of memory; false: there is no room for it. */
static inline bool add_piece(struct pieces *p, const void *data, uint64_t page, uint64_t bytes)
{
    struct bp_piece *last = p->got ? &p->piece[p->got - 1] : NULL;

    if (last && (const char *)last->data + last->bytes == data && last->page + (last->bytes >> BP_PAGE_SHIFT) == page) {
        last->bytes += bytes;
        return true;
    }
    if (p->got == p->most)
        return false;
    p->piece[p->got++] = (struct bp_piece){.data = data, .page = page, .bytes = bytes};
    return true;
}

/* A page of a leaf that is held; as in copy.c, but that it is left as cold as it is. */
static inline bool add_page(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct pieces *p = arg;
    const bp_session *s = p->scan->s;
    uint64_t seen;

    (void)before;
    (void)pages; /* only extents of one page */
    return held_page(s, p->scan->file, page, e, &seen) &&
           add_piece(p, frame_data(s, entry_number(e)), page, BP_PAGE_SIZE);
}

/* What is there from `page` to `last`, in one leaf. Returns the pages; then the leaf is held. */
static uint64_t held_run(bp_scan *scan, uint64_t page, uint64_t last, struct pieces *p)
{
    const _Atomic index_entry *slot;
    struct node_head *leaf = index_hold(&scan->file->index, page, &slot);
    uint64_t room = (page | (INDEX_SLOTS - 1)) - page;
    uint64_t pages;
    uint64_t count;

    if (!leaf)
        return 0;
    SYNC_POINT("scan:held");
    room = (room < last - page ? room : last - page) + 1;
    count = index_slots_run(slot, true, &page, room, 0, &pages, add_page, p);
    if (!count) {
        index_unhold(leaf);
        return 0;
    }
    scan->leaf = leaf;
    scan->held = count;
    counter_add(&scan->s->refs, count);
    counter_add(&scan->s->count.hits, count);
    return count;
}

/* Extents from `page` on, `most` of them, that begin within the scan; reads what is missing. */
static int ref_pages(bp_scan *scan, uint64_t page, uint64_t last, unsigned most, struct pieces *p, uint64_t *count)
{
    uint64_t list[SCAN_REFS];
    uint64_t at = page;
    unsigned n = 0;
    int rc;

    do {
        list[n++] = at;
        at = (at | extent_mask(scan->file->order)) + 1;
    } while (n < most && at <= last && at);
    rc = bp_get_many(scan->s, scan->file, list, n, BP_SHARED, scan->ref);
    if (rc)
        return rc;
    scan->refs = n;
    *count = 0;
    for (unsigned i = 0; i < n && scan->ref[i].page == page + *count; i++) { /* smaller than expected: the rest later */
        uint64_t pages = scan->ref[i].bytes >> BP_PAGE_SHIFT;
        uint64_t behind = last - scan->ref[i].page;

        pages = pages - 1 < behind ? pages : behind + 1;
        if (!add_piece(p, scan->ref[i].data, scan->ref[i].page, pages << BP_PAGE_SHIFT))
            break;
        *count += pages;
    }
    return 0;
}

/* ---- readahead ---- */

static void read_ahead(bp_scan *scan)
{
    uint64_t most = WINDOW_MOST >> BP_PAGE_SHIFT;
    uint64_t share = frames_limit(scan->s->pool) / WINDOW_SHARE;
    uint64_t extent = extent_mask(scan->file->order) + 1;

    if (scan->ahead > scan->last || scan->ahead - scan->first > scan->window / 2)
        return;
    most = most < share ? most : share;
    if (scan->window < extent)
        scan->window = extent;
    if (scan->window > most)
        scan->window = most > extent ? most : extent;
    if (scan->ahead < scan->first)
        scan->ahead = scan->first;
    scan->ahead += bpi_prefetch(scan->s, scan->file, scan->ahead,
                                scan->last - scan->ahead < scan->window ? scan->last : scan->ahead + scan->window - 1);
    scan->window *= 2;
}

int bp_prefetch(bp_session *s, bp_file *file, uint64_t first, uint64_t count)
{
    if (bpi_forked(s))
        return BP_FORKED;
    if (count)
        bpi_prefetch(s, file, first, count - 1 > UINT64_MAX - first ? UINT64_MAX : first + count - 1);
    return 0;
}

/* ---- the next batch ---- */

/* How many extents to get at once: when one of many was bad, or the pool too full for all, one by one for a while. */
static unsigned refs_at_once(bp_scan *scan, const struct pieces *p)
{
    if (scan->careful) {
        scan->careful--;
        return 1;
    }
    return p->most < SCAN_REFS ? p->most : SCAN_REFS;
}

static int forward(bp_scan *scan, struct pieces *p)
{
    uint64_t count = 0;
    int rc = 0;

    read_ahead(scan);
    if (scan->file->order == 0)
        count = held_run(scan, scan->first, scan->last, p);
    if (!count) {
        unsigned most = refs_at_once(scan, p);

        rc = ref_pages(scan, scan->first, scan->last, most, p, &count);
        if (rc && rc != BP_EOF && most > 1) {
            scan->careful = most;
            rc = ref_pages(scan, scan->first, scan->last, 1, p, &count);
        }
    }
    if (rc)
        return rc;
    scan->over = count > scan->last - scan->first;
    scan->first += scan->over ? 0 : count;
    return 0;
}

/* Extents that reach to the end of what is still to come: *page is the first of them. */
static int refs_before(bp_scan *scan, unsigned most, struct pieces *p, uint64_t *page, uint64_t *count)
{
    uint64_t mask = extent_mask(scan->file->order);
    uint64_t pages = (uint64_t)most << scan->file->order;

    *page = scan->first;
    if (most == 1)
        *page = scan->last; /* one page */
    else if (scan->last - scan->first >= pages)
        *page = (scan->last - pages + 1 + mask) & ~mask;
    return ref_pages(scan, *page, scan->last, most, p, count);
}

/* The last pages that are still to come, in one batch that reaches to the end of them. */
static int backward(bp_scan *scan, struct pieces *p)
{
    uint64_t leaf = scan->last & ~(uint64_t)(INDEX_SLOTS - 1);
    uint64_t page = leaf > scan->first ? leaf : scan->first;
    uint64_t count = 0;
    int rc = 0;

    if (scan->file->order == 0)
        count = held_run(scan, page, scan->last, p);
    if (count <= scan->last - page) {
        unsigned most = refs_at_once(scan, p);

        release(scan);
        p->got = 0;
        rc = refs_before(scan, most, p, &page, &count);
        if (most > 1 && rc != BP_EOF && (rc || count <= scan->last - page)) { /* or smaller ones lie there */
            scan->careful = rc ? most : 0;
            release(scan);
            p->got = 0;
            rc = refs_before(scan, 1, p, &page, &count);
        }
    }
    if (rc)
        return rc;
    scan->over = page == scan->first;
    scan->last = scan->over ? scan->last : page - 1;
    return 0;
}

int bp_scan_next(bp_scan *scan, struct bp_piece piece[], unsigned n, unsigned *got)
{
    struct pieces p = {.scan = scan, .piece = piece, .most = n};
    int rc = BP_EOF;

    *got = 0;
    if (bpi_forked(scan->s))
        return BP_FORKED;
    if (!n)
        return bpi_session_fail(scan->s, -EINVAL, "a batch of no pieces");
    release(scan);
    for (unsigned tries = 0; rc == BP_EOF && !scan->over && tries < TRUNCATED_MAX; tries++) {
        p.got = 0;
        rc = scan->backward ? backward(scan, &p) : forward(scan, &p);
        if (rc == BP_EOF) { /* it was truncated meanwhile */
            uint64_t bytes = 0;

            release(scan);
            rc = bp_file_size(scan->file, &bytes);
            if (rc)
                return bpi_session_fail(scan->s, rc, "size of %s: %s", scan->file->name, bp_strerror(rc));
            bytes = (bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT;
            scan->over = scan->first >= bytes;
            scan->last = scan->over || scan->last < bytes ? scan->last : bytes - 1;
            rc = BP_EOF;
        }
    }
    if (rc && rc != BP_EOF) {
        release(scan);
        return rc;
    }
    *got = p.got;
    return 0;
}
