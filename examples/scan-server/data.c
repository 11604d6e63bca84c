/* SPDX-License-Identifier: MIT */
/*
 * /data: bytes of a file, all of them, a range, or several as multipart/byteranges (RFC 9110, sections 14 and 15.3.7).
 *
 * The body is queued extent by extent, a window of them at once, so that the device works ahead of the client; what is
 * sent is sent from the pool's own memory.
 */
#include "scan-server/condition.h"
#include "scan-server/range.h"
#include "scan-server/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PART_HEAD_BYTES 256u

/* A response of several ranges. */
struct parts {
    struct range_set set;
    unsigned next;
    uint64_t bytes; /* of the file */
    char boundary[33];
};

static int file_size(struct client *client, const struct serve_file *file, uint64_t *bytes)
{
    int code = bp_file_size(file->file, bytes);

    if (code)
        respond_error(client, HTTP_STATUS_INTERNAL_SERVER_ERROR, "", bp_strerror(code));
    return code;
}

static bool validators_find(struct client *client, const struct serve_file *file, struct validators *into)
{
    const struct scan_file *mine = &scan_of(client)->file[file - server_of(client)->files];

    return validators_of(mine->fd, &mine->at_start, into);
}

static void file_lines(struct client *client, const struct validators *validators)
{
    if (validators)
        replies_printf(&client->conn, "ETag: %s\r\nLast-Modified: %s\r\n", validators->etag, validators->modified);
    replies_puts(&client->conn, "Accept-Ranges: bytes\r\n");
}

static void not_modified(struct client *client, const struct validators *validators)
{
    respond_begin(client, HTTP_STATUS_NOT_MODIFIED);
    file_lines(client, validators);
    replies_puts(&client->conn, "\r\n");
    respond_end(client);
}

/* ---- several ranges ---- */

/* What stands before a part; its length. */
static int part_head(const struct parts *parts, unsigned i, char text[PART_HEAD_BYTES])
{
    return snprintf(text, PART_HEAD_BYTES,
                    "%s--%s\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
                    i ? "\r\n" : "", parts->boundary, (unsigned long long)parts->set.part[i].first,
                    (unsigned long long)parts->set.part[i].last, (unsigned long long)parts->bytes);
}

static uint64_t parts_bytes(const struct parts *parts)
{
    uint64_t sum = strlen("\r\n--") + strlen(parts->boundary) + strlen("--\r\n");
    char text[PART_HEAD_BYTES];

    for (unsigned i = 0; i < parts->set.count; i++)
        sum += (uint64_t)part_head(parts, i, text) + parts->set.part[i].last + 1 - parts->set.part[i].first;
    return sum;
}

/* A boundary that no file contains but by guessing 128 bits. */
static bool boundary_make(char boundary[33])
{
    unsigned char random[16];

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return false;
    for (unsigned i = 0; i < sizeof(random); i++)
        snprintf(boundary + 2 * i, 3, "%02x", random[i]);
    return true;
}

void data_forget(struct client *client)
{
    if (!client->parts)
        return;
    free(client->parts);
    client->parts = NULL;
    serve_budget_give(&server_of(client)->budget, sizeof(*client->parts));
}

/* false: there is no memory for it. */
static bool parts_begin(struct client *client, const struct range_set *set, uint64_t bytes)
{
    struct serve_budget *budget = &server_of(client)->budget;

    if (!serve_budget_take(budget, sizeof(*client->parts)))
        return false;
    client->parts = malloc(sizeof(*client->parts));
    if (!client->parts) {
        serve_budget_give(budget, sizeof(*client->parts));
        return false;
    }
    client->parts->set = *set;
    client->parts->next = 0;
    client->parts->bytes = bytes;
    if (boundary_make(client->parts->boundary))
        return true;
    data_forget(client);
    return false;
}

/* On to the next part, or behind the last one. */
static void parts_step(struct client *client)
{
    struct parts *parts = client->parts;
    char text[PART_HEAD_BYTES];

    if (parts->next == parts->set.count) {
        replies_printf(&client->conn, "\r\n--%s--\r\n", parts->boundary);
        data_forget(client);
        return;
    }
    part_head(parts, parts->next, text);
    replies_puts(&client->conn, text);
    client->body_at = parts->set.part[parts->next].first;
    client->body_end = parts->set.part[parts->next].last + 1;
    parts->next++;
}

