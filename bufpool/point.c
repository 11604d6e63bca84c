/* SPDX-License-Identifier: MIT */
/*
 * Point access: views and refs. The first function of each pair is the hit, short enough to be read as a whole; what
 * follows it is the rest of the world.
 *
 * A hit costs two dependent cache misses: the index slot, then the frame (descriptor and data in parallel, since
 * both addresses come from the frame number). bp_read writes nothing shared unless the page is colder than full; bp_get
 * is one CAS on the state word, from exactly the value that was examined, which proves identity (R1).
 */
#define BP_NO_INLINE /* the functions themselves */
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"

/* Readers may use a frame that is the first of an extent (BOUND) and that nothing excludes them from. */
#define PLAIN_MASK (FRAME_BOUND | FRAME_EXCL)

/*
 * The frame that an index entry leads to, if it leads to one. Turning the entry puts the tag above the number, so that
 * one comparison refuses whatever is not a frame, and frames that are none.
 */
static inline uint32_t frame_in(const bp_session *s, index_entry e)
{
    uint32_t frame = (e - ENTRY_FRAME) >> 2 | (e - ENTRY_FRAME) << 30;

    return frame < s->frames_total ? frame : FRAME_NONE;
}

/* The descriptor agrees that this frame alone is the page, and nothing excludes readers. */
static inline bool plain_hit(const struct frame *f, const bp_file *file, uint64_t page, uint64_t *seen)
{
    *seen = frame_load(f);
    return (*seen & PLAIN_MASK) == FRAME_BOUND && frame_id(f) == (file->id | page);
}

static inline void view_fill(struct bp_view *view, const void *data, const struct frame *f, uint64_t seen)
{
    view->data = data;
    view->state = (const uint64_t *)(const void *)&f->state;
    view->seen = seen;
}

uint32_t bpi_examine(const bp_session *s, const bp_file *file, uint64_t page, uint32_t frame, uint32_t *head,
                     uint64_t *seen)
{
    uint64_t mask;

    *head = frame_head(s->frame, frame, seen);
    mask = extent_mask(frame_order(*seen));
    if ((*seen & (FRAME_BOUND | FRAME_FAILED)) != FRAME_BOUND || page >= BP_PAGE_MAX ||
        frame_id(&s->frame[*head]) != (file->id | (page & ~mask)) || (frame & mask) != (page & mask))
        return FRAME_NONE;
    return frame;
}

void bpi_hit_marked(bp_session *s, struct frame *f, uint64_t seen)
{
    uint64_t id = frame_id(f);

    if (seen & FRAME_AHEAD && !s->ahead_known && !s->ahead_mark) {
        bp_file *file = atomic_load_explicit(&s->pool->file[id >> FRAME_ID_FILE_SHIFT], memory_order_acquire);

        s->ahead_file = file->finds_streams ? file : NULL;
        s->ahead_page = id & FRAME_ID_PAGE;
    }
    if (seen & FRAME_SAMPLED) /* what was read ahead is asked for only now */
        bpi_policy_log(&s->seat, (uint32_t)(f - s->frame), id, frame_order(seen), seen & FRAME_AHEAD);
}

/* ---- views ---- */

/* Anything but a plain hit: a larger extent, a latch, a miss. */
static __attribute__((noinline)) int read_slow(bp_session *s, bp_file *file, uint64_t page, struct bp_view *view)
{
    struct target t;
    struct bp_ref ref;
    int rc;

    t.frame = frame_in(s, bpi_index_load(&file->index, page));
    if (t.frame != FRAME_NONE && bpi_examine(s, file, page, t.frame, &t.head, &t.seen) != FRAME_NONE &&
        !(t.seen & FRAME_EXCL)) {
        hit_warm(s, &s->frame[t.head], t.seen);
        view_fill(view, frame_data(s, t.frame), &s->frame[t.head], t.seen);
        counter_add(&s->count.hits, 1);
        ahead_check(s);
        return 0;
    }
    rc = bpi_get_slow(s, file, &page, 1, BP_SHARED, &ref);
    if (rc)
        return rc;
    /* pinned, so the word that is read now is of this page; the view outlives the pin */
    view_fill(view, ref.data, &s->frame[ref_head(s, &ref)], frame_load(&s->frame[ref_head(s, &ref)]));
    bp_put(&ref);
    return 0;
}

