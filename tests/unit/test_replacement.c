/* SPDX-License-Identifier: MIT */
/*
 * Replacement: the queues, the small pools and their duel by themselves, and through a pool on a null device what they
 * are for: loops, scans beside a hot set, drifting windows (against an exact LRU), and that no frame is ever lost from
 * the queues.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "bufpool/pool.h"
#include "tests/unit/pool_fixture.h"

#define MUST(what, ...) cr_assert(what, __VA_ARGS__)

static uint64_t state;
static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- queues ---- */

Test(replacement, queues_are_first_in_first_out_and_their_chunks_suffice)
{
    enum { FRAMES = 1000 };
    static uint32_t model[2][FRAMES];
    unsigned at[2] = {0}, count[2] = {0};
    struct chunks chunks;
    struct queue q[2] = {0};
    uint32_t next = 0;

    MUST(bpi_chunks_open(&chunks, FRAMES, 2) == 0, "memory");
    state = 1;
    for (unsigned i = 0; i < 2; i++)
        bpi_queue_init(&q[i]);
    for (unsigned step = 0; step < 20000; step++) {
        unsigned i = (unsigned)draw(2);
        unsigned n = (unsigned)draw(70);
        uint32_t number[70];
        unsigned got;

        if (draw(2)) {
            n = n > FRAMES - count[0] - count[1] ? FRAMES - count[0] - count[1] : n;
            for (unsigned k = 0; k < n; k++)
                model[i][(at[i] + count[i] + k) % FRAMES] = number[k] = next++ % FRAMES;
            bpi_queue_push(&q[i], &chunks, number, n);
            count[i] += n;
        } else if (draw(4)) {
            got = bpi_queue_pop(&q[i], &chunks, number, n);
            MUST(got == (n < count[i] ? n : count[i]), "step %u: %u of %u", step, got, count[i]);
            for (unsigned k = 0; k < got; k++)
                MUST(number[k] == model[i][(at[i] + k) % FRAMES], "step %u: order", step);
            at[i] += got;
            count[i] -= got;
        } else {
            uint32_t oldest = count[i] ? model[i][at[i] % FRAMES] : UINT32_MAX;

            MUST(bpi_queue_peek(&q[i], &chunks) == oldest && !bpi_queue_pop_this(&q[i], &chunks, FRAMES),
                 "step %u: peek", step);
            if (count[i]) {
                MUST(bpi_queue_pop_this(&q[i], &chunks, oldest), "step %u: the oldest", step);
                at[i]++;
                count[i]--;
            }
        }
        MUST(queue_count(&q[i]) == count[i] && bpi_queue_check(&q[i], &chunks), "step %u", step);
    }
    bpi_chunks_close(&chunks);
}

struct pusher {
    pthread_t thread;
    struct queue *q;
    struct chunks *chunks;
    uint32_t number;
};

/* Takes some, gives them back. */
static void *rotate(void *arg)
{
    struct pusher *p = arg;

    for (unsigned i = 0; i < 20000; i++) {
        uint32_t number[40];
        unsigned n = bpi_queue_pop(p->q, p->chunks, number, 1 + (i + p->number) % 40);

        bpi_queue_push(p->q, p->chunks, number, n);
        if (bpi_queue_peek(p->q, p->chunks) == p->number && bpi_queue_pop_this(p->q, p->chunks, p->number))
            bpi_queue_push(p->q, p->chunks, &p->number, 1);
    }
    return NULL;
}

