/* SPDX-License-Identifier: MIT */
/* What a pool is compared with: exact least-recently-used, and the least misses that are possible at all. */
#ifndef REPLAY_MODELS_H
#define REPLAY_MODELS_H

#include "replay/trace.h"

/* Misses of a memory of `pages` pages (at least 1). UINT32_MAX: no memory for it. */
uint32_t models_lru(const struct trace *, uint32_t pages);
/* L. A. Belady's MIN: who is needed again last goes. An asked for page always comes in. */
uint32_t models_min(const struct trace *, uint32_t pages);

#endif
