/* SPDX-License-Identifier: MIT */
/* Counters of all sessions added up, gauges read where they live. */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

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
    st.index_nodes = atomic_load_explicit(&pool->nodes.in_use, memory_order_relaxed);
    st.frames_total = frames_limit(pool);
    st.frames_populated = fs.frames_populated;
    st.frames_free += fs.frames_free;
    st.frames_spilled = fs.spilled;
    st.frames_strayed = fs.strayed;
    st.slabs_hugetlb = fs.slabs[SLAB_HUGETLB];
    st.slabs_thp = fs.slabs[SLAB_THP];
    st.slabs_small = fs.slabs[SLAB_SMALL];
    st.slabs_registered = bpi_channels_registered(pool);
    add_policy(pool, &st);
    st.pages_damaged = bpi_damage_count(pool);
    bpi_write_stats(pool, &st);
    st.channels = atomic_load_explicit(&pool->channel_count, memory_order_relaxed);
    bpi_budget_stats(pool, &st);
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
