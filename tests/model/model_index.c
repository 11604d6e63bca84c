/* SPDX-License-Identifier: MIT */
/*
 * The index against its model (index_model.h).
 *
 *   exhaustive   all sequences of a given length over small alphabets of operations that meet at the edges of nodes
 *   random       long sequences of all operations and orders in windows at the ends and seams of the index space, two
 *                indexes over one array of nodes; in half of the rounds with fewer nodes than are wanted, in half of
 *                them with a clock that stands, so that shadows become equal and nodes become one, in some without the
 *                arrays of leaves
 *
 *   model_index [SEED]      the seed is printed; BP_STRESS_SECONDS lengthens the random part
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/model/index_model.h"

#define ROUND_OPS    1500u
#define NODES_PLENTY 65536u

static unsigned long passed;

/* ---- exhaustive ---- */

#define ONE   INDEX_SLOTS         /* pages of a leaf */
#define TWO   (INDEX_SLOTS * ONE) /* of a node above leaves */
#define LEVEL (INDEX_SHIFT * 2)   /* the order of such a node */
#define BIG   (1ull << INDEX_ORDER_MAX)

static const struct op small[] = {
    {OP_INSERT, 0, 0},   {OP_INSERT, 1, 0},         {OP_INSERT, 0, 1},  {OP_INSERT, 0, INDEX_SHIFT},
    {OP_INSERT, ONE, 0}, {OP_LEAVE, 0, 0},          {OP_ERASE, 0, 0},   {OP_LEAVE, 1, 0},
    {OP_ERASE, 1, 0},    {OP_LEAVE, ONE, 0},        {OP_ERASE, ONE, 0}, {OP_RECLAIM, 1, 0},
    {OP_SPLIT, 0, 0},    {OP_MARK, 0, INDEX_DIRTY}, {OP_DISCARD, 0, 2},
};
static const struct op splits[] = {
    {OP_INSERT, 0, LEVEL + 1},
    {OP_INSERT, 0, LEVEL},
    {OP_INSERT, TWO, INDEX_SHIFT + 1},
    {OP_INSERT, TWO + ONE + 1, 0},
    {OP_INSERT, TWO + ONE, INDEX_SHIFT},
    {OP_INSERT, 2 * TWO - 1, 0},
    {OP_LEAVE, 0, 0},
    {OP_LEAVE, TWO, 0},
    {OP_LEAVE, TWO + ONE + 1, 0},
    {OP_LEAVE, 2 * TWO - 1, 0},
    {OP_ERASE, TWO + ONE + 1, 0},
    {OP_ERASE, 2 * TWO - 1, 0},
    {OP_RECLAIM, 1, 0},
    {OP_SPLIT, TWO + ONE + 1, 0},
    {OP_SPLIT, 0, INDEX_SHIFT},
    {OP_MARK, TWO, INDEX_WRITEBACK},
    {OP_DISCARD, 1, 2 * TWO},
};
static const struct op edges[] = {
    {OP_INSERT, 0, 0},
    {OP_INSERT, ONE - 1, 0},
    {OP_INSERT, ONE, INDEX_SHIFT},
    {OP_INSERT, 0, INDEX_SHIFT + 1},
    {OP_INSERT, 0, LEVEL},
    {OP_INSERT, 0, INDEX_ORDER_MAX},
    {OP_INSERT, TWO, 0},
    {OP_INSERT, BIG, INDEX_ORDER_MAX},
    {OP_INSERT, 1ull << 24, 0},
    {OP_INSERT, 1ull << 60, INDEX_ORDER_MAX},
    {OP_INSERT, PAGE_LAST, 0},
    {OP_INSERT, PAGE_LAST - (ONE - 1), INDEX_SHIFT},
    {OP_INSERT, PAGE_LAST - (BIG - 1), INDEX_ORDER_MAX},
    {OP_SPLIT, PAGE_LAST, 0},
    {OP_SPLIT, BIG, 3},
    {OP_MARK, PAGE_LAST, INDEX_DIRTY},
    {OP_MARK, 0, INDEX_DIRTY},
    {OP_UNMARK, PAGE_LAST, INDEX_DIRTY},
    {OP_COPY_MARKS, PAGE_LAST - 9, 10},
    {OP_DISCARD, PAGE_LAST - 99, 100},
    {OP_LEAVE, 0, 0},
    {OP_ERASE, 0, 0},
    {OP_LEAVE, ONE, 0},
    {OP_ERASE, ONE, 0},
    {OP_LEAVE, BIG, 0},
    {OP_LEAVE, 1ull << 60, 0},
    {OP_LEAVE, PAGE_LAST, 0},
    {OP_ERASE, PAGE_LAST, 0},
    {OP_RECLAIM, 1, 0},
    {OP_RECLAIM, RECLAIM_ALL, 0},
};

