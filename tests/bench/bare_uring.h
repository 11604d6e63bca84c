/* SPDX-License-Identifier: MIT */
/*
 * liburing and nothing else: what reading (or writing) pages costs without a pool. Buffers, file and ring are registered, and the
 * ring belongs to one thread, so this is as little as a read can cost.
 */
#ifndef TESTS_BENCH_BARE_URING_H
#define TESTS_BENCH_BARE_URING_H

#include <stdint.h>

#define BARE_DEPTH_MAX 128u

struct bare_uring;

/* fd stays the caller's. By the thread that will use it. 0 or a negative errno. */
int bare_open(int fd, struct bare_uring **);
void bare_close(struct bare_uring *); /* of NULL: nothing */

/* Read n pages (at most BARE_DEPTH_MAX), all at once, wait for all; *sum grows by their first words. */
int bare_read(struct bare_uring *, const uint64_t page[], unsigned n, uint64_t *sum);

/* The next page wanted, from whoever calls. */
typedef uint64_t bare_next(void *ctx);
/* Read ops pages, depth of them under way at any moment. */
int bare_read_window(struct bare_uring *, unsigned depth, uint64_t ops, bare_next *, void *ctx, uint64_t *sum);
/* The same with writes, of whatever the buffers hold; fd was opened for them. */
int bare_write_window(struct bare_uring *, unsigned depth, uint64_t ops, bare_next *, void *ctx, uint64_t *sum);

#endif
