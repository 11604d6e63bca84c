/* SPDX-License-Identifier: MIT */
/*
 * The tree: a B+tree with optimistic lock coupling (Leis, Haubenschild, Neumann, "Optimistic Lock Coupling: A Scalable and
 * Efficient General-Purpose Synchronization Method", 2019). The way down holds nothing: a page's child is believed if the
 * page's view still stands after the child's view was taken. Whoever changes pages turns his views into exclusive
 * refs, parent first, and lets go of everything if one of them has moved.
 *
 * A page is split when something does not fit, never ahead of need; the root keeps its place, and its contents move down.
 * Small pages are joined with a neighbour under the same parent. There are no links between neighbours: fences say where
 * to go on.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kv/store.h"

/* ---- retrying ---- */

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool tries_more(kv_session *s, struct tries *tries)
{
    atomic_fetch_add_explicit(&s->kv->restarts, 1, memory_order_relaxed);
    if (++tries->count < 8)
        return true;
    if (!tries->until_ms)
        tries->until_ms = now_ms() + WAIT_MS;
    if (tries->count > TRIES_MAX || now_ms() > tries->until_ms) {
        session_fail(s, -EBUSY, "others changed the same pages for %u seconds", WAIT_MS / 1000);
        return false;
    }
    if (tries->count < 64)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return true;
}

/* ---- the way down ---- */

int tree_look(kv_session *s, uint64_t page, struct bp_view *view)
{
    int rc = bp_read(s->pages, s->kv->file[SPACE_TREE], page, view);

    return rc ? session_pool_fail(s, rc, DATA_NAME, page) : 0;
}

/* The same by a hint, which is made better. */
static int look_hinted(kv_session *s, uint64_t page, _Atomic uint64_t *known, struct bp_view *view)
{
    /* relaxed: a hint may be anything */
    uint64_t before = atomic_load_explicit(known, memory_order_relaxed);
    struct bp_hint hint = {before};
    int rc = bp_read_hinted(s->pages, s->kv->file[SPACE_TREE], page, &hint, view);

    if (hint.word != before)
        atomic_store_explicit(known, hint.word, memory_order_relaxed);
    return rc ? session_pool_fail(s, rc, DATA_NAME, page) : 0;
}

static int look_at_child(kv_session *s, uint64_t parent, unsigned slot, uint64_t child, struct bp_view *view)
{
    kv *store = s->kv;
    _Atomic uint64_t *known;

    if (!store->hint)
        return tree_look(s, child, view);
    known = store->hint + (parent & (store->hint_pages - 1)) * HINT_SLOTS + slot % HINT_SLOTS;
    return look_hinted(s, child, known, view);
}

/* One try. 1: start over. */
static int walk(kv_session *s, struct bytes key, bool before, unsigned level, struct place *place)
{
    int rc;

    place->parent_page = PAGE_NONE;
    place->node_page = PAGE_ROOT;
    place->slot = 0;
    rc = look_hinted(s, PAGE_ROOT, &s->root, &place->node);
    if (rc)
        return rc;
    place->level = page_level(place->node.data);
    if (place->level < level || place->level >= LEVELS_MAX)
        return bp_view_valid(&place->node) ? -ENOENT : 1;
    while (place->level > level) {
        const struct page *page = place->node.data;
        uint64_t child;

        place->slot = page_child_slot(page, key, before);
        child = page_child(page, place->slot);
        if (!bp_view_valid(&place->node))
            return 1;
        place->parent = place->node;
        place->parent_page = place->node_page;
        place->node_page = child;
        rc = look_at_child(s, place->parent_page, place->slot, child, &place->node);
        if (rc)
            return bp_view_valid(&place->parent) ? rc : 1;
        page_prefetch(place->node.data);
        place->level--;
        if (page_level(place->node.data) != place->level && bp_view_valid(&place->node) &&
            bp_view_valid(&place->parent))
            return session_fail(s, KV_DAMAGED, "page %llu of %s is not at level %u", (unsigned long long)child,
                                DATA_NAME, place->level);
        if (!bp_view_valid(&place->parent))
            return 1;
    }
    return 0;
}

int tree_find(kv_session *s, struct bytes key, bool before, unsigned level, struct place *place)
{
    struct tries tries = {0};
    int rc;

    while ((rc = walk(s, key, before, level, place)) == 1)
        if (!tries_more(s, &tries))
            return -EBUSY;
    return rc;
}

/* ---- pages held ---- */

