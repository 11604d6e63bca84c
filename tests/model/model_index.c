/* SPDX-License-Identifier: MIT */
/*
 * The index against a model: a sorted list of extents and pieces of shadows, from which everything the index may say is
 * worked out anew after every operation, by other means than the index has: what each page reads, orders, what an
 * insert meets, the height, the number of nodes, and which nodes hold only shadows, in order of age.
 *
 *   exhaustive   all sequences of a given length over small alphabets of operations that meet at the edges of nodes
 *   random       long sequences of all orders in windows at the ends and seams of the index space, two indexes over one
 *                array of nodes, in half of the rounds with fewer nodes than are wanted
 *
 *   model_index [SEED]      the seed is printed; BP_STRESS_SECONDS lengthens the random part
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bufpool/index.h"

#define ITEMS_MAX    4096u
#define PAGE_LAST    UINT64_MAX
#define RECLAIM_ALL  1000000u
#define ROUND_OPS    1500u
#define INDEXES      2u
#define NODES_PLENTY 65536u

/* One extent, or one piece of a shadow. */
struct item {
    uint64_t page;
    uint64_t clock; /* of a shadow, all bits of it */
    uint32_t value; /* first frame, or the shadow's entry */
    uint8_t order;
    bool live;
};

/* A node, by what it covers: pages with the same prefix above shift 6 * (level + 1). */
struct place {
    unsigned level;
    uint64_t prefix;
};

struct model {
    struct item item[ITEMS_MAX]; /* by page */
    size_t count;
    struct place only[ITEMS_MAX]; /* nodes that hold only shadows, oldest first */
    size_t only_count;
    unsigned height; /* worked out by model_derive */
    uint32_t nodes;
    uint64_t live;
};

static struct index_nodes nodes;
static struct node_magazine magazine;
static struct index index_of[INDEXES];
static struct model model_of[INDEXES];
static uint64_t rng_state;
static uint64_t clock_now; /* of evictions */
static unsigned long passed;
static char failure[512]; /* the first one; empty if none */

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

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t n)
{
    return (rng() >> 11) % n;
}

/* ---- the model ---- */

static uint64_t mask_of(unsigned order)
{
    return (1ull << order) - 1;
}

static uint64_t item_last(const struct item *i)
{
    return i->page + mask_of(i->order);
}

