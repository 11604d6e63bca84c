/* SPDX-License-Identifier: MIT */
/*
 * Two writers of the index in all orders that matter: index_play.h tells how. What readers see between any two stores
 * is in test_index_readers.c.
 */
#include "tests/unit/index_play.h"

#define S entry_of_shadow(1, 9, 0)
#define T entry_of_shadow(2, 9, 0)

TestSuite(index_interleavings, .timeout = 100);

/* ---- small parts ---- */

static void insert_as(struct actor *who, uint64_t page, unsigned order, uint32_t frame)
{
    who->page = page;
    who->result = bpi_index_insert(&x, page, order, frame, &who->m, &who->met);
}

static void erase_as(struct actor *who, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    who->page = page;
    who->result = bpi_index_erase(&x, page, order, frame, shadow);
}

static void reads(uint64_t first, uint64_t pages, index_entry e, uint64_t but)
{
    for (uint64_t p = first; p < first + pages; p++)
        MUST(p == but || load(p) == e, "page %#lx reads %#x, should read %#x", (unsigned long)p, load(p), e);
}

static bool is(uint64_t page, uint32_t frame)
{
    return load(page) == entry_of_frame(frame);
}

/* ---- the entry changes between a writer's look and its lock ---- */

static unsigned what; /* variant of a play */

static void shadow_setup(void)
{
    put_shadow(1024, 9, S);
}

static void insert_into_shadow(struct actor *who)
{
    insert_as(who, 1024 + 77, 0, 7);
}

static void change_shadow(struct actor *who)
{
    switch (what) {
    case 0: /* gone */
    case 1: /* another of its order */
        insert_as(who, 1024, 9, 512);
        erase_as(who, 1024, 9, 512, what == 1 ? T : ENTRY_NONE);
        break;
    case 2: /* a smaller one, and nothing */
        insert_as(who, 1024, 9, 512);
        erase_as(who, 1024, 9, 512, ENTRY_NONE);
        insert_as(who, 1024 + 64, 6, 512);
        erase_as(who, 1024 + 64, 6, 512, T);
        break;
    case 3: /* a larger one */
        insert_as(who, 1024, 10, 1024);
        erase_as(who, 1024, 10, 1024, T);
        break;
    case 4: /* the page itself */
        insert_as(who, 1024 + 77, 0, 3);
        break;
    case 5: /* a neighbour: the leaf is there now */
        insert_as(who, 1024 + 78, 0, 8);
        break;
    default: /* a live extent of order 6 */
        insert_as(who, 1024 + 64, 6, 64);
        break;
    }
}

static void verify_shadow_changed(bool b_first)
{
    static const int result[] = {0, 0, 0, 0, -EEXIST, 0, -EEXIST};
    uint64_t mine = 1024 + 77;

    (void)b_first;
    MUST(a.result == result[what], "variant %u: %d", what, a.result);
    switch (what) {
    case 0:
        reads(1024, 512, ENTRY_NONE, mine);
        break;
    case 1:
        reads(1024, 512, T, mine);
        break;
    case 2:
        reads(1024, 64, ENTRY_NONE, mine);
        reads(1024 + 64, 64, T, mine);
        reads(1024 + 128, 384, ENTRY_NONE, mine);
        break;
    case 3:
        reads(1024, 1024, T, mine);
        break;
    case 4:
        MUST(a.met.frame == 3 && a.met.page == mine && is(mine, 3), "the page that was faster");
        reads(1024, 512, S, mine);
        break;
    case 5:
        MUST(is(mine + 1, 8), "the neighbour");
        reads(1024, 77, S, mine);
        reads(mine + 2, 400, S, mine);
        break;
    default:
        MUST(a.met.frame == 64 + 13 && a.met.page == mine, "the extent that was faster");
        reads(1024, 64, S, mine);
        reads(1024 + 128, 384, S, mine);
    }
    MUST(a.result || is(mine, 7), "variant %u", what);
}

