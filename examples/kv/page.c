/* SPDX-License-Identifier: MIT */
/* Pages of the tree (page.h): search, change, split, images. */
#include "kv/page.h"

#include <string.h>

#include <bufpool/bufpool.h>

#include "kv/kv.h"

_Static_assert(sizeof(struct page) == PAGE_BYTES && offsetof(struct page, slot) == PAGE_HEADER,
               "the header's size is part of the format");
_Static_assert(PAGE_HEADER + 2 * KV_KEY_MAX + 2 * (KV_KEY_MAX + INNER_SKIP + sizeof(struct slot)) <= PAGE_BYTES,
               "an inner page must take two children between the longest fences");
_Static_assert(PAGE_HEADER + 2 * KV_KEY_MAX + INLINE_MAX + LEAF_SKIP + sizeof(struct slot) <= PAGE_BYTES,
               "a leaf must take one entry between the longest fences");

int bytes_compare(struct bytes a, struct bytes b)
{
    size_t least = a.count < b.count ? a.count : b.count;
    int order = least ? memcmp(a.at, b.at, least) : 0;

    return order ? order : (a.count > b.count) - (a.count < b.count);
}

/* ---- torn: the rest is in seek.h ---- */

void page_copy(struct page *to, const struct page *from)
{
    memcpy(to, from, PAGE_BYTES);
}

/* ---- reading ---- */

struct bytes page_low(const struct page *page)
{
    return (struct bytes){(const unsigned char *)page + PAGE_BYTES - page->low, page->low};
}

struct bytes page_high(const struct page *page)
{
    if (page->last)
        return (struct bytes){NULL, 0};
    return (struct bytes){(const unsigned char *)page + PAGE_BYTES - page->low - page->high, page->high};
}

static const unsigned char *rest_of(const struct page *page, unsigned slot)
{
    return (const unsigned char *)page + page->slot[slot].at + skip_of(page);
}

size_t page_key(const struct page *page, unsigned slot, unsigned char *to)
{
    memcpy(to, page_low(page).at, page->prefix);
    memcpy(to + page->prefix, rest_of(page, slot), page->slot[slot].bytes);
    return (size_t)page->prefix + page->slot[slot].bytes;
}

/* The payload of a slot, whatever the page's type. */
static struct found payload_of(const struct page *page, unsigned slot)
{
    struct found found = {(const unsigned char *)page + page->slot[slot].at, INNER_SKIP, false};

    if (!page->level && !page_value(page, slot, &found))
        found.bytes = 0;
    return found;
}

/* Bytes of a slot's cell. */
static unsigned cell_bytes(const struct page *page, unsigned slot)
{
    unsigned rest = page->slot[slot].bytes;

    return page->level ? INNER_SKIP + rest : LEAF_SKIP + rest + payload_of(page, slot).bytes;
}

static size_t cell_needs(const struct page *page, size_t key_bytes, size_t payload_bytes)
{
    return key_bytes - page->prefix + (page->level ? INNER_SKIP : LEAF_SKIP + payload_bytes);
}

static unsigned slots_end(const struct page *page)
{
    return PAGE_HEADER + page->count * (unsigned)sizeof(struct slot);
}

bool page_fits(const struct page *page, size_t key_bytes, size_t payload_bytes, int slot)
{
    size_t free = (size_t)page->heap - slots_end(page) + page->dead;
    size_t needs = cell_needs(page, key_bytes, payload_bytes);

    if (slot < 0)
        needs += sizeof(struct slot);
    else
        free += cell_bytes(page, (unsigned)slot);
    return needs <= free;
}

unsigned page_used(const struct page *page)
{
    return slots_end(page) - PAGE_HEADER + PAGE_BYTES - page->low - page->high - page->heap - page->dead;
}

/* The shortest key that is above `below` and not above `key`, which is above it; into `to`. */
static size_t shortest_between(struct bytes below, struct bytes key, unsigned char *to)
{
    const unsigned char *a = below.at, *b = key.at;
    size_t same = 0;

    while (same < below.count && same < key.count && a[same] == b[same])
        same++;
    memcpy(to, b, same + 1); /* key is not a beginning of what is below it, so it goes on here */
    return same + 1;
}

