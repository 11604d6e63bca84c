/* SPDX-License-Identifier: MIT */
/*
 * Frames' descriptors: the state word and every legal transition of it.
 *
 * A descriptor is split by temperature. The hot part is 16 bytes: the state word and the identity (which file,
 * which page). Four share a cache line, so the descriptors of an 8 GiB pool are 32 MiB and mostly stay in the
 * last-level cache; measured against one 64-byte line each, a dependent hit is 0 to 5 % and an independent one 7 to
 * 17 % faster (bufpool-bench descriptor-layout). The price: latching a page moves the line of its three neighbours too.
 *
 *  63                         28  27    26....15  14...10  9 8 7    6    5     4       3      2       1..0
 *  version (36)              EXCL  shared(12) order(5) (*)   BOUND TAIL WAITERS FAILED READING heat
 *
 * (*) bit 7: SAMPLED, set with the page, stays: hits that warm it are logged (policy.h). Bit 8: DIRTY, the extent has
 * changes that the file has not; only the holder of EXCL sets it, only the writer takes it away, under a pin of its own,
 * or who forgets the extent under EXCL. Bit 9: AHEAD,
 * set with a page that is read ahead, until somebody touches it (readahead.h).
 *
 * A free frame's word is its version and nothing else, so memory fresh from the system is free frames. BOUND is set in
 * heads.
 *
 * The low half is the futex word. The descriptor of an extent's first frame ("head") speaks for the extent; those of
 * the other frames hold TAIL and the order, from which the head follows, since extents are naturally aligned.
 *
 *   name                from                       to                    rule in RULES.md
 *   frame_publish       free                       EXCL|READING, pins 1  T1  by the allocator, before anybody can see
 * it frame_pin_from      READING                    READING, pins + 1     T2 frame_read_done     EXCL|READING pins only
 * T3  by whoever reaps the read frame_fail          EXCL|READING               EXCL|FAILED           T4  after the
 * index entry is gone frame_pin_from      no EXCL                    pins + 1              T5 bp_hot_pin          the
 * same, hot, order 0     pins + 1              T5  inlined into programs: inline.h frame_unpin         pins > 0 pins -
 * 1              T6 bp_hot_unpin        the same, not FAILED       pins - 1              T6  inlined into programs:
 * inline.h frame_lock_from     no EXCL, pins 0            EXCL                  T7  exclusive get frame_upgrade no
 * EXCL, pins 1 (own)      EXCL                  T8 frame_unlock        EXCL                       version + 1 T9
 *   frame_lock_from     as T7, cold                EXCL                  T10 eviction
 *   frame_unbind        EXCL, no pins              free, version + 1     T11 after the index entry is gone
 *   frame_cool          heat > 0                   heat - 1              T12
 *   frame_chill         heat > 0                   heat 0                T12
 *   frame_warm          heat < full                heat + 1              T13
 *   frame_warm, _pin_from   AHEAD                  no AHEAD              T18  instead of T13
 *   frame_await         any bound                  WAITERS               T14
 *   frame_let_be        EXCL                       as it was before      T15 the leaf is held (R15)
 *   frame_publish_moved free                       EXCL, no pins         T16 a copy of what is latched elsewhere
 *   frame_move_done     EXCL                       free for all          T17 the index leads here
 *   frame_publish_new   free                       EXCL|DIRTY            T20
 *   frame_unlock_dirty  EXCL                       DIRTY, version + 1    T21
 *   frame_downgrade     EXCL                       pins 1, version + 1   T22
 *   frame_hold_from     no EXCL                    pins + 1              T23 the writer
 *   frame_written       DIRTY, pins > 0 (own)      not DIRTY, pins - 1   T24 the writer
 *   frame_forget        EXCL|DIRTY                 EXCL                  T25
 *   frame_soil          EXCL                       EXCL|DIRTY            T26
 */
#ifndef BUFPOOL_FRAME_H
#define BUFPOOL_FRAME_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bufpool/bufpool.h"

