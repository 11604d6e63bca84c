/* SPDX-License-Identifier: MIT */
/*
 * Changing the budget of a pool that is in use.
 *
 * More is allowed at once and taken when it is needed. Less begins in the same way: nothing is populated beyond it, and
 * replacement aims at the new size. Then whole slabs go, those that are easiest to empty:
 *
 *   1  all of them drain: nothing of them is handed out any more, and what is given back stays aside, so that every page
 *      moves once at the most. Frames in sessions' stocks are taken back.
 *   2  slab by slab, what lies in it moves to frames elsewhere; those come from the coldest pages of the pool, wherever
 *      they lie. An extent for which there is none goes itself.
 *   3  a slab that is empty is unregistered from all rings, and its memory goes back to the system.
 *   4  one that does not become empty, since something in it stays pinned, drains no longer, and another one takes its
 *      place. All of them are tried again and again until none has left for wait_ms: then the budget is what has memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bufpool/writeback.h"

#define PATIENCE_SHARE 8u               /* this part of wait_ms without a frame out of any slab: others are tried, */
#define PATIENCE_NS    (50 * NS_PER_MS) /* and after so long in any case */
#define ROUND_PAUSE_NS (5 * NS_PER_MS)  /* when all have been tried */
#define PAUSE_NS       (NS_PER_MS / 2)  /* between two looks at what is pinned or being read */

/* ---- which slabs ---- */

enum slab_fate { SLAB_STAYS, SLAB_GOING, SLAB_TRIED };

struct shrink {
    bp_pool *pool;
    bp_session *s;
    uint32_t target; /* frames */
    unsigned slabs;
    unsigned going;   /* that drain now */
    uint8_t *fate;    /* of each slab: enum slab_fate */
    uint32_t *cost;   /* of each that has memory: frames bound, and more for what is pinned; UINT32_MAX: none */
    uint64_t last_ns; /* when a frame came out of one of them last */
    uint64_t most;    /* frames that had memory when it began */
};

static void frames_of(const bp_pool *pool, unsigned slab, uint32_t *first, uint32_t *end)
{
    size_t bytes;
    void *at;

    bpi_frames_slab_range(pool->frames, slab, &at, &bytes);
    *first = (uint32_t)((size_t)((char *)at - pool->base) >> BP_PAGE_SHIFT);
    *end = *first + (uint32_t)(bytes >> BP_PAGE_SHIFT);
}

/* From one extent, or free frame, to the next. */
static uint32_t next_extent(uint32_t f, uint64_t seen)
{
    return f + (frame_is_free(seen) ? 1 : 1u << frame_order(seen));
}

static uint32_t cost_of(const bp_pool *pool, unsigned slab)
{
    const struct writer *w = atomic_load_explicit(&pool->writer, memory_order_acquire);
    uint32_t first, end;
    uint32_t bound = 0;
    uint32_t held;

    frames_of(pool, slab, &first, &end);
    held = w && w->buffer_frame >= first && w->buffer_frame < end; /* stays as long as the pool does */
    for (uint32_t f = first; f < end;) {
        uint64_t seen = frame_load(&pool->frame[f]);

        held += (seen & FRAME_PINS) != 0;
        bound += frame_is_free(seen) ? 0 : 1u << frame_order(seen);
        f = next_extent(f, seen);
    }
    return bound + held * (end - first);
}

/* Of those not tried yet the cheapest, of equals the uppermost: the lower ones are filled first. UINT_MAX: none. */
static unsigned cheapest(const struct shrink *x)
{
    unsigned best = UINT32_MAX;

    for (unsigned i = x->slabs; i-- > 0;)
        if (x->fate[i] == SLAB_STAYS && x->cost[i] != UINT32_MAX && (best == UINT32_MAX || x->cost[i] < x->cost[best]))
            best = i;
    return best;
}

