#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything that must hold, on a fresh Debian 12 machine, as root or with sudo: installs what is missing, then builds and tests
#
#   build/        gcc, optimized          all tests, the package test and the servers included
#   build/asan    clang, ASan + UBSan     all but the package test
#   build/tsan    clang, TSan             the stress programs, and servers under load
#
#   --quick         the first of these only
#   --all           also the tests that need several NUMA nodes, in emulated guests (tests/numa-vm; some minutes)
#   --long          60 seconds for each stress program
#   --filter REGEX  only tests whose names match
#
# Needs no terminal and may be called from anywhere. Ends with one line, `N passed, N failed`; exit status 1 if any failed.
set -uo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
quick=0
all=0
filter=

usage() { sed -n '4,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --all) all=1 ;;
    --long) BP_STRESS_SECONDS=60 ;;
    --filter)
        filter=${2:?--filter needs a regular expression}
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done
export BP_STRESS_SECONDS=${BP_STRESS_SECONDS:-3}

packages=(gcc g++ clang llvm libclang-rt-14-dev cmake ninja-build pkgconf liburing-dev liburcu-dev libhwloc-dev libcriterion-dev
    libhiredis-dev libhttp-parser-dev libisal-dev libseccomp-dev zlib1g-dev libjansson-dev liblmdb-dev nutcracker redis-tools curl)

passed=0 failed=0 skipped=0

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

finish() {
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] || line+=", $skipped skipped"
    if [ "$passed" = 0 ] && [ "$failed" = 0 ]; then
        say "no test was run" >&2
        failed=-1
    fi
    echo "$line"
    [ "$failed" = 0 ]
    exit
}

# quietly LOG COMMAND...: output goes to the log, and is shown only if the command fails
quietly() {
    local log=$1
    shift
    mkdir -p "${log%/*}"
    "$@" >>"$log" 2>&1 && return
    tail -n 40 "$log"
    say "failed: $* (all of it: $log)"
    failed=$((failed + 1))
    return 1
}

# build PRESET DIRECTORY
build() {
    local log=$2/run-build.log
    rm -f "$log"
    # a folder that was configured elsewhere (a copied clone) cannot be used any more
    if [ -f "$2/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$2/CMakeCache.txt"; then
        rm -rf "$2/CMakeCache.txt" "$2/CMakeFiles"
    fi
    say "building $1"
    quietly "$log" cmake -S "$root" --preset "$1" && quietly "$log" cmake --build "$2" -j "$jobs"
}

# the sum of an attribute over the test suites of a JUnit file
count() { grep -oE "\b$2=\"[0-9]+\"" "$1" | head -n 1 | tr -dc 0-9; }

# run PRESET DIRECTORY: ctest there, and add to the sums. One test more than there are CPUs, since many wait most of the time.
run() {
    local junit=$2/run-junit.xml log=$2/run-ctest.log all bad left
    local ctest=(ctest --test-dir "$2" -j "$((jobs + 1))" --progress --output-on-failure --output-junit "$junit")
    if [ -n "$filter" ]; then
        ctest+=(--no-tests=ignore -R "$filter")
    else
        ctest+=(--no-tests=error)
    fi
    # The sanitizers of clang 14 need their place in the address space, which much randomness can take from them.
    [ "$1" = release ] || ! setarch "$(uname -m)" -R true 2>/dev/null || ctest=(setarch "$(uname -m)" -R "${ctest[@]}")
    say "testing $1"
    rm -f "$junit"
    local status=0
    "${ctest[@]}" 2>&1 | tee "$log" || status=1
    all=$(count "$junit" tests 2>/dev/null)
    if [ -z "$all" ]; then
        [ -n "$filter" ] && [ "$status" = 0 ] && return
        say "ctest ended without a report (log: $log)"
        failed=$((failed + 1))
        return
    fi
    bad=$(count "$junit" failures)
    left=$(($(count "$junit" skipped) + $(count "$junit" disabled)))
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then
        bad=1 all=$((all + 1))
    fi
    passed=$((passed + all - bad - left)) failed=$((failed + bad)) skipped=$((skipped + left))
}

cd "$root" || exit 1
"$root/.ci/install" "${packages[@]}" || {
    failed=1
    finish
}
# Only one test needs it, and skips without; it is large, and not everywhere to be had.
"$root/.ci/install" chromium || say "without chromium: scan-server's page is not looked at in a browser"

# redis-server, to compare with, is the same program as redis-check-rdb, which comes with redis-tools. The package
# redis-server would start a service, which is not for a test to do.
if ! command -v redis-server >/dev/null && command -v redis-check-rdb >/dev/null; then
    mkdir -p "$root/build/redis"
    ln -sf "$(command -v redis-check-rdb)" "$root/build/redis/redis-server"
    PATH=$PATH:$root/build/redis
fi

build release "$root/build" && run release "$root/build"
if [ "$quick" = 0 ]; then
    build asan "$root/build/asan" && run asan "$root/build/asan"
    build tsan "$root/build/tsan" && run tsan "$root/build/tsan"
fi
if [ "$all" = 1 ]; then
    say "testing guests with several NUMA nodes"
    if "$root/tests/numa-vm/run.sh"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
fi
say "done"
finish
