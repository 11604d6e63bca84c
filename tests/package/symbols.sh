#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# symbols.sh BUILD HEADER...: the shared library exports exactly the functions that the headers declare, and the static
# library's global symbols all begin with bp_ or bpi_, so that neither can meet a symbol of the program it is linked into.
set -euo pipefail

build=${1:?usage: symbols.sh BUILD HEADER...}
: "${2:?usage: symbols.sh BUILD HEADER...}"
shift
header=$*
failed=0

fail() {
    echo "$1"
    failed=1
}

# the version's own name is an absolute symbol (A)
exported=$(nm -D --defined-only "$build/libbufpool.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
declared=$(cat "$@" | tr '\n' ' ' | sed 's@/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/@@g' | grep -oE 'BP_API [^(;]*\(' | grep -oE 'bp_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
[ "$(wc -w <<<"$declared")" -ge 10 ] || fail "only these functions were found in $header: $declared"

extra=$(comm -23 <(echo "$exported") <(echo "$declared"))
missing=$(comm -13 <(echo "$exported") <(echo "$declared"))
[ -z "$extra" ] || fail "exported, but not in the headers: $extra"
[ -z "$missing" ] || fail "in the headers, but not exported: $missing"

foreign=$(nm -g --defined-only "$build/libbufpool.a" | awk 'NF == 3 { print $3 }' | grep -vE '^bpi?_' | sort -u || true)
[ -z "$foreign" ] || fail "global in libbufpool.a, but not bp_ or bpi_: $foreign"

soname=$(readelf -d "$build/libbufpool.so" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p')
[ "$soname" = libbufpool.so.0 ] || fail "the soname is $soname"
echo "$(wc -w <<<"$exported") functions exported, $(wc -w <<<"$declared") declared"
exit $failed
