/* SPDX-License-Identifier: MIT */
/*
 * What a client is answered (see scan.h).
 */
#include "scan-server/range.h"
#include "scan-server/scan.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define DATE_BYTES 32u

static void http_date(time_t when, char *text)
{
    struct tm parts;

    if (!gmtime_r(&when, &parts) || !strftime(text, DATE_BYTES, "%a, %d %b %Y %H:%M:%S GMT", &parts))
        text[0] = '\0';
}

/* Status line and what every response has. More lines may follow, and then an empty one. */
static void begin(struct client *client, unsigned status)
{
    char date[DATE_BYTES];

    serve_counted(client->conn.worker, SERVE_COMMANDS, 1);
    if (status >= 400)
        serve_counted(client->conn.worker, SERVE_ERRORS, 1);
    http_date(time(NULL), date);
    replies_printf(&client->conn, "HTTP/1.1 %u %s\r\nServer: scan-server\r\nDate: %s\r\n%s", status,
                   http_status_str((enum http_status)status), date, client->last ? "Connection: close\r\n" : "");
}

static void end(struct client *client)
{
    if (client->last && client->body_at == client->body_end)
        serve_end_after_flush(&client->conn);
}

static bool is_head(const struct client *client)
{
    return client->request->parser.method == HTTP_HEAD;
}

/* An error, with a line of text as its body. `more`: header lines. */
static void error_response(struct client *client, unsigned status, const char *more)
{
    const char *word = http_status_str((enum http_status)status);

    begin(client, status);
    replies_printf(&client->conn, "%sContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", more, strlen(word) + 1);
    if (!is_head(client))
        replies_printf(&client->conn, "%s\n", word);
    end(client);
}

void scan_refuse(struct client *client, unsigned status)
{
    client->last = true;
    error_response(client, status, "");
}

/* ---- /stats ---- */

static void stats_response(struct client *client)
{
    struct text json = {.budget = &client->conn.worker->server->budget};

    scan_stats(client->conn.worker->server, &json);
    if (json.failed) {
        error_response(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "");
    } else {
        begin(client, HTTP_STATUS_OK);
        replies_printf(&client->conn,
                       "Content-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: %zu\r\n\r\n",
                       text_bytes(&json));
        if (!is_head(client))
            replies_text(&client->conn, text_at(&json), text_bytes(&json));
        end(client);
    }
    text_free(&json);
}

/* ---- /data ---- */

/* Validators: what the file is known by. */
struct validators {
    char etag[64];
    char modified[DATE_BYTES];
};

/*
 * The file was opened for good, but others may write it, and then what is cached and what is read anew are
 * not of one age. A file that has changed since the start therefore has no validators any more: false.
 */
static bool file_validators(struct client *client, uint64_t bytes, struct validators *into)
{
    const struct scan *scan = scan_of(client);
    const struct stat *start = &scan->at_start;
    struct stat now;

    if (scan->stat_fd < 0 || fstat(scan->stat_fd, &now) || now.st_size != start->st_size ||
        now.st_mtim.tv_sec != start->st_mtim.tv_sec || now.st_mtim.tv_nsec != start->st_mtim.tv_nsec)
        return false;
    snprintf(into->etag, sizeof(into->etag), "\"%llx-%llx.%lx-%llx\"", (unsigned long long)bytes,
             (unsigned long long)start->st_mtim.tv_sec, (unsigned long)start->st_mtim.tv_nsec,
             (unsigned long long)start->st_ino);
    http_date(start->st_mtim.tv_sec, into->modified);
    return true;
}

/* Is the range to be looked at? Not if it hangs on a file that is another one by now. */
static bool range_holds(const struct http_request *request, const struct validators *validators)
{
    const char *wanted = http_value(request, FIELD_IF_RANGE);

    if (!request->value[FIELD_IF_RANGE].times)
        return true;
    return wanted && validators && (!strcmp(wanted, validators->etag) || !strcmp(wanted, validators->modified));
}

