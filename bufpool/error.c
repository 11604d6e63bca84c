/* SPDX-License-Identifier: MIT */
/* Codes in words, and the texts that say what exactly went wrong. */
#include <stdio.h>
#include <string.h>

#include "bufpool/pool.h"

const char *bp_strerror(int code)
{
    const char *text;

    switch (code) {
#define ERROR_CASE(name, value, words) \
    case value:                        \
        return words;
        BP_ERROR_TABLE(ERROR_CASE)
#undef ERROR_CASE
    case BP_PENDING:
        return "under way; the answer comes through bp_poll";
    default:
        /* strerror_r may need a buffer; this one returns static text and is thread safe */
        text = strerrordesc_np(code < 0 ? -code : code);
        return text ? text : "unknown error";
    }
}

unsigned bp_version(void)
{
    return BP_VERSION_MAJOR << 16 | BP_VERSION_MINOR << 8 | BP_VERSION_PATCH;
}

void bpi_error_set(struct bp_error *error, int code, const char *format, ...)
{
    va_list args;

    if (!error)
        return;
    error->code = code;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
}

int bpi_session_fail(bp_session *s, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(s->error, sizeof(s->error), format, args);
    va_end(args);
    return code;
}

const char *bp_session_error(const bp_session *s)
{
    return bpi_forked(s) ? bp_strerror(BP_FORKED) : s->error;
}
