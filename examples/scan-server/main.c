/* SPDX-License-Identifier: MIT */
/*
 * scan-server: ranges of a file over HTTP/1.1 (see scan.h).
 *
 * A response's body is queued extent by extent, a window of them at once, so that the device works ahead of
 * the client; what is sent is sent from the pool's own memory.
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

static struct scan scan = {.window = WINDOW, .stat_fd = -1}; /* written before there are threads */

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

static const struct serve_option options[] = {
    {"window", "N", "extents of a response read ahead of what is sent (default: 8)", set_window},
};

static int server_ready(struct serve_server *server)
{
    struct scan *mine = server->app->options.own;

    http_prepare();
    mine->stat_fd = open(server->options.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (mine->stat_fd < 0 || !fstat(mine->stat_fd, &mine->at_start))
        return 0;
    close(mine->stat_fd); /* no validators then */
    mine->stat_fd = -1;
    return 0;
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

/* Queue the next piece of the body, up to where an extent ends. */
static void queue_extent(struct client *client)
{
    uint64_t extent_bytes = client->conn.worker->server->extent_bytes;
    uint64_t end = (client->body_at / extent_bytes + 1) * extent_bytes;
    struct reply_page piece = {.page = client->body_at / BP_PAGE_SIZE, .skip = client->body_at % BP_PAGE_SIZE};

    if (end > client->body_end)
        end = client->body_end;
    piece.bytes = (uint32_t)(end - client->body_at);
    client->body_at = end;
    replies_page(&client->conn, &piece);
    if (client->last && client->body_at == client->body_end)
        serve_end_after_flush(&client->conn);
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
        if (client->body_at < client->body_end) {
            queue_extent(client);
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

    if (client->request && (!client->request->begun || client->request->done) &&
        client->request->input_at == client->request->input_end)
        forget_request(client);
}

static void client_closed(struct serve_conn *conn)
{
    forget_request((struct client *)conn);
}

int main(int argc, char **argv)
{
    static const struct serve_app app = {
        .name = "scan-server",
        .summary = "Serves FILE over HTTP/1.1, read through a pool of SIZE bytes: GET /data, with Range; GET /stats.",
        .listen_port = "8080",
        .options = {options, sizeof(options) / sizeof(options[0]), &scan},
        .extent_bytes_max = EXTENT_BYTES,
        .conn_bytes = sizeof(struct client),
        .full_text = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        .whole_pages = false,
        .ready = server_ready,
        .opened = client_opened,
        .step = client_step,
        .failed = client_failed,
        .idle = client_idle,
        .closed = client_closed,
    };

    return serve_main(&app, argc, argv);
}
