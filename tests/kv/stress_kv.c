/* SPDX-License-Identifier: MIT */
/*
 * Several threads in one store that is larger than its pool: each owns some of the keys, which lie scattered among the
 * others', and must find what it wrote; one scans everything, where keys must ascend and values fit their keys; one takes
 * checkpoints. At the end everything is there, and kv_check finds nothing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kv/kv.h"

#define WRITERS 3u
#define KEYS    6000u /* of each writer */
#define BATCH   20u

struct writer {
    pthread_t thread;
    unsigned number;
    uint32_t version[KEYS]; /* 0: not there */
    uint64_t random;
};

static kv *store;
static _Atomic bool stop;
static _Atomic unsigned passed, failed;
static struct writer writer[WRITERS];

static void expect(bool right, const char *what, const char *why)
{
    if (right)
        atomic_fetch_add(&passed, 1);
    else if (atomic_fetch_add(&failed, 1) < 10)
        printf("FAILED: %s: %s\n", what, why);
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state >> 20) % below);
}

struct key {
    uint64_t scattered;
    uint32_t owner, number;
};

static struct key key_of(unsigned owner, unsigned number)
{
    struct key key = {.owner = owner, .number = number};

    key.scattered = (number * 3u + 1) * 0x9e3779b97f4a7c15u + owner;
    return key;
}

/* The first 12 bytes say whose it is; one in fifty is large. */
static size_t value_of(const struct key *key, uint32_t version, uint32_t *to)
{
    size_t words = 3 + (version * 7919u + key->number) % 60;

    if ((version + key->number) % 50 == 0)
        words = 500 + (version * 31u + key->number) % 5000;
    to[0] = key->owner;
    to[1] = key->number;
    to[2] = version;
    for (size_t i = 3; i < words; i++)
        to[i] = version * 2654435761u + (uint32_t)i;
    return words * 4;
}

static bool right(const struct key *key, const void *value, size_t bytes)
{
    uint32_t seen[3], wanted[6000];

    if (bytes < sizeof(seen))
        return false;
    memcpy(seen, value, sizeof(seen));
    return value_of(key, seen[2], wanted) == bytes && !memcmp(value, wanted, bytes);
}

static void do_get(struct writer *w, kv_session *s, unsigned number)
{
    struct key key = key_of(w->number, number);
    const void *value;
    uint32_t version;
    size_t bytes;
    int rc = kv_get(s, &key, sizeof(key), &value, &bytes);

    expect(rc == (w->version[number] ? 0 : KV_NOT_FOUND), "get", rc ? kv_session_error(s) : "it is not there");
    if (rc)
        return;
    expect(right(&key, value, bytes), "get", "the value is another one");
    memcpy(&version, (const char *)value + 8, 4);
    expect(version == w->version[number], "get", "the value is an older one");
}

static void do_batch(struct writer *w, kv_session *s)
{
    static _Thread_local uint32_t values[BATCH][6000];
    struct kv_write write[BATCH];
    struct key key[BATCH];
    unsigned count = 0;
    int rc;

    for (unsigned i = 0; i < BATCH; i++) {
        unsigned number = draw(&w->random, KEYS);
        size_t bytes;

        key[count] = key_of(w->number, number);
        bytes = value_of(&key[count], w->version[number] + 1, values[count]);
        if (bytes > 900)
            continue;
        w->version[number]++;
        write[count] = (struct kv_write){&key[count], values[count], sizeof(*key), bytes};
        count++;
    }
    rc = kv_batch(s, write, count);
    expect(rc == 0, "batch", kv_session_error(s));
}

static void *write_keys(void *ctx)
{
    static _Thread_local uint32_t value[6000];
    struct writer *w = ctx;
    kv_session *s;

    if (kv_session_open(store, &s)) {
        expect(false, "session", "refused");
        return NULL;
    }
    for (unsigned n = 0; !atomic_load(&stop) && !atomic_load(&failed); n++) {
        unsigned number = draw(&w->random, KEYS), what = draw(&w->random, 100);
        struct key key = key_of(w->number, number);
        int rc = 0;

        if (what < 45) {
            size_t bytes = value_of(&key, w->version[number] + 1, value);

            rc = kv_put(s, &key, sizeof(key), value, bytes);
            w->version[number]++;
            expect(rc == 0, "put", kv_session_error(s));
        } else if (what < (n / 20000 % 2 ? 85u : 55u)) { /* now and then more goes than comes: pages are joined */
            rc = kv_delete(s, &key, sizeof(key));
            expect(rc == (w->version[number] ? 0 : KV_NOT_FOUND), "delete", kv_session_error(s));
            w->version[number] = 0;
        } else if (what < 56)
            do_batch(w, s);
        else
            do_get(w, s, number);
    }
    kv_session_close(s);
    return NULL;
}

