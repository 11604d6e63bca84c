/* SPDX-License-Identifier: MIT */
/*
 * What the machine gave of what was asked, facility by facility: from what was tried for real and from what it answered,
 * never from version numbers. And the same turned round: a strict pool, which takes nothing less.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bufpool/pool.h"

#define TRIAL_BYTES ((size_t)2 << 20) /* what a strict pool registers to see whether it may */

static const char *choice_name(enum bp_choice c)
{
    return c == BP_ON ? "on" : c == BP_OFF ? "off" : "try";
}

static void cap_io(bp_pool *pool, struct bp_cap *c)
{
    static const char *const asked[] = {
        [BP_IO_TRY] = "try io_uring", [BP_IO_URING] = "io_uring", [BP_IO_PSYNC] = "pread", [BP_IO_NULL] = "null"};

    c->name = "io";
    c->asked = asked[pool->options.io];
    c->got = pool->io->name;
    snprintf(c->reason, sizeof(c->reason), "%s", pool->io_reason);
    snprintf(c->remedy, sizeof(c->remedy), "%s", pool->io_remedy);
}

static void cap_registered(bp_pool *pool, struct bp_cap *c)
{
    struct channel *ch = atomic_load_explicit(&pool->channel[0], memory_order_acquire);
    uint64_t got = bpi_channels_registered(pool);

    c->name = "registered buffers";
    c->asked = choice_name(pool->options.registered);
    c->got = pool->options.registered == BP_OFF ? "off" : got ? "on" : ch ? "off" : "not used yet";
    if (ch) {
        slim_lock_take(&ch->lock);
        snprintf(c->reason, sizeof(c->reason), "%s", ch->buffer_reason);
        slim_lock_give(&ch->lock);
    }
    if (c->reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) or registered_max");
}

/* ---- memory that may be locked ---- */

/* Who has this is not limited. */
static bool may_lock_all(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};

    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_IPC_LOCK & 1);
}

/* Whether RLIMIT_MEMLOCK is below what a ring may come to register: what each has, and both in bytes. */
static bool lock_is_short(const bp_pool *pool, uint64_t *limit, uint64_t *wanted)
{
    struct rlimit memlock = {RLIM_INFINITY, RLIM_INFINITY};
    uint64_t most = (uint64_t)pool->frames_total << BP_PAGE_SHIFT;

    *wanted = most < pool->options.registered_max ? most : pool->options.registered_max;
    getrlimit(RLIMIT_MEMLOCK, &memlock);
    *limit = memlock.rlim_cur == RLIM_INFINITY || may_lock_all() ? UINT64_MAX : memlock.rlim_cur;
    return pool->io == &bpi_io_uring && pool->options.registered != BP_OFF && *limit < *wanted;
}

static void cap_locked(bp_pool *pool, struct bp_cap *c)
{
    uint64_t limit, wanted;
    bool is_short = lock_is_short(pool, &limit, &wanted);

    c->name = "locked memory";
    c->asked = "what rings register";
    c->got = is_short ? "less" : "enough";
    if (!is_short)
        return;
    snprintf(c->reason, sizeof(c->reason),
             "RLIMIT_MEMLOCK is %llu KiB for all processes of this user; each ring may come to %llu KiB",
             (unsigned long long)(limit >> 10), (unsigned long long)(wanted >> 10));
    snprintf(c->remedy, sizeof(c->remedy), "raise it (ulimit -l, LimitMEMLOCK=), or lower registered_max");
}

/* ---- memory ---- */

static void cap_huge(bp_pool *pool, struct bp_cap *c)
{
    struct frames_stats fs;

    bpi_frames_stats(pool->frames, &fs);
    c->name = "huge pages";
    c->asked = choice_name(pool->options.huge);
    c->got = fs.slabs[SLAB_HUGETLB] ? "hugetlb"
             : fs.slabs[SLAB_THP]   ? "transparent"
             : fs.slabs[SLAB_SMALL] ? "none"
                                    : "not used yet";
    snprintf(c->reason, sizeof(c->reason), "%s", fs.huge_reason);
    if (fs.huge_reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "reserve some: sysctl vm.nr_hugepages, or allow transparent ones");
}

