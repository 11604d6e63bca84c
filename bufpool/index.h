/* SPDX-License-Identifier: MIT */
/*
 * The index of a file: a multi-order radix tree from page number to entry.
 *
 * An entry is 32 bits: a frame number, a shadow (what an evicted extent left), or nothing; and inside the tree, a node.
 * Nodes have 64 slots, so a node's slots are four cache lines, and stand in one array that is addressed by node number;
 * what only writers need (parent, counts) stands in a second array, so a reader touches exactly one line a level and
 * learns the level from the root word.
 *
 * Multi-order: an extent of order k is stored at the level where it fits, in 2^(k mod 6) slots. Each of these slots
 * holds the frame of *its own* first page (frame, frame + 64^level, ...): frames of an extent are contiguous, so every
 * slot is right by itself. There is no sibling entry to follow, none that can dangle, and a lookup needs no order to
 * find the very frame of the page asked for. Which slots belong together is known to writers by continuation bits in
 * the node's head.
 *
 *      order 7 at page 128, frame 640                 slot   2          3            level 1 (64 pages a slot)
 *                                                     entry  frame 640  frame 704
 *                                                     cont   0          1
 *
 * Readers take no lock and write nothing. Nodes are type-stable: their memory stays nodes while the pool is open. A
 * reader inside an RCU section (urcu-bp) gets exact answers, since nodes are reused only after a grace period. A reader
 * outside of one may pass through a node that was reused meanwhile; its answer is then a guess that the frame must
 * confirm (frame.h: identity), and "nothing" must be confirmed by an insert. That is what the pool's hit path does, and
 * why it pays for no section.
 *
 * Writers lock the lowest node that covers their range, and nothing else as a rule: two that fill different leaves
 * never meet. They bring blank nodes along in a magazine that was filled before, so nothing can fail half way (tree.h).
 *
 * Three marks stand in the head of each node, a bit a slot; a node's bit in its parent is set as long as one of its own
 * is. A mark belongs to a live extent, stands at all its slots, stays when frames are replaced and when it is split,
 * and goes when it is erased.
 */
#ifndef BUFPOOL_INDEX_H
#define BUFPOOL_INDEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bufpool/lock.h"

typedef uint32_t index_entry;

/* The fan-out: 64 slots. Tests compile the tree with 4 and with 8 as well, where everything happens sooner. */
#ifndef INDEX_SHIFT
#define INDEX_SHIFT 6
#endif
#define INDEX_SLOTS      (1u << INDEX_SHIFT)
#define INDEX_ORDER_MAX  18
#define INDEX_HEIGHT_MAX ((64 + INDEX_SHIFT - 1) / INDEX_SHIFT)

#define ENTRY_NONE       0u
#define ENTRY_TAG        3u
#define ENTRY_FRAME      1u
#define ENTRY_SHADOW     2u
#define ENTRY_NODE       3u                /* the one even tag is the shadow's: in a leaf an odd entry is a frame */
#define ENTRY_NUMBER_MAX (UINT32_MAX >> 2) /* frame and node numbers are below 2^30 */

static inline bool entry_is_frame(index_entry e)
{
    return !((e - ENTRY_FRAME) & ENTRY_TAG);
}
static inline bool entry_is_node(index_entry e)
{
    return (e & ENTRY_TAG) == ENTRY_NODE;
}
static inline bool entry_is_shadow(index_entry e)
{
    return (e & ENTRY_TAG) == ENTRY_SHADOW;
}
/* A frame or a shadow: a walk ends here, above the last level too. */
static inline bool entry_is_end(index_entry e)
{
    return (e + 1) & 2;
}
static inline uint32_t entry_number(index_entry e)
{
    return e >> 2;
}
static inline index_entry entry_of_frame(uint32_t frame)
{
    return frame << 2 | ENTRY_FRAME;
}

/*
 * A shadow: clock of the eviction (23 bits, compared with wrap-around), order of the extent (5), heat it had (2).
 */
#define SHADOW_CLOCK_BITS 23
#define SHADOW_CLOCK_MASK ((1u << SHADOW_CLOCK_BITS) - 1)

