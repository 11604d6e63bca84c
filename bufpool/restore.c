/* SPDX-License-Identifier: MIT */
/*
 * bp_pool_restore: from a list of extents (extents.h) back into memory.
 *
 * The list comes from a disk, and may be anything. It is read whole and checked whole before a page is read: sizes
 * against the file's own, both checksums, each number against what it can be, extents against each other. What it
 * makes us allocate is bounded by its own size and by the frames of the pool.
 *
 * What stands in it is then read by way of the ordinary miss (bpi_step, and runs of small extents by bpi_run_start), with
 * a window of reads under way and in the order of the list: hottest first, and by place within that. The session is
 * frugal meanwhile: its misses take what is free and evict nothing, so the end of free memory ends it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bufpool/crc32c.h"
#include "bufpool/extents.h"
#include "bufpool/pool.h"

#define WINDOW       128u              /* reads under way at once; half of what a channel has */
#define WINDOW_PAGES 1024u             /* and pages of them; no more than an eighth of the pool */
#define FLUSH_READS  32u               /* reads that are started together */
#define FAILURES_MAX 64u               /* reads that fail before it gives up */
#define TRIES_MAX    1000u             /* attempts at one page */
#define SLICE_NS     (5 * NS_PER_MS)   /* between looks at whether to go on */
#define AHEAD_NS     (100 * NS_PER_MS) /* how much time's worth of bytes may be read at once, when throttled */
#define BUFFER_BYTES (64u << 10)
#define EXTENTS_ROOM 1024u /* in a list beyond what the pool has frames for */

/* A read under way: `heads` extents side by side from this frame on. */
struct under_way {
    uint32_t head;
    uint32_t heads;
    uint32_t pages;
    uint8_t heat;
    bool ours;
    bp_file *file;
    uint64_t page;
};

struct restore {
    bp_session *s;
    const char *path;
    struct bp_restore_options o;
    struct bp_restore_result *result;
    /* the list */
    int fd;
    unsigned char *buffer;
    struct crc32c crc;
    uint64_t left; /* bytes of it not read yet */
    struct list_file *known;
    bp_file **file; /* the same, open here; NULL: not */
    uint32_t files;
    struct list_extent *extent;
    uint64_t extents;
    /* reading */ struct under_way window[WINDOW];
    unsigned first, count; /* of the window */
    uint32_t pages, pages_max;
    struct under_way again[2 * WINDOW]; /* runs that failed: page by page */
    unsigned again_count;
    unsigned unflushed;
    uint64_t start_ns, until_ns, asked_ns;
    uint64_t bytes_asked;
    unsigned failures;
};

/* ---- the list ---- */

static int damaged(struct restore *x, const char *what)
{
    return bpi_session_fail(x->s, -EBADMSG, "list %s: %s; nothing of it was used", x->path, what);
}

static int read_exactly(struct restore *x, unsigned char *to, size_t bytes)
{
    if (bytes > x->left)
        return damaged(x, "it is cut off");
    x->left -= bytes;
    while (bytes) {
        ssize_t n = read(x->fd, to, bytes);

        if (n > 0) {
            to += n;
            bytes -= (size_t)n;
        } else if (n == 0) {
            return damaged(x, "it is cut off");
        } else if (errno != EINTR) {
            int rc = -errno;

            return bpi_session_fail(x->s, rc, "list %s: %s", x->path, bp_strerror(rc));
        }
    }
    return 0;
}

/* Whole records of so many bytes: how many lie in the buffer now, of those that are left. Negative: an error. */
static int read_records(struct restore *x, uint64_t records, unsigned bytes)
{
    uint64_t most = BUFFER_BYTES / bytes;
    unsigned n = (unsigned)(records < most ? records : most);
    int rc = read_exactly(x, x->buffer, (size_t)n * bytes);

    bpi_crc32c_add(&x->crc, x->buffer, rc ? 0 : (size_t)n * bytes);
    return rc ? rc : (int)n;
}

