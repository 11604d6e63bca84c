/* SPDX-License-Identifier: MIT */
/*
 * The inside of the index: what its writers share. Layout and readers are in index.h.
 *
 *   index.c   entries come and go: insert, erase, replace, split        nodes.c  the life of a node outside of trees
 *   tree.c    nodes come and go: finding and locking them, growing,     marks.c  dirty, writeback, to-write
 *             mending, the list of those that hold only shadows         look.c   next, previous, discard, check
 *
 * Locks. A node's lock covers its slots and all of its head; the index's lock covers the root word in the same way, as
 * if it were the node above the top. They are taken from the top down. A writer comes to its node by a guess, from the
 * array of leaves or by a walk without locks, takes the lock, and then asks the head whether the node is the one that
 * was meant: in the tree of this index, at this place. Since there is at most one node of a level at a place, and none
 * leaves the tree but by the hand that holds its lock, the answer stays right while the lock is held. If the guess was
 * wrong it comes again from the top, hand over hand, which cannot fail. New nodes are complete, and filled under the
 * lock of the node that they will hang in, before they are linked; their owner is set after that.
 *
 * Whoever leaves a node empty, or a top needless, cannot take the lock above it any more: it lets go, comes again from
 * above, looks whether that still is so, and takes the node out (bpi_tree_mend). Until then the tree is right for
 * everybody, only larger than need be; `mending` says so to bpi_index_check.
 *
 * Invariants (bpi_index_check)
 *   I1  height is minimal: the top node has something beyond slot 0, or slot 0 holds an extent that needs this level,
 *       or page 0 alone is in a leaf that was held
 *   I2  used counts non-empty slots, shadows those that hold shadows; a node with used 0 is not in the tree
 *   I3  cont bit i is set only where slots i - 1 and i hold one entry; an entry's slots are an aligned power of two
 *   I4  a node is on the shadow list, once, exactly if used == shadows
 *   I5  a node has the base and the shift of the slot that leads to it, and this index as its owner
 *   I6  marks stand at live slots, at all of an entry or at none; at a slot of a node, where that node has any
 */
#ifndef BUFPOOL_TREE_H
#define BUFPOOL_TREE_H

#include <assert.h>
#include <string.h>

#include "bufpool/index.h"
#include "bufpool/sync_point.h"

#define likely(c)   __builtin_expect(!!(c), 1)
#define unlikely(c) __builtin_expect(!!(c), 0)

/* ---- slots ---- */

/* release: whatever the new root leads to is complete */
static inline void root_store(struct index *x, index_entry e, unsigned shift)
{
    atomic_store_explicit(&x->root, (uint64_t)e << 32 | shift, memory_order_release);
    SYNC_POINT("index:store");
}

/* Under the index's lock. */
static inline uint64_t root_load(const struct index *x)
{
    return atomic_load_explicit(&x->root, memory_order_relaxed);
}

/* Under the node's lock. */
static inline index_entry slot_get(const struct index *x, uint32_t node, unsigned slot)
{
    return atomic_load_explicit(&x->nodes->slot[node][slot], memory_order_relaxed);
}

/* release: a node or a frame's descriptor is complete before its entry can be seen */
static inline void slot_set(struct index *x, uint32_t node, unsigned slot, index_entry e)
{
    atomic_store_explicit(&x->nodes->slot[node][slot], e, memory_order_release);
    SYNC_POINT("index:store"); /* what a reader sees between any two stores must be right: model_index_steps */
}

static inline struct node_head *head_of(const struct index *x, uint32_t node)
{
    return &x->head[node];
}

static inline index_entry entry_of_node(uint32_t node)
{
    return node << 2 | ENTRY_NODE;
}

/* Pages under a node, less one. */
static inline uint64_t node_span(unsigned shift)
{
    return shift + INDEX_SHIFT < 64 ? (1ull << (shift + INDEX_SHIFT)) - 1 : UINT64_MAX;
}

static inline unsigned slot_of(uint64_t page, unsigned shift)
{
    return (unsigned)(page >> shift & (INDEX_SLOTS - 1));
}

/* First page of a slot. */
static inline uint64_t slot_page(const struct node_head *h, unsigned slot)
{
    return h->base + ((uint64_t)slot << h->shift);
}

/* All slots of a node, as bits. */
#define NODE_BITS (~0ull >> (64 - INDEX_SLOTS))

/* A row of slots in a node: where an entry of some order goes. At most half a node. */
struct row {
    unsigned shift;
    unsigned first;
    unsigned count;
};

static inline struct row row_of(uint64_t page, unsigned order)
{
    unsigned shift = order / INDEX_SHIFT * INDEX_SHIFT;

    return (struct row){.shift = shift, .first = slot_of(page, shift), .count = 1u << (order - shift)};
}

