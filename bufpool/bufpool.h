/* SPDX-License-Identifier: MIT */
/*
 * bufpool: a buffer pool for people who build storage engines.
 *
 * It keeps parts of files in memory, in extents of 4 KiB to 2 MiB, finds them through a multi-order
 * radix tree, and reads them with io_uring into huge pages. A hit writes nothing that is shared.
 *
 * Know this before you start
 * - A page is 4 KiB of a file and the unit of addressing; page numbers are below 2^51.
 * - Files are opened for reading, or with bp_file_options.write for both. Nothing stops another process from
 *   writing a file the pool has cached, and the pool does not notice: what is cached stays as read.
 *   A file that grew is noticed when a page past the old end is asked for, or by bp_file_size().
 * - A session belongs to one thread at a time. Open one per thread; it is cheap.
 * - After fork() the child owns nothing of the pool: every call there answers BP_FORKED.
 * - Every wait ends: at the deadline of bp_pool_options.wait_ms, with an error. Nothing spins for ever.
 * - The library never prints, never exits, installs no signal handler and changes no signal mask.
 * - A view (bp_read) may show torn bytes until bp_view_valid() has said yes: copy or compute first,
 *   believe afterwards, and follow no pointer or length found in it before that.
 *
 * The life of a page
 *   absent   --bp_read/bp_get-->  a frame is taken (free, or evicted from another page), the frame is
 *                                 entered in the file's index, and the read is submitted
 *   reading  --completion----->   present; everybody who asked meanwhile is answered by the one read
 *   present  --bp_read-------->   a view: pointer and version, nothing pinned, nothing written
 *   present  --bp_get--------->   a ref: pinned, shared or exclusive, until bp_put
 *            --bp_put_dirty--->   dirty: stays in memory until it was written, as it was then
 *   present  --pressure------->   evicted if unpinned and cold; a shadow in the index remembers when
 *
 * Three things you open: a pool, a file, a session. Two things you hold: a view, a ref.
 *
 *   struct bp_pool_options po = {.size = sizeof(po), .memory = 256 << 20};
 *   bp_pool *pool;  bp_file *file;  bp_session *me;  struct bp_ref ref;
 *   if (!bp_pool_open(&po, &pool) && !bp_file_open(pool, "data", NULL, &file) &&
 *       !bp_session_open(pool, NULL, &me) && !bp_get(me, file, 42, BP_SHARED, &ref)) {
 *       use(ref.data, 4096);
 *       bp_put(&ref);
 *   }
 *
 * When all frames are pinned or being read, who needs one waits in the order in which the calls began; bp_reserve()
 * takes several at once.
 *
 * Results: 0 or a positive answer where the call says so, else a negative code: a negative errno where
 * one fits, or one of enum bp_code. "Retry" below means that the same call can succeed later without
 * the caller changing anything. Out-parameters come last, are written on success, and hold nothing to be
 * used after an error unless the call says otherwise. Where a file, a page or a holder is to blame, bp_session_error()
 * or the bp_error given in the options names it.
 */
#ifndef BUFPOOL_H
#define BUFPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h> /* struct iovec */

