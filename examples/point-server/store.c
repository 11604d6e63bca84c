/* SPDX-License-Identifier: MIT */
/*
 * --kv: strings of an ordered store instead of pages (see point.h). Each worker has a session of the store. Writes are in
 * the store when their command has run; before the replies of a turn are sent, point_store_settle waits once for all of
 * them to be durable. A page of the store that is not in memory is read while the worker waits.
 *
 * SCAN's cursors are numbers that the server remembers keys for: the last CURSORS_MAX of them, for all clients.
 */
#include "point-server/point.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CURSORS_MAX 1024u
#define SCAN_MOST   100000u /* entries looked at by one SCAN */

struct cursors {
    pthread_mutex_t lock;
    uint64_t next;
    struct {
        uint64_t id; /* 0: none */
        uint32_t length;
        char key[KV_KEY_MAX];
    } at[CURSORS_MAX];
};

static kv_session *session_of(struct client *client)
{
    return client->conn.worker->own;
}

static void failed(struct client *client, int code)
{
    bool again = code == -EBUSY || code == -ETIMEDOUT;

    point_error_f(client, "%s %s", again ? "BUSY" : "ERR", kv_session_error(session_of(client)));
}

static void found(struct client *client, bool is)
{
    serve_counted(client->conn.worker, is ? SERVE_FOUND : SERVE_ABSENT, 1);
}

/* ---- reading ---- */

static void reply_key(struct client *client, const char *key, uint32_t length)
{
    const void *value;
    size_t bytes;
    int rc = kv_get(session_of(client), key, length, &value, &bytes);

    found(client, !rc);
    if (!rc)
        point_bulk(client, value, bytes);
    else if (rc == KV_NOT_FOUND || rc == -EINVAL || rc == KV_TOO_LARGE) /* such a key cannot be there */
        replies_puts(&client->conn, "$-1\r\n");
    else
        failed(client, rc);
}

static enum ran store_get(struct client *client, const struct request *request)
{
    reply_key(client, request_arg(request, 1), request_length(request, 1));
    return RAN;
}

static enum ran store_mget(struct client *client, const struct request *request)
{
    if (client->next_arg == 0) {
        replies_printf(&client->conn, "*%u\r\n", request->count - 1);
        client->next_arg = 1;
    }
    for (; client->next_arg < request->count; client->next_arg++) {
        if (client->conn.ending != ENDING_NO)
            return RAN;
        if (!replies_room(&client->conn.out))
            return RAN_ON;
        reply_key(client, request_arg(request, client->next_arg), request_length(request, client->next_arg));
    }
    return RAN;
}

static enum ran store_exists(struct client *client, const struct request *request)
{
    uint32_t count = 0;
    size_t bytes;

    for (uint32_t i = 1; i < request->count; i++) {
        int rc = kv_length(session_of(client), request_arg(request, i), request_length(request, i), &bytes);

        found(client, !rc);
        count += !rc;
        if (rc && rc != KV_NOT_FOUND && rc != -EINVAL && rc != KV_TOO_LARGE) {
            failed(client, rc);
            return RAN;
        }
    }
    replies_printf(&client->conn, ":%u\r\n", count);
    return RAN;
}

static enum ran store_strlen(struct client *client, const struct request *request)
{
    size_t bytes = 0;
    int rc = kv_length(session_of(client), request_arg(request, 1), request_length(request, 1), &bytes);

    found(client, !rc);
    if (rc && rc != KV_NOT_FOUND && rc != -EINVAL && rc != KV_TOO_LARGE)
        failed(client, rc);
    else
        replies_printf(&client->conn, ":%zu\r\n", rc ? 0 : bytes);
    return RAN;
}

static enum ran store_getrange(struct client *client, const struct request *request)
{
    const void *value = "";
    int64_t start, end;
    size_t bytes = 0;
    int rc;

