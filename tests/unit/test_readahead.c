/* SPDX-License-Identifier: MIT */
/* Streams: who is taken for one, what is read for it, and what it costs others. Through the public header. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

#define PAGES 2560u /* 10 MiB */

static bp_file *open_streamed(bp_pool *pool, const char *path, bool write)
{
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .error = &error, .write = write};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, path, &o, &file), 0, "%s", error.text);
    return file;
}

/* One page by a ref; the bytes that its extent has from there on. */
static uint32_t get_page(bp_session *s, bp_file *file, const struct data_file *data, uint64_t page)
{
    struct bp_ref ref;
    uint32_t bytes;

    cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(data, page, ref.data), "page %lu", (unsigned long)page);
    bytes = ref.bytes;
    bp_put(&ref);
    return bytes;
}

static void look_at_page(bp_session *s, bp_file *file, const struct data_file *data, uint64_t page)
{
    struct bp_view view;
    unsigned tries = 0;
    bool right;

    do {
        cr_assert_lt(tries++, 100);
        cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
        right = data_page_ok(data, page, view.data);
    } while (!bp_view_valid(&view));
    cr_assert(right, "page %lu", (unsigned long)page);
}

/* Page after page, by refs, views and copies: one stream, each byte read once, in extents that grow. */
Test(readahead, a_stream)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096 - 100);
    char *copy = malloc(data.bytes);

    EACH_BACK_END(io)
    for (unsigned how = 0; how < 3; how++) {
        bp_pool *pool = open_pool(40 << 20, io, 0);
        bp_session *s = open_session(pool, "stream");
        bp_file *file = open_streamed(pool, data.path, false);
        uint32_t largest = 0;

        for (uint64_t at = 0; at < data.bytes && how == 2; at += 16384) {
            size_t done;

            cr_assert_eq(bp_copy_out(s, file, at, 16384, copy + at, &done), 0);
            cr_assert(done == 16384 || at + done == data.bytes);
        }
        cr_assert(how < 2 || !memcmp(copy, data.content, data.bytes));
        for (uint64_t page = 0; page < PAGES; page++) {
            if (how == 1) {
                look_at_page(s, file, &data, page);
                continue;
            }
            uint32_t bytes = get_page(s, file, &data, page);

            largest = bytes > largest ? bytes : largest;
        }
        cr_assert_leq(stat_of(pool, "misses"), 10, "%lu misses", (unsigned long)stat_of(pool, "misses"));
        cr_assert_leq(stat_of(pool, "reads"), 120, "%lu reads", (unsigned long)stat_of(pool, "reads"));
        cr_assert_eq(stat_of(pool, "read_bytes"), data.bytes);
        cr_assert(how == 1 || largest >= 1 << 19, "the largest extent has %u", largest);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    free(copy);
    data_file_remove(&data);
}

/* Several at once in one file, by one session and by several, in a pool that does not hold them all. */
Test(readahead, streams_that_alternate)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096);
    const unsigned streams = 5;

    for (unsigned several = 0; several < 2; several++) {
        bp_pool *pool = open_pool(8 << 20, BP_IO_TRY, 0);
        bp_session *s[5];
        bp_file *file = open_streamed(pool, data.path, false);

        for (unsigned i = 0; i < streams; i++)
            s[i] = i && !several ? s[0] : open_session(pool, "stream");
        for (uint64_t page = 0; page < PAGES / streams; page++)
            for (unsigned i = 0; i < streams; i++)
                look_at_page(s[i], file, &data, i * (PAGES / streams) + page);
        cr_assert_leq(stat_of(pool, "misses"), 120, "%lu misses", (unsigned long)stat_of(pool, "misses"));
        /* each but the last goes on into what was another one's, by less than two windows of a sixteenth of the pool */
        cr_assert_leq(stat_of(pool, "read_bytes"), data.bytes + (streams - 1) * (8ull << 20) / 8, "%lu bytes",
                      (unsigned long)stat_of(pool, "read_bytes"));
        for (unsigned i = 0; i < (several ? streams : 1); i++)
            cr_assert_eq(bp_session_close(s[i]), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* Reads at random, also of two and three pages, read what they ask for and nothing else. */
Test(readahead, no_stream)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096);
    bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "random");
    bp_file *file = open_streamed(pool, data.path, false);
    uint64_t random = 3;
    unsigned larger = 0;

    for (unsigned i = 0; i < 3000; i++) {
        uint64_t page;

        random = random * 6364136223846793005u + 1442695040888963407u;
        page = (random >> 33) % (PAGES - 3);
        for (unsigned k = 0; k < 1 + i % 3; k++)
            larger += get_page(s, file, &data, page + k) > 4096;
    }
    /* by chance some come to lie behind each other, in a file of two and a half times the pool */
    cr_assert_leq(stat_of(pool, "reads_ahead"), 3000 / 20, "%lu", (unsigned long)stat_of(pool, "reads_ahead"));
    cr_assert_leq(larger, 3000 / 20, "%u", larger);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* Who writes latches neighbours apart, so a file for writing is streamed in pages; and a reservation is left alone. */
