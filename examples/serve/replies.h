/* SPDX-License-Identifier: MIT */
/*
 * Replies: what a client will be sent, in the order of its requests, while pages of it are still being read.
 *
 * A queue of parts. A part is text, or bytes of pages with a few bytes before (head) and after (tail). Pages
 * are asked for as soon as they are queued, so that the reads of one client overlap; they are sent straight
 * from the pool's memory, pinned for as long as it takes, and given back piece by piece:
 *
 *   WANTED   no pin to be had, or taken back; asked for when there is room
 *   READING  bp_get_start said BP_PENDING; bp_poll brings the rest
 *   READY    pinned
 *   OWNED    bytes of our own: an error's text, or the rest of a page whose pin was taken back half-way
 *
 *   WANTED --start--> READING --completion--> READY --sent--> gone, or WANTED for the extent that follows
 *      ^---------------release (the client does not read)-------'
 *
 * The number of pins of a thread is limited (serve/worker.h). A client that does not read cannot hold pins that
 * another one waits for: they are taken back, and what was not sent is asked for again later.
 *
 * All of this belongs to the worker's thread.
 */
#ifndef SERVE_REPLIES_H
#define SERVE_REPLIES_H

#include "serve/text.h"

#include <bufpool/bufpool.h>
#include <stdint.h>

#define REPLIES_PAGES_MAX  64u    /* page parts queued per client */
#define REPLIES_TEXT_MAX   65536u /* bytes of text queued, above which no further request is looked at */
#define REPLIES_HEAD_BYTES 22u

struct serve_conn;
struct serve_worker;
struct part;

/* A read under way. Outlives the client that asked, until bp_poll has brought the answer. */
struct reply_op {
    struct serve_conn *conn; /* NULL: the client is gone */
    uint32_t sequence;       /* which of its parts */
    struct reply_op *next;   /* the worker's list of unused ones */
};

struct replies {
    struct text text;  /* bytes of the text parts, one after the other */
    struct part *part; /* ring */
    uint32_t room;     /* its size, a power of two, or 0 */
    uint32_t first;    /* sequence number of the oldest part */
    uint32_t count;
    uint32_t pages;  /* parts that are not text */
    uint32_t wanted; /* of these, WANTED */
    uint32_t ready;  /* of these, READY: each holds one pin */
};

/* Bytes of pages to be sent: `bytes` from byte `skip` of page `page` of `file` on. */
struct reply_page {
    bp_file *file;
    uint64_t page;
    uint32_t skip;
    uint32_t bytes;
    const char *head; /* sent before; up to REPLIES_HEAD_BYTES; copied */
    uint32_t head_bytes;
    bool line_end; /* send CR LF after */
};

enum flush {
    FLUSH_EMPTY,   /* everything is sent */
    FLUSH_WAITING, /* for a page */
    FLUSH_BLOCKED, /* for the client to read */
    FLUSH_MORE,    /* sent a good deal; others first */
    FLUSH_DEAD     /* the connection ended */
};

/* May another request be looked at? */
static inline bool replies_room(const struct replies *replies)
{
    return replies->pages < REPLIES_PAGES_MAX && text_bytes(&replies->text) < REPLIES_TEXT_MAX;
}

/* Queue text. The connection ends if memory is refused. */
void replies_text(struct serve_conn *, const char *bytes, size_t count);
void replies_puts(struct serve_conn *, const char *string);
void replies_printf(struct serve_conn *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text was appended to replies.text directly: queue what is new since text_bytes was `before`. */
void replies_text_added(struct serve_conn *, size_t before);

/* Queue bytes of pages and ask for them. There must be room. */
void replies_page(struct serve_conn *, const struct reply_page *);

/* Ask for what is wanted, as far as pins go; who gets none is put on the worker's list of those that wait. */
void replies_start(struct serve_conn *);

/* Send what is ready. *sent is increased by the bytes sent. */
enum flush replies_flush(struct serve_conn *, size_t *sent);

/* The answer to a read. */
void replies_completed(struct serve_worker *, const struct bp_event *);

/* Give pins back, keeping what is needed to go on later. */
void replies_release(struct serve_conn *);

/* Take pins back from clients that do not read, if there are no others. true: there is one to be had. */
bool replies_reclaim(struct serve_worker *);

/* Give everything back; reads under way are orphaned. */
void replies_drop(struct serve_conn *);

/* Give idle memory back. */
void replies_trim(struct serve_conn *);

#endif
