/* SPDX-License-Identifier: MIT */
/*
 * kill -9 while threads write, again and again, in the same store. The writers tell through a pipe what they are about to
 * write and what the store has acknowledged. After each kill the store is opened: every key has what was acknowledged last,
 * or what was being written when the kill came, and nothing else, whole; writes of one batch are there together or not
 * at all; kv_check finds nothing.
 *
 *   crash_kv [kills [seed]]      10 kills by default, half of them with --sync always, half with group
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kv/kv.h"

#define WRITERS    2u
#define KEYS       300u /* of each writer; the last BATCH of them are only written together */
#define BATCH      8u
#define SINGLE     (KEYS - BATCH)
#define VALUE_MAX  (1u << 20)
#define ROUND      1000000u /* versions of one round */
#define TOLD_BYTES 12

/* On the pipe: less than PIPE_BUF, so never mixed with another thread's. */
struct told {
    uint16_t done; /* 0: about to; 1: acknowledged */
    uint16_t writer;
    uint32_t number, version;
};
_Static_assert(sizeof(struct told) == TOLD_BYTES, "no padding");

struct state {
    uint32_t acknowledged, intended;
};

static unsigned passed, failed;

static void expect(bool right, const char *what, const char *why)
{
    if (right)
        passed++;
    else if (failed++ < 10)
        printf("FAILED: %s: %s\n", what, why);
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state >> 20) % below);
}

static size_t key_of(unsigned owner, unsigned number, char key[32])
{
    return (size_t)snprintf(key, 32, "%08x-%u-%u", number * 2654435761u, owner, number);
}

/* One version in five of a single key is a deletion. */
static bool deletes(unsigned number, uint32_t version)
{
    return version == 0 || (number < SINGLE && version % 5 == 0);
}

static size_t value_of(unsigned owner, unsigned number, uint32_t version, unsigned char *to)
{
    uint64_t x = version * 0x9e3779b97f4a7c15u + number * 7919u + owner;
    uint32_t head[3] = {owner, number, version};
    size_t bytes = sizeof(head) + draw(&x, 150);

    if (number < SINGLE && version % 7 == 0)
        bytes = 1500 + draw(&x, version % 49 ? 30000 : VALUE_MAX - 2000);
    memcpy(to, head, sizeof(head));
    for (size_t i = sizeof(head); i < bytes; i++) {
        if (i % 8 == 0)
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        to[i] = (unsigned char)(x >> i % 8 * 8);
    }
    return bytes;
}

/* ---- the victim ---- */

static kv *store;
static uint32_t base;
static uint64_t seed;

static void tell(unsigned owner, unsigned number, uint32_t version, bool done)
{
    struct told told = {done, (uint16_t)owner, number, version};

    if (write(STDOUT_FILENO, &told, sizeof(told)) != sizeof(told))
        _exit(3);
}

static int write_batch(kv_session *s, unsigned owner, uint32_t version)
{
    static _Thread_local unsigned char value[BATCH][256];
    struct kv_write write[BATCH];
    char key[BATCH][32];
    int rc;

    for (unsigned i = 0; i < BATCH; i++) {
        unsigned number = SINGLE + i;

        write[i].key = key[i];
        write[i].key_bytes = key_of(owner, number, key[i]);
        write[i].value = value[i];
        write[i].value_bytes = value_of(owner, number, version, value[i]);
        tell(owner, number, version, false);
    }
    rc = kv_batch(s, write, BATCH);
    for (unsigned i = 0; i < BATCH && !rc; i++)
        tell(owner, SINGLE + i, version, true);
    return rc;
}

static int write_one(kv_session *s, unsigned owner, unsigned number, uint32_t version, unsigned char *value)
{
    char key[32];
    size_t key_bytes = key_of(owner, number, key);
    int rc;

    tell(owner, number, version, false);
    if (deletes(number, version)) {
        rc = kv_delete(s, key, key_bytes);
        rc = rc == KV_NOT_FOUND ? 0 : rc;
    } else
        rc = kv_put(s, key, key_bytes, value, value_of(owner, number, version, value));
    if (!rc)
        tell(owner, number, version, true);
    return rc;
}

static void *write_on(void *ctx)
{
    unsigned owner = (unsigned)(uintptr_t)ctx;
    uint64_t random = (seed + owner + 1) * 88172645463325252u + base;
    unsigned char *value = malloc(VALUE_MAX);
    kv_session *s;

    if (!value || kv_session_open(store, &s))
        _exit(4);
    for (uint32_t version = base + 1;; version++) {
        int rc = draw(&random, 20) ? write_one(s, owner, draw(&random, SINGLE), version, value)
                                   : write_batch(s, owner, version);

        if (rc) {
            fprintf(stderr, "writer: %s\n", kv_session_error(s));
            _exit(5);
        }
        if (owner == 0 && version % 200 == 0 && kv_checkpoint(s))
            _exit(6);
    }
    return NULL;
}

