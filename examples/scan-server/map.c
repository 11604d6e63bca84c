/* SPDX-License-Identifier: MIT */
/*
 * /map: what of a file is in memory, for pictures. The file is cut into cells; of each are told the pages in memory, by
 * the order of their extents. Looking takes its time in a large pool, so it is done in steps, between other clients'.
 */
#include "scan-server/json.h"
#include "scan-server/scan.h"

#include <stdlib.h>

#define CELLS_MAX   2048u
#define CELLS_USUAL 512u

struct map {
    const struct serve_file *file;
    uint64_t bytes; /* of the file */
    uint64_t cell_pages, next;
    unsigned cells;
    struct bp_residency cell[];
};

static size_t map_bytes(unsigned cells)
{
    return sizeof(struct map) + cells * sizeof(struct bp_residency);
}

void map_forget(struct client *client)
{
    if (!client->map)
        return;
    serve_budget_give(&server_of(client)->budget, map_bytes(client->map->cells));
    free(client->map);
    client->map = NULL;
}

void map_respond(struct client *client, const struct query *query)
{
    const struct serve_file *file = respond_file(client, query_value(query, "file"));
    struct serve_budget *budget = &server_of(client)->budget;
    uint64_t wanted, bytes, pages;
    struct map *map = NULL;
    unsigned cells;
    int code;

    if (!file || !query_number(query, "cells", CELLS_MAX, CELLS_USUAL, &wanted) || !wanted) {
        respond_error(client, HTTP_STATUS_BAD_REQUEST, "", "no such file, or cells is not a number from 1 to 2048");
        return;
    }
    code = bp_file_size(file->file, &bytes);
    if (code) {
        respond_error(client, HTTP_STATUS_INTERNAL_SERVER_ERROR, "", bp_strerror(code));
        return;
    }
    pages = (bytes + BP_PAGE_SIZE - 1) / BP_PAGE_SIZE;
    cells = (unsigned)(wanted < pages ? wanted : pages);
    if (serve_budget_take(budget, map_bytes(cells))) {
        map = calloc(1, map_bytes(cells));
        if (!map)
            serve_budget_give(budget, map_bytes(cells));
    }
    if (!map) {
        respond_error(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "", NULL);
        return;
    }
    map->file = file;
    map->bytes = bytes;
    map->cells = cells;
    map->cell_pages = cells ? (pages + cells - 1) / cells : 1;
    client->map = map;
}

static void write_cells(const struct map *map, struct text *json)
{
    text_puts(json, "{\"file\": ");
    json_string(json, map->file->name);
    text_printf(json, ", \"bytes\": %llu, \"resident\": %llu, \"cell_bytes\": %llu,\n\"cells\": [",
                (unsigned long long)map->bytes, (unsigned long long)bp_file_resident(map->file->file),
                (unsigned long long)map->cell_pages * BP_PAGE_SIZE);
    for (unsigned i = 0; i < map->cells; i++) {
        const char *before = "";

        if ((uint64_t)i * map->cell_pages * BP_PAGE_SIZE >= map->bytes)
            break; /* rounding may have left less for the last ones */
        text_puts(json, i ? ",[" : "[");
        for (unsigned order = 0; order <= BP_ORDER_MAX; order++) {
            if (map->cell[i].pages[order]) {
                text_printf(json, "%s%u,%u", before, order, map->cell[i].pages[order]);
                before = ",";
            }
        }
        text_puts(json, "]");
    }
    text_puts(json, "]}\n");
}

enum serve_step map_step(struct client *client)
{
    struct text json = {.budget = &server_of(client)->budget};
    struct map *map = client->map;
    int code =
        map->cells ? bp_file_residency(map->file->file, 0, map->cell_pages, map->cell, map->cells, &map->next) : 0;

    if (!code && map->next < map->cells * map->cell_pages)
        return STEP_MORE;
    if (!code)
        write_cells(map, &json);
    map_forget(client);
    if (code)
        respond_error(client, HTTP_STATUS_INTERNAL_SERVER_ERROR, "", bp_strerror(code));
    else if (json.failed)
        respond_error(client, HTTP_STATUS_SERVICE_UNAVAILABLE, "", NULL);
    else
        respond_text(client, "application/json", text_at(&json), text_bytes(&json));
    text_free(&json);
    return STEP_MORE;
}
