/* SPDX-License-Identifier: MIT */
/*
 * Large values: in extents of their own in the file `values`, as few as fit them well. They go through the log like
 * everything else, an extent a record, and then into the pool; the leaf's entry, which says where they lie and what their
 * checksum is, comes last. So a value whose entry is in the log is there as a whole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"

#define PIECES_SMALL 3u          /* extents that are not of the largest order, at the most */
#define RECORD_KEPT  (64u << 10) /* a session's room for records is not kept beyond this */
#define VALUE_ROOM   2048u

unsigned char *session_value_room(kv_session *s, size_t bytes)
{
    size_t room = s->value_room ? s->value_room : VALUE_ROOM;
    unsigned char *more;

    if (bytes <= s->value_room)
        return s->value;
    while (room < bytes)
        room *= 2;
    more = realloc(s->value, room);
    if (!more)
        return NULL;
    s->value = more;
    s->value_room = room;
    return more;
}

bool large_parse(const void *payload, size_t bytes, struct large *large)
{
    if (bytes < LARGE_BYTES(1) || bytes > sizeof(*large) || bytes % 8)
        return false;
    memset(large, 0, sizeof(*large));
    memcpy(large, payload, bytes);
    return large->pieces >= 1 && large->pieces <= PIECES_MAX && bytes == LARGE_BYTES(large->pieces) &&
           large->bytes <= KV_VALUE_MAX;
}

/* Of so many pages that are left, and so many extents that may still be taken: the order of the next one. */
static unsigned next_order(size_t pages, unsigned small_left)
{
    unsigned order = 0;

    while (order < SPACE_ORDER_MAX && (2u << order) <= pages)
        order++;
    if (order < SPACE_ORDER_MAX && small_left == 1 && (1u << order) < pages)
        order++; /* the last one has to hold the rest */
    return order;
}

int large_fill(kv_session *s, uint64_t page, unsigned order, const void *bytes, size_t count, uint64_t lsn)
{
    unsigned step = order < s->kv->order_max ? order : s->kv->order_max;
    size_t step_bytes = (size_t)PAGE_BYTES << step;

    for (size_t at = 0; at < count; at += step_bytes) {
        struct bp_ref ref;
        int rc = bp_create(s->pages, s->kv->file[SPACE_VALUES], page + at / PAGE_BYTES, step, &ref);

        if (rc)
            return session_pool_fail(s, rc, VALUES_NAME, page + at / PAGE_BYTES);
        memcpy(ref.data, (const char *)bytes + at, count - at < step_bytes ? count - at : step_bytes);
        bp_put_dirty(&ref, lsn);
    }
    return 0;
}

/* An extent: logged, then filled. */
static int write_piece(kv_session *s, uint64_t page, unsigned order, const void *bytes, size_t count)
{
    struct entry entry = {.change = CHANGE_DATA, .bytes = (uint32_t)count, .extra = order, .page = page};
    uint64_t lsn;
    int rc;

    do {
        record_begin(s);
        rc = record_add(s, entry, NULL, bytes);
        if (!rc)
            rc = record_append(s, log_floor(&s->kv->log), &lsn);
    } while (rc == -EAGAIN); /* once for each checkpoint that begins */
    if (rc)
        return rc;
    rc = large_fill(s, page, order, bytes, count, lsn);
    record_settled(s);
    return rc;
}

int large_write(kv_session *s, const void *value, size_t bytes, struct large *large)
{
    unsigned small = PIECES_SMALL;
    size_t done = 0;
    int rc = 0;

    memset(large, 0, sizeof(*large));
    large->bytes = (uint32_t)bytes;
    large->crc = bp_crc32c(0, value, bytes);
    while (done < bytes && !rc) {
        unsigned order = next_order((bytes - done + PAGE_BYTES - 1) / PAGE_BYTES, small);
        size_t room = (size_t)PAGE_BYTES << order, count = bytes - done < room ? bytes - done : room;
        uint64_t page;

        small -= order < SPACE_ORDER_MAX;
        rc = space_take(&s->kv->space[SPACE_VALUES], order, &page);
        if (rc) {
            session_fail(s, rc, "no space for a value of %zu bytes: %s", bytes, kv_strerror(rc));
            break;
        }
        large->piece[large->pieces++] = page << 4 | order;
        rc = write_piece(s, page, order, (const char *)value + done, count);
        done += count;
    }
    if (s->record.room > RECORD_KEPT) {
        free(s->record.bytes);
        s->record.bytes = NULL;
        s->record.room = 0;
    }
    if (rc)
        large_undo(s, large);
    return rc;
}

void large_forget(kv_session *s, const struct large *large)
{
    for (unsigned i = 0; i < large->pieces; i++) {
        /* what cannot be forgotten is written in vain */
        int rc = bp_discard(s->pages, s->kv->file[SPACE_VALUES], piece_page(large->piece[i]),
                            1ull << piece_order(large->piece[i]));

        (void)rc;
    }
}

void large_undo(kv_session *s, const struct large *large)
{
    large_forget(s, large);
    for (unsigned i = 0; i < large->pieces; i++)
        space_give(&s->kv->space[SPACE_VALUES], piece_page(large->piece[i]), piece_order(large->piece[i]));
}

int large_read(kv_session *s, const struct large *large)
{
    unsigned char *to = session_value_room(s, large->bytes);
    size_t at = 0;

    if (!to)
        return session_fail(s, -ENOMEM, "no memory for a value of %u bytes", large->bytes);
    for (unsigned i = 0; i < large->pieces; i++) {
        size_t room = (size_t)PAGE_BYTES << piece_order(large->piece[i]), done = 0;
        size_t count = large->bytes - at < room ? large->bytes - at : room;
        int rc = bp_copy_out(s->pages, s->kv->file[SPACE_VALUES], piece_page(large->piece[i]) * PAGE_BYTES, count,
                             to + at, &done);

        if (rc)
            return session_pool_fail(s, rc, VALUES_NAME, piece_page(large->piece[i]));
        if (done != count)
            return session_fail(s, KV_DAMAGED, "%s ends before page %llu", VALUES_NAME,
                                (unsigned long long)piece_page(large->piece[i]));
        at += count;
    }
    if (at != large->bytes || bp_crc32c(0, to, large->bytes) != large->crc)
        return session_fail(s, KV_DAMAGED, "the value at page %llu of %s has another checksum",
                            (unsigned long long)piece_page(large->piece[0]), VALUES_NAME);
    return 0;
}
