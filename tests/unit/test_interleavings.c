/* SPDX-License-Identifier: MIT */
/*
 * Forced interleavings: one thread is stopped at a named place inside the library while another does what would hurt
 * most, and then goes on. The places are the sync points in bufpool/.
 */
#include <errno.h>

#include "tests/fault/fault_io.h"
#include "tests/unit/scene.h"

/* R2: a second thread enters the page between the first one's publication and its insert. */
Test(interleavings, two_faults_of_one_page)
{
    struct scene c = scene_open();
    struct actor a;
    unsigned count;

    set_gate("fault:published");
    start(&c, &a, 5, BP_SHARED);
    wait_until_stopped();
    touch(&c, 5);
    let_go();
    finish(&a);
    frame_bound_to(&c, 5, &count);
    cr_assert_eq(count, 1, "the page has %u frames", count);
    cr_assert_eq(stat_of(c.pool, "reads"), 1);
    scene_close(&c);
}

/* R1, R4: a third one comes by a hint to the frame that is about to be abandoned, and joins it. */
Test(interleavings, joining_a_frame_that_loses)
{
    struct scene c = scene_open();
    struct actor a, b;
    unsigned count;

    set_gate("fault:published");
    start(&c, &a, 5, BP_SHARED);
    wait_until_stopped();
    b = (struct actor){.pool = c.pool, .file = c.file, .data = &c.data, .page = 5, .mode = BP_SHARED, .result = 99};
    b.hint.word = frame_bound_to(&c, 5, &count) + 1;
    cr_assert_eq(count, 1);
    pthread_create(&b.thread, NULL, act, &b);
    touch(&c, 5);
    usleep(20000);
    let_go();
    finish(&a);
    finish(&b);
    frame_bound_to(&c, 5, &count);
    cr_assert_eq(count, 1);
    scene_close(&c);
}

/* A page is wanted while its evictor stands at each of its steps. */
static void want_while_evicted(const char *place)
{
    struct scene c = scene_open();
    struct actor evictor, reader;
    struct bp_view view;
    uint64_t victim = UINT64_MAX;
    unsigned count;

    for (uint64_t page = 0; page < c.pool->frames_total; page++)
        touch(&c, page);
    cr_assert_eq(bp_read(c.s, c.file, 0, &view), 0);
    set_gate(place);
    start(&c, &evictor, 590, BP_SHARED);
    wait_until_stopped();
    for (uint32_t f = 0; f < c.pool->frames_total && victim == UINT64_MAX; f++) {
        uint64_t seen = frame_load(&c.pool->frame[f]);

        if ((seen & (FRAME_BOUND | FRAME_EXCL | FRAME_READING)) == (FRAME_BOUND | FRAME_EXCL))
            victim = frame_id(&c.pool->frame[f]) & FRAME_ID_PAGE;
    }
    cr_assert_neq(victim, UINT64_MAX, "somebody is being evicted");
    start(&c, &reader, victim, BP_EXCLUSIVE);
    usleep(30000);
    let_go();
    finish(&evictor);
    finish(&reader);
    touch(&c, victim);
    frame_bound_to(&c, victim, &count);
    cr_assert_eq(count, 1, "page %lu has %u frames", (unsigned long)victim, count);
    scene_close(&c);
}

Test(interleavings, wanted_while_latched_by_its_evictor)
{
    want_while_evicted("evict:claimed");
}

Test(interleavings, wanted_when_out_of_the_index_and_still_bound)
{
    want_while_evicted("evict:erased");
}

/* R6: the reaper stands still between taking the completion and acting on it; others wait, and are woken when it goes
 * on. */
