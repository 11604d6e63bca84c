/* SPDX-License-Identifier: MIT */
/*
 * One write, from a dirty extent to a clean one:
 *
 *   1  an extent that has the mark and that nobody holds exclusively is pinned (T23); small ones are copied, side by side
 *      with the dirty neighbours that follow in the file, and let go of; large ones stay pinned and are written where
 *      they lie. What is known of the oldest change moves from the extent to the write: from now on changes count anew.
 *   2  the log is flushed up to the newest LSN of all that goes out together
 *   3  written; short answers are continued, errors that time heals tried again after a while
 *   4  the same version still, and nobody at it: pinned again, mark and DIRTY gone (T24). Changed meanwhile: still dirty.
 *
 * If it fails for good, what 1 took is put back, and the extent is as dirty as before. If a run fails, its extents are
 * written one by one, so that one bad place costs one extent.
 */
#include <errno.h>
#include <string.h>

#include "bufpool/writeback.h"

#define RETRIES_MAX 5u /* of errors that time heals: 10, 20, 40, 80, 160 ms apart */
#define RETRY_NS    (10 * NS_PER_MS)
#define PIECES_MAX  32u /* answers in a row that get nowhere: 0 bytes, or less than the device's unit */

/* ---- the buffer ---- */

static bool page_used(const struct writer *w, uint32_t page)
{
    return w->used[page / 64] >> page % 64 & 1;
}

/* n pages side by side. false: there are none. */
static bool buffer_take(struct writer *w, uint32_t n, uint32_t *at)
{
    uint32_t size = 1u << w->buffer_order;
    uint32_t begin = 0;

    for (uint32_t page = 0; page < size; page++) {
        if (page_used(w, page)) {
            begin = page + 1;
        } else if (page + 1 - begin == n) {
            for (uint32_t i = begin; i <= page; i++)
                w->used[i / 64] |= 1ull << i % 64;
            *at = begin;
            return true;
        }
    }
    return false;
}

static void buffer_give(struct writer *w, uint32_t at, uint32_t n)
{
    for (uint32_t i = at; i < at + n; i++)
        w->used[i / 64] &= ~(1ull << i % 64);
}

static char *buffer_page(const struct writer *w, uint32_t at)
{
    return w->buffer + ((size_t)at << BP_PAGE_SHIFT);
}

/* ---- taking ---- */

static struct write_op *op_take(struct writer *w)
{
    if (w->flight < WRITES_MAX && w->batch_count < WRITE_BATCH)
        for (unsigned i = 0; i < WRITES_MAX; i++)
            if (!w->op[i].file)
                return &w->op[i];
    return NULL;
}

static void op_use(struct writer *w, struct write_op *op, bp_file *file, uint64_t page)
{
    op->io = (struct io_request){.op = IO_WRITE, .buffer = IO_BUFFER_NONE};
    op->file = file;
    op->page = page;
    op->pages = op->done = 0;
    op->parts = op->retries = 0;
    op->in_place = false;
    op->again_ns = op->newest = 0;
    atomic_store_explicit(&op->since, 0, memory_order_relaxed);
    atomic_store_explicit(&op->file_id, file->id, memory_order_relaxed);
    w->flight++;
    file->writes->flight++;
}

static void op_end(struct writer *w, struct write_op *op)
{
    struct file_writes *writes = op->file->writes;

    if (!op->in_place && op->pages)
        buffer_give(w, op->at, op->pages);
    atomic_store_explicit(&op->since, 0, memory_order_release);
    op->file = NULL;
    w->flight--;
    w->flight_pages -= op->pages;
    writes->flight--;
    atomic_fetch_add_explicit(&writes->progress, 1, memory_order_relaxed);
}

bool bpi_write_overlaps(const struct writer *w, const bp_file *file, uint64_t first, uint64_t last)
{
    if (!file->writes->flight)
        return false;
    for (unsigned i = 0; i < WRITES_MAX; i++) {
        const struct write_op *op = &w->op[i];

        if (op->file == file && op->page <= last && op->page + op->pages - 1 >= first)
            return true;
    }
    return false;
}

