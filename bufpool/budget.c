/* SPDX-License-Identifier: MIT */
/*
 * The budget: how many frames so many bytes allow beside everything else that they are for, and how many nodes of the
 * index. Frames and nodes share what is left after the rest.
 *
 *   beside     small pools, the list of damaged pages; rings and their requests, one file's array of leaves, the nodes
 *              that sessions keep in stock: all that there can be of these or, in small pools, a part of it. Not
 *              charged are sessions themselves and, of more than 32, their stock, 10 KiB each
 *   frames     the page itself, its descriptor, its place in a queue
 *   nodes      what frames leave: to begin with 92 bytes for each, 12 of dense pages (a 64th of a node) and 80 of
 *              shadows. A pool full of pages that are alone in their leaves needs a node each, and if they are
 *              very far apart, two or three
 *
 * The number of nodes is a hard limit. Who meets it trades: some frames less, and nodes instead. That is free as long
 * as the frames have no memory yet, else a slab leaves (resize.c). It is not traded back: nodes, once made, keep their
 * memory, as descriptors do.
 */
#include "bufpool/pool.h"

#define NODE_BYTES            (sizeof(index_entry[INDEX_SLOTS]) + sizeof(struct node_head))
#define INDEX_BYTES_PER_FRAME 92u
#define QUEUE_BYTES_PER_FRAME 5u
/* what a frame that was there once costs for ever: views and hints of long ago must not find a version that begins anew */
#define KEPT_BYTES \
    (sizeof(struct frame) + sizeof(struct frame_cold) + sizeof(struct frame_dirty) + QUEUE_BYTES_PER_FRAME)
#define NODES_STOCK  1024u       /* in sessions' magazines, and upper levels */
#define RING_BYTES   (48u << 10) /* of the kernel's, for CHANNEL_DEPTH requests */
#define BESIDE_SHARE 32u         /* what is charged for rings, stocks and leaves is no more than this part */
#define TRADE_SHARE  64u         /* frames traded at once, as a part of what there are, */
#define TRADE_LEAST  4u          /* and the least */
#define NODES_PER_FRAME \
    4u /* more frames are not given for: pages far apart in a file of terabytes have paths of their own */
#define TRADE_WAIT_NS  (2 * NS_PER_MS)    /* for somebody else's */
#define TRADE_PAUSE_NS (1000 * NS_PER_MS) /* after a trade that came to nothing */

uint64_t bpi_channel_bytes(const bp_pool *pool)
{
    unsigned slabs = pool->frames ? bpi_frames_slab_count(pool->frames) : 0;

    return sizeof(struct channel) + CHANNEL_DEPTH * sizeof(struct read) + slabs + RING_BYTES;
}

uint64_t bpi_leaves_bytes(uint32_t nodes)
{
    return ((uint64_t)nodes + 1) * sizeof(index_entry);
}

/* What is charged beside frames and nodes, of so many bytes. */
static uint64_t beside(const bp_pool *pool, uint64_t bytes)
{
    uint64_t pages = bytes / BP_PAGE_SIZE;
    uint64_t rest = pool->channels_max * bpi_channel_bytes(pool) + NODES_STOCK * NODE_BYTES +
                    bpi_leaves_bytes((uint32_t)(pages < ENTRY_NUMBER_MAX ? pages : ENTRY_NUMBER_MAX));

    return pool->beside + (rest < bytes / BESIDE_SHARE ? rest : bytes / BESIDE_SHARE);
}

static uint64_t more_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Without nodes. Bytes. */
static uint64_t cost_of_frames(const bp_pool *pool, uint64_t frames)
{
    uint64_t high = pool->frames ? bpi_frames_high(pool->frames) : 0;

    return frames * BP_PAGE_SIZE + more_of(frames, high) * KEPT_BYTES;
}

static uint64_t cost_with_nodes(bp_pool *pool, uint64_t frames)
{
    uint64_t touched = pool->nodes.slot ? bpi_nodes_touched(&pool->nodes) * NODE_BYTES : 0;

    return cost_of_frames(pool, frames) + more_of(frames * INDEX_BYTES_PER_FRAME, touched);
}

/* Idle sessions keep their stock, and nobody may be kept waiting for it: beyond some they bring their own. */
void bpi_budget_nodes(bp_pool *pool)
{
    uint64_t stock = (uint64_t)pool->session_count * MAGAZINE_NODES;
    uint64_t nodes = pool->nodes_shared + more_of(stock, NODES_STOCK);

    bpi_nodes_allow(&pool->nodes, nodes < UINT32_MAX ? (uint32_t)nodes : UINT32_MAX);
}

uint32_t bpi_budget_frames(bp_pool *pool, uint64_t bytes)
{
    uint64_t left = bytes > beside(pool, bytes) ? bytes - beside(pool, bytes) : 0;
    uint64_t low = 0;
    uint64_t end = left / BP_PAGE_SIZE < ENTRY_NUMBER_MAX ? left / BP_PAGE_SIZE : ENTRY_NUMBER_MAX;

    while (low < end) { /* the most that cost no more than what is left */
        uint64_t middle = low + (end - low + 1) / 2;

        if (cost_with_nodes(pool, middle) <= left)
            low = middle;
        else
            end = middle - 1;
    }
    if (low < FRAMES_MIN)
        low = 0;
    if (pool->options.frames_max && low > pool->options.frames_max)
        low = pool->options.frames_max;
    return (uint32_t)low;
}