static void wait_behind(const char *place)
{
    struct scene c = scene_open();
    struct actor a, b, d;

    set_gate(place);
    start(&c, &a, 9, BP_SHARED);
    wait_until_stopped();
    start(&c, &b, 9, BP_SHARED);
    start(&c, &d, 9, BP_EXCLUSIVE);
    for (uint64_t page = 100; page < 120; page++)
        touch(&c, page); /* the rest of the world goes on */
    usleep(30000);
    cr_assert_eq(b.result, 99, "nobody sees the page before it is complete");
    let_go();
    finish(&a);
    finish(&b);
    finish(&d);
    cr_assert_eq(stat_of(c.pool, "reads"), 21);
    scene_close(&c);
}

Test(interleavings, waiting_behind_a_slow_reaper)
{
    wait_behind("fault:complete");
}

Test(interleavings, waiting_for_a_read_that_is_not_queued_yet)
{
    wait_behind("fault:queue");
}

#define BATCH 20u

struct batch {
    struct scene *c;
    int result;
    unsigned right;
    pthread_t thread;
};

static void *get_batch(void *arg)
{
    struct batch *b = arg;
    bp_session *s = open_session(b->c->pool, "batch");
    struct bp_ref ref[BATCH];
    uint64_t page[BATCH];

    for (unsigned i = 0; i < BATCH; i++)
        page[i] = i;
    b->result = bp_get_many(s, b->c->file, page, BATCH, BP_SHARED, ref);
    if (!b->result) {
        for (unsigned i = 0; i < BATCH; i++)
            b->right += data_page_ok(&b->c->data, i, ref[i].data);
        bp_put_many(ref, BATCH);
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

/* The first group of a batch is entered, none of it is in the channel's queue; what is wanted of it, and of the rest.
 */
Test(interleavings, waiting_for_a_group_that_is_not_queued_yet)
{
    struct scene c = scene_open();
    struct batch batch = {.c = &c, .result = 99};
    struct actor first, last, latched, later;

    set_gate("fault:queue");
    pthread_create(&batch.thread, NULL, get_batch, &batch);
    wait_until_stopped();
    start(&c, &first, 0, BP_SHARED);
    start(&c, &last, GROUP_READS - 1, BP_SHARED);
    start(&c, &latched, 2, BP_EXCLUSIVE);
    start(&c, &later, GROUP_READS + 2, BP_SHARED);
    finish(&later);
    for (uint64_t page = 100; page < 120; page++)
        touch(&c, page);
    usleep(30000);
    cr_assert_eq(first.result, 99, "nobody sees a page before it is complete");
    cr_assert_eq(last.result, 99, "nobody sees a page before it is complete");
    let_go();
    finish(&first);
    finish(&last);
    finish(&latched);
    pthread_join(batch.thread, NULL);
    cr_assert_eq(batch.result, 0, "%s", bp_strerror(batch.result));
    cr_assert_eq(batch.right, BATCH);
    cr_assert_eq(stat_of(c.pool, "reads"), BATCH + 20);
    scene_close(&c);
}

/* The page is entered but its read not queued; the file's other pages push hard for its frame. */
Test(interleavings, pressure_on_a_frame_that_is_being_entered)
{
    struct scene c = scene_open();
    struct actor a;

    set_gate("fault:entered");
    start(&c, &a, 9, BP_EXCLUSIVE);
    wait_until_stopped();
    for (uint64_t page = 20; page < 600; page++)
        touch(&c, page);
    let_go();
    finish(&a);
    scene_close(&c);
}

static void *close_file(void *arg)
{
    struct scene *c = arg;

    return (void *)(intptr_t)bp_file_close(c->file, NULL);
}

/* The same file is opened while the last one that had it open is closing it: it is not closed under the newcomer. */
Test(interleavings, opened_while_it_closes)
{
    struct scene c = scene_open();
    pthread_t thread;
    bp_file *again;
    void *rc;

    touch(&c, 5);
    set_gate("file:closing");
    pthread_create(&thread, NULL, close_file, &c);
    wait_until_stopped();
    again = open_file(c.pool, c.data.path, 0);
    let_go();
    pthread_join(thread, &rc);
    cr_assert_eq((intptr_t)rc, 0);
    cr_assert_eq(stat_of(c.pool, "files"), 1);
    c.file = again;
    for (uint64_t page = 0; page < 300; page += 7)
        touch(&c, page);
    cr_assert_eq(bp_file_close(again, NULL), 0);
    scene_close(&c);
}

/* ---- runs ---- */

#define RUN_PAGES 40u

static void *copy_run(void *arg)
{
    struct actor *a = arg;
    bp_session *s = open_session(a->pool, "copier");
    static char to[RUN_PAGES * 4096];
    size_t done;

    a->result = bp_copy_out(s, a->file, a->page * 4096, sizeof(to), to, &done);
    a->right = done == sizeof(to) && !memcmp(to, a->data->content + a->page * 4096, sizeof(to));
    if (bp_session_close(s))
        abort();
    return NULL;
}

/* R15: a leaf that is held keeps its pages from those who evict, and from those who would write to them. */
Test(interleavings, what_is_in_a_run_stays_and_is_not_latched)
{
    struct data_file data = data_file_make(600 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 100);
    bp_session *s = open_session(pool, "director");
    bp_file *file = open_file(pool, data.path, 0);
    struct actor a = {.pool = pool, .file = file, .data = &data, .page = 8};
    struct bp_ref ref;
    struct bp_view view;
    uint64_t waited;

    for (uint64_t page = 0; page < 64; page++)
        cr_assert_eq(bp_read(s, file, page, &view), 0);
    set_gate("copy:held");
    pthread_create(&a.thread, NULL, copy_run, &a);
    wait_until_stopped();
    /* latched for writing: not while it may be read, and then an error that says why */
    waited = bpi_now_ns();
    cr_assert_eq(bp_get(s, file, 10, BP_EXCLUSIVE, &ref), -EBUSY);
    cr_assert_geq(bpi_now_ns() - waited, 90 * 1000000u, "until the deadline");
    cr_assert_not_null(strstr(bp_session_error(s), "runs"), "%s", bp_session_error(s));
    cr_assert_eq(bp_read(s, file, 10, &view), 0);
    cr_assert(bp_view_valid(&view), "nobody has it latched, and readers go on");
    cr_assert_eq(bp_get(s, file, 70, BP_EXCLUSIVE, &ref), 0, "another leaf's is free: %s", bp_session_error(s));
    bp_put(&ref);
    /* evicted: not while it may be read, however much passes through the pool */
    for (unsigned round = 0; round < 4; round++)
        for (uint64_t page = 64; page < 600; page++)
            cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
    for (uint64_t page = 8; page < 8 + RUN_PAGES; page++)
        cr_assert(entry_is_frame(bpi_index_load(&file->index, page)), "page %lu was evicted", (unsigned long)page);
    let_go();
    pthread_join(a.thread, NULL);
    atomic_store(&bpi_sync_hook, NULL);
    cr_assert_eq(a.result, 0);
    cr_assert(a.right, "the copy is wrong");
    cr_assert_eq(bp_get(s, file, 10, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(s));
    bp_put(&ref);
    cr_assert_eq(bp_session_close(s), 0);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* A file is closed while somebody copies a run: it waits for the end of that. */
Test(interleavings, a_file_with_a_run_closes_after_it)
{
    struct data_file data = data_file_make(64 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 50);
    bp_session *s = open_session(pool, "director");
    bp_file *file = open_file(pool, data.path, 0);
    struct actor a = {.pool = pool, .file = file, .data = &data, .page = 8};
    struct bp_view view;

    for (uint64_t page = 0; page < 64; page++)
        cr_assert_eq(bp_read(s, file, page, &view), 0);
    set_gate("copy:held");
    pthread_create(&a.thread, NULL, copy_run, &a);
    wait_until_stopped();
    cr_assert_lt(bp_file_close(file, NULL), 0, "it is being read");
    let_go();
    pthread_join(a.thread, NULL);
    atomic_store(&bpi_sync_hook, NULL);
    cr_assert(a.result == 0 && a.right);
    cr_assert_eq(bp_file_close(file, NULL), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}
