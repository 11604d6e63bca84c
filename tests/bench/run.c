/* SPDX-License-Identifier: MIT */
/*
 * Rounds: all variants in turn, again and again, each by all threads at once.
 *
 * One thread is the calling one, so that a profiler sees no others. More are started once per case and wait at a
 * barrier between their turns. Clocks are read before and after a loop, never within.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

/* What one thread measured in one turn. */
struct turn {
    uint64_t start_ns, end_ns;
    uint64_t cpu_ns;
    int rc;
};

struct crew {
    const struct bench *bench;
    const struct bench_case *bench_case;
    pthread_barrier_t barrier; /* of the threads and the one that leads them */
    pthread_barrier_t ready;   /* of the threads alone */
    bench_loop *loop;          /* of this turn; NULL: go home */
    unsigned count;
    struct bench_thread thread[BENCH_THREADS_MAX];
    struct turn turn[BENCH_THREADS_MAX];
    pthread_t handle[BENCH_THREADS_MAX];
    unsigned started; /* handles */
};

bool bench_wants(const struct bench *b, const char *variant)
{
    size_t length = strlen(variant);

    if (!b->variants)
        return true;
    for (const char *at = b->variants; *at;) {
        size_t n = strcspn(at, ",");

        if (n == length && !strncmp(at, variant, n))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

bool bench_counting(const struct bench *b)
{
    return b->variants && !strchr(b->variants, ',') && b->rounds == 1;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Where everything is in memory a turn begins with as many operations untimed: what lies in the caches is then this
 * variant's own, and not what the one before left there, which would favour those who touch the same memory as it did.
 */
static bool leads_in(const struct crew *crew)
{
    return crew->bench_case->clock == BENCH_CPU && !bench_counting(crew->bench);
}

/* All that a count of instructions is to cover: not inlined, and not a tail call either. */
__attribute__((noinline)) int bench_measure(bench_loop *loop, struct bench_thread *t, uint64_t ops);
int bench_measure(bench_loop *loop, struct bench_thread *t, uint64_t ops)
{
    int rc = loop(t, ops);

    __asm__ volatile("" : : : "memory");
    return rc;
}

/* Everything as it should be before the clock starts. Nobody starts before all are ready. */
static int get_ready(struct crew *crew, unsigned i)
{
    const struct bench_fixture *fixture = crew->bench_case->fixture;
    int rc = 0;

    if (fixture->prepare)
        rc = fixture->prepare(&crew->thread[i]);
    else if (leads_in(crew))
        rc = crew->loop(&crew->thread[i], crew->bench->ops);
    if (fixture->prepare && crew->started)
        pthread_barrier_wait(&crew->ready);
    return rc;
}

static void take_turn(struct crew *crew, unsigned i)
{
    struct turn *turn = &crew->turn[i];
    uint64_t cpu_ns;

    turn->rc = get_ready(crew, i);
    if (turn->rc)
        return;
    cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    turn->start_ns = bench_now_ns();
    turn->rc = bench_measure(crew->loop, &crew->thread[i], crew->bench->ops);
    turn->end_ns = bench_now_ns();
    turn->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
}

static void *crew_member(void *arg)
{
    struct bench_thread *t = arg;
    struct crew *crew = (struct crew *)((char *)(t - t->number) - offsetof(struct crew, thread));
    const struct bench_fixture *fixture = crew->bench_case->fixture;

    crew->turn[t->number].rc = fixture->thread_open(t);
    pthread_barrier_wait(&crew->barrier); /* opened */
    for (;;) {
        pthread_barrier_wait(&crew->barrier); /* begin */
        if (!crew->loop)
            break;
        take_turn(crew, t->number);
        pthread_barrier_wait(&crew->barrier); /* end */
    }
    fixture->thread_close(t);
    return NULL;
}

static int first_error(const struct crew *crew)
{
    for (unsigned i = 0; i < crew->count; i++)
        if (crew->turn[i].rc)
            return crew->turn[i].rc;
    return 0;
}

static int crew_open(struct crew *crew, const struct bench *b, const struct bench_case *c, void *fixture)
{
    crew->bench = b;
    crew->bench_case = c;
    crew->count = b->threads;
    for (unsigned i = 0; i < crew->count; i++)
        crew->thread[i] = (struct bench_thread){
            .fixture = fixture, .number = i, .count = crew->count, .random = 0x9e3779b97f4a7c15u * (i + 1)};
    if (crew->count == 1) {
        crew->turn[0].rc = c->fixture->thread_open(&crew->thread[0]);
        return first_error(crew) ? bench_code(first_error(crew), "opening the thread's session or ring") : 0;
    }
    pthread_barrier_init(&crew->barrier, NULL, crew->count + 1);
    pthread_barrier_init(&crew->ready, NULL, crew->count);
    for (unsigned i = 0; i < crew->count; i++) {
        int rc = pthread_create(&crew->handle[i], NULL, crew_member, &crew->thread[i]);

        if (rc) { /* those before wait at a barrier that never opens: nothing can be tidied up */
            fprintf(stderr, "bufpool-bench: cannot start thread %u: %s\n", i, strerror(rc));
            exit(EXIT_FAILURE);
        }
        crew->started++;
    }
    pthread_barrier_wait(&crew->barrier);
    return first_error(crew) ? bench_code(first_error(crew), "opening a thread's session or ring") : 0;
}

static void crew_close(struct crew *crew)
{
    if (!crew->started) {
        crew->bench_case->fixture->thread_close(&crew->thread[0]);
        return;
    }
    crew->loop = NULL;
    pthread_barrier_wait(&crew->barrier);
    for (unsigned i = 0; i < crew->started; i++)
        pthread_join(crew->handle[i], NULL);
    pthread_barrier_destroy(&crew->barrier);
    pthread_barrier_destroy(&crew->ready);
}

static void turn_report_error(const struct crew *crew, const char *variant)
{
    for (unsigned i = 0; i < crew->count; i++) {
        const struct bench_thread *t = &crew->thread[i];
        const char *text = t->session ? bp_session_error(t->session) : "";

        if (crew->turn[i].rc)
            bench_error("%s, %s: %s%s%s", crew->bench_case->name, variant, bp_strerror(crew->turn[i].rc),
                        *text ? ": " : "", text);
    }
}

static int crew_turn(struct crew *crew, const struct bench_variant *v, struct bench_sample *sample)
{
    uint64_t process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    double ops = (double)crew->bench->ops;
    uint64_t start_ns = UINT64_MAX;
    uint64_t end_ns = 0;
    uint64_t cpu_ns = 0;

    crew->loop = v->loop;
    if (crew->count == 1) {
        take_turn(crew, 0);
    } else {
        pthread_barrier_wait(&crew->barrier);
        pthread_barrier_wait(&crew->barrier);
    }
    process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - process_ns;
    if (first_error(crew)) {
        turn_report_error(crew, v->name);
        return -1;
    }
    for (unsigned i = 0; i < crew->count; i++) {
        const struct turn *t = &crew->turn[i];

        start_ns = t->start_ns < start_ns ? t->start_ns : start_ns;
        end_ns = t->end_ns > end_ns ? t->end_ns : end_ns;
        cpu_ns += t->cpu_ns;
    }
    sample->wall = (double)(end_ns - start_ns) / ops;
    sample->cpu = (double)cpu_ns / ops / crew->count;
    /* the process' includes what others do for the loop (a pool's threads), but also a lead-in */
    sample->process_cpu =
        leads_in(crew) || crew->bench_case->fixture->prepare ? sample->cpu : (double)process_ns / ops / crew->count;
    return 0;
}

/* Which variants run, and room for their samples. */
static int result_open(const struct bench *b, const struct bench_case *c, const void *fixture, struct bench_result *r)
{
    unsigned count = 0;

    for (unsigned v = 0; v < c->variant_count; v++) {
        const char *name = c->variant[v].name;
        const char *why = bench_wants(b, name) && c->fixture->absent ? c->fixture->absent(fixture, name) : NULL;

        if (why)
            bench_note("%s, %s: left out: %s", c->name, name, why);
        r->ran[v] = bench_wants(b, name) && !why;
        if (!r->ran[v])
            continue;
        r->sample[v] = calloc(b->rounds, sizeof(*r->sample[v]));
        if (!r->sample[v])
            return bench_error("no memory");
        count++;
    }
    return count ? 0 : bench_error("%s: none of its variants is wanted and can run", c->name);
}

int bench_run(const struct bench *b, const struct bench_case *c, void *fixture, struct bench_result *r)
{
    unsigned warm = bench_counting(b) ? 0 : 1;
    struct bench_sample unused;
    struct crew *crew;
    int rc;

    memset(r, 0, sizeof(*r));
    r->bench = b;
    r->bench_case = c;
    rc = result_open(b, c, fixture, r);
    if (rc)
        return rc;
    crew = aligned_alloc(_Alignof(struct crew), sizeof(*crew));
    if (!crew)
        return bench_error("no memory");
    memset(crew, 0, sizeof(*crew));
    rc = crew_open(crew, b, c, fixture);
    for (unsigned round = 0; round < b->rounds + warm && !rc; round++) {
        for (unsigned i = 0; i < c->variant_count && !rc; i++) {
            unsigned v = (i + round) % c->variant_count; /* nobody always comes after the same neighbour's start */

            if (r->ran[v])
                rc = crew_turn(crew, &c->variant[v], round < warm ? &unused : &r->sample[v][round - warm]);
        }
    }
    crew_close(crew);
    free(crew);
    return rc;
}

void bench_result_free(struct bench_result *r)
{
    for (unsigned v = 0; v < BENCH_VARIANTS_MAX; v++)
        free(r->sample[v]);
}