/* Pin what an index entry leads to, if it is that extent, dirty, and to be had. */
static bool hold_extent(struct writer *w, bp_file *file, const struct index_item *item, uint64_t *seen)
{
    struct frame *f = &w->pool->frame[item->frame];

    for (unsigned tries = 0; tries < 4; tries++) { /* readers come and go: their pins move the word */
        *seen = frame_load(f);
        if ((*seen & (FRAME_BOUND | FRAME_DIRTY | FRAME_EXCL)) != (FRAME_BOUND | FRAME_DIRTY) ||
            frame_order(*seen) != item->order || frame_id(f) != (file->id | item->page))
            return false;
        if (frame_hold_from(f, *seen))
            return true;
    }
    return false;
}

/* Of an extent that we have pinned: what is known of its changes is the write's from now on. */
static void take_part(struct writer *w, struct write_op *op, const struct index_item *item, uint64_t seen)
{
    struct frame_dirty *d = &w->pool->dirty[item->frame];
    uint64_t newest = atomic_load_explicit(&d->newest, memory_order_relaxed);

    op->part[op->parts++] = (struct write_part){.head = item->frame, .order = (uint8_t)item->order, .seen = seen};
    op->newest = newest > op->newest ? newest : op->newest;
    /* there first, then gone here: who looks for the oldest looks here and then there */
    since_raise(&op->since, atomic_load_explicit(&d->since, memory_order_relaxed));
    atomic_store_explicit(&d->since, 0, memory_order_release);
    bpi_index_unmark(&op->file->index, item->page, INDEX_TO_WRITE);
}

static void seal_pages(const bp_file *file, uint64_t page, char *at, uint32_t pages)
{
    for (uint32_t i = 0; file->seal && i < pages; i++)
        file->seal(file->ctx, page + i, at + ((size_t)i << BP_PAGE_SHIFT), BP_PAGE_SIZE);
}

/* Dirty neighbours in the order of the file, beginning with item[0]; how many. Nothing is held. */
static unsigned find_run(struct writer *w, bp_file *file, enum index_mark mark, uint64_t last, struct index_item item[],
                         uint32_t *pages)
{
    unsigned n = 1;

    *pages = 1u << item[0].order;
    if (file->writes->careful) {
        file->writes->careful--;
        return 1;
    }
    while (*pages < WRITE_RUN_PAGES) {
        uint64_t next = item[n - 1].page + (1ull << item[n - 1].order);
        struct index_item *more = &item[n];

        if (next > last || !bpi_index_next_marked(&file->index, next, mark, more) || more->page != next ||
            *pages + (1u << more->order) > WRITE_RUN_PAGES ||
            bpi_write_overlaps(w, file, next, next + (1ull << more->order) - 1))
            break;
        *pages += 1u << more->order;
        n++;
    }
    return n;
}

/* Copy a run, as far as there is room and it can be had. false: no room at all. */
static bool copy_run(struct writer *w, struct write_op *op, bp_file *file, const struct index_item item[], unsigned n,
                     uint32_t pages)
{
    uint32_t at = 0;

    while (!buffer_take(w, pages, &at)) {
        if (n == 1)
            return false;
        pages -= 1u << item[--n].order;
    }
    op_use(w, op, file, item[0].page);
    op->at = at;
    for (unsigned i = 0; i < n; i++) {
        uint64_t seen;
        uint32_t more = 1u << item[i].order;
        char *to = buffer_page(w, at + op->pages);

        if (!hold_extent(w, file, &item[i], &seen))
            break;
        SYNC_POINT("write:held");
        memcpy(to, w->pool->base + ((size_t)item[i].frame << BP_PAGE_SHIFT), (size_t)more << BP_PAGE_SHIFT);
        take_part(w, op, &item[i], seen);
        bpi_unpin(w->pool, item[i].frame);
        seal_pages(file, item[i].page, to, more);
        op->pages += more;
    }
    SYNC_POINT("write:copied");
    buffer_give(w, at + op->pages, pages - op->pages);
    op->data = buffer_page(w, at);
    return true;
}

