/* SPDX-License-Identifier: MIT */
/*
 * For the tests of io/: a file whose every byte tells its offset, and requests that know their word.
 *
 * The file is made in $TMPDIR or else in the working directory (the build folder), since direct I/O on a
 * tmpfs is not the real thing. It is unlinked as soon as it is open.
 */
#ifndef TESTS_IO_HELPER_H
#define TESTS_IO_HELPER_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"

#define SECOND 1000000000ull

static inline uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_ms(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static inline uint64_t random_of(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* What the file holds at an offset: every aligned 8 bytes are a hash of their place. */
static inline unsigned char byte_at(uint64_t offset)
{
    uint64_t word = (offset / 8 + 1) * 0x9e3779b97f4a7c15u;

    return (unsigned char)((word ^ word >> 29) >> offset % 8 * 8);
}

static inline bool bytes_right(const void *at, uint64_t offset, size_t n)
{
    const unsigned char *byte = at;

    for (size_t i = 0; i < n; i++)
        if (byte[i] != byte_at(offset + i))
            return false;
    return true;
}

static inline bool bytes_are(const void *at, size_t n, unsigned char value)
{
    const unsigned char *byte = at;

    for (size_t i = 0; i < n; i++)
        if (byte[i] != value)
            return false;
    return true;
}

/* Make the file; path (PATH_MAX) gets its name. 0 or a negative errno. */
static inline int make_file(char *path, uint64_t bytes)
{
    const char *folder = getenv("TMPDIR");
    unsigned char block[65536];
    int fd;
    int rc = 0;

    snprintf(path, PATH_MAX, "%s/bufpool-io-XXXXXX", folder && *folder ? folder : ".");
    fd = mkstemp(path);
    if (fd < 0)
        return -errno;
    for (uint64_t at = 0; at < bytes && !rc; at += sizeof(block)) {
        size_t n = bytes - at < sizeof(block) ? (size_t)(bytes - at) : sizeof(block);

        for (size_t i = 0; i < n; i++)
            block[i] = byte_at(at + i);
        if (write(fd, block, n) != (ssize_t)n)
            rc = -EIO;
    }
    if (fsync(fd))
        rc = -errno;
    close(fd);
    if (rc)
        unlink(path);
    return rc;
}

/* Make, open and unlink it. 0 or a negative errno. */
static inline int open_file(struct io_file *file, uint64_t bytes, enum io_direct direct)
{
    char path[PATH_MAX];
    char why[200];
    int rc = make_file(path, bytes);

    if (rc)
        return rc;
    rc = bpi_io_file_open(file, path, direct, why, sizeof(why));
    unlink(path);
    return rc;
}

/* A request with the word in which its outcome is published. */
struct job {
    struct io_request request; /* first */
    _Atomic uint64_t word;     /* 0: under way; JOB_DONE | result */
};

#define JOB_DONE (1ull << 32)

static inline bool job_done(struct job *job)
{
    return atomic_load_explicit(&job->word, memory_order_acquire) != 0;
}

static inline int32_t job_result(struct job *job)
{
    return (int32_t)(uint32_t)atomic_load_explicit(&job->word, memory_order_acquire);
}

static inline void job_set(struct job *job, const struct io_file *file, uint64_t offset, void *to, uint32_t bytes)
{
    job->request = (struct io_request){
        .file = file, .offset = offset, .to = to, .bytes = bytes, .buffer = IO_BUFFER_NONE, .result = INT32_MIN};
    atomic_store_explicit(&job->word, 0, memory_order_relaxed);
}

/* Reap what there is, whosever it is. */
static inline unsigned reap_jobs(const struct io_ops *io, struct io_channel *ch)
{
    struct io_request *done[32];
    const _Atomic uint64_t *word[32];
    unsigned n = io->reap(ch, done, 32);

    for (unsigned i = 0; i < n; i++) {
        struct job *job = (struct job *)(void *)done[i];

        atomic_store_explicit(&job->word, JOB_DONE | (uint32_t)done[i]->result, memory_order_release);
        word[i] = &job->word;
    }
    if (n)
        io->announce(ch, word, n);
    return n;
}

/* Wait for one job, as the head of io/io.h tells. 0 or a negative errno. */
static inline int wait_job(const struct io_ops *io, struct io_channel *ch, struct job *job, uint64_t timeout_ns)
{
    struct io_until until = {.word = &job->word, .mask = ~0ull, .equals = 0};
    uint64_t end = clock_ns() + timeout_ns;
    uint64_t now;
    int rc;

    while (!job_done(job)) {
        reap_jobs(io, ch);
        if (job_done(job))
            break;
        now = clock_ns();
        if (now >= end)
            return -ETIME;
        rc = io->wait_until(ch, 1, end - now, &until);
        if (rc && rc != -ETIME)
            return rc;
    }
    return 0;
}

/* Submit one, repeating while the channel is full. 0 or a negative errno. */
static inline int submit_job(const struct io_ops *io, struct io_channel *ch, struct job *job, unsigned flags)
{
    struct io_request *request = &job->request;
    int rc;

    while ((rc = io->submit(ch, &request, 1, flags)) == 0) {
        if (!reap_jobs(io, ch))
            io->wait(ch, 1, SECOND / 100);
    }
    return rc < 0 ? rc : 0;
}

#endif
