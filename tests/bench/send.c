/* SPDX-License-Identifier: MIT */
/*
 * Ways of sending what is in memory over TCP, to a thread that receives and forgets: what scan-server's way costs, and
 * what it would cost in other ways. An operation is a page of 4 KiB, sent in pieces of 256 KiB. The time of a round
 * ends when all of it was received; the CPU time is that of both sides.
 *
 *   sendmsg    the kernel copies; the memory is on huge pages
 *   zerocopy   MSG_ZEROCOPY: the pages themselves are sent, and a message says when they may change again
 *   send-zc    the same by io_uring; -registered: from a registered buffer
 *   sendfile   from the page cache, as web servers do
 *
 * Over the loopback device the kernel copies what was sent without copying when it comes to the receiver, so the two in
 * the middle cannot win here; over a network card they can.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <liburing.h>

#include "bench.h"

#define PIECE_BYTES (256u << 10)
#define RING        8u
#define UNDER_WAY   16u   /* pieces not yet reported as sent */
#define WAIT_MS     10000 /* for anything */

struct send {
    uint64_t bytes;
    char *memory;
    char path[4096];
    int fd;
    const char *zerocopy_absent, *ring_absent;
};

struct send_thread {
    int to, from;
    pthread_t receiver;
    bool receiving;
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t received;
    uint64_t sent;
    unsigned under_way;
    struct io_uring ring;
    bool has_ring;
};

/* ---- the other side ---- */

static void *receive(void *argument)
{
    struct send_thread *l = argument;
    char *into = malloc(PIECE_BYTES);
    ssize_t n;

    while (into && (n = recv(l->from, into, PIECE_BYTES, 0)) > 0) {
        pthread_mutex_lock(&l->lock);
        l->received += (uint64_t)n;
        pthread_cond_signal(&l->more);
        pthread_mutex_unlock(&l->lock);
    }
    free(into);
    return NULL;
}

static void wait_received(struct send_thread *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->received < l->sent)
        pthread_cond_wait(&l->more, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* ---- loops ---- */

/* One piece, or what is left of it; how many bytes went, or a negative errno. */
typedef ssize_t send_piece(struct bench_thread *, uint64_t at, size_t bytes);

static int send_all(struct bench_thread *t, uint64_t ops, send_piece *piece)
{
    const struct send *s = t->fixture;
    struct send_thread *l = t->local;

    for (uint64_t left = ops << BP_PAGE_SHIFT; left;) {
        uint64_t at = t->page << BP_PAGE_SHIFT, end = (at / PIECE_BYTES + 1) * PIECE_BYTES;
        uint64_t bytes = end - at < left ? end - at : left;

        t->page = end < s->bytes ? (at + bytes) >> BP_PAGE_SHIFT : 0;
        left -= bytes;
        while (bytes) {
            ssize_t n = piece(t, at, bytes);

            if (n < 0)
                return (int)n;
            l->sent += (uint64_t)n;
            at += (uint64_t)n;
            bytes -= (uint64_t)n;
        }
    }
    return 0;
}

static ssize_t plain_piece(struct bench_thread *t, uint64_t at, size_t bytes)
{
    const struct send *s = t->fixture;
    struct send_thread *l = t->local;
    ssize_t n = send(l->to, s->memory + at, bytes, MSG_NOSIGNAL);

    return n < 0 ? -errno : n;
}

static int plain(struct bench_thread *t, uint64_t ops)
{
    int rc = send_all(t, ops, plain_piece);

    wait_received(t->local);
    return rc;
}

/* Take reports until at most `most` pieces are under way. */
static int take_reports(struct send_thread *l, unsigned most)
{
    while (l->under_way > most) {
        struct pollfd wait = {.fd = l->to};
        char control[128];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof(control)};
        struct cmsghdr *c;

        if (recvmsg(l->to, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno != EAGAIN || poll(&wait, 1, WAIT_MS) <= 0)
                return -ETIMEDOUT;
            continue;
        }
        for (c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            struct sock_extended_err report;

            memcpy(&report, CMSG_DATA(c), sizeof(report));
            if (report.ee_origin == SO_EE_ORIGIN_ZEROCOPY)
                l->under_way -= report.ee_data - report.ee_info + 1;
        }
    }
    return 0;
}

