/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing a pool. Opening looks at the machine once (topology, io_uring probe), reserves address space for
 * everything the pool can become, and touches almost none of it.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "bufpool/reserve.h"

#define WAIT_MS_DEFAULT         10000u
#define WAIT_MS_MAX             (3600u * 1000)
#define WATCHDOG_MS_DEFAULT     5000u
#define REGISTERED_MAX_DEFAULT  (1ull << 30)
#define PSYNC_THREADS_DEFAULT   8u
#define PSYNC_THREADS_MAX       256u
#define DIRTY_TARGET_DEFAULT    10u
#define DIRTY_TRIGGER_DEFAULT   40u
#define CHANNELS_PER_CPU        4u
#define SHADOW_CLOCK_RANGE_LOG2 4u         /* shadows' stamps span so many pools' worth of misses, as a power of two */
#define HUGE_FROM               (8u << 20) /* descriptors of smaller pools stay on 4 KiB pages; bytes */

/* A stock is filled by this part of the pool: less than the newest pages have, which it is taken from. */
#define BATCH_SHARE         200u
#define NODES_PER_FRAME_MAX 3u     /* address space of nodes: so many for each frame, */
#define NODES_EXTRA         65536u /* and some */

bool bpi_pool_forked(const bp_pool *pool)
{
    return pool->pid != getpid();
}

/* ---- options ---- */

static int refuse(const struct bp_pool_options *o, int code, const char *what)
{
    bpi_error_set(o->error, code, "%s", what);
    return code;
}

static int check_options(const struct bp_pool_options *o)
{
    if (o->size != sizeof(*o))
        return refuse(o, -EINVAL, "bp_pool_options.size is not sizeof(struct bp_pool_options)");
    if (o->memory < BP_MEMORY_MIN) {
        bpi_error_set(o->error, -EINVAL, "memory is %llu bytes; the least is %u (1 MiB)", (unsigned long long)o->memory,
                      BP_MEMORY_MIN);
        return -EINVAL;
    }
    if (o->memory_max && o->memory_max < o->memory)
        return refuse(o, -EINVAL, "memory_max is less than memory");
    if ((unsigned)o->huge > BP_OFF || (unsigned)o->registered > BP_OFF || (unsigned)o->io > BP_IO_NULL)
        return refuse(o, -EINVAL, "huge, registered or io is none of the values of its enum");
    if ((unsigned)o->policy > BP_POLICY_STABLE)
        return refuse(o, -EINVAL, "policy is none of the values of its enum");
    if (o->sample_pages > MINI_MAX)
        return refuse(o, -EINVAL, "sample_pages is more than 8,192");
    if ((unsigned)o->place > BP_PLACE_BIND)
        return refuse(o, -EINVAL, "place is none of the values of its enum");
    if (o->place == BP_PLACE_BIND && !o->nodes)
        return refuse(o, -EINVAL, "BP_PLACE_BIND names no nodes");
    if (o->wait_ms > WAIT_MS_MAX)
        return refuse(o, -EINVAL, "wait_ms is more than an hour");
    if (o->channels_max > CHANNELS_MAX)
        return refuse(o, -EINVAL, "channels_max is more than 256");
    if (o->psync_threads > PSYNC_THREADS_MAX)
        return refuse(o, -EINVAL, "psync_threads is more than 256");
    if (o->dirty_target > 90 || o->dirty_trigger > 90 ||
        (o->dirty_target ? o->dirty_target : DIRTY_TARGET_DEFAULT) >
            (o->dirty_trigger ? o->dirty_trigger : DIRTY_TRIGGER_DEFAULT))
        return refuse(o, -EINVAL,
                      "dirty_target and dirty_trigger are percent, 90 at the most, and the target is the smaller");
    return 0;
}

