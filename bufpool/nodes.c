/* SPDX-License-Identifier: MIT */
/*
 * Index nodes: one type-stable array for all indexes of a pool, and the way of a node through it.
 *
 *   fresh/free --magazine_fill--> magazine --insert--> tree --node_retire--> limbo --grace period--> free
 *
 * A node that left a tree keeps its contents until the grace period is over: readers inside it see the past, which is
 * correct for them. The grace period is waited for by whoever finds too little on the free list, outside all locks; a
 * caller that is itself inside a read-side section (of the host's, say) must not wait and takes fresh nodes instead.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <urcu/urcu-bp.h>

#include "bufpool/index.h"
#include "bufpool/nodes.h"
#include "bufpool/reserve.h"

/* Smaller arrays stay on 4 KiB pages: a huge page would be more than they need. Bytes. */
#define HUGE_FROM (32u << 20)
/* Below this it is cheaper to use fresh nodes than to wait: a grace period costs microseconds. */
#define LIMBO_BATCH 64u
/* Grace periods that one fill waits for. One is the rule; nodes retired meanwhile may need another. */
#define PASSES_MAX 64

/* With fewer nodes to be had than this, a fill takes no more than one insert needs, and leaves the rest to others. */
#define SCARCE (8u * MAGAZINE_NODES)

/* Entries before node 0, so that an entry times 16 is an offset into the map (index.h: index_slot_at). */
#define MAP_AHEAD ((size_t)ENTRY_NODE * (INDEX_SLOTS / 4))

static size_t map_bytes(const struct index_nodes *n)
{
    return MAP_AHEAD * sizeof(*n->map) + ((size_t)n->limit + 1) * sizeof(*n->slot);
}

static size_t head_bytes(const struct index_nodes *n)
{
    return ((size_t)n->limit + 1) * sizeof(*n->head);
}

int bpi_nodes_open(struct index_nodes *n, uint32_t limit)
{
    _Atomic index_entry *map;
    int rc = 0;

    memset(n, 0, sizeof(*n));
    n->limit = limit < ENTRY_NUMBER_MAX ? limit : ENTRY_NUMBER_MAX;
    n->allowed = n->limit;
    n->fresh = NODE_EMPTY + 1;
    n->free = n->limbo = n->limbo_last = NODE_NONE;
    map = reserve_array(map_bytes(n), HUGE_FROM);
    n->head = reserve_array(head_bytes(n), HUGE_FROM);
    if (!map || !n->head) {
        rc = -ENOMEM;
        goto out;
    }
    n->map = map;
    n->slot = (_Atomic index_entry(*)[INDEX_SLOTS])(map + MAP_AHEAD);
    pthread_mutex_init(&n->lock, NULL);
    pthread_mutex_init(&n->turn, NULL);
    pthread_cond_init(&n->passed, NULL);
out:
    if (rc) {
        if (map)
            munmap((void *)map, map_bytes(n));
        if (n->head)
            munmap(n->head, head_bytes(n));
    }
    return rc;
}

void bpi_nodes_close(struct index_nodes *n)
{
    munmap((void *)n->map, map_bytes(n));
    munmap(n->head, head_bytes(n));
    pthread_cond_destroy(&n->passed);
    pthread_mutex_destroy(&n->turn);
    pthread_mutex_destroy(&n->lock);
}

void bpi_nodes_allow(struct index_nodes *n, uint32_t nodes)
{
    pthread_mutex_lock(&n->lock);
    n->allowed = nodes;
    pthread_mutex_unlock(&n->lock);
}

uint32_t bpi_nodes_allowed(struct index_nodes *n)
{
    uint32_t allowed;

    pthread_mutex_lock(&n->lock);
    allowed = n->allowed;
    pthread_mutex_unlock(&n->lock);
    return allowed;
}

uint32_t bpi_nodes_touched(struct index_nodes *n)
{
    uint32_t touched;

    pthread_mutex_lock(&n->lock);
    touched = n->fresh - 1;
    pthread_mutex_unlock(&n->lock);
    return touched;
}

/* Everything in limbo becomes free. Called and returns with the lock held; drops it while waiting. */
static void pass_grace_period(struct index_nodes *n)
{
    uint32_t first = n->limbo;
    uint32_t last = n->limbo_last;
    uint32_t count = n->limbo_count;

    n->limbo = n->limbo_last = NODE_NONE;
    n->limbo_count = 0;
    n->passing += count;
    pthread_mutex_unlock(&n->lock);
    urcu_bp_synchronize_rcu();
    pthread_mutex_lock(&n->lock);
    n->head[last].older = n->free;
    n->free = first;
    n->free_count += count;
    n->passing -= count;
    pthread_cond_broadcast(&n->passed);
}

