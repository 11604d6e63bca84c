/* SPDX-License-Identifier: MIT */
/*
 * Does io_uring work here? By trying, since neither version numbers nor a successful set-up say so: kernels lack parts,
 * seccomp filters and security modules refuse others, and some kernels lost completions. A few bytes go through a pipe;
 * nothing of the file system is needed, and the kernel starts no worker thread for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "io/uring.h"

#define PROBE_NS 2000000000u

static const char probe_bytes[] = "bufpool";

/* Outlives the probe if the read is never answered: then it stays allocated for good. */
struct probe {
    struct io_file file;
    struct io_request request;
    char bytes[sizeof(probe_bytes)];
};

__attribute__((format(printf, 3, 4))) static void say(char *to, size_t size, const char *format, ...)
{
    va_list args;

    if (!size)
        return;
    va_start(args, format);
    vsnprintf(to, size, format, args);
    va_end(args);
}

/* kernel.io_uring_disabled: 0, 1 (without CAP_SYS_ADMIN or the group), 2 (all); -1: this kernel has no such switch. */
static int switched_off(void)
{
    char digit = 0;
    int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, &digit, 1);

    if (fd >= 0)
        close(fd);
    return n == 1 && digit >= '0' && digit <= '2' ? digit - '0' : -1;
}

static void explain_eperm(char *why, char *remedy, size_t size)
{
    int off = switched_off();

    if (off == 1 && geteuid() != 0) {
        say(why, size, "EPERM: kernel.io_uring_disabled is 1, and this process is not in kernel.io_uring_group");
        say(remedy, size, "join the group of kernel.io_uring_group, or sysctl kernel.io_uring_disabled=0");
    } else if (off == 2) {
        say(why, size, "EPERM: io_uring is switched off for all, kernel.io_uring_disabled is 2");
        say(remedy, size, "sysctl kernel.io_uring_disabled=0");
    } else {
        say(why, size, "EPERM: a seccomp filter or a security module forbids io_uring to this process");
        say(remedy, size, "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile");
    }
}

static void explain_enomem(char *why, char *remedy, size_t size)
{
    struct rlimit limit = {0};

    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY) {
        say(why, size, "ENOMEM: the ring's memory exceeds RLIMIT_MEMLOCK, %llu KiB for all processes of this user",
            (unsigned long long)limit.rlim_cur / 1024);
        say(remedy, size, "raise it: ulimit -l, LimitMEMLOCK= in the systemd unit, or memlock in limits.conf");
    } else {
        say(why, size, "ENOMEM: the kernel has no memory for a ring");
        say(remedy, size, "free memory, or raise the memory limit of the control group");
    }
}

/* Both lines for a failure; `what` is what was being done. */
static void explain(int rc, const char *what, char *why, char *remedy, size_t size)
{
    char text[64];

    switch (-rc) {
    case ENOSYS:
        say(why, size, "ENOSYS: this kernel has no io_uring, or a seccomp filter says so");
        say(remedy, size, "Linux 5.11 or later; in a container allow the io_uring calls in the seccomp profile");
        break;
    case EPERM:
    case EACCES:
        explain_eperm(why, remedy, size);
        break;
    case ENOMEM:
        explain_enomem(why, remedy, size);
        break;
    case EMFILE:
    case ENFILE:
        say(why, size, "%s: no file descriptor is left for a ring", rc == -EMFILE ? "EMFILE" : "ENFILE");
        say(remedy, size, "raise the limit of open files: ulimit -n, or LimitNOFILE= in the systemd unit");
        break;
    case EINVAL:
    case EOPNOTSUPP:
        say(why, size, "this kernel's io_uring is too old: %s failed", what);
        say(remedy, size, "Linux 5.11 or later");
        break;
    case ETIME:
        say(why, size, "a ring was made, but %s was not answered in %u s", what, PROBE_NS / 1000000000u);
        say(remedy, size, "another kernel; this one's io_uring loses completions");
        break;
    default:
        say(why, size, "%s failed: %s", what, strerror_r(-rc, text, sizeof(text)));
        say(remedy, size, "none known");
    }
}

/* Read through the channel what lies in the pipe. 0 or a negative errno. */
static int read_through(struct io_channel *ch, struct probe *p)
{
    struct io_request *request = &p->request;
    struct io_request *done = NULL;
    int rc;

    *request =
        (struct io_request){.file = &p->file, .to = p->bytes, .bytes = sizeof(p->bytes), .buffer = IO_BUFFER_NONE};
    rc = bpi_io_uring.submit(ch, &request, 1, IO_HOLD);
    if (rc != 1)
        return rc < 0 ? rc : -EIO;
    rc = bpi_io_uring.wait(ch, 1, PROBE_NS);
    if (rc)
        return rc;
    if (bpi_io_uring.reap(ch, &done, 1) != 1 || done != request)
        return -ETIME;
    if (request->result < 0)
        return request->result;
    return request->result == sizeof(p->bytes) && !memcmp(p->bytes, probe_bytes, sizeof(p->bytes)) ? 0 : -EIO;
}

int bpi_io_uring_probe(char *why, char *remedy, size_t size)
{
    struct io_channel *ch = NULL;
    struct probe *p = calloc(1, sizeof(*p));
    const char *what = "making a pipe";
    int ends[2] = {-1, -1};
    int rc = -ENOMEM;

    say(why, size, "%s", "");
    say(remedy, size, "%s", "");
    if (!p)
        goto out;
    if (pipe2(ends, O_CLOEXEC) < 0 || write(ends[1], probe_bytes, sizeof(probe_bytes)) != sizeof(probe_bytes)) {
        rc = -errno;
        goto out;
    }
    what = "making a ring";
    rc = bpi_io_uring.open(4, 0, 0, &ch);
    if (rc)
        goto out;
    what = "a read";
    p->file = (struct io_file){.fd = ends[0], .align = 1};
    rc = read_through(ch, p);
    if (bpi_uring_close_within(ch, rc ? 0 : PROBE_NS))
        p = NULL; /* the read is still under way: it may yet write there */
out:
    if (rc)
        explain(rc, what, why, remedy, size);
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    free(p);
    return rc;
}