static bool exhaustive(unsigned more)
{
    bool good = all_sequences("small", small, COUNT(small), 4 + more) &&
                all_sequences("splits", splits, COUNT(splits), 3 + more) &&
                all_sequences("edges", edges, COUNT(edges), 3 + more);

    passed += good;
    return good;
}

/* ---- random ---- */

/* Where a round happens: windows of 2^size pages. */
struct ground {
    uint64_t base[3];
    unsigned bases;
    unsigned size;
    unsigned order_max;
    unsigned fullness; /* of 16: how often something is entered */
};

static void choose_ground(struct ground *g)
{
    static const unsigned seam[] = {6, 12, 18, 24, 30, 36, 48, 54, 60, 63};

    g->bases = 1 + (unsigned)below(3);
    g->size = (unsigned)below(20);
    g->order_max = (unsigned)below(INDEX_ORDER_MAX + 1);
    g->fullness = 5 + (unsigned)below(8);
    if (g->order_max > g->size)
        g->order_max = g->size;
    for (unsigned i = 0; i < g->bases; i++) {
        uint64_t base = 1ull << (below(2) ? seam[below(COUNT(seam))] : below(64 / INDEX_SHIFT) * INDEX_SHIFT);

        switch (below(4)) {
        case 0:
            base = 0;
            break;
        case 1:
            base = PAGE_LAST;
            break;
        case 2:
            base--;
            break;
        default:
            break;
        }
        g->base[i] = base & ~mask_of(g->size);
    }
}

static uint64_t some_page(const struct ground *g)
{
    return g->base[below(g->bases)] + (rng() & mask_of(g->size));
}

static unsigned some_order(const struct ground *g)
{
    return below(2) ? (unsigned)below(g->order_max + 1) : (unsigned)below(below(g->order_max + 1) + 1);
}

/* What is not there cannot be erased, replaced or split. */
static bool deny(unsigned which, const struct item *i)
{
    struct item it = *i; /* the model moves when something does happen */
    unsigned other = it.order && below(2) ? 0 : (it.order + 1u + (unsigned)below(5)) % (INDEX_ORDER_MAX + 1);
    uint64_t away = it.page ^ (1ull << below(64));

    return do_erase(which, it.page, other, it.value, true) &&
           do_erase(which, it.page, it.order, it.value ^ 1u, false) &&
           do_erase(which, away, it.order, it.value, true) && do_replace(which, it.page, other, it.value, 0) &&
           do_replace(which, away, it.order, it.value, 0);
}

static bool mark_op(unsigned which, const struct ground *g, uint64_t page)
{
    enum index_mark mark = (enum index_mark)below(INDEX_MARKS);
    uint64_t last = some_page(g);

    switch (below(4)) {
    case 0:
        return do_mark(which, page, mark, false);
    case 1:
        return do_mark_those(which, page < last ? page : last, page < last ? last : page, mark,
                             (enum index_mark)below(INDEX_MARKS), 1 + (unsigned)below(20));
    default:
        return do_mark(which, page, mark, true);
    }
}

