/* SPDX-License-Identifier: MIT */
/*
 * The list of extents that dump.c writes and restore.c reads. All numbers little-endian, whatever the machine.
 *
 *   header, 64 bytes    "BPEXTENT"; u32 version; u32 page shift; u32 files; u32 0; u64 extents; u64 0; u64 0;
 *                       u64 0; u32 CRC of what follows the header; u32 CRC of the header up to here
 *   files, 96 bytes     u64 device; u64 inode; u64 size; i64 mtime, nanoseconds; end of the path, 64 bytes, the last 0
 *   extents, 16 bytes   u64 first page; u32 file, from 0; u8 order; u8 heat; u16 NUMA node
 *
 * Extents are listed hottest first, and those of the same heat by file and page. They do not overlap.
 *
 * A file is the same if inode, size and mtime are; the device's number may change when the machine starts anew, so it
 * only decides between files that are alike otherwise. Nothing depends on that: a list says what is worth reading, and
 * what is read comes from the file that is open now.
 */
#ifndef BUFPOOL_EXTENTS_H
#define BUFPOOL_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "bufpool/frame.h"

#define LIST_VERSION      1u
#define LIST_MAGIC        "BPEXTENT"
#define LIST_HEADER_BYTES 64u
#define LIST_FILE_BYTES   96u
#define LIST_EXTENT_BYTES 16u
#define LIST_NAME_BYTES   64u
#define LIST_HEAT_MAX     7u

struct list_file {
    uint64_t dev, ino, size;
    int64_t mtime_ns;
    char name[LIST_NAME_BYTES];
};

struct list_extent {
    uint64_t page;
    uint32_t file;
    uint8_t order;
    uint8_t heat;
    uint16_t node;
};

static inline void list_put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static inline uint64_t list_get(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

/* What a file is known by. Block devices' nodes have a time, but it says nothing about what is on them. */
static inline void list_identify(struct list_file *f, const struct stat *st, uint64_t bytes)
{
    f->dev = st->st_dev;
    f->ino = S_ISBLK(st->st_mode) ? st->st_rdev : st->st_ino;
    f->size = bytes;
    f->mtime_ns = S_ISBLK(st->st_mode) ? 0 : (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static inline bool list_same_file(const struct list_file *a, const struct list_file *b)
{
    return a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

/* Pages of a file, the last partial one too. */
static inline uint64_t list_pages(uint64_t bytes)
{
    return bytes / BP_PAGE_SIZE + (bytes % BP_PAGE_SIZE != 0);
}

/* By file and page. */
static inline int list_by_place(const void *left, const void *right)
{
    const struct list_extent *a = left;
    const struct list_extent *b = right;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->page < b->page ? -1 : a->page > b->page;
}

/* Hottest first, those of the same heat by file and page. */
static inline int list_by_heat(const void *left, const void *right)
{
    const struct list_extent *a = left;
    const struct list_extent *b = right;

    return a->heat != b->heat ? (int)b->heat - a->heat : list_by_place(left, right);
}

/* Of two neighbours by place: does the second begin before the first ends? */
static inline bool list_overlap(const struct list_extent *a, const struct list_extent *b)
{
    return a->file == b->file && b->page < a->page + (1ull << a->order);
}

#endif
