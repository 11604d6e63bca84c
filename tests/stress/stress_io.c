/* SPDX-License-Identifier: MIT */
/*
 * Threads on one channel, as the pool uses it: everybody reads at random places, waits for its own requests, and reaps
 * and announces everybody's. Beside them threads that start reads and end without caring, and one that only watches the
 * descriptor. Nothing may be lost, handed out twice or wait for long; the bytes must be right.
 *
 *   stress_io [SECONDS per back end]
 *
 * A plain program, so that it runs under the thread sanitizer.
 */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/fault/fault_io.h"
#include "tests/unit/io_helper.h"

#define FILE_BYTES (4u << 20)
#define FILE_PAGES (FILE_BYTES / 4096)
#define READERS    4
#define BATCH      6
#define ORPHANS    64
#define WAIT_NS    (30 * SECOND)

struct orphan {
    struct job job;         /* first */
    _Atomic bool under_way; /* submitted at least once, and not refused the last time */
    char *to;
};

struct stage {
    const struct io_ops *io;
    struct io_channel *ch;
    struct io_file file;
    uint64_t end_ns;
    bool faulty; /* reads may be short or fail with EAGAIN; then they are continued */
    struct orphan orphan[ORPHANS];
    _Atomic unsigned wrong;
    _Atomic unsigned reads;
    _Atomic unsigned number;
    _Atomic uint64_t longest_ns; /* that a thread waited for one read */
};

static void complain(struct stage *s, const char *what, long detail)
{
    if (atomic_fetch_add(&s->wrong, 1) < 10)
        fprintf(stderr, "%s: %s (%ld)\n", s->io->name, what, detail);
}

/* One page, to the last byte. */
static void read_page(struct stage *s, struct job *job, uint64_t offset, char *to)
{
    uint64_t began = clock_ns();
    uint32_t have = 0;
    uint64_t took;
    uint64_t longest;
    int rc;

    for (unsigned tries = 0; tries < 100; tries++) {
        int32_t result;

        rc = wait_job(s->io, s->ch, job, WAIT_NS);
        if (rc) {
            complain(s, "wait", rc);
            exit(1); /* the request is still under way: nothing sensible can follow */
        }
        result = job_result(job);
        if (result != -EAGAIN && (result <= 0 || (uint32_t)result > 4096 - have))
            complain(s, "result", result);
        have += result > 0 ? (uint32_t)result : 0;
        if (have >= 4096)
            break;
        job_set(job, &s->file, offset + have, to + have, 4096 - have);
        rc = submit_job(s->io, s->ch, job, 0);
        if (rc)
            complain(s, "submit", rc);
    }
    if (have != 4096 || !bytes_right(to, offset, 4096))
        complain(s, "bytes", (long)offset);
    took = clock_ns() - began;
    longest = atomic_load(&s->longest_ns);
    while (took > longest && !atomic_compare_exchange_weak(&s->longest_ns, &longest, took))
        ;
    atomic_fetch_add(&s->reads, 1);
}

static void *reader(void *arg)
{
    struct stage *s = arg;
    uint64_t random = atomic_fetch_add(&s->number, 1);
    char *to = aligned_alloc(4096, BATCH * 4096);
    struct job job[BATCH];
    uint64_t offset[BATCH];

    while (clock_ns() < s->end_ns) {
        uint64_t dice = random_of(&random);
        unsigned n = dice % 2 ? 1 : 1 + (unsigned)(dice >> 8) % BATCH;
        unsigned flags = (dice >> 16) % 4 == 0 ? IO_BACKGROUND : 0;

        for (unsigned i = 0; i < n; i++) {
            int rc;

            offset[i] = random_of(&random) % FILE_PAGES * 4096;
            job_set(&job[i], &s->file, offset[i], to + i * 4096, 4096);
            rc = submit_job(s->io, s->ch, &job[i], i + 1 < n || (dice >> 24) % 3 == 0 ? flags | IO_HOLD : flags);
            if (rc)
                complain(s, "submit", rc);
        }
        for (unsigned i = 0; i < n; i++)
            read_page(s, &job[i], offset[i], to + i * 4096);
    }
    free(to);
    return NULL;
}

