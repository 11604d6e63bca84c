/* SPDX-License-Identifier: MIT */
/* Images of the file: what is durable, what is in the cache, and what would be there if all that was submitted had ended. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/power_io.h"

#define SECTOR 512u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static char *durable, *cached, *submitted, *snapshot;
static uint64_t size, writes, syncs;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void power_io_forget(void)
{
    pthread_mutex_lock(&lock);
    free(durable);
    free(cached);
    free(submitted);
    free(snapshot);
    durable = cached = submitted = snapshot = NULL;
    size = writes = syncs = 0;
    pthread_mutex_unlock(&lock);
}

void power_io_watch(const char *path, uint64_t bytes_max)
{
    int fd = open(path, O_RDONLY);

    power_io_forget();
    pthread_mutex_lock(&lock);
    size = bytes_max;
    durable = calloc(1, size);
    cached = calloc(1, size);
    submitted = calloc(1, size);
    snapshot = calloc(1, size);
    if (fd >= 0 && pread(fd, durable, size, 0) < 0)
        abort();
    memcpy(cached, durable, size);
    memcpy(submitted, durable, size);
    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&lock);
}

void power_io_pull(const char *path, uint64_t seed)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    pthread_mutex_lock(&lock);
    for (uint64_t at = 0; at < size; at += SECTOR) {
        const char *of[] = {durable, cached, submitted};
        uint64_t which = mix(seed + at) % 3;

        if (pwrite(fd, of[which] + at, SECTOR, (off_t)at) != SECTOR)
            abort();
    }
    pthread_mutex_unlock(&lock);
    close(fd);
}

uint64_t power_io_writes(void)
{
    uint64_t n;

    pthread_mutex_lock(&lock);
    n = writes;
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t power_io_syncs(void)
{
    uint64_t n;

    pthread_mutex_lock(&lock);
    n = syncs;
    pthread_mutex_unlock(&lock);
    return n;
}

static void keep(char *image, const struct io_request *r, uint32_t bytes)
{
    if (image && r->offset + bytes <= size)
        memcpy(image + r->offset, r->to, bytes);
}

static int power_submit(struct io_channel *ch, struct io_request *const request[], unsigned n, unsigned flags)
{
    int taken;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n; i++) {
        writes += request[i]->op == IO_WRITE;
        syncs += request[i]->op == IO_SYNC;
        if (request[i]->op == IO_WRITE)
            keep(submitted, request[i], request[i]->bytes);
        else if (request[i]->op == IO_SYNC && snapshot) /* one at a time: the writer sees to that */
            memcpy(snapshot, cached, size);
    }
    pthread_mutex_unlock(&lock);
    taken = bpi_io_psync.submit(ch, request, n, flags);
    return taken;
}

static unsigned power_reap(struct io_channel *ch, struct io_request *done[], unsigned max)
{
    unsigned n = bpi_io_psync.reap(ch, done, max);

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n; i++) {
        if (done[i]->op == IO_WRITE && done[i]->result > 0)
            keep(cached, done[i], (uint32_t)done[i]->result);
        else if (done[i]->op == IO_SYNC && !done[i]->result && durable)
            memcpy(durable, snapshot, size);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int power_open(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **out)
{
    return bpi_io_psync.open(depth, buffers, threads, out);
}

static int power_close(struct io_channel *ch)
{
    return bpi_io_psync.close(ch);
}

static int power_flush(struct io_channel *ch)
{
    return bpi_io_psync.flush(ch);
}

static int power_wait(struct io_channel *ch, unsigned want, uint64_t timeout_ns)
{
    return bpi_io_psync.wait(ch, want, timeout_ns);
}

static int power_wait_until(struct io_channel *ch, unsigned want, uint64_t timeout_ns, const struct io_until *until)
{
    return bpi_io_psync.wait_until(ch, want, timeout_ns, until);
}

static void power_announce(struct io_channel *ch, const _Atomic uint64_t *const word[], unsigned n)
{
    bpi_io_psync.announce(ch, word, n);
}

static int power_fd(struct io_channel *ch)
{
    return bpi_io_psync.fd(ch);
}

static int power_buffer(struct io_channel *ch, unsigned slot, void *at, size_t bytes)
{
    return bpi_io_psync.buffer(ch, slot, at, bytes);
}

static int power_file(struct io_channel *ch, unsigned slot, const struct io_file *file)
{
    return bpi_io_psync.file(ch, slot, file);
}

const struct io_ops power_io = {
    .name = "power",
    .open = power_open,
    .close = power_close,
    .submit = power_submit,
    .flush = power_flush,
    .reap = power_reap,
    .wait = power_wait,
    .wait_until = power_wait_until,
    .announce = power_announce,
    .fd = power_fd,
    .buffer = power_buffer,
    .file = power_file,
};
