/* SPDX-License-Identifier: MIT */
/*
 * The index: entries come and go. Each operation finds the lowest node that covers its range, locks it, and does all
 * there: looks, and stores. Only what is beyond the top node is the business of the index's own lock. The inside of the
 * index is told in tree.h.
 */
#include <errno.h>

#include "bufpool/nodes.h"
#include "bufpool/tree.h"

static void met_nothing(struct index_insert *r)
{
    *r = (struct index_insert){.shadow = ENTRY_NONE, .frame = UINT32_MAX};
}

/* Then shadows that were met on the way are none of the caller's business. */
static int met_live(struct index_insert *r, uint32_t frame, uint64_t page)
{
    *r = (struct index_insert){.shadow = ENTRY_NONE, .frame = frame, .page = page};
    return -EEXIST;
}

/* One insert of a run adds what it met. */
static void met_more(struct index_insert *r, const struct index_insert *one)
{
    if (one->shadows && (r->shadow == ENTRY_NONE || shadow_newer(one->shadow, r->shadow)))
        r->shadow = one->shadow;
    r->shadows += one->shadows;
    r->frame = one->frame;
    r->page = one->page;
}

/* ---- readers' rest ---- */

bool bpi_index_walk(const struct index *x, uint64_t page, const _Atomic index_entry **slot, index_entry *e)
{
    return index_walk(x, page, slot, e);
}

void bpi_index_prefetch(const struct index *x, uint64_t page)
{
    index_entry leaf;

    if (page >= x->leaf_pages)
        return;
    leaf = atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_relaxed);
    __builtin_prefetch((const void *)&x->map[index_slots(leaf) + slot_of(page, 0)], 1, 3);
    __builtin_prefetch(head_of(x, entry_number(leaf)), 1, 3);
}

index_entry bpi_index_remember(const struct index *x, uint64_t page, struct index_memory *m)
{
    const _Atomic index_entry *slot;
    index_entry e;

    if (!index_reach(x, page, &slot, &e))
        return e;
    m->other = ~(page & ~(uint64_t)(INDEX_SLOTS - 1));
    m->leaf = entry_of_node((uint32_t)(index_head_of(x, slot) - x->head));
    return atomic_load_explicit(slot, memory_order_acquire);
}

/* From the top, if need be. With the lock nobody is at work in the leaf but us. */
struct node_head *bpi_index_hold_slow(struct index *x, uint64_t page, const _Atomic index_entry **slot)
{
    uint32_t node = bpi_tree_enter(x, page, 0);
    struct node_head *h = NULL;

    if (node != NODE_NONE && head_of(x, node)->shift == 0) {
        h = head_of(x, node);
        slim_hold(&h->lock);
        *slot = &x->nodes->slot[node][slot_of(page, 0)];
    }
    tree_leave(x, node);
    return h;
}

/* ---- rows of slots; the node's lock is held ---- */

/* Of the block of 2n slots around slot s, the half in which s is not. */
#define OTHER(s, n) 1ull << (((s) ^ (n)) & ~((n)-1u))
#define HALVES(s)   (OTHER(s, 1u) | OTHER(s, 2u) | OTHER(s, 4u) | OTHER(s, 8u) | OTHER(s, 16u) | OTHER(s, 32u))
#define FOUR(s)     HALVES(s), HALVES((s) + 1), HALVES((s) + 2), HALVES((s) + 3)
#define SIXTEEN(s)  FOUR(s), FOUR((s) + 4), FOUR((s) + 8), FOUR((s) + 12)

const uint64_t bpi_other_halves[64] = {SIXTEEN(0u), SIXTEEN(16u), SIXTEEN(32u), SIXTEEN(48u)};

