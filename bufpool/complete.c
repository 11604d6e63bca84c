/* SPDX-License-Identifier: MIT */
/*
 * Reads that have ended: from the channel to everybody who waits for the page.
 *
 *   whole:       let everybody in at once                                                              T3
 *   in part:     ask for the rest; at the end of the file, clear what lies past it, then as above
 *   failed:      out of the index first, then FAILED; each waiter takes the error and its pin; of a read of many pages
 *                nobody does, all look again for a smaller one (damage.h)                              T4
 *   not wanted:  published, but somebody else's extent was in the index: the same, and all look again
 *
 * By whoever looks first (R6). What is reaped together is completed together, with one round of locks, for locked
 * instructions are a good part of what a miss costs the processor.
 */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

#define RETRIES_MAX 32   /* of one read, without progress: EAGAIN, EINTR, less than the device can build on */
#define PIECES_MAX  8192 /* of one read */

void bpi_frame_release(bp_pool *pool, uint32_t head)
{
    uint64_t before = frame_unbind(&pool->frame[head]);

    if (before & FRAME_WAITERS)
        bpi_frame_wake(&pool->frame[head]);
    bpi_frame_give(pool, head, frame_order(before));
    bpi_release_notify(pool);
}

void bpi_unpin(bp_pool *pool, uint32_t head)
{
    struct frame *f = &pool->frame[head];
    uint64_t before = frame_unpin(f);

    if (frame_pins(before) > 1)
        return;
    if (before & FRAME_FAILED) { /* the last of those who waited: nobody else can find it */
        bpi_frame_release(pool, head);
        return;
    }
    if (before & FRAME_WAITERS)
        bpi_frame_wake(f);
    if (!(before & FRAME_EXCL))
        bpi_release_notify(pool);
}

/* A read's k-th extent. */
static inline uint32_t head_of(const struct read *r, uint32_t k)
{
    return r->frame + (k << r->order);
}

static inline uint64_t first_page(const struct read *r)
{
    return frame_id(&r->channel->pool->frame[r->frame]) & FRAME_ID_PAGE;
}

/*
 * READING is gone from the heads of these reads, and what waits on the words for a latch has been woken: those who wait
 * in the channel look again, operations are handed to their sessions.
 */
static void tell_and_end(struct channel *ch, struct read *const r[], unsigned n, bp_session *s)
{
    const _Atomic uint64_t *word[REAP_BATCH];
    unsigned words = 0;

    for (unsigned i = 0; i < n; i++) {
        for (uint32_t k = 0; k < r[i]->heads; k++) {
            if (words == REAP_BATCH) {
                ch->ops->announce(ch->io, word, words);
                words = 0;
            }
            word[words++] = &ch->pool->frame[head_of(r[i], k)].state;
        }
    }
    ch->ops->announce(ch->io, word, words);
    bpi_reads_end(ch, r, n, s);
}

/* Out of the index, or never in it: everybody who waits gets the error. The caller gets a pin (T4). */
static void fail_frames(struct read *r, int error, bp_session *s)
{
    bp_pool *pool = r->channel->pool;

    for (uint32_t k = 0; k < r->heads; k++) {
        uint32_t head = head_of(r, k);

        atomic_store_explicit(&pool->cold[head].error, error, memory_order_relaxed);
        if (frame_fail(&pool->frame[head]) & FRAME_WAITERS)
            bpi_frame_wake(&pool->frame[head]);
    }
    tell_and_end(r->channel, &r, 1, s);
}

/* Out of the index, and everybody is told. */
static void drop_read(struct read *r, int error, bp_session *s)
{
    bp_pool *pool = r->channel->pool;
    struct read was = *r; /* it is given back on the way */

    for (uint32_t k = 0; k < was.heads; k++) {
        uint32_t head = head_of(&was, k);

        bpi_index_erase(&r->file->index, frame_id(&pool->frame[head]) & FRAME_ID_PAGE, r->order, head, ENTRY_NONE);
        file_shrank(r->file, 1ull << r->order);
    }
    fail_frames(r, error, s);
    for (uint32_t k = 0; k < was.heads; k++)
        bpi_unpin(pool, head_of(&was, k));
}

