/* SPDX-License-Identifier: MIT */
/*
 * Clients that behave, some of them in great numbers: bytes, order of replies, many connections, load (see clients.h).
 */
#include "clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 64u

/* pages FILE [VALUE_BYTES]: every page, by hiredis' own client, in pipelines; and what lies past the end. */
void case_pages(int argc, char **argv)
{
    static const char *const prefix[] = {"", "key:", "a:b:", "key:00000000", ":", "0000"};
    size_t value_bytes = argc > 1 ? (size_t)atol(argv[1]) : PAGE_BYTES;
    redisContext *client = redisConnect("127.0.0.1", port);
    uint64_t wrong = 0, seen = 0;
    struct data data;

    if (!data_read(argv[0], &data) || !check(client && !client->err, "hiredis connects"))
        return;
    for (uint64_t page = 0; page < data.pages + 3; page += BATCH) {
        for (uint64_t i = page; i < page + BATCH; i++)
            redisAppendCommand(client, "GET %s%llu", prefix[i % 6], (unsigned long long)i);
        for (uint64_t i = page; i < page + BATCH; i++) {
            const char *at = NULL;
            size_t bytes = data_value(&data, i, value_bytes, &at);
            redisReply *reply = NULL;

            if (redisGetReply(client, (void **)&reply) != REDIS_OK)
                break;
            seen++;
            if (bytes)
                wrong +=
                    reply->type != REDIS_REPLY_STRING || (size_t)reply->len != bytes || memcmp(reply->str, at, bytes);
            else
                wrong += reply->type != REDIS_REPLY_NIL;
            freeReplyObject(reply);
        }
    }
    check(seen >= data.pages + 3 && !client->err, "%llu replies for %llu pages", (unsigned long long)seen,
          (unsigned long long)data.pages);
    check(wrong == 0, "every page has the bytes of the file, and beyond it there is nothing (%llu wrong)",
          (unsigned long long)wrong);
    redisFree(client);
    free(data.bytes);
}

/* What was asked, to know what is to come. */
struct asked {
    int kind;
    uint32_t number;
    uint64_t page, other;
};

static bool ask(struct peer *peer, const struct data *data, struct asked *asked)
{
    unsigned long long page = random_below((uint32_t)data->pages + 2), other = random_below((uint32_t)data->pages + 2);

    asked->kind = (int)random_below(12);
    asked->number = random_below(1000000);
    asked->page = page;
    asked->other = other;
    switch (asked->kind) {
    case 0:
        return peer_sendf(peer, "PING %u\r\n", asked->number);
    case 1:
        return peer_sendf(peer, "*2\r\n$4\r\nECHO\r\n$7\r\n%07u\r\n", asked->number);
    case 2:
        return peer_sendf(peer, "STRLEN k:%llu\r\n", page);
    case 3:
        return peer_sendf(peer, "MGET %llu nothing %llu\r\n", page, other);
    case 4:
        return peer_sendf(peer, "NOSUCH %u\r\n", asked->number);
    case 5:
        return peer_sendf(peer, "GETRANGE %llu %u %u\r\n", page, asked->number % 3000, asked->number % 3000 + 50);
    default:
        return peer_sendf(peer, "GET key:%012llu\r\n", page);
    }
}

static bool answered(const redisReply *reply, const struct data *data, const struct asked *asked)
{
    char text[64];
    const char *at = NULL;
    size_t bytes = data_value(data, asked->page, PAGE_BYTES, &at), from = asked->number % 3000;

    if (!reply)
        return false;
    snprintf(text, sizeof(text), asked->kind == 1 ? "%07u" : "%u", asked->number);
    switch (asked->kind) {
    case 0:
    case 1:
        return reply->type == REDIS_REPLY_STRING && !strcmp(reply->str, text);
    case 2:
        return reply->type == REDIS_REPLY_INTEGER && (size_t)reply->integer == bytes;
    case 3:
        return reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
               reply_is_page(reply->element[0], data, asked->page) && reply->element[1]->type == REDIS_REPLY_NIL &&
               reply_is_page(reply->element[2], data, asked->other);
    case 4:
        return reply->type == REDIS_REPLY_ERROR && strstr(reply->str, text);
    case 5:
        bytes = bytes > from ? bytes - from : 0;
        bytes = bytes > 51 ? 51 : bytes;
        return reply->type == REDIS_REPLY_STRING && (size_t)reply->len == bytes &&
               (!bytes || !memcmp(reply->str, at + from, bytes));
    default:
        return reply_is_page(reply, data, asked->page);
    }
}

