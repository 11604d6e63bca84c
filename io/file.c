/* SPDX-License-Identifier: MIT */
/*
 * Files: opening for reading or for both, with direct I/O where it works.
 *
 * What kind of thing a path is gets asked before it is opened, since opening alone has effects: it blocks at a pipe
 * (and lets the writer go on), rewinds a tape, takes a terminal. It is asked again of the descriptor, which is
 * opened without blocking in case the thing was replaced in between.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"

#define EINTR_MAX 100

__attribute__((format(printf, 3, 4))) static void say(char *why, size_t size, const char *format, ...)
{
    va_list args;

    if (!size)
        return;
    va_start(args, format);
    vsnprintf(why, size, format, args); /* cut off where it does not fit */
    va_end(args);
}

static int say_errno(char *why, size_t size, const char *what, int error, const char *path)
{
    char text[80];

    say(why, size, "%s: %s: %s", what, strerror_r(error, text, sizeof(text)), path);
    return -error;
}

/* 0 for what has pages, else a negative errno and why. */
static int check_kind(mode_t mode, const char *path, char *why, size_t size)
{
    const char *kind = "something unknown";

    if (S_ISREG(mode) || S_ISBLK(mode))
        return 0;
    if (S_ISDIR(mode))
        kind = "a directory";
    else if (S_ISFIFO(mode))
        kind = "a pipe";
    else if (S_ISSOCK(mode))
        kind = "a socket";
    else if (S_ISCHR(mode))
        kind = "a character device";
    say(why, size, "neither a regular file nor a block device but %s: %s", kind, path);
    return S_ISDIR(mode) ? -EISDIR : -EINVAL;
}

/* access: O_RDONLY, O_RDWR, or O_RDWR | O_CREAT */
static int open_as(const char *path, int access)
{
    int fd;

    for (unsigned i = 0; i < EINTR_MAX; i++) {
        fd = open(path, access | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
        if (fd >= 0 || errno != EINTR)
            break;
    }
    return fd;
}

/* A file that was made is there after a crash only if its directory says so. 0 or a negative errno. */
static int sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int rc = 0;
    int fd;

    if (!name)
        return -ENOMEM;
    fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        rc = errno == EINVAL ? 0 : -errno; /* EINVAL: a file system that has no such thing */
    if (fd >= 0)
        close(fd);
    free(name);
    return rc;
}

/* Unit of direct I/O by statx: 0 if it says that there is none, UINT32_MAX if it does not say. */
static uint32_t align_by_statx(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx st;

    memset(&st, 0, sizeof(st));
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN)) {
        if (!st.stx_dio_mem_align || !st.stx_dio_offset_align)
            return 0;
        return st.stx_dio_mem_align > st.stx_dio_offset_align ? st.stx_dio_mem_align : st.stx_dio_offset_align;
    }
#else
    (void)fd;
#endif
    return UINT32_MAX;
}

/* Kernels before 6.1 and some file systems do not say: read and see. The unit it works with is all that is learnt. */
static uint32_t align_by_trial(int fd)
{
    void *page = aligned_alloc(IO_ALIGN_MAX, IO_ALIGN_MAX);
    ssize_t n = -1;

    if (!page)
        return 0;
    for (unsigned i = 0; i < EINTR_MAX; i++) {
        n = pread(fd, page, IO_ALIGN_MAX, 0);
        if (n >= 0 || errno != EINTR)
            break;
    }
    free(page);
    /* an error other than EINVAL is the device's and says nothing about the unit; the reader will meet it */
    return n >= 0 || errno != EINVAL ? IO_ALIGN_MAX : 0;
}

