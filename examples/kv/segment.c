/* SPDX-License-Identifier: MIT */
/* The log's files (segment.h), and reading them back. */
#include "kv/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bufpool/bufpool.h>

#include "kv/kv.h"

#define SPARES_MAX   4u /* segments kept for later use */
#define SCAN_BYTES   (1u << 20)
#define ZERO_BYTES   (1u << 16)
#define SEGMENTS_MAX (1u << 20)
#define RETRIES_MAX  100u

static const char magic[16] = "bufpool-kv log\n";

struct header {
    char magic[16];
    uint32_t format, crc; /* crc: of what follows */
    uint64_t id, at;
};

/* ---- bytes ---- */

/* All of it, or an error. */
static int write_all(int fd, const char *bytes, size_t count, uint64_t at)
{
    unsigned interrupted = 0;

    while (count) {
        ssize_t n = pwrite(fd, bytes, count, (off_t)at);

        if (n < 0 && errno == EINTR && interrupted++ < RETRIES_MAX)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        bytes += n;
        at += (uint64_t)n;
        count -= (size_t)n;
    }
    return 0;
}

/* Fewer than count only at the file's end. */
static ssize_t read_all(int fd, void *to, size_t count, uint64_t at)
{
    size_t done = 0;
    unsigned interrupted = 0;

    while (done < count) {
        ssize_t n = pread(fd, (char *)to + done, count - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR && interrupted++ < RETRIES_MAX)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static void name_of(uint64_t at, char name[32])
{
    snprintf(name, 32, "log.%llu", (unsigned long long)(at / LOG_SEGMENT_BYTES));
}

static int write_header(struct log *log, int fd, uint64_t at)
{
    union {
        struct header header;
        char bytes[LOG_HEADER_BYTES];
    } block;

    memset(&block, 0, sizeof(block));
    memcpy(block.header.magic, magic, sizeof(magic));
    block.header.format = LOG_FORMAT;
    block.header.id = log->id;
    block.header.at = at;
    block.header.crc = bp_crc32c(0, &block.header.id, 16);
    return write_all(fd, block.bytes, sizeof(block), 0);
}

/* ---- making and releasing ---- */

int segment_spare(struct log *log)
{
    static const char zeros[ZERO_BYTES];
    int fd, rc = 0;

    if (!faccessat(log->dir, "log.spare", F_OK, 0))
        return 0;
    fd = openat(log->dir, "log.spare.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    for (uint64_t at = 0; !rc && at < LOG_HEADER_BYTES + LOG_SEGMENT_BYTES; at += ZERO_BYTES) {
        uint64_t left = LOG_HEADER_BYTES + LOG_SEGMENT_BYTES - at;

        rc = write_all(fd, zeros, left < ZERO_BYTES ? (size_t)left : ZERO_BYTES, at);
    }
    if (!rc && fsync(fd))
        rc = -errno;
    close(fd);
    if (!rc && renameat(log->dir, "log.spare.new", log->dir, "log.spare"))
        rc = -errno;
    if (rc)
        unlinkat(log->dir, "log.spare.new", 0);
    return rc;
}

int segment_make(struct log *log, uint64_t at)
{
    char name[32];
    int fd, rc = 0;
    bool spare = !renameat(log->dir, "log.spare", log->dir, "log.new");

    name_of(at, name);
    fd = openat(log->dir, "log.new", O_WRONLY | O_CREAT | O_CLOEXEC | (spare ? 0 : O_TRUNC), 0600);
    if (fd < 0)
        return -errno;
    if (!spare)
        rc = -posix_fallocate(fd, 0, LOG_HEADER_BYTES + LOG_SEGMENT_BYTES);
    if (!rc)
        rc = write_header(log, fd, at);
    if (!rc && fsync(fd))
        rc = -errno;
    if (!rc && renameat(log->dir, "log.new", log->dir, name))
        rc = -errno;
    if (!rc && fsync(log->dir))
        rc = -errno;
    if (rc)
        unlinkat(log->dir, "log.new", 0);
    close(fd);
    return rc;
}

/* The old segment, under the number of the next one that is missing. */
static int use_again(struct log *log, uint64_t old)
{
    char from[32], to[32];
    int fd, rc;

    name_of(old, from);
    name_of(log->ready, to);
    if (renameat(log->dir, from, log->dir, "log.new"))
        return -errno;
    fd = openat(log->dir, "log.new", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rc = write_header(log, fd, log->ready);
    if (!rc && fsync(fd))
        rc = -errno;
    if (!rc && renameat(log->dir, "log.new", log->dir, to))
        rc = -errno;
    close(fd);
    if (!rc)
        log->ready += LOG_SEGMENT_BYTES;
    return rc;
}

int segment_release(struct log *log, uint64_t keep)
{
    int rc = 0;
    bool any = false;

    while (!rc && log->first + LOG_SEGMENT_BYTES <= keep && log->first + LOG_SEGMENT_BYTES <= log->written) {
        uint64_t old = log->first;
        char name[32];

        if (log->ready <= log->end + SPARES_MAX * LOG_SEGMENT_BYTES)
            rc = use_again(log, old);
        else {
            name_of(old, name);
            if (unlinkat(log->dir, name, 0))
                rc = -errno;
        }
        log->first += LOG_SEGMENT_BYTES;
        any = true;
    }
    if (any && fsync(log->dir) && !rc)
        rc = -errno;
    return rc;
}

/* ---- writing ---- */

/* The file of this position; whoever leaves a segment has synced it. */
static int open_segment(struct log *log, uint64_t at)
{
    uint64_t segment = at / LOG_SEGMENT_BYTES;
    char name[32];

    if (log->fd >= 0 && log->fd_segment == segment)
        return 0;
    if (log->fd >= 0) {
        int rc = fdatasync(log->fd) ? -errno : 0;

        close(log->fd);
        log->fd = -1;
        if (rc)
            return rc;
    }
    name_of(at, name);
    log->fd = openat(log->dir, name, O_WRONLY | O_CLOEXEC);
    if (log->fd < 0)
        return -errno;
    log->fd_segment = segment;
    return 0;
}

int segment_write(struct log *log, uint64_t at, const char *bytes, size_t count)
{
    while (count) {
        uint64_t inside = at % LOG_SEGMENT_BYTES;
        size_t piece = count < LOG_SEGMENT_BYTES - inside ? count : (size_t)(LOG_SEGMENT_BYTES - inside);
        int rc = open_segment(log, at);

        if (!rc)
            rc = write_all(log->fd, bytes, piece, LOG_HEADER_BYTES + inside);
        if (rc)
            return rc;
        at += piece;
        bytes += piece;
        count -= piece;
    }
    return 0;
}

int segment_sync(struct log *log)
{
    return log->fd >= 0 && fdatasync(log->fd) ? -errno : 0;
}

/* ---- finding ---- */

static int check_segment(struct log *log, uint64_t at, char *why, size_t size)
{
    struct header header;
    struct stat st;
    char name[32];
    int fd, rc = 0;

    name_of(at, name);
    fd = openat(log->dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        rc = -errno;
        snprintf(why, size, "%s: %s", name, strerror(-rc));
    } else if (read_all(fd, &header, sizeof(header), 0) != sizeof(header) ||
               memcmp(header.magic, magic, sizeof(magic))) {
        rc = KV_FOREIGN;
        snprintf(why, size, "%s is not a segment of a log", name);
    } else if (header.format != LOG_FORMAT) {
        rc = KV_VERSION;
        snprintf(why, size, "%s has format %u, this program knows %u", name, header.format, LOG_FORMAT);
    } else if (header.crc != bp_crc32c(0, &header.id, 16)) {
        rc = KV_DAMAGED;
        snprintf(why, size, "%s: the checksum of its header is wrong", name);
    } else if (header.id != log->id || header.at != at) {
        rc = KV_FOREIGN;
        snprintf(why, size, "%s belongs to another store or place", name);
    } else if ((uint64_t)st.st_size != LOG_HEADER_BYTES + LOG_SEGMENT_BYTES) {
        rc = KV_DAMAGED;
        snprintf(why, size, "%s has %lld bytes instead of %llu", name, (long long)st.st_size,
                 LOG_HEADER_BYTES + LOG_SEGMENT_BYTES);
    } else if (fdatasync(fd)) { /* what is applied must not be newer than what is durable of the log */
        rc = -errno;
        snprintf(why, size, "%s: %s", name, strerror(-rc));
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int log_find(struct log *log, char *why, size_t size)
{
    uint64_t least = UINT64_MAX, most = 0, count = 0;
    int copy = openat(log->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;

    if (!dir) {
        rc = -errno;
        if (copy >= 0)
            close(copy);
        return rc;
    }
    while ((entry = readdir(dir)) && count < SEGMENTS_MAX) {
        char *end;
        uint64_t n;

        if (strncmp(entry->d_name, "log.", 4) || entry->d_name[4] < '0' || entry->d_name[4] > '9')
            continue;
        n = strtoull(entry->d_name + 4, &end, 10);
        if (*end || n > UINT64_MAX / LOG_SEGMENT_BYTES)
            continue;
        least = n < least ? n : least;
        most = n > most ? n : most;
        count++;
    }
    closedir(dir);
    if (!count)
        return 0;
    log->first = least * LOG_SEGMENT_BYTES;
    log->ready = (most + 1) * LOG_SEGMENT_BYTES;
    if (log->first > log->end || log->ready < log->end || most - least + 1 != count) {
        snprintf(why, size, "segments of the log are missing: it must have log.%llu and all that follow",
                 (unsigned long long)(log->end / LOG_SEGMENT_BYTES));
        return KV_DAMAGED;
    }
    for (uint64_t n = log->end / LOG_SEGMENT_BYTES; n <= most && !rc; n++)
        rc = check_segment(log, n * LOG_SEGMENT_BYTES, why, size);
    return rc;
}

/* ---- reading ---- */

/* From these positions, crossing segments; fewer than count only where the log's files end. */
static ssize_t read_log(struct log *log, uint64_t at, void *to, size_t count)
{
    size_t done = 0;

    if (at >= log->ready)
        return 0;
    if (count > log->ready - at)
        count = (size_t)(log->ready - at);
    while (done < count) {
        uint64_t inside = (at + done) % LOG_SEGMENT_BYTES;
        size_t piece = count - done < LOG_SEGMENT_BYTES - inside ? count - done : (size_t)(LOG_SEGMENT_BYTES - inside);
        char name[32];
        int fd;
        ssize_t n;

        name_of(at + done, name);
        fd = openat(log->dir, name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        n = read_all(fd, (char *)to + done, piece, LOG_HEADER_BYTES + inside);
        close(fd);
        if (n < 0)
            return n;
        if ((size_t)n != piece)
            return -EIO;
        done += piece;
    }
    return (ssize_t)done;
}

/* 0: a valid record begins at this position, and is in reader->bytes; 1: none; or an error. */
static int read_record(struct log_reader *reader, uint64_t at)
{
    struct record head;
    ssize_t n = read_log(reader->log, at, &head, sizeof(head));
    uint32_t crc;

    if (n < 0)
        return (int)n;
    if (n != sizeof(head) || head.start != at || head.bytes % 8 || head.bytes > LOG_RECORD_MAX ||
        head.bytes < sizeof(head) || head.body > head.bytes - sizeof(head))
        return 1;
    n = read_log(reader->log, at, reader->bytes, head.bytes);
    if (n < 0)
        return (int)n;
    if ((size_t)n != head.bytes)
        return 1;
    memcpy(&head, reader->bytes, sizeof(head));
    crc = bp_crc32c(0, reader->bytes + sizeof(head), head.body);
    crc = bp_crc32c(crc, (const char *)&head + sizeof(head.crc), sizeof(head) - sizeof(head.crc));
    return crc == head.crc && head.start == at ? 0 : 1;
}

/* Whether some record behind `end` says that the log was durable beyond it: KV_DAMAGED, else 0, or another error. */
static int look_behind(struct log_reader *reader, uint64_t end)
{
    unsigned char *window = malloc(SCAN_BYTES);
    int rc = window ? 0 : -ENOMEM;

    for (uint64_t at = end; !rc && at < reader->log->ready;) {
        ssize_t n = read_log(reader->log, at, window, SCAN_BYTES);

        if (n < 0)
            rc = (int)n;
        for (size_t i = 0; !rc && i + sizeof(struct record) <= (size_t)n; i += 8) {
            struct record head;

            memcpy(&head, window + i, sizeof(head));
            if (head.start != at + i || !head.bytes)
                continue;
            reader->stale = true;
            if (head.synced <= end)
                continue;
            rc = read_record(reader, at + i);
            if (rc == 0) {
                snprintf(reader->why, sizeof(reader->why),
                         "the log is damaged at %llu (log.%llu, byte %llu): records follow that are of later",
                         (unsigned long long)end, (unsigned long long)(end / LOG_SEGMENT_BYTES),
                         (unsigned long long)(end % LOG_SEGMENT_BYTES + LOG_HEADER_BYTES));
                rc = KV_DAMAGED;
            } else if (rc == 1)
                rc = 0;
        }
        if (n < (ssize_t)SCAN_BYTES)
            break;
        at += SCAN_BYTES - sizeof(struct record) / 8 * 8;
    }
    free(window);
    return rc;
}

int log_next(struct log_reader *reader, const struct record **record)
{
    int rc;

    if (!reader->bytes)
        reader->bytes = malloc(LOG_RECORD_MAX);
    if (!reader->bytes)
        return -ENOMEM;
    rc = read_record(reader, reader->at);
    if (rc == 0) {
        *record = (const struct record *)(const void *)reader->bytes;
        reader->at += (*record)->bytes;
        return 0;
    }
    if (rc == 1) {
        rc = look_behind(reader, reader->at);
        return rc ? rc : 1;
    }
    snprintf(reader->why, sizeof(reader->why), "reading the log at %llu: %s", (unsigned long long)reader->at,
             kv_strerror(rc));
    return rc;
}

int log_cut(struct log *log, uint64_t at, bool stale)
{
    uint64_t segment = at / LOG_SEGMENT_BYTES * LOG_SEGMENT_BYTES;
    static const char zeros[ZERO_BYTES];
    int rc = 0;

    log->start = log->end = log->written = log->synced = log->floor = at;
    if (!stale)
        return 0;
    for (uint64_t later = segment + LOG_SEGMENT_BYTES; later < log->ready; later += LOG_SEGMENT_BYTES) {
        char name[32];

        name_of(later, name);
        if (unlinkat(log->dir, name, 0))
            return -errno;
    }
    if (log->ready > segment + LOG_SEGMENT_BYTES)
        log->ready = segment + LOG_SEGMENT_BYTES;
    for (uint64_t zero = at; !rc && zero < log->ready; zero += ZERO_BYTES)
        rc = segment_write(log, zero, zeros, log->ready - zero < ZERO_BYTES ? (size_t)(log->ready - zero) : ZERO_BYTES);
    if (!rc)
        rc = segment_sync(log);
    if (!rc && fsync(log->dir))
        rc = -errno;
    return rc;
}
