/* SPDX-License-Identifier: MIT */
/*
 * Draining: a slab leaves, without anybody noticing but the one who empties it.
 *
 *   begin   the slab's free frames are taken out of the buddy; what comes back from now on is kept aside
 *   left    frames that are still out: the caller evicts or moves what is in them
 *   end     none is out and no ring has it: memory to the system, the slab is reserved again
 *   cancel  what is aside goes back to the buddy, as if nothing had been
 *
 * What is aside is a bit per frame: only what a slab's frames were free is remembered, not in which blocks, and the
 * buddy merges them again when they come back. All of it under the lock of the slab's node, but the giving back of the
 * memory: then the slab is LEAVING, and nobody but the one who made it so touches it.
 */
#include "numa/node.h"

#include <assert.h>

static uint32_t first_of(const struct frames *frames, unsigned index)
{
    return index << frames->slab_shift;
}

/* The words of its bits. A slab has at least 512 frames, so they are its own. */
static uint64_t *aside_of(const struct frames *frames, unsigned index, uint32_t *words)
{
    *words = (uint32_t)((frames->slabs.slab[index].bytes / FRAME_BYTES + 63) / 64);
    return frames->aside + first_of(frames, index) / 64;
}

void bpi_drain_keep(struct frames *frames, struct node *node, uint32_t first, uint32_t count)
{
    for (uint32_t f = first; f < first + count; f++) {
        assert(!(frames->aside[f >> 6] >> (f & 63) & 1)); /* given back twice */
        frames->aside[f >> 6] |= 1ull << (f & 63);
    }
    frames->slabs.slab[slab_of(frames, first)].aside += count;
    node->aside += count;
}

/*
 * Lock the node that a slab lies on. NULL: no such slab, or it is on none; nothing is locked. It stays there while the
 * lock is held unless it is leaving.
 */
static struct node *node_lock(struct frames *frames, unsigned index)
{
    struct slab *slab;

    if (index >= frames->slabs.slab_count)
        return NULL;
    slab = &frames->slabs.slab[index];
    if (slab_state(slab) == SLAB_RESERVED)
        return NULL;
    struct node *node = &frames->node[slab_node(slab)];
    pthread_mutex_lock(&node->lock);
    if (slab_state(slab) != SLAB_RESERVED && node == &frames->node[slab_node(slab)])
        return node;
    pthread_mutex_unlock(&node->lock); /* somebody gave it back meanwhile */
    return NULL;
}

static void count_draining(struct frames *frames, struct node *node, int change)
{
    node->draining += (unsigned)change;
    atomic_fetch_add_explicit(&frames->draining, (unsigned)change, memory_order_relaxed);
}

int bpi_frames_drain_begin(struct frames *frames, unsigned index)
{
    struct node *node = node_lock(frames, index);
    struct timespec deadline = {0};
    int err = 0;

    if (!node)
        return -EINVAL;
    struct slab *slab = &frames->slabs.slab[index];
    while (node->growing) /* it may be this one */
        if (!bpi_node_wait_grown(node, &deadline)) {
            err = -EBUSY;
            goto out;
        }
    if (!slab_drained(slab)) {
        err = slab_state(slab) == SLAB_RESERVED ? -EINVAL : -EALREADY;
        goto out;
    }
    if (node->slab == (int)index)
        node->slab = -1;
    count_draining(frames, node, 1);
    uint32_t words;
    uint64_t *bits = aside_of(frames, index, &words);
    slab->aside =
        bpi_buddy_take_range(&node->buddy, first_of(frames, index), (uint32_t)(slab->bytes / FRAME_BYTES), bits);
    node->aside += slab->aside;
out:
    pthread_mutex_unlock(&node->lock);
    return err;
}

long bpi_frames_drain_left(struct frames *frames, unsigned index)
{
    struct node *node = node_lock(frames, index);
    long left = -EINVAL;

    if (!node)
        return left;
    struct slab *slab = &frames->slabs.slab[index];
    if (slab_state(slab) == SLAB_DRAINING)
        left = (long)(slab_frames(slab) - slab->aside);
    pthread_mutex_unlock(&node->lock);
    return left;
}

/* The books of a node when so many frames go, or come back after all. Its lock is held; bits are all ones, or become so. */
static void book(struct frames *frames, struct node *node, unsigned index, bool goes)
{
    struct slab *slab = &frames->slabs.slab[index];
    uint32_t count = slab_frames(slab), words;
    uint64_t *bits = aside_of(frames, index, &words);

    if (goes) {
        for (uint32_t i = 0; i < words; i++)
            bits[i] = 0;
        slab->aside = 0;
        node->aside -= count;
        node->populated -= count;
        atomic_fetch_sub_explicit(&node->slab_bytes, slab->bytes, memory_order_relaxed);
    } else {
        bpi_drain_keep(frames, node, first_of(frames, index), count);
        node->populated += count;
        atomic_fetch_add_explicit(&node->slab_bytes, slab->bytes, memory_order_relaxed);
    }
    count_draining(frames, node, goes ? -1 : 1);
}

