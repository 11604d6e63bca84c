/* SPDX-License-Identifier: MIT */
/* One session asks for one page after the other, as the inlined hits of a program do. */
#include "replay/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than pages and what the pool keeps beside them need, so that the limit on frames is the limit. */
#define MEMORY_BESIDE     (4u << 20)
#define MEMORY_PER_PAGE   (BP_PAGE_SIZE + 512u)
#define MEMORY_PER_SAMPLE 2048u

struct rig {
    bp_pool *pool;
    bp_file *file;
    bp_session *me;
};

static int rig_open(struct rig *rig, const struct trace *t, const struct replay_options *o, struct bp_error *error)
{
    uint64_t memory = o->memory ? o->memory
                                : MEMORY_BESIDE + (uint64_t)o->pages * MEMORY_PER_PAGE +
                                      (uint64_t)o->sample_pages * MEMORY_PER_SAMPLE;
    struct bp_pool_options pool = {.size = sizeof(pool),
                                   .memory = memory,
                                   .huge = BP_OFF,
                                   .registered = BP_OFF,
                                   .io = BP_IO_NULL,
                                   .frames_max = o->pages,
                                   .policy = o->policy,
                                   .sample_pages = o->sample_pages,
                                   .error = error};
    struct bp_file_options file = {.size = sizeof(file),
                                   .null_bytes = t->page_limit * BP_PAGE_SIZE,
                                   .extent_bytes = o->extent_bytes,
                                   .error = error};
    int rc = bp_pool_open(&pool, &rig->pool);

    if (!rc)
        rc = bp_file_open(rig->pool, t->name, &file, &rig->file);
    if (!rc) {
        rc = bp_session_open(rig->pool, NULL, &rig->me);
        if (rc)
            snprintf(error->text, sizeof(error->text), "session: %s", bp_strerror(rc));
    }
    return rc;
}

static void rig_close(struct rig *rig)
{
    int rc = 0;

    if (rig->me)
        rc = bp_session_close(rig->me);
    if (rig->pool && !rc)
        rc = bp_pool_close(rig->pool, NULL); /* and the file; what does not go is left to the end of the program */
    (void)rc;
}

/* Estimates are hits of a million. */
static double factor_of(const struct whatif *w)
{
    if (strcmp(w->unit, "ppm"))
        return 0;
    return !strcmp(w->name, "whatif_half") ? 0.5 : !strncmp(w->name, "whatif_", 7) ? strtod(w->name + 7, NULL) : 0;
}

double whatif_error(const struct trace *t, const struct whatif *w)
{
    return (double)w->value / 1e4 - 100 * outcome_hit_rate(t, w->misses);
}

static int take_stats(const struct rig *rig, const struct trace *t, uint32_t pages, struct outcome *out, char *why,
                      size_t size)
{
    struct bp_stats st = {.size = sizeof(st)};
    struct whatif w;
    enum bp_stat_kind kind;
    int rc = bp_pool_stats(rig->pool, &st);

    if (rc || st.hits + st.misses + st.joins != t->count) {
        snprintf(why, size, "%s: of %u accesses the pool counted %llu hits and %llu misses (%s)", t->name, t->count,
                 (unsigned long long)st.hits, (unsigned long long)st.misses, bp_strerror(rc));
        return -1;
    }
    if (pages && st.frames_total != pages) {
        snprintf(why, size, "%s: the pool has %llu frames, not %u", t->name, (unsigned long long)st.frames_total,
                 pages);
        return -1;
    }
    out->pages = (uint32_t)st.frames_total;
    out->misses = (uint32_t)(st.misses + st.joins);
    out->evictions = st.evictions;
    out->refaults = st.refaults;
    out->evict_examined = st.evict_examined;
    for (unsigned i = 0; bp_stats_item(&st, i, &w.name, &w.unit, &kind, &w.text, &w.value); i++)
        if (!strncmp(w.name, "whatif", 6) && out->whatif_count < REPLAY_WHATIF_MAX) {
            w.factor = factor_of(&w);
            w.misses = UINT32_MAX;
            out->whatif[out->whatif_count++] = w;
        }
    return 0;
}

int replay_run(const struct trace *t, const struct replay_options *o, struct outcome *out, char *why, size_t size)
{
    struct rig rig = {0};
    struct bp_error error = {0};
    struct bp_view view;
    int rc;

    *out = (struct outcome){.lru = UINT32_MAX, .min = UINT32_MAX};
    rc = rig_open(&rig, t, o, &error);
    if (rc) {
        snprintf(why, size, "%s: %s", t->name, error.text[0] ? error.text : bp_strerror(rc));
        goto out;
    }
    for (uint32_t i = 0; i < t->count; i++) {
        rc = bp_read(rig.me, rig.file, t->page[i], &view);
        if (rc) {
            snprintf(why, size, "%s: access %u: %s", t->name, i + 1, bp_session_error(rig.me));
            goto out;
        }
    }
    rc = take_stats(&rig, t, o->pages, out, why, size);
out:
    rig_close(&rig);
    return rc ? -1 : 0;
}

double outcome_hit_rate(const struct trace *t, uint32_t misses)
{
    return t->count ? 1 - (double)misses / t->count : 0;
}
