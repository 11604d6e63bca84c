#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The same requests to point-server and to redis-server; the replies must be the same bytes. What is served are the
# same four pages; what differs for a reason (COMMAND, INFO, writes) is not asked.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if ! command -v redis-server >/dev/null; then
    skip "redis-server is not installed (Debian: redis-server)"
    finish
fi

data=$work/data
make_data "$data" $((3 * 4096 + 100))
redis_port=$((20000 + $$ % 10000))
redis-server --port $redis_port --bind 127.0.0.1 --save '' --databases 1 --dir "$work" >"$work/redis.log" 2>&1 &
redis_pid=$!
for ((i = 0; i < 100; i++)); do
    [ "$(timeout 20 redis-cli -p $redis_port PING 2>/dev/null)" = PONG ] && break
    sleep 0.05
done
for key in 0 1 2 3; do
    dd if="$data" bs=4096 skip=$key count=1 status=none | redis-cli -p $redis_port -x SET $key >/dev/null
done
same "redis-server holds four pages" 4 "$(timeout 20 redis-cli -p $redis_port DBSIZE)"
start point-server --data "$data" --memory 1M --threads 1

# One request per line, as printf takes it. All are under way at once, each to both servers: connections that stay open are
# listened to until the time is over.
count=0
while IFS= read -r request; do
    [ -n "$request" ] || continue
    requests[count]=$request
    # shellcheck disable=SC2059
    printf "$request" >"$work/request$count"
    "$clients" raw $redis_port 2000 <"$work/request$count" >"$work/redis$count" &
    raw[2 * count]=$!
    "$clients" raw "$port" 2000 <"$work/request$count" >"$work/ours$count" &
    raw[2 * count + 1]=$!
    count=$((count + 1))
done <<'REQUESTS'
PING\r\n
ping a\r\n
PING a b\r\n
ECHO\r\n
ECHO a b\r\n
*2\r\n$4\r\neChO\r\n$3\r\n\001\002\003\r\n
GET 0\r\nGET 1\r\nGET 2\r\nGET 3\r\nGET 4\r\n
GET\r\n
GET 1 2\r\n
MGET\r\n
MGET 0 9 3 x 1\r\n
EXISTS\r\n
EXISTS 0 0 1 9 x\r\n
STRLEN 0\r\nSTRLEN 3\r\nSTRLEN 9\r\n
STRLEN\r\n
GETRANGE 0 0 10\r\nGETRANGE 0 -10 -1\r\nGETRANGE 3 90 5000\r\nGETRANGE 3 100 101\r\n
GETRANGE 0 -10 -20\r\nGETRANGE 0 -9999 -9998\r\nGETRANGE 0 5 -9999\r\nGETRANGE 0 0 -9999\r\nGETRANGE 0 3 2\r\n
GETRANGE 0 -9998 -9999\r\nGETRANGE 9 0 1\r\nGETRANGE 9 -5 -1\r\nSUBSTR 1 1 1\r\n
GETRANGE 0 a 1\r\n
GETRANGE 0 1 1.5\r\n
GETRANGE 0 01 1\r\n
GETRANGE 0 -0 1\r\n
GETRANGE 0 9223372036854775807 -9223372036854775808\r\n
GETRANGE 0 9223372036854775808 1\r\n
GETRANGE 9 x 1\r\n
GETRANGE 0 1\r\n
DBSIZE\r\n
DBSIZE 1\r\n
SELECT 0\r\n
SELECT 1\r\n
SELECT -1\r\n
SELECT abc\r\n
SELECT 99999999999\r\n
SELECT\r\n
SET\r\n
DEL\r\n
foo\r\n
foo a b\r\n
foo "a\\r\\nb" \\x01 'x y' "\\"q"\r\n
foo aaaaaaaaaabbbbbbbbbbccccccccccddddddddddaaaaaaaaaabbbbbbbbbbccccccccccddddddddddaaaaaaaaaabbbbbbbbbbccccccccccdddddddddd b c d e f g h\r\n
aaaaaaaaaabbbbbbbbbbccccccccccddddddddddaaaaaaaaaabbbbbbbbbbccccccccccddddddddddaaaaaaaaaabbbbbbbbbbccccccccccddddddddddaaaaaaaaaaaaaaaaa x\r\n
getx 1\r\nge 1\r\ngetrang 1 2 3\r\n
CLIENT\r\n
CLIENT foo\r\n
CLIENT GETNAME\r\nCLIENT SETNAME me\r\nclient getname\r\nCLIENT SETNAME ""\r\nCLIENT GETNAME\r\n
CLIENT SETNAME\r\n
CLIENT GETNAME x\r\n
CLIENT SETNAME "a b"\r\n
CONFIG\r\n
CONFIG GET\r\n
CONFIG GET save\r\n
CONFIG GET appendonly\r\n
CONFIG GET nothing-like-this\r\n
CONFIG foo\r\n
COMMAND foo\r\n
HELLO abc\r\n
HELLO 4\r\n
HELLO 1\r\n
HELLO 2 foo\r\n
HELLO 2 SETNAME\r\n
HELLO 2 SETNAME "a b"\r\n
HELLO 2 AUTH someone x\r\n
AUTH\r\n
AUTH x\r\n
AUTH default x\r\n
AUTH someone x\r\n
AUTH a b c\r\n
RESET\r\n
CLIENT SETNAME me\r\nRESET\r\nCLIENT GETNAME\r\n
QUIT\r\nPING\r\n
INFO nothing-like-this\r\n
\r\n\r\nPING\r\n
PING\nPING\n
*0\r\n*-1\r\nPING\r\n
GET "1\r\n
GET 'a'b\r\n
*99999999999\r\n
*abc\r\n
*1\r\n$1073741824\r\n
*1\r\n$abc\r\n
*1\r\n$-1\r\n
*1\r\n:5\r\n
*1\r\nGET\r\n
*1\r\n+OK\r\n
PING\r\n*1\r\n$-7\r\nPING\r\n
REQUESTS
wait "${raw[@]}"
for ((i = 0; i < count; i++)); do
    if [ -s "$work/ours$i" ] && cmp -s "$work/redis$i" "$work/ours$i"; then
        pass "${requests[i]}"
    else
        fail "${requests[i]}: $(head -c 200 "$work/redis$i" | cat -v) / $(head -c 200 "$work/ours$i" | cat -v)"
    fi
done

# What would write is refused like a read-only replica of Redis does it.
redis-cli -p $redis_port REPLICAOF 127.0.0.1 1 >/dev/null
for command in 'SET 1 x' 'DEL 1' 'APPEND 1 x' 'INCR 1' 'EXPIRE 1 10' 'FLUSHALL' 'MSET 1 x' 'LPUSH l x' 'HSET h a b' \
    'SETRANGE 1 0 x' 'UNLINK 1' 'RENAME 1 2' 'SORT 1' 'XADD s * a b' 'ZADD z 1 a' 'set 1' 'incr 1 2'; do
    # shellcheck disable=SC2086
    same "$command" "$(timeout 20 redis-cli -p $redis_port $command 2>&1)" "$(timeout 20 redis-cli -p "$port" $command 2>&1)"
done
stop point-server
kill "$redis_pid"
wait "$redis_pid"
redis_pid=
finish
