/* SPDX-License-Identifier: MIT */
/*
 * kv: an ordered key-value store in a directory, on bufpool.
 *
 * Know this before you start
 * - Keys are 1 to 1,000 bytes and compare as unsigned bytes; values are up to 16 MiB.
 * - One process opens a directory at a time (a lock on DIR/lock; the second one is told).
 * - A session belongs to one thread at a time; open one per thread. Everything else is thread safe.
 * - A write is in the store when the call returns, and survives a crash once the durability that was asked for is
 *   reached: enum kv_sync. What was not yet durable may be lost in a crash, the latest writes first; nothing is ever torn.
 * - What a call hands out (a value, a scan's key) stays valid until the next call with the same session or scan.
 * - After fork() the child must not use the store.
 *
 * In DIR: `data` the tree, in pages of 4 KiB; `values` what is too large for it; `log.N` the write-ahead log, in
 * segments; `checkpoint` where recovery begins, and which space is in use there; `lock`.
 *
 * Results: 0, or a negative code: an errno, one of enum kv_code, or one of bufpool's. kv_session_error() has the words.
 */
#ifndef KV_KV_H
#define KV_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_KEY_MAX      1000u        /* bytes of a key */
#define KV_VALUE_MAX    (16u << 20)  /* bytes of a value */
#define KV_BATCH_MAX    256u         /* writes of a batch */
#define KV_BATCH_BYTES  (256u << 10) /* keys and values of a batch */
#define KV_MEMORY_MIN   (2u << 20)   /* smallest pool, bytes */
#define KV_SESSIONS_MAX 1024u

typedef struct kv kv;
typedef struct kv_session kv_session;
typedef struct kv_scan kv_scan;

#define KV_CODE_TABLE(X)                                                                         \
    X(KV_NOT_FOUND, -20001, "there is no such key")                                              \
    X(KV_IN_USE, -20002, "another process has this store open")                                  \
    X(KV_FOREIGN, -20003, "this is not a store, or a file of another store")                     \
    X(KV_VERSION, -20004, "the store was written in a format that this program does not know")   \
    X(KV_DAMAGED, -20005, "the store is damaged")                                                \
    X(KV_TOO_LARGE, -20006, "a key, a value or a batch is larger than the store takes")          \
    X(KV_FAILED, -20007, "the log could not be made durable; close the store and open it again") \
    X(KV_NO_STORE, -20008, "there is no store in this directory")

enum kv_code {
#define KV_CODE_ENUM(name, value, text) name = value,
    KV_CODE_TABLE(KV_CODE_ENUM)
#undef KV_CODE_ENUM
        KV_CODE_NONE = 0
};

const char *kv_strerror(int code); /* static; never NULL */

struct kv_error {
    int code;
    char text[248]; /* one line: what was asked, what was found, where */
};

/* ---- a store ----------------------------------------------------------------------------------- */

enum kv_sync {
    KV_SYNC_ALWAYS, /* durable when the call returns; one fdatasync may serve several callers who wait */
    KV_SYNC_GROUP,  /* the same, but whoever would sync first waits kv_options.group_us for others to join */
    KV_SYNC_NONE    /* written a second later at the latest; lost in a crash before */
};

/* Set size, and what is of no interest to 0. */
struct kv_options {
    size_t size;
    uint64_t memory;           /* bytes of the pool; 0: 64 MiB */
    enum kv_sync sync;         /* of sessions that do not say otherwise */
    bool create;               /* make the store (and the directory) if there is none */
    uint32_t group_us;         /* 0: 200 microseconds */
    uint64_t checkpoint_bytes; /* a checkpoint after so much log; 0: 64 MiB */
    uint64_t
        log_bytes_max; /* of log that no checkpoint could cut: further writes fail with ENOSPC; 0: 64 checkpoints */
    bool buffered;     /* through the page cache, where direct I/O is not wanted */
    void (*log)(void *ctx, const char *line); /* diagnostics of a background thread; NULL: none */
    void *log_ctx;
    struct kv_error *error; /* filled in when the open fails; may be NULL */
};

/* Opens, and recovers what a crash left behind. */
int kv_open(const char *dir, const struct kv_options *, kv **);

/*
 * Writes everything, and leaves a store that needs no recovery. EBUSY: sessions are open, nothing was closed. Another error:
 * closed, but the pages could not all be written; the log has them, and the next open applies it.
 */
int kv_close(kv *, struct kv_error *);

