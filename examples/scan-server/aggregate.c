/* SPDX-License-Identifier: MIT */
/*
 * /scan: the client's side of a scan in the background (job.h). Its lines are sent as they come, in chunks.
 *
 *   /scan?op=count [&byte=10]               [&from=BYTE] [&to=BYTE] [&file=NAME] [&reread=1]
 *   /scan?op=sum                            from: a multiple of 8
 *   /scan?op=crc32c
 *   /scan?op=grep&pattern=TEXT [&limit=100]
 *
 * `from` is the first byte, `to` the one behind the last (and the file's end if it is larger or missing). Twenty lines
 * {"progress": ...}, for grep among them {"match": OFFSET} up to the limit, and one with the result; or one {"error": ...}
 * that names the page, and then no result. A page that could not be read is not tried again for a while; reread=1 tries.
 */
#include "scan-server/scan.h"

#include <stdio.h>
#include <string.h>

#define LINES_BYTES 16384u /* in a chunk */
#define FOUND_USUAL 100u

/* What a query asks for; false: `why` says what is wrong with it. */
static bool read_op(const struct query *query, struct op *op, uint64_t *found_max, char *why, size_t size)
{
    const struct query_bytes *name = query_value(query, "op"), *pattern = query_value(query, "pattern");
    uint64_t byte;
    unsigned kind = 0;

    while (name && op_name(kind) && strcmp(op_name(kind), name->at) != 0)
        kind++;
    if (!name || !op_name(kind)) {
        snprintf(why, size, "op must be count, sum, crc32c or grep");
        return false;
    }
    op->kind = (enum op_kind)kind;
    if (!query_number(query, "byte", UINT8_MAX, '\n', &byte)) {
        snprintf(why, size, "byte must be a number from 0 to 255");
        return false;
    }
    op->byte = (uint8_t)byte;
    if (!query_number(query, "limit", JOB_FOUND_MAX, FOUND_USUAL, found_max)) {
        snprintf(why, size, "limit must be a number from 0 to %u", JOB_FOUND_MAX);
        return false;
    }
    if (kind != OP_GREP)
        return true;
    if (!pattern || !pattern->count || pattern->count > PATTERN_MAX) {
        snprintf(why, size, "grep needs pattern, of 1 to %u bytes", PATTERN_MAX);
        return false;
    }
    op->pattern_bytes = pattern->count;
    memcpy(op->pattern, pattern->at, pattern->count);
    return true;
}

static bool read_order(struct client *client, const struct query *query, struct job_order *order, char *why,
                       size_t size)
{
    static const char *const known[] = {"op", "byte", "pattern", "limit", "from", "to", "file", "reread", NULL};
    const char *unknown = query_unknown(query, known);
    uint64_t bytes, reread;
    int code;

    if (unknown) {
        snprintf(why, size, "op, byte, pattern, limit, from, to, file and reread can be given, and nothing else");
        return false;
    }
    order->file = respond_file(client, query_value(query, "file"));
    if (!order->file) {
        snprintf(why, size, "there is no such file");
        return false;
    }
    code = bp_file_size(order->file->file, &bytes);
    if (code) {
        snprintf(why, size, "%s", bp_strerror(code));
        return false;
    }
    if (!read_op(query, &order->op, &order->found_max, why, size))
        return false;
    if (!query_number(query, "from", UINT64_MAX, 0, &order->from) ||
        !query_number(query, "to", UINT64_MAX, UINT64_MAX, &order->to)) {
        snprintf(why, size, "from and to must be numbers of bytes");
        return false;
    }
    if (!query_number(query, "reread", 1, 0, &reread)) {
        snprintf(why, size, "reread must be 0 or 1");
        return false;
    }
    order->reread = reread != 0;
    order->to = order->to < bytes ? order->to : bytes;
    if (order->from > order->to) {
        snprintf(why, size, "from must not lie behind to, nor behind the end of the file, which has %llu bytes",
                 (unsigned long long)bytes);
        return false;
    }
    if (order->op.kind == OP_SUM && order->from % 8) {
        snprintf(why, size, "from must be a multiple of 8 for a sum");
        return false;
    }
    return true;
}

void aggregate_respond(struct client *client, const struct query *query)
{
    struct job_order order;
    char why[160];

    memset(&order, 0, sizeof(order));
    if (!read_order(client, query, &order, why, sizeof(why))) {
        respond_error(client, HTTP_STATUS_BAD_REQUEST, "", why);
        return;
    }
    client->chunked = client->request->chunks;
    client->asked = false;
    client->last |= !client->chunked;
    if (!respond_is_head(client)) {
        client->job = job_start(scan_of(client)->jobs, &client->conn, &order);
        if (!client->job) {
            respond_error(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "Retry-After: 1\r\n", "too many scans wait already");
            return;
        }
    }
    respond_begin(client, HTTP_STATUS_OK);
    replies_printf(&client->conn, "Content-Type: application/x-ndjson\r\nCache-Control: no-store\r\n%s\r\n",
                   client->chunked ? "Transfer-Encoding: chunked\r\n" : "");
    respond_end(client);
}

static void queue_lines(struct client *client, struct text *lines)
{
    if (lines->failed) {
        serve_counted(client->conn.worker, SERVE_ENDED_MEMORY, 1);
        serve_end(&client->conn);
    } else if (text_bytes(lines)) {
        if (client->chunked)
            replies_printf(&client->conn, "%zx\r\n", text_bytes(lines));
        replies_text(&client->conn, text_at(lines), text_bytes(lines));
        if (client->chunked)
            replies_puts(&client->conn, "\r\n");
    }
}

enum serve_step aggregate_step(struct client *client)
{
    struct text lines = {.budget = &server_of(client)->budget};
    bool more = job_take(client->job, &lines, LINES_BYTES);
    bool full = text_bytes(&lines) == LINES_BYTES;

    /*
     * The client has closed its side. If it is gone, what is sent to it comes back as an error, which ends the
     * connection, and with it the job; if it only has nothing more to ask, it gets a line out of turn.
     */
    if ((client->conn.hangup || client->conn.eof) && !client->asked) {
        client->asked = true;
        if (more && !text_bytes(&lines))
            job_progress(client->job, &lines);
    }
    queue_lines(client, &lines);
    text_free(&lines);
    if (client->conn.ending == ENDING_DEAD)
        return STEP_IDLE;
    if (more)
        return full ? STEP_MORE : STEP_WAIT;
    if (client->chunked)
        replies_puts(&client->conn, "0\r\n\r\n");
    job_drop(client->job);
    client->job = NULL;
    respond_end(client);
    return STEP_MORE;
}