static bool random_op(const struct ground *g)
{
    unsigned which = (unsigned)below(INDEXES);
    struct model *m = &model_of[which];
    uint64_t page = some_page(g);
    unsigned order = some_order(g);
    const struct item *i = m->count ? &m->item[below(m->count)] : NULL;
    bool room = m->count < ITEMS_MAX - RUN_MAX - 128;
    uint64_t near = i && below(4) ? i->page + (rng() & mask_of(i->order)) : page; /* where something is */

    clock_now += clock_coarse ? below(40) == 0 : below(500);
    switch (below(32)) {
    case 0:
        return do_reclaim(which, 1 + (unsigned)below(3));
    case 1:
        return same_around(which, page) && same_page(which, page) && same_page(which, rng());
    case 2:
        return !i || deny(which, i);
    case 3:
    case 4:
        return !room || do_split(which, near & ~mask_of(order), order);
    case 5:
        return !i || do_replace_at(which, near, (uint32_t)(rng() & ENTRY_NUMBER_MAX));
    case 6: /* from one page to another, seldom over everything */
        return do_discard(which, page < near ? page : near, page < near ? near : below(8) ? page : PAGE_LAST);
    case 7:
    case 8:
    case 9:
        return mark_op(which, g, near);
    case 10:
        return same_batch(which, near, below(4) ? some_page(g) : PAGE_LAST, (unsigned)below(70));
    case 11:
        page &= ~mask_of(order);
        return !room || page > PAGE_LAST - ((uint64_t)RUN_MAX << order) ||
               do_run(which, page, order, 1 + (unsigned)below(RUN_MAX));
    default:
        break;
    }
    if (room && below(16) < g->fullness)
        return do_insert(which, page & ~mask_of(order), order, (uint32_t)(rng() & ENTRY_NUMBER_MAX & ~mask_of(order)));
    return !i || do_erase_at(which, i->page, below(4) != 0);
}

/* Every page of a window; windows of more pages are looked at in steps. */
static bool same_window(const struct ground *g)
{
    uint64_t step = g->size > 12 ? 61 : 1;

    for (unsigned b = 0; b < g->bases; b++)
        for (uint64_t i = 0; i <= mask_of(g->size); i += step)
            for (unsigned which = 0; which < INDEXES; which++)
                if (!same_page(which, g->base[b] + i))
                    return false;
    return true;
}

static bool random_round(unsigned long round)
{
    struct ground g;
    uint32_t limit = below(2) ? NODES_PLENTY : MAGAZINE_NODES + (uint32_t)below(100);
    bool good;

    choose_ground(&g);
    clock_now = SHADOW_CLOCK_MASK - 20000; /* wraps on the way */
    clock_coarse = below(2);
    good = open_all(limit, below(8) != 0);
    for (unsigned op = 0; op < ROUND_OPS && good; op++) {
        good = random_op(&g);
        if (good && op % 64 == 0)
            good = same_items(0) && same_items(1);
        if (!good)
            fprintf(stderr, "round %lu, operation %u, order up to %u in windows of 2^%u at %#" PRIx64 ": %s\n", round,
                    op, g.order_max, g.size, g.base[0], failure);
    }
    good = good && same_items(0) && same_items(1) && same_window(&g) && do_reclaim(0, RECLAIM_ALL) && same_items(0) &&
           do_clear(0) && do_clear(1);
    good = close_all() && good;
    passed += good;
    if (!good)
        fprintf(stderr, "round %lu: %s\n", round, failure);
    return good;
}

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    const char *more = getenv("BP_STRESS_SECONDS");
    double seconds = more && atof(more) > 0 ? atof(more) : 3;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    unsigned long round = 0;
    double end;
    bool good;

    printf("seed %" PRIu64 "\n", seed);
    rng_seed(seed);
    clock_now = SHADOW_CLOCK_MASK - 20000;
    good = open_all(NODES_PLENTY, true) && exhaustive(seconds >= 60);
    good = close_all() && good;
    for (end = seconds_now() + seconds; good && (seconds_now() < end || round == 0); round++)
        good = random_round(round);
    printf("fan-out %u: %lu random rounds of %u operations, %lu changes\n", INDEX_SLOTS, round, ROUND_OPS, changes);
    printf("%lu passed, %d failed\n", passed, good ? 0 : 1);
    return good ? 0 : 1;
}
