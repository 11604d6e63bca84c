/* SPDX-License-Identifier: MIT */
/* What was in memory comes back after a restart; a list that is damaged, old or made to do harm does none. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/crc32c.h"
#include "bufpool/extents.h"
#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

#define LIST "bp-test-list"

static void touch_pages(bp_session *s, bp_file *file, uint64_t first, unsigned n, unsigned times)
{
    for (unsigned t = 0; t < times; t++)
        for (unsigned i = 0; i < n; i++) {
            struct bp_ref ref;

            cr_assert_eq(bp_get(s, file, first + i, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
            bp_put(&ref);
        }
}

static uint64_t dump(bp_pool *pool, const char *path)
{
    struct bp_error error = {0};
    struct bp_dump_options o = {.size = sizeof(o), .error = &error};
    uint64_t extents = 0;
    int rc = bp_pool_dump(pool, path, &o, &extents);

    cr_assert_eq(rc, 0, "%d %s", rc, error.text);
    return extents;
}

static struct bp_restore_result restore(bp_session *s, const char *path)
{
    struct bp_restore_result r;
    int rc = bp_pool_restore(s, path, NULL, &r);

    cr_assert_eq(rc, 0, "%d %s", rc, bp_session_error(s));
    return r;
}

/* Name of a list of this test alone. */
static const char *list_name(const char *what)
{
    static char name[64];

    snprintf(name, sizeof(name), LIST "-%s-%d", what, (int)getpid());
    return name;
}

/* ---- there and back ---- */

Test(restart, what_was_there_comes_back)
{
    struct data_file data[2] = {data_file_make(3000 * 4096 + 100), data_file_make(3000 * 4096)};
    const char *list = list_name("back");

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(16 << 20, io, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *a = open_file(pool, data[0].path, 0), *b = open_file(pool, data[1].path, 65536);
        struct bp_restore_result r;
        uint64_t listed, misses, reads;
        uint32_t head;
        uint64_t seen;

        touch_pages(s, a, 100, 300, 1);
        touch_pages(s, a, 1000, 100, 4);
        touch_pages(s, a, 3000, 1, 1); /* the last one, in part */
        touch_pages(s, b, 160, 320, 2);
        for (uint64_t page = 2000; page < 2500; page += 7)
            touch_pages(s, a, page, 1, 2);
        listed = dump(pool, list);
        cr_assert_eq(listed, 300 + 100 + 1 + 20 + 72);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);

        pool = open_pool(16 << 20, io, 0);
        s = open_session(pool, "s");
        b = open_file(pool, data[1].path, 65536);
        a = open_file(pool, data[0].path, 0);
        r = restore(s, list);
        cr_assert_eq(r.listed, listed);
        cr_assert_eq(r.restored, listed);
        cr_assert_eq(r.end, BP_RESTORE_ALL);
        cr_assert_eq(r.files_known, 2);
        cr_assert_eq(r.bytes, (uint64_t)(473 + 320) * 4096);
        cr_assert_eq(r.present + r.failed + r.passed_over, 0);
        cr_assert_str_eq(bp_session_error(s), "");
        misses = stat_of(pool, "misses");
        reads = stat_of(pool, "reads");
        cr_assert_leq(reads, 20 + 72 + 20, "neighbours come together: %lu reads", (unsigned long)reads);
        head = frame_head(pool->frame, entry_number(bpi_index_load(&a->index, 1050)), &seen);
        cr_assert_geq(seen & FRAME_HEAT, 2, "as hot as it was, or noted in the sample since");
        cr_assert_eq(frame_id(&pool->frame[head]) & FRAME_ID_PAGE, 1050);
        touch_pages(s, a, 100, 300, 1);
        touch_pages(s, b, 160, 320, 1);
        for (unsigned f = 0; f < 2; f++)
            for (uint64_t page = f ? 160 : 100; page < (f ? 480 : 400); page++) {
                struct bp_view view;

                cr_assert_eq(bp_read(s, f ? b : a, page, &view), 0);
                cr_assert(data_page_ok(&data[f], page, view.data));
            }
        touch_pages(s, a, 1000, 100, 1);
        touch_pages(s, a, 3000, 1, 1);
        cr_assert_eq(stat_of(pool, "misses"), misses, "all hits");
        r = restore(s, list);
        cr_assert_eq(r.present, listed, "once more changes nothing");
        cr_assert_eq(r.bytes, 0);
        cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    unlink(list);
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}

