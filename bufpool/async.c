/* SPDX-License-Identifier: MIT */
/*
 * Operations for event loops: bp_get_start, bp_poll, and the descriptor that says when to poll.
 *
 *   start --hit--> ref
 *         --read under way--> WAITING, on the read's list --reaped by anybody--> READY --poll--> ref or error
 *         --no frame, no request, latched--> BACKLOG --tried again by each poll--> ref, WAITING, or an error at the
 * deadline
 *
 * The descriptor is an epoll set of: the session's channel; channels of other sessions whose reads we have joined
 * (their owner may never look, R6); an eventfd, written when another thread completed a read that we wait for; and a
 * timer for backlog and deadlines.
 *
 * A reaper pushes operations to their session while it holds the channel's lock, so a session that closes takes that
 * lock once and knows that nobody still has a hand on it.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bufpool/pool.h"

#define BACKLOG_TICK_NS  (1 * NS_PER_MS)   /* how often what must be tried again is tried again */
#define DEADLINE_TICK_NS (250 * NS_PER_MS) /* how often deadlines are looked at */
#define BACKLOG_TRIES    64u               /* operations tried again in one poll */

/* ---- operations ---- */

static struct operation *operation_take(bp_session *s)
{
    struct operation *op;

    if (!s->operation) {
        s->operation = calloc(s->async_max, sizeof(*s->operation));
        if (!s->operation)
            return NULL;
        for (unsigned i = s->async_max; i-- > 0;) {
            s->operation[i].session = s;
            s->operation[i].next = s->operation_free;
            s->operation_free = &s->operation[i];
        }
    }
    op = s->operation_free;
    if (op) {
        s->operation_free = op->next;
        s->active++;
    }
    return op;
}

static void operation_give(struct operation *op)
{
    bp_session *s = op->session;

    atomic_store_explicit(&op->state, OPERATION_FREE, memory_order_relaxed);
    op->next = s->operation_free;
    s->operation_free = op;
    s->active--;
}

static void backlog_add(struct operation *op)
{
    bp_session *s = op->session;

    atomic_store_explicit(&op->state, OPERATION_BACKLOG, memory_order_relaxed);
    op->next = NULL;
    *s->backlog_end = op;
    s->backlog_end = &op->next;
}

static struct channel *channel_of(bp_pool *pool, uint32_t head)
{
    unsigned number = atomic_load_explicit(&pool->cold[head].channel, memory_order_relaxed);

    return atomic_load_explicit(&pool->channel[number], memory_order_acquire);
}

static struct read *read_of(bp_pool *pool, struct channel *ch, uint32_t head)
{
    return &ch->read[atomic_load_explicit(&pool->cold[head].slot, memory_order_relaxed)];
}

/* ---- the descriptor ---- */

static int watch(bp_session *s, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST ? -errno : 0;
}

/* Completions that we wait for will arrive in a channel that is not ours. */
static void watch_foreign(bp_session *s, struct channel *ch)
{
    uint64_t bit = 1ull << (ch->number % 64);

    if (ch == s->channel || s->foreign[ch->number / 64] & bit)
        return;
    s->foreign[ch->number / 64] |= bit;
    if (s->epoll_fd >= 0)
        watch(s, ch->ops->fd(ch->io));
}

static void forget_foreign(bp_session *s)
{
    for (unsigned i = 0; i < CHANNELS_MAX / 64; i++) {
        while (s->foreign[i]) {
            unsigned number = i * 64 + (unsigned)__builtin_ctzll(s->foreign[i]);
            struct channel *ch = atomic_load_explicit(&s->pool->channel[number], memory_order_acquire);

            s->foreign[i] &= s->foreign[i] - 1;
            if (s->epoll_fd >= 0)
                epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, ch->ops->fd(ch->io), NULL);
        }
    }
}

/*
 * One write for any number of signals. seq_cst on the flag: who finds it set relies on the poll that clears it to look
 * at the ready stack afterwards.
 */
static void signal_session(bp_session *s)
{
    int fd = atomic_load_explicit(&s->event_fd, memory_order_seq_cst);
    uint64_t one = 1;

    if (fd < 0 || atomic_exchange_explicit(&s->signaled, true, memory_order_seq_cst))
        return;
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ; /* ends: an eventfd's write does not wait */
}

