/* SPDX-License-Identifier: MIT */
/*
 * I/O: files, and channels through which reads go.
 *
 * A channel is a ring (io/uring.c) or its stand-in (io/psync.c: a queue served by pread). Requests are the
 * caller's memory; from submit until reap hands them out they belong to the channel. Whoever waits for a
 * request can complete it, whichever thread started it: every call here may be made by any thread, and
 * reaping returns whatever finished. What is built on top (bufpool/fault.c) relies on that.
 *
 *   submit: queued and started, or (IO_HOLD) queued only: the next submit, flush or wait starts it
 *   reap:   finished requests, without blocking
 *   wait:   starts what is queued; blocks until something can be reaped or the time is over
 *
 * Locking is inside. One thread at a time waits in the kernel (the leader); others that call wait meanwhile are parked and
 * return as soon as the leader has reaped something, so each looks again at what it waits for.
 */
#ifndef IO_IO_H
#define IO_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files ---- */

struct io_file {
    int fd;              /* -1: closed */
    bool direct;         /* O_DIRECT in force */
    uint32_t align;      /* direct I/O: offset, length and address must be multiples of this; else 1 */
    uint64_t dev, ino;
};

enum io_direct { IO_DIRECT_TRY, IO_DIRECT_ON, IO_DIRECT_OFF };

/*
 * Open for reading: a regular file or a block device. Direct I/O where statx (or a trial read) says that it works with 4 KiB units.
 * -EISDIR for a directory, -EINVAL for what has no pages (pipe, socket, tty, character device), -EOPNOTSUPP: IO_DIRECT_ON and it does
 * not work, else what open(2) answered. On failure `why` (size bytes) gets one line.
 */
int bpi_io_file_open(struct io_file *, const char *path, enum io_direct, char *why, size_t size);
void bpi_io_file_close(struct io_file *);
/* Size now, in bytes; block devices too. 0 or a negative errno. */
int bpi_io_file_size(const struct io_file *, uint64_t *bytes);

/* ---- requests ---- */

#define IO_BUFFER_NONE UINT32_MAX

struct io_request {
    const struct io_file *file;
    uint64_t offset;     /* bytes */
    void *to;
    uint32_t bytes;
    uint32_t buffer;     /* registered buffer that `to` lies in, or IO_BUFFER_NONE */
    int32_t result;      /* when reaped: bytes read (0: end of file), or a negative errno */
    struct io_request *next; /* the channel's while it has the request */
};

/* ---- channels ---- */

enum io_kind { IO_URING, IO_PSYNC };

#define IO_HOLD 1u       /* submit: queue only */
#define IO_BACKGROUND 2u /* submit: nobody is going to wait; make sure that it proceeds by itself */

struct io_channel;

/* The seam: io/uring.c and io/psync.c each export one; tests put a fault-injecting one around them. */
struct io_ops {
    const char *name;
    /*
     * depth: requests that may be in flight at once (the completion queue holds at least as many). buffers:
     * slots of the sparse table of registered buffers, 0 for none. threads: psync's background threads.
     */
    int (*open)(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **);
    void (*close)(struct io_channel *); /* waits for what is in flight and drops the results */
    /*
     * Take requests in order; how many were taken (fewer than n, also 0: depth reached, reap first), or a
     * negative errno if none was.
     */
    int (*submit)(struct io_channel *, struct io_request *const[], unsigned n, unsigned flags);
    int (*flush)(struct io_channel *); /* start what IO_HOLD queued */
    unsigned (*reap)(struct io_channel *, struct io_request *done[], unsigned max);
    /*
     * Until something can be reaped, or somebody else reaped, or timeout_ns is over (0: only flush and look). want: a hint, how
     * many completions the caller would like to sleep through. 0, -ETIME, or a negative errno. Returns at once when nothing is in flight.
     */
    int (*wait)(struct io_channel *, unsigned want, uint64_t timeout_ns);
    /* Readable (level-triggered) when reap would return something. Owned by the channel. */
    int (*fd)(struct io_channel *);
    /* Register memory as buffer `slot` (populated already). 0 or a negative errno: use plain reads. */
    int (*buffer)(struct io_channel *, unsigned slot, void *at, size_t bytes);
};

extern const struct io_ops bpi_io_uring;
extern const struct io_ops bpi_io_psync;

/*
 * Whether io_uring works here: makes a ring and reads a few bytes through it, with a time-out. 0, or a negative errno,
 * and then why/remedy (each size bytes) say in words what stood in the way. Probe once, keep the answer.
 */
int bpi_io_uring_probe(char *why, char *remedy, size_t size);

#endif
