/* SPDX-License-Identifier: MIT */
/*
 * Slabs: address space that costs nothing, memory that comes in pieces, and every step down (hugetlb, transparent huge
 * pages, small pages) with its reason and without a signal.
 */
#include "memory_probe.h"
#include "numa/slab.h"

#include <pthread.h>
#include <sys/prctl.h>

static struct topology topology; /* the real one */

static void setup(void)
{
    cr_assert_eq(bpi_topology_open(&topology), 0);
}

static void teardown(void)
{
    bpi_topology_close(&topology);
}

TestSuite(slab, .init = setup, .fini = teardown);

/* Open, with hugetlb left out unless the test is about it: the machine may have some. */
static void open_slabs(struct slabs *slabs, uint64_t bytes, enum slab_huge huge, bool hugetlb)
{
    cr_assert_eq(bpi_slabs_open(slabs, bytes, huge), 0);
    slabs->hugetlb_off = !hugetlb;
}

static char *at_slab(const struct slabs *slabs, unsigned slab)
{
    return slabs->base + slab * slabs->slab_bytes;
}

static void populate_all(struct slabs *slabs, unsigned slab)
{
    long got;
    size_t sum = slabs->slab[slab].populated;

    while ((got = bpi_slab_populate(slabs, slab, SIZE_MAX)) > 0)
        sum += (size_t)got;
    cr_assert_eq(got, 0, "populate: %ld", got);
    cr_assert_eq(sum, slabs->slab[slab].bytes);
    cr_assert_eq(slab_state(&slabs->slab[slab]), SLAB_POPULATED);
}

Test(slab, sizes_and_arguments)
{
    static const struct {
        uint64_t pool;
        size_t slab;
    } size[] = {{1 * MIB, 2 * MIB},
                {512 * MIB - PAGE, 2 * MIB},
                {512 * MIB, 32 * MIB},
                {16384ull * 32 * MIB, 32 * MIB},
                {16384ull * 32 * MIB + PAGE, 64 * MIB},
                {1ull << 42, 256 * MIB}};
    struct slabs slabs;

    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        cr_assert_eq(bpi_slab_bytes_for(size[i].pool), size[i].slab, "%zu", i);
    cr_assert_eq(bpi_slabs_open(&slabs, 0, SLAB_HUGE_TRY), -EINVAL);
    cr_assert_eq(bpi_slabs_open(&slabs, PAGE - 1, SLAB_HUGE_TRY), -EINVAL);
    cr_assert_eq(bpi_slabs_open(&slabs, MIB + 1, SLAB_HUGE_TRY), -EINVAL);
    cr_assert_eq(bpi_slabs_open(&slabs, (1ull << 42) + PAGE, SLAB_HUGE_TRY), -EINVAL);

    /* 4 TiB of address space, and none of it memory */
    size_t before = rss_bytes();
    cr_assert_eq(bpi_slabs_open(&slabs, 1ull << 42, SLAB_HUGE_TRY), 0);
    cr_assert_eq(slabs.slab_count, 16384u);
    cr_assert_eq((uintptr_t)slabs.base % slabs.slab_bytes, 0u);
    cr_assert_geq(slabs.base, slabs.map);
    cr_assert_leq(slabs.base + (1ull << 42), slabs.map + slabs.reserved);
    cr_assert_lt(rss_bytes(), before + 4 * MIB);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), -EINVAL, "a reserved slab is not populated");
    cr_assert_eq(bpi_slab_place(&slabs, &topology, topology.node_count, SIZE_MAX), -EINVAL);
    bpi_slabs_close(&slabs);
    bpi_slabs_close(&slabs); /* once more does no harm */
}

