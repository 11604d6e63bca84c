/* SPDX-License-Identifier: MIT */
/*
 * More plays of two writers (index_play.h): marks, discards and runs that meet others, and writers and readers that
 * come by a leaf that has become something else.
 */
#include "tests/unit/index_play.h"

#define S entry_of_shadow(1, 0, 0)
#define T entry_of_shadow(2, 0, 0)

TestSuite(index_meetings, .timeout = 100);

static unsigned what; /* variant of a play */

static void insert_as(struct actor *who, uint64_t page, unsigned order, uint32_t frame)
{
    who->result = bpi_index_insert(&x, page, order, frame, &who->m, &who->met);
}

static void erase_as(struct actor *who, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    who->result = bpi_index_erase(&x, page, order, frame, shadow);
}

static bool is(uint64_t page, uint32_t frame)
{
    return load(page) == entry_of_frame(frame);
}

static bool dirty(uint64_t page)
{
    return bpi_index_marked(&x, page, INDEX_DIRTY);
}

/* ---- marks ---- */

static void page_0_setup(void)
{
    MUST(put(0, 0, 5) == 0, "page 0");
    MUST(what != 1 || bpi_index_mark(&x, 0, INDEX_DIRTY), "mark");
}

static void leaf_setup(void)
{
    MUST(put(0, 0, 5) == 0 && put(9, 0, 6) == 0, "a leaf");
    MUST(what != 1 || bpi_index_mark(&x, 0, INDEX_DIRTY), "mark");
}

static void grow_far(struct actor *who)
{
    insert_as(who, 1ull << 30, 0, 1);
}

static void change_mark_of_0(struct actor *who)
{
    who->result = what == 1 ? bpi_index_unmark(&x, 0, INDEX_DIRTY) : bpi_index_mark(&x, 0, INDEX_DIRTY);
}

static void verify_mark_of_0(bool b_first)
{
    (void)b_first;
    MUST(a.result + b.result == 1 && is(1ull << 30, 1), "%d %d", a.result, b.result);
    MUST(dirty(0) == (what == 0) && bpi_index_any_marked(&x, INDEX_DIRTY) == (what == 0), "variant %u", what);
    MUST(!dirty(9) && !dirty(1ull << 30), "variant %u", what);
}

Test(index_meetings, growing_and_marking)
{
    static void (*const setup[])(void) = {page_0_setup, leaf_setup};

    for (what = 0; what < 2; what++) {
        for (unsigned i = 0; i < 2; i++) {
            act_out(&(struct play){"index:store", false, setup[i], grow_far, change_mark_of_0, verify_mark_of_0});
            act_out(&(struct play){"index:link", false, setup[i], grow_far, change_mark_of_0, verify_mark_of_0});
        }
        act_out(&(struct play){"index:mark", true, leaf_setup, change_mark_of_0, grow_far, verify_mark_of_0});
        act_out(&(struct play){"index:marking", false, leaf_setup, change_mark_of_0, grow_far, verify_mark_of_0});
    }
}

/* Between a marker's look and its way down from the top. */

static void extent_setup(void)
{
    MUST(put(4096, 12, 4096) == 0 && put(0, 0, 1) == 0, "two extents");
}

static void mark_4100(struct actor *who)
{
    who->result = bpi_index_mark(&x, 4100, INDEX_DIRTY);
}

static void change_4096(struct actor *who)
{
    switch (what) {
    case 0:
        erase_as(who, 4096, 12, 4096, ENTRY_NONE);
        break;
    case 1:
        erase_as(who, 4096, 12, 4096, S);
        break;
    case 2:
        who->result = bpi_index_split(&x, 4100, 0, &who->m);
        break;
    case 3:
        who->result = bpi_index_replace(&x, 4096, 12, 4096, 8192);
        break;
    case 4:
        who->result = bpi_index_mark(&x, 4096, INDEX_DIRTY);
        break;
    default: /* all that is left is a lone page 0: the path is another */
        erase_as(who, 4096, 12, 4096, ENTRY_NONE);
        erase_as(who, 0, 0, 1, ENTRY_NONE);
        insert_as(who, 4096, 6, 64);
        break;
    }
}

