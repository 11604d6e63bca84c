/* SPDX-License-Identifier: MIT */
/*
 * Options of the command line: what both servers have, and room for what one of them adds.
 *
 * An option is a row of a table: its name, the word for its value, what it does, and the function that
 * reads the value. --help is printed from the same table, so it cannot be wrong.
 */
#ifndef SERVE_OPTIONS_H
#define SERVE_OPTIONS_H

#include <bufpool/bufpool.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVE_THREADS_MAX 256u
#define SERVE_HOST_BYTES  256u
#define SERVE_FILES_MAX   64u

struct serve_options {
    const char *data[SERVE_FILES_MAX]; /* paths of the files served */
    unsigned files;
    unsigned files_max;          /* that the server can serve; set before */
    bool no_files;               /* the server has its data elsewhere: no pool is opened for it, and no file */
    uint64_t memory;             /* bytes of the pool */
    uint64_t client_memory;      /* bytes that all clients' buffers may take */
    char host[SERVE_HOST_BYTES]; /* empty: every address */
    char port[8];                /* decimal; "0": whatever is free */
    unsigned threads;
    unsigned clients_max;
    unsigned timeout_s; /* of clients that do not go on */
    enum bp_choice huge, direct;
    enum bp_io io;
};

struct serve_option {
    const char *name;  /* without the dashes */
    const char *value; /* the word for its value in --help; NULL: it takes none */
    const char *help;  /* one line */
    /* Read the value; 0, or -1 and why says what is expected ("a number from 1 to 4096"). */
    int (*set)(struct serve_options *, void *own, const char *text, char *why, size_t size);
};

/* What a server adds: its rows, and where they put what they read. */
struct serve_option_set {
    const struct serve_option *option;
    unsigned count;
    void *own;
};

enum serve_parsed { SERVE_RUN, SERVE_HELPED, SERVE_USAGE };

/*
 * Read the command line; `into` holds the defaults before. SERVE_HELPED: --help was answered on stdout.
 * SERVE_USAGE: something is wrong and one line on stderr has said what.
 */
enum serve_parsed serve_options_parse(const char *name, const char *summary, const struct serve_option_set *added,
                                      int argc, char **argv, struct serve_options *into);

/* A decimal number in [least, most]. 0 or -1. */
int serve_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *number);

/* A size in bytes: digits, then nothing or K, M, G, T (powers of 1024), then nothing or B or iB. 0 or -1. */
int serve_parse_size(const char *text, uint64_t *bytes);

#endif
