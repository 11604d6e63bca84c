/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints. One begins at a position of the log: from there on, first changes of pages are logged as whole pages, and
 * what the log says of space and of the number of keys is copied. Then everything that was changed before is written and
 * synced, while others go on; bp_file_oldest_dirty_lsn() says when that is so. Then the file `checkpoint` is replaced, and
 * the log before the position, and the space that was freed before it, are free to be used again.
 *
 * Also what a store is made of in the first place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kv/store.h"

#define ROUNDS_MAX 16u /* of writing, until nothing from before is dirty */

static const char magic[16] = "bufpool-kv chk\n", label_magic[16] = "bufpool-kv data";

struct header {
    char magic[16];
    uint32_t format, page_bytes;
    uint64_t id, position, entries;
    uint64_t pages[SPACES];
    uint32_t crc; /* of all above, then of the bits */
    uint32_t zero;
};

struct label {
    char magic[16];
    uint32_t format, page_bytes, space, zero;
    uint64_t id;
    uint32_t crc, zero2;
};

/* ---- files ---- */

static int write_all(int fd, const void *bytes, size_t count, uint64_t at)
{
    size_t done = 0;

    while (done < count) {
        ssize_t n = pwrite(fd, (const char *)bytes + done, count - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static int read_exactly(int fd, void *to, size_t count, uint64_t at)
{
    size_t done = 0;

    while (done < count) {
        ssize_t n = pread(fd, (char *)to + done, count - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

static uint32_t checkpoint_crc(const struct header *header, unsigned char *const bits[SPACES])
{
    uint32_t crc = bp_crc32c(0, header, offsetof(struct header, crc));

    for (unsigned i = 0; i < SPACES; i++)
        crc = bp_crc32c(crc, bits[i], header->pages[i] / 8);
    return crc;
}

void checkpoint_free(struct checkpoint *c)
{
    for (unsigned i = 0; i < SPACES; i++) {
        free(c->bits[i]);
        c->bits[i] = NULL;
    }
}

int checkpoint_write(int dir, const struct checkpoint *c)
{
    struct header header = {
        .format = FORMAT, .page_bytes = PAGE_BYTES, .id = c->id, .position = c->position, .entries = c->entries};
    uint64_t at = sizeof(header);
    int fd, rc;

    memcpy(header.magic, magic, sizeof(magic));
    for (unsigned i = 0; i < SPACES; i++)
        header.pages[i] = c->pages[i];
    header.crc = checkpoint_crc(&header, c->bits);
    fd = openat(dir, "checkpoint.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    rc = write_all(fd, &header, sizeof(header), 0);
    for (unsigned i = 0; i < SPACES && !rc; i++) {
        rc = write_all(fd, c->bits[i], c->pages[i] / 8, at);
        at += c->pages[i] / 8;
    }
    if (!rc && fsync(fd))
        rc = -errno;
    close(fd);
    if (!rc && renameat(dir, "checkpoint.new", dir, "checkpoint"))
        rc = -errno;
    if (!rc && fsync(dir))
        rc = -errno;
    if (rc)
        unlinkat(dir, "checkpoint.new", 0);
    return rc;
}

static int checkpoint_parse(int fd, struct checkpoint *c, struct kv_error *error)
{
    struct header header;
    struct stat st;
    uint64_t at = sizeof(header);
    int rc = fstat(fd, &st) ? -errno : 0;

    if (!rc && read_exactly(fd, &header, sizeof(header), 0))
        return kv_fail(error, KV_DAMAGED, "checkpoint: %lld bytes are too few", (long long)st.st_size);
    if (rc)
        return kv_fail(error, rc, "checkpoint: %s", strerror(-rc));
    if (memcmp(header.magic, magic, sizeof(magic)))
        return kv_fail(error, KV_FOREIGN, "checkpoint: not a checkpoint of a store");
    if (header.format != FORMAT || header.page_bytes != PAGE_BYTES)
        return kv_fail(error, KV_VERSION, "checkpoint: format %u with pages of %u bytes; this program knows %u with %u",
                       header.format, header.page_bytes, FORMAT, PAGE_BYTES);
    for (unsigned i = 0; i < SPACES; i++) {
        if (header.pages[i] > SPACE_PAGES_MAX || header.pages[i] % SPACE_BLOCK_PAGES)
            return kv_fail(error, KV_DAMAGED, "checkpoint: a file of %llu pages cannot be",
                           (unsigned long long)header.pages[i]);
        at += header.pages[i] / 8;
    }
    if ((uint64_t)st.st_size != at)
        return kv_fail(error, KV_DAMAGED, "checkpoint: %lld bytes instead of %llu", (long long)st.st_size,
                       (unsigned long long)at);
    at = sizeof(header);
    for (unsigned i = 0; i < SPACES && !rc; i++) {
        c->bits[i] = malloc(header.pages[i] / 8 + 1);
        rc = c->bits[i] ? read_exactly(fd, c->bits[i], header.pages[i] / 8, at) : -ENOMEM;
        at += header.pages[i] / 8;
        c->pages[i] = header.pages[i];
    }
    if (rc)
        return kv_fail(error, rc, "checkpoint: %s", strerror(-rc));
    if (checkpoint_crc(&header, c->bits) != header.crc)
        return kv_fail(error, KV_DAMAGED, "checkpoint: its checksum is wrong");
    c->id = header.id;
    c->position = header.position;
    c->entries = header.entries;
    return 0;
}

int checkpoint_read(int dir, struct checkpoint *c, struct kv_error *error)
{
    int fd = openat(dir, "checkpoint", O_RDONLY | O_CLOEXEC), rc;

    memset(c, 0, sizeof(*c));
    if (fd < 0)
        return errno == ENOENT ? KV_NO_STORE : kv_fail(error, -errno, "checkpoint: %s", strerror(errno));
    rc = checkpoint_parse(fd, c, error);
    close(fd);
    if (rc)
        checkpoint_free(c);
    return rc;
}

/* ---- taking one ---- */

/* Under the log's lock. */
static void copy_state(void *ctx, uint64_t position)
{
    kv_session *s = ((void **)ctx)[0];
    struct checkpoint *c = ((void **)ctx)[1];

    c->position = position;
    c->entries = s->kv->entries;
    for (unsigned i = 0; i < SPACES; i++)
        c->bits[i] = space_copy(&s->kv->space[i], &c->pages[i]);
}

/* Until the pool knows of every page that was changed up to here. */
static int wait_for_changes(kv_session *me, uint64_t position)
{
    for (unsigned i = 0; i < WAIT_MS * 10; i++) {
        bool any = false;

        pthread_mutex_lock(&me->kv->sessions_lock);
        for (kv_session *s = me->kv->sessions; s; s = s->next) {
            uint64_t pending = atomic_load_explicit(&s->pending, memory_order_acquire); /* see record_settled */

            any |= pending && pending <= position;
        }
        pthread_mutex_unlock(&me->kv->sessions_lock);
        if (!any)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return session_fail(me, -EBUSY, "a change did not end for %u seconds", WAIT_MS / 1000);
}

static int write_down(kv_session *s, uint64_t position)
{
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        bool clean = true;

        for (unsigned i = 0; i < SPACES; i++) {
            int rc = bp_sync(s->pages, s->kv->file[i]);

            if (rc)
                return session_fail(s, rc, "writing %s: %s", i == SPACE_TREE ? DATA_NAME : VALUES_NAME,
                                    bp_session_error(s->pages));
            clean &= bp_file_oldest_dirty_lsn(s->kv->file[i]) > position;
        }
        if (clean)
            return 0;
    }
    return session_fail(s, -EBUSY, "pages stay dirty although they are written");
}

static int take(kv_session *s, struct checkpoint *c)
{
    kv *store = s->kv;
    void *ctx[2] = {s, c};
    int rc;

    log_raise_floor(&store->log, copy_state, ctx);
    if (!c->bits[SPACE_TREE] || !c->bits[SPACE_VALUES])
        return session_fail(s, -ENOMEM, "no memory for a checkpoint");
    c->id = store->id;
    rc = wait_for_changes(s, c->position);
    if (!rc && (rc = log_commit(&store->log, c->position, false)))
        session_fail(s, rc, "%s", kv_strerror(rc));
    if (!rc)
        rc = write_down(s, c->position);
    if (!rc && (rc = checkpoint_write(store->dir, c)))
        session_fail(s, rc, "writing the checkpoint: %s", kv_strerror(rc));
    if (rc)
        return rc;
    for (unsigned i = 0; i < SPACES; i++)
        space_release(&store->space[i], c->position);
    rc = log_release(&store->log, c->position);
    if (rc)
        session_fail(s, rc, "releasing the log: %s", kv_strerror(rc));
    atomic_fetch_add_explicit(&store->checkpoints, 1, memory_order_relaxed);
    return rc;
}

int checkpoint_take(kv_session *s)
{
    struct checkpoint c = {.id = 0};
    int rc;

    pthread_mutex_lock(&s->kv->checkpoint_lock);
    rc = take(s, &c);
    pthread_mutex_unlock(&s->kv->checkpoint_lock);
    checkpoint_free(&c);
    return rc;
}

int kv_checkpoint(kv_session *s)
{
    return checkpoint_take(s);
}

/* ---- a new store ---- */

static int create_file(int dir, const char *name, unsigned space, uint64_t id, const struct page *root)
{
    union {
        struct label label;
        unsigned char room[PAGE_BYTES];
    } page;
    int fd, rc;

    memset(&page, 0, sizeof(page));
    memcpy(page.label.magic, label_magic, sizeof(label_magic));
    page.label.format = FORMAT;
    page.label.page_bytes = PAGE_BYTES;
    page.label.space = space;
    page.label.id = id;
    page.label.crc = bp_crc32c(0, &page, offsetof(struct label, crc));
    fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    rc = write_all(fd, &page, sizeof(page), 0);
    if (!rc && root)
        rc = write_all(fd, root, PAGE_BYTES, PAGE_ROOT * PAGE_BYTES);
    if (!rc && fsync(fd))
        rc = -errno;
    close(fd);
    return rc;
}

int store_create(int dir, uint64_t *id, struct kv_error *error)
{
    struct checkpoint c = {.pages = {SPACE_BLOCK_PAGES, SPACE_BLOCK_PAGES}};
    struct page root;
    int rc = 0;

    if (getrandom(id, sizeof(*id), 0) != sizeof(*id))
        return kv_fail(error, -errno, "no random number: %s", strerror(errno));
    c.id = *id;
    page_init(&root, PAGE_ROOT, 0, (struct bytes){"", 0}, (struct bytes){NULL, 0});
    root.crc = page_crc(&root);
    for (unsigned i = 0; i < SPACES; i++) {
        c.bits[i] = calloc(1, SPACE_BLOCK_PAGES / 8);
        if (!c.bits[i])
            rc = -ENOMEM;
    }
    if (!rc) {
        c.bits[SPACE_TREE][0] = 1 | 1 << PAGE_ROOT; /* the label and the root */
        c.bits[SPACE_VALUES][0] = 1;
        rc = create_file(dir, DATA_NAME, SPACE_TREE, *id, &root);
    }
    if (!rc)
        rc = create_file(dir, VALUES_NAME, SPACE_VALUES, *id, NULL);
    if (!rc)
        rc = checkpoint_write(dir, &c); /* which makes it a store */
    checkpoint_free(&c);
    return rc ? kv_fail(error, rc, "making a store: %s", strerror(-rc)) : 0;
}

int label_check(int dir, const char *name, unsigned space, uint64_t id, struct kv_error *error)
{
    struct label label;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC), rc;

    if (fd < 0)
        return kv_fail(error, errno == ENOENT ? KV_DAMAGED : -errno, "%s: %s", name, strerror(errno));
    rc = read_exactly(fd, &label, sizeof(label), 0);
    close(fd);
    if (rc || memcmp(label.magic, label_magic, sizeof(label_magic)))
        return kv_fail(error, KV_FOREIGN, "%s: not a file of a store", name);
    if (label.format != FORMAT || label.page_bytes != PAGE_BYTES)
        return kv_fail(error, KV_VERSION, "%s: format %u; this program knows %u", name, label.format, FORMAT);
    if (label.crc != bp_crc32c(0, &label, offsetof(struct label, crc)))
        return kv_fail(error, KV_DAMAGED, "%s: the checksum of its first page is wrong", name);
    if (label.id != id || label.space != space)
        return kv_fail(error, KV_FOREIGN, "%s: belongs to another store", name);
    return 0;
}
