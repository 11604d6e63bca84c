/* SPDX-License-Identifier: MIT */
/*
 * The store's parts by themselves, and what it says of files that are not what they should be: the random operations are
 * in model_kv.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv/kv.h"
#include "kv/log.h"
#include "kv/page.h"
#include "kv/space.h"

static uint64_t random_state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 20) % below);
}

static void command(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void command(const char *format, ...)
{
    char line[512];
    va_list list;

    va_start(list, format);
    vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    cr_assert_eq(system(line), 0, "%s", line);
}

static void make_dir(char dir[32])
{
    snprintf(dir, 32, "test-kv-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static struct bytes text(const char *string)
{
    return (struct bytes){string, strlen(string)};
}

/* ---- pages ---- */

/* Keys that begin alike, and are beginnings of each other, in any order; in leaf and inner pages. */
Test(page, entries_in_order)
{
    static const char *const key[] = {"user",      "user0",      "user00",  "user000", "user0000", "user00001",
                                      "user00002", "user000021", "user001", "user1",   "user10",   "user2"};
    enum { COUNT = sizeof(key) / sizeof(key[0]) };

    for (unsigned level = 0; level < 2; level++)
        for (unsigned fences = 0; fences < 2; fences++)
            for (unsigned start = 0; start < COUNT; start++) {
                struct page page;
                unsigned char k[KV_KEY_MAX];
                bool exact;

                page_init(&page, 9, level, text(fences ? "user" : ""),
                          fences ? text("user9") : (struct bytes){NULL, 0});
                cr_assert_eq(page.prefix, fences ? 4 : 0);
                if (level && !fences)
                    page_put(&page, text(""), (struct bytes){"\7\0\0\0\0\0\0\0", 8}, false);
                for (unsigned i = 0; i < COUNT; i++) {
                    uint64_t child = (start + i * 5) % COUNT + 100;

                    page_put(&page, text(key[child - 100]), (struct bytes){&child, 8}, false);
                }
                cr_assert_null(page_wrong(&page, 9), "%s", page_wrong(&page, 9));
                for (unsigned i = 0; i < COUNT; i++) {
                    unsigned slot = page_seek(&page, text(key[i]), &exact);
                    size_t bytes = page_key(&page, slot, k);
                    struct found found;
                    uint64_t child = 0;

                    cr_assert(exact && bytes == strlen(key[i]) && !memcmp(k, key[i], bytes));
                    if (level)
                        child = page_child(&page, slot);
                    else if (page_value(&page, slot, &found) && found.bytes == 8)
                        memcpy(&child, found.at, 8);
                    cr_assert_eq(child, i + 100);
                }
            }
}

/* A page is split anywhere, cut, joined again, packed and unpacked, and is the same. */
Test(page, split_and_join)
{
    for (unsigned round = 0; round < 4000; round++) {
        struct page page, right, joined, copy;
        unsigned char at[KV_KEY_MAX], image[PAGE_BYTES], key[KV_KEY_MAX];
        struct bytes wanted = {key, 0}, middle = {at, 0};
        unsigned slot;
        uint32_t hole;
        size_t packed;

        page_init(&page, 5, 0, text(""), (struct bytes){NULL, 0});
        for (;;) {
            size_t value = draw(300);
            bool exact;

            wanted.count = 1 + draw(round % 3 ? 30 : 400);
            for (size_t i = 0; i < wanted.count; i++)
                key[i] = (unsigned char)(i + 3 < wanted.count ? 'k' : 'a' + draw(26));
            slot = page_seek(&page, wanted, &exact);
            if (!page_fits(&page, wanted.count, value, exact ? (int)slot : -1))
                break;
            page_put(&page, wanted, (struct bytes){image, value}, draw(2));
            if (draw(8) == 0)
                page_remove(&page, draw(page.count));
        }
        cr_assert_null(page_wrong(&page, 5), "%s", page_wrong(&page, 5));
        packed = page_pack(&page, image, &hole);
        cr_assert(page_unpack(&copy, image, packed, hole));
        cr_assert_null(page_wrong(&copy, 5));
        cr_assert_eq(copy.count, page.count);
        middle.count = page_split_key(&page, wanted, &slot, at);
        if (!middle.count)
            continue;
        page_init(&right, 6, 0, middle, (struct bytes){NULL, 0});
        page_append(&right, &page, slot, page.count);
        page_cut(&page, slot, middle);
        cr_assert_null(page_wrong(&page, 5), "%s", page_wrong(&page, 5));
        cr_assert_null(page_wrong(&right, 6), "%s", page_wrong(&right, 6));
        cr_assert_eq(page.count + right.count, copy.count);
        cr_assert(page_join(&joined, &page, &right));
        cr_assert_null(page_wrong(&joined, 5));
        for (unsigned i = 0; i < copy.count; i++) {
            struct found a, b;

            cr_assert_eq(page_key(&copy, i, at), page_key(&joined, i, key));
            cr_assert(page_value(&copy, i, &a) && page_value(&joined, i, &b));
            cr_assert(a.bytes == b.bytes && a.large == b.large && !memcmp(a.at, b.at, a.bytes));
        }
    }
}

