/* SPDX-License-Identifier: MIT */
/*
 * A channel over io_uring.
 *
 * The ring is made without SINGLE_ISSUER and DEFER_TASKRUN: with those only its owner can submit and wait, and
 * what it started is stranded when it sleeps or ends. As it is, the kernel interrupts a thread that started a read
 * and went to sleep, to post the completion; any thread may then take it. (The flags gained nothing measurable.)
 *
 * Three things, each with its own lock, so that nobody waits for one who sleeps:
 *
 *   the submission queue (queue_lock): fill in entries, publish the tail, count what is to be started. The count
 *     is taken ("claimed") under the lock and the system call made without it. The kernel takes entries in
 *     order, so it does not matter whose call starts whose entries as long as the counts add up; a call
 *     that started fewer gives the rest of its count back. So the last `unclaimed` entries of the queue are no
 *     call's, and may be taken out again.
 *   the completion queue (reap_lock): read entries, advance the head. Held for a few entries, never across a call.
 *   who sleeps (io/park.h): one or two threads sleep in the kernel, the others are parked behind them.
 *
 * Starting what is queued and sleeping is one system call.
 *
 * The completion queue cannot overflow: no more than `depth` requests and one kick are between submission and reaping,
 * and it holds that many. The submission queue holds `depth`; as a kick may take a place there until
 * the kernel has taken it, submit looks for room in both.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/park.h"
#include "io/uring.h"

#define CLOSE_NS 30000000000ull
/*
 * A leader looks around after a first slice, then after twice that, at last every SLICE_MAX_NS. The first is above
 * the kernel's tick (4 or 10 ms): a timer due before the next tick makes idling dearer, 10 us a read when it was
 * measured.
 */
#define SLICE_FIRST_NS 11000000u
#define SLICE_MAX_NS   50000000u
#define BATCH_MAX      8u /* completions slept through: more saves little, and others' may be among them */
#define REFUSED_MAX    8u /* tries when the kernel has no room: 20 us, 40 us, ... apart, 5 ms in all */
#define REFUSED_NS     20000u
#define BARRED_NS      1000000u /* between looks where the kernel bars us from sleeping: completions still come */

struct request_list {
    struct io_request *first, **last;
};

struct uring {
    struct io_uring ring;
    unsigned depth;
    unsigned buffers;
    int table_error; /* why there is no table of registered buffers */
    int files_error; /* of files */

    alignas(64) pthread_mutex_t queue_lock;
    _Atomic unsigned unclaimed;   /* queued, and no call has been told to start it; written under queue_lock */
    _Atomic unsigned failed;      /* length of the list; written under queue_lock */
    struct request_list failures; /* requests that the kernel would not even start; under queue_lock */
    _Atomic bool kicked;          /* a kick is queued or its completion not yet reaped */

    alignas(64) pthread_mutex_t reap_lock;
    _Atomic uint32_t reapings; /* times that something was reaped */

    alignas(64) struct park park;
};

/* One call of wait. */
struct sleep {
    const struct io_until *until;
    unsigned want;
    uint32_t reapings; /* when it began */
    uint64_t began_ns, deadline_ns;
};

#define LOOK_AGAIN 1

static struct uring *uring_of(struct io_channel *ch)
{
    return (struct uring *)(void *)ch;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    nanosleep(&t, NULL); /* a signal that cuts it short does no harm */
}

/* Head first: the tail is never behind it, so a race can only show too few. */
static unsigned completions(const struct uring *u)
{
    unsigned head = IO_URING_READ_ONCE(*u->ring.cq.khead);

    return io_uring_smp_load_acquire(u->ring.cq.ktail) - head;
}

