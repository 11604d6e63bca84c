/* SPDX-License-Identifier: MIT */
/*
 * The misbehaving back end. Each channel wraps a channel of the back end inside and keeps two lists of what that one
 * has finished: ready to be handed out, and held back. Waiting is done in short slices, since a thread that sleeps
 * inside cannot be told that something held was released; it costs milliseconds at most.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/fault_io.h"

#define SLICE_NS   2000000u
#define PUMP_BATCH 64

struct held {
    struct io_request *request;
    unsigned reaps_left;
    bool until_release;
};

struct fault_channel {
    const struct io_ops *inner;
    struct io_channel *ch;
    pthread_mutex_t lock; /* guards all below; taken before the plan's */
    unsigned depth;
    unsigned flight; /* taken and not yet handed out */
    unsigned inside; /* of these, in the channel inside */
    struct io_request **ready;
    unsigned ready_count;
    struct held *held;
    unsigned held_count;
    _Atomic uint64_t reapings;
    _Atomic int event;          /* our part of the descriptor; -1: nobody has asked for it */
    int epoll;                  /* the inner descriptor and ours in one */
    struct fault_channel *next; /* of all; under plan_lock */
};

static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault_plan plan;
static struct fault_counts counts;
static uint64_t random_state;
static struct fault_channel *channels; /* open ones */

