/* SPDX-License-Identifier: MIT */
/*
 * Write-back: what writeback.c (the thread, its choices, those who wait for it) and writeout.c (one write, from the copy
 * to the clean page) have in common. All of it belongs to the thread but what is marked.
 *
 * One thread for each pool does all the writing. So no extent is ever written twice at the same time, older bytes cannot
 * land after newer ones, nobody waits for a write that only another application thread can complete (R6), and a pool
 * whose callers all sleep goes on.
 */
#ifndef BUFPOOL_WRITEBACK_H
#define BUFPOOL_WRITEBACK_H

#include "bufpool/pool.h"

#define WRITES_MAX      128u /* under way at once */
#define WRITE_RUN_PAGES 32u  /* neighbours that are written with one request: 128 KiB */
#define WRITE_BATCH     32u  /* begun, and the log flushed for, before the first of them is submitted */
#define WRITE_BUFFER    9u   /* stable copies: 2^9 pages at the most, and a sixteenth of the pool */
#define WRITE_IN_PLACE  4u   /* extents from this order on are not copied, but pinned while they are written */
/* How long a file that failed is left alone, by the background and when eviction asks. */
#define WRITE_HOLD_NS      (1000 * NS_PER_MS)
#define WRITE_AGAIN_NS     (50 * NS_PER_MS)
#define WRITER_THREADS     4u /* of psync: writes side by side */
#define WRITE_BUFFER_WORDS (((1u << WRITE_BUFFER) + 63) / 64)

/* One extent of a write: the head and its word when it was copied. */
struct write_part {
    uint64_t seen;
    uint32_t head;
    uint8_t order;
};

struct write_op {
    struct io_request io; /* first */
    bp_file *file;        /* NULL: not in use */
    uint64_t page;        /* the first */
    uint32_t pages;
    char *data;
    uint32_t done; /* bytes written */
    uint32_t at;   /* page of the buffer that its copy begins with; not if in place */
    uint16_t parts;
    uint16_t retries;  /* in a row without progress */
    bool in_place;     /* its one part is pinned */
    uint64_t again_ns; /* to be tried again then; 0: it is under way */
    uint64_t newest;   /* LSN */
    /* read by others: oldest LSN of what it writes, turned (frame_dirty), and of which file */
    _Atomic uint64_t since, file_id;
    struct write_part part[WRITE_RUN_PAGES];
};

/* What the writer knows of a file. */
struct file_writes {
    struct io_request sync; /* first */
    bp_file *file;
    uint32_t slot; /* that the file is registered in, plus 1; 0: not yet, or it cannot be */
    bool asked_slot;
    bool sync_under_way;
    bool written;              /* since the last sync that succeeded */
    unsigned flight;           /* ops in use */
    unsigned active;           /* requests being served; under the writer's lock */
    _Atomic unsigned barriers; /* of these, those that want no write to begin; written under the lock */
    unsigned careful;   /* so many extents are written one by one: a run failed, and which of it is to be found */
    uint64_t log_done;  /* the log is durable up to here */
    uint64_t failed_ns; /* when a write or its log failed last; 0: not since one succeeded */
    _Atomic uint64_t progress; /* moves on with each write that ends; for those who wait */
};

enum write_what {
    WRITE_FLUSH,   /* what is dirty in the range is on the device */
    WRITE_SYNC,    /* and durable */
    WRITE_QUIET,   /* no write of the file is under way */
    WRITE_TRUNCATE /* the same, and then it gets another size */
};

enum write_stage {
    STAGE_NEW,
    STAGE_READY,   /* about to be taken up */
    STAGE_WRITING, /* from here on it is served */
    STAGE_WRITTEN, /* to be synced, when all that wait for the same sync are */
    STAGE_SYNCING,
    STAGE_OVER
};

/* Somebody waits; on his stack. Under the writer's lock but for `done`. */
struct write_request {
    struct write_request *next;
    bp_file *file;
    uint64_t first, last; /* pages */
    uint64_t bytes;       /* WRITE_TRUNCATE */
    enum write_what what;
    enum write_stage stage;
    int rc;
    uint64_t bad;          /* page that rc is about, or UINT64_MAX */
    _Atomic uint32_t done; /* futex */
};

