/* SPDX-License-Identifier: MIT */
/*
 * Placement as the frames do it: whom a session of a node asks under each policy, on machines that are made up, and what
 * becomes of memory that the system puts on another node than was asked (made up as well: nodes that are not there).
 */
#include "memory_probe.h"
#include "numa/frames.h"
#include "numa/node.h"

static struct topology topology;

/* thissystem: calls are real, so that what is asked of nodes that are not there is answered by the one that is. */
static struct frames *open_nodes(const char *description, unsigned nodes, bool thissystem, uint64_t bytes)
{
    struct frames *frames = NULL;

    setenv("HWLOC_SYNTHETIC", description, 1);
    if (thissystem)
        setenv("HWLOC_THISSYSTEM", "1", 1);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.node_count, nodes, "hwloc did not take '%s'", description);
    cr_assert_eq(bpi_frames_open(&topology, bytes, SLAB_HUGE_TRY, &frames), 0);
    frames->slabs.hugetlb_off = true;
    return frames;
}

static void close_nodes(struct frames *frames)
{
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
    bpi_topology_close(&topology);
}

static struct frames_stats stats_of(const struct frames *frames)
{
    struct frames_stats stats;

    bpi_frames_stats(frames, &stats);
    return stats;
}

/* A block for a session of this node: on which node is it? -1: there is none. */
static int taken_from(struct frames *frames, unsigned node)
{
    uint32_t first;
    int err = bpi_frames_alloc(frames, node, 9, &first);

    cr_assert(err == 0 || err == -ENOMEM, "%d", err);
    return err ? -1 : (int)bpi_frames_node(frames, first);
}

Test(place, local_with_nodes_that_are_preferred)
{
    /* in a row: 0 1 2 3; the pool has 6 blocks, and no node more than 2 of them */
    struct frames *frames = open_nodes("numa:4(memory=4194304) core:1 pu:1", 4, false, 12 * MIB);
    static const bool named[4] = {false, true, false, true};
    static const int expected[2][7] = {{1, 1, 3, 3, 0, 0, -1}, {1, 1, 3, 3, 2, 2, -1}};

    bpi_frames_place(frames, FRAMES_LOCAL, named);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(taken_from(frames, 0), expected[0][i], "block %d", i);
    cr_assert_eq(stats_of(frames).spilled, 4u * 512, "what the nearest of the named ones did not have");
    close_nodes(frames);

    frames = open_nodes("numa:4(memory=4194304) core:1 pu:1", 4, false, 12 * MIB);
    bpi_frames_place(frames, FRAMES_LOCAL, named);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(taken_from(frames, 2), expected[1][i], "block %d", i);
    close_nodes(frames);
}

Test(place, interleave_takes_turns_and_then_what_there_is)
{
    struct frames *frames = open_nodes("numa:4(memory=4194304) core:1 pu:1", 4, false, 16 * MIB);
    unsigned count[4] = {0};

    bpi_frames_place(frames, FRAMES_INTERLEAVE, NULL);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(taken_from(frames, 2), i % 4, "block %d", i);
    cr_assert_eq(taken_from(frames, 2), -1);
    cr_assert_eq(stats_of(frames).spilled, 0u);
    close_nodes(frames);

    frames = open_nodes("numa:4(memory=4194304) core:1 pu:1", 4, false, 16 * MIB);
    bpi_frames_place(frames, FRAMES_INTERLEAVE, (const bool[]){true, false, true, false});
    for (int i = 0; i < 8; i++) {
        int node = taken_from(frames, 1);
        cr_assert(i >= 4 || node == i % 2 * 2, "block %d from %d", i, node);
        cr_assert_geq(node, 0);
        count[node]++;
    }
    for (unsigned n = 0; n < 4; n++)
        cr_assert_eq(count[n], 2u);
    cr_assert_eq(stats_of(frames).spilled, 4u * 512);
    close_nodes(frames);
}

Test(place, bind_keeps_to_the_nodes_named)
{
    struct frames *frames = open_nodes("numa:4(memory=4194304) core:1 pu:1", 4, false, 16 * MIB);
    static const bool named[4] = {false, true, true, false};
    uint32_t many[600];

    bpi_frames_place(frames, FRAMES_BIND, named);
    cr_assert_eq(taken_from(frames, 0), 1);
    cr_assert_eq(taken_from(frames, 3), 2);
    cr_assert_eq(taken_from(frames, 2), 2);
    cr_assert_eq(taken_from(frames, 2), 1, "the other one that is named");
    cr_assert_eq(stats_of(frames).spilled, 512u);
    for (unsigned n = 0; n < 4; n++) {
        cr_assert_eq(taken_from(frames, n), -1);
        cr_assert_eq(bpi_frames_alloc_many(frames, n, many, 600), -ENOMEM);
    }
    cr_assert_eq(stats_of(frames).frames_populated, 4u * 512);
    close_nodes(frames);
}

/* Asked for a node that is not there, the system gives of one that is: that is where the frames are, for everybody. */
Test(place, memory_that_came_from_elsewhere_is_where_it_is)
{
    uint32_t first;

    if (access("/sys/devices/system/node/node1", F_OK) == 0)
        cr_skip_test("the absent node of this test exists here");
    struct frames *frames = open_nodes("numa:2 core:1 pu:1", 2, true, 64 * MIB);
    char *probe = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(probe, MAP_FAILED);
    cr_assert_eq(bpi_topology_where(&topology, probe), -1, "nothing there yet");
    *probe = 1;
    if (bpi_topology_where(&topology, probe + 5) != 0)
        cr_skip_test("the system does not tell where memory lies");

    cr_assert_eq(taken_from(frames, 1), 0);
    struct frames_stats stats = stats_of(frames);
    cr_assert_eq(stats.spilled, 512u);
    cr_assert_eq(stats.strayed, 0u);
    cr_assert_eq(stats.frames_populated, 512u, "one piece, not one more for each time");
    cr_assert(strstr(stats.bind_reason, "node 1"), "%s", stats.bind_reason);
    for (unsigned i = 0; i < 20; i++) /* it is not tried again all the time */
        cr_assert_eq(taken_from(frames, 1), 0);
    cr_assert_eq(stats_of(frames).frames_populated, 21u * 512);
    cr_assert_eq(stats_of(frames).spilled, 21u * 512);
    cr_assert_eq(taken_from(frames, 0), 0);
    cr_assert_eq(stats_of(frames).spilled, 21u * 512);
    close_nodes(frames);

    /* bound: nothing is left behind of what was not wanted */
    frames = open_nodes("numa:2 core:1 pu:1", 2, true, 8 * MIB);
    bpi_frames_place(frames, FRAMES_BIND, (const bool[]){false, true});
    for (unsigned i = 0; i < 600; i++)
        cr_assert_eq(bpi_frames_alloc(frames, i & 1, 0, &first), -ENOMEM);
    cr_assert_eq(stats_of(frames).frames_populated, 0u);
    cr_assert_eq(resident_bytes(bpi_frames_base(frames), 8 * MIB), 0u);
    close_nodes(frames);
}
