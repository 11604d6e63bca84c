/* SPDX-License-Identifier: MIT */
/*
 * Who waits for frames, and in which order: by the time at which their calls began.
 *
 * The one who waits longest has the turn. Only he searches; the others sleep, each on a word of his own, until it is
 * their turn or their deadline. What becomes evictable wakes him alone (bpi_release_notify), so waiting costs one
 * search for each release however many wait, and one each SLICE_NS beside that, for what nobody announces.
 *
 * Who came later takes no frame while somebody waits (bpi_frame_turn): a stream of newcomers cannot starve the one who
 * waits. Operations of bp_get_start do not sleep here, since their thread may not come back for long: they try again
 * with each poll, and what they may take is decided by when they were started.
 *
 * What was found is kept in the session until its miss takes it, so nobody else can snatch it in between. And since
 * several frames (bp_reserve) are collected by the one who has the turn, two callers never hold parts of what both
 * need.
 *
 * The watchdog is the one who has the turn: he looks at the time whenever he looks for frames.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bufpool/pool.h"

#define SLICE_NS     (5 * NS_PER_MS) /* between two searches that nobody called for: inlined puts tell nobody (R12) */
#define SLICE_SHARE  32u             /* and so many times what the last search took, so that waiting stays cheap */
#define SLICE_MAX_NS (500 * NS_PER_MS)

/* A caller that waits; on its stack. */
struct turn {
    struct turn *next, *before; /* under pool.turn_lock, as since_ns is */
    uint64_t since_ns;
    _Atomic uint32_t word; /* futex: moves on when it should look */
};

/* ---- the queue ---- */

/* The word of the one who has the turn moves on. The lock is held; to be woken without it. */
static _Atomic uint32_t *call_first(bp_pool *pool)
{
    struct turn *first = pool->turn_first;

    if (!first)
        return NULL;
    /* release: pairs with the acquire load of him who then looks for what we released */
    atomic_fetch_add_explicit(&first->word, 1, memory_order_release);
    return &first->word;
}

/* The lock is held. */
static void tell_since(bp_pool *pool)
{
    const struct turn *first = pool->turn_first;

    /* relaxed: who reads an old one waits, or takes a frame, once out of order */
    atomic_store_explicit(&pool->turn_since_ns, first ? first->since_ns : UINT64_MAX, memory_order_relaxed);
}

static void queue_enter(bp_pool *pool, struct turn *me)
{
    struct turn *before;

    slim_lock_take(&pool->turn_lock);
    if (!pool->turn_first)
        pool->stalled_since_ns = bpi_now_ns();
    before = pool->turn_last; /* newcomers belong near the end */
    while (before && before->since_ns > me->since_ns)
        before = before->before;
    me->before = before;
    me->next = before ? before->next : pool->turn_first;
    *(before ? &before->next : &pool->turn_first) = me;
    *(me->next ? &me->next->before : &pool->turn_last) = me;
    tell_since(pool);
    slim_lock_give(&pool->turn_lock);
}

static void queue_leave(bp_pool *pool, struct turn *me, bool served)
{
    _Atomic uint32_t *word;

    slim_lock_take(&pool->turn_lock);
    *(me->before ? &me->before->next : &pool->turn_first) = me->next;
    *(me->next ? &me->next->before : &pool->turn_last) = me->before;
    if (served)
        pool->stalled_since_ns = bpi_now_ns();
    tell_since(pool);
    word = call_first(pool);
    slim_lock_give(&pool->turn_lock);
    if (word) /* he may be gone by now: then this wakes nobody, or somebody who looks again */
        bpi_futex_wake(word, 1);
}

static bool is_first(bp_pool *pool, const struct turn *me)
{
    bool first;

    slim_lock_take(&pool->turn_lock);
    first = pool->turn_first == me;
    slim_lock_give(&pool->turn_lock);
    return first;
}

void bpi_turn_call(bp_pool *pool)
{
    _Atomic uint32_t *word;

    slim_lock_take(&pool->turn_lock);
    word = call_first(pool);
    slim_lock_give(&pool->turn_lock);
    if (word)
        bpi_futex_wake(word, 1);
}

