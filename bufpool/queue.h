/* SPDX-License-Identifier: MIT */
/*
 * Queues of frame numbers: in at the head, out at the tail, many at a time.
 *
 * A queue is a list of chunks of 30 numbers (two cache lines), and one lock that is held while some numbers are copied
 * out or in, never while anything is done with them. What was taken out belongs to whoever took it: a sweep works on
 * its own numbers, no other sees the same ones, and the descriptors they name can be asked for ahead. That is 4.3 bytes
 * a frame; links in the descriptors would be 8, and each a cache miss that waits for the one before.
 *
 *   tail                                  head
 *   [begin .. end] -> newer [0 .. 29] -> newer [0 .. end]
 *
 * Only the first and the last chunk of a queue are partly filled. A queue keeps one empty chunk for itself, so that what
 * goes in at one end and out at the other asks nobody for chunks.
 */
#ifndef BUFPOOL_QUEUE_H
#define BUFPOOL_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bufpool/lock.h"

#define CHUNK_ENTRIES 30u
#define CHUNK_NONE    UINT32_MAX

struct chunk {
    _Atomic uint16_t begin; /* the oldest number; written under the lock of its queue, as all here */
    uint16_t end;
    uint32_t newer; /* chunk; also the free list's link */
    _Atomic uint32_t entry[CHUNK_ENTRIES];
};
_Static_assert(sizeof(struct chunk) == 128, "two cache lines");

/* Chunks of all queues of a pool. */
struct chunks {
    struct chunk *chunk;
    uint32_t limit;
    slim_lock lock; /* of what follows; taken inside a queue's */
    uint32_t fresh; /* from here on they were never used */
    uint32_t free;
};

/* No larger than need be: those of a lane (policy.h) share two cache lines. */
struct queue {
    slim_lock lock;
    uint32_t head;           /* chunk */
    _Atomic uint32_t tail;   /* chunk */
    uint32_t spare;          /* an empty chunk, or CHUNK_NONE */
    _Atomic uint32_t count;  /* numbers; written under the lock */
    _Atomic uint32_t pages;  /* of what they name: kept by the callers */
    _Atomic uint32_t oldest; /* the same of what is at the tail: about when it came */
};

/* For as many numbers as there are frames, in so many queues. 0 or -ENOMEM. */
int bpi_chunks_open(struct chunks *, uint32_t frames, unsigned queues);
void bpi_chunks_close(struct chunks *);

/* A queue's chunks always are the same. */
void bpi_queue_init(struct queue *);
/* All n, in this order, each becoming the head. */
void bpi_queue_push(struct queue *, struct chunks *, const uint32_t number[], unsigned n);
/* The oldest, up to `most`, in order; how many. */
unsigned bpi_queue_pop(struct queue *, struct chunks *, uint32_t number[], unsigned most);
/* Take the oldest if it is this one. */
bool bpi_queue_pop_this(struct queue *, struct chunks *, uint32_t number);
/* The oldest as it was a moment ago, taken by nobody; UINT32_MAX: none. No lock. */
uint32_t bpi_queue_peek(const struct queue *, const struct chunks *);
/* Counts against chunks. true if sound. Takes the lock. */
bool bpi_queue_check(struct queue *, const struct chunks *);

static inline uint32_t queue_count(const struct queue *q)
{
    return atomic_load_explicit(&q->count, memory_order_relaxed);
}

static inline uint32_t queue_pages(const struct queue *q)
{
    return atomic_load_explicit(&q->pages, memory_order_relaxed);
}

static inline uint32_t queue_oldest(const struct queue *q)
{
    return atomic_load_explicit(&q->oldest, memory_order_relaxed);
}

#endif
