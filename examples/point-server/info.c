/* SPDX-License-Identifier: MIT */
/*
 * INFO and COMMAND: what the server says about itself (see point.h).
 */
#include "point-server/point.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- INFO ---- */

static void info_server(struct serve_server *server, struct text *text)
{
    long long up_s = (serve_clock_ms() - server->started_ms) / 1000;
    const char *port = strrchr(server->where, ':');

    text_printf(text,
                "redis_version:" POINT_REDIS_VERSION "\r\nredis_mode:standalone\r\nserver_name:point-server\r\n"
                "bufpool_version:%u.%u.%u\r\nprocess_id:%ld\r\ntcp_port:%s\r\nthreads:%u\r\n"
                "uptime_in_seconds:%lld\r\nuptime_in_days:%lld\r\n",
                bp_version() >> 16, bp_version() >> 8 & 255, bp_version() & 255, (long)getpid(), port ? port + 1 : "0",
                server->workers, up_s, up_s / 86400);
}

static void info_clients(struct serve_server *server, struct text *text)
{
    text_printf(text, "connected_clients:%u\r\nmaxclients:%u\r\nclient_memory:%zu\r\nclient_memory_limit:%zu\r\n",
                serve_clients(server), server->options.clients_max,
                atomic_load_explicit(&server->budget.used, memory_order_relaxed), server->budget.limit);
}

/* Clients ask for `loading` before they believe that a server is ready. */
static void info_persistence(struct serve_server *server, struct text *text)
{
    (void)server;
    text_puts(text, "loading:0\r\n");
}

static void info_stats(struct serve_server *server, struct text *text)
{
#define SUM(which) (unsigned long long)serve_sum(server, which)
    text_printf(text,
                "total_connections_received:%llu\r\ntotal_commands_processed:%llu\r\n"
                "instantaneous_ops_per_sec:%llu\r\ntotal_net_input_bytes:%llu\r\ntotal_net_output_bytes:%llu\r\n"
                "rejected_connections:%llu\r\ntotal_error_replies:%llu\r\nkeyspace_hits:%llu\r\n"
                "keyspace_misses:%llu\r\nended_by_timeout:%llu\r\nended_by_client_memory:%llu\r\n",
                (unsigned long long)atomic_load_explicit(&server->accepted, memory_order_relaxed), SUM(SERVE_COMMANDS),
                (unsigned long long)serve_rate(server), SUM(SERVE_BYTES_IN), SUM(SERVE_BYTES_OUT),
                (unsigned long long)atomic_load_explicit(&server->rejected, memory_order_relaxed), SUM(SERVE_ERRORS),
                SUM(SERVE_FOUND), SUM(SERVE_ABSENT), SUM(SERVE_ENDED_TIMEOUT), SUM(SERVE_ENDED_MEMORY));
#undef SUM
}

static void info_pool(struct serve_server *server, struct text *text)
{
    struct bp_stats stats = {.size = sizeof(stats)};
    const char *name, *unit, *meaning;
    enum bp_stat_kind kind;
    uint64_t value;

    if (!server->pool || bp_pool_stats(server->pool, &stats))
        return;
    for (unsigned i = 0; bp_stats_item(&stats, i, &name, &unit, &kind, &meaning, &value); i++)
        text_printf(text, "pool_%s:%llu\r\n", name, (unsigned long long)value);
}

static void info_keyspace(struct serve_server *server, struct text *text)
{
    uint64_t bytes = 0;

    if (!server->pool) {
        point_store_info(server, text);
        return;
    }
    if (bp_file_size(server->file, &bytes))
        return;
    text_printf(text, "db0:keys=%llu,expires=0,avg_ttl=0\r\ndata_file:%s\r\ndata_bytes:%llu\r\ndata_direct_io:%d\r\n",
                (unsigned long long)point_pages(server), server->options.data[0], (unsigned long long)bytes,
                bp_file_direct(server->file));
}

static const struct {
    const char *name;
    void (*add)(struct serve_server *, struct text *);
} sections[] = {
    {"Server", info_server}, {"Clients", info_clients}, {"Persistence", info_persistence},
    {"Stats", info_stats},   {"Pool", info_pool},       {"Keyspace", info_keyspace},
};

static bool section_wanted(const struct request *request, const char *name)
{
    if (request->count == 1)
        return true;
    for (uint32_t i = 1; i < request->count && i < 33; i++) {
        if (point_word(request, i, name) || point_word(request, i, "all") || point_word(request, i, "default") ||
            point_word(request, i, "everything"))
            return true;
    }
    return false;
}

enum ran point_info(struct client *client, const struct request *request)
{
    struct serve_server *server = client->conn.worker->server;
    struct text text = {.budget = &server->budget};

