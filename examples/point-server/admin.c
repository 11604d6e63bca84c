/* SPDX-License-Identifier: MIT */
/*
 * Commands about the connection and the server (see point.h).
 */
#include "point-server/point.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ok(struct client *client)
{
    replies_puts(&client->conn, "+OK\r\n");
}

static void help(struct client *client, const char *const line[], unsigned count)
{
    replies_printf(&client->conn, "*%u\r\n", count);
    for (unsigned i = 0; i < count; i++)
        replies_printf(&client->conn, "+%s\r\n", line[i]);
}

static void unknown_word(struct client *client, const struct request *request, const char *command)
{
    point_error_f(client, "ERR unknown subcommand '%.128s'. Try %s HELP.", request_arg(request, 1), command);
}

enum ran point_ping(struct client *client, const struct request *request)
{
    if (request->count > 2)
        point_wrong_arity(client, "ping", NULL);
    else if (request->count == 2)
        point_bulk(client, request_arg(request, 1), request_length(request, 1));
    else
        replies_puts(&client->conn, "+PONG\r\n");
    return RAN;
}

enum ran point_echo(struct client *client, const struct request *request)
{
    point_bulk(client, request_arg(request, 1), request_length(request, 1));
    return RAN;
}

enum ran point_select(struct client *client, const struct request *request)
{
    int64_t index;

    if (!point_integer(request_arg(request, 1), request_length(request, 1), &index))
        point_error(client, "ERR value is not an integer or out of range");
    else if (index < INT32_MIN || index > INT32_MAX)
        point_error(client, "ERR value is out of range, value must between -2147483648 and 2147483647");
    else if (index != 0)
        point_error(client, "ERR DB index is out of range");
    else
        ok(client);
    return RAN;
}

enum ran point_quit(struct client *client, const struct request *request)
{
    (void)request;
    ok(client);
    serve_end_after_flush(&client->conn);
    return RAN;
}

/* ---- who a client is ---- */

/* Take a name, "" for none. false: it has characters that would tear CLIENT LIST apart, and the client was told. */
static bool set_name(struct client *client, const char *name, uint32_t length)
{
    char *copy = NULL, *before;

    for (uint32_t i = 0; i < length; i++) {
        if (name[i] < '!' || name[i] > '~') {
            point_error(client, "ERR Client names cannot contain spaces, newlines or special characters.");
            return false;
        }
    }
    if (length >= POINT_NAME_BYTES) {
        point_error_f(client, "ERR Client names cannot be longer than %u bytes.", POINT_NAME_BYTES - 1);
        return false;
    }
    if (length) {
        copy = strndup(name, length);
        if (!copy) {
            point_error(client, "ERR out of memory");
            return false;
        }
    }
    pthread_mutex_lock(&client->conn.worker->lock);
    before = client->name;
    client->name = copy;
    pthread_mutex_unlock(&client->conn.worker->lock);
    free(before);
    return true;
}

enum ran point_reset(struct client *client, const struct request *request)
{
    (void)request;
    if (set_name(client, "", 0))
        replies_puts(&client->conn, "+RESET\r\n");
    return RAN;
}

/* There is no password, so whoever is the default user may come in with any. */
enum ran point_auth(struct client *client, const struct request *request)
{
    if (request->count > 3)
        point_error(client, "ERR syntax error");
    else if (request->count == 2)
        point_error(client, "ERR AUTH <password> called without any password configured for the default user. Are you "
                            "sure your configuration is correct?");
    else if (point_word(request, 1, "default"))
        ok(client);
    else
        point_error(client, "WRONGPASS invalid username-password pair or user is disabled.");
    return RAN;
}

enum ran point_hello(struct client *client, const struct request *request)
{
    static const char wrong_option[] = "ERR Syntax error in HELLO option '%.128s'";
    int64_t protocol = 2;