/* Lists of large extents on a file that is now open with small ones, and the other way round. */
Test(restart, extents_of_another_size)
{
    struct data_file data = data_file_make(2000 * 4096);
    const char *list = list_name("sizes");

    for (unsigned small = 0; small < 2; small++) {
        bp_pool *pool = open_pool(16 << 20, BP_IO_TRY, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_file(pool, data.path, small ? 4096 : 32768);

        touch_pages(s, file, 64, 256, 1);
        dump(pool, list);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        pool = open_pool(16 << 20, BP_IO_TRY, 0);
        s = open_session(pool, "s");
        file = open_file(pool, data.path, small ? 32768 : 4096);
        cr_assert_eq(restore(s, list).end, BP_RESTORE_ALL);
        for (uint64_t page = 64; page < 64 + 256; page++)
            cr_assert(entry_is_frame(bpi_index_load(&file->index, page)));
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    unlink(list);
    data_file_remove(&data);
}

/* ---- lists that are no good ---- */

struct blob {
    unsigned char *at;
    size_t bytes;
};

static struct blob blob_read(const char *path)
{
    struct blob b = {.at = malloc(1 << 20)};
    int fd = open(path, O_RDONLY);

    b.bytes = (size_t)read(fd, b.at, 1 << 20);
    close(fd);
    return b;
}

static void blob_write(const char *path, const struct blob *b)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    cr_assert_eq(write(fd, b->at, b->bytes), (ssize_t)b->bytes);
    close(fd);
}

/* The checksums of who means harm are right. */
static void blob_seal(struct blob *b)
{
    struct crc32c crc;

    bpi_crc32c_begin(&crc);
    bpi_crc32c_add(&crc, b->at + LIST_HEADER_BYTES, b->bytes - LIST_HEADER_BYTES);
    list_put(b->at + 56, crc32c_value(&crc), 4);
    bpi_crc32c_begin(&crc);
    bpi_crc32c_add(&crc, b->at, 60);
    list_put(b->at + 60, crc32c_value(&crc), 4);
}

static void expect_refused(bp_session *s, const char *path, int code, const char *words)
{
    struct bp_restore_result r;
    int rc = bp_pool_restore(s, path, NULL, &r);

    cr_assert_eq(rc, code, "%d instead of %d: %s", rc, code, bp_session_error(s));
    cr_assert_not_null(strstr(bp_session_error(s), words), "'%s' in: %s", words, bp_session_error(s));
    cr_assert_eq(r.restored, 0);
    cr_assert_eq(r.bytes, 0);
}

Test(restart, lists_that_are_damaged)
{
    struct data_file data = data_file_make(500 * 4096);
    bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_file(pool, data.path, 0);
    const char *list = list_name("damaged");
    struct blob good, bad;
    struct bp_restore_result r;
    char dir[] = "bp-dir-XXXXXX", fifo[64];

    touch_pages(s, file, 10, 40, 1);
    cr_assert_eq(dump(pool, list), 40);
    good = blob_read(list);
    cr_assert_eq(good.bytes, 64 + 96 + 40 * 16);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    file = open_file(pool, data.path, 0);
    bad = (struct blob){.at = malloc(good.bytes + 16), .bytes = good.bytes};
    for (size_t i = 0; i < good.bytes; i++) { /* every byte, in some bit */
        memcpy(bad.at, good.at, good.bytes);
        bad.at[i] ^= (unsigned char)(1u << i % 8);
        blob_write(list, &bad);
        expect_refused(s, list, -EBADMSG, "nothing of it was used");
    }
    memcpy(bad.at, good.at, good.bytes);
    memset(bad.at + good.bytes, 0, 16);
    for (bad.bytes = 0; bad.bytes < good.bytes; bad.bytes += bad.bytes < 70 ? 1 : 13) { /* every length */
        blob_write(list, &bad);
        expect_refused(s, list, -EBADMSG, "nothing of it was used");
    }
    bad.bytes = good.bytes + 16;
    blob_write(list, &bad);
    expect_refused(s, list, -EBADMSG, "size");
    expect_refused(s, "/no/such/list", -ENOENT, "/no/such/list");
    expect_refused(s, data.path, -EBADMSG, "not a list");
    cr_assert_not_null(mkdtemp(dir));
    expect_refused(s, dir, -EBADMSG, "regular");
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    expect_refused(s, fifo, -EBADMSG, "regular");
    unlink(fifo);
    rmdir(dir);
    cr_assert_eq(stat_of(pool, "misses"), 40, "not one page was read for all these");
    blob_write(list, &good);
    r = restore(s, list);
    cr_assert_eq(r.restored, 40);
    free(good.at);
    free(bad.at);
    unlink(list);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

Test(restart, lists_that_mean_harm)
{
    struct data_file data = data_file_make(500 * 4096);
    bp_pool *pool = open_pool(4 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_file(pool, data.path, 0);
    const char *list = list_name("harm");
    struct blob good, bad;
    struct {
        size_t at;
        unsigned bytes;
        uint64_t value;
        int code;
        const char *words;
    } cases[] = {
        {8, 4, 2, -EPROTO, "version 2"},
        {12, 4, 13, -EPROTO, "2^13"},
        {16, 4, 0, -EBADMSG, "size"},
        {16, 4, UINT32_MAX, -EBADMSG, "size"},
        {24, 8, 1ull << 60, -EBADMSG, "size"},
        {24, 8, UINT64_MAX, -EBADMSG, "size"},
        {24, 8, (1ull << 60) + 20, -EBADMSG, "size"}, /* times 16 is what is there */
        {160, 8, 500, -EBADMSG, "cannot be"},         /* the first extent: past the end */
        {160, 8, UINT64_MAX, -EBADMSG, "cannot be"},
        {160, 8, 1ull << 51, -EBADMSG, "cannot be"},
        {160, 8, 11, -EBADMSG, "overlap"},
        {168, 4, 1, -EBADMSG, "cannot be"},
        {168, 4, UINT32_MAX, -EBADMSG, "cannot be"},
        {172, 1, 99, -EBADMSG, "cannot be"},
        {172, 1, 3, -EBADMSG, "cannot be"}, /* page 10 is no place for an extent of 8 pages */
        {172, 1, 1, -EBADMSG, "overlap"},
        {173, 1, 200, -EBADMSG, "cannot be"},
        {80, 8, UINT64_MAX, -ESTALE, "have changed"}, /* the file's size */
        {80, 8, 4096, -EBADMSG, "cannot be"},
        {72, 8, 1, -ESTALE, "have changed"}, /* its inode */
        {88, 8, 1, -ESTALE, "have changed"}, /* its time */
        {96, 8, 0x0a0d1b2020202020, 0, ""},  /* its name is only for texts */
    };

    touch_pages(s, file, 10, 20, 1);
    cr_assert_eq(dump(pool, list), 20);
    good = blob_read(list);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    file = open_file(pool, data.path, 0);
    bad = (struct blob){.at = malloc(good.bytes), .bytes = good.bytes};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        memcpy(bad.at, good.at, good.bytes);
        list_put(bad.at + cases[i].at, cases[i].value, cases[i].bytes);
        blob_seal(&bad);
        blob_write(list, &bad);
        if (!cases[i].code)
            break;
        expect_refused(s, list, cases[i].code, cases[i].words);
        for (const char *c = bp_session_error(s); *c; c++)
            cr_assert_geq(*c, ' ');
    }
    list_put(bad.at + 72, 1, 8); /* and its name, in a text */
    blob_seal(&bad);
    blob_write(list, &bad);
    expect_refused(s, list, -ESTALE, "?");
    cr_assert_null(strchr(bp_session_error(s), '\n'));
    cr_assert_eq(stat_of(pool, "misses"), 20);
    memcpy(bad.at, good.at, good.bytes);
    list_put(bad.at + 174, 999, 2); /* a node that this machine has not */
    blob_seal(&bad);
    blob_write(list, &bad);
    cr_assert_eq(restore(s, list).restored, 20);
    free(good.at);
    free(bad.at);
    unlink(list);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

Test(restart, files_that_have_changed)
{
    struct data_file data[2] = {data_file_make(500 * 4096), data_file_make(500 * 4096)};
    bp_pool *pool = open_pool(8 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    bp_file *file[2] = {open_file(pool, data[0].path, 0), open_file(pool, data[1].path, 0)};
    const char *list = list_name("stale");
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = 1}};
    struct bp_restore_result r;

    touch_pages(s, file[0], 0, 50, 1);
    touch_pages(s, file[1], 0, 60, 1);
    cr_assert_eq(dump(pool, list), 110);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(bp_file_close(file[i], NULL), 0);
    expect_refused(s, list, -ESTALE, "not open");
    file[0] = open_file(pool, data[0].path, 0);
    r = restore(s, list);
    cr_assert_eq(r.restored, 50);
    cr_assert_eq(r.passed_over, 60);
    cr_assert_eq(r.files_known, 1);
    cr_assert_not_null(strstr(bp_session_error(s), data[1].path), "%s", bp_session_error(s));
    file[1] = open_file(pool, data[1].path, 0);
    cr_assert_eq(utimensat(AT_FDCWD, data[1].path, t, 0), 0, "written to");
    cr_assert_eq(restore(s, list).passed_over, 60);
    cr_assert_eq(truncate(data[0].path, 499 * 4096), 0, "shorter");
    expect_refused(s, list, -ESTALE, "have changed");
    unlink(list);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data[0]);
    data_file_remove(&data[1]);
}

/* ---- what it must not do ---- */

Test(restart, nothing_in_use_is_displaced)
{
    struct data_file data = data_file_make(4000 * 4096);
    const char *list = list_name("full");

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(8 << 20, io, 0), *small;
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_restore_result r;

        touch_pages(s, file, 0, 1000, 1);
        touch_pages(s, file, 500, 100, 3); /* the hottest */
        cr_assert_eq(dump(pool, list), 1000);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        small = open_pool(2 << 20, io, 0);
        s = open_session(small, "s");
        file = open_file(small, data.path, 0);
        touch_pages(s, file, 3000, 300, 1); /* what is in use now */
        r = restore(s, list);
        cr_assert_eq(r.end, BP_RESTORE_FULL);
        cr_assert_geq(r.restored, 100);
        cr_assert_lt(r.restored, 300);
        cr_assert_eq(stat_of(small, "evictions"), 0);
        for (uint64_t page = 3000; page < 3300; page++)
            cr_assert(entry_is_frame(bpi_index_load(&file->index, page)), "page %lu went", (unsigned long)page);
        for (uint64_t page = 500; page < 600; page++)
            cr_assert(entry_is_frame(bpi_index_load(&file->index, page)), "hottest first");
        cr_assert_eq(stat_of(small, "frames_pinned"), 0);
        touch_pages(s, file, 1500, 700, 1); /* the session evicts as before */
        cr_assert_eq(bp_session_close(s), 0);
        close_all(small);
    }
    unlink(list);
    data_file_remove(&data);
}