    if (!point_integer(request_arg(request, 2), request_length(request, 2), &start) ||
        !point_integer(request_arg(request, 3), request_length(request, 3), &end)) {
        point_error(client, "ERR value is not an integer or out of range");
        return RAN;
    }
    rc = kv_get(session_of(client), request_arg(request, 1), request_length(request, 1), &value, &bytes);
    found(client, !rc);
    if (rc && rc != KV_NOT_FOUND && rc != -EINVAL && rc != KV_TOO_LARGE) {
        failed(client, rc);
        return RAN;
    }
    if (rc)
        bytes = 0;
    if (point_range((int64_t)bytes, &start, &end))
        point_bulk(client, (const char *)value + start, (size_t)(end - start + 1));
    else
        replies_puts(&client->conn, "$0\r\n\r\n");
    return RAN;
}

static enum ran store_dbsize(struct client *client, const struct request *request)
{
    (void)request;
    replies_printf(&client->conn, ":%llu\r\n", (unsigned long long)point_store_keys(client->conn.worker->server));
    return RAN;
}

/* ---- writing ---- */

static enum ran store_set(struct client *client, const struct request *request)
{
    bool absent = point_word(request, 3, "nx"), present = point_word(request, 3, "xx");
    size_t bytes;
    int rc = 0;

    if (request->count > 4 || (request->count == 4 && !absent && !present)) {
        point_error(client, "ERR syntax error");
        return RAN;
    }
    if (absent || present) { /* not atomic with the put: another client may come between */
        rc = kv_length(session_of(client), request_arg(request, 1), request_length(request, 1), &bytes);
        if ((absent && !rc) || (present && rc == KV_NOT_FOUND)) {
            replies_puts(&client->conn, "$-1\r\n");
            return RAN;
        }
        rc = rc == KV_NOT_FOUND ? 0 : rc;
    }
    if (!rc)
        rc = kv_put(session_of(client), request_arg(request, 1), request_length(request, 1), request_arg(request, 2),
                    request_length(request, 2));
    if (rc)
        failed(client, rc);
    else
        replies_puts(&client->conn, "+OK\r\n");
    return RAN;
}

/* All or none, as far as a batch goes; what is more or larger is entered one by one. */
static enum ran store_mset(struct client *client, const struct request *request)
{
    struct kv_write write[KV_BATCH_MAX];
    uint32_t count = (request->count - 1) / 2;
    int rc = KV_TOO_LARGE;

    if (request->count % 2 == 0) {
        point_wrong_arity(client, "mset", NULL);
        return RAN;
    }
    for (uint32_t i = 0; i < count && count <= KV_BATCH_MAX; i++)
        write[i] = (struct kv_write){request_arg(request, 1 + 2 * i), request_arg(request, 2 + 2 * i),
                                     request_length(request, 1 + 2 * i), request_length(request, 2 + 2 * i)};
    if (count <= KV_BATCH_MAX)
        rc = kv_batch(session_of(client), write, count);
    if (rc == KV_TOO_LARGE) {
        rc = 0;
        for (uint32_t i = 0; i < count && !rc; i++)
            rc = kv_put(session_of(client), request_arg(request, 1 + 2 * i), request_length(request, 1 + 2 * i),
                        request_arg(request, 2 + 2 * i), request_length(request, 2 + 2 * i));
    }
    if (rc)
        failed(client, rc);
    else
        replies_puts(&client->conn, "+OK\r\n");
    return RAN;
}

static enum ran store_del(struct client *client, const struct request *request)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i < request->count; i++) {
        int rc = kv_delete(session_of(client), request_arg(request, i), request_length(request, i));

        count += !rc;
        if (rc && rc != KV_NOT_FOUND && rc != -EINVAL && rc != KV_TOO_LARGE) {
            failed(client, rc);
            return RAN;
        }
    }
    replies_printf(&client->conn, ":%u\r\n", count);
    return RAN;
}

/* ---- SCAN ---- */

/* The key that a cursor stands for, into `key`. false: it is not known (any more). */
static bool cursor_find(struct cursors *cursors, uint64_t id, char key[KV_KEY_MAX], uint32_t *length)
{
    bool there;

    pthread_mutex_lock(&cursors->lock);
    there = cursors->at[id % CURSORS_MAX].id == id;
    if (there) {
        *length = cursors->at[id % CURSORS_MAX].length;
        memcpy(key, cursors->at[id % CURSORS_MAX].key, *length);
    }
    pthread_mutex_unlock(&cursors->lock);
    return there;
}

