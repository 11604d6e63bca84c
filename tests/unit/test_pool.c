/* SPDX-License-Identifier: MIT */
/* The pool through its public header: what a user relies on. Every test runs over io_uring and over pread. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/pool_fixture.h"

/* ---- the whole file, in every way, through pools much smaller than it ---- */

static void read_every_way(bp_session *s, bp_file *file, const struct data_file *data, uint64_t page)
{
    struct bp_hint hint = {0};
    struct bp_view view;
    struct bp_ref ref;
    int rc;

    rc = bp_read(s, file, page, &view);
    cr_assert_eq(rc, 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(data, page, view.data));
    cr_assert(bp_view_valid(&view));
    cr_assert_eq(bp_read_hinted(s, file, page, &hint, &view), 0);
    cr_assert_neq(hint.word, 0);
    cr_assert_eq(bp_read_hinted(s, file, page, &hint, &view), 0);
    cr_assert(data_page_ok(data, page, view.data));
    rc = bp_get(s, file, page, BP_SHARED, &ref);
    cr_assert_eq(rc, 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(data, page, ref.data));
    cr_assert_geq(ref.bytes, BP_PAGE_SIZE);
    cr_assert_eq(ref.page, page);
    for (uint64_t k = 1; k < ref.bytes / BP_PAGE_SIZE && page + k < data->pages; k++)
        cr_assert(data_page_ok(data, page + k, (const char *)ref.data + k * BP_PAGE_SIZE));
    bp_put(&ref);
    cr_assert(bp_view_valid(&view), "a shared ref does not disturb views");
    rc = bp_get_hinted(s, file, page, BP_EXCLUSIVE, &hint, &ref);
    cr_assert_eq(rc, 0, "%s", bp_session_error(s));
    cr_assert(!bp_view_valid(&view), "an exclusive latch does");
    bp_put(&ref);
    cr_assert(!bp_view_valid(&view));
}

Test(pool, reads_a_file_larger_than_itself)
{
    static const uint64_t sizes[] = {1 << 20, 3 << 20, 5 << 20};
    static const uint32_t extents[] = {4096, 16384, 32768};
    struct data_file data = data_file_make(3000 * 4096 + 1234);

    EACH_BACK_END(io)
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 3; k++) {
            bp_pool *pool = open_pool(sizes[i], io, 0);
            bp_session *s = open_session(pool, "reader");
            bp_file *file = open_file(pool, data.path, extents[k]);

            for (uint64_t page = 0; page < data.pages; page++)
                read_every_way(s, file, &data, page);
            for (uint64_t n = 0; n < 2000; n++)
                read_every_way(s, file, &data, n * 7919 % data.pages);
            cr_expect_gt(stat_of(pool, "evictions"), 0);
            cr_expect_gt(stat_of(pool, "refaults"), 0);
            cr_expect_leq(stat_of(pool, "memory_frames"), sizes[i]);
            cr_assert_eq(bp_session_close(s), 0);
            close_all(pool);
        }
    data_file_remove(&data);
}

