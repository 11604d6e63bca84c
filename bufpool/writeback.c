/* SPDX-License-Identifier: MIT */
/*
 * The thread that writes: what it does next, and for whom.
 *
 *   requests    flush, sync, truncate. What is dirty in the range when the request is taken up gets a second mark, and
 *               is written; what is dirtied later has none, so a request ends whatever others do. Those of a file that are
 *               there together are served together, by one sync; those that come meanwhile are the next lot.
 *   eviction    met what is dirty: some of it
 *   background  more than the target is dirty: down to three quarters of it, file by file, in the order of the pages
 *
 * Locks: writer.lock is taken with none held, and only an index's are taken inside.
 */
#define BP_NO_INLINE /* the functions themselves */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bufpool/writeback.h"

#define DEPTH       (2 * WRITES_MAX) /* of the channel: and syncs */
#define SWEEP_MOST  64u              /* writes begun for the background before anything else is looked at */
#define MANY        32u              /* requests under way: then not every single one is waited for */
#define MANY_WANTED 8u
#define BUSY_NS     NS_PER_MS /* between looks at what is held exclusively: puts need not tell us */
#define IDLE_NS     (500 * NS_PER_MS)
#define SLICE_NS    (100 * NS_PER_MS) /* those who wait look whether anything goes on */

static struct writer *writer_of(bp_pool *pool)
{
    return atomic_load_explicit(&pool->writer, memory_order_acquire);
}

/* ---- requests: the waiting side ---- */

static void unlink_request(struct write_request **list, const struct write_request *r)
{
    for (; *list; list = &(*list)->next) {
        if (*list == r) {
            *list = r->next;
            return;
        }
    }
}

static bool writes_pages(const struct write_request *r)
{
    return r->what == WRITE_FLUSH || r->what == WRITE_SYNC;
}

/* It is served no longer. The lock is held. */
static void leave(struct writer *w, const struct write_request *r)
{
    unlink_request(&w->active, r);
    r->file->writes->active--;
    if (!writes_pages(r))
        atomic_fetch_sub_explicit(&r->file->writes->barriers, 1, memory_order_relaxed);
}

static void enter_request(struct writer *w, struct write_request *r)
{
    struct write_request **end = &w->pending;

    pthread_mutex_lock(&w->lock);
    while (*end)
        end = &(*end)->next;
    *end = r;
    pthread_mutex_unlock(&w->lock);
    writer_kick(w);
}

/* Given up: nobody shall find it any more. false: it was just finished. */
static bool withdraw(struct writer *w, struct write_request *r)
{
    bool there;

    pthread_mutex_lock(&w->lock);
    there = !atomic_load_explicit(&r->done, memory_order_acquire);
    if (there && r->stage == STAGE_NEW)
        unlink_request(&w->pending, r);
    else if (there)
        leave(w, r);
    pthread_mutex_unlock(&w->lock);
    return there;
}

int bpi_write_await(struct write_request *r)
{
    struct writer *w = writer_of(r->file->pool);
    _Atomic uint64_t *progress = &r->file->writes->progress;
    uint64_t seen = atomic_load_explicit(progress, memory_order_relaxed);
    uint64_t deadline = bpi_now_ns() + r->file->pool->wait_ns;

    r->next = NULL;
    r->rc = 0;
    r->bad = UINT64_MAX;
    r->stage = STAGE_NEW;
    atomic_store_explicit(&r->done, 0, memory_order_relaxed);
    enter_request(w, r);
    while (!atomic_load_explicit(&r->done, memory_order_acquire)) {
        uint64_t now = bpi_now_ns();
        uint64_t until = now + SLICE_NS;

        if (seen != atomic_load_explicit(progress, memory_order_relaxed)) {
            seen = atomic_load_explicit(progress, memory_order_relaxed);
            deadline = now + r->file->pool->wait_ns;
        }
        if (now >= deadline && withdraw(w, r))
            return -ETIMEDOUT;
        bpi_futex_wait(&r->done, 0, until < deadline ? until : deadline);
    }
    return r->rc;
}

/* ---- requests: the writer's side ---- */

