/* SPDX-License-Identifier: MIT */
/* A trace through a pool: the library as it is, over a null device. */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include <bufpool/bufpool.h>

#include "replay/trace.h"

#define REPLAY_WHATIF_MAX 16

/* A statistic that says what another size would have given. The words are static. */
struct whatif {
    const char *name, *unit, *text;
    uint64_t value;
    double factor;   /* of the pool's size, as the name says: whatif_half, whatif_2; 0: it says none */
    uint32_t misses; /* of a replay at that size; UINT32_MAX: there was none */
};

/* Percent points by which the estimated hit rate is off; only where there is a factor and a replay. */
double whatif_error(const struct trace *, const struct whatif *);

struct outcome {
    uint32_t pages;  /* frames of the pool */
    uint32_t misses; /* of trace.count; the rest were hits */
    uint64_t evictions, refaults, evict_examined;
    uint32_t lru, min; /* misses of the models; UINT32_MAX: not asked for */
    unsigned whatif_count;
    struct whatif whatif[REPLAY_WHATIF_MAX];
};

struct replay_options {
    uint64_t memory;       /* bytes of the pool; 0: what `pages` needs */
    uint32_t pages;        /* frames, at the most; 0: as many as memory allows */
    uint32_t extent_bytes; /* of the file: bp_file_options */
    enum bp_policy policy; /* and */
    uint32_t sample_pages; /* of the pool: bp_pool_options */
};

/* One pool, opened for it and closed again. 0; or -1 and why. */
int replay_run(const struct trace *, const struct replay_options *, struct outcome *, char *why, size_t size);

/* Hits of all accesses, and misses, as shares. */
double outcome_hit_rate(const struct trace *, uint32_t misses);

#endif