/* A large one: pinned where it lies. */
static void hold_in_place(struct writer *w, struct write_op *op, bp_file *file, const struct index_item *item)
{
    uint64_t seen;

    op_use(w, op, file, item->page);
    op->in_place = true;
    if (!hold_extent(w, file, item, &seen))
        return;
    take_part(w, op, item, seen);
    op->pages = 1u << item->order;
    op->data = w->pool->base + ((size_t)item->frame << BP_PAGE_SHIFT);
}

unsigned bpi_write_choose(struct writer *w, bp_file *file, enum index_mark mark, uint64_t *from, uint64_t last,
                          unsigned most, bool *full)
{
    struct index_item item[WRITE_RUN_PAGES];
    unsigned begun = 0;

    *full = false;
    while (begun < most && *from <= last && bpi_index_next_marked(&file->index, *from, mark, item) &&
           item[0].page <= last) {
        struct write_op *op = op_take(w);
        uint64_t end = item[0].page + (1ull << item[0].order);
        uint32_t pages;

        if (!op) {
            *full = true;
            return begun;
        }
        if (bpi_write_overlaps(w, file, item[0].page, end - 1)) {
            *from = end;
            continue;
        }
        if (item[0].order >= WRITE_IN_PLACE && !file->seal) {
            hold_in_place(w, op, file, item);
        } else {
            unsigned n = find_run(w, file, mark, last, item, &pages);

            if (!copy_run(w, op, file, item, n, pages)) {
                *full = true;
                return begun;
            }
        }
        *from = op->pages ? op->page + op->pages : end;
        if (!op->parts) { /* op->pages is 0 */
            op_end(w, op);
            continue;
        }
        w->flight_pages += op->pages;
        w->batch[w->batch_count++] = op;
        begun++;
    }
    if (begun < most)
        *from = UINT64_MAX; /* nothing more in the range */
    return begun;
}

/* ---- putting back ---- */

/* It was not written: its extents are as dirty as they were. */
static void give_up(struct writer *w, struct write_op *op, bool again)
{
    uint64_t since = atomic_load_explicit(&op->since, memory_order_relaxed);
    uint64_t page = op->page;

    for (unsigned i = 0; i < op->parts; i++) {
        const struct write_part *part = &op->part[i];

        /*
         * Without a latch: if it is another extent's by now, that one seems to be older than it is, and the log is kept
         * longer than it need be.
         */
        since_raise(&w->pool->dirty[part->head].since, since);
        if (again)
            bpi_index_mark(&op->file->index, page, INDEX_TO_WRITE);
        page += 1ull << part->order;
    }
    since_raise(&op->file->unsynced, since); /* for who has looked at the extents already, and not yet here */
    if (op->in_place)
        bpi_unpin(w->pool, op->part[0].head);
    op_end(w, op);
}

static void failed(struct writer *w, struct write_op *op, int error)
{
    bp_file *file = op->file;
    uint64_t first = op->page;
    uint64_t last = first + op->pages - 1;

    if (op->parts > 1) { /* which of them is it? */
        file->writes->careful += op->parts;
        give_up(w, op, bpi_write_wanted(w, file, first, last));
        return;
    }
    counter_add(&w->write_errors, 1);
    atomic_store_explicit(&w->error, error, memory_order_relaxed);
    file->writes->failed_ns = bpi_now_ns();
    give_up(w, op, false);
    bpi_write_tell(w, file, first, last, error, false);
}

/* ---- the log, and out ---- */

/* The log up to the newest LSN of the file's writes in the batch. 0 or an error. */
static int flush_log(struct writer *w, bp_file *file)
{
    uint64_t newest = 0;
    int rc;

    for (unsigned i = 0; i < w->batch_count; i++)
        if (w->batch[i] && w->batch[i]->file == file && w->batch[i]->newest > newest)
            newest = w->batch[i]->newest;
    if (!file->flush_log || newest <= file->writes->log_done)
        return 0;
    rc = file->flush_log(file->ctx, newest);
    counter_add(&w->log_flushes, 1);
    atomic_store_explicit(&w->log_error, rc > 0 ? -EIO : rc, memory_order_relaxed);
    if (rc) {
        counter_add(&w->log_errors, 1);
        return rc > 0 ? -EIO : rc;
    }
    file->writes->log_done = newest;
    return 0;
}