#define FRAME_HEAT        0x3ull
#define FRAME_READING     (1ull << 2)
#define FRAME_FAILED      (1ull << 3)
#define FRAME_WAITERS     (1ull << 4)
#define FRAME_TAIL        (1ull << 5)
#define FRAME_BOUND       (1ull << 6)
#define FRAME_SAMPLED     (1ull << 7)
#define FRAME_DIRTY       (1ull << 8)
#define FRAME_AHEAD       (1ull << 9)
#define FRAME_ORDER_SHIFT 10
#define FRAME_ORDER       (0x1full << FRAME_ORDER_SHIFT)
#define FRAME_PIN         (1ull << 15)
#define FRAME_PINS        (0xfffull << 15)
#define FRAME_PINS_MAX    (FRAME_PINS - FRAME_PIN) /* one is left for whoever fails the read (T4) */
#define FRAME_EXCL        (1ull << 27)
#define FRAME_VERSION_ONE (1ull << 28)
#define FRAME_VERSION     (~0ull << 28)

/* What an extent takes along when it moves. */
#define FRAME_CARRIED (FRAME_HEAT | FRAME_SAMPLED | FRAME_DIRTY)

#define FRAME_NONE UINT32_MAX

_Static_assert((FRAME_VERSION | FRAME_EXCL) == BP_VIEW_MASK, "the public header validates views with this mask");

/* Identity: file number above, first page of the extent below. */
#define FRAME_ID_PAGE       (BP_PAGE_MAX - 1)
#define FRAME_ID_FILE_SHIFT 51
#define FRAME_FILES_MAX     8191
#define FRAME_ID_NONE       0 /* of a free frame: files count from 1 */

struct frame {
    _Atomic uint64_t state;
    _Atomic uint64_t
        id; /* set while the frame is free, cleared by who unbinds it: stable under any unchanged version */
};

/*
 * The hits in inline.h know this much. Full heat and no EXCL say BOUND, too: words of free frames and of tails have no
 * heat, and READING and FAILED stand beside EXCL. Adding 1 to full heat carries into bits that are not looked at.
 */
_Static_assert(sizeof(struct frame) == sizeof(struct bp_hot_frame) &&
                   offsetof(struct frame, state) == offsetof(struct bp_hot_frame, state) &&
                   offsetof(struct frame, id) == offsetof(struct bp_hot_frame, id),
               "a descriptor as the public header has it");
_Static_assert(FRAME_HEAT == 3 && FRAME_PIN == BP_HOT_PIN && BP_HOT_READ == (FRAME_EXCL | FRAME_HEAT) &&
                   BP_HOT_GET == (BP_HOT_READ | FRAME_ORDER | ((FRAME_PINS + FRAME_PIN) / 2 & FRAME_PINS)),
               "the state word as the public header has it");

/* The cold part: only misses and exclusive latches touch it. */
struct frame_cold {
    _Atomic int32_t error;    /* why a FAILED read failed; written before FAILED is */
    _Atomic uint16_t channel; /* where the read under way will complete */
    _Atomic uint8_t slot;     /* and which of its requests that is */
    _Atomic uint8_t queued;   /* an entry in a queue is this head's: policy.h */
    _Atomic uint32_t holder;  /* number of the session that latched it exclusively last, for BUSY texts */
    _Atomic uint32_t stamp;   /* last use known of its page, in ticks: policy.h */
};

/*
 * What is known of a dirty extent, by its head; an array of its own, of which only what is written to is ever touched. LSNs
 * are kept with all bits turned, so that memory fresh from the system says that there is none, and the oldest is the
 * largest.
 */
struct frame_dirty {
    _Atomic uint64_t since;  /* oldest change that no write under way has: turned, 0 if there is none */
    _Atomic uint64_t newest; /* LSN of the newest change, 0 if there is none. Changed under EXCL */
};

static inline unsigned frame_order(uint64_t state)
{
    return (unsigned)((state & FRAME_ORDER) >> FRAME_ORDER_SHIFT);
}

static inline unsigned frame_pins(uint64_t state)
{
    return (unsigned)((state & FRAME_PINS) / FRAME_PIN);
}

