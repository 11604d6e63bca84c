/* SPDX-License-Identifier: MIT */
/*
 * Recording: which pages a live program asks for, of a sample of all pages.
 *
 * A page is in the sample, or not, by a hash of its file and number, so that of a page in the sample every access that
 * is seen is recorded, and a replay of the sample in a pool of 1/N of the size says what the whole would do. Most hits
 * are not seen by the library at all: they end in the program. They do so only at full heat; so pages in the sample
 * are kept below it while they are recorded, and each of their hits comes by.
 *
 * One lock around the ring, taken for pages of the sample only; without a recording it costs one load, of a line that
 * nobody writes, on paths that do much more.
 */
#include <errno.h>
#include <stdlib.h>

#include "bufpool/pool.h"

#define ENTRIES_DEFAULT 65536u
#define ENTRIES_MAX     (1u << 26)

/* Multiplication and a fold: neighbours in a file must not be in the sample together. */
static uint32_t hash_id(uint64_t id)
{
    id *= 0x9e3779b97f4a7c15u;
    id ^= id >> 32;
    id *= 0xd6e8feb86659fd93u;
    return (uint32_t)(id >> 32);
}

static bool in_sample(uint64_t id, uint32_t limit)
{
    return hash_id(id) <= limit;
}

void bpi_trace_note(bp_session *s, uint64_t id, enum bp_trace_kind kind)
{
    struct recording *r = &s->pool->recording;
    uint32_t limit = atomic_load_explicit(&r->limit, memory_order_relaxed);

    const bp_file *file = atomic_load_explicit(&s->pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);

    if (!limit || !in_sample(id, limit) || !file) /* a frame that has become free under our hands is of none */
        return;
    pthread_mutex_lock(&r->lock);
    if (r->entry) { /* it may have been stopped since */
        r->entry[r->head & r->mask] = (struct bp_trace_entry){.file = file, .page = id & FRAME_ID_PAGE, .kind = kind};
        if (++r->head - r->tail > (uint64_t)r->mask + 1) {
            r->tail++;
            r->lost++;
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void bpi_trace_hit(bp_session *s, struct frame *f)
{
    uint32_t limit = atomic_load_explicit(&s->pool->recording.limit, memory_order_relaxed);
    uint64_t id = frame_id(f); /* if the page goes right now, another's, which is a page all the same */
    uint64_t seen;

    if (!limit || !in_sample(id, limit))
        return;
    bpi_trace_note(s, id, BP_TRACE_HIT);
    seen = frame_load(f);
    if ((seen & FRAME_BOUND) && (seen & FRAME_HEAT) == FRAME_HEAT)
        frame_cool(f, seen); /* or its next hit would end in the program */
}

/* Pages of the sample that are as hot as can be by now. Others may be using them. */
static void cool_sample(bp_pool *pool, uint32_t limit)
{
    uint32_t high = bpi_frames_high(pool->frames);

    for (uint32_t i = 0; i < high; i++) {
        uint64_t seen = frame_load(&pool->frame[i]);

        if ((seen & FRAME_BOUND) && (seen & FRAME_HEAT) == FRAME_HEAT && in_sample(frame_id(&pool->frame[i]), limit))
            frame_cool(&pool->frame[i], seen);
    }
}

int bp_pool_trace_start(bp_pool *pool, const struct bp_trace_options *options)
{
    struct bp_trace_options o = options ? *options : (struct bp_trace_options){.size = sizeof(o)};
    struct recording *r = &pool->recording;
    struct bp_trace_entry *entry;
    uint64_t entries = 1;
    uint32_t limit;
    int rc = 0;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (o.size < sizeof(o) || o.entries > ENTRIES_MAX)
        return -EINVAL;
    while (entries < (o.entries ? o.entries : ENTRIES_DEFAULT))
        entries *= 2;
    entry = calloc(entries, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    limit = UINT32_MAX / (o.one_in ? o.one_in : 1);
    limit = limit ? limit : 1;
    pthread_mutex_lock(&r->lock);
    if (r->entry) {
        rc = -EALREADY;
    } else {
        r->entry = entry;
        r->mask = (uint32_t)(entries - 1);
        r->head = r->tail = r->lost = 0;
        atomic_store_explicit(&r->limit, limit, memory_order_relaxed);
    }
    pthread_mutex_unlock(&r->lock);
    if (rc)
        free(entry);
    else
        cool_sample(pool, limit);
    return rc;
}

int bp_pool_trace_read(bp_pool *pool, struct bp_trace_entry entry[], unsigned n, uint64_t *lost)
{
    struct recording *r = &pool->recording;
    int count = 0;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (n > INT32_MAX)
        n = INT32_MAX;
    pthread_mutex_lock(&r->lock);
    if (!r->entry)
        count = -EINVAL;
    while (count >= 0 && (unsigned)count < n && r->tail < r->head)
        entry[count++] = r->entry[r->tail++ & r->mask];
    if (lost && count >= 0)
        *lost = r->lost;
    pthread_mutex_unlock(&r->lock);
    return count;
}

int bp_pool_trace_stop(bp_pool *pool)
{
    struct recording *r = &pool->recording;
    struct bp_trace_entry *entry;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    pthread_mutex_lock(&r->lock);
    atomic_store_explicit(&r->limit, 0, memory_order_relaxed);
    entry = r->entry;
    r->entry = NULL;
    pthread_mutex_unlock(&r->lock);
    free(entry);
    return 0;
}
