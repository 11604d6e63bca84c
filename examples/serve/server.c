/* SPDX-License-Identifier: MIT */
/*
 * A server of files through a pool (see serve/server.h).
 */
#include "serve/server.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FILES_SPARE     256u  /* descriptors for everything that is not a client */
#define PINS_PER_THREAD 1024u /* at most; fewer in a small pool */
#define EXTENTS_MIN     32u   /* extents that a pool has per thread at least */
#define ACCEPTS_MAX     64u   /* before signals are looked at again */
#define PAUSE_MS        100   /* no accepting after the system refused a descriptor */
#define CAPS_MAX        16

int64_t serve_clock_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

uint64_t serve_sum(struct serve_server *server, enum serve_count which)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < server->workers; i++)
        sum += atomic_load_explicit(&server->worker[i].count[which], memory_order_relaxed);
    return sum;
}

uint64_t serve_rate(struct serve_server *server)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < server->workers; i++)
        sum += atomic_load_explicit(&server->worker[i].rate, memory_order_relaxed);
    return sum;
}

unsigned serve_clients(struct serve_server *server)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < server->workers; i++)
        sum += atomic_load_explicit(&server->worker[i].clients, memory_order_relaxed);
    return sum;
}

/* ---- opening ---- */

static unsigned cpu_count(void)
{
    cpu_set_t cpus;
    int count;

    if (sched_getaffinity(0, sizeof(cpus), &cpus))
        return 1;
    count = CPU_COUNT(&cpus);
    if (count < 1)
        return 1;
    return count > (int)SERVE_THREADS_MAX ? SERVE_THREADS_MAX : (unsigned)count;
}

static void pool_log(void *context, const char *line)
{
    fprintf(stderr, "%s: %s\n", (const char *)context, line);
}

/* Say what the machine did not give. */
static void report_caps(struct serve_server *server)
{
    struct bp_cap cap[CAPS_MAX];
    int count = server->pool ? bp_pool_caps(server->pool, cap, CAPS_MAX) : 0;

    for (int i = 0; i < count && i < CAPS_MAX; i++) {
        if (cap[i].reason[0])
            fprintf(stderr, "%s: %s: %s: %s%s%s\n", server->app->name, cap[i].name, cap[i].got, cap[i].reason,
                    cap[i].remedy[0] ? "; " : "", cap[i].remedy);
    }
}

static int open_file(struct serve_server *server, const char *path, const struct bp_file_options *how)
{
    struct serve_file *file = &server->files[server->file_count];
    const char *slash = strrchr(path, '/');
    uint64_t bytes = 0;
    int code = bp_file_open(server->pool, path, how, &file->file);

    if (!code) {
        server->file_count++;
        file->path = path;
        file->name = slash ? slash + 1 : path;
        code = bp_file_size(file->file, &bytes);
    }
    if (!code && bytes)
        return 0;
    fprintf(stderr, "%s: cannot serve '%s': %s\n", server->app->name, path,
            !code                 ? "the file is empty"
            : how->error->text[0] ? how->error->text
                                  : bp_strerror(code));
    return -1;
}

static int open_data(struct serve_server *server)
{
    const struct serve_app *app = server->app;
    const struct serve_options *options = &server->options;
    struct bp_error error = {0};
    struct bp_pool_options po = {.size = sizeof(po),
                                 .memory = options->memory,
                                 .huge = options->huge,
                                 .io = options->io,
                                 .log = pool_log,
                                 .log_ctx = (void *)(uintptr_t)app->name,
                                 .error = &error};
    struct bp_file_options fo = {.size = sizeof(fo), .direct = options->direct, .error = &error};
    int code;

    server->extent_bytes = BP_PAGE_SIZE;
    if (options->no_files)
        return 0;
    code = bp_pool_open(&po, &server->pool);

    if (code) {
        fprintf(stderr, "%s: cannot open a pool of %llu bytes: %s\n", app->name, (unsigned long long)options->memory,
                error.text[0] ? error.text : bp_strerror(code));
        return -1;
    }
    fo.extent_bytes = BP_PAGE_SIZE;
    while (fo.extent_bytes < app->extent_bytes_max &&
           (uint64_t)fo.extent_bytes * 2 * EXTENTS_MIN * options->threads <= options->memory)
        fo.extent_bytes *= 2;
    server->extent_bytes = fo.extent_bytes;
    for (unsigned i = 0; i < options->files; i++) {
        if (open_file(server, options->data[i], &fo))
            return -1;
    }
    server->file = server->files[0].file;
    return 0;
}