static void list_clear(struct request_list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

/* ---- open and close ---------------------------------------------------------------------------- */

static int ring_init(struct uring *u)
{
    struct io_uring_params params;
    int rc = -EINVAL;

    /* SUBMIT_ALL is 5.18's: without it a bad entry ends a batch early, which is handled as well */
    for (unsigned i = 0; i < 2 && rc == -EINVAL; i++) {
        memset(&params, 0, sizeof(params));
        params.flags = IORING_SETUP_CQSIZE | (i ? 0 : IORING_SETUP_SUBMIT_ALL);
        params.cq_entries = u->depth + 1; /* and a kick */
        rc = io_uring_queue_init_params(u->depth, &u->ring, &params);
    }
    if (rc)
        return rc;
    /* 5.11: a time-out for waiting that costs no request of its own */
    if (!(params.features & IORING_FEAT_EXT_ARG) || !(params.features & IORING_FEAT_NODROP)) {
        io_uring_queue_exit(&u->ring);
        return -EOPNOTSUPP;
    }
    assert(params.sq_entries >= u->depth && params.cq_entries > u->depth);
    for (unsigned i = 0; i < params.sq_entries; i++)
        u->ring.sq.array[i] = i; /* entries are used in the order in which they lie */
    return 0;
}

static int uring_open(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **out)
{
    struct uring *u;
    int rc;

    (void)threads; /* psync's */
    if (depth == 0 || depth > IO_DEPTH_MAX)
        return -EINVAL;
    u = aligned_alloc(64, (sizeof(*u) + 63) & ~(size_t)63);
    if (!u)
        return -ENOMEM;
    memset(u, 0, sizeof(*u));
    u->depth = depth;
    rc = ring_init(u);
    if (rc) {
        free(u);
        return rc;
    }
    u->table_error = -ENOENT;
    if (buffers) {
        u->table_error = io_uring_register_buffers_sparse(&u->ring, buffers);
        u->buffers = u->table_error ? 0 : buffers;
    }
    u->files_error = io_uring_register_files_sparse(&u->ring, IO_FILES_MAX); /* 5.19; now, when nothing is in flight */
    list_clear(&u->failures);
    pthread_mutex_init(&u->queue_lock, NULL); /* cannot fail with default attributes */
    pthread_mutex_init(&u->reap_lock, NULL);
    *out = (struct io_channel *)(void *)u;
    return 0;
}

/* ---- the submission queue ------------------------------------------------------------------------ */

/* Under queue_lock. */
static void queue_fill(struct uring *u, const struct io_request *r)
{
    struct io_uring_sq *sq = &u->ring.sq;
    struct io_uring_sqe *sqe = &sq->sqes[sq->sqe_tail++ & sq->ring_mask];
    int fd = r->file_slot ? (int)r->file_slot - 1 : r->file->fd;

    assert(r->offset <= INT64_MAX); /* -1 would mean the file's position */
    assert(r->buffer == IO_BUFFER_NONE || r->buffer <= UINT16_MAX);
    if (r->op == IO_SYNC)
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    else if (r->op == IO_WRITE && r->buffer == IO_BUFFER_NONE)
        io_uring_prep_write(sqe, fd, r->to, r->bytes, r->offset);
    else if (r->op == IO_WRITE)
        io_uring_prep_write_fixed(sqe, fd, r->to, r->bytes, r->offset, (int)r->buffer);
    else if (r->buffer == IO_BUFFER_NONE)
        io_uring_prep_read(sqe, fd, r->to, r->bytes, r->offset);
    else
        io_uring_prep_read_fixed(sqe, fd, r->to, r->bytes, r->offset, (int)r->buffer);
    if (r->file_slot)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, (uint64_t)(uintptr_t)r);
}

/* Under queue_lock. Release: whoever makes the call, its kernel side sees the entries before the tail. */
static void queue_publish(struct uring *u, unsigned unclaimed)
{
    io_uring_smp_store_release(u->ring.sq.ktail, u->ring.sq.sqe_tail);
    atomic_store_explicit(&u->unclaimed, unclaimed, memory_order_relaxed);
}

