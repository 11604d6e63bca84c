/* SPDX-License-Identifier: MIT */
/*
 * The index: writers. Layout and readers are in index.h, the nodes' life is in nodes.c.
 *
 * Invariants (bpi_index_check)
 *   I1  height is minimal: the top node has something beyond slot 0, or slot 0 holds an extent that needs this level
 *   I2  used counts non-empty slots, shadows those that hold shadows; a node with used 0 is not in the tree
 *   I3  cont bit i is set only where slots i - 1 and i hold one entry; an entry's slots are an aligned power of two
 *   I4  a node is on the shadow list, once, exactly if used == shadows
 *   I5  a child's parent and offset lead back to the slot that holds it
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "bufpool/index.h"
#include "bufpool/nodes.h"
#include "bufpool/reserve.h"
#include "bufpool/sync_point.h"

/* Position of a row of slots in a node: where an entry of some order goes. */
struct row {
    uint32_t node; /* NODE_NONE: the root word itself (a lone page 0) */
    unsigned shift;
    unsigned first;
    unsigned count;
};

/* release: whatever the new root leads to is complete */
static void root_store(struct index *x, index_entry e, unsigned shift)
{
    atomic_store_explicit(&x->root, (uint64_t)e << 32 | shift, memory_order_release);
    SYNC_POINT("index:store");
}

static uint64_t root_load(const struct index *x)
{
    return atomic_load_explicit(&x->root, memory_order_relaxed); /* we are the only writer */
}

static index_entry slot_get(const struct index *x, uint32_t node, unsigned slot)
{
    return atomic_load_explicit(&x->nodes->slot[node][slot], memory_order_relaxed);
}

/* release: a node or a frame's descriptor is complete before its entry can be seen */
static void slot_set(struct index *x, uint32_t node, unsigned slot, index_entry e)
{
    atomic_store_explicit(&x->nodes->slot[node][slot], e, memory_order_release);
    SYNC_POINT("index:store"); /* what a reader sees between any two stores must be right: model_index_steps */
}

static struct node_head *head_of(const struct index *x, uint32_t node)
{
    return &x->nodes->head[node];
}

static index_entry entry_of_node(uint32_t node)
{
    return node << 2 | ENTRY_NODE;
}

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
    x->oldest = x->newest = NODE_NONE;
    x->leaf = reserve_array(leaf_bytes(x), SIZE_MAX);
    x->leaf_pages = x->leaf ? (uint64_t)(x->nodes->limit + 1) * INDEX_SLOTS : 0;
    pthread_mutex_init(&x->lock, NULL);
}

void bpi_index_destroy(struct index *x)
{
    if (x->leaf)
        munmap((void *)x->leaf, leaf_bytes(x));
    pthread_mutex_destroy(&x->lock);
}

index_entry bpi_index_load_any(const struct index *x, uint64_t page)
{
    const _Atomic index_entry *slot;
    index_entry e;

    return index_walk(x, page, &slot, &e) ? atomic_load_explicit(slot, memory_order_acquire) : e;
}

void bpi_index_prefetch(const struct index *x, uint64_t page)
{
    const _Atomic index_entry *slot = bpi_index_slot(x, page);
    uint32_t node;

    if (!slot)
        return;
    node = (uint32_t)((slot - x->nodes->slot[0]) / (ptrdiff_t)INDEX_SLOTS);
    __builtin_prefetch((const void *)slot, 1, 3);
    __builtin_prefetch(&x->nodes->head[node], 1, 3);
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

/* After any change of a node's counts. */
static void list_update(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);
    bool only_shadows = h->used && h->used == h->shadows;

    if (only_shadows && !h->listed)
        list_add(x, node);
    else if (!only_shadows && h->listed)
        list_remove(x, node);
}

/* ---- nodes in the tree ---- */

static uint32_t node_take(struct index *x, struct node_magazine *m, unsigned shift, uint32_t parent, unsigned offset)
{
    uint32_t node;
    struct node_head *h;

    assert(m->count > 0 && m->count <= MAGAZINE_NODES);
    node = m->node[--m->count];
    h = head_of(x, node);
    h->shift = (uint8_t)shift;
    h->parent = parent;
    h->offset = (uint8_t)offset;
    x->node_count++;
    return node;
}

static void node_drop(struct index *x, uint32_t node)
{
    if (head_of(x, node)->listed)
        list_remove(x, node);
    x->node_count--;
    bpi_node_retire(x->nodes, node);
}

