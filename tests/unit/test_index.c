/* SPDX-License-Identifier: MIT */
/*
 * The index alone, one behaviour at a time: INDEX_BEHAVIOURS.md lists them and says which test has which. Here: plain
 * entries, memory, height, extents of all orders, and readers inside nodes that are taken out. Two differences from
 * what other multi-order trees do are tested as such: nothing is ever stored over a live extent, and every page of an
 * extent reads its own frame.
 *
 * What random operations find is in model/model_index.c, what threads find in stress/stress_index*.c.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <urcu/urcu-bp.h>

#include "tests/unit/index_fixture.h"

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

/* ---- E and F: extents of all orders ---- */

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
            for (unsigned k = 0; k < 2; k++) {
                index_entry s = k ? entry_of_shadow(1, 0, 0) : ENTRY_NONE;

                MUST(i == j || !evict(0, j, ORDER_STEP, s), "order %u erased as %u", i, j);
                MUST(i == 0 || !evict(pages_of(i) - 1, 0, ORDER_STEP + (1u << i) - 1, s), "a part of order %u", i);
                MUST(!evict(0, i, ORDER_STEP + 1, s) && bpi_index_check(&x, NULL), "another frame of order %u", i);
            }
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

/* ---- no address space ---- */

#if defined(__SANITIZE_ADDRESS__)
#define LIMITS_WORK false
#elif defined(__has_feature)
#define LIMITS_WORK !__has_feature(address_sanitizer)
#else
#define LIMITS_WORK true
#endif

/* So much more than is mapped now. */
static void limit_address_space(size_t bytes)
{
    struct rlimit limit = {.rlim_max = RLIM_INFINITY};
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    cr_assert(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    limit.rlim_cur = bytes == SIZE_MAX ? RLIM_INFINITY : pages * (size_t)sysconf(_SC_PAGESIZE) + bytes;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

Test(index_memory, no_address_space, .timeout = 100)
{
    const uint32_t many = 1u << 20; /* 256 MiB of slots, 64 MiB of heads, 4 MiB of leaves */
    struct index_memory memory = {0};

    if (!LIMITS_WORK)
        cr_skip_test("a sanitizer needs all addresses for itself");
    limit_address_space(100u << 20);
    cr_assert_eq(bpi_nodes_open(&nodes, many), -ENOMEM, "no slots");
    limit_address_space(300u << 20);
    cr_assert_eq(bpi_nodes_open(&nodes, many), -ENOMEM, "no heads");
    limit_address_space(400u << 20);
    cr_assert_eq(bpi_nodes_open(&nodes, many), 0);
    limit_address_space(1u << 20);
    bpi_index_init(&x, &nodes);
    limit_address_space(SIZE_MAX);
    cr_assert(x.leaf == NULL && x.leaf_pages == 0, "no leaves; the index does without");
    memset(&magazine, 0, sizeof(magazine));
    for (uint64_t i = 0; i < 300; i++) {
        MUST(put(i, 0, (uint32_t)i) == 0 && load(i) == entry_of_frame((uint32_t)i), "page %lu", (unsigned long)i);
        MUST(index_guess(&x, i) == ENTRY_NONE && index_recall(&x, i, &memory) == entry_of_frame((uint32_t)i), "guess");
        bpi_index_prefetch(&x, i);
    }
    for (uint64_t i = 0; i < 300; i++)
        MUST(take(i, 0, (uint32_t)i), "page %lu", (unsigned long)i);
    close_index();
}
