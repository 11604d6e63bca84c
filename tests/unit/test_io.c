/* SPDX-License-Identifier: MIT */
/*
 * Channels: what every back end must do. Each test runs against io_uring and against pread.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "tests/unit/io_helper.h"

#define FILE_BYTES ((1u << 20) + 1808) /* the last page is partial, and not a multiple of 512 */

static const struct io_ops *const back_ends[] = {&bpi_io_uring, &bpi_io_psync};

/* The n-th back end that works here, or NULL. */
static const struct io_ops *back_end(unsigned n)
{
    char why[120];
    char remedy[120];
    bool uring = bpi_io_uring_probe(why, remedy, sizeof(why)) == 0;

    if (n == 0 && !uring)
        cr_log_warn("io_uring is not tested: %s", why);
    n += !uring;
    return n < 2 ? back_ends[n] : NULL;
}

#define FOR_EACH_BACK_END(io)           \
    for (unsigned n_ = 0; n_ < 2; n_++) \
        for (const struct io_ops *io = back_end(n_); io; io = NULL)

static struct io_channel *channel(const struct io_ops *io, unsigned depth)
{
    struct io_channel *ch = NULL;

    cr_assert_eq(io->open(depth, 0, 4, &ch), 0, "%s", io->name);
    return ch;
}

static void *pages(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(at, MAP_FAILED);
    return at;
}

static unsigned open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (dir && readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static int32_t read_one(const struct io_ops *io, struct io_channel *ch, const struct io_file *file, uint64_t offset,
                        void *to, uint32_t bytes)
{
    struct job job;

    job_set(&job, file, offset, to, bytes);
    cr_assert_eq(submit_job(io, ch, &job, 0), 0);
    cr_assert_eq(wait_job(io, ch, &job, 10 * SECOND), 0);
    return job_result(&job);
}

static void check_bytes(const struct io_ops *io, const struct io_file *file, uint32_t step)
{
    struct io_channel *ch = channel(io, 4);
    unsigned char *to = pages(65536);
    static const uint32_t lengths[] = {1, 7, 511, 512, 4096, 4097, 8192, 65536};

    for (uint64_t offset = 0; offset < FILE_BYTES + 70000; offset += step) {
        for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            uint32_t bytes = lengths[i];
            uint64_t left = offset < FILE_BYTES ? FILE_BYTES - offset : 0;
            uint32_t expected = bytes < left ? bytes : (uint32_t)left;

            if (offset % file->align || bytes % file->align)
                continue;
            memset(to, 0x55, bytes);
            cr_assert_eq(read_one(io, ch, file, offset, to, bytes), (int32_t)expected, "%s: %u bytes at %lu", io->name,
                         bytes, (unsigned long)offset);
            cr_assert(bytes_right(to, offset, expected), "%s: %u bytes at %lu", io->name, bytes, (unsigned long)offset);
        }
    }
    munmap(to, 65536);
    cr_assert_eq(io->close(ch), 0);
}

Test(io, bytes_at_every_offset)
{
    struct io_file file;

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_OFF), 0);
    cr_assert_eq(file.align, 1);
    FOR_EACH_BACK_END(io)
    check_bytes(io, &file, 3989);
    bpi_io_file_close(&file);

    if (open_file(&file, FILE_BYTES, IO_DIRECT_ON))
        cr_skip_test("no direct I/O in the working directory");
    FOR_EACH_BACK_END(io)
    check_bytes(io, &file, 512 * 23);
    bpi_io_file_close(&file);
}