static uint64_t cursor_make(struct cursors *cursors, const void *key, size_t length)
{
    uint64_t id;

    pthread_mutex_lock(&cursors->lock);
    id = ++cursors->next;
    cursors->at[id % CURSORS_MAX].id = id;
    cursors->at[id % CURSORS_MAX].length = (uint32_t)length;
    memcpy(cursors->at[id % CURSORS_MAX].key, key, length);
    pthread_mutex_unlock(&cursors->lock);
    return id;
}

struct scan_options {
    char pattern[256]; /* empty: everything */
    int64_t count;
};

/* false: the client was told what is wrong. */
static bool scan_parse(struct client *client, const struct request *request, struct scan_options *o)
{
    for (uint32_t i = 2; i < request->count; i += 2) {
        if (i + 1 < request->count && point_word(request, i, "match") &&
            request_length(request, i + 1) < sizeof(o->pattern)) {
            snprintf(o->pattern, sizeof(o->pattern), "%s", request_arg(request, i + 1));
        } else if (i + 1 < request->count && point_word(request, i, "count")) {
            if (!point_integer(request_arg(request, i + 1), request_length(request, i + 1), &o->count) ||
                o->count < 1) {
                point_error(client, "ERR value is not an integer or out of range");
                return false;
            }
        } else if (i + 1 >= request->count || !point_word(request, i, "type")) {
            point_error(client, "ERR syntax error");
            return false;
        }
    }
    if (!strcmp(o->pattern, "*"))
        o->pattern[0] = '\0';
    return true;
}

static bool matches(const struct scan_options *o, const void *key, size_t length)
{
    char text[KV_KEY_MAX + 1];

    if (!o->pattern[0])
        return true;
    memcpy(text, key, length);
    text[length] = '\0';
    return !fnmatch(o->pattern, text, 0);
}

static enum ran store_scan(struct client *client, const struct request *request)
{
    struct point *point = point_of(client);
    struct scan_options o = {.count = 10};
    struct text keys = {.budget = &client->conn.worker->server->budget};
    const void *key = NULL, *value;
    char from[KV_KEY_MAX];
    uint32_t from_bytes = 0, count = 0;
    uint64_t cursor = 0;
    size_t key_bytes, value_bytes;
    kv_scan *scan = NULL;
    int64_t id, looked = 0;
    int rc;

    if (!point_integer(request_arg(request, 1), request_length(request, 1), &id) || id < 0 ||
        (id && !cursor_find(point->cursors, (uint64_t)id, from, &from_bytes))) {
        point_error(client, "ERR invalid cursor");
        return RAN;
    }
    if (!scan_parse(client, request, &o))
        return RAN;
    rc = kv_scan_open(session_of(client), id ? from : NULL, from_bytes, NULL, 0, 0, &scan);
    while (!rc && !(rc = kv_scan_next(scan, &key, &key_bytes, &value, &value_bytes))) {
        if (looked++ == o.count || looked > SCAN_MOST || text_bytes(&keys) > REPLIES_TEXT_MAX) {
            cursor = cursor_make(point->cursors, key, key_bytes); /* which comes first next time */
            break;
        }
        if (!matches(&o, key, key_bytes))
            continue;
        text_printf(&keys, "$%zu\r\n", key_bytes);
        text_add(&keys, key, key_bytes);
        text_add(&keys, "\r\n", 2);
        count++;
    }
    kv_scan_close(scan);
    if (rc && rc != KV_NOT_FOUND)
        failed(client, rc);
    else if (keys.failed)
        point_error(client, "ERR out of memory");
    else {
        char number[24];

        snprintf(number, sizeof(number), "%llu", (unsigned long long)cursor);
        replies_printf(&client->conn, "*2\r\n$%zu\r\n%s\r\n*%u\r\n", strlen(number), number, count);
        if (count)
            replies_text(&client->conn, text_at(&keys), text_bytes(&keys));
    }
    text_free(&keys);
    return RAN;
}

/* ---- the table ---- */

