/* SPDX-License-Identifier: MIT */
/*
 * Pieces of JSON (see json.h).
 */
#include "scan-server/json.h"

/* Bytes of the UTF-8 sequence that begins here, 0 if none does: no overlong forms, no surrogates (RFC 3629). */
static unsigned utf8_bytes(const unsigned char *at)
{
    unsigned bytes = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 4;

    if (at[0] > 0xf4 || (at[0] >= 0x80 && at[0] < 0xc2))
        return 0;
    for (unsigned i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) /* the NUL at the end too */
            return 0;
    }
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return bytes;
}

void json_string(struct text *json, const char *string)
{
    const unsigned char *at = (const unsigned char *)string;
    unsigned bytes;

    text_puts(json, "\"");
    for (; *at; at += bytes ? bytes : 1) {
        bytes = utf8_bytes(at);
        if (*at == '"' || *at == '\\')
            text_printf(json, "\\%c", *at);
        else if (*at < 0x20)
            text_printf(json, "\\u%04x", *at);
        else if (!bytes)
            text_puts(json, "\\ufffd");
        else
            text_add(json, at, bytes);
    }
    text_puts(json, "\"");
}

void json_number(struct text *json, const char *before, const char *name, uint64_t value)
{
    text_printf(json, "%s\n    \"%s\": %llu", before, name, (unsigned long long)value);
}
