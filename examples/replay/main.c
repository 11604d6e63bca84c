/* SPDX-License-Identifier: MIT */
/*
 * bufpool-replay TRACE... : what hit rates would bufpool have on this trace?
 *
 * Replays block traces through the pool itself, over a null device, at one or several sizes, and prints hits, misses
 * and evictions; beside them, if asked, exact LRU and the optimum, computed here.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/models.h"
#include "replay/report.h"

#define SIZES_MAX      64u
#define TRACES_MAX     256u
#define SMALLEST       10u /* a share of a trace that comes to fewer pages is left out */
#define PAGES_DEFAULT  10000u
#define SAMPLE_DEFAULT 1024u
#define LAPS_DEFAULT   20u /* accesses a page, of generated traces */

struct pool_size {
    double percent; /* of the trace's pages; 0: see pages */
    uint32_t pages;
};

enum policy { POLICY_AUTO, POLICY_RECENT, POLICY_STABLE, POLICY_LRU, POLICY_MIN };

struct settings {
    uint64_t memory, seed;
    struct pool_size pool_size[SIZES_MAX];
    unsigned size_count;
    enum policy policy;
    bool compare_lru, compare_min, check_whatif, sizes_are_bytes;
    uint32_t extent_bytes, sample_pages, pages, length;
    const char *generate, *write, *plot;
};

static const char default_sizes[] = "1%,5%,10%,25%,50%";
static const char curve_sizes[] = "1%,2%,3%,5%,7%,10%,15%,20%,25%,30%,40%,50%,60%,70%,80%,90%,100%";

static const char usage[] =
    "usage: bufpool-replay [options] TRACE...\n"
    "\n"
    "Replays block traces through bufpool, over a device that answers at once, and prints the hit rates.\n"
    "A trace is text, or text compressed with gzip: one request a line, the page's number, optionally its\n"
    "length, optionally r or w; what follows # is skipped. Writes are replayed as reads.\n"
    "\n"
    "  --memory SIZE          the pool's memory in bytes (K, M, G); below 1M: so many 4 KiB frames\n"
    "  --sizes LIST           several pools: shares of the trace's pages, or pages: 1%,5%,2000\n"
    "                         (without any of these three: 1%,5%,10%,25%,50%; a share of fewer than 10\n"
    "                         pages is left out)\n"
    "  --curve                17 sizes from 1% to 100%\n"
    "  --policy NAME          the pool's auto (default), recent, stable; or one computed here: lru, min\n"
    "  --sample PAGES         of the small pools by which the pool chooses and estimates; default 1024, which\n"
    "                         pools have by themselves when they are large; 0, and with --memory: what they\n"
    "                         have at this size\n"
    "  --compare lru,min      beside it: exact LRU; the least misses that are possible (Belady's MIN)\n"
    "  --check-whatif         replay the sizes that the pool made estimates for, too, and compare\n"
    "  --plot FILE.png        hit rate against size, drawn by gnuplot; the data is left in FILE.dat\n"
    "  --extent SIZE          a miss reads so much: 4K to 2M, a power of two\n"
    "  --size-unit UNIT       of lengths in the trace: pages (default) or bytes\n"
    "  --generate KIND        instead of a file: loop, scan, zipf, hot+scan, drift\n"
    "  --pages N --length N --seed N    of generated traces: pages, accesses, randomness\n"
    "  --write FILE           write the trace, and replay nothing\n"
    "  --help\n";

/* ---- reading the command line ---- */

static int parse_number(const char *text, uint64_t most, uint64_t *number)
{
    char *end;

    if (*text < '0' || *text > '9')
        return -1;
    *number = strtoull(text, &end, 10);
    return *end || *number > most ? -1 : 0;
}