/* What a change of structure holds; those that it changed are put dirty. */
struct held {
    struct bp_ref ref[4];
    unsigned count;
};

static struct page *held_page(struct held *held, unsigned i)
{
    return held->ref[i].data;
}

/* BP_MOVED and errors leave it as it was. */
static int hold(kv_session *s, struct held *held, const struct bp_view *view, uint64_t page)
{
    int rc = bp_upgrade(view, s->pages, s->kv->file[SPACE_TREE], page, &held->ref[held->count]);

    if (!rc)
        held->count++;
    else if (rc != BP_MOVED)
        session_pool_fail(s, rc, DATA_NAME, page);
    return rc;
}

static int hold_new(kv_session *s, struct held *held)
{
    uint64_t page;
    int rc = space_take(&s->kv->space[SPACE_TREE], 0, &page);

    if (rc)
        return session_fail(s, rc, "no space for another page: %s", kv_strerror(rc));
    rc = bp_create(s->pages, s->kv->file[SPACE_TREE], page, 0, &held->ref[held->count]);
    if (rc) {
        space_give(&s->kv->space[SPACE_TREE], page, 0);
        return session_pool_fail(s, rc, DATA_NAME, page);
    }
    held->count++;
    return 0;
}

static void let_go(struct held *held)
{
    while (held->count)
        bp_put(&held->ref[--held->count]);
}

/* A page that nobody leads to any more. Where it cannot be forgotten it is written in vain, and created anew before it is read. */
static void forget(kv_session *s, uint64_t page)
{
    int rc = bp_discard(s->pages, s->kv->file[SPACE_TREE], page, 1);

    (void)rc;
}

/* Nothing came of it: the first `fresh` are new pages, which nobody knows of. */
static void undo(kv_session *s, struct held *held, unsigned fresh)
{
    uint64_t page[2] = {0, 0};

    for (unsigned i = 0; i < fresh && i < held->count; i++)
        page[i] = held->ref[i].page;
    let_go(held);
    for (unsigned i = 0; i < fresh; i++)
        if (page[i]) {
            forget(s, page[i]);
            space_give(&s->kv->space[SPACE_TREE], page[i], 0);
        }
}

static void put_changed(kv_session *s, struct held *held, unsigned count, uint64_t lsn)
{
    for (unsigned i = 0; i < count; i++) {
        held_page(held, i)->lsn = lsn;
        bp_put_dirty(&held->ref[i], lsn);
    }
    for (unsigned i = count; i < held->count; i++)
        bp_put(&held->ref[i]);
    held->count = 0;
    record_settled(s);
}

static struct page *scratch(kv_session *s, unsigned i)
{
    return (struct page *)(void *)(s->scratch + (size_t)i * PAGE_BYTES);
}

/* ---- splitting ---- */

/* Where to split: first slot of the right page, and its lower fence. 0: it cannot be split. */
static size_t where(const struct page *page, struct bytes key, const struct bytes *wish, unsigned *slot,
                    unsigned char at[KV_KEY_MAX])
{
    struct bytes low = page_low(page), high = page_high(page);
    bool exact;

    if (wish) {
        if (bytes_compare(*wish, low) <= 0 || (high.at && bytes_compare(*wish, high) >= 0))
            return 0; /* somebody has split it meanwhile */
        *slot = page_seek(page, *wish, &exact);
        memcpy(at, wish->at, wish->count);
        if (page_split_fits(page, *slot, *wish))
            return wish->count;
    }
    return page_split_key(page, key, slot, at);
}

/* The root's contents move into two new pages (held 0 and 1), below it (held 2). */
static int split_root_held(kv_session *s, struct held *held, struct bytes key, const struct bytes *wish)
{
    struct page *left = held_page(held, 0), *right = held_page(held, 1), *root = held_page(held, 2);
    struct page *top = scratch(s, 0);
    unsigned char at[KV_KEY_MAX];
    const struct bytes all = {"", 0}, end = {NULL, 0};
    struct bytes middle = {at, 0};
    uint64_t lsn, floor = log_floor(&s->kv->log);
    unsigned slot;
    int rc;

    middle.count = where(root, key, wish, &slot, at);
    if (!middle.count)
        return 1;
    page_init(left, held->ref[0].page, root->level, all, middle);
    page_append(left, root, 0, slot);
    page_init(right, held->ref[1].page, root->level, middle, end);
    page_append(right, root, slot, root->count);
    page_init(top, PAGE_ROOT, root->level + 1u, all, end);
    page_put(top, all, (struct bytes){&left->number, 8}, false);
    page_put(top, middle, (struct bytes){&right->number, 8}, false);
    record_begin(s);
    if ((rc = record_space(s, CHANGE_USE, SPACE_TREE, left->number, 0)) || (rc = record_image(s, left)) ||
        (rc = record_space(s, CHANGE_USE, SPACE_TREE, right->number, 0)) || (rc = record_image(s, right)) ||
        (rc = record_image(s, top)) || (rc = record_append(s, floor, &lsn)))
        return rc;
    memcpy(root, top, PAGE_BYTES);
    put_changed(s, held, 3, lsn);
    return 0;
}