/* Drop a subtree that holds nothing live. Depth is bounded by the height, so recursion is. */
static void subtree_drop(struct index *x, uint32_t node)
{
    struct node_head *h = head_of(x, node);

    if (h->used != h->shadows) {
        for (unsigned i = 0; i < INDEX_SLOTS; i++) {
            index_entry e = slot_get(x, node, i);

            if (entry_is_node(e))
                subtree_drop(x, entry_number(e));
        }
    }
    node_drop(x, node);
}

/* The lone entry that a top node may be reduced to: what is in slot 0 if that is a node or one single page. */
static bool top_is_superfluous(const struct index *x, uint32_t top, index_entry *only)
{
    struct node_head *h = head_of(x, top);

    if (h->used != 1)
        return false;
    *only = slot_get(x, top, 0);
    return entry_is_node(*only) || (h->shift == 0 && *only != ENTRY_NONE);
}

/* Restore I1 after slots of the top may have gone, or slot 0 became a node. */
static void shrink(struct index *x)
{
    uint64_t root;
    index_entry only;

    for (root = root_load(x); entry_is_node(index_root_entry(root)); root = root_load(x)) {
        uint32_t top = entry_number(index_root_entry(root));

        if (!top_is_superfluous(x, top, &only))
            break;
        if (entry_is_node(only))
            head_of(x, entry_number(only))->parent = NODE_NONE;
        root_store(x, only, index_root_shift(root) - INDEX_SHIFT);
        node_drop(x, top);
    }
}

/* Restore I1 and I2 from a node whose count went down, upwards. */
static void prune(struct index *x, uint32_t node)
{
    while (node != NODE_NONE && head_of(x, node)->used == 0) {
        struct node_head *h = head_of(x, node);
        uint32_t parent = h->parent;

        if (parent == NODE_NONE) {
            root_store(x, ENTRY_NONE, 0);
        } else {
            slot_set(x, parent, h->offset, ENTRY_NONE);
            head_of(x, parent)->used--;
            list_update(x, parent);
        }
        node_drop(x, node);
        node = parent;
    }
    shrink(x);
}

/* ---- insert ---- */

static void note_shadow(struct index_insert *r, index_entry e)
{
    r->shadows++;
    if (r->shadow == ENTRY_NONE || shadow_newer(e, r->shadow))
        r->shadow = e;
}

/* Must the top be raised for an entry that ends at page `last` in a node that covers 2^shift pages? */
static bool outgrows(uint64_t root, uint64_t last, unsigned shift)
{
    unsigned covered = index_root_shift(root);

    return covered < shift || (covered < 64 && last >> covered);
}

/* Raise the top until it covers page `last` with 2^shift pages or more (I1 needs no more). */
static void grow(struct index *x, uint64_t last, unsigned shift, struct node_magazine *m)
{
    uint64_t root = root_load(x);
    unsigned covered = index_root_shift(root);
    index_entry e = index_root_entry(root);

    while (covered < shift || (covered < 64 && last >> covered)) {
        uint32_t top;

        if (e == ENTRY_NONE) { /* empty: no node needed to reach up */
            covered += INDEX_SHIFT;
            continue;
        }
        top = node_take(x, m, covered, NODE_NONE, 0);
        head_of(x, top)->used = 1;
        head_of(x, top)->shadows = entry_is_shadow(e);
        if (entry_is_node(e)) {
            head_of(x, entry_number(e))->parent = top;
            head_of(x, entry_number(e))->offset = 0;
        }
        slot_set(x, top, 0, e);
        list_update(x, top);
        covered += INDEX_SHIFT;
        e = entry_of_node(top);
        root_store(x, e, covered);
    }
    if (e == ENTRY_NONE && covered) {
        uint32_t top = node_take(x, m, covered - INDEX_SHIFT, NODE_NONE, 0);

        root_store(x, entry_of_node(top), covered);
    }
}

/* The slots of a row as bits; a row is at most half a node. */
static uint64_t row_bits(const struct row *row)
{
    return ((1ull << row->count) - 1) << row->first;
}

