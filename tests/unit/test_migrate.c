/* SPDX-License-Identifier: MIT */
/* A range that is handed over from a session of one node to one of another (a topology that is made up). */
#include <errno.h>
#include <stdlib.h>

#include "tests/unit/made_up.h"
#include "tests/unit/pool_fixture.h"

#define MIB ((uint64_t)1 << 20)

static bp_session *open_at(bp_pool *pool, unsigned node)
{
    struct bp_session_options o = {.size = sizeof(o)};
    bp_session *s = NULL;

    o.home = node + 1;
    cr_assert_eq(bp_session_open(pool, &o, &s), 0);
    return s;
}

static void read_range(bp_session *s, bp_file *file, uint64_t first, uint64_t pages)
{
    for (uint64_t page = first; page < first + pages; page++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
        cr_assert(made_up_right(page, view.data), "page %lu", (unsigned long)page);
    }
}

/* Of a range: pages that are there, and of these on a node. */
static uint64_t on_node(bp_pool *pool, bp_file *file, uint64_t first, uint64_t pages, unsigned node, uint64_t *there)
{
    uint64_t count = 0;

    *there = 0;
    for (uint64_t page = first; page < first + pages; page++) {
        index_entry e = bpi_index_load(&file->index, page);

        *there += entry_is_frame(e);
        count += entry_is_frame(e) && bpi_frames_node(pool->frames, entry_number(e)) == node;
    }
    return count;
}

/* full: the pool has no memory left, and all of it is on the first node. */
static void hand_over(bool full, uint32_t extent)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = 32 * MIB, .io = BP_IO_NULL};
    struct bp_file_options fo = {.size = sizeof(fo), .null_bytes = 1ull << 40, .extent_bytes = extent};
    struct io_ops made_up = made_up_ops();
    struct bp_error error = {0};
    uint64_t there, here, before, moved;
    uint64_t range = 2048;
    bp_session *a, *b;
    bp_file *file;
    bp_pool *pool;

    o.error = &error;
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    cr_assert_eq(bpi_pool_open(&o, &made_up, &pool), 0, "%s", error.text);
    cr_assert_eq(pool->topology.node_count, 2);
    cr_assert_eq(bp_file_open(pool, "made up", &fo, &file), 0);
    a = open_at(pool, 0);
    b = open_at(pool, 1);
    read_range(a, file, 0, full ? pool->frames_total : range);
    for (unsigned i = 0; i < 3; i++)
        read_range(a, file, 0, range); /* hot */
    cr_assert_eq(on_node(pool, file, 0, range, 0, &before), before, "all of it is on the first node");
    cr_assert_eq(bp_migrate(b, file, 0, range, &moved), 0, "%s", bp_session_error(b));
    here = on_node(pool, file, 0, range, 1, &there);
    cr_assert_geq(here, there / 100 * 95, "%lu of %lu pages are here", (unsigned long)here, (unsigned long)there);
    cr_assert_geq(there, before / 100 * (full ? 85 : 100), "%lu of %lu pages are left", (unsigned long)there,
                  (unsigned long)before);
    cr_assert_geq(moved, there / 100 * 95);
    cr_assert_leq(stat_of(pool, "frames_populated"), stat_of(pool, "frames_total"));
    read_range(b, file, 0, range);
    cr_assert_eq(bp_migrate(b, file, 0, 1ull << 40, NULL) == 0 || full, true, "the rest as well, if there is room");
    read_range(a, file, 0, range);
    cr_assert(bp_session_close(a) == 0 && bp_session_close(b) == 0);
    close_all(pool);
}

Test(migrate, a_range_that_is_handed_over)
{
    hand_over(false, 0);
    hand_over(false, 32 << 10);
}

Test(migrate, in_a_pool_that_is_full)
{
    hand_over(true, 0);
}

/* Pinned pages stay, others go; twice does nothing. */
Test(migrate, not_what_is_in_use)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = 16 * MIB, .io = BP_IO_NULL};
    struct bp_file_options fo = {.size = sizeof(fo), .null_bytes = 1ull << 40};
    struct io_ops made_up = made_up_ops();
    uint64_t there, moved;
    struct bp_ref ref;
    bp_session *a, *b;
    bp_file *file;
    bp_pool *pool;

    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    cr_assert_eq(bpi_pool_open(&o, &made_up, &pool), 0);
    cr_assert_eq(bp_file_open(pool, "made up", &fo, &file), 0);
    a = open_at(pool, 0);
    b = open_at(pool, 1);
    read_range(a, file, 0, 100);
    cr_assert_eq(bp_get(a, file, 7, BP_SHARED, &ref), 0);
    cr_assert_eq(bp_migrate(b, file, 0, 100, &moved), 0);
    cr_assert_eq(moved, 99);
    cr_assert_eq(on_node(pool, file, 0, 100, 1, &there), 99);
    cr_assert(made_up_right(7, ref.data));
    bp_put(&ref);
    cr_assert_eq(bp_migrate(b, file, 0, 100, &moved), 0);
    cr_assert_eq(moved, 1);
    cr_assert_eq(bp_migrate(b, file, 0, 0, &moved), 0);
    cr_assert_eq(moved, 0);
    cr_assert(bp_session_close(a) == 0 && bp_session_close(b) == 0);
    close_all(pool);
}