/* -EEXIST: something live is in the row, or under it, and is told. 0: all nodes under the row are locked. */
static int row_conflict(struct index *x, uint32_t node, const struct row *row, struct index_insert *r)
{
    struct node_head *h = head_of(x, node);
    unsigned end = row->first + row->count;
    unsigned i;
    int rc = 0;

    for (i = row->first; i < end && !rc; i++) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_frame(e))
            rc = met_live(r, entry_number(e), slot_page(h, i));
        else if (entry_is_node(e) && bpi_tree_lock_shadows(x, entry_number(e), r))
            rc = met_live(r, r->frame, r->page);
        else if (entry_is_shadow(e) && (i == row->first || !(h->cont >> i & 1)))
            note_shadow(r, e);
    }
    for (i--; rc && i-- > row->first;) {
        index_entry e = slot_get(x, node, i);

        if (entry_is_node(e))
            bpi_tree_unlock_shadows(x, entry_number(e));
    }
    return rc;
}

/* Store an entry all over the row; conflicts are excluded. Counts follow, subtrees go. */
static void row_store(struct index *x, uint32_t node, const struct row *row, index_entry e, uint32_t step)
{
    struct node_head *h = head_of(x, node);
    uint64_t bits = row_bits(row);
    unsigned used = h->used;
    unsigned shadows = h->shadows;

    row_cut(h, row);
    h->cont &= ~bits;
    if (e != ENTRY_NONE)
        h->cont |= bits & bits << 1;
    for (unsigned i = row->first; i < row->first + row->count; i++) {
        index_entry old = slot_get(x, node, i);

        used = used + (old == ENTRY_NONE) - (e == ENTRY_NONE);
        shadows = shadows + entry_is_shadow(e) - entry_is_shadow(old);
        if (entry_is_node(old))
            bpi_tree_hide_leaves(x, entry_number(old));
        slot_set(x, node, i, e);
        if (entry_is_node(old))
            bpi_tree_drop(x, entry_number(old));
        e += step;
    }
    h->used = (uint8_t)used;
    h->shadows = (uint8_t)shadows;
    list_update(x, node);
}

void bpi_row_clear(struct index *x, uint32_t node, const struct row *row)
{
    row_store(x, node, row, ENTRY_NONE, 0);
}

/* Frames of an extent, from one slot to the next. */
static uint32_t frame_step(unsigned shift)
{
    return 4u << shift;
}

/* The slot that leaf_enter gave; as slot_set. */
static inline void leaf_set(_Atomic index_entry *slot, index_entry e)
{
    atomic_store_explicit(slot, e, memory_order_release);
    SYNC_POINT("index:store");
}

/* ---- paths that are missing ---- */

/* A blank node gets what its slot held above: the same shadow, or the frames of that part of the extent, as one entry.
 */
static void fill_child(struct index *x, uint32_t child, index_entry e, unsigned marks)
{
    struct node_head *h = head_of(x, child);

    h->cont = NODE_BITS & ~1ull;
    h->used = INDEX_SLOTS;
    if (entry_is_shadow(e)) { /* has no marks */
        slots_fill(x->nodes->slot[child], e);
        h->shadows = INDEX_SLOTS;
        return;
    }
    for (unsigned i = 0; i < INDEX_SLOTS; i++)
        atomic_store_explicit(&x->nodes->slot[child][i], e + i * frame_step(h->shift), memory_order_relaxed);
    for (unsigned i = 0; i < INDEX_MARKS; i++)
        h->mark[i] = marks >> i & 1 ? NODE_BITS : 0;
}

/* What a path is made for. */
struct path {
    uint64_t page;
    struct row row;
    index_entry entry; /* to be stored in the row; ENTRY_NONE: only cut the row out of what is there */
    uint32_t node[INDEX_HEIGHT_MAX];
    unsigned count;
};

static inline void path_for(struct path *p, uint64_t page, unsigned order, index_entry entry)
{
    p->page = page;
    p->row = row_of(page, order);
    p->entry = entry;
    p->count = 0;
}

/* A slot that holds an end (or nothing) is about to lead to a node. */
static void slot_opens(struct node_head *h, const struct row *one, index_entry e)
{
    row_cut(h, one);
    h->used = (uint8_t)(h->used + (e == ENTRY_NONE));
    h->shadows = (uint8_t)(h->shadows - entry_is_shadow(e));
}