/* The page (held 2) gives its second half to a new one (held 0), which its parent (held 1) gets to know. 2: the parent is full. */
static int split_held(kv_session *s, struct held *held, struct bytes key, const struct bytes *wish)
{
    struct page *right = held_page(held, 0), *parent = held_page(held, 1), *page = held_page(held, 2);
    unsigned char at[KV_KEY_MAX];
    struct bytes middle = {at, 0};
    struct entry cut = {.change = CHANGE_CUT, .page = page->number};
    struct entry link = {.change = CHANGE_LINK, .bytes = 8, .page = parent->number};
    uint64_t lsn, floor = log_floor(&s->kv->log);
    unsigned slot;
    int rc;

    middle.count = where(page, key, wish, &slot, at);
    if (!middle.count)
        return 1;
    if (!page_fits(parent, middle.count, 8, -1))
        return 2;
    page_init(right, held->ref[0].page, page->level, middle, page_high(page));
    page_append(right, page, slot, page->count);
    cut.key_bytes = link.key_bytes = (uint16_t)middle.count;
    cut.extra = slot;
    record_begin(s);
    if ((rc = record_space(s, CHANGE_USE, SPACE_TREE, right->number, 0)) || (rc = record_image(s, right)) ||
        (rc = record_before(s, page, floor)) || (rc = record_add(s, cut, at, NULL)) ||
        (rc = record_before(s, parent, floor)) || (rc = record_add(s, link, at, &right->number)) ||
        (rc = record_append(s, floor, &lsn)))
        return rc;
    page_cut(page, slot, middle);
    page_put(parent, middle, (struct bytes){&right->number, 8}, false);
    put_changed(s, held, 3, lsn);
    return 0;
}

/*
 * One try: new pages first, since getting those can wait, and then the latches, which does not. 1: nothing to split, 2: the
 * page above has no room, EAGAIN, BP_MOVED: start over.
 */
static int split_once(kv_session *s, struct bytes key, const struct bytes *wish, unsigned level)
{
    struct held held = {.count = 0};
    struct place place;
    unsigned fresh;
    int rc = tree_find(s, key, false, level, &place);

    if (rc)
        return rc;
    fresh = place.parent_page == PAGE_NONE ? 2 : 1;
    for (unsigned i = 0; i < fresh && !rc; i++)
        rc = hold_new(s, &held);
    if (!rc && place.parent_page != PAGE_NONE)
        rc = hold(s, &held, &place.parent, place.parent_page);
    if (!rc)
        rc = hold(s, &held, &place.node, place.node_page);
    if (!rc)
        rc = fresh == 2 ? split_root_held(s, &held, key, wish) : split_held(s, &held, key, wish);
    if (rc)
        undo(s, &held, fresh);
    return rc;
}

int tree_split(kv_session *s, struct bytes key, const struct bytes *at, unsigned level)
{
    struct tries tries = {0};

    if (level >= LEVELS_MAX - 1)
        return session_fail(s, KV_DAMAGED, "the tree has more than %u levels", LEVELS_MAX);
    for (;;) {
        int rc = split_once(s, key, at, level);

        if (rc == 0)
            atomic_fetch_add_explicit(&s->kv->splits, 1, memory_order_relaxed);
        if (rc == 0 || rc == 1)
            return 0;
        if (rc == 2)
            rc = tree_split(s, key, NULL, level + 1);
        else if (rc == BP_MOVED || rc == -EAGAIN)
            rc = tries_more(s, &tries) ? 0 : -EBUSY;
        if (rc)
            return rc;
    }
}

/* ---- merging ---- */

