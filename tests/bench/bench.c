/* SPDX-License-Identifier: MIT */
/*
 * bufpool-bench: the command line. Cases run in the order given; neighbours with the same fixture share its set-up.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define ROUNDS_DEFAULT 7u
#define EXIT_USAGE     2

static const struct bench_case *const all_cases[] = {
    &bench_hit_dependent,
    &bench_hit,
    &bench_get_shared,
    &bench_batch_hit,
    &bench_hit_huge,
    &bench_scan_warm,
    &bench_copy_out_4k,
    &bench_copy_out_64k,
    &bench_copy_out_2m,
    &bench_pin_run,
    &bench_miss,
    &bench_descriptor_layout,
    &bench_descriptor_layout_dependent,
    &bench_index_lookup,
    &bench_index_lookup_near,
    &bench_index_insert,
    &bench_index_insert_shadow,
    &bench_index_insert_split,
    &bench_index_insert_exists,
    &bench_index_insert_run,
    &bench_index_insert_two,
    &bench_index_erase,
    &bench_index_batch_1,
    &bench_index_batch_4,
    &bench_index_batch_16,
    &bench_index_batch_31,
    &bench_fault_init,
    &bench_restart,
    &bench_compact,
    &bench_shrink,
    &bench_send,
    &bench_update,
    &bench_evict,
    &bench_fault,
    &bench_scan_resistance,
    &bench_pinned_99,
};

static void usage(FILE *to)
{
    fputs("usage: bufpool-bench --list\n"
          "       bufpool-bench NAME... [options]      NAME: a case, or all\n"
          "\n"
          "  --ops N        operations per round, variant and thread (default: the case's)\n"
          "  --rounds R     rounds over the variants, after one to warm up (default 7)\n"
          "  --threads T    threads that each run the operations, each with a session (default: the case's,\n"
          "                 mostly 1)\n"
          "  --bytes SIZE   size of what is accessed; K, M, G are powers of 1024 (default: the case's)\n"
          "  --variant V    only these, with commas between them; one with --rounds 1 runs without warm-up, for\n"
          "                 counting instructions: valgrind --tool=callgrind --toggle-collect=bench_measure\n"
          "  --json         one JSON line per variant\n"
          "  --dir DIR      where files are made: a real disk (default: $TMPDIR, else the current directory)\n"
          "  --file FILE    read this file in the case miss, instead of making one\n"
          "  --io WHAT      uring or psync: how the pool reads (default: what it finds)\n"
          "  --list         cases and their variants, the baseline first\n"
          "  --help         this\n"
          "\n"
          "ns/op is CPU time of the thread where everything is in memory, and time on the wall where a device is\n"
          "read. ratio is to the baseline, the median of the ratios of each round: below 1 is faster.\n",
          to);
}

static void list(void)
{
    for (unsigned i = 0; i < BENCH_COUNT(all_cases); i++) {
        const struct bench_case *c = all_cases[i];

        printf("%-28s %s\n%-28s ", c->name, c->text, "");
        for (unsigned v = 0; v < c->variant_count; v++)
            printf("%s%s", v ? ", " : "", c->variant[v].name);
        putchar('\n');
    }
}

static const struct bench_case *find(const char *name)
{
    for (unsigned i = 0; i < BENCH_COUNT(all_cases); i++)
        if (!strcmp(all_cases[i]->name, name))
            return all_cases[i];
    return NULL;
}

/* ---- options ---- */

static int parse_number(const char *option, const char *text, bool size, uint64_t max, uint64_t *value)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    unsigned shift = 0;
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    if (size && *end && (suffix = strchr(suffixes, *end & ~0x20)) != NULL) {
        shift = 10 * (unsigned)(suffix - suffixes + 1);
        end++;
    }
    if (errno || end == text || *end || *text == '-' || *value == 0 || *value > max >> shift)
        return bench_error("--%s: '%s' is not %s from 1 to %llu", option, text, size ? "a size" : "a number",
                           (unsigned long long)max);
    *value <<= shift;
    return 0;
}

static int parse_io(const char *text, enum bp_io *io)
{
    if (!strcmp(text, "uring"))
        *io = BP_IO_URING;
    else if (!strcmp(text, "psync"))
        *io = BP_IO_PSYNC;
    else
        return bench_error("--io: '%s' is neither uring nor psync", text);
    return 0;
}

static int parse_option(int option, struct bench *b)
{
    uint64_t n = 0;
    int rc = 0;

    switch (option) {
    case 'o':
        return parse_number("ops", optarg, false, 1ull << 40, &b->ops);
    case 'b':
        return parse_number("bytes", optarg, true, 1ull << 42, &b->bytes);
    case 'r':
        rc = parse_number("rounds", optarg, false, BENCH_ROUNDS_MAX, &n);
        b->rounds = (unsigned)n;
        return rc;
    case 't':
        rc = parse_number("threads", optarg, false, BENCH_THREADS_MAX, &n);
        b->threads = (unsigned)n;
        return rc;
    case 'v':
        b->variants = optarg;
        return 0;
    case 'j':
        b->json = true;
        return 0;
    case 'd':
        b->dir = optarg;
        return 0;
    case 'f':
        b->file = optarg;
        return 0;
    default:
        return parse_io(optarg, &b->io);
    }
}

