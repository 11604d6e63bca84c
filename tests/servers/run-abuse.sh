#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# point-server with clients that do not behave: broken protocol, floods, clients that never read, half-open connections.
# Whatever they do, they get a clear error, memory stays bounded, and others are served.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
make_data "$data" $((3 * 1024 * 1024 + 5))
limit_kib=$((64 * 1024)) # the pool has 4 MiB
deaf=100
[ $sanitized = 0 ] || limit_kib=0 deaf=20

start point-server --data "$data" --memory 4M --threads 2
ask protocol
ask flood $pid $limit_kib
ask half-open "$data"
ask fuzz 3000
ask deaf "$data" $deaf $pid $limit_kib
ask pages "$data"
same "nothing stays pinned" 0 "$(redis INFO pool | tr -d '\r' | sed -n 's/^pool_frames_pinned://p')"
stop point-server

# Clients' memory has a limit of its own: 40 clients with a megabyte each, where 8 are allowed.
start point-server --data "$data" --memory 4M --threads 1 --client-memory 8M
printf '*2\r\n$4\r\nECHO\r\n$1000000\r\n' >"$work/megabyte"
head -c 999000 /dev/zero | tr '\0' x >>"$work/megabyte"
for ((i = 0; i < 40; i++)); do
    timeout 60 "$clients" raw "$port" 10000 <"$work/megabyte" >/dev/null &
    raw[i]=$!
done
ended=0
for ((i = 0; i < 80 && ended == 0; i++)); do
    sleep 0.1
    ended=$(redis INFO stats | tr -d '\r' | sed -n 's/^ended_by_client_memory://p')
done
memory=$(redis INFO clients | tr -d '\r' | sed -n 's/^client_memory://p')
check "40 unfinished megabytes: $memory bytes of 8388608 are taken" test "$memory" -le 8388608 -a "$memory" -gt 1000000
check "clients were ended for it: $ended" test "$ended" -gt 0
same "others are served" 4096 "$(redis STRLEN 3)"
kill "${raw[@]}" 2>/dev/null
wait "${raw[@]}" 2>/dev/null
sleep 0.5
memory=$(redis INFO clients | tr -d '\r' | sed -n 's/^client_memory://p')
check "all of it is given back: $memory bytes" test "$memory" -lt 100000
stop point-server

# Who does not go on is ended, who is idle is not. A SIGTERM does not wait long for who does not read.
start point-server --data "$data" --memory 4M --threads 1 --client-timeout 2
ask timeout 2
stop point-server
start point-server --data "$data" --memory 4M --threads 1
yes 'GET 1' | head -n 100000 | timeout 60 "$clients" raw "$port" 1 >/dev/null &
exec 7<>"/dev/tcp/127.0.0.1/$port"
yes 'GET 1' | head -n 20000 >&7 2>/dev/null &
writer=$!
sleep 1
stop point-server
kill $writer 2>/dev/null
exec 7>&-
finish
