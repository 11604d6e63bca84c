/* SPDX-License-Identifier: MIT */
/*
 * The index: looking around. Next, previous, find, discard, batches. The letters are those of INDEX_BEHAVIOURS.md.
 */
#include "tests/unit/index_fixture.h"

TestSuite(index_look, .init = open_index, .fini = close_index, .timeout = 100);

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

Test(index_look, next)
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

static bool item_is(const struct index_item *i, uint64_t page, unsigned order, uint32_t frame)
{
    return i->page == page && i->order == order && i->frame == frame;
}

/* Up and down over what there is; the index says nothing but these. */
static void walk_is(const uint64_t page[], unsigned n)
{
    struct index_item item;
    uint64_t from = 0;

    for (unsigned i = 0; i < n; i++) {
        MUST(bpi_index_next(&x, from, &item) && item.page == page[i], "up: %#lx, should be %#lx",
             (unsigned long)item.page, (unsigned long)page[i]);
        from = item.page + pages_of(item.order);
    }
    MUST(from == 0 || !bpi_index_next(&x, from, &item), "up: an end");
    from = LAST;
    for (unsigned i = n; i--;) {
        MUST(bpi_index_previous(&x, from, &item) && item.page == page[i], "down: %#lx, should be %#lx",
             (unsigned long)item.page, (unsigned long)page[i]);
        from = item.page - 1;
    }
    MUST(from == LAST || !bpi_index_previous(&x, from, &item), "down: an end");
}

Test(index_look, every_pair_from_everywhere)
{
    struct index_item item;

    /* I1: all pairs j < i < 100, all starts k, up, down, and by mark alike */
    for (uint64_t i = 1; i < 100; i++) {
        MUST(put(i, 0, (uint32_t)i) == 0 && bpi_index_mark(&x, i, INDEX_DIRTY), "page %lu", (unsigned long)i);
        for (uint64_t j = 0; j < i; j++) {
            MUST(put(j, 0, (uint32_t)j) == 0 && bpi_index_mark(&x, j, INDEX_DIRTY), "page %lu", (unsigned long)j);
            for (uint64_t k = 0; k < 100; k++) {
                bool got = bpi_index_next(&x, k, &item);

                MUST(got == (k <= i) && (!got || item.page == (k <= j ? j : i)), "%lu %lu from %lu", (unsigned long)j,
                     (unsigned long)i, (unsigned long)k);
                got = bpi_index_next_marked(&x, k, INDEX_DIRTY, &item);
                MUST(got == (k <= i) && (!got || item.page == (k <= j ? j : i)), "%lu %lu marked, from %lu",
                     (unsigned long)j, (unsigned long)i, (unsigned long)k);
                got = bpi_index_previous(&x, k, &item);
                MUST(got == (k >= j) && (!got || item.page == (k >= i ? i : j)), "%lu %lu down from %lu",
                     (unsigned long)j, (unsigned long)i, (unsigned long)k);
                MUST(bpi_index_find(&x, k, &item) == (k == i || k == j), "%lu %lu at %lu", (unsigned long)j,
                     (unsigned long)i, (unsigned long)k);
            }
            MUST(take(j, 0, (uint32_t)j), "page %lu", (unsigned long)j);
        }
        MUST(take(i, 0, (uint32_t)i), "page %lu", (unsigned long)i);
    }
    MUST(!bpi_index_any_marked(&x, INDEX_DIRTY), "marks are gone");
}