/* A plain hit, or false. */
static inline bool read_frame(bp_session *s, bp_file *file, uint64_t page, uint32_t frame, struct bp_view *view)
{
    struct frame *f;
    uint64_t seen;

    if (frame == FRAME_NONE)
        return false;
    f = &s->frame[frame];
    if (!plain_hit(f, file, page, &seen))
        return false;
    hit_warm(s, f, seen);
    view_fill(view, frame_data(s, frame), f, seen);
    counter_add(&s->count.hits, 1);
    return true;
}

/* Pages that could be warmer, and files whose index has not one of the usual heights. */
static __attribute__((noinline)) int read_any(bp_session *s, bp_file *file, uint64_t page, struct bp_view *view)
{
    if (bpi_forked(s))
        return BP_FORKED;
    if (read_frame(s, file, page, frame_in(s, bpi_index_load(&file->index, page)), view)) {
        ahead_check(s);
        return 0;
    }
    return read_slow(s, file, page, view);
}

/* What is not inlined is called last: the hit saves no registers. */
int bp_read(bp_session *s, bp_file *file, uint64_t page, struct bp_view *view)
{
    struct bp_hot_session *hot = bp_hot_of_session(s);

    if (likely(bp_hot_view(hot, file, page, bp_hot_find(hot, file, page), view)))
        return 0;
    return read_any(s, file, page, view);
}

static inline void hint_set(const bp_session *s, const void *data, struct bp_hint *hint)
{
    hint->word = ((size_t)((const char *)data - s->base) >> BP_PAGE_SHIFT) + 1;
}

static __attribute__((noinline)) int read_hinted_any(bp_session *s, bp_file *file, uint64_t page, struct bp_hint *hint,
                                                     struct bp_view *view)
{
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (read_frame(s, file, page, (uint32_t)bp_hot_hint(bp_hot_of_session(s), page, hint), view)) {
        ahead_check(s);
        return 0;
    }
    rc = bp_read(s, file, page, view);
    if (!rc)
        hint_set(s, view->data, hint);
    return rc;
}

int bp_read_hinted(bp_session *s, bp_file *file, uint64_t page, struct bp_hint *hint, struct bp_view *view)
{
    struct bp_hot_session *hot = bp_hot_of_session(s);

    if (likely(bp_hot_view(hot, file, page, bp_hot_hint(hot, page, hint), view)))
        return 0;
    return read_hinted_any(s, file, page, hint, view);
}

/*
 * Lookups of a group: the descriptors and first lines of data of all of them are asked for before the first is needed,
 * so their misses overlap. The slots need no such stage: their loads depend on nothing, and the processor runs ahead to
 * them.
 */
#define READ_GROUP 32u

/* For a loop: the compiler must think that what it stores might be the session. */
static inline struct bp_hot_session hot_copy(const bp_session *s)
{
    struct bp_hot_session copy = {.leaf_pages = s->leaf_pages,
                                  .map = (const uint32_t *)(const void *)s->map,
                                  .frame = (struct bp_hot_frame *)(void *)s->frame,
                                  .base = s->base,
                                  .frames_total = s->frames_total};

    return copy;
}

static inline void prefetch_group(const bp_session *s, const bp_file *file, const uint64_t page[], unsigned n,
                                  uint32_t frame[])
{
    const struct bp_hot_session hot = hot_copy(s);

    for (unsigned i = 0; i < n; i++) {
        uint64_t number = bp_hot_find(&hot, file, page[i]);

        frame[i] = (uint32_t)number;
        if (likely(number != BP_HOT_NONE)) {
            __builtin_prefetch(hot.base + number * BP_PAGE_SIZE, 0, 3);
            __builtin_prefetch(hot.frame + number, 0, 3);
        }
    }
}

/* Bring in what is missing, in one submission, and take its views. */
static __attribute__((noinline)) int read_many_slow(bp_session *s, bp_file *file, const uint64_t page[], unsigned n,
                                                    struct bp_view view[])
{
    uint64_t missing[READ_GROUP];
    struct bp_ref ref[READ_GROUP];
    unsigned at[READ_GROUP];
    unsigned count = 0;
    int rc;

