/* SPDX-License-Identifier: MIT */
/*
 * Results as a table or as JSON lines. Ratios are of times: 0.5 is twice as fast as the baseline.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define NO_RATIO 0.0

/* Of one variant, over the rounds; nanoseconds an operation. */
struct summary {
    double ns, ns_min; /* by the case's clock */
    double wall, process_cpu;
    double per_second; /* operations of all threads */
    const char *baseline, *also;
    double ratio, also_ratio; /* NO_RATIO: the other one did not run */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double value[], unsigned n)
{
    qsort(value, n, sizeof(value[0]), compare);
    return n % 2 ? value[n / 2] : (value[n / 2 - 1] + value[n / 2]) / 2;
}

static double clock_of(const struct bench_result *r, const struct bench_sample *s)
{
    return r->bench_case->clock == BENCH_CPU ? s->cpu : s->wall;
}

/* The median of the rounds' ratios. */
static double ratio(const struct bench_result *r, unsigned v, const char *to)
{
    const struct bench_case *c = r->bench_case;
    double value[BENCH_ROUNDS_MAX];
    unsigned base = 0;

    while (base < c->variant_count && strcmp(c->variant[base].name, to) != 0)
        base++;
    if (base == c->variant_count || !r->ran[base])
        return NO_RATIO;
    for (unsigned i = 0; i < r->bench->rounds; i++)
        value[i] = clock_of(r, &r->sample[v][i]) / clock_of(r, &r->sample[base][i]);
    return median(value, r->bench->rounds);
}

static struct summary summarize(const struct bench_result *r, unsigned v)
{
    const struct bench_variant *variant = &r->bench_case->variant[v];
    unsigned rounds = r->bench->rounds;
    double ns[BENCH_ROUNDS_MAX], wall[BENCH_ROUNDS_MAX], cpu[BENCH_ROUNDS_MAX];
    struct summary s = {.baseline = variant->baseline ? variant->baseline : r->bench_case->variant[0].name,
                        .also = variant->also};

    for (unsigned i = 0; i < rounds; i++) {
        ns[i] = clock_of(r, &r->sample[v][i]);
        wall[i] = r->sample[v][i].wall;
        cpu[i] = r->sample[v][i].process_cpu;
    }
    s.ns = median(ns, rounds); /* sorts */
    s.ns_min = ns[0];
    s.wall = median(wall, rounds);
    s.process_cpu = median(cpu, rounds);
    s.per_second = r->bench->threads * 1e9 / s.wall;
    s.ratio = ratio(r, v, s.baseline);
    s.also_ratio = s.also ? ratio(r, v, s.also) : NO_RATIO;
    return s;
}

/* Of all threads, by the case's clock; an operation is a page. */
static double mib_per_second(const struct bench_result *r, const struct summary *s)
{
    return r->bench->threads * 1e9 / s->ns * BP_PAGE_SIZE / (1 << 20);
}

/* ---- JSON ---- */

static void json_ratio(const char *name, double value)
{
    if (value == NO_RATIO)
        printf(",\"%s\":null", name);
    else
        printf(",\"%s\":%.4f", name, value);
}

static void json_line(const struct bench_result *r, unsigned v)
{
    const struct bench_case *c = r->bench_case;
    const struct bench *b = r->bench;
    struct summary s = summarize(r, v);

    printf("{\"case\":\"%s\",\"variant\":\"%s\",\"ops\":%llu,\"ns_per_op\":%.3f,\"ns_min\":%.3f,\"clock\":\"%s\"",
           c->name, c->variant[v].name, (unsigned long long)b->ops, s.ns, s.ns_min,
           c->clock == BENCH_CPU ? "cpu" : "wall");
    printf(",\"wall_ns_per_op\":%.3f,\"cpu_ns_per_op\":%.3f,\"baseline\":\"%s\"", s.wall, s.process_cpu, s.baseline);
    json_ratio("ratio", s.ratio);
    if (s.also) {
        printf(",\"also\":\"%s\"", s.also);
        json_ratio("also_ratio", s.also_ratio);
    }
    if (c->rate == BENCH_IOPS)
        printf(",\"iops\":%.0f", s.per_second);
    if (c->rate == BENCH_MIB)
        printf(",\"mib_per_s\":%.1f", mib_per_second(r, &s));
    printf(",\"threads\":%u,\"rounds\":%u,\"bytes\":%llu}\n", b->threads, b->rounds, (unsigned long long)b->bytes);
}

/* ---- tables ---- */

static void table_head(const struct bench_result *r)
{
    const struct bench_case *c = r->bench_case;
    const struct bench *b = r->bench;

    printf("%s: %s\n", c->name, c->text);
    printf("  %llu operations a round, %u round%s, %u thread%s", (unsigned long long)b->ops, b->rounds,
           b->rounds == 1 ? "" : "s", b->threads, b->threads == 1 ? "" : "s");
    if (b->bytes)
        printf(", %.2f GiB", (double)b->bytes / (1u << 30));
    printf(", %s time\n", c->clock == BENCH_CPU ? "CPU" : "wall");
    printf("  %-19s %9s %9s", "variant", "ns/op", "best");
    if (c->clock == BENCH_WALL)
        printf(" %9s", "CPU ns/op");
    if (c->rate == BENCH_IOPS)
        printf(" %9s", "IOPS");
    if (c->rate == BENCH_MIB)
        printf(" %9s", "MiB/s");
    printf(" %8s  to\n", "ratio");
}

static void table_line(const struct bench_result *r, unsigned v)
{
    const struct bench_case *c = r->bench_case;
    struct summary s = summarize(r, v);

    printf("  %-19s %9.1f %9.1f", c->variant[v].name, s.ns, s.ns_min);
    if (c->clock == BENCH_WALL)
        printf(" %9.0f", s.process_cpu);
    if (c->rate == BENCH_IOPS)
        printf(" %9.0f", s.per_second);
    if (c->rate == BENCH_MIB)
        printf(" %9.0f", mib_per_second(r, &s));
    if (s.ratio == NO_RATIO)
        printf(" %8s", "-");
    else
        printf(" %8.3f  %s", s.ratio, s.baseline);
    if (s.also_ratio != NO_RATIO)
        printf(", %.3f %s", s.also_ratio, s.also);
    putchar('\n');
}

void bench_report(const struct bench_result *r)
{
    if (!r->bench->json)
        table_head(r);
    for (unsigned v = 0; v < r->bench_case->variant_count; v++) {
        if (!r->ran[v])
            continue;
        if (r->bench->json)
            json_line(r, v);
        else
            table_line(r, v);
    }
    if (!r->bench->json)
        putchar('\n');
    fflush(stdout);
}