Test(index_look, both_ways_over_holes)
{
    static const uint64_t far[] = {0,          1,          63,         64,         4095,     4096,
                                   1ull << 18, 1ull << 24, 1ull << 40, 1ull << 63, LAST - 1, LAST};
    struct index_item item;

    /* I2, J1: nothing at all; a lone page 0 */
    walk_is(NULL, 0);
    MUST(!bpi_index_find(&x, 0, &item) && !bpi_index_find(&x, LAST, &item), "of nothing");
    MUST(put(0, 0, 1) == 0, "page 0");
    walk_is(far, 1);
    MUST(bpi_index_find(&x, 0, &item) && item_is(&item, 0, 0, 1) && !bpi_index_find(&x, 1, &item), "page 0");
    /* I4, J4: the last page alone; no way leads around the end */
    MUST(take(0, 0, 1) && put(LAST, 0, 2) == 0, "the last page");
    walk_is(&far[11], 1);
    MUST(bpi_index_next(&x, LAST, &item) && bpi_index_previous(&x, LAST, &item) && item.page == LAST, "from itself");
    MUST(!bpi_index_previous(&x, LAST - 1, &item) && take(LAST, 0, 2), "nothing before it");
    /* J2: one after the other at all distances */
    for (uint32_t i = 0; i < COUNT(far); i++) {
        MUST(put(far[i], 0, i) == 0, "%u", i);
        walk_is(far, i + 1);
    }
    for (uint32_t i = 0; i < COUNT(far); i++) {
        MUST(take(far[i], 0, i), "%u", i);
        walk_is(&far[i + 1], (unsigned)COUNT(far) - i - 1);
    }
    /* J3: dense, then a hole in the middle */
    for (uint64_t i = 0; i < 5000; i++)
        MUST(put(i, 0, (uint32_t)i) == 0, "%lu", (unsigned long)i);
    for (uint64_t i = 0; i < 5000; i++)
        MUST(bpi_index_next(&x, i, &item) && item.page == i && bpi_index_previous(&x, i, &item) && item.page == i,
             "%lu", (unsigned long)i);
    for (uint64_t i = 256; i < 4500; i++)
        MUST(take(i, 0, (uint32_t)i), "%lu", (unsigned long)i);
    for (uint64_t i = 256; i < 4500; i += 7)
        MUST(bpi_index_next(&x, i, &item) && item.page == 4500 && bpi_index_previous(&x, i, &item) && item.page == 255,
             "%lu", (unsigned long)i);
    for (uint64_t i = 0; i < 5000; i += i == 255 ? 4245 : 1)
        MUST(take(i, 0, (uint32_t)i), "%lu", (unsigned long)i);
}

Test(index_look, extents_from_inside)
{
    struct index_item item;

    /* E7, I5, I7, J6, J7: any order, from its first page, from inside, from its last; what comes next is not itself */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = pages_of(o) * 3;
        uint64_t end = page + pages_of(o);

        MUST(put(page, o, 1u << 20) == 0 && put(end, 0, 5) == 0 && put(end + 1, 0, 6) == 0, "order %u", o);
        for (unsigned k = 0; k <= o; k++) {
            uint64_t inside = page + pages_of(k) - 1;

            MUST(bpi_index_next(&x, inside, &item) && item_is(&item, page, o, 1u << 20), "order %u, %u", o, k);
            MUST(bpi_index_previous(&x, inside, &item) && item_is(&item, page, o, 1u << 20), "order %u, %u", o, k);
            MUST(bpi_index_find(&x, inside, &item) && item_is(&item, page, o, 1u << 20), "order %u, %u", o, k);
        }
        MUST(bpi_index_next(&x, end, &item) && item_is(&item, end, 0, 5), "order %u", o);
        MUST(bpi_index_previous(&x, LAST, &item) && item_is(&item, end + 1, 0, 6), "order %u", o);
        MUST(!bpi_index_previous(&x, page - 1, &item) && !bpi_index_next(&x, end + 2, &item), "order %u", o);
        /* I6: erased inside the loop, and what was before is never come to */
        MUST(take(page, o, 1u << 20) && !bpi_index_find(&x, page, &item), "order %u", o);
        MUST(bpi_index_next(&x, page, &item) && item.page == end && take(end, 0, 5) && take(end + 1, 0, 6), "%u", o);
    }
    /* the last block there can be */
    for (unsigned o = 0; o <= INDEX_ORDER_MAX; o++) {
        uint64_t page = LAST - (pages_of(o) - 1);

        MUST(put(page, o, 0) == 0 && bpi_index_next(&x, LAST, &item) && item_is(&item, page, o, 0), "order %u", o);
        MUST(bpi_index_previous(&x, LAST, &item) && item_is(&item, page, o, 0) && take(page, o, 0), "order %u", o);
    }
}

