/* SPDX-License-Identifier: MIT */
/*
 * Misses: from an absent page to a present one.
 *
 *   1  take a request and a frame (evict.c); fill in the descriptor with plain stores; publish it       T1
 *   2  enter it in the index in one walk; something live there -> give all back and use that
 *   3  queue the read
 *   4  reaped, by whoever looks first (complete.c)
 *
 * Locked instructions and stores that wait behind them are a good part of what a miss costs the processor. So the
 * misses of one call are prepared in groups: requests and frames are taken, and reads queued, with one round of locks
 * for GROUP_READS. What a group holds is handed on before its thread waits for anything or returns: others may be
 * waiting for it (R6).
 *
 * Who needs a page whose read is under way pins the frame (T2) and waits; the pin is already the ref's. One read serves
 * any number of waiters, and its outcome, good or bad, reaches all of them: the frame cannot be reused while they hold
 * it.
 *
 * No thread waits for another application thread to complete a read (R6): it helps in the channel named in the
 * frame's descriptor, whoever submitted there.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bufpool/pool.h"

#define STALE_MAX     1000000 /* looks at a translation that moves under us, before giving up */
#define PREFETCH      8u      /* pages of a batch whose index lines are asked for ahead */
#define WAIT_SLICE_NS (100 * NS_PER_MS)
#define RUN_SLICE_NS  (NS_PER_MS / 5)

/* ---- the file's end ---- */

int bpi_file_reaches(bp_file *file, uint64_t page)
{
    uint64_t bytes;
    int rc;

    if (page >= BP_PAGE_MAX)
        return BP_EOF;
    if (page << BP_PAGE_SHIFT < atomic_load_explicit(&file->bytes, memory_order_relaxed))
        return 0;
    rc = bp_file_size(file, &bytes);
    if (rc)
        return rc;
    return page << BP_PAGE_SHIFT < bytes ? 0 : BP_EOF;
}

/* Largest extent for a miss at page: the file's, or what is read ahead, less where the file ends before it does. */
static unsigned miss_order(const bp_session *s, const bp_file *file, uint64_t page)
{
    uint64_t bytes = atomic_load_explicit(&file->bytes, memory_order_relaxed);
    uint64_t pages = (bytes + BP_PAGE_SIZE - 1) >> BP_PAGE_SHIFT;
    unsigned order = s->ahead_order > file->order ? s->ahead_order : file->order;

    while (order && (page | extent_mask(order)) >= pages)
        order--;
    return order;
}

/* ---- starting a read ---- */

/* In turn: while others wait for frames, who came later takes none. */
static inline int take_in_turn(bp_session *s, unsigned order, uint32_t *head)
{
    if (unlikely(atomic_load_explicit(&s->pool->starving, memory_order_relaxed)) && !bpi_frame_turn(s))
        return -EAGAIN;
    return bpi_frame_take(s, order, head);
}

/* Restoring what once was in memory must not cost what is there now. */
static int take_free(bp_session *s, unsigned *order, uint32_t *head)
{
    int rc = bpi_frames_alloc(s->pool->frames, s->node, *order, head);

    if (rc == -ENOMEM && *order) {
        *order = 0;
        rc = bpi_frames_alloc(s->pool->frames, s->node, 0, head);
    }
    return rc == -ENOMEM ? -EAGAIN : rc;
}

/*
 * Frames for a miss, of the order wanted or, where that cannot be had, single. What the session has set aside are
 * single ones.
 */
static inline __attribute__((always_inline)) int take_frames(bp_session *s, unsigned *order, uint32_t *head)
{
    int rc;

    if (unlikely(s->frugal))
        return take_free(s, order, head);
    if (*order == 0 && bpi_aside_take(s, head))
        return 0;
    if (unlikely(file_is_over(s->wanting)) && bpi_evict_own(s, s->wanting, head)) {
        *order = 0;
        return 0;
    }
    rc = take_in_turn(s, *order, head);
    if (rc == -EAGAIN && *order) {
        *order = 0;
        rc = bpi_aside_take(s, head) ? 0 : take_in_turn(s, 0, head);
    }
    return rc;
}