static inline bool frame_same_version(uint64_t a, uint64_t b)
{
    return ((a ^ b) & FRAME_VERSION) == 0;
}

/* acquire: what was written to the frame before the transition that we see is visible after it */
static inline uint64_t frame_load(const struct frame *f)
{
    return atomic_load_explicit(&f->state, memory_order_acquire);
}

/* The head of the extent that frame f belongs to, and its word in *seen; f itself if it is free. */
static inline uint32_t frame_head(const struct frame *frame, uint32_t f, uint64_t *seen)
{
    *seen = frame_load(&frame[f]);
    if (*seen & FRAME_TAIL) {
        f &= ~((1u << frame_order(*seen)) - 1);
        *seen = frame_load(&frame[f]);
    }
    return f;
}

/* relaxed: ordered after the state word's acquire load by the caller; proven by the version later */
static inline uint64_t frame_id(const struct frame *f)
{
    return atomic_load_explicit(&f->id, memory_order_relaxed);
}

/*
 * T1 and T16. The frame is the caller's alone, so these are plain stores (no locked instruction); a reader with a stale
 * translation sees a free frame until the last one, whose release makes tails and identity visible with it.
 */
static inline void frame_publish_as(struct frame *head, uint64_t id, unsigned order, uint64_t bits)
{
    uint64_t version = atomic_load_explicit(&head->state, memory_order_relaxed) & FRAME_VERSION;
    uint64_t order_bits = (uint64_t)order << FRAME_ORDER_SHIFT;

    assert(!(atomic_load_explicit(&head->state, memory_order_relaxed) & ~FRAME_VERSION));
    for (uint32_t i = 1; i < 1u << order; i++) {
        uint64_t old = atomic_load_explicit(&head[i].state, memory_order_relaxed) & FRAME_VERSION;
        atomic_store_explicit(&head[i].state, old | FRAME_TAIL | FRAME_EXCL | order_bits, memory_order_relaxed);
    }
    atomic_store_explicit(&head->id, id, memory_order_relaxed);
    atomic_store_explicit(&head->state, version | FRAME_BOUND | FRAME_EXCL | order_bits | bits, memory_order_release);
}

/* T1. more: heat and SAMPLED. */
static inline void frame_publish(struct frame *head, uint64_t id, unsigned order, uint64_t more)
{
    frame_publish_as(head, id, order, FRAME_READING | FRAME_PIN | more);
}

/* T20. As T1, of an extent that is not read: what is in the frame was written before, and is there with the word. */
static inline void frame_publish_new(struct frame *head, uint64_t id, unsigned order, uint64_t more)
{
    frame_publish_as(head, id, order, FRAME_DIRTY | more);
}

/*
 * T16. Where an extent moves to, its content copied, while the caller has its old frames latched; seen: their word. Who
 * comes by an old hint finds the latch.
 */
static inline void frame_publish_moved(struct frame *head, uint64_t id, uint64_t seen)
{
    frame_publish_as(head, id, frame_order(seen), seen & FRAME_CARRIED);
}

/*
 * T17. The move is over: in with everybody. The version stays, since nobody can have a view of it yet. release: the
 * copy is there for everybody who sees EXCL gone. Returns the word before (WAITERS must be woken).
 */
static inline uint64_t frame_move_done(struct frame *f)
{
    uint64_t before = atomic_fetch_and_explicit(&f->state, ~(FRAME_EXCL | FRAME_WAITERS), memory_order_release);

    assert((before & FRAME_EXCL) && !(before & (FRAME_PINS | FRAME_READING)));
    return before;
}

/*
 * A touch: T13, but for a page that was read ahead T18, which is all that its first touch does: it is what would have
 * been the miss. A page has no heat before that.
 */
static inline uint64_t frame_touched(uint64_t seen)
{
    if (seen & FRAME_AHEAD)
        return seen & ~FRAME_AHEAD;
    return (seen & FRAME_HEAT) != FRAME_HEAT ? seen + 1 : seen;
}