Test(io, errors_are_passed_on)
{
    struct io_file file;
    struct io_file closed;
    struct io_file folder = {.fd = open(".", O_RDONLY | O_CLOEXEC), .align = 1};
    unsigned char *to = pages(16384);

    /* a descriptor that nobody has: a closed one's number would be taken by the next that is opened */
    closed = (struct io_file){.fd = 1 << 20, .align = 1};
    FOR_EACH_BACK_END(io)
    {
        struct io_channel *ch = channel(io, 4);

        cr_expect_eq(read_one(io, ch, &closed, 0, to, 4096), -EBADF, "%s", io->name);
        cr_expect_eq(read_one(io, ch, &folder, 0, to, 4096), -EISDIR, "%s", io->name);
        cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_OFF), 0);
        cr_expect_eq(read_one(io, ch, &file, 0, (void *)4096, 4096), -EFAULT, "%s", io->name);
        bpi_io_file_close(&file);
        cr_assert_eq(io->close(ch), 0);
    }
    close(folder.fd);
    if (open_file(&file, FILE_BYTES, IO_DIRECT_ON))
        cr_skip_test("no direct I/O in the working directory");
    if (file.align < 512)
        cr_skip_test("direct I/O is not picky here");
    FOR_EACH_BACK_END(io)
    {
        struct io_channel *ch = channel(io, 4);

        cr_expect_eq(read_one(io, ch, &file, 100, to, 4096), -EINVAL, "%s: offset", io->name);
        cr_expect_eq(read_one(io, ch, &file, 0, to + 1, 4096), -EINVAL, "%s: address", io->name);
        cr_expect_eq(read_one(io, ch, &file, 0, to, 4095), -EINVAL, "%s: length", io->name);
        cr_expect_eq(read_one(io, ch, &file, 4096, to, 4096), 4096, "%s: all right", io->name);
        cr_assert_eq(io->close(ch), 0);
    }
    bpi_io_file_close(&file);
    munmap(to, 16384);
}

/* ---- counting ---------------------------------------------------------------------------------------- */

static void set_jobs(struct job job[], struct io_request *request[], unsigned n, const struct io_file *file, char *to)
{
    for (unsigned i = 0; i < n; i++) {
        job_set(&job[i], file, i * 4096ull, to + i * 4096ull, 4096);
        request[i] = &job[i].request;
    }
}

Test(io, no_more_than_depth_in_flight)
{
    struct io_file file;
    struct io_channel *ch;
    struct job job[12];
    struct io_request *request[12];
    struct io_request *done[12];
    char *to = pages(12 * 4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        cr_expect_eq(io->open(0, 0, 0, &ch), -EINVAL);
        cr_expect_eq(io->open(IO_DEPTH_MAX + 1, 0, 0, &ch), -EINVAL);
        for (unsigned flags = 0; flags <= (IO_HOLD | IO_BACKGROUND); flags++) {
            unsigned reaped = 0;

            set_jobs(job, request, 12, &file, to);
            ch = channel(io, 5);
            cr_expect_eq(io->wait(ch, 1, 10 * SECOND), 0, "nothing in flight: at once");
            cr_expect_eq(io->submit(ch, request, 0, flags), 0);
            cr_expect_eq(io->submit(ch, request, 3, flags), 3);
            cr_expect_eq(io->submit(ch, request + 3, 9, flags), 2, "%s: depth is 5", io->name);
            cr_expect_eq(io->submit(ch, request + 5, 7, flags), 0, "%s: depth is 5", io->name);
            for (uint64_t end = clock_ns() + 10 * SECOND; reaped < 5 && clock_ns() < end;) {
                cr_expect_eq(io->wait(ch, 5, 10 * SECOND), 0);
                reaped += io->reap(ch, done + reaped, 12 - reaped);
            }
            cr_expect_eq(reaped, 5, "%s: what was taken comes, and nothing else: %u", io->name, reaped);
            cr_expect_eq(io->reap(ch, done, 12), 0);
            cr_expect_eq(io->submit(ch, request + 5, 7, flags), 5, "%s: there is room again", io->name);
            cr_assert_eq(io->close(ch), 0); /* with these in flight or held */
        }
    }
    bpi_io_file_close(&file);
    munmap(to, 12 * 4096);
}

