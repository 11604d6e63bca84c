/* SPDX-License-Identifier: MIT */
/*
 * Pieces of JSON, appended to a text. What is written here is small and has a fixed shape; it needs no tree.
 */
#ifndef SCAN_JSON_H
#define SCAN_JSON_H

#include "serve/text.h"

#include <stdint.h>

/* A string in quotation marks. What is not UTF-8 in it becomes U+FFFD: file names may be anything, JSON may not. */
void json_string(struct text *, const char *string);

/* A name in quotation marks and its number, on a line of its own. `before`: what separates it from the one before. */
void json_number(struct text *, const char *before, const char *name, uint64_t value);

#endif
