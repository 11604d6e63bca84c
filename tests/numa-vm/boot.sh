#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# boot.sh KERNEL NODES FAR PROGRAM...: boot a machine that has NODES NUMA nodes with CPUs and FAR more without (memory
# only), in QEMU without hardware support, and run the test programs in it, as root, one after the other. Each gets
# BP_NODES_WANTED, so that tests that need nodes fail there rather than skip. The guest's root is an ext4 disk with the
# programs, the libraries they need, and busybox; nothing outside of a work folder is touched.
#
# Prints a line for each program and all of the output of those that fail. Exit status: 0 only if all passed.
#   MIB=512      memory of each node
#   LIMIT=900    seconds for the whole of it
#
# All CPUs are run by one thread of QEMU (thread=single): with several, a kernel that patches its own code can hang.
set -euo pipefail

kernel=$1 near=$2 far=$3
shift 3
mib=${MIB:-512} limit=${LIMIT:-900} cpus=2 nodes=$((near + far))
work=$(mktemp -d "${TMPDIR:-/tmp}/numa-vm.XXXXXX")
root=$work/root
vm=
trap '[ -z "$vm" ] || kill "$vm" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 143' INT TERM

# ---- the guest's disk --------------------------------------------------------------------------------------------------

mkdir -p "$root"/{dev,proc,sys,run,tmp,etc,bin,tests,usr/{lib,lib64}}
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
cp "$(type -P busybox)" "$root/bin/busybox"
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
cp -L "$@" "$root/tests/"
{
    for program in "$@"; do ldd "$program" || true; done
    echo /lib/x86_64-linux-gnu/libgcc_s.so.1 # loaded when a thread ends
} 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | xargs cp -L --parents -t "$root"

cat >"$root/init" <<EOF
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TERM=dumb BP_NODES_WANTED=$nodes BP_STRESS_SECONDS=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
[ -e /dev/null ] || mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ln -sf /proc/self/fd /dev/fd
ip link set lo up
stty -F /dev/ttyS1 raw -echo
cd /tests
for program in $(printf '%s ' "${@##*/}"); do
    case \$program in
    test_*) arguments='-j1 --ascii --timeout 300' ;;
    *) arguments= ;;
    esac
    from=\$(cut -d. -f1 /proc/uptime)
    ./\$program \$arguments </dev/null >/run/output 2>&1
    status=\$?
    echo "== \$program \$status \$((\$(cut -d. -f1 /proc/uptime) - from))"
    grep -E 'Synthesis:|passed,|\[SKIP\]' /run/output
    [ \$status = 0 ] || cat /run/output
done >/dev/ttyS1 2>&1
echo '== end' >/dev/ttyS1
sync
poweroff -f
EOF
chmod +x "$root/init"
kib=$(du -sk "$root" | cut -f1)
mke2fs -q -F -t ext4 -b 4096 -O ^has_journal -d "$root" "$work/root.img" $((kib + 400000))K >"$work/mke2fs"

# ---- the machine -------------------------------------------------------------------------------------------------------

machine=()
for ((i = 0; i < nodes; i++)); do
    machine+=(-object "memory-backend-ram,id=m$i,size=${mib}M")
    if ((i < near)); then
        machine+=(-numa "node,nodeid=$i,memdev=m$i,cpus=$((i * cpus))-$(((i + 1) * cpus - 1))")
    else
        machine+=(-numa "node,nodeid=$i,memdev=m$i")
    fi
done
for ((i = 0; i < nodes; i++)); do
    for ((j = 0; j < nodes; j++)); do
        d=$((i == j ? 10 : i < near && j < near ? 21 : 30))
        machine+=(-numa "dist,src=$i,dst=$j,val=$d")
    done
done
timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=single -cpu max,la57=off -machine pc -nodefaults \
    -no-user-config -display none -no-reboot -m "$((nodes * mib))M" -smp "$((near * cpus)),sockets=$near,cores=$cpus" \
    "${machine[@]}" -drive "if=none,id=root,format=raw,cache=unsafe,file=$work/root.img" \
    -device nvme,drive=root,serial=root -kernel "$kernel" \
    -append "console=ttyS0 root=/dev/nvme0n1 rw init=/init panic=-1 mitigations=off tsc=reliable numa_balancing=disable \
loglevel=4 transparent_hugepage=madvise" \
    -serial "file:$work/console" -serial "file:$work/output" </dev/null &
vm=$!
status=0
wait "$vm" || status=$?
vm=

# ---- what came of it ---------------------------------------------------------------------------------------------------

tr -d '\r' <"$work/output"
grep -E 'Out of memory|BUG:|Oops|Call Trace' "$work/console" >&2 || true
if ! grep -q '^== end' "$work/output"; then
    tail -n 30 "$work/console" >&2
    echo "the guest ended before the tests did (qemu: $status; 124 is the limit of $limit s)" >&2
    exit 1
fi
ran=$(grep -cE '^== [a-z_]+ [0-9]+ ' "$work/output" || true)
good=$(grep -cE '^== [a-z_]+ 0 ' "$work/output" || true)
[ "$ran" = $# ] && [ "$good" = $# ]
