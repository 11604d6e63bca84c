/* SPDX-License-Identifier: MIT */
/*
 * kv DIR COMMAND: what the commands of the program share.
 *
 *   main.c      options, which command      commands.c  get, put, del, scan, stat, check      load.c  from files
 *   text.c      keys and values as text     bench.c     YCSB; engine_*.c: what it runs on
 */
#ifndef KV_PROGRAM_H
#define KV_PROGRAM_H

#include <stdio.h>

#include "kv/kv.h"

struct settings {
    const char *dir, *command;
    uint64_t memory;
    enum kv_sync sync;
    bool reverse, create, json;
    const char *from, *to;
    uint64_t limit;
    /* bench */
    const char *workloads, *engines, *distribution;
    uint64_t records, ops, rounds;
    unsigned threads, seconds, value_bytes;
    char **rest; /* what is not an option */
    int count;
};

enum { EXIT_OK, EXIT_FAILED, EXIT_USAGE };

/* Open the store, or say on stderr why not. */
kv *program_open(const struct settings *, bool create);
/* Say why a call failed; returns EXIT_FAILED. */
int program_fail(const char *what, const char *why);
/* Session and store; 0, or says why not. */
int program_close(kv *, kv_session *);

int command_get(const struct settings *);
int command_put(const struct settings *);
int command_delete(const struct settings *);
int command_scan(const struct settings *);
int command_stat(const struct settings *);
int command_check(const struct settings *);
int command_load(const struct settings *);
int command_bench(const struct settings *);

/*
 * Text that stands for bytes: \t \n \r \\ and \xHH stand for one byte each, everything else for itself. Into `to`, which
 * may be `from`. How many bytes, or -1.
 */
long text_bytes(const char *from, size_t count, char *to);
/* The other way; printable bytes, and those from 0x80 on, as they are. */
void text_print(FILE *, const void *bytes, size_t count);

#endif