Test(index_interleavings, entry_changes_between_look_and_lock)
{
    for (what = 0; what <= 6; what++)
        act_out(&(struct play){"index:guessed", true, shadow_setup, insert_into_shadow, change_shadow,
                               verify_shadow_changed});
}

/* The same with a live extent that is to be split. */

static void extent_setup(void)
{
    MUST(put(4096, 12, 1u << 13) == 0, "order 12");
}

static void split_off(struct actor *who)
{
    who->result = bpi_index_split(&x, 4096 + 70, 0, &who->m);
}

static void change_extent(struct actor *who)
{
    switch (what) {
    case 0:
        erase_as(who, 4096, 12, 1u << 13, ENTRY_NONE);
        break;
    case 1:
        erase_as(who, 4096, 12, 1u << 13, S);
        break;
    case 2:
        who->result = bpi_index_replace(&x, 4096, 12, 1u << 13, 1u << 14);
        break;
    case 3:
        who->result = bpi_index_split(&x, 4096 + 70, 0, &who->m);
        break;
    case 4:
        who->result = bpi_index_split(&x, 4096 + 64, 6, &who->m);
        break;
    default:
        who->result = bpi_index_mark(&x, 4096, INDEX_DIRTY);
        break;
    }
}

static void verify_split(bool b_first)
{
    uint32_t frame = what == 2 && (b_first || b.result == 1) ? 1u << 14 : 1u << 13;
    bool gone = what < 2 && b.result == 1;

    MUST(b_first || what != 0 || a.result == 0, "A came first");
    MUST(!b_first || a.result == (what == 0 ? -ENOENT : 0), "variant %u: %d", what, a.result);
    if (b_first && gone)
        reads(4096, 4096, what == 1 ? S : ENTRY_NONE, LAST);
    for (uint64_t i = 0; i < 4096 && !gone; i++)
        MUST(is(4096 + i, frame + (uint32_t)i), "variant %u, page %lu", what, (unsigned long)i);
    if (!gone)
        MUST(bpi_index_order(&x, 4096 + 70) == 0 && bpi_index_order(&x, 4096 + 4000) == 11, "variant %u", what);
    if (!gone && what == 5)
        MUST(bpi_index_marked(&x, 4096, INDEX_DIRTY) && (!b_first || (bpi_index_marked(&x, 4096 + 70, INDEX_DIRTY) &&
                                                                      bpi_index_marked(&x, 4096 + 4000, INDEX_DIRTY))),
             "marks");
}

Test(index_interleavings, extent_changes_while_it_is_split)
{
    for (what = 0; what <= 5; what++) {
        act_out(&(struct play){"index:guessed", true, extent_setup, split_off, change_extent, verify_split});
        act_out(&(struct play){"index:link", false, extent_setup, split_off, change_extent, verify_split});
    }
}

/* ---- nodes that are linked, but not yet known to be ---- */

static void large_shadow_setup(void)
{
    put_shadow(8192, 13, S);
}

static void split_shadow(struct actor *who)
{
    who->result = bpi_index_split(&x, 8192 + 5, 0, &who->m);
}

static void insert_over_path(struct actor *who)
{
    insert_as(who, 8192, what, 1u << 14);
}

static void verify_over_path(bool b_first)
{
    (void)b_first;
    MUST(b.result == 0 && (a.result == 0 || a.result == -ERANGE), "%d %d", a.result, b.result);
    for (uint64_t i = 0; i < pages_of(what); i++)
        MUST(is(8192 + i, (1u << 14) + (uint32_t)i), "page %lu", (unsigned long)i);
    reads(8192 + pages_of(what), 8192 - pages_of(what), S, LAST);
}

Test(index_interleavings, path_is_overwritten_while_it_is_linked)
{
    /* at its level, and at the one above it */
    for (what = 0; what <= 12; what += what == 6 ? 1 : what == 7 ? 5 : 6) {
        act_out(
            &(struct play){"index:link", false, large_shadow_setup, split_shadow, insert_over_path, verify_over_path});
        act_out(
            &(struct play){"index:store", false, large_shadow_setup, split_shadow, insert_over_path, verify_over_path});
    }
}

