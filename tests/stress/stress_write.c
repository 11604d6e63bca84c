/* SPDX-License-Identifier: MIT */
/*
 * Many threads change, read, make anew, flush and sync pages of a file that is four times the pool, while a scan goes round
 * and the thread that writes does its work. Each page says which it is and how often it was changed; the model knows at
 * least how often. Afterwards the pool is closed, the file opened anew, and every page must be the newest.
 *
 * Pages carry a sum, so that a mixture of two changes is found, in memory, in what is sealed, and on disk.
 */
#define BP_NO_INLINE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/bufpool.h"

#define PAGES   1024u
#define THREADS 4u

struct content {
    uint64_t page, changes, sum; /* sum: of the words behind it, and of these two */
    uint64_t word[509];
};

static bp_pool *pool;
static bp_file *file;
static _Atomic uint64_t changes[PAGES]; /* at least so many; written while the page is held exclusively */
static _Atomic uint64_t lsn, log_durable;
static _Atomic bool stop;
static _Atomic unsigned failed, passed;

static void check(bool right, const char *what, uint64_t page)
{
    if (right) {
        atomic_fetch_add_explicit(&passed, 1, memory_order_relaxed);
        return;
    }
    if (atomic_fetch_add(&failed, 1) < 20)
        fprintf(stderr, "page %llu: %s\n", (unsigned long long)page, what);
}

static uint64_t sum_of(const struct content *c)
{
    uint64_t sum = c->page * 31 + c->changes;

    for (unsigned i = 0; i < 509; i++)
        sum = sum * 1099511628211u + c->word[i];
    return sum | 1;
}

static void fill(struct content *c, uint64_t page, uint64_t n)
{
    c->page = page;
    c->changes = n;
    for (unsigned i = 0; i < 509; i++)
        c->word[i] = n * 0x9e3779b97f4a7c15u + i;
    c->sum = sum_of(c);
}

static bool sound(const struct content *c, uint64_t page)
{
    if (!c->sum && !c->changes) /* never changed */
        return true;
    return c->page == page && c->sum == sum_of(c);
}

static int flush_log(void *ctx, uint64_t to)
{
    (void)ctx;
    if (to > atomic_load(&log_durable))
        atomic_store(&log_durable, to);
    return 0;
}

/* What goes out is one change's page, and whole. */
static void seal(void *ctx, uint64_t page, void *data, uint32_t bytes)
{
    (void)ctx;
    (void)bytes;
    check(sound(data, page), "what is written is torn", page);
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void change(bp_session *s, uint64_t page, bool anew, uint64_t *seed)
{
    struct bp_ref ref;
    int rc = anew ? bp_create(s, file, page, 0, &ref) : bp_get(s, file, page, BP_EXCLUSIVE, &ref);
    uint64_t n;

    if (rc) {
        check(rc == -EBUSY, bp_session_error(s), page);
        return;
    }
    n = atomic_load_explicit(&changes[page], memory_order_relaxed);
    check(anew || (sound(ref.data, page) && (((struct content *)ref.data)->changes == n)), "a change was lost", page);
    fill(ref.data, page, n + 1);
    atomic_store_explicit(&changes[page], n + 1, memory_order_relaxed);
    if (next(seed) % 4)
        bp_put_dirty(&ref, atomic_fetch_add(&lsn, 1) + 1);
    else {
        bp_downgrade_dirty(&ref, atomic_fetch_add(&lsn, 1) + 1);
        check(((struct content *)ref.data)->changes == n + 1, "changed while it is held shared", page);
        bp_put(&ref);
    }
}

static void upgrade(bp_session *s, uint64_t page)
{
    struct bp_view view;
    struct bp_ref ref;
    int rc = bp_read(s, file, page, &view);

    if (!rc)
        rc = bp_upgrade(&view, s, file, page, &ref);
    if (rc) {
        check(rc == -EBUSY || rc == BP_MOVED, bp_session_error(s), page);
        return;
    }
    check(sound(ref.data, page), "torn under an upgraded latch", page);
    fill(ref.data, page, atomic_load_explicit(&changes[page], memory_order_relaxed) + 1);
    atomic_fetch_add_explicit(&changes[page], 1, memory_order_relaxed);
    bp_put_dirty(&ref, atomic_fetch_add(&lsn, 1) + 1);
}

static void look(bp_session *s, uint64_t page)
{
    uint64_t least = atomic_load_explicit(&changes[page], memory_order_relaxed);
    struct bp_ref ref;
    int rc = bp_get(s, file, page, BP_SHARED, &ref);

    if (rc) {
        check(rc == -EBUSY, bp_session_error(s), page);
        return;
    }
    (void)least; /* only who holds it knows */
    check(sound(ref.data, page) &&
              ((struct content *)ref.data)->changes == atomic_load_explicit(&changes[page], memory_order_relaxed),
          "not the newest", page);
    bp_put(&ref);
}

static void *work(void *arg)
{
    uint64_t seed = 77 + (uint64_t)(uintptr_t)arg;
    bp_session *s;

    if (bp_session_open(pool, NULL, &s))
        abort();
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t page = next(&seed) % PAGES;
        unsigned what = (unsigned)next(&seed) % 100;

        if (what < 40)
            change(s, page, false, &seed);
        else if (what < 55)
            change(s, page, true, &seed);
        else if (what < 65)
            upgrade(s, page);
        else if (what < 97)
            look(s, page);
        else if (what < 99)
            check(!bp_flush(s, file, page, 64), bp_session_error(s), page);
        else
            check(!bp_sync(s, file), bp_session_error(s), page);
    }
    check(!bp_session_close(s), "refs are left", 0);
    return NULL;
}

