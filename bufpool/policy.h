/* SPDX-License-Identifier: MIT */
/*
 * Which page goes when a frame is needed: queues of frames in the order of their pages' last known use, in one of two
 * modes, and small pools that tell which of the two would miss less right now (duel.h).
 *
 * STABLE keeps what comes back soon and gives newcomers little: loops longer than the pool, scans, fixed hot sets.
 *
 *     new -> YOUNG (a hundredth) -> out, leaving a shadow
 *     back, or touched in YOUNG, and used since the page was that waited longest in MAIN -> MAIN; that one -> YOUNG
 *
 * RECENT is near to LRU: drifting sets.
 *
 *     new -> YOUNG -> MID1 -> MID2 -> MAIN -> out, a quarter each; touched at the end of any -> YOUNG
 *
 * "Touched" is heat above 0: hits raise it to 3 and write nothing then. Time is counted in misses, in ticks of
 * 2^clock_shift of them. A frame's stamp is the last use known of its page: when it came, or when somebody looked and
 * found it touched. The shadow keeps that stamp.
 *
 * Whose an entry is. A head that is bound has one entry: in a queue, in a session's basket, or in the hands of whoever
 * took it out. `queued` in the cold descriptor is 0 without one, else 1 + the order that it was counted with; it is
 * raised from 0 by a fault after it published the frame, and belongs to the entry's holder from then on. A page that
 * goes by another way than eviction (its file is closed, its read failed) leaves its entry behind: the frame's next
 * page takes that over, or who comes across it drops it.
 *
 * Lanes. Each queue is several, one for each session as far as there are enough: a session puts pages into its own lane
 * and takes victims from there, as long as what is oldest there is about as old as what is oldest elsewhere. So sessions
 * that read different pages evict what they have read themselves, which their processors still know, and meet nobody;
 * and what one has left behind goes in its turn, whoever it was. One session has one lane, and exact queues.
 *
 * One struct policy for each node; pages are at home where their frame was asked for.
 */
#ifndef BUFPOOL_POLICY_H
#define BUFPOOL_POLICY_H

#include <pthread.h>

#include "bufpool/bufpool.h"
#include "bufpool/duel.h"
#include "bufpool/frame.h"
#include "bufpool/index.h"
#include "bufpool/queue.h"

enum queue_name { YOUNG, MID1, MID2, MAIN, QUEUES };

#define BASKET        32u /* entries that a session collects for a queue */
#define LOG_MAX       32u /* accesses to the sample that a session collects */
#define LOT           32u /* entries taken out at once */
#define POLICY_ROUNDS 64u /* entries moved on the way to a decision */
#define LANES_MAX     16u

/* The queues of a session, or of several where there are more of them. */
struct lane {
    _Alignas(128) struct queue queue[QUEUES];
    unsigned sessions; /* under pool.lock */
};
_Static_assert(sizeof(struct lane) == 128, "two cache lines: others look at lengths and ages of all four");

struct policy {
    /* set at open */
    struct frame *frame;
    struct frame_cold *cold;
    uint32_t size;        /* frames there can ever be */
    unsigned clock_shift; /* misses per tick, as a shift */
    /* written by who resizes, read relaxed: pages that the pool may have, and which hashes are logged */
    _Atomic uint32_t room;
    _Atomic uint32_t sample_limit; /* those below */
    enum bp_policy mode;           /* AUTO: the duel decides */
    unsigned lanes_max;
    uint32_t differ; /* misses (ticks are as long or longer) that make no difference between lanes */

    /* read by every miss */
    _Alignas(64) _Atomic unsigned lanes; /* that ever had a session */
    _Atomic bool recent;
    _Atomic bool larger;                  /* extents of several pages were ever in the queues */
    _Atomic bool evicted;                 /* anything, ever */
    _Alignas(64) _Atomic uint64_t misses; /* the clock; sessions add some at a time */
    struct chunks chunks;
    struct lane lane[LANES_MAX];

    pthread_mutex_t lock; /* of what follows; no other is taken inside */
    struct duel duel;
    struct whatif whatif;
};

/* Entries on their way to a queue. */
struct basket {
    uint32_t count;
    uint32_t pages;
    uint32_t frame[BASKET];
};

