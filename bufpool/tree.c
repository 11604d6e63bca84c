/* SPDX-License-Identifier: MIT */
/*
 * The index: nodes of a tree are found and locked, linked and taken out. How locks are taken, and why a guess is good
 * enough to begin with, is in tree.h.
 */
#include <string.h>
#include <sys/mman.h>

#include "bufpool/nodes.h"
#include "bufpool/reserve.h"
#include "bufpool/tree.h"

/* As many entries as there can be nodes: a thousandth of the pool at the most, and only what is touched counts. */
static size_t leaf_bytes(const struct index *x)
{
    return ((size_t)x->nodes->limit + 1) * sizeof(*x->leaf);
}

void bpi_index_init(struct index *x, struct index_nodes *nodes)
{
    memset(x, 0, sizeof(*x));
    x->nodes = nodes;
    x->map = nodes->map;
    x->head = nodes->head;
    x->oldest = x->newest = NODE_NONE;
    x->leaf = reserve_array(leaf_bytes(x), SIZE_MAX);
    x->leaf_pages = x->leaf ? (uint64_t)(x->nodes->limit + 1) * INDEX_SLOTS : 0;
}

void bpi_index_destroy(struct index *x)
{
    if (x->leaf)
        munmap((void *)x->leaf, leaf_bytes(x));
}

void bpi_index_clear(struct index *x)
{
    index_entry e;
    struct index_insert met = {.shadow = ENTRY_NONE};
    bool live;

    slim_lock_take(&x->lock);
    e = index_root_entry(root_load(x));
    live = entry_is_frame(e);
    if (entry_is_node(e))
        live = bpi_tree_lock_shadows(x, entry_number(e), &met);
    assert(!live);
    if (!live) {
        root_store(x, ENTRY_NONE, 0);
        if (x->leaf)
            madvise((void *)x->leaf, leaf_bytes(x), MADV_DONTNEED);
        if (entry_is_node(e))
            bpi_tree_drop(x, entry_number(e));
    }
    slim_lock_give(&x->lock);
}

/* ---- finding and locking ---- */

/* Where a walk without locks ends: the node that is meant, or one that was, or none. */
static uint32_t guess(const struct index *x, uint64_t page, unsigned shift)
{
    uint64_t root = atomic_load_explicit(&x->root, memory_order_acquire);
    unsigned at = index_root_shift(root);
    uint32_t node = NODE_NONE;
    index_entry e = index_root_entry(root);

    if (at < 64 && page >> at)
        return NODE_NONE;
    while (entry_is_node(e) && at > shift) {
        node = entry_number(e);
        at -= INDEX_SHIFT;
        if (at > shift)
            e = index_down(x->map, index_slots(e), page, at);
    }
    return node;
}

/* From a node that is held down to the lowest that will do, hand over hand. */
static inline __attribute__((always_inline)) uint32_t descend(struct index *x, uint32_t node, uint64_t page,
                                                              unsigned shift)
{
    struct node_head *h = head_of(x, node);

    while (h->shift > shift) {
        index_entry e = slot_get(x, node, slot_of(page, h->shift));
        struct node_head *child;

        if (!entry_is_node(e))
            break;
        node = entry_number(e);
        child = head_of(x, node);
        slim_lock_take(&child->lock);
        slim_lock_give(&h->lock);
        h = child;
    }
    return node;
}

uint32_t bpi_tree_enter(struct index *x, uint64_t page, unsigned shift)
{
    uint32_t node = guess(x, page, shift);
    uint64_t root;
    unsigned covered;

    if (node != NODE_NONE) {
        struct node_head *h = head_of(x, node);

        SYNC_POINT("index:guessed");
        slim_lock_take(&h->lock);
        if (node_covers(x, node, page) && h->shift >= shift)
            return descend(x, node, page, shift);
        slim_lock_give(&h->lock);
    }
    slim_lock_take(&x->lock);
    root = root_load(x);
    covered = index_root_shift(root);
    if (covered < shift + INDEX_SHIFT || (covered < 64 && page >> covered))
        return NODE_NONE;
    node = entry_number(index_root_entry(root));
    slim_lock_take(&head_of(x, node)->lock);
    slim_lock_give(&x->lock);
    return descend(x, node, page, shift);
}

void bpi_tree_lock_path(struct index *x, uint64_t page, struct tree_path *p)
{
    uint64_t root;
    unsigned shift;
    index_entry e;

    p->count = 0;
    slim_lock_take(&x->lock);
    root = root_load(x);
    shift = index_root_shift(root);
    if (shift == 0 || (shift < 64 && page >> shift))
        return;
    for (e = index_root_entry(root); entry_is_node(e) && shift; p->count++) {
        uint32_t node = entry_number(e);

        slim_lock_take(&head_of(x, node)->lock);
        p->node[p->count] = node;
        shift -= INDEX_SHIFT;
        e = slot_get(x, node, slot_of(page, shift));
    }
    slim_lock_give(&x->lock);
}

