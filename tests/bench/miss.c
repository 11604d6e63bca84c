/* SPDX-License-Identifier: MIT */
/*
 * Pages that are not in memory: a file sixteen times the pool, read directly from the device, in an order that comes
 * back to a page only after all others. Against the same reads by liburing alone, as many under way as the call with
 * its pages has: that is what the pool adds to the device.
 *
 * With --file, the first --bytes of that file are read (of what it has, the largest power of two).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bare_uring.h"
#include "resident.h"

#define POOL_SHARE    16u   /* of the file is the pool */
#define PAGES_MIN     4096u /* for each thread */
#define WRITE_BYTES   (4u << 20)
#define CHECK_PAGES   256u
#define MISSES_WANTED 0.99 /* of the pool's accesses */

struct miss {
    uint64_t pages; /* a power of two */
    unsigned half;  /* half the bits of a page number */
    bp_pool *pool;
    bp_file *file;
    int fd; /* direct */
    struct bp_stats before;
};

/* A thread's place in the order of pages: threads take turns. */
struct order {
    const struct miss *miss;
    uint64_t at;
    unsigned step;
};

struct miss_thread {
    struct bare_uring *bare;
    char *buffer; /* for pread */
    /* The pool's own: were it shared, a page could come again before the pool has seen all others. */
    struct order pool_order, bare_order;
};

/*
 * The i-th page of an order without repetition until all have been: multiplying by an odd number and shifting into
 * oneself are one to one.
 */
static inline uint64_t page_at(const struct miss *m, uint64_t i)
{
    i = i * 0x9e3779b97f4a7c15u & (m->pages - 1);
    i ^= i >> m->half;
    i = i * 0xd1342543de82ef95u & (m->pages - 1);
    return i ^ i >> m->half;
}

static uint64_t next_page(void *order)
{
    struct order *o = order;
    uint64_t page = page_at(o->miss, o->at);

    o->at += o->step;
    return page;
}

static unsigned next_pages(struct order *o, uint64_t page[], uint64_t left, unsigned batch)
{
    unsigned n = left < batch ? (unsigned)left : batch;

    for (unsigned i = 0; i < n; i++)
        page[i] = next_page(o);
    return n;
}

/* ---- loops ---- */

static inline int bare_batches(struct bench_thread *t, uint64_t ops, unsigned depth)
{
    struct miss_thread *local = t->local;
    uint64_t page[BARE_DEPTH_MAX];

    while (ops) {
        unsigned n = next_pages(&local->bare_order, page, ops, depth);
        int rc = bare_read(local->bare, page, n, &t->sum);

        if (unlikely(rc))
            return rc;
        ops -= n;
    }
    return 0;
}

static inline int many(struct bench_thread *t, uint64_t ops, unsigned depth)
{
    const struct miss *m = t->fixture;
    struct miss_thread *local = t->local;
    struct bp_ref ref[BARE_DEPTH_MAX];
    uint64_t page[BARE_DEPTH_MAX];

    while (ops) {
        unsigned n = next_pages(&local->pool_order, page, ops, depth);
        int rc = bp_get_many(t->session, m->file, page, n, BP_SHARED, ref);

        if (unlikely(rc))
            return rc;
        for (unsigned i = 0; i < n; i++)
            t->sum += bench_word(ref[i].data);
        bp_put_many(ref, n);
        ops -= n;
    }
    return 0;
}

static int bare_1(struct bench_thread *t, uint64_t ops)
{
    return bare_batches(t, ops, 1);
}
static int bare_32(struct bench_thread *t, uint64_t ops)
{
    return bare_batches(t, ops, 32);
}
static int bare_128(struct bench_thread *t, uint64_t ops)
{
    return bare_batches(t, ops, 128);
}
static int many_32(struct bench_thread *t, uint64_t ops)
{
    return many(t, ops, 32);
}
static int many_128(struct bench_thread *t, uint64_t ops)
{
    return many(t, ops, 128);
}

static inline int window(struct bench_thread *t, uint64_t ops, unsigned depth)
{
    struct miss_thread *local = t->local;

    return bare_read_window(local->bare, depth, ops, next_page, &local->bare_order, &t->sum);
}

static int window_32(struct bench_thread *t, uint64_t ops)
{
    return window(t, ops, 32);
}
static int window_128(struct bench_thread *t, uint64_t ops)
{
    return window(t, ops, 128);
}

