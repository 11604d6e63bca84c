/* SPDX-License-Identifier: MIT */
/*
 * A channel over pread and pwrite, for where io_uring is not to be had.
 *
 * There is nobody but us to do the reading. So whoever waits takes a queued request, its own or another's, and reads
 * it: the plain miss costs one pread and no hand-over between threads. Requests that nobody is going to wait for
 * (IO_BACKGROUND) are read by worker threads, started when they are first needed, with all signals blocked, so that the
 * host's handlers never run on them. If no thread can be had, submit itself reads.
 *
 *   submit --> front (for those who wait) --------> running --> done --> reap
 *          \-> back (for workers, and for those who wait when front is empty) /
 *
 * One lock for everything, never held during a read. Registered buffers there are none.
 *
 * The null device is the same with nothing between submit and done.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"

#define CLOSE_NS    30000000000ull
#define EINTR_MAX   100 /* times that an interrupted read is begun again before it is given up */
#define THREADS_MAX 256u
#define STACK_BYTES (256u << 10) /* address space; a worker touches a page or two */

struct queue {
    struct io_request *first, **last;
    unsigned count;
};

struct psync {
    /* Two channels share no line, nor one that is fetched with it. Guards everything below except `waiters` */
    alignas(128) pthread_mutex_t lock;
    pthread_cond_t changed; /* something is done, queued or announced, or was reaped: for those who wait */
    pthread_cond_t work;    /* for workers */
    struct queue front, back, done;
    unsigned released; /* requests of back that workers may take; the others are held */
    unsigned depth;
    unsigned flight;  /* taken and not yet reaped */
    unsigned running; /* being read now */
    uint64_t reapings;
    int event; /* readable while done is not empty; -1: nobody has asked for it */
    bool stop;
    unsigned threads, threads_max, idle;
    pthread_t *thread;
    /* Threads in cond_timedwait on `changed`, or about to look a last time. Counted before looking: see announce. */
    _Atomic unsigned waiters;
};

static struct psync *psync_of(struct io_channel *ch)
{
    return (struct psync *)(void *)ch;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- queues; under lock ---------------------------------------------------------------------------- */

static void queue_init(struct queue *q)
{
    *q = (struct queue){.last = &q->first};
}

static void push(struct queue *q, struct io_request *r)
{
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
    q->count++;
}

static struct io_request *pop(struct queue *q)
{
    struct io_request *r = q->first;