/* Under queue_lock. */
static unsigned queue_room(const struct uring *u)
{
    return u->ring.sq.ring_entries - (u->ring.sq.sqe_tail - io_uring_smp_load_acquire(u->ring.sq.khead));
}

/* Is it among these? only == NULL: every request is meant. */
static bool among(const struct io_request *r, struct io_request *const only[], unsigned n)
{
    for (unsigned i = 0; only && i < n; i++)
        if (only[i] == r)
            return true;
    return !only;
}

/*
 * Take out of the queue what no call has claimed, all of it or only these requests; append them to the list if
 * there is one. How many requests. A kick goes with all. Under queue_lock.
 */
static unsigned queue_withdraw(struct uring *u, struct io_request *const only[], unsigned n, struct request_list *to)
{
    struct io_uring_sq *sq = &u->ring.sq;
    unsigned unclaimed = atomic_load_explicit(&u->unclaimed, memory_order_relaxed);
    unsigned tail = sq->sqe_tail;
    unsigned first = tail - unclaimed;
    unsigned kept = first;
    unsigned out = 0;

    for (unsigned i = first; i != tail; i++) {
        struct io_uring_sqe *sqe = &sq->sqes[i & sq->ring_mask];
        struct io_request *r = (struct io_request *)(uintptr_t)sqe->user_data;

        if (!among(r, only, n)) {
            if (kept != i)
                sq->sqes[kept & sq->ring_mask] = *sqe;
            kept++;
            continue;
        }
        if (!r) {
            atomic_store_explicit(&u->kicked, false, memory_order_relaxed);
            continue;
        }
        out++;
        if (to) {
            r->next = NULL;
            *to->last = r;
            to->last = &r->next;
        }
    }
    sq->sqe_tail = kept;
    queue_publish(u, kept - first);
    return out;
}

/*
 * The system call: start what is queued and, with min > 0, sleep for up to ns until that many completions lie in the
 * queue. 0, or a negative errno; -EAGAIN also if the kernel started only part. Says nothing about what woke it.
 */
static int enter(struct uring *u, unsigned min, uint64_t ns)
{
    struct __kernel_timespec until = {.tv_sec = (long long)(ns / 1000000000u),
                                      .tv_nsec = (long long)(ns % 1000000000u)};
    struct io_uring_getevents_arg arg = {.ts = (uint64_t)(uintptr_t)&until};
    unsigned flags = min ? IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG : 0;
    unsigned claim = atomic_load_explicit(&u->unclaimed, memory_order_relaxed);
    unsigned started;
    int rc;

    if (claim) {
        pthread_mutex_lock(&u->queue_lock);
        claim = atomic_load_explicit(&u->unclaimed, memory_order_relaxed);
        atomic_store_explicit(&u->unclaimed, 0, memory_order_relaxed);
        pthread_mutex_unlock(&u->queue_lock);
    }
    if (!claim && !min)
        return 0;
    rc = io_uring_enter2((unsigned)u->ring.enter_ring_fd, claim, min, flags, min ? (sigset_t *)(void *)&arg : NULL,
                         min ? sizeof(arg) : 0);
    started = rc > 0 ? (unsigned)rc : 0; /* with an error nothing was started */
    if (started >= claim)
        return rc < 0 ? rc : 0;
    pthread_mutex_lock(&u->queue_lock);
    atomic_fetch_add_explicit(&u->unclaimed, claim - started, memory_order_relaxed);
    pthread_mutex_unlock(&u->queue_lock);
    return rc < 0 ? rc : -EAGAIN;
}

/* Errors that time heals. */
static bool refused(int rc)
{
    return rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM;
}

