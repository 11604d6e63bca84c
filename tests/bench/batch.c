/* SPDX-License-Identifier: MIT */
/*
 * The index alone: runs of pages that are there, looked up and pinned, from a page at random on.
 *
 *   step-after     the cursor always steps on to the next page, and then finds out that it was not wanted any more: one
 *                  step too many, at the end of a leaf a whole walk
 *   stop-at-last   index_batch: the bound is asked before stepping
 *   held           the leaf is held and pins all of its pages at once; their entries stay where they are
 *
 * Pinning is what the pool does: the state word examined, the identity compared, one CAS. Put back once a turn. With a
 * leaf held there is no CAS a page, but the same questions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bufpool/frame.h"
#include "bufpool/index.h"

#define PAGES (1u << 19)
#define MOST  31u

struct batch {
    struct index_nodes nodes;
    struct index index;
    struct frame *frame;
    bool nodes_open;
};

struct pinned {
    struct frame *frame;
    index_entry entry[MOST];
};

/* The descriptor of a frame by its entry, which is its number times 4 and the tag. */
static inline struct frame *frame_of(struct frame *frame, index_entry e)
{
    const size_t step = sizeof(*frame) / 4;

    return (struct frame *)(void *)((char *)frame + (e * step - ENTRY_FRAME * step));
}

/* An extent of several pages, or one that could be warmer. */
static __attribute__((noinline)) bool pin_any(struct frame *f, uint64_t page, uint64_t *pages)
{
    uint64_t seen = frame_load(f);

    *pages = 1ull << frame_order(seen);
    return (seen & (FRAME_BOUND | FRAME_EXCL)) == FRAME_BOUND && frame_id(f) == page && frame_pin_from(f, seen);
}