/* What a session has of it. The first part under its magazine's lock, the log by its thread alone. */
struct seat {
    struct policy *policy;
    unsigned lane;
    unsigned oldest[QUEUES]; /* lane of others whose oldest page was the oldest when we looked last */
    uint32_t others[QUEUES]; /* pages that others' lanes had then */
    struct basket basket[QUEUES];
    uint32_t misses;    /* not yet in the clock */
    uint32_t examined;  /* entries looked at since the session counted them */
    uint32_t dirty_met; /* of these, cold ones that have to be written first */

    uint32_t logged, logged_misses;
    struct {
        struct access access;
        uint32_t frame;
    } log[LOG_MAX];
};

/* A page that came: its frame is published and pinned by the caller. */
struct arrival {
    uint32_t head;
    unsigned order;
    index_entry shadow; /* met in the index, or ENTRY_NONE */
};

/* An extent that may go: its entry is the caller's, who evicts it (policy_gone) or puts it back. */
struct victim {
    uint32_t head;
    enum queue_name from;
    uint64_t seen; /* the word that it was judged by */
};

/* One search for victims. */
struct search {
    unsigned lanes;                   /* that it looks through: as many as there were when it began */
    uint32_t left[LANES_MAX][QUEUES]; /* entries to look at before the search is over */
    uint32_t moves;                   /* the same, of those that only move on */
    uint32_t rounds;                  /* touched pages of MAIN that were spared */
    bool hopeful;                     /* something may become evictable by going on: it was cooled, or it moved */
    bool any;                         /* what was read ahead may go, too, though its reader has not come */
    bool expected;                    /* some did not go for that */
};

struct policy_sizes {
    uint32_t duel, whatif; /* pages of small pools */
    uint64_t bytes;        /* of all of them */
};

/* What suits a pool of so many pages; sample: bp_pool_options.sample_pages. */
struct policy_sizes bpi_policy_sizes(uint64_t pages, uint32_t sample);
int bpi_policy_open(struct policy *, uint32_t frames, const struct policy_sizes *, enum bp_policy);
void bpi_policy_close(struct policy *);
/* For so many pages from now on. */
void bpi_policy_resize(struct policy *, uint32_t pages);

/* A session comes, with a seat of zeros; it goes, with empty baskets. pool.lock is held. */
void bpi_seat_take(struct seat *, struct policy *);
void bpi_seat_leave(struct seat *);

/* All below but the log: the lock of the session's magazine is held. */
void bpi_policy_admit(struct seat *, const struct arrival[], unsigned n);
/* An extent moved: its new head gets an entry of its own and the old one's stamp. Published, and latched by the caller. */
void bpi_policy_moved(struct seat *, uint32_t from, uint32_t to, unsigned order);
/* Everything in baskets goes to the queues. */
void bpi_policy_flush(struct seat *);
void bpi_policy_search(struct seat *, struct search *);
/* Victims of so many pages or a little more, LOT at the most; -1: the search is over. Bounded work. */
int bpi_policy_pick(struct seat *, struct search *, struct victim[], uint32_t pages);
void bpi_policy_put_back(struct seat *, const struct victim *);

/* The entry is no more; the frame is latched by the caller and about to be unbound. */
static inline void policy_gone(struct frame_cold *cold)
{
    atomic_store_explicit(&cold->queued, 0, memory_order_relaxed);
}

/* Flag for frame_publish, if this page is of the sample. */
static inline uint64_t policy_sampled(const struct policy *p, uint64_t id)
{
    return hash_sample(page_hash(id)) < atomic_load_explicit(&p->sample_limit, memory_order_relaxed) ? FRAME_SAMPLED
                                                                                                     : 0;
}

/* An access to a page of the sample. No lock is held. */
void bpi_policy_log(struct seat *, uint32_t head, uint64_t id, unsigned order, bool missed);

/* Estimated hits per million at 1/2, 1, 2, 4 and 8 times the size. */
void bpi_policy_whatif(struct policy *, uint64_t requests, uint32_t hits[WHATIF_SIZES]);
/* Queues against counts; quiet: nobody is at work, and every bound head has an entry. true if sound. */
bool bpi_policy_check(struct policy *, uint32_t high, bool quiet);

#endif
