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

/* Room for one more in the set: take out what it overlaps with or touches, which makes it larger. */
static void add(struct range_set *set, uint64_t first, uint64_t last)
{
    unsigned place = set->count;

    for (unsigned i = 0; i < set->count;) {
        if (first > set->part[i].last + 1 || set->part[i].first > last + 1) {
            i++;
            continue;
        }
        first = first < set->part[i].first ? first : set->part[i].first;
        last = last > set->part[i].last ? last : set->part[i].last;
        place = i < place ? i : place;
        set->count--;
        memmove(&set->part[i], &set->part[i + 1], (set->count - i) * sizeof(set->part[0]));
    }
    place = place < set->count ? place : set->count;
    memmove(&set->part[place + 1], &set->part[place], (set->count - place) * sizeof(set->part[0]));
    set->part[place].first = first;
    set->part[place].last = last;
    set->count++;
}

/* One of the list, added if the file has any of it. NULL: that is no range. */
static const char *spec(const char *at, uint64_t bytes, struct range_set *set)
{
    uint64_t from, to;
    bool has_from, has_to;

    at = number(at, &from, &has_from);
    if (*at != '-')
        return NULL;
    at = skip_space(number(at + 1, &to, &has_to));
    if ((*at && *at != ',') || (!has_from && !has_to) || (has_from && has_to && from > to))
        return NULL;
    if (!has_from && to && bytes) /* the last `to` bytes */
        add(set, to < bytes ? bytes - to : 0, bytes - 1);
    else if (has_from && from < bytes)
        add(set, from, has_to && to < bytes ? to : bytes - 1);
    return at;
}

enum range range_parse(const char *value, uint64_t bytes, struct range_set *set)
{
    unsigned specs = 0, empty = 0;
    const char *at;

    set->count = 0;
    if (!value || strncasecmp(value, "bytes=", 6))
        return RANGE_ALL;
    for (at = skip_space(value + 6); *at;) {
        if (*at == ',') { /* a list may have empty places, some */
            if (++empty > RANGES_MAX * 2)
                return RANGE_ALL;
            at = skip_space(at + 1);
            continue;
        }
        if (++specs > RANGES_MAX)
            return RANGE_ALL;
        at = spec(at, bytes, set);
        if (!at)
            return RANGE_ALL;
    }
    if (!specs)
        return RANGE_ALL;
    return set->count ? RANGE_PART : RANGE_NONE;
}