static inline bool pin_hot(struct frame *f, uint64_t seen)
{
    return atomic_compare_exchange_strong_explicit(&f->state, &seen, seen + FRAME_PIN, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* A page that is as warm as can be: all questions at once. */
static inline bool pin(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct pinned *p = arg;
    struct frame *f = frame_of(p->frame, e);
    uint64_t seen = frame_load(f);
    uint64_t many;

    p->entry[before] = e;
    if (likely(((seen + 1) & BP_HOT_GET) == 0) && likely(frame_id(f) == page) && likely(pin_hot(f, seen)))
        return true;
    if (!pin_any(f, page, &many))
        return false;
    *pages = many;
    return true;
}

/* ---- one count for all ---- */

/* A page of a leaf that is held: seq_cst, as in the pool's runs. A run does not warm what it passes. */
static inline bool usable(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct pinned *p = arg;
    struct frame *f = frame_of(p->frame, e);
    uint64_t seen = atomic_load_explicit(&f->state, memory_order_seq_cst);

    (void)before;
    (void)pages;
    return likely((seen & (FRAME_EXCL | FRAME_ORDER)) == 0) && likely(frame_id(f) == page);
}

/* The leaves that a run is in: two at the most. */
struct held {
    struct node_head *leaf[2];
    const _Atomic index_entry *slot[2]; /* of the first page in each */
};

static inline __attribute__((always_inline)) uint64_t hold_run(struct index *x, uint64_t page, uint64_t most,
                                                               struct pinned *p, struct held *h)
{
    uint64_t left = most;

    h->leaf[1] = NULL;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t room = INDEX_SLOTS - page % INDEX_SLOTS;
        uint64_t pages;

        h->leaf[i] = index_hold(x, page, &h->slot[i]);
        if (unlikely(!h->leaf[i]))
            break;
        left -= index_slots_run(h->slot[i], true, &page, room < left ? room : left, 0, &pages, usable, p);
        if (likely(!left) || unlikely(!pages))
            break;
    }
    return most - left;
}

static inline void unhold_run(const struct held *h)
{
    for (unsigned i = 0; i < 2 && h->leaf[i]; i++)
        index_unhold(h->leaf[i]);
}

/* ---- the old way ---- */

struct cursor {
    const struct index *x;
    const _Atomic index_entry *slot; /* NULL: above the leaves */
    uint64_t page;
};

static inline index_entry cursor_load(struct cursor *c)
{
    index_entry e;

    if (index_reach(c->x, c->page, &c->slot, &e))
        return atomic_load_explicit(c->slot, memory_order_acquire);
    c->slot = NULL;
    return e;
}

/* To the page after one that had so many from the cursor's page on. */
static inline index_entry cursor_step(struct cursor *c, uint64_t pages)
{
    uint64_t page = c->page;

    c->page += pages;
    if (unlikely(!c->slot || (page ^ c->page) >= INDEX_SLOTS))
        return cursor_load(c);
    c->slot += pages;
    return atomic_load_explicit(c->slot, memory_order_acquire);
}

static inline size_t step_after(const struct index *x, uint64_t page, uint64_t last, size_t most, struct pinned *p)
{
    struct cursor c = {.x = x, .page = page};
    size_t count = 0;

    for (index_entry e = cursor_load(&c); entry_is_frame(e) && c.page <= last && count < most; count++) {
        uint64_t pages = 1;

        if (!pin(p, count, c.page, e, &pages))
            break;
        e = cursor_step(&c, pages);
    }
    return count;
}

/* ---- loops ---- */

static inline __attribute__((always_inline)) int look(struct bench_thread *t, uint64_t ops, unsigned n, bool stop)
{
    const struct batch *b = t->fixture;
    uint64_t random = t->random;
    struct pinned p = {.frame = b->frame};

    while (ops--) {
        uint64_t page = bench_random_page(&random, PAGES - MOST);
        size_t got;

        got = stop ? index_batch(&b->index, page, page + n - 1, n, pin, &p)
                   : step_after(&b->index, page, page + n - 1, n, &p);
        if (unlikely(got != n))
            return -EUCLEAN;
        t->sum += p.entry[n - 1];
    }
    t->random = random;
    return 0;
}

static inline __attribute__((always_inline)) int look_held(struct bench_thread *t, uint64_t ops, unsigned n)
{
    struct batch *b = t->fixture;
    uint64_t random = t->random;
    struct pinned p = {.frame = b->frame};

    while (ops--) {
        uint64_t page = bench_random_page(&random, PAGES - MOST);
        struct held h;

        if (unlikely(hold_run(&b->index, page, n, &p, &h) != n))
            return -EUCLEAN;
        t->sum += atomic_load_explicit(h.slot[0], memory_order_relaxed);
        unhold_run(&h);
    }
    t->random = random;
    return 0;
}

#define LOOPS(n)                                                                                       \
    static int after_##n(struct bench_thread *t, uint64_t ops)                                         \
    {                                                                                                  \
        return look(t, ops, n, false);                                                                 \
    }                                                                                                  \
    static int at_last_##n(struct bench_thread *t, uint64_t ops)                                       \
    {                                                                                                  \
        return look(t, ops, n, true);                                                                  \
    }                                                                                                  \
    static int held_##n(struct bench_thread *t, uint64_t ops)                                          \
    {                                                                                                  \
        return look_held(t, ops, n);                                                                   \
    }                                                                                                  \
    static const struct bench_variant variants_##n[] = {{.name = "step-after", .loop = after_##n},     \
                                                        {.name = "stop-at-last", .loop = at_last_##n}, \
                                                        {.name = "held", .loop = held_##n}};
LOOPS(1)
LOOPS(4)
LOOPS(16)
LOOPS(31)

/* ---- set-up ---- */

/* Nothing is pinned, everything is there. */
static int batch_prepare(struct bench_thread *t)
{
    const struct batch *b = t->fixture;

    for (uint32_t i = t->number; i < PAGES; i += t->count)
        atomic_store_explicit(&b->frame[i].state, FRAME_BOUND | FRAME_HEAT, memory_order_relaxed);
    return 0;
}

static int batch_open(const struct bench *unused, void **fixture)
{
    struct batch *b = aligned_alloc(_Alignof(struct batch), sizeof(*b));
    struct node_magazine m = {.count = 0};
    struct index_insert met;
    int rc = 0;

    (void)unused;
    *fixture = b;
    if (!b)
        return bench_error("no memory");
    memset(b, 0, sizeof(*b));
    b->frame = bench_alloc(PAGES * sizeof(*b->frame), true);
    if (!b->frame || bpi_nodes_open(&b->nodes, PAGES / INDEX_SLOTS * 2))
        return bench_error("no memory");
    b->nodes_open = true;
    bpi_index_init(&b->index, &b->nodes);
    for (uint32_t page = 0; page < PAGES && !rc; page++) {
        atomic_store_explicit(&b->frame[page].id, page, memory_order_relaxed);
        rc = bpi_magazine_fill(&b->nodes, &m);
        if (!rc)
            rc = bpi_index_insert(&b->index, page, 0, page, &m, &met);
    }
    bpi_magazine_drain(&b->nodes, &m);
    return rc ? bench_code(rc, "filling the index") : 0;
}

static void batch_close(void *fixture)
{
    struct batch *b = fixture;

    if (!b)
        return;
    if (b->nodes_open) {
        for (uint32_t page = 0; page < PAGES; page++)
            bpi_index_erase(&b->index, page, 0, page, ENTRY_NONE);
        bpi_index_clear(&b->index);
        bpi_index_destroy(&b->index);
        bpi_nodes_close(&b->nodes);
    }
    bench_free(b->frame, PAGES * sizeof(*b->frame));
    free(b);
}

static int batch_thread_open(struct bench_thread *t)
{
    (void)t;
    return 0;
}

static void batch_thread_close(struct bench_thread *t)
{
    (void)t;
}

static const struct bench_fixture fixture = {.open = batch_open,
                                             .close = batch_close,
                                             .thread_open = batch_thread_open,
                                             .thread_close = batch_thread_close,
                                             .prepare = batch_prepare};

#define CASE(n)                                                                                            \
    const struct bench_case bench_index_batch_##n = {.name = "index-batch-" #n,                            \
                                                     .text = #n " page(s) in a row, looked up and pinned", \
                                                     .fixture = &fixture,                                  \
                                                     .variant = variants_##n,                              \
                                                     .variant_count = BENCH_COUNT(variants_##n),           \
                                                     .ops = 1000000 / n,                                   \
                                                     .clock = BENCH_CPU}
CASE(1);
CASE(4);
CASE(16);
CASE(31);
