/* SPDX-License-Identifier: MIT */
/* Queues of frame numbers in chunks. Memory orders: the locks order all but the peek, whose answer may be stale. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "bufpool/queue.h"
#include "bufpool/reserve.h"

#define QUEUE_EXTRA 3u /* chunks of a queue beside full ones: the first, the last, the spare one */

int bpi_chunks_open(struct chunks *c, uint32_t frames, unsigned queues)
{
    *c = (struct chunks){.limit = frames / CHUNK_ENTRIES + QUEUE_EXTRA * queues, .free = CHUNK_NONE};
    c->chunk = reserve_array((size_t)c->limit * sizeof(*c->chunk), SIZE_MAX);
    return c->chunk ? 0 : -ENOMEM;
}

void bpi_chunks_close(struct chunks *c)
{
    if (c->chunk)
        munmap(c->chunk, (size_t)c->limit * sizeof(*c->chunk));
    c->chunk = NULL;
}

static uint32_t chunk_of_all(struct chunks *c)
{
    uint32_t i;

    slim_lock_take(&c->lock);
    i = c->free;
    if (i != CHUNK_NONE)
        c->free = c->chunk[i].newer;
    else if (c->fresh < c->limit)
        i = c->fresh++;
    slim_lock_give(&c->lock);
    return i;
}

/* An empty chunk, or CHUNK_NONE: there are more numbers than frames, or more queues than there were to be. */
static uint32_t chunk_take(struct queue *q, struct chunks *c)
{
    uint32_t i = q->spare;

    q->spare = CHUNK_NONE;
    if (i == CHUNK_NONE)
        i = chunk_of_all(c);
    if (i != CHUNK_NONE) {
        atomic_store_explicit(&c->chunk[i].begin, 0, memory_order_relaxed);
        c->chunk[i].end = 0;
        c->chunk[i].newer = CHUNK_NONE;
    }
    return i;
}

static void chunk_give(struct queue *q, struct chunks *c, uint32_t i)
{
    if (q->spare == CHUNK_NONE) {
        q->spare = i;
        return;
    }
    slim_lock_take(&c->lock);
    c->chunk[i].newer = c->free;
    c->free = i;
    slim_lock_give(&c->lock);
}

void bpi_queue_init(struct queue *q)
{
    q->head = q->spare = CHUNK_NONE;
    atomic_store_explicit(&q->tail, CHUNK_NONE, memory_order_relaxed);
}

static uint32_t tail_of(const struct queue *q)
{
    return atomic_load_explicit(&q->tail, memory_order_relaxed);
}

static void count_add(struct queue *q, uint32_t n)
{
    atomic_store_explicit(&q->count, queue_count(q) + n, memory_order_relaxed);
}

/* Room at the head for one number at least. Lock held. */
static struct chunk *open_head(struct queue *q, struct chunks *all)
{
    struct chunk *chunk = all->chunk;
    uint32_t i;

    if (q->head != CHUNK_NONE && chunk[q->head].end < CHUNK_ENTRIES)
        return &chunk[q->head];
    i = chunk_take(q, all);
    if (i == CHUNK_NONE)
        return NULL;
    if (q->head == CHUNK_NONE)
        atomic_store_explicit(&q->tail, i, memory_order_relaxed);
    else
        chunk[q->head].newer = i;
    q->head = i;
    return &chunk[i];
}

void bpi_queue_push(struct queue *q, struct chunks *all, const uint32_t number[], unsigned n)
{
    unsigned done = 0;

    slim_lock_take(&q->lock);
    while (done < n) {
        struct chunk *c = open_head(q, all);
        _Atomic uint32_t *to;
        unsigned run;

        if (!c)
            break;
        run = n - done < CHUNK_ENTRIES - c->end ? n - done : CHUNK_ENTRIES - c->end;
        to = &c->entry[c->end];
        for (const uint32_t *from = number + done, *end = from + run; from < end;)
            atomic_store_explicit(to++, *from++, memory_order_relaxed);
        c->end = (uint16_t)(c->end + run);
        done += run;
    }
    count_add(q, done);
    slim_lock_give(&q->lock);
}

/* The tail chunk is used up: the next one is the tail. Lock held. */
static void close_tail(struct queue *q, struct chunks *all)
{
    uint32_t i = tail_of(q);
    uint32_t newer = all->chunk[i].newer;

    atomic_store_explicit(&q->tail, newer, memory_order_relaxed);
    if (newer == CHUNK_NONE)
        q->head = CHUNK_NONE;
    chunk_give(q, all, i);
}

unsigned bpi_queue_pop(struct queue *q, struct chunks *all, uint32_t number[], unsigned most)
{
    unsigned n = 0;

    if (!queue_count(q))
        return 0;
    slim_lock_take(&q->lock);
    while (n < most && tail_of(q) != CHUNK_NONE) {
        struct chunk *c = &all->chunk[tail_of(q)];
        unsigned begin = atomic_load_explicit(&c->begin, memory_order_relaxed);
        unsigned left = c->end - begin;
        unsigned run = most - n < left ? most - n : left;

        memcpy(number + n, (const void *)&c->entry[begin], run * sizeof(*number)); /* only written with the lock */
        n += run;
        begin += run;
        atomic_store_explicit(&c->begin, (uint16_t)begin, memory_order_relaxed);
        if (begin == c->end)
            close_tail(q, all);
    }
    count_add(q, 0u - n);
    slim_lock_give(&q->lock);
    return n;
}

uint32_t bpi_queue_peek(const struct queue *q, const struct chunks *all)
{
    uint32_t i = tail_of(q);
    const struct chunk *c;
    unsigned begin;

    if (i == CHUNK_NONE || !queue_count(q))
        return UINT32_MAX;
    c = &all->chunk[i];
    begin = atomic_load_explicit(&c->begin, memory_order_relaxed);
    return begin < CHUNK_ENTRIES ? atomic_load_explicit(&c->entry[begin], memory_order_relaxed) : UINT32_MAX;
}

bool bpi_queue_pop_this(struct queue *q, struct chunks *all, uint32_t number)
{
    bool same;

    slim_lock_take(&q->lock);
    same = tail_of(q) != CHUNK_NONE && bpi_queue_peek(q, all) == number;
    if (same) {
        struct chunk *c = &all->chunk[tail_of(q)];
        unsigned begin = atomic_load_explicit(&c->begin, memory_order_relaxed) + 1u;

        atomic_store_explicit(&c->begin, (uint16_t)begin, memory_order_relaxed);
        if (begin == c->end)
            close_tail(q, all);
        count_add(q, 0u - 1);
    }
    slim_lock_give(&q->lock);
    return same;
}

bool bpi_queue_check(struct queue *q, const struct chunks *all)
{
    uint32_t n = 0;
    bool ok = true;

    slim_lock_take(&q->lock);
    for (uint32_t i = tail_of(q); i != CHUNK_NONE && ok; i = all->chunk[i].newer) {
        const struct chunk *c = &all->chunk[i];
        unsigned begin = atomic_load_explicit(&c->begin, memory_order_relaxed);

        ok = begin < c->end && c->end <= CHUNK_ENTRIES && (i == q->head) == (c->newer == CHUNK_NONE);
        n += c->end - begin;
    }
    ok = ok && n == queue_count(q) && (tail_of(q) == CHUNK_NONE) == (q->head == CHUNK_NONE);
    slim_lock_give(&q->lock);
    return ok;
}
