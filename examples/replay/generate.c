/* SPDX-License-Identifier: MIT */
/* Traces of one kind each, for tests and for trying out: the extremes between which real ones lie. */
#include "replay/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char trace_kinds[] = "loop, scan, zipf, hot+scan, drift";

struct maker {
    struct trace *trace;
    uint32_t pages, count;
    uint64_t random;
};

/* S. Vigna's splitmix64: any seed will do. */
static uint64_t next_random(struct maker *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(struct maker *m, uint32_t limit)
{
    return (uint32_t)((next_random(m) >> 32) * limit >> 32);
}

/* All pages in order, over and over. */
static int make_loop(struct maker *m)
{
    int rc = 0;

    for (uint32_t i = 0; i < m->count && !rc; i++)
        rc = trace_add(m->trace, i % m->pages);
    return rc;
}

/* In order, and nothing ever again. */
static int make_scan(struct maker *m)
{
    int rc = 0;

    for (uint32_t i = 0; i < m->count && !rc; i++)
        rc = trace_add(m->trace, i);
    return rc;
}

/* The k-th most popular page is asked for 1/k times as often as the first; which page that is, is drawn. */
static int make_zipf(struct maker *m)
{
    double *until = malloc(m->pages * sizeof(*until)); /* sum of the weights up to this page */
    uint32_t *page = malloc(m->pages * sizeof(*page));
    double sum = 0;
    int rc = until && page ? 0 : -1;

    for (uint32_t i = 0; i < m->pages && !rc; i++) {
        uint32_t swap = below(m, i + 1);

        sum += 1.0 / (i + 1);
        until[i] = sum;
        page[i] = i;
        page[i] = page[swap];
        page[swap] = i;
    }
    for (uint32_t i = 0; i < m->count && !rc; i++) {
        double wanted = (double)(next_random(m) >> 11) * 0x1p-53 * sum;
        uint32_t low = 0;
        uint32_t high = m->pages - 1;

        while (low < high) {
            uint32_t middle = low + (high - low) / 2;

            if (until[middle] > wanted)
                high = middle;
            else
                low = middle + 1;
        }
        rc = trace_add(m->trace, page[low]);
    }
    free(until);
    free(page);
    return rc;
}

/* A tenth of the pages is hot and gets every other access; the others are read in order, once in a round. */
static int make_hot_and_scan(struct maker *m)
{
    uint32_t hot = m->pages / 10 + 1;
    uint32_t cold = m->pages > hot ? m->pages - hot : 1;
    int rc = 0;

    for (uint32_t i = 0; i < m->count && !rc; i++)
        rc = trace_add(m->trace, i % 2 ? hot + i / 2 % cold : below(m, hot));
    return rc;
}

/* A window of a tenth of the pages, any of which may be next; it moves on steadily, over all of them. */
static int make_drift(struct maker *m)
{
    uint32_t window = m->pages / 10 + 1;
    int rc = 0;

    for (uint32_t i = 0; i < m->count && !rc; i++)
        rc = trace_add(m->trace, (uint64_t)i * (m->pages - window) / m->count + below(m, window));
    return rc;
}

int trace_generate(struct trace *t, const char *kind, uint32_t pages, uint32_t count, uint64_t seed, char *why,
                   size_t size)
{
    static const struct {
        const char *name;
        int (*make)(struct maker *);
    } kinds[] = {{"loop", make_loop},
                 {"scan", make_scan},
                 {"zipf", make_zipf},
                 {"hot+scan", make_hot_and_scan},
                 {"drift", make_drift}};
    struct maker m = {.trace = t, .pages = pages, .count = count, .random = seed};

    *t = (struct trace){.name = kind};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strcmp(kind, kinds[i].name))
            continue;
        if (kinds[i].make(&m) || trace_number(t)) {
            snprintf(why, size, "%s: %s", kind, strerror(ENOMEM));
            return -1;
        }
        return 0;
    }
    snprintf(why, size, "%s is none of %s", kind, trace_kinds);
    return -1;
}
