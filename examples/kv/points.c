/* SPDX-License-Identifier: MIT */
/* One key: get, put, delete. */
#include <errno.h>
#include <string.h>

#include "kv/store.h"

#define SPLITS_MAX 1000u /* for one put: others fill again what it has split */

static int check_key(kv_session *s, const void *key, size_t bytes)
{
    if (!key || !bytes)
        return session_fail(s, -EINVAL, "a key has at least one byte");
    if (bytes > KV_KEY_MAX)
        return session_fail(s, KV_TOO_LARGE, "a key of %zu bytes; %u are the most", bytes, KV_KEY_MAX);
    return 0;
}

/* ---- reading ---- */

/*
 * What a leaf says of a key, as one moment had it: into session->value where it lies in the leaf and `whole` is asked for.
 * Without a message where there is none: that is no failure to explain.
 */
static int look_up(kv_session *s, struct bytes key, bool whole, struct place *place, struct found *found,
                   struct large *large)
{
    struct tries tries = {0};

    for (;;) {
        const struct page *page;
        bool exact, right;
        unsigned slot;
        int rc = tree_find(s, key, false, 0, place);

        if (rc)
            return rc;
        page = view_page(&place->node);
        slot = page_seek(page, key, &exact);
        right = !exact || page_value(page, slot, found);
        if (right && exact && found->large)
            right = large_parse(found->at, found->bytes, large);
        else if (right && exact && whole) /* there is always room for what lies in a leaf */
            page_take(s->value, found);
        if (bp_view_valid(&place->node)) {
            if (!exact)
                return KV_NOT_FOUND;
            return right ? 0
                         : session_fail(s, KV_DAMAGED, "page %llu of %s has an entry that is none",
                                        (unsigned long long)place->node_page, DATA_NAME);
        }
        if (!tries_more(s, &tries))
            return -EBUSY;
    }
}

int kv_get(kv_session *s, const void *key, size_t key_bytes, const void **value, size_t *value_bytes)
{
    struct tries tries = {0};
    struct place place;
    struct found found;
    struct large large;
    int rc = check_key(s, key, key_bytes);

    while (!rc) {
        rc = look_up(s, (struct bytes){key, key_bytes}, true, &place, &found, &large);
        if (rc)
            break;
        if (!found.large) {
            *value_bytes = found.bytes;
            break;
        }
        *value_bytes = large.bytes;
        rc = large_read(s, &large);
        if (!rc || bp_view_valid(&place.node))
            break;
        rc = tries_more(s, &tries) ? 0 : -EBUSY; /* it has been replaced meanwhile */
    }
    *value = s->value;
    return rc;
}

int kv_length(kv_session *s, const void *key, size_t key_bytes, size_t *value_bytes)
{
    struct place place;
    struct found found;
    struct large large;
    int rc = check_key(s, key, key_bytes);

    if (!rc)
        rc = look_up(s, (struct bytes){key, key_bytes}, false, &place, &found, &large);
    if (!rc)
        *value_bytes = found.large ? large.bytes : found.bytes;
    return rc;
}

/* ---- writing ---- */

/* What a change needs to know of the entry that is there. */
struct old {
    unsigned slot;
    bool exact, is_large;
    struct large large;
};

/* The leaf of a key, exclusively. BP_MOVED: start over. */
static int hold_leaf(kv_session *s, struct bytes key, struct bp_ref *ref, struct old *old)
{
    struct place place;
    struct found found;
    int rc = tree_find(s, key, false, 0, &place);

    if (rc)
        return rc;
    rc = bp_upgrade(&place.node, s->pages, s->kv->file[SPACE_TREE], place.node_page, ref);
    if (rc)
        return rc == BP_MOVED ? rc : session_pool_fail(s, rc, DATA_NAME, place.node_page);
    old->slot = page_seek(ref->data, key, &old->exact);
    old->is_large = old->exact && page_value(ref->data, old->slot, &found) && found.large;
    if (old->is_large && !large_parse(found.at, found.bytes, &old->large)) {
        bp_put(ref);
        return session_fail(s, KV_DAMAGED, "page %llu of %s has an entry that is none",
                            (unsigned long long)place.node_page, DATA_NAME);
    }
    return 0;
}

