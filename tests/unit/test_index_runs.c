/* SPDX-License-Identifier: MIT */
/* The index: leaves that are held, and what they keep where it is (R15). */
#include "tests/unit/index_fixture.h"

static struct node_head *hold(uint64_t page)
{
    const _Atomic index_entry *slot = NULL;
    struct node_head *h = index_hold(&x, page, &slot);

    MUST(!h || atomic_load(slot) == bpi_index_load(&x, page), "the slot of page %lu", (unsigned long)page);
    return h;
}

static enum index_gone try_evict(uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    return bpi_index_evict(&x, page, order, frame, shadow);
}

TestSuite(index_runs, .init = open_index, .fini = close_index);

Test(index_runs, what_is_held_is_not_evicted)
{
    index_entry s = entry_of_shadow(1, 0, 0);
    struct node_head *h;
    struct node_head *again;

    MUST(hold(0) == NULL && hold(LAST) == NULL, "nothing is there");
    for (uint32_t i = 0; i < 200; i++)
        MUST(put(i, 0, i) == 0, "page %u", i);
    h = hold(70);
    again = hold(127);
    MUST(h && h == again && hold(200 * 64) == NULL, "one leaf, held twice");
    MUST(try_evict(70, 0, 70, s) == INDEX_HELD && try_evict(64, 0, 64, ENTRY_NONE) == INDEX_HELD, "held");
    MUST(try_evict(70, 0, 71, s) == INDEX_ABSENT && try_evict(500, 0, 1, s) == INDEX_ABSENT, "not what is there");
    MUST(try_evict(63, 0, 63, s) == INDEX_GONE && try_evict(128, 0, 128, s) == INDEX_GONE, "leaves beside it");
    MUST(!bpi_index_replace(&x, 70, 0, 70, 999) && load(70) == entry_of_frame(70), "nor led elsewhere");
    MUST(bpi_index_mark(&x, 71, INDEX_DIRTY) && try_evict(71, 0, 71, s) == INDEX_HELD &&
             bpi_index_marked(&x, 71, INDEX_DIRTY),
         "nor unmarked");
    MUST(put(300, 0, 1) == 0 && bpi_index_check(&x, NULL), "all else goes on");
    index_unhold(h);
    MUST(try_evict(70, 0, 70, s) == INDEX_HELD, "once is not twice");
    index_unhold(again);
    MUST(try_evict(70, 0, 70, s) == INDEX_GONE && try_evict(71, 0, 71, s) == INDEX_GONE &&
             !bpi_index_marked(&x, 71, INDEX_DIRTY),
         "free");
    MUST(bpi_index_replace(&x, 72, 0, 72, 999) && take(72, 0, 999), "free");
    /* a read that failed was never anybody's: it goes all the same */
    h = hold(80);
    MUST(h && take(80, 0, 80) && load(80) == ENTRY_NONE && try_evict(81, 0, 81, s) == INDEX_HELD, "erased");
    index_unhold(h);
    for (uint32_t i = 0; i < 200; i++)
        take(i, 0, i);
    MUST(take(300, 0, 1), "the last");
}

/* Extents that lie above leaves cannot be held by one; those of a leaf are held with it. */
Test(index_runs, larger_extents)
{
    struct node_head *h;

    MUST(put(0, 9, 512) == 0 && put(1024, 3, 8) == 0, "two");
    MUST(hold(5) == NULL, "above the leaves");
    h = hold(1029);
    MUST(h && try_evict(1024, 3, 8, entry_of_shadow(1, 3, 0)) == INDEX_HELD &&
             try_evict(0, 9, 512, ENTRY_NONE) == INDEX_GONE,
         "eight pages");
    index_unhold(h);
    MUST(try_evict(1024, 3, 8, ENTRY_NONE) == INDEX_GONE, "free");
}

/* The tree does not become lower under one who reads page 0; it may later. */
Test(index_runs, page_0_stays_in_its_leaf_while_that_is_held)
{
    struct node_head *h;

    MUST(put(0, 0, 1) == 0 && hold(0) == NULL, "in the root word");
    MUST(put(1, 0, 2) == 0, "in a leaf");
    h = hold(0);
    MUST(h && take(1, 0, 2) && x.node_count == 1 && load(0) == entry_of_frame(1), "it stays");
    MUST(try_evict(0, 0, 1, ENTRY_NONE) == INDEX_HELD && bpi_index_check(&x, NULL), "held");
    index_unhold(h);
    MUST(put(1, 0, 2) == 0 && take(1, 0, 2) && x.node_count == 0 && load(0) == entry_of_frame(1), "now it goes");
    MUST(take(0, 0, 1), "page 0");
    /* shadows do not matter to one who holds: they may be replaced with all their leaf */
    MUST(put(64, 0, 1) == 0 && put(0, 0, 2) == 0 && put(1, 0, 3) == 0, "two leaves");
    MUST(evict(0, 0, 2, entry_of_shadow(1, 0, 0)) && evict(1, 0, 3, entry_of_shadow(2, 0, 0)), "only shadows");
    h = hold(0);
    MUST(h && put(0, 6, 64) == 0 && load(5) == entry_of_frame(69) && bpi_index_check(&x, NULL), "replaced");
    index_unhold(h);
    MUST(take(0, 6, 64) && take(64, 0, 1), "empty");
}
