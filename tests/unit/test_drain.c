/* SPDX-License-Identifier: MIT */
/*
 * Memory that goes back: the states of a slab and what is not allowed in each, slabs that drain while frames are out,
 * memory that a ring has registered and that must not go (R20), pointers that outlive it, and a limit below the maximum.
 */
#include "memory_probe.h"
#include "numa/frames.h"
#include "numa/node.h"

#include <pthread.h>

static struct topology topology;

static void setup(void)
{
    cr_assert_eq(bpi_topology_open(&topology), 0);
}

static void teardown(void)
{
    bpi_topology_close(&topology);
}

TestSuite(drain, .init = setup, .fini = teardown);

/* ---- an mmap that fails ---- */

static _Atomic bool no_mapping; /* over what is there */

void *mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset)
{
    if (no_mapping && (flags & MAP_FIXED)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, bytes, access, flags, fd, offset); /* NOLINT: an address */
}

/* ---- helpers ---- */

static struct frames *open_frames(uint64_t bytes, enum slab_huge huge)
{
    struct frames *frames = NULL;

    cr_assert_eq(bpi_frames_open(&topology, bytes, huge, &frames), 0);
    frames->slabs.hugetlb_off = true;
    return frames;
}

static struct frames_stats stats_of(const struct frames *frames)
{
    struct frames_stats stats;

    bpi_frames_stats(frames, &stats);
    return stats;
}

static char *memory_of(const struct frames *frames, uint32_t frame)
{
    return bpi_frames_base(frames) + (size_t)frame * PAGE;
}

static size_t resident_of(const struct frames *frames)
{
    return resident_bytes(bpi_frames_base(frames), bpi_frames_slab_count(frames) * frames->slabs.slab_bytes);
}

/* All of a pool, frame by frame; how many. */
static uint32_t take_all(struct frames *frames, uint32_t all[])
{
    uint32_t count = 0;
    int got;

    while ((got = bpi_frames_alloc_many(frames, 0, all + count, 64)) > 0)
        count += (uint32_t)got;
    cr_assert_eq(got, -ENOMEM);
    return count;
}

/* ---- the states ---- */

enum step { PLACED, COMPLETED, REGISTERED, UNREGISTERED, DRAINED, UNDRAINED, LEAVES, STAYS, LEFT, STEPS };

/* Whether it was done. */
static bool do_step(struct slab *slab, enum step step)
{
    switch (step) {
    case PLACED:
        return slab_placed(slab);
    case COMPLETED:
        return slab_completed(slab);
    case REGISTERED:
        return slab_registered(slab) == 0;
    case UNREGISTERED:
        return slab_unregistered(slab) == 0;
    case DRAINED:
        return slab_drained(slab);
    case UNDRAINED:
        return slab_undrained(slab);
    case LEAVES:
        return slab_leaves(slab);
    case STAYS:
        return slab_stays(slab);
    case LEFT:
        return slab_left(slab);
    default:
        return false;
    }
}

Test(drain, every_step_from_every_state)
{
    enum { R = SLAB_RESERVED, P = SLAB_PLACED, F = SLAB_POPULATED, D = SLAB_DRAINING, L = SLAB_LEAVING, NO = 99 };
    static const int to[STEPS][5] = {
        [PLACED] = {P, NO, NO, NO, NO},        [COMPLETED] = {NO, F, NO, NO, NO}, [REGISTERED] = {NO, NO, F, NO, NO},
        [UNREGISTERED] = {NO, NO, NO, NO, NO}, /* none has it */
        [DRAINED] = {NO, D, D, NO, NO},        [UNDRAINED] = {NO, NO, NO, P, NO}, [LEAVES] = {NO, NO, NO, L, NO},
        [STAYS] = {NO, NO, NO, NO, D},         [LEFT] = {NO, NO, NO, NO, R},
    };

    for (int step = 0; step < STEPS; step++)
        for (uint32_t state = 0; state < 5; state++) {
            struct slab slab = {.word = state, .bytes = 2 * MIB, .populated = MIB};
            int expected = to[step][state];
            cr_assert_eq(do_step(&slab, (enum step)step), expected != NO, "step %d from %u", step, state);
            cr_assert_eq((int)slab_state(&slab), expected == NO ? (int)state : expected, "step %d from %u", step,
                         state);
            cr_assert_eq(slab_rings(&slab), step == REGISTERED && expected != NO);
        }

    /* populated comes back populated; rings stay counted through all of it, and hold what drains */
    struct slab slab = {.word = SLAB_POPULATED, .bytes = MIB, .populated = MIB};
    cr_assert_eq(slab_registered(&slab), 0);
    cr_assert_eq(slab_registered(&slab), 0);
    cr_assert(slab_drained(&slab));
    cr_assert_eq(slab_registered(&slab), -EBUSY);
    cr_assert(!slab_leaves(&slab));
    cr_assert_eq(slab_unregistered(&slab), 0);
    cr_assert(!slab_leaves(&slab));
    cr_assert(slab_undrained(&slab));
    cr_assert_eq(slab_state(&slab), SLAB_POPULATED);
    cr_assert_eq(slab_rings(&slab), 1u);
    cr_assert(slab_drained(&slab));
    cr_assert_eq(slab_unregistered(&slab), 0);
    cr_assert_eq(slab_unregistered(&slab), -EINVAL);
    cr_assert(slab_leaves(&slab));
    cr_assert_eq(slab_registered(&slab), -EBUSY);
    struct slab placed = {.word = SLAB_PLACED, .bytes = MIB};
    cr_assert_eq(slab_registered(&placed), -EAGAIN);
}

