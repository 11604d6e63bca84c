#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# point-server with clients that behave: commands, bytes of every page, order in pipelines, a pool of the smallest
# size, values that are shorter than pages, a file that grows and shrinks, many connections, SIGTERM under load.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
bytes=$((9 * 1024 * 1024 + 777)) # not a multiple of 4096
pages=2305
make_data "$data" $bytes

page() { dd if="$data" bs=4096 skip="$1" count=1 status=none; }
value_is_page() { cmp -s <(redis GET "$1" | head -c "$3") <(page "$2"); }

# ---- commands, by redis-cli ----
start point-server --data "$data" --memory 4M --threads 2
same "PING" PONG "$(redis PING)"
same "PING hello" hello "$(redis PING hello)"
same "ECHO" "a b" "$(redis ECHO 'a b')"
check "GET 7" value_is_page 7 7 4096
check "GET key:000000000042" value_is_page key:000000000042 42 4096
check "GET of the last, partial page" value_is_page $((pages - 1)) $((pages - 1)) 777
same "GET past the end" "" "$(redis GET $pages)"
same "GET of no page" "" "$(redis GET key:seven)"
same "STRLEN" 4096 "$(redis STRLEN x:y:0001)"
same "STRLEN of the last page" 777 "$(redis STRLEN $((pages - 1)))"
same "STRLEN past the end" 0 "$(redis STRLEN $pages)"
same "EXISTS" 3 "$(redis EXISTS 1 $pages 1 a:2 nothing)"
same "DBSIZE" $pages "$(redis DBSIZE)"
check "GETRANGE" cmp -s <(redis GETRANGE 3 100 199 | head -c 100) <(page 3 | tail -c +101 | head -c 100)
check "SUBSTR, from the end" cmp -s <(redis SUBSTR 3 -10 -1 | head -c 10) <(page 3 | tail -c 10)
same "GETRANGE past the end" "" "$(redis GETRANGE $pages 0 10)"
check "MGET" cmp -s <(redis MGET 5 nothing 6 | head -c 8195) <(page 5; echo; echo; page 6; echo)
same "SELECT 0" OK "$(redis SELECT 0)"
same "SELECT 1" "ERR DB index is out of range" "$(redis SELECT 1)"
same "SET" "READONLY You can't write against a read only replica." "$(redis SET 1 x)"
same "HELLO 3" "NOPROTO unsupported protocol version" "$(redis HELLO 3)"
check "HELLO 2" grep -qx 'proto' <(redis HELLO 2)
same "CONFIG GET maxclients" "maxclients 10000" "$(redis CONFIG GET maxclients | paste -sd' ')"
check "CONFIG GET '*'" grep -qx appendonly <(redis CONFIG GET '*')
check "CLIENT LIST" grep -q '^id=[0-9]* addr=127.0.0.1:' <(redis CLIENT LIST)
same "CLIENT SETNAME and GETNAME" "OK me" "$(printf 'CLIENT SETNAME me\nCLIENT GETNAME\n' | redis | paste -sd' ')"
check "COMMAND COUNT" test "$(redis COMMAND COUNT)" -ge 18
check "COMMAND DOCS" grep -q 'Returns a page' <(redis COMMAND DOCS get)
same "COMMAND INFO" get "$(redis COMMAND INFO get | head -n 1)"
info=$(redis INFO | tr -d '\r')
for field in redis_version connected_clients total_commands_processed pool_hits pool_misses pool_reads \
    pool_memory_limit pool_frames_total db0; do
    check "INFO has $field" grep -q "^$field:" <<<"$info"
done
same "INFO of one section" "# Pool" "$(redis INFO pool | head -n 1 | tr -d '\r')"
check "the pool's counters move: $(grep ^pool_hits <<<"$info") $(grep ^pool_reads: <<<"$info")" \
    test "$(sed -n 's/^pool_reads://p' <<<"$info")" -gt 0

# ---- bytes and order, with misses all the time: the pool holds less than half of the file ----
ask pages "$data"
ask order "$data"
check "redis-benchmark runs" grep -q '"GET"' <(timeout 60 redis-benchmark -p "$port" -t get -n 20000 -P 16 -r 2000 --csv 2>&1)
same "no client was ended" "0 0" "$(redis INFO stats | tr -d '\r' | sed -n 's/^ended_by_.*://p' | paste -sd' ')"
at_rest point-server
stop point-server

# ---- the smallest pool, more asked for at once than it holds ----
start point-server --data "$data" --memory 1M --threads 2
ask depth "$data" 100 16 4
ask pages "$data"
same "nothing stays pinned" 0 "$(redis INFO pool | tr -d '\r' | sed -n 's/^pool_frames_pinned://p')"
stop point-server

# ---- other ways to read, other values ----
start point-server --data "$data" --memory 2M --io psync --direct off --huge off --value-bytes 100 --threads 1
ask pages "$data" 100
same "STRLEN is --value-bytes" 100 "$(redis STRLEN 1)"
at_rest point-server
stop point-server

# ---- a file that changes ----
cp "$data" "$work/changing"
start point-server --data "$work/changing" --memory 2M
same "before it grows" 0 "$(redis EXISTS $pages)"
head -c 10000 /dev/zero | tr '\0' z >>"$work/changing"
same "a page that is new" zzzz "$(redis GETRANGE $pages 0 3)"
same "STRLEN of a page that became whole" 4096 "$(redis STRLEN $((pages - 1)))"
truncate -s 8192 "$work/changing"
same "DBSIZE of a file that became shorter" 2 "$(redis DBSIZE)"
same "GET of a page that is gone" "" "$(redis GET 1000)"
check "GET of a page that stayed" cmp -s <(redis GET 1 | head -c 4096) <(page 1)
stop point-server

# ---- many connections ----
crowd=2000
[ $sanitized = 0 ] || crowd=300
start point-server --data "$data" --memory 16M --threads 2
ask crowd "$data" $crowd $pid
stop point-server
start point-server --data "$data" --memory 16M --threads 2 --max-clients 20
exec 7<>"/dev/tcp/127.0.0.1/$port"
for ((i = 0; i < 40; i++)); do
    exec {fd}<>"/dev/tcp/127.0.0.1/$port" 2>/dev/null && crowd_fd[i]=$fd
done
same "one client too many is told so" "-ERR max number of clients reached" \
    "$(timeout 5 head -n 1 <&"${crowd_fd[39]}" 2>/dev/null | tr -d '\r')"
printf 'PING\r\n' >&7
same "the first is served still" +PONG "$(timeout 5 head -n 1 <&7 | tr -d '\r')"
exec 7>&-
for fd in "${crowd_fd[@]}"; do exec {fd}>&-; done
stop point-server

# ---- SIGTERM under load ----
start point-server --data "$data" --memory 4M --threads 2
(sleep 2 && kill -TERM "$pid") &
ask load "$data" 10
status=0
wait "$pid" || status=$?
pid=
same "SIGTERM under load: status" 0 "$status"
finish
