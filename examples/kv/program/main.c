/* SPDX-License-Identifier: MIT */
/* kv DIR COMMAND: an ordered key-value store on the command line. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "kv/program/program.h"

static const char usage[] =
    "usage: kv DIR COMMAND [options]\n"
    "\n"
    "An ordered key-value store in a directory. Keys and values are text; \\t \\n \\r \\\\ and \\xHH stand for single "
    "bytes.\n"
    "\n"
    "  load [FILE]      entries, one a line: key, tab, value; or JSON, {\"key\": \"...\", \"value\": ...}\n"
    "  get KEY          print a value\n"
    "  put KEY VALUE    enter or replace\n"
    "  del KEY...       take out\n"
    "  scan             print entries in order [--from KEY] [--to KEY] [--limit N] [--reverse] [--json]\n"
    "                   (from is included, to is not)\n"
    "  stat             figures\n"
    "  check            look at everything: order, checksums, space\n"
    "  bench            YCSB: [--workload ABCDEF] [--engine kv,lmdb,rocksdb] [--records N] [--value BYTES]\n"
    "                   [--distribution zipf|uniform] [--threads N] [--seconds N | --ops N] [--rounds N]\n"
    "\n"
    "  --memory SIZE    of the pool (64M)\n"
    "  --sync HOW       when a write is done: always (synced), group (synced together with others; default), none\n"
    "\n"
    "load and put make the store if there is none. bench makes stores of its own inside DIR.\n"
    "Exit status: 0; 1: it failed, stderr says why; 2: the command line is wrong.\n";

static const struct {
    const char *name;
    int (*run)(const struct settings *);
} command[] = {
    {"load", command_load}, {"get", command_get},   {"put", command_put},     {"del", command_delete},
    {"scan", command_scan}, {"stat", command_stat}, {"check", command_check}, {"bench", command_bench},
};

int program_fail(const char *what, const char *why)
{
    fprintf(stderr, "kv: %s: %s\n", what, why);
    return EXIT_FAILED;
}

static void log_line(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "kv: %s\n", line);
}

kv *program_open(const struct settings *set, bool create)
{
    struct kv_error error = {0};
    struct kv_options how = {.size = sizeof(how),
                             .memory = set->memory,
                             .sync = set->sync,
                             .create = create,
                             .log = log_line,
                             .error = &error};
    kv *store;

    if (kv_open(set->dir, &how, &store)) {
        program_fail(set->dir, error.text);
        return NULL;
    }
    return store;
}

int program_close(kv *store, kv_session *s)
{
    struct kv_error error = {0};

    if (s)
        kv_session_close(s);
    return kv_close(store, &error) ? program_fail("closing", error.text) : 0;
}

static int parse_number(const char *text, uint64_t *number)
{
    char *end;

    if (*text < '0' || *text > '9')
        return -1;
    *number = strtoull(text, &end, 10);
    return *end ? -1 : 0;
}

static int parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end;

    if (*text < '0' || *text > '9')
        return -1;
    *bytes = strtoull(text, &end, 10);
    unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        unsigned shift = 10 * ((unsigned)(unit - units) + 1);

        if (*bytes > UINT64_MAX >> shift)
            return -1;
        *bytes <<= shift;
        end++;
    }
    return *end ? -1 : 0;
}

enum {
    OPT_MEMORY = 256,
    OPT_SYNC,
    OPT_FROM,
    OPT_TO,
    OPT_LIMIT,
    OPT_REVERSE,
    OPT_JSON,
    OPT_WORKLOAD,
    OPT_ENGINE,
    OPT_RECORDS,
    OPT_VALUE,
    OPT_DISTRIBUTION,
    OPT_THREADS,
    OPT_SECONDS,
    OPT_OPS,
    OPT_ROUNDS,
    OPT_HELP
};

static const struct option options[] = {{"memory", required_argument, NULL, OPT_MEMORY},
                                        {"sync", required_argument, NULL, OPT_SYNC},
                                        {"from", required_argument, NULL, OPT_FROM},
                                        {"to", required_argument, NULL, OPT_TO},
                                        {"limit", required_argument, NULL, OPT_LIMIT},
                                        {"reverse", no_argument, NULL, OPT_REVERSE},
                                        {"json", no_argument, NULL, OPT_JSON},
                                        {"workload", required_argument, NULL, OPT_WORKLOAD},
                                        {"engine", required_argument, NULL, OPT_ENGINE},
                                        {"records", required_argument, NULL, OPT_RECORDS},
                                        {"value", required_argument, NULL, OPT_VALUE},
                                        {"distribution", required_argument, NULL, OPT_DISTRIBUTION},
                                        {"threads", required_argument, NULL, OPT_THREADS},
                                        {"seconds", required_argument, NULL, OPT_SECONDS},
                                        {"ops", required_argument, NULL, OPT_OPS},
                                        {"rounds", required_argument, NULL, OPT_ROUNDS},
                                        {"help", no_argument, NULL, OPT_HELP},
                                        {NULL, 0, NULL, 0}};

static int parse_sync(const char *text, enum kv_sync *sync)
{
    static const char *const name[] = {"always", "group", "none"};

    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(text, name[i])) {
            *sync = (enum kv_sync)i;
            return 0;
        }
    return -1;
}

static int parse_small(const char *text, unsigned least, unsigned most, unsigned *number)
{
    uint64_t n;

    if (parse_number(text, &n) || n < least || n > most)
        return -1;
    *number = (unsigned)n;
    return 0;
}

/* 0, or -1: the value is none. */
static int take(struct settings *set, int option, const char *text)
{
    switch (option) {
    case OPT_MEMORY:
        return parse_size(text, &set->memory);
    case OPT_SYNC:
        return parse_sync(text, &set->sync);
    case OPT_FROM:
        set->from = text;
        return 0;
    case OPT_TO:
        set->to = text;
        return 0;
    case OPT_LIMIT:
        return parse_number(text, &set->limit);
    case OPT_REVERSE:
        set->reverse = true;
        return 0;
    case OPT_JSON:
        set->json = true;
        return 0;
    case OPT_WORKLOAD:
        set->workloads = text;
        return strspn(text, "ABCDEFabcdef") == strlen(text) ? 0 : -1;
    case OPT_ENGINE:
        set->engines = text;
        return 0;
    case OPT_RECORDS:
        return parse_number(text, &set->records) || !set->records || set->records > 1u << 30 ? -1 : 0;
    case OPT_VALUE:
        return parse_small(text, 8, 4096, &set->value_bytes);
    case OPT_DISTRIBUTION:
        set->distribution = text;
        return strcmp(text, "zipf") && strcmp(text, "uniform") ? -1 : 0;
    case OPT_THREADS:
        return parse_small(text, 1, 256, &set->threads);
    case OPT_SECONDS:
        return parse_small(text, 1, 86400, &set->seconds);
    case OPT_OPS:
        return parse_number(text, &set->ops);
    default:
        return parse_number(text, &set->rounds) || !set->rounds || set->rounds > 100 ? -1 : 0;
    }
}

