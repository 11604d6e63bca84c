/* SPDX-License-Identifier: MIT */
/*
 * Buddy: free blocks as bits. The two halves of a block are always in the same word, so that looking for a buddy costs
 * nothing.
 */
#include "numa/buddy.h"

#include <assert.h>

#define LARGEST    (1u << BUDDY_ORDER_MAX)
#define LEVELS_MIN 2u /* take_singles wants a second one */

/* ---- bitmaps ---- */

static unsigned log2_floor(uint32_t x)
{
    return 31u - (unsigned)__builtin_clz(x);
}

static void orders_write(struct buddy *buddy, uint32_t orders)
{
    atomic_store_explicit(&buddy->orders, orders, memory_order_relaxed);
}

static uint32_t orders_read(const struct buddy *buddy)
{
    return atomic_load_explicit(&buddy->orders, memory_order_relaxed);
}

/* Word `word` of the level below `level` was zero and no longer is. */
static void filled(struct buddy *buddy, unsigned order, unsigned level, uint32_t word)
{
    struct buddy_map *map = &buddy->map[order];

    for (; level < map->levels; level++) {
        uint64_t *above = &map->level[level][word >> 6];
        uint64_t old = *above;
        *above = old | 1ull << (word & 63);
        if (old)
            return;
        word >>= 6;
    }
    orders_write(buddy, orders_read(buddy) | 1u << order);
}

/* Word `word` of the level below `level` has become zero. */
static void emptied(struct buddy *buddy, unsigned order, unsigned level, uint32_t word)
{
    struct buddy_map *map = &buddy->map[order];

    for (; level < map->levels; level++) {
        uint64_t *above = &map->level[level][word >> 6];
        *above &= ~(1ull << (word & 63));
        if (*above)
            return;
        word >>= 6;
    }
    orders_write(buddy, orders_read(buddy) & ~(1u << order));
}

static bool bit_test(const struct buddy *buddy, unsigned order, uint32_t block)
{
    return buddy->map[order].level[0][block >> 6] >> (block & 63) & 1;
}

static void bit_set(struct buddy *buddy, unsigned order, uint32_t block)
{
    uint64_t *word = &buddy->map[order].level[0][block >> 6];
    uint64_t old = *word;

    *word = old | 1ull << (block & 63);
    if (!old)
        filled(buddy, order, 1, block >> 6);
}

static void bit_clear(struct buddy *buddy, unsigned order, uint32_t block)
{
    uint64_t *word = &buddy->map[order].level[0][block >> 6];

    *word &= ~(1ull << (block & 63));
    if (!*word)
        emptied(buddy, order, 1, block >> 6);
}

/* The lowest word of a level that is not zero. The order must have a free block. */
static uint32_t word_lowest(const struct buddy_map *map, unsigned level)
{
    uint32_t at = 0;

    for (unsigned above = map->levels - 1; above > level; above--)
        at = at << 6 | (uint32_t)__builtin_ctzll(map->level[above][at]);
    return at;
}

static uint32_t bit_lowest(const struct buddy *buddy, unsigned order)
{
    uint32_t word = word_lowest(&buddy->map[order], 0);

    return word << 6 | (uint32_t)__builtin_ctzll(buddy->map[order].level[0][word]);
}

/* ---- taking ---- */

/* The order of the largest block that begins with the first of count frames. */
static unsigned largest_block(uint32_t first, uint32_t count)
{
    unsigned fits = log2_floor(count);
    unsigned aligned = (unsigned)__builtin_ctz(first | LARGEST);

    return fits < aligned ? fits : aligned;
}

/* Enter a range that has nothing free to merge with: it falls into the largest aligned blocks. Does not count. */
static void enter(struct buddy *buddy, uint32_t first, uint32_t count)
{
    while (count) {
        unsigned order = largest_block(first, count);
        bit_set(buddy, order, first >> order);
        first += 1u << order;
        count -= 1u << order;
    }
}

uint32_t bpi_buddy_take(struct buddy *buddy, unsigned order)
{
    uint32_t orders = orders_read(buddy) >> order;

    if (!orders)
        return BUDDY_NONE;
    unsigned from = order + (unsigned)__builtin_ctz(orders);
    uint32_t block = bit_lowest(buddy, from);
    bit_clear(buddy, from, block);
    while (from > order) { /* keep the left half, enter the right one */
        from--;
        block <<= 1;
        bit_set(buddy, from, block | 1);
    }
    buddy->free -= 1ull << order;
    return block << order;
}