static bool three_times(void *ctx)
{
    unsigned *left = ctx;

    return (*left)-- > 0;
}

Test(restart, bounded_as_asked)
{
    struct data_file data = data_file_make(4000 * 4096);
    bp_pool *pool = open_pool(32 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_file(pool, data.path, 0);
    const char *list = list_name("bounds");
    struct bp_dump_options d = {.size = sizeof(d), .extents_max = 100};
    struct bp_restore_options o = {.size = sizeof(o)};
    struct bp_restore_result r;
    struct timespec from, to;
    unsigned left = 3;
    uint64_t listed;

    touch_pages(s, file, 0, 2000, 1);
    touch_pages(s, file, 1000, 100, 2);
    cr_assert_eq(bp_pool_dump(pool, list, &d, &listed), 0);
    cr_assert_eq(listed, 100, "the hottest hundred");
    cr_assert_eq(bp_file_close(file, NULL), 0);
    file = open_file(pool, data.path, 0);
    cr_assert_eq(restore(s, list).restored, 100);
    cr_assert(entry_is_frame(bpi_index_load(&file->index, 1050)));
    touch_pages(s, file, 0, 2000, 1);
    cr_assert_eq(dump(pool, list), 2000);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    file = open_file(pool, data.path, 0);
    o.extents_max = 10;
    cr_assert_eq(bp_pool_restore(s, list, &o, &r), 0);
    cr_assert_eq(r.restored, 10);
    cr_assert_eq(r.end, BP_RESTORE_LIMIT);
    o = (struct bp_restore_options){.size = sizeof(o), .bytes_per_second = 4 << 20, .go_on = three_times, .ctx = &left};
    cr_assert_eq(bp_pool_restore(s, list, &o, &r), 0);
    cr_assert_eq(r.end, BP_RESTORE_LIMIT, "stopped by the callback");
    cr_assert_lt(r.restored, 1900);
    o = (struct bp_restore_options){.size = sizeof(o), .bytes_per_second = 1 << 20, .milliseconds_max = 100};
    cr_assert_eq(bp_pool_restore(s, list, &o, &r), 0);
    cr_assert_eq(r.end, BP_RESTORE_LIMIT, "stopped by the clock");
    o = (struct bp_restore_options){.size = sizeof(o), .bytes_per_second = 8 << 20};
    clock_gettime(CLOCK_MONOTONIC, &from);
    cr_assert_eq(bp_pool_restore(s, list, &o, &r), 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    cr_assert_eq(r.end, BP_RESTORE_ALL);
    cr_assert_gt((double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec),
                 (double)r.bytes / (8 << 20) - 0.25, "no faster than that");
    o.size = 3;
    cr_assert_eq(bp_pool_restore(s, list, &o, &r), -EINVAL);
    d.size = 3;
    cr_assert_eq(bp_pool_dump(pool, list, &d, NULL), -EINVAL);
    unlink(list);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- the old list or the new one ---- */

static void die_here(const char *name)
{
    if (!strcmp(name, "dump:written"))
        _exit(7);
}

static void *dump_often(void *arg)
{
    struct bp_dump_options o = {.size = sizeof(o)};
    bp_pool *pool = arg;

    for (unsigned i = 0; i < 30; i++) {
        int rc = bp_pool_dump(pool, LIST "-same", &o, NULL);

        if (rc && rc != -EBUSY)
            abort();
    }
    return NULL;
}

Test(restart, a_dump_replaces_the_list_as_a_whole)
{
    struct data_file data = data_file_make(500 * 4096);
    const char *list = list_name("whole");
    struct bp_error error = {0};
    struct bp_dump_options o = {.size = sizeof(o), .error = &error};
    struct rlimit limit = {.rlim_cur = 200, .rlim_max = RLIM_INFINITY};
    struct blob old, now;
    pthread_t thread[3];
    bp_pool *pool;
    bp_session *s;
    bp_file *file;
    char beside[80];
    int status = -1;
    pid_t child;

    snprintf(beside, sizeof(beside), "%s.new", list);
    child = fork(); /* writes all of it, but dies before it bears the name */
    if (child == 0) {
        pool = open_pool(4 << 20, BP_IO_PSYNC, 0);
        s = open_session(pool, "s");
        touch_pages(s, open_file(pool, data.path, 0), 0, 5, 1);
        dump(pool, list);
        touch_pages(s, open_file(pool, data.path, 0), 0, 50, 1);
        atomic_store(&bpi_sync_hook, die_here);
        dump(pool, list);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(WEXITSTATUS(status), 7);
    old = blob_read(list);
    cr_assert_eq(old.bytes, 64 + 96 + 5 * 16, "the old one");
    cr_assert_eq(access(beside, F_OK), 0);

    pool = open_pool(4 << 20, BP_IO_TRY, 0);
    s = open_session(pool, "s");
    file = open_file(pool, data.path, 0);
    cr_assert_eq(restore(s, list).restored, 5);
    touch_pages(s, file, 0, 30, 1);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(bp_pool_dump(pool, list, &o, NULL), -EFBIG, "no room");
    cr_assert_not_null(strstr(error.text, list), "%s", error.text);
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    now = blob_read(list);
    cr_assert_eq(now.bytes, old.bytes);
    cr_assert_arr_eq(now.at, old.at, old.bytes);
    cr_assert_neq(access(beside, F_OK), 0, "nothing is left lying about");
    cr_assert_eq(bp_pool_dump(pool, "/no/such/directory/list", &o, NULL), -ENOENT);
    cr_assert_eq(symlink("/no/such/file", beside), 0);
    cr_assert_eq(bp_pool_dump(pool, list, &o, NULL), -ELOOP, "not through somebody's link");
    unlink(beside);
    cr_assert_eq(dump(pool, list), 30);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, dump_often, pool), 0);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    cr_assert_eq(restore(s, LIST "-same").present, 30, "several at once leave one that is whole");
    unlink(LIST "-same");
    unlink(list);
    free(old.at);
    free(now.at);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* ---- reads of many extents that fail, and those who wait for them ---- */

static bp_pool *faulty_pool(const struct fault_plan *plan, uint64_t memory, uint32_t wait_ms)
{
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .wait_ms = wait_ms};
    bp_pool *pool = NULL;

    fault_io_plan(plan);
    cr_assert_eq(bpi_pool_open(&o, &fault_io, &pool), 0);
    return pool;
}

Test(restart, of_a_run_that_fails_only_the_bad_page_is_missing)
{
    struct data_file data = data_file_make(2000 * 4096);
    const char *list = list_name("bad");
    const struct io_ops *inner[] = {&bpi_io_uring, &bpi_io_psync};

    for (unsigned b = 0; b < 2; b++) {
        struct fault_plan plan = fault_plan_none(inner[b]);
        bp_pool *pool = faulty_pool(&plan, 8 << 20, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_file(pool, data.path, 0);
        struct bp_restore_result r;
        struct bp_view view;

        touch_pages(s, file, 0, 1000, 1);
        cr_assert_eq(dump(pool, list), 1000);
        cr_assert_eq(bp_file_close(file, NULL), 0);
        file = open_file(pool, data.path, 0);
        plan.bad_from = 300 * 4096 + 5;
        plan.bad_to = 300 * 4096 + 6;
        plan.short_chance = FAULT_ALWAYS / 8; /* and some come short */
        plan.short_unit = 4096;
        plan.late_chance = FAULT_ALWAYS / 8;
        plan.late_reaps = 3;
        plan.shuffle = true;
        fault_io_plan(&plan);
        r = restore(s, list);
        cr_assert_eq(r.restored, 999, "%lu", (unsigned long)r.restored);
        cr_assert_eq(r.failed, 1);
        cr_assert_eq(bp_read(s, file, 300, &view), -EIO);
        for (uint64_t page = 0; page < 1000; page++) {
            if (page == 300)
                continue;
            cr_assert(entry_is_frame(bpi_index_load(&file->index, page)));
            cr_assert_eq(bp_read(s, file, page, &view), 0);
            cr_assert(data_page_ok(&data, page, view.data));
        }
        cr_assert_eq(bp_file_close(file, NULL), 0);
        file = open_file(pool, data.path, 0);
        plan = fault_plan_none(inner[b]);
        plan.error_chance = FAULT_ALWAYS;
        fault_io_plan(&plan);
        cr_assert_eq(bp_pool_restore(s, list, NULL, &r), -EIO, "a device that is gone is left alone");
        cr_assert_leq(fault_io_counts().requests, 600);
        plan.error_chance = 0;
        fault_io_plan(&plan);
        cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    unlink(list);
    data_file_remove(&data);
}

struct restorer {
    bp_session *s;
    const char *list;
    struct bp_restore_result result;
    int rc;
};

static void *restore_there(void *arg)
{
    struct restorer *r = arg;

    r->rc = bp_pool_restore(r->s, r->list, NULL, &r->result);
    return NULL;
}

/* Others want pages of a run that is being read, by waiting and by polling: one read serves all, or they look again. */
Test(restart, others_wait_for_pages_of_a_run)
{
    struct data_file data = data_file_make(2000 * 4096);
    const char *list = list_name("wait");
    const struct io_ops *inner[] = {&bpi_io_uring, &bpi_io_psync};

    for (unsigned b = 0; b < 4; b++) {
        bool fails = b >= 2;
        struct fault_plan plan = fault_plan_none(inner[b % 2]);
        bp_pool *pool = faulty_pool(&plan, 8 << 20, 0);
        bp_session *s = open_session(pool, "s"), *other = open_session(pool, "other");
        bp_file *file = open_file(pool, data.path, 0);
        struct restorer restorer = {.s = s, .list = list};
        struct bp_event event[8];
        struct bp_ref ref[8];
        unsigned got = 0;
        pthread_t thread;

        touch_pages(s, file, 0, 64, 1);
        cr_assert_eq(dump(pool, list), 64);
        cr_assert_eq(bp_file_close(file, NULL), 0);
        file = open_file(pool, data.path, 0);
        plan.hold_from = 0;
        plan.hold_to = 4096; /* the run is, reads of other pages alone are not */
        plan.bad_to = fails ? 4096 : 0;
        fault_io_plan(&plan);
        cr_assert_eq(pthread_create(&thread, NULL, restore_there, &restorer), 0);
        for (unsigned i = 0; i < 20000 && !entry_is_frame(bpi_index_load(&file->index, 63)); i++)
            usleep(1000);
        for (unsigned i = 0; i < 8; i++)
            cr_assert_eq(bp_get_start(other, file, 8 * i + 1, i % 2 ? BP_SHARED : BP_EXCLUSIVE, 0, NULL, &ref[i]),
                         BP_PENDING);
        cr_assert_eq(bp_poll(other, event, 8, 50), 0);
        fault_io_release();
        while (got < 8) {
            int n = bp_poll(other, event + got, 8 - got, 20000);

            cr_assert_gt(n, 0);
            for (int i = 0; i < n; i++, got++) {
                cr_assert_eq(event[got].result, 0, "%s", bp_strerror(event[got].result));
                cr_assert(data_page_ok(&data, event[got].ref.page, event[got].ref.data));
            }
        }
        for (unsigned i = 0; i < 8; i++)
            bp_put(&event[i].ref);
        pthread_join(thread, NULL);
        cr_assert_eq(restorer.rc, 0);
        cr_assert_eq(restorer.result.failed, fails ? 1 : 0);
        if (!fails)
            cr_assert_eq(fault_io_counts().requests, 1, "one read for all of them");
        cr_assert_eq(bp_session_close(s), 0);
        cr_assert_eq(bp_session_close(other), 0);
        close_all(pool);
    }
    unlink(list);
    data_file_remove(&data);
}

/* ---- while the pool is in use ---- */

struct reader {
    bp_pool *pool;
    bp_file *file;
    const struct data_file *data;
    _Atomic bool *stop;
    uint64_t random;
};

static void *read_around(void *arg)
{
    struct reader *r = arg;
    bp_session *s = open_session(r->pool, "reader");

    while (!atomic_load(r->stop)) {
        struct bp_ref ref;
        uint64_t page;

        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        page = (r->random >> 33) % r->data->pages;
        if (bp_get(s, r->file, page, r->random >> 20 & 1 ? BP_SHARED : BP_EXCLUSIVE, &ref))
            abort();
        if (!data_page_ok(r->data, page, ref.data))
            abort();
        bp_put(&ref);
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

Test(restart, beside_others)
{
    struct data_file data = data_file_make(1500 * 4096);
    const char *list = list_name("beside");

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(4 << 20, io, 0);
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_file(pool, data.path, 0), *again;
        _Atomic bool stop = false;
        struct reader reader[3];
        pthread_t thread[3];

        for (unsigned i = 0; i < 3; i++) {
            reader[i] = (struct reader){pool, file, &data, &stop, i + 1};
            cr_assert_eq(pthread_create(&thread[i], NULL, read_around, &reader[i]), 0);
        }
        for (unsigned i = 0; i < 40; i++) {
            struct bp_restore_result r;
            struct data_file other = data_file_make(40 * 4096);

            again = open_file(pool, other.path, 0); /* files come and go meanwhile */
            touch_pages(s, again, 0, 30, 1);
            dump(pool, list);
            r = restore(s, list);
            cr_assert_eq(r.passed_over, 0);
            cr_assert_eq(r.failed, 0);
            cr_assert_eq(bp_file_close(again, NULL), 0);
            cr_assert_eq(bp_pool_restore(s, list, NULL, &r), 0);
            data_file_remove(&other);
        }
        atomic_store(&stop, true);
        for (unsigned i = 0; i < 3; i++)
            pthread_join(thread[i], NULL);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    unlink(list);
    data_file_remove(&data);
}

Test(restart, a_forked_child_is_told)
{
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "parent");
    struct bp_restore_result r;
    int status = -1;
    pid_t child = fork();

    if (child == 0)
        _exit(bp_pool_dump(pool, "x", NULL, NULL) == BP_FORKED && bp_pool_restore(s, "x", NULL, &r) == BP_FORKED ? 0
                                                                                                                 : 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
}

Test(restart, the_checksum_is_the_one_it_says)
{
    struct crc32c crc;

    bpi_crc32c_begin(&crc);
    cr_assert_eq(crc32c_value(&crc), 0);
    bpi_crc32c_add(&crc, "1234", 4);
    bpi_crc32c_add(&crc, "56789", 5);
    cr_assert_eq(crc32c_value(&crc), 0xe3069283u);
}