static inline index_entry entry_of_shadow(uint32_t clock, unsigned order, unsigned heat)
{
    return (clock & SHADOW_CLOCK_MASK) << 9 | (order & 31u) << 4 | (heat & 3u) << 2 | ENTRY_SHADOW;
}
static inline uint32_t shadow_clock(index_entry e)
{
    return e >> 9;
}
static inline unsigned shadow_order(index_entry e)
{
    return e >> 4 & 31u;
}
static inline unsigned shadow_heat(index_entry e)
{
    return e >> 2 & 3u;
}
/* Clock ticks from the shadow's eviction to now. */
static inline uint32_t shadow_age(index_entry e, uint32_t now)
{
    return (now - shadow_clock(e)) & SHADOW_CLOCK_MASK;
}
static inline bool shadow_newer(index_entry a, index_entry b)
{
    return shadow_age(b, shadow_clock(a)) < 1u << (SHADOW_CLOCK_BITS - 1);
}

/* ---- marks ---- */

enum index_mark { INDEX_DIRTY, INDEX_WRITEBACK, INDEX_TO_WRITE };
#define INDEX_MARKS 3

/* ---- nodes: one array for all indexes of a pool ---- */

#define NODE_NONE UINT32_MAX

struct index;

/* A bit a slot. All but the lock and the owner is read and written by the lock's holder. */
struct node_head {
    slim_lock lock;
    uint8_t shift;   /* a slot covers 2^shift pages; with the base it stays as long as the node is in a tree */
    bool listed;     /* on the list of nodes that hold only shadows; under the list's lock too */
    uint8_t used;    /* slots that hold something */
    uint8_t shadows; /* of these, shadows */
    /* the index whose tree it is in, NULL when in none: what a writer that comes by a guess must ask */
    const struct index *_Atomic owner;
    uint64_t base; /* first page that it covers */
    uint64_t cont; /* slot i belongs to the same entry as slot i - 1 */
    uint64_t mark[INDEX_MARKS];
    uint32_t older; /* the list, under its lock; the free list of nodes in no tree */
    uint32_t newer;
};

_Static_assert(sizeof(struct node_head) == 64, "a head is one cache line");

/*
 * Node 0 is the empty node: never handed out, never written. A walk that comes upon nothing goes on into it and finds
 * nothing, so that a reader asks one question a level less.
 */
#define NODE_EMPTY 0u

struct index_nodes {
    const _Atomic index_entry *map;           /* the array as readers address it: index_down */
    _Atomic index_entry (*slot)[INDEX_SLOTS]; /* by node number; in the map from entry 32 on */
    struct node_head *head;
    uint32_t limit;        /* the highest number, and how many there can be */
    pthread_mutex_t lock;  /* of the rest; innermost of all locks */
    uint32_t allowed;      /* how many there may be now */
    pthread_cond_t passed; /* a grace period is over */
    uint32_t fresh;        /* numbers at or above were never used */
    uint32_t free;         /* list of nodes that nobody can be in */
    uint32_t free_count;
    uint32_t limbo; /* list of nodes that readers may still be in; the last of it */
    uint32_t limbo_last;
    uint32_t limbo_count;
    uint32_t passing;             /* nodes whose grace period somebody is waiting for */
    uint32_t queued;              /* fills that found too little */
    pthread_mutex_t turn;         /* of those, who may wait for grace periods; taken before lock */
    _Atomic uint32_t in_use;      /* taken and not given back, magazines included */
    _Atomic uint32_t shadow_only; /* of these, on the indexes' lists */
};

/* limit: the most nodes ever, the empty one not counted. 0 or -ENOMEM. */
int bpi_nodes_open(struct index_nodes *, uint32_t limit);
void bpi_nodes_close(struct index_nodes *);
/* No more than so many from now on, as far as there are not more already; to begin with, the limit. Thread safe. */
void bpi_nodes_allow(struct index_nodes *, uint32_t nodes);
uint32_t bpi_nodes_allowed(struct index_nodes *);
/* How many were ever made: nodes keep their memory. */
uint32_t bpi_nodes_touched(struct index_nodes *);

