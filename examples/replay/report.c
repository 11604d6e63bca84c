/* SPDX-License-Identifier: MIT */
/* What was measured, for people (a table of plain text) and for gnuplot (data and a script). */
#include "replay/report.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

#define WHATIF_POINTS 3.0  /* estimates that are off by more are named */
#define OVER_LRU      1.05 /* rows with more misses than so many times LRU's are named */

static double miss_ratio(const struct trace *t, uint32_t misses)
{
    return (double)misses / t->count;
}

static void print_rate(const struct trace *t, uint32_t misses)
{
    if (misses == UINT32_MAX)
        printf("       -");
    else
        printf("  %6.4f", miss_ratio(t, misses));
}

/* "whatif_2: 12345 (requests, ...)"; rows of one size. */
static void print_whatif(const struct row *row)
{
    for (unsigned i = 0; i < row->outcome.whatif_count; i++) {
        const struct whatif *w = &row->outcome.whatif[i];

        printf("%10u  %-12s %8llu %s", row->outcome.pages, w->name, (unsigned long long)w->value, w->unit);
        if (w->misses != UINT32_MAX)
            printf("  replayed %8.0f  off by %+6.2f points", 1e6 * outcome_hit_rate(row->trace, w->misses),
                   whatif_error(row->trace, w));
        printf("  (%s)\n", w->text);
    }
}

void report_trace(const struct trace *t, const struct row *row, unsigned count)
{
    bool whatif = false;

    printf("\n%s: %u accesses to %u pages, %u of them writes\n", t->name, t->count, t->distinct, t->writes);
    printf("%10s %7s %10s %10s %8s %10s %10s   misses of all\n", "pages", "share", "hits", "misses", "hit rate",
           "evictions", "refaults");
    printf("%71s   %6s  %6s  %6s\n", "", "pool", "LRU", "MIN");
    for (unsigned i = 0; i < count; i++) {
        const struct outcome *o = &row[i].outcome;

        printf("%10u %5.1f %% %10u %10u %8.4f %10llu %10llu ", o->pages, 100.0 * o->pages / t->distinct,
               t->count - o->misses, o->misses, outcome_hit_rate(t, o->misses), (unsigned long long)o->evictions,
               (unsigned long long)o->refaults);
        print_rate(t, o->misses);
        print_rate(t, o->lru);
        print_rate(t, o->min);
        printf("\n");
        whatif |= o->whatif_count != 0;
    }
    if (whatif)
        printf("what another size would have given, as the pool saw it:\n");
    for (unsigned i = 0; i < count; i++)
        print_whatif(&row[i]);
}

/* ---- summary ---- */

static void summarize_whatif(const struct row *row, unsigned count)
{
    double worst = 0, sum = 0;
    unsigned beyond = 0, points = 0;

    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < row[i].outcome.whatif_count; k++) {
            const struct whatif *w = &row[i].outcome.whatif[k];
            double off;

            if (w->misses == UINT32_MAX)
                continue;
            off = fabs(whatif_error(row[i].trace, w));
            worst = off > worst ? off : worst;
            sum += off;
            points++;
            if (off > WHATIF_POINTS) {
                beyond++;
                printf("estimate off by %+.2f points: %s at %u pages, %s\n", whatif_error(row[i].trace, w),
                       row[i].trace->name, row[i].outcome.pages, w->name);
            }
        }
    if (points)
        printf("estimates of other sizes, %u: off by %.2f points on average, %.2f at worst, %u by more than %.0f\n",
               points, sum / points, worst, beyond, WHATIF_POINTS);
}

/* A miss ratio of 0 has no logarithm: half a miss is taken for it. */
static double log_ratio(const struct trace *t, uint32_t misses)
{
    return log(misses ? miss_ratio(t, misses) : 0.5 / t->count);
}

void report_summary(const struct row *row, unsigned count)
{
    double pool = 0, lru = 0, min = 0;
    bool has_lru = true, has_min = true;
    unsigned over = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct outcome *o = &row[i].outcome;

        pool += log_ratio(row[i].trace, o->misses);
        has_lru &= o->lru != UINT32_MAX;
        has_min &= o->min != UINT32_MAX;
        lru += has_lru ? log_ratio(row[i].trace, o->lru) : 0;
        min += has_min ? log_ratio(row[i].trace, o->min) : 0;
    }
    printf("\ngeometric mean of the miss ratios, %u rows: pool %.4f", count, exp(pool / count));
    if (has_lru)
        printf(", LRU %.4f", exp(lru / count));
    if (has_min)
        printf(", MIN %.4f", exp(min / count));
    printf("\n");
    for (unsigned i = 0; i < count && has_lru; i++) {
        const struct outcome *o = &row[i].outcome;
        double more = o->lru ? (double)o->misses / o->lru : 1;

        if (more > OVER_LRU) {
            printf("over LRU by %.1f %%: %s at %u pages\n", 100 * (more - 1), row[i].trace->name, o->pages);
            over++;
        }
    }
    if (has_lru)
        printf("rows more than 5 %% over LRU: %u\n", over);
    summarize_whatif(row, count);
}

