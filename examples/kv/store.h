/* SPDX-License-Identifier: MIT */
/*
 * Inside a store: what its rooms share.
 *
 *   kv.c       opening, closing, sessions, what runs in the background
 *   tree.c     the way down, splits and merges      points.c  get, put, delete   batch.c  several at once   scan.c ranges
 *   page.c     what is in a page                    value.c   values that are too large for one
 *   space.c    which pages are in use               change.c  what the log's records say, and applying them
 *   log.c      the log; segment.c its files         checkpoint.c, recover.c      check.c  looking at everything
 *
 * A change happens in this order: latch the pages (try only: whoever fails lets go of all and starts over, so nobody
 * waits for a latch while he holds one), make a record, log_append, change the pages, bp_put_dirty with the record's LSN.
 * Nothing can fail behind log_append. From there to the last bp_put_dirty the session's `pending` has the LSN: a
 * checkpoint waits for it, because until then the pool does not know that the page is dirty.
 *
 * The first change of a page behind the beginning of a checkpoint (its LSN is not above log_floor) is preceded by the page
 * as a whole in the same record. So recovery, which begins there, needs nothing of a page that was torn.
 *
 * Locks, outermost first: checkpoint_lock, batch_lock, latches, sessions_lock, the log's, a space's.
 */
#ifndef KV_STORE_H
#define KV_STORE_H

#include <pthread.h>
#include <stdatomic.h>

#include <bufpool/bufpool.h>

#include "kv/kv.h"
#include "kv/log.h"
#include "kv/page.h"
#include "kv/space.h"

#define LEVELS_MAX  32u
#define TRIES_MAX   1000000u /* of an operation that meets others, beside the deadline */
#define WAIT_MS     10000u   /* deadline of whatever meets others */
#define HINT_SLOTS  512u     /* remembered frames of an inner page's children: 4 KiB */
#define FORMAT      1u
#define PIECES_MAX  12u /* extents of a large value */
#define DATA_NAME   "data"
#define VALUES_NAME "values"

enum { SPACE_TREE, SPACE_VALUES, SPACES };

struct kv {
    struct kv_options options;
    char *dir_name;
    int dir, lock;
    uint64_t id;
    bp_pool *pool;
    bp_file *file[SPACES];
    struct space space[SPACES];
    struct log log;
    bool log_open;
    _Atomic bool recovering; /* the log is read, not written: all of it is durable */
    unsigned order_max;      /* largest extent that this pool takes */
    uint64_t entries;        /* of the log's lock */
    /*
     * Where the children of inner pages were found: HINT_SLOTS frames for each of hint_pages inner pages (by its number;
     * pages that share them disturb each other). Beside the children rather than by child, so that the hint is on its
     * way before the child's number is known. NULL: there is none.
     */
    _Atomic uint64_t *hint;
    uint64_t hint_pages; /* a power of two */
    pthread_mutex_t checkpoint_lock, batch_lock, sessions_lock;
    pthread_cond_t wake; /* of the background thread, with sessions_lock */
    kv_session *sessions;
    unsigned session_count;
    bool stop, thread_runs;
    pthread_t thread;
    kv_session *background; /* the thread's */
    /* relaxed: only counted */
    _Atomic uint64_t checkpoints, splits, merges, restarts, recovered;
};

struct kv_session {
    kv *kv;
    bp_session *pages;
    kv_session *next, *previous;
    _Atomic uint64_t pending; /* LSN of a change whose pages the pool does not know yet; 0: none */
    uint64_t wrote;           /* LSN of the last change */
    _Atomic uint64_t root;    /* the root's frame, as a hint; the session's thread alone uses it */
    bool defer, counted;
    struct kv_error error;
    unsigned char *value; /* what a get has found */
    size_t value_room;
    struct log_record record;
    unsigned char *scratch; /* pages that are put together before they replace others: SCRATCH_PAGES */
};
#define SCRATCH_PAGES 3u