int bpi_frames_for(bp_session *s, bp_file *file, unsigned *order, uint32_t *head)
{
    int rc;

    s->wanting = file;
    rc = take_frames(s, order, head);
    s->wanting = NULL;
    return rc;
}

/* Registered buffer that a frame lies in, or IO_BUFFER_NONE. */
static uint32_t buffer_of(struct channel *ch, uint32_t frame)
{
    unsigned slab = bpi_frames_slab(ch->pool->frames, frame);
    uint8_t known = atomic_load_explicit(&ch->registered[slab], memory_order_relaxed);

    if (unlikely(known == SLAB_UNKNOWN))
        known = bpi_channel_register(ch, slab);
    return known == SLAB_REGISTERED ? slab : IO_BUFFER_NONE;
}

/* As a request names it: the slot that the file is registered in, plus 1, or 0. */
static uint32_t file_slot_of(struct channel *ch, const bp_file *file)
{
    unsigned number = file_number(file);
    uint8_t known;

    if (number >= IO_FILES_MAX)
        return 0;
    known = atomic_load_explicit(&ch->file[number], memory_order_relaxed);
    if (unlikely(known == SLAB_UNKNOWN))
        known = bpi_channel_register_file(ch, file);
    return known == SLAB_REGISTERED ? number + 1 : 0;
}

/* The read of an extent that begins with this page joins those that the session holds. */
static inline __attribute__((always_inline)) void hold_read(bp_session *s, bp_file *file, uint64_t page, struct read *r)
{
    bp_pool *pool = s->pool;

    r->file = file;
    r->done = 0;
    r->retries = 0;
    r->pieces = 0;
    r->ahead_ns = s->ahead_ns;
    r->bytes = (uint32_t)r->heads * BP_PAGE_SIZE << r->order;
    r->io.file = &file->io;
    r->io.file_slot = file_slot_of(r->channel, file);
    r->io.offset = page << BP_PAGE_SHIFT;
    r->io.to = pool->base + ((size_t)r->frame << BP_PAGE_SHIFT);
    r->io.bytes = r->bytes;
    r->io.buffer = buffer_of(r->channel, r->frame);
    if (r->io.buffer != IO_BUFFER_NONE)
        counter_add(&s->count.read_fixed, 1);
    s->held[s->held_count++] = &r->io;
}

/*
 * Put the reads that are held, and admitted, into the channel's queue. 0; -EAGAIN: the channel is full; or an error. Those that it did
 * not take have failed with that: with -EAGAIN, which is ABANDONED, whoever joined looks again, as we do.
 */
static int submit_held(bp_session *s)
{
    struct io_request *const *request = s->held;
    unsigned left = s->held_count;
    int taken = 0;
    int rc;

    s->held_count = 0;
    if (!left)
        return 0;
    SYNC_POINT("fault:queue");
    do {
        taken = s->channel->ops->submit(s->channel->io, request, left, IO_HOLD);
        if (taken > 0) {
            request += taken;
            left -= (unsigned)taken;
        }
    } while (left && taken > 0);
    rc = !left ? 0 : taken < 0 ? taken : -EAGAIN;
    while (left--)
        bpi_read_failed((struct read *)*request++, rc, s, &s->count);
    return rc;
}

static int queue_held(bp_session *s)
{
    if (s->held_count)
        bpi_admit(s, s->arrival, s->held_count);
    return submit_held(s);
}

void bpi_read_queue(bp_session *s, bp_file *file, uint64_t page, struct read *r, const struct arrival a[])
{
    queue_held(s);
    bpi_admit(s, a, r->heads);
    hold_read(s, file, page, r);
    submit_held(s); /* what it does not take has failed, as its waiters will find */
}

