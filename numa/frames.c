/* SPDX-License-Identifier: MIT */
/*
 * Frames: a buddy of frames per node, and how it grows.
 *
 * Every node has bitmaps for the whole range of frames; they are zero pages until a slab is placed there, so this
 * costs address space only.
 *
 * Growing: one thread per node populates a piece (2 MiB), without the node's lock; `growing` marks it, `grown` wakes
 * those who wait for it. The slabs' own lock is taken only by the one that grows; the node's lock is never held then.
 */
#include "numa/node.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REFUSALS_QUIET 256u /* calls after a refusal that do not ask the system again */

_Static_assert(FRAMES_ORDER_MAX == BUDDY_ORDER_MAX, "blocks are the buddy's");
_Static_assert(SLAB_PIECE == FRAME_BYTES << FRAMES_ORDER_MAX, "a piece is a block of the highest order");

/* What a caller wants: n blocks of an order; more than one only of order 0. */
struct want {
    unsigned order;
    unsigned n;
    uint32_t *first;
};

/* ---- growing ---- */

static void high_raise(struct frames *frames, uint32_t to)
{
    uint32_t high = atomic_load_explicit(&frames->high, memory_order_relaxed);

    while (high < to &&
           !atomic_compare_exchange_weak_explicit(&frames->high, &high, to, memory_order_relaxed, memory_order_relaxed))
        ;
}

void bpi_frames_unclaim(struct frames *frames, uint64_t count)
{
    atomic_fetch_sub_explicit(&frames->claimed, count, memory_order_relaxed);
}

/*
 * Up to n frames may get memory: how many. seq_cst: who lowers the limit and then finds no more claimed than that can
 * rely on it, since whoever claimed by the old limit looks at it again.
 */
static uint32_t claim(struct frames *frames, uint32_t n)
{
    uint64_t limit = atomic_load_explicit(&frames->limit, memory_order_relaxed);
    uint64_t claimed = atomic_load_explicit(&frames->claimed, memory_order_relaxed);
    uint64_t some;

    do {
        some = claimed < limit ? limit - claimed : 0;
        some = some < n ? some : n;
    } while (some && !atomic_compare_exchange_weak_explicit(&frames->claimed, &claimed, claimed + some,
                                                            memory_order_seq_cst, memory_order_relaxed));
    if (some && claimed + some > atomic_load_explicit(&frames->limit, memory_order_seq_cst)) {
        bpi_frames_unclaim(frames, some);
        some = 0;
    }
    return (uint32_t)some;
}

/* A slab of the node that was begun and left, by a drain that was given up; -1: none. */
static int slab_begun(const struct frames *frames, unsigned node_index)
{
    for (unsigned i = 0; i < frames->slabs.slab_count; i++) {
        const struct slab *slab = &frames->slabs.slab[i];
        if (slab_state(slab) == SLAB_PLACED && slab_node(slab) == node_index)
            return (int)i;
    }
    return -1;
}

/*
 * Populate the next piece for a node, without its lock: of the slab begun, else of a new one; at most `claimed` frames.
 * Frames and the first of them; 0: there is no more to be had on this node; else a negative errno.
 */
static long piece_populate(struct frames *frames, unsigned node_index, uint32_t claimed, uint32_t *first)
{
    struct node *node = &frames->node[node_index];
    struct slabs *slabs = &frames->slabs;
    uint64_t node_bytes = frames->topology->node_bytes[node_index];
    size_t most = (size_t)claimed * FRAME_BYTES;
    size_t from = 0;
    long bytes = 0;

    if (node->slab < 0 || slab_state(&slabs->slab[node->slab]) != SLAB_PLACED)
        node->slab = slab_begun(frames, node_index);
    if (node->slab >= 0) {
        from = atomic_load_explicit(&slabs->slab[node->slab].populated, memory_order_relaxed);
        bytes = bpi_slab_populate(slabs, (unsigned)node->slab, most);
    } else {
        /* Slabs of more than the node's memory would be on other nodes in truth: let those have them. */
        if (frames->node_count > 1 && node_bytes &&
            atomic_load_explicit(&node->slab_bytes, memory_order_relaxed) >= node_bytes)
            return 0;
        int slab = bpi_slab_place(slabs, frames->topology, node_index, most);
        if (slab < 0)
            return slab == -ENOSPC ? 0 : slab;
        node->slab = slab;
        atomic_fetch_add_explicit(&node->slab_bytes, slabs->slab[slab].bytes, memory_order_relaxed);
        bytes = (long)atomic_load_explicit(&slabs->slab[slab].populated, memory_order_relaxed);
        if (!bytes) /* else the trial of hugetlb has done it */
            bytes = bpi_slab_populate(slabs, (unsigned)slab, most);
    }
    if (bytes <= 0)
        return bytes;
    *first = ((uint32_t)node->slab << frames->slab_shift) + (uint32_t)(from / FRAME_BYTES);
    return bytes / FRAME_BYTES;
}

