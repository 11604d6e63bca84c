/* SPDX-License-Identifier: MIT */
/*
 * The index alone, one fact at a time. The letters are those of the index's list of facts: A plain entries, B height,
 * E extents of all orders, F orders, G conflicts, M splits of shadows along a path, N accounts and reclaim, O readers,
 * P insertion, Q faults that other trees had. Two differences from what other multi-order trees do are tested as such:
 * nothing is ever stored over a live extent, and every page of an extent reads its own frame.
 *
 * What random operations find is in model/model_index.c, what threads find in stress/stress_index.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <time.h>
#include <urcu/urcu-bp.h>

#include "bufpool/index.h"

#define LAST       UINT64_MAX /* the last page there can be */
#define LIMIT      100000u
#define ORDER_STEP (1u << INDEX_ORDER_MAX)

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

static void open_with(uint32_t limit)
{
    memset(&magazine, 0, sizeof(magazine));
    cr_assert_eq(bpi_nodes_open(&nodes, limit), 0);
    bpi_index_init(&x, &nodes);
}

static void open_index(void)
{
    open_with(LIMIT);
}

static uint64_t live(void)
{
    uint64_t count;

    MUST(bpi_index_check(&x, &count), "the index is damaged");
    return count;
}

/* Nothing may be left over, whatever the test did. */
static void close_index(void)
{
    MUST(bpi_index_check(&x, NULL), "at the end");
    MUST(live() == 0, "%lu live at the end", (unsigned long)live());
    bpi_index_clear(&x);
    MUST(x.node_count == 0 && bpi_index_check(&x, NULL), "after clear");
    bpi_magazine_drain(&nodes, &magazine);
    MUST(atomic_load(&nodes.in_use) == 0 && atomic_load(&nodes.shadow_only) == 0, "nodes are lost");
    bpi_index_destroy(&x);
    bpi_nodes_close(&nodes);
}

static index_entry load(uint64_t page)
{
    return bpi_index_load(&x, page);
}

static unsigned height(void)
{
    return index_root_shift(atomic_load(&x.root)) / INDEX_SHIFT;
}

static const struct node_head *top(void)
{
    return &nodes.head[entry_number(index_root_entry(atomic_load(&x.root)))];
}

static uint64_t pages_of(unsigned order)
{
    return 1ull << order;
}

/* Insert; a conflict must leave everything as it was, to the last node. */
static int put(uint64_t page, unsigned order, uint32_t frame)
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

static bool take(uint64_t page, unsigned order, uint32_t frame)
{
    return bpi_index_erase(&x, page, order, frame, ENTRY_NONE);
}

static bool evict(uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    return bpi_index_erase(&x, page, order, frame, shadow);
}

/* A shadow without history: enter and evict. */
static void put_shadow(uint64_t page, unsigned order, index_entry shadow)
{
    MUST(put(page, order, 0) == 0 && evict(page, order, 0, shadow), "shadow of order %u at %#lx", order,
         (unsigned long)page);
}

TestSuite(index, .init = open_index, .fini = close_index, .timeout = 100);

/* ---- A: plain entries ---- */

Test(index, plain_entries)
{
    /* A1: what was entered reads itself, what was not reads nothing; then away in the same order */
    for (uint64_t i = 0; i < 1024; i++) {
        MUST(put(i, 0, (uint32_t)i + 7) == 0, "page %lu", (unsigned long)i);
        for (uint64_t k = 0; k < 1024; k++)
            MUST(load(k) == (k <= i ? entry_of_frame((uint32_t)k + 7) : ENTRY_NONE), "page %lu of %lu",
                 (unsigned long)k, (unsigned long)i);
    }
    for (uint64_t i = 0; i < 1024; i++) {
        MUST(take(i, 0, (uint32_t)i + 7), "page %lu", (unsigned long)i);
        MUST(load(i) == ENTRY_NONE && (i == 1023 || load(i + 1) == entry_of_frame((uint32_t)i + 8)), "page %lu",
             (unsigned long)i);
        /* A4: what is not there cannot be erased, and trying changes nothing */
        MUST(!take(i, 0, (uint32_t)i + 7) && bpi_index_check(&x, NULL), "page %lu", (unsigned long)i);
    }
    MUST(x.node_count == 0 && load(0) == ENTRY_NONE, "not empty");
}

static void alone(uint64_t page)
{
    MUST(put(page, 0, 99) == 0 && load(page) == entry_of_frame(99), "page %#lx", (unsigned long)page);
    MUST(load(page - 1) == ENTRY_NONE && load(page + 1) == ENTRY_NONE, "beside page %#lx", (unsigned long)page);
    MUST(load(~page) == ENTRY_NONE && bpi_index_check(&x, NULL), "page %#lx", (unsigned long)~page);
    MUST(take(page, 0, 99) && load(page) == ENTRY_NONE && x.node_count == 0, "page %#lx", (unsigned long)page);
}

Test(index, neighbours_stay_empty)
{
    /* A3: the wrapped neighbours of 0 and of the last page too */
    for (uint64_t i = 0; i < 1024; i++)
        alone(i);
    for (unsigned b = 10; b < 64; b++) {
        alone(1ull << b);
        alone((1ull << b) - 1);
    }
    alone(LAST);
    MUST(put(LAST, 0, 5) == 0 && load(0) == ENTRY_NONE && load(LAST - 1) == ENTRY_NONE, "beside the last page");
    MUST(take(LAST, 0, 5), "the last page");
}

