/* SPDX-License-Identifier: MIT */
/*
 * The index: looking around. Exact answers about extents, one node at a time and under its lock; a walk over many
 * comes down anew for each, so it holds nothing between two of them and what happens there is simply seen or not.
 */
#include "bufpool/tree.h"

struct index_item bpi_item_at(const struct index *x, uint32_t node, unsigned slot)
{
    const struct node_head *h = head_of(x, node);
    struct row row = entry_row(h, slot);

    return (struct index_item){.page = slot_page(h, row.first),
                               .frame = entry_number(slot_get(x, node, row.first)),
                               .order = h->shift + (unsigned)__builtin_ctz(row.count)};
}

/* A lone page 0. The index's lock is held. */
static bool root_item(const struct index *x, struct index_item *item)
{
    index_entry e = index_root_entry(root_load(x));

    if (entry_is_frame(e))
        *item = (struct index_item){.page = 0, .frame = entry_number(e), .order = 0};
    return entry_is_frame(e);
}

bool bpi_index_find(struct index *x, uint64_t page, struct index_item *item)
{
    uint32_t node = tree_enter_leaf(x, page);
    bool found;

    if (node == NODE_NONE) {
        found = page == 0 && root_item(x, item);
    } else {
        unsigned slot = slot_of(page, head_of(x, node)->shift);

        found = entry_is_frame(slot_get(x, node, slot));
        if (found)
            *item = bpi_item_at(x, node, slot);
    }
    tree_leave(x, node);
    return found;
}

unsigned bpi_index_order(struct index *x, uint64_t page)
{
    uint32_t node = tree_enter_leaf(x, page);
    unsigned order = 0;

    if (node != NODE_NONE) {
        unsigned slot = slot_of(page, head_of(x, node)->shift);

        if (slot_get(x, node, slot) != ENTRY_NONE)
            order = bpi_item_at(x, node, slot).order;
    }
    tree_leave(x, node);
    return order;
}

bool bpi_index_next(struct index *x, uint64_t from, struct index_item *item)
{
    bool begun = false;

    for (; !begun || from != 0; begun = true) { /* 0: behind the last of all pages */
        uint32_t node = tree_enter_leaf(x, from);
        struct node_head *h;
        index_entry e = ENTRY_NONE;
        unsigned slot;

        if (node == NODE_NONE) { /* above the top there is nothing but page 0 */
            bool found = from == 0 && root_item(x, item);

            tree_leave(x, node);
            return found;
        }
        h = head_of(x, node);
        for (slot = slot_of(from, h->shift); slot < INDEX_SLOTS; slot++) {
            e = slot_get(x, node, slot);
            if (entry_is_frame(e) || (entry_is_node(e) && slot_page(h, slot) > from))
                break;
        }
        if (slot < INDEX_SLOTS && entry_is_frame(e)) {
            *item = bpi_item_at(x, node, slot);
            tree_leave(x, node);
            return true;
        }
        from = slot < INDEX_SLOTS ? slot_page(h, slot) : h->base + node_span(h->shift) + 1;
        tree_leave(x, node);
    }
    return false;
}

/* The last page that the tree covers, if that is before a page. */
static uint64_t within(const struct index *x, uint64_t page)
{
    uint64_t covered = index_root_shift(atomic_load_explicit(&x->root, memory_order_acquire));

    return covered < 64 && page >> covered ? (1ull << covered) - 1 : page;
}

