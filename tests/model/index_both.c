/* SPDX-License-Identifier: MIT */
/* Operations done to the index and to its model, and the two compared: index_model.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/index_model.h"

struct index_nodes nodes;
struct node_magazine magazine;
struct index index_of[INDEXES];
struct model model_of[INDEXES];
uint64_t clock_now;
bool clock_coarse;
unsigned long changes;
char failure[512];
static uint64_t rng_state;
static struct index_memory memory_of[INDEXES]; /* as a session's would be: kept over everything that happens */

bool fail(const char *format, ...)
{
    va_list args;

    if (failure[0])
        return false;
    va_start(args, format);
    vsnprintf(failure, sizeof(failure), format, args);
    va_end(args);
    return false;
}

void rng_seed(uint64_t seed)
{
    rng_state = seed * 2654435761u + 88172645463325252ull;
}

uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state * 0x2545f4914f6cdd1dull;
}

uint64_t below(uint64_t n)
{
    return (rng() >> 11) % n;
}

bool open_all(uint32_t limit, bool leaves)
{
    if (bpi_nodes_open(&nodes, limit))
        return fail("no memory for %u nodes", limit);
    memset(&magazine, 0, sizeof(magazine));
    memset(memory_of, 0, sizeof(memory_of));
    for (unsigned i = 0; i < INDEXES; i++) {
        model_of[i].count = model_of[i].only_count = 0;
        model_clear(&model_of[i]);
        bpi_index_init(&index_of[i], &nodes);
        if (!leaves) { /* as where there was no memory for the array */
            bpi_index_destroy(&index_of[i]);
            index_of[i].leaf = NULL;
            index_of[i].leaf_pages = 0;
        }
    }
    return true;
}

bool close_all(void)
{
    bpi_magazine_drain(&nodes, &magazine);
    if (atomic_load(&nodes.in_use) || atomic_load(&nodes.shadow_only))
        fail("%u nodes are lost, %u thought to be listed", atomic_load(&nodes.in_use), atomic_load(&nodes.shadow_only));
    for (unsigned i = 0; i < INDEXES; i++)
        bpi_index_destroy(&index_of[i]);
    bpi_nodes_close(&nodes);
    return !failure[0];
}

/* ---- compared ---- */

/* The two shortcuts. A leaf that is still in its place must be right; one that is not may say anything, and the frame
 * is asked whether it is the page's. */
static bool same_guess(unsigned which, uint64_t page, index_entry want)
{
    struct index *x = &index_of[which];
    struct index_memory *memory = &memory_of[which];
    uint32_t leaf = entry_number(memory->leaf);
    bool known = ~(page ^ memory->other) < INDEX_SLOTS;
    bool stands = known && leaf && atomic_load(&nodes.head[leaf].owner) == x && nodes.head[leaf].shift == 0 &&
                  nodes.head[leaf].base == (page & ~(uint64_t)(INDEX_SLOTS - 1));
    struct index_memory fresh = {0};
    index_entry e = index_recall(x, page, memory);

    if ((!known || stands) && e != want)
        return fail("page %#" PRIx64 " is recalled as %#x, should be %#x", page, e, want);
    e = bpi_index_remember(x, page, &fresh);
    if (e != want)
        return fail("page %#" PRIx64 " is %#x to who wants to remember, should be %#x", page, e, want);
    if (fresh.leaf && index_recall(x, page, &fresh) != want)
        return fail("page %#" PRIx64 " is recalled as %#x at once, should be %#x", page, index_recall(x, page, &fresh),
                    want);
    if (model_has_node(&model_of[which], page, 0) && page < x->leaf_pages && index_guess(x, page) != want)
        return fail("page %#" PRIx64 " is guessed to be %#x, should be %#x", page, index_guess(x, page), want);
    return true;
}

bool same_page(unsigned which, uint64_t page)
{
    const struct item *i = model_at(&model_of[which], page);
    const _Atomic index_entry *slot = bpi_index_slot(&index_of[which], page);
    const _Atomic index_entry *walked;
    index_entry want = model_load(&model_of[which], page);
    index_entry got = bpi_index_load(&index_of[which], page);

    if (got != want)
        return fail("page %#" PRIx64 " reads %#x, should read %#x", page, got, want);
    got = bpi_index_walk(&index_of[which], page, &walked, &got) ? atomic_load(walked) : got;
    if (got != want)
        return fail("page %#" PRIx64 " reads another way %#x", page, got);
    if (slot && atomic_load(slot) != want)
        return fail("the slot of page %#" PRIx64 " reads %#x, should read %#x", page, atomic_load(slot), want);
    for (unsigned m = 0; m < INDEX_MARKS; m++)
        if (bpi_index_marked(&index_of[which], page, m) != (i && (i->marks >> m & 1)))
            return fail("page %#" PRIx64 " %s mark %u", page, i && i->marks >> m & 1 ? "lacks" : "has", m);
    bpi_index_prefetch(&index_of[which], page);
    return same_guess(which, page, want);
}

