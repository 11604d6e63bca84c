/* SPDX-License-Identifier: MIT */
/*
 * Requests of HTTP/1.1, by http-parser (see request.h).
 */
#include "scan-server/request.h"

#include <string.h>
#include <strings.h>

static struct http_request *request_of(http_parser *parser)
{
    return parser->data;
}

/* Append what fits and count all of it. */
static void append(char *text, uint32_t room, uint32_t *bytes, const char *at, size_t length)
{
    if (*bytes < room) {
        size_t fits = room - *bytes;

        memcpy(text + *bytes, at, length < fits ? length : fits);
    }
    *bytes = length > UINT32_MAX - *bytes ? UINT32_MAX : *bytes + (uint32_t)length;
}

static int on_begin(http_parser *parser)
{
    request_of(parser)->begun = true;
    return 0;
}

static int on_url(http_parser *parser, const char *at, size_t length)
{
    struct http_request *request = request_of(parser);

    append(request->url, sizeof(request->url), &request->url_bytes, at, length);
    return 0;
}

static int on_field(http_parser *parser, const char *at, size_t length)
{
    struct http_request *request = request_of(parser);

    if (request->in_value)
        request->name_bytes = 0;
    request->in_value = false;
    append(request->name, sizeof(request->name), &request->name_bytes, at, length);
    return 0;
}

static enum http_field field_of(const struct http_request *request)
{
#define HTTP_FIELD_NAME(name, text) text,
    static const char *const names[FIELD_COUNT] = {"", HTTP_FIELDS(HTTP_FIELD_NAME)};
#undef HTTP_FIELD_NAME

    for (unsigned i = 1; i < FIELD_COUNT; i++) {
        if (request->name_bytes == strlen(names[i]) && !strncasecmp(request->name, names[i], request->name_bytes))
            return (enum http_field)i;
    }
    return FIELD_OTHER;
}

static int on_value(http_parser *parser, const char *at, size_t length)
{
    struct http_request *request = request_of(parser);
    enum http_field field = request->in_value ? request->field : field_of(request);

    if (!request->in_value) {
        request->field = field;
        request->value[field].times++;
        request->values_bytes += request->values_bytes != 0; /* behind the NUL of the one before */
        request->value[field].at = request->values_bytes;
    }
    request->in_value = true;
    if (field == FIELD_OTHER || request->value[field].too_long)
        return 0;
    if (request->values_bytes >= HTTP_VALUE_BYTES || length >= HTTP_VALUE_BYTES - request->values_bytes) {
        request->value[field].too_long = true;
        request->values_bytes = request->value[field].at; /* the others may still fit */
        return 0;
    }
    memcpy(request->values + request->values_bytes, at, length);
    request->values_bytes += (uint32_t)length;
    request->values[request->values_bytes] = '\0';
    return 0;
}

static int on_headers(http_parser *parser)
{
    struct http_request *request = request_of(parser);

    request->keep_alive = http_should_keep_alive(parser);
    request->chunks = parser->http_major > 1 || (parser->http_major == 1 && parser->http_minor >= 1);
    /* All ones where no length was given. */
    return (parser->flags & F_CONTENTLENGTH) && parser->content_length > HTTP_BODY_BYTES ? -1 : 0;
}

static int on_body(http_parser *parser, const char *at, size_t length)
{
    struct http_request *request = request_of(parser);

    (void)at;
    request->body_bytes += length;
    return request->body_bytes > HTTP_BODY_BYTES ? -1 : 0;
}

static int on_done(http_parser *parser)
{
    request_of(parser)->done = true;
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers,
    .on_body = on_body,
    .on_message_complete = on_done,
};

void http_prepare(void)
{
    http_parser_set_max_header_size(HTTP_HEADER_BYTES);
}

void http_begin(struct http_request *request)
{
    http_parser_init(&request->parser, HTTP_REQUEST);
    request->parser.data = request;
    request->url_bytes = 0;
    request->name_bytes = 0;
    request->in_value = false;
    memset(request->value, 0, sizeof(request->value));
    request->values_bytes = 0;
    request->body_bytes = 0;
    request->begun = false;
    request->done = false;
    request->keep_alive = false;
}

static unsigned status_of(const http_parser *parser)
{
    switch (HTTP_PARSER_ERRNO(parser)) {
    case HPE_HEADER_OVERFLOW:
        return HTTP_STATUS_REQUEST_HEADER_FIELDS_TOO_LARGE;
    case HPE_CB_headers_complete:
    case HPE_CB_body:
        return HTTP_STATUS_PAYLOAD_TOO_LARGE;
    case HPE_INVALID_VERSION:
        return HTTP_STATUS_HTTP_VERSION_NOT_SUPPORTED;
    default:
        return HTTP_STATUS_BAD_REQUEST;
    }
}

enum http_parsed http_next(struct http_request *request, unsigned *status)
{
    uint32_t left = request->input_end - request->input_at;

    if (!left)
        return HTTP_MORE;
    request->input_at +=
        (uint32_t)http_parser_execute(&request->parser, &settings, request->input + request->input_at, left);
    if (request->done)
        return HTTP_REQUEST_READ;
    if (HTTP_PARSER_ERRNO(&request->parser) != HPE_OK) {
        *status = status_of(&request->parser);
        return HTTP_WRONG;
    }
    return HTTP_MORE;
}

const char *http_value(const struct http_request *request, enum http_field field)
{
    if (request->value[field].times != 1 || request->value[field].too_long)
        return NULL;
    return request->values + request->value[field].at;
}