/* What is torn may be anything: no answer matters, but nothing outside the page is touched (address sanitizer). */
Test(page, torn)
{
    struct page *page = malloc(PAGE_BYTES);
    unsigned char key[KV_KEY_MAX], *bytes = (unsigned char *)page, value[INLINE_MAX];

    cr_assert_not_null(page);
    for (unsigned round = 0; round < 20000; round++) {
        struct bytes wanted = {key, draw(20)};
        struct found found;
        bool exact;
        unsigned slot;

        for (unsigned i = 0; i < 16; i++)
            key[i] = (unsigned char)draw(256);
        if (round % 100 == 0)
            for (unsigned i = 0; i < PAGE_BYTES; i++)
                bytes[i] = (unsigned char)draw(256);
        bytes[draw(200)] = (unsigned char)draw(256);
        page->level = (uint8_t)draw(2);
        page->prefix = (uint16_t)draw(20);
        slot = page_seek(page, wanted, &exact);
        if (page_value(page, slot, &found))
            page_take(value, &found);
        (void)page_child(page, page_child_slot(page, wanted, draw(2)));
    }
    free(page);
}

/* ---- space ---- */

/* No page is handed out twice; what is freed comes back only behind a checkpoint; a reload agrees. */
Test(space, extents)
{
    static struct {
        uint64_t page;
        unsigned order;
    } held[2000];
    static unsigned char owner[1 << 20];
    struct space space, again;
    unsigned count = 0;
    uint64_t lsn = 0, pages = 0, released = 0;
    unsigned char *bits;

    cr_assert_eq(space_init(&space), 0);
    for (unsigned round = 0; round < 30000; round++) {
        lsn++;
        if (count < 2000 && draw(100) < (round % 10000 < 5000 ? 60u : 40u)) {
            unsigned order = draw(20) ? draw(4) : draw(SPACE_ORDER_MAX + 1);
            uint64_t page;

            cr_assert_eq(space_take(&space, order, &page), 0);
            cr_assert_eq(page % (1u << order), 0);
            cr_assert_lt(page + (1u << order), sizeof(owner) + 1);
            for (uint64_t i = page; i < page + (1u << order); i++)
                cr_assert_eq(owner[i]++, 0, "page %llu is handed out twice", (unsigned long long)i);
            if (draw(10) == 0) { /* it came to nothing */
                for (uint64_t i = page; i < page + (1u << order); i++)
                    owner[i]--;
                space_give(&space, page, order);
                continue;
            }
            cr_assert(space_log_use(&space, page, order));
            cr_assert_not(space_log_use(&space, page, order));
            held[count].page = page;
            held[count++].order = order;
        } else if (count) {
            unsigned i = draw(count);

            cr_assert(space_log_free(&space, held[i].page, held[i].order, lsn));
            cr_assert_not(space_log_free(&space, held[i].page, held[i].order, lsn));
            memset(owner + held[i].page, 100, 1u << held[i].order); /* free only from a checkpoint on */
            held[i] = held[--count];
        }
        if (round % 1000 == 999) {
            for (unsigned i = 0; i < sizeof(owner); i++)
                owner[i] = owner[i] >= 100 ? 0 : owner[i];
            space_release(&space, lsn);
            released++;
        }
    }
    bits = space_copy(&space, &pages);
    cr_assert_not_null(bits);
    cr_assert_eq(space_init(&again), 0);
    cr_assert_eq(space_load(&again, bits, pages), 0);
    cr_assert_eq(space_settle(&again), 0);
    cr_assert_eq(space_used_pages(&again), space_used_pages(&space));
    for (uint64_t i = 0; i < pages; i++)
        cr_assert_eq(space_in_use(&again, i), owner[i] == 1);
    cr_assert(released > 0);
    free(bits);
    space_end(&again);
    space_end(&space);
}