/* Without its log nothing of a file goes out. */
static void refuse(struct writer *w, bp_file *file, int error)
{
    for (unsigned i = 0; i < w->batch_count; i++) {
        struct write_op *op = w->batch[i];

        if (!op || op->file != file)
            continue;
        w->batch[i] = NULL;
        give_up(w, op, false);
    }
    file->writes->failed_ns = bpi_now_ns();
    bpi_write_tell(w, file, 0, UINT64_MAX, error, true);
}

/* As a request names it: registered with the channel when it is first written. */
static uint32_t slot_of(struct writer *w, bp_file *file)
{
    struct file_writes *writes = file->writes;
    unsigned number = file_number(file);

    if (!writes->asked_slot && w->pool->options.registered != BP_OFF && number < IO_FILES_MAX &&
        w->ops->file(w->io, number, &file->io) == 0)
        writes->slot = number + 1;
    writes->asked_slot = true;
    return writes->slot;
}

static void prepare(struct writer *w, struct write_op *op)
{
    op->io.file = &op->file->io;
    op->io.file_slot = slot_of(w, op->file);
    op->io.buffer = w->registered && !op->in_place ? 0 : IO_BUFFER_NONE;
    op->io.offset = (op->page << BP_PAGE_SHIFT) + op->done;
    op->io.to = op->data + op->done;
    op->io.bytes = (op->pages << BP_PAGE_SHIFT) - op->done;
}

/* What the channel does not take now is tried again a little later. */
static void submit(struct writer *w, struct write_op *const op[], unsigned n)
{
    struct io_request *request[WRITE_BATCH];
    unsigned done = 0;
    int taken = 1;

    for (unsigned i = 0; i < n; i++)
        request[i] = &op[i]->io;
    while (done < n && taken > 0) {
        taken = w->ops->submit(w->io, request + done, n - done, IO_BACKGROUND);
        done += taken > 0 ? (unsigned)taken : 0;
    }
    w->submitted += done;
    for (; done < n; done++)
        op[done]->again_ns = bpi_now_ns() + NS_PER_MS;
}

void bpi_write_submit(struct writer *w)
{
    struct write_op *op[WRITE_BATCH];
    unsigned n = 0;

    for (unsigned i = 0; i < w->batch_count; i++) {
        bp_file *file = w->batch[i] ? w->batch[i]->file : NULL;
        int rc = 0;

        for (unsigned k = 0; k < n && file; k++) /* asked already */
            if (op[k]->file == file)
                file = NULL;
        if (file)
            rc = flush_log(w, file);
        if (rc)
            refuse(w, file, rc);
        if (w->batch[i]) {
            prepare(w, w->batch[i]);
            op[n++] = w->batch[i];
        }
    }
    w->batch_count = 0;
    SYNC_POINT("write:submit");
    submit(w, op, n);
}

uint64_t bpi_write_retry(struct writer *w, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;

    for (unsigned i = 0; w->flight && i < WRITES_MAX; i++) {
        struct write_op *op = &w->op[i];

        if (!op->file || !op->again_ns)
            continue;
        if (op->again_ns <= now_ns) {
            op->again_ns = 0;
            prepare(w, op);
            submit(w, &op, 1);
        }
        if (op->again_ns && op->again_ns < next)
            next = op->again_ns;
    }
    return next;
}

/* ---- answers ---- */

