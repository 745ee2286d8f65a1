#!/usr/bin/env bash
# Runs a program in a small virtual machine whose kernel has NICs in software (Soft-RoCE, rdma_rxe): rxe0 and rxe1, joined by a
# pair of virtual Ethernet devices. For tests of verbs on machines without a NIC. Needs a Debian with apt and python3; no root, nothing is installed.
#
#   scripts/rdma-vm/run.sh [--folder HERE:THERE]... [--set NAME=VALUE]... [--loss PERCENT] PROGRAM [ARGUMENT...]
#
# --folder copies a folder (or file) of this machine into the guest, --set sets a variable of the program's environment, --loss has that
# part of the packets lost in each direction. The program and what is copied come with the shared libraries that they name. The exit
# status is the program's; 125 where the guest gave none.
#
# A program that compiles kernels for the host runtime needs a folder of compiled ones, and the compiler's driver, whose version is
# part of their names: --folder KERNELS:/kernels --folder "$(readlink -f "$(command -v c++)")":/bin/c++
#
# bench.sh beside this does so for operations of the heap, collectives, and dispatch and combine.
#
# RDMA_VM_CACHE    where packages are kept (target/rdma-vm of this repository)
# RDMA_VM_SECONDS  when the guest is stopped (110)
# RDMA_VM_MEMORY   MiB of the guest (1024)
# RDMA_VM_CPUS     processors of the guest (2)
# RDMA_VM_ACCEL    what QEMU runs it by (tcg,thread=multi: works everywhere; kvm is faster where it is allowed)
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${RDMA_VM_CACHE:-$here/../../target/rdma-vm}"
mkdir -p "$cache"
cache="$(cd "$cache" && pwd)"
root="$cache/root"
packages="qemu-system-x86 busybox-static iproute2 ibverbs-providers"

# A package list of the machine is not asked what is installed: then apt fetches all that the programs need, and the guest and QEMU use
# no library of the machine.
# Called where errors do not end the script, so each step says that it failed.
fetch() {
    local options=(-qq -o "Dir::State::status=$cache/no-packages" -o "Dir::Cache::archives=$cache/archives"
        -o Debug::NoLocking=1 -o APT::Sandbox::User=)
    rm -rf "$root" "$cache/archives"
    mkdir -p "$root" "$cache/archives/partial"
    : >"$cache/no-packages"
    local kernel
    kernel="$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)"
    if [ -z "$kernel" ]; then
        echo "rdma-vm: apt knows no linux-image-amd64: this needs Debian's package lists (apt-get update)" >&2
        return 1
    fi
    # shellcheck disable=SC2086 # a word each
    apt-get "${options[@]}" --yes --no-install-recommends --download-only install $packages || return
    (cd "$cache/archives" && apt-get -qq download "$kernel") || return
    local package
    for package in "$cache"/archives/*.deb; do dpkg-deb --extract "$package" "$root" || return; done
    rm -rf "$cache/archives"
    python3 "$here/image.py" kernel "$root" "$cache/kernel"
}

# One at a time; what another list of packages gave is fetched anew.
exec 9>"$cache/lock"
flock 9
if [ "$(cat "$cache/complete" 2>/dev/null)" != "$packages" ]; then
    echo "rdma-vm: fetching QEMU, a kernel and verbs into $cache" >&2
    rm -f "$cache/complete"
    fetch >"$cache/fetch.log" 2>&1 || { tail -n 20 "$cache/fetch.log" >&2; exit 125; }
    echo "$packages" >"$cache/complete"
fi
exec 9>&-

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 "$here/image.py" guest "$root" "$here/init.sh" "$work/image" "$@"
: >"$work/status"
# The clock is QEMU's: the kernel would measure the processor's on a busy machine, and be wrong by factors.
# Nor may it check that the timer ticks: the check counts instructions, and finds a dead timer where QEMU waits for a processor.
# The second serial line carries the exit status, so that no output of the program can be taken for it.
libraries="$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/pulseaudio"
QEMU_MODULE_DIR="$root/usr/lib/x86_64-linux-gnu/qemu" timeout "${RDMA_VM_SECONDS:-110}" \
    "$root/lib64/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/qemu-system-x86_64" \
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -nodefaults -no-user-config -no-reboot -display none \
    -accel "${RDMA_VM_ACCEL:-tcg,thread=multi}" -smp "${RDMA_VM_CPUS:-2}" -m "${RDMA_VM_MEMORY:-1024}" \
    -kernel "$cache/kernel" -initrd "$work/image" -append "console=ttyS0 quiet panic=-1 tsc=unstable clocksource=hpet no_timer_check" \
    -serial stdio -serial "file:$work/status" </dev/null 2>&1 |
    sed -u 's/\r$//; /SeaBIOS\|Booting from ROM/d' || true
status="$(sed -n 's/^exit \([0-9]*\).*$/\1/p' "$work/status")"
if [ -z "$status" ]; then
    echo "rdma-vm: the guest gave no exit status within ${RDMA_VM_SECONDS:-110} s: it hung or did not start" >&2
    exit 125
fi
exit "$status"