/* ---- what a ring has ---- */

Test(drain, registered_memory_stays_whatever_is_tried)
{
    struct frames *frames = open_frames(4 * MIB, SLAB_HUGE_TRY);
    uint32_t first;

    cr_assert_eq(bpi_frames_slab_register(frames, 0), -EBUSY, "no memory to register");
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    memset(memory_of(frames, first), 0x3c, 2 * MIB);
    cr_assert_eq(bpi_frames_slab_register(frames, 0), 0);
    cr_assert_eq(bpi_frames_slab_register(frames, 0), 0);
    bpi_frames_free(frames, first, 9);

    /* not by the front door, not by the layer below, and not by being placed or populated again */
    cr_assert_eq(bpi_slab_leave(&frames->slabs, 0), -EINVAL);
    cr_assert_eq(bpi_slab_release(&frames->slabs, 0), -EINVAL);
    cr_assert_eq(bpi_frames_drain_end(frames, 0), -EINVAL);
    cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
    for (unsigned rings = 2; rings > 0; rings--) {
        cr_assert_eq(bpi_frames_drain_left(frames, 0), 0);
        cr_assert_eq(bpi_frames_drain_end(frames, 0), -EBUSY);
        cr_assert_eq(bpi_slab_leave(&frames->slabs, 0), -EBUSY);
        cr_assert_eq(bpi_slab_release(&frames->slabs, 0), -EINVAL);
        cr_assert_eq(bpi_slab_populate(&frames->slabs, 0, SIZE_MAX), -EINVAL);
        cr_assert_eq(bpi_frames_slab_register(frames, 0), -EBUSY);
        cr_assert_eq(resident_of(frames), 2 * MIB);
        for (size_t i = 0; i < 2 * MIB; i += 997)
            cr_assert_eq(memory_of(frames, 0)[i], 0x3c);
        cr_assert(bpi_frames_check(frames));
        cr_assert_eq(bpi_frames_slab_unregister(frames, 0), 0);
    }
    cr_assert_eq(bpi_frames_slab_unregister(frames, 0), -EINVAL);
    cr_assert_eq(bpi_frames_drain_end(frames, 0), 0);
    cr_assert_eq(resident_of(frames), 0u);
    cr_assert_eq(bpi_frames_slab_register(frames, 0), -EBUSY);
    bpi_frames_close(frames);
}

/* ---- a slab goes and comes back ---- */

