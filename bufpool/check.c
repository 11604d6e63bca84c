/* SPDX-License-Identifier: MIT */
/*
 * bp_pool_check: invariants of a live pool, each looked at without stopping anybody. What moves while it is looked at
 * is looked at again or passed over; what stands still must agree.
 */
#include <errno.h>

#include "bufpool/pool.h"

/* An index entry and its frame: entered only after it was published, unbound only after it was erased. */
static int check_file(bp_pool *pool, bp_file *file, struct bp_error *error)
{
    struct index_item item;

    if (!bpi_index_check(&file->index, NULL)) {
        bpi_error_set(error, -EUCLEAN, "the index of %s is damaged", file->name);
        return -EUCLEAN;
    }
    for (uint64_t page = 0; bpi_index_next(&file->index, page, &item); page = item.page + (1ull << item.order)) {
        uint32_t head;
        uint64_t seen;

        if (item.frame >= pool->frames_total) {
            bpi_error_set(error, -EUCLEAN, "page %llu of %s leads to frame %u of %u", (unsigned long long)item.page,
                          file->name, item.frame, pool->frames_total);
            return -EUCLEAN;
        }
        head = frame_head(pool->frame, item.frame, &seen);
        if ((frame_id(&pool->frame[head]) != (file->id | item.page) || frame_order(seen) != item.order ||
             !(seen & FRAME_BOUND)) &&
            bpi_index_load(&file->index, item.page) == entry_of_frame(item.frame)) {
            bpi_error_set(error, -EUCLEAN, "page %llu of %s leads to frame %u, which holds something else",
                          (unsigned long long)item.page, file->name, item.frame);
            return -EUCLEAN;
        }
    }
    return 0;
}

/* A bound frame that stands still and that nobody latched must be what the index says of its page. */
static int check_frame(bp_pool *pool, uint32_t f, uint64_t *bound, struct bp_error *error)
{
    uint64_t seen = frame_load(&pool->frame[f]);
    uint64_t id = frame_id(&pool->frame[f]);
    bp_file *file;
    index_entry e;

    if (!(seen & FRAME_BOUND))
        return 0;
    *bound += 1u << frame_order(seen);
    if (seen & FRAME_EXCL)
        return 0;
    file = atomic_load_explicit(&pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);
    e = file ? bpi_index_load(&file->index, id & FRAME_ID_PAGE) : ENTRY_NONE;
    if (e != entry_of_frame(f) && frame_same_version(seen, frame_load(&pool->frame[f])) &&
        !(frame_load(&pool->frame[f]) & FRAME_EXCL)) {
        bpi_error_set(error, -EUCLEAN, "frame %u holds page %llu of file %llu, but the index leads elsewhere", f,
                      (unsigned long long)(id & FRAME_ID_PAGE), (unsigned long long)(id >> FRAME_ID_FILE_SHIFT));
        return -EUCLEAN;
    }
    if (!frame_is_valid(seen)) {
        bpi_error_set(error, -EUCLEAN, "frame %u is in an impossible state %#llx", f, (unsigned long long)seen);
        return -EUCLEAN;
    }
    return 0;
}

int bp_pool_check(bp_pool *pool, struct bp_error *error)
{
    struct bp_stats st = {.size = sizeof(st)};
    uint32_t high = bpi_frames_high(pool->frames);
    uint64_t bound = 0;
    int rc = 0;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (!bpi_frames_check(pool->frames)) {
        bpi_error_set(error, -EUCLEAN, "the frame allocator is damaged");
        return -EUCLEAN;
    }
    for (unsigned i = 1; i <= FRAME_FILES_MAX && !rc; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_acquire);

        if (!file)
            break;
        rc = check_file(pool, file, error);
    }
    for (uint32_t f = 0; f < high && !rc; f++)
        rc = check_frame(pool, f, &bound, error);
    if (rc)
        return rc;
    bp_pool_stats(pool, &st);
    if (st.sessions == 0 && bound + st.frames_free != st.frames_populated) { /* exact only when nobody is at work */
        bpi_error_set(error, -EUCLEAN, "%llu frames bound and %llu free are not the %llu populated",
                      (unsigned long long)bound, (unsigned long long)st.frames_free,
                      (unsigned long long)st.frames_populated);
        return -EUCLEAN;
    }
    if (!bpi_policy_check(policy_of(pool, 0), high, st.sessions == 0)) {
        bpi_error_set(error, -EUCLEAN, "the queues of replacement are damaged, or a page is in none");
        return -EUCLEAN;
    }
    return 0;
}
