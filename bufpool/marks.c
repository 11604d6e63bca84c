/* SPDX-License-Identifier: MIT */
/*
 * The index: marks. A mark stands at all slots of its extent, so that pieces of a split have it without more ado, and
 * in every node above, at the slot that leads there: whoever looks for marked extents passes over what has none.
 *
 * The first mark of a node and the last one concern the nodes above, so they are set and cleared with the whole path
 * held, from the top down. All others are the business of the one node.
 */
#include "bufpool/tree.h"

static uint64_t slot_bit(unsigned slot)
{
    return 1ull << slot;
}

void bpi_marks_clear(struct index *x, const struct tree_path *p, uint64_t bits, unsigned marks)
{
    for (unsigned m = 0; m < INDEX_MARKS; m++) {
        uint64_t gone = bits;

        for (unsigned i = p->count; (marks >> m & 1) && i--;) {
            struct node_head *h = head_of(x, p->node[i]);

            h->mark[m] &= ~gone;
            if (h->mark[m] || i == 0)
                break;
            gone = slot_bit(slot_of(h->base, head_of(x, p->node[i - 1])->shift));
        }
    }
}

/* The slots of the extent that covers a page, in a node that is held; 0 if there is none. */
static uint64_t extent_bits(const struct index *x, uint32_t node, uint64_t page)
{
    const struct node_head *h = head_of(x, node);
    unsigned slot = slot_of(page, h->shift);
    struct row row = entry_row(h, slot);

    return entry_is_frame(slot_get(x, node, slot)) ? row_bits(&row) : 0;
}

/* The same, of an extent that has all of these marks (a bit each); 0 if it has not. */
static uint64_t extent_bits_if(const struct index *x, uint32_t node, uint64_t page, unsigned needed)
{
    uint64_t bits = extent_bits(x, node, page);

    for (unsigned m = 0; m < INDEX_MARKS; m++)
        if ((needed >> m & 1) && !(head_of(x, node)->mark[m] & bits))
            return 0;
    return bits;
}

/* The lone page 0, its mark in the root's bits. The index's lock is held. */
static bool at_root(const struct index *x, uint64_t page)
{
    return page == 0 && entry_is_frame(index_root_entry(root_load(x)));
}

/*
 * The first mark of a node, or the last: with the whole path. *had: whether it was set. Whether there is an extent that
 * has the marks needed.
 */
static bool change_path(struct index *x, uint64_t page, enum index_mark mark, bool set, unsigned needed, bool *had)
{
    struct tree_path p;
    uint64_t bits;
    bool found;

    bpi_tree_lock_path(x, page, &p);
    SYNC_POINT("index:marking");
    if (p.count) {
        bits = extent_bits_if(x, p.node[p.count - 1], page, needed);
        found = bits != 0;
        *had = (head_of(x, p.node[p.count - 1])->mark[mark] & bits) != 0;
        for (unsigned i = p.count; found && set && i--;) {
            head_of(x, p.node[i])->mark[mark] |= bits;
            if (i)
                bits = slot_bit(slot_of(page, head_of(x, p.node[i - 1])->shift));
        }
        if (found && !set)
            bpi_marks_clear(x, &p, bits, 1u << mark);
    } else {
        found = at_root(x, page) && (x->root_mark & needed) == needed;
        *had = found && (x->root_mark >> mark & 1);
        if (found)
            x->root_mark = (uint8_t)((x->root_mark & ~(1u << mark)) | (unsigned)set << mark);
    }
    bpi_tree_unlock_path(x, &p);
    return found;
}

static bool change(struct index *x, uint64_t page, enum index_mark mark, bool set, unsigned needed, bool *had)
{
    uint32_t node = tree_enter_leaf(x, page);
    struct node_head *h;
    uint64_t bits;
    bool above; /* nodes above are concerned */

    *had = false;
    if (node == NODE_NONE) {
        tree_leave(x, node);
        return change_path(x, page, mark, set, needed, had);
    }
    h = head_of(x, node);
    bits = extent_bits_if(x, node, page, needed);
    *had = (h->mark[mark] & bits) != 0;
    above = bits && *had != set && (set ? h->mark[mark] == 0 : (h->mark[mark] & ~bits) == 0);
    if (bits && !above)
        h->mark[mark] = set ? h->mark[mark] | bits : h->mark[mark] & ~bits;
    tree_leave(x, node);
    if (above)
        SYNC_POINT("index:mark");
    return above ? change_path(x, page, mark, set, needed, had) : bits != 0;
}

