/* SPDX-License-Identifier: MIT */
/*
 * Several writes as one: all leaves that they fall into are held at once, and one record has all of it. The leaves are
 * changed as copies first, so that what does not fit is known before anything is logged.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

#define SPLITS_MAX (16u * KV_BATCH_MAX)

struct leaf {
    struct bp_ref ref;
    struct page after;
    size_t first, end; /* of the writes, by key */
};

struct batch {
    const struct kv_write **write; /* by key, each key once */
    size_t count;
    bool *idle; /* a write that changes nothing: the key is not there */
    struct leaf *leaf;
    size_t leaves, leaf_room;
    struct large *gone; /* large values that are replaced */
    size_t gone_count;
    int64_t entries;
};

static int by_key(const struct kv_write *a, const struct kv_write *b)
{
    size_t least = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    int order = memcmp(a->key, b->key, least);

    return order ? order : (a->key_bytes > b->key_bytes) - (a->key_bytes < b->key_bytes);
}

static int for_sort(const void *a, const void *b)
{
    const struct kv_write *x = *(const struct kv_write *const *)a, *y = *(const struct kv_write *const *)b;
    int order = by_key(x, y);

    return order ? order : (x > y) - (x < y); /* the later one of the caller's array behind */
}

static int check(kv_session *s, const struct kv_write write[], size_t count)
{
    size_t bytes = 0;

    if (count > KV_BATCH_MAX)
        return session_fail(s, KV_TOO_LARGE, "a batch of %zu writes; %u are the most", count, KV_BATCH_MAX);
    for (size_t i = 0; i < count; i++) {
        if (!write[i].key || !write[i].key_bytes)
            return session_fail(s, -EINVAL, "a key has at least one byte");
        if (write[i].key_bytes > KV_KEY_MAX ||
            (write[i].value && write[i].key_bytes + write[i].value_bytes > INLINE_MAX))
            return session_fail(s, KV_TOO_LARGE, "in a batch key and value have together %u bytes at the most",
                                INLINE_MAX);
        bytes += write[i].key_bytes + write[i].value_bytes;
    }
    if (bytes > KV_BATCH_BYTES)
        return session_fail(s, KV_TOO_LARGE, "a batch of %zu bytes; %u are the most", bytes, KV_BATCH_BYTES);
    return 0;
}

static void release(struct batch *batch)
{
    while (batch->leaves)
        bp_put(&batch->leaf[--batch->leaves].ref);
    batch->gone_count = 0;
    batch->entries = 0;
}

static int more_leaves(kv_session *s, struct batch *batch)
{
    size_t room = batch->leaf_room ? 2 * batch->leaf_room : 8;
    struct leaf *more;

    if (batch->leaves < batch->leaf_room)
        return 0;
    more = realloc(batch->leaf, room * sizeof(*more));
    if (!more)
        return session_fail(s, -ENOMEM, "no memory for a batch");
    batch->leaf = more;
    batch->leaf_room = room;
    return 0;
}

/* One write, in the copy of its leaf. 2: it does not fit. */
static int change_copy(kv_session *s, struct batch *batch, struct page *page, size_t i)
{
    const struct kv_write *write = batch->write[i];
    struct bytes key = {write->key, write->key_bytes};
    struct found found;
    bool exact;
    unsigned slot = page_seek(page, key, &exact);

    batch->idle[i] = !write->value && !exact;
    if (exact && page_value(page, slot, &found) && found.large &&
        !large_parse(found.at, found.bytes, &batch->gone[batch->gone_count++]))
        return session_fail(s, KV_DAMAGED, "page %llu of %s has an entry that is none",
                            (unsigned long long)page->number, DATA_NAME);
    if (write->value && !page_fits(page, key.count, write->value_bytes, exact ? (int)slot : -1))
        return 2;
    if (write->value)
        page_put(page, key, (struct bytes){write->value, write->value_bytes}, false);
    else if (exact)
        page_remove(page, slot);
    batch->entries += (write->value != NULL) - exact;
    return 0;
}

/* As many writes as fall into the leaf, into its copy. 2: they do not all fit; *split is where to split it. */
static int fill_leaf(kv_session *s, struct batch *batch, struct leaf *leaf, unsigned char split[KV_KEY_MAX],
                     size_t *split_bytes)
{
    int rc = 0;

    leaf->end = leaf->first;
    while (leaf->end < batch->count) {
        const struct kv_write *write = batch->write[leaf->end];
        struct bytes high = page_high(&leaf->after);
        struct kv_write fence = {.key = high.at, .key_bytes = high.count};
        unsigned slot;

        if (high.at && by_key(write, &fence) >= 0)
            break;
        rc = change_copy(s, batch, &leaf->after, leaf->end);
        if (rc == 2) /* the leaf itself may have nothing to divide yet: what it would hold says where */
            *split_bytes = page_split_key(&leaf->after, (struct bytes){write->key, write->key_bytes}, &slot, split);
        if (rc)
            break;
        leaf->end++;
    }
    return rc;
}

/*
 * The leaf of the next write, and of all behind it that fall into it. 2: the leaf was split, look again. Others stay held
 * meanwhile: a split waits for no latch.
 */
