/* SPDX-License-Identifier: MIT */
/*
 * Placement: which node's memory a session gets, and what to do if the system has other ideas.
 *
 * Memory is bound with a preference, never strictly: a strict binding that the node cannot serve is answered by the
 * kernel with a kill. So the kernel may give memory of another node, and tells nobody. Where a machine has several nodes,
 * the first page of each piece is therefore asked where it lies:
 * - a slab that has just begun elsewhere becomes that node's: its frames are where the books say;
 * - a piece in the middle of a slab stays, and is counted (strayed);
 * - under FRAMES_BIND neither is wanted, and the memory goes back at once (slab.c).
 * Where asking is refused, what was asked for counts as what was got.
 */
#include "numa/node.h"

/* The named nodes by distance from this one, and behind them the others. */
static void fill_order(struct frames *frames, unsigned from, const bool nodes[])
{
    const uint8_t *near = frames->topology->spill[from];
    unsigned count = 0;

    for (unsigned named = 0; named < 2; named++)
        for (unsigned i = 0; i < frames->node_count && count < frames->usable; i++)
            if ((nodes && !nodes[near[i]]) == (named == 1))
                frames->order[from][count++] = near[i];
}

void bpi_frames_place(struct frames *frames, enum frames_place place, const bool nodes[])
{
    frames->place = place;
    frames->slabs.bound = place == FRAMES_BIND;
    frames->turns = 0;
    for (unsigned n = 0; n < frames->node_count; n++)
        if (!nodes || nodes[n])
            frames->turn_node[frames->turns++] = (uint8_t)n;
    frames->usable = place == FRAMES_BIND ? frames->turns : frames->node_count;
    for (unsigned n = 0; n < frames->node_count; n++)
        fill_order(frames, n, nodes);
}

const uint8_t *bpi_place_order(struct frames *frames, unsigned node)
{
    if (frames->place == FRAMES_INTERLEAVE) {
        unsigned turn = atomic_fetch_add_explicit(&frames->turn, 1, memory_order_relaxed);
        node = frames->turn_node[turn % frames->turns];
    }
    return frames->order[node];
}

/* The slab, with what it has, is this node's. */
static void rehome(struct frames *frames, unsigned index, unsigned to, uint32_t first, long count)
{
    struct node *home = &frames->node[to];

    bpi_slab_rehome(&frames->slabs, index, to);
    pthread_mutex_lock(&home->lock);
    home->slab_bytes += frames->slabs.slab[index].bytes;
    home->populated += (uint64_t)count;
    bpi_buddy_add(&home->buddy, first, (uint32_t)count);
    atomic_store_explicit(&home->full, false, memory_order_relaxed);
    pthread_mutex_unlock(&home->lock);
}

long bpi_place_settle(struct frames *frames, unsigned node_index, uint32_t first, long count)
{
    struct node *node = &frames->node[node_index];
    unsigned index = slab_of(frames, first);
    int at = frames->slabs.slab[index].found;

    if (at < 0 || at == (int)node_index)
        return count;
    if (first != index << frames->slab_shift) {
        atomic_fetch_add_explicit(&frames->strayed, (uint64_t)count, memory_order_relaxed);
        return count;
    }
    node->slab = -1;
    atomic_fetch_sub_explicit(&node->slab_bytes, frames->slabs.slab[index].bytes, memory_order_relaxed);
    rehome(frames, index, (unsigned)at, first, count);
    return -ENOMEM;
}
