/* SPDX-License-Identifier: MIT */
/*
 * Channels: rings as the pool sees them. A session gets one when it first misses: an idle one, a new one, or, when
 * there are channels_max, a share of the least used. Any thread may submit to, reap from and wait on any channel (R6):
 * a page's descriptor says in which channel its read will complete, and whoever needs the page helps there.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bufpool/pool.h"
#include "bufpool/reserve.h"

static int channel_open(bp_pool *pool, unsigned number, struct channel **out)
{
    struct channel *ch = lines_alloc(1, sizeof(*ch));
    unsigned slabs = bpi_frames_slab_count(pool->frames);
    unsigned buffers = pool->options.registered == BP_OFF ? 0 : slabs;
    int rc = -ENOMEM;

    if (!ch)
        return -ENOMEM;
    ch->pool = pool;
    ch->ops = pool->io;
    ch->number = (uint16_t)number;
    ch->read = lines_alloc(CHANNEL_DEPTH, sizeof(*ch->read));
    ch->registered = lines_alloc(slabs, sizeof(*ch->registered));
    if (!ch->read || !ch->registered)
        goto out;
    rc = ch->ops->open(CHANNEL_DEPTH, buffers, pool->options.psync_threads, &ch->io);
    if (rc)
        goto out;
    for (unsigned i = 0; i < slabs && !buffers; i++)
        atomic_init(&ch->registered[i], SLAB_PLAIN);
    for (unsigned i = CHANNEL_DEPTH; i-- > 0;) {
        ch->read[i].channel = ch;
        ch->read[i].slot = (uint16_t)i;
        ch->read[i].next = ch->free;
        ch->free = &ch->read[i];
    }
    *out = ch;
out:
    if (rc) {
        free(ch->read);
        free((void *)ch->registered);
        free(ch);
    }
    return rc;
}

/* The channel that a new user takes: one without users, else NULL if another may be opened, else the least used. */
static struct channel *choose(bp_pool *pool, unsigned count)
{
    struct channel *best = NULL;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_relaxed);

        if (!best || ch->sessions < best->sessions)
            best = ch;
    }
    return best && (best->sessions == 0 || count == pool->channels_max) ? best : NULL;
}

int bpi_channel_assign(bp_session *s)
{
    bp_pool *pool = s->pool;
    struct channel *ch;
    unsigned count;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    count = atomic_load_explicit(&pool->channel_count, memory_order_relaxed);
    ch = choose(pool, count);
    if (!ch) {
        rc = channel_open(pool, count, &ch);
        if (rc && count) { /* memory or descriptors ran out: share what there is */
            rc = 0;
            ch = atomic_load_explicit(&pool->channel[s->number % count], memory_order_relaxed);
        } else if (!rc) {
            atomic_store_explicit(&pool->channel[count], ch, memory_order_release);
            atomic_store_explicit(&pool->channel_count, count + 1, memory_order_release);
        }
    }
    if (!rc) {
        ch->sessions++;
        s->channel = ch;
    }
    pthread_mutex_unlock(&pool->lock);
    if (rc)
        bpi_session_fail(s, rc, "no I/O channel (%s): %s", pool->io->name, bp_strerror(rc));
    return rc;
}

void bpi_channel_release(bp_session *s)
{
    if (!s->channel)
        return;
    pthread_mutex_lock(&s->pool->lock);
    s->channel->sessions--;
    pthread_mutex_unlock(&s->pool->lock);
    s->channel = NULL;
}

int bpi_channels_close(bp_pool *pool)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    int rc = 0;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_relaxed);

        if (ch->ops->close(ch->io)) {
            rc = -ETIMEDOUT; /* the device may still write to its frames and look at its requests */
            continue;
        }
        for (unsigned slab = 0; slab < bpi_frames_slab_count(pool->frames); slab++)
            if (atomic_load_explicit(&ch->registered[slab], memory_order_relaxed) == SLAB_REGISTERED)
                bpi_frames_slab_unregister(pool->frames, slab);
        free(ch->read);
        free((void *)ch->registered);
        free(ch);
    }
    return rc;
}

