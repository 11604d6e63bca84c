/* SPDX-License-Identifier: MIT */
/*
 * The index under everything at once: one fills, one erases, one splits and moves, one copies marks, one drops shadows
 * and looks whether the tree is sound, two iterate, all over the same pages. Whatever is found covers the page that it
 * was found at, and belongs there; and the one page that is there all the time, and dirty, is always come to.
 *
 *   stress_index_all [SEED]     BP_STRESS_SECONDS: 4 by default
 */
#include "tests/stress/index_stress.h"

#define KEPT_PAGE GROUND_PAGES /* behind the ground there is one page that stays, and stays dirty */

static _Atomic bool kept; /* it is in */
static _Atomic bool filling = true;

static bool item_belongs(const struct index_item *i)
{
    return i->order <= INDEX_ORDER_MAX && !(i->page & ((1ull << i->order) - 1)) &&
           (i->page == KEPT_PAGE ? i->frame == KEPT_FRAME : belongs(i->page, entry_of_frame(i->frame)));
}

static uint64_t item_last(const struct index_item *i)
{
    return i->page + ((1ull << i->order) - 1);
}

/* At each free page the largest order that has no conflict, marked. */
static void all_filler(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct node_magazine m = {0};
    struct index_insert met;
    struct index_item item;

    insert(&index_one, KEPT_PAGE, 0, KEPT_FRAME, &m, &met);
    bpi_index_mark(&index_one, KEPT_PAGE, INDEX_DIRTY);
    atomic_store(&kept, true);
    while (!atomic_load(&stop)) {
        for (uint32_t page = below(r, GROUND_PAGES); page < GROUND_PAGES && !atomic_load(&stop);) {
            unsigned order = page ? (unsigned)__builtin_ctz(page) : GROUND_ORDER;
            uint32_t frame = below(r, 1024) * GROUND_PAGES + page;

            order = order > GROUND_ORDER ? GROUND_ORDER : order;
            order = below(r, 3) ? order : 0; /* else there is nothing left but large ones */
            while (!insert(&index_one, page, order, frame, &m, &met) && order && !atomic_load(&stop))
                order = met.page == page ? 0 : order - 1;
            if (bpi_index_find(&index_one, page, &item) && bpi_index_mark(&index_one, page, INDEX_DIRTY))
                page = (uint32_t)item_last(&item);
            page += 1 + below(r, 4);
            atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
        }
    }
    atomic_store(&filling, false);
    bpi_magazine_drain(&nodes, &m);
}

static void all_eraser(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct index_item item;

    while (!atomic_load(&stop)) {
        uint32_t page = below(r, GROUND_PAGES);
        index_entry shadow = below(r, 3) == 0 ? ENTRY_NONE : entry_of_shadow(below(r, 2) ? 5 : below(r, 99), 0, 0);

        if (!bpi_index_find(&index_one, page, &item))
            continue;
        if (page < item.page || page > item_last(&item) || !item_belongs(&item))
            fail("page %u was found at %" PRIu64 ", order %u, frame %u", page, item.page, item.order, item.frame);
        bpi_index_erase(&index_one, item.page, item.order, item.frame, shadow);
    }
    while (atomic_load(&filling))
        sched_yield();
    if (!bpi_index_marked(&index_one, KEPT_PAGE, INDEX_DIRTY) && !failure[0])
        fail("the page that stays is clean");
    atomic_store(&kept, false);
    while (
        bpi_index_next(&index_one, 0, &item)) /* the splitter may still be in its last call: then it is tried again */
        bpi_index_erase(&index_one, item.page, item.order, item.frame, ENTRY_NONE);
}

static void all_splitter(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct node_magazine m = {0};

    while (!atomic_load(&stop)) {
        uint32_t page = below(r, GROUND_PAGES);
        struct index_item item;

        if (!bpi_index_previous(&index_one, page, &item))
            continue;
        if (item.page > page || !item_belongs(&item))
            fail("before page %u there is frame %u at %" PRIu64, page, item.frame, item.page);
        if (bpi_magazine_fill(&nodes, &m))
            fail("no nodes for a split");
        if (item.order) {
            unsigned order = below(r, item.order);
            uint64_t at = item.page + (below(r, 1u << item.order) & ~((1u << order) - 1));
            int rc = bpi_index_split(&index_one, at, order, &m);

            if (rc && rc != -ENOENT && rc != -ERANGE)
                fail("split answers %d", rc);
        } else if (item.page < GROUND_PAGES) {
            bpi_index_replace(&index_one, item.page, 0, item.frame,
                              below(r, 1024) * GROUND_PAGES + (uint32_t)item.page);
        }
    }
    bpi_magazine_drain(&nodes, &m);
}