static int parse_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    const char *unit;
    unsigned shift = 0;

    if (*text < '0' || *text > '9')
        return -1;
    *bytes = strtoull(text, &end, 10);
    unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        shift = 10 * ((unsigned)(unit - units) + 1);
        end++;
    }
    if (*end || *bytes > UINT64_MAX >> 10 >> shift)
        return -1;
    *bytes <<= shift;
    return 0;
}

/* One of "5%", "0.5%", "2000". */
static int parse_size(const char *text, struct pool_size *size)
{
    uint64_t pages;
    char *end;

    *size = (struct pool_size){0};
    if (strchr(text, '%')) {
        size->percent = strtod(text, &end);
        return end != text && !strcmp(end, "%") && size->percent > 0 && size->percent <= 1000 ? 0 : -1;
    }
    if (parse_number(text, UINT32_MAX, &pages) || !pages)
        return -1;
    size->pages = (uint32_t)pages;
    return 0;
}

static int parse_sizes(const char *text, struct settings *set)
{
    char copy[512];
    char *rest = copy;
    char *word;

    if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
        return -1;
    while ((word = strtok_r(rest, ",", &rest)))
        if (set->size_count == SIZES_MAX || parse_size(word, &set->pool_size[set->size_count++]))
            return -1;
    return set->size_count ? 0 : -1;
}

static int parse_policy(const char *text, struct settings *set)
{
    static const char *const names[] = {[POLICY_AUTO] = "auto",
                                        [POLICY_RECENT] = "recent",
                                        [POLICY_STABLE] = "stable",
                                        [POLICY_LRU] = "lru",
                                        [POLICY_MIN] = "min"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(text, names[i])) {
            set->policy = (enum policy)i;
            return 0;
        }
    return -1;
}

static int parse_compare(const char *text, struct settings *set)
{
    set->compare_lru = !strcmp(text, "lru") || !strcmp(text, "lru,min") || !strcmp(text, "min,lru");
    set->compare_min = !strcmp(text, "min") || !strcmp(text, "lru,min") || !strcmp(text, "min,lru");
    return set->compare_lru || set->compare_min ? 0 : -1;
}

static int parse_unit(const char *text, struct settings *set)
{
    set->sizes_are_bytes = !strcmp(text, "bytes");
    return set->sizes_are_bytes || !strcmp(text, "pages") ? 0 : -1;
}

static int parse_u32(const char *text, uint64_t least, uint64_t most, uint32_t *number)
{
    uint64_t n;

    if (parse_bytes(text, &n) || n < least || n > most)
        return -1;
    *number = (uint32_t)n;
    return 0;
}

static int take_option(int option, const char *value, struct settings *set)
{
    switch (option) {
    case 'm':
        return parse_bytes(value, &set->memory) || set->memory < BP_PAGE_SIZE ? -1 : 0;
    case 's':
        return parse_sizes(value, set);
    case 'c':
        return parse_sizes(curve_sizes, set);
    case 'p':
        return parse_policy(value, set);
    case 'C':
        return parse_compare(value, set);
    case 'P':
        set->plot = value;
        return 0;
    case 'W':
        set->check_whatif = true;
        return 0;
    case 'e':
        return parse_u32(value, BP_PAGE_SIZE, BP_PAGE_SIZE << BP_ORDER_MAX, &set->extent_bytes);
    case 'a':
        return parse_u32(value, 0, 8192, &set->sample_pages);
    case 'u':
        return parse_unit(value, set);
    case 'g':
        set->generate = value;
        return 0;
    case 'n':
        return parse_u32(value, 2, UINT32_MAX / 2, &set->pages);
    case 'l':
        return parse_u32(value, 1, TRACE_ACCESSES_MAX, &set->length);
    case 'S':
        return parse_number(value, UINT64_MAX, &set->seed);
    default:
        set->write = value;
        return 0;
    }
}

