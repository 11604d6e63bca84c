/* SPDX-License-Identifier: MIT */
/*
 * Small pools, and the duel between their modes. The replacement is explained in policy.h; here are its lists.
 *
 * The duel counts in misses of the sample. RECENT is near to LRU, so besides "who would miss less" it is the reference
 * of a promise: never much behind LRU. Whoever is behind it leaves STABLE sooner and comes back to it later.
 */
#include <errno.h>
#include <stdlib.h>

#include "bufpool/duel.h"

#define NIL         UINT16_MAX
#define ROUNDS      64u /* pages looked at, at most, to find one of MAIN that is older than a newcomer */
#define SHADOWS     3u  /* pools' worth of them */
#define YOUNG_SHARE 100u

/* ---- lists ---- */

static void list_push(struct mini *m, uint16_t i, unsigned where)
{
    struct mini_list *l = &m->list[where];
    struct mini_page *p = &m->page[i];

    p->list = (uint8_t)where;
    p->older = l->head;
    p->newer = NIL;
    if (l->head != NIL)
        m->page[l->head].newer = i;
    else
        l->tail = i;
    l->head = i;
    l->pages += 1u << (p->heat >> 2);
}

static void list_take(struct mini *m, uint16_t i)
{
    struct mini_page *p = &m->page[i];
    struct mini_list *l = &m->list[p->list];

    if (p->newer != NIL)
        m->page[p->newer].older = p->older;
    else
        l->head = p->older;
    if (p->older != NIL)
        m->page[p->older].newer = p->newer;
    else
        l->tail = p->newer;
    l->pages -= 1u << (p->heat >> 2);
}

static void move(struct mini *m, uint16_t i, unsigned where)
{
    list_take(m, i);
    list_push(m, i, where);
}

static unsigned heat(const struct mini *m, uint16_t i)
{
    return m->page[i].heat & 3u;
}

static void renew(struct mini *m, uint16_t i, unsigned warmth)
{
    m->page[i].heat = (uint8_t)((m->page[i].heat & ~3u) | warmth);
    m->page[i].stamp = m->clock;
}

/* ---- the table ---- */

static uint16_t *bucket_of(struct mini *m, uint32_t key)
{
    return &m->bucket[(key * 0x9e3779b1u >> 8) & (m->buckets - 1)];
}

static uint16_t find(struct mini *m, uint32_t key)
{
    uint16_t i = *bucket_of(m, key);

    while (i != NIL && m->page[i].key != key)
        i = m->page[i].next;
    return i;
}

static void forget(struct mini *m, uint16_t i)
{
    uint16_t *at = bucket_of(m, m->page[i].key);

    while (*at != i)
        at = &m->page[*at].next;
    *at = m->page[i].next;
    move(m, i, MINI_FREE);
}

/* ---- opening ---- */

static uint32_t entries_of(uint32_t size)
{
    return size * (1 + SHADOWS) + 2;
}

static uint32_t buckets_of(uint32_t size)
{
    uint32_t n = 16;

    while (n < entries_of(size))
        n *= 2;
    return n;
}

static size_t mini_bytes(uint32_t size)
{
    return entries_of(size) * sizeof(struct mini_page) + buckets_of(size) * sizeof(uint16_t);
}

int bpi_mini_open(struct mini *m, uint32_t size, bool recent)
{
    uint32_t entries = entries_of(size);

    *m = (struct mini){.size = size, .buckets = buckets_of(size), .shadows = true};
    m->page = calloc(entries, sizeof(*m->page));
    m->bucket = malloc(m->buckets * sizeof(*m->bucket));
    if (!m->page || !m->bucket)
        return -ENOMEM;
    for (uint32_t i = 0; i < m->buckets; i++)
        m->bucket[i] = NIL;
    for (unsigned l = 0; l < MINI_LISTS; l++)
        m->list[l] = (struct mini_list){.head = NIL, .tail = NIL};
    for (uint32_t i = 0; i < entries; i++)
        list_push(m, (uint16_t)i, MINI_FREE);
    bpi_mini_mode(m, recent);
    return 0;
}

void bpi_mini_close(struct mini *m)
{
    free(m->page);
    free(m->bucket);
    m->page = NULL;
    m->bucket = NULL;
}

/* ---- replacement ---- */