Test(index, clear_empties)
{
    /* A8: on nothing, on shadows from 0 to 999, at the end, and of a large order; usable again each time */
    bpi_index_clear(&x);
    for (unsigned round = 0; round < 3; round++) {
        if (round == 0)
            for (uint64_t i = 0; i < 1000; i++)
                put_shadow(i, 0, entry_of_shadow((uint32_t)i, 0, 0));
        else
            put_shadow(round == 1 ? LAST : 2048, round == 1 ? 0 : 11, entry_of_shadow(1, 0, 0));
        MUST(x.node_count > 0 && live() == 0, "round %u", round);
        bpi_index_clear(&x);
        MUST(x.node_count == 0 && load(0) == ENTRY_NONE && load(2048) == ENTRY_NONE && load(LAST) == ENTRY_NONE,
             "round %u", round);
        MUST(atomic_load(&nodes.shadow_only) == 0 && bpi_index_check(&x, NULL), "round %u", round);
    }
    alone(77);
}

/* ---- memory: A2 and the magazine ---- */

Test(index_memory, limits, .timeout = 100)
{
    struct node_magazine other = {0};
    struct index_insert r;

    /* A2: a lone page 0 needs no node; without nodes a fill fails, again and again, and changes nothing */
    open_with(INSERT_NODES);
    cr_assert_eq(put(0, 0, 1), 0);
    cr_assert_eq(magazine.count, INSERT_NODES, "page 0 took a node");
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(bpi_magazine_fill(&nodes, &other), -ENOMEM);
        cr_assert_eq(other.count, 0);
        cr_assert_eq(load(0), entry_of_frame(1));
        cr_assert(bpi_index_check(&x, NULL));
    }
    /* the dearest insert there is: from a lone page 0 to the last page. All of the nodes, and not one more */
    cr_assert_eq(bpi_index_insert(&x, LAST, 0, 2, &magazine, &r), 0);
    cr_assert_eq(magazine.count, 0, "%u nodes left", magazine.count);
    cr_assert_eq(x.node_count, INSERT_NODES);
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), -ENOMEM);
    /* erasing needs no memory; what it sets free can be had, after a grace period, even where the free list has some */
    cr_assert(evict(LAST, 0, 2, entry_of_shadow(1, 0, 0)) && take(0, 0, 1));
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), -ENOMEM, "the path of the shadow is in use");
    cr_assert_eq(bpi_index_reclaim(&x, 1), 1);
    cr_assert_eq(x.node_count, 0);
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), 0);
    cr_assert_eq(bpi_index_insert(&x, LAST, 0, 3, &magazine, &r), 0);
    cr_assert_eq(x.node_count, INDEX_HEIGHT_MAX, "B1: the last page costs ceil(64/6) nodes");
    cr_assert(take(LAST, 0, 3));
    cr_assert_eq(magazine.count, INSERT_NODES - INDEX_HEIGHT_MAX);
    bpi_magazine_drain(&nodes, &magazine);
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), 0, "some free, the rest in limbo");
    cr_assert_eq(magazine.count, INSERT_NODES);

    /* inside a reader's section nobody waits for readers: an error at once, and again nothing taken */
    cr_assert_eq(bpi_index_insert(&x, 1, 0, 3, &magazine, &r), 0);
    cr_assert(take(1, 0, 3));
    urcu_bp_read_lock();
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), -ENOMEM);
    cr_assert_eq(magazine.count, INSERT_NODES - 1);
    urcu_bp_read_unlock();
    cr_assert_eq(bpi_magazine_fill(&nodes, &magazine), 0);
    close_index();

    /* many thousand nodes come and go through few */
    open_with(MAGAZINE_NODES + 2 * INDEX_HEIGHT_MAX);
    for (uint32_t i = 0; i < 5000; i++) {
        uint64_t page = (uint64_t)i * 0x9e3779b97f4a7c15ull;

        MUST(put(page, 0, i) == 0 && load(page) == entry_of_frame(i), "%u", i);
        MUST(take(page, 0, i) && x.node_count == 0, "%u", i);
    }
    close_index();
}

/* ---- B: height ---- */

static unsigned height_of(uint64_t last)
{
    unsigned h = 0;

    for (; last; last = h * INDEX_SHIFT < 64 ? last >> INDEX_SHIFT : 0)
        h++;
    return h;
}