/* Slots of the entry that slot i belongs to. */
static void entry_extent(const struct node_head *h, unsigned slot, unsigned *first, unsigned *count)
{
    uint64_t begins = ~h->cont; /* bit 0 always is among them */
    uint64_t above = slot + 1 < INDEX_SLOTS ? begins >> (slot + 1) : 0;
    unsigned end = above ? slot + 1 + (unsigned)__builtin_ctzll(above) : INDEX_SLOTS;

    *first = 63 - (unsigned)__builtin_clzll(begins & (~0ull >> (63 - slot)));
    *count = end - *first;
}

/*
 * A shadow of several slots is about to lose the aligned slots [first, first + count): cut it into the fewest aligned
 * pieces around them. Entries stay as they are, only the continuation bits say where pieces begin.
 */
static void split_row(struct node_head *h, unsigned first, unsigned count)
{
    unsigned at;
    unsigned size;

    for (entry_extent(h, first, &at, &size); size > count; size /= 2) {
        h->cont &= ~(1ull << (at + size / 2));
        if (first >= at + size / 2)
            at += size / 2;
    }
}

/*
 * A child for a slot that holds nothing, or a shadow that must be split: the child then holds the same shadow in all
 * its slots as one entry, so no page's answer changes. Complete before it is linked.
 */
static uint32_t make_child(struct index *x, uint32_t node, unsigned slot, struct node_magazine *m)
{
    struct node_head *h = head_of(x, node);
    index_entry e = slot_get(x, node, slot);
    uint32_t child = node_take(x, m, h->shift - INDEX_SHIFT, node, slot);

    if (e == ENTRY_NONE) {
        h->used++;
    } else {
        struct node_head *c = head_of(x, child);

        split_row(h, slot, 1);
        for (unsigned i = 0; i < INDEX_SLOTS; i++)
            slot_set(x, child, i, e);
        c->cont = ~1ull;
        c->used = c->shadows = INDEX_SLOTS; /* not listed: something live or a node is about to come in */
        h->shadows--;
    }
    slot_set(x, node, slot, entry_of_node(child));
    list_update(x, node);
    return child;
}

/* First live page below a node, in page order; shadows on the way are noted. true: found. */
static bool find_live(struct index *x, uint32_t node, uint64_t base, struct index_insert *r)
{
    struct node_head *h = head_of(x, node);

    for (unsigned i = 0; i < INDEX_SLOTS; i++) {
        index_entry e = slot_get(x, node, i);
        uint64_t page = base + ((uint64_t)i << h->shift);

        if (entry_is_frame(e)) {
            r->frame = entry_number(e);
            r->page = page;
            return true;
        }
        if (entry_is_shadow(e) && !(h->cont >> i & 1))
            note_shadow(r, e);
        if (entry_is_node(e) && find_live(x, entry_number(e), page, r))
            return true;
    }
    return false;
}

/* Conflicts in a row of slots; shadows are noted. */
static bool row_conflict(struct index *x, const struct row *row, uint64_t page, struct index_insert *r)
{
    struct node_head *h = head_of(x, row->node);

    for (unsigned i = row->first; i < row->first + row->count; i++) {
        index_entry e = slot_get(x, row->node, i);
        uint64_t at = page + ((uint64_t)(i - row->first) << row->shift);

        if (entry_is_frame(e)) {
            r->frame = entry_number(e);
            r->page = at;
            return true;
        }
        if (entry_is_shadow(e) && (i == row->first || !(h->cont >> i & 1)))
            note_shadow(r, e);
        if (entry_is_node(e) && find_live(x, entry_number(e), at, r))
            return true;
    }
    return false;
}

/* Store an entry of row->count slots; every conflict is excluded. Counts follow, subtrees go. */
static void row_store(struct index *x, const struct row *row, index_entry e, uint32_t step)
{
    struct node_head *h = head_of(x, row->node);
    uint64_t bits = row_bits(row);
    unsigned used = h->used;
    unsigned shadows = h->shadows;

    if (h->cont & (bits | bits << 1)) {
        split_row(h, row->first, row->count);
        h->cont &= ~bits;
    }
    if (e != ENTRY_NONE)
        h->cont |= bits & bits << 1;
    for (unsigned i = row->first; i < row->first + row->count; i++) {
        index_entry old = slot_get(x, row->node, i);

        used = used + (old == ENTRY_NONE) - (e == ENTRY_NONE);
        shadows = shadows + entry_is_shadow(e) - entry_is_shadow(old);
        slot_set(x, row->node, i, e);
        if (entry_is_node(old))
            subtree_drop(x, entry_number(old));
        e += step;
    }
    h->used = (uint8_t)used;
    h->shadows = (uint8_t)shadows;
    list_update(x, row->node);
}

