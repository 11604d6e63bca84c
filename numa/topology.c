/* SPDX-License-Identifier: MIT */
/*
 * Topology: read from hwloc once, then answered from tables.
 *
 * Only NUMA nodes and processing units are loaded (no caches, no devices, no memory attributes): a full load
 * costs ten times as much and nothing here would look at the rest. hwloc leaves out nodes and CPUs that the
 * cpuset of this process forbids, so what is left is what may be used. Groups must stay: a node hangs on an object with
 * the same CPUs, and without one it would hang on the whole machine.
 *
 * Three things that are easily got wrong:
 * - Distances are often absent. Then nodes count as near when their numbers are.
 * - Nodes can share a cpuset (memory tiers, memory without CPUs). A CPU belongs to the node whose cpuset is
 *   smallest, and among equals to the lowest OS number, which is the ordinary memory everywhere we know of.
 * - A node may have CPUs and no memory. It is left out, and its CPUs belong to the nearest that has some.
 */
#include "numa/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__has_include)
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#if defined(RSEQ_SIG)
#define TOPOLOGY_RSEQ 1
#endif
#endif
#endif

#define CGROUP_LINES_MAX 4096u /* lines of mountinfo looked at */
#define CGROUP_DEPTH_MAX 64u   /* levels walked from a cgroup to its root */
#define CGROUP_PATH_MAX  4096u /* bytes, with the NUL */

/* What is needed only while the tables are made. All of it indexed by hwloc's logical node number. */
struct survey {
    hwloc_obj_t node[TOPOLOGY_NODES_MAX];
    unsigned count;
    uint64_t distance[TOPOLOGY_NODES_MAX][TOPOLOGY_NODES_MAX];
    uint8_t usable[TOPOLOGY_NODES_MAX]; /* survey index of each node that is kept */
    bool usable_is[TOPOLOGY_NODES_MAX];
};

/* ---- reading hwloc ---- */

static int load(hwloc_topology_t *out)
{
    hwloc_topology_t hwloc = NULL;

    if (hwloc_topology_init(&hwloc))
        return -ENOMEM;
    int err = 0;
    errno = 0;
    if (hwloc_topology_set_all_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_NONE) ||
        hwloc_topology_set_type_filter(hwloc, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE) ||
        hwloc_topology_set_flags(hwloc, HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS) ||
        hwloc_topology_load(hwloc))
        err = errno == ENOMEM ? -ENOMEM : -ENOSYS;
    if (err)
        hwloc_topology_destroy(hwloc);
    else
        *out = hwloc;
    return err;
}

static void survey_nodes(hwloc_topology_t hwloc, struct survey *survey)
{
    bool memory_known = false;

    for (hwloc_obj_t node = NULL; survey->count < TOPOLOGY_NODES_MAX;) {
        node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node);
        if (!node)
            break;
        survey->node[survey->count++] = node;
        memory_known |= node->attr->numanode.local_memory != 0;
    }
    for (unsigned i = 0; i < survey->count; i++)
        survey->usable_is[i] = !memory_known || survey->node[i]->attr->numanode.local_memory != 0;
}

/* Distance by number, then overwritten by what the firmware says where it says something about every node. */
static void survey_distances(hwloc_topology_t hwloc, struct survey *survey)
{
    struct hwloc_distances_s *found = NULL;
    unsigned found_count = 1;
    int index[TOPOLOGY_NODES_MAX];

    for (unsigned i = 0; i < survey->count; i++)
        for (unsigned j = 0; j < survey->count; j++)
            survey->distance[i][j] = i > j ? i - j : j - i;
    if (hwloc_distances_get_by_type(hwloc, HWLOC_OBJ_NUMANODE, &found_count, &found, HWLOC_DISTANCES_KIND_MEANS_LATENCY,
                                    0) ||
        !found_count || !found)
        return;

    bool complete = true;
    for (unsigned i = 0; i < survey->count; i++) {
        index[i] = hwloc_distances_obj_index(found, survey->node[i]);
        complete &= index[i] >= 0;
    }
    for (unsigned i = 0; complete && i < survey->count; i++)
        for (unsigned j = 0; j < survey->count; j++)
            survey->distance[i][j] = found->values[(size_t)index[i] * found->nbobjs + (size_t)index[j]];
    hwloc_distances_release(hwloc, found);
}

