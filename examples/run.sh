#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The example servers at work, on a fresh Debian 12 machine, as root or with sudo: installs what is missing, builds, makes
# a file four times as large as the pool, serves it with point-server and scan-server to redis-benchmark, curl and a
# client that checks every page, and prints a table. Exit status 0 only if every byte was right and both servers left
# cleanly.
#
#   --size SIZE     of the file (1G)
#   --memory SIZE   of each server's pool (a quarter of the file)
#   --port PORT     of point-server; scan-server gets the next one (free ports)
#   --keep          keep the work folder
#
# The work folder is made in $TMPDIR or /var/tmp, which must lie on a disk, not in memory.
set -euo pipefail
export LC_ALL=C
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
size=1G memory='' port=0 keep=0
seconds=6     # wanted for each measurement
ranges=200    # ranges asked of scan-server
range_bytes=$((1 << 20))
clients=50
depth=16      # commands under way per client

usage() { sed -n '4,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

while [ $# -gt 0 ]; do
    case $1 in
    --size | --memory | --port)
        declare "${1#--}=${2:?$1 needs a value}"
        shift
        ;;
    --keep) keep=1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done
if ! [[ $port =~ ^[0-9]{1,5}$ ]] || [ "$port" -ge 65535 ]; then
    echo "--port needs a number below 65535" >&2
    exit 2
fi

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
die() {
    say "FAILED: $*" >&2
    exit 1
}

# ---- cleaning up: whatever happens, no server and no file is left -----------------------------------------------------

work=
declare -A pid=() listens=() # by the name of the server: its process, its port