#ifdef __cplusplus
extern "C" {
#endif

#define BP_VERSION_MAJOR 0
#define BP_VERSION_MINOR 1
#define BP_VERSION_PATCH 0

#define BP_PAGE_SHIFT 12
#define BP_PAGE_SIZE  4096u        /* bytes of a page */
#define BP_PAGE_MAX   (1ull << 51) /* page numbers are below this */
#define BP_ORDER_MAX  9            /* largest extent: 2^9 pages, 2 MiB */
#define BP_MEMORY_MIN (1u << 20)   /* smallest pool, bytes */

#if defined(__GNUC__)
#define BP_API       __attribute__((visibility("default")))
#define BP_NODISCARD __attribute__((warn_unused_result))
#else
#define BP_API
#define BP_NODISCARD
#endif

typedef struct bp_pool bp_pool;
typedef struct bp_file bp_file;
typedef struct bp_session bp_session;

/* ---- errors ------------------------------------------------------------------------------------ */

/*
 * Codes of our own, outside the range of errno. Errnos that the calls return, negated:
 *   EBUSY      a latch or a frame was not to be had before the deadline; retry, or release something
 *   ETIMEDOUT  the device did not answer a read before the deadline; retry
 *   ENOMEM     the system refused memory
 *   EINVAL     an argument is wrong; the detail text says which
 *   EIO, ...   what the device or the file system answered to a read, or the file's owner (bp_file_options.verify);
 *              see "damage"
 */
#define BP_ERROR_TABLE(X)                                                                                \
    X(BP_EOF, -10001, "the page lies past the end of the file")                                          \
    X(BP_FORKED, -10002, "this process is a fork of the one that opened the pool")                       \
    X(BP_CLOSED, -10003, "the pool is being closed")                                                     \
    X(BP_LIMIT, -10004, "too many operations are under way in this session; poll first")                 \
    X(BP_MISMATCH, -10005, "the program was compiled with the header of another version of the library") \
    X(BP_MOVED, -10006, "the page has changed since it was looked at; look again")

enum bp_code {
#define BP_ERROR_ENUM(name, value, text) name = value,
    BP_ERROR_TABLE(BP_ERROR_ENUM)
#undef BP_ERROR_ENUM
        BP_PENDING = 1 /* bp_get_start: not an error; the answer comes through bp_poll */
};

/* A text for any code this library returns. Static storage; never NULL; thread safe. */
BP_API const char *bp_strerror(int code);

/* What went wrong, in words, for calls that have no session to ask. Owned by the caller. */
struct bp_error {
    int code;
    char text[248]; /* NUL-terminated, one line: what was asked, what was found, what to do */
};

/* Version of the library at run time: major << 16 | minor << 8 | patch. */
BP_API unsigned bp_version(void);

/* ---- the pool ---------------------------------------------------------------------------------- */

enum bp_choice { BP_TRY = 0, BP_ON = 1, BP_OFF = 2 }; /* try: step down quietly, told by bp_pool_caps */
enum bp_io {
    BP_IO_TRY = 0,
    BP_IO_URING = 1,
    BP_IO_PSYNC = 2,
    BP_IO_NULL = 3 /* no device: for replays and tests; see bp_file_options.null_bytes */
};

/*
 * Which pages give way. RECENT keeps those used last, near to LRU. STABLE keeps those that have come back soonest, and
 * gives newcomers a hundredth of the pool: scans and loops longer than the pool. AUTO: whichever misses less now.
 */
enum bp_policy { BP_POLICY_AUTO = 0, BP_POLICY_RECENT = 1, BP_POLICY_STABLE = 2 };

/*
 * Which NUMA node's memory a session gets. `nodes` names nodes by the system's numbers, a bit each (up to 63).
 *   LOCAL       of the node its thread runs on, or if nodes are named of the nearest of those; others when that has no more
 *   INTERLEAVE  of the nodes named (0: all) in turn; others when these have no more
 *   BIND        of the nearest of the nodes named, and of no others: when they have no more, pages give way
 * What the memory of another node had to serve is counted (frames_spilled, frames_strayed).
 */
enum bp_place { BP_PLACE_LOCAL = 0, BP_PLACE_INTERLEAVE = 1, BP_PLACE_BIND = 2 };

/*
 * Set size to sizeof(struct bp_pool_options) and everything not of interest to 0. Fields added by later
 * versions come at the end, and 0 always means the default.
 */
struct bp_pool_options {
    size_t size;
    uint64_t memory;           /* bytes for everything: frames, descriptors, index. At least BP_MEMORY_MIN */
    enum bp_choice huge;       /* huge pages: BP_ON fails the open rather than use 4 KiB pages */
    enum bp_io io;             /* BP_IO_URING fails the open rather than use pread */
    uint32_t wait_ms;          /* deadline of every wait, milliseconds; 0: 10,000 */
    uint32_t channels_max;     /* io_uring rings at the most; sessions beyond share. 0: 4 per CPU */
    uint64_t registered_max;   /* bytes of frames registered with each ring; 0: 1 GiB. Costs grow with its square */
    enum bp_choice registered; /* BP_OFF: plain reads only */
    uint32_t psync_threads;    /* threads that serve bp_get_start where io_uring is not used; 0: 8 */
    void (*log)(void *ctx, const char *line); /* diagnostics, one line each, any thread; NULL: none */
    void *log_ctx;
    struct bp_error *error; /* filled in when the open fails; may be NULL */
    /*
     * One line through log when callers have waited for frames and none of them got one for so long; repeated after
     * as long again at the earliest. Milliseconds; 0: 5,000; UINT32_MAX: never.
     */
    uint32_t watchdog_ms;
    uint32_t frames_max; /* frames at the most, for replays and tests of pools that are smaller than the least memory;
                            0: as many as memory allows */
    enum bp_policy policy;
    uint32_t sample_pages; /* pages of each of the small pools that say which policy misses less, and what other sizes
                              would do: more are more exact, each costs 1.2 KiB of memory, and every access to a page
                              of the sample some hundred instructions. Up to 8,192; 0: as suits the pool */
    uint64_t memory_max; /* bytes that bp_pool_resize may go up to: address space for as much is reserved. 0: memory */
    /*
     * Percent of the frames, 90 at the most. When more than the target are dirty, some are written in the background; 0: 10.
     * On the way from there to the trigger, exclusive gets, creates and upgrades of files that are written are slowed, and
     * above it they wait (EBUSY at the deadline), but for sessions that hold a ref: what has begun can end; 0: 40.
     */
    uint32_t dirty_target, dirty_trigger;
    enum bp_place place;
    uint64_t nodes; /* see enum bp_place; 0: all. EINVAL: one of them is not there, or has no memory for this process */
    /*
     * Every BP_TRY is BP_ON, BP_IO_TRY is BP_IO_URING, also for the files of this pool, and memory that must not be locked
     * for registering or must not be placed fails the open (ENOTSUP). The text names what is missing.
     */
    bool strict;
};

/*
 * Open a pool. Reserves address space and touches almost none of it: memory is placed, populated and
 * registered when frames are first needed. EINVAL: an option is wrong; ENOMEM: memory is larger than
 * this machine's, or address space ran out; ENOTSUP: BP_ON or BP_IO_URING cannot be had. Thread safe.
 */
BP_API BP_NODISCARD int bp_pool_open(const struct bp_pool_options *, bp_pool **);

/*
 * Close a pool: waits for reads under way, closes its files, gives its memory back. EBUSY: sessions are
 * still open (or refs held); nothing was closed, the text (error may be NULL) names the holders; retry
 * after they are closed. What bp_file_close answers if a file cannot be written: that one and those behind it are still
 * open. The pool must not be used by another thread during or after a close that succeeds.
 */
BP_API BP_NODISCARD int bp_pool_close(bp_pool *, struct bp_error *error);

/*
 * Change the budget of a pool in use, between BP_MEMORY_MIN and memory_max. More is at once allowed, and taken when it is
 * needed. Less is given back before this returns: what lies in the memory that goes is moved elsewhere, and the coldest
 * pages are evicted to make room; nothing that is pinned, latched, being read or dirty goes. *achieved (may be NULL) is the
 * budget from now on, in bytes. 0; -EBUSY: some of it could not be freed in wait_ms after the last that could, *achieved
 * says how far it came, and the pool goes on with that: retry; -EINVAL: not between the two; -ENOMEM. Several calls at once
 * come one after the other. Thread safe.
 */
BP_API BP_NODISCARD int bp_pool_resize(bp_pool *, uint64_t bytes, uint64_t *achieved);

/*
 * One facility of the machine: what was asked for, what is used, why, and what would change it. "io", "registered
 * buffers", "locked memory", "huge pages", "hugetlb", "transparent huge pages", "placement", "direct I/O", "memory".
 */
struct bp_cap {
    const char *name;
    const char *asked;
    const char *got;
    char reason[120]; /* empty where got is what was asked */
    char remedy[120];
};
/* Fill in up to n; returns how many there are. The names and words are static. Thread safe. */
BP_API int bp_pool_caps(bp_pool *, struct bp_cap cap[], int n);

/*
 * A slab: the unit in which memory is placed on a NUMA node, populated, registered with rings, and given back. Bytes of a
 * reserved one are address space.
 */
struct bp_slab {
    const char *state;               /* "reserved", "placed" (memory in part), "populated", "draining", "leaving" */
    const char *backing;             /* "hugetlb", "transparent", "small"; the least of its parts. "": reserved */
    int node;                        /* the system's number of the NUMA node; -1: reserved */
    uint32_t rings;                  /* that have registered it */
    uint64_t bytes, populated, free; /* free: populated, and holding no page; stocks of sessions are not in it */
};
/*
 * Fill in the first n; returns how many there are, free slabs of the maximum included. A snapshot slab by slab; takes some
 * microseconds for each. Thread safe.
 */
BP_API int bp_pool_slabs(bp_pool *, struct bp_slab slab[], int n);

/* Every statistic, once: field, unit, kind (counter only grows; gauge moves), text. */
#define BP_STATS_TABLE(X)                                                                      \
    X(hits, "requests", COUNTER, "page requests answered from memory")                         \
    X(misses, "requests", COUNTER, "page requests that started a read")                        \
    X(joins, "requests", COUNTER, "page requests that waited for a read already under way")    \
    X(refaults, "requests", COUNTER, "misses that found a shadow of an earlier eviction")      \
    X(evictions, "extents", COUNTER, "extents evicted")                                        \
    X(evict_examined, "frames", COUNTER, "frames looked at by eviction")                       \
    X(frame_waits, "requests", COUNTER, "times a caller had to wait for frames")               \
    X(reads, "reads", COUNTER, "reads answered by the device")                                 \
    X(read_bytes, "bytes", COUNTER, "bytes read from the device")                              \
    X(read_errors, "reads", COUNTER, "reads that failed")                                      \
    X(read_continued, "reads", COUNTER, "reads continued after a short or interrupted answer") \
    X(read_fixed, "reads", COUNTER, "reads that used a registered buffer")                     \
    X(busy, "requests", COUNTER, "requests that ended at the deadline")                        \
    X(memory_limit, "bytes", GAUGE, "the budget, as bp_pool_resize left it")                   \
    X(memory_frames, "bytes", GAUGE, "frames populated so far")                                \
    X(memory_descriptors, "bytes", GAUGE, "frame descriptors in use")                          \
    X(memory_index, "bytes", GAUGE, "index nodes, in use or for later use")                    \
    X(frames_total, "frames", GAUGE, "frames the budget allows")                               \
    X(frames_populated, "frames", GAUGE, "frames that have memory")                            \
    X(frames_free, "frames", GAUGE, "populated frames that hold no page")                      \
    X(frames_reserved, "frames", GAUGE, "of these, set aside by bp_reserve or for who waited") \
    X(frame_waiters, "callers", GAUGE, "callers that wait for frames now")                     \
    X(frames_pinned, "frames", GAUGE, "extents pinned by refs, counted once per ref")          \
    X(slabs_hugetlb, "slabs", GAUGE, "slabs on hugetlb pages")                                 \
    X(slabs_thp, "slabs", GAUGE, "slabs on transparent huge pages")                            \
    X(slabs_small, "slabs", GAUGE, "slabs on 4 KiB pages")                                     \
    X(slabs_registered, "slabs", GAUGE, "slab registrations, summed over rings")               \
    X(index_nodes, "nodes", GAUGE, "index nodes in use")                                       \
    X(sessions, "sessions", GAUGE, "sessions open")                                            \
    X(files, "files", GAUGE, "files open")                                                     \
    X(channels, "channels", GAUGE, "rings (or their stand-ins) open")                          \
    X(whatif_half, "ppm", GAUGE, "estimated hits per million requests with half the frames")   \
    X(whatif_1, "ppm", GAUGE, "for as many as there are")                                      \
    X(whatif_2, "ppm", GAUGE, "for twice as many")                                             \
    X(whatif_4, "ppm", GAUGE, "for four times as many")                                        \
    X(whatif_8, "ppm", GAUGE, "for eight times as many")                                       \
    X(policy_recent, "mode", GAUGE, "1: RECENT, 0: STABLE; see enum bp_policy")                \
    X(frames_moved, "frames", COUNTER, "frames whose pages were moved to other ones")          \
    X(creates, "extents", COUNTER, "extents made without a read")                              \
    X(writes, "writes", COUNTER, "writes answered by the device")                              \
    X(write_bytes, "bytes", COUNTER, "bytes written to the device")                            \
    X(write_extents, "extents", COUNTER, "extents written, alone or with neighbours")          \
    X(write_stale, "extents", COUNTER, "of these, changed again meanwhile, and still dirty")   \
    X(write_errors, "writes", COUNTER, "writes that failed, after their retries")              \
    X(write_retries, "writes", COUNTER, "writes tried again, or continued")                    \
    X(write_asked, "requests", COUNTER, "times eviction asked for writes")                     \
    X(log_flushes, "calls", COUNTER, "calls of flush_log")                                     \
    X(log_errors, "calls", COUNTER, "of these, failed")                                        \
    X(syncs, "syncs", COUNTER, "syncs answered by the device, each for all who waited")        \
    X(sync_errors, "syncs", COUNTER, "of these, failed")                                       \
    X(dirty_slowed, "requests", COUNTER, "times a caller was slowed, near to dirty_trigger")   \
    X(dirty_stopped, "requests", COUNTER, "times one had to wait for writes, above it")        \
    X(dirty_overshoot, "requests", COUNTER, "times one went on above it, since it held refs")  \
    X(dirty_pages, "pages", GAUGE, "pages with changes that are not on disk")                  \
    X(frames_spilled, "frames", COUNTER, "frames of another NUMA node than asked")             \
    X(frames_strayed, "frames", GAUGE, "frames that lie on another node than their slab")      \
    X(pages_damaged, "pages", GAUGE, "pages known to be bad, not read again for a while")      \
    X(memory_policy, "bytes", GAUGE, "queues of replacement, and the small pools")             \
    X(memory_io, "bytes", GAUGE, "rings and their requests")                                   \
    X(memory_sessions, "bytes", GAUGE, "sessions")                                             \
    X(memory_leaves, "bytes", GAUGE, "arrays of leaves of open files, at the most")            \
    X(reads_ahead, "extents", COUNTER, "extents read before anybody asked for them")

struct bp_stats {
    size_t size; /* set by the caller to sizeof(struct bp_stats) */
#define BP_STATS_FIELD(name, unit, kind, text) uint64_t name;
    BP_STATS_TABLE(BP_STATS_FIELD)
#undef BP_STATS_FIELD
};

/*
 * Sum the counters of all sessions, past and present, and read the gauges. Cost grows with the number of
 * sessions, not with the pool. A snapshot, not a transaction. Thread safe.
 */
BP_API int bp_pool_stats(bp_pool *, struct bp_stats *);

enum bp_stat_kind { BP_STAT_COUNTER, BP_STAT_GAUGE };
/* The i-th statistic, for exporters; returns false past the last. Strings are static. */
BP_API bool bp_stats_item(const struct bp_stats *, unsigned i, const char **name, const char **unit,
                          enum bp_stat_kind *kind, const char **text, uint64_t *value);

/*
 * Check the pool's invariants while it is in use: every index entry leads to a frame that agrees, every
 * frame is bound at most once, free + bound + held = populated. 0, or EUCLEAN with the first
 * disagreement in error (may be NULL). Slow; for tests and for the curious. Thread safe.
 */
BP_API int bp_pool_check(bp_pool *, struct bp_error *error);

/*
 * Record which pages the program asks for: a block trace, to be replayed (bufpool-replay) at other sizes. A ring in
 * memory keeps the latest accesses; somebody reads them from time to time. Recorded is a sample of the pages, the same
 * ones every time, and of these every access: replay it in a pool of 1/one_in of the size. An access that waited for a
 * read under way counts as a hit; of a larger extent the first page stands for all. A hit of a page in the sample costs
 * a lock meanwhile, others what they always do.
 */
struct bp_trace_options {
    size_t size;
    uint32_t one_in;  /* record one page in so many; 0: all */
    uint32_t entries; /* of the ring: a power of two or the next one, up to 2^26; 0: 65,536 */
};
enum bp_trace_kind { BP_TRACE_HIT, BP_TRACE_MISS };
struct bp_trace_entry {
    const bp_file *file; /* which of the files; it may be closed by now */
    uint64_t page;
    enum bp_trace_kind kind;
};
/* Options may be NULL. EALREADY: it is being recorded; ENOMEM, EINVAL. Thread safe, as the others. */
BP_API BP_NODISCARD int bp_pool_trace_start(bp_pool *, const struct bp_trace_options *);
/*
 * Take up to n entries out of the ring, oldest first; how many. *lost (may be NULL): entries since the start that were
 * overwritten before they were read. EINVAL: nothing is being recorded.
 */
BP_API int bp_pool_trace_read(bp_pool *, struct bp_trace_entry[], unsigned n, uint64_t *lost);
/* End it, and forget what was not read. */
BP_API int bp_pool_trace_stop(bp_pool *);

/* ---- across a restart -------------------------------------------------------------------------- */

/*
 * A pool that starts empty is slow until its pages are back. bp_pool_dump writes down which extents are in memory, and
 * bp_pool_restore reads them back: in the order of the file instead of the order in which they are asked for, which is
 * what makes it fast. The list holds no data. It is never needed for correctness: what a page holds always comes
 * from the file that is open now, and the worst a wrong list can do is to have pages read that nobody wants.
 */
struct bp_dump_options {
    size_t size;
    uint64_t extents_max;   /* only so many, the hottest; 0: all */
    struct bp_error *error; /* filled in when the dump fails; may be NULL */
};

/*
 * Write the list of all extents in memory, hottest first, to path; options and extents (how many were listed) may be
 * NULL. Written to path.new, synced, and renamed: a crash leaves the old list or the new one. The file is readable by
 * its owner only. The pool stays in use meanwhile; what comes or goes during the dump may be listed or not. 16 bytes of
 * memory for each extent. EBUSY: another dump to this path is under way; ENOMEM, or what the file system answered
 * (ENOSPC, EACCES, ...): the old list is as it was. Thread safe.
 */
BP_API BP_NODISCARD int bp_pool_dump(bp_pool *, const char *path, const struct bp_dump_options *, uint64_t *extents);

struct bp_restore_options {
    size_t size;
    uint64_t bytes_per_second; /* read no faster than this, on average; 0: as fast as the device goes */
    uint64_t extents_max;      /* look at so many extents of the list at the most; 0: all */
    uint32_t milliseconds_max; /* stop after this time; 0: no limit */
    bool (*go_on)(void *ctx);  /* asked every few milliseconds, on the caller's thread; false: stop. NULL: none */
    void *ctx;
};

enum bp_restore_end {
    BP_RESTORE_ALL,  /* the whole list was gone through */
    BP_RESTORE_FULL, /* no memory is free: more would have displaced pages that are in use */
    BP_RESTORE_LIMIT /* extents_max, milliseconds_max, or go_on said so */
};

struct bp_restore_result {
    uint64_t listed;      /* extents in the list */
    uint64_t restored;    /* brought back */
    uint64_t present;     /* were there already, or were being read */
    uint64_t passed_over; /* of files that are not open here, or have changed since the dump */
    uint64_t failed;      /* could not be read; who asks for them gets the error */
    uint64_t bytes;       /* read */
    uint32_t files;       /* in the list */
    uint32_t files_known; /* of these, open in this pool and unchanged */
    enum bp_restore_end end;
};

/*
 * Read back what a list names, as the session's own misses but without displacing anything: it stops when no memory is
 * free. The files must be open already, and stay so until it returns; they are known by inode, size and time of the
 * last change, so what was written to since the dump is passed over. Options may be NULL. Blocks until it is through; run
 * it on a thread with a session of its own, beside those that serve. Several at once do no harm.
 *
 * 0: the result says what was done, and so it does after an error. ENOENT, EACCES, ...: the list cannot be read; EBADMSG:
 * it is damaged, cut off, or no list, or it says what cannot be (pages past the end, overlapping extents): nothing of it
 * was used; EPROTO: of a version, or of pages of a size, that this library does not know; ESTALE: none of its files
 * is open here and unchanged; ETIMEDOUT: the device does not answer; EIO, ...: too many reads failed. Texts by
 * bp_session_error, also after 0, if a file was passed over.
 */
BP_API BP_NODISCARD int bp_pool_restore(bp_session *, const char *path, const struct bp_restore_options *,
                                        struct bp_restore_result *);

/* ---- files ------------------------------------------------------------------------------------- */

struct bp_file_options {
    size_t size;
    enum bp_choice direct;  /* direct I/O; BP_ON fails the open where it does not work */
    uint32_t extent_bytes;  /* a miss reads an extent of this size: 4 KiB times a power of two, up to 2 MiB and
                               a sixteenth of the pool. 0: 4 KiB. Smaller extents are used where it does not fit */
    struct bp_error *error; /* filled in when the open fails; may be NULL */
    uint64_t null_bytes; /* in a pool of BP_IO_NULL, and only there: the size of a file that does not exist, a multiple
                            of 4 KiB up to 2^63 bytes. The path is just a name, each open is another file, its reads
                            end at once, and what its pages hold is not defined */
    void *ctx;           /* for the callbacks */
    /*
     * Is this page what it should be? Called for each page that a read has brought, before anybody sees it: 0, or a
     * negative errno (EBADMSG, say), which is then the outcome of the page's read: see "damage". bytes: of the page that lie inside the
     * file; behind them it is zero. On whichever thread completes the read, several at a time: it must be quick, and must
     * not call the pool. NULL: none.
     */
    int (*verify)(void *ctx, uint64_t page, const void *data, uint32_t bytes);

    /* For writing; see there. All of these must be the same in every open of the file. */
    bool write;  /* open for reading and writing; without it nothing of the file is ever written */
    bool create; /* with write: make the file if it is not there */
    /*
     * Called before pages are written of which the newest was dirtied with this LSN: when it returns 0, the log must be
     * durable up to and including it. Otherwise they stay dirty, and it is asked again later; a negative code is what
     * whoever waits for them gets, anything else is -EIO to them. NULL: there is no log.
     */
    int (*flush_log)(void *ctx, uint64_t lsn);
    /* Called for each page that is about to be written, on a copy (for a checksum in the page, say). NULL: none */
    void (*seal)(void *ctx, uint64_t page, void *data, uint32_t bytes);

    /*
     * Streams are read ahead in extents that grow with them, up to this size (4 KiB times a power of two, up to 2 MiB and
     * a sixteenth of the pool, and not below extent_bytes; smaller ones where it does not fit). The pages of an extent are
     * latched and evicted together. 0: 2 MiB, for a file opened with write extent_bytes.
     */
    uint32_t stream_bytes;
    /* Find streams among what is asked for, and read ahead of them. BP_OFF: only what calls ask for as a range, or scan.
       In a pool of BP_IO_NULL it is off unless BP_ON. */
    enum bp_choice readahead;
};

/*
 * Open a regular file or a block device for reading. Options may be NULL. Opening a file (by device and
 * inode) that this pool has open already returns the same handle once more: close it as often as it was
 * opened; EEXIST if the options differ. ENOENT, EACCES, EISDIR, ... as open(2); EINVAL: not a file with
 * pages, or an option is wrong; ENFILE: 8,191 files are open in this pool. Thread safe.
 */
BP_API BP_NODISCARD int bp_file_open(bp_pool *, const char *path, const struct bp_file_options *, bp_file **);

/*
 * Close a file: waits for its reads, drops its pages. EBUSY: pages are pinned, nothing was closed, the text
 * (error may be NULL) says how many. No other thread may use the file during or after a close that succeeds.
 * A file that was opened for writing is written and synced first. If that fails (ENOSPC, EIO, ETIMEDOUT, ...: as bp_sync),
 * nothing is closed and nothing lost: the text says how much is not on disk, and why. Close again when the reason is gone,
 * or give it up with bp_file_abandon.
 */
BP_API BP_NODISCARD int bp_file_close(bp_file *, struct bp_error *error);

/*
 * The file's size in bytes, asked of the file system now. Where it changed, a cached partial last page
 * is dropped so that it is read again. Thread safe.
 */
BP_API int bp_file_size(bp_file *, uint64_t *bytes);

/*
 * A file's share of the memory, in bytes, rounded down to pages; 0 is none. May be changed at any time, and ends when
 * the file is closed for good. Thread safe.
 *   floor    while the file has no more than that in memory, its pages stay, whatever others need; only when nothing
 *            else at all could go do they. Pages that are not there yet are not fetched for it.
 *   ceiling  a miss that finds the file with that much or more replaces one of the file's own pages, though there may be
 *            room elsewhere; only if a short search finds none to replace does it take what others could have. Nothing
 *            is thrown out when a ceiling is lowered: the file shrinks by some pages with each of its misses.
 * EINVAL: the ceiling is below the floor, or below 16 extents of the file; ENOSPC: the floors of all files would come to
 * more than seven eighths of the pool. Then nothing has changed.
 */
BP_API BP_NODISCARD int bp_file_limits(bp_file *, uint64_t floor_bytes, uint64_t ceiling_bytes);
/* Bytes of the file that are in memory now, or being read. Thread safe. */
BP_API uint64_t bp_file_resident(const bp_file *);

/*
 * What of a stretch of a file is in memory, or being read, for those who draw maps: n cells of cell_pages pages each (at
 * most 2^32 - 1), from page first on. Adds to the cells, which the caller makes zero before. One call looks at 16,384
 * extents at most, a few milliseconds; *next, 0 at the beginning, is where to go on: call it again with the same cells
 * until it is first + n * cell_pages. Pages that come or go meanwhile may be counted or not. EINVAL: no cells, or they
 * reach beyond BP_PAGE_MAX. Thread safe.
 */
struct bp_residency {
    uint32_t pages[BP_ORDER_MAX + 1]; /* in memory, by the order of the extent that they are in: 2^i pages */
};
BP_API int bp_file_residency(bp_file *, uint64_t first, uint64_t cell_pages, struct bp_residency cell[], unsigned n,
                             uint64_t *next);

/*
 * Damage. A bad page costs nobody else anything: where a read of many pages fails, or brings one that the owner refuses,
 * smaller ones are made until each page that is bad is known, and the rest is there in extents as large as can be. A page
 * that fails by itself is read again by the next who wants it; if it fails once more, its error is everybody's answer for
 * a minute, without another read, and bp_session_error() names it. Then, or when other damage has taken the room of it, it
 * is read again. Errors of the system rather than of the page (ENOMEM and so on) are not remembered.
 *
 * The first page at or after `from` that is known to be bad, and why: 1, or 0 if there is none, or BP_FORKED. Thread safe.
 */
BP_API int bp_file_damage(bp_file *, uint64_t from, uint64_t *page, int *error);
/*
 * Read those of these pages again, now, that are known to be bad. 0: none is any more; else the error of the first one,
 * which bp_session_error() names, and all of them have been tried.
 */
BP_API BP_NODISCARD int bp_reread(bp_session *, bp_file *, uint64_t first, uint64_t count);

/* Direct I/O in use? Thread safe. */
BP_API bool bp_file_direct(const bp_file *);

/* ---- sessions ---------------------------------------------------------------------------------- */

struct bp_session_options {
    size_t size;
    const char *label;  /* names this session in BUSY texts; copied, 31 characters kept. NULL: "session N" */
    uint32_t async_max; /* bp_get_start operations under way at the most; 0: 1,024 */
    uint32_t home; /* NUMA node of its memory: the system's number plus 1. 0: the one its thread runs on at the time */
};

/*
 * Open a session; options may be NULL. ENOMEM, EMFILE; EINVAL: no such node, or an option is wrong; BP_MISMATCH: the
 * header's inlined hits (inline.h) do not fit the library. Thread safe.
 */
BP_API BP_NODISCARD int bp_session_open(bp_pool *, const struct bp_session_options *, bp_session **);

/*
 * Close a session. Operations started and not yet polled are given up: their pages stay cached.
 * EBUSY: refs are still held, nothing was closed.
 */
BP_API BP_NODISCARD int bp_session_close(bp_session *);

/* Why the last failed call of this session failed, one line. Valid until the next call. Never NULL. */
BP_API const char *bp_session_error(const bp_session *);

/* ---- point access: views ------------------------------------------------------------------------ */

/* An optimistic look at a page. Nothing is held; it need not be given back. */
struct bp_view {
    const void *data;      /* the page's BP_PAGE_SIZE bytes */
    const uint64_t *state; /* the frame's state word, and what it was: for bp_view_valid */
    uint64_t seen;
};

/*
 * Look at a page without pinning it. A hit writes nothing shared; a miss reads the page and waits for
 * it. BP_EOF, EIO and other errors of the read, ETIMEDOUT, EBUSY (held exclusively, or no frame, until
 * the deadline; retry). What data points to may change or be replaced at any moment, and only
 * bp_view_valid() tells; the memory itself stays mapped and readable while the pool is open.
 */
BP_API BP_NODISCARD int bp_read(bp_session *, bp_file *, uint64_t page, struct bp_view *);

/*
 * As bp_read for n pages, looked up together so that their cache misses overlap: worth it for some 32 or
 * more at a time, or where the caller does much with each. Misses are read in one submission. On an error no
 * view is usable.
 */
BP_API BP_NODISCARD int bp_read_many(bp_session *, bp_file *, const uint64_t page[], unsigned n, struct bp_view view[]);

/* bits of the state word that must not have moved: the version and the exclusive latch */
#define BP_VIEW_MASK 0xfffffffff8000000ull

/*
 * Whether everything read through the view so far is what the page held when bp_read returned.
 * false: the page was changed, is being changed, or was evicted; start over from bp_read.
 * The fence keeps the caller's loads from sinking below the check (a sequence lock's read side: H.-J.
 * Boehm, "Can seqlocks get along with programming language memory models?", 2012).
 */
static inline bool bp_view_valid(const struct bp_view *view)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return ((__atomic_load_n(view->state, __ATOMIC_RELAXED) ^ view->seen) & BP_VIEW_MASK) == 0;
}

