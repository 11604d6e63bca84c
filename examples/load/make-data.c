/* SPDX-License-Identifier: MIT */
/*
 * make-data FILE SIZE: write a file of pages that carry their number and a checksum (pages.h).
 *
 * The blocks are allocated first and the page cache is emptied of the file afterwards, so that whoever
 * reads it next meets the device and not memory.
 */
#include "load/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_PAGES 256u /* pages written at once: 1 MiB */

static int write_all(int fd, const unsigned char *from, size_t bytes)
{
    while (bytes) {
        ssize_t done = write(fd, from, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        from += done;
        bytes -= (size_t)done;
    }
    return 0;
}

static int write_pages(int fd, uint64_t pages, unsigned char *chunk)
{
    for (uint64_t page = 0; page < pages;) {
        unsigned n = 0;
        for (; n < CHUNK_PAGES && page < pages; n++, page++)
            pages_make(page, chunk + (size_t)n * PAGES_BYTES);
        int err = write_all(fd, chunk, (size_t)n * PAGES_BYTES);
        if (err)
            return err;
    }
    return 0;
}

static int make(const char *path, uint64_t bytes)
{
    int err = 0;
    unsigned char *chunk = malloc((size_t)CHUNK_PAGES * PAGES_BYTES);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (!chunk || fd < 0) {
        err = -errno;
        goto out;
    }
    err = -posix_fallocate(fd, 0, (off_t)bytes);
    if (err == -EOPNOTSUPP || err == -EINVAL)
        err = 0; /* some file systems cannot; writing allocates as well */
    if (!err)
        err = write_pages(fd, bytes / PAGES_BYTES, chunk);
    if (!err && fsync(fd))
        err = -errno;
    if (!err)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* only a wish */
out:
    if (fd >= 0 && close(fd) && !err)
        err = -errno;
    free(chunk);
    return err;
}

int main(int argc, char **argv)
{
    uint64_t bytes = argc == 3 ? pages_parse_size(argv[2]) : 0;
    if (argc != 3) {
        fprintf(stderr, "usage: make-data FILE SIZE   (SIZE in bytes, or with K, M, G, T)\n");
        return 2;
    }
    if (!bytes || bytes % PAGES_BYTES || bytes > INT64_MAX) {
        fprintf(stderr, "make-data: %s is not a size that is a multiple of %u bytes\n", argv[2], PAGES_BYTES);
        return 2;
    }
    int err = make(argv[1], bytes);
    if (err) {
        fprintf(stderr, "make-data: %s: %s\n", argv[1], strerror(-err));
        return 1;
    }
    printf("%" PRIu64 " pages\n", bytes / PAGES_BYTES);
    return 0;
}