static struct row row_of(uint64_t page, unsigned order)
{
    struct row row = {.node = NODE_NONE, .shift = order / INDEX_SHIFT * INDEX_SHIFT};

    row.first = (unsigned)(page >> row.shift & (INDEX_SLOTS - 1));
    row.count = 1u << (order - row.shift);
    return row;
}

/* Page 0 alone lives in the root word. true if that settled it. */
static bool insert_at_root(struct index *x, uint64_t page, unsigned order, uint32_t frame, struct index_insert *r,
                           int *rc)
{
    uint64_t root = root_load(x);
    index_entry e = index_root_entry(root);

    if (index_root_shift(root) != 0)
        return false;
    if (entry_is_frame(e) && page == 0) {
        r->frame = entry_number(e);
        r->page = 0;
        *rc = -EEXIST;
        return true;
    }
    if (page != 0 || order != 0)
        return false;
    if (entry_is_shadow(e))
        note_shadow(r, e);
    root_store(x, entry_of_frame(frame), 0);
    x->live++;
    *rc = 0;
    return true;
}

/* The node that a row belongs into; nodes that are missing on the way are made. false: a larger extent covers it. */
static bool descend(struct index *x, uint64_t page, struct row *row, struct node_magazine *m, struct index_insert *r)
{
    uint64_t root = root_load(x);
    unsigned shift = index_root_shift(root) - INDEX_SHIFT;

    row->node = entry_number(index_root_entry(root));
    for (; shift != row->shift; shift -= INDEX_SHIFT) {
        unsigned slot = (unsigned)(page >> shift & (INDEX_SLOTS - 1));
        index_entry e = slot_get(x, row->node, slot);

        if (entry_is_frame(e)) {
            r->frame = entry_number(e) + (uint32_t)(page & ((1ull << shift) - 1));
            r->page = page;
            return false;
        }
        if (entry_is_node(e))
            row->node = entry_number(e);
        else /* below nothing or a shadow nothing is live: this insert will succeed */
            row->node = make_child(x, row->node, slot, m);
    }
    return true;
}

int bpi_index_insert(struct index *x, uint64_t page, unsigned order, uint32_t frame, struct node_magazine *m,
                     struct index_insert *r)
{
    struct row row = row_of(page, order);
    uint64_t last = page | ((1ull << order) - 1);
    uint32_t had = m->count;
    uint64_t root;
    int rc = 0;

    assert(order <= INDEX_ORDER_MAX && (page & ((1ull << order) - 1)) == 0 && m->count >= INSERT_NODES);
    *r = (struct index_insert){.shadow = ENTRY_NONE, .frame = UINT32_MAX};
    pthread_mutex_lock(&x->lock);
    if (insert_at_root(x, page, order, frame, r, &rc))
        goto out;
    root = root_load(x);
    if (outgrows(root, last, row.shift + INDEX_SHIFT)) {
        /* the range begins beyond all that there is, or it holds all: what is live is found before anything is made */
        if (page == 0 && entry_is_node(index_root_entry(root)) &&
            find_live(x, entry_number(index_root_entry(root)), 0, r))
            rc = -EEXIST;
        else
            grow(x, last, row.shift + INDEX_SHIFT, m);
        r->shadow = ENTRY_NONE; /* they are met again */
        r->shadows = 0;
    }
    if (!rc && (!descend(x, page, &row, m, r) || row_conflict(x, &row, page, r)))
        rc = -EEXIST;
    if (!rc) {
        row_store(x, &row, entry_of_frame(frame), 4u << row.shift);
        x->live++;
        if (row.shift == 0 && page < x->leaf_pages)
            atomic_store_explicit(&x->leaf[page >> INDEX_SHIFT], entry_of_node(row.node), memory_order_release);
        if (m->count != had) /* a shadow that needed the top was perhaps split */
            shrink(x);
    } else {
        r->shadow = ENTRY_NONE;
        r->shadows = 0;
    }
out:
    pthread_mutex_unlock(&x->lock);
    return rc;
}

/* ---- erase ---- */