/* Clean, if it still is what was written. The pin of one that was written in place is used up. */
static void clean_part(struct writer *w, bp_file *file, uint64_t page, const struct write_part *part, bool pinned)
{
    struct frame *f = &w->pool->frame[part->head];
    uint64_t id = file->id | page;

    while (!pinned) { /* ends: a word that moves for ever is of another version at some time, and others' pins end */
        uint64_t seen = frame_load(f);

        if (!frame_same_version(seen, part->seen) || (seen & (FRAME_EXCL | FRAME_DIRTY)) != FRAME_DIRTY ||
            frame_id(f) != id || (seen & FRAME_PINS) >= FRAME_PINS_MAX) {
            counter_add(&w->write_stale, 1);
            return;
        }
        pinned = frame_hold_from(f, seen);
    }
    SYNC_POINT("write:cleaning");
    bpi_index_unmark(&file->index, page, INDEX_TO_WRITE);
    bpi_index_unmark(&file->index, page, INDEX_DIRTY);
    atomic_fetch_sub_explicit(&file->dirty, 1ull << part->order, memory_order_relaxed);
    atomic_fetch_sub_explicit(&w->pool->dirty_pages, 1ull << part->order, memory_order_relaxed);
    if (frame_written(f) & FRAME_WAITERS) /* for a latch: our pin was in the way */
        bpi_frame_wake(f);
}

static void written(struct writer *w, struct write_op *op)
{
    bp_file *file = op->file;
    uint64_t page = op->page;

    file->writes->written = true;
    file->writes->failed_ns = 0;
    bpi_damage_heal(file, page, op->pages); /* a device that could not read them has new ones in their place */
    since_raise(&file->unsynced, atomic_load_explicit(&op->since, memory_order_relaxed));
    for (unsigned i = 0; i < op->parts; i++) {
        clean_part(w, file, page, &op->part[i], op->in_place);
        page += 1ull << op->part[i].order;
    }
    counter_add(&w->writes, 1);
    counter_add(&w->write_bytes, (uint64_t)op->pages << BP_PAGE_SHIFT);
    counter_add(&w->write_extents, op->parts);
    atomic_store_explicit(&w->error, 0, memory_order_relaxed);
    op_end(w, op);
    w->cleaned = true;
}

static bool heals(int error)
{
    return error == -ENOSPC || error == -EDQUOT || error == -EAGAIN || error == -EINTR || error == -ENOMEM ||
           error == -EBUSY || error == -ENOBUFS;
}

static void again_after(struct writer *w, struct write_op *op, uint64_t ns)
{
    counter_add(&w->write_retries, 1);
    op->again_ns = bpi_now_ns() + ns;
}

static void answered(struct writer *w, struct write_op *op)
{
    int32_t result = op->io.result;
    uint32_t keep;

    SYNC_POINT("write:answer");
    if ((result == -EFAULT || result == -EOPNOTSUPP) && op->io.buffer != IO_BUFFER_NONE) {
        w->registered = false; /* then without */
        again_after(w, op, 0);
        return;
    }
    if (result < 0 && heals(result) && op->retries < RETRIES_MAX) {
        again_after(w, op, RETRY_NS << op->retries++);
        return;
    }
    if (result < 0) {
        failed(w, op, result);
        return;
    }
    if ((uint32_t)result >= op->io.bytes) {
        written(w, op);
        return;
    }
    /* from the last position that the device can start at; what it wrote behind that is written again */
    keep = (op->done + (uint32_t)result) & ~(op->file->io.align - 1);
    op->retries = keep > op->done ? 0 : op->retries + 1;
    op->done = keep;
    if (op->retries > PIECES_MAX) {
        failed(w, op, -EIO);
        return;
    }
    again_after(w, op, 0);
}

/* Less is dirty: for who wants a frame, and for who wants to make it more. */
static void tell_waiting(bp_pool *pool)
{
    bpi_release_notify(pool);
    if (!atomic_load_explicit(&pool->stopped, memory_order_seq_cst))
        return;
    atomic_fetch_add_explicit(&pool->cleaned, 1, memory_order_seq_cst);
    bpi_futex_wake(&pool->cleaned, INT32_MAX);
}

void bpi_write_reaped(struct writer *w, struct io_request *const done[], unsigned n)
{
    w->submitted -= n;
    for (unsigned i = 0; i < n; i++) {
        if (done[i]->op == IO_SYNC)
            bpi_write_synced(w, ((struct file_writes *)done[i])->file, done[i]->result);
        else
            answered(w, (struct write_op *)done[i]);
    }
    if (w->cleaned)
        tell_waiting(w->pool);
    w->cleaned = false;
}
