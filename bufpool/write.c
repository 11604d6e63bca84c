/* SPDX-License-Identifier: MIT */
/*
 * What callers do to pages that they change: new extents, letting go of changed ones, forgetting them; and waiting for
 * the thread that writes (writeback.c).
 *
 * An extent becomes dirty under its exclusive latch, in this order: LSN, mark in the index, DIRTY together with the new
 * version (T21). It becomes clean under a pin, in the opposite one (T24). So whoever looks without a latch finds the
 * mark of all that is dirty, and perhaps of what is so no longer (R19).
 */
#define BP_NO_INLINE /* the functions themselves */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "bufpool/writeback.h"

/* ---- becoming dirty ---- */

/* An extent that the caller has latched exclusively, and whose word is `seen`, is about to become dirty, or more so. */
static void note(bp_pool *pool, bp_file *file, uint32_t head, uint64_t seen, uint64_t lsn)
{
    struct frame_dirty *d = &pool->dirty[head];
    uint64_t page = frame_id(&pool->frame[head]) & FRAME_ID_PAGE;
    uint64_t pages = 1ull << frame_order(seen);
    bool was = seen & FRAME_DIRTY;

    if (lsn)
        since_raise(&d->since, ~lsn);
    if (!was || lsn > atomic_load_explicit(&d->newest, memory_order_relaxed))
        atomic_store_explicit(&d->newest, lsn, memory_order_relaxed);
    if (was)
        return;
    bpi_index_mark(&file->index, page, INDEX_DIRTY);
    atomic_fetch_add_explicit(&file->dirty, pages, memory_order_relaxed);
    /* seq_cst: as the writer lowers its flag and then looks at this */
    if (atomic_fetch_add_explicit(&pool->dirty_pages, pages, memory_order_seq_cst) + pages > dirty_target(pool))
        bpi_write_target(pool);
}

static bp_file *file_of(const bp_pool *pool, uint32_t head)
{
    return atomic_load_explicit(&pool->file[frame_id(&pool->frame[head]) >> FRAME_ID_FILE_SHIFT], memory_order_acquire);
}

void bpi_dirty_forget(bp_file *file, uint32_t head)
{
    bp_pool *pool = file->pool;
    uint64_t pages = 1ull << frame_order(frame_forget(&pool->frame[head]));

    bpi_dirty_clear(pool, head);
    atomic_fetch_sub_explicit(&file->dirty, pages, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->dirty_pages, pages, memory_order_relaxed);
}

void bpi_dirty_copy(bp_pool *pool, uint32_t from, uint32_t to)
{
    struct frame_dirty *old = &pool->dirty[from];

    atomic_store_explicit(&pool->dirty[to].newest, atomic_load_explicit(&old->newest, memory_order_relaxed),
                          memory_order_relaxed);
    since_raise(&pool->dirty[to].since, atomic_load_explicit(&old->since, memory_order_relaxed));
}

void bpi_dirty_clear(bp_pool *pool, uint32_t head)
{
    /* release: who finds nothing here also finds that the frame is the extent's no longer, and looks again */
    atomic_store_explicit(&pool->dirty[head].since, 0, memory_order_release);
}

/* ---- too much of it ---- */

#define SLOW_NS NS_PER_MS        /* the most that one call is slowed by */
#define LOOK_NS (10 * NS_PER_MS) /* those who wait look again by themselves */

/* Nearer to the trigger, longer. */
static void slow_down(bp_session *s, uint64_t dirty)
{
    const bp_pool *pool = s->pool;
    uint64_t slow = dirty_slow(pool);
    uint64_t range = dirty_trigger(pool) - slow + 1;
    uint64_t over = dirty > slow ? dirty - slow : 0; /* the pool may just have been resized */
    struct timespec nap = {.tv_nsec = (long)(SLOW_NS * (over < range ? over : range - 1) / range)};

    counter_add(&s->count.dirty_slowed, 1);
    nanosleep(&nap, NULL);
}