/*
 * A remembered frame, 8 bytes, to be kept beside a page number (in a parent node, say). All zero: none.
 * It is only ever a hint: it may be stale, copied, stored in a page, even garbage; the frame itself says
 * whether it still holds the page. Meaningless in another pool or after a restart, but harmless there.
 */
struct bp_hint {
    uint64_t word;
};

/* As bp_read, without an index walk while the hint still holds; refreshes the hint when it does not. */
BP_API BP_NODISCARD int bp_read_hinted(bp_session *, bp_file *, uint64_t page, struct bp_hint *, struct bp_view *);

/* ---- point access: refs ------------------------------------------------------------------------- */

enum bp_mode {
    BP_SHARED = 1,   /* others may read; nobody changes or evicts it */
    BP_EXCLUSIVE = 2 /* nobody else reads; views taken before become invalid */
};

/* A pinned and latched extent. Owned by the caller from a get that returned 0 until bp_put. */
struct bp_ref {
    void *data;     /* the page asked for; read only under BP_SHARED */
    uint64_t page;  /* its number */
    uint32_t bytes; /* readable from data to the end of the extent: at least BP_PAGE_SIZE */
    uint32_t mode;  /* the rest is the library's */
    bp_session *session;
    uint64_t *state;
};

/*
 * Pin a page. Waits for its read where it is absent. Errors as bp_read. Getting a page exclusively while
 * this thread holds it in any mode waits for itself until the deadline: EBUSY.
 */
