/* SPDX-License-Identifier: MIT */
/*
 * scan-server: files over HTTP/1.1, and what is in them (see scan.h): options, and the life of a connection.
 */
#include "scan-server/scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS_MAX    64u          /* requests or extents of one client, before others get their turn */
#define EXTENT_BYTES (256u << 10) /* of a miss */
#define WINDOW       8u
#define SCANNING     2u

static struct scan scan = {.window = WINDOW, .scanning = SCANNING}; /* written before there are threads */

static int set_window(struct serve_options *options, void *own, const char *text, char *why, size_t size)
{
    struct scan *into = own;
    uint64_t window;

    (void)options;
    if (serve_parse_number(text, 1, REPLIES_PAGES_MAX, &window)) {
        snprintf(why, size, "a number from 1 to %u", REPLIES_PAGES_MAX);
        return -1;
    }
    into->window = (unsigned)window;
    return 0;
}

static int set_scans(struct serve_options *options, void *own, const char *text, char *why, size_t size)
{
    struct scan *into = own;
    uint64_t scans;

    (void)options;
    if (serve_parse_number(text, 1, JOBS_THREADS_MAX, &scans)) {
        snprintf(why, size, "a number from 1 to %u", JOBS_THREADS_MAX);
        return -1;
    }
    into->scanning = (unsigned)scans;
    return 0;
}

static const struct serve_option options[] = {
    {"window", "N", "extents of a response read ahead of what is sent (default: 8)", set_window},
    {"scans", "N", "requests for /scan worked on at once, each by a thread (default: 2)", set_scans},
};

static int server_ready(struct serve_server *server)
{
    struct scan *mine = server->app->options.own;

    http_prepare();
    for (unsigned i = 0; i < server->file_count; i++) {
        struct scan_file *file = &mine->file[i];

        file->fd = open(server->files[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (file->fd >= 0 && fstat(file->fd, &file->at_start)) {
            close(file->fd); /* no validators then */
            file->fd = -1;
        }
    }
    return jobs_open(server, mine->scanning, &mine->jobs);
}

static void server_stopped(struct serve_server *server)
{
    struct scan *mine = server->app->options.own;

    jobs_close(mine->jobs);
    for (unsigned i = 0; i < SERVE_FILES_MAX; i++) {
        if (mine->file[i].fd > 0) /* 0 where it never came to opening it */
            close(mine->file[i].fd);
    }
}

static void client_opened(struct serve_conn *conn)
{
    (void)conn;
}

static void forget_request(struct client *client)
{
    if (!client->request)
        return;
    free(client->request);
    client->request = NULL;
    serve_budget_give(&client->conn.worker->server->budget, sizeof(*client->request));
}

/* Receive into the request's input, which is all read. false: nothing now, or the end. */
static bool read_more(struct client *client)
{
    struct serve_worker *worker = client->conn.worker;
    size_t count = serve_receive(&client->conn, HTTP_INPUT_BYTES);

    if (!count) {
        client->conn.partial = client->request && client->request->begun;
        return false;
    }
    if (!client->request) {
        if (serve_budget_take(&worker->server->budget, sizeof(*client->request)))
            client->request = malloc(sizeof(*client->request));
        if (!client->request) {
            serve_counted(worker, SERVE_ENDED_MEMORY, 1);
            serve_end(&client->conn);
            return false;
        }
        http_begin(client->request);
    }
    memcpy(client->request->input, worker->scratch, count);
    client->request->input_at = 0;
    client->request->input_end = (uint32_t)count;
    return true;
}

static enum serve_step client_step(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;
    unsigned status = 0;

    for (unsigned steps = 0; steps < STEPS_MAX;) {
        if (conn->ending != ENDING_NO)
            return STEP_IDLE;
        if (!replies_room(&conn->out) || conn->out.pages >= scan_of(client)->window)
            return STEP_FULL;
        if (client->job)
            return aggregate_step(client);
        if (client->map)
            return map_step(client);
        if (data_follows(client)) {
            data_step(client);
            steps++;
            continue;
        }
        if (client->request && client->request->done)
            http_begin(client->request);
        switch (client->request ? http_next(client->request, &status) : HTTP_MORE) {
        case HTTP_REQUEST_READ:
            scan_respond(client);
            steps++;
            break;
        case HTTP_MORE:
            if (!read_more(client))
                return STEP_IDLE;
            break;
        case HTTP_WRONG:
            scan_refuse(client, status);
            return STEP_IDLE;
        }
    }
    return STEP_MORE;
}

/* What was promised cannot be kept: the client sees a body that ends too early, and no bytes that are not the file's.
 */
static bool client_failed(struct serve_conn *conn, uint64_t page, int code, char *instead, size_t size)
{
    (void)page;
    (void)code;
    (void)instead;
    (void)size;
    serve_counted(conn->worker, SERVE_ERRORS, 1);
    return false;
}

static void client_idle(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;

    if (client->request && !client->job && !client->map && (!client->request->begun || client->request->done) &&
        client->request->input_at == client->request->input_end)
        forget_request(client);
}

static void client_closed(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;

    if (client->job)
        job_drop(client->job);
    map_forget(client);
    data_forget(client);
    forget_request(client);
}

int main(int argc, char **argv)
{
    static const struct serve_app app = {
        .name = "scan-server",
        .summary =
            "Serves FILE over HTTP/1.1, read through a pool of SIZE bytes: GET /data, with Range; /scan, which\n"
            "counts, sums, checks or searches; /stats, /metrics, /map; and / shows it all. With several --data:\n"
            "/data/NAME or /data/N, from 0 on.",
        .listen_port = "8080",
        .options = {options, sizeof(options) / sizeof(options[0]), &scan},
        .files_max = SERVE_FILES_MAX,
        .extent_bytes_max = EXTENT_BYTES,
        .conn_bytes = sizeof(struct client),
        .full_text = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        .whole_pages = false,
        .ready = server_ready,
        .stopped = server_stopped,
        .opened = client_opened,
        .step = client_step,
        .failed = client_failed,
        .idle = client_idle,
        .closed = client_closed,
    };

    return serve_main(&app, argc, argv);
}
