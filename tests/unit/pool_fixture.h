/* SPDX-License-Identifier: MIT */
/* Opening and closing for tests of the pool; every failure says what the library said. */
#ifndef TESTS_POOL_FIXTURE_H
#define TESTS_POOL_FIXTURE_H

#include <criterion/criterion.h>
#include <string.h>

#include "bufpool/bufpool.h"
#include "tests/unit/data_file.h"

static const enum bp_io back_ends[] = {BP_IO_URING, BP_IO_PSYNC};
#define EACH_BACK_END(io)               \
    for (unsigned b_ = 0; b_ < 2; b_++) \
        for (enum bp_io io = back_ends[b_], *once_ = &io; once_; once_ = NULL)

static inline bp_pool *open_pool(uint64_t memory, enum bp_io io, uint32_t wait_ms)
{
    struct bp_error error = {0};
    struct bp_pool_options o = {.size = sizeof(o), .memory = memory, .io = io, .wait_ms = wait_ms, .error = &error};
    bp_pool *pool = NULL;
    int rc = bp_pool_open(&o, &pool);

    cr_assert_eq(rc, 0, "bp_pool_open: %d %s", rc, error.text);
    return pool;
}

static inline bp_session *open_session(bp_pool *pool, const char *label)
{
    struct bp_session_options o = {.size = sizeof(o), .label = label};
    bp_session *s = NULL;

    cr_assert_eq(bp_session_open(pool, &o, &s), 0);
    return s;
}

/* Without looking for streams: most tests count what they ask for. */
static inline bp_file *open_file(bp_pool *pool, const char *path, uint32_t extent_bytes)
{
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .extent_bytes = extent_bytes, .error = &error, .readahead = BP_OFF};
    bp_file *file = NULL;
    int rc = bp_file_open(pool, path, &o, &file);

    cr_assert_eq(rc, 0, "bp_file_open: %d %s", rc, error.text);
    return file;
}

static inline void close_all(bp_pool *pool)
{
    struct bp_error error = {0};
    int rc = bp_pool_check(pool, &error);

    cr_expect_eq(rc, 0, "check: %s", error.text);
    rc = bp_pool_close(pool, &error);
    cr_assert_eq(rc, 0, "close: %s", error.text);
}

static inline uint64_t stat_of(bp_pool *pool, const char *wanted)
{
    struct bp_stats st = {.size = sizeof(st)};
    const char *name, *unit, *text;
    enum bp_stat_kind kind;
    uint64_t value;

    cr_assert_eq(bp_pool_stats(pool, &st), 0);
    for (unsigned i = 0; bp_stats_item(&st, i, &name, &unit, &kind, &text, &value); i++)
        if (!strcmp(name, wanted))
            return value;
    cr_assert_fail("no statistic %s", wanted);
    return 0;
}

#endif