/* The path's row, in a new node whose other slots are all e. */
static void path_end(struct index *x, uint32_t node, const struct path *p, index_entry e)
{
    struct node_head *h = head_of(x, node);
    uint64_t bits = row_bits(&p->row);

    row_cut_from(h, &p->row, NODE_BITS);
    if (p->entry == ENTRY_NONE)
        return;
    h->cont |= bits & bits << 1;
    for (unsigned i = 0; i < p->row.count; i++)
        slot_set(x, node, p->row.first + i, p->entry + i * frame_step(p->row.shift));
    h->used = (uint8_t)(e == ENTRY_NONE ? p->row.count : INDEX_SLOTS);
    h->shadows = (uint8_t)(e == ENTRY_NONE ? 0 : INDEX_SLOTS - p->row.count);
}

/*
 * Nodes from `shift` down to the row's level over the path's page, in which all reads as before (e: nothing, a shadow,
 * a frame), but for the row. Nobody sees them yet. Returns the entry that leads there.
 */
static index_entry path_make(struct index *x, struct path *p, unsigned shift, index_entry e, unsigned marks,
                             struct node_magazine *m)
{
    uint32_t above = NODE_NONE;

    p->count = 0;
    for (;; shift -= INDEX_SHIFT) {
        uint32_t node = bpi_node_take(x, m, shift, p->page & ~node_span(shift));
        struct node_head *h = head_of(x, node);
        struct row one = {.shift = shift, .first = slot_of(p->page, shift), .count = 1};

        p->node[p->count++] = node;
        if (e != ENTRY_NONE)
            fill_child(x, node, e, marks);
        if (above != NODE_NONE) {
            struct node_head *a = head_of(x, above);

            slot_set(x, above, slot_of(p->page, a->shift), entry_of_node(node));
        }
        above = node;
        if (shift == p->row.shift)
            break;
        slot_opens(h, &one, e);
        e += entry_is_frame(e) ? one.first * frame_step(shift) : 0;
    }
    path_end(x, above, p, e);
    return entry_of_node(p->node[0]);
}

/*
 * The path's first node was linked. From the lowest up: a node that is known is one that others overwrite, and then all
 * below it must be known as well. Before that they wait for whoever holds what is above.
 */
static void path_linked(struct index *x, const struct path *p)
{
    for (unsigned i = p->count; i--;)
        bpi_node_linked(x, p->node[i]);
}

/* Make the path that is missing under a node that is held: its slot holds nothing, a shadow, or (split only) a frame.
 */
static void path_insert(struct index *x, uint32_t node, struct path *p, struct node_magazine *m)
{
    struct node_head *h = head_of(x, node);
    struct row one = {.shift = h->shift, .first = slot_of(p->page, h->shift), .count = 1};
    index_entry e = slot_get(x, node, one.first);
    unsigned marks = 0;
    index_entry child;

    for (unsigned i = 0; i < INDEX_MARKS && entry_is_frame(e); i++)
        marks |= (unsigned)(h->mark[i] >> one.first & 1) << i;
    child = path_make(x, p, h->shift - INDEX_SHIFT, e, marks, m);
    slot_opens(h, &one, e);
    slot_set(x, node, one.first, child);
    path_linked(x, p);
    list_update(x, node);
}

/* ---- insert above: the root word's business; the index's lock is held ---- */

/* The lowest level that has page `last` and, if there is something already, that as well. */
static unsigned top_for(unsigned shift, uint64_t last)
{
    while (last > node_span(shift))
        shift += INDEX_SHIFT;
    return shift;
}

/* Nodes from the one that covers 2^shift pages up to below `top`, each with only slot 0: minimal height comes later. */
static index_entry wrap(struct index *x, index_entry e, unsigned shift, unsigned top, unsigned marks,
                        struct node_magazine *m)
{
    for (; shift < top; shift += INDEX_SHIFT) {
        uint32_t node = bpi_node_take(x, m, shift, 0);
        struct node_head *h = head_of(x, node);

        h->used = 1;
        h->shadows = entry_is_shadow(e);
        for (unsigned i = 0; i < INDEX_MARKS; i++)
            h->mark[i] = marks >> i & 1;
        slot_set(x, node, 0, e);
        e = entry_of_node(node);
    }
    return e;
}

