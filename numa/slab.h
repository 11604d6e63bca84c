/* SPDX-License-Identifier: MIT */
/*
 * Slabs: the units in which memory is placed on a node, populated, registered, and given back.
 *
 *      +----------------------------------- S8 ------------------------------------+
 *      v                                                                           |
 *   reserved --S1--> placed(node) --S2--> populated --S3/S4--> registered n times  |
 *                       |    ^                 |    ^                   |          |
 *                       S5   S6                S5   S6                  S5         |
 *                       v    |                 v    |                   v          |
 *                      draining <--------------+----+-------------------+ --S7--> leaving
 *
 * Address space for the whole pool is reserved at open (PROT_NONE, no swap charged, not inherited by fork) and nothing
 * is touched. Population goes by MADV_POPULATE_WRITE in pieces of SLAB_PIECE, so that a failure is an error code and
 * never a SIGBUS, and so that the one who needs the first frame does not wait for a whole slab.
 *
 * Address space is never unmapped while the pool is open: a stale pointer into a frame reads old bytes, or zeros where
 * the memory was given back, not a fault. Memory that a ring has registered is never taken away (R20): the device would
 * go on writing into pages that nobody sees any more. The count of registrations and the state are one word, so neither
 * can change between a look at the other and what is done about it.
 *
 * Threads: place and release may be called by any thread (one lock, held meanwhile). populate may run for different
 * slabs at once, by one thread per slab, and not while the slab drains. What is atomic may be read at any time.
 */
#ifndef NUMA_SLAB_H
#define NUMA_SLAB_H

#include "numa/topology.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define SLAB_PIECE (2u << 20) /* bytes populated at once; also the huge page */

enum slab_state {
    SLAB_RESERVED,  /* address space */
    SLAB_PLACED,    /* has a node and a backing; memory up to `populated` */
    SLAB_POPULATED, /* all of it is memory: may be registered */
    SLAB_DRAINING,  /* nothing of it is handed out any more */
    SLAB_LEAVING    /* its memory is being given back */
};
enum slab_backing { SLAB_HUGETLB, SLAB_THP, SLAB_SMALL };
enum slab_huge { SLAB_HUGE_TRY, SLAB_HUGE_ON, SLAB_HUGE_OFF };

struct slab {
    _Atomic uint32_t word;    /* enum slab_state; above it, how many rings have it registered */
    uint8_t backing;          /* enum slab_backing, once placed: the worst of its parts; under the slabs' lock */
    _Atomic uint8_t node;     /* as long as it is placed */
    bool lived;               /* had memory before: there may be pointers into it; under the slabs' lock */
    int found;                /* node that what was populated last lies on; -1: not known. The one that populates it */
    uint32_t aside;           /* frames that came back while it drains; under its node's lock (frames.c) */
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
    bool bound; /* memory that the system gives on another node than asked goes back; set before the first place */
    struct slab *slab;

    pthread_mutex_t lock;            /* guards what follows */
    const struct topology *topology; /* borrowed: of the last place */
    unsigned slab_next;              /* slabs below are not reserved */
    unsigned backing_count[3];
    bool hugetlb_off;             /* hugetlb is not asked for */
    uint64_t hugetlb_dry[2];      /* nodes that had none, bits: pages of 2 MiB, of 1 GiB. Not asked again */
    bool hugetlb_movable;         /* mremap of hugetlb has been seen to work */
    _Atomic bool thp_shown;       /* a populated piece was seen to be on a transparent huge page */
    char reason[SLAB_SMALL][120]; /* why there was no more of a backing; empty if there was */
    char huge_reason[120];        /* of these, the last */
    char bind_reason[120];        /* why a slab may lie on another node than asked; empty if no bind was refused */
};

/* ---- transitions (RULES.md has the table); all of them fail rather than do what is not allowed ---- */

#define SLAB_STATE    0xffu
#define SLAB_RING_ONE 0x100u /* one registration */

/* acquire: with S2, who sees a slab populated sees its memory */
static inline enum slab_state slab_state(const struct slab *slab)
{
    return (enum slab_state)(atomic_load_explicit(&slab->word, memory_order_acquire) & SLAB_STATE);
}

/* How many rings have it registered. relaxed: a peek */
static inline uint32_t slab_rings(const struct slab *slab)
{
    return atomic_load_explicit(&slab->word, memory_order_relaxed) / SLAB_RING_ONE;
}

/* relaxed: who asks holds a frame of it, or the lock of the node, or only wants to know */
static inline unsigned slab_node(const struct slab *slab)
{
    return atomic_load_explicit(&slab->node, memory_order_relaxed);
}

/* From one state to another, whatever the count of registrations. false: it is in another state, and stays so. */
static inline bool slab_move(struct slab *slab, enum slab_state from, enum slab_state to, memory_order order)
{
    uint32_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);

    while ((word & SLAB_STATE) == (uint32_t)from)
        if (atomic_compare_exchange_weak_explicit(&slab->word, &word, (word & ~SLAB_STATE) | (uint32_t)to, order,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* S1. reserved -> placed. release: its node and backing are there for who sees it placed */
static inline bool slab_placed(struct slab *slab)
{
    return slab_move(slab, SLAB_RESERVED, SLAB_PLACED, memory_order_release);
}

/* S2. placed -> populated. release: its memory is there for who sees it populated */
static inline bool slab_completed(struct slab *slab)
{
    return slab_move(slab, SLAB_PLACED, SLAB_POPULATED, memory_order_release);
}

/*
 * S3. One ring more may register it: said before the ring is told. 0; -EAGAIN: not populated, registering would do it;
 * -EBUSY: it drains. acquire: what is registered is what S2 populated
 */
static inline int slab_registered(struct slab *slab)
{
    uint32_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);

    while ((word & SLAB_STATE) == SLAB_POPULATED)
        if (atomic_compare_exchange_weak_explicit(&slab->word, &word, word + SLAB_RING_ONE, memory_order_acquire,
                                                  memory_order_relaxed))
            return 0;
    return (word & SLAB_STATE) == SLAB_PLACED ? -EAGAIN : -EBUSY;
}

/*
 * S4. One ring less: said after the ring has let go of it. 0; -EINVAL: none had it. release: letting go comes before what
 * S7 allows
 */
static inline int slab_unregistered(struct slab *slab)
{
    uint32_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);

    while (word >= SLAB_RING_ONE)
        if (atomic_compare_exchange_weak_explicit(&slab->word, &word, word - SLAB_RING_ONE, memory_order_release,
                                                  memory_order_relaxed))
            return 0;
    return -EINVAL;
}