Test(replacement, queues_lose_nothing_between_threads)
{
    enum { FRAMES = 500, THREADS = 3 };
    struct pusher p[THREADS];
    struct chunks chunks;
    struct queue q = {0};
    bool there[FRAMES] = {false};

    MUST(bpi_chunks_open(&chunks, FRAMES, 2) == 0, "memory");
    bpi_queue_init(&q);
    for (uint32_t i = 0; i < FRAMES; i++)
        bpi_queue_push(&q, &chunks, &i, 1);
    for (unsigned i = 0; i < THREADS; i++) {
        p[i] = (struct pusher){.q = &q, .chunks = &chunks, .number = i};
        MUST(!pthread_create(&p[i].thread, NULL, rotate, &p[i]), "thread");
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(p[i].thread, NULL);
    MUST(bpi_queue_check(&q, &chunks) && queue_count(&q) == FRAMES, "%u left", queue_count(&q));
    for (uint32_t i = 0, number; i < FRAMES; i++) {
        MUST(bpi_queue_pop(&q, &chunks, &number, 1) == 1 && number < FRAMES && !there[number], "twice: %u", number);
        there[number] = true;
    }
    bpi_chunks_close(&chunks);
}

/* ---- lanes ---- */

/* Frame by frame for three sessions, a third each; all are pinned but every other one of the last. */
static unsigned fill_lanes(struct policy *p, struct seat seat[3], uint32_t frames)
{
    unsigned cold = 0;

    for (uint32_t f = 0; f < frames; f++) {
        struct arrival a = {.head = f, .shadow = ENTRY_NONE};
        unsigned who = f * 3 / frames;

        atomic_store(&p->frame[f].state, FRAME_BOUND | (who < 2 || f % 2 ? FRAME_PIN : 0));
        bpi_policy_admit(&seat[who], &a, 1);
        cold += atomic_load(&p->frame[f].state) == FRAME_BOUND;
    }
    for (unsigned i = 0; i < 3; i++)
        bpi_policy_flush(&seat[i]);
    return cold;
}

/* Takes out what is found, in pools of each mode: a search in RECENT moves pages on, and leaves those for another one. */
static unsigned search_all(struct policy *p, struct seat *seat)
{
    unsigned rounds = p->mode == BP_POLICY_RECENT ? 4 : 1;
    unsigned found = 0;

    for (bool hopeful = true; rounds && hopeful; rounds--) {
        struct search search;
        int n = 0;

        bpi_policy_search(seat, &search);
        for (uint32_t looks = 0; n >= 0; looks++) {
            struct victim victim[LOT];

            MUST(looks < 2 * p->size, "the search does not end");
            n = bpi_policy_pick(seat, &search, victim, 7);
            for (int k = 0; k < n; k++) {
                MUST(atomic_load(&p->frame[victim[k].head].state) == FRAME_BOUND, "%u is no victim", victim[k].head);
                atomic_store(&p->frame[victim[k].head].state, 0);
                policy_gone(&p->cold[victim[k].head]);
                found++;
            }
        }
        hopeful = search.hopeful;
    }
    bpi_policy_flush(seat);
    return found;
}

/* By whom and wherever: all that can go is found, nothing twice, and the search is over after as many looks as entries. */
Test(replacement, a_search_finds_what_is_cold_in_any_lane)
{
    enum { FRAMES = 4096 };
    struct policy_sizes sizes = bpi_policy_sizes(FRAMES, 0);
    struct policy *p = aligned_alloc(_Alignof(struct policy), sizeof(*p));
    struct seat *seat = calloc(3, sizeof(*seat));

    for (unsigned i = 0; i < 6; i++) {
        unsigned me = i / 2;
        unsigned cold, found;

        memset(p, 0, sizeof(*p));
        memset(seat, 0, 3 * sizeof(*seat));
        MUST(!bpi_policy_open(p, FRAMES, &sizes, i % 2 ? BP_POLICY_RECENT : BP_POLICY_STABLE), "memory");
        p->frame = calloc(FRAMES, sizeof(*p->frame));
        p->cold = calloc(FRAMES, sizeof(*p->cold));
        for (unsigned k = 0; k < 3; k++)
            bpi_seat_take(&seat[k], p);
        MUST(seat[0].lane != seat[1].lane && seat[1].lane != seat[2].lane, "sessions share lanes");
        cold = fill_lanes(p, seat, FRAMES);
        found = search_all(p, &seat[me]);
        cr_expect_eq(found, cold, "case %u: %u of %u found", i, found, cold);
        cr_expect_leq(seat[me].examined, (i % 2 ? 4 : 1) * FRAMES, "case %u: %u looks", i, seat[me].examined);
        cr_expect(bpi_policy_check(p, FRAMES, true), "case %u", i);
        free(p->frame);
        free(p->cold);
        bpi_policy_close(p);
    }
    free(seat);
    free(p);
}

/* ---- small pools ---- */

static unsigned loop_hits(struct mini *m, uint32_t pages, unsigned rounds, unsigned order)
{
    unsigned hits = 0;

    for (unsigned r = 0; r < rounds; r++)
        for (uint32_t i = 0; i < pages; i++)
            hits += bpi_mini_hit(m, i * 2654435761u, order);
    return hits;
}

Test(replacement, small_pools_show_what_each_mode_does_with_a_loop)
{
    struct mini m;
    unsigned hits;

    for (unsigned order = 0; order < 4; order += 3) { /* extents of 8 pages are charged for 8 */
        uint32_t loop = 2000 >> order;

        MUST(!bpi_mini_open(&m, 1000, false), "memory");
        hits = loop_hits(&m, loop, 50, order);
        cr_expect(hits > loop * 23 && hits < loop * 25, "STABLE keeps half of it: %u of %u", hits, loop * 50);
        cr_expect(m.used <= 1000 && m.list[MINI_SHADOW].pages <= 3000, "%u pages, %u shadows", m.used,
                  m.list[MINI_SHADOW].pages);
        bpi_mini_close(&m);
        MUST(!bpi_mini_open(&m, 1000, true), "memory");
        hits = loop_hits(&m, loop, 50, order);
        cr_expect_eq(hits, 0, "RECENT keeps none of it: %u", hits);
        hits = loop_hits(&m, 990u >> order, 50, order);
        cr_expect_eq(hits, (990u >> order) * 49, "what fits is kept: %u", hits);
        bpi_mini_close(&m);
    }
}

/* Accesses of a pool that is in the mode that the duel says, for which a third small pool stands. */
static void feed(struct duel *d, uint64_t page)
{
    uint64_t hash = page_hash(page);

    bpi_duel_feed(d, (struct access){.key = (uint32_t)hash, .sample = hash_sample(hash)});
}

Test(replacement, the_duel_follows_what_is_going_on)
{
    struct duel d;
    unsigned turns = 0;

    state = 7;
    MUST(!bpi_duel_open(&d, 4000, 400, true), "memory");
    MUST(!d.mode, "it begins STABLE");
    for (unsigned phase = 0; phase < 6; phase++) {
        for (uint64_t i = 0; i < 100000; i++) {
            if (phase % 2)
                feed(&d, 1000000 * phase + i / 8 + draw(3500)); /* a window that drifts */
            else
                feed(&d, i % 6000);
        }
        turns += d.mode == (phase % 2 != 0);
    }
    cr_expect_eq(turns, 6, "right in %u of 6 phases", turns);
    cr_expect(bpi_duel_hits(&d, 1) == 0 && bpi_duel_hits(&d, 0) == 0, "more misses than requests");
    bpi_duel_close(&d);
}

/* ---- the pool ---- */

struct play {
    bp_pool *pool;
    bp_file *file;
    bp_session *s;
};

static bp_file *null_file(bp_pool *pool, uint32_t extent_bytes)
{
    struct bp_file_options o = {.size = sizeof(o), .null_bytes = 1ull << 34, .extent_bytes = extent_bytes};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, "null", &o, &file), 0);
    return file;
}

