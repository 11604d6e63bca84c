/* SPDX-License-Identifier: MIT */
/*
 * What all cases use (see clients.h).
 */
#include "clients.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int port;
static unsigned passed, failed;

bool check(bool right, const char *format, ...)
{
    va_list arguments;

    printf("%s: ", right ? "pass" : "fail");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    if (right)
        passed++;
    else
        failed++;
    return right;
}

int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

uint32_t random_below(uint32_t n)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

bool data_read(const char *path, struct data *data)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t at = 0;

    if (fd < 0 || fstat(fd, &status))
        return check(false, "open %s: %s", path, strerror(errno));
    data->count = (size_t)status.st_size;
    data->pages = (data->count + PAGE_BYTES - 1) / PAGE_BYTES;
    data->bytes = malloc(data->count + 1);
    while (data->bytes && at < data->count) {
        ssize_t n = read(fd, data->bytes + at, data->count - at);

        if (n <= 0)
            break;
        at += (size_t)n;
    }
    close(fd);
    return at == data->count || check(false, "read %s", path);
}

size_t data_value(const struct data *data, uint64_t page, size_t value_bytes, const char **at)
{
    size_t left;

    if (page >= data->pages)
        return 0;
    *at = data->bytes + page * PAGE_BYTES;
    left = data->count - page * PAGE_BYTES;
    return left < value_bytes ? left : value_bytes;
}

/* ---- connections ---- */

bool peer_open(struct peer *peer)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int yes = 1;

    memset(peer, 0, sizeof(*peer));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (peer->fd < 0)
        return false;
    if (connect(peer->fd, (struct sockaddr *)&to, sizeof(to))) {
        close(peer->fd);
        peer->fd = -1;
        return false;
    }
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    peer->reader = redisReaderCreate();
    return peer->reader != NULL;
}

void peer_close(struct peer *peer)
{
    if (peer->reader)
        redisReaderFree(peer->reader);
    if (peer->fd >= 0)
        close(peer->fd);
    peer->reader = NULL;
    peer->fd = -1;
}

static bool wait_for(struct peer *peer, short what, int64_t until)
{
    struct pollfd watched = {.fd = peer->fd, .events = what};
    int64_t left;

    while ((left = until - now_ms()) > 0) {
        int n = poll(&watched, 1, (int)left);

        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
    return false;
}

size_t peer_push(struct peer *peer, const void *bytes, size_t count)
{
    ssize_t n = send(peer->fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n < 0 && errno != EAGAIN && errno != EINTR)
        peer->ended = true;
    return n > 0 ? (size_t)n : 0;
}

bool peer_send(struct peer *peer, const void *bytes, size_t count)
{
    const char *at = bytes;
    int64_t until = now_ms() + DEADLINE_MS;

    while (count) {
        size_t n = peer_push(peer, at, count);

        at += n;
        count -= n;
        if (peer->ended || (count && !n && !wait_for(peer, POLLOUT, until)))
            return false;
    }
    return true;
}

bool peer_sendf(struct peer *peer, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    int n;

    va_start(arguments, format);
    n = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return n >= 0 && (size_t)n < sizeof(text) && peer_send(peer, text, (size_t)n);
}

/* Receive once. false: ended, or nothing until then. */
static bool receive(struct peer *peer, char *into, size_t most, size_t *count, int64_t until)
{
    ssize_t n;

    if (!wait_for(peer, POLLIN, until))
        return false;
    n = recv(peer->fd, into, most, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        n = 0;
    else if (n <= 0) {
        peer->ended = true;
        peer->broken = n < 0;
        return false;
    }
    *count = (size_t)n;
    peer->received += (uint64_t)n;
    return true;
}

redisReply *peer_reply(struct peer *peer)
{
    int64_t until = now_ms() + DEADLINE_MS;
    char bytes[65536];
    void *reply = NULL;
    size_t n;

    for (;;) {
        if (redisReaderGetReply(peer->reader, &reply) != REDIS_OK)
            return NULL;
        if (reply)
            return reply;
        if (peer->ended || !receive(peer, bytes, sizeof(bytes), &n, until))
            return NULL;
        if (n && redisReaderFeed(peer->reader, bytes, n) != REDIS_OK)
            return NULL;
    }
}

size_t peer_drain(struct peer *peer, char *into, size_t most, int deadline_ms)
{
    int64_t until = now_ms() + deadline_ms;
    char forgotten[65536];
    size_t total = 0, n;

    while (!peer->ended && total < most) {
        size_t room = into ? most - total : sizeof(forgotten);

        if (!receive(peer, into ? into + total : forgotten, room, &n, until))
            break;
        total += n;
    }
    return total;
}

bool reply_is_page(const redisReply *reply, const struct data *data, uint64_t page)
{
    const char *at = NULL;
    size_t bytes = data_value(data, page, PAGE_BYTES, &at);

    if (!reply)
        return false;
    if (!bytes)
        return reply->type == REDIS_REPLY_NIL;
    return reply->type == REDIS_REPLY_STRING && (size_t)reply->len == bytes && !memcmp(reply->str, at, bytes);
}

long resident_kib(long pid)
{
    char path[64], line[256];
    long kib = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%ld/status", pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    }
    if (file)
        fclose(file);
    return kib;
}

/* ---- which case ---- */

static const struct {
    const char *name;
    void (*run)(int argc, char **argv);
    int arguments;
} cases[] = {
    {"pages", case_pages, 1},         {"order", case_order, 1}, {"depth", case_depth, 4},
    {"crowd", case_crowd, 3},         {"load", case_load, 2},   {"protocol", case_protocol, 0},
    {"flood", case_flood, 2},         {"deaf", case_deaf, 4},   {"half-open", case_half_open, 1},
    {"timeout", case_timeout, 1},     {"fuzz", case_fuzz, 1},   {"raw", case_raw, 1},
    {"aggregate", case_aggregate, 1},
};

int main(int argc, char **argv)
{
    struct rlimit files;

    signal(SIGPIPE, SIG_IGN);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (size_t i = 0; argc >= 3 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) || argc - 3 < cases[i].arguments)
            continue;
        port = atoi(argv[2]);
        cases[i].run(argc - 3, argv + 3);
        if (strcmp(argv[1], "raw"))
            printf("%u passed, %u failed\n", passed, failed);
        return failed != 0;
    }
    fprintf(stderr, "usage: server-clients CASE PORT ARGUMENT...\n");
    return 2;
}
