/* SPDX-License-Identifier: MIT */
/* The log's files. Called by log.c: one writer at a time; make and release under the log's lock. */
#ifndef KV_SEGMENT_H
#define KV_SEGMENT_H

#include "kv/log.h"

/* The segment that begins here, and is not there yet. */
int segment_make(struct log *, uint64_t at);
/*
 * Have one ready for segment_make, written already: its syncs take half as long as those of space that was only allocated.
 * One thread; without the log's lock.
 */
int segment_spare(struct log *);
/* Segments wholly before `keep` become the next ones to be written, or go. */
int segment_release(struct log *, uint64_t keep);
int segment_write(struct log *, uint64_t at, const char *bytes, size_t count);
int segment_sync(struct log *);

#endif
