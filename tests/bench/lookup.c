/* SPDX-License-Identifier: MIT */
/*
 * The index alone: page numbers at random to entries, 2^19 of them (a file of 2 GiB). Against a plain array, which is
 * the limit, and liburcu's lock-free hash table, which is what one would take off the shelf.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <urcu/urcu-bp.h>

#include <urcu/rculfhash.h>

#include "bench.h"
#include "bufpool/index.h"

#define ENTRIES (1u << 19)

struct element {
    struct cds_lfht_node node;
    uint64_t page;
    uint32_t entry;
};

struct lookup {
    _Atomic uint32_t *array;
    struct index_nodes nodes;
    struct index index;
    bool nodes_open;
    struct cds_lfht *table;
    struct element *element;
};

/* ---- loops ---- */

static int look_array(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--)
        sum += atomic_load_explicit(&l->array[bench_random_page(&random, ENTRIES)], memory_order_acquire);
    t->random = random;
    t->sum += sum;
    return 0;
}

static int look_index(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--)
        sum += bpi_index_load(&l->index, bench_random_page(&random, ENTRIES));
    t->random = random;
    t->sum += sum;
    return 0;
}

/* What a hit uses: the leaf from an array, by one load; the frame has to confirm the answer. */
static int look_guess(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--)
        sum += index_guess(&l->index, bench_random_page(&random, ENTRIES));
    t->random = random;
    t->sum += sum;
    return 0;
}

/* Page after page: what a scan of single pages does. */
static int near_index(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    uint64_t page = t->page;
    uint64_t sum = 0;

    while (ops--)
        sum += bpi_index_load(&l->index, page++ % ENTRIES);
    t->page = page % ENTRIES;
    t->sum += sum;
    return 0;
}

/* The same with the last leaf remembered. */
static int near_recall(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    struct index_memory memory = {0};
    uint64_t page = t->page;
    uint64_t sum = 0;

    while (ops--)
        sum += index_recall(&l->index, page++ % ENTRIES, &memory);
    t->page = page % ENTRIES;
    t->sum += sum;
    return 0;
}

/* Page numbers are dense, but the table does not know: one multiplication, the upper half folded in. */
static inline unsigned long hash(uint64_t page)
{
    uint64_t h = page * 0x9e3779b97f4a7c15u;

    return h ^ h >> 32;
}

static int match(struct cds_lfht_node *node, const void *key)
{
    return caa_container_of(node, struct element, node)->page == *(const uint64_t *)key;
}

static int look_table(struct bench_thread *t, uint64_t ops)
{
    const struct lookup *l = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, ENTRIES);
        struct cds_lfht_iter iter;
        struct cds_lfht_node *node;

        urcu_bp_read_lock();
        cds_lfht_lookup(l->table, hash(page), match, &page, &iter);
        node = cds_lfht_iter_get_node(&iter);
        if (likely(node != NULL))
            sum += caa_container_of(node, struct element, node)->entry;
        urcu_bp_read_unlock();
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

/* ---- set-up ---- */

static int fill_index(struct lookup *l)
{
    struct node_magazine magazine = {.count = 0};
    struct index_insert met;
    int rc = 0;

    for (uint32_t page = 0; page < ENTRIES && !rc; page++) {
        rc = bpi_magazine_fill(&l->nodes, &magazine);
        if (!rc)
            rc = bpi_index_insert(&l->index, page, 0, page, &magazine, &met);
    }
    bpi_magazine_drain(&l->nodes, &magazine);
    return rc ? bench_code(rc, "filling the index") : 0;
}

static int fill_table(struct lookup *l)
{
    l->element = bench_alloc(ENTRIES * sizeof(*l->element), true);
    l->table = cds_lfht_new_flavor(ENTRIES, ENTRIES, ENTRIES, 0, &urcu_bp_flavor, NULL);
    if (!l->element || !l->table)
        return bench_error("no hash table");
    urcu_bp_read_lock();
    for (uint32_t page = 0; page < ENTRIES; page++) {
        struct element *e = &l->element[page];

        cds_lfht_node_init(&e->node);
        e->page = page;
        e->entry = entry_of_frame(page);
        cds_lfht_add(l->table, hash(page), &e->node);
    }
    urcu_bp_read_unlock();
    return 0;
}

