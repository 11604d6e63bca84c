/* SPDX-License-Identifier: MIT */
/*
 * Slabs: the units in which memory is placed on a node, populated and registered.
 *
 *   reserved --place(node)--> placed --populate--> populated --(registered with rings)--> ...
 *
 * Address space for the whole pool is reserved at open (PROT_NONE, no swap charged, not inherited by fork) and nothing
 * is touched. Population goes by MADV_POPULATE_WRITE in pieces of SLAB_PIECE, so that a failure is an error code and
 * never a SIGBUS, and so that the one who needs the first frame does not wait for a whole slab.
 *
 * Memory is never unmapped while the pool is open: a stale pointer into a frame reads old bytes, not a fault. (The one
 * exception is a hugetlb slab whose pages run out half way: what was never populated, and so never handed out, is
 * mapped anew.)
 *
 * Threads: place may be called by any thread (one lock, held while a slab is placed). populate may run for different
 * slabs at once, by one thread per slab. state and populated may be read at any time.
 */
#ifndef NUMA_SLAB_H
#define NUMA_SLAB_H

#include "numa/topology.h"

#include <pthread.h>
#include <stdatomic.h>

#define SLAB_PIECE (2u << 20) /* bytes populated at once; also the huge page */

enum slab_state { SLAB_RESERVED, SLAB_PLACED, SLAB_POPULATED };
enum slab_backing { SLAB_HUGETLB, SLAB_THP, SLAB_SMALL };
enum slab_huge { SLAB_HUGE_TRY, SLAB_HUGE_ON, SLAB_HUGE_OFF };

struct slab {
    _Atomic uint8_t state;    /* enum slab_state; release on each step */
    uint8_t backing;          /* enum slab_backing, once placed: the worst of its parts; under the slabs' lock */
    uint8_t node;             /* constant once placed */
    _Atomic size_t populated; /* bytes populated from its start */
    size_t bytes;             /* bytes of it that belong to the pool: slab_bytes, less for the last; constant */
};

struct slabs {
    char *base;        /* aligned to slab_bytes; frame f lies at base + f * 4096 */
    size_t reserved;   /* bytes of address space, from map */
    char *map;         /* what mmap returned; base is inside */
    size_t slab_bytes; /* power of two, at least SLAB_PIECE */
    unsigned slab_count;
    enum slab_huge huge;
    struct slab *slab;

    pthread_mutex_t lock;            /* guards what follows */
    const struct topology *topology; /* borrowed: of the last place */
    unsigned slab_next;              /* slabs below have been placed */
    unsigned backing_count[3];
    bool hugetlb_off;       /* hugetlb was refused once: not asked again */
    bool hugetlb_movable;   /* mremap of hugetlb has been seen to work */
    _Atomic bool thp_shown; /* a populated piece was seen to be on a transparent huge page */
    char huge_reason[120];  /* why the last step down happened; empty if none did */
    char bind_reason[120];  /* why a slab may lie on another node than asked; empty if no bind was refused */
};

/* Slab size for a pool: 2 MiB below 512 MiB, 32 MiB from there, larger once 16,384 slabs would not do. */
size_t bpi_slab_bytes_for(uint64_t pool_bytes);

/* Reserve address space for bytes (a multiple of 4096, up to 4 TiB). 0, -ENOMEM, -EINVAL. */
int bpi_slabs_open(struct slabs *, uint64_t bytes, enum slab_huge);
void bpi_slabs_close(struct slabs *);

/*
 * Place the next reserved slab on a node: makes it accessible, chooses its backing (hugetlb, then THP, then
 * 4 KiB pages, each tried for real), binds it. Populates nothing but what the trial of hugetlb needs. The
 * slab's number, or -ENOSPC (all placed), or what the system answered; the slab then stays reserved. A bind that is
 * refused is no error: bind_reason says so.
 *
 * What is less than a whole huge page at the pool's end gets small pages, so that the pool never takes more than was
 * asked for. With SLAB_HUGE_ON a slab that gets no huge pages is an error (-ENOTSUP), reason in huge_reason; that end
 * is exempt unless it is the whole pool.
 */
int bpi_slab_place(struct slabs *, const struct topology *, unsigned node);

/*
 * Populate the next piece of a placed slab. Bytes populated (up to SLAB_PIECE; fewer at the pool's end), 0 when
 * the slab is fully populated, or a negative errno and nothing changed: -ENOMEM, -ENOTSUP (SLAB_HUGE_ON), or what else
 * the system said. A hugetlb slab that gets no more pages goes on with the next backing. The first piece on
 * transparent huge pages is looked at: if the kernel gave small pages after all, the slab steps down too.
 */
long bpi_slab_populate(struct slabs *, unsigned slab);

#endif