uint64_t bpi_budget_bytes(bp_pool *pool, uint32_t frames)
{
    uint64_t left = cost_with_nodes(pool, frames);

    return left + beside(pool, left + left / (BESIDE_SHARE - 1));
}

void bpi_budget_set(bp_pool *pool, uint64_t bytes, uint32_t frames)
{
    uint64_t used = beside(pool, bytes) + cost_of_frames(pool, frames);
    uint64_t nodes = bytes > used ? (bytes - used) / NODE_BYTES : 0;

    atomic_store_explicit(&pool->memory, bytes, memory_order_relaxed);
    atomic_store_explicit(&pool->frames_limit, frames, memory_order_relaxed);
    bpi_frames_limit(pool->frames, (uint64_t)frames << BP_PAGE_SHIFT);
    bpi_policy_resize(policy_of(pool, 0), frames);
    pthread_mutex_lock(&pool->lock);
    pool->nodes_shared = nodes < ENTRY_NUMBER_MAX ? (uint32_t)nodes : ENTRY_NUMBER_MAX;
    bpi_pool_share_out(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- frames for nodes ---- */

/* So many frames less; of a pool that is full as many as a slab has. The caller is the one who resizes. */
static bool trade(bp_pool *pool, uint64_t bytes, uint32_t frames)
{
    uint32_t less = frames / TRADE_SHARE > TRADE_LEAST ? frames / TRADE_SHARE : TRADE_LEAST;
    uint32_t to;

    if (frames < FRAMES_MIN + less)
        return false;
    to = frames - less;
    bpi_frames_limit(pool->frames, (uint64_t)to << BP_PAGE_SHIFT); /* first, so that no more come meanwhile */
    if (bpi_frames_claimed(pool->frames) > to && bpi_frames_slab_count(pool->frames) > 1)
        bpi_shrink(pool, to, 0);
    if (bpi_frames_claimed(pool->frames) > to) /* nothing could leave */
        to = frames;
    bpi_budget_set(pool, bytes, to);
    return to < frames;
}

bool bpi_budget_trade(bp_pool *pool)
{
    uint32_t frames = frames_limit(pool);
    uint64_t now = bpi_now_ns();
    uint32_t none = 0;
    bool traded = false;

    if (now < atomic_load_explicit(&pool->no_trade_before_ns, memory_order_relaxed) ||
        bpi_nodes_allowed(&pool->nodes) > (uint64_t)frames * NODES_PER_FRAME + NODES_STOCK)
        return false;
    /* acquire: as the lock of bp_pool_resize, which it is */
    if (!atomic_compare_exchange_strong_explicit(&pool->resizing, &none, 1, memory_order_acquire,
                                                 memory_order_relaxed)) {
        bpi_futex_wait(&pool->resizing, 1, now + TRADE_WAIT_NS); /* most likely he trades, for all of us */
        return true;
    }
    if (frames == frames_limit(pool))
        traded = trade(pool, atomic_load_explicit(&pool->memory, memory_order_relaxed), frames);
    if (!traded)
        atomic_store_explicit(&pool->no_trade_before_ns, now + TRADE_PAUSE_NS, memory_order_relaxed);
    bpi_resize_end(pool);
    return traded;
}

/* ---- looking ---- */

/* What the arrays of leaves can take, of files that are open: each what its size needs. pool.lock is held. */
static uint64_t leaves_of_files(bp_pool *pool)
{
    uint64_t bytes = 0;

    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_relaxed);
        uint64_t leaves;

        if (!file)
            break;
        leaves = (atomic_load_explicit(&file->bytes, memory_order_relaxed) >> BP_PAGE_SHIFT) / INDEX_SLOTS + 1;
        bytes += !file->opens                 ? 0
                 : leaves < pool->nodes.limit ? bpi_leaves_bytes((uint32_t)leaves)
                                              : bpi_leaves_bytes(pool->nodes.limit);
    }
    return bytes;
}

void bpi_budget_stats(bp_pool *pool, struct bp_stats *st)
{
    uint64_t high = bpi_frames_high(pool->frames);

    st->memory_limit = atomic_load_explicit(&pool->memory, memory_order_relaxed);
    st->memory_frames = bpi_frames_claimed(pool->frames) << BP_PAGE_SHIFT;
    st->memory_descriptors = high * (KEPT_BYTES - QUEUE_BYTES_PER_FRAME);
    st->memory_index = bpi_nodes_touched(&pool->nodes) * NODE_BYTES;
    st->memory_policy = pool->sizes.bytes + high * QUEUE_BYTES_PER_FRAME;
    st->memory_io = atomic_load_explicit(&pool->channel_count, memory_order_relaxed) * bpi_channel_bytes(pool);
    pthread_mutex_lock(&pool->lock);
    st->memory_leaves = leaves_of_files(pool);
    for (bp_session *s = pool->session; s; s = s->next)
        st->memory_sessions += s->mapped;
    pthread_mutex_unlock(&pool->lock);
}
