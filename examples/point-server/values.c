/* SPDX-License-Identifier: MIT */
/*
 * Commands that look at pages (see point.h).
 *
 * How long a value is follows from the size of the file alone, so a reply's head is known before its page is
 * read, and EXISTS, STRLEN and DBSIZE read nothing.
 */
#include "point-server/point.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char absent[] = "$-1\r\n";
static const char empty[] = "$0\r\n\r\n";

/* The page that a key names: digits after the last colon. false: it names none. */
static bool key_page(const char *key, uint32_t length, uint64_t *page)
{
    const char *colon = memrchr(key, ':', length), *end = key + length;
    const char *at = colon ? colon + 1 : key;
    uint64_t number = 0;

    if (at == end)
        return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return false;
        number = number * 10 + (unsigned)(*at - '0');
        if (number >= BP_PAGE_MAX)
            return false;
    }
    *page = number;
    return true;
}

/* Bytes of a key's value; 0: there is no such key. */
static uint32_t value_length(struct client *client, const char *key, uint32_t length, uint64_t *page)
{
    struct serve_server *server = client->conn.worker->server;
    size_t bytes = 0;
    uint64_t size;

    if (key_page(key, length, page)) {
        bytes = bp_page_file_bytes(server->file, *page);
        /* Perhaps the file has grown. */
        if (!bytes && !bp_file_size(server->file, &size))
            bytes = bp_page_file_bytes(server->file, *page);
    }
    serve_counted(client->conn.worker, bytes ? SERVE_FOUND : SERVE_ABSENT, 1);
    return bytes < point_of(client)->value_bytes ? (uint32_t)bytes : point_of(client)->value_bytes;
}

/* Bytes of a page, as one bulk string. */
static void reply_value(struct client *client, uint64_t page, uint32_t skip, uint32_t length)
{
    const struct point *point = point_of(client);
    struct reply_page reply = {
        .file = client->conn.worker->server->file, .page = page, .skip = skip, .bytes = length, .line_end = true};
    char head[16];

    if (length == point->value_bytes) {
        reply.head = point->head;
        reply.head_bytes = point->head_bytes;
    } else {
        reply.head_bytes = (uint32_t)snprintf(head, sizeof(head), "$%u\r\n", length);
        reply.head = head;
    }
    replies_page(&client->conn, &reply);
}

static void reply_key(struct client *client, const struct request *request, uint32_t arg)
{
    uint64_t page;
    uint32_t length = value_length(client, request_arg(request, arg), request_length(request, arg), &page);

    if (length)
        reply_value(client, page, 0, length);
    else
        replies_text(&client->conn, absent, sizeof(absent) - 1);
}

enum ran point_get(struct client *client, const struct request *request)
{
    reply_key(client, request, 1);
    return RAN;
}

enum ran point_mget(struct client *client, const struct request *request)
{
    if (client->next_arg == 0) {
        replies_printf(&client->conn, "*%u\r\n", request->count - 1);
        client->next_arg = 1;
    }
    for (; client->next_arg < request->count; client->next_arg++) {
        if (client->conn.ending != ENDING_NO)
            return RAN;
        if (!replies_room(&client->conn.out))
            return RAN_ON;
        reply_key(client, request, client->next_arg);
    }
    return RAN;
}

enum ran point_exists(struct client *client, const struct request *request)
{
    uint32_t count = 0;
    uint64_t page;

    for (uint32_t i = 1; i < request->count; i++)
        count += value_length(client, request_arg(request, i), request_length(request, i), &page) != 0;
    replies_printf(&client->conn, ":%u\r\n", count);
    return RAN;
}

enum ran point_strlen(struct client *client, const struct request *request)
{
    uint64_t page;

    replies_printf(&client->conn, ":%u\r\n",
                   value_length(client, request_arg(request, 1), request_length(request, 1), &page));
    return RAN;
}

/* Negative positions count from the end of the value; before its first byte is its first byte, as Redis has it. */
static int64_t from_end(int64_t position, int64_t length)
{
    if (position >= 0)
        return position;
    return position < -length ? 0 : position + length;
}

bool point_range(int64_t length, int64_t *start, int64_t *end)
{
    bool crossed = *start < 0 && *end < 0 && *start > *end;

    *start = from_end(*start, length);
    *end = from_end(*end, length);
    if (*end >= length)
        *end = length - 1;
    return !crossed && *start <= *end;
}

enum ran point_getrange(struct client *client, const struct request *request)
{
    int64_t start, end, length;
    uint64_t page;

    if (!point_integer(request_arg(request, 2), request_length(request, 2), &start) ||
        !point_integer(request_arg(request, 3), request_length(request, 3), &end)) {
        point_error(client, "ERR value is not an integer or out of range");
        return RAN;
    }
    length = value_length(client, request_arg(request, 1), request_length(request, 1), &page);
    if (point_range(length, &start, &end))
        reply_value(client, page, (uint32_t)start, (uint32_t)(end - start + 1));
    else
        replies_text(&client->conn, empty, sizeof(empty) - 1);
    return RAN;
}

uint64_t point_pages(struct serve_server *server)
{
    uint64_t bytes = 0;

    if (bp_file_size(server->file, &bytes))
        return 0;
    return bytes / BP_PAGE_SIZE + (bytes % BP_PAGE_SIZE != 0);
}

enum ran point_dbsize(struct client *client, const struct request *request)
{
    (void)request;
    replies_printf(&client->conn, ":%llu\r\n", (unsigned long long)point_pages(client->conn.worker->server));
    return RAN;
}

bool point_failed(struct serve_conn *conn, uint64_t page, int code, char *instead, size_t size)
{
    if (code == BP_EOF) {
        snprintf(instead, size, "%s", absent); /* the file became shorter */
        return true;
    }
    serve_counted(conn->worker, SERVE_ERRORS, 1);
    if (code == -EBUSY || code == -ETIMEDOUT)
        snprintf(instead, size, "-BUSY page %llu was not to be had in time, try again: %s\r\n",
                 (unsigned long long)page, bp_strerror(code));
    else
        snprintf(instead, size, "-ERR read of page %llu failed: %s\r\n", (unsigned long long)page, bp_strerror(code));
    return true;
}