/*
 * The slot that divides the bytes best; at least 1, below count. Then the larger half has no more than half of the bytes and
 * half of the largest cell, which fits between the longest fences, so what the split writes always fits.
 */
static unsigned middle_slot(const struct page *page)
{
    unsigned sum = 0, half = page_used(page) / 2, slot = 0;

    while (slot < page->count) {
        unsigned bytes = cell_bytes(page, slot) + (unsigned)sizeof(struct slot);

        if (sum + bytes / 2 >= half)
            break;
        sum += bytes;
        slot++;
    }
    if (slot >= page->count)
        slot = page->count - 1u;
    return slot ? slot : 1;
}

_Static_assert(PAGE_HEADER + KV_KEY_MAX + (PAGE_BYTES - PAGE_HEADER) / 2 +
                       (INLINE_MAX + LEAF_SKIP + sizeof(struct slot)) / 2 + KV_KEY_MAX / 2 <=
                   PAGE_BYTES,
               "see middle_slot");

static unsigned shared(struct bytes low, struct bytes high)
{
    const unsigned char *a = low.at, *b = high.at;
    unsigned prefix = 0;

    while (prefix < low.count && prefix < high.count && a[prefix] == b[prefix])
        prefix++;
    return prefix;
}

bool page_split_fits(const struct page *page, unsigned slot, struct bytes middle)
{
    struct bytes low = page_low(page), high = page_high(page);
    size_t left = PAGE_HEADER + low.count + middle.count, right = PAGE_HEADER + middle.count + high.count;
    unsigned left_prefix = shared(low, middle), right_prefix = high.at ? shared(middle, high) : 0;

    for (unsigned i = 0; i < page->count; i++) {
        size_t bytes = cell_bytes(page, i) + sizeof(struct slot) + page->prefix;

        if (i < slot)
            left += bytes - left_prefix;
        else
            right += bytes - right_prefix;
    }
    return left <= PAGE_BYTES && right <= PAGE_BYTES;
}

size_t page_split_key(const struct page *page, struct bytes key, unsigned *slot, unsigned char *to)
{
    unsigned char first[KV_KEY_MAX], second[KV_KEY_MAX];
    struct bytes below, above;
    bool exact;
    unsigned at = page_seek(page, key, &exact);

    if (page->level) {
        if (page->count < 2)
            return 0;
        *slot = at == page->count ? at - 1u : middle_slot(page); /* in ascending order: leave the left one full */
        return page_key(page, *slot, to);
    }
    if (page->count == 0 || (page->count == 1 && exact))
        return 0;
    if (at == page->count &&
        page->count > 1) { /* in ascending order: leave the left one full, if a longer fence fits */
        struct bytes middle = {to, 0};

        below = (struct bytes){first, page_key(page, at - 1, first)};
        middle.count = shortest_between(below, key, to);
        *slot = at;
        if (page_split_fits(page, at, middle))
            return middle.count;
    }
    *slot = page->count == 1 ? at : middle_slot(page);
    below = *slot > 0 ? (struct bytes){first, page_key(page, *slot - 1, first)} : key;
    above = *slot < page->count ? (struct bytes){second, page_key(page, *slot, second)} : key;
    return shortest_between(below, above, to);
}

static const char *order_wrong(const struct page *page)
{
    unsigned char before[KV_KEY_MAX];
    size_t count = 0;

    for (unsigned slot = 0; slot < page->count; slot++) {
        const unsigned char *rest = rest_of(page, slot);
        size_t bytes = page->slot[slot].bytes, least = count < bytes ? count : bytes;
        int order = slot ? memcmp(before, rest, least) : -1;

        if (page->slot[slot].head != head_of(rest, bytes))
            return "the first bytes of a key are not those of its slot";
        if (order > 0 || (order == 0 && count >= bytes))
            return "keys are out of order";
        memcpy(before, rest, bytes);
        count = bytes;
    }
    return NULL;
}