static int get(struct bench_thread *t, uint64_t ops)
{
    const struct miss *m = t->fixture;
    struct miss_thread *local = t->local;

    while (ops--) {
        struct bp_ref ref;
        int rc = bp_get(t->session, m->file, next_page(&local->pool_order), BP_SHARED, &ref);

        if (unlikely(rc))
            return rc;
        t->sum += bench_word(ref.data);
        bp_put(&ref);
    }
    return 0;
}

static int bare_pread(struct bench_thread *t, uint64_t ops)
{
    const struct miss *m = t->fixture;
    struct miss_thread *local = t->local;
    char *buffer = local->buffer;

    while (ops--) {
        off_t at = (off_t)(next_page(&local->bare_order) << BP_PAGE_SHIFT);

        if (unlikely(pread(m->fd, buffer, BP_PAGE_SIZE, at) != (ssize_t)BP_PAGE_SIZE))
            return -EIO;
        t->sum += bench_word(buffer);
    }
    return 0;
}

/* ---- the file ---- */

/* Data that no layer below can leave out or compress. */
static int write_file(const struct bench *b, int fd, uint64_t bytes)
{
    struct bench_progress progress = {.bench = b, .what = "writing the file"};
    uint64_t *buffer = malloc(WRITE_BYTES);
    uint64_t random = 1;
    int rc = buffer ? 0 : bench_error("no memory");

    for (uint64_t at = 0; at < bytes && !rc;) {
        size_t part = bytes - at < WRITE_BYTES ? (size_t)(bytes - at) : WRITE_BYTES;
        ssize_t n;

        for (size_t i = 0; i < part / sizeof(*buffer); i++)
            buffer[i] = bench_random(&random) << 32 | bench_random(&random);
        n = pwrite(fd, buffer, part, (off_t)at);
        if (n <= 0)
            rc = bench_error("writing the file: %s", n ? strerror(errno) : "nothing was written");
        at += n > 0 ? (uint64_t)n & ~(uint64_t)(BP_PAGE_SIZE - 1) : 0;
        bench_progress(&progress, at, bytes);
    }
    if (!rc && fdatasync(fd))
        rc = bench_error("writing the file: %s", strerror(errno));
    if (!rc)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    free(buffer);
    return rc;
}

static int open_path(struct miss *m, const char *path)
{
    struct bp_error error = {0};
    struct bp_file_options o = {.size = sizeof(o), .error = &error};

    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (m->fd < 0)
        return bench_error("%s: cannot be read directly: %s (choose another --dir)", path, strerror(errno));
    if (bp_file_open(m->pool, path, &o, &m->file))
        return bench_error("%s: %s", path, error.text);
    if (!bp_file_direct(m->file))
        bench_note("the pool reads %s through the page cache, liburing does not", path);
    return 0;
}

static int open_new_file(const struct bench *b, struct miss *m)
{
    char path[4096];
    int fd = bench_file_make(b, path);
    int rc;

    if (fd < 0)
        return -1;
    rc = write_file(b, fd, m->pages << BP_PAGE_SHIFT);
    if (!rc)
        rc = open_path(m, path);
    unlink(path);
    close(fd);
    return rc;
}

/* The largest power of two of pages that are wanted and there. */
static int count_pages(const struct bench *b, struct miss *m)
{
    uint64_t bytes = b->bytes;
    struct stat st;

    if (b->file) {
        if (stat(b->file, &st))
            return bench_error("%s: %s", b->file, strerror(errno));
        if (S_ISREG(st.st_mode) && (uint64_t)st.st_size < bytes)
            bytes = (uint64_t)st.st_size;
    }
    /* the pool must hold what all threads pin at once, and some */
    if (bytes >> BP_PAGE_SHIFT < (uint64_t)PAGES_MIN * b->threads)
        return bench_error("the file has to have 16 MiB for each thread");
    for (m->pages = PAGES_MIN; m->pages * 2 <= bytes >> BP_PAGE_SHIFT; m->pages *= 2) {
    }
    m->half = (unsigned)__builtin_ctzll(m->pages) / 2;
    return 0;
}

/* ---- the fixture ---- */

static int miss_open(const struct bench *b, void **fixture)
{
    struct miss *m = calloc(1, sizeof(*m));

    *fixture = m;
    if (!m)
        return bench_error("no memory");
    m->fd = -1;
    m->before.size = sizeof(m->before);
    if (count_pages(b, m) || bench_pool_open(b, (m->pages << BP_PAGE_SHIFT) / POOL_SHARE, BP_TRY, &m->pool))
        return -1;
    return b->file ? open_path(m, b->file) : open_new_file(b, m);
}