/*
 * Blank nodes brought along by a writer. One insert may need a top above a lone page 0 and growth from there to the
 * full height, and a path from that top down to a leaf.
 */
#define INSERT_NODES   (2 * INDEX_HEIGHT_MAX - 1)
#define MAGAZINE_NODES (INSERT_NODES + 11)
struct node_magazine {
    uint32_t count;
    uint32_t node[MAGAZINE_NODES];
};
/*
 * Fill up to MAGAZINE_NODES when fewer than INSERT_NODES are left; where nodes are scarce, only up to INSERT_NODES. No
 * index lock may be held; may wait for a grace period, unless the caller is inside a reader's section. 0; -ENOMEM: the
 * limit is reached, the magazine is as it was; retry after extents or shadows have gone. Thread safe; a magazine
 * belongs to one thread at a time.
 */
int bpi_magazine_fill_slow(struct index_nodes *, struct node_magazine *);
static inline int bpi_magazine_fill(struct index_nodes *n, struct node_magazine *m)
{
    return __builtin_expect(m->count >= INSERT_NODES, 1) ? 0 : bpi_magazine_fill_slow(n, m);
}
void bpi_magazine_drain(struct index_nodes *, struct node_magazine *);

/* ---- an index ---- */

struct index {
    /* entry in the high half; the pages covered as a shift in the low half: 0, 6, 12 .. 66. Above 0 it is a node */
    _Atomic uint64_t root;
    const _Atomic index_entry *map; /* nodes->map */
    struct node_head *head;         /* nodes->head */
    _Atomic index_entry *leaf;      /* by page / 64: index_guess; NULL where there was no memory for it */
    uint64_t leaf_pages;            /* pages below are in it */
    struct index_nodes *nodes;
    _Alignas(64) slim_lock lock; /* of the root word, as a node's lock is of its slots; apart from what readers load */
    uint8_t root_mark;           /* marks of a lone page 0, a bit each */
    _Atomic uint32_t node_count;
    _Atomic uint32_t mending; /* writers about to take out a node that they left empty or needless */
    slim_lock list_lock;      /* of the list; innermost but for the nodes' array */
    uint32_t oldest, newest;  /* nodes that hold only shadows, by time of becoming so */
};

void bpi_index_init(struct index *, struct index_nodes *);
/* Forget everything; no extent may be present, and nobody else may be at work. The index can be used again. */
void bpi_index_clear(struct index *);
void bpi_index_destroy(struct index *); /* clear first */

static inline index_entry index_root_entry(uint64_t root)
{
    return (index_entry)(root >> 32);
}
static inline unsigned index_root_shift(uint64_t root)
{
    return (uint32_t)root;
}

/*
 * Where a node's slots begin in the map: at the entry times 16, which is the number times 64, and 48 for the tag of a
 * node; there begins node 0. Nothing (0) leads to the 48 entries before and the beginning of node 0, which are empty
 * for ever. The root word has the entry 32 bits up and above a small number, so 28 bits down make it 16 times as large.
 * (16, 64, 48 and 28 for 64 slots.)
 */
static inline size_t index_slots(index_entry node)
{
    return (size_t)node * (INDEX_SLOTS / 4);
}
static inline size_t index_root_slots(uint64_t root)
{
    return root >> (34 - INDEX_SHIFT);
}

/* One level down. acquire: a node is complete before its entry is stored. */
static inline index_entry index_down(const _Atomic index_entry *map, size_t slots, uint64_t page, unsigned shift)
{
    return atomic_load_explicit(&map[slots + (page >> shift & (INDEX_SLOTS - 1))], memory_order_acquire);
}

/* What an entry found in a slot of 2^shift pages says about one of them. */
static inline index_entry index_answer(index_entry e, uint64_t page, unsigned shift)
{
    return entry_is_frame(e) ? e + (uint32_t)((page & ((1ull << shift) - 1)) << 2) : e;
}