void bpi_mini_mode(struct mini *m, bool recent)
{
    uint32_t one = m->size / YOUNG_SHARE;

    m->recent = recent;
    m->young = recent ? m->size / 4 : one ? one : 1;
    for (unsigned l = MINI_MID2; l > MINI_YOUNG && !recent; l--)
        while (m->list[l].tail != NIL)
            move(m, m->list[l].tail, MINI_MAIN);
}

/* It goes; who is in RECENT for ever needs no history. */
static void evict(struct mini *m, uint16_t i)
{
    m->used -= 1u << (m->page[i].heat >> 2);
    m->evicted = true;
    if (!m->shadows) {
        forget(m, i);
        return;
    }
    move(m, i, MINI_SHADOW);
    while (m->list[MINI_SHADOW].pages > SHADOWS * m->size)
        forget(m, m->list[MINI_SHADOW].tail);
}

static bool main_has_older(struct mini *m, uint32_t than)
{
    for (unsigned n = 0; n < ROUNDS && m->list[MINI_MAIN].tail != NIL; n++) {
        uint16_t i = m->list[MINI_MAIN].tail;

        if (m->page[i].stamp >= than)
            return false;
        if (!heat(m, i))
            return true;
        renew(m, i, heat(m, i) - 1);
        move(m, i, MINI_MAIN);
    }
    return false;
}

/* Page i has just become MAIN's: what waited longest there goes on probation. */
static void make_room(struct mini *m, uint16_t i)
{
    while (m->list[MINI_MAIN].pages > m->size - m->young) {
        uint16_t old;

        main_has_older(m, UINT32_MAX);
        old = m->list[MINI_MAIN].tail;
        if (old == i)
            break;
        m->page[old].heat &= (uint8_t)~3u;
        move(m, old, MINI_YOUNG);
    }
}

static void evict_stable(struct mini *m)
{
    while (m->list[MINI_YOUNG].pages > m->young && m->list[MINI_MAIN].pages < m->size - m->young)
        move(m, m->list[MINI_YOUNG].tail, MINI_MAIN);
    for (;;) {
        uint16_t i = m->list[MINI_YOUNG].tail;
        uint32_t stamp;

        if (i == NIL) {
            main_has_older(m, UINT32_MAX);
            i = m->list[MINI_MAIN].tail;
            break;
        }
        if (!heat(m, i))
            break;
        stamp = m->page[i].stamp;
        renew(m, i, 0);
        if (main_has_older(m, stamp)) {
            move(m, i, MINI_MAIN);
            make_room(m, i);
        } else {
            move(m, i, MINI_YOUNG);
        }
    }
    evict(m, m->list[MINI_YOUNG].tail != NIL ? m->list[MINI_YOUNG].tail : m->list[MINI_MAIN].tail);
}

/* A page at the end of a list: touched, it starts anew; else true. */
static bool spent(struct mini *m, uint16_t i)
{
    if (!heat(m, i))
        return true;
    renew(m, i, 0);
    move(m, i, MINI_YOUNG);
    return false;
}

static void evict_recent(struct mini *m)
{
    for (unsigned l = MINI_YOUNG; l < MINI_MAIN; l++)
        for (unsigned n = 0; n < ROUNDS && m->list[l].pages > m->young; n++)
            if (spent(m, m->list[l].tail))
                move(m, m->list[l].tail, l + 1);
    for (;;) {
        unsigned l = MINI_MAIN;

        while (m->list[l].tail == NIL)
            l--;
        if (spent(m, m->list[l].tail)) {
            evict(m, m->list[l].tail);
            return;
        }
    }
}

/* A page that was not there, in the entry of its shadow or a free one. */
static void enter(struct mini *m, uint16_t i, uint32_t key, unsigned order, bool hot)
{
    struct mini_page *p;
    uint16_t *at;

    if (i == NIL) {
        i = m->list[MINI_FREE].tail;
        at = bucket_of(m, key);
        m->page[i].key = key;
        m->page[i].next = *at;
        *at = i;
    }
    p = &m->page[i];
    list_take(m, i);
    p->heat = (uint8_t)(order << 2);
    p->stamp = m->clock;
    m->used += 1u << order;
    list_push(m, i, hot ? MINI_MAIN : MINI_YOUNG);
    if (hot)
        make_room(m, i);
}

