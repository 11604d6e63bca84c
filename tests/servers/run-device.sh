#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Both servers on a device that fails for some pages, and on one that is slow for some: the error names the page and
# everybody else gets theirs; who waits for a slow page keeps nobody else waiting. (Reads go by pread here, so that a
# preloaded library can be the device.)
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
bytes=$((4 * 1024 * 1024 + 99))
make_data "$data" $bytes
page() { dd if="$data" bs=4096 skip="$1" count=1 status=none; }
get() { curl -sS --max-time 60 "$@"; }

if ! ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE -o "$work/shim.so" "$here/shim/pread.c" 2>"$work/cc.err"; then
    skip "no compiler for the preloaded device: $(head -n 1 "$work/cc.err")"
    finish
fi
export SHIM_CONTROL=$work/control
: >"$SHIM_CONTROL"
broken() { echo "$*" >"$SHIM_CONTROL.new" && mv "$SHIM_CONTROL.new" "$SHIM_CONTROL"; }
start_shimmed() {
    export LD_PRELOAD=$work/shim.so
    start "$@"
    unset LD_PRELOAD
}

# ---- pages that cannot be read ----
start_shimmed point-server --data "$data" --memory 1M --io psync --threads 2
broken eio $((100 * 4096)) $((101 * 4096 - 1))
same "a page that cannot be read" "ERR read of page 100 failed: Input/output error" "$(redis GET 100)"
check "the page before it" cmp -s <(redis GET 99 | head -c 4096) <(page 99)
check "the page after it" cmp -s <(redis GET 101 | head -c 4096) <(page 101)
check "MGET: an error in its place, and the pages around it" cmp -s <(redis MGET 99 100 101 | head -c 8243) \
    <(page 99; printf "\nERR read of page 100 failed: Input/output error\n\n"; page 101; echo)
same "a pipeline goes on behind it" "ERR read of page 100 failed: Input/output error;4096;PONG" \
    "$(printf 'GET 100\nSTRLEN 100\nPING\n' | redis | paste -sd';' | sed 's/;;*/;/g')"
check "the failures are counted" test "$(redis INFO | tr -d '\r' | sed -n 's/^pool_read_errors://p')" -ge 2
broken eio $((150 * 4096)) $((151 * 4096 - 1))
same "another one" "ERR read of page 150 failed: Input/output error" "$(redis GET 150)"
broken
check "when the device is well again, what had failed once is there" cmp -s <(redis GET 150 | head -c 4096) <(page 150)
same "what had failed several times is known to be bad, for a while" "ERR read of page 100 failed: Input/output error" "$(redis GET 100)"
same "nothing stays pinned" 0 "$(redis INFO pool | tr -d '\r' | sed -n 's/^pool_frames_pinned://p')"

# ---- pages that take long ----
broken slow $((300 * 4096)) $((301 * 4096 - 1)) 3000
(redis GET 300 >"$work/slow"; date +%s%N >"$work/slow.end") &
slow=$!
sleep 0.3
begin=$(date +%s%N)
same "PING while a page is being read" PONG "$(redis PING)"
for i in 1 2 3 4 5 6 7 8; do # on both threads, hits and misses
    check "GET while a page is being read" cmp -s <(redis GET $((300 + i)) | head -c 4096) <(page $((300 + i)))
done
end=$(date +%s%N)
same "a pipeline behind the slow page is in order" "page 300;PONG;page 301" \
    "$(printf 'GET 300\nPING\nGET 301\n' | redis >"$work/out"
        cmp -s <(head -c 4096 "$work/out") <(page 300) && printf 'page 300;'
        tail -c +4098 "$work/out" | head -n 1 | tr '\n' ';'
        cmp -s <(tail -c +4103 "$work/out" | head -c 4096) <(page 301) && printf 'page 301')"
wait $slow
check "the slow page" cmp -s <(head -c 4096 "$work/slow") <(page 300)
check "all others were served before it: $(((end - begin) / 1000000)) ms" test "$end" -lt "$(cat "$work/slow.end")"
broken
stop point-server

# ---- the same for ranges ----
start_shimmed scan-server --data "$data" --memory 1M --io psync --threads 1
url=http://127.0.0.1:$port
broken eio 2000000 2000001
status=0
get -o "$work/out" "$url/data" 2>/dev/null || status=$?
same "a body that cannot be read to its end: curl's status" 18 $status
got=$(stat -c %s "$work/out")
check "what came of it ($got bytes) is right" cmp -s "$work/out" <(head -c "$got" "$data")
check "and came before the bad place" test "$got" -le 2000000
check "other ranges are served" cmp -s <(get -r 3000000-3999999 "$url/data") <(tail -c +3000001 "$data" | head -c 1000000)
broken slow 1000000 1000001 3000
(get -o "$work/out" "$url/data"; date +%s%N >"$work/slow.end") &
slow=$!
sleep 0.3
check "another range while one waits" cmp -s <(get -r 3000000-3099999 "$url/data") <(tail -c +3000001 "$data" | head -c 100000)
end=$(date +%s%N)
wait $slow
check "was served before it" test "$end" -lt "$(cat "$work/slow.end")"
check "the slow body" cmp -s "$work/out" "$data"
stop scan-server
finish
