/* SPDX-License-Identifier: MIT */
/*
 * Index nodes: one type-stable array for all indexes of a pool, and the way of a node through it.
 *
 *   fresh/free --magazine_fill--> magazine --insert--> tree --nodes_retire--> limbo --grace period--> free
 *
 * A node that left a tree keeps its contents until the grace period is over: readers inside it see the past, which is
 * correct for them. The grace period is waited for by whoever finds the free list empty, outside all locks; a caller
 * that is itself inside a read-side section (of the host's, say) must not wait and takes fresh nodes instead.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <urcu/urcu-bp.h>

#include "bufpool/index.h"
#include "bufpool/nodes.h"

/* Below this it is cheaper to use fresh nodes than to wait: a grace period costs microseconds. */
#define LIMBO_BATCH 64u
static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    /* nested page tables make TLB misses dear, and a walk of an 8 GiB file's index roams over 8 MiB */
    madvise(at, bytes, MADV_HUGEPAGE);
    madvise(at, bytes, MADV_DONTFORK);
    return at;
}

int bpi_nodes_open(struct index_nodes *n, uint32_t limit)
{
    int rc = 0;

    memset(n, 0, sizeof(*n));
    n->limit = limit < ENTRY_NUMBER_MAX ? limit : ENTRY_NUMBER_MAX;
    n->free = n->limbo = NODE_NONE;
    n->slot = reserve((size_t)n->limit * sizeof(*n->slot));
    n->head = reserve((size_t)n->limit * sizeof(*n->head));
    if (!n->slot || !n->head) {
        rc = -ENOMEM;
        goto out;
    }
    pthread_mutex_init(&n->lock, NULL);
out:
    if (rc) {
        if (n->slot)
            munmap(n->slot, (size_t)n->limit * sizeof(*n->slot));
        if (n->head)
            munmap(n->head, (size_t)n->limit * sizeof(*n->head));
    }
    return rc;
}

void bpi_nodes_close(struct index_nodes *n)
{
    munmap(n->slot, (size_t)n->limit * sizeof(*n->slot));
    munmap(n->head, (size_t)n->limit * sizeof(*n->head));
    pthread_mutex_destroy(&n->lock);
}

/* Everything in limbo becomes free. Called and returns with the lock held; drops it while waiting. */
static void pass_grace_period(struct index_nodes *n)
{
    uint32_t first = n->limbo;
    uint32_t last = first;

    n->limbo = NODE_NONE;
    n->limbo_count = 0;
    pthread_mutex_unlock(&n->lock);
    urcu_bp_synchronize_rcu();
    pthread_mutex_lock(&n->lock);
    while (n->head[last].older != NODE_NONE)
        last = n->head[last].older;
    n->head[last].older = n->free;
    n->free = first;
}

/* One node number, or NODE_NONE. Lock held. */
static uint32_t take(struct index_nodes *n)
{
    uint32_t node = n->free;

    if (node != NODE_NONE)
        n->free = n->head[node].older;
    else if (n->fresh < n->limit)
        node = n->fresh++;
    return node;
}

static void make_blank(struct index_nodes *n, uint32_t node)
{
    for (unsigned i = 0; i < INDEX_SLOTS; i++)
        atomic_store_explicit(&n->slot[node][i], ENTRY_NONE, memory_order_relaxed);
    n->head[node] = (struct node_head){.parent = NODE_NONE, .older = NODE_NONE, .newer = NODE_NONE};
}

int bpi_magazine_fill(struct index_nodes *n, struct node_magazine *m)
{
    bool may_wait;

    if (m->count >= INSERT_NODES)
        return 0;
    may_wait = !urcu_bp_read_ongoing();
    pthread_mutex_lock(&n->lock);
    if (n->free == NODE_NONE && may_wait && (n->limbo_count >= LIMBO_BATCH || (n->limbo_count && n->fresh == n->limit)))
        pass_grace_period(n);
    while (m->count < MAGAZINE_NODES) {
        uint32_t node = take(n);

        if (node == NODE_NONE)
            break;
        make_blank(n, node);
        m->node[m->count++] = node;
        atomic_fetch_add_explicit(&n->in_use, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&n->lock);
    return m->count >= INSERT_NODES ? 0 : -ENOMEM;
}

void bpi_magazine_drain(struct index_nodes *n, struct node_magazine *m)
{
    pthread_mutex_lock(&n->lock);
    while (m->count) { /* never seen by a reader: no grace period */
        uint32_t node = m->node[--m->count];

        n->head[node].older = n->free;
        n->free = node;
        atomic_fetch_sub_explicit(&n->in_use, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&n->lock);
}

void bpi_node_retire(struct index_nodes *n, uint32_t node)
{
    pthread_mutex_lock(&n->lock);
    n->head[node].older = n->limbo;
    n->limbo = node;
    n->limbo_count++;
    atomic_fetch_sub_explicit(&n->in_use, 1, memory_order_relaxed);
    pthread_mutex_unlock(&n->lock);
}
