/* SPDX-License-Identifier: MIT */
/*
 * Making room, on a null device: nothing but the pool's own work.
 *
 *   evict            frames taken from cold pages, kept until the end: choosing, index entry to shadow, unbinding
 *   fault            pages never seen before, each in place of another one; a session and a file for each thread
 *   scan-resistance  a hot set of half the pool, alone and beside a scan; its hits are checked
 *   pinned-99        faults while 99 of 100 frames are pinned
 */
#include <errno.h>
#include <stdlib.h>

#include "bench.h"
#include "bufpool/pool.h"

#define FILE_BYTES (1ull << 50)

enum { POOL_STABLE, POOL_RECENT, POOL_PINNED, POOLS };

struct evict {
    bp_pool *pool[POOLS];
};

/* A session and a file in each pool. */
struct evict_thread {
    bp_session *s[POOLS];
    bp_file *file[POOLS];
    uint64_t next[POOLS]; /* page never seen */
    uint32_t *frame;      /* what is taken, of one pool at a time: half of it at the most */
    uint32_t taken[POOLS];
    struct bp_ref *ref; /* what is pinned */
    uint32_t pinned;
    uint64_t hot_asked[2], hot_missed[2]; /* alone, beside a scan */
};

static int evict_open(const struct bench *b, void **fixture)
{
    static const enum bp_policy policy[POOLS] = {BP_POLICY_STABLE, BP_POLICY_RECENT, BP_POLICY_STABLE};
    struct evict *e = calloc(1, sizeof(*e));

    *fixture = e;
    if (!e)
        return bench_error("no memory");
    for (unsigned i = 0; i < POOLS; i++) {
        struct bp_error error = {0};
        struct bp_pool_options o = {.size = sizeof(o),
                                    .memory = b->bytes,
                                    .io = BP_IO_NULL,
                                    .policy = policy[i],
                                    .wait_ms = 1000,
                                    .error = &error};

        if (bp_pool_open(&o, &e->pool[i]))
            return bench_error("%s", error.text);
    }
    return 0;
}

static void evict_close(void *fixture)
{
    struct evict *e = fixture;

    for (unsigned i = 0; e && i < POOLS; i++)
        if (e->pool[i] && bp_pool_close(e->pool[i], NULL))
            bench_error("a pool does not close");
    free(e);
}

/* Pages never seen. */
static int stream(struct evict_thread *l, unsigned pool, uint64_t n)
{
    struct bp_view view;
    int rc = 0;

    for (uint64_t i = 0; i < n && !rc; i++)
        rc = bp_read(l->s[pool], l->file[pool], l->next[pool]++, &view);
    return rc;
}

/* 99 of 100, if nobody else does. */
static int pin_most(struct evict_thread *l, unsigned pool, uint32_t n)
{
    int rc = 0;

    while (l->pinned < n && !rc) {
        rc = bp_get(l->s[pool], l->file[pool], l->next[pool]++, BP_SHARED, &l->ref[l->pinned]);
        l->pinned += !rc;
    }
    return rc;
}

static int evict_thread_open(struct bench_thread *t)
{
    struct evict *e = t->fixture;
    struct evict_thread *l = calloc(1, sizeof(*l));
    uint32_t frames = e->pool[0]->frames_total;
    int rc = 0;

    t->local = l;
    if (!l)
        return -ENOMEM;
    l->frame = malloc(frames * sizeof(*l->frame));
    l->ref = malloc(frames * sizeof(*l->ref));
    if (!l->frame || !l->ref)
        return -ENOMEM;
    for (unsigned i = 0; i < POOLS && !rc; i++) {
        struct bp_file_options o = {.size = sizeof(o), .null_bytes = FILE_BYTES};

        rc = bp_session_open(e->pool[i], NULL, &l->s[i]);
        if (!rc)
            rc = bp_file_open(e->pool[i], "null", &o, &l->file[i]);
        if (!rc)
            rc = stream(l, i, 2 * frames / t->count);
    }
    if (!rc)
        rc = pin_most(l, POOL_PINNED, (uint32_t)(frames * 99ull / 100 / t->count));
    return rc;
}

