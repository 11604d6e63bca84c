/* SPDX-License-Identifier: MIT */
/*
 * Topology: the tables made of what hwloc tells, on the machine as it is and on machines that we make up (several
 * nodes, memory tiers, firmware distances, a node without memory), and the memory limit of a cgroup.
 */
#include "numa/topology.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <hwloc/export.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static struct topology topology;

static void open_synthetic(const char *description, unsigned nodes)
{
    setenv("HWLOC_SYNTHETIC", description, 1);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.node_count, nodes, "hwloc did not take '%s'", description); /* it gives the real one then */
}

static void assert_spill(unsigned node, const uint8_t expected[])
{
    for (unsigned i = 0; i < topology.node_count; i++)
        cr_assert_eq(topology.spill[node][i], expected[i], "spill[%u][%u] is %u", node, i, topology.spill[node][i]);
}

Test(topology, this_machine)
{
    cpu_set_t allowed, one;
    char path[64];

    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert(topology.node_count >= 1 && topology.node_count <= TOPOLOGY_NODES_MAX);
    cr_assert_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    cr_assert_eq(topology.cpu_count, (unsigned)CPU_COUNT(&allowed));
    for (unsigned n = 0; n < topology.node_count; n++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", topology.os_node[n]);
        cr_assert(access(path, F_OK) == 0 || topology.node_count == 1, "%s", path);
        cr_assert_eq(topology.spill[n][0], n);
    }
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
        cr_assert_eq(bpi_topology_here(&topology), topology.cpu_node[cpu]);
        topology.cpu_node[cpu] = 63; /* it is this entry that is read, not another one */
        cr_assert_eq(bpi_topology_here(&topology), 63u);
        topology.cpu_node[cpu] = 0;
    }

    void *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    cr_assert_eq(bpi_topology_bind(&topology, memory, 4 * MIB, 0), 0);
    cr_assert_eq(bpi_topology_bind(&topology, memory, 4 * MIB, topology.node_count), -EINVAL);
    memset(memory, 1, 4 * MIB);

    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    cr_assert(bpi_topology_memory(&topology) > 0 && bpi_topology_memory(&topology) <= machine);
    bpi_topology_close(&topology);
    cr_assert_null(topology.hwloc);
}

/* A process that may use one CPU only, with all of its threads: counted, and the tables still hold. */
Test(topology, fewer_cpus_than_the_machine)
{
    cpu_set_t one;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");

    cr_assert_not_null(tasks);
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    while ((entry = readdir(tasks)))
        if (entry->d_name[0] != '.')
            cr_assert_eq(sched_setaffinity(atoi(entry->d_name), sizeof(one), &one), 0);
    closedir(tasks);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.cpu_count, 1u);
    cr_assert_lt(bpi_topology_here(&topology), topology.node_count);
    bpi_topology_close(&topology);
}

Test(topology, four_nodes_without_distances)
{
    open_synthetic("numa:4 core:2 pu:1", 4);
    for (unsigned cpu = 0; cpu < 8; cpu++)
        cr_assert_eq(topology.cpu_node[cpu], cpu / 2, "cpu %u", cpu);
    cr_assert_eq(topology.cpu_count, 8u);
    assert_spill(0, (const uint8_t[]){0, 1, 2, 3});
    assert_spill(1, (const uint8_t[]){1, 0, 2, 3});
    assert_spill(2, (const uint8_t[]){2, 1, 3, 0});
    assert_spill(3, (const uint8_t[]){3, 2, 1, 0});
    cr_assert_eq(topology.node_bytes[3], 1024 * MIB);
    cr_assert_eq(topology.os_node[3], 3);
    char page[4096];
    cr_assert_eq(bpi_topology_bind(&topology, page, sizeof(page), 3), 0, "nothing real is bound");
    bpi_topology_close(&topology);
}

Test(topology, memory_tiers_share_their_cpus)
{
    open_synthetic("pack:2 [numa(memory=16GB)] [numa(memory=64GB)] core:4 pu:1", 4);
    for (unsigned cpu = 0; cpu < 8; cpu++) {
        unsigned node = topology.cpu_node[cpu];
        cr_assert_eq(topology.os_node[node], cpu < 4 ? 0 : 2, "cpu %u is on os node %d", cpu, topology.os_node[node]);
    }
    bpi_topology_close(&topology);
}

Test(topology, nonsense_gives_the_real_machine)
{
    cr_assert_eq(bpi_topology_open(&topology), 0);
    struct topology real = topology;
    bpi_topology_close(&topology);
    open_synthetic("numa:many pu:few", real.node_count);
    cr_assert_eq(topology.cpu_count, real.cpu_count);
    bpi_topology_close(&topology);
}

Test(topology, too_many_nodes)
{
    open_synthetic("numa:100 pu:1", TOPOLOGY_NODES_MAX);
    for (unsigned cpu = 0; cpu < 100; cpu++)
        cr_assert_eq(topology.cpu_node[cpu], cpu < TOPOLOGY_NODES_MAX ? cpu : 0);
    bpi_topology_close(&topology);
}

