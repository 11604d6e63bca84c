/* SPDX-License-Identifier: MIT */
/*
 * Files: opening, closing, and where they end. A bp_file's memory stays a bp_file while the pool is open (its slot is
 * reused), so an evictor that still holds a file's lock when the file's last page goes is safe.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bufpool/pool.h"

#define FLOORS_SHARE    8  /* all files' floors leave this part of the pool free */
#define CEILING_EXTENTS 16 /* the least ceiling */
#define DROP_WAIT_NS    (100 * NS_PER_MS)
#define PINS_WAIT_NS    (20 * NS_PER_MS)   /* for pins that are on their way back */
#define LATCH_WAIT_NS   (2000 * NS_PER_MS) /* for latches: an eviction takes microseconds, unless its thread has no CPU */

/* ---- opening ---- */

/* The order asked for, or an error in words. */
static int check_options(const bp_pool *pool, const struct bp_file_options *o, unsigned *order)
{
    uint32_t bytes = o->extent_bytes ? o->extent_bytes : BP_PAGE_SIZE;

    *order = 0;
    if (o->size < sizeof(*o)) {
        bpi_error_set(o->error, -EINVAL, "bp_file_options.size is %zu, not %zu", o->size, sizeof(*o));
        return -EINVAL;
    }
    if (bytes < BP_PAGE_SIZE || bytes & (bytes - 1) || bytes > BP_PAGE_SIZE << BP_ORDER_MAX) {
        bpi_error_set(o->error, -EINVAL, "extent_bytes %u is not a power of two from %u to %u", bytes, BP_PAGE_SIZE,
                      BP_PAGE_SIZE << BP_ORDER_MAX);
        return -EINVAL;
    }
    *order = (unsigned)__builtin_ctz(bytes) - BP_PAGE_SHIFT;
    if (*order && (1u << *order) > frames_limit(pool) / EXTENT_SHARE) {
        bpi_error_set(o->error, -EINVAL, "extent_bytes %u is more than a sixteenth of the pool (%u frames of 4 KiB)",
                      bytes, frames_limit(pool));
        return -EINVAL;
    }
    if (o->stream_bytes && (o->stream_bytes < bytes || o->stream_bytes & (o->stream_bytes - 1) ||
                            o->stream_bytes > BP_PAGE_SIZE << BP_ORDER_MAX)) {
        bpi_error_set(o->error, -EINVAL, "stream_bytes %u is not a power of two from extent_bytes (%u) to %u",
                      o->stream_bytes, bytes, BP_PAGE_SIZE << BP_ORDER_MAX);
        return -EINVAL;
    }
    if ((unsigned)o->direct > BP_OFF || (unsigned)o->readahead > BP_OFF) {
        bpi_error_set(o->error, -EINVAL, "direct or readahead is none of the values of its enum");
        return -EINVAL;
    }
    if ((o->create || o->flush_log || o->seal) && !o->write) {
        bpi_error_set(o->error, -EINVAL, "create, flush_log and seal are for files opened with write");
        return -EINVAL;
    }
    if (o->write && o->null_bytes) {
        bpi_error_set(o->error, -EINVAL, "a file of BP_IO_NULL cannot be written");
        return -EINVAL;
    }
    if ((pool->options.io == BP_IO_NULL) != (o->null_bytes != 0) || o->null_bytes % BP_PAGE_SIZE ||
        o->null_bytes > BP_PAGE_MAX << BP_PAGE_SHIFT) {
        bpi_error_set(o->error, -EINVAL, "null_bytes is for pools of BP_IO_NULL, and there a multiple of %u up to 2^63",
                      BP_PAGE_SIZE);
        return -EINVAL;
    }
    return 0;
}

/* What streams may be read in, where the pool is large enough. */
static unsigned stream_order(unsigned order, const struct bp_file_options *o)
{
    if (o->stream_bytes)
        return (unsigned)__builtin_ctz(o->stream_bytes) - BP_PAGE_SHIFT;
    return o->write ? order : BP_ORDER_MAX; /* who writes latches neighbours apart */
}

