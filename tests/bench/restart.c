/* SPDX-License-Identifier: MIT */
/*
 * Coming back after a restart: bp_pool_restore into a pool that was just opened, beside what the device itself gives
 * for the same pages. An operation is a page.
 *
 *   dense    pages that lie side by side; the device alone: direct reads of 1 MiB, eight at a time
 *   sparse   every fourth page; the device alone: bare io_uring, 128 reads of 4 KiB at a time
 *
 * The pool populates its memory meanwhile, as it does after a restart.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <liburing.h>

#include "bare_uring.h"
#include "bench.h"

#define STRIDE      4u
#define BLOCK_BYTES (1u << 20)
#define BLOCKS      8u /* of a megabyte under way at once */

enum { DENSE, SPARSE, LAYOUTS };

struct restart {
    char path[4096];
    char list[LAYOUTS][4104];
    uint64_t pages; /* in a list */
    uint64_t memory;
    enum bp_io io;
    int fd; /* of the device alone */
    bp_pool *pool;
    bp_file *file;
    bp_session *s;
    void *buffer;
    struct bare_uring *bare;
};

static void close_pool(struct restart *r)
{
    if (r->s && bp_session_close(r->s))
        bench_error("a session does not close");
    if (r->pool && bp_pool_close(r->pool, NULL))
        bench_error("a pool does not close");
    r->s = NULL;
    r->pool = NULL;
}

static int open_pool(struct restart *r)
{
    struct bp_file_options how = {.size = sizeof(how), .readahead = BP_OFF}; /* extents are pages */
    struct bp_pool_options o = {.size = sizeof(o), .memory = r->memory, .io = r->io};
    int rc = bp_pool_open(&o, &r->pool);

    if (!rc)
        rc = bp_file_open(r->pool, r->path, &how, &r->file);
    return rc ? rc : bp_session_open(r->pool, NULL, &r->s);
}

/* Fill a pool with the pages of a layout, and write down what is there. */
static int make_list(struct restart *r, unsigned layout)
{
    int rc = open_pool(r);

    for (uint64_t i = 0; i < r->pages && !rc; i++) {
        struct bp_view view;

        rc = bp_read(r->s, r->file, layout == DENSE ? i : i * STRIDE, &view);
    }
    if (!rc)
        rc = bp_pool_dump(r->pool, r->list[layout], NULL, NULL);
    close_pool(r);
    return rc;
}

static int fill_file(const struct bench *b, struct restart *r)
{
    struct bench_progress progress = {.bench = b, .what = "writing a file"};
    uint64_t bytes = r->pages * STRIDE * BP_PAGE_SIZE;
    int fd = bench_file_make(b, r->path);
    int rc = 0;

    if (fd < 0)
        return -1;
    memset(r->buffer, 0xa5, BLOCK_BYTES);
    for (uint64_t at = 0; at < bytes && !rc; at += BLOCK_BYTES) {
        bench_progress(&progress, at, bytes);
        if (pwrite(fd, r->buffer, BLOCK_BYTES, (off_t)at) != BLOCK_BYTES)
            rc = bench_error("%s: %s", r->path, strerror(errno));
    }
    if (!rc && fsync(fd))
        rc = bench_error("%s: %s", r->path, strerror(errno));
    close(fd);
    return rc;
}

static void restart_close(void *fixture)
{
    struct restart *r = fixture;

    if (!r)
        return;
    close_pool(r);
    bare_close(r->bare);
    if (r->fd >= 0)
        close(r->fd);
    if (r->path[0])
        unlink(r->path);
    for (unsigned i = 0; i < LAYOUTS; i++)
        unlink(r->list[i]);
    free(r->buffer);
    free(r);
}

static int restart_open(const struct bench *b, void **fixture)
{
    struct restart *r = calloc(1, sizeof(*r));
    int rc = 0;

    *fixture = r;
    if (!r)
        return bench_code(-ENOMEM, "restart");
    r->fd = -1;
    r->io = b->io;
    r->pages = b->bytes / BP_PAGE_SIZE & ~(uint64_t)(BLOCK_BYTES / BP_PAGE_SIZE - 1);
    r->memory = b->bytes + b->bytes / 4 + (16u << 20);
    if (posix_memalign(&r->buffer, BP_PAGE_SIZE, (size_t)BLOCK_BYTES * BLOCKS))
        return bench_code(-ENOMEM, "restart");
    if (fill_file(b, r))
        return -1;
    for (unsigned i = 0; i < LAYOUTS && !rc; i++) {
        snprintf(r->list[i], sizeof(r->list[i]), "%s.%u", r->path, i);
        rc = make_list(r, i);
    }
    if (rc)
        return bench_code(rc, "a list of what is in memory");
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (r->fd >= 0 && bare_open(r->fd, &r->bare))
        r->bare = NULL;
    return 0;
}

