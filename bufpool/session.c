/* SPDX-License-Identifier: MIT */
/*
 * Sessions. A session lives in pages of its own that the kernel empties in a forked child (MADV_WIPEONFORK): there the
 * first test of every call finds no frames and answers BP_FORKED, which costs the parent nothing.
 */
#define BP_NO_INLINE /* the functions themselves */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bufpool/pool.h"

#define ASYNC_MAX_DEFAULT 1024u
#define ASYNC_MAX_LIMIT   (1u << 20)

static size_t page_round(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) & ~(page - 1);
}

static void set_up(bp_session *s, bp_pool *pool, const struct bp_session_options *options)
{
    s->leaf_pages = leaf_pages(&pool->nodes);
    s->map = pool->nodes.map;
    s->frame = pool->frame;
    s->base = pool->base;
    s->frames_total = pool->frames_total;
    s->pool = pool;
    if (options && options->home) {
        s->node = (unsigned)bpi_topology_node(&pool->topology, (int)options->home - 1);
        s->node_fixed = true;
    }
    s->node = session_node(s);
    s->async_max = options && options->async_max ? options->async_max : ASYNC_MAX_DEFAULT;
    s->backlog_end = &s->backlog;
    s->epoll_fd = s->timer_fd = -1;
    atomic_store_explicit(&s->event_fd, -1, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    s->number = ++pool->session_number;
    bpi_seat_take(&s->seat, policy_of(pool, s->node));
    if (options && options->label)
        snprintf(s->label, sizeof(s->label), "%s", options->label);
    else
        snprintf(s->label, sizeof(s->label), "session %u", s->number);
    s->next = pool->session;
    s->link = &pool->session;
    if (s->next)
        s->next->link = &s->next;
    pool->session = s;
    pool->session_count++;
    bpi_pool_share_out(pool);
    pthread_mutex_unlock(&pool->lock);
}

int bp_session_open(bp_pool *pool, const struct bp_session_options *options, bp_session **out)
{
    size_t bytes = page_round(sizeof(bp_session));
    bp_session *s;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (options && (options->size < sizeof(*options) || options->async_max > ASYNC_MAX_LIMIT))
        return -EINVAL;
    if (options && options->home &&
        (options->home > INT_MAX || bpi_topology_node(&pool->topology, (int)options->home - 1) < 0))
        return -EINVAL;
    s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return -ENOMEM;
    if (madvise(s, bytes, MADV_WIPEONFORK)) {
        munmap(s, bytes);
        return -ENOTSUP; /* needs Linux 4.14 */
    }
    s->mapped = bytes;
    set_up(s, pool, options);
    *out = s;
    return 0;
}

int bp_session_open_layout(bp_pool *pool, const struct bp_session_options *options, unsigned layout, bp_session **out)
{
    return layout == BP_LAYOUT ? bp_session_open(pool, options, out) : BP_MISMATCH;
}

int bp_session_close(bp_session *s)
{
    uint64_t pins;
    bp_pool *pool;

    if (bpi_forked(s))
        return BP_FORKED;
    pool = s->pool;
    pins = session_refs(s);
    if (pins)
        return bpi_session_fail(s, -EBUSY, "'%s' still holds %llu refs", s->label, (unsigned long long)pins);
    bpi_operations_close(s);
    bp_unreserve(s);
    bpi_magazine_flush(s);
    bpi_magazine_drain(&pool->nodes, &s->nodes);
    bpi_channel_release(s);
    pthread_mutex_lock(&pool->lock);
#define ADD_PAST(name) counter_add(&pool->past.name, atomic_load_explicit(&s->count.name, memory_order_relaxed));
    SESSION_COUNTERS(ADD_PAST)
#undef ADD_PAST
    counter_add(&pool->past.hits, atomic_load_explicit(&s->gets, memory_order_relaxed));
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    bpi_seat_leave(&s->seat);
    pool->session_count--;
    bpi_pool_share_out(pool);
    pthread_mutex_unlock(&pool->lock);
    bpi_release_notify(pool); /* what the magazine held */
    munmap(s, s->mapped);
    return 0;
}