/* An open file that is the same one, and a slot that could be used. Under pool.lock. */
static bp_file *find_same(bp_pool *pool, const struct io_file *io, unsigned *slot)
{
    *slot = 0;
    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_relaxed);

        if (!file || !file->opens) {
            if (!*slot)
                *slot = i;
            if (!file)
                break; /* slots are used from below */
        } else if (file->io.dev == io->dev && file->io.ino == io->ino && !file->closing) {
            return file;
        }
    }
    return NULL;
}

static void set_up_writing(bp_file *file, const struct bp_file_options *o)
{
    file->write = o->write;
    file->flush_log = o->flush_log;
    file->seal = o->seal;
    atomic_store_explicit(&file->end, 0, memory_order_relaxed);
    atomic_store_explicit(&file->abandoned, false, memory_order_relaxed);
    atomic_store_explicit(&file->failed, 0, memory_order_relaxed);
    atomic_store_explicit(&file->unsynced, 0, memory_order_relaxed);
    atomic_store_explicit(&file->syncing, 0, memory_order_relaxed);
    atomic_store_explicit(&file->quiet, false, memory_order_release); /* from now on the writer may */
}

/* Was it opened as these options say? */
static bool same_options(const bp_file *file, const struct bp_file_options *o, unsigned order)
{
    return file->order == order && file->stream_order == stream_order(order, o) && file->readahead == o->readahead &&
           file->direct == o->direct && file->write == o->write && file->flush_log == o->flush_log &&
           file->seal == o->seal && file->verify == o->verify && file->ctx == o->ctx;
}

static void set_up(bp_file *file, unsigned slot, const char *path, unsigned order, const struct io_file *io,
                   uint64_t bytes, const struct bp_file_options *o)
{
    size_t length = strlen(path);
    const char *tail = length < sizeof(file->name) ? path : path + length - (sizeof(file->name) - 1);

    file->id = (uint64_t)slot << FRAME_ID_FILE_SHIFT;
    file->io = *io;
    file->order = order;
    file->opens = 1;
    file->stream_order = stream_order(order, o);
    file->readahead = o->readahead;
    file->finds_streams = o->readahead == BP_ON || (o->readahead == BP_TRY && !io->null_bytes);
    file->direct = o->direct;
    file->ctx = o->ctx;
    file->verify = o->verify;
    memcpy(file->name, tail, strlen(tail) + 1);
    atomic_store_explicit(&file->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&file->resident, 0, memory_order_relaxed);
    atomic_store_explicit(&file->own_at, 0, memory_order_relaxed);
    for (unsigned i = 0; i < AHEAD_STREAMS; i++)
        atomic_store_explicit(&file->stream[i].next, 0, memory_order_relaxed);
    set_up_writing(file, o);
}

/* Find or make the bp_file. Takes io over where it is new. Under pool.lock. */
static int enter_file(bp_pool *pool, const char *path, const struct bp_file_options *o, unsigned order,
                      struct io_file *io, uint64_t bytes, bp_file **out)
{
    unsigned slot;
    bp_file *file = find_same(pool, io, &slot);

    if (file) {
        bpi_io_file_close(io);
        if (!same_options(file, o, order)) {
            bpi_error_set(o->error, -EEXIST, "%s is open in this pool with other options", path);
            return -EEXIST;
        }
        file->opens++;
        *out = file;
        return 0;
    }
    if (!slot) {
        bpi_error_set(o->error, -ENFILE, "%s: %u files are open in this pool", path, FRAME_FILES_MAX);
        return -ENFILE;
    }
    file = atomic_load_explicit(&pool->file[slot], memory_order_relaxed);
    if (!file) {
        file = aligned_alloc(LINE, (sizeof(*file) + LINE - 1) / LINE * LINE);
        if (!file)
            return -ENOMEM;
        memset(file, 0, sizeof(*file));
        file->pool = pool;
        bpi_index_init(&file->index, &pool->nodes);
        file->leaf = file->index.leaf;
        if (!file->leaf || file->index.leaf_pages < leaf_pages(&pool->nodes)) { /* hits look there without asking */
            bpi_index_destroy(&file->index);
            free(file);
            return -ENOMEM;
        }
        atomic_store_explicit(&pool->file[slot], file, memory_order_release);
    }
    if (o->write && bpi_writer_file(file))
        return -ENOMEM;
    set_up(file, slot, path, order, io, bytes, o);
    pool->file_count++;
    *out = file;
    return 0;
}

