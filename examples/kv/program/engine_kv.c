/* SPDX-License-Identifier: MIT */
/* This store, for the benchmark. */
#include <stdlib.h>
#include <string.h>

#include "kv/program/engine.h"

struct on {
    kv *store;
    kv_session *s;
    struct kv_write write[KV_BATCH_MAX]; /* of a load */
    char *room;
    size_t count, value_bytes;
};

static int open_kv(const struct settings *set, const char *dir, void **engine)
{
    struct settings mine = *set;
    kv *store;

    mine.dir = dir;
    store = program_open(&mine, true);
    *engine = store;
    return store ? 0 : EXIT_FAILED;
}

static void close_kv(void *engine)
{
    (void)program_close(engine, NULL);
}

static int begin(void *engine, void **session)
{
    struct on *on = calloc(1, sizeof(*on));

    if (!on || kv_session_open(engine, &on->s)) {
        free(on);
        return program_fail("session", "refused");
    }
    on->store = engine;
    *session = on;
    return 0;
}

static void end(void *session)
{
    struct on *on = session;

    kv_session_close(on->s);
    free(on->room);
    free(on);
}

static int get(void *session, const void *key, uint64_t *sum)
{
    struct on *on = session;
    const void *value;
    uint64_t word;
    size_t bytes;

    if (kv_get(on->s, key, KEY_BYTES, &value, &bytes))
        return program_fail("get", kv_session_error(on->s));
    memcpy(&word, value, sizeof(word));
    *sum += word;
    return 0;
}

static int put(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct on *on = session;

    return kv_put(on->s, key, KEY_BYTES, value, value_bytes) ? program_fail("put", kv_session_error(on->s)) : 0;
}

static int scan(void *session, const void *from, unsigned count, uint64_t *sum)
{
    struct on *on = session;
    const void *key, *value;
    size_t key_bytes, bytes;
    kv_scan *range;
    int rc = kv_scan_open(on->s, from, KEY_BYTES, NULL, 0, 0, &range);

    for (unsigned i = 0; i < count && !rc; i++) {
        uint64_t word;

        rc = kv_scan_next(range, &key, &key_bytes, &value, &bytes);
        if (!rc) {
            memcpy(&word, value, sizeof(word));
            *sum += word;
        }
    }
    if (!rc || rc == KV_NOT_FOUND) {
        kv_scan_close(range);
        return 0;
    }
    return program_fail("scan", kv_session_error(on->s));
}

static int flush(struct on *on)
{
    int rc = kv_batch(on->s, on->write, on->count);

    on->count = 0;
    return rc ? program_fail("batch", kv_session_error(on->s)) : 0;
}

static int load(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct on *on = session;
    char *at;

    kv_session_defer(on->s, true);
    if (KEY_BYTES + value_bytes > 1024)
        return put(session, key, value, value_bytes);
    if (!on->room)
        on->room = malloc(KV_BATCH_MAX * (KEY_BYTES + value_bytes));
    if (!on->room)
        return program_fail("load", "no memory");
    at = on->room + on->count * (KEY_BYTES + value_bytes);
    memcpy(at, key, KEY_BYTES);
    memcpy(at + KEY_BYTES, value, value_bytes);
    on->write[on->count++] = (struct kv_write){at, at + KEY_BYTES, KEY_BYTES, value_bytes};
    return on->count == KV_BATCH_MAX || on->count * (KEY_BYTES + value_bytes) > KV_BATCH_BYTES / 2 ? flush(on) : 0;
}

static int loaded(void *session)
{
    struct on *on = session;
    int rc = flush(on);

    kv_session_defer(on->s, false);
    if (!rc && kv_checkpoint(on->s))
        rc = program_fail("checkpoint", kv_session_error(on->s));
    return rc;
}

static int count(void *session, uint64_t *entries)
{
    struct on *on = session;
    struct kv_stat stat;
    int rc = kv_stat(on->store, &stat);

    *entries = stat.entries;
    return rc ? program_fail("stat", kv_strerror(rc)) : 0;
}

const struct engine engine_kv = {"kv", open_kv, close_kv, begin, end, get, put, scan, load, loaded, count};