Test(pool, many_pages_at_once)
{
    struct data_file data = data_file_make(2000 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s = open_session(pool, "many");
        bp_file *file = open_file(pool, data.path, 0);
        uint64_t page[128];
        struct bp_ref ref[128];
        struct bp_view view[128];

        for (unsigned round = 0; round < 60; round++) {
            for (unsigned i = 0; i < 128; i++)
                page[i] = (round * 977u + i * 13u) % data.pages;
            cr_assert_eq(bp_get_many(s, file, page, 128, BP_SHARED, ref), 0, "%s", bp_session_error(s));
            for (unsigned i = 0; i < 128; i++)
                cr_assert(data_page_ok(&data, page[i], ref[i].data));
            bp_put_many(ref, 128);
            cr_assert_eq(bp_read_many(s, file, page, 128, view), 0, "%s", bp_session_error(s));
            for (unsigned i = 0; i < 128; i++)
                cr_assert(!bp_view_valid(&view[i]) || data_page_ok(&data, page[i], view[i].data));
        }
        page[100] = data.pages; /* one past the end: nothing is taken */
        cr_assert_eq(bp_get_many(s, file, page, 128, BP_SHARED, ref), BP_EOF);
        cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(pool, copies_any_range)
{
    struct data_file data = data_file_make(700 * 4096 + 77);
    static const uint32_t extents[] = {4096, 65536};
    char *to = malloc(data.bytes + 100);

    EACH_BACK_END(io)
    for (unsigned k = 0; k < 2; k++) {
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s = open_session(pool, "copier");
        bp_file *file = open_file(pool, data.path, extents[k]);
        size_t done;

        for (unsigned n = 0; n < 300; n++) {
            uint64_t offset = (n * 1000003ull) % (data.bytes + 5000);
            size_t len = (n * 7907ull) % 300000;
            size_t want = offset >= data.bytes ? 0 : len < data.bytes - offset ? len : data.bytes - offset;

            cr_assert_eq(bp_copy_out(s, file, offset, len, to, &done), 0, "%s", bp_session_error(s));
            cr_assert_eq(done, want);
            cr_assert_eq(memcmp(to, data.content + offset, done), 0);
        }
        cr_assert_eq(bp_copy_out(s, file, 0, SIZE_MAX, to, &done), 0);
        cr_assert_eq(done, data.bytes);
        cr_assert_eq(memcmp(to, data.content, done), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    free(to);
    data_file_remove(&data);
}

/* ---- operations for event loops ---- */

Test(pool, starts_and_polls)
{
    struct data_file data = data_file_make(3000 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s = open_session(pool, "loop");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_event event[16];
        struct bp_ref ref;
        uint64_t started = 0, answered = 0, hits = 0;
        int fd = bp_session_fd(s);

        cr_assert_geq(fd, 0);
        while (answered < 6000) {
            while (started < 6000 && started - answered < 100) {
                uint64_t page = started * 7919 % data.pages;
                int rc = bp_get_start(s, file, page, started % 10 ? BP_SHARED : BP_EXCLUSIVE, started % 3 ? BP_MORE : 0,
                                      (void *)(uintptr_t)page, &ref);

                started++;
                if (rc == 0) {
                    cr_assert(data_page_ok(&data, page, ref.data));
                    bp_put(&ref);
                    answered++;
                    hits++;
                } else {
                    cr_assert_eq(rc, BP_PENDING, "%s", bp_session_error(s));
                }
            }
            int n = bp_poll(s, event, 16, 0);

            if (n == 0 && answered < started) {
                struct pollfd p = {.fd = fd, .events = POLLIN};

                cr_assert_neq(poll(&p, 1, 20000), 0, "the descriptor never became readable");
            }
            for (int i = 0; i < n; i++) {
                cr_assert_eq(event[i].result, 0, "%s over %s: %s", bp_strerror(event[i].result),
                             io == BP_IO_URING ? "uring" : "psync", bp_session_error(s));
                cr_assert_eq(event[i].ref.page, (uint64_t)(uintptr_t)event[i].cookie);
                cr_assert(data_page_ok(&data, event[i].ref.page, event[i].ref.data));
                bp_put(&event[i].ref);
                answered++;
            }
        }
        cr_expect_gt(stat_of(pool, "misses"), 1000);
        cr_assert_eq(bp_get_start(s, file, data.pages + 1, BP_SHARED, 0, NULL, &ref), BP_EOF);
        cr_assert_eq(bp_poll(s, event, 16, 1), 0);
        for (unsigned polls = 0, quiet = 0; quiet < 3; polls++) { /* with nothing to do it ends up unreadable */
            struct pollfd p = {.fd = fd, .events = POLLIN};

            cr_assert_lt(polls, 20, "the descriptor stays readable and nothing comes of it");
            quiet += poll(&p, 1, 300) == 0;
            cr_assert_eq(bp_poll(s, event, 16, 0), 0);
        }
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

struct sleeper {
    bp_pool *pool;
    bp_file *file;
    pthread_barrier_t started, over;
};

/* Starts reads and then makes no call until everybody else is done. */
static void *start_and_sleep(void *arg)
{
    struct sleeper *sleeper = arg;
    bp_session *s = open_session(sleeper->pool, "sleeper");
    struct bp_ref ref;

    for (uint64_t page = 0; page < 50; page++)
        cr_assert_eq(bp_get_start(s, sleeper->file, page, BP_SHARED, page < 49 ? BP_MORE : 0, NULL, &ref), BP_PENDING);
    /* and some that were never even submitted: MORE was announced and did not come */
    for (uint64_t page = 50; page < 60; page++)
        cr_assert_eq(bp_get_start(s, sleeper->file, page, BP_SHARED, BP_MORE, NULL, &ref), BP_PENDING);
    pthread_barrier_wait(&sleeper->started);
    pthread_barrier_wait(&sleeper->over);
    for (unsigned left = 60; left;) { /* and what it started is still its own */
        struct bp_event event[16];
        int n = bp_poll(s, event, 16, 20000);

        cr_assert_gt(n, 0);
        for (int i = 0; i < n; i++, left--) {
            cr_assert_eq(event[i].result, 0);
            bp_put(&event[i].ref);
        }
    }
    cr_assert_eq(bp_session_close(s), 0);
    return NULL;
}

Test(pool, nobody_depends_on_a_thread_that_sleeps_for_ever)
{
    struct data_file data = data_file_make(100 * 4096);

    EACH_BACK_END(io)
    {
        struct sleeper sleeper = {.pool = open_pool(2 << 20, io, 20000)};
        bp_session *s = open_session(sleeper.pool, "awake");
        struct bp_event event[16];
        struct bp_ref ref;
        pthread_t thread;
        unsigned pending = 0;

        sleeper.file = open_file(sleeper.pool, data.path, 0);
        pthread_barrier_init(&sleeper.started, NULL, 2);
        pthread_barrier_init(&sleeper.over, NULL, 2);
        pthread_create(&thread, NULL, start_and_sleep, &sleeper);
        pthread_barrier_wait(&sleeper.started);
        for (uint64_t page = 0; page < 60; page += 2) {
            cr_assert_eq(bp_get(s, sleeper.file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, page, ref.data));
            bp_put(&ref);
        }
        for (uint64_t page = 1; page < 60; page += 2) {
            int rc = bp_get_start(s, sleeper.file, page, BP_SHARED, 0, NULL, &ref);

            cr_assert(rc == 0 || rc == BP_PENDING);
            pending += rc == BP_PENDING;
            if (rc == 0)
                bp_put(&ref);
        }
        while (pending) {
            int n = bp_poll(s, event, 16, 20000);

            cr_assert_gt(n, 0, "the reads of the sleeper were not completed over %s; %u are left",
                         io == BP_IO_URING ? "uring" : "psync", pending);
            for (int i = 0; i < n; i++) {
                cr_assert_eq(event[i].result, 0, "%s over %s: %s", bp_strerror(event[i].result),
                             io == BP_IO_URING ? "uring" : "psync", bp_session_error(s));
                cr_assert(data_page_ok(&data, event[i].ref.page, event[i].ref.data));
                bp_put(&event[i].ref);
                pending--;
            }
        }
        pthread_barrier_wait(&sleeper.over);
        pthread_join(thread, NULL);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(sleeper.pool);
    }
    data_file_remove(&data);
}

/* What is remembered of pages that have gone is bounded, whatever passes through; the pages there are need their nodes.
 */
Test(pool, a_stream_of_a_hundred_times_the_pool_leaves_a_small_index)
{
    enum { MEMORY = 4 << 20, FRAMES = MEMORY / 4096, PAGES = 100 * FRAMES };
    char path[] = "bp-test-XXXXXX";
    int fd = mkstemp(path);
    bp_pool *pool = open_pool(MEMORY, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "stream");
    uint64_t most = 0;
    bp_file *file;

    cr_assert(fd >= 0 && ftruncate(fd, (off_t)PAGES * 4096) == 0); /* a hole: reading costs little */
    file = open_file(pool, path, 0);
    for (uint64_t page = 0; page < PAGES; page += 32) {
        uint64_t pages[32];
        struct bp_view view[32];
        uint64_t nodes;

        for (unsigned i = 0; i < 32; i++)
            pages[i] = page + i;
        cr_assert_eq(bp_read_many(s, file, pages, 32, view), 0, "page %lu: %s", (unsigned long)page,
                     bp_session_error(s));
        nodes = stat_of(pool, "index_nodes");
        most = nodes > most ? nodes : most;
    }
    cr_expect_geq(stat_of(pool, "evictions"), PAGES - FRAMES, "it did not fit");
    /* shadows: one node for 4 frames and 64; pages: one for 64 and those at the edges; magazines of the session */
    cr_expect_leq(most, FRAMES / 4 + 64 + FRAMES / 64 + 64, "%lu nodes", (unsigned long)most);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    close(fd);
    unlink(path);
}