static void verify_4096(bool b_first)
{
    (void)b_first;
    MUST(a.result == (what >= 2) && dirty(4100) == (what >= 2), "variant %u: %d", what, a.result);
    MUST(bpi_index_any_marked(&x, INDEX_DIRTY) == (what >= 2) && !dirty(0), "variant %u", what);
    MUST(what != 2 || (!dirty(4101) && !dirty(5000)), "only the piece that has the page");
    MUST((what != 3 && what != 4) || dirty(5000), "variant %u", what);
    MUST(what != 5 || (dirty(4096) && is(4100, 68)), "the extent that is there now");
}

Test(index_meetings, what_is_marked_changes_before_it_is)
{
    for (what = 0; what <= 5; what++)
        act_out(&(struct play){"index:mark", true, extent_setup, mark_4100, change_4096, verify_4096});
}

/* Between an erase's look at marks and its way down from the top. */

static void marked_setup(void)
{
    MUST(put(70, 0, 1) == 0 && put(71, 0, 2) == 0 && bpi_index_mark(&x, 70, INDEX_WRITEBACK), "marked");
}

static void evict_70(struct actor *who)
{
    erase_as(who, 70, 0, 1, S);
}

static void change_70(struct actor *who)
{
    switch (what) {
    case 0:
        who->result = bpi_index_unmark(&x, 70, INDEX_WRITEBACK);
        break;
    case 1:
        who->result = bpi_index_mark(&x, 70, INDEX_DIRTY);
        break;
    case 2:
        erase_as(who, 70, 0, 1, T);
        break;
    case 3:
        who->result = bpi_index_replace(&x, 70, 0, 1, 9);
        break;
    case 4:
        erase_as(who, 70, 0, 1, ENTRY_NONE);
        erase_as(who, 71, 0, 2, ENTRY_NONE);
        insert_as(who, 0, 12, 4096);
        break;
    default:
        insert_as(who, 1ull << 30, 0, 3);
        break;
    }
}

static void verify_70(bool b_first)
{
    (void)b_first;
    MUST(a.result == (what < 2 || what == 5), "variant %u: %d", what, a.result);
    if (a.result)
        MUST(load(70) == S && is(71, 2), "variant %u", what);
    MUST(what != 2 || load(70) == T, "erased by another");
    MUST(what != 3 || is(70, 9), "moved");
    MUST(what != 4 || (is(70, 4096 + 70) && is(0, 4096)), "replaced by a larger one");
    MUST(bpi_index_any_marked(&x, INDEX_WRITEBACK) == (what == 3) && !bpi_index_any_marked(&x, INDEX_DIRTY),
         "variant %u: marks", what);
}

Test(index_meetings, what_is_marked_changes_before_it_is_erased)
{
    for (what = 0; what <= 5; what++)
        act_out(&(struct play){"index:erase_marked", true, marked_setup, evict_70, change_70, verify_70});
}

/* A marked page 0 that is alone when its turn comes: its marks are the root's by then. */

static void marked_0_setup(void)
{
    MUST(put(0, 0, 5) == 0 && put(4096, 0, 2) == 0 && bpi_index_mark(&x, 0, INDEX_DIRTY), "marked");
}

static void evict_0(struct actor *who)
{
    erase_as(who, 0, 0, 5, what ? S : ENTRY_NONE);
}

static void erase_4096(struct actor *who)
{
    erase_as(who, 4096, 0, 2, ENTRY_NONE);
}

static void verify_0_gone(bool b_first)
{
    (void)b_first;
    MUST(a.result == 1 && b.result == 1 && load(0) == (what ? S : ENTRY_NONE) && height() == 0, "page 0");
    MUST(put(0, 0, 6) == 0 && !dirty(0) && !bpi_index_any_marked(&x, INDEX_DIRTY), "who comes next has no mark");
}

Test(index_meetings, marked_page_0_is_alone_when_it_is_erased)
{
    for (what = 0; what < 2; what++)
        act_out(&(struct play){"index:erase_marked", true, marked_0_setup, evict_0, erase_4096, verify_0_gone});
}

/* Copying marks. */

static void two_dirty_setup(void)
{
    MUST(put(70, 0, 1) == 0 && put(4096, 0, 2) == 0, "two pages");
    MUST(bpi_index_mark(&x, 70, INDEX_DIRTY) && bpi_index_mark(&x, 4096, INDEX_DIRTY), "both dirty");
}