bool bpi_mini_hit(struct mini *m, uint32_t key, unsigned order)
{
    uint16_t i = find(m, key);
    bool hot = false;

    if (i != NIL && m->page[i].list != MINI_SHADOW) {
        m->page[i].heat = (uint8_t)(m->page[i].heat + (heat(m, i) < 3));
        return true;
    }
    while (order && 4u << order > m->size) /* more than a small pool can show */
        order--;
    m->clock++;
    if (i != NIL)
        hot = !m->recent && main_has_older(m, m->page[i].stamp);
    while (m->used + (1u << order) > m->size) {
        if (m->recent)
            evict_recent(m);
        else
            evict_stable(m);
    }
    if (i != NIL && (m->page[i].key != key || m->page[i].list != MINI_SHADOW))
        i = NIL; /* its shadow had to go meanwhile */
    if (!m->recent && !m->evicted)
        hot |= m->list[MINI_MAIN].pages < m->size - m->young; /* filling up */
    enter(m, i, key, order, hot && !m->recent);
    return false;
}

/* ---- the duel ---- */

size_t bpi_duel_bytes(uint32_t n, bool own)
{
    return mini_bytes(n) * (own ? 3 : 2);
}

/* Misses so far count as if they had been sampled at the new rate. */
void bpi_duel_scale(struct duel *d, uint64_t pages)
{
    uint32_t before = d->limit;

    d->limit = d->n >= pages ? 1u << SAMPLE_BITS : (uint32_t)(((uint64_t)d->n << SAMPLE_BITS) / pages);
    if (before)
        d->misses = (uint64_t)((double)d->misses * d->limit / before);
}

int bpi_duel_open(struct duel *d, uint64_t pages, uint32_t n, bool own)
{
    int rc;

    *d = (struct duel){0};
    if (n > pages)
        n = (uint32_t)pages;
    d->n = n < 2 ? 2 : n > MINI_MAX ? MINI_MAX : n;
    bpi_duel_scale(d, pages);
    rc = bpi_mini_open(&d->stable, d->n, false);
    if (!rc)
        rc = bpi_mini_open(&d->recent, d->n, true);
    if (!rc && own)
        rc = bpi_mini_open(&d->own, d->n, false);
    d->recent.shadows = false;
    return rc;
}

void bpi_duel_close(struct duel *d)
{
    bpi_mini_close(&d->stable);
    bpi_mini_close(&d->recent);
    bpi_mini_close(&d->own);
}

static int32_t clamp(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Counts are settled: does the mode change? up, down: leads it takes. */
static void decide(struct duel *d, int32_t lead, int32_t up, int32_t down)
{
    if (d->mode ? d->score > -down : d->score < up && d->loss < lead)
        return;
    d->mode = !d->mode;
    d->loss = 0;
    d->score = clamp(d->score, -lead, lead);
    if (d->own.page)
        bpi_mini_mode(&d->own, d->mode);
}

void bpi_duel_feed(struct duel *d, struct access a)
{
    int32_t lead = 4 + (int32_t)d->n / 32;
    int32_t bound = (int32_t)d->n + 16;
    int32_t up = lead;
    int32_t down = lead;
    bool missed = a.sample & ACCESS_MISSED;
    unsigned order = a.sample >> SAMPLE_BITS & 31;
    bool stable, recent;

    if ((a.sample & ((1u << SAMPLE_BITS) - 1)) >= d->limit)
        return;
    stable = bpi_mini_hit(&d->stable, a.key, order);
    recent = bpi_mini_hit(&d->recent, a.key, order);
    if (d->own.page)
        missed = !bpi_mini_hit(&d->own, a.key, order);
    d->misses += missed;
    d->account = clamp(d->account + missed - !recent, -bound, bound);
    if (d->account > 0) {
        up /= 2;
        down += 2 * d->account;
    }
    d->score = clamp(d->score + recent - stable, -down, up);
    d->loss = clamp(d->loss + missed - !recent, -lead, INT32_MAX / 2);
    decide(d, lead, up, down);
}

uint32_t bpi_duel_hits(const struct duel *d, uint64_t requests)
{
    double misses = (double)d->misses * (1u << SAMPLE_BITS) / d->limit;

    if (!requests || misses >= (double)requests)
        return 0;
    return (uint32_t)(1e6 * (1 - misses / (double)requests) + .5);
}