Test(readahead, what_is_latched_stays_small)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096);
    bp_pool *pool = open_pool(16 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "stream");
    bp_file *file = open_streamed(pool, data.path, true);

    for (uint64_t page = 0; page < 1000; page++)
        cr_assert_eq(get_page(s, file, &data, page), 4096);
    cr_assert_leq(stat_of(pool, "misses"), 30);
    cr_assert_gt(stat_of(pool, "reads_ahead"), 900);
    cr_assert_leq(stat_of(pool, "reads"), 200, "neighbours are read with one request");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* The second of two scans finds what the first one has read. */
Test(readahead, two_scans_of_one_file)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096);

    EACH_BACK_END(io)
    for (unsigned backward = 0; backward < 2; backward++) {
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s[2] = {open_session(pool, "first"), open_session(pool, "second")};
        bp_file *file = open_streamed(pool, data.path, false);
        uint64_t pages[2] = {0, 0};
        bp_scan *scan[2];

        for (unsigned i = 0; i < 2; i++)
            cr_assert_eq(bp_scan_open(s[i], file, 0, UINT64_MAX, backward ? BP_SCAN_BACKWARD : 0, &scan[i]), 0);
        while (pages[0] < PAGES || pages[1] < PAGES) {
            unsigned i = pages[1] < pages[0]; /* the one that is behind */
            struct bp_piece piece[4];
            unsigned got;

            cr_assert_eq(bp_scan_next(scan[i], piece, 4, &got), 0, "%s", bp_session_error(s[i]));
            cr_assert_gt(got, 0);
            for (unsigned k = 0; k < got; k++)
                for (uint64_t at = 0; at < piece[k].bytes / 4096; at++, pages[i]++)
                    cr_assert(data_page_ok(&data, piece[k].page + at, (const char *)piece[k].data + at * 4096));
        }
        for (unsigned i = 0; i < 2; i++) {
            cr_assert_eq(bp_scan_close(scan[i]), 0);
            cr_assert_eq(bp_session_close(s[i]), 0);
        }
        cr_assert_leq(stat_of(pool, "read_bytes"), data.bytes + data.bytes / 20, "%lu bytes for %lu",
                      (unsigned long)stat_of(pool, "read_bytes"), (unsigned long)data.bytes);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* What stands in the way is stepped over; what the ring refuses comes out again; what is bad hurts nobody else. */
Test(readahead, what_gets_in_the_way)
{
    struct data_file data = data_file_make((uint64_t)PAGES * 4096);

    for (unsigned what = 0; what < 4; what++) {
        struct fault_plan plan = fault_plan_none(what % 2 ? &bpi_io_psync : &bpi_io_uring);
        struct bp_error error = {0};
        struct bp_pool_options o = {.size = sizeof(o), .memory = what == 3 ? 1 << 20 : 40 << 20, .error = &error};
        bp_pool *pool = NULL;
        bp_session *s;
        bp_file *file;

        if (what == 1) {
            plan.submit_busy_chance = FAULT_ALWAYS / 2;
            plan.submit_error = -EAGAIN;
        } else if (what >= 2) {
            plan.bad_from = 1500 * 4096 + 5;
            plan.bad_to = plan.bad_from + 1;
        }
        fault_io_plan(&plan);
        cr_assert_eq(bpi_pool_open(&o, &fault_io, &pool), 0, "%s", error.text);
        s = open_session(pool, "stream");
        file = open_streamed(pool, data.path, false);
        for (uint64_t page = 7; page < PAGES && !what; page += 100)
            get_page(s, file, &data, page);
        for (uint64_t page = 0; page < PAGES; page++) {
            struct bp_view view;

            if (what >= 2 && page == 1500)
                cr_assert_eq(bp_read(s, file, page, &view), -EIO, "%s", bp_session_error(s));
            else
                look_at_page(s, file, &data, page);
        }
        if (what == 0)
            cr_assert_eq(stat_of(pool, "read_bytes"), data.bytes);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}