/* The list of nodes that hold only shadows, from the oldest on. */
static bool same_list(unsigned which)
{
    const struct model *m = &model_of[which];
    uint32_t node = index_of[which].oldest;

    for (size_t i = 0; i < m->only_count; i++) {
        unsigned shift = m->only[i].level * INDEX_SHIFT;
        uint64_t base = shift + INDEX_SHIFT < 64 ? m->only[i].prefix << (shift + INDEX_SHIFT) : 0;

        if (node == NODE_NONE)
            return fail("only %zu nodes are listed, should be %zu", i, m->only_count);
        if (nodes.head[node].base != base || nodes.head[node].shift != shift)
            return fail("node %zu of the list is at %#" PRIx64 " shift %u, should be at %#" PRIx64 " shift %u", i,
                        nodes.head[node].base, nodes.head[node].shift, base, shift);
        node = nodes.head[node].newer;
    }
    return node == NODE_NONE || fail("more than %zu nodes are listed", m->only_count);
}

bool same_shape(unsigned which)
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
    for (unsigned i = 0; i < INDEX_MARKS; i++)
        if (bpi_index_any_marked(x, i) != (model_next(m, 0, 1u << i) != NULL))
            return fail("any marked %u: %d", i, bpi_index_any_marked(x, i));
    return same_list(which);
}

static bool same_item(const char *what, uint64_t from, bool found, const struct index_item *got,
                      const struct item *want)
{
    if (found != (want != NULL))
        return fail("%s from %#" PRIx64 ": found %s", what, from, found ? "something" : "nothing");
    if (want && (got->page != want->page || got->frame != want->value || got->order != want->order))
        return fail("%s from %#" PRIx64 ": page %#" PRIx64 " frame %u order %u, should be %#" PRIx64 ", %u, %u", what,
                    from, got->page, got->frame, got->order, want->page, want->value, want->order);
    return true;
}

bool same_around(unsigned which, uint64_t from)
{
    static const char *const marked[] = {"next dirty", "next in writeback", "next to write"};
    struct index *x = &index_of[which];
    const struct model *m = &model_of[which];
    const struct item *at = model_at(m, from);
    struct index_item item;
    bool found = bpi_index_next(x, from, &item);

    if (!same_item("next", from, found, &item, model_next(m, from, 0)))
        return false;
    found = bpi_index_previous(x, from, &item);
    if (!same_item("previous", from, found, &item, model_previous(m, from)))
        return false;
    found = bpi_index_find(x, from, &item);
    if (!same_item("find", from, found, &item, at && at->live ? at : NULL))
        return false;
    for (unsigned i = 0; i < INDEX_MARKS; i++) {
        found = bpi_index_next_marked(x, from, i, &item);
        if (!same_item(marked[i], from, found, &item, model_next(m, from, 1u << i)))
            return false;
    }
    if (bpi_index_order(x, from) != (at ? at->order : 0))
        return fail("page %#" PRIx64 " has order %u, should have %u", from, bpi_index_order(x, from),
                    at ? at->order : 0);
    return true;
}

/* What a pin of the batch checks, and where it says no. */
struct pins {
    unsigned which;
    unsigned count;
    unsigned refuse; /* number of the call that is refused */
    uint64_t next;   /* page that must be asked for */
    bool right;
};

static bool pin(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    struct pins *p = arg;
    const struct item *i = model_at(&model_of[p->which], page);

    p->right =
        p->right && before == p->count && page == p->next && i && i->live && e == model_load(&model_of[p->which], page);
    if (!p->right || p->count == p->refuse)
        return false;
    p->count++;
    p->next = item_last(i) + 1;
    *pages = p->next - page;
    return true;
}

bool same_batch(unsigned which, uint64_t page, uint64_t last, unsigned most)
{
    const struct model *m = &model_of[which];
    struct pins p = {.which = which, .refuse = below(4) ? UINT32_MAX : (unsigned)below(8), .next = page, .right = true};
    size_t got = index_batch(&index_of[which], page, last, most, pin, &p);
    unsigned want = 0;
    uint64_t at = page;

    while (at <= last && want < most && want < p.refuse) {
        const struct item *i = model_at(m, at);

        if (!i || !i->live)
            break;
        want++;
        at = item_last(i) + 1;
        if (at == 0)
            break;
    }
    if (got != want || p.count != want || !p.right)
        return fail("batch of %u from %#" PRIx64 " to %#" PRIx64 ": %zu, %u pinned, should be %u%s", most, page, last,
                    got, p.count, want, p.right ? "" : "; a pin was asked for the wrong page");
    return true;
}