/* The end of a group: nothing is held or kept for it any more. As queue_held. */
static int end_group(bp_session *s)
{
    int rc = queue_held(s);

    ahead_check(s);
    s->group = 0;
    if (s->spare)
        bpi_reads_give(s->channel, s->spare);
    s->spare = NULL;
    if (s->spare_frames)
        bpi_spare_frames_give(s);
    return rc;
}

static struct read *take_request(bp_session *s)
{
    struct read *r = s->spare ? s->spare : bpi_reads_take(s->channel, s->group ? s->group : 1);

    if (r)
        s->spare = r->next;
    return r;
}

static void give_request(bp_session *s, struct read *r)
{
    r->next = s->spare;
    s->spare = r;
}

/* Publish, enter, hold. 0; -EEXIST: *order may have been lowered to pass what is in the way; or an error. */
static int enter(bp_session *s, bp_file *file, uint64_t page, unsigned *order, uint32_t head, struct read *r)
{
    uint64_t first = page & ~extent_mask(*order);
    uint64_t sampled = policy_sampled(s->seat.policy, file->id | first);
    struct index_insert met;
    int rc;

    r->frame = head;
    r->order = (uint8_t)*order;
    r->heads = 1;
    atomic_store_explicit(&s->pool->cold[head].channel, r->channel->number, memory_order_relaxed);
    atomic_store_explicit(&s->pool->cold[head].slot, (uint8_t)r->slot, memory_order_relaxed);
    frame_publish(&s->frame[head], file->id | first, *order, sampled | s->ahead_mark);
    SYNC_POINT("fault:published");
    rc = bpi_index_insert(&file->index, first, *order, head, &s->nodes, &met);
    if (rc) {
        bpi_read_abandon(r, s);
        if (met.page != page && *order) /* the largest block around our page without the one in conflict */
            *order = 63 - (unsigned)__builtin_clzll(page ^ met.page);
        return rc;
    }
    file_grew(file, 1ull << *order);
    SYNC_POINT("fault:entered");
    if (met.shadow != ENTRY_NONE)
        counter_add(&s->count.refaults, 1);
    s->arrival[s->held_count] = (struct arrival){.head = head, .order = *order, .shadow = met.shadow};
    hold_read(s, file, first, r);
    if (unlikely(sampled) && !s->ahead_mark)
        bpi_policy_log(&s->seat, head, file->id | first, *order, true);
    return 0;
}

/* One attempt with extents of at most *order; -EEXIST with *order lowered: again. */
static int fault_once(bp_session *s, bp_file *file, uint64_t page, unsigned *order, struct target *t)
{
    struct read *r = take_request(s);
    uint32_t head;
    int rc;

    if (!r)
        return STEP_READS;
    rc = bpi_frames_for(s, file, order, &head);
    if (rc) {
        give_request(s, r);
        return rc == -EAGAIN ? STEP_FRAMES : rc;
    }
    rc = enter(s, file, page, order, head, r);
    if (rc == 0) {
        counter_add(s->ahead_mark ? &s->count.reads_ahead : &s->count.misses, 1);
        if (is_recording(s) && !s->ahead_mark)
            bpi_trace_note(s, file->id | (page & ~extent_mask(*order)), BP_TRACE_MISS);
        t->head = head;
        t->frame = head + (uint32_t)(page & extent_mask(*order));
        t->seen = frame_load(&s->frame[head]);
        return STEP_JOINED;
    }
    if (rc != -EEXIST)
        bpi_session_fail(s, rc, "read of page %llu of %s: %s", (unsigned long long)page, file->name, bp_strerror(rc));
    return rc;
}

