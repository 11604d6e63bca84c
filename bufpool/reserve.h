/* SPDX-License-Identifier: MIT */
/* Arrays that can grow to their limit and cost only what is touched: descriptors, index nodes, leaves. */
#ifndef BUFPOOL_RESERVE_H
#define BUFPOOL_RESERVE_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * Zeroed memory, or NULL. On huge pages from huge_from bytes on (SIZE_MAX: never): nested page tables make TLB misses
 * dear, but a huge page is more than a small pool's whole array. Not inherited by a forked child (R11). Free with
 * munmap.
 */
static inline void *reserve_array(size_t bytes, size_t huge_from)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    if (bytes >= huge_from)
        madvise(at, bytes, MADV_HUGEPAGE);
    madvise(at, bytes, MADV_DONTFORK);
    return at;
}

/*
 * Zeroed memory that shares no cache line with anything else, nor the neighbour that processors fetch with it: for what
 * one thread writes with every miss. NULL: none. Free with free.
 */
#define LINES_APART 128u
static inline void *lines_alloc(size_t count, size_t size)
{
    size_t bytes = (count * size + LINES_APART - 1) / LINES_APART * LINES_APART;
    void *at = aligned_alloc(LINES_APART, bytes);

    if (at)
        memset(at, 0, bytes);
    return at;
}

#endif