static int open_workers(struct serve_server *server)
{
    uint64_t pins = server->options.memory / 2 / server->extent_bytes / server->options.threads;
    char label[32];
    int code;

    server->worker = calloc(server->options.threads, sizeof(*server->worker));
    if (!server->worker) {
        fprintf(stderr, "%s: no memory for %u threads\n", server->app->name, server->options.threads);
        return -1;
    }
    pins = pins < 1 ? 1 : pins > PINS_PER_THREAD ? PINS_PER_THREAD : pins;
    for (unsigned i = 0; i < server->options.threads; i++) {
        server->worker[i].server = server;
        server->worker[i].index = i;
        snprintf(label, sizeof(label), "worker %u", i);
        server->workers++;
        code = serve_worker_open(&server->worker[i], label, (unsigned)pins);
        if (code) {
            fprintf(stderr, "%s: cannot open worker %u: %s\n", server->app->name, i, bp_strerror(code));
            return -1;
        }
    }
    return 0;
}

static void allow_files(struct serve_server *server)
{
    size_t wanted = server->options.clients_max + FILES_SPARE + 8u * server->options.threads;
    size_t allowed = serve_files_allow(wanted), spare = wanted - server->options.clients_max;

    if (allowed >= wanted)
        return;
    server->options.clients_max = allowed > spare ? (unsigned)(allowed - spare) : 1;
    fprintf(stderr, "%s: max-clients lowered to %u: %zu open files are allowed (ulimit -n), %zu are needed\n",
            server->app->name, server->options.clients_max, allowed, wanted);
}

/* ---- accepting ---- */

static void welcome(struct serve_server *server, int fd)
{
    struct serve_worker *least = &server->worker[0];
    unsigned clients = serve_clients(server);

    if (clients >= server->options.clients_max) {
        atomic_fetch_add_explicit(&server->rejected, 1, memory_order_relaxed);
        /* If this fails, the client gets the end of the connection and no word why. */
        send(fd, server->app->full_text, strlen(server->app->full_text), MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
        return;
    }
    /* Equal numbers of clients for all; among equals the one whose turn it is. */
    for (unsigned i = 0; i < server->workers; i++) {
        struct serve_worker *worker = &server->worker[(i + server->next_id) % server->workers];

        if (i == 0 || atomic_load_explicit(&worker->clients, memory_order_relaxed) <
                          atomic_load_explicit(&least->clients, memory_order_relaxed))
            least = worker;
    }
    if (serve_worker_adopt(least, fd, ++server->next_id))
        close(fd);
}

/* Accept who waits. false: the system refuses, leave it for a while. */
static bool accept_clients(struct serve_server *server, int listen_fd)
{
    for (unsigned i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0)
            return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        atomic_fetch_add_explicit(&server->accepted, 1, memory_order_relaxed);
        welcome(server, fd);
    }
    return true;
}

/* Accept clients until a signal says stop. */
static void accept_until_signal(struct serve_server *server, int listen_fd, int signal_fd)
{
    struct pollfd watched[2] = {{.fd = signal_fd, .events = POLLIN}, {.fd = listen_fd, .events = POLLIN}};
    struct signalfd_siginfo which;
    bool welcoming = true;

    for (;;) {
        watched[1].fd = welcoming ? listen_fd : -1;
        if (poll(watched, 2, welcoming ? -1 : PAUSE_MS) < 0 && errno != EINTR)
            return;
        if (watched[0].revents && read(signal_fd, &which, sizeof(which)) == (ssize_t)sizeof(which))
            return;
        welcoming = !welcoming || !watched[1].revents || accept_clients(server, listen_fd);
    }
}

/* ---- running and closing ---- */

