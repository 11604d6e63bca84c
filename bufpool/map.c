/* SPDX-License-Identifier: MIT */
/*
 * Ranges that are not copied: the memory of a stretch of a file, pinned extent by extent, in the form in which writev
 * and sendmsg take it. A map holds nothing but pins, so any number of them may lie over the same pages.
 */
#define BP_NO_INLINE /* whoever waits for these pins is told when they go (R12) */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

#define MAP_SHARE 16u /* part of the pool that one map asks for ahead of what it has */

struct mapping {
    struct bp_map *map;
    struct iovec *iov;
    unsigned most;
    uint64_t at, end; /* bytes of the file still to be mapped */
};

/* One more extent, which is pinned; false: there is no room for it, and nothing has changed. */
static bool add_extent(struct mapping *m, const bp_session *s, const struct pinned *pin)
{
    struct bp_map *map = m->map;
    struct iovec *last = map->count ? &m->iov[map->count - 1] : NULL;
    size_t skip = m->at % BP_PAGE_SIZE;
    size_t bytes = ((size_t)pin->pages << BP_PAGE_SHIFT) - skip;
    char *data = (char *)frame_data(s, pin->frame) + skip;

    if (bytes > m->end - m->at)
        bytes = (size_t)(m->end - m->at);
    if (last && (char *)last->iov_base + last->iov_len == data)
        last->iov_len += bytes;
    else if (map->count < m->most)
        m->iov[map->count++] = (struct iovec){.iov_base = data, .iov_len = bytes};
    else
        return false;
    map->head[map->extents++] = pin->head;
    map->bytes += bytes;
    m->at += bytes;
    return true;
}

static void put_extent(bp_session *s, uint32_t head)
{
    struct bp_ref ref = {.session = s, .mode = BP_SHARED};

    ref_set_head(s, &ref, head);
    bp_put(&ref);
}

/* What is there. false: the map is full. */
static bool add_present(struct mapping *m, bp_session *s, const bp_file *file)
{
    struct pinned pin[BP_MAP_EXTENTS];
    unsigned most = BP_MAP_EXTENTS - m->map->extents;
    unsigned n =
        most ? bpi_span_pin(s, file, m->at >> BP_PAGE_SHIFT, (m->end - 1) >> BP_PAGE_SHIFT, most, true, pin) : 0;
    unsigned i = 0;

    while (i < n && add_extent(m, s, &pin[i]))
        i++;
    for (unsigned k = i; k < n; k++)
        put_extent(s, pin[k].head);
    return i == n && n < most;
}

/* A page that is not, and is waited for. 1: there is no room for it. */
static int add_missing(struct mapping *m, bp_session *s, bp_file *file)
{
    struct bp_ref ref;
    struct pinned pin;
    int rc = bp_get(s, file, m->at >> BP_PAGE_SHIFT, BP_SHARED, &ref);

    if (rc)
        return rc;
    pin.head = ref_head(s, &ref);
    pin.frame = (uint32_t)(((char *)ref.data - s->base) >> BP_PAGE_SHIFT);
    pin.pages = ref.bytes >> BP_PAGE_SHIFT;
    if (add_extent(m, s, &pin))
        return 0;
    bp_put(&ref);
    return 1;
}

/* Reads of what is missing; the first byte of which none is under way. */
static uint64_t start_reads(const struct mapping *m, bp_session *s, bp_file *file)
{
    uint64_t first = m->at >> BP_PAGE_SHIFT;
    uint64_t last = (m->end - 1) >> BP_PAGE_SHIFT;
    uint64_t most = frames_limit(s->pool) / MAP_SHARE;

    if (last - first >= most)
        last = first + most - 1;
    return (first + bpi_range_read(s, file, first, last)) << BP_PAGE_SHIFT;
}

/* An error counts only for the first page. */
static int map_all(struct mapping *m, bp_session *s, bp_file *file, bool wait)
{
    uint64_t reach;
    int rc = 0;

    if (!add_present(m, s, file) || m->at >= m->end)
        return 0;
    reach = start_reads(m, s, file);
    if (!wait)
        return m->map->extents ? 0 : -EAGAIN;
    do {
        if (m->map->extents && m->at >= reach)
            break;
        rc = add_missing(m, s, file);
    } while (!rc && add_present(m, s, file) && m->at < m->end);
    return m->map->extents || rc > 0 ? 0 : rc;
}

int bp_map_range(bp_session *s, bp_file *file, uint64_t offset, size_t len, unsigned flags, struct iovec iov[],
                 unsigned n, struct bp_map *map)
{
    struct mapping m = {.map = map, .iov = iov, .most = n, .at = offset};
    int rc;

    map->session = s;
    map->bytes = 0;
    map->count = map->extents = 0;
    if (bpi_forked(s))
        return BP_FORKED;
    if (flags & ~BP_MAP_NOWAIT || !n)
        return bpi_session_fail(s, -EINVAL, "bp_map_range: flags %#x, %u iovecs", flags, n);
    rc = bpi_range_end(s, file, offset, len, &m.end);
    if (rc || offset >= m.end)
        return rc;
    rc = map_all(&m, s, file, !(flags & BP_MAP_NOWAIT));
    ahead_check(s);
    return rc == BP_EOF ? 0 : rc; /* truncated meanwhile: that is the end of the file */
}

void bp_unmap(struct bp_map *map)
{
    if (!bpi_forked(map->session))
        for (unsigned i = 0; i < map->extents; i++)
            put_extent(map->session, map->head[i]);
    map->bytes = 0;
    map->count = map->extents = 0;
}
