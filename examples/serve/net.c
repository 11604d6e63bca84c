/* SPDX-License-Identifier: MIT */
/*
 * Sockets: listening, naming ends, and how many a process may have open (see serve/net.h).
 */
#include "serve/net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG 4096

static void name_address(const struct sockaddr *address, socklen_t bytes, char *where, size_t size)
{
    char host[64], port[8];

    if (getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(where, size, "?");
    else
        snprintf(where, size, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void serve_address(int fd, bool peer, char *where, size_t size)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    int answer = peer ? getpeername(fd, (struct sockaddr *)&address, &bytes)
                      : getsockname(fd, (struct sockaddr *)&address, &bytes);

    if (answer)
        snprintf(where, size, "?");
    else
        name_address((const struct sockaddr *)&address, bytes, where, size);
}

/* One of the addresses that a name has. The socket, or -1 and errno. */
static int listen_on(const struct addrinfo *at)
{
    const int yes = 1, no = 0;
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    int error;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (at->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    if (!bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, LISTEN_BACKLOG))
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

int serve_listen(const char *host, const char *port, int *fd, char *where, char *why, size_t size)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int answer = getaddrinfo(*host ? host : NULL, port, &hints, &found), error = EADDRNOTAVAIL;

    if (answer) {
        snprintf(why, size, "cannot listen on %s:%s: %s", host, port,
                 answer == EAI_SYSTEM ? strerror(errno) : gai_strerror(answer));
        return -1;
    }
    *fd = -1;
    for (const struct addrinfo *at = found; at && *fd < 0; at = at->ai_next) {
        *fd = listen_on(at);
        if (*fd < 0)
            error = errno;
    }
    freeaddrinfo(found);
    if (*fd < 0) {
        snprintf(why, size, "cannot listen on %s:%s: %s", host, port, strerror(error));
        return -1;
    }
    serve_address(*fd, false, where, SERVE_ADDRESS_BYTES);
    return 0;
}

size_t serve_files_allow(size_t wanted)
{
    struct rlimit limit, more;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return 1024;
    if (limit.rlim_cur >= wanted)
        return limit.rlim_cur;
    more.rlim_cur = wanted;
    more.rlim_max = limit.rlim_max > wanted ? limit.rlim_max : wanted; /* more than the hard limit: with privileges */
    if (!setrlimit(RLIMIT_NOFILE, &more))
        return wanted;
    more.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    more.rlim_max = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &more) ? limit.rlim_cur : more.rlim_cur;
}