static void page_0_shadow_setup(void)
{
    put_shadow(0, 0, S);
}

static void page_0_setup(void)
{
    MUST(put(0, 0, 5) == 0, "page 0");
}

static void grow_to_2_20(struct actor *who)
{
    insert_as(who, 1ull << 20, 0, 1);
}

static void grow_to_2_40(struct actor *who)
{
    insert_as(who, 1ull << 40, 0, 2);
}

static void insert_at_0(struct actor *who)
{
    insert_as(who, 0, what, 1u << 18);
}

static void verify_grown_over_0(bool b_first)
{
    (void)b_first;
    MUST(a.result == 0 && b.result == 0 && is(1ull << 20, 1), "%d %d", a.result, b.result);
    reads(pages_of(what), 100, ENTRY_NONE, LAST);
    MUST(is(0, 1u << 18) && is(pages_of(what) - 1, (1u << 18) + (1u << what) - 1), "order %u", what);
}

static void verify_both_grew(bool b_first)
{
    (void)b_first;
    MUST(a.result == 0 && b.result == 0 && is(1ull << 20, 1) && is(1ull << 40, 2), "%d %d", a.result, b.result);
    MUST(load(0) == S || is(0, 5), "page 0 reads %#x", load(0));
    MUST(height() == 7 && live() == 2u + is(0, 5), "height %u", height());
}

Test(index_interleavings, tops_are_overwritten_while_they_are_linked)
{
    static const unsigned orders[] = {0, 1, 6, 12, 18};

    for (unsigned i = 0; i < COUNT(orders); i++) {
        what = orders[i];
        act_out(
            &(struct play){"index:link", false, page_0_shadow_setup, grow_to_2_20, insert_at_0, verify_grown_over_0});
    }
}

Test(index_interleavings, two_growers)
{
    static const char *const place[] = {"index:store", "index:link"};
    static void (*const setup[])(void) = {page_0_setup, page_0_shadow_setup};

    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 2; k++) {
            act_out(&(struct play){place[i], false, setup[k], grow_to_2_20, grow_to_2_40, verify_both_grew});
            act_out(&(struct play){place[i], false, setup[k], grow_to_2_40, grow_to_2_20, verify_both_grew});
        }
    }
}

/* ---- mending ---- */

static void two_leaves_setup(void)
{
    MUST(put(0, 0, 1) == 0 && put(70, 0, 2) == 0 && put(1ull << 13, 0, 3) == 0, "three pages");
}

static void erase_70(struct actor *who)
{
    erase_as(who, 70, 0, 2, ENTRY_NONE);
}

/* While a leaf is empty and still in its tree. */
static void meddle(struct actor *who)
{
    struct index_item item;

    switch (what) {
    case 0:
        insert_as(who, 71, 0, 9);
        break;
    case 1:
        insert_as(who, 64, 6, 64);
        break;
    case 2:
        insert_as(who, 1ull << 30, 0, 9);
        break;
    case 3:
        erase_as(who, 0, 0, 1, ENTRY_NONE);
        erase_as(who, 1ull << 13, 0, 3, ENTRY_NONE);
        break;
    case 4: /* emptied twice: two menders */
        insert_as(who, 71, 0, 9);
        erase_as(who, 71, 0, 9, ENTRY_NONE);
        break;
    case 5: /* a tree with an empty node is right for all who look around */
        MUST(bpi_index_check(&x, NULL), "while somebody mends");
        MUST(bpi_index_next(&x, 1, &item) && item.page == 1ull << 13, "next");
        MUST(bpi_index_previous(&x, 100, &item) && item.page == 0, "previous");
        MUST(!bpi_index_find(&x, 70, &item) && bpi_index_order(&x, 70) == 0, "find");
        MUST(!bpi_index_mark(&x, 70, INDEX_DIRTY) && !bpi_index_any_marked(&x, INDEX_DIRTY), "mark");
        MUST(!bpi_index_discard(&x, 64, 127, &item), "discard");
        break;
    case 6: /* a shadow: the leaf stays, as one that holds only shadows */
        insert_as(who, 71, 0, 9);
        erase_as(who, 71, 0, 9, S);
        break;
    default: /* over everything but the far page */
        erase_as(who, 0, 0, 1, ENTRY_NONE);
        insert_as(who, 0, 12, 4096);
        break;
    }
}

