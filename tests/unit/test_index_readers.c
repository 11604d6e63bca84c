/* SPDX-License-Identifier: MIT */
/*
 * Readers between the stores of a writer. At every store of every operation of a scene readers of all watched pages set
 * out, and stop after none, one, two .. levels; at every later store each of them goes on to the end. So a reader
 * stands inside every node there is while it is filled, split, widened, emptied, taken out, and linked elsewhere. What
 * it comes home with must be something that the page was between its start and its end. One thread does all of it.
 */
#include <stdio.h>
#include <urcu/urcu-bp.h>

#include "bufpool/sync_point.h"
#include "tests/unit/index_fixture.h"

#define S entry_of_shadow(1, 0, 0)
#define T entry_of_shadow(2, 0, 0)

#define WATCHED_MAX 12u
#define STORES_MAX  700u
#define DEPTHS      6u /* the last of them: by the array of leaves, and from there to the slot later */

/* A reader on its way down: the page's slots at `shift` come next; 0: it is home with e. */
struct reader {
    uint64_t page;
    unsigned shift;
    index_entry e;
};

static uint64_t watched[WATCHED_MAX];
static unsigned watched_count;
static index_entry history[STORES_MAX][WATCHED_MAX]; /* what pages were when so many stores were done */
static struct reader reader[STORES_MAX][WATCHED_MAX][DEPTHS];
static unsigned stores;
static unsigned long judged;
static char wrong[160];

TestSuite(index_readers, .init = open_index, .fini = close_index, .timeout = 100);

static void reader_start(struct reader *r, uint64_t page)
{
    uint64_t root = atomic_load_explicit(&x.root, memory_order_acquire);
    bool beyond = index_root_shift(root) < 64 && page >> index_root_shift(root);

    *r = (struct reader){page, beyond ? 0 : index_root_shift(root), beyond ? ENTRY_NONE : index_root_entry(root)};
}

static void reader_step(struct reader *r)
{
    if (!r->shift)
        return;
    r->shift -= INDEX_SHIFT;
    r->e = index_down(x.map, index_slots(r->e), r->page, r->shift);
    if (entry_is_end(r->e)) {
        r->e = index_answer(r->e, r->page, r->shift);
        r->shift = 0;
    }
}

static void reader_set_out(struct reader *r, uint64_t page, unsigned depth)
{
    index_entry leaf = page < x.leaf_pages ? atomic_load(&x.leaf[page / INDEX_SLOTS]) : ENTRY_NONE;

    reader_start(r, page);
    if (depth == DEPTHS - 1 && leaf != ENTRY_NONE)
        *r = (struct reader){page, INDEX_SHIFT, leaf};
    for (unsigned i = 0; i < depth && depth < DEPTHS - 1; i++)
        reader_step(r);
}

/* Home from wherever it stands, and judged; it stays there as well, to come home later too. */
static void reader_ends(unsigned from, unsigned page, unsigned depth)
{
    struct reader r = reader[from][page][depth];
    unsigned i = from;

    while (r.shift)
        reader_step(&r);
    while (i < stores && history[i][page] != r.e)
        i++;
    judged++;
    if (history[i][page] != r.e && !wrong[0])
        snprintf(wrong, sizeof(wrong), "page %#lx from store %u, level %u, to store %u: %#x; was %#x, is %#x",
                 (unsigned long)r.page, from, depth, stores, r.e, history[from][page], history[stores][page]);
}

static void look(const char *name)
{
    if (strcmp(name, "index:store") != 0 || stores + 1 >= STORES_MAX)
        return;
    stores++;
    for (unsigned p = 0; p < watched_count; p++) {
        history[stores][p] = load(watched[p]);
        for (unsigned d = 0; d < DEPTHS; d++)
            reader_set_out(&reader[stores][p][d], watched[p], d);
        for (unsigned from = 0; from < stores; from++)
            for (unsigned d = 0; d < DEPTHS; d++)
                reader_ends(from, p, d);
    }
}

/* Watch these pages from here on; nodes that go are not reused until scene_end. */
static void scene(const uint64_t *page, unsigned n)
{
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0 && n <= WATCHED_MAX, "no nodes");
    memcpy(watched, page, n * sizeof(*page));
    watched_count = n;
    stores = UINT32_MAX; /* the first look is number 0 */
    wrong[0] = 0;
    urcu_bp_read_lock();
    atomic_store(&bpi_sync_hook, look);
    stores = 0;
    for (unsigned p = 0; p < n; p++) {
        history[0][p] = load(page[p]);
        for (unsigned d = 0; d < DEPTHS; d++)
            reader_set_out(&reader[0][p][d], page[p], d);
    }
}

