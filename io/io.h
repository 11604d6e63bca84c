/* SPDX-License-Identifier: MIT */
/*
 * I/O: files, and channels through which reads, writes and syncs go.
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
 * Locking is inside. One or two threads at a time wait in the kernel (the leaders); others that wait meanwhile are
 * parked. A thread that waits for the outcome of one request, while others reap too, does it like this:
 *
 *   for (;;) {
 *       n = reap(...);  for each: act on it, store the outcome in its word; announce(the words)
 *       if (my word has changed) break;
 *       wait_until(..., {my word, mask, value seen});
 *   }
 *
 * Without the word there is a gap: another thread may have reaped the request and not yet have stored the outcome,
 * or may store it between the look and the wait; the channel cannot know, and would sleep until something else
 * finishes. With it, nobody sleeps through a change that was announced, but for two rare interleavings
 * (io/uring.c, kick), after which the thread looks again within 50 ms.
 */
#ifndef IO_IO_H
#define IO_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files ---- */

struct io_file {
    int fd;         /* -1: closed, or a null file */
    bool direct;    /* O_DIRECT in force */
    uint32_t align; /* direct I/O: offset, length and address must be multiples of this; else 1 */
    uint64_t dev, ino;
    uint64_t null_bytes; /* a null file: its size; else 0 */
};

enum io_direct { IO_DIRECT_TRY, IO_DIRECT_ON, IO_DIRECT_OFF };

#define IO_ALIGN_MAX 4096u /* what needs more than this is read through the page cache */

/*
 * Open for reading: a regular file or a block device. Direct I/O where statx (or a trial read) says that it
 * works with 4 KiB units. -EISDIR for a directory, -EINVAL for what has no pages (pipe, socket, tty, character
 * device), -EOPNOTSUPP: IO_DIRECT_ON and it does not work, else what open(2) answered. `why` (size bytes; may be
 * NULL with size 0) gets one line on failure; on success it is empty, or says why a file opened with IO_DIRECT_TRY
 * is read through the page cache. On failure the fd is -1 and nothing needs closing.
 */
int bpi_io_file_open(struct io_file *, const char *path, enum io_direct, char *why, size_t size);
/*
 * A file of this size (a multiple of IO_ALIGN_MAX, not 0) that is nowhere, only for channels of bpi_io_null. The number
 * tells it from other null files. Nothing can fail.
 */
void bpi_io_file_null(struct io_file *, uint64_t bytes, uint64_t number);
/*
 * The same for reading and writing; create: a regular file that is not there is made (mode 0666 less the umask), and
 * the directory is synced so that it stays. -EACCES, -EROFS, -ETXTBSY, ...: what open(2) or that sync answered.
 */
int bpi_io_file_open_write(struct io_file *, const char *path, bool create, enum io_direct, char *why, size_t size);
/* No request for it may be under way. May be called twice. */
void bpi_io_file_close(struct io_file *);
/* Size now, in bytes; block devices too. 0 or a negative errno. */
int bpi_io_file_size(const struct io_file *, uint64_t *bytes);
/* Cut it off, or let it grow by a hole. No write to what goes may be under way. 0 or a negative errno. */
int bpi_io_file_truncate(const struct io_file *, uint64_t bytes);

/* ---- requests ---- */

#define IO_BUFFER_NONE UINT32_MAX

/*
 * IO_SYNC: what was written by requests that were reaped before this one was submitted is durable, and so is the size of
 * the file; result 0 or a negative errno. offset, to and bytes are not looked at.
 */
enum io_op { IO_READ, IO_WRITE, IO_SYNC };

struct io_request {
    const struct io_file *file; /* stays open until the request is reaped */
    uint64_t offset;            /* bytes; at most INT64_MAX */
    void *to;                   /* stays valid until the request is reaped; a write's data, which it does not change */
    uint32_t bytes;
    uint32_t buffer;         /* registered buffer that `to` lies in, or IO_BUFFER_NONE */
    uint32_t file_slot;      /* that the file is registered in, plus 1; 0: none */
    int32_t result;          /* when reaped: bytes read (0: end of file) or written, or a negative errno */
    struct io_request *next; /* the channel's while it has the request */
    uint8_t op;              /* enum io_op; 0 reads */
};

/* ---- channels ---- */

enum io_kind { IO_URING, IO_PSYNC };

#define IO_HOLD       1u /* submit: queue only */
#define IO_BACKGROUND 2u /* submit: nobody is going to wait; make sure that it proceeds by itself */

