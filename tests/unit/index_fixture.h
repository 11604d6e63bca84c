/* SPDX-License-Identifier: MIT */
/*
 * What tests of the index share: one index over an array of nodes, entered and left in one line each; at the end
 * nothing may be left over, whatever the test did. Page numbers and frames are small; `load` is what a reader sees.
 */
#ifndef BUFPOOL_TESTS_INDEX_FIXTURE_H
#define BUFPOOL_TESTS_INDEX_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "bufpool/index.h"

#define LAST       UINT64_MAX /* the last page there can be */
#define LIMIT      100000u
#define ORDER_STEP (1u << INDEX_ORDER_MAX)
#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))

/* Criterion's own assert costs too much for loops of millions. */
#define MUST(condition, ...)                               \
    do {                                                   \
        if (!(condition))                                  \
            cr_assert(false, #condition "; " __VA_ARGS__); \
    } while (0)

static struct index_nodes nodes;
static struct index x;
static struct node_magazine magazine;
static struct index_insert met; /* by the last put */

static inline void open_with(uint32_t limit)
{
    memset(&magazine, 0, sizeof(magazine));
    cr_assert_eq(bpi_nodes_open(&nodes, limit), 0);
    bpi_index_init(&x, &nodes);
}

static inline void open_index(void)
{
    open_with(LIMIT);
}

static inline uint64_t live(void)
{
    uint64_t count;

    MUST(bpi_index_check(&x, &count), "the index is damaged");
    return count;
}

static inline void close_index(void)
{
    MUST(live() == 0, "%lu live at the end", (unsigned long)live());
    bpi_index_clear(&x);
    MUST(x.node_count == 0 && bpi_index_check(&x, NULL), "after clear");
    bpi_magazine_drain(&nodes, &magazine);
    MUST(atomic_load(&nodes.in_use) == 0 && atomic_load(&nodes.shadow_only) == 0, "nodes are lost");
    bpi_index_destroy(&x);
    bpi_nodes_close(&nodes);
}

static inline index_entry load(uint64_t page)
{
    return bpi_index_load(&x, page);
}

static inline unsigned height(void)
{
    return index_root_shift(atomic_load(&x.root)) / INDEX_SHIFT;
}

static inline const struct node_head *top(void)
{
    return &nodes.head[entry_number(index_root_entry(atomic_load(&x.root)))];
}

static inline uint64_t pages_of(unsigned order)
{
    return 1ull << order;
}

/* Insert; a conflict must leave everything as it was, to the last node. */
static inline int put(uint64_t page, unsigned order, uint32_t frame)
{
    uint64_t root = atomic_load(&x.root);
    uint32_t before = x.node_count;
    uint64_t had_live = live();
    uint32_t had;
    int rc;

    MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
    had = magazine.count;
    rc = bpi_index_insert(&x, page, order, frame, &magazine, &met);
    MUST(had - magazine.count <= INSERT_NODES, "%u nodes for one insert", had - magazine.count);
    if (rc) {
        MUST(rc == -EEXIST && bpi_index_check(&x, NULL), "insert answers %d", rc);
        MUST(atomic_load(&x.root) == root && x.node_count == before && live() == had_live && had == magazine.count,
             "a conflict changed something");
        MUST(met.shadows == 0 && met.shadow == ENTRY_NONE, "a conflict reports shadows");
    }
    return rc;
}

static inline bool take(uint64_t page, unsigned order, uint32_t frame)
{
    return bpi_index_erase(&x, page, order, frame, ENTRY_NONE);
}

static inline bool evict(uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    return bpi_index_erase(&x, page, order, frame, shadow);
}

/* A shadow without history: enter and evict. */
static inline void put_shadow(uint64_t page, unsigned order, index_entry shadow)
{
    MUST(put(page, order, 0) == 0 && evict(page, order, 0, shadow), "shadow of order %u at %#lx", order,
         (unsigned long)page);
}

static inline int split(uint64_t page, unsigned order)
{
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
    return bpi_index_split(&x, page, order, &magazine);
}

/* An extent, every page of it, and nothing beside it. */
static inline void whole_block(uint64_t page, unsigned order, uint32_t frame)
{
    MUST(put(page, order, frame) == 0 && bpi_index_check(&x, NULL), "order %u at %#lx", order, (unsigned long)page);
    for (uint64_t i = 0; i < pages_of(order); i++)
        MUST(load(page + i) == entry_of_frame(frame + (uint32_t)i), "page %lu of order %u", (unsigned long)i, order);
    MUST(load(page - 1) == ENTRY_NONE && load(page + pages_of(order)) == ENTRY_NONE, "around order %u at %#lx", order,
         (unsigned long)page);
}

/* In the way of an insert is this page with this frame. */
static inline void refused(uint64_t page, unsigned order, uint64_t conflict, uint32_t frame)
{
    MUST(put(page, order, 0) == -EEXIST, "order %u at %#lx", order, (unsigned long)page);
    MUST(met.page == conflict && met.frame == frame, "order %u at %#lx met frame %u at %#lx", order,
         (unsigned long)page, met.frame, (unsigned long)met.page);
}

#endif