Test(index, height_is_minimal)
{
    uint64_t root;

    /* B1 */
    MUST(put(0, 0, 1) == 0 && x.node_count == 0 && height() == 0, "page 0 alone is the root");
    MUST(take(0, 0, 1), "page 0");
    for (unsigned o = 1; o <= INDEX_ORDER_MAX; o++) {
        MUST(put(0, o, 1u << o) == 0 && x.node_count == 1 && height() == o / INDEX_SHIFT + 1, "order %u", o);
        MUST(take(0, o, 1u << o) && x.node_count == 0 && height() == 0, "order %u", o);
    }
    /* B2 */
    MUST(put(42, 0, 1) == 0 && height() == 1 && put(1000000, 0, 2) == 0 && height() == 4, "up");
    MUST(bpi_index_check(&x, NULL) && take(1000000, 0, 2) && height() == 1 && x.node_count == 1, "down");
    MUST(take(42, 0, 1) && height() == 0, "empty");
    for (uint64_t i = 0; i < 1000; i++)
        MUST(put(i, 0, (uint32_t)i) == 0 && height() == height_of(i) && bpi_index_check(&x, NULL), "%lu",
             (unsigned long)i);
    for (uint64_t i = 999; i > 0; i--)
        MUST(take(i, 0, (uint32_t)i) && height() == height_of(i - 1) && bpi_index_check(&x, NULL), "%lu",
             (unsigned long)i);
    MUST(take(0, 0, 0) && x.node_count == 0, "empty");
    /* B4: grown for the last page and shrunk again, the root is to the bit what it was; every large order at 0 */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        MUST(put(0, o, 0) == 0, "order %u", o);
        root = atomic_load(&x.root);
        MUST(load(pages_of(o) - 1) == entry_of_frame((1u << o) - 1) && load(pages_of(o)) == ENTRY_NONE, "order %u", o);
        MUST(put(LAST, 0, 9) == 0 && height() == INDEX_HEIGHT_MAX && atomic_load(&x.root) != root, "order %u", o);
        MUST(load(pages_of(o) - 1) == entry_of_frame((1u << o) - 1) && load(pages_of(o)) == ENTRY_NONE, "order %u", o);
        MUST(take(LAST, 0, 9) && atomic_load(&x.root) == root && take(0, o, 0) && x.node_count == 0, "order %u", o);
    }
    /* B5: no further than this: the sole entry of the top is beyond slot 0, or needs its level */
    MUST(put(64, 0, 1) == 0 && height() == 2 && x.node_count == 2 && take(64, 0, 1), "slot 1");
    MUST(put(0, 6, 0) == 0 && put(4096, 0, 1) == 0 && take(4096, 0, 1) && height() == 2 && x.node_count == 1,
         "order 6");
    MUST(take(0, 6, 0), "order 6");
    /* where the top's only entry is a shadow that is split, the top goes (found by the model) */
    for (unsigned o = 6; o <= INDEX_ORDER_MAX; o += INDEX_SHIFT) {
        put_shadow(0, o, entry_of_shadow(1, o, 0));
        MUST(height() == o / INDEX_SHIFT + 1 && put(5, 0, 1) == 0 && height() == o / INDEX_SHIFT, "order %u", o);
        MUST(bpi_index_check(&x, NULL) && load(4) == entry_of_shadow(1, o, 0) && take(5, 0, 1), "order %u", o);
        bpi_index_clear(&x);
    }
}

Test(index, node_count_returns)
{
    /* B7 */
    for (uint64_t i = 0; i < 128; i++)
        MUST(put(i, 0, (uint32_t)i) == 0, "%lu", (unsigned long)i);
    MUST(x.node_count == 3 && put(1ull << 40, 0, 1) == 0 && x.node_count == 3 + 5 + 6, "%u nodes", x.node_count);
    MUST(take(1ull << 40, 0, 1) && x.node_count == 3, "%u nodes", x.node_count);
    MUST(put(128, 0, 1) == 0 && x.node_count == 4, "%u nodes", x.node_count);
    for (uint64_t i = 0; i < 128; i++)
        MUST(take(i, 0, (uint32_t)i), "%lu", (unsigned long)i);
    MUST(x.node_count == 2 && load(128) == entry_of_frame(1) && take(128, 0, 1) && x.node_count == 0, "two leaves");
    /* shadows hold nodes until they are reclaimed */
    put_shadow(1ull << 40, 0, entry_of_shadow(1, 0, 0));
    MUST(x.node_count == 7 && bpi_index_reclaim(&x, 1) == 1 && x.node_count == 0, "%u nodes", x.node_count);
}

/* ---- iteration ---- */

static bool next_is(uint64_t from, uint64_t page, uint32_t frame)
{
    struct index_item i;

    if (!bpi_index_next(&x, from, &i))
        return false;
    if (i.page < from) { /* from inside an extent */
        i.frame += (uint32_t)(from - i.page);
        i.page = from;
    }
    return i.page == page && i.frame == frame;
}

static bool next_is_none(uint64_t from)
{
    struct index_item i;

    return !bpi_index_next(&x, from, &i);
}