/* relaxed: only changed under the lock; read elsewhere as a hint */
static void add_in_use(struct channel *ch, unsigned n)
{
    atomic_store_explicit(&ch->in_use, atomic_load_explicit(&ch->in_use, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

struct read *bpi_reads_take(struct channel *ch, unsigned most)
{
    struct read *list;
    struct read **end;
    unsigned n = 0;

    slim_lock_take(&ch->lock);
    list = ch->free;
    for (end = &list; n < most && *end; n++) {
        (*end)->waiting = NULL;
        end = &(*end)->next;
    }
    ch->free = *end;
    *end = NULL;
    add_in_use(ch, n);
    slim_lock_give(&ch->lock);
    return list;
}

void bpi_reads_give(struct channel *ch, struct read *list)
{
    struct read *last = list;
    unsigned n = 1;

    if (!list)
        return;
    for (; last->next; last = last->next)
        n++;
    slim_lock_take(&ch->lock);
    last->next = ch->free;
    ch->free = list;
    add_in_use(ch, 0u - n);
    slim_lock_give(&ch->lock);
}

void bpi_reads_end(struct channel *ch, struct read *const r[], unsigned n, bp_session *reaper)
{
    slim_lock_take(&ch->lock);
    for (unsigned i = 0; i < n; i++) {
        if (r[i]->waiting)
            bpi_operations_ready(r[i]->waiting, reaper);
        r[i]->next = ch->free;
        ch->free = r[i];
    }
    add_in_use(ch, 0u - n);
    slim_lock_give(&ch->lock);
}

/*
 * 0, a negative errno, or 1: not now. The lock is held. The slab layer hears of it first, and as long as it has not heard
 * the end its memory stays (R20).
 */
static int slab_register(struct channel *ch, unsigned slab, void *at, size_t bytes)
{
    struct frames *frames = ch->pool->frames;
    int rc;

    if (ch->registered_bytes + bytes > ch->pool->options.registered_max)
        return -ENOSPC;
    if (bpi_frames_slab_register(frames, slab))
        return 1;
    rc = ch->ops->buffer(ch->io, slab, at, bytes);
    if (rc)
        bpi_frames_slab_unregister(frames, slab);
    return rc;
}

/* The lock is held. If the slot cannot be cleared, the slab counts as registered, though no read will use it. */
static int slab_unregister(struct channel *ch, unsigned slab)
{
    size_t bytes;
    void *at;
    int rc;

    if (atomic_load_explicit(&ch->registered[slab], memory_order_relaxed) != SLAB_REGISTERED)
        return 0;
    rc = ch->ops->buffer(ch->io, slab, NULL, 0);
    if (rc)
        return rc;
    bpi_frames_slab_range(ch->pool->frames, slab, &at, &bytes);
    ch->registered_bytes -= bytes;
    bpi_frames_slab_unregister(ch->pool->frames, slab);
    return 0;
}

uint8_t bpi_channel_register(struct channel *ch, unsigned slab)
{
    bp_pool *pool = ch->pool;
    uint8_t known;
    size_t bytes;
    void *at;
    int rc;

    if (!bpi_frames_slab_ready(pool->frames, slab))
        return SLAB_UNKNOWN; /* registering would populate the rest of it */
    slim_lock_take(&ch->lock);
    known = atomic_load_explicit(&ch->registered[slab], memory_order_relaxed);
    if (known == SLAB_UNKNOWN) {
        bpi_frames_slab_range(pool->frames, slab, &at, &bytes);
        known = SLAB_PLAIN;
        rc = slab_register(ch, slab, at, bytes);
        if (rc > 0) {
            known = SLAB_UNKNOWN; /* it has just begun to drain */
        } else if (!rc) {
            known = SLAB_REGISTERED;
            ch->registered_bytes += bytes;
        } else {
            snprintf(ch->buffer_reason, sizeof(ch->buffer_reason), "%llu MiB are registered; %s",
                     (unsigned long long)(ch->registered_bytes >> 20),
                     rc == -ENOSPC ? "more would exceed registered_max" : bp_strerror(rc));
        }
        atomic_store_explicit(&ch->registered[slab], known, memory_order_relaxed);
    }
    slim_lock_give(&ch->lock);
    return known;
}

uint64_t bpi_channels_registered(bp_pool *pool)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    uint64_t total = 0;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);
        unsigned slabs = bpi_frames_slab_count(pool->frames);

        for (unsigned k = 0; k < slabs; k++)
            total += atomic_load_explicit(&ch->registered[k], memory_order_relaxed) == SLAB_REGISTERED;
    }
    return total;
}

