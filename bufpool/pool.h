/* SPDX-License-Identifier: MIT */
/*
 * The rooms of the library behind the public header: what a pool, a file and a session are made of, and what the rooms
 * call of each other. Rules on who may touch what are in RULES.md and cited by number.
 *
 *   point.c    hits: views and refs           fault.c    misses: from an absent page to a present one
 *   complete.c what a finished read leads to  wait.c     parking and waking
 *   channel.c  rings, their requests and registered slabs
 *   evict.c    taking frames from pages       policy.c   which pages; queue.c, duel.c: what that stands on
 *   async.c    bp_get_start, bp_poll, the session's descriptor
 *   readahead.c   streams, prefetching
 *   run.c      one read for many extents      turn.c     waiting for frames, in order
 *   move.c     extents move to other frames    compact.c  so that blocks become whole
 *   migrate.c  to the node where they are used
 *   resize.c   so that memory can be given back   budget.c   what memory is for
 *   dump.c restore.c extents.h   what was in memory, across a restart
 *   copy.c map.c   ranges; span.c   what is there, pinned
 *   pool.c file.c session.c   opening and closing
 *   write.c    what the public calls on writing do   writeback.h writeback.c writeout.c   the thread that writes
 *   stats.c    counters                       check.c    invariants on a live pool
 *   caps.c     what the machine gave, and strict pools
 *   damage.c   pages that cannot be read   trace.c    recording what is asked for
 *   residency.c what of a file is in memory, for maps
 *
 * Locks, outermost first (R9): pool.lock, session.magazine_lock, channel.lock, index.lock, index_nodes.lock / a
 * queue's, its chunks' / pool.turn_lock; policy.lock, recording.lock, damage.lock with none inside. No lock is held while anything
 * waits for a device, a latch or a frame.
 */
#ifndef BUFPOOL_POOL_H
#define BUFPOOL_POOL_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "bufpool/bufpool.h"
#include "bufpool/damage.h"
#include "bufpool/frame.h"
#include "bufpool/index.h"
#include "bufpool/lock.h"
#include "bufpool/policy.h"
#include "bufpool/readahead.h"
#include "bufpool/sync_point.h"
#include "io/io.h"
#include "numa/frames.h"

#define LINE        64 /* bytes of a cache line */
#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define CHANNELS_MAX    256
#define CHANNEL_DEPTH   256 /* reads under way in one channel */
#define GROUP_READS     8   /* misses of a batch that are prepared with one round of locks, and submitted together */
#define REAP_BATCH      32  /* reads completed with one round of locks */
#define MAGAZINE_FRAMES 32
#define EXTENT_SHARE    16u /* an extent is at most this part of the pool */
#define NS_PER_MS       1000000ull

/* Counters of a session; only its thread writes them, so there is no locked instruction. */
#define SESSION_COUNTERS(X) \
    X(hits)                 \
    X(misses)               \
    X(reads_ahead)          \
    X(joins)                \
    X(refaults)             \
    X(evictions)            \
    X(evict_examined)       \
    X(frames_moved)         \
    X(frame_waits)          \
    X(reads)                \
    X(read_bytes)           \
    X(read_errors)          \
    X(read_continued) X(read_fixed) X(busy) X(creates) X(dirty_slowed) X(dirty_stopped) X(dirty_overshoot)

struct counters {
#define COUNTER_FIELD(name) _Atomic uint64_t name;
    SESSION_COUNTERS(COUNTER_FIELD)
#undef COUNTER_FIELD
};

/* relaxed load and store, not a read-modify-write: one writer */
static inline void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* the same for a gauge */
static inline void counter_set(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, n, memory_order_relaxed);
}

struct channel;

/* One read under way. Belongs to a channel for ever; in use from reads_take to reads_end or reads_give. */
struct read {
    struct io_request io; /* first: a request that comes back is its read */
    struct channel *channel;
    bp_file *file;
    uint32_t frame; /* head */
    uint32_t bytes; /* of the extent */
    uint32_t done;  /* bytes that are there */
    uint8_t order;
    uint16_t heads;  /* extents side by side that it is for, 1 but for runs (run.c) */
    uint8_t retries; /* in a row without progress */
    uint16_t pieces;
    uint16_t slot;             /* number in the channel */
    uint64_t ahead_ns;         /* part of a window that was asked for then; 0: not */
    struct operation *waiting; /* bp_get_start operations to tell; under channel.lock */
    struct read *next;         /* free list; a session's spare ones */
};

enum slab_registration { SLAB_UNKNOWN, SLAB_REGISTERED, SLAB_PLAIN }; /* and files' */

struct channel {
    bp_pool *pool;
    const struct io_ops *ops;
    struct io_channel *io;
    slim_lock lock;    /* of what follows */
    struct read *read; /* CHANNEL_DEPTH of them */
    struct read *free;
    _Atomic unsigned in_use; /* requests taken; written under the lock */
    uint64_t registered_bytes;
    _Atomic uint8_t *registered; /* per slab, enum slab_registration; written under the lock, read without */
    char buffer_reason[120];     /* why slabs are not registered; under the lock */
    /* per file number, enum slab_registration; written under the lock, read without */
    _Atomic uint8_t file[IO_FILES_MAX];
    uint16_t number;
    unsigned sessions; /* that use it; under pool.lock */
};