static int hold_next(kv_session *s, struct batch *batch, size_t *next)
{
    struct bytes key = {batch->write[*next]->key, batch->write[*next]->key_bytes}, at;
    size_t gone = batch->gone_count, split_bytes = 0;
    int64_t entries = batch->entries;
    unsigned char split[KV_KEY_MAX];
    struct leaf *leaf;
    struct place place;
    int rc = tree_find(s, key, false, 0, &place);

    if (!rc)
        rc = more_leaves(s, batch);
    if (rc)
        return rc;
    leaf = &batch->leaf[batch->leaves];
    rc = bp_upgrade(&place.node, s->pages, s->kv->file[SPACE_TREE], place.node_page, &leaf->ref);
    if (rc)
        return rc == BP_MOVED ? rc : session_pool_fail(s, rc, DATA_NAME, place.node_page);
    memcpy(&leaf->after, leaf->ref.data, PAGE_BYTES);
    leaf->first = *next;
    rc = fill_leaf(s, batch, leaf, split, &split_bytes);
    if (!rc) {
        batch->leaves++;
        *next = leaf->end;
        return 0;
    }
    bp_put(&leaf->ref);
    batch->gone_count = gone;
    batch->entries = entries;
    at = (struct bytes){split, split_bytes};
    if (rc == 2)
        rc = tree_split(s, key, split_bytes ? &at : NULL, 0);
    return rc ? rc : 2;
}

static int log_batch(kv_session *s, struct batch *batch, uint64_t *lsn)
{
    uint64_t floor = log_floor(&s->kv->log);
    int rc = 0;

    record_begin(s);
    s->record.entries = (int32_t)batch->entries;
    for (size_t l = 0; l < batch->leaves && !rc; l++) {
        const struct page *page = batch->leaf[l].ref.data;

        rc = record_before(s, page, floor);
        for (size_t i = batch->leaf[l].first; i < batch->leaf[l].end && !rc; i++) {
            const struct kv_write *write = batch->write[i];
            struct entry entry = {.change = write->value ? CHANGE_PUT : CHANGE_DELETE,
                                  .key_bytes = (uint16_t)write->key_bytes,
                                  .bytes = write->value ? (uint32_t)write->value_bytes : 0,
                                  .page = page->number};

            if (!batch->idle[i])
                rc = record_add(s, entry, write->key, write->value);
        }
    }
    for (size_t i = 0; i < batch->gone_count && !rc; i++)
        rc = record_large_free(s, &batch->gone[i]);
    return rc ? rc : record_append(s, floor, lsn);
}

/* One try: hold, copy, log, replace. */
static int batch_once(kv_session *s, struct batch *batch, uint64_t *lsn)
{
    unsigned splits = 0;
    size_t next = 0;
    int rc = 0;

    while (next < batch->count && !rc) {
        rc = hold_next(s, batch, &next);
        if (rc == 2)
            rc = ++splits > SPLITS_MAX ? session_fail(s, KV_DAMAGED, "a page cannot be split") : 0;
    }
    if (!rc)
        rc = log_batch(s, batch, lsn);
    if (rc) {
        release(batch);
        return rc;
    }
    for (size_t l = 0; l < batch->leaves; l++) {
        struct leaf *leaf = &batch->leaf[l];

        leaf->after.lsn = *lsn;
        memcpy(leaf->ref.data, &leaf->after, PAGE_BYTES);
        bp_put_dirty(&leaf->ref, *lsn);
    }
    batch->leaves = 0;
    record_settled(s);
    for (size_t i = 0; i < batch->gone_count; i++)
        large_forget(s, &batch->gone[i]);
    return 0;
}

static int run(kv_session *s, struct batch *batch, uint64_t *lsn)
{
    struct tries tries = {0};
    int rc;

    while ((rc = batch_once(s, batch, lsn)) == BP_MOVED || rc == -EAGAIN)
        if (!tries_more(s, &tries))
            return -EBUSY;
    return rc;
}

int kv_batch(kv_session *s, const struct kv_write write[], size_t count)
{
    struct batch batch = {.count = 0};
    uint64_t lsn;
    int rc = check(s, write, count);

    if (rc || !count)
        return rc;
    batch.write = malloc(count * sizeof(*batch.write));
    batch.idle = malloc(count * sizeof(*batch.idle));
    batch.gone = malloc(count * sizeof(*batch.gone));
    if (!batch.write || !batch.idle || !batch.gone) {
        rc = session_fail(s, -ENOMEM, "no memory for a batch");
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        batch.write[i] = &write[i];
    qsort(batch.write, count, sizeof(*batch.write), for_sort);
    for (size_t i = 0; i < count; i++)
        if (i + 1 == count || by_key(batch.write[i], batch.write[i + 1]))
            batch.write[batch.count++] = batch.write[i];
    /* one at a time: so many latches at once, each only tried, are more than two can be expected to get */
    pthread_mutex_lock(&s->kv->batch_lock);
    rc = run(s, &batch, &lsn);
    pthread_mutex_unlock(&s->kv->batch_lock);
    if (!rc)
        rc = session_commit(s, lsn);
out:
    free(batch.leaf);
    free(batch.write);
    free(batch.idle);
    free(batch.gone);
    return rc;
}