int main(int argc, char **argv)
{
    struct settings set = {.memory = 64u << 20,
                           .sync = KV_SYNC_GROUP,
                           .workloads = "C",
                           .engines = "kv",
                           .distribution = "zipf",
                           .records = 1000000,
                           .threads = 1,
                           .seconds = 5,
                           .rounds = 1,
                           .value_bytes = 100};
    int option, index = 0;

    while ((option = getopt_long(argc, argv, "h", options, &index)) != -1) {
        if (option == 'h' || option == OPT_HELP) {
            fputs(usage, stdout);
            return EXIT_OK;
        }
        if (option == '?')
            return EXIT_USAGE;
        if (take(&set, option, optarg ? optarg : "")) {
            fprintf(stderr, "kv: --%s: `%s` is not possible\n", options[index].name, optarg);
            return EXIT_USAGE;
        }
    }
    if (argc - optind < 2) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    set.dir = argv[optind];
    set.command = argv[optind + 1];
    set.rest = argv + optind + 2;
    set.count = argc - optind - 2;
    for (size_t i = 0; i < sizeof(command) / sizeof(command[0]); i++)
        if (!strcmp(set.command, command[i].name))
            return command[i].run(&set);
    fprintf(stderr, "kv: there is no command `%s`; --help lists them\n", set.command);
    return EXIT_USAGE;
}
