/* SPDX-License-Identifier: MIT */
/*
 * The index under threads: readers in RCU sections against writers, few nodes, so that every node is reused again and
 * again. A reader may see of a page nothing but what was there at some moment of its call.
 *
 *   flip        page 0 stays, everything that makes the height change comes and goes a million times
 *   history     extents of all orders; each page has a short history that readers check their answers against; half of
 *               the readers dawdle on the way down, inside nodes that are taken out of the tree meanwhile
 *   one ground  several writers want the same pages; who got in stays until it leaves
 *   scarcity    as few nodes as can do: nobody is refused while others wait for a grace period
 *   outside     readers without a section: guesses, but no crash and no endless walk
 *
 *   stress_index [SEED]     BP_STRESS_SECONDS: for all of it, 7 by default. The sanitizer for threads does not see
 *                           liburcu's own ordering: TSAN_OPTIONS=suppressions=tests/tsan.supp (CMake sets it)
 */
#include "tests/stress/index_stress.h"

#define FLIPS        1000000u
#define WINDOW_ORDER INDEX_ORDER_MAX
#define WINDOW_PAGES (1u << WINDOW_ORDER)
#define WINDOWS      2u
#define PAST         8u /* generations that a page's history holds */

/* Small orders often, large ones seldom. */
static unsigned some_order(struct rng *r, unsigned max)
{
    return below(r, 1 + below(r, 1 + below(r, max + 1)));
}

/* A reader's walk with pauses on every level: where a node might be reused too early, it has the time. */
static index_entry dawdle(const struct index *x, uint64_t page, struct rng *r)
{
    uint64_t root = atomic_load_explicit(&x->root, memory_order_acquire);
    unsigned shift = index_root_shift(root);
    index_entry e = index_root_entry(root);

    if (shift < 64 && page >> shift)
        return ENTRY_NONE;
    while (shift) {
        if (below(r, 4) == 0)
            sched_yield();
        shift -= INDEX_SHIFT;
        e = index_down(x->map, index_slots(e), page, shift);
        if (entry_is_end(e))
            return index_answer(e, page, shift);
    }
    return e;
}

/* ---- flip ---- */

static _Atomic bool kept; /* page 0 is in */

static void flip_writer(struct worker *w)
{
    static const uint64_t far[] = {1, 64, 4096, 1ull << 24, 1ull << 36, UINT64_MAX};
    struct node_magazine m = {0};
    struct index_insert met;

    insert(&index_one, 0, 0, KEPT_FRAME, &m, &met);
    atomic_store(&kept, true);
    for (unsigned i = 0; i < FLIPS && !atomic_load(&stop); i++) {
        uint64_t page = below(&w->rng, 8) ? 1 : far[below(&w->rng, 6)];
        bool leave = below(&w->rng, 4) == 0;
        index_entry shadow = leave ? entry_of_shadow(i, 0, 0) : ENTRY_NONE;

        if (!insert(&index_one, page, 0, i, &m, &met) || !bpi_index_erase(&index_one, page, 0, i, shadow))
            fail("page %" PRIu64 " cannot come and go", page);
        if (leave)
            bpi_index_reclaim(&index_one, 1);
        atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
    }
    atomic_store(&stop, true);
    atomic_store(&kept, false);
    urcu_bp_synchronize_rcu(); /* readers look at `kept` inside their sections */
    bpi_index_erase(&index_one, 0, 0, KEPT_FRAME, ENTRY_NONE);
    bpi_magazine_drain(&nodes, &m);
}

static void flip_reader(struct worker *w)
{
    bool slow = w->number & 1;

    while (!atomic_load(&stop)) {
        index_entry e = ENTRY_NONE;
        bool looked;

        urcu_bp_read_lock();
        looked = atomic_load(&kept);
        if (looked)
            e = slow ? dawdle(&index_one, 0, &w->rng) : bpi_index_load(&index_one, 0);
        urcu_bp_read_unlock();
        if (looked && e != entry_of_frame(KEPT_FRAME))
            fail("page 0 read %#x", e);
        if (looked)
            atomic_fetch_add_explicit(&checks, 1, memory_order_relaxed);
    }
}

