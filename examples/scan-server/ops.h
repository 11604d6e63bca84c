/* SPDX-License-Identifier: MIT */
/*
 * What a scan computes: one pass over bytes that come in order, in pieces of any size, as fast as memory gives them.
 *
 *   count    how often a byte occurs (byte=10: lines)
 *   sum      of all 64-bit little-endian words, modulo 2^64; a last incomplete one is filled up with zeroes
 *   crc32c   the checksum (Castagnoli), as iSCSI and ext4 have it
 *   grep     where a string of bytes occurs, also where it overlaps with itself, and across the borders of pieces
 */
#ifndef SCAN_OPS_H
#define SCAN_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATTERN_MAX 256u

enum op_kind { OP_COUNT, OP_SUM, OP_CRC32C, OP_GREP, OP_KINDS };

struct op {
    enum op_kind kind;
    uint8_t byte;                          /* count */
    unsigned char pattern[PATTERN_MAX];    /* grep */
    size_t pattern_bytes;                  /* at least 1 */
    void (*found)(void *ctx, uint64_t at); /* grep: the pattern begins at this byte of the file; in ascending order */
    void *ctx;
    /* the rest is op_begin's */
    uint64_t value; /* so far: see op_result */
    size_t tail_bytes;
    unsigned char tail[2 * PATTERN_MAX]; /* grep: the end of what came before, shorter than the pattern */
};

/* Name of a kind; NULL past the last. */
const char *op_name(unsigned kind);

void op_begin(struct op *);
/* The bytes from byte `at` of the file on, which follow on those before. For sum `at` is a multiple of 8. */
void op_add(struct op *, const void *bytes, size_t count, uint64_t at);
/* Of all that was added. */
uint64_t op_result(const struct op *);

#endif
