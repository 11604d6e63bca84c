/* SPDX-License-Identifier: MIT */
/*
 * What the log's records hold: entries, one after the other, each a struct entry, a key, and bytes. Numbers are as the
 * machine has them; the magic of the checkpoint file would read differently on one of the other kind.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

/* ---- making ---- */

void record_begin(kv_session *s)
{
    s->record.count = sizeof(struct record);
    s->record.entries = 0;
}

static bool record_room(struct log_record *record, size_t bytes)
{
    size_t room = record->room ? record->room : 8192;
    unsigned char *more;

    if (record->room - record->count >= bytes && record->room)
        return true;
    while (room - record->count < bytes)
        room *= 2;
    more = realloc(record->bytes, room);
    if (!more)
        return false;
    record->bytes = more;
    record->room = room;
    return true;
}

int record_add(kv_session *s, struct entry entry, const void *key, const void *bytes)
{
    struct log_record *record = &s->record;
    size_t all = sizeof(entry) + entry.key_bytes + entry.bytes;

    if (record->count + all > LOG_RECORD_MAX)
        return session_fail(s, KV_TOO_LARGE, "more than %u bytes of log at once", LOG_RECORD_MAX);
    if (!record_room(record, all))
        return session_fail(s, -ENOMEM, "no memory for a record of the log");
    memcpy(record->bytes + record->count, &entry, sizeof(entry));
    record->count += sizeof(entry);
    if (entry.key_bytes)
        memcpy(record->bytes + record->count, key, entry.key_bytes);
    record->count += entry.key_bytes;
    if (entry.bytes)
        memcpy(record->bytes + record->count, bytes, entry.bytes);
    record->count += entry.bytes;
    return 0;
}

int record_image(kv_session *s, const struct page *page)
{
    unsigned char image[PAGE_BYTES];
    struct entry entry = {.change = CHANGE_IMAGE, .page = page->number};

    entry.bytes = (uint32_t)page_pack(page, image, &entry.extra);
    return record_add(s, entry, NULL, image);
}

int record_before(kv_session *s, const struct page *page, uint64_t floor)
{
    return page->lsn > floor ? 0 : record_image(s, page);
}

int record_space(kv_session *s, enum change change, unsigned space, uint64_t page, unsigned order)
{
    struct entry entry = {.change = (uint8_t)change, .flag = (uint8_t)space, .extra = order, .page = page};

    return record_add(s, entry, NULL, NULL);
}

int record_large_free(kv_session *s, const struct large *large)
{
    int rc = 0;

    for (unsigned i = 0; i < large->pieces && !rc; i++)
        rc = record_space(s, CHANGE_FREE, SPACE_VALUES, piece_page(large->piece[i]), piece_order(large->piece[i]));
    return rc;
}

/* ---- reading ---- */

bool record_next(const unsigned char *body, size_t bytes, size_t *at, struct entry *entry, const unsigned char **key,
                 const unsigned char **data, bool *wrong)
{
    *wrong = false;
    if (*at == bytes)
        return false;
    *wrong = true;
    if (bytes - *at < sizeof(*entry))
        return false;
    memcpy(entry, body + *at, sizeof(*entry));
    *at += sizeof(*entry);
    if (bytes - *at < (size_t)entry->key_bytes + entry->bytes || entry->key_bytes > KV_KEY_MAX)
        return false;
    *key = body + *at;
    *data = *key + entry->key_bytes;
    *at += (size_t)entry->key_bytes + entry->bytes;
    *wrong = false;
    return true;
}

const char *change_apply(struct page *page, const struct entry *entry, const unsigned char *key,
                         const unsigned char *data)
{
    struct bytes k = {key, entry->key_bytes}, v = {data, entry->bytes};
    bool exact;
    unsigned slot;

    if (entry->change == CHANGE_IMAGE) {
        if (!page_unpack(page, data, entry->bytes, entry->extra) || page_wrong(page, entry->page))
            return "the image of a page is none";
        return NULL;
    }
    if (k.count < page->prefix)
        return "a key does not belong into the page";
    slot = page_seek(page, k, &exact);
    switch (entry->change) {
    case CHANGE_PUT:
    case CHANGE_LINK:
        if ((entry->change == CHANGE_LINK) != (page->level > 0) ||
            !page_fits(page, k.count, v.count, exact ? (int)slot : -1))
            return "an entry does not fit into its page";
        page_put(page, k, v, entry->flag);
        return NULL;
    case CHANGE_DELETE:
    case CHANGE_UNLINK:
        if (!exact)
            return "what is taken out is not there";
        page_remove(page, slot);
        return NULL;
    case CHANGE_CUT:
        if (entry->extra > page->count || !page_split_fits(page, entry->extra, k))
            return "a page is cut where it cannot be";
        page_cut(page, entry->extra, k);
        return NULL;
    default:
        return "a change of a kind that there is not";
    }
}

/* ---- appending ---- */

/* Under the log's lock: the space and the number of keys are those of exactly this position. */
static void account(void *ctx, uint64_t lsn)
{
    kv_session *s = ctx;
    const unsigned char *key, *data;
    struct entry entry;
    size_t at = 0;
    bool wrong;

    /* relaxed: the checkpoint that must see it takes the log's lock after us */
    atomic_store_explicit(&s->pending, lsn, memory_order_relaxed);
    s->kv->entries += (uint64_t)(int64_t)s->record.entries;
    while (record_next(s->record.bytes + sizeof(struct record), s->record.count - sizeof(struct record), &at, &entry,
                       &key, &data, &wrong)) {
        bool right = true;

        if (entry.change == CHANGE_USE)
            right = space_log_use(&s->kv->space[entry.flag], entry.page, entry.extra);
        else if (entry.change == CHANGE_FREE)
            right = space_log_free(&s->kv->space[entry.flag], entry.page, entry.extra, lsn);
        assert(right);
        (void)right;
    }
}

int record_append(kv_session *s, uint64_t floor, uint64_t *lsn)
{
    int rc = log_append(&s->kv->log, &s->record, floor, account, s, lsn);

    if (!rc)
        s->wrote = *lsn;
    else if (rc != -EAGAIN)
        session_fail(s, rc, "the log: %s", kv_strerror(rc));
    return rc;
}

int session_commit(kv_session *s, uint64_t lsn)
{
    int rc = 0;

    if (s->defer || s->kv->options.sync == KV_SYNC_NONE)
        return 0;
    rc = log_commit(&s->kv->log, lsn, s->kv->options.sync == KV_SYNC_GROUP);
    return rc ? session_fail(s, rc, "%s", kv_strerror(rc)) : 0;
}