/* Up to n frames of order 0, out of the words below the lowest word of level 1: one descent for all of them. */
static unsigned take_singles(struct buddy *buddy, uint32_t first[], unsigned n)
{
    struct buddy_map *map = &buddy->map[0];
    uint32_t upper = word_lowest(map, 1);
    uint64_t words = map->level[1][upper];
    unsigned got = 0;

    do {
        uint32_t word = upper << 6 | (uint32_t)__builtin_ctzll(words);
        uint64_t bits = map->level[0][word];
        do {
            first[got++] = word << 6 | (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
        } while (bits && got < n);
        map->level[0][word] = bits;
        if (bits)
            break;
        words &= words - 1;
    } while (words && got < n);
    map->level[1][upper] = words;
    if (!words)
        emptied(buddy, 0, 2, upper);
    return got;
}

/* Crumbs first, so that whole blocks stay whole; a larger block is cut once and not halved frame by frame. */
unsigned bpi_buddy_take_many(struct buddy *buddy, uint32_t frame[], unsigned n)
{
    unsigned got = 0;
    uint32_t orders;

    while (got < n && (orders = orders_read(buddy))) {
        unsigned order = (unsigned)__builtin_ctz(orders);
        if (order == 0) {
            got += take_singles(buddy, frame + got, n - got);
            continue;
        }
        uint32_t block = bit_lowest(buddy, order);
        uint32_t first = block << order;
        uint32_t size = 1u << order;
        uint32_t use = size < n - got ? size : n - got;
        bit_clear(buddy, order, block);
        for (uint32_t i = 0; i < use; i++)
            frame[got++] = first + i;
        enter(buddy, first + use, size - use);
    }
    buddy->free -= got;
    return got;
}

/* ---- giving ---- */

/* Whether a block is free as it is or as part of a larger one. */
static bool is_free(const struct buddy *buddy, uint32_t first, unsigned order)
{
    for (; order < BUDDY_ORDERS; order++)
        if (bit_test(buddy, order, first >> order))
            return true;
    return false;
}

static void merge(struct buddy *buddy, uint32_t block, unsigned order)
{
    while (order < BUDDY_ORDER_MAX && bit_test(buddy, order, block ^ 1)) {
        bit_clear(buddy, order, block ^ 1);
        block >>= 1;
        order++;
    }
    bit_set(buddy, order, block);
}

void bpi_buddy_give(struct buddy *buddy, uint32_t first, unsigned order)
{
    assert(first >> order << order == first);
    assert(!is_free(buddy, first, order));
    buddy->free += 1ull << order;
    merge(buddy, first >> order, order);
}

/* The same for one frame, most of which merge with nothing. The caller counts. */
static inline void give_single(struct buddy *buddy, uint32_t frame)
{
    struct buddy_map *map = &buddy->map[0];
    uint64_t *word = &map->level[0][frame >> 6];
    uint64_t old = *word;

    assert(!is_free(buddy, frame, 0));
    if (old >> ((frame ^ 1) & 63) & 1) {
        merge(buddy, frame, 0);
        return;
    }
    *word = old | 1ull << (frame & 63);
    if (old)
        return;
    word = &map->level[1][frame >> 12];
    old = *word;
    *word = old | 1ull << (frame >> 6 & 63);
    if (!old)
        filled(buddy, 0, 2, frame >> 12);
}

/* Of n frames: the order of the largest block that the first of them form by following each other. */
static unsigned run_order(const uint32_t frame[], unsigned n)
{
    unsigned most = 1u << (unsigned)__builtin_ctz(frame[0] | LARGEST); /* the largest that can start here */
    unsigned run = 1;

    while (run < most && run < n && frame[run] == frame[0] + run)
        run++;
    return log2_floor(run);
}

void bpi_buddy_give_many(struct buddy *buddy, const uint32_t frame[], unsigned n)
{
    unsigned singles = 0;

    for (unsigned i = 0; i < n;) {
        if (i + 1 == n || frame[i + 1] != frame[i] + 1) {
            give_single(buddy, frame[i]);
            singles++;
            i++;
        } else {
            unsigned order = run_order(frame + i, n - i);
            bpi_buddy_give(buddy, frame[i], order);
            i += 1u << order;
        }
    }
    buddy->free += singles;
}

void bpi_buddy_add(struct buddy *buddy, uint32_t first, uint32_t count)
{
    while (count) {
        unsigned order = largest_block(first, count);
        bpi_buddy_give(buddy, first, order);
        first += 1u << order;
        count -= 1u << order;
    }
}

/* ---- ranges ---- */

/* The next free block of an order in [block, end); end if there is none. */
static uint32_t next_free(const struct buddy *buddy, unsigned order, uint32_t block, uint32_t end)
{
    while (block < end) {
        uint64_t rest = buddy->map[order].level[0][block >> 6] >> (block & 63);
        if (rest) {
            block += (uint32_t)__builtin_ctzll(rest);
            return block < end ? block : end;
        }
        block = (block | 63) + 1;
    }
    return end;
}

/* The blocks of an order that lie in count frames from first on: from *block to the end that is returned. */
static uint32_t blocks_within(uint32_t first, uint32_t count, unsigned order, uint32_t *block)
{
    *block = (first + (1u << order) - 1) >> order;
    return (first + count) >> order;
}

uint32_t bpi_buddy_count(const struct buddy *buddy, uint32_t first, uint32_t count)
{
    uint32_t sum = 0;

    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        uint32_t block, end = blocks_within(first, count, order, &block);
        while ((block = next_free(buddy, order, block, end)) < end) {
            sum += 1u << order;
            block++;
        }
    }
    return sum;
}

