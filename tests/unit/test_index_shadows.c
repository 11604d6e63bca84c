/* SPDX-License-Identifier: MIT */
/*
 * The index and its shadows: replaced and reported, split along a path, accounted for, listed and reclaimed, merged.
 * The letters are those of INDEX_BEHAVIOURS.md.
 */
#include "tests/unit/index_fixture.h"

TestSuite(index_shadows, .init = open_index, .fini = close_index, .timeout = 100);

/* ---- P and M: shadows, and their split along the path ---- */

Test(index_shadows, shadows_are_replaced_and_reported)
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

Test(index_shadows, larger_shadows_are_split_along_the_path)
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

Test(index_shadows, accounts)
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

Test(index_shadows, nodes_of_only_shadows)
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

Test(index_shadows, nothing_prepared_is_stale)
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

/* ---- merges ---- */

Test(index_shadows, equal_shadows_become_one, .timeout = 100)
{
    index_entry s = entry_of_shadow(1, 0, 0);
    index_entry t = entry_of_shadow(2, 0, 0);

    /* a leaf of one shadow becomes one slot above it; a leaf with one other does not; nor does the top */
    for (uint64_t i = 0; i < 64; i++)
        put_shadow(i, 0, s);
    MUST(x.node_count == 1 && load(63) == s && bpi_index_order(&x, 0) == 0, "the top stays: %u nodes", x.node_count);
    MUST(put(64, 0, 1) == 0 && x.node_count == 3 && take(64, 0, 1), "and is no business of those who grow");
    bpi_index_clear(&x);
    MUST(put(4096, 0, 9) == 0, "a tree");
    for (uint64_t i = 0; i < 64; i++) {
        MUST(put(i, 0, (uint32_t)i) == 0, "page %lu", (unsigned long)i);
        MUST(evict(i, 0, (uint32_t)i, i == 5 ? t : s), "page %lu", (unsigned long)i);
    }
    MUST(x.node_count == 5 && atomic_load(&nodes.shadow_only) == 1, "one is another: %u nodes", x.node_count);
    MUST(put(5, 0, 5) == 0 && evict(5, 0, 5, s), "now it is the same");
    MUST(x.node_count == 4 && bpi_index_order(&x, 5) == 6 && load(5) == s && load(64) == ENTRY_NONE, "%u nodes",
         x.node_count);
    MUST(put(7, 0, 7) == 0 && met.shadows == 1 && met.shadow == s && load(8) == s && take(7, 0, 7), "split again");
    MUST(load(7) == ENTRY_NONE && load(8) == s && take(4096, 0, 9), "a hole");
    bpi_index_clear(&x);
    /* upwards: 64 such leaves become one slot two levels up, in the moment of the last eviction */
    MUST(put(1ull << 18, 0, 9) == 0, "a tree");
    for (uint64_t i = 0; i < 4096; i++)
        MUST(put(i, 0, 1) == 0 && (i == 100 || evict(i, 0, 1, s)), "page %lu", (unsigned long)i);
    MUST(bpi_index_order(&x, 64) == 0 && bpi_index_order(&x, 200) == 6, "a leaf with a page in it");
    MUST(evict(100, 0, 1, s) && bpi_index_order(&x, 100) == 12 && load(100) == s && load(4096) == ENTRY_NONE, "all");
    MUST(x.node_count == 1 + 3 + 1 && atomic_load(&nodes.shadow_only) == 1, "%u nodes", x.node_count);
    MUST(bpi_index_check(&x, NULL) && take(1ull << 18, 0, 9), "a far page");
    /* a file that is streamed over and over leaves no more than its nodes */
    bpi_index_clear(&x);
    for (uint32_t round = 0; round < 3; round++)
        for (uint64_t i = 0; i < 4096; i += 8)
            MUST(put(i, 3, 8) == 0 && evict(i, 3, 8, entry_of_shadow(round, 0, 0)), "page %lu", (unsigned long)i);
    MUST(x.node_count == 1 && bpi_index_order(&x, 0) == 6, "%u nodes", x.node_count);
}

Test(index_shadows, memory_of_a_stream_is_bounded)
{
    /* with reclaim, as the pool does it: a share of nodes for those that hold only shadows, whatever is streamed */
    const uint32_t share = 50;

    for (uint64_t i = 0; i < 100000; i++) {
        MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
        MUST(bpi_index_insert(&x, i, 0, 1, &magazine, &met) == 0, "page %lu", (unsigned long)i);
        MUST(evict(i, 0, 1, entry_of_shadow((uint32_t)i, 0, (unsigned)i & 3)), "page %lu", (unsigned long)i);
        if (atomic_load(&nodes.shadow_only) > share)
            MUST(bpi_index_reclaim(&x, 1) == 1, "page %lu", (unsigned long)i);
        MUST(x.node_count <= share + 33, "%u nodes after page %lu", x.node_count, (unsigned long)i);
    }
    MUST(load(99999) != ENTRY_NONE && load(99999 - 64 * 40) != ENTRY_NONE && load(1) == ENTRY_NONE, "oldest first");
    MUST(bpi_index_check(&x, NULL), "after a stream");
}
