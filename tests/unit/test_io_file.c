/* SPDX-License-Identifier: MIT */
/*
 * Opening files, and finding out whether io_uring works.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/unit/io_helper.h"

static char why[200];

static int open_as(const char *path, enum io_direct direct, struct io_file *file)
{
    memset(file, 0x5a, sizeof(*file));
    memset(why, 'x', sizeof(why));
    return bpi_io_file_open(file, path, direct, why, sizeof(why));
}

/* Fails like this, says so in one line with the path, leaves nothing open. */
static void refuses(const char *path, int rc, const char *word)
{
    struct io_file file;
    int next = dup(0); /* the lowest free descriptor */
    int again;

    close(next);
    cr_expect_eq(open_as(path, IO_DIRECT_TRY, &file), rc, "%s: %s", path, why);
    cr_expect_eq(file.fd, -1);
    cr_expect_not_null(strstr(why, word), "%s: %s", path, why);
    cr_expect_null(strchr(why, '\n'));
    again = dup(0);
    cr_expect_eq(again, next, "%s: a descriptor was left open", path);
    close(again);
    cr_expect_eq(bpi_io_file_open(&file, path, IO_DIRECT_TRY, NULL, 0), rc, "no words wanted");
}

Test(io_file, what_cannot_be_read_in_pages)
{
    char folder[] = "./bufpool-files-XXXXXX";
    char path[PATH_MAX];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    cr_assert_not_null(mkdtemp(folder));
    refuses(folder, -EISDIR, "a directory");
    refuses("/dev/null", -EINVAL, "a character device");
    refuses("", -ENOENT, "cannot be opened");
    snprintf(path, sizeof(path), "%s/none", folder);
    refuses(path, -ENOENT, path);
    refuses("/etc/passwd/x", -ENOTDIR, "cannot be opened");

    snprintf(path, sizeof(path), "%s/pipe", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    refuses(path, -EINVAL, "a pipe"); /* and does not wait for a writer */
    unlink(path);

    snprintf(path, sizeof(path), "%s/socket", folder);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)(void *)&address, sizeof(address)), 0);
    refuses(path, -EINVAL, "a socket");
    close(fd);
    unlink(path);

    snprintf(path, sizeof(path), "%s/loop", folder);
    cr_assert_eq(symlink("loop", path), 0);
    refuses(path, -ELOOP, "cannot be opened");
    unlink(path);
    rmdir(folder);
}

/* What a short buffer gets is cut off, not overrun. */
Test(io_file, words_are_cut_off)
{
    struct io_file file;
    char small[8] = "1234567";

    cr_expect_eq(bpi_io_file_open(&file, "/none", IO_DIRECT_TRY, small, 4), -ENOENT);
    cr_expect_str_eq(small, "can");
    cr_expect_str_eq(small + 4, "567");
}

Test(io_file, regular_files)
{
    char path[PATH_MAX];
    char link_path[PATH_MAX + 8];
    struct io_file file;
    struct stat st;
    uint64_t bytes = 1;
    int flags;

    cr_assert_eq(make_file(path, 5000), 0);
    snprintf(link_path, sizeof(link_path), "%s.link", path);
    cr_assert_eq(symlink(path[0] == '/' ? path : path + 2, link_path), 0);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(open_as(i ? link_path : path, IO_DIRECT_OFF, &file), 0);
        cr_expect_eq(why[0], 0);
        cr_expect_not(file.direct);
        cr_expect_eq(file.align, 1);
        fstat(file.fd, &st);
        cr_expect_eq(file.ino, st.st_ino);
        cr_expect_eq(file.dev, st.st_dev);
        flags = fcntl(file.fd, F_GETFL);
        cr_expect_eq(flags & (O_ACCMODE | O_NONBLOCK | O_DIRECT), O_RDONLY);
        cr_expect_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
        cr_expect_eq(bpi_io_file_size(&file, &bytes), 0);
        cr_expect_eq(bytes, 5000);
        cr_assert_eq(truncate(path, 12345), 0);
        cr_expect_eq(bpi_io_file_size(&file, &bytes), 0);
        cr_expect_eq(bytes, 12345, "the size is what it is now");
        cr_assert_eq(truncate(path, 5000), 0);
        bpi_io_file_close(&file);
        cr_expect_eq(file.fd, -1);
        bpi_io_file_close(&file);
    }
    cr_expect_eq(bpi_io_file_size(&file, &bytes), -EBADF);
    cr_assert_eq(truncate(path, 0), 0);
    cr_assert_eq(open_as(path, IO_DIRECT_TRY, &file), 0, "an empty file is a file");
    cr_expect_eq(bpi_io_file_size(&file, &bytes), 0);
    cr_expect_eq(bytes, 0);
    bpi_io_file_close(&file);
    unlink(path);
    unlink(link_path);
}