#define WRITER_COUNTERS(X) \
    X(writes)              \
    X(write_bytes)         \
    X(write_extents)       \
    X(write_stale) X(write_errors) X(write_retries) X(write_asked) X(log_flushes) X(log_errors) X(syncs) X(sync_errors)

struct writer {
    bp_pool *pool;
    const struct io_ops *ops;
    struct io_channel *io;
    pthread_t thread;
    _Atomic uint64_t kick; /* moves on when it should look; any thread */
    _Atomic bool asked;    /* eviction needs something written; any thread */
    _Atomic bool over;     /* more than the target is dirty; any thread sets it, and kicks then */
    _Atomic bool stop;
    _Atomic int error;     /* why the last write failed that did; 0: the last one succeeded */
    _Atomic int log_error; /* the same of flush_log */
    pthread_mutex_t lock;  /* of the requests; inside of it only an index's locks */
    struct write_request *pending, *active;

    struct write_op op[WRITES_MAX];
    unsigned flight; /* ops in use, and their pages */
    uint64_t flight_pages;
    bool sweeping;        /* from above the target down to well below it */
    unsigned batch_count; /* of these, not yet submitted */
    struct write_op *batch[WRITE_BATCH];
    bool cleaned;       /* something, since those who wait were told */
    unsigned submitted; /* requests in the channel, syncs too */
    bool registered;    /* the buffer, as the channel's only one */
    int register_error; /* why not, at open */
    char *buffer;       /* frames of the pool */
    uint32_t buffer_frame;
    unsigned buffer_order;
    uint64_t used[WRITE_BUFFER_WORDS]; /* pages of the buffer, a bit each */
    unsigned sweep_file;               /* the background's place: file and page */
    uint64_t sweep_page;
#define WRITER_COUNTER(name) _Atomic uint64_t name;
    WRITER_COUNTERS(WRITER_COUNTER)
#undef WRITER_COUNTER
};

/* ---- writeout.c ---- */
/*
 * Begin to write extents of a file that have the mark, from *from to last, `most` writes at the most; *from is where to go
 * on. They are in the batch afterwards. How many writes; what cannot be had now (held exclusively, being written) keeps
 * its mark and is passed over. *full: there is no room for more.
 */
unsigned bpi_write_choose(struct writer *, bp_file *, enum index_mark, uint64_t *from, uint64_t last, unsigned most,
                          bool *full);
/* The batch goes out, after the log. */
void bpi_write_submit(struct writer *);
/* Those that waited to be tried again, and whose time has come. When the next one's will, or UINT64_MAX. */
uint64_t bpi_write_retry(struct writer *, uint64_t now_ns);
/* Requests that have ended. */
void bpi_write_reaped(struct writer *, struct io_request *const[], unsigned n);
/* Is a write of pages of this range in use? */
bool bpi_write_overlaps(const struct writer *, const bp_file *, uint64_t first, uint64_t last);

/* ---- writeback.c ---- */
/* A write of pages of this range failed for good: those who wait for them are told. all: it is over for them. */
void bpi_write_tell(struct writer *, bp_file *, uint64_t first, uint64_t last, int error, bool all);
/* Do all of them wait for something of this range? */
bool bpi_write_wanted(struct writer *, const bp_file *, uint64_t first, uint64_t last);
void bpi_write_synced(struct writer *, bp_file *, int result);
/* The oldest of the file's changes that are being written, or written and not durable, and of this one; all turned. */
uint64_t bpi_write_oldest(bp_file *, uint64_t oldest);
/* Wait for what the request asks. Its rc; -ETIMEDOUT: nothing went on for as long as the pool waits. */
int bpi_write_await(struct write_request *);

static inline void writer_kick(struct writer *w)
{
    const _Atomic uint64_t *word = &w->kick;

    /* release: what it is to look at was written before */
    atomic_fetch_add_explicit(&w->kick, 1, memory_order_release);
    w->ops->announce(w->io, &word, 1);
}

/* The largest of what is there and an LSN, turned. release: see bp_file_oldest_dirty_lsn. */
static inline void since_raise(_Atomic uint64_t *word, uint64_t turned)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);

    while (seen < turned &&
           !atomic_compare_exchange_weak_explicit(word, &seen, turned, memory_order_acq_rel, memory_order_relaxed))
        ;
}

#endif