static int victim(char **argv)
{
    struct kv_error error = {0};
    struct kv_options how = {
        .size = sizeof(how), .memory = 3u << 20, .sync = (enum kv_sync)atoi(argv[3]), .create = true, .error = &error};
    pthread_t thread[WRITERS];

    base = (uint32_t)strtoul(argv[4], NULL, 10);
    seed = strtoull(argv[5], NULL, 10);
    if (kv_open(argv[2], &how, &store)) {
        fprintf(stderr, "writer: %s\n", error.text);
        return 2;
    }
    for (unsigned i = 0; i < WRITERS; i++)
        if (pthread_create(&thread[i], NULL, write_on, (void *)(uintptr_t)i))
            return 2;
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

/* ---- the judge ---- */

static struct state state[WRITERS][KEYS];

static void hear(const struct told *told)
{
    struct state *s = &state[told->writer % WRITERS][told->number % KEYS];

    s->intended = told->version;
    if (told->done)
        s->acknowledged = told->version;
}

/* Until the time is over, then until the end of the pipe. */
static void listen_and_kill(int fd, pid_t pid, unsigned ms)
{
    struct timespec begin, now;
    struct told told[256];
    size_t held = 0;
    bool killed = false;
    ssize_t n;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        long passed_ms;

        clock_gettime(CLOCK_MONOTONIC, &now);
        passed_ms = (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
        if (!killed && passed_ms >= (long)ms) {
            kill(pid, SIGKILL);
            killed = true;
        }
        if (poll(&p, 1, killed ? 1000 : (int)(ms - (unsigned)passed_ms)) == 0)
            continue;
        n = read(fd, (char *)told + held, sizeof(told) - held);
        if (n <= 0)
            break;
        held += (size_t)n;
        for (size_t i = 0; i < held / sizeof(told[0]); i++)
            hear(&told[i]);
        memmove(told, (char *)told + held / sizeof(told[0]) * sizeof(told[0]), held % sizeof(told[0]));
        held %= sizeof(told[0]);
    }
    if (!killed)
        kill(pid, SIGKILL);
}

static void judge_key(kv_session *s, unsigned owner, unsigned number, unsigned char *wanted)
{
    struct state *st = &state[owner][number];
    uint32_t head[3] = {0, 0, 0};
    const void *value;
    char key[32], why[120];
    size_t bytes = 0;
    int rc = kv_get(s, key, key_of(owner, number, key), &value, &bytes);
    bool either_deletes = deletes(number, st->acknowledged) || deletes(number, st->intended);

    snprintf(why, sizeof(why), "%s: %u was acknowledged, %u begun", key, st->acknowledged, st->intended);
    if (rc == KV_NOT_FOUND) {
        expect(either_deletes, why, "it is not there");
        if (deletes(number, st->intended))
            st->acknowledged = st->intended;
        st->intended = st->acknowledged;
        return;
    }
    expect(rc == 0, why, kv_session_error(s));
    if (rc || bytes < sizeof(head)) {
        expect(false, why, "no value");
        return;
    }
    memcpy(head, value, sizeof(head));
    expect(head[2] == st->acknowledged || head[2] == st->intended, why, "the value is neither");
    expect(!deletes(number, head[2]), why, "it was deleted");
    expect(value_of(owner, number, head[2], wanted) == bytes && !memcmp(value, wanted, bytes), why,
           "the value is torn");
    st->acknowledged = st->intended = head[2];
}

static void judge(const char *dir)
{
    struct kv_error error = {0};
    struct kv_options how = {.size = sizeof(how), .memory = 4u << 20, .create = true, .error = &error};
    unsigned char *wanted = malloc(VALUE_MAX);
    struct kv_check_result result;
    kv_session *s;
    int rc = kv_open(dir, &how, &store);

    expect(rc == 0, "open after a kill", error.text);
    if (rc || !wanted || kv_session_open(store, &s))
        exit(1);
    for (unsigned owner = 0; owner < WRITERS; owner++) {
        for (unsigned number = 0; number < KEYS; number++)
            judge_key(s, owner, number, wanted);
        for (unsigned i = 1; i < BATCH; i++)
            expect(state[owner][SINGLE].acknowledged == state[owner][SINGLE + i].acknowledged, "batch",
                   "only a part of it is there");
    }
    rc = kv_check(s, NULL, NULL, &result);
    expect(rc == 0, "check", kv_session_error(s));
    kv_session_close(s);
    expect(kv_close(store, &error) == 0, "close", error.text);
    free(wanted);
}

static void one_kill(const char *self, const char *dir, unsigned round, unsigned ms)
{
    char sync[8], from[16], with[24];
    int fd[2], status = 0;
    pid_t pid;

    snprintf(sync, sizeof(sync), "%d", (int)(round % 2 ? KV_SYNC_GROUP : KV_SYNC_ALWAYS));
    snprintf(from, sizeof(from), "%u", (round + 1) * ROUND);
    snprintf(with, sizeof(with), "%llu", (unsigned long long)seed);
    if (pipe(fd))
        exit(1);
    pid = fork();
    if (pid < 0)
        exit(1);
    if (!pid) {
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execl(self, self, "victim", dir, sync, from, with, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    listen_and_kill(fd[0], pid, ms);
    close(fd[0]);
    waitpid(pid, &status, 0);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "writer", "it ended by itself");
    judge(dir);
}

int main(int argc, char **argv)
{
    unsigned kills = argc > 1 ? (unsigned)atoi(argv[1]) : 10, acknowledged = 0;
    char dir[] = "crash-kv-XXXXXX", command[64];

    if (argc > 5 && !strcmp(argv[1], "victim"))
        return victim(argv);
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    if (!mkdtemp(dir))
        return 1;
    for (unsigned round = 0; round < kills && !failed; round++) {
        uint64_t random = (seed + round + 1) * 88172645463325252u;

        one_kill("/proc/self/exe", dir, round, 20 + draw(&random, 400));
    }
    for (unsigned owner = 0; owner < WRITERS; owner++)
        for (unsigned number = 0; number < KEYS; number++)
            acknowledged += state[owner][number].acknowledged > 0;
    expect(acknowledged > KEYS / 4, "writers", "hardly anything was written");
    if (failed)
        printf("the store is left in %s\n", dir);
    else {
        snprintf(command, sizeof(command), "rm -rf %s", dir);
        if (system(command))
            return 1;
    }
    printf("seed %llu, %u kills: %u passed, %u failed\n", (unsigned long long)seed, kills, passed, failed);
    return failed ? 1 : 0;
}