/* The file behind a path, or a null file. */
static int open_io(bp_pool *pool, const char *path, const struct bp_file_options *o, struct io_file *io)
{
    static const enum io_direct direct[] = {[BP_TRY] = IO_DIRECT_TRY, [BP_ON] = IO_DIRECT_ON, [BP_OFF] = IO_DIRECT_OFF};
    char why[200];
    int rc;

    if (o->null_bytes) {
        pthread_mutex_lock(&pool->lock);
        bpi_io_file_null(io, o->null_bytes, ++pool->null_files);
        pthread_mutex_unlock(&pool->lock);
        return 0;
    }
    rc = o->write ? bpi_io_file_open_write(io, path, o->create, direct[o->direct], why, sizeof(why))
                  : bpi_io_file_open(io, path, direct[o->direct], why, sizeof(why));
    if (rc)
        bpi_error_set(o->error, rc, "%s: %s", path, why);
    if (!rc && why[0]) {
        pthread_mutex_lock(&pool->lock);
        snprintf(pool->direct_reason, sizeof(pool->direct_reason), "%.119s", why);
        pthread_mutex_unlock(&pool->lock);
    }
    return rc;
}

int bp_file_open(bp_pool *pool, const char *path, const struct bp_file_options *options, bp_file **out)
{
    struct bp_file_options o = options ? *options : (struct bp_file_options){.size = sizeof(o)};
    struct io_file io = {.fd = -1};
    uint64_t bytes;
    unsigned order;
    int rc;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    rc = check_options(pool, &o, &order);
    if (rc)
        return rc;
    if (pool->options.strict && o.direct == BP_TRY && !o.null_bytes)
        o.direct = BP_ON;
    rc = o.write ? bpi_writer_open(pool) : 0;
    if (rc) {
        bpi_error_set(o.error, rc, "%s: the thread that writes, or its memory: %s", path, bp_strerror(rc));
        return rc;
    }
    rc = open_io(pool, path, &o, &io);
    if (rc)
        return rc;
    rc = bpi_io_file_size(&io, &bytes);
    if (rc) {
        bpi_error_set(o.error, rc, "%s: its size: %s", path, bp_strerror(rc));
        goto out;
    }
    pthread_mutex_lock(&pool->lock);
    rc = enter_file(pool, path, &o, order, &io, bytes, out);
    pthread_mutex_unlock(&pool->lock);
out:
    if (rc && io.fd >= 0)
        bpi_io_file_close(&io);
    return rc;
}

/* ---- the end of a file ---- */

/* An extent that we latched goes; false: it is being read in a run, and was let be. */
static bool take_out(bp_file *file, uint32_t head, uint64_t seen)
{
    struct frame *f = &file->pool->frame[head];

    if (bpi_index_evict(&file->index, frame_id(f) & FRAME_ID_PAGE, frame_order(seen), head, ENTRY_NONE) != INDEX_HELD) {
        file_shrank(file, 1ull << frame_order(seen));
        if (seen & FRAME_DIRTY)
            bpi_dirty_forget(file, head);
        bpi_frame_release(file->pool, head);
        return true;
    }
    latch_drop(f);
    return false;
}

/* Take an extent out that holds what was the file's last page: it was read when the file was shorter. */
static void drop_stale_end(bp_file *file, uint64_t page)
{
    bp_pool *pool = file->pool;
    index_entry e = bpi_index_load(&file->index, page);
    uint64_t seen;
    uint64_t id;
    uint32_t head;

    if (!entry_is_frame(e) || entry_number(e) >= pool->frames_total)
        return;
    head = frame_head(pool->frame, entry_number(e), &seen);
    id = frame_id(&pool->frame[head]);
    if ((seen & (FRAME_EXCL | FRAME_PINS | FRAME_BOUND | FRAME_DIRTY)) != FRAME_BOUND ||
        id != (file->id | (page & ~extent_mask(frame_order(seen)))) || !frame_lock_from(&pool->frame[head], seen))
        return; /* in use: whoever has it sees the file as it was */
    take_out(file, head, seen);
}