Test(io_file, direct_io)
{
    char path[PATH_MAX];
    struct io_file file;
    int rc;

    /* a file system that has no direct I/O */
    cr_expect_eq(open_as("/proc/self/maps", IO_DIRECT_ON, &file), -EOPNOTSUPP, "%s", why);
    cr_expect_eq(file.fd, -1);
    cr_expect_not_null(strstr(why, "direct I/O"), "%s", why);
    cr_expect_eq(open_as("/proc/self/maps", IO_DIRECT_TRY, &file), 0);
    cr_expect_not(file.direct);
    cr_expect_eq(file.align, 1);
    cr_expect_eq(fcntl(file.fd, F_GETFL) & O_DIRECT, 0);
    cr_expect_not_null(strstr(why, "direct I/O"), "the step down is told: %s", why);
    bpi_io_file_close(&file);

    cr_assert_eq(make_file(path, 8192), 0);
    rc = open_as(path, IO_DIRECT_ON, &file);
    if (rc == -EOPNOTSUPP) {
        unlink(path);
        cr_skip_test("no direct I/O in the working directory: %s", why);
    }
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(rc, 0, "%s", why);
        cr_expect_eq(why[0], 0);
        cr_expect(file.direct);
        cr_expect(file.align >= 1 && file.align <= 4096 && !(file.align & (file.align - 1)), "%u", file.align);
        cr_expect_eq(fcntl(file.fd, F_GETFL) & (O_DIRECT | O_NONBLOCK), O_DIRECT);
        bpi_io_file_close(&file);
        rc = open_as(path, IO_DIRECT_TRY, &file);
    }
    bpi_io_file_close(&file);
    unlink(path);
}

/* Any block device that may be read; only its size is asked. */
Test(io_file, block_devices)
{
    DIR *dir = opendir("/sys/block");
    unsigned found = 0;
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char path[PATH_MAX];
        struct io_file file;
        unsigned long long sectors = 0;
        uint64_t bytes = 0;
        FILE *size;

        snprintf(path, sizeof(path), "/sys/block/%s/size", entry->d_name);
        size = fopen(path, "re");
        if (!size)
            continue;
        if (fscanf(size, "%llu", &sectors) != 1)
            sectors = 0;
        fclose(size);
        snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
        if (!sectors || open_as(path, IO_DIRECT_TRY, &file))
            continue;
        found++;
        cr_expect_eq(bpi_io_file_size(&file, &bytes), 0);
        cr_expect_eq(bytes, sectors * 512, "%s", path);
        bpi_io_file_close(&file);
    }
    if (dir)
        closedir(dir);
    if (!found)
        cr_skip_test("no block device that may be opened");
}

/* ---- what stands in the way of io_uring: in a child, for good ------------------------------------------ */

/* Make a system call answer an errno in this process. */
static int forbid(long number, unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? -errno : 0;
}

/* Run it in a child; its answer: 0 right, else the number of the step that was wrong; 1000 + signal if it crashed. */
static int in_child(int (*step)(long), long argument)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0)
        _exit(step(argument));
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int probe_forbidden(long error)
{
    char reason[120];
    char remedy[120];
    struct io_channel *ch;

    if (forbid(SYS_io_uring_setup, (unsigned)error))
        return 77;
    if (bpi_io_uring_probe(reason, remedy, sizeof(reason)) != -error)
        return 2;
    if (!strstr(reason, error == EPERM ? "EPERM" : error == ENOSYS ? "ENOSYS" : "ENOMEM"))
        return 3;
    if (error != ENOMEM && (!strstr(reason, "seccomp") || !strstr(remedy, "seccomp")))
        return 4;
    if (!remedy[0])
        return 5;
    return bpi_io_uring.open(8, 0, 0, &ch) == -error ? 0 : 6;
}

static int probe_enter_forbidden(long error)
{
    char reason[120];
    char remedy[120];
    uint64_t began = clock_ns();

    if (forbid(SYS_io_uring_enter, (unsigned)error))
        return 77;
    if (bpi_io_uring_probe(reason, remedy, sizeof(reason)) != -error)
        return 2;
    if (!reason[0] || !remedy[0])
        return 3;
    return clock_ns() - began < 10 * SECOND ? 0 : 4;
}

static int probe_without_descriptors(long unused)
{
    struct rlimit limit = {.rlim_cur = 3, .rlim_max = 3}; /* the pipe already takes two */
    char reason[120];
    char remedy[120];

    (void)unused;
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    setrlimit(RLIMIT_NOFILE, &limit);
    if (bpi_io_uring_probe(reason, remedy, sizeof(reason)) != -EMFILE)
        return 2;
    return strstr(reason, "EMFILE") && strstr(remedy, "ulimit -n") ? 0 : 3;
}

Test(io_probe, says_what_stands_in_the_way)
{
    char reason[120] = "x";
    char remedy[120] = "x";
    unsigned before = (unsigned)dup(0);

    close((int)before);
    cr_expect_eq(in_child(probe_forbidden, EPERM), 0);
    cr_expect_eq(in_child(probe_forbidden, ENOSYS), 0);
    cr_expect_eq(in_child(probe_forbidden, ENOMEM), 0);
    cr_expect_eq(in_child(probe_enter_forbidden, EPERM), 0);
    cr_expect_eq(in_child(probe_enter_forbidden, EAGAIN), 0);
    cr_expect_eq(in_child(probe_without_descriptors, 0), 0);

    if (bpi_io_uring_probe(reason, remedy, sizeof(reason)))
        cr_skip_test("io_uring does not work here: %s (%s)", reason, remedy);
    cr_expect_eq(reason[0], 0);
    cr_expect_eq(remedy[0], 0);
    cr_expect_eq(bpi_io_uring_probe(NULL, NULL, 0), 0);
    cr_expect_eq(dup(0), (int)before, "the probe leaves nothing open");
}