/* Goes round, and asks how old the oldest change is, which never is younger than what is not synced. */
static void *scan(void *arg)
{
    bp_session *s;

    (void)arg;
    if (bp_session_open(pool, NULL, &s))
        abort();
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        struct bp_piece piece[16];
        unsigned n = 1;
        bp_scan *round;
        uint64_t oldest;

        if (bp_scan_open(s, file, 0, UINT64_MAX, 0, &round))
            break;
        while (n && !bp_scan_next(round, piece, 16, &n))
            for (unsigned i = 0; i < n; i++)
                for (uint64_t k = 0; k < piece[i].bytes / 4096; k++)
                    check(sound((const struct content *)piece[i].data + k, piece[i].page + k), "torn in a scan",
                          piece[i].page + k);
        bp_scan_close(round);
        oldest = bp_oldest_dirty_lsn(pool);
        check(oldest == UINT64_MAX || oldest <= atomic_load(&lsn), "an LSN that was never given", 0);
    }
    check(!bp_session_close(s), "refs are left", 0);
    return NULL;
}

static void open_all(const char *path)
{
    struct bp_error error = {0};
    struct bp_pool_options po = {.size = sizeof(po), .memory = 1 << 20, .error = &error, .wait_ms = 20000};
    struct bp_file_options fo = {
        .size = sizeof(fo), .write = true, .flush_log = flush_log, .seal = seal, .error = &error};

    if (bp_pool_open(&po, &pool) || bp_file_open(pool, path, &fo, &file)) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
}

static void look_at_all(const char *path)
{
    bp_session *s;

    open_all(path);
    if (bp_session_open(pool, NULL, &s))
        abort();
    for (uint64_t page = 0; page < PAGES; page++)
        look(s, page);
    check(!bp_session_close(s), "refs are left", 0);
    check(!bp_pool_close(pool, NULL), "close", 0);
}

int main(void)
{
    const char *seconds = getenv("BP_STRESS_SECONDS");
    pthread_t thread[THREADS + 1];
    struct bp_error error = {0};
    char path[] = "stress-write-XXXXXX";
    int fd = mkstemp(path);

    if (fd < 0 || ftruncate(fd, PAGES * 4096ul))
        abort();
    close(fd);
    open_all(path);
    for (unsigned i = 0; i <= THREADS; i++)
        if (pthread_create(&thread[i], NULL, i < THREADS ? work : scan, (void *)(uintptr_t)i))
            abort();
    sleep(seconds ? (unsigned)atoi(seconds) : 2);
    atomic_store(&stop, true);
    for (unsigned i = 0; i <= THREADS; i++)
        pthread_join(thread[i], NULL);
    check(!bp_pool_check(pool, &error), error.text, 0);
    check(!bp_pool_close(pool, &error), error.text, 0);
    look_at_all(path);
    unlink(path);
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
