/* SPDX-License-Identifier: MIT */
/*
 * Machines that refuse things: io_uring, memory that may be locked, huge pages, binding. The pool works all the same
 * and says what it used instead; who insists gets an error that names what stood in the way. Each case runs in a child
 * that has given up the right first.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bufpool/bufpool.h"
#include "tests/unit/data_file.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZER
#endif

#define MUST(what)                                             \
    do {                                                       \
        if (!(what)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            _exit(1);                                          \
        }                                                      \
    } while (0)

/* From now on this system call answers so in this process. */
static void forbid(long number, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)error & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

    MUST(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void become_nobody(rlim_t memlock)
{
    struct rlimit limit = {memlock, memlock};

    MUST(!setrlimit(RLIMIT_MEMLOCK, &limit));
    MUST(!setgid(65534) && !setuid(65534));
}

static const struct bp_cap *cap_named(const struct bp_cap *cap, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(cap[i].name, name))
            return &cap[i];
    fprintf(stderr, "bp_pool_caps names no %s\n", name);
    _exit(1);
}

/* Serve the whole file and answer with what bp_pool_caps says of `name`. */
static struct bp_cap serve_all(const struct data_file *data, struct bp_pool_options o, const char *name)
{
    struct bp_error error = {0};
    struct bp_event event;
    struct bp_cap cap[16];
    bp_pool *pool = NULL;
    bp_session *s;
    struct bp_file_options fo = {.size = sizeof(fo), .readahead = BP_OFF};
    bp_file *file;
    struct bp_ref ref;
    uint64_t page;
    int n;
    int rc;

    o.size = sizeof(o);
    o.memory = o.memory ? o.memory : 1 << 20;
    o.error = &error;
    rc = bp_pool_open(&o, &pool);
    if (rc)
        fprintf(stderr, "%s\n", error.text);
    MUST(!rc && !bp_file_open(pool, data->path, &fo, &file) && !bp_session_open(pool, NULL, &s));
    for (page = 0; page < data->pages; page++) {
        rc = bp_get(s, file, page, BP_SHARED, &ref);
        if (rc)
            fprintf(stderr, "%s\n", bp_session_error(s));
        MUST(!rc && data_page_ok(data, page, ref.data));
        bp_put(&ref);
    }
    page = data->pages - data->pages / 4; /* of a scan the first pages stay, and the last ones */
    rc = bp_get_start(s, file, page, BP_SHARED, 0, NULL, &event.ref); /* the other way in works too */
    if (rc == BP_PENDING)
        MUST(bp_poll(s, &event, 1, 20000) == 1 && !event.result);
    else
        MUST(!rc && o.memory > data->bytes);
    MUST(data_page_ok(data, page, event.ref.data));
    bp_put(&event.ref);
    n = bp_pool_caps(pool, cap, 16);
    MUST(n > 0 && n <= 16);
    MUST(!bp_session_close(s) && !bp_pool_check(pool, &error) && !bp_pool_close(pool, NULL));
    return *cap_named(cap, n, name);
}

static bool insisting_fails(struct bp_pool_options o, int code, const char *words)
{
    struct bp_error error = {0};
    bp_pool *pool;
    int rc;

    o.size = sizeof(o);
    o.memory = 8 << 20;
    o.error = &error;
    rc = bp_pool_open(&o, &pool);
    if (rc != code || !strstr(error.text, words))
        fprintf(stderr, "%d '%s', wanted %d and '%s'\n", rc, error.text, code, words);
    return rc == code && strstr(error.text, words);
}

static struct data_file data;

static void in_child(void (*what)(long), long argument)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        what(argument);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "exit %d, signal %d with %ld", WEXITSTATUS(status), WTERMSIG(status), argument);
}

static void setup(void)
{
    data = data_file_make(600 * 4096 + 5);
    cr_assert_eq(chmod(data.path, 0644), 0);
}

static void teardown(void)
{
    data_file_remove(&data);
}

static void without_io_uring(long error)
{
    struct bp_pool_options o = {0};
    struct bp_cap cap;
    const char *reason = error != ENOMEM ? "io_uring" : geteuid() ? "RLIMIT_MEMLOCK" : "no memory for a ring";

    forbid(SYS_io_uring_setup, (int)error);
    cap = serve_all(&data, o, "io");
    MUST(!strcmp(cap.got, "pread"));
    MUST(strstr(cap.reason, reason) && cap.remedy[0]);
    o.io = BP_IO_URING;
    MUST(insisting_fails(o, -ENOTSUP, "io_uring was asked for"));
}

Test(stepdown, io_uring_refused, .init = setup, .fini = teardown)
{
    in_child(without_io_uring, EPERM);
    in_child(without_io_uring, ENOSYS);
    in_child(without_io_uring, ENOMEM);
}

