/* SPDX-License-Identifier: MIT */
/*
 * Forced interleavings of the index: actor A is stopped when it comes to a named place inside the index for the nth
 * time, B does what it does, or as much of it as A's locks let it, and then A goes on. A play is acted once for every
 * time that A comes to the place, each time on a new index; so no order of the two is left to chance.
 */
#ifndef BUFPOOL_TESTS_INDEX_PLAY_H
#define BUFPOOL_TESTS_INDEX_PLAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "bufpool/sync_point.h"
#include "tests/unit/index_fixture.h"

#define B_WAIT_MS 4u /* B is blocked by then, or done; if not, only less is tested */

struct actor {
    pthread_t thread;
    void (*run)(struct actor *);
    struct node_magazine m;
    struct index_insert met;
    struct index_item item;
    uint64_t page;
    unsigned order;
    uint32_t frame;
    int result;
    _Atomic bool done;
};

static struct actor a, b;
static bool place_is_rare;       /* A need not come there at all, as things are */
static _Thread_local bool stops; /* A's thread */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *place;
    unsigned times; /* that A may still pass */
    bool reached, go;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void gate_hook(const char *name)
{
    if (!stops || strcmp(name, gate.place) != 0)
        return;
    pthread_mutex_lock(&gate.lock);
    if (gate.times > 0 && --gate.times == 0) {
        gate.reached = true;
        pthread_cond_broadcast(&gate.changed);
        while (!gate.go)
            pthread_cond_wait(&gate.changed, &gate.lock);
    }
    pthread_mutex_unlock(&gate.lock);
}

static void *act(void *arg)
{
    struct actor *who = arg;

    stops = who == &a;
    who->run(who);
    pthread_mutex_lock(&gate.lock);
    atomic_store(&who->done, true);
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    return NULL;
}

static void actor_start(struct actor *who, void (*run)(struct actor *))
{
    *who = (struct actor){.run = run, .result = 99, .m = who->m};
    cr_assert_eq(pthread_create(&who->thread, NULL, act, who), 0);
}

/* Whether A was stopped: not if it came through. */
static bool a_is_stopped(void)
{
    bool reached;

    pthread_mutex_lock(&gate.lock);
    while (!gate.reached && !atomic_load(&a.done))
        pthread_cond_wait(&gate.changed, &gate.lock);
    reached = gate.reached;
    pthread_mutex_unlock(&gate.lock);
    return reached;
}

static void b_works_a_while(void)
{
    for (unsigned ms = 0; ms < B_WAIT_MS * 10 && !atomic_load(&b.done); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void let_a_go(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.go = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Whatever lives, goes. */
static void wipe(void)
{
    struct index_item item;

    while (bpi_index_next(&x, 0, &item))
        MUST(take(item.page, item.order, item.frame), "page %#lx cannot go", (unsigned long)item.page);
    bpi_magazine_drain(&nodes, &a.m);
    bpi_magazine_drain(&nodes, &b.m);
}

/*
 * `verify` is told whether B was through before A went on. At a place where A holds no lock it always is, and the play
 * insists on that: `alone` says so.
 */
struct play {
    const char *place;
    bool alone;
    void (*setup)(void);
    void (*a)(struct actor *);
    void (*b)(struct actor *);
    void (*verify)(bool b_first);
};

/* With `others` more indexes over the same nodes. */
static void act_out_with(const struct play *p, struct index *other, unsigned others)
{
    unsigned times = 0;
    bool stopped;

    do {
        bool b_first = false;

        times++;
        open_index();
        for (unsigned i = 0; i < others; i++)
            bpi_index_init(&other[i], &nodes);
        a.m.count = b.m.count = 0;
        if (p->setup)
            p->setup();
        MUST(!bpi_magazine_fill(&nodes, &a.m) && !bpi_magazine_fill(&nodes, &b.m), "no nodes");
        gate.place = p->place;
        gate.times = times;
        gate.reached = gate.go = false;
        atomic_store(&bpi_sync_hook, gate_hook);
        actor_start(&a, p->a);
        stopped = a_is_stopped();
        if (stopped) {
            actor_start(&b, p->b);
            b_works_a_while();
            b_first = atomic_load(&b.done);
            let_a_go();
            pthread_join(b.thread, NULL);
        }
        pthread_join(a.thread, NULL);
        atomic_store(&bpi_sync_hook, NULL);
        MUST(bpi_index_check(&x, NULL), "%s, time %u: the index is damaged", p->place, times);
        MUST(atomic_load(&x.mending) == 0, "%s, time %u: somebody is still mending", p->place, times);
        if (stopped && (b_first || !p->alone)) /* a machine that is too busy for B proves nothing */
            p->verify(b_first);
        wipe();
        for (unsigned i = 0; i < others; i++) {
            bpi_index_clear(&other[i]);
            bpi_index_destroy(&other[i]);
        }
        close_index();
    } while (stopped && times < 400);
    MUST(times > 1 || place_is_rare, "nobody came to %s", p->place);
    MUST(!stopped, "there is no end to %s", p->place);
}

static inline void act_out(const struct play *p)
{
    act_out_with(p, NULL, 0);
}

#endif
