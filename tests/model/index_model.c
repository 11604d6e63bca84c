/* SPDX-License-Identifier: MIT */
/* The model of the index, by itself: index_model.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/index_model.h"

/* ---- items ---- */

size_t model_find(const struct model *m, uint64_t page)
{
    size_t low = 0;
    size_t high = m->count;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (item_last(&m->item[mid]) < page)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct item *model_at(const struct model *m, uint64_t page)
{
    size_t i = model_find(m, page);

    return i < m->count && m->item[i].page <= page ? &m->item[i] : NULL;
}

index_entry model_load(const struct model *m, uint64_t page)
{
    const struct item *i = model_at(m, page);

    if (!i)
        return ENTRY_NONE;
    return i->live ? entry_of_frame(i->value + (uint32_t)(page - i->page)) : i->value;
}

static void remove_items(struct model *m, size_t at, size_t n)
{
    memmove(&m->item[at], &m->item[at + n], (m->count - at - n) * sizeof(m->item[0]));
    m->count -= n;
}

static void add_item(struct model *m, struct item item)
{
    size_t at = model_find(m, item.page);

    memmove(&m->item[at + 1], &m->item[at], (m->count - at) * sizeof(m->item[0]));
    m->item[at] = item;
    m->count++;
}

static unsigned level_of(const struct item *i)
{
    return i->order / INDEX_SHIFT;
}

/* ---- nodes ---- */

static uint64_t prefix_of(uint64_t page, unsigned level)
{
    unsigned shift = (level + 1) * INDEX_SHIFT;

    return shift < 64 ? page >> shift : 0;
}

/* Items of the node of a level over a page, whatever their own level: from *from to before the answer. */
static size_t items_under(const struct model *m, uint64_t page, unsigned level, size_t *from)
{
    unsigned shift = (level + 1) * INDEX_SHIFT;
    uint64_t prefix = prefix_of(page, level);
    size_t to;

    *from = model_find(m, shift < 64 ? prefix << shift : 0);
    while (*from < m->count && prefix_of(m->item[*from].page, level) < prefix)
        ++*from;
    for (to = *from; to < m->count && prefix_of(m->item[to].page, level) == prefix; to++)
        ;
    return to;
}

bool model_has_node(const struct model *m, uint64_t page, unsigned level)
{
    size_t from;
    size_t to = items_under(m, page, level, &from);

    if (level >= m->height)
        return false;
    for (; from < to; from++)
        if (level_of(&m->item[from]) <= level)
            return true;
    return false;
}

static unsigned height_for(const struct item *i)
{
    unsigned height = level_of(i) + 1u;

    while (height * INDEX_SHIFT < 64 && item_last(i) >> (height * INDEX_SHIFT))
        height++;
    return height;
}

/* Height, nodes, and the nodes of only shadows (by level and prefix) that the items need. */
static size_t derive(struct model *m, struct place *only)
{
    size_t found = 0;

    m->height = 0;
    m->nodes = 0;
    m->live = 0;
    for (size_t i = 0; i < m->count; i++) {
        m->live += m->item[i].live;
        if (height_for(&m->item[i]) > m->height)
            m->height = height_for(&m->item[i]);
    }
    if (m->count == 1 && m->item[0].page == 0 && m->item[0].order == 0)
        m->height = 0;
    for (unsigned level = 0; level < m->height; level++) {
        bool open = false;
        bool pure = false;
        uint64_t prefix = 0;

        for (size_t i = 0; i < m->count; i++) {
            const struct item *it = &m->item[i];

            if (level_of(it) > level)
                continue;
            if (!open || prefix_of(it->page, level) != prefix) {
                if (open && pure)
                    only[found++] = (struct place){level, prefix};
                open = pure = true;
                prefix = prefix_of(it->page, level);
                m->nodes++;
            }
            pure &= !it->live && level_of(it) == level;
        }
        if (open && pure)
            only[found++] = (struct place){level, prefix};
    }
    return found;
}

static int place_compare(const void *a, const void *b)
{
    const struct place *p = a;
    const struct place *q = b;

    if (p->level != q->level)
        return p->level < q->level ? -1 : 1;
    return p->prefix < q->prefix ? -1 : p->prefix > q->prefix;
}

static uint64_t place_page(const struct place *p)
{
    unsigned shift = (p->level + 1) * INDEX_SHIFT;

    return shift < 64 ? p->prefix << shift : 0;
}

/*
 * Work out the state again after a change; what became only shadows is the newest of its kind. One operation makes no
 * more than one node so, but for a discard: it can do it to one at either end of its range, and goes from left to
 * right.
 */
static void update(struct model *m, unsigned most)
{
    static struct place now[2 * ITEMS_MAX];
    static bool known[2 * ITEMS_MAX];
    size_t count = derive(m, now);
    size_t kept = 0;
    size_t before;

    memset(known, 0, count);
    for (size_t i = 0; i < m->only_count; i++) {
        const struct place *p = bsearch(&m->only[i], now, count, sizeof(now[0]), place_compare);

        if (!p)
            continue;
        known[p - now] = true;
        m->only[kept++] = m->only[i];
    }
    before = kept;
    for (size_t i = 0; i < count; i++)
        if (!known[i])
            m->only[kept++] = now[i];
    m->only_count = kept;
    if (kept - before > most)
        fail("the model cannot tell which of %zu nodes is older", kept - before);
    if (kept - before == 2 && place_page(&m->only[before]) > place_page(&m->only[before + 1])) {
        struct place swap = m->only[before];

        m->only[before] = m->only[before + 1];
        m->only[before + 1] = swap;
    }
}

/* A shadow was left at a page. Nodes that are one and the same shadow all over become one entry above, but the top. */
static void merge(struct model *m, uint64_t page)
{
    for (;;) {
        const struct item *mine = model_at(m, page);
        unsigned level = level_of(mine);
        size_t from;
        size_t to = items_under(m, page, level, &from);
        struct item all = {.page = page & ~mask_of((level + 1) * INDEX_SHIFT),
                           .order = (uint8_t)((level + 1) * INDEX_SHIFT),
                           .value = mine->value,
                           .clock = mine->clock};
        uint64_t next = all.page;

        if (level + 1 >= m->height)
            return;
        for (size_t i = from; i < to; i++) {
            const struct item *it = &m->item[i];

            if (it->live || it->value != all.value || level_of(it) != level || it->page != next)
                return;
            next = item_last(it) + 1;
        }
        if (next != item_last(&all) + 1)
            return;
        remove_items(m, from, to - from);
        add_item(m, all);
    }
}

/* Cut an item into halves until the block of an order at a page is one of its own. */
static void cut(struct model *m, size_t at, uint64_t page, unsigned order)
{
    struct item piece = m->item[at];

    remove_items(m, at, 1);
    while (piece.order > order) {
        struct item other = piece;

        piece.order--;
        other.order--;
        other.page += 1ull << other.order;
        if (other.live)
            other.value += 1u << other.order;
        if (page >= other.page) {
            struct item swap = piece;

            piece = other;
            other = swap;
        }
        add_item(m, other);
    }
    add_item(m, piece);
}

/* ---- entries come and go ---- */

int model_insert(struct model *m, uint64_t page, unsigned order, uint32_t frame, struct index_insert *want)
{
    uint64_t last = page + mask_of(order);
    size_t from = model_find(m, page);
    size_t to = from;
    uint64_t newest = 0;

    *want = (struct index_insert){.shadow = ENTRY_NONE, .frame = UINT32_MAX};
    for (; to < m->count && m->item[to].page <= last; to++) {
        const struct item *i = &m->item[to];

        if (i->live) {
            want->page = i->page > page ? i->page : page;
            want->frame = i->value + (uint32_t)(want->page - i->page);
            want->shadow = ENTRY_NONE;
            want->shadows = 0;
            return -EEXIST;
        }
        want->shadows++;
        if (i->clock >= newest) {
            newest = i->clock;
            want->shadow = i->value;
        }
    }
    if (to - from == 1 && m->item[from].order > order) { /* a larger shadow: its other pages keep it, in halves */
        cut(m, from, page, order);
        from = model_find(m, page);
        to = from + 1;
    }
    remove_items(m, from, to - from);
    add_item(m, (struct item){.page = page, .order = (uint8_t)order, .live = true, .value = frame});
    update(m, 1);
    return 0;
}

/* Exactly this extent, or NULL. */
static struct item *exact(struct model *m, uint64_t page, unsigned order, uint32_t frame)
{
    size_t at = model_find(m, page);
    struct item *i = &m->item[at];

    return at < m->count && i->page == page && i->order == order && i->live && i->value == frame ? i : NULL;
}

bool model_erase(struct model *m, uint64_t page, unsigned order, uint32_t frame, index_entry shadow, uint64_t clock)
{
    struct item *i = exact(m, page, order, frame);

    if (!i)
        return false;
    if (shadow == ENTRY_NONE) {
        remove_items(m, (size_t)(i - m->item), 1);
    } else {
        *i = (struct item){.page = page, .order = (uint8_t)order, .value = shadow, .clock = clock};
        if (m->height) /* a lone page 0 has no node */
            merge(m, page);
    }
    update(m, 1);
    return true;
}

bool model_replace(struct model *m, uint64_t page, unsigned order, uint32_t frame, uint32_t to)
{
    struct item *i = exact(m, page, order, frame);

    if (i)
        i->value = to;
    return i != NULL;
}

int model_split(struct model *m, uint64_t page, unsigned order)
{
    uint64_t last = page + mask_of(order);
    size_t at = model_find(m, page);

    if (at == m->count || m->item[at].page > last)
        return -ENOENT;
    if (m->item[at].page > page || item_last(&m->item[at]) < last)
        return -ERANGE;
    cut(m, at, page, order);
    update(m, 1);
    return 0;
}

unsigned model_reclaim(struct model *m, unsigned n)
{
    unsigned done = 0;

    for (; done < n && m->only_count; done++) {
        size_t from;
        size_t to = items_under(m, place_page(&m->only[0]), m->only[0].level, &from);

        remove_items(m, from, to - from);
        update(m, 1);
    }
    return done;
}

const struct item *model_discard(struct model *m, uint64_t first, uint64_t last)
{
    size_t at = model_find(m, first);

    while (first <= last && at < m->count && m->item[at].page <= last && !m->item[at].live) {
        if (m->item[at].page >= first && item_last(&m->item[at]) <= last)
            remove_items(m, at, 1);
        else
            at++;
    }
    update(m, 2);
    return first <= last && at < m->count && m->item[at].page <= last ? &m->item[at] : NULL;
}

void model_clear(struct model *m)
{
    m->count = 0;
    update(m, 0);
}

/* ---- marks ---- */

bool model_mark(struct model *m, uint64_t page, enum index_mark mark, bool set, bool *had)
{
    struct item *i = (struct item *)model_at(m, page);

    *had = i && (i->marks >> mark & 1);
    if (!i || !i->live)
        return false;
    i->marks = (uint8_t)((i->marks & ~(1u << mark)) | (unsigned)set << mark);
    return true;
}

unsigned model_mark_those(struct model *m, uint64_t first, uint64_t last, enum index_mark if_marked, enum index_mark to,
                          unsigned most, uint64_t *next)
{
    unsigned done = 0;

    *next = last < PAGE_LAST ? last + 1 : PAGE_LAST;
    for (size_t i = model_find(m, first); first <= last && i < m->count && m->item[i].page <= last; i++) {
        struct item *it = &m->item[i];

        if (!(it->marks >> if_marked & 1))
            continue;
        it->marks |= (uint8_t)(1u << to);
        if (++done == most) {
            if (item_last(it) < last)
                *next = item_last(it) + 1;
            break;
        }
    }
    return done;
}

/* ---- looking around ---- */

const struct item *model_next(const struct model *m, uint64_t from, unsigned marks)
{
    size_t i = model_find(m, from);

    while (i < m->count && (!m->item[i].live || (marks && !(m->item[i].marks & marks))))
        i++;
    return i < m->count ? &m->item[i] : NULL;
}

const struct item *model_previous(const struct model *m, uint64_t from)
{
    size_t i = model_find(m, from);

    for (i = i < m->count && m->item[i].page <= from ? i + 1 : i; i--;)
        if (m->item[i].live)
            return &m->item[i];
    return NULL;
}
