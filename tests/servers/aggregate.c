/* SPDX-License-Identifier: MIT */
/*
 * Scans of scan-server, checked against the same done byte by byte: every operation on stretches that begin and end
 * anywhere, and the form of the answer: chunks, twenty lines of progress, the result.
 */
#include "clients.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_BYTES (1u << 20)
#define PATTERN_MAX  256u
#define STRETCHES    12u
#define PATTERNS     40u

/* ---- as simply as can be ---- */

static uint64_t naive_count(const struct data *data, uint64_t from, uint64_t to, unsigned byte)
{
    uint64_t n = 0;

    for (uint64_t i = from; i < to; i++)
        n += (unsigned char)data->bytes[i] == byte;
    return n;
}

static uint64_t naive_sum(const struct data *data, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;

    for (uint64_t i = from; i < to; i++)
        sum += (uint64_t)(unsigned char)data->bytes[i] << (i - from) % 8 * 8;
    return sum;
}

static uint32_t naive_crc32c(const struct data *data, uint64_t from, uint64_t to)
{
    uint32_t crc = UINT32_MAX;

    for (uint64_t i = from; i < to; i++) {
        crc ^= (unsigned char)data->bytes[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* How often; the first `most` places as the server lists them. */
static uint64_t naive_grep(const struct data *data, uint64_t from, uint64_t to, const char *pattern, size_t bytes,
                           unsigned most, char *lines)
{
    uint64_t n = 0;

    *lines = '\0';
    for (uint64_t i = from; i + bytes <= to; i++) {
        if (memcmp(data->bytes + i, pattern, bytes) != 0)
            continue;
        if (n++ < most)
            lines += sprintf(lines, "{\"match\": %" PRIu64 "}\n", i);
    }
    return n;
}

/* ---- asking ---- */

/* Take the chunks of a body apart, in place. false: they are not what they should be, or something follows. */
static bool unchunk(char *body)
{
    char *from = body, *to = body, *end;

    for (;;) {
        unsigned long bytes = strtoul(from, &end, 16);

        if (end == from || strncmp(end, "\r\n", 2) != 0)
            return false;
        from = end + 2;
        if (!bytes) {
            *to = '\0';
            return !strcmp(from, "\r\n");
        }
        if (strlen(from) < bytes + 2 || strncmp(from + bytes, "\r\n", 2) != 0)
            return false;
        memmove(to, from, bytes);
        to += bytes;
        from += bytes + 2;
    }
}

/* The body's lines, into `answer`, without the chunks. */
static bool ask(const char *query, char *answer)
{
    struct peer peer;
    char *body;
    size_t n;
    bool right;

    if (!peer_open(&peer))
        return false;
    peer_sendf(&peer, "GET /scan?%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", query);
    n = peer_drain(&peer, answer, ANSWER_BYTES - 1, DEADLINE_MS);
    peer_close(&peer);
    answer[n] = '\0';
    body = strstr(answer, "\r\n\r\n");
    right = !strncmp(answer, "HTTP/1.1 200 ", 13) && body && strstr(answer, "Transfer-Encoding: chunked") &&
            unchunk(body + 4);
    if (right)
        memmove(answer, body + 4, strlen(body + 4) + 1);
    return right;
}

/*
 * The lines of progress, twenty and ascending, and the last line, which has `wanted` in it; what is between goes to
 * `others` (NULL: nothing may be there).
 */
static bool lines_are(char *answer, uint64_t of, const char *wanted, char *others)
{
    unsigned progress = 0;
    uint64_t bytes, all, before = 0;
    char *line, *rest = answer, last[1024] = "";
    double part;

    if (others)
        *others = '\0';
    while ((line = strsep(&rest, "\n")) && *line) {
        if (sscanf(line, "{\"progress\": %lf, \"bytes\": %" SCNu64 ", \"of\": %" SCNu64 "}", &part, &bytes, &all) ==
            3) {
            if (all != of || bytes < before || bytes > of)
                return false;
            before = bytes;
            progress++;
        } else if (others && !strncmp(line, "{\"match\"", 8)) {
            others += sprintf(others, "%s\n", line);
        } else if (*last) {
            return false;
        } else {
            snprintf(last, sizeof(last), "%s", line);
        }
    }
    return progress == 20 && before == of && strstr(last, wanted) != NULL;
}

static bool scan_is(const char *query, uint64_t of, const char *wanted, char *answer, char *others)
{
    bool right = ask(query, answer);
    char *copy = right ? strdup(answer) : NULL;

    right = right && lines_are(answer, of, wanted, others);
    if (!right)
        check(false, "%.200s: wanted %s, got %.3000s", query, wanted, copy ? copy : answer);
    free(copy);
    return right;
}

/* ---- the case ---- */

static bool stretch_right(const struct data *data, uint64_t from, uint64_t to, char *answer)
{
    char query[256], wanted[128];
    unsigned byte = random_below(256);
    bool right;

    snprintf(query, sizeof(query), "op=count&byte=%u&from=%" PRIu64 "&to=%" PRIu64, byte, from, to);
    snprintf(wanted, sizeof(wanted), "\"count\": %" PRIu64 ",", naive_count(data, from, to, byte));
    right = scan_is(query, to - from, wanted, answer, NULL);
    snprintf(query, sizeof(query), "op=crc32c&from=%" PRIu64 "&to=%" PRIu64, from, to);
    snprintf(wanted, sizeof(wanted), "\"hex\": \"%08" PRIx32 "\"", naive_crc32c(data, from, to));
    right &= scan_is(query, to - from, wanted, answer, NULL);
    from &= ~7ull;
    snprintf(query, sizeof(query), "op=sum&from=%" PRIu64 "&to=%" PRIu64, from, to);
    snprintf(wanted, sizeof(wanted), "\"sum\": %" PRIu64 ",", naive_sum(data, from, to));
    return right & scan_is(query, to - from, wanted, answer, NULL);
}

static bool pattern_right(const struct data *data, uint64_t from, uint64_t to, uint64_t at, size_t bytes, char *answer)
{
    static char lines[ANSWER_BYTES], got[ANSWER_BYTES];
    char query[1100], wanted[64];
    unsigned limit = random_below(2) ? 100 : random_below(3000);
    int n =
        snprintf(query, sizeof(query), "op=grep&from=%" PRIu64 "&to=%" PRIu64 "&limit=%u&pattern=", from, to, limit);

    for (size_t i = 0; i < bytes; i++)
        n += snprintf(query + n, sizeof(query) - (size_t)n, "%%%02x", (unsigned char)data->bytes[at + i]);
    snprintf(wanted, sizeof(wanted), "\"matches\": %" PRIu64 ",",
             naive_grep(data, from, to, data->bytes + at, bytes, limit, lines));
    return scan_is(query, to - from, wanted, answer, got) &&
           (!strcmp(lines, got) || check(false, "%.200s: other places", query));
}

/* aggregate FILE: the file that is served, of at least 10 MiB */
void case_aggregate(int argc, char **argv)
{
    static char answer[ANSWER_BYTES];
    struct data data;
    unsigned right = 0;

    (void)argc;
    if (!check(data_read(argv[0], &data), "the file is read"))
        return;
    for (unsigned i = 0; i < STRETCHES; i++) {
        uint64_t from = i ? random_below((uint32_t)data.count) : 0;
        uint64_t to = i ? from + random_below(1u << (4 + i * 2 % 20)) : data.count;

        right += stretch_right(&data, from, to < data.count ? to : data.count, answer);
    }
    check(right == STRETCHES, "%u stretches counted, added up and checked", right);
    right = 0;
    for (unsigned i = 0; i < PATTERNS; i++) {
        size_t bytes = i < 4 ? i + 1 : 1 + random_below(i % 2 ? 8 : PATTERN_MAX);
        uint64_t border = (1 + random_below((uint32_t)(data.count >> 12) - 1)) << 12;
        uint64_t at = i % 3 ? border - random_below((uint32_t)bytes + 1) : random_below((uint32_t)data.count - 300);
        uint64_t from = i % 4 ? at - random_below(at < 300000 ? (uint32_t)at + 1 : 300000) : 0;
        uint64_t to = at + bytes + random_below(i % 5 ? 300000 : 3); /* some end with the pattern */

        if (at + bytes > data.count)
            at = data.count - bytes;
        right += pattern_right(&data, from, to < data.count ? to : data.count, at, bytes, answer);
    }
    check(right == PATTERNS, "%u patterns found where they are", right);
    free(data.bytes);
}
