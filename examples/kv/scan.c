/* SPDX-License-Identifier: MIT */
/*
 * Ranges: a leaf at a time, copied, so that nothing is held between two calls. Where a leaf ends, its fence says how to go
 * on, whatever has been split or merged meanwhile. The leaves that come next are read ahead, by what the page above says.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

#define AHEAD_MAX 32u /* leaves read ahead at once; asked for again when half of them have been used */
#define AHEAD_MIN 4u  /* the first time, which is after as many leaves: short ranges ask for nothing */

struct kv_scan {
    kv_session *s;
    bool reverse, loaded, ended, bounded;
    unsigned slot;          /* forward: the next one; backward: the one behind the next one */
    unsigned leaves;        /* so far */
    unsigned ahead, window; /* leaves that have been asked for already; that will be asked for next time */
    size_t at_bytes, bound_bytes;
    unsigned char at[KV_KEY_MAX + 1]; /* forward: go on with this key; backward: with those below it */
    unsigned char bound[KV_KEY_MAX];
    unsigned char key[KV_KEY_MAX];
    struct page leaf;
};

int kv_scan_open(kv_session *s, const void *from, size_t from_bytes, const void *to, size_t to_bytes, unsigned flags,
                 kv_scan **out)
{
    bool reverse = flags & KV_REVERSE;
    const void *begin = reverse ? to : from, *bound = reverse ? from : to;
    size_t begin_bytes = reverse ? to_bytes : from_bytes, bound_bytes = reverse ? from_bytes : to_bytes;
    kv_scan *scan;

    if (flags & ~KV_REVERSE)
        return session_fail(s, -EINVAL, "unknown flags %#x", flags);
    if ((from && from_bytes > KV_KEY_MAX) || (to && to_bytes > KV_KEY_MAX))
        return session_fail(s, KV_TOO_LARGE, "a key has %u bytes at the most", KV_KEY_MAX);
    scan = malloc(sizeof(*scan));
    if (!scan)
        return session_fail(s, -ENOMEM, "no memory for a scan");
    memset(scan, 0, offsetof(kv_scan, at));
    scan->s = s;
    scan->reverse = reverse;
    if (begin) {
        memcpy(scan->at, begin, begin_bytes);
        scan->at_bytes = begin_bytes;
    } else if (reverse) { /* above all keys */
        memset(scan->at, 0xff, sizeof(scan->at));
        scan->at_bytes = sizeof(scan->at);
    }
    scan->bounded = bound != NULL;
    if (bound && bound_bytes)
        memcpy(scan->bound, bound, bound_bytes);
    scan->bound_bytes = bound_bytes;
    *out = scan;
    return 0;
}

void kv_scan_close(kv_scan *scan)
{
    free(scan);
}

/* Ask for the leaves beside this one. The page above may have moved: then they are asked for another time. */
static void read_ahead(kv_scan *scan, const struct place *place)
{
    uint64_t page[AHEAD_MAX];
    unsigned count, wanted = 0;

    if (place->parent_page == PAGE_NONE || scan->leaves < AHEAD_MIN)
        return;
    scan->window = scan->window ? scan->window * 2 : AHEAD_MIN;
    if (scan->window > AHEAD_MAX)
        scan->window = AHEAD_MAX;
    count = page_count(view_page(&place->parent));
    for (unsigned i = 1 + scan->ahead; i <= scan->window; i++) {
        if (scan->reverse ? place->slot < i : place->slot + i >= count)
            break;
        page[wanted++] = page_child(view_page(&place->parent), scan->reverse ? place->slot - i : place->slot + i);
    }
    if (!bp_view_valid(&place->parent))
        return;
    for (unsigned i = 0; i < wanted; i++)
        (void)bp_prefetch(scan->s->pages, scan->s->kv->file[SPACE_TREE], page[i], 1);
    scan->ahead += wanted;
}

static int load(kv_scan *scan)
{
    struct bytes key = {scan->at, scan->at_bytes};
    struct tries tries = {0};
    bool exact;

    for (;;) {
        struct place place;
        int rc = tree_find(scan->s, key, scan->reverse, 0, &place);

        if (rc)
            return rc;
        page_copy(&scan->leaf, view_page(&place.node));
        if (bp_view_valid(&place.node)) {
            scan->leaves++;
            scan->ahead -= scan->ahead > 0;
            if (scan->ahead <= scan->window / 2)
                read_ahead(scan, &place);
            break;
        }
        if (!tries_more(scan->s, &tries))
            return -EBUSY;
    }
    scan->slot = page_seek(&scan->leaf, key, &exact);
    scan->loaded = true;
    return 0;
}

/* This leaf is used up: on from its fence, or that was all. */
static void leave(kv_scan *scan)
{
    struct bytes fence = scan->reverse ? page_low(&scan->leaf) : page_high(&scan->leaf);

    scan->loaded = false;
    if (scan->reverse ? !fence.count : !fence.at)
        scan->ended = true;
    else {
        memcpy(scan->at, fence.at, fence.count);
        scan->at_bytes = fence.count;
    }
}

static bool outside(const kv_scan *scan, size_t key_bytes)
{
    size_t least = key_bytes < scan->bound_bytes ? key_bytes : scan->bound_bytes;
    int order = memcmp(scan->key, scan->bound, least);

    if (!scan->bounded)
        return false;
    if (!order)
        order = (key_bytes > scan->bound_bytes) - (key_bytes < scan->bound_bytes);
    return scan->reverse ? order < 0 : order >= 0;
}

/* The value of a slot. KV_NOT_FOUND: a large one that has gone since the leaf was copied. */
static int value_of(kv_scan *scan, unsigned slot, size_t key_bytes, const void **value, size_t *value_bytes)
{
    struct found found;
    struct large large;
    int rc;

    if (!page_value(&scan->leaf, slot, &found) || (found.large && !large_parse(found.at, found.bytes, &large)))
        return session_fail(scan->s, KV_DAMAGED, "page %llu of %s has an entry that is none",
                            (unsigned long long)scan->leaf.number, DATA_NAME);
    *value = found.at;
    *value_bytes = found.bytes;
    if (!found.large)
        return 0;
    rc = large_read(scan->s, &large);
    if (rc) /* damaged, or replaced meanwhile: the tree knows */
        return kv_get(scan->s, scan->key, key_bytes, value, value_bytes);
    *value = scan->s->value;
    *value_bytes = large.bytes;
    return 0;
}

int kv_scan_next(kv_scan *scan, const void **key, size_t *key_bytes, const void **value, size_t *value_bytes)
{
    while (!scan->ended) {
        unsigned slot;
        int rc = scan->loaded ? 0 : load(scan);

        if (rc)
            return rc;
        if (scan->reverse ? scan->slot == 0 : scan->slot >= scan->leaf.count) {
            leave(scan);
            continue;
        }
        slot = scan->reverse ? scan->slot - 1 : scan->slot;
        *key_bytes = page_key(&scan->leaf, slot, scan->key);
        *key = scan->key;
        if (outside(scan, *key_bytes)) {
            scan->ended = true;
            break;
        }
        rc = value_of(scan, slot, *key_bytes, value, value_bytes);
        if (rc && rc != KV_NOT_FOUND)
            return rc;
        scan->slot = scan->reverse ? slot : slot + 1;
        if (!rc)
            return 0;
    }
    return KV_NOT_FOUND;
}
