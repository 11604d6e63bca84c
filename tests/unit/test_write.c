/* SPDX-License-Identifier: MIT */
/* Writing through the public header: what is dirty gets to the file, as it was, and nothing else does. */
#define BP_NO_INLINE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "tests/unit/pool_fixture.h"

static bp_file *open_written(bp_pool *pool, const char *path, const struct bp_file_options *more)
{
    struct bp_error error = {0};
    struct bp_file_options o = more ? *more : (struct bp_file_options){.size = sizeof(o)};
    bp_file *file = NULL;
    int rc;

    o.size = sizeof(o);
    o.write = true;
    o.error = &error;
    rc = bp_file_open(pool, path, &o, &file);
    cr_assert_eq(rc, 0, "bp_file_open: %d %s", rc, error.text);
    return file;
}

/* What a file holds now, as another process sees it. */
static void expect_disk(const struct data_file *d, const char *when)
{
    char *got = malloc(d->pages * 4096);
    int fd = open(d->path, O_RDONLY);
    ssize_t n = pread(fd, got, d->pages * 4096, 0);

    cr_assert_eq(n, (ssize_t)(d->pages * 4096), "%s: %zd bytes", when, n);
    for (uint64_t page = 0; page < d->pages; page++)
        cr_assert(data_page_ok(d, page, got + page * 4096), "%s: page %lu", when, (unsigned long)page);
    close(fd);
    free(got);
}

static void change(bp_session *s, bp_file *file, struct data_file *d, uint64_t page, unsigned char with, uint64_t lsn)
{
    struct bp_ref ref;

    cr_assert_eq(bp_get(s, file, page, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(d, page, ref.data), "page %lu before its change", (unsigned long)page);
    memset(d->content + page * 4096 + 64 * (with % 50), with, 128);
    memcpy(ref.data, d->content + page * 4096, 4096);
    bp_put_dirty(&ref, lsn);
}

Test(write, what_is_changed_gets_to_the_file)
{
    static const uint32_t extents[] = {4096, 65536};

    EACH_BACK_END(io)
    for (unsigned e = 0; e < 2; e++)
        for (enum bp_choice direct = BP_TRY; direct <= BP_OFF; direct += 2) {
            struct data_file d = data_file_make(1000 * 4096);
            bp_pool *pool = open_pool(2 << 20, io, 0);
            bp_session *s = open_session(pool, "s");
            bp_file *file =
                open_written(pool, d.path, &(struct bp_file_options){.direct = direct, .extent_bytes = extents[e]});
            uint64_t seed = 7;

            for (unsigned i = 0; i < 3000; i++) { /* twice the pool: dirty pages are in the way of others */
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                change(s, file, &d, (seed >> 33) % d.pages, (unsigned char)(seed >> 56), i + 1);
                if (i % 1000 == 500) {
                    cr_assert_eq(bp_flush(s, file, 0, UINT64_MAX), 0, "%s", bp_session_error(s));
                    cr_expect_eq(stat_of(pool, "dirty_pages"), 0);
                    expect_disk(&d, "flushed");
                }
            }
            cr_assert_eq(bp_sync(s, file), 0, "%s", bp_session_error(s));
            cr_expect_eq(bp_oldest_dirty_lsn(pool), UINT64_MAX);
            expect_disk(&d, "synced");
            change(s, file, &d, 3, 77, 1);
            cr_assert_eq(bp_session_close(s), 0);
            close_all(pool);
            expect_disk(&d, "closed");
            data_file_remove(&d);
        }
}

Test(write, without_write_nothing_is)
{
    struct data_file d = data_file_make(20 * 4096);
    bp_pool *pool = open_pool(2 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_file(pool, d.path, 4096);
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .create = true, .error = &error};
    struct bp_file_options w = {.size = sizeof(w), .write = true, .error = &error};
    struct bp_ref ref;
    bp_file *other;

    cr_expect_eq(bp_create(s, file, 0, 0, &ref), -EBADF);
    cr_expect_eq(bp_flush(s, file, 0, 1), -EBADF);
    cr_expect_eq(bp_sync(s, file), -EBADF);
    cr_expect_eq(bp_discard(s, file, 0, 1), -EBADF);
    cr_expect_eq(bp_file_truncate(s, file, 0), -EBADF);
    cr_expect_eq(bp_file_open(pool, d.path, &o, &other), -EINVAL, "%s", error.text);
    cr_expect_eq(bp_file_open(pool, d.path, &w, &other), -EEXIST, "%s", error.text);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    expect_disk(&d, "only read");
    data_file_remove(&d);
}

/* A file that is made, of extents of all sizes, in any order, with holes; and again over what is there. */
Test(write, new_extents)
{
    EACH_BACK_END(io)
    {
        struct data_file d = data_file_make(0);
        bp_pool *pool;
        bp_session *s;
        bp_file *file;
        struct bp_ref ref;

        unlink(d.path);
        free(d.content);
        d.pages = 700;
        d.content = calloc(d.pages, 4096);
        pool = open_pool(4 << 20, io, 0);
        s = open_session(pool, "s");
        file = open_written(pool, d.path, &(struct bp_file_options){.create = true});
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < 60; i++) {
                unsigned order = (i * 7 + round) % 6;
                uint64_t page = (((i * 37 + round * 11) % 600) >> order) << order;

                if (i == 59)
                    page = 699, order = 0;
                cr_assert_eq(bp_create(s, file, page, order, &ref), 0, "%s", bp_session_error(s));
                cr_assert_geq(ref.bytes, 4096u << order);
                cr_assert_eq(ref.page, page);
                for (unsigned k = 0; k < 4096u << order; k++)
                    cr_assert_eq(((char *)ref.data)[k], 0);
                memset(d.content + page * 4096, 0, 4096ul << order);
                if (i % 5) { /* else: just as it is */
                    memset(d.content + page * 4096, (int)(i + round), 4096ul << order);
                    memset(ref.data, (int)(i + round), 4096ul << order);
                    bp_put_dirty(&ref, 0);
                } else {
                    bp_put(&ref);
                }
            }
            for (uint64_t page = 0; page < d.pages; page++) { /* what is not written yet reads as zeros */
                cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
                cr_assert(data_page_ok(&d, page, ref.data), "round %u, page %lu", round, (unsigned long)page);
                bp_put(&ref);
            }
            cr_assert_eq(bp_get(s, file, d.pages, BP_SHARED, &ref), BP_EOF);
            cr_assert_eq(bp_sync(s, file), 0, "%s", bp_session_error(s));
            expect_disk(&d, "synced");
        }
        cr_expect_eq(bp_create(s, file, 1, 1, &ref), -EINVAL);
        cr_expect_eq(bp_create(s, file, 0, 10, &ref), -EINVAL);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        data_file_remove(&d);
    }
}

