/* SPDX-License-Identifier: MIT */
/*
 * The JSON of /stats (see scan.h): the file, the pool's statistics, what the machine gave, the server's counters.
 */
#include "scan-server/scan.h"

#define CAPS_MAX 16

/* A string in quotation marks. Bytes outside of ASCII are passed through: paths and texts are UTF-8 or unusual. */
static void json_string(struct text *json, const char *string)
{
    text_puts(json, "\"");
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;

        if (c == '"' || c == '\\')
            text_printf(json, "\\%c", c);
        else if (c < 0x20)
            text_printf(json, "\\u%04x", c);
        else
            text_add(json, string, 1);
    }
    text_puts(json, "\"");
}

static void json_number(struct text *json, const char *before, const char *name, uint64_t value)
{
    text_printf(json, "%s\n    \"%s\": %llu", before, name, (unsigned long long)value);
}

static void file_stats(struct serve_server *server, struct text *json)
{
    uint64_t bytes = 0;

    if (bp_file_size(server->file, &bytes))
        bytes = 0;
    text_puts(json, "  \"file\": {\n    \"path\": ");
    json_string(json, server->options.data);
    text_printf(json, ",\n    \"bytes\": %llu,\n    \"direct\": %s,\n    \"extent_bytes\": %u\n  }",
                (unsigned long long)bytes, bp_file_direct(server->file) ? "true" : "false", server->extent_bytes);
}

static void pool_stats(struct serve_server *server, struct text *json)
{
    struct bp_stats stats = {.size = sizeof(stats)};
    const char *name, *unit, *meaning;
    enum bp_stat_kind kind;
    uint64_t value;

    text_puts(json, "  \"pool\": {");
    if (!bp_pool_stats(server->pool, &stats)) {
        for (unsigned i = 0; bp_stats_item(&stats, i, &name, &unit, &kind, &meaning, &value); i++)
            json_number(json, i ? "," : "", name, value);
    }
    text_puts(json, "\n  }");
}

static void caps_stats(struct serve_server *server, struct text *json)
{
    struct bp_cap cap[CAPS_MAX];
    int count = bp_pool_caps(server->pool, cap, CAPS_MAX);

    text_puts(json, "  \"caps\": [");
    for (int i = 0; i < count && i < CAPS_MAX; i++) {
        const char *const pair[][2] = {{"name", cap[i].name},
                                       {"asked", cap[i].asked},
                                       {"got", cap[i].got},
                                       {"reason", cap[i].reason},
                                       {"remedy", cap[i].remedy}};

        text_puts(json, i ? ",\n    {" : "\n    {");
        for (unsigned k = 0; k < sizeof(pair) / sizeof(pair[0]); k++) {
            text_printf(json, "%s\"%s\": ", k ? ", " : "", pair[k][0]);
            json_string(json, pair[k][1] ? pair[k][1] : "");
        }
        text_puts(json, "}");
    }
    text_puts(json, "\n  ]");
}

static void server_stats(struct serve_server *server, struct text *json)
{
    text_puts(json, "  \"server\": {");
    json_number(json, "", "uptime_ms", (uint64_t)(serve_clock_ms() - server->started_ms));
    json_number(json, ",", "threads", server->workers);
    json_number(json, ",", "clients", serve_clients(server));
    json_number(json, ",", "clients_max", server->options.clients_max);
    json_number(json, ",", "accepted", atomic_load_explicit(&server->accepted, memory_order_relaxed));
    json_number(json, ",", "rejected", atomic_load_explicit(&server->rejected, memory_order_relaxed));
    json_number(json, ",", "requests", serve_sum(server, SERVE_COMMANDS));
    json_number(json, ",", "requests_in_last_second", serve_rate(server));
    json_number(json, ",", "errors", serve_sum(server, SERVE_ERRORS));
    json_number(json, ",", "bytes_in", serve_sum(server, SERVE_BYTES_IN));
    json_number(json, ",", "bytes_out", serve_sum(server, SERVE_BYTES_OUT));
    json_number(json, ",", "ended_by_timeout", serve_sum(server, SERVE_ENDED_TIMEOUT));
    json_number(json, ",", "ended_by_client_memory", serve_sum(server, SERVE_ENDED_MEMORY));
    json_number(json, ",", "client_memory", atomic_load_explicit(&server->budget.used, memory_order_relaxed));
    json_number(json, ",", "client_memory_limit", server->budget.limit);
    text_puts(json, "\n  }");
}

void scan_stats(struct serve_server *server, struct text *json)
{
    text_puts(json, "{\n");
    file_stats(server, json);
    text_puts(json, ",\n");
    pool_stats(server, json);
    text_puts(json, ",\n");
    caps_stats(server, json);
    text_puts(json, ",\n");
    server_stats(server, json);
    text_puts(json, "\n}\n");
}
