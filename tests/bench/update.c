/* SPDX-License-Identifier: MIT */
/*
 * Pages that are changed at random, in a file four times the pool, until all of them are on the device (not synced): against
 * the same number of random writes by liburing alone, 128 under way. `create` makes them anew, so it only writes; the
 * others read three of four pages first, which the device does beside the writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bare_uring.h"
#include "resident.h"

#define POOL_SHARE  4u /* of the file is the pool */
#define WRITE_DEPTH 128u
#define BATCH       32u
#define WRITE_BYTES (1u << 20)

struct update {
    uint64_t pages;
    bp_pool *pool;
    bp_file *file;
    int fd; /* direct */
};

struct update_thread {
    struct bare_uring *bare;
};

static uint64_t next_page(void *thread)
{
    struct bench_thread *t = thread;
    const struct update *u = t->fixture;

    return bench_random_page(&t->random, u->pages);
}

static int flush(struct bench_thread *t)
{
    const struct update *u = t->fixture;

    return bp_flush(t->session, u->file, 0, UINT64_MAX);
}

static int bare_writes(struct bench_thread *t, uint64_t ops)
{
    struct update_thread *local = t->local;

    return bare_write_window(local->bare, WRITE_DEPTH, ops, next_page, t, &t->sum);
}

static inline void change(struct bench_thread *t, struct bp_ref *ref)
{
    *(uint64_t *)ref->data = ++t->sum;
    bp_put_dirty(ref, 0);
}

static int create(struct bench_thread *t, uint64_t ops)
{
    const struct update *u = t->fixture;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_create(t->session, u->file, next_page(t), 0, &ref);

        if (unlikely(rc))
            return rc;
        change(t, &ref);
    }
    return flush(t);
}

static int update(struct bench_thread *t, uint64_t ops)
{
    const struct update *u = t->fixture;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_get(t->session, u->file, next_page(t), BP_EXCLUSIVE, &ref);

        if (unlikely(rc))
            return rc;
        change(t, &ref);
    }
    return flush(t);
}

/* What will be needed is asked for some pages ahead, so that the device has several reads at a time. */
static int update_ahead(struct bench_thread *t, uint64_t ops)
{
    const struct update *u = t->fixture;

    while (ops) {
        unsigned n = ops < BATCH ? (unsigned)ops : BATCH;
        uint64_t page[BATCH];

        for (unsigned i = 0; i < n; i++) {
            page[i] = next_page(t);
            bp_prefetch(t->session, u->file, page[i], 1);
        }
        for (unsigned i = 0; i < n; i++) {
            struct bp_ref ref;
            int rc = bp_get(t->session, u->file, page[i], BP_EXCLUSIVE, &ref);

            if (unlikely(rc))
                return rc;
            change(t, &ref);
        }
        ops -= n;
    }
    return flush(t);
}

/* ---- the fixture ---- */

/* Written once: first writes to a place cost the file system more. */
static int fill_file(int fd, uint64_t bytes)
{
    char *buffer = calloc(1, WRITE_BYTES);
    int rc = buffer ? 0 : -ENOMEM;

    for (uint64_t at = 0; at < bytes && !rc; at += WRITE_BYTES)
        if (pwrite(fd, buffer, WRITE_BYTES, (off_t)at) != (ssize_t)WRITE_BYTES)
            rc = -EIO;
    free(buffer);
    return !rc && fsync(fd) ? -errno : rc;
}

static int open_file(struct update *u, const char *path)
{
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .write = true, .error = &error};

    u->fd = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
    if (u->fd < 0)
        return bench_error("%s: cannot be written directly: %s (choose another --dir)", path, strerror(errno));
    return bp_file_open(u->pool, path, &o, &u->file) ? bench_error("%s: %s", path, error.text) : 0;
}

static int update_open(const struct bench *b, void **fixture)
{
    struct update *u = calloc(1, sizeof(*u));
    char path[4096];
    int rc;
    int fd;

    *fixture = u;
    if (!u)
        return bench_error("no memory");
    u->fd = -1;
    u->pages = b->bytes / WRITE_BYTES * (WRITE_BYTES / BP_PAGE_SIZE);
    if (u->pages < 4096)
        return bench_error("the file has to have 16 MiB");
    if (bench_pool_open(b, (u->pages << BP_PAGE_SHIFT) / POOL_SHARE, BP_TRY, &u->pool))
        return -1;
    fd = bench_file_make(b, path);
    if (fd < 0)
        return -1;
    rc = fill_file(fd, u->pages << BP_PAGE_SHIFT);
    rc = rc ? bench_code(rc, "writing the file") : open_file(u, path);
    unlink(path);
    close(fd);
    return rc;
}

static void update_close(void *fixture)
{
    struct update *u = fixture;

    if (!u)
        return;
    bench_pool_close(u->pool);
    if (u->fd >= 0)
        close(u->fd);
    free(u);
}

static int update_thread_open(struct bench_thread *t)
{
    const struct update *u = t->fixture;
    struct update_thread *local = calloc(1, sizeof(*local));
    int rc;

    t->local = local;
    if (!local)
        return -ENOMEM;
    rc = bare_open(u->fd, &local->bare);
    return rc ? rc : bp_session_open(u->pool, NULL, &t->session);
}

static void update_thread_close(struct bench_thread *t)
{
    struct update_thread *local = t->local;

    if (t->session && bp_session_close(t->session))
        bench_error("closing a session: %s", bp_session_error(t->session));
    if (local)
        bare_close(local->bare);
    free(local);
}

static const struct bench_fixture fixture = {
    .open = update_open, .close = update_close, .thread_open = update_thread_open, .thread_close = update_thread_close};

static const struct bench_variant variants[] = {
    {.name = "uring-writes-128", .loop = bare_writes},
    {.name = "create", .loop = create},
    {.name = "update", .loop = update},
    {.name = "update-ahead-32", .loop = update_ahead},
};

const struct bench_case bench_update = {.name = "update",
                                        .text = "random changes to a file four times the pool, until they are written",
                                        .fixture = &fixture,
                                        .variant = variants,
                                        .variant_count = BENCH_COUNT(variants),
                                        .ops = 16384,
                                        .bytes = 256u << 20,
                                        .clock = BENCH_WALL,
                                        .rate = BENCH_IOPS};