/* Does an error tell of what lies there? Others tell of the system, and what lies there is not known. */
static bool is_damage(int error)
{
    return error == -EIO || error == -ENODATA || error == -EILSEQ || error == -EREMOTEIO || error == -EUCLEAN ||
           error == -EBADMSG;
}

void bpi_read_failed(struct read *r, int error, bp_session *s, struct counters *count)
{
    if (error != ABANDONED)
        counter_add(&count->read_errors, 1);
    if (is_damage(error))
        bpi_damage_note(r->file, first_page(r), r->bytes >> BP_PAGE_SHIFT, error);
    /* which of many pages it was, or of a run's, only a read of its own can say */
    drop_read(r, r->heads > 1 || (r->order && is_damage(error)) ? ABANDONED : error, s);
}

void bpi_read_abandon(struct read *r, bp_session *s)
{
    bp_pool *pool = s->pool;
    uint32_t head = r->frame;

    fail_frames(r, ABANDONED, s);
    bpi_unpin(pool, head);
    bpi_unpin(pool, head); /* the initiator's, from frame_publish */
}

/* Their bytes are there; up to REAP_BATCH of one channel. */
static void reads_succeeded(struct channel *ch, struct read *const r[], unsigned n, bp_session *s,
                            struct counters *count)
{
    struct frame *frame = ch->pool->frame;
    uint64_t bytes = 0;
    bool given_up = false;

    for (unsigned i = 0; i < n; i++) {
        bytes += r[i]->done;
        if (unlikely(r[i]->ahead_ns))
            bpi_ahead_measured(ch->pool, bpi_now_ns() - r[i]->ahead_ns);
        SYNC_POINT("fault:complete");
        for (uint32_t k = 0; k < r[i]->heads; k++) {
            struct frame *f = &frame[head_of(r[i], k)];
            uint64_t before = frame_read_done(f);

            if (before & FRAME_WAITERS)
                bpi_frame_wake(f);
            given_up |= !(before & FRAME_PINS); /* everybody who asked */
        }
    }
    counter_add(&count->reads, n);
    counter_add(&count->read_bytes, bytes);
    tell_and_end(ch, r, n, s);
    if (given_up)
        bpi_release_notify(ch->pool);
}

/*
 * What the file's owner says of the pages that a read has brought, as far as the file has them. 0, or an error: of the
 * only page, or ABANDONED; those to blame are noted.
 */
static int verify_pages(const struct read *r, struct counters *count)
{
    const bp_pool *pool = r->channel->pool;
    bp_file *file = r->file;
    uint64_t page = first_page(r);
    uint32_t pages = r->bytes >> BP_PAGE_SHIFT;
    int error = 0;

    for (uint32_t i = 0; i < pages; i++) {
        uint32_t bytes = (uint32_t)bp_page_file_bytes(file, page + i);
        int rc;

        if (!bytes)
            break;
        rc = file->verify(file->ctx, page + i, pool->base + ((size_t)(r->frame + i) << BP_PAGE_SHIFT), bytes);
        if (rc) {
            error = rc > 0 || rc == ABANDONED ? -EBADMSG : rc;
            counter_add(&count->read_errors, 1);
            bpi_damage_note(file, page + i, 1, error);
        }
    }
    return error && pages > 1 ? ABANDONED : error;
}

/* All bytes are there: is it true? */
static inline bool is_sound(struct read *r, bp_session *s, struct counters *count)
{
    int rc = unlikely(r->file->verify != NULL) ? verify_pages(r, count) : 0;

    if (rc)
        drop_read(r, rc, s);
    else if (file_is_damaged(r->file))
        bpi_damage_heal(r->file, first_page(r), r->bytes >> BP_PAGE_SHIFT);
    return !rc;
}

