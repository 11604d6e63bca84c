/* SPDX-License-Identifier: MIT */
/*
 * The smallest real user of the installed library, valid as C11 and as C++: reads the page of a file that is named on
 * the command line in all ways, and compares it with what the file holds.
 */
#include <bufpool/bufpool.h>

#include <stdio.h>
#include <string.h>

#define PAGE  1u
#define TIMES 8 /* a miss, then warm, then hot: each is another way through the library */

static int compare(bp_session *me, bp_file *file, const unsigned char *wanted)
{
    struct bp_ref ref;
    struct bp_view view;
    struct bp_hint hint = {0};
    unsigned char copy[BP_PAGE_SIZE];
    for (int i = 0; i < TIMES; i++) {
        int err =
            i % 2 ? bp_get(me, file, PAGE, BP_SHARED, &ref) : bp_get_hinted(me, file, PAGE, BP_SHARED, &hint, &ref);
        if (err)
            return err;
        int differs = memcmp(ref.data, wanted, BP_PAGE_SIZE);
        bp_put(&ref);
        err = i % 2 ? bp_read(me, file, PAGE, &view) : bp_read_hinted(me, file, PAGE, &hint, &view);
        if (err)
            return err;
        memcpy(copy, view.data, sizeof(copy));
        if (!bp_view_valid(&view) || differs || memcmp(copy, wanted, sizeof(copy)))
            return 1;
    }
    return bp_get(me, file, PAGE, BP_EXCLUSIVE, &ref) ? 1 : (bp_put(&ref), 0);
}

static int use(const char *path, const unsigned char *wanted)
{
    struct bp_pool_options options;
    bp_pool *pool = NULL;
    bp_file *file = NULL;
    bp_session *me = NULL;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.memory = BP_MEMORY_MIN;
    int err = bp_pool_open(&options, &pool);
    if (!err)
        err = bp_file_open(pool, path, NULL, &file);
    if (!err)
        err = bp_session_open(pool, NULL, &me);
    if (!err)
        err = compare(me, file, wanted);
    if (me && bp_session_close(me) && !err)
        err = 2;
    if (file && bp_file_close(file, NULL) && !err)
        err = 3;
    if (pool && bp_pool_close(pool, NULL) && !err)
        err = 4;
    return err;
}

int main(int argc, char **argv)
{
    static unsigned char wanted[BP_PAGE_SIZE];
    if (argc != 2)
        return 2;
    if (bp_version() != (BP_VERSION_MAJOR << 16 | BP_VERSION_MINOR << 8 | BP_VERSION_PATCH)) {
        fprintf(stderr, "header and library are of different versions\n");
        return 1;
    }
    FILE *stream = fopen(argv[1], "rb");
    if (!stream)
        return 2;
    size_t n = fseek(stream, PAGE * BP_PAGE_SIZE, SEEK_SET) ? 0 : fread(wanted, 1, sizeof(wanted), stream);
    fclose(stream);
    if (n != sizeof(wanted))
        return 2;
    int err = use(argv[1], wanted);
    if (err)
        fprintf(stderr, "failed: %s\n", err < 0 ? bp_strerror(err) : "wrong bytes, or a close that was refused");
    return err ? 1 : 0;
}
