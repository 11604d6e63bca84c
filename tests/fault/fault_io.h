/* SPDX-License-Identifier: MIT */
/*
 * An I/O back end that misbehaves as told: put around io_uring or pread, for tests of everything that reads or writes.
 *
 * The plan is one for the whole process and may be changed while channels are open; it is applied to a request when its
 * read has finished in the back end inside. A read that "fails" or comes back short leaves 0xDE in every byte
 * that it did not deliver, so that whoever uses such bytes is found out. A write that "fails" has reached the file all the
 * same, which is one of the things that may be true of a write that failed; tests/fault/power_io.h has the others.
 *
 *   struct fault_plan plan = fault_plan_none(&bpi_io_uring);
 *   plan.short_chance = FAULT_ALWAYS / 4;
 *   fault_io_plan(&plan);
 *   ... a pool or a test that uses &fault_io ...
 */
#ifndef TESTS_FAULT_IO_H
#define TESTS_FAULT_IO_H

#include "io/io.h"

#define FAULT_ALWAYS 65536u /* chances are out of this many */
#define FAULT_POISON 0xde

struct fault_plan {
    const struct io_ops *inner;
    uint64_t seed; /* of all chances; the same seed and order of requests give the same faults */

    /* results */
    unsigned short_chance; /* a read of more than short_unit bytes gets fewer: a random multiple of short_unit, not 0 */
    uint32_t short_unit;   /* bytes; 0: 1. Direct I/O can only be continued at multiples of 512 or 4096 */
    uint32_t short_at;     /* every longer read is cut to this many bytes, 0: off */
    unsigned error_chance; /* fails with `error` */
    int error;             /* negative errno; 0: -EIO */
    unsigned error_next;   /* so many requests from now on fail with `error`, then no more; counts down */
    uint64_t bad_from, bad_to; /* bytes of a file: a read that covers any of [from, to) fails with -EIO */
    /* Last word: gets the request and the result so far, returns the result. Any thread, no lock held. */
    int32_t (*result)(void *ctx, const struct io_request *, int32_t result);
    void *ctx;

    /* order and time */
    unsigned late_chance; /* held back for late_reaps calls of reap */
    unsigned late_reaps;
    bool shuffle;                /* what reap hands out is in random order */
    uint64_t hold_from, hold_to; /* a read that covers any of these bytes is not handed out until fault_io_release() */

    /* calls */
    unsigned submit_most;      /* requests taken by one submit; 0: no limit */
    unsigned submit_busy_next; /* so many submits answer submit_error; counts down */
    unsigned submit_busy_chance;
    int submit_error;         /* 0: -EBUSY */
    unsigned wait_error_next; /* so many waits answer wait_error at once; counts down */
    int wait_error;           /* 0: -EAGAIN */
    int buffer_error;         /* registering a buffer answers this */
    int file_error;           /* registering a file, or clearing its slot, answers this */
    unsigned open_error_next; /* so many opens answer open_error; counts down */
    int open_error;           /* 0: -ENOMEM */
};

struct fault_counts {
    uint64_t requests, shorts, errors, late, held; /* requests: handed out by the back end inside */
    uint64_t submits_refused, submits_cut, opens_refused, buffers_refused, files_refused;
};

/* The back end, to be used wherever bpi_io_uring is. */
extern const struct io_ops fault_io;

/* Nothing goes wrong. */
struct fault_plan fault_plan_none(const struct io_ops *inner);
/* From now on this; counts start from 0. The inner back end of open channels stays what it was. */
void fault_io_plan(const struct fault_plan *);
/* Hand out what is held, and hold no more (hold_from = hold_to = 0). */
void fault_io_release(void);
struct fault_counts fault_io_counts(void);

#endif