/*
 * T2 and T5: one more pin, from exactly the word that was examined. acquire: the pin comes before every use of the
 * page. A CAS that succeeds proves that identity was right when it was compared, since rebinding moves the version.
 */
static inline bool frame_pin_from(struct frame *f, uint64_t seen)
{
    uint64_t next = frame_touched(seen) + FRAME_PIN; /* in the same store: no extra write */

    return (seen & FRAME_PINS) < FRAME_PINS_MAX &&
           atomic_compare_exchange_strong_explicit(&f->state, &seen, next, memory_order_acquire, memory_order_relaxed);
}

/* The same for a scan, which leaves pages as cold as they are; but it has come by (T18). */
static inline bool frame_pin_cool(struct frame *f, uint64_t seen)
{
    uint64_t next = (seen & ~FRAME_AHEAD) + FRAME_PIN;

    return (seen & FRAME_PINS) < FRAME_PINS_MAX &&
           atomic_compare_exchange_strong_explicit(&f->state, &seen, next, memory_order_acquire, memory_order_relaxed);
}

/* T18 alone, one attempt. relaxed: it orders nothing */
static inline void frame_come_by(struct frame *f, uint64_t seen)
{
    if (seen & FRAME_AHEAD)
        atomic_compare_exchange_strong_explicit(&f->state, &seen, seen & ~FRAME_AHEAD, memory_order_relaxed,
                                                memory_order_relaxed);
}

/* T3. release: the page's bytes are there for everybody who sees READING gone. Returns the word before. */
static inline uint64_t frame_read_done(struct frame *f)
{
    return atomic_fetch_and_explicit(&f->state, ~(FRAME_READING | FRAME_EXCL | FRAME_WAITERS), memory_order_release);
}

/*
 * T4. The caller gets a pin of its own: without it the last of those who wait could free the frame under its hands.
 * release: the error code in the cold part is there for everybody who sees FAILED. Returns the word before.
 */
static inline uint64_t frame_fail(struct frame *f)
{
    uint64_t seen = atomic_load_explicit(&f->state, memory_order_relaxed);
    uint64_t next;

    do {
        next = ((seen & ~(FRAME_READING | FRAME_WAITERS)) | FRAME_FAILED) + FRAME_PIN;
    } while (
        !atomic_compare_exchange_weak_explicit(&f->state, &seen, next, memory_order_release, memory_order_relaxed));
    return seen;
}

/* T6. release: our reads of the page come before anybody's exclusive use. Returns the word before. */
static inline uint64_t frame_unpin(struct frame *f)
{
    uint64_t before = atomic_fetch_sub_explicit(&f->state, FRAME_PIN, memory_order_acq_rel);

    assert(before & FRAME_PINS);
    return before;
}

/*
 * T7 and T10: from exactly the word examined, which has neither pins nor EXCL. acquire: as a lock. seq_cst: and then we
 * ask whether the leaf is held, as a holder holds and then looks at this word (R15).
 */
static inline bool frame_lock_from(struct frame *f, uint64_t seen)
{
    assert(!(seen & (FRAME_EXCL | FRAME_PINS)));
    return atomic_compare_exchange_strong_explicit(&f->state, &seen, seen | FRAME_EXCL, memory_order_seq_cst,
                                                   memory_order_relaxed);
}

/* T8: our own pin is the only one; it becomes the exclusive latch. seq_cst: as T7. */
static inline bool frame_upgrade(struct frame *f)
{
    uint64_t seen = atomic_load_explicit(&f->state, memory_order_relaxed);

    return (seen & (FRAME_PINS | FRAME_EXCL)) == FRAME_PIN &&
           atomic_compare_exchange_strong_explicit(&f->state, &seen, (seen - FRAME_PIN) | FRAME_EXCL,
                                                   memory_order_seq_cst, memory_order_relaxed);
}

/*
 * T9. Only WAITERS and heat can change under an exclusive latch, so one fetch_add moves version and latch: adding EXCL
 * to a word that has it carries into the version's lowest bit. release: our writes come first.
 */
