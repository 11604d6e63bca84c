/* SPDX-License-Identifier: MIT */
/*
 * Writes and syncs that fail, come short, come never, and a plug that is pulled. Whatever happens: an error is reported, or
 * the data is right; and what was not written is still there.
 */
#define BP_NO_INLINE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/fault/power_io.h"
#include "tests/unit/pool_fixture.h"

static const struct io_ops *const inner[] = {&bpi_io_uring, &bpi_io_psync};
#define EACH_INNER(ops)                 \
    for (unsigned i_ = 0; i_ < 2; i_++) \
        for (const struct io_ops *ops = inner[i_], *once_ = ops; once_; once_ = NULL)

/* What happens to some of the writes or syncs. */
struct trouble {
    enum io_op op;
    int32_t result;          /* errno, or the number of bytes at which it comes short */
    _Atomic int from, count; /* the from-th, counted from 0, and those that follow */
    _Atomic int seen;        /* so many there were */
    const char *path;        /* where a write that failed leaves rubbish */
};

static int32_t make_trouble(void *ctx, const struct io_request *r, int32_t result)
{
    struct trouble *t = ctx;
    char rubbish[4096];
    int at;
    int fd;

    if (r->op != t->op)
        return result;
    at = t->seen++;
    if (at < t->from || at >= t->from + t->count)
        return result;
    if (t->result >= 0)
        return result < t->result ? result : t->result;
    fd = t->path ? open(t->path, O_RDWR) : -1;
    memset(rubbish, FAULT_POISON, sizeof(rubbish));
    for (uint32_t done = 0; fd >= 0 && done < r->bytes; done += 4096)
        if (pwrite(fd, rubbish, 4096, (off_t)(r->offset + done)) != 4096)
            abort();
    if (fd >= 0)
        close(fd);
    return t->result;
}

static bp_pool *open_with(const struct io_ops *ops, uint64_t memory, uint32_t wait_ms)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .wait_ms = wait_ms, .error = &error};
    bp_pool *pool = NULL;
    int rc = bpi_pool_open(&o, ops, &pool);

    cr_assert_eq(rc, 0, "%s", error.text);
    return pool;
}

static bp_pool *open_troubled(const struct io_ops *ops, struct trouble *t, uint64_t memory, uint32_t wait_ms)
{
    struct fault_plan plan = fault_plan_none(ops);

    plan.result = make_trouble;
    plan.ctx = t;
    fault_io_plan(&plan);
    return open_with(&fault_io, memory, wait_ms);
}

static bp_file *open_written(bp_pool *pool, const char *path, struct bp_file_options o)
{
    bp_file *file = NULL;
    struct bp_error error = {0};

    o.size = sizeof(o);
    o.write = true;
    o.error = &error;
    cr_assert_eq(bp_file_open(pool, path, &o, &file), 0, "%s", error.text);
    return file;
}