int bpi_write_throttle(bp_session *s, bp_file *file, uint64_t deadline_ns)
{
    bp_pool *pool = s->pool;
    uint64_t dirty = atomic_load_explicit(&pool->dirty_pages, memory_order_relaxed);
    char why[120] = "";
    uint64_t now = 0;

    if (dirty <= dirty_trigger(pool)) {
        if (dirty > dirty_slow(pool) && !session_refs(s))
            slow_down(s, dirty);
        return 0;
    }
    if (session_refs(s)) { /* in the middle of something: others wait for it to end, the writer perhaps, too */
        counter_add(&s->count.dirty_overshoot, 1);
        return 0;
    }
    counter_add(&s->count.dirty_stopped, 1);
    atomic_fetch_add_explicit(&pool->stopped, 1, memory_order_seq_cst);
    while (now < deadline_ns) {
        uint32_t seen = atomic_load_explicit(&pool->cleaned, memory_order_seq_cst);

        dirty = atomic_load_explicit(&pool->dirty_pages, memory_order_seq_cst);
        if (dirty <= dirty_trigger(pool))
            break;
        bpi_write_ask(pool);
        now = bpi_now_ns();
        bpi_futex_wait(&pool->cleaned, seen, now + LOOK_NS < deadline_ns ? now + LOOK_NS : deadline_ns);
    }
    atomic_fetch_sub_explicit(&pool->stopped, 1, memory_order_relaxed);
    if (dirty <= dirty_trigger(pool))
        return 0;
    counter_add(&s->count.busy, 1);
    bpi_write_describe(pool, why, sizeof(why));
    return bpi_session_fail(s, -EBUSY, "%s: more than dirty_trigger, %llu pages, for %u ms%s", file->name,
                            (unsigned long long)dirty_trigger(pool), pool->options.wait_ms, why);
}

/* ---- letting go ---- */

static uint32_t note_ref(const struct bp_ref *ref, uint64_t lsn)
{
    bp_session *s = ref->session;
    uint32_t head = ref_head(s, ref);
    bp_file *file = file_of(s->pool, head);

    assert(ref->mode == BP_EXCLUSIVE && file->write);
    note(s->pool, file, head, frame_load(&s->frame[head]), lsn);
    return head;
}

void bp_put_dirty(struct bp_ref *ref, uint64_t lsn)
{
    if (bpi_forked(ref->session))
        return;
    note_ref(ref, lsn);
    SYNC_POINT("write:noted");
    bpi_put_exclusive(ref, true);
}

static void downgrade(struct bp_ref *ref, bool dirty)
{
    struct frame *f = (struct frame *)(void *)ref->state;

    assert(ref->mode == BP_EXCLUSIVE);
    ref->mode = BP_SHARED;
    if (frame_downgrade(f, dirty) & FRAME_WAITERS)
        bpi_frame_wake(f);
}

void bp_downgrade(struct bp_ref *ref)
{
    if (!bpi_forked(ref->session))
        downgrade(ref, false);
}

void bp_downgrade_dirty(struct bp_ref *ref, uint64_t lsn)
{
    if (bpi_forked(ref->session))
        return;
    note_ref(ref, lsn);
    downgrade(ref, true);
}

/* ---- from a view ---- */

int bp_upgrade(const struct bp_view *view, bp_session *s, bp_file *file, uint64_t page, struct bp_ref *ref)
{
    struct target t;
    uint64_t deadline;
    struct frame *f;

    if (bpi_forked(s))
        return BP_FORKED;
    f = (struct frame *)(uintptr_t)view->state;
    if (write_is_much(file)) {
        int rc = bpi_write_throttle(s, file, bpi_now_ns() + s->pool->wait_ns);

        if (rc)
            return rc;
    }
    t.head = (uint32_t)(f - s->frame);
    t.frame = (uint32_t)((size_t)((const char *)view->data - s->base) >> BP_PAGE_SHIFT);
    deadline = bpi_now_ns() + s->pool->wait_ns;
    for (;;) {
        t.seen = frame_load(f);
        if ((t.seen ^ view->seen) & BP_VIEW_MASK || page >= BP_PAGE_MAX ||
            frame_id(f) != (file->id | (page & ~extent_mask(frame_order(t.seen)))))
            return bpi_session_fail(s, BP_MOVED, "page %llu of %s has changed", (unsigned long long)page, file->name);
        if (!(t.seen & FRAME_PINS)) {
            if (!frame_lock_from(f, t.seen))
                continue; /* ends: the word moved, by a pin, a hit's heat, or a version */
            if (latch_stands(file, page, f))
                break;
        }
        if (bpi_now_ns() >= deadline)
            return bpi_latch_give_up(s, file, page, t.head);
        bpi_latch_wait(s, &t, deadline);
    }
    hit_warm(s, f, frame_load(f));
    ref_fill(s, page, BP_EXCLUSIVE, &t, ref);
    return 0;
}

