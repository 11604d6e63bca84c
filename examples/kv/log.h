/* SPDX-License-Identifier: MIT */
/*
 * The write-ahead log: an endless row of bytes, in segments `log.N` of 16 MiB and a header each. A position in it is a
 * number of bytes from the store's beginning; a record's LSN is the position of its end, so "durable up to this LSN" has
 * the record.
 *
 * A record is valid if it says where it begins and its checksum is right. The first one that is not valid is the end, as a
 * crash leaves it, unless a later record says that the log had been synced beyond it: then the log is damaged. Before
 * anything is appended after a crash the rest is cleared (log_cut), so that nothing from before can follow it.
 *
 * Space is made before it is needed: an append fails with ENOSPC before it has any effect, and may be tried again. A failed
 * write or sync is for good (KV_FAILED): what the kernel has dropped cannot be known.
 *
 * Segments that a checkpoint has made superfluous are used again under another number: blocks that have been written once
 * are synced without a change of the file's metadata.
 *
 * Thread safe from log_start on. One lock; nothing is waited for with it held but another writer of the log.
 */
#ifndef KV_LOG_H
#define KV_LOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_SEGMENT_BYTES (16ull << 20)
#define LOG_HEADER_BYTES  4096u
#define LOG_RECORD_MAX    (3u << 20)
#define LOG_BUFFER_BYTES  (4u << 20) /* two of them */
#define LOG_FORMAT        1u

/* 32 bytes before what a record holds, and behind it zeros up to a multiple of 8. */
struct record {
    uint32_t crc;    /* of what it holds, then of the rest of this header */
    uint32_t bytes;  /* with this header and the zeros */
    uint64_t start;  /* position */
    uint64_t synced; /* position up to which the log was durable then */
    int32_t entries; /* by which it changes the number of keys in the store */
    uint32_t body;   /* bytes of what it holds */
};

struct log {
    pthread_mutex_t lock;
    pthread_cond_t moved;  /* written, synced or failed changed, or nobody writes any more */
    pthread_cond_t gather; /* everybody who could join a group has come */
    int dir;
    int fd; /* of the segment that is written to */
    uint64_t fd_segment;
    uint64_t id; /* of the store */
    char *buffer[2];
    unsigned current;         /* the buffer that is filled */
    uint64_t start;           /* position of its first byte */
    uint64_t end;             /* where the next record begins */
    uint64_t written, synced; /* positions */
    uint64_t ready;           /* segments are there up to here */
    uint64_t first;           /* the first segment that is there begins here */
    uint64_t floor;           /* see log_append */
    uint64_t kept_max;        /* bytes from `keep` on that the log may have */
    uint64_t keep;            /* what recovery needs begins here */
    unsigned waiting, sessions;
    uint32_t group_us;
    bool busy;
    int failed;
    uint64_t syncs, commits;
};

struct log_record {
    unsigned char *bytes; /* begins with room for struct record */
    size_t count, room;
    int32_t entries;
};

/* Called under the log's lock when a record has got its place; what it changes belongs to exactly this position. */
typedef void log_account(void *ctx, uint64_t lsn);

/* `at` is where the log ends or, before it was read, begins. */
int log_init(struct log *, int dir, uint64_t id, uint64_t at);
void log_end(struct log *);

/* ---- reading, before log_start ---- */

struct log_reader {
    struct log *log;
    uint64_t at; /* position of the next record */
    unsigned char *bytes;
    bool stale;    /* behind the end something lies that could be taken for what will be appended there */
    char why[160]; /* after an error */
};

/* Which segments there are; KV_DAMAGED or KV_FOREIGN where they are not what they should be, with `why`. */
int log_find(struct log *, char *why, size_t size);
/* 0 and a record, valid until the next call; 1: that was the last one; or an error. */
int log_next(struct log_reader *, const struct record **);
/* The log ends here; clear what is behind, if there is anything (log_reader.stale). */
int log_cut(struct log *, uint64_t at, bool stale);

/* ---- writing ---- */

/*
 * Give a record its place. `floor` is what log_floor() said when the record was made; EAGAIN: it has moved, make it again. It
 * may be written at once or later. ENOSPC, KV_FAILED: no effect.
 */
int log_append(struct log *, struct log_record *, uint64_t floor, log_account *, void *ctx, uint64_t *lsn);
/* Wait until the log is durable up to here. `group`: give others a chance to join. */
int log_commit(struct log *, uint64_t lsn, bool group);
/* Everything that has been appended; without waiting for a group. */
int log_sync(struct log *);
uint64_t log_position(struct log *);
uint64_t log_floor(struct log *);
/* A checkpoint begins: changes of pages whose LSN is not above this have to log them whole. Calls account under the lock. */
uint64_t log_raise_floor(struct log *, log_account *, void *ctx);
/* A checkpoint ended: nothing before this position is needed. */
int log_release(struct log *, uint64_t keep);
/* Prepare for what will be appended soon; from one thread, now and then. */
int log_prepare(struct log *);
/* How many sessions could commit. */
void log_sessions(struct log *, int change);

#endif
