#!/usr/bin/env bash
# Collectives on GPUs beside NCCL: doctor first, then the four operations from 1 KiB to 1 GiB by graph replay, then samples of
# element types, operators, groups, in-place forms, local memory and copy engines. The program verifies every result bit by bit; the script
# stops at the first that is wrong.
#
#   scripts/ccl-bench.sh PROGRAM CONFIG FOLDER [RANKS]
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml; FOLDER gets one JSON-lines file and one picture a
# step. RANKS is the number of GPUs (4). Input and output of 1 GiB and the staging lie in a heap of HEAP ("4 GiB"). NCCL is found
# by the loader or in Python's site-packages; NCCL_LIBRARY=/path/libnccl.so.2 names another.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
fi
program=$1 config=$2 out=$3 ranks=${4:-4}
mkdir -p "$out"
library=()
if [ -n "${NCCL_LIBRARY:-}" ]; then library=(--nccl-library "$NCCL_LIBRARY"); fi
compare=(--compare nccl "${library[@]}")
both=(--compare nccl,nccl-symmetric "${library[@]}")

step() { # step NAME ARGUMENTS...
    local name=$1
    shift
    echo "== $name: bench ccl $*"
    timeout 600 "$program" bench ccl --config "$config" --set heap.bytes="${HEAP:-4 GiB}" --ranks "$ranks" --json --plot "$out/$name.svg" "$@" \
        >>"$out/$name.jsonl" 2>>"$out/errors.txt" ||
        { echo "FAILED ($?)"; tail -5 "$out/errors.txt"; return 1; }
}

"$program" doctor --config "$config" | tee "$out/doctor.txt" || true

# NCCL without windows on the same buffers, and with symmetric windows where it has them (2.27 and later).
for op in all_reduce all_gather reduce_scatter all_to_all; do
    step "graph-$op" --op "$op" --min 1K --max 1G --graph "${both[@]}"
done
step eager --sizes 1K,32K,1M,64M "${compare[@]}"

some=(--sizes 4K,512K,16M --graph)
for dtype in f32 f16 float8_e4m3fn i32; do
    step "dtype-$dtype" --op all_reduce,reduce_scatter --dtype "$dtype" "${some[@]}" "${compare[@]}"
done
for operator in max avg; do
    step "operator-$operator" --op all_reduce --dtype f32 --reduce "$operator" "${some[@]}" "${compare[@]}"
done
step in-place --op all_reduce,all_gather,reduce_scatter --in-place "${some[@]}" "${compare[@]}"
step local --memory local "${some[@]}" "${compare[@]}"
step rooted --op broadcast,reduce,gather,scatter --root 1 "${some[@]}" "${compare[@]}"
if [ "$ranks" -ge 3 ]; then
    step group-2-0-1 --group 2,0,1 "${some[@]}" "${compare[@]}"
    step group-1-2 --group 1,2 "${some[@]}" "${compare[@]}"
fi
step engine --transport sdma --op all_gather,all_to_all --sizes 16M,64M,256M,1G --graph "${both[@]}"
step engine-others --transport sdma --op broadcast,gather,scatter,all_reduce,reduce_scatter --sizes 16M,256M --graph "${compare[@]}"

# A matrix product beside a collective: by copy engine, by kernels, and NCCL's.
for form in --eager ""; do
    "$program" bench overlap --config "$config" --set heap.bytes="${HEAP:-4 GiB}" --ranks "$ranks" --json $form --op all_gather,all_to_all \
        --sizes 64M,256M --product 4096 "${compare[@]}" >>"$out/overlap.jsonl" 2>>"$out/errors.txt" ||
        { echo "FAILED ($?)"; tail -5 "$out/errors.txt"; exit 1; }
done
echo "all verified"
