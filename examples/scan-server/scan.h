/* SPDX-License-Identifier: MIT */
/*
 * scan-server: files over HTTP/1.1, and what is in them.
 *
 * main.c       options, and the life of a connection
 * request.c    what a client asks: header fields     query.c   its URL
 * respond.c    which response it is, and errors
 * data.c       /data: range.c condition.c            the file's bytes, whole or in ranges
 * aggregate.c  /scan: job.c ops.c                    count, sum, crc32c, grep, in the background
 * stats.c      /stats and /slabs (JSON), /metrics (Prometheus)
 * map.c        /map: what of a file is in memory
 * page.html    /: all of it to look at
 */
#ifndef SCAN_SCAN_H
#define SCAN_SCAN_H

#include "scan-server/job.h"
#include "scan-server/query.h"
#include "scan-server/request.h"
#include "serve/server.h"

#include <sys/stat.h>

/* What the options say, and what the files were at the start; once for all connections. */
struct scan {
    unsigned window;   /* extents of a response under way at once */
    unsigned scanning; /* scans at once */
    struct jobs *jobs;
    struct scan_file {
        int fd; /* the file once more, to look at its times only; -1: none */
        struct stat at_start;
    } file[SERVE_FILES_MAX];
};

struct client {
    struct serve_conn conn;       /* first */
    struct http_request *request; /* NULL: nothing was received for a while */
    /* the response that is being sent: one of these at the most */
    const struct serve_file *file;
    uint64_t body_at, body_end; /* bytes of the file that are not queued yet */
    struct parts *parts;        /* further ranges */
    struct job *job;
    struct map *map;
    bool chunked; /* the job's lines go in chunks; else they end with the connection */
    bool asked;   /* the client seems to be gone, and was sent a line to find out */
    bool last;    /* the connection ends after this response */
};

static inline struct scan *scan_of(struct client *client)
{
    return client->conn.worker->server->app->options.own;
}

static inline struct serve_server *server_of(struct client *client)
{
    return client->conn.worker->server;
}

/* ---- respond.c ---- */

/* Answer the request that was read: queues the head, and sets what is to follow. */
void scan_respond(struct client *);
/* Answer with an error and end the connection. */
void scan_refuse(struct client *, unsigned status);

/* For the rooms that answer. Status line and what every response has; more lines may follow, and then an empty one. */
void respond_begin(struct client *, unsigned status);
/* All is queued, or set to follow. */
void respond_end(struct client *);
/* An error, with a line of text as its body, NULL: the status in words. `lines`: header lines. */
void respond_error(struct client *, unsigned status, const char *lines, const char *text);
/* A whole text as the body. */
void respond_text(struct client *, const char *type, const char *bytes, size_t count);
bool respond_is_head(const struct client *);
/* The file that a name stands for: its name, its number, or, for NULL, the first. NULL: there is none. */
const struct serve_file *respond_file(struct client *, const struct query_bytes *name);

/* ---- data.c ---- */

void data_respond(struct client *, const struct serve_file *);
/* Is anything of the body still to be queued? Queue the next piece of it. */
bool data_follows(const struct client *);
void data_step(struct client *);
void data_forget(struct client *);

/* ---- aggregate.c ---- */

void aggregate_respond(struct client *, const struct query *);
/* Go on with client->job. */
enum serve_step aggregate_step(struct client *);

/* ---- map.c ---- */

void map_respond(struct client *, const struct query *);
/* Go on with client->map. */
enum serve_step map_step(struct client *);
void map_forget(struct client *);

/* ---- stats.c ---- */

void stats_json(struct serve_server *, struct text *);
void stats_metrics(struct serve_server *, struct text *);
void stats_slabs(struct serve_server *, struct text *);

/* ---- page.html, by way of the build ---- */

extern const unsigned char page_html[];
extern const size_t page_html_bytes;

#endif