/* Those that wrap made were linked, the highest as the top. From the lowest up, as in path_linked. */
static void wrap_linked(struct index *x, unsigned shift)
{
    uint64_t root = root_load(x);
    index_entry e = index_root_entry(root);
    uint32_t node[INDEX_HEIGHT_MAX];
    unsigned count = 0;

    for (unsigned at = index_root_shift(root); at > shift; at -= INDEX_SHIFT) {
        node[count++] = entry_number(e);
        e = slot_get(x, entry_number(e), 0);
    }
    while (count--)
        bpi_node_linked(x, node[count]);
}

/* Marks that a whole tree has. Its top is held. */
static unsigned marks_of(const struct index *x, index_entry e)
{
    unsigned marks = 0;

    if (!entry_is_node(e))
        return x->root_mark;
    for (unsigned i = 0; i < INDEX_MARKS; i++)
        marks |= (unsigned)(head_of(x, entry_number(e))->mark[i] != 0) << i;
    return marks;
}

/* Nothing of what there was stays: a tree of this one path. */
static void plant(struct index *x, struct path *p, uint64_t last, struct node_magazine *m)
{
    unsigned top = top_for(p->row.shift, last);

    root_store(x, path_make(x, p, top, ENTRY_NONE, 0, m), top + INDEX_SHIFT);
    path_linked(x, p);
}

/* Page 0 gets company, or the tree a page beyond its end: a new top over both. */
static void grow(struct index *x, struct path *p, uint64_t last, struct node_magazine *m)
{
    uint64_t root = root_load(x);
    index_entry e = index_root_entry(root);
    unsigned shift = index_root_shift(root);
    unsigned top = top_for(p->row.shift, last);
    uint32_t old = entry_is_node(e) ? entry_number(e) : NODE_NONE;
    uint32_t node;

    if (old != NODE_NONE) /* its marks must not change until they are the new top's */
        slim_lock_take(&head_of(x, old)->lock);
    node = entry_number(wrap(x, e, shift, top + INDEX_SHIFT, marks_of(x, e), m));
    x->root_mark = 0;
    p->count = 0;
    if (top == p->row.shift) {
        row_store(x, node, &p->row, p->entry, frame_step(top));
    } else {
        slot_set(x, node, slot_of(p->page, top), path_make(x, p, top - INDEX_SHIFT, ENTRY_NONE, 0, m));
        head_of(x, node)->used = 2;
    }
    root_store(x, entry_of_node(node), top + INDEX_SHIFT);
    path_linked(x, p);
    wrap_linked(x, shift);
    if (old != NODE_NONE)
        slim_lock_give(&head_of(x, old)->lock);
}

/* The range is beyond the top node, or holds all there is. */
static int insert_above(struct index *x, struct path *p, unsigned order, struct node_magazine *m,
                        struct index_insert *r)
{
    index_entry e = index_root_entry(root_load(x));
    uint64_t last = p->page | ((1ull << order) - 1);

    if (p->page != 0 && e != ENTRY_NONE) {
        grow(x, p, last, m);
        return 0;
    }
    /* it begins at the first page and ends behind all there is, or there is nothing */
    if (entry_is_frame(e))
        return met_live(r, entry_number(e), 0);
    if (entry_is_node(e) && bpi_tree_lock_shadows(x, entry_number(e), r))
        return met_live(r, r->frame, r->page);
    if (entry_is_node(e))
        bpi_tree_hide_leaves(x, entry_number(e));
    if (entry_is_shadow(e))
        note_shadow(r, e);
    if (last == 0)
        root_store(x, p->entry, 0);
    else
        plant(x, p, last, m);
    if (entry_is_node(e))
        bpi_tree_drop(x, entry_number(e));
    return 0;
}