struct bp_file {
    /* read by every hit: struct bp_hot_file */
    uint64_t id;                     /* number << FRAME_ID_FILE_SHIFT */
    const _Atomic index_entry *leaf; /* index.leaf */
    _Atomic uint64_t bytes;          /* size as last seen */
    struct index index;
    bp_pool *pool;
    struct io_file io;
    unsigned order;           /* extents that misses read */
    unsigned stream_order;    /* that may be read ahead */
    unsigned opens;           /* under pool.lock; 0: the slot is free */
    _Atomic uint32_t damaged; /* records of it: damage.h; written under damage.lock */
    bool closing;             /* under pool.lock: who opens the same file now gets another slot */
    enum bp_choice direct, readahead;
    bool finds_streams;
    /* of bp_file_options */
    void *ctx;
    int (*verify)(void *ctx, uint64_t page, const void *data, uint32_t bytes);
    char name[64]; /* end of the path, for texts */

    /* written by every miss and eviction: apart from what hits read. Pages */
    _Alignas(LINE) _Atomic uint64_t resident;    /* in the index, read or being read */
    _Atomic uint64_t floor_pages, ceiling_pages; /* bp_file_limits; 0: none. Written under pool.lock */
    struct ahead_stream stream[AHEAD_STREAMS];
    _Atomic uint64_t own_at; /* where its own pages were looked for last: a hint */

    /* writing; set at open */
    _Alignas(LINE) bool write;
    int (*flush_log)(void *ctx, uint64_t lsn);
    void (*seal)(void *ctx, uint64_t page, void *data, uint32_t bytes);
    _Atomic uint64_t end;       /* bytes that the file has, or is going to have when all is written */
    _Atomic uint64_t dirty;     /* pages */
    _Atomic bool abandoned;     /* bp_file_abandon */
    _Atomic bool quiet;         /* the writer begins no write of it */
    _Atomic int failed;         /* its sync has failed, with this; 0: none has */
    _Atomic uint64_t unsynced;  /* written and not synced: the oldest LSN of it, turned as in frame_dirty */
    _Atomic uint64_t syncing;   /* the same, while a sync is under way, or after it failed */
    struct file_writes *writes; /* what the writer knows of it */
};

/* An operation of bp_get_start. */
struct operation {
    struct operation *next; /* free list, backlog, ready stack, or a read's waiting list */
    bp_session *session;
    bp_file *file;
    uint64_t page;
    uint64_t deadline_ns;
    void *cookie;
    uint32_t head; /* frame joined */
    uint8_t mode;
    _Atomic uint8_t state; /* enum operation_state */
};

enum operation_state {
    OPERATION_FREE,
    OPERATION_BACKLOG, /* to be tried again: no frame, no request, or a latch is held */
    OPERATION_WAITING, /* on a read's list, pinning the frame */
    OPERATION_READY    /* its read has ended; still pinning the frame */
};

struct bp_session {
    /* used by every hit: struct bp_hot_session. In a forked child all of this is zero (MADV_WIPEONFORK) */
    uint64_t leaf_pages;
    const _Atomic index_entry *map;
    struct frame *frame;
    char *base;
    uint32_t frames_total;
    _Atomic uint64_t gets, puts; /* refs taken by hits, which are not in count.hits; refs put */
    struct counters count;       /* begins with hits */
    _Atomic uint64_t refs;       /* taken in other ways */
    bp_pool *pool;
    uint32_t number;

    _Alignas(LINE) struct channel *channel;
    unsigned node;   /* whose memory it gets; follows the thread (session_node) unless it is fixed */
    bool node_fixed; /* by an option, or for the length of a restore */
    struct node_magazine nodes;
    slim_lock magazine_lock; /* frames may be taken back by whoever starves */
    uint32_t magazine_count;
    uint32_t magazine[MAGAZINE_FRAMES];

    /*
     * For a group of misses in one call: requests and frames taken ahead for it, and reads that are published but not
     * yet in the channel's queue. All are gone before the call waits for anything, or returns.
     */
    unsigned group; /* misses that may follow, this one too; 0 is the same as 1 */
    unsigned spare_frames, held_count;
    struct read *spare;
    uint32_t spare_frame[GROUP_READS];
    struct io_request *held[GROUP_READS];
    struct arrival arrival[GROUP_READS]; /* what the held reads are for */

    struct seat seat; /* under magazine_lock, but for the log */

    /* turn.c */
    uint64_t since_ns;   /* when the call or operation began that now wants frames; UINT64_MAX: it has just come */
    uint32_t turn_frame; /* found in turn, for the miss that waited */
    bool turn_kept;      /* there is one */
    bool frugal;         /* restore: take what is free, evict nothing */
    /* readahead.c */
    bp_file *ahead_file;  /* a stream was met there, and is to go on before the call waits or returns; NULL: none */
    uint64_t ahead_page;  /* at this page */
    uint64_t ahead_mark;  /* FRAME_AHEAD while it reads ahead, else 0 */
    uint64_t ahead_ns;    /* and since when */
    unsigned ahead_order; /* and in what extents */
    bool ahead_known;     /* somebody reads ahead for himself: streams are not looked for */