    if (request->count > 1 && !point_integer(request_arg(request, 1), request_length(request, 1), &protocol)) {
        point_error(client, "ERR Protocol version is not an integer or out of range");
        return RAN;
    }
    if (protocol != 2) {
        point_error(client, "NOPROTO unsupported protocol version");
        return RAN;
    }
    for (uint32_t i = 2; i < request->count; i++) {
        uint32_t more = request->count - i - 1;

        if (point_word(request, i, "auth") && more >= 2) {
            if (!point_word(request, i + 1, "default")) {
                point_error(client, "WRONGPASS invalid username-password pair or user is disabled.");
                return RAN;
            }
            i += 2;
        } else if (point_word(request, i, "setname") && more >= 1) {
            if (!set_name(client, request_arg(request, i + 1), request_length(request, i + 1)))
                return RAN;
            i += 1;
        } else {
            point_error_f(client, wrong_option, request_arg(request, i));
            return RAN;
        }
    }
    replies_printf(&client->conn,
                   "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$%zu\r\n%s\r\n$5\r\nproto\r\n:2\r\n"
                   "$2\r\nid\r\n:%llu\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$7\r\nreplica\r\n"
                   "$7\r\nmodules\r\n*0\r\n",
                   strlen(POINT_REDIS_VERSION), POINT_REDIS_VERSION, (unsigned long long)client->conn.id);
    return RAN;
}

/* One line of CLIENT LIST. The client's worker is locked. */
static void describe(struct text *text, const struct client *of, int64_t now_ms)
{
    char peer[SERVE_ADDRESS_BYTES], own[SERVE_ADDRESS_BYTES];
    int64_t seen_ms = atomic_load_explicit(&of->conn.seen_ms, memory_order_relaxed);

    serve_address(of->conn.fd, true, peer, sizeof(peer));
    serve_address(of->conn.fd, false, own, sizeof(own));
    text_printf(text, "id=%llu addr=%s laddr=%s fd=%d name=%s age=%lld idle=%lld flags=N db=0 user=default resp=2\n",
                (unsigned long long)of->conn.id, peer, own, of->conn.fd, of->name ? of->name : "",
                (long long)(now_ms - of->conn.opened_ms) / 1000, (long long)(now_ms - seen_ms) / 1000);
}

/* The list may be long, so it is laid out apart and within the budget. */
static void client_list(struct client *client)
{
    struct serve_server *server = client->conn.worker->server;
    struct text list = {.budget = &server->budget};
    struct serve_conn *conn;

    for (unsigned i = 0; i < server->workers; i++) {
        struct serve_worker *worker = &server->worker[i];

        pthread_mutex_lock(&worker->lock);
        TAILQ_FOREACH(conn, &worker->all, all_link)
        {
            describe(&list, (const struct client *)conn, client->conn.worker->now_ms);
        }
        pthread_mutex_unlock(&worker->lock);
    }
    if (list.failed)
        point_error(client, "ERR no memory for the list of clients");
    else
        point_bulk(client, text_bytes(&list) ? text_at(&list) : "", text_bytes(&list));
    text_free(&list);
}

static void client_info(struct client *client)
{
    struct text line = {.budget = &client->conn.worker->server->budget};

    describe(&line, client, client->conn.worker->now_ms);
    if (line.failed)
        point_error(client, "ERR out of memory");
    else
        point_bulk(client, text_at(&line), text_bytes(&line));
    text_free(&line);
}

static void client_help(struct client *client)
{
    static const char *const line[] = {
        "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GETNAME",
        "    Return the name of the current connection.",
        "ID",
        "    Return the ID of the current connection.",
        "INFO",
        "    Return information about the current connection.",
        "LIST",
        "    Return information about all connections.",
        "SETINFO <option> <value>",
        "    Accepted, and not kept.",
        "SETNAME <name>",
        "    Assign the name <name> to the current connection.",
        "HELP",
        "    Print this help.",
    };

    help(client, line, sizeof(line) / sizeof(line[0]));
}

enum ran point_client(struct client *client, const struct request *request)
{
    static const struct {
        const char *word;
        uint32_t count;
    } words[] = {{"getname", 2}, {"help", 2}, {"id", 2}, {"info", 2}, {"list", 2}, {"setinfo", 4}, {"setname", 3}};
    const unsigned count = sizeof(words) / sizeof(words[0]);
    unsigned which = 0;