/* order FILE: long pipelines of everything, hits and misses mixed; replies come in the order of the requests. */
void case_order(int argc, char **argv)
{
    enum { REQUESTS = 3000 };
    static struct asked asked[REQUESTS];
    struct data data;
    struct peer peer;
    unsigned right = 0;

    (void)argc;
    if (!data_read(argv[0], &data) || !check(peer_open(&peer), "connects"))
        return;
    for (unsigned round = 0; round < 4; round++) {
        unsigned sent = 0, got = 0;

        /* Up to 200 requests ahead. */
        while (got < REQUESTS) {
            while (sent < REQUESTS && sent < got + 200 && ask(&peer, &data, &asked[sent]))
                sent++;
            redisReply *reply = peer_reply(&peer);

            if (!answered(reply, &data, &asked[got]))
                break;
            freeReplyObject(reply);
            got++;
            right++;
        }
    }
    check(right == 4 * REQUESTS, "%u of %u replies are right and in order", right, 4 * REQUESTS);
    peer_close(&peer);
    free(data.bytes);
}

/*
 * depth FILE CLIENTS DEPTH ROUNDS: everybody sends a pipeline, and only then does anybody read. More pages are asked
 * for at once than a small pool has frames; everybody is answered all the same, with pages or a plain "busy".
 */
void case_depth(int argc, char **argv)
{
    unsigned clients = (unsigned)atoi(argv[1]), depth = (unsigned)atoi(argv[2]), rounds = (unsigned)atoi(argv[3]);
    struct peer *peer = calloc(clients, sizeof(*peer));
    uint64_t *page = calloc((size_t)clients * depth, sizeof(*page));
    unsigned open = 0, right = 0, busy = 0, wrong = 0;
    struct data data;

    (void)argc;
    if (!peer || !page || !data_read(argv[0], &data))
        return;
    while (open < clients && peer_open(&peer[open]))
        open++;
    if (!check(open == clients, "%u clients connect", clients))
        return;
    for (unsigned round = 0; round < rounds && !wrong; round++) {
        for (unsigned c = 0; c < clients; c++) {
            for (unsigned i = 0; i < depth; i++) {
                uint64_t *wanted = &page[c * depth + i];

                *wanted = random_below((uint32_t)data.pages);
                peer_sendf(&peer[c], "*2\r\n$3\r\nGET\r\n$8\r\n%08llu\r\n", (unsigned long long)*wanted);
            }
        }
        for (unsigned c = 0; c < clients && !wrong; c++) {
            for (unsigned i = 0; i < depth && !wrong; i++) {
                redisReply *reply = peer_reply(&peer[c]);

                if (reply_is_page(reply, &data, page[c * depth + i]))
                    right++;
                else if (reply && reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, "BUSY", 4))
                    busy++;
                else
                    wrong++;
                if (reply)
                    freeReplyObject(reply);
            }
        }
    }
    check(wrong == 0 && right + busy == clients * depth * rounds, "%u pages right, %u busy, %u wrong or missing", right,
          busy, wrong);
    check(right > 9 * busy, "nine in ten are pages");
    for (unsigned c = 0; c < clients; c++)
        peer_close(&peer[c]);
    free(peer);
    free(page);
    free(data.bytes);
}

