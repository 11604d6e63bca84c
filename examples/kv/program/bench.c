/* SPDX-License-Identifier: MIT */
/*
 * kv DIR bench: the mixes A to F of YCSB (Cooper and others, "Benchmarking Cloud Serving Systems with YCSB", 2010), on this
 * store and, in the same run, on others. Engines take turns within each round, so that a noisy machine is noisy for all;
 * what is printed last are each one's medians, and how many times the first engine's they are.
 *
 *   A half updates   B 5 % updates   C reads   D reads of what was entered last, 5 % inserts   E ranges of 1 to 100, 5 % inserts
 *   F half read-modify-write
 *
 * Keys are 8 bytes, of the record's number scattered over all of them. Which record is next is drawn before the clock
 * starts: zipf with 0.99, hot records scattered (method: Gray and others, "Quickly Generating Billion-Record Synthetic
 * Databases", 1994), or uniform.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "kv/program/engine.h"

#define DRAWN       (1u << 20) /* records drawn ahead by each thread, and used again */
#define ENGINES_MAX 3u
#define ROUNDS_MAX  100u
#define THETA       0.99
#define RANGE_MAX   100u

static const struct engine *const known[] = {
    &engine_kv,
#ifdef KV_LMDB
    &engine_lmdb,
#endif
#ifdef KV_ROCKSDB
    &engine_rocksdb,
#endif
};

struct run {
    const struct settings *set;
    const struct engine *engine;
    void *store;
    char workload;
    _Atomic uint64_t records; /* entered so far */
    _Atomic bool stop;
    _Atomic unsigned ready;
    _Atomic bool go;
};

struct worker {
    struct run *run;
    pthread_t thread;
    unsigned number;
    uint64_t random, ops, sum, ns, cpu_ns;
    uint32_t *drawn;
    int failed;
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A record's key: its number, scattered by an odd factor (so no two are the same), most significant byte first. */
static uint64_t key_of(uint64_t record)
{
    return __builtin_bswap64((record + 1) * 0x9e3779b97f4a7c15u);
}

/* ---- which record ---- */

struct zipf {
    double zeta, eta, alpha, half;
    uint64_t n;
};

static struct zipf zipf_of(uint64_t n)
{
    struct zipf z = {.n = n, .alpha = 1 / (1 - THETA), .half = pow(0.5, THETA)};

    for (uint64_t i = 1; i <= n; i++)
        z.zeta += pow((double)i, -THETA);
    z.eta = (1 - pow(2.0 / (double)n, 1 - THETA)) / (1 - (1 + z.half) / z.zeta);
    return z;
}

static uint64_t zipf_draw(const struct zipf *z, uint64_t *random)
{
    double u = (double)(draw(random) >> 11) / 9007199254740992.0, uz = u * z->zeta;

    if (uz < 1)
        return 0;
    if (uz < 1 + z->half)
        return 1;
    return (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha)) % z->n;
}

static int draw_records(struct worker *w, const struct zipf *z)
{
    bool zipf = !strcmp(w->run->set->distribution, "zipf"), latest = w->run->workload == 'D';
    uint64_t n = w->run->set->records;

    w->drawn = malloc(DRAWN * sizeof(*w->drawn));
    if (!w->drawn)
        return -1;
    for (uint32_t i = 0; i < DRAWN; i++) {
        uint64_t record = zipf || latest ? zipf_draw(z, &w->random) : draw(&w->random) % n;

        if (zipf && !latest) /* the hot ones are anywhere */
            record = (record + 1) * 0xc2b2ae3d27d4eb4fu % n;
        w->drawn[i] = (uint32_t)record;
    }
    return 0;
}

/* ---- one operation ---- */

static int update(struct worker *w, void *session, uint64_t key)
{
    char value[1u << 12] = {0};
    size_t bytes = w->run->set->value_bytes;
    uint64_t word = draw(&w->random);

    if (bytes > sizeof(value))
        bytes = sizeof(value);
    memcpy(value, &word, sizeof(word));
    return w->run->engine->put(session, &key, value, bytes);
}