/* Ask for the rest, from the last position that the device can start at. */
static int resubmit(struct read *r)
{
    struct io_request *const io = &r->io;
    uint32_t keep = r->done & ~(r->file->io.align - 1);
    char *start = (char *)io->to - (r->bytes - io->bytes);
    int taken;

    io->offset += keep - (r->bytes - io->bytes);
    io->to = start + keep;
    io->bytes = r->bytes - keep;
    r->done = keep;
    taken = r->channel->ops->submit(r->channel->io, (struct io_request *const[]){io}, 1, IO_BACKGROUND);
    return taken == 1 ? 0 : taken < 0 ? taken : -EAGAIN;
}

/*
 * A reader gets less than it asked for at the end of the file, and elsewhere for many reasons (signals, FUSE, block
 * boundaries), so only a zero, or the file system's word on the size, means the end.
 */
static bool at_end(const struct read *r, int32_t result)
{
    uint64_t bytes;
    uint64_t start = r->io.offset - (r->bytes - r->io.bytes);

    return result == 0 || (bpi_io_file_size(&r->file->io, &bytes) == 0 && start + r->done >= bytes);
}

/* What to do about an answer that is not the whole: 0: it goes on, 1: it is complete, else the error. */
static int read_next(struct read *r, struct counters *count)
{
    int32_t result = r->io.result;
    int rc;

    if ((result == -EFAULT || result == -EOPNOTSUPP) && r->io.buffer != IO_BUFFER_NONE) {
        bpi_channel_refuse_buffer(r->channel, r->frame);
        r->io.buffer = IO_BUFFER_NONE;
    } else if (result < 0 && result != -EAGAIN && result != -EINTR) {
        return result;
    }
    if (result >= 0) {
        r->done = (r->bytes - r->io.bytes) + (uint32_t)result;
        if (r->done >= r->bytes)
            return 1;
        if (at_end(r, result)) /* before the end that the file is going to have, what is not there yet is a hole */
            return r->done || r->io.offset - (r->bytes - r->io.bytes) < file_end(r->file) ? 1 : BP_EOF;
    }
    r->retries = (r->done & ~(r->file->io.align - 1)) > r->bytes - r->io.bytes ? 0 : r->retries + 1;
    if (r->retries > RETRIES_MAX || r->pieces++ > PIECES_MAX)
        return -EIO; /* also for EAGAIN and EINTR, which mean something else to our callers */
    counter_add(&count->read_continued, 1);
    rc = resubmit(r);
    return rc == -EAGAIN ? -EBUSY : rc;
}

/* Less than was asked for, or an error. */
static void complete_partly(struct read *r, bp_session *s, struct counters *count)
{
    int rc = read_next(r, count);

    if (rc < 0) {
        bpi_read_failed(r, rc, s, count);
    } else if (rc) {
        if (r->done < r->bytes)
            memset((char *)r->io.to + (r->done - (r->bytes - r->io.bytes)), 0, r->bytes - r->done);
        if (is_sound(r, s, count))
            reads_succeeded(r->channel, &r, 1, s, count);
    }
}

/* Those that are whole first: going on with the others may take a system call. */
void bpi_reads_complete(struct channel *ch, struct io_request *const done[], unsigned n, bp_session *s,
                        struct counters *count)
{
    struct read *whole[REAP_BATCH];
    struct read *partly[REAP_BATCH];
    unsigned whole_count = 0;
    unsigned partly_count = 0;

    for (unsigned i = 0; i < n; i++) {
        struct read *r = (struct read *)done[i];

        if (likely(r->io.result == (int32_t)r->io.bytes)) {
            r->done = r->bytes;
            if (is_sound(r, s, count))
                whole[whole_count++] = r;
        } else {
            partly[partly_count++] = r;
        }
    }
    if (whole_count)
        reads_succeeded(ch, whole, whole_count, s, count);
    for (unsigned i = 0; i < partly_count; i++)
        complete_partly(partly[i], s, count);
}
