/* SPDX-License-Identifier: MIT */
/*
 * A pool in use gets smaller and larger: nothing is lost, nothing hot is evicted, memory goes back (the kernel says so),
 * what is pinned stops it and is tried again.
 */
#include <errno.h>
#include <pthread.h>

#include "tests/unit/made_up.h"
#include "tests/unit/pool_fixture.h"

#define MIB ((uint64_t)1 << 20)

static uint64_t rss_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    cr_assert(f && fscanf(f, "%lu %lu", &total, &resident) == 2);
    fclose(f);
    return (uint64_t)resident * 4096;
}

static struct io_ops made_up; /* of the pools below; set once */

static bp_pool *open_made_up(uint64_t memory, uint64_t max, uint32_t wait_ms)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .memory_max = max, .io = BP_IO_NULL};
    bp_pool *pool = NULL;

    o.wait_ms = wait_ms;
    o.error = &error;
    made_up = made_up_ops();
    cr_assert_eq(bpi_pool_open(&o, &made_up, &pool), 0, "%s", error.text);
    return pool;
}

static bp_file *open_null(bp_pool *pool, uint64_t bytes, uint32_t extent)
{
    struct bp_file_options o = {.size = sizeof(o), .extent_bytes = extent, .null_bytes = bytes};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, "made up", &o, &file), 0);
    return file;
}

static void read_all(bp_session *s, bp_file *file, uint64_t first, uint64_t pages)
{
    for (uint64_t page = first; page < first + pages; page++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
        cr_assert(made_up_right(page, view.data), "page %lu", (unsigned long)page);
    }
}

static void resize(bp_pool *pool, uint64_t bytes)
{
    uint64_t achieved = 0;
    int rc = bp_pool_resize(pool, bytes, &achieved);

    cr_assert_eq(rc, 0, "%s: %lu MiB of %lu", bp_strerror(rc), (unsigned long)(achieved / MIB),
                 (unsigned long)(bytes / MIB));
    cr_assert_eq(achieved, bytes);
    cr_assert_eq(stat_of(pool, "memory_limit"), bytes);
    cr_assert_leq(stat_of(pool, "frames_populated"), stat_of(pool, "frames_total"));
    cr_assert_leq(stat_of(pool, "frames_total") * 4096, bytes);
    cr_assert_geq(stat_of(pool, "frames_total") * 4096, bytes / 10 * 7);
}

Test(resize, sizes_that_cannot_be)
{
    bp_pool *pool = open_made_up(4 * MIB, 16 * MIB, 1000);
    const uint64_t bad[] = {0, 4096, BP_MEMORY_MIN - 1, 16 * MIB + 1, UINT64_MAX};
    struct bp_pool_options o = {.size = sizeof(o), .memory = 4 * MIB, .memory_max = 4 * MIB - 1};
    bp_pool *none;

    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        uint64_t achieved = 0;

        cr_assert_eq(bp_pool_resize(pool, bad[i], &achieved), -EINVAL);
        cr_assert_eq(achieved, 4 * MIB, "as it was");
    }
    cr_assert_eq(bp_pool_resize(pool, BP_MEMORY_MIN, NULL), 0);
    cr_assert_eq(bp_pool_resize(pool, 16 * MIB, NULL), 0);
    cr_assert_eq(bp_pool_open(&o, &none), -EINVAL);
    close_all(pool);
}

