/* SPDX-License-Identifier: MIT */
/* Reading ahead: see readahead.h. */
#include <string.h>

#include "bufpool/pool.h"

#define WINDOW_FIRST 8u        /* pages */
#define WINDOW_LEAST 64u       /* what a window may grow to, however slow its reader */
#define WINDOW_MOST  4096u     /* 16 MiB, */
#define WINDOW_SHARE 16u       /* and this part of the pool: a stream has two windows */
#define AHEAD_NEED   4u        /* windows are so many times what is consumed while a read takes place */
#define RUN_LEAST    3u        /* pages before a miss that make it a stream, and have come while */
#define RUN_SHARE    64u       /* this part of the pool was read */
#define RUN_STEPS    8u        /* extents looked at for that */
#define LATENCY_NS   NS_PER_MS /* of a read, before one was measured */
#define EXTENTS_LOG2 2u        /* a window has at least four extents */

/* ---- sizes ---- */

void bpi_ahead_measured(bp_pool *pool, uint64_t ns)
{
    uint64_t known = atomic_load_explicit(&pool->ahead_ns, memory_order_relaxed);

    atomic_store_explicit(&pool->ahead_ns, known ? known - known / 8 + ns / 8 : ns, memory_order_relaxed);
}

static uint32_t window_most(const bp_pool *pool)
{
    uint32_t share = frames_limit(pool) / WINDOW_SHARE;

    return share < 1 ? 1 : share < WINDOW_MOST ? share : WINDOW_MOST;
}

uint32_t bpi_ahead_window(const bp_pool *pool, uint32_t window, uint64_t consumed, uint64_t ns)
{
    uint64_t latency = atomic_load_explicit(&pool->ahead_ns, memory_order_relaxed);
    uint64_t next = window < WINDOW_LEAST ? (uint64_t)window * 4 : (uint64_t)window * 2;
    uint32_t most = window_most(pool);

    if (consumed && ns) {
        uint64_t need = (latency ? latency : LATENCY_NS) / (ns / consumed + 1) * AHEAD_NEED;

        need = need < WINDOW_LEAST ? WINDOW_LEAST : need;
        next = next < need ? next : need;
    }
    return next < most ? (uint32_t)next : most;
}

unsigned bpi_ahead_order(const bp_file *file, uint64_t pages)
{
    unsigned order = 63 - (unsigned)__builtin_clzll(pages | 1);

    order = order > EXTENTS_LOG2 ? order - EXTENTS_LOG2 : 0;
    order = order < file->stream_order ? order : file->stream_order;
    while (order && 1u << order > frames_limit(file->pool) / WINDOW_SHARE)
        order--;
    return order > file->order ? order : file->order;
}

/* ---- reading ---- */

/* An extent that is there, or being read; the last page of it. */
static bool is_present(const bp_session *s, const bp_file *file, uint64_t page, uint64_t *last, struct target *t)
{
    index_entry e = bpi_index_load(&file->index, page);

    if (!entry_is_frame(e) || entry_number(e) >= s->frames_total ||
        bpi_examine(s, file, page, entry_number(e), &t->head, &t->seen) == FRAME_NONE)
        return false;
    *last = page | extent_mask(frame_order(t->seen));
    return true;
}

/* The largest extent that begins with this page and ends by the last. */
static unsigned order_at(uint64_t page, uint64_t last, unsigned order)
{
    while (order && ((page & extent_mask(order)) || (page | extent_mask(order)) > last))
        order--;
    return order;
}

/* Pages of their own with one request; how many. */
static uint64_t read_run(bp_session *s, bp_file *file, uint64_t page, uint64_t last)
{
    uint64_t left = last - page + 1;
    uint32_t head;
    unsigned n;

    n = bpi_run_start(s, file, page, left < READ_RUN_PAGES ? (unsigned)left : READ_RUN_PAGES, &head);
    for (unsigned i = 0; i < n; i++)
        bpi_unpin(s->pool, head + i);
    return n;
}

