/* SPDX-License-Identifier: MIT */
/*
 * Extents that move to other frames (R19, T16, T17): by themselves, and while others read, want, scan or evict them,
 * or close their file.
 */
#include <errno.h>

#include "tests/unit/scene.h"

/* Where a page is now, and its head's word. */
static uint32_t head_of(bp_pool *pool, bp_file *file, uint64_t page, uint64_t *seen)
{
    index_entry e = bpi_index_load(&file->index, page);

    cr_assert(entry_is_frame(e), "page %lu is not there", (unsigned long)page);
    return frame_head(pool->frame, entry_number(e), seen);
}

/* Move the extent of a page to frames that are free; what bpi_extent_move answered. */
static int move_page(bp_session *s, bp_file *file, uint64_t page, uint32_t *from, uint32_t *to)
{
    bp_pool *pool = s->pool;
    uint64_t seen;
    int rc;

    *from = head_of(pool, file, page, &seen);
    cr_assert_eq(bpi_frames_alloc(pool->frames, 0, frame_order(seen), to), 0);
    slim_lock_take(&s->magazine_lock);
    rc = bpi_extent_move(s, *from, seen, *to);
    slim_lock_give(&s->magazine_lock);
    bpi_frame_give(pool, rc ? *to : *from, frame_order(seen));
    return rc;
}

static void check_moved(bp_session *s, bp_file *file, const struct data_file *data, uint64_t page)
{
    bp_pool *pool = s->pool;
    struct bp_hint hint = {0};
    struct bp_view before, after;
    struct bp_ref ref;
    uint32_t from, to;
    uint64_t was, is;

    cr_assert_eq(bp_read_hinted(s, file, page, &hint, &before), 0, "%s", bp_session_error(s));
    head_of(pool, file, page, &was);
    cr_assert_eq(move_page(s, file, page, &from, &to), 0);
    cr_assert_not(bp_view_valid(&before), "the old frame is somebody else's by now");
    cr_assert_eq(head_of(pool, file, page, &is), to);
    cr_assert_eq(is & (FRAME_HEAT | FRAME_ORDER), was & (FRAME_HEAT | FRAME_ORDER));
    cr_assert_eq(bp_read_hinted(s, file, page, &hint, &after), 0, "%s", bp_session_error(s));
    cr_assert(bp_view_valid(&after));
    cr_assert_eq((const char *)after.data,
                 pool->base + ((size_t)(to + (page & extent_mask(frame_order(is)))) << BP_PAGE_SHIFT));
    cr_assert(data_page_ok(data, page, after.data));
    cr_assert_eq(bp_get(s, file, page, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
    bp_put(&ref);
    cr_assert(atomic_load(&pool->cold[to].queued), "in none of the queues of replacement");
}

/* Every order; then all of it goes by pressure, which finds what has moved. */
Test(move, of_every_order, .timeout = 60)
{
    static const unsigned orders[] = {0, 1, 3, 6, 9};

    for (unsigned i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        struct data_file data = data_file_make(12 << 20);
        bp_pool *pool = open_pool(40 << 20, BP_IO_TRY, 10000);
        bp_session *s = open_session(pool, "mover");
        bp_file *file = open_file(pool, data.path, 4096u << orders[i]);
        uint64_t reads;

        for (uint64_t page = 0; page < data.pages; page += data.pages / 6)
            check_moved(s, file, &data, page + 1);
        check_moved(s, file, &data, 1); /* again */
        reads = stat_of(pool, "reads");
        for (uint64_t page = 0; page < data.pages; page += data.pages / 6)
            check_moved(s, file, &data, page + 1);
        cr_assert_eq(stat_of(pool, "reads"), reads, "nothing had to be read again");
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
        data_file_remove(&data);
    }
}

/* What somebody has in any way stays where it is, and nobody notices. */
Test(move, not_what_is_in_use)
{
    struct scene c = scene_open();
    struct bp_piece piece[8];
    struct bp_view view;
    struct bp_ref ref;
    uint32_t from, to;
    unsigned got;
    bp_scan *scan;

    for (unsigned mode = BP_SHARED; mode <= BP_EXCLUSIVE; mode++) {
        cr_assert_eq(bp_get(c.s, c.file, 7, (enum bp_mode)mode, &ref), 0);
        cr_assert_eq(move_page(c.s, c.file, 7, &from, &to), -EAGAIN);
        cr_assert(data_page_ok(&c.data, 7, ref.data));
        bp_put(&ref);
    }
    for (uint64_t page = 0; page < 64; page++)
        touch(&c, page);
    cr_assert_eq(bp_scan_open(c.s, c.file, 0, 63, 0, &scan), 0);
    cr_assert_eq(bp_scan_next(scan, piece, 8, &got), 0);
    cr_assert_eq(bp_read(c.s, c.file, 7, &view), 0);
    cr_assert_eq(move_page(c.s, c.file, 7, &from, &to), -EAGAIN, "its leaf is held");
    cr_assert(bp_view_valid(&view), "nothing has changed");
    cr_assert(!(frame_load(&c.pool->frame[to]) & FRAME_BOUND));
    bp_scan_close(scan);
    cr_assert_eq(move_page(c.s, c.file, 7, &from, &to), 0);
    touch(&c, 7);
    scene_close(&c);
}

struct mover {
    struct scene *c;
    uint64_t page;
    int result;
    pthread_t thread;
};

static void *move_it(void *arg)
{
    struct mover *m = arg;
    bp_session *s = open_session(m->c->pool, "mover");
    uint32_t from, to;

    m->result = move_page(s, m->c->file, m->page, &from, &to);
    if (bp_session_close(s))
        abort();
    return NULL;
}

static const char *const places[] = {"move:latched", "move:published", "move:replaced"};
#define PLACES (sizeof(places) / sizeof(*places))

/* R2, R19: wanted, in every way, while it moves: everybody gets the page from the one frame that is left. */
Test(move, wanted_meanwhile)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct scene c = scene_open();
        struct mover m = {.c = &c, .page = 5};
        struct actor shared, exclusive, hinted;
        unsigned count;

        touch(&c, 5);
        set_gate(places[i]);
        pthread_create(&m.thread, NULL, move_it, &m);
        wait_until_stopped();
        start(&c, &shared, 5, BP_SHARED);
        start(&c, &exclusive, 5, BP_EXCLUSIVE);
        hinted = (struct actor){.pool = c.pool, .file = c.file, .data = &c.data, .page = 5, .mode = BP_SHARED};
        hinted.result = 99;
        hinted.hint.word = frame_bound_to(&c, 5, &count) + 1; /* the new one, as soon as there is one */
        cr_assert_eq(count, i == 0 ? 1 : 2);
        pthread_create(&hinted.thread, NULL, act, &hinted);
        usleep(30000);
        cr_assert(shared.result == 99 && exclusive.result == 99 && hinted.result == 99, "nobody gets in between");
        let_go();
        finish(&shared);
        finish(&exclusive);
        finish(&hinted);
        pthread_join(m.thread, NULL);
        cr_assert_eq(m.result, 0);
        frame_bound_to(&c, 5, &count);
        cr_assert_eq(count, 1, "the page has %u frames", count);
        cr_assert_eq(stat_of(c.pool, "reads"), 1);
        scene_close(&c);
    }
}

