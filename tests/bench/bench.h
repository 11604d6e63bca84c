/* SPDX-License-Identifier: MIT */
/*
 * bufpool-bench: what a case of the microbenchmarks is made of.
 *
 * A case compares variants, ways of doing the same thing. All of them run in one process, on one set-up (the fixture),
 * round by round in turn, because a machine's speed changes from minute to minute and a ratio of two neighbours does
 * not. Reported are medians over the rounds, of times and of the ratios within each round.
 *
 *   fixture   open -> thread_open on each thread -> loops, many times -> thread_close -> close
 *   loop      does `ops` operations; holds nothing but the work: no clock, no output
 *
 * What the set-up does must not depend on the number of operations: then the difference of two runs with N and 2N
 * operations, counted by valgrind, is exactly the cost of N.
 *
 *   bench.c   options, list, main              run.c      rounds, threads, clocks
 *   report.c  tables and JSON lines            support.c  memory, files, progress
 *   resident.c, hit.c, dependent.c             pages that are all in memory
 *   huge.c, scan.c                             the same on small pages; whole extents in sequence
 *   miss.c, bare_uring.c                       pages that are not in memory, and liburing alone
 *   layout.c                                   a model: descriptors of several sizes
 *   lookup.c, insert.c, batch.c                the index alone
 *   evict.c                                    making room: eviction, faults without a device, a scan beside a hot set
 *   update.c                                   changing pages, and writing them
 *   restart.c                                  coming back after a restart
 *   resize.c                                   making large blocks, giving memory back
 *   send.c                                     what is in memory, over TCP
 *   publish.c                                  what a fault does to its frame before anybody sees it
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bufpool/bufpool.h"

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define BENCH_THREADS_MAX  256u
#define BENCH_ROUNDS_MAX   1000u
#define BENCH_VARIANTS_MAX 16u

/* What the command line said. */
struct bench {
    uint64_t ops;         /* per round, variant and thread; 0: the case's default */
    uint64_t bytes;       /* 0: the case's default */
    const char *variants; /* names with commas between them; NULL: all */
    const char *dir;      /* where files are made */
    const char *file;     /* existing file for the misses; NULL: make one */
    unsigned rounds;
    unsigned threads; /* 0: the case's default */
    enum bp_io io;
    bool json;
};

/* One thread of a loop. Its place in a sequence goes on from round to round. */
struct bench_thread {
    _Alignas(128) void *fixture; /* threads write here in their loops: no line, nor its neighbour, is another's */
    void *local;                 /* what thread_open made, other than the session */
    bp_session *session;         /* may be NULL */
    unsigned number;             /* 0 .. count - 1 */
    unsigned count;
    uint64_t random; /* state of bench_random */
    uint64_t page;   /* where a walk has got to */
    uint64_t sum;    /* of everything read: makes the reads necessary */
};

/* 0 or a code of the library; the text is asked of the session. */
typedef int bench_loop(struct bench_thread *, uint64_t ops);

struct bench_fixture {
    /* 0, or -1 after bench_error(). bench->bytes is set. */
    int (*open)(const struct bench *, void **fixture);
    void (*close)(void *fixture); /* of NULL: nothing */
    int (*thread_open)(struct bench_thread *);
    void (*thread_close)(struct bench_thread *); /* also after a thread_open that failed */
    /* Before each turn, untimed: everything as it was, for loops that change what they work on. May be NULL itself. */
    int (*prepare)(struct bench_thread *);
    /* After the rounds: whether what was measured was what was meant. 0, or -1 after bench_error(). */
    int (*check)(void *fixture);
    /* Why a variant cannot run here, or NULL. May be NULL itself. */
    const char *(*absent)(const void *fixture, const char *variant);
};

struct bench_variant {
    const char *name;
    bench_loop *loop;
    const char *baseline; /* NULL: the first of the case */
    const char *also;     /* a second one to compare with; NULL: none */
};

/*
 * What counts as the time of an operation. In memory it is the CPU time of the thread, so that what else runs on the
 * machine counts only through the caches; with a device it is the time on the wall.
 */
enum bench_clock { BENCH_CPU, BENCH_WALL };

/* What a table shows beside times. */
enum bench_rate { BENCH_NO_RATE, BENCH_IOPS, BENCH_MIB };

