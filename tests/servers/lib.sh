# SPDX-License-Identifier: MIT
#
# What the scripts run-*.sh share. Each tests the servers of a build folder, $BP_BUILD or its first argument, prints a
# line per thing checked and ends with `N passed, N failed`. Exit status 1 if one failed, 77 if none could be run.
#
# shellcheck shell=bash disable=SC2034
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "${BP_BUILD:-${1:?usage: $0 BUILD}}" && pwd) || exit 2
bin=$build/examples
clients=$build/tests/server-clients
work=$(mktemp -d "${TMPDIR:-/var/tmp}/bufpool-servers.XXXXXX")
passed=0 failed=0 skipped=0
pid='' port=''

# Under a sanitizer everything is slower, and a process is as large as it likes.
sanitized=0
if grep -q -a -E '__(asan|tsan)_init' "$bin/point-server" 2>/dev/null; then
    sanitized=1
fi

clean_up() {
    [ -z "$pid" ] || { kill -9 "$pid" && wait "$pid"; } 2>/dev/null
    # only what this script started itself
    [ -z "${redis_pid:-}" ] || { kill -9 "$redis_pid" && wait "$redis_pid"; } 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

pass() {
    passed=$((passed + 1))
    echo "pass: $*"
}

fail() {
    failed=$((failed + 1))
    echo "fail: $*"
}

skip() {
    skipped=$((skipped + 1))
    echo "skip: $*"
}

# check TEXT COMMAND...: the command succeeds
check() {
    local text=$1
    shift
    if "$@"; then pass "$text"; else fail "$text"; fi
}

# same TEXT WANTED GOT
same() {
    if [ "$2" = "$3" ]; then
        pass "$1"
    else
        fail "$1: expected '${2:0:200}', got '${3:0:200}'"
    fi
}

finish() {
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] || line+=", $skipped skipped"
    echo "$line"
    [ "$failed" = 0 ] || exit 1
    [ "$passed" != 0 ] || exit 77
    exit 0
}

# make_data FILE BYTES: a file without two pages alike
make_data() {
    head -c "$2" /dev/urandom >"$1" && [ "$(stat -c %s "$1")" = "$2" ] || {
        fail "cannot make $1"
        finish
    }
}

# start NAME ARGUMENTS...: returns when it listens; sets pid and port
start() {
    local name=$1 address='' i
    shift
    : >"$work/$name.out" # that of the one before must not be read
    "$bin/$name" --listen 127.0.0.1:0 "$@" >>"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        address=$(sed -n 's/^listening on //p' "$work/$name.out")
        [ -z "$address" ] || break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    port=${address##*:}
    if [ -z "$port" ]; then
        fail "$name does not start: $(cat "$work/$name.err")"
        finish
    fi
}

# stop NAME: SIGTERM; it must leave with status 0, in good time, and without a word about anything wrong
stop() {
    local name=$1 status=0 i complaints
    kill -TERM "$pid"
    for ((i = 0; i < 300; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    if kill -0 "$pid" 2>/dev/null; then
        fail "$name does not leave 15 seconds after SIGTERM"
        kill -9 "$pid"
    fi
    wait "$pid" || status=$?
    pid=
    same "$name leaves with status 0 after SIGTERM" 0 "$status"
    complaints=$(grep -E 'Sanitizer|runtime error|closing|failed' "$work/$name.err")
    same "$name has nothing to complain about" "" "$complaints"
}

# ask CASE ARGUMENTS...: a case of server-clients against $port; its checks are added to ours
ask() {
    local case=$1 out=$work/case.out
    shift
    if ! kill -0 "$pid" 2>/dev/null; then
        fail "the server is gone: $(cat "$work"/*-server.err)"
        pid=
        finish
    fi
    timeout 120 "$clients" "$case" "$port" "$@" >"$out"
    local status=$?
    cat "$out" | grep -v -E '^[0-9]+ passed'
    passed=$((passed + $(grep -c '^pass: ' "$out")))
    failed=$((failed + $(grep -c '^fail: ' "$out")))
    if ! grep -q -E '^[0-9]+ passed' "$out"; then
        fail "case $case did not come to its end (status $status)"
    fi
}

redis() { timeout 20 redis-cli -p "$port" "$@"; }

# at_rest NAME: a server that nobody asks for anything uses no CPU
at_rest() {
    local before after
    sleep 0.3
    before=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
    sleep 1.5
    after=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
    check "$1 at rest: $((after - before)) of 150 ticks of CPU time" test $((after - before)) -lt 40
}