/* ---- insert ---- */

/* Into the node that is held, the lowest there is. *mend: slot 0 of the top may be all that is left. */
static int insert_below(struct index *x, uint32_t node, struct path *p, struct node_magazine *m, struct index_insert *r,
                        bool *mend)
{
    struct node_head *h = head_of(x, node);
    unsigned slot;
    index_entry e;

    if (h->shift == p->row.shift) {
        int rc = row_conflict(x, node, &p->row, r);

        if (!rc)
            row_store(x, node, &p->row, p->entry, frame_step(p->row.shift));
        return rc;
    }
    slot = slot_of(p->page, h->shift);
    e = slot_get(x, node, slot);
    if (entry_is_frame(e))
        return met_live(r, entry_number(index_answer(e, p->page, h->shift)), p->page);
    if (entry_is_shadow(e))
        note_shadow(r, e);
    path_insert(x, node, p, m);
    *mend = node_is_needless(x, node);
    return 0;
}

/* From the node that bpi_tree_enter gave, which is let go of. */
static int insert_held(struct index *x, uint32_t node, uint64_t page, unsigned order, uint32_t frame,
                       struct node_magazine *m, struct index_insert *r)
{
    struct path p;
    bool mend = false;
    int rc;

    assert(m->count >= INSERT_NODES);
    path_for(&p, page, order, entry_of_frame(frame));
    met_nothing(r);
    if (node == NODE_NONE)
        rc = insert_above(x, &p, order, m, r);
    else
        rc = insert_below(x, node, &p, m, r, &mend);
    if (mend)
        bpi_tree_mend(x, node);
    else
        tree_leave(x, node);
    return rc;
}

static __attribute__((noinline)) int insert_any(struct index *x, uint64_t page, unsigned order, uint32_t frame,
                                                struct node_magazine *m, struct index_insert *r)
{
    return insert_held(x, bpi_tree_enter(x, page, order / INDEX_SHIFT * INDEX_SHIFT), page, order, frame, m, r);
}

/* After something that was held and is not what was meant. */
static __attribute__((noinline)) int insert_again(struct index *x, uint64_t page, struct node_head *wrong,
                                                  uint32_t frame, struct node_magazine *m, struct index_insert *r)
{
    slim_lock_give(&wrong->lock);
    return insert_any(x, page, 0, frame, m, r);
}

/*
 * A page into a leaf that is there already is what most inserts are: it saves no registers, since whatever it calls it
 * calls last.
 */
int bpi_index_insert(struct index *x, uint64_t page, unsigned order, uint32_t frame, struct node_magazine *m,
                     struct index_insert *r)
{
    struct node_head *h;
    _Atomic index_entry *slot;
    index_entry old;
    enum leaf_found found;

    assert(order <= INDEX_ORDER_MAX && (page & ((1ull << order) - 1)) == 0);
    if (unlikely(order != 0))
        return insert_any(x, page, order, frame, m, r);
    found = leaf_enter(x, page, &h, &slot);
    if (unlikely(found == LEAF_BUSY))
        return insert_any(x, page, 0, frame, m, r);
    if (unlikely(found == LEAF_WRONG))
        return insert_again(x, page, h, frame, m, r);
    old = atomic_load_explicit(slot, memory_order_relaxed);
    if (unlikely(entry_is_frame(old))) {
        met_live(r, entry_number(old), page);
        slim_lock_give(&h->lock);
        return -EEXIST;
    }
    if (unlikely(slot_has_company(h, slot_of(page, 0))))
        return insert_again(x, page, h, frame, m, r);
    leaf_set(slot, entry_of_frame(frame));
    r->page = 0;
    r->frame = UINT32_MAX;
    r->shadow = old;
    if (old == ENTRY_NONE) {
        r->shadows = 0;
        h->used++;
    } else {
        r->shadows = 1;
        h->shadows--;
    }
    slim_lock_give(&h->lock);
    return 0;
}

