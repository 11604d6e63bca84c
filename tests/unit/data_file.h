/* SPDX-License-Identifier: MIT */
/* A file with known content on a real disk, for tests: made, compared against, removed. */
#ifndef TESTS_DATA_FILE_H
#define TESTS_DATA_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct data_file {
    char path[256];
    char *content; /* what the file holds, and zeros up to the end of its last page */
    uint64_t bytes;
    uint64_t pages; /* the last one may be partial */
};

/* Test programs run in the build folder, which is on a disk; /tmp may be in memory. */
static inline struct data_file data_file_make(uint64_t bytes)
{
    struct data_file d = {.bytes = bytes, .pages = (bytes + 4095) / 4096};
    uint64_t x = 88172645463325252u + (uint64_t)clock() * 2654435761u; /* no two files are the same */
    uint64_t written = 0;
    int fd;

    snprintf(d.path, sizeof(d.path), "bp-test-XXXXXX");
    fd = mkstemp(d.path);
    d.content = calloc(d.pages ? d.pages : 1, 4096);
    for (uint64_t i = 0; i < bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(d.content + i, &x, bytes - i < 8 ? bytes - i : 8);
    }
    while (fd >= 0 && written < bytes) {
        ssize_t n = pwrite(fd, d.content + written, bytes - written, (off_t)written);

        if (n <= 0)
            abort();
        written += (uint64_t)n;
    }
    if (fd < 0 || fsync(fd) || close(fd))
        abort();
    return d;
}

static inline bool data_page_ok(const struct data_file *d, uint64_t page, const void *at)
{
    return memcmp(at, d->content + page * 4096, 4096) == 0;
}

static inline void data_file_remove(struct data_file *d)
{
    unlink(d->path);
    free(d->content);
}

#endif
