/* SPDX-License-Identifier: MIT */
/*
 * A device with a cache and a plug: an I/O back end around pread/pwrite that knows of one file what is durable. A write
 * that has ended is in the cache; a sync that succeeds makes durable what was in the cache when it began. When the plug
 * is pulled, each sector of 512 bytes holds what was durable, or what was written since, each for itself: writes are lost
 * whole, in part, and out of order.
 */
#ifndef TESTS_POWER_IO_H
#define TESTS_POWER_IO_H

#include "io/io.h"

extern const struct io_ops power_io;

/* From now on this file; it holds what it holds now, durably, and has this many bytes at the most. */
void power_io_watch(const char *path, uint64_t bytes_max);
/* Write to `path` what the file holds after the plug was pulled just now. Nothing else happens: the pool lives on. */
void power_io_pull(const char *path, uint64_t seed);
/* So many writes and syncs that were submitted so far. */
uint64_t power_io_writes(void);
uint64_t power_io_syncs(void);
void power_io_forget(void);

#endif