    for (unsigned i = 0; i < n; i++) {
        if (!view[i].data) {
            at[count] = i;
            missing[count++] = page[i];
        }
    }
    rc = bpi_get_slow(s, file, missing, count, BP_SHARED, ref);
    if (rc)
        return rc;
    for (unsigned i = 0; i < count; i++) {
        view_fill(&view[at[i]], ref[i].data, &s->frame[ref_head(s, &ref[i])],
                  frame_load(&s->frame[ref_head(s, &ref[i])]));
        bp_put(&ref[i]);
    }
    return 0;
}

/* A group from its page `done` on, which is not a hot hit: what is cold or in a larger extent, what is missing. */
static __attribute__((noinline)) int read_many_any(bp_session *s, bp_file *file, const uint64_t page[], unsigned n,
                                                   const uint32_t frame[], unsigned done, struct bp_view view[])
{
    bool all = true;

    for (unsigned i = done; i < n; i++) {
        view[i].data = NULL;
        if (!read_frame(s, file, page[i], frame[i], &view[i]))
            all = false;
    }
    ahead_check(s);
    return all ? 0 : read_many_slow(s, file, page, n, view);
}

/* The hot hits that a group begins with; their number. */
static inline unsigned read_many_hot(const bp_session *s, const bp_file *file, const uint64_t page[], unsigned n,
                                     const uint32_t frame[], struct bp_view view[])
{
    const struct bp_hot_session hot = hot_copy(s);
    unsigned i;

    for (i = 0; i < n && likely(frame[i] != FRAME_NONE); i++) {
        struct bp_hot_frame *f = hot.frame + frame[i];

        if (!bp_hot_agrees(f, file, page[i], BP_HOT_READ, &view[i].seen))
            break;
        view[i].data = hot.base + (size_t)frame[i] * BP_PAGE_SIZE;
        view[i].state = &f->state;
    }
    return i;
}

int bp_read_many(bp_session *s, bp_file *file, const uint64_t page[], unsigned n, struct bp_view view[])
{
    int rc = 0;

    if (bpi_forked(s))
        return BP_FORKED;
    for (unsigned first = 0; first < n && !rc; first += READ_GROUP) {
        unsigned count = n - first < READ_GROUP ? n - first : READ_GROUP;
        uint32_t frame[READ_GROUP];
        unsigned hits;

        prefetch_group(s, file, page + first, count, frame);
        hits = read_many_hot(s, file, page + first, count, frame, view + first);
        counter_add(&s->count.hits, hits);
        if (unlikely(hits < count))
            rc = read_many_any(s, file, page + first, count, frame, hits, view + first);
    }
    return rc;
}

/* ---- refs ---- */

/* Pin or latch a frame that agreed, from the word that was examined. */
static inline bool latch_from(const bp_file *file, uint64_t page, struct frame *f, uint64_t seen, enum bp_mode mode)
{
    if (mode == BP_SHARED)
        return frame_pin_from(f, seen);
    return !(seen & FRAME_PINS) && !write_is_much(file) && frame_lock_from(f, seen) && latch_stands(file, page, f);
}

/* The hit of bp_get and bp_get_hinted; false: the slow path. */
static inline __attribute__((always_inline)) bool get_frame(bp_session *s, bp_file *file, uint64_t page, uint32_t frame,
                                                            enum bp_mode mode, struct bp_ref *ref)
{
    struct target t = {.frame = frame, .head = frame};
    struct frame *f;

    if (unlikely(frame == FRAME_NONE))
        return false;
    f = &s->frame[frame];
    if (unlikely(!plain_hit(f, file, page, &t.seen)) || !latch_from(file, page, f, t.seen, mode))
        return false;
    if (mode == BP_SHARED)
        hit_noted(s, f, t.seen);
    else
        hit_warm(s, f, frame_load(f));
    ref_fill(s, page, mode, &t, ref);
    counter_add(&s->count.hits, 1);
    return true;
}

static __attribute__((noinline)) int get_any(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode,
                                             struct bp_ref *ref)
{
    uint64_t one = page;

