/* SPDX-License-Identifier: MIT */
/*
 * Pages that are all in memory: the set-up that the hit cases share.
 *
 * A sparse file is read into a pool that is a little larger, page by page in ascending order. Then each page's first
 * words are written, in memory only: word 0 is the number of the page that follows in one random cycle through all of
 * them, word 1 the hint of that page. The same content lies in
 *
 *   the array       huge pages, page i at base + i * 4096. This is the pool's own memory where its frames came out in
 *                   that order (they do), so that nothing but the access differs; else a copy
 *   small           a mapping on 4 KiB pages, page i at small + i * 4096, and a word of state for each page: the
 *                   technique of a page table in hardware, as vmcache has it (Leis et al., "Virtual-Memory Assisted
 *                   Buffer Management", SIGMOD 2023)
 *   next, hint      side arrays, for those who cannot find these in the page
 */
#ifndef TESTS_BENCH_RESIDENT_H
#define TESTS_BENCH_RESIDENT_H

#include <stdatomic.h>

#include "bench.h"

struct resident {
    const struct bench *bench;
    bp_pool *pool;
    bp_file *file;
    int fd; /* the same file through the page cache */
    uint64_t pages;
    char *base; /* the array */
    char *copy; /* its memory where it is not the pool's, else NULL */
    uint32_t *next;
    struct bp_hint *hint;
    _Atomic uint64_t *state; /* NULL where no variant wants it */
    char *small;
    const char *no_pread; /* why; NULL: the file is in the page cache */
    uint64_t misses;      /* of the pool, when the set-up was over */
};

extern const struct bench_fixture bench_resident;

/* ---- also for other fixtures ---- */

/* Memory of a pool for this many bytes of pages and all that belongs to them. */
uint64_t bench_pool_memory(uint64_t bytes);
/* 0, or -1 after bench_error(). */
int bench_pool_open(const struct bench *, uint64_t memory, enum bp_choice huge, bp_pool **);
/*
 * Open `bytes` of a sparse file in a pool, which may be NULL, and on fd (buffered), which may be NULL; the file goes
 * when both are closed. 0, or -1 after bench_error().
 */
int bench_sparse_open(const struct bench *, uint64_t bytes, bp_pool *, uint32_t extent_bytes, bp_file **, int *fd);
/*
 * Make all pages present, in ascending order. *in_order: page i lies at data(page 0) + i * 4096. 0, or -1 after
 * bench_error().
 */
int bench_fill(const struct bench *, bp_session *, bp_file *, uint64_t pages, const char **first, bool *in_order);
/* Make all pages as hot as they get: from then on their readers write nothing. 0, or -1 after bench_error(). */
int bench_heat(bp_session *, bp_file *, uint64_t pages);
int bench_misses(bp_pool *, uint64_t *misses);
/* Close what is not NULL; complains. */
void bench_pool_close(bp_pool *);

/* ---- a page table in hardware ---- */

/*
 * State word: what the page is in the top byte (0: free to use, up to 252 readers, 253: locked, 254: marked, 255:
 * evicted), a version below.
 */
#define TABLE_SHIFT      56
#define TABLE_READER     (1ull << TABLE_SHIFT)
#define TABLE_SHARED_MAX 252u

/* Read a word of a page optimistically; false: it moved, again. */
static inline bool table_read(const struct resident *r, uint64_t page, uint64_t *word)
{
    uint64_t seen = atomic_load_explicit(&r->state[page], memory_order_acquire);

    if (unlikely(seen >> TABLE_SHIFT > TABLE_SHARED_MAX))
        return false;
    *word = bench_word(r->small + (page << BP_PAGE_SHIFT));
    atomic_thread_fence(memory_order_acquire);
    /* the versions; readers that came or went do not matter */
    return (atomic_load_explicit(&r->state[page], memory_order_relaxed) ^ seen) << 8 == 0;
}

/* Pin a page shared; false: again. */
static inline bool table_pin(const struct resident *r, uint64_t page)
{
    uint64_t seen = atomic_load_explicit(&r->state[page], memory_order_relaxed);

    return likely(seen >> TABLE_SHIFT < TABLE_SHARED_MAX) &&
           atomic_compare_exchange_strong_explicit(&r->state[page], &seen, seen + TABLE_READER, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void table_unpin(const struct resident *r, uint64_t page)
{
    atomic_fetch_sub_explicit(&r->state[page], TABLE_READER, memory_order_release);
}

#endif