static inline uint64_t frame_unlock(struct frame *f)
{
    uint64_t before = atomic_fetch_add_explicit(&f->state, FRAME_EXCL, memory_order_release);

    assert(before & FRAME_EXCL);
    return before;
}

/*
 * What T21 and T22 add to a word beside the latch. DIRTY is stable under an exclusive latch (T24 has a pin, T25 the latch),
 * so setting it is adding it where it is not. relaxed: our own latch ordered the word before.
 */
static inline uint64_t frame_dirt(const struct frame *f, bool dirty)
{
    return dirty ? ~atomic_load_explicit(&f->state, memory_order_relaxed) & FRAME_DIRTY : 0;
}

/*
 * T21. As T9, and the extent is dirty from the same moment on at which others can see the new version. release: our changes
 * come first, and so do the mark in the index and the LSN, which are set under the latch (R19).
 */
static inline uint64_t frame_unlock_dirty(struct frame *f)
{
    uint64_t before = atomic_fetch_add_explicit(&f->state, FRAME_EXCL + frame_dirt(f, true), memory_order_release);

    assert(before & FRAME_EXCL);
    return before;
}

/* T22. As T9 or T21, and a pin is left: nobody else can have the latch in between. Returns the word before. */
static inline uint64_t frame_downgrade(struct frame *f, bool dirty)
{
    uint64_t before =
        atomic_fetch_add_explicit(&f->state, FRAME_EXCL + FRAME_PIN + frame_dirt(f, dirty), memory_order_release);

    assert((before & FRAME_EXCL) && !(before & FRAME_PINS));
    return before;
}

/*
 * T23. As T5, for the writer: the page is not used, so it is not warmed. acquire: the bytes are those of this version, and
 * nobody changes them while the pin is there.
 */
static inline bool frame_hold_from(struct frame *f, uint64_t seen)
{
    return !(seen & FRAME_EXCL) && (seen & FRAME_PINS) < FRAME_PINS_MAX &&
           atomic_compare_exchange_strong_explicit(&f->state, &seen, seen + FRAME_PIN, memory_order_acquire,
                                                   memory_order_relaxed);
}

/*
 * T24. The extent is on disk as it is now: no longer dirty, and the writer's pin is gone, in one store, so nobody can have
 * changed it in between. release: the mark in the index went before. Returns the word before.
 */
static inline uint64_t frame_written(struct frame *f)
{
    uint64_t before = atomic_fetch_sub_explicit(&f->state, FRAME_PIN + FRAME_DIRTY, memory_order_acq_rel);

    assert((before & FRAME_PINS) && (before & FRAME_DIRTY) && !(before & FRAME_EXCL));
    return before;
}

/* T25. What is dirty need not be written: the extent goes. relaxed: the latch is ours until T11. Returns the word before. */
static inline uint64_t frame_forget(struct frame *f)
{
    uint64_t before = atomic_fetch_and_explicit(&f->state, ~FRAME_DIRTY, memory_order_relaxed);

    assert(before & FRAME_EXCL);
    return before;
}

/* T26. Dirty already, though it is not let go of yet. relaxed: the latch is ours until T9, T21 or T22. */
static inline void frame_soil(struct frame *f)
{
    uint64_t before = atomic_fetch_or_explicit(&f->state, FRAME_DIRTY, memory_order_relaxed);

    assert(before & FRAME_EXCL);
    (void)before;
}

/*
 * T15. The latch was taken for nothing, and nothing was changed under it: views stay valid. release: for form's sake,
 * so that the next latch comes after this one. Returns the word before (WAITERS must be woken).
 */
static inline uint64_t frame_let_be(struct frame *f)
{
    uint64_t before = atomic_fetch_and_explicit(&f->state, ~(FRAME_EXCL | FRAME_WAITERS), memory_order_release);

    assert((before & FRAME_EXCL) && !(before & (FRAME_PINS | FRAME_READING)));
    return before;
}