static void scene_end(const char *name)
{
    atomic_store(&bpi_sync_hook, NULL);
    MUST(!wrong[0], "%s: %s", name, wrong);
    MUST(stores > 0 && stores + 1 < STORES_MAX, "%s: %u stores", name, stores);
    urcu_bp_read_unlock();
    MUST(bpi_index_check(&x, NULL), "%s", name);
}

/* As put, without a look at the whole tree in between, and without other nodes than there are. */
static void enter(uint64_t page, unsigned order, uint32_t frame)
{
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
    MUST(bpi_index_insert(&x, page, order, frame, &magazine, &met) == 0, "order %u at %#lx", order,
         (unsigned long)page);
}

Test(index_readers, height_changes)
{
    static const uint64_t page[] = {0, 1, 2, 63, 64, 4096, 1ull << 30, LAST};
    static const uint64_t far[] = {1, 64, 4096, 1ull << 30, LAST};

    enter(0, 0, 5);
    scene(page, COUNT(page));
    for (unsigned i = 0; i < COUNT(far); i++) {
        enter(far[i], 0, 6 + i);
        MUST(take(far[i], 0, 6 + i), "page %#lx", (unsigned long)far[i]);
    }
    for (unsigned i = 0; i < COUNT(far); i++)
        enter(far[i], 0, 6 + i);
    for (unsigned i = COUNT(far); i--;)
        MUST(take(far[i], 0, 6 + i), "page %#lx", (unsigned long)far[i]);
    scene_end("height");
    MUST(take(0, 0, 5), "page 0");
}

Test(index_readers, shadow_is_split_around_a_page)
{
    static const uint64_t page[] = {4095,       4096, 4096 + 69,  4096 + 70, 4096 + 71, 4096 + 127,
                                    4096 + 128, 8191, 8192 + 100, 12287,     12288,     0};

    put_shadow(4096, 12, S);
    put_shadow(8192, 12, T);
    scene(page, COUNT(page));
    enter(4096 + 70, 0, 7);
    enter(8192 + 64, 6, 64);
    MUST(evict(4096 + 70, 0, 7, T) && take(8192 + 64, 6, 64), "both go");
    enter(4096 + 64, 6, 128);
    MUST(take(4096 + 64, 6, 128), "order 6");
    scene_end("shadow");
}

Test(index_readers, tail_of_an_extent_is_looked_up_while_it_is_split)
{
    static const uint64_t page[] = {8192, 8193, 8192 + 63, 8192 + 64, 8192 + 4095, 8192 + 4096, 16382, 16383};
    uint64_t base = 8192;

    enter(base, 13, 1u << 13);
    scene(page, COUNT(page));
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0 && bpi_index_split(&x, 16383, 0, &magazine) == 0, "the last page");
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0 && bpi_index_split(&x, 8192, 6, &magazine) == 0, "the first leaf");
    MUST(take(16383, 0, (1u << 14) - 1) && evict(8192, 6, 1u << 13, S), "pieces go");
    MUST(bpi_index_replace(&x, 8192 + 4096, 11, (1u << 13) + 4096, 1u << 14), "a piece moves");
    scene_end("extent");
    while (live()) {
        struct index_item item;

        MUST(bpi_index_next(&x, 0, &item) && take(item.page, item.order, item.frame), "a piece");
    }
}

/* A narrow entry, a wider one over the same pages, and back: readers of the last page of both. */
Test(index_readers, entry_becomes_wider_and_narrower)
{
    static const uint64_t page[] = {183, 184, 187, 188, 189, 190, 191, 192, 128, 255};

    enter(188, 2, 4);
    enter(1000, 0, 1);
    scene(page, COUNT(page));
    MUST(evict(188, 2, 4, S), "narrow");
    enter(184, 3, 8);
    MUST(evict(184, 3, 8, T), "wider");
    enter(128, 6, 64);
    MUST(evict(128, 6, 64, S), "as wide as a leaf");
    enter(188, 2, 12);
    enter(184, 2, 16);
    MUST(take(188, 2, 12) && evict(184, 2, 16, T), "narrow");
    enter(128, 7, 128);
    MUST(evict(128, 7, 128, T), "two slots");
    enter(191, 0, 3);
    scene_end("wider");
    MUST(take(191, 0, 3) && take(1000, 0, 1), "the rest");
}

