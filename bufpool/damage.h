/* SPDX-License-Identifier: MIT */
/*
 * What is known of pages that cannot be read, or that their owner refused (bp_file_options.verify).
 *
 * A read of many pages that fails says little: one of them is bad. So nobody gets that error. The stretch is noted here,
 * the extent leaves the index, and all who waited look again; whoever needs a page of it reads a part that does not hold
 * the whole stretch. That fails again or does not, so the stretch gets shorter by half each time, and in the end a bad
 * page is read alone, while its neighbours lie in the largest extents that leave it out (halving: as TigerBeetle's
 * storage does after a failed read). No page that is bad is ever in the index, so hits, runs and copies need not know.
 *
 * A page that has failed alone twice in a row, or once after its owner named it, is not read again for a while: its
 * error is the answer at once. All of this is only a memory: it ends after some time, with bp_reread, when a read of the
 * page succeeds, when the file is closed, and the oldest when there is no room. Then the page is unknown, and is read.
 */
#ifndef BUFPOOL_DAMAGE_H
#define BUFPOOL_DAMAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bufpool/bufpool.h"

/* A read of all these pages failed; of the parts of it nothing worse is known. */
struct damage_record {
    uint64_t first; /* identity: file and page */
    uint64_t until_ns;
    uint32_t pages;
    uint32_t times; /* pages == 1: failed so often in a row */
    int32_t error;
};

/*
 * The records of a pool by place. None lies inside another one, so they are in the order of their ends as well, and
 * whether a stretch holds a record is asked of one of them.
 */
struct damage {
    pthread_mutex_t lock; /* of the rest; innermost */
    struct damage_record *record;
    uint32_t count, limit;
};

/* Bytes that a pool of so many pages spends on it. */
uint64_t bpi_damage_bytes(uint64_t pages);
/* 0 or -ENOMEM. */
int bpi_damage_open(struct damage *, uint64_t pages);
void bpi_damage_close(struct damage *);

/* The rest is cheap for files that have none: they are told by bp_file.damaged, which callers ask first. */

/* A read of these pages failed, and nothing smaller is to blame. */
void bpi_damage_note(bp_file *, uint64_t page, uint32_t pages, int error);
/* A read of these pages succeeded. */
void bpi_damage_heal(bp_file *, uint64_t page, uint64_t pages);
/*
 * A page is about to be read, in an extent of *order, which may be lowered. 0, or the error that it is known for: then
 * it is not to be read.
 */
int bpi_damage_ask(bp_file *, uint64_t page, unsigned *order);
/* n pages are about to be read with one request: how many may be. 0: the first one only alone. */
uint32_t bpi_damage_ask_run(bp_file *, uint64_t page, uint32_t n);
/* Forget what is known of these pages. */
void bpi_damage_forget(bp_file *, uint64_t first, uint64_t last);
/* The first page at or after `from` that is not read again; false: there is none. Thread safe, as all of them. */
bool bpi_damage_next(bp_file *, uint64_t from, uint64_t *page, int *error);
/* Pages of the pool that are not read again. */
uint64_t bpi_damage_count(bp_pool *);

#endif
