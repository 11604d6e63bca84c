/* SPDX-License-Identifier: MIT */
/*
 * A device that fails, or is slow: preloaded into a server that reads with pread (--io psync). The file named by
 * SHIM_CONTROL says what is wrong right now, in one line:
 *
 *   eio FIRST LAST         reads that touch bytes FIRST to LAST of a file fail with EIO
 *   slow FIRST LAST MS     they take so many milliseconds
 *
 * Empty or absent: nothing is wrong.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long long interfere(size_t bytes, off_t offset)
{
    const char *path = getenv("SHIM_CONTROL");
    FILE *file = path ? fopen(path, "re") : NULL;
    long long first, last, ms = 0;
    char word[8] = "";
    int fields;

    if (!file)
        return 0;
    fields = fscanf(file, "%7s %lld %lld %lld", word, &first, &last, &ms);
    fclose(file);
    if (fields < 3 || offset > last || offset + (off_t)bytes <= first)
        return 0;
    return strcmp(word, "eio") ? ms : -1;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off_t); /* the same for all threads */
    ssize_t (*next)(int, void *, size_t, off_t) = __atomic_load_n(&real, __ATOMIC_RELAXED);
    long long what = interfere(bytes, offset);

    if (!next) {
        void *found = dlsym(RTLD_NEXT, "pread");

        memcpy(&next, &found, sizeof(next)); /* ISO C has no cast for this */
        __atomic_store_n(&real, next, __ATOMIC_RELAXED);
    }
    if (what < 0) {
        errno = EIO;
        return -1;
    }
    if (what > 0) {
        struct timespec nap = {.tv_sec = what / 1000, .tv_nsec = what % 1000 * 1000000};

        nanosleep(&nap, NULL);
    }
    return next(fd, to, bytes, offset);
}

ssize_t pread64(int fd, void *to, size_t bytes, off_t offset)
{
    return pread(fd, to, bytes, offset);
}
