/* SPDX-License-Identifier: MIT */
/*
 * A pool on a machine of several nodes: is a page's memory on the node where it should be? The kernel is asked (move_pages),
 * not the pool's books. Where there is one node these are skipped, unless BP_NODES_WANTED says that there should be more
 * (tests/numa-vm sets it). What options may name is checked everywhere.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tests/unit/pool_fixture.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define MIB   ((uint64_t)1 << 20)
#define NODES 64

/* ---- the machine, as the kernel tells it ---- */

static int node_of[NODES],
    cpu_of[NODES];                      /* the system's numbers of the nodes that have memory; a CPU there, -1: none */
static unsigned nodes, nodes_with_cpus; /* those with CPUs first */

static unsigned long of_node(int node, const char *file, const char *word)
{
    char path[96], line[256];
    unsigned long number = 0;

    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/%s", node, file);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, word);
        if (at) {
            number = strtoul(at + strlen(word), NULL, 10);
            break;
        }
    }
    if (f)
        fclose(f);
    return number;
}

static int cpu_on(int node)
{
    char path[96];

    for (int cpu = 0; cpu < 1024; cpu++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpu%d", node, cpu);
        if (access(path, F_OK) == 0)
            return cpu;
    }
    return -1;
}

static void look_at_machine(void)
{
    nodes = nodes_with_cpus = 0;
    for (int with_cpu = 1; with_cpu >= 0; with_cpu--)
        for (int node = 0; node < NODES && nodes < NODES; node++) {
            int cpu = cpu_on(node);
            if (!of_node(node, "meminfo", "MemTotal:") || (cpu >= 0) != (with_cpu == 1))
                continue;
            node_of[nodes] = node;
            cpu_of[nodes++] = cpu;
            nodes_with_cpus += cpu >= 0;
        }
}

/* Two nodes with CPUs, or skip; more than one is wanted in the guest. */
static void need_nodes(void)
{
    const char *wanted = getenv("BP_NODES_WANTED");

    look_at_machine();
    if (wanted)
        cr_assert_eq(nodes, strtoul(wanted, NULL, 10), "nodes with memory here");
    if (nodes_with_cpus < 2)
        cr_skip_test("needs two NUMA nodes with CPUs (tests/numa-vm has them)");
}

static void run_on(int cpu)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
}

static int node_at(const void *at)
{
    void *page = (void *)(uintptr_t)at;
    int node = -1;

    cr_assert_eq(syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0), 0);
    return node;
}

/* ---- sessions at work ---- */

struct part {
    bp_pool *pool;
    bp_file *file;
    const struct data_file *data;
    int cpu; /* to run on */
    uint32_t home;
    uint64_t first, count;        /* pages */
    unsigned on[NODES];           /* pages by the node of their memory */
    unsigned failed, wrong_bytes; /* pages */
};

static void *read_part(void *arg)
{
    struct part *me = arg;
    struct bp_session_options o = {.size = sizeof(o), .home = me->home};
    bp_session *s;
    struct bp_ref ref;

    run_on(me->cpu);
    if (bp_session_open(me->pool, &o, &s)) {
        me->failed = (unsigned)me->count;
        return NULL;
    }
    for (uint64_t page = me->first; page < me->first + me->count; page++) {
        if (page % 64 == 0)
            bp_prefetch(s, me->file, page, page + 64 < me->first + me->count ? 64 : me->first + me->count - page);
        if (bp_get(s, me->file, page, BP_SHARED, &ref)) {
            me->failed++;
            continue;
        }
        int node = node_at(ref.data);
        me->on[node >= 0 && node < NODES ? node : 0]++;
        me->wrong_bytes += !data_page_ok(me->data, page, ref.data);
        bp_put(&ref);
    }
    me->failed += bp_session_close(s) != 0;
    return NULL;
}

static void read_parts(struct part part[], unsigned n)
{
    pthread_t thread[NODES];

    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, read_part, &part[i]), 0);
    for (unsigned i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        cr_assert_eq(part[i].failed, 0u);
        cr_assert_eq(part[i].wrong_bytes, 0u);
    }
}

static bp_pool *open_placed(uint64_t memory, enum bp_place place, uint64_t mask)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .place = place, .nodes = mask, .error = &error};
    bp_pool *pool = NULL;
    int rc = bp_pool_open(&o, &pool);

    cr_assert_eq(rc, 0, "%d %s", rc, error.text);
    return pool;
}

/* ---- where memory lies ---- */