/* The node grows by a piece. Called and left with its lock held, which is dropped meanwhile. 1, or 0 or errno as above.
 */
static int grow(struct frames *frames, unsigned node_index)
{
    struct node *node = &frames->node[node_index];
    uint32_t first = 0;

    if (atomic_load_explicit(&node->full, memory_order_relaxed))
        return 0;
    if (node->refused && ++node->refusals % REFUSALS_QUIET)
        return node->refused;
    bool begun = node->slab >= 0 && slab_state(&frames->slabs.slab[node->slab]) == SLAB_PLACED;
    uint32_t claimed = claim(frames, begun ? PIECE_FRAMES : 1u << frames->slab_shift);
    if (!claimed)
        return 0;

    node->growing = true;
    pthread_mutex_unlock(&node->lock);
    long count = piece_populate(frames, node_index, claimed, &first);
    long populated = count > 0 ? count : 0;
    if (count > 0) {
        high_raise(frames, first + (uint32_t)count);
        if (frames->node_count > 1)
            count = bpi_place_settle(frames, node_index, first, count);
    }
    bpi_frames_unclaim(frames, claimed - (uint32_t)populated);
    pthread_mutex_lock(&node->lock);
    node->growing = false;
    pthread_cond_broadcast(&node->grown);

    node->refused = count < 0 ? (int)count : 0;
    atomic_store_explicit(&frames->refused, node->refused, memory_order_relaxed);
    if (count == 0 && claimed >= PIECE_FRAMES) /* with less, a hugetlb slab has nothing to give */
        atomic_store_explicit(&node->full, true, memory_order_relaxed);
    if (count <= 0)
        return (int)count;
    node->populated += (uint64_t)count;
    bpi_buddy_add(&node->buddy, first, (uint32_t)count);
    return 1;
}

/* There will be no more memory for a node, as things are. A peek. */
static bool is_grown(const struct frames *frames, const struct node *node)
{
    return atomic_load_explicit(&node->full, memory_order_relaxed) ||
           atomic_load_explicit(&frames->claimed, memory_order_relaxed) >=
               atomic_load_explicit(&frames->limit, memory_order_relaxed);
}

bool bpi_node_wait_grown(struct node *node, struct timespec *deadline)
{
    if (!deadline->tv_sec) {
        clock_gettime(CLOCK_MONOTONIC, deadline);
        deadline->tv_sec += WAIT_SECONDS;
    }
    return pthread_cond_timedwait(&node->grown, &node->lock, deadline) == 0;
}

/* ---- taking ---- */

static unsigned take(struct node *node, const struct want *want)
{
    if (want->n > 1)
        return bpi_buddy_take_many(&node->buddy, want->first, want->n);
    *want->first = bpi_buddy_take(&node->buddy, want->order);
    return *want->first != BUDDY_NONE;
}

/*
 * From one node: what is free, else after growing. Ends, since every round but waiting adds memory for good and waiting
 * has a deadline. How many, or a negative errno.
 */
static int node_alloc(struct frames *frames, unsigned node_index, const struct want *want)
{
    struct node *node = &frames->node[node_index];
    struct timespec deadline = {0};
    int result;

    /* Nothing and never more: the usual state of a pool at its limit, not worth the lock. */
    if (is_grown(frames, node) && !bpi_buddy_has(&node->buddy, want->order))
        return -ENOMEM;

    pthread_mutex_lock(&node->lock);
    for (;;) {
        result = (int)take(node, want);
        if (result)
            break;
        if (node->growing) {
            if (bpi_node_wait_grown(node, &deadline))
                continue;
            result = -ENOMEM;
            break;
        }
        result = grow(frames, node_index);
        if (result <= 0) {
            result = result ? result : -ENOMEM;
            break;
        }
    }
    pthread_mutex_unlock(&node->lock);
    return result;
}

static int frames_alloc(struct frames *frames, unsigned node, const struct want *want)
{
    if (node >= frames->node_count)
        return -EINVAL;
    const uint8_t *order = bpi_place_order(frames, node);
    int result = node_alloc(frames, order[0], want);
    for (unsigned i = 1; result < 0 && i < frames->usable; i++) {
        int other = node_alloc(frames, order[i], want);
        if (other > 0) {
            atomic_fetch_add_explicit(&frames->spilled, (uint64_t)other << want->order, memory_order_relaxed);
            result = other;
        }
    }
    /* With memory to evict from it is no matter why there is no more. */
    if (result < 0 && atomic_load_explicit(&frames->high, memory_order_relaxed))
        result = -ENOMEM;
    return result;
}