    while (which < count && !point_word(request, 1, words[which].word))
        which++;
    if (which == count) {
        unknown_word(client, request, "CLIENT");
    } else if (request->count != words[which].count) {
        if (which == 4 && request->count > 2)
            point_error(client, "ERR syntax error");
        else
            point_wrong_arity(client, "client", words[which].word);
    } else if (which == 0) {
        if (client->name)
            point_bulk(client, client->name, strlen(client->name));
        else
            replies_puts(&client->conn, "$-1\r\n");
    } else if (which == 1) {
        client_help(client);
    } else if (which == 2) {
        replies_printf(&client->conn, ":%llu\r\n", (unsigned long long)client->conn.id);
    } else if (which == 3) {
        client_info(client);
    } else if (which == 4) {
        client_list(client);
    } else if (which == 5) {
        ok(client);
    } else if (set_name(client, request_arg(request, 2), request_length(request, 2))) {
        ok(client);
    }
    return RAN;
}

/* ---- CONFIG ---- */

#define SETTINGS_MAX 16

struct setting {
    const char *name;
    char value[SERVE_HOST_BYTES];
};

static unsigned settings(struct client *client, struct setting into[SETTINGS_MAX])
{
    const struct serve_options *options = &client->conn.worker->server->options;
    const char *port = strrchr(client->conn.worker->server->where, ':');
    unsigned n = 0;

#define SETTING(setting_name, ...)                                     \
    do {                                                               \
        into[n].name = setting_name;                                   \
        snprintf(into[n++].value, sizeof(into[0].value), __VA_ARGS__); \
    } while (0)
    SETTING("appendonly", "no");
    SETTING("bind", "%s", options->host);
    SETTING("client-query-buffer-limit", "%u", REQUEST_BYTES_MAX);
    SETTING("databases", "1");
    SETTING("io-threads", "%u", options->threads);
    SETTING("maxclients", "%u", options->clients_max);
    SETTING("maxmemory", "%llu", (unsigned long long)options->memory);
    SETTING("maxmemory-clients", "%llu", (unsigned long long)options->client_memory);
    SETTING("port", "%s", port ? port + 1 : "0");
    SETTING("proto-max-bulk-len", "%u", REQUEST_ARG_MAX);
    SETTING("replica-read-only", "yes");
    SETTING("save", "%s", "");
    SETTING("timeout", "0");
#undef SETTING
    return n;
}

static void config_get(struct client *client, const struct request *request)
{
    struct setting setting[SETTINGS_MAX];
    unsigned count = settings(client, setting), chosen = 0;
    bool wanted[SETTINGS_MAX] = {false};

    for (unsigned i = 0; i < count; i++) {
        for (uint32_t a = 2; a < request->count && a < 66 && !wanted[i]; a++)
            wanted[i] = !fnmatch(request_arg(request, a), setting[i].name, FNM_CASEFOLD | FNM_NOESCAPE);
        chosen += wanted[i];
    }
    replies_printf(&client->conn, "*%u\r\n", chosen * 2);
    for (unsigned i = 0; i < count; i++) {
        if (!wanted[i])
            continue;
        point_bulk(client, setting[i].name, strlen(setting[i].name));
        point_bulk(client, setting[i].value, strlen(setting[i].value));
    }
}

enum ran point_config(struct client *client, const struct request *request)
{
    static const char *const line[] = {
        "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GET <pattern>",
        "    Return parameters matching the glob-like <pattern> and their values.",
        "HELP",
        "    Print this help.",
    };

    if (point_word(request, 1, "help"))
        help(client, line, sizeof(line) / sizeof(line[0]));
    else if (!point_word(request, 1, "get"))
        unknown_word(client, request, "CONFIG");
    else if (request->count < 3)
        point_wrong_arity(client, "config", "get");
    else
        config_get(client, request);
    return RAN;
}