static struct play play_open(uint32_t frames, enum bp_policy policy, uint32_t extent_bytes, uint32_t sample)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o),
                                .memory = (8ull << 20) + frames * 5000ull,
                                .io = BP_IO_NULL,
                                .frames_max = frames,
                                .huge = BP_OFF,
                                .policy = policy,
                                .sample_pages = sample,
                                .error = &error};
    struct play p;

    cr_assert_eq(bp_pool_open(&o, &p.pool), 0, "%s", error.text);
    p.file = null_file(p.pool, extent_bytes);
    p.s = open_session(p.pool, "player");
    return p;
}

static void play_close(struct play *p)
{
    cr_assert_eq(bp_session_close(p->s), 0);
    close_all(p->pool);
}

/* Whether it was a hit. */
static bool ask(struct play *p, uint64_t page)
{
    uint64_t misses = atomic_load(&p->s->count.misses);
    struct bp_view view;

    cr_assert_eq(bp_read(p->s, p->file, page, &view), 0, "%s", bp_session_error(p->s));
    return atomic_load(&p->s->count.misses) == misses;
}

Test(replacement, a_loop_longer_than_the_pool_keeps_what_fits)
{
    enum { FRAMES = 1000, LOOP = 1500, ROUNDS = 40 };

    for (unsigned extent = 4096; extent <= 16384; extent *= 4) {
        struct play p = play_open(FRAMES, BP_POLICY_AUTO, extent, 512);
        unsigned step = extent / 4096;
        unsigned hits = 0;

        for (unsigned i = 0; i < ROUNDS * LOOP / step; i++)
            hits += ask(&p, i % (LOOP / step) * step);
        /* the best is (FRAMES - 1) / (LOOP - 1) of all but the first round; LRU has none */
        cr_expect_gt(hits, (ROUNDS - 1) * FRAMES / step * 95 / 100, "extents of %u: %u hits", step, hits);
        cr_expect_eq(stat_of(p.pool, "policy_recent"), 0);
        if (step == 1) {
            uint64_t half = stat_of(p.pool, "whatif_half"), one = stat_of(p.pool, "whatif_1");
            uint64_t two = stat_of(p.pool, "whatif_2");
            uint64_t truth = stat_of(p.pool, "hits") * 1000000 / (ROUNDS * LOOP);

            cr_expect(one + 60000 > truth && one < truth + 60000, "%lu, not %lu", (unsigned long)one,
                      (unsigned long)truth);
            cr_expect(half > 200000 && half < 430000, "half of it: %lu", (unsigned long)half);
            cr_expect_gt(two, 900000, "twice of it: %lu", (unsigned long)two);
        }
        play_close(&p);
    }
}