int bpi_frames_alloc(struct frames *frames, unsigned node, unsigned order, uint32_t *first)
{
    uint32_t block = 0;
    const struct want want = {.order = order, .n = 1, .first = &block};

    if (order > FRAMES_ORDER_MAX)
        return -EINVAL;
    int result = frames_alloc(frames, node, &want);
    if (result < 0)
        return result;
    *first = block;
    return 0;
}

/* Usually sorted already, else a few ascending runs: Shell's sort. */
static void sort(uint32_t frame[], unsigned n)
{
    unsigned sorted = 1;

    while (sorted < n && frame[sorted] > frame[sorted - 1])
        sorted++;
    if (sorted >= n)
        return;
    for (unsigned gap = n / 2; gap > 0; gap /= 2)
        for (unsigned i = gap; i < n; i++) {
            uint32_t x = frame[i];
            unsigned j = i;
            for (; j >= gap && frame[j - gap] > x; j -= gap)
                frame[j] = frame[j - gap];
            frame[j] = x;
        }
}

int bpi_frames_alloc_many(struct frames *frames, unsigned node, uint32_t first[], unsigned n)
{
    const struct want want = {.order = 0, .n = n < frames->total ? n : frames->total, .first = first};

    if (!n)
        return 0;
    int got = frames_alloc(frames, node, &want);
    if (got > 1)
        sort(first, (unsigned)got);
    return got;
}

/* ---- giving back ---- */

static struct node *node_of(const struct frames *frames, uint32_t frame)
{
    return &frames->node[slab_node(&frames->slabs.slab[slab_of(frames, frame)])];
}

/* Some slab of the node drains: is it this frame's? The node's lock is held. */
static bool is_draining(const struct frames *frames, uint32_t frame)
{
    return slab_state(&frames->slabs.slab[slab_of(frames, frame)]) == SLAB_DRAINING;
}

void bpi_frames_free(struct frames *frames, uint32_t first, unsigned order)
{
    struct node *node = node_of(frames, first);

    assert(first + (1u << order) <= bpi_frames_high(frames));
    pthread_mutex_lock(&node->lock);
    if (node->draining && is_draining(frames, first))
        bpi_drain_keep(frames, node, first, 1u << order);
    else
        bpi_buddy_give(&node->buddy, first, order);
    pthread_mutex_unlock(&node->lock);
}

uint32_t bpi_frames_take_within(struct frames *frames, uint32_t first, unsigned order, uint64_t taken[])
{
    struct node *node = node_of(frames, first);

    memset(taken, 0, ((1u << order) + 63) / 64 * sizeof(*taken));
    pthread_mutex_lock(&node->lock);
    uint32_t got = bpi_buddy_take_range(&node->buddy, first, 1u << order, taken);
    pthread_mutex_unlock(&node->lock);
    return got;
}

/* How many of the first of n frames are of the same node. */
static unsigned of_one_node(const struct frames *frames, const uint32_t frame[], unsigned n)
{
    const struct node *node = node_of(frames, frame[0]);
    unsigned count = 1;

    if (frames->node_count == 1)
        return n;
    while (count < n && node_of(frames, frame[count]) == node)
        count++;
    return count;
}

/* As the buddy's give_many, while slabs of the node drain. Its lock is held. */
static void give_some(struct frames *frames, struct node *node, const uint32_t frame[], unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (is_draining(frames, frame[i]))
            bpi_drain_keep(frames, node, frame[i], 1);
        else
            bpi_buddy_give(&node->buddy, frame[i], 0);
    }
}

void bpi_frames_free_many(struct frames *frames, const uint32_t frame[], unsigned n)
{
    for (unsigned i = 0, count; i < n; i += count) {
        struct node *node = node_of(frames, frame[i]);

        count = of_one_node(frames, frame + i, n - i);
        pthread_mutex_lock(&node->lock);
        if (node->draining)
            give_some(frames, node, frame + i, count);
        else
            bpi_buddy_give_many(&node->buddy, frame + i, count);
        pthread_mutex_unlock(&node->lock);
    }
}

/* ---- opening and closing ---- */

static int node_open(struct node *node)
{
    pthread_condattr_t attr;
    int err = -pthread_condattr_init(&attr);

    if (err)
        return err;
    err = -pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!err)
        err = -pthread_cond_init(&node->grown, &attr);
    pthread_condattr_destroy(&attr);
    if (err)
        return err;
    err = -pthread_mutex_init(&node->lock, NULL);
    if (err)
        pthread_cond_destroy(&node->grown);
    node->slab = -1;
    return err;
}