struct log {
    _Atomic uint64_t flushed;
    _Atomic unsigned calls;
    _Atomic int answer;
    _Atomic bool wrong;
};

static int flush_log(void *ctx, uint64_t lsn)
{
    struct log *log = ctx;

    log->calls++;
    if (!log->answer && lsn > log->flushed)
        log->flushed = lsn;
    return log->answer;
}

/* Each page carries its LSN; what is on its way to disk must be covered by the log. */
static void seal_page(void *ctx, uint64_t page, void *data, uint32_t bytes)
{
    uint64_t crc = bp_crc32c(0, (char *)data + 8, bytes - 8) + page;

    (void)ctx;
    memcpy(data, &crc, 8);
}

static int verify_page(void *ctx, uint64_t page, const void *data, uint32_t bytes)
{
    uint64_t crc = bp_crc32c(0, (const char *)data + 8, bytes - 8) + page;
    uint64_t zero = 0;

    (void)ctx;
    return memcmp(data, &crc, 8) && memcmp(data, &zero, 8) ? -EBADMSG : 0;
}

Test(write, log_first_sealed_and_verified)
{
    EACH_BACK_END(io)
    {
        struct data_file d = data_file_make(400 * 4096);
        struct log log = {0};
        struct bp_file_options o = {.flush_log = flush_log, .seal = seal_page, .verify = verify_page, .ctx = &log};
        bp_pool *pool = open_pool(1 << 20, io, 300);
        bp_session *s = open_session(pool, "s");
        bp_file *file;
        struct bp_ref ref;

        memset(d.content, 0, d.pages * 4096);
        cr_assert_eq(truncate(d.path, 0), 0);
        file = open_written(pool, d.path, &o);
        for (uint64_t page = 0; page < d.pages; page++) {
            cr_assert_eq(bp_create(s, file, page, 0, &ref), 0, "%s", bp_session_error(s));
            memset((char *)ref.data + 8, (int)page, 4088);
            bp_put_dirty(&ref, 1000 + page);
        }
        cr_expect_geq(log.flushed, 1000u);
        cr_expect_geq(bp_oldest_dirty_lsn(pool), 1000u);
        cr_expect_leq(bp_oldest_dirty_lsn(pool), 1399u);
        cr_assert_eq(bp_sync(s, file), 0, "%s", bp_session_error(s));
        cr_expect_eq(log.flushed, 1399u);
        cr_expect_eq(bp_oldest_dirty_lsn(pool), UINT64_MAX);
        for (uint64_t page = 0; page < d.pages; page++) { /* most of them are read again, and verified */
            cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
            cr_assert_eq(((unsigned char *)ref.data)[4095], (unsigned char)page);
            bp_put(&ref);
        }
        cr_expect_gt(stat_of(pool, "misses") + stat_of(pool, "reads_ahead"), 100u);

        /* The log cannot be flushed: nothing goes out, and the change stays; and it is told. */
        log.answer = -EROFS;
        cr_assert_eq(bp_get(s, file, 7, BP_EXCLUSIVE, &ref), 0);
        ((char *)ref.data)[100] = 99;
        bp_put_dirty(&ref, 2000);
        cr_expect_eq(bp_flush(s, file, 0, UINT64_MAX), -EROFS, "%s", bp_session_error(s));
        cr_expect_eq(bp_sync(s, file), -EROFS, "%s", bp_session_error(s));
        cr_expect_eq(bp_oldest_dirty_lsn(pool), 2000u);
        cr_expect_eq(stat_of(pool, "dirty_pages"), 1u);
        log.answer = 0;
        cr_expect_eq(bp_flush(s, file, 0, UINT64_MAX), 0, "%s", bp_session_error(s));
        cr_expect_eq(log.flushed, 2000u);
        cr_expect_eq(stat_of(pool, "dirty_pages"), 0u);
        cr_expect_eq(bp_oldest_dirty_lsn(pool), 2000u, "written, but not synced");
        cr_expect_eq(bp_sync(s, file), 0);
        cr_expect_eq(bp_oldest_dirty_lsn(pool), UINT64_MAX);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        data_file_remove(&d);
    }
}