Test(index, next)
{
    MUST(next_is_none(0) && next_is_none(LAST), "of nothing");
    /* Q12: a lone page 0, and the last page: found once, no wrap, an end */
    MUST(put(0, 0, 3) == 0 && next_is(0, 0, 3) && next_is_none(1) && next_is_none(LAST), "page 0");
    MUST(put(LAST, 0, 4) == 0 && next_is(0, 0, 3) && next_is(1, LAST, 4) && next_is(LAST, LAST, 4), "both ends");
    MUST(take(0, 0, 3) && next_is(0, LAST, 4) && take(LAST, 0, 4), "the last page");
    /* B8: everything is visited once and in order while it is erased */
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t at = 0;
        struct index_item item;

        for (uint64_t k = i; k < 2 * i + 17; k++)
            MUST(put(k, 0, (uint32_t)k) == 0, "%lu", (unsigned long)k);
        MUST(put(LAST, 0, 1) == 0 && take(LAST, 0, 1), "the last page");
        for (uint64_t k = i; k < 2 * i + 17; k++, at++) {
            MUST(bpi_index_next(&x, at, &item) && item.page == k && item.frame == k, "%lu", (unsigned long)k);
            MUST(take(item.page, 0, item.frame), "%lu", (unsigned long)k);
        }
        MUST(next_is_none(0) && x.node_count == 0, "round %lu", (unsigned long)i);
    }
    /* E7, Q13: an extent from its first page, from inside, and past it; shadows are passed over; also order 6, 12, 18
     */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = pages_of(o) * 3;
        uint32_t frame = 1u << 20;

        MUST(put(page, o, frame) == 0 && put(page + 2 * pages_of(o), 0, 5) == 0, "order %u", o);
        put_shadow(0, 0, entry_of_shadow(1, 0, 0));
        put_shadow(page + pages_of(o), o, entry_of_shadow(1, 0, 0));
        MUST(next_is(0, page, frame), "order %u", o);
        for (unsigned k = 0; k < o; k++)
            MUST(next_is(page + pages_of(k), page + pages_of(k), frame + (1u << k)), "order %u from 2^%u", o, k);
        MUST(next_is(page + pages_of(o), page + 2 * pages_of(o), 5), "order %u", o);
        MUST(next_is_none(page + 2 * pages_of(o) + 1), "order %u", o);
        MUST(take(page, o, frame) && take(page + 2 * pages_of(o), 0, 5), "order %u", o);
        bpi_index_clear(&x);
    }
}

/* ---- E and F: extents of all orders ---- */

static void whole_block(uint64_t page, unsigned order, uint32_t frame)
{
    MUST(put(page, order, frame) == 0 && bpi_index_check(&x, NULL), "order %u at %#lx", order, (unsigned long)page);
    for (uint64_t i = 0; i < pages_of(order); i++)
        MUST(load(page + i) == entry_of_frame(frame + (uint32_t)i), "page %lu of order %u", (unsigned long)i, order);
    MUST(load(page - 1) == ENTRY_NONE && load(page + pages_of(order)) == ENTRY_NONE, "around order %u at %#lx", order,
         (unsigned long)page);
}

Test(index, extents_read_their_own_frames)
{
    static const uint64_t at[] = {0, 1, 2, 5, 31, 63};

    /* E5, E8: all pages of a block, and nothing beside it, at low and at high positions up to the end of all pages */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
            uint64_t page = at[i] << o;

            whole_block(page, o, 3u << o);
            MUST(put(page + pages_of(o), 0, 1) == 0 && load(page + pages_of(o)) == entry_of_frame(1), "next block");
            MUST(load(page + pages_of(o) - 1) == entry_of_frame((4u << o) - 1), "order %u", o);
            MUST(take(page + pages_of(o), 0, 1) && put(page + pages_of(o), o, 5u << o) == 0, "order %u", o);
            MUST(load(page + pages_of(o)) == entry_of_frame(5u << o), "order %u", o);
            MUST(take(page, o, 3u << o) && load(page) == ENTRY_NONE && load(page + pages_of(o) - 1) == ENTRY_NONE &&
                     load(page + pages_of(o)) == entry_of_frame(5u << o),
                 "order %u", o);
            MUST(take(page + pages_of(o), o, 5u << o) && x.node_count == 0, "order %u", o);
        }
        for (unsigned b = o < 20 ? 20 : o; b < 64; b++) {
            uint64_t page = 1ull << b;

            MUST(put(page, o, 0) == 0 && load(page) == entry_of_frame(0), "2^%u", b);
            MUST(load(page + pages_of(o) - 1) == entry_of_frame((1u << o) - 1), "2^%u", b);
            MUST(load(page - 1) == ENTRY_NONE && load(page + pages_of(o)) == ENTRY_NONE && load(0) == ENTRY_NONE,
                 "2^%u", b);
            MUST(take(page, o, 0) && x.node_count == 0, "2^%u", b);
        }
        whole_block(LAST - (pages_of(o) - 1), o, 1u << 20);
        MUST(take(LAST - (pages_of(o) - 1), o, 1u << 20) && x.node_count == 0, "the last block");
    }
}

Test(index, order_of_every_page)
{
    MUST(bpi_index_order(&x, 0) == 0 && bpi_index_order(&x, LAST) == 0, "F1: of nothing");
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        for (uint64_t block = 0; block < 10; block++) {
            uint64_t page = block << o;
            uint64_t step = o > 9 ? 61 : 1;

            MUST(put(page, o, 0) == 0, "order %u", o);
            for (uint64_t i = 0; i < pages_of(o); i += step)
                MUST(bpi_index_order(&x, page + i) == o, "page %lu of order %u", (unsigned long)i, o);
            MUST(bpi_index_order(&x, page + pages_of(o) - 1) == o, "order %u", o);
            MUST(take(page, o, 0) && bpi_index_order(&x, page) == 0, "F3: order %u", o);
        }
    }
}

/* ---- E, G, P: nothing is stored over a live extent ---- */

static void refused(uint64_t page, unsigned order, uint64_t conflict, uint32_t frame)
{
    MUST(put(page, order, 0) == -EEXIST, "order %u at %#lx", order, (unsigned long)page);
    MUST(met.page == conflict && met.frame == frame, "order %u at %#lx met frame %u at %#lx", order,
         (unsigned long)page, met.frame, (unsigned long)met.page);
}