/* Slabs begin to drain until the rest is no more than wanted. false: there are not enough that could. */
static bool begin_enough(struct shrink *x)
{
    bp_pool *pool = x->pool;
    uint64_t frames = bpi_frames_claimed(pool->frames);
    bool more = false;

    for (unsigned i = 0; i < x->slabs; i++)
        if (x->fate[i] == SLAB_GOING)
            frames -= bpi_frames_slab_populated(pool->frames, i);
    for (unsigned i = 0; i < x->slabs; i++)
        x->cost[i] = bpi_frames_slab_populated(pool->frames, i) ? cost_of(pool, i) : UINT32_MAX;
    while (frames > x->target) {
        unsigned slab = cheapest(x);

        if (slab == UINT32_MAX)
            break;
        x->fate[slab] = SLAB_TRIED;
        if (bpi_frames_drain_begin(pool->frames, slab))
            continue;
        x->fate[slab] = SLAB_GOING;
        x->going++;
        more = true;
        frames -= bpi_frames_slab_populated(pool->frames, slab);
    }
    if (more)
        bpi_magazines_flush(pool);
    return frames <= x->target;
}

/* ---- emptying them ---- */

/* An extent moves, or goes if there is no frame for it. false: it has to stay for now. */
static bool clear_extent(struct shrink *x, uint32_t head, uint64_t seen)
{
    unsigned order = frame_order(seen);
    bp_session *s = x->s;
    uint32_t to;
    int rc;

    if ((seen & (FRAME_BOUND | FRAME_EXCL | FRAME_PINS)) != FRAME_BOUND)
        return false;
    if (bpi_frame_take(s, order, &to))
        return bpi_evict_this(s, head, frame_load(&x->pool->frame[head]));
    slim_lock_take(&s->magazine_lock);
    rc = bpi_extent_move(s, head, frame_load(&x->pool->frame[head]), to);
    slim_lock_give(&s->magazine_lock);
    bpi_frame_give(x->pool, rc ? to : head, order);
    return rc == 0;
}

/* Once through a slab. */
static void clear_slab(struct shrink *x, unsigned slab)
{
    uint32_t first, end;

    frames_of(x->pool, slab, &first, &end);
    for (uint32_t f = first; f < end;) {
        uint64_t seen = frame_load(&x->pool->frame[f]);

        if (!frame_is_free(seen) && clear_extent(x, f, seen))
            x->last_ns = bpi_now_ns();
        f = next_extent(f, seen);
    }
}

/*
 * Memory anew, for as much as has left already: else, where all slabs there are have to go, nobody would have a frame
 * until the last of them is empty, and who waits for one while he pins a page there would hold it up.
 */
static void allow(struct shrink *x)
{
    struct frames *frames = x->pool->frames;
    uint64_t may = x->target;

    for (unsigned i = 0; i < x->slabs; i++)
        if (x->fate[i] == SLAB_GOING)
            may += bpi_frames_slab_populated(frames, i);
    bpi_frames_limit(frames, (may < x->most ? may : x->most) << BP_PAGE_SHIFT);
}

/* A slab that may be empty by now. false: not yet, or the system or a ring does not let go of it. */
static bool end_slab(struct shrink *x, unsigned slab)
{
    struct frames *frames = x->pool->frames;

    if (bpi_frames_drain_left(frames, slab) || bpi_channels_unregister(x->pool, slab) ||
        bpi_frames_drain_end(frames, slab))
        return false;
    SYNC_POINT("resize:given_back");
    x->fate[slab] = SLAB_STAYS;
    x->going--;
    x->last_ns = bpi_now_ns();
    allow(x);
    return true;
}

/* Those that are left drain no longer. */
static void cancel_going(struct shrink *x)
{
    for (unsigned i = 0; i < x->slabs; i++) {
        if (x->fate[i] != SLAB_GOING)
            continue;
        bpi_frames_drain_cancel(x->pool->frames, i);
        x->fate[i] = SLAB_TRIED;
        x->going--;
    }
    bpi_release_notify(x->pool);
}

/* Until all that drain are empty, or nothing has come out of any of them for a while. */
static void empty_going(struct shrink *x, uint64_t patience_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};

    x->last_ns = bpi_now_ns();
    while (x->going) {
        unsigned before = x->going;

        for (unsigned i = 0; i < x->slabs; i++) {
            if (x->fate[i] != SLAB_GOING || end_slab(x, i))
                continue;
            clear_slab(x, i);
            bpi_magazine_flush(x->s);
            end_slab(x, i);
        }
        if (bpi_now_ns() >= x->last_ns + patience_ns)
            break;
        if (x->going == before) { /* what is left is pinned, being read, or in somebody's hands for a moment */
            bpi_reap_everywhere(x->s);
            nanosleep(&pause, NULL);
        }
    }
}