Test(replacement, a_scan_beside_a_hot_set_costs_it_nothing)
{
    enum { FRAMES = 2048, HOT = FRAMES / 2, SCAN = 10 * FRAMES };
    struct play p = play_open(FRAMES, BP_POLICY_AUTO, 0, 0);
    unsigned asked = 0, hits = 0;

    state = 3;
    for (unsigned i = 0; i < 20 * FRAMES; i++) /* all of it is there, and one in a hundred is something else */
        ask(&p, draw(100) ? draw(HOT) : 1000000 + draw(1000000));
    for (unsigned i = 0; i < 20 * FRAMES; i++) {
        bool hot = draw(100) > 0;
        bool hit = ask(&p, hot ? draw(HOT) : 1000000 + draw(1000000));

        hits += hot && hit;
        asked += hot;
    }
    cr_expect_geq(hits, asked * 99ull / 100, "alone: %u of %u", hits, asked);
    hits = asked = 0;
    for (unsigned i = 0; i < SCAN; i++) {
        asked++;
        hits += ask(&p, draw(HOT));
        ask(&p, 3000000 + i);
    }
    cr_expect_geq(hits, asked * 98ull / 100, "beside a scan: %u of %u", hits, asked);
    play_close(&p);
}

/* Exact LRU: when each page was used last, and a ring of uses that are skipped where they are not a page's last. */
struct lru {
    uint32_t *last; /* use, 1 is the first */
    uint32_t *page; /* by use */
    uint32_t uses, oldest, size, there;
};

static bool lru_hit(struct lru *l, uint32_t page)
{
    uint32_t last = l->last[page];
    bool hit = last && last >= l->oldest;

    l->last[page] = ++l->uses;
    l->page[l->uses] = page;
    if (!hit && l->there++ == l->size) {
        while (l->last[l->page[l->oldest]] != l->oldest)
            l->oldest++;
        l->oldest++;
        l->there--;
    }
    return hit;
}