static void without_enter(long error)
{
    struct bp_pool_options o = {0};
    struct bp_cap cap;

    forbid(SYS_io_uring_enter, (int)error);
    cap = serve_all(&data, o, "io");
    MUST(!strcmp(cap.got, "pread"));
}

Test(stepdown, a_ring_that_can_be_made_and_not_used, .init = setup, .fini = teardown)
{
    in_child(without_enter, EPERM);
    in_child(without_enter, ENOSYS);
}

static void without_registration(long error)
{
    struct bp_pool_options o = {.memory = 4 << 20};

    forbid(SYS_io_uring_register, (int)error);
    serve_all(&data, o, "registered buffers");
}

Test(stepdown, registration_refused, .init = setup, .fini = teardown)
{
    in_child(without_registration, EPERM);
    in_child(without_registration, ENOMEM);
    in_child(without_registration, ENOSYS);
}

static void with_little_to_lock(long bytes)
{
    struct bp_pool_options o = {.memory = 16 << 20};
    struct bp_cap cap;

    become_nobody((rlim_t)bytes);
    cap = serve_all(&data, (struct bp_pool_options){.memory = 1 << 20}, "registered buffers");
    cap = serve_all(&data, o, "io"); /* 0: a ring itself is more than may be locked */
    MUST(!strcmp(cap.got, "io_uring") || (!strcmp(cap.got, "pread") && cap.reason[0]));
}

Test(stepdown, little_memory_may_be_locked, .init = setup, .fini = teardown)
{
    if (geteuid() != 0)
        cr_skip_test("needs root to become somebody else");
    in_child(with_little_to_lock, 64 << 10);
    in_child(with_little_to_lock, 8 << 20);
    in_child(with_little_to_lock, 0);
}

static void says_why_not_registered(long bytes)
{
    struct data_file big = data_file_make(24 << 20);
    struct bp_cap cap;

    MUST(!chmod(big.path, 0644));
    become_nobody((rlim_t)bytes);
    {
        struct bp_pool_options o = {.size = sizeof(o), .memory = 16 << 20};
        struct bp_cap caps[16];
        bp_pool *pool;
        bp_session *s;
        bp_file *file;
        struct bp_ref ref;
        int n;

        MUST(!bp_pool_open(&o, &pool) && !bp_file_open(pool, big.path, NULL, &file) &&
             !bp_session_open(pool, NULL, &s));
        for (uint64_t page = 0; page < big.pages; page++) {
            MUST(!bp_get(s, file, page, BP_SHARED, &ref) && data_page_ok(&big, page, ref.data));
            bp_put(&ref);
        }
        n = bp_pool_caps(pool, caps, 16);
        cap = *cap_named(caps, n, "registered buffers");
        MUST(!strcmp(cap_named(caps, n, "io")->got, "io_uring"));
        MUST(!bp_session_close(s) && !bp_pool_close(pool, NULL));
    }
    MUST(!strcmp(cap.got, "off") && cap.reason[0] && strstr(cap.remedy, "RLIMIT_MEMLOCK"));
    (void)!unlink(big.path);
}

Test(stepdown, the_reason_for_plain_reads_is_told, .init = setup, .fini = teardown)
{
    if (geteuid() != 0)
        cr_skip_test("needs root to become somebody else");
    in_child(says_why_not_registered, 128 << 10); /* room for a ring, not for a slab of 2 MiB */
}

static void without_huge_pages(long unused)
{
    struct bp_pool_options o = {.memory = 16 << 20};
    struct bp_cap cap;

    (void)unused;
    MUST(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    cap = serve_all(&data, o, "huge pages");
    MUST(!strcmp(cap.got, "none") && cap.reason[0] && cap.remedy[0]);
    o.huge = BP_ON;
    MUST(insisting_fails(o, -ENOTSUP, "huge pages were asked for"));
}

Test(stepdown, no_huge_pages, .init = setup, .fini = teardown)
{
    in_child(without_huge_pages, 0);
}

static void without_binding(long number)
{
    forbid(number, EPERM);
    serve_all(&data, (struct bp_pool_options){.memory = 4 << 20}, "memory");
}

Test(stepdown, placement_refused, .init = setup, .fini = teardown)
{
    in_child(without_binding, SYS_mbind);
    in_child(without_binding, SYS_set_mempolicy);
    in_child(without_binding, SYS_get_mempolicy);
    in_child(without_binding, SYS_move_pages);
}

#ifndef ADDRESS_SANITIZER /* which needs more address space than that */
static void without_address_space(long bytes)
{
    struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
    struct bp_pool_options o = {0};
    struct bp_error error = {0};
    bp_pool *pool;
    int rc;

    MUST(!setrlimit(RLIMIT_AS, &limit));
    o.size = sizeof(o);
    o.memory = 1ull << 30;
    o.error = &error;
    rc = bp_pool_open(&o, &pool);
    MUST(rc == -ENOMEM && error.text[0]);
}

Test(stepdown, no_address_space)
{
    in_child(without_address_space, 512 << 20);
}
#endif
