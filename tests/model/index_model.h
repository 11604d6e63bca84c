/* SPDX-License-Identifier: MIT */
/*
 * A model of the index: a sorted list of extents and pieces of shadows, from which everything the index may say is
 * worked out anew after every operation, by other means than the index has: what each page reads, orders, marks, what
 * an insert meets, the height, the number of nodes, and which nodes hold only shadows, in order of age.
 *
 *   index_model.c       the model alone                        model_index.c        long random sequences
 *   index_both.c        an operation done to both, and the     model_index_tiny.c   all short sequences on a tiny tree
 *                       two compared
 *   index_sequences.c   all sequences of some operations
 *
 * All of it follows the fan-out that the index was compiled with.
 */
#ifndef BUFPOOL_TESTS_INDEX_MODEL_H
#define BUFPOOL_TESTS_INDEX_MODEL_H

#include "bufpool/index.h"

#define ITEMS_MAX   4096u
#define PAGE_LAST   UINT64_MAX
#define RECLAIM_ALL 1000000u
#define INDEXES     2u
#define RUN_MAX     160u
#define COUNT(a)    (unsigned)(sizeof(a) / sizeof((a)[0]))

/* One extent, or one piece of a shadow. */
struct item {
    uint64_t page;
    uint64_t clock; /* of a shadow, all bits of it */
    uint32_t value; /* first frame, or the shadow's entry */
    uint8_t order;
    uint8_t marks; /* a bit each */
    bool live;
};

/* A node, by what it covers: pages with the same prefix above INDEX_SHIFT * (level + 1). */
struct place {
    unsigned level;
    uint64_t prefix;
};

struct model {
    struct item item[ITEMS_MAX]; /* by page */
    size_t count;
    struct place only[ITEMS_MAX]; /* nodes that hold only shadows, oldest first */
    size_t only_count;
    unsigned height; /* this and the rest is worked out by model_update */
    uint32_t nodes;
    uint64_t live;
};

/* Notes the first thing that went wrong, in index_both.c; false, so that it can be returned. */
bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char failure[512]; /* empty if nothing went wrong */

static inline uint64_t mask_of(unsigned order)
{
    return order < 64 ? (1ull << order) - 1 : UINT64_MAX;
}

static inline uint64_t item_last(const struct item *i)
{
    return i->page + mask_of(i->order);
}

/* First item that ends at or after a page; the one over a page, or NULL; what a page reads. */
size_t model_find(const struct model *, uint64_t page);
const struct item *model_at(const struct model *, uint64_t page);
index_entry model_load(const struct model *, uint64_t page);
/* Is there a node of this level over the page? */
bool model_has_node(const struct model *, uint64_t page, unsigned level);

/* What the operations of the index should answer; they are done to the model. `clock` is all bits of the shadow's. */
int model_insert(struct model *, uint64_t page, unsigned order, uint32_t frame, struct index_insert *want);
bool model_erase(struct model *, uint64_t page, unsigned order, uint32_t frame, index_entry shadow, uint64_t clock);
bool model_replace(struct model *, uint64_t page, unsigned order, uint32_t frame, uint32_t to);
int model_split(struct model *, uint64_t page, unsigned order);
unsigned model_reclaim(struct model *, unsigned n);
const struct item *model_discard(struct model *, uint64_t first, uint64_t last);      /* what was met, or NULL */
bool model_mark(struct model *, uint64_t page, enum index_mark, bool set, bool *had); /* is there an extent? */
unsigned model_mark_those(struct model *, uint64_t first, uint64_t last, enum index_mark if_marked, enum index_mark to,
                          unsigned most, uint64_t *next);

/* The first live item that ends at or after a page and has one of the marks (0: any item); the last one that begins at
 * or before it. NULL: none. */
const struct item *model_next(const struct model *, uint64_t from, unsigned marks);
const struct item *model_previous(const struct model *, uint64_t from);

/* Forget everything. */
void model_clear(struct model *);

/* ---- index_both.c: both, and the two compared. Functions answer false after fail(). ---- */

extern struct index_nodes nodes;
extern struct node_magazine magazine;
extern struct index index_of[INDEXES];
extern struct model model_of[INDEXES];
extern uint64_t clock_now;    /* of evictions */
extern bool clock_coarse;     /* evictions of all times and orders leave the same shadow */
extern unsigned long changes; /* operations that changed something */

void rng_seed(uint64_t seed);
uint64_t rng(void);
uint64_t below(uint64_t n);

/* An array of `limit` nodes, the indexes over it; with or without arrays of leaves. */
bool open_all(uint32_t limit, bool leaves);
/* Everything must have come back. */
bool close_all(void);

bool do_insert(unsigned which, uint64_t page, unsigned order, uint32_t frame);
bool do_run(unsigned which, uint64_t page, unsigned order, unsigned n);
bool do_erase(unsigned which, uint64_t page, unsigned order, uint32_t frame, bool leave);
bool do_erase_at(unsigned which, uint64_t page, bool leave); /* the extent over a page, if there is one */
bool do_replace(unsigned which, uint64_t page, unsigned order, uint32_t frame, uint32_t to);
bool do_replace_at(unsigned which, uint64_t page, uint32_t to);
bool do_split(unsigned which, uint64_t page, unsigned order);
bool do_reclaim(unsigned which, unsigned n);
bool do_discard(unsigned which, uint64_t first, uint64_t last);
bool do_mark(unsigned which, uint64_t page, enum index_mark, bool set);
bool do_mark_those(unsigned which, uint64_t first, uint64_t last, enum index_mark if_marked, enum index_mark to,
                   unsigned most);
bool do_clear(unsigned which);

bool same_page(unsigned which, uint64_t page);
bool same_shape(unsigned which); /* nodes, height, list of nodes that hold only shadows: everything but the pages */
bool same_around(unsigned which, uint64_t from); /* next, previous, marked, find, order */
bool same_batch(unsigned which, uint64_t page, uint64_t last, unsigned most);
bool same_items(unsigned which); /* bpi_index_check, and every item at its edges */

/* ---- index_sequences.c ---- */

enum op_kind {
    OP_INSERT,
    OP_RUN, /* of four extents */
    OP_LEAVE,
    OP_LEAVE_ALL, /* order: of how many pages */
    OP_ERASE,
    OP_REPLACE,
    OP_SPLIT,
    OP_RECLAIM, /* page: how many */
    OP_DISCARD, /* order: how many pages */
    OP_MARK,    /* order: the mark */
    OP_UNMARK,
    OP_COPY_MARKS, /* all dirty ones of `order` pages become to-write */
};

struct op {
    enum op_kind kind;
    uint64_t page;
    unsigned order;
};

/*
 * All sequences of `length` operations and of less, each from an empty index: all counts after each operation, and
 * everything after the last one. Says what it did; on failure, which sequence it was.
 */
bool all_sequences(const char *what, const struct op *op, unsigned ops, unsigned length);

#endif