/* Before the ready stack is looked at. A flag without a byte: the writer is on its way, and the next poll will find it.
 */
static void drain_signal(bp_session *s)
{
    int fd = atomic_load_explicit(&s->event_fd, memory_order_relaxed);
    uint64_t count;

    if (atomic_load_explicit(&s->signaled, memory_order_relaxed) && read(fd, &count, sizeof(count)) > 0)
        atomic_store_explicit(&s->signaled, false, memory_order_seq_cst);
}

static void set_timer(bp_session *s, uint64_t ns)
{
    struct itimerspec t = {.it_value.tv_nsec = (long)ns, .it_interval.tv_nsec = (long)ns};

    if (s->epoll_fd < 0 || s->timer_ns == ns)
        return;
    s->timer_due_ns = bpi_now_ns() + ns; /* before it is set: no tick comes earlier than we think */
    timerfd_settime(s->timer_fd, 0, &t, NULL);
    s->timer_ns = ns;
}

/*
 * Ticking while there is work; the slow tick is only stopped by a tick that finds none, so busy loops make no calls for
 * it. A tick is read as soon as it is due: unread, it keeps the descriptor readable, and an event loop spinning.
 */
static void adjust_timer(bp_session *s)
{
    uint64_t ticks;

    if (s->backlog)
        set_timer(s, BACKLOG_TICK_NS);
    else if (s->active || s->timer_ns == BACKLOG_TICK_NS)
        set_timer(s, DEADLINE_TICK_NS);
    if (s->timer_ns && bpi_now_ns() >= s->timer_due_ns && read(s->timer_fd, &ticks, sizeof(ticks)) > 0) {
        s->timer_due_ns += ticks * s->timer_ns;
        if (!s->active)
            set_timer(s, 0);
    }
}

static int open_descriptor(bp_session *s)
{
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int rc = 0;

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (event < 0 || timer < 0 || s->epoll_fd < 0)
        rc = -errno;
    if (!rc)
        rc = watch(s, event);
    if (!rc)
        rc = watch(s, timer);
    if (!rc)
        rc = watch(s, s->channel->ops->fd(s->channel->io));
    if (rc) {
        if (event >= 0)
            close(event);
        if (timer >= 0)
            close(timer);
        if (s->epoll_fd >= 0)
            close(s->epoll_fd);
        s->epoll_fd = -1;
        return bpi_session_fail(s, rc, "descriptor of '%s': %s", s->label, bp_strerror(rc));
    }
    s->timer_fd = timer;
    /* seq_cst, against push: either the pusher sees the descriptor or we see what it pushed */
    atomic_store_explicit(&s->event_fd, event, memory_order_seq_cst);
    if (atomic_load_explicit(&s->ready, memory_order_seq_cst) || s->arrived)
        signal_session(s);
    adjust_timer(s);
    return 0;
}

static void watch_joined_before(bp_session *s)
{
    for (unsigned i = 0; i < CHANNELS_MAX; i++) {
        struct channel *ch = atomic_load_explicit(&s->pool->channel[i], memory_order_acquire);

        if (s->foreign[i / 64] >> (i % 64) & 1)
            watch(s, ch->ops->fd(ch->io));
    }
}

int bp_session_fd(bp_session *s)
{
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (s->epoll_fd >= 0)
        return s->epoll_fd;
    rc = s->channel ? 0 : bpi_channel_assign(s);
    if (!rc)
        rc = open_descriptor(s);
    if (rc)
        return rc;
    watch_joined_before(s);
    return s->epoll_fd;
}

/* ---- from a read to those who wait for it ---- */

/* release/seq_cst: see open_descriptor. The channel's lock is held. */
static void push(struct operation *op, bp_session *reaper)
{
    bp_session *s = op->session;
    struct operation *top = atomic_load_explicit(&s->ready, memory_order_relaxed);

    atomic_store_explicit(&op->state, OPERATION_READY, memory_order_relaxed);
    do {
        op->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&s->ready, &top, op, memory_order_seq_cst, memory_order_relaxed));
    if (s != reaper)
        signal_session(s);
}