/* Rows next to each other in a node that is held, until one is taken. Nothing but these slots is looked at. */
static unsigned insert_rows(struct index *x, uint32_t node, struct row row, const uint32_t frame[], unsigned n,
                            struct index_insert *r)
{
    unsigned done = 0;

    for (; done < n && row.first < INDEX_SLOTS; done++, row.first += row.count) {
        struct index_insert one;
        int rc;

        met_nothing(&one);
        rc = row_conflict(x, node, &row, &one);
        met_more(r, &one);
        if (rc)
            break;
        row_store(x, node, &row, entry_of_frame(frame[done]), frame_step(row.shift));
    }
    return done;
}

/* The same for single slots of a node without larger entries: what readahead does. */
static unsigned insert_slots(struct index *x, uint32_t node, unsigned slot, const uint32_t frame[], unsigned n,
                             struct index_insert *r)
{
    struct node_head *h = head_of(x, node);
    _Atomic index_entry *to = &x->nodes->slot[node][slot];
    unsigned shadows = 0;
    size_t done = 0;

    if (n > INDEX_SLOTS - slot)
        n = INDEX_SLOTS - slot;
    for (; done < n; done++) {
        index_entry old = atomic_load_explicit(&to[done], memory_order_relaxed);

        if (unlikely(old != ENTRY_NONE)) {
            if (entry_is_frame(old)) {
                r->frame = entry_number(old);
                r->page = slot_page(h, slot + (unsigned)done);
                break;
            }
            note_shadow(r, old);
            shadows++;
        }
        leaf_set(&to[done], entry_of_frame(frame[done]));
    }
    h->used = (uint8_t)(h->used + done - shadows);
    h->shadows = (uint8_t)(h->shadows - shadows);
    list_update(x, node);
    return (unsigned)done;
}

unsigned bpi_index_insert_run(struct index *x, uint64_t page, unsigned order, const uint32_t frame[], unsigned n,
                              struct node_magazine *m, struct index_insert *r)
{
    unsigned done = 0;
    bool low = false;

    met_nothing(r);
    while (done < n && r->frame == UINT32_MAX && !low) {
        uint64_t at = page + ((uint64_t)done << order);
        struct row row = row_of(at, order);
        uint32_t node = tree_enter(x, at, order);

        if (node != NODE_NONE && head_of(x, node)->shift == row.shift) {
            if (order == 0 && !head_of(x, node)->cont)
                done += insert_slots(x, node, row.first, frame + done, n - done, r);
            else
                done += insert_rows(x, node, row, frame + done, n - done, r);
            tree_leave(x, node);
        } else { /* the node has to be made first */
            struct index_insert one;

            tree_leave(x, node);
            low = m->count < INSERT_NODES;
            if (!low) {
                done += bpi_index_insert(x, at, order, frame[done], m, &one) == 0;
                met_more(r, &one);
            }
        }
    }
    return done;
}

/* ---- erase, replace ---- */

/* The extent's row in the node that is held, or not: NODE_NONE stands for the root word. */
static bool holds_extent(const struct index *x, uint32_t node, uint64_t page, unsigned order, const struct row *row,
                         uint32_t frame)
{
    if (page & ((1ull << order) - 1))
        return false;
    if (node == NODE_NONE)
        return page == 0 && order == 0 && root_load(x) == (uint64_t)entry_of_frame(frame) << 32;
    return head_of(x, node)->shift == row->shift && slot_get(x, node, row->first) == entry_of_frame(frame) &&
           row_is_entry(head_of(x, node), row);
}

/* A node's lock is taken, so this is final; the root word cannot be held. */
static bool node_is_held(const struct index *x, uint32_t node)
{
    return node != NODE_NONE && slim_is_held(&head_of(x, node)->lock);
}

static uint64_t marks_in(const struct node_head *h, uint64_t bits)
{
    return (h->mark[INDEX_DIRTY] | h->mark[INDEX_WRITEBACK] | h->mark[INDEX_TO_WRITE]) & bits;
}