static int nodes_open(struct frames *frames, unsigned node_count)
{
    int err = 0;

    frames->node = aligned_alloc(_Alignof(struct node), node_count * sizeof(struct node));
    if (!frames->node)
        return -ENOMEM;
    memset(frames->node, 0, node_count * sizeof(struct node));
    while (frames->node_count < node_count && !(err = node_open(&frames->node[frames->node_count])))
        frames->node_count++;
    if (err)
        return err;

    size_t bytes = bpi_buddy_layout(&frames->node[0].buddy, frames->total, NULL);
    bytes = (bytes + FRAME_BYTES - 1) / FRAME_BYTES * FRAME_BYTES; /* nodes share no page */
    size_t aside_bytes = ((size_t)frames->total + 63) / 64 * sizeof(uint64_t);
    void *bits = mmap(NULL, bytes * node_count + aside_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bits == MAP_FAILED)
        return -ENOMEM;
    frames->bits = bits;
    frames->bits_bytes = bytes * node_count + aside_bytes;
    frames->aside = (uint64_t *)((char *)bits + bytes * node_count);
    madvise(bits, frames->bits_bytes, MADV_NOHUGEPAGE); /* touched here and there: stay small */
    for (unsigned n = 0; n < node_count; n++)
        bpi_buddy_layout(&frames->node[n].buddy, frames->total, (uint64_t *)((char *)bits + n * bytes));
    return 0;
}

int bpi_frames_open(const struct topology *topology, uint64_t bytes, enum slab_huge huge, struct frames **out)
{
    struct frames *frames = calloc(1, sizeof(*frames));

    if (!frames)
        return -ENOMEM;
    int err = bpi_slabs_open(&frames->slabs, bytes, huge);
    if (err)
        goto out;
    frames->topology = topology;
    frames->total = (uint32_t)(bytes / FRAME_BYTES);
    atomic_store_explicit(&frames->limit, frames->total, memory_order_relaxed);
    frames->slab_shift = (unsigned)__builtin_ctzll(frames->slabs.slab_bytes / FRAME_BYTES);
    err = nodes_open(frames, topology->node_count);
    if (!err)
        bpi_frames_place(frames, FRAMES_LOCAL, NULL);
out:
    if (err)
        bpi_frames_close(frames);
    else
        *out = frames;
    return err;
}

void bpi_frames_close(struct frames *frames)
{
    if (!frames)
        return;
    for (unsigned n = 0; n < frames->node_count; n++) {
        pthread_cond_destroy(&frames->node[n].grown);
        pthread_mutex_destroy(&frames->node[n].lock);
    }
    if (frames->bits)
        munmap(frames->bits, frames->bits_bytes);
    free(frames->node);
    bpi_slabs_close(&frames->slabs);
    free(frames);
}

/* ---- questions ---- */

char *bpi_frames_base(const struct frames *frames)
{
    return frames->slabs.base;
}

uint32_t bpi_frames_total(const struct frames *frames)
{
    return frames->total;
}

uint32_t bpi_frames_high(const struct frames *frames)
{
    return atomic_load_explicit(&frames->high, memory_order_relaxed);
}

void bpi_frames_limit(struct frames *frames, uint64_t bytes)
{
    uint64_t limit = bytes / FRAME_BYTES;

    /* seq_cst: who lowers it and then looks at what is claimed sees what was claimed by the old one (claim) */
    atomic_store_explicit(&frames->limit, limit < frames->total ? limit : frames->total, memory_order_seq_cst);
}

unsigned bpi_frames_slab(const struct frames *frames, uint32_t frame)
{
    return slab_of(frames, frame);
}

unsigned bpi_frames_node(const struct frames *frames, uint32_t frame)
{
    return slab_node(&frames->slabs.slab[slab_of(frames, frame)]);
}

bool bpi_frames_slab_ready(const struct frames *frames, unsigned slab)
{
    return slab_state(&frames->slabs.slab[slab]) == SLAB_POPULATED;
}

int bpi_frames_slab_register(struct frames *frames, unsigned slab)
{
    return slab_registered(&frames->slabs.slab[slab]);
}

int bpi_frames_slab_unregister(struct frames *frames, unsigned slab)
{
    return slab_unregistered(&frames->slabs.slab[slab]);
}

unsigned bpi_frames_slab_count(const struct frames *frames)
{
    return frames->slabs.slab_count;
}

uint32_t bpi_frames_slab_frames(const struct frames *frames)
{
    return 1u << frames->slab_shift;
}