/* Grown: what was there stays, and there is room for more. Memory comes when it is needed. */
Test(resize, larger)
{
    bp_pool *pool = open_made_up(4 * MIB, 64 * MIB, 1000);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_null(pool, 1024 * MIB, 0);
    uint64_t small = stat_of(pool, "frames_total");
    uint64_t large, reads, rss;

    read_all(s, file, 0, 4 * small);
    cr_assert_leq(stat_of(pool, "frames_populated"), small);
    read_all(s, file, 0, small);
    rss = rss_bytes();
    resize(pool, 64 * MIB);
    cr_assert_lt(rss_bytes(), rss + 2 * MIB, "nothing is touched before it is needed");
    large = stat_of(pool, "frames_total");
    cr_assert_gt(large, 15 * small);
    read_all(s, file, 0, large);
    reads = stat_of(pool, "reads");
    read_all(s, file, 0, large);
    cr_assert_eq(stat_of(pool, "reads"), reads, "all of it fits");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

struct reader {
    bp_pool *pool;
    bp_file *file;
    uint64_t pages;
    uint64_t random;
    _Atomic bool *stop;
    uint64_t seen, wrong;
    int error;
    pthread_t thread;
};

/* Views, refs, and batches, of all pages, and more often of some. */
static void *read_on(void *arg)
{
    struct reader *r = arg;
    bp_session *s = open_session(r->pool, "reader");

    while (!atomic_load(r->stop) && !r->error) {
        struct bp_view view;
        struct bp_ref ref[4];
        uint64_t page;

        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        page = (r->random >> 33) % (r->random >> 20 & 3 ? r->pages / 16 : r->pages);
        if (r->random >> 25 & 7) {
            r->error = bp_read(s, r->file, page, &view);
            if (!r->error) {
                bool right = made_up_right(page, view.data);

                r->wrong += bp_view_valid(&view) && !right;
            }
        } else {
            uint64_t list[4] = {page, (page + 100) % r->pages, (page + 200) % r->pages, (page + 300) % r->pages};

            r->error = bp_get_many(s, r->file, list, 4, BP_SHARED, ref);
            for (unsigned i = 0; i < 4 && !r->error; i++)
                r->wrong += !made_up_right(list[i], ref[i].data);
            if (!r->error)
                bp_put_many(ref, 4);
        }
        r->seen++;
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

/* Two sessions at work; the memory goes back to the system, and comes again. */
static void under_load(uint32_t extent)
{
    bp_pool *pool = open_made_up(256 * MIB, 0, 10000);
    bp_file *file = open_null(pool, 1024 * MIB, extent);
    _Atomic bool stop = false;
    struct reader r[2];
    bp_session *s = open_session(pool, "s");
    uint64_t before, after;

    read_all(s, file, 0, stat_of(pool, "frames_total"));
    for (unsigned i = 0; i < 2; i++) {
        r[i] = (struct reader){.pool = pool, .file = file, .pages = 1024 * MIB / 4096, .random = i + 1, .stop = &stop};
        pthread_create(&r[i].thread, NULL, read_on, &r[i]);
    }
    before = rss_bytes();
    resize(pool, 64 * MIB);
    after = rss_bytes();
    cr_assert_lt(after, before);
    cr_assert_geq(before - after, 192 * MIB / 100 * 95, "RSS fell by %lu MiB only",
                  (unsigned long)((before - after) / MIB));
    resize(pool, 128 * MIB);
    resize(pool, 32 * MIB);
    resize(pool, 256 * MIB);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(r[i].thread, NULL);
        cr_assert_eq(r[i].error, 0, "%s", bp_strerror(r[i].error));
        cr_assert_eq(r[i].wrong, 0);
        cr_assert_gt(r[i].seen, 100);
    }
    read_all(s, file, 0, stat_of(pool, "frames_total"));
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

Test(resize, smaller_under_load, .timeout = 100)
{
    under_load(0);
}

Test(resize, smaller_under_load_with_large_extents, .timeout = 100)
{
    under_load(64 << 10);
}

/* What is used again and again survives a pool of half the size, wherever it lies. */
Test(resize, the_hot_stay)
{
    bp_pool *pool = open_made_up(64 * MIB, 0, 10000);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_null(pool, 64 * MIB, 0);
    uint64_t frames = stat_of(pool, "frames_total");
    uint64_t reads, populated;

    for (unsigned round = 0; round < 4; round++)
        for (uint64_t page = 0; page < frames; page += round ? 5 : 1)
            read_all(s, file, page, 1);
    resize(pool, 32 * MIB);
    populated = stat_of(pool, "frames_populated");
    reads = stat_of(pool, "reads");
    for (uint64_t page = 0; page < frames; page += 5)
        read_all(s, file, page, 1);
    cr_assert_leq(stat_of(pool, "reads") - reads, frames / 5 / 50, "%lu of %lu hot pages had to be read again",
                  (unsigned long)(stat_of(pool, "reads") - reads), (unsigned long)frames / 5);
    cr_assert_gt(stat_of(pool, "frames_moved"), 0);
    cr_assert_leq(stat_of(pool, "frames_moved"), frames - populated, "nothing moves twice");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* One pinned page in every slab: it stops there, says so, takes nothing from anybody, and goes on once they are put. */
Test(resize, what_is_pinned_stops_it)
{
    bp_pool *pool = open_made_up(32 * MIB, 0, 400);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_null(pool, 64 * MIB, 0);
    uint64_t frames = stat_of(pool, "frames_total");
    struct bp_ref ref[64];
    struct frames_stats fs;
    uint64_t achieved;
    unsigned n = 0;

    read_all(s, file, 0, frames);
    for (uint64_t page = 0; page < frames && n < 64; page += 256)
        cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref[n++]), 0);
    cr_assert_eq(bp_pool_resize(pool, 4 * MIB, &achieved), -EBUSY);
    cr_assert_gt(achieved, 4 * MIB);
    cr_assert_leq(achieved, 32 * MIB);
    cr_assert_eq(stat_of(pool, "memory_limit"), achieved);
    for (unsigned i = 0; i < n; i++)
        cr_assert(made_up_right(i * 256, ref[i].data));
    bpi_frames_stats(pool->frames, &fs);
    cr_assert_eq(fs.slabs_draining, 0);
    cr_assert_eq(fs.frames_populated, fs.frames_limit, "what drained for nothing is in use again");
    read_all(s, file, 8000, fs.frames_limit);
    cr_assert_leq(stat_of(pool, "frames_free"), 64);
    bp_put_many(ref + 1, n - 1);
    resize(pool, 4 * MIB);
    cr_assert(made_up_right(0, ref[0].data), "one of them is no obstacle");
    bp_put(&ref[0]);
    resize(pool, 32 * MIB);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* Frames set aside and frames in idle sessions' stocks are no obstacle, or one that is named. */
Test(resize, stocks_are_taken_back)
{
    bp_pool *pool = open_made_up(32 * MIB, 0, 1000);
    bp_file *file = open_null(pool, 64 * MIB, 0);
    bp_session *s[8];

    for (unsigned i = 0; i < 8; i++) {
        s[i] = open_session(pool, "idle");
        read_all(s[i], file, i * 1500, 1500);
    }
    resize(pool, 4 * MIB);
    for (unsigned i = 0; i < 8; i++) {
        read_all(s[i], file, i * 1500, 1500);
        cr_assert_eq(bp_session_close(s[i]), 0);
    }
    close_all(pool);
}

struct resizer {
    bp_pool *pool;
    uint64_t bytes;
    int wrong;
    pthread_t thread;
};

static void *resize_on(void *arg)
{
    struct resizer *r = arg;

    for (unsigned i = 0; i < 6; i++) {
        uint64_t achieved = 0;

        r->wrong |= bp_pool_resize(r->pool, i % 2 ? 32 * MIB : r->bytes, &achieved) != 0;
    }
    return NULL;
}

Test(resize, by_several_at_once, .timeout = 60)
{
    bp_pool *pool = open_made_up(32 * MIB, 0, 20000);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_null(pool, 64 * MIB, 0);
    struct resizer r[3];

    for (unsigned i = 0; i < 3; i++) {
        r[i] = (struct resizer){.pool = pool, .bytes = (3 + 5 * i) * MIB};
        pthread_create(&r[i].thread, NULL, resize_on, &r[i]);
    }
    for (unsigned round = 0; round < 3; round++)
        read_all(s, file, 0, 10000);
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(r[i].thread, NULL);
        cr_assert_eq(r[i].wrong, 0);
    }
    resize(pool, 5 * MIB);
    read_all(s, file, 0, 3000);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

/* Registered memory: every ring lets go of it before it is given back, and what is read afterwards is right. */
Test(resize, registered_slabs, .timeout = 60)
{
    struct data_file data = data_file_make(10 * MIB);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(8 * MIB, io, 10000);
        bp_file *file = open_file(pool, data.path, 0);
        bp_session *s[2] = {open_session(pool, "a"), open_session(pool, "b")};

        for (unsigned round = 0; round < 3; round++) {
            for (uint64_t page = 0; page < data.pages; page++) {
                struct bp_view view;

                cr_assert_eq(bp_read(s[page / 7 % 2], file, page, &view), 0);
                cr_assert(data_page_ok(&data, page, view.data), "page %lu", (unsigned long)page);
            }
            if (round == 0) {
                uint64_t slabs = stat_of(pool, "slabs_registered");

                resize(pool, 3 * MIB);
                cr_assert(!slabs || stat_of(pool, "slabs_registered") < slabs);
            } else if (round == 1) {
                resize(pool, 8 * MIB);
            }
        }
        cr_assert(bp_session_close(s[0]) == 0 && bp_session_close(s[1]) == 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

/* Pages with changes move along, and are written as they are. */
Test(resize, dirty_pages_are_not_lost, .timeout = 60)
{
    struct data_file data = data_file_make(12 * MIB);
    struct bp_pool_options po = {.size = sizeof(po), .memory = 16 * MIB, .dirty_target = 80, .dirty_trigger = 90};
    struct bp_file_options fo = {.size = sizeof(fo), .write = true};
    bp_session *s;
    bp_file *file;
    bp_pool *pool;

    cr_assert_eq(bp_pool_open(&po, &pool), 0);
    cr_assert_eq(bp_file_open(pool, data.path, &fo, &file), 0);
    s = open_session(pool, "s");
    for (uint64_t page = 0; page < data.pages; page++) {
        struct bp_ref ref;

        cr_assert_eq(bp_get(s, file, page, page % 3 ? BP_SHARED : BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
        if (page % 3 == 0) {
            memset(ref.data, (int)page, 4096);
            memset(data.content + page * 4096, (int)page, 4096);
            bp_put_dirty(&ref, 0);
        } else {
            bp_put(&ref);
        }
    }
    cr_assert_gt(stat_of(pool, "dirty_pages"), 500);
    resize(pool, 8 * MIB);
    cr_assert_gt(stat_of(pool, "frames_moved"), 0);
    cr_assert_gt(stat_of(pool, "dirty_pages"), 0);
    resize(pool, 3 * MIB); /* less than what is dirty takes: the writer has to help */
    for (uint64_t page = 0; page < data.pages; page++) {
        struct bp_view view;

        bool right;

        do { /* the writer may just have taken its frame for another page */
            cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
            right = data_page_ok(&data, page, view.data);
        } while (!bp_view_valid(&view));
        cr_assert(right, "page %lu in memory", (unsigned long)page);
    }
    cr_assert_eq(bp_sync(s, file), 0, "%s", bp_session_error(s));
    cr_assert_eq(stat_of(pool, "dirty_pages"), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    pool = open_pool(16 * MIB, BP_IO_TRY, 10000);
    file = open_file(pool, data.path, 0);
    s = open_session(pool, "s");
    for (uint64_t page = 0; page < data.pages; page++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, page, &view), 0);
        cr_assert(data_page_ok(&data, page, view.data), "page %lu on disk", (unsigned long)page);
    }
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}
