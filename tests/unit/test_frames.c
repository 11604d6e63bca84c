/* SPDX-License-Identifier: MIT */
/*
 * Frames: the buddy allocator against a model that is nothing but an array, pools of awkward sizes, memory that comes
 * when it is needed and not before, and what happens when the system or a node has no more.
 */
#include "memory_probe.h"
#include "numa/frames.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#define PIECE_FRAMES 512u
#define ORDERS       (FRAMES_ORDER_MAX + 1)

static struct topology topology;

static void setup(void)
{
    cr_assert_eq(bpi_topology_open(&topology), 0);
}

static void teardown(void)
{
    bpi_topology_close(&topology);
}

TestSuite(frames, .init = setup, .fini = teardown);

static void open_nodes(const char *description, unsigned nodes)
{
    bpi_topology_close(&topology);
    setenv("HWLOC_SYNTHETIC", description, 1);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.node_count, nodes, "hwloc did not take '%s'", description);
}

static struct frames *open_frames(uint64_t bytes, enum slab_huge huge)
{
    struct frames *frames = NULL;

    cr_assert_eq(bpi_frames_open(&topology, bytes, huge, &frames), 0);
    cr_assert_eq(bpi_frames_total(frames), bytes / PAGE);
    return frames;
}

static struct frames_stats stats_of(const struct frames *frames)
{
    struct frames_stats stats;

    bpi_frames_stats(frames, &stats);
    return stats;
}

static uint64_t seed = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 11) % below;
}

/* ---- memory comes when it is needed ---- */

Test(frames, nothing_is_touched_before_it_is_needed)
{
    enum { MANY = 32 };
    uint32_t first, many[MANY];
    size_t before = rss_bytes();
    struct frames *frames = open_frames(8192 * MIB, SLAB_HUGE_TRY);

    cr_assert_lt(rss_bytes(), before + 4 * MIB); /* the kernel's figure is not exact */
    cr_assert_eq(bpi_frames_high(frames), 0u);
    cr_assert_eq(bpi_frames_slab_count(frames), 256u);
    struct frames_stats stats = stats_of(frames);
    cr_assert_eq(stats.frames_total, 8192 * MIB / PAGE);
    cr_assert_eq(stats.frames_populated, 0u);
    cr_assert_eq(stats.slabs[0] + stats.slabs[1] + stats.slabs[2], 0u);
    cr_assert(bpi_frames_check(frames));

    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    cr_assert_eq(first, 0u);
    stats = stats_of(frames);
    cr_assert_eq(stats.frames_populated, PIECE_FRAMES);
    cr_assert_eq(stats.frames_free, PIECE_FRAMES - 1);
    cr_assert_eq(bpi_frames_high(frames), PIECE_FRAMES);
    cr_assert_eq(stats.slabs[0] + stats.slabs[1] + stats.slabs[2], 1u);
    cr_assert_eq(resident_bytes(bpi_frames_base(frames), 32 * MIB), 2 * MIB);
    cr_assert_lt(rss_bytes(), before + 6 * MIB);

    /* 31 singles that were left over by the first, then of the next free: ascending, no more memory for it */
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, many, MANY), MANY);
    for (unsigned i = 0; i < MANY; i++)
        cr_assert_eq(many[i], i + 1);
    cr_assert_eq(stats_of(frames).frames_populated, PIECE_FRAMES);

    /* A large block does not fit into what is left: the next piece, and so on until the slab is whole */
    for (uint32_t i = 1; i < 16; i++) {
        cr_assert(!bpi_frames_slab_ready(frames, 0));
        cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
        cr_assert_eq(first, i * PIECE_FRAMES);
        cr_assert_eq(stats_of(frames).frames_populated, (i + 1) * PIECE_FRAMES);
    }
    cr_assert(bpi_frames_slab_ready(frames, 0));
    cr_assert(!bpi_frames_slab_ready(frames, 1));
    cr_assert_eq(bpi_frames_slab(frames, 8191), 0u);
    cr_assert_eq(bpi_frames_slab(frames, 8192), 1u);
    void *at;
    size_t bytes;
    bpi_frames_slab_range(frames, 1, &at, &bytes);
    cr_assert_eq((char *)at, bpi_frames_base(frames) + 32 * MIB);
    cr_assert_eq(bytes, 32 * MIB);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
    cr_assert_lt(rss_bytes(), before + 4 * MIB);
    bpi_frames_close(NULL);
}