Test(io, ten_thousand_through_depth_four)
{
    struct io_file file;
    struct job job[4];
    struct io_request *free_one[4];
    struct io_request *done[4];
    char *to = pages(4 * 4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        struct io_channel *ch = channel(io, 4);
        unsigned idle = 4;
        unsigned taken = 0;
        unsigned finished = 0;

        set_jobs(job, free_one, 4, &file, to);
        while (finished < 10000) {
            unsigned n = 10000 - taken < idle ? 10000 - taken : idle;
            int rc;

            for (unsigned i = 0; i < n; i++)
                free_one[idle - n + i]->offset = (taken + i) * 7919ull % 256 * 4096;
            rc = io->submit(ch, free_one + idle - n, n, taken % 3 ? IO_HOLD : 0);
            cr_assert_eq(rc, (int)n, "%s: took %d of %u", io->name, rc, n);
            taken += n;
            idle -= n;
            rc = io->wait(ch, 1 + taken % 4, 10 * SECOND);
            cr_assert_eq(rc, 0, "%s: %d after %u", io->name, rc, finished);
            n = io->reap(ch, done, 4);
            for (unsigned i = 0; i < n; i++) {
                cr_assert_eq(done[i]->result, 4096);
                cr_assert(bytes_right(done[i]->to, done[i]->offset, 4096));
                memset(done[i]->to, 0, 4096);
                free_one[idle++] = done[i];
            }
            finished += n;
        }
        cr_assert_eq(idle, 4);
        cr_assert_eq(io->close(ch), 0);
    }
    bpi_io_file_close(&file);
    munmap(to, 4 * 4096);
}

Test(io, thousand_channels_one_after_another)
{
    struct io_file file;
    unsigned char *to = pages(4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        unsigned before = open_descriptors();

        for (unsigned i = 0; i < 1000; i++) {
            struct io_channel *ch = NULL;
            int rc = io->open(32, 16, 4, &ch);

            cr_assert_eq(rc, 0, "%s: %d after %u", io->name, rc, i);
            io->buffer(ch, 0, to, 4096);
            if (i % 100 == 0)
                cr_assert_eq(read_one(io, ch, &file, 4096, to, 4096), 4096);
            cr_assert_geq(io->fd(ch), 0);
            cr_assert_eq(io->close(ch), 0);
        }
        cr_expect_eq(open_descriptors(), before, "%s leaks descriptors", io->name);
    }
    bpi_io_file_close(&file);
    munmap(to, 4096);
}

Test(io, close_with_reads_in_flight)
{
    struct io_file file;
    struct job job[64];
    struct io_request *request[64];

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        for (unsigned round = 0; round < 20; round++) {
            struct io_channel *ch = channel(io, 64);
            char *to = pages(64 * 4096);

            set_jobs(job, request, 64, &file, to);
            cr_assert_eq(io->submit(ch, request, 48, IO_BACKGROUND), 48);
            cr_assert_eq(io->submit(ch, request + 48, 16, IO_HOLD), 16);
            cr_assert_eq(io->close(ch), 0);
            /* nothing is written any more */
            memset(to, 0x77, 64 * 4096);
            sleep_ms(5);
            cr_assert(bytes_are(to, 64 * 4096, 0x77), "%s: a read went on after close", io->name);
            munmap(to, 64 * 4096);
        }
    }
    bpi_io_file_close(&file);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

struct crew {
    const struct io_ops *io;
    struct io_channel *ch;
    const struct io_file *file;
    unsigned rounds;
    unsigned flags;
    _Atomic unsigned wrong;
    _Atomic unsigned number;
};

/* Reads at random places, waiting for each, and does the others' reaping on the way. */
static void *crew_member(void *arg)
{
    struct crew *crew = arg;
    unsigned me = atomic_fetch_add(&crew->number, 1);
    uint64_t random = me;
    char *to = aligned_alloc(4096, 4 * 4096);
    struct job job[4];
    unsigned wrong = 0;

    for (unsigned i = 0; i < crew->rounds; i++) {
        unsigned n = 1 + i % 4;

        for (unsigned k = 0; k < n; k++) {
            job_set(&job[k], crew->file, random_of(&random) % 256 * 4096, to + 4096 * k, 4096);
            wrong += submit_job(crew->io, crew->ch, &job[k], (i + me) % 3 ? crew->flags : crew->flags | IO_HOLD) != 0;
        }
        for (unsigned k = 0; k < n; k++) {
            wrong += wait_job(crew->io, crew->ch, &job[k], 20 * SECOND) != 0;
            wrong += job_result(&job[k]) != 4096;
            wrong += !bytes_right(job[k].request.to, job[k].request.offset, 4096);
        }
    }
    free(to);
    atomic_fetch_add(&crew->wrong, wrong);
    return NULL;
}

