/* SPDX-License-Identifier: MIT */
/* The look at a page of a leaf that is held, for all who go through runs (R15). */
#ifndef BUFPOOL_HELD_H
#define BUFPOOL_HELD_H

#include "bufpool/pool.h"

/*
 * Is an entry of a leaf that is held this page, in an extent of its own, and excluded by nobody? Its word in *seen. Who
 * excludes readers from it afterwards finds the leaf held. seq_cst: so that this look comes after the holding, as his
 * asking comes after the excluding.
 */
static inline bool held_page(const bp_session *s, const bp_file *file, uint64_t page, index_entry e, uint64_t *seen)
{
    uint32_t number = entry_number(e);

    if (number >= s->frames_total)
        return false;
    *seen = atomic_load_explicit(&s->frame[number].state, memory_order_seq_cst);
    return (*seen & (FRAME_BOUND | FRAME_EXCL | FRAME_ORDER)) == FRAME_BOUND &&
           frame_id(&s->frame[number]) == (file->id | page);
}

#endif