Test(frames, arguments)
{
    struct frames *frames;
    uint32_t first;

    cr_assert_eq(bpi_frames_open(&topology, 0, SLAB_HUGE_TRY, &frames), -EINVAL);
    cr_assert_eq(bpi_frames_open(&topology, 4097, SLAB_HUGE_TRY, &frames), -EINVAL);
    cr_assert_eq(bpi_frames_open(&topology, (1ull << 42) + PAGE, SLAB_HUGE_TRY, &frames), -EINVAL);
    frames = open_frames(1ull << 42, SLAB_HUGE_TRY); /* the largest: 2^30 frames, five levels */
    cr_assert_eq(bpi_frames_alloc(frames, topology.node_count, 0, &first), -EINVAL);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 10, &first), -EINVAL);
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, &first, 0), 0);
    for (unsigned order = 0; order < ORDERS; order++) {
        cr_assert_eq(bpi_frames_alloc(frames, 0, order, &first), 0);
        bpi_frames_free(frames, first, order);
        cr_assert_eq(stats_of(frames).frames_free, PIECE_FRAMES);
    }
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

/* ---- all of a pool, whatever its size ---- */

/* Take everything frame by frame, give it back in a random order, and find it in whole blocks again. */
static void exhaust(uint64_t bytes, enum slab_huge huge)
{
    struct frames *frames = open_frames(bytes, huge);
    uint32_t total = bpi_frames_total(frames), count = 0, first;
    uint32_t *all = calloc(total + 64, sizeof(*all));
    bool *seen = calloc(total, sizeof(*seen));
    size_t reserved = bpi_frames_slab_count(frames) * bpi_slab_bytes_for(bytes);
    int got;

    while ((got = bpi_frames_alloc_many(frames, 0, all + count, 1 + draw(60))) > 0)
        for (uint32_t i = 0; i < (uint32_t)got; i++, count++) {
            cr_assert_lt(all[count], total);
            cr_assert(!seen[all[count]], "frame %u handed out twice", all[count]);
            cr_assert(i == 0 || all[count] > all[count - 1], "ascending");
            seen[all[count]] = true;
            bpi_frames_base(frames)[(size_t)all[count] * PAGE + 4095] = 1;
        }
    cr_assert_eq(got, -ENOMEM);
    cr_assert_eq(count, total);
    cr_assert_eq(bpi_frames_high(frames), total);
    cr_assert_eq(resident_bytes(bpi_frames_base(frames), reserved), bytes);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), -ENOMEM);
    cr_assert_str_empty(stats_of(frames).limit_reason, "it is the pool that is used up, not the system");
    for (unsigned i = 0; i < bpi_frames_slab_count(frames); i++)
        cr_assert(bpi_frames_slab_ready(frames, i));

    for (uint32_t i = total - 1; i > 0; i--) {
        uint32_t j = draw(i + 1), swap = all[i];
        all[i] = all[j];
        all[j] = swap;
    }
    for (uint32_t i = 0, n; i < total; i += n) {
        n = 1 + draw(40);
        n = n < total - i ? n : total - i;
        bpi_frames_free_many(frames, all + i, n);
    }
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(stats_of(frames).frames_free, total);
    for (count = 0; bpi_frames_alloc(frames, 0, 9, &first) == 0; count++)
        cr_assert_eq(first, count * PIECE_FRAMES);
    cr_assert_eq(count, total / PIECE_FRAMES, "all whole blocks are there again");
    for (unsigned order = ORDERS; order-- > 0;) /* and the end falls into the largest blocks that fit */
        cr_assert_eq(bpi_frames_alloc(frames, 0, order, &first), order < 9 && total >> order & 1 ? 0 : -ENOMEM);
    cr_assert_eq(stats_of(frames).frames_free, 0u);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
    free(all);
    free(seen);
}