static void fill_defaults(struct bp_pool_options *o, unsigned cpus)
{
    unsigned channels = CHANNELS_PER_CPU * cpus;

    if (o->strict) {
        o->huge = o->huge == BP_TRY ? BP_ON : o->huge;
        o->io = o->io == BP_IO_TRY ? BP_IO_URING : o->io;
        o->registered = o->registered == BP_TRY ? BP_ON : o->registered;
    }
    o->memory_max = o->memory_max ? o->memory_max : o->memory;
    o->wait_ms = o->wait_ms ? o->wait_ms : WAIT_MS_DEFAULT;
    o->watchdog_ms = o->watchdog_ms ? o->watchdog_ms : WATCHDOG_MS_DEFAULT;
    o->registered_max = o->registered_max ? o->registered_max : REGISTERED_MAX_DEFAULT;
    o->dirty_target = o->dirty_target ? o->dirty_target : DIRTY_TARGET_DEFAULT;
    o->dirty_trigger = o->dirty_trigger ? o->dirty_trigger : DIRTY_TRIGGER_DEFAULT;
    o->psync_threads = o->psync_threads ? o->psync_threads : PSYNC_THREADS_DEFAULT;
    if (!o->channels_max)
        o->channels_max = channels < CHANNELS_MAX ? channels : CHANNELS_MAX;
}

/* ---- parts ---- */

static int check_memory(bp_pool *pool)
{
    const struct bp_pool_options *o = &pool->options;
    uint64_t pages = o->memory / BP_PAGE_SIZE;
    uint32_t frames;

    if (o->frames_max && o->frames_max < pages)
        pages = o->frames_max;
    pool->sizes = bpi_policy_sizes(pages, o->sample_pages);
    pool->beside = pool->sizes.bytes + bpi_damage_bytes(pages);
    frames = bpi_budget_frames(pool, o->memory);
    pool->memory_machine = bpi_topology_memory(&pool->topology);
    if (pool->memory_machine && o->memory_max > pool->memory_machine) {
        bpi_error_set(o->error, -ENOMEM, "memory is %llu MiB, but this machine (or its cgroup) has %llu MiB",
                      (unsigned long long)(o->memory_max >> 20), (unsigned long long)(pool->memory_machine >> 20));
        return -ENOMEM;
    }
    if (o->memory_max >> BP_PAGE_SHIFT > ENTRY_NUMBER_MAX) {
        bpi_error_set(o->error, -EINVAL, "memory is more than 4 TiB, the most a pool can have");
        return -EINVAL;
    }
    if (!frames) {
        bpi_error_set(o->error, -EINVAL, "sample_pages %u leave no memory for pages", o->sample_pages);
        return -EINVAL;
    }
    pool->frames_total = bpi_budget_frames(pool, o->memory_max);
    atomic_store_explicit(&pool->frames_limit, frames, memory_order_relaxed);
    atomic_store_explicit(&pool->memory, o->memory, memory_order_relaxed);
    return 0;
}

static int choose_io(bp_pool *pool, const struct io_ops *io)
{
    const struct bp_pool_options *o = &pool->options;
    int rc;

    if (io || o->io >= BP_IO_PSYNC) {
        pool->io = io ? io : o->io == BP_IO_NULL ? &bpi_io_null : &bpi_io_psync;
        return 0;
    }
    rc = bpi_io_uring_probe(pool->io_reason, pool->io_remedy, sizeof(pool->io_reason));
    pool->io = rc ? &bpi_io_psync : &bpi_io_uring;
    if (rc && o->io == BP_IO_URING) {
        bpi_error_set(o->error, -ENOTSUP, "io_uring was asked for, but %s (%s)", pool->io_reason, pool->io_remedy);
        return -ENOTSUP;
    }
    return 0;
}

void bpi_pool_share_out(bp_pool *pool)
{
    uint32_t batch = frames_limit(pool) / BATCH_SHARE / (pool->session_count ? pool->session_count : 1);

    batch = batch < 1 ? 1 : batch > MAGAZINE_FRAMES ? MAGAZINE_FRAMES : batch;
    atomic_store_explicit(&pool->batch, batch, memory_order_relaxed);
    bpi_budget_nodes(pool);
}

/* Flags of the nodes that the options name: how many, 0 for all; -EINVAL: one of them is not there. */
static int named_nodes(const bp_pool *pool, bool named[TOPOLOGY_NODES_MAX])
{
    const struct bp_pool_options *o = &pool->options;
    int count = 0;

    for (int bit = 0; bit < 64; bit++) {
        int node = bpi_topology_node(&pool->topology, bit);

        if (!(o->nodes >> bit & 1))
            continue;
        if (node < 0) {
            bpi_error_set(o->error, -EINVAL, "NUMA node %d is not there, or has no memory for this process", bit);
            return -EINVAL;
        }
        named[node] = true;
        count++;
    }
    return count;
}