/* One of the two kinds. Nothing is missing where huge pages are off, or where the better kind was there for all. */
static void cap_backing(bp_pool *pool, struct bp_cap *c, enum slab_backing kind)
{
    struct frames_stats fs;

    bpi_frames_stats(pool->frames, &fs);
    unsigned placed = fs.slabs[SLAB_HUGETLB] + fs.slabs[SLAB_THP] + fs.slabs[SLAB_SMALL];
    c->asked = choice_name(pool->options.huge);
    c->got = fs.slabs[kind] == placed && placed ? "on"
             : pool->options.huge == BP_OFF     ? "off"
             : !placed                          ? "not used yet"
             : fs.slabs[kind]                   ? "in part"
             : fs.slabs[SLAB_HUGETLB] == placed ? "not needed"
                                                : "none";
    snprintf(c->reason, sizeof(c->reason), "%s", fs.reason[kind]);
}

static void cap_hugetlb(bp_pool *pool, struct bp_cap *c)
{
    c->name = "hugetlb";
    cap_backing(pool, c, SLAB_HUGETLB);
    if (c->reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "reserve them: sysctl vm.nr_hugepages, or nr_hugepages of the node");
}

static void cap_transparent(bp_pool *pool, struct bp_cap *c)
{
    c->name = "transparent huge pages";
    cap_backing(pool, c, SLAB_THP);
    if (c->reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled");
}

static void cap_placement(bp_pool *pool, struct bp_cap *c)
{
    static const char *const asked[] = {
        [BP_PLACE_LOCAL] = "local", [BP_PLACE_INTERLEAVE] = "interleave", [BP_PLACE_BIND] = "bind"};
    struct frames_stats fs;

    bpi_frames_stats(pool->frames, &fs);
    c->name = "placement";
    c->asked = asked[pool->options.place];
    c->got = pool->topology.node_count == 1 ? "one node"
             : fs.bind_reason[0]            ? "in part"
             : fs.frames_populated          ? c->asked
                                            : "not used yet";
    snprintf(c->reason, sizeof(c->reason), "%s", fs.bind_reason);
    if (c->reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "allow mbind (seccomp, CAP_SYS_NICE), or free memory of that node");
}

static void cap_memory(bp_pool *pool, struct bp_cap *c)
{
    struct frames_stats fs;

    bpi_frames_stats(pool->frames, &fs);
    c->name = "memory";
    c->asked = "budget";
    c->got = fs.limit_reason[0] ? "less" : "budget";
    snprintf(c->reason, sizeof(c->reason), "%s", fs.limit_reason);
    if (fs.limit_reason[0])
        snprintf(c->remedy, sizeof(c->remedy), "give the process more memory, or the pool less");
}

/* ---- files ---- */

static void cap_direct(bp_pool *pool, struct bp_cap *c)
{
    unsigned files = 0, direct = 0, wanted = 0;

    c->name = "direct I/O";
    c->asked = pool->options.strict ? "on" : "as each file";
    pthread_mutex_lock(&pool->lock);
    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        const bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_relaxed);

        if (!file)
            break;
        files += file->opens != 0;
        direct += file->opens && file->io.direct;
        wanted += file->opens && !file->io.direct && file->direct != BP_OFF;
    }
    c->got = !files ? "no file is open" : direct == files ? "on" : direct ? "some files" : "off";
    if (wanted) {
        snprintf(c->reason, sizeof(c->reason), "%s", pool->direct_reason);
        snprintf(c->remedy, sizeof(c->remedy),
                 "put the file on a file system with direct I/O (ext4, XFS, a block device)");
    }
    pthread_mutex_unlock(&pool->lock);
}

static void cap_writing(bp_pool *pool, struct bp_cap *c)
{
    c->name = "writing";
    c->asked = "as io";
    bpi_write_cap(pool, c);
}

int bp_pool_caps(bp_pool *pool, struct bp_cap cap[], int n)
{
    static void (*const fill[])(bp_pool *, struct bp_cap *) = {cap_io,      cap_registered,  cap_locked,    cap_huge,
                                                               cap_hugetlb, cap_transparent, cap_placement, cap_direct,
                                                               cap_memory,  cap_writing};
    int count = (int)(sizeof(fill) / sizeof(*fill));

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    for (int i = 0; i < count && i < n; i++) {
        memset(&cap[i], 0, sizeof(cap[i]));
        fill[i](pool, &cap[i]);
    }
    return count;
}