static inline uint64_t row_bits(const struct row *row)
{
    return ((1ull << row->count) - 1) << row->first;
}

/* Slots of the entry that a slot belongs to. */
static inline struct row entry_row(const struct node_head *h, unsigned slot)
{
    uint64_t begins = ~h->cont; /* bit 0 always is among them, and the one behind the last slot of small nodes */
    uint64_t above = slot + 1 < 64 ? begins >> (slot + 1) : 0;
    unsigned end = above ? slot + 1 + (unsigned)__builtin_ctzll(above) : INDEX_SLOTS;
    unsigned first = 63 - (unsigned)__builtin_clzll(begins & (~0ull >> (63 - slot)));

    return (struct row){.shift = h->shift, .first = first, .count = end - first};
}

/* Is a slot part of an entry of several? */
static inline bool slot_has_company(const struct node_head *h, unsigned slot)
{
    return h->cont >> slot & 3;
}

/* Is the row exactly one entry? */
static inline bool row_is_entry(const struct node_head *h, const struct row *row)
{
    uint64_t bits = row_bits(row);
    uint64_t after = bits << 1 & ~bits; /* 0 at the end of a node of 64 */

    return (h->cont & (bits | after)) == (bits & ~(1ull << row->first));
}

/*
 * The row's slots are to be an entry of their own, of the larger one that they are part of: cut it into the fewest
 * aligned pieces around them. Slots stay as they are, only the continuation bits say where pieces begin: the row, and
 * from it outwards the other half of each block that it lies in.
 */
extern const uint64_t bpi_other_halves[64]; /* by slot: where those begin, for blocks of 2, 4 .. 64 slots */

static inline void row_cut_from(struct node_head *h, const struct row *row, uint64_t whole)
{
    h->cont &= ~((bpi_other_halves[row->first] & whole & ~row_bits(row)) | 1ull << row->first);
}

static inline void row_cut(struct node_head *h, const struct row *row)
{
    struct row e;

    if (!(h->cont & (row_bits(row) | row_bits(row) << 1)))
        return; /* single slots */
    e = entry_row(h, row->first);
    row_cut_from(h, row, e.count < 64 ? row_bits(&e) : ~0ull);
}

/* ---- locks and places: tree.c ---- */

/*
 * The lowest node that covers a page and whose slots cover 2^shift pages or more, locked. NODE_NONE: there is none;
 * then the index's lock is held.
 */
uint32_t bpi_tree_enter(struct index *, uint64_t page, unsigned shift);

/*
 * Is the node in this tree, over this page? Its lock is held. acquire: the head is complete; it was filled by who
 * linked the node, without its lock.
 */
static inline bool node_covers(const struct index *x, uint32_t node, uint64_t page)
{
    const struct node_head *h = head_of(x, node);

    return atomic_load_explicit(&h->owner, memory_order_acquire) == x && page - h->base <= node_span(h->shift);
}

/* Is it no leaf, or on the list? Both bytes at once. */
static inline bool head_is_special(const struct node_head *h)
{
    uint16_t both;

    memcpy(&both, &h->shift, sizeof(both));
    return both != 0;
}
_Static_assert(offsetof(struct node_head, listed) == offsetof(struct node_head, shift) + 1, "head_is_special");

/* What leaf_enter found out. */
enum leaf_found { LEAF_HELD, LEAF_BUSY, LEAF_WRONG };

/*
 * The leaf of a page from the array of leaves: one load, one lock, and no call. LEAF_HELD: it is; its head and the
 * page's slot. LEAF_BUSY: it is not known, or somebody has it. LEAF_WRONG: what was found is held, but it is something
 * else, or on the list; to be let go of. In both cases bpi_tree_enter is to be asked.
 */
static inline __attribute__((always_inline)) enum leaf_found
leaf_enter(struct index *x, uint64_t page, struct node_head **head, _Atomic index_entry **slot)
{
    index_entry e;
    struct node_head *h;

    if (unlikely(page >= x->leaf_pages))
        return LEAF_BUSY;
    e = atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_relaxed);
    if (unlikely(e == ENTRY_NONE))
        return LEAF_BUSY;
    h = head_of_entry(x, e);
    SYNC_POINT("index:guessed");
    if (unlikely(!slim_lock_try(&h->lock)))
        return LEAF_BUSY;
    *head = h;
    *slot = &((_Atomic index_entry *)x->map)[index_slots(e) + slot_of(page, 0)];
    /* acquire: as in node_covers */
    return likely(atomic_load_explicit(&h->owner, memory_order_acquire) == x) &&
                   likely(h->base == (page & ~(uint64_t)(INDEX_SLOTS - 1))) && likely(!head_is_special(h))
               ? LEAF_HELD
               : LEAF_WRONG;
}