static void copy_marks(struct actor *who)
{
    uint64_t next;

    who->result = (int)bpi_index_mark_those(&x, 0, LAST, INDEX_DIRTY, INDEX_TO_WRITE, 10, &next);
    MUST(next == LAST, "all are done");
}

static void next_dirty(struct actor *who)
{
    who->result = bpi_index_next_marked(&x, 0, INDEX_DIRTY, &who->item);
}

static void change_first_dirty(struct actor *who)
{
    switch (what) {
    case 0: /* another page is in its place, and clean */
        erase_as(who, 70, 0, 1, ENTRY_NONE);
        insert_as(who, 70, 0, 9);
        break;
    case 1:
        who->result = bpi_index_unmark(&x, 70, INDEX_DIRTY);
        break;
    case 2:
        erase_as(who, 70, 0, 1, ENTRY_NONE);
        break;
    default: /* the tree is a lone page 0 for a moment */
        erase_as(who, 70, 0, 1, ENTRY_NONE);
        erase_as(who, 4096, 0, 2, ENTRY_NONE);
        insert_as(who, 0, 0, 5);
        insert_as(who, 4096, 0, 7);
        who->result = bpi_index_mark(&x, 4096, INDEX_DIRTY);
        break;
    }
}

static void verify_copied(bool b_first)
{
    bool first = !bpi_index_marked(&x, 70, INDEX_DIRTY);

    (void)b_first;
    MUST(first, "the first is not dirty any more");
    MUST(bpi_index_marked(&x, 4096, INDEX_TO_WRITE) || what == 3, "the second was dirty all the time");
    if (what == 0 || what == 2)
        MUST(!bpi_index_marked(&x, 70, INDEX_TO_WRITE), "a clean page is to be written");
    MUST(a.result >= 1 || what == 3, "%d", a.result);
}

static void verify_next_dirty(bool b_first)
{
    (void)b_first;
    MUST(a.result, "something was dirty all the time");
    MUST(a.item.page == 4096 || (a.item.page == 70 && a.item.frame == 1), "page %lu", (unsigned long)a.item.page);
}

Test(index_meetings, first_of_two_marked_goes)
{
    for (what = 0; what <= 3; what++) {
        act_out(
            &(struct play){"index:mark_those", true, two_dirty_setup, copy_marks, change_first_dirty, verify_copied});
        if (what < 3)
            act_out(&(struct play){"index:next_marked", true, two_dirty_setup, next_dirty, change_first_dirty,
                                   verify_next_dirty});
    }
}

static void dirty_0_and_4096_setup(void)
{
    MUST(put(0, 0, 5) == 0 && put(4096, 0, 2) == 0, "two pages");
    MUST(bpi_index_mark(&x, 0, INDEX_DIRTY) && bpi_index_mark(&x, 4096, INDEX_DIRTY), "both dirty");
}

static void erase_0(struct actor *who)
{
    erase_as(who, 0, 0, 5, ENTRY_NONE);
}

static void verify_any_dirty(bool b_first)
{
    (void)b_first;
    MUST(a.result && (a.item.page == 0 || a.item.page == 4096), "page 4096 was dirty all the time");
}

Test(index_meetings, marked_page_0_goes_while_it_is_looked_for)
{
    act_out(&(struct play){"index:next_marked", true, dirty_0_and_4096_setup, next_dirty, erase_0, verify_any_dirty});
    place_is_rare = true; /* one look is enough now, and no guess is made */
    act_out(&(struct play){"index:guessed", true, dirty_0_and_4096_setup, next_dirty, erase_0, verify_any_dirty});
    place_is_rare = false;
}

static void lone_dirty_setup(void)
{
    MUST(put(0, 0, 5) == 0 && bpi_index_mark(&x, 0, INDEX_DIRTY), "page 0");
}

static void another_page_0(struct actor *who)
{
    erase_as(who, 0, 0, 5, ENTRY_NONE);
    insert_as(who, 0, 0, 6);
}

static void verify_page_0_is_clean(bool b_first)
{
    (void)b_first;
    MUST(is(0, 6) && !bpi_index_any_marked(&x, INDEX_TO_WRITE) && a.result == 0, "a clean page is to be written");
}

Test(index_meetings, lone_marked_page_0_is_another)
{
    act_out(
        &(struct play){"index:mark_those", true, lone_dirty_setup, copy_marks, another_page_0, verify_page_0_is_clean});
}

