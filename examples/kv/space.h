/* SPDX-License-Identifier: MIT */
/*
 * Which pages of a file are in use: a buddy over the file, in memory, that grows the file by 2 MiB.
 *
 * Crash safety by two states. What is *taken* or not is for who wants space now. What is *in use* is what the log says:
 * it changes only under the log's lock, with the record that says so, so that a copy of it belongs to exactly one
 * position in the log (checkpoint.c writes it down, recovery repeats from there). What was taken for something that never
 * came into the log is free again after a crash by itself.
 *
 * What is freed at a position in the log is taken until a checkpoint begins behind that position and ends: recovery from
 * the checkpoint before still needs the pages as they were.
 *
 * Thread safe; space_log_* are called with the log's lock held, which is the outer one.
 */
#ifndef KV_SPACE_H
#define KV_SPACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPACE_ORDER_MAX   9u           /* 2 MiB */
#define SPACE_BLOCK_PAGES 512u         /* of the largest extent */
#define SPACE_PAGES_MAX   (1ull << 34) /* 64 TiB */

struct stack {
    uint64_t *page;
    size_t count, room;
};

struct freed {
    uint64_t page, lsn;
    unsigned order;
};

struct space {
    pthread_mutex_t lock;
    uint64_t pages;                          /* the file's, a multiple of SPACE_BLOCK_PAGES */
    uint64_t *used;                          /* bit: in use as the log says */
    uint8_t *free;                           /* of the first page of a free extent: its order + 1, else 0 */
    struct stack stack[SPACE_ORDER_MAX + 1]; /* free extents; some entries are stale, `free` tells */
    size_t free_count[SPACE_ORDER_MAX + 1];
    struct freed *freed; /* what waits for a checkpoint, in the order of the log */
    size_t freed_count, freed_room;
    uint64_t used_pages;
};

int space_init(struct space *);
void space_end(struct space *);

/* Take an extent, growing if need be. ENOMEM, ENOSPC (SPACE_PAGES_MAX). */
int space_take(struct space *, unsigned order, uint64_t *page);
/* Give back what never came into the log. */
void space_give(struct space *, uint64_t page, unsigned order);

/* The log says so. false: it cannot be (recovery of a damaged log); nothing has changed. */
bool space_log_use(struct space *, uint64_t page, unsigned order);
/*
 * ... `lsn` is where. false: it cannot be. If memory is refused, the extent is not taken again before the next open, which
 * finds it free.
 */
bool space_log_free(struct space *, uint64_t page, unsigned order, uint64_t lsn);

/* A copy of what is in use, (pages + 7) / 8 bytes, into new memory; NULL: none. With the log's lock held. */
unsigned char *space_copy(struct space *, uint64_t *pages);
/* What was freed up to this position may be taken from now on. */
void space_release(struct space *, uint64_t lsn);

/* Begin anew, with this in use (`bits` may be NULL: nothing). For recovery, which then calls space_log_*, and at its end
 * space_settle, which finds what is free. */
int space_load(struct space *, const unsigned char *bits, uint64_t pages);
int space_settle(struct space *);

bool space_in_use(struct space *, uint64_t page);
uint64_t space_used_pages(struct space *);
uint64_t space_pages(struct space *);

#endif