/*
 * The walk of all lookups. true: *slot is where the lowest level has the page's entry; false: the walk ended above,
 * with the answer in *e. The usual heights are written out with constant shifts: 8 instructions and one cache line a
 * level.
 */
static inline bool index_walk(const struct index *x, uint64_t page, const _Atomic index_entry **slot, index_entry *e)
{
#define INDEX_DOWN(slots, shift)              \
    *e = index_down(map, slots, page, shift); \
    if (entry_is_end(*e)) {                   \
        *e = index_answer(*e, page, shift);   \
        return false;                         \
    }
    const _Atomic index_entry *map = x->map;
    uint64_t root = atomic_load_explicit(&x->root, memory_order_acquire);
    unsigned shift = index_root_shift(root);

    if (__builtin_expect(INDEX_SHIFT == 6 && shift == 24, 1)) { /* files of 1 to 64 GiB */
        if (page >= 1u << 24)
            goto beyond;
        INDEX_DOWN(index_root_slots(root), 18)
        INDEX_DOWN(index_slots(*e), 12)
        INDEX_DOWN(index_slots(*e), 6)
    } else if (INDEX_SHIFT == 6 && shift == 18) { /* 16 MiB to 1 GiB */
        if (page >= 1u << 18)
            goto beyond;
        INDEX_DOWN(index_root_slots(root), 12)
        INDEX_DOWN(index_slots(*e), 6)
    } else {
        if (shift < 64 && page >> shift)
            goto beyond;
        *e = index_root_entry(root);
        if (shift == 0)
            return false;
        while ((shift -= INDEX_SHIFT)) {
            INDEX_DOWN(index_slots(*e), shift)
        }
    }
    *slot = &map[index_slots(*e) + (page & (INDEX_SLOTS - 1))];
    return true;
beyond:
    *e = ENTRY_NONE;
    return false;
#undef INDEX_DOWN
}

/* The same, not inlined. */
bool bpi_index_walk(const struct index *, uint64_t page, const _Atomic index_entry **slot, index_entry *e);

/*
 * The same again by the array of leaves, a root as wide as the file: one load leads to the leaf. What the array says is
 * what a walk would find, in a section as well: an entry is made after its leaf was linked and goes before the leaf
 * does.
 */
static inline __attribute__((always_inline)) bool index_reach(const struct index *x, uint64_t page,
                                                              const _Atomic index_entry **slot, index_entry *e)
{
    index_entry leaf;

    if (__builtin_expect(page < x->leaf_pages, 1)) {
        /* acquire: the leaf is complete */
        leaf = atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_acquire);
        if (__builtin_expect(leaf != ENTRY_NONE, 1)) {
            *slot = &x->map[index_slots(leaf) + (page & (INDEX_SLOTS - 1))];
            return true;
        }
    }
    return bpi_index_walk(x, page, slot, e);
}

/* The head of a node by its entry, which is its number times 4 and the tag: no need to turn it into the number. */
static inline struct node_head *head_of_entry(const struct index *x, index_entry node)
{
    const size_t step = sizeof(struct node_head) / 4;

    return (struct node_head *)(void *)((char *)x->head + (node * step - ENTRY_NODE * step));
}

/*
 * The shortest way for hits: what the leaf says if it is known, else nothing. Where "nothing" is only a question and
 * the frame confirms all else, no more is needed.
 */
static inline __attribute__((always_inline)) index_entry index_guess(const struct index *x, uint64_t page)
{
    index_entry leaf;

    if (__builtin_expect(page >= x->leaf_pages, 0))
        return ENTRY_NONE;
    leaf = atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_acquire);
    return index_down(x->map, index_slots(leaf), page, 0);
}

/*
 * The entry that covers a page: a frame (of exactly this page), a shadow, or nothing. Lock free; see above for what
 * it means outside an RCU section. There it may also be a frame number beyond all frames, or a node: ask with
 * entry_is_frame or entry_is_shadow, and take everything else for nothing.
 */
static inline index_entry bpi_index_load(const struct index *x, uint64_t page)
{
    const _Atomic index_entry *slot;
    index_entry e;

    return index_reach(x, page, &slot, &e) ? atomic_load_explicit(slot, memory_order_acquire) : e;
}