/* ---- the tables ---- */

static unsigned nearest(const struct topology *topology, const struct survey *survey, unsigned from)
{
    unsigned best = 0;

    for (unsigned n = 1; n < topology->node_count; n++)
        if (survey->distance[from][survey->usable[n]] < survey->distance[from][survey->usable[best]])
            best = n;
    return best;
}

/* Insertion sort by distance; stable, so that equals stay in the order of their numbers. The node itself leads. */
static void fill_spill(struct topology *topology, const struct survey *survey)
{
    for (unsigned n = 0; n < topology->node_count; n++) {
        uint8_t *order = topology->spill[n];
        const uint64_t *distance = survey->distance[survey->usable[n]];
        unsigned sorted = 1;

        order[0] = (uint8_t)n;
        for (unsigned other = 0; other < topology->node_count; other++) {
            if (other == n)
                continue;
            unsigned at = sorted++;
            for (; at > 1 && distance[survey->usable[order[at - 1]]] > distance[survey->usable[other]]; at--)
                order[at] = order[at - 1];
            order[at] = (uint8_t)other;
        }
    }
}

/* Survey index of the node that a CPU belongs to, kept or not; count if there is none. */
static unsigned node_of_cpu(const struct survey *survey, unsigned cpu)
{
    unsigned best = survey->count;
    int best_weight = 0;

    for (unsigned i = 0; i < survey->count; i++) {
        hwloc_const_cpuset_t cpus = survey->node[i]->cpuset;
        if (!cpus || !hwloc_bitmap_isset(cpus, cpu))
            continue;
        int weight = hwloc_bitmap_weight(cpus);
        if (best == survey->count || weight < best_weight ||
            (weight == best_weight && survey->node[i]->os_index < survey->node[best]->os_index)) {
            best = i;
            best_weight = weight;
        }
    }
    return best;
}

static void fill_cpus(struct topology *topology, const struct survey *survey, hwloc_topology_t hwloc)
{
    unsigned node_of[TOPOLOGY_NODES_MAX];

    for (unsigned i = 0; i < survey->count; i++)
        node_of[i] = nearest(topology, survey, i);
    for (unsigned n = 0; n < topology->node_count; n++)
        node_of[survey->usable[n]] = n;

    for (hwloc_obj_t cpu = NULL; (cpu = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_PU, cpu));) {
        if (cpu->os_index >= TOPOLOGY_CPUS_MAX)
            continue;
        unsigned at = node_of_cpu(survey, cpu->os_index);
        topology->cpu_node[cpu->os_index] = (uint8_t)(at < survey->count ? node_of[at] : 0);
    }
}

/* The cpuset allows more than taskset does: count what is left of it. The whole process, not only this thread. */
static unsigned count_cpus(hwloc_topology_t hwloc)
{
    int count = 0;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    if (set && !hwloc_get_cpubind(hwloc, set, HWLOC_CPUBIND_PROCESS)) {
        hwloc_bitmap_and(set, set, hwloc_topology_get_topology_cpuset(hwloc));
        count = hwloc_bitmap_weight(set);
    }
    hwloc_bitmap_free(set);
    if (count < 1)
        count = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
    return count < 1 ? 1 : (unsigned)count;
}

int bpi_topology_open(struct topology *topology)
{
    hwloc_topology_t hwloc = NULL;
    struct survey *survey = calloc(1, sizeof(*survey));
    int err = -ENOMEM;

    memset(topology, 0, sizeof(*topology));
    if (!survey)
        goto out;
    err = load(&hwloc);
    if (err)
        goto out;

    survey_nodes(hwloc, survey);
    survey_distances(hwloc, survey);
    for (unsigned i = 0; i < survey->count; i++) {
        if (!survey->usable_is[i])
            continue;
        survey->usable[topology->node_count] = (uint8_t)i;
        topology->os_node[topology->node_count] = (int)survey->node[i]->os_index;
        topology->node_bytes[topology->node_count++] = survey->node[i]->attr->numanode.local_memory;
    }
    if (!topology->node_count) /* no NUMA information at all: one node that holds everything */
        topology->node_count = 1;
    fill_spill(topology, survey);
    fill_cpus(topology, survey, hwloc);
    topology->cpu_count = count_cpus(hwloc);
    topology->hwloc = hwloc;
out:
    free(survey);
    return err;
}

