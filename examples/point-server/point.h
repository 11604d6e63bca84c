/* SPDX-License-Identifier: MIT */
/*
 * point-server: pages of a file as values of a Redis server.
 *
 * main.c      options, and the life of a connection
 * request.c   what a client asks
 * commands.c  the table of commands, and finding one
 * values.c    commands that look at pages: GET, MGET, EXISTS, ...
 * admin.c     commands about connection and server: PING, CLIENT, CONFIG, ...
 * info.c      INFO
 * store.c     --kv: the same and more of an ordered store (examples/kv) instead of a file's pages
 */
#ifndef POINT_POINT_H
#define POINT_POINT_H

#include "kv/kv.h"
#include "point-server/request.h"
#include "serve/server.h"

#define POINT_REDIS_VERSION "7.0.15" /* whose wording is followed */
#define POINT_NAME_BYTES    64u      /* of a client's name */

/* What the options say, once for all connections. */
struct point {
    unsigned value_bytes; /* of a page that lies wholly in the file */
    char head[16];        /* of such a value: "$4096\r\n" */
    unsigned head_bytes;
    const char *kv_dir; /* serve this store; NULL: pages of a file */
    enum kv_sync sync;
    kv *store;
    struct cursors *cursors; /* of SCAN */
};

struct client {
    struct serve_conn conn; /* first */
    struct parser parser;
    const struct command *running; /* has not finished: wants to be called again when there is room */
    uint32_t next_arg;             /* where it goes on */
    char *name;                    /* CLIENT SETNAME; under the worker's lock; NULL: none */
};

/* What a command found. */
enum ran { RAN, RAN_ON }; /* finished; more to come when there is room in the replies */

struct command {
    const char *name;
    int arity; /* arguments with the name itself; negative: at least so many. 0: a row for words within CLIENT, ... */
    enum ran (*run)(struct client *, const struct request *); /* NULL: it would write */
    const char *flags;                                        /* words, for COMMAND */
    int key_first, key_last, key_step;
    const char *group, *summary; /* for COMMAND DOCS; NULL: not shown */
};

static inline struct point *point_of(struct client *client)
{
    return client->conn.worker->server->app->options.own;
}

/* ---- commands.c ---- */
extern const struct command point_commands[];
extern const unsigned point_command_count;
/* By name, in any case of letters; NULL: none. */
const struct command *point_command(const char *name, uint32_t length);
/* Run the request that was just read; it may be left in client->running. */
void point_run(struct client *, const struct request *);
bool point_word(const struct request *, uint32_t arg, const char *word); /* is it this word, in any case? */
void point_wrong_arity(struct client *, const char *command, const char *word);
/* An integer as Redis takes it: no spaces, no leading zeros. */
bool point_integer(const char *text, uint32_t length, int64_t *value);
/* Error replies, from a fixed text or with bytes of the request in it: line ends become spaces. */
void point_error(struct client *, const char *text);
void point_error_f(struct client *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void point_bulk(struct client *, const char *bytes, size_t length);

/* ---- values.c ---- */
enum ran point_get(struct client *, const struct request *);
enum ran point_mget(struct client *, const struct request *);
enum ran point_exists(struct client *, const struct request *);
enum ran point_strlen(struct client *, const struct request *);
enum ran point_getrange(struct client *, const struct request *);
enum ran point_dbsize(struct client *, const struct request *);
/* GETRANGE's positions within so many bytes, made first and last; false: there is nothing between them. */
bool point_range(int64_t length, int64_t *start, int64_t *end);
/* Pages that there are, which is keys. */
uint64_t point_pages(struct serve_server *);
bool point_failed(struct serve_conn *, uint64_t page, int code, char *instead, size_t size);

/* ---- store.c ---- */
/* Commands that --kv has otherwise, or has at all; NULL: none of them. */
const struct command *point_store_command(const char *name, uint32_t length);
int point_store_open(struct serve_server *);    /* 0, or -1 after a line on stderr */
void point_store_settle(struct serve_worker *); /* writes are as durable as --sync says */
void point_store_close(struct serve_server *);
void point_store_info(struct serve_server *, struct text *);
uint64_t point_store_keys(struct serve_server *);

/* ---- admin.c ---- */
enum ran point_ping(struct client *, const struct request *);
enum ran point_echo(struct client *, const struct request *);
enum ran point_select(struct client *, const struct request *);
enum ran point_quit(struct client *, const struct request *);
enum ran point_reset(struct client *, const struct request *);
enum ran point_auth(struct client *, const struct request *);
enum ran point_hello(struct client *, const struct request *);
enum ran point_client(struct client *, const struct request *);
enum ran point_config(struct client *, const struct request *);

/* ---- info.c ---- */
enum ran point_info(struct client *, const struct request *);
enum ran point_command_command(struct client *, const struct request *);

#endif
