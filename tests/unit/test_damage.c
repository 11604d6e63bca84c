/* SPDX-License-Identifier: MIT */
/* Pages that cannot be read, or are not what they should be. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

/* The owner of a file that knows what is in it, and calls some pages bad. */
struct owner {
    const struct data_file *data;
    _Atomic uint64_t bad; /* page; UINT64_MAX: none */
    _Atomic unsigned calls, torn, past_end;
    int answer;
};

static int verify(void *ctx, uint64_t page, const void *at, uint32_t bytes)
{
    struct owner *o = ctx;
    uint64_t left = page < o->data->pages ? o->data->bytes - page * 4096 : 0;

    o->calls++;
    if (bytes != (left < 4096 ? left : 4096) || !bytes)
        o->past_end++;
    else if (!data_page_ok(o->data, page, at))
        o->torn++;
    return page == o->bad ? o->answer : 0;
}

static bp_file *open_owned(bp_pool *pool, struct owner *owner, uint32_t extent_bytes)
{
    struct bp_error error = {0};
    struct bp_file_options o = {
        .size = sizeof(o), .extent_bytes = extent_bytes, .error = &error, .ctx = owner, .verify = verify};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, owner->data->path, &o, &file), 0, "%s", error.text);
    return file;
}

/* Each page is shown to the owner once, whole, before anybody sees it; what he says is the outcome. */
Test(damage, the_owner_is_asked)
{
    static const uint32_t extents[] = {0, 16384};
    struct data_file data = data_file_make(100 * 4096 + 17);

    EACH_BACK_END(io)
    for (unsigned i = 0; i < 2; i++) {
        struct owner owner = {.data = &data, .bad = 42, .answer = -EBADMSG};
        struct bp_file_options other = {.size = sizeof(other), .extent_bytes = extents[i], .ctx = &data};
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s = open_session(pool, "damage");
        bp_file *file = open_owned(pool, &owner, extents[i]);
        bp_file *same = open_owned(pool, &owner, extents[i]);
        struct bp_view view;

        cr_assert_eq(same, file);
        cr_assert_eq(bp_file_open(pool, data.path, &other, &same), -EEXIST, "another owner");
        cr_assert_eq(bp_file_close(same, NULL), 0);
        cr_assert_eq(bp_read(s, file, 42, &view), -EBADMSG);
        cr_assert_not_null(strstr(bp_session_error(s), "page 42 "), "%s", bp_session_error(s));
        owner.answer = 3;
        cr_assert_lt(bp_read(s, file, 42, &view), 0, "no code of an error is one all the same");
        owner.answer = -EAGAIN;
        cr_assert_lt(bp_read(s, file, 42, &view), 0, "and this one does not mean that it is tried again for ever");
        owner.bad = UINT64_MAX;
        owner.calls = 0;
        cr_assert_lt(bp_read(s, file, 42, &view), 0, "known for bad: he is not asked again");
        cr_assert_eq(owner.calls, 0);
        cr_assert_eq(bp_reread(s, file, 0, UINT64_MAX), 0, "%s", bp_session_error(s));
        cr_assert_geq(owner.calls, 1);
        for (uint64_t page = 0; page < data.pages; page++) {
            cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, page, view.data));
        }
        cr_assert(owner.calls <= data.pages && owner.calls > data.pages - 4, "%u calls", owner.calls);
        cr_assert_eq(stat_of(pool, "pages_damaged"), 0);
        cr_assert_eq(owner.torn + owner.past_end, 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- what the device cannot read ---- */

static const struct io_ops *const inner[] = {&bpi_io_uring, &bpi_io_psync};

static bp_pool *open_faulty(uint64_t memory, const struct fault_plan *plan)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .error = &error};
    bp_pool *pool = NULL;

    fault_io_plan(plan);
    cr_assert_eq(bpi_pool_open(&o, &fault_io, &pool), 0, "%s", error.text);
    return pool;
}

static struct fault_plan bad_bytes(const struct io_ops *ops, uint64_t from, uint64_t to)
{
    struct fault_plan plan = fault_plan_none(ops);

    plan.bad_from = from;
    plan.bad_to = to;
    return plan;
}

