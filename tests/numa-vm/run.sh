#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The tests that need several NUMA nodes, in guests that have some: one of two nodes, and one of four of which one has no
# CPUs. On Debian 12, as root or with sudo: installs QEMU, busybox and e2fsprogs where they are missing, and takes the
# guest's kernel out of Debian's package, which is not installed. $BP_BUILD is a build folder with tests (build).
#
# Takes some minutes: the guests are emulated. Fails if a test that needs nodes was skipped there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${BP_BUILD:-$root/build}" && pwd)
programs=(test_topology test_numa test_place test_drain test_slab test_migrate stress_frames)

"$root/.ci/install" qemu-system-x86 busybox-static e2fsprogs

# The kernel stays in the build folder: 27 MB that need not be fetched twice.
store=$build/numa-vm
mkdir -p "$store"
kernel=$(find "$store" -name 'vmlinuz-*-cloud-amd64' | sort -V | tail -n 1)
if [ -z "$kernel" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    (cd "$store" && apt-get -q -o APT::Sandbox::User=root download "${package:?there is no linux-image-cloud-amd64: apt-get update}")
    dpkg-deb --fsys-tarfile "$store/$package"_*.deb | tar -x -C "$store" --wildcards './boot/vmlinuz-*'
    rm "$store/$package"_*.deb
    kernel=$(find "$store" -name 'vmlinuz-*-cloud-amd64' | sort -V | tail -n 1)
fi

status=0
for guest in "2 0" "3 1"; do
    read -r near far <<<"$guest"
    echo "a guest of $near nodes with CPUs and $far without"
    output=$("$root/tests/numa-vm/boot.sh" "$kernel" "$near" "$far" "${programs[@]/#/$build/tests/}" 2>&1) || status=1
    echo "$output"
    if grep -E '\[SKIP\].*needs two NUMA nodes' <<<"$output"; then
        echo "skipped where there are several nodes" >&2
        status=1
    fi
done
exit "$status"
