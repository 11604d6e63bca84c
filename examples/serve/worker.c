/* SPDX-License-Identifier: MIT */
/*
 * Workers and connections (see serve/worker.h).
 */
#include "serve/worker.h"

#include "serve/server.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX       128
#define POLL_EVENTS      64u
#define POLL_ROUNDS      16u  /* of POLL_EVENTS answers each, before sockets get their turn */
#define RUN_ROUNDS       4u   /* run and poll, before sockets get their turn */
#define LINGER_STEPS     4u   /* SERVE_SCRATCH_BYTES each, before others get their turn */
#define SETTLE_CLIENTS   256u /* whose replies wait for one settle() */
#define TICK_MS          1000
#define TICK_STOPPING_MS 50
#define IDLE_MS          2000    /* without bytes: memory is given back */
#define RELEASE_MS       1000    /* without reading: pins are given back even if nobody asks for them */
#define LINGER_MS        2000    /* for the client to close after the last reply */
#define STOP_MS          10000   /* for everybody, to take what is owed to them */
#define STOP_INPUT       262144u /* bytes still read of each client when stopping */

/* ---- a connection's life ---- */

void serve_run_later(struct serve_conn *conn)
{
    if (conn->queued || conn->ending == ENDING_DEAD)
        return;
    conn->queued = true;
    TAILQ_INSERT_TAIL(&conn->worker->run, conn, run_link);
}

static void unblock(struct serve_conn *conn)
{
    if (!conn->blocked)
        return;
    conn->blocked = false;
    TAILQ_REMOVE(&conn->worker->blocked, conn, blocked_link);
}

void serve_end(struct serve_conn *conn)
{
    struct serve_worker *worker = conn->worker;

    if (conn->ending == ENDING_DEAD)
        return;
    if (conn->queued)
        TAILQ_REMOVE(&worker->run, conn, run_link);
    conn->queued = false;
    conn->ending = ENDING_DEAD;
    TAILQ_INSERT_TAIL(&worker->dead, conn, run_link);
}

void serve_end_after_flush(struct serve_conn *conn)
{
    if (conn->ending == ENDING_NO)
        conn->ending = ENDING_FLUSH;
}

/* Free those that ended. Only here, so that everybody may still look at them until the turn is over. */
static void bury(struct serve_worker *worker)
{
    struct serve_conn *conn;

    while ((conn = TAILQ_FIRST(&worker->dead))) {
        TAILQ_REMOVE(&worker->dead, conn, run_link);
        unblock(conn);
        if (conn->waiting)
            TAILQ_REMOVE(&worker->waiting, conn, wait_link);
        replies_drop(conn);
        worker->server->app->closed(conn);
        pthread_mutex_lock(&worker->lock);
        TAILQ_REMOVE(&worker->all, conn, all_link);
        pthread_mutex_unlock(&worker->lock);
        close(conn->fd);
        free(conn);
        atomic_fetch_sub_explicit(&worker->clients, 1, memory_order_relaxed);
    }
}

int serve_worker_adopt(struct serve_worker *worker, int fd, uint64_t id)
{
    const int yes = 1;
    struct serve_conn *conn = calloc(1, worker->server->app->conn_bytes);

    if (!conn)
        return -ENOMEM;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    conn->worker = worker;
    conn->fd = fd;
    conn->id = id;
    conn->lean = true;
    conn->out.text.budget = &worker->server->budget;
    conn->opened_ms = serve_clock_ms();
    conn->moved_ms = conn->opened_ms;
    atomic_init(&conn->seen_ms, conn->opened_ms);
    atomic_fetch_add_explicit(&worker->clients, 1, memory_order_relaxed);
    pthread_mutex_lock(&worker->lock);
    TAILQ_INSERT_TAIL(&worker->newcomers, conn, all_link);
    pthread_mutex_unlock(&worker->lock);
    serve_worker_wake(worker);
    return 0;
}

