#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The store of examples/kv under kill -9: crash_kv, as often as asked for. ctest runs ten kills; this is for more.
#
#   tests/fault/run.sh [--kills N (200)] [--seed N]
#
# The programs are those of the build folder, $BP_BUILD or build/; the store is made there, on a disk.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kills=200 seed=$(date +%s)
while [ $# -gt 0 ]; do
    case $1 in
    --kills | --seed)
        declare "${1#--}=${2:?$1 needs a number}"
        shift
        ;;
    *)
        sed -n '4,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        [ "$1" = --help ] && exit 0
        exit 2
        ;;
    esac
    shift
done
cd "${BP_BUILD:-$root/build}/tests"
exec ./crash_kv "$kills" "$seed"