static int fault(bp_session *s, bp_file *file, uint64_t page, struct target *t)
{
    unsigned order;
    unsigned wanted;
    int rc;

    rc = bpi_file_reaches(file, page);
    if (rc)
        return bpi_session_fail(s, rc, "page %llu of %s: %s", (unsigned long long)page, file->name, bp_strerror(rc));
    if (!s->channel) {
        rc = bpi_channel_assign(s);
        if (rc)
            return rc;
    }
    if (s->nodes.count < INSERT_NODES) {
        queue_held(s); /* filling up may wait for a grace period, which must not wait for what we hold */
        if (s->frugal ? bpi_magazine_fill(&s->pool->nodes, &s->nodes) : bpi_nodes_reserve(s))
            return STEP_FRAMES;
    }
    order = miss_order(s, file, page);
    if (file_is_damaged(file)) {
        rc = bpi_damage_ask(file, page, &order);
        if (rc)
            return bpi_session_fail(s, rc, "page %llu of %s is damaged (%s) and not read again for a while",
                                    (unsigned long long)page, file->name, bp_strerror(rc));
    }
    do { /* ends: the order only falls */
        wanted = order;
        rc = fault_once(s, file, page, &order, t);
    } while (rc == -EEXIST && order < wanted);
    return rc;
}

/* ---- one attempt ---- */

/* A frame that agreed: pin it, join its read, or say what is in the way. -EAGAIN: the word moved, look again. */
static int take_hold(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, struct target *t)
{
    struct frame *f = &s->frame[t->head];

    if (t->seen & FRAME_EXCL) {
        if (!(t->seen & FRAME_READING) || (t->seen & FRAME_PINS) >= FRAME_PINS_MAX)
            return STEP_LATCHED;
        if (!frame_pin_from(f, t->seen))
            return -EAGAIN;
        hit_noted(s, f, t->seen);
        counter_add(&s->count.joins, 1);
        return STEP_JOINED;
    }
    if (mode == BP_SHARED) {
        if ((t->seen & FRAME_PINS) >= FRAME_PINS_MAX)
            return STEP_LATCHED;
        if (!frame_pin_from(f, t->seen))
            return -EAGAIN;
        hit_noted(s, f, t->seen);
    } else {
        if (t->seen & FRAME_PINS)
            return STEP_LATCHED;
        if (!frame_lock_from(f, t->seen))
            return -EAGAIN;
        if (!latch_stands(file, page, f))
            return STEP_LATCHED;
        hit_warm(s, f, frame_load(f));
    }
    counter_add(&s->count.hits, 1);
    return STEP_PINNED;
}

/*
 * The array of leaves is right most of the time; a miss that it says is one spares a walk that the insert is going to
 * make anyway, with the last word. When that was misled, and where the array knows nothing, walk.
 */
static index_entry look_up(const bp_file *file, uint64_t page, unsigned tries)
{
    const struct index *x = &file->index;
    index_entry e;

    if (tries || page >= x->leaf_pages)
        return bpi_index_load(x, page);
    e = index_guess(x, page);
    if (e == ENTRY_NONE && (file->order >= INDEX_SHIFT || /* it might lie above the leaves */
                            atomic_load_explicit(&x->leaf[page >> INDEX_SHIFT], memory_order_relaxed) == ENTRY_NONE))
        return bpi_index_load(x, page);
    return e;
}

/* bpi_step, but that the read may be held back. */
static int step(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, struct target *t)
{
    for (unsigned tries = 0; tries < STALE_MAX; tries++) {
        index_entry e = look_up(file, page, tries);
        int rc = -EAGAIN;

        if (!entry_is_frame(e)) {
            if (mode == BP_SHARED && !tries)
                ahead_missed(s, file, page);
            rc = fault(s, file, page, t);
            if (rc != -EEXIST)
                return rc;
            continue;
        }
        t->frame = entry_number(e);
        if (t->frame < s->frames_total && bpi_examine(s, file, page, t->frame, &t->head, &t->seen) != FRAME_NONE)
            rc = take_hold(s, file, page, mode, t);
        if (rc >= 0)
            return rc;
        if (tries % 64 == 63) /* an evictor between its two steps may need our CPU */
            sched_yield();
    }
    return bpi_session_fail(s, -EBUSY, "page %llu of %s kept moving", (unsigned long long)page, file->name);
}

