/* SPDX-License-Identifier: MIT */
/*
 * Memory, files and messages for the set-ups.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define HUGE_BYTES     ((size_t)2 << 20)
#define POPULATE_BYTES ((size_t)64 << 20) /* at once */
#define FIRST_NS       2000000000u        /* a set-up is silent for so long */
#define EVERY_NS       5000000000u
#define TMPFS          0x01021994 /* statfs: memory, not a disk */

int bench_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("bufpool-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return -1;
}

void bench_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("note: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

int bench_code(int code, const char *what)
{
    return bench_error("%s: %s", what, bp_strerror(code));
}

uint64_t bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bench_progress(struct bench_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now;

    if (bench_counting(p->bench))
        return;
    now = bench_now_ns();
    if (!p->said_ns)
        p->said_ns = now + FIRST_NS - EVERY_NS;
    if (now - p->said_ns < EVERY_NS)
        return;
    p->said_ns = now;
    fprintf(stderr, "set-up: %s, %u %%\n", p->what, (unsigned)(100.0 * (double)done / (double)total));
}

/* ---- memory ---- */

static size_t round_up(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

/* Kernels before 5.14 have no MADV_POPULATE_WRITE: then by hand. */
static int populate(char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += POPULATE_BYTES) {
        size_t part = bytes - done < POPULATE_BYTES ? bytes - done : POPULATE_BYTES;

        if (!madvise(at + done, part, MADV_POPULATE_WRITE))
            continue;
        if (errno != EINVAL)
            return -1;
        memset(at + done, 0, part);
    }
    return 0;
}

void *bench_alloc(size_t bytes, bool huge)
{
    size_t size = round_up(bytes);
    size_t map = size + HUGE_BYTES;
    char *at = mmap(NULL, map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (at == MAP_FAILED) {
        bench_error("no address space for %zu MiB: %s", size >> 20, strerror(errno));
        return NULL;
    }
    before = round_up((uintptr_t)at) - (uintptr_t)at;
    if (before)
        munmap(at, before);
    if (before < HUGE_BYTES)
        munmap(at + before + size, HUGE_BYTES - before);
    at += before;
    madvise(at, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (populate(at, size)) {
        bench_error("no memory for %zu MiB: %s", size >> 20, strerror(errno));
        munmap(at, size);
        return NULL;
    }
    return at;
}

void bench_free(void *at, size_t bytes)
{
    if (at)
        munmap(at, round_up(bytes));
}

static uint64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    size_t length = strlen(name);
    uint64_t kib = 0;
    char line[128];

    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, name, length) && line[length] == ':')
            kib = strtoull(line + length + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib << 10;
}

uint64_t bench_memory_machine(void)
{
    return meminfo("MemTotal");
}

int bench_memory_check(uint64_t bytes)
{
    uint64_t available = meminfo("MemAvailable");

    if (!available || bytes < available)
        return 0;
    return bench_error("this needs %.1f GiB of memory, and %.1f GiB are available: choose a smaller --bytes, or fewer "
                       "variants",
                       (double)bytes / (1u << 30), (double)available / (1u << 30));
}

/* ---- files ---- */

int bench_file_make(const struct bench *b, char *path)
{
    struct statfs fs;
    int fd;

    if (snprintf(path, 4096, "%s/bufpool-bench.XXXXXX", b->dir) >= 4096)
        return bench_error("--dir is too long");
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return bench_error("cannot make a file in %s: %s", b->dir, strerror(errno));
    if (!fstatfs(fd, &fs) && fs.f_type == TMPFS)
        bench_note("%s is memory (tmpfs), not a disk", b->dir);
    return fd;
}

/* ---- sequences and sums ---- */

void bench_cycle(uint32_t next[], uint64_t n)
{
    uint64_t random = 1;

    for (uint64_t i = 0; i < n; i++)
        next[i] = (uint32_t)i;
    for (uint64_t i = n; i-- > 1;) {
        uint64_t j = bench_random_page(&random, i);
        uint32_t t = next[i];

        next[i] = next[j];
        next[j] = t;
    }
}

typedef uint64_t words __attribute__((vector_size(16)));

__attribute__((noinline)) uint64_t bench_sum_words(const void *data, size_t bytes)
{
    const words *at = __builtin_assume_aligned(data, 64);
    words a = {0}, b = {0}, c = {0}, d = {0};

    for (size_t i = 0; i < bytes / sizeof(words); i += 4) {
        a += at[i];
        b += at[i + 1];
        c += at[i + 2];
        d += at[i + 3];
    }
    a += b + c + d;
    return a[0] + a[1];
}
