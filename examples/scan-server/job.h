/* SPDX-License-Identifier: MIT */
/*
 * Scans in the background: threads that go through files and say how far they are, so that no event loop waits for one.
 *
 * A job belongs to two: the client that asked, and the thread that works on it; whoever lets go last frees it. What it
 * has to say are lines of JSON, which the thread appends and the client's event loop takes. The thread never waits for
 * the client: the lines are few (one for each twentieth, one for each place found, up to the limit asked for), and are
 * paid for by the clients' memory. If the client goes, the job ends with the batch that it is at.
 *
 * There are as many threads as scans may run at once; JOBS_WAITING_MAX more wait for their turn.
 */
#ifndef SCAN_JOB_H
#define SCAN_JOB_H

#include "scan-server/ops.h"
#include "serve/server.h"

#define JOBS_THREADS_MAX 64u
#define JOBS_WAITING_MAX 64u
#define JOB_FOUND_MAX    10000u /* places listed, at the most */

/* What is to be done. */
struct job_order {
    const struct serve_file *file;
    uint64_t from, to;  /* bytes, within the file */
    uint64_t found_max; /* places listed */
    bool reread;        /* pages known to be bad: try them again */
    struct op op;
};

struct job;
struct jobs;

struct jobs_counts {
    uint64_t running, waiting;
    uint64_t finished, failed, cancelled; /* so far */
    uint64_t bytes;                       /* gone through by those that have ended */
};

/* Start the threads. 0, or -1 after a line on stderr. */
int jobs_open(struct serve_server *, unsigned threads, struct jobs **);
/* Ends what is running. No client may have a job any more. NULL is nothing. */
void jobs_close(struct jobs *);
void jobs_counts(struct jobs *, struct jobs_counts *);

/*
 * Have this done; the connection is run whenever there are new lines. The job, until job_drop; NULL: too many wait, or
 * there is no memory. In the connection's thread, as the rest.
 */
struct job *job_start(struct jobs *, struct serve_conn *, const struct job_order *);

/* Move up to `most` bytes of what it has to say to a text. true: there will be more, now or later. */
bool job_take(struct job *, struct text *, size_t most);
/* A line that says how far it is, now. */
void job_progress(struct job *, struct text *);
/* The client is not interested any more. */
void job_drop(struct job *);

#endif