BP_API BP_NODISCARD int bp_get(bp_session *, bp_file *, uint64_t page, enum bp_mode, struct bp_ref *);
BP_API BP_NODISCARD int bp_get_hinted(bp_session *, bp_file *, uint64_t page, enum bp_mode, struct bp_hint *,
                                      struct bp_ref *);

/*
 * Let go. The ref must be the caller's and live; it is dead afterwards. May be called from another thread
 * than the get's only if that thread also takes over the session.
 */
BP_API void bp_put(struct bp_ref *);

/*
 * Pin n pages, all or none: every miss goes to the device in one submission. On an error everything taken
 * is given back. n pins at once: with fewer than n evictable extents the answer is EBUSY. For BP_EXCLUSIVE
 * the pages must lie in different extents.
 */
BP_API BP_NODISCARD int bp_get_many(bp_session *, bp_file *, const uint64_t page[], unsigned n, enum bp_mode,
                                    struct bp_ref[]);
BP_API void bp_put_many(struct bp_ref[], unsigned n);

/*
 * Set so many frames aside for this session: its next misses take them and cannot fail for want of a frame. For who
 * needs several pages pinned at once: two callers that each hold one page and wait for another one would wait for each
 * other until the deadline, and with bp_reserve(s, 2) before the first they take turns. Hold no refs while calling it.
 * All or none, beside what is set aside already; waits in order with everybody else who needs frames. EBUSY: not to be
 * had until the deadline, the text names the holders; retry. EINVAL: none, or more than the pool has; ENOMEM.
 * A page that is present takes none; misses of larger extents read single pages where nothing else is to be had.
 */