/* Dirty ones become to-write, in batches; those become writeback, and clean. */
static void all_marker(struct worker *worker)
{
    struct rng *r = &worker->rng;

    while (!atomic_load(&stop)) {
        uint64_t last = below(r, GROUND_PAGES);
        uint64_t from = 0;
        struct index_item item;

        while (from <= last && !atomic_load(&stop)) {
            uint64_t next;
            unsigned n = bpi_index_mark_those(&index_one, from, last, INDEX_DIRTY, INDEX_TO_WRITE, 16, &next);

            if (n > 16 || next <= from || next > last + INDEX_SLOTS * INDEX_SLOTS)
                fail("mark those of %" PRIu64 "..%" PRIu64 ": %u, goes on at %" PRIu64, from, last, n, next);
            from = next;
        }
        for (from = 0; bpi_index_next_marked(&index_one, from, INDEX_TO_WRITE, &item); from = item_last(&item) + 1) {
            if (item_last(&item) < from || !item_belongs(&item))
                fail("to write after %" PRIu64 ": frame %u at %" PRIu64, from, item.frame, item.page);
            bpi_index_mark(&index_one, item.page, INDEX_WRITEBACK);
            bpi_index_unmark(&index_one, item.page, INDEX_TO_WRITE);
            if (item.page != KEPT_PAGE && bpi_index_unmark(&index_one, item.page, INDEX_DIRTY))
                atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
            bpi_index_unmark(&index_one, item.page, INDEX_WRITEBACK);
        }
    }
}

static void all_keeper(struct worker *worker)
{
    struct rng *r = &worker->rng;

    while (!atomic_load(&stop)) {
        uint64_t first = below(r, GROUND_PAGES);
        struct index_item item;

        if (bpi_index_discard(&index_one, first, first + below(r, 2000), &item) && !item_belongs(&item))
            fail("a discard met frame %u at %" PRIu64, item.frame, item.page);
        bpi_index_reclaim(&index_one, below(r, 3));
        if (below(r, 16) == 0 && !bpi_index_check(&index_one, NULL))
            fail("bpi_index_check says no");
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

static bool all_pin(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    uint64_t *next = arg;

    (void)before;
    (void)pages; /* one */
    if (page != *next || (page != KEPT_PAGE && !belongs(page, e)))
        fail("a batch pins frame %u at %" PRIu64, entry_number(e), page);
    *next = page + 1;
    return true;
}

/* One over all there is, one over what is dirty. In order, each once, to the page that is always there. */
static void all_iterator(struct worker *worker)
{
    bool marks = worker->number & 1;

    while (!atomic_load(&stop)) {
        bool there = atomic_load(&kept);
        uint64_t from = below(&worker->rng, GROUND_PAGES);
        uint64_t at = from;
        struct index_item item = {.page = UINT64_MAX};
        unsigned long found = 0;

        while (marks ? bpi_index_next_marked(&index_one, at, INDEX_DIRTY, &item)
                     : bpi_index_next(&index_one, at, &item)) {
            if (item_last(&item) < at || !item_belongs(&item))
                fail("after %" PRIu64 " comes frame %u at %" PRIu64, at, item.frame, item.page);
            at = item_last(&item) + 1;
            found++;
        }
        if (there && atomic_load(&kept) && item.page != KEPT_PAGE)
            fail("the way from page %" PRIu64 " ended before the page that is always there", from);
        urcu_bp_read_lock();
        at = from;
        index_batch(&index_one, from, from + 200, 100, all_pin, &at);
        urcu_bp_read_unlock();
        atomic_fetch_add_explicit(&checks, found, memory_order_relaxed);
    }
}

int main(int argc, char **argv)
{
    static void (*const run[])(struct worker *) = {all_iterator, all_iterator, all_filler, all_eraser,
                                                   all_splitter, all_marker,   all_keeper};
    bool good;

    seconds = 4;
    start_program(argc, argv);
    good = phase("everything", 4000, 1, run, 7);
    printf("%d passed, %d failed\n", good, !good);
    return good ? 0 : 1;
}