static void take_newcomers(struct serve_worker *worker)
{
    struct serve_conn *conn;

    for (;;) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};

        pthread_mutex_lock(&worker->lock);
        conn = TAILQ_FIRST(&worker->newcomers);
        if (conn) {
            TAILQ_REMOVE(&worker->newcomers, conn, all_link);
            TAILQ_INSERT_TAIL(&worker->all, conn, all_link);
        }
        pthread_mutex_unlock(&worker->lock);
        if (!conn)
            return;
        event.data.ptr = conn;
        worker->server->app->opened(conn);
        conn->readable = true;
        conn->input_left = STOP_INPUT;
        if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event))
            serve_end(conn);
        serve_run_later(conn);
    }
}

void serve_note_post(struct serve_worker *worker, struct serve_note *note)
{
    bool posted = false;

    pthread_mutex_lock(&worker->lock);
    if (!note->queued && !note->dropped) {
        note->queued = true;
        TAILQ_INSERT_TAIL(&worker->notes, note, link);
        posted = true;
    }
    pthread_mutex_unlock(&worker->lock);
    if (posted)
        serve_worker_wake(worker);
}

void serve_note_drop(struct serve_worker *worker, struct serve_note *note)
{
    pthread_mutex_lock(&worker->lock);
    if (note->queued)
        TAILQ_REMOVE(&worker->notes, note, link);
    note->queued = false;
    note->dropped = true;
    pthread_mutex_unlock(&worker->lock);
}

static void take_notes(struct serve_worker *worker)
{
    struct serve_note *note;

    pthread_mutex_lock(&worker->lock);
    while ((note = TAILQ_FIRST(&worker->notes))) {
        TAILQ_REMOVE(&worker->notes, note, link);
        note->queued = false;
        serve_run_later(note->conn);
    }
    pthread_mutex_unlock(&worker->lock);
}

size_t serve_receive(struct serve_conn *conn, size_t most)
{
    struct serve_worker *worker = conn->worker;
    ssize_t n;

    if (!conn->readable)
        return 0;
    if (worker->stopping && most > conn->input_left)
        most = conn->input_left;
    if (!most) {
        conn->eof = true;
        conn->readable = false;
        return 0;
    }
    do
        n = recv(conn->fd, worker->scratch, most, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) {
        serve_end(conn);
        return 0;
    }
    if (n == 0)
        conn->eof = true;
    /* Fewer than asked for: there is no more now, and epoll tells when there is. A hang-up is told only once. */
    if (n <= 0 || ((size_t)n < most && !conn->hangup))
        conn->readable = false;
    if (n <= 0)
        return 0;
    if (worker->stopping)
        conn->input_left -= (uint32_t)n;
    conn->lean = false;
    atomic_store_explicit(&conn->seen_ms, worker->now_ms, memory_order_relaxed);
    serve_counted(worker, SERVE_BYTES_IN, (uint64_t)n);
    return (size_t)n;
}

/* ---- running ---- */

/* The last reply is sent: let the client read it before the connection is torn down by what it may still send. */
static void linger(struct serve_conn *conn)
{
    if (conn->ending == ENDING_FLUSH) {
        conn->ending = ENDING_LINGER;
        conn->moved_ms = conn->worker->now_ms;
        conn->input_left = UINT32_MAX;
        if (conn->eof || shutdown(conn->fd, SHUT_WR)) {
            serve_end(conn);
            return;
        }
        conn->readable = true;
    }
    for (unsigned i = 0; i < LINGER_STEPS && conn->readable; i++)
        serve_receive(conn, SERVE_SCRATCH_BYTES);
    if (conn->eof)
        serve_end(conn);
    else if (conn->readable)
        serve_run_later(conn);
}

/* First half of a turn: look at requests and ask for pages. */
static enum serve_step look(struct serve_conn *conn)
{
    enum serve_step found = STEP_FULL;

    if (conn->ending == ENDING_LINGER) {
        linger(conn);
        return STEP_IDLE;
    }
    if (conn->ending == ENDING_NO && !conn->blocked) {
        found = conn->worker->server->app->step(conn);
        if (found == STEP_IDLE && (conn->eof || conn->worker->stopping))
            serve_end_after_flush(conn);
    }
    if (conn->ending != ENDING_DEAD)
        replies_start(conn);
    return found;
}