    bp_file *wanting;   /* file of the miss that takes a frame; NULL: none */
    uint32_t *reserved; /* bp_reserve */
    uint32_t reserved_count;
    _Atomic uint64_t aside; /* frames in these, for others to read */

    /* async.c */
    struct operation *operation; /* async_max of them, allocated on first use */
    struct operation *operation_free;
    struct operation *backlog, **backlog_end;
    struct operation *arrived; /* ready ones that a poll had no room for */
    unsigned async_max;
    unsigned active;  /* operations not free */
    unsigned waiting; /* of these, attached to reads or ready */
    uint64_t expiry_check_ns;
    uint64_t timer_ns;     /* interval it is set to; 0: stopped */
    uint64_t timer_due_ns; /* its next tick comes then or a little later */
    int epoll_fd, timer_fd;
    _Atomic int event_fd;
    _Atomic bool signaled;                          /* the eventfd was written, or is about to be, and not yet read */
    uint64_t foreign[CHANNELS_MAX / 64];            /* other sessions' channels that our descriptor watches */
    _Alignas(LINE) struct operation *_Atomic ready; /* stack, pushed by whoever completes */

    _Alignas(LINE) bp_session *next; /* pool's list */
    bp_session **link;
    size_t mapped;
    char label[32];
    char error[248];
};

/* trace.c */
struct recording {
    _Atomic uint32_t limit; /* pages whose hash is not above are recorded; 0: none are */
    pthread_mutex_t lock;   /* of the rest; innermost */
    struct bp_trace_entry *entry;
    uint32_t mask;
    uint64_t head, tail, lost;
};

struct bp_pool {
    /* read by every miss; set at open */
    struct frame *frame;
    struct frame_cold *cold;
    char *base;
    uint32_t frames_total;               /* that there can ever be: all frame numbers are below */
    _Atomic uint32_t frames_limit;       /* that the budget allows now */
    _Atomic uint64_t memory;             /* the budget; written by who resizes */
    uint64_t beside;                     /* bytes of it for what does not depend on the number of frames */
    _Atomic uint32_t resizing;           /* futex: somebody does */
    _Atomic uint64_t no_trade_before_ns; /* the last trade of frames for nodes came to nothing */
    _Atomic uint32_t batch;              /* frames that a session evicts or takes at once; written under the lock */
    uint64_t wait_ns;
    const struct io_ops *io;
    struct frames *frames;
    pid_t pid;
    struct bp_pool_options options;
    struct index_nodes nodes;
    struct policy_sizes sizes;
    struct topology topology;
    char io_reason[120], io_remedy[120];
    char direct_reason[120]; /* of the last file that was to be direct and is not; under the lock */
    uint64_t memory_machine;

    uint64_t watchdog_ns; /* 0: none */

    _Alignas(LINE) _Atomic uint32_t starving; /* callers that wait for frames; hardly ever written */
    _Atomic uint32_t watching;            /* callers that wait for pins to go: puts look for them while this is not 0 */
    _Atomic uint64_t turn_since_ns;       /* when the first of them came; UINT64_MAX: nobody waits */
    slim_lock turn_lock;                  /* of what follows */
    struct turn *turn_first, *turn_last;  /* the queue, by since_ns */
    uint64_t stalled_since_ns;            /* when one of them was served last, or the queue began */
    uint64_t watchdog_next_ns;            /* no diagnostic line before this */
    _Alignas(LINE) _Atomic uint64_t hand; /* where blocks were looked for last, in frames, not wrapped */

    struct damage damage;
    _Atomic uint64_t ahead_ns; /* what a read of a window takes, on the average of the last ones; 0: none yet */

    struct policy policy[1]; /* by node: frames of all nodes are one stock, so one */

    _Alignas(LINE) pthread_mutex_t lock; /* of the lists below */
    bp_session *session;
    unsigned session_count;
    uint32_t nodes_shared; /* of the index, beside what sessions have in stock: budget.c */
    uint32_t session_number;
    uint64_t null_files;                        /* opened so far */
    struct counters past;                       /* of closed sessions */
    bp_file *_Atomic file[FRAME_FILES_MAX + 1]; /* slots are never freed while the pool is open */
    unsigned file_count;
    uint64_t floor_pages;        /* of all files */
    _Atomic unsigned floors;     /* files that have one; written under the lock */
    _Atomic unsigned reclaim_at; /* file whose shadows are looked at next, less 1; not under the lock */
    struct channel *_Atomic channel[CHANNELS_MAX];
    _Atomic unsigned channel_count;
    unsigned channels_max;

    _Alignas(LINE) struct recording recording;

    struct frame_dirty *dirty;     /* by head */
    uint32_t slow_percent;         /* dirty_target and dirty_trigger together */
    pthread_mutex_t writer_lock;   /* of the making of it; outermost */
    struct writer *_Atomic writer; /* from the first file on that is opened for writing */
    _Alignas(LINE) _Atomic uint64_t dirty_pages;
    _Atomic uint32_t stopped; /* callers that wait for it to become less */
    _Atomic uint32_t cleaned; /* futex: moves on when it does, while somebody waits */
};

