/* SPDX-License-Identifier: MIT */
/*
 * Sockets: listening, naming ends, and how many a process may have open.
 */
#ifndef SERVE_NET_H
#define SERVE_NET_H

#include <stdbool.h>
#include <stddef.h>

#define SERVE_ADDRESS_BYTES 80u /* "[address]:port" and its NUL */

/*
 * Listen on host:port; an empty host is every address, port "0" any free one. 0: *fd is the caller's,
 * non-blocking, and `where` (SERVE_ADDRESS_BYTES) says HOST:PORT as bound; else -1, and why is one line.
 */
int serve_listen(const char *host, const char *port, int *fd, char *where, char *why, size_t size);

/* Name one end of a connected socket, "address:port"; "?" where there is none. */
void serve_address(int fd, bool peer, char *where, size_t size);

/* Raise the limit of open files to `wanted` as far as allowed; what it is now. */
size_t serve_files_allow(size_t wanted);

#endif