Test(index, live_extents_are_never_overwritten)
{
    /* E3, E4: any order over any other at 0 */
    for (unsigned i = 0; i <= INDEX_ORDER_MAX; i++) {
        for (unsigned j = 0; j <= INDEX_ORDER_MAX; j++) {
            MUST(put(0, i, ORDER_STEP) == 0, "order %u", i);
            refused(0, j, 0, ORDER_STEP);
            MUST(load(0) == entry_of_frame(ORDER_STEP) && bpi_index_order(&x, pages_of(i) - 1) == i, "%u %u", i, j);
            MUST(load(pages_of(i) - 1) == entry_of_frame(ORDER_STEP + (1u << i) - 1), "%u %u", i, j);
            /* E9: an erase of another order is none, of a page inside neither */
            MUST(i == j || !take(0, j, ORDER_STEP), "order %u erased as %u", i, j);
            MUST(i == 0 || !take(pages_of(i) - 1, 0, ORDER_STEP + (1u << i) - 1), "a part of order %u erased", i);
            MUST(!take(0, i, ORDER_STEP + 1) && bpi_index_check(&x, NULL), "another frame of order %u erased", i);
            MUST(take(0, i, ORDER_STEP) && x.node_count == 0, "order %u", i);
        }
    }
    /* G1: from any part inside, and from the block around it */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        for (uint64_t block = 0; block < 10; block++) {
            uint64_t page = block << o;

            MUST(put(page, o, 0) == 0, "order %u", o);
            for (unsigned k = 0; k < o; k++)
                refused(page + pages_of(k), k, page + pages_of(k), 1u << k);
            if (o < INDEX_ORDER_MAX)
                refused(page & ~((2ull << o) - 1), o + 1, page, 0);
            MUST(take(page, o, 0) && x.node_count == 0, "order %u", o);
        }
    }
}

Test(index, first_conflict_is_reported)
{
    /* G2 */
    MUST(put(0, 0, 10) == 0 && put(2, 1, 20) == 0 && put(8, 3, 32) == 0, "three extents");
    refused(0, 4, 0, 10);
    MUST(take(0, 0, 10), "page 0");
    refused(0, 4, 2, 20);
    refused(0, 5, 2, 20);
    refused(0, 12, 2, 20);
    MUST(take(2, 1, 20), "page 2");
    refused(0, 18, 8, 32);
    MUST(take(8, 3, 32) && x.node_count == 0, "page 8");
    /* G3: one at either side of the range and one in it; the first and the last page of a range */
    MUST(put(63, 0, 1) == 0 && put(65, 0, 2) == 0, "63 and 65");
    refused(64, 2, 65, 2);
    MUST(take(65, 0, 2) && put(64, 2, 4) == 0 && take(64, 2, 4) && take(63, 0, 1), "64");
    for (unsigned o = 1; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = pages_of(o);

        MUST(put(2 * page - 1, 0, 1) == 0, "last of order %u", o);
        refused(page, o, 2 * page - 1, 1);
        MUST(put(page, 0, 2) == 0, "first of order %u", o);
        refused(page, o, page, 2);
        MUST(take(page, 0, 2) && take(2 * page - 1, 0, 1), "order %u", o);
        MUST(put(page - 1, 0, 1) == 0 && put(2 * page, 0, 2) == 0 && put(page, o, 0) == 0, "beside order %u", o);
        MUST(take(page - 1, 0, 1) && take(2 * page, 0, 2) && take(page, o, 0) && x.node_count == 0, "order %u", o);
    }
}

/* ---- P and M: shadows, and their split along the path ---- */

Test(index, shadows_are_replaced_and_reported)
{
    index_entry old = entry_of_shadow(SHADOW_CLOCK_MASK - 5, 0, 1);
    index_entry young = entry_of_shadow(3, 0, 2); /* the clock went round in between */

    cr_assert(shadow_newer(young, old) && !shadow_newer(old, young));
    /* P1, P2: over nothing; over one of its own size; over many: how many, and the newest, wherever it stands */
    MUST(put(5, 0, 1) == 0 && met.shadows == 0 && met.shadow == ENTRY_NONE, "over nothing");
    MUST(evict(5, 0, 1, old) && load(5) == old && live() == 0, "evicted");
    MUST(put(5, 0, 2) == 0 && met.shadows == 1 && met.shadow == old && load(5) == entry_of_frame(2), "over its own");
    MUST(evict(5, 0, 2, young), "evicted");
    put_shadow(0, 0, old);
    put_shadow(64, 6, old);
    put_shadow(130, 1, old);
    MUST(put(0, 9, 512) == 0 && met.shadows == 4 && met.shadow == young, "over four: %u, %#x", met.shadows, met.shadow);
    MUST(x.node_count == 1 && atomic_load(&nodes.shadow_only) == 0 && bpi_index_check(&x, NULL), "%u nodes",
         x.node_count);
    whole_block(1024, 9, 1024);
    MUST(take(1024, 9, 1024) && take(0, 9, 512) && x.node_count == 0, "empty");
    /* a lone page 0 */
    put_shadow(0, 0, old);
    MUST(load(0) == old && x.node_count == 0 && put(0, 0, 1) == 0 && met.shadow == old && met.shadows == 1, "page 0");
    MUST(evict(0, 0, 1, old) && put(0, 3, 8) == 0 && met.shadow == old && take(0, 3, 8) && x.node_count == 0, "page 0");
    /* something live behind shadows: nothing is reported (put checks), nothing is lost */
    put_shadow(0, 0, old);
    put_shadow(1, 0, young);
    MUST(put(63, 0, 1) == 0, "page 63");
    refused(0, 6, 63, 1);
    MUST(load(0) == old && load(1) == young && take(63, 0, 1), "kept");
}