/* ---- history ---- */

/*
 * What a page was, by generation. The writer notes the next value, counts `started` up, changes the index, counts
 * `done` up. A reader's answer must be a value of a generation between `done` before and `started` after its walk.
 */
struct history {
    _Atomic uint32_t started;
    _Atomic uint32_t done;
    _Atomic index_entry value[PAST];
};

struct window {
    struct history *page;
    uint8_t *order;          /* writer's: order + 1 at the first page of an extent */
    _Atomic uint32_t recent; /* a page that changed lately */
    uint64_t base;
};

static struct window window[WINDOWS] = {{.base = 0}, {.base = UINT64_MAX - (WINDOW_PAGES - 1)}};

/* value: of the first page; step: what it grows by from page to page. */
static void history_start(struct window *w, uint32_t first, unsigned order, index_entry value, uint32_t step)
{
    for (uint32_t p = first; p < first + (1u << order); p++, value += step) {
        struct history *h = &w->page[p];
        uint32_t next = atomic_load_explicit(&h->started, memory_order_relaxed) + 1;

        atomic_store_explicit(&h->value[next % PAST], value, memory_order_release);
        atomic_store_explicit(&h->started, next, memory_order_release);
    }
    atomic_store_explicit(&w->recent, first, memory_order_relaxed);
}

static void history_done(struct window *w, uint32_t first, unsigned order)
{
    for (uint32_t p = first; p < first + (1u << order); p++) {
        struct history *h = &w->page[p];

        atomic_store_explicit(&h->done, atomic_load_explicit(&h->started, memory_order_relaxed), memory_order_release);
    }
    atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
}

/* The extent over a page, or a live one inside the block of an order there. */
static bool history_busy(const struct window *w, uint32_t page, unsigned order, uint32_t *first)
{
    for (unsigned k = 0; k <= WINDOW_ORDER; k++) {
        *first = page & ~((1u << k) - 1);
        if (w->order[*first] > k)
            return true;
    }
    for (*first = page; *first < page + (1u << order); ++*first)
        if (w->order[*first])
            return true;
    return false;
}

static void history_erase(struct window *w, struct rng *r, uint32_t first, bool leave)
{
    unsigned order = w->order[first] - 1u;
    struct history *h = &w->page[first];
    index_entry e = atomic_load(&h->value[atomic_load(&h->started) % PAST]);
    index_entry shadow = leave ? entry_of_shadow(below(r, 1u << 20), order, 1) : ENTRY_NONE;

    history_start(w, first, order, shadow, 0);
    if (!bpi_index_erase(&index_one, w->base + first, order, entry_number(e), shadow))
        fail("an extent of order %u at %u cannot be erased", order, first);
    history_done(w, first, order);
    w->order[first] = 0;
}

/* Make room: some extent goes. */
static void history_erase_any(struct window *w, struct rng *r)
{
    uint32_t from = below(r, WINDOW_PAGES);

    for (uint32_t i = 0; i < WINDOW_PAGES; i++) {
        uint32_t first = (from + i) % WINDOW_PAGES;

        if (w->order[first]) {
            history_erase(w, r, first, false);
            return;
        }
    }
}

static void history_insert(struct window *w, struct rng *r, struct node_magazine *m, uint32_t page, unsigned order)
{
    /* the low bits are the page's, so that a frame tells where it belongs */
    uint32_t frame = below(r, 1u << (30 - WINDOW_ORDER)) << WINDOW_ORDER | page;
    struct index_insert met;

    history_start(w, page, order, entry_of_frame(frame), 4);
    if (!insert(&index_one, w->base + page, order, frame, m, &met))
        fail("order %u at %u found a conflict at %" PRIu64, order, page, met.page - w->base);
    history_done(w, page, order);
    w->order[page] = (uint8_t)(order + 1);
}

