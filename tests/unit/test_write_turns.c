/* SPDX-License-Identifier: MIT */
/*
 * Forced interleavings of writing: the thread that writes is stopped at a named place, and meanwhile somebody does to
 * the page what would hurt most.
 */
#define BP_NO_INLINE
#include <errno.h>
#include <fcntl.h>

#include "tests/unit/scene.h"

static struct scene written_scene(struct bp_file_options o)
{
    struct scene c = {.data = data_file_make(600 * 4096)};

    struct bp_pool_options po = {
        .size = sizeof(po), .memory = 1 << 20, .wait_ms = 5000, .dirty_target = 10, .dirty_trigger = 90};

    cr_assert_eq(bp_pool_open(&po, &c.pool), 0);
    c.s = open_session(c.pool, "director");
    o.size = sizeof(o);
    o.write = true;
    cr_assert_eq(bp_file_open(c.pool, c.data.path, &o, &c.file), 0);
    return c;
}

static void change(struct scene *c, uint64_t page, int with, uint64_t lsn)
{
    struct bp_ref ref;

    cr_assert_eq(bp_get(c->s, c->file, page, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(c->s));
    memset(ref.data, with, 4096);
    memset(c->data.content + page * 4096, with, 4096);
    bp_put_dirty(&ref, lsn);
}

/* The first byte of a page on disk. */
static int disk_byte(struct scene *c, uint64_t page)
{
    unsigned char byte = 0;
    int fd = open(c->data.path, O_RDONLY);

    cr_assert_eq(pread(fd, &byte, 1, (off_t)(page * 4096)), 1);
    close(fd);
    return byte;
}

/* Somebody who flushes. */
struct flusher {
    struct scene *c;
    int result;
    pthread_t thread;
};

static void *flush_all(void *arg)
{
    struct flusher *me = arg;
    bp_session *s = open_session(me->c->pool, "flusher");

    me->result = bp_flush(s, me->c->file, 0, UINT64_MAX);
    cr_assert_eq(bp_session_close(s), 0);
    return NULL;
}

static void start_flush(struct scene *c, struct flusher *f, const char *place)
{
    *f = (struct flusher){.c = c, .result = 99};
    set_gate(place);
    cr_assert_eq(pthread_create(&f->thread, NULL, flush_all, f), 0);
    wait_until_stopped();
}

static void end_flush(struct flusher *f)
{
    let_go();
    pthread_join(f->thread, NULL);
    cr_assert_eq(f->result, 0, "%s", bp_strerror(f->result));
}

/* R26: changed after it was copied, and again before the answer is looked at: what is on disk is the old one, and it is dirty. */
Test(write_turns, dirtied_while_written)
{
    static const char *const places[] = {"write:copied", "write:submit", "write:answer"};

    for (unsigned i = 0; i < 3; i++) {
        struct scene c = written_scene((struct bp_file_options){.size = 0});
        struct flusher f;

        change(&c, 5, 1, 10);
        start_flush(&c, &f, places[i]);
        change(&c, 5, 2, 20);
        cr_expect_eq(bp_oldest_dirty_lsn(c.pool), 10u, "the first one is not on disk yet");
        end_flush(&f);
        cr_expect_eq(disk_byte(&c, 5), 1, "%s", places[i]);
        cr_expect_eq(stat_of(c.pool, "dirty_pages"), 1u, "%s", places[i]);
        cr_expect_eq(stat_of(c.pool, "write_stale"), 1u);
        cr_expect_eq(bp_oldest_dirty_lsn(c.pool), 10u, "and not synced");
        cr_assert_eq(bp_sync(c.s, c.file), 0);
        cr_expect_eq(disk_byte(&c, 5), 2);
        cr_expect_eq(bp_oldest_dirty_lsn(c.pool), UINT64_MAX);
        scene_close(&c);
    }
}

/* A page that is changed all the time does not keep the log: what a write has taken with it and a sync made durable is over. */
Test(write_turns, always_dirty_but_never_old)
{
    struct scene c = written_scene((struct bp_file_options){.size = 0});

    for (uint64_t lsn = 10; lsn < 100; lsn += 10) {
        struct flusher f;

        change(&c, 5, (int)lsn, lsn);
        start_flush(&c, &f, "write:copied");
        change(&c, 5, (int)lsn + 1, lsn + 1);
        end_flush(&f);
        change(&c, 6, 1, lsn + 2); /* so that there is something to be synced beside it */
        cr_expect_eq(stat_of(c.pool, "dirty_pages"), 2u);
        cr_expect_eq(bp_file_oldest_dirty_lsn(c.file), lsn > 10 ? lsn - 7 : lsn, "the last of the round before");
        cr_assert_eq(bp_sync(c.s, c.file), 0);
        change(&c, 5, (int)lsn + 3, lsn + 3);
        cr_expect_eq(bp_file_oldest_dirty_lsn(c.file), lsn + 3);
    }
    scene_close(&c);
}

/* R28: discarded, made anew and changed while the old one is being written: the new one is what stays. */
Test(write_turns, discarded_while_written)
{
    static const char *const places[] = {"write:copied", "write:submit", "write:answer"};

    for (unsigned i = 0; i < 3; i++) {
        struct scene c = written_scene((struct bp_file_options){.size = 0});
        struct flusher f;
        struct bp_ref ref;

        change(&c, 5, 1, 10);
        start_flush(&c, &f, places[i]);
        cr_assert_eq(bp_discard(c.s, c.file, 5, 1), 0);
        cr_expect_eq(stat_of(c.pool, "dirty_pages"), 0u);
        cr_assert_eq(bp_create(c.s, c.file, 5, 0, &ref), 0);
        memset(ref.data, 2, 4096);
        memset(c.data.content + 5 * 4096, 2, 4096);
        bp_put_dirty(&ref, 20);
        end_flush(&f);
        cr_assert_eq(bp_sync(c.s, c.file), 0);
        cr_expect_eq(disk_byte(&c, 5), 2, "%s", places[i]);
        cr_expect_eq(bp_oldest_dirty_lsn(c.pool), UINT64_MAX);
        scene_close(&c);
    }
}

/* The file is cut off while a page behind its new end is being written: it does not grow again. */
struct cutter {
    struct scene *c;
    int result;
    pthread_t thread;
};

static void *cut(void *arg)
{
    struct cutter *me = arg;
    bp_session *s = open_session(me->c->pool, "cutter");

    me->result = bp_file_truncate(s, me->c->file, 100 * 4096);
    cr_assert_eq(bp_session_close(s), 0);
    return NULL;
}

Test(write_turns, cut_off_while_written)
{
    struct scene c = written_scene((struct bp_file_options){.size = 0});
    struct cutter k = {.c = &c, .result = 99};
    struct flusher f;
    uint64_t bytes;

    change(&c, 5, 1, 10);
    change(&c, 500, 1, 11);
    start_flush(&c, &f, "write:submit");
    cr_assert_eq(pthread_create(&k.thread, NULL, cut, &k), 0);
    usleep(30000);
    end_flush(&f);
    pthread_join(k.thread, NULL);
    cr_assert_eq(k.result, 0);
    cr_assert_eq(bp_sync(c.s, c.file), 0);
    cr_assert_eq(bp_file_size(c.file, &bytes), 0);
    cr_expect_eq(bytes, 100u * 4096);
    cr_expect_eq(disk_byte(&c, 5), 1);
    scene_close(&c);
}

/* Wanted exclusively while the writer has it pinned, to copy it or to make it clean: it is waited for, and had. */
Test(write_turns, wanted_while_the_writer_holds_it)
{
    static const char *const places[] = {"write:held", "write:cleaning"};

    for (unsigned i = 0; i < 2; i++) {
        struct scene c = written_scene((struct bp_file_options){.size = 0});
        struct flusher f;
        struct actor a;
        struct bp_view view;

        change(&c, 5, 1, 10);
        start_flush(&c, &f, places[i]);
        start(&c, &a, 5, BP_EXCLUSIVE);
        usleep(20000);
        cr_expect_eq(a.result, 99);
        cr_assert_eq(bp_read(c.s, c.file, 5, &view), 0, "readers are not held up");
        cr_expect_eq(*(const char *)view.data, 1);
        cr_expect(bp_view_valid(&view));
        end_flush(&f);
        finish(&a);
        cr_expect_eq(disk_byte(&c, 5), 1);
        scene_close(&c);
    }
}

/* R27: all frames but some are dirty, and the writer stands still: others get what is clean, and no dirty one goes. */
Test(write_turns, evicting_around_what_is_dirty)
{
    struct scene c = written_scene((struct bp_file_options){.size = 0});
    struct flusher f;
    uint64_t dirty = c.pool->frames_total / 2;

    change(&c, 0, 200, 1);
    start_flush(&c, &f, "write:copied");
    for (uint64_t page = 1; page < dirty; page++)
        change(&c, page, (int)page % 100, page + 1);
    for (unsigned round = 0; round < 3; round++)
        for (uint64_t page = 0; page < c.data.pages; page++)
            touch(&c, page);
    cr_expect_eq(stat_of(c.pool, "dirty_pages"), dirty);
    cr_expect_eq(disk_byte(&c, 1) == 1 && disk_byte(&c, 2) == 2, 0);
    end_flush(&f);
    cr_assert_eq(bp_sync(c.s, c.file), 0);
    cr_expect_eq(disk_byte(&c, 1), 1);
    scene_close(&c);
}

/* Large extents are written where they lie: readers go on, who wants it exclusively waits, and nothing is torn. */
Test(write_turns, a_large_extent_in_place)
{
    struct scene c = written_scene((struct bp_file_options){.size = 0});
    struct flusher f;
    struct actor a;
    struct bp_ref ref;

    cr_assert_eq(bp_create(c.s, c.file, 16, 3, &ref), 0, "%s", bp_session_error(c.s));
    memset(ref.data, 7, 8 * 4096);
    memset(c.data.content + 16 * 4096, 7, 8 * 4096);
    bp_put_dirty(&ref, 1);
    start_flush(&c, &f, "write:submit");
    start(&c, &a, 17, BP_EXCLUSIVE);
    finish(&a); /* copied: a sixteenth of this pool is below what is written in place */
    touch(&c, 18);
    end_flush(&f);
    cr_expect_eq(disk_byte(&c, 23), 7);
    scene_close(&c);
}