static void miss_close(void *fixture)
{
    struct miss *m = fixture;

    if (!m)
        return;
    bench_pool_close(m->pool);
    if (m->fd >= 0)
        close(m->fd);
    free(m);
}

/* Fill the pool, so that each miss has to evict. */
static int fill_pool(struct bench_thread *t)
{
    const struct miss *m = t->fixture;
    uint64_t n = t->number ? 0 : m->pages / POOL_SHARE;

    return many(t, n, BARE_DEPTH_MAX);
}

static int miss_thread_open(struct bench_thread *t)
{
    struct miss *m = t->fixture;
    struct miss_thread *local = calloc(1, sizeof(*local));
    int rc;

    t->local = local;
    if (!local)
        return -ENOMEM;
    local->pool_order = local->bare_order = (struct order){.miss = m, .at = t->number, .step = t->count};
    rc = bare_open(m->fd, &local->bare);
    if (!rc)
        rc = bp_session_open(m->pool, NULL, &t->session);
    local->buffer = bench_alloc(BP_PAGE_SIZE, true);
    if (!rc && !local->buffer)
        rc = -ENOMEM;
    if (!rc)
        rc = fill_pool(t);
    if (!rc && !t->number)
        rc = bp_pool_stats(m->pool, &m->before);
    return rc;
}

static void miss_thread_close(struct bench_thread *t)
{
    struct miss_thread *local = t->local;

    if (t->session && bp_session_close(t->session))
        bench_error("closing a session: %s", bp_session_error(t->session));
    if (!local)
        return;
    bare_close(local->bare);
    bench_free(local->buffer, BP_PAGE_SIZE);
    free(local);
}

/* What the pool has is what the file has. */
static int check_contents(const struct miss *m)
{
    char *buffer = bench_alloc(BP_PAGE_SIZE, false);
    bp_session *s = NULL;
    int rc = buffer && !bp_session_open(m->pool, NULL, &s) ? 0 : -1;

    for (uint64_t i = 0; i < CHECK_PAGES && !rc; i++) {
        uint64_t page = page_at(m, i);
        struct bp_ref ref;

        if (pread(m->fd, buffer, BP_PAGE_SIZE, (off_t)(page << BP_PAGE_SHIFT)) != (ssize_t)BP_PAGE_SIZE ||
            bp_get(s, m->file, page, BP_SHARED, &ref)) {
            rc = bench_error("page %llu cannot be read again", (unsigned long long)page);
            break;
        }
        if (memcmp(buffer, ref.data, BP_PAGE_SIZE) != 0)
            rc = bench_error("page %llu is not what the file holds", (unsigned long long)page);
        bp_put(&ref);
    }
    if (s && bp_session_close(s))
        rc = -1;
    bench_free(buffer, BP_PAGE_SIZE);
    return rc;
}

static int miss_check(void *fixture)
{
    struct miss *m = fixture;
    struct bp_stats s = {.size = sizeof(s)};
    uint64_t misses, others;

    if (bp_pool_stats(m->pool, &s))
        return -1;
    misses = s.misses - m->before.misses;
    others = s.hits - m->before.hits + s.joins - m->before.joins;
    if ((double)misses < MISSES_WANTED * (double)(misses + others))
        return bench_error("only %llu of the pool's %llu accesses missed", (unsigned long long)misses,
                           (unsigned long long)(misses + others));
    return check_contents(m);
}

static const struct bench_fixture fixture = {.open = miss_open,
                                             .close = miss_close,
                                             .thread_open = miss_thread_open,
                                             .thread_close = miss_thread_close,
                                             .check = miss_check};

static const struct bench_variant variants[] = {
    {.name = "uring-1", .loop = bare_1},
    {.name = "get", .loop = get},
    {.name = "pread", .loop = bare_pread},
    {.name = "uring-32", .loop = bare_32, .baseline = "uring-32"},
    {.name = "many-32", .loop = many_32, .baseline = "uring-32"},
    {.name = "uring-window-32", .loop = window_32, .baseline = "uring-32"},
    {.name = "uring-128", .loop = bare_128, .baseline = "uring-128"},
    {.name = "many-128", .loop = many_128, .baseline = "uring-128"},
    {.name = "uring-window-128", .loop = window_128, .baseline = "uring-128"},
};

const struct bench_case bench_miss = {.name = "miss",
                                      .text = "pages that are not in memory, read directly",
                                      .fixture = &fixture,
                                      .variant = variants,
                                      .variant_count = BENCH_COUNT(variants),
                                      .ops = 8192,
                                      .bytes = 1u << 30,
                                      .clock = BENCH_WALL,
                                      .rate = BENCH_IOPS};
