/* SPDX-License-Identifier: MIT */
/* Keys and values as text. */
#include <stdint.h>
#include <string.h>

#include "kv/program/program.h"

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

long text_bytes(const char *from, size_t count, char *to)
{
    long done = 0;

    for (size_t i = 0; i < count; i++) {
        char c = from[i];

        if (c == '\\') {
            if (++i == count)
                return -1;
            switch (from[i]) {
            case 't':
                c = '\t';
                break;
            case 'n':
                c = '\n';
                break;
            case 'r':
                c = '\r';
                break;
            case '\\':
                break;
            case 'x':
                if (i + 2 >= count || hex(from[i + 1]) < 0 || hex(from[i + 2]) < 0)
                    return -1;
                c = (char)(hex(from[i + 1]) << 4 | hex(from[i + 2]));
                i += 2;
                break;
            default:
                return -1;
            }
        }
        to[done++] = c;
    }
    return done;
}

void text_print(FILE *out, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < count; i++) {
        unsigned char c = at[i];

        if (c == '\t')
            fputs("\\t", out);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c == '\r')
            fputs("\\r", out);
        else if (c == '\\')
            fputs("\\\\", out);
        else if (c < ' ' || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            putc_unlocked(c, out); /* one thread prints */
    }
}
