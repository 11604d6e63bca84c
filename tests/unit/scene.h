/* SPDX-License-Identifier: MIT */
/*
 * Scenes for forced interleavings: a small pool, a file, a director, and actors that are stopped at a named place inside
 * the library until the director lets them go. The places are the sync points in bufpool/.
 */
#ifndef TESTS_SCENE_H
#define TESTS_SCENE_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/unit/pool_fixture.h"

/* The first thread to pass `stop_at` waits there until it is let go. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *stop_at;
    bool reached, go;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local bool passes; /* the thread that directs the scene is never stopped */

static inline void hook(const char *name)
{
    pthread_mutex_lock(&gate.lock);
    if (!passes && gate.stop_at && !strcmp(name, gate.stop_at)) {
        gate.stop_at = NULL;
        gate.reached = true;
        pthread_cond_broadcast(&gate.changed);
        while (!gate.go)
            pthread_cond_wait(&gate.changed, &gate.lock);
    }
    pthread_mutex_unlock(&gate.lock);
}

static inline void set_gate(const char *name)
{
    pthread_mutex_lock(&gate.lock);
    gate.stop_at = name;
    gate.reached = gate.go = false;
    pthread_mutex_unlock(&gate.lock);
    passes = true;
    atomic_store(&bpi_sync_hook, hook);
}

static inline void wait_until_stopped(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.reached)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static inline void let_go(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.go = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

struct actor {
    bp_pool *pool;
    bp_file *file;
    const struct data_file *data;
    uint64_t page;
    enum bp_mode mode;
    struct bp_hint hint;
    int result;
    bool right;
    pthread_t thread;
};

static inline void *act(void *arg)
{
    struct actor *a = arg;
    bp_session *s = open_session(a->pool, "actor");
    struct bp_ref ref;

    a->result = bp_get_hinted(s, a->file, a->page, a->mode, &a->hint, &ref);
    if (!a->result) {
        a->right = data_page_ok(a->data, a->page, ref.data);
        bp_put(&ref);
    }
    if (bp_session_close(s))
        abort();
    return NULL;
}

struct scene {
    struct data_file data;
    bp_pool *pool;
    bp_session *s;
    bp_file *file;
};

static inline struct scene scene_open(void)
{
    struct scene c = {.data = data_file_make(600 * 4096)};

    c.pool = open_pool(1 << 20, BP_IO_TRY, 20000);
    c.s = open_session(c.pool, "director");
    c.file = open_file(c.pool, c.data.path, 0);
    return c;
}

static inline void scene_close(struct scene *c)
{
    atomic_store(&bpi_sync_hook, NULL);
    cr_assert_eq(bp_session_close(c->s), 0);
    close_all(c->pool);
    data_file_remove(&c->data);
}

static inline void start(struct scene *c, struct actor *a, uint64_t page, enum bp_mode mode)
{
    *a = (struct actor){.pool = c->pool, .file = c->file, .data = &c->data, .page = page, .mode = mode, .result = 99};
    pthread_create(&a->thread, NULL, act, a);
}

static inline void finish(struct actor *a)
{
    pthread_join(a->thread, NULL);
    cr_assert_eq(a->result, 0, "%s", bp_strerror(a->result));
    cr_assert(a->right, "page %lu is not what the file holds", (unsigned long)a->page);
}

static inline void touch(struct scene *c, uint64_t page)
{
    struct bp_ref ref;

    cr_assert_eq(bp_get(c->s, c->file, page, BP_SHARED, &ref), 0, "%s", bp_session_error(c->s));
    cr_assert(data_page_ok(&c->data, page, ref.data));
    bp_put(&ref);
}

static inline uint32_t frame_bound_to(struct scene *c, uint64_t page, unsigned *count)
{
    uint32_t found = FRAME_NONE;

    *count = 0;
    for (uint32_t f = 0; f < c->pool->frames_total; f++)
        if (frame_load(&c->pool->frame[f]) & FRAME_BOUND && frame_id(&c->pool->frame[f]) == (c->file->id | page)) {
            found = f;
            ++*count;
        }
    return found;
}

#endif