/* Switch direct I/O on. 0 or a negative errno, and why. */
static int direct_on(struct io_file *file, const char *path, char *why, size_t size)
{
    int flags = fcntl(file->fd, F_GETFL);
    uint32_t align;

    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT) < 0)
        return say_errno(why, size, "the file system refuses direct I/O", errno, path);
    align = align_by_statx(file->fd);
    if (align == UINT32_MAX)
        align = align_by_trial(file->fd);
    if (align && align <= IO_ALIGN_MAX && !(align & (align - 1))) {
        file->direct = true;
        file->align = align;
        return 0;
    }
    fcntl(file->fd, F_SETFL, flags);
    if (align)
        say(why, size, "direct I/O works in units of %u bytes only, %u is the most: %s", align, IO_ALIGN_MAX, path);
    else
        say(why, size, "the file system does not support direct I/O on this file: %s", path);
    return -EOPNOTSUPP;
}

/* Only for opening: some file systems take it as a wish that a read answer EAGAIN. */
static int blocking_on(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? -errno : 0;
}

static int open_file(struct io_file *file, const char *path, int access, enum io_direct direct, char *why, size_t size)
{
    bool make = false;
    struct stat st;
    int rc = 0;

    *file = (struct io_file){.fd = -1, .align = 1};
    say(why, size, "%s", "");
    if (stat(path, &st) == 0)
        rc = check_kind(st.st_mode, path, why, size);
    else if (errno == ENOENT && access & O_CREAT)
        make = true;
    else
        return say_errno(why, size, "cannot be opened", errno, path);
    if (rc)
        return rc;
    file->fd = open_as(path, access);
    if (file->fd < 0)
        return say_errno(why, size, "cannot be opened", errno, path);
    if (fstat(file->fd, &st) < 0) {
        rc = say_errno(why, size, "cannot be examined", errno, path);
        goto out;
    }
    rc = check_kind(st.st_mode, path, why, size);
    if (rc)
        goto out;
    rc = blocking_on(file->fd);
    if (rc) {
        say_errno(why, size, "cannot be set to blocking", -rc, path);
        goto out;
    }
    rc = make ? sync_directory(path) : 0;
    if (rc) {
        say_errno(why, size, "was made, but its directory cannot be synced", -rc, path);
        goto out;
    }
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    if (direct != IO_DIRECT_OFF)
        rc = direct_on(file, path, why, size);
    if (rc)
        rc = direct == IO_DIRECT_TRY ? 0 : -EOPNOTSUPP;
out:
    if (rc)
        bpi_io_file_close(file);
    return rc;
}

int bpi_io_file_open(struct io_file *file, const char *path, enum io_direct direct, char *why, size_t size)
{
    return open_file(file, path, O_RDONLY, direct, why, size);
}

int bpi_io_file_open_write(struct io_file *file, const char *path, bool create, enum io_direct direct, char *why,
                           size_t size)
{
    return open_file(file, path, create ? O_RDWR | O_CREAT : O_RDWR, direct, why, size);
}

void bpi_io_file_null(struct io_file *file, uint64_t bytes, uint64_t number)
{
    *file = (struct io_file){.fd = -1, .align = 1, .dev = UINT64_MAX, .ino = number, .null_bytes = bytes};
}

void bpi_io_file_close(struct io_file *file)
{
    if (file->fd >= 0)
        close(file->fd); /* what was written was synced, or given up, before: there is nothing to be told */
    file->fd = -1;
}

int bpi_io_file_size(const struct io_file *file, uint64_t *bytes)
{
    struct stat st;

    if (file->null_bytes) {
        *bytes = file->null_bytes;
        return 0;
    }
    if (fstat(file->fd, &st) < 0)
        return -errno;
    if (S_ISBLK(st.st_mode))
        return ioctl(file->fd, BLKGETSIZE64, bytes) < 0 ? -errno : 0;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

int bpi_io_file_truncate(const struct io_file *file, uint64_t bytes)
{
    for (unsigned i = 0; i < EINTR_MAX; i++) {
        if (ftruncate(file->fd, (off_t)bytes) == 0)
            return 0;
        if (errno != EINTR)
            break;
    }
    return -errno;
}
