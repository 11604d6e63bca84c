/* SPDX-License-Identifier: MIT */
/*
 * Small pools over a sample of the pages: what would happen if the pool were in the other mode, or of another size.
 *
 * A page is in the sample if a hash of its identity is below a limit, so a pool of n pages behaves towards the sample
 * as one of n / rate pages towards everything. Small pools hold no data, 16 bytes a page; the replacement is that of
 * the pool (policy.h), written for lists in an array.
 *
 *   duel      two small pools, each for ever in one mode; who misses less decides the mode of a third
 *   what-if   for five sizes a duel of its own, and a small pool that follows its decisions
 *
 * Not thread safe: one lock around all of it, taken by whoever works off a log (policy.c).
 */
#ifndef BUFPOOL_DUEL_H
#define BUFPOOL_DUEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_BITS  24    /* of a page's hash are compared with the limit */
#define WHATIF_SIZES 5     /* 1/2, 1, 2, 4, 8 */
#define MINI_MAX     8192u /* pages of a small pool: its links have 16 bits, and there are three shadows a page */

/* One access to a page of the sample. */
struct access {
    uint32_t key;    /* of its identity: 32 bits of the hash, and 24 others that decide about the sample */
    uint32_t sample; /* SAMPLE_BITS, order << 24, ACCESS_MISSED */
};
#define ACCESS_MISSED (1u << 31)

static inline uint64_t page_hash(uint64_t id)
{
    uint64_t x = id * 0x9e3779b97f4a7c15ull;

    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}
static inline uint32_t hash_sample(uint64_t hash)
{
    return (uint32_t)(hash >> (64 - SAMPLE_BITS));
}

enum { MINI_FREE, MINI_YOUNG, MINI_MID1, MINI_MID2, MINI_MAIN, MINI_SHADOW, MINI_LISTS };

struct mini_page {
    uint32_t key;
    uint32_t stamp;
    uint16_t newer, older; /* in its list */
    uint16_t next;         /* in its bucket */
    uint8_t list;
    uint8_t heat; /* 2 bits, and the order above them */
};

struct mini_list {
    uint16_t head, tail; /* newest, oldest */
    uint32_t pages;
};

/* A pool in one mode. */
struct mini {
    struct mini_page *page;
    uint16_t *bucket;
    uint32_t buckets; /* a power of two */
    struct mini_list list[MINI_LISTS];
    uint32_t size, used, young; /* pages */
    uint32_t clock;             /* misses */
    bool recent, evicted, shadows;
};

struct duel {
    struct mini stable, recent;
    struct mini own; /* page NULL: a real pool follows */
    uint32_t n;      /* pages of each */
    uint32_t limit;  /* samples below are ours */
    bool mode;       /* RECENT */
    int32_t score;   /* misses that RECENT is ahead by */
    int32_t account; /* that the third pool is behind RECENT by */
    int32_t loss;    /* the same since STABLE began */
    uint64_t misses; /* of the third pool */
};

struct whatif {
    struct duel duel[WHATIF_SIZES];
    uint32_t limit; /* the largest of theirs */
};

/* Bytes that a duel over a small pool of n pages takes. */
size_t bpi_duel_bytes(uint32_t n, bool own);
/* For a pool of `pages`; n at the most. 0 or -ENOMEM; close in any case. */
int bpi_duel_open(struct duel *, uint64_t pages, uint32_t n, bool own);
void bpi_duel_close(struct duel *);
/* It stands for a pool of so many pages from now on; the small pools go on with what they hold. */
void bpi_duel_scale(struct duel *, uint64_t pages);
/* An access of the sample; others are passed over. ACCESS_MISSED: the third pool, if real, missed. */
void bpi_duel_feed(struct duel *, struct access);
/* Estimated hits in a million requests of a pool whose what-if duel this is. */
uint32_t bpi_duel_hits(const struct duel *, uint64_t requests);

/* One access to a small pool: whether it was there. For tests. */
bool bpi_mini_hit(struct mini *, uint32_t key, unsigned order);
int bpi_mini_open(struct mini *, uint32_t size, bool recent);
void bpi_mini_close(struct mini *);
void bpi_mini_mode(struct mini *, bool recent);

#endif
