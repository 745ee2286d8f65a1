#!/usr/bin/env bash
# Operations of the heap, collectives, and dispatch and combine between two machines that are none, by verbs of the kernel's own: in a virtual
# machine with two NICs in software (run.sh), of which each machine has one. Every byte is verified. Then one of the ranks is killed, and the other says who is lost.
#
#   scripts/rdma-vm/bench.sh PROGRAM KERNELS
#
# PROGRAM is the command `anabranch`, KERNELS a cache of kernels (kernels.cache), to which those are added that it has not: the guest has
# no compiler. Settings of run.sh apply (RDMA_VM_CACHE, ...), but the guest is stopped after 600 s unless RDMA_VM_SECONDS says otherwise:
# without KVM a slow machine takes minutes. What the guest does, and says at each step, is in bench-guest.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# != 2 ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
program=$1 kernels=$2
export RDMA_VM_SECONDS="${RDMA_VM_SECONDS:-600}"
echo "rdma-vm: compiling the guest's kernels that are not in $kernels (minutes the first time)"
built="$("$program" jit build --target host --nic posted --set "kernels.cache=$kernels")" || { echo "$built" >&2; exit 1; }
echo "rdma-vm: kernels for the guest: ${built##*$'\n'}"
echo "rdma-vm: starting the guest, which has $RDMA_VM_SECONDS s (RDMA_VM_SECONDS)"
# Kernels of other targets stay here.
folders=()
for folder in "$kernels"/*/host,*; do folders+=(--folder "$folder:/kernels/${folder#"$kernels"/}"); done
# The compiler's driver says its version, which is part of the kernels' names.
compiler="$(readlink -f "$(command -v "${CXX:-c++}")")"
exec "$here/run.sh" "${folders[@]}" --folder "$compiler:/bin/c++" --folder "$program:/bin/anabranch" "$here/bench-guest.sh"
