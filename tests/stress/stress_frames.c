/* SPDX-License-Identifier: MIT */
/*
 * Frames under threads: several take and give back blocks of all orders on two nodes while the pool grows, runs full
 * and spills. Every frame has an owner in an array of atomics: handed out twice, given to two, or lost is seen at once.
 * Others ask for statistics and run the check meanwhile, drain one slab after the other, and register slabs as a ring
 * would.
 */
#include "numa/frames.h"
#include "numa/node.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS    4u
#define STEPS      60000u /* each */
#define HELD_MAX   600u
#define POOL_BYTES ((uint64_t)(11u << 20) + 7 * 4096)

static struct topology topology;
static _Atomic uint8_t *owner; /* 0: not handed out */
static _Atomic unsigned wrong;
static _Atomic bool stop;
static unsigned passed, failed;

struct worker {
    struct frames *frames;
    unsigned number; /* 1 and up */
    uint64_t seed;
    uint64_t taken; /* frames, in all */
    uint64_t refused;
    unsigned held_count;
    struct {
        uint32_t first;
        uint32_t order;
    } held[HELD_MAX];
};

static void expect(bool ok, const char *what)
{
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAILED: %s\n", what);
    }
}

static uint32_t draw(struct worker *me, uint32_t below)
{
    me->seed ^= me->seed << 13;
    me->seed ^= me->seed >> 7;
    me->seed ^= me->seed << 17;
    return (uint32_t)(me->seed >> 11) % below;
}

/* The frames change hands; whoever had them before has given them back, or it is wrong. */
static void own(struct worker *me, uint32_t first, uint32_t count, uint8_t from, uint8_t to)
{
    for (uint32_t i = 0; i < count; i++)
        if (atomic_exchange_explicit(&owner[first + i], to, memory_order_relaxed) != from)
            wrong++;
    if (to) {
        /* plain stores: the thread sanitizer sees two owners of a frame, too */
        char *memory = bpi_frames_base(me->frames) + (size_t)first * 4096;
        memory[0] = (char)to;
        memory[(size_t)count * 4096 - 1] = (char)to;
    }
}

static void keep(struct worker *me, uint32_t first, uint32_t order)
{
    own(me, first, 1u << order, 0, (uint8_t)me->number);
    me->held[me->held_count].first = first;
    me->held[me->held_count++].order = order;
    me->taken += 1u << order;
}

static void take(struct worker *me)
{
    uint32_t first[32];
    unsigned node = me->number % topology.node_count;
    int got;

    if (draw(me, 3) == 0) {
        got = bpi_frames_alloc_many(me->frames, node, first, 32);
        for (int i = 0; i < got; i++)
            keep(me, first[i], 0);
    } else {
        unsigned order = draw(me, 2) ? draw(me, 5) : draw(me, FRAMES_ORDER_MAX + 1);
        got = bpi_frames_alloc(me->frames, node, order, first);
        if (!got)
            keep(me, first[0], order);
    }
    if (got == -ENOMEM)
        me->refused++;
    else if (got < 0)
        wrong++;
}

/* One block, or a handful of single frames together. */
static void give(struct worker *me)
{
    uint32_t singles[16];
    unsigned n = 0;

    while (me->held_count && n < 16) {
        unsigned victim = draw(me, me->held_count);
        uint32_t first = me->held[victim].first, order = me->held[victim].order;
        me->held[victim] = me->held[--me->held_count];
        own(me, first, 1u << order, (uint8_t)me->number, 0);
        if (order) {
            bpi_frames_free(me->frames, first, order);
            break;
        }
        singles[n++] = first;
    }
    bpi_frames_free_many(me->frames, singles, n);
}

static void *work(void *arg)
{
    struct worker *me = arg;

    for (unsigned step = 0; step < STEPS; step++) {
        bool fill = draw(me, 100) < (step / 2000 % 2 ? 25 : 55);
        if (fill && me->held_count + 32 <= HELD_MAX)
            take(me);
        else
            give(me);
    }
    while (me->held_count)
        give(me);
    return NULL;
}

static void *watch(void *arg)
{
    struct frames *frames = arg;
    struct frames_stats stats;

    while (!stop) {
        bpi_frames_stats(frames, &stats);
        /* node by node: a slab that leaves one and comes to the next is seen twice */
        uint64_t most = stats.frames_total + (topology.node_count > 1 ? PIECE_FRAMES : 0);
        if (stats.frames_free > stats.frames_populated || stats.frames_populated > most)
            wrong++;
        if (!bpi_frames_check(frames))
            wrong++;
        for (unsigned i = 0; i < bpi_frames_slab_count(frames); i++)
            (void)bpi_frames_slab_ready(frames, i);
    }
    return NULL;
}