static void *scan_all(void *ctx)
{
    kv_session *s;

    (void)ctx;
    if (kv_session_open(store, &s)) {
        expect(false, "session", "refused");
        return NULL;
    }
    for (unsigned n = 0; !atomic_load(&stop) && !atomic_load(&failed); n++) {
        struct key before = {0}, key;
        const void *k, *v;
        size_t kb, vb;
        kv_scan *scan;
        bool reverse = n % 2, fine = true;
        int rc = kv_scan_open(s, NULL, 0, NULL, 0, reverse ? KV_REVERSE : 0, &scan);

        for (unsigned i = 0; !rc && fine && !atomic_load(&stop); i++) {
            rc = kv_scan_next(scan, &k, &kb, &v, &vb);
            if (rc)
                break;
            fine = kb == sizeof(key);
            memcpy(&key, k, sizeof(key));
            fine = fine && right(&key, v, vb) && (!i || (memcmp(&before, &key, sizeof(key)) < 0) != reverse);
            before = key;
        }
        expect(!rc || rc == KV_NOT_FOUND, "scan", kv_session_error(s));
        expect(fine, "scan", "out of order, or another key's value");
        kv_scan_close(scan);
    }
    kv_session_close(s);
    return NULL;
}

static void *checkpoints(void *ctx)
{
    kv_session *s;

    (void)ctx;
    if (kv_session_open(store, &s)) {
        expect(false, "session", "refused");
        return NULL;
    }
    while (!atomic_load(&stop) && !atomic_load(&failed)) {
        expect(kv_checkpoint(s) == 0, "checkpoint", kv_session_error(s));
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    kv_session_close(s);
    return NULL;
}

static void tell(void *ctx, const char *line)
{
    (void)ctx;
    printf("  %s\n", line);
}

int main(void)
{
    const char *seconds = getenv("BP_STRESS_SECONDS");
    struct kv_error error = {0};
    struct kv_options how = {
        .size = sizeof(how), .memory = 3u << 20, .sync = KV_SYNC_NONE, .create = true, .log = tell, .error = &error};
    struct kv_check_result result;
    struct kv_stat stat;
    pthread_t others[2];
    char dir[] = "stress-kv-XXXXXX", command[64];
    kv_session *s;

    if (!mkdtemp(dir) || kv_open(dir, &how, &store)) {
        printf("%s\n", error.text);
        return 1;
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        writer[i].number = i;
        writer[i].random = 88172645463325252u + i * 7919;
        if (pthread_create(&writer[i].thread, NULL, write_keys, &writer[i]))
            return 1;
    }
    if (pthread_create(&others[0], NULL, scan_all, NULL) || pthread_create(&others[1], NULL, checkpoints, NULL))
        return 1;
    nanosleep(&(struct timespec){.tv_sec = seconds ? atoi(seconds) : 2}, NULL);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writer[i].thread, NULL);
    pthread_join(others[0], NULL);
    pthread_join(others[1], NULL);
    if (kv_session_open(store, &s))
        return 1;
    for (unsigned i = 0; i < WRITERS; i++)
        for (unsigned n = 0; n < KEYS; n++)
            do_get(&writer[i], s, n);
    expect(kv_check(s, tell, NULL, &result) == 0, "check", kv_session_error(s));
    kv_session_close(s);
    if (!kv_stat(store, &stat))
        printf("%llu keys, %llu splits, %llu merges, %llu restarts, %llu checkpoints\n",
               (unsigned long long)stat.entries, (unsigned long long)stat.splits, (unsigned long long)stat.merges,
               (unsigned long long)stat.restarts, (unsigned long long)stat.checkpoints);
    expect(kv_close(store, &error) == 0, "close", error.text);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    if (system(command))
        return 1;
    printf("%u passed, %u failed\n", atomic_load(&passed), atomic_load(&failed));
    return atomic_load(&failed) ? 1 : 0;
}
