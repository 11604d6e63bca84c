/* SPDX-License-Identifier: MIT */
/*
 * The index alone: entering pages, each thread in its own part of one file, a tree of four levels.
 *
 *   multi-walk   how pages were added before: ask how large what is there is, since nodes to split it have to be had
 *                first; look whether it is live; ask again if it is a shadow, since nobody held anything meanwhile,
 *                and split it if it is too large; then store. Each on the same tree, as fast as it is
 *   one-walk     bpi_index_insert: conflict, order and position out of one descent under one lock
 *
 * Before each turn everything is put back as it was, untimed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bufpool/index.h"

#define PART_SHIFT  23 /* pages of a thread's part */
#define PAGES       (1u << 19)
#define SPLIT_ORDER 9u
#define SPLITS      (1u << (PART_SHIFT - SPLIT_ORDER))
#define RUN         64u
#define NODES       (1u << 18)

/* What a thread's part looks like before a turn. */
enum ground { GROUND_EMPTY, GROUND_PAGES, GROUND_SHADOWS, GROUND_LARGE };

struct insert {
    struct index_nodes nodes;
    struct index index;
    bool nodes_open;
};

/* ---- the two ways, and runs of both ---- */

static int store(struct bench_thread *t, uint64_t page)
{
    struct insert *f = t->fixture;
    struct node_magazine *m = t->local;
    struct index_insert met;
    int rc = bpi_magazine_fill(&f->nodes, m);

    if (!rc)
        rc = bpi_index_insert(&f->index, page, 0, (uint32_t)page, m, &met);
    t->sum += met.shadow;
    return rc;
}

static int look_then_store(struct bench_thread *t, uint64_t page)
{
    struct insert *f = t->fixture;
    struct node_magazine *m = t->local;
    int rc = bpi_index_order(&f->index, page) > 0 ? bpi_magazine_fill(&f->nodes, m) : 0;
    index_entry e = bpi_index_load(&f->index, page);

    if (entry_is_frame(e))
        return -EEXIST;
    if (!rc && e != ENTRY_NONE && bpi_index_order(&f->index, page) > 0)
        rc = bpi_index_split(&f->index, page, 0, m);
    return rc ? rc : store(t, page);
}

static uint64_t part(const struct bench_thread *t)
{
    return (uint64_t)t->number << PART_SHIFT;
}

/* Pages one after the other. */
static int sequence(struct bench_thread *t, uint64_t ops, int (*enter)(struct bench_thread *, uint64_t))
{
    uint64_t page = part(t);
    int rc = ops <= PAGES ? 0 : -E2BIG;

    for (uint64_t i = 0; i < ops && !rc; i++)
        rc = enter(t, page + i);
    return rc;
}

static int sequence_one(struct bench_thread *t, uint64_t ops)
{
    return sequence(t, ops, store);
}

static int sequence_multi(struct bench_thread *t, uint64_t ops)
{
    return sequence(t, ops, look_then_store);
}

/* One page in each of the large shadows, not always the same. */
static uint64_t in_block(const struct bench_thread *t, uint64_t i)
{
    return part(t) + (i << SPLIT_ORDER) + i * 37 % (1u << SPLIT_ORDER);
}

static int split_loop(struct bench_thread *t, uint64_t ops, int (*enter)(struct bench_thread *, uint64_t))
{
    int rc = ops <= SPLITS ? 0 : -E2BIG;

    for (uint64_t i = 0; i < ops && !rc; i++)
        rc = enter(t, in_block(t, i));
    return rc;
}

static int split_one(struct bench_thread *t, uint64_t ops)
{
    return split_loop(t, ops, store);
}

static int split_multi(struct bench_thread *t, uint64_t ops)
{
    return split_loop(t, ops, look_then_store);
}

/* What is there already is refused: page after page, again and again. */
static int exists_one(struct bench_thread *t, uint64_t ops)
{
    struct insert *f = t->fixture;
    struct node_magazine *m = t->local;
    uint64_t first = part(t);
    uint64_t refused = 0;
    struct index_insert met;
    int rc = bpi_magazine_fill(&f->nodes, m); /* a refusal takes nothing of it */

    for (uint64_t i = 0; i < ops; i++)
        refused += bpi_index_insert(&f->index, first + i % PAGES, 0, 0, m, &met) == -EEXIST;
    return rc ? rc : refused == ops ? 0 : -EUCLEAN;
}

