/* SPDX-License-Identifier: MIT */
/*
 * A model of a hit, to choose the layout of the descriptors by: an index that is nothing but an array of 32-bit slots,
 * descriptors, data; no library. What differs is where the proof lies that a frame still holds the page.
 *
 *   d8-reread   a state word of 8 bytes; the identity is proved by reading the slot again after it
 *   d16         state and identity, four descriptors a cache line
 *   d64         state and identity, a cache line each
 *   array       no slots and no descriptors
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "bench.h"

struct d16 {
    _Atomic uint64_t state, id;
};

struct d64 {
    _Alignas(64) _Atomic uint64_t state;
    _Atomic uint64_t id;
};

struct layout {
    uint64_t pages;
    char *data; /* page i at i * 4096; its first word is the next page of a cycle */
    _Atomic uint32_t *slot;
    _Atomic uint64_t *d8;
    struct d16 *d16;
    struct d64 *d64;
    uint32_t *next;
};

enum kind { ARRAY, D8, D16, D64 };

#define LOCKED 1u
/* inlined, so that the kind is a constant */
#define INLINE static inline __attribute__((always_inline))

/* state, identity, data, state again; false: not this page, or it moved */
INLINE bool look(const _Atomic uint64_t *state, const _Atomic uint64_t *id, uint64_t page, const char *data,
                 uint64_t *word)
{
    uint64_t seen = atomic_load_explicit(state, memory_order_acquire);

    if (unlikely(seen & LOCKED) || unlikely(atomic_load_explicit(id, memory_order_relaxed) != page))
        return false;
    *word = bench_word(data);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(state, memory_order_relaxed) == seen;
}

INLINE bool look_and_reread(const struct layout *l, uint64_t page, uint32_t frame, const char *data, uint64_t *word)
{
    uint64_t seen = atomic_load_explicit(&l->d8[frame], memory_order_acquire);

    if (unlikely(seen & LOCKED) || unlikely(atomic_load_explicit(&l->slot[page], memory_order_relaxed) != frame))
        return false;
    *word = bench_word(data);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&l->d8[frame], memory_order_relaxed) == seen;
}

INLINE bool look_up(const struct layout *l, enum kind kind, uint64_t page, uint64_t *word)
{
    uint32_t frame;
    const char *data;

    if (kind == ARRAY) {
        *word = bench_word(l->data + (page << BP_PAGE_SHIFT));
        return true;
    }
    frame = atomic_load_explicit(&l->slot[page], memory_order_acquire);
    data = l->data + ((size_t)frame << BP_PAGE_SHIFT);
    if (kind == D8)
        return look_and_reread(l, page, frame, data, word);
    if (kind == D16)
        return look(&l->d16[frame].state, &l->d16[frame].id, page, data, word);
    return look(&l->d64[frame].state, &l->d64[frame].id, page, data, word);
}

INLINE int at_random(struct bench_thread *t, uint64_t ops, enum kind kind)
{
    const struct layout *l = t->fixture;
    uint64_t random = t->random;
    uint64_t sum = 0;

    while (ops--) {
        uint64_t page = bench_random_page(&random, l->pages);
        uint64_t word;

        while (unlikely(!look_up(l, kind, page, &word))) {
        }
        sum += word;
    }
    t->random = random;
    t->sum += sum;
    return 0;
}

INLINE int dependent(struct bench_thread *t, uint64_t ops, enum kind kind)
{
    const struct layout *l = t->fixture;
    uint64_t page = t->page;

    while (ops--) {
        uint64_t word;

        while (unlikely(!look_up(l, kind, page, &word))) {
        }
        page = word;
    }
    t->page = page;
    return 0;
}

#define LOOPS(name, kind)                                          \
    static int random_##name(struct bench_thread *t, uint64_t ops) \
    {                                                              \
        return at_random(t, ops, kind);                            \
    }                                                              \
    static int walk_##name(struct bench_thread *t, uint64_t ops)   \
    {                                                              \
        return dependent(t, ops, kind);                            \
    }