/* Slabs leave, if all their frames come back in time, and come again when they are needed. */
static void *drain(void *arg)
{
    struct worker *me = arg;

    while (!stop) {
        unsigned slab = draw(me, bpi_frames_slab_count(me->frames));
        int err = bpi_frames_drain_begin(me->frames, slab);
        if (err) {
            wrong += err != -EINVAL && err != -EBUSY;
            sched_yield();
            continue;
        }
        long left = 1;
        for (unsigned i = 0; i < 300 && left > 0 && !stop; i++) {
            left = bpi_frames_drain_left(me->frames, slab);
            sched_yield();
        }
        err = bpi_frames_drain_end(me->frames, slab);
        wrong += left < 0 || (err && err != -EBUSY);
        if (err)
            wrong += bpi_frames_drain_cancel(me->frames, slab) != 0;
        else
            me->taken++;
        me->refused += err != 0;
    }
    return NULL;
}

/* A slab is there, whole, and on one node, as long as somebody has it registered. */
static void *hold(void *arg)
{
    struct worker *me = arg;

    while (!stop) {
        unsigned slab = draw(me, bpi_frames_slab_count(me->frames));
        const struct slab *held = &me->frames->slabs.slab[slab];
        if (bpi_frames_slab_register(me->frames, slab)) {
            sched_yield();
            continue;
        }
        unsigned node = slab_node(held);
        for (unsigned i = 0; i < 50; i++) {
            enum slab_state state = slab_state(held);
            wrong += state != SLAB_POPULATED && state != SLAB_DRAINING;
            wrong += slab_node(held) != node || slab_frames(held) != held->bytes / FRAME_BYTES;
            sched_yield();
        }
        wrong += bpi_frames_slab_unregister(me->frames, slab) != 0;
        me->taken++;
    }
    return NULL;
}

/* One round on a machine of so many nodes. */
static void round_of(unsigned nodes)
{
    static struct worker worker[THREADS], drainer, holder;
    pthread_t thread[THREADS], watcher, drains, holds;
    struct frames *frames = NULL;
    struct frames_stats stats;
    uint32_t first, blocks = 0;
    uint64_t taken = 0, refused = 0;

    memset(&topology, 0, sizeof(topology)); /* made by hand: nothing is bound without hwloc */
    topology.node_count = nodes;
    for (unsigned n = 0; n < nodes; n++)
        for (unsigned i = 0; i < nodes; i++)
            topology.spill[n][i] = (uint8_t)((n + i) % nodes);
    if (bpi_frames_open(&topology, POOL_BYTES, SLAB_HUGE_TRY, &frames)) {
        expect(false, "open");
        return;
    }
    wrong = 0;
    stop = false;
    owner = calloc(bpi_frames_total(frames), sizeof(*owner));
    memset(worker, 0, sizeof(worker));
    drainer = (struct worker){.frames = frames, .seed = 0x2545f4914f6cdd1du};
    holder = (struct worker){.frames = frames, .seed = 0x6a09e667f3bcc909u};
    pthread_create(&watcher, NULL, watch, frames);
    pthread_create(&drains, NULL, drain, &drainer);
    pthread_create(&holds, NULL, hold, &holder);
    for (unsigned i = 0; i < THREADS; i++) {
        worker[i].frames = frames;
        worker[i].number = i + 1;
        worker[i].seed = 0x9e3779b97f4a7c15u * (i + nodes);
        pthread_create(&thread[i], NULL, work, &worker[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        taken += worker[i].taken;
        refused += worker[i].refused;
    }
    stop = true;
    pthread_join(watcher, NULL);
    pthread_join(drains, NULL);
    pthread_join(holds, NULL);

    expect(wrong == 0, "every frame has one owner at a time");
    expect(refused > 0, "the pool ran full");
    expect(bpi_frames_check(frames), "the allocator is sound");
    bpi_frames_stats(frames, &stats);
    expect(stats.frames_free == stats.frames_populated, "everything is back");
    expect(stats.slabs_draining == 0, "no slab drains any more");
    for (unsigned i = 0; i < bpi_frames_slab_count(frames); i++) {
        int err = bpi_frames_drain_begin(frames, i);
        wrong += err ? err != -EINVAL : bpi_frames_drain_end(frames, i) != 0;
    }
    bpi_frames_stats(frames, &stats);
    expect(wrong == 0 && stats.frames_populated == 0, "all slabs can leave");
    expect(holder.taken > 0, "slabs were registered");
    expect((stats.spilled > 0) == (nodes > 1), "nodes helped each other");
    while (!bpi_frames_alloc(frames, 0, FRAMES_ORDER_MAX, &first))
        blocks++;
    expect(blocks == stats.frames_total / PIECE_FRAMES, "whole blocks are whole again");
    printf("%u node(s): %llu frames taken, %llu times full, %llu spilled, %llu slabs left\n", nodes,
           (unsigned long long)taken, (unsigned long long)refused, (unsigned long long)stats.spilled,
           (unsigned long long)drainer.taken);
    bpi_frames_close(frames);
    free((void *)owner);
}

int main(void)
{
    round_of(1);
    round_of(2);
    round_of(3);
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