static void verify_meddled(bool b_first)
{
    static const uint32_t node_count[] = {6, 5, 0, 0, 5, 5, 6, 3};

    if (!b_first)
        return;
    MUST(a.result == 1, "the erase");
    if (what == 2)
        MUST(is(1ull << 30, 9) && is(0, 1) && is(1ull << 13, 3) && load(70) == ENTRY_NONE, "grown");
    else
        MUST(x.node_count == node_count[what], "variant %u: %u nodes", what, x.node_count);
    MUST(what != 0 || (is(71, 9) && load(70) == ENTRY_NONE), "page 71 was lost");
    MUST(what != 1 || (is(64, 64) && is(127, 127)), "order 6 was lost");
    MUST(what != 6 || load(71) == S, "the shadow was lost");
    MUST(what != 7 || (is(0, 4096) && is(70, 4096 + 70)), "order 12 was lost");
    MUST(atomic_load(&nodes.shadow_only) == (what == 6), "variant %u", what);
}

Test(index_interleavings, node_is_filled_before_it_is_taken_out)
{
    for (what = 0; what <= 7; what++)
        act_out(&(struct play){"index:mend", true, two_leaves_setup, erase_70, meddle, verify_meddled});
}

static void uniform_setup(void)
{
    MUST(put(0, 0, 1) == 0, "page 0");
    for (uint64_t i = 64; i < 128; i++)
        if (i != 70)
            put_shadow(i, 0, S);
    MUST(put(70, 0, 2) == 0 && x.node_count == 3, "page 70");
}

static void evict_70(struct actor *who)
{
    erase_as(who, 70, 0, 2, S);
}

static void meddle_uniform(struct actor *who)
{
    if (what == 0)
        insert_as(who, 71, 0, 9);
    else if (what == 1)
        who->result = bpi_index_split(&x, 72, 0, &who->m);
    else if (what == 2)
        insert_as(who, 64, 5, 32);
    else if (what == 3)
        who->result = (int)bpi_index_reclaim(&x, 1);
    else
        insert_as(who, 64, 6, 64);
}

static void verify_uniform(bool b_first)
{
    MUST(a.result == 1, "evicted");
    MUST(what != 0 || is(71, 9), "page 71 was lost");
    MUST(what != 2 || (is(64, 32) && is(95, 63)), "order 5 was lost");
    MUST(what != 4 || (is(64, 64) && is(127, 127)), "order 6 was lost");
    if (what < 3)
        reads(what == 2 ? 96 : 64, what == 2 ? 32 : 64, S, 71);
    if (what == 3 && b.result)
        reads(64, 64, ENTRY_NONE, LAST);
    MUST(what == 3 || b.result == 0, "variant %u: %d", what, b.result);
    MUST(!b_first || what != 1 || x.node_count == 2, "a leaf of one shadow has become one entry above");
}

Test(index_interleavings, node_of_one_shadow_is_used_before_it_is_merged)
{
    for (what = 0; what <= 4; what++) {
        act_out(&(struct play){"index:mend", true, uniform_setup, evict_70, meddle_uniform, verify_uniform});
        act_out(&(struct play){"index:store", false, uniform_setup, evict_70, meddle_uniform, verify_uniform});
    }
}

/* ---- reclaim ---- */