void bpi_operations_ready(struct operation *op, bp_session *reaper)
{
    while (op) {
        struct operation *next = op->next;

        push(op, reaper);
        op = next;
    }
}

/* Put a joined operation on its read's list; if the read is over already, it is ready. */
static void attach(struct operation *op)
{
    bp_session *s = op->session;
    struct channel *ch = channel_of(s->pool, op->head);
    struct read *r = read_of(s->pool, ch, op->head);
    bool attached;

    s->waiting++;
    slim_lock_take(&ch->lock);
    /* completion clears READING before it takes this lock to empty the list: what we add while it is set will be found
     */
    attached = frame_load(&s->frame[op->head]) & FRAME_READING;
    if (attached) {
        atomic_store_explicit(&op->state, OPERATION_WAITING, memory_order_relaxed);
        op->next = r->waiting;
        r->waiting = op;
    }
    slim_lock_give(&ch->lock);
    if (attached) {
        if (ch != s->channel) {
            watch_foreign(s, ch);
            ch->ops->flush(ch->io); /* its owner may hold it back and never come */
        }
        return;
    }
    atomic_store_explicit(&op->state, OPERATION_READY, memory_order_relaxed);
    op->next = s->arrived;
    s->arrived = op;
    signal_session(s);
}

/* Take a waiting operation off its read's list; false: somebody has just completed it. */
static bool detach(struct operation *op)
{
    struct channel *ch = channel_of(op->session->pool, op->head);
    struct operation **at;
    bool found;

    slim_lock_take(&ch->lock);
    at = &read_of(op->session->pool, ch, op->head)->waiting;
    while (*at && *at != op)
        at = &(*at)->next;
    found = *at == op && atomic_load_explicit(&op->state, memory_order_relaxed) == OPERATION_WAITING;
    if (found)
        *at = op->next;
    slim_lock_give(&ch->lock);
    return found;
}

/* ---- start ---- */

int bp_get_start(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, unsigned flags, void *cookie,
                 struct bp_ref *ref)
{
    struct operation *op;
    struct target t;
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if ((mode != BP_SHARED && mode != BP_EXCLUSIVE) || flags & ~BP_MORE)
        return bpi_session_fail(s, -EINVAL, "bp_get_start: mode %d, flags %#x", (int)mode, flags);
    s->since_ns = UINT64_MAX;
    rc = mode == BP_EXCLUSIVE && write_is_stopped(s, file) ? STEP_FRAMES : bpi_step(s, file, page, mode, &t);
    if (rc < 0)
        return rc;
    if (rc == STEP_PINNED) {
        ref_fill(s, page, mode, &t, ref);
        return 0;
    }
    op = operation_take(s);
    if (!op) {
        if (rc == STEP_JOINED)
            bpi_unpin(s->pool, t.head);
        return bpi_session_fail(s, BP_LIMIT, "%u operations are under way", s->async_max);
    }
    op->file = file;
    op->page = page;
    op->mode = (uint8_t)mode;
    op->cookie = cookie;
    op->head = t.head;
    op->deadline_ns = bpi_now_ns() + s->pool->wait_ns;
    if (rc == STEP_JOINED)
        attach(op);
    else
        backlog_add(op);
    if (!(flags & BP_MORE) && s->channel)
        s->channel->ops->flush(s->channel->io);
    adjust_timer(s);
    return BP_PENDING;
}

/* ---- poll ---- */

static void deliver(struct operation *op, int result, struct bp_event *event)
{
    event->cookie = op->cookie;
    event->result = result;
    operation_give(op);
}

/* Its read is over. true: delivered; false: back to the backlog. */
static bool finish(struct operation *op, struct bp_event *event)
{
    bp_session *s = op->session;
    struct target t = {.head = op->head};
    int rc = bpi_joined_result(s, op->file, op->page, op->head);

    s->waiting--;
    if (!rc) {
        t.seen = frame_load(&s->frame[t.head]);
        t.frame = t.head + (uint32_t)(op->page & extent_mask(frame_order(t.seen)));
        rc = bpi_settle_mode(s, op->file, op->page, op->mode, op->head);
    }
    if (rc == -EAGAIN) {
        backlog_add(op);
        return false;
    }
    if (!rc)
        ref_fill(s, op->page, op->mode, &t, &event->ref);
    deliver(op, rc, event);
    return true;
}