/* Start what is queued; naps while the kernel has no room. 0 or a negative errno. Does not wait for completions. */
static int queue_start(struct uring *u)
{
    int rc = 0;

    for (unsigned i = 0; i <= REFUSED_MAX; i++) {
        rc = enter(u, 0, 0);
        if (rc == 0 || !(refused(rc) || rc == -EINTR))
            break;
        if (refused(rc) && i < REFUSED_MAX)
            nap((uint64_t)REFUSED_NS << i);
    }
    return rc == -EINTR ? -EAGAIN : rc; /* so many signals: as good as no room */
}

/*
 * The kernel will not have our requests for a reason that stays (a seccomp filter put in place after the ring, say):
 * all that are queued finish with it, so that whoever waits for them is told. 0 if there are any, else the errno.
 */
static int queue_fail(struct uring *u, int rc)
{
    struct request_list list;
    unsigned n;

    list_clear(&list);
    pthread_mutex_lock(&u->queue_lock);
    n = queue_withdraw(u, NULL, 0, &list);
    if (n) {
        for (struct io_request *r = list.first; r; r = r->next)
            r->result = rc;
        *u->failures.last = list.first;
        u->failures.last = list.last;
        atomic_fetch_add_explicit(&u->failed, n, memory_order_release);
    }
    pthread_mutex_unlock(&u->queue_lock);
    return n ? 0 : rc;
}

static int uring_flush(struct io_channel *ch)
{
    struct uring *u = uring_of(ch);
    int rc = queue_start(u);

    return rc == 0 || refused(rc) ? rc : queue_fail(u, rc);
}

static int uring_submit(struct io_channel *ch, struct io_request *const request[], unsigned n, unsigned flags)
{
    struct uring *u = uring_of(ch);
    unsigned room;
    unsigned back;
    int rc;

    pthread_mutex_lock(&u->queue_lock);
    room = u->depth - park_flight(park_state(&u->park)); /* others can only make it more meanwhile */
    if (n > room)
        n = room;
    room = queue_room(u);
    if (n > room)
        n = room;
    for (unsigned i = 0; i < n; i++)
        queue_fill(u, request[i]);
    if (n) {
        queue_publish(u, atomic_load_explicit(&u->unclaimed, memory_order_relaxed) + n);
        park_submitted(&u->park, n);
    }
    pthread_mutex_unlock(&u->queue_lock);
    if (n == 0 || (flags & IO_HOLD))
        return (int)n;
    rc = queue_start(u);
    if (rc == 0)
        return (int)n;
    /* The kernel takes entries in order, so what is still there of ours is the last of ours. */
    pthread_mutex_lock(&u->queue_lock);
    back = queue_withdraw(u, request, n, NULL);
    pthread_mutex_unlock(&u->queue_lock);
    park_reaped(&u->park, back);
    uring_flush(ch); /* what is left is others'; some of our count may have been for theirs */
    return back == n ? rc : (int)(n - back);
}

/*
 * Get the leaders out of the kernel: an operation that does nothing but complete. If there is no place for it in the
 * queue, if its completion is reaped by another thread before the leader has gone to sleep, or if the leader sleeps
 * through several, it looks around after its slice. One kick at a time; while one lies unreaped, nobody goes to sleep.
 */
static void kick(struct uring *u)
{
    struct io_uring_sq *sq = &u->ring.sq;
    bool room;

    if (atomic_exchange_explicit(&u->kicked, true, memory_order_acquire))
        return;
    pthread_mutex_lock(&u->queue_lock);
    room = queue_room(u) > 0;
    if (room) {
        struct io_uring_sqe *sqe = &sq->sqes[sq->sqe_tail++ & sq->ring_mask];

        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, 0);
        queue_publish(u, atomic_load_explicit(&u->unclaimed, memory_order_relaxed) + 1);
    } else {
        atomic_store_explicit(&u->kicked, false, memory_order_relaxed);
    }
    pthread_mutex_unlock(&u->queue_lock);
    if (room)
        queue_start(u);
}

/* ---- the completion queue ------------------------------------------------------------------------ */