static const struct option options[] = {
    {"memory", required_argument, NULL, 'm'},
    {"sizes", required_argument, NULL, 's'},
    {"curve", no_argument, NULL, 'c'},
    {"policy", required_argument, NULL, 'p'},
    {"compare", required_argument, NULL, 'C'},
    {"plot", required_argument, NULL, 'P'},
    {"check-whatif", no_argument, NULL, 'W'},
    {"extent", required_argument, NULL, 'e'},
    {"size-unit", required_argument, NULL, 'u'},
    {"sample", required_argument, NULL, 'a'},
    {"generate", required_argument, NULL, 'g'},
    {"pages", required_argument, NULL, 'n'},
    {"length", required_argument, NULL, 'l'},
    {"seed", required_argument, NULL, 'S'},
    {"write", required_argument, NULL, 'w'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* 0: go on; 1: help was given; -1: something is wrong, and was said. */
static int parse(int argc, char **argv, struct settings *set)
{
    int option;
    int which = 0;

    while ((option = getopt_long(argc, argv, "", options, &which)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (option == '?')
            return -1;
        if (take_option(option, optarg, set)) {
            fprintf(stderr, "bufpool-replay: --%s %s cannot be; see --help\n", options[which].name,
                    optarg ? optarg : "");
            return -1;
        }
    }
    if ((optind == argc) == !set->generate || argc - optind > (int)TRACES_MAX) {
        fprintf(stderr, "bufpool-replay: traces, or --generate, and at most %u; see --help\n", TRACES_MAX);
        return -1;
    }
    if (set->memory && set->size_count) {
        fprintf(stderr, "bufpool-replay: --memory is one size, --sizes and --curve are others: not both\n");
        return -1;
    }
    if (!set->memory && !set->size_count)
        parse_sizes(default_sizes, set);
    if (!set->length)
        set->length = set->pages * LAPS_DEFAULT;
    return 0;
}

/* ---- replaying ---- */

/* A policy that is computed here, at this many pages. */
static uint32_t model(enum policy policy, const struct trace *t, uint32_t pages)
{
    return policy == POLICY_LRU ? models_lru(t, pages) : models_min(t, pages);
}

static struct replay_options options_of(const struct settings *set)
{
    static const enum bp_policy policy[] = {
        [POLICY_AUTO] = BP_POLICY_AUTO, [POLICY_RECENT] = BP_POLICY_RECENT, [POLICY_STABLE] = BP_POLICY_STABLE};

    return (struct replay_options){.extent_bytes = set->extent_bytes,
                                   .sample_pages = set->sample_pages,
                                   .policy = set->policy < POLICY_LRU ? policy[set->policy] : BP_POLICY_AUTO};
}

/* The truth beside the estimates. */
static int check_whatif(const struct settings *set, const struct trace *t, struct outcome *out)
{
    struct outcome other;
    char why[400];

    for (unsigned i = 0; i < out->whatif_count; i++) {
        struct replay_options o = options_of(set);
        double pages = out->whatif[i].factor * out->pages;

        if (pages < 1 || pages > UINT32_MAX)
            continue;
        o.pages = (uint32_t)pages;
        if (replay_run(t, &o, &other, why, sizeof(why))) {
            fprintf(stderr, "bufpool-replay: %s\n", why);
            return -1;
        }
        out->whatif[i].misses = other.misses;
    }
    return 0;
}

static int replay_size(const struct settings *set, const struct trace *t, uint64_t memory, uint32_t pages,
                       struct outcome *out)
{
    struct replay_options o = options_of(set);
    char why[400];

    if (memory && memory < BP_MEMORY_MIN) {
        pages = (uint32_t)(memory / BP_PAGE_SIZE);
        memory = 0;
    }
    o.memory = memory;
    o.pages = pages;
    if (memory) /* a pool as it would be */
        o.sample_pages = 0;
    if (set->policy < POLICY_LRU || memory) { /* how many frames that is, only a pool knows */
        if (replay_run(t, &o, out, why, sizeof(why))) {
            fprintf(stderr, "bufpool-replay: %s\n", why);
            return -1;
        }
    } else {
        *out = (struct outcome){.pages = o.pages, .lru = UINT32_MAX, .min = UINT32_MAX};
    }
    if (set->policy >= POLICY_LRU)
        *out = (struct outcome){
            .pages = out->pages, .misses = model(set->policy, t, out->pages), .lru = UINT32_MAX, .min = UINT32_MAX};
    if (set->check_whatif && check_whatif(set, t, out))
        return -1;
    if (set->compare_lru)
        out->lru = models_lru(t, out->pages);
    if (set->compare_min)
        out->min = models_min(t, out->pages);
    if (out->misses == UINT32_MAX || (set->compare_lru && out->lru == UINT32_MAX) ||
        (set->compare_min && out->min == UINT32_MAX)) {
        fprintf(stderr, "bufpool-replay: not enough memory for the comparison\n");
        return -1;
    }
    return 0;
}

/* All sizes; row: SIZES_MAX of them. How many there are, or -1. */
static int replay_trace(const struct settings *set, const struct trace *t, struct row *row)
{
    int count = 0;

    if (set->memory) {
        row[0].trace = t;
        return replay_size(set, t, set->memory, 0, &row[0].outcome) ? -1 : 1;
    }
    for (unsigned i = 0; i < set->size_count; i++) {
        const struct pool_size *size = &set->pool_size[i];
        uint32_t pages = size->percent > 0 ? (uint32_t)(size->percent / 100 * t->distinct + 1e-9) : size->pages;

        if (size->percent > 0 && pages < SMALLEST) {
            printf("%s: %g %% are %u pages: left out\n", t->name, size->percent, pages);
            continue;
        }
        row[count].trace = t;
        if (replay_size(set, t, 0, pages, &row[count++].outcome))
            return -1;
    }
    return count;
}

static int open_trace(const struct settings *set, const char *path, struct trace *t)
{
    char why[400];
    int rc = set->generate ? trace_generate(t, set->generate, set->pages, set->length, set->seed, why, sizeof(why))
                           : trace_read(t, path, set->sizes_are_bytes, why, sizeof(why));

    if (!rc && set->write)
        rc = trace_write(t, set->write, why, sizeof(why));
    if (rc)
        fprintf(stderr, "bufpool-replay: %s\n", why);
    return rc;
}

int main(int argc, char **argv)
{
    struct settings set = {.pages = PAGES_DEFAULT, .seed = 1, .sample_pages = SAMPLE_DEFAULT};
    struct trace *trace = NULL;
    struct row *row = NULL;
    unsigned traces;
    unsigned count = 0;
    char why[400];
    int rc = parse(argc, argv, &set);

    if (rc)
        return rc < 0 ? 2 : 0;
    traces = set.generate ? 1 : (unsigned)(argc - optind);
    trace = calloc(traces, sizeof(*trace));
    row = calloc((size_t)traces * SIZES_MAX, sizeof(*row));
    rc = trace && row ? 0 : -1;
    for (unsigned i = 0; i < traces && !rc; i++) {
        int n = 0;

        rc = open_trace(&set, argv[optind + (int)i], &trace[i]);
        if (!rc && !set.write) {
            n = replay_trace(&set, &trace[i], &row[count]);
            rc = n < 0 ? -1 : 0;
        }
        if (!rc && n) {
            report_trace(&trace[i], &row[count], (unsigned)n);
            count += (unsigned)n;
        }
    }
    if (!rc && count > 1)
        report_summary(row, count);
    if (!rc && set.plot && count) {
        rc = report_plot(set.plot, row, count, why, sizeof(why));
        if (rc)
            fprintf(stderr, "bufpool-replay: %s\n", why);
        rc = rc < 0 ? -1 : 0;
    }
    for (unsigned i = 0; i < traces && trace; i++)
        trace_free(&trace[i]);
    free(trace);
    free(row);
    return rc ? 1 : 0;
}