bool bpi_index_previous(struct index *x, uint64_t from, struct index_item *item)
{
    for (;;) {
        uint32_t node;
        struct node_head *h;
        index_entry e = ENTRY_NONE;
        unsigned slot;
        uint64_t base;

        from = within(x, from);
        node = tree_enter_leaf(x, from);
        if (node == NODE_NONE) { /* page 0 alone, or the tree just became lower: then come again */
            bool found = from == 0 && root_item(x, item);
            bool lower = within(x, from) < from;

            tree_leave(x, node);
            if (lower)
                continue;
            return found;
        }
        h = head_of(x, node);
        for (slot = slot_of(from, h->shift) + 1; slot--;) {
            e = slot_get(x, node, slot);
            if (entry_is_frame(e) || (entry_is_node(e) && slot_page(h, slot) + ((1ull << h->shift) - 1) < from))
                break;
        }
        if (slot < INDEX_SLOTS && entry_is_frame(e)) {
            *item = bpi_item_at(x, node, slot);
            tree_leave(x, node);
            return true;
        }
        base = slot < INDEX_SLOTS ? slot_page(h, slot) + (1ull << h->shift) : h->base;
        tree_leave(x, node);
        if (base == 0)
            return false;
        from = base - 1;
    }
}

/* ---- discard ---- */

/*
 * Shadows of a node that is held, from *from to last. true: something live was met, in *item. Else *from is where to go
 * on, 0 if nowhere. A shadow that reaches beyond the range is left.
 */
static bool discard_in(struct index *x, uint32_t node, uint64_t first, uint64_t last, uint64_t *from,
                       struct index_item *item)
{
    struct node_head *h = head_of(x, node);
    uint64_t end = h->base + node_span(h->shift);

    for (unsigned slot = slot_of(*from, h->shift); slot < INDEX_SLOTS && slot_page(h, slot) <= last;) {
        index_entry e = slot_get(x, node, slot);
        struct row row = entry_row(h, slot);
        uint64_t begins = slot_page(h, row.first);

        if (entry_is_frame(e)) {
            *item = bpi_item_at(x, node, slot);
            return true;
        }
        if (entry_is_node(e) && begins > *from) {
            *from = begins;
            return false;
        }
        if (entry_is_shadow(e) && begins >= first && begins + (((uint64_t)row.count << h->shift) - 1) <= last)
            bpi_row_clear(x, node, &row);
        slot = row.first + row.count;
    }
    *from = end < last ? end + 1 : 0;
    return false;
}

bool bpi_index_discard(struct index *x, uint64_t first, uint64_t last, struct index_item *item)
{
    uint64_t from = first;
    bool begun = false;

    for (; first <= last && (!begun || from != 0); begun = true) {
        uint32_t node = tree_enter_leaf(x, from);
        bool met;

        if (node == NODE_NONE) {
            met = from == 0 && root_item(x, item);
            if (from == 0 && !met && index_root_shift(root_load(x)) == 0)
                root_store(x, ENTRY_NONE, 0);
            tree_leave(x, node);
            return met;
        }
        met = discard_in(x, node, first, last, &from, item);
        if (node_is_needless(x, node))
            bpi_tree_mend(x, node);
        else
            tree_leave(x, node);
        if (met)
            return true;
    }
    return false;
}

/* ---- check ---- */

struct census {
    uint32_t nodes;
    uint32_t listed;
    uint64_t live;
    bool mending; /* then nodes may be empty, or the top needless */
};

/* I3, I5 and I6 of a slot. Its node is locked. */
static bool check_slot(const struct index *x, uint32_t node, unsigned slot)
{
    const struct node_head *h = head_of(x, node);
    index_entry e = slot_get(x, node, slot);
    struct row row;
    bool sound = true;

    for (unsigned m = 0; m < INDEX_MARKS; m++) {
        bool marked = h->mark[m] >> slot & 1;

        if (h->cont >> slot & 1)
            sound &= marked == (h->mark[m] >> (slot - 1) & 1);
        else if (entry_is_node(e))
            sound &= marked == (head_of(x, entry_number(e))->mark[m] != 0);
        else
            sound &= !marked || entry_is_frame(e);
    }
    if (h->cont >> slot & 1) {
        index_entry step = entry_is_frame(e) ? 4u << h->shift : 0;

        return sound && slot > 0 && entry_is_end(e) && e == slot_get(x, node, slot - 1) + step;
    }
    row = entry_row(h, slot);
    return sound && (row.count & (row.count - 1)) == 0 && (slot & (row.count - 1)) == 0 && row.count < INDEX_SLOTS &&
           (!entry_is_node(e) || row.count == 1);
}