static const char *fences_wrong(const struct page *page)
{
    unsigned char key[KV_KEY_MAX];
    struct bytes low = page_low(page), high = page_high(page);

    if (!page->last && bytes_compare(low, high) >= 0)
        return "the lower fence is not below the upper one";
    if (page->prefix > low.count || (page->last ? page->prefix > 0 : page->prefix > high.count) ||
        (page->prefix && memcmp(low.at, high.at, page->prefix)))
        return "the prefix is not the fences'";
    if (page->count && bytes_compare((struct bytes){key, page_key(page, 0, key)}, low) < 0)
        return "a key is below the lower fence";
    if (page->level && (!page->count || bytes_compare((struct bytes){key, page_key(page, 0, key)}, low) != 0))
        return "the first child does not begin with the lower fence";
    if (page->count && !page->last &&
        bytes_compare((struct bytes){key, page_key(page, page->count - 1u, key)}, high) >= 0)
        return "a key is not below the upper fence";
    return NULL;
}

const char *page_wrong(const struct page *page, uint64_t number)
{
    unsigned sum = 0;
    const char *wrong;

    if (page->number != number)
        return "it is another page";
    if (page->format != PAGE_FORMAT)
        return "it is of a format that this program does not know";
    if (page->type != (page->level ? PAGE_INNER : PAGE_LEAF))
        return "its type is not one";
    if (page->low > KV_KEY_MAX || page->high > KV_KEY_MAX || page->last > 1 || page->prefix > KV_KEY_MAX)
        return "its fences are too long";
    if (page->count > SLOTS_MAX || page->heap > PAGE_BYTES - page->low - page->high || slots_end(page) > page->heap)
        return "its slots and cells overlap";
    for (unsigned slot = 0; slot < page->count; slot++) {
        unsigned at = page->slot[slot].at, rest = page->slot[slot].bytes;

        if (at < page->heap || at + skip_of(page) + rest > PAGE_BYTES || rest + page->prefix > KV_KEY_MAX)
            return "a cell lies outside";
        if (at + cell_bytes(page, slot) > PAGE_BYTES - page->low - page->high)
            return "a value lies outside";
        sum += cell_bytes(page, slot);
    }
    if (sum + page->dead != PAGE_BYTES - page->low - page->high - page->heap)
        return "its cells and what is unused do not add up";
    wrong = order_wrong(page);
    return wrong ? wrong : fences_wrong(page);
}

/* ---- changing ---- */

void page_init(struct page *page, uint64_t number, unsigned level, struct bytes low, struct bytes high)
{
    unsigned char *end = (unsigned char *)page + PAGE_BYTES;

    memset(page, 0, PAGE_BYTES);
    page->type = level ? PAGE_INNER : PAGE_LEAF;
    page->level = (uint8_t)level;
    page->format = PAGE_FORMAT;
    page->number = number;
    page->low = (uint16_t)low.count;
    page->high = (uint16_t)high.count;
    page->last = !high.at;
    page->heap = (uint16_t)(PAGE_BYTES - low.count - high.count);
    if (low.count)
        memcpy(end - low.count, low.at, low.count);
    if (high.count)
        memcpy(end - low.count - high.count, high.at, high.count);
    page->prefix = (uint16_t)(high.at ? shared(low, high) : 0);
}

/* A new slot here, and its cell; there is room between slots and cells. */
static void insert_cell(struct page *page, unsigned slot, struct bytes key, struct bytes payload, bool large)
{
    size_t rest = key.count - page->prefix;
    unsigned char *cell;
    uint16_t bytes = (uint16_t)(payload.count | (large ? LARGE_FLAG : 0));

    page->heap = (uint16_t)(page->heap - cell_needs(page, key.count, payload.count));
    cell = (unsigned char *)page + page->heap;
    memmove(page->slot + slot + 1, page->slot + slot, (page->count - slot) * sizeof(struct slot));
    page->count++;
    page->slot[slot].at = page->heap;
    page->slot[slot].bytes = (uint16_t)rest;
    if (rest)
        memcpy(cell + skip_of(page), (const unsigned char *)key.at + page->prefix, rest);
    page->slot[slot].head = head_of(cell + skip_of(page), rest);
    if (page->level)
        memcpy(cell, payload.at, INNER_SKIP);
    else {
        memcpy(cell, &bytes, sizeof(bytes));
        if (payload.count)
            memcpy(cell + LEAF_SKIP + rest, payload.at, payload.count);
    }
}

