/* SPDX-License-Identifier: MIT */
/*
 * Requests of the Redis protocol (RESP2), out of the bytes that a client sends.
 *
 * hiredis' reader takes arrays of strings apart. It was made for replies of a server that is trusted; here it
 * reads from whoever connects, so what it would go along with is checked around it: what may be in a request,
 * how long it may be, and how much of it may lie here unfinished. Lines that do not begin with '*' are inline
 * commands, split into words (quotes included) by hiredis' sdssplitargs.
 */
#ifndef POINT_REQUEST_H
#define POINT_REQUEST_H

#include "serve/text.h"

#include <stdint.h>

#define REQUEST_BYTES_MAX 1048576u   /* of one request, as sent */
#define REQUEST_ARGS_MAX  1048576u   /* announced; more is refused at once */
#define REQUEST_ARG_MAX   536870912u /* bytes announced for one argument; more is refused at once, in Redis' words */
#define REQUEST_LINE_MAX  65536u     /* bytes of an inline command, or of a length */
#define REQUEST_FEED_MAX  16384u     /* bytes to feed at once */

struct redisReader;

/* Arguments, the command's name being the first. Binary: length counts, and a NUL follows for convenience. */
struct request {
    uint32_t count;
    uint32_t room; /* of `arg` */
    struct {
        uint32_t at; /* in `bytes` */
        uint32_t length;
    } * arg;
    char *bytes;
    size_t used, bytes_room;
};

static inline const char *request_arg(const struct request *request, uint32_t i)
{
    return request->bytes + request->arg[i].at;
}

static inline uint32_t request_length(const struct request *request, uint32_t i)
{
    return request->arg[i].length;
}

/* All zero but for the budget: holds no memory. */
struct parser {
    struct serve_budget *budget;
    struct redisReader *reader;
    struct request request;
    uint64_t fed;      /* bytes fed since ever */
    uint64_t begun;    /* of these, how many came before the request that is being read */
    size_t charged;    /* bytes taken of the budget */
    const char *wrong; /* set by the reader's callbacks */
    char error[160];
};

enum parsed {
    PARSED_NONE,    /* not all of it is here */
    PARSED_REQUEST, /* parser->request, until the next call */
    PARSED_ERROR,   /* the client broke the protocol: parser->error says how; no more calls */
    PARSED_MEMORY   /* no memory, or not within the budget; no more calls */
};

/* Take bytes, REQUEST_FEED_MAX at the most, after parser_next has said PARSED_NONE. false: no memory. */
bool parser_feed(struct parser *, const char *bytes, size_t count);

enum parsed parser_next(struct parser *);

/* Is there part of a request? */
bool parser_partial(const struct parser *);

/* Give memory back that nothing is in. */
void parser_trim(struct parser *);
void parser_free(struct parser *);

#endif
