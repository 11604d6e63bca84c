/* SPDX-License-Identifier: MIT */
/* Space in a file (space.h). */
#include "kv/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int space_init(struct space *space)
{
    memset(space, 0, sizeof(*space));
    return -pthread_mutex_init(&space->lock, NULL);
}

void space_end(struct space *space)
{
    free(space->used);
    free(space->free);
    free(space->freed);
    for (unsigned order = 0; order <= SPACE_ORDER_MAX; order++)
        free(space->stack[order].page);
    pthread_mutex_destroy(&space->lock);
}

/* ---- bits ---- */

static bool used(const struct space *space, uint64_t page)
{
    return space->used[page / 64] >> page % 64 & 1;
}

/* Whether all pages of the extent are alike, and so. */
static bool all_used(const struct space *space, uint64_t page, unsigned order, bool wanted)
{
    for (uint64_t i = page; i < page + (1ull << order); i++)
        if (used(space, i) != wanted)
            return false;
    return true;
}

static void set_used(struct space *space, uint64_t page, unsigned order, bool value)
{
    for (uint64_t i = page; i < page + (1ull << order); i++) {
        uint64_t bit = 1ull << i % 64;

        space->used[i / 64] = value ? space->used[i / 64] | bit : space->used[i / 64] & ~bit;
    }
    space->used_pages = value ? space->used_pages + (1ull << order) : space->used_pages - (1ull << order);
}

/* ---- free extents ---- */

/*
 * Half of a stack at the most is stale, or it is swept; sweeping an entry costs as much as pushing it did. An extent may be
 * in it twice, once stale: whoever finds either takes it, and the other is stale then.
 */
