/* SPDX-License-Identifier: MIT */
/*
 * Clients for the end-to-end tests of the example servers: well-behaved ones, and ones that no server would wish for.
 *
 *   server-clients CASE PORT ARGUMENT...
 *
 * A case prints one line per thing checked, "pass: ..." or "fail: ...", and ends with "N passed, N failed"; the scripts
 * run-*.sh start the servers, run cases, and add up. Every wait has a deadline, so a server that hangs is a
 * failed check.
 */
#ifndef CLIENTS_H
#define CLIENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hiredis.h>

#define PAGE_BYTES  4096u
#define DEADLINE_MS 30000 /* for anything that a server owes */

/* What the file that is served holds; read once, whole. */
struct data {
    char *bytes;
    size_t count;
    uint64_t pages;
};

/* A raw connection with a buffer of what was received. */
struct peer {
    int fd;
    redisReader *reader; /* replies */
    uint64_t received;   /* bytes */
    bool ended;          /* the server closed the connection (or it broke) */
    bool broken;         /* not closed in good order: reset */
};

/* ---- clients.c ---- */
extern int port;
bool check(bool right, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t now_ms(void);
uint32_t random_below(uint32_t n); /* same sequence in every run */
bool data_read(const char *path, struct data *);
/* Bytes of a page's value, given --value-bytes. */
size_t data_value(const struct data *, uint64_t page, size_t value_bytes, const char **at);
bool peer_open(struct peer *);
void peer_close(struct peer *);
/* All of it, within the deadline. */
bool peer_send(struct peer *, const void *bytes, size_t count);
bool peer_sendf(struct peer *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As much as goes without waiting. */
size_t peer_push(struct peer *, const void *bytes, size_t count);
/* The next reply; NULL: the connection ended or the deadline is over. Free with freeReplyObject. */
redisReply *peer_reply(struct peer *);
/* Read bytes until the connection ends, the deadline is over or `most` are there; how many. */
size_t peer_drain(struct peer *, char *into, size_t most, int deadline_ms);
/* Resident memory of a process, KiB; 0: unknown. */
long resident_kib(long pid);
bool reply_is_page(const redisReply *, const struct data *, uint64_t page);

/* ---- the cases: arguments after the port ---- */
void case_pages(int argc, char **argv);
void case_order(int argc, char **argv);
void case_depth(int argc, char **argv);
void case_crowd(int argc, char **argv);
void case_load(int argc, char **argv);
void case_protocol(int argc, char **argv);
void case_flood(int argc, char **argv);
void case_deaf(int argc, char **argv);
void case_half_open(int argc, char **argv);
void case_timeout(int argc, char **argv);
void case_fuzz(int argc, char **argv);
void case_raw(int argc, char **argv);
void case_aggregate(int argc, char **argv);

#endif
