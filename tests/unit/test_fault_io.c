/* SPDX-License-Identifier: MIT */
/*
 * The misbehaving back end misbehaves as told, and only so: else the tests that use it would prove nothing.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>

#include "tests/fault/fault_io.h"
#include "tests/unit/io_helper.h"

#define FILE_BYTES (64u * 4096)

static const struct io_ops *const io = &fault_io;
static struct io_file file;
static char to[64][4096] __attribute__((aligned(4096)));
static struct job job[64];
static struct io_request *request[64];

static struct fault_plan plan_none(void)
{
    char why[120];
    char remedy[120];
    bool uring = bpi_io_uring_probe(why, remedy, sizeof(why)) == 0;

    return fault_plan_none(uring ? &bpi_io_uring : &bpi_io_psync);
}

static struct io_channel *channel(const struct fault_plan *plan, unsigned depth)
{
    struct io_channel *ch = NULL;

    if (file.fd <= 0)
        cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_OFF), 0);
    for (unsigned i = 0; i < 64; i++) {
        job_set(&job[i], &file, i * 4096ull, to[i], 4096);
        request[i] = &job[i].request;
    }
    memset(to, 0, sizeof(to));
    fault_io_plan(plan);
    cr_assert_eq(io->open(depth, 1, 2, &ch), 0);
    return ch;
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

/* Submit n and wait for all; their results are in the jobs. */
static void run(struct io_channel *ch, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        job_set(&job[i], &file, i * 4096ull, to[i], 4096);
        cr_assert_eq(submit_job(io, ch, &job[i], 0), 0);
    }
    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(wait_job(io, ch, &job[i], 20 * SECOND), 0);
}

/* What was delivered is right, what was not is poison. */
static void check(unsigned i, int32_t result)
{
    size_t good = result > 0 ? (size_t)result : 0;

    cr_expect_eq(job_result(&job[i]), result, "%u: %d", i, job_result(&job[i]));
    cr_expect(bytes_right(to[i], i * 4096ull, good), "%u", i);
    cr_expect(bytes_are(to[i] + good, 4096 - good, FAULT_POISON), "%u: bytes that were not delivered", i);
}

Test(fault_io, nothing_unless_asked)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch = channel(&plan, 8);

    run(ch, 64);
    for (unsigned i = 0; i < 64; i++)
        check(i, 4096);
    cr_expect_eq(fault_io_counts().requests, 64);
    cr_expect_eq(fault_io_counts().shorts + fault_io_counts().errors + fault_io_counts().late, 0);
    cr_assert_eq(io->close(ch), 0);
}

Test(fault_io, short_reads)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch = channel(&plan, 8);
    unsigned seen[8] = {0};

    for (uint32_t at = 1; at < 4096; at += at < 16 ? 1 : 371) {
        plan.short_at = at;
        fault_io_plan(&plan);
        run(ch, 1);
        check(0, (int32_t)at);
    }
    plan.short_at = 0;
    plan.short_unit = 512;
    plan.short_chance = FAULT_ALWAYS;
    plan.seed = 7;
    fault_io_plan(&plan);
    run(ch, 64);
    for (unsigned i = 0; i < 64; i++) {
        int32_t result = job_result(&job[i]);

        cr_assert(result > 0 && result < 4096 && result % 512 == 0, "%d", result);
        check(i, result);
        seen[result / 512]++;
    }
    for (unsigned i = 1; i < 8; i++)
        cr_expect(seen[i], "%u", i * 512);
    cr_expect_eq(fault_io_counts().shorts, 64);
    cr_assert_eq(io->close(ch), 0);
}

static int32_t every_third(void *ctx, const struct io_request *r, int32_t result)
{
    atomic_fetch_add((_Atomic unsigned *)ctx, 1);
    return r->offset / 4096 % 3 ? result : -ESTALE;
}