#define ROW(name, arity, run)                     \
    {                                             \
        name, arity, run, "", 1, 1, 1, NULL, NULL \
    }

static const struct command store_commands[] = {
    ROW("dbsize", 1, store_dbsize), ROW("del", -2, store_del),          ROW("exists", -2, store_exists),
    ROW("get", 2, store_get),       ROW("getrange", 4, store_getrange), ROW("mget", -2, store_mget),
    ROW("mset", -3, store_mset),    ROW("scan", -2, store_scan),        ROW("set", -3, store_set),
    ROW("strlen", 2, store_strlen), ROW("substr", 4, store_getrange),   ROW("unlink", -2, store_del),
};

const struct command *point_store_command(const char *name, uint32_t length)
{
    for (unsigned i = 0; i < sizeof(store_commands) / sizeof(store_commands[0]); i++)
        if (strlen(store_commands[i].name) == length && !strncasecmp(store_commands[i].name, name, length))
            return &store_commands[i];
    return NULL;
}

/* ---- the store ---- */

static void log_line(void *ctx, const char *line)
{
    struct serve_server *server = ctx;

    fprintf(stderr, "%s: %s\n", server->app->name, line);
}

int point_store_open(struct serve_server *server)
{
    struct point *point = server->app->options.own;
    struct kv_error error = {0};
    struct kv_options how = {.size = sizeof(how),
                             .memory = server->options.memory,
                             .sync = point->sync,
                             .create = true,
                             .buffered = server->options.direct == BP_OFF,
                             .log = log_line,
                             .log_ctx = server,
                             .error = &error};
    int rc = kv_open(point->kv_dir, &how, &point->store);

    if (rc) {
        fprintf(stderr, "%s: cannot open '%s': %s\n", server->app->name, point->kv_dir, error.text);
        return -1;
    }
    point->cursors = calloc(1, sizeof(*point->cursors));
    if (!point->cursors) {
        fprintf(stderr, "%s: no memory\n", server->app->name);
        return -1;
    }
    pthread_mutex_init(&point->cursors->lock, NULL);
    server->settles = true;
    for (unsigned i = 0; i < server->workers; i++) {
        kv_session *session;

        rc = kv_session_open(point->store, &session);
        if (rc) {
            fprintf(stderr, "%s: cannot open a session: %s\n", server->app->name, kv_strerror(rc));
            return -1;
        }
        kv_session_defer(session, true);
        server->worker[i].own = session;
    }
    return 0;
}

/* A log that has failed is for good: nothing more is answered, and the server ends. */
void point_store_settle(struct serve_worker *worker)
{
    if (!worker->own || !kv_commit(worker->own))
        return;
    fprintf(stderr, "%s: %s\n", worker->server->app->name, kv_session_error(worker->own));
    _exit(1);
}

void point_store_close(struct serve_server *server)
{
    struct point *point = server->app->options.own;
    struct kv_error error = {0};

    for (unsigned i = 0; i < server->workers; i++) {
        if (server->worker[i].own)
            kv_session_close(server->worker[i].own);
        server->worker[i].own = NULL;
    }
    if (point->store && kv_close(point->store, &error))
        fprintf(stderr, "%s: closing '%s': %s\n", server->app->name, point->kv_dir, error.text);
    point->store = NULL;
    if (point->cursors)
        pthread_mutex_destroy(&point->cursors->lock);
    free(point->cursors);
    point->cursors = NULL;
}

uint64_t point_store_keys(struct serve_server *server)
{
    struct point *point = server->app->options.own;

    return kv_entries(point->store);
}

void point_store_info(struct serve_server *server, struct text *text)
{
    struct point *point = server->app->options.own;
    struct kv_stat stat;

    if (kv_stat(point->store, &stat))
        return;
    text_printf(text, "db0:keys=%llu,expires=0,avg_ttl=0\r\nstore:%s\r\n", (unsigned long long)stat.entries,
                point->kv_dir);
#define LINE(name, unit, meaning) text_printf(text, "store_" #name ":%llu\r\n", (unsigned long long)stat.name);
    KV_STAT_TABLE(LINE)
#undef LINE
}