bool bpi_frame_turn(const bp_session *s)
{
    return s->since_ns <= atomic_load_explicit(&s->pool->turn_since_ns, memory_order_relaxed);
}

/* ---- the watchdog ---- */

/* How long nobody got a frame, if that is worth a line now; else 0. Nanoseconds. */
static uint64_t stalled_for(bp_pool *pool, uint64_t now)
{
    uint64_t for_ns = 0;

    slim_lock_take(&pool->turn_lock);
    if (now >= pool->stalled_since_ns + pool->watchdog_ns && now >= pool->watchdog_next_ns) {
        for_ns = now - pool->stalled_since_ns;
        pool->watchdog_next_ns = now + pool->watchdog_ns;
    }
    slim_lock_give(&pool->turn_lock);
    return for_ns;
}

static unsigned reads_under_way(bp_pool *pool)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);
    unsigned reads = 0;

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);

        reads += atomic_load_explicit(&ch->in_use, memory_order_relaxed);
    }
    return reads;
}

/* One line, not more often than once in watchdog_ns. No lock is held: the callback may take its time. */
static void watch_dog(bp_pool *pool, uint64_t now)
{
    char who[200];
    char line[400];
    uint64_t for_ns;

    if (!pool->watchdog_ns || !pool->options.log)
        return;
    for_ns = stalled_for(pool, now);
    if (!for_ns)
        return;
    bpi_describe_holders(pool, who, sizeof(who));
    snprintf(line, sizeof(line), "no frame was freed for %llu ms while %u callers wait for one; %u reads under way; %s",
             (unsigned long long)(for_ns / NS_PER_MS), atomic_load_explicit(&pool->starving, memory_order_relaxed),
             reads_under_way(pool), who);
    pool->options.log(pool->options.log_ctx, line);
}

/* ---- waiting ---- */

/*
 * Frames whose reads have ended but were not reaped cannot be evicted, and those who started them may never look:
 * complete them all (R6).
 */
void bpi_reap_everywhere(bp_session *s)
{
    unsigned count = atomic_load_explicit(&s->pool->channel_count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&s->pool->channel[i], memory_order_acquire);

        ch->ops->flush(ch->io);
        bpi_channel_help(ch, s, &s->count, 1, 0, NULL);
    }
}

/* As many as can be had up to want. 0, or an error that waiting does not cure. */
static int collect(bp_session *s, uint32_t frame[], unsigned want, unsigned *got)
{
    int rc = 0;

    bpi_reap_everywhere(s);
    while (!rc && *got < want) {
        rc = bpi_frame_take(s, 0, &frame[*got]);
        *got += rc == 0;
    }
    return rc == -EAGAIN ? 0 : rc;
}

/* How long to sleep after a search that took so long and found too little. */
static uint64_t slice_after(uint64_t took_ns)
{
    uint64_t slice = took_ns * SLICE_SHARE;

    return slice < SLICE_NS ? SLICE_NS : slice < SLICE_MAX_NS ? slice : SLICE_MAX_NS;
}

/* In the queue, until there are enough or the deadline. 0, -EAGAIN, or an error; *got of them are the caller's. */
static int wait_in_turn(bp_session *s, struct turn *me, uint32_t frame[], unsigned want, uint64_t deadline_ns,
                        unsigned *got)
{
    bp_pool *pool = s->pool;

    for (;;) {
        uint32_t seen = atomic_load_explicit(&me->word, memory_order_acquire);
        bool first = is_first(pool, me);
        uint64_t begin = bpi_now_ns();
        int rc = first ? collect(s, frame, want, got) : 0;
        uint64_t now;
        uint64_t until;

        if (rc || *got == want)
            return rc;
        now = bpi_now_ns();
        if (first)
            watch_dog(pool, now);
        if (now >= deadline_ns)
            return -EAGAIN;
        until = first ? now + slice_after(now - begin) : deadline_ns;
        bpi_futex_wait(&me->word, seen, until < deadline_ns ? until : deadline_ns);
    }
}

/*
 * Wait in order for so many single frames: all of them (0) or, with -EAGAIN at the deadline or an error, none. Nothing
 * that others need may be held back by the caller (R6).
 */