/*
 * The slot of the lowest level that a page's entry would be in, for callers that overlap the cache misses of several
 * lookups; NULL where the walk ends above it. What was said about readers holds for the slot's content.
 */
static inline const _Atomic index_entry *bpi_index_slot(const struct index *x, uint64_t page)
{
    const _Atomic index_entry *slot;
    index_entry e;

    return index_reach(x, page, &slot, &e) ? slot : NULL;
}

/*
 * Bring what an insert or an erase of this page will touch last, its slot and the head of its node, towards the cache.
 * For callers that know several pages ahead; any thread, no lock.
 */
void bpi_index_prefetch(const struct index *, uint64_t page);

/*
 * The last leaf that somebody met, for who reads page after page: as index_guess, without the array, and all that was
 * said there holds. One thread's own; {0} remembers nothing.
 */
struct index_memory {
    uint64_t other; /* all bits of the leaf's first page turned over */
    index_entry leaf;
};

index_entry bpi_index_remember(const struct index *, uint64_t page, struct index_memory *);

static inline __attribute__((always_inline)) index_entry index_recall(const struct index *x, uint64_t page,
                                                                      struct index_memory *m)
{
    if (__builtin_expect(~(page ^ m->other) < INDEX_SLOTS, 1))
        return index_down(x->map, index_slots(m->leaf), page, 0);
    return bpi_index_remember(x, page, m);
}

/* ---- runs ---- */

/*
 * Called for each extent of a run, the first perhaps in its middle, with how many came before it and the entry of that
 * very page, a frame; false ends the run before it. Sets *pages, how many the extent has from there on, unless that
 * is 1.
 */
typedef bool index_pin(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages);

/*
 * The slots of a leaf from *page on, `most` extents of one page at the most, or up to the first that has more pages;
 * `before` is for the first of them. How many were pinned; *page is the one after the last of them. *pages is 1 unless
 * the last had more, and 0 if the run ended before that. `held`: nothing but frames, shadows and nothing can be there.
 */
static inline __attribute__((always_inline)) uint64_t index_slots_run(const _Atomic index_entry *slot, bool held,
                                                                      uint64_t *page, uint64_t most, size_t before,
                                                                      uint64_t *pages, index_pin *pin, void *arg)
{
    uint64_t at = *page;
    uint64_t left = most;
    uint64_t many = 1;

    do {
        index_entry e = atomic_load_explicit(slot, memory_order_acquire);

        if (!(held ? (e & 1) != 0 : entry_is_frame(e)) || !pin(arg, before + (size_t)(at - *page), at, e, &many)) {
            many = 0;
            break;
        }
        slot++;
        at++;
        left--;
    } while (left && many == 1);
    *pages = many;
    *page = at + (many > 1 ? many - 1 : 0);
    return most - left;
}

/*
 * The pages from `page` to `last` that are there without a gap, `most` extents of them at the most: one walk a leaf,
 * and no step beyond the last page wanted (after Z. Chi's "mm/filemap: reduce unnecessary xarray lookups", 2026).
 * Returns how many extents were pinned. Ends at nothing, at a shadow, and where `pin` says so. Lock free; inside a
 * section, or with a pin that confirms the frame.
 */
static inline __attribute__((always_inline)) size_t index_batch(const struct index *x, uint64_t page, uint64_t last,
                                                                size_t most, index_pin *pin, void *arg)
{
    size_t count = 0;

    if (page > last || !most)
        return 0;
    for (;;) {
        const _Atomic index_entry *slot;
        index_entry above;
        uint64_t pages = 1;
        uint64_t next = page;

        if (index_reach(x, page, &slot, &above)) {
            uint64_t room = (page | (INDEX_SLOTS - 1)) - page; /* in the leaf, behind this page */

            room = room < last - page ? room : last - page;
            room = room < most - count ? room + 1 : most - count;
            count += index_slots_run(slot, false, &next, room, count, &pages, pin, arg);
        } else {
            if (!entry_is_frame(above) || !pin(arg, count, page, above, &pages))
                return count;
            count++;
            next = page + pages;
        }
        if (!pages || count == most || next - 1 >= last) /* next is 0 behind the last of all pages */
            return count;
        page = next;
    }
}

