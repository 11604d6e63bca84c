/* SPDX-License-Identifier: MIT */
/*
 * A page of the tree: keys in order, each with a payload, between two fences.
 *
 *   0        40                 heap                                 4096
 *   | header | slot slot slot ->|    ...   <- cells | high | low fence |
 *
 * All keys k of a page obey low <= k < high, so they share the fences' common prefix, which is not stored again. A slot
 * has the first four bytes of what follows the prefix, as a number, so that a search compares numbers that lie together
 * and looks at cells only where these are equal (after Graefe & Larson, "B-tree indexes and CPU caches", 2001). A cell is
 * the rest of the key and a payload: in a leaf the value, or where a large one lies; above, the number of a child. The child
 * beside a key has the keys from there on; the first child those before the second key, whatever the first key says.
 *
 * Functions marked "torn" may be given a page that somebody is changing: what they answer is then wrong, but they touch
 * nothing outside the page, and end. Their caller asks bp_view_valid() before he believes them. All others need the page
 * to themselves. What changes a page does so in the same way every time, given the same page: recovery depends on it.
 */
#ifndef KV_PAGE_H
#define KV_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES  4096u
#define PAGE_HEADER 40u
#define PAGE_FORMAT 1u
#define SLOTS_MAX   507u
#define PAGE_NONE   0u /* no page: page 0 of the file is its label */
#define PAGE_ROOT   1u /* the root never moves */

#define INLINE_MAX 1024u /* key and value together that a leaf takes */

enum page_type { PAGE_LEAF = 1, PAGE_INNER = 2 };

struct slot {
    uint32_t head;  /* first bytes of the key's rest, most significant first, zeros behind it */
    uint16_t at;    /* of the cell */
    uint16_t bytes; /* of the key's rest */
};

struct page {
    uint32_t crc;       /* CRC-32C of the rest; set when it is written */
    uint8_t type;       /* enum page_type */
    uint8_t level;      /* 0: leaf */
    uint16_t format;    /* PAGE_FORMAT */
    uint64_t lsn;       /* end of the last log record that was applied */
    uint64_t number;    /* of the page itself */
    uint16_t count;     /* slots */
    uint16_t heap;      /* first byte in use behind the slots */
    uint16_t dead;      /* bytes between heap and the fences that nobody uses */
    uint16_t prefix;    /* bytes that all keys share: those that `low` begins with */
    uint16_t low, high; /* bytes of the fences */
    uint16_t last;      /* 1: there is no upper fence */
    uint16_t zero;
    struct slot slot[SLOTS_MAX]; /* up to the end; cells and fences lie over those that are not in use */
};

struct bytes {
    const void *at;
    size_t count;
};

/* As keys compare. */
int bytes_compare(struct bytes, struct bytes);

/* A payload as it lies in a page. */
struct found {
    const unsigned char *at;
    uint32_t bytes;
    bool large; /* not the value, but where it lies */
};

/* ---- torn ---- */

/* First slot whose key is not below `key`; *exact: it is the key. */
static inline unsigned page_seek(const struct page *, struct bytes key, bool *exact);
/* The payload of a leaf's slot; false: what lies there cannot be. */
static inline bool page_value(const struct page *, unsigned slot, struct found *);
/* Which child has this key; with `before`, which one has the keys right below it. */
static inline unsigned page_child_slot(const struct page *, struct bytes key, bool before);
static inline uint64_t page_child(const struct page *, unsigned slot);
static inline unsigned page_count(const struct page *page)
{
    unsigned count = __atomic_load_n(&page->count, __ATOMIC_RELAXED);

    return count < SLOTS_MAX ? count : SLOTS_MAX;
}
static inline unsigned page_level(const struct page *page)
{
    return __atomic_load_n(&page->level, __ATOMIC_RELAXED);
}
/*
 * Header and first slots, before they are needed: a search in a leaf looks at little else before its cell, and these lines
 * come all at once then, and while the frame is being asked whether it is the page.
 */
static inline void page_prefetch(const struct page *page)
{
    for (unsigned line = 0; line < 6; line++)
        __builtin_prefetch((const char *)page + 64 * line);
}
/* What page_value has found, which is at most INLINE_MAX bytes and is copied up to there. */
static inline void page_take(void *to, const struct found *);
/* The page as a whole. */
void page_copy(struct page *to, const struct page *from);

/* ---- reading a page that stands still ---- */

struct bytes page_low(const struct page *);
/* at NULL: there is none. */
struct bytes page_high(const struct page *);
/* The whole key of a slot into `to` (KV_KEY_MAX bytes); how many. */
size_t page_key(const struct page *, unsigned slot, unsigned char *to);
/* Whether a put of this size fits; `slot` is where it is already, or -1. */
bool page_fits(const struct page *, size_t key_bytes, size_t payload_bytes, int slot);
/* Bytes in use, beside header and fences. */
unsigned page_used(const struct page *);
/*
 * Where to split: the right page begins with *slot, and with the key `to`; how many bytes that has. `key` is what shall be
 * entered; 0: the page cannot be split for it.
 */
size_t page_split_key(const struct page *, struct bytes key, unsigned *slot, unsigned char *to);
/* Whether both halves fit into pages, with their new fences: other prefixes make cells longer or shorter. */
bool page_split_fits(const struct page *, unsigned slot, struct bytes middle);
/* NULL, or what is wrong with it. Looks at all there is. */
const char *page_wrong(const struct page *, uint64_t number);

/* ---- changing ---- */

void page_init(struct page *, uint64_t number, unsigned level, struct bytes low, struct bytes high);
/* Enter or replace; it must fit. Leaf: payload is the value; inner: a child's number, 8 bytes. */
void page_put(struct page *, struct bytes key, struct bytes payload, bool large);
/* Take out the slot. */
void page_remove(struct page *, unsigned slot);
/* Keep the first `count`, below this new upper fence. */
void page_cut(struct page *, unsigned count, struct bytes high);
/* Append to `to` what `from` has in slots first to end - 1; it must fit, and lie inside the fences. */
void page_append(struct page *to, const struct page *from, unsigned first, unsigned end);
/* The two side by side as one, into `to`; false: too much for a page. */
bool page_join(struct page *to, const struct page *left, const struct page *right);

/* The CRC that it should have. */
uint32_t page_crc(const struct page *);

/* ---- images: a page without the hole in its middle ---- */

/* Into `to` (PAGE_BYTES); how many bytes. *hole: where the hole is. */
size_t page_pack(const struct page *, unsigned char *to, uint32_t *hole);
/* false: the image is not one. */
bool page_unpack(struct page *, const unsigned char *from, size_t bytes, uint32_t hole);

#include "kv/seek.h"

#endif
