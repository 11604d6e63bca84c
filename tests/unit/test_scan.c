/* SPDX-License-Identifier: MIT */
/* Scans and prefetching through the public header. Every test runs over io_uring and over pread. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

#define PIECES 16u

/* Everything a scan gives from `first` to `last` is the file's, without a gap; how many pages. */
static uint64_t scan_all(bp_session *s, bp_file *file, const struct data_file *data, uint64_t first, uint64_t last,
                         unsigned flags, unsigned n)
{
    struct bp_piece piece[64];
    uint64_t end = last < data->pages ? last : data->pages - 1; /* backward: the last page that has not come */
    uint64_t next = first;
    uint64_t pages = 0;
    unsigned got;
    bp_scan *scan;

    cr_assert_eq(bp_scan_open(s, file, first, last, flags, &scan), 0, "%s", bp_session_error(s));
    for (;;) {
        uint64_t at;

        cr_assert_eq(bp_scan_next(scan, piece, n, &got), 0, "%s", bp_session_error(s));
        cr_assert_leq(got, n);
        if (!got)
            break;
        at = piece[0].page;
        cr_assert(flags || at == next, "page %lu comes after %lu", (unsigned long)at, (unsigned long)next);
        for (unsigned i = 0; i < got; i++) {
            cr_assert_eq(piece[i].page, at, "a gap in a batch");
            for (uint64_t k = 0; k < piece[i].bytes / 4096; k++, at++)
                cr_assert(data_page_ok(data, at, (const char *)piece[i].data + k * 4096), "page %lu",
                          (unsigned long)at);
        }
        pages += at - piece[0].page;
        next = at;
        if (flags) {
            cr_assert_eq(at - 1, end, "backward: a batch reaches to where the last one began");
            end = piece[0].page - 1;
        }
    }
    cr_assert_eq(bp_scan_next(scan, piece, n, &got), 0);
    cr_assert_eq(got, 0, "the end stays the end");
    cr_assert_eq(bp_scan_close(scan), 0);
    return pages;
}

Test(scan, whole_files_in_both_directions)
{
    static const uint32_t extents[] = {4096, 16384, 32768};
    static const uint64_t sizes[] = {1 << 20, 6 << 20};
    struct data_file data = data_file_make(1000 * 4096 + 77);

    EACH_BACK_END(io)
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 2; k++) {
            bp_pool *pool = open_pool(sizes[k], io, 0);
            bp_session *s = open_session(pool, "scan");
            bp_file *file = open_file(pool, data.path, extents[i]);

            for (unsigned round = 0; round < 2; round++) { /* the second one over what the first one left */
                cr_assert_eq(scan_all(s, file, &data, 0, UINT64_MAX, 0, PIECES), data.pages);
                cr_assert_eq(scan_all(s, file, &data, 0, UINT64_MAX, BP_SCAN_BACKWARD, PIECES), data.pages);
            }
            cr_assert_eq(scan_all(s, file, &data, 3, 700, 0, 1), 698);
            cr_assert_eq(scan_all(s, file, &data, 3, 700, BP_SCAN_BACKWARD, 1), 698);
            cr_assert_eq(scan_all(s, file, &data, 1000, 1000, 0, 5), 1);
            cr_assert_eq(scan_all(s, file, &data, 1000, 5000, BP_SCAN_BACKWARD, 64), 1);
            cr_assert_eq(scan_all(s, file, &data, 5000, 9000, 0, 5), 0, "behind the end there is nothing");
            cr_assert_eq(bp_session_close(s), 0);
            close_all(pool);
        }
    data_file_remove(&data);
}