static int exists_multi(struct bench_thread *t, uint64_t ops)
{
    uint64_t first = part(t);
    uint64_t refused = 0;

    for (uint64_t i = 0; i < ops; i++)
        refused += look_then_store(t, first + i % PAGES) == -EEXIST;
    return refused == ops ? 0 : -EUCLEAN;
}

/* Runs of 64, as readahead enters them: the frames are at hand. */
static int run_batch(struct bench_thread *t, uint64_t ops)
{
    struct insert *f = t->fixture;
    struct node_magazine *m = t->local;
    uint64_t page = part(t);
    uint32_t frame[RUN];
    struct index_insert met;
    int rc = ops <= PAGES ? 0 : -E2BIG;

    for (unsigned k = 0; k < RUN; k++)
        frame[k] = k;
    for (uint64_t i = 0; i < ops && !rc;) {
        unsigned n = ops - i < RUN ? (unsigned)(ops - i) : RUN;

        rc = bpi_magazine_fill(&f->nodes, m);
        i += rc ? 0 : bpi_index_insert_run(&f->index, page + i, 0, frame, n, m, &met);
    }
    return rc;
}

static int erase_all(struct bench_thread *t, uint64_t ops)
{
    struct insert *f = t->fixture;
    uint64_t page = part(t);
    int rc = ops <= PAGES ? 0 : -E2BIG;

    for (uint64_t i = 0; i < ops && !rc; i++)
        if (!bpi_index_erase(&f->index, page + i, 0, (uint32_t)(page + i), entry_of_shadow((uint32_t)i, 0, 0)))
            rc = -EUCLEAN;
    return rc;
}

/* ---- two threads ---- */

/* Only the first thread works, for all of them. */
static int alone(struct bench_thread *t, uint64_t ops)
{
    return t->number == 0 ? sequence(t, ops * t->count, store) : 0;
}

/* ---- set-up ---- */

/* Everything of a thread's part goes. */
static int empty(struct bench_thread *t)
{
    struct insert *f = t->fixture;
    uint64_t first = part(t);
    uint64_t last = first + (1u << PART_SHIFT) - 1;
    struct index_item item;

    while (bpi_index_discard(&f->index, first, last, &item))
        if (!bpi_index_erase(&f->index, item.page, item.order, item.frame, ENTRY_NONE))
            return -EUCLEAN;
    return 0;
}

/* Extents of an order, all over the part or so many of them; then, if wanted, only their shadows. */
static int cover(struct bench_thread *t, unsigned order, uint64_t count, bool evicted)
{
    struct insert *f = t->fixture;
    struct node_magazine *m = t->local;
    int rc = 0;

    for (uint64_t i = 0; i < count && !rc; i++) {
        uint64_t page = part(t) + (i << order);
        struct index_insert met;

        rc = bpi_magazine_fill(&f->nodes, m);
        if (!rc)
            rc = bpi_index_insert(&f->index, page, order, (uint32_t)page, m, &met);
        /* no two neighbours alike, or they would be made one */
        if (!rc && evicted &&
            !bpi_index_erase(&f->index, page, order, (uint32_t)page, entry_of_shadow((uint32_t)i, order, 0)))
            rc = -EUCLEAN;
    }
    return rc;
}

static int prepare(struct bench_thread *t, enum ground ground)
{
    int rc = empty(t);

    if (!rc && ground != GROUND_EMPTY)
        rc =
            ground == GROUND_LARGE ? cover(t, SPLIT_ORDER, SPLITS, true) : cover(t, 0, PAGES, ground == GROUND_SHADOWS);
    return rc;
}

static int prepare_empty(struct bench_thread *t)
{
    return prepare(t, GROUND_EMPTY);
}
static int prepare_pages(struct bench_thread *t)
{
    return prepare(t, GROUND_PAGES);
}
static int prepare_shadows(struct bench_thread *t)
{
    return prepare(t, GROUND_SHADOWS);
}
static int prepare_large(struct bench_thread *t)
{
    return prepare(t, GROUND_LARGE);
}

static int insert_open(const struct bench *b, void **fixture)
{
    struct insert *f = aligned_alloc(_Alignof(struct insert), sizeof(*f));
    struct node_magazine m = {.count = 0};
    struct index_insert met;
    int rc;

    *fixture = f;
    if (!f)
        return bench_error("no memory");
    memset(f, 0, sizeof(*f));
    if (b->threads > 16)
        return bench_error("at most 16 threads here");
    if (bpi_nodes_open(&f->nodes, NODES * b->threads))
        return bench_error("no memory");
    f->nodes_open = true;
    bpi_index_init(&f->index, &f->nodes);
    /* the last page of all parts, so that the tree has its height at once */
    rc = bpi_magazine_fill(&f->nodes, &m);
    if (!rc)
        rc = bpi_index_insert(&f->index, (1u << (PART_SHIFT + 1)) - 1, 0, 0, &m, &met);
    bpi_magazine_drain(&f->nodes, &m);
    return rc ? bench_code(rc, "filling the index") : 0;
}