static void evict_thread_close(struct bench_thread *t)
{
    struct evict_thread *l = t->local;

    if (!l)
        return;
    if (l->ref)
        bp_put_many(l->ref, l->pinned);
    for (unsigned i = 0; i < POOLS; i++)
        if (l->s[i] && l->taken[i])
            bpi_frames_free_many(l->s[i]->pool->frames, l->frame, l->taken[i]);
    for (unsigned i = 0; i < POOLS; i++)
        if (l->s[i] && bp_session_close(l->s[i]))
            bench_error("a session does not close");
    free(l->frame);
    free(l->ref);
    free(l);
}

/* Everything that was taken goes back, and is full of pages again, as cold as new ones are. */
static int fill_again(struct bench_thread *t, unsigned pool)
{
    struct evict_thread *l = t->local;

    bpi_frames_free_many(l->s[pool]->pool->frames, l->frame, l->taken[pool]);
    l->taken[pool] = 0;
    return stream(l, pool, l->s[pool]->frames_total / t->count);
}

static int evict_prepare(struct bench_thread *t)
{
    int rc = fill_again(t, POOL_STABLE);

    return rc ? rc : fill_again(t, POOL_RECENT);
}

static int take(struct bench_thread *t, unsigned pool, uint64_t ops)
{
    struct evict_thread *l = t->local;
    uint32_t most = l->s[pool]->frames_total / 2 / t->count;
    int rc = 0;

    for (uint64_t i = 0; i < ops && !rc; i++) {
        if (l->taken[pool] == most) /* more than there is to take: then it is not only taking that is measured */
            rc = fill_again(t, pool);
        if (!rc)
            rc = bpi_frame_take(l->s[pool], 0, &l->frame[l->taken[pool]]);
        l->taken[pool] += !rc;
    }
    return rc;
}

static int take_stable(struct bench_thread *t, uint64_t ops)
{
    return take(t, POOL_STABLE, ops);
}

static int take_recent(struct bench_thread *t, uint64_t ops)
{
    return take(t, POOL_RECENT, ops);
}

static int fault_stable(struct bench_thread *t, uint64_t ops)
{
    return stream(t->local, POOL_STABLE, ops);
}

static int fault_recent(struct bench_thread *t, uint64_t ops)
{
    return stream(t->local, POOL_RECENT, ops);
}

static int fault_pinned(struct bench_thread *t, uint64_t ops)
{
    return stream(t->local, POOL_PINNED, ops);
}

/* ---- a hot set, and a scan beside it ---- */

#define HOT_FIRST (1ull << 36)

static int hot(struct bench_thread *t, uint64_t ops, bool scan)
{
    struct evict_thread *l = t->local;
    bp_session *s = l->s[POOL_STABLE];
    uint64_t set = s->frames_total / 2;
    int rc = 0;

    for (uint64_t i = 0; i < ops && !rc; i++) {
        uint64_t misses = atomic_load_explicit(&s->count.misses, memory_order_relaxed);
        struct bp_view view;

        rc = bp_read(s, l->file[POOL_STABLE], HOT_FIRST + bench_random_page(&t->random, set), &view);
        l->hot_missed[scan] += atomic_load_explicit(&s->count.misses, memory_order_relaxed) - misses;
        l->hot_asked[scan]++;
        if (!rc && scan)
            rc = stream(l, POOL_STABLE, 1);
    }
    return rc;
}

static int hot_alone(struct bench_thread *t, uint64_t ops)
{
    return hot(t, ops, false);
}

static int hot_beside_scan(struct bench_thread *t, uint64_t ops)
{
    return hot(t, ops, true);
}

