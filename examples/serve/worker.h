/* SPDX-License-Identifier: MIT */
/*
 * Workers and connections: one event loop per thread, and the clients that it serves.
 *
 * A worker owns a session of the pool and never blocks but in epoll_wait: reads of pages are started, and
 * the session's descriptor tells when one is done. Sockets are watched edge-triggered, for reading and
 * writing at once, so that nothing is changed in epoll during a connection's life.
 *
 * Whatever happens to a connection (bytes came, room to send, a page was read, a pin came free, shutdown)
 * only puts it on the list of those to be run. Running it is always the same: let the server's step() look
 * at requests, ask for pages, send what is ready.
 *
 * A connection belongs to its worker's thread. What others may look at (CLIENT LIST) is under the worker's lock.
 */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include "serve/replies.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

struct serve_server;

#define SERVE_COUNTS(X)                                 \
    X(COMMANDS) /* requests answered */                 \
    X(FOUND)    /* keys looked up and there */          \
    X(ABSENT)   /* keys looked up and not there */      \
    X(ERRORS)   /* error replies */                     \
    X(BYTES_IN)                                         \
    X(BYTES_OUT)                                        \
    X(ENDED_TIMEOUT) /* clients ended: did not go on */ \
    X(ENDED_MEMORY)  /* clients ended: client memory was used up */

enum serve_count {
#define SERVE_COUNT_ENUM(name) SERVE_##name,
    SERVE_COUNTS(SERVE_COUNT_ENUM)
#undef SERVE_COUNT_ENUM
        SERVE_COUNT_MAX
};

/* What step() found. */
enum serve_step {
    STEP_IDLE, /* nothing to do until more bytes come */
    STEP_FULL, /* waits for room in the replies */
    STEP_WAIT, /* waits for something of the server's own, which runs it again: more bytes are of no interest */
    STEP_MORE  /* could go on at once */
};

enum serve_ending {
    ENDING_NO,
    ENDING_FLUSH,  /* no further request is looked at; ends when everything is sent */
    ENDING_LINGER, /* told the client so; reads and forgets until it closes, so that it gets to read the last reply */
    ENDING_DEAD    /* on the list of the dead */
};

struct serve_conn {
    struct serve_worker *worker;
    int fd;
    bool readable; /* there may be bytes to read */
    bool blocked;  /* the socket takes no more for now */
    bool hangup;   /* the kernel said that the client is done sending; what it sent may still be there */
    bool eof;      /* everything that the client sent was read */
    bool queued;   /* on worker->run */
    bool waiting;  /* on worker->waiting: for a pin */
    bool partial;  /* holds part of a request: set by the server's step */
    bool lean;     /* has given its idle memory back */
    enum serve_ending ending;
    uint64_t id;
    int64_t opened_ms;
    _Atomic int64_t seen_ms; /* last bytes from the client; written by the worker only */
    int64_t moved_ms;        /* last bytes in either direction, or the begin of ENDING_LINGER */
    uint32_t input_left;     /* during shutdown: bytes that may still be read */
    struct replies out;
    TAILQ_ENTRY(serve_conn) all_link;
    TAILQ_ENTRY(serve_conn) run_link;
    TAILQ_ENTRY(serve_conn) wait_link;
    TAILQ_ENTRY(serve_conn) blocked_link; /* valid while blocked */
};

TAILQ_HEAD(serve_conns, serve_conn);

/*
 * How another thread has a connection run again. Belongs to whoever shares something with that thread; zero but for
 * conn. After serve_note_drop the connection may go, and posting does nothing.
 */
struct serve_note {
    struct serve_conn *conn;
    bool queued, dropped; /* under the worker's lock */
    TAILQ_ENTRY(serve_note) link;
};
TAILQ_HEAD(serve_notes, serve_note);

struct serve_worker {
    struct serve_server *server;
    unsigned index;
    pthread_t thread;
    int epoll_fd;
    int wake_fd;         /* eventfd: newcomers, or stop */
    bp_session *session; /* NULL where there is no pool */
    void *own;           /* the server's */
    int64_t now_ms;      /* monotonic, read once per turn */
    char *scratch;       /* SERVE_SCRATCH_BYTES to receive into */

    unsigned pins; /* held or being got */
    unsigned pins_max;
    unsigned reading;     /* reads under way */
    bool stopping;        /* no new requests but those that have arrived */
    bool signalled;       /* the session's descriptor is readable */
    bool limited;         /* the session took no more: wait for an answer first */
    struct reply_op *ops; /* as many as pins */
    struct reply_op *op;  /* unused ones */

    struct serve_conns run, waiting, blocked, dead;
    pthread_mutex_t lock;         /* of the three lists below, and of names that others may read */
    struct serve_conns all;       /* changed by the worker only, under the lock */
    struct serve_conns newcomers; /* from the thread that accepts */
    struct serve_notes notes;     /* from any thread */
    _Atomic unsigned clients;
    _Atomic uint64_t count[SERVE_COUNT_MAX]; /* written by the worker only */
    _Atomic uint64_t rate;                   /* requests in the last second */
    uint64_t rate_before;                    /* SERVE_COMMANDS a second ago */
    int64_t tick_ms;                         /* when the next look at everybody is due */
    int64_t stop_ms;                         /* when stopping: when to give up */
};

#define SERVE_SCRATCH_BYTES 65536u

/* 0 or a negative code; the worker is zero but for server and index. */
int serve_worker_open(struct serve_worker *, const char *label, unsigned pins_max);
void serve_worker_close(struct serve_worker *);

/* The thread's body: serves until told to stop, and then until everybody was answered. */
void *serve_worker_main(void *worker);

/* From the accepting thread: hand over a connected socket. 0 or a negative errno, and the socket is still the caller's.
 */
int serve_worker_adopt(struct serve_worker *, int fd, uint64_t id);

/* Wake it up, to see that the server is stopping. Thread safe. */
void serve_worker_wake(struct serve_worker *);

/* Run the note's connection soon. Any thread, while the worker is open. */
void serve_note_post(struct serve_worker *, struct serve_note *);

/* ---- for the code of a server, in the worker's thread ---- */

/* The connection of a note is going, or no longer interested. */
void serve_note_drop(struct serve_worker *, struct serve_note *);

/* Receive into worker->scratch. Bytes; 0: none now (conn->readable or conn->eof tell why). */
size_t serve_receive(struct serve_conn *, size_t most);

/* To be run again. */
void serve_run_later(struct serve_conn *);

/* End: at once, or after what is queued was sent. */
void serve_end(struct serve_conn *);
void serve_end_after_flush(struct serve_conn *);

/* A pin came free. */
void serve_pin_given_back(struct serve_worker *);

static inline void serve_counted(struct serve_worker *worker, enum serve_count which, uint64_t by)
{
    /* One writer: a load and a store are enough, and cheaper than an atomic addition. */
    uint64_t now = atomic_load_explicit(&worker->count[which], memory_order_relaxed);

    atomic_store_explicit(&worker->count[which], now + by, memory_order_relaxed);
}

#endif
