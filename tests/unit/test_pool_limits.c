/* SPDX-License-Identifier: MIT */
/* Bad input, full pools, and what must not hang: clear answers at the deadline. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/pool_fixture.h"

/* ---- options ---- */

Test(limits, memory_that_cannot_be)
{
    struct {
        uint64_t memory;
        int code;
        const char *words;
    } cases[] = {
        {0, -EINVAL, "memory is 0 bytes; the least is 1048576"},
        {1, -EINVAL, "memory is 1 bytes"},
        {BP_MEMORY_MIN - 1, -EINVAL, "memory is 1048575 bytes"},
        {1ull << 50, -ENOMEM, "but this machine"},
        {UINT64_MAX, -ENOMEM, "but this machine"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bp_error error = {0};
        struct bp_pool_options o = {.size = sizeof(o), .memory = cases[i].memory, .error = &error};
        bp_pool *pool = NULL;

        cr_assert_eq(bp_pool_open(&o, &pool), cases[i].code);
        cr_assert_eq(error.code, cases[i].code);
        cr_assert_not_null(strstr(error.text, cases[i].words), "'%s' does not say '%s'", error.text, cases[i].words);
        cr_assert_null(pool);
    }
}

Test(limits, options_that_are_wrong)
{
    struct bp_error error = {0};
    struct bp_pool_options good = {.size = sizeof(good), .memory = 1 << 20, .error = &error};
    struct bp_pool_options o;
    bp_pool *pool;

    o = good, o.size = 8;
    cr_assert_eq(bp_pool_open(&o, &pool), -EINVAL);
    o = good, o.huge = (enum bp_choice)7;
    cr_assert_eq(bp_pool_open(&o, &pool), -EINVAL);
    o = good, o.wait_ms = UINT32_MAX;
    cr_assert_eq(bp_pool_open(&o, &pool), -EINVAL);
    cr_assert_not_null(strstr(error.text, "hour"));
    o = good, o.channels_max = 100000;
    cr_assert_eq(bp_pool_open(&o, &pool), -EINVAL);
}

Test(limits, files_that_have_no_pages)
{
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "reader");
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .error = &error};
    char dir[] = "bp-dir-XXXXXX";
    char fifo[64];
    struct bp_ref ref;
    bp_file *file = NULL;
    struct data_file empty = data_file_make(0);
    uint64_t bytes = 1;

    cr_assert_eq(bp_file_open(pool, "/no/such/file", &o, &file), -ENOENT);
    cr_assert_not_null(strstr(error.text, "/no/such/file"), "%s", error.text);
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(bp_file_open(pool, dir, &o, &file), -EISDIR);
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_assert_eq(bp_file_open(pool, fifo, &o, &file), -EINVAL, "a FIFO neither opens nor hangs");
    unlink(fifo);
    rmdir(dir);
    cr_assert_eq(bp_file_open(pool, empty.path, &o, &file), 0, "an empty file is a file with no pages: %s", error.text);
    cr_assert_eq(bp_file_size(file, &bytes), 0);
    cr_assert_eq(bytes, 0);
    cr_assert_eq(bp_get(s, file, 0, BP_SHARED, &ref), BP_EOF);
    cr_assert_eq(bp_get(s, file, UINT64_MAX, BP_SHARED, &ref), BP_EOF);
    cr_assert_eq(bp_get(s, file, BP_PAGE_MAX, BP_SHARED, &ref), BP_EOF);
    cr_assert_eq(bp_get(s, file, 0, (enum bp_mode)9, &ref), -EINVAL);
    o.extent_bytes = 5000;
    cr_assert_eq(bp_file_open(pool, empty.path, &o, &file), -EINVAL);
    o.extent_bytes = 2 << 20;
    cr_assert_eq(bp_file_open(pool, empty.path, &o, &file), -EINVAL, "larger than the pool can hold");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&empty);
}