static void history_writer(struct worker *worker)
{
    struct window *w = &window[worker->number % WINDOWS];
    struct node_magazine m = {0};
    struct rng *r = &worker->rng;
    uint32_t near = 0;

    while (!atomic_load(&stop)) {
        unsigned order = some_order(r, WINDOW_ORDER);
        uint32_t page;
        uint32_t first;
        struct index_insert met;

        if (below(r, 64) == 0)
            near = below(r, WINDOW_PAGES) & ~255u; /* work in one place for a while */
        page = (below(r, 8) ? near + below(r, 256) : below(r, WINDOW_PAGES)) & ~((1u << order) - 1);
        if (!history_busy(w, page, order, &first)) {
            history_insert(w, r, &m, page, order);
        } else {
            if (below(r, 8) == 0 && insert(&index_one, w->base + page, order, 0, &m, &met))
                fail("order %u at %u was entered over another", order, page);
            history_erase(w, r, first, below(r, 3) != 0);
        }
        if (below(r, 16) == 0 || atomic_load(&nodes.in_use) > nodes.limit - 4 * MAGAZINE_NODES)
            bpi_index_reclaim(&index_one, 4);
        while (atomic_load(&nodes.in_use) > nodes.limit - 3 * MAGAZINE_NODES && !atomic_load(&stop))
            history_erase_any(w, r);
    }
    for (uint32_t p = 0; p < WINDOW_PAGES; p++)
        if (w->order[p])
            history_erase(w, r, p, p & 1);
    bpi_magazine_drain(&nodes, &m);
}

/* Was this a value of the page between the two generations? Shadows may be reclaimed at any time. */
static bool history_has(struct history *h, uint32_t from, uint32_t to, index_entry e)
{
    for (uint32_t g = from; g != to + 1; g++) {
        index_entry v = atomic_load_explicit(&h->value[g % PAST], memory_order_acquire);

        if (v == e || (e == ENTRY_NONE && entry_is_shadow(v)))
            return true;
    }
    return false;
}

static void history_reader(struct worker *worker)
{
    struct rng *r = &worker->rng;
    bool slow = worker->number & 1;
    unsigned long compared = 0;

    while (!atomic_load(&stop)) {
        struct window *w = &window[below(r, WINDOWS)];
        uint32_t recent = atomic_load_explicit(&w->recent, memory_order_relaxed);
        uint32_t p = (below(r, 8) ? recent + below(r, 64) : below(r, WINDOW_PAGES)) & (WINDOW_PAGES - 1);
        struct history *h = &w->page[p];
        uint32_t from = atomic_load_explicit(&h->done, memory_order_acquire);
        uint32_t to;
        index_entry e;

        urcu_bp_read_lock();
        e = slow ? dawdle(&index_one, w->base + p, r) : bpi_index_load(&index_one, w->base + p);
        urcu_bp_read_unlock();
        to = atomic_load_explicit(&h->started, memory_order_acquire);
        if (to - from >= PAST - 1)
            continue;
        compared++;
        if (!history_has(h, from, to, e) && atomic_load(&h->started) - from < PAST - 1)
            fail("page %u of window %u read %#x, which it was not between generations %u and %u", p,
                 (unsigned)(w - window), e, from, to);
    }
    atomic_fetch_add(&checks, compared);
}

static bool history_phase(double share)
{
    static void (*const run[])(struct worker *) = {history_writer, history_writer, history_reader, history_reader};
    bool good = true;

    for (unsigned i = 0; i < WINDOWS; i++) {
        window[i].page = calloc(WINDOW_PAGES, sizeof(*window[i].page));
        window[i].order = calloc(WINDOW_PAGES, 1);
        good = good && window[i].page && window[i].order;
    }
    good = good ? phase("history", 600, share, run, 4) : fail("no memory for histories");
    for (unsigned i = 0; i < WINDOWS; i++) {
        free(window[i].page);
        free(window[i].order);
    }
    return good;
}

