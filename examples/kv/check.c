/* SPDX-License-Identifier: MIT */
/*
 * Looking at everything. A checkpoint comes first, so that what is on disk is what is in memory; then each page of the tree
 * is looked at in memory and on disk, each large value is read, and what was come across is compared with what is in use.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/store.h"

struct check {
    kv_session *s;
    void (*found)(void *ctx, const char *line);
    void *ctx;
    struct kv_check_result *result;
    int fd; /* of the tree's file, read past the pool */
    uint64_t log_end;
    unsigned char *seen[SPACES]; /* bits */
    uint64_t pages[SPACES];
};

static void fault(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fault(struct check *c, const char *format, ...)
{
    char line[400];
    va_list list;

    if (c->result->faults++ == 0)
        session_fail(c->s, KV_DAMAGED, "the store is damaged"); /* the first one's words follow */
    va_start(list, format);
    vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    if (c->result->faults == 1)
        session_fail(c->s, KV_DAMAGED, "%s", line);
    if (c->found)
        c->found(c->ctx, line);
}

/* An extent that something leads to. false: it is none, or another one leads there too. */
static bool see(struct check *c, unsigned space, uint64_t page, unsigned order)
{
    if (order > SPACE_ORDER_MAX || page % (1ull << order) || page >= c->pages[space] ||
        (1ull << order) > c->pages[space] - page) {
        fault(c, "something leads to page %llu, order %u, which is none of the file", (unsigned long long)page, order);
        return false;
    }
    for (uint64_t i = page; i < page + (1ull << order); i++) {
        if (c->seen[space][i / 8] >> i % 8 & 1) {
            fault(c, "page %llu of %s is used twice", (unsigned long long)i, space ? VALUES_NAME : DATA_NAME);
            return false;
        }
        c->seen[space][i / 8] = (unsigned char)(c->seen[space][i / 8] | 1u << i % 8);
    }
    return true;
}

static bool same(struct bytes a, struct bytes b)
{
    return !a.at == !b.at && a.count == b.count && (!a.count || !memcmp(a.at, b.at, a.count));
}

static void look_at_disk(struct check *c, const struct page *page)
{
    struct page disk;
    ssize_t n = pread(c->fd, &disk, PAGE_BYTES, (off_t)(page->number * PAGE_BYTES));

    if (n != (ssize_t)PAGE_BYTES)
        fault(c, "page %llu of %s: %s", (unsigned long long)page->number, DATA_NAME,
              n < 0 ? strerror(errno) : "the file is too short");
    else if (disk.crc != page_crc(&disk))
        fault(c, "page %llu of %s: its checksum on disk is wrong", (unsigned long long)page->number, DATA_NAME);
    else if (memcmp((const char *)&disk + sizeof(uint32_t), (const char *)page + sizeof(uint32_t),
                    PAGE_BYTES - sizeof(uint32_t)))
        fault(c, "page %llu of %s is another one on disk than in memory", (unsigned long long)page->number, DATA_NAME);
}

static void look_at_value(struct check *c, const struct page *page, unsigned slot)
{
    struct found found;
    struct large large;

    c->result->entries++;
    if (!page_value(page, slot, &found) || !found.large)
        return;
    if (!large_parse(found.at, found.bytes, &large)) {
        fault(c, "page %llu, entry %u: where its value lies cannot be read", (unsigned long long)page->number, slot);
        return;
    }
    for (unsigned i = 0; i < large.pieces; i++)
        if (!see(c, SPACE_VALUES, piece_page(large.piece[i]), piece_order(large.piece[i])))
            return;
    for (unsigned i = 0; i < large.pieces; i++)
        c->result->value_pages += 1ull << piece_order(large.piece[i]);
    c->result->value_bytes += large.bytes;
    if (large_read(c->s, &large)) {
        char why[248];

        snprintf(why, sizeof(why), "%s", kv_session_error(c->s));
        fault(c, "page %llu, entry %u: %s", (unsigned long long)page->number, slot, why);
    }
}

/* A copy of a page as it is now. */
static int copy_of(struct check *c, uint64_t number, struct page *to)
{
    for (unsigned i = 0; i < 100; i++) {
        struct bp_view view;
        int rc = tree_look(c->s, number, &view);

        if (rc)
            return rc;
        page_copy(to, view_page(&view));
        if (bp_view_valid(&view))
            return 0;
    }
    return session_fail(c->s, -EBUSY, "the store is being written to");
}

static int look_at(struct check *c, uint64_t number, unsigned level, struct bytes low, struct bytes high)
{
    struct page copy;
    const struct page *page = &copy;
    const char *wrong;
    int rc;

    if (!see(c, SPACE_TREE, number, 0))
        return 0;
    rc = copy_of(c, number, &copy);
    if (rc == KV_DAMAGED || rc == -EIO) {
        char why[248];

        snprintf(why, sizeof(why), "%s", kv_session_error(c->s));
        fault(c, "%s", why);
        return 0;
    }
    if (rc)
        return rc;
    c->result->tree_pages++;
    wrong = page_wrong(page, number);
    if (wrong) {
        fault(c, "page %llu of %s: %s", (unsigned long long)number, DATA_NAME, wrong);
        return 0;
    }
    if (page->level != level || !same(page_low(page), low) || !same(page_high(page), high))
        fault(c, "page %llu of %s is not what the page above says", (unsigned long long)number, DATA_NAME);
    if (page->lsn > c->log_end)
        fault(c, "page %llu of %s is newer than the log", (unsigned long long)number, DATA_NAME);
    look_at_disk(c, page);
    for (unsigned slot = 0; slot < page->count && !rc; slot++) {
        unsigned char from[KV_KEY_MAX], to[KV_KEY_MAX];
        struct bytes end = high;

        if (!level) {
            look_at_value(c, page, slot);
            continue;
        }
        if (slot + 1u < page->count)
            end = (struct bytes){to, page_key(page, slot + 1, to)};
        rc = look_at(c, page_child(page, slot), level - 1, (struct bytes){from, page_key(page, slot, from)}, end);
    }
    return rc;
}

static void compare_space(struct check *c, unsigned space)
{
    for (uint64_t page = 0; page < c->pages[space]; page++) {
        bool seen = c->seen[space][page / 8] >> page % 8 & 1, used = space_in_use(&c->s->kv->space[space], page);

        if (seen && !used)
            fault(c, "page %llu of %s is used, but counts as free", (unsigned long long)page,
                  space ? VALUES_NAME : DATA_NAME);
        if (used && !seen)
            fault(c, "page %llu of %s is lost: nothing uses it", (unsigned long long)page,
                  space ? VALUES_NAME : DATA_NAME);
    }
}

static int begin(struct check *c)
{
    kv *store = c->s->kv;
    int rc = checkpoint_take(c->s);

    if (rc)
        return rc;
    c->log_end = log_position(&store->log);
    c->fd = openat(store->dir, DATA_NAME, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0)
        return session_fail(c->s, -errno, "%s: %s", DATA_NAME, strerror(errno));
    for (unsigned i = 0; i < SPACES; i++) {
        c->pages[i] = space_pages(&store->space[i]);
        c->seen[i] = calloc(1, c->pages[i] / 8 + 1);
        if (!c->seen[i])
            return session_fail(c->s, -ENOMEM, "no memory for a check");
        see(c, i, 0, 0); /* the label */
    }
    return 0;
}

int kv_check(kv_session *s, void (*found)(void *ctx, const char *line), void *ctx, struct kv_check_result *result)
{
    struct check c = {.s = s, .found = found, .ctx = ctx, .result = result, .fd = -1};
    struct bp_view root;
    int rc;

    memset(result, 0, sizeof(*result));
    rc = begin(&c);
    if (!rc)
        rc = tree_look(s, PAGE_ROOT, &root);
    if (!rc && page_level(view_page(&root)) >= LEVELS_MAX)
        rc = session_fail(s, KV_DAMAGED, "the root is at level %u", page_level(view_page(&root)));
    if (!rc)
        rc = look_at(&c, PAGE_ROOT, page_level(view_page(&root)), (struct bytes){"", 0}, (struct bytes){NULL, 0});
    for (unsigned i = 0; i < SPACES && !rc; i++)
        compare_space(&c, i);
    if (!rc && result->entries != s->kv->entries)
        fault(&c, "there are %llu keys, but %llu are counted", (unsigned long long)result->entries,
              (unsigned long long)s->kv->entries);
    if (!rc && result->faults)
        rc = KV_DAMAGED;
    if (c.fd >= 0)
        close(c.fd);
    for (unsigned i = 0; i < SPACES; i++)
        free(c.seen[i]);
    return rc;
}
