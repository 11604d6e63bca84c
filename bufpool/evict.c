/* SPDX-License-Identifier: MIT */
/*
 * Where frames come from: the session's magazine, the node's buddy, and at last other pages.
 *
 * Which page goes is the policy's business (policy.h): it hands out cold extents, some at a time, each to one evictor.
 * How it goes:
 *
 *   1  latch it exclusively, from exactly the word examined: no pin, no read, cold                  T10
 *   2  take it out of the index, leaving a shadow with its last use       (before 3: a page never has two frames)
 *   3  unbind: the version moves, views and hints of it fail from now on                            T11
 *   4  keep the frames for whoever asked, the rest goes home to the buddy
 *
 * Who wants a larger extent gets one of that size if it is the turn of one, or what became contiguous by chance, or a
 * block that is emptied by moving what lies in it (compact.c); failing that, blocks of its size are looked at one after
 * the other, wherever they lie, and one goes when all that lies in it is cold.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bufpool/pool.h"

/* A page can be spared three times before it is cold; the sweep after that finds it. */
#define SWEEPS_MAX 5u
/* Nodes that hold only shadows: one per so many frames, and some for small pools. */
#define SHADOW_NODES_SHIFT 2
#define SHADOW_NODES_MIN   64u
#define TRIM_FILES         16u /* looked at for some that can go */

/* What one evictor is after. */
struct hunt {
    bp_session *s;
    unsigned order;
    uint32_t found;   /* single frames kept in s->magazine */
    uint32_t block;   /* larger extent that is kept, or FRAME_NONE */
    uint32_t pages;   /* so many are to go, and their frames home; 0: frames are wanted */
    uint32_t evicted; /* pages */
    uint32_t extents; /* evicted */
    uint32_t examined;
    bool shadows;  /* leave them */
    bool any;      /* also what was read ahead just now */
    bool expected; /* there is some, and it was passed over */
    bool floors;   /* pass over pages of files that are not above theirs */
    bool hopeful;  /* something may become evictable by going on: it was cooled, or moved under us */
};

void bpi_frame_give(bp_pool *pool, uint32_t frame, unsigned order)
{
    bpi_frames_free(pool->frames, frame, order);
}

/* What a session has that others could use: frames, and entries on their way to a queue. Its lock is held. */
static void empty_magazine(bp_session *s)
{
    bpi_policy_flush(&s->seat);
    if (s->magazine_count)
        bpi_frames_free_many(s->pool->frames, s->magazine, s->magazine_count);
    s->magazine_count = 0;
}

void bpi_magazine_flush(bp_session *s)
{
    slim_lock_take(&s->magazine_lock);
    empty_magazine(s);
    slim_lock_give(&s->magazine_lock);
}