static int lookup_open(const struct bench *b, void **fixture)
{
    struct lookup *l = aligned_alloc(_Alignof(struct lookup), sizeof(*l));

    (void)b;
    *fixture = l;
    if (!l)
        return bench_error("no memory");
    memset(l, 0, sizeof(*l));
    l->array = bench_alloc(ENTRIES * sizeof(*l->array), true);
    if (!l->array || bpi_nodes_open(&l->nodes, ENTRIES / INDEX_SLOTS * 2))
        return bench_error("no memory");
    l->nodes_open = true;
    bpi_index_init(&l->index, &l->nodes);
    for (uint32_t page = 0; page < ENTRIES; page++)
        l->array[page] = entry_of_frame(page);
    return fill_index(l) || fill_table(l) ? -1 : 0;
}

static void empty_table(struct lookup *l)
{
    struct cds_lfht_iter iter;
    struct cds_lfht_node *node;

    urcu_bp_read_lock();
    cds_lfht_for_each(l->table, &iter, node)
    {
        cds_lfht_del(l->table, node);
    }
    urcu_bp_read_unlock();
    urcu_bp_synchronize_rcu();
    cds_lfht_destroy(l->table, NULL);
}

static void lookup_close(void *fixture)
{
    struct lookup *l = fixture;

    if (!l)
        return;
    if (l->table)
        empty_table(l);
    bench_free(l->element, ENTRIES * sizeof(*l->element));
    if (l->nodes_open) {
        for (uint32_t page = 0; page < ENTRIES; page++)
            bpi_index_erase(&l->index, page, 0, page, ENTRY_NONE);
        bpi_index_clear(&l->index);
        bpi_index_destroy(&l->index);
        bpi_nodes_close(&l->nodes);
    }
    bench_free((void *)l->array, ENTRIES * sizeof(*l->array));
    free(l);
}

/* They all agree, on every page. */
static int lookup_thread_open(struct bench_thread *t)
{
    const struct lookup *l = t->fixture;

    for (uint64_t page = 0; page < ENTRIES; page++) {
        struct cds_lfht_iter iter;
        struct cds_lfht_node *node;

        urcu_bp_read_lock();
        cds_lfht_lookup(l->table, hash(page), match, &page, &iter);
        node = cds_lfht_iter_get_node(&iter);
        urcu_bp_read_unlock();
        if (!node || caa_container_of(node, struct element, node)->entry != l->array[page] ||
            bpi_index_load(&l->index, page) != l->array[page] || index_guess(&l->index, page) != l->array[page])
            return -EUCLEAN;
    }
    return 0;
}

static void lookup_thread_close(struct bench_thread *t)
{
    (void)t;
}

static const struct bench_fixture fixture = {
    .open = lookup_open, .close = lookup_close, .thread_open = lookup_thread_open, .thread_close = lookup_thread_close};

static const struct bench_variant variants[] = {
    {.name = "array", .loop = look_array},
    {.name = "load", .loop = look_index, .also = "rculfhash"},
    {.name = "guess", .loop = look_guess, .also = "rculfhash"},
    {.name = "rculfhash", .loop = look_table},
};

const struct bench_case bench_index_lookup = {.name = "index-lookup",
                                              .text = "page number to entry, 524,288 entries, at random",
                                              .fixture = &fixture,
                                              .variant = variants,
                                              .variant_count = BENCH_COUNT(variants),
                                              .ops = 1000000,
                                              .clock = BENCH_CPU};

static const struct bench_variant near_variants[] = {
    {.name = "load", .loop = near_index},
    {.name = "remembered-leaf", .loop = near_recall},
};

const struct bench_case bench_index_lookup_near = {.name = "index-lookup-near",
                                                   .text = "page number to entry, 524,288 entries, in sequence",
                                                   .fixture = &fixture,
                                                   .variant = near_variants,
                                                   .variant_count = BENCH_COUNT(near_variants),
                                                   .ops = 1000000,
                                                   .clock = BENCH_CPU};