Test(frames, pools_of_all_sizes)
{
    static const uint64_t size[] = {PAGE,           MIB - PAGE, MIB,
                                    MIB + PAGE,     2 * MIB,    2 * MIB + PAGE,
                                    5 * MIB - PAGE, 64 * MIB,   512 * MIB + 3 * MIB + PAGE};

    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        exhaust(size[i], SLAB_HUGE_TRY);
        if (size[i] < 100 * MIB)
            exhaust(size[i], SLAB_HUGE_OFF);
    }
}

Test(frames, whole_and_parts)
{
    struct frames *frames = open_frames(4 * MIB, SLAB_HUGE_TRY);
    uint32_t first, singles[64];

    /* a block given back as frames, backwards and in runs, and frames given back as a block */
    cr_assert_eq(bpi_frames_alloc(frames, 0, 6, &first), 0);
    for (unsigned i = 64; i-- > 32;)
        bpi_frames_free(frames, first + i, 0);
    for (unsigned i = 0; i < 32; i++)
        singles[i] = first + i;
    bpi_frames_free_many(frames, singles + 5, 27);
    bpi_frames_free_many(frames, singles, 5);
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(stats_of(frames).frames_free, PIECE_FRAMES);
    cr_assert_eq(bpi_frames_alloc_many(frames, 0, singles, 64), 64);
    cr_assert_eq(singles[0] % 64, 0u);
    bpi_frames_free(frames, singles[0], 6);
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(first, 0u);
    bpi_frames_close(frames);
}

/* ---- the model ---- */

/* An array of frames, 0: free; blocks are found by looking at every frame. */
struct model {
    uint32_t total;
    uint16_t *owner;
};

static bool range_free(const struct model *model, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (first + i >= model->total || model->owner[first + i])
            return false;
    return true;
}

/* The block that must be handed out: the lowest of the smallest free aligned blocks that cannot be merged further. */
static uint32_t model_choose(const struct model *model, unsigned want)
{
    for (unsigned order = want; order < ORDERS; order++)
        for (uint32_t first = 0; first < model->total; first += 1u << order) {
            uint32_t outer = first >> (order + 1) << (order + 1);
            if (range_free(model, first, 1u << order) &&
                (order == FRAMES_ORDER_MAX || !range_free(model, outer, 2u << order)))
                return first;
        }
    return UINT32_MAX;
}

static void model_mark(struct model *model, uint32_t first, uint32_t count, uint16_t owner)
{
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_lt(first + i, model->total);
        cr_assert((model->owner[first + i] == 0) != (owner == 0), "frame %u", first + i);
        model->owner[first + i] = owner;
    }
}

