/* SPDX-License-Identifier: MIT */
/*
 * Parking: the futex behind io/park.h. Everything that returns early (a signal, a change of seq, a wake-up meant
 * for somebody else) is the same to the caller, who looks again.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "io/park.h"

void bpi_park_wake(struct park *p, uint32_t bits, int count)
{
    atomic_fetch_add_explicit(&p->seq, 1, memory_order_acq_rel);
    syscall(SYS_futex, &p->seq, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, count, NULL, NULL, bits);
}

void bpi_park_sleep(struct park *p, const _Atomic uint64_t *word, uint32_t seq, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};

    syscall(SYS_futex, &p->seq, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seq, &until, NULL, park_bit(word));
}