Test(drain, frames_come_back_and_memory_goes)
{
    enum { MANY = 3 * 512 };
    struct frames *frames = open_frames(6 * MIB, SLAB_HUGE_TRY);
    static uint32_t all[MANY + 64], rest[MANY + 64];
    uint32_t first;
    struct frames_stats stats;

    cr_assert_eq(bpi_frames_drain_begin(frames, 0), -EINVAL, "reserved");
    cr_assert_eq(bpi_frames_drain_begin(frames, 3), -EINVAL, "no such slab");
    cr_assert_eq(take_all(frames, all), MANY);
    for (uint32_t i = 0; i < MANY; i++)
        memset(memory_of(frames, all[i]), 0x11, PAGE);
    /* of the second slab a hundred frames are free when it begins, in crumbs and one block */
    bpi_frames_free(frames, 512 + 64, 6);
    for (uint32_t f = 513; f < 512 + 64; f += 2)
        bpi_frames_free(frames, f, 0);
    bpi_frames_free(frames, 510, 1);
    cr_assert_eq(bpi_frames_drain_begin(frames, 1), 0);
    cr_assert_eq(bpi_frames_drain_begin(frames, 1), -EALREADY);
    cr_assert_eq(bpi_frames_drain_left(frames, 1), 512 - 64 - 32);
    cr_assert_eq(bpi_frames_drain_left(frames, 0), -EINVAL);
    cr_assert(bpi_frames_draining(frames, 512) && bpi_frames_draining(frames, 1023));
    cr_assert(!bpi_frames_draining(frames, 511) && !bpi_frames_draining(frames, 1024));
    cr_assert(!bpi_frames_slab_ready(frames, 1), "nobody registers it now");
    stats = stats_of(frames);
    cr_assert_eq(stats.slabs_draining, 1u);
    cr_assert_eq(stats.frames_free, 64u + 32 + 2, "what is aside holds no page");
    cr_assert(bpi_frames_check(frames));

    /* nothing of it is handed out, neither what was free nor what comes now; others go round as ever */
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, rest, MANY), 2);
    cr_assert(rest[0] == 510 && rest[1] == 511);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t mixed[4] = {i * 2, 512 + i * 2, 1024 + i, 512 + 128 + i};
        bpi_frames_free_many(frames, mixed, i < 32 ? 4 : 1);
    }
    cr_assert_eq(bpi_frames_drain_left(frames, 1), 512 - 64 - 32 - 64);
    cr_assert_eq(bpi_frames_drain_end(frames, 1), -EBUSY);
    for (int got, sum = 0;; sum += got) {
        got = bpi_frames_alloc_many(frames, 0, rest, 32);
        if (got < 0) {
            cr_assert_eq(sum, 40 + 32);
            break;
        }
        for (int i = 0; i < got; i++)
            cr_assert(rest[i] < 512 || rest[i] >= 1024);
    }
    cr_assert(bpi_frames_check(frames));

    for (uint32_t f = 512 + 160; f < 1024; f++)
        bpi_frames_free(frames, f, 0);
    cr_assert_eq(bpi_frames_drain_left(frames, 1), 0);
    cr_assert_eq(bpi_frames_drain_end(frames, 1), 0);
    cr_assert_eq(bpi_frames_drain_end(frames, 1), -EINVAL);
    cr_assert_eq(bpi_frames_drain_cancel(frames, 1), -EINVAL);
    cr_assert_eq(bpi_frames_drain_left(frames, 1), -EINVAL);
    cr_assert_eq(resident_of(frames), 4 * MIB);
    for (size_t i = 0; i < 2 * MIB; i += 511)
        cr_assert_eq(memory_of(frames, 512)[i], 0, "a stale pointer reads zeros");
    cr_assert_eq(memory_of(frames, 511)[PAGE - 1], 0x11);
    cr_assert_eq(memory_of(frames, 1024)[0], 0x11);
    cr_assert(gone_after_fork(memory_of(frames, 512)));
    stats = stats_of(frames);
    cr_assert_eq(stats.frames_populated, 1024u);
    cr_assert_eq(stats.frames_free, 0u);
    cr_assert_eq(stats.slabs[0] + stats.slabs[1] + stats.slabs[2], 2u);
    cr_assert_eq(stats.slabs_draining, 0u);
    cr_assert(bpi_frames_check(frames));

    /* and is memory again when it is wanted */
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(first, 512u);
    memset(memory_of(frames, 512), 0x22, 2 * MIB);
    cr_assert(bpi_frames_slab_ready(frames, 1));
    cr_assert(gone_after_fork(memory_of(frames, 512)));
    if (thp_enabled())
        cr_assert_geq(mapping_of(memory_of(frames, 512)).huge, 2048u);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