#define IO_DEPTH_MAX 32768u /* requests in flight in a channel */
#define IO_FILES_MAX 256u   /* slots for registered files: the table must be smaller than RLIMIT_NOFILE, often 1024 */

struct io_channel;

/* Sleep only while (*word & mask) == equals. The word must stay readable during the call. */
struct io_until {
    const _Atomic uint64_t *word;
    uint64_t mask, equals;
};

/* The seam: io/uring.c exports one, io/psync.c two; tests put a fault-injecting one around them. */
struct io_ops {
    const char *name;
    /*
     * depth: requests that may be in flight at once, 1 to IO_DEPTH_MAX (the completion queue holds at least as
     * many). buffers: slots of the sparse table of registered buffers, 0 for none. threads: psync's background
     * threads, started when first needed. 0 or a negative errno.
     */
    int (*open)(unsigned depth, unsigned buffers, unsigned threads, struct io_channel **);
    /*
     * Waits for what is in flight, 30 s at most, and drops the results. No other thread may be inside or come
     * after. 0, or -ETIMEDOUT: the device has still not answered. Then the channel is left behind on purpose, and
     * the memory of the reads under way must never be used or unmapped again: the answer may yet come.
     */
    int (*close)(struct io_channel *);
    /*
     * Take requests in order; how many were taken (fewer than n, also 0: depth reached, reap first), or a
     * negative errno if none was. What was not taken is the caller's as before.
     */
    int (*submit)(struct io_channel *, struct io_request *const[], unsigned n, unsigned flags);
    /*
     * Start what IO_HOLD queued, and see to it that it ends even if nobody waits. 0, or -EAGAIN/-EBUSY/-ENOMEM: the
     * system has no room just now and what is queued stays queued. If the kernel refuses for good, the queued requests
     * finish with its errno: reap hands them out.
     */
    int (*flush)(struct io_channel *);
    unsigned (*reap)(struct io_channel *, struct io_request *done[], unsigned max);
    /*
     * Until something can be reaped, or somebody else reaped, or timeout_ns is over (0: only flush and look). want: a
     * hint, how many completions the caller would like to sleep through. 0, -ETIME, or a negative errno as of flush.
     * Returns at once when nothing is in flight. 0 promises nothing: reap may find that another thread was faster.
     * psync: the thread reads what is queued itself, and how long a read takes is not bounded by timeout_ns.
     */
    int (*wait)(struct io_channel *, unsigned want, uint64_t timeout_ns);
    /*
     * As wait, but for the outcome of one request: ends at once if the word has changed, and also when that is
     * announced; not because others reaped or because nothing is in flight (then it is about to be, or the outcome
     * is about to be announced). until == NULL: as wait.
     */
    int (*wait_until)(struct io_channel *, unsigned want, uint64_t timeout_ns, const struct io_until *until);
    /* The caller has changed these words: wake who waits for one in this channel. Cheap if nobody waits. */
    void (*announce)(struct io_channel *, const _Atomic uint64_t *const word[], unsigned n);
    /*
     * Readable (level-triggered) when reap would return something (but for requests that flush or wait have just
     * failed: reap after them). Owned by the channel. A negative errno if there can be none.
     */
    int (*fd)(struct io_channel *);
    /*
     * Register memory as buffer `slot`, populated already, or clear the slot (at == NULL, bytes == 0) before the memory
     * goes; reads in flight are not disturbed. 0 or a negative errno: use plain reads.
     */
    int (*buffer)(struct io_channel *, unsigned slot, void *at, size_t bytes);
    /*
     * Register a file in `slot`, which spares each read the kernel's counting of the file's users, or clear the slot
     * (NULL); reads in flight are not disturbed. The file stays open until its slot is cleared or used for another,
     * even if it is closed before. 0 or a negative errno: name no slot in requests.
     */
    int (*file)(struct io_channel *, unsigned slot, const struct io_file *);
};

extern const struct io_ops bpi_io_uring;
extern const struct io_ops bpi_io_psync;
/* No device: what is submitted is finished, whole, without a byte having been written to it. Only null files. */
extern const struct io_ops bpi_io_null;

/*
 * Whether io_uring works here: makes a ring and reads a few bytes through it, with a time-out. 0, or a negative errno,
 * and then why/remedy (each size bytes) say in words what stood in the way. Probe once, keep the answer.
 */
int bpi_io_uring_probe(char *why, char *remedy, size_t size);

#endif