Test(frames, random_operations_against_an_array)
{
    enum { STEPS = 60000, HELD_MAX = 4000 };
    struct frames *frames = open_frames(7 * MIB + 5 * PAGE, SLAB_HUGE_TRY);
    struct model model = {.total = bpi_frames_total(frames)};
    struct {
        uint32_t first;
        unsigned order;
    } *held = calloc(HELD_MAX, sizeof(*held));
    uint32_t count = 0, first, many[64], refused = 0, free_frames;

    model.owner = calloc(model.total, sizeof(*model.owner));
    /* populate everything first, so that the model knows what there is */
    uint32_t *all = calloc(model.total, sizeof(*all));
    for (uint32_t n = 0; n < model.total;)
        n += (uint32_t)bpi_frames_alloc_many(frames, 0, all + n, model.total - n);
    bpi_frames_free_many(frames, all, model.total);
    free(all);
    free_frames = model.total;

    for (unsigned step = 0; step < STEPS; step++) {
        /* phases of filling and of draining, so that both ends are reached */
        bool fill = draw(100) < (step / 3000 % 2 ? 35 : 65);
        if (fill && draw(4) == 0 && count + 64 < HELD_MAX) {
            unsigned n = 2 + draw(62);
            int got = bpi_frames_alloc_many(frames, 0, many, n);
            cr_assert_eq(got, free_frames ? (int)(n < free_frames ? n : free_frames) : -ENOMEM);
            for (int i = 0; i < got; i++) {
                cr_assert(i == 0 || many[i] > many[i - 1]);
                model_mark(&model, many[i], 1, 1);
                held[count].first = many[i];
                held[count++].order = 0;
            }
            free_frames -= got > 0 ? (uint32_t)got : 0;
        } else if (fill && count < HELD_MAX) {
            unsigned order = draw(3) ? draw(4) : draw(ORDERS);
            uint32_t expected = model_choose(&model, order);
            int got = bpi_frames_alloc(frames, 0, order, &first);
            cr_assert_eq(got, expected == UINT32_MAX ? -ENOMEM : 0, "step %u order %u", step, order);
            refused += got < 0;
            if (got < 0)
                continue;
            cr_assert_eq(first, expected, "step %u order %u", step, order);
            model_mark(&model, first, 1u << order, 1);
            free_frames -= 1u << order;
            held[count].first = first;
            held[count++].order = order;
        } else if (count) {
            uint32_t victim = draw(count);
            bpi_frames_free(frames, held[victim].first, held[victim].order);
            model_mark(&model, held[victim].first, 1u << held[victim].order, 0);
            free_frames += 1u << held[victim].order;
            held[victim] = held[--count];
        }
        if (step % 500 == 0) {
            cr_assert(bpi_frames_check(frames), "step %u", step);
            cr_assert_eq(stats_of(frames).frames_free, free_frames);
        }
    }
    cr_assert_gt(refused, 100u, "the pool was never full: the test tests too little");
    while (count--)
        bpi_frames_free(frames, held[count].first, held[count].order);
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(stats_of(frames).frames_free, model.total);
    bpi_frames_close(frames);
    free(model.owner);
    free(held);
}

/* ---- several nodes ---- */

Test(frames, nodes_spill_to_the_nearest)
{
    uint32_t block[6], first, many[8];

    open_nodes("numa:4 core:1 pu:1", 4);
    struct frames *frames = open_frames(12 * MIB, SLAB_HUGE_TRY); /* six slabs of one block */
    cr_assert_eq(bpi_frames_alloc(frames, 2, 9, &block[0]), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &block[1]), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 2, 9, &block[2]), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 3, 9, &block[3]), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 1, 0, &first), 0);
    cr_assert_eq(first, 4 * PIECE_FRAMES);
    bpi_frames_free(frames, first, 0);
    cr_assert_eq(bpi_frames_alloc(frames, 3, 9, &block[4]), 0);
    cr_assert_eq(stats_of(frames).spilled, 0u);
    cr_assert_eq(stats_of(frames).frames_populated, 6 * PIECE_FRAMES);

    /* all slabs are placed; node 1 is the only one with free memory. Node 3 gets it, and it stays node 1's. */
    cr_assert_eq(bpi_frames_alloc(frames, 3, 8, &first), 0);
    cr_assert_eq(first, 4 * PIECE_FRAMES);
    cr_assert_eq(stats_of(frames).spilled, 256u);
    bpi_frames_free(frames, first, 8);
    cr_assert_eq(bpi_frames_alloc(frames, 1, 9, &first), 0);
    cr_assert_eq(first, 4 * PIECE_FRAMES);
    cr_assert_eq(stats_of(frames).spilled, 256u);
    cr_assert_eq(bpi_frames_alloc(frames, 1, 0, &first), -ENOMEM);

    /* node 1 goes to node 0 before node 2, and node 3 to node 2 before node 0 */
    bpi_frames_free(frames, block[1], 9);
    bpi_frames_free(frames, block[2], 9);
    cr_assert_eq(bpi_frames_alloc_many(frames, 1, many, 8), 8);
    cr_assert_eq(many[0], block[1]);
    cr_assert_eq(bpi_frames_alloc(frames, 3, 5, &first), 0);
    cr_assert_eq(first, block[2]);
    cr_assert_eq(stats_of(frames).spilled, 256u + 8 + 32);
    bpi_frames_free(frames, first, 5);

    /* frames of many nodes at once find their way home */
    uint32_t mixed[] = {block[0], block[3], block[0] + 1, block[3] + 1, block[4], block[3] + 2, many[0], many[1]};
    bpi_frames_free_many(frames, mixed, 8);
    cr_assert(bpi_frames_check(frames));
    cr_assert_eq(bpi_frames_alloc(frames, 2, 1, &first), 0);
    cr_assert_eq(first, block[0]);
    bpi_frames_close(frames);
}

