/* SPDX-License-Identifier: MIT */
/*
 * Scans in the background (see job.h).
 */
#include "scan-server/job.h"

#include "scan-server/json.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS  20u /* lines of progress */
#define PIECES 16u /* of a batch, fewer in a small pool */

struct job {
    struct jobs *jobs;
    struct job_order order;
    struct serve_worker *worker;
    struct serve_note note;
    _Atomic bool cancelled;
    _Atomic uint64_t done; /* bytes */
    uint64_t found;        /* places listed; the thread's own */
    int64_t begun_ms;
    pthread_mutex_t lock; /* of the rest */
    struct text lines;
    bool ended;
    unsigned holders;
    TAILQ_ENTRY(job) link; /* the list of those that wait; under jobs.lock */
};

struct jobs {
    struct serve_server *server;
    unsigned threads, started;
    unsigned pieces;
    pthread_t thread[JOBS_THREADS_MAX];
    struct runner {
        struct jobs *jobs;
        bp_session *session;
    } runner[JOBS_THREADS_MAX];
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t more;
    bool stopping;
    TAILQ_HEAD(, job) list;
    struct jobs_counts counts;
};

static void job_release(struct job *job)
{
    unsigned left;

    pthread_mutex_lock(&job->lock);
    left = --job->holders;
    pthread_mutex_unlock(&job->lock);
    if (left)
        return;
    text_free(&job->lines);
    serve_budget_give(job->lines.budget, sizeof(*job));
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* ---- lines ---- */

static void progress_line(struct job *job, struct text *lines, uint64_t done)
{
    uint64_t of = job->order.to - job->order.from;

    text_printf(lines, "{\"progress\": %.3f, \"bytes\": %llu, \"of\": %llu}\n", of ? (double)done / (double)of : 1.0,
                (unsigned long long)done, (unsigned long long)of);
}

/* Progress lines for each twentieth that lies behind, and the places found go out with them. */
static void tell_progress(struct job *job, unsigned *steps, uint64_t done)
{
    uint64_t of = job->order.to - job->order.from;
    bool news;

    pthread_mutex_lock(&job->lock);
    for (; *steps < STEPS && (double)done * STEPS >= (double)of * (*steps + 1); ++*steps) {
        uint64_t step = (uint64_t)((double)of * (*steps + 1) / STEPS);

        progress_line(job, &job->lines, *steps + 1 == STEPS ? of : step);
    }
    news = text_bytes(&job->lines) || job->lines.failed;
    pthread_mutex_unlock(&job->lock);
    if (news)
        serve_note_post(job->worker, &job->note);
}

static void found_place(void *ctx, uint64_t at)
{
    struct job *job = ctx;

    if (job->found++ >= job->order.found_max)
        return;
    pthread_mutex_lock(&job->lock);
    text_printf(&job->lines, "{\"match\": %llu}\n", (unsigned long long)at);
    pthread_mutex_unlock(&job->lock);
}

static void result_line(struct job *job, struct text *lines)
{
    const struct job_order *order = &job->order;
    uint64_t value = op_result(&order->op);

    text_printf(lines, "{\"op\": \"%s\", \"file\": ", op_name(order->op.kind));
    json_string(lines, order->file->name);
    text_printf(lines, ", \"from\": %llu, \"to\": %llu, ", (unsigned long long)order->from,
                (unsigned long long)order->to);
    switch (order->op.kind) {
    case OP_COUNT:
        text_printf(lines, "\"byte\": %u, \"count\": %llu", order->op.byte, (unsigned long long)value);
        break;
    case OP_SUM:
        text_printf(lines, "\"sum\": %llu, \"hex\": \"%016llx\"", (unsigned long long)value, (unsigned long long)value);
        break;
    case OP_CRC32C:
        text_printf(lines, "\"crc32c\": %llu, \"hex\": \"%08llx\"", (unsigned long long)value,
                    (unsigned long long)value);
        break;
    case OP_GREP:
        text_printf(lines, "\"matches\": %llu, \"listed\": %llu", (unsigned long long)value,
                    (unsigned long long)(job->found < order->found_max ? job->found : order->found_max));
        break;
    case OP_KINDS:
        break;
    }
    text_printf(lines, ", \"ms\": %lld}\n", (long long)(serve_clock_ms() - job->begun_ms));
}

/* What ended it too early, and at which page. */
static void error_line(struct text *lines, const char *name, uint64_t at, const char *why)
{
    text_printf(lines, "{\"error\": \"%s\", \"page\": %llu, \"offset\": %llu, \"text\": ", name,
                (unsigned long long)(at / BP_PAGE_SIZE), (unsigned long long)at);
    json_string(lines, why);
    text_puts(lines, "}\n");
}

static const char *error_name(int code)
{
    const char *name = code < 0 && code > -4096 ? strerrorname_np(-code) : NULL;

    return name ? name : code == BP_CLOSED ? "CLOSED" : "FAILED";
}

/* ---- going through a file ---- */

/* Until the job's end, its client's or the server's; true: all of it was done. */
struct pass {
    struct job *job;
    bp_session *session;
    uint64_t at; /* bytes of the file that are done */
    int code;    /* of what went wrong, BP_EOF: the file has become shorter */
};

/*
 * A batch. What is pinned was read while the file was at least so long, if it is still so long: a page that was read
 * after the file was cut off holds zeroes that were never in it, and must not count.
 */
static int pass_batch(struct pass *pass, const struct bp_piece piece[], unsigned n)
{
    struct job_order *order = &pass->job->order;
    uint64_t bytes, end = (piece[n - 1].page * BP_PAGE_SIZE) + piece[n - 1].bytes;
    int code = bp_file_size(order->file->file, &bytes);

    end = end < order->to ? end : order->to;
    if (code)
        return code;
    if (bytes < end) {
        pass->at = bytes > pass->at ? bytes : pass->at;
        return BP_EOF;
    }
    for (unsigned i = 0; i < n; i++) {
        uint64_t begin = piece[i].page * BP_PAGE_SIZE, skip = pass->at - begin, left = piece[i].bytes - skip;

        left = left < order->to - pass->at ? left : order->to - pass->at;
        op_add(&order->op, (const char *)piece[i].data + skip, left, pass->at);
        pass->at += left;
    }
    return 0;
}

static bool pass_through(struct pass *pass, bp_scan *scan)
{
    struct job *job = pass->job;
    struct bp_piece piece[PIECES];
    unsigned steps = 0, n;

    while (pass->at < job->order.to) {
        if (atomic_load_explicit(&job->cancelled, memory_order_relaxed))
            return false;
        pass->code = bp_scan_next(scan, piece, job->jobs->pieces, &n);
        if (!pass->code)
            pass->code = n ? pass_batch(pass, piece, n) : BP_EOF;
        atomic_store_explicit(&job->done, pass->at - job->order.from, memory_order_relaxed);
        if (pass->code)
            return false;
        tell_progress(job, &steps, pass->at - job->order.from);
    }
    tell_progress(job, &steps, pass->at - job->order.from);
    return true;
}

static bool run(struct job *job, bp_session *session, uint64_t *bytes)
{
    struct job_order *order = &job->order;
    struct pass pass = {.job = job, .session = session, .at = order->from};
    bp_scan *scan = NULL;
    bool whole = order->to == order->from;
    char why[256] = "";

    op_begin(&order->op);
    order->op.found = found_place;
    order->op.ctx = job;
    if (!whole) {
        uint64_t first = order->from / BP_PAGE_SIZE, last = (order->to - 1) / BP_PAGE_SIZE;

        if (order->reread && bp_reread(session, order->file->file, first, last - first + 1))
            whole = false; /* if one is still bad, the scan comes to it and says so */
        pass.code = bp_scan_open(session, order->file->file, first, last, 0, &scan);
    }
    if (!pass.code)
        whole = pass_through(&pass, scan);
    if (pass.code && pass.code != BP_EOF)
        snprintf(why, sizeof(why), "%s", bp_session_error(session));
    if (bp_scan_close(scan))
        whole = false; /* only in a forked child, which there is none of */
    pthread_mutex_lock(&job->lock);
    if (whole)
        result_line(job, &job->lines);
    else if (pass.code == BP_EOF)
        error_line(&job->lines, "TRUNCATED", pass.at, "the file has become shorter");
    else if (pass.code)
        error_line(&job->lines, error_name(pass.code), pass.at, why);
    pthread_mutex_unlock(&job->lock);
    *bytes = pass.at - order->from;
    return whole;
}

static void *runner_main(void *argument)
{
    struct runner *runner = argument;
    struct jobs *jobs = runner->jobs;

    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        struct job *job = TAILQ_FIRST(&jobs->list);
        uint64_t bytes = 0;
        bool whole;

        if (jobs->stopping)
            break;
        if (!job) {
            pthread_cond_wait(&jobs->more, &jobs->lock);
            continue;
        }
        TAILQ_REMOVE(&jobs->list, job, link);
        jobs->counts.waiting--;
        jobs->counts.running++;
        pthread_mutex_unlock(&jobs->lock);

        whole = run(job, runner->session, &bytes);
        pthread_mutex_lock(&jobs->lock);
        jobs->counts.running--;
        jobs->counts.bytes += bytes;
        if (whole)
            jobs->counts.finished++;
        else if (atomic_load_explicit(&job->cancelled, memory_order_relaxed))
            jobs->counts.cancelled++;
        else
            jobs->counts.failed++;
        pthread_mutex_unlock(&jobs->lock);

        /* Counted before it is told: who has read the result finds it among the statistics. */
        pthread_mutex_lock(&job->lock);
        job->ended = true;
        pthread_mutex_unlock(&job->lock);
        serve_note_post(job->worker, &job->note);
        job_release(job);
        pthread_mutex_lock(&jobs->lock);
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

/* ---- the client's side ---- */

struct job *job_start(struct jobs *jobs, struct serve_conn *conn, const struct job_order *order)
{
    struct serve_budget *budget = &jobs->server->budget;
    struct job *job = NULL;
    bool room;

    if (serve_budget_take(budget, sizeof(*job))) {
        job = calloc(1, sizeof(*job));
        if (!job)
            serve_budget_give(budget, sizeof(*job));
    }
    if (!job)
        return NULL;
    job->jobs = jobs;
    job->order = *order;
    job->worker = conn->worker;
    job->note.conn = conn;
    job->begun_ms = serve_clock_ms();
    job->lines.budget = budget;
    job->holders = 2;
    pthread_mutex_init(&job->lock, NULL);
    pthread_mutex_lock(&jobs->lock);
    room = jobs->counts.waiting < JOBS_WAITING_MAX;
    if (room) {
        TAILQ_INSERT_TAIL(&jobs->list, job, link);
        jobs->counts.waiting++;
        pthread_cond_signal(&jobs->more);
    }
    pthread_mutex_unlock(&jobs->lock);
    if (room)
        return job;
    job->holders = 1;
    job_release(job);
    return NULL;
}

bool job_take(struct job *job, struct text *into, size_t most)
{
    size_t count;
    bool more;

    pthread_mutex_lock(&job->lock);
    count = text_bytes(&job->lines) < most ? text_bytes(&job->lines) : most;
    text_add(into, text_at(&job->lines), count);
    text_drop(&job->lines, count);
    into->failed |= job->lines.failed;
    more = !job->ended || text_bytes(&job->lines);
    pthread_mutex_unlock(&job->lock);
    return more;
}

void job_progress(struct job *job, struct text *into)
{
    progress_line(job, into, atomic_load_explicit(&job->done, memory_order_relaxed));
}

void job_drop(struct job *job)
{
    struct jobs *jobs = job->jobs;
    struct job *other;

    atomic_store_explicit(&job->cancelled, true, memory_order_relaxed);
    serve_note_drop(job->worker, &job->note);
    /* If it is still waiting, nobody needs to wait behind it. */
    pthread_mutex_lock(&jobs->lock);
    TAILQ_FOREACH(other, &jobs->list, link)
    {
        if (other == job)
            break;
    }
    if (other) {
        TAILQ_REMOVE(&jobs->list, job, link);
        jobs->counts.waiting--;
        jobs->counts.cancelled++;
    }
    pthread_mutex_unlock(&jobs->lock);
    if (other)
        job_release(job); /* for the thread that will not come */
    job_release(job);
}

/* ---- opening and closing ---- */

void jobs_counts(struct jobs *jobs, struct jobs_counts *into)
{
    pthread_mutex_lock(&jobs->lock);
    *into = jobs->counts;
    pthread_mutex_unlock(&jobs->lock);
}

int jobs_open(struct serve_server *server, unsigned threads, struct jobs **out)
{
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    uint64_t share = server->options.memory / 4 / server->extent_bytes / threads;
    int code = 0;

    *out = jobs;
    if (!jobs) {
        fprintf(stderr, "%s: no memory for scans\n", server->app->name);
        return -1;
    }
    jobs->server = server;
    jobs->threads = threads;
    jobs->pieces = share < 1 ? 1 : share < PIECES ? (unsigned)share : PIECES;
    TAILQ_INIT(&jobs->list);
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->more, NULL);
    for (unsigned i = 0; i < threads && !code; i++) {
        struct bp_session_options options = {.size = sizeof(options)};
        char label[32];

        snprintf(label, sizeof(label), "scan %u", i);
        options.label = label;
        code = bp_session_open(server->pool, &options, &jobs->runner[i].session);
        jobs->runner[i].jobs = jobs;
        if (!code)
            code = -pthread_create(&jobs->thread[i], NULL, runner_main, &jobs->runner[i]);
        jobs->started += !code;
    }
    if (!code)
        return 0;
    fprintf(stderr, "%s: cannot start threads for scans: %s\n", server->app->name, bp_strerror(code));
    return -1;
}

void jobs_close(struct jobs *jobs)
{
    if (!jobs)
        return;
    pthread_mutex_lock(&jobs->lock);
    jobs->stopping = true;
    pthread_cond_broadcast(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
    for (unsigned i = 0; i < jobs->started; i++)
        pthread_join(jobs->thread[i], NULL);
    for (unsigned i = 0; i < jobs->threads; i++) {
        int code = jobs->runner[i].session ? bp_session_close(jobs->runner[i].session) : 0;

        if (code)
            fprintf(stderr, "%s: closing a session: %s\n", jobs->server->app->name, bp_strerror(code));
    }
    pthread_cond_destroy(&jobs->more);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}
