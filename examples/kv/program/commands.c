/* SPDX-License-Identifier: MIT */
/* The small commands. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "kv/program/program.h"

/* The i-th word of the command line as bytes, in place. */
static int word(const struct settings *set, int i, const char *name, struct kv_write *into)
{
    long count;

    if (i >= set->count) {
        fprintf(stderr, "kv: %s: a %s is missing\n", set->command, name);
        return -1;
    }
    count = text_bytes(set->rest[i], strlen(set->rest[i]), set->rest[i]);
    if (count < 0) {
        fprintf(stderr, "kv: %s: the %s has an unknown escape\n", set->command, name);
        return -1;
    }
    into->key = set->rest[i];
    into->key_bytes = (size_t)count;
    return 0;
}

/* Store and session. */
static int open_both(const struct settings *set, bool create, kv **store, kv_session **s)
{
    int rc;

    *store = program_open(set, create);
    if (!*store)
        return EXIT_FAILED;
    rc = kv_session_open(*store, s);
    if (rc) {
        (void)kv_close(*store, NULL);
        return program_fail("session", kv_strerror(rc));
    }
    return 0;
}

int command_get(const struct settings *set)
{
    struct kv_write key;
    const void *value;
    size_t bytes;
    kv_session *s;
    kv *store;
    int rc, result = EXIT_OK;

    if (word(set, 0, "key", &key))
        return EXIT_USAGE;
    if (open_both(set, false, &store, &s))
        return EXIT_FAILED;
    rc = kv_get(s, key.key, key.key_bytes, &value, &bytes);
    if (!rc && (fwrite(value, 1, bytes, stdout) != bytes || putchar('\n') == EOF))
        result = program_fail("writing", strerror(errno));
    if (rc)
        result = program_fail("get", rc == KV_NOT_FOUND ? kv_strerror(rc) : kv_session_error(s));
    return program_close(store, s) ? EXIT_FAILED : result;
}

int command_put(const struct settings *set)
{
    struct kv_write key, value;
    kv_session *s;
    kv *store;
    int result = EXIT_OK;

    if (word(set, 0, "key", &key) || word(set, 1, "value", &value))
        return EXIT_USAGE;
    if (open_both(set, true, &store, &s))
        return EXIT_FAILED;
    if (kv_put(s, key.key, key.key_bytes, value.key, value.key_bytes))
        result = program_fail("put", kv_session_error(s));
    return program_close(store, s) ? EXIT_FAILED : result;
}

int command_delete(const struct settings *set)
{
    int result = EXIT_OK;
    kv_session *s;
    kv *store;

    if (!set->count) {
        fprintf(stderr, "kv: del: a key is missing\n");
        return EXIT_USAGE;
    }
    if (open_both(set, false, &store, &s))
        return EXIT_FAILED;
    for (int i = 0; i < set->count; i++) {
        struct kv_write key;
        int rc;

        if (word(set, i, "key", &key)) {
            result = EXIT_USAGE;
            break;
        }
        rc = kv_delete(s, key.key, key.key_bytes);
        if (rc)
            result = program_fail("del", rc == KV_NOT_FOUND ? kv_strerror(rc) : kv_session_error(s));
    }
    return program_close(store, s) ? EXIT_FAILED : result;
}

/* One entry, as a line. JSON strings are text: bytes that are not UTF-8 cannot be in them. */
static int print_entry(const struct settings *set, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes)
{
    json_t *object;
    int rc;

    if (!set->json) {
        text_print(stdout, key, key_bytes);
        putchar('\t');
        text_print(stdout, value, value_bytes);
        return putchar('\n') == EOF ? program_fail("writing", strerror(errno)) : 0;
    }
    object = json_pack("{s:s%, s:s%}", "key", key, key_bytes, "value", value, value_bytes);
    if (!object)
        return program_fail("scan", "an entry is not UTF-8, which JSON needs; leave --json out");
    rc = json_dumpf(object, stdout, JSON_COMPACT);
    json_decref(object);
    return rc || putchar('\n') == EOF ? program_fail("writing", strerror(errno)) : 0;
}

int command_scan(const struct settings *set)
{
    char *from = set->from ? strdup(set->from) : NULL, *to = set->to ? strdup(set->to) : NULL;
    long from_bytes = from ? text_bytes(from, strlen(from), from) : 0;
    long to_bytes = to ? text_bytes(to, strlen(to), to) : 0;
    const void *key, *value;
    size_t key_bytes, value_bytes;
    int rc = KV_CODE_NONE, result = EXIT_USAGE;
    kv_scan *scan = NULL;
    kv_session *s = NULL;
    kv *store = NULL;

    if (from_bytes < 0 || to_bytes < 0) {
        fprintf(stderr, "kv: scan: a key has an unknown escape\n");
        goto out;
    }
    result = open_both(set, false, &store, &s);
    if (result)
        goto out;
    rc = kv_scan_open(s, from, (size_t)from_bytes, to, (size_t)to_bytes, set->reverse ? KV_REVERSE : 0, &scan);
    for (uint64_t n = 0; !rc && !result && (!set->limit || n < set->limit); n++) {
        rc = kv_scan_next(scan, &key, &key_bytes, &value, &value_bytes);
        if (!rc)
            result = print_entry(set, key, key_bytes, value, value_bytes);
    }
    if (rc && rc != KV_NOT_FOUND)
        result = program_fail("scan", kv_session_error(s));
    kv_scan_close(scan);
    if (program_close(store, s))
        result = EXIT_FAILED;
out:
    free(from);
    free(to);
    return result;
}

int command_stat(const struct settings *set)
{
    struct kv_stat stat;
    kv_session *s;
    kv *store;
    int rc;

    if (open_both(set, false, &store, &s))
        return EXIT_FAILED;
    rc = kv_stat(store, &stat);
    if (rc)
        program_fail("stat", kv_strerror(rc));
#define PRINT(name, unit, text) printf("%-14s %14llu %s %s\n", #name, (unsigned long long)stat.name, unit, text);
    else {
        KV_STAT_TABLE(PRINT)
    }
#undef PRINT
    return program_close(store, s) || rc ? EXIT_FAILED : EXIT_OK;
}

static void tell(void *ctx, const char *line)
{
    uint64_t *told = ctx;

    if (++*told <= 100)
        printf("%s\n", line);
}

int command_check(const struct settings *set)
{
    struct kv_check_result result;
    uint64_t told = 0;
    kv_session *s;
    kv *store;
    int rc;

    if (open_both(set, false, &store, &s))
        return EXIT_FAILED;
    rc = kv_check(s, tell, &told, &result);
    if (rc && !result.faults)
        program_fail("check", kv_session_error(s));
    printf("%llu keys, %llu pages of the tree, %llu pages of large values with %llu bytes: %llu faults\n",
           (unsigned long long)result.entries, (unsigned long long)result.tree_pages,
           (unsigned long long)result.value_pages, (unsigned long long)result.value_bytes,
           (unsigned long long)result.faults);
    return program_close(store, s) || rc ? EXIT_FAILED : EXIT_OK;
}
