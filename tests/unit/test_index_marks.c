/* SPDX-License-Identifier: MIT */
/*
 * The index: marks, splits of live extents, replacing, runs. The letters are those of INDEX_BEHAVIOURS.md.
 */
#include "tests/unit/index_fixture.h"

TestSuite(index_marks, .init = open_index, .fini = close_index, .timeout = 100);

static bool mark(uint64_t page, enum index_mark m)
{
    return bpi_index_mark(&x, page, m);
}

static bool marked(uint64_t page, enum index_mark m)
{
    return bpi_index_marked(&x, page, m);
}

static bool any(enum index_mark m)
{
    return bpi_index_any_marked(&x, m);
}

/* How many are marked, from page 0 on; each once, in order. */
static unsigned count_marked(enum index_mark m)
{
    struct index_item item;
    unsigned count = 0;

    for (uint64_t from = 0; bpi_index_next_marked(&x, from, m, &item); from = item.page + pages_of(item.order)) {
        MUST(item.page + pages_of(item.order) - 1 >= from, "an item that ends before page %#lx", (unsigned long)from);
        count++;
        if (item.page + pages_of(item.order) == 0)
            break;
    }
    return count;
}

Test(index_marks, a_mark_belongs_to_one_extent)
{
    /* H1, H9 */
    for (uint64_t page = 0; page <= 16380; page += 4) {
        MUST(!mark(page, INDEX_DIRTY) && !marked(page, INDEX_DIRTY) && !any(INDEX_DIRTY), "nothing has no mark");
        MUST(put(page, 0, 1) == 0 && !marked(page, INDEX_DIRTY), "it comes without");
        MUST(!bpi_index_unmark(&x, page, INDEX_DIRTY), "what is not there cannot go");
        MUST(mark(page, INDEX_DIRTY) && marked(page, INDEX_DIRTY) && any(INDEX_DIRTY), "page %lu", (unsigned long)page);
        MUST(!marked(page, INDEX_WRITEBACK) && !marked(page, INDEX_TO_WRITE) && !any(INDEX_WRITEBACK), "the others");
        MUST(!marked(page + 1, INDEX_DIRTY) && !marked(page - 1, INDEX_DIRTY), "the neighbours");
        MUST(mark(page, INDEX_DIRTY) && bpi_index_check(&x, NULL), "again");
        MUST(put(page + 1, 0, 2) == 0 && !marked(page + 1, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 1, "neighbour");
        MUST(take(page, 0, 1) && !marked(page, INDEX_DIRTY) && !any(INDEX_DIRTY), "gone");
        MUST(put(page, 0, 1) == 0 && !marked(page, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 0,
             "they do not return");
        MUST(mark(page, INDEX_TO_WRITE) && bpi_index_unmark(&x, page, INDEX_TO_WRITE) && !any(INDEX_TO_WRITE) &&
                 !bpi_index_unmark(&x, page, INDEX_TO_WRITE),
             "taken back");
        MUST(take(page, 0, 1) && take(page + 1, 0, 2), "gone");
    }
}

Test(index_marks, extents_are_marked_as_a_whole)
{
    struct index_item item;

    /* H2 (there are no stores over live ones here, so marks do not add up), H3 */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = 3ull << o;

        MUST(put(page, o, 0) == 0 && put(page + pages_of(o), 0, 1) == 0, "order %u", o);
        for (unsigned k = 0; k <= o; k++) {
            uint64_t inside = page + pages_of(k) - 1;

            MUST(mark(inside, INDEX_WRITEBACK), "order %u", o);
            MUST(marked(page, INDEX_WRITEBACK) && marked(page + pages_of(o) - 1, INDEX_WRITEBACK), "order %u", o);
            MUST(!marked(page - 1, INDEX_WRITEBACK) && !marked(page + pages_of(o), INDEX_WRITEBACK), "order %u", o);
            MUST(bpi_index_next_marked(&x, inside, INDEX_WRITEBACK, &item) && item.page == page && item.order == o,
                 "order %u", o);
            MUST(count_marked(INDEX_WRITEBACK) == 1 && bpi_index_check(&x, NULL), "order %u", o);
            MUST(!bpi_index_next_marked(&x, page + pages_of(o), INDEX_WRITEBACK, &item), "order %u", o);
            MUST(bpi_index_unmark(&x, page + pages_of(o) - 1, INDEX_WRITEBACK) && !any(INDEX_WRITEBACK), "order %u", o);
        }
        /* H5: an eviction takes marks along, in the same moment */
        MUST(mark(page, INDEX_DIRTY) && mark(page, INDEX_TO_WRITE), "order %u", o);
        MUST(evict(page, o, 0, entry_of_shadow(1, o, 0)) && !any(INDEX_DIRTY) && !any(INDEX_TO_WRITE), "order %u", o);
        MUST(!mark(page, INDEX_DIRTY) && bpi_index_check(&x, NULL), "a shadow has no mark");
        MUST(put(page, o, 0) == 0 && !marked(page, INDEX_DIRTY) && take(page, o, 0), "order %u", o);
        MUST(take(page + pages_of(o), 0, 1) && x.node_count == 0, "order %u", o);
    }
}

Test(index_marks, marks_lead_upwards)
{
    static const uint64_t far[] = {0, 63, 64, 4096, 1ull << 18, 1ull << 30, 1ull << 54, LAST};
    struct index_item item;

    /* B6: they stay when the tree grows and shrinks; H9: that of a lone page 0 too */
    MUST(put(0, 0, 9) == 0 && mark(0, INDEX_DIRTY) && any(INDEX_DIRTY), "page 0");
    MUST(bpi_index_next_marked(&x, 0, INDEX_DIRTY, &item) && item.page == 0 && item.frame == 9, "page 0");
    MUST(!bpi_index_next_marked(&x, 1, INDEX_DIRTY, &item) && !bpi_index_next_marked(&x, 0, INDEX_WRITEBACK, &item),
         "1");
    for (uint32_t i = 1; i < COUNT(far); i++) {
        MUST(put(far[i], 0, i) == 0 && marked(0, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 1, "%u", i);
        MUST(mark(far[i], INDEX_WRITEBACK) && take(far[i], 0, i) && marked(0, INDEX_DIRTY), "%u", i);
        MUST(height() == 0 && !any(INDEX_WRITEBACK) && any(INDEX_DIRTY), "%u", i);
    }
    /* H6: each way up has it as long as there is one below (check looks) */
    for (uint32_t i = 1; i < COUNT(far); i++)
        MUST(put(far[i], 0, i) == 0 && mark(far[i], INDEX_DIRTY) && count_marked(INDEX_DIRTY) == i + 1, "%u", i);
    for (uint32_t i = 0; i < COUNT(far); i++) {
        MUST(bpi_index_next_marked(&x, 0, INDEX_DIRTY, &item) && item.page == far[i], "%u", i);
        MUST(bpi_index_unmark(&x, far[i], INDEX_DIRTY) && bpi_index_check(&x, NULL), "%u", i);
        MUST(count_marked(INDEX_DIRTY) == COUNT(far) - 1 - i, "%u", i);
    }
    MUST(!any(INDEX_DIRTY), "none is left");
    for (uint32_t i = 0; i < COUNT(far); i++)
        MUST(take(far[i], 0, i ? i : 9), "%u", i);
    /* H4: clearing one of many */
    for (uint64_t i = 3500; i < 4500; i++)
        MUST(put(i, 0, 1) == 0 && mark(i, INDEX_DIRTY), "%lu", (unsigned long)i);
    MUST(put(0, 0, 1) == 0 && mark(0, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 1001, "1001");
    MUST(bpi_index_unmark(&x, 0, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 1000, "1000");
    /* O5, Q14: a page that is always marked is always reached, whatever comes and goes before it */
    for (uint64_t i = 0; i < 100; i++) {
        MUST(i == 0 || put(i, 0, 2) == 0, "%lu", (unsigned long)i);
        MUST(mark(i, INDEX_DIRTY) && bpi_index_next_marked(&x, 0, INDEX_DIRTY, &item) && item.page == i, "first");
        MUST(take(i, 0, i ? 2 : 1) && bpi_index_next_marked(&x, 0, INDEX_DIRTY, &item) && item.page == 3500, "next");
    }
    for (uint64_t i = 3500; i < 4500; i++)
        MUST(take(i, 0, 1), "%lu", (unsigned long)i);
}

/* Every third page is dirty. */
static bool third(uint64_t page)
{
    return page % 3 == 0;
}

Test(index_marks, copied_in_batches)
{
    uint64_t next;

    /* Q15: where there is nothing to copy, nothing is marked */
    MUST(bpi_index_mark_those(&x, 0, LAST, INDEX_DIRTY, INDEX_TO_WRITE, 10, &next) == 0 && next == LAST, "of nothing");
    for (uint64_t i = 0; i < 300; i++)
        MUST(put(i, 0, 1) == 0 && (!third(i) || mark(i, INDEX_DIRTY)), "%lu", (unsigned long)i);
    MUST(bpi_index_mark_those(&x, 1, 2, INDEX_DIRTY, INDEX_TO_WRITE, 10, &next) == 0 && next == 3, "between two");
    MUST(!any(INDEX_TO_WRITE) && bpi_index_check(&x, NULL), "none");
    MUST(bpi_index_mark_those(&x, 5, 4, INDEX_DIRTY, INDEX_TO_WRITE, 10, &next) == 0, "an empty range");
    MUST(bpi_index_mark_those(&x, 0, 99, INDEX_DIRTY, INDEX_TO_WRITE, 0, &next) == 0 && next == 0, "none wanted");
    /* in batches of all sizes: all of the range, each once; where to go on; an end, also with a full last batch */
    for (unsigned most = 1; most < 50; most++) {
        uint64_t from = 10;
        unsigned sum = 0;

        for (unsigned calls = 0; from <= 210; calls++) {
            unsigned n = bpi_index_mark_those(&x, from, 210, INDEX_DIRTY, INDEX_TO_WRITE, most, &next);

            MUST(calls < 100 && n <= most && next > from && (n == most || next == 211), "%u: %u, %lu", most, n,
                 (unsigned long)next);
            sum += n;
            from = next;
        }
        MUST(sum == 67 && count_marked(INDEX_TO_WRITE) == 67, "batches of %u: %u", most, sum);
        MUST(!marked(9, INDEX_TO_WRITE) && marked(12, INDEX_TO_WRITE) && marked(210, INDEX_TO_WRITE) &&
                 !marked(213, INDEX_TO_WRITE),
             "the ends of the range");
        for (uint64_t i = 0; i < 300; i++)
            MUST(bpi_index_unmark(&x, i, INDEX_TO_WRITE) == (i >= 10 && i <= 210 && third(i)), "%lu", (unsigned long)i);
    }
    for (uint64_t i = 0; i < 300; i++)
        MUST(take(i, 0, 1), "%lu", (unsigned long)i);
    /* extents that overlap with the range's ends are of it; the last of all pages */
    MUST(put(0, 6, 0) == 0 && put(64, 3, 0) == 0 && put(LAST, 0, 1) == 0, "extents");
    MUST(mark(0, INDEX_DIRTY) && mark(64, INDEX_DIRTY) && mark(LAST, INDEX_DIRTY), "dirty");
    MUST(bpi_index_mark_those(&x, 63, 64, INDEX_DIRTY, INDEX_WRITEBACK, 10, &next) == 2 && next == 65, "both");
    MUST(bpi_index_mark_those(&x, 63, 64, INDEX_DIRTY, INDEX_WRITEBACK, 1, &next) == 1 && next == 64, "the first");
    MUST(bpi_index_mark_those(&x, 72, LAST, INDEX_DIRTY, INDEX_WRITEBACK, 10, &next) == 1 && next == LAST, "the last");
    MUST(count_marked(INDEX_WRITEBACK) == 3 && take(0, 6, 0) && take(64, 3, 0) && take(LAST, 0, 1), "extents");
}

/* ---- splits of live extents ---- */

/* The pieces: halves beside the way, one of each order; each reads its own frames and has the marks. */
static void pieces_are(uint64_t base, unsigned o, unsigned n, uint32_t frame)
{
    unsigned seen[INDEX_ORDER_MAX + 1] = {0};
    struct index_item item;

    for (uint64_t at = 0; at < pages_of(o); at += pages_of(item.order)) {
        MUST(bpi_index_find(&x, base + at, &item) && item.page == base + at && item.frame == frame + (uint32_t)at,
             "a piece at %#lx", (unsigned long)(base + at));
        MUST(item.order == bpi_index_order(&x, base + at + pages_of(item.order) - 1), "its order");
        MUST(item.order >= n && item.order < o, "%u in %u: a piece of order %u", n, o, item.order);
        seen[item.order]++;
        for (uint64_t i = 0; i<pages_of(item.order); i += item.order> 9 ? 509 : 1)
            MUST(load(base + at + i) == entry_of_frame(frame + (uint32_t)(at + i)), "page %#lx",
                 (unsigned long)(base + at + i));
        MUST(marked(base + at, INDEX_DIRTY) && marked(base + at, INDEX_TO_WRITE) && !marked(base + at, INDEX_WRITEBACK),
             "marks of the piece at %#lx", (unsigned long)(base + at));
    }
    for (unsigned k = n; k < o; k++)
        MUST(seen[k] == (k == n ? 2 : 1), "%u in %u: %u pieces of order %u", n, o, seen[k], k);
    MUST(load(base - 1) == ENTRY_NONE && load(base + pages_of(o)) == ENTRY_NONE, "around order %u", o);
}

static void split_live(uint64_t base, unsigned o, unsigned n, uint64_t offset)
{
    uint64_t page = base + (offset & ~(pages_of(n) - 1));
    uint32_t before;
    struct index_item item;

    MUST(put(base, o, ORDER_STEP) == 0 && mark(base, INDEX_DIRTY) && mark(base, INDEX_TO_WRITE), "order %u", o);
    before = x.node_count;
    MUST(split(page, n) == 0 && bpi_index_check(&x, NULL) && live() == 1 + o - n, "%u in %u", n, o);
    /* M3, M4: one node a level crossed, whatever the size, and however many levels */
    MUST(base == 0 || x.node_count == before + o / INDEX_SHIFT - n / INDEX_SHIFT, "%u in %u: %u nodes more", n, o,
         x.node_count - before);
    MUST(bpi_index_find(&x, page, &item) && item.page == page && item.order == n, "%u in %u", n, o);
    pieces_are(base, o, n, ORDER_STEP);
    before = x.node_count;
    MUST(split(page, n) == 0 && x.node_count == before && split(base, o) == -ERANGE, "it is one already");
    /* M1: a piece goes, comes, is marked, and replaced by itself */
    MUST(count_marked(INDEX_DIRTY) == 1 + o - n && mark(page, INDEX_WRITEBACK) && count_marked(INDEX_WRITEBACK) == 1,
         "%u in %u: %u dirty", n, o, count_marked(INDEX_DIRTY));
    MUST(!take(base, o, ORDER_STEP), "the whole is no more");
    MUST(take(item.page, n, item.frame) && load(page) == ENTRY_NONE && put(page, n, 0) == 0, "a piece");
    MUST(!marked(page, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == o - n && take(page, n, 0), "without marks");
    while (bpi_index_next(&x, 0, &item))
        MUST(take(item.page, item.order, item.frame), "piece at %#lx", (unsigned long)item.page);
    MUST(x.node_count == 0 && !any(INDEX_DIRTY), "%u in %u", n, o);
}

Test(index_marks, live_extents_are_split_along_the_path)
{
    for (unsigned o = 1; o <= INDEX_ORDER_MAX; o++) {
        for (unsigned n = 0; n < o; n++) {
            for (unsigned where = 0; where < 3; where++) {
                uint64_t base = where == 0 ? 0 : where == 1 ? 3ull << o : LAST - (pages_of(o) - 1);

                split_live(base, o, n, 0);
                split_live(base, o, n, pages_of(o) - 1);
                split_live(base, o, n, pages_of(o) * 5 / 8);
            }
        }
    }
}

Test(index_marks, what_cannot_be_split)
{
    uint32_t before;

    MUST(split(0, 0) == -ENOENT && split(LAST, 0) == -ENOENT && split(64, 6) == -ENOENT, "nothing");
    MUST(put(0, 0, 1) == 0 && split(0, 0) == 0 && split(0, 1) == -ERANGE && split(0, 12) == -ERANGE, "page 0");
    MUST(split(1, 0) == -ENOENT && split(64, 6) == -ENOENT && take(0, 0, 1), "beside it");
    /* smaller ones, wherever in the range they are; and then nothing has changed */
    MUST(put(4096 + 3, 0, 1) == 0, "one page");
    before = x.node_count;
    for (unsigned o = 1; o <= 12; o++)
        MUST(split((4096 + 3) & ~(pages_of(o) - 1), o) == -ERANGE, "order %u around a page", o);
    MUST(split(4096, 1) == -ENOENT && split(4096 + 4, 2) == -ENOENT && split(8192, 12) == -ENOENT, "beside it");
    MUST(x.node_count == before && bpi_index_check(&x, NULL) && take(4096 + 3, 0, 1), "unchanged");
    /* shadows: the same, and no page's answer changes */
    put_shadow(4096, 12, entry_of_shadow(1, 12, 0));
    MUST(split(4096 + 77, 0) == 0 && load(4096 + 77) == load(4096) && load(8191) == load(4096), "a shadow");
    MUST(bpi_index_order(&x, 4096 + 77) == 0 && bpi_index_order(&x, 8191) == 11 && live() == 0, "its pieces");
    MUST(split(4096, 12) == -ERANGE && split(4096 + 2048, 11) == 0, "and theirs");
}

Test(index_marks, moved_to_other_frames)
{
    /* A5 */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = 5ull << o;
        uint32_t to = 2 * ORDER_STEP;

        MUST(!bpi_index_replace(&x, page, o, 0, to) && put(page, o, ORDER_STEP) == 0 && mark(page, INDEX_DIRTY), "%u",
             o);
        MUST(!bpi_index_replace(&x, page, o, ORDER_STEP + 1, to) && !bpi_index_replace(&x, page, o + 1, ORDER_STEP, to),
             "another frame, another order");
        MUST(o == 0 || !bpi_index_replace(&x, page, o - 1, ORDER_STEP, to), "a part");
        MUST(load(page) == entry_of_frame(ORDER_STEP) && bpi_index_check(&x, NULL), "nothing has changed");
        MUST(bpi_index_replace(&x, page, o, ORDER_STEP, to) && !bpi_index_replace(&x, page, o, ORDER_STEP, to), "%u",
             o);
        for (unsigned k = 0; k <= o; k++)
            MUST(load(page + pages_of(k) - 1) == entry_of_frame(to + (1u << k) - 1), "order %u", o);
        MUST(bpi_index_order(&x, page) == o && marked(page, INDEX_DIRTY) && count_marked(INDEX_DIRTY) == 1, "%u", o);
        MUST(load(page - 1) == ENTRY_NONE && load(page + pages_of(o)) == ENTRY_NONE && bpi_index_check(&x, NULL), "%u",
             o);
        MUST(!take(page, o, ORDER_STEP) && take(page, o, to) && x.node_count == 0, "order %u", o);
    }
    MUST(put(0, 0, 1) == 0 && mark(0, INDEX_DIRTY) && bpi_index_replace(&x, 0, 0, 1, 2) && marked(0, INDEX_DIRTY), "0");
    MUST(!bpi_index_replace(&x, 0, 0, 1, 2) && !bpi_index_replace(&x, 1, 0, 2, 3) && take(0, 0, 2), "page 0");
}

/* ---- runs ---- */

/* In as many calls as there are nodes for. */
static unsigned run(uint64_t page, unsigned order, const uint32_t frame[], unsigned n)
{
    struct index_insert sum = {.shadow = ENTRY_NONE};
    unsigned done = 0;

    do {
        MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
        done +=
            bpi_index_insert_run(&x, page + ((uint64_t)done << order), order, frame + done, n - done, &magazine, &met);
        sum.shadows += met.shadows;
        if (met.shadows && (sum.shadow == ENTRY_NONE || shadow_newer(met.shadow, sum.shadow)))
            sum.shadow = met.shadow;
    } while (done < n && met.frame == UINT32_MAX);
    met.shadows = sum.shadows;
    met.shadow = sum.shadow;
    return done;
}

Test(index_marks, runs)
{
    uint32_t frame[200];
    index_entry s = entry_of_shadow(1, 0, 0);
    index_entry t = entry_of_shadow(2, 0, 0);

    for (uint32_t i = 0; i < 200; i++)
        frame[i] = (i * 7 + 1) << 9;
    /* K2 and P: all orders, over seams of nodes, over nothing; from any page of a leaf */
    for (unsigned o = 0; o <= 9; o++) {
        for (uint64_t from = 0; from < 130; from += 13) {
            uint64_t page = from << o;

            MUST(run(page, o, frame, 150) == 150, "order %u", o);
            MUST(met.frame == UINT32_MAX && met.shadows == 0 && met.shadow == ENTRY_NONE && live() == 150, "order %u",
                 o);
            for (uint32_t i = 0; i < 150; i++) {
                uint64_t at = page + ((uint64_t)i << o);

                MUST(load(at) == entry_of_frame(frame[i]) && bpi_index_order(&x, at + pages_of(o) - 1) == o, "%u", i);
                MUST(load(at + pages_of(o) - 1) == entry_of_frame(frame[i] + (1u << o) - 1), "%u", i);
                MUST(take(at, o, frame[i]), "order %u: %u", o, i);
            }
            MUST(x.node_count == 0, "order %u", o);
        }
    }
    /* over shadows of all sizes: how many, and the newest */
    put_shadow(3, 0, s);
    put_shadow(64, 6, t);
    put_shadow(130, 1, s);
    MUST(run(0, 0, frame, 65) == 65, "over two");
    MUST(met.shadows == 2 && met.shadow == t && load(65) == t && load(130) == s && met.frame == UINT32_MAX, "two");
    for (uint32_t i = 0; i < 65; i++)
        MUST(take(i, 0, frame[i]), "%u", i);
    /* it ends before what is alive, and says what that is */
    for (uint64_t at = 0; at < 140; at++) {
        MUST(put(at, 0, 5) == 0, "%lu", (unsigned long)at);
        MUST(run(0, 0, frame, 200) == at && met.frame == 5 && met.page == at, "before %lu", (unsigned long)at);
        MUST(live() == at + 1 && (at == 139 || load(at + 1) == ENTRY_NONE || entry_is_shadow(load(at + 1))),
             "and no further");
        for (uint32_t i = 0; i < at; i++)
            MUST(take(i, 0, frame[i]), "%u", i);
        MUST(take(at, 0, 5), "%lu", (unsigned long)at);
    }
    MUST(put(3, 0, 9) == 0 && run(0, 1, frame, 10) == 1 && met.frame == 9 && met.page == 3, "order 1");
    MUST(take(3, 0, 9) && take(0, 1, frame[0]) && run(0, 0, frame, 0) == 0 && met.frame == UINT32_MAX, "none");
    bpi_index_clear(&x);
}

/* Where nodes are short a run ends whole, and goes on where it ended. */
Test(index_memory, runs_with_few_nodes, .timeout = 100)
{
    uint32_t frame[6400];

    for (uint32_t i = 0; i < 6400; i++)
        frame[i] = i;
    for (uint32_t few = INSERT_NODES; few < INSERT_NODES + 12; few++) {
        unsigned done = 0;

        open_with(few);
        while (done < 6400) {
            unsigned n;

            if (bpi_magazine_fill(&nodes, &magazine)) {
                MUST(magazine.count < INSERT_NODES, "there are enough");
                break;
            }
            n = bpi_index_insert_run(&x, done, 0, frame + done, 6400 - done, &magazine, &met);
            MUST(n > 0 && met.frame == UINT32_MAX && bpi_index_check(&x, NULL), "%u nodes, %u done", few, done);
            done += n;
        }
        MUST(done < 6400 && live() == done && done >= 64, "%u nodes: %u done", few, done);
        for (uint32_t i = 0; i < 6400; i++)
            MUST(load(i) == (i < done ? entry_of_frame(i) : ENTRY_NONE), "%u nodes: page %u", few, i);
        for (uint32_t i = 0; i < done; i++)
            MUST(take(i, 0, i), "page %u", i);
        MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "nodes have come back");
        close_index();
    }
}

/* Every operation of a long workload finds no nodes once; what is there stays as it is, and the next try does it. */
Test(index_memory, every_fill_fails_once, .timeout = 100)
{
    enum { STEPS = 400 };
    struct node_magazine hoard[8];
    uint64_t rng = 88172645463325252ull;

    open_with(8 * INSERT_NODES);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned n = 0;
        unsigned order;
        uint64_t page;
        uint32_t had_nodes = x.node_count;
        uint64_t had_root = atomic_load(&x.root);
        uint64_t had_live = live();
        struct index_item item;

        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        order = (unsigned)(rng >> 8) % 14;
        page = (rng >> 20 & 0xffff) & ~(pages_of(order) - 1);
        bpi_magazine_drain(&nodes, &magazine);
        /* all there is is somebody else's */
        for (; n < COUNT(hoard); n++) {
            hoard[n].count = 0;
            if (bpi_magazine_fill(&nodes, &hoard[n]))
                break;
        }
        MUST(bpi_magazine_fill(&nodes, &magazine) == -ENOMEM && magazine.count == 0, "step %u", step);
        MUST(bpi_magazine_fill(&nodes, &magazine) == -ENOMEM && magazine.count == 0, "step %u, again", step);
        MUST(x.node_count == had_nodes && atomic_load(&x.root) == had_root && live() == had_live, "step %u", step);
        /* what needs no nodes goes on: marks, erases, reclaim, discards */
        if (step % 3 == 0 && bpi_index_next(&x, page, &item))
            MUST(mark(item.page, INDEX_DIRTY) &&
                     evict(item.page, item.order, item.frame, step & 1 ? entry_of_shadow(step, 0, 0) : ENTRY_NONE),
                 "step %u", step);
        while (n)
            bpi_magazine_drain(&nodes, &hoard[--n]);
        while (bpi_magazine_fill(&nodes, &magazine)) {
            if (bpi_index_reclaim(&x, 1) == 0 && bpi_index_next(&x, 0, &item))
                MUST(take(item.page, item.order, item.frame), "step %u", step);
            MUST(bpi_index_check(&x, NULL), "step %u", step);
        }
        if (step % 5 == 4 && bpi_index_next(&x, page, &item) && item.order)
            MUST(bpi_index_split(&x, item.page, 0, &magazine) == 0, "step %u", step);
        else if (bpi_index_insert(&x, page, order, ORDER_STEP, &magazine, &met))
            MUST(met.page >= page && met.page < page + pages_of(order), "step %u", step);
        MUST(bpi_index_check(&x, NULL), "step %u", step);
    }
    for (struct index_item item; bpi_index_next(&x, 0, &item);)
        MUST(take(item.page, item.order, item.frame), "the rest");
    close_index();
}
