/* SPDX-License-Identifier: MIT */
/* The table is the remainders of all bytes by the polynomial; the rest is long division, eight bits at a step. */
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