static void dirty_page_0_setup(void)
{
    MUST(put(0, 0, 5) == 0 && bpi_index_mark(&x, 0, INDEX_DIRTY), "page 0 is dirty");
    MUST(what == 0 || put(4096, 0, 2) == 0, "a tree");
}

/* Page 0 stays, and stays dirty, while a tree grows above it and goes. */
static void change_height(struct actor *who)
{
    if (what == 0)
        insert_as(who, 1ull << 30, 0, 2);
    else
        erase_as(who, 4096, 0, 2, ENTRY_NONE);
}

static void found_page_0(const struct actor *who)
{
    MUST(who->result == 1 && who->item.page == 0 && who->item.frame == 5 && dirty(0), "page 0 was dirty all the time");
}

static void a_found_page_0(bool b_first)
{
    (void)b_first;
    found_page_0(&a);
}

static void b_found_page_0(bool b_first)
{
    (void)b_first;
    found_page_0(&b);
}

Test(index_meetings, marked_page_0_is_always_found)
{
    for (what = 0; what < 2; what++) {
        act_out(
            &(struct play){"index:next_marked", true, dirty_page_0_setup, next_dirty, change_height, a_found_page_0});
        act_out(&(struct play){"index:store", false, dirty_page_0_setup, change_height, next_dirty, b_found_page_0});
    }
}

/* ---- looking around while the tree becomes lower and higher ---- */

static void near_and_far_setup(void)
{
    MUST(put(10, 0, 1) == 0 && put(5000, 0, 2) == 0, "two pages");
}

static void last_of_all(struct actor *who)
{
    who->result = bpi_index_previous(&x, LAST, &who->item);
}

static void first_from_11(struct actor *who)
{
    who->result = bpi_index_next(&x, 11, &who->item);
}

static void change_far(struct actor *who)
{
    if (what != 1)
        erase_as(who, 5000, 0, 2, ENTRY_NONE);
    if (what == 2)
        insert_as(who, 0, 0, 4);
    if (what != 0)
        insert_as(who, 1ull << 30, 0, 3);
}

static void verify_last(bool b_first)
{
    (void)b_first;
    MUST(a.result, "page 10 was there all the time");
    MUST(a.item.page == 10 || (what == 1 && a.item.page == 5000) || (what != 0 && a.item.page == 1ull << 30),
         "variant %u: page %lu", what, (unsigned long)a.item.page);
}

static void verify_first(bool b_first)
{
    (void)b_first;
    MUST(a.result == (what != 0) || (a.result && a.item.page == 5000), "variant %u: %d", what, a.result);
    MUST(!a.result || a.item.page == 5000 || (what == 2 && a.item.page == 1ull << 30), "variant %u: page %lu", what,
         (unsigned long)a.item.page);
}

Test(index_meetings, height_changes_while_somebody_looks)
{
    for (what = 0; what <= 2; what++) {
        act_out(&(struct play){"index:guessed", true, near_and_far_setup, last_of_all, change_far, verify_last});
        act_out(&(struct play){"index:guessed", true, near_and_far_setup, first_from_11, change_far, verify_first});
    }
}

/* ---- discard ---- */

static void shadows_setup(void)
{
    put_shadow(6, 0, S);
    put_shadow(7, 0, S);
    put_shadow(70, 0, S);
    put_shadow(4100, 0, S);
    put_shadow(1ull << 20, 6, T);
}

static void discard_all(struct actor *who)
{
    who->result = bpi_index_discard(&x, 0, (1ull << 20) + 62, &who->item);
}

static void insert_among_them(struct actor *who)
{
    static const uint64_t page[] = {5, 6, 7, 69, 70, 100, 4100, 5000};

    insert_as(who, page[what], 0, 9);
    who->page = page[what];
}

static void verify_discarded(bool b_first)
{
    uint64_t gone = a.result ? b.page : 1ull << 20;

    MUST(b.result == 0 && is(b.page, 9), "page %lu was lost", (unsigned long)b.page);
    MUST(!a.result || (a.item.page == b.page && a.item.frame == 9 && a.item.order == 0), "met page %lu",
         (unsigned long)a.item.page);
    MUST(b_first || !b_first, "any order");
    for (unsigned i = 0; i < 4; i++) {
        static const uint64_t page[] = {6, 7, 70, 4100};

        MUST(page[i] == b.page || load(page[i]) == (page[i] < gone ? ENTRY_NONE : S), "page %lu reads %#x",
             (unsigned long)page[i], load(page[i]));
    }
    MUST(load(1ull << 20) == T && load((1ull << 20) + 63) == T, "a shadow that reaches beyond the range stays");
}

