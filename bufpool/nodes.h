/* SPDX-License-Identifier: MIT */
/* What index.c needs of nodes.c beyond index.h. */
#ifndef BUFPOOL_NODES_H
#define BUFPOOL_NODES_H

#include "bufpool/index.h"

/* A node left its tree: it is reused after a grace period. Contents stay as they are. An index lock may be held. */
void bpi_node_retire(struct index_nodes *, uint32_t node);

#endif