cleanup() {
    local status=$? name
    trap - EXIT
    set +e
    for name in "${!pid[@]}"; do
        kill -TERM "${pid[$name]}" 2>/dev/null && sleep 1
        kill -KILL "${pid[$name]}" 2>/dev/null
        [ "$status" = 0 ] || sed "s/^/$name: /" "$work/$name.err" >&2
    done
    if [ -n "$work" ] && [ "$keep" = 1 ]; then
        say "kept: $work"
    elif [ -n "$work" ]; then
        rm -rf "$work"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- servers ---------------------------------------------------------------------------------------------------------

# start NAME ARGUMENTS...: returns when it listens
start() {
    local name=$1 address
    shift
    : >"$work/$name.out" # it is read from before the new process gets to open it
    "$bin/$name" "$@" >>"$work/$name.out" 2>"$work/$name.err" &
    pid[$name]=$!
    for ((i = 0; i < 200; i++)); do
        address=$(sed -n 's/^listening on //p' "$work/$name.out")
        [ -z "$address" ] || break
        kill -0 "${pid[$name]}" 2>/dev/null || die "$name ended by itself"
        sleep 0.1
    done
    [ -n "$address" ] || die "$name does not listen after 20 seconds"
    listens[$name]=${address##*:}
}

stop() {
    local name=$1 status=0
    kill -TERM "${pid[$name]}" || die "$name is not there any more"
    for ((i = 0; i < 150; i++)); do
        kill -0 "${pid[$name]}" 2>/dev/null || break
        sleep 0.1
    done
    ! kill -0 "${pid[$name]}" 2>/dev/null || die "$name does not leave 15 seconds after SIGTERM"
    wait "${pid[$name]}" || status=$?
    unset "pid[$name]"
    [ "$status" = 0 ] || die "$name left with status $status"
}

# The pool's counters as lines `name value`.
point_stats() { redis-cli -p "${listens[point-server]}" INFO | tr -d '\r' | sed -n 's/^pool_\([a-z_]*\):\([0-9]*\)$/\1 \2/p'; }
scan_stats() { curl -sS "$scan_url/stats" | tr ',{}' '\n' | sed -n 's/^ *"\([a-z_]*\)": *\([0-9]*\) *$/\1 \2/p'; }

# ---- measuring -------------------------------------------------------------------------------------------------------

row() { printf '%-34s %12s %10s %15s %9s %9s\n' "$@"; }

# account LABEL REQUESTS_PER_SECOND P50 P99 ELAPSED_NS BEFORE AFTER [REQUESTS]: a row of the table. Every request must
# have been one of the pool's where REQUESTS says how many there were.
account() {
    awk -v label="$1" -v rate="$2" -v p50="$3" -v p99="$4" -v ns="$5" -v wanted="${8:-0}" '
        FNR == 1 { file++ }
        { value[file, $1] = $2 }
        function grown(name) { return value[2, name] - value[1, name] }
        END {
            asked = grown("hits") + grown("misses") + grown("joins")
            if (asked < 1 || asked < wanted) {
                printf "%s: the pool saw %d requests, not %d\n", label, asked, wanted > "/dev/stderr"
                exit 1
            }
            printf "%-34s %12.0f %9.1f%% %15.0f %9.2f %9.2f\n", label, rate, 100 * grown("hits") / asked,
                grown("reads") * 1e9 / ns, p50, p99
        }' "$6" "$7" >>"$work/table" || die "$1: the counters do not fit the requests"
}

# bench PAGES REQUESTS: redis-benchmark's figures as `rate p50 p99`
bench() {
    timeout 120 redis-benchmark -p "${listens[point-server]}" -t get -r "$1" -n "$2" -P $depth -c $clients --csv 2>"$work/bench.err" |
        awk -F'"?,"?' '/^"GET"/ { sub(/"$/, ""); print $2, $5, $7; found = 1 } END { exit !found }' ||
        die "redis-benchmark: $(tail -n 3 "$work/bench.err")"
}

# point_row LABEL PAGES: GETs of random pages below PAGES, for about $seconds
point_row() {
    local label=$1 keys=$2 n=20000 rate p50 p99 before after start
    say "measuring: $label"
    read -r rate p50 p99 < <(bench "$keys" $n) || die "redis-benchmark gave no figures"
    n=$(awk -v rate="$rate" -v s=$seconds 'BEGIN { print int(rate * s) }')
    n=$((n < 20000 ? 20000 : n > 5000000 ? 5000000 : n))
    before=$work/before after=$work/after
    point_stats >"$before"
    start=$(date +%s%N)
    read -r rate p50 p99 < <(bench "$keys" "$n") || die "redis-benchmark gave no figures"
    start=$(($(date +%s%N) - start))
    point_stats >"$after"
    account "$label" "$rate" "$p50" "$p99" "$start" "$before" "$after" "$n"
}

check() { timeout 120 "$bin/check-pages" --port "${listens[point-server]}" --pages "$pages" "$@" || die "wrong pages"; }

random_below() { echo $(((RANDOM << 45 | RANDOM << 30 | RANDOM << 15 | RANDOM) % $1)); }

# make_ranges: random ranges of the file to $work/ranges, one line `first last` each; half of them begin and end anywhere
make_ranges() {
    local bytes=$((pages * 4096)) want=$range_bytes
    [ $want -lt $bytes ] || want=$((bytes / 2))
    for ((i = 0; i < ranges; i++)); do
        local first length=$want
        first=$(random_below $((bytes - want)))
        [ $((i % 2)) = 0 ] && first=$((first / 4096 * 4096)) || length=$((want - i))
        echo "$first $((first + length - 1))"
    done >"$work/ranges"
}

# fetch_ranges: all of $work/ranges over one connection, to standard output or with --output /dev/null; one line `status seconds` each
# to $work/times
fetch_ranges() {
    local first last
    while read -r first last; do
        printf 'url = "%s/data"\nrange = "%s-%s"\nsilent\nshow-error\n' "$scan_url" "$first" "$last"
        printf 'write-out = "%%{stderr}%%{http_code} %%{time_total}\\n"\n'
        [ "${1:-}" != --output ] || printf 'output = "%s"\n' "$2"
        echo next
    done <"$work/ranges" | sed '$d' >"$work/curl.config"
    timeout 120 curl -K "$work/curl.config" 2>"$work/times"
    ! grep -qv '^206 ' "$work/times" || die "ranges: $(grep -v '^206 ' "$work/times" | head -n 1)"
}

wanted_ranges() {
    local first last
    while read -r first last; do
        dd if="$data" bs=1M iflag=skip_bytes,count_bytes skip="$first" count=$((last - first + 1)) status=none
    done <"$work/ranges"
}

percentile() { awk '{ print $2 * 1000 }' "$work/times" | sort -n | awk -v p="$1" '{ v[NR] = $1 } END { i = int(NR * p / 100 + 0.999999); print v[i < 1 ? 1 : i] }'; }

scan_checks() {
    local status length
    say "checking: the whole file over HTTP"
    timeout 120 curl -sS -f "$scan_url/data" | cmp - "$data" || die "the file over HTTP is not the file"
    say "checking: $ranges ranges over HTTP"
    make_ranges
    fetch_ranges | cmp - <(wanted_ranges) || die "a range over HTTP is not what the file holds"
    curl -sS -f -r 4096-8191 "$scan_url/data" | cmp - <(dd if="$data" bs=4096 skip=1 count=1 status=none) || die "page 1"
    length=$(curl -sS -f -I "$scan_url/data" | tr -d '\r' | sed -n 's/^[Cc]ontent-[Ll]ength: //p')
    [ "$length" = $((pages * 4096)) ] || die "HEAD says $length bytes"
    status=$(curl -sS -o /dev/null -w '%{http_code}' -r $((pages * 4096))- "$scan_url/data")
    [ "$status" = 416 ] || die "a range past the end was answered with $status"
    say "checking: lines counted over HTTP"
    curl -sS -f "$scan_url/scan?op=count" | tail -n 1 | grep -q "\"count\": $(tr -dc '\n' <"$data" | wc -c)," || die "/scan?op=count"
}

scan_rows() {
    local elapsed
    say "measuring: scan-server"
    make_ranges
    scan_stats >"$work/before"
    elapsed=$(date +%s%N)
    fetch_ranges --output /dev/null
    elapsed=$(($(date +%s%N) - elapsed))
    scan_stats >"$work/after"
    account "HTTP, ranges of about $((range_bytes >> 10)) KiB" "$(awk -v n=$ranges -v ns=$elapsed 'BEGIN { print n * 1e9 / ns }')" \
        "$(percentile 50)" "$(percentile 99)" "$elapsed" "$work/before" "$work/after"
    scan_speed=$(timeout 120 curl -sS -f -o /dev/null -w '%{speed_download}' "$scan_url/data")
}

# ---- the job ---------------------------------------------------------------------------------------------------------

"$root/.ci/install" gcc cmake ninja-build pkgconf liburing-dev liburcu-dev libhwloc-dev libhiredis-dev libhttp-parser-dev \
    libisal-dev zlib1g-dev libjansson-dev redis-tools curl

parent=${TMPDIR:-/var/tmp}
case $(stat -f -c %T "$parent") in
tmpfs | ramfs) die "$parent is in memory; set TMPDIR to a folder on a disk" ;;
esac
work=$(mktemp -d "$parent/bufpool-example.XXXXXX")
data=$work/data

say "building (log: build/run-build.log)"
tests=()
pkg-config --exists 'criterion >= 2.4' || tests=(-DBP_TESTS=OFF)
bin=$root/build/examples
mkdir -p "$root/build"
if [ -f "$root/build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$root/build/CMakeCache.txt"; then
    rm -rf "$root/build/CMakeCache.txt" "$root/build/CMakeFiles" # configured elsewhere: a copied clone
fi
{ (cd "$root" && cmake --preset release "${tests[@]}") &&
    cmake --build "$root/build" -j "$(nproc)" --target point-server scan-server make-data check-pages; } \
    >"$root/build/run-build.log" 2>&1 || { tail -n 60 "$root/build/run-build.log" && die "the build"; }

say "making a file of $size in $work"
pages=$("$bin/make-data" "$data" "$size")
pages=${pages% pages}
[ -n "$memory" ] || memory=${pages}K # 4 KiB a page: a quarter

say "starting both servers, each with a pool of $memory"
start point-server --data "$data" --memory "$memory" --listen "127.0.0.1:$port"
start scan-server --data "$data" --memory "$memory" --listen "127.0.0.1:$((port ? port + 1 : 0))"
scan_url=http://127.0.0.1:${listens[scan-server]}
say "point-server on port ${listens[point-server]}, scan-server on port ${listens[scan-server]}"

say "checking: every page, in order"
check --sequential --count "$pages" --batch 128
say "checking: random pages, while redis-benchmark loads the server"
bench "$pages" 200000 >/dev/null &
load=$!
check --count 20000 --seed $RANDOM
wait $load || die "redis-benchmark"

row "" "requests/s" "hit rate" "device reads/s" "p50 ms" "p99 ms" >"$work/table"
hot=$(($(point_stats | awk '$1 == "memory_limit" { print $2 }') / 4096 / 2))
[ "$hot" -gt 0 ] || die "INFO of point-server names no pool_memory_limit"
[ "$hot" -lt "$pages" ] || hot=$pages
point_row "GET, whole file" "$pages"
check --sequential --count "$hot" --batch 128
point_row "GET, hot set of half the pool" "$hot"
scan_checks
scan_rows
check --count 5000 --seed $RANDOM

say "stopping the servers"
stop point-server
stop scan-server

echo
cat "$work/table"
awk -v s="$scan_speed" 'BEGIN { printf "%-34s %8.0f MB/s\n", "HTTP, whole file", s / 1e6 }'
echo
say "every byte was right"
