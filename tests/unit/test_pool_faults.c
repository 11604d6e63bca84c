/* SPDX-License-Identifier: MIT */
/* What the device may do: less than asked, nothing, too late, in another order, or fail. The pool over a back end that
 * does. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

static const struct io_ops *const inner[] = {&bpi_io_uring, &bpi_io_psync};
#define EACH_INNER(ops)                 \
    for (unsigned i_ = 0; i_ < 2; i_++) \
        for (const struct io_ops *ops = inner[i_], *once_ = ops; once_; once_ = NULL)

static bp_pool *open_faulty(uint64_t memory, const struct fault_plan *plan, uint32_t wait_ms)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .wait_ms = wait_ms, .error = &error};
    bp_pool *pool = NULL;
    int rc;

    fault_io_plan(plan);
    rc = bpi_pool_open(&o, &fault_io, &pool);
    cr_assert_eq(rc, 0, "%s", error.text);
    return pool;
}

static bp_file *open_as(bp_pool *pool, const char *path, uint32_t extent_bytes, enum bp_choice direct)
{
    struct bp_file_options o = {.size = sizeof(o), .extent_bytes = extent_bytes, .direct = direct, .readahead = BP_OFF};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, path, &o, &file), 0);
    return file;
}

static void read_all(bp_pool *pool, bp_session *s, bp_file *file, const struct data_file *data)
{
    struct bp_ref ref[40];
    uint64_t page[40];

    (void)pool;
    for (uint64_t at = 0; at < data->pages; at += 40) {
        unsigned n = data->pages - at < 40 ? (unsigned)(data->pages - at) : 40;

        for (unsigned i = 0; i < n; i++)
            page[i] = at + (i * 7 + at) % n;
        for (unsigned i = 0; i < n; i++) /* distinct: 7 may divide n */
            page[i] = n % 7 ? page[i] : at + i;
        cr_assert_eq(bp_get_many(s, file, page, n, BP_SHARED, ref), 0, "%s", bp_session_error(s));
        for (unsigned i = 0; i < n; i++)
            cr_assert(data_page_ok(data, page[i], ref[i].data), "page %lu", (unsigned long)page[i]);
        bp_put_many(ref, n);
    }
}

Test(faults, short_reads_are_continued)
{
    struct data_file data = data_file_make(300 * 4096 + 999);
    static const uint32_t extents[] = {4096, 32768};
    static const uint32_t cuts[] = {512, 1024, 3584, 4096, 12288};

    EACH_INNER(ops)
    for (unsigned k = 0; k < 2; k++)
        for (unsigned c = 0; c <= sizeof(cuts) / sizeof(*cuts); c++) {
            struct fault_plan plan = fault_plan_none(ops);
            bp_pool *pool;
            bp_session *s;
            bp_file *file;

            if (c == sizeof(cuts) / sizeof(*cuts)) {
                plan.short_chance = FAULT_ALWAYS / 3;
                plan.short_unit = 512;
            } else {
                plan.short_at = cuts[c];
            }
            pool = open_faulty(1 << 20, &plan, 0);
            s = open_session(pool, "s");
            file = open_as(pool, data.path, extents[k], BP_TRY);
            read_all(pool, s, file, &data);
            if (c == sizeof(cuts) / sizeof(*cuts) || cuts[c] < extents[k])
                cr_expect_gt(stat_of(pool, "read_continued"), 0);
            cr_assert_eq(bp_session_close(s), 0);
            close_all(pool);
        }
    data_file_remove(&data);
}

