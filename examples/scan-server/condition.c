/* SPDX-License-Identifier: MIT */
/*
 * Validators of a file, and requests that depend on them (see condition.h).
 */
#include "scan-server/condition.h"

#include <stdio.h>
#include <string.h>

void http_date(time_t when, char text[HTTP_DATE_BYTES])
{
    struct tm parts;

    if (!gmtime_r(&when, &parts) || !strftime(text, HTTP_DATE_BYTES, "%a, %d %b %Y %H:%M:%S GMT", &parts))
        text[0] = '\0';
}

/* Any of the three forms that a date may have. false: it is none, or there is none. */
static bool parse_date(const char *text, time_t *when)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT",
                                        "%a %b %d %H:%M:%S %Y"};

    for (unsigned i = 0; text && i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm parts = {0};
        const char *end = strptime(text, forms[i], &parts);

        if (end && !*end) {
            *when = timegm(&parts);
            return true;
        }
    }
    return false;
}

bool validators_of(int fd, const struct stat *start, struct validators *into)
{
    struct stat now;

    if (fd < 0 || fstat(fd, &now) || now.st_size != start->st_size || now.st_mtim.tv_sec != start->st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != start->st_mtim.tv_nsec)
        return false;
    snprintf(into->etag, sizeof(into->etag), "\"%llx-%llx.%lx-%llx\"", (unsigned long long)start->st_size,
             (unsigned long long)start->st_mtim.tv_sec, (unsigned long)start->st_mtim.tv_nsec,
             (unsigned long long)start->st_ino);
    http_date(start->st_mtim.tv_sec, into->modified);
    into->modified_s = start->st_mtim.tv_sec;
    return true;
}

/* Is a tag in a list of them, or is the list '*'? Weak comparison passes over the W/ before a tag. */
static bool tag_listed(const char *list, const char *tag, bool weak)
{
    size_t bytes = strlen(tag);

    if (!strcmp(list, "*"))
        return true;
    while (*(list += strspn(list, " \t,"))) {
        bool is_weak = !strncmp(list, "W/", 2);
        const char *end;

        list += is_weak ? 2 : 0;
        end = *list == '"' ? strchr(list + 1, '"') : NULL;
        if (!end)
            return false; /* no list of tags: nothing of it counts */
        if ((weak || !is_weak) && (size_t)(end + 1 - list) == bytes && !memcmp(list, tag, bytes))
            return true;
        list = end + 1;
    }
    return false;
}

enum condition condition_check(const struct http_request *request, const struct validators *validators)
{
    const char *match = http_value(request, FIELD_IF_MATCH), *none = http_value(request, FIELD_IF_NONE_MATCH);
    time_t when;

    if (http_sent(request, FIELD_IF_MATCH)) {
        bool any = match && !strcmp(match, "*");

        if (!any && !(match && validators && tag_listed(match, validators->etag, false)))
            return CONDITION_FAILED;
    } else if (parse_date(http_value(request, FIELD_IF_UNMODIFIED_SINCE), &when)) {
        if (!validators || validators->modified_s > when)
            return CONDITION_FAILED;
    }
    if (http_sent(request, FIELD_IF_NONE_MATCH)) {
        if (none && (!strcmp(none, "*") || (validators && tag_listed(none, validators->etag, true))))
            return CONDITION_NOT_MODIFIED;
    } else if (validators && parse_date(http_value(request, FIELD_IF_MODIFIED_SINCE), &when)) {
        if (validators->modified_s <= when)
            return CONDITION_NOT_MODIFIED;
    }
    return CONDITION_GO_ON;
}

bool condition_range_holds(const struct http_request *request, const struct validators *validators)
{
    const char *wanted = http_value(request, FIELD_IF_RANGE);

    if (!http_sent(request, FIELD_IF_RANGE))
        return true;
    if (!wanted || !validators)
        return false;
    if (!strcmp(wanted, validators->etag))
        return true;
    /* A date tells one second from the next: it must have been over for a while (section 8.8.2.2). */
    return !strcmp(wanted, validators->modified) && validators->modified_s + 1 < time(NULL);
}