/*
 * T11. The latch is ours and the index no longer leads here. The version moves first in the same store, so views, hints
 * and stale translations of the page that lived here fail from now on. release: nothing we did for the old page can be
 * seen after it. Returns the head's word before (WAITERS must be woken).
 */
static inline uint64_t frame_unbind(struct frame *head)
{
    uint64_t seen = atomic_load_explicit(&head->state, memory_order_relaxed);
    uint64_t next;
    uint32_t count = 1u << frame_order(seen);

    assert((seen & FRAME_EXCL) && !(seen & (FRAME_PINS | FRAME_READING | FRAME_DIRTY)));
    /* relaxed: before the word's release, so who sees the frame free, or as another page, does not see this page's name
     */
    atomic_store_explicit(&head->id, FRAME_ID_NONE, memory_order_relaxed);
    do {
        next = (seen & FRAME_VERSION) + FRAME_VERSION_ONE;
    } while (
        !atomic_compare_exchange_weak_explicit(&head->state, &seen, next, memory_order_release, memory_order_relaxed));
    for (uint32_t i = 1; i < count; i++) {
        uint64_t old = atomic_load_explicit(&head[i].state, memory_order_relaxed) & FRAME_VERSION;
        atomic_store_explicit(&head[i].state, old + FRAME_VERSION_ONE, memory_order_release);
    }
    return seen;
}

/* T12. relaxed: heat orders nothing. One attempt: whoever interfered made the page warmer. */
static inline void frame_cool(struct frame *f, uint64_t seen)
{
    atomic_compare_exchange_strong_explicit(&f->state, &seen, seen - 1, memory_order_relaxed, memory_order_relaxed);
}

/* T12, all of it. */
static inline void frame_chill(struct frame *f, uint64_t seen)
{
    if (seen & FRAME_HEAT)
        atomic_compare_exchange_strong_explicit(&f->state, &seen, seen & ~FRAME_HEAT, memory_order_relaxed,
                                                memory_order_relaxed);
}

/* T13. relaxed, one attempt, and only when colder than full: a hot page is never written by its readers. */
static inline void frame_warm(struct frame *f, uint64_t seen)
{
    if ((seen & FRAME_HEAT) != FRAME_HEAT)
        atomic_compare_exchange_strong_explicit(&f->state, &seen, frame_touched(seen), memory_order_relaxed,
                                                memory_order_relaxed);
}

/* T14. The word as it must be found by the futex, or 0 where it moved meanwhile. relaxed: the futex call orders. */
static inline uint64_t frame_await(struct frame *f, uint64_t seen)
{
    if (seen & FRAME_WAITERS)
        return seen;
    if (atomic_compare_exchange_strong_explicit(&f->state, &seen, seen | FRAME_WAITERS, memory_order_relaxed,
                                                memory_order_relaxed))
        return seen | FRAME_WAITERS;
    return 0;
}

/* Clears WAITERS before a wake; the woken set it again if they still have to wait. Returns the word before. */
static inline uint64_t frame_clear_waiters(struct frame *f)
{
    return atomic_fetch_and_explicit(&f->state, ~FRAME_WAITERS, memory_order_relaxed);
}

static inline bool frame_is_free(uint64_t s)
{
    return !(s & (FRAME_BOUND | FRAME_TAIL));
}

/* Every combination of bits that a word may show: for tests and bp_pool_check. */
static inline bool frame_is_valid(uint64_t s)
{
    if (frame_is_free(s))
        return !(s & ~FRAME_VERSION);
    if (s & FRAME_TAIL)
        return (s & FRAME_EXCL) && !(s & (FRAME_BOUND | FRAME_PINS | FRAME_READING | FRAME_FAILED | FRAME_DIRTY));
    if (s & (FRAME_READING | FRAME_FAILED))
        return (s & FRAME_EXCL) && !(s & FRAME_DIRTY) &&
               (s & (FRAME_READING | FRAME_FAILED)) != (FRAME_READING | FRAME_FAILED);
    return !((s & FRAME_EXCL) && (s & FRAME_PINS)) && frame_order(s) <= BP_ORDER_MAX;
}

#endif