/* Second half: send. Whoever can go on has another turn. */
static void answer(struct serve_conn *conn, enum serve_step found)
{
    bool more = found == STEP_MORE;
    size_t sent = 0;

    if (conn->ending == ENDING_LINGER || conn->ending == ENDING_DEAD)
        return;
    switch (replies_flush(conn, &sent)) {
    case FLUSH_EMPTY:
        if (conn->ending == ENDING_FLUSH) {
            linger(conn);
            return;
        }
        more |= found == STEP_FULL && sent;
        break;
    case FLUSH_WAITING:
        more |= found == STEP_FULL && sent && conn->ending == ENDING_NO;
        break;
    case FLUSH_MORE:
        more = true;
        break;
    case FLUSH_BLOCKED:
    case FLUSH_DEAD:
        more = false;
        break;
    }
    if (more)
        serve_run_later(conn);
}

/*
 * Some of them, all first halves before the second ones, so that what settle() waits for is waited for once. How many of
 * count are left. The dead are only buried between turns.
 */
static unsigned run_some(struct serve_worker *worker, unsigned count)
{
    struct serve_conn *conn[SETTLE_CLIENTS];
    enum serve_step found[SETTLE_CLIENTS];
    unsigned some = 0;

    while (some < count && some < SETTLE_CLIENTS && (conn[some] = TAILQ_FIRST(&worker->run))) {
        TAILQ_REMOVE(&worker->run, conn[some], run_link);
        conn[some]->queued = false;
        found[some] = look(conn[some]);
        some++;
    }
    worker->server->app->settle(worker);
    for (unsigned i = 0; i < some; i++)
        answer(conn[i], found[i]);
    return some ? count - some : 0;
}

/* Everybody who is on the list now; who is put on it meanwhile has to wait for the next round. */
static void run_all(struct serve_worker *worker)
{
    unsigned count = 0;
    struct serve_conn *conn;

    TAILQ_FOREACH(conn, &worker->run, run_link)
    count++;
    while (worker->server->settles && count)
        count = run_some(worker, count);
    while (count-- && (conn = TAILQ_FIRST(&worker->run))) {
        enum serve_step found;

        TAILQ_REMOVE(&worker->run, conn, run_link);
        conn->queued = false;
        found = look(conn);
        answer(conn, found);
    }
}

void serve_pin_given_back(struct serve_worker *worker)
{
    assert(worker->pins);
    worker->pins--;
}

/* As many of those that wait for a pin as there are pins may try again. */
static void wake_waiting(struct serve_worker *worker)
{
    struct serve_conn *conn;
    unsigned count;

    if (worker->limited || TAILQ_EMPTY(&worker->waiting) || !replies_reclaim(worker))
        return;
    count = worker->pins_max - worker->pins;
    while (count-- && (conn = TAILQ_FIRST(&worker->waiting))) {
        TAILQ_REMOVE(&worker->waiting, conn, wait_link);
        conn->waiting = false;
        serve_run_later(conn);
    }
}

/* Submit what was started, and take what has come. How many answers, or a negative code. */
static int poll_session(struct serve_worker *worker)
{
    struct bp_event event[POLL_EVENTS];
    int total = 0, n = (int)POLL_EVENTS;

    for (unsigned round = 0; round < POLL_ROUNDS && n == (int)POLL_EVENTS; round++) {
        n = bp_poll(worker->session, event, POLL_EVENTS, 0);
        if (n == -EINTR || n == -EAGAIN)
            return total;
        if (n < 0)
            return n;
        for (int i = 0; i < n; i++)
            replies_completed(worker, &event[i]);
        total += n;
    }
    return total;
}

static void run_and_poll(struct serve_worker *worker)
{
    int n = 1;

    for (unsigned round = 0; round < RUN_ROUNDS && n > 0; round++) {
        wake_waiting(worker);
        run_all(worker);
        /* Also when nothing of ours is under way: the session may have things to do that nobody waits for. */
        n = worker->reading || worker->signalled ? poll_session(worker) : 0;
        worker->signalled = false;
    }
    if (n < 0) {
        fprintf(stderr, "%s: the pool failed: %s (%s)\n", worker->server->app->name, bp_session_error(worker->session),
                bp_strerror(n));
        atomic_store_explicit(&worker->server->broken, true, memory_order_relaxed);
        kill(getpid(), SIGTERM);
        worker->limited = true;
    }
}

