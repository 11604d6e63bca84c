/* SPDX-License-Identifier: MIT */
/*
 * The store's own files (log, checkpoint, labels) on a disk that fails: of all its writes, syncs and renames, in turn, the nth
 * one says EIO or ENOSPC, or all from the nth on do, or the nth write is cut short. Whatever that does to the calls of the
 * store, when it is opened again on a disk that works everything acknowledged is there, what failed is there or not, and
 * nothing else. The linker leads the calls here (--wrap); those of the pool are not concerned.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kv/kv.h"

#define KEYS 40u
#define OPS  90u

enum fault { FAULT_NONE, FAULT_EIO, FAULT_ENOSPC, FAULT_EIO_FROM_HERE, FAULT_ENOSPC_FROM_HERE, FAULT_SHORT, FAULTS };

static enum fault fault, shown;     /* shown: the run's, when nothing fails any more */
static unsigned fault_at, calls;    /* from 1 on */
static _Thread_local unsigned mine; /* which call this thread's last one was */
static unsigned passed, failed;

/* Whether this call fails; the background thread's calls count too, so where the nth falls may vary a little. */
static bool fails(void)
{
    unsigned call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    bool from_here = fault == FAULT_EIO_FROM_HERE || fault == FAULT_ENOSPC_FROM_HERE;

    mine = call;
    if (fault == FAULT_NONE || fault == FAULT_SHORT || (from_here ? call < fault_at : call != fault_at))
        return false;
    errno = fault == FAULT_EIO || fault == FAULT_EIO_FROM_HERE ? EIO : ENOSPC;
    return true;
}

ssize_t __real_pwrite(int fd, const void *bytes, size_t count, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    if (fails())
        return -1;
    if (fault == FAULT_SHORT && mine == fault_at && count > 1)
        count /= 2;
    return __real_pwrite(fd, bytes, count, at);
}

/* Nothing is lost here by not syncing, and much time won. */
int __wrap_fsync(int fd)
{
    (void)fd;
    return fails() ? -1 : 0;
}

int __wrap_fdatasync(int fd)
{
    (void)fd;
    return fails() ? -1 : 0;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return fails() ? -1 : __real_renameat(from_dir, from, to_dir, to);
}

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes)
{
    return fails() ? errno : __real_posix_fallocate(fd, at, bytes);
}

/* ---- what was done, and what may be ---- */

static struct {
    uint32_t sure;       /* version; 0: not there */
    uint32_t maybe[OPS]; /* of calls that failed since then */
    unsigned count;
} state[KEYS];

static void expect(bool right, const char *what, const char *why)
{
    if (right)
        passed++;
    else if (failed++ < 10)
        printf("FAILED: fault %d at %u: %s: %s\n", (int)shown, fault_at, what, why);
}

static size_t value_of(unsigned key, uint32_t version, unsigned char *to)
{
    size_t bytes = version % 11 == 0 ? 9000 : 20 + version % 60;

    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(version * 7 + key + i);
    memcpy(to, &version, sizeof(version));
    return bytes;
}

static int try_open(const char *dir, kv **store, struct kv_error *error)
{
    struct kv_options how = {.size = sizeof(how),
                             .memory = 2u << 20,
                             .sync = KV_SYNC_ALWAYS,
                             .create = true,
                             .buffered = true,
                             .error = error};

    memset(error, 0, sizeof(*error));
    return kv_open(dir, &how, store);
}

static void work(kv_session *s)
{
    static unsigned char value[10000];

    for (uint32_t version = 1; version <= OPS; version++) {
        unsigned key = version * 13 % KEYS;
        bool deletes = version % 9 == 0;
        int rc = deletes ? kv_delete(s, &key, sizeof(key))
                         : kv_put(s, &key, sizeof(key), value, value_of(key, version, value));

        if (rc == KV_NOT_FOUND)
            rc = 0;
        if (rc) {
            state[key].maybe[state[key].count++] = deletes ? 0 : version;
            expect(kv_session_error(s)[0] != 0, "put", "an error without words");
        } else {
            state[key].count = 0;
            state[key].sure = deletes ? 0 : version;
        }
        if (version % 40 == 0)
            (void)kv_checkpoint(s); /* may fail; nothing is lost by that */
    }
}

static void verify(const char *dir)
{
    static unsigned char wanted[10000];
    struct kv_check_result result;
    struct kv_error error;
    kv_session *s;
    kv *store;
    int rc = try_open(dir, &store, &error);

    expect(rc == 0, "open again", error.text);
    if (rc || kv_session_open(store, &s))
        return;
    for (unsigned key = 0; key < KEYS; key++) {
        uint32_t version = 0;
        const void *value;
        bool right;
        size_t bytes = 0;

        rc = kv_get(s, &key, sizeof(key), &value, &bytes);
        if (!rc && bytes >= sizeof(version))
            memcpy(&version, value, sizeof(version));
        expect(!rc || rc == KV_NOT_FOUND, "get", kv_session_error(s));
        right = version == state[key].sure;
        for (unsigned i = 0; i < state[key].count; i++)
            right |= version == state[key].maybe[i];
        expect(right, "get", "neither what was acknowledged nor what failed");
        if (version)
            expect(value_of(key, version, wanted) == bytes && !memcmp(value, wanted, bytes), "get", "a torn value");
    }
    rc = kv_check(s, NULL, NULL, &result);
    expect(rc == 0, "check", kv_session_error(s));
    kv_session_close(s);
    expect(kv_close(store, &error) == 0, "close", error.text);
}

/* One run; how many calls there were. */
static unsigned run(enum fault kind, unsigned at)
{
    char dir[] = "fault-kv-XXXXXX", command[64];
    struct kv_error error;
    kv_session *s;
    unsigned count;
    kv *store;
    int rc;

    memset(state, 0, sizeof(state));
    if (!mkdtemp(dir))
        exit(1);
    fault = kind;
    fault_at = at;
    calls = 0;
    rc = try_open(dir, &store, &error);
    if (rc)
        expect(error.text[0] != 0, "open", "an error without words");
    else if (!kv_session_open(store, &s)) {
        work(s);
        kv_session_close(s);
        (void)kv_close(store, &error);
    }
    count = calls;
    fault = FAULT_NONE;
    shown = kind;
    verify(dir);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    if (system(command))
        exit(1);
    return count;
}

int main(void)
{
    const char *seconds = getenv("BP_STRESS_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 2);
    unsigned count = run(FAULT_NONE, 0), runs = 0, step;

    expect(count > 100, "calls", "there are hardly any to fail");
    /* all n in the end, in an order that looks everywhere early: by steps that have no divisor in common with their number */
    for (step = count / 7 * 3 + 1; count % step == 0 || step % 2 == 0; step++)
        ;
    for (unsigned i = 0; i < count && time(NULL) < end && !failed; i++)
        for (unsigned kind = FAULT_EIO; kind < FAULTS; kind++, runs++)
            run((enum fault)kind, 1 + (unsigned)((uint64_t)i * step % count));
    printf("%u calls, %u runs: %u passed, %u failed\n", count, runs, passed, failed);
    return failed ? 1 : 0;
}
