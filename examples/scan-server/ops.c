/* SPDX-License-Identifier: MIT */
/*
 * What a scan computes (see ops.h).
 *
 * Vectors are GCC's and clang's own, so that this is one text for every processor.
 */
#include "scan-server/ops.h"

#include <endian.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <string.h>

#define LANES 16u
#define GROUP 4u

typedef uint8_t bytes16 __attribute__((vector_size(LANES)));
typedef uint64_t halves16 __attribute__((vector_size(LANES)));

static bytes16 load(const unsigned char *at)
{
    bytes16 value;

    memcpy(&value, at, sizeof(value));
    return value;
}

const char *op_name(unsigned kind)
{
    static const char *const names[OP_KINDS] = {"count", "sum", "crc32c", "grep"};

    return kind < OP_KINDS ? names[kind] : NULL;
}

void op_begin(struct op *op)
{
    op->value = op->kind == OP_CRC32C ? UINT32_MAX : 0;
    op->tail_bytes = 0;
}

/* A comparison gives 255, which is -1, where bytes are alike: 255 of them fit into a lane, then they are added up. */
static uint64_t count_byte(const unsigned char *at, size_t count, uint8_t byte)
{
    const bytes16 wanted = (bytes16){0} + byte;
    uint64_t sum = 0;

    while (count >= 2 * LANES) {
        size_t rounds = count / (2 * LANES) < UINT8_MAX ? count / (2 * LANES) : UINT8_MAX;
        bytes16 even = {0}, odd = {0};

        count -= rounds * 2 * LANES;
        for (; rounds; rounds--, at += 2 * LANES) {
            even -= (bytes16)(load(at) == wanted);
            odd -= (bytes16)(load(at + LANES) == wanted);
        }
        for (unsigned i = 0; i < LANES; i++)
            sum += (uint64_t)even[i] + odd[i];
    }
    for (; count; count--)
        sum += *at++ == byte;
    return sum;
}

static uint64_t word(const unsigned char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

static uint64_t sum_words(const unsigned char *at, size_t count)
{
    unsigned char last[8] = {0};
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (; count >= 32; count -= 32, at += 32) {
        a += word(at);
        b += word(at + 8);
        c += word(at + 16);
        d += word(at + 24);
    }
    for (; count >= 8; count -= 8, at += 8)
        a += word(at);
    memcpy(last, at, count);
    return a + b + c + d + word(last);
}

static uint32_t crc(uint32_t so_far, const unsigned char *at, size_t count)
{
    while (count) {
        int step = count < INT_MAX ? (int)count : INT_MAX;

        so_far = crc32_iscsi((unsigned char *)(uintptr_t)at, step, so_far); /* reads only */
        at += step;
        count -= (size_t)step;
    }
    return so_far;
}

/* ---- grep ---- */

static bool any(bytes16 lanes)
{
    halves16 halves = (halves16)lanes;

    return (halves[0] | halves[1]) != 0;
}

static void look(struct op *op, const unsigned char *from, uint64_t at)
{
    if (op->pattern_bytes > 2 && memcmp(from + 1, op->pattern + 1, op->pattern_bytes - 2) != 0)
        return;
    op->value++;
    op->found(op->ctx, at);
}

/* The places of a vector that are all ones, in order. */
static void look_at_each(struct op *op, bytes16 places, const unsigned char *from, uint64_t at)
{
    uint64_t halves[2];

    memcpy(halves, &places, sizeof(halves));
    for (unsigned h = 0; h < 2; h++) {
        for (uint64_t left = le64toh(halves[h]) & 0x8080808080808080u; left;
             left &= left - 1) { /* one bit of each byte */
            unsigned k = h * 8 + (unsigned)__builtin_ctzll(left) / 8;

            look(op, from + k, at + k);
        }
    }
}

/* Sixteen places at once: where the pattern's first and last byte are. */
static bytes16 ends_at(const unsigned char *at, size_t behind, bytes16 firsts, bytes16 lasts)
{
    return (bytes16)(load(at) == firsts) & (bytes16)(load(at + behind) == lasts);
}

/*
 * All places in [from, from + count) at which the pattern begins; it may reach beyond. What has not both its ends is not
 * looked at any closer (W. Mula, "SIMD-friendly algorithms for substring searching", 2016).
 */
static void find(struct op *op, const unsigned char *from, size_t count, uint64_t at)
{
    const size_t behind = op->pattern_bytes - 1;
    const bytes16 firsts = (bytes16){0} + op->pattern[0], lasts = (bytes16){0} + op->pattern[behind];
    size_t i = 0;

    for (; i + GROUP * LANES <= count; i += GROUP * LANES) {
        bytes16 both[GROUP], some = {0};

        for (unsigned g = 0; g < GROUP; g++) {
            both[g] = ends_at(from + i + g * LANES, behind, firsts, lasts);
            some |= both[g];
        }
        if (!any(some))
            continue;
        for (unsigned g = 0; g < GROUP; g++)
            look_at_each(op, both[g], from + i + g * LANES, at + i + g * LANES);
    }
    for (; i < count; i++) {
        if (from[i] == op->pattern[0] && from[i + behind] == op->pattern[behind])
            look(op, from + i, at + i);
    }
}

static void grep(struct op *op, const unsigned char *from, size_t count, uint64_t at)
{
    const size_t behind = op->pattern_bytes - 1;
    size_t more = count < behind ? count : behind, kept, all = op->tail_bytes + more;

    /* Those that begin in what came before, as far as they end in what is here. */
    memcpy(op->tail + op->tail_bytes, from, more);
    if (all > behind)
        find(op, op->tail, all - behind < op->tail_bytes ? all - behind : op->tail_bytes, at - op->tail_bytes);
    if (count > behind)
        find(op, from, count - behind, at);
    /* Keep the last `behind` bytes. */
    if (count >= behind) {
        memcpy(op->tail, from + count - behind, behind);
        op->tail_bytes = behind;
    } else {
        kept = all < behind ? all : behind;
        memmove(op->tail, op->tail + all - kept, kept);
        op->tail_bytes = kept;
    }
}

void op_add(struct op *op, const void *bytes, size_t count, uint64_t at)
{
    switch (op->kind) {
    case OP_COUNT:
        op->value += count_byte(bytes, count, op->byte);
        break;
    case OP_SUM:
        op->value += sum_words(bytes, count);
        break;
    case OP_CRC32C:
        op->value = crc((uint32_t)op->value, bytes, count);
        break;
    case OP_GREP:
        grep(op, bytes, count, at);
        break;
    case OP_KINDS:
        break;
    }
}

uint64_t op_result(const struct op *op)
{
    return op->kind == OP_CRC32C ? ~(uint32_t)op->value : op->value;
}
