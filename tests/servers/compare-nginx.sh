#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# scan-server beside nginx, on one file that both have in memory: the pool here, the page cache and sendfile there. One
# curl that takes all of it, and 16 connections of wrk that take ranges of 1 MiB at random. The two take turns, and who
# goes first does too; shown are each round, and the medians. Needs nginx, wrk and curl (Debian: the same names), and for
# 4 GiB some 10 GiB of memory and 4 GiB of disk. Not among the tests: it measures.
#
#   tests/servers/compare-nginx.sh BUILD [--size 4G] [--rounds 5] [--seconds 3]
#
# nginx has as many workers as there are processors, as scan-server has event loops, and Debian's settings that matter
# here: sendfile and tcp_nopush.
set -uo pipefail

bin=$(cd "${1:?usage: $0 BUILD [--size 4G] [--rounds 5] [--seconds 3]}/examples" && pwd) || exit 2
shift
size=4G rounds=5 seconds=3
while [ $# -gt 1 ]; do
    case $1 in
    --size) size=$2 ;;
    --rounds) rounds=$2 ;;
    --seconds) seconds=$2 ;;
    *) echo "unknown option $1" >&2 && exit 2 ;;
    esac
    shift 2
done
for tool in nginx wrk curl; do
    command -v $tool >/dev/null || { echo "$tool is not installed" >&2 && exit 77; }
done
work=$(mktemp -d "${TMPDIR:-/var/tmp}/bufpool-nginx.XXXXXX")
bytes=$(numfmt --from=iec "$size")
server='' nginx=''
clean_up() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
    [ -z "$nginx" ] || { kill "$nginx" && wait "$nginx"; } 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

# What is in it is of no interest here.
head -c "$bytes" /dev/zero | tr '\0' x >"$work/data" || exit 1
chmod 755 "$work"

port() { # one that is free now
    local p
    for p in $(shuf -i 20000-30000 -n 20); do
        (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p" && return; }
    done
}
nginx_port=$(port)
cat >"$work/nginx.conf" <<END
daemon off;
worker_processes auto;
pid $work/nginx.pid;
error_log $work/nginx.log;
events { worker_connections 512; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    client_body_temp_path $work/t1; proxy_temp_path $work/t2; fastcgi_temp_path $work/t3;
    uwsgi_temp_path $work/t4; scgi_temp_path $work/t5;
    server { listen 127.0.0.1:$nginx_port; root $work; }
}
END
nginx -c "$work/nginx.conf" -p "$work" -e "$work/nginx.log" &
nginx=$!
"$bin/scan-server" --data "$work/data" --memory $((bytes + bytes / 8)) --listen 127.0.0.1:0 >"$work/out" 2>"$work/err" &
server=$!
for ((i = 0; i < 200; i++)); do
    grep -q listening "$work/out" && break
    sleep 0.05
done
our_port=$(sed -n 's/^listening on .*://p' "$work/out")
[ -n "$our_port" ] || { cat "$work/err" >&2 && exit 1; }
declare -A url=([scan-server]=http://127.0.0.1:$our_port/data [nginx]=http://127.0.0.1:$nginx_port/data)

cat >"$work/range.lua" <<END
local last = $((bytes >> 20)) - 1
function init() math.randomseed(os.time()) end
function request()
    local from = math.random(0, last) * 1048576
    return wrk.format("GET", nil, {["Range"] = "bytes=" .. from .. "-" .. from + 1048575})
end
END

curl_rate() { curl -sS -f -o /dev/null -w '%{speed_download}' "${url[$1]}" | awk '{ printf "%.0f", $1 / 1048576 }'; }
wrk_rate() {
    wrk -t1 -c16 -d"$seconds" -s "$work/range.lua" "${url[$1]}" |
        awk '/Non-2xx/ { bad = 1 } /requests in/ { n = $1; t = $4 } END { sub(/s,/, "", t); printf "%.0f", bad ? 0 : n / t }'
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for name in scan-server nginx; do # everything into memory
    curl -sS -f -o /dev/null "${url[$name]}" && curl -sS -f -o /dev/null "${url[$name]}" || exit 1
done
echo "$size in memory, MiB/s   $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
for what in curl wrk; do
    for ((round = 0; round < rounds; round++)); do
        order=(scan-server nginx)
        [ $((round % 2)) = 0 ] || order=(nginx scan-server)
        for name in "${order[@]}"; do ${what}_rate "$name" >>"$work/$what.$name" && echo >>"$work/$what.$name"; done
    done
    for name in scan-server nginx; do
        echo "$what $name: $(paste -sd' ' "$work/$what.$name"), median $(median <"$work/$what.$name")"
    done
    awk -v a="$(median <"$work/$what.scan-server")" -v b="$(median <"$work/$what.nginx")" -v w=$what \
        'BEGIN { printf "%s: scan-server has %.2f times the rate of nginx\n", w, a / b }'
done
curl -sS "${url[scan-server]%data}stats" | grep -E '"(misses|hits)":' # the file was resident: no more misses than the first pass
