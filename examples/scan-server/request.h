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
#define HTTP_VALUE_BYTES  256u
#define HTTP_BODY_BYTES   65536u /* of a request */

enum http_field { FIELD_OTHER, FIELD_RANGE, FIELD_IF_RANGE, FIELD_IF_NONE_MATCH, FIELD_COUNT };

struct http_request {
    http_parser parser;
    char url[HTTP_URL_BYTES];
    uint32_t url_bytes; /* may be more than fits: then the request is refused */
    char name[20];      /* of the field being read */
    uint32_t name_bytes;
    bool in_value;
    enum http_field field;
    struct {
        char text[HTTP_VALUE_BYTES];
        uint32_t bytes; /* 0: none; more than fits: as good as none */
        uint32_t times;
    } value[FIELD_COUNT];
    uint64_t body_bytes;
    bool begun, done, keep_alive;
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

/* Value of a field, NULL if it was not sent, sent twice or is too long to be of use. */
const char *http_value(const struct http_request *, enum http_field);

#endif
