/* SPDX-License-Identifier: MIT */
/*
 * Random operations against a model: an array that says for each of some thousand keys whether it is there and with what value.
 * Short, long, and alike keys; values from none to several hundred KiB. Between rounds the store is closed and opened, or
 * "crashed": its files are copied while it is open, pages before the log, which is what a crash leaves, and half of the pages
 * that were written since the last checkpoint are torn at 512 bytes, which is what a power cut may leave; the copy is opened,
 * and everything that was acknowledged must be in it. Every round ends with kv_check.
 *
 *   model_kv [seed]      BP_STRESS_SECONDS: how long, instead of 2 s
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kv/store.h"

#define KEYS   4000u
#define ROUND  2000u
#define MEMORY (4u << 20)

struct model_key {
    unsigned char bytes[KV_KEY_MAX];
    size_t count;
    bool there;
    uint32_t value_bytes, value_seed;
};

static struct model_key *key; /* in order */
static unsigned char *value;  /* room for one */
static uint64_t random_state;
static unsigned failed, passed, torn_pages;
static char dir[64], other[80];

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 20) % below);
}

static void expect(bool right, const char *what, const char *why)
{
    if (right) {
        passed++;
        return;
    }
    if (failed++ < 10)
        printf("FAILED: %s: %s\n", what, why);
}

static int compare_keys(const void *a, const void *b)
{
    const struct model_key *x = a, *y = b;
    size_t least = x->count < y->count ? x->count : y->count;
    int order = memcmp(x->bytes, y->bytes, least);

    return order ? order : (x->count > y->count) - (x->count < y->count);
}

static void make_keys(void)
{
    for (unsigned i = 0; i < KEYS; i++) {
        struct model_key *k = &key[i];
        unsigned kind = i % 4;

        memset(k, 0, sizeof(*k));
        k->count = kind == 0   ? 8
                   : kind == 1 ? 1 + draw(40)
                   : kind == 2 ? 100 + draw(KV_KEY_MAX - 99) /* long, and alike for long */
                               : 12;
        for (size_t j = 0; j < k->count; j++)
            k->bytes[j] = kind == 2 && j + 6 < k->count ? 'x' : (unsigned char)draw(256);
        if (kind == 3)
            memcpy(k->bytes, "user0000", 8);
    }
    qsort(key, KEYS, sizeof(*key), compare_keys);
    for (unsigned i = 1; i < KEYS; i++) /* each key once; the rest of the array stays in order */
        if (!compare_keys(&key[i - 1], &key[i]))
            key[i].count = 0;
}

static void fill_value(uint32_t seed, uint32_t bytes)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;

    for (uint32_t i = 0; i < bytes; i++) {
        if (i % 8 == 0)
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        value[i] = (unsigned char)(x >> i % 8 * 8);
    }
}

static bool right_value(const struct model_key *k, const void *bytes, size_t count)
{
    if (count != k->value_bytes)
        return false;
    fill_value(k->value_seed, k->value_bytes);
    return !memcmp(bytes, value, count);
}

static uint32_t draw_bytes(void)
{
    switch (draw(20)) {
    case 0:
        return draw(3) ? draw(20000) : draw(150000);
    case 1:
    case 2:
        return 900 + draw(300);
    case 3:
        return 0;
    default:
        return draw(200);
    }
}

static struct model_key *draw_key(void)
{
    struct model_key *k;

    do
        k = &key[draw(KEYS)];
    while (!k->count);
    return k;
}

static void do_put(kv_session *s)
{
    struct model_key *k = draw_key();
    int rc;

    k->value_bytes = draw_bytes();
    k->value_seed = draw(1u << 30);
    k->there = true;
    fill_value(k->value_seed, k->value_bytes);
    rc = kv_put(s, k->bytes, k->count, value, k->value_bytes);
    expect(rc == 0, "put", kv_session_error(s));
}

static void do_get(kv_session *s)
{
    struct model_key *k = draw_key();
    const void *found;
    size_t bytes = 0, length = 0;
    int rc = kv_get(s, k->bytes, k->count, &found, &bytes);

    expect(rc == (k->there ? 0 : KV_NOT_FOUND), "get", rc ? kv_session_error(s) : "it should not be there");
    if (rc || !k->there)
        return;
    expect(right_value(k, found, bytes), "get", "the wrong value");
    rc = kv_length(s, k->bytes, k->count, &length);
    expect(rc == 0 && length == k->value_bytes, "length", "the wrong length");
}