/* ---- plot ---- */

/* Without folders and endings. */
static void short_name(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    size_t length;

    path = slash ? slash + 1 : path;
    length = strcspn(path, ".");
    snprintf(out, size, "%.*s", (int)(length < 100 ? length : 100), path);
}

/* Inside single quotes a quote is written twice. */
static void put_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

/* A block of lines for each trace: pages, share in percent, hit rates in percent of pool, LRU, MIN ("?": unknown). */
static void write_data(FILE *out, const struct row *row, unsigned count)
{
    fprintf(out, "# pages, percent of the trace's, hit rate in percent: pool, LRU, MIN\n");
    for (unsigned i = 0; i < count; i++) {
        const struct trace *t = row[i].trace;
        const struct outcome *o = &row[i].outcome;
        const uint32_t misses[] = {o->misses, o->lru, o->min};

        if (!i || t != row[i - 1].trace)
            fprintf(out, "%s# %s\n", i ? "\n\n" : "", t->name);
        fprintf(out, "%u %.3f", o->pages, 100.0 * o->pages / t->distinct);
        for (unsigned k = 0; k < 3; k++)
            if (misses[k] == UINT32_MAX)
                fprintf(out, " ?");
            else
                fprintf(out, " %.3f", 100 * outcome_hit_rate(t, misses[k]));
        fprintf(out, "\n");
    }
}

static void write_script(FILE *out, const char *png, const char *data, const struct row *row, unsigned count)
{
    unsigned panels = 0;
    unsigned columns;
    unsigned block = 0;
    char name[104];

    for (unsigned i = 0; i < count; i++)
        panels += !i || row[i].trace != row[i - 1].trace;
    columns = panels < 3 ? panels : 3;
    fprintf(out, "set terminal pngcairo size %u,%u\nset output ", 400 * columns + 80,
            300 * ((panels + columns - 1) / columns) + 40);
    put_quoted(out, png);
    fprintf(out,
            "\nset datafile missing '?'\nset key right bottom\nset grid\nset yrange [0:100]\n"
            "set xlabel 'pool, %% of the pages'\nset ylabel 'hit rate, %%'\nset multiplot layout %u,%u\ndata = ",
            (panels + columns - 1) / columns, columns);
    put_quoted(out, data);
    fprintf(out, "\n");
    for (unsigned i = 0; i < count; i++) {
        if (i && row[i].trace == row[i - 1].trace)
            continue;
        fprintf(out, "set title ");
        short_name(row[i].trace->name, name, sizeof(name));
        put_quoted(out, name);
        fprintf(out,
                " noenhanced\nplot data index %u using 2:5 with lines dashtype 2 title 'optimum', "
                "data index %u using 2:4 with lines title 'LRU', "
                "data index %u using 2:3 with linespoints pointsize 0.5 title 'bufpool'\n",
                block, block, block);
        block++;
    }
    fprintf(out, "unset multiplot\n");
}

/* 0, -1: it failed, 1: there is none. */
static int run_gnuplot(const char *script)
{
    char *const argv[] = {"gnuplot", (char *)(uintptr_t)script, NULL};
    pid_t child;
    int status = 0;
    int rc = posix_spawnp(&child, argv[0], NULL, NULL, argv, environ);

    if (rc)
        return rc == ENOENT ? 1 : -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return 1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* path with another ending; -1: too long. */
static int beside(const char *path, const char *ending, char *out, size_t size)
{
    size_t length = strlen(path);

    if (length > 4 && !strcmp(path + length - 4, ".png"))
        length -= 4;
    return (size_t)snprintf(out, size, "%.*s%s", (int)length, path, ending) < size ? 0 : -1;
}

int report_plot(const char *path, const struct row *row, unsigned count, char *why, size_t size)
{
    char data[1024], script[1024];
    FILE *out[2] = {NULL, NULL};
    bool failed = true;
    int rc = -1;

    errno = ENAMETOOLONG;
    if (beside(path, ".dat", data, sizeof(data)) || beside(path, ".gnuplot", script, sizeof(script)))
        goto out;
    out[0] = fopen(data, "w");
    out[1] = fopen(script, "w");
    if (!out[0] || !out[1])
        goto out;
    write_data(out[0], row, count);
    write_script(out[1], path, data, row, count);
    failed = ferror(out[0]) || ferror(out[1]);
out:
    for (unsigned i = 0; i < 2; i++)
        if (out[i] && fclose(out[i]))
            failed = true;
    if (failed) {
        snprintf(why, size, "%s and what belongs to it: %s", path, strerror(errno));
        return -1;
    }
    rc = run_gnuplot(script);
    if (rc == 1)
        snprintf(why, size, "gnuplot is not installed: the data is in %s, gnuplot %s will draw it", data, script);
    else if (rc)
        snprintf(why, size, "gnuplot %s failed", script);
    return rc;
}