/* ---- one ground ---- */

#define HELD_MAX 64u

struct held {
    uint32_t page;
    uint32_t frame;
    unsigned order;
};

static void ground_writer(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct held held[HELD_MAX];
    struct node_magazine m = {0};
    unsigned n = 0;

    while (!atomic_load(&stop) || n) {
        if (n && (n == HELD_MAX || atomic_load(&stop) || below(r, 2))) {
            struct held *h = &held[below(r, n)];
            index_entry shadow = below(r, 3) ? entry_of_shadow(below(r, 1000), h->order, 0) : ENTRY_NONE;
            uint32_t at = below(r, 1u << h->order);

            if (bpi_index_load(&index_one, h->page + at) != entry_of_frame(h->frame + at))
                fail("page %u is ours and reads %#x", h->page + at, bpi_index_load(&index_one, h->page + at));
            if (!bpi_index_erase(&index_one, h->page, h->order, h->frame, shadow))
                fail("order %u at %u is ours and cannot be erased", h->order, h->page);
            *h = held[--n];
        } else {
            struct held *h = &held[n];
            struct index_insert met;

            h->order = below(r, 4) ? 0 : some_order(r, GROUND_ORDER);
            h->page = below(r, GROUND_PAGES) & ~((1u << h->order) - 1);
            h->frame = (worker->number << 10 | below(r, 1024)) * GROUND_PAGES + h->page;
            if (insert(&index_one, h->page, h->order, h->frame, &m, &met))
                n++;
            else if (met.page < h->page || met.page >= h->page + (1u << h->order) ||
                     !belongs(met.page, entry_of_frame(met.frame)))
                fail("conflict of order %u at %u: frame %u at %" PRIu64, h->order, h->page, met.frame, met.page);
        }
        if (below(r, 64) == 0)
            bpi_index_reclaim(&index_one, 1);
        atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
    }
    bpi_magazine_drain(&nodes, &m);
}

static void ground_reader(struct worker *worker)
{
    struct rng *r = &worker->rng;
    unsigned long compared = 0;

    while (!atomic_load(&stop)) {
        uint32_t page = below(r, GROUND_PAGES);
        index_entry e;
        struct index_item next;

        urcu_bp_read_lock();
        e = dawdle(&index_one, page, r);
        urcu_bp_read_unlock();
        if (!belongs(page, e) || entry_is_node(e))
            fail("page %u reads %#x", page, e);
        if (bpi_index_next(&index_one, page, &next) &&
            (next.page + (1ull << next.order) - 1 < page || !belongs((uint32_t)next.page, entry_of_frame(next.frame))))
            fail("next after %u: frame %u at %" PRIu64, page, next.frame, next.page);
        if (compared++ % 1024 == 0 && !bpi_index_check(&index_one, NULL))
            fail("bpi_index_check says no");
    }
    atomic_fetch_add(&checks, compared);
}

/* ---- scarcity ---- */

#define SCARCE_TREE    22u /* nodes of two pages at opposite ends, at the most, and what a shadow leaves */
#define SCARCE_THREADS 4u

