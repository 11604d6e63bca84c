/* SPDX-License-Identifier: MIT */
/*
 * Slabs: from address space to memory.
 *
 * The reserved range must never have a hole, not even for a moment: another thread of the host could map
 * something into it, and then a frame would be somebody else's memory. So
 * - anonymous memory is made of the reservation itself, by mprotect;
 * - hugetlb is mapped elsewhere first, where it may fail, shown to be real by populating a piece of it, and then moved
 * over the reservation by mremap, which replaces in one step. Kernels before 5.16 cannot move hugetlb and notice it
 * only after they have taken away the target, so the first move goes to a place that nobody needs.
 *
 * hugetlb is mapped with reservation: mmap fails then if the pages are not there. That is not enough (a cgroup or a
 * node can still refuse the page later, which a plain touch would turn into SIGBUS), hence MADV_POPULATE_WRITE
 * throughout.
 */
#include "numa/slab.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

#define PAGE_BYTES      4096u
#define POOL_BYTES_MAX  (1ull << 42) /* frame numbers have 30 bits */
#define SLABS_MAX       16384u       /* one ring registers no more buffers; keeps the number of mappings low, too */
#define SLAB_SMALL_POOL (512ull << 20)
#define SLAB_BYTES_BIG  ((size_t)32 << 20)
#define GIGANTIC        ((size_t)1 << 30) /* the other size of hugetlb pages; also the largest buffer of a ring */
#define GIGANTIC_POOL   (32ull << 30)     /* from here on a slab of that size is a small part */
#define RETRIES_MAX     16u               /* of a populate that was interrupted */

static const int MAP_RESERVE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/* Whole huge pages in the first `bytes` of something that starts on a huge page. */
static size_t whole_pieces(size_t bytes)
{
    return bytes & ~(size_t)(SLAB_PIECE - 1);
}

static char *slab_at(const struct slabs *slabs, unsigned slab)
{
    return slabs->base + slab * slabs->slab_bytes;
}

/* The two sizes of hugetlb pages. */
static const struct page_size {
    size_t bytes;
    int flag;
    const char *name;
} page_size[] = {{SLAB_PIECE, 21 << MAP_HUGE_SHIFT, "2 MiB"}, {GIGANTIC, 30 << MAP_HUGE_SHIFT, "1 GiB"}};
enum { PAGES_2M, PAGES_1G };

/* Whether the system has hugetlb pages of 1 GiB to give now. */
static bool has_gigantic(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "re");

    if (!file)
        return false;
    bool some = fscanf(file, "%lu", &pages) == 1 && pages;
    fclose(file);
    return some;
}

/* ---- address space ---- */

size_t bpi_slab_bytes_for(uint64_t pool_bytes)
{
    if (pool_bytes < SLAB_SMALL_POOL)
        return SLAB_PIECE;
    size_t bytes = SLAB_BYTES_BIG;
    while (bytes < POOL_BYTES_MAX / SLABS_MAX && bytes * (uint64_t)SLABS_MAX < pool_bytes)
        bytes *= 2;
    return bytes;
}

