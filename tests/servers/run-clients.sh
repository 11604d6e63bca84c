#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# point-server with the npm client ioredis, as it is installed from the registry. Skipped where there is no node, or no
# registry to be reached. (redis-cli, redis-benchmark and hiredis: run-point.sh.)
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

data=$work/data
make_data "$data" $((1024 * 1024 + 333))
modules=$build/tests/node

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    skip "ioredis: node and npm are not installed"
    finish
fi
mkdir -p "$modules"
if [ ! -d "$modules/node_modules/ioredis" ]; then
    [ -f "$modules/package.json" ] || echo '{"private": true}' >"$modules/package.json"
    if ! (cd "$modules" && timeout 90 npm install --no-audit --no-fund --loglevel=error ioredis@5) >"$work/npm" 2>&1; then
        skip "ioredis: npm cannot install it: $(tail -n 1 "$work/npm")"
        finish
    fi
fi
start point-server --data "$data" --memory 2M --threads 2
(cd "$modules" && timeout 60 node "$here/ioredis.mjs" "$port" "$data") >"$work/case.out" 2>&1
grep -v -E '^[0-9]+ passed' "$work/case.out"
passed=$((passed + $(grep -c '^pass: ' "$work/case.out")))
failed=$((failed + $(grep -c '^fail: ' "$work/case.out")))
check "ioredis came to its end" grep -q -E '^[0-9]+ passed' "$work/case.out"
stop point-server
finish