/* An insert of order n somewhere in a shadow of order o. */
static void split_once(uint64_t base, unsigned o, unsigned n, uint64_t offset)
{
    index_entry shadow = entry_of_shadow(77, o, 3);
    uint64_t page = base + (offset & ~(pages_of(n) - 1));
    uint32_t before;
    unsigned seen[INDEX_ORDER_MAX + 1] = {0};

    put_shadow(base, o, shadow);
    MUST(bpi_index_order(&x, base) == o && load(page) == shadow, "order %u", o);
    before = x.node_count;
    MUST(put(page, n, ORDER_STEP) == 0 && bpi_index_check(&x, NULL), "%u in %u", n, o);
    /* M3, but along the path: one node a level crossed, whatever the size */
    MUST(base == 0 || x.node_count == before + o / INDEX_SHIFT - n / INDEX_SHIFT, "%u in %u: %u nodes more", n, o,
         x.node_count - before);
    MUST(met.shadows == 1 && met.shadow == shadow, "%u in %u", n, o);
    /* P3, M2: all other pages read the same shadow. M9: the pieces are the halves beside the path, one of each order */
    for (uint64_t at = 0; at < pages_of(o);) {
        unsigned order = bpi_index_order(&x, base + at);
        bool ours = base + at == page;

        MUST(ours ? order == n : order >= n && order < o, "a piece of order %u", order);
        seen[order] += !ours;
        for (uint64_t i = 0; i<pages_of(order); i += order> 12 ? 509 : 1)
            MUST(load(base + at + i) == (ours ? entry_of_frame(ORDER_STEP + (uint32_t)i) : shadow), "page %lu",
                 (unsigned long)(at + i));
        at += pages_of(order);
    }
    for (unsigned k = n; k < o; k++)
        MUST(seen[k] == 1, "%u in %u: %u pieces of order %u", n, o, seen[k], k);
    MUST(load(base - 1) == ENTRY_NONE && load(base + pages_of(o)) == ENTRY_NONE, "around order %u", o);
    MUST(take(page, n, ORDER_STEP), "%u in %u", n, o);
    bpi_index_clear(&x);
}

Test(index, larger_shadows_are_split_along_the_path)
{
    /* M1, M4: every order in every larger one; over one, two and three levels */
    for (unsigned o = 1; o <= INDEX_ORDER_MAX; o++) {
        for (unsigned n = 0; n < o; n++) {
            for (unsigned where = 0; where < 3; where++) {
                uint64_t base = where == 0 ? 0 : where == 1 ? 3ull << o : LAST - (pages_of(o) - 1);

                split_once(base, o, n, 0);
                split_once(base, o, n, pages_of(o) - 1);
                split_once(base, o, n, pages_of(o) * 5 / 8);
            }
        }
    }
    /* E3: with a shadow first, the larger of the two remains where they do not overlap */
    for (unsigned i = 0; i <= INDEX_ORDER_MAX; i++) {
        for (unsigned j = 0; j <= INDEX_ORDER_MAX; j++) {
            index_entry shadow = entry_of_shadow(9, i, 0);

            put_shadow(0, i, shadow);
            MUST(put(0, j, 0) == 0, "%u over %u", j, i);
            for (unsigned k = 0; k <= INDEX_ORDER_MAX; k++)
                MUST(load(pages_of(k) - 1) == (k <= j   ? entry_of_frame((1u << k) - 1)
                                               : k <= i ? shadow
                                                        : ENTRY_NONE),
                     "%u over %u at 2^%u - 1", j, i, k);
            MUST(take(0, j, 0), "%u over %u", j, i);
            bpi_index_clear(&x);
        }
    }
    /* a former block of order 9 filled page by page: each insert meets one piece, none of them twice */
    put_shadow(512, 9, entry_of_shadow(5, 9, 0));
    for (uint32_t i = 0; i < 512; i++)
        MUST(put(512 + i, 0, i) == 0 && met.shadows == 1 && bpi_index_check(&x, NULL), "page %u", i);
    for (uint32_t i = 0; i < 512; i++)
        MUST(load(512 + i) == entry_of_frame(i) && take(512 + i, 0, i), "page %u", i);
    MUST(x.node_count == 0, "empty");
}

/* ---- N: accounts, the list, reclaim ---- */