/* All nodes from one down are locked, and stay so. Depth is bounded by the height, so recursion is. */
static void lock_all(struct index *x, uint32_t node)
{
    slim_lock_take(&head_of(x, node)->lock);
    for (unsigned i = 0; i < INDEX_SLOTS; i++)
        if (entry_is_node(slot_get(x, node, i)))
            lock_all(x, entry_number(slot_get(x, node, i)));
}

static void unlock_all(struct index *x, uint32_t node)
{
    for (unsigned i = 0; i < INDEX_SLOTS; i++)
        if (entry_is_node(slot_get(x, node, i)))
            unlock_all(x, entry_number(slot_get(x, node, i)));
    slim_lock_give(&head_of(x, node)->lock);
}

/* I2 to I6 for a node and below; adds up what there is. */
static bool check_node(struct index *x, uint32_t node, uint64_t base, unsigned shift, struct census *sum)
{
    const struct node_head *h = head_of(x, node);
    unsigned used = 0;
    unsigned shadows = 0;
    bool sound = atomic_load_explicit(&h->owner, memory_order_relaxed) == x && h->base == base && h->shift == shift &&
                 (h->used > 0 || sum->mending) && h->listed == (h->used && h->used == h->shadows) &&
                 !(h->cont & ~NODE_BITS);

    sum->nodes++;
    sum->listed += h->listed;
    for (unsigned i = 0; i < INDEX_SLOTS && sound; i++) {
        index_entry e = slot_get(x, node, i);

        used += e != ENTRY_NONE;
        shadows += entry_is_shadow(e);
        sum->live += entry_is_frame(e) && !(h->cont >> i & 1);
        sound = check_slot(x, node, i);
        if (sound && entry_is_node(e))
            sound = shift >= INDEX_SHIFT && check_node(x, entry_number(e), slot_page(h, i), shift - INDEX_SHIFT, sum);
    }
    return sound && used == h->used && shadows == h->shadows;
}

/* The list leads from the oldest to the newest and back, over `count` nodes that know it. */
static bool check_list(struct index *x, uint32_t count)
{
    uint32_t before = NODE_NONE;
    uint32_t node;
    bool sound = true;

    slim_lock_take(&x->list_lock);
    for (node = x->oldest; sound && node != NODE_NONE && count; count--) {
        struct node_head *h = head_of(x, node);

        sound = h->listed && h->older == before;
        before = node;
        node = h->newer;
    }
    sound &= node == NODE_NONE && count == 0 && x->newest == before;
    slim_lock_give(&x->list_lock);
    return sound;
}

/* I1: the top is needed. A leaf with page 0 alone stays if it was held when it became so. */
static bool check_top(const struct index *x, uint32_t top)
{
    const struct node_head *h = head_of(x, top);

    return h->used != 1 || h->shift == 0 || !entry_is_node(slot_get(x, top, 0));
}

bool bpi_index_check(struct index *x, uint64_t *live)
{
    struct census sum = {0};
    uint64_t root;
    index_entry e;
    bool sound;

    slim_lock_take(&x->lock);
    root = root_load(x);
    e = index_root_entry(root);
    if (entry_is_node(e)) {
        unsigned shift = index_root_shift(root) - INDEX_SHIFT;

        lock_all(x, entry_number(e));
        sum.mending = atomic_load_explicit(&x->mending, memory_order_relaxed) != 0;
        sound = check_node(x, entry_number(e), 0, shift, &sum) && (sum.mending || check_top(x, entry_number(e)));
        sound = sound && sum.nodes == atomic_load_explicit(&x->node_count, memory_order_relaxed) &&
                check_list(x, sum.listed);
        unlock_all(x, entry_number(e));
    } else {
        sound = index_root_shift(root) == 0 && x->oldest == NODE_NONE;
        sum.live = entry_is_frame(e);
    }
    slim_lock_give(&x->lock);
    if (live)
        *live = sum.live;
    return sound;
}
