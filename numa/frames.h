/* SPDX-License-Identifier: MIT */
/*
 * Frames: a buddy allocator over the slabs, one per node, orders 0 to FRAMES_ORDER_MAX.
 *
 * A frame number counts 4 KiB units from the slabs' base, so a block of order k starts at a multiple of
 * 2^k. Free blocks are bits in hierarchical bitmaps, one per order: the lowest block is found in a handful
 * of steps and low addresses are used first, which keeps the upper end in whole blocks.
 *
 * Memory comes lazily: when a node has no free block of the order wanted, the next piece of one of its slabs is
 * populated, then the next slab is placed, and only when there is none left (or the system refuses, or the slabs on
 * this node add up to all the memory it has) the nearest other nodes are asked (counted as spill), and then the answer
 * is -ENOMEM: time to evict.
 *
 * A refusal of the system is remembered: the next 256 calls that would need more memory do not ask again.
 *
 * Thread safe: one lock per node. It is not held while memory is populated, so freeing and allocating from what
 * is there goes on meanwhile; who finds nothing waits for the one that populates, a second at the most, and is then
 * told -ENOMEM. Bits and counts cost 1/16,384 of the pool beside it.
 */
#ifndef NUMA_FRAMES_H
#define NUMA_FRAMES_H

#include "numa/slab.h"

#define FRAMES_ORDER_MAX 9

struct frames;

struct frames_stats {
    uint64_t frames_total;     /* that the pool can have */
    uint64_t frames_limit;     /* that it may have now */
    uint64_t frames_populated; /* that have memory */
    uint64_t frames_free;      /* in the buddy, or aside in slabs that drain */
    uint64_t spilled;          /* frames handed out from another node than asked */
    uint64_t strayed;          /* frames that the system put on another node than their slab's */
    unsigned slabs[3];         /* placed slabs by enum slab_backing */
    unsigned slabs_draining;
    char huge_reason[120];        /* why a slab stepped down (hugetlb, THP, small), the last one; empty if none did */
    char reason[SLAB_SMALL][120]; /* why a slab is not on hugetlb; why not on transparent huge pages */
    char limit_reason[120];       /* why population stopped early, empty if it did not */
    char bind_reason[120];        /* why a slab may lie on another node than asked, empty if every bind was accepted */
};

/*
 * The topology is borrowed and must outlive the frames. bytes: the most there can ever be, a multiple of 4096, up to 4 TiB:
 * address space for it is reserved. -EINVAL, -ENOMEM.
 */
int bpi_frames_open(const struct topology *, uint64_t bytes, enum slab_huge, struct frames **);
void bpi_frames_close(struct frames *);

/*
 * No more than so many bytes get memory from now on; from the open on that is as much as there can be. What has memory
 * keeps it, also if it is more: see draining. Thread safe.
 */
void bpi_frames_limit(struct frames *, uint64_t bytes);

/* Whose memory a session of a node gets. */
enum frames_place {
    FRAMES_LOCAL,      /* its own node's, or that of the nearest of the nodes named; others when these have no more */
    FRAMES_INTERLEAVE, /* of the nodes named in turn, whoever asks; others when these have no more */
    FRAMES_BIND        /* the nearest of the nodes named, and of no others */
};
/* Before anything is taken. nodes: one flag per node, some must be set; NULL: all. Otherwise it is FRAMES_LOCAL and all. */
void bpi_frames_place(struct frames *, enum frames_place, const bool nodes[]);

/* First byte of frame 0. */
char *bpi_frames_base(const struct frames *);
/* Frames the pool can have: frame numbers are below this. Constant. */
uint32_t bpi_frames_total(const struct frames *);
/* Frame numbers at or above this have never been handed out (they have no memory yet). Only grows; relaxed. */
uint32_t bpi_frames_high(const struct frames *);

/*
 * Take one block of 2^order frames for a session of this node; *first gets its first frame. The block is the lowest of
 * the smallest order that serves. 0; -ENOMEM: nothing free and nothing more to populate: evict; -EINVAL: no such node
 * or order; -ENOTSUP: SLAB_HUGE_ON could not be met (only while the pool has no memory at all, later -ENOMEM).
 */
int bpi_frames_alloc(struct frames *, unsigned node, unsigned order, uint32_t *first);
/*
 * Take up to n single frames in ascending order under one lock, the smallest and lowest free blocks first; how many
 * (fewer rather than populate more), or a negative errno as above if none.
 */