Test(write, upgrade_and_downgrade)
{
    struct data_file d = data_file_make(40 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 50);
    bp_session *s = open_session(pool, "s");
    bp_session *t = open_session(pool, "t");
    bp_file *file = open_written(pool, d.path, NULL);
    struct bp_view view, old;
    struct bp_ref ref, other;

    cr_assert_eq(bp_read(s, file, 5, &view), 0);
    old = view;
    cr_assert_eq(bp_upgrade(&view, s, file, 5, &ref), 0, "%s", bp_session_error(s));
    cr_expect_not(bp_view_valid(&view), "it is held exclusively");
    cr_expect_eq(bp_get(t, file, 5, BP_SHARED, &other), -EBUSY);
    memset(ref.data, 1, 4096);
    memset(d.content + 5 * 4096, 1, 4096);
    bp_downgrade_dirty(&ref, 9);
    cr_expect_eq(stat_of(pool, "dirty_pages"), 1u);
    cr_assert_eq(bp_get(t, file, 5, BP_SHARED, &other), 0, "shared with others");
    cr_expect_eq(((char *)other.data)[77], 1);
    cr_expect_eq(bp_get(t, file, 5, BP_EXCLUSIVE, &other), -EBUSY);
    cr_expect_eq(bp_upgrade(&old, s, file, 5, &ref), BP_MOVED);
    cr_assert_eq(bp_read(s, file, 5, &view), 0);
    cr_expect_eq(bp_upgrade(&view, s, file, 5, &other), -EBUSY, "others hold it");
    cr_expect_eq(bp_upgrade(&view, s, file, 6, &other), BP_MOVED, "of another page");
    bp_put(&ref);
    cr_assert_eq(bp_get(t, file, 5, BP_SHARED, &other), 0);
    bp_put(&other);
    bp_put(&other); /* the one from before, which the refused get has overwritten */
    cr_assert_eq(bp_upgrade(&view, s, file, 5, &ref), 0, "%s", bp_session_error(s));
    bp_downgrade(&ref);
    cr_expect_not(bp_view_valid(&view));
    bp_put(&ref);
    cr_assert_eq(bp_flush(s, file, 5, 1), 0);
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(bp_session_close(t), 0);
    close_all(pool);
    expect_disk(&d, "closed");
    data_file_remove(&d);
}