static void change(bp_session *s, bp_file *file, struct data_file *d, uint64_t page, unsigned char with, uint64_t lsn)
{
    struct bp_ref ref;

    cr_assert_eq(bp_get(s, file, page, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(d, page, ref.data), "page %lu", (unsigned long)page);
    memset(d->content + page * 4096 + 1000, with, 2000);
    memcpy(ref.data, d->content + page * 4096, 4096);
    bp_put_dirty(&ref, lsn);
}

static bool on_disk(const struct data_file *d)
{
    char *got = malloc(d->pages * 4096);
    int fd = open(d->path, O_RDONLY);
    bool same =
        pread(fd, got, d->pages * 4096, 0) == (ssize_t)(d->pages * 4096) && !memcmp(got, d->content, d->pages * 4096);

    close(fd);
    free(got);
    return same;
}

/* ---- the n-th of everything ---- */

/* Changes, flushes, syncs, a close. The number of calls that reported an error. */
static unsigned work(bp_pool *pool, struct data_file *d, bool *abandoned)
{
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_written(pool, d->path, (struct bp_file_options){.direct = BP_OFF});
    struct bp_error error = {0};
    unsigned told = 0;

    for (unsigned i = 0; i < 24; i++)
        change(s, file, d, i < 12 ? i : i * 3, (unsigned char)i, i + 1); /* a run, and lone ones */
    told += bp_flush(s, file, 0, 20) != 0;
    for (unsigned i = 0; i < 6; i++)
        change(s, file, d, i * 2, (unsigned char)(100 + i), 50 + i);
    if (bp_sync(s, file)) {
        told++;
        told += bp_sync(s, file) != 0;
    }
    change(s, file, d, 40, 200, 99);
    cr_assert_eq(bp_session_close(s), 0);
    for (unsigned tries = 0; tries < 3; tries++) {
        int rc = bp_file_close(file, &error);

        if (!rc)
            return told;
        told++;
        cr_expect(strstr(error.text, "not on disk"), "%s", error.text);
    }
    *abandoned = true;
    cr_assert_eq(bp_file_abandon(file), 0);
    cr_assert_eq(bp_file_close(file, &error), 0, "%s", error.text);
    return told;
}

Test(write_faults, the_nth_of_everything)
{
    static const struct {
        enum io_op op;
        int32_t result;
        int count;
        bool heard; /* somebody must be told */
        bool fatal; /* a retry of the close does not help */
    } kinds[] = {{IO_WRITE, -EIO, 1, false, false},    {IO_WRITE, -ENOSPC, 2, false, false},
                 {IO_WRITE, -EAGAIN, 3, false, false}, {IO_WRITE, 512, 1, false, false},
                 {IO_WRITE, 0, 2, false, false},       {IO_SYNC, -EIO, 1, true, true}};
    struct data_file d = data_file_make(80 * 4096);

    EACH_INNER(ops)
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
        for (int n = 0, there = 1; n < there; n += n < 4 ? 1 : 4) {
            struct trouble t = {
                .op = kinds[k].op, .result = kinds[k].result, .from = n, .count = kinds[k].count, .path = d.path};
            bp_pool *pool = open_troubled(ops, &t, 1 << 20, 0);
            bool abandoned = false;
            unsigned told = work(pool, &d, &abandoned);

            there = t.seen;
            close_all(pool);
            cr_expect_eq(abandoned, kinds[k].fatal && n < there, "kind %u, %d of %d", k, n, there);
            cr_expect(told || !kinds[k].heard || n >= there, "kind %u, %d of %d: nobody was told", k, n, there);
            cr_expect(on_disk(&d) || abandoned, "kind %u, %d of %d, told %u", k, n, there, told);
            cr_assert(on_disk(&d) || told, "kind %u, %d of %d: lost, and nobody was told", k, n, there);
        }
    data_file_remove(&d);
}

/* ---- no room ---- */

Test(write_faults, no_room_for_a_long_time)
{
    struct data_file d = data_file_make(600 * 4096);
    struct trouble t = {.op = IO_WRITE, .result = -ENOSPC, .count = 1 << 30};
    bp_pool *pool = open_troubled(&bpi_io_uring, &t, 1 << 20, 700);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_written(pool, d.path, (struct bp_file_options){.direct = BP_TRY});
    struct bp_error error = {0};
    struct bp_ref ref;

    for (unsigned i = 0; i < 10; i++)
        change(s, file, &d, i * 2, 5, i + 1);
    cr_expect_eq(bp_flush(s, file, 0, UINT64_MAX), -ENOSPC);
    cr_expect(strstr(bp_session_error(s), "page "), "%s", bp_session_error(s));
    cr_expect_eq(stat_of(pool, "dirty_pages"), 10u);
    cr_expect_eq(bp_oldest_dirty_lsn(pool), 1u);
    for (uint64_t page = 0; page < d.pages; page++) { /* reads go on, dirty ones too */
        cr_assert_eq(bp_get(s, file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&d, page, ref.data));
        bp_put(&ref);
    }
    cr_expect_eq(bp_session_close(s), 0);
    cr_expect_eq(bp_pool_close(pool, &error), -ENOSPC);
    cr_expect(strstr(error.text, "10 pages (40960 bytes) are not on disk"), "%s", error.text);
    t.count = 0;
    close_all(pool);
    cr_expect(on_disk(&d));
    data_file_remove(&d);
}

/* ---- syncs ---- */

struct syncer {
    pthread_t thread;
    bp_pool *pool;
    bp_file *file;
    int first, second;
};

static void *sync_twice(void *arg)
{
    struct syncer *me = arg;
    bp_session *s = open_session(me->pool, NULL);

    me->first = bp_sync(s, me->file);
    me->second = bp_sync(s, me->file);
    cr_expect_eq(bp_session_close(s), 0);
    return NULL;
}

Test(write_faults, a_failed_sync_is_final)
{
    EACH_INNER(ops)
    {
        struct data_file d = data_file_make(50 * 4096);
        struct trouble t = {.op = IO_SYNC, .result = -EIO, .count = 1};
        bp_pool *pool = open_troubled(ops, &t, 1 << 20, 500);
        bp_session *s = open_session(pool, "s");
        bp_file *file = open_written(pool, d.path, (struct bp_file_options){.direct = BP_TRY});
        struct bp_error error = {0};
        struct syncer syncer[4];

        change(s, file, &d, 3, 3, 17);
        for (unsigned i = 0; i < 4; i++) {
            syncer[i] = (struct syncer){.pool = pool, .file = file};
            cr_assert_eq(pthread_create(&syncer[i].thread, NULL, sync_twice, &syncer[i]), 0);
        }
        for (unsigned i = 0; i < 4; i++) {
            pthread_join(syncer[i].thread, NULL);
            cr_expect_eq(syncer[i].first, -EIO);
            cr_expect_eq(syncer[i].second, -EIO);
        }
        cr_expect_eq(stat_of(pool, "sync_errors"), 1u);
        cr_expect_eq(bp_oldest_dirty_lsn(pool), 17u, "what may be lost keeps the log");
        change(s, file, &d, 4, 4, 18);
        cr_expect_eq(bp_sync(s, file), -EIO);
        cr_expect_eq(bp_session_close(s), 0);
        cr_expect_eq(bp_file_close(file, &error), -EIO, "%s", error.text);
        cr_expect(strstr(error.text, "bp_file_abandon"), "%s", error.text);
        cr_expect_eq(bp_file_abandon(file), 0);
        cr_expect_eq(bp_file_close(file, &error), 0, "%s", error.text);
        cr_expect_eq(bp_oldest_dirty_lsn(pool), UINT64_MAX);
        file = open_written(pool, d.path, (struct bp_file_options){.direct = BP_TRY}); /* begins anew */
        s = open_session(pool, "s");
        cr_expect_eq(bp_sync(s, file), 0);
        cr_expect_eq(bp_session_close(s), 0);
        close_all(pool);
        data_file_remove(&d);
    }
}

/* ---- no progress ---- */

static int refuse_log(void *ctx, uint64_t lsn)
{
    (void)lsn;
    return atomic_load((_Atomic bool *)ctx) ? -EROFS : 0;
}

/* All frames are dirty, and the log cannot be flushed: EBUSY that says so, and all goes on when it can. */
Test(write_faults, everything_dirty_and_no_log)
{
    struct data_file d = data_file_make(600 * 4096);
    _Atomic bool refuses = true;
    struct bp_file_options o = {.flush_log = refuse_log, .ctx = (void *)&refuses};
    struct bp_pool_options po = {.size = sizeof(po), .memory = 1 << 20, .wait_ms = 400, .dirty_trigger = 90};
    bp_session *s;
    bp_file *file;
    bp_pool *pool;
    struct bp_ref ref;
    struct bp_ref held;
    uint64_t page = 0;
    int rc = 0;

    cr_assert_eq(bp_pool_open(&po, &pool), 0);
    s = open_session(pool, "s");
    file = open_written(pool, d.path, o);
    cr_assert_eq(bp_get(s, file, 590, BP_SHARED, &held), 0); /* who holds something is not stopped before the end */

    while (!rc && page < d.pages) {
        rc = bp_create(s, file, page, 0, &ref);
        if (rc)
            break;
        memset(d.content + page * 4096, (int)page, 4096);
        memset(ref.data, (int)page, 4096);
        bp_put_dirty(&ref, ++page);
    }
    cr_expect_eq(rc, -EBUSY, "%lu pages: %d", (unsigned long)page, rc);
    cr_expect(strstr(bp_session_error(s), "the log cannot be flushed: Read-only file system"), "%s",
              bp_session_error(s));
    cr_expect_gt(stat_of(pool, "dirty_overshoot"), 0u);
    bp_put(&held);
    refuses = false;
    change(s, file, &d, 599, 1, 1000);
    cr_expect_eq(bp_sync(s, file), 0, "%s", bp_session_error(s));
    cr_expect_eq(bp_session_close(s), 0);
    close_all(pool);
    cr_expect(on_disk(&d));
    data_file_remove(&d);
}

/* Nothing can be written: those who change pages are stopped at the trigger, those who read are not. */
Test(write_faults, stopped_at_the_trigger)
{
    struct data_file d = data_file_make(600 * 4096);
    _Atomic bool refuses = true;
    struct bp_file_options o = {.flush_log = refuse_log, .ctx = (void *)&refuses};
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 150);
    bp_session *s = open_session(pool, "s");
    bp_file *file = open_written(pool, d.path, o);
    uint64_t trigger = stat_of(pool, "frames_total") * 40 / 100;
    struct bp_event event;
    struct bp_view view;
    struct bp_ref ref;
    uint64_t page = 0;
    int rc = 0;

    for (; !(rc = bp_get(s, file, page, BP_EXCLUSIVE, &ref)); page++) {
        memset(d.content + page * 4096, (int)page, 4096);
        memset(ref.data, (int)page, 4096);
        bp_put_dirty(&ref, page + 1);
    }
    cr_expect_eq(rc, -EBUSY);
    cr_expect_eq(page, trigger + 1);
    cr_expect(strstr(bp_session_error(s), "dirty_trigger") && strstr(bp_session_error(s), "log cannot be flushed"),
              "%s", bp_session_error(s));
    cr_expect_eq(bp_create(s, file, 599, 0, &ref), -EBUSY);
    cr_assert_eq(bp_read(s, file, 3, &view), 0);
    cr_expect_eq(bp_upgrade(&view, s, file, 3, &ref), -EBUSY);
    cr_expect_eq(bp_get_start(s, file, 3, BP_EXCLUSIVE, 0, NULL, &ref), BP_PENDING);
    for (unsigned tries = 0; (rc = bp_poll(s, &event, 1, 100)) == 0 && tries < 50; tries++)
        ;
    cr_expect_eq(rc, 1);
    cr_expect_eq(event.result, -EBUSY);
    cr_expect_gt(stat_of(pool, "dirty_slowed"), 0u);
    cr_expect_geq(stat_of(pool, "dirty_stopped"), 3u);
    for (uint64_t i = 0; i < d.pages; i++) {
        cr_assert_eq(bp_get(s, file, i, BP_SHARED, &ref), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&d, i, ref.data));
        bp_put(&ref);
    }
    refuses = false;
    change(s, file, &d, 599, 1, 1000);
    cr_expect_eq(bp_session_close(s), 0);
    close_all(pool);
    cr_expect(on_disk(&d));
    data_file_remove(&d);
}