/* Nodes that can be had now. Lock held. */
static uint32_t available(const struct index_nodes *n)
{
    uint32_t most = n->allowed < n->limit ? n->allowed : n->limit;

    return n->free_count + (most > n->fresh - 1 ? most - (n->fresh - 1) : 0);
}

/* One node number; there is one available. Lock held. */
static uint32_t take(struct index_nodes *n)
{
    uint32_t node = n->free;

    if (node == NODE_NONE)
        return n->fresh++;
    n->free = n->head[node].older;
    n->free_count--;
    return node;
}

/* To the free list: nobody can be in this node. Lock held. */
static void give(struct index_nodes *n, uint32_t node)
{
    n->head[node].older = n->free;
    n->free = node;
    n->free_count++;
}

static void make_blank(struct index_nodes *n, uint32_t node, bool fresh)
{
    if (fresh) { /* it is blank; but the first touch of memory is slow, so here and under no lock */
        atomic_store_explicit(&n->slot[node][0], ENTRY_NONE, memory_order_relaxed);
        n->head[node].used = 0;
        return;
    }
    slots_fill(n->slot[node], ENTRY_NONE);
    /* not the lock and the owner, which somebody may be asking who comes by an old guess */
    n->head[node].used = n->head[node].shadows = 0;
    n->head[node].listed = false;
    n->head[node].cont = 0;
    memset(n->head[node].mark, 0, sizeof(n->head[node].mark));
}

/*
 * Wait for grace periods until `need` nodes can be had, or all that were given back are there and do not suffice.
 * One at a time, and newcomers queue behind: else those who need little could starve one who needs much. Called and
 * returns with the lock held; drops it while waiting.
 */
static void collect(struct index_nodes *n, uint32_t need)
{
    n->queued++;
    pthread_mutex_unlock(&n->lock);
    pthread_mutex_lock(&n->turn);
    pthread_mutex_lock(&n->lock);
    for (unsigned i = 0; i < PASSES_MAX && available(n) < need && (n->limbo_count || n->passing); i++) {
        if (n->limbo_count)
            pass_grace_period(n);
        else
            pthread_cond_wait(&n->passed, &n->lock);
    }
    n->queued--;
    pthread_mutex_unlock(&n->turn);
}

/* All that is needed or nothing: a caller that keeps half of it would starve another that does the same. */
int bpi_magazine_fill_slow(struct index_nodes *n, struct node_magazine *m)
{
    uint32_t had = m->count;
    uint32_t need = INSERT_NODES - had;
    uint32_t want;
    uint32_t fresh = 0; /* numbers from here on were never used */
    bool may_wait = !urcu_bp_read_ongoing();
    int rc = 0;

    pthread_mutex_lock(&n->lock);
    if (may_wait && n->free_count < need && n->limbo_count >= LIMBO_BATCH)
        pass_grace_period(n);
    if (may_wait && (n->queued || available(n) < need))
        collect(n, need);
    if (available(n) < need) {
        rc = -ENOMEM;
        goto out;
    }
    fresh = n->fresh;
    want = available(n) < SCARCE ? INSERT_NODES : MAGAZINE_NODES;
    while (m->count < want)
        m->node[m->count++] = take(n);
    atomic_fetch_add_explicit(&n->in_use, m->count - had, memory_order_relaxed);
out:
    pthread_mutex_unlock(&n->lock);
    for (uint32_t i = had; i < m->count; i++) /* ours alone, so outside the lock */
        make_blank(n, m->node[i], m->node[i] >= fresh);
    return rc;
}

void bpi_magazine_drain(struct index_nodes *n, struct node_magazine *m)
{
    pthread_mutex_lock(&n->lock);
    atomic_fetch_sub_explicit(&n->in_use, m->count, memory_order_relaxed);
    while (m->count) /* never seen by a reader: no grace period */
        give(n, m->node[--m->count]);
    pthread_cond_broadcast(&n->passed);
    pthread_mutex_unlock(&n->lock);
}

void bpi_node_retire(struct index_nodes *n, uint32_t node)
{
    pthread_mutex_lock(&n->lock);
    if (n->limbo == NODE_NONE)
        n->limbo_last = node;
    n->head[node].older = n->limbo;
    n->limbo = node;
    n->limbo_count++;
    atomic_fetch_sub_explicit(&n->in_use, 1, memory_order_relaxed);
    pthread_mutex_unlock(&n->lock);
}