/* ---- the log ---- */

static uint64_t append(struct log *log, uint32_t number, size_t bytes)
{
    struct log_record record = {.count = sizeof(struct record) + bytes, .entries = (int32_t)number};
    uint64_t lsn = 0;

    record.bytes = malloc(record.count);
    memset(record.bytes, (int)number, record.count);
    cr_assert_eq(log_append(log, &record, log_floor(log), NULL, NULL, &lsn), 0);
    free(record.bytes);
    return lsn;
}

/* How many records there are; what log_next says at the end. */
static uint32_t read_log_back(struct log *log, int *end, bool *stale)
{
    struct log_reader reader = {.log = log, .at = log->end};
    const struct record *record;
    uint32_t count = 0;

    while ((*end = log_next(&reader, &record)) == 0) {
        const unsigned char *body = (const unsigned char *)(record + 1);

        cr_assert_eq(record->entries, (int32_t)count);
        for (uint32_t i = 0; i < record->body; i++)
            cr_assert_eq(body[i], (unsigned char)count);
        count++;
    }
    *stale = reader.stale;
    if (*end == 1)
        cr_assert_eq(log_cut(log, reader.at, reader.stale), 0);
    free(reader.bytes);
    return count;
}

static void flip(const char *dir, const char *name, off_t at)
{
    char path[300];
    unsigned char byte;
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/*
 * Across segments; a damaged record is the end if nothing says that it had been durable, and damage if something does; what
 * lay behind the end does not come back.
 */
Test(log, ends)
{
    char dir[32], why[200];
    struct log log;
    uint64_t lsn[60], first_end;
    bool stale;
    int end, fd;

    make_dir(dir);
    fd = open(dir, O_RDONLY | O_DIRECTORY);
    cr_assert_eq(log_init(&log, fd, 42, 0), 0);
    for (unsigned i = 0; i < 60; i++) /* past the first segment, which has 16 MiB */
        lsn[i] = append(&log, i, i % 10 == 9 ? 2500000 : 100 + i);
    cr_assert_eq(log_commit(&log, lsn[59], false), 0);
    log_end(&log);

    cr_assert_eq(log_init(&log, fd, 42, 0), 0);
    cr_assert_eq(log_find(&log, why, sizeof(why)), 0, "%s", why);
    cr_assert_eq(read_log_back(&log, &end, &stale), 60);
    cr_assert(end == 1 && !stale);
    append(&log, 60, 5);
    append(&log, 61, 6);
    cr_assert_eq(log_commit(&log, lsn[59] + 8, false),
                 0); /* both, by one sync: neither says that the other is durable */
    log_end(&log);

    flip(dir, "log.0", (off_t)(LOG_HEADER_BYTES + lsn[4] + sizeof(struct record) + 3));
    cr_assert_eq(log_init(&log, fd, 42, 0), 0);
    cr_assert_eq(log_find(&log, why, sizeof(why)), 0);
    read_log_back(&log, &end, &stale);
    cr_assert_eq(end, KV_DAMAGED, "records that were durable behind a damaged one");
    log_end(&log);
    flip(dir, "log.0", (off_t)(LOG_HEADER_BYTES + lsn[4] + sizeof(struct record) + 3));

    first_end = lsn[59] % LOG_SEGMENT_BYTES; /* record 60 begins here */
    snprintf(why, sizeof(why), "log.%u", (unsigned)(lsn[59] / LOG_SEGMENT_BYTES));
    flip(dir, why, (off_t)(LOG_HEADER_BYTES + first_end + sizeof(struct record) + 2));
    cr_assert_eq(log_init(&log, fd, 42, 0), 0);
    cr_assert_eq(log_find(&log, why, sizeof(why)), 0);
    cr_assert_eq(read_log_back(&log, &end, &stale), 60);
    cr_assert(end == 1 && stale);
    append(&log, 60, 5); /* as long as the one that was damaged: 61 would follow, were it still there */
    cr_assert_eq(log_sync(&log), 0);
    log_end(&log);
    cr_assert_eq(log_init(&log, fd, 42, 0), 0);
    cr_assert_eq(log_find(&log, why, sizeof(why)), 0);
    cr_assert_eq(read_log_back(&log, &end, &stale), 61);
    log_end(&log);

    cr_assert_eq(log_init(&log, fd, 43, 0), 0);
    cr_assert_eq(log_find(&log, why, sizeof(why)), KV_FOREIGN);
    log_end(&log);
    close(fd);
    command("rm -rf %s", dir);
}

/* ---- files that are not what they should be ---- */

static int try_open(const char *dir, bool create, kv **store, struct kv_error *error)
{
    struct kv_options how = {
        .size = sizeof(how), .memory = 2u << 20, .sync = KV_SYNC_ALWAYS, .create = create, .error = error};

    memset(error, 0, sizeof(*error));
    return kv_open(dir, &how, store);
}

/* A store with small and large values; `open`: as a crash leaves it, with log to be applied. */
static void make_store(const char *dir, bool crashed)
{
    char value[5000], path[80];
    struct kv_error error;
    kv_session *s;
    kv *store;

    cr_assert_eq(try_open(dir, true, &store, &error), 0, "%s", error.text);
    cr_assert_eq(kv_session_open(store, &s), 0);
    kv_session_defer(s, true);
    memset(value, 'v', sizeof(value));
    for (unsigned i = 0; i < 2000; i++) {
        if (i == 1000)
            cr_assert_eq(kv_checkpoint(s), 0, "%s", kv_session_error(s));
        cr_assert_eq(kv_put(s, &i, sizeof(i), value, i % 100 ? 50 : sizeof(value)), 0);
    }
    if (crashed) {
        snprintf(path, sizeof(path), "%s.crash", dir);
        cr_assert_eq(kv_commit(s), 0);
        command("mkdir %s && cp %s/data %s/values %s && cp %s/log.* %s/checkpoint %s", path, dir, dir, path, dir, dir,
                path);
    }
    kv_session_close(s);
    cr_assert_eq(kv_close(store, &error), 0, "%s", error.text);
    if (crashed)
        command("rm -rf %s && mv %s %s", dir, path, dir);
}

/* Open, read everything, check: whatever the damage, an error or the right data. */
static int use_store(const char *dir)
{
    struct kv_check_result result;
    struct kv_error error;
    const void *key, *value;
    size_t key_bytes, bytes;
    kv_session *s;
    kv_scan *scan;
    kv *store;
    int rc = try_open(dir, false, &store, &error), end;

    if (rc) {
        cr_assert(error.text[0], "an error without words");
        return rc;
    }
    cr_assert_eq(kv_session_open(store, &s), 0);
    cr_assert_eq(kv_scan_open(s, NULL, 0, NULL, 0, 0, &scan), 0);
    while (!(rc = kv_scan_next(scan, &key, &key_bytes, &value, &bytes)))
        for (size_t i = 0; i < bytes; i++)
            cr_assert_eq(((const char *)value)[i], 'v', "wrong data without an error");
    kv_scan_close(scan);
    end = kv_check(s, NULL, NULL, &result);
    if (end)
        cr_assert(kv_session_error(s)[0]);
    kv_session_close(s);
    (void)kv_close(store, &error);
    return rc == KV_NOT_FOUND ? end : rc;
}

Test(store, damaged_files)
{
    static const char *const name[] = {"data", "values", "checkpoint", "log.0"};
    char dir[32], copy[48], path[100];

    make_dir(dir);
    for (unsigned crashed = 0; crashed < 2; crashed++) {
        make_store(dir, crashed);
        snprintf(copy, sizeof(copy), "%s.copy", dir);
        command("cp -r %s %s", dir, copy);
        cr_assert_eq(use_store(copy), 0);
        for (unsigned f = 0; f < 4; f++) {
            struct stat st;
            unsigned noticed = 0;

            snprintf(path, sizeof(path), "%s/%s", dir, name[f]);
            cr_assert_eq(stat(path, &st), 0);
            for (unsigned how = 0; how < 5; how++) {
                command("rm -rf %s && cp -r %s %s", copy, dir, copy);
                snprintf(path, sizeof(path), "%s/%s", copy, name[f]);
                if (how == 0)
                    cr_assert_eq(truncate(path, st.st_size / 2), 0);
                else if (how == 1)
                    cr_assert_eq(truncate(path, 0), 0);
                else if (how == 2)
                    command("cp /bin/sh %s", path);
                else
                    flip(copy, name[f],
                         how == 3 ? 5 : (off_t)draw((uint32_t)(st.st_size < 200000 ? st.st_size : 200000)));
                noticed += use_store(copy) != 0;
            }
            cr_expect_geq(noticed, 3, "%s: cut and foreign files must be noticed", name[f]);
        }
        command("rm -rf %s %s", dir, copy);
    }
}

Test(store, refuses)
{
    char dir[32], path[80], key[KV_KEY_MAX + 1] = {1};
    struct kv_error error;
    kv *store = NULL, *second = NULL;
    const void *value;
    kv_session *s;
    size_t bytes;
    pid_t pid;
    int status;

    make_dir(dir);
    cr_assert_eq(try_open(dir, false, &store, &error), KV_NO_STORE);
    snprintf(path, sizeof(path), "%s/none", dir);
    cr_assert_eq(try_open(path, false, &store, &error), -ENOENT);
    cr_assert_eq(try_open(dir, true, &store, &error), 0, "%s", error.text);
    pid = fork(); /* a lock of flock(2) belongs to the open file, so even this process would be refused */
    if (!pid)
        _exit(try_open(dir, true, &second, &error) == KV_IN_USE && strstr(error.text, "open") ? 0 : 1);
    cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(kv_session_open(store, &s), 0);
    cr_assert_eq(kv_close(store, &error), -EBUSY);
    cr_assert_eq(kv_put(s, key, 0, "v", 1), -EINVAL);
    cr_assert_eq(kv_put(s, key, KV_KEY_MAX + 1, "v", 1), KV_TOO_LARGE);
    cr_assert_eq(kv_put(s, key, 1, key, KV_VALUE_MAX + 1u), KV_TOO_LARGE);
    cr_assert_eq(kv_get(s, key, 1, &value, &bytes), KV_NOT_FOUND);
    cr_assert_eq(kv_delete(s, key, 1), KV_NOT_FOUND);
    cr_assert_eq(kv_put(s, key, KV_KEY_MAX, "", 0), 0);
    cr_assert_eq(kv_get(s, key, KV_KEY_MAX, &value, &bytes), 0);
    cr_assert_eq(bytes, 0);
    kv_session_close(s);
    cr_assert_eq(kv_close(store, &error), 0, "%s", error.text);
    command("rm -rf %s", dir);
}

/* The largest value there is; and extents of any size come back after a delete. */
Test(store, large_values)
{
    char dir[32], *large = malloc(KV_VALUE_MAX);
    struct kv_check_result result;
    struct kv_error error;
    struct kv_stat stat;
    const void *value;
    kv_session *s;
    size_t bytes;
    kv *store;

    make_dir(dir);
    cr_assert_not_null(large);
    for (size_t i = 0; i < KV_VALUE_MAX; i++)
        large[i] = (char)(i * 2654435761u >> 13);
    for (unsigned round = 0; round < 2; round++) {
        cr_assert_eq(try_open(dir, true, &store, &error), 0, "%s", error.text);
        cr_assert_eq(kv_session_open(store, &s), 0);
        if (round == 0)
            cr_assert_eq(kv_put(s, "k", 1, large, KV_VALUE_MAX), 0, "%s", kv_session_error(s));
        cr_assert_eq(kv_get(s, "k", 1, &value, &bytes), 0, "%s", kv_session_error(s));
        cr_assert(bytes == KV_VALUE_MAX && !memcmp(value, large, bytes));
        for (size_t size = 1000; size < 1000000; size += size / 3) {
            cr_assert_eq(kv_put(s, "l", 1, large, size), 0, "%s", kv_session_error(s));
            cr_assert_eq(kv_get(s, "l", 1, &value, &bytes), 0, "%s", kv_session_error(s));
            cr_assert(bytes == size && !memcmp(value, large, bytes));
        }
        if (round == 1)
            cr_assert(!kv_delete(s, "k", 1) && !kv_delete(s, "l", 1));
        cr_assert_eq(kv_check(s, NULL, NULL, &result), 0, "%s", kv_session_error(s));
        cr_assert_eq(kv_stat(store, &stat), 0);
        cr_assert_eq(stat.value_pages, result.value_pages);
        if (round == 1)
            cr_assert_eq(stat.value_pages, 0);
        kv_session_close(s);
        cr_assert_eq(kv_close(store, &error), 0, "%s", error.text);
    }
    free(large);
    command("rm -rf %s", dir);
}