/* Pressure while it moves: evictors leave both frames alone, and find the new one afterwards. */
Test(move, evictors_meanwhile)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct scene c = scene_open();
        struct mover m = {.c = &c, .page = 5};
        unsigned count;

        touch(&c, 5);
        set_gate(places[i]);
        pthread_create(&m.thread, NULL, move_it, &m);
        wait_until_stopped();
        for (uint64_t page = 20; page < 600; page++)
            touch(&c, page);
        frame_bound_to(&c, 5, &count);
        cr_assert_eq(count, i == 0 ? 1 : 2, "somebody took a frame that is latched");
        let_go();
        pthread_join(m.thread, NULL);
        cr_assert_eq(m.result, 0);
        touch(&c, 5);
        for (unsigned round = 0; round < 6; round++)
            for (uint64_t page = 20; page < 600; page++)
                touch(&c, page);
        cr_assert_not(entry_is_frame(bpi_index_load(&c.file->index, 5)), "what has moved can still be evicted");
        scene_close(&c);
    }
}

/* R15: a scan takes hold of the leaf while the page moves. Either it is led to the new frame, or the move is off. */
Test(move, a_scan_meanwhile)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct scene c = scene_open();
        struct mover m = {.c = &c, .page = 5};
        struct bp_piece piece[64];
        uint64_t next = 0;
        unsigned got;
        bp_scan *scan;

        for (uint64_t page = 0; page < 64; page++)
            touch(&c, page);
        set_gate(places[i]);
        pthread_create(&m.thread, NULL, move_it, &m);
        wait_until_stopped();
        cr_assert_eq(bp_scan_open(c.s, c.file, 0, 4, 0, &scan), 0);
        cr_assert_eq(bp_scan_next(scan, piece, 64, &got), 0);
        cr_assert_gt(got, 0);
        let_go();
        pthread_join(m.thread, NULL);
        cr_assert_eq(m.result, i < 2 ? -EAGAIN : 0, "%s: the leaf is held before the index is asked", places[i]);
        for (unsigned k = 0; k < got; k++)
            for (uint64_t at = 0; at < piece[k].bytes / 4096; at++, next++)
                cr_assert(data_page_ok(&c.data, next, (const char *)piece[k].data + at * 4096));
        cr_assert_eq(next, 5);
        bp_scan_close(scan);
        touch(&c, 5);
        scene_close(&c);
    }
}

