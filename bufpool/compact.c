/* SPDX-License-Identifier: MIT */
/*
 * Blocks from memory in pieces: somebody wants 2^order frames in a row, and as many are free, but not together. Instead
 * of evicting what is in use the emptiest block is emptied: what lies in it moves to free frames elsewhere.
 *
 *   1  look at some blocks, and choose those with the fewest pages in which nothing is pinned, latched or being read
 *   2  take what is free of one out of the buddy, so that nobody else gets it; if a frame is neither bound nor ours
 *      now (it is in somebody's stock), try the next one
 *   3  move extent by extent; the frames that become free are ours, too
 *
 * The block goes to the one who emptied it. What became of a block that was given up in the middle is in no way worse.
 */
#include <string.h>

#include "bufpool/pool.h"

#define LOOK_BLOCKS 128u       /* looked at for the emptiest */
#define LOOK_FRAMES (1u << 16) /* and their frames, at the most: a MiB of descriptors */
#define CANDIDATES  4u
#define BLOCK_WORDS ((1u << BP_ORDER_MAX) / 64)

struct candidate {
    uint32_t from;
    uint32_t pages; /* to be moved */
};

/* A block on its way. */
struct block {
    bp_session *s;
    uint32_t from;
    uint32_t size;
    uint64_t ours[BLOCK_WORDS]; /* a bit for each frame that nobody else has */
};

static bool is_ours(const struct block *b, uint32_t f)
{
    return b->ours[(f - b->from) >> 6] >> ((f - b->from) & 63) & 1;
}

static void make_ours(struct block *b, uint32_t f, uint32_t count)
{
    for (uint32_t i = f - b->from; count--; i++)
        b->ours[i >> 6] |= 1ull << (i & 63);
}

/* ---- which block ---- */

/* Pages in a block, or UINT32_MAX: something of it has to stay, or it is part of an extent of that size or larger. */
static uint32_t pages_in(const struct frame *frame, uint32_t from, uint32_t size)
{
    uint32_t pages = 0;

    for (uint32_t f = from; f < from + size;) {
        uint64_t seen = frame_load(&frame[f]);
        uint32_t extent = frame_is_free(seen) ? 1 : 1u << frame_order(seen);

        if ((seen & (FRAME_TAIL | FRAME_EXCL | FRAME_PINS)) || extent >= size)
            return UINT32_MAX;
        if (!frame_is_free(seen))
            pages += extent;
        f += extent;
    }
    return pages;
}

/* Keep the emptiest, in order. */
static unsigned remember(struct candidate best[], unsigned n, uint32_t from, uint32_t pages)
{
    unsigned at = n < CANDIDATES ? n : CANDIDATES - 1;

    if (n == CANDIDATES && best[at].pages <= pages)
        return n;
    for (; at && best[at - 1].pages > pages; at--)
        best[at] = best[at - 1];
    best[at] = (struct candidate){.from = from, .pages = pages};
    return n < CANDIDATES ? n + 1 : n;
}

/* From where blocks were looked for last. How many candidates, the emptiest first. */
static unsigned look_around(bp_pool *pool, unsigned order, struct candidate best[])
{
    uint32_t size = 1u << order;
    uint32_t blocks = bpi_frames_high(pool->frames) >> order;
    uint32_t look = LOOK_FRAMES >> order < LOOK_BLOCKS ? LOOK_FRAMES >> order : LOOK_BLOCKS;
    uint64_t hand;
    unsigned n = 0;

    look = look < blocks ? look : blocks;
    hand = atomic_fetch_add_explicit(&pool->hand, (uint64_t)look << order, memory_order_relaxed) >> order;
    for (uint32_t i = 0; i < look; i++) {
        uint32_t from = (uint32_t)((hand + i) % blocks) << order;
        uint32_t pages = pages_in(pool->frame, from, size);

        if (pages != UINT32_MAX && !bpi_frames_draining(pool->frames, from))
            n = remember(best, n, from, pages);
    }
    return n;
}

/* ---- emptying it ---- */

/* An extent that begins at f goes. How many frames are ours by that; 0: it has to stay. */
static uint32_t move_away(struct block *b, uint32_t f)
{
    struct frames *frames = b->s->pool->frames;
    uint64_t seen = frame_load(&b->s->frame[f]);
    unsigned order = frame_order(seen);
    uint32_t to;

    if (!(seen & FRAME_BOUND) || 1u << order >= b->size ||
        bpi_frames_alloc(frames, bpi_frames_node(frames, f), order, &to))
        return 0;
    if (bpi_extent_move(b->s, f, seen, to)) {
        bpi_frame_give(b->s->pool, to, order);
        return 0;
    }
    return 1u << order;
}

static void give_up(struct block *b)
{
    uint32_t list[1u << BP_ORDER_MAX];
    unsigned n = 0;

    for (uint32_t f = b->from; f < b->from + b->size; f++)
        if (is_ours(b, f))
            list[n++] = f;
    if (n)
        bpi_frames_free_many(b->s->pool->frames, list, n);
}

/* Every frame of it is bound, so that it can be moved, or ours. Before the first move, since moves are work. */
static bool is_complete(const struct block *b)
{
    for (uint32_t f = b->from; f < b->from + b->size; f++)
        if (frame_is_free(frame_load(&b->s->frame[f])) && !is_ours(b, f))
            return false;
    return true;
}

static bool empty_block(struct block *b, unsigned order)
{
    bool all;

    bpi_frames_take_within(b->s->pool->frames, b->from, order, b->ours);
    all = is_complete(b);
    for (uint32_t f = b->from; all && f < b->from + b->size;) {
        uint32_t count = is_ours(b, f) ? 1 : move_away(b, f);

        all = count > 0;
        make_ours(b, f, count);
        f += count;
    }
    if (!all)
        give_up(b);
    return all;
}

bool bpi_compact(bp_session *s, unsigned order, uint32_t *block)
{
    struct candidate best[CANDIDATES];
    struct frames_stats fs;
    bool done = false;
    unsigned n;

    bpi_frames_stats(s->pool->frames, &fs);
    if (fs.frames_free < 1u << order)
        return false;
    n = look_around(s->pool, order, best);
    for (unsigned i = 0; i < n && !done; i++) {
        struct block b = {.s = s, .from = best[i].from, .size = 1u << order};

        SYNC_POINT("compact:chosen");
        done = empty_block(&b, order);
        *block = b.from;
    }
    return done;
}
