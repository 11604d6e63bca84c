/* SPDX-License-Identifier: MIT */
/*
 * Text: a growing queue of bytes within a budget (see serve/text.h).
 */
#include "serve/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_ROOM_MIN  512u
#define TEXT_ROOM_KEPT 16384u /* an empty text larger than this gives its memory back at once */

bool serve_budget_take(struct serve_budget *budget, size_t bytes)
{
    /* Only a sum of sizes: it orders nothing. */
    size_t before = atomic_fetch_add_explicit(&budget->used, bytes, memory_order_relaxed);

    if (bytes <= budget->limit && before <= budget->limit - bytes)
        return true;
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
    return false;
}

void serve_budget_give(struct serve_budget *budget, size_t bytes)
{
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

static bool text_grow(struct text *text, size_t count)
{
    size_t held = text_bytes(text), room = text->room ? text->room : TEXT_ROOM_MIN;
    char *bytes;

    if (text->head) {
        memmove(text->bytes, text->bytes + text->head, held);
        text->head = 0;
        text->end = held;
        if (text->room - held >= count)
            return true;
    }
    if (count > SIZE_MAX / 4 - held)
        return false;
    while (room - held < count)
        room *= 2;
    if (!serve_budget_take(text->budget, room - text->room))
        return false;
    bytes = realloc(text->bytes, room);
    if (!bytes) {
        serve_budget_give(text->budget, room - text->room);
        return false;
    }
    text->bytes = bytes;
    text->room = room;
    return true;
}

bool text_add(struct text *text, const void *bytes, size_t count)
{
    if (text->failed)
        return false;
    if (text->room - text->end < count && !text_grow(text, count)) {
        text->failed = true;
        return false;
    }
    if (count)
        memcpy(text->bytes + text->end, bytes, count);
    text->end += count;
    return true;
}

bool text_puts(struct text *text, const char *string)
{
    return text_add(text, string, strlen(string));
}

bool text_printf(struct text *text, const char *format, ...)
{
    char line[1024], *longer = NULL;
    va_list arguments;
    bool added = false;
    int n;

    va_start(arguments, format);
    n = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (n >= 0 && (size_t)n < sizeof(line))
        return text_add(text, line, (size_t)n);
    if (n >= 0)
        longer = malloc((size_t)n + 1);
    if (longer) {
        va_start(arguments, format);
        n = vsnprintf(longer, (size_t)n + 1, format, arguments);
        va_end(arguments);
        added = text_add(text, longer, (size_t)n);
        free(longer);
    }
    if (!added)
        text->failed = true;
    return added;
}

void text_drop(struct text *text, size_t count)
{
    text->head += count;
    if (text->head < text->end)
        return;
    text->head = 0;
    text->end = 0;
    if (text->room > TEXT_ROOM_KEPT)
        text_free(text);
}

void text_trim(struct text *text)
{
    if (text->end == text->head)
        text_free(text);
}

void text_free(struct text *text)
{
    free(text->bytes);
    serve_budget_give(text->budget, text->room);
    text->bytes = NULL;
    text->head = 0;
    text->end = 0;
    text->room = 0;
}