/* Starts reads and ends; whoever reaps them is right. One thread at a time. */
static void *orphan_maker(void *arg)
{
    struct stage *s = arg;
    uint64_t random = atomic_fetch_add(&s->number, 1);

    for (unsigned i = 0; i < 8; i++) {
        struct orphan *o = &s->orphan[random_of(&random) % ORPHANS];
        struct io_request *request = &o->job.request;

        if (atomic_load(&o->under_way)) {
            if (!job_done(&o->job))
                continue;
            if (!s->faulty && !bytes_right(o->to, request->offset, 4096))
                complain(s, "bytes of an orphan", (long)request->offset);
        }
        job_set(&o->job, &s->file, random_of(&random) % FILE_PAGES * 4096, o->to, 4096);
        atomic_store(&o->under_way, s->io->submit(s->ch, &request, 1, IO_BACKGROUND) == 1);
    }
    return NULL;
}

static void *orphanage(void *arg)
{
    struct stage *s = arg;

    while (clock_ns() < s->end_ns) {
        pthread_t thread;

        if (pthread_create(&thread, NULL, orphan_maker, s) == 0)
            pthread_join(thread, NULL);
        sleep_ms(1);
    }
    return NULL;
}

static void *watcher(void *arg)
{
    struct stage *s = arg;
    struct pollfd p = {.fd = s->io->fd(s->ch), .events = POLLIN};

    while (clock_ns() < s->end_ns)
        if (poll(&p, 1, 20) > 0)
            reap_jobs(s->io, s->ch);
    return NULL;
}

/* Whether a run on this back end went well. */
static bool play(struct stage *s, const struct io_ops *io, uint64_t run_ns)
{
    pthread_t thread[READERS + 2];
    unsigned left = ORPHANS;

    s->io = io;
    if (io->open(16, 0, 3, &s->ch)) {
        fprintf(stderr, "%s: cannot open a channel\n", io->name);
        return false;
    }
    for (unsigned i = 0; i < ORPHANS; i++) {
        s->orphan[i].to = aligned_alloc(4096, 4096);
        job_set(&s->orphan[i].job, &s->file, 0, s->orphan[i].to, 4096);
    }
    s->end_ns = clock_ns() + run_ns;
    for (unsigned i = 0; i < READERS; i++)
        pthread_create(&thread[i], NULL, reader, s);
    pthread_create(&thread[READERS], NULL, orphanage, s);
    pthread_create(&thread[READERS + 1], NULL, watcher, s);
    for (unsigned i = 0; i < READERS + 2; i++)
        pthread_join(thread[i], NULL);
    for (uint64_t end = clock_ns() + WAIT_NS; left && clock_ns() < end;) {
        reap_jobs(io, s->ch);
        io->wait(s->ch, 1, SECOND / 100);
        left = 0;
        for (unsigned i = 0; i < ORPHANS; i++)
            left += atomic_load(&s->orphan[i].under_way) && !job_done(&s->orphan[i].job);
    }
    if (left)
        complain(s, "orphans that never came back", left);
    if (io->close(s->ch))
        complain(s, "close", 0);
    for (unsigned i = 0; i < ORPHANS; i++)
        free(s->orphan[i].to);
    fprintf(stderr, "%s%s: %u reads, longest wait %lu ms\n", s->faulty ? "faults around " : "",
            s->faulty ? "it" : io->name, s->reads, (unsigned long)(s->longest_ns / 1000000));
    return s->wrong == 0 && s->reads > 0;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    const struct io_ops *inner[] = {&bpi_io_uring, &bpi_io_psync};
    unsigned passed = 0;
    unsigned failed = 0;
    char why[120];
    char remedy[120];

    for (unsigned i = 0; i < 4; i++) {
        struct stage *s = calloc(1, sizeof(*s));
        struct fault_plan plan = fault_plan_none(inner[i / 2]);
        int rc = open_file(&s->file, FILE_BYTES, i % 2 ? IO_DIRECT_OFF : IO_DIRECT_TRY);

        plan.seed = i;
        plan.short_chance = FAULT_ALWAYS / 5;
        plan.late_chance = FAULT_ALWAYS / 10;
        plan.late_reaps = 3;
        plan.shuffle = true;
        plan.error_chance = FAULT_ALWAYS / 20;
        plan.error = -EAGAIN;
        fault_io_plan(&plan);
        s->faulty = i % 2;
        if (i < 2 && bpi_io_uring_probe(why, remedy, sizeof(why)))
            fprintf(stderr, "io_uring is not tested: %s\n", why);
        else if (rc == 0 && play(s, s->faulty ? &fault_io : inner[i / 2], (uint64_t)(seconds * (double)SECOND)))
            passed++;
        else
            failed++;
        bpi_io_file_close(&s->file);
        free(s);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
