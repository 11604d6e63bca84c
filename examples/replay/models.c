/* SPDX-License-Identifier: MIT */
/* Pages are known by their numbers in the trace, so both models are arrays. */
#include "replay/models.h"

#include <stdlib.h>

/* ---- LRU: a ring of those that are in, most recent first; its anchor is one more page ---- */

struct place {
    uint32_t before, after;
};

static void unlink_page(struct place *ring, uint32_t id)
{
    ring[ring[id].before].after = ring[id].after;
    ring[ring[id].after].before = ring[id].before;
}

static void link_first(struct place *ring, uint32_t anchor, uint32_t id)
{
    ring[id] = (struct place){.before = anchor, .after = ring[anchor].after};
    ring[ring[id].after].before = id;
    ring[anchor].after = id;
}

uint32_t models_lru(const struct trace *t, uint32_t pages)
{
    const uint32_t anchor = t->distinct;
    struct place *ring = malloc((anchor + 1ull) * sizeof(*ring));
    bool *in = calloc(anchor + 1ull, sizeof(*in));
    uint32_t misses = UINT32_MAX;
    uint32_t used = 0;

    if (!ring || !in)
        goto out;
    ring[anchor] = (struct place){anchor, anchor};
    misses = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t id = t->id[i];

        if (in[id]) {
            unlink_page(ring, id);
        } else {
            misses++;
            if (used++ >= pages) {
                uint32_t last = ring[anchor].before;

                unlink_page(ring, last);
                in[last] = false;
                used--;
            }
            in[id] = true;
        }
        link_first(ring, anchor, id);
    }
out:
    free(ring);
    free(in);
    return misses;
}

/* ---- MIN: a heap of next uses, latest first. Uses that are over stay in it until they come up ---- */

#define NEVER UINT32_MAX

struct use {
    uint32_t when, id;
};

struct min {
    struct use *heap;
    uint32_t heap_count;
    uint32_t *next; /* by page that is in: its next use; what the heap says of it must agree */
    bool *in;
    uint32_t *again; /* by access: when its page is used next */
};

static void heap_push(struct min *m, struct use use)
{
    uint32_t at = m->heap_count++;

    for (; at && m->heap[(at - 1) / 2].when < use.when; at = (at - 1) / 2)
        m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = use;
}

static struct use heap_pop(struct min *m)
{
    struct use top = m->heap[0];
    struct use last = m->heap[--m->heap_count];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < m->heap_count && m->heap[child + 1].when > m->heap[child].when)
            child++;
        if (child >= m->heap_count || m->heap[child].when <= last.when)
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return top;
}

static bool min_open(struct min *m, const struct trace *t)
{
    m->heap = malloc((t->count + 1ull) * sizeof(*m->heap));
    m->again = malloc((t->count + 1ull) * sizeof(*m->again));
    m->next = malloc((t->distinct + 1ull) * sizeof(*m->next));
    m->in = calloc(t->distinct + 1ull, sizeof(*m->in));
    if (!m->heap || !m->again || !m->next || !m->in)
        return false;
    for (uint32_t id = 0; id < t->distinct; id++)
        m->next[id] = NEVER;
    for (uint32_t i = t->count; i-- > 0;) {
        m->again[i] = m->next[t->id[i]];
        m->next[t->id[i]] = i;
    }
    return true;
}

/* The page that is needed last goes. There is one. */
static void min_evict(struct min *m)
{
    struct use use;

    do
        use = heap_pop(m);
    while (!m->in[use.id] || m->next[use.id] != use.when);
    m->in[use.id] = false;
}

uint32_t models_min(const struct trace *t, uint32_t pages)
{
    struct min m = {0};
    uint32_t misses = UINT32_MAX;
    uint32_t used = 0;

    if (!min_open(&m, t))
        goto out;
    misses = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t id = t->id[i];

        if (!m.in[id]) {
            misses++;
            if (used == pages)
                min_evict(&m);
            else
                used++;
            m.in[id] = true;
        }
        m.next[id] = m.again[i];
        heap_push(&m, (struct use){.when = m.again[i], .id = id});
    }
out:
    free(m.heap);
    free(m.again);
    free(m.next);
    free(m.in);
    return misses;
}