/* Write a made-up machine with distances to a file; node 2 has no memory if asked for. */
static void write_machine(const char *path, const uint64_t distance[4][4], bool hollow)
{
    hwloc_topology_t made;
    hwloc_obj_t node[4];
    char *text = NULL;
    int length = 0;

    cr_assert_eq(hwloc_topology_init(&made), 0);
    cr_assert_eq(hwloc_topology_set_synthetic(made, "numa:4 core:2 pu:1"), 0);
    cr_assert_eq(hwloc_topology_load(made), 0);
    for (unsigned i = 0; i < 4; i++)
        node[i] = hwloc_get_obj_by_type(made, HWLOC_OBJ_NUMANODE, i);
    hwloc_distances_add_handle_t handle = hwloc_distances_add_create(
        made, "NUMALatency", HWLOC_DISTANCES_KIND_FROM_USER | HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0);
    cr_assert_not_null(handle);
    cr_assert_eq(hwloc_distances_add_values(made, handle, 4, node, (uint64_t *)(uintptr_t)distance, 0), 0);
    cr_assert_eq(hwloc_distances_add_commit(made, handle, 0), 0);
    cr_assert_eq(hwloc_topology_export_xmlbuffer(made, &text, &length, 0), 0);
    if (hollow) { /* the memory of the third node becomes 0, digit by digit */
        char *at = text;
        for (unsigned i = 0; i < 3; i++) {
            at = strstr(at, "local_memory=\"");
            cr_assert_not_null(at);
            at += strlen("local_memory=\"");
        }
        for (; *at != '"'; at++)
            *at = '0';
    }
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_gt(fputs(text, file), 0);
    fclose(file);
    hwloc_free_xmlbuffer(made, text);
    hwloc_topology_destroy(made);
}

Test(topology, distances_of_the_firmware)
{
    /* from a row to a column, and not the same both ways */
    static const uint64_t distance[4][4] = {{10, 40, 20, 15}, {12, 10, 12, 11}, {30, 31, 10, 29}, {50, 40, 60, 10}};
    char path[64];

    snprintf(path, sizeof(path), "/tmp/bufpool-topology-%d.xml", getpid());
    write_machine(path, distance, false);
    setenv("HWLOC_XMLFILE", path, 1);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    cr_assert_eq(topology.node_count, 4u);
    assert_spill(0, (const uint8_t[]){0, 3, 2, 1});
    assert_spill(1, (const uint8_t[]){1, 3, 0, 2});
    assert_spill(2, (const uint8_t[]){2, 3, 0, 1});
    assert_spill(3, (const uint8_t[]){3, 1, 0, 2});
    bpi_topology_close(&topology);

    /* node 2 has CPUs and no memory: left out, and its CPUs go to the nearest */
    write_machine(path, distance, true);
    cr_assert_eq(bpi_topology_open(&topology), 0);
    unlink(path);
    cr_assert_eq(topology.node_count, 3u);
    cr_assert_eq(topology.os_node[2], 3);
    assert_spill(0, (const uint8_t[]){0, 2, 1});
    for (unsigned cpu = 0; cpu < 8; cpu++)
        cr_assert_eq(topology.cpu_node[cpu], cpu / 2 < 2 ? cpu / 2 : 2, "cpu %u", cpu);
    bpi_topology_close(&topology);
}

/* ---- a cgroup with a limit ---- */

static bool write_to(const char *directory, const char *name, const char *text)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    bool ok = fputs(text, file) >= 0;
    return fclose(file) == 0 && ok;
}

/* The directory of our own cgroup that has a memory controller: version 1 or 2. */
static bool own_directory(char directory[2048], const char **limit_file)
{
    char line[1024], found[1024] = "";
    bool first = false;
    FILE *file = fopen("/proc/self/cgroup", "r");

    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = '\0';
        char *one = strstr(line, ":memory:");
        if (one) {
            first = true;
            snprintf(found, sizeof(found), "%s", one + strlen(":memory:"));
        } else if (!first && strncmp(line, "0::", 3) == 0) {
            snprintf(found, sizeof(found), "%s", line + 3);
        }
    }
    if (file)
        fclose(file);
    *limit_file = first ? "memory.limit_in_bytes" : "memory.max";
    snprintf(directory, 2048, "/sys/fs/cgroup%s%s", first ? "/memory" : "", found);
    return found[0] != '\0';
}

Test(topology, memory_limit_of_a_cgroup)
{
    char own[2048], outer[2100], inner[2200], pid[16];
    const char *limit_file;

    if (!own_directory(own, &limit_file))
        cr_skip_test("no cgroups here");
    snprintf(outer, sizeof(outer), "%s/bufpool-test-%d", own, getpid());
    snprintf(inner, sizeof(inner), "%s/inner", outer);
    snprintf(pid, sizeof(pid), "%d", getpid());
    if (mkdir(outer, 0755) || mkdir(inner, 0755))
        cr_skip_test("may not make cgroups here");
    cr_assert_eq(bpi_topology_open(&topology), 0);
    uint64_t before = bpi_topology_memory(&topology);

    /* The limit is on the outer one, and we are in the inner one; then the inner one is tighter. */
    bool limited = write_to(outer, limit_file, "805306368\n") && write_to(inner, "cgroup.procs", pid);
    uint64_t of_outer = limited ? bpi_topology_memory(&topology) : 0;
    bool tighter = limited && write_to(inner, limit_file, "402653184\n");
    uint64_t of_inner = tighter ? bpi_topology_memory(&topology) : 0;

    write_to(own, "cgroup.procs", pid);
    rmdir(inner);
    rmdir(outer);
    if (!limited)
        cr_skip_test("may not limit cgroups here");
    cr_assert_eq(of_outer, 768 * MIB);
    cr_assert(tighter);
    cr_assert_eq(of_inner, 384 * MIB);
    cr_assert_eq(bpi_topology_memory(&topology), before);
    bpi_topology_close(&topology);
}