static int start_workers(struct serve_server *server)
{
    for (unsigned i = 0; i < server->workers; i++) {
        int error = pthread_create(&server->worker[i].thread, NULL, serve_worker_main, &server->worker[i]);

        if (error) {
            fprintf(stderr, "%s: cannot start worker %u: %s\n", server->app->name, i, strerror(error));
            return -1;
        }
        server->running++;
    }
    return 0;
}

/* Everybody is answered what they asked for so far; a second signal cuts that short. */
static void stop_workers(struct serve_server *server, int signal_fd)
{
    struct pollfd watched = {.fd = signal_fd, .events = POLLIN};
    struct signalfd_siginfo which;

    atomic_store_explicit(&server->stopping, true, memory_order_relaxed);
    for (unsigned i = 0; i < server->running; i++)
        serve_worker_wake(&server->worker[i]);
    while (serve_clients(server) && !atomic_load_explicit(&server->broken, memory_order_relaxed)) {
        if (poll(&watched, 1, 10) > 0 && read(signal_fd, &which, sizeof(which)) == (ssize_t)sizeof(which))
            atomic_store_explicit(&server->hurry, true, memory_order_relaxed);
    }
    for (unsigned i = 0; i < server->running; i++)
        pthread_join(server->worker[i].thread, NULL);
}

static int close_data(struct serve_server *server)
{
    struct bp_error error = {0};
    int code = 0;

    for (unsigned i = 0; i < server->workers; i++)
        serve_worker_close(&server->worker[i]);
    free(server->worker);
    for (unsigned i = 0; i < server->file_count && !code; i++)
        code = bp_file_close(server->files[i].file, &error);
    if (!code && server->pool)
        code = bp_pool_close(server->pool, &error);
    if (code)
        fprintf(stderr, "%s: closing: %s\n", server->app->name, error.text[0] ? error.text : bp_strerror(code));
    return code;
}

/* SIGTERM and SIGINT come through a descriptor, in no thread. The descriptor, or -1. */
static int catch_signals(void)
{
    sigset_t wanted;

    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    pthread_sigmask(SIG_BLOCK, &wanted, NULL);
    return signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int serve(struct serve_server *server)
{
    char why[256];
    int listen_fd = -1, signal_fd = catch_signals(), status = 1;

    if (signal_fd < 0) {
        fprintf(stderr, "%s: signalfd: %s\n", server->app->name, strerror(errno));
        return 1;
    }
    if (open_data(server))
        goto out;
    allow_files(server);
    if (open_workers(server) || server->app->ready(server))
        goto out;
    if (serve_listen(server->options.host, server->options.port, &listen_fd, server->where, why, sizeof(why))) {
        fprintf(stderr, "%s: %s\n", server->app->name, why);
        goto out;
    }
    report_caps(server);
    if (!start_workers(server)) {
        printf("listening on %s\n", server->where);
        fflush(stdout);
        accept_until_signal(server, listen_fd, signal_fd);
        status = 0;
    }
    close(listen_fd);
    stop_workers(server, signal_fd);
    if (atomic_load_explicit(&server->broken, memory_order_relaxed))
        status = 1;
out:
    if (server->app->stopped)
        server->app->stopped(server);
    if (close_data(server))
        status = 1;
    close(signal_fd);
    return status;
}

int serve_main(const struct serve_app *app, int argc, char **argv)
{
    struct serve_server server = {.app = app};
    struct serve_options *options = &server.options;

    snprintf(options->host, sizeof(options->host), "127.0.0.1");
    snprintf(options->port, sizeof(options->port), "%s", app->listen_port);
    options->threads = cpu_count();
    options->files_max = app->files_max;
    options->clients_max = 10000;
    options->timeout_s = 60;
    options->client_memory = 256u << 20;
    switch (serve_options_parse(app->name, app->summary, &app->options, argc, argv, options)) {
    case SERVE_HELPED:
        return 0;
    case SERVE_USAGE:
        return 2;
    case SERVE_RUN:
        break;
    }
    server.budget.limit = (size_t)options->client_memory;
    server.started_ms = serve_clock_ms();
    return serve(&server);
}