/* The record of a change of one leaf, into the log. */
static int log_change(kv_session *s, const struct page *page, struct entry entry, struct bytes key, const void *payload,
                      const struct old *old, const struct large *fresh, uint64_t *lsn)
{
    uint64_t floor = log_floor(&s->kv->log);
    int rc;

    entry.page = page->number;
    entry.key_bytes = (uint16_t)key.count;
    record_begin(s);
    s->record.entries = (entry.change == CHANGE_PUT) - old->exact;
    rc = record_before(s, page, floor);
    if (!rc)
        rc = record_add(s, entry, key.at, payload);
    if (!rc && old->is_large)
        rc = record_large_free(s, &old->large);
    for (unsigned i = 0; fresh && i < fresh->pieces && !rc; i++)
        rc = record_space(s, CHANGE_USE, SPACE_VALUES, piece_page(fresh->piece[i]), piece_order(fresh->piece[i]));
    return rc ? rc : record_append(s, floor, lsn);
}

/* One try. 2: the leaf must be split first. */
static int put_once(kv_session *s, struct bytes key, struct bytes payload, const struct large *fresh, uint64_t *lsn)
{
    struct entry entry = {.change = CHANGE_PUT, .flag = fresh != NULL, .bytes = (uint32_t)payload.count};
    struct bp_ref ref;
    struct old old;
    int rc = hold_leaf(s, key, &ref, &old);

    if (rc)
        return rc;
    rc = page_fits(ref.data, key.count, payload.count, old.exact ? (int)old.slot : -1) ? 0 : 2;
    if (!rc)
        rc = log_change(s, ref.data, entry, key, payload.at, &old, fresh, lsn);
    if (rc) {
        bp_put(&ref);
        return rc;
    }
    page_put(ref.data, key, payload, fresh != NULL);
    ((struct page *)ref.data)->lsn = *lsn;
    bp_put_dirty(&ref, *lsn);
    record_settled(s);
    if (old.is_large)
        large_forget(s, &old.large);
    return 0;
}

static int put(kv_session *s, struct bytes key, struct bytes payload, const struct large *fresh, uint64_t *lsn)
{
    struct tries tries = {0};
    unsigned splits = 0;

    for (;;) {
        int rc = put_once(s, key, payload, fresh, lsn);

        if (rc == 2 && ++splits > SPLITS_MAX)
            return session_fail(s, KV_DAMAGED, "a page cannot be split");
        if (rc == 2)
            rc = tree_split(s, key, NULL, 0);
        else if (rc == BP_MOVED || rc == -EAGAIN)
            rc = tries_more(s, &tries) ? 0 : -EBUSY;
        else
            return rc;
        if (rc)
            return rc;
    }
}

int kv_put(kv_session *s, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    struct bytes k = {key, key_bytes};
    struct large large;
    uint64_t lsn;
    int rc = check_key(s, key, key_bytes);

    if (rc)
        return rc;
    if (value_bytes > KV_VALUE_MAX)
        return session_fail(s, KV_TOO_LARGE, "a value of %zu bytes; %u are the most", value_bytes, KV_VALUE_MAX);
    if (key_bytes + value_bytes <= INLINE_MAX)
        rc = put(s, k, (struct bytes){value, value_bytes}, NULL, &lsn);
    else {
        rc = large_write(s, value, value_bytes, &large);
        if (rc)
            return rc;
        rc = put(s, k, (struct bytes){&large, LARGE_BYTES(large.pieces)}, &large, &lsn);
        if (rc)
            large_undo(s, &large);
    }
    return rc ? rc : session_commit(s, lsn);
}

/* One try. *small: the leaf could be joined with a neighbour. */
static int delete_once(kv_session *s, struct bytes key, uint64_t *lsn, bool *small)
{
    struct bp_ref ref;
    struct old old;
    int rc = hold_leaf(s, key, &ref, &old);

    if (rc)
        return rc;
    rc = old.exact ? 0 : KV_NOT_FOUND;
    if (!rc)
        rc = log_change(s, ref.data, (struct entry){.change = CHANGE_DELETE}, key, NULL, &old, NULL, lsn);
    if (rc) {
        bp_put(&ref);
        return rc;
    }
    page_remove(ref.data, old.slot);
    *small = tree_small(ref.data);
    ((struct page *)ref.data)->lsn = *lsn;
    bp_put_dirty(&ref, *lsn);
    record_settled(s);
    if (old.is_large)
        large_forget(s, &old.large);
    return 0;
}

int kv_delete(kv_session *s, const void *key, size_t key_bytes)
{
    struct bytes k = {key, key_bytes};
    struct tries tries = {0};
    bool small = false;
    uint64_t lsn;
    int rc = check_key(s, key, key_bytes);

    if (rc)
        return rc;
    while ((rc = delete_once(s, k, &lsn, &small)) == BP_MOVED || rc == -EAGAIN)
        if (!tries_more(s, &tries))
            return -EBUSY;
    if (rc)
        return rc;
    if (small)
        (void)tree_merge(s, k, 0); /* the key is gone either way; a page that stays small does no harm */
    return session_commit(s, lsn);
}