/* A node does not get more slabs than it has memory: the rest is on the others in truth, too. */
Test(frames, nodes_get_no_more_than_their_memory)
{
    uint32_t first;
    unsigned placed[3] = {0};

    open_nodes("numa:3(memory=4194304) pu:1", 3);
    cr_assert_eq(topology.node_bytes[0], 4 * MIB);
    struct frames *frames = open_frames(12 * MIB, SLAB_HUGE_TRY);
    for (unsigned i = 0; i < 6; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 1, 9, &first), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 1, 9, &first), -ENOMEM);
    cr_assert_eq(stats_of(frames).spilled, 4 * PIECE_FRAMES);
    for (uint32_t i = 0; i < 6; i++)
        bpi_frames_free(frames, i * PIECE_FRAMES, 9);
    for (unsigned n = 0; n < 3; n++)
        for (; placed[n] < 2 && !bpi_frames_alloc(frames, n, 9, &first); placed[n]++)
            ;
    cr_assert_eq(stats_of(frames).spilled, 4 * PIECE_FRAMES, "two of them are each node's own");
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

/* Where a machine has several nodes in truth: each block lies where it was asked for. */
Test(frames, memory_lies_on_its_node)
{
    enum { BLOCKS = 6 };
    uint32_t first;

    if (topology.node_count < 2)
        cr_skip_test("one node only");
    for (unsigned huge = 0; huge < 2; huge++) {
        struct frames *frames = open_frames(64 * MIB, huge ? SLAB_HUGE_TRY : SLAB_HUGE_OFF);
        for (unsigned i = 0; i < BLOCKS; i++) {
            unsigned node = (i * 7 + i / 2) % topology.node_count;
            cr_assert_eq(bpi_frames_alloc(frames, node, 9, &first), 0);
            for (uint32_t frame = first; frame < first + PIECE_FRAMES; frame += 73) {
                void *page = bpi_frames_base(frames) + (size_t)frame * PAGE;
                int at = -1;
                cr_assert_eq(syscall(SYS_move_pages, 0, 1ul, &page, NULL, &at, 0), 0);
                cr_assert_eq(at, topology.os_node[node], "frame %u is on node %d", frame, at);
            }
        }
        cr_assert_str_empty(stats_of(frames).bind_reason);
        cr_assert_eq(stats_of(frames).spilled, 0u);
        cr_assert(bpi_frames_check(frames));
        bpi_frames_close(frames);
    }
}

/* ---- when the system says no ---- */

Test(frames, refusal_is_remembered_and_forgotten)
{
    struct frames *frames = open_frames(8 * MIB, SLAB_HUGE_OFF);
    uint32_t first, held;
    unsigned tries = 0;

    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &held), 0);
    bend(PROBE_POPULATE, ENOMEM, 0, 1 << 30);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 0, 3, &first), -ENOMEM);
    int nodes = (int)topology.node_count; /* each asks for itself */
    cr_assert(bent.seen >= 2 && bent.seen <= 5 * nodes, "asked %d times in 1,000", bent.seen);
    struct frames_stats stats = stats_of(frames);
    cr_assert(strstr(stats.limit_reason, "ENOMEM") && strstr(stats.limit_reason, "2048 KiB"), "%s", stats.limit_reason);
    cr_assert_eq(stats.frames_populated, PIECE_FRAMES);
    bpi_frames_free(frames, held, 9); /* what is there still goes round */
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &held), 0);
    cr_assert_eq(held, 0u);

    bend(0, 0, 0, 0);
    while (bpi_frames_alloc(frames, 0, 9, &first) && tries < 1000)
        tries++;
    cr_assert_lt(tries, 300u);
    cr_assert_eq(first, PIECE_FRAMES);
    cr_assert_str_empty(stats_of(frames).limit_reason);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

