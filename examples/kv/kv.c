/* SPDX-License-Identifier: MIT */
/* A store: opening, closing, sessions, and the thread that syncs the log and takes checkpoints by itself. */
#include "kv/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kv/store.h"

#define MEMORY_DEFAULT     (64ull << 20)
#define CHECKPOINT_DEFAULT (64ull << 20)
#define LOG_MAX_FACTOR     64u
#define GROUP_US_DEFAULT   200u
#define TICK_MS            100u
#define SYNC_TICKS         10u /* KV_SYNC_NONE: the log is synced every second */
#define HINT_SHARE         16u /* of the pool's memory hints may take so much beside it, 4 KiB for each inner page */
#define FAILED_TICKS       10u /* after a checkpoint that failed */

/* ---- errors ---- */

const char *kv_strerror(int code)
{
    switch (code) {
#define KV_CODE_CASE(name, value, text) \
    case name:                          \
        return text;
        KV_CODE_TABLE(KV_CODE_CASE)
#undef KV_CODE_CASE
    default:
        return bp_strerror(code);
    }
}

int kv_fail(struct kv_error *error, int code, const char *format, ...)
{
    va_list list;

    if (!error)
        return code;
    error->code = code;
    va_start(list, format);
    vsnprintf(error->text, sizeof(error->text), format, list);
    va_end(list);
    return code;
}

int session_fail(kv_session *s, int code, const char *format, ...)
{
    va_list list;

    s->error.code = code;
    va_start(list, format);
    vsnprintf(s->error.text, sizeof(s->error.text), format, list);
    va_end(list);
    return code;
}

int session_pool_fail(kv_session *s, int code, const char *what, uint64_t page)
{
    session_fail(s, code, "%s, page %llu: %s", what, (unsigned long long)page, bp_session_error(s->pages));
    if (code == -EBADMSG || code == BP_EOF) /* the checksum is wrong, or the file is shorter than its tree */
        s->error.code = KV_DAMAGED;
    return s->error.code;
}

const char *kv_session_error(const kv_session *s)
{
    return s->error.text;
}

/* ---- what the pool calls ---- */

static int verify_page(void *ctx, uint64_t number, const void *data, uint32_t bytes)
{
    const struct page *page = data;

    (void)ctx;
    return bytes == PAGE_BYTES && page->number == number && page->crc == page_crc(page) ? 0 : -EBADMSG;
}

static void seal_page(void *ctx, uint64_t number, void *data, uint32_t bytes)
{
    struct page *page = data;

    (void)ctx;
    (void)number;
    if (bytes == PAGE_BYTES)
        page->crc = page_crc(page);
}

static int flush_log(void *ctx, uint64_t lsn)
{
    kv *store = ctx;

    /* acquire: where the log ends was set before */
    return atomic_load_explicit(&store->recovering, memory_order_acquire) ? 0 : log_commit(&store->log, lsn, false);
}

/* ---- sessions ---- */

static void session_free(kv_session *s)
{
    free(s->value);
    free(s->scratch);
    free(s->record.bytes);
    free(s);
}

/* `counted`: a user's, for whom a group may wait. */
int session_open(kv *store, const char *label, bool counted, kv_session **out)
{
    struct bp_session_options how = {.size = sizeof(how), .label = label};
    kv_session *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return -ENOMEM;
    s->kv = store;
    s->counted = counted;
    s->scratch = malloc(SCRATCH_PAGES * (size_t)PAGE_BYTES);
    if (!s->scratch || !session_value_room(s, 1)) {
        session_free(s);
        return -ENOMEM;
    }
    rc = bp_session_open(store->pool, &how, &s->pages);
    if (rc) {
        session_free(s);
        return rc;
    }
    pthread_mutex_lock(&store->sessions_lock);
    if (store->session_count >= KV_SESSIONS_MAX)
        rc = -EMFILE;
    else {
        s->next = store->sessions;
        if (s->next)
            s->next->previous = s;
        store->sessions = s;
        store->session_count += counted;
    }
    pthread_mutex_unlock(&store->sessions_lock);
    if (rc) {
        (void)!bp_session_close(s->pages);
        session_free(s);
        return rc;
    }
    if (counted)
        log_sessions(&store->log, 1);
    *out = s;
    return 0;
}

int kv_session_open(kv *store, kv_session **out)
{
    return session_open(store, NULL, true, out);
}

void kv_session_close(kv_session *s)
{
    kv *store = s->kv;

    pthread_mutex_lock(&store->sessions_lock);
    if (s->previous)
        s->previous->next = s->next;
    else
        store->sessions = s->next;
    if (s->next)
        s->next->previous = s->previous;
    store->session_count -= s->counted;
    pthread_mutex_unlock(&store->sessions_lock);
    if (s->counted)
        log_sessions(&store->log, -1);
    (void)!bp_session_close(s->pages); /* it holds no refs between calls */
    session_free(s);
}