Test(drain, cancelled_it_is_as_if_nothing_had_been)
{
    static uint32_t all[64 * 512];
    struct frames *frames = open_frames(512 * MIB, SLAB_HUGE_OFF); /* slabs of 32 MiB */
    uint32_t first;

    /* a slab that is begun, with frames out, drained and cancelled: it grows on where it was */
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, all, 700), 512);
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, all + 512, 188), 188);
    cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
    cr_assert_eq(bpi_frames_drain_left(frames, 0), 700);
    bpi_frames_free_many(frames, all + 512, 188);
    cr_assert_eq(bpi_frames_drain_left(frames, 0), 512);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(first, 8192u, "another slab is begun meanwhile");
    bpi_frames_free(frames, first, 9);
    cr_assert_eq(bpi_frames_drain_cancel(frames, 0), 0);
    cr_assert_eq(bpi_frames_drain_cancel(frames, 0), -EINVAL);
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(first, 512u, "its second piece is whole again");
    bpi_frames_free_many(frames, all, 512);
    for (unsigned i = 0; i < 31; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(stats_of(frames).frames_populated, 2 * 16 * 512u, "both slabs, nothing of a third one");
    cr_assert(bpi_frames_slab_ready(frames, 0) && bpi_frames_slab_ready(frames, 1));

    /* the system cannot take the memory: nothing is lost, and it can be tried again */
    for (uint32_t f = 0; f < 8192; f += 512)
        bpi_frames_free(frames, f, 9);
    cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
    no_mapping = true;
    cr_assert_eq(bpi_frames_drain_end(frames, 0), -ENOMEM);
    no_mapping = false;
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(bpi_frames_drain_left(frames, 0), 0);
    cr_assert_eq(stats_of(frames).frames_free, 8192u);
    cr_assert_eq(bpi_frames_drain_cancel(frames, 0), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(first, 0u);
    bpi_frames_free(frames, first, 9);
    cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
    cr_assert_eq(bpi_frames_drain_end(frames, 0), 0);
    cr_assert_eq(resident_of(frames), 32 * MIB);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

/* A slab that one node gave back is another one's when that needs it. */
Test(drain, given_back_by_one_node_placed_on_another)
{
    uint32_t first, block[4];

    bpi_topology_close(&topology);
    setenv("HWLOC_SYNTHETIC", "numa:4 core:1 pu:1", 1);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.node_count, 4u);
    struct frames *frames = open_frames(8 * MIB, SLAB_HUGE_TRY);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 1, 9, &block[i]), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 2, 9, &first), -ENOMEM);
    cr_assert_eq(bpi_frames_drain_begin(frames, 2), 0);
    bpi_frames_free(frames, block[2], 9);
    cr_assert_eq(bpi_frames_alloc(frames, 2, 9, &first), -ENOMEM);
    cr_assert_eq(bpi_frames_drain_end(frames, 2), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 2, 9, &first), 0);
    cr_assert_eq(first, block[2]);
    cr_assert_eq(bpi_frames_node(frames, first), 2u);
    cr_assert_eq(stats_of(frames).spilled, 0u);
    bpi_frames_free(frames, first, 9);
    cr_assert_eq(bpi_frames_alloc(frames, 1, 9, &first), 0); /* now it is node 2's, and lent */
    cr_assert_eq(stats_of(frames).spilled, 512u);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

/* ---- a limit below the maximum ---- */

Test(drain, limit_holds_to_the_frame_and_can_be_raised)
{
    static uint32_t all[5 * 512];
    static const uint64_t limit[] = {PAGE, MIB - PAGE, MIB, 2 * MIB, 3 * MIB + 7 * PAGE, 4 * MIB, 5 * MIB - PAGE};

    for (unsigned huge = 0; huge < 2; huge++) {
        struct frames *frames = open_frames(5 * MIB, huge ? SLAB_HUGE_TRY : SLAB_HUGE_OFF);
        uint32_t count = 0;
        for (size_t i = 0; i < sizeof(limit) / sizeof(limit[0]); i++) {
            bpi_frames_limit(frames, limit[i]);
            count += take_all(frames, all + count);
            cr_assert_eq(count, limit[i] / PAGE);
            cr_assert_eq(resident_of(frames), limit[i], "%zu of %zu", resident_of(frames), (size_t)limit[i]);
            cr_assert_eq(stats_of(frames).frames_limit, limit[i] / PAGE);
            cr_assert(bpi_frames_check(frames));
        }
        bpi_frames_limit(frames, UINT64_MAX / 2);
        count += take_all(frames, all + count);
        cr_assert_eq(count, bpi_frames_total(frames));
        /* lower than what there is: what there is stays; and given back it is not had again */
        bpi_frames_limit(frames, 2 * MIB);
        bpi_frames_free_many(frames, all, count);
        cr_assert_eq(take_all(frames, all), 5 * 256u);
        cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
        cr_assert_eq(bpi_frames_drain_begin(frames, 1), 0);
        bpi_frames_free_many(frames, all, count);
        cr_assert_eq(bpi_frames_drain_end(frames, 0), 0);
        cr_assert_eq(take_all(frames, all), 256u);
        cr_assert_eq(bpi_frames_drain_end(frames, 1), 0);
        cr_assert_eq(take_all(frames, all), 256u, "the third slab's MiB is free, and one MiB is new");
        cr_assert_eq(resident_of(frames), 2 * MIB);
        cr_assert(bpi_frames_check(frames));
        bpi_frames_close(frames);
    }
}

/* ---- pointers that outlive the memory ---- */

struct reader {
    const char *at;
    size_t bytes;
    _Atomic bool stop;
    _Atomic uint64_t reads, odd;
};