Test(write, discard_and_truncate)
{
    EACH_BACK_END(io)
    {
        struct data_file d = data_file_make(300 * 4096);
        struct data_file before = d;
        bp_pool *pool = open_pool(4 << 20, io, 50);
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_written(pool, d.path, NULL);
        struct bp_ref ref;
        struct stat st;
        uint64_t bytes;

        before.content = malloc(d.pages * 4096);
        memcpy(before.content, d.content, d.pages * 4096);
        for (uint64_t page = 0; page < 200; page++)
            change(s, file, &d, page, 200, page + 1);
        cr_assert_eq(bp_discard(s, file, 0, 150), 0, "%s", bp_session_error(s));
        cr_expect_leq(stat_of(pool, "dirty_pages"), 50u);
        cr_expect_geq(bp_oldest_dirty_lsn(pool), 1u); /* some may be written in the background already */
        cr_assert_eq(bp_sync(s, file), 0);
        for (uint64_t page = 0; page < 150; page++) { /* on disk as before, or as it was when it was discarded */
            cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0);
            cr_assert(data_page_ok(&d, page, ref.data) || data_page_ok(&before, page, ref.data));
            memcpy(d.content + page * 4096, ref.data, 4096);
            bp_put(&ref);
        }
        expect_disk(&d, "discarded");

        cr_assert_eq(bp_get(s, file, 250, BP_EXCLUSIVE, &ref), 0);
        cr_expect_eq(bp_discard(s, file, 240, 20), -EBUSY);
        bp_put_dirty(&ref, 0);
        change(s, file, &d, 99, 3, 0);
        cr_expect_eq(bp_file_truncate(s, file, 4097), -EINVAL);
        cr_assert_eq(bp_file_truncate(s, file, 100 * 4096), 0, "%s", bp_session_error(s));
        cr_assert_eq(bp_get(s, file, 100, BP_SHARED, &ref), BP_EOF);
        cr_assert_eq(bp_file_size(file, &bytes), 0);
        cr_expect_eq(bytes, 100u * 4096);
        d.pages = 100;
        cr_assert_eq(bp_sync(s, file), 0);
        cr_assert_eq(stat(d.path, &st), 0);
        cr_expect_eq(st.st_size, 100 * 4096);
        expect_disk(&d, "shorter");
        cr_assert_eq(bp_file_truncate(s, file, 200 * 4096), 0, "%s", bp_session_error(s));
        memset(d.content + 100 * 4096, 0, 100 * 4096);
        d.pages = 200;
        change(s, file, &d, 150, 9, 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        expect_disk(&d, "longer");
        free(before.content);
        data_file_remove(&d);
    }
}

/* Threads that sync at the same time. */
struct syncer {
    pthread_t thread;
    bp_pool *pool;
    bp_file *file;
    struct data_file *d;
    unsigned number;
};

static void *change_and_sync(void *arg)
{
    struct syncer *me = arg;
    bp_session *s = open_session(me->pool, NULL);

    for (unsigned i = 0; i < 20; i++) {
        change(s, me->file, me->d, me->number * 20 + i, (unsigned char)i, 0);
        cr_expect_eq(bp_sync(s, me->file), 0, "%s", bp_session_error(s));
    }
    cr_expect_eq(bp_session_close(s), 0);
    return NULL;
}

Test(write, syncs_are_shared)
{
    EACH_BACK_END(io)
    {
        struct data_file d = data_file_make(200 * 4096);
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_file *file = open_written(pool, d.path, NULL);
        struct syncer syncer[6];

        for (unsigned i = 0; i < 6; i++) {
            syncer[i] = (struct syncer){.pool = pool, .file = file, .d = &d, .number = i};
            cr_assert_eq(pthread_create(&syncer[i].thread, NULL, change_and_sync, &syncer[i]), 0);
        }
        for (unsigned i = 0; i < 6; i++)
            pthread_join(syncer[i].thread, NULL);
        cr_expect_leq(stat_of(pool, "syncs"), 120u);
        cr_expect_geq(stat_of(pool, "syncs"), 20u);
        expect_disk(&d, "synced");
        close_all(pool);
        data_file_remove(&d);
    }
}