    for (unsigned i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (!section_wanted(request, sections[i].name))
            continue;
        text_printf(&text, "%s# %s\r\n", text_bytes(&text) ? "\r\n" : "", sections[i].name);
        sections[i].add(server, &text);
    }
    if (text.failed)
        point_error(client, "ERR out of memory");
    else
        point_bulk(client, text_bytes(&text) ? text_at(&text) : "", text_bytes(&text));
    text_free(&text);
    return RAN;
}

/* ---- COMMAND ---- */

static bool listed(const struct command *command)
{
    return command->summary != NULL;
}

static unsigned listed_count(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < point_command_count; i++)
        count += listed(&point_commands[i]);
    return count;
}

static void describe(struct client *client, const struct command *command)
{
    const char *at = command->flags;
    unsigned flags = 1;

    for (const char *c = at; *c; c++)
        flags += *c == ' ';
    replies_printf(&client->conn, "*10\r\n$%zu\r\n%s\r\n:%d\r\n*%u\r\n", strlen(command->name), command->name,
                   command->arity, flags);
    while (*at) {
        int length = (int)strcspn(at, " ");

        replies_printf(&client->conn, "+%.*s\r\n", length, at);
        at += length;
        at += *at == ' ';
    }
    /* No categories, tips, key specifications or subcommands. */
    replies_printf(&client->conn, ":%d\r\n:%d\r\n:%d\r\n*0\r\n*0\r\n*0\r\n*0\r\n", command->key_first,
                   command->key_last, command->key_step);
}

static void document(struct client *client, const struct command *command)
{
    point_bulk(client, command->name, strlen(command->name));
    replies_puts(&client->conn, "*4\r\n$7\r\nsummary\r\n");
    point_bulk(client, command->summary, strlen(command->summary));
    replies_puts(&client->conn, "$5\r\ngroup\r\n");
    point_bulk(client, command->group, strlen(command->group));
}

static void command_all(struct client *client, void (*each)(struct client *, const struct command *), unsigned per)
{
    replies_printf(&client->conn, "*%u\r\n", per * listed_count());
    for (unsigned i = 0; i < point_command_count; i++) {
        if (listed(&point_commands[i]))
            each(client, &point_commands[i]);
    }
}

static const struct command *named(const struct request *request, uint32_t arg)
{
    const struct command *command = point_command(request_arg(request, arg), request_length(request, arg));

    return command && listed(command) ? command : NULL;
}

/* One answer per name, also for unknown ones. The replies may be long: within one room they are bounded by the request.
 */
static void command_info(struct client *client, const struct request *request)
{
    replies_printf(&client->conn, "*%u\r\n", request->count - 2);
    for (uint32_t i = 2; i < request->count && client->conn.ending == ENDING_NO; i++) {
        const struct command *command = named(request, i);

        if (command)
            describe(client, command);
        else
            replies_puts(&client->conn, "*-1\r\n");
    }
}

/* Those of the names that are known. */
static void command_docs(struct client *client, const struct request *request)
{
    unsigned known = 0;

    for (uint32_t i = 2; i < request->count; i++)
        known += named(request, i) != NULL;
    replies_printf(&client->conn, "*%u\r\n", 2 * known);
    for (uint32_t i = 2; i < request->count && client->conn.ending == ENDING_NO; i++) {
        if (named(request, i))
            document(client, named(request, i));
    }
}

static void name_only(struct client *client, const struct command *command)
{
    point_bulk(client, command->name, strlen(command->name));
}

enum ran point_command_command(struct client *client, const struct request *request)
{
    if (request->count == 1 || (request->count == 2 && point_word(request, 1, "info")))
        command_all(client, describe, 1);
    else if (point_word(request, 1, "info"))
        command_info(client, request);
    else if (point_word(request, 1, "docs") && request->count == 2)
        command_all(client, document, 2);
    else if (point_word(request, 1, "docs"))
        command_docs(client, request);
    else if (point_word(request, 1, "count") && request->count == 2)
        replies_printf(&client->conn, ":%u\r\n", listed_count());
    else if (point_word(request, 1, "list") && request->count == 2)
        command_all(client, name_only, 1);
    else if (point_word(request, 1, "help") && request->count == 2)
        replies_puts(&client->conn, "*5\r\n+COMMAND [INFO|DOCS [name ...]]\r\n+COMMAND COUNT\r\n+COMMAND LIST\r\n"
                                    "+COMMAND HELP\r\n+    The commands of this server.\r\n");
    else
        point_error_f(client, "ERR unknown subcommand '%.128s'. Try COMMAND HELP.", request_arg(request, 1));
    return RAN;
}
