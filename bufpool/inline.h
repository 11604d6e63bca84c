/* SPDX-License-Identifier: MIT */
/*
 * The hit, inlined into the program. There is nothing to call here, and nothing to include: bufpool.h includes it and
 * stays the manual; the calls mean what it says there.
 *
 * Of independent hits a processor keeps as many under way as its queues hold of their instructions, so a call that
 * saves registers, fills structures in and counts in several places costs more than its own time. Here is the hit
 * alone: a page in an extent of its own, hot, latched by nobody. Everything else, and everything in a forked child,
 * goes to the library's function, which begins anew. Programs that define BP_NO_INLINE before bufpool.h, or are
 * compiled without optimization, call the library every time.
 *
 * What it works on are the first words of a session and of a file, and frames' descriptors; programs leave them alone.
 * The library asserts that its own structures begin so (pool.h, frame.h), and a program that was compiled with another
 * layout is told when it opens a session (BP_MISMATCH). What may be done to a state word, and why it is enough, is in
 * frame.h and RULES.md of the sources: R1, T5, T6.
 *
 * Instructions with a loop that draws a page number, adds up a word of the page, and asks bp_view_valid (callgrind,
 * bufpool-bench hit): bp_read 49, bp_read_hinted 39, bp_get and bp_put 53. Without inlining: 66, 70, 109.
 */
#ifndef BUFPOOL_INLINE_H
#define BUFPOOL_INLINE_H

#ifndef BUFPOOL_H
#error "include bufpool.h"
#endif

#ifdef __cplusplus
#define BP_HOT_CAST(type, x) reinterpret_cast<type>(x)
#else
#define BP_HOT_CAST(type, x) ((type)(x))
#endif
#define BP_HOT_CALL      static inline __attribute__((always_inline, unused))
#define BP_HOT_LIKELY(x) __builtin_expect(!!(x), 1)
#define BP_HOT_NONE      0xffffffffull /* as a frame's number: none */

/* ---- layout ------------------------------------------------------------------------------------ */

/* Moves with every change of what follows, up to the next heading. */
#define BP_LAYOUT 2u

struct bp_hot_frame {
    uint64_t state;
    uint64_t id;
} __attribute__((may_alias));

struct bp_hot_session {  /* all zero in a forked child */
    uint64_t leaf_pages; /* pages below are in every file's array of leaves */
    const uint32_t *map; /* slots of the index's nodes */
    struct bp_hot_frame *frame;
    char *base; /* data of frame 0 */
    uint32_t frames_total;
    uint64_t gets, puts, hits; /* refs taken by hits, refs put, other hits; only the session's thread writes them */
} __attribute__((may_alias));

struct bp_hot_file {
    uint64_t id;          /* of page 0 */
    const uint32_t *leaf; /* by page / 64 */
} __attribute__((may_alias));

#define BP_HOT_PIN (1ull << 15)
/*
 * Bits of (state word + 1) that are zero for a frame that readers may use and that is as warm as can be: full heat, 3,
 * becomes 0, and only a bound frame has any. For a ref, which is one CAS and no more, also the order and the upper
 * half of the number of pins.
 */
#define BP_HOT_READ (1ull << 27 | 3)
#define BP_HOT_GET  (BP_HOT_READ | 0x1full << 10 | 1ull << 26)

/* ---- parts ------------------------------------------------------------------------------------- */

BP_HOT_CALL struct bp_hot_session *bp_hot_of_session(bp_session *session)
{
    return BP_HOT_CAST(struct bp_hot_session *, session);
}

BP_HOT_CALL const struct bp_hot_file *bp_hot_of_file(const bp_file *file)
{
    return BP_HOT_CAST(const struct bp_hot_file *, file);
}

/* relaxed load and store: one writer */
BP_HOT_CALL void bp_hot_count(uint64_t *counter)
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

/*
 * The frame that the index has for a page, or BP_HOT_NONE: leaf, then slot. A guess, which the frame confirms (R1).
 * Turning the entry puts its tag above the number, so that one comparison refuses whatever is not a frame. A forked
 * child has no leaf_pages.
 */
BP_HOT_CALL uint64_t bp_hot_find(const struct bp_hot_session *s, const bp_file *file, uint64_t page)
{
    uint64_t leaf;
    uint32_t entry;

    if (!BP_HOT_LIKELY(page < s->leaf_pages))
        return BP_HOT_NONE;
    leaf = __atomic_load_n(&bp_hot_of_file(file)->leaf[page / 64], __ATOMIC_ACQUIRE);
    entry = __atomic_load_n(&s->map[leaf * 16 + page % 64], __ATOMIC_ACQUIRE) - 1;
    entry = entry >> 2 | entry << 30;
    return BP_HOT_LIKELY(entry < s->frames_total) ? entry : BP_HOT_NONE;
}