/* What the header promises must be what the file's size allows, to the byte. */
static int read_header(struct restore *x, uint32_t *body)
{
    unsigned char h[LIST_HEADER_BYTES];
    int rc = read_exactly(x, h, sizeof(h));

    if (rc)
        return rc;
    if (memcmp(h, LIST_MAGIC, 8))
        return damaged(x, "it is not a list of extents");
    bpi_crc32c_begin(&x->crc);
    bpi_crc32c_add(&x->crc, h, sizeof(h) - 4);
    if (list_get(h + 60, 4) != crc32c_value(&x->crc))
        return damaged(x, "the checksum of its header does not fit");
    if (list_get(h + 8, 4) != LIST_VERSION || list_get(h + 12, 4) != BP_PAGE_SHIFT)
        return bpi_session_fail(x->s, -EPROTO, "list %s: version %u, pages of 2^%u bytes; known are version %u, 2^%u",
                                x->path, (unsigned)list_get(h + 8, 4), (unsigned)list_get(h + 12, 4), LIST_VERSION,
                                BP_PAGE_SHIFT);
    x->files = (uint32_t)list_get(h + 16, 4);
    x->extents = list_get(h + 24, 8);
    *body = (uint32_t)list_get(h + 56, 4);
    if (x->files > FRAME_FILES_MAX || x->extents > x->left / LIST_EXTENT_BYTES ||
        x->files * (uint64_t)LIST_FILE_BYTES + x->extents * LIST_EXTENT_BYTES != x->left)
        return damaged(x, "its size is not what its header says");
    return 0;
}

static int read_files(struct restore *x)
{
    uint32_t at = 0;

    x->known = calloc(x->files + 1ull, sizeof(*x->known));
    x->file = calloc(x->files + 1ull, sizeof(bp_file *));
    if (!x->known || !x->file)
        return bpi_session_fail(x->s, -ENOMEM, "list %s: memory for %u files", x->path, x->files);
    while (at < x->files) {
        int n = read_records(x, x->files - at, LIST_FILE_BYTES);

        if (n < 0)
            return n;
        for (int i = 0; i < n; i++, at++) {
            const unsigned char *r = x->buffer + (size_t)i * LIST_FILE_BYTES;
            struct list_file *f = &x->known[at];

            f->dev = list_get(r, 8);
            f->ino = list_get(r + 8, 8);
            f->size = list_get(r + 16, 8);
            f->mtime_ns = (int64_t)list_get(r + 24, 8);
            memcpy(f->name, r + 32, LIST_NAME_BYTES - 1);
            for (unsigned k = 0; f->name[k]; k++)
                if ((unsigned char)f->name[k] < ' ' || f->name[k] == 127)
                    f->name[k] = '?'; /* it is going to stand in texts */
        }
    }
    return 0;
}

static bool extent_can_be(const struct restore *x, const struct list_extent *e)
{
    return e->file < x->files && e->order <= BP_ORDER_MAX && e->heat <= LIST_HEAT_MAX && e->page < BP_PAGE_MAX &&
           !(e->page & extent_mask(e->order)) && e->page + (1ull << e->order) <= list_pages(x->known[e->file].size);
}

/* All are checked; kept are the first `keep`, the hottest: more than there are frames has no use. */
static int read_extents(struct restore *x, uint64_t keep, uint32_t body)
{
    uint64_t at = 0;

    x->extent = malloc(((size_t)keep + 1) * sizeof(*x->extent));
    if (!x->extent)
        return bpi_session_fail(x->s, -ENOMEM, "list %s: memory for %llu extents", x->path, (unsigned long long)keep);
    while (at < x->extents) {
        int n = read_records(x, x->extents - at, LIST_EXTENT_BYTES);

        if (n < 0)
            return n;
        for (int i = 0; i < n; i++, at++) {
            const unsigned char *r = x->buffer + (size_t)i * LIST_EXTENT_BYTES;
            struct list_extent e = {.page = list_get(r, 8),
                                    .file = (uint32_t)list_get(r + 8, 4),
                                    .order = r[12],
                                    .heat = r[13],
                                    .node = (uint16_t)list_get(r + 14, 2)};

            if (!extent_can_be(x, &e))
                return damaged(x, "it names pages that cannot be");
            if (at < keep)
                x->extent[at] = e;
        }
    }
    if (body != crc32c_value(&x->crc))
        return damaged(x, "its checksum does not fit");
    x->extents = keep;
    return 0;
}