/* A write that does not end: time is up for who waits, and nothing is lost. */
Test(write_faults, a_device_that_does_not_answer)
{
    EACH_INNER(ops)
    {
        struct data_file d = data_file_make(50 * 4096);
        struct fault_plan plan = fault_plan_none(ops);
        struct bp_error error = {0};
        bp_pool *pool;
        bp_session *s;
        bp_file *file;

        fault_io_plan(&plan);
        pool = open_with(&fault_io, 1 << 20, 60);
        s = open_session(pool, "s");
        file = open_written(pool, d.path, (struct bp_file_options){.direct = BP_TRY});
        change(s, file, &d, 3, 3, 17);
        plan.hold_from = 3 * 4096;
        plan.hold_to = 4 * 4096;
        fault_io_plan(&plan);
        cr_expect_eq(bp_flush(s, file, 0, UINT64_MAX), -ETIMEDOUT);
        change(s, file, &d, 3, 4, 18);
        cr_expect_eq(bp_sync(s, file), -ETIMEDOUT);
        cr_expect_eq(bp_file_truncate(s, file, 0), -ETIMEDOUT);
        cr_expect_eq(bp_session_close(s), 0);
        cr_expect_eq(bp_file_close(file, &error), -ETIMEDOUT, "%s", error.text);
        cr_expect_eq(bp_file_abandon(file), 0);
        cr_expect_eq(bp_file_close(file, &error), -ETIMEDOUT, "its memory is the device's: %s", error.text);
        fault_io_release();
        cr_expect_eq(bp_file_close(file, &error), 0, "%s", error.text);
        close_all(pool);
        data_file_remove(&d);
    }
}

