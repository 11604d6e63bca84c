/* SPDX-License-Identifier: MIT */
/*
 * scan-server: ranges of a file over HTTP/1.1.
 *
 * main.c     options, and the life of a connection
 * request.c  what a client asks
 * range.c    what its Range header means
 * respond.c  what it is answered: /data, /stats and errors
 * stats.c    the JSON of /stats
 */
#ifndef SCAN_SCAN_H
#define SCAN_SCAN_H

#include "scan-server/request.h"
#include "serve/server.h"

#include <sys/stat.h>

/* What the options say, and what the file was at the start; once for all connections. */
struct scan {
    unsigned window; /* extents of a response under way at once */
    struct stat at_start;
    int stat_fd; /* the file once more, to look at its times only; -1: none */
};

struct client {
    struct serve_conn conn;       /* first */
    struct http_request *request; /* NULL: nothing was received for a while */
    uint64_t body_at, body_end;   /* of the response that is being sent: bytes of the file that are not queued yet */
    bool last;                    /* the connection ends after this response */
};

static inline struct scan *scan_of(struct client *client)
{
    return client->conn.worker->server->app->options.own;
}

/* ---- respond.c ---- */

/* Answer the request that was read: queues the head, and sets what of the file is to follow. */
void scan_respond(struct client *);
/* Answer with an error and end the connection. */
void scan_refuse(struct client *, unsigned status);

/* ---- stats.c ---- */
void scan_stats(struct serve_server *, struct text *);

#endif
