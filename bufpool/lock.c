/* SPDX-License-Identifier: MIT */
/* What a slim lock does when it is taken: look a little while, then sleep. */
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
        uint32_t free = 0;

        if (atomic_load_explicit(l, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak_explicit(l, &free, 1, memory_order_acquire, memory_order_relaxed))
            return;
        relax();
    }
    /* taken as 2, since others may sleep as well: at worst one wake too many. acquire: as in slim_lock_take */
    while (atomic_exchange_explicit(l, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, (uint32_t *)(void *)l, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 2, NULL, NULL, 0);
}

void bpi_lock_wake(slim_lock *l)
{
    syscall(SYS_futex, (uint32_t *)(void *)l, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}