uint32_t bpi_buddy_take_range(struct buddy *buddy, uint32_t first, uint32_t count, uint64_t taken[])
{
    uint32_t got = 0;

    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        uint32_t block, end = blocks_within(first, count, order, &block);
        while ((block = next_free(buddy, order, block, end)) < end) {
            uint32_t from = (block << order) - first;
            bit_clear(buddy, order, block);
            for (uint32_t i = from; i < from + (1u << order); i++)
                taken[i >> 6] |= 1ull << (i & 63);
            got += 1u << order;
            block++;
        }
    }
    buddy->free -= got;
    return got;
}

/* ---- setting up ---- */

/* Words of all levels of a bitmap; with `at`, sets the bitmap up there. */
static size_t bitmap_layout(struct buddy_map *map, uint32_t bits, uint64_t *at)
{
    size_t words = 0;
    size_t level_words = bits;

    map->levels = 0;
    do {
        level_words = (level_words + 63) / 64;
        if (at)
            map->level[map->levels] = at + words;
        map->levels++;
        words += level_words;
    } while (level_words > 1 || map->levels < LEVELS_MIN);
    return words;
}

size_t bpi_buddy_layout(struct buddy *buddy, uint32_t total, uint64_t *at)
{
    size_t words = 0;

    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        uint32_t blocks = (uint32_t)(((uint64_t)total + (1u << order) - 1) >> order);
        words += bitmap_layout(&buddy->map[order], blocks, at ? at + words : NULL);
    }
    return words * sizeof(uint64_t);
}

/* ---- invariants ---- */

static bool bitmap_sound(const struct buddy *buddy, unsigned order, uint32_t end,
                         bool (*exists)(const void *ctx, uint32_t first, uint32_t count), const void *ctx,
                         uint64_t *free_frames)
{
    const struct buddy_map *map = &buddy->map[order];
    uint64_t bits_end = ((uint64_t)end + (1u << order) - 1) >> order;

    for (unsigned level = 0; level < map->levels; level++) {
        uint64_t words = (bits_end + 63) / 64;
        for (uint64_t word = 0; word < words; word++) {
            uint64_t bits = map->level[level][word];
            bool above = level + 1 < map->levels ? map->level[level + 1][word >> 6] >> (word & 63) & 1
                                                 : orders_read(buddy) >> order & 1;
            if (above != (bits != 0))
                return false;
            for (; level == 0 && bits; bits &= bits - 1) {
                uint32_t block = (uint32_t)(word << 6) | (uint32_t)__builtin_ctzll(bits);
                uint32_t first = block << order;
                bool mergeable = order < BUDDY_ORDER_MAX && bit_test(buddy, order, block ^ 1);
                if (mergeable || is_free(buddy, first, order + 1) || !exists(ctx, first, 1u << order))
                    return false;
                *free_frames += 1ull << order;
            }
        }
        bits_end = words;
    }
    return true;
}

bool bpi_buddy_sound(const struct buddy *buddy, uint32_t end,
                     bool (*exists)(const void *ctx, uint32_t first, uint32_t count), const void *ctx)
{
    uint64_t free_frames = 0;

    for (unsigned order = 0; order < BUDDY_ORDERS; order++)
        if (!bitmap_sound(buddy, order, end, exists, ctx, &free_frames))
            return false;
    return free_frames == buddy->free;
}