Test(index_meetings, something_live_comes_while_shadows_are_discarded)
{
    for (what = 0; what < 8; what++) {
        act_out(&(struct play){"index:guessed", true, shadows_setup, discard_all, insert_among_them, verify_discarded});
        act_out(&(struct play){"index:store", false, shadows_setup, discard_all, insert_among_them, verify_discarded});
        act_out(&(struct play){"index:mend", true, shadows_setup, discard_all, insert_among_them, verify_discarded});
    }
}

/* ---- runs ---- */

static void run_setup(void)
{
    MUST(put(40, 0, 1) == 0, "a leaf");
    put_shadow(64, 6, S);
}

static void run_over_seam(struct actor *who)
{
    uint32_t frame[90];

    for (uint32_t i = 0; i < 90; i++)
        frame[i] = 1000 + i;
    who->result = (int)bpi_index_insert_run(&x, 60, 0, frame, 90, &who->m, &who->met);
}

static void insert_into_run(struct actor *who)
{
    static const uint64_t page[] = {60, 63, 64, 66, 127, 128, 149};

    who->page = page[what];
    insert_as(who, page[what], 0, 9);
}

static void verify_run(bool b_first)
{
    uint32_t done = (uint32_t)a.result;

    MUST(b.result == 0 || b.result == -EEXIST, "%d", b.result);
    MUST(b_first ? b.result == 0 || b.met.frame == 940 + b.page : true, "conflict with frame %u", b.met.frame);
    if (b.result == 0)
        MUST(is(b.page, 9) && done == b.page - 60 && a.met.frame == 9 && a.met.page == b.page,
             "the run ends before what was faster: %u", done);
    else
        MUST(done == 90 && a.met.frame == UINT32_MAX && is(b.page, 940 + (uint32_t)b.page), "all of the run: %u", done);
    for (uint32_t i = 0; i < done; i++)
        MUST(is(60 + i, 1000 + i), "page %u", 60 + i);
    for (uint64_t p = 60 + done + 1; p < 160; p++)
        MUST(load(p) == (p >= 64 && p < 128 ? S : ENTRY_NONE), "page %lu", (unsigned long)p);
    MUST(live() == 1 + done + (b.result == 0), "%lu live", (unsigned long)live());
}

Test(index_meetings, something_comes_into_a_run)
{
    for (what = 0; what < 7; what++) {
        act_out(&(struct play){"index:guessed", true, run_setup, run_over_seam, insert_into_run, verify_run});
        act_out(&(struct play){"index:link", false, run_setup, run_over_seam, insert_into_run, verify_run});
    }
}

/* ---- a leaf that was remembered, or guessed, becomes something else ---- */

static struct index other; /* a second one over the same nodes */
static uint32_t leaf_of_70;

/* The node is in limbo, or free: it becomes the next that will be taken, or the one after so many others. */
static void bring(struct actor *who, uint32_t node, unsigned after)
{
    static struct node_magazine hoard[LIMIT / INSERT_NODES / 8];
    uint32_t limit = nodes.limit;
    uint32_t had = nodes.free_count;
    unsigned n = 0;
    unsigned at = 0;

    nodes.limit = nodes.fresh - 1 + (had < INSERT_NODES ? INSERT_NODES - had - 1 : 0);
    who->m.count = 0;
    memset(hoard, 0, sizeof(hoard));
    for (;;) { /* a fill that finds too little waits for the grace period of what is in limbo */
        MUST(bpi_magazine_fill(&nodes, &who->m) == 0, "no nodes");
        for (at = 0; at < who->m.count && who->m.node[at] != node; at++)
            ;
        if (at < who->m.count)
            break;
        hoard[n++] = who->m;
        who->m.count = 0;
        nodes.limit = nodes.fresh - 1 + (nodes.free_count < INSERT_NODES ? INSERT_NODES - nodes.free_count - 1 : 0);
        MUST(n < COUNT(hoard), "the node is nowhere");
    }
    who->m.node[at] = who->m.node[who->m.count - 1 - after];
    who->m.node[who->m.count - 1 - after] = node;
    nodes.limit = limit;
    while (n)
        bpi_magazine_drain(&nodes, &hoard[--n]);
}

