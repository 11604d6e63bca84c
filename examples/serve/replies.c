/* SPDX-License-Identifier: MIT */
/*
 * Replies: parts of text and pages, sent in order (see serve/replies.h).
 */
#include "serve/replies.h"

#include "serve/server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PARTS_MIN     8u
#define PARTS_MAX     256u /* pages, and text between them */
#define FLUSH_IOV     64u
#define FLUSH_CALLS   8u /* sendmsg calls before others get their turn */
#define INSTEAD_BYTES 256u

enum part_state { PART_TEXT, PART_WANTED, PART_READING, PART_READY, PART_OWNED };

struct part {
    uint8_t state;
    uint8_t head_bytes;
    uint8_t tail_bytes;                /* 0, or 2 for CR LF */
    char head[2 + REPLIES_HEAD_BYTES]; /* begins with the CR LF of the part before: one piece less to send */
    uint32_t sent;                     /* of head, body and tail together; not used for text, which shrinks */
    uint32_t body_bytes;
    uint32_t body_at;     /* of the body: where `at` points to */
    uint32_t ready_bytes; /* of the body: to be had at `at` */
    uint32_t skip;        /* within `page`, where the body goes on */
    bp_file *file;
    uint64_t page; /* wanted next, or held */
    const char *at;
    char *owned;
    struct reply_op *op; /* READING */
    struct bp_ref ref;   /* READY */
};

static const char line_end[2] = {'\r', '\n'};

static struct part *part_of(struct replies *replies, uint32_t sequence)
{
    return &replies->part[sequence & (replies->room - 1)];
}

static uint32_t part_total(const struct part *part)
{
    return part->head_bytes + part->body_bytes + part->tail_bytes;
}

/* How far a part can be sent with what is at hand. */
static uint32_t part_limit(const struct part *part)
{
    uint32_t body = part->body_at + part->ready_bytes;

    return body == part->body_bytes ? part_total(part) : part->head_bytes + body;
}

/* ---- the queue ---- */

static bool ring_grow(struct serve_conn *conn)
{
    struct replies *replies = &conn->out;
    uint32_t room = replies->room ? replies->room * 2 : PARTS_MIN;
    struct part *grown;

    if (room > PARTS_MAX || !serve_budget_take(replies->text.budget, (room - replies->room) * sizeof(*grown)))
        return false;
    grown = malloc(room * sizeof(*grown));
    if (!grown) {
        serve_budget_give(replies->text.budget, (room - replies->room) * sizeof(*grown));
        return false;
    }
    for (uint32_t i = 0; i < replies->count; i++)
        grown[(replies->first + i) & (room - 1)] = *part_of(replies, replies->first + i);
    free(replies->part);
    replies->part = grown;
    replies->room = room;
    return true;
}

static struct part *part_append(struct serve_conn *conn, enum part_state state)
{
    struct replies *replies = &conn->out;
    struct part *part;

    if (replies->count == replies->room && !ring_grow(conn)) {
        serve_counted(conn->worker, SERVE_ENDED_MEMORY, 1);
        serve_end(conn);
        return NULL;
    }
    part = part_of(replies, replies->first + replies->count++);
    part->state = (uint8_t)state;
    part->head_bytes = 0;
    part->tail_bytes = 0;
    part->sent = 0;
    part->body_bytes = 0;
    part->body_at = 0;
    part->ready_bytes = 0;
    part->at = NULL;
    part->owned = NULL;
    part->op = NULL;
    return part;
}

void replies_text_added(struct serve_conn *conn, size_t before)
{
    struct replies *replies = &conn->out;
    size_t added = text_bytes(&replies->text) - before;
    struct part *last = replies->count ? part_of(replies, replies->first + replies->count - 1) : NULL;

    if (replies->text.failed) {
        serve_counted(conn->worker, SERVE_ENDED_MEMORY, 1);
        serve_end(conn);
        return;
    }
    if (!added)
        return;
    if (!last || last->state != PART_TEXT)
        last = part_append(conn, PART_TEXT);
    if (last)
        last->body_bytes += (uint32_t)added;
}