/* The row that holds the entry of this order at page, or false. Lock held. */
static bool find_row(struct index *x, uint64_t page, unsigned order, struct row *row)
{
    uint64_t root = root_load(x);
    unsigned shift = index_root_shift(root);
    index_entry e = index_root_entry(root);

    *row = row_of(page, order);
    if ((page & ((1ull << order) - 1)) != 0 || (shift < 64 && page >> shift))
        return false;
    if (shift == 0)
        return order == 0;
    while (entry_is_node(e)) {
        row->node = entry_number(e);
        shift -= INDEX_SHIFT;
        if (shift == row->shift)
            return true;
        e = slot_get(x, row->node, (unsigned)(page >> shift & (INDEX_SLOTS - 1)));
    }
    return false;
}

/* Does a row hold exactly one extent, and is it the one of this frame? */
static bool row_is_extent(const struct index *x, const struct row *row, uint32_t frame)
{
    uint64_t cont = head_of(x, row->node)->cont;
    uint64_t bits = row_bits(row);
    uint64_t after = bits << 1 & ~bits; /* 0 at the end of a node */

    return slot_get(x, row->node, row->first) == entry_of_frame(frame) &&
           (cont & (bits | after)) == (bits & ~(1ull << row->first));
}

bool bpi_index_erase(struct index *x, uint64_t page, unsigned order, uint32_t frame, index_entry shadow)
{
    struct row row;
    bool found;

    pthread_mutex_lock(&x->lock);
    found = find_row(x, page, order, &row);
    if (found && row.node == NODE_NONE) {
        found = index_root_entry(root_load(x)) == entry_of_frame(frame);
        if (found)
            root_store(x, shadow, 0);
    } else if (found) {
        found = row_is_extent(x, &row, frame);
        if (found) {
            row_store(x, &row, shadow, 0);
            prune(x, row.node);
        }
    }
    x->live -= found;
    pthread_mutex_unlock(&x->lock);
    return found;
}

unsigned bpi_index_reclaim(struct index *x, unsigned n)
{
    unsigned done = 0;

    pthread_mutex_lock(&x->lock);
    for (; done < n && x->oldest != NODE_NONE; done++) {
        uint32_t node = x->oldest;
        struct node_head *h = head_of(x, node);

        for (unsigned i = 0; i < INDEX_SLOTS; i++)
            slot_set(x, node, i, ENTRY_NONE);
        h->used = h->shadows = 0;
        h->cont = 0;
        list_update(x, node);
        prune(x, node);
    }
    pthread_mutex_unlock(&x->lock);
    return done;
}

void bpi_index_clear(struct index *x)
{
    uint64_t root;

    pthread_mutex_lock(&x->lock);
    assert(x->live == 0);
    root = root_load(x);
    root_store(x, ENTRY_NONE, 0);
    if (x->leaf)
        madvise((void *)x->leaf, leaf_bytes(x), MADV_DONTNEED);
    if (entry_is_node(index_root_entry(root)))
        subtree_drop(x, entry_number(index_root_entry(root)));
    pthread_mutex_unlock(&x->lock);
}

/* ---- looking around, under the lock ---- */

/* Descend to the slot that covers page; its entry, node and how many pages a slot of that node covers. */
static index_entry locate(struct index *x, uint64_t page, uint32_t *node, unsigned *shift)
{
    uint64_t root = root_load(x);
    index_entry e = index_root_entry(root);

    *node = NODE_NONE;
    *shift = index_root_shift(root);
    if (*shift < 64 && page >> *shift)
        return ENTRY_NONE;
    while (entry_is_node(e)) {
        *node = entry_number(e);
        *shift -= INDEX_SHIFT;
        e = slot_get(x, *node, (unsigned)(page >> *shift & (INDEX_SLOTS - 1)));
    }
    return e;
}

bool bpi_index_next(struct index *x, uint64_t from, uint64_t *page, uint32_t *frame)
{
    bool found = false;
    uint64_t top;

    pthread_mutex_lock(&x->lock);
    top = index_root_shift(root_load(x)) < 64 ? (1ull << index_root_shift(root_load(x))) - 1 : UINT64_MAX;
    while (from <= top) {
        uint32_t node;
        unsigned shift;
        unsigned slot;
        index_entry e = locate(x, from, &node, &shift);
        uint64_t last;

        if (entry_is_frame(e)) {
            *page = from;
            *frame = entry_number(e) + (uint32_t)(from & ((1ull << shift) - 1));
            found = true;
            break;
        }
        if (node == NODE_NONE)
            break;
        slot = (unsigned)(from >> shift & (INDEX_SLOTS - 1));
        do
            e = ++slot < INDEX_SLOTS ? slot_get(x, node, slot) : ENTRY_NONE;
        while (slot < INDEX_SLOTS && !entry_is_frame(e) && !entry_is_node(e));
        /* the page before that slot; wraps to the last of all pages at the end of the top node */
        last = (from & ~(((uint64_t)INDEX_SLOTS << shift) - 1)) + ((uint64_t)slot << shift) - 1;
        if (last >= top)
            break;
        from = last + 1;
    }
    pthread_mutex_unlock(&x->lock);
    return found;
}