static ssize_t zerocopy_piece(struct bench_thread *t, uint64_t at, size_t bytes)
{
    const struct send *s = t->fixture;
    struct send_thread *l = t->local;
    int rc = take_reports(l, UNDER_WAY);
    ssize_t n;

    if (rc)
        return rc;
    n = send(l->to, s->memory + at, bytes, MSG_NOSIGNAL | MSG_ZEROCOPY);
    if (n < 0 && errno == ENOBUFS) { /* too many reports are owed */
        rc = take_reports(l, 0);
        return rc; /* 0: again */
    }
    l->under_way += n > 0;
    return n < 0 ? -errno : n;
}

static int zerocopy(struct bench_thread *t, uint64_t ops)
{
    int rc = send_all(t, ops, zerocopy_piece);

    wait_received(t->local);
    return rc ? rc : take_reports(t->local, 0);
}

/* Wait for one answer of the ring: a result (*result) or a report that a piece is through. */
static int take_answer(struct send_thread *l, int *result)
{
    struct __kernel_timespec limit = {.tv_sec = WAIT_MS / 1000};
    struct io_uring_cqe *cqe;
    int rc = io_uring_wait_cqe_timeout(&l->ring, &cqe, &limit);

    if (rc)
        return rc == -EINTR ? 0 : rc;
    if (cqe->flags & IORING_CQE_F_NOTIF) {
        l->under_way--;
    } else {
        *result = cqe->res;
        l->under_way -= !(cqe->flags & IORING_CQE_F_MORE);
    }
    io_uring_cqe_seen(&l->ring, cqe);
    return 0;
}

static ssize_t ring_send(struct bench_thread *t, uint64_t at, size_t bytes, bool registered)
{
    const struct send *s = t->fixture;
    struct send_thread *l = t->local;
    int result = INT32_MIN, rc = 0;
    struct io_uring_sqe *sqe;

    while (l->under_way >= UNDER_WAY && !rc)
        rc = take_answer(l, &result);
    sqe = io_uring_get_sqe(&l->ring);
    if (!sqe || rc)
        return rc ? rc : -EBUSY;
    if (registered)
        io_uring_prep_send_zc_fixed(sqe, l->to, s->memory + at, bytes, MSG_NOSIGNAL | MSG_WAITALL, 0, 0);
    else
        io_uring_prep_send_zc(sqe, l->to, s->memory + at, bytes, MSG_NOSIGNAL | MSG_WAITALL, 0);
    rc = io_uring_submit(&l->ring);
    l->under_way++;
    result = INT32_MIN;
    while (rc >= 0 && result == INT32_MIN)
        rc = take_answer(l, &result);
    return rc < 0 ? rc : result;
}

static ssize_t ring_piece(struct bench_thread *t, uint64_t at, size_t bytes)
{
    return ring_send(t, at, bytes, false);
}

static ssize_t ring_registered_piece(struct bench_thread *t, uint64_t at, size_t bytes)
{
    return ring_send(t, at, bytes, true);
}

static int ring_all(struct bench_thread *t, uint64_t ops, send_piece *piece)
{
    struct send_thread *l = t->local;
    int rc = send_all(t, ops, piece), result;

    wait_received(l);
    while (l->under_way && !rc)
        rc = take_answer(l, &result);
    return rc;
}

static int ring(struct bench_thread *t, uint64_t ops)
{
    return ring_all(t, ops, ring_piece);
}

static int ring_registered(struct bench_thread *t, uint64_t ops)
{
    return ring_all(t, ops, ring_registered_piece);
}

static ssize_t file_piece(struct bench_thread *t, uint64_t at, size_t bytes)
{
    const struct send *s = t->fixture;
    struct send_thread *l = t->local;
    off_t offset = (off_t)at;
    ssize_t n = sendfile(l->to, s->fd, &offset, bytes);

    return n < 0 ? -errno : n;
}

static int file(struct bench_thread *t, uint64_t ops)
{
    int rc = send_all(t, ops, file_piece);

    wait_received(t->local);
    return rc;
}

/* ---- the fixture ---- */

static int send_connect(struct send_thread *l)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = listener < 0 ? -errno : 0;

    if (!rc && (bind(listener, (struct sockaddr *)&address, bytes) || listen(listener, 1) ||
                getsockname(listener, (struct sockaddr *)&address, &bytes)))
        rc = -errno;
    l->to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!rc && (l->to < 0 || connect(l->to, (struct sockaddr *)&address, bytes)))
        rc = -errno;
    if (!rc)
        l->from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (!rc && l->from < 0)
        rc = -errno;
    if (listener >= 0)
        close(listener);
    return rc;
}

