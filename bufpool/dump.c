/* SPDX-License-Identifier: MIT */
/*
 * bp_pool_dump: which extents are in memory, into a file (extents.h), while the pool is in use.
 *
 * One pass over the descriptors, without stopping anybody: what moves meanwhile may be missed or met twice, and the
 * second is dropped. The list is written beside its place, made durable, and renamed: after a crash there is the old
 * one or the new one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bufpool/crc32c.h"
#include "bufpool/extents.h"
#include "bufpool/pool.h"

#define NO_FILE      UINT32_MAX
#define BUFFER_BYTES (64u << 10)
#define PATH_BYTES   4096u

struct dump {
    bp_pool *pool;
    uint32_t number[FRAME_FILES_MAX + 1]; /* of a file here, by its number in the pool; NO_FILE */
    struct list_file *file;
    bp_file **open; /* the same, as the pool has them */
    uint32_t files;
    struct list_extent *extent;
    uint64_t extents;
    /* writing */
    int fd;
    int error;
    unsigned char *buffer;
    size_t used;
    struct crc32c crc;
};

/* ---- what there is ---- */

/* False: it is not open, or has no identity. */
static bool identify(bp_pool *pool, bp_file *file, struct list_file *out)
{
    struct stat st;
    uint64_t bytes;
    bool known;

    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&pool->lock); /* while we have it, the file is not closed */
    known = file->opens && !file->closing && file->io.fd >= 0 && !fstat(file->io.fd, &st) &&
            !bpi_io_file_size(&file->io, &bytes);
    if (known) {
        list_identify(out, &st, bytes);
        memcpy(out->name, file->name, sizeof(out->name));
    }
    pthread_mutex_unlock(&pool->lock);
    return known;
}

static int list_files(struct dump *d)
{
    unsigned limit;
    bp_file *file;

    pthread_mutex_lock(&d->pool->lock);
    limit = d->pool->file_count + 64; /* some may be opened meanwhile */
    pthread_mutex_unlock(&d->pool->lock);
    d->file = calloc(limit, sizeof(*d->file));
    d->open = calloc(limit, sizeof(bp_file *));
    if (!d->file || !d->open)
        return -ENOMEM;
    for (unsigned i = 0; i <= FRAME_FILES_MAX; i++)
        d->number[i] = NO_FILE;
    for (unsigned i = 1; i <= FRAME_FILES_MAX && d->files < limit; i++) {
        file = atomic_load_explicit(&d->pool->file[i], memory_order_acquire);
        if (!file)
            break;
        if (!identify(d->pool, file, &d->file[d->files]))
            continue;
        d->number[i] = d->files;
        d->open[d->files++] = file;
    }
    return 0;
}

/* What a bound frame holds, if it is of a file that we know and lies inside it. */
static void list_extent(struct dump *d, uint32_t head, uint64_t seen)
{
    uint64_t id = frame_id(&d->pool->frame[head]);
    uint32_t file = d->number[id >> FRAME_ID_FILE_SHIFT];
    uint64_t page = id & FRAME_ID_PAGE;
    unsigned order = frame_order(seen);

    /* acquire fence and the word again: the identity is that of the extent we saw (R1) */
    atomic_thread_fence(memory_order_acquire);
    if (file == NO_FILE || !frame_same_version(seen, frame_load(&d->pool->frame[head])) ||
        page + (1ull << order) > list_pages(d->file[file].size))
        return;
    d->extent[d->extents++] = (struct list_extent){.page = page,
                                                   .file = file,
                                                   .order = (uint8_t)order,
                                                   .heat = (uint8_t)(seen & FRAME_HEAT),
                                                   .node = (uint16_t)bpi_frames_node(d->pool->frames, head)};
}

static int list_extents(struct dump *d)
{
    bp_pool *pool = d->pool;
    uint32_t high = bpi_frames_high(pool->frames);

    d->extent = malloc(((size_t)high + 1) * sizeof(*d->extent)); /* touched as far as it is needed */
    if (!d->extent)
        return -ENOMEM;
    for (uint32_t f = 0; f < high;) {
        uint64_t seen = frame_load(&pool->frame[f]);
        uint32_t size = frame_is_free(seen) ? 1 : 1u << frame_order(seen);

        if ((seen & FRAME_BOUND) && !(seen & (FRAME_READING | FRAME_FAILED)))
            list_extent(d, f, seen);
        f += size - (f & (size - 1));
    }
    return 0;
}

/* A file that was closed meanwhile may have left its number to another one: then none of its extents are sure. */
static void drop_closed(struct dump *d)
{
    uint64_t kept = 0;

    for (uint32_t i = 0; i < d->files; i++) {
        struct list_file now;

        if (!identify(d->pool, d->open[i], &now) || now.dev != d->file[i].dev || now.ino != d->file[i].ino)
            d->open[i] = NULL;
    }
    for (uint64_t i = 0; i < d->extents; i++)
        if (d->open[d->extent[i].file])
            d->extent[kept++] = d->extent[i];
    d->extents = kept;
}

/* In the list's order, without what was met twice, and the hottest `most` of them. */
static void put_in_order(struct dump *d, uint64_t most)
{
    uint64_t kept = 0;

    qsort(d->extent, d->extents, sizeof(*d->extent), list_by_place);
    for (uint64_t i = 0; i < d->extents; i++)
        if (!kept || !list_overlap(&d->extent[kept - 1], &d->extent[i]))
            d->extent[kept++] = d->extent[i];
    qsort(d->extent, kept, sizeof(*d->extent), list_by_heat);
    d->extents = most && most < kept ? most : kept;
}

/* ---- writing ---- */