/* ---- new extents ---- */

/* The file is going to reach to here. relaxed: a size, nothing is ordered by it */
static void reach(bp_file *file, uint64_t bytes)
{
    uint64_t seen = file_end(file);

    while (seen < bytes &&
           !atomic_compare_exchange_weak_explicit(&file->end, &seen, bytes, memory_order_relaxed, memory_order_relaxed))
        ;
    seen = atomic_load_explicit(&file->bytes, memory_order_relaxed);
    while (seen < bytes && !atomic_compare_exchange_weak_explicit(&file->bytes, &seen, bytes, memory_order_relaxed,
                                                                  memory_order_relaxed))
        ;
}

/* Frames that nobody knows yet become the extent. 0; -EEXIST: something is there; the frames are gone then. */
static int enter_new(bp_session *s, bp_file *file, uint64_t page, unsigned order, struct target *t)
{
    uint64_t sampled = policy_sampled(s->seat.policy, file->id | page);
    struct index_insert met;
    struct arrival a;
    int rc;

    memset(frame_data(s, t->head), 0, (size_t)BP_PAGE_SIZE << order);
    frame_publish_new(&s->frame[t->head], file->id | page, order, sampled);
    SYNC_POINT("create:published");
    rc = bpi_index_insert(&file->index, page, order, t->head, &s->nodes, &met);
    if (rc) {
        frame_forget(&s->frame[t->head]);
        bpi_frame_release(s->pool, t->head);
        return rc;
    }
    file_grew(file, 1ull << order);
    t->frame = t->head;
    t->seen = frame_load(&s->frame[t->head]);
    note(s->pool, file, t->head, t->seen & ~FRAME_DIRTY, 0);
    a = (struct arrival){.head = t->head, .order = order, .shadow = met.shadow};
    bpi_admit(s, &a, 1);
    if (unlikely(sampled))
        bpi_policy_log(&s->seat, t->head, file->id | page, order, true);
    return 0;
}

/* Frames of exactly this order. 0, -EAGAIN: not now, or an error. */
static int frames_for(bp_session *s, bp_file *file, unsigned order, uint32_t *head)
{
    unsigned got = order;
    int rc;

    if (s->nodes.count < INSERT_NODES && bpi_nodes_reserve(s))
        return -EAGAIN;
    rc = bpi_frames_for(s, file, &got, head);
    if (rc || got == order)
        return rc;
    bpi_frame_give(s->pool, *head, got);
    bpi_release_notify(s->pool);
    return -EAGAIN;
}

/* Of an extent that is there and that the caller has exclusively: as if it were new. */
static void make_new(bp_session *s, bp_file *file, unsigned order, struct bp_ref *ref)
{
    uint32_t head = ref_head(s, ref);

    memset(ref->data, 0, (size_t)BP_PAGE_SIZE << order);
    note(s->pool, file, head, frame_load(&s->frame[head]), 0);
    frame_soil(&s->frame[head]);
}

/*
 * One attempt to get what is in the way out of it, or hold of it. 1: the ref is filled; 0: nothing is in the way;
 * -EAGAIN: again; or an error.
 */
static int replace(bp_session *s, bp_file *file, uint64_t page, unsigned order, struct bp_ref *ref)
{
    uint64_t last = page + extent_mask(order);
    struct index_item item;
    int rc;

    if (!bpi_index_next(&file->index, page, &item) || item.page > last)
        return 0;
    if (item.order < order) {
        bpi_extent_drop(file, &item, true);
        return -EAGAIN;
    }
    rc = bpi_get_slow(s, file, &page, 1, BP_EXCLUSIVE, ref);
    if (rc)
        return bpi_index_find(&file->index, page, &item) ? rc : -EAGAIN; /* it went, and could not be read again */
    if (ref->bytes >> BP_PAGE_SHIFT >= 1u << order) {
        make_new(s, file, order, ref);
        return 1;
    }
    bp_put(ref); /* it went, and a smaller one came */
    return -EAGAIN;
}

