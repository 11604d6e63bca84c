#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh BUILD: install the library from a build folder to a temporary prefix, move that prefix elsewhere, and use it
# from outside the project: through find_package (shared, static, C++), through pkg-config (shared, static), and the
# program in README.md. Each step prints a line; exit status 1 if one failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "${1:?usage: run.sh BUILD}" && pwd)
cc=${CC:-cc}
cxx=${CXX:-c++}
warnings="-Wall -Wextra -pedantic -Werror"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/bufpool-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# step WORDS... -- COMMAND...: run it, show its output only if it fails
step() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok     $name"
    else
        failed=$((failed + 1))
        echo "FAILED $name: $*"
        sed 's/^/       /' "$work/log"
    fi
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}

# 64 pages of bytes that differ from page to page
for ((i = 0; i < 64; i++)); do printf 'page %-4090d\n' "$i"; done >"$work/data"

step "install" cmake --install "$build" --prefix "$work/first"
[ "$failed" = 0 ] || finish
prefix=$work/moved
mv "$work/first" "$prefix"
pc=$(find "$prefix" -name bufpool.pc)
library_dir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=${pc%/*}
export LD_LIBRARY_PATH=$library_dir

two_headers() { [ "$(cd "$prefix/include" && find . -type f | sort | xargs)" = "./bufpool/bufpool.h ./bufpool/inline.h" ]; }
step "two headers are installed" two_headers
echo '#include <bufpool/bufpool.h>' >"$work/alone.h"
step "header alone, C11" $cc -std=c11 $warnings -fsyntax-only -I "$prefix/include" -x c -include "$work/alone.h" /dev/null
step "header alone, C++11" $cxx -std=c++11 $warnings -fsyntax-only -I "$prefix/include" -x c++ -include "$work/alone.h" \
    /dev/null
# users who ask their compiler for more than we do must not hear of our inlined functions
picky="-Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align -Wundef"
step "inlined hits, C11, picky" $cc -std=c11 -O2 $warnings $picky -I "$prefix/include" -c "$here/consumer.c" -o "$work/picky.o"
step "inlined hits, C++11, picky" $cxx -std=c++11 -O2 $warnings $picky -Wold-style-cast -I "$prefix/include" -c \
    "$here/consumer.cc" -o "$work/picky.o"
nothing_names_the_old_prefix() { ! grep -rF "$work/first" "$library_dir/cmake" "$library_dir/pkgconfig"; }
step "the package can be moved" nothing_names_the_old_prefix

# ---- find_package ----
version=$(pkg-config --modversion bufpool)
configure() {
    cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
        -DCMAKE_PREFIX_PATH="$prefix" -DBUFPOOL_WANTED="$version" -DCMAKE_BUILD_TYPE=Debug
}
refuses() { ! cmake -S "$here" -B "$work/refused" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DBUFPOOL_WANTED=99.0; }
step "find_package" configure
step "find_package refuses another version" refuses
step "build with find_package" cmake --build "$work/cmake"
for kind in shared static cxx; do
    step "run, find_package, $kind" "$work/cmake/consumer_$kind" "$work/data"
done

# ---- pkg-config ----
needs_shared() { readelf -d "$1" | grep -qF 'libbufpool.so.0'; }
needs_no_shared() { ! needs_shared "$1"; }
static_flags=$(pkg-config --static --cflags --libs bufpool)
static_flags=${static_flags//-lbufpool/-l:libbufpool.a}

step "build with pkg-config" $cc -std=c11 $warnings "$here/consumer.c" -o "$work/shared" $(pkg-config --cflags --libs bufpool)
step "it uses the shared library" needs_shared "$work/shared"
step "run, pkg-config, shared" "$work/shared" "$work/data"
calls() { nm -u "$1" | grep -qw "$2"; }
inlined_pair() { calls "$1" bp_session_open_layout && ! calls "$1" bp_session_open; }
called_pair() { calls "$1" bp_session_open && ! calls "$1" bp_session_open_layout; }
for how in inlined called; do
    flags=-O2
    [ $how = inlined ] || flags="-O2 -DBP_NO_INLINE"
    step "build with hits $how" $cc -std=c11 $warnings $flags "$here/consumer.c" -o "$work/$how" $(pkg-config --cflags --libs bufpool)
    step "hits are $how" ${how}_pair "$work/$how"
    step "run, hits $how" "$work/$how" "$work/data"
done
step "build with pkg-config --static" $cc -std=c11 $warnings "$here/consumer.c" -o "$work/static" $static_flags
step "it does not use the shared library" needs_no_shared "$work/static"
step "run, pkg-config, static" env -u LD_LIBRARY_PATH "$work/static" "$work/data"

# ---- the program in the README ----
awk '/^```c$/ && !done { on = done = 1; next } /^```$/ { on = 0 } on' "$here/../../README.md" >"$work/readme.c" # the first one: others are pieces
readme_answers() { [ "$("$work/readme" "$work/data")" = "page 42" ]; }
step "build README.md's program" $cc -std=c11 $warnings "$work/readme.c" -o "$work/readme" $(pkg-config --cflags --libs bufpool)
step "run README.md's program" readme_answers
finish