Test(scan, what_is_wrong_is_said)
{
    struct data_file data = data_file_make(10 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "scan");
    bp_file *file = open_file(pool, data.path, 0);
    struct bp_piece piece[2];
    bp_scan *scan = NULL;
    unsigned got;

    cr_assert_eq(bp_scan_open(s, file, 5, 4, 0, &scan), -EINVAL);
    cr_assert_null(scan);
    cr_assert_eq(bp_scan_open(s, file, 0, 4, 1u << 7, &scan), -EINVAL);
    cr_assert_not_null(strstr(bp_session_error(s), "flags"));
    cr_assert_eq(bp_scan_close(NULL), 0);
    cr_assert_eq(bp_scan_open(s, file, 0, 9, 0, &scan), 0);
    cr_assert_eq(bp_scan_next(scan, piece, 0, &got), -EINVAL);
    cr_assert_eq(bp_scan_next(scan, piece, 2, &got), 0);
    cr_assert_eq(bp_session_close(s), -EBUSY, "its pages are out");
    cr_assert_lt(bp_file_close(file, NULL), 0, "so are the file's");
    cr_assert_eq(bp_scan_seek(scan, 7), 0);
    cr_assert_eq(bp_scan_next(scan, piece, 2, &got), 0);
    cr_assert(got && piece[0].page == 7, "on from there");
    cr_assert_eq(bp_scan_seek(scan, 2), 0);
    cr_assert_eq(bp_scan_next(scan, piece, 2, &got), 0);
    cr_assert_eq(got, 0, "what has come does not come again");
    cr_assert_eq(bp_scan_close(scan), 0);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* A batch that is out is in nobody's way for long, but it is: who wants to write waits, and what is evicted is others. */
Test(scan, a_batch_stays_as_it_is)
{
    struct data_file data = data_file_make(600 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 50);
    bp_session *s = open_session(pool, "scan");
    bp_session *other = open_session(pool, "writer");
    bp_file *file = open_file(pool, data.path, 0);
    struct bp_piece piece[64];
    struct bp_view view;
    struct bp_ref ref;
    bp_scan *scan;
    unsigned got;

    for (uint64_t page = 0; page < 64; page++)
        cr_assert_eq(bp_read(s, file, page, &view), 0);
    cr_assert_eq(bp_scan_open(s, file, 0, 599, 0, &scan), 0);
    cr_assert_eq(bp_scan_next(scan, piece, 64, &got), 0);
    cr_assert(got > 0);
    cr_assert_eq(bp_get(other, file, 5, BP_EXCLUSIVE, &ref), -EBUSY);
    for (uint64_t page = 64; page < 600; page++)
        cr_assert_eq(bp_read(other, file, page, &view), 0, "%s", bp_session_error(other));
    for (unsigned i = 0; i < got; i++)
        for (uint64_t k = 0; k < piece[i].bytes / 4096; k++)
            cr_assert(data_page_ok(&data, piece[i].page + k, (const char *)piece[i].data + k * 4096));
    cr_assert_eq(bp_scan_close(scan), 0);
    cr_assert_eq(bp_get(other, file, 5, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(other));
    bp_put(&ref);
    cr_assert_eq(bp_session_close(other), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* One bad page: all before it comes, then the error that names it, and behind it the scan can go on. */
Test(scan, a_page_that_cannot_be_read)
{
    struct data_file data = data_file_make(300 * 4096);

    for (unsigned backward = 0; backward < 2; backward++) {
        struct fault_plan plan = fault_plan_none(&bpi_io_psync);
        struct bp_error error = {0};
        struct bp_pool_options o = {.size = sizeof(o), .memory = 1 << 20, .error = &error};
        struct bp_piece piece[PIECES];
        bool seen[300] = {false};
        unsigned errors = 0;
        unsigned got;
        bp_pool *pool = NULL;
        bp_session *s;
        bp_file *file;
        bp_scan *scan;

        plan.bad_from = 150 * 4096;
        plan.bad_to = 151 * 4096;
        fault_io_plan(&plan);
        cr_assert_eq(bpi_pool_open(&o, &fault_io, &pool), 0, "%s", error.text);
        s = open_session(pool, "scan");
        file = open_file(pool, data.path, 0);
        cr_assert_eq(bp_scan_open(s, file, 0, 299, backward ? BP_SCAN_BACKWARD : 0, &scan), 0);
        for (;;) {
            int rc = bp_scan_next(scan, piece, PIECES, &got);

            if (rc) {
                cr_assert_eq(rc, -EIO);
                cr_assert_not_null(strstr(bp_session_error(s), "page 150 "), "%s", bp_session_error(s));
                for (uint64_t page = 0; page < 300; page++)
                    cr_assert_eq(seen[page], backward ? page > 150 : page < 150, "page %lu", (unsigned long)page);
                cr_assert_eq(bp_scan_next(scan, piece, PIECES, &got), -EIO, "it is tried again");
                errors++;
                cr_assert_eq(bp_scan_seek(scan, backward ? 149 : 151), 0);
                continue;
            }
            if (!got)
                break;
            for (unsigned i = 0; i < got; i++)
                for (uint64_t k = 0; k < piece[i].bytes / 4096; k++) {
                    cr_assert(data_page_ok(&data, piece[i].page + k, (const char *)piece[i].data + k * 4096));
                    seen[piece[i].page + k] = true;
                }
        }
        cr_assert_eq(errors, 1);
        for (uint64_t page = 0; page < 300; page++)
            cr_assert_eq(seen[page], page != 150, "page %lu", (unsigned long)page);
        cr_assert_eq(bp_scan_close(scan), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* Reading ahead reads each page once, and prefetched pages are hits. */
Test(scan, pages_are_read_once)
{
    struct data_file data = data_file_make(512 * 4096);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(8 << 20, io, 0);
        bp_session *s = open_session(pool, "scan");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_view view;

        cr_assert_eq(bp_prefetch(s, file, 0, 10), 0);
        cr_assert_eq(bp_prefetch(s, file, 5, 10), 0);
        cr_assert_eq(bp_file_resident(file), 15 * 4096, "what is under way is not asked for again");
        cr_assert_eq(bp_prefetch(s, file, 5000, 10), 0, "behind the end there is nothing");
        cr_assert_eq(bp_prefetch(s, file, UINT64_MAX, UINT64_MAX), 0);
        cr_assert_eq(bp_prefetch(s, file, 0, 0), 0);
        for (uint64_t page = 15; page-- > 0;) {
            cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, page, view.data));
        }
        cr_assert_eq(stat_of(pool, "misses"), 0);
        cr_assert_eq(scan_all(s, file, &data, 0, UINT64_MAX, 0, PIECES), 512);
        cr_assert_eq(stat_of(pool, "read_bytes"), 512 * 4096);
        cr_assert_eq(scan_all(s, file, &data, 0, UINT64_MAX, 0, PIECES), 512);
        cr_assert_eq(scan_all(s, file, &data, 0, UINT64_MAX, BP_SCAN_BACKWARD, PIECES), 512);
        cr_assert_eq(stat_of(pool, "read_bytes"), 512 * 4096);
        cr_assert_leq(stat_of(pool, "misses"), 2, "somebody had to begin");
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}