/* Held: parent, left, right. 1: they do not fit into one. */
static int merge_held(kv_session *s, struct held *held, unsigned right_slot)
{
    struct page *parent = held_page(held, 0), *left = held_page(held, 1), *right = held_page(held, 2);
    struct page *joined = scratch(s, 0);
    unsigned char key[KV_KEY_MAX];
    struct entry unlink = {.change = CHANGE_UNLINK, .page = parent->number};
    uint64_t lsn, floor = log_floor(&s->kv->log), gone = right->number;
    int rc;

    if (page_used(left) + page_used(right) > PAGE_BYTES * 3 / 4 || !page_join(joined, left, right))
        return 1; /* what is joined to the brim is split again soon */
    unlink.key_bytes = (uint16_t)page_key(parent, right_slot, key);
    record_begin(s);
    if ((rc = record_image(s, joined)) || (rc = record_before(s, parent, floor)) ||
        (rc = record_add(s, unlink, key, NULL)) || (rc = record_space(s, CHANGE_FREE, SPACE_TREE, gone, 0)) ||
        (rc = record_append(s, floor, &lsn)))
        return rc;
    page_remove(parent, right_slot);
    memcpy(left, joined, PAGE_BYTES);
    put_changed(s, held, 2, lsn); /* the right one is let go as well, and views of it end */
    forget(s, gone);
    return 0;
}

/* The root has one child: it becomes that child. Held: root, child. */
static int collapse_held(kv_session *s, struct held *held)
{
    struct page *root = held_page(held, 0), *child = held_page(held, 1), *all = scratch(s, 0);
    uint64_t lsn, floor = log_floor(&s->kv->log), gone = child->number;
    int rc;

    page_init(all, PAGE_ROOT, child->level, page_low(child), page_high(child));
    page_append(all, child, 0, child->count);
    record_begin(s);
    if ((rc = record_image(s, all)) || (rc = record_space(s, CHANGE_FREE, SPACE_TREE, gone, 0)) ||
        (rc = record_append(s, floor, &lsn)))
        return rc;
    memcpy(root, all, PAGE_BYTES);
    put_changed(s, held, 1, lsn);
    forget(s, gone);
    return 0;
}

/* The page's parent has no other child. 2: only the parent's parent can help, unless that is the root. */
static int merge_only_child(kv_session *s, const struct place *place)
{
    struct held held = {.count = 0};
    int rc;

    if (place->parent_page != PAGE_ROOT)
        return 2;
    rc = hold(s, &held, &place->parent, place->parent_page);
    if (!rc)
        rc = hold(s, &held, &place->node, place->node_page);
    if (!rc)
        rc = collapse_held(s, &held);
    let_go(&held);
    return rc;
}

/* One try at the page and a neighbour under the same parent. 1: nothing to do; 2: see above. */
static int merge_once(kv_session *s, struct bytes key, unsigned level)
{
    struct held held = {.count = 0};
    struct bp_view other;
    struct place place;
    unsigned right, count;
    uint64_t neighbour;
    bool to_left;
    int rc = tree_find(s, key, false, level, &place);

    if (rc || place.parent_page == PAGE_NONE)
        return rc ? rc : 1;
    count = page_count(view_page(&place.parent));
    to_left = place.slot + 1 >= count;
    right = to_left ? place.slot : place.slot + 1;
    neighbour = page_child(view_page(&place.parent), to_left ? right - 1 : right);
    if (!bp_view_valid(&place.parent))
        return BP_MOVED;
    if (count < 2)
        return merge_only_child(s, &place);
    rc = tree_look(s, neighbour, &other);
    if (!rc)
        rc = hold(s, &held, &place.parent, place.parent_page);
    if (!rc)
        rc = to_left ? hold(s, &held, &other, neighbour) : hold(s, &held, &place.node, place.node_page);
    if (!rc)
        rc = to_left ? hold(s, &held, &place.node, place.node_page) : hold(s, &held, &other, neighbour);
    if (!rc)
        rc = merge_held(s, &held, right);
    let_go(&held);
    return rc;
}

int tree_merge(kv_session *s, struct bytes key, unsigned level)
{
    struct tries tries = {0};

    while (level < LEVELS_MAX) {
        int rc = merge_once(s, key, level);

        if (rc == BP_MOVED || rc == -EAGAIN) {
            if (!tries_more(s, &tries))
                return 0; /* a small page does no harm */
            continue;
        }
        if (rc == 1 || rc == -ENOENT)
            return 0;
        if (rc && rc != 2)
            return rc;
        if (!rc)
            atomic_fetch_add_explicit(&s->kv->merges, 1, memory_order_relaxed);
        level++; /* the page above has lost a child, or has but one */
    }
    return 0;
}