/* If-None-Match: does the client have it? A list of tags, or '*'; weak comparison. */
static bool client_has_it(const struct http_request *request, const struct validators *validators)
{
    const char *tags = http_value(request, FIELD_IF_NONE_MATCH);

    return tags && validators && (!strcmp(tags, "*") || strstr(tags, validators->etag));
}

static void file_lines(struct client *client, const struct validators *validators)
{
    if (validators)
        replies_printf(&client->conn, "ETag: %s\r\nLast-Modified: %s\r\n", validators->etag, validators->modified);
    replies_puts(&client->conn, "Accept-Ranges: bytes\r\n");
}

static void data_response(struct client *client)
{
    const struct http_request *request = client->request;
    struct validators known, *validators = NULL;
    uint64_t bytes, first = 0, last = 0;
    enum range range = RANGE_ALL;
    char line[64];

    if (bp_file_size(client->conn.worker->file, &bytes)) {
        error_response(client, HTTP_STATUS_INTERNAL_SERVER_ERROR, "");
        return;
    }
    if (file_validators(client, bytes, &known))
        validators = &known;
    if (client_has_it(request, validators)) {
        begin(client, HTTP_STATUS_NOT_MODIFIED);
        file_lines(client, validators);
        replies_puts(&client->conn, "\r\n");
        end(client);
        return;
    }
    /* A range has a meaning for GET only. */
    if (!is_head(client) && range_holds(request, validators))
        range = range_parse(http_value(request, FIELD_RANGE), bytes, &first, &last);
    if (range == RANGE_NONE) {
        snprintf(line, sizeof(line), "Content-Range: bytes */%llu\r\n", (unsigned long long)bytes);
        error_response(client, HTTP_STATUS_RANGE_NOT_SATISFIABLE, line);
        return;
    }
    if (range == RANGE_ALL) {
        first = 0;
        last = bytes - 1; /* wraps for an empty file: no bytes */
    }
    begin(client, range == RANGE_PART ? HTTP_STATUS_PARTIAL_CONTENT : HTTP_STATUS_OK);
    file_lines(client, validators);
    if (range == RANGE_PART)
        replies_printf(&client->conn, "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)first,
                       (unsigned long long)last, (unsigned long long)bytes);
    replies_printf(&client->conn, "Content-Type: application/octet-stream\r\nContent-Length: %llu\r\n\r\n",
                   (unsigned long long)(last + 1 - first));
    if (!is_head(client)) {
        client->body_at = first;
        client->body_end = last + 1;
    }
    end(client);
}

/* ---- which ---- */

static bool path_is(const char *url, const char *path)
{
    size_t length = strcspn(url, "?#");

    return length == strlen(path) && !memcmp(url, path, length);
}

void scan_respond(struct client *client)
{
    struct http_request *request = client->request;
    unsigned method = request->parser.method;
    const char *url = request->url;

    client->last = !request->keep_alive || request->parser.upgrade;
    if (request->url_bytes >= HTTP_URL_BYTES) {
        scan_refuse(client, HTTP_STATUS_URI_TOO_LONG);
        return;
    }
    request->url[request->url_bytes] = '\0';
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (request->value[i].bytes < HTTP_VALUE_BYTES)
            request->value[i].text[request->value[i].bytes] = '\0';
    }
    if (!strncasecmp(url, "http://", 7)) { /* absolute form: the host is of no interest */
        url = strchr(url + 7, '/');
        url = url ? url : "";
    }
    if (!path_is(url, "/data") && !path_is(url, "/stats"))
        error_response(client, HTTP_STATUS_NOT_FOUND, "");
    else if (method != HTTP_GET && method != HTTP_HEAD)
        error_response(client, HTTP_STATUS_METHOD_NOT_ALLOWED, "Allow: GET, HEAD\r\n");
    else if (path_is(url, "/data"))
        data_response(client);
    else
        stats_response(client);
}