/* The frame that a hint names, or BP_HOT_NONE. Identities of pages from BP_PAGE_MAX on would be other files'. */
BP_HOT_CALL uint64_t bp_hot_hint(const struct bp_hot_session *s, uint64_t page, const struct bp_hint *hint)
{
    uint64_t frame = hint->word - 1;

    return BP_HOT_LIKELY(frame < s->frames_total) && BP_HOT_LIKELY(page < BP_PAGE_MAX) ? frame : BP_HOT_NONE;
}

/* Whether a frame is the page, hot and to be had; its word in *seen. */
BP_HOT_CALL bool bp_hot_agrees(const struct bp_hot_frame *frame, const bp_file *file, uint64_t page, uint64_t bits,
                               uint64_t *seen)
{
    *seen = __atomic_load_n(&frame->state, __ATOMIC_ACQUIRE);
    return BP_HOT_LIKELY(((*seen + 1) & bits) == 0) &&
           BP_HOT_LIKELY(__atomic_load_n(&frame->id, __ATOMIC_RELAXED) == (bp_hot_of_file(file)->id | page));
}

/* A view of a page that may be in this frame, or false. Writes nothing shared (R7). */
BP_HOT_CALL bool bp_hot_view(struct bp_hot_session *s, const bp_file *file, uint64_t page, uint64_t number,
                             struct bp_view *view)
{
    struct bp_hot_frame *frame;
    uint64_t seen;

    if (!BP_HOT_LIKELY(number != BP_HOT_NONE))
        return false;
    frame = s->frame + number;
    if (!bp_hot_agrees(frame, file, page, BP_HOT_READ, &seen))
        return false;
    view->data = s->base + number * BP_PAGE_SIZE;
    view->state = &frame->state;
    view->seen = seen;
    bp_hot_count(&s->hits);
    return true;
}

/*
 * T5 for a hot page in an extent of its own: one more pin, from exactly the word that was examined. acquire: the pin
 * comes before every use of the page. Success proves the identity, since rebinding moves the version.
 */
BP_HOT_CALL bool bp_hot_pin(struct bp_hot_frame *frame, uint64_t seen)
{
    return BP_HOT_LIKELY(__atomic_compare_exchange_n(&frame->state, &seen, seen + BP_HOT_PIN, false, __ATOMIC_ACQUIRE,
                                                     __ATOMIC_RELAXED));
}

/* A shared ref of a page that may be in this frame, or false. */
BP_HOT_CALL bool bp_hot_ref(bp_session *session, const bp_file *file, uint64_t page, uint64_t number,
                            struct bp_ref *ref)
{
    struct bp_hot_session *s = bp_hot_of_session(session);
    struct bp_hot_frame *frame;
    uint64_t seen;
    char *data;

    if (!BP_HOT_LIKELY(number != BP_HOT_NONE))
        return false;
    frame = s->frame + number;
    data = s->base + number * BP_PAGE_SIZE;
    __builtin_prefetch(data, 0, 3); /* the frame's word has to arrive before the pin, and the pin before the data */
    if (!bp_hot_agrees(frame, file, page, BP_HOT_GET, &seen) || !bp_hot_pin(frame, seen))
        return false;
    ref->data = data;
    ref->page = page;
    ref->session = session;
    ref->state = &frame->state;
    ref->bytes = BP_PAGE_SIZE;
    ref->mode = BP_SHARED;
    bp_hot_count(&s->gets);
    return true;
}

/*
 * T6 for a ref: its pin is gone, and nobody is told (R12): a branch after the locked instruction is the last to be
 * decided, and holds up more than its own time. release: our reads of the page come before anybody's exclusive use. In
 * a forked child the descriptors are its own and empty.
 */
BP_HOT_CALL void bp_hot_unpin(struct bp_hot_session *s, uint64_t *state)
{
    bp_hot_count(&s->puts);
    __atomic_fetch_sub(state, BP_HOT_PIN, __ATOMIC_RELEASE);
}

/* ---- the calls --------------------------------------------------------------------------------- */

/* What bp_session_open is, for a program that was compiled with this layout. */
BP_API BP_NODISCARD int bp_session_open_layout(bp_pool *, const struct bp_session_options *, unsigned layout,
                                               bp_session **);

