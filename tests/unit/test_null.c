/* SPDX-License-Identifier: MIT */
/* Pools without a device, and pools of a given number of frames: what replays of traces stand on. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

struct null_pool {
    bp_pool *pool;
    bp_file *file;
    bp_session *me;
};

static struct null_pool null_open(uint32_t frames, uint64_t pages, uint32_t extent_bytes)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {
        .size = sizeof(o), .memory = BP_MEMORY_MIN, .io = BP_IO_NULL, .frames_max = frames, .error = &error};
    struct bp_file_options fo = {
        .size = sizeof(fo), .null_bytes = pages * BP_PAGE_SIZE, .extent_bytes = extent_bytes, .error = &error};
    struct null_pool p;

    cr_assert_eq(bp_pool_open(&o, &p.pool), 0, "%s", error.text);
    cr_assert_eq(bp_file_open(p.pool, "anything", &fo, &p.file), 0, "%s", error.text);
    cr_assert_eq(bp_session_open(p.pool, NULL, &p.me), 0);
    return p;
}

static void null_close(struct null_pool *p)
{
    struct bp_error error = {0};

    cr_assert_eq(bp_pool_check(p->pool, &error), 0, "%s", error.text);
    cr_assert_eq(bp_session_close(p->me), 0);
    cr_assert_eq(bp_file_close(p->file, &error), 0, "%s", error.text);
    cr_assert_eq(bp_pool_close(p->pool, &error), 0, "%s", error.text);
}

static struct bp_stats stats_of(const struct null_pool *p)
{
    struct bp_stats st = {.size = sizeof(st)};

    cr_assert_eq(bp_pool_stats(p->pool, &st), 0);
    return st;
}

/* A pool of n frames holds n pages: reading those again is hits only, and one page more evicts. */
Test(null, frames_are_limited)
{
    static const uint32_t frames[] = {1, 2, 3, 10, 33, 200};

    for (unsigned k = 0; k < sizeof(frames) / sizeof(*frames); k++) {
        uint32_t n = frames[k];
        struct null_pool p = null_open(n, 1u << 20, 0);
        struct bp_view view;
        struct bp_stats st;

        for (unsigned round = 0; round < 3; round++)
            for (uint32_t page = 0; page < n; page++)
                cr_assert_eq(bp_read(p.me, p.file, page * 1000ull, &view), 0, "%s", bp_session_error(p.me));
        st = stats_of(&p);
        cr_assert_eq(st.frames_total, n);
        cr_assert_eq(st.misses, n, "%u frames: %llu misses", n, (unsigned long long)st.misses);
        cr_assert_eq(st.hits, 2ull * n);
        cr_assert_eq(st.evictions, 0);
        for (uint32_t page = 0; page < 4 * n; page++)
            cr_assert_eq(bp_read(p.me, p.file, 500000 + page, &view), 0, "%s", bp_session_error(p.me));
        st = stats_of(&p);
        cr_assert_eq(st.misses, 5ull * n);
        cr_assert_geq(st.evictions, 4ull * n);
        cr_assert_eq(st.evictions - 4ull * n, st.frames_free, "what is not needed yet is free");
        cr_assert_eq(st.frames_populated, n);
        cr_assert_eq(st.reads, 5ull * n);
        null_close(&p);
    }
}

/* Every frame pinned: the next caller is told, and is served when one is free again. */
Test(null, all_frames_pinned)
{
    struct null_pool p = null_open(4, 100, 0);
    struct bp_ref ref[4];
    struct bp_ref one;

    p.pool->wait_ns = 20 * NS_PER_MS;
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(bp_get(p.me, p.file, i, BP_SHARED, &ref[i]), 0);
    cr_assert_eq(bp_get(p.me, p.file, 50, BP_SHARED, &one), -EBUSY);
    bp_put(&ref[2]);
    cr_assert_eq(bp_get(p.me, p.file, 50, BP_SHARED, &one), 0, "%s", bp_session_error(p.me));
    bp_put(&one);
    bp_put(&ref[0]);
    bp_put(&ref[1]);
    bp_put(&ref[3]);
    null_close(&p);
}

/* bp_get_start, bp_get_many and extents work on it as on a device; the largest page number, too. */
Test(null, every_way_in)
{
    struct null_pool p = null_open(0, BP_PAGE_MAX, 16384);
    struct bp_event event[8];
    struct bp_ref ref[8];
    uint64_t page[8];
    uint64_t bytes;
    unsigned done = 0;
    char to[10000];
    size_t got;

    cr_assert_eq(bp_file_size(p.file, &bytes), 0);
    cr_assert_eq(bytes, BP_PAGE_MAX * BP_PAGE_SIZE);
    for (unsigned i = 0; i < 8; i++)
        page[i] = BP_PAGE_MAX - 1 - i * 100;
    cr_assert_eq(bp_get_many(p.me, p.file, page, 8, BP_SHARED, ref), 0, "%s", bp_session_error(p.me));
    cr_assert_eq(stats_of(&p).read_bytes, 8 * 16384);
    bp_put_many(ref, 8);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(bp_get_start(p.me, p.file, i * 64, BP_SHARED, BP_MORE, &page[i], &ref[i]), BP_PENDING);
    while (done < 8) {
        int n = bp_poll(p.me, event, 8, 1000);

        cr_assert_gt(n, 0);
        for (int i = 0; i < n; i++) {
            cr_assert_eq(event[i].result, 0);
            bp_put(&event[i].ref);
        }
        done += (unsigned)n;
    }
    cr_assert_eq(bp_copy_out(p.me, p.file, 4000000, sizeof(to), to, &got), 0);
    cr_assert_eq(got, sizeof(to));
    null_close(&p);
}

/* Two opens are two files; nonsense is refused with a reason. */
Test(null, files_and_nonsense)
{
    struct bp_error error = {0};
    struct bp_file_options fo = {.size = sizeof(fo), .null_bytes = 8192, .error = &error};
    struct bp_pool_options o = {.size = sizeof(o), .memory = BP_MEMORY_MIN, .io = (enum bp_io)4, .error = &error};
    struct null_pool p = null_open(16, 100, 0);
    struct bp_view view;
    bp_file *other;
    bp_pool *pool;

    cr_assert_eq(bp_pool_open(&o, &pool), -EINVAL);
    cr_assert_eq(bp_file_open(p.pool, "anything", &fo, &other), 0);
    cr_assert_neq(other, p.file);
    cr_assert_eq(bp_read(p.me, other, 1, &view), 0);
    cr_assert_eq(bp_read(p.me, other, 2, &view), BP_EOF);
    cr_assert_eq(bp_file_close(other, NULL), 0);
    fo.null_bytes = 0;
    cr_assert_eq(bp_file_open(p.pool, "/dev/null", &fo, &other), -EINVAL);
    cr_assert(strstr(error.text, "null_bytes"), "%s", error.text);
    fo.null_bytes = 1000;
    cr_assert_eq(bp_file_open(p.pool, "x", &fo, &other), -EINVAL);
    null_close(&p);
    o.io = BP_IO_PSYNC;
    cr_assert_eq(bp_pool_open(&o, &pool), 0);
    fo.null_bytes = 8192;
    cr_assert_eq(bp_file_open(pool, "/proc/self/exe", &fo, &other), -EINVAL);
    cr_assert_eq(bp_pool_close(pool, NULL), 0);
}