static void do_delete(kv_session *s)
{
    struct model_key *k = draw_key();
    int rc = kv_delete(s, k->bytes, k->count);

    expect(rc == (k->there ? 0 : KV_NOT_FOUND), "delete", rc ? kv_session_error(s) : "it was not there");
    k->there = false;
}

/* Some of them twice: the later one counts. */
static void do_batch(kv_session *s)
{
    enum { MOST = 60 };
    static unsigned char values[MOST][600];
    struct kv_write write[MOST];
    unsigned count = 1 + draw(MOST);
    int rc;

    for (unsigned i = 0; i < count; i++) {
        struct model_key *k;

        do
            k = draw_key();
        while (k->count > 400);
        write[i] = (struct kv_write){.key = k->bytes, .key_bytes = k->count};
        k->there = draw(3) != 0;
        if (!k->there)
            continue;
        k->value_bytes = draw(600);
        k->value_seed = draw(1u << 30);
        fill_value(k->value_seed, k->value_bytes);
        memcpy(values[i], value, k->value_bytes);
        write[i].value = values[i];
        write[i].value_bytes = k->value_bytes;
    }
    rc = kv_batch(s, write, count);
    expect(rc == 0, "batch", kv_session_error(s));
}

/* More than a page takes, into an empty store, in order. */
static void do_first_batch(kv_session *s)
{
    enum { MOST = KV_BATCH_MAX };
    struct kv_write write[MOST];
    unsigned count = 0;
    int rc;

    memset(value, 'v', 200);
    for (unsigned i = 0; i < KEYS && count < MOST; i++)
        if (key[i].count && key[i].count < 100)
            write[count++] = (struct kv_write){key[i].bytes, value, key[i].count, 200};
    rc = kv_batch(s, write, count);
    expect(rc == 0, "first batch", kv_session_error(s));
    for (unsigned i = 0; i < count; i++)
        write[i].value = NULL;
    rc = kv_batch(s, write, count);
    expect(rc == 0, "last of the first batch", kv_session_error(s));
}

/* From one key (or the end) to another one, in either direction. */
static void do_scan(kv_session *s, bool all)
{
    unsigned a = draw(KEYS), b = draw(KEYS), from, to;
    bool reverse = draw(2), open_from = all || draw(8) == 0, open_to = all || draw(8) == 0, right = true;
    const void *k, *v;
    size_t kb, vb;
    kv_scan *scan;
    int rc;

    while (!key[a].count)
        a = (a + 1) % KEYS;
    while (!key[b].count)
        b = (b + 1) % KEYS;
    from = open_from ? 0 : a < b ? a : b;
    to = open_to ? KEYS : a < b ? b : a;
    rc = kv_scan_open(s, open_from ? NULL : key[from].bytes, key[from].count, open_to ? NULL : key[to].bytes,
                      open_to ? 0 : key[to].count, reverse ? KV_REVERSE : 0, &scan);
    expect(rc == 0, "scan", kv_session_error(s));
    if (rc)
        return;
    for (unsigned n = 0; n < to - from && right; n++) {
        struct model_key *wanted = &key[reverse ? to - 1 - n : from + n];

        if (!wanted->count || !wanted->there)
            continue;
        rc = kv_scan_next(scan, &k, &kb, &v, &vb);
        right = !rc && kb == wanted->count && !memcmp(k, wanted->bytes, kb) && right_value(wanted, v, vb);
    }
    if (right)
        right = kv_scan_next(scan, &k, &kb, &v, &vb) == KV_NOT_FOUND;
    expect(right, reverse ? "backward scan" : "scan", "another entry than the model's");
    kv_scan_close(scan);
}

static void say(void *ctx, const char *line)
{
    (void)ctx;
    printf("  %s\n", line);
}

static kv *open_store(const char *path)
{
    struct kv_error error = {0};
    struct kv_options how = {
        .size = sizeof(how), .memory = MEMORY, .sync = KV_SYNC_ALWAYS, .create = true, .log = say, .error = &error};
    kv *store = NULL;
    int rc = kv_open(path, &how, &store);

    expect(rc == 0, "open", error.text);
    if (rc)
        exit(1);
    return store;
}

static void check_store(kv_session *s)
{
    struct kv_check_result result;
    unsigned there = 0;
    int rc = kv_check(s, say, NULL, &result);

    for (unsigned i = 0; i < KEYS; i++)
        there += key[i].count && key[i].there;
    expect(rc == 0, "check", kv_session_error(s));
    expect(result.entries == there, "check", "another number of entries");
}

