/* SPDX-License-Identifier: MIT */
/*
 * What frames.c and drain.c share, and nobody else sees: the nodes' buddies and their locks.
 */
#ifndef NUMA_NODE_H
#define NUMA_NODE_H

#include "numa/buddy.h"
#include "numa/frames.h"

#include <time.h>

#define FRAME_BYTES  4096u
#define PIECE_FRAMES (SLAB_PIECE / FRAME_BYTES)
#define WAIT_SECONDS 1 /* for another thread's piece; usually well below 1 ms */

struct node {
    _Alignas(64) pthread_mutex_t lock;
    bool growing;       /* a thread populates for this node; slab is that thread's */
    _Atomic bool full;  /* there is no more memory, until a slab is given back. Peeked at without the lock */
    uint64_t populated; /* frames */
    struct buddy buddy;
    unsigned draining; /* slabs: what is given back may be theirs */
    uint64_t aside;    /* frames of these that are free, not in the buddy */
    pthread_cond_t grown;
    int slab; /* being populated, -1: none */
    _Atomic uint64_t
        slab_bytes;    /* of all slabs placed here. Who grows has no lock while one is drained; relaxed: a sum */
    int refused;       /* what the system answered to the last attempt to grow, 0: it grew */
    unsigned refusals; /* calls since then */
};

struct frames {
    const struct topology *topology;
    struct slabs slabs;
    struct node *node;
    void *bits; /* all bitmaps */
    size_t bits_bytes;
    uint64_t *aside; /* a bit per frame: free, of a slab that drains. Each under its node's lock */
    uint32_t total;
    unsigned node_count;
    unsigned slab_shift;       /* frame >> slab_shift is its slab */
    _Atomic uint64_t limit;    /* frames that may have memory */
    _Atomic uint64_t claimed;  /* that have, or are just getting it */
    _Atomic unsigned draining; /* slabs, of all nodes */

    /* place.c; constant once frames are taken */
    enum frames_place place;
    unsigned usable;                                       /* nodes in each order */
    uint8_t order[TOPOLOGY_NODES_MAX][TOPOLOGY_NODES_MAX]; /* whom a session of a node asks, one after the other */
    unsigned turns;
    uint8_t turn_node[TOPOLOGY_NODES_MAX]; /* FRAMES_INTERLEAVE: these in turn */
    _Atomic unsigned turn;
    _Atomic uint32_t high;
    _Atomic uint64_t spilled, strayed;
    _Atomic int refused; /* of the last node that tried to grow */
};

static inline unsigned slab_of(const struct frames *frames, uint32_t frame)
{
    return frame >> frames->slab_shift;
}

static inline uint32_t slab_frames(const struct slab *slab)
{
    return (uint32_t)(atomic_load_explicit(&slab->populated, memory_order_relaxed) / FRAME_BYTES);
}

/* ---- frames.c ---- */
/* Until the thread that grows this node is through; its lock is held. false: it takes too long. */
bool bpi_node_wait_grown(struct node *, struct timespec *deadline);
/* The memory of so many frames is there no longer. */
void bpi_frames_unclaim(struct frames *, uint64_t count);

/* ---- place.c ---- */
/* Whom a session of this node asks, `usable` of them. */
const uint8_t *bpi_place_order(struct frames *, unsigned node);
/*
 * Memory has just come for a node, frames from first on, and nobody has it yet: where is it in truth? count if the node
 * has it; -ENOMEM if not: then it is another node's. No lock is held.
 */
long bpi_place_settle(struct frames *, unsigned node, uint32_t first, long count);

/* ---- drain.c ---- */
/* Frames of a slab that drains have come back; the node's lock is held. */
void bpi_drain_keep(struct frames *, struct node *, uint32_t first, uint32_t count);
/* Whether what is kept aside for a node agrees with the counts; its lock is held. */
bool bpi_drain_sound(const struct frames *, unsigned node);

#endif