static int insert(struct worker *w, void *session)
{
    return update(w, session, key_of(atomic_fetch_add_explicit(&w->run->records, 1, memory_order_relaxed)));
}

static int step(struct worker *w, void *session, uint64_t i)
{
    const struct engine *engine = w->run->engine;
    uint64_t record = w->drawn[i % DRAWN], key, percent = draw(&w->random) % 100;
    int rc;

    if (w->run->workload == 'D') /* the newest of what was there from the beginning on is the hottest */
        record = w->run->set->records - 1 - record;
    key = key_of(record);
    switch (w->run->workload) {
    case 'A':
        return percent < 50 ? update(w, session, key) : engine->get(session, &key, &w->sum);
    case 'B':
        return percent < 5 ? update(w, session, key) : engine->get(session, &key, &w->sum);
    case 'D':
        return percent < 5 ? insert(w, session) : engine->get(session, &key, &w->sum);
    case 'E':
        return percent < 5 ? insert(w, session)
                           : engine->scan(session, &key, 1 + (unsigned)(draw(&w->random) % RANGE_MAX), &w->sum);
    case 'F':
        rc = engine->get(session, &key, &w->sum);
        return !rc && percent < 50 ? update(w, session, key) : rc;
    default:
        return engine->get(session, &key, &w->sum);
    }
}

static void *work(void *ctx)
{
    struct worker *w = ctx;
    struct run *run = w->run;
    uint64_t most = run->set->ops ? run->set->ops / run->set->threads : UINT64_MAX, begin;
    void *session;

    w->failed = run->engine->begin(run->store, &session);
    atomic_fetch_add(&run->ready, 1);
    while (!atomic_load(&run->go))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    begin = now_ns();
    w->cpu_ns = cpu_ns();
    while (!w->failed && w->ops < most && !atomic_load_explicit(&run->stop, memory_order_relaxed)) {
        w->failed = step(w, session, w->ops);
        w->ops++;
    }
    w->ns = now_ns() - begin;
    w->cpu_ns = cpu_ns() - w->cpu_ns;
    if (session)
        run->engine->end(session);
    return NULL;
}

/* ---- one engine, one mix ---- */

static int fill(struct run *run)
{
    char value[1u << 12] = {0};
    size_t bytes = run->set->value_bytes < sizeof(value) ? run->set->value_bytes : sizeof(value);
    uint64_t there = 0;
    void *session;
    int rc = run->engine->begin(run->store, &session);

    if (rc)
        return rc;
    rc = run->engine->count(session, &there);
    if (there < run->set->records)
        fprintf(stderr, "%s: entering %llu records\n", run->engine->name, (unsigned long long)run->set->records);
    if (there < run->set->records) {
        for (uint64_t i = 0; i < run->set->records && !rc; i++) {
            uint64_t key = key_of(i);

            memcpy(value, &i, sizeof(i));
            rc = run->engine->load(session, &key, value, bytes);
        }
        if (!rc)
            rc = run->engine->loaded(session);
    }
    for (uint64_t i = 0, sum = 0; i < run->set->records && !rc; i++) { /* into memory */
        uint64_t key = key_of(i);

        rc = run->engine->get(session, &key, &sum);
    }
    run->engine->end(session);
    return rc;
}

/* Nanoseconds for one operation: of the wall clock, and of the threads' processors. */
struct outcome {
    double ns, cpu;
};

static int measure(struct run *run, const struct zipf *z, struct outcome *outcome)
{
    struct worker *worker = calloc(run->set->threads, sizeof(*worker));
    unsigned started = 0, round = 0;
    uint64_t ops = 0, longest = 1, cpu = 0;
    int rc = worker ? 0 : program_fail("bench", "no memory");

    for (unsigned i = 0; i < run->set->threads && !rc; i++) {
        struct worker *w = &worker[i];

        *w = (struct worker){.run = run, .number = i, .random = 88172645463325252u + i * 2654435761u};
        if (draw_records(w, z) || pthread_create(&w->thread, NULL, work, w))
            rc = program_fail("bench", "no memory or thread");
        else
            started++;
    }
    while (!rc && atomic_load(&run->ready) < started)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_store(&run->go, true);
    for (; !rc && !run->set->ops && round < run->set->seconds * 10; round++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    if (rc || !run->set->ops)
        atomic_store(&run->stop, true);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(worker[i].thread, NULL);
        rc |= worker[i].failed;
        ops += worker[i].ops;
        cpu += worker[i].cpu_ns;
        longest = worker[i].ns > longest ? worker[i].ns : longest;
    }
    for (unsigned i = 0; worker && i < run->set->threads; i++)
        free(worker[i].drawn);
    free(worker);
    outcome->ns = (double)longest / (double)(ops ? ops : 1);
    outcome->cpu = (double)cpu / (double)(ops ? ops : 1);
    return rc;
}