/* ---- discard ---- */

Test(index_look, discard)
{
    index_entry s = entry_of_shadow(1, 0, 0);
    index_entry t = entry_of_shadow(2, 0, 0);
    struct index_item item;

    MUST(!bpi_index_discard(&x, 0, LAST, &item) && !bpi_index_discard(&x, 5, 4, &item), "of nothing");
    /* a lone page 0, as a shadow and alive */
    put_shadow(0, 0, s);
    MUST(!bpi_index_discard(&x, 1, LAST, &item) && load(0) == s, "not in the range");
    MUST(!bpi_index_discard(&x, 0, 0, &item) && load(0) == ENTRY_NONE, "page 0");
    MUST(put(0, 0, 7) == 0 && bpi_index_discard(&x, 0, 5, &item) && item_is(&item, 0, 0, 7), "something live");
    MUST(!bpi_index_discard(&x, 1, LAST, &item) && take(0, 0, 7), "page 0");
    /* what reaches beyond either end stays; what lies inside goes, over several leaves and levels */
    put_shadow(0, 3, s);
    put_shadow(8, 3, t);
    put_shadow(64, 6, t);
    put_shadow(200, 0, t);
    put_shadow(4096, 12, t);
    put_shadow(1ull << 18, 18, s);
    MUST(!bpi_index_discard(&x, 4, (1ull << 18) + 5, &item), "nothing is live");
    MUST(load(0) == s && load(7) == s && load(8) == ENTRY_NONE && load(64) == ENTRY_NONE && load(200) == ENTRY_NONE &&
             load(4096) == ENTRY_NONE && load(8191) == ENTRY_NONE && load(1ull << 18) == s,
         "what is inside, and only that");
    MUST(bpi_index_check(&x, NULL) && !bpi_index_discard(&x, 0, LAST, &item) && x.node_count == 0, "all of it");
    /* up to the first that is alive; then behind it */
    for (unsigned o = 0; o <= 12; o++) {
        uint64_t page = 3ull << o;

        put_shadow(page - 1, 0, s);
        put_shadow(page + pages_of(o), 0, t);
        MUST(put(page, o, 1u << o) == 0, "order %u", o);
        MUST(bpi_index_discard(&x, 0, LAST, &item) && item_is(&item, page, o, 1u << o), "order %u", o);
        MUST(load(page - 1) == ENTRY_NONE && load(page + pages_of(o)) == t, "order %u", o);
        MUST(bpi_index_discard(&x, page + pages_of(o) - 1, LAST, &item) && item.page == page, "from inside");
        MUST(!bpi_index_discard(&x, page + pages_of(o), LAST, &item), "order %u", o);
        MUST(load(page + pages_of(o)) == ENTRY_NONE && take(page, o, 1u << o) && x.node_count == 0, "order %u", o);
    }
    /* it drops nodes, and what it leaves is listed as it should be */
    for (uint64_t i = 0; i < 128; i++)
        put_shadow(i * 32, 0, i & 1 ? s : t);
    MUST(put(1ull << 20, 0, 1) == 0 && atomic_load(&nodes.shadow_only) == 64, "leaves of shadows");
    MUST(!bpi_index_discard(&x, 64, 4095, &item) && atomic_load(&nodes.shadow_only) == 1, "all but the first");
    MUST(bpi_index_check(&x, NULL) && load(0) == t && load(32) == s && take(1ull << 20, 0, 1), "the first leaf");
    MUST(x.node_count == 1, "%u nodes", x.node_count);
}

/* ---- batches ---- */

struct pins {
    uint64_t page[200];
    uint32_t frame[200];
    uint64_t pages[200]; /* what the pin is to answer; 0 ends the batch */
    unsigned count;
};

static bool pin(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct pins *p = arg;

    MUST(p->count < COUNT(p->page) && before == p->count, "pin %zu after %u", before, p->count);
    p->page[p->count] = page;
    p->frame[p->count] = entry_number(e);
    *pages = p->pages[p->count++];
    return *pages != 0;
}

