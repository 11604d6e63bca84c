#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The tests of memory on machines with several NUMA nodes, in guests that have them: two nodes, and four of which one has
# no CPU. Installs what is missing (QEMU, busybox), takes the kernel out of Debian's package without installing it, and
# needs no more rights than that. A minute or two: the guests' CPUs are emulated, so what takes time there says nothing.
#
#   BP_BUILD     the build folder; default: build, built if its tests are not there
#   --quick      the guest with two nodes only
#
# Ends with one line, `N passed, N failed`; exit status 1 if any failed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${BP_BUILD:-$root/build}
tests=(test_numa test_topology test_slab test_migrate stress_frames)
guests=("2 0" "3 1")
[ "${1:-}" != --quick ] || guests=("2 0")

"$root/.ci/install" qemu-system-x86 busybox-static e2fsprogs
for name in "${tests[@]}"; do
    if [ ! -x "$build/tests/$name" ]; then
        cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
        cmake --build "$build" --target "${tests[@]}"
    fi
done

# The kernel for clouds: it boots without an initial RAM disk, and has what a virtual machine has built in.
kernel=$build/numa-vm/vmlinuz
if [ ! -f "$kernel" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    echo "fetching ${package:?linux-image-cloud-amd64 is not among the packages that apt knows}"
    (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package" >/dev/null && dpkg-deb -x ./*.deb x)
    mkdir -p "$build/numa-vm"
    cp "$work"/x/boot/vmlinuz-* "$kernel"
fi

passed=0 failed=0
for guest in "${guests[@]}"; do
    read -r near far <<<"$guest"
    echo "a guest with $near nodes that have CPUs, and $far without"
    if output=$("$root/tests/numa-vm/boot.sh" "$kernel" "$near" "$far" "${tests[@]/#/$build/tests/}"); then
        status=0
    else
        status=$?
    fi
    echo "$output"
    good=$(grep -cE '^== [a-z_]+ 0 ' <<<"$output" || true)
    passed=$((passed + good))
    [ "$status" = 0 ] || failed=$((failed + (${#tests[@]} > good ? ${#tests[@]} - good : 1)))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