uint8_t bpi_channel_register_file(struct channel *ch, const bp_file *file)
{
    unsigned number = file_number(file);
    uint8_t known;

    slim_lock_take(&ch->lock);
    known = atomic_load_explicit(&ch->file[number], memory_order_relaxed);
    if (known == SLAB_UNKNOWN) {
        known = SLAB_PLAIN;
        if (ch->pool->options.registered != BP_OFF && ch->ops->file(ch->io, number, &file->io) == 0)
            known = SLAB_REGISTERED;
        atomic_store_explicit(&ch->file[number], known, memory_order_relaxed);
    }
    slim_lock_give(&ch->lock);
    return known;
}

/*
 * If a slot cannot be cleared, the ring keeps the file open until the next one with this number takes the slot, or the
 * pool closes. Nothing is read from it: each file is registered anew before its slot is named.
 */
void bpi_channels_forget_file(bp_pool *pool, const bp_file *file)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    unsigned number = file_number(file);

    for (unsigned i = 0; i < count && number < IO_FILES_MAX; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);

        slim_lock_take(&ch->lock);
        if (atomic_load_explicit(&ch->file[number], memory_order_relaxed) == SLAB_REGISTERED)
            ch->ops->file(ch->io, number, NULL);
        atomic_store_explicit(&ch->file[number], SLAB_UNKNOWN, memory_order_relaxed);
        slim_lock_give(&ch->lock);
    }
}

void bpi_channel_refuse_buffer(struct channel *ch, uint32_t frame)
{
    unsigned slab = bpi_frames_slab(ch->pool->frames, frame);

    slim_lock_take(&ch->lock);
    if (atomic_load_explicit(&ch->registered[slab], memory_order_relaxed) == SLAB_REGISTERED) {
        slab_unregister(ch, slab);
        atomic_store_explicit(&ch->registered[slab], SLAB_PLAIN, memory_order_relaxed);
    }
    slim_lock_give(&ch->lock);
}

int bpi_channels_unregister(bp_pool *pool, unsigned slab)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    int first_error = 0;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);
        int rc;

        slim_lock_take(&ch->lock);
        rc = slab_unregister(ch, slab);
        if (!rc && pool->options.registered != BP_OFF)
            atomic_store_explicit(&ch->registered[slab], SLAB_UNKNOWN, memory_order_relaxed);
        slim_lock_give(&ch->lock);
        first_error = first_error ? first_error : rc;
    }
    return first_error;
}

static unsigned reap(struct channel *ch, bp_session *s, struct counters *count)
{
    struct io_request *done[REAP_BATCH];
    unsigned total = 0;
    unsigned n;

    do {
        n = ch->ops->reap(ch->io, done, REAP_BATCH);
        SYNC_POINT("channel:reaped");
        if (n)
            bpi_reads_complete(ch, done, n, s, count);
        total += n;
    } while (n == REAP_BATCH && total < CHANNEL_DEPTH); /* bounded: others keep submitting */
    return total;
}

unsigned bpi_channel_help(struct channel *ch, bp_session *s, struct counters *count, unsigned want, uint64_t timeout_ns,
                          const struct io_until *until)
{
    unsigned n = reap(ch, s, count);

    if (n == 0 && timeout_ns) {
        ch->ops->wait_until(ch->io, want, timeout_ns, until);
        n = reap(ch, s, count);
    }
    return n;
}