/* Pages entered into the index, or taken out of it. relaxed: a count, nothing is ordered by it */
static inline void file_grew(bp_file *file, uint64_t pages)
{
    atomic_fetch_add_explicit(&file->resident, pages, memory_order_relaxed);
}

static inline void file_shrank(bp_file *file, uint64_t pages)
{
    atomic_fetch_sub_explicit(&file->resident, pages, memory_order_relaxed);
}

/* Is anything known of pages that cannot be read? relaxed: who reads an old value tries once more, or once in vain */
static inline bool file_is_damaged(const bp_file *file)
{
    return unlikely(atomic_load_explicit(&file->damaged, memory_order_relaxed) != 0);
}

/* Has the file all that its ceiling allows? */
static inline bool file_is_over(const bp_file *file)
{
    uint64_t ceiling = atomic_load_explicit(&file->ceiling_pages, memory_order_relaxed);

    return ceiling && atomic_load_explicit(&file->resident, memory_order_relaxed) >= ceiling;
}

static inline unsigned file_number(const bp_file *file)
{
    return (unsigned)(file->id >> FRAME_ID_FILE_SHIFT);
}

static inline uint32_t batch_of(const bp_pool *pool)
{
    return atomic_load_explicit(&pool->batch, memory_order_relaxed);
}

/* relaxed: who reads an old one is off by what a resize has just begun to change */
static inline uint32_t frames_limit(const bp_pool *pool)
{
    return atomic_load_explicit(&pool->frames_limit, memory_order_relaxed);
}

/* Pages that may be dirty: more are written in the background. */
static inline uint64_t dirty_target(const bp_pool *pool)
{
    return (uint64_t)frames_limit(pool) * pool->options.dirty_target / 100;
}

/* More stop those who make it more. */
static inline uint64_t dirty_trigger(const bp_pool *pool)
{
    return (uint64_t)frames_limit(pool) * pool->options.dirty_trigger / 100;
}

/* In the middle between these: more slow them. */
static inline uint64_t dirty_slow(const bp_pool *pool)
{
    return (uint64_t)frames_limit(pool) * pool->slow_percent / 200;
}

static inline struct policy *policy_of(bp_pool *pool, unsigned node)
{
    (void)node;
    return &pool->policy[0];
}

/* ---- trace.c ---- */
/* An access to the extent that begins with this page. */
void bpi_trace_note(bp_session *, uint64_t id, enum bp_trace_kind);
/* A hit of a page that was not at full heat before. */
void bpi_trace_hit(bp_session *, struct frame *);

static inline bool is_recording(const bp_session *s)
{
    return unlikely(atomic_load_explicit(&s->pool->recording.limit, memory_order_relaxed) != 0);
}

/* ---- point.c ---- */
/* Of a page that is SAMPLED, or was read AHEAD and has not been touched before. */
void bpi_hit_marked(bp_session *, struct frame *, uint64_t seen);

/* A reader used a page whose word was `seen`, and warms it or has done so (T13). Hot pages cost one test. */
static inline void hit_noted(bp_session *s, struct frame *f, uint64_t seen)
{
    if (likely((seen & FRAME_HEAT) == FRAME_HEAT))
        return;
    if (unlikely(seen & (FRAME_SAMPLED | FRAME_AHEAD)))
        bpi_hit_marked(s, f, seen);
    if (is_recording(s))
        bpi_trace_hit(s, f);
}

static inline void hit_warm(bp_session *s, struct frame *f, uint64_t seen)
{
    if ((seen & FRAME_HEAT) != FRAME_HEAT) {
        frame_warm(f, seen);
        hit_noted(s, f, seen);
    }
}

/* ---- what bufpool/inline.h works on ---- */