Test(numa, each_session_gets_memory_of_its_own_node)
{
    need_nodes();
    struct data_file data = data_file_make(24 * MIB);
    bp_pool *pool = open_placed(64 * MIB, BP_PLACE_LOCAL, 0);
    bp_file *file = open_file(pool, data.path, 0);
    struct part part[2] = {{.pool = pool, .file = file, .data = &data, .cpu = cpu_of[0], .count = data.pages / 2},
                           {.pool = pool,
                            .file = file,
                            .data = &data,
                            .cpu = cpu_of[1],
                            .first = data.pages / 2,
                            .count = data.pages / 2}};

    read_parts(part, 2);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_geq(part[i].on[node_of[i]] * 100u, 99 * part[i].count, "%u of %u pages of the session on node %d",
                      part[i].on[node_of[i]], (unsigned)part[i].count, node_of[i]);
    cr_assert_eq(stat_of(pool, "frames_spilled"), 0u);
    cr_assert_eq(stat_of(pool, "frames_strayed"), 0u);

    /* the map of slabs says the same */
    struct bp_slab slab[64];
    uint64_t used[NODES] = {0};
    int n = bp_pool_slabs(pool, slab, 64);
    cr_assert(n > 0 && n <= 64);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(slab[i].node < 0, !strcmp(slab[i].state, "reserved"), "%s on node %d", slab[i].state,
                     slab[i].node);
        if (slab[i].node >= 0)
            used[slab[i].node] += slab[i].populated - slab[i].free;
    }
    for (unsigned i = 0; i < 2; i++)
        cr_assert_geq(used[node_of[i]], data.bytes / 2 * 99 / 100);
    close_all(pool);
    data_file_remove(&data);
}

/* A thread that goes elsewhere gets memory there; a session whose home is fixed gets that, wherever it runs. */
Test(numa, a_session_follows_its_thread_or_stays_at_home)
{
    need_nodes();
    struct data_file data = data_file_make(8 * MIB);
    unsigned on[3][NODES] = {{0}};

    for (unsigned fixed = 0; fixed < 2; fixed++) {
        bp_pool *pool = open_placed(32 * MIB, BP_PLACE_LOCAL, 0);
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_session_options o = {.size = sizeof(o), .home = fixed ? (uint32_t)node_of[1] + 1 : 0};
        bp_session *s;
        struct bp_ref ref;
        run_on(cpu_of[0]);
        cr_assert_eq(bp_session_open(pool, &o, &s), 0);
        for (uint64_t page = 0; page < data.pages; page++) {
            if (page == data.pages / 2)
                run_on(cpu_of[1]);
            cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0);
            on[fixed ? 2 : page >= data.pages / 2][node_at(ref.data)]++;
            bp_put(&ref);
        }
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    cr_assert_geq(on[0][node_of[0]], data.pages / 2 * 98 / 100);
    cr_assert_geq(on[1][node_of[1]], data.pages / 2 * 98 / 100, "but for a stock of 32: %u", on[1][node_of[1]]);
    cr_assert_eq(on[2][node_of[1]], data.pages);
    data_file_remove(&data);
}

Test(numa, interleave_and_bind)
{
    need_nodes();
    struct data_file data = data_file_make(8 * MIB);
    bp_pool *pool = open_placed(48 * MIB, BP_PLACE_INTERLEAVE, 0);
    struct part part = {
        .pool = pool, .file = open_file(pool, data.path, 0), .data = &data, .cpu = cpu_of[0], .count = data.pages};

    read_parts(&part, 1);
    for (unsigned i = 0; i < nodes; i++)
        cr_assert(part.on[node_of[i]] * nodes > data.pages * 7 / 10 &&
                      part.on[node_of[i]] * nodes < data.pages * 13 / 10,
                  "%u of %u pages on node %d of %u", part.on[node_of[i]], (unsigned)data.pages, node_of[i], nodes);
    close_all(pool);

    /* the last node is one without CPUs where there is such a one; the pool is smaller than the file */
    int last = node_of[nodes - 1];
    pool = open_placed(4 * MIB, BP_PLACE_BIND, 1ull << last);
    part = (struct part){
        .pool = pool, .file = open_file(pool, data.path, 0), .data = &data, .cpu = cpu_of[0], .count = data.pages};
    read_parts(&part, 1);
    cr_assert_eq(part.on[last], data.pages);
    cr_assert_gt(stat_of(pool, "evictions"), 0u);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- hugetlb of one node ---- */

static bool hugetlb_set(int node, unsigned pages)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node);
    FILE *f = fopen(path, "w");
    bool ok = f && fprintf(f, "%u\n", pages) > 0;

    if (f && fclose(f))
        ok = false;
    return ok;
}

