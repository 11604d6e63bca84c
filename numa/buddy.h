/* SPDX-License-Identifier: MIT */
/*
 * Buddy: which frames of a node are free, as blocks of 2^order frames, orders 0 to BUDDY_ORDER_MAX.
 *
 * Per order there is a bitmap of the free blocks, and above it bitmaps of its words that are not zero, 64 to 1, up to a
 * single word: the lowest block is found by one count-trailing-zeros per level.
 *
 *   orders      bit k: some block of order k is free      (one word: which order to split)
 *   level[2]    . . 1 . . . . .
 *   level[1]    . . . . . . . . . . . 1 . . .             (bit: that word of level[0] is not zero)
 *   level[0]    a bit per block of the order
 *
 * Knows nothing of memory: frames are numbers, the bitmaps lie where the owner puts them (zero pages do: what has
 * never been free is never touched). Not thread safe, but for bpi_buddy_has.
 *
 * Cost, in instructions per frame for taking and giving back 32 at once: 53 where they follow each other, about 100
 * where where they are scattered over everything.
 */
#ifndef NUMA_BUDDY_H
#define NUMA_BUDDY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUDDY_ORDER_MAX  9
#define BUDDY_ORDERS     (BUDDY_ORDER_MAX + 1)
#define BUDDY_LEVELS_MAX 5 /* 64^5 = 2^30 frames */
#define BUDDY_NONE       UINT32_MAX

struct buddy_map {
    unsigned levels;
    uint64_t *level[BUDDY_LEVELS_MAX];
};

struct buddy {
    _Atomic uint32_t orders; /* written by the owner only; relaxed */
    uint64_t free;           /* frames */
    struct buddy_map map[BUDDY_ORDERS];
};

/*
 * Lay out the bitmaps for frames below total (at most 2^30) at `at`, zeroed and aligned to 8. Bytes needed; with NULL
 * only says so.
 */
size_t bpi_buddy_layout(struct buddy *, uint32_t total, uint64_t *at);

/* Whether a block of the order is free, whole or in a larger one. A peek: any thread. */
static inline bool bpi_buddy_has(const struct buddy *buddy, unsigned order)
{
    return atomic_load_explicit(&buddy->orders, memory_order_relaxed) >> order;
}

/* The lowest of the smallest blocks that serve; BUDDY_NONE: there is none. */
uint32_t bpi_buddy_take(struct buddy *, unsigned order);
/* Up to n single frames, the smallest and lowest blocks first; ascending within a block only. How many. */
unsigned bpi_buddy_take_many(struct buddy *, uint32_t frame[], unsigned n);

/* Give back, merging. In parts or as a whole, whatever it was when it was taken; what is free already is asserted
 * against. */
void bpi_buddy_give(struct buddy *, uint32_t first, unsigned order);
/* Frames that follow each other go back as the blocks they form. */
void bpi_buddy_give_many(struct buddy *, const uint32_t frame[], unsigned n);
/* As give, for any number of frames. */
void bpi_buddy_add(struct buddy *, uint32_t first, uint32_t count);
/* Free frames among count frames from first on. What is part of a block that reaches out of them does not count. */
uint32_t bpi_buddy_count(const struct buddy *, uint32_t first, uint32_t count);
/* Take them: each one's bit in taken[] is set, bit 0 being `first`. How many. */
uint32_t bpi_buddy_take_range(struct buddy *, uint32_t first, uint32_t count, uint64_t taken[]);

/*
 * Whether levels, bits and count agree, no block is free twice or beside its buddy, and `exists` says yes to every free
 * block. Looks at frames below `end`. Slow.
 */
bool bpi_buddy_sound(const struct buddy *, uint32_t end,
                     bool (*exists)(const void *ctx, uint32_t first, uint32_t count), const void *ctx);

#endif
