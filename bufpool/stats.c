/* SPDX-License-Identifier: MIT */
/* Counters of all sessions added up, gauges read where they live, and what the machine gave of what was asked. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bufpool/pool.h"

static uint64_t registrations(bp_pool *pool)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    uint64_t total = 0;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);
        unsigned slabs = bpi_frames_slab_count(pool->frames);

        for (unsigned k = 0; k < slabs; k++)
            total += atomic_load_explicit(&ch->registered[k], memory_order_relaxed) == SLAB_REGISTERED;
    }
    return total;
}

static void add_counters(struct bp_stats *st, const struct counters *c)
{
#define ADD_COUNTER(name) st->name += atomic_load_explicit(&c->name, memory_order_relaxed);
    SESSION_COUNTERS(ADD_COUNTER)
#undef ADD_COUNTER
}

/* Counters are complete. */
static void add_policy(bp_pool *pool, struct bp_stats *st)
{
    struct policy *p = policy_of(pool, 0);
    uint32_t hits[WHATIF_SIZES];

    bpi_policy_whatif(p, st->hits + st->misses + st->joins, hits);
    st->whatif_half = hits[0];
    st->whatif_1 = hits[1];
    st->whatif_2 = hits[2];
    st->whatif_4 = hits[3];
    st->whatif_8 = hits[4];
    st->policy_recent = atomic_load_explicit(&p->recent, memory_order_relaxed);
}

int bp_pool_stats(bp_pool *pool, struct bp_stats *out)
{
    struct bp_stats st = {.size = sizeof(st)};
    struct frames_stats fs;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (out->size < sizeof(st.size) || out->size > sizeof(st))
        return -EINVAL;
    pthread_mutex_lock(&pool->lock);
    add_counters(&st, &pool->past);
    for (bp_session *s = pool->session; s; s = s->next) {
        add_counters(&st, &s->count);
        st.hits += atomic_load_explicit(&s->gets, memory_order_relaxed);
        st.frames_pinned += session_refs(s);
        slim_lock_take(&s->magazine_lock);
        st.frames_free += s->magazine_count;
        slim_lock_give(&s->magazine_lock);
        st.frames_reserved += atomic_load_explicit(&s->aside, memory_order_relaxed);
    }
    st.frames_free += st.frames_reserved;
    st.frame_waiters = atomic_load_explicit(&pool->starving, memory_order_relaxed);
    st.sessions = pool->session_count;
    st.files = pool->file_count;
    pthread_mutex_unlock(&pool->lock);
    bpi_frames_stats(pool->frames, &fs);
    st.memory_limit = pool->options.memory;
    st.memory_frames = fs.frames_populated << BP_PAGE_SHIFT;
    st.memory_descriptors = bpi_frames_high(pool->frames) * (sizeof(struct frame) + sizeof(struct frame_cold));
    st.index_nodes = atomic_load_explicit(&pool->nodes.in_use, memory_order_relaxed);
    st.memory_index = st.index_nodes * (sizeof(*pool->nodes.slot) + sizeof(*pool->nodes.head));
    st.frames_total = pool->frames_total;
    st.frames_populated = fs.frames_populated;
    st.frames_free += fs.frames_free;
    st.slabs_hugetlb = fs.slabs[SLAB_HUGETLB];
    st.slabs_thp = fs.slabs[SLAB_THP];
    st.slabs_small = fs.slabs[SLAB_SMALL];
    st.slabs_registered = registrations(pool);
    add_policy(pool, &st);
    st.pages_damaged = bpi_damage_count(pool);
    bpi_write_stats(pool, &st);
    st.channels = atomic_load_explicit(&pool->channel_count, memory_order_relaxed);
    st.size = out->size;
    memcpy(out, &st, out->size); /* a caller built against an older header has fewer fields */
    return 0;
}

bool bp_stats_item(const struct bp_stats *st, unsigned i, const char **name, const char **unit, enum bp_stat_kind *kind,
                   const char **text, uint64_t *value)
{
#define COUNTER BP_STAT_COUNTER
#define GAUGE   BP_STAT_GAUGE
    static const struct {
        const char *name, *unit, *text;
        enum bp_stat_kind kind;
        size_t at;
    } item[] = {
#define STATS_ITEM(n, u, k, t) {#n, u, t, k, offsetof(struct bp_stats, n)},
        BP_STATS_TABLE(STATS_ITEM)
#undef STATS_ITEM
    };
#undef COUNTER
#undef GAUGE

    if (i >= sizeof(item) / sizeof(*item) || item[i].at + sizeof(uint64_t) > st->size)
        return false;
    *name = item[i].name;
    *unit = item[i].unit;
    *kind = item[i].kind;
    *text = item[i].text;
    memcpy(value, (const char *)st + item[i].at, sizeof(*value));
    return true;
}

/* ---- caps ---- */

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
    uint64_t got = registrations(pool);

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

int bp_pool_caps(bp_pool *pool, struct bp_cap cap[], int n)
{
    static void (*const fill[])(bp_pool *, struct bp_cap *) = {cap_io, cap_registered, cap_huge, cap_memory};
    int count = (int)(sizeof(fill) / sizeof(*fill));

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    for (int i = 0; i < count && i < n; i++) {
        memset(&cap[i], 0, sizeof(cap[i]));
        fill[i](pool, &cap[i]);
    }
    return count;
}