/* The other node's hugetlb pages are no reason to have memory far away. */
Test(numa, hugetlb_pages_of_another_node_are_not_taken)
{
    need_nodes();
    if (geteuid() != 0 || !hugetlb_set(node_of[0], 6) || of_node(node_of[0], "meminfo", "HugePages_Free:") < 6)
        cr_skip_test("cannot get hugetlb pages here");
    struct data_file data = data_file_make(16 * MIB);
    bp_pool *pool = open_placed(48 * MIB, BP_PLACE_LOCAL, 0);
    bp_file *file = open_file(pool, data.path, 0);
    struct part part[2] = {{.pool = pool, .file = file, .data = &data, .cpu = cpu_of[0], .count = data.pages / 2},
                           {.pool = pool,
                            .file = file,
                            .data = &data,
                            .cpu = cpu_of[1],
                            .first = data.pages / 2,
                            .count = data.pages / 2}};

    read_parts(part, 2);
    uint64_t hugetlb = stat_of(pool, "slabs_hugetlb");
    for (unsigned i = 0; i < 2; i++)
        cr_expect_geq(part[i].on[node_of[i]] * 100u, 99 * part[i].count, "%u of %u on node %d", part[i].on[node_of[i]],
                      (unsigned)part[i].count, node_of[i]);
    cr_expect(hugetlb > 0 && hugetlb <= 6, "%u", (unsigned)hugetlb);
    close_all(pool);
    hugetlb_set(node_of[0], 0);
    data_file_remove(&data);
}

/* ---- what options may name, and machines that are made up: everywhere ---- */

static int refused(uint64_t memory, enum bp_place place, uint64_t mask, bool strict, const char *words)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o),
                                .memory = memory,
                                .place = place,
                                .nodes = mask,
                                .strict = strict,
                                .io = BP_IO_PSYNC,
                                .huge = BP_OFF,
                                .error = &error};
    bp_pool *pool = NULL;
    int rc = bp_pool_open(&o, &pool);

    cr_assert_lt(rc, 0);
    cr_assert(strstr(error.text, words), "'%s' does not say '%s'", error.text, words);
    return rc;
}

Test(numa, options_name_nodes_that_are_there)
{
    bp_session *s;
    struct bp_session_options so = {.size = sizeof(so)};

    look_at_machine();
    cr_assert_eq(refused(8 * MIB, BP_PLACE_BIND, 0, false, "names no nodes"), -EINVAL);
    cr_assert_eq(refused(8 * MIB, (enum bp_place)3, 0, false, "place"), -EINVAL);
    cr_assert_eq(refused(8 * MIB, BP_PLACE_LOCAL, 1ull << 63, false, "node 63"), -EINVAL);
    uint64_t all = 0;
    for (unsigned i = 0; i < nodes; i++)
        all |= 1ull << node_of[i];
    bp_pool *pool = open_placed(8 * MIB, BP_PLACE_INTERLEAVE, all);
    so.home = 63 + 1;
    cr_assert_eq(bp_session_open(pool, &so, &s), -EINVAL);
    so.home = UINT32_MAX;
    cr_assert_eq(bp_session_open(pool, &so, &s), -EINVAL);
    so.home = nodes ? (uint32_t)node_of[0] + 1 : 1;
    cr_assert_eq(bp_session_open(pool, &so, &s), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* Two nodes where there is one: what was asked of the second one comes from the first, and is said to. */
Test(numa, absent_node_is_told)
{
    look_at_machine();
    if (nodes > 1)
        cr_skip_test("the absent node of this test exists here");
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    struct data_file data = data_file_make(4 * MIB);
    bp_pool *pool = open_placed(8 * MIB, BP_PLACE_LOCAL, 0);
    struct part part = {
        .pool = pool, .file = open_file(pool, data.path, 0), .data = &data, .home = 2, .count = data.pages};
    struct bp_cap cap[16];
    read_parts(&part, 1);
    int n = bp_pool_caps(pool, cap, 16), at = 0;
    while (at < n && strcmp(cap[at].name, "placement"))
        at++;
    cr_assert_lt(at, n);
    cr_assert_str_eq(cap[at].got, "in part");
    cr_assert(strstr(cap[at].reason, "node 1") && cap[at].remedy[0], "%s", cap[at].reason);
    cr_assert_geq(stat_of(pool, "frames_spilled"), data.pages);
    close_all(pool);
    data_file_remove(&data);
    cr_assert_eq(refused(8 * MIB, BP_PLACE_BIND, 2, true, "strict: placement"), -ENOTSUP);
}
