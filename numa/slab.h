/* SPDX-License-Identifier: MIT */
/*
 * Slabs: the units in which memory is placed on a node, populated and registered.
 *
 *   reserved --place(node)--> placed --populate--> populated --(registered with rings)--> ...
 *
 * Address space for the whole pool is reserved at open (PROT_NONE, no swap charged) and nothing is touched.
 * Population goes by MADV_POPULATE_WRITE in pieces of SLAB_PIECE, so that a failure is an error code and
 * never a SIGBUS, and so that the one who needs the first frame does not wait for a whole slab.
 *
 * Memory is never unmapped while the pool is open: a stale pointer into a frame reads old bytes, not a fault.
 * Not thread safe: the owner (numa/frames.c) calls under its lock, except where said.
 */
#ifndef NUMA_SLAB_H
#define NUMA_SLAB_H

#include "numa/topology.h"

#define SLAB_PIECE (2u << 20) /* bytes populated at once; also the huge page */

enum slab_state { SLAB_RESERVED, SLAB_PLACED, SLAB_POPULATED };
enum slab_backing { SLAB_HUGETLB, SLAB_THP, SLAB_SMALL };
enum slab_huge { SLAB_HUGE_TRY, SLAB_HUGE_ON, SLAB_HUGE_OFF };

struct slab {
    uint8_t state;     /* enum slab_state */
    uint8_t backing;   /* enum slab_backing, once placed */
    uint8_t node;
    size_t populated;  /* bytes populated from its start */
    size_t bytes;      /* bytes of it that belong to the pool: slab_bytes, less for the last */
};

struct slabs {
    char *base;          /* aligned to slab_bytes; frame f lies at base + f * 4096 */
    size_t reserved;     /* bytes of address space, from map */
    char *map;           /* what mmap returned; base is inside */
    size_t slab_bytes;   /* power of two, at least SLAB_PIECE */
    unsigned slab_count;
    unsigned slab_next;  /* slabs below have been placed */
    enum slab_huge huge;
    struct slab *slab;
    unsigned backing_count[3];
    char huge_reason[120]; /* why the last step down happened; empty if none did */
};

/* Slab size for a pool: 2 MiB below 512 MiB, 32 MiB from there, larger once 16,384 slabs would not do. */
size_t bpi_slab_bytes_for(uint64_t pool_bytes);

/* Reserve address space for bytes (a multiple of 4096). 0, -ENOMEM, -EINVAL. */
int bpi_slabs_open(struct slabs *, uint64_t bytes, enum slab_huge);
void bpi_slabs_close(struct slabs *);

/*
 * Place the next reserved slab on a node: makes it accessible, chooses its backing (hugetlb, then THP, then
 * 4 KiB pages, each tried for real), binds it. Populates nothing but what the trial of hugetlb needs. The
 * slab's number, or -ENOSPC (all placed), or what the system answered; the slab then stays reserved.
 * With SLAB_HUGE_ON a slab that gets no huge pages is an error (-ENOTSUP), reason in huge_reason.
 */
int bpi_slab_place(struct slabs *, const struct topology *, unsigned node);

/*
 * Populate the next piece of a placed slab. Bytes populated (up to SLAB_PIECE; fewer at the pool's end), 0 when
 * the slab is fully populated, or a negative errno and nothing changed.
 */
long bpi_slab_populate(struct slabs *, unsigned slab);

#endif