void bpi_tree_unlock_path(struct index *x, const struct tree_path *p)
{
    if (p->count == 0)
        slim_lock_give(&x->lock);
    for (unsigned i = p->count; i--;)
        slim_lock_give(&head_of(x, p->node[i])->lock);
}

/* ---- the list of nodes that hold only shadows ---- */

static void list_add(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    h->listed = true;
    h->older = x->newest;
    h->newer = NODE_NONE;
    if (x->newest != NODE_NONE)
        head_of(x, x->newest)->newer = node;
    else
        x->oldest = node;
    x->newest = node;
    atomic_fetch_add_explicit(&x->nodes->shadow_only, 1, memory_order_relaxed);
}

static void list_remove(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    if (h->older != NODE_NONE)
        head_of(x, h->older)->newer = h->newer;
    else
        x->oldest = h->newer;
    if (h->newer != NODE_NONE)
        head_of(x, h->newer)->older = h->older;
    else
        x->newest = h->older;
    h->listed = false;
    atomic_fetch_sub_explicit(&x->nodes->shadow_only, 1, memory_order_relaxed);
}

void bpi_list_change(struct index *x, uint32_t node)
{
    slim_lock_take(&x->list_lock);
    if (head_of(x, node)->listed)
        list_remove(x, node);
    else
        list_add(x, node);
    slim_lock_give(&x->list_lock);
}

/* ---- the life of a node in the tree ---- */

uint32_t bpi_node_take(struct index *x, struct node_magazine *m, unsigned shift, uint64_t base)
{
    uint32_t node;
    struct node_head *h;

    assert(m->count > 0 && m->count <= MAGAZINE_NODES);
    node = m->node[--m->count];
    h = head_of(x, node);
    h->shift = (uint8_t)shift;
    h->base = base;
    atomic_fetch_add_explicit(&x->node_count, 1, memory_order_relaxed);
    return node;
}

void bpi_node_linked(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);
    uint64_t base = h->base;
    bool leaf = h->shift == 0 && base < x->leaf_pages;
    bool only_shadows = h->used == h->shadows;

    SYNC_POINT("index:link");
    /* release: who comes by a guess and finds the owner right finds the rest of the head complete */
    atomic_store_explicit(&h->owner, x, memory_order_release);
    if (leaf)
        atomic_store_explicit(&x->leaf[base >> INDEX_SHIFT], entry_of_node(node), memory_order_release);
    if (only_shadows) {
        slim_lock_take(&h->lock);
        list_update(x, node);
        slim_lock_give(&h->lock);
    }
}

/* release: who does not find the leaf in the array any more walks, and finds what came in its place */
static void hide_leaf(struct index *x, const struct node_head *h)
{
    if (h->shift == 0 && h->base < x->leaf_pages)
        atomic_store_explicit(&x->leaf[h->base >> INDEX_SHIFT], ENTRY_NONE, memory_order_release);
}

void bpi_node_drop(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    hide_leaf(x, h);
    if (h->listed)
        bpi_list_change(x, node);
    /* relaxed: who looks holds the lock */
    atomic_store_explicit(&h->owner, NULL, memory_order_relaxed);
    slim_lock_give(&h->lock);
    atomic_fetch_sub_explicit(&x->node_count, 1, memory_order_relaxed);
    bpi_node_retire(x->nodes, node);
}

/* ---- subtrees of shadows. Depth is bounded by the height, so recursion is ---- */

void bpi_tree_unlock_shadows(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    for (unsigned i = 0; i < INDEX_SLOTS && h->used != h->shadows; i++) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_node(e))
            bpi_tree_unlock_shadows(x, entry_number(e));
    }
    slim_lock_give(&h->lock);
}

bool bpi_tree_lock_shadows(struct index *x, uint32_t node, struct index_insert *r)
{
    struct node_head *h = head_of(x, node);
    unsigned i;
    bool live = false;

    slim_lock_take(&h->lock);
    for (i = 0; i < INDEX_SLOTS && !live; i++) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_frame(e)) {
            r->frame = entry_number(e);
            r->page = slot_page(h, i);
            live = true;
        } else if (entry_is_node(e)) {
            live = bpi_tree_lock_shadows(x, entry_number(e), r);
        } else if (entry_is_shadow(e) && !(h->cont >> i & 1)) {
            note_shadow(r, e);
        }
    }
    if (!live)
        return false;
    for (i--; i--;) { /* slots before the one that was live; what is under that one has let go by itself */
        index_entry e = slot_get(x, node, i);

        if (entry_is_node(e))
            bpi_tree_unlock_shadows(x, entry_number(e));
    }
    slim_lock_give(&h->lock);
    return true;
}

void bpi_tree_hide_leaves(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    hide_leaf(x, h);
    for (unsigned i = 0; i < INDEX_SLOTS && h->used != h->shadows; i++) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_node(e))
            bpi_tree_hide_leaves(x, entry_number(e));
    }
}

void bpi_tree_drop(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    for (unsigned i = 0; i < INDEX_SLOTS && h->used != h->shadows; i++) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_node(e))
            bpi_tree_drop(x, entry_number(e));
    }
    bpi_node_drop(x, node);
}