uint32_t bpi_frames_slab_populated(const struct frames *frames, unsigned slab)
{
    const struct slab *s = &frames->slabs.slab[slab];

    if (slab_state(s) == SLAB_RESERVED)
        return 0;
    return (uint32_t)(atomic_load_explicit(&s->populated, memory_order_relaxed) / FRAME_BYTES);
}

void bpi_frames_slab_range(const struct frames *frames, unsigned slab, void **at, size_t *bytes)
{
    *at = frames->slabs.base + slab * frames->slabs.slab_bytes;
    *bytes = frames->slabs.slab[slab].bytes;
}

uint64_t bpi_frames_claimed(const struct frames *frames)
{
    return atomic_load_explicit(&frames->claimed, memory_order_seq_cst);
}

void bpi_frames_stats(const struct frames *const_frames, struct frames_stats *stats)
{
    struct frames *frames = (struct frames *)(uintptr_t)const_frames; /* the slabs' lock is part of it */
    int refused = atomic_load_explicit(&frames->refused, memory_order_relaxed);

    memset(stats, 0, sizeof(*stats));
    stats->frames_total = frames->total;
    stats->frames_limit = atomic_load_explicit(&frames->limit, memory_order_relaxed);
    stats->slabs_draining = atomic_load_explicit(&frames->draining, memory_order_relaxed);
    stats->spilled = atomic_load_explicit(&frames->spilled, memory_order_relaxed);
    stats->strayed = atomic_load_explicit(&frames->strayed, memory_order_relaxed);
    for (unsigned n = 0; n < frames->node_count; n++) {
        struct node *node = &frames->node[n];
        pthread_mutex_lock(&node->lock);
        stats->frames_populated += node->populated;
        stats->frames_free += node->buddy.free + node->aside;
        pthread_mutex_unlock(&node->lock);
    }
    if (refused) {
        const char *name = strerrorname_np(-refused);
        snprintf(stats->limit_reason, sizeof(stats->limit_reason), "the system refused memory beyond %llu KiB: %s",
                 (unsigned long long)stats->frames_populated * FRAME_BYTES / 1024, name ? name : "unknown error");
    }
    pthread_mutex_lock(&frames->slabs.lock);
    for (unsigned i = 0; i < 3; i++)
        stats->slabs[i] = frames->slabs.backing_count[i];
    memcpy(stats->huge_reason, frames->slabs.huge_reason, sizeof(stats->huge_reason));
    memcpy(stats->reason, frames->slabs.reason, sizeof(stats->reason));
    memcpy(stats->bind_reason, frames->slabs.bind_reason, sizeof(stats->bind_reason));
    pthread_mutex_unlock(&frames->slabs.lock);
}

/* ---- invariants ---- */

struct place {
    const struct frames *frames;
    unsigned node;
};

/* The block lies in populated memory of the node. */
static bool is_there(const void *ctx, uint32_t first, uint32_t count)
{
    const struct place *place = ctx;
    const struct frames *frames = place->frames;

    if (count > frames->total || first > frames->total - count)
        return false;
    const struct slab *slab = &frames->slabs.slab[slab_of(frames, first)];
    enum slab_state state = slab_state(slab);
    uint64_t end = (first & ((1u << frames->slab_shift) - 1)) + count;
    return (state == SLAB_PLACED || state == SLAB_POPULATED) && slab_node(slab) == place->node &&
           end <= slab_frames(slab);
}

static bool node_sound(const struct frames *frames, unsigned node_index)
{
    const struct node *node = &frames->node[node_index];
    const struct place place = {frames, node_index};
    uint64_t populated = 0;

    if (!bpi_buddy_sound(&node->buddy, bpi_frames_high(frames), is_there, &place) ||
        !bpi_drain_sound(frames, node_index))
        return false;
    for (unsigned i = 0; i < frames->slabs.slab_count; i++) {
        const struct slab *slab = &frames->slabs.slab[i];
        enum slab_state state = slab_state(slab);
        if (state != SLAB_RESERVED && state != SLAB_LEAVING && slab_node(slab) == node_index)
            populated += slab_frames(slab);
    }
    return node->buddy.free + node->aside <= node->populated &&
           (node->growing ? populated >= node->populated : populated == node->populated);
}

bool bpi_frames_check(const struct frames *frames)
{
    bool sound = true;

    for (unsigned n = 0; n < frames->node_count && sound; n++) {
        pthread_mutex_lock(&frames->node[n].lock);
        sound = node_sound(frames, n);
        pthread_mutex_unlock(&frames->node[n].lock);
    }
    return sound;
}
