/* SPDX-License-Identifier: MIT */
/*
 * The index between its stores. After every single store of a writer all watched pages are looked up, which is what a
 * fast reader would see that comes in between; and slow readers are moved on by a level now and then, so that they
 * stand inside nodes while these are emptied, taken out, split above them and linked elsewhere.
 *
 * fast: during one operation a page reads what it was before, and from some store on what it is after; never anything
 * else, and never back.
 *
 * slow: a walk that began at one store and ended at a later one answers with something the page was in between.
 *
 *   model_index_steps [SEED]    BP_STRESS_SECONDS: 3 by default
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <urcu/urcu-bp.h>

#include "bufpool/index.h"
#include "bufpool/sync_point.h"

#define WATCHED    40u
#define WALKERS    48u
#define EXTENTS    64u
#define RUN        8u
#define VALUES_MAX 12u
#define BATCH_OPS  60u /* in one read-side section: nodes are not reused within it */

struct watched {
    uint64_t page;
    index_entry before; /* the operation */
    index_entry now;    /* at the last store */
    unsigned changes;   /* in this operation */
};

/* A reader on its way down. */
struct walker {
    unsigned watched;
    bool at_root; /* has not even read the root */
    unsigned shift;
    index_entry e;
    index_entry value[VALUES_MAX]; /* what the page was since the walk began */
    unsigned values;
};

struct extent {
    uint64_t page;
    uint32_t frame;
    unsigned order;
};

static struct index_nodes nodes;
static struct index x;
static struct node_magazine magazine;
static struct watched watched[WATCHED];
static struct walker walker[WALKERS];
static struct extent extent[EXTENTS];
static unsigned extents;
static uint64_t base[3]; /* where the pages are */
static uint64_t rng_state;
static unsigned long stores;
static unsigned long walks;
static unsigned long too_many; /* walks during which a page changed more often than is noted */
static char failure[256];

static bool fail(const char *format, ...)
{
    va_list args;

    if (failure[0])
        return false;
    va_start(args, format);
    vsnprintf(failure, sizeof(failure), format, args);
    va_end(args);
    return false;
}

static uint32_t below(uint32_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state * 0x2545f4914f6cdd1dull) >> 33) % n;
}

static uint64_t mask_of(unsigned order)
{
    return (1ull << order) - 1;
}

static uint64_t some_page(void)
{
    static const unsigned spread[] = {2, 7, 13, 19};

    return base[below(3)] ^ below(1u << spread[below(4)]);
}

/* ---- slow readers ---- */

static void walker_start(struct walker *w)
{
    w->watched = below(WATCHED);
    w->at_root = true;
    w->values = 1;
    w->value[0] = watched[w->watched].now;
}

/* One level further. The end of a walk is judged. */
static void walker_step(struct walker *w)
{
    const struct watched *p = &watched[w->watched];

    if (w->at_root) {
        uint64_t root = atomic_load_explicit(&x.root, memory_order_acquire);

        w->at_root = false;
        w->shift = index_root_shift(root);
        w->e = index_root_entry(root);
        if (w->shift < 64 && p->page >> w->shift) {
            w->shift = 0;
            w->e = ENTRY_NONE;
        }
    } else if (w->shift) {
        w->shift -= INDEX_SHIFT;
        w->e = index_down(x.map, index_slots(w->e), p->page, w->shift);
        if (entry_is_end(w->e)) {
            w->e = index_answer(w->e, p->page, w->shift);
            w->shift = 0;
        }
    }
    if (w->shift)
        return;
    walks++;
    if (w->values > VALUES_MAX) {
        too_many++;
    } else {
        unsigned i = 0;

        while (i < w->values && w->value[i] != w->e)
            i++;
        if (i == w->values)
            fail("a slow reader of page %#" PRIx64 " found %#x; it was %#x and %u others", p->page, w->e, w->value[0],
                 w->values - 1);
    }
    walker_start(w);
}

/* ---- between two stores ---- */