struct bench_case {
    const char *name;
    const char *text;
    const struct bench_fixture *fixture;
    const struct bench_variant *variant;
    unsigned variant_count;
    uint64_t ops;   /* default */
    uint64_t bytes; /* default; 0: has no size */
    enum bench_clock clock;
    enum bench_rate rate;
    unsigned threads; /* default; 0: one */
};

#define BENCH_COUNT(array) (unsigned)(sizeof(array) / sizeof((array)[0]))

/* ---- the cases, by file ---- */
extern const struct bench_case bench_hit_dependent;
extern const struct bench_case bench_hit, bench_get_shared, bench_batch_hit;
extern const struct bench_case bench_hit_huge;
extern const struct bench_case bench_miss;
extern const struct bench_case bench_scan_warm, bench_copy_out_4k, bench_copy_out_64k, bench_copy_out_2m, bench_pin_run;
extern const struct bench_case bench_descriptor_layout, bench_descriptor_layout_dependent;
extern const struct bench_case bench_index_lookup, bench_index_lookup_near;
extern const struct bench_case bench_index_insert, bench_index_insert_exists, bench_index_insert_shadow,
    bench_index_insert_split, bench_index_insert_run, bench_index_insert_two, bench_index_erase;
extern const struct bench_case bench_index_batch_1, bench_index_batch_4, bench_index_batch_16, bench_index_batch_31;
extern const struct bench_case bench_fault_init;
extern const struct bench_case bench_restart;
extern const struct bench_case bench_compact, bench_shrink;
extern const struct bench_case bench_send;
extern const struct bench_case bench_update;
extern const struct bench_case bench_evict, bench_fault, bench_scan_resistance, bench_pinned_99;

/* ---- run.c ---- */

/* Times of one variant in one round, nanoseconds an operation. */
struct bench_sample {
    double wall; /* from the first thread's start to the last one's end */
    double cpu;  /* of the threads that ran the loop */
    double process_cpu;
};

struct bench_result {
    const struct bench_case *bench_case;
    const struct bench *bench; /* ops and bytes resolved */
    bool ran[BENCH_VARIANTS_MAX];
    struct bench_sample *sample[BENCH_VARIANTS_MAX]; /* bench->rounds of them */
};

/* Run a case on an open fixture. 0, or -1 after bench_error(). Free the result with bench_result_free in any case. */
int bench_run(const struct bench *, const struct bench_case *, void *fixture, struct bench_result *);
void bench_result_free(struct bench_result *);

/* Whether the command line wants this variant. */
bool bench_wants(const struct bench *, const char *variant);
/* Counting, not timing: one variant, one round. Then there is no warm-up and nothing is printed meanwhile. */
bool bench_counting(const struct bench *);

/* ---- report.c ---- */
void bench_report(const struct bench_result *);

/* ---- support.c ---- */

/* One line on stderr. Returns -1. */
int bench_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with the text of a code of the library (or a negative errno). Returns -1. */
int bench_code(int code, const char *what);

/* Says on stderr how far a set-up is, when it takes more than two seconds. */
struct bench_progress {
    const struct bench *bench;
    const char *what;
    uint64_t said_ns; /* when the last line was due */
};
void bench_progress(struct bench_progress *, uint64_t done, uint64_t total);
uint64_t bench_now_ns(void);

/* Populated memory, on huge pages or on none; NULL after bench_error(). Free with bench_free. */
void *bench_alloc(size_t bytes, bool huge);
void bench_free(void *, size_t bytes);
/* Whether the machine has so much to spare now; -1 after bench_error(). */
int bench_memory_check(uint64_t bytes);
uint64_t bench_memory_machine(void);

/* A new file in bench->dir, empty, open for writing; path (4096 bytes) is to be unlinked by the caller. fd, or -1. */
int bench_file_make(const struct bench *, char *path);

/* A cycle through 0 .. n - 1 in random order (Sattolo's): next[i] follows i. */
void bench_cycle(uint32_t next[], uint64_t n);

/* Sum of the 8-byte words; the same code for everybody, and fast enough to wait for memory. bytes: times 64. */
uint64_t bench_sum_words(const void *, size_t bytes);

/* A 64-bit congruential generator, its upper half. */
static inline uint64_t bench_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 32;
}
static inline uint64_t bench_random_page(uint64_t *state, uint64_t pages)
{
    return bench_random(state) * pages >> 32; /* pages are fewer than 2^32 */
}

/* The first word of a page that others may be writing. */
static inline uint64_t bench_word(const void *data)
{
    return __atomic_load_n((const uint64_t *)data, __ATOMIC_RELAXED);
}

#endif
