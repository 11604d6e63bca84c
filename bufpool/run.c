/* SPDX-License-Identifier: MIT */
/*
 * One read for several extents: pages that lie side by side in the file get frames that lie side by side, and one
 * request fills them. Each is an extent of its own in the index, in its frame's word, and for whoever waits for it; only
 * the read is common. A device that gives 450 MB/s in reads of 4 KiB gives three times that in reads of 256 KiB.
 *
 * If it fails, nothing is known of any single page: all are ABANDONED, and whoever waits for one looks again (damage.h).
 */
#include <errno.h>

#include "bufpool/pool.h"

_Static_assert(READ_RUN_PAGES <= INDEX_SLOTS && READ_RUN_PAGES <= 1u << FRAMES_ORDER_MAX,
               "a run is in one leaf and one block");

/* Frames side by side. */
static int take_block(bp_session *s, unsigned n, uint32_t *first)
{
    unsigned order = n > 1 ? 32 - (unsigned)__builtin_clz(n - 1) : 0;
    int rc = bpi_frames_alloc(s->pool->frames, s->node, order, first);

    for (uint32_t i = n; !rc && i < 1u << order; i++) /* what is left over */
        bpi_frames_free(s->pool->frames, *first + i, 0);
    return rc;
}

/* Not entered: somebody may have come to them by a translation from before, and waits. */
static void abandon_rest(bp_session *s, uint32_t first, unsigned n)
{
    const struct channel *ch = s->channel;

    for (uint32_t f = first; f < first + n; f++) {
        const _Atomic uint64_t *word = &s->frame[f].state;

        atomic_store_explicit(&s->pool->cold[f].error, ABANDONED, memory_order_relaxed);
        if (frame_fail(&s->frame[f]) & FRAME_WAITERS)
            bpi_frame_wake(&s->frame[f]);
        ch->ops->announce(ch->io, &word, 1);
        bpi_unpin(s->pool, f);
        bpi_unpin(s->pool, f); /* frame_publish's */
    }
}

/* Publish, enter. How many were entered, from the first on; the others are gone. */
static unsigned enter_run(bp_session *s, bp_file *file, uint64_t page, unsigned n, uint32_t first, struct read *r)
{
    uint32_t frame[READ_RUN_PAGES];
    struct index_insert met;
    unsigned entered;

    for (unsigned i = 0; i < n; i++) {
        frame[i] = first + i;
        atomic_store_explicit(&s->pool->cold[first + i].channel, r->channel->number, memory_order_relaxed);
        atomic_store_explicit(&s->pool->cold[first + i].slot, (uint8_t)r->slot, memory_order_relaxed);
        frame_publish(&s->frame[first + i], file->id | (page + i), 0,
                      policy_sampled(s->seat.policy, file->id | (page + i)) | s->ahead_mark);
    }
    SYNC_POINT("run:published");
    entered = bpi_index_insert_run(&file->index, page, 0, frame, n, &s->nodes, &met);
    file_grew(file, entered);
    abandon_rest(s, first + entered, n - entered);
    return entered;
}

unsigned bpi_run_start(bp_session *s, bp_file *file, uint64_t page, unsigned n, uint32_t *head)
{
    unsigned room = INDEX_SLOTS - (unsigned)(page % INDEX_SLOTS);
    struct arrival a[READ_RUN_PAGES];
    struct read *r;

    n = n < room ? n : room;
    n = n < READ_RUN_PAGES ? n : READ_RUN_PAGES;
    if (file_is_damaged(file))
        n = bpi_damage_ask_run(file, page, n);
    if (n < 2 || file->order || bpi_file_reaches(file, page + n - 1) || (!s->channel && bpi_channel_assign(s)) ||
        bpi_magazine_fill(&s->pool->nodes, &s->nodes))
        return 0;
    r = bpi_reads_take(s->channel, 1);
    if (!r)
        return 0;
    r->next = NULL;
    if (take_block(s, n, head)) {
        bpi_reads_give(s->channel, r);
        return 0;
    }
    n = enter_run(s, file, page, n, *head, r);
    if (!n) {
        bpi_reads_give(s->channel, r);
        return 0;
    }
    r->frame = *head;
    r->order = 0;
    r->heads = (uint16_t)n;
    for (unsigned i = 0; i < n; i++)
        a[i] = (struct arrival){.head = *head + i, .order = 0, .shadow = ENTRY_NONE};
    bpi_read_queue(s, file, page, r, a);
    for (unsigned i = 0; i < n && !s->ahead_mark; i++)
        if (unlikely(policy_sampled(s->seat.policy, file->id | (page + i))))
            bpi_policy_log(&s->seat, *head + i, file->id | (page + i), 0, true);
    counter_add(s->ahead_mark ? &s->count.reads_ahead : &s->count.misses, n);
    return n;
}
