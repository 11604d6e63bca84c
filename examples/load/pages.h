/* SPDX-License-Identifier: MIT */
/*
 * Pages that can prove who they are: what make-data writes and check-pages expects.
 *
 *   byte 0     "page 42" as text, filled up with spaces to 31 characters, and a newline: for people
 *   byte 32    the page number, 64 bits, little endian: for programs
 *   byte 40    CRC-32 (zlib's) of all the page's other bytes, 32 bits, little endian
 *   byte 44    pseudo-random bytes that follow from the page number and nothing else
 *
 * So a page from the wrong place, a page with one wrong bit and a page torn between two are all found out.
 */
#ifndef EXAMPLES_LOAD_PAGES_H
#define EXAMPLES_LOAD_PAGES_H

#include <stddef.h>
#include <stdint.h>

#define PAGES_BYTES 4096u

/* Fill in page `number`; page has PAGES_BYTES bytes. */
void pages_make(uint64_t number, unsigned char *page);

/* NULL if the bytes are page `number`, else what is wrong, in words. Static storage. */
const char *pages_check(uint64_t number, const unsigned char *page, size_t bytes);

/* The next of a sequence of well mixed 64-bit numbers; state may start with anything. */
uint64_t pages_random(uint64_t *state);

/* A size such as 4096, 256M or 1G, in bytes; 0 if the text is none. */
uint64_t pages_parse_size(const char *text);

#endif
