/* SPDX-License-Identifier: MIT */
/*
 * What io/probe.c needs of io/uring.c beyond the interface: a close that does not wait for half a minute.
 */
#ifndef IO_URING_H
#define IO_URING_H

#include "io/io.h"

/* As io_ops.close, waiting at most this long. */
int bpi_uring_close_within(struct io_channel *, uint64_t timeout_ns);

#endif
