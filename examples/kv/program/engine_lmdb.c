/* SPDX-License-Identifier: MIT */
/* LMDB, for the benchmark (Debian: liblmdb-dev). A read renews the thread's transaction, as a server's would. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <lmdb.h>

#include "kv/program/engine.h"

#define MAP_BYTES      (64ull << 30)
#define LOAD_AT_A_TIME 1000u

struct db {
    MDB_env *env;
    MDB_dbi dbi;
};

struct on {
    struct db *db;
    MDB_txn *read, *write; /* write: of a load */
    unsigned written;
};

static int fail(const char *what, int rc)
{
    return program_fail(what, mdb_strerror(rc));
}

static int open_lmdb(const struct settings *set, const char *dir, void **engine)
{
    struct db *db = calloc(1, sizeof(*db));
    MDB_txn *txn;
    int rc;

    if (!db)
        return program_fail("lmdb", "no memory");
    mkdir(dir, 0700);
    rc = mdb_env_create(&db->env);
    if (!rc)
        rc = mdb_env_set_mapsize(db->env, MAP_BYTES);
    if (!rc)
        rc = mdb_env_open(db->env, dir, MDB_NOTLS | MDB_NORDAHEAD | (set->sync == KV_SYNC_NONE ? MDB_NOSYNC : 0), 0600);
    if (!rc)
        rc = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (!rc) {
        rc = mdb_dbi_open(txn, NULL, MDB_CREATE, &db->dbi);
        rc = rc ? rc : mdb_txn_commit(txn);
    }
    if (rc) {
        free(db);
        return fail("lmdb", rc);
    }
    *engine = db;
    return 0;
}

static void close_lmdb(void *engine)
{
    struct db *db = engine;

    mdb_env_close(db->env);
    free(db);
}

static int begin(void *engine, void **session)
{
    struct on *on = calloc(1, sizeof(*on));
    int rc;

    if (!on)
        return program_fail("lmdb", "no memory");
    on->db = engine;
    rc = mdb_txn_begin(on->db->env, NULL, MDB_RDONLY, &on->read);
    if (rc) {
        free(on);
        return fail("lmdb", rc);
    }
    mdb_txn_reset(on->read);
    *session = on;
    return 0;
}

static void end(void *session)
{
    struct on *on = session;

    mdb_txn_abort(on->read);
    free(on);
}

static void add(uint64_t *sum, const MDB_val *value)
{
    uint64_t word;

    memcpy(&word, value->mv_data, sizeof(word));
    *sum += word;
}

static int get(void *session, const void *key, uint64_t *sum)
{
    struct on *on = session;
    MDB_val k = {KEY_BYTES, (void *)(uintptr_t)key}, v;
    int rc = mdb_txn_renew(on->read);

    if (!rc)
        rc = mdb_get(on->read, on->db->dbi, &k, &v);
    if (!rc)
        add(sum, &v);
    mdb_txn_reset(on->read);
    return rc ? fail("lmdb get", rc) : 0;
}

static int put(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct on *on = session;
    MDB_val k = {KEY_BYTES, (void *)(uintptr_t)key}, v = {value_bytes, (void *)(uintptr_t)value};
    MDB_txn *txn;
    int rc = mdb_txn_begin(on->db->env, NULL, 0, &txn);

    if (!rc) {
        rc = mdb_put(txn, on->db->dbi, &k, &v, 0);
        if (rc)
            mdb_txn_abort(txn);
        else
            rc = mdb_txn_commit(txn);
    }
    return rc ? fail("lmdb put", rc) : 0;
}

static int scan(void *session, const void *from, unsigned count, uint64_t *sum)
{
    struct on *on = session;
    MDB_val k = {KEY_BYTES, (void *)(uintptr_t)from}, v;
    MDB_cursor *cursor = NULL;
    int rc = mdb_txn_renew(on->read);

    if (!rc)
        rc = mdb_cursor_open(on->read, on->db->dbi, &cursor);
    if (!rc)
        rc = mdb_cursor_get(cursor, &k, &v, MDB_SET_RANGE);
    for (unsigned i = 0; i < count && !rc; i++) {
        add(sum, &v);
        rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    if (cursor)
        mdb_cursor_close(cursor);
    mdb_txn_reset(on->read);
    return rc && rc != MDB_NOTFOUND ? fail("lmdb scan", rc) : 0;
}

static int loaded(void *session)
{
    struct on *on = session;
    int rc = on->write ? mdb_txn_commit(on->write) : 0;

    on->write = NULL;
    on->written = 0;
    return rc ? fail("lmdb load", rc) : 0;
}

static int load(void *session, const void *key, const void *value, size_t value_bytes)
{
    struct on *on = session;
    MDB_val k = {KEY_BYTES, (void *)(uintptr_t)key}, v = {value_bytes, (void *)(uintptr_t)value};
    int rc = on->write ? 0 : mdb_txn_begin(on->db->env, NULL, 0, &on->write);

    if (!rc)
        rc = mdb_put(on->write, on->db->dbi, &k, &v, 0);
    if (rc)
        return fail("lmdb load", rc);
    return ++on->written % LOAD_AT_A_TIME ? 0 : loaded(session);
}

static int count(void *session, uint64_t *entries)
{
    struct on *on = session;
    MDB_stat stat;
    int rc = mdb_txn_renew(on->read);

    if (!rc)
        rc = mdb_stat(on->read, on->db->dbi, &stat);
    mdb_txn_reset(on->read);
    if (rc)
        return fail("lmdb stat", rc);
    *entries = stat.ms_entries;
    return 0;
}

const struct engine engine_lmdb = {"lmdb", open_lmdb, close_lmdb, begin, end, get, put, scan, load, loaded, count};