/* Out of a node that is held; lets go of it. */
static void erase_row(struct index *x, uint32_t node, const struct row *row, index_entry shadow)
{
    row_store(x, node, row, shadow, 0);
    if (shadow == ENTRY_NONE ? node_is_needless(x, node) : node_is_uniform(x, node))
        bpi_tree_mend(x, node);
    else
        slim_lock_give(&head_of(x, node)->lock);
}

/* A marked one: its marks go, up to the top, in the same moment. */
static enum index_gone erase_marked(struct index *x, uint64_t page, unsigned order, uint32_t frame, index_entry shadow,
                                    bool unless_held)
{
    struct row row = row_of(page, order);
    struct tree_path p;
    uint32_t node;
    enum index_gone gone = INDEX_ABSENT;

    bpi_tree_lock_path(x, page, &p);
    while (p.count > 1 && head_of(x, p.node[p.count - 1])->shift < row.shift)
        slim_lock_give(&head_of(x, p.node[--p.count])->lock);
    node = p.count ? p.node[p.count - 1] : NODE_NONE;
    if (holds_extent(x, node, page, order, &row, frame)) {
        gone = unless_held && node_is_held(x, node) ? INDEX_HELD : INDEX_GONE;
        if (gone == INDEX_GONE && node != NODE_NONE) {
            bpi_marks_clear(x, &p, row_bits(&row), INDEX_MARKS_ALL);
            p.count--; /* the node's own lock is for erase_row to give */
            for (unsigned i = p.count; i--;)
                slim_lock_give(&head_of(x, p.node[i])->lock);
            erase_row(x, node, &row, shadow);
            return gone;
        }
        if (gone == INDEX_GONE) {
            x->root_mark = 0;
            root_store(x, shadow, 0);
        }
    }
    bpi_tree_unlock_path(x, &p);
    return gone;
}

static __attribute__((noinline)) enum index_gone erase_any(struct index *x, uint64_t page, unsigned order,
                                                           uint32_t frame, index_entry shadow, bool unless_held)
{
    struct row row = row_of(page, order);
    uint32_t node = bpi_tree_enter(x, page, row.shift);
    enum index_gone gone = INDEX_ABSENT;
    bool marked = false;

    if (holds_extent(x, node, page, order, &row, frame)) {
        gone = unless_held && node_is_held(x, node) ? INDEX_HELD : INDEX_GONE;
        marked = node == NODE_NONE ? x->root_mark != 0 : marks_in(head_of(x, node), row_bits(&row)) != 0;
    }
    if (gone == INDEX_GONE && !marked && node != NODE_NONE) {
        erase_row(x, node, &row, shadow);
        return gone;
    }
    if (gone == INDEX_GONE && !marked)
        root_store(x, shadow, 0);
    tree_leave(x, node);
    if (gone != INDEX_GONE || !marked)
        return gone;
    SYNC_POINT("index:erase_marked");
    return erase_marked(x, page, order, frame, shadow, unless_held);
}

/* The last page of a leaf became a shadow: let go of it. It was not on the list. */
static __attribute__((noinline)) enum index_gone only_shadows_now(struct index *x, uint32_t node)
{
    bpi_list_change(x, node);
    if (node_is_uniform(x, node))
        bpi_tree_mend(x, node);
    else
        slim_lock_give(&head_of(x, node)->lock);
    return INDEX_GONE;
}

/* After something that was taken and is not what was meant. */
static __attribute__((noinline)) enum index_gone erase_again(struct index *x, uint64_t page, struct node_head *wrong,
                                                             uint32_t frame, index_entry shadow, bool unless_held)
{
    slim_lock_give(&wrong->lock);
    return erase_any(x, page, 0, frame, shadow, unless_held);
}

