/* SPDX-License-Identifier: MIT */
/*
 * Which response a request gets, and what all of them have (see scan.h).
 */
#include "scan-server/condition.h"
#include "scan-server/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void respond_begin(struct client *client, unsigned status)
{
    char date[HTTP_DATE_BYTES];

    serve_counted(client->conn.worker, SERVE_COMMANDS, 1);
    if (status >= 400)
        serve_counted(client->conn.worker, SERVE_ERRORS, 1);
    http_date(time(NULL), date);
    replies_printf(&client->conn, "HTTP/1.1 %u %s\r\nServer: scan-server\r\nDate: %s\r\n%s", status,
                   http_status_str((enum http_status)status), date, client->last ? "Connection: close\r\n" : "");
}

void respond_end(struct client *client)
{
    if (client->last && !data_follows(client) && !client->job && !client->map)
        serve_end_after_flush(&client->conn);
}

bool respond_is_head(const struct client *client)
{
    return client->request->parser.method == HTTP_HEAD;
}

void respond_error(struct client *client, unsigned status, const char *lines, const char *text)
{
    if (!text)
        text = http_status_str((enum http_status)status);
    respond_begin(client, status);
    replies_printf(&client->conn, "%sContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", lines, strlen(text) + 1);
    if (!respond_is_head(client))
        replies_printf(&client->conn, "%s\n", text);
    respond_end(client);
}

void scan_refuse(struct client *client, unsigned status)
{
    client->last = true;
    respond_error(client, status, "", NULL);
}

void respond_text(struct client *client, const char *type, const char *bytes, size_t count)
{
    respond_begin(client, HTTP_STATUS_OK);
    replies_printf(&client->conn, "Content-Type: %s\r\nCache-Control: no-store\r\nContent-Length: %zu\r\n\r\n", type,
                   count);
    if (!respond_is_head(client))
        replies_text(&client->conn, bytes, count);
    respond_end(client);
}

const struct serve_file *respond_file(struct client *client, const struct query_bytes *name)
{
    const struct serve_server *server = server_of(client);
    uint64_t number;

    if (!name)
        return &server->files[0];
    for (unsigned i = 0; i < server->file_count; i++) {
        if (strlen(server->files[i].name) == name->count && !memcmp(server->files[i].name, name->at, name->count))
            return &server->files[i];
    }
    if (strlen(name->at) == name->count && !serve_parse_number(name->at, 0, server->file_count - 1, &number))
        return &server->files[number];
    return NULL;
}

static void stats_respond(struct client *client, void (*write)(struct serve_server *, struct text *), const char *type)
{
    struct text text = {.budget = &server_of(client)->budget};

    write(server_of(client), &text);
    if (text.failed)
        respond_error(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "", NULL);
    else
        respond_text(client, type, text_at(&text), text_bytes(&text));
    text_free(&text);
}

/* /data is the first file, /data/NAME any. */
static void data_path(struct client *client, const struct query_bytes *path)
{
    struct query_bytes name = {.at = path->at + 6, .count = path->count - 6};
    const struct serve_file *file = respond_file(client, path->at[5] ? &name : NULL);

    if (file)
        data_respond(client, file);
    else
        respond_error(client, HTTP_STATUS_NOT_FOUND, "", NULL);
}

static void go(struct client *client, const struct query *query)
{
    const char *path = query->path.at;

    if (strlen(path) != query->path.count)
        respond_error(client, HTTP_STATUS_NOT_FOUND, "", NULL);
    else if (!strcmp(path, "/data") || !strncmp(path, "/data/", 6))
        data_path(client, &query->path);
    else if (!strcmp(path, "/scan"))
        aggregate_respond(client, query);
    else if (!strcmp(path, "/stats"))
        stats_respond(client, stats_json, "application/json");
    else if (!strcmp(path, "/metrics"))
        stats_respond(client, stats_metrics, "text/plain; version=0.0.4; charset=utf-8");
    else if (!strcmp(path, "/slabs"))
        stats_respond(client, stats_slabs, "application/json");
    else if (!strcmp(path, "/map"))
        map_respond(client, query);
    else if (!strcmp(path, "/"))
        respond_text(client, "text/html; charset=utf-8", (const char *)page_html, page_html_bytes);
    else
        respond_error(client, HTTP_STATUS_NOT_FOUND, "", NULL);
}

void scan_respond(struct client *client)
{
    struct http_request *request = client->request;
    unsigned method = request->parser.method;
    struct query query;

    client->last = !request->keep_alive || request->parser.upgrade;
    if (request->url_bytes >= HTTP_URL_BYTES) {
        scan_refuse(client, HTTP_STATUS_URI_TOO_LONG);
        return;
    }
    request->url[request->url_bytes] = '\0';
    if (!query_parse(request->url, &query))
        respond_error(client, HTTP_STATUS_BAD_REQUEST, "", "the URL is malformed");
    else if (method != HTTP_GET && method != HTTP_HEAD)
        respond_error(client, HTTP_STATUS_METHOD_NOT_ALLOWED, "Allow: GET, HEAD\r\n", NULL);
    else
        go(client, &query);
}
