#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Servers that cannot start say what is wrong, in one line that names it, and leave with the right status: 2 if the
# command line is wrong, 1 if something else is.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
make_data "$data" 50000
: >"$work/empty"
mkdir "$work/directory"

# refused STATUS WORD SERVER ARGUMENTS...
refused() {
    local wanted=$1 word=$2 server=$3 status=0 said
    shift 3
    timeout 20 "$bin/$server" "$@" >"$work/out" 2>"$work/err" || status=$?
    said=$(grep -v '; remedy\|^$' "$work/err" | tail -n 1)
    same "$server ${*##*/}: status" "$wanted" "$status"
    check "$server says: $said" grep -q -F -- "$word" <<<"$said"
    check "$server says it in one line that begins with its name" test "$(grep -c "^$server: " "$work/err")" = 1
}

for server in point-server scan-server; do
    refused 1 "$work/absent" $server --data "$work/absent" --memory 4M
    refused 1 "$work/empty" $server --data "$work/empty" --memory 4M
    refused 1 "$work/directory" $server --data "$work/directory" --memory 4M
    refused 1 /dev/null $server --data /dev/null --memory 4M
    refused 1 "memory" $server --data "$data" --memory 4096G
    refused 2 "--memory" $server --data "$data"
    refused 2 "--data" $server --memory 4M
    refused 2 "--memory" $server --data "$data" --memory 0
    refused 2 "--memory" $server --data "$data" --memory 1000K
    refused 2 "--memory" $server --data "$data" --memory 99999999999999999999
    refused 2 "--memory" $server --data "$data" --memory 16777216T
    refused 2 "--memory" $server --data "$data" --memory 4X
    refused 2 "--memory" $server --data "$data" --memory -4M
    refused 2 "--threads" $server --data "$data" --memory 4M --threads 0
    refused 2 "--huge" $server --data "$data" --memory 4M --huge maybe
    refused 2 "--io" $server --data "$data" --memory 4M --io epoll
    refused 2 "--listen" $server --data "$data" --memory 4M --listen 127.0.0.1:99999
    refused 2 "--listen" $server --data "$data" --memory 4M --listen 127.0.0.1:x
    refused 2 "--nosuch" $server --data "$data" --memory 4M --nosuch
    refused 2 "--memory" $server --data "$data" --memory
    refused 2 "stray" $server --data "$data" --memory 4M stray
    refused 1 "no.such.host.invalid" $server --data "$data" --memory 4M --listen no.such.host.invalid:80
    check "$server --help" grep -q -- '--memory SIZE' <("$bin/$server" --help)
done
refused 2 "--value-bytes" point-server --data "$data" --memory 4M --value-bytes 5000
refused 2 "--window" scan-server --data "$data" --memory 4M --window 0

# a port that is taken, and every spelling of an address
start point-server --data "$data" --memory 1M
refused 1 "127.0.0.1:$port" scan-server --data "$data" --memory 1M --listen 127.0.0.1:"$port"
stop point-server
for listen in 0 :0 localhost:0 127.0.0.1:0; do
    start point-server --data "$data" --memory 1M --listen $listen
    # localhost may be ::1 and nothing else, so the host is asked where the server says that it listens
    host=$(sed -n 's/^listening on \[\{0,1\}\(.*[^]]\)\]\{0,1\}:[0-9]*$/\1/p' "$work/point-server.out")
    same "--listen $listen" PONG "$(redis -h "$host" PING)"
    stop point-server
done

# sizes, and SIGINT
for memory in 1048576 1024K 1024k 1MiB 2mb; do
    start point-server --data "$data" --memory $memory
    check "--memory $memory" grep -q 'pool_memory_limit:[12]0*[49]' <(redis INFO pool)
    stop point-server
done
start scan-server --data "$data" --memory 1M
kill -INT "$pid"
status=0
wait "$pid" || status=$?
pid=
same "SIGINT: status" 0 $status
finish