    if (bpi_forked(s))
        return BP_FORKED;
    if (likely(get_frame(s, file, page, frame_in(s, bpi_index_load(&file->index, page)), mode, ref))) {
        ahead_check(s);
        return 0;
    }
    return bpi_get_slow(s, file, &one, 1, mode, ref);
}

int bp_get(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, struct bp_ref *ref)
{
    if (likely(mode == BP_SHARED) &&
        likely(bp_hot_ref(s, file, page, bp_hot_find(bp_hot_of_session(s), file, page), ref)))
        return 0;
    return get_any(s, file, page, mode, ref);
}

static __attribute__((noinline)) int get_hinted_any(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode,
                                                    struct bp_hint *hint, struct bp_ref *ref)
{
    int rc;

    if (bpi_forked(s))
        return BP_FORKED;
    if (likely(get_frame(s, file, page, (uint32_t)bp_hot_hint(bp_hot_of_session(s), page, hint), mode, ref))) {
        ahead_check(s);
        return 0;
    }
    rc = bp_get(s, file, page, mode, ref);
    if (!rc)
        hint_set(s, ref->data, hint);
    return rc;
}

int bp_get_hinted(bp_session *s, bp_file *file, uint64_t page, enum bp_mode mode, struct bp_hint *hint,
                  struct bp_ref *ref)
{
    if (likely(mode == BP_SHARED) &&
        likely(bp_hot_ref(s, file, page, bp_hot_hint(bp_hot_of_session(s), page, hint), ref)))
        return 0;
    return get_hinted_any(s, file, page, mode, hint, ref);
}

int bp_get_many(bp_session *s, bp_file *file, const uint64_t page[], unsigned n, enum bp_mode mode, struct bp_ref ref[])
{
    unsigned done = 0;
    int rc = 0;

    if (bpi_forked(s))
        return BP_FORKED;
    while (mode == BP_SHARED && done < n) {
        unsigned count = n - done < READ_GROUP ? n - done : READ_GROUP;
        uint32_t frame[READ_GROUP];
        unsigned i = 0;

        if (bp_hot_find(bp_hot_of_session(s), file, page[done]) == BP_HOT_NONE)
            break; /* a batch of misses, most likely */
        prefetch_group(s, file, page + done, count, frame);
        while (i < count && bp_hot_ref(s, file, page[done + i], frame[i], &ref[done + i]))
            i++;
        done += i;
        if (i < count)
            break;
    }
    if (done < n) /* the rest in one piece: every miss in one submission */
        rc = bpi_get_slow(s, file, page + done, n - done, mode, ref + done);
    if (rc)
        bp_put_many(ref, done);
    return rc;
}

/* The word as it is now: whoever waits has set WAITERS before the pin went, or sees that it went and does not wait. */
static __attribute__((noinline)) void wake_for_pin(bp_pool *pool, struct frame *f)
{
    uint64_t now = frame_load(f);

    if ((now & FRAME_WAITERS) && !(now & FRAME_PINS))
        bpi_frame_wake(f);
    bpi_release_notify(pool);
}

__attribute__((noinline)) void bpi_put_exclusive(struct bp_ref *ref, bool dirty)
{
    bp_session *s = ref->session;
    struct frame *f = (struct frame *)(void *)ref->state;

    if (bpi_forked(s))
        return;
    counter_add(&s->puts, 1);
    if ((dirty ? frame_unlock_dirty(f) : frame_unlock(f)) & FRAME_WAITERS)
        bpi_frame_wake(f);
    bpi_release_notify(s->pool);
}

/* What is not inlined tells whoever waits (R12). */
void bp_put(struct bp_ref *ref)
{
    bp_session *s = ref->session;
    struct frame *f = (struct frame *)(void *)ref->state;

    if (unlikely(ref->mode != BP_SHARED)) {
        bpi_put_exclusive(ref, false);
        return;
    }
    if (bpi_forked(s))
        return;
    counter_add(&s->puts, 1);
    atomic_fetch_sub_explicit(&f->state, FRAME_PIN, memory_order_seq_cst);
    if (unlikely(atomic_load_explicit(&s->pool->watching, memory_order_seq_cst)))
        wake_for_pin(s->pool, f);
}

void bp_put_many(struct bp_ref ref[], unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        bp_put(&ref[i]);
}