/* A slab is reserved again: whoever had to do without more memory may ask for it. */
static void wake_nodes(struct frames *frames)
{
    for (unsigned n = 0; n < frames->node_count; n++) {
        struct node *node = &frames->node[n];
        pthread_mutex_lock(&node->lock);
        atomic_store_explicit(&node->full, false, memory_order_relaxed);
        node->refused = 0;
        pthread_mutex_unlock(&node->lock);
    }
    atomic_store_explicit(&frames->refused, 0, memory_order_relaxed);
}

int bpi_frames_drain_end(struct frames *frames, unsigned index)
{
    struct node *node = node_lock(frames, index);
    int err = -EINVAL;

    if (!node)
        return err;
    struct slab *slab = &frames->slabs.slab[index];
    uint32_t count = slab_frames(slab);
    if (slab_state(slab) == SLAB_DRAINING)
        err = slab->aside < count ? -EBUSY : bpi_slab_leave(&frames->slabs, index);
    if (!err)
        book(frames, node, index, true);
    pthread_mutex_unlock(&node->lock);
    if (err)
        return err;

    err = bpi_slab_release(&frames->slabs, index);
    if (err) {
        pthread_mutex_lock(&node->lock);
        book(frames, node, index, false);
        slab_stays(slab);
        pthread_mutex_unlock(&node->lock);
        return err;
    }
    bpi_frames_unclaim(frames, count);
    wake_nodes(frames);
    return 0;
}

int bpi_frames_drain_cancel(struct frames *frames, unsigned index)
{
    struct node *node = node_lock(frames, index);
    int err = -EINVAL;

    if (!node)
        return err;
    struct slab *slab = &frames->slabs.slab[index];
    if (slab_state(slab) != SLAB_DRAINING)
        goto out;
    uint32_t words, first = first_of(frames, index);
    uint64_t *bits = aside_of(frames, index, &words);
    for (uint32_t i = 0; i < words; i++) {
        for (uint64_t word = bits[i]; word;) { /* run by run */
            unsigned from = (unsigned)__builtin_ctzll(word);
            uint64_t after = ~(word >> from);
            unsigned run = after ? (unsigned)__builtin_ctzll(after) : 64;
            bpi_buddy_add(&node->buddy, first + i * 64 + from, run);
            word &= from + run < 64 ? ~0ull << (from + run) : 0;
        }
        bits[i] = 0;
    }
    node->aside -= slab->aside;
    slab->aside = 0;
    slab_undrained(slab);
    count_draining(frames, node, -1);
    atomic_store_explicit(&node->full, false, memory_order_relaxed); /* it may not be whole yet */
    err = 0;
out:
    pthread_mutex_unlock(&node->lock);
    return err;
}

bool bpi_frames_draining(const struct frames *frames, uint32_t frame)
{
    return atomic_load_explicit(&frames->draining, memory_order_relaxed) &&
           slab_state(&frames->slabs.slab[slab_of(frames, frame)]) == SLAB_DRAINING;
}

void bpi_frames_slab_look(struct frames *frames, unsigned index, struct frames_slab *look)
{
    struct node *node = node_lock(frames, index);
    const struct slab *slab = &frames->slabs.slab[index];

    *look = (struct frames_slab){.frames = (uint32_t)(slab->bytes / FRAME_BYTES)};
    if (!node)
        return;
    look->state = slab_state(slab);
    look->node = slab_node(slab);
    look->rings = slab_rings(slab);
    look->populated = slab_frames(slab);
    look->free = slab->aside + bpi_buddy_count(&node->buddy, first_of(frames, index), look->frames);
    pthread_mutex_unlock(&node->lock);
    pthread_mutex_lock(&frames->slabs.lock);
    look->backing = slab->backing;
    pthread_mutex_unlock(&frames->slabs.lock);
}

bool bpi_drain_sound(const struct frames *frames, unsigned node_index)
{
    const struct node *node = &frames->node[node_index];
    uint64_t aside = 0;
    unsigned draining = 0;

    for (unsigned i = 0; node->draining && i < frames->slabs.slab_count; i++) {
        const struct slab *slab = &frames->slabs.slab[i];
        if (slab_state(slab) != SLAB_DRAINING || slab_node(slab) != node_index)
            continue;
        uint32_t words, count = 0;
        const uint64_t *bits = aside_of(frames, i, &words);
        for (uint32_t k = 0; k < words; k++)
            count += (uint32_t)__builtin_popcountll(bits[k]);
        if (count != slab->aside || count > slab_frames(slab))
            return false;
        aside += count;
        draining++;
    }
    return aside == node->aside && draining == node->draining;
}