Test(slab, life_of_a_pool_that_ends_in_half_a_piece)
{
    struct slabs slabs;
    const size_t bytes = 5 * MIB - PAGE;

    open_slabs(&slabs, bytes, SLAB_HUGE_TRY, false);
    cr_assert_eq(slabs.slab_count, 3u);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), (int)i);
        cr_assert_eq(slab_state(&slabs.slab[i]), SLAB_PLACED);
        cr_assert_eq(resident_bytes(slabs.base, 3 * slabs.slab_bytes), i * 2 * MIB, "placing populates nothing");
        populate_all(&slabs, i);
        cr_assert_eq(bpi_slab_populate(&slabs, i, SIZE_MAX), 0);
    }
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), -ENOSPC);
    cr_assert_eq(slabs.slab[2].bytes, MIB - PAGE);
    cr_assert_eq(resident_bytes(slabs.base, 3 * slabs.slab_bytes), bytes, "not a page more than the pool");
    memset(slabs.base, 0xa5, bytes);
    cr_assert_eq(resident_bytes(slabs.base, 3 * slabs.slab_bytes), bytes);

    if (thp_enabled()) {
        cr_assert_eq(slabs.backing_count[SLAB_THP], 2u);
        cr_assert_eq(slabs.backing_count[SLAB_SMALL], 1u, "the end of the pool");
        struct mapping head = mapping_of(slabs.base);
        cr_assert_eq(head.huge, 4096u);
        cr_assert(has_flag(&head, "hg"), "flags:%s", head.flags);
    }
    struct mapping tail = mapping_of(at_slab(&slabs, 2));
    cr_assert(has_flag(&tail, "nh"), "flags:%s", tail.flags);
    cr_assert(has_flag(&tail, "dc"), "flags:%s", tail.flags);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(gone_after_fork(at_slab(&slabs, i)));

    /* past the end there is no access: the kernel cannot read it either */
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], slabs.base + bytes - 1, 1), 1);
    cr_assert_eq(write(ends[1], slabs.base + bytes, 1), -1);
    cr_assert_eq(errno, EFAULT);
    close(ends[0]);
    close(ends[1]);
    bpi_slabs_close(&slabs);
}

Test(slab, huge_off_on_and_impossible)
{
    struct slabs slabs;

    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_OFF, true);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    populate_all(&slabs, 0);
    struct mapping mapping = mapping_of(slabs.base);
    cr_assert(has_flag(&mapping, "nh"));
    cr_assert_eq(mapping.huge + mapping.hugetlb, 0u);
    cr_assert_eq(slabs.backing_count[SLAB_SMALL], 1u);
    cr_assert_str_empty(slabs.huge_reason, "nothing stepped down");
    bpi_slabs_close(&slabs);

    /* no huge pages for this process: try steps down and says so, on fails, and nothing is used up by that */
    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_TRY, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    populate_all(&slabs, 0);
    cr_assert_eq(slabs.backing_count[SLAB_SMALL], 1u);
    cr_assert(strstr(slabs.huge_reason, "for this process"), "%s", slabs.huge_reason);
    bpi_slabs_close(&slabs);

    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_ON, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), -ENOTSUP);
    cr_assert_str_not_empty(slabs.huge_reason);
    cr_assert_eq(slabs.slab_next, 0u);
    cr_assert_eq(slab_state(&slabs.slab[0]), SLAB_RESERVED);
    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    if (thp_enabled()) {
        cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0, "%s", slabs.huge_reason);
        populate_all(&slabs, 0);
        cr_assert_eq(mapping_of(slabs.base).huge, 2048u);
    }
    bpi_slabs_close(&slabs);

    /* less than a huge page altogether: cannot be on; an end of that size can */
    open_slabs(&slabs, MIB, SLAB_HUGE_ON, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), -ENOTSUP);
    cr_assert(strstr(slabs.huge_reason, "smaller"), "%s", slabs.huge_reason);
    bpi_slabs_close(&slabs);
    if (!thp_enabled())
        cr_skip_test("no transparent huge pages here");
    open_slabs(&slabs, 3 * MIB, SLAB_HUGE_ON, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 1);
    cr_assert_str_empty(slabs.huge_reason);
    bpi_slabs_close(&slabs);
}

