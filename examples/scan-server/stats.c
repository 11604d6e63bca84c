/* SPDX-License-Identifier: MIT */
/*
 * The statistics, as JSON (/stats, and /slabs for where the memory is) and in Prometheus' text format (/metrics): the files, the pool's, what the machine
 * gave, the server's own. Both are written from the same tables, the pool's from the library's (bp_stats_item).
 */
#include "scan-server/json.h"
#include "scan-server/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPS_MAX  16
#define ITEMS_MAX 32u
#define SLABS_MAX 1024 /* told of; each takes the library some microseconds */

/* ---- the server's own ---- */

static uint64_t uptime_ms(const struct serve_server *server)
{
    return (uint64_t)(serve_clock_ms() - server->started_ms);
}

struct item {
    const char *name;
    bool counter; /* else a gauge */
    const char *text;
    uint64_t value;
};

static unsigned server_items(struct serve_server *server, struct item item[ITEMS_MAX])
{
    const struct scan *scan = server->app->options.own;
    struct jobs_counts jobs;
    struct item *at = item;

    jobs_counts(scan->jobs, &jobs);
#define GAUGE(name, text, value) *at++ = (struct item){name, false, text, value}
#define COUNTER(name, text, value) \
    *at++ = (struct item)          \
    {                              \
        name, true, text, value    \
    }
    GAUGE("threads", "event loops", server->workers);
    GAUGE("clients", "connections open", serve_clients(server));
    GAUGE("clients_max", "connections allowed", server->options.clients_max);
    COUNTER("accepted", "connections accepted", atomic_load_explicit(&server->accepted, memory_order_relaxed));
    COUNTER("rejected", "connections turned away: too many",
            atomic_load_explicit(&server->rejected, memory_order_relaxed));
    COUNTER("requests", "requests answered", serve_sum(server, SERVE_COMMANDS));
    GAUGE("requests_in_last_second", "requests answered in the last second", serve_rate(server));
    COUNTER("errors", "requests answered with an error, or not to the end", serve_sum(server, SERVE_ERRORS));
    COUNTER("bytes_in", "bytes received", serve_sum(server, SERVE_BYTES_IN));
    COUNTER("bytes_out", "bytes sent", serve_sum(server, SERVE_BYTES_OUT));
    COUNTER("ended_by_timeout", "connections ended: the client did not go on", serve_sum(server, SERVE_ENDED_TIMEOUT));
    COUNTER("ended_by_client_memory", "connections ended: the memory for clients was used up",
            serve_sum(server, SERVE_ENDED_MEMORY));
    GAUGE("client_memory", "bytes of memory for clients in use",
          atomic_load_explicit(&server->budget.used, memory_order_relaxed));
    GAUGE("client_memory_limit", "bytes of memory for clients allowed", server->budget.limit);
    GAUGE("scans_running", "scans under way", jobs.running);
    GAUGE("scans_waiting", "scans that wait for their turn", jobs.waiting);
    COUNTER("scans_finished", "scans that came to their result", jobs.finished);
    COUNTER("scans_failed", "scans that ended with an error", jobs.failed);
    COUNTER("scans_cancelled", "scans whose client left", jobs.cancelled);
    COUNTER("scanned_bytes", "bytes that scans have gone through", jobs.bytes);
#undef GAUGE
#undef COUNTER
    return (unsigned)(at - item);
}

/* ---- JSON ---- */