Test(index, accounts)
{
    index_entry s = entry_of_shadow(1, 0, 0);

    /* E1: an order-1 shadow counts its two slots; a page beside it; a larger extent absorbs what is a shadow */
    put_shadow(0, 1, s);
    MUST(top()->used == 2 && top()->shadows == 2 && top()->listed && load(2) == ENTRY_NONE, "order 1");
    MUST(put(3, 0, 1) == 0 && top()->used == 3 && top()->shadows == 2 && !top()->listed, "page 3");
    MUST(evict(3, 0, 1, s) && top()->used == 3 && top()->shadows == 3 && top()->listed, "page 3 evicted");
    MUST(put(0, 2, 4) == 0 && top()->used == 4 && top()->shadows == 0 && met.shadows == 2, "order 2");
    MUST(take(0, 2, 4) && x.node_count == 0, "order 2");
    /* N1: an extent and a shadow of the same order share a node: exactly half of the slots are shadows */
    for (unsigned o = 1; o <= 11; o++) {
        unsigned slots = 1u << (o % INDEX_SHIFT);

        MUST(put(0, o, 0) == 0, "order %u", o);
        put_shadow(pages_of(o), o, s);
        MUST(top()->used == 2 * slots && top()->shadows == slots, "order %u: %u, %u", o, top()->used, top()->shadows);
        MUST(put(pages_of(o), o, 1u << o) == 0 && top()->shadows == 0 && top()->used == 2 * slots, "order %u", o);
        MUST(take(pages_of(o), o, 1u << o) && top()->used == slots && take(0, o, 0), "order %u", o);
    }
    /* E11, Q17: a smaller insert in a shadow is accounted for slot by slot */
    put_shadow(0, 5, s);
    MUST(put(9, 0, 1) == 0 && top()->used == 32 && top()->shadows == 31 && take(9, 0, 1), "order 0 in order 5");
    MUST(top()->used == 31 && top()->shadows == 31 && top()->listed && load(9) == ENTRY_NONE, "a hole in a shadow");
    MUST(bpi_index_reclaim(&x, 9) == 1 && x.node_count == 0, "reclaimed");
}

Test(index, nodes_of_only_shadows)
{
    static const uint64_t at[] = {0, 64, 4096};
    index_entry s = entry_of_shadow(1, 0, 0);

    /* N3 */
    for (unsigned i = 0; i < 3; i++) {
        uint64_t page = at[i];

        put_shadow(page, 0, s);
        put_shadow(page + 1, 0, s);
        MUST(atomic_load(&nodes.shadow_only) == 1, "two shadows at %lu", (unsigned long)page);
        MUST(put(page + 2, 0, 1) == 0 && atomic_load(&nodes.shadow_only) == 0, "a page beside them");
        MUST(bpi_index_reclaim(&x, 10) == 0 && load(page) == s, "nothing to reclaim");
        MUST(evict(page + 2, 0, 1, s) && atomic_load(&nodes.shadow_only) == 1, "evicted");
        MUST(bpi_index_reclaim(&x, 10) == 1 && x.node_count == 0 && load(page) == ENTRY_NONE, "reclaimed");
        MUST(atomic_load(&nodes.shadow_only) == 0 && bpi_index_check(&x, NULL), "nothing is listed");
    }
    /* oldest first, by the time at which they became so */
    for (uint64_t i = 0; i < 10; i++)
        put_shadow(i << 12, 0, s);
    MUST(put(5, 0, 1) == 0 && evict(5, 0, 1, s), "the first becomes the last");
    for (uint64_t i = 1; i <= 10; i++) {
        uint64_t page = (i % 10) << 12;

        MUST(load(page) == s && bpi_index_reclaim(&x, 1) == 1 && load(page) == ENTRY_NONE, "%lu", (unsigned long)page);
        MUST(bpi_index_check(&x, NULL), "%lu", (unsigned long)page);
    }
    MUST(x.node_count == 0 && bpi_index_reclaim(&x, 1) == 0, "all gone");
    /* N5: the pieces of a split: when the page has gone too, leaf and what is above it go one after the other */
    put_shadow(1ull << 12, 12, s);
    MUST(put(4096 + 5, 0, 1) == 0 && x.node_count == 3 && atomic_load(&nodes.shadow_only) == 0, "%u nodes",
         x.node_count);
    MUST(evict(4096 + 5, 0, 1, entry_of_shadow(2, 0, 0)) && atomic_load(&nodes.shadow_only) == 1, "the leaf");
    MUST(bpi_index_reclaim(&x, 1) == 1 && load(4096 + 5) == ENTRY_NONE && load(4096 + 64) == s, "the leaf");
    MUST(x.node_count == 2 && atomic_load(&nodes.shadow_only) == 1 && bpi_index_reclaim(&x, 9) == 1, "above it");
    MUST(x.node_count == 0 && load(4096 + 64) == ENTRY_NONE, "all gone");
    /* N4: a listed node that an extent replaces, or that clear drops, leaves the list (check walks it) */
    for (uint64_t i = 0; i < 64; i++)
        put_shadow(i << 6, 0, s);
    MUST(atomic_load(&nodes.shadow_only) == 64 && put(0, 12, 0) == 0 && atomic_load(&nodes.shadow_only) == 0,
         "order 12");
    MUST(met.shadows == 64 && bpi_index_check(&x, NULL) && take(0, 12, 0) && x.node_count == 0, "order 12");
}

/* ---- Q: what goes on between the filling of the magazine and the insert ---- */

