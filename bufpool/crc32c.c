/* SPDX-License-Identifier: MIT */
/* The table is the remainders of all bytes by the polynomial; the rest is long division, eight bits at a step. */
#include <stdbool.h>
#include <string.h>

#include "bufpool/bufpool.h"
#include "bufpool/crc32c.h"

#define POLYNOMIAL 0x82f63b78u /* lowest bit first */

void bpi_crc32c_begin(struct crc32c *c)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;

        for (unsigned bit = 0; bit < 8; bit++)
            rest = rest & 1 ? rest >> 1 ^ POLYNOMIAL : rest >> 1;
        c->table[byte] = rest;
    }
    c->state = UINT32_MAX;
}

void bpi_crc32c_add(struct crc32c *c, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t state = c->state;

    for (size_t i = 0; i < bytes; i++)
        state = state >> 8 ^ c->table[(state ^ at[i]) & 0xff];
    c->state = state;
}

/* What processors have an instruction for: eight bytes at a step, some 5 GB/s. */
#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_fast(uint32_t state, const unsigned char *at, size_t bytes)
{
    uint64_t wide = state;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t eight;

        memcpy(&eight, at, 8);
        wide = __builtin_ia32_crc32di(wide, eight);
    }
    state = (uint32_t)wide;
    for (; bytes; bytes--)
        state = __builtin_ia32_crc32qi(state, *at++);
    return state;
}

static bool has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#else
static uint32_t crc_fast(uint32_t state, const unsigned char *at, size_t bytes)
{
    (void)at;
    (void)bytes;
    return state;
}

static bool has_instruction(void)
{
    return false;
}
#endif

uint32_t bp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    struct crc32c c;

    if (has_instruction())
        return ~crc_fast(~crc, data, bytes);
    bpi_crc32c_begin(&c);
    c.state = ~crc;
    bpi_crc32c_add(&c, data, bytes);
    return crc32c_value(&c);
}