static struct fault_channel *channel_of(struct io_channel *ch)
{
    return (struct fault_channel *)(void *)ch;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the plan; under plan_lock ----------------------------------------------------------------------- */

/* splitmix64 */
static uint64_t random_next(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static bool chance(unsigned of_always)
{
    return of_always && random_next() % FAULT_ALWAYS < of_always;
}

static bool count_down(unsigned *next)
{
    if (!*next)
        return false;
    --*next;
    return true;
}

static bool covers(const struct io_request *r, uint64_t from, uint64_t to)
{
    return r->offset < to && r->offset + r->bytes > from;
}

static int or_else(int error, int usual)
{
    return error ? error : usual;
}

static int32_t plan_result(const struct io_request *r)
{
    uint32_t unit = plan.short_unit ? plan.short_unit : 1;
    int32_t result = r->result;

    if (count_down(&plan.error_next) || chance(plan.error_chance))
        return or_else(plan.error, -EIO);
    if (covers(r, plan.bad_from, plan.bad_to))
        return -EIO;
    if (plan.short_at && result > 0 && (uint32_t)result > plan.short_at)
        result = (int32_t)plan.short_at;
    if (result > 0 && (uint32_t)result > unit && chance(plan.short_chance)) {
        uint32_t units = ((uint32_t)result - 1) / unit; /* whole units that leave something out */

        result = (int32_t)(unit * (1 + (uint32_t)(random_next() % units)));
    }
    return result;
}

struct fault_plan fault_plan_none(const struct io_ops *inner)
{
    return (struct fault_plan){.inner = inner};
}

void fault_io_plan(const struct fault_plan *to)
{
    pthread_mutex_lock(&plan_lock);
    plan = *to;
    memset(&counts, 0, sizeof(counts));
    random_state = to->seed;
    pthread_mutex_unlock(&plan_lock);
}

/* Make the descriptor readable; the next reap sees whether that was right. */
static void poke(struct fault_channel *f)
{
    uint64_t count = 1;
    int event = atomic_load_explicit(&f->event, memory_order_acquire);

    if (event >= 0)
        (void)!write(event, &count, sizeof(count));
}

void fault_io_release(void)
{
    pthread_mutex_lock(&plan_lock);
    plan.hold_from = plan.hold_to = 0;
    for (struct fault_channel *f = channels; f; f = f->next)
        poke(f);
    pthread_mutex_unlock(&plan_lock);
}

struct fault_counts fault_io_counts(void)
{
    struct fault_counts copy;

    pthread_mutex_lock(&plan_lock);
    copy = counts;
    pthread_mutex_unlock(&plan_lock);
    return copy;
}

/* ---- what comes out of the channel inside; under the channel's lock ------------------------------------ */

static void apply_result(struct io_request *r)
{
    int32_t (*decide)(void *, const struct io_request *, int32_t);
    int32_t before = r->result;
    int32_t result;
    void *ctx;

    pthread_mutex_lock(&plan_lock);
    result = plan_result(r);
    decide = plan.result;
    ctx = plan.ctx;
    pthread_mutex_unlock(&plan_lock);
    if (decide)
        result = decide(ctx, r, result);
    r->result = result;
    if (result < before && r->op == IO_READ)
        memset((char *)r->to + (result > 0 ? result : 0), FAULT_POISON, r->bytes - (size_t)(result > 0 ? result : 0));
    pthread_mutex_lock(&plan_lock);
    counts.requests++;
    counts.errors += result < 0;
    counts.shorts += result >= 0 && result < before;
    pthread_mutex_unlock(&plan_lock);
}

/* Decide when the request may be handed out. */
static void arrive(struct fault_channel *f, struct io_request *r)
{
    struct held held = {.request = r};

    apply_result(r);
    pthread_mutex_lock(&plan_lock);
    if (covers(r, plan.hold_from, plan.hold_to)) {
        held.until_release = true;
        counts.held++;
    } else if (plan.late_reaps && chance(plan.late_chance)) {
        held.reaps_left = plan.late_reaps;
        counts.late++;
    }
    pthread_mutex_unlock(&plan_lock);
    if (held.until_release || held.reaps_left)
        f->held[f->held_count++] = held;
    else
        f->ready[f->ready_count++] = r;
}

/* Take over what is done inside, and what need not be held any longer. reaping: this is a call of reap. */
static void pump(struct fault_channel *f, bool reaping)
{
    struct io_request *done[PUMP_BATCH];
    bool holding;
    unsigned kept = 0;
    unsigned n;

    while (f->inside && (n = f->inner->reap(f->ch, done, PUMP_BATCH)) > 0) {
        f->inside -= n;
        for (unsigned i = 0; i < n; i++)
            arrive(f, done[i]);
    }
    pthread_mutex_lock(&plan_lock);
    holding = plan.hold_to > plan.hold_from;
    pthread_mutex_unlock(&plan_lock);
    for (unsigned i = 0; i < f->held_count; i++) {
        struct held *h = &f->held[i];

        if (reaping && h->reaps_left)
            h->reaps_left--;
        if (h->until_release ? holding : h->reaps_left > 0)
            f->held[kept++] = *h;
        else
            f->ready[f->ready_count++] = h->request;
    }
    f->held_count = kept;
}

/* Held back by a number of reaps: the caller should come and reap. */
static bool late(const struct fault_channel *f)
{
    for (unsigned i = 0; i < f->held_count; i++)
        if (!f->held[i].until_release)
            return true;
    return false;
}

/* Our part of the descriptor: readable while a call of reap would get somewhere. */
static void set_event(struct fault_channel *f)
{
    uint64_t count;
    int event = atomic_load_explicit(&f->event, memory_order_acquire);

    if (f->ready_count || late(f))
        poke(f);
    else if (event >= 0)
        (void)!read(event, &count, sizeof(count)); /* EAGAIN: it was not readable */
}

/* ---- the interface --------------------------------------------------------------------------------- */

static int fault_open(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **out)
{
    struct fault_channel *f;
    int rc = 0;

    f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    pthread_mutex_lock(&plan_lock);
    f->inner = plan.inner;
    if (count_down(&plan.open_error_next)) {
        rc = or_else(plan.open_error, -ENOMEM);
        counts.opens_refused++;
    }
    pthread_mutex_unlock(&plan_lock);
    if (rc) {
        free(f);
        return rc;
    }
    f->ready = calloc(depth + 1, sizeof(struct io_request *));
    f->held = calloc(depth + 1, sizeof(*f->held));
    rc = f->ready && f->held ? f->inner->open(depth, buffers, threads, &f->ch) : -ENOMEM;
    if (rc) {
        free(f->ready);
        free(f->held);
        free(f);
        return rc;
    }
    pthread_mutex_init(&f->lock, NULL);
    f->depth = depth;
    atomic_init(&f->event, -1);
    f->epoll = -1;
    pthread_mutex_lock(&plan_lock);
    f->next = channels;
    channels = f;
    pthread_mutex_unlock(&plan_lock);
    *out = (struct io_channel *)(void *)f;
    return 0;
}

static int fault_close(struct io_channel *ch)
{
    struct fault_channel *f = channel_of(ch);
    int rc;

    pthread_mutex_lock(&plan_lock);
    for (struct fault_channel **at = &channels; *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    pthread_mutex_unlock(&plan_lock);
    rc = f->inner->close(f->ch);
    if (f->epoll >= 0) {
        close(f->epoll);
        close(f->event);
    }
    pthread_mutex_destroy(&f->lock);
    free(f->ready);
    free(f->held);
    free(f);
    return rc;
}

static int fault_submit(struct io_channel *ch, struct io_request *const request[], unsigned n, unsigned flags)
{
    struct fault_channel *f = channel_of(ch);
    unsigned most = f->depth;
    int rc = 0;

    pthread_mutex_lock(&plan_lock);
    if (count_down(&plan.submit_busy_next) || chance(plan.submit_busy_chance)) {
        rc = or_else(plan.submit_error, -EBUSY);
        counts.submits_refused++;
    } else if (plan.submit_most && plan.submit_most < n) {
        most = plan.submit_most;
        counts.submits_cut++;
    }
    pthread_mutex_unlock(&plan_lock);
    if (rc)
        return rc;
    pthread_mutex_lock(&f->lock);
    if (n > f->depth - f->flight)
        n = f->depth - f->flight;
    rc = f->inner->submit(f->ch, request, n < most ? n : most, flags);
    if (rc > 0) {
        f->flight += (unsigned)rc;
        f->inside += (unsigned)rc;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static int fault_flush(struct io_channel *ch)
{
    return channel_of(ch)->inner->flush(channel_of(ch)->ch);
}

static unsigned fault_reap(struct io_channel *ch, struct io_request *done[], unsigned max)
{
    struct fault_channel *f = channel_of(ch);
    unsigned n = 0;

    pthread_mutex_lock(&f->lock);
    pump(f, true);
    pthread_mutex_lock(&plan_lock);
    for (; n < max && f->ready_count; n++) {
        unsigned i = plan.shuffle ? (unsigned)(random_next() % f->ready_count) : 0;

        done[n] = f->ready[i];
        memmove(&f->ready[i], &f->ready[i + 1], (--f->ready_count - i) * sizeof(struct io_request *));
    }
    pthread_mutex_unlock(&plan_lock);
    f->flight -= n;
    set_event(f);
    if (n)
        atomic_fetch_add_explicit(&f->reapings, 1, memory_order_release);
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* One look: true if the wait is over. Sets `inside` to whether the channel inside has something to wait for. */
static bool fault_settled(struct fault_channel *f, const struct io_until *until, uint64_t reapings, bool *inside)
{
    bool over;

    pthread_mutex_lock(&f->lock);
    pump(f, false);
    set_event(f);
    *inside = f->inside > 0;
    over = f->ready_count || late(f);
    if (!over && until)
        over = (atomic_load_explicit(until->word, memory_order_acquire) & until->mask) != until->equals;
    else if (!over)
        over = !f->flight || atomic_load_explicit(&f->reapings, memory_order_acquire) != reapings;
    pthread_mutex_unlock(&f->lock);
    return over;
}

static int fault_wait_until(struct io_channel *ch, unsigned want, uint64_t timeout_ns, const struct io_until *until)
{
    struct fault_channel *f = channel_of(ch);
    uint64_t reapings = atomic_load_explicit(&f->reapings, memory_order_acquire);
    uint64_t began_ns = now_ns();
    struct timespec slice = {.tv_nsec = SLICE_NS / 4};
    bool inside;
    int rc = 0;

    pthread_mutex_lock(&plan_lock);
    if (count_down(&plan.wait_error_next))
        rc = or_else(plan.wait_error, -EAGAIN);
    pthread_mutex_unlock(&plan_lock);
    if (rc)
        return rc;
    rc = f->inner->flush(f->ch);
    while (!fault_settled(f, until, reapings, &inside)) {
        uint64_t passed_ns = now_ns() - began_ns;

        if (rc && rc != -ETIME)
            return rc;
        if (passed_ns >= timeout_ns)
            return -ETIME;
        if (inside)
            rc = f->inner->wait(f->ch, want, timeout_ns - passed_ns < SLICE_NS ? timeout_ns - passed_ns : SLICE_NS);
        else
            nanosleep(&slice, NULL);
    }
    return 0;
}

static int fault_wait(struct io_channel *ch, unsigned want, uint64_t timeout_ns)
{
    return fault_wait_until(ch, want, timeout_ns, NULL);
}

static void fault_announce(struct io_channel *ch, const _Atomic uint64_t *const word[], unsigned n)
{
    channel_of(ch)->inner->announce(channel_of(ch)->ch, word, n);
}

/*
 * The inner descriptor and ours. It is readable too when something came out inside that the plan holds back: reap then
 * hands out nothing, and it is quiet again.
 */
static int fault_fd(struct io_channel *ch)
{
    struct fault_channel *f = channel_of(ch);
    struct epoll_event readable = {.events = EPOLLIN};
    int inner = f->inner->fd(f->ch);
    int event;
    int fd;

    if (inner < 0)
        return inner;
    pthread_mutex_lock(&f->lock);
    if (f->epoll < 0) {
        event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        f->epoll = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(f->epoll, EPOLL_CTL_ADD, inner, &readable);
        epoll_ctl(f->epoll, EPOLL_CTL_ADD, event, &readable);
        atomic_store_explicit(&f->event, event, memory_order_release);
        set_event(f);
    }
    fd = f->epoll;
    pthread_mutex_unlock(&f->lock);
    return fd;
}

static int fault_buffer(struct io_channel *ch, unsigned slot, void *at, size_t bytes)
{
    int rc;

    pthread_mutex_lock(&plan_lock);
    rc = plan.buffer_error;
    counts.buffers_refused += rc != 0;
    pthread_mutex_unlock(&plan_lock);
    return rc ? rc : channel_of(ch)->inner->buffer(channel_of(ch)->ch, slot, at, bytes);
}

static int fault_file(struct io_channel *ch, unsigned slot, const struct io_file *file)
{
    int rc;

    pthread_mutex_lock(&plan_lock);
    rc = plan.file_error;
    counts.files_refused += rc != 0;
    pthread_mutex_unlock(&plan_lock);
    return rc ? rc : channel_of(ch)->inner->file(channel_of(ch)->ch, slot, file);
}

const struct io_ops fault_io = {
    .name = "faults",
    .open = fault_open,
    .close = fault_close,
    .submit = fault_submit,
    .flush = fault_flush,
    .reap = fault_reap,
    .wait = fault_wait,
    .wait_until = fault_wait_until,
    .announce = fault_announce,
    .fd = fault_fd,
    .buffer = fault_buffer,
    .file = fault_file,
};
