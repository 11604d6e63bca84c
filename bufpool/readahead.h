/* SPDX-License-Identifier: MIT */
/*
 * Reading ahead: of streams, and of ranges that somebody has asked for as a whole.
 *
 * Whose stream it is does not matter, the index tells. A miss whose predecessors came just now goes on with a stream,
 * and what follows is read too: a small window at first. Everything that is read ahead bears a mark (FRAME_AHEAD) until
 * somebody touches it for the first time; who does, looks how far it is from there to the first page that is absent, and
 * if that is less than a window, the next one is read, larger and in larger extents (after the marker page of Linux'
 * readahead). So the reader is always inside a window with another one before him, streams may be as many and as
 * interleaved as they like, views and refs and copies find them alike, and reads at random never see any of this.
 *
 * How large a window gets follows what its reader does: what he consumes in the time that a read takes, times four, up to
 * a share of the pool. That he has begun to consume at all, and when, is remembered for a few streams of each file; a
 * stream that was forgotten begins again where it is.
 *
 * Hits know nothing of it: a page that bears the mark has no heat, so its first hit is not inlined. That first touch
 * takes the mark away instead of warming the page, since it is what else would have been the miss; and it is told to
 * the small pools as one. Until then the page is not evicted, unless an eighth of the pool has been read since.
 *
 * Larger extents than the file was opened with are for files that are only read (bp_file_options.stream_bytes): an extent
 * is latched as a whole, and who writes must be able to latch neighbours apart.
 */
#ifndef BUFPOOL_READAHEAD_H
#define BUFPOOL_READAHEAD_H

#include <stdatomic.h>
#include <stdint.h>

#include "bufpool/bufpool.h"

#define AHEAD_STREAMS 8u /* remembered for each file */

/* Hints, relaxed: who reads half of another stream's has a window of another size. */
struct ahead_stream {
    _Atomic uint64_t next;     /* first page that was not asked for; 0: none */
    _Atomic uint64_t at;       /* where its reader was when the window was read */
    _Atomic uint64_t since_ns; /* and when that was */
    _Atomic uint32_t window;   /* pages */
};

/* The window after this one, of whose pages `consumed` were used up in so long; all in pages. */
uint32_t bpi_ahead_window(const bp_pool *, uint32_t window, uint64_t consumed, uint64_t ns);
/* Extents for so many pages that are read together. */
unsigned bpi_ahead_order(const bp_file *, uint64_t pages);
/*
 * Start reads of what is missing from first to last, in extents of up to this order, as many as can be had without
 * waiting. How many pages from first on are there or under way now. What is wrong with one of them is for those to hear
 * who want it.
 */
uint64_t bpi_ahead_read(bp_session *, bp_file *, uint64_t first, uint64_t last, unsigned order);
/* The same for a range that somebody is about to use; if it goes on with a stream, what comes behind it too. */
uint64_t bpi_range_read(bp_session *, bp_file *, uint64_t first, uint64_t last);
/* A miss whose predecessor is there, or a mark that was taken: s->ahead_file and s->ahead_page say where. */
void bpi_ahead_go(bp_session *);
/* Does a miss at this page, whose predecessor is in the index, go on with a stream? Then it is noted for bpi_ahead_go. */
void bpi_ahead_look(bp_session *, bp_file *, uint64_t page);
/* A read of a window took so long. */
void bpi_ahead_measured(bp_pool *, uint64_t ns);

#endif