Test(replacement, a_drifting_window_is_no_worse_than_with_lru)
{
    enum { FRAMES = 1024, N = 200000, PAGES = 1 << 20, SESSIONS = 5 };

    for (unsigned round = 0; round < 6;
         round++) { /* by one session, by several in turn: queues are theirs, the order is all's */
        unsigned slow = 4u << 2 * (round / 2);
        bp_session *s[SESSIONS];
        struct play p = play_open(FRAMES, BP_POLICY_AUTO, 0, 0);
        struct lru l = {.oldest = 1, .size = FRAMES};
        unsigned misses = 0, lru_misses = 0;

        state = slow;
        s[0] = p.s;
        for (unsigned i = 1; i < SESSIONS && round % 2; i++)
            s[i] = open_session(p.pool, "another");
        l.last = calloc(PAGES, sizeof(*l.last));
        l.page = calloc(N + 1, sizeof(*l.page));
        for (unsigned i = 0; i < N; i++) {
            uint64_t a = draw(1300), b = draw(1300);
            uint32_t page = (uint32_t)(i / slow + (a > b ? a : b)); /* newer ones more often */

            p.s = s[round % 2 ? draw(SESSIONS) : 0];
            misses += !ask(&p, page);
            lru_misses += !lru_hit(&l, page);
        }
        cr_expect_leq(misses, lru_misses * 105ull / 100, "round %u: %u misses, LRU %u", round, misses, lru_misses);
        free(l.last);
        free(l.page);
        for (unsigned i = 1; i < SESSIONS && round % 2; i++)
            cr_assert_eq(bp_session_close(s[i]), 0);
        p.s = s[0];
        play_close(&p);
    }
}

/* Files come and go in every order of extents: entries left behind are taken over or dropped, none is lost or doubled.
 */
Test(replacement, no_frame_is_lost_from_the_queues)
{
    static const uint32_t extents[] = {4096, 32768, 8192, 131072};
    struct play p = play_open(2048, BP_POLICY_AUTO, 4096, 0);
    bp_file *file[3] = {NULL};

    state = 11;
    for (unsigned round = 0; round < 60; round++) {
        unsigned i = (unsigned)draw(3);

        if (file[i])
            cr_assert_eq(bp_file_close(file[i], NULL), 0);
        file[i] = null_file(p.pool, extents[draw(4)]);
        for (unsigned k = 0; k < 3000; k++) {
            bp_file *f = file[draw(3)];
            struct bp_view view;

            if (f)
                cr_assert_eq(bp_read(p.s, f, draw(draw(2) ? 900 : 30000), &view), 0, "%s", bp_session_error(p.s));
        }
        if (round % 10 == 9) {
            struct bp_error error = {0};

            cr_assert_eq(bp_session_close(p.s), 0);
            cr_assert_eq(bp_pool_check(p.pool, &error), 0, "round %u: %s", round, error.text);
            p.s = open_session(p.pool, "again");
        }
    }
    play_close(&p);
}

/* Each mode by itself, as options want it. */
Test(replacement, options_choose_the_mode)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = 8 << 20, .policy = 3};
    bp_pool *pool;

    cr_expect_eq(bp_pool_open(&o, &pool), -EINVAL);
    o.policy = BP_POLICY_AUTO;
    o.sample_pages = MINI_MAX + 1;
    cr_expect_eq(bp_pool_open(&o, &pool), -EINVAL);
    for (enum bp_policy m = BP_POLICY_RECENT; m <= BP_POLICY_STABLE; m++) {
        struct play p = play_open(500, m, 0, 0);
        unsigned hits = 0;

        for (unsigned i = 0; i < 20 * 600; i++)
            hits += ask(&p, i % 600);
        cr_expect(m == BP_POLICY_RECENT ? hits == 0 : hits > 18 * 490, "mode %d: %u hits", (int)m, hits);
        cr_expect_eq(stat_of(p.pool, "policy_recent"), m == BP_POLICY_RECENT);
        play_close(&p);
    }
}

