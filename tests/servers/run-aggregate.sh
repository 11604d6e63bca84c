#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# scan-server's /scan: right results whatever the stretch, the form of the answer, bounds, clients that leave, devices that
# fail, files that are cut off; and several files, /metrics, /map.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
{ # without two pages alike, and places where a pattern overlaps with itself, across the borders of everything
    head -c 6000123 /dev/urandom
    head -c 400000 /dev/zero
    yes ab | tr -d '\n' | head -c 300001
    head -c 5000000 /dev/urandom
} >"$data"
bytes=$(stat -c %s "$data")
printf '123456789' >"$work/small file"
get() { curl -sS --max-time 60 "$@"; }
scan() { get "$url/scan?$1" | tail -n 1; }
stat_of() { get "$url/stats" | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p"; }
# until NAME VALUE: a statistic gets there, within five seconds
until_stat() {
    local i
    for ((i = 0; i < 100; i++)); do
        [ "$(stat_of "$1")" = "$2" ] && return
        sleep 0.05
    done
    return 1
}

# ---- results ----
start scan-server --data "$data" --data "$work/small file" --memory 4M --threads 2
url=http://127.0.0.1:$port
ask aggregate "$data"
check "CRC-32C of 123456789 is e3069283" grep -q '"hex": "e3069283"' <(scan 'op=crc32c&file=small%20file')
check "a sum's last word is filled up" grep -q '"sum": 4050765991979987562,' <(scan 'op=sum&file=1')
check "count: lines by default" grep -q "\"byte\": 10, \"count\": $(tr -dc '\n' <"$data" | wc -c)," <(scan op=count)
check "an empty stretch" grep -q '"count": 0,' <(scan 'op=count&from=5&to=5')
check "to beyond the end is the end" grep -q '"to": 9, "matches": 1,' <(scan 'op=grep&file=1&pattern=89&to=99999')
check "a plus is a space" grep -q '"matches": 0,' <(scan 'op=grep&file=1&pattern=+')
get -D "$work/head" -o /dev/null "$url/scan?op=count"
check "chunks of NDJSON" grep -q -i '^Content-Type: application/x-ndjson' "$work/head"
same "HTTP/1.0: no chunks" "21 0" "$(get -0 -D "$work/head" "$url/scan?op=count" | wc -l) $(grep -c -i chunked "$work/head")"
same "HEAD: no body" 200 "$(get -I "$url/scan?op=count" | head -n 1 | cut -d' ' -f2)"
same "a client that closes its side gets its result all the same" 1 \
    "$(printf 'GET /scan?op=count HTTP/1.1\r\nHost: x\r\n\r\n' | "$clients" raw "$port" 3000 close | grep -a -c '"count"')"
same "a scan, and what was asked behind it" "200 416" \
    "$(printf 'GET /scan?op=sum HTTP/1.1\r\n\r\nGET /data HTTP/1.1\r\nRange: bytes=-0\r\nConnection: close\r\n\r\n' |
        "$clients" raw "$port" 3000 close | grep -a -o '^HTTP/1.1 [0-9]*' | cut -d' ' -f2 | paste -sd' ')"
for query in '' op= op=max op=count\&byte=256 op=count\&byte= op=grep op=grep\&pattern= op=grep\&pattern=a\&limit=10001 op=sum\&from=4 \
    op=sum\&from=16\&to=8 op=count\&from=$((bytes + 1)) op=count\&from=-1 op=count\&to=18446744073709551616 op=count\&file=x \
    op=count\&file=2 op=count\&op=sum op=count\&x=1 op=count\&from=%zz "op=grep&pattern=$(head -c 257 /dev/zero | tr '\0' a)"; do
    same "refused: ${query:0:40}" 400 "$(get -o "$work/out" -w '%{http_code}' "$url/scan?$query")"
done
check "and told why" grep -q . "$work/out"

# ---- several files ----
check "the first file" cmp -s <(get -r 0-99999 "$url/data/0") <(head -c 100000 "$data")
check "a file by its name" cmp -s <(get "$url/data/small%20file") "$work/small file"
check "a file by its number, in parts" grep -q -a 89 <(get -r 0-1,7-8 "$url/data/1")
same "no such file" "404 404 404" "$(get -o /dev/null -w '%{http_code} ' "$url/data/2" "$url/data/x" -o /dev/null "$url/data/data/" -o /dev/null | sed 's/ $//')"
same "another file, another ETag" 2 "$(for i in 0 1; do get -I "$url/data/$i" | grep -i ^etag; done | sort -u | wc -l)"