/* S5. placed or populated -> draining; rings keep it registered. relaxed: the node's lock orders what this is about */
static inline bool slab_drained(struct slab *slab)
{
    return slab_move(slab, SLAB_POPULATED, SLAB_DRAINING, memory_order_relaxed) ||
           slab_move(slab, SLAB_PLACED, SLAB_DRAINING, memory_order_relaxed);
}

/* S6. draining -> what it was. release, as S1 and S2 */
static inline bool slab_undrained(struct slab *slab)
{
    bool whole = atomic_load_explicit(&slab->populated, memory_order_relaxed) == slab->bytes;

    return slab_move(slab, SLAB_DRAINING, whole ? SLAB_POPULATED : SLAB_PLACED, memory_order_release);
}

/*
 * S7. draining and registered nowhere -> leaving. No ring can register it any more (S3), so from here on its memory may
 * go (R20). acquire: with S4
 */
static inline bool slab_leaves(struct slab *slab)
{
    uint32_t word = SLAB_DRAINING;

    return atomic_compare_exchange_strong_explicit(&slab->word, &word, SLAB_LEAVING, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* S7 taken back: the system did not take the memory. */
static inline bool slab_stays(struct slab *slab)
{
    return slab_move(slab, SLAB_LEAVING, SLAB_DRAINING, memory_order_release);
}

/* S8. leaving -> reserved. release: it is empty for who places it */
static inline bool slab_left(struct slab *slab)
{
    return slab_move(slab, SLAB_LEAVING, SLAB_RESERVED, memory_order_release);
}

/* ---- slab.c ---- */

/*
 * Slab size for a pool: 2 MiB below 512 MiB, 32 MiB from there, larger once 16,384 slabs would not do. An open makes it
 * 1 GiB for 32 GiB or more where hugetlb pages of that size are free.
 */
size_t bpi_slab_bytes_for(uint64_t pool_bytes);

/* Reserve address space for bytes (a multiple of 4096, up to 4 TiB). 0, -ENOMEM, -EINVAL. */
int bpi_slabs_open(struct slabs *, uint64_t bytes, enum slab_huge);
void bpi_slabs_close(struct slabs *);

/*
 * Place the lowest reserved slab on a node: makes it accessible, chooses its backing (hugetlb, then THP, then
 * 4 KiB pages, each tried for real), binds it. Populates nothing but what the trial of hugetlb needs; a slab that had
 * memory before gets all of its hugetlb pages, since a stale pointer that came first could not be told that there are
 * none. `most`: bytes that may be populated now; hugetlb, which takes a whole slab from the system, is not tried for less.
 * The slab's number, or -ENOSPC (none is reserved), or what the system answered; the slab then stays reserved. A bind
 * that is refused is no error: bind_reason says so.
 *
 * What is less than a whole huge page at the pool's end gets small pages, so that the pool never takes more than was
 * asked for. With SLAB_HUGE_ON a slab that gets no huge pages is an error (-ENOTSUP), reason in huge_reason; that end
 * is exempt unless it is the whole pool.
 */
int bpi_slab_place(struct slabs *, const struct topology *, unsigned node, size_t most);

/*
 * Populate the next part of a placed slab, at most `most` bytes (a multiple of 4096): up to the end of a piece, or of the
 * slab. Bytes populated, 0 when there is nothing more to populate, or a negative errno and nothing changed: -ENOMEM,
 * -ENOTSUP (SLAB_HUGE_ON), -EINVAL (not placed), or what else the system said. A hugetlb slab that gets no more pages
 * goes on with the next backing. The first piece on transparent huge pages is looked at: if the kernel gave small pages
 * after all, the slab steps down too. What came from another node than the slab's is told in slab->found, or, if the slabs
 * are bound, goes back at once (-ENOMEM). A piece of which only a part is allowed is on small pages, and not on hugetlb.
 */
long bpi_slab_populate(struct slabs *, unsigned slab, size_t most);

/*
 * The system put the memory of a placed slab that has just begun on this node, whatever was asked for: the slab is that
 * node's from now on. The caller is the one that populates it.
 */
void bpi_slab_rehome(struct slabs *, unsigned slab, unsigned node);

/*
 * From draining to leaving, where nothing but release can come of it: the caller knows that no frame of it is out. 0;
 * -EBUSY: a ring has it registered; -EINVAL: it does not drain.
 */
int bpi_slab_leave(struct slabs *, unsigned slab);
/*
 * Give the memory of a leaving slab back to the system; it is reserved again, readable as zeros. 0; -EINVAL: it does not
 * leave; -ENOMEM: the system could not, it is leaving still.
 */
int bpi_slab_release(struct slabs *, unsigned slab);

#endif
