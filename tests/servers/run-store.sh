#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# point-server --kv: strings of a store, by redis-cli and redis-benchmark; restarts, kill -9 while a client writes, a second
# server on the same directory.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ -x "$bin/point-server" ] || finish
dir=$work/store

# ---- commands ----
start point-server --kv "$dir" --memory 8M --threads 2 --sync group
same "GET of nothing" "" "$(redis GET a)"
same "SET" OK "$(redis SET a 1)"
same "GET" 1 "$(redis GET a)"
same "SET NX" "" "$(redis SET a 2 NX)"
same "SET XX" OK "$(redis SET a 3 XX)"
same "SET with what is not supported" "ERR syntax error" "$(redis SET a 3 EX 10)"
same "MSET" OK "$(redis MSET b 20 c 30 d 40)"
same "MGET" "3 20 30  40" "$(redis MGET a b c nothing d | paste -sd' ')"
same "EXISTS" 3 "$(redis EXISTS a b nothing c)"
same "STRLEN" 2 "$(redis STRLEN b)"
same "GETRANGE" ell "$(redis SET g hello >/dev/null; redis GETRANGE g 1 3)"
same "GETRANGE from the end" llo "$(redis GETRANGE g -3 -1)"
same "DEL" 2 "$(redis DEL a nothing b)"
same "DBSIZE" 3 "$(redis DBSIZE)"
same "SCAN" "c d g" "$(redis --scan | paste -sd' ')"
same "SCAN MATCH" d "$(redis --scan --pattern 'd*')"
same "a key that is too long" "" "$(redis GET "$(head -c 2000 /dev/zero | tr '\0' k)")"
same "another kind" "ERR this store has strings only, and no such command" "$(redis LPUSH l 1)"
check "INFO" grep -q '^db0:keys=3' <(redis INFO)
big=$(head -c 300000 /dev/urandom | base64 -w0)
same "a large value" OK "$(printf '%s' "$big" | redis -x SET big)"
check "GET of it" cmp -s <(redis GET big) <(printf '%s\n' "$big")
same "STRLEN of it" ${#big} "$(redis STRLEN big)"
for i in $(seq 500); do echo "SET key:$i value-$i"; done | redis >/dev/null
same "SCAN of many" 504 "$(redis --scan | sort -u | wc -l)"
check "a second server is told" grep -q 'has this store open' <("$bin/point-server" --kv "$dir" --memory 8M --listen 127.0.0.1:0 2>&1)
check "redis-benchmark" grep -q '"SET"' <(timeout 60 redis-benchmark -p "$port" -t set,get -n 4000 -P 16 -c 20 -r 1000 -d 100 --csv 2>&1)

# ---- acknowledged is kept: kill -9 in the middle ----
(i=0; while redis SET "mark" $((i += 1)) >"$work/reply" 2>/dev/null && grep -q OK "$work/reply"; do echo $i >"$work/acknowledged"; done) &
writer=$!
sleep 1
kill -9 "$pid"
wait "$pid" 2>/dev/null
wait "$writer" 2>/dev/null
pid=
start point-server --kv "$dir" --memory 8M --threads 2 --sync always
kept=$(redis GET mark)
last=$(cat "$work/acknowledged")
check "after kill -9: $kept is there, $last was acknowledged" test "$kept" -ge "$last" -a "$kept" -le $((last + 1))
same "the others too" value-500 "$(redis GET key:500)"
check "the large value too" cmp -s <(redis GET big) <(printf '%s\n' "$big")
stop point-server
if [ -x "$bin/kv" ]; then
    check "kv check" grep -q ': 0 faults' <("$bin/kv" "$dir" check)
    same "kv get" value-7 "$("$bin/kv" "$dir" get key:7)"
fi
finish