Test(index_readers, leaf_is_removed_and_comes_again)
{
    static const uint64_t page[] = {0, 63, 64, 70, 71, 127, 128, 4095, 4096};

    enter(0, 0, 1);
    enter(70, 0, 2);
    enter(4096, 0, 3);
    scene(page, COUNT(page));
    MUST(take(70, 0, 2), "page 70");
    enter(71, 0, 4);
    MUST(evict(71, 0, 4, S), "page 71");
    enter(64, 6, 64); /* over the leaf */
    MUST(take(64, 6, 64), "order 6");
    enter(70, 0, 5);
    MUST(evict(70, 0, 5, T) && bpi_index_reclaim(&x, 1) == 1, "reclaimed");
    enter(127, 0, 6);
    MUST(evict(127, 0, 6, S) && evict(0, 0, 1, T), "shadows");
    enter(0, 12, 4096); /* over both leaves */
    MUST(take(0, 12, 4096), "order 12");
    scene_end("leaf");
    MUST(take(4096, 0, 3), "page 4096");
}

Test(index_readers, node_of_one_shadow_becomes_an_entry)
{
    static const uint64_t page[] = {64, 70, 71, 127, 128, 0};
    index_entry wide = entry_of_shadow(9, 9, 1);

    enter(0, 0, 1);
    for (uint64_t i = 64; i < 128; i++)
        if (i != 70)
            put_shadow(i, 0, S);
    enter(70, 0, 2);
    scene(page, COUNT(page));
    MUST(evict(70, 0, 2, S) && x.node_count == 2, "the leaf has become one entry: %u nodes", x.node_count);
    enter(71, 0, 3);
    MUST(evict(71, 0, 3, S) && x.node_count == 2, "again");
    enter(64, 5, 32);
    MUST(evict(64, 5, 32, wide) && x.node_count == 3, "another shadow in one half");
    enter(96, 5, 32);
    MUST(evict(96, 5, 32, wide) && x.node_count == 2, "and in the other");
    scene_end("merged");
    MUST(take(0, 0, 1), "page 0");
}

Test(index_readers, discards_and_runs)
{
    static const uint64_t page[] = {60, 63, 64, 100, 127, 128, 4096, 5000, 1ull << 18};
    struct index_item item;
    uint32_t frame[100];

    put_shadow(64, 6, S);
    put_shadow(4096, 12, T);
    put_shadow(1ull << 18, 0, T);
    for (uint32_t i = 0; i < 100; i++)
        frame[i] = 1000 + i;
    scene(page, COUNT(page));
    MUST(bpi_magazine_fill(&nodes, &magazine) == 0, "no nodes");
    MUST(bpi_index_insert_run(&x, 60, 0, frame, 30, &magazine, &met) == 30, "a run over a seam");
    MUST(bpi_index_discard(&x, 0, 10000, &item) && item.page == 60, "something live is met");
    for (uint32_t i = 0; i < 30; i++)
        MUST(evict(60 + i, 0, 1000 + i, i & 1 ? S : ENTRY_NONE), "page %u", 60 + i);
    MUST(!bpi_index_discard(&x, 64, 8191, &item), "nothing live");
    MUST(!bpi_index_discard(&x, 0, LAST, &item), "nothing live");
    scene_end("discards");
    MUST(x.node_count == 0 && atomic_load(&x.root) == 0, "all shadows are gone");
}

Test(index_readers, judges_have_work)
{
    static const uint64_t page[] = {0};

    /* the instrument itself: a reader that is home with what the page never was is found out */
    enter(1, 0, 1);
    scene(page, 1);
    judged = 0;
    enter(0, 0, 5);
    MUST(judged >= DEPTHS && !wrong[0], "%lu judged", judged);
    history[0][0] = history[stores][0] = entry_of_frame(99);
    for (unsigned i = 0; i < stores; i++)
        history[i][0] = entry_of_frame(99);
    reader_ends(0, 0, 0);
    MUST(wrong[0], "a wrong answer passes");
    wrong[0] = 0;
    scene_end("judges");
    MUST(take(0, 0, 5) && take(1, 0, 1), "the rest");
}
