/* SPDX-License-Identifier: MIT */
/* All sequences of given operations, up to a length: index_model.h. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/model/index_model.h"

/* Shadows of whatever extents there are at so many pages. */
static bool leave_all(uint64_t page, unsigned pages)
{
    bool good = true;

    for (unsigned i = 0; i < pages && good; i++)
        good = do_erase_at(0, page + i, true);
    return good;
}

static bool do_op(const struct op *op, unsigned step)
{
    uint32_t frame = (step + 1) << INDEX_ORDER_MAX;

    switch (op->kind) {
    case OP_INSERT:
        return do_insert(0, op->page, op->order, frame);
    case OP_RUN:
        return do_run(0, op->page, op->order, 4);
    case OP_LEAVE:
        return do_erase_at(0, op->page, true);
    case OP_LEAVE_ALL:
        return leave_all(op->page, op->order);
    case OP_ERASE:
        return do_erase_at(0, op->page, false);
    case OP_REPLACE:
        return do_replace_at(0, op->page, frame + (8u << INDEX_ORDER_MAX));
    case OP_SPLIT:
        return do_split(0, op->page, op->order);
    case OP_RECLAIM:
        return do_reclaim(0, (unsigned)op->page);
    case OP_DISCARD:
        return do_discard(0, op->page, op->page + op->order - 1);
    case OP_MARK:
        return do_mark(0, op->page, op->order, true);
    case OP_UNMARK:
        return do_mark(0, op->page, op->order, false);
    case OP_COPY_MARKS:
        return do_mark_those(0, op->page, op->page + op->order - 1, INDEX_DIRTY, INDEX_TO_WRITE, 1 + step % 2);
    }
    return false;
}

static void op_print(const struct op *op)
{
    static const char *const name[] = {"insert",
                                       "run",
                                       "erase leaving a shadow",
                                       "erase leaving shadows",
                                       "erase",
                                       "replace",
                                       "split",
                                       "reclaim",
                                       "discard",
                                       "mark",
                                       "unmark",
                                       "copy marks"};

    fprintf(stderr, "  %s %#" PRIx64 " %u\n", name[op->kind], op->page, op->order);
}

static bool sequences_of(const char *what, const struct op *op, unsigned ops, unsigned length)
{
    unsigned digit[16] = {0};
    unsigned long sequences = 0;
    unsigned at;

    do {
        bool good = true;

        for (unsigned i = 0; i < length && good; i++) {
            good = do_op(&op[digit[i]], i);
            if (good && !bpi_index_check(&index_of[0], NULL))
                good = fail("bpi_index_check says no");
        }
        if (!good || !same_items(0) || !do_clear(0)) {
            fprintf(stderr, "%s, fan-out %u: %s\n", what, INDEX_SLOTS, failure);
            for (unsigned i = 0; i < length; i++)
                op_print(&op[digit[i]]);
            return false;
        }
        sequences++;
        for (at = 0; at < length && ++digit[at] == ops; at++)
            digit[at] = 0;
    } while (at < length);
    printf("%s, fan-out %u: %lu sequences of %u operations\n", what, INDEX_SLOTS, sequences, length);
    return true;
}

bool all_sequences(const char *what, const struct op *op, unsigned ops, unsigned length)
{
    for (unsigned n = 1; n <= length; n++)
        if (!sequences_of(what, op, ops, n))
            return false;
    return true;
}