static bool without_array; /* of leaves: writers come by a walk, then */

/* The leaf of a page, by a walk. */
static uint32_t leaf_over(uint64_t page)
{
    uint64_t root = atomic_load(&x.root);
    index_entry e = index_root_entry(root);

    for (unsigned shift = index_root_shift(root); (shift -= INDEX_SHIFT) > 0;)
        e = index_down(x.map, index_slots(e), page, shift);
    MUST(entry_is_node(e), "no leaf over page %lu", (unsigned long)page);
    return entry_number(e);
}

static void two_leaves_setup(void)
{
    if (without_array) {
        bpi_index_destroy(&x);
        x.leaf = NULL;
        x.leaf_pages = 0;
    }
    MUST(put(70, 0, 170) == 0 && put(200, 0, 300) == 0, "two leaves");
    leaf_of_70 = leaf_over(70);
    bpi_magazine_drain(&nodes, &magazine);
}

/* The leaf of page 70 goes, and its node becomes what the variant says. Frames are their page plus 100. */
static void reuse_leaf(struct actor *who)
{
    bpi_magazine_drain(&nodes, &who->m);
    erase_as(who, 70, 0, 170, ENTRY_NONE);
    MUST(who->result == 1, "page 70");
    bring(who, leaf_of_70, what == 2);
    switch (what) {
    case 0: /* a leaf at the same place */
        insert_as(who, 72, 0, 172);
        MUST(leaf_over(72) == leaf_of_70, "the same node");
        break;
    case 1: /* a leaf elsewhere */
        insert_as(who, 300, 0, 400);
        MUST(leaf_over(300) == leaf_of_70, "the same node");
        break;
    case 2: /* the leaf of that place in another index, below its top */
    case 3: /* that index's top */
        MUST(bpi_index_insert(&other, 72, 0, 999, &who->m, &who->met) == 0, "another index");
        break;
    default: /* above leaves, and over the place */
        insert_as(who, 1ull << 30, 0, 100);
        break;
    }
    MUST(atomic_load(&nodes.head[leaf_of_70].owner) == (what == 2 || what == 3 ? &other : &x), "whose the node is");
    MUST(nodes.head[leaf_of_70].shift == 0 || what >= 3, "it is a leaf");
}

static void insert_71(struct actor *who)
{
    insert_as(who, 71, 0, 171);
}

static void evict_70_as_170(struct actor *who)
{
    erase_as(who, 70, 0, 170, S);
}

static void mark_70(struct actor *who)
{
    who->result = bpi_index_mark(&x, 70, INDEX_DIRTY);
}

static void verify_others(void)
{
    MUST(is(200, 300) && load(70) == ENTRY_NONE, "pages 70 and 200");
    MUST(what != 0 || is(72, 172), "page 72");
    MUST(what != 1 || is(300, 400), "page 300");
    MUST((what != 2 && what != 3) || bpi_index_load(&other, 72) == entry_of_frame(999), "page 72 of the other");
    MUST(what != 4 || is(1ull << 30, 100), "a far page");
    MUST(bpi_index_check(&other, NULL), "the other index");
    if (what == 2 || what == 3)
        MUST(bpi_index_erase(&other, 72, 0, 999, ENTRY_NONE) && other.node_count == 0, "page 72 of the other");
}

static void verify_inserted(bool b_first)
{
    (void)b_first;
    MUST(a.result == 0 && is(71, 171), "page 71");
    verify_others();
}

static void verify_refused(bool b_first)
{
    (void)b_first;
    MUST(a.result == 0 && !bpi_index_any_marked(&x, INDEX_DIRTY), "page 70 is not there any more");
    verify_others();
}

static void with_another_leaf(void)
{
    static void (*const run[])(struct actor *) = {insert_71, evict_70_as_170, mark_70};

    for (what = 0; what <= 4; what++) {
        for (unsigned i = 0; i < 3; i++) {
            struct play p = {"index:guessed", true,       two_leaves_setup,
                             run[i],          reuse_leaf, i == 0 ? verify_inserted : verify_refused};

            act_out_with(&p, &other, 1);
        }
    }
}