#if !defined(BP_NO_INLINE) && defined(__OPTIMIZE__)

/*
 * What the library's functions fill in is copied, so that the caller's own view or ref, whose address they would
 * otherwise have, can live in registers.
 */
BP_HOT_CALL BP_NODISCARD int bp_session_open_inline(bp_pool *pool, const struct bp_session_options *options,
                                                    bp_session **session)
{
    return bp_session_open_layout(pool, options, BP_LAYOUT, session);
}

/* The rest of each, apart, so that the hit carries nothing of it. */
BP_HOT_CALL int bp_hot_read_rest(bp_session *session, bp_file *file, uint64_t page, struct bp_view *view)
{
    struct bp_view found = {NULL, NULL, 0};
    int result = bp_read(session, file, page, &found);

    *view = found;
    return result;
}

BP_HOT_CALL int bp_hot_read_hinted_rest(bp_session *session, bp_file *file, uint64_t page, struct bp_hint *hint,
                                        struct bp_view *view)
{
    struct bp_view found = {NULL, NULL, 0};
    struct bp_hint better = *hint;
    int result = bp_read_hinted(session, file, page, &better, &found);

    *hint = better;
    *view = found;
    return result;
}

BP_HOT_CALL int bp_hot_get_rest(bp_session *session, bp_file *file, uint64_t page, enum bp_mode mode,
                                struct bp_ref *ref)
{
    struct bp_ref found = {NULL, 0, 0, 0, NULL, NULL};
    int result = bp_get(session, file, page, mode, &found);

    *ref = found;
    return result;
}

BP_HOT_CALL int bp_hot_get_hinted_rest(bp_session *session, bp_file *file, uint64_t page, enum bp_mode mode,
                                       struct bp_hint *hint, struct bp_ref *ref)
{
    struct bp_ref found = {NULL, 0, 0, 0, NULL, NULL};
    struct bp_hint better = *hint;
    int result = bp_get_hinted(session, file, page, mode, &better, &found);

    *hint = better;
    *ref = found;
    return result;
}

BP_HOT_CALL BP_NODISCARD int bp_read_inline(bp_session *session, bp_file *file, uint64_t page, struct bp_view *view)
{
    struct bp_hot_session *s = bp_hot_of_session(session);

    if (bp_hot_view(s, file, page, bp_hot_find(s, file, page), view))
        return 0;
    return bp_hot_read_rest(session, file, page, view);
}

BP_HOT_CALL BP_NODISCARD int bp_read_hinted_inline(bp_session *session, bp_file *file, uint64_t page,
                                                   struct bp_hint *hint, struct bp_view *view)
{
    struct bp_hot_session *s = bp_hot_of_session(session);

    if (bp_hot_view(s, file, page, bp_hot_hint(s, page, hint), view))
        return 0;
    return bp_hot_read_hinted_rest(session, file, page, hint, view);
}

BP_HOT_CALL BP_NODISCARD int bp_get_inline(bp_session *session, bp_file *file, uint64_t page, enum bp_mode mode,
                                           struct bp_ref *ref)
{
    struct bp_hot_session *s = bp_hot_of_session(session);

    if (mode == BP_SHARED && bp_hot_ref(session, file, page, bp_hot_find(s, file, page), ref))
        return 0;
    return bp_hot_get_rest(session, file, page, mode, ref);
}

BP_HOT_CALL BP_NODISCARD int bp_get_hinted_inline(bp_session *session, bp_file *file, uint64_t page, enum bp_mode mode,
                                                  struct bp_hint *hint, struct bp_ref *ref)
{
    struct bp_hot_session *s = bp_hot_of_session(session);

    if (mode == BP_SHARED && bp_hot_ref(session, file, page, bp_hot_hint(s, page, hint), ref))
        return 0;
    return bp_hot_get_hinted_rest(session, file, page, mode, hint, ref);
}

BP_HOT_CALL void bp_put_inline(struct bp_ref *ref)
{
    if (BP_HOT_LIKELY(ref->mode == BP_SHARED)) {
        bp_hot_unpin(bp_hot_of_session(ref->session), ref->state);
    } else {
        struct bp_ref held = *ref;
        bp_put(&held);
    }
}

/* Not macros with arguments: where a call's address is taken, it is that of the inline function, which works as well.
 */
#define bp_session_open bp_session_open_inline
#define bp_read         bp_read_inline
#define bp_read_hinted  bp_read_hinted_inline
#define bp_get          bp_get_inline
#define bp_get_hinted   bp_get_hinted_inline
#define bp_put          bp_put_inline

#endif
#endif
