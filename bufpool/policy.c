/* SPDX-License-Identifier: MIT */
/*
 * Admission, the search for victims, and the log of the sample.
 *
 * A search takes some entries out of a queue (one short lock), asks for their descriptors ahead, and sorts them: cold
 * ones are victims, the others go into the session's baskets and from there, many at a time, to the head of a queue.
 * Nothing is locked meanwhile but the session's own magazine, and no other search sees the same entries.
 *
 * Modes, lengths and the clock are read relaxed: who reads an old value sends a page to the wrong queue once.
 */
#include <errno.h>
#include <string.h>

#include "bufpool/policy.h"

#define unlikely(x) __builtin_expect(!!(x), 0)

#define FEW_SHARE         100u /* of the pool are newcomers, in STABLE */
#define LANE_PAGES        64u  /* of the pool, for each lane */
#define CLOCKS_DIFFER     128u /* misses by which ages in two lanes may be wrong, at the most: lots, and clocks */
#define MISSES_WORKED_OFF 2u   /* misses in a log that make it worth it: the modes should follow soon */

/* ---- sizes ---- */

static uint32_t between(uint64_t x, uint32_t least, uint32_t most)
{
    return x < least ? least : x > most ? most : (uint32_t)x;
}

/*
 * A small pool of 1,024 pages judges like one ten times as large, one of 256 nearly so. Hits of the sample are dear, some
 * hundred instructions each, so it is a 64th of all in pools from 64 MiB on, and less from 256 MiB on.
 */
struct policy_sizes bpi_policy_sizes(uint64_t pages, uint32_t sample)
{
    struct policy_sizes z;

    z.duel = sample ? between(sample, 2, MINI_MAX) : between(pages / 64, 256, 1024);
    z.whatif = sample ? between(sample, 2, MINI_MAX) : between(pages / 128, 16, 1024);
    z.bytes = bpi_duel_bytes(z.duel, false) + WHATIF_SIZES * bpi_duel_bytes(z.whatif, true);
    return z;
}

/* Pages of the i-th size. */
static uint64_t whatif_pages(uint32_t pages, unsigned i)
{
    return ((uint64_t)pages << i) / 2 ? ((uint64_t)pages << i) / 2 : 1;
}

static uint32_t room(const struct policy *p)
{
    return atomic_load_explicit(&p->room, memory_order_relaxed);
}

/* Pages of YOUNG in STABLE. */
static uint32_t few(const struct policy *p)
{
    return room(p) / FEW_SHARE ? room(p) / FEW_SHARE : 1;
}

/* Of YOUNG, MID1 and MID2 in RECENT. */
static uint32_t quarter(const struct policy *p)
{
    return room(p) / 4 ? room(p) / 4 : 1;
}

/* ---- opening ---- */

int bpi_policy_open(struct policy *p, uint32_t frames, const struct policy_sizes *z, enum bp_policy mode)
{
    int rc;

    p->size = frames;
    atomic_store_explicit(&p->room, frames, memory_order_relaxed);
    p->mode = mode;
    p->lanes_max = between(frames / LANE_PAGES, 1, LANES_MAX);
    p->differ = between(frames / 64, 1, CLOCKS_DIFFER);
    atomic_store_explicit(&p->lanes, 1, memory_order_relaxed);
    pthread_mutex_init(&p->lock, NULL);
    atomic_store_explicit(&p->recent, mode == BP_POLICY_RECENT, memory_order_relaxed);
    rc = bpi_chunks_open(&p->chunks, frames, p->lanes_max * QUEUES);
    for (unsigned i = 0; i < p->lanes_max; i++)
        for (unsigned q = 0; q < QUEUES; q++)
            bpi_queue_init(&p->lane[i].queue[q]);
    if (!rc)
        rc = bpi_duel_open(&p->duel, frames, z->duel, false);
    for (unsigned i = 0; i < WHATIF_SIZES && !rc; i++)
        rc = bpi_duel_open(&p->whatif.duel[i], whatif_pages(frames, i), z->whatif, true);
    if (!rc)
        bpi_policy_resize(p, frames);
    return rc;
}