Test(io, threads_share_a_channel)
{
    struct io_file file;

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        for (unsigned flags = 0; flags <= IO_BACKGROUND; flags += IO_BACKGROUND) {
            struct crew crew = {.io = io, .ch = channel(io, 8), .file = &file, .rounds = 800, .flags = flags};
            pthread_t thread[5];

            for (unsigned i = 0; i < 5; i++)
                cr_assert_eq(pthread_create(&thread[i], NULL, crew_member, &crew), 0);
            for (unsigned i = 0; i < 5; i++)
                pthread_join(thread[i], NULL);
            cr_expect_eq(crew.wrong, 0, "%s: %u wrong", io->name, crew.wrong);
            cr_assert_eq(io->close(crew.ch), 0);
        }
    }
    bpi_io_file_close(&file);
}

enum absence { GOES_TO_SLEEP, SPINS, ENDS, HOLDS_AND_SLEEPS, ABSENCES };

struct absent {
    const struct io_ops *io;
    struct io_channel *ch;
    struct job *job;
    enum absence how;
    _Atomic bool submitted;
    _Atomic bool stop; /* for SPINS */
    sem_t wake;        /* for the sleepers */
};

/* Starts a read and does not care for it any more. */
static void *absent_thread(void *arg)
{
    struct absent *a = arg;
    struct io_request *request = &a->job->request;

    if (a->io->submit(a->ch, &request, 1, a->how == HOLDS_AND_SLEEPS ? IO_HOLD : 0) == 1)
        atomic_store(&a->submitted, true);
    while (a->how == SPINS && !atomic_load(&a->stop))
        ;
    while (a->how != SPINS && a->how != ENDS && sem_wait(&a->wake) < 0)
        ;
    return NULL;
}

static void absent_start(struct absent *a, pthread_t *thread)
{
    sem_init(&a->wake, 0, 0);
    cr_assert_eq(pthread_create(thread, NULL, absent_thread, a), 0);
    if (a->how == ENDS)
        pthread_join(*thread, NULL);
    for (uint64_t end = clock_ns() + 10 * SECOND; !atomic_load(&a->submitted) && clock_ns() < end;)
        sched_yield();
    cr_assert(atomic_load(&a->submitted));
}

static void absent_end(struct absent *a, pthread_t thread)
{
    atomic_store(&a->stop, true);
    sem_post(&a->wake);
    if (a->how != ENDS)
        pthread_join(thread, NULL);
    sem_destroy(&a->wake);
}

Test(io, a_read_whose_thread_is_gone)
{
    struct io_file file;
    char *to = pages(4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        for (unsigned how = 0; how < ABSENCES; how++) {
            struct io_channel *ch = channel(io, 4);
            struct job job;
            struct absent a = {.io = io, .ch = ch, .job = &job, .how = (enum absence)how};
            pthread_t thread;
            uint64_t began;

            job_set(&job, &file, 8192, to, 4096);
            memset(to, 0, 4096);
            absent_start(&a, &thread);
            began = clock_ns();
            cr_expect_eq(wait_job(io, ch, &job, 10 * SECOND), 0, "%s, case %u", io->name, how);
            cr_expect_lt(clock_ns() - began, SECOND, "%s, case %u", io->name, how);
            cr_expect_eq(job_result(&job), 4096);
            cr_expect(bytes_right(to, 8192, 4096));
            absent_end(&a, thread);
            cr_assert_eq(io->close(ch), 0);
        }
    }
    bpi_io_file_close(&file);
    munmap(to, 4096);
}

/* ---- event loops ------------------------------------------------------------------------------------- */

static bool readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t end = clock_ns() + (uint64_t)timeout_ms * 1000000;
    int rc;

    do /* the kernel may interrupt the call to post a completion */
        rc = poll(&p, 1, timeout_ms);
    while (rc < 0 && errno == EINTR && clock_ns() < end);
    return rc == 1;
}