void kv_session_defer(kv_session *s, bool defer)
{
    s->defer = defer;
}

int kv_commit(kv_session *s)
{
    int rc;

    if (s->kv->options.sync == KV_SYNC_NONE || !s->wrote)
        return 0;
    rc = log_commit(&s->kv->log, s->wrote, s->kv->options.sync == KV_SYNC_GROUP);
    if (!rc)
        s->wrote = 0;
    return rc ? session_fail(s, rc, "%s", kv_strerror(rc)) : 0;
}

/* ---- in the background ---- */

static void say(kv *store, const char *what, const char *why)
{
    char line[320];

    if (!store->options.log)
        return;
    snprintf(line, sizeof(line), "%s: %s", what, why);
    store->options.log(store->options.log_ctx, line);
}

static void tick(kv *store, unsigned count, unsigned *pause)
{
    uint64_t end = log_position(&store->log);
    int rc;

    if (store->options.sync == KV_SYNC_NONE && count % SYNC_TICKS == 0) {
        rc = log_sync(&store->log);
        if (rc)
            say(store, "syncing the log", kv_strerror(rc));
    }
    rc = log_prepare(&store->log);
    if (rc && count % SYNC_TICKS == 0)
        say(store, "preparing the log", kv_strerror(rc));
    if (*pause) {
        --*pause;
        return;
    }
    if (end - log_floor(&store->log) > store->options.checkpoint_bytes && checkpoint_take(store->background)) {
        say(store, "checkpoint", kv_session_error(store->background));
        *pause = FAILED_TICKS;
    }
}

static void *background(void *ctx)
{
    kv *store = ctx;
    unsigned pause = 0;

    pthread_mutex_lock(&store->sessions_lock);
    for (unsigned count = 1; !store->stop; count++) {
        struct timespec until;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)TICK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (!store->stop && !pthread_cond_timedwait(&store->wake, &store->sessions_lock, &until))
            ;
        if (store->stop)
            break;
        pthread_mutex_unlock(&store->sessions_lock);
        tick(store, count, &pause);
        pthread_mutex_lock(&store->sessions_lock);
    }
    pthread_mutex_unlock(&store->sessions_lock);
    return NULL;
}

/* ---- opening ---- */

static void take_options(kv *store, const struct kv_options *options)
{
    if (options)
        memcpy(&store->options, options, options->size < sizeof(*options) ? options->size : sizeof(*options));
    if (!store->options.memory)
        store->options.memory = MEMORY_DEFAULT;
    if (!store->options.checkpoint_bytes)
        store->options.checkpoint_bytes = CHECKPOINT_DEFAULT;
    if (!store->options.log_bytes_max)
        store->options.log_bytes_max = LOG_MAX_FACTOR * store->options.checkpoint_bytes;
    if (!store->options.group_us)
        store->options.group_us = GROUP_US_DEFAULT;
}

static int open_dir(kv *store, const char *dir, struct kv_error *error)
{
    if (store->options.create && mkdir(dir, 0700) && errno != EEXIST)
        return kv_fail(error, -errno, "%s: %s", dir, strerror(errno));
    store->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->dir < 0)
        return kv_fail(error, -errno, "%s: %s", dir, strerror(errno));
    if (!store->options.create && faccessat(store->dir, "checkpoint", F_OK, 0))
        return kv_fail(error, KV_NO_STORE, "%s: %s", dir, kv_strerror(KV_NO_STORE));
    store->lock = openat(store->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (store->lock < 0)
        return kv_fail(error, -errno, "%s/lock: %s", dir, strerror(errno));
    if (flock(store->lock, LOCK_EX | LOCK_NB)) {
        int why = errno;

        if (why == EWOULDBLOCK)
            return kv_fail(error, KV_IN_USE, "%s: %s", dir, kv_strerror(KV_IN_USE));
        return kv_fail(error, -why, "%s/lock: %s", dir, strerror(why));
    }
    return 0;
}

/* The checkpoint there is, or that of a new store. */
static int find_store(kv *store, struct checkpoint *c, struct kv_error *error)
{
    int rc = checkpoint_read(store->dir, c, error);

    if (rc != KV_NO_STORE)
        return rc;
    if (!faccessat(store->dir, "log.0", F_OK, 0))
        return kv_fail(error, KV_DAMAGED, "there is a log, but no checkpoint that says where it begins");
    rc = store_create(store->dir, &store->id, error);
    return rc ? rc : checkpoint_read(store->dir, c, error);
}