/* One extent. The page behind it; `page`: it cannot be had now. */
static uint64_t read_extent(bp_session *s, bp_file *file, uint64_t page, uint64_t last, unsigned order)
{
    struct target t;
    int rc;

    s->ahead_order = order_at(page, last, order);
    rc = bpi_step_held(s, file, page, &t);
    if (rc != STEP_JOINED && rc != STEP_PINNED)
        return page;
    bpi_unpin(s->pool, t.head); /* whoever wants it will find it, read or being read */
    return (page | extent_mask(frame_order(t.seen))) + 1;
}

uint64_t bpi_ahead_read(bp_session *s, bp_file *file, uint64_t first, uint64_t last, unsigned order)
{
    uint64_t since = s->since_ns;
    uint64_t bytes = atomic_load_explicit(&file->bytes, memory_order_relaxed);
    uint64_t page = first;
    bool going = true;

    if (last >= (bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT && bpi_file_reaches(file, last)) {
        bytes = atomic_load_explicit(&file->bytes, memory_order_relaxed);
        if (first >= (bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT)
            return 0;
        last = ((bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT) - 1;
    }
    s->since_ns = UINT64_MAX; /* who waits for a frame comes first */
    s->ahead_mark = FRAME_AHEAD;
    s->ahead_ns = bpi_now_ns();
    while (going && page <= last) {
        uint64_t end = page;
        uint64_t next = page;
        struct target t;

        if (is_present(s, file, page, &end, &t)) {
            page = end + 1;
            continue;
        }
        if (!order && last > page)
            next += read_run(s, file, page, last);
        if (next == page)
            next = read_extent(s, file, page, last, order);
        going = next != page;
        page = next;
    }
    s->ahead_order = 0;
    s->ahead_mark = 0;
    s->ahead_ns = 0;
    s->since_ns = since;
    bpi_step_end(s);
    if (s->channel)
        s->channel->ops->flush(s->channel->io);
    return page - first;
}

uint64_t bpi_range_read(bp_session *s, bp_file *file, uint64_t first, uint64_t last)
{
    ahead_missed(s, file, first);
    return bpi_ahead_read(s, file, first, last, bpi_ahead_order(file, last - first + 1));
}

int bp_prefetch(bp_session *s, bp_file *file, uint64_t first, uint64_t count)
{
    uint64_t last = count - 1 > UINT64_MAX - first ? UINT64_MAX : first + count - 1;

    if (bpi_forked(s))
        return BP_FORKED;
    if (count)
        bpi_ahead_read(s, file, first, last, bpi_ahead_order(file, count));
    return 0;
}

/* ---- streams ---- */

/* Did this extent come just now? What is being read did. */
static bool is_recent(const bp_session *s, const struct target *t)
{
    const struct policy *p = s->seat.policy;
    uint64_t now = atomic_load_explicit(&p->misses, memory_order_relaxed); /* a stamp may be a little newer */
    uint32_t stamp = atomic_load_explicit(&p->cold[t->head].stamp, memory_order_relaxed);
    uint64_t least = p->size / RUN_SHARE > RUN_STEPS ? p->size / RUN_SHARE : RUN_STEPS;

    return t->seen & FRAME_READING ||
           (int32_t)((uint32_t)(now >> p->clock_shift) - stamp) <= (int32_t)(least >> p->clock_shift) + 1;
}

void bpi_ahead_look(bp_session *s, bp_file *file, uint64_t page)
{
    uint64_t at = page;
    uint64_t end;

    for (unsigned i = 0; i < RUN_STEPS && at && page - at < RUN_LEAST; i++) {
        struct target t;

        if (!is_present(s, file, at - 1, &end, &t) || t.seen & FRAME_AHEAD || !is_recent(s, &t))
            return;
        at = (at - 1) & ~extent_mask(frame_order(t.seen));
    }
    if (page - at < RUN_LEAST && at)
        return;
    s->ahead_file = file;
    s->ahead_page = page;
}

/* The first page from here on that is absent, if there is one before `limit`. */
static uint64_t find_gap(const bp_session *s, const bp_file *file, uint64_t page, uint64_t limit)
{
    struct target t;
    uint64_t end;

    while (page < limit && is_present(s, file, page, &end, &t))
        page = end + 1;
    return page;
}

/* The stream that goes on with one of these pages. */
static struct ahead_stream *find_stream(bp_file *file, uint64_t page, uint64_t gap)
{
    for (unsigned i = 0; i < AHEAD_STREAMS; i++) {
        uint64_t next = atomic_load_explicit(&file->stream[i].next, memory_order_relaxed);

        if (next && (next == gap || next == page))
            return &file->stream[i];
    }
    return NULL;
}

/* Streams that went on within the last second, this one too: they share what one may have. */
static unsigned count_streams(const bp_file *file, uint64_t now)
{
    unsigned n = 0;

    for (unsigned i = 0; i < AHEAD_STREAMS; i++)
        n += atomic_load_explicit(&file->stream[i].next, memory_order_relaxed) &&
             now - atomic_load_explicit(&file->stream[i].since_ns, memory_order_relaxed) < 1000 * NS_PER_MS;
    return n ? n : 1;
}

/* One to be forgotten: that which has not gone on for longest. */
static struct ahead_stream *oldest_stream(bp_file *file)
{
    struct ahead_stream *oldest = &file->stream[0];

    for (unsigned i = 1; i < AHEAD_STREAMS; i++)
        if (atomic_load_explicit(&file->stream[i].since_ns, memory_order_relaxed) <
            atomic_load_explicit(&oldest->since_ns, memory_order_relaxed))
            oldest = &file->stream[i];
    return oldest;
}

static void remember(struct ahead_stream *stream, uint64_t next, uint32_t window, uint64_t at, uint64_t now)
{
    atomic_store_explicit(&stream->next, next, memory_order_relaxed);
    atomic_store_explicit(&stream->window, window, memory_order_relaxed);
    atomic_store_explicit(&stream->at, at, memory_order_relaxed);
    atomic_store_explicit(&stream->since_ns, now, memory_order_relaxed);
}

/* The window to be read at `gap`, by a reader at `page`; 0: there is enough before him. */
static uint32_t choose_window(const bp_pool *pool, const struct ahead_stream *stream, uint64_t page, uint64_t gap,
                              uint64_t now)
{
    uint32_t window, most = window_most(pool);
    uint64_t at, since;

    if (!stream) { /* a new one, or one that was forgotten */
        uint64_t first = gap - page > WINDOW_FIRST ? gap - page : WINDOW_FIRST;

        return first < most ? (uint32_t)first : most;
    }
    window = atomic_load_explicit(&stream->window, memory_order_relaxed);
    at = atomic_load_explicit(&stream->at, memory_order_relaxed);
    since = atomic_load_explicit(&stream->since_ns, memory_order_relaxed);
    if (gap > page && gap - page > window)
        return 0;
    return bpi_ahead_window(pool, window, page > at ? page - at : 0, now > since ? now - since : 0);
}

void bpi_ahead_go(bp_session *s)
{
    bp_file *file = s->ahead_file;
    uint64_t page = s->ahead_page;
    uint64_t pages = (atomic_load_explicit(&file->bytes, memory_order_relaxed) + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT;
    uint64_t limit = page + 2 * (uint64_t)WINDOW_MOST;
    struct ahead_stream *stream;
    uint64_t gap, last, now;
    uint32_t window, share;
    struct target t;
    unsigned order;

    s->ahead_file = NULL;
    if (s->reserved_count || s->turn_kept || s->frugal) /* its frames are for its own misses */
        return;
    /* who comes to what was read ahead, and not by what lies before it, reads at random */
    if (page && (!is_present(s, file, page - 1, &last, &t) || t.seen & FRAME_AHEAD))
        return;
    gap = find_gap(s, file, page, limit < pages ? limit : pages);
    if (gap >= limit || gap >= pages)
        return;
    now = bpi_now_ns();
    stream = find_stream(file, page, gap);
    window = choose_window(s->pool, stream, page, gap, now);
    share = window_most(s->pool) / count_streams(file, now);
    if (!window)
        return;
    if (window > share)
        window = share > WINDOW_FIRST ? share : WINDOW_FIRST;
    order = bpi_ahead_order(file, window);
    last = (gap + window - 1) | extent_mask(order); /* extents of the next one begin where they may be large */
    if (last >= pages)
        last = pages - 1;
    gap += bpi_ahead_read(s, file, gap, last, order);
    remember(stream ? stream : oldest_stream(file), gap, window, page, now);
}