static const char *restart_absent(const void *fixture, const char *variant)
{
    const struct restart *r = fixture;

    if (r->fd < 0 && !strncmp(variant, "device", 6))
        return "no direct I/O here";
    return !r->bare && !strncmp(variant, "device", 6) ? "no io_uring here" : NULL;
}

/* After a restart, for whoever wants to know. */
static int restart_prepare(struct bench_thread *t)
{
    struct restart *r = t->fixture;

    close_pool(r);
    return open_pool(r);
}

static int restart_thread(struct bench_thread *t)
{
    (void)t;
    return 0;
}

static void restart_thread_end(struct bench_thread *t)
{
    (void)t;
}

/* ---- the device alone ---- */

static void ask_block(struct restart *r, struct io_uring *ring, uint64_t number)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    uint64_t offset = number % (r->pages / (BLOCK_BYTES / BP_PAGE_SIZE)) * BLOCK_BYTES;

    io_uring_prep_read(sqe, r->fd, (char *)r->buffer + number % BLOCKS * BLOCK_BYTES, BLOCK_BYTES, offset);
    io_uring_sqe_set_data64(sqe, number);
    io_uring_submit(ring);
}

static int device_dense(struct bench_thread *t, uint64_t ops)
{
    struct restart *r = t->fixture;
    uint64_t blocks = (ops * BP_PAGE_SIZE + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t asked = 0;
    struct io_uring ring;
    int rc = io_uring_queue_init(BLOCKS, &ring, 0);

    if (rc)
        return rc;
    while (asked < blocks && asked < BLOCKS)
        ask_block(r, &ring, asked++);
    for (uint64_t done = 0; done < blocks && !rc; done++) {
        struct io_uring_cqe *cqe;

        rc = io_uring_wait_cqe(&ring, &cqe);
        if (rc)
            break;
        rc = cqe->res == (int)BLOCK_BYTES ? 0 : cqe->res < 0 ? cqe->res : -EIO;
        io_uring_cqe_seen(&ring, cqe);
        if (asked < blocks)
            ask_block(r, &ring, asked++);
    }
    io_uring_queue_exit(&ring);
    return rc;
}

struct every_fourth {
    uint64_t next, pages;
};

static uint64_t next_page(void *ctx)
{
    struct every_fourth *e = ctx;

    return e->next++ % e->pages * STRIDE;
}

static int device_sparse(struct bench_thread *t, uint64_t ops)
{
    struct restart *r = t->fixture;
    struct every_fourth e = {.pages = r->pages};

    return bare_read_window(r->bare, BARE_DEPTH_MAX, ops, next_page, &e, &t->sum);
}

/* ---- the pool ---- */

static int restore(struct bench_thread *t, uint64_t ops, unsigned layout)
{
    struct restart *r = t->fixture;
    int rc = 0;

    while (ops && !rc) {
        struct bp_restore_options o = {.size = sizeof(o), .extents_max = ops < r->pages ? ops : r->pages};
        struct bp_restore_result result;

        rc = bp_pool_restore(r->s, r->list[layout], &o, &result);
        if (!rc && result.restored != o.extents_max)
            return bench_error("%llu pages of %llu came back", (unsigned long long)result.restored,
                               (unsigned long long)o.extents_max);
        ops -= o.extents_max;
        if (ops && !rc) /* more than there is: again from the start */
            rc = restart_prepare(t);
    }
    return rc;
}

static int restore_dense(struct bench_thread *t, uint64_t ops)
{
    return restore(t, ops, DENSE);
}

static int restore_sparse(struct bench_thread *t, uint64_t ops)
{
    return restore(t, ops, SPARSE);
}

static const struct bench_fixture restart_fixture = {.open = restart_open,
                                                     .close = restart_close,
                                                     .thread_open = restart_thread,
                                                     .thread_close = restart_thread_end,
                                                     .prepare = restart_prepare,
                                                     .absent = restart_absent};

static const struct bench_variant restart_variants[] = {
    {.name = "device-dense", .loop = device_dense},
    {.name = "restore-dense", .loop = restore_dense},
    {.name = "device-sparse", .loop = device_sparse},
    {.name = "restore-sparse", .loop = restore_sparse, .baseline = "device-sparse"}};

const struct bench_case bench_restart = {.name = "restart",
                                         .text = "pages brought back into an empty pool, and what the device gives",
                                         .fixture = &restart_fixture,
                                         .variant = restart_variants,
                                         .variant_count = BENCH_COUNT(restart_variants),
                                         .ops = 32768,
                                         .bytes = 128u << 20,
                                         .clock = BENCH_WALL,
                                         .rate = BENCH_MIB};