static void place_frames(bp_pool *pool)
{
    static const enum frames_place place[] = {
        [BP_PLACE_LOCAL] = FRAMES_LOCAL, [BP_PLACE_INTERLEAVE] = FRAMES_INTERLEAVE, [BP_PLACE_BIND] = FRAMES_BIND};
    bool named[TOPOLOGY_NODES_MAX] = {false};
    int count = named_nodes(pool, named);

    bpi_frames_place(pool->frames, place[pool->options.place], count > 0 ? named : NULL);
}

static int open_memory(bp_pool *pool)
{
    static const enum slab_huge huge[] = {[BP_TRY] = SLAB_HUGE_TRY, [BP_ON] = SLAB_HUGE_ON, [BP_OFF] = SLAB_HUGE_OFF};
    const struct bp_pool_options *o = &pool->options;
    size_t frames = pool->frames_total;
    unsigned bits = 32 - (unsigned)__builtin_clz(pool->frames_total);
    int rc;

    rc = bpi_frames_open(&pool->topology, (uint64_t)frames << BP_PAGE_SHIFT, huge[o->huge], &pool->frames);
    if (rc)
        return rc;
    place_frames(pool);
    pool->base = bpi_frames_base(pool->frames);
    pool->frame = reserve_array(frames * sizeof(*pool->frame), HUGE_FROM);
    pool->cold = reserve_array(frames * sizeof(*pool->cold), HUGE_FROM);
    pool->dirty = reserve_array(frames * sizeof(*pool->dirty), SIZE_MAX);
    if (!pool->frame || !pool->cold || !pool->dirty)
        return -ENOMEM;
    /* in a forked child empty rather than absent: puts and views of refs of the parent need not ask (R11) */
    if (madvise(pool->frame, frames * sizeof(*pool->frame), MADV_DOFORK) ||
        madvise(pool->frame, frames * sizeof(*pool->frame), MADV_WIPEONFORK))
        return -ENOTSUP;
    pool->slow_percent = o->dirty_target + o->dirty_trigger;
    rc = bpi_damage_open(&pool->damage, pool->options.memory / BP_PAGE_SIZE);
    if (rc)
        return rc;
    rc = bpi_policy_open(&pool->policy[0], pool->frames_total, &pool->sizes, o->policy);
    if (rc)
        return rc;
    pool->policy[0].frame = pool->frame;
    pool->policy[0].cold = pool->cold;
    pool->policy[0].clock_shift =
        bits + SHADOW_CLOCK_RANGE_LOG2 > SHADOW_CLOCK_BITS ? bits + SHADOW_CLOCK_RANGE_LOG2 - SHADOW_CLOCK_BITS : 0;
    rc = bpi_nodes_open(&pool->nodes, NODES_PER_FRAME_MAX * frames + NODES_EXTRA < ENTRY_NUMBER_MAX
                                          ? (uint32_t)(NODES_PER_FRAME_MAX * frames + NODES_EXTRA)
                                          : ENTRY_NUMBER_MAX);
    if (!rc)
        bpi_budget_set(pool, o->memory, frames_limit(pool));
    return rc;
}

/* A pool that insists on huge pages finds out now whether there are any. */
static int try_huge(bp_pool *pool)
{
    struct frames_stats fs;
    uint32_t frame;
    int rc;

    if (pool->options.huge != BP_ON)
        return 0;
    rc = bpi_frames_alloc(pool->frames, bpi_topology_here(&pool->topology), 0, &frame);
    if (!rc) {
        bpi_frames_free(pool->frames, frame, 0);
        return 0;
    }
    bpi_frames_stats(pool->frames, &fs);
    bpi_error_set(pool->options.error, rc, "huge pages were asked for, but %s",
                  fs.huge_reason[0] ? fs.huge_reason : "the system gives none");
    return rc;
}