Test(fault_io, errors)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch;
    _Atomic unsigned asked = 0;
    unsigned failed = 0;

    plan.bad_from = 5 * 4096 + 100;
    plan.bad_to = plan.bad_from + 1;
    ch = channel(&plan, 8);
    run(ch, 16);
    for (unsigned i = 0; i < 16; i++)
        check(i, i == 5 ? -EIO : 4096);

    plan = plan_none();
    plan.error = -EAGAIN;
    plan.error_next = 3;
    fault_io_plan(&plan);
    run(ch, 1);
    check(0, -EAGAIN);
    run(ch, 2);
    check(0, -EAGAIN);
    check(1, -EAGAIN);
    run(ch, 8);
    for (unsigned i = 0; i < 8; i++)
        check(i, 4096);

    plan = plan_none();
    plan.error_chance = FAULT_ALWAYS / 4;
    fault_io_plan(&plan);
    run(ch, 64);
    for (unsigned i = 0; i < 64; i++) {
        failed += job_result(&job[i]) < 0;
        check(i, job_result(&job[i]) < 0 ? -EIO : 4096);
    }
    cr_expect(failed > 3 && failed < 40, "a quarter of 64: %u", failed);
    cr_expect_eq(fault_io_counts().errors, failed);

    plan = plan_none();
    plan.result = every_third;
    plan.ctx = &asked;
    fault_io_plan(&plan);
    run(ch, 9);
    for (unsigned i = 0; i < 9; i++)
        check(i, i % 3 ? 4096 : -ESTALE);
    cr_expect_eq(asked, 9);
    cr_assert_eq(io->close(ch), 0);
}

Test(fault_io, the_same_seed_gives_the_same)
{
    struct fault_plan plan = plan_none();
    int32_t before[64];
    unsigned differ = 0;

    plan.short_chance = FAULT_ALWAYS / 2;
    plan.error_chance = FAULT_ALWAYS / 8;
    for (unsigned round = 0; round < 3; round++) {
        struct io_channel *ch;

        plan.seed = round == 2 ? 12 : 11;
        ch = channel(&plan, 1); /* one at a time: the order is given too */
        run(ch, 64);
        for (unsigned i = 0; i < 64; i++) {
            if (round == 1)
                cr_expect_eq(job_result(&job[i]), before[i]);
            if (round == 2)
                differ += job_result(&job[i]) != before[i];
            before[i] = job_result(&job[i]);
        }
        cr_assert_eq(io->close(ch), 0);
    }
    cr_expect(differ);
}

Test(fault_io, refusals)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch = channel(&plan, 16);
    struct io_channel *none = NULL;

    plan.submit_busy_next = 2;
    plan.submit_most = 3;
    plan.wait_error_next = 1;
    plan.buffer_error = -ENOMEM;
    plan.open_error_next = 2;
    fault_io_plan(&plan);
    cr_expect_eq(io->submit(ch, request, 8, 0), -EBUSY);
    cr_expect_eq(io->submit(ch, request, 8, 0), -EBUSY);
    cr_expect_eq(io->submit(ch, request, 8, 0), 3);
    cr_expect_eq(io->submit(ch, request + 3, 2, 0), 2);
    cr_expect_eq(io->wait(ch, 1, SECOND), -EAGAIN);
    for (unsigned i = 0; i < 5; i++)
        cr_expect_eq(wait_job(io, ch, &job[i], 10 * SECOND), 0);
    cr_expect_eq(io->buffer(ch, 0, to, sizeof(to)), -ENOMEM);
    cr_expect_eq(io->open(4, 0, 0, &none), -ENOMEM);
    cr_expect_eq(io->open(4, 0, 0, &none), -ENOMEM);
    cr_expect_eq(io->open(4, 0, 0, &none), 0);
    cr_expect_eq(fault_io_counts().submits_refused, 2);
    cr_expect_eq(fault_io_counts().submits_cut, 1);
    cr_expect_eq(fault_io_counts().opens_refused, 2);
    cr_expect_eq(fault_io_counts().buffers_refused, 1);
    cr_assert_eq(io->close(none), 0);
    plan = plan_none();
    plan.open_error = -EPERM;
    plan.open_error_next = 1;
    plan.submit_error = -EAGAIN;
    plan.submit_busy_chance = FAULT_ALWAYS;
    fault_io_plan(&plan);
    cr_expect_eq(io->open(4, 0, 0, &none), -EPERM);
    cr_expect_eq(io->submit(ch, request, 8, 0), -EAGAIN);
    cr_assert_eq(io->close(ch), 0);
}