Test(slab, small_pages_where_huge_ones_were_advised)
{
    struct slabs slabs;

    if (!thp_enabled())
        cr_skip_test("no transparent huge pages here");
    bend(PROBE_COLLAPSE, ENOMEM, 0, 1);
    open_slabs(&slabs, 6 * MIB, SLAB_HUGE_TRY, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 1);
    cr_assert_eq(slabs.backing_count[SLAB_THP], 2u);
    populate_all(&slabs, 0);
    cr_assert_eq(slabs.backing_count[SLAB_THP], 1u);
    cr_assert_eq(slabs.backing_count[SLAB_SMALL], 1u);
    cr_assert(strstr(slabs.huge_reason, "ENOMEM"), "%s", slabs.huge_reason);
    populate_all(&slabs, 1); /* the next slab is looked at again, and is what was asked */
    cr_assert_eq(bent.seen, 2);
    cr_assert_eq(slabs.backing_count[SLAB_THP], 1u);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 2);
    populate_all(&slabs, 2); /* shown once, not looked at any more */
    cr_assert_eq(bent.seen, 2);
    cr_assert_eq(slabs.backing_count[SLAB_THP], 2u);
    cr_assert_eq(mapping_of(slabs.base).huge, 6144u, "a collapse of what is huge changes nothing");
    bpi_slabs_close(&slabs);

    bend(PROBE_COLLAPSE, ENOMEM, 0, 1);
    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_ON, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), -ENOTSUP);
    cr_assert_str_not_empty(slabs.huge_reason);
    cr_assert_eq(slabs.slab[0].populated, 0u);
    cr_assert_eq(resident_bytes(slabs.base, slabs.slab_bytes), 0u);
    populate_all(&slabs, 0);
    bpi_slabs_close(&slabs);
}

Test(slab, refused_and_interrupted_population)
{
    struct slabs slabs;
    enum { PIECES = 16 };

    open_slabs(&slabs, 512 * MIB, SLAB_HUGE_TRY, false);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);

    bend(PROBE_POPULATE, ENOMEM, 0, 1); /* nothing changes, and it can be had later */
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), -ENOMEM);
    cr_assert_eq(bent.seen, 1);
    cr_assert_eq(slabs.slab[0].populated, SLAB_PIECE);
    cr_assert_eq(resident_bytes(slabs.base, slabs.slab_bytes), SLAB_PIECE);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);

    bend(PROBE_POPULATE, EAGAIN, 0, 5); /* goes on by itself */
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);
    cr_assert_eq(bent.seen, 6);
    bend(PROBE_POPULATE, EINTR, 0, 1000); /* but not for ever */
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), -EINTR);
    cr_assert_lt(bent.seen, 100);

    bend(PROBE_POPULATE, EINVAL, 0, 1000); /* an old kernel: touched instead */
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);
    cr_assert_eq(resident_bytes(slabs.base, slabs.slab_bytes), 4 * SLAB_PIECE);
    bend(0, 0, 0, 0);
    for (unsigned i = 4; i < PIECES; i++) {
        cr_assert_eq(slab_state(&slabs.slab[0]), SLAB_PLACED);
        cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);
    }
    cr_assert_eq(slab_state(&slabs.slab[0]), SLAB_POPULATED);
    bpi_slabs_close(&slabs);
}

Test(slab, bind_that_is_refused_is_told)
{
    struct slabs slabs;
    struct topology four;

    if (topology.node_count > 1)
        cr_skip_test("the absent nodes of this test may exist here");
    setenv("HWLOC_SYNTHETIC", "numa:4 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1); /* calls are real, so the absent node is refused */
    cr_assert_eq(bpi_topology_open(&four), 0);
    cr_assert_eq(four.node_count, 4u);
    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_TRY, false);
    cr_assert_eq(bpi_slab_place(&slabs, &four, 0, SIZE_MAX), 0);
    cr_assert_str_empty(slabs.bind_reason);
    cr_assert_eq(bpi_slab_place(&slabs, &four, 3, SIZE_MAX), 1);
    cr_assert(strstr(slabs.bind_reason, "node 3"), "%s", slabs.bind_reason);
    cr_assert_eq(slabs.slab[1].node, 3);
    populate_all(&slabs, 1);
    bpi_slabs_close(&slabs);
    bpi_topology_close(&four);
}

