/* SPDX-License-Identifier: MIT */
/*
 * Making and checking pages; the layout is in pages.h.
 */
#include "load/pages.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { TEXT_AT = 0, TEXT_BYTES = 32, NUMBER_AT = 32, CRC_AT = 40, RANDOM_AT = 44 };

static void put_le(unsigned char *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get_le(const unsigned char *from, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static uint32_t page_crc(const unsigned char *page)
{
    uLong crc = crc32(0, page, CRC_AT);
    return (uint32_t)crc32(crc, page + RANDOM_AT, PAGES_BYTES - RANDOM_AT);
}

/* Sebastiano Vigna's splitmix64: a counter and three mixing steps, so any start gives a good sequence. */
uint64_t pages_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void pages_make(uint64_t number, unsigned char *page)
{
    char text[TEXT_BYTES + 1];
    uint64_t state = number;
    snprintf(text, sizeof(text), "page %-26" PRIu64 "\n", number);
    memcpy(page + TEXT_AT, text, TEXT_BYTES);
    put_le(page + NUMBER_AT, number, 8);
    size_t at = RANDOM_AT;
    put_le(page + at, pages_random(&state), 4); /* to get to a multiple of 8 */
    for (at += 4; at < PAGES_BYTES; at += 8)
        put_le(page + at, pages_random(&state), 8);
    put_le(page + CRC_AT, page_crc(page), 4);
}

const char *pages_check(uint64_t number, const unsigned char *page, size_t bytes)
{
    if (bytes != PAGES_BYTES)
        return "it has the wrong length";
    if (get_le(page + NUMBER_AT, 8) != number)
        return "it is another page";
    if (get_le(page + CRC_AT, 4) != page_crc(page))
        return "its checksum is wrong";
    return NULL;
}

uint64_t pages_parse_size(const char *text)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    if (*end) {
        const char *unit = strchr(units, *end & ~0x20);
        if (!unit || !*unit)
            return 0;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B')
            end++;
    }
    if (errno || *end || value > UINT64_MAX >> shift)
        return 0;
    return (uint64_t)value << shift;
}