void bpi_topology_close(struct topology *topology)
{
    if (topology->hwloc)
        hwloc_topology_destroy(topology->hwloc);
    memset(topology, 0, sizeof(*topology));
}

/* ---- where am I ---- */

/*
 * The kernel keeps the number of the current CPU in the thread's rseq area, which glibc registers: one load. Where
 * it is not registered (valgrind, an old kernel, the tunable) the C library's way is a few nanoseconds more.
 */
static int current_cpu(void)
{
#if defined(TOPOLOGY_RSEQ)
    if (__rseq_size) {
        const char *thread = __builtin_thread_pointer();
        const struct rseq *rseq = (const struct rseq *)(const void *)(thread + __rseq_offset);
        int cpu = (int)__atomic_load_n(&rseq->cpu_id, __ATOMIC_RELAXED); /* the kernel may write it at any moment */
        if (cpu >= 0)
            return cpu;
    }
#endif
    return sched_getcpu();
}

unsigned bpi_topology_here(const struct topology *topology)
{
    int cpu = current_cpu();

    return cpu >= 0 && cpu < TOPOLOGY_CPUS_MAX ? topology->cpu_node[cpu] : 0;
}

/* ---- placing ---- */

/*
 * HWLOC_MEMBIND_BIND without STRICT becomes MPOL_PREFERRED_MANY (MPOL_PREFERRED before Linux 5.15): the node first, the
 * others when it is full. With STRICT it would be MPOL_BIND, and an allocation that the node cannot serve kills.
 */
int bpi_topology_bind(const struct topology *topology, void *at, size_t bytes, unsigned node)
{
    if (node >= topology->node_count)
        return -EINVAL;
    if (topology->node_count == 1 || !topology->hwloc)
        return 0;

    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return -ENOMEM;
    int err = 0;
    errno = 0;
    if (hwloc_bitmap_only(set, (unsigned)topology->os_node[node]) ||
        hwloc_set_area_membind(topology->hwloc, at, bytes, set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET))
        err = errno ? -errno : -EINVAL;
    hwloc_bitmap_free(set);
    return err;
}

int bpi_topology_node(const struct topology *topology, int os_node)
{
    for (unsigned n = 0; n < topology->node_count; n++)
        if (topology->os_node[n] == os_node)
            return (int)n;
    return -1;
}

int bpi_topology_where(const struct topology *topology, const void *at)
{
    void *page = (void *)((uintptr_t)at & ~(uintptr_t)4095);
    int os_node = -1;

    if (topology->node_count == 1 || !topology->hwloc || !hwloc_topology_is_thissystem(topology->hwloc))
        return -1;
    if (syscall(SYS_move_pages, 0, 1ul, &page, NULL, &os_node, 0)) /* with no target it only tells */
        return -1;
    return os_node < 0 ? -1 : bpi_topology_node(topology, os_node);
}

/* ---- how much memory ---- */

/* The number in a one-line file; UINT64_MAX where there is none ("max", no such file). */
static uint64_t read_limit(const char *path)
{
    char text[32] = "";
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "re");

    if (!file)
        return limit;
    if (fgets(text, sizeof(text), file) && text[0] >= '0' && text[0] <= '9') {
        errno = 0;
        unsigned long long number = strtoull(text, NULL, 10);
        if (!errno)
            limit = number;
    }
    fclose(file);
    return limit;
}

/*
 * The least limit of a cgroup and those above it that can be seen. `path` as in /proc/self/cgroup; `root` is the part
 * of the hierarchy that is mounted at `mount`: in a container the path may be told from the host's point of view.
 */