static void admit(struct writer *w, struct write_request *r)
{
    struct file_writes *writes = r->file->writes;

    r->stage = STAGE_WRITING;
    r->next = w->active;
    w->active = r;
    writes->active++;
    if (!writes_pages(r))
        atomic_fetch_add_explicit(&writes->barriers, 1, memory_order_relaxed);
    for (uint64_t page = r->first; writes_pages(r) && page <= r->last && page < BP_PAGE_MAX;)
        bpi_index_mark_those(&r->file->index, page, r->last, INDEX_DIRTY, INDEX_TO_WRITE, UINT32_MAX, &page);
}

/* Those whose file has no request that is being served: all of a file or none. */
static void take_up(struct writer *w)
{
    struct write_request **at = &w->pending;

    pthread_mutex_lock(&w->lock);
    for (struct write_request *r = w->pending; r; r = r->next)
        r->stage = r->file->writes->active ? STAGE_NEW : STAGE_READY;
    while (*at) {
        struct write_request *r = *at;

        if (r->stage == STAGE_NEW) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        admit(w, r);
    }
    pthread_mutex_unlock(&w->lock);
}

void bpi_write_tell(struct writer *w, bp_file *file, uint64_t first, uint64_t last, int error, bool all)
{
    pthread_mutex_lock(&w->lock);
    for (struct write_request *r = w->active; r; r = r->next) {
        if (r->file != file || !writes_pages(r) || r->first > last || r->last < first)
            continue;
        if (!r->rc) {
            r->rc = error;
            r->bad = all ? UINT64_MAX : first;
        }
        if (all)
            r->stage = STAGE_OVER;
    }
    pthread_mutex_unlock(&w->lock);
}

bool bpi_write_wanted(struct writer *w, const bp_file *file, uint64_t first, uint64_t last)
{
    bool wanted = false;

    pthread_mutex_lock(&w->lock);
    for (const struct write_request *r = w->active; r; r = r->next)
        wanted |= r->file == file && writes_pages(r) && r->first <= last && r->last >= first;
    pthread_mutex_unlock(&w->lock);
    return wanted;
}

/*
 * What has been written is on its way to being durable; who looks for the oldest LSN looks at `unsynced` and then at
 * `syncing`. No sync if nothing was written since the last one. The lock is held.
 */