static unsigned reap_failed(struct uring *u, struct io_request *done[], unsigned max)
{
    unsigned n = 0;

    pthread_mutex_lock(&u->queue_lock);
    for (struct io_request *r; n < max && (r = u->failures.first);) {
        u->failures.first = r->next;
        done[n++] = r;
    }
    if (!u->failures.first)
        u->failures.last = &u->failures.first;
    atomic_fetch_sub_explicit(&u->failed, n, memory_order_relaxed);
    pthread_mutex_unlock(&u->queue_lock);
    return n;
}

static unsigned reap_queue(struct uring *u, struct io_request *done[], unsigned max)
{
    struct io_uring_cq *cq = &u->ring.cq;
    unsigned head;
    unsigned tail;
    unsigned n = 0;

    pthread_mutex_lock(&u->reap_lock);
    head = *cq->khead;
    tail = io_uring_smp_load_acquire(cq->ktail);
    /*
     * What orders the submitter's stores to a request before ours is the way through the kernel. The acquire load says
     * the same in the language: the submitter added the request to this word before it published it.
     */
    park_state(&u->park);
    for (; n < max && head != tail; head++) {
        const struct io_uring_cqe *cqe = &cq->cqes[head & cq->ring_mask];
        struct io_request *r = (struct io_request *)(uintptr_t)cqe->user_data;

        if (r) {
            r->result = cqe->res;
            done[n++] = r;
        } else { /* a kick; release: the next one's completion finds this one's place free */
            io_uring_smp_store_release(cq->khead, head + 1);
            atomic_store_explicit(&u->kicked, false, memory_order_release);
        }
    }
    io_uring_smp_store_release(cq->khead, head);
    pthread_mutex_unlock(&u->reap_lock);
    return n;
}

static unsigned uring_reap(struct io_channel *ch, struct io_request *done[], unsigned max)
{
    struct uring *u = uring_of(ch);
    unsigned n = 0;

    if (atomic_load_explicit(&u->failed, memory_order_acquire))
        n = reap_failed(u, done, max);
    if (n < max && completions(u))
        n += reap_queue(u, done + n, max - n);
    if (n) {
        atomic_fetch_add_explicit(&u->reapings, 1, memory_order_relaxed);
        park_reaped(&u->park, n);
    }
    return n;
}

/* Drop a kick that has been answered and lies first in the queue, so that it wakes nobody else. */
static void drop_kick(struct uring *u)
{
    struct io_uring_cq *cq = &u->ring.cq;
    unsigned head;

    pthread_mutex_lock(&u->reap_lock);
    head = *cq->khead;
    if (head != io_uring_smp_load_acquire(cq->ktail) && !cq->cqes[head & cq->ring_mask].user_data) {
        io_uring_smp_store_release(cq->khead, head + 1);
        atomic_store_explicit(&u->kicked, false, memory_order_release);
    }
    pthread_mutex_unlock(&u->reap_lock);
}

/* ---- waiting ------------------------------------------------------------------------------------- */

static bool settled(struct uring *u, const struct sleep *s)
{
    if (atomic_load_explicit(&u->kicked, memory_order_relaxed) && completions(u))
        drop_kick(u);
    if (completions(u) || atomic_load_explicit(&u->failed, memory_order_relaxed))
        return true;
    if (s->until)
        return (atomic_load_explicit(s->until->word, memory_order_acquire) & s->until->mask) != s->until->equals;
    return park_flight(park_state(&u->park)) == 0 ||
           atomic_load_explicit(&u->reapings, memory_order_relaxed) != s->reapings;
}

/*
 * Completions to sleep through: what the caller would like, but no more than there can be, and only one when
 * others are parked behind us or when that many did not come within the first slice.
 */
static unsigned sleep_through(struct uring *u, const struct sleep *s, uint64_t slice)
{
    uint64_t state = park_state(&u->park);
    unsigned flight = park_flight(state);
    unsigned want = s->want < BATCH_MAX ? s->want : BATCH_MAX;

    if (want <= 1 || flight <= 1 || park_parked(state) || slice > SLICE_FIRST_NS)
        return 1;
    return want < flight ? want : flight;
}