static int wait_for_frames(bp_session *s, unsigned order, uint64_t deadline)
{
    struct timespec soon = {.tv_nsec = NS_PER_MS};

    if (bpi_now_ns() >= deadline)
        return bpi_frames_give_up(s);
    if (order == 0) {
        bpi_turn_wait(s, deadline);
    } else {
        bpi_write_ask(s->pool);
        nanosleep(&soon, NULL);
    }
    return -EAGAIN;
}

static int create(bp_session *s, bp_file *file, uint64_t page, unsigned order, uint64_t deadline, struct bp_ref *ref)
{
    struct target t = {0};
    int rc = replace(s, file, page, order, ref);

    if (rc == -EAGAIN && bpi_now_ns() >= deadline)
        return bpi_session_fail(s, -EBUSY, "page %llu of %s: what is there was held for %u ms",
                                (unsigned long long)page, file->name, s->pool->options.wait_ms);
    if (rc)
        return rc;
    rc = frames_for(s, file, order, &t.head);
    if (rc == -EAGAIN)
        return wait_for_frames(s, order, deadline);
    if (rc)
        return bpi_session_fail(s, rc, "page %llu of %s: %s", (unsigned long long)page, file->name, bp_strerror(rc));
    rc = enter_new(s, file, page, order, &t);
    if (rc)
        return -EAGAIN;
    ref_fill(s, page, BP_EXCLUSIVE, &t, ref);
    return 1;
}

int bp_create(bp_session *s, bp_file *file, uint64_t page, unsigned order, struct bp_ref *ref)
{
    uint64_t deadline;
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (!file->write)
        return bpi_session_fail(s, -EBADF, "%s is not open for writing", file->name);
    if (order > BP_ORDER_MAX || (order && 1u << order > frames_limit(s->pool) / EXTENT_SHARE) ||
        page & extent_mask(order) || page >= BP_PAGE_MAX)
        return bpi_session_fail(s, -EINVAL, "an extent of order %u at page %llu of %s, with %u frames", order,
                                (unsigned long long)page, file->name, frames_limit(s->pool));
    s->since_ns = bpi_now_ns();
    deadline = s->since_ns + s->pool->wait_ns;
    if (write_is_much(file)) {
        rc = bpi_write_throttle(s, file, deadline);
        if (rc)
            return rc;
    }
    reach(file, (page + 1 + extent_mask(order)) << BP_PAGE_SHIFT);
    do {
        rc = create(s, file, page, order, deadline, ref);
    } while (rc == -EAGAIN);
    bpi_turn_end(s);
    if (rc < 0)
        return rc;
    counter_add(&s->count.creates, 1);
    return 0;
}

/* ---- waiting for the writer ---- */

static int await(bp_session *s, struct write_request *r)
{
    bp_file *file = r->file;
    int rc;

    if (!file->write)
        return bpi_session_fail(s, -EBADF, "%s is not open for writing", file->name);
    rc = bpi_write_await(r);
    if (rc == -ETIMEDOUT)
        return bpi_session_fail(s, rc, "%s: nothing was written for %u ms", file->name, s->pool->options.wait_ms);
    if (rc && r->bad != UINT64_MAX)
        return bpi_session_fail(s, rc, "page %llu of %s cannot be written: %s", (unsigned long long)r->bad, file->name,
                                bp_strerror(rc));
    if (rc)
        return bpi_session_fail(s, rc, "%s: %s", file->name, bp_strerror(rc));
    return 0;
}

/* The last of count pages from first on. */
static uint64_t last_of(uint64_t first, uint64_t count)
{
    return count - 1 < UINT64_MAX - first ? first + count - 1 : UINT64_MAX;
}

int bp_flush(bp_session *s, bp_file *file, uint64_t first, uint64_t count)
{
    struct write_request r = {.file = file, .first = first, .last = last_of(first, count), .what = WRITE_FLUSH};

    if (bpi_forked(s))
        return BP_FORKED;
    return count ? await(s, &r) : 0;
}