BP_API BP_NODISCARD int bp_reserve(bp_session *, unsigned frames);
/* Give back what misses have not taken; returns how many that were, or BP_FORKED. Closing the session does the same. */
BP_API int bp_unreserve(bp_session *);

/* ---- writing ------------------------------------------------------------------------------------ */

/*
 * Pages of files opened with bp_file_options.write are changed under an exclusive ref, which is put with bp_put_dirty, and
 * written some time later: by a thread of the library, in the background and when somebody waits for it. What is written
 * is the page as it was at one moment between two exclusive refs, never a mixture, and whole: a page that the file ends
 * in is filled up with zeros. A page that was changed again meanwhile is still dirty afterwards. Nothing dirty is evicted.
 *
 * Log first: give each change the LSN of its log record, and bp_file_options.flush_log. LSNs are yours; they should grow,
 * and 0 means that there is none.
 *
 * What fails: a write that fails leaves its pages dirty. It is tried again, a few times at once and then every second or
 * so; who waits (bp_flush, bp_sync, bp_file_close) is told. A sync that fails is final, since the system may have dropped
 * what it could not write: everybody who waits for it is told, and all later syncs of the file fail. Recover from the
 * log, in another process or at least after closing the file with bp_file_abandon.
 *
 * How much may be dirty is limited (bp_pool_options.dirty_trigger), so that there is always room for pages that are only
 * read, also while nothing can be written.
 *
 * flush_log and seal are called on the library's thread (signals blocked), one at a time. They must not call the pool nor
 * wait for a thread that does.
 */

