/* SPDX-License-Identifier: MIT */
/*
 * Clients that no server would wish for: broken protocol, floods, clients that never read, half-open connections (see
 * clients.h).
 */
#include "clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- broken protocol ---- */

static const struct {
    const char *what;
    const char *send;
    size_t bytes;
    const char *want; /* all that comes back, then the connection ends */
} broken[] = {
#define BROKEN(what, send, want)           \
    {                                      \
        what, send, sizeof(send) - 1, want \
    }
    BROKEN("a billion arguments", "*1000000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
    BROKEN("2^63 arguments", "*9223372036854775808\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
    BROKEN("arguments without a number", "*abc\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
    BROKEN("a gigabyte", "*2\r\n$3\r\nGET\r\n$1073741824\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("2^64 bytes", "*1\r\n$18446744073709551616\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("minus one bytes", "*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("minus five bytes", "*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("x bytes", "*1\r\n$x\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("500 MB", "*1\r\n$500000000\r\n", "-ERR Protocol error: request of more than 1048576 bytes\r\n"),
    BROKEN("an integer as argument", "*1\r\n:5\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
    BROKEN("a status as argument", "*1\r\n+OK\r\n", "-ERR Protocol error: expected '$', got '+'\r\n"),
    BROKEN("an error as argument", "*1\r\n-E\r\n", "-ERR Protocol error: expected '$', got '-'\r\n"),
    BROKEN("an array as argument", "*1\r\n*1\r\n$1\r\nx\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
    BROKEN("arrays in arrays", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n$1\r\nx\r\n",
           "-ERR Protocol error: expected '$', got '*'\r\n"),
    BROKEN("garbage as argument", "*1\r\nGET\r\n", "-ERR Protocol error: expected '$', got 'G'\r\n"),
    BROKEN("open quotes", "GET \"1\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
    BROKEN("good before bad", "PING\r\n*1\r\n$-7\r\nPING\r\n", "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n"),
    BROKEN("quit", "QUIT\r\nPING\r\n", "+OK\r\n"),
#undef BROKEN
};

/* Things that are not wrong, only unusual; the connection goes on. */
static const struct {
    const char *what;
    const char *send;
    size_t bytes;
    const char *want;
} unusual[] = {
#define UNUSUAL(what, send, want)          \
    {                                      \
        what, send, sizeof(send) - 1, want \
    }
    UNUSUAL("no arguments", "*0\r\n*-1\r\n\r\n\r\nPING\r\n", "+PONG\r\n"),
    UNUSUAL("line feeds only", "PING\nPING\n", "+PONG\r\n+PONG\r\n"),
    UNUSUAL("quoted words", "ECHO \"a\\x41 b\"\r\n", "$4\r\naA b\r\n"),
    UNUSUAL("an empty argument", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", "$0\r\n\r\n"),
    UNUSUAL("a binary argument", "*2\r\n$4\r\nECHO\r\n$5\r\n\0\r\n\xff\0\r\n", "$5\r\n\0\r\n\xff\0\r\n"),
    UNUSUAL("line ends in a name", "*1\r\n$4\r\nA\r\nB\r\n",
            "-ERR unknown command 'A  B', with args beginning with: \r\n"),
    UNUSUAL("a NUL in a key", "*2\r\n$3\r\nGET\r\n$2\r\n1\0\r\n", "$-1\r\n"),
    UNUSUAL("an empty key", "*2\r\n$3\r\nGET\r\n$0\r\n\r\n", "$-1\r\n"),
    UNUSUAL("keys that are no pages", "MGET : x: 1x -1 +1 1:x 2251799813685248 99999999999999999999999\r\n",
            "*8\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n"),
#undef UNUSUAL
};

static void one_unusual(size_t i)
{
    char got[512];
    size_t want = strlen(unusual[i].want), n;
    struct peer peer;

    if (!strcmp(unusual[i].what, "a binary argument"))
        want = 11; /* with NULs */
    if (!check(peer_open(&peer), "%s: connects", unusual[i].what))
        return;
    /* byte by byte as well: a request may come in any pieces */
    for (int slow = 0; slow < 2; slow++) {
        for (size_t at = 0; at < unusual[i].bytes; at += slow ? 1 : unusual[i].bytes) {
            peer_send(&peer, unusual[i].send + at, slow ? 1 : unusual[i].bytes);
            if (slow)
                usleep(200);
        }
        n = peer_drain(&peer, got, want, 5000);
        check(n == want && !memcmp(got, unusual[i].want, n), "%s%s", unusual[i].what, slow ? ", byte by byte" : "");
    }
    peer_close(&peer);
}

/* protocol: what is broken is answered in Redis' words and ends the connection; what is only unusual does not. */
void case_protocol(int argc, char **argv)
{
    char got[512];
    struct peer peer;

    (void)argc;
    (void)argv;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        size_t n;

        if (!check(peer_open(&peer), "%s: connects", broken[i].what))
            return;
        peer_send(&peer, broken[i].send, broken[i].bytes);
        n = peer_drain(&peer, got, sizeof(got) - 1, 5000);
        got[n] = '\0';
        check(!strcmp(got, broken[i].want), "%s: %.*s", broken[i].what, (int)strcspn(got, "\r\n"), got);
        check(peer.ended && !peer.broken, "%s: and ends the connection", broken[i].what);
        peer_close(&peer);
    }
    for (size_t i = 0; i < sizeof(unusual) / sizeof(unusual[0]); i++)
        one_unusual(i);
}

/* ---- floods ---- */

static bool still_served(void)
{
    struct peer peer;
    redisReply *reply = NULL;
    int64_t begin = now_ms();
    bool served = false;

    if (peer_open(&peer) && peer_sendf(&peer, "PING\r\n"))
        reply = peer_reply(&peer);
    served = reply && reply->type == REDIS_REPLY_STATUS && now_ms() - begin < 5000;
    if (reply)
        freeReplyObject(reply);
    peer_close(&peer);
    return served;
}

static void one_flood(const char *what, const char *head, size_t megabytes, const char *want, long pid, long limit_kib)
{
    static char chunk[65536];
    struct peer peer;
    char got[512];
    size_t sent = 0, n;
    long kib;

    memset(chunk, 'a', sizeof(chunk));
    if (!check(peer_open(&peer), "%s: connects", what))
        return;
    peer_send(&peer, head, strlen(head));
    while (sent < megabytes << 20 && peer_send(&peer, chunk, sizeof(chunk)))
        sent += sizeof(chunk);
    kib = resident_kib(pid);
    peer.ended = false;
    n = peer_drain(&peer, got, sizeof(got) - 1, 5000);
    got[n] = '\0';
    check(n == 0 ? peer.ended : !strncmp(got, want, strlen(want)), "%s: %.*s", what, (int)strcspn(got, "\r\n"), got);
    check(limit_kib == 0 || kib < limit_kib, "%s: the server has %ld KiB", what, kib);
    check(still_served(), "%s: others are served", what);
    peer_close(&peer);
}

/* flood PID LIMIT_KIB (0: not looked at): lines and arguments without an end. */
void case_flood(int argc, char **argv)
{
    long pid = atol(argv[0]), limit = atol(argv[1]);

    (void)argc;
    one_flood("10 MB without a line end", "GET ", 10, "-ERR Protocol error: too big inline request\r\n", pid, limit);
    one_flood("10 MB of a count", "*1", 10, "-ERR Protocol error: ", pid, limit);
    one_flood("10 MB of a length", "*1\r\n$1", 10, "-ERR Protocol error: ", pid, limit);
    one_flood("10 MB where 1 MB was said", "*2\r\n$3\r\nSET\r\n$1048000\r\n", 10,
              "-ERR wrong number of arguments for 'set' command\r\n", pid, limit);
    one_flood("500 MB said", "*3\r\n$3\r\nSET\r\n$1\r\n1\r\n$500000000\r\n", 20,
              "-ERR Protocol error: request of more than 1048576 bytes\r\n", pid, limit);
    one_flood("a million arguments said", "*1000000\r\n$1\r\n1\r\n$1040000\r\n", 4,
              "-ERR Protocol error: expected '$', got 'a'\r\n", pid, limit);
}

/* ---- clients that do not read ---- */

#define DEAF_REQUESTS 100000u
#define DEAF_BYTES    27u /* of a request */

static uint64_t deaf_page(const struct data *data, unsigned i)
{
    return i * 7ull % data->pages;
}

/* Everybody pushes until nothing has moved for a second and a half. */
static void push_all(struct peer *peer, size_t *sent, unsigned clients, const char *requests)
{
    for (int idle = 0; idle < 15; idle++) {
        size_t moved = 0;

        for (unsigned c = 0; c < clients; c++) {
            size_t n = peer_push(&peer[c], requests + sent[c], (size_t)DEAF_REQUESTS * DEAF_BYTES - sent[c]);

            sent[c] += n;
            moved += n;
        }
        if (moved)
            idle = 0;
        else
            usleep(100000);
    }
}

/* One begins to read after all. */
static unsigned read_late(struct peer *peer, size_t sent, const struct data *data)
{
    unsigned complete = (unsigned)(sent / DEAF_BYTES), right = 0;

    for (; right < complete; right++) {
        redisReply *reply = peer_reply(peer);
        bool good = reply_is_page(reply, data, deaf_page(data, right));

        if (reply)
            freeReplyObject(reply);
        if (!good)
            break;
    }
    check(right == complete && complete > 100, "what was asked is there when the client reads at last: %u of %u", right,
          complete);
    return right;
}

/*
 * deaf FILE CLIENTS PID LIMIT_KIB (0: not looked at): clients that would send 100,000 requests each and never read.
 * Others are served meanwhile, memory stays bounded, and whoever reads at last finds everything there and right.
 */
void case_deaf(int argc, char **argv)
{
    unsigned clients = (unsigned)atoi(argv[1]), open = 0, ended = 0;
    long pid = atol(argv[2]), limit = atol(argv[3]), kib;
    struct peer *peer = calloc(clients, sizeof(*peer));
    size_t *sent = calloc(clients, sizeof(*sent));
    char *requests = malloc((size_t)DEAF_REQUESTS * DEAF_BYTES + 1);
    struct data data;

    (void)argc;
    if (!peer || !sent || !requests || !data_read(argv[0], &data))
        return;
    for (unsigned i = 0; i < DEAF_REQUESTS; i++)
        snprintf(requests + (size_t)i * DEAF_BYTES, DEAF_BYTES + 1, "*2\r\n$3\r\nGET\r\n$8\r\n%08u\r\n",
                 (unsigned)deaf_page(&data, i) % 100000000u);
    while (open < clients && peer_open(&peer[open]))
        open++;
    check(open == clients, "%u clients that never read connect", clients);
    push_all(peer, sent, open, requests);
    kib = resident_kib(pid);
    check(limit == 0 || kib < limit, "the server has %ld KiB while they do not read", kib);
    check(still_served(), "others are served meanwhile");
    for (unsigned c = 0; c < open; c++)
        ended += peer[c].ended;
    check(ended == 0, "none of them was ended before its time (%u were)", ended);
    for (unsigned c = 0; c < open && c < 2; c++)
        read_late(&peer[c], sent[c], &data);
    for (unsigned c = 0; c < open; c++)
        peer_close(&peer[c]);
    check(still_served(), "and after they left");
    free(requests);
    free(peer);
    free(sent);
    free(data.bytes);
}

/* half-open FILE: clients that say that they are done sending, before, within and after a request; and clients that
 * vanish. */
void case_half_open(int argc, char **argv)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct data data;
    struct peer peer;
    unsigned right = 0;

    (void)argc;
    if (!data_read(argv[0], &data))
        return;
    check(peer_open(&peer) && !shutdown(peer.fd, SHUT_WR) && !peer_drain(&peer, NULL, 10, 5000) && peer.ended &&
              !peer.broken,
          "done before a request: the connection ends");
    peer_close(&peer);
    check(peer_open(&peer) && peer_sendf(&peer, "*2\r\n$3\r\nGE") && !shutdown(peer.fd, SHUT_WR) &&
              !peer_drain(&peer, NULL, 10, 5000) && peer.ended && !peer.broken,
          "done within a request: the connection ends");
    peer_close(&peer);
    if (check(peer_open(&peer), "done after 300 requests: connects")) {
        for (unsigned i = 0; i < 300; i++)
            peer_sendf(&peer, "GET %llu\r\n", (unsigned long long)(i * 31 % data.pages));
        shutdown(peer.fd, SHUT_WR);
        for (unsigned i = 0; i < 300; i++) {
            redisReply *reply = peer_reply(&peer);

            right += reply_is_page(reply, &data, i * 31 % data.pages);
            if (reply)
                freeReplyObject(reply);
        }
        check(right == 300 && !peer_drain(&peer, NULL, 10, 5000) && peer.ended,
              "done after 300 requests: %u answers, then the end", right);
        peer_close(&peer);
    }
    for (unsigned i = 0; i < 100; i++) {
        if (!peer_open(&peer))
            break;
        for (unsigned k = 0; k < 50; k++)
            peer_sendf(&peer, "GET %u\r\nMGET 1 2 3 4 5 6 7 8 9\r\n", random_below((uint32_t)data.pages));
        setsockopt(peer.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        peer_close(&peer);
    }
    check(still_served(), "100 clients that vanish with their replies under way: others are served");
    free(data.bytes);
}

/* timeout SECONDS: a server with --client-timeout SECONDS ends who does not read and who does not finish; not who is
 * idle. */
void case_timeout(int argc, char **argv)
{
    int64_t begin = now_ms(), limit_ms = 1000 * atol(argv[0]) + 4000;
    struct peer deaf, partial, idle;
    redisReply *reply;

    (void)argc;
    if (!check(peer_open(&deaf) && peer_open(&partial) && peer_open(&idle), "three clients connect"))
        return;
    peer_sendf(&partial, "*2\r\n$3\r\nGET\r\n");
    peer_sendf(&idle, "PING\r\n");
    reply = peer_reply(&idle);
    check(reply != NULL, "one is answered and then idle");
    if (reply)
        freeReplyObject(reply);
    for (int i = 0; i < 20000; i++)
        peer_push(&deaf, "GET 1\r\n", 7);
    peer_drain(&partial, NULL, 10, (int)limit_ms);
    check(partial.ended, "a request that is not finished ends the connection after %lld ms",
          (long long)(now_ms() - begin));
    while (!deaf.ended && now_ms() - begin < 2 * limit_ms) {
        peer_push(&deaf, "GET 1\r\n", 7);
        usleep(50000);
    }
    check(deaf.ended, "not reading ends the connection after %lld ms", (long long)(now_ms() - begin));
    peer_sendf(&idle, "PING\r\n");
    reply = peer_reply(&idle);
    check(reply && reply->type == REDIS_REPLY_STATUS, "being idle does not");
    if (reply)
        freeReplyObject(reply);
    peer_close(&deaf);
    peer_close(&partial);
    peer_close(&idle);
}

/* raw MILLISECONDS [close]: sends its standard input, then prints what comes back until the end or the time is over. */
void case_raw(int argc, char **argv)
{
    static char bytes[1 << 20];
    size_t count = fread(bytes, 1, sizeof(bytes), stdin);
    struct peer peer;

    if (!peer_open(&peer))
        exit(1);
    peer_send(&peer, bytes, count);
    if (argc > 1)
        shutdown(peer.fd, SHUT_WR);
    peer.ended = false;
    count = peer_drain(&peer, bytes, sizeof(bytes), atoi(argv[0]));
    fwrite(bytes, 1, count, stdout);
    peer_close(&peer);
}

/* ---- random bytes ---- */

static const char *const seeds[] = {
    "*2\r\n$3\r\nGET\r\n$4\r\nk:17\r\n*1\r\n$4\r\nPING\r\nMGET 1 2 3 "
    "x\r\n*4\r\n$8\r\nGETRANGE\r\n$1\r\n1\r\n$1\r\n0\r\n$2\r\n-1\r\n",
    "PING\r\nECHO \"a b\" 'c'\r\nCLIENT SETNAME x\r\nCLIENT LIST\r\nCONFIG GET *\r\nINFO\r\nHELLO 2 SETNAME "
    "y\r\nSELECT 0\r\n",
    "*3\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n$3\r\nget\r\n*2\r\n$6\r\nstrlen\r\n$1\r\n1\r\n*-1\r\n*0\r\n$5\r\nhello\r\n:"
    "1\r\n+OK\r\n-x\r\n",
    "GET /data HTTP/1.1\r\nHost: a\r\nRange: bytes=10-200\r\nIf-Range: \"x\"\r\n\r\nHEAD /stats HTTP/1.0\r\n\r\n",
    "POST /data HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\nGET /stats "
    "HTTP/1.1\r\n\r\n",
    "GET http://h/data?x HTTP/1.1\r\nRange: bytes=-5\r\nConnection: upgrade, keep-alive\r\nUpgrade: h2c\r\n\r\nGET "
    "/data HTTP/1.1\r\n"
    "If-None-Match: *\r\nContent-Length: 3\r\n\r\nabcGET /no HTTP/1.1\r\n\r\n",
    "GET /scan?op=grep&pattern=%61%00b&from=1&to=99999&limit=3&file=0 HTTP/1.1\r\n\r\nGET /scan?op=sum&from=8 "
    "HTTP/1.0\r\n\r\n",
    "GET /map?cells=7&file=0 HTTP/1.1\r\n\r\nGET /data/0 HTTP/1.1\r\nRange: bytes=5-9,1-2,-7,100-,3-\r\nIf-Match: "
    "\"a\", *\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\nGET /slabs?a=b&c HTTP/1.1\r\n\r\n",
};

#define SEEDS (sizeof(seeds) / sizeof(seeds[0]))

/* One seed, or two spliced, with some of its bytes changed, lost or doubled. Bytes. */
static size_t mutate(char *into, size_t room)
{
    const char *first = seeds[random_below(SEEDS)], *second = seeds[random_below(SEEDS)];
    size_t bytes =
        (size_t)snprintf(into, room, "%.*s%s", (int)random_below((uint32_t)strlen(first) + 1), first, second);

    for (uint32_t i = random_below(6); i > 0; i--) {
        size_t at = random_below((uint32_t)bytes), count = random_below(8);

        if (at + count > bytes)
            count = bytes - at;
        switch (random_below(4)) {
        case 0:
            into[at] = (char)random_below(256);
            break;
        case 1:
            memmove(into + at, into + at + count, bytes - at - count);
            bytes -= count;
            break;
        case 2:
            if (bytes + count < room) {
                memmove(into + at + count, into + at, bytes - at);
                bytes += count;
            }
            break;
        default:
            into[at] = "0123456789*$\r\n:-"[random_below(16)];
        }
        if (!bytes)
            into[bytes++] = '*';
    }
    return bytes;
}

/* fuzz CONNECTIONS: requests that are almost right. Every connection comes to its end when the client is done sending.
 */
void case_fuzz(int argc, char **argv)
{
    unsigned connections = (unsigned)atoi(argv[0]), ended = 0, opened = 0;
    char bytes[2048];
    struct peer peer;

    (void)argc;
    for (unsigned i = 0; i < connections && peer_open(&peer); i++) {
        size_t count = mutate(bytes, sizeof(bytes)), half = random_below((uint32_t)count + 1);

        opened++;
        peer_send(&peer, bytes, half);
        if (random_below(4) == 0)
            usleep(500);
        peer_send(&peer, bytes + half, count - half);
        shutdown(peer.fd, SHUT_WR);
        peer.ended = false;
        peer_drain(&peer, NULL, (size_t)1 << 30, 10000);
        ended += peer.ended;
        peer_close(&peer);
        if (ended != opened)
            break;
    }
    check(opened == connections && ended == opened, "%u connections with almost right requests, %u came to their end",
          connections, ended);
}
