/* SPDX-License-Identifier: MIT */
/*
 * The baseline of the misses: see bare_uring.h.
 */
#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>

#include "bare_uring.h"
#include "bench.h"

#define BUFFER_BYTES ((size_t)2 << 20) /* one huge page; four times what is needed */

struct bare_uring {
    struct io_uring ring;
    char *buffer;
    bool writes;
    unsigned free_count;
    unsigned free[BARE_DEPTH_MAX]; /* buffers not under way */
};

static int ring_open(struct bare_uring *u)
{
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                              IORING_SETUP_SUBMIT_ALL};
    int rc = io_uring_queue_init_params(BARE_DEPTH_MAX, &u->ring, &params);

    if (rc == -EINVAL) { /* before 6.1 */
        params = (struct io_uring_params){.flags = IORING_SETUP_SUBMIT_ALL};
        rc = io_uring_queue_init_params(BARE_DEPTH_MAX, &u->ring, &params);
    }
    return rc;
}

int bare_open(int fd, struct bare_uring **out)
{
    struct bare_uring *u = calloc(1, sizeof(*u));
    struct iovec area;
    int rc;

    if (!u)
        return -ENOMEM;
    u->buffer = bench_alloc(BUFFER_BYTES, true);
    rc = u->buffer ? ring_open(u) : -ENOMEM;
    if (rc) {
        bench_free(u->buffer, BUFFER_BYTES);
        free(u);
        return rc;
    }
    area = (struct iovec){.iov_base = u->buffer, .iov_len = BUFFER_BYTES};
    rc = io_uring_register_buffers(&u->ring, &area, 1);
    if (!rc)
        rc = io_uring_register_files(&u->ring, &fd, 1);
    if (!rc && io_uring_register_ring_fd(&u->ring) < 0)
        rc = 0; /* from 5.18 on; does without */
    if (rc) {
        bare_close(u);
        return rc;
    }
    *out = u;
    return 0;
}

void bare_close(struct bare_uring *u)
{
    if (!u)
        return;
    io_uring_queue_exit(&u->ring);
    bench_free(u->buffer, BUFFER_BYTES);
    free(u);
}

static inline void prepare(struct bare_uring *u, unsigned buffer, uint64_t page)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring); /* never more are under way than there are entries */

    char *at = u->buffer + (size_t)buffer * BP_PAGE_SIZE;

    if (unlikely(u->writes))
        io_uring_prep_write_fixed(sqe, 0, at, BP_PAGE_SIZE, page << BP_PAGE_SHIFT, 0);
    else
        io_uring_prep_read_fixed(sqe, 0, at, BP_PAGE_SIZE, page << BP_PAGE_SHIFT, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, buffer);
}

/* What has arrived: how many, or an error. Their buffers are free again. */
static inline int reap(struct bare_uring *u, uint64_t *sum)
{
    struct io_uring_cqe *cqe;
    unsigned head;
    unsigned n = 0;
    int rc = 0;

    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        if (unlikely(cqe->res != (int)BP_PAGE_SIZE))
            rc = cqe->res < 0 ? cqe->res : -EIO;
        *sum += bench_word(u->buffer + cqe->user_data * BP_PAGE_SIZE);
        u->free[u->free_count++] = (unsigned)cqe->user_data;
        n++;
    }
    io_uring_cq_advance(&u->ring, n);
    return rc ? rc : (int)n;
}

static inline int submit_and_reap(struct bare_uring *u, unsigned want, uint64_t *sum)
{
    int rc = io_uring_submit_and_wait(&u->ring, want);

    if (unlikely(rc < 0 && rc != -EINTR && rc != -EAGAIN))
        return rc;
    return reap(u, sum);
}

int bare_read(struct bare_uring *u, const uint64_t page[], unsigned n, uint64_t *sum)
{
    unsigned left = n;

    u->free_count = 0;
    for (unsigned i = 0; i < n; i++)
        prepare(u, i, page[i]);
    while (left) {
        int rc = submit_and_reap(u, left, sum);

        if (unlikely(rc < 0))
            return rc;
        left -= (unsigned)rc;
    }
    return 0;
}

int bare_read_window(struct bare_uring *u, unsigned depth, uint64_t ops, bare_next *next, void *ctx, uint64_t *sum)
{
    uint64_t started = 0;
    uint64_t done = 0;

    for (u->free_count = 0; u->free_count < depth; u->free_count++)
        u->free[u->free_count] = u->free_count;
    while (done < ops) {
        int rc;

        while (u->free_count && started < ops) {
            prepare(u, u->free[--u->free_count], next(ctx));
            started++;
        }
        rc = submit_and_reap(u, 1, sum);
        if (unlikely(rc < 0))
            return rc;
        done += (unsigned)rc;
    }
    return 0;
}

int bare_write_window(struct bare_uring *u, unsigned depth, uint64_t ops, bare_next *next, void *ctx, uint64_t *sum)
{
    int rc;

    u->writes = true;
    rc = bare_read_window(u, depth, ops, next, ctx, sum);
    u->writes = false;
    return rc;
}