static void begin_sync(struct writer *w, bp_file *file)
{
    struct file_writes *writes = file->writes;
    struct io_request *request = &writes->sync;

    *request = (struct io_request){.file = &file->io, .op = IO_SYNC, .buffer = IO_BUFFER_NONE};
    if (w->ops->submit(w->io, &request, 1, IO_BACKGROUND) != 1)
        return; /* the next round tries again */
    atomic_store_explicit(&file->syncing, atomic_load_explicit(&file->unsynced, memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&file->unsynced, 0, memory_order_release);
    w->submitted++;
    writes->sync_under_way = true;
    writes->written = false;
    for (struct write_request *r = w->active; r; r = r->next)
        if (r->file == file && r->stage == STAGE_WRITTEN)
            r->stage = STAGE_SYNCING;
}

void bpi_write_synced(struct writer *w, bp_file *file, int result)
{
    pthread_mutex_lock(&w->lock);
    counter_add(&w->syncs, 1);
    file->writes->sync_under_way = false;
    atomic_fetch_add_explicit(&file->writes->progress, 1, memory_order_relaxed);
    if (result < 0) { /* what was lost nobody knows: `syncing` stays, and no sync will be believed any more (R21) */
        counter_add(&w->sync_errors, 1);
        atomic_store_explicit(&file->failed, result, memory_order_relaxed);
    } else {
        atomic_store_explicit(&file->syncing, 0, memory_order_relaxed);
    }
    for (struct write_request *r = w->active; r; r = r->next) {
        if (r->file == file && r->stage == STAGE_SYNCING) {
            r->rc = result < 0 ? result : 0;
            r->stage = STAGE_OVER;
        }
    }
    pthread_mutex_unlock(&w->lock);
}

/* Nothing of its range has to be written any more. */
static bool is_written(const struct writer *w, const struct write_request *r)
{
    struct index_item item;

    if (bpi_write_overlaps(w, r->file, r->first, r->last))
        return false;
    return !bpi_index_next_marked(&r->file->index, r->first, INDEX_TO_WRITE, &item) || item.page > r->last;
}

/* Nothing more is written: the channel lets go of the file. */
static void forget_slot(struct writer *w, bp_file *file)
{
    if (file->writes->slot)
        w->ops->file(w->io, file->writes->slot - 1, NULL);
    file->writes->slot = 0;
    file->writes->asked_slot = false;
}

static int truncate_now(struct write_request *r)
{
    bp_file *file = r->file;
    int rc = bpi_io_file_truncate(&file->io, r->bytes);

    if (rc)
        return rc;
    atomic_store_explicit(&file->end, r->bytes, memory_order_relaxed);
    atomic_store_explicit(&file->bytes, r->bytes, memory_order_relaxed);
    file->writes->written = true;
    return 0;
}

/* One step further, if it can be. The lock is held. */
static void advance_one(struct writer *w, struct write_request *r)
{
    bp_file *file = r->file;
    int lost = atomic_load_explicit(&file->failed, memory_order_relaxed);

    if (!writes_pages(r) && !file->writes->flight && !file->writes->sync_under_way) {
        if (r->what == WRITE_TRUNCATE)
            r->rc = truncate_now(r);
        else
            forget_slot(w, file);
        r->stage = STAGE_OVER;
    }
    if (!writes_pages(r) || r->stage != STAGE_WRITING || !is_written(w, r))
        return;
    if (lost && !r->rc)
        r->rc = lost;
    r->stage = r->rc || r->what == WRITE_FLUSH ? STAGE_OVER : STAGE_WRITTEN;
}

/* All that are to be synced with this one are written. The lock is held. */
static bool all_written(const struct writer *w, const bp_file *file)
{
    for (const struct write_request *r = w->active; r; r = r->next)
        if (r->file == file && r->what == WRITE_SYNC && r->stage == STAGE_WRITING)
            return false;
    return true;
}

static void advance(struct writer *w)
{
    struct write_request *next;

    pthread_mutex_lock(&w->lock);
    for (struct write_request *r = w->active; r; r = r->next)
        advance_one(w, r);
    for (struct write_request *r = w->active; r; r = r->next) {
        if (r->stage != STAGE_WRITTEN || r->file->writes->sync_under_way || !all_written(w, r->file))
            continue;
        if (r->file->writes->written) {
            begin_sync(w, r->file);
        } else {
            atomic_store_explicit(&r->file->unsynced, 0, memory_order_relaxed);
            r->stage = STAGE_OVER;
        }
    }
    for (struct write_request *r = w->active; r; r = next) {
        next = r->next;
        if (r->stage != STAGE_OVER)
            continue;
        leave(w, r);
        atomic_store_explicit(&r->done, 1, memory_order_release);
        bpi_futex_wake(&r->done, 1); /* he may be gone by now: then this wakes nobody, or somebody who looks again */
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- what is written next ---- */

/* Extents with the mark from *from on, until there is no room or nothing left. How many writes. */
static unsigned write_some(struct writer *w, bp_file *file, enum index_mark mark, uint64_t *from, uint64_t last,
                           unsigned most)
{
    unsigned total = 0;
    unsigned begun;
    bool full;

    do {
        unsigned room = most - total < WRITE_BATCH ? most - total : WRITE_BATCH;

        begun = bpi_write_choose(w, file, mark, from, last, room, &full);
        bpi_write_submit(w);
        total += begun;
    } while (begun && total < most && *from <= last);
    return total;
}

#define TODO_MAX 16u

static unsigned serve_requests(struct writer *w)
{
    struct {
        bp_file *file;
        uint64_t first, last;
    } todo[TODO_MAX];
    unsigned total = 0;
    unsigned n = 0;

    pthread_mutex_lock(&w->lock);
    for (const struct write_request *r = w->active; r && n < TODO_MAX; r = r->next) {
        if (r->stage != STAGE_WRITING || !writes_pages(r) ||
            atomic_load_explicit(&r->file->writes->barriers, memory_order_relaxed))
            continue;
        todo[n].file = r->file;
        todo[n].first = r->first;
        todo[n++].last = r->last;
    }
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < n; i++)
        total += write_some(w, todo[i].file, INDEX_TO_WRITE, &todo[i].first, todo[i].last, WRITES_MAX);
    return total;
}

/* Is there anything to write, and may it be? patience: how long it is left alone after it failed. */
static bool is_dirty(const bp_file *file, uint64_t patience_ns)
{
    return atomic_load_explicit(&file->dirty, memory_order_relaxed) && file->write && file->writes &&
           !atomic_load_explicit(&file->quiet, memory_order_acquire) &&
           !atomic_load_explicit(&file->writes->barriers, memory_order_relaxed) &&
           (!file->writes->failed_ns || bpi_now_ns() - file->writes->failed_ns >= patience_ns);
}

/* Up to so many writes, from where the last sweep ended, over all files once at the most. */
static unsigned sweep(struct writer *w, unsigned most, uint64_t patience_ns)
{
    unsigned first = w->sweep_file;
    unsigned total = 0;

    do {
        bp_file *file = atomic_load_explicit(&w->pool->file[w->sweep_file], memory_order_acquire);

        if (file && is_dirty(file, patience_ns)) {
            total += write_some(w, file, INDEX_DIRTY, &w->sweep_page, UINT64_MAX - 1, most - total);
            if (w->sweep_page != UINT64_MAX)
                break; /* no room, or enough */
        }
        w->sweep_page = 0;
        w->sweep_file = file && w->sweep_file < FRAME_FILES_MAX ? w->sweep_file + 1 : 1; /* slots are used from below */
    } while (total < most && w->sweep_file != first);
    return total;
}

static unsigned background(struct writer *w)
{
    uint64_t dirty = atomic_load_explicit(&w->pool->dirty_pages, memory_order_relaxed);
    uint64_t target = dirty_target(w->pool);
    uint64_t owed = dirty > w->flight_pages ? dirty - w->flight_pages : 0;

    if (owed > target) {
        w->sweeping = true;
    } else if (w->sweeping && owed <= target / 4 * 3) {
        w->sweeping = false;
        /* who makes it more from now on kicks; seq_cst, as there: one of the two sees what the other did */
        atomic_store_explicit(&w->over, false, memory_order_seq_cst);
        w->sweeping = atomic_load_explicit(&w->pool->dirty_pages, memory_order_seq_cst) > target + w->flight_pages;
    }
    if (atomic_exchange_explicit(&w->asked, false, memory_order_relaxed)) {
        counter_add(&w->write_asked, 1);
        return sweep(w, SWEEP_MOST, WRITE_AGAIN_NS);
    }
    return w->sweeping ? sweep(w, SWEEP_MOST, WRITE_HOLD_NS) : 0;
}

/* ---- the thread ---- */

static unsigned reap(struct writer *w)
{
    struct io_request *done[REAP_BATCH];
    unsigned total = 0;
    unsigned n;

    do {
        n = w->submitted ? w->ops->reap(w->io, done, REAP_BATCH) : 0;
        bpi_write_reaped(w, done, n);
        total += n;
    } while (n == REAP_BATCH);
    return total;
}

/* Until something ended, somebody kicked, or it is time to look again. */
static void rest(struct writer *w, uint64_t kick)
{
    struct io_until until = {.word = &w->kick, .mask = UINT64_MAX, .equals = kick};
    uint64_t now = bpi_now_ns();
    uint64_t again = bpi_write_retry(w, now);
    uint64_t timeout = IDLE_NS;
    bool waiting;

    pthread_mutex_lock(&w->lock);
    waiting = w->active != NULL;
    pthread_mutex_unlock(&w->lock);
    if (waiting)
        timeout = BUSY_NS;
    if (again - now < timeout)
        timeout = again > now ? again - now : 0;
    w->ops->wait_until(w->io, w->submitted >= MANY ? MANY_WANTED : 1, timeout ? timeout : 1, &until);
}

static void *writer_main(void *arg)
{
    struct writer *w = arg;

    while (!atomic_load_explicit(&w->stop, memory_order_acquire)) {
        uint64_t kick = atomic_load_explicit(&w->kick, memory_order_acquire);
        unsigned did;

        take_up(w);
        did = serve_requests(w);
        did += background(w);
        did += reap(w);
        advance(w);
        if (!did)
            rest(w, kick);
    }
    return NULL;
}

static int start_thread(struct writer *w)
{
    pthread_attr_t attr;
    sigset_t all;
    int rc = pthread_attr_init(&attr);

    if (rc)
        return -rc;
    sigfillset(&all);
    pthread_attr_setsigmask_np(&attr, &all); /* the host's handlers never run here */
    rc = pthread_create(&w->thread, &attr, writer_main, w);
    pthread_attr_destroy(&attr);
    return -rc;
}

/* Frames for stable copies, out of the pool: a sixteenth of it at the most, and as much as the largest extent has. */
static int take_buffer(struct writer *w)
{
    bp_pool *pool = w->pool;
    uint64_t deadline = bpi_now_ns() + pool->wait_ns;
    unsigned order = 31 - (unsigned)__builtin_clz(frames_limit(pool) / EXTENT_SHARE);
    struct timespec soon = {.tv_nsec = NS_PER_MS};
    bp_session *s;
    int rc = bp_session_open(pool, NULL, &s);

    if (rc)
        return rc;
    w->buffer_order = order < WRITE_BUFFER ? order : WRITE_BUFFER;
    do {
        rc = bpi_frame_take(s, w->buffer_order, &w->buffer_frame);
        if (rc == -EAGAIN)
            nanosleep(&soon, NULL);
    } while (rc == -EAGAIN && bpi_now_ns() < deadline);
    w->buffer = pool->base + ((size_t)w->buffer_frame << BP_PAGE_SHIFT);
    if (bp_session_close(s) && !rc)
        rc = -EBUSY;
    return rc == -EAGAIN ? -EBUSY : rc;
}

static int open_writer(bp_pool *pool)
{
    struct writer *w = aligned_alloc(LINE, (sizeof(*w) + LINE - 1) / LINE * LINE);
    int rc;

    if (!w)
        return -ENOMEM;
    memset(w, 0, sizeof(*w));
    w->pool = pool;
    w->ops = pool->io;
    w->sweep_file = 1;
    pthread_mutex_init(&w->lock, NULL);
    rc = take_buffer(w);
    if (rc)
        goto out;
    rc = w->ops->open(DEPTH, pool->options.registered == BP_OFF ? 0 : 1, WRITER_THREADS, &w->io);
    if (rc)
        goto out_buffer;
    if (pool->options.registered != BP_OFF) /* its frames come back only after the channel is closed */
        w->register_error = w->ops->buffer(w->io, 0, w->buffer, (size_t)BP_PAGE_SIZE << w->buffer_order);
    w->registered = pool->options.registered != BP_OFF && !w->register_error;
    rc = start_thread(w);
    if (rc)
        goto out_io;
    atomic_store_explicit(&pool->writer, w, memory_order_release);
    return 0;
out_io:
    w->ops->close(w->io);
out_buffer:
    bpi_frame_give(pool, w->buffer_frame, w->buffer_order);
out:
    pthread_mutex_destroy(&w->lock);
    free(w);
    return rc;
}

int bpi_writer_open(bp_pool *pool)
{
    int rc = 0;

    pthread_mutex_lock(&pool->writer_lock);
    if (!writer_of(pool))
        rc = open_writer(pool);
    pthread_mutex_unlock(&pool->writer_lock);
    return rc;
}

int bpi_writer_file(bp_file *file)
{
    if (!file->writes) {
        file->writes = calloc(1, sizeof(*file->writes));
        if (!file->writes)
            return -ENOMEM;
        file->writes->file = file;
    }
    return 0;
}

int bpi_writer_close(bp_pool *pool)
{
    struct writer *w = writer_of(pool);
    int rc;

    if (!w)
        return 0;
    atomic_store_explicit(&w->stop, true, memory_order_release);
    writer_kick(w);
    pthread_join(w->thread, NULL);
    rc = w->ops->close(w->io);
    if (rc)
        return rc;
    atomic_store_explicit(&pool->writer, NULL, memory_order_relaxed);
    bpi_frame_give(pool, w->buffer_frame, w->buffer_order);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return 0;
}

/* ---- the rest of the library ---- */

void bpi_write_ask(bp_pool *pool)
{
    struct writer *w = writer_of(pool);

    if (w && !atomic_exchange_explicit(&w->asked, true, memory_order_relaxed))
        writer_kick(w);
}

void bpi_write_target(bp_pool *pool)
{
    struct writer *w = writer_of(pool);

    if (w && !atomic_load_explicit(&w->over, memory_order_seq_cst) &&
        !atomic_exchange_explicit(&w->over, true, memory_order_seq_cst))
        writer_kick(w);
}

uint64_t bpi_write_oldest(bp_file *file, uint64_t oldest)
{
    struct writer *w = writer_of(file->pool);
    _Atomic uint64_t *const last[] = {&file->unsynced, &file->syncing};

    for (unsigned i = 0; w && i < WRITES_MAX; i++) {
        uint64_t since = atomic_load_explicit(&w->op[i].since, memory_order_acquire);

        if (since > oldest && atomic_load_explicit(&w->op[i].file_id, memory_order_relaxed) == file->id)
            oldest = since;
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t since = atomic_load_explicit(last[i], memory_order_acquire);

        oldest = since > oldest ? since : oldest;
    }
    return oldest;
}

void bpi_write_describe(bp_pool *pool, char *text, size_t size)
{
    struct writer *w = writer_of(pool);
    uint64_t dirty = atomic_load_explicit(&pool->dirty_pages, memory_order_relaxed);
    int error = w ? atomic_load_explicit(&w->error, memory_order_relaxed) : 0;
    int log_error = w ? atomic_load_explicit(&w->log_error, memory_order_relaxed) : 0;

    if (!dirty)
        return;
    snprintf(text, size, "; %llu dirty%s%s", (unsigned long long)dirty,
             log_error ? ", the log cannot be flushed: "
             : error   ? ", cannot be written: "
                       : "",
             log_error || error ? bp_strerror(log_error ? log_error : error) : "");
}

void bpi_write_stats(bp_pool *pool, struct bp_stats *st)
{
    struct writer *w = writer_of(pool);

    st->dirty_pages = atomic_load_explicit(&pool->dirty_pages, memory_order_relaxed);
    if (!w)
        return;
#define ADD_WRITER(name) st->name = atomic_load_explicit(&w->name, memory_order_relaxed);
    WRITER_COUNTERS(ADD_WRITER)
#undef ADD_WRITER
    st->frames_reserved += 1ull << w->buffer_order;
    st->frames_free += 1ull << w->buffer_order;
}

void bpi_write_cap(bp_pool *pool, struct bp_cap *c)
{
    const struct writer *w = writer_of(pool);

    c->got = w ? w->ops->name : "not used yet";
    if (w && w->register_error && pool->options.registered != BP_OFF) {
        snprintf(c->reason, sizeof(c->reason), "without registered buffers: %s", bp_strerror(w->register_error));
        snprintf(c->remedy, sizeof(c->remedy), "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)");
    }
}

/* ---- the last close of a file ---- */

static int not_on_disk(bp_file *file, const struct write_request *r, int rc, struct bp_error *error)
{
    unsigned long long pages = atomic_load_explicit(&file->dirty, memory_order_relaxed);
    char where[40] = "";

    if (r->bad != UINT64_MAX)
        snprintf(where, sizeof(where), "page %llu: ", (unsigned long long)r->bad);
    bpi_error_set(error, rc, "%s: %llu pages (%llu bytes) are not on disk%s: %s%s; close it again, or bp_file_abandon",
                  file->name, pages, pages << BP_PAGE_SHIFT,
                  atomic_load_explicit(&file->failed, memory_order_relaxed) ? ", others may be lost: its sync failed"
                                                                            : "",
                  where, bp_strerror(rc));
    return rc;
}

int bpi_write_finish(bp_file *file, struct bp_error *error)
{
    struct write_request r = {.file = file, .last = UINT64_MAX, .what = WRITE_SYNC, .bad = UINT64_MAX};
    int rc;

    if (!atomic_load_explicit(&file->abandoned, memory_order_relaxed)) {
        rc = bpi_write_await(&r);
        if (!rc && atomic_load_explicit(&file->dirty, memory_order_relaxed))
            rc = -EBUSY; /* somebody is at it */
        if (rc)
            return not_on_disk(file, &r, rc, error);
    }
    atomic_store_explicit(&file->quiet, true, memory_order_release);
    r.what = WRITE_QUIET;
    rc = bpi_write_await(&r);
    if (rc)
        bpi_error_set(error, rc, "%s: a write of it does not end", file->name);
    return rc;
}

void bpi_write_resume(bp_file *file)
{
    atomic_store_explicit(&file->quiet, false, memory_order_release);
}