/*
 * Frames in stock come out of the newcomers' hundredth, so all sessions together have no more of them than one. And a loop
 * keeps what fits if each page of it is read by another session each time: lanes (in the larger pool) make no difference.
 */
Test(replacement, many_sessions_have_one_stock)
{
    enum { SESSIONS = 10 };

    for (unsigned frames = 2000, rounds = 30; frames <= 6000; frames *= 3, rounds /= 2) {
        struct play p = play_open(frames, BP_POLICY_AUTO, 0, 0);
        bp_session *s[SESSIONS] = {p.s};
        unsigned loop = frames * 3 / 2;
        uint64_t hits = 0;

        for (unsigned i = 1; i < SESSIONS; i++)
            s[i] = open_session(p.pool, "one of many");
        for (unsigned i = 0; i < rounds * loop; i++) {
            p.s = s[i * 7 % SESSIONS];
            hits += ask(&p, i % loop);
        }
        cr_expect_gt(hits, (rounds - 1) * frames * 95ull / 100, "%u frames: %lu hits", frames, (unsigned long)hits);
        for (unsigned i = 1; i < SESSIONS; i++)
            cr_assert_eq(bp_session_close(s[i]), 0);
        p.s = s[0];
        play_close(&p);
    }
}

static unsigned there(const struct play *p, uint64_t first, unsigned n)
{
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++)
        count += entry_is_frame(bpi_index_load(&p->file->index, first + i));
    return count;
}

/* Sessions have queues of their own, and the oldest page of all goes all the same: also when its session is no more. */
Test(replacement, what_another_session_has_read_goes_in_its_turn)
{
    enum { FRAMES = 8192, HALF = FRAMES / 2, THEIRS = 1 << 20 };

    for (unsigned closed = 0; closed < 2; closed++) {
        struct play p = play_open(FRAMES, BP_POLICY_RECENT, 0, 0);
        bp_session *me = p.s, *other = open_session(p.pool, "other");
        unsigned left;

        p.s = other;
        for (unsigned i = 0; i < HALF; i++)
            ask(&p, THEIRS + i);
        if (closed)
            cr_assert_eq(bp_session_close(other), 0);
        p.s = me;
        for (unsigned i = 0; i < HALF * 9 / 5; i++) /* for the last four fifths of this they make room */
            ask(&p, i);
        left = there(&p, THEIRS, HALF);
        cr_expect(left < HALF / 5 + FRAMES / 16, "closed %u: %u of their %u pages are left", closed, left, HALF);
        left = there(&p, 0, HALF * 9 / 5);
        cr_expect(left > HALF * 9 / 5 - FRAMES / 16, "closed %u: %u of mine", closed, left);
        if (!closed) { /* and back: they read on, and take from what is mine and older */
            p.s = other;
            for (unsigned i = 0; i < FRAMES; i++)
                ask(&p, THEIRS + HALF + i);
            left = there(&p, 0, HALF * 9 / 5);
            cr_expect(left < FRAMES / 8, "%u of mine", left);
            cr_assert_eq(bp_session_close(other), 0);
        }
        p.s = me;
        play_close(&p);
    }
}

/* A search looks through the queues of all sessions, whatever it finds in the first. */
Test(replacement, what_one_session_pins_does_not_hide_what_another_has_read)
{
    enum { FRAMES = 4096 };

    for (enum bp_policy m = BP_POLICY_RECENT; m <= BP_POLICY_STABLE; m++) {
        struct play p = play_open(FRAMES, m, 0, 0);
        bp_session *other = open_session(p.pool, "other"), *third = open_session(p.pool, "third");
        struct bp_ref *ref = calloc(FRAMES, sizeof(*ref));
        bp_session *me = p.s;
        unsigned pinned = 0;

        MUST(ref, "memory");
        for (unsigned i = 0; i < FRAMES / 2; i++) {
            p.s = i % 3 ? other : third;
            ask(&p, 1000000 + i);
        }
        while (pinned < FRAMES && bp_get(me, p.file, pinned, BP_SHARED, &ref[pinned]) == 0)
            pinned++;
        cr_expect_eq(pinned, FRAMES, "mode %d: %u pinned: %s", (int)m, pinned, bp_session_error(me));
        bp_put_many(ref, pinned);
        free(ref);
        cr_assert_eq(bp_session_close(other), 0);
        cr_assert_eq(bp_session_close(third), 0);
        p.s = me;
        play_close(&p);
    }
}

