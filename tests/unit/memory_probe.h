/* SPDX-License-Identifier: MIT */
/*
 * What the tests of numa/ need to see and to bend: resident memory, the kernel's view of a mapping, hugetlb pages for
 * the length of a test, and a madvise that can be told to fail.
 *
 * Included by one file of a program (it defines madvise for the whole program).
 */
#ifndef TESTS_UNIT_MEMORY_PROBE_H
#define TESTS_UNIT_MEMORY_PROBE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_POPULATE 23 /* MADV_POPULATE_WRITE */
#define PROBE_COLLAPSE 25 /* MADV_COLLAPSE */
#define PAGE           4096u
#define MIB            ((size_t)1 << 20)

/* ---- a madvise that fails ---- */

static struct {
    _Atomic int advice;  /* the one that is bent; 0: none */
    _Atomic int error;   /* what it answers */
    _Atomic int skip;    /* calls of it that go through first */
    _Atomic int count;   /* calls that fail after that */
    _Atomic int seen;    /* calls of it so far */
    _Atomic int entered; /* callers that are inside, held up or not */
    _Atomic bool hold;   /* calls of it wait until this is taken back */
} bent;

static inline void bend(int advice, int error, int skip, int count)
{
    bent.seen = 0;
    bent.error = error;
    bent.skip = skip;
    bent.count = count;
    bent.advice = advice;
}

int madvise(void *at, size_t bytes, int advice)
{
    if (advice == bent.advice) {
        int nth = atomic_fetch_add(&bent.seen, 1);
        atomic_fetch_add(&bent.entered, 1);
        while (bent.hold)
            usleep(1000);
        atomic_fetch_sub(&bent.entered, 1);
        if (nth >= bent.skip && nth < bent.skip + bent.count) {
            errno = bent.error;
            return -1;
        }
    }
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

/* ---- what is resident ---- */

static inline size_t rss_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%lu %lu", &total, &resident), 2);
    fclose(file);
    return resident * PAGE;
}

static inline size_t resident_bytes(const char *at, size_t bytes)
{
    size_t pages = bytes / PAGE, resident = 0;
    unsigned char *map = calloc(pages ? pages : 1, 1);

    cr_assert_eq(mincore((void *)(uintptr_t)at, bytes, map), 0, "mincore: %s", strerror(errno));
    for (size_t i = 0; i < pages; i++)
        resident += map[i] & 1u;
    free(map);
    return resident * PAGE;
}

/* Of the mapping that `at` lies in. */
struct mapping {
    unsigned long rss, huge, hugetlb; /* KiB */
    char flags[200];
};

static inline struct mapping mapping_of(const void *at)
{
    struct mapping found = {0};
    char line[512];
    unsigned long from, to, number;
    bool inside = false;
    FILE *file = fopen("/proc/self/smaps", "r");

    cr_assert_not_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)at >= from && (uintptr_t)at < to;
        if (!inside)
            continue;
        if (sscanf(line, "Rss: %lu", &number) == 1)
            found.rss = number;
        if (sscanf(line, "AnonHugePages: %lu", &number) == 1)
            found.huge = number;
        if (sscanf(line, "Private_Hugetlb: %lu", &number) == 1)
            found.hugetlb = number;
        if (strncmp(line, "VmFlags:", 8) == 0)
            snprintf(found.flags, sizeof(found.flags), "%.190s", line + 8);
    }
    fclose(file);
    return found;
}

static inline bool has_flag(const struct mapping *mapping, const char *flag)
{
    char word[8];

    snprintf(word, sizeof(word), " %s ", flag);
    return strstr(mapping->flags, word) != NULL;
}

/* Whether the memory is not there in a child made by fork. */
static inline bool gone_after_fork(const char *at)
{
    int status = 0;
    unsigned char one;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (!child)
        _exit(mincore((void *)(uintptr_t)at, PAGE, &one) == -1 && errno == ENOMEM ? 0 : 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline unsigned long number_in(const char *path, const char *before)
{
    char line[256];
    unsigned long number = 0;
    FILE *file = fopen(path, "r");

    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, before, strlen(before)) == 0 && sscanf(line + strlen(before), "%lu", &number) == 1)
            break;
    if (file)
        fclose(file);
    return number;
}

static inline bool thp_enabled(void)
{
    char text[64] = "[never]";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");

    if (file) {
        cr_assert_not_null(fgets(text, sizeof(text), file));
        fclose(file);
    }
    return !strstr(text, "[never]");
}

/* ---- hugetlb pages for the length of a test ---- */

#define HUGETLB_NR   "/proc/sys/vm/nr_hugepages"
#define HUGETLB_LOCK "/tmp/bufpool-test-hugetlb.lock"

static inline bool hugetlb_set(unsigned long pages)
{
    FILE *file = fopen(HUGETLB_NR, "w");
    bool ok = file && fprintf(file, "%lu\n", pages) > 0;

    if (file && fclose(file))
        ok = false;
    return ok;
}

/*
 * Ask for so many free hugetlb pages, or skip the test. A child keeps watch: when this process ends, however it ends,
 * it puts the old number back. The lock keeps tests that do this from meeting each other.
 */
static inline void hugetlb_want(unsigned pages)
{
    int alive[2];
    int lock = open(HUGETLB_LOCK, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (geteuid() != 0 || lock < 0 || flock(lock, LOCK_EX))
        cr_skip_test("needs root");
    if (number_in("/proc/meminfo", "HugePages_Free:"))
        cr_skip_test("there are hugetlb pages already: they would not run out where they should");
    unsigned long before = number_in(HUGETLB_NR, "");
    cr_assert_eq(pipe(alive), 0);
    pid_t guard = fork();
    cr_assert_geq(guard, 0);
    if (!guard) {
        char byte;
        for (int fd = 0; fd < 1024; fd++)
            if (fd != alive[0] && fd != lock)
                close(fd);
        ssize_t got = read(alive[0], &byte, 1); /* until the other end is gone */
        hugetlb_set(before);
        _exit(got == 0 ? 0 : 1);
    }
    close(alive[0]);
    close(lock);
    if (!hugetlb_set(before + pages) || number_in("/proc/meminfo", "HugePages_Free:") < pages)
        cr_skip_test("cannot get hugetlb pages here");
}

static inline unsigned long hugetlb_used(void)
{
    return number_in("/proc/self/status", "HugetlbPages:") / 2048;
}

#endif