/* ---- sessions ---------------------------------------------------------------------------------- */

int kv_session_open(kv *, kv_session **);
void kv_session_close(kv_session *);
const char *kv_session_error(const kv_session *); /* why the last failed call failed; never NULL */

/*
 * Writes of this session return as soon as they are in the store; kv_commit() then waits for the durability of all of
 * them at once. For servers that answer many requests at a time.
 */
void kv_session_defer(kv_session *, bool defer);
int kv_commit(kv_session *);

/* ---- points ------------------------------------------------------------------------------------ */

int kv_get(kv_session *, const void *key, size_t key_bytes, const void **value, size_t *value_bytes);
/* Only its length. */
int kv_length(kv_session *, const void *key, size_t key_bytes, size_t *value_bytes);
int kv_put(kv_session *, const void *key, size_t key_bytes, const void *value, size_t value_bytes);
int kv_delete(kv_session *, const void *key, size_t key_bytes); /* KV_NOT_FOUND: nothing was changed */

struct kv_write {
    const void *key, *value; /* value NULL: delete the key, if it is there */
    size_t key_bytes, value_bytes;
};
/*
 * All or none, also across a crash; readers may see some of them before the others. The later of two writes of one
 * key wins. Values must be small enough for the tree (key and value together up to 1,024 bytes): KV_TOO_LARGE.
 */
int kv_batch(kv_session *, const struct kv_write[], size_t count);

/* ---- ranges ------------------------------------------------------------------------------------ */

#define KV_REVERSE 1u /* from the end to the beginning */

/*
 * All keys from `from` (NULL: the first) up to but without `to` (NULL: to the end). The order is exact, and every key that
 * is there all the time is seen once; what is written meanwhile may be seen or not.
 */
int kv_scan_open(kv_session *, const void *from, size_t from_bytes, const void *to, size_t to_bytes, unsigned flags,
                 kv_scan **);
/* The next entry; KV_NOT_FOUND: there are no more. An error may be retried. */
int kv_scan_next(kv_scan *, const void **key, size_t *key_bytes, const void **value, size_t *value_bytes);
void kv_scan_close(kv_scan *); /* NULL is nothing */

/* ---- the whole --------------------------------------------------------------------------------- */

/* Write everything down and cut the log. Happens by itself too. */
int kv_checkpoint(kv_session *);

#define KV_STAT_TABLE(X)                                                    \
    X(entries, "keys", "keys in the store")                                 \
    X(height, "levels", "of the tree")                                      \
    X(tree_pages, "pages", "of 4 KiB in use for the tree")                  \
    X(value_pages, "pages", "of 4 KiB in use for large values")             \
    X(data_bytes, "bytes", "size of the file of the tree")                  \
    X(values_bytes, "bytes", "size of the file of large values")            \
    X(log_end, "bytes", "log written since the store was made")             \
    X(log_kept, "bytes", "of it, what recovery would read")                 \
    X(log_syncs, "syncs", "of the log")                                     \
    X(commits, "commits", "that waited for a sync")                         \
    X(checkpoints, "checkpoints", "since the store was opened")             \
    X(splits, "pages", "split since the store was opened")                  \
    X(merges, "pages", "merged since the store was opened")                 \
    X(restarts, "restarts", "of descents that met a writer or an eviction") \
    X(recovered, "records", "of log applied when the store was opened")     \
    X(pool_hits, "requests", "page requests answered from memory")          \
    X(pool_misses, "requests", "page requests that read")                   \
    X(pool_memory, "bytes", "of memory the pool may use")

struct kv_stat {
#define KV_STAT_FIELD(name, unit, text) uint64_t name;
    KV_STAT_TABLE(KV_STAT_FIELD)
#undef KV_STAT_FIELD
};
int kv_stat(kv *, struct kv_stat *);
uint64_t kv_entries(kv *); /* kv_stat's, without the rest */

struct kv_check_result {
    uint64_t entries, tree_pages, value_pages, value_bytes;
    uint64_t faults; /* how many things are wrong; the first of them are told through `found` */
};
/*
 * Look at everything: the tree's order and fences, every page's checksum on disk, every large value, and that each page
 * is used exactly once or free. Nobody may write meanwhile. 0, or KV_DAMAGED. `found` may be NULL.
 */
int kv_check(kv_session *, void (*found)(void *ctx, const char *line), void *ctx, struct kv_check_result *);

#endif