static int push(struct space *space, uint64_t page, unsigned order)
{
    struct stack *stack = &space->stack[order];

    if (stack->count == stack->room && stack->count > 2 * space->free_count[order] + 64) {
        size_t kept = 0;

        for (size_t i = 0; i < stack->count; i++)
            if (space->free[stack->page[i]] == order + 1)
                stack->page[kept++] = stack->page[i];
        stack->count = kept;
    }
    if (stack->count == stack->room) {
        size_t room = stack->room ? 2 * stack->room : 64;
        uint64_t *more = realloc(stack->page, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        stack->page = more;
        stack->room = room;
    }
    stack->page[stack->count++] = page;
    return 0;
}

/*
 * Free an extent, joining it with its buddy as long as that is free. Without memory for the stack the extent is lost until
 * the next open, which looks at the bits.
 */
static void add_free(struct space *space, uint64_t page, unsigned order)
{
    while (order < SPACE_ORDER_MAX) {
        uint64_t buddy = page ^ 1ull << order;

        if (space->free[buddy] != order + 1)
            break;
        space->free[buddy] = 0;
        space->free_count[order]--;
        page &= ~(1ull << order);
        order++;
    }
    if (push(space, page, order))
        return;
    space->free[page] = (uint8_t)(order + 1);
    space->free_count[order]++;
}

static bool pop(struct space *space, unsigned order, uint64_t *page)
{
    struct stack *stack = &space->stack[order];

    while (stack->count) {
        *page = stack->page[--stack->count];
        if (space->free[*page] != order + 1)
            continue;
        space->free[*page] = 0;
        space->free_count[order]--;
        return true;
    }
    return false;
}

/* Room for so many pages; what is new is not in use and not free. */
static int grow(struct space *space, uint64_t pages)
{
    uint64_t old = space->pages;
    uint64_t *bits;
    uint8_t *orders;

    pages = (pages + SPACE_BLOCK_PAGES - 1) / SPACE_BLOCK_PAGES * SPACE_BLOCK_PAGES;
    if (pages <= old)
        return 0;
    if (pages > SPACE_PAGES_MAX)
        return -ENOSPC;
    bits = realloc(space->used, pages / 8);
    if (!bits)
        return -ENOMEM;
    space->used = bits;
    orders = realloc(space->free, pages);
    if (!orders)
        return -ENOMEM;
    space->free = orders;
    memset((unsigned char *)bits + old / 8, 0, (pages - old) / 8);
    memset(orders + old, 0, pages - old);
    space->pages = pages;
    return 0;
}

int space_take(struct space *space, unsigned order, uint64_t *page)
{
    unsigned from = order;
    int rc = 0;

    pthread_mutex_lock(&space->lock);
    while (from <= SPACE_ORDER_MAX && !pop(space, from, page))
        from++;
    if (from > SPACE_ORDER_MAX) {
        *page = space->pages;
        rc = grow(space, space->pages + SPACE_BLOCK_PAGES);
        from = SPACE_ORDER_MAX;
    }
    while (!rc && from > order) { /* the first half is taken, the second stays */
        from--;
        add_free(space, *page + (1ull << from), from);
    }
    pthread_mutex_unlock(&space->lock);
    return rc;
}

void space_give(struct space *space, uint64_t page, unsigned order)
{
    pthread_mutex_lock(&space->lock);
    add_free(space, page, order);
    pthread_mutex_unlock(&space->lock);
}

/* ---- what the log says ---- */

static bool inside(uint64_t page, unsigned order)
{
    return order <= SPACE_ORDER_MAX && page < SPACE_PAGES_MAX && page % (1ull << order) == 0;
}

bool space_log_use(struct space *space, uint64_t page, unsigned order)
{
    bool right = false;

    pthread_mutex_lock(&space->lock);
    if (inside(page, order) && !grow(space, page + (1ull << order)) && all_used(space, page, order, false)) {
        set_used(space, page, order, true);
        right = true;
    }
    pthread_mutex_unlock(&space->lock);
    return right;
}

static bool freed_room(struct space *space)
{
    size_t room = space->freed_room ? 2 * space->freed_room : 64;
    struct freed *more;

    if (space->freed_count < space->freed_room)
        return true;
    more = realloc(space->freed, room * sizeof(*more));
    if (!more)
        return false;
    space->freed = more;
    space->freed_room = room;
    return true;
}

bool space_log_free(struct space *space, uint64_t page, unsigned order, uint64_t lsn)
{
    bool right = false;

    pthread_mutex_lock(&space->lock);
    if (inside(page, order) && page + (1ull << order) <= space->pages && all_used(space, page, order, true)) {
        set_used(space, page, order, false);
        if (freed_room(space))
            space->freed[space->freed_count++] = (struct freed){page, lsn, order};
        right = true;
    }
    pthread_mutex_unlock(&space->lock);
    return right;
}

unsigned char *space_copy(struct space *space, uint64_t *pages)
{
    unsigned char *copy;

    pthread_mutex_lock(&space->lock);
    *pages = space->pages;
    copy = malloc(space->pages / 8 + 1);
    if (copy && space->pages)
        memcpy(copy, space->used, space->pages / 8);
    pthread_mutex_unlock(&space->lock);
    return copy;
}

void space_release(struct space *space, uint64_t lsn)
{
    size_t done = 0;

    pthread_mutex_lock(&space->lock);
    while (done < space->freed_count && space->freed[done].lsn <= lsn) {
        add_free(space, space->freed[done].page, space->freed[done].order);
        done++;
    }
    space->freed_count -= done;
    if (done)
        memmove(space->freed, space->freed + done, space->freed_count * sizeof(*space->freed));
    pthread_mutex_unlock(&space->lock);
}

/* ---- opening ---- */

int space_load(struct space *space, const unsigned char *bits, uint64_t pages)
{
    int rc = pages % SPACE_BLOCK_PAGES ? -EUCLEAN : grow(space, pages);

    if (rc || !bits)
        return rc;
    memcpy(space->used, bits, pages / 8);
    space->used_pages = 0;
    for (uint64_t i = 0; i < pages / 64; i++)
        space->used_pages += (uint64_t)__builtin_popcountll(space->used[i]);
    return 0;
}

int space_settle(struct space *space)
{
    space->freed_count = 0;
    for (unsigned order = 0; order <= SPACE_ORDER_MAX; order++)
        space->stack[order].count = space->free_count[order] = 0;
    if (space->pages)
        memset(space->free, 0, space->pages);
    for (uint64_t page = space->pages; page > 0;
         page--) /* from the end, so that what is taken first lies at the beginning */
        if (!used(space, page - 1))
            add_free(space, page - 1, 0);
    return 0;
}

bool space_in_use(struct space *space, uint64_t page)
{
    bool is;

    pthread_mutex_lock(&space->lock);
    is = page < space->pages && used(space, page);
    pthread_mutex_unlock(&space->lock);
    return is;
}

uint64_t space_used_pages(struct space *space)
{
    uint64_t pages;

    pthread_mutex_lock(&space->lock);
    pages = space->used_pages;
    pthread_mutex_unlock(&space->lock);
    return pages;
}

uint64_t space_pages(struct space *space)
{
    uint64_t pages;

    pthread_mutex_lock(&space->lock);
    pages = space->pages;
    pthread_mutex_unlock(&space->lock);
    return pages;
}
