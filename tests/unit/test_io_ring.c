/* SPDX-License-Identifier: MIT */
/*
 * The ring: who sleeps, who is woken, what happens when the kernel refuses. Reads of an empty pipe stay in flight until
 * the test writes, so each order of events can be had at will.
 */
#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/io_helper.h"

static const struct io_ops *const io = &bpi_io_uring;

static struct io_channel *channel(unsigned depth, unsigned buffers)
{
    struct io_channel *ch = NULL;
    char why[120];
    char remedy[120];

    if (bpi_io_uring_probe(why, remedy, sizeof(why)))
        cr_skip_test("io_uring does not work here: %s", why);
    cr_assert_eq(io->open(depth, buffers, 0, &ch), 0);
    return ch;
}

/* A read that is answered when we write a byte. */
struct pending {
    int ends[2];
    struct io_file file;
    struct job job;
    char to[8];
};

static void pending_start(struct pending *p, struct io_channel *ch)
{
    cr_assert_eq(pipe(p->ends), 0);
    p->file = (struct io_file){.fd = p->ends[0], .align = 1};
    job_set(&p->job, &p->file, 0, p->to, sizeof(p->to));
    cr_assert_eq(submit_job(io, ch, &p->job, 0), 0);
}

static void pending_answer(struct pending *p)
{
    cr_assert_eq(write(p->ends[1], "x", 1), 1);
}

static void pending_end(struct pending *p)
{
    close(p->ends[0]);
    close(p->ends[1]);
}

/* A thread in wait_until or wait, and what it was told. */
struct waiter {
    struct io_channel *ch;
    struct io_until until;
    const struct io_until *how; /* &until, or NULL: wait */
    unsigned want;
    uint64_t timeout_ns;
    pthread_t thread;
    _Atomic int rc; /* 1: still waiting */
    _Atomic uint64_t ended_ns;
};

static void *waiter_thread(void *arg)
{
    struct waiter *w = arg;
    int rc = io->wait_until(w->ch, w->want, w->timeout_ns, w->how);

    atomic_store(&w->ended_ns, clock_ns());
    atomic_store(&w->rc, rc);
    return NULL;
}

/* word NULL: wait without one. Returns when it is very likely asleep. */
static void waiter_start(struct waiter *w, struct io_channel *ch, const _Atomic uint64_t *word)
{
    *w = (struct waiter){.ch = ch, .until = {.word = word, .mask = ~0ull}, .want = 1, .timeout_ns = 60 * SECOND};
    w->how = word ? &w->until : NULL;
    atomic_store(&w->rc, 1);
    cr_assert_eq(pthread_create(&w->thread, NULL, waiter_thread, w), 0);
    sleep_ms(60);
    cr_assert_eq(atomic_load(&w->rc), 1, "it should be waiting");
}

static void expect_waiting(struct waiter *w)
{
    sleep_ms(60);
    cr_expect_eq(atomic_load(&w->rc), 1, "it should still be waiting");
}

/* It returns soon, with 0. */
static void expect_return(struct waiter *w)
{
    for (uint64_t end = clock_ns() + 10 * SECOND; atomic_load(&w->rc) == 1 && clock_ns() < end;)
        sleep_ms(1);
    cr_assert_eq(atomic_load(&w->rc), 0, "it should have returned");
    pthread_join(w->thread, NULL);
}