/* ---- what is done by the clock ---- */

static void look_after(struct serve_conn *conn)
{
    struct serve_worker *worker = conn->worker;
    int64_t timeout_ms = 1000 * (int64_t)worker->server->options.timeout_s;
    int64_t moved_ms = worker->now_ms - conn->moved_ms;
    int64_t seen_ms = worker->now_ms - atomic_load_explicit(&conn->seen_ms, memory_order_relaxed);

    if (conn->ending == ENDING_LINGER) {
        if (moved_ms >= LINGER_MS)
            serve_end(conn);
    } else if (conn->blocked) {
        if (moved_ms >= timeout_ms) {
            serve_counted(worker, SERVE_ENDED_TIMEOUT, 1);
            serve_end(conn);
        } else if (moved_ms >= RELEASE_MS) {
            replies_release(conn);
        }
    } else if (conn->partial && !conn->out.count && seen_ms >= timeout_ms) {
        serve_counted(worker, SERVE_ENDED_TIMEOUT, 1);
        serve_end(conn);
    } else if (!conn->lean && !conn->out.count && seen_ms >= IDLE_MS) {
        replies_trim(conn);
        worker->server->app->idle(conn);
        conn->lean = true;
    }
}

static void tick(struct serve_worker *worker)
{
    struct serve_server *server = worker->server;
    bool give_up = worker->stopping &&
                   (worker->now_ms >= worker->stop_ms || atomic_load_explicit(&server->hurry, memory_order_relaxed));
    uint64_t commands = atomic_load_explicit(&worker->count[SERVE_COMMANDS], memory_order_relaxed);
    struct serve_conn *conn;

    if (worker->now_ms < worker->tick_ms && !give_up)
        return;
    worker->tick_ms = worker->now_ms + (worker->stopping ? TICK_STOPPING_MS : TICK_MS);
    atomic_store_explicit(&worker->rate, commands - worker->rate_before, memory_order_relaxed);
    worker->rate_before = commands;
    TAILQ_FOREACH(conn, &worker->all, all_link)
    {
        if (give_up)
            serve_end(conn);
        else if (conn->ending != ENDING_DEAD)
            look_after(conn);
    }
}

static void begin_stopping(struct serve_worker *worker)
{
    struct serve_conn *conn;

    worker->stopping = true;
    worker->stop_ms = worker->now_ms + STOP_MS;
    worker->tick_ms = worker->now_ms;
    TAILQ_FOREACH(conn, &worker->all, all_link)
    {
        if (conn->ending == ENDING_NO) {
            conn->input_left = STOP_INPUT;
            conn->readable = !conn->eof;
        }
        serve_run_later(conn);
    }
}

/* ---- the loop ---- */

static void socket_event(struct serve_conn *conn, uint32_t events)
{
    if (events & EPOLLERR) {
        serve_end(conn);
        return;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP))
        conn->hangup = true;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
        conn->readable = !conn->eof;
    if (events & EPOLLOUT)
        unblock(conn);
    serve_run_later(conn);
}

/* Sleep until something happens, and note to whom. 0 or a negative errno. */
static int wait_for_events(struct serve_worker *worker)
{
    struct epoll_event event[EVENTS_MAX];
    int timeout_ms = 0, n;
    uint64_t wakes;

    if (TAILQ_EMPTY(&worker->run) && worker->tick_ms > worker->now_ms)
        timeout_ms = (int)(worker->tick_ms - worker->now_ms);
    n = epoll_wait(worker->epoll_fd, event, EVENTS_MAX, timeout_ms);
    worker->now_ms = serve_clock_ms();
    if (n < 0)
        return errno == EINTR ? 0 : -errno; /* also without a signal, when a read completes: just look again */
    for (int i = 0; i < n; i++) {
        if (event[i].data.ptr == &worker->wake_fd) {
            if (read(worker->wake_fd, &wakes, sizeof(wakes)) < 0 && errno != EAGAIN)
                return -errno;
            take_newcomers(worker);
            take_notes(worker);
        } else if (event[i].data.ptr == &worker->session) {
            worker->signalled = true;
        } else {
            struct serve_conn *conn = event[i].data.ptr;

            if (conn->ending != ENDING_DEAD)
                socket_event(conn, event[i].events);
        }
    }
    return 0;
}