int bp_file_size(bp_file *file, uint64_t *bytes)
{
    uint64_t known;
    int rc;

    if (bpi_pool_forked(file->pool))
        return BP_FORKED;
    rc = bpi_io_file_size(&file->io, bytes);
    if (rc)
        return rc;
    if (*bytes < file_end(file))
        *bytes = file_end(file);
    known = atomic_exchange_explicit(&file->bytes, *bytes, memory_order_relaxed);
    if (known != *bytes && known % BP_PAGE_SIZE)
        drop_stale_end(file, known >> BP_PAGE_SHIFT);
    return 0;
}

size_t bp_page_file_bytes(const bp_file *file, uint64_t page)
{
    uint64_t bytes = atomic_load_explicit(&file->bytes, memory_order_relaxed);

    if (page >= BP_PAGE_MAX || page << BP_PAGE_SHIFT >= bytes)
        return 0;
    bytes -= page << BP_PAGE_SHIFT;
    return bytes < BP_PAGE_SIZE ? (size_t)bytes : BP_PAGE_SIZE;
}

bool bp_file_direct(const bp_file *file)
{
    return file->io.direct;
}

/* ---- its share of the memory ---- */

/* Under pool.lock. */
static void set_limits(bp_file *file, uint64_t floor, uint64_t ceiling)
{
    bp_pool *pool = file->pool;
    uint64_t before = atomic_exchange_explicit(&file->floor_pages, floor, memory_order_relaxed);

    pool->floor_pages = pool->floor_pages - before + floor;
    atomic_store_explicit(&file->ceiling_pages, ceiling, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->floors, (unsigned)(floor != 0) - (unsigned)(before != 0), memory_order_relaxed);
}