int bpi_slabs_open(struct slabs *slabs, uint64_t bytes, enum slab_huge huge)
{
    memset(slabs, 0, sizeof(*slabs));
    if (!bytes || bytes % PAGE_BYTES || bytes > POOL_BYTES_MAX)
        return -EINVAL;

    slabs->huge = huge;
    slabs->slab_bytes = bpi_slab_bytes_for(bytes);
    if (huge != SLAB_HUGE_OFF && bytes >= GIGANTIC_POOL && has_gigantic())
        slabs->slab_bytes = GIGANTIC;
    slabs->slab_count = (unsigned)((bytes + slabs->slab_bytes - 1) / slabs->slab_bytes);
    slabs->reserved = ((size_t)slabs->slab_count + 1) * slabs->slab_bytes; /* one more to align within */
    if (bytes < SLAB_PIECE)
        slabs->reserved = slabs->slab_bytes; /* nothing to align for */
    slabs->slab = calloc(slabs->slab_count, sizeof(*slabs->slab));
    if (!slabs->slab)
        return -ENOMEM;

    int err = 0;
    void *map = mmap(NULL, slabs->reserved, PROT_NONE, MAP_RESERVE, -1, 0);
    if (map == MAP_FAILED) {
        err = -ENOMEM;
        goto out;
    }
    slabs->map = map;
    size_t past = bytes < SLAB_PIECE ? 0 : (uintptr_t)map & (slabs->slab_bytes - 1);
    slabs->base = slabs->map + (past ? slabs->slab_bytes - past : 0);
    if (madvise(slabs->map, slabs->reserved, MADV_DONTFORK)) {
        err = -errno;
        goto out;
    }
    for (unsigned i = 0; i < slabs->slab_count; i++) {
        uint64_t left = bytes - (uint64_t)i * slabs->slab_bytes;
        slabs->slab[i].bytes = left < slabs->slab_bytes ? (size_t)left : slabs->slab_bytes;
    }
    err = -pthread_mutex_init(&slabs->lock, NULL);
out:
    if (err) {
        if (slabs->map)
            munmap(slabs->map, slabs->reserved);
        free(slabs->slab);
        memset(slabs, 0, sizeof(*slabs));
    }
    return err;
}

void bpi_slabs_close(struct slabs *slabs)
{
    if (!slabs->map)
        return;
    munmap(slabs->map, slabs->reserved);
    free(slabs->slab);
    pthread_mutex_destroy(&slabs->lock);
    memset(slabs, 0, sizeof(*slabs));
}

/* ---- populating ---- */

/* For kernels before 5.14. Not for hugetlb. Fresh memory holds zeros, so a zero changes nothing. */
static void touch(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += PAGE_BYTES)
        atomic_store_explicit((_Atomic char *)(at + i), 0, memory_order_relaxed);
}

/* 0, or the negative errno of MADV_POPULATE_WRITE; -EINVAL only where the kernel does not know it. */
static int populate_range(char *at, size_t bytes)
{
    int err = 0;

    for (unsigned retry = 0; retry <= RETRIES_MAX; retry++) {
        err = madvise(at, bytes, MADV_POPULATE_WRITE) ? -errno : 0;
        if (err != -EAGAIN && err != -EINTR)
            break;
        sched_yield();
    }
    return err;
}

/* ---- backing: hugetlb ---- */

/* Why this backing was not to be had. */
__attribute__((format(printf, 3, 4))) static void say_why(struct slabs *slabs, enum slab_backing what,
                                                          const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(slabs->reason[what], sizeof(slabs->reason[what]), format, args);
    va_end(args);
    memcpy(slabs->huge_reason, slabs->reason[what], sizeof(slabs->huge_reason));
}

static const char *errno_name(int err)
{
    const char *name = strerrorname_np(err < 0 ? -err : err);

    return name ? name : "unknown error";
}

/* Placement is a wish: where it is refused (a container's seccomp filter, say) the memory works all the same. */
static void bind_to(struct slabs *slabs, void *at, size_t bytes, unsigned node)
{
    int err = bpi_topology_bind(slabs->topology, at, bytes, node);

    if (err)
        snprintf(slabs->bind_reason, sizeof(slabs->bind_reason), "binding memory to NUMA node %d was refused: %s",
                 slabs->topology->os_node[node], errno_name(err));
}

/*
 * Move hugetlb for the first time, to a place where nothing is lost if the kernel cannot. Returns where it is now, or
 * NULL: not moved (then the target is left alone: it may be a hole that somebody else has used already).
 */