/*
 * A new extent of 2^order pages, all zero, dirty, held exclusively: what was there before, on disk or in memory, is
 * replaced without being read. It may lie past the end of the file, which grows; what lies between reads as zeros. page is
 * a multiple of 2^order. ref->bytes may be more than asked for, where a larger extent was in memory; of that only the
 * 2^order pages are zeroed. Waits, as an exclusive get, for what is there to be let go of. Errors as bp_get; EINVAL: order
 * is too large (BP_ORDER_MAX, a sixteenth of the pool), or page no multiple; EBADF: not opened for writing.
 */
BP_API BP_NODISCARD int bp_create(bp_session *, bp_file *, uint64_t page, unsigned order, struct bp_ref *);

/*
 * Let go of an exclusive ref whose extent was changed. lsn: of the change; 0: none. (bp_put says that nothing was changed,
 * and what was is lost some time later.) The file must be opened for writing.
 */
BP_API void bp_put_dirty(struct bp_ref *, uint64_t lsn);

/*
 * From a view to an exclusive ref of its page, if the page has not changed since: for who walked down by views and now
 * wants to change what he found. BP_MOVED: it has; start over. EBUSY: others held it shared until the deadline.
 */
BP_API BP_NODISCARD int bp_upgrade(const struct bp_view *, bp_session *, bp_file *, uint64_t page, struct bp_ref *);
/* From exclusive to shared without letting go; dirty: as bp_put_dirty. Views taken before are no longer valid. */
BP_API void bp_downgrade(struct bp_ref *);
BP_API void bp_downgrade_dirty(struct bp_ref *, uint64_t lsn);

