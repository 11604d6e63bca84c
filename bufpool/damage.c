/* SPDX-License-Identifier: MIT */
/* Damaged pages: see damage.h; and the calls that ask about them. */
#define BP_NO_INLINE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bufpool/pool.h"

#define DAMAGE_SHARE   8u    /* a record for so many pages of the pool: two of the largest extents have as many, */
#define DAMAGE_LEAST   128u  /* or a little room, */
#define DAMAGE_MOST    4096u /* or 128 KiB */
#define DAMAGE_NS      (60000 * NS_PER_MS) /* how long a failure is remembered */
#define DAMAGE_CERTAIN 2u                  /* failures in a row of a page alone, after which it is not read again */

static uint32_t limit_for(uint64_t pages)
{
    uint64_t limit = pages / DAMAGE_SHARE;

    return limit < DAMAGE_LEAST ? DAMAGE_LEAST : limit > DAMAGE_MOST ? DAMAGE_MOST : (uint32_t)limit;
}

uint64_t bpi_damage_bytes(uint64_t pages)
{
    return limit_for(pages) * sizeof(struct damage_record);
}

int bpi_damage_open(struct damage *d, uint64_t pages)
{
    pthread_mutex_init(&d->lock, NULL);
    d->limit = limit_for(pages);
    d->record = calloc(d->limit, sizeof(*d->record));
    return d->record ? 0 : -ENOMEM;
}

void bpi_damage_close(struct damage *d)
{
    free(d->record);
    pthread_mutex_destroy(&d->lock);
}

/* ---- records. The lock is held ---- */