/* Through the page cache a read may be cut anywhere. */
Test(faults, short_reads_at_every_byte)
{
    struct data_file data = data_file_make(2 * 4096 + 77);

    EACH_INNER(ops)
    for (uint32_t cut = 1; cut < 8192; cut += cut < 40 || cut > 4090 ? 1 : 97) {
        struct fault_plan plan = fault_plan_none(ops);
        bp_pool *pool;
        bp_session *s;

        if (cut > 4200 && cut < 8150)
            continue;
        plan.short_at = cut;
        plan.short_chance = 0;
        if (cut < 300) { /* so many pieces that the retries of one read would run out: only now and then */
            plan.short_at = 0;
            plan.short_chance = FAULT_ALWAYS / 2;
            plan.short_unit = cut;
            plan.seed = cut;
        }
        pool = open_faulty(1 << 20, &plan, 0);
        s = open_session(pool, "s");
        read_all(pool, s, open_as(pool, data.path, 8192, BP_OFF), &data);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

static int32_t no_progress(void *ctx, const struct io_request *r, int32_t result)
{
    (void)ctx;
    (void)r;
    return result > 1 ? 1 : result;
}

Test(faults, no_progress_ends)
{
    struct data_file data = data_file_make(10 * 4096);

    EACH_INNER(ops)
    {
        struct fault_plan plan = fault_plan_none(ops);
        bp_pool *pool;
        bp_session *s;
        struct bp_ref ref;

        plan.result = no_progress; /* one byte at a time, which direct I/O can never build on */
        pool = open_faulty(1 << 20, &plan, 0);
        s = open_session(pool, "s");
        cr_assert_eq(bp_get(s, open_as(pool, data.path, 0, BP_TRY), 3, BP_SHARED, &ref), -EIO);
        cr_assert_not_null(strstr(bp_session_error(s), "page 3 "), "%s", bp_session_error(s));
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

static int32_t again_twice(void *ctx, const struct io_request *r, int32_t result)
{
    static const int codes[] = {-EAGAIN, -EINTR};
    _Atomic unsigned *calls = ctx;
    unsigned n = atomic_fetch_add(calls, 1);

    (void)r;
    return n % 3 < 2 ? codes[n % 2] : result;
}

Test(faults, interrupted_reads_are_tried_again)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_INNER(ops)
    {
        struct fault_plan plan = fault_plan_none(ops);
        _Atomic unsigned calls = 0;
        bp_pool *pool;
        bp_session *s;

        plan.result = again_twice;
        plan.ctx = &calls;
        pool = open_faulty(1 << 20, &plan, 0);
        s = open_session(pool, "s");
        read_all(pool, s, open_as(pool, data.path, 0, BP_TRY), &data);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- one read for any number of waiters, and its outcome for all of them ---- */

struct waiter {
    bp_pool *pool;
    bp_file *file;
    uint64_t page;
    enum bp_mode mode;
    _Atomic unsigned *arrived;
    int result;
    char first;
};

static void *wait_for_page(void *arg)
{
    struct waiter *w = arg;
    bp_session *s = open_session(w->pool, "waiter");
    struct bp_ref ref;

    atomic_fetch_add(w->arrived, 1);
    w->result = bp_get(s, w->file, w->page, w->mode, &ref);
    if (!w->result) {
        w->first = *(char *)ref.data;
        bp_put(&ref);
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

/* n threads want one page whose read is held back until all of them wait. */
static void crowd(const struct io_ops *ops, const struct data_file *data, bool fails, int wanted)
{
    struct fault_plan plan = fault_plan_none(ops);
    _Atomic unsigned arrived = 0;
    struct waiter w[24];
    pthread_t thread[24];
    bp_pool *pool;
    bp_file *file;
    struct fault_counts counts;

    plan.hold_from = 20 * 4096;
    plan.hold_to = 24 * 4096;
    plan.error_next = fails;
    pool = open_faulty(1 << 20, &plan, 20000);
    file = open_as(pool, data->path, fails ? 0 : 16384, BP_TRY); /* of a larger one that fails, each page is tried */
    for (unsigned i = 0; i < 24; i++) {
        w[i] = (struct waiter){pool, file, fails ? 21 : 20 + i % 4, i % 5 ? BP_SHARED : BP_EXCLUSIVE, &arrived, 99, 0};
        pthread_create(&thread[i], NULL, wait_for_page, &w[i]);
    }
    while (atomic_load(&arrived) < 24)
        usleep(1000);
    for (unsigned k = 0; k < 5000 && stat_of(pool, "joins") < 23; k++) /* all of them wait */
        usleep(1000);
    cr_expect_leq(stat_of(pool, "frames_populated") - stat_of(pool, "frames_free"), 8 + 24,
                  "one extent is charged, not 24");
    fault_io_release();
    for (unsigned i = 0; i < 24; i++)
        pthread_join(thread[i], NULL);
    counts = fault_io_counts();
    for (unsigned i = 0; i < 24; i++) {
        cr_assert_eq(w[i].result, wanted, "waiter %u: %d", i, w[i].result);
        if (!wanted)
            cr_assert_eq(w[i].first, data->content[w[i].page * 4096]);
    }
    cr_assert_eq(counts.requests, 1, "%lu reads", (unsigned long)counts.requests);
    if (fails) { /* the next one reads again, and gets it */
        bp_session *s = open_session(pool, "after");
        struct bp_ref ref;

        cr_assert_eq(bp_get(s, file, 21, BP_SHARED, &ref), 0);
        cr_assert(data_page_ok(data, 21, ref.data));
        bp_put(&ref);
        cr_assert_eq(bp_session_close(s), 0);
    }
    close_all(pool);
}

Test(faults, one_read_for_all_who_wait)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_INNER(ops)
    {
        crowd(ops, &data, false, 0);
        crowd(ops, &data, true, -EIO);
    }
    data_file_remove(&data);
}

Test(faults, operations_hear_of_failures_too)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_INNER(ops)
    {
        struct fault_plan plan = fault_plan_none(ops);
        struct bp_event event[64];
        struct bp_ref ref;
        unsigned good = 0, bad = 0, pending = 0;
        bp_pool *pool;
        bp_session *a, *b;
        bp_file *file;

        plan.bad_from = 10 * 4096;
        plan.bad_to = 12 * 4096;
        pool = open_faulty(1 << 20, &plan, 0);
        a = open_session(pool, "a");
        b = open_session(pool, "b");
        file = open_as(pool, data.path, 0, BP_TRY);
        for (uint64_t page = 0; page < 30; page++) {
            bp_session *s = page % 2 ? a : b;

            cr_assert_eq(bp_get_start(a, file, page, BP_SHARED, 0, a, &ref), BP_PENDING);
            if (bp_get_start(b, file, page, page % 3 ? BP_SHARED : BP_EXCLUSIVE, 0, b, &ref) == BP_PENDING)
                pending++;
            (void)s;
        }
        pending += 30;
        for (bp_session *s = a; pending; s = s == a ? b : a) {
            int n = bp_poll(s, event, 64, 50);

            for (int i = 0; i < n; i++, pending--) {
                cr_assert_eq(event[i].cookie, s);
                if (event[i].result == 0) {
                    cr_assert(data_page_ok(&data, event[i].ref.page, event[i].ref.data));
                    bp_put(&event[i].ref);
                    good++;
                } else {
                    cr_assert_eq(event[i].result, -EIO);
                    bad++;
                }
            }
        }
        cr_assert_eq(bad, 4, "two pages, asked for twice: %u", bad);
        cr_assert_eq(good, 56);
        cr_assert_eq(bp_session_close(a), 0);
        cr_assert_eq(bp_session_close(b), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- late, shuffled, refused ---- */

Test(faults, any_order_any_time)
{
    struct data_file data = data_file_make(1500 * 4096);

    EACH_INNER(ops)
    for (unsigned seed = 1; seed <= 3; seed++) {
        struct fault_plan plan = fault_plan_none(ops);
        bp_pool *pool;
        bp_session *s;

        plan.seed = seed;
        plan.shuffle = true;
        plan.late_chance = FAULT_ALWAYS / 3;
        plan.late_reaps = 5;
        plan.short_chance = FAULT_ALWAYS / 10;
        plan.short_unit = 512;
        plan.submit_busy_chance = FAULT_ALWAYS / 20;
        plan.submit_most = 3;
        plan.wait_error_next = 20;
        plan.buffer_error = -ENOMEM;
        pool = open_faulty(2 << 20, &plan, 0);
        s = open_session(pool, "s");
        for (unsigned round = 0; round < 2; round++) {
            bp_file *file = open_as(pool, data.path, round ? 16384 : 0, BP_TRY);
            struct bp_ref ref;
            unsigned failed = 0;

            for (uint64_t page = 0; page < data.pages; page++) {
                int rc = bp_get(s, file, page, BP_SHARED, &ref);

                if (rc) { /* a refused submission is an error of that read, no more */
                    cr_assert_eq(rc, -EBUSY, "%s", bp_session_error(s));
                    failed++;
                    page--;
                    continue;
                }
                cr_assert(data_page_ok(&data, page, ref.data));
                bp_put(&ref);
            }
            cr_expect_lt(failed, data.pages);
            cr_assert_eq(bp_file_close(file, NULL), 0);
        }
        cr_assert_eq(stat_of(pool, "slabs_registered"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

static void full_channel(const struct io_ops *ops, const struct data_file *data, unsigned refusals)
{
    struct fault_plan plan = fault_plan_none(ops);
    bp_pool *pool;
    bp_session *s;
    bp_file *file;
    struct bp_ref ref;
    int rc;

    plan.submit_busy_next = refusals;
    plan.submit_error = -EAGAIN;
    pool = open_faulty(1 << 20, &plan, 300);
    s = open_session(pool, "s");
    file = open_as(pool, data->path, 0, BP_TRY);
    rc = bp_get(s, file, 7, BP_SHARED, &ref);
    if (refusals < 100) {
        cr_assert_eq(rc, 0, "it waits until there is room: %s", bp_session_error(s));
        cr_assert(data_page_ok(data, 7, ref.data));
        bp_put(&ref);
    } else {
        cr_assert_eq(rc, -EBUSY, "and no longer than until the deadline: %d", rc);
    }
    cr_assert_eq(stat_of(pool, "read_errors"), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

Test(faults, a_channel_that_is_full)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_INNER(ops)
    {
        full_channel(ops, &data, 5);
        full_channel(ops, &data, 1u << 31);
    }
    data_file_remove(&data);
}

/* Nothing that was taken ahead or held back for a batch is left when the call is over. */
static void expect_nothing_held(bp_session *s, const char *when)
{
    cr_expect_eq(s->held_count, 0, "%s: %u reads", when, s->held_count);
    cr_expect_eq(s->spare_frames, 0, "%s: %u frames", when, s->spare_frames);
    cr_expect_null(s->spare, "%s: a request", when);
}

/* 24 pages from `page` on in one call. */
static int get_24(bp_session *s, bp_file *file, const struct data_file *data, uint64_t page, const char *when)
{
    struct bp_ref ref[24];
    uint64_t wanted[24];
    int rc;

    for (unsigned i = 0; i < 24; i++)
        wanted[i] = page + i;
    rc = bp_get_many(s, file, wanted, 24, BP_SHARED, ref);
    expect_nothing_held(s, when);
    for (unsigned i = 0; i < 24 && !rc; i++)
        cr_expect(data_page_ok(data, wanted[i], ref[i].data), "%s: page %lu", when, (unsigned long)wanted[i]);
    if (!rc)
        bp_put_many(ref, 24);
    return rc;
}

static void groups(const struct io_ops *ops, const struct data_file *data, unsigned refusals, int error, unsigned most)
{
    struct fault_plan plan = fault_plan_none(ops);
    bp_pool *pool;
    bp_session *s, *other;
    bp_file *file;
    struct bp_ref ref;

    plan.submit_busy_next = refusals;
    plan.submit_error = error;
    plan.submit_most = most;
    pool = open_faulty(1 << 20, &plan, 10000);
    s = open_session(pool, "s");
    other = open_session(pool, "other");
    file = open_as(pool, data->path, 0, BP_TRY);
    cr_assert_eq(get_24(s, file, data, 0, "refused"), error == -EAGAIN ? 0 : error);
    cr_assert_eq(get_24(s, file, data, 4, "some are there"), 0, "%s", bp_session_error(s));
    cr_assert_eq(get_24(s, file, data, 83, "past the end"), BP_EOF);
    for (uint64_t page = 70; page < 100; page++) { /* also those that the call before left to others */
        cr_assert_eq(bp_get(other, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(other));
        cr_expect(data_page_ok(data, page, ref.data));
        bp_put(&ref);
    }
    cr_assert_eq(atomic_load(&s->channel->in_use), 0);
    cr_assert_eq(stat_of(pool, "read_errors"), error == -EAGAIN ? 0 : GROUP_READS);
    cr_assert_eq(stat_of(pool, "reads"),
                 (error == -EAGAIN ? 28 : 24) + 30); /* 0 to 3 failed, and were not tried again */
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(bp_session_close(other), 0);
    close_all(pool);
}

/* The reads of a batch go out in groups, and a group may be refused, as a whole or in part. */
Test(faults, groups_that_are_refused)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_INNER(ops)
    {
        groups(ops, &data, 0, -EAGAIN, 0);
        groups(ops, &data, 0, -EAGAIN, 3);
        groups(ops, &data, 5, -EAGAIN, 0);
        groups(ops, &data, 1, -ENXIO, 0);
    }
    data_file_remove(&data);
}

/*
 * Nobody has it open any more: a lease for writing is only given then. The kernel may let go of it a little later.
 * Where the file system gives no leases at all, nothing can be told.
 */
static bool is_let_go(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    int rc = -1;

    cr_assert_geq(fd, 0);
    for (unsigned tries = 0; tries < 500 && rc; tries++) {
        rc = fcntl(fd, F_SETLEASE, F_WRLCK);
        if (rc && errno != EAGAIN)
            rc = 0;
        if (rc)
            usleep(10000);
    }
    close(fd);
    return !rc;
}

/* Files with the same number one after the other: each is read from what it is, and let go when it is closed. */
static void files_in_turn(const struct io_ops *ops, const struct data_file data[2], int refuse, int refuse_clearing)
{
    struct fault_plan plan = fault_plan_none(ops);
    bp_pool *pool;
    bp_session *s;

    plan.file_error = refuse;
    pool = open_faulty(1 << 20, &plan, 0);
    s = open_session(pool, "s");
    for (unsigned i = 0; i < 4; i++) {
        bp_file *file = open_as(pool, data[i % 2].path, 0, BP_TRY);

        cr_assert_eq(file_number(file), 1);
        plan.file_error = i == 2 ? -ENOMEM : refuse; /* it takes the slot that was not cleared, or does not */
        fault_io_plan(&plan);
        cr_assert_eq(get_24(s, file, &data[i % 2], 0, "in turn"), 0, "%s", bp_session_error(s));
        if (ops == &bpi_io_uring)
            cr_expect_eq(atomic_load(&s->channel->file[1]), refuse || i == 2 ? SLAB_PLAIN : SLAB_REGISTERED);
        plan.file_error = refuse_clearing;
        fault_io_plan(&plan);
        cr_assert_eq(bp_file_close(file, NULL), 0);
        if (!refuse_clearing)
            cr_expect(is_let_go(data[i % 2].path), "round %u", i);
    }
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    for (unsigned i = 0; i < 2; i++)
        cr_expect(is_let_go(data[i].path), "the pool is closed");
}

Test(faults, registered_files)
{
    struct data_file data[2] = {data_file_make(30 * 4096), data_file_make(30 * 4096)};

    EACH_INNER(ops)
    {
        files_in_turn(ops, data, 0, 0);
        files_in_turn(ops, data, -EMFILE, 0);
        files_in_turn(ops, data, 0, -ENOMEM);
    }
    for (unsigned i = 0; i < 2; i++)
        data_file_remove(&data[i]);
}

Test(faults, a_device_that_does_not_answer)
{
    struct data_file data = data_file_make(1000 * 4096);

    EACH_INNER(ops)
    {
        struct fault_plan plan = fault_plan_none(ops);
        struct bp_error error = {0};
        struct bp_event event;
        struct bp_ref ref;
        bp_pool *pool;
        bp_session *s;
        bp_file *file;

        plan.hold_from = 7 * 4096;
        plan.hold_to = 8 * 4096;
        pool = open_faulty(1 << 20, &plan, 300);
        s = open_session(pool, "s");
        file = open_as(pool, data.path, 0, BP_TRY);
        cr_assert_eq(bp_get(s, file, 7, BP_SHARED, &ref), -ETIMEDOUT);
        cr_assert_not_null(strstr(bp_session_error(s), "page 7 "), "%s", bp_session_error(s));
        cr_assert_eq(bp_get_start(s, file, 7, BP_SHARED, 0, &error, &ref), BP_PENDING);
        cr_assert_eq(bp_poll(s, &event, 1, 10000), 1);
        cr_assert_eq(event.result, -ETIMEDOUT);
        for (uint64_t page = 8; page < 1000; page++) { /* the frame is never given to anybody else meanwhile */
            cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, page, ref.data));
            bp_put(&ref);
        }
        cr_assert_eq(bp_file_close(file, &error), -ETIMEDOUT, "%s", error.text);
        fault_io_release();
        for (unsigned polls = 0, quiet = 0; quiet < 2; polls++) { /* nobody waits for it; it is reaped all the same */
            struct pollfd p = {.fd = bp_session_fd(s), .events = POLLIN};

            cr_assert_lt(polls, 20, "the descriptor stays readable and nothing comes of it");
            quiet += poll(&p, 1, 300) == 0;
            cr_assert_eq(bp_poll(s, &event, 1, 0), 0);
        }
        cr_assert_eq(bp_get(s, file, 7, BP_SHARED, &ref), 0, "the read that was given up has ended: %s",
                     bp_session_error(s));
        cr_assert(data_page_ok(&data, 7, ref.data));
        bp_put(&ref);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(faults, channels_that_cannot_be_opened)
{
    struct data_file data = data_file_make(10 * 4096);
    struct fault_plan plan = fault_plan_none(&bpi_io_uring);
    bp_session *s, *t;
    struct bp_ref ref;
    bp_pool *pool;
    bp_file *file;

    plan.open_error_next = 1;
    pool = open_faulty(1 << 20, &plan, 0);
    s = open_session(pool, "s");
    t = open_session(pool, "t");
    file = open_as(pool, data.path, 0, BP_TRY);
    cr_assert_eq(bp_get(s, file, 1, BP_SHARED, &ref), -ENOMEM);
    cr_assert_eq(bp_get(s, file, 1, BP_SHARED, &ref), 0, "a later try succeeds: %s", bp_session_error(s));
    bp_put(&ref);
    plan.open_error_next = 1000;
    fault_io_plan(&plan);
    cr_assert_eq(bp_get(t, file, 2, BP_SHARED, &ref), 0, "it shares what there is: %s", bp_session_error(t));
    bp_put(&ref);
    cr_assert_eq(stat_of(pool, "channels"), 1);
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(bp_session_close(t), 0);
    close_all(pool);
    data_file_remove(&data);
}