#define HOT_IS(type, field, real, hot)                                                \
    _Static_assert(offsetof(type, real) == offsetof(struct hot, field) &&             \
                       sizeof(((type *)0)->real) == sizeof(((struct hot *)0)->field), \
                   "the layout of " #hot " is the public header's: with a change, BP_LAYOUT moves too")

HOT_IS(bp_session, leaf_pages, leaf_pages, bp_hot_session);
HOT_IS(bp_session, map, map, bp_hot_session);
HOT_IS(bp_session, frame, frame, bp_hot_session);
HOT_IS(bp_session, base, base, bp_hot_session);
HOT_IS(bp_session, frames_total, frames_total, bp_hot_session);
HOT_IS(bp_session, gets, gets, bp_hot_session);
HOT_IS(bp_session, puts, puts, bp_hot_session);
HOT_IS(bp_session, hits, count.hits, bp_hot_session);
HOT_IS(bp_file, id, id, bp_hot_file);
HOT_IS(bp_file, leaf, leaf, bp_hot_file);
#undef HOT_IS
_Static_assert(ENTRY_FRAME == 1 && ENTRY_TAG == 3 && INDEX_SLOTS == 64, "bp_hot_find knows entries and slots");

/* Pages that every file's array of leaves has a place for. */
static inline uint64_t leaf_pages(const struct index_nodes *nodes)
{
    return ((uint64_t)nodes->limit + 1) * INDEX_SLOTS;
}

/* Refs held. Another thread than the session's may see a little too many or too few. */
static inline uint64_t session_refs(const bp_session *s)
{
    uint64_t puts = atomic_load_explicit(&s->puts, memory_order_relaxed);
    uint64_t taken =
        atomic_load_explicit(&s->gets, memory_order_relaxed) + atomic_load_explicit(&s->refs, memory_order_relaxed);

    return taken > puts ? taken - puts : 0;
}

static inline void *frame_data(const bp_session *s, uint32_t frame)
{
    return s->base + ((size_t)frame << BP_PAGE_SHIFT);
}

static inline uint64_t extent_mask(unsigned order)
{
    return (1ull << order) - 1;
}

/* ---- error.c ---- */
void bpi_error_set(struct bp_error *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int bpi_session_fail(bp_session *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- wait.c ---- */
uint64_t bpi_now_ns(void);
/* Wait until the frame's state word is no longer `seen`, a wake, until_ns, or a while (R12): look again. */
void bpi_frame_wait(struct frame *, uint64_t seen, uint64_t until_ns);
void bpi_frame_wake(struct frame *);
/* Until the word is no longer `seen`, a wake, or until_ns. */
void bpi_futex_wait(_Atomic uint32_t *, uint32_t seen, uint64_t until_ns);
void bpi_futex_wake(_Atomic uint32_t *, int count);
/* Something became evictable, or free: if anybody starves, let one look again. */
void bpi_release_notify(bp_pool *);
/*
 * Between these a thread that waits for pins to go is told: puts look at what they let go of. What the caller finds
 * after bpi_puts_watch() is what it may wait for. No lock is held.
 */
void bpi_puts_watch(bp_pool *);
void bpi_puts_unwatch(bp_pool *);

/* A latch was taken for nothing. */
static inline void latch_drop(struct frame *f)
{
    if (frame_let_be(f) & FRAME_WAITERS)
        bpi_frame_wake(f);
}

/*
 * Somebody just excluded readers from a frame: that stands only if none of them reads it in a run (R15). false: the
 * latch is gone again, and what it was for has to wait a little.
 */
static inline bool latch_stands(const bp_file *file, uint64_t page, struct frame *f)
{
    if (likely(!index_is_held(&file->index, page)))
        return true;
    latch_drop(f);
    return false;
}

/* ---- channel.c ---- */
int bpi_channel_assign(bp_session *);
void bpi_channel_release(bp_session *);
/* 0; -ETIMEDOUT: a read does not end; its channel and the frames must stay for ever. */
int bpi_channels_close(bp_pool *);
/* Up to `most` requests that are free, a list. */
struct read *bpi_reads_take(struct channel *, unsigned most);
/* Back, unused: nobody has seen them. */
void bpi_reads_give(struct channel *, struct read *list);
/* These are over: tell the operations that wait for them (reaper: who calls), and give them back. */
void bpi_reads_end(struct channel *, struct read *const[], unsigned n, bp_session *reaper);
/* First use of a slab in this channel: register it if it is complete and the cap allows. enum slab_registration */
uint8_t bpi_channel_register(struct channel *, unsigned slab);
/* First read of a file in this channel: register it. enum slab_registration */
uint8_t bpi_channel_register_file(struct channel *, const bp_file *);
/* A file of which no read is under way, nor will be: no channel keeps it any more. */
void bpi_channels_forget_file(bp_pool *, const bp_file *);
/* A read into a registered slab failed for that reason: reads into this one are plain from now on. */
void bpi_channel_refuse_buffer(struct channel *, uint32_t frame);
/*
 * A slab that drains: no channel has it registered any more. Reads that are queued or under way are not disturbed (one that
 * names the slot in vain is made again, plain). 0, or what the first ring answered that could not let go; retry.
 */
int bpi_channels_unregister(bp_pool *, unsigned slab);
/* Registrations of slabs, summed over channels. */
uint64_t bpi_channels_registered(bp_pool *);
/*
 * Complete what has arrived; if nothing has, wait up to timeout_ns for something, or for the change of a word (until;
 * may be NULL). Returns the number of reads completed by this caller; others may have completed some too. `s` (may be
 * NULL) is the session on whose account.
 */
unsigned bpi_channel_help(struct channel *, bp_session *s, struct counters *, unsigned want, uint64_t timeout_ns,
                          const struct io_until *until);

/* ---- fault.c ---- */
enum step {
    STEP_PINNED,  /* pinned and latched as wanted */
    STEP_JOINED,  /* pinned; the read is under way */
    STEP_LATCHED, /* someone holds it in a mode that excludes ours; wait for target.head's word to move */
    STEP_FRAMES,  /* no frame could be had now */
    STEP_READS    /* the channel has no request left */
};
struct target {
    uint32_t frame; /* of the page */
    uint32_t head;  /* of its extent */
    uint64_t seen;  /* the head's state word */
};
/* One attempt at a page, without waiting. enum step, or a negative code with the session's text set. */
int bpi_step(bp_session *, bp_file *, uint64_t page, enum bp_mode, struct target *);
/*
 * The same, shared, for many in a row: reads may be kept for the next submission until bpi_step_end, which comes before
 * the caller waits for anything or returns (R6). Those that cannot be queued are found ABANDONED.
 */
int bpi_step_held(bp_session *, bp_file *, uint64_t page, struct target *);
void bpi_step_end(bp_session *);
/* Until the read of a joined frame is over, or the deadline. Helps in its channel, whoever submitted. */
void bpi_read_wait(bp_session *, uint32_t head, unsigned want, uint64_t deadline_ns);
/* The outcome of a joined read that is no longer under way: 0, or the error; then the pin is gone. */
int bpi_joined_result(bp_session *, bp_file *, uint64_t page, uint32_t head);
/*
 * Until the word moves that keeps us from latching it, or a little while: look again. And what the caller says when the
 * deadline is over.
 */
void bpi_latch_wait(bp_session *, const struct target *, uint64_t deadline_ns);
int bpi_latch_give_up(bp_session *, bp_file *, uint64_t page, uint32_t head);
int bpi_frames_give_up(bp_session *);
/* The pin of a finished read becomes the latch wanted. 0, -EAGAIN: it could not, and the pin is gone. */
int bpi_settle_mode(bp_session *, bp_file *, uint64_t page, enum bp_mode, uint32_t head);
/* Refresh the size of a file; BP_EOF if page still lies past the end. */
int bpi_file_reaches(bp_file *, uint64_t page);

/* A read of extents that are in the index goes into the channel's queue; a[]: one for each of them. */
void bpi_read_queue(bp_session *, bp_file *, uint64_t page, struct read *, const struct arrival a[]);

/*
 * Frames for an extent of this order; of a lower one, in *order, where that cannot be had. 0; -EAGAIN: none now; or an
 * error.
 */
int bpi_frames_for(bp_session *, bp_file *, unsigned *order, uint32_t *head);

/* ---- run.c ---- */
#define READ_RUN_PAGES 64u
/*
 * Begin to read up to n pages (as many as lie in one leaf) into frames that are free, each page an extent of its own,
 * with one request. None of them should be there. Returns how many, from the first on; the session has a pin on each, as
 * of STEP_JOINED; *head is the first one's frame, and the others' follow. 0: it cannot be done so; page by page it may.
 */
unsigned bpi_run_start(bp_session *, bp_file *, uint64_t page, unsigned n, uint32_t *head);

/* ---- complete.c ---- */
#define ABANDONED (-EAGAIN) /* as a frame's error: no read was made of it; look the page up again */
/* Let go of a pin, whatever became of the frame. */
void bpi_unpin(bp_pool *, uint32_t head);
/* Drop an extent that we latched exclusively and that the index no longer has. */
void bpi_frame_release(bp_pool *, uint32_t head);
/* Finished requests have been reaped: n of them, at most REAP_BATCH. */
void bpi_reads_complete(struct channel *, struct io_request *const[], unsigned n, bp_session *, struct counters *);
/* The read of a page that is in the index is over, with this error. */
void bpi_read_failed(struct read *, int error, bp_session *, struct counters *);
/* A page was published and is not wanted: somebody else's extent is in the index. Uses up the pin of frame_publish. */
void bpi_read_abandon(struct read *, bp_session *);

/* ---- point.c ---- */
/* Exact frame of a page if it is present and agrees, else FRAME_NONE; *head and *seen are its extent's. */
uint32_t bpi_examine(const bp_session *, const bp_file *, uint64_t page, uint32_t frame, uint32_t *head,
                     uint64_t *seen);
int bpi_get_slow(bp_session *, bp_file *, const uint64_t page[], unsigned n, enum bp_mode, struct bp_ref[]);
/* Of an exclusive ref: let go, changed or not. */
void bpi_put_exclusive(struct bp_ref *, bool dirty);

/* Its extent's first frame. */
static inline uint32_t ref_head(const bp_session *s, const struct bp_ref *ref)
{
    return (uint32_t)((const struct frame *)(const void *)ref->state - s->frame);
}

static inline void ref_set_head(const bp_session *s, struct bp_ref *ref, uint32_t head)
{
    ref->state = (uint64_t *)(void *)&s->frame[head].state;
}

/* The ref of a page that is pinned or latched as `mode` says. */
static inline void ref_fill(bp_session *s, uint64_t page, enum bp_mode mode, const struct target *t, struct bp_ref *ref)
{
    uint32_t inside = t->frame - t->head;

    ref->data = frame_data(s, t->frame);
    ref->page = page;
    ref->bytes = ((1u << frame_order(t->seen)) - inside) << BP_PAGE_SHIFT;
    ref->session = s;
    ref_set_head(s, ref, t->head);
    ref->mode = mode;
    if (mode == BP_EXCLUSIVE)
        atomic_store_explicit(&s->pool->cold[t->head].holder, s->number, memory_order_relaxed);
    counter_add(&s->refs, 1);
}

/* ---- span.c ---- */
struct pinned {
    uint32_t frame; /* of the page */
    uint32_t head;  /* of its extent, which has a pin of ours */
    uint32_t pages; /* from the page to the end of its extent */
};
/*
 * Pin, shared, the extents that are there from page on without a gap, up to the one with `last`, `most` at the most; how
 * many. Waits for nothing. Each counts as a ref of the session. warm: they are in use; else only passed.
 */
unsigned bpi_span_pin(bp_session *, const bp_file *, uint64_t page, uint64_t last, unsigned most, bool warm,
                      struct pinned[]);

/* One of these pins is over. Nobody is told (R12). */
static inline void span_unpin(bp_session *s, uint32_t head)
{
    counter_add(&s->puts, 1);
    frame_unpin(&s->frame[head]);
}

/* ---- copy.c ---- */
/* Where a range of bytes ends: *end is at most the end of the file. 0 or an error, with the session's text. */
int bpi_range_end(bp_session *, bp_file *, uint64_t offset, size_t len, uint64_t *end);

/* ---- readahead.c ---- */
/*
 * A miss of a reader at this page. All that most of them cost is this look at the slot before theirs.
 */
static inline void ahead_missed(bp_session *s, bp_file *file, uint64_t page)
{
    uint64_t before = (page & ~extent_mask(file->order)) - 1;

    if (before < BP_PAGE_MAX && file->finds_streams && !s->ahead_mark && !s->ahead_known &&
        entry_is_frame((before + 1) % INDEX_SLOTS ? index_guess(&file->index, before)
                                                  : bpi_index_load(&file->index, before)))
        bpi_ahead_look(s, file, before + 1);
}

/* What a hit has noted. */
static inline void ahead_check(bp_session *s)
{
    if (unlikely(s->ahead_file != NULL))
        bpi_ahead_go(s);
}

/* ---- evict.c ---- */
/* Frames of an extent of this order: 0; -EAGAIN: none can be had now. Never waits. */
int bpi_frame_take_slow(bp_session *, unsigned order, uint32_t *frame);
/* The same; what was taken ahead for a group comes first. */
static inline int bpi_frame_take(bp_session *s, unsigned order, uint32_t *frame)
{
    if (order || !s->spare_frames)
        return bpi_frame_take_slow(s, order, frame);
    *frame = s->spare_frame[--s->spare_frames];
    return 0;
}

/*
 * A file at its ceiling: a frame from one of its own cold pages. false: none was found in a bounded search, or it may take
 * others'.
 */
bool bpi_evict_own(bp_session *, bp_file *, uint32_t *frame);
/* What was taken ahead for a group goes back to the magazine. */
void bpi_spare_frames_give(bp_session *);
void bpi_frame_give(bp_pool *, uint32_t frame, unsigned order);
void bpi_magazine_flush(bp_session *);
/* Of all sessions. */
void bpi_magazines_flush(bp_pool *);
/* This very extent goes, whose word was `seen`, unless somebody has it; its frames go home. */
bool bpi_evict_this(bp_session *, uint32_t head, uint64_t seen);
/* Pages that came, published and pinned by this session: into the queues. */
void bpi_admit(bp_session *, const struct arrival[], unsigned n);
/* Node memory for an insert; evicts extents and shadows where the node limit is reached. 0 or -ENOMEM. */
int bpi_nodes_reserve(bp_session *);
/* "all 256 frames pinned: ...": who holds what. */
void bpi_describe_holders(bp_pool *, char *text, size_t size);

/* ---- move.c ---- */
/*
 * An extent moves from the frames that begin with head, whose word was `seen`, to as many that begin with `to` and are
 * the caller's. 0: the old frames are the caller's now; -EAGAIN: somebody has it, or it is not what it was, nothing has
 * changed. The lock of the session's magazine is held.
 */
int bpi_extent_move(bp_session *, uint32_t head, uint64_t seen, uint32_t to);

/* ---- resize.c ---- */
#define FRAMES_MIN 16u /* of a pool */
/*
 * Slabs leave until so many frames have memory, at the most. Waits for what is pinned up to wait_ns without success; 0:
 * never. 0; -EBUSY: it did not come that far; -ENOMEM. The caller has made `resizing` 1, and no lock is held.
 */
int bpi_shrink(bp_pool *, uint32_t frames, uint64_t wait_ns);
/* `resizing` is 0 again. */
void bpi_resize_end(bp_pool *);

/* ---- budget.c ---- */
/* Frames that a budget of so many bytes allows, beside what else it is for; 0: less than FRAMES_MIN. */
uint32_t bpi_budget_frames(bp_pool *, uint64_t bytes);
/* The other way round: the least that allows so many frames. */
uint64_t bpi_budget_bytes(bp_pool *, uint32_t frames);
/* From now on; what has more memory already keeps it. The caller is the one who resizes. */
void bpi_budget_set(bp_pool *, uint64_t bytes, uint32_t frames);
/*
 * The nodes of the index are used up: some frames less, and nodes for it. true: look again; false: not now. No lock is
 * held. Waits some milliseconds at the most, for another one that does the same.
 */
bool bpi_budget_trade(bp_pool *);
/* As many nodes as are shared, and what sessions have in stock. pool.lock is held, or nobody else is there. */
void bpi_budget_nodes(bp_pool *);
/* Memory of a channel, and of the array of leaves of one file. */
uint64_t bpi_channel_bytes(const bp_pool *);
uint64_t bpi_leaves_bytes(uint32_t nodes);
/* The statistics that begin with memory_. */
void bpi_budget_stats(bp_pool *, struct bp_stats *);

/* ---- compact.c ---- */
/*
 * A free block of this order, by moving what lies in it to other frames that are free; nothing is evicted. false: not
 * that much is free, or nowhere. The lock of the session's magazine is held.
 */
bool bpi_compact(bp_session *, unsigned order, uint32_t *block);

/* ---- turn.c ---- */
/* Whether this session may take frames now: nobody waits who came before s->since_ns. */
bool bpi_frame_turn(const bp_session *);
/* Wait in order for a frame, which the session keeps for its next miss; or until the deadline. */
void bpi_turn_wait(bp_session *, uint64_t deadline_ns);
/* The call that waited is over: give back what its misses did not take. */
void bpi_turn_end(bp_session *);
/* A frame that the session has set aside, by waiting or by bp_reserve. false: none. */
bool bpi_aside_take_slow(bp_session *, uint32_t *frame);
static inline bool bpi_aside_take(bp_session *s, uint32_t *frame)
{
    return (s->turn_kept || s->reserved_count) && bpi_aside_take_slow(s, frame);
}

/* Something was released: the first of those who wait looks again. */
void bpi_turn_call(bp_pool *);
/* Complete all reads that have ended. */
void bpi_reap_everywhere(bp_session *);

/* ---- write.c ---- */
/* An extent that the caller has latched exclusively is not going to be written: before it is unbound. */
void bpi_dirty_forget(bp_file *, uint32_t head);
/*
 * What is known of the changes of a dirty extent that is copied to other frames: there as well, before the index leads
 * there. And gone from those that have lost it and were unbound.
 */
void bpi_dirty_copy(bp_pool *, uint32_t from, uint32_t to);
void bpi_dirty_clear(bp_pool *, uint32_t head);
/*
 * Who is about to change a page of a file that is written, while much is dirty: goes on at once, a little later, or when
 * less is dirty. 0; -EBUSY: not before the deadline.
 */
int bpi_write_throttle(bp_session *, bp_file *, uint64_t deadline_ns);
/* Is that for this caller to ask? Relaxed: a limit, nothing is ordered by it. */
static inline bool write_is_much(const bp_file *file)
{
    return file->write &&
           unlikely(atomic_load_explicit(&file->pool->dirty_pages, memory_order_relaxed) > dirty_slow(file->pool));
}
/* Has he to wait? For callers who cannot, and come again. */
static inline bool write_is_stopped(const bp_session *s, const bp_file *file)
{
    return write_is_much(file) && !session_refs(s) &&
           atomic_load_explicit(&file->pool->dirty_pages, memory_order_relaxed) > dirty_trigger(file->pool);
}
/* The end of a file as far as its changes go, bytes; 0 if it is not written. */
static inline uint64_t file_end(const bp_file *file)
{
    return atomic_load_explicit(&file->end, memory_order_relaxed);
}

/* ---- writeback.c ---- */
/* The thread that writes, and what it knows of a file, before the file can be used. */
int bpi_writer_open(bp_pool *);
int bpi_writer_file(bp_file *);
/* All files are closed. -ETIMEDOUT: the device does not answer. */
int bpi_writer_close(bp_pool *);
/* Eviction met what is dirty: write some of it. More than the target is dirty. */
void bpi_write_ask(bp_pool *);
void bpi_write_target(bp_pool *);
/* "; 12 of these frames dirty, ..." and why they are not written; nothing if nothing is dirty. */
void bpi_write_describe(bp_pool *, char *text, size_t size);
void bpi_write_stats(bp_pool *, struct bp_stats *);
/* What it writes with, and why not with registered buffers. */
void bpi_write_cap(bp_pool *, struct bp_cap *);
/* Last close of a file that was opened for writing: all of it is on disk, or given up, and no write of it under way. */
int bpi_write_finish(bp_file *, struct bp_error *);
/* It is not closed after all. */
void bpi_write_resume(bp_file *);

/* ---- async.c ---- */
/* Hand operations whose read is over to their sessions. The lock of the read's channel is held. */
void bpi_operations_ready(struct operation *, bp_session *reaper);
void bpi_operations_close(bp_session *);

/* ---- pool.c ---- */
/* bp_pool_open with another I/O layer; for tests. io NULL: as options.io says. */
BP_NODISCARD int bpi_pool_open(const struct bp_pool_options *, const struct io_ops *io, bp_pool **);
static inline bool bpi_forked(const bp_session *s)
{
    return unlikely(!s->frame);
}
bool bpi_pool_forked(const bp_pool *);
/* Node of a session: where its thread runs now, a few instructions. For who is about to take frames. */
static inline unsigned session_node(bp_session *s)
{
    if (!s->node_fixed)
        s->node = bpi_topology_here(&s->pool->topology);
    return s->node;
}
/* A pool with options.strict: 0, or what cannot be had, with options.error set. */
int bpi_pool_insist(bp_pool *);
/* The number of sessions has changed: what each may have in stock. pool.lock is held, or nobody else is there. */
void bpi_pool_share_out(bp_pool *);
/* An extent goes, dirty or not, or only if it is not; false: not yet, look at the index again. May wait a little. */
bool bpi_extent_drop(bp_file *, const struct index_item *, bool dirty);
/* Drop everything of a file, dirty or not. -EBUSY: pinned extents, nothing dropped (count in *pinned). */
int bpi_file_drop(bp_file *, uint64_t *pinned);

#endif