Test(fault_io, late_and_in_another_order)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch;
    struct io_request *done[64];
    unsigned moved = 0;
    unsigned empty = 0;
    unsigned n = 0;

    plan.late_chance = FAULT_ALWAYS;
    plan.late_reaps = 5;
    ch = channel(&plan, 64);
    cr_assert_eq(io->submit(ch, request, 1, IO_BACKGROUND), 1);
    while (fault_io_counts().late == 0) {
        cr_expect_eq(io->wait(ch, 1, 10 * SECOND), 0);
        cr_expect_eq(io->reap(ch, done, 64), 0);
        empty++;
    }
    for (; n == 0 && empty < 100; empty++) {
        cr_expect_eq(io->wait(ch, 1, 10 * SECOND), 0, "not asleep while something only wants to be reaped");
        cr_expect(readable(io->fd(ch)));
        n = io->reap(ch, done, 64);
    }
    cr_expect_eq(n, 1);
    cr_expect_geq(empty, 5);
    cr_expect_not(readable(io->fd(ch)));

    plan = plan_none();
    plan.shuffle = true;
    fault_io_plan(&plan);
    cr_assert_eq(io->submit(ch, request, 64, IO_BACKGROUND), 64);
    sleep_ms(100);
    for (n = 0; n < 64;) {
        cr_assert_eq(io->wait(ch, 1, 10 * SECOND), 0);
        n += io->reap(ch, done + n, 64 - n);
    }
    for (unsigned i = 0; i < 64; i++) {
        unsigned times = 0;

        moved += done[i] != request[i];
        for (unsigned k = 0; k < 64; k++)
            times += done[k] == request[i];
        cr_expect_eq(times, 1, "each once");
    }
    cr_expect_gt(moved, 32);
    cr_assert_eq(io->close(ch), 0);
}

static void *release_later(void *arg)
{
    sleep_ms(50);
    fault_io_release();
    return arg;
}

Test(fault_io, lost_until_released)
{
    struct fault_plan plan = plan_none();
    struct io_channel *ch;
    struct io_request *done[64];
    _Atomic uint64_t word = 0;
    struct io_until until = {.word = &word, .mask = ~0ull, .equals = 0};
    pthread_t thread;

    plan.hold_from = 2 * 4096 + 5;
    plan.hold_to = 2 * 4096 + 6;
    ch = channel(&plan, 4);
    cr_assert_eq(io->submit(ch, request, 4, IO_BACKGROUND), 4);
    for (unsigned i = 0; i < 4; i++)
        if (i != 2)
            cr_expect_eq(wait_job(io, ch, &job[i], 10 * SECOND), 0);
    for (uint64_t end = clock_ns() + 10 * SECOND; fault_io_counts().held == 0 && clock_ns() < end;)
        reap_jobs(io, ch);
    cr_expect_eq(io->wait(ch, 1, SECOND / 50), -ETIME);
    cr_expect_eq(io->wait_until(ch, 1, SECOND / 50, &until), -ETIME);
    atomic_store(&word, 1);
    cr_expect_eq(io->wait_until(ch, 1, 20 * SECOND, &until), 0);
    cr_expect_eq(io->reap(ch, done, 64), 0);
    cr_expect_not(readable(io->fd(ch)));
    cr_expect_eq(io->submit(ch, request + 4, 4, IO_BACKGROUND), 3, "what is held counts as in flight");
    for (unsigned i = 4; i < 7; i++)
        cr_expect_eq(wait_job(io, ch, &job[i], 10 * SECOND), 0);
    pthread_create(&thread, NULL, release_later, NULL);
    cr_expect_eq(wait_job(io, ch, &job[2], 10 * SECOND), 0);
    pthread_join(thread, NULL);
    check(2, 4096);

    fault_io_plan(&plan);
    job_set(&job[2], &file, 2 * 4096ull, to[2], 4096);
    cr_assert_eq(io->submit(ch, request + 2, 1, IO_BACKGROUND), 1);
    for (uint64_t end = clock_ns() + 10 * SECOND; fault_io_counts().held == 0 && clock_ns() < end;)
        reap_jobs(io, ch);
    cr_expect_not(readable(io->fd(ch)));
    fault_io_release();
    cr_expect(readable(io->fd(ch)), "an event loop learns of the release");
    cr_expect_eq(io->reap(ch, done, 64), 1);

    plan.hold_from = 0;
    plan.hold_to = FILE_BYTES;
    fault_io_plan(&plan);
    cr_assert_eq(io->submit(ch, request + 8, 4, 0), 4);
    cr_assert_eq(io->close(ch), 0, "closes with what is held");
}
