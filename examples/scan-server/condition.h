/* SPDX-License-Identifier: MIT */
/*
 * Validators of a file, and requests that depend on them (RFC 9110, sections 8.8 and 13).
 */
#ifndef SCAN_CONDITION_H
#define SCAN_CONDITION_H

#include "scan-server/request.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#define HTTP_DATE_BYTES 32u

/* What a file is known by. */
struct validators {
    char etag[80];
    char modified[HTTP_DATE_BYTES];
    time_t modified_s;
};

/* A date as HTTP writes it. */
void http_date(time_t when, char text[HTTP_DATE_BYTES]);

/*
 * The validators of a file that is open as fd (-1: it has none), if it is still what it was. false: it has none. The
 * file was opened for good, but others may write it, and then what is cached and what is read anew are not of one age:
 * a file that has changed since the start has no validators any more.
 */
bool validators_of(int fd, const struct stat *at_start, struct validators *);

enum condition { CONDITION_GO_ON, CONDITION_NOT_MODIFIED, CONDITION_FAILED };

/* What the If- fields say, in the order that the standard asks for. NULL: the file has no validators. */
enum condition condition_check(const struct http_request *, const struct validators *);

/* Is the range to be looked at? Not if it hangs on a file that is another one by now. */
bool condition_range_holds(const struct http_request *, const struct validators *);

#endif