/* Every name in --variant must be one of the cases'. */
static int check_variants(const struct bench *b, const struct bench_case *const chosen[], unsigned count)
{
    for (const char *at = b->variants; at && *at;) {
        size_t length = strcspn(at, ",");
        bool known = false;

        for (unsigned i = 0; i < count; i++)
            for (unsigned v = 0; v < chosen[i]->variant_count; v++)
                known |=
                    strlen(chosen[i]->variant[v].name) == length && !strncmp(chosen[i]->variant[v].name, at, length);
        if (!known)
            return bench_error("no case given has a variant '%.*s' (see --list)", (int)length, at);
        at += length + (at[length] == ',');
    }
    return 0;
}

/* ---- running ---- */

static int run_case(const struct bench *b, const struct bench_case *c, void *fixture)
{
    struct bench_result result;
    int rc = bench_run(b, c, fixture, &result);

    if (!rc && c->fixture->check)
        rc = c->fixture->check(fixture);
    if (!rc)
        bench_report(&result);
    bench_result_free(&result);
    return rc;
}

static int run_all(const struct bench *options, const struct bench_case *const chosen[], unsigned count)
{
    const struct bench_fixture *open = NULL;
    struct bench b = *options; /* the fixture keeps a pointer to it */
    void *fixture = NULL;
    uint64_t bytes = 0;
    int failed = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct bench_case *c = chosen[i];
        uint64_t wanted = options->bytes ? options->bytes : c->bytes;
        unsigned threads = options->threads ? options->threads : c->threads ? c->threads : 1;

        if (open && (open != c->fixture || bytes != wanted || b.threads != threads)) {
            open->close(fixture);
            open = NULL;
        }
        b.ops = options->ops ? options->ops : c->ops;
        b.bytes = bytes = wanted;
        b.threads = threads;
        if (!open) {
            fixture = NULL;
            if (c->fixture->open(&b, &fixture)) {
                bench_error("%s: the set-up failed", c->name);
                c->fixture->close(fixture);
                failed = 1;
                continue;
            }
            open = c->fixture;
        }
        if (run_case(&b, c, fixture)) {
            bench_error("%s: failed", c->name);
            failed = 1;
        }
    }
    if (open)
        open->close(fixture);
    return failed;
}

static int choose(int argc, char **argv, const struct bench_case *chosen[], unsigned max, unsigned *count)
{
    *count = 0;
    for (int i = 0; i < argc; i++) {
        const struct bench_case *c = find(argv[i]);
        bool all = !strcmp(argv[i], "all");

        if (!c && !all)
            return bench_error("no case is called '%s' (see --list)", argv[i]);
        if (*count + (all ? BENCH_COUNT(all_cases) : 1) > max)
            return bench_error("too many cases");
        for (unsigned k = 0; all && k < BENCH_COUNT(all_cases); k++)
            chosen[(*count)++] = all_cases[k];
        if (!all)
            chosen[(*count)++] = c;
    }
    return *count ? 0 : bench_error("which case? (see --list, --help)");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"ops", required_argument, NULL, 'o'},     {"rounds", required_argument, NULL, 'r'},
        {"threads", required_argument, NULL, 't'}, {"bytes", required_argument, NULL, 'b'},
        {"variant", required_argument, NULL, 'v'}, {"json", no_argument, NULL, 'j'},
        {"dir", required_argument, NULL, 'd'},     {"file", required_argument, NULL, 'f'},
        {"io", required_argument, NULL, 'i'},      {"list", no_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    struct bench b = {.rounds = ROUNDS_DEFAULT, .dir = getenv("TMPDIR")};
    const struct bench_case *chosen[64];
    unsigned count;
    int option;

    if (!b.dir || !*b.dir)
        b.dir = ".";
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == '?') {
            usage(stderr);
            return EXIT_USAGE;
        }
        if (option == 'h') {
            usage(stdout);
            return EXIT_SUCCESS;
        }
        if (option == 'l') {
            list();
            return EXIT_SUCCESS;
        }
        if (parse_option(option, &b))
            return EXIT_USAGE;
    }
    if (choose(argc - optind, argv + optind, chosen, BENCH_COUNT(chosen), &count) || check_variants(&b, chosen, count))
        return EXIT_USAGE;
    return run_all(&b, chosen, count) ? EXIT_FAILURE : EXIT_SUCCESS;
}