static void files_json(struct serve_server *server, struct text *json)
{
    text_puts(json, "  \"files\": [");
    for (unsigned i = 0; i < server->file_count; i++) {
        const struct serve_file *file = &server->files[i];
        uint64_t bytes = 0;

        if (bp_file_size(file->file, &bytes))
            bytes = 0;
        text_puts(json, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        json_string(json, file->name);
        text_puts(json, ", \"path\": ");
        json_string(json, file->path);
        text_printf(json, ", \"bytes\": %llu, \"resident\": %llu, \"direct\": %s, \"extent_bytes\": %u}",
                    (unsigned long long)bytes, (unsigned long long)bp_file_resident(file->file),
                    bp_file_direct(file->file) ? "true" : "false", server->extent_bytes);
    }
    text_puts(json, "\n  ]");
}

static void pool_json(struct serve_server *server, struct text *json)
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

static void caps_json(struct serve_server *server, struct text *json)
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

void stats_json(struct serve_server *server, struct text *json)
{
    struct item item[ITEMS_MAX];
    unsigned count = server_items(server, item);

    text_puts(json, "{\n");
    files_json(server, json);
    text_puts(json, ",\n");
    pool_json(server, json);
    text_puts(json, ",\n");
    caps_json(server, json);
    text_puts(json, ",\n  \"server\": {");
    json_number(json, "", "uptime_ms", uptime_ms(server));
    for (unsigned i = 0; i < count; i++)
        json_number(json, ",", item[i].name, item[i].value);
    text_puts(json, "\n  }\n}\n");
}

void stats_slabs(struct serve_server *server, struct text *json)
{
    const size_t bytes = SLABS_MAX * sizeof(struct bp_slab);
    struct bp_slab *slab = serve_budget_take(json->budget, bytes) ? malloc(bytes) : NULL;
    int count = slab ? bp_pool_slabs(server->pool, slab, SLABS_MAX) : 0;

    json->failed |= !slab || count < 0;
    text_printf(json, "{\"count\": %d, \"slabs\": [", count);
    for (int i = 0; i < count && i < SLABS_MAX; i++) {
        text_printf(json,
                    "%s\n{\"state\": \"%s\", \"backing\": \"%s\", \"node\": %d, \"rings\": %u, \"bytes\": %llu, "
                    "\"populated\": %llu, \"free\": %llu}",
                    i ? "," : "", slab[i].state, slab[i].backing, slab[i].node, slab[i].rings,
                    (unsigned long long)slab[i].bytes, (unsigned long long)slab[i].populated,
                    (unsigned long long)slab[i].free);
    }
    text_puts(json, "]}\n");
    if (slab)
        serve_budget_give(json->budget, bytes);
    free(slab);
}

/* ---- Prometheus ---- */

/*
 * Lines that say what a metric is: one that counts ends in _total, and no other, one in bytes says so. Leaves its name
 * in `full`.
 */
static void metric_begin(struct text *out, const char *prefix, const char *name, const char *unit, bool counter,
                         const char *help, char full[128])
{
    static const char total[] = "_total";
    bool has_unit = !unit || strstr(name, unit) || (strcmp(unit, "bytes") != 0 && strcmp(unit, "ppm") != 0);
    size_t bytes = strlen(name), ending = sizeof(total) - 1;

    if (bytes > ending && !strcmp(name + bytes - ending, total))
        bytes -= ending;
    snprintf(full, 128, "%s_%.*s%s%s%s", prefix, (int)bytes, name, has_unit ? "" : "_", has_unit ? "" : unit,
             counter ? total : "");
    text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", full, help, full, counter ? "counter" : "gauge");
}

static void metric(struct text *out, const char *prefix, const char *name, const char *unit, bool counter,
                   const char *help, uint64_t value)
{
    char full[128];

    metric_begin(out, prefix, name, unit, counter, help, full);
    text_printf(out, "%s %llu\n", full, (unsigned long long)value);
}

/* A label's value, in quotation marks. */
static void label(struct text *out, const char *value)
{
    text_puts(out, "\"");
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            text_printf(out, "\\%c", *value);
        else if (*value == '\n')
            text_puts(out, "\\n");
        else
            text_add(out, value, 1);
    }
    text_puts(out, "\"");
}

static void files_metrics(struct serve_server *server, struct text *out)
{
    char full[128];

    for (unsigned resident = 0; resident < 2; resident++) {
        metric_begin(out, "bufpool", resident ? "file_resident" : "file_size", "bytes", false,
                     resident ? "bytes of the file in memory" : "size of the file", full);
        for (unsigned i = 0; i < server->file_count; i++) {
            uint64_t bytes = 0;

            if (bp_file_size(server->files[i].file, &bytes))
                continue;
            if (resident)
                bytes = bp_file_resident(server->files[i].file);
            text_printf(out, "%s{number=\"%u\",file=", full, i);
            label(out, server->files[i].name);
            text_printf(out, "} %llu\n", (unsigned long long)bytes);
        }
    }
}

static void caps_metrics(struct serve_server *server, struct text *out)
{
    struct bp_cap cap[CAPS_MAX];
    int count = bp_pool_caps(server->pool, cap, CAPS_MAX);
    char full[128];

    metric_begin(out, "bufpool", "facility_info", NULL, false, "what of the machine is used, always 1", full);
    for (int i = 0; i < count && i < CAPS_MAX; i++) {
        text_printf(out, "%s{facility=", full);
        label(out, cap[i].name);
        text_puts(out, ",asked=");
        label(out, cap[i].asked);
        text_puts(out, ",got=");
        label(out, cap[i].got);
        text_puts(out, "} 1\n");
    }
}

void stats_metrics(struct serve_server *server, struct text *out)
{
    struct bp_stats stats = {.size = sizeof(stats)};
    struct item item[ITEMS_MAX];
    unsigned count = server_items(server, item);
    const char *name, *unit, *meaning;
    enum bp_stat_kind kind;
    uint64_t value;

    if (!bp_pool_stats(server->pool, &stats)) {
        for (unsigned i = 0; bp_stats_item(&stats, i, &name, &unit, &kind, &meaning, &value); i++)
            metric(out, "bufpool", name, unit, kind == BP_STAT_COUNTER, meaning, value);
    }
    files_metrics(server, out);
    caps_metrics(server, out);
    metric(out, "scan_server", "uptime_seconds", NULL, false, "seconds since the start", uptime_ms(server) / 1000);
    for (unsigned i = 0; i < count; i++)
        metric(out, "scan_server", item[i].name, NULL, item[i].counter, item[i].text, item[i].value);
}
