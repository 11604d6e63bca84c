/* SPDX-License-Identifier: MIT */
/*
 * The Range header of HTTP (see range.h).
 */
#include "scan-server/range.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* Digits, if any; a number that does not fit is as good as the largest that does. */
static const char *number(const char *at, uint64_t *value, bool *any)
{
    *any = *at >= '0' && *at <= '9';
    *value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');

        *value = *value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *value * 10 + digit;
    }
    return at;
}

enum range range_parse(const char *value, uint64_t bytes, uint64_t *first, uint64_t *last)
{
    uint64_t from, to;
    bool has_from, has_to;
    const char *at;

    if (!value || strncasecmp(value, "bytes=", 6))
        return RANGE_ALL;
    at = number(skip_space(value + 6), &from, &has_from);
    if (*at != '-')
        return RANGE_ALL;
    at = skip_space(number(at + 1, &to, &has_to));
    if (*at || (!has_from && !has_to) || (has_from && has_to && from > to))
        return RANGE_ALL;
    if (!has_from) { /* the last `to` bytes */
        if (!to || !bytes)
            return RANGE_NONE;
        *first = to < bytes ? bytes - to : 0;
        *last = bytes - 1;
        return RANGE_PART;
    }
    if (from >= bytes)
        return RANGE_NONE;
    *first = from;
    *last = has_to && to < bytes ? to : bytes - 1;
    return RANGE_PART;
}