Test(index, nothing_prepared_is_stale)
{
    index_entry s = entry_of_shadow(1, 9, 0);
    index_entry t = entry_of_shadow(2, 9, 0);
    struct node_magazine mine = {0};

    /* Q1, Q2: a shadow of order 9, nodes for its split at hand; another writer (a) erases it, (b) replaces it by
     * another of its order, (c) by a smaller one, (d) by a larger one, (e) by a page; then the insert comes */
    for (unsigned what = 0; what < 5; what++) {
        index_entry want = what == 0 || what == 2 ? ENTRY_NONE : what == 4 ? s : t;
        struct index_insert r;
        int rc;

        put_shadow(1024, 9, s);
        MUST(bpi_magazine_fill(&nodes, &mine) == 0, "no nodes");
        if (what == 4)
            MUST(put(1024 + 77, 0, 3) == 0, "a page");
        else if (what == 3)
            put_shadow(1024, 10, t);
        else
            MUST(put(1024, 9, 512) == 0 && evict(1024, 9, 512, what == 1 ? t : ENTRY_NONE), "what %u", what);
        if (what == 2)
            put_shadow(1024 + 64, 6, t);
        rc = bpi_index_insert(&x, 1024 + 77, 0, 7, &mine, &r);
        MUST(rc == (what == 4 ? -EEXIST : 0), "what %u: %d", what, rc);
        MUST(what != 4 || (r.frame == 3 && r.page == 1024 + 77), "what %u", what);
        for (uint64_t i = 0; i < 512; i++) {
            index_entry e = what == 2 && i >= 64 && i < 128 ? t : want;

            MUST(load(1024 + i) == (i == 77 ? entry_of_frame(what == 4 ? 3 : 7) : e), "what %u, page %lu", what,
                 (unsigned long)i);
        }
        /* top, middle and leaf from page 1024 up; nothing leaked */
        MUST(x.node_count == 2 && bpi_index_check(&x, NULL), "what %u: %u nodes", what, x.node_count);
        MUST(take(1024 + 77, 0, what == 4 ? 3 : 7), "what %u", what);
        bpi_index_clear(&x);
        MUST(x.node_count == 0, "what %u", what);
    }
    bpi_magazine_drain(&nodes, &mine);
}

/* ---- O: readers inside nodes that are taken out ---- */

static _Atomic int fill_result; /* 1: not back yet */

static void *fill_thread(void *m)
{
    atomic_store(&fill_result, bpi_magazine_fill(&nodes, m));
    return NULL;
}

Test(index_memory, readers_keep_their_past, .timeout = 100)
{
    index_entry shadow = entry_of_shadow(4, 0, 0);
    struct index_insert r;
    pthread_t thread;
    uint64_t root;
    uint32_t node;

    open_with(INSERT_NODES + 1);
    cr_assert_eq(put(0, 0, 1), 0);
    cr_assert_eq(put(1, 0, 2), 0);
    cr_assert_eq(put(2, 0, 3), 0);
    cr_assert_eq(magazine.count, INSERT_NODES);
    cr_assert(evict(2, 0, 3, shadow));
    urcu_bp_read_lock();
    root = atomic_load(&x.root);
    node = entry_number(index_root_entry(root));
    /* B3: the height goes back to 0; who is inside the old top still sees page 0, and so do newcomers */
    cr_assert_eq(bpi_index_insert(&x, 2, 0, 4, &magazine, &r), 0);
    cr_assert_eq(r.shadow, shadow);
    cr_assert(take(2, 0, 4) && take(1, 0, 2));
    cr_assert_eq(x.node_count, 0);
    cr_assert_eq(height(), 0);
    cr_assert_eq(load(0), entry_of_frame(1));
    cr_assert_eq(load(1), ENTRY_NONE);
    cr_assert_eq(index_down(x.map, index_root_slots(root), 0, 0), entry_of_frame(1));
    cr_assert_eq(bpi_index_insert(&x, 1, 0, 5, &magazine, &r), 0);
    cr_assert_neq(entry_number(index_root_entry(atomic_load(&x.root))), node);
    cr_assert_eq(magazine.count, INSERT_NODES - 1);
    /* the one node in limbo is all that could be had: it is not, while this section lasts */
    atomic_store(&fill_result, 1);
    cr_assert_eq(pthread_create(&thread, NULL, fill_thread, &magazine), 0);
    for (int i = 0; i < 20; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        cr_assert_eq(atomic_load(&fill_result), 1, "the node was given away under a reader");
        cr_assert_eq(index_down(x.map, index_root_slots(root), 0, 0), entry_of_frame(1));
    }
    urcu_bp_read_unlock();
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(atomic_load(&fill_result), 0);
    cr_assert_eq(magazine.node[magazine.count - 1], node, "it is the only one there was");
    for (unsigned i = 0; i < INDEX_SLOTS; i++)
        cr_assert_eq(atomic_load(&nodes.slot[node][i]), ENTRY_NONE, "nodes are handed out blank");
    cr_assert(take(0, 0, 1) && take(1, 0, 5));
    close_index();
}

Test(index_memory, split_is_complete_before_it_is_seen, .timeout = 100)
{
    index_entry shadow = entry_of_shadow(4, 12, 0);
    index_entry old;

    /* M8: a reader that took the shadow's slot before the split, and one after it, read the same shadow */
    open_index();
    MUST(put(1ull << 18, 0, 1) == 0, "height 4");
    put_shadow(4096, 12, shadow);
    urcu_bp_read_lock();
    old = load(4096 + 100);
    MUST(put(4096 + 99, 0, 2) == 0 && old == shadow && load(4096 + 100) == shadow, "page 100");
    MUST(load(4096 + 99) == entry_of_frame(2) && load(4096 + 98) == shadow && load(8191) == shadow, "page 99");
    urcu_bp_read_unlock();
    MUST(take(4096 + 99, 0, 2) && take(1ull << 18, 0, 1), "empty");
    close_index();
}
