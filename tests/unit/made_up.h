/* SPDX-License-Identifier: MIT */
/* A device that is not there, but whose pages say which ones they are: memory is the only limit to its speed. */
#ifndef TESTS_MADE_UP_H
#define TESTS_MADE_UP_H

#include "bufpool/pool.h"

#define MADE_UP_WORDS 4u /* of a page, at equal distances, are looked at */

static inline uint64_t made_up_word(uint64_t page, unsigned i)
{
    return (page + 1) * 0x9e3779b97f4a7c15ull + i;
}

/* By name for the thread sanitizer (tests/tsan.supp): it stands in for the device. */
static void read_request(const struct io_request *r)
{
    for (uint32_t at = 0; at < r->bytes; at += 4096)
        for (unsigned i = 0; i < MADE_UP_WORDS; i++)
            atomic_store_explicit((_Atomic uint64_t *)(void *)((char *)r->to + at) + i * 512 / MADE_UP_WORDS,
                                  made_up_word((r->offset + at) / 4096, i), memory_order_relaxed);
}

static int made_up_submit(struct io_channel *ch, struct io_request *const r[], unsigned n, unsigned flags)
{
    for (unsigned i = 0; i < n; i++)
        read_request(r[i]);
    return bpi_io_null.submit(ch, r, n, flags);
}

static inline struct io_ops made_up_ops(void)
{
    struct io_ops ops = bpi_io_null;

    ops.submit = made_up_submit;
    return ops;
}

/* Words are loaded atomically: optimistic readers race with the next page's by design. */
static inline bool made_up_right(uint64_t page, const void *data)
{
    for (unsigned i = 0; i < MADE_UP_WORDS; i++)
        if (atomic_load_explicit((const _Atomic uint64_t *)data + i * 512 / MADE_UP_WORDS, memory_order_relaxed) !=
            made_up_word(page, i))
            return false;
    return true;
}

#endif
