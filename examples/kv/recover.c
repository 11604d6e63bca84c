/* SPDX-License-Identifier: MIT */
/*
 * Recovery: from the checkpoint on, every change that a page does not have yet (its LSN is below the record's) is made
 * again. A page whose entries begin with an image is not read: it may have been torn, and the image is as new as
 * anything that is needed. The log has been synced before (log_find), so what is written meanwhile is never newer than it.
 * A crash during recovery begins it anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

/* The page that the entries are for now. */
struct current {
    struct bp_ref ref;
    bool held, skip; /* skip: the page has the record's changes already */
};

static void settle(struct current *now, uint64_t lsn)
{
    if (now->held && now->skip)
        bp_put(&now->ref);
    else if (now->held) {
        ((struct page *)now->ref.data)->lsn = lsn;
        bp_put_dirty(&now->ref, lsn);
    }
    now->held = false;
}

/* Failed: what is half done is in memory only, and never written (kv_open gives everything up). */
static void drop(struct current *now)
{
    if (now->held)
        bp_put(&now->ref);
    now->held = false;
}

static int turn_to(kv_session *s, struct current *now, const struct entry *entry, uint64_t lsn)
{
    bool image = entry->change == CHANGE_IMAGE;
    int rc;

    if (now->held && !image && now->ref.page == entry->page)
        return 0;
    settle(now, lsn);
    if (!space_in_use(&s->kv->space[SPACE_TREE], entry->page))
        return session_fail(s, KV_DAMAGED, "the log before %llu changes page %llu, which is not in use",
                            (unsigned long long)lsn, (unsigned long long)entry->page);
    rc = image ? bp_create(s->pages, s->kv->file[SPACE_TREE], entry->page, 0, &now->ref)
               : bp_get(s->pages, s->kv->file[SPACE_TREE], entry->page, BP_EXCLUSIVE, &now->ref);
    if (rc)
        return session_pool_fail(s, rc, DATA_NAME, entry->page);
    now->held = true;
    now->skip = !image && ((const struct page *)now->ref.data)->lsn >= lsn;
    return 0;
}

static int repeat_entry(kv_session *s, struct current *now, const struct entry *entry, const unsigned char *key,
                        const unsigned char *data, uint64_t lsn)
{
    struct space *space = &s->kv->space[entry->flag % SPACES];
    const char *wrong = NULL;
    int rc;

    switch (entry->change) {
    case CHANGE_USE:
        wrong = space_log_use(space, entry->page, entry->extra) ? NULL : "space is used twice";
        break;
    case CHANGE_FREE:
        wrong = space_log_free(space, entry->page, entry->extra, lsn) ? NULL : "space is freed that is not in use";
        break;
    case CHANGE_DATA:
        if (entry->extra > SPACE_ORDER_MAX || entry->bytes > (uint64_t)PAGE_BYTES << entry->extra ||
            entry->page % (1ull << entry->extra) || entry->page >= SPACE_PAGES_MAX)
            wrong = "a large value lies where it cannot";
        else
            return large_fill(s, entry->page, entry->extra, data, entry->bytes, lsn);
        break;
    default:
        rc = turn_to(s, now, entry, lsn);
        if (rc)
            return rc;
        if (!now->skip)
            wrong = change_apply(now->ref.data, entry, key, data);
    }
    return wrong ? session_fail(s, KV_DAMAGED, "the log's record before %llu, page %llu: %s", (unsigned long long)lsn,
                                (unsigned long long)entry->page, wrong)
                 : 0;
}

static int repeat(kv_session *s, const struct record *record, uint64_t lsn)
{
    const unsigned char *body = (const unsigned char *)(record + 1), *key, *data;
    struct current now = {.held = false};
    struct entry entry;
    size_t at = 0;
    bool wrong;
    int rc = 0;

    while (!rc && record_next(body, record->body, &at, &entry, &key, &data, &wrong))
        rc = repeat_entry(s, &now, &entry, key, data, lsn);
    if (!rc && wrong)
        rc = session_fail(s, KV_DAMAGED, "the log's record before %llu is not one", (unsigned long long)lsn);
    if (rc)
        drop(&now);
    else
        settle(&now, lsn);
    return rc;
}

int store_recover(kv *store, kv_session *s, struct kv_error *error)
{
    struct log_reader reader = {.log = &store->log, .at = store->log.end};
    const struct record *record;
    uint64_t records = 0;
    int rc;

    while (!(rc = log_next(&reader, &record))) {
        rc = repeat(s, record, reader.at);
        if (rc)
            break;
        store->entries += (uint64_t)(int64_t)record->entries;
        records++;
    }
    if (rc == 1) {
        rc = log_cut(&store->log, reader.at, reader.stale);
        if (rc)
            kv_fail(error, rc, "clearing the log behind its end: %s", kv_strerror(rc));
    } else
        kv_fail(error, rc, "%s", reader.why[0] ? reader.why : kv_session_error(s));
    free(reader.bytes);
    atomic_store_explicit(&store->recovered, records, memory_order_relaxed);
    return rc;
}
