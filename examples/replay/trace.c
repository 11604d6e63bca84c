/* SPDX-License-Identifier: MIT */
/* Reading and writing traces, and numbering their pages. */
#include "replay/trace.h"

#include <bufpool/bufpool.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define LINE_BYTES 256 /* longer lines are garbage, or comments */

int trace_add(struct trace *t, uint64_t page)
{
    if (t->count == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 65536;
        uint64_t *bigger = realloc(t->page, capacity * sizeof(*bigger));

        if (!bigger)
            return -1;
        t->page = bigger;
        t->capacity = capacity;
    }
    t->page[t->count++] = page;
    if (page >= t->page_limit)
        t->page_limit = page + 1;
    return 0;
}

/* Open addressing: a slot is the number of a page plus 1, which leads to where it came first. */
int trace_number(struct trace *t)
{
    size_t mask = 1024;
    uint32_t *slot = NULL;
    uint32_t *first = NULL; /* access by page number */
    int rc = -1;

    while (mask < 2 * (size_t)t->count)
        mask *= 2;
    slot = calloc(mask--, sizeof(*slot));
    first = malloc((t->count + 1) * sizeof(*first));
    t->id = malloc((t->count + 1) * sizeof(*t->id));
    if (!slot || !first || !t->id)
        goto out;
    for (uint32_t i = 0; i < t->count; i++) {
        size_t at = (t->page[i] * 0x9e3779b97f4a7c15u >> 20) & mask;

        while (slot[at] && t->page[first[slot[at] - 1]] != t->page[i])
            at = (at + 1) & mask;
        if (!slot[at]) {
            first[t->distinct] = i;
            slot[at] = ++t->distinct;
        }
        t->id[i] = slot[at] - 1;
    }
    rc = 0;
out:
    free(slot);
    free(first);
    return rc;
}

/* ---- reading ---- */

/* One line's request. */
struct request {
    uint64_t page;
    uint64_t length; /* 1 if the line says none */
    bool is_write, has_length, has_mode;
};

static const char *skip_separator(const char *at)
{
    while (*at == ' ' || *at == '\t' || *at == ',' || *at == '\r' || *at == '\n')
        at++;
    return at;
}

static bool word_ends(const char *at)
{
    return !*at || skip_separator(at) != at;
}

/* A decimal number that ends where a word may end; NULL: it is none. */
static const char *parse_number(const char *at, uint64_t *number)
{
    char *end;

    if (!isdigit((unsigned char)*at))
        return NULL;
    errno = 0;
    *number = strtoull(at, &end, 10);
    if (errno || !word_ends(end))
        return NULL;
    return end;
}

/* What is wrong with the words of a line that is not empty, or NULL. */
static const char *parse_line(const char *at, struct request *r)
{
    *r = (struct request){.length = 1};
    at = parse_number(at, &r->page);
    if (!at)
        return "does not begin with a page number";
    for (at = skip_separator(at); *at; at = skip_separator(at)) {
        if (strchr("rRwW", *at) && word_ends(at + 1) && !r->has_mode) {
            r->is_write = *at == 'w' || *at == 'W';
            r->has_mode = true;
            at++;
        } else if (!r->has_length && !r->has_mode) {
            at = parse_number(at, &r->length);
            if (!at)
                return "has a word after the page number that is neither a size nor r or w";
            r->has_length = true;
        } else {
            return "has more than a page number, a size, and r or w";
        }
    }
    return NULL;
}

static const char *add_request(struct trace *t, const struct request *r, bool sizes_are_bytes)
{
    uint64_t pages = r->length;

    if (sizes_are_bytes && r->has_length)
        pages = pages / BP_PAGE_SIZE + (pages % BP_PAGE_SIZE != 0);
    if (pages == 0 || pages > TRACE_REQUEST_MAX)
        return "has a size of nothing, or of more than 65,536 pages";
    if (r->page >= BP_PAGE_MAX || pages > BP_PAGE_MAX - r->page)
        return "has a page number that is not below 2^51";
    if (pages > TRACE_ACCESSES_MAX - t->count)
        return "is one too many: a trace has at most 1,000,000,000 accesses";
    for (uint64_t i = 0; i < pages; i++)
        if (trace_add(t, r->page + i))
            return "does not fit into memory";
    if (r->is_write)
        t->writes += (uint32_t)pages;
    return NULL;
}

/* The rest of a line that is longer than the buffer, which only comments may be. */
static void skip_line(gzFile file, char *line, int bytes)
{
    while (!strchr(line, '\n') && gzgets(file, line, bytes))
        ;
}

static int read_lines(struct trace *t, gzFile file, bool sizes_are_bytes, char *why, size_t size)
{
    char line[LINE_BYTES];
    struct request r;

    for (uint64_t number = 1; gzgets(file, line, sizeof(line)); number++) {
        const char *wrong = NULL;
        bool whole = strchr(line, '\n') || gzeof(file);
        char *comment = strchr(line, '#');
        const char *at;

        if (comment) {
            if (!whole)
                skip_line(file, (char[LINE_BYTES]){""}, LINE_BYTES);
            *comment = '\0';
            whole = true;
        }
        at = skip_separator(line);
        if (!whole)
            wrong = "is too long";
        else if (*at)
            wrong = parse_line(at, &r);
        if (!wrong && *at)
            wrong = add_request(t, &r, sizes_are_bytes);
        if (wrong) {
            line[strcspn(line, "\r\n")] = '\0';
            snprintf(why, size, "%s: line %llu %s: %.60s", t->name, (unsigned long long)number, wrong, line);
            return -1;
        }
    }
    return 0;
}

int trace_read(struct trace *t, const char *path, bool sizes_are_bytes, char *why, size_t size)
{
    gzFile file;
    int rc;
    int error;

    *t = (struct trace){.name = path};
    errno = 0;
    file = gzopen(path, "rb");
    if (!file) {
        snprintf(why, size, "%s: %s", path, strerror(errno ? errno : ENOMEM));
        return -1;
    }
    rc = read_lines(t, file, sizes_are_bytes, why, size);
    if (!rc && (gzerror(file, &error), error != Z_OK && error != Z_STREAM_END)) {
        snprintf(why, size, "%s: %s", path, error == Z_ERRNO ? strerror(errno) : gzerror(file, &error));
        rc = -1;
    }
    gzclose(file);
    if (!rc && !t->count) {
        snprintf(why, size, "%s: no page is asked for", path);
        rc = -1;
    }
    if (!rc && trace_number(t)) {
        snprintf(why, size, "%s: %s", path, strerror(ENOMEM));
        rc = -1;
    }
    return rc;
}

int trace_write(const struct trace *t, const char *path, char *why, size_t size)
{
    FILE *file = fopen(path, "w");
    bool failed = !file;

    for (uint32_t i = 0; i < t->count && !failed; i++)
        failed = fprintf(file, "%llu\n", (unsigned long long)t->page[i]) < 0;
    if (file && fclose(file))
        failed = true;
    if (failed)
        snprintf(why, size, "%s: %s", path, strerror(errno));
    return failed ? -1 : 0;
}

void trace_free(struct trace *t)
{
    free(t->page);
    free(t->id);
    *t = (struct trace){0};
}
