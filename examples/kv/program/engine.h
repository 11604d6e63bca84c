/* SPDX-License-Identifier: MIT */
/*
 * What a benchmark runs on: this store, and others beside it. Each call is one transaction of its own, as durable as
 * settings.sync says where the engine knows such a thing.
 */
#ifndef KV_ENGINE_H
#define KV_ENGINE_H

#include "kv/program/program.h"

#define KEY_BYTES 8u

/* All return 0, or have said on stderr what is wrong. */
struct engine {
    const char *name;
    int (*open)(const struct settings *, const char *dir, void **engine);
    void (*close)(void *engine);
    /* For each thread. */
    int (*begin)(void *engine, void **session);
    void (*end)(void *session);
    /* *sum grows by what is read, so that it is read. */
    int (*get)(void *session, const void *key, uint64_t *sum);
    int (*put)(void *session, const void *key, const void *value, size_t value_bytes);
    int (*scan)(void *session, const void *from, unsigned count, uint64_t *sum);
    /* Many puts that need not be durable one by one, and the end of them. */
    int (*load)(void *session, const void *key, const void *value, size_t value_bytes);
    int (*loaded)(void *session);
    int (*count)(void *session, uint64_t *entries);
};

extern const struct engine engine_kv;
#ifdef KV_LMDB
extern const struct engine engine_lmdb;
#endif
#ifdef KV_ROCKSDB
extern const struct engine engine_rocksdb;
#endif

#endif