/* Notes what went wrong; returns the code. */
int session_fail(kv_session *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The code of the pool for one of the kv's, with the pool's words. */
int session_pool_fail(kv_session *, int code, const char *what, uint64_t page);
int kv_fail(struct kv_error *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int session_open(kv *, const char *label, bool counted, kv_session **);

/* Bytes for a value. */
unsigned char *session_value_room(kv_session *, size_t bytes);

/* ---- retrying ---- */

struct tries {
    unsigned count;
    uint64_t until_ms; /* 0: not asked yet */
};
/* Another try? Yields, later sleeps; false at the deadline. */
bool tries_more(kv_session *, struct tries *);

/* ---- a large value: where it lies (in a leaf, as the payload) ---- */

struct large {
    uint32_t bytes, crc; /* of the value: CRC-32C */
    uint32_t pieces, zero;
    uint64_t piece[PIECES_MAX]; /* page << 4 | order */
};
#define LARGE_BYTES(pieces) (16 + 8 * (size_t)(pieces))

static inline uint64_t piece_page(uint64_t piece)
{
    return piece >> 4;
}
static inline unsigned piece_order(uint64_t piece)
{
    return piece & 15;
}

/* false: what lies there is not one. */
bool large_parse(const void *payload, size_t bytes, struct large *);
/* Write a value into new extents, through the log. */
int large_write(kv_session *, const void *value, size_t bytes, struct large *);
/* What large_write made did not come into the log. */
void large_undo(kv_session *, const struct large *);
/* The extents are free, as the log says by now: whatever is dirty there need not be written. */
void large_forget(kv_session *, const struct large *);
/* Into session->value. EBADMSG: it is not the value that is meant; it may have been replaced meanwhile. */
int large_read(kv_session *, const struct large *);
/* Bytes into an extent: for large_write and for recovery. The LSN is asked for when everything is in place. */
int large_fill(kv_session *, uint64_t page, unsigned order, const void *bytes, size_t count, uint64_t lsn);

/* ---- the tree ---- */

struct place {
    struct bp_view node, parent;
    uint64_t node_page, parent_page; /* parent_page PAGE_NONE: node is the root */
    unsigned slot;                   /* of the node in its parent */
    unsigned level;
};

static inline const struct page *view_page(const struct bp_view *view)
{
    return view->data;
}

/* A view of one of the tree's pages. */
int tree_look(kv_session *, uint64_t page, struct bp_view *);
/*
 * To the page at this level that has the key (`before`: the keys right below it). When it returns, node was the right
 * page while the view stands. ENOENT: the tree has no such level.
 */
int tree_find(kv_session *, struct bytes key, bool before, unsigned level, struct place *);
/*
 * Make room for the key at this level, by splitting the page that has it (and those above, if they need it): at the key
 * `at`, or, if that is NULL, where it suits the page.
 */
int tree_split(kv_session *, struct bytes key, const struct bytes *at, unsigned level);
/* The page that has this key has become small: join it with a neighbour, if that suffices. */
int tree_merge(kv_session *, struct bytes key, unsigned level);
/* Whether it is worth asking tree_merge. */
static inline bool tree_small(const struct page *page)
{
    return page_used(page) < PAGE_BYTES / 5;
}

/* ---- changes: what records hold ---- */

enum change {
    CHANGE_IMAGE = 1, /* the page is this: begins the entries of a page; extra: where the hole is */
    CHANGE_PUT,       /* key, value; flag: it says where the value lies */
    CHANGE_DELETE,    /* key */
    CHANGE_CUT,       /* extra: slots to keep; key: the new upper fence */
    CHANGE_LINK,      /* key, child's number */
    CHANGE_UNLINK,    /* key */
    CHANGE_USE,       /* extent: flag: which file; extra: order */
    CHANGE_FREE,
    CHANGE_DATA /* extent of large values: its bytes; extra: order */
};

/* Entries of one page stand together. */
struct entry {
    uint8_t change, flag;
    uint16_t key_bytes;
    uint32_t bytes;
    uint32_t extra;
    uint32_t zero;
    uint64_t page;
};

void record_begin(kv_session *);
/* ENOMEM, KV_TOO_LARGE */
int record_add(kv_session *, struct entry, const void *key, const void *bytes);
int record_image(kv_session *, const struct page *);
/* The page as it is, if this is its first change behind `floor`. */
int record_before(kv_session *, const struct page *, uint64_t floor);
int record_space(kv_session *, enum change, unsigned space, uint64_t page, unsigned order);
int record_large_free(kv_session *, const struct large *);
/* log_append with what belongs to it; sets pending. EAGAIN: make the record again. */
int record_append(kv_session *, uint64_t floor, uint64_t *lsn);
/* The pool knows all of it. */
static inline void record_settled(kv_session *s)
{
    /* release: a checkpoint that sees this sees that bp_put_dirty came before */
    atomic_store_explicit(&s->pending, 0, memory_order_release);
}
/* The next entry of a record's body, or false; *at moves on. *wrong: what is there is none. */
bool record_next(const unsigned char *body, size_t bytes, size_t *at, struct entry *, const unsigned char **key,
                 const unsigned char **data, bool *wrong);
/* NULL, or why it cannot be done. Does the change to a page, without its LSN. */
const char *change_apply(struct page *, const struct entry *, const unsigned char *key, const unsigned char *data);

/* After a change: durable, as the session wants it. */
int session_commit(kv_session *, uint64_t lsn);

/* ---- checkpoints and recovery ---- */

struct checkpoint {
    uint64_t id, position, entries;
    uint64_t pages[SPACES];
    unsigned char *bits[SPACES];
};
int checkpoint_read(int dir, struct checkpoint *, struct kv_error *);
int checkpoint_write(int dir, const struct checkpoint *);
void checkpoint_free(struct checkpoint *);
int checkpoint_take(kv_session *);
/* Labels, the empty root, a first checkpoint. */
int store_create(int dir, uint64_t *id, struct kv_error *);
int label_check(int dir, const char *name, unsigned space, uint64_t id, struct kv_error *);
/* Apply the log from the checkpoint on. */
int store_recover(kv *, kv_session *, struct kv_error *);

#endif