/* The set is there before it is measured; what it lost when it was not is not counted. */
static int hot_prepare(struct bench_thread *t)
{
    struct evict_thread *l = t->local;
    int rc = 0;

    if (!l->hot_asked[0])
        rc = hot(t, 20ull * l->s[0]->frames_total, false);
    if (l->hot_asked[0] == 20ull * l->s[0]->frames_total)
        l->hot_asked[0] = l->hot_missed[0] = 0;
    return rc;
}

static void hot_thread_close(struct bench_thread *t)
{
    struct evict_thread *l = t->local;

    for (unsigned i = 0; l && i < 2; i++)
        if (l->hot_asked[i])
            bench_note("hot set %s: %.2f %% hits", i ? "beside the scan" : "alone",
                       100 - 100 * (double)l->hot_missed[i] / (double)l->hot_asked[i]);
    if (l && l->hot_asked[1] && l->hot_missed[1] * 50 > l->hot_asked[1])
        bench_error("the scan cost the hot set more than 2 points");
    evict_thread_close(t);
}

static const struct bench_fixture evict_fixture = {.open = evict_open,
                                                   .close = evict_close,
                                                   .thread_open = evict_thread_open,
                                                   .thread_close = evict_thread_close,
                                                   .prepare = evict_prepare};

static const struct bench_fixture fault_fixture = {
    .open = evict_open, .close = evict_close, .thread_open = evict_thread_open, .thread_close = evict_thread_close};

static const struct bench_fixture hot_fixture = {.open = evict_open,
                                                 .close = evict_close,
                                                 .thread_open = evict_thread_open,
                                                 .thread_close = hot_thread_close,
                                                 .prepare = hot_prepare};

static const struct bench_variant evict_variants[] = {{.name = "stable", .loop = take_stable},
                                                      {.name = "recent", .loop = take_recent}};
static const struct bench_variant fault_variants[] = {{.name = "stable", .loop = fault_stable},
                                                      {.name = "recent", .loop = fault_recent}};
static const struct bench_variant hot_variants[] = {{.name = "alone", .loop = hot_alone},
                                                    {.name = "beside-scan", .loop = hot_beside_scan}};
static const struct bench_variant pinned_variants[] = {{.name = "unpinned", .loop = fault_stable},
                                                       {.name = "pinned", .loop = fault_pinned}};

const struct bench_case bench_evict = {.name = "evict",
                                       .text = "a frame from a cold page, which leaves a shadow",
                                       .fixture = &evict_fixture,
                                       .variant = evict_variants,
                                       .variant_count = BENCH_COUNT(evict_variants),
                                       .ops = 10000,
                                       .bytes = 256u << 20,
                                       .clock = BENCH_CPU};

const struct bench_case bench_fault = {.name = "fault",
                                       .text = "a page never seen, in place of another, on a null device",
                                       .fixture = &fault_fixture,
                                       .variant = fault_variants,
                                       .variant_count = BENCH_COUNT(fault_variants),
                                       .ops = 50000,
                                       .bytes = 64u << 20,
                                       .clock = BENCH_WALL};

const struct bench_case bench_scan_resistance = {.name = "scan-resistance",
                                                 .text =
                                                     "a hot set of half the pool, one page of a scan for each of it",
                                                 .fixture = &hot_fixture,
                                                 .variant = hot_variants,
                                                 .variant_count = BENCH_COUNT(hot_variants),
                                                 .ops = 50000,
                                                 .bytes = 32u << 20,
                                                 .clock = BENCH_CPU};

const struct bench_case bench_pinned_99 = {.name = "pinned-99",
                                           .text = "a page never seen, while 99 of 100 frames are pinned",
                                           .fixture = &fault_fixture,
                                           .variant = pinned_variants,
                                           .variant_count = BENCH_COUNT(pinned_variants),
                                           .ops = 10000,
                                           .bytes = 32u << 20,
                                           .clock = BENCH_CPU};
