/* SPDX-License-Identifier: MIT */
/*
 * point-server: pages of a file as values of a Redis server (see point.h).
 */
#include "point-server/point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMANDS_MAX 512u /* of one client, before others get their turn */

static struct point point = {.value_bytes = BP_PAGE_SIZE, .sync = KV_SYNC_GROUP}; /* written by the command line only */

static int set_value_bytes(struct serve_options *options, void *own, const char *text, char *why, size_t size)
{
    struct point *into = own;
    uint64_t bytes;

    (void)options;
    if (serve_parse_number(text, 1, BP_PAGE_SIZE, &bytes)) {
        snprintf(why, size, "a number from 1 to %u", BP_PAGE_SIZE);
        return -1;
    }
    into->value_bytes = (unsigned)bytes;
    return 0;
}

static int set_kv(struct serve_options *options, void *own, const char *text, char *why, size_t size)
{
    struct point *into = own;

    if (!*text) {
        snprintf(why, size, "a directory");
        return -1;
    }
    options->no_files = true;
    into->kv_dir = text;
    return 0;
}

static int set_sync(struct serve_options *options, void *own, const char *text, char *why, size_t size)
{
    static const char *const name[] = {"always", "group", "none"};
    struct point *into = own;

    (void)options;
    for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        if (!strcmp(text, name[i])) {
            into->sync = (enum kv_sync)i;
            return 0;
        }
    }
    snprintf(why, size, "always, group or none");
    return -1;
}

static const struct serve_option options[] = {
    {"kv", "DIR", "instead of --data: serve this store, which is made if there is none", set_kv},
    {"sync", "HOW", "with --kv, before a write is answered: always, group (default): it is durable; none", set_sync},
    {"value-bytes", "N", "bytes of a page that are its value, from the front (default: 4096)", set_value_bytes},
};

static int client_ready(struct serve_server *server)
{
    struct point *mine = server->app->options.own;

    if (mine->kv_dir)
        return point_store_open(server);
    mine->head_bytes = (unsigned)snprintf(mine->head, sizeof(mine->head), "$%u\r\n", mine->value_bytes);
    return 0;
}

static void client_opened(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;

    client->parser.budget = &conn->worker->server->budget;
}

/* More bytes, or the end of what can be done for now. */
static bool read_more(struct client *client)
{
    size_t count = serve_receive(&client->conn, REQUEST_FEED_MAX);

    if (!count) {
        client->conn.partial = parser_partial(&client->parser);
        return false;
    }
    if (parser_feed(&client->parser, client->conn.worker->scratch, count))
        return true;
    serve_counted(client->conn.worker, SERVE_ENDED_MEMORY, 1);
    serve_end(&client->conn);
    return false;
}

static enum serve_step client_step(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;

    for (unsigned commands = 0; commands < COMMANDS_MAX;) {
        if (conn->ending != ENDING_NO)
            return STEP_IDLE;
        if (!replies_room(&conn->out))
            return STEP_FULL;
        if (client->running) {
            point_run(client, &client->parser.request);
            continue;
        }
        switch (parser_next(&client->parser)) {
        case PARSED_REQUEST:
            commands++;
            point_run(client, &client->parser.request);
            break;
        case PARSED_NONE:
            if (!read_more(client))
                return STEP_IDLE;
            break;
        case PARSED_ERROR:
            point_error_f(client, "ERR %s", client->parser.error);
            serve_end_after_flush(conn);
            return STEP_IDLE;
        case PARSED_MEMORY:
            serve_counted(conn->worker, SERVE_ENDED_MEMORY, 1);
            serve_end(conn);
            return STEP_IDLE;
        }
    }
    return STEP_MORE;
}

static void client_idle(struct serve_conn *conn)
{
    parser_trim(&((struct client *)conn)->parser);
}

/* CLIENT LIST of another thread may be looking at the name. */
static void client_closed(struct serve_conn *conn)
{
    struct client *client = (struct client *)conn;
    char *name;

    pthread_mutex_lock(&conn->worker->lock);
    name = client->name;
    client->name = NULL;
    pthread_mutex_unlock(&conn->worker->lock);
    free(name);
    parser_free(&client->parser);
}

int main(int argc, char **argv)
{
    static const struct serve_app app = {
        .name = "point-server",
        .summary = "Serves the 4 KiB pages of FILE as values of a Redis server (RESP2), read through a pool of SIZE\n"
                   "bytes. A key is a page number in decimal, with any prefix up to a colon: 42, key:000000000042.",
        .listen_port = "6380",
        .options = {options, sizeof(options) / sizeof(options[0]), &point},
        .files_max = 1,
        .extent_bytes_max = BP_PAGE_SIZE,
        .conn_bytes = sizeof(struct client),
        .full_text = "-ERR max number of clients reached\r\n",
        .whole_pages = true,
        .ready = client_ready,
        .opened = client_opened,
        .step = client_step,
        .settle = point_store_settle,
        .stopped = point_store_close,
        .failed = point_failed,
        .idle = client_idle,
        .closed = client_closed,
    };

    return serve_main(&app, argc, argv);
}