static void run(const char *command)
{
    if (system(command))
        expect(false, "command", command);
}

/* Pages that were written since the checkpoint, as a power cut may have left them: some sectors are not there. */
static void tear_pages(void)
{
    struct checkpoint c;
    struct page page;
    unsigned torn = 0;
    int dir_fd = open(other, O_RDONLY | O_DIRECTORY), fd;

    if (dir_fd < 0 || checkpoint_read(dir_fd, &c, NULL)) {
        expect(false, "checkpoint", "cannot be read");
        return;
    }
    fd = openat(dir_fd, DATA_NAME, O_RDWR);
    for (off_t at = PAGE_BYTES; pread(fd, &page, PAGE_BYTES, at) == (ssize_t)PAGE_BYTES; at += PAGE_BYTES)
        if (page.lsn > c.position && draw(2)) {
            off_t sector = 512 * (off_t)draw(8);

            memset(&page, 0xa5, 512);
            torn += pwrite(fd, &page, 512, at + sector) == 512;
        }
    close(fd);
    close(dir_fd);
    checkpoint_free(&c);
    torn_pages += torn;
}

/* What a crash leaves: the files as they are now. Pages first: the log must not be older than they are. */
static void crash(kv_session *me)
{
    char command[1024];
    kv_session *s;
    kv *store;

    expect(kv_commit(me) == 0, "commit", kv_session_error(me));
    snprintf(command, sizeof(command),
             "rm -rf %s && mkdir %s && cp %s/data %s/values %s && cp %s/log.* %s/checkpoint %s", other, other, dir, dir,
             other, dir, dir, other);
    run(command);
    tear_pages();
    store = open_store(other);
    if (kv_session_open(store, &s)) {
        expect(false, "session", "after a crash");
        return;
    }
    do_scan(s, true);
    check_store(s);
    kv_session_close(s);
    expect(kv_close(store, NULL) == 0, "close", "after a crash");
}

static kv *reopen(kv *store, kv_session **s)
{
    struct kv_error error = {0};

    kv_session_close(*s);
    expect(kv_close(store, &error) == 0, "close", error.text);
    store = open_store(dir);
    if (kv_session_open(store, s))
        exit(1);
    kv_session_defer(*s, true);
    return store;
}

static void play(kv_session *s, unsigned deletes)
{
    for (unsigned i = 0; i < ROUND && failed < 10; i++) {
        uint32_t what = draw(100);

        if (what < deletes)
            do_delete(s);
        else if (what < 55)
            do_put(s);
        else if (what < 97)
            do_get(s);
        else if (what < 98)
            do_batch(s);
        else
            do_scan(s, draw(50) == 0);
    }
}

int main(int argc, char **argv)
{
    const char *seconds = getenv("BP_STRESS_SECONDS");
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 2);
    char command[256];
    kv_session *s;
    kv *store;

    random_state = seed * 2654435761u + 88172645463325252u;
    key = calloc(KEYS, sizeof(*key));
    value = malloc(KV_VALUE_MAX);
    snprintf(dir, sizeof(dir), "model-kv-XXXXXX");
    if (!key || !value || !mkdtemp(dir))
        return 1;
    snprintf(other, sizeof(other), "%s.crash", dir);
    make_keys();
    store = open_store(dir);
    if (kv_session_open(store, &s))
        return 1;
    kv_session_defer(s, true); /* one commit before each crash is enough: a sync takes longer than all the rest */
    do_first_batch(s);
    do_scan(s, true);
    for (unsigned round = 0; (time(NULL) < end || round < 2) && failed < 10; round++) {
        play(s, round % 3 == 2 ? 50 : 5); /* growing, growing, shrinking */
        if (round % 2 == 0)
            expect(kv_checkpoint(s) == 0, "checkpoint", kv_session_error(s));
        play(s, round % 3 == 2 ? 50 : 10);
        crash(s);
        if (round % 3 == 1)
            store = reopen(store, &s);
        else
            check_store(s);
    }
    kv_session_close(s);
    expect(kv_close(store, NULL) == 0, "close", "");
    snprintf(command, sizeof(command), "rm -rf %s %s", dir, other);
    run(command);
    expect(torn_pages > 0, "torn pages", "there were none");
    printf("seed %llu, %u pages torn: %u passed, %u failed\n", (unsigned long long)seed, torn_pages, passed, failed);
    return failed ? 1 : 0;
}
