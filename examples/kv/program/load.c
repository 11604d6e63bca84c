/* SPDX-License-Identifier: MIT */
/*
 * kv DIR load [FILE]: entries from a file or from standard input, one a line: a key, a tab and a value, as `scan` prints
 * them; or JSON, {"key": "...", "value": ...}, if the line begins with a brace. What is not a string as a value is stored
 * as the JSON that it is. In batches, with a line of progress on stderr each second.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "kv/program/program.h"

#define BATCH_BYTES (KV_BATCH_BYTES / 2)
#define SMALL       1024u /* key and value together that a batch takes */

struct load {
    kv_session *s;
    struct kv_write write[KV_BATCH_MAX];
    char *copy[KV_BATCH_MAX]; /* key and value */
    size_t count, bytes;
    uint64_t lines, entries, all_bytes;
    struct timespec begin;
    double told;
};

static double seconds_since(const struct timespec *begin)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + (double)(now.tv_nsec - begin->tv_nsec) / 1e9;
}

static void progress(struct load *load, bool last)
{
    double now = seconds_since(&load->begin);

    if (!last && now - load->told < 1)
        return;
    load->told = now;
    fprintf(stderr, "%llu entries, %.1f MB, %.0f entries a second\n", (unsigned long long)load->entries,
            (double)load->all_bytes / 1e6, (double)load->entries / (now > 0 ? now : 1));
}

static int flush(struct load *load)
{
    int rc = kv_batch(load->s, load->write, load->count);

    for (size_t i = 0; i < load->count; i++)
        free(load->copy[i]);
    load->count = load->bytes = 0;
    progress(load, false);
    return rc ? program_fail("load", kv_session_error(load->s)) : 0;
}

static int enter(struct load *load, const char *key, size_t key_bytes, const char *value, size_t value_bytes)
{
    struct kv_write *write = &load->write[load->count];
    char *copy;

    load->entries++;
    load->all_bytes += key_bytes + value_bytes;
    if (key_bytes + value_bytes > SMALL) {
        if (load->count && flush(load)) /* what came before stays before */
            return EXIT_FAILED;
        progress(load, false);
        return kv_put(load->s, key, key_bytes, value, value_bytes) ? program_fail("load", kv_session_error(load->s))
                                                                   : 0;
    }
    copy = malloc(key_bytes + value_bytes + 1);
    if (!copy)
        return program_fail("load", strerror(ENOMEM));
    memcpy(copy, key, key_bytes);
    memcpy(copy + key_bytes, value, value_bytes);
    load->copy[load->count++] = copy;
    *write = (struct kv_write){copy, copy + key_bytes, key_bytes, value_bytes};
    load->bytes += key_bytes + value_bytes;
    return load->count == KV_BATCH_MAX || load->bytes > BATCH_BYTES ? flush(load) : 0;
}

static int wrong_line(const struct load *load, const char *why)
{
    fprintf(stderr, "kv: load: line %llu: %s\n", (unsigned long long)load->lines, why);
    return EXIT_FAILED;
}

static int enter_json(struct load *load, const char *line, size_t count)
{
    json_error_t error;
    json_t *object = json_loadb(line, count, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error), *key, *value;
    char *text = NULL;
    int rc;

    if (!object)
        return wrong_line(load, error.text);
    key = json_object_get(object, "key");
    value = json_object_get(object, "value");
    if (!json_is_string(key) || !value)
        rc = wrong_line(load, "an object with a string `key` and a `value` is wanted");
    else if (json_is_string(value))
        rc = enter(load, json_string_value(key), json_string_length(key), json_string_value(value),
                   json_string_length(value));
    else {
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        rc = text ? enter(load, json_string_value(key), json_string_length(key), text, strlen(text))
                  : program_fail("load", strerror(ENOMEM));
    }
    free(text);
    json_decref(object);
    return rc;
}

static int enter_line(struct load *load, char *line, size_t count)
{
    char *tab;
    long key, value;

    if (count && line[0] == '{')
        return enter_json(load, line, count);
    tab = memchr(line, '\t', count);
    if (!tab)
        return wrong_line(load, "a key, a tab and a value are wanted");
    value = text_bytes(tab + 1, count - (size_t)(tab + 1 - line), tab + 1);
    key = text_bytes(line, (size_t)(tab - line), line);
    if (key < 0 || value < 0)
        return wrong_line(load, "an unknown escape");
    return enter(load, line, (size_t)key, tab + 1, (size_t)value);
}

int command_load(const struct settings *set)
{
    struct load load = {.told = 0};
    FILE *in = set->count ? fopen(set->rest[0], "r") : stdin;
    char *line = NULL;
    size_t room = 0;
    ssize_t count;
    int rc = 0;
    kv *store;

    if (!in)
        return program_fail(set->rest[0], strerror(errno));
    store = program_open(set, true);
    if (!store || (rc = kv_session_open(store, &load.s))) {
        if (store)
            (void)kv_close(store, NULL);
        rc = rc ? program_fail("session", kv_strerror(rc)) : EXIT_FAILED;
        goto out;
    }
    kv_session_defer(load.s, true); /* one wait for all of it, at the end */
    clock_gettime(CLOCK_MONOTONIC, &load.begin);
    while (!rc && (count = getline(&line, &room, in)) >= 0) {
        load.lines++;
        if (count && line[count - 1] == '\n')
            count--;
        if (count)
            rc = enter_line(&load, line, (size_t)count);
    }
    if (!rc && ferror(in))
        rc = program_fail("reading", strerror(errno));
    if (load.count && flush(&load) && !rc) /* what came before a wrong line is in the store */
        rc = EXIT_FAILED;
    if (kv_commit(load.s) && !rc)
        rc = program_fail("load", kv_session_error(load.s));
    progress(&load, true);
    if (program_close(store, load.s))
        rc = EXIT_FAILED;
out:
    free(line);
    if (in != stdin)
        fclose(in);
    return rc;
}