static int one(const struct settings *set, const struct engine *engine, char workload, const struct zipf *z,
               struct outcome *outcome)
{
    struct run run = {.set = set, .engine = engine, .workload = workload};
    char dir[4096];
    int rc;

    if ((size_t)snprintf(dir, sizeof(dir), "%s/bench-%s-%u", set->dir, engine->name, set->value_bytes) >= sizeof(dir))
        return program_fail(set->dir, strerror(ENAMETOOLONG));
    mkdir(set->dir, 0700);
    rc = engine->open(set, dir, &run.store);
    if (rc)
        return rc;
    atomic_store(&run.records, set->records);
    rc = fill(&run);
    if (!rc)
        rc = measure(&run, z, outcome);
    engine->close(run.store);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct outcome median(const struct outcome *of, uint64_t rounds)
{
    double ns[ROUNDS_MAX], cpu[ROUNDS_MAX];

    for (uint64_t i = 0; i < rounds; i++) {
        ns[i] = of[i].ns;
        cpu[i] = of[i].cpu;
    }
    qsort(ns, rounds, sizeof(*ns), compare);
    qsort(cpu, rounds, sizeof(*cpu), compare);
    return (struct outcome){ns[rounds / 2], cpu[rounds / 2]};
}

static int parse_engines(const char *text, const struct engine *use[ENGINES_MAX])
{
    unsigned count = 0;

    while (*text && count < ENGINES_MAX) {
        size_t length = strcspn(text, ","), i;

        for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            if (strlen(known[i]->name) == length && !strncmp(known[i]->name, text, length))
                break;
        if (i == sizeof(known) / sizeof(known[0])) {
            fprintf(stderr, "kv: bench: this program was built without an engine `%.*s`\n", (int)length, text);
            return 0;
        }
        use[count++] = known[i];
        text += length + (text[length] == ',');
    }
    return (int)count;
}

int command_bench(const struct settings *set)
{
    static const char *const sync[] = {"always", "group", "none"};
    static struct outcome outcome[ENGINES_MAX][ROUNDS_MAX];
    const struct engine *use[ENGINES_MAX];
    int engines = parse_engines(set->engines, use), rc = 0;
    struct zipf z;

    if (!engines)
        return EXIT_USAGE;
    z = zipf_of(set->records);
    for (const char *at = set->workloads; *at && !rc; at++) {
        char workload = (char)(*at & ~0x20);

        for (uint64_t round = 0; round < set->rounds && !rc; round++)
            for (int e = 0; e < engines && !rc; e++)
                rc = one(set, use[e], workload, &z, &outcome[e][round]);
        for (int e = 0; e < engines && !rc; e++) {
            struct outcome mine = median(outcome[e], set->rounds), first = median(outcome[0], set->rounds);

            printf("%c %-7s %s, %llu of %u bytes, %u threads, sync %s: %9.0f ops/s %8.0f ns/op %4.2f x, "
                   "%6.0f ns/op of CPU %4.2f x\n",
                   workload, use[e]->name, set->distribution, (unsigned long long)set->records, set->value_bytes,
                   set->threads, sync[set->sync], 1e9 / mine.ns, mine.ns, mine.ns / first.ns, mine.cpu,
                   mine.cpu / first.cpu);
            fflush(stdout);
        }
    }
    return rc ? EXIT_FAILED : EXIT_OK;
}