static void scarce_writer(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct node_magazine m = {0};
    struct index own;

    bpi_index_init(&own, &nodes);
    while (!atomic_load(&stop)) {
        uint64_t page = below(r, 2) ? UINT64_MAX - below(r, 3) : below(r, 3);
        uint64_t other = ~page;
        struct index_insert met;

        if (insert(&own, page, 0, 1, &m, &met) && insert(&own, other, 0, 2, &m, &met)) {
            urcu_bp_read_lock();
            if (bpi_index_load(&own, page) != entry_of_frame(1))
                fail("page %" PRIu64 " reads %#x", page, bpi_index_load(&own, page));
            urcu_bp_read_unlock();
            if (own.node_count > SCARCE_TREE)
                fail("%u nodes for two pages", own.node_count);
            atomic_fetch_add_explicit(&checks, 1, memory_order_relaxed);
        }
        bpi_index_erase(&own, other, 0, 2, ENTRY_NONE);
        bpi_index_erase(&own, page, 0, 1, ENTRY_NONE);
        if (own.node_count)
            fail("%u nodes for nothing", own.node_count);
        atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
    }
    bpi_index_clear(&own);
    bpi_index_destroy(&own);
    bpi_magazine_drain(&nodes, &m);
}

/* ---- outside ---- */

static void outside_writer(struct worker *worker)
{
    struct rng *r = &worker->rng;
    struct node_magazine m = {0};
    struct index own[2];

    /* two indexes of different shapes exchange their nodes: leaves of one become upper levels of the other */
    bpi_index_init(&own[0], &nodes);
    bpi_index_init(&own[1], &nodes);
    while (!atomic_load(&stop)) {
        unsigned order = some_order(r, WINDOW_ORDER);
        uint64_t page = (below(r, 2) ? 1ull << (20 + below(r, 44)) : 0) + ((uint64_t)below(r, 1000) << order);
        uint32_t frame = below(r, 1u << 10) << INDEX_ORDER_MAX;
        struct index *x = below(r, 2) ? &index_one : &own[below(r, 2)];
        struct index_insert met;

        page &= ~((1ull << order) - 1);
        if (insert(x, page, order, frame, &m, &met)) {
            if (!bpi_index_erase(x, page, order, frame, below(r, 4) ? ENTRY_NONE : entry_of_shadow(1, order, 0)))
                fail("an extent of order %u cannot be erased", order);
        }
        bpi_index_reclaim(x, 1);
        atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
    }
    for (unsigned i = 0; i < 2; i++) {
        bpi_index_clear(&own[i]);
        bpi_index_destroy(&own[i]);
    }
    bpi_magazine_drain(&nodes, &m);
}

static void outside_reader(struct worker *worker)
{
    struct rng *r = &worker->rng;
    unsigned long compared = 0;

    while (!atomic_load(&stop)) {
        uint64_t page = (below(r, 2) ? 1ull << (20 + below(r, 44)) : 0) + below(r, 1u << 20);
        const _Atomic index_entry *slot = bpi_index_slot(&index_one, page);
        index_entry e = below(r, 2) ? bpi_index_load(&index_one, page) : dawdle(&index_one, page, r);

        if (slot)
            e |= atomic_load_explicit(slot, memory_order_acquire);
        compared += e != UINT32_MAX;
    }
    atomic_fetch_add(&checks, compared);
}

int main(int argc, char **argv)
{
    static void (*const flip[])(struct worker *) = {flip_writer, flip_reader, flip_reader};
    static void (*const ground[])(struct worker *) = {ground_writer, ground_writer, ground_writer, ground_reader};
    static void (*const scarce[])(struct worker *) = {scarce_writer, scarce_writer, scarce_writer, scarce_writer};
    static void (*const outside[])(struct worker *) = {outside_writer, outside_reader, outside_reader};
    unsigned long good = 0;

    seconds = 7;
    start_program(argc, argv);
    good += phase("flip", 200, 0.35, flip, 3);
    good += good == 1 && history_phase(0.3);
    good += good == 2 && phase("one ground", 600, 0.15, ground, 4);
    good +=
        good == 3 && phase("scarcity", SCARCE_THREADS * (SCARCE_TREE + MAGAZINE_NODES), 0.1, scarce, SCARCE_THREADS);
    good += good == 4 && phase("outside", 200, 0.1, outside, 3);
    printf("%lu passed, %d failed\n", good, good == 5 ? 0 : 1);
    return good == 5 ? 0 : 1;
}