/* ---- the response ---- */

static void several(struct client *client, const struct range_set *set, uint64_t bytes,
                    const struct validators *validators)
{
    if (!parts_begin(client, set, bytes)) {
        respond_error(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "", NULL);
        return;
    }
    respond_begin(client, HTTP_STATUS_PARTIAL_CONTENT);
    file_lines(client, validators);
    replies_printf(&client->conn, "Content-Type: multipart/byteranges; boundary=%s\r\nContent-Length: %llu\r\n\r\n",
                   client->parts->boundary, (unsigned long long)parts_bytes(client->parts));
    respond_end(client);
}

/* One range, or the whole file. */
static void one(struct client *client, const struct range_set *set, uint64_t bytes, const struct validators *validators)
{
    bool whole = set->count == 0;
    uint64_t first = whole ? 0 : set->part[0].first;
    uint64_t end = whole ? bytes : set->part[0].last + 1;

    respond_begin(client, whole ? HTTP_STATUS_OK : HTTP_STATUS_PARTIAL_CONTENT);
    file_lines(client, validators);
    if (!whole)
        replies_printf(&client->conn, "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)first,
                       (unsigned long long)end - 1, (unsigned long long)bytes);
    replies_printf(&client->conn, "Content-Type: application/octet-stream\r\nContent-Length: %llu\r\n\r\n",
                   (unsigned long long)(end - first));
    if (!respond_is_head(client)) {
        client->body_at = first;
        client->body_end = end;
    }
    respond_end(client);
}

void data_respond(struct client *client, const struct serve_file *file)
{
    const struct http_request *request = client->request;
    struct validators known, *validators = NULL;
    struct range_set set = {.count = 0};
    enum range range = RANGE_ALL;
    uint64_t bytes;
    char line[64];

    if (file_size(client, file, &bytes))
        return;
    if (validators_find(client, file, &known))
        validators = &known;
    switch (condition_check(request, validators)) {
    case CONDITION_NOT_MODIFIED:
        not_modified(client, validators);
        return;
    case CONDITION_FAILED:
        respond_error(client, HTTP_STATUS_PRECONDITION_FAILED, "", NULL);
        return;
    case CONDITION_GO_ON:
        break;
    }
    /* A range has a meaning for GET only. */
    if (!respond_is_head(client) && condition_range_holds(request, validators))
        range = range_parse(http_value(request, FIELD_RANGE), bytes, &set);
    if (range == RANGE_NONE) {
        snprintf(line, sizeof(line), "Content-Range: bytes */%llu\r\n", (unsigned long long)bytes);
        respond_error(client, HTTP_STATUS_RANGE_NOT_SATISFIABLE, line, NULL);
        return;
    }
    if (range == RANGE_ALL)
        set.count = 0; /* it may have been understood in part */
    client->file = file;
    if (set.count > 1)
        several(client, &set, bytes, validators);
    else
        one(client, &set, bytes, validators);
}

/* ---- the body ---- */

bool data_follows(const struct client *client)
{
    return client->body_at < client->body_end || client->parts;
}

/* Queue the next piece of a range, up to where an extent ends. */
static void queue_extent(struct client *client)
{
    uint64_t extent_bytes = server_of(client)->extent_bytes;
    uint64_t end = (client->body_at / extent_bytes + 1) * extent_bytes;
    struct reply_page piece = {
        .file = client->file->file, .page = client->body_at / BP_PAGE_SIZE, .skip = client->body_at % BP_PAGE_SIZE};

    if (end > client->body_end)
        end = client->body_end;
    piece.bytes = (uint32_t)(end - client->body_at);
    client->body_at = end;
    replies_page(&client->conn, &piece);
}

void data_step(struct client *client)
{
    if (client->body_at < client->body_end)
        queue_extent(client);
    else
        parts_step(client);
    respond_end(client);
}
