/* SPDX-License-Identifier: MIT */
/*
 * Recordings begin, are read, and end, while threads ask for pages in every way; in a small pool without a device, so
 * that there is nothing but the pool to wait for. What is read must be what can have been asked for, in a ring that
 * loses nothing without saying so.
 *
 *   stress_trace [SECONDS]      default: BP_STRESS_SECONDS, or 2
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bufpool/pool.h"

#define THREADS 4
#define PAGES   2000u
#define FRAMES  150u
#define RING    256u
#define MANY    4u

struct world {
    bp_pool *pool;
    bp_file *file;
    _Atomic bool stop;
    _Atomic uint64_t asked, failed;
};

static void ask(struct world *w, bp_session *s, uint64_t random)
{
    uint64_t page[MANY];
    struct bp_ref ref[MANY];
    struct bp_view view[MANY];
    unsigned n = 1;
    int rc;

    for (unsigned i = 0; i < MANY; i++) /* most of them among few, which get hot */
        page[i] = random % 8 ? (random >> 20) % 50 + 50 * i : (random >> 20) % (PAGES / MANY) + PAGES / MANY * i;
    switch (random >> 8 & 3) {
    case 0:
        rc = bp_read(s, w->file, page[0], &view[0]);
        break;
    case 1:
        rc = bp_get(s, w->file, page[0], random >> 10 & 7 ? BP_SHARED : BP_EXCLUSIVE, &ref[0]);
        if (!rc)
            bp_put(&ref[0]);
        break;
    case 2:
        n = MANY;
        rc = bp_read_many(s, w->file, page, MANY, view);
        break;
    default:
        n = MANY;
        rc = bp_get_many(s, w->file, page, MANY, BP_SHARED, ref);
        if (!rc)
            bp_put_many(ref, MANY);
    }
    if (rc && rc != -EBUSY)
        atomic_fetch_add_explicit(&w->failed, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->asked, n, memory_order_relaxed);
}

static void *asks(void *arg)
{
    struct world *w = arg;
    bp_session *s = NULL;
    uint64_t random = (uint64_t)(uintptr_t)&s | 1;

    if (bp_session_open(w->pool, NULL, &s)) {
        atomic_fetch_add_explicit(&w->failed, 1, memory_order_relaxed);
        return NULL;
    }
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ask(w, s, random * 0x2545f4914f6cdd1du);
    }
    if (bp_session_close(s))
        atomic_fetch_add_explicit(&w->failed, 1, memory_order_relaxed);
    return NULL;
}

/* One recording. Entries read; what is wrong with them goes into *wrong. */
static uint64_t record(struct world *w, unsigned looks, uint64_t *wrong)
{
    const struct bp_trace_options o = {.size = sizeof(o), .one_in = 2, .entries = RING};
    const struct timespec nap = {.tv_nsec = 200000};
    struct bp_trace_entry entry[RING];
    uint64_t total = 0, lost = 0, lost_before = 0;

    *wrong += bp_pool_trace_start(w->pool, &o) != 0;
    for (unsigned i = 0; i < looks; i++) {
        int n = bp_pool_trace_read(w->pool, entry, RING, &lost);

        *wrong += n < 0 || lost < lost_before;
        lost_before = lost;
        for (int k = 0; k < n; k++)
            *wrong += entry[k].file != w->file || entry[k].page >= PAGES || entry[k].kind > BP_TRACE_MISS;
        total += n > 0 ? (uint64_t)n : 0;
        nanosleep(&nap, NULL);
    }
    *wrong += bp_pool_trace_stop(w->pool) != 0;
    *wrong += bp_pool_trace_read(w->pool, entry, RING, NULL) != -EINVAL;
    return total;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : getenv("BP_STRESS_SECONDS");
    double seconds = text ? atof(text) : 2;
    struct bp_pool_options o = {.size = sizeof(o), .memory = 4 << 20, .io = BP_IO_NULL, .frames_max = FRAMES};
    struct bp_file_options fo = {.size = sizeof(fo), .null_bytes = (uint64_t)PAGES * BP_PAGE_SIZE};
    struct world w = {0};
    struct bp_error error = {0};
    pthread_t thread[THREADS];
    uint64_t total = 0, wrong = 0, recordings = 0;
    double end = now() + seconds;
    bool sound;

    if (bp_pool_open(&o, &w.pool) || bp_file_open(w.pool, "traced", &fo, &w.file))
        return 1;
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, asks, &w))
            return 1;
    for (; now() < end; recordings++)
        total += record(&w, 1 + recordings % 8, &wrong);
    atomic_store_explicit(&w.stop, true, memory_order_relaxed);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    sound = !bp_pool_check(w.pool, &error) && !bp_pool_close(w.pool, &error);
    printf(
        "%llu asked, %llu recordings, %llu entries read, %llu of them or of the calls wrong, %llu requests failed %s\n",
        (unsigned long long)w.asked, (unsigned long long)recordings, (unsigned long long)total,
        (unsigned long long)wrong, (unsigned long long)w.failed, error.text);
    sound = sound && !wrong && !w.failed && recordings > 3 && total > recordings;
    printf("%d passed, %d failed\n", sound, !sound);
    return !sound;
}