static void look(const char *name)
{
    (void)name;
    stores++;
    for (unsigned i = 0; i < WATCHED; i++) {
        struct watched *p = &watched[i];
        index_entry e = bpi_index_load(&x, p->page);
        const _Atomic index_entry *slot = bpi_index_slot(&x, p->page);

        if (slot && atomic_load(slot) != e)
            fail("page %#" PRIx64 " reads %#x and its slot %#x", p->page, e, atomic_load(slot));
        if (e == p->now)
            continue;
        if (p->changes++)
            fail("page %#" PRIx64 " went from %#x over %#x to %#x in one operation", p->page, p->before, p->now, e);
        p->now = e;
        for (unsigned k = 0; k < WALKERS; k++)
            if (walker[k].watched == i && walker[k].values++ < VALUES_MAX)
                walker[k].value[walker[k].values - 1] = e;
    }
    for (unsigned k = 0; k < WALKERS; k++)
        if (below(8) == 0)
            walker_step(&walker[k]);
}

static void begin(void)
{
    for (unsigned i = 0; i < WATCHED; i++) {
        watched[i].before = watched[i].now;
        watched[i].changes = 0;
    }
}

/* ---- operations ---- */

static void do_insert(void)
{
    unsigned order = below(2) ? 0 : below(INDEX_ORDER_MAX + 1);
    struct extent *e = &extent[extents];
    struct index_insert met;

    e->page = some_page() & ~mask_of(order);
    e->order = order;
    e->frame = below(1u << 11) << INDEX_ORDER_MAX;
    if (bpi_index_insert(&x, e->page, order, e->frame, &magazine, &met) == 0)
        extents++;
    else
        for (unsigned i = 0; i < WATCHED; i++)
            if (watched[i].changes)
                fail("a conflict changed page %#" PRIx64, watched[i].page);
}

/* As far as there is nothing in the way. */
static void do_run(void)
{
    unsigned order = below(2) ? 0 : below(8);
    uint64_t page = some_page() & ~mask_of(order) & ~(1ull << 63);
    uint32_t frame[RUN];
    unsigned n = 1 + below(EXTENTS - extents < RUN ? EXTENTS - extents : RUN);
    struct index_insert met;

    for (unsigned i = 0; i < n; i++)
        frame[i] = below(1u << 11) << INDEX_ORDER_MAX;
    n = bpi_index_insert_run(&x, page, order, frame, n, &magazine, &met);
    for (unsigned i = 0; i < n; i++)
        extent[extents++] = (struct extent){page + ((uint64_t)i << order), frame[i], order};
}

/* In half of the cases a shadow like many others, so that nodes become one. */
static void do_erase(void)
{
    unsigned i = below(extents);
    struct extent e = extent[i];
    index_entry shadow = ENTRY_NONE;

    if (below(4))
        shadow = below(2) ? entry_of_shadow(7, 0, 0) : entry_of_shadow(below(1u << 20), e.order, below(4));
    extent[i] = extent[--extents];
    if (!bpi_index_erase(&x, e.page, e.order, e.frame, shadow))
        fail("order %u at %#" PRIx64 " cannot be erased", e.order, e.page);
}

static void do_replace(void)
{
    struct extent *e = &extent[below(extents)];
    uint32_t to = below(1u << 11) << INDEX_ORDER_MAX;

    if (!bpi_index_replace(&x, e->page, e->order, e->frame, to))
        fail("order %u at %#" PRIx64 " cannot be replaced", e->order, e->page);
    e->frame = to;
}

/* No page may change at all. */
static void do_split(void)
{
    unsigned i = below(extents);
    struct extent e = extent[i];
    unsigned order = e.order ? below(e.order) : 0;
    uint64_t page = e.page + (below(1u << e.order) & ~mask_of(order));

    if (EXTENTS - extents < e.order)
        return;
    if (bpi_index_split(&x, page, order, &magazine))
        fail("order %u at %#" PRIx64 " cannot be split", e.order, e.page);
    while (e.order > order) {
        uint64_t half = 1ull << --e.order;
        struct extent other = e;

        if (page >= e.page + half) {
            e.page += half;
            e.frame += (uint32_t)half;
        } else {
            other.page += half;
            other.frame += (uint32_t)half;
        }
        extent[extents++] = other;
    }
    extent[i] = e;
    for (i = 0; i < WATCHED; i++)
        if (watched[i].changes)
            fail("a split changed page %#" PRIx64, watched[i].page);
}