# ---- what others read ----
get "$url/metrics" >"$work/metrics"
check "/metrics" awk '
    /^# HELP [a-z][a-z0-9_]* [^ ]/ { if (help[$3]++) exit 1; name = $3; next }
    /^# TYPE [a-z][a-z0-9_]* (counter|gauge)$/ {
        if ($3 != name || ($4 == "counter") != ($3 ~ /_total$/)) exit 1
        next
    }
    /^[a-z][a-z0-9_]*(\{[a-z]+="([^"\\]|\\["\\n])*"(,[a-z]+="([^"\\]|\\["\\n])*")*\})? [0-9]+$/ {
        series = $0
        sub(/ [0-9]+$/, "", series)
        if (seen[series]++) exit 1 # one twice
        sub(/\{.*/, "", series)
        if (series != name) exit 1 # not below its lines
        values++
        next
    }
    { exit 1 }
    END { if (values < 40) exit 1 }' "$work/metrics"
same "/metrics and /stats agree" "$(stat_of misses)" "$(sed -n 's/^bufpool_misses_total //p' "$work/metrics")"
check "/metrics: sizes of files" grep -q "^bufpool_file_size_bytes{number=\"1\",file=\"small file\"} 9\$" "$work/metrics"
! command -v promtool >/dev/null || check "promtool" promtool check metrics <"$work/metrics"
get "$url/map?cells=100" >"$work/map"
resident=$(sed -n 's/.*"resident": \([0-9]*\).*/\1/p' "$work/map")
same "/map has all that is in memory" "$resident" \
    "$(sed -n 's/^"cells": \[\(.*\)\]}/\1/p' "$work/map" | sed 's/\],\?/\n/g' | tr -d '[' | awk -F, '{ for (i = 2; i <= NF; i += 2) sum += $i } END { print sum * 4096 }')"
same "/map of a small file" '"cells": [[0,1]]}' "$(get "$url/map?file=1" | tail -n 1)"
same "/map refuses" "400 400 400" "$(for q in cells=0 cells=2049 file=9; do get -o /dev/null -w '%{http_code}\n' "$url/map?$q"; done | paste -sd' ')"
stop scan-server

# ---- a slow device: clients that leave, bounds, a file that is cut off; and one that fails ----
if ! ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE -o "$work/shim.so" "$here/shim/pread.c" 2>"$work/cc.err"; then
    skip "no compiler for the preloaded device: $(head -n 1 "$work/cc.err")"
    finish
fi
export SHIM_CONTROL=$work/control
: >"$SHIM_CONTROL"
device() { echo "$*" >"$SHIM_CONTROL.new" && mv "$SHIM_CONTROL.new" "$SHIM_CONTROL"; }
cp "$data" "$work/changing"
export LD_PRELOAD=$work/shim.so
start scan-server --data "$work/changing" --memory 1M --io psync --threads 1 --scans 1
unset LD_PRELOAD
url=http://127.0.0.1:$port

device eio 4000000 4000001
get "$url/scan?op=crc32c" >"$work/out"
check "EIO: a line that names the page" grep -q '^{"error": "EIO", "page": 976, "offset": 3997696, "text": "[^"]*page 976[^"]*"}$' "$work/out"
same "EIO: progress up to there, and no result" "6 1" "$(grep -c '"progress"' "$work/out") $(grep -v -c '"progress"' "$work/out")"
device
check "when the device is well again, a result" grep -q '"crc32c"' <(scan 'op=crc32c&reread=1')

device slow 0 $bytes 40
curl -sS "$url/scan?op=count" >"$work/out" &
reader=$!
check "a scan runs" until_stat scans_running 1
kill $reader
wait $reader 2>/dev/null
check "its client left: it ends" until_stat scans_running 0
same "and is counted" 1 "$(stat_of scans_cancelled)"
check "others are served meanwhile" test "$(get -w '%{time_total}\n' -o /dev/null "$url/stats" | tr -d .)" -lt 2000000
for ((i = 0; i < 66; i++)); do
    exec {fd[i]}<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET /scan?op=count HTTP/1.1\r\n\r\n' >&"${fd[i]}"
    [ $i != 0 ] || until_stat scans_running 1
done
read -r -t 10 line <&"${fd[65]}"
same "one runs, 64 wait, the next is told to come again" "HTTP/1.1 503 Service Unavailable" "${line%$'\r'}"
same "as counted" "1 64" "$(stat_of scans_running) $(stat_of scans_waiting)"
for ((i = 0; i < 66; i++)); do exec {fd[i]}>&-; done
check "all have left: nothing waits" until_stat scans_waiting 0
check "nor runs" until_stat scans_running 0

get "$url/scan?op=crc32c&from=1000000" >"$work/out" &
reader=$!
until_stat scans_running 1
sleep 0.3
truncate -s 9000001 "$work/changing"
device
wait $reader
same "cut off: an error and no result" '{"error": "TRUNCATED", "page": 2197, ' "$(tail -n 1 "$work/out" | cut -c 1-37)"
check "the next one knows the new length" grep -q '"to": 9000001,' <(scan op=sum)
same "nothing stays pinned" 0 "$(stat_of frames_pinned)"

device slow 0 $bytes 40
get "$url/scan?op=count" >"$work/out" 2>/dev/null &
reader=$!
until_stat scans_running 1
(sleep 0.3; device) &
stop scan-server
wait $reader
check "SIGTERM: a scan that had begun comes to its result" grep -q '"count"' "$work/out"
finish