bool same_items(unsigned which)
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
            !same_page(which, it->page - 1) || !same_page(which, last + 1) || !same_around(which, mid))
            return false;
    }
    return same_around(which, 0) && same_around(which, PAGE_LAST);
}

/* What every operation is followed by: shape, and pages at the edges of where it was. */
static bool same_after(unsigned which, uint64_t page, unsigned order)
{
    return same_shape(which) && same_page(which, page) && same_page(which, page + mask_of(order)) &&
           same_page(which, page - 1) && same_page(which, page + mask_of(order) + 1);
}

/* ---- operations on both ---- */

/* Nodes for one insert; false: there are none, or something is wrong (failure). */
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

static bool same_met(const char *what, uint64_t page, unsigned order, const struct index_insert *got,
                     const struct index_insert *want)
{
    if (got->shadow != want->shadow || got->shadows != want->shadows || got->frame != want->frame ||
        got->page != want->page)
        return fail("%s of order %u at %#" PRIx64 " met %u shadows (%#x), frame %u at %#" PRIx64
                    "; should be %u (%#x), %u, %#" PRIx64,
                    what, order, page, got->shadows, got->shadow, got->frame, got->page, want->shadows, want->shadow,
                    want->frame, want->page);
    return true;
}

bool do_insert(unsigned which, uint64_t page, unsigned order, uint32_t frame)
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
    if (!same_met("insert", page, order, &got, &want))
        return false;
    if (before - magazine.count > INSERT_NODES)
        return fail("an insert took %u nodes", before - magazine.count);
    if (rc && (magazine.count != before || atomic_load(&x->root) != root))
        return fail("an insert that failed took %u nodes", before - magazine.count);
    changes += !rc;
    return same_after(which, page, order);
}

/* The run ends at a conflict, or where the magazine is low. */
bool do_run(unsigned which, uint64_t page, unsigned order, unsigned n)
{
    uint32_t frame[RUN_MAX];
    struct index_insert want = {.shadow = ENTRY_NONE, .frame = UINT32_MAX};
    struct index_insert got;
    uint64_t newest = 0;
    unsigned done;
    unsigned i;

    if (!fill())
        return !failure[0];
    for (i = 0; i < n; i++)
        frame[i] = (uint32_t)(rng() & ENTRY_NUMBER_MAX & ~mask_of(order));
    done = bpi_index_insert_run(&index_of[which], page, order, frame, n, &magazine, &got);
    for (i = 0; i < n && (i < done || magazine.count >= INSERT_NODES || got.frame != UINT32_MAX); i++) {
        uint64_t at = page + ((uint64_t)i << order);
        struct index_insert one;
        int rc;

        for (size_t k = model_find(&model_of[which], at);
             k < model_of[which].count && model_of[which].item[k].page <= at + mask_of(order); k++)
            if (model_of[which].item[k].clock >= newest && !model_of[which].item[k].live && i < done) {
                newest = model_of[which].item[k].clock;
                want.shadow = model_of[which].item[k].value;
            }
        rc = model_insert(&model_of[which], at, order, frame[i], &one);
        want.shadows += one.shadows;
        want.frame = one.frame;
        want.page = one.page;
        if (rc)
            break;
        changes++;
    }
    if (i != done)
        return fail("a run of %u of order %u at %#" PRIx64 ": %u, should be %u", n, order, page, done, i);
    return same_met("run", page, order, &got, &want) && same_after(which, page, order) &&
           same_after(which, page + ((uint64_t)done << order), order);
}

bool do_erase(unsigned which, uint64_t page, unsigned order, uint32_t frame, bool leave)
{
    index_entry shadow = ENTRY_NONE;
    bool got;

    clock_now += !clock_coarse;
    if (leave)
        shadow = entry_of_shadow((uint32_t)(clock_now & SHADOW_CLOCK_MASK), clock_coarse ? 0 : order,
                                 clock_coarse ? 0 : (unsigned)clock_now & 3);
    got = bpi_index_erase(&index_of[which], page, order, frame, shadow);
    if (got != model_erase(&model_of[which], page, order, frame, shadow, clock_now))
        return fail("erase of order %u at %#" PRIx64 " answers %d", order, page, got);
    changes += got;
    return same_after(which, page, order);
}