/* One more attempt. true: delivered; false: waiting, or still to be tried again. */
static bool try_again(struct operation *op, uint64_t now, bool *starved, struct bp_event *event)
{
    bp_session *s = op->session;
    struct target t;
    int rc;
    bool stopped = op->mode == BP_EXCLUSIVE && write_is_stopped(s, op->file);

    s->since_ns = op->deadline_ns - s->pool->wait_ns;
    rc = *starved || stopped ? STEP_FRAMES : bpi_step(s, op->file, op->page, op->mode, &t);
    if (rc == STEP_PINNED) {
        ref_fill(s, op->page, op->mode, &t, &event->ref);
        deliver(op, 0, event);
        return true;
    }
    if (rc == STEP_JOINED) {
        op->head = t.head;
        attach(op);
        return false;
    }
    if (rc >= 0 && now >= op->deadline_ns) {
        counter_add(&s->count.busy, 1);
        rc = bpi_session_fail(s, -EBUSY, "page %llu of %s: %s until the deadline", (unsigned long long)op->page,
                              op->file->name,
                              stopped              ? "too much is dirty"
                              : rc == STEP_LATCHED ? "held by others"
                                                   : "no frame could be had");
    }
    if (rc < 0) {
        deliver(op, rc, event);
        return true;
    }
    *starved |= !stopped && (rc == STEP_FRAMES || rc == STEP_READS); /* the rest would fare no better now */
    backlog_add(op);
    return false;
}

static unsigned poll_backlog(bp_session *s, struct bp_event event[], unsigned n)
{
    uint64_t now = bpi_now_ns();
    bool starved = false;
    unsigned delivered = 0;
    unsigned tries = BACKLOG_TRIES;
    struct operation *last = NULL;

    for (struct operation *op = s->backlog; op && delivered < n && tries-- > 0 && op != last;) {
        s->backlog = op->next;
        if (!s->backlog)
            s->backlog_end = &s->backlog;
        if (try_again(op, now, &starved, &event[delivered]))
            delivered++;
        else if (!last && atomic_load_explicit(&op->state, memory_order_relaxed) == OPERATION_BACKLOG)
            last = op; /* went to the end: seen again, it ends the round */
        op = s->backlog;
    }
    return delivered;
}

static unsigned poll_ready(bp_session *s, struct bp_event event[], unsigned n)
{
    struct operation *op = atomic_exchange_explicit(&s->ready, NULL, memory_order_seq_cst);
    unsigned delivered = 0;

    while (op) { /* the stack's order is the reverse of completion's; turning it restores that */
        struct operation *next = op->next;

        op->next = s->arrived;
        s->arrived = op;
        op = next;
    }
    while (s->arrived && delivered < n) {
        op = s->arrived;
        s->arrived = op->next;
        delivered += finish(op, &event[delivered]);
    }
    if (s->arrived)
        signal_session(s); /* there is more for the next poll */
    return delivered;
}

/* Reads that have not ended at their deadline: their waiters are told so; the reads themselves go on. */
static unsigned poll_deadlines(bp_session *s, struct bp_event event[], unsigned n)
{
    uint64_t now = bpi_now_ns();
    unsigned delivered = 0;

    if (!s->waiting || now < s->expiry_check_ns)
        return 0;
    s->expiry_check_ns = now + DEADLINE_TICK_NS;
    for (unsigned i = 0; i < s->async_max && delivered < n; i++) {
        struct operation *op = &s->operation[i];

        if (atomic_load_explicit(&op->state, memory_order_relaxed) != OPERATION_WAITING || now < op->deadline_ns ||
            !detach(op))
            continue;
        s->waiting--;
        bpi_unpin(s->pool, op->head);
        counter_add(&s->count.busy, 1);
        bpi_session_fail(s, -ETIMEDOUT, "read of page %llu of %s has not ended after %u ms",
                         (unsigned long long)op->page, op->file->name, s->pool->options.wait_ms);
        deliver(op, -ETIMEDOUT, &event[delivered++]);
    }
    return delivered;
}