/* Zeros or what was written, at any moment; anything else, a signal too, is wrong. */
static void *read_on(void *arg)
{
    struct reader *me = arg;

    for (size_t i = 0; !me->stop; i = (i + 4091) % me->bytes) {
        char seen = __atomic_load_n(&me->at[i], __ATOMIC_RELAXED);
        me->odd += seen != 0 && seen != 0x55;
        me->reads++;
    }
    return NULL;
}

static void read_while_it_goes(struct frames *frames, unsigned rounds, size_t bytes)
{
    struct reader reader = {.bytes = bytes};
    pthread_t thread;
    uint32_t first, slabs = bpi_frames_slab_count(frames);

    for (unsigned round = 0; round < rounds; round++) {
        uint32_t blocks = 0;
        while (bpi_frames_alloc(frames, 0, 9, &first) == 0) {
            for (size_t i = 0; i < 2 * MIB; i += 4096 / 4)
                __atomic_store_n(&memory_of(frames, first)[i], 0x55, __ATOMIC_RELAXED);
            blocks++;
        }
        cr_assert_eq(blocks, bpi_frames_total(frames) / 512);
        if (!round) { /* it has been memory by now */
            reader.at = bpi_frames_base(frames);
            cr_assert_eq(pthread_create(&thread, NULL, read_on, &reader), 0);
        }
        for (uint32_t f = 0; f < blocks * 512; f += 512)
            bpi_frames_free(frames, f, 9);
        for (unsigned i = 0; i < slabs; i++) {
            cr_assert_eq(bpi_frames_drain_begin(frames, i), 0);
            cr_assert_eq(bpi_frames_drain_end(frames, i), 0);
        }
        cr_assert_eq(stats_of(frames).frames_populated, 0u);
    }
    reader.stop = true;
    pthread_join(thread, NULL);
    cr_assert_gt(reader.reads, 0u);
    cr_assert_eq(reader.odd, 0u);
}

Test(drain, stale_pointers_read_old_bytes_or_zeros)
{
    struct frames *frames = open_frames(16 * MIB, SLAB_HUGE_TRY);

    read_while_it_goes(frames, 20, 16 * MIB);
    bpi_frames_close(frames);
    frames = open_frames(8 * MIB, SLAB_HUGE_OFF);
    read_while_it_goes(frames, 10, 8 * MIB);
    bpi_frames_close(frames);
}

Test(drain, hugetlb_pages_go_back_to_their_pool)
{
    struct frames *frames;

    hugetlb_want(8);
    frames = open_frames(16 * MIB, SLAB_HUGE_TRY);
    frames->slabs.hugetlb_off = false;
    uint32_t first;
    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    if (!stats_of(frames).slabs[SLAB_HUGETLB])
        cr_skip_test("somebody else took the hugetlb pages");
    bpi_frames_free(frames, first, 0);
    read_while_it_goes(frames, 20, 16 * MIB);
    cr_assert_eq(hugetlb_used(), 0u);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    cr_assert_eq(hugetlb_used(), 1u, "and are asked for again");
    bpi_frames_close(frames);

    /* A slab that comes back gets all its pages before anybody can see it: old pointers cannot find a gap. */
    frames = open_frames(512 * MIB, SLAB_HUGE_TRY);
    frames->slabs.hugetlb_off = false;
    bpi_frames_limit(frames, 8 * MIB);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    cr_assert_eq(stats_of(frames).slabs[SLAB_HUGETLB], 0u, "a slab that is not wanted whole takes none");
    bpi_frames_close(frames);
}

Test(drain, hugetlb_slab_that_comes_back_is_whole)
{
    uint32_t first;

    hugetlb_want(20);
    struct frames *frames = open_frames(512 * MIB, SLAB_HUGE_TRY);
    frames->slabs.hugetlb_off = false;
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    if (!stats_of(frames).slabs[SLAB_HUGETLB])
        cr_skip_test("somebody else took the hugetlb pages");
    cr_assert_eq(stats_of(frames).frames_populated, 512u);
    bpi_frames_free(frames, first, 9);
    cr_assert_eq(bpi_frames_drain_begin(frames, 0), 0);
    cr_assert_eq(bpi_frames_drain_end(frames, 0), 0);
    cr_assert_eq(hugetlb_used(), 0u);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(stats_of(frames).frames_populated, 16 * 512u);
    cr_assert_eq(hugetlb_used(), 16u);
    cr_assert(bpi_frames_slab_ready(frames, 0));
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
    cr_assert_eq(hugetlb_used(), 0u);
}
