/* SPDX-License-Identifier: MIT */
/*
 * Topology: which memory nodes this process may use, which CPU belongs to which, how far they are apart.
 *
 * Read once from hwloc when a pool opens. Nodes are numbered densely from 0 here ("node"); the
 * system's own number is kept beside it ("os_node"). A machine without any NUMA information has one node.
 */
#ifndef NUMA_TOPOLOGY_H
#define NUMA_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOPOLOGY_NODES_MAX 64
#define TOPOLOGY_CPUS_MAX  4096

struct topology {
    void *hwloc;         /* hwloc_topology_t; owned */
    unsigned node_count; /* at least 1 */
    unsigned cpu_count;  /* CPUs this process may run on, at least 1 */
    int os_node[TOPOLOGY_NODES_MAX];
    uint64_t node_bytes[TOPOLOGY_NODES_MAX];               /* local memory, 0 if unknown */
    uint8_t spill[TOPOLOGY_NODES_MAX][TOPOLOGY_NODES_MAX]; /* spill[n][i]: i-th nearest node to n; [0] is n */
    uint8_t cpu_node[TOPOLOGY_CPUS_MAX];
};

/* 0 or -ENOMEM/-ENOSYS. Costs milliseconds. */
int bpi_topology_open(struct topology *);
void bpi_topology_close(struct topology *);

/* Node of the CPU the caller runs on now; 0 where that is unknown. A few nanoseconds, no system call. */
unsigned bpi_topology_here(const struct topology *);

/* Ask that [at, at+bytes) be placed on a node, nearest others allowed. 0 or a negative errno. */
int bpi_topology_bind(const struct topology *, void *at, size_t bytes, unsigned node);

/*
 * Node that the page at this address lies on; -1: not known (nothing there, the system does not tell, a machine that is
 * made up). One system call; none where there is one node.
 */
int bpi_topology_where(const struct topology *, const void *at);

/* Node of the system's number; -1: not there, or not for us. */
int bpi_topology_node(const struct topology *, int os_node);

/* Physical memory of the machine in bytes, reduced by the cgroup's memory.max where one applies. */
uint64_t bpi_topology_memory(const struct topology *);

#endif