static size_t batch(struct pins *p, uint64_t page, uint64_t last, unsigned most)
{
    p->count = 0;
    return index_batch(&x, page, last, most, pin, p);
}

Test(index_look, batches)
{
    struct pins ones;
    struct pins p = {.pages = {40, 4, 1, 1}};

    for (unsigned i = 0; i < COUNT(ones.pages); i++)
        ones.pages[i] = 1;
    MUST(batch(&ones, 0, LAST, 9) == 0 && ones.count == 0, "of nothing");
    for (uint64_t i = 0; i < 200; i++)
        if (i != 150)
            MUST(put(i, 0, (uint32_t)i + 7) == 0, "page %lu", (unsigned long)i);
    /* R5, R6: from anywhere, over leaves, to the end of what is wanted, and no pin beyond it */
    for (uint64_t from = 0; from < 200; from += 3) {
        for (uint64_t last = from; last < from + 80; last++) {
            uint64_t end = from > 150 ? 200 : 150;
            uint64_t want = from == 150 ? 0 : (last + 1 < end ? last + 1 : end) - from;

            MUST(batch(&ones, from, last, 100) == want && ones.count == want, "%lu to %lu: %u", (unsigned long)from,
                 (unsigned long)last, ones.count);
            for (unsigned i = 0; i < want; i++)
                MUST(ones.page[i] == from + i && ones.frame[i] == from + i + 7, "%lu to %lu", (unsigned long)from,
                     (unsigned long)last);
        }
    }
    MUST(batch(&ones, 10, 9, 5) == 0 && ones.count == 0 && batch(&ones, 10, 20, 0) == 0 && ones.count == 0, "none");
    for (unsigned most = 1; most < 120; most++)
        MUST(batch(&ones, 5, LAST, most) == most && ones.count == most, "%u at most", most);
    /* it ends where the pin says so */
    ones.pages[70] = 0;
    MUST(batch(&ones, 20, 140, 100) == 70 && ones.count == 71, "the pin says no");
    for (uint64_t i = 0; i < 200; i++)
        MUST(i == 150 || take(i, 0, (uint32_t)i + 7), "page %lu", (unsigned long)i);
    /* extents: the first perhaps from its middle, each asked for once; a shadow ends it (R5) */
    MUST(put(64, 6, 64) == 0 && put(128, 2, 512) == 0 && put(132, 0, 5) == 0 && put(133, 0, 6) == 0, "extents");
    put_shadow(134, 0, entry_of_shadow(1, 0, 0));
    MUST(put(135, 0, 8) == 0, "behind a shadow");
    MUST(batch(&p, 88, LAST, 10) == 4 && p.count == 4, "%u pins", p.count);
    MUST(p.page[0] == 88 && p.frame[0] == 64 + 24 && p.page[1] == 128 && p.frame[1] == 512 && p.page[2] == 132 &&
             p.frame[2] == 5 && p.page[3] == 133 && p.frame[3] == 6,
         "the very frames");
    MUST(batch(&p, 88, 127, 10) == 1 && batch(&p, 88, 128, 10) == 2 && batch(&p, 88, 131, 10) == 2 &&
             batch(&p, 88, 132, 10) == 3 && batch(&p, 88, 90, 10) == 1,
         "up to the last page wanted");
    MUST(take(64, 6, 64) && take(128, 2, 512) && take(132, 0, 5) && take(133, 0, 6) && take(135, 0, 8), "extents");
    /* at the very end of all pages */
    p.pages[0] = 1;
    MUST(put(LAST, 0, 3) == 0 && batch(&p, LAST, LAST, 10) == 1 && p.frame[0] == 3 && take(LAST, 0, 3), "the end");
    p.pages[0] = pages_of(18) - 5;
    MUST(put(LAST - (pages_of(18) - 1), 18, 0) == 0 && batch(&p, LAST - (pages_of(18) - 6), LAST, 10) == 1, "the end");
    MUST(p.frame[0] == 5 && take(LAST - (pages_of(18) - 1), 18, 0), "the end");
}