Test(frames, huge_pages_or_nothing)
{
    struct frames *frames;
    uint32_t first;

    if (!thp_enabled())
        cr_skip_test("no transparent huge pages here");
    frames = open_frames(2 * MIB, SLAB_HUGE_ON);
    if (bpi_frames_alloc(frames, 0, 0, &first) == 0 && stats_of(frames).slabs[SLAB_HUGETLB])
        cr_skip_test("hugetlb pages are there");
    bpi_frames_close(frames);

    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    frames = open_frames(8 * MIB, SLAB_HUGE_ON);
    for (unsigned i = 0; i < 10; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), -ENOTSUP);
    cr_assert_str_not_empty(stats_of(frames).huge_reason);
    cr_assert_eq(stats_of(frames).frames_populated, 0u);
    bpi_frames_close(frames);

    /* with some memory in the pool it is a pool that is full */
    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    frames = open_frames(8 * MIB, SLAB_HUGE_ON);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), 0);
    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), -ENOMEM);
    cr_assert_str_not_empty(stats_of(frames).limit_reason);
    cr_assert_str_not_empty(stats_of(frames).huge_reason);
    bpi_frames_close(frames);
}

Test(frames, hugetlb_and_then_the_rest)
{
    hugetlb_want(5);
    struct frames *frames = open_frames(17 * MIB, SLAB_HUGE_TRY);
    uint32_t total = bpi_frames_total(frames), *all = calloc(total, sizeof(*all)), n = 0;

    while (n < total)
        n += (uint32_t)bpi_frames_alloc_many(frames, 0, all + n, total - n);
    memset(bpi_frames_base(frames), 0x33, 17 * MIB); /* no SIGBUS */
    struct frames_stats stats = stats_of(frames);
    cr_assert(stats.slabs[SLAB_HUGETLB] >= 1 && stats.slabs[SLAB_HUGETLB] <= 5, "%u", stats.slabs[SLAB_HUGETLB]);
    cr_assert_eq(stats.slabs[SLAB_HUGETLB], hugetlb_used());
    cr_assert_eq(stats.slabs[0] + stats.slabs[1] + stats.slabs[2], 9u);
    cr_assert(strstr(stats.huge_reason, "hugetlb"), "%s", stats.huge_reason);
    cr_assert_eq(stats.frames_populated, total);
    bpi_frames_free_many(frames, all, total);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
    cr_assert_eq(hugetlb_used(), 0u);
    free(all);
}

/* ---- while another thread populates ---- */

struct taker {
    struct frames *frames;
    unsigned order;
    uint32_t first;
    int result;
};

static void *take_one(void *arg)
{
    struct taker *me = arg;

    me->result = bpi_frames_alloc(me->frames, 0, me->order, &me->first);
    return NULL;
}

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

Test(frames, others_go_on_while_one_populates)
{
    open_nodes("numa:1 pu:2", 1); /* with others it would grow there instead, and be held up itself */
    struct frames *frames = open_frames(8 * MIB, SLAB_HUGE_OFF);
    struct taker grower = {.frames = frames, .order = 9}, waiter = grower;
    pthread_t grower_thread, waiter_thread;
    uint32_t held, first;

    cr_assert_eq(bpi_frames_alloc(frames, 0, 8, &held), 0);
    bend(PROBE_POPULATE, 0, 0, 0);
    bent.hold = true;
    cr_assert_eq(pthread_create(&grower_thread, NULL, take_one, &grower), 0);
    while (!bent.entered)
        usleep(1000);

    /* what is there can be taken and given back */
    cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    bpi_frames_free(frames, first, 0);
    bpi_frames_free(frames, held, 8);
    cr_assert_eq(bpi_frames_alloc(frames, 0, 8, &held), 0);
    cr_assert_eq(stats_of(frames).frames_populated, PIECE_FRAMES);
    cr_assert(bpi_frames_check(frames));

    /* who needs more waits, but not for ever */
    double start = now_seconds();
    cr_assert_eq(bpi_frames_alloc(frames, 0, 9, &first), -ENOMEM);
    double waited = now_seconds() - start;
    cr_assert(waited > 0.5 && waited < 60, "%.3f s", waited);

    /* and is served when the memory comes: one piece for each, not one for both */
    cr_assert_eq(pthread_create(&waiter_thread, NULL, take_one, &waiter), 0);
    usleep(20000);
    cr_assert_eq(bent.seen, 1);
    bent.hold = false;
    pthread_join(grower_thread, NULL);
    pthread_join(waiter_thread, NULL);
    cr_assert_eq(grower.result, 0);
    cr_assert_eq(waiter.result, 0);
    cr_assert_neq(grower.first, waiter.first);
    cr_assert_eq(stats_of(frames).frames_populated, 3 * PIECE_FRAMES);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}

