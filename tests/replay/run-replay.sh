#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# bufpool-replay on traces that it makes itself: its models against numbers known beforehand, the pool's misses within
# bounds, and what it says about traces that are none. $BP_BUILD is the build folder.
set -uo pipefail

replay=${BP_BUILD:?the build folder}/examples/bufpool-replay
[ -x "$replay" ] || { echo "bufpool-replay was not built"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

check() { # WHAT CONDITION...: a condition of awk
    if awk "BEGIN { exit !($2) }"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $1: $2"
    fi
}

# rates KIND SIZE [options...]: miss ratios of pool, LRU and MIN, into the variables of these names
rates() {
    local kind=$1 size=$2
    shift 2
    read -r pool lru min < <("$replay" --generate "$kind" --sizes "$size" --compare lru,min "$@" |
        awk '$1 ~ /^[0-9]+$/ && $3 == "%" { print $(NF - 2), $(NF - 1), $NF }')
    [ -n "${min:-}" ] || { pool=-1 lru=-1 min=-1; }
}

# A loop of 1,000 pages, 20 times: LRU keeps all or nothing. The optimum with c places misses all of the first round, and
# from then on 1000 - c of every 999 accesses.
rates loop 1000 --pages 1000
check "a loop that fits" "$pool == 0.05 && $lru == 0.05 && $min == 0.05"
rates loop 500 --pages 1000
check "half a loop" "$lru == 1 && $min == 0.525 && $pool < 0.6 && $pool >= $min"
rates loop 999 --pages 1000
check "a loop that does not quite fit" "$lru == 1 && $min > 0.0509 && $min < 0.0511 && $pool >= $min && $pool < 0.2"

# Nothing comes back.
rates scan 100 --length 5000
check "a scan" "$pool == 1 && $lru == 1 && $min == 1"

# Kinds on which LRU is not bad: the pool may not be worse by much, and nothing beats the optimum.
for size in 5% 10% 25% 50%; do
    rates zipf "$size" --pages 2000
    check "zipf at $size" "$pool <= 1.02 * $lru && $pool >= $min"
    rates hot+scan "$size" --pages 2000
    check "hot and scan at $size" "$pool <= 1.02 * $lru && $pool >= $min"
    rates drift "$size" --pages 2000
    check "drift at $size" "$pool <= 1.05 * $lru && $pool >= $min"
done
rates hot+scan 25% --pages 2000
check "the hot set stays beside a scan" "$pool < 0.48"

# The same without choosing: RECENT is near LRU, STABLE loses on a drift what it wins on a loop.
rates loop 500 --pages 1000 --policy recent
check "a loop, RECENT" "$pool == 1"
rates loop 500 --pages 1000 --policy stable
check "a loop, STABLE" "$pool < 0.6"
rates drift 10% --pages 2000 --policy recent
check "drift, RECENT" "$pool <= 1.05 * $lru"
rates drift 10% --pages 2000 --policy stable
check "drift, STABLE" "$pool > 1.1 * $lru"
rates loop 500 --pages 1000 --policy lru
check "LRU as the policy" "$pool == $lru"
rates zipf 20% --pages 1000 --policy min
check "MIN as the policy" "$pool == $min && $pool < $lru"

# What the pool says of other sizes is what a replay at that size finds.
for kind in loop zipf hot+scan drift; do
    off=$("$replay" --generate $kind --pages 2000 --sizes 10%,25%,50% --check-whatif | awk '/^estimates of/ { print $(NF - 7) }')
    check "estimates for $kind" "${off:-99} <= 3"
done

# The same each time; the same from a file, compressed or not; another with another seed.
"$replay" --generate zipf --pages 500 >"$dir/a"
"$replay" --generate zipf --pages 500 >"$dir/b"
"$replay" --generate zipf --pages 500 --seed 2 >"$dir/c"
check "twice the same" "$(cmp -s "$dir/a" "$dir/b"; echo $?) == 0"
check "another seed" "$(cmp -s "$dir/a" "$dir/c"; echo $?) == 1"
"$replay" --generate zipf --pages 500 --write "$dir/t.txt"
gzip -k "$dir/t.txt"
for file in t.txt t.txt.gz; do
    "$replay" "$dir/$file" | sed "s#$dir/$file#zipf#" >"$dir/b"
    check "from $file" "$(cmp -s "$dir/a" "$dir/b"; echo $?) == 0"
done

# Sizes and modes in a trace: 3 + 1 + 2 + 1 accesses, 3 of them writes, to 5 pages; in bytes 1 + 1 + 1 + 1.
printf '# made by hand\n10 3 w\n\n11\tR\n12,2 # two\r\n  14\n' >"$dir/hand"
check "lengths in pages" "$("$replay" "$dir/hand" --sizes 4 | grep -c ': 7 accesses to 5 pages, 3 of them writes') == 1"
check "lengths in bytes" "$("$replay" "$dir/hand" --sizes 4 --size-unit bytes | grep -c ': 4 accesses to 4 pages, 1 of') == 1"
printf '10 4097\n' >"$dir/hand"
check "a length is rounded up" "$("$replay" "$dir/hand" --sizes 4 --size-unit bytes | grep -c ': 2 accesses to 2 pages') == 1"

# refused LINE WORDS: a trace with that as its third line is refused, and the message names the line
refused() {
    printf '1\n2\n%s\n' "$1" >"$dir/bad"
    "$replay" "$dir/bad" >"$dir/out" 2>"$dir/err"
    check "'$1' is refused" "$? == 1 && $(grep -c "line 3 .*$2" "$dir/err") == 1"
}
refused "x" "does not begin with a page number"
refused "-1" "does not begin with a page number"
refused "1x" "does not begin with a page number"
refused "18446744073709551616" "does not begin with a page number"
refused "2251799813685248" "not below 2^51"
refused "2251799813685247 2" "not below 2^51"
refused "1 q" "neither a size nor r or w"
refused "1 2 3" "more than a page number"
refused "1 r w" "more than a page number"
refused "1 0" "size of nothing"
refused "1 65537" "more than 65,536"
refused "1$(printf '%0300d' 0)" "too long"
printf '# nothing\n' >"$dir/bad"
"$replay" "$dir/bad" 2>"$dir/err"
check "an empty trace is refused" "$? == 1 && $(grep -c 'no page' "$dir/err") == 1"
head -c 300 "$dir/t.txt.gz" >"$dir/cut.gz"
"$replay" "$dir/cut.gz" >"$dir/out" 2>"$dir/err"
check "a file that is cut off is refused" "$? == 1 && $(grep -c cut.gz "$dir/err") == 1"
for options in "--sizes 0" "--sizes 5%%" "--sizes x" "--memory 1" "--policy best" "--extent 5000 $dir/t.txt" "--compare me" ""; do
    # shellcheck disable=SC2086
    "$replay" $options >"$dir/out" 2>"$dir/err"
    check "'$options' is refused" "($? == 1 || $? == 2) && $(wc -l <"$dir/err") == 1"
done

# Sizes by memory: below 1 MiB frames, above what the pool makes of it. A plot leaves its data even without gnuplot.
check "memory of frames" "$("$replay" "$dir/t.txt" --memory 64K | awk '$1 ~ /^[0-9]+$/ && $3 == "%" { print $1 }') == 16"
check "memory of a pool" "$("$replay" "$dir/t.txt" --memory 1M | awk '$1 ~ /^[0-9]+$/ && $3 == "%" { print $1 }') > 200"
"$replay" "$dir/t.txt" --curve --compare lru,min --plot "$dir/p.png" >"$dir/out" 2>"$dir/err"
check "a plot's data" "$? == 0 && $(grep -c '^[0-9]' "$dir/p.dat") == $(awk '$1 ~ /^[0-9]+$/ && $3 == "%"' "$dir/out" | wc -l)"
if command -v gnuplot >/dev/null; then
    check "a plot" "$(head -c 4 "$dir/p.png" | grep -c PNG) == 1"
fi
PATH=/nowhere "$replay" "$dir/t.txt" --plot "$dir/q.png" >"$dir/out" 2>"$dir/err"
check "without gnuplot" "$? == 0 && $(grep -c 'gnuplot is not installed' "$dir/err") == 1 && $(grep -c '^[0-9]' "$dir/q.dat") > 2"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