static void *close_it(void *arg)
{
    struct scene *c = arg;

    return (void *)(intptr_t)bp_file_close(c->file, NULL);
}

/* Its file is closed: not before the move is over, and then all of it is gone. */
Test(move, closed_meanwhile)
{
    for (unsigned i = 0; i < PLACES; i++) {
        struct scene c = scene_open();
        struct mover m = {.c = &c, .page = 5};
        pthread_t thread;
        void *rc;

        touch(&c, 5);
        set_gate(places[i]);
        pthread_create(&m.thread, NULL, move_it, &m);
        wait_until_stopped();
        pthread_create(&thread, NULL, close_it, &c);
        usleep(10000);
        let_go();
        pthread_join(m.thread, NULL);
        pthread_join(thread, &rc);
        cr_assert_eq((intptr_t)rc, 0);
        for (uint32_t f = 0; f < c.pool->frames_total; f++)
            cr_assert(!(frame_load(&c.pool->frame[f]) & FRAME_BOUND));
        scene_close(&c);
    }
}

/* ---- blocks from memory in pieces ---- */

#define PART 10u /* one page in so many is of the file that goes */

/* A pool full of single pages, of which every tenth goes: nothing but pieces is free. */
static bp_pool *in_pieces(struct data_file *data, bp_session **s, bp_file **stays)
{
    bp_pool *pool = open_pool(40 << 20, BP_IO_TRY, 10000);
    struct data_file goes_data = data_file_make(data->bytes);
    bp_file *goes = open_file(pool, goes_data.path, 0);
    struct bp_view view;

    *s = open_session(pool, "compacter");
    *stays = open_file(pool, data->path, 0);
    for (uint64_t i = 0; i < pool->frames_total; i++)
        cr_assert_eq(bp_read(*s, i % PART ? *stays : goes, i, &view), 0, "%s", bp_session_error(*s));
    cr_assert_eq(stat_of(pool, "evictions"), 0);
    cr_assert_eq(bp_file_close(goes, NULL), 0);
    data_file_remove(&goes_data);
    return pool;
}

/* An extent of the largest size fits by moving; nobody is evicted for it. */
Test(move, makes_room_for_a_large_extent, .timeout = 60)
{
    struct data_file data = data_file_make(40 << 20);
    struct data_file large = data_file_make(4 << 20);
    bp_session *s;
    bp_file *stays;
    bp_pool *pool = in_pieces(&data, &s, &stays);
    bp_file *file = open_file(pool, large.path, 2 << 20);
    struct bp_view view;
    uint64_t reads = stat_of(pool, "reads");

    cr_assert_eq(bp_read(s, file, 700, &view), 0, "%s", bp_session_error(s));
    cr_assert(data_page_ok(&large, 700, view.data));
    cr_assert_eq(bp_file_resident(file), 2 << 20, "one extent of 2 MiB");
    cr_assert_eq(stat_of(pool, "evictions"), 0);
    cr_assert_gt(stat_of(pool, "frames_moved"), 0);
    cr_assert_leq(stat_of(pool, "frames_moved"), 512);
    for (uint64_t i = 0; i < pool->frames_total; i++) {
        if (i % PART == 0)
            continue;
        cr_assert_eq(bp_read(s, stays, i, &view), 0, "%s", bp_session_error(s));
        cr_assert(data_page_ok(&data, i, view.data));
    }
    cr_assert_eq(stat_of(pool, "reads"), reads + 1, "all is still there");
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
    data_file_remove(&large);
}
