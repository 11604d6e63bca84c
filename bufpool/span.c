/* SPDX-License-Identifier: MIT */
/*
 * What is there from a page on without a gap, pinned extent by extent, whatever their sizes, in one walk: nothing is
 * read for it and nothing is waited for. It ends at what is absent, at what is being read, and at what somebody holds
 * exclusively.
 */
#include "bufpool/pool.h"

struct pinning {
    bp_session *s;
    const bp_file *file;
    struct pinned *pin;
    bool warm;
};

static inline bool pin_extent(void *arg, size_t before, uint64_t page, index_entry e, uint64_t *pages)
{
    const struct pinning *p = arg;
    struct pinned *pin = &p->pin[before];
    struct frame *f;
    uint64_t seen;

    if (entry_number(e) >= p->s->frames_total ||
        bpi_examine(p->s, p->file, page, entry_number(e), &pin->head, &seen) == FRAME_NONE || seen & FRAME_EXCL)
        return false;
    f = &p->s->frame[pin->head];
    if (!(p->warm ? frame_pin_from(f, seen)
                  : frame_pin_cool(f, seen))) /* its word moved: once more from what it is now */
        return false;
    if (p->warm)
        hit_noted(p->s, f, seen);
    pin->frame = entry_number(e);
    pin->pages = (1u << frame_order(seen)) - (pin->frame - pin->head);
    *pages = pin->pages;
    return true;
}

unsigned bpi_span_pin(bp_session *s, const bp_file *file, uint64_t page, uint64_t last, unsigned most, bool warm,
                      struct pinned pin[])
{
    struct pinning p = {.s = s, .file = file, .pin = pin, .warm = warm};
    unsigned n = (unsigned)index_batch(&file->index, page, last, most, pin_extent, &p);

    counter_add(&s->refs, n);
    counter_add(&s->count.hits, n);
    return n;
}