Test(index_meetings, leaf_is_another_when_a_writer_gets_its_lock)
{
    with_another_leaf();
    without_array = true;
    with_another_leaf();
    without_array = false;
}

/* A node above leaves that was guessed is a leaf over the same page by now: too low for what goes in. */

static uint32_t middle;

static void middle_setup(void)
{
    MUST(put(4096 + 64, 6, 64) == 0 && put(0, 0, 1) == 0 && put(8192, 0, 2) == 0, "a node above leaves");
    middle = entry_number(index_down(x.map, index_root_slots(atomic_load(&x.root)), 4096, 12));
    bpi_magazine_drain(&nodes, &magazine);
}

static void insert_order_6(struct actor *who)
{
    insert_as(who, 4096 + 128, 6, 128);
}

static void middle_becomes_leaf(struct actor *who)
{
    bpi_magazine_drain(&nodes, &who->m);
    erase_as(who, 4096 + 64, 6, 64, ENTRY_NONE);
    bring(who, middle, 1);
    insert_as(who, 4096 + 130, 0, 9);
    MUST(leaf_over(4096 + 130) == middle, "the same node");
}

static void verify_too_low(bool b_first)
{
    (void)b_first;
    MUST(a.result == -EEXIST && a.met.frame == 9 && a.met.page == 4096 + 130 && is(4096 + 130, 9), "%d", a.result);
}

Test(index_meetings, node_is_lower_when_a_writer_gets_its_lock)
{
    act_out(&(struct play){"index:guessed", true, middle_setup, insert_order_6, middle_becomes_leaf, verify_too_low});
}

/* A page's own frame, or one that the frame itself says no to, or none at all. */
static bool confirmed(index_entry e, uint64_t page)
{
    return entry_is_frame(e) && entry_number(e) == page + 100;
}

Test(index_meetings, remembered_leaf_becomes_something_else, .timeout = 100)
{
    for (what = 0; what <= 4; what++) {
        struct index_memory memory = {0};
        struct index_memory nothing = {0};

        open_index();
        bpi_index_init(&other, &nodes);
        two_leaves_setup();
        MUST(index_recall(&x, 70, &memory) == entry_of_frame(170) && entry_number(memory.leaf) == leaf_of_70, "met");
        MUST(index_recall(&x, 72, &memory) == ENTRY_NONE && confirmed(index_recall(&x, 70, &memory), 70), "recalled");
        MUST(put(71, 0, 171) == 0 && index_recall(&x, 71, &memory) == entry_of_frame(171), "it shows what comes");
        MUST(take(71, 0, 171) && index_recall(&x, 71, &memory) == ENTRY_NONE, "and what goes");
        MUST(take(70, 0, 170) && x.node_count == 2, "the leaf is gone");
        MUST(index_recall(&x, 70, &memory) == ENTRY_NONE, "a leaf that was left is empty");
        bpi_magazine_drain(&nodes, &magazine);
        MUST(put(70, 0, 170) == 0, "back");
        leaf_of_70 = leaf_over(70);
        memory = (struct index_memory){0};
        MUST(confirmed(index_recall(&x, 70, &memory), 70) && entry_number(memory.leaf) == leaf_of_70, "met");
        bpi_magazine_drain(&nodes, &magazine);
        a.m.count = b.m.count = 0;
        reuse_leaf(&b);
        for (uint64_t page = 64; page < 128; page++) {
            bool there = what == 0 && page == 72;

            MUST(confirmed(index_recall(&x, page, &memory), page) == there, "variant %u: page %lu", what,
                 (unsigned long)page);
            MUST(confirmed(index_guess(&x, page), page) == there, "variant %u: page %lu", what, (unsigned long)page);
        }
        /* once it meets another leaf it knows that one */
        MUST(index_recall(&x, 200, &memory) == entry_of_frame(300) && entry_number(memory.leaf) != leaf_of_70, "met");
        MUST(confirmed(index_recall(&x, 72, &memory), 72) == (what == 0), "page 72");
        /* who remembers nothing says so, at the very last pages too */
        MUST(index_recall(&x, LAST, &nothing) == ENTRY_NONE && index_recall(&x, LAST - 63, &nothing) == ENTRY_NONE,
             "nothing is remembered");
        verify_others();
        wipe();
        bpi_index_clear(&other);
        bpi_index_destroy(&other);
        close_index();
    }
}
