/* SPDX-License-Identifier: MIT */
/*
 * Requests of the Redis protocol, with hiredis' reader (see request.h).
 *
 * The reader's struct is public, and its cursor is used here for two things that it does not do by itself: to
 * look at a line before it does (inline commands), and at a length that it is waiting to see fulfilled.
 */
#include "point-server/request.h"

#include <hiredis.h>
#include <inttypes.h>
#include <sds.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if HIREDIS_MAJOR != 0
#error "made for hiredis 0.14, as in Debian 12: later versions keep the reader's tasks in another way"
#endif

#define ARGS_KEPT  64u /* larger requests give their memory back when they were answered */
#define BYTES_KEPT 4096u

/* ---- what the reader calls ---- */

static bool grow_args(struct request *request)
{
    uint32_t room = request->room ? request->room * 2 : 8;
    void *grown = realloc(request->arg, room * sizeof(*request->arg));

    if (!grown)
        return false;
    request->arg = grown;
    request->room = room;
    return true;
}

static bool grow_bytes(struct request *request, size_t count)
{
    size_t room = request->bytes_room ? request->bytes_room : 256;
    char *grown;

    while (room - request->used < count)
        room *= 2;
    grown = realloc(request->bytes, room);
    if (!grown)
        return false;
    request->bytes = grown;
    request->bytes_room = room;
    return true;
}

static bool add_arg(struct request *request, const char *bytes, size_t length)
{
    if (request->count == request->room && !grow_args(request))
        return false;
    if (request->bytes_room - request->used < length + 1 && !grow_bytes(request, length + 1))
        return false;
    request->arg[request->count].at = (uint32_t)request->used;
    request->arg[request->count].length = (uint32_t)length;
    request->count++;
    if (length)
        memcpy(request->bytes + request->used, bytes, length);
    request->bytes[request->used + length] = '\0';
    request->used += length + 1;
    return true;
}

static void set_wrong(struct parser *parser, const char *wrong)
{
    if (!parser->wrong)
        parser->wrong = wrong;
}

static struct parser *parser_of(const redisReadTask *task)
{
    return task->privdata;
}

/* Any address will do as the object; only NULL means something to the reader: no memory. */
static void *create_string(const redisReadTask *task, char *bytes, size_t length)
{
    struct parser *parser = parser_of(task);

    if (task->type != REDIS_REPLY_STRING)
        set_wrong(parser, task->type == REDIS_REPLY_ERROR ? "expected '$', got '-'" : "expected '$', got '+'");
    else if (!parser->wrong && !add_arg(&parser->request, bytes, length))
        return NULL;
    return parser;
}

static void *create_array(const redisReadTask *task, int count)
{
    if (task->parent)
        set_wrong(parser_of(task), "expected '$', got '*'");
    else if (count > (int)REQUEST_ARGS_MAX)
        set_wrong(parser_of(task), "invalid multibulk length");
    return parser_of(task);
}

static void *create_integer(const redisReadTask *task, long long value)
{
    (void)value;
    set_wrong(parser_of(task), "expected '$', got ':'");
    return parser_of(task);
}

static void *create_nil(const redisReadTask *task)
{
    if (task->parent)
        set_wrong(parser_of(task), "invalid bulk length");
    return parser_of(task);
}

static void free_object(void *object)
{
    (void)object;
}

static redisReplyObjectFunctions functions = {create_string, create_array, create_integer, create_nil, free_object};

/* ---- feeding ---- */

/* What is held now, against what was charged for it. */
static bool charge(struct parser *parser)
{
    const struct request *request = &parser->request;
    size_t held = request->room * sizeof(*request->arg) + request->bytes_room;

    if (parser->reader) {
        held += sizeof(*parser->reader);
        if (parser->reader->buf)
            held += sdsAllocSize(parser->reader->buf);
    }
    if (held > parser->charged && !serve_budget_take(parser->budget, held - parser->charged))
        return false;
    if (held < parser->charged)
        serve_budget_give(parser->budget, parser->charged - held);
    parser->charged = held;
    return true;
}

static size_t unread(const struct parser *parser)
{
    return parser->reader ? parser->reader->len - parser->reader->pos : 0;
}

bool parser_feed(struct parser *parser, const char *bytes, size_t count)
{
    if (!parser->reader) {
        parser->reader = redisReaderCreateWithFunctions(&functions);
        if (!parser->reader)
            return false;
        parser->reader->privdata = parser;
    }
    if (redisReaderFeed(parser->reader, bytes, count) != REDIS_OK)
        return false;
    parser->fed += count;
    return charge(parser);
}

bool parser_partial(const struct parser *parser)
{
    return unread(parser) || (parser->reader && parser->reader->ridx >= 0);
}

void parser_trim(struct parser *parser)
{
    if (!parser_partial(parser))
        parser_free(parser);
}

void parser_free(struct parser *parser)
{
    if (parser->reader)
        redisReaderFree(parser->reader);
    parser->reader = NULL;
    free(parser->request.arg);
    free(parser->request.bytes);
    memset(&parser->request, 0, sizeof(parser->request));
    serve_budget_give(parser->budget, parser->charged);
    parser->charged = 0;
}

/* ---- taking requests out ---- */

static enum parsed protocol_error(struct parser *parser, const char *what)
{
    snprintf(parser->error, sizeof(parser->error), "Protocol error: %s", what);
    return PARSED_ERROR;
}