/*
 * Holding a leaf pins all that is in it at once: as long as it is held, bpi_index_evict and bpi_index_replace refuse
 * whatever they find there. Any number of holders; not for long. What is excluded from readers already (a frame that is
 * being evicted, read or written) is not pinned by it: whoever excludes them must do so before he asks for the index,
 * and whoever holds must look at the frame after he holds (RULES.md, R15).
 */
struct node_head *bpi_index_hold_slow(struct index *, uint64_t page, const _Atomic index_entry **slot);

/* The leaf of a page, held, and the page's slot; NULL: there is none. */
static inline __attribute__((always_inline)) struct node_head *index_hold(struct index *x, uint64_t page,
                                                                          const _Atomic index_entry **slot)
{
    index_entry leaf;
    struct node_head *h;

    if (__builtin_expect(page >= x->leaf_pages, 0))
        return bpi_index_hold_slow(x, page, slot);
    leaf = atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_acquire);
    if (__builtin_expect(leaf == ENTRY_NONE, 0))
        return NULL;
    h = head_of_entry(x, leaf);
    *slot = &x->map[index_slots(leaf) + (page & (INDEX_SLOTS - 1))];
    /* nobody was at work in it, and it is the leaf: so whoever works in it from now on sees that it is held */
    if (__builtin_expect(!slim_hold(&h->lock), 1) &&
        __builtin_expect(atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_acquire) == leaf, 1))
        return h;
    slim_unhold(&h->lock);
    return bpi_index_hold_slow(x, page, slot);
}

static inline void index_unhold(struct node_head *h)
{
    slim_unhold(&h->lock);
}

/* The head of the leaf that a slot is in; node 0's where a walk came upon nothing. */
static inline struct node_head *index_head_of(const struct index *x, const _Atomic index_entry *slot)
{
    size_t at = (size_t)(slot - x->map);

    return &x->head[at < index_slots(ENTRY_NODE) ? 0 : (at - index_slots(ENTRY_NODE)) / INDEX_SLOTS];
}

/*
 * Is the leaf of a page held? For who has excluded readers from a frame and would now write to it: false is then final,
 * as far as this frame is concerned. seq_cst: with the exclusion before, and the holder's look at the frame after.
 */
static inline bool index_is_held(const struct index *x, uint64_t page)
{
    const _Atomic index_entry *slot;
    index_entry e;

    return index_reach(x, page, &slot, &e) && slim_is_held(&index_head_of(x, slot)->lock);
}

/* ---- writers. Thread safe; the magazine is the caller's, filled before (bpi_magazine_fill) ---- */

/* What an insert met. */
struct index_insert {
    index_entry shadow; /* newest shadow replaced or split, ENTRY_NONE if none */
    uint32_t shadows;   /* how many were */
    uint32_t frame;     /* -EEXIST: frame of the first page in conflict, UINT32_MAX if there was none */
    uint64_t page;      /* and that page */
};

/*
 * Enter the extent of 2^order pages at page (a multiple of 2^order, order <= INDEX_ORDER_MAX) in one walk: conflict
 * check, shadows met, and position come out of the same descent, under the lock of the node that the extent belongs
 * into (after K. Song's "mm/filemap: optimize filemap folio adding", Linux 6.10). 0; -EEXIST: something live is in the
 * range, nothing was changed. At most INSERT_NODES of the magazine are used, none on -EEXIST. A larger shadow is split
 * along the path only; its other pages keep it.
 */
int bpi_index_insert(struct index *, uint64_t page, unsigned order, uint32_t frame, struct node_magazine *,
                     struct index_insert *);

/*
 * Enter n extents of 2^order pages, one after the other from page on, with these frames: one walk for all that go into
 * one node. Returns how many were entered. Less than n: the next one met something live (met->frame), or the magazine
 * ran low (fill it and go on).
 */