/* Shadows that no extent has anything to do with are cut as well. */
static void do_split_somewhere(void)
{
    unsigned order = below(INDEX_ORDER_MAX + 1);
    uint64_t page = some_page() & ~mask_of(order);

    if (!entry_is_frame(bpi_index_load(&x, page)))
        bpi_index_split(&x, page, order, &magazine);
    for (unsigned i = 0; i < WATCHED; i++)
        if (watched[i].changes)
            fail("a split changed page %#" PRIx64, watched[i].page);
}

static void do_discard(void)
{
    uint64_t first = some_page();
    uint64_t last = below(4) ? first + below(1u << 14) : UINT64_MAX;
    struct index_item item;

    if (last >= first && bpi_index_discard(&x, first, last, &item) && item.page > last)
        fail("a discard met page %#" PRIx64, item.page);
}

static void do_mark(void)
{
    bpi_index_mark(&x, extent[below(extents)].page, (enum index_mark)below(INDEX_MARKS));
    bpi_index_unmark(&x, extent[below(extents)].page, (enum index_mark)below(INDEX_MARKS));
}

static void one_operation(void)
{
    unsigned what = below(32);

    if (what < 2)
        bpi_index_reclaim(&x, 1 + below(2));
    else if (what < 3)
        do_discard();
    else if (what < 4)
        do_split_somewhere();
    else if (what < 7 && extents < EXTENTS)
        do_run();
    else if (extents < EXTENTS && (!extents || what < 17))
        do_insert();
    else if (what < 20)
        do_split();
    else if (what < 22)
        do_replace();
    else if (what < 23)
        do_mark();
    else
        do_erase();
}

static bool batch(void)
{
    for (unsigned i = 0; i < WATCHED; i++) {
        watched[i].page = some_page();
        watched[i].now = bpi_index_load(&x, watched[i].page);
    }
    for (unsigned k = 0; k < WALKERS; k++)
        walker_start(&walker[k]);
    urcu_bp_read_lock();
    for (unsigned op = 0; op < BATCH_OPS && !failure[0]; op++) {
        if (bpi_magazine_fill(&nodes, &magazine))
            return fail("no nodes: %u in use", atomic_load(&nodes.in_use));
        begin();
        atomic_store(&bpi_sync_hook, look);
        one_operation();
        atomic_store(&bpi_sync_hook, NULL);
    }
    urcu_bp_read_unlock();
    if (!bpi_index_check(&x, NULL))
        fail("bpi_index_check says no");
    return !failure[0];
}

static bool ground(void)
{
    static const unsigned at[] = {0, 6, 12, 18, 24, 30, 42, 60, 63};
    bool good = true;

    for (unsigned i = 0; i < 3; i++)
        base[i] = below(3) ? 1ull << at[below(9)] : below(2) ? 0 : UINT64_MAX;
    /* nobody fills a magazine outside of a section here, so nodes are used once: enough of them for one ground */
    if (bpi_nodes_open(&nodes, 1u << 16))
        return fail("no memory for nodes");
    bpi_index_init(&x, &nodes);
    for (unsigned i = 0; i < 8 && good; i++)
        good = batch();
    while (extents)
        do_erase();
    bpi_index_clear(&x);
    if (x.node_count)
        good = fail("%u nodes are left", x.node_count);
    bpi_magazine_drain(&nodes, &magazine);
    if (atomic_load(&nodes.in_use))
        good = fail("%u nodes are lost", atomic_load(&nodes.in_use));
    bpi_index_destroy(&x);
    bpi_nodes_close(&nodes);
    return good;
}

int main(int argc, char **argv)
{
    const char *more = getenv("BP_STRESS_SECONDS");
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    double seconds = more && atof(more) > 0 ? atof(more) : 3;
    struct timespec from;
    struct timespec now;
    unsigned long grounds = 0;
    bool good = true;

    printf("seed %" PRIu64 "\n", seed);
    rng_state = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        good = good && ground();
        grounds += good;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (good && (double)(now.tv_sec - from.tv_sec) + (double)(now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
    if (!good)
        fprintf(stderr, "%s\n", failure);
    printf("fan-out %u: %lu stores, %lu walks (%lu not judged)\n", INDEX_SLOTS, stores, walks, too_many);
    printf("%lu passed, %d failed\n", grounds, good ? 0 : 1);
    return good ? 0 : 1;
}
