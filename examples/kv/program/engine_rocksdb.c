/* SPDX-License-Identifier: MIT */
/* RocksDB, for the benchmark (Debian: librocksdb-dev), with the same memory as a block cache, and a Bloom filter. */
#include <stdlib.h>
#include <string.h>

#include <rocksdb/c.h>

#include "kv/program/engine.h"

struct db {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write, *loose;
};

static int fail(const char *what, char *why)
{
    int rc = program_fail(what, why);

    rocksdb_free(why);
    return rc;
}

static void close_rocksdb(void *engine)
{
    struct db *db = engine;

    if (db->db)
        rocksdb_close(db->db);
    rocksdb_readoptions_destroy(db->read);
    rocksdb_writeoptions_destroy(db->write);
    rocksdb_writeoptions_destroy(db->loose);
    rocksdb_options_destroy(db->options);
    rocksdb_block_based_options_destroy(db->table);
    rocksdb_cache_destroy(db->cache);
    free(db);
}

static int open_rocksdb(const struct settings *set, const char *dir, void **engine)
{
    struct db *db = calloc(1, sizeof(*db));
    char *why = NULL;

    if (!db)
        return program_fail("rocksdb", "no memory");
    db->options = rocksdb_options_create();
    db->table = rocksdb_block_based_options_create();
    db->cache = rocksdb_cache_create_lru((size_t)set->memory);
    db->read = rocksdb_readoptions_create();
    db->write = rocksdb_writeoptions_create();
    db->loose = rocksdb_writeoptions_create();
    rocksdb_options_set_create_if_missing(db->options, 1);
    rocksdb_options_set_compression(db->options, rocksdb_no_compression);
    rocksdb_block_based_options_set_block_cache(db->table, db->cache);
    rocksdb_block_based_options_set_filter_policy(db->table, rocksdb_filterpolicy_create_bloom(10));
    rocksdb_options_set_block_based_table_factory(db->options, db->table);
    rocksdb_writeoptions_set_sync(db->write, set->sync != KV_SYNC_NONE);
    db->db = rocksdb_open(db->options, dir, &why);
    if (why) {
        close_rocksdb(db);
        return fail("rocksdb", why);
    }
    *engine = db;
    return 0;
}

static int begin(void *engine, void **session)
{
    *session = engine;
    return 0;
}

static void end(void *session)
{
    (void)session;
}

static int get(void *session, const void *key, uint64_t *sum)
{
    struct db *db = session;
    rocksdb_pinnableslice_t *slice;
    char *why = NULL;
    const char *value;
    uint64_t word;
    size_t bytes;

    slice = rocksdb_get_pinned(db->db, db->read, key, KEY_BYTES, &why);
    if (why)
        return fail("rocksdb get", why);
    if (!slice)
        return program_fail("rocksdb get", "no such key");
    value = rocksdb_pinnableslice_value(slice, &bytes);
    memcpy(&word, value, sizeof(word));
    *sum += word;
    rocksdb_pinnableslice_destroy(slice);
    return 0;
}

static int put(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct db *db = session;
    char *why = NULL;

    rocksdb_put(db->db, db->write, key, KEY_BYTES, value, value_bytes, &why);
    return why ? fail("rocksdb put", why) : 0;
}

static int load(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct db *db = session;
    char *why = NULL;

    rocksdb_put(db->db, db->loose, key, KEY_BYTES, value, value_bytes, &why);
    return why ? fail("rocksdb load", why) : 0;
}

static int loaded(void *session)
{
    struct db *db = session;

    rocksdb_compact_range(db->db, NULL, 0, NULL, 0);
    return 0;
}

static int scan(void *session, const void *from, unsigned count, uint64_t *sum)
{
    struct db *db = session;
    rocksdb_iterator_t *at = rocksdb_create_iterator(db->db, db->read);

    rocksdb_iter_seek(at, from, KEY_BYTES);
    for (unsigned i = 0; i < count && rocksdb_iter_valid(at); i++) {
        uint64_t word;
        size_t bytes;

        memcpy(&word, rocksdb_iter_value(at, &bytes), sizeof(word));
        *sum += word;
        rocksdb_iter_next(at);
    }
    rocksdb_iter_destroy(at);
    return 0;
}

static int count(void *session, uint64_t *entries)
{
    struct db *db = session;
    char *text = rocksdb_property_value(db->db, "rocksdb.estimate-num-keys");

    *entries = text ? strtoull(text, NULL, 10) : 0;
    rocksdb_free(text);
    return 0;
}

const struct engine engine_rocksdb = {"rocksdb", open_rocksdb, close_rocksdb, begin,  end,  get,
                                      put,       scan,         load,          loaded, count};