void page_append(struct page *to, const struct page *from, unsigned first, unsigned end)
{
    unsigned char key[KV_KEY_MAX];

    for (unsigned slot = first; slot < end; slot++) {
        struct found found = payload_of(from, slot);

        insert_cell(to, to->count, (struct bytes){key, page_key(from, slot, key)},
                    (struct bytes){found.at, found.bytes}, found.large);
    }
}

/* The page again, with the first `count` slots, another upper fence, and no dead bytes. */
static void rebuild(struct page *page, unsigned count, struct bytes high)
{
    struct page fresh;

    page_init(&fresh, page->number, page->level, page_low(page), high);
    fresh.lsn = page->lsn;
    page_append(&fresh, page, 0, count);
    memcpy(page, &fresh, PAGE_BYTES);
}

void page_cut(struct page *page, unsigned count, struct bytes high)
{
    rebuild(page, count, high);
}

void page_remove(struct page *page, unsigned slot)
{
    unsigned bytes = cell_bytes(page, slot);

    if (page->slot[slot].at == page->heap)
        page->heap = (uint16_t)(page->heap + bytes);
    else
        page->dead = (uint16_t)(page->dead + bytes);
    page->count--;
    memmove(page->slot + slot, page->slot + slot + 1, (page->count - slot) * sizeof(struct slot));
}

void page_put(struct page *page, struct bytes key, struct bytes payload, bool large)
{
    bool exact;
    unsigned slot = page_seek(page, key, &exact);

    if (exact) {
        struct found old = payload_of(page, slot);

        if (old.bytes == payload.count) {
            unsigned char *cell = (unsigned char *)page + page->slot[slot].at;
            uint16_t bytes = (uint16_t)(payload.count | (large ? LARGE_FLAG : 0));

            if (!page->level)
                memcpy(cell, &bytes, sizeof(bytes));
            if (payload.count)
                memcpy((unsigned char *)page + (old.at - (unsigned char *)page), payload.at, payload.count);
            return;
        }
        page_remove(page, slot);
    }
    if (cell_needs(page, key.count, payload.count) + sizeof(struct slot) + slots_end(page) > page->heap)
        rebuild(page, page->count, page_high(page));
    insert_cell(page, slot, key, payload, large);
}

bool page_join(struct page *to, const struct page *left, const struct page *right)
{
    struct bytes low = page_low(left), high = page_high(right);
    unsigned char key[KV_KEY_MAX];

    page_init(to, left->number, left->level, low, high);
    for (unsigned i = 0; i < (unsigned)left->count + right->count; i++) {
        const struct page *from = i < left->count ? left : right;
        unsigned slot = i < left->count ? i : i - left->count;
        struct found found = payload_of(from, slot);
        size_t bytes = page_key(from, slot, key);

        if (!page_fits(to, bytes, found.bytes, -1))
            return false;
        insert_cell(to, to->count, (struct bytes){key, bytes}, (struct bytes){found.at, found.bytes}, found.large);
    }
    return true;
}

uint32_t page_crc(const struct page *page)
{
    return bp_crc32c(0, (const unsigned char *)page + sizeof(page->crc), PAGE_BYTES - sizeof(page->crc));
}

/* ---- images ---- */

size_t page_pack(const struct page *page, unsigned char *to, uint32_t *hole)
{
    *hole = slots_end(page);
    memcpy(to, page, *hole);
    memcpy(to + *hole, (const unsigned char *)page + page->heap, PAGE_BYTES - page->heap);
    return *hole + PAGE_BYTES - page->heap;
}

bool page_unpack(struct page *page, const unsigned char *from, size_t bytes, uint32_t hole)
{
    if (hole < PAGE_HEADER || hole > bytes || bytes > PAGE_BYTES)
        return false;
    memcpy(page, from, hole);
    memset((unsigned char *)page + hole, 0, PAGE_BYTES - bytes);
    memcpy((unsigned char *)page + hole + PAGE_BYTES - bytes, from + hole, bytes - hole);
    return true;
}