/* First item that ends at or after a page. */
static size_t model_find(const struct model *m, uint64_t page)
{
    size_t low = 0;
    size_t high = m->count;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (item_last(&m->item[mid]) < page)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const struct item *model_at(const struct model *m, uint64_t page)
{
    size_t i = model_find(m, page);

    return i < m->count && m->item[i].page <= page ? &m->item[i] : NULL;
}

static index_entry model_load(const struct model *m, uint64_t page)
{
    const struct item *i = model_at(m, page);

    if (!i)
        return ENTRY_NONE;
    return i->live ? entry_of_frame(i->value + (uint32_t)(page - i->page)) : i->value;
}

static void model_remove(struct model *m, size_t at, size_t n)
{
    memmove(&m->item[at], &m->item[at + n], (m->count - at - n) * sizeof(m->item[0]));
    m->count -= n;
}

static void model_add(struct model *m, struct item item)
{
    size_t at = model_find(m, item.page);

    memmove(&m->item[at + 1], &m->item[at], (m->count - at) * sizeof(m->item[0]));
    m->item[at] = item;
    m->count++;
}

static uint64_t prefix_of(uint64_t page, unsigned level)
{
    unsigned shift = (level + 1) * INDEX_SHIFT;

    return shift < 64 ? page >> shift : 0;
}

static unsigned height_for(const struct item *i)
{
    unsigned height = i->order / INDEX_SHIFT + 1u;

    while (height * INDEX_SHIFT < 64 && item_last(i) >> (height * INDEX_SHIFT))
        height++;
    return height;
}

/* Height, nodes, and the nodes of only shadows (by level and prefix) that the items need. */
static size_t model_derive(struct model *m, struct place *only)
{
    size_t found = 0;

    m->height = 0;
    m->nodes = 0;
    m->live = 0;
    for (size_t i = 0; i < m->count; i++) {
        m->live += m->item[i].live;
        if (height_for(&m->item[i]) > m->height)
            m->height = height_for(&m->item[i]);
    }
    if (m->count == 1 && m->item[0].page == 0 && m->item[0].order == 0)
        m->height = 0;
    for (unsigned level = 0; level < m->height; level++) {
        bool open = false;
        bool pure = false;
        uint64_t prefix = 0;

        for (size_t i = 0; i < m->count; i++) {
            const struct item *it = &m->item[i];

            if (it->order / INDEX_SHIFT > level)
                continue;
            if (!open || prefix_of(it->page, level) != prefix) {
                if (open && pure)
                    only[found++] = (struct place){level, prefix};
                open = pure = true;
                prefix = prefix_of(it->page, level);
                m->nodes++;
            }
            pure &= !it->live && it->order / INDEX_SHIFT == level;
        }
        if (open && pure)
            only[found++] = (struct place){level, prefix};
    }
    return found;
}

static int place_compare(const void *a, const void *b)
{
    const struct place *p = a;
    const struct place *q = b;

    if (p->level != q->level)
        return p->level < q->level ? -1 : 1;
    return p->prefix < q->prefix ? -1 : p->prefix > q->prefix;
}

/* Work out the state again after a change; what became only shadows is the newest of its kind. */
static void model_update(struct model *m)
{
    static struct place now[2 * ITEMS_MAX];
    static bool known[2 * ITEMS_MAX];
    size_t count = model_derive(m, now);
    size_t kept = 0;
    unsigned added = 0;

    memset(known, 0, count);
    for (size_t i = 0; i < m->only_count; i++) {
        const struct place *p = bsearch(&m->only[i], now, count, sizeof(now[0]), place_compare);

        if (!p)
            continue;
        known[p - now] = true;
        m->only[kept++] = m->only[i];
    }
    for (size_t i = 0; i < count; i++) {
        if (known[i])
            continue;
        m->only[kept++] = now[i];
        if (added++)
            fail("the model cannot tell which of two nodes is older");
    }
    m->only_count = kept;
}

/* What an insert should answer; does it if it should succeed. */
static int model_insert(struct model *m, uint64_t page, unsigned order, uint32_t frame, struct index_insert *want)
{
    uint64_t last = page + mask_of(order);
    size_t from = model_find(m, page);
    size_t to = from;
    uint64_t newest = 0;

    *want = (struct index_insert){.shadow = ENTRY_NONE, .frame = UINT32_MAX};
    for (; to < m->count && m->item[to].page <= last; to++) {
        const struct item *i = &m->item[to];

        if (i->live) {
            want->page = i->page > page ? i->page : page;
            want->frame = i->value + (uint32_t)(want->page - i->page);
            want->shadow = ENTRY_NONE;
            want->shadows = 0;
            return -EEXIST;
        }
        want->shadows++;
        if (i->clock >= newest) {
            newest = i->clock;
            want->shadow = i->value;
        }
    }
    if (to - from == 1 && m->item[from].order > order) { /* a larger shadow: its other pages keep it, in halves */
        struct item piece = m->item[from];

        model_remove(m, from, 1);
        while (piece.order > order) {
            struct item other = piece;

            piece.order--;
            other.order--;
            other.page += 1ull << other.order;
            if (page >= other.page) {
                struct item swap = piece;

                piece = other;
                other = swap;
            }
            model_add(m, other);
        }
    } else {
        model_remove(m, from, to - from);
    }
    model_add(m, (struct item){.page = page, .order = (uint8_t)order, .live = true, .value = frame});
    model_update(m);
    return 0;
}

static bool model_erase(struct model *m, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    size_t at = model_find(m, page);
    struct item *i = &m->item[at];

    if (at == m->count || i->page != page || i->order != order || !i->live || i->value != frame)
        return false;
    if (shadow == ENTRY_NONE) {
        model_remove(m, at, 1);
    } else {
        i->live = false;
        i->value = shadow;
        i->clock = clock_now;
    }
    model_update(m);
    return true;
}

static unsigned model_reclaim(struct model *m, unsigned n)
{
    unsigned done = 0;

    for (; done < n && m->only_count; done++) {
        struct place p = m->only[0];
        size_t to;
        size_t from = 0;

        while (prefix_of(m->item[from].page, p.level) != p.prefix || m->item[from].order / INDEX_SHIFT != p.level)
            from++;
        for (to = from; to < m->count && prefix_of(m->item[to].page, p.level) == p.prefix; to++)
            ;
        model_remove(m, from, to - from);
        model_update(m);
    }
    return done;
}

/* ---- the two compared ---- */

static bool same_page(unsigned which, uint64_t page)
{
    const struct model *m = &model_of[which];
    const _Atomic index_entry *slot = bpi_index_slot(&index_of[which], page);
    index_entry want = model_load(m, page);
    index_entry got = bpi_index_load(&index_of[which], page);

    if (got != want)
        return fail("page %#" PRIx64 " reads %#x, should read %#x", page, got, want);
    if (slot && atomic_load(slot) != want)
        return fail("the slot of page %#" PRIx64 " reads %#x, should read %#x", page, atomic_load(slot), want);
    return true;
}

/* Counts and shape: what every operation must leave behind. */
static bool same_shape(unsigned which)
{
    struct index *x = &index_of[which];
    const struct model *m = &model_of[which];
    uint32_t in_use = magazine.count;
    size_t only = 0;

    for (unsigned i = 0; i < INDEXES; i++) {
        in_use += model_of[i].nodes;
        only += model_of[i].only_count;
    }
    if (x->node_count != m->nodes)
        return fail("%u nodes, should be %u", x->node_count, m->nodes);
    if (index_root_shift(atomic_load(&x->root)) != m->height * INDEX_SHIFT)
        return fail("height %u, should be %u", index_root_shift(atomic_load(&x->root)) / INDEX_SHIFT, m->height);
    if (atomic_load(&nodes.in_use) != in_use)
        return fail("%u nodes in use, should be %u", atomic_load(&nodes.in_use), in_use);
    if (atomic_load(&nodes.shadow_only) != only)
        return fail("%u nodes of only shadows, should be %zu", atomic_load(&nodes.shadow_only), only);
    return true;
}

static bool same_next(unsigned which, uint64_t from)
{
    const struct model *m = &model_of[which];
    struct index_item item;
    size_t i = model_find(m, from);
    bool got = bpi_index_next(&index_of[which], from, &item);

    while (i < m->count && !m->item[i].live)
        i++;
    if (got != (i < m->count))
        return fail("next after %#" PRIx64 ": %s", from, got ? "found something" : "found nothing");
    if (got && (item.page != m->item[i].page || item.frame != m->item[i].value || item.order != m->item[i].order))
        return fail("next after %#" PRIx64 ": page %#" PRIx64 " frame %u order %u, should be %#" PRIx64 ", %u, %u",
                    from, item.page, item.frame, item.order, m->item[i].page, m->item[i].value, m->item[i].order);
    return true;
}

/* Every item at its edges, the gaps beside it, and its order. */
static bool same_items(unsigned which)
{
    const struct model *m = &model_of[which];
    uint64_t live;

    if (!bpi_index_check(&index_of[which], &live))
        return fail("bpi_index_check says no");
    if (live != m->live)
        return fail("%" PRIu64 " live, should be %" PRIu64, live, m->live);
    for (size_t i = 0; i < m->count; i++) {
        const struct item *it = &m->item[i];
        uint64_t last = item_last(it);
        uint64_t mid = it->page + (mask_of(it->order) & rng());

        if (!same_page(which, it->page) || !same_page(which, last) || !same_page(which, mid) ||
            !same_page(which, it->page - 1) || !same_page(which, last + 1))
            return false;
        if (bpi_index_order(&index_of[which], mid) != it->order)
            return fail("page %#" PRIx64 " has order %u, should have %u", mid, bpi_index_order(&index_of[which], mid),
                        it->order);
    }
    return same_next(which, 0) && same_next(which, PAGE_LAST);
}

/* ---- operations on both ---- */

static bool fill(void)
{
    uint32_t others = atomic_load(&nodes.in_use) - magazine.count;
    bool enough = nodes.limit - others >= INSERT_NODES;
    uint32_t had = magazine.count;
    int rc = bpi_magazine_fill(&nodes, &magazine);

    if (rc != (enough ? 0 : -ENOMEM))
        return fail("fill answers %d with %u of %u nodes in the indexes", rc, others, nodes.limit);
    if (rc && magazine.count != had)
        return fail("a fill that failed took %u nodes", magazine.count - had);
    return rc == 0;
}

/* Insert into both. Where nodes are short nothing happens. */
static bool do_insert(unsigned which, uint64_t page, unsigned order, uint32_t frame)
{
    struct index *x = &index_of[which];
    struct index_insert want;
    struct index_insert got;
    uint64_t root = atomic_load(&x->root);
    uint32_t before;
    int rc;
    int want_rc;

    if (!fill())
        return !failure[0];
    before = magazine.count;
    rc = bpi_index_insert(x, page, order, frame, &magazine, &got);
    want_rc = model_insert(&model_of[which], page, order, frame, &want);
    if (rc != want_rc)
        return fail("insert of order %u at %#" PRIx64 ": %d, should be %d", order, page, rc, want_rc);
    if (got.shadow != want.shadow || got.shadows != want.shadows || got.frame != want.frame || got.page != want.page)
        return fail("insert of order %u at %#" PRIx64 " met %u shadows (%#x), frame %u at %#" PRIx64
                    "; should be %u (%#x), %u, %#" PRIx64,
                    order, page, got.shadows, got.shadow, got.frame, got.page, want.shadows, want.shadow, want.frame,
                    want.page);
    if (before - magazine.count > INSERT_NODES)
        return fail("an insert took %u nodes", before - magazine.count);
    if (rc && (magazine.count != before || atomic_load(&x->root) != root))
        return fail("an insert that failed took %u nodes", before - magazine.count);
    return same_shape(which) && same_page(which, page) && same_page(which, page + mask_of(order)) &&
           same_page(which, page - 1) && same_page(which, page + mask_of(order) + 1);
}

static bool do_erase(unsigned which, uint64_t page, unsigned order, uint32_t frame, bool leave)
{
    index_entry shadow = ENTRY_NONE;
    bool got;

    clock_now++;
    if (leave)
        shadow = entry_of_shadow((uint32_t)(clock_now & SHADOW_CLOCK_MASK), order, (unsigned)clock_now & 3);
    got = bpi_index_erase(&index_of[which], page, order, frame, shadow);
    if (got != model_erase(&model_of[which], page, order, frame, shadow))
        return fail("erase of order %u at %#" PRIx64 " answers %d", order, page, got);
    return same_shape(which) && same_page(which, page) && same_page(which, page + mask_of(order)) &&
           same_page(which, page - 1) && same_page(which, page + mask_of(order) + 1);
}

static bool do_reclaim(unsigned which, unsigned n)
{
    unsigned got = bpi_index_reclaim(&index_of[which], n);
    unsigned want = model_reclaim(&model_of[which], n);

    if (got != want)
        return fail("reclaim of %u dropped %u nodes, should have dropped %u", n, got, want);
    return same_shape(which);
}

/* Erase the extent over a page, if there is one. */
static bool do_erase_at(unsigned which, uint64_t page, bool leave)
{
    const struct item *i = model_at(&model_of[which], page);

    return !i || !i->live || do_erase(which, i->page, i->order, i->value, leave);
}

static bool do_clear(unsigned which)
{
    while (model_of[which].live) {
        size_t i = 0;

        while (!model_of[which].item[i].live)
            i++;
        if (!do_erase(which, model_of[which].item[i].page, model_of[which].item[i].order, model_of[which].item[i].value,
                      i % 3))
            return false;
    }
    bpi_index_clear(&index_of[which]);
    model_of[which].count = 0;
    model_update(&model_of[which]);
    return same_shape(which) && bpi_index_check(&index_of[which], NULL);
}

/* ---- exhaustive ---- */

enum op_kind { OP_INSERT, OP_LEAVE, OP_ERASE, OP_RECLAIM };

struct op {
    enum op_kind kind;
    uint64_t page; /* OP_RECLAIM: how many */
    unsigned order;
};

static bool do_op(const struct op *op, unsigned step)
{
    switch (op->kind) {
    case OP_INSERT:
        return do_insert(0, op->page, op->order, (step + 1) << INDEX_ORDER_MAX);
    case OP_LEAVE:
        return do_erase_at(0, op->page, true);
    case OP_ERASE:
        return do_erase_at(0, op->page, false);
    case OP_RECLAIM:
        return do_reclaim(0, (unsigned)op->page);
    }
    return false;
}

static void op_print(const struct op *op)
{
    static const char *const name[] = {"insert", "erase leaving a shadow", "erase", "reclaim"};

    fprintf(stderr, "  %s %#" PRIx64 " order %u\n", name[op->kind], op->page, op->order);
}

/* All sequences of `length` operations, each from an empty index, compared in full after its last operation. */
static bool all_sequences(const char *what, const struct op *op, unsigned ops, unsigned length)
{
    unsigned digit[16] = {0};
    unsigned long sequences = 0;
    unsigned at;

    do {
        bool good = true;

        for (unsigned i = 0; i < length && good; i++)
            good = do_op(&op[digit[i]], i);
        if (!good || !same_items(0) || !do_clear(0)) {
            fprintf(stderr, "%s: %s\n", what, failure);
            for (unsigned i = 0; i < length; i++)
                op_print(&op[digit[i]]);
            return false;
        }
        sequences++;
        for (at = 0; at < length && ++digit[at] == ops; at++)
            digit[at] = 0;
    } while (at < length);
    printf("%s: %lu sequences of %u operations\n", what, sequences, length);
    passed++;
    return true;
}

static const struct op small[] = {
    {OP_INSERT, 0, 0}, {OP_INSERT, 1, 0}, {OP_INSERT, 0, 1}, {OP_INSERT, 0, 6}, {OP_INSERT, 64, 0}, {OP_LEAVE, 0, 0},
    {OP_ERASE, 0, 0},  {OP_LEAVE, 1, 0},  {OP_ERASE, 1, 0},  {OP_LEAVE, 64, 0}, {OP_ERASE, 64, 0},  {OP_RECLAIM, 1, 0},
};
static const struct op splits[] = {
    {OP_INSERT, 0, 13},        {OP_INSERT, 0, 12},   {OP_INSERT, 4096, 9},     {OP_INSERT, 4096 + 77, 0},
    {OP_INSERT, 4096 + 64, 6}, {OP_INSERT, 8191, 0}, {OP_LEAVE, 0, 0},         {OP_LEAVE, 4096, 0},
    {OP_LEAVE, 4096 + 77, 0},  {OP_LEAVE, 8191, 0},  {OP_ERASE, 4096 + 77, 0}, {OP_ERASE, 8191, 0},
    {OP_RECLAIM, 1, 0},
};
static const struct op edges[] = {
    {OP_INSERT, 0, 0},
    {OP_INSERT, 63, 0},
    {OP_INSERT, 64, 6},
    {OP_INSERT, 0, 7},
    {OP_INSERT, 0, 12},
    {OP_INSERT, 0, 18},
    {OP_INSERT, 4096, 0},
    {OP_INSERT, 1ull << 18, 18},
    {OP_INSERT, 1ull << 24, 0},
    {OP_INSERT, 1ull << 60, 18},
    {OP_INSERT, PAGE_LAST, 0},
    {OP_INSERT, PAGE_LAST - 63, 6},
    {OP_INSERT, PAGE_LAST - 0x3ffff, 18},
    {OP_LEAVE, 0, 0},
    {OP_ERASE, 0, 0},
    {OP_LEAVE, 64, 0},
    {OP_ERASE, 64, 0},
    {OP_LEAVE, 1ull << 18, 0},
    {OP_LEAVE, 1ull << 60, 0},
    {OP_LEAVE, PAGE_LAST, 0},
    {OP_ERASE, PAGE_LAST, 0},
    {OP_RECLAIM, 1, 0},
    {OP_RECLAIM, RECLAIM_ALL, 0},
};

#define COUNT(a) (unsigned)(sizeof(a) / sizeof((a)[0]))

static bool exhaustive(unsigned more)
{
    return all_sequences("small", small, COUNT(small), 4 + more) &&
           all_sequences("splits", splits, COUNT(splits), 4 + more) &&
           all_sequences("edges", edges, COUNT(edges), 3 + more);
}

/* ---- random ---- */

/* Where a round happens: windows of 2^size pages. */
struct ground {
    uint64_t base[3];
    unsigned bases;
    unsigned size;
    unsigned order_max;
};

static void choose_ground(struct ground *g)
{
    static const uint64_t seam[] = {64,         4096,       1ull << 18, 1ull << 24, 1ull << 30,
                                    1ull << 36, 1ull << 48, 1ull << 54, 1ull << 60, 1ull << 63};

    g->bases = 1 + (unsigned)below(3);
    g->size = (unsigned)below(20);
    g->order_max = (unsigned)below(INDEX_ORDER_MAX + 1);
    if (g->order_max > g->size)
        g->order_max = g->size;
    for (unsigned i = 0; i < g->bases; i++) {
        uint64_t base = seam[below(COUNT(seam))];

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

static bool random_op(const struct ground *g, unsigned fullness)
{
    unsigned which = (unsigned)below(INDEXES);
    struct model *m = &model_of[which];
    uint64_t page = g->base[below(g->bases)] + (rng() & mask_of(g->size));
    unsigned order = below(2) ? (unsigned)below(g->order_max + 1) : (unsigned)below(below(g->order_max + 1) + 1);
    const struct item *i = m->count ? &m->item[below(m->count)] : NULL;

    switch (below(16)) {
    case 0:
        return do_reclaim(which, 1 + (unsigned)below(3));
    case 1:
        return same_next(which, page) && same_page(which, page) && same_page(which, rng());
    case 2: /* what is not there cannot be erased */
        if (!i)
            return true;
        return do_erase(which, i->page, (i->order + 1u + (unsigned)below(5)) % (INDEX_ORDER_MAX + 1), i->value, true) &&
               do_erase(which, i->page, i->order, i->value ^ 1u, false) &&
               do_erase(which, i->page ^ (1ull << below(64)), i->order, i->value, true);
    default:
        break;
    }
    clock_now += below(500);
    if (m->count < ITEMS_MAX - 64 && below(16) < fullness)
        return do_insert(which, page & ~mask_of(order), order, (uint32_t)(rng() & ENTRY_NUMBER_MAX & ~mask_of(order)));
    return !i || do_erase_at(which, i->page, below(4) != 0);
}

/* Every page of a window; windows of more pages are looked at in steps. */
static bool same_window(const struct ground *g)
{
    uint64_t step = g->size > 14 ? 61 : 1;

    for (unsigned b = 0; b < g->bases; b++)
        for (uint64_t i = 0; i <= mask_of(g->size); i += step)
            for (unsigned which = 0; which < INDEXES; which++)
                if (!same_page(which, g->base[b] + i))
                    return false;
    return true;
}

static bool open_all(uint32_t limit)
{
    if (bpi_nodes_open(&nodes, limit))
        return fail("no memory for %u nodes", limit);
    memset(&magazine, 0, sizeof(magazine));
    memset(model_of, 0, sizeof(model_of));
    for (unsigned i = 0; i < INDEXES; i++)
        bpi_index_init(&index_of[i], &nodes);
    return true;
}

/* Everything must have come back. */
static bool close_all(void)
{
    bpi_magazine_drain(&nodes, &magazine);
    if (atomic_load(&nodes.in_use) || atomic_load(&nodes.shadow_only))
        fail("%u nodes are lost, %u thought to be listed", atomic_load(&nodes.in_use), atomic_load(&nodes.shadow_only));
    for (unsigned i = 0; i < INDEXES; i++)
        bpi_index_destroy(&index_of[i]);
    bpi_nodes_close(&nodes);
    return !failure[0];
}

static bool random_round(unsigned long round)
{
    struct ground g;
    unsigned fullness = 6 + (unsigned)below(8);
    uint32_t limit = below(2) ? NODES_PLENTY : MAGAZINE_NODES + (uint32_t)below(100);
    bool good;

    choose_ground(&g);
    good = open_all(limit);
    for (unsigned op = 0; op < ROUND_OPS && good; op++) {
        good = random_op(&g, fullness);
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
    double seconds = more ? atof(more) : 4;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    unsigned long round = 0;
    double end;
    bool good;

    printf("seed %" PRIu64 "\n", seed);
    rng_state = seed * 2654435761u + 88172645463325252ull;
    clock_now = SHADOW_CLOCK_MASK - 20000; /* wraps on the way */
    good = open_all(NODES_PLENTY) && exhaustive(seconds >= 60);
    good = close_all() && good;
    for (end = seconds_now() + seconds; good && (seconds_now() < end || round == 0); round++) {
        /* so that a round can be run again by itself */
        clock_now = SHADOW_CLOCK_MASK - 20000;
        good = random_round(round);
    }
    printf("%lu random rounds of %u operations\n", round, ROUND_OPS);
    printf("%lu passed, %d failed\n", passed, good ? 0 : 1);
    return good ? 0 : 1;
}