/* ---- hugetlb ---- */

Test(slab, hugetlb_until_it_is_used_up)
{
    struct slabs slabs;
    enum { PAGES = 6, SLABS = 10 };
    struct mapping mapping;

    hugetlb_want(PAGES);
    open_slabs(&slabs, SLABS * 2 * MIB, SLAB_HUGE_TRY, true);
    for (unsigned i = 0; i < SLABS; i++) {
        cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), (int)i);
        populate_all(&slabs, i);
        memset(at_slab(&slabs, i), (int)i + 1, 2 * MIB); /* a SIGBUS if it were not really there */
    }
    unsigned huge = slabs.backing_count[SLAB_HUGETLB];
    cr_assert(huge >= 1 && huge <= PAGES, "%u", huge); /* others may have taken some */
    cr_assert_eq(hugetlb_used(), huge);
    cr_assert_eq(slabs.backing_count[thp_enabled() ? SLAB_THP : SLAB_SMALL], SLABS - huge);
    cr_assert(strstr(slabs.huge_reason, "hugetlb"), "%s", slabs.huge_reason);
    for (unsigned i = 0; i < SLABS; i++) {
        mapping = mapping_of(at_slab(&slabs, i));
        cr_assert_eq(has_flag(&mapping, "ht"), slabs.slab[i].backing == SLAB_HUGETLB, "slab %u:%s", i, mapping.flags);
        cr_assert(has_flag(&mapping, "dc"), "slab %u:%s", i, mapping.flags);
        cr_assert(gone_after_fork(at_slab(&slabs, i)));
        cr_assert_eq(at_slab(&slabs, i)[2 * MIB - 1], (char)(i + 1));
    }
    bpi_slabs_close(&slabs);
    cr_assert_eq(hugetlb_used(), 0u);
}

Test(slab, hugetlb_that_runs_out_inside_a_slab)
{
    struct slabs slabs;
    char *middle;

    hugetlb_want(40); /* enough for another slab */
    open_slabs(&slabs, 512 * MIB, SLAB_HUGE_TRY, true);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    if (!slabs.backing_count[SLAB_HUGETLB])
        cr_skip_test("somebody else took the hugetlb pages");
    cr_assert_eq(slabs.slab[0].populated, SLAB_PIECE, "the trial");
    cr_assert_str_empty(slabs.huge_reason);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);
    memset(slabs.base, 0x5a, 2 * SLAB_PIECE);

    /* what a limit of a cgroup or a node answers: promised, and not there */
    bend(PROBE_POPULATE, EFAULT, 0, 1);
    cr_assert_eq(bpi_slab_populate(&slabs, 0, SIZE_MAX), (long)SLAB_PIECE);
    cr_assert_eq(slabs.backing_count[SLAB_HUGETLB], 0u);
    cr_assert_eq(slabs.backing_count[thp_enabled() ? SLAB_THP : SLAB_SMALL], 1u);
    cr_assert(strstr(slabs.huge_reason, "EFAULT"), "%s", slabs.huge_reason);
    cr_assert_eq(hugetlb_used(), 2u);
    populate_all(&slabs, 0);
    memset(slabs.base + 2 * SLAB_PIECE, 0x77, slabs.slab_bytes - 2 * SLAB_PIECE);
    for (size_t i = 0; i < 2 * SLAB_PIECE; i += 512)
        cr_assert_eq(slabs.base[i], 0x5a, "what was there stays");
    middle = slabs.base + 2 * SLAB_PIECE;
    struct mapping mapping = mapping_of(middle);
    cr_assert(!has_flag(&mapping, "ht") && has_flag(&mapping, "dc"), "%s", mapping.flags);
    if (thp_enabled())
        cr_assert_geq(mapping.huge, 14 * 2048u);

    /* and not asked again */
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 1);
    cr_assert_neq(slabs.slab[1].backing, SLAB_HUGETLB);
    bpi_slabs_close(&slabs);
}