static void tell(struct io_channel *ch, _Atomic uint64_t *word)
{
    atomic_store_explicit(word, 1, memory_order_release);
    io->announce(ch, (const _Atomic uint64_t *const[]){word}, 1);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

Test(io_ring, time_is_kept)
{
    struct io_channel *ch = channel(4, 0);
    struct io_request *done[4];
    struct pending p;
    _Atomic uint64_t word = 0;
    struct io_until until = {.word = &word, .mask = 1, .equals = 0};
    uint64_t began;
    uint64_t cpu_began;

    /* nothing in flight: with a word, it waits for that, asleep */
    began = clock_ns();
    cpu_began = cpu_ns();
    cr_expect_eq(io->wait_until(ch, 1, SECOND / 2, &until), -ETIME);
    cr_expect_geq(clock_ns() - began, SECOND / 2);
    cr_expect_lt(cpu_ns() - cpu_began, SECOND / 10);
    pending_start(&p, ch);
    cr_expect_eq(io->wait(ch, 1, 0), -ETIME);
    for (unsigned i = 0; i < 3; i++) {
        began = clock_ns();
        cr_expect_eq(i ? io->wait_until(ch, i, SECOND / 20, &until) : io->wait(ch, 1, SECOND / 20), -ETIME);
        cr_expect_geq(clock_ns() - began, SECOND / 20);
        cr_expect_lt(clock_ns() - began, 5 * SECOND);
    }
    cr_expect_eq(io->reap(ch, done, 4), 0);
    atomic_store(&word, 2); /* not a bit that matters */
    cr_expect_eq(io->wait_until(ch, 1, SECOND / 20, &until), -ETIME);
    atomic_store(&word, 3);
    cr_expect_eq(io->wait_until(ch, 1, 60 * SECOND, &until), 0);
    pending_answer(&p);
    cr_expect_eq(io->wait(ch, 9, UINT64_MAX), 0, "want is clamped to what is in flight");
    cr_expect_eq(io->reap(ch, done, 4), 1);
    cr_expect_eq(done[0], &p.job.request);
    cr_expect_eq(done[0]->result, 1);
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

/* The one in the kernel and those parked behind it each return for their own word only. */
Test(io_ring, announcements_reach_who_waits)
{
    struct io_channel *ch = channel(4, 0);
    _Atomic uint64_t word[4] = {0};
    struct waiter w[4];
    struct pending p;

    pending_start(&p, ch);
    for (unsigned i = 0; i < 4; i++) /* the first leads */
        waiter_start(&w[i], ch, &word[i]);
    tell(ch, &word[2]);
    expect_return(&w[2]);
    tell(ch, &word[0]); /* the leader, out of the kernel; one of the others takes over */
    expect_return(&w[0]);
    expect_waiting(&w[1]);
    expect_waiting(&w[3]);
    tell(ch, &word[1]);
    expect_return(&w[1]);
    tell(ch, &word[3]);
    expect_return(&w[3]);
    pending_answer(&p);
    cr_expect_eq(wait_job(io, ch, &p.job, 10 * SECOND), 0);
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

/* Several words told at once reach each of those who wait for one of them, in the kernel or parked, and nobody else. */
Test(io_ring, one_announcement_of_several_words)
{
    struct io_channel *ch = channel(4, 0);
    _Atomic uint64_t word[6] = {0};
    struct waiter w[4];
    struct pending p;

    pending_start(&p, ch);
    for (unsigned i = 0; i < 4; i++) /* the first two lead */
        waiter_start(&w[i], ch, &word[i]);
    for (unsigned i = 0; i < 6; i++)
        if (i != 1)
            atomic_store_explicit(&word[i], 1, memory_order_release);
    io->announce(ch, (const _Atomic uint64_t *const[]){&word[4], &word[0], &word[5], &word[3], &word[2]}, 5);
    expect_return(&w[0]);
    expect_return(&w[2]);
    expect_return(&w[3]);
    expect_waiting(&w[1]);
    io->announce(ch, NULL, 0);
    expect_waiting(&w[1]);
    tell(ch, &word[1]);
    expect_return(&w[1]);
    pending_answer(&p);
    cr_expect_eq(wait_job(io, ch, &p.job, 10 * SECOND), 0);
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The leader is kicked out of the kernel, it does not just look around now and then (which takes 25 ms on average). */
Test(io_ring, the_leader_is_kicked)
{
    struct io_channel *ch = channel(4, 0);
    uint64_t took_ns[9];
    struct pending p;

    pending_start(&p, ch);
    for (unsigned i = 0; i < 9; i++) {
        _Atomic uint64_t word = 0;
        struct waiter w;
        uint64_t began;

        waiter_start(&w, ch, &word);
        sleep_ms(40 + i * 5); /* its slices are 50 ms by now */
        began = clock_ns();
        tell(ch, &word);
        expect_return(&w);
        took_ns[i] = atomic_load(&w.ended_ns) - began;
    }
    qsort(took_ns, 9, sizeof(took_ns[0]), by_size);
    cr_expect_lt(took_ns[4], 12000000, "median %lu us", (unsigned long)took_ns[4] / 1000);
    pending_answer(&p);
    cr_expect_eq(wait_job(io, ch, &p.job, 10 * SECOND), 0, "what kicks leave behind is not taken for a request");
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

struct reader {
    struct io_channel *ch;
    struct pending p;
    pthread_t thread;
    _Atomic int rc; /* 1: still waiting */
};

static void *reader_thread(void *arg)
{
    struct reader *r = arg;

    atomic_store(&r->rc, wait_job(io, r->ch, &r->p.job, 60 * SECOND));
    return NULL;
}

/* When the leader goes, a parked thread sleeps in the kernel in its place at once, or nobody would see the completions.
 */
Test(io_ring, leadership_is_handed_over)
{
    struct io_channel *ch = channel(8, 0);
    _Atomic uint64_t word = 0;
    struct waiter leader;
    struct reader reader[3];

    for (unsigned i = 0; i < 3; i++) {
        reader[i].ch = ch;
        atomic_store(&reader[i].rc, 1);
        pending_start(&reader[i].p, ch);
    }
    waiter_start(&leader, ch, &word);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(pthread_create(&reader[i].thread, NULL, reader_thread, &reader[i]), 0);
    sleep_ms(60);
    tell(ch, &word);
    expect_return(&leader); /* and does not come back */
    for (unsigned i = 3; i-- > 0;) {
        uint64_t end = clock_ns() + 10 * SECOND;

        sleep_ms(20);
        pending_answer(&reader[i].p);
        while (atomic_load(&reader[i].rc) == 1 && clock_ns() < end)
            sleep_ms(1);
        cr_expect_eq(atomic_load(&reader[i].rc), 0, "reader %u", i);
        for (unsigned k = 0; k < i; k++)
            cr_expect_eq(atomic_load(&reader[k].rc), 1, "reader %u has nothing yet", k);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(reader[i].thread, NULL);
        pending_end(&reader[i].p);
    }
    cr_assert_eq(io->close(ch), 0);
}

/* The parked thread that is woken to take over has no need to: it must wake another. */
Test(io_ring, taking_over_is_passed_on)
{
    struct io_channel *ch = channel(4, 0);
    _Atomic uint64_t word[4] = {0};
    struct waiter w[4];
    struct pending p;

    pending_start(&p, ch);
    for (unsigned i = 0; i < 4; i++) /* two lead, two are parked */
        waiter_start(&w[i], ch, &word[i]);
    atomic_store(&word[2], 1); /* not announced: it learns of it when it is woken for another reason */
    for (unsigned i = 0; i < 2; i++) {
        tell(ch, &word[i]);
        expect_return(&w[i]);
    }
    expect_return(&w[2]); /* the one that has been parked the longest is woken first */
    pending_answer(&p);
    expect_return(&w[3]); /* it is in the kernel now, or it would not see this */
    cr_expect_eq(wait_job(io, ch, &p.job, 10 * SECOND), 0);
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

/* A thread that waits for a word before its read is even submitted sees it through. */
Test(io_ring, a_submission_finds_a_leader)
{
    struct io_channel *ch = channel(4, 0);
    _Atomic uint64_t word = 0;
    struct waiter w[2];
    struct pending p;

    waiter_start(&w[0], ch, &word); /* parked: nothing to sleep for in the kernel */
    waiter_start(&w[1], ch, &word);
    pending_start(&p, ch);
    expect_waiting(&w[0]);
    pending_answer(&p); /* one of them led: it returns, to reap */
    for (uint64_t end = clock_ns() + 10 * SECOND; clock_ns() < end; sleep_ms(1))
        if (atomic_load(&w[0].rc) != 1 || atomic_load(&w[1].rc) != 1)
            break;
    cr_expect(atomic_load(&w[0].rc) == 0 || atomic_load(&w[1].rc) == 0);
    while (!job_done(&p.job))
        reap_jobs(io, ch);
    tell(ch, &word);
    expect_return(&w[0]);
    expect_return(&w[1]);
    pending_end(&p);
    cr_assert_eq(io->close(ch), 0);
}

/*
 * Without a word: returns when somebody else reaped. Both places in the kernel are taken; we submitted, so the
 * completion is posted when our write returns, and it is reaped before those in the kernel have come to look.
 */
Test(io_ring, reaping_wakes_who_waits_for_anything)
{
    struct io_channel *ch = channel(4, 0);
    _Atomic uint64_t word[2] = {0};
    struct pending p[2];
    struct waiter leader[2];
    struct waiter any[2];

    pending_start(&p[0], ch);
    pending_start(&p[1], ch);
    for (unsigned i = 0; i < 2; i++)
        waiter_start(&leader[i], ch, &word[i]);
    for (unsigned i = 0; i < 2; i++)
        waiter_start(&any[i], ch, NULL);
    pending_answer(&p[0]);
    while (!job_done(&p[0].job))
        reap_jobs(io, ch);
    expect_return(&any[0]);
    expect_return(&any[1]);
    for (unsigned i = 0; i < 2; i++) {
        tell(ch, &word[i]);
        expect_return(&leader[i]);
    }
    pending_answer(&p[1]);
    cr_expect_eq(wait_job(io, ch, &p[1].job, 10 * SECOND), 0);
    for (unsigned i = 0; i < 2; i++)
        pending_end(&p[i]);
    cr_assert_eq(io->close(ch), 0);
}

/* ---- registered buffers -------------------------------------------------------------------------------- */

static int32_t read_fixed(struct io_channel *ch, const struct io_file *file, void *to, unsigned buffer)
{
    struct job job;

    job_set(&job, file, 4096, to, 4096);
    job.request.buffer = buffer;
    cr_assert_eq(submit_job(io, ch, &job, 0), 0);
    cr_assert_eq(wait_job(io, ch, &job, 10 * SECOND), 0);
    return job_result(&job);
}

Test(io_ring, registered_buffers)
{
    struct io_channel *ch = channel(4, 3);
    struct io_channel *other;
    size_t bytes = 64 * 4096;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct io_file file;

    cr_assert_eq(open_file(&file, 65536, IO_DIRECT_TRY), 0);
    cr_expect_eq(io->buffer(ch, 3, at, bytes), -EINVAL, "slots are 0 to 2");
    cr_expect_eq(read_fixed(ch, &file, at, 1), -EFAULT, "an empty slot");
    cr_assert_eq(io->buffer(ch, 1, at, bytes), 0);
    cr_expect_eq(read_fixed(ch, &file, at + 8192, 1), 4096);
    cr_expect(bytes_right(at + 8192, 4096, 4096));
    cr_expect_eq(read_fixed(ch, &file, at + bytes - 2048, 1), -EFAULT, "not inside the buffer");
    cr_expect_eq(read_fixed(ch, &file, at, IO_BUFFER_NONE), 4096, "plain reads beside");
    cr_assert_eq(io->buffer(ch, 1, NULL, 0), 0);
    cr_expect_eq(read_fixed(ch, &file, at, 1), -EFAULT, "cleared");
    cr_assert_eq(io->close(ch), 0);

    other = channel(4, 0);
    cr_expect_lt(io->buffer(other, 0, at, bytes), 0, "no table");
    cr_assert_eq(io->close(other), 0);
    other = channel(4, 1 << 20);
    cr_expect_eq(io->buffer(other, 0, at, bytes), -EINVAL, "a table that cannot be made is no reason not to open");
    cr_expect_eq(read_fixed(other, &file, at, IO_BUFFER_NONE), 4096);
    cr_assert_eq(io->close(other), 0);

    cr_assert_eq(bpi_io_psync.open(4, 3, 0, &other), 0);
    cr_expect_eq(bpi_io_psync.buffer(other, 0, at, bytes), -EOPNOTSUPP);
    cr_assert_eq(bpi_io_psync.close(other), 0);
    bpi_io_file_close(&file);
    munmap(at, bytes);
}

/* ---- registered files ---------------------------------------------------------------------------------- */

static int32_t read_slot(struct io_channel *ch, unsigned slot, const struct io_file *file, void *to, uint32_t bytes)
{
    struct job job;

    job_set(&job, file, 0, to, bytes);
    job.request.file_slot = slot + 1;
    cr_assert_eq(submit_job(io, ch, &job, 0), 0);
    cr_assert_eq(wait_job(io, ch, &job, 10 * SECOND), 0);
    return job_result(&job);
}

/* Told apart by their lengths. */
Test(io_ring, registered_files)
{
    static const struct io_file closed = {.fd = -1, .align = 1};
    struct io_channel *ch = channel(4, 0);
    struct io_channel *other;
    struct io_file file[2];
    char to[8192];

    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(open_file(&file[i], 1000 * (i + 1), IO_DIRECT_OFF), 0);
    cr_expect_eq(io->file(ch, IO_FILES_MAX, &file[0]), -EINVAL);
    cr_expect_eq(read_slot(ch, 7, &file[0], to, sizeof(to)), -EBADF, "an empty slot");
    cr_assert_eq(io->file(ch, 7, &file[0]), 0);
    cr_assert_eq(io->file(ch, IO_FILES_MAX - 1, &file[1]), 0);
    cr_expect_eq(read_slot(ch, 7, &closed, to, sizeof(to)), 1000, "the slot counts, not the descriptor");
    cr_expect(bytes_right(to, 0, 1000));
    cr_expect_eq(read_slot(ch, IO_FILES_MAX - 1, &closed, to, sizeof(to)), 2000);
    cr_assert_eq(io->file(ch, 7, &file[1]), 0);
    cr_expect_eq(read_slot(ch, 7, &closed, to, sizeof(to)), 2000, "another file's now");
    cr_assert_eq(io->file(ch, 7, NULL), 0);
    cr_expect_eq(read_slot(ch, 7, &file[0], to, sizeof(to)), -EBADF, "cleared");
    cr_expect_eq(io->file(ch, 7, &closed), 0, "which is what a closed file does, too");
    cr_assert_eq(io->close(ch), 0);

    cr_assert_eq(bpi_io_psync.open(4, 0, 0, &other), 0);
    cr_expect_eq(bpi_io_psync.file(other, 0, &file[0]), -EOPNOTSUPP);
    cr_assert_eq(bpi_io_psync.close(other), 0);
    for (unsigned i = 0; i < 2; i++)
        bpi_io_file_close(&file[i]);
}

/* ---- in a child: limits and refusals -------------------------------------------------------------------- */

static struct io_file child_file;

static int in_child(int (*step)(long), long argument)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0)
        _exit(step(argument));
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* As a user without privileges and 64 KiB of lockable memory: no buffers, plain reads. */
static int little_memlock(long unused)
{
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    size_t bytes = 2 << 20;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct io_channel *ch = NULL;
    struct job job;
    int rc;

    (void)unused;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) || setgid(65534) || setuid(65534))
        return 77;
    if (io->open(8, 4, 0, &ch))
        return 2;
    rc = io->buffer(ch, 0, at, bytes);
    if (rc != -ENOMEM && rc != -EPERM)
        return 3;
    for (unsigned i = 0; i < 100; i++) {
        job_set(&job, &child_file, i % 16 * 4096, at + i * 4096, 4096);
        if (submit_job(io, ch, &job, 0) || wait_job(io, ch, &job, 10 * SECOND) || job_result(&job) != 4096)
            return 4;
        if (!bytes_right(at + i * 4096, i % 16 * 4096, 4096))
            return 5;
    }
    return io->close(ch) ? 6 : 0;
}

Test(io_ring, little_memlock)
{
    cr_assert_eq(io->close(channel(4, 0)), 0);
    if (geteuid() != 0)
        cr_skip_test("only root can become somebody else");
    cr_assert_eq(open_file(&child_file, 65536, IO_DIRECT_TRY), 0);
    cr_expect_eq(in_child(little_memlock, 0), 0);
    bpi_io_file_close(&child_file);
}

static int forbid_enter(unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? -errno : 0;
}

/*
 * A ring that worked, and then the kernel refuses each call: what submit started comes back to the caller; what was
 * queued finishes with the errno if it is for good, and stays queued if it may pass; close does not wait for what never
 * began.
 */
static int refused(long error)
{
    bool passes = error == EAGAIN || error == EBUSY;
    struct io_channel *ch = NULL;
    struct io_request *request[4];
    struct io_request *done[4];
    struct job job[4];
    char to[4][512];
    uint64_t began = clock_ns();
    int rc;

    if (io->open(4, 0, 0, &ch))
        return 1;
    for (unsigned i = 0; i < 4; i++) {
        job_set(&job[i], &child_file, 0, to[i], sizeof(to[i]));
        request[i] = &job[i].request;
    }
    if (forbid_enter((unsigned)error))
        return 77;
    if (io->submit(ch, request, 2, IO_HOLD) != 2)
        return 2;
    if (io->submit(ch, request + 2, 2, IO_BACKGROUND) != -(int)error) /* what was held before stays */
        return 3;
    rc = io->wait(ch, 1, SECOND / 10);
    if (passes ? rc != -(int)error : rc != 0)
        return 4;
    if (io->flush(ch) != (passes ? -(int)error : 0))
        return 5;
    if (io->reap(ch, done, 4) != (passes ? 0 : 2))
        return 6;
    if (!passes && (done[0] != request[0] || done[1] != request[1] || done[1]->result != -(int)error))
        return 7;
    if (!passes && (io->submit(ch, request, 4, IO_HOLD) != 4 || io->flush(ch) || io->reap(ch, done, 1) != 1))
        return 8;
    if (io->close(ch))
        return 9;
    return clock_ns() - began < 10 * SECOND ? 0 : 10;
}

/* A read that was under way before the kernel barred us from waiting is seen when it is done, and close waits for it.
 */
static int barred(long error)
{
    struct io_channel *ch = NULL;
    struct pending p[2];

    if (io->open(4, 0, 0, &ch))
        return 1;
    pending_start(&p[0], ch);
    pending_start(&p[1], ch);
    if (forbid_enter((unsigned)error))
        return 77;
    if (io->wait(ch, 1, SECOND / 20) != -ETIME)
        return 2;
    pending_answer(&p[0]);
    if (wait_job(io, ch, &p[0].job, 10 * SECOND) || job_result(&p[0].job) != 1)
        return 3;
    pending_answer(&p[1]);
    return io->close(ch) ? 4 : 0;
}

Test(io_ring, the_kernel_refuses)
{
    cr_assert_eq(io->close(channel(4, 0)), 0);
    cr_assert_eq(open_file(&child_file, 65536, IO_DIRECT_OFF), 0);
    cr_expect_eq(in_child(refused, EPERM), 0);
    cr_expect_eq(in_child(refused, ENOSYS), 0);
    cr_expect_eq(in_child(refused, EAGAIN), 0);
    cr_expect_eq(in_child(refused, EBUSY), 0);
    cr_expect_eq(in_child(barred, EPERM), 0);
    bpi_io_file_close(&child_file);
}
