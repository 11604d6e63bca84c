/* SPDX-License-Identifier: MIT */
/* Forward progress: who waits for frames is served in order, several at once, at little cost, and somebody notices. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/pool_fixture.h"

#define HOG_FIRST 30000u

static void sleep_ms(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Until a statistic is what it should be, 20 s at most. */
static void await_stat(bp_pool *pool, const char *name, uint64_t value)
{
    for (unsigned i = 0; i < 20000 && stat_of(pool, name) != value; i++)
        sleep_ms(1);
    cr_assert_eq(stat_of(pool, name), value, "%s is %lu", name, (unsigned long)stat_of(pool, name));
}

/* One session that pins whatever there is. */
struct hog {
    bp_session *s;
    struct bp_ref ref[20000];
    unsigned held;
};

static struct hog *hog_all(bp_pool *pool, bp_file *file, unsigned leave)
{
    struct hog *h = calloc(1, sizeof(*h));
    uint64_t frames = stat_of(pool, "frames_total");

    cr_assert_not_null(h);
    h->s = open_session(pool, "hog");
    while (h->held + leave < frames) {
        cr_assert_eq(bp_get(h->s, file, HOG_FIRST + h->held, BP_SHARED, &h->ref[h->held]), 0, "%u: %s", h->held,
                     bp_session_error(h->s));
        h->held++;
    }
    return h;
}

static void hog_end(struct hog *h)
{
    bp_put_many(h->ref, h->held);
    cr_assert_eq(bp_session_close(h->s), 0);
    free(h);
}

/* ---- in order ---- */

#define WAITERS 6

static _Atomic unsigned served_count;
static _Atomic unsigned served[WAITERS];
static _Atomic bool all_served;

struct waiter {
    bp_pool *pool;
    bp_file *file;
    unsigned number;
};

/* Takes a page that is not there, and keeps it until all have theirs. */
static void *wait_for_page(void *arg)
{
    struct waiter *w = arg;
    bp_session *s = open_session(w->pool, "waiter");
    struct bp_ref ref;

    if (bp_get(s, w->file, w->number, BP_SHARED, &ref))
        abort();
    served[atomic_fetch_add(&served_count, 1)] = w->number;
    while (!atomic_load(&all_served))
        sleep_ms(1);
    bp_put(&ref);
    if (bp_session_close(s))
        abort();
    return NULL;
}

Test(turns, callers_are_served_in_the_order_in_which_they_came)
{
    struct data_file data = data_file_make(40000ull * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 60000);
        bp_file *file = open_file(pool, data.path, 0);
        struct hog *hog = hog_all(pool, file, 0);
        struct waiter waiter[WAITERS];
        pthread_t thread[WAITERS];
        uint64_t waits = stat_of(pool, "frame_waits");

        served_count = 0;
        all_served = false;
        for (unsigned i = 0; i < WAITERS; i++) {
            waiter[i] = (struct waiter){pool, file, i};
            cr_assert_eq(pthread_create(&thread[i], NULL, wait_for_page, &waiter[i]), 0);
            await_stat(pool, "frame_waiters", i + 1);
            sleep_ms(2);
        }
        for (unsigned i = 0; i < WAITERS; i++) {
            bp_put(&hog->ref[--hog->held]);
            for (unsigned k = 0; k < 20000 && served_count == i; k++)
                sleep_ms(1);
            cr_assert_eq(served_count, i + 1);
            cr_assert_eq(served[i], i, "%u came before %u", i, served[i]);
        }
        all_served = true;
        for (unsigned i = 0; i < WAITERS; i++)
            pthread_join(thread[i], NULL);
        cr_assert_geq(stat_of(pool, "frame_waits"), waits + WAITERS);
        cr_assert_eq(stat_of(pool, "frame_waiters"), 0);
        hog_end(hog);
        close_all(pool);
    }
    data_file_remove(&data);
}

struct reserver {
    bp_session *s;
    unsigned frames;
    int result;
};

static void *reserve_some(void *arg)
{
    struct reserver *r = arg;

    r->result = bp_reserve(r->s, r->frames);
    return NULL;
}