static int open_file(kv *store, unsigned space, const char *name, struct kv_error *error)
{
    struct bp_error why = {0};
    struct bp_file_options how = {.size = sizeof(how),
                                  .direct = store->options.buffered ? BP_OFF : BP_TRY,
                                  .error = &why,
                                  .ctx = store,
                                  .write = true,
                                  .flush_log = flush_log};
    char path[4096];
    int rc;

    if (space == SPACE_TREE) {
        how.verify = verify_page;
        how.seal = seal_page;
    }
    rc = label_check(store->dir, name, space, store->id, error);
    if (rc)
        return rc;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", store->dir_name, name) >= sizeof(path))
        return kv_fail(error, -ENAMETOOLONG, "%s: %s", store->dir_name, strerror(ENAMETOOLONG));
    rc = bp_file_open(store->pool, path, &how, &store->file[space]);
    return rc ? kv_fail(error, rc, "%s: %s", name, why.text) : 0;
}

static int open_pool(kv *store, struct kv_error *error)
{
    struct bp_error why = {0};
    struct bp_pool_options how = {.size = sizeof(how),
                                  .memory = store->options.memory,
                                  .wait_ms = WAIT_MS,
                                  .log = store->options.log,
                                  .log_ctx = store->options.log_ctx,
                                  .error = &why};
    int rc;

    if (store->options.memory < KV_MEMORY_MIN)
        return kv_fail(error, -EINVAL, "%llu bytes of memory; %u are the least",
                       (unsigned long long)store->options.memory, KV_MEMORY_MIN);
    rc = bp_pool_open(&how, &store->pool);
    if (rc)
        return kv_fail(error, rc, "%s", why.text);
    while (store->order_max < SPACE_ORDER_MAX && (32ull * PAGE_BYTES << store->order_max) <= store->options.memory / 2)
        store->order_max++; /* an extent is a sixteenth of the pool at the most, and not all of it is frames */
    store->hint_pages = 1;
    while (store->hint_pages * 2 * HINT_SLOTS * sizeof(*store->hint) <= store->options.memory / HINT_SHARE)
        store->hint_pages *= 2;
    store->hint = mmap(NULL, store->hint_pages * HINT_SLOTS * sizeof(*store->hint), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (store->hint == MAP_FAILED)
        store->hint = NULL; /* then frames are found by the pool's index */
    return 0;
}

/* Everything but the directory and its lock; what is open is closed by kv_drop. */
static int open_store(kv *store, struct kv_error *error)
{
    struct checkpoint c;
    char why[200] = "";
    int rc = find_store(store, &c, error);

    if (rc)
        return rc;
    store->id = c.id;
    store->entries = c.entries;
    for (unsigned i = 0; i < SPACES && !rc; i++)
        rc = space_load(&store->space[i], c.bits[i], c.pages[i]);
    checkpoint_free(&c);
    if (rc)
        return kv_fail(error, rc, "space: %s", kv_strerror(rc));
    rc = log_init(&store->log, store->dir, store->id, c.position);
    store->log_open = true;
    store->log.group_us = store->options.group_us;
    store->log.kept_max = store->options.log_bytes_max;
    if (rc || (rc = log_find(&store->log, why, sizeof(why))))
        return kv_fail(error, rc, "%s", why[0] ? why : kv_strerror(rc));
    rc = open_pool(store, error);
    if (!rc)
        rc = open_file(store, SPACE_TREE, DATA_NAME, error);
    if (!rc)
        rc = open_file(store, SPACE_VALUES, VALUES_NAME, error);
    if (rc)
        return rc;
    rc = session_open(store, "background", false, &store->background);
    return rc ? kv_fail(error, rc, "a session: %s", kv_strerror(rc)) : 0;
}

static int start(kv *store, struct kv_error *error)
{
    int rc;

    atomic_store_explicit(&store->recovering, true, memory_order_relaxed); /* nothing is dirty yet */
    rc = store_recover(store, store->background, error);
    atomic_store_explicit(&store->recovering, false, memory_order_release);
    if (rc)
        return rc;
    if (store->recovered && (rc = checkpoint_take(store->background)))
        return kv_fail(error, rc, "after recovery: %s", kv_session_error(store->background));
    for (unsigned i = 0; i < SPACES; i++)
        space_settle(&store->space[i]);
    rc = -pthread_create(&store->thread, NULL, background, store);
    store->thread_runs = !rc;
    return rc ? kv_fail(error, rc, "a thread: %s", strerror(-rc)) : 0;
}

/* Close what is open; pages that are dirty are given up. */
static void kv_drop(kv *store)
{
    if (store->background)
        kv_session_close(store->background);
    for (unsigned i = 0; i < SPACES; i++) {
        if (store->file[i]) {
            bp_file_abandon(store->file[i]);
            (void)!bp_file_close(store->file[i], NULL);
        }
        space_end(&store->space[i]);
    }
    if (store->pool)
        (void)!bp_pool_close(store->pool, NULL);
    if (store->log_open)
        log_end(&store->log);
    if (store->hint)
        munmap(store->hint, store->hint_pages * HINT_SLOTS * sizeof(*store->hint));
    if (store->lock >= 0)
        close(store->lock); /* which unlocks it */
    if (store->dir >= 0)
        close(store->dir);
    pthread_cond_destroy(&store->wake);
    pthread_mutex_destroy(&store->checkpoint_lock);
    pthread_mutex_destroy(&store->batch_lock);
    pthread_mutex_destroy(&store->sessions_lock);
    free(store->dir_name);
    free(store);
}

int kv_open(const char *dir, const struct kv_options *options, kv **out)
{
    struct kv_error local, *error = options && options->error ? options->error : &local;
    kv *store = calloc(1, sizeof(*store));
    pthread_condattr_t clock;
    int rc;

    if (!store)
        return kv_fail(error, -ENOMEM, "no memory");
    store->dir = store->lock = -1;
    take_options(store, options);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&store->wake, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&store->checkpoint_lock, NULL);
    pthread_mutex_init(&store->batch_lock, NULL);
    pthread_mutex_init(&store->sessions_lock, NULL);
    for (unsigned i = 0; i < SPACES; i++)
        space_init(&store->space[i]);
    store->dir_name = strdup(dir);
    rc = store->dir_name ? open_dir(store, dir, error) : kv_fail(error, -ENOMEM, "no memory");
    if (!rc)
        rc = open_store(store, error);
    if (!rc)
        rc = start(store, error);
    if (rc)
        kv_drop(store);
    else
        *out = store;
    return rc;
}