Test(io, descriptor_tells_of_completions)
{
    struct io_file file;
    struct job job[4];
    struct io_request *request[4];
    char *to = pages(4 * 4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        struct io_channel *ch = channel(io, 8);
        struct absent a = {.io = io, .ch = ch, .job = &job[0], .how = GOES_TO_SLEEP};
        struct epoll_event event = {.events = EPOLLIN};
        struct io_request *done[8];
        int poller = epoll_create1(EPOLL_CLOEXEC);
        pthread_t thread;
        uint64_t end = clock_ns() + 10 * SECOND;
        unsigned n = 0;
        int fd = io->fd(ch);

        cr_assert_geq(fd, 0);
        cr_expect_eq(io->fd(ch), fd);
        cr_expect_not(readable(fd, 20));
        cr_assert_eq(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event), 0);
        set_jobs(job, request, 4, &file, to);
        cr_expect_eq(io->submit(ch, request + 1, 3, IO_BACKGROUND | IO_HOLD), 3);
        cr_expect_eq(io->flush(ch), 0);
        while (n < 3 && clock_ns() < end)
            if (epoll_wait(poller, &event, 1, 1000) > 0) {
                cr_expect(readable(fd, 0), "level-triggered");
                n += io->reap(ch, done, 1);
            }
        cr_expect_eq(n, 3, "%s: %u of 3", io->name, n);
        cr_expect_not(readable(fd, 20), "%s: quiet when all is reaped", io->name);

        /* started by another thread, which then sleeps; for pread it is ours to do, so wait once */
        absent_start(&a, &thread);
        if (io == &bpi_io_psync)
            io->wait(ch, 1, SECOND);
        cr_expect(readable(fd, 1000), "%s: another thread's read", io->name);
        cr_expect_eq(io->reap(ch, done, 8), 1);
        cr_expect_not(readable(fd, 20));
        absent_end(&a, thread);
        close(poller);
        cr_assert_eq(io->close(ch), 0);
    }
    bpi_io_file_close(&file);
    munmap(to, 4 * 4096);
}

Test(io, background_needs_nobody)
{
    struct io_file file;
    struct job job[16];
    struct io_request *request[16];
    char *to = pages(16 * 4096);

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    FOR_EACH_BACK_END(io)
    {
        for (unsigned threads = 0; threads <= 4; threads += 2) {
            struct io_channel *ch = NULL;
            struct io_request *done[16];
            unsigned n = 0;

            cr_assert_eq(io->open(16, 0, threads, &ch), 0);
            set_jobs(job, request, 16, &file, to);
            cr_assert_eq(io->submit(ch, request, 8, IO_BACKGROUND), 8);
            cr_assert_eq(io->submit(ch, request + 8, 8, IO_BACKGROUND), 8);
            for (uint64_t end = clock_ns() + 10 * SECOND; n < 16 && clock_ns() < end; sched_yield())
                n += io->reap(ch, done + n, 16 - n);
            cr_expect_eq(n, 16, "%s with %u threads: %u of 16", io->name, threads, n);
            for (unsigned i = 0; i < 16; i++)
                cr_expect(bytes_right(to + i * 4096, i * 4096, 4096));
            cr_assert_eq(io->close(ch), 0);
        }
    }
    bpi_io_file_close(&file);
    munmap(to, 16 * 4096);
}

struct word_waiter {
    const struct io_ops *io;
    struct io_channel *ch;
    _Atomic uint64_t word;
    _Atomic int rc; /* 1: still waiting */
};

static void *wait_for_word(void *arg)
{
    struct word_waiter *w = arg;
    struct io_until until = {.word = &w->word, .mask = 1, .equals = 0};

    atomic_store(&w->rc, w->io->wait_until(w->ch, 1, 60 * SECOND, &until));
    return NULL;
}

/* Nothing is in flight (any more), and the outcome is announced. */
Test(io, announcements_without_reads)
{
    FOR_EACH_BACK_END(io)
    {
        struct word_waiter w[3];
        pthread_t thread[3];
        struct io_channel *ch = channel(io, 4);

        for (unsigned i = 0; i < 3; i++) {
            w[i].io = io;
            w[i].ch = ch;
            atomic_store(&w[i].word, 0);
            atomic_store(&w[i].rc, 1);
            cr_assert_eq(pthread_create(&thread[i], NULL, wait_for_word, &w[i]), 0);
        }
        sleep_ms(60);
        for (unsigned i = 3; i-- > 0;) {
            cr_expect_eq(atomic_load(&w[i].rc), 1, "%s", io->name);
            atomic_store(&w[i].word, 2); /* not what it waits for */
            io->announce(ch, (const _Atomic uint64_t *const[]){&w[i].word}, 1);
            sleep_ms(10);
            cr_expect_eq(atomic_load(&w[i].rc), 1, "%s", io->name);
            atomic_store(&w[i].word, 3);
            io->announce(ch, (const _Atomic uint64_t *const[]){&w[i].word}, 1);
            for (uint64_t end = clock_ns() + 10 * SECOND; atomic_load(&w[i].rc) == 1 && clock_ns() < end;)
                sleep_ms(1);
            cr_expect_eq(atomic_load(&w[i].rc), 0, "%s", io->name);
        }
        for (unsigned i = 0; i < 3; i++)
            pthread_join(thread[i], NULL);
        cr_assert_eq(io->close(ch), 0);
    }
}

