/* SPDX-License-Identifier: MIT */
/*
 * The table of commands, and finding one (see point.h).
 *
 * Commands that would write are known by name, so that a client that tries one is told that this server does not
 * write, and not that it does not know the command. What Redis would say first, it says first: the name, then the
 * number of arguments, then whether it may.
 */
#include "point-server/point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define READ  "readonly fast", 1, 1, 1, "string"
#define READS "readonly fast", 1, -1, 1
#define CONN  "loading stale fast", 0, 0, 0, "connection"
#define SERVE "loading stale", 0, 0, 0, "server"
/* A row of a command that would write. */
#define WRITE(name, arity)                              \
    {                                                   \
        name, arity, NULL, "write", 1, 1, 1, NULL, NULL \
    }

/* In order of their names, as strcmp has it. */
const struct command point_commands[] = {
    WRITE("append", 3),
    {"auth", -2, point_auth, CONN, "Authenticates the connection; there is no password"},
    WRITE("bitfield", -2),
    WRITE("bitop", -4),
    WRITE("blmove", 6),
    WRITE("blmpop", -5),
    WRITE("blpop", -3),
    WRITE("brpop", -3),
    WRITE("brpoplpush", 4),
    WRITE("bzmpop", -5),
    WRITE("bzpopmax", -3),
    WRITE("bzpopmin", -3),
    {"client", -2, point_client, CONN, "Commands about connections"},
    {"command", -1, point_command_command, SERVE, "Lists the commands"},
    {"config", -2, point_config, SERVE, "Shows the server's settings"},
    WRITE("copy", -3),
    {"dbsize", 1, point_dbsize, "readonly fast", 0, 0, 0, "server", "Returns the number of pages in the file"},
    WRITE("decr", 2),
    WRITE("decrby", 3),
    WRITE("del", -2),
    {"echo", 2, point_echo, CONN, "Returns the given string"},
    {"exists", -2, point_exists, READS, "generic", "Counts which of the keys name a page of the file"},
    WRITE("expire", -3),
    WRITE("expireat", -3),
    WRITE("flushall", -1),
    WRITE("flushdb", -1),
    WRITE("geoadd", -5),
    WRITE("georadius", -6),
    WRITE("georadiusbymember", -5),
    WRITE("geosearchstore", -8),
    {"get", 2, point_get, READ, "Returns a page"},
    WRITE("getdel", 2),
    WRITE("getex", -2),
    {"getrange", 4, point_getrange, READ, "Returns some bytes of a page"},
    WRITE("getset", 3),
    WRITE("hdel", -3),
    {"hello", -1, point_hello, CONN, "Agrees on the protocol, which is RESP2"},
    WRITE("hincrby", 4),
    WRITE("hincrbyfloat", 4),
    WRITE("hmset", -4),
    WRITE("hset", -4),
    WRITE("hsetnx", 4),
    WRITE("incr", 2),
    WRITE("incrby", 3),
    WRITE("incrbyfloat", 3),
    {"info", -1, point_info, SERVE, "Returns statistics of the server and its pool"},
    WRITE("linsert", 5),
    WRITE("lmove", 5),
    WRITE("lmpop", -4),
    WRITE("lpop", -2),
    WRITE("lpush", -3),
    WRITE("lpushx", -3),
    WRITE("lrem", 4),
    WRITE("lset", 4),
    WRITE("ltrim", 4),
    {"mget", -2, point_mget, READS, "string", "Returns several pages"},
    WRITE("migrate", -6),
    WRITE("move", 3),
    WRITE("mset", -3),
    WRITE("msetnx", -3),
    WRITE("persist", 2),
    WRITE("pexpire", -3),
    WRITE("pexpireat", -3),
    WRITE("pfadd", -2),
    WRITE("pfmerge", -2),
    {"ping", -1, point_ping, CONN, "Returns PONG, or the given string"},
    WRITE("psetex", 4),
    {"quit", -1, point_quit, CONN, "Ends the connection"},
    WRITE("rename", 3),
    WRITE("renamenx", 3),
    {"reset", 1, point_reset, CONN, "Forgets the connection's name"},
    WRITE("restore", -4),
    WRITE("rpop", -2),
    WRITE("rpoplpush", 3),
    WRITE("rpush", -3),
    WRITE("rpushx", -3),
    WRITE("sadd", -3),
    WRITE("sdiffstore", -3),
    {"select", 2, point_select, CONN, "Selects database 0, the only one"},
    WRITE("set", -3),
    WRITE("setbit", 4),
    WRITE("setex", 4),
    WRITE("setnx", 3),
    WRITE("setrange", 4),
    WRITE("sinterstore", -3),
    WRITE("smove", 4),
    WRITE("sort", -2),
    WRITE("spop", -2),
    WRITE("srem", -3),
    {"strlen", 2, point_strlen, READ, "Returns the length of a page's value"},
    {"substr", 4, point_getrange, READ, "GETRANGE by its old name"},
    WRITE("sunionstore", -3),
    WRITE("swapdb", 3),
    WRITE("unlink", -2),
    WRITE("xack", -4),
    WRITE("xadd", -5),
    WRITE("xautoclaim", -6),
    WRITE("xclaim", -6),
    WRITE("xdel", -3),
    WRITE("xreadgroup", -7),
    WRITE("xsetid", -3),
    WRITE("xtrim", -4),
    WRITE("zadd", -4),
    WRITE("zdiffstore", -4),
    WRITE("zincrby", 4),
    WRITE("zinterstore", -4),
    WRITE("zmpop", -4),
    WRITE("zpopmax", -2),
    WRITE("zpopmin", -2),
    WRITE("zrangestore", -5),
    WRITE("zrem", -3),
    WRITE("zremrangebylex", 4),
    WRITE("zremrangebyrank", 4),
    WRITE("zremrangebyscore", 4),
    WRITE("zunionstore", -4),
};
const unsigned point_command_count = sizeof(point_commands) / sizeof(point_commands[0]);