static int send_thread_open(struct bench_thread *t)
{
    const struct send *s = t->fixture;
    struct send_thread *l = calloc(1, sizeof(*l));
    struct iovec all = {.iov_base = s->memory, .iov_len = s->bytes};
    const int yes = 1;
    int rc;

    t->local = l;
    if (!l)
        return -ENOMEM;
    l->to = l->from = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    rc = send_connect(l);
    if (rc)
        return rc;
    setsockopt(l->to, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes));
    if (!s->ring_absent) {
        rc = io_uring_queue_init(RING, &l->ring, 0);
        l->has_ring = !rc;
        if (!rc)
            rc = io_uring_register_buffers(&l->ring, &all, 1);
    }
    if (!rc)
        rc = -pthread_create(&l->receiver, NULL, receive, l);
    l->receiving = !rc;
    return rc;
}

static void send_thread_close(struct bench_thread *t)
{
    struct send_thread *l = t->local;

    if (!l)
        return;
    if (l->to >= 0)
        close(l->to);
    if (l->has_ring)
        io_uring_queue_exit(&l->ring); /* lets go of the socket too */
    if (l->receiving)
        pthread_join(l->receiver, NULL);
    if (l->from >= 0)
        close(l->from);
    free(l);
}

/* Why the ways without copying cannot be had: NULL if they can. */
static void send_probe(struct send *s)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    struct io_uring probe_ring;
    struct io_uring_probe *probe = NULL;
    struct iovec all = {.iov_base = s->memory, .iov_len = s->bytes};

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes)))
        s->zerocopy_absent = "the kernel has no MSG_ZEROCOPY";
    if (fd >= 0)
        close(fd);
    s->ring_absent = "there is no io_uring";
    if (io_uring_queue_init(RING, &probe_ring, 0))
        return;
    probe = io_uring_get_probe_ring(&probe_ring);
    if (!probe || !io_uring_opcode_supported(probe, IORING_OP_SEND_ZC))
        s->ring_absent = "the kernel has no IORING_OP_SEND_ZC";
    else
        s->ring_absent = io_uring_register_buffers(&probe_ring, &all, 1) ? "the memory cannot be registered" : NULL;
    if (probe)
        io_uring_free_probe(probe);
    io_uring_queue_exit(&probe_ring);
}

static void send_close(void *fixture)
{
    struct send *s = fixture;

    if (!s)
        return;
    if (s->memory)
        bench_free(s->memory, s->bytes);
    if (s->fd >= 0) {
        close(s->fd);
        unlink(s->path);
    }
    free(s);
}

static int send_open(const struct bench *b, void **fixture)
{
    struct send *s = calloc(1, sizeof(*s));

    *fixture = s;
    if (!s)
        return bench_error("no memory");
    s->fd = -1;
    s->bytes = b->bytes / PIECE_BYTES * PIECE_BYTES;
    if (!s->bytes)
        return bench_error("at least %u bytes are needed", PIECE_BYTES);
    if (bench_memory_check(2 * s->bytes))
        return -1;
    s->memory = bench_alloc(s->bytes, true);
    s->fd = bench_file_make(b, s->path);
    if (!s->memory || s->fd < 0)
        return -1;
    for (uint64_t at = 0; at < s->bytes; at += PIECE_BYTES) {
        memset(s->memory + at, (int)(at / PIECE_BYTES), PIECE_BYTES);
        if (write(s->fd, s->memory + at, PIECE_BYTES) != (ssize_t)PIECE_BYTES)
            return bench_code(-errno, s->path);
    }
    send_probe(s);
    return 0;
}

static const char *send_absent(const void *fixture, const char *variant)
{
    const struct send *s = fixture;

    return !strcmp(variant, "zerocopy") ? s->zerocopy_absent : !strncmp(variant, "send-zc", 7) ? s->ring_absent : NULL;
}

static const struct bench_fixture send_fixture = {.open = send_open,
                                                  .close = send_close,
                                                  .thread_open = send_thread_open,
                                                  .thread_close = send_thread_close,
                                                  .absent = send_absent};

static const struct bench_variant send_variants[] = {{.name = "sendmsg", .loop = plain},
                                                     {.name = "zerocopy", .loop = zerocopy},
                                                     {.name = "send-zc", .loop = ring},
                                                     {.name = "send-zc-registered", .loop = ring_registered},
                                                     {.name = "sendfile", .loop = file}};

const struct bench_case bench_send = {.name = "send",
                                      .text = "memory sent over TCP to this machine, in pieces of 256 KiB",
                                      .fixture = &send_fixture,
                                      .variant = send_variants,
                                      .variant_count = BENCH_COUNT(send_variants),
                                      .ops = 65536,
                                      .bytes = 256u << 20,
                                      .clock = BENCH_WALL,
                                      .rate = BENCH_MIB};
