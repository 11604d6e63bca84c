/* SPDX-License-Identifier: MIT */
/*
 * What the programs share that let threads at the index: phases of some workers over one index, which go on until the
 * time is over or one of them finds something wrong; after each, everything must have come back.
 */
#ifndef BUFPOOL_TESTS_INDEX_STRESS_H
#define BUFPOOL_TESTS_INDEX_STRESS_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <urcu/urcu-bp.h>

#include "bufpool/index.h"

#define THREADS_MAX  8u
#define GROUND_ORDER 9u
#define GROUND_PAGES (16u << GROUND_ORDER)
#define KEPT_FRAME   12345u

static struct index_nodes nodes;
static struct index index_one;
static _Atomic bool stop;
static _Atomic unsigned long checks; /* answers compared, of the phase that runs */
static _Atomic unsigned long changes;
static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
static char failure[256];
static uint64_t seed;
static double seconds = 10;

static bool fail(const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&failure_lock);
    if (!failure[0]) {
        va_start(args, format);
        vsnprintf(failure, sizeof(failure), format, args);
        va_end(args);
    }
    pthread_mutex_unlock(&failure_lock);
    atomic_store(&stop, true);
    return false;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct rng {
    uint64_t state;
};

static struct rng rng_for(unsigned who)
{
    return (struct rng){(seed + who * 7919u) * 0x9e3779b97f4a7c15ull + 88172645463325252ull};
}

static uint32_t below(struct rng *r, uint32_t n)
{
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return (uint32_t)((r->state * 0x2545f4914f6cdd1dull) >> 33) % n;
}

/* Insert that must find nodes. Retries are the caller's; true: inserted. */
static bool insert(struct index *x, uint64_t page, unsigned order, uint32_t frame, struct node_magazine *m,
                   struct index_insert *met)
{
    int rc = bpi_magazine_fill(&nodes, m);
    uint32_t had = m->count;

    if (rc)
        return fail("fill answers %d with %u nodes in use", rc, atomic_load(&nodes.in_use));
    rc = bpi_index_insert(x, page, order, frame, m, met);
    if (had - m->count > INSERT_NODES)
        return fail("an insert took %u nodes", had - m->count);
    if (rc && rc != -EEXIST)
        return fail("insert answers %d", rc);
    return rc == 0;
}

/* ---- threads of a phase ---- */

struct worker {
    pthread_t thread;
    unsigned number;
    void (*run)(struct worker *);
    struct rng rng;
};

static void *work(void *arg)
{
    struct worker *w = arg;

    w->run(w);
    return NULL;
}

/* One phase: workers until the time is over, or one of them says stop. Everything must come back. */
static bool phase(const char *name, uint32_t limit, double share, void (*const run[])(struct worker *), unsigned n)
{
    struct worker worker[THREADS_MAX] = {0};
    double end = now() + seconds * share;
    uint64_t live;

    atomic_store(&stop, false);
    atomic_store(&checks, 0);
    atomic_store(&changes, 0);
    if (bpi_nodes_open(&nodes, limit))
        return fail("no memory for nodes");
    bpi_index_init(&index_one, &nodes);
    for (unsigned i = 0; i < n; i++) {
        worker[i].number = i;
        worker[i].run = run[i];
        worker[i].rng = rng_for(i);
        pthread_create(&worker[i].thread, NULL, work, &worker[i]);
    }
    while (!atomic_load(&stop) && now() < end)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < n; i++)
        pthread_join(worker[i].thread, NULL);
    if (!bpi_index_check(&index_one, &live))
        fail("bpi_index_check says no");
    if (live)
        fail("%" PRIu64 " extents are left", live);
    else
        bpi_index_clear(&index_one);
    if (atomic_load(&nodes.in_use) || atomic_load(&nodes.shadow_only))
        fail("%u nodes are lost", atomic_load(&nodes.in_use));
    if (atomic_load(&checks) < 10 || atomic_load(&changes) < 10)
        fail("only %lu answers and %lu changes", atomic_load(&checks), atomic_load(&changes));
    bpi_index_destroy(&index_one);
    bpi_nodes_close(&nodes);
    printf("%-10s %9lu answers, %9lu changes: %s\n", name, atomic_load(&checks), atomic_load(&changes),
           failure[0] ? failure : "ok");
    return !failure[0];
}

/* A frame's low bits are its page's, so any answer can be judged. */
static bool belongs(uint64_t page, index_entry e)
{
    return !entry_is_frame(e) || (entry_number(e) & (GROUND_PAGES - 1)) == page;
}

/* [SEED] and BP_STRESS_SECONDS. */
static void start_program(int argc, char **argv)
{
    const char *more = getenv("BP_STRESS_SECONDS");

    if (more && atof(more) > 0)
        seconds = atof(more);
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %" PRIu64 "\n", seed);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

#endif