static void free_parts(bp_pool *pool)
{
    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_relaxed);

        if (!file)
            break;
        bpi_index_destroy(&file->index);
        free(file->writes);
        free(file);
    }
    if (pool->damage.limit)
        bpi_damage_close(&pool->damage);
    if (pool->nodes.slot)
        bpi_nodes_close(&pool->nodes);
    if (pool->policy[0].size)
        bpi_policy_close(&pool->policy[0]);
    if (pool->cold)
        munmap(pool->cold, pool->frames_total * sizeof(*pool->cold));
    if (pool->dirty)
        munmap(pool->dirty, pool->frames_total * sizeof(*pool->dirty));
    if (pool->frame)
        munmap(pool->frame, pool->frames_total * sizeof(*pool->frame));
    if (pool->frames)
        bpi_frames_close(pool->frames);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->writer_lock);
    pthread_mutex_destroy(&pool->recording.lock);
    free(pool->recording.entry);
    free(pool);
}

/* ---- open ---- */

int bpi_pool_open(const struct bp_pool_options *options, const struct io_ops *io, bp_pool **out)
{
    bool named[TOPOLOGY_NODES_MAX];
    bp_pool *pool;
    int rc;

    rc = check_options(options);
    if (rc)
        return rc;
    pool = aligned_alloc(_Alignof(bp_pool), sizeof(*pool)); /* a multiple of it */
    if (!pool)
        return -ENOMEM;
    memset(pool, 0, sizeof(*pool));
    pool->options = *options;
    pool->pid = getpid();
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_init(&pool->writer_lock, NULL);
    pthread_mutex_init(&pool->recording.lock, NULL);
    rc = bpi_topology_open(&pool->topology);
    if (rc) {
        bpi_error_set(options->error, rc, "hwloc cannot read this machine's topology: %s", bp_strerror(rc));
        free_parts(pool);
        return rc;
    }
    fill_defaults(&pool->options, pool->topology.cpu_count);
    pool->channels_max = pool->options.channels_max;
    pool->wait_ns = pool->options.wait_ms * NS_PER_MS;
    pool->watchdog_ns = pool->options.watchdog_ms == UINT32_MAX ? 0 : pool->options.watchdog_ms * NS_PER_MS;
    atomic_store_explicit(&pool->turn_since_ns, UINT64_MAX, memory_order_relaxed);
    rc = named_nodes(pool, named);
    rc = rc < 0 ? rc : check_memory(pool);
    if (!rc)
        rc = choose_io(pool, io);
    if (!rc) {
        rc = open_memory(pool);
        if (rc)
            bpi_error_set(options->error, rc, "address space for %llu MiB: %s",
                          (unsigned long long)(options->memory >> 20), bp_strerror(rc));
        else
            rc = try_huge(pool);
        if (!rc && pool->options.strict)
            rc = bpi_pool_insist(pool);
    }
    if (rc) {
        struct topology topology = pool->topology;

        free_parts(pool); /* uses the topology last */
        bpi_topology_close(&topology);
        return rc;
    }
    *out = pool;
    return 0;
}

int bp_pool_open(const struct bp_pool_options *options, bp_pool **out)
{
    return bpi_pool_open(options, NULL, out);
}

/* ---- close ---- */

static int sessions_open(bp_pool *pool, struct bp_error *error)
{
    unsigned count;
    char text[200] = "";
    size_t at = 0;

    pthread_mutex_lock(&pool->lock);
    count = pool->session_count;
    for (bp_session *s = pool->session; s && at < sizeof(text); s = s->next) {
        uint64_t pins = session_refs(s);

        at += (size_t)snprintf(text + at, sizeof(text) - at, " '%s' (%llu refs)", s->label, (unsigned long long)pins);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!count)
        return 0;
    bpi_error_set(error, -EBUSY, "%u sessions are open:%s", count, text);
    return -EBUSY;
}

int bp_pool_close(bp_pool *pool, struct bp_error *error)
{
    struct topology topology;
    int rc;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    rc = sessions_open(pool, error);
    if (rc)
        return rc;
    for (unsigned i = 1; i <= FRAME_FILES_MAX; i++) {
        bp_file *file = atomic_load_explicit(&pool->file[i], memory_order_relaxed);

        while (file && file->opens) {
            rc = bp_file_close(file, error);
            if (rc)
                return rc;
        }
        if (!file)
            break;
    }
    rc = bpi_writer_close(pool);
    if (!rc)
        rc = bpi_channels_close(pool); /* waits for what is under way */
    if (rc) {
        bpi_error_set(error, rc, "a read or write has not ended; the pool's memory is left where it is");
        return rc;
    }
    topology = pool->topology;
    free_parts(pool);
    bpi_topology_close(&topology);
    return 0;
}
