/* SPDX-License-Identifier: MIT */
/*
 * Pages that are used on another node than they lie on: bp_migrate moves them there, by copy, since the kernel cannot
 * move what rings have registered. The caller says which and when: hits tell nobody, so that the library would learn of
 * a range's new user only by misses, and a range that is handed over whole has none.
 *
 * Frames come from the session's node. If it has none left and the budget is used up, a slab of another node leaves for
 * one here: the first time the coldest pages of the pool go for that, afterwards what has moved has made room.
 */
#include <errno.h>

#include "bufpool/pool.h"

/* Memory that can be taken anew, on this node. false: none. */
static bool make_room(bp_pool *pool)
{
    uint64_t limit = frames_limit(pool);
    uint64_t claimed = bpi_frames_claimed(pool->frames);
    uint32_t slab = bpi_frames_slab_frames(pool->frames);
    uint32_t none = 0;
    uint32_t to;
    int rc;

    if (limit <= slab || claimed + slab <= limit)
        return false; /* there is some to be had already, but not here */
    /* acquire: as the lock of bp_pool_resize, which it is */
    if (!atomic_compare_exchange_strong_explicit(&pool->resizing, &none, 1, memory_order_acquire, memory_order_relaxed))
        return false;
    limit = frames_limit(pool);
    to = (uint32_t)(limit - slab);
    bpi_frames_limit(pool->frames, (uint64_t)to << BP_PAGE_SHIFT);
    rc = bpi_shrink(pool, to, 0);
    bpi_frames_limit(pool->frames, limit << BP_PAGE_SHIFT);
    bpi_resize_end(pool);
    return rc == 0;
}

/* Frames of this node; no others. */
static bool take_here(bp_session *s, unsigned node, unsigned order, uint32_t *to)
{
    struct frames *frames = s->pool->frames;

    if (bpi_frames_alloc(frames, node, order, to))
        return false;
    if (bpi_frames_node(frames, *to) == node)
        return true;
    bpi_frame_give(s->pool, *to, order);
    return false;
}

/* Pages moved; 0: it is here already, or somebody has it. *full: there is no room here. */
static uint64_t migrate_extent(bp_session *s, bp_file *file, const struct index_item *item, unsigned node, bool *full)
{
    bp_pool *pool = s->pool;
    uint64_t seen;
    uint32_t head = frame_head(pool->frame, item->frame, &seen);
    unsigned order = frame_order(seen);
    uint32_t to;
    int rc;

    if ((seen & (FRAME_BOUND | FRAME_EXCL | FRAME_PINS)) != FRAME_BOUND ||
        frame_id(&pool->frame[head]) != (file->id | item->page) || bpi_frames_node(pool->frames, head) == node)
        return 0;
    if (!take_here(s, node, order, &to) && !(make_room(pool) && take_here(s, node, order, &to))) {
        *full = true;
        return 0;
    }
    slim_lock_take(&s->magazine_lock);
    rc = bpi_extent_move(s, head, seen, to);
    slim_lock_give(&s->magazine_lock);
    bpi_frame_give(pool, rc ? to : head, order);
    return rc ? 0 : 1ull << order;
}

int bp_migrate(bp_session *s, bp_file *file, uint64_t first, uint64_t count, uint64_t *moved)
{
    uint64_t last = count - 1 > UINT64_MAX - first ? UINT64_MAX : first + count - 1;
    struct index_item item;
    uint64_t page = first;
    uint64_t pages = 0;
    bool full = false;
    unsigned node;

    if (bpi_forked(s))
        return BP_FORKED;
    node = session_node(s);
    while (count && !full && page <= last && bpi_index_next(&file->index, page, &item) && item.page <= last) {
        pages += migrate_extent(s, file, &item, node, &full);
        page = item.page + (1ull << item.order);
    }
    bpi_magazine_flush(s); /* its baskets: what has moved can be found */
    if (moved)
        *moved = pages;
    bpi_release_notify(s->pool);
    return full ? bpi_session_fail(s, -ENOSPC, "no more frames are to be had on this session's NUMA node") : 0;
}
