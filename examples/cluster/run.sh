#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Several point-servers with stores of their own behind one proxy, twemproxy (Debian: nutcracker), which spreads keys over
# them by consistent hashing: on this machine's loopback, with one server's loss (kill -9) and return. Exit status 0 only if
# every key was where it belongs before and after, and while the server was away exactly its keys were missing.
#
#   --servers N     3 by default
#   --keys N        2000 by default
#   --keep          keep the work folder: the stores, the proxy's configuration and log
#
# The programs are those of the build folder, $BP_BUILD or build/. Needs nutcracker and redis-tools.
#
# The proxy is told not to eject a server that does not answer (auto_eject_hosts: false): that suits caches. Here its keys
# would be written to its neighbours meanwhile, and be hidden again when it returns. So they fail until it is back, and
# clients retry.
set -euo pipefail
export LC_ALL=C
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${BP_BUILD:-$root/build}/examples
servers=3 keys=2000 keep=0
while [ $# -gt 0 ]; do
    case $1 in
    --servers | --keys)
        declare "${1#--}=${2:?$1 needs a number}"
        shift
        ;;
    --keep) keep=1 ;;
    *)
        sed -n '4,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        [ "$1" = --help ] && exit 0
        exit 2
        ;;
    esac
    shift
done
for program in "$bin/point-server" nutcracker redis-cli; do
    command -v "$program" >/dev/null || {
        echo "$program is missing (apt-get install nutcracker redis-tools; point-server is built)" >&2
        exit 77
    }
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/bufpool-cluster.XXXXXX")
pid=() port=() proxy=
clean_up() {
    [ -z "$proxy" ] || kill "$proxy" 2>/dev/null || true
    for p in "${pid[@]}"; do
        kill "$p" 2>/dev/null || true
    done
    wait
    [ $keep = 1 ] && echo "kept: $work" || rm -rf "$work"
}
trap clean_up EXIT

# start_server NUMBER PORT: its store is where it was
start_server() {
    local i
    : >"$work/server-$1.out"
    "$bin/point-server" --kv "$work/store-$1" --memory 16M --threads 1 --sync group --listen "127.0.0.1:$2" \
        >"$work/server-$1.out" 2>>"$work/server-$1.err" &
    pid[$1]=$!
    for ((i = 0; i < 200; i++)); do
        port[$1]=$(sed -n 's/^listening on .*://p' "$work/server-$1.out")
        [ -z "${port[$1]}" ] || return 0
        sleep 0.05
    done
    echo "server $1 does not start: $(cat "$work/server-$1.err")" >&2
    exit 1
}

# The proxy, on a port that is free.
start_proxy() {
    local try i
    for ((try = 0; try < 20; try++)); do
        proxy_port=$((20000 + RANDOM % 10000))
        {
            printf 'store:\n  listen: 127.0.0.1:%s\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n' $proxy_port
            printf '  timeout: 2000\n  auto_eject_hosts: false\n  server_retry_timeout: 500\n  server_connections: 1\n  servers:\n'
            for ((i = 0; i < servers; i++)); do
                # the name, and not the port, is what is hashed: a server may move
                printf '    - 127.0.0.1:%s:1 store-%s\n' "${port[i]}" $i
            done
        } >"$work/nutcracker.yml"
        nutcracker -c "$work/nutcracker.yml" -o "$work/nutcracker.log" -s $((proxy_port + 10000)) -a 127.0.0.1 &
        proxy=$!
        for ((i = 0; i < 40; i++)); do
            kill -0 $proxy 2>/dev/null || break
            ! redis-cli -p $proxy_port GET probe >/dev/null 2>&1 || return 0
            sleep 0.05
        done
        kill $proxy 2>/dev/null || true
        proxy=
    done
    echo "nutcracker does not start: $(tail -n 3 "$work/nutcracker.log")" >&2
    exit 1
}

# How many keys have their value, asked through the proxy. Failures are lines of other kinds; values come in the order of
# their keys, each once.
count_right() {
    local i
    for ((i = 0; i < keys; i++)); do echo "GET key:$i"; done | redis-cli -p $proxy_port >"$work/answers" 2>&1 || true
    awk '/^value-[0-9]+$/ { i = substr($0, 7) + 0; if (n++ && i <= last) wrong = 1; last = i } END { print wrong ? -1 : n + 0 }' \
        "$work/answers"
}

for ((i = 0; i < servers; i++)); do start_server $i 0; done
start_proxy
echo "$servers point-servers on ports ${port[*]}, nutcracker on $proxy_port"

for ((i = 0; i < keys; i++)); do echo "SET key:$i value-$i"; done | redis-cli -p $proxy_port >"$work/replies"
echo "$keys keys set through the proxy, $(grep -c '^OK' "$work/replies") acknowledged"
held=() sum=0
for ((i = 0; i < servers; i++)); do
    held[i]=$(redis-cli -p "${port[i]}" DBSIZE)
    sum=$((sum + held[i]))
    echo "  store-$i has ${held[i]}"
done
before=$(count_right)
lost=$((servers - 1))
kill -9 "${pid[lost]}"
wait "${pid[lost]}" 2>/dev/null || true
away=$(count_right)
echo "store-$lost is killed: $away of $keys keys are answered, the ${held[lost]} of store-$lost fail"
start_server $lost "${port[lost]}"
sleep 1 # server_retry_timeout
after=$(count_right)
echo "store-$lost is back: $after of $keys keys are answered"

[ "$before" = "$keys" ] && [ "$sum" = "$keys" ] && [ "$away" = $((keys - held[lost])) ] && [ "$after" = "$keys" ] || {
    echo "that is not as it should be: $before before, $sum in all stores, $away without store-$lost, $after after" >&2
    exit 1
}
for i in "${held[@]}"; do
    [ "$i" -gt 0 ] || {
        echo "a server has no keys at all" >&2
        exit 1
    }
done