/* ---- the plug ---- */

#define PLUG_PAGES 96u

/* A page in 8 sectors; each says which page, which generation, and which LSN. */
struct sector {
    uint64_t page, generation, lsn;
    char rest[488];
};

struct plug {
    uint64_t synced[PLUG_PAGES], newest[PLUG_PAGES];
    _Atomic uint64_t log;
};

static int plug_log(void *ctx, uint64_t lsn)
{
    struct plug *p = ctx;

    if (lsn > p->log)
        p->log = lsn;
    return 0;
}

/* What the file holds afterwards: no sector older than the last sync, or of a page whose log is not there. */
static void look_at(const struct plug *p, const char *path, uint64_t log)
{
    struct sector *all = malloc(PLUG_PAGES * 4096);
    int fd = open(path, O_RDONLY);

    cr_assert_eq(pread(fd, all, PLUG_PAGES * 4096, 0), (ssize_t)(PLUG_PAGES * 4096));
    for (uint64_t i = 0; i < PLUG_PAGES * 8; i++) {
        uint64_t page = i / 8;

        cr_assert(all[i].page == page || (!all[i].page && !p->synced[page]), "sector %lu is of page %lu", i,
                  all[i].page);
        cr_assert_geq(all[i].generation, p->synced[page], "page %lu is older than its sync", page);
        cr_assert_leq(all[i].generation, p->newest[page]);
        cr_assert_leq(all[i].lsn, log, "page %lu is on disk, and its log is not", page);
    }
    close(fd);
    free(all);
}