struct churner {
    pthread_t thread;
    bp_pool *pool;
    bp_session *s;
    uint64_t state;
    unsigned wrong;
    char why[300]; /* the last of them */
};

static void churner_blames(struct churner *c, const char *call, int rc, const char *text)
{
    c->wrong++;
    snprintf(c->why, sizeof(c->why), "%s: %d, %s", call, rc, text);
}

static uint64_t churner_draw(struct churner *c, uint64_t below)
{
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return (c->state >> 33) % below;
}

/* Opens files, reads some of them, closes them: their frames go while others search. */
static void *churn(void *arg)
{
    struct churner *c = arg;
    struct bp_error error = {0};

    for (unsigned round = 0; round < 60; round++) {
        struct bp_file_options o = {
            .size = sizeof(o), .null_bytes = 1ull << 30, .extent_bytes = 4096u << churner_draw(c, 4), .error = &error};
        bp_file *file = NULL;
        int rc = bp_file_open(c->pool, "null", &o, &file);

        if (rc)
            churner_blames(c, "open", rc, error.text);
        for (unsigned i = 0; i < 500 && file; i++) {
            struct bp_view view;

            rc = bp_read(c->s, file, churner_draw(c, 2000), &view);
            if (rc)
                churner_blames(c, "read", rc, bp_session_error(c->s));
        }
        rc = file ? bp_file_close(file, &error) : 0;
        if (rc)
            churner_blames(c, "close", rc, error.text);
    }
    return NULL;
}

Test(replacement, no_frame_is_lost_between_threads)
{
    enum { THREADS = 4 };
    struct play p = play_open(600, BP_POLICY_AUTO, 4096, 0);
    struct churner c[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        c[i] = (struct churner){.pool = p.pool, .s = open_session(p.pool, "churner"), .state = i};
        MUST(!pthread_create(&c[i].thread, NULL, churn, &c[i]), "thread");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(c[i].thread, NULL);
        cr_expect_eq(c[i].wrong, 0, "thread %u: %u wrong, the last: %s", i, c[i].wrong, c[i].why);
        cr_assert_eq(bp_session_close(c[i].s), 0);
    }
    play_close(&p); /* checks that each bound head has its entry */
}

/* Larger extents: as near to LRU as pages are, and no more of them go than were wanted. */
Test(replacement, larger_extents_go_one_by_one)
{
    enum { EXTENTS = 128, ORDER = 5, FRAMES = EXTENTS << ORDER, N = 40000, PAGES = 1 << 16 };
    struct play p = play_open(FRAMES, BP_POLICY_RECENT, 4096 << ORDER, 0);
    struct lru l = {.oldest = 1, .size = EXTENTS};
    unsigned misses = 0, lru_misses = 0;

    state = 5;
    l.last = calloc(PAGES, sizeof(*l.last));
    l.page = calloc(N + 1, sizeof(*l.page));
    for (unsigned i = 0; i < N; i++) {
        uint64_t a = draw(170), b = draw(170);
        uint32_t extent = (uint32_t)(i / 32 + (a > b ? a : b));

        misses += !ask(&p, (uint64_t)extent << ORDER | draw(1 << ORDER));
        lru_misses += !lru_hit(&l, extent);
    }
    cr_expect_leq(misses, lru_misses * 105ull / 100, "%u misses, LRU %u", misses, lru_misses);
    cr_expect_leq(stat_of(p.pool, "frames_free"), 4u << ORDER);
    cr_expect_leq(stat_of(p.pool, "evictions"), misses);
    free(l.last);
    free(l.page);
    play_close(&p);
}