Test(slab, hugetlb_promised_and_then_refused)
{
    struct slabs slabs;

    hugetlb_want(4);
    open_slabs(&slabs, 4 * MIB, SLAB_HUGE_TRY, true);
    bend(PROBE_POPULATE, EFAULT, 0, 1);
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 0);
    cr_assert_neq(slabs.slab[0].backing, SLAB_HUGETLB);
    cr_assert(strstr(slabs.huge_reason, "promised") || strstr(slabs.huge_reason, "free"), "%s", slabs.huge_reason);
    cr_assert_eq(hugetlb_used(), 0u, "the trial is given back");
    cr_assert_eq(resident_bytes(slabs.base, 2 * MIB), 0u);
    populate_all(&slabs, 0);
    bpi_slabs_close(&slabs);
}

Test(slab, hugetlb_slab_with_an_end)
{
    struct slabs slabs;

    hugetlb_want(2);
    open_slabs(&slabs, 512 * MIB + 5 * MIB, SLAB_HUGE_TRY, false);
    cr_assert_eq(slabs.slab_count, 17u);
    for (int i = 0; i < 16; i++)
        cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), i);
    slabs.hugetlb_off = false;
    slabs.hugetlb_dry[0] = 0;
    cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), 16);
    if (!slabs.backing_count[SLAB_HUGETLB])
        cr_skip_test("somebody else took the hugetlb pages");
    populate_all(&slabs, 16);
    memset(at_slab(&slabs, 16), 1, 5 * MIB);
    cr_assert_eq(hugetlb_used(), 2u);
    struct mapping tail = mapping_of(at_slab(&slabs, 16) + 4 * MIB);
    cr_assert(has_flag(&tail, "nh") && has_flag(&tail, "dc") && !has_flag(&tail, "ht"), "%s", tail.flags);
    cr_assert_eq(tail.rss, 1024u);
    cr_assert_eq(resident_bytes(at_slab(&slabs, 16), slabs.slab_bytes), 5 * MIB);
    bpi_slabs_close(&slabs);
}

/* Tries all the time to map where the reservation is, as the kernel might let another thread of the host do: never
 * free. */
struct intruder {
    const struct slabs *slabs;
    _Atomic bool stop;
    _Atomic unsigned inside;
};

static void *intrude(void *arg)
{
    struct intruder *me = arg;

    for (unsigned i = 0; !me->stop; i = (i + 1) % me->slabs->slab_count)
        if (mmap(at_slab(me->slabs, i) + PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                 0) != MAP_FAILED)
            me->inside++;
    return NULL;
}

Test(slab, reservation_never_has_a_hole)
{
    struct slabs slabs;
    unsigned huge = 0;

    hugetlb_want(8);
    for (unsigned round = 0; round < 40; round++) {
        pthread_t thread;
        open_slabs(&slabs, 16 * MIB, SLAB_HUGE_TRY, true);
        struct intruder intruder = {.slabs = &slabs};
        cr_assert_eq(pthread_create(&thread, NULL, intrude, &intruder), 0);
        for (int i = 0; i < 8; i++) {
            cr_assert_eq(bpi_slab_place(&slabs, &topology, 0, SIZE_MAX), i);
            populate_all(&slabs, (unsigned)i);
        }
        huge += slabs.backing_count[SLAB_HUGETLB];
        intruder.stop = true;
        pthread_join(thread, NULL);
        cr_assert_eq(intruder.inside, 0u);
        bpi_slabs_close(&slabs);
    }
    cr_assert_gt(huge, 0u);
}