/*
 * Write what is dirty from page first on, count pages (UINT64_MAX: to the end), and wait for it. Not made durable. What is
 * dirtied during the call may be written or not. ETIMEDOUT: no write of it ended for wait_ms (also if somebody holds
 * one of the pages exclusively for so long); ENOSPC, EIO, ...: what the device said, or flush_log, after some tries;
 * bp_session_error() names the page. A retry writes what is still dirty.
 */
BP_API BP_NODISCARD int bp_flush(bp_session *, bp_file *, uint64_t first, uint64_t count);

/*
 * Make all changes of the file durable whose bp_put_dirty came before. Calls of several threads at the same time share
 * the work. Errors as bp_flush; when the sync itself fails, all later ones do with the same error: see above.
 */
BP_API BP_NODISCARD int bp_sync(bp_session *, bp_file *);

/*
 * Forget pages, dirty or not: they need not be written any more, and what they hold is not defined until they are created
 * again. An extent that reaches beyond the range stays as it is. Waits for refs, as an exclusive get: EBUSY, and some are
 * forgotten.
 */
BP_API BP_NODISCARD int bp_discard(bp_session *, bp_file *, uint64_t first, uint64_t count);

/*
 * Set the file's size, a multiple of 4 KiB: pages past the new end are discarded, or the file grows by zeros. Errors as
 * bp_discard, and what ftruncate(2) answers. Durable with the next bp_sync.
 */
BP_API BP_NODISCARD int bp_file_truncate(bp_session *, bp_file *, uint64_t bytes);

/*
 * The oldest LSN of a change that is not durable yet (dirty, being written, or written and not yet synced): the log must
 * be kept from there on. UINT64_MAX: there is none. Counts changes whose bp_put_dirty came before the call; what somebody
 * still holds is his to account for. Takes time with the number of dirty extents. Thread safe.
 */
BP_API uint64_t bp_oldest_dirty_lsn(bp_pool *);
BP_API uint64_t bp_file_oldest_dirty_lsn(bp_file *);

/*
 * What is dirty in the file, or written and not synced, may be lost: bp_file_close then drops it instead of failing.
 * Thread safe. Files that are not abandoned are never closed with something dirty.
 */
BP_API int bp_file_abandon(bp_file *);

/* CRC-32C (Castagnoli) of bytes that follow those of which crc is the CRC; crc 0: there are none before. */
BP_API uint32_t bp_crc32c(uint32_t crc, const void *data, size_t bytes);

/*
 * Move what is in memory of a range of pages to the NUMA node of the session: for pages that were read by a thread of another
 * node and are used from here now. By copy, extent by extent; views of what moves become invalid, what is pinned, latched or
 * being read stays. *moved (may be NULL): pages that did. If the node has no frames left and the budget is used up, the
 * coldest pages of the pool make room for a slab here. 0; -ENOSPC: that was not to be had, some have moved; retry later.
 */
BP_API BP_NODISCARD int bp_migrate(bp_session *, bp_file *, uint64_t first, uint64_t count, uint64_t *moved);

/* Of the BP_PAGE_SIZE bytes of a page: how many lie inside the file. Less only for its last page; 0 past it. */
BP_API size_t bp_page_file_bytes(const bp_file *, uint64_t page);

/* ---- point access: for event loops --------------------------------------------------------------- */

#define BP_MORE 1u /* bp_get_start: more follows; submission may wait for a start without it, or for bp_poll */

/*
 * Pin a page without ever blocking. 0: a hit, ref is filled in now. BP_PENDING: the read (or the wait for
 * somebody else's read, latch or frame) goes on; bp_poll delivers the ref with this cookie. BP_LIMIT: poll
 * first. BP_EOF and EINVAL at once; all later errors, also EBUSY and ETIMEDOUT at the deadline, through bp_poll.
 */