    if (!r)
        return NULL;
    q->first = r->next;
    if (!q->first)
        q->last = &q->first;
    q->count--;
    return r;
}

/* Those released come before those held. */
static struct io_request *pop_back(struct psync *p)
{
    if (p->released)
        p->released--;
    return pop(&p->back);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static ssize_t call_for(const struct io_request *r)
{
    switch ((enum io_op)r->op) {
    case IO_WRITE:
        return pwrite(r->file->fd, r->to, r->bytes, (off_t)r->offset);
    case IO_SYNC:
        return fdatasync(r->file->fd);
    case IO_READ:
        break;
    }
    return pread(r->file->fd, r->to, r->bytes, (off_t)r->offset);
}

static int32_t do_request(const struct io_request *r)
{
    ssize_t n = -1;

    for (unsigned i = 0; i <= EINTR_MAX; i++) {
        n = call_for(r);
        if (n >= 0 || errno != EINTR)
            break;
    }
    return n < 0 ? -errno : (int32_t)n;
}

static void wake_waiters(struct psync *p)
{
    if (atomic_load_explicit(&p->waiters, memory_order_relaxed)) /* those who count get there under the lock */
        pthread_cond_broadcast(&p->changed);
}

/* Among the finished. Under lock. */
static void finish(struct psync *p, struct io_request *r)
{
    uint64_t one = 1;
    ssize_t n = 0;

    push(&p->done, r);
    if (p->event >= 0 && p->done.count == 1)
        n = write(p->event, &one, sizeof(one)); /* cannot fail: the counter was 0 */
    assert(n >= 0);
    (void)n;
    wake_waiters(p);
}

/* Do one request, which is in no queue, and put it among the finished. Lock held before and after, not meanwhile. */
static void serve(struct psync *p, struct io_request *r)
{
    p->running++;
    pthread_mutex_unlock(&p->lock);
    r->result = do_request(r);
    pthread_mutex_lock(&p->lock);
    p->running--;
    finish(p, r);
}

static void *worker(void *arg)
{
    struct psync *p = arg;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (p->released) {
            serve(p, pop_back(p));
            continue;
        }
        p->idle++;
        pthread_cond_wait(&p->work, &p->lock); /* ends at close at the latest */
        p->idle--;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* One more worker. Under lock. */
static bool start_worker(struct psync *p)
{
    pthread_attr_t attr;
    sigset_t all;
    int rc;

    if (p->threads == p->threads_max || pthread_attr_init(&attr))
        return false;
    sigfillset(&all);
    pthread_attr_setsigmask_np(&attr, &all);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    rc = pthread_create(&p->thread[p->threads], &attr, worker, p);
    if (rc == EINVAL) { /* too small for the thread-locals of the host */
        pthread_attr_t usual;

        if (!pthread_attr_init(&usual)) {
            pthread_attr_setsigmask_np(&usual, &all);
            rc = pthread_create(&p->thread[p->threads], &usual, worker, p);
            pthread_attr_destroy(&usual);
        }
    }
    pthread_attr_destroy(&attr);
    if (rc)
        return false;
    p->threads++;
    return true;
}

/* Let what is held go on. Under lock; reads here and now if there is no worker to do it. */
static void release(struct psync *p)
{
    unsigned more = p->back.count - p->released;

    if (!more)
        return;
    p->released = p->back.count;
    while (p->idle < p->released && p->threads < p->threads_max && p->threads < p->released + p->running)
        if (!start_worker(p))
            break;
    if (more == 1)
        pthread_cond_signal(&p->work);
    else
        pthread_cond_broadcast(&p->work);
    while (!p->threads && p->released)
        serve(p, pop_back(p));
}

/* ---- the interface ------------------------------------------------------------------------------- */

static int cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc)
        return -rc;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return -rc;
}

static int psync_open(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **out)
{
    struct psync *p;
    int rc = -ENOMEM;

    (void)buffers; /* pread knows none */
    if (depth == 0 || depth > IO_DEPTH_MAX)
        return -EINVAL;
    p = aligned_alloc(alignof(struct psync), sizeof(*p));
    if (!p)
        return -ENOMEM;
    memset(p, 0, sizeof(*p));
    p->threads_max = threads < THREADS_MAX ? threads : THREADS_MAX;
    p->thread = calloc(p->threads_max + 1, sizeof(*p->thread)); /* + 1: never of size 0 */
    if (!p->thread)
        goto out;
    rc = cond_init(&p->changed);
    if (rc)
        goto out;
    rc = cond_init(&p->work);
    if (rc) {
        pthread_cond_destroy(&p->changed);
        goto out;
    }
    pthread_mutex_init(&p->lock, NULL); /* cannot fail with default attributes */
    p->depth = depth;
    p->event = -1;
    queue_init(&p->front);
    queue_init(&p->back);
    queue_init(&p->done);
    *out = (struct io_channel *)(void *)p;
out:
    if (rc) {
        free(p->thread);
        free(p);
    }
    return rc;
}

static int psync_submit(struct io_channel *ch, struct io_request *const request[], unsigned n, unsigned flags)
{
    struct psync *p = psync_of(ch);

    pthread_mutex_lock(&p->lock);
    if (n > p->depth - p->flight)
        n = p->depth - p->flight;
    for (unsigned i = 0; i < n; i++) {
        assert(request[i]->offset <= INT64_MAX);
        push(flags & IO_BACKGROUND ? &p->back : &p->front, request[i]);
    }
    p->flight += n;
    if (n)
        wake_waiters(p); /* they can read it */
    if (!(flags & IO_HOLD))
        release(p);
    pthread_mutex_unlock(&p->lock);
    return (int)n;
}

static int null_submit(struct io_channel *ch, struct io_request *const request[], unsigned n, unsigned flags)
{
    struct psync *p = psync_of(ch);

    (void)flags; /* over before anybody could wait */
    pthread_mutex_lock(&p->lock);
    if (n > p->depth - p->flight)
        n = p->depth - p->flight;
    p->flight += n;
    for (unsigned i = 0; i < n; i++) {
        assert(request[i]->file->null_bytes);
        request[i]->result = (int32_t)request[i]->bytes;
        finish(p, request[i]);
    }
    pthread_mutex_unlock(&p->lock);
    return (int)n;
}

static int psync_flush(struct io_channel *ch)
{
    struct psync *p = psync_of(ch);

    pthread_mutex_lock(&p->lock);
    while (p->front.first) /* whoever put it there may never wait for it */
        push(&p->back, pop(&p->front));
    release(p);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static unsigned psync_reap(struct io_channel *ch, struct io_request *done[], unsigned max)
{
    struct psync *p = psync_of(ch);
    uint64_t count;
    ssize_t read_bytes = 0;
    unsigned n = 0;

    pthread_mutex_lock(&p->lock);
    while (n < max && p->done.first)
        done[n++] = pop(&p->done);
    if (n) {
        p->flight -= n;
        p->reapings++;
        if (p->event >= 0 && !p->done.first)
            read_bytes = read(p->event, &count, sizeof(count)); /* cannot fail: it was readable */
        wake_waiters(p);
    }
    pthread_mutex_unlock(&p->lock);
    assert(read_bytes >= 0);
    (void)read_bytes;
    return n;
}

/* Is there reason to return? Under lock, so nobody can announce between this look and the sleep. */
static bool settled(const struct psync *p, const struct io_until *until, uint64_t reapings)
{
    if (p->done.first)
        return true;
    if (until)
        return (atomic_load_explicit(until->word, memory_order_acquire) & until->mask) != until->equals;
    return !p->flight || p->reapings != reapings;
}

/* Sleep until something changes. 0, or -ETIME: the time was over before. Under lock. */
static int sleep_until(struct psync *p, const struct io_until *until, uint64_t reapings, uint64_t deadline_ns)
{
    struct timespec end = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};

    if (now_ns() >= deadline_ns)
        return -ETIME;
    /* acq_rel, and look again after it: pairs with announce */
    atomic_fetch_add_explicit(&p->waiters, 1, memory_order_acq_rel);
    if (!settled(p, until, reapings)) /* at ETIMEDOUT the caller looks once more, and comes back to be told */
        pthread_cond_timedwait(&p->changed, &p->lock, &end);
    atomic_fetch_sub_explicit(&p->waiters, 1, memory_order_relaxed);
    return 0;
}

static int psync_wait_until(struct io_channel *ch, unsigned want, uint64_t timeout_ns, const struct io_until *until)
{
    struct psync *p = psync_of(ch);
    struct io_request *r;
    uint64_t deadline_ns = 0;
    uint64_t reapings;
    uint64_t now;
    int rc = 0;

    (void)want; /* each finished request may be what somebody waits for: hand them out one by one */
    if (timeout_ns) {
        now = now_ns();
        deadline_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    }
    pthread_mutex_lock(&p->lock);
    reapings = p->reapings;
    release(p);
    while (!rc && !settled(p, until, reapings)) {
        if (!timeout_ns) {
            rc = -ETIME;
            break;
        }
        r = pop(&p->front);
        if (!r)
            r = pop_back(p);
        if (r)
            serve(p, r);
        else
            rc = sleep_until(p, until, reapings, deadline_ns);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static int psync_wait(struct io_channel *ch, unsigned want, uint64_t timeout_ns)
{
    return psync_wait_until(ch, want, timeout_ns, NULL);
}

/*
 * Two read-modify-writes of one word have an order: either we see the waiter, or it counted itself after us, and
 * then its look at the word, which comes after that, sees what was stored before the announcement.
 */
static void psync_announce(struct io_channel *ch, const _Atomic uint64_t *const word[], unsigned n)
{
    struct psync *p = psync_of(ch);

    (void)word; /* all are woken and look */
    (void)n;
    if (!atomic_fetch_add_explicit(&p->waiters, 0, memory_order_acq_rel))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static int psync_fd(struct io_channel *ch)
{
    struct psync *p = psync_of(ch);
    int fd;

    pthread_mutex_lock(&p->lock);
    if (p->event < 0) {
        p->event = eventfd(p->done.first ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
        fd = p->event < 0 ? -errno : p->event;
    } else {
        fd = p->event;
    }
    pthread_mutex_unlock(&p->lock);
    return fd;
}

static int psync_buffer(struct io_channel *ch, unsigned slot, void *at, size_t bytes)
{
    (void)ch;
    (void)slot;
    (void)at;
    (void)bytes;
    return -EOPNOTSUPP;
}

static int psync_file(struct io_channel *ch, unsigned slot, const struct io_file *file)
{
    (void)ch;
    (void)slot;
    (void)file;
    return -EOPNOTSUPP;
}

/* Until no read is running. Under lock. 0 or -ETIMEDOUT. */
static int drain(struct psync *p)
{
    uint64_t deadline_ns = now_ns() + CLOSE_NS;
    struct timespec end = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};
    int rc = 0;

    atomic_fetch_add_explicit(&p->waiters, 1, memory_order_relaxed);
    while (p->running && !rc)
        rc = pthread_cond_timedwait(&p->changed, &p->lock, &end);
    atomic_fetch_sub_explicit(&p->waiters, 1, memory_order_relaxed);
    return p->running ? -ETIMEDOUT : 0;
}

/*
 * A worker whose read does not return cannot be stopped. It keeps what it uses: the channel stays allocated, and when
 * the read returns after all, the worker sees that it should stop and ends.
 */
static int psync_close(struct io_channel *ch)
{
    struct psync *p = psync_of(ch);
    int rc;

    pthread_mutex_lock(&p->lock);
    p->stop = true;
    p->released = 0; /* what is queued was never begun: dropped */
    pthread_cond_broadcast(&p->work);
    rc = drain(p);
    pthread_mutex_unlock(&p->lock);
    if (rc)
        return rc;
    for (unsigned i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    if (p->event >= 0)
        close(p->event);
    pthread_cond_destroy(&p->changed);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->thread);
    free(p);
    return 0;
}

const struct io_ops bpi_io_psync = {
    .name = "pread",
    .open = psync_open,
    .close = psync_close,
    .submit = psync_submit,
    .flush = psync_flush,
    .reap = psync_reap,
    .wait = psync_wait,
    .wait_until = psync_wait_until,
    .announce = psync_announce,
    .fd = psync_fd,
    .buffer = psync_buffer,
    .file = psync_file,
};

const struct io_ops bpi_io_null = {
    .name = "null",
    .open = psync_open,
    .close = psync_close,
    .submit = null_submit,
    .flush = psync_flush,
    .reap = psync_reap,
    .wait = psync_wait,
    .wait_until = psync_wait_until,
    .announce = psync_announce,
    .fd = psync_fd,
    .buffer = psync_buffer,
    .file = psync_file,
};