const struct command *point_command(const char *name, uint32_t length)
{
    unsigned low = 0, high = point_command_count;

    while (low < high) {
        unsigned middle = (low + high) / 2;
        const char *there = point_commands[middle].name;
        int order = strncasecmp(name, there, length);

        if (order == 0 && there[length] != '\0')
            order = -1; /* a beginning of it */
        if (order == 0)
            return &point_commands[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool point_word(const struct request *request, uint32_t arg, const char *word)
{
    return arg < request->count && strlen(word) == request_length(request, arg) &&
           !strncasecmp(request_arg(request, arg), word, request_length(request, arg));
}

bool point_integer(const char *text, uint32_t length, int64_t *value)
{
    bool negative = length && text[0] == '-';
    uint64_t number = 0, most = negative ? (uint64_t)INT64_MAX + 1 : INT64_MAX;

    if (negative) {
        text++;
        length--;
    }
    if (!length || length > 19 || (text[0] == '0' && (length > 1 || negative)))
        return false;
    for (uint32_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        number = number * 10 + (unsigned)(text[i] - '0'); /* 19 digits fit */
    }
    if (number > most)
        return false;
    *value = negative ? (int64_t)(0 - number) : (int64_t)number;
    return true;
}

/* ---- replies ---- */

void point_error(struct client *client, const char *text)
{
    point_error_f(client, "%s", text);
}

void point_error_f(struct client *client, const char *format, ...)
{
    char line[512];
    va_list arguments;
    int n;

    line[0] = '-';
    va_start(arguments, format);
    n = vsnprintf(line + 1, sizeof(line) - 2, format, arguments);
    va_end(arguments);
    n = n < 0 ? 0 : n > (int)sizeof(line) - 3 ? (int)sizeof(line) - 3 : n;
    for (int i = 0; i < n; i++) {
        if (line[1 + i] == '\r' || line[1 + i] == '\n')
            line[1 + i] = ' ';
    }
    memcpy(line + 1 + n, "\r\n", 2); /* in place of the NUL and into the byte left free */
    serve_counted(client->conn.worker, SERVE_ERRORS, 1);
    replies_text(&client->conn, line, (size_t)n + 3);
}

void point_bulk(struct client *client, const char *bytes, size_t length)
{
    replies_printf(&client->conn, "$%zu\r\n", length);
    replies_text(&client->conn, bytes, length);
    replies_text(&client->conn, "\r\n", 2);
}

void point_wrong_arity(struct client *client, const char *command, const char *word)
{
    point_error_f(client, "ERR wrong number of arguments for '%s%s%s' command", command, word ? "|" : "",
                  word ? word : "");
}

static void unknown_command(struct client *client, const struct request *request)
{
    char arguments[160];
    size_t used = 0;

    arguments[0] = '\0';
    for (uint32_t i = 1; i < request->count && used < 128; i++)
        used += (size_t)snprintf(arguments + used, sizeof(arguments) - used, "'%.*s' ", 128 - (int)used,
                                 request_arg(request, i));
    point_error_f(client, "ERR unknown command '%.128s', with args beginning with: %s", request_arg(request, 0),
                  arguments);
}

void point_run(struct client *client, const struct request *request)
{
    const struct command *command = client->running;

    if (!command) {
        serve_counted(client->conn.worker, SERVE_COMMANDS, 1);
        client->next_arg = 0;
        command =
            point_of(client)->store ? point_store_command(request_arg(request, 0), request_length(request, 0)) : NULL;
        if (!command)
            command = point_command(request_arg(request, 0), request_length(request, 0));
        if (!command) {
            unknown_command(client, request);
            return;
        }
        if (command->arity > 0 ? request->count != (uint32_t)command->arity
                               : request->count < (uint32_t)-command->arity) {
            point_wrong_arity(client, command->name, NULL);
            return;
        }
        if (!command->run) {
            point_error(client, point_of(client)->store ? "ERR this store has strings only, and no such command"
                                                        : "READONLY You can't write against a read only replica.");
            return;
        }
    }
    client->running = command->run(client, request) == RAN_ON ? command : NULL;
}
