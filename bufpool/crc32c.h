/* SPDX-License-Identifier: MIT */
/*
 * CRC-32C (Castagnoli: polynomial 0x1edc6f41, reflected), for the lists of extents. A byte at a time from a table that
 * the caller owns: some hundred MB/s, more than a list needs, which is a 256th of what it lists.
 */
#ifndef BUFPOOL_CRC32C_H
#define BUFPOOL_CRC32C_H

#include <stddef.h>
#include <stdint.h>

struct crc32c {
    uint32_t table[256];
    uint32_t state;
};

void bpi_crc32c_begin(struct crc32c *);
void bpi_crc32c_add(struct crc32c *, const void *data, size_t bytes);

/* Of all that was added; more may be added afterwards. */
static inline uint32_t crc32c_value(const struct crc32c *c)
{
    return ~c->state;
}

#endif