int bp_sync(bp_session *s, bp_file *file)
{
    struct write_request r = {.file = file, .last = UINT64_MAX, .what = WRITE_SYNC};

    return bpi_forked(s) ? BP_FORKED : await(s, &r);
}

/* ---- forgetting ---- */

/* cut: the file is going to end before first, so what reaches beyond is written and goes, too. */
static int discard(bp_session *s, bp_file *file, uint64_t first, uint64_t last, bool cut)
{
    uint64_t deadline = bpi_now_ns() + s->pool->wait_ns;
    struct index_item item;
    uint64_t from = first;

    while (from <= last && bpi_index_discard(&file->index, from, last, &item)) {
        uint64_t end = item.page + extent_mask(item.order);
        bool beyond = item.page < first || end > last;

        if (beyond && !cut) {
            from = end + 1;
            continue;
        }
        if (beyond) {
            int rc = bp_flush(s, file, item.page, end - item.page + 1);

            if (rc)
                return rc;
        }
        SYNC_POINT("discard:met");
        if (bpi_extent_drop(file, &item, !beyond)) {
            from = item.page;
            deadline = bpi_now_ns() + s->pool->wait_ns;
        } else if (bpi_now_ns() >= deadline) {
            return bpi_latch_give_up(s, file, item.page, item.frame);
        }
    }
    return 0;
}

int bp_discard(bp_session *s, bp_file *file, uint64_t first, uint64_t count)
{
    if (bpi_forked(s))
        return BP_FORKED;
    if (!file->write)
        return bpi_session_fail(s, -EBADF, "%s is not open for writing", file->name);
    if (!count || first >= BP_PAGE_MAX)
        return 0;
    return discard(s, file, first, last_of(first, count), false);
}

int bp_file_truncate(bp_session *s, bp_file *file, uint64_t bytes)
{
    struct write_request r = {.file = file, .what = WRITE_TRUNCATE, .bytes = bytes};
    uint64_t first = bytes >> BP_PAGE_SHIFT;
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (bytes % BP_PAGE_SIZE || first > BP_PAGE_MAX)
        return bpi_session_fail(s, -EINVAL, "%llu bytes are not whole pages of %u", (unsigned long long)bytes,
                                BP_PAGE_SIZE);
    if (!file->write)
        return bpi_session_fail(s, -EBADF, "%s is not open for writing", file->name);
    rc = discard(s, file, first, UINT64_MAX, true);
    if (!rc)
        rc = await(s, &r);
    if (!rc) /* what was read in between, when the file was longer */
        rc = discard(s, file, first, UINT64_MAX, true);
    return rc;
}

int bp_file_abandon(bp_file *file)
{
    if (bpi_pool_forked(file->pool))
        return BP_FORKED;
    atomic_store_explicit(&file->abandoned, true, memory_order_relaxed);
    return 0;
}

/* ---- the oldest change ---- */

/*
 * A change is known by its extent, then by the write that took it, then by the file until it is synced; it moves on by
 * being entered there before it goes here. So looking in this order finds it. (One that goes back to its extent, since
 * its write failed, is entered in `unsynced` as well.)
 */
uint64_t bp_file_oldest_dirty_lsn(bp_file *file)
{
    struct index_item item;
    uint64_t oldest = 0; /* turned */

    if (bpi_pool_forked(file->pool) || !file->write)
        return UINT64_MAX;
    for (uint64_t page = 0; bpi_index_next_marked(&file->index, page, INDEX_DIRTY, &item);) {
        uint64_t since = atomic_load_explicit(&file->pool->dirty[item.frame].since, memory_order_acquire);

        if (frame_id(&file->pool->frame[item.frame]) != (file->id | item.page)) { /* it moved, or is gone */
            page = item.page;
            continue;
        }
        oldest = since > oldest ? since : oldest;
        page = item.page + (1ull << item.order);
    }
    return ~bpi_write_oldest(file, oldest);
}

uint64_t bp_oldest_dirty_lsn(bp_pool *pool)
{
    uint64_t oldest = UINT64_MAX;

    if (bpi_pool_forked(pool))
        return UINT64_MAX;
    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_acquire);
        uint64_t lsn;

        if (!file)
            break;
        lsn = bp_file_oldest_dirty_lsn(file);
        oldest = lsn < oldest ? lsn : oldest;
    }
    return oldest;
}
