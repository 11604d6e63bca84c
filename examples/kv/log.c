/* SPDX-License-Identifier: MIT */
/* The log (log.h): appending, groups of commits. Segments are in segment.c. */
#include "kv/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <bufpool/bufpool.h>

#include "kv/kv.h"
#include "kv/segment.h"

#define WRITE_AT (1u << 20) /* bytes in the buffer from which on an append writes them */

int log_init(struct log *log, int dir, uint64_t id, uint64_t at)
{
    pthread_condattr_t clock;

    memset(log, 0, sizeof(*log));
    log->fd = -1;
    log->dir = dir;
    log->id = id;
    log->start = log->end = log->written = log->synced = log->keep = log->floor = at;
    log->first = log->ready = at / LOG_SEGMENT_BYTES * LOG_SEGMENT_BYTES;
    log->kept_max = UINT64_MAX;
    log->buffer[0] = malloc(LOG_BUFFER_BYTES);
    log->buffer[1] = malloc(LOG_BUFFER_BYTES);
    pthread_mutex_init(&log->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&log->moved, &clock);
    pthread_cond_init(&log->gather, &clock);
    pthread_condattr_destroy(&clock);
    return log->buffer[0] && log->buffer[1] ? 0 : -ENOMEM;
}

void log_end(struct log *log)
{
    if (log->fd >= 0)
        close(log->fd);
    free(log->buffer[0]);
    free(log->buffer[1]);
    pthread_cond_destroy(&log->gather);
    pthread_cond_destroy(&log->moved);
    pthread_mutex_destroy(&log->lock);
}

/* ---- with the lock held ---- */

/*
 * Write what is in the buffer, and sync if asked. One at a time; the lock is dropped meanwhile, and appends go to the other
 * buffer.
 */
static void write_out(struct log *log, bool sync)
{
    const char *bytes = log->buffer[log->current];
    uint64_t start = log->start, end = log->end;
    int rc;

    log->busy = true;
    log->current ^= 1;
    log->start = end;
    pthread_mutex_unlock(&log->lock);
    rc = segment_write(log, start, bytes, end - start);
    if (!rc && sync)
        rc = segment_sync(log);
    pthread_mutex_lock(&log->lock);
    log->busy = false;
    if (rc)
        log->failed = rc;
    else
        log->written = end;
    if (!rc && sync) {
        log->synced = end;
        log->syncs++;
    }
    pthread_cond_broadcast(&log->moved);
}

/* Whether it is for us to write; else somebody does, and has finished something when this returns. */
static bool wait_turn(struct log *log)
{
    if (!log->busy)
        return true;
    pthread_cond_wait(&log->moved, &log->lock);
    return false;
}

/* Whoever would sync waits for the others: until all sessions wait, or the time is over. Others see `busy`. */
static void gather(struct log *log)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)log->group_us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    log->busy = true;
    while (log->waiting < log->sessions && !pthread_cond_timedwait(&log->gather, &log->lock, &until))
        ;
    log->busy = false;
}

static int sync_to(struct log *log, uint64_t lsn, bool group)
{
    while (log->synced < lsn && !log->failed) {
        if (!wait_turn(log))
            continue;
        if (group && log->group_us && log->waiting < log->sessions)
            gather(log);
        write_out(log, true);
    }
    return log->synced >= lsn ? 0 : KV_FAILED;
}

/* Segments and a buffer for so many bytes. Waiting drops the lock, so what was found before is asked again. */
static int room_for(struct log *log, size_t bytes)
{
    for (;;) {
        if (log->failed)
            return KV_FAILED;
        if (log->end + bytes - log->keep > log->kept_max)
            return -ENOSPC;
        if (log->end + bytes > log->ready) {
            int rc = segment_make(log, log->ready);

            if (rc)
                return rc;
            log->ready += LOG_SEGMENT_BYTES;
        } else if (log->end - log->start + bytes > LOG_BUFFER_BYTES) {
            if (wait_turn(log))
                write_out(log, false);
        } else
            return 0;
    }
}

/* ---- calls ---- */

int log_append(struct log *log, struct log_record *record, uint64_t floor, log_account *account, void *ctx,
               uint64_t *lsn)
{
    size_t body = record->count - sizeof(struct record), bytes = (record->count + 7) / 8 * 8;
    struct record head = {.bytes = (uint32_t)bytes, .entries = record->entries, .body = (uint32_t)body};
    uint32_t crc = bp_crc32c(0, record->bytes + sizeof(head), body);
    int rc;

    if (bytes > LOG_RECORD_MAX)
        return KV_TOO_LARGE;
    pthread_mutex_lock(&log->lock);
    rc = room_for(log, bytes);
    if (!rc && floor != log->floor) /* after room_for, which may have waited */
        rc = -EAGAIN;
    if (!rc) {
        char *to = log->buffer[log->current] + (log->end - log->start);

        head.start = log->end;
        head.synced = log->synced;
        head.crc = bp_crc32c(crc, (const char *)&head + sizeof(head.crc), sizeof(head) - sizeof(head.crc));
        memcpy(to, &head, sizeof(head));
        memcpy(to + sizeof(head), record->bytes + sizeof(head), body);
        memset(to + record->count, 0, bytes - record->count);
        log->end += bytes;
        *lsn = log->end;
        if (account)
            account(ctx, *lsn);
        if (log->end - log->start > WRITE_AT && !log->busy)
            write_out(log, false);
    }
    pthread_mutex_unlock(&log->lock);
    return rc;
}

int log_commit(struct log *log, uint64_t lsn, bool group)
{
    int rc;

    pthread_mutex_lock(&log->lock);
    log->commits++;
    log->waiting++;
    if (log->waiting >= log->sessions)
        pthread_cond_signal(&log->gather);
    rc = sync_to(log, lsn, group);
    log->waiting--;
    pthread_mutex_unlock(&log->lock);
    return rc;
}

int log_sync(struct log *log)
{
    int rc;

    pthread_mutex_lock(&log->lock);
    rc = sync_to(log, log->end, false);
    pthread_mutex_unlock(&log->lock);
    return rc;
}

uint64_t log_position(struct log *log)
{
    uint64_t end;

    pthread_mutex_lock(&log->lock);
    end = log->end;
    pthread_mutex_unlock(&log->lock);
    return end;
}

uint64_t log_floor(struct log *log)
{
    /* relaxed: log_append asks again under the lock */
    return __atomic_load_n(&log->floor, __ATOMIC_RELAXED);
}

uint64_t log_raise_floor(struct log *log, log_account *account, void *ctx)
{
    uint64_t floor;

    pthread_mutex_lock(&log->lock);
    floor = log->end;
    __atomic_store_n(&log->floor, floor, __ATOMIC_RELAXED);
    account(ctx, floor);
    pthread_mutex_unlock(&log->lock);
    return floor;
}

int log_release(struct log *log, uint64_t keep)
{
    int rc;

    pthread_mutex_lock(&log->lock);
    log->keep = keep;
    rc = segment_release(log, keep);
    pthread_mutex_unlock(&log->lock);
    return rc;
}

int log_prepare(struct log *log)
{
    bool soon;

    pthread_mutex_lock(&log->lock);
    soon = log->end && log->ready - log->end < LOG_SEGMENT_BYTES / 2;
    pthread_mutex_unlock(&log->lock);
    return soon ? segment_spare(log) : 0;
}

void log_sessions(struct log *log, int change)
{
    pthread_mutex_lock(&log->lock);
    log->sessions += (unsigned)change;
    pthread_cond_signal(&log->gather);
    pthread_mutex_unlock(&log->lock);
}