/* A leader's part. 0, -ETIME, an errno, or LOOK_AGAIN: nothing is in flight any more. */
static int sleep_in_kernel(struct uring *u, const struct sleep *s)
{
    uint64_t now = s->began_ns; /* or later, if we were parked first: then the first slice may end that much late */
    uint64_t slice = SLICE_FIRST_NS;
    unsigned tries = 0;

    for (;;) { /* ends at the deadline */
        bool over = settled(u, s);
        uint64_t left = s->deadline_ns > now ? s->deadline_ns - now : 0;
        int rc;

        if (!over && !park_flight(park_state(&u->park)))
            return LOOK_AGAIN;
        if (!over && !left)
            return -ETIME;
        rc = enter(u, over ? 0 : sleep_through(u, s, slice), left < slice ? left : slice);
        if (rc && !refused(rc) && rc != -ETIME && rc != -EINTR) {
            if (over || queue_fail(u, rc) == 0)
                return 0;
            nap(BARRED_NS);
        }
        if (over || settled(u, s))
            return 0;
        now = now_ns();
        if (refused(rc)) {
            if (++tries > REFUSED_MAX)
                return rc;
            nap((uint64_t)REFUSED_NS << (tries - 1));
        } else {
            slice = 2 * slice < SLICE_MAX_NS ? 2 * slice : SLICE_MAX_NS;
        }
    }
}

/* The others' part. 0, -ETIME, an errno, or LOOK_AGAIN. */
static int sleep_parked(struct uring *u, const struct sleep *s)
{
    const _Atomic uint64_t *word = s->until ? s->until->word : NULL;
    uint64_t state;
    uint32_t seq;
    int rc;

    rc = uring_flush((struct io_channel *)(void *)u);
    if (rc)
        return rc;
    state = park_begin(&u->park, word, &seq);
    if (settled(u, s))
        rc = 0;
    else if (!(state & PARK_LEADERS) && park_flight(state))
        rc = LOOK_AGAIN; /* lead */
    else if (now_ns() >= s->deadline_ns)
        rc = -ETIME;
    else {
        bpi_park_sleep(&u->park, word, seq, s->deadline_ns);
        rc = LOOK_AGAIN;
    }
    park_end(&u->park, word);
    return rc;
}

/* timeout_ns 0: start what is queued and look. */
static int look(struct uring *u, const struct sleep *s)
{
    int rc = uring_flush((struct io_channel *)(void *)u);

    if (settled(u, s))
        return 0;
    return rc ? rc : -ETIME;
}

static int uring_wait_until(struct io_channel *ch, unsigned want, uint64_t timeout_ns, const struct io_until *until)
{
    struct uring *u = uring_of(ch);
    struct sleep s = {
        .until = until, .want = want, .reapings = atomic_load_explicit(&u->reapings, memory_order_relaxed)};
    uint64_t place;
    int rc;

    if (timeout_ns == 0)
        return look(u, &s);
    s.began_ns = now_ns();
    s.deadline_ns = timeout_ns < UINT64_MAX - s.began_ns ? s.began_ns + timeout_ns : UINT64_MAX;
    do {
        place = park_lead(&u->park, until ? until->word : NULL);
        if (place) {
            rc = sleep_in_kernel(u, &s);
            park_leave(&u->park, place);
        } else {
            rc = sleep_parked(u, &s);
        }
    } while (rc == LOOK_AGAIN); /* lead if there is a place, before anything else: see io/park.h, "parked wakes" */
    return rc;
}

static int uring_wait(struct io_channel *ch, unsigned want, uint64_t timeout_ns)
{
    return uring_wait_until(ch, want, timeout_ns, NULL);
}