static void write_all(struct dump *d, const unsigned char *from, size_t bytes, off_t at)
{
    while (bytes && !d->error) {
        ssize_t n = at < 0 ? write(d->fd, from, bytes) : pwrite(d->fd, from, bytes, at);

        if (n > 0) {
            from += n;
            bytes -= (size_t)n;
            at += at < 0 ? 0 : n;
        } else if (n == 0 || errno != EINTR) {
            d->error = n ? -errno : -EIO;
        }
    }
}

static void write_flush(struct dump *d)
{
    bpi_crc32c_add(&d->crc, d->buffer, d->used);
    write_all(d, d->buffer, d->used, -1);
    d->used = 0;
}

/* Room for so many bytes, to be filled in. */
static unsigned char *write_room(struct dump *d, size_t bytes)
{
    unsigned char *at;

    if (d->used + bytes > BUFFER_BYTES)
        write_flush(d);
    at = d->buffer + d->used;
    memset(at, 0, bytes);
    d->used += bytes;
    return at;
}

static void write_header(struct dump *d)
{
    unsigned char h[LIST_HEADER_BYTES] = {0};
    uint32_t body = crc32c_value(&d->crc);

    memcpy(h, LIST_MAGIC, 8);
    list_put(h + 8, LIST_VERSION, 4);
    list_put(h + 12, BP_PAGE_SHIFT, 4);
    list_put(h + 16, d->files, 4);
    list_put(h + 24, d->extents, 8);
    list_put(h + 56, body, 4);
    bpi_crc32c_begin(&d->crc);
    bpi_crc32c_add(&d->crc, h, LIST_HEADER_BYTES - 4);
    list_put(h + 60, crc32c_value(&d->crc), 4);
    write_all(d, h, sizeof(h), 0);
}

/* The header last, when it is known what it has to say. */
static void write_list(struct dump *d)
{
    unsigned char none[LIST_HEADER_BYTES] = {0};

    write_all(d, none, sizeof(none), -1);
    bpi_crc32c_begin(&d->crc);
    for (uint32_t i = 0; i < d->files; i++) {
        const struct list_file *f = &d->file[i];
        unsigned char *at = write_room(d, LIST_FILE_BYTES);

        list_put(at, f->dev, 8);
        list_put(at + 8, f->ino, 8);
        list_put(at + 16, f->size, 8);
        list_put(at + 24, (uint64_t)f->mtime_ns, 8);
        memcpy(at + 32, f->name, LIST_NAME_BYTES - 1);
    }
    for (uint64_t i = 0; i < d->extents; i++) {
        const struct list_extent *e = &d->extent[i];
        unsigned char *at = write_room(d, LIST_EXTENT_BYTES);

        list_put(at, e->page, 8);
        list_put(at + 8, e->file, 4);
        list_put(at + 12, e->order, 1);
        list_put(at + 13, e->heat, 1);
        list_put(at + 14, e->node, 2);
    }
    write_flush(d);
    write_header(d);
}

/* ---- the file ---- */

/*
 * One at a time writes beside a place: whoever has locked the file that bears the name. -EBUSY: somebody else has. What
 * a crash left there is used again.
 */
static int open_beside(const char *beside)
{
    int fd = open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat mine, there;
    int rc = 0;

    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB))
        rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
    else if (fstat(fd, &mine) || lstat(beside, &there) || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev)
        rc = -EBUSY; /* renamed between our opening and our locking it */
    else if (!S_ISREG(mine.st_mode))
        rc = -EEXIST;
    else if (ftruncate(fd, 0))
        rc = -errno;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* The directory's entry is durable as well. */
static int sync_directory(const char *path)
{
    char dir[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    int rc = 0;
    int fd;

    if (!slash)
        snprintf(dir, sizeof(dir), ".");
    else
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fsync(fd) && errno != EINVAL && errno != EROFS) /* file systems that cannot do it for directories */
        rc = -errno;
    close(fd);
    return rc;
}

static int write_file(struct dump *d, const char *path)
{
    char beside[PATH_BYTES];
    int rc;

    if (snprintf(beside, sizeof(beside), "%s.new", path) >= (int)sizeof(beside))
        return -ENAMETOOLONG;
    d->fd = open_beside(beside);
    if (d->fd < 0)
        return d->fd;
    write_list(d);
    rc = d->error;
    if (!rc && fsync(d->fd))
        rc = -errno;
    SYNC_POINT("dump:written");
    if (!rc && rename(beside, path))
        rc = -errno;
    if (rc)
        unlink(beside);
    else
        rc = sync_directory(path);
    close(d->fd);
    return rc;
}

int bp_pool_dump(bp_pool *pool, const char *path, const struct bp_dump_options *options, uint64_t *extents)
{
    struct bp_error *error = options ? options->error : NULL;
    struct dump *d;
    int rc;

    if (bpi_pool_forked(pool))
        return BP_FORKED;
    if (options && options->size < sizeof(*options)) {
        bpi_error_set(error, -EINVAL, "bp_dump_options.size is %zu, not %zu", options->size, sizeof(*options));
        return -EINVAL;
    }
    d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->pool = pool;
    d->buffer = malloc(BUFFER_BYTES);
    rc = d->buffer ? list_files(d) : -ENOMEM;
    if (!rc)
        rc = list_extents(d);
    if (!rc) {
        drop_closed(d);
        put_in_order(d, options ? options->extents_max : 0);
        rc = write_file(d, path);
    }
    if (rc)
        bpi_error_set(error, rc, "list of extents to %s: %s", path, bp_strerror(rc));
    else if (extents)
        *extents = d->extents;
    free(d->extent);
    free(d->open);
    free(d->file);
    free(d->buffer);
    free(d);
    return rc;
}