int bpi_step(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, struct target *t)
{
    int rc = step(s, file, page, mode, t);
    int queued = end_group(s);

    if (rc != STEP_JOINED || !queued)
        return rc;
    bpi_unpin(s->pool, t->head);
    if (queued == -EAGAIN)
        return STEP_READS;
    return bpi_session_fail(s, queued, "read of page %llu of %s: %s", (unsigned long long)page, file->name,
                            bp_strerror(queued));
}

int bpi_step_held(bp_session *s, bp_file *file, uint64_t page, struct target *t)
{
    int rc;

    s->group = GROUP_READS;
    rc = step(s, file, page, BP_SHARED, t);
    if (s->held_count == GROUP_READS)
        queue_held(s);
    return rc;
}

void bpi_step_end(bp_session *s)
{
    end_group(s);
}

int bpi_joined_result(bp_session *s, bp_file *file, uint64_t page, uint32_t head)
{
    int error;

    if (!(frame_load(&s->frame[head]) & FRAME_FAILED))
        return 0;
    error = atomic_load_explicit(&s->pool->cold[head].error, memory_order_relaxed);
    bpi_unpin(s->pool, head);
    if (error != ABANDONED)
        bpi_session_fail(s, error, "read of page %llu of %s: %s", (unsigned long long)page, file->name,
                         bp_strerror(error));
    return error;
}

/* ---- waiting, for the calls that may ---- */

void bpi_read_wait(bp_session *s, uint32_t head, unsigned want, uint64_t deadline_ns)
{
    struct io_until until = {.word = &s->frame[head].state, .mask = FRAME_READING, .equals = FRAME_READING};
    bp_pool *pool = s->pool;
    uint64_t now;

    if (!(frame_load(&s->frame[head]) & FRAME_READING)) /* most of a batch: completed while the first was waited for */
        return;
    now = bpi_now_ns();
    while (frame_load(&s->frame[head]) & FRAME_READING && now < deadline_ns) {
        unsigned number = atomic_load_explicit(&pool->cold[head].channel, memory_order_relaxed);
        struct channel *ch = atomic_load_explicit(&pool->channel[number], memory_order_acquire);

        if (!bpi_channel_help(ch, s, &s->count, want, deadline_ns - now, &until))
            now = bpi_now_ns();
    }
}

/*
 * Park until the word moves that keeps us from latching it. Runs (no pin, no latch: R15) last as long as it takes to
 * copy some pages, and nobody is told when they end: look again soon.
 */
void bpi_latch_wait(bp_session *s, const struct target *t, uint64_t deadline_ns)
{
    bool for_puts = t->seen & FRAME_PINS;

    if (!(t->seen & (FRAME_PINS | FRAME_EXCL))) {
        uint64_t soon = bpi_now_ns() + RUN_SLICE_NS;

        deadline_ns = soon < deadline_ns ? soon : deadline_ns;
    }
    if (for_puts)
        bpi_puts_watch(s->pool);
    bpi_frame_wait(&s->frame[t->head], t->seen, deadline_ns);
    if (for_puts)
        bpi_puts_unwatch(s->pool);
}

int bpi_frames_give_up(bp_session *s)
{
    char who[200];

    counter_add(&s->count.busy, 1);
    bpi_describe_holders(s->pool, who, sizeof(who));
    return bpi_session_fail(s, -EBUSY, "no frame to be had within %u ms: %s", s->pool->options.wait_ms, who);
}

static void label_of(bp_pool *pool, uint32_t number, char *text, size_t size)
{
    snprintf(text, size, "a session that is closed now");
    pthread_mutex_lock(&pool->lock);
    for (bp_session *s = pool->session; s; s = s->next)
        if (s->number == number)
            snprintf(text, size, "'%s'", s->label);
    pthread_mutex_unlock(&pool->lock);
}