Test(limits, no_permission)
{
    struct data_file data = data_file_make(4096);
    int status = -1;
    pid_t child;

    if (geteuid() != 0)
        cr_skip_test("needs root to become somebody else");
    cr_assert_eq(chmod(data.path, 0600), 0);
    child = fork();
    if (child == 0) {
        struct bp_error error = {0};
        struct bp_pool_options po = {.size = sizeof(po), .memory = 1 << 20, .error = &error};
        struct bp_file_options fo = {.size = sizeof(fo), .error = &error};
        bp_pool *pool;
        bp_file *file;

        if (setgid(65534) || setuid(65534) || bp_pool_open(&po, &pool))
            _exit(2);
        _exit(bp_file_open(pool, data.path, &fo, &file) == -EACCES && strstr(error.text, data.path) ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    data_file_remove(&data);
}

/* ---- the end of a file ---- */

Test(limits, the_last_page_is_partial)
{
    struct data_file data = data_file_make(9 * 4096 + 100);
    static const uint32_t extents[] = {4096, 16384, 65536};

    EACH_BACK_END(io)
    for (unsigned k = 0; k < 3; k++) {
        bp_pool *pool = open_pool(4 << 20, io, 0);
        bp_session *s = open_session(pool, "reader");
        bp_file *file = open_file(pool, data.path, extents[k]);
        struct bp_ref ref;

        cr_assert_eq(bp_get(s, file, 9, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&data, 9, ref.data), "zero beyond its end");
        bp_put(&ref);
        cr_assert_eq(bp_page_file_bytes(file, 8), 4096);
        cr_assert_eq(bp_page_file_bytes(file, 9), 100);
        cr_assert_eq(bp_page_file_bytes(file, 10), 0);
        cr_assert_eq(bp_get(s, file, 10, BP_SHARED, &ref), BP_EOF);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(limits, a_file_that_grows_and_shrinks)
{
    struct data_file data = data_file_make(40 * 4096 + 100);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 0);
        bp_session *s = open_session(pool, "reader");
        bp_file *file;
        struct bp_ref ref;
        uint64_t bytes;
        int fd = open(data.path, O_WRONLY);

        cr_assert_eq(ftruncate(fd, 10 * 4096 + 100), 0);
        file = open_file(pool, data.path, 0);
        cr_assert_eq(bp_get(s, file, 10, BP_SHARED, &ref), 0);
        cr_assert_eq(((char *)ref.data)[100], 0);
        bp_put(&ref);
        cr_assert_eq(pwrite(fd, data.content, data.bytes, 0), (ssize_t)data.bytes);
        cr_assert_eq(bp_get(s, file, 40, BP_SHARED, &ref), 0, "a page past the old end is noticed");
        cr_assert(data_page_ok(&data, 40, ref.data));
        bp_put(&ref);
        cr_assert_eq(bp_get(s, file, 10, BP_SHARED, &ref), 0);
        cr_assert(data_page_ok(&data, 10, ref.data), "the old last page is read again");
        bp_put(&ref);
        cr_assert_eq(ftruncate(fd, 5 * 4096), 0);
        cr_assert_eq(bp_get(s, file, 20, BP_SHARED, &ref), BP_EOF, "a read finds nothing there any more");
        cr_assert_eq(bp_file_size(file, &bytes), 0);
        cr_assert_eq(bytes, 5 * 4096);
        cr_assert_eq(bp_get(s, file, 4, BP_SHARED, &ref), 0);
        bp_put(&ref);
        close(fd);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- everything pinned ---- */

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Test(limits, all_pinned_is_busy_and_says_who)
{
    struct data_file data = data_file_make(1000 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 300);
        bp_session *hog = open_session(pool, "the hog");
        bp_session *s = open_session(pool, "hungry");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_ref *ref = calloc(1000, sizeof(*ref));
        struct bp_ref other;
        struct bp_event event;
        unsigned held = 0;
        double began;
        clock_t cpu;

        while (bp_get(hog, file, held, BP_SHARED, &ref[held]) == 0)
            held++;
        cr_assert_geq(held, 220, "only %u could be pinned", held);
        began = seconds();
        cpu = clock();
        cr_assert_eq(bp_get(s, file, 999, BP_SHARED, &other), -EBUSY);
        cr_assert_geq(seconds() - began, 0.29);
        cr_assert_lt(seconds() - began, 30);
        cr_assert_lt((double)(clock() - cpu) / CLOCKS_PER_SEC, 0.15, "it parks, it does not spin");
        cr_assert_not_null(strstr(bp_session_error(s), "'the hog'"), "%s", bp_session_error(s));
        cr_assert_eq(bp_get_start(s, file, 999, BP_SHARED, 0, NULL, &other), BP_PENDING);
        cr_assert_eq(bp_poll(s, &event, 1, 20000), 1);
        cr_assert_eq(event.result, -EBUSY);
        bp_put(&ref[--held]); /* one is enough */
        cr_assert_eq(bp_get(s, file, 999, BP_SHARED, &other), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&data, 999, other.data));
        bp_put(&other);
        cr_assert_eq(bp_session_close(hog), -EBUSY, "it holds refs");
        cr_assert_eq(bp_file_close(file, NULL), -EBUSY);
        cr_assert_eq(bp_pool_close(pool, NULL), -EBUSY);
        bp_put_many(ref, held);
        cr_assert_eq(bp_session_close(hog), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        free(ref);
    }
    data_file_remove(&data);
}

Test(limits, a_latch_is_waited_for_until_the_deadline)
{
    struct data_file data = data_file_make(10 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 200);
    bp_session *a = open_session(pool, "the writer");
    bp_session *b = open_session(pool, "b");
    bp_file *file = open_file(pool, data.path, 0);
    struct bp_event event;
    struct bp_view view;
    struct bp_ref ref, other;

    cr_assert_eq(bp_get(a, file, 3, BP_EXCLUSIVE, &ref), 0);
    cr_assert_eq(bp_get(b, file, 3, BP_SHARED, &other), -EBUSY);
    cr_assert_not_null(strstr(bp_session_error(b), "'the writer'"), "%s", bp_session_error(b));
    cr_assert_not_null(strstr(bp_session_error(b), "page 3 "), "%s", bp_session_error(b));
    cr_assert_eq(bp_read(b, file, 3, &view), -EBUSY);
    cr_assert_eq(bp_get_start(b, file, 3, BP_SHARED, 0, &event, &other), BP_PENDING);
    bp_put(&ref);
    cr_assert_eq(bp_poll(b, &event, 1, 10000), 1);
    cr_assert_eq(event.result, 0);
    cr_assert_eq(bp_get(a, file, 3, BP_EXCLUSIVE, &ref), -EBUSY, "b holds it shared");
    cr_assert_not_null(strstr(bp_session_error(a), "shared by 1"), "%s", bp_session_error(a));
    bp_put(&event.ref);
    cr_assert_eq(bp_get(a, file, 3, BP_EXCLUSIVE, &ref), 0);
    bp_put(&ref);
    cr_assert_eq(bp_session_close(a), 0);
    cr_assert_eq(bp_session_close(b), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* Every thread wants two pages at once, and there is one frame too few for all: someone is told, nobody hangs. */
struct pair_taker {
    bp_pool *pool;
    bp_file *file;
    uint64_t base;
    _Atomic uint64_t *done, *busy;
};

static void *take_pairs(void *arg)
{
    struct pair_taker *t = arg;
    bp_session *s = open_session(t->pool, "pairs");

    for (unsigned i = 0; i < 60; i++) {
        uint64_t page[2] = {t->base + i * 64, t->base + i * 64 + 1};
        struct bp_ref ref[2];
        int rc = bp_get_many(s, t->file, page, 2, BP_SHARED, ref);

        if (rc == 0)
            bp_put_many(ref, 2);
        atomic_fetch_add(rc == 0 ? t->done : t->busy, 1);
        if (rc != 0 && rc != -EBUSY)
            abort();
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

Test(limits, too_few_frames_for_all_at_once)
{
    struct data_file data = data_file_make(40000ull * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 100);
    bp_session *hog = open_session(pool, "hog");
    bp_file *file = open_file(pool, data.path, 0);
    struct bp_ref ref[1000];
    _Atomic uint64_t done = 0, busy = 0;
    struct pair_taker taker[8];
    pthread_t thread[8];
    unsigned held = 0;

    while (bp_get(hog, file, 39000 + held, BP_SHARED, &ref[held]) == 0)
        held++;
    for (unsigned i = 0; i < 15; i++) /* two for each of eight threads, less one */
        bp_put(&ref[--held]);
    for (unsigned i = 0; i < 8; i++) {
        taker[i] = (struct pair_taker){pool, file, i * 4000, &done, &busy};
        pthread_create(&thread[i], NULL, take_pairs, &taker[i]);
    }
    for (unsigned i = 0; i < 8; i++)
        pthread_join(thread[i], NULL);
    cr_assert_eq(done + busy, 8 * 60);
    cr_assert_gt(done, 8 * 20, "most get through: %lu", (unsigned long)done);
    bp_put_many(ref, held);
    cr_assert_eq(bp_session_close(hog), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- idle sessions do not keep what others need ---- */

Test(limits, a_hundred_idle_sessions_in_the_smallest_pool)
{
    struct data_file data = data_file_make(2000 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 2000);
    bp_file *file = open_file(pool, data.path, 0);
    bp_session *s[100];
    struct bp_ref ref[200];

    for (unsigned i = 0; i < 100; i++) {
        s[i] = open_session(pool, NULL);
        cr_assert_eq(bp_get(s[i], file, i, BP_SHARED, &ref[0]), 0, "%s", bp_session_error(s[i]));
        bp_put(&ref[0]);
    }
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(bp_get(s[0], file, 500 + i, BP_SHARED, &ref[i]), 0, "%u: %s", i, bp_session_error(s[0]));
    bp_put_many(ref, 200);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(bp_session_close(s[i]), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- more asked at once than there is room for ---- */

Test(limits, operations_are_bounded)
{
    struct data_file data = data_file_make(3000 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(16 << 20, io, 0);
        struct bp_session_options so = {.size = sizeof(so), .async_max = 700};
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_event event[64];
        struct bp_ref ref;
        bp_session *s;
        unsigned pending = 0;
        int rc = 0;

        cr_assert_eq(bp_session_open(pool, &so, &s), 0);
        for (uint64_t page = 0; page < 3000 && rc != BP_LIMIT; page++) {
            rc = bp_get_start(s, file, page, BP_SHARED, BP_MORE, NULL, &ref);
            if (rc == 0)
                bp_put(&ref);
            else if (rc == BP_PENDING)
                pending++;
            else
                cr_assert_eq(rc, BP_LIMIT);
        }
        cr_assert_eq(pending, 700, "more than the channel can have under way, all accepted");
        while (pending) {
            int n = bp_poll(s, event, 64, 20000);

            cr_assert_gt(n, 0);
            for (int i = 0; i < n; i++) {
                cr_assert_eq(event[i].result, 0, "%s", bp_strerror(event[i].result));
                cr_assert(data_page_ok(&data, event[i].ref.page, event[i].ref.data));
                bp_put(&event[i].ref);
                pending--;
            }
        }
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(limits, a_session_closes_with_operations_under_way)
{
    struct data_file data = data_file_make(3000 * 4096);

    EACH_BACK_END(io)
    for (unsigned round = 0; round < 20; round++) {
        bp_pool *pool = open_pool(4 << 20, io, 0);
        bp_session *a = open_session(pool, "a");
        bp_session *b = open_session(pool, "b");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_event event[64];
        struct bp_ref ref;
        unsigned pending = 0;

        for (uint64_t page = 0; page < 60; page++) {
            cr_assert_eq(bp_get_start(a, file, page, BP_SHARED, round % 2 ? BP_MORE : 0, NULL, &ref), BP_PENDING);
            pending += bp_get_start(b, file, page, BP_SHARED, 0, NULL, &ref) == BP_PENDING;
        }
        cr_assert_eq(bp_session_close(a), 0);
        while (pending) {
            int n = bp_poll(b, event, 64, 20000);

            cr_assert_gt(n, 0, "%u are left", pending);
            for (int i = 0; i < n; i++) {
                cr_assert_eq(event[i].result, 0);
                cr_assert(data_page_ok(&data, event[i].ref.page, event[i].ref.data));
                bp_put(&event[i].ref);
                pending--;
            }
        }
        cr_assert_eq(bp_session_close(b), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- hits that are inlined ---- */

struct taker {
    bp_session *s;
    bp_file *file;
    _Atomic bool waits;
    int result;
    double seconds;
};

static void *take_exclusively(void *arg)
{
    struct taker *t = arg;
    struct timespec from, to;
    struct bp_ref ref;

    clock_gettime(CLOCK_MONOTONIC, &from);
    atomic_store(&t->waits, true);
    t->result = bp_get(t->s, t->file, 0, BP_EXCLUSIVE, &ref);
    clock_gettime(CLOCK_MONOTONIC, &to);
    t->seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    if (!t->result)
        bp_put(&ref);
    return NULL;
}

/* Puts of hot pages are inlined and tell nobody: who waits finds out all the same. */
Test(limits, a_put_of_a_hot_page_ends_the_wait_for_its_latch)
{
    struct data_file data = data_file_make(4 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 60000);
    bp_session *before = open_session(pool, "before"), *other = open_session(pool, "other");
    bp_file *file = open_file(pool, data.path, 0);
    struct taker t = {.s = other, .file = file};

    for (unsigned round = 0; round < 6; round++) {
        bp_session *s = round % 2 ? open_session(pool, "another") : before;
        struct timespec ms50 = {.tv_nsec = 50000000};
        struct bp_ref ref;
        pthread_t thread;

        for (unsigned i = 0; i < 8; i++) { /* hot */
            cr_assert_eq(bp_get(s, file, 0, BP_SHARED, &ref), 0);
            bp_put(&ref);
        }
        cr_assert_eq(bp_get(s, file, 0, BP_SHARED, &ref), 0);
        t.waits = false;
        cr_assert_eq(pthread_create(&thread, NULL, take_exclusively, &t), 0);
        while (!t.waits)
            sched_yield();
        nanosleep(&ms50, NULL); /* most likely it waits by now; if not, there is nothing to be told */
        bp_put(&ref);
        pthread_join(thread, NULL);
        cr_assert_eq(t.result, 0);
        cr_assert_lt(t.seconds, 20);
        cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
        if (s != before)
            cr_assert_eq(bp_session_close(s), 0);
    }
    cr_assert_eq(bp_session_close(before), 0);
    cr_assert_eq(bp_session_close(other), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* The same for who waits for a frame: everything is pinned, by hits, until one of them goes. */
Test(limits, a_put_of_a_hot_page_ends_the_wait_for_a_frame)
{
    struct data_file data = data_file_make(1024 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 60000);
    bp_session *s = open_session(pool, NULL), *other = open_session(pool, "other");
    bp_file *file = open_file(pool, data.path, 0);
    struct taker t = {.s = other, .file = file};
    uint32_t frames = (uint32_t)stat_of(pool, "frames_total");
    struct bp_ref *ref = calloc(frames, sizeof(*ref));
    struct timespec ms50 = {.tv_nsec = 50000000};
    uint32_t held = frames - 1; /* one for a page to be missed, which is then pinned too */
    pthread_t thread;

    cr_assert(ref);
    cr_assert_lt(frames, 1000);
    for (unsigned round = 0; round < 8; round++) /* hot */
        for (uint32_t i = 0; i < held; i++) {
            cr_assert_eq(bp_get(s, file, i + 1, BP_SHARED, &ref[i]), 0);
            if (round < 7)
                bp_put(&ref[i]);
        }
    cr_assert_eq(bp_get(s, file, frames, BP_SHARED, &ref[held]), 0);
    cr_assert_eq(pthread_create(&thread, NULL, take_exclusively, &t), 0); /* page 0 */
    while (!t.waits)
        sched_yield();
    nanosleep(&ms50, NULL); /* most likely it waits by now; if not, there is nothing to wait for */
    for (uint32_t i = 0; i < frames; i++)
        bp_put(&ref[i]);
    pthread_join(thread, NULL);
    cr_assert_eq(t.result, 0);
    cr_assert_lt(t.seconds, 20);
    free(ref);
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(bp_session_close(other), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* Views and refs of hits are counted, each once, and a session knows the refs it holds, however they came about. */
Test(limits, hits_and_refs_are_counted)
{
    struct data_file data = data_file_make(4 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, NULL), *none = NULL;
    bp_file *file = open_file(pool, data.path, 0);
    struct bp_hint hint = {0};
    struct bp_view view;
    struct bp_ref ref[12];

    for (unsigned i = 0; i < 12; i++) {
        uint64_t hits = stat_of(pool, "hits");

        cr_assert_eq(
            i % 3 ? bp_get(s, file, 1, BP_SHARED, &ref[i]) : bp_get_hinted(s, file, 1, BP_SHARED, &hint, &ref[i]), 0);
        cr_assert_eq(stat_of(pool, "hits"), hits + (i ? 1 : 0));
        cr_assert_eq(stat_of(pool, "frames_pinned"), i + 1);
        cr_assert_eq(bp_read(s, file, 1, &view), 0);
        cr_assert_eq(bp_read_hinted(s, file, 1, &hint, &view), 0);
        cr_assert_eq(stat_of(pool, "hits"), hits + (i ? 3 : 2));
        cr_assert_eq(bp_session_close(s), -EBUSY);
    }
    bp_put_many(ref, 11);
    cr_assert_eq(stat_of(pool, "frames_pinned"), 1);
    bp_put(&ref[11]);
    cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(stat_of(pool, "hits"), 35, "of a session that is closed, too");
    cr_assert_eq(bp_session_open_layout(pool, NULL, BP_LAYOUT + 1, &none), BP_MISMATCH);
    cr_assert_null(none);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- fork ---- */

Test(limits, a_forked_child_is_told)
{
    struct data_file data = data_file_make(10 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 0);
        bp_session *s = open_session(pool, "parent");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_stats st = {.size = sizeof(st)};
        struct bp_event event;
        struct bp_view view;
        struct bp_hint hint = {1};
        struct bp_ref ref, ref2;
        int status = -1;
        size_t done;
        pid_t child;

        cr_assert_eq(bp_get(s, file, 1, BP_SHARED, &ref), 0);
        child = fork();
        if (child == 0) {
            bool told = bp_read(s, file, 1, &view) == BP_FORKED && bp_get(s, file, 1, BP_SHARED, &ref2) == BP_FORKED &&
                        bp_read_hinted(s, file, 1, &hint, &view) == BP_FORKED &&
                        bp_poll(s, &event, 1, 0) == BP_FORKED && bp_session_fd(s) == BP_FORKED &&
                        bp_get_start(s, file, 2, BP_SHARED, 0, NULL, &ref2) == BP_FORKED &&
                        bp_copy_out(s, file, 0, 1, &view, &done) == BP_FORKED && bp_session_close(s) == BP_FORKED &&
                        bp_pool_stats(pool, &st) == BP_FORKED && bp_file_close(file, NULL) == BP_FORKED &&
                        bp_pool_close(pool, NULL) == BP_FORKED && bp_pool_check(pool, NULL) == BP_FORKED &&
                        !strcmp(bp_session_error(s), bp_strerror(BP_FORKED));

            bp_put(&ref); /* harmless */
            _exit(told ? 0 : 1);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
        bp_put(&ref);
        cr_assert_eq(bp_get(s, file, 5, BP_SHARED, &ref), 0, "the parent goes on");
        cr_assert(data_page_ok(&data, 5, ref.data));
        bp_put(&ref);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* ---- many files, many openings ---- */

Test(limits, files_share_and_come_and_go)
{
    struct data_file data = data_file_make(50 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    struct bp_file_options o = {.size = sizeof(o), .direct = BP_OFF};
    bp_file *a = open_file(pool, data.path, 0), *b, *c;
    struct bp_hint hint = {0};
    struct bp_view view;
    struct bp_ref ref;
    char path[64];

    b = open_file(pool, data.path, 0);
    cr_assert_eq(a, b, "the same file is the same handle");
    cr_assert_eq(bp_file_open(pool, data.path, &o, &c), -EEXIST);
    cr_assert_eq(bp_file_close(b, NULL), 0);
    cr_assert_eq(bp_get(s, a, 7, BP_SHARED, &ref), 0, "one handle is left");
    bp_put(&ref);
    cr_assert_eq(bp_read_hinted(s, a, 7, &hint, &view), 0);
    cr_assert_eq(bp_file_close(a, NULL), 0);
    for (unsigned i = 0; i < 300; i++) { /* slots and identities are used again; old hints never lead astray */
        struct data_file other = data_file_make(10 * 4096);
        struct bp_hint old = hint;

        memcpy(path, other.path, sizeof(path));
        other.content[7 * 4096] = (char)i;
        int fd = open(path, O_WRONLY);
        cr_assert_eq(pwrite(fd, &other.content[7 * 4096], 1, 7 * 4096), 1);
        close(fd);
        c = open_file(pool, path, 0);
        cr_assert_eq(bp_read_hinted(s, c, 7, &old, &view), 0);
        cr_assert(data_page_ok(&other, 7, view.data));
        cr_assert_eq(bp_file_close(c, NULL), 0);
        data_file_remove(&other);
    }
    hint.word = UINT64_MAX;
    a = open_file(pool, data.path, 0);
    cr_assert_eq(bp_read_hinted(s, a, 3, &hint, &view), 0, "garbage is only a bad hint");
    cr_assert(data_page_ok(&data, 3, view.data));
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

Test(limits, errors_have_words)
{
    cr_assert_str_eq(bp_strerror(BP_EOF), "the page lies past the end of the file");
    cr_assert_str_eq(bp_strerror(-EIO), "Input/output error");
    cr_assert_str_eq(bp_strerror(-123456), "unknown error");
    cr_assert_str_eq(bp_strerror(0), "Success");
    cr_assert_eq(bp_version(), BP_VERSION_MAJOR << 16 | BP_VERSION_MINOR << 8 | BP_VERSION_PATCH);
}
