/* SPDX-License-Identifier: MIT */
/*
 * Block traces: which pages were asked for, in order. Read from a file or made by a generator.
 *
 * As text, one request a line: the page's number; optionally how long the request is, in pages or bytes as the caller
 * of trace_read says; optionally r or w. Between them blanks, tabs or a comma. Empty lines and what follows a # are
 * skipped; anything else is an error that names the line. A request of several pages is as many accesses. Compressed
 * files (gzip) are read as they are.
 */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_ACCESSES_MAX 1000000000u
#define TRACE_REQUEST_MAX  65536u /* pages of one request */

struct trace {
    const char *name;    /* the caller's */
    uint64_t *page;      /* count of them */
    uint32_t *id;        /* the same pages numbered from 0 in the order in which they first come */
    uint32_t count;      /* accesses */
    uint32_t distinct;   /* pages */
    uint32_t writes;     /* accesses that the trace says are writes; replayed as the others */
    uint64_t page_limit; /* page numbers are below this */
    uint32_t capacity;
};

/* Read a file. 0; or -1, and why says what is wrong, and where. The trace is to be freed in any case. */
int trace_read(struct trace *, const char *path, bool sizes_are_bytes, char *why, size_t size);

/* What --generate knows, for --help. */
extern const char trace_kinds[];
/*
 * Make a trace: the same one for the same kind, pages, count and seed, on every machine. -1: no such kind, or no
 * memory; as trace_read.
 */
int trace_generate(struct trace *, const char *kind, uint32_t pages, uint32_t count, uint64_t seed, char *why,
                   size_t size);
int trace_write(const struct trace *, const char *path, char *why, size_t size);
void trace_free(struct trace *);

/* For those that fill a trace: one access more, then, when all are there, number the pages. 0 or -1: no memory. */
int trace_add(struct trace *, uint64_t page);
int trace_number(struct trace *);

#endif