int bpi_latch_give_up(bp_session *s, bp_file *file, uint64_t page, uint32_t head)
{
    bp_pool *pool = s->pool;
    uint64_t seen = frame_load(&pool->frame[head]);
    char who[64];

    counter_add(&s->count.busy, 1);
    if (frame_pins(seen))
        return bpi_session_fail(s, -EBUSY, "page %llu of %s was held shared by %u for %u ms", (unsigned long long)page,
                                file->name, frame_pins(seen), pool->options.wait_ms);
    if (!(seen & FRAME_EXCL))
        return bpi_session_fail(s, -EBUSY, "page %llu of %s was in runs being read for %u ms", (unsigned long long)page,
                                file->name, pool->options.wait_ms);
    label_of(pool, atomic_load_explicit(&pool->cold[head].holder, memory_order_relaxed), who, sizeof(who));
    return bpi_session_fail(s, -EBUSY, "page %llu of %s was held exclusively by %s for %u ms", (unsigned long long)page,
                            file->name, who, pool->options.wait_ms);
}

int bpi_settle_mode(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, uint32_t head)
{
    struct frame *f = &s->frame[head];

    if (mode == BP_SHARED)
        return 0;
    if (frame_upgrade(f))
        return latch_stands(file, page, f) ? 0 : -EAGAIN;
    bpi_unpin(s->pool, head);
    return -EAGAIN;
}

/* A joined read to its end: 0 and the ref is filled; -EAGAIN: try the page anew; or an error. Its pin is used up. */
static int finish_joined(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, unsigned want,
                         uint64_t deadline_ns, struct target *t, struct bp_ref *ref)
{
    int rc;

    bpi_read_wait(s, t->head, want, deadline_ns);
    if (frame_load(&s->frame[t->head]) & FRAME_READING) {
        bpi_unpin(s->pool, t->head);
        counter_add(&s->count.busy, 1);
        return bpi_session_fail(s, -ETIMEDOUT, "read of page %llu of %s has not ended after %u ms",
                                (unsigned long long)page, file->name, s->pool->options.wait_ms);
    }
    rc = bpi_joined_result(s, file, page, t->head);
    if (!rc) {
        t->seen = frame_load(&s->frame[t->head]);
        rc = bpi_settle_mode(s, file, page, mode, t->head);
    }
    if (!rc)
        ref_fill(s, page, mode, t, ref);
    return rc;
}

static int try_one(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, uint64_t deadline_ns,
                   struct bp_ref *ref)
{
    struct target t;
    int rc;

    for (;;) {
        rc = bpi_step(s, file, page, mode, &t);
        if (rc < 0)
            return rc;
        if (rc == STEP_PINNED) {
            ref_fill(s, page, mode, &t, ref);
            return 0;
        }
        if (rc == STEP_JOINED) {
            rc = finish_joined(s, file, page, mode, 1, deadline_ns, &t, ref);
            if (rc != -EAGAIN)
                return rc;
        } else if (bpi_now_ns() >= deadline_ns) {
            return rc == STEP_LATCHED ? bpi_latch_give_up(s, file, page, t.head) : bpi_frames_give_up(s);
        } else if (rc == STEP_LATCHED) {
            bpi_latch_wait(s, &t, deadline_ns);
        } else if (rc == STEP_FRAMES) {
            bpi_turn_wait(s, deadline_ns);
        } else {
            bpi_channel_help(s->channel, s, &s->count, 1, WAIT_SLICE_NS, NULL);
        }
    }
}

/* One page, whatever it takes until the deadline. */
static int get_one(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, uint64_t deadline_ns,
                   struct bp_ref *ref)
{
    int rc = try_one(s, file, page, mode, deadline_ns, ref);

    bpi_turn_end(s);
    return rc;
}

/* Marks a ref of bpi_get_slow whose read is still under way. */
#define REF_JOINED 0u

static void drop_refs(bp_session *s, struct bp_ref ref[], unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (ref[i].mode == REF_JOINED)
            bpi_unpin(s->pool, ref_head(s, &ref[i]));
        else
            bp_put(&ref[i]);
    }
}