/* ---- mistakes ---- */

/* Given back twice: an assertion where they are on, and seen by the check where not. */
static bool caught(void (*mistake)(struct frames *, uint32_t))
{
    struct frames *frames = open_frames(4 * MIB, SLAB_HUGE_TRY);
    uint32_t first;
    int status = 0;

    cr_assert_eq(bpi_frames_alloc(frames, 0, 4, &first), 0);
    cr_assert(bpi_frames_check(frames));
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (!child) {
        close(STDERR_FILENO); /* the words of the assertion are not wanted */
        mistake(frames, first);
        _exit(bpi_frames_check(frames) ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    bpi_frames_close(frames);
    return (WIFEXITED(status) && WEXITSTATUS(status) == 1) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void twice(struct frames *frames, uint32_t first)
{
    bpi_frames_free(frames, first, 4);
    bpi_frames_free(frames, first, 4);
}

static void part_again(struct frames *frames, uint32_t first)
{
    bpi_frames_free(frames, first, 4);
    bpi_frames_free(frames, first + 3, 0);
}

static void whole_after_part(struct frames *frames, uint32_t first)
{
    bpi_frames_free(frames, first + 3, 0);
    bpi_frames_free(frames, first, 4);
}

static void too_large(struct frames *frames, uint32_t first)
{
    bpi_frames_free(frames, first, 5);
}

static void none(struct frames *frames, uint32_t first)
{
    bpi_frames_free(frames, first, 4);
}

Test(frames, mistakes_are_caught)
{
    cr_assert(caught(twice));
    cr_assert(caught(part_again));
    cr_assert(caught(whole_after_part));
    cr_assert(caught(too_large));
    cr_assert(!caught(none));
}

/* ---- what is free of a block ---- */

Test(frames, takes_what_is_free_of_a_block)
{
    struct frames *frames = open_frames(4 * MIB, SLAB_HUGE_OFF);
    uint64_t taken[PIECE_FRAMES / 64];
    uint32_t first;

    for (unsigned i = 0; i < 2 * PIECE_FRAMES; i++)
        cr_assert_eq(bpi_frames_alloc(frames, 0, 0, &first), 0);
    for (unsigned order = 1; order < ORDERS; order++) {
        bool is_free[PIECE_FRAMES] = {false};
        uint32_t size = 1u << order;
        uint32_t count = 0;

        for (uint32_t f = 1; f < size; f++) { /* never all of it */
            is_free[f] = draw(3) != 0;
            count += is_free[f];
            if (is_free[f])
                bpi_frames_free(frames, PIECE_FRAMES + f, 0);
        }
        cr_assert_eq(bpi_frames_take_within(frames, PIECE_FRAMES, order, taken), count);
        cr_assert_eq(stats_of(frames).frames_free, 0u);
        for (uint32_t f = 0; f < size; f++)
            cr_assert_eq(taken[f >> 6] >> (f & 63) & 1, is_free[f], "frame %u of a block of %u", f, size);
        cr_assert(bpi_frames_check(frames));
    }
    bpi_frames_free(frames, PIECE_FRAMES, 9);
    cr_assert_eq(bpi_frames_take_within(frames, PIECE_FRAMES + 8, 3, taken), 0u, "part of something larger");
    cr_assert_eq(bpi_frames_take_within(frames, PIECE_FRAMES, 9, taken), PIECE_FRAMES);
    cr_assert(bpi_frames_check(frames));
    bpi_frames_close(frames);
}
