#!/usr/bin/env bash
# all_reduce (f32) among processes of this machine by those that the host runtime is compared with: Gloo, if python3 has torch,
# and Open MPI or another MPI, if there is mpicc. JSON lines on standard output; what is left out is said on standard error.
#
#   scripts/host-peers.sh [RANKS] [SAMPLES] [BYTES...]
#
# 4 ranks, 200 samples, 1 KiB to 1 MiB unless given. PYTHON, MPICC and MPIRUN name other programs.
set -euo pipefail
ranks=${1:-4} samples=${2:-200}
if [ $# -gt 2 ]; then sizes=("${@:3}"); else sizes=(1024 4096 32768 262144 1048576); fi
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} mpicc=${MPICC:-mpicc} mpirun=${MPIRUN:-mpirun}
found=0

if "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null; then
    found=1
    "$python" "$here/host-peers.py" "$ranks" "$samples" "${sizes[@]}"
else
    echo "Gloo left out: $python has no torch with Gloo (pip install torch)" >&2
fi

if command -v "$mpicc" >/dev/null && command -v "$mpirun" >/dev/null; then
    found=1
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$mpicc" -O2 -Wall -o "$folder/host-peers" "$here/host-peers.c"
    more=()
    # Open MPI refuses more ranks than cores, and root, unless told that they are meant.
    if "$mpirun" --version 2>/dev/null | grep -qi 'open mpi'; then
        more=(--oversubscribe)
        if [ "$(id -u)" = 0 ]; then more+=(--allow-run-as-root); fi
    fi
    "$mpirun" "${more[@]}" -n "$ranks" "$folder/host-peers" "$samples" "${sizes[@]}"
else
    echo "MPI left out: no $mpicc and $mpirun here (Debian: openmpi-bin and libopenmpi-dev)" >&2
fi

if [ $found = 0 ]; then
    echo "neither Gloo nor MPI is installed: nothing was measured" >&2
    exit 1
fi
