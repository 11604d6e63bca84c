/* SPDX-License-Identifier: MIT */
/*
 * bp_file_residency: every page that is in memory is counted once, in the cell that it is in, with its extent's order,
 * also where an extent lies in several cells; a call ends after a bounded number of extents and goes on from there.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "bufpool/bufpool.h"

#define PAGES (20000ull)

static bp_pool *pool;
static bp_session *session;

static bp_file *open_null(uint32_t extent_bytes)
{
    struct bp_file_options how = {
        .size = sizeof(how), .extent_bytes = extent_bytes, .null_bytes = PAGES * BP_PAGE_SIZE};
    bp_file *file;

    cr_assert_eq(bp_file_open(pool, "null", &how, &file), 0);
    return file;
}

static void setup(void)
{
    struct bp_pool_options options = {.size = sizeof(options), .memory = 256 << 20, .io = BP_IO_NULL};

    cr_assert_eq(bp_pool_open(&options, &pool), 0);
    cr_assert_eq(bp_session_open(pool, NULL, &session), 0);
}

static void teardown(void)
{
    cr_expect_eq(bp_session_close(session), 0);
    cr_expect_eq(bp_pool_close(pool, NULL), 0);
}

static void touch(bp_file *file, uint64_t page)
{
    struct bp_view view;

    cr_assert_eq(bp_read(session, file, page, &view), 0);
}

/* All of a map; how many calls it took. */
static unsigned map(bp_file *file, uint64_t first, uint64_t cell_pages, struct bp_residency cell[], unsigned n)
{
    uint64_t next = 0;
    unsigned calls = 0;

    memset(cell, 0, n * sizeof(*cell));
    do {
        uint64_t before = next;

        cr_assert_eq(bp_file_residency(file, first, cell_pages, cell, n, &next), 0);
        cr_assert_gt(next, before, "it goes on");
        calls++;
    } while (next < first + n * cell_pages);
    return calls;
}

TestSuite(residency, .init = setup, .fini = teardown);

Test(residency, pages_of_their_own)
{
    static struct bp_residency cell[200];
    bp_file *file = open_null(0);
    uint64_t wanted[200] = {0}, sum = 0;

    map(file, 0, 100, cell, 200);
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(cell[i].pages[0], 0, "an empty file");
    for (uint64_t page = 3; page < PAGES; page += page % 7 + 1) {
        touch(file, page);
        wanted[page / 100]++;
    }
    cr_assert_eq(map(file, 0, 100, cell, 200), 1);
    for (unsigned i = 0; i < 200; i++) {
        cr_assert_eq(cell[i].pages[0], wanted[i], "cell %u: %u, not %llu", i, cell[i].pages[0],
                     (unsigned long long)wanted[i]);
        sum += cell[i].pages[0];
    }
    cr_assert_eq(sum * BP_PAGE_SIZE, bp_file_resident(file));
    /* another stretch, cut elsewhere, and beyond the end of the file */
    map(file, 1050, 50, cell, 1);
    for (uint64_t page = 1050, n = 0; page <= 1100; page++) {
        struct bp_residency one = {{0}};
        uint64_t next = 0;

        if (page == 1100) {
            cr_assert_eq(n, cell[0].pages[0]);
            break;
        }
        cr_assert_eq(bp_file_residency(file, page, 1, &one, 1, &next), 0);
        cr_assert_eq(next, page + 1);
        n += one.pages[0];
    }
    map(file, PAGES + 5, 1000, cell, 2);
    cr_assert_eq(cell[0].pages[0] + cell[1].pages[0], 0);
    cr_assert_eq(bp_file_close(file, NULL), 0);
}

Test(residency, extents_across_cells)
{
    static struct bp_residency cell[PAGES / 10];
    bp_file *file = open_null(64 << 10); /* 16 pages, order 4; the last ones may be smaller */

    touch(file, 17);   /* 16 to 31: cells 1 (16 to 19), 2, 3 (30, 31) */
    touch(file, 8000); /* 8000 to 8015: cells 800, 801 */
    map(file, 0, 10, cell, PAGES / 10);
    for (unsigned i = 0; i < PAGES / 10; i++) {
        unsigned wanted = i == 1 ? 4 : i == 2 || i == 800 ? 10 : i == 3 ? 2 : i == 801 ? 6 : 0;

        for (unsigned order = 0; order <= BP_ORDER_MAX; order++)
            cr_assert_eq(cell[i].pages[order], order == 4 ? wanted : 0, "cell %u, order %u", i, order);
    }
    /* a stretch that begins and ends within an extent */
    map(file, 20, 3, cell, 2);
    cr_assert_eq(cell[0].pages[4], 3);
    cr_assert_eq(cell[1].pages[4], 3);
    cr_assert_eq(bp_file_close(file, NULL), 0);
}

Test(residency, bounded_calls)
{
    static struct bp_residency cell[7];
    bp_file *file = open_null(0);
    uint64_t sum = 0;

    for (uint64_t page = 0; page < PAGES; page++)
        touch(file, page);
    cr_assert_eq(map(file, 0, PAGES / 7 + 1, cell, 7), 2, "16,384 extents in a call");
    for (unsigned i = 0; i < 7; i++)
        sum += cell[i].pages[0];
    cr_assert_eq(sum, PAGES);
    cr_assert_eq(bp_file_close(file, NULL), 0);
}

Test(residency, arguments)
{
    bp_file *file = open_null(0);
    struct bp_residency cell[2] = {{{0}}};
    uint64_t next = 0;

    cr_assert_eq(bp_file_residency(file, 0, 1, cell, 0, &next), -EINVAL);
    cr_assert_eq(bp_file_residency(file, 0, 0, cell, 2, &next), -EINVAL);
    cr_assert_eq(bp_file_residency(file, 0, 1ull << 32, cell, 2, &next), -EINVAL);
    cr_assert_eq(bp_file_residency(file, BP_PAGE_MAX, 1, cell, 1, &next), -EINVAL);
    cr_assert_eq(bp_file_residency(file, BP_PAGE_MAX - 1, 1, cell, 2, &next), -EINVAL);
    cr_assert_eq(next, 0);
    cr_assert_eq(bp_file_residency(file, BP_PAGE_MAX - 2, 1, cell, 2, &next), 0);
    cr_assert_eq(next, BP_PAGE_MAX);
    cr_assert_eq(bp_file_close(file, NULL), 0);
}