/* The first record that begins at or after a place. */
static uint32_t find(const struct damage *d, uint64_t place)
{
    uint32_t from = 0;
    uint32_t to = d->count;

    while (from < to) {
        uint32_t middle = from + (to - from) / 2;

        if (d->record[middle].first < place)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static uint64_t end_of(const struct damage_record *r)
{
    return r->first + r->pages;
}

static void drop(bp_pool *pool, uint32_t at)
{
    struct damage *d = &pool->damage;
    bp_file *file = atomic_load_explicit(&pool->file[d->record[at].first >> FRAME_ID_FILE_SHIFT], memory_order_relaxed);

    atomic_fetch_sub_explicit(&file->damaged, 1, memory_order_relaxed);
    d->count--;
    memmove(&d->record[at], &d->record[at + 1], (d->count - at) * sizeof(*d->record));
}

/* The first record that lies in [place, end), if it is not out of date: those go. NULL: none. */
static struct damage_record *within(bp_pool *pool, uint64_t place, uint64_t end, uint64_t now)
{
    struct damage *d = &pool->damage;
    uint32_t at = find(d, place);

    while (at < d->count && end_of(&d->record[at]) <= end) {
        if (d->record[at].until_ns > now)
            return &d->record[at];
        drop(pool, at);
    }
    return NULL;
}

static void add(bp_file *file, uint64_t place, uint32_t pages, int error, uint64_t now)
{
    struct damage *d = &file->pool->damage;
    uint32_t at;

    if (d->count == d->limit) {
        uint32_t oldest = 0;

        for (uint32_t i = 1; i < d->count; i++)
            if (d->record[i].until_ns < d->record[oldest].until_ns)
                oldest = i;
        drop(file->pool, oldest);
    }
    at = find(d, place);
    memmove(&d->record[at + 1], &d->record[at], (d->count - at) * sizeof(*d->record));
    d->record[at] =
        (struct damage_record){.first = place, .pages = pages, .times = 1, .error = error, .until_ns = now + DAMAGE_NS};
    d->count++;
    atomic_fetch_add_explicit(&file->damaged, 1, memory_order_relaxed);
}

/* Those that hold all of [place, end) say less than a record of it: ends ascend, so they are neighbours. */
static void drop_around(bp_pool *pool, uint64_t place, uint64_t end)
{
    struct damage *d = &pool->damage;
    uint32_t at = find(d, place + 1);

    while (at > 0 && end_of(&d->record[at - 1]) >= end)
        drop(pool, --at);
}

static bool is_certain(const struct damage_record *r)
{
    return r->pages == 1 && r->times >= DAMAGE_CERTAIN;
}

/* ---- what the rest of the library tells and asks ---- */

void bpi_damage_note(bp_file *file, uint64_t page, uint32_t pages, int error)
{
    struct damage *d = &file->pool->damage;
    uint64_t place = file->id | page;
    uint64_t now = bpi_now_ns();
    struct damage_record *r;

    pthread_mutex_lock(&d->lock);
    r = within(file->pool, place, place + pages, now);
    if (r && pages == 1) {
        r->times++;
        r->error = error;
        r->until_ns = now + DAMAGE_NS;
    } else if (!r) {
        drop_around(file->pool, place, place + pages);
        add(file, place, pages, error, now);
    }
    pthread_mutex_unlock(&d->lock);
}

static void forget(bp_pool *pool, uint64_t place, uint64_t last)
{
    struct damage *d = &pool->damage;
    uint32_t at = find(d, place);

    while (at > 0 && end_of(&d->record[at - 1]) > place)
        at--;
    while (at < d->count && d->record[at].first <= last)
        drop(pool, at);
}

void bpi_damage_heal(bp_file *file, uint64_t page, uint64_t pages)
{
    struct damage *d = &file->pool->damage;
    uint64_t place = file->id | page;

    pthread_mutex_lock(&d->lock);
    for (uint32_t at = find(d, place); at < d->count && end_of(&d->record[at]) <= place + pages;)
        drop(file->pool, at);
    pthread_mutex_unlock(&d->lock);
}

int bpi_damage_ask(bp_file *file, uint64_t page, unsigned *order)
{
    struct damage *d = &file->pool->damage;
    struct damage_record *r;
    int error = 0;

    pthread_mutex_lock(&d->lock);
    do { /* ends: the order only falls */
        uint64_t place = file->id | (page & ~extent_mask(*order));

        r = within(file->pool, place, place + extent_mask(*order) + 1, bpi_now_ns());
    } while (r && *order && (*order)--);
    if (r && is_certain(r))
        error = r->error;
    pthread_mutex_unlock(&d->lock);
    return error;
}

uint32_t bpi_damage_ask_run(bp_file *file, uint64_t page, uint32_t n)
{
    struct damage *d = &file->pool->damage;
    uint64_t place = file->id | page;
    struct damage_record *r;

    pthread_mutex_lock(&d->lock);
    r = within(file->pool, place, place + n, bpi_now_ns());
    if (r)
        n = (uint32_t)(r->first - place) + r->pages / 2;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void bpi_damage_forget(bp_file *file, uint64_t first, uint64_t last)
{
    struct damage *d = &file->pool->damage;

    pthread_mutex_lock(&d->lock);
    forget(file->pool, file->id | first, file->id | (last < BP_PAGE_MAX ? last : BP_PAGE_MAX - 1));
    pthread_mutex_unlock(&d->lock);
}

bool bpi_damage_next(bp_file *file, uint64_t from, uint64_t *page, int *error)
{
    struct damage *d = &file->pool->damage;
    uint64_t now = bpi_now_ns();
    bool found = false;

    if (from >= BP_PAGE_MAX)
        return false;
    pthread_mutex_lock(&d->lock);
    for (uint32_t at = find(d, file->id | from); at < d->count && !found; at++) {
        const struct damage_record *r = &d->record[at];

        if (r->first >> FRAME_ID_FILE_SHIFT != file_number(file))
            break;
        found = is_certain(r) && r->until_ns > now;
        *page = r->first & FRAME_ID_PAGE;
        *error = r->error;
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

uint64_t bpi_damage_count(bp_pool *pool)
{
    struct damage *d = &pool->damage;
    uint64_t now = bpi_now_ns();
    uint64_t count = 0;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->count; i++)
        count += is_certain(&d->record[i]) && d->record[i].until_ns > now;
    pthread_mutex_unlock(&d->lock);
    return count;
}

/* ---- what programs ask ---- */

int bp_file_damage(bp_file *file, uint64_t from, uint64_t *page, int *error)
{
    if (bpi_pool_forked(file->pool))
        return BP_FORKED;
    return bpi_damage_next(file, from, page, error);
}

int bp_reread(bp_session *s, bp_file *file, uint64_t first, uint64_t count)
{
    uint64_t last = count - 1 > UINT64_MAX - first ? UINT64_MAX : first + count - 1;
    uint64_t page = first;
    char text[sizeof(s->error)];
    int rc = 0;
    int error;

    if (bpi_forked(s))
        return BP_FORKED;
    while (count && bpi_damage_next(file, page, &page, &error) && page <= last) { /* ends: page grows */
        struct bp_ref ref;

        bpi_damage_forget(file, page, page);
        error = bp_get(s, file, page, BP_SHARED, &ref);
        if (!error)
            bp_put(&ref);
        if (error && !rc) {
            memcpy(text, s->error, sizeof(text));
            rc = error;
        }
        page++;
    }
    if (rc)
        memcpy(s->error, text, sizeof(text));
    return rc;
}