BP_API BP_NODISCARD int bp_get_start(bp_session *, bp_file *, uint64_t page, enum bp_mode, unsigned flags, void *cookie,
                                     struct bp_ref *);

struct bp_event {
    void *cookie;
    int result; /* 0: ref is the caller's to put; else an error, and there is no ref */
    struct bp_ref ref;
};

/*
 * Deliver up to n finished operations; returns how many (0: none yet), or an error. timeout_ms: 0 looks
 * and returns; more waits that long for a first one, unless nothing is under way. Submits what BP_MORE held back.
 */
BP_API int bp_poll(bp_session *, struct bp_event[], unsigned n, unsigned timeout_ms);

/*
 * A descriptor that becomes readable (poll, epoll, level-triggered) when bp_poll has something to do.
 * It may also be readable when nothing comes of the poll (another session's read was completed, say): poll all the
 * same, or it stays so. Owned by the session; do not read from it and do not close it. Created by the first call. A
 * thread that waits in epoll_wait may see EINTR without a signal when the kernel completes a read: wait again.
 */
BP_API int bp_session_fd(bp_session *);

/* ---- ranges ------------------------------------------------------------------------------------- */

/*
 * Copy len bytes from offset (bytes) of the file, any alignment, across extents; misses of a stretch are
 * read together. *done gets the bytes copied, also on an error; fewer than len with result 0 means the end of the file.
 */
BP_API BP_NODISCARD int bp_copy_out(bp_session *, bp_file *, uint64_t offset, size_t len, void *to, size_t *done);

/*
 * Map: bytes of a file where they lie in memory, for writev, sendmsg and their like, without copying them.
 *
 *     struct iovec iov[16];
 *     struct bp_map map;
 *     rc = bp_map_range(session, file, offset, len, 0, iov, 16, &map);
 *     if (!rc && map.bytes)
 *         writev(fd, iov, (int)map.count);
 *     bp_unmap(&map);
 *
 * From offset on, any alignment: map.bytes of them in map.count iovecs. May be fewer than len, also in the middle of the
 * file: for lack of iovecs, behind BP_MAP_EXTENTS extents, or because the rest could not be had at once; go on behind
 * them with another map. 0 bytes with result 0: the end of the file.
 *
 * The memory stays as it is until bp_unmap, also while a kernel is sending from it: nobody changes or evicts it. The iovecs
 * are the caller's own and may be changed. Maps are independent of each other, and may lie over the same pages; each
 * pins its extents, and a pool full of pinned ones has no room for others. Read only.
 *
 * Reads what is missing, and waits for it. BP_MAP_NOWAIT: never waits, but starts the reads: EAGAIN says that the first
 * byte is not there yet, and bp_get_start() of its page tells when. Other errors as bp_get, of the first page.
 */
#define BP_MAP_NOWAIT  1u
#define BP_MAP_EXTENTS 64u

struct bp_map {
    size_t bytes;
    unsigned count;
    unsigned extents; /* the rest is the library's */
    bp_session *session;
    uint32_t head[BP_MAP_EXTENTS];
};

BP_API BP_NODISCARD int bp_map_range(bp_session *, bp_file *, uint64_t offset, size_t len, unsigned flags,
                                     struct iovec[], unsigned n, struct bp_map *);
/* Also after an error, and again: then there is nothing to give back. As bp_put, it belongs to the session's thread. */
BP_API void bp_unmap(struct bp_map *);

/*
 * Ask for pages that will be wanted soon: reads of what is missing are started, as many as can be had without
 * waiting, and belong to nobody. Failures are heard by whoever then wants the page. 0, or BP_FORKED.
 */
BP_API int bp_prefetch(bp_session *, bp_file *, uint64_t first, uint64_t count);

/* ---- scans ------------------------------------------------------------------------------------- */

/*
 * A stretch of a file in order, without copying it. Belongs to its session: one thread at a time. While a batch is out its
 * pages stay as they are: they are not evicted, and whoever wants one exclusively waits, as for a ref, also the
 * session itself (EBUSY). So batches are for being used at once: pages of 4 KiB lie together with up to 63 neighbours
 * that stay as well. Scanning does not warm pages.
 *
 *     bp_scan *scan;
 *     rc = bp_scan_open(session, file, 0, UINT64_MAX, 0, &scan);
 *     while (!rc && (rc = bp_scan_next(scan, piece, 16, &n)) == 0 && n)
 *         for (i = 0; i < n; i++)
 *             use(piece[i].page, piece[i].data, piece[i].bytes);
 *     bp_scan_close(scan);
 */
typedef struct bp_scan bp_scan;

struct bp_piece {
    const void *data; /* whole pages; behind the end of the file the last one is zero */
    uint64_t page;    /* the first of them; with the next piece's they are without a gap */
    uint64_t bytes;
};

/* The batches begin with the end of the stretch; within a batch pages ascend all the same. */
#define BP_SCAN_BACKWARD 1u

/*
 * From page first to last, or to the end of the file. EINVAL: first is behind last, or unknown flags. A stretch that
 * lies behind the end of the file is empty.
 */
BP_API BP_NODISCARD int bp_scan_open(bp_session *, bp_file *, uint64_t first, uint64_t last, unsigned flags,
                                     bp_scan **);
/*
 * The next batch: up to n pieces, at least one until the end; *got says how many, 0 at the end. Takes back the batch
 * before. Reads what is missing, and ahead of it. An error (EIO and so on, EBUSY: see bp_get) concerns the first page that
 * has not come yet, bp_session_error() names it; a retry tries it again, bp_scan_seek() goes on behind it.
 */
BP_API BP_NODISCARD int bp_scan_next(bp_scan *, struct bp_piece[], unsigned n, unsigned *got);
/*
 * Go on with this page (backward: down from it). It must be one that is still to come; else the scan is at its end. Takes
 * back the batch that is out.
 */
BP_API int bp_scan_seek(bp_scan *, uint64_t page);
/* Takes back the batch that is out. NULL is nothing. */
BP_API int bp_scan_close(bp_scan *);

#ifdef __GNUC__
#include "inline.h" /* the hits of bp_read, bp_get and bp_put, inlined; BP_NO_INLINE leaves them out */
#endif

#ifdef __cplusplus
}
#endif
#endif