/* A joined read that succeeded meanwhile, for readers: most of a batch. The pin of the read is the ref's. */
static bool settle_done(bp_session *s, uint64_t page, enum bp_mode mode, struct bp_ref *ref)
{
    struct target t = {.head = ref_head(s, ref)};

    t.seen = frame_load(&s->frame[t.head]);
    if (mode != BP_SHARED || t.seen & (FRAME_READING | FRAME_FAILED))
        return false;
    t.frame = t.head + ref->bytes;
    ref_fill(s, page, BP_SHARED, &t, ref);
    return true;
}

/* Complete the joined among the first n; on an error everything of the n is given back. */
static int settle(bp_session *s, bp_file *file, const uint64_t page[], unsigned n, enum bp_mode mode,
                  uint64_t deadline_ns, struct bp_ref ref[])
{
    unsigned left = 0;
    int rc = 0;

    for (unsigned i = 0; i < n; i++)
        left += ref[i].mode == REF_JOINED;
    for (unsigned i = 0; i < n && left; i++) {
        struct target t = {.head = ref_head(s, &ref[i])};

        if (ref[i].mode != REF_JOINED)
            continue;
        if (settle_done(s, page[i], mode, &ref[i])) {
            left--;
            continue;
        }
        t.frame = t.head + ref[i].bytes;
        rc = finish_joined(s, file, page[i], mode, left, deadline_ns, &t, &ref[i]);
        if (rc == -EAGAIN)
            rc = get_one(s, file, page[i], mode, deadline_ns, &ref[i]);
        if (rc) {
            drop_refs(s, ref, i);
            drop_refs(s, ref + i + 1, n - i - 1);
            break;
        }
        left--;
    }
    return rc;
}

int bpi_get_slow(bp_session *s, bp_file *file, const uint64_t page[], unsigned n, enum bp_mode mode,
                 struct bp_ref ref[])
{
    uint64_t deadline_ns;
    unsigned i = 0;
    int rc = 0;

    s->since_ns = bpi_now_ns();
    deadline_ns = s->since_ns + s->pool->wait_ns;
    if (mode != BP_SHARED && mode != BP_EXCLUSIVE)
        return bpi_session_fail(s, -EINVAL, "mode %d is neither BP_SHARED nor BP_EXCLUSIVE", (int)mode);
    if (mode == BP_EXCLUSIVE && write_is_much(file))
        rc = bpi_write_throttle(s, file, deadline_ns);
    if (rc)
        return rc;
    for (unsigned k = 0; n > 1 && k < n && k < PREFETCH; k++)
        bpi_index_prefetch(&file->index, page[k]);
    while (i < n) {
        struct target t;

        if (i + PREFETCH < n)
            bpi_index_prefetch(&file->index, page[i + PREFETCH]);
        s->group = n - i < GROUP_READS ? n - i : GROUP_READS;
        rc = step(s, file, page[i], mode, &t);
        if (rc == STEP_PINNED) {
            ref_fill(s, page[i], mode, &t, &ref[i]);
            i++;
        } else if (rc == STEP_JOINED) {
            if (s->held_count == GROUP_READS && i + 1 < n) { /* let the device begin while we prepare the rest */
                queue_held(s);
                s->channel->ops->flush(s->channel->io);
            }
            ref[i].mode = REF_JOINED;
            ref_set_head(s, &ref[i], t.head);
            ref[i].bytes = t.frame - t.head;
            i++;
        } else if (rc < 0) {
            end_group(s);
            drop_refs(s, ref, i);
            return rc;
        } else { /* it will take waiting: first complete what is under way, others may wait for it */
            end_group(s);
            rc = settle(s, file, page, i, mode, deadline_ns, ref);
            if (rc)
                return rc;
            rc = get_one(s, file, page[i], mode, deadline_ns, &ref[i]);
            if (rc) {
                drop_refs(s, ref, i);
                return rc;
            }
            i++;
        }
    }
    end_group(s); /* what it could not queue is found failed, and tried again */
    return settle(s, file, page, n, mode, deadline_ns, ref);
}