void bpi_magazines_flush(bp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (bp_session *s = pool->session; s; s = s->next)
        bpi_magazine_flush(s);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- one extent ---- */

/* The shadow of a page that goes: when it was used last, as far as anybody noticed. */
static index_entry shadow_of(const struct hunt *h, const struct frame_cold *cold, unsigned order)
{
    uint32_t stamp = atomic_load_explicit(&cold->stamp, memory_order_relaxed);

    return h->shadows ? entry_of_shadow(stamp, order, 0) : ENTRY_NONE;
}

/* For whom? The one who hunts, until he has what he wanted. */
static void keep_or_give(struct hunt *h, uint32_t head, unsigned order)
{
    bp_session *s = h->s;

    if (h->pages) {
        bpi_frame_give(s->pool, head, order);
    } else if (order == 0 && h->order == 0 && s->magazine_count < MAGAZINE_FRAMES && h->found < batch_of(s->pool)) {
        s->magazine[s->magazine_count++] = head;
        h->found++;
    } else if (order && order == h->order && h->block == FRAME_NONE) {
        h->block = head;
    } else {
        bpi_frame_give(s->pool, head, order);
    }
}

/* An extent of a file that has no more than its floor, while somebody else wants a frame. */
static bool is_spared(const struct hunt *h, uint32_t head)
{
    const bp_pool *pool = h->s->pool;
    const bp_file *file;

    if (likely(!h->floors))
        return false;
    file = atomic_load_explicit(&pool->file[frame_id(&pool->frame[head]) >> FRAME_ID_FILE_SHIFT], memory_order_acquire);
    return file && file != h->s->wanting &&
           atomic_load_explicit(&file->resident, memory_order_relaxed) <=
               atomic_load_explicit(&file->floor_pages, memory_order_relaxed);
}

/* Steps 1 to 3, for those who know the order or not. */
static inline __attribute__((always_inline)) bool evict_with(struct hunt *h, uint32_t head, uint64_t seen,
                                                             unsigned order, bool ours)
{
    bp_pool *pool = h->s->pool;
    struct frame *f = &pool->frame[head];
    struct frame_cold *cold = &pool->cold[head];
    bp_file *file;
    uint64_t id;

    if ((seen & FRAME_DIRTY) || !frame_lock_from(f, seen))
        return false;
    SYNC_POINT("evict:claimed");
    id = frame_id(f);
    file = atomic_load_explicit(&pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);
    if (unlikely(bpi_index_evict(&file->index, id & FRAME_ID_PAGE, order, head, shadow_of(h, cold, order)) ==
                 INDEX_HELD)) {
        latch_drop(f); /* somebody reads it in a run */
        return false;
    }
    file_shrank(file, 1ull << order);
    SYNC_POINT("evict:erased");
    if (ours)
        policy_gone(cold);
    if (frame_unbind(f) & FRAME_WAITERS)
        bpi_frame_wake(f);
    h->extents++;
    h->evicted += 1u << order;
    return true;
}

/* Steps 1 to 3. true: it is gone, and its frames are the caller's. ours: its entry of the policy is. */
static bool evict_extent(struct hunt *h, uint32_t head, uint64_t seen, bool ours)
{
    return evict_with(h, head, seen, frame_order(seen), ours);
}

/* The policy's choice; pages are what most of them are. */
static inline bool evict_victim(struct hunt *h, const struct victim *v)
{
    if (unlikely(frame_order(v->seen)))
        return evict_extent(h, v->head, v->seen, true);
    return evict_with(h, v->head, v->seen, 0, true);
}

/* Whether an extent could go now: nobody has it, and it is cold. A warm one is cooled. */
static bool is_cold(struct hunt *h, uint32_t head, uint64_t seen)
{
    if (seen & (FRAME_EXCL | FRAME_PINS | FRAME_DIRTY)) {
        h->hopeful |= (seen & FRAME_READING) && !(seen & FRAME_PINS); /* its reader has gone: it ends by itself */
        return false;
    }
    if (seen & FRAME_HEAT) {
        frame_cool(&h->s->pool->frame[head], seen);
        h->hopeful = true;
        return false;
    }
    return !is_spared(h, head);
}

/* Frames from f to the end of its extent; 1 for a free frame. */
static uint32_t extent_left(uint32_t f, uint64_t seen)
{
    uint32_t size = frame_is_free(seen) ? 1 : 1u << frame_order(seen);

    return size - (f & (size - 1));
}

/* Pages that are about to go lie anywhere in their indexes: ask for all of them before the first is needed. */
static void prefetch_victim(const bp_pool *pool, uint32_t head)
{
    uint64_t id = frame_id(&pool->frame[head]);
    bp_file *file = atomic_load_explicit(&pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);

    if (file) /* a head that moved under us may name any */
        bpi_index_prefetch(&file->index, id & FRAME_ID_PAGE);
}

/* ---- the policy's choice ---- */

/* Victims of so many pages are asked for, and go. false: the search is over. */
static bool evict_some(struct hunt *h, struct search *search, uint32_t pages)
{
    bp_session *s = h->s;
    struct victim victim[LOT];
    int n = bpi_policy_pick(&s->seat, search, victim, pages);

    for (int i = 0; i < n; i++)
        prefetch_victim(s->pool, victim[i].head);
    for (int i = 0; i < n; i++) {
        if (!is_spared(h, victim[i].head) && evict_victim(h, &victim[i])) {
            if (likely(!bpi_frames_draining(s->pool->frames, victim[i].head))) {
                keep_or_give(h, victim[i].head, frame_order(victim[i].seen));
            } else { /* it serves nobody, so this search is longer than others, and may spare more */
                bpi_frame_give(s->pool, victim[i].head, frame_order(victim[i].seen));
                search->rounds = 0;
            }
        } else {
            bpi_policy_put_back(&s->seat, &victim[i]);
            search->hopeful = true;
        }
    }
    return n >= 0;
}

/* What was evicted as part of something larger, or of another size, is in the buddy. */
static bool hunt_over(struct hunt *h, uint32_t *frame)
{
    bp_session *s = h->s;
    int n;

    if (h->pages)
        return h->evicted >= h->pages;
    if (h->order == 0) {
        if (!h->found && h->evicted) {
            n = bpi_frames_alloc_many(s->pool->frames, s->node, s->magazine, batch_of(s->pool));
            s->magazine_count = n > 0 ? (uint32_t)n : 0;
            h->found = s->magazine_count;
        }
        return h->found > 0;
    }
    if (h->block != FRAME_NONE) {
        *frame = h->block;
        return true;
    }
    return h->evicted >= 1u << h->order && bpi_frames_alloc(s->pool->frames, s->node, h->order, frame) == 0;
}

/*
 * By the policy, until what was wanted is found, or searches through all there is found nothing that could ever go, or
 * for larger extents until as many pages went and left no block.
 */
static bool hunt_queues(struct hunt *h, uint32_t *frame)
{
    uint32_t wanted = h->order ? 1u << h->order : batch_of(h->s->pool);
    uint32_t enough = h->order ? wanted : UINT32_MAX;
    bool over = false;

    for (unsigned round = 0; round < SWEEPS_MAX && !over; round++) {
        struct search search;
        bool more = true;

        bpi_policy_search(&h->s->seat, &search);
        search.any = h->any;
        search.expected = false;
        while (more && !over && h->evicted < enough) {
            more = evict_some(h, &search, wanted);
            over = hunt_over(h, frame);
        }
        h->hopeful = search.hopeful;
        h->expected |= search.expected;
        if (!h->hopeful || h->evicted >= enough)
            break;
    }
    bpi_policy_flush(&h->s->seat);
    return over;
}

/* ---- blocks ---- */

/* All of it is cold, or free; 0 frames of it if that changed, else how many could be had. */
static uint32_t evict_block(struct hunt *h, uint32_t from, uint32_t to, uint32_t gone[], uint8_t order[], unsigned *n)
{
    struct frame *frame = h->s->pool->frame;
    uint32_t pages = 0;

    *n = 0;
    for (uint32_t f = from; f < to;) {
        uint64_t seen = frame_load(&frame[f]);

        if ((seen & FRAME_BOUND) && is_cold(h, f, seen)) {
            if (evict_extent(h, f, seen, false)) {
                gone[*n] = f;
                order[(*n)++] = (uint8_t)frame_order(seen);
                pages += 1u << frame_order(seen);
            } else {
                h->hopeful = true;
            }
        }
        f += extent_left(f, seen);
    }
    return pages;
}

/* A block of the size wanted, that goes as a whole or not at all: kept if all of it was evicted, else in the buddy. */
static void sweep_block(struct hunt *h, uint32_t from, uint32_t to)
{
    struct frame *frame = h->s->pool->frame;
    uint32_t gone[1u << BP_ORDER_MAX];
    uint8_t order[1u << BP_ORDER_MAX];
    unsigned n;
    bool cold = true;

    for (uint32_t f = from; f < to;) {
        uint64_t seen = frame_load(&frame[f]);

        if (seen & FRAME_BOUND)
            cold &= is_cold(h, f, seen);
        else if (seen & FRAME_TAIL) /* part of an extent larger than the block: its head's business */
            cold = false;
        f += extent_left(f, seen);
    }
    if (!cold)
        return;
    if (evict_block(h, from, to, gone, order, &n) == to - from) {
        h->block = from;
        return;
    }
    for (unsigned i = 0; i < n; i++)
        bpi_frame_give(h->s->pool, gone[i], order[i]);
}

/* Move the hand block by block until one could be had, or sweeps over the whole pool found nothing that could go. */
static bool hunt_blocks(struct hunt *h, uint32_t *frame)
{
    bp_pool *pool = h->s->pool;
    uint32_t block = 1u << h->order;
    uint32_t blocks = bpi_frames_high(pool->frames) / block;
    bool over = false;

    for (unsigned round = 0; round < SWEEPS_MAX && !over; round++) {
        h->hopeful = false;
        for (uint32_t i = 0; i < blocks && !over; i++) {
            uint64_t hand = atomic_fetch_add_explicit(&pool->hand, block, memory_order_relaxed);
            uint32_t from = (uint32_t)(hand / block % blocks) * block;

            h->examined += block;
            if (bpi_frames_draining(pool->frames, from))
                continue;
            sweep_block(h, from, from + block);
            over = hunt_over(h, frame);
        }
        if (!h->hopeful)
            break;
    }
    return over;
}

/* ---- the hunt ---- */

/* The magazine's lock is held. */
static bool hunt(struct hunt *h, uint32_t *frame)
{
    struct seat *seat = &h->s->seat;
    _Atomic bool *evicted = &seat->policy->evicted;
    bool over;

    h->block = FRAME_NONE;
    seat->examined = seat->dirty_met = 0;
    h->floors = atomic_load_explicit(&h->s->pool->floors, memory_order_relaxed) != 0;
    over = h->order && bpi_compact(h->s, h->order, frame); /* enough is free, in pieces */
    if (!over)
        over = hunt_queues(h, frame);
    if (!over && h->order)
        over = bpi_compact(h->s, h->order, frame) || hunt_blocks(h, frame);
    if (!over && h->expected && !h->s->ahead_mark) { /* nothing but what somebody may be about to use */
        h->any = true;
        over = hunt_queues(h, frame);
    }
    if (!over && h->floors) { /* nothing but what was to be spared */
        h->floors = false;
        over = hunt_queues(h, frame);
    }
    if (h->extents && !atomic_load_explicit(evicted, memory_order_relaxed))
        atomic_store_explicit(evicted, true, memory_order_relaxed);
    counter_add(&h->s->count.evictions, h->extents);
    counter_add(&h->s->count.evict_examined, h->examined + seat->examined);
    if (unlikely(seat->dirty_met))
        bpi_write_ask(h->s->pool);
    return over;
}

#define OWN_LOOKS 64u /* extents looked at for one of a file's own */
#define OWN_MOST  4u  /* of them that go for one that comes, where the file has more than its ceiling */

bool bpi_evict_own(bp_session *s, bp_file *file, uint32_t *frame)
{
    struct hunt h = {.s = s, .shadows = true, .block = FRAME_NONE};
    uint64_t at = atomic_load_explicit(&file->own_at, memory_order_relaxed);
    struct index_item item;
    bool wrapped = false;
    bool found = false;

    for (unsigned i = 0; i < OWN_LOOKS && h.extents < OWN_MOST; i++) {
        uint32_t head;
        uint64_t seen;

        if (!bpi_index_next(&file->index, at, &item)) {
            if (wrapped || !at)
                break;
            wrapped = true;
            at = 0;
            continue;
        }
        at = item.page + (1ull << item.order);
        h.examined++;
        head = frame_head(s->pool->frame, item.frame, &seen);
        if (!(seen & FRAME_BOUND) || frame_id(&s->pool->frame[head]) != (file->id | item.page) ||
            !is_cold(&h, head, seen) || !evict_extent(&h, head, seen, false))
            continue;
        if (frame_order(seen) == 0 && !found && !bpi_frames_draining(s->pool->frames, head)) {
            *frame = head;
            found = true;
        } else { /* larger ones go home, and are taken from there */
            bpi_frame_give(s->pool, head, frame_order(seen));
        }
        if (!file_is_over(file))
            break;
    }
    atomic_store_explicit(&file->own_at, at, memory_order_relaxed);
    if (h.extents)
        atomic_store_explicit(&s->seat.policy->evicted, true, memory_order_relaxed);
    counter_add(&s->count.evictions, h.extents);
    counter_add(&s->count.evict_examined, h.examined);
    return found;
}

bool bpi_evict_this(bp_session *s, uint32_t head, uint64_t seen)
{
    struct hunt h = {.s = s, .shadows = true, .block = FRAME_NONE};
    bool gone;

    if ((seen & (FRAME_BOUND | FRAME_EXCL | FRAME_PINS)) != FRAME_BOUND)
        return false;
    slim_lock_take(&s->magazine_lock);
    gone = evict_extent(&h, head, seen, false);
    if (gone)
        bpi_frame_give(s->pool, head, frame_order(seen));
    counter_add(&s->count.evictions, h.extents);
    slim_lock_give(&s->magazine_lock);
    return gone;
}

/*
 * Shadows are bounded: over the limit, drop the oldest of one file, and go on to the next file next time. No lock: an
 * index stays one, whatever becomes of its file (R10); slots of files are used from below.
 */
static void trim_shadows(bp_pool *pool)
{
    uint32_t limit = (frames_limit(pool) >> SHADOW_NODES_SHIFT) + SHADOW_NODES_MIN;

    if (atomic_load_explicit(&pool->nodes.shadow_only, memory_order_relaxed) <= limit)
        return;
    for (unsigned tries = 0; tries < TRIM_FILES; tries++) {
        unsigned at = atomic_fetch_add_explicit(&pool->reclaim_at, 1, memory_order_relaxed) % FRAME_FILES_MAX + 1;
        bp_file *file = atomic_load_explicit(&pool->file[at], memory_order_acquire);

        if (!file) {
            atomic_store_explicit(&pool->reclaim_at, 1, memory_order_relaxed);
            file = atomic_load_explicit(&pool->file[1], memory_order_acquire);
        }
        if (file && bpi_index_reclaim(&file->index, 4))
            return;
    }
}

/* Take back what idle sessions keep in their magazines and baskets. One whose lock is taken is not idle. */
static void raid_magazines(bp_session *me)
{
    bp_pool *pool = me->pool;

    pthread_mutex_lock(&pool->lock);
    for (bp_session *s = pool->session; s; s = s->next)
        if (s != me && slim_lock_try(&s->magazine_lock)) {
            empty_magazine(s);
            slim_lock_give(&s->magazine_lock);
        }
    pthread_mutex_unlock(&pool->lock);
}

/* Fill an empty magazine from the buddy or, failing that, from other pages. Its lock is held. */
static int refill(bp_session *s, bool *evicted)
{
    struct hunt h = {.s = s, .shadows = true};
    int n = bpi_frames_alloc_many(s->pool->frames, session_node(s), s->magazine, batch_of(s->pool));
    uint32_t unused;

    if (n > 0) { /* ascending; handed out from the end, so turn them round */
        for (int i = 0; i < n / 2; i++) {
            uint32_t swap = s->magazine[i];

            s->magazine[i] = s->magazine[n - 1 - i];
            s->magazine[n - 1 - i] = swap;
        }
        s->magazine_count = (uint32_t)n;
        return 0;
    }
    if (n < 0 && n != -ENOMEM)
        return n;
    *evicted = hunt(&h, &unused);
    return *evicted ? 0 : -EAGAIN;
}

/* One frame from a magazine that has some, and what the rest of the group will need. Its lock is held. */
static uint32_t take_ahead(bp_session *s)
{
    unsigned more = s->group > 1 ? s->group - 1 : 0;
    uint32_t frame = s->magazine[--s->magazine_count];

    if (more > s->magazine_count)
        more = s->magazine_count;
    s->spare_frames = more;
    s->magazine_count -= more; /* handed out from the end as well, in the same order */
    memcpy(s->spare_frame, &s->magazine[s->magazine_count], more * sizeof(*s->spare_frame));
    return frame;
}

void bpi_spare_frames_give(bp_session *s)
{
    slim_lock_take(&s->magazine_lock);
    for (unsigned i = 0; i < s->spare_frames; i++) {
        if (s->magazine_count < MAGAZINE_FRAMES)
            s->magazine[s->magazine_count++] = s->spare_frame[i];
        else
            bpi_frame_give(s->pool, s->spare_frame[i], 0);
    }
    slim_lock_give(&s->magazine_lock);
    s->spare_frames = 0;
    bpi_release_notify(s->pool);
}

static int take_single(bp_session *s, uint32_t *frame)
{
    bool evicted = false;
    int rc = 0;

    for (unsigned tries = 0; tries < 2; tries++) {
        slim_lock_take(&s->magazine_lock);
        if (!s->magazine_count)
            rc = refill(s, &evicted);
        if (!rc)
            *frame = take_ahead(s);
        slim_lock_give(&s->magazine_lock);
        if (rc != -EAGAIN || tries)
            break;
        raid_magazines(s);
        rc = 0;
    }
    if (evicted)
        trim_shadows(s->pool);
    return rc;
}

int bpi_frame_take_slow(bp_session *s, unsigned order, uint32_t *frame)
{
    struct hunt h = {.s = s, .order = order, .shadows = true};
    int rc;

    if (order == 0)
        return take_single(s, frame);
    rc = bpi_frames_alloc(s->pool->frames, session_node(s), order, frame);
    if (rc == -ENOMEM) {
        slim_lock_take(&s->magazine_lock);
        rc = hunt(&h, frame) ? 0 : -EAGAIN;
        slim_lock_give(&s->magazine_lock);
    }
    if (h.evicted)
        trim_shadows(s->pool);
    return rc;
}

void bpi_admit(bp_session *s, const struct arrival a[], unsigned n)
{
    slim_lock_take(&s->magazine_lock);
    bpi_policy_admit(&s->seat, a, n);
    if (s->seat.misses >= batch_of(s->pool))
        bpi_policy_flush(&s->seat);
    slim_lock_give(&s->magazine_lock);
}

int bpi_nodes_reserve(bp_session *s)
{
    bp_pool *pool = s->pool;
    int rc = bpi_magazine_fill(&pool->nodes, &s->nodes);

    /* at the limit: frames give way to nodes, or pages that are alone in their leaves, without a shadow */
    for (unsigned tries = 0; rc && tries < 16; tries++) {
        struct hunt h = {.s = s, .pages = MAGAZINE_NODES};
        uint32_t unused;

        if (!bpi_budget_trade(pool)) {
            slim_lock_take(&s->magazine_lock);
            hunt(&h, &unused);
            slim_lock_give(&s->magazine_lock);
            trim_shadows(pool);
        }
        rc = bpi_magazine_fill(&pool->nodes, &s->nodes);
    }
    return rc;
}

void bpi_describe_holders(bp_pool *pool, char *text, size_t size)
{
    struct frames_stats fs;
    size_t at;

    bpi_frames_stats(pool->frames, &fs);
    at = (size_t)snprintf(text, size, "%llu frames, %llu free; refs held:", (unsigned long long)fs.frames_populated,
                          (unsigned long long)fs.frames_free);
    pthread_mutex_lock(&pool->lock);
    for (bp_session *s = pool->session; s && at < size; s = s->next) {
        uint64_t pins = session_refs(s);

        if (pins)
            at += (size_t)snprintf(text + at, size - at, " '%s' %llu", s->label, (unsigned long long)pins);
    }
    pthread_mutex_unlock(&pool->lock);
    if (at < size)
        bpi_write_describe(pool, text + at, size - at);
}