Test(write_faults, the_plug_is_pulled)
{
    struct data_file d = data_file_make(PLUG_PAGES * 4096);
    struct plug p = {.log = 0};
    struct bp_file_options o = {.flush_log = plug_log, .ctx = &p, .direct = BP_OFF};
    char after[300];
    uint64_t lsn = 0;
    uint64_t seed = 5;
    bp_pool *pool;
    bp_session *s;
    bp_file *file;

    cr_assert_eq(truncate(d.path, 0), 0);
    cr_assert_eq(truncate(d.path, PLUG_PAGES * 4096), 0);
    snprintf(after, sizeof(after), "%s.after", d.path);
    power_io_watch(d.path, PLUG_PAGES * 4096);
    pool = open_with(&power_io, 1 << 20, 0);
    s = open_session(pool, "s");
    file = open_written(pool, d.path, o);
    for (unsigned round = 0; round < 900; round++) {
        struct bp_ref ref;
        uint64_t page;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        page = (seed >> 33) % PLUG_PAGES;
        cr_assert_eq(bp_get(s, file, page, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
        p.newest[page]++;
        lsn++;
        for (unsigned i = 0; i < 8; i++) {
            struct sector *sector = (struct sector *)ref.data + i;

            *sector = (struct sector){.page = page, .generation = p.newest[page], .lsn = lsn};
        }
        bp_put_dirty(&ref, lsn);
        if (round % 7 == 3)
            cr_assert_eq(bp_flush(s, file, page & ~7ull, 16), 0);
        if (round % 31 == 5) {
            cr_assert_eq(bp_sync(s, file), 0);
            memcpy(p.synced, p.newest, sizeof(p.synced));
        }
        if (round % 5 == 0) {
            uint64_t log;

            power_io_pull(after, seed);
            log = p.log; /* afterwards: what the device had then was flushed for before */
            look_at(&p, after, log);
        }
    }
    cr_expect_gt(power_io_writes(), 150u);
    cr_expect_geq(power_io_syncs(), 29u);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    power_io_forget();
    unlink(after);
    data_file_remove(&d);
}
