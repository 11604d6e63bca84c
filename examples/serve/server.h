/* SPDX-License-Identifier: MIT */
/*
 * A server of files through a pool: everything that the two servers have in common.
 *
 * main() describes the server in a struct serve_app and calls serve_main, which reads the command line,
 * opens pool and files, listens, runs the workers, accepts, waits for SIGTERM or SIGINT, drains and closes.
 */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include "serve/net.h"
#include "serve/options.h"
#include "serve/worker.h"

struct serve_app {
    const char *name;        /* of the program */
    const char *summary;     /* for --help */
    const char *listen_port; /* default */
    struct serve_option_set options;
    unsigned files_max;        /* how often --data may be given */
    uint32_t extent_bytes_max; /* of a miss; the pool's size may ask for less */
    size_t conn_bytes;         /* of the server's own struct, which begins with a struct serve_conn */
    const char *full_text;     /* sent to who comes when max-clients are there */
    bool whole_pages;          /* a page whose pin is taken back half-way is copied, not read again */

    /* Once, after the files were opened and before anybody is served. 0, or -1 after a line on stderr. */
    int (*ready)(struct serve_server *);
    /* Once, when nobody is served any more, also if ready() failed: end what it began. NULL: nothing to do. */
    void (*stopped)(struct serve_server *);
    void (*opened)(struct serve_conn *);
    enum serve_step (*step)(struct serve_conn *);
    /*
     * After the requests of many clients and before any reply to them is sent: what replies promise must be so by then.
     * Only where serve_server.settles says so.
     */
    void (*settle)(struct serve_worker *);
    /* A page could not be had, and nothing of its part was sent. Queue text in `instead` (true), or end the client
     * (false). */
    bool (*failed)(struct serve_conn *, uint64_t page, int code, char *instead, size_t size);
    void (*idle)(struct serve_conn *);   /* give memory back: nothing has come for a while */
    void (*closed)(struct serve_conn *); /* free what is the server's own; no more calls for this one */
};

struct serve_file {
    const char *path; /* as given */
    const char *name; /* the last part of it */
    bp_file *file;
};

struct serve_server {
    const struct serve_app *app;
    struct serve_options options;
    struct serve_budget budget;
    bp_pool *pool;
    bp_file *file; /* the first of the files */
    struct serve_file files[SERVE_FILES_MAX];
    unsigned file_count;
    uint32_t extent_bytes; /* of a miss, in all files */
    struct serve_worker *worker;
    unsigned workers;   /* that have a session */
    unsigned running;   /* that have a thread */
    int64_t started_ms; /* monotonic */
    char where[SERVE_ADDRESS_BYTES];
    bool settles; /* app->settle is to be called: set by ready() */
    _Atomic bool stopping;
    _Atomic bool hurry;  /* a second signal: do not wait for clients */
    _Atomic bool broken; /* a worker gave up */
    _Atomic uint64_t accepted;
    _Atomic uint64_t rejected;
    uint64_t next_id; /* of the accepting thread */
};

/* Exit status. */
int serve_main(const struct serve_app *, int argc, char **argv);

/* Sums over all workers. Thread safe. */
uint64_t serve_sum(struct serve_server *, enum serve_count);
uint64_t serve_rate(struct serve_server *);
unsigned serve_clients(struct serve_server *);

int64_t serve_clock_ms(void);

#endif