void *serve_worker_main(void *argument)
{
    struct serve_worker *worker = argument;
    struct serve_server *server = worker->server;
    bool finished = false;
    int code;

    worker->now_ms = serve_clock_ms();
    worker->tick_ms = worker->now_ms + TICK_MS;
    while (!finished) {
        code = wait_for_events(worker);
        if (code) {
            fprintf(stderr, "%s: an event loop failed: %s\n", server->app->name, strerror(-code));
            atomic_store_explicit(&server->broken, true, memory_order_relaxed);
            atomic_store_explicit(&server->stopping, true, memory_order_relaxed);
            kill(getpid(), SIGTERM);
            worker->stop_ms = worker->now_ms;
            worker->stopping = true;
        }
        if (!worker->stopping && atomic_load_explicit(&server->stopping, memory_order_relaxed)) {
            take_newcomers(worker);
            begin_stopping(worker);
        }
        run_and_poll(worker);
        tick(worker);
        bury(worker);
        finished = worker->stopping && TAILQ_EMPTY(&worker->all);
    }
    return NULL;
}

void serve_worker_wake(struct serve_worker *worker)
{
    const uint64_t one = 1;

    /* Can only fail when it is readable already, which is all that is wanted. */
    if (write(worker->wake_fd, &one, sizeof(one)) < 0)
        return;
}

/* ---- opening and closing ---- */

static int watch(struct serve_worker *worker, int fd, void *who)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};

    return epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static int ops_open(struct serve_worker *worker)
{
    worker->ops = calloc(worker->pins_max, sizeof(*worker->ops));
    if (!worker->ops)
        return -ENOMEM;
    for (unsigned i = 0; i < worker->pins_max; i++) {
        worker->ops[i].next = worker->op;
        worker->op = &worker->ops[i];
    }
    return 0;
}

int serve_worker_open(struct serve_worker *worker, const char *label, unsigned pins_max)
{
    struct bp_session_options options = {.size = sizeof(options), .label = label, .async_max = pins_max};
    int code;

    TAILQ_INIT(&worker->run);
    TAILQ_INIT(&worker->waiting);
    TAILQ_INIT(&worker->blocked);
    TAILQ_INIT(&worker->dead);
    TAILQ_INIT(&worker->all);
    TAILQ_INIT(&worker->newcomers);
    TAILQ_INIT(&worker->notes);
    pthread_mutex_init(&worker->lock, NULL);
    worker->pins_max = pins_max;
    worker->wake_fd = -1;
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->epoll_fd >= 0)
        worker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->wake_fd < 0)
        return -errno;
    worker->scratch = malloc(SERVE_SCRATCH_BYTES);
    code = worker->scratch ? ops_open(worker) : -ENOMEM;
    if (!code && worker->server->pool)
        code = bp_session_open(worker->server->pool, &options, &worker->session);
    if (!code)
        code = watch(worker, worker->wake_fd, &worker->wake_fd);
    if (!code && worker->session) {
        int fd = bp_session_fd(worker->session);

        code = fd < 0 ? fd : watch(worker, fd, &worker->session);
    }
    return code;
}

void serve_worker_close(struct serve_worker *worker)
{
    int code = worker->session ? bp_session_close(worker->session) : 0;

    if (code)
        fprintf(stderr, "%s: closing a session: %s\n", worker->server->app->name, bp_strerror(code));
    free(worker->ops);
    free(worker->scratch);
    if (worker->wake_fd >= 0)
        close(worker->wake_fd);
    if (worker->epoll_fd >= 0)
        close(worker->epoll_fd);
    pthread_mutex_destroy(&worker->lock);
}