int bpi_frames_alloc_many(struct frames *, unsigned node, uint32_t first[], unsigned n);
/*
 * Take everything that is free of the block of 2^order frames at `first`, a bit for each frame in taken[]; how many.
 * For who makes the rest of it free, too. What was taken is given back by bpi_frames_free, in parts or as a whole.
 */
uint32_t bpi_frames_take_within(struct frames *, uint32_t first, unsigned order, uint64_t taken[]);
/*
 * Give back, each to its own node; merges buddies. A block may be given back in parts, or parts as a whole. Giving back
 * what is free already is a programmer's error (asserted; bpi_frames_check sees it).
 */
void bpi_frames_free(struct frames *, uint32_t first, unsigned order);
void bpi_frames_free_many(struct frames *, const uint32_t frame[], unsigned n);

void bpi_frames_stats(const struct frames *, struct frames_stats *);
/* Frames that have memory now, or are just getting it. After bpi_frames_limit it does not grow beyond that. */
uint64_t bpi_frames_claimed(const struct frames *);

/* Node that the memory of a frame that was handed out lies on, as far as the pool knows. Lock free. */
unsigned bpi_frames_node(const struct frames *, uint32_t frame);
/* Slab of a frame, and whether that slab is fully populated (then it may be registered). Lock free. */
unsigned bpi_frames_slab(const struct frames *, uint32_t frame);
bool bpi_frames_slab_ready(const struct frames *, unsigned slab);
/*
 * A ring is about to register the memory of a slab; it has let go of it. Between the two the slab's memory cannot be given
 * back (R20). register: 0; -EAGAIN: not populated; -EBUSY: it drains; then it must not be registered. unregister: 0; -EINVAL:
 * nobody had it. Lock free.
 */
int bpi_frames_slab_register(struct frames *, unsigned slab);
int bpi_frames_slab_unregister(struct frames *, unsigned slab);
unsigned bpi_frames_slab_count(const struct frames *);
/* Frames of a whole slab. Constant. */
uint32_t bpi_frames_slab_frames(const struct frames *);
/* Frames of a slab that have memory now. Lock free. */
uint32_t bpi_frames_slab_populated(const struct frames *, unsigned slab);
/* Address and bytes of a slab's part that belongs to the pool. */
void bpi_frames_slab_range(const struct frames *, unsigned slab, void **at, size_t *bytes);

/* ---- draining (drain.c): a slab's memory goes back to the system. Thread safe ---- */

/*
 * From now on nothing of the slab is handed out: its free frames are taken out of the buddy, and what is given back stays
 * aside. What callers have in stock is theirs; bpi_frames_draining() tells them. 0; -EALREADY: it drains; -EINVAL: it has
 * no memory, or there is no such slab; -EBUSY: it is being populated and that takes too long, retry.
 */
int bpi_frames_drain_begin(struct frames *, unsigned slab);
/* Frames of it that are still out: bound, or in somebody's stock. -EINVAL: it does not drain. */
long bpi_frames_drain_left(struct frames *, unsigned slab);
/*
 * All frames have come back: its memory goes to the system (to the hugetlb pool, if it is from there), and the slab can be
 * placed again, on any node. Stale pointers read zeros. 0; -EBUSY: frames are out, or a ring has it registered: it drains
 * on; -EINVAL: it does not drain; -ENOMEM: the system could not, retry or cancel.
 */
int bpi_frames_drain_end(struct frames *, unsigned slab);
/* As if it had not begun: what is aside can be handed out again. 0; -EINVAL: it does not drain. */
int bpi_frames_drain_cancel(struct frames *, unsigned slab);
/* Whether a frame lies in a slab that drains: better given back than kept. Lock free, and cheap while none does. */
bool bpi_frames_draining(const struct frames *, uint32_t frame);

/* One slab, for who wants to look. */
struct frames_slab {
    enum slab_state state;
    enum slab_backing backing; /* of what is not reserved */
    unsigned node;             /* of what is not reserved */
    uint32_t rings;            /* that have it registered */
    uint32_t frames;           /* it can have */
    uint32_t populated, free;  /* frames */
};
/* A snapshot of one slab; takes its node's lock, and looks at each of its frames. */
void bpi_frames_slab_look(struct frames *, unsigned slab, struct frames_slab *);

/* Invariants (bits against counts, no block free twice or with its buddy). true if sound. Takes the locks. */
bool bpi_frames_check(const struct frames *);

#endif
