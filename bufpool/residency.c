/* SPDX-License-Identifier: MIT */
/*
 * bp_file_residency: what of a file is in memory, for maps. A walk by the index, which takes locks of nodes for a moment
 * each; nothing is pinned, and nobody is stopped.
 */
#include <errno.h>

#include "bufpool/pool.h"

#define EXTENTS_MOST 16384u /* looked at in one call */

/* Add to each cell what it has of the pages from `page` up to `end`, which are within the cells. */
static void add_to_cells(struct bp_residency cell[], uint64_t cell_pages, uint64_t page, uint64_t end, unsigned order)
{
    while (page < end) {
        uint64_t i = page / cell_pages;
        uint64_t until = (i + 1) * cell_pages < end ? (i + 1) * cell_pages : end;

        cell[i].pages[order] += (uint32_t)(until - page);
        page = until;
    }
}

int bp_file_residency(bp_file *file, uint64_t first, uint64_t cell_pages, struct bp_residency cell[], unsigned n,
                      uint64_t *next)
{
    uint64_t at = *next < first ? first : *next;
    uint64_t end;
    struct index_item item;

    if (bpi_pool_forked(file->pool))
        return BP_FORKED;
    if (!n || !cell_pages || cell_pages > UINT32_MAX || first >= BP_PAGE_MAX || cell_pages * n > BP_PAGE_MAX - first)
        return -EINVAL;
    end = first + cell_pages * n;
    for (unsigned i = 0; i < EXTENTS_MOST && at < end; i++) {
        if (!bpi_index_next(&file->index, at, &item) || item.page >= end) {
            at = end;
            break;
        }
        uint64_t from = item.page > at ? item.page : at;

        at = item.page + (1ull << item.order);
        at = at < end ? at : end;
        add_to_cells(cell, cell_pages, from - first, at - first, item.order);
    }
    *next = at;
    return 0;
}