/* The same for writers that are in no hurry. */
static inline uint32_t tree_enter_leaf(struct index *x, uint64_t page)
{
    struct node_head *h = NULL;
    _Atomic index_entry *slot;

    switch (leaf_enter(x, page, &h, &slot)) {
    case LEAF_HELD:
        return (uint32_t)(h - x->head);
    case LEAF_WRONG:
        slim_lock_give(&h->lock);
        break;
    case LEAF_BUSY:
        break;
    }
    return bpi_tree_enter(x, page, 0);
}

/* The one that an extent belongs into, or the lowest above. */
static inline uint32_t tree_enter(struct index *x, uint64_t page, unsigned order)
{
    return order < INDEX_SHIFT ? tree_enter_leaf(x, page) : bpi_tree_enter(x, page, order / INDEX_SHIFT * INDEX_SHIFT);
}

/* Nodes from the top down to the lowest that covers a page, all locked; none: the index's lock is held. */
struct tree_path {
    uint32_t node[INDEX_HEIGHT_MAX];
    unsigned count;
};
void bpi_tree_lock_path(struct index *, uint64_t page, struct tree_path *);
void bpi_tree_unlock_path(struct index *, const struct tree_path *);

/* Let go of what bpi_tree_enter gave. */
static inline void tree_leave(struct index *x, uint32_t node)
{
    slim_lock_give(node == NODE_NONE ? &x->lock : &head_of(x, node)->lock);
}

/*
 * Clear marks (1 << INDEX_DIRTY and so on) at these slots of the path's last node, and what that means above. The path
 * is held. In marks.c.
 */
#define INDEX_MARKS_ALL ((1u << INDEX_MARKS) - 1)
void bpi_marks_clear(struct index *, const struct tree_path *, uint64_t bits, unsigned marks);

/* ---- nodes come and go: tree.c ---- */

/* A blank node for a place, not yet in the tree: nobody else looks at it. */
uint32_t bpi_node_take(struct index *, struct node_magazine *, unsigned shift, uint64_t base);
/* It was linked. Whether it is a leaf or not, and full of shadows or not, is put down where it must be. */
void bpi_node_linked(struct index *, uint32_t node);
/* It was taken out, its lock is held: no longer; its contents stay for readers that are inside. */
void bpi_node_drop(struct index *, uint32_t node);

/*
 * Lock all nodes under a slot that is to be overwritten, unless there is something live: then true, nothing is locked,
 * and what there is is told. Shadows met are told too.
 */
bool bpi_tree_lock_shadows(struct index *, uint32_t node, struct index_insert *);
/* Before what was locked is overwritten: its leaves go from the array of leaves, so that both ways say the same. */
void bpi_tree_hide_leaves(struct index *, uint32_t node);
/* Drop what was locked. It must not be reached from the tree any more. */
void bpi_tree_drop(struct index *, uint32_t node);
void bpi_tree_unlock_shadows(struct index *, uint32_t node);

/* After any change of a node's counts; its lock is held. */
void bpi_list_change(struct index *, uint32_t node);
static inline void list_update(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    if (__builtin_expect((h->used == h->shadows && h->used) != h->listed, 0))
        bpi_list_change(x, node);
}

/* Is it the top? Stable while its lock is held, and while it is not but used to be lower: who makes it so looks too. */
static inline bool node_is_top(const struct index *x, uint32_t node)
{
    return index_root_entry(atomic_load_explicit(&x->root, memory_order_relaxed)) == entry_of_node(node);
}

/* After something was taken out of a node, or slot 0 became a node: is I1 or I2 broken? Its lock is held. */
static inline bool node_is_needless(const struct index *x, uint32_t node)
{
    const struct node_head *h = head_of(x, node);

    return h->used == 0 || (h->used == 1 && slot_get(x, node, 0) != ENTRY_NONE && node_is_top(x, node));
}

/* After it got a shadow: is it one shadow all over, that its parent could hold in one slot? Its lock is held. */
bool bpi_node_is_uniform(const struct index *, uint32_t node);
static inline bool node_is_uniform(const struct index *x, uint32_t node)
{
    return __builtin_expect(head_of(x, node)->shadows == INDEX_SLOTS, 0) && bpi_node_is_uniform(x, node);
}

/*
 * Let go of a node that is needless or uniform, and mend it: its slot in its parent becomes nothing, or that shadow,
 * and so upwards; tops that are needless go.
 */
void bpi_tree_mend(struct index *, uint32_t node);

/* The extent of a slot that holds a frame; look.c. A row becomes nothing; index.c. The node's lock is held. */
struct index_item bpi_item_at(const struct index *, uint32_t node, unsigned slot);
void bpi_row_clear(struct index *, uint32_t node, const struct row *);

static inline void note_shadow(struct index_insert *r, index_entry e)
{
    r->shadows++;
    if (r->shadow == ENTRY_NONE || shadow_newer(e, r->shadow))
        r->shadow = e;
}

#endif
