/* SPDX-License-Identifier: MIT */
/* Pages that cannot be read, or are not what they should be. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "bufpool/pool.h"
#include "tests/fault/fault_io.h"
#include "tests/unit/pool_fixture.h"

/* The owner of a file that knows what is in it, and calls some pages bad. */
struct owner {
    const struct data_file *data;
    _Atomic uint64_t bad; /* page; UINT64_MAX: none */
    _Atomic unsigned calls, torn, past_end;
    int answer;
};

static int verify(void *ctx, uint64_t page, const void *at, uint32_t bytes)
{
    struct owner *o = ctx;
    uint64_t left = page < o->data->pages ? o->data->bytes - page * 4096 : 0;

    o->calls++;
    if (bytes != (left < 4096 ? left : 4096) || !bytes)
        o->past_end++;
    else if (!data_page_ok(o->data, page, at))
        o->torn++;
    return page == o->bad ? o->answer : 0;
}

static bp_file *open_owned(bp_pool *pool, struct owner *owner, uint32_t extent_bytes)
{
    struct bp_error error = {0};
    struct bp_file_options o = {
        .size = sizeof(o), .extent_bytes = extent_bytes, .error = &error, .ctx = owner, .verify = verify};
    bp_file *file = NULL;

    cr_assert_eq(bp_file_open(pool, owner->data->path, &o, &file), 0, "%s", error.text);
    return file;
}

/* Each page is shown to the owner once, whole, before anybody sees it; what he says is the outcome. */
Test(damage, the_owner_is_asked)
{
    static const uint32_t extents[] = {0, 16384};
    struct data_file data = data_file_make(100 * 4096 + 17);

    EACH_BACK_END(io)
    for (unsigned i = 0; i < 2; i++) {
        struct owner owner = {.data = &data, .bad = 42, .answer = -EBADMSG};
        struct bp_file_options other = {.size = sizeof(other), .extent_bytes = extents[i], .ctx = &data};
        bp_pool *pool = open_pool(2 << 20, io, 0);
        bp_session *s = open_session(pool, "damage");
        bp_file *file = open_owned(pool, &owner, extents[i]);
        bp_file *same = open_owned(pool, &owner, extents[i]);
        struct bp_view view;

        cr_assert_eq(same, file);
        cr_assert_eq(bp_file_open(pool, data.path, &other, &same), -EEXIST, "another owner");
        cr_assert_eq(bp_file_close(same, NULL), 0);
        cr_assert_eq(bp_read(s, file, 42, &view), -EBADMSG);
        cr_assert_not_null(strstr(bp_session_error(s), "page 42 "), "%s", bp_session_error(s));
        owner.answer = 3;
        cr_assert_lt(bp_read(s, file, 42, &view), 0, "no code of an error is one all the same");
        owner.answer = -EAGAIN;
        cr_assert_lt(bp_read(s, file, 42, &view), 0, "and this one does not mean that it is tried again for ever");
        owner.bad = UINT64_MAX;
        owner.calls = 0;
        for (uint64_t page = 0; page < data.pages; page++) {
            cr_assert_eq(bp_read(s, file, page, &view), 0, "%s", bp_session_error(s));
            cr_assert(data_page_ok(&data, page, view.data));
        }
        cr_assert_eq(owner.calls, data.pages);
        cr_assert_eq(owner.torn + owner.past_end, 0);
        cr_assert_eq(bp_session_close(s), 0);
        close_all(pool);
    }
    data_file_remove(&data);
}