/* Complete whatever has arrived in the channels that matter to us. */
static void reap_channels(bp_session *s)
{
    if (s->channel) {
        s->channel->ops->flush(s->channel->io);
        bpi_channel_help(s->channel, s, &s->count, 1, 0, NULL);
    }
    for (unsigned i = 0; i < CHANNELS_MAX / 64; i++) {
        for (uint64_t left = s->foreign[i]; left; left &= left - 1) {
            unsigned number = i * 64 + (unsigned)__builtin_ctzll(left);
            struct channel *ch = atomic_load_explicit(&s->pool->channel[number], memory_order_acquire);

            ch->ops->flush(ch->io);
            bpi_channel_help(ch, s, &s->count, 1, 0, NULL);
        }
    }
}

static unsigned poll_once(bp_session *s, struct bp_event event[], unsigned n)
{
    unsigned delivered;

    reap_channels(s);
    drain_signal(s);
    delivered = poll_ready(s, event, n);
    delivered += poll_deadlines(s, event + delivered, n - delivered);
    if (s->backlog && delivered < n)
        delivered += poll_backlog(s, event + delivered, n - delivered);
    if (s->channel)
        s->channel->ops->flush(s->channel->io);
    if (!s->waiting)
        forget_foreign(s);
    adjust_timer(s);
    return delivered;
}

/* Whether a poll could do anything: also to make the descriptor unreadable again. */
static bool has_work(const bp_session *s)
{
    return s->active || s->timer_ns || atomic_load_explicit(&s->signaled, memory_order_relaxed) ||
           (s->epoll_fd >= 0 && atomic_load_explicit(&s->channel->in_use, memory_order_relaxed));
}

int bp_poll(bp_session *s, struct bp_event event[], unsigned n, unsigned timeout_ms)
{
    uint64_t until;
    unsigned delivered;
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (!has_work(s))
        return 0;
    delivered = poll_once(s, event, n);
    if (delivered || !timeout_ms || !s->active)
        return (int)delivered;
    until = bpi_now_ns() + timeout_ms * NS_PER_MS;
    rc = bp_session_fd(s);
    if (rc < 0)
        return rc;
    while (!delivered && s->active && bpi_now_ns() < until) {
        struct pollfd p = {.fd = s->epoll_fd, .events = POLLIN};
        uint64_t left_ms = (until - bpi_now_ns()) / NS_PER_MS + 1;

        poll(&p, 1, (int)(left_ms < timeout_ms ? left_ms : timeout_ms)); /* EINTR: look again */
        delivered = poll_once(s, event, n);
    }
    return (int)delivered;
}

/* ---- close ---- */

/* Take the lock of every channel once: whoever was pushing to us has finished. */
static void wait_for_pushers(bp_pool *pool)
{
    unsigned count = atomic_load_explicit(&pool->channel_count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++) {
        struct channel *ch = atomic_load_explicit(&pool->channel[i], memory_order_acquire);

        slim_lock_take(&ch->lock);
        slim_lock_give(&ch->lock);
    }
}

static void drop_list(bp_session *s, struct operation *op)
{
    for (; op; op = op->next)
        if (!bpi_joined_result(s, op->file, op->page, op->head))
            bpi_unpin(s->pool, op->head);
}

void bpi_operations_close(bp_session *s)
{
    int event = atomic_load_explicit(&s->event_fd, memory_order_relaxed);

    if (s->channel)
        s->channel->ops->flush(s->channel->io);
    for (unsigned i = 0; s->operation && i < s->async_max; i++) {
        struct operation *op = &s->operation[i];

        if (atomic_load_explicit(&op->state, memory_order_relaxed) == OPERATION_WAITING && detach(op))
            bpi_unpin(s->pool, op->head);
    }
    wait_for_pushers(s->pool);
    drop_list(s, atomic_exchange_explicit(&s->ready, NULL, memory_order_acquire));
    drop_list(s, s->arrived);
    forget_foreign(s);
    if (s->epoll_fd >= 0) {
        close(s->epoll_fd);
        close(s->timer_fd);
        close(event);
    }
    free(s->operation);
}
