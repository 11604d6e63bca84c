/* SPDX-License-Identifier: MIT */
/*
 * What a URL asks for: a path, and names with values behind the question mark, all of it
 * percent-decoded; in names and values a '+' is a space, as forms and URLSearchParams write it.
 */
#ifndef SCAN_QUERY_H
#define SCAN_QUERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUERY_PARTS_MAX 16u

/* Bytes, which may be any, NUL too; there is always a NUL behind them. */
struct query_bytes {
    const char *at;
    size_t count;
};

struct query {
    struct query_bytes path; /* begins with '/' */
    unsigned count;
    struct {
        struct query_bytes name, value;
    } part[QUERY_PARTS_MAX];
    char bytes[1024]; /* all of them */
};

/*
 * Take a URL apart ("/scan?op=count", or "http://host/..."). false: it is malformed, has too many parts, one twice, or is
 * too long.
 */
bool query_parse(const char *url, struct query *);

/* The value of a name; NULL if it is not there. Its bytes may contain NUL only where the caller looks at count. */
const struct query_bytes *query_value(const struct query *, const char *name);

/* A decimal number; missing: `absent`. false: there is something that is none, or is larger than `most`. */
bool query_number(const struct query *, const char *name, uint64_t most, uint64_t absent, uint64_t *value);

/* Is there a name that is not in this list, which ends with NULL? It, or NULL. */
const char *query_unknown(const struct query *, const char *const known[]);

#endif