/* ---- mending ---- */

bool bpi_node_is_uniform(const struct index *x, uint32_t node)
{
    index_entry e = slot_get(x, node, 0);

    for (unsigned i = 1; i < INDEX_SLOTS; i++)
        if (slot_get(x, node, i) != e)
            return false;
    return !node_is_top(x, node);
}

/* The lone entry that a top node may be reduced to: what is in slot 0 if that is a node or one page that nobody holds.
 */
static bool top_is_needless(const struct index *x, uint32_t top, index_entry *only)
{
    struct node_head *h = head_of(x, top);

    if (h->used == 0) {
        *only = ENTRY_NONE;
        return true;
    }
    if (h->used != 1)
        return false;
    *only = slot_get(x, top, 0);
    return entry_is_node(*only) || (h->shift == 0 && *only != ENTRY_NONE && !slim_is_held(&h->lock));
}

/* Restore I1. The index's lock is held. */
static void shrink(struct index *x)
{
    uint64_t root;
    index_entry only;

    for (root = root_load(x); entry_is_node(index_root_entry(root)); root = root_load(x)) {
        uint32_t top = entry_number(index_root_entry(root));
        struct node_head *h = head_of(x, top);

        slim_lock_take(&h->lock);
        if (!top_is_needless(x, top, &only)) {
            slim_lock_give(&h->lock);
            break;
        }
        for (unsigned i = 0; i < INDEX_MARKS && h->shift == 0; i++)
            x->root_mark = (uint8_t)((x->root_mark & ~(1u << i)) | (h->mark[i] & 1) << i);
        root_store(x, only, only == ENTRY_NONE ? 0 : h->shift);
        bpi_node_drop(x, top);
    }
}

/*
 * One level of mending: the node at a place, if it still is to be taken out, its parent being held. true: it was, and
 * now the parent has to be mended.
 */
static bool mend_child(struct index *x, uint32_t parent, uint64_t base)
{
    struct node_head *p = head_of(x, parent);
    unsigned slot = slot_of(base, p->shift);
    index_entry e = slot_get(x, parent, slot);
    uint32_t child = entry_number(e);
    struct node_head *h;

    if (!entry_is_node(e))
        return false;
    h = head_of(x, child);
    slim_lock_take(&h->lock);
    if (h->used == 0) {
        e = ENTRY_NONE;
        p->used--;
    } else if (node_is_uniform(x, child)) {
        e = slot_get(x, child, 0);
        p->shadows++;
    } else {
        slim_lock_give(&h->lock);
        return false;
    }
    slot_set(x, parent, slot, e);
    bpi_node_drop(x, child);
    list_update(x, parent);
    return node_is_needless(x, parent) || node_is_uniform(x, parent);
}

void bpi_tree_mend(struct index *x, uint32_t node)
{
    uint64_t base = head_of(x, node)->base;
    unsigned shift = head_of(x, node)->shift;
    bool more;

    atomic_fetch_add_explicit(&x->mending, 1, memory_order_relaxed);
    slim_lock_give(&head_of(x, node)->lock);
    do {
        SYNC_POINT("index:mend");
        shift += INDEX_SHIFT;
        node = shift < 64 ? bpi_tree_enter(x, base, shift) : NODE_NONE;
        if (shift >= 64)
            slim_lock_take(&x->lock);
        more = false;
        if (node == NODE_NONE) {
            shrink(x);
        } else if (head_of(x, node)->shift == shift) {
            more = mend_child(x, node, base);
            base = head_of(x, node)->base;
        }
        tree_leave(x, node);
    } while (more);
    atomic_fetch_sub_explicit(&x->mending, 1, memory_order_relaxed);
}

/* ---- reclaim ---- */

/* The place of the node that has held only shadows longest. It stays on the list for as long as the list's lock is held
 */
static bool oldest_place(struct index *x, uint64_t *base, unsigned *shift)
{
    bool found;

    slim_lock_take(&x->list_lock);
    found = x->oldest != NODE_NONE;
    if (found) {
        *base = head_of(x, x->oldest)->base;
        *shift = head_of(x, x->oldest)->shift;
    }
    slim_lock_give(&x->list_lock);
    return found;
}

unsigned bpi_index_reclaim(struct index *x, unsigned n)
{
    unsigned done = 0;
    uint64_t base;
    unsigned shift;

    for (unsigned tries = 0; tries < n && oldest_place(x, &base, &shift); tries++) {
        uint32_t node;

        SYNC_POINT("index:reclaim");
        node = bpi_tree_enter(x, base, shift);
        if (node == NODE_NONE || !head_of(x, node)->listed || head_of(x, node)->shift != shift) {
            tree_leave(x, node); /* it got something live meanwhile */
            continue;
        }
        for (unsigned i = 0; i < INDEX_SLOTS; i++)
            slot_set(x, node, i, ENTRY_NONE);
        head_of(x, node)->used = head_of(x, node)->shadows = 0;
        head_of(x, node)->cont = 0;
        list_update(x, node);
        bpi_tree_mend(x, node);
        done++;
    }
    return done;
}