bool do_erase_at(unsigned which, uint64_t page, bool leave)
{
    const struct item *i = model_at(&model_of[which], page);

    return !i || !i->live || do_erase(which, i->page, i->order, i->value, leave);
}

bool do_replace(unsigned which, uint64_t page, unsigned order, uint32_t frame, uint32_t to)
{
    bool got = bpi_index_replace(&index_of[which], page, order, frame, to);

    if (got != model_replace(&model_of[which], page, order, frame, to))
        return fail("replace of order %u at %#" PRIx64 " answers %d", order, page, got);
    changes += got;
    return same_after(which, page, order);
}

bool do_replace_at(unsigned which, uint64_t page, uint32_t to)
{
    const struct item *i = model_at(&model_of[which], page);

    return !i || !i->live || do_replace(which, i->page, i->order, i->value, to & ~(uint32_t)mask_of(i->order));
}

bool do_split(unsigned which, uint64_t page, unsigned order)
{
    uint32_t before;
    int want;
    int rc;

    if (!fill())
        return !failure[0];
    before = magazine.count;
    want = model_split(&model_of[which], page, order);
    rc = bpi_index_split(&index_of[which], page, order, &magazine);
    if (rc != want)
        return fail("split of order %u at %#" PRIx64 ": %d, should be %d", order, page, rc, want);
    if (before - magazine.count > INSERT_NODES || (rc && magazine.count != before))
        return fail("a split that answers %d took %u nodes", rc, before - magazine.count);
    changes += !rc;
    return same_after(which, page, order) && same_around(which, page) && same_around(which, page + mask_of(order) + 1);
}

bool do_reclaim(unsigned which, unsigned n)
{
    unsigned got = bpi_index_reclaim(&index_of[which], n);
    unsigned want = model_reclaim(&model_of[which], n);

    if (got != want)
        return fail("reclaim of %u dropped %u nodes, should have dropped %u", n, got, want);
    changes += got;
    return same_shape(which);
}

bool do_discard(unsigned which, uint64_t first, uint64_t last)
{
    struct index_item item;
    size_t before = model_of[which].count;
    bool met = bpi_index_discard(&index_of[which], first, last, &item);
    const struct item *want = model_discard(&model_of[which], first, last);

    changes += before != model_of[which].count;
    return same_item("discard", first, met, &item, want) && same_after(which, first, 0) && same_after(which, last, 0);
}

bool do_mark(unsigned which, uint64_t page, enum index_mark mark, bool set)
{
    bool had;
    bool want = model_mark(&model_of[which], page, mark, set, &had);
    bool got = set ? bpi_index_mark(&index_of[which], page, mark) : bpi_index_unmark(&index_of[which], page, mark);

    if (got != (set ? want : had))
        return fail("%s %u at %#" PRIx64 " answers %d", set ? "mark" : "unmark", mark, page, got);
    changes += had != set && want;
    return same_after(which, page, 0);
}

/* In as many calls as it takes. */
bool do_mark_those(unsigned which, uint64_t first, uint64_t last, enum index_mark if_marked, enum index_mark to,
                   unsigned most)
{
    struct model *m = &model_of[which];
    uint64_t from = first;
    unsigned got = most;

    for (unsigned calls = 0; got == most && from <= last && calls < ITEMS_MAX + 2; calls++) {
        uint64_t next;
        uint64_t want_next;
        unsigned want = model_mark_those(m, from, last, if_marked, to, most, &want_next);

        got = bpi_index_mark_those(&index_of[which], from, last, if_marked, to, most, &next);
        if (got != want)
            return fail("mark those %u in %#" PRIx64 "..%#" PRIx64 ": %u, should be %u", if_marked, from, last, got,
                        want);
        if (next != want_next)
            return fail("mark those of %#" PRIx64 "..%#" PRIx64 " goes on at %#" PRIx64 ", should go on at %#" PRIx64,
                        from, last, next, want_next);
        changes += got;
        if (next <= from) /* the very last of all pages: there is none to go on at */
            break;
        from = next;
    }
    return same_shape(which) && same_around(which, first);
}

bool do_clear(unsigned which)
{
    while (model_of[which].live) {
        const struct item *i = model_next(&model_of[which], 0, 0);

        if (!do_erase(which, i->page, i->order, i->value, i->page % 3))
            return false;
    }
    bpi_index_clear(&index_of[which]);
    model_clear(&model_of[which]);
    if (atomic_load(&index_of[which].root) || !bpi_index_check(&index_of[which], NULL))
        return fail("not empty after clear");
    return same_shape(which);
}
