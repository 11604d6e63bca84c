/* SPDX-License-Identifier: MIT */
/*
 * Text: a growing queue of bytes, and the budget that it grows within.
 *
 * All memory that a client can make the server allocate is charged to one budget, so that ten thousand
 * greedy clients together cannot take more than it says. A text that was refused memory remembers it: the
 * caller appends without looking and asks once at the end.
 */
#ifndef SERVE_TEXT_H
#define SERVE_TEXT_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Shared by all threads. */
struct serve_budget {
    _Atomic size_t used; /* bytes */
    size_t limit;
};

/* Charge bytes; false: the budget would be exceeded, nothing was charged. Thread safe. */
bool serve_budget_take(struct serve_budget *, size_t bytes);
void serve_budget_give(struct serve_budget *, size_t bytes);

/* One thread at a time. All zero but for the budget: empty, holds no memory. */
struct text {
    struct serve_budget *budget;
    char *bytes;
    size_t head; /* first byte still wanted */
    size_t end;  /* past the last byte */
    size_t room; /* bytes allocated */
    bool failed; /* memory was refused once: what is in here is not complete */
};

static inline size_t text_bytes(const struct text *text)
{
    return text->end - text->head;
}

static inline const char *text_at(const struct text *text)
{
    return text->bytes ? text->bytes + text->head : "";
}

/* Append. false: refused, and text->failed is set. */
bool text_add(struct text *, const void *bytes, size_t count);
bool text_puts(struct text *, const char *string);
bool text_printf(struct text *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Forget the first count bytes, which must be there. */
void text_drop(struct text *, size_t count);

/* Give the memory back if nothing is in it; free gives it back anyway. */
void text_trim(struct text *);
void text_free(struct text *);

#endif