bool bpi_index_mark(struct index *x, uint64_t page, enum index_mark mark)
{
    bool had;

    return change(x, page, mark, true, 0, &had);
}

bool bpi_index_unmark(struct index *x, uint64_t page, enum index_mark mark)
{
    bool had;

    return change(x, page, mark, false, 0, &had) && had;
}

bool bpi_index_marked(struct index *x, uint64_t page, enum index_mark mark)
{
    uint32_t node = tree_enter_leaf(x, page);
    bool marked;

    if (node == NODE_NONE)
        marked = at_root(x, page) && (x->root_mark >> mark & 1);
    else
        marked = (head_of(x, node)->mark[mark] & extent_bits(x, node, page)) != 0;
    tree_leave(x, node);
    return marked;
}

bool bpi_index_any_marked(struct index *x, enum index_mark mark)
{
    index_entry e;
    bool any;

    slim_lock_take(&x->lock);
    e = index_root_entry(root_load(x));
    if (entry_is_node(e)) {
        struct node_head *h = head_of(x, entry_number(e));

        slim_lock_take(&h->lock);
        any = h->mark[mark] != 0;
        slim_lock_give(&h->lock);
    } else {
        any = entry_is_frame(e) && (x->root_mark >> mark & 1);
    }
    slim_lock_give(&x->lock);
    return any;
}

/*
 * From the top down to the next marked extent at or after *from. false: not on this way; *from is where to try again, 0
 * if nowhere.
 */
static bool next_marked_down(struct index *x, uint64_t *from, enum index_mark mark, struct index_item *item)
{
    uint64_t root;
    uint32_t node;
    struct node_head *h;

    slim_lock_take(&x->lock);
    root = root_load(x);
    if (!entry_is_node(index_root_entry(root)) || (index_root_shift(root) < 64 && *from >> index_root_shift(root))) {
        bool lone = at_root(x, *from) && (x->root_mark >> mark & 1);

        if (lone)
            *item = (struct index_item){.frame = entry_number(index_root_entry(root))};
        slim_lock_give(&x->lock);
        *from = 0;
        return lone;
    }
    node = entry_number(index_root_entry(root));
    h = head_of(x, node);
    slim_lock_take(&h->lock);
    slim_lock_give(&x->lock);
    for (;;) {
        uint64_t left = h->mark[mark] & ~0ull << slot_of(*from, h->shift);
        unsigned slot;
        struct node_head *child;

        if (!left) {
            *from = h->base + node_span(h->shift) + 1; /* 0 behind the last of all pages */
            slim_lock_give(&h->lock);
            return false;
        }
        slot = (unsigned)__builtin_ctzll(left);
        if (slot_page(h, slot) > *from)
            *from = slot_page(h, slot);
        if (!entry_is_node(slot_get(x, node, slot))) {
            *item = bpi_item_at(x, node, slot);
            slim_lock_give(&h->lock);
            return true;
        }
        node = entry_number(slot_get(x, node, slot));
        child = head_of(x, node);
        slim_lock_take(&child->lock);
        slim_lock_give(&h->lock);
        h = child;
    }
}

bool bpi_index_next_marked(struct index *x, uint64_t from, enum index_mark mark, struct index_item *item)
{
    do { /* each turn is a subtree further, or one that lost its marks meanwhile */
        SYNC_POINT("index:next_marked");
        if (next_marked_down(x, &from, mark, item))
            return true;
    } while (from != 0);
    return false;
}

unsigned bpi_index_mark_those(struct index *x, uint64_t first, uint64_t last, enum index_mark if_marked,
                              enum index_mark to, unsigned most, uint64_t *next)
{
    uint64_t from = first;
    bool more = first <= last;
    unsigned done = 0;
    struct index_item item;

    while (more && done < most && bpi_index_next_marked(x, from, if_marked, &item) && item.page <= last) {
        uint64_t end = item.page + ((1ull << item.order) - 1);
        bool had;

        SYNC_POINT("index:mark_those");
        /* it may have gone, and another have come, since it was found */
        done += change(x, item.page, to, true, 1u << if_marked, &had);
        more = end < last;
        from = end + 1;
    }
    *next = more && done == most ? from : last < UINT64_MAX ? last + 1 : UINT64_MAX;
    return done;
}