unsigned bpi_index_order(struct index *x, uint64_t page)
{
    unsigned order = 0;
    unsigned first;
    unsigned count;
    uint32_t node;
    unsigned shift;

    pthread_mutex_lock(&x->lock);
    if (locate(x, page, &node, &shift) != ENTRY_NONE && node != NODE_NONE) {
        entry_extent(head_of(x, node), (unsigned)(page >> shift & (INDEX_SLOTS - 1)), &first, &count);
        order = shift + (unsigned)__builtin_ctz(count);
    }
    pthread_mutex_unlock(&x->lock);
    return order;
}

/* A slot of a node: I3 and I5. */
static bool check_slot(struct index *x, uint32_t node, unsigned slot)
{
    struct node_head *h = head_of(x, node);
    index_entry e = slot_get(x, node, slot);
    unsigned first;
    unsigned count;

    if (h->cont >> slot & 1) {
        index_entry step = entry_is_frame(e) ? 4u << h->shift : 0;

        return slot > 0 && entry_is_end(e) && e == slot_get(x, node, slot - 1) + step;
    }
    entry_extent(h, slot, &first, &count);
    if ((count & (count - 1)) != 0 || (slot & (count - 1)) != 0)
        return false;
    if (entry_is_node(e)) {
        struct node_head *c = head_of(x, entry_number(e));

        return count == 1 && c->parent == node && c->offset == slot && c->shift + INDEX_SHIFT == h->shift;
    }
    return true;
}

struct census {
    uint32_t nodes;
    uint32_t listed;
    uint64_t live;
};

/* I2 to I5 for a node and below; adds up what there is. Depth is bounded by the height. */
static bool check_node(struct index *x, uint32_t node, struct census *sum)
{
    struct node_head *h = head_of(x, node);
    unsigned used = 0;
    unsigned shadows = 0;
    bool sound = h->used > 0 && h->listed == (h->used == h->shadows);

    sum->nodes++;
    sum->listed += h->listed;
    for (unsigned i = 0; i < INDEX_SLOTS && sound; i++) {
        index_entry e = slot_get(x, node, i);

        used += e != ENTRY_NONE;
        shadows += entry_is_shadow(e);
        sum->live += entry_is_frame(e) && !(h->cont >> i & 1);
        sound = check_slot(x, node, i) && (!entry_is_node(e) || check_node(x, entry_number(e), sum));
    }
    return sound && used == h->used && shadows == h->shadows;
}

/* The list leads from the oldest to the newest and back, over `count` nodes that know it. */
static bool check_list(struct index *x, uint32_t count)
{
    uint32_t before = NODE_NONE;
    uint32_t node = x->oldest;

    for (; node != NODE_NONE && count; count--) {
        struct node_head *h = head_of(x, node);

        if (!h->listed || h->older != before)
            return false;
        before = node;
        node = h->newer;
    }
    return node == NODE_NONE && count == 0 && x->newest == before;
}

bool bpi_index_check(struct index *x)
{
    struct census sum = {0};
    bool sound = true;
    uint64_t root;
    index_entry e;
    index_entry only;

    pthread_mutex_lock(&x->lock);
    root = root_load(x);
    e = index_root_entry(root);
    if (entry_is_node(e)) {
        uint32_t top = entry_number(e);

        sound = head_of(x, top)->parent == NODE_NONE &&
                head_of(x, top)->shift + (unsigned)INDEX_SHIFT == index_root_shift(root) &&
                !top_is_superfluous(x, top, &only) && check_node(x, top, &sum);
    } else {
        sound = index_root_shift(root) == 0;
        sum.live = entry_is_frame(e);
    }
    sound = sound && sum.nodes == x->node_count && sum.live == x->live && check_list(x, sum.listed);
    pthread_mutex_unlock(&x->lock);
    return sound;
}
