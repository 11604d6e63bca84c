/* SPDX-License-Identifier: MIT */
/*
 * Scans: stretches of a file in order, without copying. A batch is what can be had at once from where the scan is:
 *
 *   pages of their own   the leaf of the index that they are in is held, one count for all of them (R15); neighbours in
 *                        memory come as one piece
 *   larger extents       are pinned, several in one walk
 *   what is not there    is waited for, one extent
 *
 * A scan knows where it goes and where it ends, so it needs no marks to find its stream (readahead.h): it asks for the
 * next window as soon as there is less than one before it. What passes by is not warmed, so that a scan does not make its
 * pages look wanted.
 */
#include <errno.h>
#include <stdlib.h>

#include "bufpool/held.h"

#define SCAN_EXTENTS 32u /* of a batch that are not in a held leaf */
#define SCAN_SHARE   16u /* part of the pool that a batch may pin */
#define WINDOW_FIRST 32u /* pages */
/* A file that is truncated again and again while it is scanned. */
#define TRUNCATED_MAX 8u

struct bp_scan {
    bp_session *s;
    bp_file *file;
    uint64_t first, last; /* pages still to come */
    uint64_t ahead;       /* forward: the first page that was not asked for yet; backward: the last one that was */
    uint64_t at;          /* where the scan was when the window was asked for */
    uint64_t since_ns;    /* and when that was; 0: not yet */
    uint32_t window;      /* pages */
    bool backward;
    bool over;
    struct node_head *leaf; /* held, or NULL */
    uint64_t held;          /* pages of it */
    unsigned pins;
    struct pinned pin[SCAN_EXTENTS];
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
    scan->first = first;
    scan->last = last < bytes ? last : bytes - 1;
    scan->backward = flags & BP_SCAN_BACKWARD;
    scan->ahead = scan->backward ? scan->last + 1 : first;
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
    for (unsigned i = 0; i < scan->pins; i++)
        span_unpin(scan->s, scan->pin[i].head);
    scan->pins = 0;
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
    if (!scan->backward && scan->ahead < scan->first)
        scan->ahead = scan->first;
    if (scan->backward && scan->ahead > scan->last + 1)
        scan->ahead = scan->last + 1;
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
    if (!held_page(s, p->scan->file, page, e, &seen) ||
        !add_piece(p, frame_data(s, entry_number(e)), page, BP_PAGE_SIZE))
        return false;
    frame_come_by(&s->frame[entry_number(e)], seen);
    return true;
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

/* Larger extents, pinned, from `page` to `last`. Returns the pages. */
static uint64_t pinned_span(bp_scan *scan, uint64_t page, uint64_t last, struct pieces *p)
{
    bp_session *s = scan->s;
    uint64_t most = frames_limit(s->pool) / SCAN_SHARE;
    uint64_t count = 0;
    unsigned n;

    if (last - page > most)
        last = page + most;
    n = bpi_span_pin(s, scan->file, page, last, SCAN_EXTENTS, false, scan->pin);
    for (unsigned i = 0; i < n; i++) {
        uint64_t pages = scan->pin[i].pages < last - page - count + 1 ? scan->pin[i].pages : last - page - count + 1;

        if (!add_piece(p, frame_data(s, scan->pin[i].frame), page + count, pages << BP_PAGE_SHIFT))
            break;
        count += pages;
    }
    scan->pins = n;
    return count;
}

/* What is missing: one extent from `page` on, when it has come. */
static int missing_page(bp_scan *scan, uint64_t page, uint64_t last, struct pieces *p, uint64_t *count)
{
    bp_session *s = scan->s;
    struct bp_ref ref;
    int rc = bp_get(s, scan->file, page, BP_SHARED, &ref);

    if (rc)
        return rc;
    *count = ref.bytes >> BP_PAGE_SHIFT;
    if (*count - 1 > last - page)
        *count = last - page + 1;
    add_piece(p, ref.data, page, *count << BP_PAGE_SHIFT);
    scan->pin[0] = (struct pinned){.head = ref_head(s, &ref)};
    scan->pins = 1;
    return 0;
}

/* ---- readahead ---- */

static uint64_t pages_before(const bp_scan *scan)
{
    if (scan->backward)
        return scan->ahead > scan->last ? 0 : scan->last + 1 - scan->ahead;
    return scan->ahead < scan->first ? 0 : scan->ahead - scan->first;
}

/* Pages of a window that a scan down the file reads: those before `ahead`, the first of them at an extent's beginning. */
static void read_down(bp_scan *scan, unsigned order)
{
    uint64_t first = scan->ahead - scan->first > scan->window ? scan->ahead - scan->window : scan->first;

    first = (first & ~extent_mask(order)) > scan->first ? first & ~extent_mask(order) : scan->first;
    bpi_ahead_read(scan->s, scan->file, first, scan->ahead - 1, order);
    scan->ahead = first;
}

static void read_up(bp_scan *scan, unsigned order)
{
    uint64_t last = scan->last - scan->ahead < scan->window ? scan->last : scan->ahead + scan->window - 1;

    last = (last | extent_mask(order)) < scan->last ? last | extent_mask(order) : scan->last;
    scan->ahead += bpi_ahead_read(scan->s, scan->file, scan->ahead, last, order);
}

/* Less than a window before the scan: another one. */
static void read_ahead(bp_scan *scan)
{
    uint64_t at = scan->backward ? scan->last : scan->first;
    uint64_t now;
    unsigned order;

    if (scan->backward ? scan->ahead <= scan->first : scan->ahead > scan->last)
        return;
    if (scan->window && pages_before(scan) >= scan->window)
        return;
    now = bpi_now_ns();
    if (!scan->window)
        scan->window = bpi_ahead_window(scan->s->pool, WINDOW_FIRST / 4, 0, 0);
    else
        scan->window = bpi_ahead_window(scan->s->pool, scan->window, at > scan->at ? at - scan->at : scan->at - at,
                                        now - scan->since_ns);
    scan->at = at;
    scan->since_ns = now;
    if (!scan->backward && scan->ahead < scan->first)
        scan->ahead = scan->first;
    order = bpi_ahead_order(scan->file, scan->window);
    if (scan->backward)
        read_down(scan, order);
    else
        read_up(scan, order);
}

/* ---- the next batch ---- */

static int forward(bp_scan *scan, struct pieces *p)
{
    uint64_t count = held_run(scan, scan->first, scan->last, p);
    int rc = 0;

    if (!count)
        count = pinned_span(scan, scan->first, scan->last, p);
    if (!count)
        rc = missing_page(scan, scan->first, scan->last, p, &count);
    if (rc)
        return rc;
    scan->over = count > scan->last - scan->first;
    scan->first += scan->over ? 0 : count;
    return 0;
}

/*
 * The last pages that are still to come, in one batch that reaches to the end of them: from the beginning of their leaf,
 * if all of it is there in pages of their own; else the one extent that they lie in.
 */
static int backward(bp_scan *scan, struct pieces *p)
{
    uint64_t leaf = scan->last & ~(uint64_t)(INDEX_SLOTS - 1);
    uint64_t page = leaf > scan->first ? leaf : scan->first;
    uint64_t count = held_run(scan, page, scan->last, p);
    int rc = 0;

    if (count <= scan->last - page) {
        struct pinned *pin = &scan->pin[0];

        release(scan);
        p->got = 0;
        scan->pins = bpi_span_pin(scan->s, scan->file, scan->last, scan->last, 1, false, pin);
        if (!scan->pins) {
            rc = missing_page(scan, scan->last, scan->last, p, &count);
            if (rc)
                return rc;
            pin->frame = (uint32_t)(((const char *)p->piece[0].data - scan->s->base) >> BP_PAGE_SHIFT);
        }
        p->got = 1;
        count = pin->frame - pin->head; /* of its extent that lie before it */
        if (count > scan->last - scan->first)
            count = scan->last - scan->first;
        page = scan->last - count;
        p->piece[0] = (struct bp_piece){.data = frame_data(scan->s, pin->frame - (uint32_t)count),
                                        .page = page,
                                        .bytes = (count + 1) << BP_PAGE_SHIFT};
    }
    scan->over = page == scan->first;
    scan->last = scan->over ? scan->last : page - 1;
    return 0;
}

static int batch(bp_scan *scan, struct pieces *p)
{
    bool known = scan->s->ahead_known;
    int rc;

    scan->s->ahead_known = true; /* by us */
    read_ahead(scan);
    rc = scan->backward ? backward(scan, p) : forward(scan, p);
    scan->s->ahead_known = known;
    return rc;
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
        rc = batch(scan, &p);
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