static char *move_to_free_place(char *from, size_t bytes)
{
    size_t room = bytes + SLAB_PIECE;
    char *map = mmap(NULL, room, PROT_NONE, MAP_RESERVE, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    size_t past = (uintptr_t)map & (SLAB_PIECE - 1);
    char *to = map + (past ? SLAB_PIECE - past : 0);
    char *end = map + room;
    char *moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (to > map)
        munmap(map, (size_t)(to - map));
    if (to + bytes < end)
        munmap(to + bytes, (size_t)(end - to) - bytes);
    return moved == MAP_FAILED ? NULL : moved;
}

/*
 * Address space again, in one step: zeros that can be read (nothing is charged for those) and not written. A fork must
 * be forbidden anew.
 */
static int map_reservation(char *at, size_t bytes)
{
    if (mmap(at, bytes, PROT_READ, MAP_RESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return -errno;
    madvise(at, bytes, MADV_NOHUGEPAGE); /* who reads needs no more than the page of zeros */
    return 0;
}

/* Put [from, from+bytes) where the reservation is, in one step. */
static int move_over_reservation(struct slabs *slabs, char **from, char *at, size_t bytes)
{
    if (!slabs->hugetlb_movable) {
        char *moved = move_to_free_place(*from, bytes);
        if (!moved)
            return -EOPNOTSUPP;
        *from = moved;
        slabs->hugetlb_movable = true;
    }
    if (mremap(*from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
        return 0;
    int err = -errno;
    /* EEXIST if the reservation is still there, as it should be */
    mmap(at, bytes, PROT_READ, MAP_RESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    madvise(at, bytes, MADV_DONTFORK);
    return err;
}

/* Where pages of a node were asked for and another one's came: a mapping of the wrong node is not worth having. */
static bool is_elsewhere(const struct slabs *slabs, const char *at, unsigned node)
{
    int found = bpi_topology_where(slabs->topology, at);

    return found >= 0 && found != (int)node;
}

/*
 * Whole pages of this size at `at` from the hugetlb pool, the first `trial` bytes of them populated. Says why not, and
 * what is not worth asking again.
 */
static bool place_hugetlb(struct slabs *slabs, char *at, size_t bytes, size_t trial, unsigned node, unsigned kind)
{
    const struct page_size *size = &page_size[kind];
    char *map =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size->flag, -1, 0);

    if (map == MAP_FAILED) {
        if (errno == ENOMEM)
            say_why(slabs, SLAB_HUGETLB, "no hugetlb pages of %s are free (vm.nr_hugepages)", size->name);
        else
            say_why(slabs, SLAB_HUGETLB, "hugetlb pages of %s are not to be had: %s", size->name, errno_name(errno));
        slabs->hugetlb_dry[kind] = UINT64_MAX;
        return false;
    }
    bind_to(slabs, map, bytes, node);
    int err = madvise(map, bytes, MADV_DONTFORK) ? -errno : populate_range(map, trial);
    if (err) {
        say_why(slabs, SLAB_HUGETLB, "hugetlb pages were promised and then refused (limit of a node or cgroup?): %s",
                errno_name(err));
    } else if (is_elsewhere(slabs, map, node)) {
        say_why(slabs, SLAB_HUGETLB, "no hugetlb pages of %s are free on NUMA node %d", size->name,
                slabs->topology->os_node[node]);
        err = -ENOMEM;
    } else {
        err = move_over_reservation(slabs, &map, at, bytes);
        if (err)
            say_why(slabs, SLAB_HUGETLB, "hugetlb pages cannot be moved into place by this kernel: %s",
                    errno_name(err));
    }
    if (err) {
        munmap(map, bytes);
        slabs->hugetlb_dry[kind] |= 1ull << node;
    }
    return !err;
}

/* The largest pages that fit and are there: how much of it is populated, 0: none. A page of 1 GiB is the whole slab. */
static size_t try_hugetlb(struct slabs *slabs, unsigned index, size_t whole, unsigned node)
{
    char *at = slab_at(slabs, index);
    size_t trial = slabs->slab[index].lived ? whole : SLAB_PIECE;
    uint64_t bit = 1ull << node;

    if (slabs->huge == SLAB_HUGE_OFF || slabs->hugetlb_off)
        return 0;
    if (whole == GIGANTIC && !(slabs->hugetlb_dry[PAGES_1G] & bit) &&
        place_hugetlb(slabs, at, whole, whole, node, PAGES_1G))
        return whole;
    if (!(slabs->hugetlb_dry[PAGES_2M] & bit) && place_hugetlb(slabs, at, whole, trial, node, PAGES_2M))
        return trial;
    return 0;
}

/* ---- backing: transparent huge pages, small pages ---- */

/* The word in brackets of one of the kernel's choice files is `word`. */
static bool chosen(const char *path, const char *word)
{
    char text[128] = "";
    char bracketed[32];
    FILE *file = fopen(path, "re");

    if (!file)
        return false;
    snprintf(bracketed, sizeof(bracketed), "[%s]", word);
    bool found = fgets(text, sizeof(text), file) && strstr(text, bracketed);
    fclose(file);
    return found;
}

/* Whether advice would be followed. madvise itself says yes in all these cases. Says why not. */
static bool thp_allowed(struct slabs *slabs)
{
    static const char all[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    static const char own[] = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    int disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);

    if (disabled > 0 && !(disabled & 2)) { /* 2: disabled except where advised */
        say_why(slabs, SLAB_THP, "transparent huge pages are switched off for this process (prctl)");
        return false;
    }
    bool own_decides = chosen(own, "always") || chosen(own, "madvise");
    if (chosen(own, "never") || (!own_decides && chosen(all, "never"))) {
        say_why(slabs, SLAB_THP, "transparent huge pages are switched off (%s)", all);
        return false;
    }
    return true;
}

/* Whole pieces of the reservation become memory. The backing in *backing, or a negative errno. */
static int place_anonymous(struct slabs *slabs, char *at, size_t bytes, uint8_t *backing)
{
    bool want = slabs->huge != SLAB_HUGE_OFF;
    bool thp = want && thp_allowed(slabs);

    if (slabs->huge == SLAB_HUGE_ON && !thp)
        return -ENOTSUP;
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE))
        return -errno;
    if (!want)
        madvise(at, bytes, MADV_NOHUGEPAGE); /* fails only where there are none anyway */
    if (thp && madvise(at, bytes, MADV_HUGEPAGE)) {
        say_why(slabs, SLAB_THP, "transparent huge pages were refused: %s", errno_name(errno));
        thp = false;
        if (slabs->huge == SLAB_HUGE_ON)
            return -ENOTSUP;
    }
    *backing = thp ? SLAB_THP : SLAB_SMALL;
    return 0;
}

/* What is less than a huge page at the end of the pool: never more memory than belongs to the pool. */
static int place_tail(struct slabs *slabs, char *at, size_t bytes, unsigned node)
{
    if (!bytes)
        return 0;
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE))
        return -errno;
    madvise(at, bytes, MADV_NOHUGEPAGE); /* fails only where there are none anyway */
    bind_to(slabs, at, bytes, node);
    return 0;
}

/* ---- placing ---- */

/* Where is what was just populated? false: on another node than the slab's, which is not wanted; it is gone again. */
static bool is_welcome(const struct slabs *slabs, struct slab *slab, char *at, size_t bytes)
{
    slab->found = bpi_topology_where(slabs->topology, at);
    if (!slabs->bound || slab->found < 0 || slab->found == (int)slab_node(slab))
        return true;
    madvise(at, bytes, MADV_DONTNEED); /* refused for hugetlb before Linux 5.18: then it is there the next time */
    return false;
}

static int place_locked(struct slabs *slabs, unsigned index, unsigned node, size_t most)
{
    struct slab *slab = &slabs->slab[index];
    char *at = slab_at(slabs, index);
    size_t whole = whole_pieces(slab->bytes);
    size_t populated = 0;
    uint8_t backing = SLAB_SMALL;

    if (!whole && index == 0 && slabs->huge != SLAB_HUGE_OFF) {
        say_why(slabs, SLAB_THP, "the pool is smaller than a huge page (2 MiB)");
        if (slabs->huge == SLAB_HUGE_ON)
            return -ENOTSUP;
    }
    if (slab->lived && madvise(at, slab->bytes, MADV_DONTFORK))
        return -errno;
    int err = place_tail(slabs, at + whole, slab->bytes - whole, node);
    if (err)
        return err;
    if (whole && whole <= most)
        populated = try_hugetlb(slabs, index, whole, node);
    slab->found = -1;
    if (populated) {
        backing = SLAB_HUGETLB;
    } else if (whole) {
        err = place_anonymous(slabs, at, whole, &backing);
        if (err)
            return err;
        bind_to(slabs, at, whole, node);
    }
    slab->backing = backing;
    slabs->backing_count[backing]++;
    atomic_store_explicit(&slab->node, (uint8_t)node, memory_order_relaxed);
    atomic_store_explicit(&slab->populated, populated, memory_order_relaxed);
    slab_placed(slab);
    if (populated == slab->bytes)
        slab_completed(slab);
    return 0;
}

/* The lowest reserved one. */
static bool next_reserved(struct slabs *slabs)
{
    while (slabs->slab_next < slabs->slab_count && slab_state(&slabs->slab[slabs->slab_next]) != SLAB_RESERVED)
        slabs->slab_next++;
    return slabs->slab_next < slabs->slab_count;
}

int bpi_slab_place(struct slabs *slabs, const struct topology *topology, unsigned node, size_t most)
{
    int result = -ENOSPC;

    if (node >= topology->node_count)
        return -EINVAL;
    pthread_mutex_lock(&slabs->lock);
    if (slabs->topology != topology) /* who populates reads it without the lock */
        slabs->topology = topology;
    if (next_reserved(slabs)) {
        int err = place_locked(slabs, slabs->slab_next, node, most);
        result = err ? err : (int)slabs->slab_next++;
    }
    pthread_mutex_unlock(&slabs->lock);
    return result;
}

/* ---- populating a slab ---- */

static void recount(struct slabs *slabs, struct slab *slab, uint8_t backing)
{
    slabs->backing_count[slab->backing]--;
    slabs->backing_count[backing]++;
    slab->backing = backing;
}

/*
 * The hugetlb pages of a slab ran out. What was not populated was never handed out, so it can be mapped anew:
 * over the old mapping, first as address space so that the kernel has nothing to charge and no reason to fail half way.
 */
static int leave_hugetlb(struct slabs *slabs, unsigned index, size_t from, int cause)
{
    struct slab *slab = &slabs->slab[index];
    char *at = slab_at(slabs, index) + from;
    size_t bytes = whole_pieces(slab->bytes) - from;
    uint8_t backing = SLAB_SMALL;
    int err = 0;

    pthread_mutex_lock(&slabs->lock);
    slabs->hugetlb_dry[PAGES_2M] |= 1ull << slab_node(slab);
    if (slabs->huge == SLAB_HUGE_ON && !thp_allowed(slabs)) {
        err = -ENOTSUP;
        goto out;
    }
    err = map_reservation(at, bytes);
    if (!err && madvise(at, bytes, MADV_DONTFORK))
        err = -errno;
    if (err)
        goto out;
    say_why(slabs, SLAB_HUGETLB, "hugetlb pages ran out in the middle of a slab (limit of a node or cgroup?): %s",
            errno_name(cause));
    err = place_anonymous(slabs, at, bytes, &backing);
    if (err)
        goto out;
    bind_to(slabs, at, bytes, slab_node(slab));
    recount(slabs, slab, backing);
out:
    pthread_mutex_unlock(&slabs->lock);
    return err;
}

/*
 * Look once whether advice has led to a huge page: collapsing one that is huge already succeeds and does nothing.
 * EINVAL is from kernels before 6.1, where nothing more can be known.
 */
static int check_thp(struct slabs *slabs, struct slab *slab, char *at)
{
    int err = madvise(at, SLAB_PIECE, MADV_COLLAPSE) ? -errno : 0;

    if (!err || err == -EINVAL) {
        atomic_store_explicit(&slabs->thp_shown, true, memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&slabs->lock);
    say_why(slabs, SLAB_THP,
            "small pages were given where a transparent huge page was asked for (fragmented memory?): %s",
            errno_name(err));
    if (slabs->huge == SLAB_HUGE_ON) {
        madvise(at, SLAB_PIECE, MADV_DONTNEED);
        err = -ENOTSUP;
    } else {
        recount(slabs, slab, SLAB_SMALL);
        err = 0;
    }
    pthread_mutex_unlock(&slabs->lock);
    return err;
}

/* Of the piece that begins here only a part may be populated: on small pages that takes no more. 0: not on hugetlb. */
static size_t part_of_piece(const struct slab *slab, char *at, size_t bytes, size_t piece_left)
{
    if (bytes == piece_left)
        return bytes;
    if (slab->backing == SLAB_HUGETLB)
        return 0;
    madvise(at, piece_left, MADV_NOHUGEPAGE); /* fails only where there are none anyway */
    return bytes;
}

long bpi_slab_populate(struct slabs *slabs, unsigned index, size_t most)
{
    struct slab *slab = &slabs->slab[index];
    size_t from = atomic_load_explicit(&slab->populated, memory_order_relaxed);
    size_t in_piece = SLAB_PIECE - from % SLAB_PIECE;
    size_t piece_left = slab->bytes - from < in_piece ? slab->bytes - from : in_piece;
    size_t bytes = piece_left < most ? piece_left : most;
    char *at = slab_at(slabs, index) + from;

    if (slab_state(slab) != SLAB_PLACED && slab_state(slab) != SLAB_POPULATED)
        return -EINVAL;
    if (bytes && slab->bytes - from >= in_piece)
        bytes = part_of_piece(slab, at, bytes, piece_left);
    if (!bytes)
        return 0;
    bool whole = bytes == SLAB_PIECE;
    int err = populate_range(at, bytes);
    if (err && whole && slab->backing == SLAB_HUGETLB) {
        err = leave_hugetlb(slabs, index, from, err);
        if (!err)
            err = populate_range(at, bytes);
    }
    if (err == -EINVAL && !(whole && slab->backing == SLAB_HUGETLB)) {
        touch(at, bytes);
        err = 0;
    }
    if (!err && whole && slab->backing == SLAB_THP && !atomic_load_explicit(&slabs->thp_shown, memory_order_relaxed))
        err = check_thp(slabs, slab, at);
    if (!err && !is_welcome(slabs, slab, at, bytes))
        err = -ENOMEM;
    if (err)
        return err;
    atomic_store_explicit(&slab->populated, from + bytes, memory_order_relaxed);
    if (from + bytes == slab->bytes)
        slab_completed(slab);
    return (long)bytes;
}

/* ---- memory that came from elsewhere ---- */

void bpi_slab_rehome(struct slabs *slabs, unsigned index, unsigned node)
{
    struct slab *slab = &slabs->slab[index];
    size_t from = atomic_load_explicit(&slab->populated, memory_order_relaxed);

    pthread_mutex_lock(&slabs->lock);
    snprintf(slabs->bind_reason, sizeof(slabs->bind_reason),
             "NUMA node %d had no memory left: the system gave some of node %d",
             slabs->topology->os_node[slab_node(slab)], slabs->topology->os_node[node]);
    atomic_store_explicit(&slab->node, (uint8_t)node, memory_order_relaxed);
    if (from < slab->bytes)
        bind_to(slabs, slab_at(slabs, index) + from, slab->bytes - from, node);
    pthread_mutex_unlock(&slabs->lock);
}

/* ---- giving back ---- */

int bpi_slab_leave(struct slabs *slabs, unsigned index)
{
    struct slab *slab = &slabs->slab[index];

    if (slab_leaves(slab))
        return 0;
    return slab_state(slab) == SLAB_DRAINING ? -EBUSY : -EINVAL;
}

int bpi_slab_release(struct slabs *slabs, unsigned index)
{
    struct slab *slab = &slabs->slab[index];

    if (slab_state(slab) != SLAB_LEAVING)
        return -EINVAL;
    pthread_mutex_lock(&slabs->lock);
    int err = map_reservation(slab_at(slabs, index), slab->bytes);
    if (err)
        goto out;
    madvise(slab_at(slabs, index), slab->bytes, MADV_DONTFORK); /* else when it is placed: till then it is zeros */
    slabs->backing_count[slab->backing]--;
    slabs->slab_next = index < slabs->slab_next ? index : slabs->slab_next;
    if (slab->backing == SLAB_HUGETLB)
        slabs->hugetlb_dry[PAGES_2M] = slabs->hugetlb_dry[PAGES_1G] = 0; /* there are some again */
    slab->lived = true;
    atomic_store_explicit(&slab->populated, 0, memory_order_relaxed);
    slab_left(slab);
out:
    pthread_mutex_unlock(&slabs->lock);
    return err;
}
