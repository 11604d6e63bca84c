/* SPDX-License-Identifier: MIT */
/*
 * Many threads on a small pool: every way to look at a page, at once, while pages come and go, reads fail, come short
 * and late, and sessions and files open and close. What anybody sees must be the page that was asked for, whole.
 *
 *   stress_pool [SECONDS [SEED]]      default: BP_STRESS_SECONDS, or 2 for each of the scenes
 *
 * Exclusive holders write garbage into their pages and put the content back before they let go: a shared holder or a
 * valid view that shows garbage has met a broken latch.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/data_file.h"

#define FILES   2
#define THREADS 6
#define PAGES   900u

#define RESIZED_MIB 6ull /* more than the slabs' 2 MiB, less than the files */

struct world {
    bp_pool *pool;
    bp_file *file[FILES];
    struct data_file data[FILES];
    _Atomic bool stop;
    _Atomic uint64_t seen, wrong, errors, unexpected, moved, resized;
    bool faulty, resizable;
};

struct worker {
    struct world *world;
    bp_session *s;
    uint64_t random;
    pthread_t thread;
};

static uint64_t draw(struct worker *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

/* Words are loaded atomically: an optimistic reader races with writers by design, and says so to the sanitizer. */
static uint64_t word_at(const void *page, unsigned i)
{
    return atomic_load_explicit((const _Atomic uint64_t *)page + i, memory_order_relaxed);
}

static bool page_right(const struct data_file *d, uint64_t page, const void *at)
{
    for (unsigned i = 0; i < 512; i += 37) {
        uint64_t want;

        memcpy(&want, d->content + page * 4096 + i * 8, 8);
        if (word_at(at, i) != want)
            return false;
    }
    return true;
}

static void judge(struct world *w, bool right, const char *how, uint64_t page)
{
    atomic_fetch_add_explicit(&w->seen, 1, memory_order_relaxed);
    if (!right && atomic_fetch_add(&w->wrong, 1) < 5)
        fprintf(stderr, "%s of page %llu shows something else\n", how, (unsigned long long)page);
}

/* Busy is an answer in a pool that others fill; EIO where faults are injected. */
static void judge_error(struct world *w, const bp_session *s, int rc)
{
    atomic_fetch_add_explicit(&w->errors, 1, memory_order_relaxed);
    if (rc == -EBUSY || (w->faulty && rc == -EIO))
        return;
    if (atomic_fetch_add(&w->unexpected, 1) < 5)
        fprintf(stderr, "unexpected: %d %s\n", rc, bp_session_error(s));
}

static void scribble(const struct data_file *d, uint64_t page, void *at, bool garbage)
{
    for (unsigned i = 0; i < 512; i++) {
        uint64_t want;

        memcpy(&want, d->content + page * 4096 + i * 8, 8);
        atomic_store_explicit((_Atomic uint64_t *)at + i, garbage ? ~want : want, memory_order_relaxed);
    }
}

static void one_view(struct worker *w, unsigned f, uint64_t page, struct bp_hint *hint)
{
    struct world *world = w->world;
    struct bp_view view;
    bool right;
    int rc =
        hint ? bp_read_hinted(w->s, world->file[f], page, hint, &view) : bp_read(w->s, world->file[f], page, &view);

    if (rc) {
        judge_error(world, w->s, rc);
        return;
    }
    right = page_right(&world->data[f], page, view.data);
    if (bp_view_valid(&view))
        judge(world, right, hint ? "a hinted view" : "a view", page);
}

static void one_ref(struct worker *w, unsigned f, uint64_t page, enum bp_mode mode)
{
    struct world *world = w->world;
    struct bp_ref ref;
    int rc = bp_get(w->s, world->file[f], page, mode, &ref);

    if (rc) {
        judge_error(world, w->s, rc);
        return;
    }
    judge(world, page_right(&world->data[f], page, ref.data), "a ref", page);
    if (mode == BP_EXCLUSIVE) {
        scribble(&world->data[f], page, ref.data, true);
        if (draw(w) % 4 == 0)
            sched_yield();
        scribble(&world->data[f], page, ref.data, false);
    }
    bp_put(&ref);
}

static void a_batch(struct worker *w, unsigned f, bool views)
{
    struct world *world = w->world;
    unsigned n = 1 + (unsigned)(draw(w) % 12);
    uint64_t page[12];
    struct bp_ref ref[12];
    struct bp_view view[12];
    int rc;

    for (unsigned i = 0; i < n; i++)
        page[i] = draw(w) % PAGES;
    rc = views ? bp_read_many(w->s, world->file[f], page, n, view)
               : bp_get_many(w->s, world->file[f], page, n, BP_SHARED, ref);
    if (rc) {
        judge_error(world, w->s, rc);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        bool right = page_right(&world->data[f], page[i], views ? view[i].data : ref[i].data);

        if (!views || bp_view_valid(&view[i]))
            judge(world, right, views ? "a view of many" : "a ref of many", page[i]);
    }
    if (!views)
        bp_put_many(ref, n);
}

static void take_events(struct worker *w, unsigned *pending, unsigned timeout_ms)
{
    struct world *world = w->world;
    struct bp_event event[8];
    int n = bp_poll(w->s, event, 8, timeout_ms);

    for (int i = 0; i < n; i++, (*pending)--) {
        unsigned f = (unsigned)(uintptr_t)event[i].cookie;

        if (event[i].result) {
            judge_error(world, w->s, event[i].result);
            continue;
        }
        judge(world, page_right(&world->data[f], event[i].ref.page, event[i].ref.data), "an operation",
              event[i].ref.page);
        bp_put(&event[i].ref);
    }
}

static void some_operations(struct worker *w, unsigned f)
{
    struct world *world = w->world;
    unsigned pending = 0;

    for (unsigned i = 0; i < 10; i++) {
        uint64_t page = draw(w) % PAGES;
        struct bp_ref ref;
        int rc = bp_get_start(w->s, world->file[f], page, i % 5 ? BP_SHARED : BP_EXCLUSIVE, i < 9 ? BP_MORE : 0,
                              (void *)(uintptr_t)f, &ref);

        if (rc == BP_PENDING) {
            pending++;
        } else if (rc) {
            judge_error(world, w->s, rc);
        } else {
            judge(world, page_right(&world->data[f], page, ref.data), "a hit of start", page);
            bp_put(&ref);
        }
        take_events(w, &pending, 0);
    }
    if (draw(w) % 8 == 0) { /* gone with operations under way */
        if (bp_session_close(w->s) || bp_session_open(world->pool, NULL, &w->s))
            abort();
        return;
    }
    for (unsigned tries = 0; pending && tries < 1000; tries++)
        take_events(w, &pending, 100);
    if (pending)
        judge(world, false, "an operation that never ended", pending);
}

static void a_copy(struct worker *w, unsigned f)
{
    struct world *world = w->world;
    uint64_t offset = draw(w) % (PAGES * 4096 - 20000);
    char to[20000];
    size_t done;
    int rc = bp_copy_out(w->s, world->file[f], offset, sizeof(to), to, &done);

    if (rc)
        judge_error(world, w->s, rc);
    else
        judge(world, done == sizeof(to) && !memcmp(to, world->data[f].content + offset, done), "a copy", offset / 4096);
}

/* A map of what is in memory: whatever comes and goes meanwhile, no cell has more pages than it has. */
static void a_map(struct worker *w, unsigned f)
{
    struct bp_residency cell[10] = {{{0}}};
    uint64_t next = 0, first = draw(w) % 100, size = 1 + draw(w) % 99;
    int rc = bp_file_residency(w->world->file[f], first, size, cell, 10, &next);
    bool right = !rc && next == first + 10 * size;

    for (unsigned i = 0; i < 10; i++) {
        uint64_t pages = 0;

        for (unsigned order = 0; order <= BP_ORDER_MAX; order++)
            pages += cell[i].pages[order];
        right &= pages <= size;
    }
    judge(w->world, right, "a map", first);
}

/* Some of a scan, in either direction; now and then it is left in the middle, or goes on somewhere else. */
static void a_scan(struct worker *w, unsigned f)
{
    struct world *world = w->world;
    uint64_t first = draw(w) % PAGES;
    struct bp_piece piece[8];
    unsigned got = 1;
    bp_scan *scan;
    int rc = bp_scan_open(w->s, world->file[f], first, first + draw(w) % 200, (unsigned)(draw(w) % 2), &scan);

    for (unsigned batches = (unsigned)(draw(w) % 12); !rc && got && batches; batches--) {
        rc = bp_scan_next(scan, piece, 1 + (unsigned)(draw(w) % 8), &got);
        for (unsigned i = 0; !rc && i < got; i++)
            for (uint64_t k = 0; k < piece[i].bytes / 4096; k++)
                judge(world, page_right(&world->data[f], piece[i].page + k, (const char *)piece[i].data + k * 4096),
                      "a scan", piece[i].page + k);
        if (draw(w) % 8 == 0)
            bp_scan_seek(scan, draw(w) % PAGES);
    }
    if (rc)
        judge_error(world, w->s, rc);
    bp_scan_close(scan);
}

/* Frames set aside, and a page each from them; limits of the file move meanwhile. */
static void a_reservation(struct worker *w, unsigned f)
{
    struct world *world = w->world;
    uint64_t floor = draw(w) % 40 * 4096;
    uint64_t page = draw(w) % PAGES;
    int rc = bp_file_limits(world->file[f], floor, draw(w) % 2 ? 0 : floor + (1 << 20));

    if (!rc)
        rc = bp_reserve(w->s, 1 + (unsigned)(draw(w) % 3));
    if (rc)
        judge_error(world, w->s, rc);
    else
        one_ref(w, f, page, draw(w) % 2 ? BP_SHARED : BP_EXCLUSIVE);
    if (draw(w) % 4)
        bp_unreserve(w->s);
}

/* What is there is written down; some of it has gone when it is restored. */
static void a_list(struct worker *w, unsigned f)
{
    struct world *world = w->world;
    struct bp_restore_options o = {.size = sizeof(o), .extents_max = 100};
    struct bp_restore_result result;
    char list[64];
    int rc;

    (void)f;
    snprintf(list, sizeof(list), "bp-stress-list-%d-%p", (int)getpid(), (void *)w);
    rc = bp_pool_dump(world->pool, list, NULL, NULL);
    if (!rc)
        rc = bp_pool_restore(w->s, list, &o, &result);
    if (rc)
        judge_error(world, w->s, rc);
    unlink(list);
}

/* The extent of a page moves to other frames, as it would to make room. */
static void a_move(struct worker *w, unsigned f, uint64_t page)
{
    bp_pool *pool = w->world->pool;
    index_entry e = bpi_index_load(&w->world->file[f]->index, page);
    uint32_t head, to;
    uint64_t seen;
    int rc;

    if (!entry_is_frame(e) || entry_number(e) >= pool->frames_total)
        return;
    head = frame_head(pool->frame, entry_number(e), &seen);
    if (!(seen & FRAME_BOUND) || bpi_frame_take(w->s, frame_order(seen), &to))
        return;
    slim_lock_take(&w->s->magazine_lock);
    rc = bpi_extent_move(w->s, head, seen, to);
    slim_lock_give(&w->s->magazine_lock);
    bpi_frame_give(pool, rc ? to : head, frame_order(seen));
    bpi_release_notify(pool);
    atomic_fetch_add_explicit(&w->world->moved, rc == 0, memory_order_relaxed);
}

/* The pool becomes larger or smaller, as far as others let it. */
static void a_resize(struct worker *w)
{
    uint64_t achieved;
    uint64_t memory = (1 + draw(w) % RESIZED_MIB) << 20;
    int rc;

    bp_unreserve(
        w->s); /* what is set aside stays where it is, and would hold up another one's resize that we wait for */
    rc = bp_pool_resize(w->world->pool, memory, &achieved);
    if (rc && rc != -EBUSY)
        judge_error(w->world, w->s, rc);
    atomic_fetch_add_explicit(&w->world->resized, rc == 0, memory_order_relaxed);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct bp_hint hint[FILES][PAGES];

    memset(hint, 0, sizeof(hint));
    while (!atomic_load_explicit(&w->world->stop, memory_order_relaxed)) {
        unsigned f = (unsigned)(draw(w) % FILES);
        uint64_t page = draw(w) % 3 ? draw(w) % 60 : draw(w) % PAGES; /* some are hot, and fought for */

        if (draw(w) % 256 == 0)
            a_list(w, f);
        if (draw(w) % 16 == 0)
            a_move(w, f, page);
        if (draw(w) % 128 == 0)
            a_map(w, f);
        if (w->world->resizable && draw(w) % 512 == 0)
            a_resize(w);
        switch (draw(w) % 16) {
        case 0:
            one_ref(w, f, page, BP_EXCLUSIVE);
            break;
        case 1:
            a_batch(w, f, false);
            break;
        case 2:
            a_batch(w, f, true);
            break;
        case 3:
            some_operations(w, f);
            break;
        case 4:
            a_copy(w, f);
            break;
        case 5:
            a_scan(w, f);
            break;
        case 6:
            a_reservation(w, f);
            break;
        case 7:
            one_ref(w, f, page, BP_SHARED);
            break;
        case 8:
        case 9:
        case 10:
            one_view(w, f, page, &hint[f][page]);
            break;
        default:
            one_view(w, f, page, NULL);
        }
    }
    return NULL;
}

/* One scene; true if all was right. */
static bool scene(const char *name, const struct fault_plan *plan, const uint32_t extent[FILES], bool resizable,
                  double seconds, uint64_t seed)
{
    struct bp_pool_options po = {.size = sizeof(po), .memory = 1 << 20, .wait_ms = 20000};
    struct world w = {.faulty = plan->error_chance != 0, .resizable = resizable};
    struct worker worker[THREADS];
    struct bp_error error = {0};
    struct timespec tick = {.tv_nsec = 50000000};
    bool right;

    po.memory_max = resizable ? RESIZED_MIB << 20 : 0;
    fault_io_plan(plan);
    if (bpi_pool_open(&po, &fault_io, &w.pool))
        return false;
    for (unsigned i = 0; i < FILES; i++) {
        struct bp_file_options fo = {.size = sizeof(fo), .extent_bytes = extent[i]};

        w.data[i] = data_file_make(PAGES * 4096);
        if (bp_file_open(w.pool, w.data[i].path, &fo, &w.file[i]))
            abort();
    }
    for (unsigned i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.world = &w, .random = seed * 7919 + i + 1};
        if (bp_session_open(w.pool, NULL, &worker[i].s) || pthread_create(&worker[i].thread, NULL, work, &worker[i]))
            abort();
    }
    for (double t = 0; t < seconds && !w.wrong && !w.unexpected; t += 0.05)
        nanosleep(&tick, NULL);
    atomic_store(&w.stop, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(worker[i].thread, NULL);
    right = !w.wrong && !w.unexpected && w.seen > 100 && w.moved && (w.resized || !resizable);
    if (bp_pool_check(w.pool, &error)) {
        fprintf(stderr, "%s\n", error.text);
        right = false;
    }
    for (unsigned i = 0; i < THREADS; i++)
        right &= !bp_session_close(worker[i].s);
    right &= !bp_pool_check(w.pool, &error) && !bp_pool_close(w.pool, &error);
    printf("%s: %llu looks, %llu moves, %llu resizes, %llu wrong, %llu errors%s%s\n", name, (unsigned long long)w.seen,
           (unsigned long long)w.moved, (unsigned long long)w.resized, (unsigned long long)w.wrong,
           (unsigned long long)w.errors, error.text[0] ? ", " : "", error.text);
    fflush(stdout);
    for (unsigned i = 0; i < FILES; i++)
        data_file_remove(&w.data[i]);
    return right;
}

int main(int argc, char **argv)
{
    const char *env = getenv("BP_STRESS_SECONDS");
    double seconds = argc > 1 ? atof(argv[1]) : env ? atof(env) : 2;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL);
    static const uint32_t single[FILES] = {4096, 4096};
    static const uint32_t mixed[FILES] = {4096, 32768};
    const struct io_ops *inner[] = {&bpi_io_uring, &bpi_io_psync};
    unsigned passed = 0;
    unsigned failed = 0;

    printf("seed %llu\n", (unsigned long long)seed);
    for (unsigned i = 0; i < 2; i++) {
        struct fault_plan plan = fault_plan_none(inner[i]);
        bool ok;

        ok = scene(inner[i]->name, &plan, single, false, seconds, seed);
        passed += ok;
        failed += !ok;
        ok = scene("with larger extents, resized", &plan, mixed, true, seconds, seed + 1);
        passed += ok;
        failed += !ok;
        plan.seed = seed;
        plan.short_chance = FAULT_ALWAYS / 20;
        plan.short_unit = 512;
        plan.error_chance = FAULT_ALWAYS / 50;
        plan.late_chance = FAULT_ALWAYS / 10;
        plan.late_reaps = 4;
        plan.shuffle = true;
        ok = scene("with faults, resized", &plan, mixed, true, seconds, seed + 2);
        passed += ok;
        failed += !ok;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