/* ---- signals ----------------------------------------------------------------------------------------- */

static _Atomic unsigned alarms;

static void on_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&alarms, 1);
}

Test(io, signals_lose_nothing)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART: everything that can be interrupted is */
    struct itimerval often = {.it_interval.tv_usec = 300, .it_value.tv_usec = 300};
    struct itimerval never = {0};
    struct io_file file;

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    sigaction(SIGALRM, &action, NULL);
    FOR_EACH_BACK_END(io)
    {
        struct crew crew = {.io = io, .ch = channel(io, 8), .file = &file, .rounds = 1500};

        setitimer(ITIMER_REAL, &often, NULL);
        crew_member(&crew);
        setitimer(ITIMER_REAL, &never, NULL);
        cr_expect_eq(crew.wrong, 0, "%s: %u wrong", io->name, crew.wrong);
        cr_assert_eq(io->close(crew.ch), 0);
    }
    cr_expect_gt(alarms, 100);
    bpi_io_file_close(&file);
}

/* Signals that a thread of this process has blocked, as /proc tells: one bit each. */
static unsigned long long blocked_signals(int tid)
{
    char path[PATH_MAX];
    char line[200];
    unsigned long long mask = 0;
    FILE *status;

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
    status = fopen(path, "re");
    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    if (status)
        fclose(status);
    return mask;
}

/* Threads of this process; their numbers go to tid, 64 at most. */
static unsigned threads_now(int tid[64])
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned n = 0;

    while (dir && n < 64 && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            tid[n++] = atoi(entry->d_name);
    if (dir)
        closedir(dir);
    return n;
}

/* The host's handlers never run on the threads of the library, and there are none before they are needed. */
Test(io, workers_take_no_signals)
{
    const struct io_ops *io = &bpi_io_psync;
    int before[64]; /* the test framework has some */
    int after[64];
    unsigned count = threads_now(before);
    struct io_channel *ch = channel(io, 4);
    struct io_file file;
    struct job job[4];
    struct io_request *request[4];
    struct io_request *done[4];
    char *to = pages(4 * 4096);
    unsigned workers = 0;
    unsigned n = 0;

    cr_assert_eq(open_file(&file, FILE_BYTES, IO_DIRECT_TRY), 0);
    set_jobs(job, request, 4, &file, to);
    cr_assert_eq(io->submit(ch, request, 2, 0), 2);
    cr_expect_eq(threads_now(after), count);
    cr_assert_eq(io->submit(ch, request + 2, 2, IO_BACKGROUND), 2);
    /* every thread begins with all signals blocked: look when these two have got to work */
    for (uint64_t end = clock_ns() + 10 * SECOND; n < 2 && clock_ns() < end; sched_yield())
        n += io->reap(ch, done, 4);
    cr_expect_eq(n, 2);
    sleep_ms(20);
    for (unsigned i = threads_now(after); i-- > 0;) {
        bool old = false;

        for (unsigned k = 0; k < count; k++)
            old = old || before[k] == after[i];
        if (old)
            continue;
        workers++;
        cr_expect(blocked_signals(after[i]) & 1ull << (SIGALRM - 1));
        cr_expect(blocked_signals(after[i]) & 1ull << (SIGTERM - 1));
    }
    cr_expect(workers >= 1 && workers <= 4, "%u workers", workers);
    cr_assert_eq(io->close(ch), 0);
    cr_expect_eq(threads_now(after), count, "they are gone");
    bpi_io_file_close(&file);
    munmap(to, 4 * 4096);
}
