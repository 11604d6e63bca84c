/* SPDX-License-Identifier: MIT */
/* What a slim lock does when it is taken: look a little while, then sleep. */
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bufpool/lock.h"

/* Looks before sleeping. Holders need less than a microsecond, unless they were put off the processor. */
#define SPINS 100u

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void bpi_lock_wait(slim_lock *l)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (!(atomic_load_explicit(l, memory_order_relaxed) & SLIM_TAKEN) && slim_lock_try(l))
            return;
        relax();
    }
    for (;;) {
        uint32_t seen = atomic_fetch_or_explicit(l, SLIM_TAKEN | SLIM_WAITED, memory_order_acq_rel);

        /* if it was free it is ours, as one that is waited for, since others may sleep: at worst one wake too many */
        if (!(seen & SLIM_TAKEN))
            return;
        syscall(SYS_futex, (uint32_t *)(void *)l, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen | SLIM_WAITED, NULL, NULL, 0);
    }
}

/* All of them: whoever still has to wait says so again. */
void bpi_lock_wake(slim_lock *l)
{
    atomic_fetch_and_explicit(l, ~SLIM_WAITED, memory_order_relaxed);
    syscall(SYS_futex, (uint32_t *)(void *)l, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}