void replies_text(struct serve_conn *conn, const char *bytes, size_t count)
{
    size_t before = text_bytes(&conn->out.text);

    text_add(&conn->out.text, bytes, count);
    replies_text_added(conn, before);
}

void replies_puts(struct serve_conn *conn, const char *string)
{
    replies_text(conn, string, strlen(string));
}

void replies_printf(struct serve_conn *conn, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    int n;

    va_start(arguments, format);
    n = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    assert(n >= 0 && (size_t)n < sizeof(line)); /* longer texts go through text_printf */
    if (n > 0)
        replies_text(conn, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

/* ---- asking for pages ---- */

static void wait_for_pin(struct serve_conn *conn)
{
    if (conn->waiting)
        return;
    conn->waiting = true;
    TAILQ_INSERT_TAIL(&conn->worker->waiting, conn, wait_link);
}

/* The page cannot be had: an error's text instead of it, or the end if part of the reply is on its way. */
static void part_failed(struct serve_conn *conn, struct part *part, int code)
{
    const struct serve_app *app = conn->worker->server->app;
    char instead[INSTEAD_BYTES];
    size_t bytes;

    /* Not a state that holds anything, whatever happens below. */
    part->state = PART_OWNED;
    part->ready_bytes = 0;
    if (part->sent || !app->failed(conn, part->page, code, instead, sizeof(instead))) {
        serve_end(conn);
        return;
    }
    bytes = strnlen(instead, sizeof(instead));
    part->head_bytes = 0;
    part->tail_bytes = 0;
    part->body_bytes = 0;
    part->body_at = 0;
    if (serve_budget_take(conn->out.text.budget, bytes))
        part->owned = malloc(bytes ? bytes : 1);
    if (!part->owned) {
        serve_end(conn);
        return;
    }
    memcpy(part->owned, instead, bytes);
    part->at = part->owned;
    part->body_bytes = (uint32_t)bytes;
    part->ready_bytes = (uint32_t)bytes;
}

/*
 * The page is here and pinned. An extent is zero-filled past the end of the file: if the file became shorter than
 * it was when the reply was laid out, that is an error and not zeroes.
 */
static void part_arrived(struct serve_conn *conn, struct part *part, const struct bp_ref *ref)
{
    uint32_t bytes = part->body_bytes - part->body_at;
    uint64_t last;

    part->ref = *ref;
    if (bytes > ref->bytes - part->skip)
        bytes = (uint32_t)(ref->bytes - part->skip);
    last = part->skip + (uint64_t)bytes - 1;
    if (bp_page_file_bytes(part->file, part->page + last / BP_PAGE_SIZE) <= last % BP_PAGE_SIZE) {
        bp_put(&part->ref);
        serve_pin_given_back(conn->worker);
        part_failed(conn, part, BP_EOF);
        return;
    }
    part->state = PART_READY;
    part->ready_bytes = bytes;
    part->at = (const char *)ref->data + part->skip;
    conn->out.ready++;
}

bool replies_reclaim(struct serve_worker *worker)
{
    struct serve_conn *conn, *next;

    for (conn = TAILQ_FIRST(&worker->blocked); conn && worker->pins >= worker->pins_max; conn = next) {
        next = TAILQ_NEXT(conn, blocked_link);
        replies_release(conn);
    }
    return worker->pins < worker->pins_max;
}

/* Ask for a wanted page. false: it has to wait for a pin. */
static bool part_ask(struct serve_conn *conn, struct part *part, uint32_t sequence)
{
    struct serve_worker *worker = conn->worker;
    struct reply_op *op;
    struct bp_ref ref;
    int code;

    if (worker->limited || (worker->pins >= worker->pins_max && !replies_reclaim(worker))) {
        wait_for_pin(conn);
        return false;
    }
    op = worker->op; /* as many as pins: there is one */
    assert(op);
    code = bp_get_start(worker->session, part->file, part->page, BP_SHARED, BP_MORE, op, &ref);
    if (code == BP_LIMIT && worker->reading) {
        worker->limited = true;
        wait_for_pin(conn);
        return false;
    }
    conn->out.wanted--;
    if (code == BP_PENDING) {
        worker->op = op->next;
        worker->pins++;
        worker->reading++;
        op->conn = conn;
        op->sequence = sequence;
        part->op = op;
        part->state = PART_READING;
    } else if (code == 0) {
        worker->pins++;
        part_arrived(conn, part, &ref);
    } else {
        part_failed(conn, part, code);
    }
    return true;
}

void replies_start(struct serve_conn *conn)
{
    struct replies *replies = &conn->out;
    uint32_t end = replies->first + replies->count;

    /* Edges of blocked clients' queues are asked for again once they read. */
    if (conn->blocked || conn->waiting)
        return;
    for (uint32_t at = replies->first; replies->wanted && at != end && conn->ending != ENDING_DEAD; at++) {
        struct part *part = part_of(replies, at);

        if (part->state == PART_WANTED && !part_ask(conn, part, at))
            break;
    }
}

void replies_page(struct serve_conn *conn, const struct reply_page *wanted)
{
    struct part *part = part_append(conn, PART_WANTED);

    if (!part)
        return;
    assert(wanted->head_bytes <= REPLIES_HEAD_BYTES && wanted->bytes && wanted->skip < BP_PAGE_SIZE);
    part->file = wanted->file;
    part->page = wanted->page;
    part->skip = wanted->skip;
    part->body_bytes = wanted->bytes;
    part->head_bytes = (uint8_t)wanted->head_bytes;
    part->tail_bytes = wanted->line_end ? sizeof(line_end) : 0;
    memcpy(part->head, line_end, sizeof(line_end));
    if (wanted->head_bytes)
        memcpy(part->head + sizeof(line_end), wanted->head, wanted->head_bytes);
    conn->out.pages++;
    conn->out.wanted++;
    if (conn->out.wanted == 1 && !conn->blocked && !conn->waiting)
        part_ask(conn, part, conn->out.first + conn->out.count - 1);
}

void replies_completed(struct serve_worker *worker, const struct bp_event *event)
{
    struct reply_op *op = event->cookie;
    struct serve_conn *conn = op->conn;
    struct bp_ref ref = event->ref;

    worker->reading--;
    worker->limited = false;
    op->next = worker->op;
    worker->op = op;
    if (!conn) {
        if (event->result == 0)
            bp_put(&ref);
        serve_pin_given_back(worker);
        return;
    }
    struct part *part = part_of(&conn->out, op->sequence);

    assert(part->state == PART_READING && part->op == op);
    part->op = NULL;
    if (event->result == 0) {
        part_arrived(conn, part, &ref);
    } else {
        serve_pin_given_back(worker);
        part_failed(conn, part, event->result);
    }
    serve_run_later(conn);
}

/* ---- sending ---- */

struct pieces {
    struct iovec iov[FLUSH_IOV];
    unsigned count;
    size_t bytes;
};

static void piece_add(struct pieces *pieces, const char *at, size_t bytes)
{
    if (!bytes)
        return;
    pieces->iov[pieces->count].iov_base = (void *)(uintptr_t)at; /* sendmsg reads only */
    pieces->iov[pieces->count++].iov_len = bytes;
    pieces->bytes += bytes;
}

/* What of a part can be sent. `owed`: the line end of the part before has not been added yet. It returns the same for
 * its own. */
static bool pieces_of_part(struct pieces *pieces, const struct part *part, bool owed)
{
    uint32_t from = part->sent, body = part->head_bytes + part->body_at, limit = part_limit(part);
    const char *head = part->head + sizeof(line_end);

    if (owed && !from)
        piece_add(pieces, part->head, sizeof(line_end) + part->head_bytes);
    else if (owed)
        piece_add(pieces, line_end, sizeof(line_end));
    else if (from < part->head_bytes)
        piece_add(pieces, head + from, part->head_bytes - from);
    if (from < part->head_bytes)
        from = part->head_bytes;
    if (from < body + part->ready_bytes) {
        piece_add(pieces, part->at + (from - body), body + part->ready_bytes - from);
        from = body + part->ready_bytes;
    }
    if (limit < part_total(part) || !part->tail_bytes)
        return false;
    if (from + sizeof(line_end) > limit) { /* only half of it is left */
        piece_add(pieces, line_end + 1, 1);
        return false;
    }
    return true;
}

/* Gather what can be sent now, from the first part on. */
static void pieces_gather(struct replies *replies, struct pieces *pieces)
{
    const char *text = text_at(&replies->text);
    bool owed = false;

    pieces->count = 0;
    pieces->bytes = 0;
    for (uint32_t i = 0; i < replies->count && pieces->count + 4 <= FLUSH_IOV; i++) {
        const struct part *part = part_of(replies, replies->first + i);

        if (part->state == PART_WANTED || part->state == PART_READING)
            break;
        if (part->state == PART_TEXT) {
            if (owed)
                piece_add(pieces, line_end, sizeof(line_end));
            owed = false;
            piece_add(pieces, text, part->body_bytes);
            text += part->body_bytes;
            continue;
        }
        owed = pieces_of_part(pieces, part, owed);
        if (part_limit(part) < part_total(part))
            break;
    }
    if (owed)
        piece_add(pieces, line_end, sizeof(line_end));
}

/* A part lets go of what it holds. */
static void part_let_go(struct serve_conn *conn, struct part *part)
{
    if (part->state == PART_READY) {
        bp_put(&part->ref);
        conn->out.ready--;
        serve_pin_given_back(conn->worker);
    } else if (part->state == PART_READING) {
        part->op->conn = NULL;
    } else if (part->state == PART_WANTED) {
        conn->out.wanted--;
    } else if (part->owned) {
        free(part->owned);
        serve_budget_give(conn->out.text.budget, part->ready_bytes);
        part->owned = NULL;
    }
}

/* Everything at hand of the first part was sent: it is finished, or goes on with the extent that follows. */
static void part_sent(struct serve_conn *conn, struct part *part)
{
    uint32_t end = part->skip + part->ready_bytes;

    part_let_go(conn, part);
    if (part->sent == part_total(part)) {
        conn->out.first++;
        conn->out.count--;
        conn->out.pages--;
        return;
    }
    part->page += end / BP_PAGE_SIZE;
    part->skip = end % BP_PAGE_SIZE;
    part->body_at += part->ready_bytes;
    part->ready_bytes = 0;
    part->state = PART_WANTED;
    conn->out.wanted++;
}

/* `bytes` were sent: move on, let go of what is done with. */
static void parts_sent(struct serve_conn *conn, size_t bytes)
{
    struct replies *replies = &conn->out;

    while (bytes) {
        struct part *part = part_of(replies, replies->first);
        uint32_t step = part->state == PART_TEXT ? part->body_bytes : part_limit(part) - part->sent;

        if (step > bytes)
            step = (uint32_t)bytes;
        bytes -= step;
        if (part->state == PART_TEXT) {
            text_drop(&replies->text, step);
            part->body_bytes -= step;
            if (!part->body_bytes) {
                replies->first++;
                replies->count--;
            }
        } else {
            part->sent += step;
            if (part->sent == part_limit(part))
                part_sent(conn, part);
        }
    }
}

static void mark_blocked(struct serve_conn *conn)
{
    if (conn->blocked)
        return;
    conn->blocked = true;
    TAILQ_INSERT_TAIL(&conn->worker->blocked, conn, blocked_link);
}

enum flush replies_flush(struct serve_conn *conn, size_t *sent)
{
    struct replies *replies = &conn->out;
    struct pieces pieces;
    struct msghdr message;
    ssize_t n;

    for (unsigned call = 0; call < FLUSH_CALLS; call++) {
        if (conn->blocked)
            return FLUSH_BLOCKED;
        pieces_gather(replies, &pieces);
        if (!pieces.bytes)
            return replies->count ? FLUSH_WAITING : FLUSH_EMPTY;
        memset(&message, 0, sizeof(message));
        message.msg_iov = pieces.iov;
        message.msg_iovlen = pieces.count;
        n = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN && errno != ENOBUFS) {
            serve_end(conn);
            return FLUSH_DEAD;
        }
        if (n > 0) {
            conn->moved_ms = conn->worker->now_ms;
            serve_counted(conn->worker, SERVE_BYTES_OUT, (uint64_t)n);
            *sent += (size_t)n;
            parts_sent(conn, (size_t)n);
            if (conn->ending == ENDING_DEAD)
                return FLUSH_DEAD;
        }
        if (n < (ssize_t)pieces.bytes) {
            mark_blocked(conn);
            return FLUSH_BLOCKED;
        }
        replies_start(conn);
        if (conn->ending == ENDING_DEAD)
            return FLUSH_DEAD;
    }
    return replies->count ? FLUSH_MORE : FLUSH_EMPTY;
}

/* ---- giving back ---- */

/* Keep a copy of what is still to be sent of a page: the client must not get one half of it from before and one from
 * after. */
static bool part_keep(struct serve_conn *conn, struct part *part)
{
    uint32_t from = part->sent > part->head_bytes ? part->sent - part->head_bytes - part->body_at : 0;
    uint32_t rest, body_at;
    char *owned;

    if (from > part->ready_bytes)
        from = part->ready_bytes;
    rest = part->ready_bytes - from;
    body_at = part->body_at + from;
    if (!serve_budget_take(conn->out.text.budget, rest))
        return false;
    owned = malloc(rest ? rest : 1);
    if (!owned) {
        serve_budget_give(conn->out.text.budget, rest);
        return false;
    }
    memcpy(owned, part->at + from, rest);
    part_let_go(conn, part);
    part->owned = owned;
    part->at = owned;
    part->body_at = body_at;
    part->ready_bytes = rest;
    part->state = PART_OWNED;
    return true;
}

/* Let the pin go; the rest of the part is wanted again. */
static void part_rewind(struct serve_conn *conn, struct part *part)
{
    uint32_t body = part->sent > part->head_bytes ? part->sent - part->head_bytes : part->body_at;
    uint32_t skip = part->skip + (body - part->body_at);

    part_let_go(conn, part);
    part->page += skip / BP_PAGE_SIZE;
    part->skip = skip % BP_PAGE_SIZE;
    part->body_at = body;
    part->ready_bytes = 0;
    part->state = PART_WANTED;
    conn->out.wanted++;
}

void replies_release(struct serve_conn *conn)
{
    struct replies *replies = &conn->out;
    bool whole = conn->worker->server->app->whole_pages;

    for (uint32_t i = 0; replies->ready && i < replies->count; i++) {
        struct part *part = part_of(replies, replies->first + i);

        if (part->state != PART_READY)
            continue;
        if (!part->sent || !whole) {
            part_rewind(conn, part);
        } else if (!part_keep(conn, part)) {
            serve_counted(conn->worker, SERVE_ENDED_MEMORY, 1);
            serve_end(conn);
            return;
        }
    }
}

void replies_drop(struct serve_conn *conn)
{
    struct replies *replies = &conn->out;

    for (uint32_t i = 0; i < replies->count; i++) {
        struct part *part = part_of(replies, replies->first + i);

        if (part->state != PART_TEXT)
            part_let_go(conn, part);
    }
    replies->count = 0;
    replies->pages = 0;
    text_drop(&replies->text, text_bytes(&replies->text));
    replies_trim(conn);
}

void replies_trim(struct serve_conn *conn)
{
    struct replies *replies = &conn->out;

    text_trim(&replies->text);
    if (replies->count || !replies->part)
        return;
    free(replies->part);
    serve_budget_give(replies->text.budget, replies->room * sizeof(*replies->part));
    replies->part = NULL;
    replies->room = 0;
}
