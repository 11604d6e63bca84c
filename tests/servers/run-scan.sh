#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# scan-server: ranges against the file, by curl; what HTTP wants of a server; clients that do not behave; SIGTERM.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
bytes=$((11 * 1024 * 1024 + 4321))
make_data "$data" $bytes
touch -d '1 minute ago' "$data" # a date tells only what lies behind
get() { curl -sS --max-time 60 "$@"; }
part() { tail -c +$(($1 + 1)) "$data" | head -c "$2"; }
# raw TEXT: sent as printf has it; what comes back until the connection ends or nothing comes
raw() {
    # shellcheck disable=SC2059
    printf "$1" | "$clients" raw "$port" "${2:-3000}" close
}
status_of() { head -n 1 | cut -d' ' -f2; }

ranges() {
    local range first count wrong=0 n=0
    # within a page, across pages, across extents, first and last bytes, beyond the end
    for range in 0-0 0-4095 4096-8191 4095-4096 100-199 262143-262144 262000-800000 0-262143 $((bytes - 1))-$((bytes - 1)) \
        $((bytes - 5000))-$((bytes + 5000)) 1234567-7654321 0-99999999999999999999; do
        first=${range%-*} last=${range#*-}
        [ ${#last} -lt 15 ] && [ "$last" -lt $bytes ] || last=$((bytes - 1))
        count=$((last - first + 1))
        get -r "$range" -D "$work/head" "$url/data" | cmp -s - <(part "$first" $count) || wrong=$((wrong + 1))
        grep -q "^Content-Range: bytes $first-$last/$bytes" "$work/head" || wrong=$((wrong + 1))
        grep -q '^HTTP/1.1 206 ' "$work/head" || wrong=$((wrong + 1))
        n=$((n + 1))
    done
    same "$n ranges have the bytes of the file" 0 $wrong
}

# ---- what is served, with a pool that holds a part of it ----
start scan-server --data "$data" --memory 4M --threads 2
url=http://127.0.0.1:$port
check "the whole file" cmp -s <(get "$url/data") "$data"
ranges
check "the last 5000 bytes" cmp -s <(get -r -5000 "$url/data") <(tail -c 5000 "$data")
check "the last more than there are" cmp -s <(get -r -99999999 "$url/data") "$data"
check "from byte 777 on" cmp -s <(get -r 777- "$url/data") <(part 777 $bytes)
for range in bytes=5-2 bytes=x items=0-1 bytes=0-1x bytes=-; do
    same "Range: $range is passed over" 200 "$(get -o /dev/null -w '%{http_code}' -H "Range: $range" "$url/data")"
done
# several RANGE FIRST-LAST...: the answer to this header has these parts, in this order
several() {
    local range=$1 boundary one
    shift
    get -D "$work/head" -o "$work/out" -H "Range: $range" "$url/data"
    boundary=$(sed -n 's/^Content-Type: multipart\/byteranges; boundary=\([^\r]*\)\r/\1/p' "$work/head")
    for one; do
        printf '\r\n--%s\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes %s/%s\r\n\r\n' "$boundary" "$one" $bytes
        part "${one%-*}" $((${one#*-} - ${one%-*} + 1))
    done | tail -c +3 >"$work/wanted"
    printf '\r\n--%s--\r\n' "$boundary" >>"$work/wanted"
    check "$range: $# parts" cmp -s "$work/out" "$work/wanted"
    same "$range: status, length" "206 $(stat -c %s "$work/wanted")" \
        "$(head -n 1 "$work/head" | cut -d' ' -f2) $(sed -n 's/^Content-Length: \([0-9]*\)\r/\1/p' "$work/head")"
}
several bytes=0-1,5-6 0-1 5-6
several 'bytes=0-9, ,20000-999999 ,, -7' 0-9 20000-999999 $((bytes - 7))-$((bytes - 1))
several bytes=500-600,0-99,550-700,90-120 500-700 0-120
several bytes=$bytes-,3-4,7-8 3-4 7-8
several "bytes=$(seq -s, -f '%.0f0000-' 64 -1 1 | sed 's/\([0-9]*\)0000-/\10000-\10001/g')" $(seq -f '%.0f' 64 -1 1 | sed 's/.*/&0000-&0001/')
same "ranges that are one in the end: 206, no parts" "206 bytes 10-39/$bytes" \
    "$(get -o "$work/out" -D "$work/head" -w '%{http_code}' -H 'Range: bytes=20-39,10-19,15-25' "$url/data") $(sed -n 's/^Content-Range: \([^\r]*\)\r/\1/p' "$work/head")"
check "and its bytes" cmp -s "$work/out" <(part 10 30)
same "several, none of them there" 416 "$(get -o /dev/null -w '%{http_code}' -H "Range: bytes=$bytes-,-0" "$url/data")"
for range in bytes=0-1,5-2 bytes=0-1,x "bytes=$(seq -s, -f '%.0f-' 1 65)" "bytes=$(seq -s, -f '%.0f00-' 1 2000)" bytes=,; do
    same "Range: ${range:0:40}: the whole file" 200 "$(get -o "$work/out" -w '%{http_code}' -H "Range: $range" "$url/data")"
    check "and its bytes" cmp -s "$work/out" "$data"
done
for range in $bytes- $bytes-$((bytes + 5)) -0; do
    same "range $range: 416" 416 "$(get -o /dev/null -D "$work/head" -w '%{http_code}' -H "Range: bytes=$range" "$url/data")"
    check "range $range: Content-Range" grep -q "^Content-Range: bytes \*/$bytes" "$work/head"
done
get -I "$url/data" >"$work/head"
check "HEAD: 200" grep -q '^HTTP/1.1 200 ' "$work/head"
check "HEAD: Content-Length" grep -q "^Content-Length: $bytes"$'\r' "$work/head"
check "HEAD: Accept-Ranges" grep -q "^Accept-Ranges: bytes" "$work/head"
etag=$(sed -n 's/^ETag: \(.*\)\r/\1/p' "$work/head")
check "HEAD: ETag $etag" test -n "$etag"
code() { get -o /dev/null -w '%{http_code}' "$@" "$url/data"; }
same "If-Range that holds" 206 "$(code -r 0-1 -H "If-Range: $etag")"
same "If-Range that does not" 200 "$(code -r 0-1 -H 'If-Range: "other"')"
same "If-None-Match" 304 "$(code -H "If-None-Match: $etag")"
same "If-None-Match of another" 200 "$(code -H 'If-None-Match: "other"')"
same "If-None-Match: a list, weak" 304 "$(code -H "If-None-Match: \"a\", W/$etag")"
same "If-None-Match: *" 304 "$(code -H 'If-None-Match: *')"
same "If-None-Match goes before If-Modified-Since" 200 "$(code -H 'If-None-Match: "x"' -H 'If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT')"
modified=$(sed -n 's/^Last-Modified: \(.*\)\r/\1/p' "$work/head")
same "If-Modified-Since" 304 "$(code -H "If-Modified-Since: $modified")"
same "If-Modified-Since, in the old forms" "304 304" "$(code -H 'If-Modified-Since: Wednesday, 02-Jan-41 00:00:00 GMT') $(code -H 'If-Modified-Since: Wed Jan  2 00:00:00 2041')"
same "If-Modified-Since: before" 200 "$(code -H 'If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT')"
same "If-Modified-Since: no date" 200 "$(code -H 'If-Modified-Since: yesterday')"
same "If-Match" "200 200 412 412" "$(code -H "If-Match: \"a\",$etag") $(code -H 'If-Match: *') $(code -H 'If-Match: "a"') $(code -H "If-Match: W/$etag")"
same "If-Unmodified-Since" "200 412" "$(code -H "If-Unmodified-Since: $modified") $(code -H 'If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT')"
same "If-Range: a date" "206 200" "$(code -r 0-1 -H "If-Range: $modified") $(code -r 0-1 -H 'If-Range: Sat, 01 Jan 2000 00:00:00 GMT')"
same "404" 404 "$(get -o /dev/null -w '%{http_code}' "$url/nothing")"
same "405" 405 "$(code -X DELETE -D "$work/head")"
check "405: Allow" grep -q '^Allow: GET, HEAD' "$work/head"
same "a query is passed over" 200 "$(get -o /dev/null -w '%{http_code}' "$url/data?x=1")"
same "keep-alive: 3 requests, connections" "1 0 0" \
    "$(get -r 0-9 -o /dev/null -w '%{num_connects}\n' "$url/data" -: -sS -r 5-9 -o /dev/null -w '%{num_connects}\n' "$url/data" \
        -: -sS -o /dev/null -w '%{num_connects}\n' "$url/stats" | paste -sd' ')"
check "HTTP/1.0 closes" grep -q '^Connection: close' <(get -0 -I "$url/data")
get "$url/stats" >"$work/stats"
if command -v node >/dev/null; then
    check "/stats is JSON" node -e 'const s = JSON.parse(require("fs").readFileSync(process.argv[1]));
        if (!(s.pool.reads > 0 && s.files[0].bytes == process.argv[2] && s.caps.length)) process.exit(1)' "$work/stats" $bytes
else
    check "/stats" grep -q '"reads": [1-9]' "$work/stats"
fi

# ---- pipelining, and pieces ----
raw 'GET /data HTTP/1.1\r\nHost: x\r\nRange: bytes=10-19\r\n\r\nHEAD /data HTTP/1.1\r\nHost: x\r\n\r\nGET /no HTTP/1.1\r\nHost: x\r\n\r\nGET /data HTTP/1.1\r\nHost: x\r\nRange: bytes=20-29\r\nConnection: close\r\n\r\n' >"$work/out"
same "pipelined: four answers in order" "206 200 404 206" \
    "$(grep -a -o "HTTP/1\.1 [0-9]*" "$work/out" | cut -d' ' -f2 | paste -sd' ')"
check "pipelined: the last one's bytes" cmp -s <(tail -c 10 "$work/out") <(part 20 10)

# ---- requests that are not ----
same "garbage" 400 "$(raw 'GARBAGE\r\n\r\n' | status_of)"
same "binary garbage" 400 "$(head -c 3000 "$data" | "$clients" raw "$port" 3000 | status_of)"
same "a Redis client" 400 "$(raw '*1\r\n$4\r\nPING\r\n' | status_of)"
same "HTTP/2's preface" 400 "$(raw 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' | status_of)"
long=$(head -c 20000 /dev/zero | tr '\0' a)
same "a header field of 20,000 bytes" 431 "$(raw "GET /data HTTP/1.1\r\nX: $long\r\n\r\n" | status_of)"
same "header fields without end" 431 "$( (printf 'GET /data HTTP/1.1\r\n'; yes "X: ${long:0:1000}" | head -c 1100000) | "$clients" raw "$port" 3000 | status_of)"
same "a path of 2,000 bytes" 414 "$(raw "GET /${long:0:2000} HTTP/1.1\r\n\r\n" | status_of)"
same "a body of 1 GB announced" 413 "$(raw 'POST /data HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n' | status_of)"
same "a body that is forgotten" "405 404" "$(raw 'POST /data HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET /no HTTP/1.1\r\nConnection: close\r\n\r\n' | grep -a ^HTTP | cut -d' ' -f2 | paste -sd' ')"
same "half a request" "" "$(raw 'GET /da')"
ask fuzz 1000

# ---- slow clients beside fast ones, in bounded memory ----
for ((i = 0; i < 20; i++)); do
    get --limit-rate 100k --max-time 4 -o /dev/null "$url/data" 2>/dev/null &
    slow[i]=$!
done
get --limit-rate 4M -o "$work/slow" "$url/data" &
reader=$!
for ((i = 0; i < 4; i++)); do
    get -o "$work/fast$i" "$url/data" &
    fast[i]=$!
done
wait "${fast[@]}"
wrong=0
for ((i = 0; i < 4; i++)); do cmp -s "$work/fast$i" "$data" || wrong=$((wrong + 1)); done
same "four fast clients beside 21 slow ones: the bytes of the file" 0 $wrong
rss=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status")
[ $sanitized = 1 ] || check "memory: $rss KiB, of which the pool has 4096" test "$rss" -lt 40000
wait $reader
check "a slow client: the bytes of the file" cmp -s "$work/slow" "$data"
wait "${slow[@]}"
sleep 0.3
same "nothing stays pinned" 0 "$(get "$url/stats" | sed -n 's/.*"frames_pinned": \([0-9]*\).*/\1/p')"
at_rest scan-server
stop scan-server

# ---- the smallest pool; reading by pread; one extent ahead ----
start scan-server --data "$data" --memory 1M --threads 2 --io psync --window 1 --client-timeout 1
url=http://127.0.0.1:$port
for ((i = 0; i < 6; i++)); do
    get -o "$work/fast$i" "$url/data" &
    fast[i]=$!
done
wait "${fast[@]}"
wrong=0
for ((i = 0; i < 6; i++)); do cmp -s "$work/fast$i" "$data" || wrong=$((wrong + 1)); done
same "six clients at the smallest pool: the bytes of the file" 0 $wrong
# clients that stop in the middle: of a request, of a body, of many ranges
exec {half}<>"/dev/tcp/127.0.0.1/$port" {deaf}<>"/dev/tcp/127.0.0.1/$port" {parts}<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /data HT' >&$half
printf 'GET /data HTTP/1.1\r\n\r\nGET /data HTTP/1.1\r\n\r\n' >&$deaf
printf 'GET /data HTTP/1.1\r\nRange: bytes=0-%s,%s-\r\n\r\n' 6000000 6000005 >&$parts
check "others are served beside clients that stop in the middle" cmp -s <(get "$url/data") "$data"
for ((i = 0; i < 100; i++)); do
    [ "$(get "$url/stats" | sed -n 's/.*"ended_by_timeout": \([0-9]*\).*/\1/p')" != 3 ] || break
    sleep 0.1
done
check "and these are ended after a while" test $i -lt 100
exec {half}>&- {deaf}>&- {parts}>&-
same "nothing stays pinned" 0 "$(get "$url/stats" | sed -n 's/.*"frames_pinned": \([0-9]*\).*/\1/p')"
stop scan-server

# ---- a file that becomes shorter while it is sent: an end that is too early, and no byte that is not the file's ----
make_data "$work/large" $((64 << 20)) # more than sockets take up by themselves
cp "$work/large" "$work/changing"
start scan-server --data "$work/changing" --memory 1M --threads 1
url=http://127.0.0.1:$port
get --limit-rate 16M -o "$work/out" "$url/data" 2>/dev/null &
reader=$!
sleep 0.7
truncate -s 3000000 "$work/changing"
status=0
wait $reader || status=$?
same "cut short: curl says that bytes are missing" 18 $status
got=$(stat -c %s "$work/out")
check "cut short: the $got bytes that came are right" cmp -s "$work/out" <(head -c "$got" "$work/large")
same "afterwards: the new length" 3000000 "$(get -I "$url/data" | sed -n 's/^Content-Length: \([0-9]*\)\r/\1/p')"
same "a changed file has no ETag" "" "$(get -I "$url/data" | grep -i ^etag)"
stop scan-server

# ---- SIGTERM: what was asked is still sent ----
make_data "$work/some" $((24 << 20)) # ten seconds are enough for it on a busy machine and under a sanitizer too
start scan-server --data "$work/some" --memory 4M --threads 2
url=http://127.0.0.1:$port
get --limit-rate 12M -o "$work/out" "$url/data" &
reader=$!
sleep 0.5
stop scan-server
wait $reader
check "SIGTERM: a response that had begun is finished" cmp -s "$work/out" "$work/some"
finish