static uint64_t limit_along(const char *mount, const char *root, const char *path, const char *file_name)
{
    char at[CGROUP_PATH_MAX];
    char file[CGROUP_PATH_MAX + 64];
    size_t root_len = strcmp(root, "/") ? strlen(root) : 0;
    uint64_t least = UINT64_MAX;

    if (root_len && strncmp(path, root, root_len) == 0)
        path += root_len;
    else if (root_len)
        path = "";
    if (strstr(path, "/..")) /* outside of this namespace: only the mount itself can be looked at */
        path = "";
    if (snprintf(at, sizeof(at), "%s%s", mount, path) >= (int)sizeof(at))
        return least;

    size_t mount_len = strlen(mount);
    for (unsigned depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
        snprintf(file, sizeof(file), "%s/%s", at, file_name);
        uint64_t limit = read_limit(file);
        least = limit < least ? limit : least;
        char *slash = strrchr(at, '/');
        if (strlen(at) <= mount_len || !slash)
            break;
        *slash = '\0';
    }
    return least;
}

/* The path of this process in the hierarchy with the memory controller (v1), or in the unified one. */
static bool own_cgroup(bool unified, char path[CGROUP_PATH_MAX])
{
    char line[CGROUP_PATH_MAX];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");

    while (file && !found && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':');
        char *name = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!name)
            continue;
        controllers++;
        *name++ = '\0';
        name[strcspn(name, "\n")] = '\0';
        bool match = unified && !*controllers;
        for (char *rest = NULL, *word = strtok_r(controllers, ",", &rest); word && !unified && !match;
             word = strtok_r(NULL, ",", &rest))
            match = strcmp(word, "memory") == 0;
        if (match) {
            snprintf(path, CGROUP_PATH_MAX, "%s", name);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

/* A line of mountinfo: "id parent dev root mount options... - type source superoptions". Cuts it to pieces. */
static bool parse_mount(char *line, char **root, char **mount, char **type, char **options)
{
    char *rest = NULL;
    char *tail = strstr(line, " - ");
    char *source;

    if (!tail)
        return false;
    *tail = '\0';
    *root = *mount = NULL;
    char *word = strtok_r(line, " ", &rest);
    for (unsigned field = 0; word && field < 5; field++, word = strtok_r(NULL, " ", &rest)) {
        if (field == 3)
            *root = word;
        if (field == 4)
            *mount = word;
    }
    *type = strtok_r(tail + 3, " \n", &rest);
    source = strtok_r(NULL, " \n", &rest);
    *options = strtok_r(NULL, " \n", &rest);
    return *root && *mount && *type && source && *options;
}

static uint64_t cgroup_limit(void)
{
    char path[2][CGROUP_PATH_MAX];
    bool have[2] = {own_cgroup(false, path[0]), own_cgroup(true, path[1])};
    uint64_t least = UINT64_MAX;
    char *line = NULL, *root, *mount, *type, *options;
    size_t size = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");

    for (unsigned n = 0; file && n < CGROUP_LINES_MAX && getline(&line, &size, file) > 0; n++) {
        if (!parse_mount(line, &root, &mount, &type, &options))
            continue;
        uint64_t limit = UINT64_MAX;
        if (have[1] && strcmp(type, "cgroup2") == 0)
            limit = limit_along(mount, root, path[1], "memory.max");
        else if (have[0] && strcmp(type, "cgroup") == 0 && strstr(options, "memory"))
            limit = limit_along(mount, root, path[0], "memory.limit_in_bytes");
        least = limit < least ? limit : least;
    }
    free(line);
    if (file)
        fclose(file);
    return least;
}

uint64_t bpi_topology_memory(const struct topology *topology)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
    uint64_t limit = cgroup_limit();

    bytes = limit < bytes ? limit : bytes;
    /*
     * Nodes count only where some are forbidden to us: their sum is else the machine, and less exact (a guest that was
     * given memory later does not show it there).
     */
    hwloc_topology_t hwloc = topology->hwloc;
    if (!hwloc || !hwloc_topology_is_thissystem(hwloc) ||
        hwloc_bitmap_isequal(hwloc_topology_get_complete_nodeset(hwloc), hwloc_topology_get_topology_nodeset(hwloc)))
        return bytes;
    uint64_t nodes = 0;
    for (unsigned n = 0; n < topology->node_count; n++)
        nodes += topology->node_bytes[n];
    return nodes && nodes < bytes ? nodes : bytes;
}
