/* SPDX-License-Identifier: MIT */
/*
 * What a URL asks for (see query.h).
 */
#include "scan-server/query.h"

#include <string.h>
#include <strings.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decode up to one of the characters in `until`, or the end; where that is, NULL if it is malformed. */
static const char *decode(const char *at, const char *until, struct query *query, size_t *used, struct query_bytes *out)
{
    out->at = query->bytes + *used;
    out->count = 0;
    for (; *at && !strchr(until, *at); at++) {
        char c = *at;

        if (*used + 1 >= sizeof(query->bytes))
            return NULL;
        if (c == '%') {
            int high = hex_digit(at[1]), low = high < 0 ? -1 : hex_digit(at[2]);

            if (low < 0)
                return NULL;
            c = (char)(high << 4 | low);
            at += 2;
        } else if (c == '+' && until[0] != '?') { /* as forms write a space; not in a path */
            c = ' ';
        }
        query->bytes[(*used)++] = c;
        out->count++;
    }
    query->bytes[(*used)++] = '\0'; /* there is room: the loop leaves it */
    return at;
}

bool query_parse(const char *url, struct query *query)
{
    size_t used = 0;
    const char *at = url;

    query->count = 0;
    if (!strncasecmp(at, "http://", 7)) { /* absolute form: the host is of no interest */
        at = at + 7 + strcspn(at + 7, "/?#");
        if (*at != '/')
            at = "/";
    }
    at = decode(at, "?#", query, &used, &query->path);
    while (at && (*at == '?' || *at == '&')) {
        unsigned n = query->count;

        if (at[1] == '&' || !at[1] || at[1] == '#') {
            at++;
            continue;
        }
        if (n == QUERY_PARTS_MAX || used >= sizeof(query->bytes))
            return false;
        at = decode(at + 1, "=&#", query, &used, &query->part[n].name);
        if (!at || used >= sizeof(query->bytes) || query_value(query, query->part[n].name.at))
            return false;
        query->part[n].value = (struct query_bytes){.at = "", .count = 0};
        if (*at == '=')
            at = decode(at + 1, "&#", query, &used, &query->part[n].value);
        query->count++;
    }
    return at != NULL;
}

const struct query_bytes *query_value(const struct query *query, const char *name)
{
    for (unsigned i = 0; i < query->count; i++) {
        if (query->part[i].name.count == strlen(name) && !strcmp(query->part[i].name.at, name))
            return &query->part[i].value;
    }
    return NULL;
}

bool query_number(const struct query *query, const char *name, uint64_t most, uint64_t absent, uint64_t *value)
{
    const struct query_bytes *text = query_value(query, name);

    *value = absent;
    if (!text)
        return true;
    if (!text->count || strspn(text->at, "0123456789") != text->count)
        return false;
    *value = 0;
    for (const char *at = text->at; *at; at++) {
        unsigned digit = (unsigned)(*at - '0');

        if (*value > (most - digit) / 10 || digit > most)
            return false;
        *value = *value * 10 + digit;
    }
    return true;
}

const char *query_unknown(const struct query *query, const char *const known[])
{
    for (unsigned i = 0; i < query->count; i++) {
        unsigned k = 0;

        while (known[k] && strcmp(known[k], query->part[i].name.at))
            k++;
        if (!known[k])
            return query->part[i].name.at;
    }
    return NULL;
}
