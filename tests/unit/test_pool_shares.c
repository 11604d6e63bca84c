/* SPDX-License-Identifier: MIT */
/* Files' shares of the memory: what a floor keeps, what a ceiling bounds, and that both can be changed at work. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "bufpool/pool.h"
#include "tests/unit/pool_fixture.h"

static void read_pages(bp_session *s, bp_file *file, uint64_t first, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct bp_view view;

        cr_assert_eq(bp_read(s, file, first + i, &view), 0, "%s", bp_session_error(s));
    }
}

/* What the index says, against the count. */
static uint64_t pages_of(bp_file *file)
{
    struct index_item item;
    uint64_t pages = 0;

    for (uint64_t page = 0; bpi_index_next(&file->index, page, &item); page = item.page + (1ull << item.order))
        pages += 1ull << item.order;
    cr_assert_eq(bp_file_resident(file), pages * 4096);
    return pages;
}

Test(shares, a_floor_is_kept_for_its_file)
{
    struct data_file data[2] = {data_file_make(4000 * 4096), data_file_make(4000 * 4096)};

    for (unsigned with = 0; with < 2; with++) {
        bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *a = open_file(pool, data[0].path, 0), *b = open_file(pool, data[1].path, 0);
        struct bp_ref ref[1000];
        uint64_t frames = stat_of(pool, "frames_total");
        unsigned held = 0;

        read_pages(s, a, 0, 300);
        if (with)
            cr_assert_eq(bp_file_limits(a, 300 * 4096, 0), 0);
        for (unsigned round = 0; round < 3; round++)
            read_pages(s, b, 0, 4000);
        if (with)
            cr_assert_eq(pages_of(a), 300, "%lu are left", (unsigned long)pages_of(a));
        else
            cr_assert_lt(pages_of(a), 300, "nothing keeps them");
        cr_assert_leq(pages_of(b), frames - pages_of(a));
        if (with) { /* its own misses replace its own pages, and what only the floor could give is given */
            read_pages(s, a, 1000, 600);
            cr_assert_geq(pages_of(a), 300);
            cr_assert_eq(bp_file_limits(a, 200 * 4096, 0), 0, "changed at work");
            for (unsigned round = 0; round < 3; round++)
                read_pages(s, b, 0, 4000);
            cr_assert_geq(pages_of(a), 200);
            while (held + 4 < frames && bp_get(s, b, held, BP_SHARED, &ref[held]) == 0)
                held++;
            cr_assert_eq(held + 4, frames, "a floor makes nobody BUSY");
            bp_put_many(ref, held);
        }
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}

Test(shares, a_ceiling_bounds_its_file)
{
    struct data_file data[2] = {data_file_make(4000 * 4096), data_file_make(4000 * 4096)};

    for (unsigned order = 0; order < 3; order += 2) {
        bp_pool *pool = open_pool(8 << 20, BP_IO_TRY, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *a = open_file(pool, data[0].path, 4096u << order), *b = open_file(pool, data[1].path, 0);
        uint64_t slack = 32;

        cr_assert_eq(bp_file_limits(a, 0, 400 * 4096), 0);
        read_pages(s, b, 0, 500);
        for (unsigned round = 0; round < 2; round++)
            read_pages(s, a, 0, 4000);
        cr_assert_leq(pages_of(a), 400 + slack, "%lu at order %u", (unsigned long)pages_of(a), order);
        cr_assert_geq(pages_of(a), 300);
        cr_assert_eq(pages_of(b), 500, "there was room");
        for (uint64_t page = 3990; page < 4000; page++) {
            struct bp_view view;

            cr_assert_eq(bp_read(s, a, page, &view), 0);
            cr_assert(data_page_ok(&data[0], page, view.data));
        }
        cr_assert_eq(bp_file_limits(a, 0, 200 * 4096), 0);
        read_pages(s, a, 0, 2000);
        cr_assert_leq(pages_of(a), 200 + slack, "lowered at work: %lu", (unsigned long)pages_of(a));
        cr_assert_eq(bp_file_limits(a, 0, 0), 0);
        read_pages(s, a, 0, 1000);
        cr_assert_geq(pages_of(a), 800, "and no more: %lu", (unsigned long)pages_of(a));
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}

Test(shares, limits_that_cannot_be)
{
    struct data_file data[2] = {data_file_make(100 * 4096), data_file_make(100 * 4096)};
    bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
    bp_file *a = open_file(pool, data[0].path, 0), *b = open_file(pool, data[1].path, 65536);

    cr_assert_eq(bp_file_limits(a, 100 * 4096, 99 * 4096), -EINVAL);
    cr_assert_eq(bp_file_limits(a, 0, 4096), -EINVAL);
    cr_assert_eq(bp_file_limits(b, 0, 15 * 65536), -EINVAL);
    cr_assert_eq(bp_file_limits(b, 0, 16 * 65536), 0);
    cr_assert_eq(bp_file_limits(a, UINT64_MAX, 0), -ENOSPC);
    cr_assert_eq(bp_file_limits(a, 4 << 20, 0), -ENOSPC);
    cr_assert_eq(bp_file_limits(a, 2 << 20, 0), 0);
    cr_assert_eq(bp_file_limits(b, 2 << 20, 0), -ENOSPC, "together");
    cr_assert_eq(bp_file_limits(a, 3 << 20, 0), 0, "its own old one does not count");
    cr_assert_eq(bp_file_close(a, NULL), 0);
    cr_assert_eq(bp_file_limits(b, 2 << 20, 0), 0, "a file that is closed has none");
    close_all(pool);
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}

struct worker {
    bp_pool *pool;
    bp_file *file;
    uint64_t random;
    _Atomic bool *stop;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    bp_session *s = open_session(w->pool, "worker");

    while (!atomic_load(w->stop)) {
        struct bp_view view;

        w->random = w->random * 6364136223846793005u + 1442695040888963407u;
        if (bp_read(s, w->file, (w->random >> 33) % 4000, &view))
            abort();
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

Test(shares, changed_while_others_work)
{
    struct data_file data[2] = {data_file_make(4000 * 4096), data_file_make(4000 * 4096)};
    bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
    bp_file *file[2] = {open_file(pool, data[0].path, 0), open_file(pool, data[1].path, 16384)};
    _Atomic bool stop = false;
    struct worker worker[4];
    pthread_t thread[4];
    uint64_t random = 1;

    for (unsigned i = 0; i < 4; i++) {
        worker[i] = (struct worker){pool, file[i % 2], i + 1, &stop};
        cr_assert_eq(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    }
    for (unsigned i = 0; i < 300; i++) {
        uint64_t floor, ceiling;

        random = random * 6364136223846793005u + 1442695040888963407u;
        floor = (random >> 40) % 400 * 4096;
        ceiling = random >> 30 & 1 ? 0 : floor + 400 * 4096;
        cr_assert_eq(bp_file_limits(file[i % 2], floor, ceiling), 0);
        usleep(3000);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    pages_of(file[0]);
    pages_of(file[1]);
    close_all(pool);
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}