/* ---- the map of slabs ---- */

int bp_pool_slabs(bp_pool *pool, struct bp_slab slab[], int n)
{
    static const char *const state[] = {[SLAB_RESERVED] = "reserved",
                                        [SLAB_PLACED] = "placed",
                                        [SLAB_POPULATED] = "populated",
                                        [SLAB_DRAINING] = "draining",
                                        [SLAB_LEAVING] = "leaving"};
    static const char *const backing[] = {
        [SLAB_HUGETLB] = "hugetlb", [SLAB_THP] = "transparent", [SLAB_SMALL] = "small"};
    int count = (int)bpi_frames_slab_count(pool->frames);

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    for (int i = 0; i < count && i < n; i++) {
        struct frames_slab look;

        bpi_frames_slab_look(pool->frames, (unsigned)i, &look);
        bool placed = look.state != SLAB_RESERVED;
        slab[i] = (struct bp_slab){.state = state[look.state],
                                   .backing = placed ? backing[look.backing] : "",
                                   .node = placed ? pool->topology.os_node[look.node] : -1,
                                   .rings = look.rings,
                                   .bytes = (uint64_t)look.frames << BP_PAGE_SHIFT,
                                   .populated = (uint64_t)look.populated << BP_PAGE_SHIFT,
                                   .free = (uint64_t)look.free << BP_PAGE_SHIFT};
    }
    return count;
}

/* ---- strict ---- */

/* A ring like those to come, and memory registered with it. 0, or what was answered. */
static int try_registering(bp_pool *pool)
{
    struct io_channel *ch = NULL;
    void *at = mmap(NULL, TRIAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int rc = -ENOMEM;

    if (at == MAP_FAILED)
        return rc;
    rc = pool->io->open(CHANNEL_DEPTH, 1, pool->options.psync_threads, &ch);
    if (rc)
        goto out;
    rc = pool->io->buffer(ch, 0, at, TRIAL_BYTES);
    if (!rc)
        pool->io->buffer(ch, 0, NULL, 0);
    if (pool->io->close(ch) && !rc)
        rc = -EBUSY;
out:
    munmap(at, TRIAL_BYTES);
    return rc;
}

static int insist_on_registering(bp_pool *pool)
{
    uint64_t limit, wanted;
    int rc;

    if (pool->io != &bpi_io_uring || pool->options.registered == BP_OFF)
        return 0;
    if (lock_is_short(pool, &limit, &wanted)) {
        bpi_error_set(pool->options.error, -ENOTSUP,
                      "strict: locked memory: RLIMIT_MEMLOCK is %llu KiB, and each ring may come to register %llu KiB",
                      (unsigned long long)(limit >> 10), (unsigned long long)(wanted >> 10));
        return -ENOTSUP;
    }
    rc = try_registering(pool);
    if (rc) {
        bpi_error_set(pool->options.error, -ENOTSUP, "strict: registered buffers: %s", bp_strerror(rc));
        return -ENOTSUP;
    }
    return 0;
}

/* A frame of each node that frames may come from: where the system does not let us place memory it says so now. */
static int insist_on_placement(bp_pool *pool)
{
    struct frames_stats fs;
    uint32_t frame;

    if (pool->topology.node_count == 1)
        return 0;
    if (bpi_frames_alloc(pool->frames, bpi_topology_here(&pool->topology), 0, &frame) == 0)
        bpi_frames_free(pool->frames, frame, 0);
    bpi_frames_stats(pool->frames, &fs);
    if (!fs.bind_reason[0] && fs.frames_populated)
        return 0;
    bpi_error_set(pool->options.error, -ENOTSUP, "strict: placement: %s",
                  fs.bind_reason[0] ? fs.bind_reason : "the nodes named have no memory left");
    return -ENOTSUP;
}

int bpi_pool_insist(bp_pool *pool)
{
    int rc = insist_on_placement(pool);

    return rc ? rc : insist_on_registering(pool);
}