/* Frames that come free go to him who waits for two of them, though somebody who came later asks all the time. */
Test(turns, who_comes_later_cannot_starve_who_waits)
{
    struct data_file data = data_file_make(40000ull * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 60000);
    bp_file *file = open_file(pool, data.path, 0);
    struct hog *hog = hog_all(pool, file, 0);
    bp_session *late = open_session(pool, "late");
    struct reserver early = {.s = open_session(pool, "early"), .frames = 2, .result = 1};
    struct bp_event event;
    struct bp_ref ref;
    pthread_t thread;
    int n = 0;

    cr_assert_eq(pthread_create(&thread, NULL, reserve_some, &early), 0);
    await_stat(pool, "frame_waiters", 1);
    sleep_ms(2);
    cr_assert_eq(bp_get_start(late, file, 7, BP_SHARED, 0, NULL, &ref), BP_PENDING);
    for (unsigned i = 0; i < 2; i++) {
        bp_put(&hog->ref[--hog->held]);
        cr_assert_eq(bp_poll(late, &event, 1, 100), 0, "the frame is not for the one who came later");
    }
    pthread_join(thread, NULL);
    cr_assert_eq(early.result, 0);
    cr_assert_eq(stat_of(pool, "frames_reserved"), 2);
    cr_assert_eq(bp_get(early.s, file, 100, BP_SHARED, &ref), 0);
    cr_assert_eq(stat_of(pool, "frames_reserved"), 1);
    cr_assert_eq(bp_unreserve(early.s), 1);
    cr_assert_eq(stat_of(pool, "frames_reserved"), 0);
    for (unsigned i = 0; i < 100 && !n; i++)
        n = bp_poll(late, &event, 1, 100);
    cr_assert_eq(n, 1);
    cr_assert_eq(event.result, 0);
    bp_put(&event.ref);
    bp_put(&ref);
    cr_assert_eq(bp_session_close(early.s), 0);
    cr_assert_eq(bp_session_close(late), 0);
    hog_end(hog);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- several at once ---- */

struct pair {
    bp_pool *pool;
    bp_file *file;
    uint64_t base;
    bool reserve;
    unsigned rounds;
    unsigned done, busy;
};

static void *take_two(void *arg)
{
    struct pair *p = arg;
    bp_session *s = open_session(p->pool, "pair");

    for (unsigned i = 0; i < p->rounds; i++) {
        struct bp_ref a, b;
        uint64_t page = p->base + i % 1000 * 8;
        int rc = p->reserve ? bp_reserve(s, 2) : 0;

        if (!rc) {
            rc = bp_get(s, p->file, page, BP_SHARED, &a);
            if (!rc) {
                rc = bp_get(s, p->file, page + 1, BP_EXCLUSIVE, &b);
                if (!rc)
                    bp_put(&b);
                bp_put(&a);
            }
            if (p->reserve && rc) {
                fprintf(stderr, "round %u: %s\n", i, bp_session_error(s));
                abort();
            }
            if (p->reserve)
                bp_unreserve(s);
        }
        if (rc != 0 && rc != -EBUSY && rc != -ETIMEDOUT) { /* a device that others use may take longer than 20 ms */
            fprintf(stderr, "round %u: %d %s\n", i, rc, bp_session_error(s));
            abort();
        }
        p->done += rc == 0;
        p->busy += rc != 0;
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

static void take_pairs(bp_pool *pool, bp_file *file, bool reserve, unsigned rounds, struct pair pair[2])
{
    pthread_t thread[2];

    for (unsigned i = 0; i < 2; i++) {
        pair[i] = (struct pair){.pool = pool, .file = file, .base = i * 10000, .reserve = reserve, .rounds = rounds};
        cr_assert_eq(pthread_create(&thread[i], NULL, take_two, &pair[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

/* Two that need two frames each, and there are three. */
Test(turns, two_frames_each_and_one_too_few)
{
    struct data_file data = data_file_make(40000ull * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 60000);
        bp_file *file = open_file(pool, data.path, 0);
        struct hog *hog = hog_all(pool, file, 3);
        struct pair pair[2];

        take_pairs(pool, file, true, 2000, pair);
        cr_assert_eq(pair[0].done + pair[1].done, 4000, "who has reserved never hears BUSY");
        cr_assert_eq(stat_of(pool, "frames_reserved"), 0);
        hog_end(hog);
        close_all(pool);
        pool = open_pool(1 << 20, io, 20);
        file = open_file(pool, data.path, 0);
        hog = hog_all(pool, file, 3);
        take_pairs(pool, file, false, 300, pair);
        cr_assert_eq(pair[0].done + pair[0].busy + pair[1].done + pair[1].busy, 600, "nobody hangs");
        cr_assert_gt(pair[0].done + pair[1].done, 0);
        hog_end(hog);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(turns, a_reservation_is_all_or_none_and_bounded)
{
    struct data_file data = data_file_make(40000ull * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 150);
    bp_file *file = open_file(pool, data.path, 0);
    struct hog *hog = hog_all(pool, file, 1);
    bp_session *s = open_session(pool, "s"), *other = open_session(pool, "other");
    struct bp_ref ref[4];

    cr_assert_eq(bp_reserve(s, 0), -EINVAL);
    cr_assert_eq(bp_reserve(s, 1000000), -EINVAL);
    cr_assert_eq(bp_reserve(s, 2), -EBUSY);
    cr_assert_not_null(strstr(bp_session_error(s), "'hog'"), "%s", bp_session_error(s));
    cr_assert_eq(stat_of(pool, "frames_reserved"), 0);
    cr_assert_eq(bp_get(other, file, 1, BP_SHARED, &ref[0]), 0, "the one that is left can be had by others");
    bp_put(&ref[0]);
    for (unsigned i = 0; i < 3; i++)
        bp_put(&hog->ref[--hog->held]);
    cr_assert_eq(bp_reserve(s, 2), 0, "%s", bp_session_error(s));
    cr_assert_eq(bp_reserve(s, 2), 0, "%s", bp_session_error(s));
    cr_assert_eq(bp_get(other, file, 2, BP_SHARED, &ref[0]), -EBUSY, "nothing is left for others");
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(bp_get(s, file, 10 + i, BP_SHARED, &ref[i]), 0, "%s", bp_session_error(s));
    cr_assert_eq(bp_unreserve(s), 0);
    bp_put_many(ref, 4);
    cr_assert_eq(bp_reserve(s, 3), 0, "its session closes with it");
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(stat_of(pool, "frames_reserved"), 0);
    cr_assert_eq(bp_session_close(other), 0);
    hog_end(hog);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- cost ---- */

struct idler {
    bp_pool *pool;
    bp_file *file;
    uint64_t page;
    double cpu, wall;
    int result;
};

static void *wait_in_vain(void *arg)
{
    struct idler *w = arg;
    bp_session *s = open_session(w->pool, "idler");
    struct bp_ref ref;
    double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);

    w->result = bp_get(s, w->file, w->page, BP_SHARED, &ref);
    w->wall = seconds_of(CLOCK_MONOTONIC) - wall;
    w->cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    if (!w->result)
        bp_put(&ref);
    if (bp_session_close(s))
        abort();
    return NULL;
}

/* Work of those who wait: little CPU, and not more than some sweeps each time that one of them looks. */
Test(turns, waiting_is_cheap)
{
    struct data_file data = data_file_make(50000ull * 4096);
    bp_pool *pool = open_pool(64 << 20, BP_IO_TRY, 2000);
    bp_file *file = open_file(pool, data.path, 0);
    struct hog *hog = hog_all(pool, file, 0);
    struct idler idler[8];
    pthread_t thread[8];
    uint64_t frames = stat_of(pool, "frames_total");
    uint64_t examined = stat_of(pool, "evict_examined");
    double cpu = 0, wall = 0;

    for (unsigned i = 0; i < 8; i++) {
        idler[i] = (struct idler){.pool = pool, .file = file, .page = i};
        cr_assert_eq(pthread_create(&thread[i], NULL, wait_in_vain, &idler[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(thread[i], NULL);
        cr_assert_eq(idler[i].result, -EBUSY);
        cpu += idler[i].cpu;
        wall += idler[i].wall;
    }
    cr_assert_lt(cpu, 0.05 * wall, "%.3f s of CPU in %.3f s", cpu, wall);
    examined = stat_of(pool, "evict_examined") - examined;
    cr_log_info("waiting: %.2f %% CPU, %.1f sweeps of the pool in all", 100 * cpu / wall,
                (double)examined / (double)frames);
    /* one of them searches every 5 ms, and a search looks twice: before and after it took what idle sessions keep */
    cr_assert_leq(examined, ((uint64_t)(wall / 8 * 200) + 50) * 2 * frames, "%lu frames of %lu",
                  (unsigned long)examined, (unsigned long)frames);
    cr_assert_eq(stat_of(pool, "frame_waiters"), 0);
    hog_end(hog);
    close_all(pool);
    data_file_remove(&data);
}

/* With 99 % pinned the rest goes round: pages come, are used, and go, for several at once. */
Test(turns, ninety_nine_percent_pinned)
{
    struct data_file data = data_file_make(50000ull * 4096);
    bp_pool *pool = open_pool(64 << 20, BP_IO_TRY, 30000);
    bp_file *file = open_file(pool, data.path, 0);
    uint64_t frames = stat_of(pool, "frames_total");
    struct hog *hog = hog_all(pool, file, (unsigned)(frames / 100));
    struct pair pair[2];
    uint64_t examined = stat_of(pool, "evict_examined"), evictions = stat_of(pool, "evictions");

    take_pairs(pool, file, false, 500, pair);
    cr_assert_eq(pair[0].done + pair[1].done, 1000);
    examined = stat_of(pool, "evict_examined") - examined;
    evictions = stat_of(pool, "evictions") - evictions;
    cr_log_info("99 %% pinned: %lu frames looked at for %lu evictions", (unsigned long)examined,
                (unsigned long)evictions);
    cr_assert_leq(examined, (evictions + 100) * 6 * frames);
    hog_end(hog);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- somebody notices ---- */

struct lines {
    _Atomic unsigned count;
    char last[500];
};

static void note_line(void *ctx, const char *line)
{
    struct lines *l = ctx;

    snprintf(l->last, sizeof(l->last), "%s", line);
    atomic_fetch_add(&l->count, 1);
}

static bp_pool *open_watched(uint32_t wait_ms, uint32_t watchdog_ms, struct lines *lines)
{
    struct bp_pool_options o = {.size = sizeof(o),
                                .memory = 1 << 20,
                                .wait_ms = wait_ms,
                                .watchdog_ms = watchdog_ms,
                                .log = note_line,
                                .log_ctx = lines};
    bp_pool *pool = NULL;

    cr_assert_eq(bp_pool_open(&o, &pool), 0);
    return pool;
}

Test(turns, the_watchdog_writes_a_line_and_not_many)
{
    struct data_file data = data_file_make(40000ull * 4096);
    uint32_t dogs[] = {200, UINT32_MAX, 60000};

    for (unsigned d = 0; d < 3; d++) {
        struct lines lines = {0};
        bp_pool *pool = open_watched(1500, dogs[d], &lines);
        bp_file *file = open_file(pool, data.path, 0);
        struct hog *hog = hog_all(pool, file, 0);
        struct idler idler[4];
        pthread_t thread[4];

        for (unsigned i = 0; i < 4; i++) {
            idler[i] = (struct idler){.pool = pool, .file = file, .page = i};
            cr_assert_eq(pthread_create(&thread[i], NULL, wait_in_vain, &idler[i]), 0);
        }
        for (unsigned i = 0; i < 4; i++) {
            pthread_join(thread[i], NULL);
            cr_assert_eq(idler[i].result, -EBUSY);
        }
        if (d == 0) {
            cr_assert_geq(lines.count, 1);
            cr_assert_leq(lines.count, 20, "%u lines", lines.count);
            cr_assert_not_null(strstr(lines.last, "no frame was freed for "), "%s", lines.last);
            cr_assert_not_null(strstr(lines.last, "'hog'"), "%s", lines.last);
            cr_assert_null(strchr(lines.last, '\n'));
        } else {
            cr_assert_eq(lines.count, 0, "%s", lines.last);
        }
        hog_end(hog);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- a page that has just come ---- */

/* One frame goes round: who gets a page has it, and it is there until somebody needs the frame. */
Test(turns, a_new_page_survives_its_own_insert)
{
    struct data_file data = data_file_make(40000ull * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 60000);
        bp_file *file = open_file(pool, data.path, 0);
        struct hog *hog = hog_all(pool, file, 1);
        bp_session *s = open_session(pool, "s");

        for (unsigned i = 0; i < 300; i++) {
            uint64_t misses = stat_of(pool, "misses");
            struct bp_ref ref;
            struct bp_view view;

            cr_assert_eq(bp_get(s, file, i, i % 2 ? BP_SHARED : BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, i, ref.data));
            bp_put(&ref);
            cr_assert_eq(bp_read(s, file, i, &view), 0);
            cr_assert(data_page_ok(&data, i, view.data) && bp_view_valid(&view));
            cr_assert_eq(stat_of(pool, "misses"), misses + 1, "still there");
            cr_assert_eq(bp_read(s, file, 1000 + i, &view), 0);
            cr_assert(data_page_ok(&data, 1000 + i, view.data) && bp_view_valid(&view));
            cr_assert_eq(stat_of(pool, "misses"), misses + 2);
        }
        cr_assert_eq(bp_session_close(s), 0);
        hog_end(hog);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(turns, a_forked_child_reserves_nothing)
{
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "parent");
    int status = -1;
    pid_t child;

    cr_assert_eq(bp_reserve(s, 3), 0);
    child = fork();
    if (child == 0)
        _exit(bp_reserve(s, 1) == BP_FORKED && bp_unreserve(s) == BP_FORKED ? 0 : 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(bp_unreserve(s), 3);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}
