/* SPDX-License-Identifier: MIT */
/* Tables, the summary over all traces, and the plot. */
#ifndef REPLAY_REPORT_H
#define REPLAY_REPORT_H

#include "replay/replay.h"

/* One trace at one size. */
struct row {
    const struct trace *trace;
    struct outcome outcome;
};

void report_trace(const struct trace *, const struct row *, unsigned count);
/* Over rows of several traces or sizes. */
void report_summary(const struct row *, unsigned count);
/*
 * Draw hit rate against size, a panel for each trace, into a PNG; beside it are left the data (.dat) and the script
 * (.gnuplot) that drew it. 0; or -1 and why; 1: there is no gnuplot, the data is written, why says so.
 */
int report_plot(const char *path, const struct row *, unsigned count, char *why, size_t size);

#endif