/* crowd FILE CLIENTS PID: so many at once, all connected, all served; and what they cost the server when idle. */
void case_crowd(int argc, char **argv)
{
    unsigned clients = (unsigned)atoi(argv[1]), open = 0, right = 0;
    long pid = atol(argv[2]), before, with;
    struct peer *peer = calloc(clients, sizeof(*peer));
    struct data data;

    (void)argc;
    if (!peer || !data_read(argv[0], &data))
        return;
    before = resident_kib(pid);
    while (open < clients && peer_open(&peer[open]))
        open++;
    check(open == clients, "%u of %u clients connect", open, clients);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned c = 0; c < open; c++)
            peer_sendf(&peer[c], "GET %llu\r\n", (unsigned long long)(c % data.pages));
        for (unsigned c = 0; c < open; c++) {
            redisReply *reply = peer_reply(&peer[c]);

            right += reply_is_page(reply, &data, c % data.pages);
            if (reply)
                freeReplyObject(reply);
        }
    }
    check(right == 2 * open, "%u of %u replies are right", right, 2 * open);
    sleep(4); /* the server gives idle memory back after two seconds and a tick */
    with = resident_kib(pid);
    printf("server: %ld KiB before, %ld KiB with %u idle clients\n", before, with, open);
    for (unsigned c = 0; c < open; c++)
        peer_close(&peer[c]);
    if (peer_open(&peer[0])) {
        redisReply *reply;

        peer_sendf(&peer[0], "PING\r\n");
        reply = peer_reply(&peer[0]);
        check(reply && reply->type == REDIS_REPLY_STATUS, "and serves on after they left");
        if (reply)
            freeReplyObject(reply);
        peer_close(&peer[0]);
    } else {
        check(false, "connects after the crowd left");
    }
    free(peer);
    free(data.bytes);
}

/* ---- load ---- */

struct load {
    pthread_t thread;
    const struct data *data;
    int64_t until;
    uint64_t right, wrong, torn;
    uint32_t seed;
};

/* Pipelines of 16 until time is over or the server closes, which it may do between two replies only. */
static void *load_thread(void *argument)
{
    struct load *load = argument;
    uint64_t page[16];
    struct peer peer;

    if (!peer_open(&peer)) {
        load->wrong++;
        return NULL;
    }
    while (now_ms() < load->until && !peer.ended) {
        char text[16 * 32];
        size_t bytes = 0;

        for (unsigned i = 0; i < 16; i++) {
            load->seed = load->seed * 1664525 + 1013904223;
            page[i] = load->seed % load->data->pages;
            bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, "*2\r\n$3\r\nGET\r\n$7\r\n%07u\r\n",
                                      (unsigned)page[i]);
        }
        if (!peer_send(&peer, text, bytes) && !peer.ended)
            load->wrong++;
        peer.ended = false; /* what it sent before may still be there */
        for (unsigned i = 0; i < 16; i++) {
            redisReply *reply = peer_reply(&peer);

            if (!reply) {
                load->torn += peer.broken ? 0 : peer.reader->len != peer.reader->pos || peer.reader->ridx > 0;
                load->wrong += !peer.ended;
                peer.ended = true;
                break;
            }
            if (reply_is_page(reply, load->data, page[i]))
                load->right++;
            else
                load->wrong++;
            freeReplyObject(reply);
        }
    }
    peer_close(&peer);
    return NULL;
}

/* load FILE SECONDS [CLIENTS]: many pipelining clients, until time is over or the server is told to stop. */
void case_load(int argc, char **argv)
{
    unsigned clients = argc > 2 ? (unsigned)atoi(argv[2]) : 8;
    struct load *load = calloc(clients, sizeof(*load));
    uint64_t right = 0, wrong = 0, torn = 0;
    struct data data;

    if (!load || !data_read(argv[0], &data))
        return;
    for (unsigned i = 0; i < clients; i++) {
        load[i].data = &data;
        load[i].until = now_ms() + 1000 * atol(argv[1]);
        load[i].seed = i * 7919 + 1;
        if (pthread_create(&load[i].thread, NULL, load_thread, &load[i]))
            exit(1);
    }
    for (unsigned i = 0; i < clients; i++) {
        pthread_join(load[i].thread, NULL);
        right += load[i].right;
        wrong += load[i].wrong;
        torn += load[i].torn;
    }
    check(right > 1000, "%llu replies under load", (unsigned long long)right);
    check(wrong == 0, "all of them right (%llu wrong)", (unsigned long long)wrong);
    check(torn == 0, "no reply was cut short (%llu were)", (unsigned long long)torn);
    free(load);
    free(data.bytes);
}