/* Every page but those from `bad` to `bad_last` is what it should be; those have an error that names them. */
static void read_all_but(bp_session *s, bp_file *file, const struct data_file *data, uint64_t bad, uint64_t bad_last)
{
    for (uint64_t page = 0; page < data->pages; page++) {
        struct bp_view view;
        int rc = bp_read(s, file, page, &view);

        if (page >= bad && page <= bad_last) {
            char name[40];

            snprintf(name, sizeof(name), "page %lu ", (unsigned long)page);
            cr_assert_eq(rc, -EIO, "page %lu: %d", (unsigned long)page, rc);
            cr_assert_not_null(strstr(bp_session_error(s), name), "%s", bp_session_error(s));
        } else {
            cr_assert_eq(rc, 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(data, page, view.data), "page %lu", (unsigned long)page);
        }
    }
}

/* One sector of an extent of 2 MiB: the rest of it is there, after some reads that halve it. */
Test(damage, one_sector)
{
    struct data_file data = data_file_make(1100 * 4096 + 5);

    for (unsigned i = 0; i < 2; i++) {
        struct fault_plan plan = bad_bytes(inner[i], 700 * 4096 + 1024, 700 * 4096 + 1536);
        bp_pool *pool = open_faulty(64 << 20, &plan);
        bp_session *s = open_session(pool, "damage");
        bp_file *file = open_file(pool, data.path, 2 << 20);
        struct bp_view view;
        uint64_t requests;
        uint64_t page;
        int error;

        cr_assert_eq(bp_file_damage(file, 0, &page, &error), 0);
        cr_assert_eq(bp_read(s, file, 900, &view), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&data, 900, view.data));
        cr_assert_eq(fault_io_counts().requests, 2, "the extent, and the half of it that is good");
        read_all_but(s, file, &data, 700, 700);
        requests = fault_io_counts().requests;
        cr_assert_leq(requests, 2 + 2 * 9 + 12, "%lu reads", (unsigned long)requests);
        cr_assert_eq(stat_of(pool, "pages_damaged"), 0, "it has failed once, alone");
        read_all_but(s, file, &data, 700, 700);
        cr_assert_eq(fault_io_counts().requests, requests + 1, "and is read once more");
        read_all_but(s, file, &data, 700, 700);
        cr_assert_eq(fault_io_counts().requests, requests + 1, "but no more");
        cr_assert_eq(stat_of(pool, "pages_damaged"), 1);
        cr_assert_eq(bp_file_damage(file, 0, &page, &error), 1);
        cr_assert(page == 700 && error == -EIO);
        cr_assert_eq(bp_file_damage(file, 701, &page, &error), 0);
        cr_assert_eq(bp_reread(s, file, 0, 700), 0, "not of these");
        cr_assert_eq(bp_reread(s, file, 690, 11), -EIO);
        cr_assert_not_null(strstr(bp_session_error(s), "page 700 "), "%s", bp_session_error(s));
        cr_assert_eq(fault_io_counts().requests, requests + 2);
        cr_assert_eq(bp_read(s, file, 700, &view), -EIO); /* alone, and so known again */
        plan = fault_plan_none(inner[i]);
        fault_io_plan(&plan);
        cr_assert_eq(bp_read(s, file, 700, &view), -EIO, "it is remembered");
        cr_assert_eq(fault_io_counts().requests, 0);
        cr_assert_eq(bp_reread(s, file, 0, UINT64_MAX), 0);
        read_all_but(s, file, &data, data.pages, data.pages);
        cr_assert_eq(fault_io_counts().requests, 1);
        cr_assert_eq(stat_of(pool, "pages_damaged"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* Extents of all sizes, stretches that are bad at their ends and across them, and what becomes of files that come back. */
Test(damage, stretches)
{
    static const uint64_t stretch[][2] = {{0, 0}, {15, 16}, {31, 33}, {100, 190}, {299, 299}};
    struct data_file data = data_file_make(300 * 4096);

    for (unsigned order = 0; order < 6; order++)
        for (unsigned k = 0; k < sizeof(stretch) / sizeof(*stretch); k++) {
            const uint64_t *bad = stretch[k];
            struct fault_plan plan = bad_bytes(inner[k % 2], bad[0] * 4096 + 4095, bad[1] * 4096 + 1);
            bp_pool *pool = open_faulty(3 << 20, &plan);
            bp_session *s = open_session(pool, "damage");
            bp_file *file = open_file(pool, data.path, 4096u << order);

            for (unsigned round = 0; round < 3; round++)
                read_all_but(s, file, &data, bad[0], bad[1]);
            cr_assert_eq(stat_of(pool, "pages_damaged"), bad[1] - bad[0] + 1);
            cr_assert_eq(bp_file_close(file, NULL), 0);
            cr_assert_eq(stat_of(pool, "pages_damaged"), 0, "nobody knows a file that is closed");
            plan = fault_plan_none(inner[k % 2]);
            fault_io_plan(&plan);
            file = open_file(pool, data.path, 4096u << order);
            read_all_but(s, file, &data, data.pages, data.pages);
            cr_assert_eq(bp_session_close(s), 0);
            close_all(pool);
        }
    data_file_remove(&data);
}

/* More than can be remembered: every other page. Nobody waits for ever, and the good ones are good. */
static int32_t odd_pages_fail(void *ctx, const struct io_request *io, int32_t result)
{
    (void)ctx;
    return io->offset / 4096 % 2 || io->bytes > 4096 ? -EIO : result;
}

Test(damage, more_than_can_be_remembered)
{
    struct data_file data = data_file_make(1000 * 4096);
    struct fault_plan plan = fault_plan_none(&bpi_io_psync);
    bp_pool *pool;
    bp_session *s;
    bp_file *file;

    plan.result = odd_pages_fail;
    pool = open_faulty(2 << 20, &plan);
    s = open_session(pool, "damage");
    file = open_file(pool, data.path, 65536);
    for (unsigned round = 0; round < 3; round++)
        for (uint64_t page = 0; page < data.pages; page++) {
            struct bp_view view;
            int rc = bp_read(s, file, page, &view);

            cr_assert_eq(rc, page % 2 ? -EIO : 0, "page %lu: %s", (unsigned long)page, bp_session_error(s));
            cr_assert(rc || data_page_ok(&data, page, view.data));
        }
    for (unsigned i = 0; i < 3; i++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, 999, &view), -EIO);
    }
    cr_assert_eq(stat_of(pool, "pages_damaged"), 1, "the oldest were forgotten, not the newest");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- each his own result ---- */

struct waiter {
    bp_pool *pool;
    bp_file *file;
    const struct data_file *data;
    uint64_t page;
    _Atomic unsigned *arrived;
    int result;
    bool right;
};

static void *wait_for_page(void *arg)
{
    struct waiter *w = arg;
    bp_session *s = open_session(w->pool, "waiter");
    struct bp_ref ref;

    atomic_fetch_add(w->arrived, 1);
    w->result = bp_get(s, w->file, w->page, BP_SHARED, &ref);
    if (!w->result) {
        w->right = data_page_ok(w->data, w->page, ref.data);
        bp_put(&ref);
    }
    return bp_session_close(s) ? s : NULL;
}

#define WAITERS 16u

Test(damage, all_who_wait_get_their_own_result)
{
    struct data_file data = data_file_make(512 * 4096);

    for (unsigned i = 0; i < 2; i++) {
        struct fault_plan plan = bad_bytes(inner[i], 33 * 4096, 34 * 4096);
        _Atomic unsigned arrived = 0;
        struct waiter w[WAITERS];
        pthread_t thread[WAITERS];
        bp_pool *pool;
        bp_file *file;

        plan.hold_from = 0;
        plan.hold_to = 512 * 4096;
        pool = open_faulty(64 << 20, &plan);
        file = open_file(pool, data.path, 2 << 20);
        for (unsigned k = 0; k < WAITERS; k++) {
            w[k] = (struct waiter){pool, file, &data, k % 4 ? 33 + k % 3 : k * 30, &arrived, 99, false};
            pthread_create(&thread[k], NULL, wait_for_page, &w[k]);
        }
        while (atomic_load(&arrived) < WAITERS)
            usleep(1000);
        usleep(50000);
        fault_io_release();
        for (unsigned k = 0; k < WAITERS; k++) {
            pthread_join(thread[k], NULL);
            cr_assert_eq(w[k].result, w[k].page == 33 ? -EIO : 0, "waiter of page %lu: %d", (unsigned long)w[k].page,
                         w[k].result);
            cr_assert_eq(w[k].right, w[k].page != 33);
        }
        close_all(pool);
    }
    data_file_remove(&data);
}