static void uring_announce(struct io_channel *ch, const _Atomic uint64_t *const word[], unsigned n)
{
    struct uring *u = uring_of(ch);

    if (park_announce(&u->park, word, n))
        kick(u);
}

/* A ring is pollable by itself, from any thread. */
static int uring_fd(struct io_channel *ch)
{
    return uring_of(ch)->ring.ring_fd;
}

static int uring_buffer(struct io_channel *ch, unsigned slot, void *at, size_t bytes)
{
    struct uring *u = uring_of(ch);
    struct iovec range = {.iov_base = at, .iov_len = bytes};
    __u64 tag = 0; /* none: a tag would come back as a completion that is nobody's request */
    int rc;

    if (u->table_error)
        return u->table_error;
    if (slot >= u->buffers || slot > UINT16_MAX)
        return -EINVAL;
    rc = io_uring_register_buffers_update_tag(&u->ring, slot, &range, &tag, 1);
    return rc < 0 ? rc : 0;
}

static int uring_file(struct io_channel *ch, unsigned slot, const struct io_file *file)
{
    struct uring *u = uring_of(ch);
    int fd = file ? file->fd : -1;
    int rc;

    if (u->files_error)
        return u->files_error;
    if (slot >= IO_FILES_MAX)
        return -EINVAL;
    rc = io_uring_register_files_update(&u->ring, slot, &fd, 1);
    return rc < 0 ? rc : 0;
}

/* ---- close --------------------------------------------------------------------------------------- */

/* Until nothing is in flight; results are dropped. 0 or -ETIMEDOUT. */
static int drain(struct uring *u, uint64_t deadline_ns)
{
    struct io_channel *ch = (struct io_channel *)(void *)u;
    struct io_request *done[64];
    uint64_t now;
    int rc;

    for (;;) {
        while (uring_reap(ch, done, 64) > 0)
            ;
        now = now_ns();
        if (!park_flight(park_state(&u->park)))
            return 0;
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        rc = enter(u, 1, deadline_ns - now < SLICE_MAX_NS ? deadline_ns - now : SLICE_MAX_NS);
        if (rc && rc != -ETIME && rc != -EINTR)
            nap(BARRED_NS);
    }
}

/*
 * A device that does not answer: nothing in flight on a file can be cancelled, and the kernel will write where the
 * reads were to go whenever it pleases. For direct I/O it holds on to the pages, but a buffered read that a kernel
 * worker does for us copies to the address. So the ring is left open and in place, and the caller is told to leave
 * that memory alone. Closing it would free little, would leave the same danger, and unregistering the buffers
 * could wait for the device for ever on older kernels.
 */
int bpi_uring_close_within(struct io_channel *ch, uint64_t timeout_ns)
{
    struct uring *u = uring_of(ch);
    unsigned n;
    int rc;

    pthread_mutex_lock(&u->queue_lock);
    n = queue_withdraw(u, NULL, 0, NULL); /* never started: nothing to wait for */
    pthread_mutex_unlock(&u->queue_lock);
    park_reaped(&u->park, n);
    rc = drain(u, now_ns() + timeout_ns);
    if (rc)
        return rc;
    if (u->buffers) /* first: what queue_exit leaves registered is charged to RLIMIT_MEMLOCK until some time later */
        io_uring_unregister_buffers(&u->ring);
    io_uring_queue_exit(&u->ring);
    pthread_mutex_destroy(&u->queue_lock);
    pthread_mutex_destroy(&u->reap_lock);
    free(u);
    return 0;
}

static int uring_close(struct io_channel *ch)
{
    return bpi_uring_close_within(ch, CLOSE_NS);
}

const struct io_ops bpi_io_uring = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .flush = uring_flush,
    .reap = uring_reap,
    .wait = uring_wait,
    .wait_until = uring_wait_until,
    .announce = uring_announce,
    .fd = uring_fd,
    .buffer = uring_buffer,
    .file = uring_file,
};
