/* SPDX-License-Identifier: MIT */
/*
 * The Range header of HTTP (RFC 9110, section 14).
 */
#ifndef SCAN_RANGE_H
#define SCAN_RANGE_H

#include <stdint.h>

#define RANGES_MAX 64u /* asked for at once; who asks for more gets the whole file */

enum range {
    RANGE_ALL,  /* none, too many, or not understood: all of it is a right answer */
    RANGE_PART, /* what is in the set, at least one */
    RANGE_NONE  /* asks for nothing that there is */
};

/* In the order in which they were asked for; those that overlap or touch are one, where the first of them was. */
struct range_set {
    unsigned count;
    struct {
        uint64_t first, last; /* bytes, within the file */
    } part[RANGES_MAX];
};

/*
 * What a value ("bytes=0-99", "bytes=100-", "bytes=-5,0-1") means for a file of so many bytes. NULL: there was no
 * header.
 */
enum range range_parse(const char *value, uint64_t bytes, struct range_set *);

#endif
