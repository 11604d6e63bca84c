/* SPDX-License-Identifier: MIT */
/* Ranges that are mapped, and what the owner of a file says of its pages; through the public header. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

#define IOVECS 16u

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* The bytes of a map are the file's. */
static void check_map(const struct data_file *data, uint64_t offset, const struct iovec iov[], const struct bp_map *map)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < map->count; i++) {
        cr_assert_eq(memcmp(iov[i].iov_base, data->content + offset + bytes, iov[i].iov_len), 0, "at %lu",
                     (unsigned long)(offset + bytes));
        bytes += iov[i].iov_len;
    }
    cr_assert_eq(bytes, map->bytes);
}

/* A range by as many maps as it takes. */
static void map_whole(bp_session *s, bp_file *file, const struct data_file *data, uint64_t offset, size_t len,
                      unsigned n)
{
    uint64_t end = offset + len < data->bytes ? offset + len : data->bytes;

    for (;;) {
        struct iovec iov[IOVECS];
        struct bp_map map;

        cr_assert_eq(bp_map_range(s, file, offset, len, 0, iov, n, &map), 0, "%s", bp_session_error(s));
        cr_assert_leq(map.count, n);
        cr_assert_leq(map.bytes, len);
        check_map(data, offset, iov, &map);
        offset += map.bytes;
        len -= map.bytes;
        if (!map.bytes)
            break;
        bp_unmap(&map);
        bp_unmap(&map);
    }
    cr_assert_eq(offset, end, "0 bytes mean the end, and nothing else");
}

Test(map, ranges_of_any_size_and_alignment)
{
    static const uint32_t extents[] = {0, 16384, 65536};
    struct data_file data = data_file_make(700 * 4096 + 1234);
    uint64_t random = 7;

    EACH_BACK_END(io)
    for (unsigned i = 0; i < 3; i++) {
        bp_pool *pool = open_pool(i < 2 ? 1 << 20 : 6 << 20, io, 0);
        bp_session *s = open_session(pool, "map");
        bp_file *file = open_file(pool, data.path, extents[i]);

        map_whole(s, file, &data, 0, data.bytes, IOVECS);
        map_whole(s, file, &data, 0, data.bytes + 5, 1);
        for (unsigned k = 0; k < 200; k++)
            map_whole(s, file, &data, draw(&random) % data.bytes, draw(&random) % 100000, 1 + k % IOVECS);
        map_whole(s, file, &data, data.bytes - 1, 1, 1);
        cr_assert_eq(stat_of(pool, "frames_pinned"), 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}

Test(map, what_is_wrong_is_said)
{
    struct data_file data = data_file_make(10 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 0);
    bp_session *s = open_session(pool, "map");
    bp_file *file = open_file(pool, data.path, 0);
    struct iovec iov[2];
    struct bp_map map;

    cr_assert_eq(bp_map_range(s, file, 0, 1, 1u << 9, iov, 2, &map), -EINVAL);
    bp_unmap(&map);
    cr_assert_eq(bp_map_range(s, file, 0, 1, 0, iov, 0, &map), -EINVAL);
    cr_assert_eq(bp_map_range(s, file, data.bytes, 1, 0, iov, 2, &map), 0);
    cr_assert_eq(map.bytes + map.count, 0, "the end");
    cr_assert_eq(bp_map_range(s, file, UINT64_MAX, SIZE_MAX, 0, iov, 2, &map), 0);
    cr_assert_eq(map.bytes, 0);
    cr_assert_eq(bp_map_range(s, file, 0, 0, 0, iov, 2, &map), 0);
    cr_assert_eq(map.bytes, 0);
    cr_assert_eq(bp_map_range(s, file, 5000, SIZE_MAX, 0, iov, 2, &map), 0);
    cr_assert(map.bytes > 0);
    cr_assert_eq(bp_session_close(s), -EBUSY, "its pages are out");
    bp_unmap(&map);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* Maps lie over each other; what they hold stays, whatever else is read; and who wants to write waits for the last. */
Test(map, what_is_mapped_stays)
{
    struct data_file data = data_file_make(600 * 4096);
    bp_pool *pool = open_pool(1 << 20, BP_IO_TRY, 50);
    bp_session *s = open_session(pool, "map");
    bp_session *other = open_session(pool, "writer");
    bp_file *file = open_file(pool, data.path, 0);
    struct iovec iov[3][IOVECS];
    struct bp_map map[3];
    struct bp_view view;
    struct bp_ref ref;

    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(bp_map_range(s, file, 4096 * 3 + i * 100, 20000, 0, iov[i], IOVECS, &map[i]), 0);
        cr_assert_geq(map[i].bytes, 4096);
    }
    for (uint64_t page = 50; page < 600; page++)
        cr_assert_eq(bp_read(other, file, page, &view), 0, "%s", bp_session_error(other));
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(bp_get(other, file, 3, BP_EXCLUSIVE, &ref), -EBUSY);
        check_map(&data, 4096 * 3 + i * 100, iov[i], &map[i]);
        bp_unmap(&map[i]);
    }
    cr_assert_eq(bp_get(other, file, 3, BP_EXCLUSIVE, &ref), 0, "%s", bp_session_error(other));
    bp_put(&ref);
    cr_assert_eq(bp_session_close(other), 0);
    cr_assert_eq(bp_session_close(s), 0);
    close_all(pool);
    data_file_remove(&data);
}

/* An event loop sends a file from where it lies, and never waits for anything but its descriptors. */
Test(map, a_stream_from_an_event_loop)
{
    struct data_file data = data_file_make(500 * 4096 + 99);

    EACH_BACK_END(io)
    {
        bp_pool *pool = open_pool(1 << 20, io, 0);
        bp_session *s = open_session(pool, "map");
        bp_file *file = open_file(pool, data.path, 0);
        char *received = malloc(data.bytes);
        uint64_t sent = 0, got = 0;
        unsigned waits = 0;
        int pair[2];

        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        while (got < data.bytes) {
            struct iovec iov[IOVECS];
            struct bp_map map;
            ssize_t n;
            int rc = bp_map_range(s, file, sent, 1 << 20, BP_MAP_NOWAIT, iov, IOVECS, &map);

            if (rc == -EAGAIN) {
                struct bp_event event = {.result = -1};

                waits++;
                rc = bp_get_start(s, file, sent / 4096, BP_SHARED, 0, NULL, &event.ref);
                if (rc == BP_PENDING) {
                    struct pollfd p = {.fd = bp_session_fd(s), .events = POLLIN};

                    while ((rc = bp_poll(s, &event, 1, 0)) == 0)
                        poll(&p, 1, 1000);
                    cr_assert_eq(rc, 1);
                    cr_assert_eq(event.result, 0, "%s", bp_session_error(s));
                } else {
                    cr_assert_eq(rc, 0);
                }
                bp_put(&event.ref);
                continue;
            }
            cr_assert_eq(rc, 0, "%s", bp_session_error(s));
            n = map.bytes ? writev(pair[0], iov, (int)map.count) : 0;
            if (n > 0)
                sent += (uint64_t)n;
            bp_unmap(&map);
            while ((n = read(pair[1], received + got, data.bytes - got)) > 0)
                got += (uint64_t)n;
        }
        cr_assert_eq(sent, data.bytes);
        cr_assert_gt(waits, 0);
        cr_assert_eq(memcmp(received, data.content, data.bytes), 0);
        close(pair[0]);
        close(pair[1]);
        free(received);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}