unsigned bpi_index_insert_run(struct index *, uint64_t page, unsigned order, const uint32_t frame[], unsigned n,
                              struct node_magazine *, struct index_insert *);

/*
 * Take out the extent that was entered (or split off) with this page, order and frame; leaves `shadow`, or nothing
 * (ENTRY_NONE). false: there is no such extent, or it is part of a larger one (nothing changed). Needs no memory. A
 * node that is left with the same shadow in all its slots becomes one shadow of its parent.
 */
bool bpi_index_erase(struct index *, uint64_t page, unsigned order, uint32_t frame, index_entry shadow);

/* The same, unless the extent's leaf is held; then nothing is changed. */
enum index_gone { INDEX_GONE, INDEX_ABSENT, INDEX_HELD };
enum index_gone bpi_index_evict(struct index *, uint64_t page, unsigned order, uint32_t frame, index_entry shadow);

/*
 * Lead the pages of an extent to other frames (it was moved). Marks stay. Slot after slot: a reader may see the old
 * frame at one page and the new one at the next. false: there is no such extent, or its leaf is held; nothing changed.
 */
bool bpi_index_replace(struct index *, uint64_t page, unsigned order, uint32_t frame, uint32_t to);

/*
 * Make the 2^order pages at page an entry of their own, cut out of the larger extent or shadow that holds them: along
 * the path only, into as few pieces as can be, through any number of levels. No page's answer changes, and every piece
 * has the marks that the extent had. 0, also if it was one already; -ENOENT: nothing is there; -ERANGE: smaller entries
 * are.
 */
int bpi_index_split(struct index *, uint64_t page, unsigned order, struct node_magazine *);

/* Drop up to n of the nodes that hold only shadows, oldest first; how many were dropped. */
unsigned bpi_index_reclaim(struct index *, unsigned n);

/* ---- looking around: exact at the moment of the call; each takes locks of nodes for a moment ---- */

/* A live extent, or a piece that was split off one. */
struct index_item {
    uint64_t page; /* the first of it */
    uint32_t frame;
    unsigned order;
};

/* The extent that covers a page. */
bool bpi_index_find(struct index *, uint64_t page, struct index_item *);
/* The first live extent that ends at or after a page; the last one that begins at or before it. */
bool bpi_index_next(struct index *, uint64_t from, struct index_item *);
bool bpi_index_previous(struct index *, uint64_t from, struct index_item *);

/* The order of the entry that covers a page, shadows too; 0 if none. */
unsigned bpi_index_order(struct index *, uint64_t page);

/*
 * Forget the shadows that lie wholly in first..last, up to the first live extent that overlaps with it. true: there is
 * one, in *met; once it is dealt with, go on behind it. false: that was all.
 */
bool bpi_index_discard(struct index *, uint64_t first, uint64_t last, struct index_item *met);

/* ---- marks ---- */

/* Set or clear a mark of the extent that covers a page. Whether there is an extent; whether it had the mark. */
bool bpi_index_mark(struct index *, uint64_t page, enum index_mark);
bool bpi_index_unmark(struct index *, uint64_t page, enum index_mark);
bool bpi_index_marked(struct index *, uint64_t page, enum index_mark);
bool bpi_index_any_marked(struct index *, enum index_mark);

/* The first marked extent that ends at or after a page. Passes over subtrees without marked ones. */
bool bpi_index_next_marked(struct index *, uint64_t from, enum index_mark, struct index_item *);

/*
 * Give the mark `to` to all extents of first..last that have the mark `if_marked`, as many as `most` in one call.
 * Returns how many; where to go on is in *next (last + 1, or UINT64_MAX at the end of all pages, when done).
 */
unsigned bpi_index_mark_those(struct index *, uint64_t first, uint64_t last, enum index_mark if_marked,
                              enum index_mark to, unsigned most, uint64_t *next);

/* ---- for tests and bp_pool_check ---- */

/* Invariants (tree.h). Locks the whole tree for as long as it takes. *live: how many extents are present; may be NULL.
 */
bool bpi_index_check(struct index *, uint64_t *live);

#endif
