/* SPDX-License-Identifier: MIT */
/* What index.c needs of nodes.c beyond index.h. */
#ifndef BUFPOOL_NODES_H
#define BUFPOOL_NODES_H

#include "bufpool/index.h"

/*
 * All slots of a node that is in no tree. relaxed: it is linked with a release later; who is inside by an old guess
 * finds this or that. Two slots a store and written out, since blanking nodes is a good part of making them.
 */
typedef _Atomic uint64_t __attribute__((may_alias)) slot_pair;

static inline void slots_fill(_Atomic index_entry slot[INDEX_SLOTS], index_entry e)
{
    slot_pair *pair = (slot_pair *)(void *)slot;
    uint64_t both = (uint64_t)e << 32 | e;
    unsigned i = 0;

#define PAIR(k) atomic_store_explicit(&pair[i + (k)], both, memory_order_relaxed)
    for (; INDEX_SLOTS >= 16 && i < INDEX_SLOTS / 2; i += 8) {
        PAIR(0);
        PAIR(1);
        PAIR(2);
        PAIR(3);
        PAIR(4);
        PAIR(5);
        PAIR(6);
        PAIR(7);
    }
    for (; i < INDEX_SLOTS / 2; i++)
        PAIR(0);
#undef PAIR
}

/* A node left its tree: it is reused after a grace period. Contents stay as they are. An index lock may be held. */
void bpi_node_retire(struct index_nodes *, uint32_t node);

#endif
