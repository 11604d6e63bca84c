/* SPDX-License-Identifier: MIT */
/*
 * check-pages: ask a point-server for pages and check every byte of the answers.
 *
 *   check-pages --port P --pages N [--host H] [--count C] [--batch B] [--seed S] [--sequential]
 *
 * Fetches C pages of the N that the file has, B at a time with MGET, at random or from the first one on; each must
 * carry the number asked for and a right checksum (pages.h). Then the page after the last must be absent. Ends with one
 * line, `checked N pages, N wrong`; exit status 0 if none was wrong, 1 if one was, 2 on a wrong call, 3 if the server
 * could not be asked.
 */
#include "load/pages.h"

#include <getopt.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX      1024u
#define REPORTS_MAX    10u /* wrong pages told one by one; beyond, they are only counted */
#define KEY_BYTES      24u
#define ANSWER_SECONDS 30 /* the server must answer within this time */

struct job {
    const char *host;
    int port;
    uint64_t pages, count, seed;
    unsigned batch;
    bool sequential;
    uint64_t wrong;
};

static void report(struct job *job, uint64_t page, const char *what)
{
    if (job->wrong++ < REPORTS_MAX)
        fprintf(stderr, "check-pages: page %" PRIu64 ": %s\n", page, what);
}

static const char *check_reply(uint64_t page, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_NIL)
        return "it is absent";
    if (reply->type != REDIS_REPLY_STRING)
        return reply->type == REDIS_REPLY_ERROR ? reply->str : "the answer is no string";
    return pages_check(page, (const unsigned char *)reply->str, (size_t)reply->len);
}

/* Ask for n pages in one command. 0, or -1 if the connection is lost. */
static int check_batch(struct job *job, redisContext *server, const uint64_t page[], unsigned n)
{
    static char key[BATCH_MAX][KEY_BYTES];
    const char *argv[BATCH_MAX + 1] = {"MGET"};
    size_t bytes[BATCH_MAX + 1] = {4};
    for (unsigned i = 0; i < n; i++) {
        bytes[i + 1] = (size_t)snprintf(key[i], KEY_BYTES, "%" PRIu64, page[i]);
        argv[i + 1] = key[i];
    }
    redisReply *reply = redisCommandArgv(server, (int)n + 1, argv, bytes);
    if (!reply)
        return -1;
    bool whole = reply->type == REDIS_REPLY_ARRAY && reply->elements == n;
    for (unsigned i = 0; i < n; i++) {
        const char *what = whole                              ? check_reply(page[i], reply->element[i])
                           : reply->type == REDIS_REPLY_ERROR ? reply->str
                                                              : "MGET gave no array of this length";
        if (what)
            report(job, page[i], what);
    }
    freeReplyObject(reply);
    return 0;
}

static int check_absent(struct job *job, redisContext *server)
{
    redisReply *reply = redisCommand(server, "GET %llu", (unsigned long long)job->pages);
    if (!reply)
        return -1;
    if (reply->type != REDIS_REPLY_NIL)
        report(job, job->pages, "it lies past the end and should be absent");
    freeReplyObject(reply);
    return 0;
}

static int run(struct job *job)
{
    int status = 3;
    uint64_t page[BATCH_MAX], random = job->seed;
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    redisContext *server = redisConnectWithTimeout(job->host, job->port, limit);
    if (!server || server->err || redisSetTimeout(server, limit) != REDIS_OK)
        goto out;
    for (uint64_t done = 0; done < job->count;) {
        unsigned n = 0;
        for (; n < job->batch && done < job->count; n++, done++)
            page[n] = (job->sequential ? done : pages_random(&random)) % job->pages;
        if (check_batch(job, server, page, n))
            goto out;
    }
    if (check_absent(job, server))
        goto out;
    status = job->wrong ? 1 : 0;
    printf("checked %" PRIu64 " pages, %" PRIu64 " wrong\n", job->count, job->wrong);
out:
    if (status == 3)
        fprintf(stderr, "check-pages: %s port %d: %s\n", job->host, job->port,
                server && server->err ? server->errstr : "no connection");
    if (server)
        redisFree(server);
    return status;
}

static bool number(const char *text, uint64_t max, uint64_t *value)
{
    char *end;
    *value = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *value <= max;
}

static bool parse(int argc, char **argv, struct job *job)
{
    static const struct option options[] = {
        {"host", required_argument, NULL, 'h'},  {"port", required_argument, NULL, 'p'},
        {"pages", required_argument, NULL, 'n'}, {"count", required_argument, NULL, 'c'},
        {"batch", required_argument, NULL, 'b'}, {"seed", required_argument, NULL, 's'},
        {"sequential", no_argument, NULL, 'q'},  {NULL, 0, NULL, 0},
    };
    uint64_t value;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h')
            job->host = optarg;
        else if (c == 'p' && number(optarg, 65535, &value))
            job->port = (int)value;
        else if (c == 'n' && number(optarg, UINT64_MAX - 1, &value))
            job->pages = value;
        else if (c == 'c' && number(optarg, UINT64_MAX, &value))
            job->count = value;
        else if (c == 'b' && number(optarg, BATCH_MAX, &value))
            job->batch = (unsigned)value;
        else if (c == 's' && number(optarg, UINT64_MAX, &value))
            job->seed = value;
        else if (c == 'q')
            job->sequential = true;
        else
            return false;
    }
    return optind == argc && job->port && job->pages && job->batch;
}

int main(int argc, char **argv)
{
    struct job job = {.host = "127.0.0.1", .count = 10000, .batch = 32, .seed = 1};
    if (!parse(argc, argv, &job)) {
        fprintf(stderr,
                "usage: check-pages --port P --pages N [--host H] [--count C] [--batch 1..%u] [--seed S] "
                "[--sequential]\n",
                BATCH_MAX);
        return 2;
    }
    return run(&job);
}