void bpi_policy_resize(struct policy *p, uint32_t pages)
{
    uint32_t limit;

    pthread_mutex_lock(&p->lock);
    bpi_duel_scale(&p->duel, pages);
    limit = p->duel.limit;
    for (unsigned i = 0; i < WHATIF_SIZES; i++) {
        struct duel *d = &p->whatif.duel[i];

        bpi_duel_scale(d, whatif_pages(pages, i));
        limit = d->limit > limit ? d->limit : limit;
    }
    atomic_store_explicit(&p->sample_limit, limit, memory_order_relaxed);
    atomic_store_explicit(&p->room, pages, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
}

void bpi_policy_close(struct policy *p)
{
    bpi_duel_close(&p->duel);
    for (unsigned i = 0; i < WHATIF_SIZES; i++)
        bpi_duel_close(&p->whatif.duel[i]);
    bpi_chunks_close(&p->chunks);
    pthread_mutex_destroy(&p->lock);
}

/* ---- entries ---- */

static uint32_t now(const struct seat *t)
{
    const struct policy *p = t->policy;

    return (uint32_t)((atomic_load_explicit(&p->misses, memory_order_relaxed) + t->misses) >> p->clock_shift);
}

static uint32_t stamp_of(const struct policy *p, uint32_t head)
{
    return atomic_load_explicit(&p->cold[head].stamp, memory_order_relaxed);
}

static void set_stamp(struct policy *p, uint32_t head, uint32_t stamp)
{
    atomic_store_explicit(&p->cold[head].stamp, stamp, memory_order_relaxed);
}

/* ---- lanes ---- */

void bpi_seat_take(struct seat *t, struct policy *p)
{
    unsigned best = 0;

    for (unsigned i = 1; i < p->lanes_max; i++)
        if (p->lane[i].sessions < p->lane[best].sessions)
            best = i;
    p->lane[best].sessions++;
    t->policy = p;
    t->lane = best;
    if (best >= atomic_load_explicit(&p->lanes, memory_order_relaxed))
        atomic_store_explicit(&p->lanes, best + 1, memory_order_relaxed);
}

void bpi_seat_leave(struct seat *t)
{
    t->policy->lane[t->lane].sessions--;
}

static struct queue *queue_of(const struct seat *t, unsigned lane, enum queue_name q)
{
    return &t->policy->lane[lane].queue[q];
}

static uint32_t lanes(const struct seat *t)
{
    return atomic_load_explicit(&t->policy->lanes, memory_order_relaxed);
}

/* How old what is at a lane's tail is, in ticks. */
static uint32_t age_of(const struct seat *t, unsigned lane, enum queue_name q)
{
    int32_t age = (int32_t)(now(t) - queue_oldest(queue_of(t, lane, q)));

    return age > 0 ? (uint32_t)age : 0;
}

/*
 * Look what others have: once for each search, since each lane is two cache lines that its session writes. In between
 * all is decided by what was seen then, and by one's own lane.
 */
static void look_around(struct seat *t)
{
    unsigned count = lanes(t);

    for (enum queue_name q = YOUNG; q < QUEUES && count > 1; q++) {
        uint32_t age = 0;

        t->oldest[q] = t->lane;
        t->others[q] = 0;
        for (unsigned i = 0; i < count; i++) {
            const struct queue *queue = queue_of(t, i, q);

            if (i == t->lane || !queue_count(queue))
                continue;
            t->others[q] += queue_pages(queue);
            if (t->oldest[q] == t->lane || age_of(t, i, q) > age) {
                t->oldest[q] = i;
                age = age_of(t, i, q);
            }
        }
    }
}

/* May a search take something from there? In a search each lane is looked through once, whatever is put back. */
static bool is_left(const struct seat *t, struct search *h, unsigned lane, enum queue_name q)
{
    if (!h)
        return queue_count(queue_of(t, lane, q)) > 0;
    if (h->left[lane][q] && !queue_count(queue_of(t, lane, q))) /* others have what is left */
        h->left[lane][q] = 0;
    return h->left[lane][q] > 0;
}

/*
 * The lane to take from: one's own, unless what is at another's tail is older by more than an eighth, or by as much as
 * clocks of sessions differ. h: the search that it is for, or NULL. LANES_MAX: all are empty, or looked through.
 */
static unsigned choose(const struct seat *t, struct search *h, enum queue_name q)
{
    unsigned count = h ? h->lanes : lanes(t);
    unsigned other = t->oldest[q];
    bool mine = is_left(t, h, t->lane, q);
    uint32_t age;

    if (count == 1)
        return mine ? t->lane : LANES_MAX;
    if (other != t->lane && is_left(t, h, other, q)) {
        age = mine ? age_of(t, t->lane, q) : 0;
        if (!mine || age_of(t, other, q) > age + age / 8 + t->policy->differ)
            return other;
    }
    for (other = 0; !mine && other < count; other++)
        if (is_left(t, h, other, q))
            return other;
    return mine ? t->lane : LANES_MAX;
}

/* Pages that a queue will have once this session's are there. */
static uint32_t length(const struct seat *t, enum queue_name q)
{
    return queue_pages(queue_of(t, t->lane, q)) + t->others[q] + t->basket[q].pages;
}

/* Pages more, or less, in a lane. */
static void count_pages(struct seat *t, unsigned lane, enum queue_name q, uint32_t pages)
{
    atomic_fetch_add_explicit(&queue_of(t, lane, q)->pages, pages, memory_order_relaxed);
    if (lane != t->lane)
        t->others[q] += pages;
}

/* What we have taken out is not the oldest any more: what follows is about as old as the last of it. */
static void set_oldest(struct seat *t, unsigned lane, enum queue_name q, uint32_t head)
{
    atomic_store_explicit(&queue_of(t, lane, q)->oldest, stamp_of(t->policy, head), memory_order_relaxed);
}

/* Entries of ours, for so many pages, go to the head of a queue. */
static void push(struct seat *t, unsigned lane, enum queue_name q, const uint32_t head[], unsigned n, uint32_t pages)
{
    struct queue *queue = queue_of(t, lane, q);

    if (!queue_count(queue))
        set_oldest(t, lane, q, head[0]);
    count_pages(t, lane, q, pages);
    bpi_queue_push(queue, &t->policy->chunks, head, n);
}

static void empty(struct seat *t, enum queue_name q)
{
    struct basket *b = &t->basket[q];

    if (b->count)
        push(t, t->lane, q, b->frame, b->count, b->pages);
    b->count = b->pages = 0;
}

void bpi_policy_flush(struct seat *t)
{
    for (enum queue_name q = YOUNG; q < QUEUES; q++)
        empty(t, q);
    if (t->misses)
        atomic_fetch_add_explicit(&t->policy->misses, t->misses, memory_order_relaxed);
    t->misses = 0;
}

/*
 * An entry of ours with this order is about to be. As long as all have one page, nobody looks how many each was counted
 * with. relaxed: an entry that somebody takes out was put in with a lock, and this came before.
 */
static void note_order(struct policy *p, unsigned order)
{
    if (unlikely(order) && !atomic_load_explicit(&p->larger, memory_order_relaxed))
        atomic_store_explicit(&p->larger, true, memory_order_relaxed);
}

static bool all_are_pages(const struct policy *p)
{
    return !atomic_load_explicit(&p->larger, memory_order_relaxed);
}

/* An entry that is ours goes to the head of a queue. */
static void put(struct seat *t, enum queue_name q, uint32_t head, unsigned order)
{
    struct basket *b = &t->basket[q];

    note_order(t->policy, order);
    atomic_store_explicit(&t->policy->cold[head].queued, (uint8_t)(1 + order), memory_order_relaxed);
    b->frame[b->count++] = head;
    b->pages += 1u << order;
    if (b->count == BASKET)
        empty(t, q);
}

/* What an entry was counted with when it was put in. */
static uint32_t counted(const struct policy *p, uint32_t head)
{
    return all_are_pages(p) ? 1 : 1u << (atomic_load_explicit(&p->cold[head].queued, memory_order_relaxed) - 1);
}

/* The oldest entries of a queue, now ours. */
static unsigned take(struct seat *t, unsigned lane, enum queue_name q, uint32_t head[], unsigned most)
{
    struct policy *p = t->policy;
    unsigned n = bpi_queue_pop(queue_of(t, lane, q), &p->chunks, head, most);
    uint32_t sum = n;

    if (!all_are_pages(p)) {
        sum = 0;
        for (unsigned i = 0; i < n; i++)
            sum += counted(p, head[i]);
    }
    if (n) {
        set_oldest(t, lane, q, head[n - 1]);
        count_pages(t, lane, q, 0u - sum);
    }
    t->examined += n;
    return n;
}

enum look { LOOK_GONE, LOOK_BUSY, LOOK_TOUCHED, LOOK_COLD };

/*
 * Nothing is bound to the frame of our entry: it is dropped. But a fault may be publishing the frame and count on the
 * entry that it finds. seq_cst fences here and there: one of the two sees what the other did.
 */
static bool drop(struct policy *p, uint32_t head, uint64_t *seen)
{
    _Atomic uint8_t *queued = &p->cold[head].queued;
    uint8_t none = 0;

    atomic_store_explicit(queued, 0, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    *seen = frame_load(&p->frame[head]);
    note_order(p, frame_order(*seen));
    return !(*seen & FRAME_BOUND) ||
           !atomic_compare_exchange_strong_explicit(queued, &none, (uint8_t)(1 + frame_order(*seen)),
                                                    memory_order_relaxed, memory_order_relaxed);
}

/* What our entry leads to. LOOK_GONE: then it was dropped. */
static enum look look_at(struct policy *p, uint32_t head, uint64_t *seen)
{
    *seen = frame_load(&p->frame[head]);
    if (!(*seen & FRAME_BOUND) && drop(p, head, seen))
        return LOOK_GONE;
    if (*seen & (FRAME_EXCL | FRAME_PINS))
        return LOOK_BUSY;
    return *seen & FRAME_HEAT ? LOOK_TOUCHED : LOOK_COLD;
}

/* ---- MAIN ---- */

/*
 * Whether MAIN has a page that is untouched and longer unused than `than` (any: at all). Touched ones on the way go to
 * the head. MAIN is in the order of stamps, so the first untouched one is the one that waited longest.
 */
static bool main_has_older(struct seat *t, bool any, uint32_t than)
{
    struct policy *p = t->policy;

    for (unsigned n = 0; n < POLICY_ROUNDS; n++) {
        unsigned lane = choose(t, NULL, MAIN);
        struct queue *queue = queue_of(t, lane < LANES_MAX ? lane : t->lane, MAIN);
        uint32_t x = bpi_queue_peek(queue, &p->chunks); /* taken by nobody, so all of this may be stale */
        uint64_t seen;

        if (x >= p->size || (!any && (int32_t)(stamp_of(p, x) - than) >= 0))
            return false;
        seen = frame_load(&p->frame[x]);
        if ((seen & FRAME_BOUND) && !(seen & FRAME_HEAT))
            return true;
        if (!bpi_queue_pop_this(queue, &p->chunks, x))
            continue;
        set_oldest(t, lane, MAIN, x);
        count_pages(t, lane, MAIN, 0u - counted(p, x));
        t->examined++;
        if (look_at(p, x, &seen) == LOOK_GONE)
            continue;
        if (seen & FRAME_HEAT)
            frame_cool(&p->frame[x], seen);
        set_stamp(p, x, now(t));
        put(t, MAIN, x, frame_order(seen));
    }
    return false;
}

/* Into MAIN with it; what waited longest there, touched or not after so many rounds, goes on probation. */
static void promote(struct seat *t, uint32_t head, unsigned order)
{
    struct policy *p = t->policy;
    unsigned lane;
    uint32_t old;
    uint64_t seen;

    put(t, MAIN, head, order);
    if (length(t, MAIN) <= room(p) - few(p))
        return;
    main_has_older(t, true, 0);
    lane = choose(t, NULL, MAIN);
    if (lane == LANES_MAX || !take(t, lane, MAIN, &old, 1) || look_at(p, old, &seen) == LOOK_GONE)
        return;
    frame_chill(&p->frame[old], seen);
    put(t, YOUNG, old, frame_order(seen));
}

/* ---- admission ---- */

/* When the page was used last, by its shadow: the stamp's upper bits are those of today or of one turn before. */
static uint32_t stamp_of_shadow(index_entry shadow, uint32_t today)
{
    return today - shadow_age(shadow, today);
}

static bool is_hot(struct seat *t, const struct arrival *a)
{
    struct policy *p = t->policy;

    if (atomic_load_explicit(&p->recent, memory_order_relaxed))
        return false;
    if (!atomic_load_explicit(&p->evicted, memory_order_relaxed))
        return length(t, MAIN) < room(p) - few(p); /* filling up */
    return a->shadow != ENTRY_NONE && main_has_older(t, false, stamp_of_shadow(a->shadow, now(t)));
}

void bpi_policy_admit(struct seat *t, const struct arrival a[], unsigned n)
{
    struct policy *p = t->policy;

    atomic_thread_fence(memory_order_seq_cst); /* published before; see drop() */
    for (unsigned i = 0; i < n; i++) {
        uint32_t head = a[i].head;
        uint8_t none = 0;
        bool hot;

        t->misses++;
        hot = is_hot(t, &a[i]);
        set_stamp(p, head, now(t));
        note_order(p, a[i].order);
        if (!atomic_compare_exchange_strong_explicit(&p->cold[head].queued, &none, (uint8_t)(1 + a[i].order),
                                                     memory_order_seq_cst, memory_order_seq_cst))
            continue; /* an old entry is somewhere, and is ours */
        if (hot)
            promote(t, head, a[i].order);
        else
            put(t, YOUNG, head, a[i].order);
    }
}

/*
 * Where the old entry is nobody knows: it stays behind, as that of a file that was closed. MAIN is where most pages are
 * in STABLE; in RECENT it is the last quarter.
 */
void bpi_policy_moved(struct seat *t, uint32_t from, uint32_t to, unsigned order)
{
    struct policy *p = t->policy;
    uint8_t none = 0;

    atomic_thread_fence(memory_order_seq_cst); /* published before; see drop() */
    set_stamp(p, to, stamp_of(p, from));
    if (atomic_compare_exchange_strong_explicit(&p->cold[to].queued, &none, (uint8_t)(1 + order), memory_order_seq_cst,
                                                memory_order_seq_cst))
        put(t, MAIN, to, order);
}

/* ---- the search ---- */

void bpi_policy_search(struct seat *t, struct search *h)
{
    bpi_policy_flush(t);
    look_around(t);
    h->lanes = lanes(t);
    h->moves = 0;
    for (unsigned i = 0; i < h->lanes; i++)
        for (enum queue_name q = YOUNG; q < QUEUES; q++)
            h->moves += h->left[i][q] = queue_count(queue_of(t, i, q));
    h->rounds = 0;
    h->hopeful = false;
}

/* Busy ones stay where they were, at the head. */
static void put_busy(struct seat *t, struct search *h, enum queue_name q, uint32_t head, uint64_t seen)
{
    h->hopeful |= (seen & FRAME_READING) && !(seen & FRAME_PINS); /* its reader has gone: it ends by itself */
    put(t, q, head, frame_order(seen));
}

/* A touched page begins anew. */
static void renew(struct seat *t, uint32_t head, uint64_t seen)
{
    frame_chill(&t->policy->frame[head], seen);
    set_stamp(t->policy, head, now(t));
}

/* One that YOUNG kept while STABLE: it was used again. */
static void keep_or_promote(struct seat *t, uint32_t head, uint64_t seen)
{
    uint32_t stamp = stamp_of(t->policy, head);

    renew(t, head, seen);
    if (main_has_older(t, false, stamp))
        promote(t, head, frame_order(seen));
    else
        put(t, YOUNG, head, frame_order(seen));
}

/* Touched, at the end of the queue that victims are taken from; false: it goes all the same. */
static bool spare(struct seat *t, struct search *h, enum queue_name q, uint32_t head, uint64_t seen)
{
    struct policy *p = t->policy;

    if (atomic_load_explicit(&p->recent, memory_order_relaxed)) {
        renew(t, head, seen);
        put(t, YOUNG, head, frame_order(seen));
    } else if (q == YOUNG) {
        keep_or_promote(t, head, seen);
    } else {
        if (h->rounds++ >= POLICY_ROUNDS)
            return false;
        frame_cool(&p->frame[head], seen);
        set_stamp(p, head, now(t));
        put(t, MAIN, head, frame_order(seen));
    }
    h->hopeful = true;
    return true;
}

/* The part of the pool that is read before what was read ahead, and not used, may go. */
#define EXPECTED_SHARE 8u

/*
 * Read ahead, and its reader is on his way: the larger it is, the fewer may come meanwhile. Time goes on with each that
 * comes, so these are never more than the pool can spare.
 */
static bool is_expected(const struct policy *p, uint32_t head, uint64_t seen)
{
    uint64_t ticks = atomic_load_explicit(&p->misses, memory_order_relaxed) >> p->clock_shift;
    int32_t since =
        (int32_t)((uint32_t)ticks - stamp_of(p, head)); /* sessions' misses come into the clock some later */

    return since < 0 || (uint64_t)since << (p->clock_shift + frame_order(seen)) <= p->size / EXPECTED_SHARE;
}

/* Up to `most` entries of a queue: the cold ones are victims. */
static unsigned sort_out(struct seat *t, struct search *h, unsigned lane, enum queue_name q, struct victim victim[],
                         unsigned most)
{
    uint32_t head[LOT];
    unsigned n = take(t, lane, q, head, most);
    unsigned found = 0;

    h->left[lane][q] = n ? h->left[lane][q] - n : 0;
    for (unsigned i = 0; i < n; i++) { /* most of them will go, and both be written */
        __builtin_prefetch((const void *)&t->policy->frame[head[i]], 1, 3);
        __builtin_prefetch((const void *)&t->policy->cold[head[i]], 1, 3);
    }
    for (unsigned i = 0; i < n; i++) {
        uint64_t seen;
        enum look look = look_at(t->policy, head[i], &seen);

        if (look == LOOK_COLD && seen & FRAME_AHEAD && !h->any && is_expected(t->policy, head[i], seen)) {
            h->expected = true;
            put(t, q, head[i], frame_order(seen));
            continue;
        }
        if (look == LOOK_COLD && (seen & FRAME_DIRTY)) {
            look = LOOK_BUSY; /* until it was written */
            t->dirty_met++;
        }
        if (look == LOOK_BUSY)
            put_busy(t, h, q, head[i], seen);
        else if (look == LOOK_COLD || (look == LOOK_TOUCHED && !spare(t, h, q, head[i], seen)))
            victim[found++] = (struct victim){.head = head[i], .from = q, .seen = seen};
    }
    return found;
}

/* As many entries of a queue as hold so many pages, if they are like the others there: 1 to LOT. */
static unsigned entries_for(const struct queue *q, uint32_t pages)
{
    uint32_t all = queue_pages(q);
    uint32_t count = queue_count(q);
    uint64_t n = all > count ? (uint64_t)pages * count / all : pages;

    return between(n, 1, LOT);
}

/* An entry that does not just pass from one queue to the next. */
static __attribute__((noinline)) void move_one(struct seat *t, enum queue_name to, uint32_t head, bool anew)
{
    uint64_t seen;
    enum look look = look_at(t->policy, head, &seen);

    if (look == LOOK_GONE)
        return;
    if (look == LOOK_TOUCHED && anew) {
        renew(t, head, seen);
        to = YOUNG;
    }
    put(t, to, head, frame_order(seen));
}

/*
 * Entries from the end of one queue to the head of another, so many pages; anew: touched ones go to the beginning. How
 * many. Most of them are untouched pages of their own, which just pass: they stay in their lane, and counted as before,
 * so `queued` stays.
 */
static unsigned move_on(struct seat *t, struct search *h, enum queue_name q, enum queue_name to, uint32_t wanted,
                        bool anew)
{
    const uint64_t passes = FRAME_BOUND | FRAME_HEAT | FRAME_ORDER;
    struct policy *p = t->policy;
    unsigned lane = choose(t, NULL, q);
    uint32_t head[LOT], pass[LOT];
    const struct frame *frame = p->frame;
    bool pages = all_are_pages(p);
    unsigned count = 0;
    unsigned n;

    if (lane == LANES_MAX)
        return 0;
    n = take(t, lane, q, head, entries_for(queue_of(t, lane, q), wanted));
    for (unsigned i = 0; i < n; i++) {
        uint32_t x = head[i];

        if ((frame_load(&frame[x]) & passes) == FRAME_BOUND && (pages || counted(p, x) == 1))
            pass[count++] = x;
        else
            move_one(t, to, x, anew);
    }
    if (count)
        push(t, lane, to, pass, count, count);
    empty(t, YOUNG);
    empty(t, to);
    h->moves -= n < h->moves ? n : h->moves;
    h->hopeful |= n > 0;
    return n;
}

static uint32_t excess(const struct seat *t, enum queue_name q, uint32_t limit)
{
    uint32_t pages = length(t, q);

    return pages > limit ? pages - limit : 0;
}

/* RECENT: what is beyond a queue's quarter moves on. */
static void age(struct seat *t, struct search *h)
{
    for (enum queue_name q = YOUNG; q < MAIN; q++) {
        unsigned n = 1;

        for (unsigned done = 0; n && done < POLICY_ROUNDS && h->moves; done += n) {
            uint32_t over = excess(t, q, quarter(t->policy));

            n = over ? move_on(t, h, q, q + 1, over, true) : 0;
        }
    }
}

/* STABLE has no middle, and MAIN gets what YOUNG has too much when it has room: after RECENT, or after pages went. */
static void fill_main(struct seat *t, struct search *h)
{
    struct policy *p = t->policy;
    unsigned n = 1;

    for (unsigned done = 0; n && done < 2 * POLICY_ROUNDS && h->moves; done += n) {
        uint32_t over = excess(t, YOUNG, few(p));
        uint32_t taken = length(t, MAIN);
        uint32_t left = taken < room(p) - few(p) ? room(p) - few(p) - taken : 0;

        n = move_on(t, h, MID2, MAIN, LOT, false);
        if (!n)
            n = move_on(t, h, MID1, MAIN, LOT, false);
        if (!n && over && left)
            n = move_on(t, h, YOUNG, MAIN, over < left ? over : left, false);
    }
}

int bpi_policy_pick(struct seat *t, struct search *h, struct victim victim[], uint32_t pages)
{
    static const enum queue_name order[2][QUEUES] = {{YOUNG, MAIN, MID2, MID1}, {MAIN, MID2, MID1, YOUNG}};
    bool recent = atomic_load_explicit(&t->policy->recent, memory_order_relaxed);

    if (recent)
        age(t, h);
    else
        fill_main(t, h);
    for (unsigned i = 0; i < QUEUES; i++) {
        enum queue_name q = order[recent][i];
        unsigned lane = choose(t, h, q);
        unsigned most;

        if (lane == LANES_MAX)
            continue;
        most = entries_for(queue_of(t, lane, q), pages);
        return (int)sort_out(t, h, lane, q, victim, most < h->left[lane][q] ? most : h->left[lane][q]);
    }
    return -1;
}

void bpi_policy_put_back(struct seat *t, const struct victim *v)
{
    put(t, v->from, v->head, frame_order(frame_load(&t->policy->frame[v->head])));
}

/* ---- the log ---- */

/*
 * What a session has logged goes through the small pools. Pages of the log that are as warm as can be are made a little
 * colder, so that their next hit is seen again. Somebody else is at it: later, or never if the log is full.
 */
static void work_off(struct seat *t)
{
    struct policy *p = t->policy;

    if (!pthread_mutex_trylock(&p->lock)) {
        for (unsigned i = 0; i < t->logged; i++) {
            bpi_duel_feed(&p->duel, t->log[i].access);
            for (unsigned k = 0; k < WHATIF_SIZES; k++)
                bpi_duel_feed(&p->whatif.duel[k], t->log[i].access);
        }
        if (p->mode == BP_POLICY_AUTO && atomic_load_explicit(&p->recent, memory_order_relaxed) != p->duel.mode)
            atomic_store_explicit(&p->recent, p->duel.mode, memory_order_relaxed);
        pthread_mutex_unlock(&p->lock);
    } else if (t->logged < LOG_MAX) {
        return;
    }
    for (unsigned i = 0; i < t->logged; i++) {
        struct frame *f = &p->frame[t->log[i].frame];
        uint64_t seen = atomic_load_explicit(&f->state, memory_order_relaxed);

        if ((seen & (FRAME_SAMPLED | FRAME_HEAT)) == (FRAME_SAMPLED | FRAME_HEAT))
            frame_cool(f, seen);
    }
    t->logged = t->logged_misses = 0;
}

void bpi_policy_log(struct seat *t, uint32_t head, uint64_t id, unsigned order, bool missed)
{
    uint64_t hash = page_hash(id);

    t->log[t->logged].access =
        (struct access){.key = (uint32_t)hash,
                        .sample = hash_sample(hash) | (uint32_t)order << SAMPLE_BITS | (missed ? ACCESS_MISSED : 0)};
    t->log[t->logged++].frame = head;
    t->logged_misses += missed;
    if (t->logged == LOG_MAX || (missed && t->logged_misses >= MISSES_WORKED_OFF))
        work_off(t);
}

/* ---- looking ---- */

void bpi_policy_whatif(struct policy *p, uint64_t requests, uint32_t hits[WHATIF_SIZES])
{
    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < WHATIF_SIZES; i++)
        hits[i] = bpi_duel_hits(&p->whatif.duel[i], requests);
    pthread_mutex_unlock(&p->lock);
}

bool bpi_policy_check(struct policy *p, uint32_t high, bool quiet)
{
    uint64_t entries = 0, counts = 0, pages = 0, sums = 0;
    bool ok = true;

    for (unsigned i = 0; i < p->lanes_max * QUEUES && ok; i++) {
        struct queue *queue = &p->lane[i / QUEUES].queue[i % QUEUES];

        ok = bpi_queue_check(queue, &p->chunks);
        counts += queue_count(queue);
        sums += queue_pages(queue);
    }
    if (!quiet || !ok)
        return ok;
    for (uint32_t f = 0; f < high && ok; f++) {
        unsigned queued = atomic_load_explicit(&p->cold[f].queued, memory_order_relaxed);

        ok = queued || !(frame_load(&p->frame[f]) & FRAME_BOUND);
        entries += queued > 0;
        pages += queued ? 1u << (queued - 1) : 0;
    }
    return ok && entries == counts && pages == sums;
}
