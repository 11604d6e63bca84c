/* SPDX-License-Identifier: MIT */
/*
 * All short sequences of operations on a tiny tree: with four slots a node, pages 0 to 20 need three levels, and
 * everything that can happen to a node happens within a few operations. Two alphabets of operations; each with shadows
 * that all differ, and again with shadows that are all the same, so that nodes become one, without the array of leaves.
 *
 *   model_index_tiny_4      BP_STRESS_SECONDS of 60 and more: one operation more. With eight slots one less
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/model/index_model.h"

#define LIMIT 4096u

/* Extents and shadows come and go, and are replaced by larger and smaller ones. */
static const struct op come_and_go[] = {
    {OP_INSERT, 0, 0}, {OP_INSERT, 5, 0},  {OP_INSERT, 16, 0}, {OP_INSERT, 4, 1},     {OP_INSERT, 0, 2},
    {OP_INSERT, 4, 2}, {OP_INSERT, 0, 3},  {OP_INSERT, 0, 4},  {OP_INSERT, 16, 4},    {OP_RUN, 4, 0},
    {OP_RUN, 0, 2},    {OP_LEAVE, 0, 0},   {OP_LEAVE, 5, 0},   {OP_LEAVE, 7, 0},      {OP_LEAVE_ALL, 4, 4},
    {OP_LEAVE, 16, 0}, {OP_ERASE, 0, 0},   {OP_ERASE, 5, 0},   {OP_ERASE, 16, 0},     {OP_RECLAIM, 1, 0},
    {OP_SPLIT, 5, 0},  {OP_DISCARD, 4, 4}, {OP_DISCARD, 0, 6}, {OP_DISCARD, 5, 1000},
};

/* Extents are marked, split and moved. */
static const struct op mark_and_split[] = {
    {OP_INSERT, 0, 0},  {OP_INSERT, 4, 2},  {OP_INSERT, 0, 3},       {OP_INSERT, 0, 4},     {OP_INSERT, 16, 0},
    {OP_LEAVE, 4, 0},   {OP_LEAVE, 0, 0},   {OP_ERASE, 5, 0},        {OP_ERASE, 0, 0},      {OP_ERASE, 16, 0},
    {OP_REPLACE, 5, 0}, {OP_SPLIT, 5, 0},   {OP_SPLIT, 4, 1},        {OP_SPLIT, 4, 2},      {OP_SPLIT, 0, 3},
    {OP_MARK, 0, 0},    {OP_MARK, 5, 0},    {OP_MARK, 16, 0},        {OP_MARK, 5, 1},       {OP_UNMARK, 0, 0},
    {OP_UNMARK, 5, 0},  {OP_UNMARK, 16, 0}, {OP_COPY_MARKS, 0, 100}, {OP_COPY_MARKS, 2, 4},
};

/* A sanitizer watches, which takes ten times as long. */
#ifdef __has_feature
#define WATCHED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define WATCHED 0
#endif

int main(void)
{
    const char *more = getenv("BP_STRESS_SECONDS");
    unsigned length = (INDEX_SLOTS == 4 && !WATCHED ? 4u : 3u) + (more && atof(more) >= 60 ? 1 : 0);
    bool good = true;

    setvbuf(stdout, NULL, _IOLBF, 0);
    rng_seed(1);
    for (unsigned i = 0; i < 2 && good; i++) {
        clock_now = 1000;
        clock_coarse = i != 0;
        good = open_all(LIMIT, i == 0) &&
               all_sequences(i ? "equal shadows, no array of leaves" : "shadows", come_and_go, COUNT(come_and_go),
                             length) &&
               all_sequences("marks and splits", mark_and_split, COUNT(mark_and_split), length - i);
        good = close_all() && good;
    }
    printf("%lu changes\n%d passed, %d failed\n", changes, good, !good);
    return good ? 0 : 1;
}