static int frames_wait(bp_session *s, uint32_t frame[], unsigned want, uint64_t deadline_ns)
{
    struct turn me = {.since_ns = s->since_ns};
    bp_pool *pool = s->pool;
    unsigned got = 0;
    int rc;

    /* seq_cst, and the fence in watch: who reads starving as 0, or watching as 0, comes before our attempt */
    atomic_fetch_add_explicit(&pool->starving, 1, memory_order_seq_cst);
    counter_add(&s->count.frame_waits, 1);
    queue_enter(pool, &me);
    bpi_puts_watch(pool);
    rc = wait_in_turn(s, &me, frame, want, deadline_ns, &got);
    bpi_puts_unwatch(pool);
    if (rc)
        for (unsigned i = 0; i < got; i++)
            bpi_frame_give(pool, frame[i], 0);
    queue_leave(pool, &me, rc == 0);
    atomic_fetch_sub_explicit(&pool->starving, 1, memory_order_relaxed);
    return rc;
}

/* ---- frames that a session has set aside ---- */

bool bpi_aside_take_slow(bp_session *s, uint32_t *frame)
{
    if (s->turn_kept) {
        s->turn_kept = false;
        *frame = s->turn_frame;
    } else if (s->reserved_count) {
        *frame = s->reserved[--s->reserved_count];
    } else {
        return false;
    }
    counter_set(&s->aside, s->reserved_count);
    return true;
}

void bpi_turn_wait(bp_session *s, uint64_t deadline_ns)
{
    struct timespec soon = {.tv_nsec = NS_PER_MS};

    if (s->turn_kept) { /* a frame is not what was missing, but room in the index */
        bpi_turn_end(s);
        nanosleep(&soon, NULL);
        return;
    }
    if (frames_wait(s, &s->turn_frame, 1, deadline_ns))
        return;
    s->turn_kept = true;
    counter_set(&s->aside, s->reserved_count + 1ull);
}

void bpi_turn_end(bp_session *s)
{
    if (likely(!s->turn_kept))
        return;
    s->turn_kept = false;
    counter_set(&s->aside, s->reserved_count);
    bpi_frame_give(s->pool, s->turn_frame, 0);
    bpi_release_notify(s->pool);
}

int bp_reserve(bp_session *s, unsigned frames)
{
    uint32_t *more;
    char who[200];
    uint64_t now;
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (!frames || frames > frames_limit(s->pool) - s->reserved_count)
        return bpi_session_fail(s, -EINVAL, "bp_reserve: %u frames, beside %u, of %u", frames, s->reserved_count,
                                frames_limit(s->pool));
    more = realloc(s->reserved, ((size_t)s->reserved_count + frames) * sizeof(*more));
    if (!more)
        return bpi_session_fail(s, -ENOMEM, "bp_reserve: a list of %u frames", frames);
    s->reserved = more;
    now = bpi_now_ns();
    s->since_ns = now;
    rc = frames_wait(s, s->reserved + s->reserved_count, frames, now + s->pool->wait_ns);
    if (rc == -EAGAIN) {
        counter_add(&s->count.busy, 1);
        bpi_describe_holders(s->pool, who, sizeof(who));
        return bpi_session_fail(s, -EBUSY, "%u frames at once were not to be had within %u ms: %s", frames,
                                s->pool->options.wait_ms, who);
    }
    if (rc)
        return bpi_session_fail(s, rc, "bp_reserve: %s", bp_strerror(rc));
    s->reserved_count += frames;
    counter_set(&s->aside, s->reserved_count);
    return 0;
}

int bp_unreserve(bp_session *s)
{
    int given;

    if (bpi_forked(s))
        return BP_FORKED;
    given = (int)s->reserved_count;
    for (; s->reserved_count; s->reserved_count--)
        bpi_frame_give(s->pool, s->reserved[s->reserved_count - 1], 0);
    counter_set(&s->aside, 0);
    free(s->reserved);
    s->reserved = NULL;
    if (given)
        bpi_release_notify(s->pool);
    return given;
}