static int check_overlaps(struct restore *x)
{
    qsort(x->extent, x->extents, sizeof(*x->extent), list_by_place);
    for (uint64_t i = 1; i < x->extents; i++)
        if (list_overlap(&x->extent[i - 1], &x->extent[i]))
            return damaged(x, "its extents overlap");
    qsort(x->extent, x->extents, sizeof(*x->extent), list_by_heat);
    return 0;
}

static int read_list(struct restore *x)
{
    uint64_t most = x->s->frames_total + (uint64_t)EXTENTS_ROOM;
    uint32_t body = 0;
    struct stat st;
    int rc;

    x->fd = open(x->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (x->fd < 0 || fstat(x->fd, &st)) {
        rc = -errno;
        return bpi_session_fail(x->s, rc, "list %s: %s", x->path, bp_strerror(rc));
    }
    if (!S_ISREG(st.st_mode))
        return damaged(x, "it is not a regular file");
    x->left = (uint64_t)st.st_size;
    rc = read_header(x, &body);
    if (rc)
        return rc;
    x->result->listed = x->extents;
    x->result->files = x->files;
    if (x->o.extents_max && x->o.extents_max < most)
        most = x->o.extents_max;
    bpi_crc32c_begin(&x->crc);
    rc = read_files(x);
    if (!rc)
        rc = read_extents(x, x->extents < most ? x->extents : most, body);
    if (!rc)
        rc = check_overlaps(x);
    return rc;
}

/* ---- its files ---- */

/* What the file is now, if it is open. */
static bool identify(bp_pool *pool, bp_file *file, struct list_file *now)
{
    struct stat st;
    uint64_t bytes;
    bool known;

    pthread_mutex_lock(&pool->lock); /* while we have it, the file is not closed */
    known = file->opens && !file->closing && file->io.fd >= 0 && !fstat(file->io.fd, &st) &&
            !bpi_io_file_size(&file->io, &bytes);
    pthread_mutex_unlock(&pool->lock);
    if (known)
        list_identify(now, &st, bytes);
    return known;
}

/* The listed files that this one may be. One on the same device wins over others that are alike. */
static void find_listed(struct restore *x, bp_file *file, const struct list_file *now)
{
    for (uint32_t i = 0; i < x->files; i++)
        if (list_same_file(&x->known[i], now) && (!x->file[i] || x->known[i].dev == now->dev))
            x->file[i] = file;
}

static int find_files(struct restore *x)
{
    bp_pool *pool = x->s->pool;
    const char *missing = NULL;

    for (unsigned n = 1; n <= FRAME_FILES_MAX; n++) {
        bp_file *file = atomic_load_explicit(&pool->file[n], memory_order_acquire);
        struct list_file now;

        if (!file)
            break;
        if (identify(pool, file, &now))
            find_listed(x, file, &now);
    }
    for (uint32_t i = 0; i < x->files; i++) {
        x->result->files_known += x->file[i] != NULL;
        if (!x->file[i] && !missing)
            missing = x->known[i].name;
    }
    if (!missing)
        return 0;
    bpi_session_fail(x->s, 0, "list %s: %s and %u others of its %u files are not open here, or have changed", x->path,
                     missing, x->files - x->result->files_known - 1, x->files);
    return x->result->files_known ? 0 : -ESTALE;
}

/* ---- reading ---- */

/* One extent whose read is over. 0, ABANDONED, or its error. */
static int settle_one(struct restore *x, const struct under_way *u, uint32_t head, uint64_t page)
{
    bp_session *s = x->s;
    struct frame *f = &s->frame[head];
    int rc = bpi_joined_result(s, u->file, page, head);

    if (rc)
        return rc;
    for (unsigned i = 0; i < (u->heat & FRAME_HEAT); i++)
        frame_warm(f, frame_load(f));
    x->result->restored += u->ours;
    bpi_unpin(s->pool, head);
    return 0;
}

/* The oldest read under way is over, or is given up. 0, or an error to stop with. */
static int settle_oldest(struct restore *x)
{
    bp_session *s = x->s;
    struct under_way u = x->window[x->first];
    bool again = false;
    int rc = 0;

    x->first = (x->first + 1) % WINDOW;
    x->count--;
    x->pages -= u.pages;
    bpi_step_end(s);
    bpi_read_wait(s, u.head, x->count / 4 + 1, bpi_now_ns() + s->pool->wait_ns);
    if (frame_load(&s->frame[u.head]) & FRAME_READING) {
        for (uint32_t k = 0; k < u.heads; k++)
            bpi_unpin(s->pool, u.head + k);
        return bpi_session_fail(s, -ETIMEDOUT, "read of page %llu of %s has not ended after %u ms",
                                (unsigned long long)u.page, u.file->name, s->pool->options.wait_ms);
    }
    for (uint32_t k = 0; k < u.heads; k++) {
        int one = settle_one(x, &u, u.head + k, u.page + k);

        again |= one == ABANDONED && u.heads > 1;
        if (one && one != ABANDONED) {
            x->result->failed++;
            rc = one;
        }
    }
    if (again && x->again_count < 2 * WINDOW)
        x->again[x->again_count++] = u;
    x->failures += rc != 0;
    return x->failures > FAILURES_MAX ? rc : 0;
}

static int settle_all(struct restore *x)
{
    int rc = 0;

    bpi_step_end(x->s);
    if (x->s->channel)
        x->s->channel->ops->flush(x->s->channel->io);
    x->unflushed = 0;
    while (x->count) {
        int one = settle_oldest(x);

        rc = rc ? rc : one;
    }
    return rc;
}

static void push(struct restore *x, struct under_way u)
{
    x->window[(x->first + x->count++) % WINDOW] = u;
    x->pages += u.pages;
    x->bytes_asked += u.ours ? (uint64_t)u.pages << BP_PAGE_SHIFT : 0;
}

static bool is_full(const struct restore *x)
{
    return x->count == WINDOW || x->pages >= x->pages_max;
}

/* Let the device begin, and make room. */
static int keep_going(struct restore *x)
{
    unsigned enough;
    int rc = 0;

    if (++x->unflushed >= FLUSH_READS || is_full(x)) {
        bpi_step_end(x->s);
        x->s->channel->ops->flush(x->s->channel->io);
        x->unflushed = 0;
    }
    if (!is_full(x))
        return 0;
    enough = x->count - x->count / 4; /* the rest keeps the device busy while we prepare more */
    while (!rc && (x->count > enough || is_full(x)))
        rc = settle_oldest(x);
    return rc;
}

enum { FULL = 1, STOPPED = 2 }; /* beside 0 and errors */

/* One page that is not there: begin to read it, with what comes with it. 0, FULL, or an error. *next is behind it. */
static int bring_page(struct restore *x, bp_file *file, uint64_t page, uint8_t heat, uint64_t *next)
{
    bp_session *s = x->s;

    *next = page + 1;
    for (unsigned tries = 0; tries < TRIES_MAX; tries++) {
        uint64_t misses = atomic_load_explicit(&s->count.misses, memory_order_relaxed);
        struct target t;
        int rc = bpi_step_held(s, file, page, &t);

        if (rc == STEP_PINNED) {
            bpi_unpin(s->pool, t.head);
            return 0;
        }
        if (rc == STEP_JOINED) {
            bool ours = atomic_load_explicit(&s->count.misses, memory_order_relaxed) != misses;
            uint64_t pages = 1ull << frame_order(t.seen);

            *next = (page & ~(pages - 1)) + pages;
            push(x, (struct under_way){.head = t.head,
                                       .heads = 1,
                                       .pages = (uint32_t)pages,
                                       .heat = heat,
                                       .ours = ours,
                                       .file = file,
                                       .page = page});
            return keep_going(x);
        }
        if (rc == STEP_FRAMES)
            return FULL;
        if (rc == STEP_LATCHED) /* it is there, whoever has it */
            return 0;
        if (rc == BP_EOF) /* it became shorter meanwhile */
            return 0;
        if (rc < 0 && rc != -EBUSY) {
            x->result->failed++;
            return ++x->failures > FAILURES_MAX ? rc : 0;
        }
        bpi_step_end(s);
        rc = x->count ? settle_oldest(x) : 0; /* no request is left */
        if (rc)
            return rc;
        bpi_channel_help(s->channel, s, &s->count, 1, x->count ? 0 : NS_PER_MS, NULL);
    }
    return 0;
}

/* A listed extent. 0, FULL, or an error. */
static int bring_extent(struct restore *x, const struct list_extent *e)
{
    bp_file *file = x->file[e->file];
    uint64_t end = e->page + (1ull << e->order);
    uint64_t page = e->page;
    bool there = true;
    int rc = 0;

    if (!file) {
        x->result->passed_over++;
        return 0;
    }
    if (e->node < x->s->pool->topology.node_count)
        x->s->node = e->node;
    while (!rc && page < end) {
        if (entry_is_frame(bpi_index_load(&file->index, page))) {
            page++;
            continue;
        }
        there = false;
        rc = bring_page(x, file, page, e->heat, &page);
    }
    x->result->present += there;
    return rc;
}

/*
 * As many of the listed as lie side by side, are not there, and can be read at once; else one. *run is how many were
 * dealt with. 0, FULL, or an error.
 */
static int bring_run(struct restore *x, const struct list_extent *e, uint64_t left, uint64_t *run)
{
    bp_file *file = x->file[e->file];
    struct under_way u = {.heat = e->heat, .ours = true, .file = file, .page = e->page};
    unsigned n = 0;

    *run = 1;
    while (file && n < left && n < READ_RUN_PAGES && n < x->pages_max && e[n].file == e->file && e[n].heat == e->heat &&
           e[n].node == e->node && !e[n].order && e[n].page == e->page + n &&
           !entry_is_frame(bpi_index_load(&file->index, e[n].page)))
        n++;
    if (n > 1) {
        if (e->node < x->s->pool->topology.node_count)
            x->s->node = e->node;
        u.heads = u.pages = bpi_run_start(x->s, file, e->page, n, &u.head);
    }
    if (!u.heads)
        return bring_extent(x, e);
    *run = u.heads;
    push(x, u);
    return keep_going(x);
}

/* Runs that failed, page by page: most of them are good. */
static int bring_again(struct restore *x)
{
    int rc = 0;

    while (x->again_count && !rc) {
        struct under_way u = x->again[--x->again_count];

        for (uint64_t page = u.page; page < u.page + u.pages && !rc;)
            rc = bring_page(x, u.file, page, u.heat, &page);
    }
    return rc;
}

/* Sleep with nothing under way, so that nobody waits for us. */
static int sleep_until(struct restore *x, uint64_t ns)
{
    uint64_t now = bpi_now_ns();
    uint64_t slice = ns > now ? ns - now : 0;
    struct timespec t = {.tv_nsec = (long)(slice < SLICE_NS ? slice : SLICE_NS)};
    int rc = settle_all(x);

    if (!rc && slice)
        nanosleep(&t, NULL);
    return rc;
}

/* Before an extent: 0, STOPPED, or an error. Waits where we are faster than was allowed. */
static int may_go_on(struct restore *x)
{
    for (;;) { /* ends: bytes_asked stands still while time goes by */
        uint64_t now = bpi_now_ns();
        uint64_t rate = x->o.bytes_per_second;
        double due = rate ? (double)x->bytes_asked / (double)rate * 1e9 : 0;
        int rc;

        if (x->until_ns && now >= x->until_ns)
            return STOPPED;
        if (x->o.go_on && now >= x->asked_ns + SLICE_NS) {
            x->asked_ns = now;
            if (!x->o.go_on(x->o.ctx))
                return STOPPED;
        }
        if (due <= (double)(now - x->start_ns) + (double)AHEAD_NS)
            return 0;
        rc = sleep_until(x, x->start_ns + (uint64_t)(due - (double)AHEAD_NS));
        if (rc)
            return rc;
    }
}

static int bring_all(struct restore *x)
{
    struct bp_restore_result *r = x->result;
    bp_session *s = x->s;
    unsigned node = s->node;
    bool fixed = s->node_fixed;
    int rc = 0;
    int end;

    x->start_ns = bpi_now_ns();
    x->until_ns = x->o.milliseconds_max ? x->start_ns + x->o.milliseconds_max * NS_PER_MS : 0;
    x->pages_max = frames_limit(s->pool) / 8 < WINDOW_PAGES ? frames_limit(s->pool) / 8 : WINDOW_PAGES;
    s->frugal = true;
    s->node_fixed = true; /* to where the listed pages were */
    for (uint64_t i = 0; i < x->extents && !rc;) {
        uint64_t run = 1;

        rc = may_go_on(x);
        if (!rc)
            rc = bring_again(x);
        if (!rc)
            rc = bring_run(x, &x->extent[i], x->extents - i, &run);
        i += run;
    }
    while (rc >= 0 && (x->count || x->again_count)) { /* what failed last of all, too */
        int one = settle_all(x);

        one = one ? one : bring_again(x);
        rc = one ? one : rc;
        if (rc)
            x->again_count = 0;
    }
    s->frugal = false;
    s->node = node;
    s->node_fixed = fixed;
    r->end = rc == FULL ? BP_RESTORE_FULL : rc || x->extents < r->listed ? BP_RESTORE_LIMIT : BP_RESTORE_ALL;
    end = settle_all(x);
    r->bytes = x->bytes_asked;
    return rc < 0 ? rc : end;
}

int bp_pool_restore(bp_session *s, const char *path, const struct bp_restore_options *options,
                    struct bp_restore_result *result)
{
    struct restore *x;
    int rc;

    memset(result, 0, sizeof(*result));
    if (bpi_forked(s))
        return BP_FORKED;
    if (options && options->size < sizeof(*options))
        return bpi_session_fail(s, -EINVAL, "bp_restore_options.size is %zu, not %zu", options->size, sizeof(*options));
    x = calloc(1, sizeof(*x));
    if (!x)
        return bpi_session_fail(s, -ENOMEM, "memory for a list");
    s->error[0] = 0;
    x->s = s;
    x->path = path;
    x->o = options ? *options : (struct bp_restore_options){.size = sizeof(x->o)};
    x->result = result;
    x->fd = -1;
    x->buffer = malloc(BUFFER_BYTES);
    rc = x->buffer ? read_list(x) : bpi_session_fail(s, -ENOMEM, "memory for a list");
    if (!rc)
        rc = find_files(x);
    if (!rc)
        rc = bring_all(x);
    if (x->fd >= 0)
        close(x->fd);
    free(x->extent);
    free(x->file);
    free(x->known);
    free(x->buffer);
    free(x);
    return rc;
}