static void old_shadows_setup(void)
{
    MUST(put(0, 0, 1) == 0, "page 0");
    put_shadow(70, 0, S);
    put_shadow(71, 0, T);
    put_shadow(76, 2, T);
    put_shadow(4096, 0, T);
    MUST(atomic_load(&nodes.shadow_only) == 2, "two leaves of shadows");
}

static void reclaim_one(struct actor *who)
{
    who->result = (int)bpi_index_reclaim(&x, 1);
}

static void disturb_reclaim(struct actor *who)
{
    switch (what) {
    case 0:
        insert_as(who, 72, 0, 9);
        break;
    case 1:
        insert_as(who, 64, 6, 64);
        break;
    case 2:
        reclaim_one(who);
        break;
    case 3: /* used, and full of shadows again: now the youngest */
        insert_as(who, 72, 0, 9);
        erase_as(who, 72, 0, 9, S);
        break;
    default: /* gone, and the place is a page's */
        insert_as(who, 64, 6, 64);
        erase_as(who, 64, 6, 64, ENTRY_NONE);
        insert_as(who, 70, 0, 9);
        break;
    }
}

static void verify_reclaim(bool b_first)
{
    if (!b_first)
        return;
    MUST(a.result == (what == 3), "variant %u: %d nodes dropped", what, a.result);
    MUST(what != 0 || (is(72, 9) && load(70) == S && load(71) == T), "a leaf with a page in it was dropped");
    MUST(what != 1 || is(70, 70), "order 6 was lost");
    MUST(what != 2 || (b.result == 1 && load(70) == ENTRY_NONE && load(4096) == T), "two wanted the same");
    MUST(what != 4 || is(70, 9), "page 70 was lost");
    MUST(load(4096) == T && is(0, 1), "what A had not chosen");
}

Test(index_interleavings, reclaim_finds_its_node_changed)
{
    for (what = 0; what <= 4; what++) {
        act_out(&(struct play){"index:reclaim", true, old_shadows_setup, reclaim_one, disturb_reclaim, verify_reclaim});
    }
}

/* The node is gone, and the one above it holds only shadows by now: that one is younger than what A had chosen. */

static void stacked_shadows_setup(void)
{
    MUST(put(0, 0, 1) == 0, "page 0");
    put_shadow(4096, 0, S);
    put_shadow(4096 + 64, 6, T);
    MUST(atomic_load(&nodes.shadow_only) == 1, "a leaf of shadows below another shadow");
}

static void verify_not_the_one_above(bool b_first)
{
    MUST(is(0, 1) && load(4096) == ENTRY_NONE, "the leaf");
    if (b_first)
        MUST(b.result == 1 && a.result == 0 && load(4096 + 64) == T, "the node above it was dropped");
}

Test(index_interleavings, reclaim_finds_its_node_gone)
{
    act_out(&(struct play){"index:reclaim", true, stacked_shadows_setup, reclaim_one, reclaim_one,
                           verify_not_the_one_above});
}

/* What the erase of a page and the reclaim of its neighbours have to do with each other while slots become empty. */
static void verify_reclaim_in_parts(bool b_first)
{
    (void)b_first;
    MUST(is(0, 1), "page 0");
    MUST(what != 0 || is(72, 9), "page 72 was lost");
    MUST(what != 1 || is(70, 70), "order 6 was lost");
    MUST(what != 4 || is(70, 9), "page 70 was lost");
}

Test(index_interleavings, reclaim_is_under_way)
{
    for (what = 0; what <= 4; what++) {
        act_out(&(struct play){"index:store", false, old_shadows_setup, reclaim_one, disturb_reclaim,
                               verify_reclaim_in_parts});
        act_out(&(struct play){"index:guessed", false, old_shadows_setup, reclaim_one, disturb_reclaim,
                               verify_reclaim_in_parts});
        act_out(&(struct play){"index:mend", false, old_shadows_setup, reclaim_one, disturb_reclaim,
                               verify_reclaim_in_parts});
    }
}