LOOPS(array, ARRAY)
LOOPS(d8, D8)
LOOPS(d16, D16)
LOOPS(d64, D64)

/* ---- set-up ---- */

static int layout_open(const struct bench *b, void **fixture)
{
    struct layout *l = calloc(1, sizeof(*l));
    uint64_t pages = b->bytes >> BP_PAGE_SHIFT;

    *fixture = l;
    if (!l)
        return bench_error("no memory");
    l->pages = pages;
    if (pages < 64 || pages >> 31)
        return bench_error("--bytes: from 256 KiB to 8 TiB");
    if (bench_memory_check(b->bytes + b->bytes / 32))
        return -1;
    l->data = bench_alloc(b->bytes, true);
    l->slot = bench_alloc(pages * sizeof(*l->slot), true);
    l->d8 = bench_alloc(pages * sizeof(*l->d8), true);
    l->d16 = bench_alloc(pages * sizeof(*l->d16), true);
    l->d64 = bench_alloc(pages * sizeof(*l->d64), true);
    l->next = bench_alloc(pages * sizeof(*l->next), true);
    if (!l->data || !l->slot || !l->d8 || !l->d16 || !l->d64 || !l->next)
        return -1;
    bench_cycle(l->next, pages);
    for (uint64_t page = 0; page < pages; page++) {
        *(uint64_t *)(void *)(l->data + (page << BP_PAGE_SHIFT)) = l->next[page];
        l->slot[page] = (uint32_t)page;
        l->d16[page].id = page;
        l->d64[page].id = page;
    }
    return 0;
}

static void layout_close(void *fixture)
{
    struct layout *l = fixture;

    if (!l)
        return;
    bench_free(l->data, l->pages << BP_PAGE_SHIFT);
    bench_free((void *)l->slot, l->pages * sizeof(*l->slot));
    bench_free((void *)l->d8, l->pages * sizeof(*l->d8));
    bench_free(l->d16, l->pages * sizeof(*l->d16));
    bench_free(l->d64, l->pages * sizeof(*l->d64));
    bench_free(l->next, l->pages * sizeof(*l->next));
    free(l);
}

static int layout_thread_open(struct bench_thread *t)
{
    const struct layout *l = t->fixture;

    t->page = l->pages / t->count * t->number;
    return 0;
}

static void layout_thread_close(struct bench_thread *t)
{
    (void)t;
}

static const struct bench_fixture fixture = {
    .open = layout_open, .close = layout_close, .thread_open = layout_thread_open, .thread_close = layout_thread_close};

static const struct bench_variant random_variants[] = {
    {.name = "array", .loop = random_array},
    {.name = "d8-reread", .loop = random_d8},
    {.name = "d16", .loop = random_d16, .also = "d64"},
    {.name = "d64", .loop = random_d64},
};

const struct bench_case bench_descriptor_layout = {.name = "descriptor-layout",
                                                   .text = "model of a hit by size of descriptor; pages at random",
                                                   .fixture = &fixture,
                                                   .variant = random_variants,
                                                   .variant_count = BENCH_COUNT(random_variants),
                                                   .ops = 1000000,
                                                   .bytes = 1u << 30,
                                                   .clock = BENCH_CPU};

static const struct bench_variant walk_variants[] = {
    {.name = "array", .loop = walk_array},
    {.name = "d8-reread", .loop = walk_d8},
    {.name = "d16", .loop = walk_d16, .also = "d64"},
    {.name = "d64", .loop = walk_d64},
};

const struct bench_case bench_descriptor_layout_dependent = {
    .name = "descriptor-layout-dependent",
    .text = "model of a hit by size of descriptor; the next page depends on the data",
    .fixture = &fixture,
    .variant = walk_variants,
    .variant_count = BENCH_COUNT(walk_variants),
    .ops = 500000,
    .bytes = 1u << 30,
    .clock = BENCH_CPU};
