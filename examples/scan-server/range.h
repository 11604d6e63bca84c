/* SPDX-License-Identifier: MIT */
/*
 * The Range header of HTTP (RFC 9110, section 14).
 */
#ifndef SCAN_RANGE_H
#define SCAN_RANGE_H

#include <stdint.h>

enum range {
    RANGE_ALL,  /* none, several, or not understood: all of it is a right answer */
    RANGE_PART, /* [*first, *last], within the file */
    RANGE_NONE  /* asks for nothing that there is */
};

/* What a value ("bytes=0-99", "bytes=100-", "bytes=-5") means for a file of so many bytes. NULL: there was no header.
 */
enum range range_parse(const char *value, uint64_t bytes, uint64_t *first, uint64_t *last);

#endif