/*
 * 0; -EBUSY: something stays pinned, what could be given back was. Between two rounds nothing drains: who holds a page in
 * one of the slabs may be waiting for a frame himself.
 */
static int shrink(struct shrink *x, uint64_t wait_ns)
{
    const struct timespec pause = {.tv_nsec = ROUND_PAUSE_NS};
    uint64_t patience_ns = wait_ns / PATIENCE_SHARE < PATIENCE_NS ? wait_ns / PATIENCE_SHARE : PATIENCE_NS;
    uint64_t until_ns = bpi_now_ns() + wait_ns;
    uint64_t before;
    uint64_t now = x->most;

    while (now > x->target) {
        bool enough = begin_enough(x);

        before = now;
        empty_going(x, patience_ns);
        cancel_going(x);
        bpi_frames_limit(x->pool->frames, (uint64_t)x->target << BP_PAGE_SHIFT);
        now = bpi_frames_claimed(x->pool->frames);
        if (now < before)
            until_ns = bpi_now_ns() + wait_ns;
        else if (bpi_now_ns() >= until_ns)
            return -EBUSY;
        if (!enough) { /* all have been tried */
            memset(x->fate, SLAB_STAYS, x->slabs * sizeof(*x->fate));
            nanosleep(&pause, NULL);
        }
    }
    return 0;
}

int bpi_shrink(bp_pool *pool, uint32_t target, uint64_t wait_ns)
{
    const struct bp_session_options o = {.size = sizeof(o), .label = "bp_pool_resize"};
    struct shrink x = {.pool = pool,
                       .target = target,
                       .slabs = bpi_frames_slab_count(pool->frames),
                       .most = bpi_frames_claimed(pool->frames)};
    int rc = 0;

    if (bpi_frames_claimed(pool->frames) <= target)
        return 0;
    x.fate = calloc(x.slabs, sizeof(*x.fate));
    x.cost = calloc(x.slabs, sizeof(*x.cost));
    if (!x.fate || !x.cost)
        rc = -ENOMEM;
    if (!rc)
        rc = bp_session_open(pool, &o, &x.s);
    if (!rc) {
        rc = shrink(&x, wait_ns);
        if (bp_session_close(x.s)) /* it holds nothing */
            rc = rc ? rc : -EBUSY;
    }
    free(x.fate);
    free(x.cost);
    return rc;
}

/* ---- the call ---- */

/* One at a time. 0, or -EBUSY at the deadline. */
static int resize_begin(bp_pool *pool)
{
    uint64_t deadline_ns = bpi_now_ns() + pool->wait_ns;
    uint32_t none = 0;

    /* acquire: as a lock */
    while (!atomic_compare_exchange_strong_explicit(&pool->resizing, &none, 1, memory_order_acquire,
                                                    memory_order_relaxed)) {
        if (bpi_now_ns() >= deadline_ns)
            return -EBUSY;
        bpi_futex_wait(&pool->resizing, 1, deadline_ns);
        none = 0;
    }
    return 0;
}

void bpi_resize_end(bp_pool *pool)
{
    atomic_store_explicit(&pool->resizing, 0, memory_order_release);
    bpi_futex_wake(&pool->resizing, 1);
}

int bp_pool_resize(bp_pool *pool, uint64_t bytes, uint64_t *achieved)
{
    uint32_t frames;
    int rc;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    rc = resize_begin(pool);
    if (rc) {
        if (achieved)
            *achieved = atomic_load_explicit(&pool->memory, memory_order_relaxed);
        return rc;
    }
    frames = bpi_budget_frames(pool, bytes);
    if (bytes < BP_MEMORY_MIN || bytes > pool->options.memory_max || !frames) {
        rc = -EINVAL;
        goto out;
    }
    bpi_budget_set(pool, bytes, frames);
    rc = bpi_shrink(pool, frames, pool->wait_ns);
    if (rc) {
        uint64_t left = bpi_frames_claimed(pool->frames);

        frames = left > frames ? (uint32_t)left : frames;
        bytes = bpi_budget_bytes(pool, frames);
        bpi_budget_set(pool, bytes < pool->options.memory_max ? bytes : pool->options.memory_max, frames);
    }
    bpi_release_notify(pool); /* there may be more for who waits */
out:
    if (achieved)
        *achieved = atomic_load_explicit(&pool->memory, memory_order_relaxed);
    bpi_resize_end(pool);
    return rc;
}