static int insert_thread_open(struct bench_thread *t)
{
    t->local = aligned_alloc(128, (sizeof(struct node_magazine) + 127) / 128 * 128);
    if (!t->local)
        return -ENOMEM;
    memset(t->local, 0, sizeof(struct node_magazine));
    return 0;
}

static void insert_thread_close(struct bench_thread *t)
{
    struct insert *f = t->fixture;

    if (!t->local)
        return;
    empty(t);
    bpi_magazine_drain(&f->nodes, t->local);
    free(t->local);
}

static int insert_check(void *fixture)
{
    struct insert *f = fixture;

    return bpi_index_check(&f->index, NULL) ? 0 : bench_error("the index is damaged");
}

static void insert_close(void *fixture)
{
    struct insert *f = fixture;
    struct index_item item;

    if (!f)
        return;
    if (f->nodes_open) {
        while (bpi_index_next(&f->index, 0, &item))
            bpi_index_erase(&f->index, item.page, item.order, item.frame, ENTRY_NONE);
        bpi_index_clear(&f->index);
        bpi_index_destroy(&f->index);
        bpi_nodes_close(&f->nodes);
    }
    free(f);
}

#define FIXTURE(how)                                                                   \
    {                                                                                  \
        .open = insert_open, .close = insert_close, .thread_open = insert_thread_open, \
        .thread_close = insert_thread_close, .prepare = how, .check = insert_check     \
    }

static const struct bench_fixture on_empty = FIXTURE(prepare_empty);
static const struct bench_fixture on_pages = FIXTURE(prepare_pages);
static const struct bench_fixture on_shadows = FIXTURE(prepare_shadows);
static const struct bench_fixture on_large = FIXTURE(prepare_large);

static const struct bench_variant sequence_variants[] = {{.name = "multi-walk", .loop = sequence_multi},
                                                         {.name = "one-walk", .loop = sequence_one}};
static const struct bench_variant split_variants[] = {{.name = "multi-walk", .loop = split_multi},
                                                      {.name = "one-walk", .loop = split_one}};
static const struct bench_variant exists_variants[] = {{.name = "multi-walk", .loop = exists_multi},
                                                       {.name = "one-walk", .loop = exists_one}};
static const struct bench_variant run_variants[] = {{.name = "one-by-one", .loop = sequence_one},
                                                    {.name = "run-64", .loop = run_batch}};
static const struct bench_variant erase_variants[] = {{.name = "erase", .loop = erase_all}};
static const struct bench_variant two_variants[] = {{.name = "alone", .loop = alone},
                                                    {.name = "together", .loop = sequence_one}};

#define CASE(its_name, its_text, its_fixture, variants, its_ops)                          \
    {                                                                                     \
        .name = its_name, .text = its_text, .fixture = &its_fixture, .variant = variants, \
        .variant_count = BENCH_COUNT(variants), .ops = its_ops, .clock = BENCH_CPU        \
    }

const struct bench_case bench_index_insert =
    CASE("index-insert", "pages in sequence, over nothing", on_empty, sequence_variants, PAGES);
const struct bench_case bench_index_insert_shadow =
    CASE("index-insert-shadow", "pages in sequence, over shadows of pages", on_shadows, sequence_variants, PAGES);
const struct bench_case bench_index_insert_split =
    CASE("index-insert-split", "a page into the shadow of 512", on_large, split_variants, SPLITS);
const struct bench_case bench_index_insert_exists =
    CASE("index-insert-exists", "pages that are there already, in sequence", on_pages, exists_variants, PAGES);
const struct bench_case bench_index_insert_run =
    CASE("index-insert-run", "pages in sequence, over nothing, 64 at once", on_empty, run_variants, PAGES);
const struct bench_case bench_index_erase =
    CASE("index-erase", "pages in sequence, each leaving a shadow", on_pages, erase_variants, PAGES);
const struct bench_case bench_index_insert_two = {
    .name = "index-insert-two",
    .text = "two threads, different leaves of one file; alone: one of them does the work of both",
    .fixture = &on_empty,
    .variant = two_variants,
    .variant_count = BENCH_COUNT(two_variants),
    .ops = PAGES / 2,
    .clock = BENCH_WALL,
    .threads = 2};
