#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# table.sh FOLDER [options of bufpool-replay...]: replay every trace of a folder (*.txt, *.txt.gz) at 1, 5, 10, 25 and
# 50 % of its pages, and print the miss ratios as a Markdown table beside exact LRU and the optimum, then the summary.
# $BP_BUILD is the build folder.
set -euo pipefail

folder=${1:?usage: table.sh FOLDER [options...]}
shift
shopt -s nullglob
traces=("$folder"/*.txt "$folder"/*.txt.gz)
[ ${#traces[@]} -gt 0 ] || { echo "no *.txt or *.txt.gz in $folder"; exit 1; }

"${BP_BUILD:?the build folder}/examples/bufpool-replay" --compare lru,min "$@" "${traces[@]}" | awk '
    BEGIN { print "| trace | pages | MIN | LRU | bufpool | against LRU |\n|---|---|---|---|---|---|" }
    / accesses to / { trace = $1; sub(/.*\//, "", trace); sub(/\..*/, "", trace) }
    $3 == "%" && $1 ~ /^[0-9]+$/ {
        lru = $(NF - 1); pool = $(NF - 2)
        printf "| %s | %d | %s | %s | %s | %+.1f %% |\n", trace, $1, $NF, lru, pool, (lru > 0 ? 100 * (pool / lru - 1) : 0)
    }
    /^geometric|^rows more|^over LRU|^estimate/ { sub(/[^ ]*\//, ""); summary = summary "\n" $0 }
    END { print summary }'