/* A page out of its leaf that leaves a shadow is what most evictions are; as bpi_index_insert. */
static inline __attribute__((always_inline)) enum index_gone erase_page(struct index *x, uint64_t page, uint32_t frame,
                                                                        index_entry shadow, bool unless_held)
{
    struct node_head *h;
    _Atomic index_entry *slot;
    unsigned at = slot_of(page, 0);
    enum leaf_found found = leaf_enter(x, page, &h, &slot);

    if (unlikely(found == LEAF_BUSY))
        return erase_any(x, page, 0, frame, shadow, unless_held);
    if (unlikely(found == LEAF_WRONG) ||
        unlikely(atomic_load_explicit(slot, memory_order_relaxed) != entry_of_frame(frame)) ||
        unlikely(slot_has_company(h, at) || marks_in(h, 1ull << at)) || unlikely(unless_held && slim_is_held(&h->lock)))
        return erase_again(x, page, h, frame, shadow, unless_held);
    leaf_set(slot, shadow);
    if (unlikely(++h->shadows == h->used))
        return only_shadows_now(x, (uint32_t)(h - x->head));
    slim_lock_give(&h->lock);
    return INDEX_GONE;
}

bool bpi_index_erase(struct index *x, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    if (likely(order == 0 && shadow != ENTRY_NONE))
        return erase_page(x, page, frame, shadow, false) == INDEX_GONE;
    return erase_any(x, page, order, frame, shadow, false) == INDEX_GONE;
}

enum index_gone bpi_index_evict(struct index *x, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    if (likely(order == 0 && shadow != ENTRY_NONE))
        return erase_page(x, page, frame, shadow, true);
    return erase_any(x, page, order, frame, shadow, true);
}

bool bpi_index_replace(struct index *x, uint64_t page, unsigned order, uint32_t frame, uint32_t to)
{
    struct row row = row_of(page, order);
    uint32_t node = tree_enter(x, page, order);
    bool may = holds_extent(x, node, page, order, &row, frame) && !node_is_held(x, node);

    if (may && node == NODE_NONE)
        root_store(x, entry_of_frame(to), 0);
    for (unsigned i = 0; may && node != NODE_NONE && i < row.count; i++)
        slot_set(x, node, row.first + i, entry_of_frame(to) + i * frame_step(row.shift));
    tree_leave(x, node);
    return may;
}

/* ---- split ---- */

static bool row_is_empty(const struct index *x, uint32_t node, const struct row *row)
{
    unsigned i = row->first;

    while (i < row->first + row->count && slot_get(x, node, i) == ENTRY_NONE)
        i++;
    return i == row->first + row->count;
}

/* In the node of the row's own level. */
static int split_here(struct index *x, uint32_t node, const struct row *row)
{
    struct node_head *h = head_of(x, node);
    index_entry e = slot_get(x, node, row->first);
    struct row has = entry_row(h, row->first);

    if (e == ENTRY_NONE)
        return row_is_empty(x, node, row) ? -ENOENT : -ERANGE;
    if (entry_is_node(e) || has.count < row->count)
        return -ERANGE;
    row_cut(h, row);
    return 0;
}

int bpi_index_split(struct index *x, uint64_t page, unsigned order, struct node_magazine *m)
{
    struct path p;
    uint32_t node;
    index_entry e;
    bool mend = false;
    int rc = 0;

    assert(order <= INDEX_ORDER_MAX && (page & ((1ull << order) - 1)) == 0 && m->count >= INSERT_NODES);
    path_for(&p, page, order, ENTRY_NONE);
    node = bpi_tree_enter(x, page, p.row.shift);
    if (node == NODE_NONE) {
        e = index_root_entry(root_load(x));
        if (page != 0 || e == ENTRY_NONE)
            rc = -ENOENT;
        else if (order != 0 || entry_is_node(e))
            rc = -ERANGE;
    } else if (head_of(x, node)->shift == p.row.shift) {
        rc = split_here(x, node, &p.row);
    } else if (slot_get(x, node, slot_of(page, head_of(x, node)->shift)) == ENTRY_NONE) {
        rc = -ENOENT;
    } else {
        path_insert(x, node, &p, m);
        mend = node_is_needless(x, node);
    }
    if (mend)
        bpi_tree_mend(x, node);
    else
        tree_leave(x, node);
    return rc;
}