int kv_close(kv *store, struct kv_error *error)
{
    int rc = 0;

    pthread_mutex_lock(&store->sessions_lock);
    if (store->session_count)
        rc = kv_fail(error, -EBUSY, "%u sessions are open", store->session_count);
    else
        store->stop = true;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->sessions_lock);
    if (rc)
        return rc;
    pthread_join(store->thread, NULL);
    if (log_position(&store->log) != log_floor(&store->log) || store->log.keep != log_floor(&store->log))
        rc = checkpoint_take(store->background);
    if (rc)
        kv_fail(error, rc, "the last checkpoint: %s", kv_session_error(store->background));
    kv_drop(store);
    return rc;
}

/* ---- statistics ---- */

uint64_t kv_entries(kv *store)
{
    uint64_t entries;

    pthread_mutex_lock(&store->log.lock);
    entries = store->entries;
    pthread_mutex_unlock(&store->log.lock);
    return entries;
}

int kv_stat(kv *store, struct kv_stat *stat)
{
    struct bp_stats pool = {.size = sizeof(pool)};
    struct bp_view root;
    kv_session *s;
    int rc = session_open(store, "stat", false, &s);

    if (rc)
        return rc;
    memset(stat, 0, sizeof(*stat));
    rc = tree_look(s, PAGE_ROOT, &root);
    if (!rc)
        stat->height = page_level(view_page(&root)) + 1;
    kv_session_close(s);
    if (!rc)
        rc = bp_pool_stats(store->pool, &pool);
    pthread_mutex_lock(&store->log.lock);
    stat->entries = store->entries;
    stat->log_end = store->log.end;
    stat->log_kept = store->log.end - store->log.keep;
    stat->log_syncs = store->log.syncs;
    stat->commits = store->log.commits;
    pthread_mutex_unlock(&store->log.lock);
    stat->tree_pages = space_used_pages(&store->space[SPACE_TREE]) - 1; /* without the label */
    stat->value_pages = space_used_pages(&store->space[SPACE_VALUES]) - 1;
    (void)!bp_file_size(store->file[SPACE_TREE], &stat->data_bytes);
    (void)!bp_file_size(store->file[SPACE_VALUES], &stat->values_bytes);
    stat->checkpoints = atomic_load_explicit(&store->checkpoints, memory_order_relaxed);
    stat->splits = atomic_load_explicit(&store->splits, memory_order_relaxed);
    stat->merges = atomic_load_explicit(&store->merges, memory_order_relaxed);
    stat->restarts = atomic_load_explicit(&store->restarts, memory_order_relaxed);
    stat->recovered = atomic_load_explicit(&store->recovered, memory_order_relaxed);
    stat->pool_hits = pool.hits;
    stat->pool_misses = pool.misses;
    stat->pool_memory = pool.memory_limit;
    return rc;
}