int bp_file_limits(bp_file *file, uint64_t floor_bytes, uint64_t ceiling_bytes)
{
    bp_pool *pool = file->pool;
    uint64_t floor = floor_bytes >> BP_PAGE_SHIFT;
    uint64_t ceiling = ceiling_bytes >> BP_PAGE_SHIFT;
    int rc = 0;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (ceiling_bytes && (ceiling < floor || ceiling >> file->order < CEILING_EXTENTS))
        return -EINVAL;
    pthread_mutex_lock(&pool->lock);
    if (floor > frames_limit(pool) ||
        pool->floor_pages - atomic_load_explicit(&file->floor_pages, memory_order_relaxed) + floor >
            frames_limit(pool) / FLOORS_SHARE * (FLOORS_SHARE - 1))
        rc = -ENOSPC;
    else
        set_limits(file, floor, ceiling);
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

uint64_t bp_file_resident(const bp_file *file)
{
    return atomic_load_explicit(&file->resident, memory_order_relaxed) << BP_PAGE_SHIFT;
}

/* ---- closing ---- */

struct held {
    uint64_t pinned;  /* extents with refs, or in a leaf that a run holds */
    uint64_t latched; /* exclusively: by a ref, or by an evictor, which cannot be told apart */
};

/*
 * What is held of the file, counted once per extent; reads under way do not count. An evictor may have been faster, and
 * the frame be another file's by now (R1).
 */
static struct held count_held(bp_file *file)
{
    bp_pool *pool = file->pool;
    struct held held = {0};
    struct index_item item;

    for (uint64_t page = 0; bpi_index_next(&file->index, page, &item); page = item.page + (1ull << item.order)) {
        uint64_t seen;
        uint32_t head = frame_head(pool->frame, item.frame, &seen);

        if (!(seen & FRAME_BOUND) || (seen & FRAME_READING) || frame_id(&pool->frame[head]) != (file->id | item.page))
            continue;
        if ((seen & FRAME_PINS) || index_is_held(&file->index, item.page))
            held.pinned++;
        else if (seen & FRAME_EXCL)
            held.latched++;
    }
    return held;
}

/* See reads end that nobody waits for. */
static void help_with(bp_pool *pool, uint32_t head)
{
    unsigned number = atomic_load_explicit(&pool->cold[head].channel, memory_order_relaxed);
    struct channel *ch = atomic_load_explicit(&pool->channel[number], memory_order_acquire);
    struct counters unused = {0};

    if (ch)
        bpi_channel_help(ch, NULL, &unused, 1, DROP_WAIT_NS, NULL);
}

/*
 * One extent on its way out. true: it is gone, or was already. An evictor may have been faster, and the frame be another
 * file's by now: identity, between the word and what is done to exactly that word (R1).
 */
bool bpi_extent_drop(bp_file *file, const struct index_item *item, bool dirty)
{
    bp_pool *pool = file->pool;
    uint64_t seen;
    uint32_t head = frame_head(pool->frame, item->frame, &seen);

    SYNC_POINT("file:dropping");
    if (!(seen & FRAME_BOUND) || frame_id(&pool->frame[head]) != (file->id | item->page))
        return false; /* the index knows by now */
    if (seen & FRAME_READING) {
        help_with(pool, head);
        return false;
    }
    if (seen & (FRAME_EXCL | FRAME_PINS)) { /* an evictor has it */
        bpi_frame_wait(&pool->frame[head], seen, bpi_now_ns() + NS_PER_MS);
        return false;
    }
    if ((!dirty && (seen & FRAME_DIRTY)) || !frame_lock_from(&pool->frame[head], seen))
        return false;
    return take_out(file, head, seen);
}

/* How many extents are held for good: after a while, if need be, since evictors' latches end by themselves. */
static uint64_t await_held(bp_file *file)
{
    uint64_t now = bpi_now_ns();
    uint64_t pins_until = now + PINS_WAIT_NS;
    uint64_t latches_until = now + (LATCH_WAIT_NS < file->pool->wait_ns ? LATCH_WAIT_NS : file->pool->wait_ns);
    struct held held = count_held(file);
    _Atomic uint32_t nobody = 0;

    while ((held.pinned && now < pins_until) || (!held.pinned && held.latched && now < latches_until)) {
        bpi_futex_wait(&nobody, 0, now + NS_PER_MS / 4);
        held = count_held(file);
        now = bpi_now_ns();
    }
    return held.pinned + held.latched;
}

int bpi_file_drop(bp_file *file, uint64_t *pinned)
{
    uint64_t deadline = bpi_now_ns() + file->pool->wait_ns;
    struct index_item item;
    uint64_t page = 0;

    *pinned = await_held(file);
    if (*pinned)
        return -EBUSY;
    while (bpi_index_next(&file->index, page, &item)) {
        page = item.page; /* what lies before is shadows only, and may be long */
        if (!bpi_extent_drop(file, &item, true) && bpi_now_ns() > deadline) {
            *pinned = await_held(file);
            return *pinned ? -EBUSY : -ETIMEDOUT;
        }
    }
    bpi_index_clear(&file->index);
    return 0;
}

int bp_file_close(bp_file *file, struct bp_error *error)
{
    bp_pool *pool = file->pool;
    uint64_t pinned = 0;
    int rc = 0;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    pthread_mutex_lock(&pool->lock);
    if (file->opens > 1) {
        file->opens--;
        pthread_mutex_unlock(&pool->lock);
        return 0;
    }
    file->closing = true;
    pthread_mutex_unlock(&pool->lock);
    SYNC_POINT("file:closing");
    if (file->write) {
        pinned = await_held(file);
        rc = pinned ? -EBUSY : bpi_write_finish(file, error);
    }
    if (!rc)
        rc = bpi_file_drop(file, &pinned);
    if (!rc) {
        bpi_channels_forget_file(pool, file);
        bpi_damage_forget(file, 0, UINT64_MAX);
    }
    pthread_mutex_lock(&pool->lock);
    file->closing = false;
    if (!rc) {
        bpi_io_file_close(&file->io);
        file->opens = 0;
        set_up_writing(file, &(struct bp_file_options){.size = 0});
        set_limits(file, 0, 0);
        pool->file_count--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (rc && file->write)
        bpi_write_resume(file);
    if (rc && (pinned || !file->write))
        bpi_error_set(error, rc, "%s: %llu of its extents are pinned%s", file->name, (unsigned long long)pinned,
                      rc == -ETIMEDOUT ? "; a read of it does not end" : "");
    return rc;
}
