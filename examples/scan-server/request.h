/* SPDX-License-Identifier: MIT */
/*
 * Requests of HTTP/1.1, out of the bytes that a client sends, by http-parser.
 *
 * One request at a time: the parser is halted at the end of each, and what a pipelining client has sent beyond
 * waits in the buffer. Of a request only what this server looks at is kept; bodies are read and forgotten.
 */
#ifndef SCAN_REQUEST_H
#define SCAN_REQUEST_H

#include "serve/text.h"

#include <http_parser.h>
#include <stdint.h>

#define HTTP_INPUT_BYTES  16384u /* received at once */
#define HTTP_HEADER_BYTES 16384u /* request line and header fields together */
#define HTTP_URL_BYTES    1024u
#define HTTP_VALUE_BYTES  3072u  /* of all fields of interest together */
#define HTTP_BODY_BYTES   65536u /* of a request */

/* The header fields of interest. */
#define HTTP_FIELDS(X)                        \
    X(RANGE, "range")                         \
    X(IF_RANGE, "if-range")                   \
    X(IF_MATCH, "if-match")                   \
    X(IF_NONE_MATCH, "if-none-match")         \
    X(IF_MODIFIED_SINCE, "if-modified-since") \
    X(IF_UNMODIFIED_SINCE, "if-unmodified-since")

enum http_field {
    FIELD_OTHER,
#define HTTP_FIELD_ENUM(name, text) FIELD_##name,
    HTTP_FIELDS(HTTP_FIELD_ENUM)
#undef HTTP_FIELD_ENUM
        FIELD_COUNT
};

struct http_request {
    http_parser parser;
    char url[HTTP_URL_BYTES];
    uint32_t url_bytes; /* may be more than fits: then the request is refused */
    char name[24];      /* of the field being read */
    uint32_t name_bytes;
    bool in_value;
    enum http_field field;
    struct {
        uint32_t at; /* of the last one, in values */
        uint32_t times;
        bool too_long;
    } value[FIELD_COUNT];
    uint32_t values_bytes;
    char values[HTTP_VALUE_BYTES]; /* one after the other, each with a NUL */
    uint64_t body_bytes;
    bool begun, done, keep_alive;
    bool chunks; /* understands a body in chunks */
    uint32_t input_at, input_end;
    char input[HTTP_INPUT_BYTES];
};

enum http_parsed { HTTP_MORE, HTTP_REQUEST_READ, HTTP_WRONG };

/* Once, before threads are started. */
void http_prepare(void);

/* Begin the next request; what is left of the input stays. */
void http_begin(struct http_request *);

/* Go on with what is in the input. HTTP_WRONG: *status is what the client is to be told, and then it is over. */
enum http_parsed http_next(struct http_request *, unsigned *status);

/* Value of a field, NULL if it was not sent, sent twice or is too long to be of use; http_sent tells these apart. */
const char *http_value(const struct http_request *, enum http_field);

static inline bool http_sent(const struct http_request *request, enum http_field field)
{
    return request->value[field].times != 0;
}

#endif