/* Forget the last request, and its memory if it was a large one. */
static void begin(struct parser *parser)
{
    struct request *request = &parser->request;

    request->count = 0;
    request->used = 0;
    if (request->room > ARGS_KEPT) {
        free(request->arg);
        request->arg = NULL;
        request->room = 0;
    }
    if (request->bytes_room > BYTES_KEPT) {
        free(request->bytes);
        request->bytes = NULL;
        request->bytes_room = 0;
    }
    parser->begun = parser->fed - unread(parser);
}

/* A line that does not begin with '*'. Empty ones are passed over, as PARSED_NONE with bytes taken. */
static enum parsed next_inline(struct parser *parser)
{
    redisReader *reader = parser->reader;
    char *line = reader->buf + reader->pos, *end = memchr(line, '\n', reader->len - reader->pos);
    size_t length;
    int count = 0;
    bool added = true;
    sds *word;

    if (!end)
        return unread(parser) > REQUEST_LINE_MAX ? protocol_error(parser, "too big inline request") : PARSED_NONE;
    length = (size_t)(end - line);
    reader->pos += length + 1;
    if (length > REQUEST_LINE_MAX)
        return protocol_error(parser, "too big inline request");
    if (length && line[length - 1] == '\r')
        length--;
    line[length] = '\0'; /* the line end is ours by now */
    word = sdssplitargs(line, &count);
    if (!word)
        return protocol_error(parser, "unbalanced quotes in request");
    for (int i = 0; i < count && added; i++)
        added = add_arg(&parser->request, word[i], sdslen(word[i]));
    sdsfreesplitres(word, count);
    if (reader->pos == reader->len || reader->pos >= 1024) {
        sdsrange(reader->buf, (int)reader->pos, -1);
        reader->pos = 0;
        reader->len = sdslen(reader->buf);
    }
    return added ? PARSED_REQUEST : PARSED_MEMORY;
}

/* The reader gave up: in the words of a server. */
static enum parsed reader_error(struct parser *parser)
{
    const char *text = parser->reader->errstr, *got = strstr(text, "got \"");
    char what[64];

    if (parser->reader->err == REDIS_ERR_OOM)
        return PARSED_MEMORY;
    if (!strncmp(text, "Bad multi", 9) || !strncmp(text, "Multi", 5))
        return protocol_error(parser, "invalid multibulk length");
    if (!strncmp(text, "Bad bulk", 8) || !strncmp(text, "Bulk", 4))
        return protocol_error(parser, "invalid bulk length");
    if (got) {
        size_t length = strcspn(got + 5, "\"");

        length = length ? length : 1; /* it was a quotation mark */
        snprintf(what, sizeof(what), "expected '$', got '%.*s'", (int)length, got + 5);
        return protocol_error(parser, what);
    }
    return protocol_error(parser, "invalid request");
}

/* All that is here was looked at and more is needed. What is announced must be something that we would take. */
static enum parsed check_unfinished(struct parser *parser)
{
    const redisReader *reader = parser->reader;
    const char *at = reader->buf + reader->pos, *end;
    bool bulk = reader->ridx > 0 && reader->rstack[reader->ridx].type == REDIS_REPLY_STRING;
    size_t left = unread(parser);
    uint64_t begun = parser->fed - parser->begun, announced = 0;

    if (begun > REQUEST_BYTES_MAX)
        return protocol_error(parser, "request of more than 1048576 bytes");
    end = memchr(at, '\r', left < 32 ? left : 32);
    if (!end && (reader->ridx == 0 || bulk) && left > REQUEST_LINE_MAX)
        return protocol_error(parser, bulk ? "too big bulk count string" : "too big mbulk count string");
    if (!end || !bulk)
        return PARSED_NONE;
    /* What is not a number is found out by the reader, once the line is complete. */
    for (; at < end && *at >= '0' && *at <= '9' && announced <= REQUEST_ARG_MAX; at++)
        announced = announced * 10 + (unsigned)(*at - '0');
    if (announced > REQUEST_ARG_MAX)
        return protocol_error(parser, "invalid bulk length");
    if (announced > REQUEST_BYTES_MAX)
        return protocol_error(parser, "request of more than 1048576 bytes");
    return PARSED_NONE;
}

static enum parsed next_array(struct parser *parser)
{
    void *object = NULL;
    int answer = redisReaderGetReply(parser->reader, &object);

    if (parser->wrong) /* first: it may be what the reader stumbled over later */
        return protocol_error(parser, parser->wrong);
    if (answer != REDIS_OK)
        return reader_error(parser);
    return object ? PARSED_REQUEST : check_unfinished(parser);
}

enum parsed parser_next(struct parser *parser)
{
    enum parsed parsed = PARSED_REQUEST;

    if (!parser->reader)
        return PARSED_NONE;
    /* Requests without a word in them get no answer, so they are passed over here. */
    do {
        if (parser->reader->ridx < 0)
            begin(parser);
        if (!unread(parser))
            return charge(parser) ? PARSED_NONE : PARSED_MEMORY;
        if (parser->reader->ridx < 0 && parser->reader->buf[parser->reader->pos] != '*')
            parsed = next_inline(parser);
        else
            parsed = next_array(parser);
    } while (parsed == PARSED_REQUEST && !parser->request.count);
    if ((parsed == PARSED_NONE || parser->request.room > ARGS_KEPT) && !charge(parser))
        return PARSED_MEMORY;
    return parsed;
}
