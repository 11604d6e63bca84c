/* SPDX-License-Identifier: MIT */
/*
 * Extents move to other frames: so that the memory they lie in can be given back, or becomes a larger block, without
 * throwing out what is in use.
 *
 *   1  latch the old frames exclusively, from exactly the word examined: no pin, no read                T10
 *   2  copy, publish the new frames, latched as well: same identity, order, heat                        T16
 *   3  lead the index to the new ones                  (nobody finds nothing meanwhile, and R15 is asked for here)
 *   4  unbind the old: its views and hints fail from now on                                             T11
 *   5  let everybody in                                                                                 T17
 *
 * Between 2 and 4 two frames say that they are the page (R2), but nobody can get at either: whoever comes, by the index
 * or by a hint, waits for one of the two latches, and looks again when it is gone.
 */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

/* By name for the thread sanitizer: optimistic readers of what was here before may be looking (tests/tsan.supp). */
static void copy_extent(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Of the two heads the one that is not the extent's. The word before. */
static uint64_t let_go(bp_pool *pool, uint32_t head, uint64_t seen)
{
    uint64_t before;

    if (seen & FRAME_DIRTY)
        frame_forget(&pool->frame[head]);
    before = frame_unbind(&pool->frame[head]);
    if (seen & FRAME_DIRTY)
        bpi_dirty_clear(pool, head);
    return before;
}

int bpi_extent_move(bp_session *s, uint32_t head, uint64_t seen, uint32_t to)
{
    bp_pool *pool = s->pool;
    struct frame *old = &pool->frame[head];
    struct frame *new = &pool->frame[to];
    unsigned order = frame_order(seen);
    uint64_t waited;
    bp_file *file;
    uint64_t id;
    int rc = -EAGAIN;

    if ((seen & (FRAME_BOUND | FRAME_EXCL | FRAME_PINS)) != FRAME_BOUND || !frame_lock_from(old, seen))
        return -EAGAIN;
    SYNC_POINT("move:latched");
    id = frame_id(old);
    file = atomic_load_explicit(&pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);
    copy_extent(frame_data(s, to), frame_data(s, head), (size_t)BP_PAGE_SIZE << order);
    if (seen & FRAME_DIRTY)
        bpi_dirty_copy(pool, head, to);
    frame_publish_moved(new, id, seen);
    SYNC_POINT("move:published");
    if (bpi_index_replace(&file->index, id & FRAME_ID_PAGE, order, head, to)) {
        SYNC_POINT("move:replaced");
        bpi_policy_moved(&s->seat, head, to, order);
        waited = let_go(pool, head, seen); /* the new ones are dirty in their place */
        waited |= frame_move_done(new);
        counter_add(&s->count.frames_moved, 1ull << order);
        rc = 0;
    } else { /* somebody reads it in a run */
        waited = let_go(pool, to, seen);
        waited |= frame_let_be(old);
    }
    if (waited & FRAME_WAITERS) {
        bpi_frame_wake(old);
        bpi_frame_wake(new);
    }
    return rc;
}
