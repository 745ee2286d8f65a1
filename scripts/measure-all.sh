#!/usr/bin/env bash
# Tables for the GPUs of this machine and the measurements made with them, in steps that each have a time limit and go on after a failure:
#
#   scripts/measure-all.sh PROGRAM CONFIG FOLDER RANKS STEP...
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml. FOLDER gets the tables (ccl.toml, ep.toml), which later steps
# use, a JSON-lines file and an error file a step, and `steps.txt` with each step's exit status and seconds. STEPs, in the order in which
# they are of use:
#
#   doctor tune-ccl tune-ep ccl torch ep ep-forms ep-blocks ep-engine check-shmem check-ccl check-ep check-nodes
#
# LIMIT is the time limit of a step in seconds (300), HEAP the heap of the collectives ("4 GiB"). NCCL is found by the loader or in Python's
# site-packages. Every result is verified bit by bit by the program.
set -uo pipefail
if [ $# -lt 5 ]; then
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
fi
program=$1 config=$2 out=$3 ranks=$4
shift 4
mkdir -p "$out"
failed=0

run() { # run STEP COMMAND...: its lines go to STEP.jsonl
    local name=$1 begun=$SECONDS status
    shift
    timeout "${LIMIT:-300}" "$@" >>"$out/$name.jsonl" 2>>"$out/$name.err"
    status=$?
    echo "$name $status $((SECONDS - begun)) $*" >>"$out/steps.txt"
    if [ $status -ne 0 ]; then
        failed=1
        echo "$name: exit status $status; $(tail -2 "$out/$name.err" | tr '\n' ' ')"
    fi
}

tables=()
use_tables() {
    tables=()
    [ -s "$out/ccl.toml" ] && tables+=(--set "ccl.table=\"$out/ccl.toml\"")
    [ -s "$out/ep.toml" ] && tables+=(--set "ep.table=\"$out/ep.toml\"")
}

ours() { # ours STEP ARGUMENTS...
    local name=$1
    shift
    run "$name" "$program" "$@" --config "$config" --ranks "$ranks" --json "${tables[@]}"
}

heap=(--set heap.bytes="${HEAP:-4 GiB}")
four=all_reduce,all_gather,reduce_scatter,all_to_all
model=(--hidden 7168 --experts 256 --top-k 8)
for step in "$@"; do
    use_tables
    case $step in
    doctor) run doctor "$program" doctor --config "$config" ;;
    tune-ccl)
        run tune-ccl "$program" tune --config "$config" --ranks "$ranks" "${heap[@]}" --op "$four,broadcast" --members "$ranks" --factor 4 \
            --max 256M --samples 7 --output "$out/ccl.toml"
        ;;
    tune-ep)
        run tune-ep "$program" tune ep --config "$config" --ranks "$ranks" "${model[@]}" --samples 7 --blocks 16,32,64,128 \
            --output "$out/ep.toml"
        ;;
    ccl)
        for op in ${four//,/ }; do
            ours ccl bench ccl "${heap[@]}" --graph --op "$op" --min 1K --max 1G --factor 4 --compare nccl,nccl-symmetric
        done
        ours ccl bench ccl "${heap[@]}" --graph --op $four --sizes 32K,512K --compare nccl,nccl-symmetric
        ;;
    torch) run torch python3 -m torch.distributed.run --nproc-per-node "$ranks" "$(dirname "$0")/torch-symm-mem.py" --sizes 1K,32K,512K,1M,4M,16M,256M ;;
    ep)
        for dtype in bf16 float8_e4m3fn; do
            ours ep bench ep --graph --tokens 1,8,32,64,128,256,512,1024,4096 "${model[@]}" --dispatch-dtype $dtype
        done
        ;;
    ep-forms)
        for layout in expert-major expert-major-steps; do
            for dtype in bf16 float8_e4m3fn; do
                ours ep-forms bench ep --graph --tokens 1,8,32,128,512,4096 "${model[@]}" --layout $layout --dispatch-dtype $dtype
            done
        done
        ours ep-forms bench ep --graph --tokens 1,8,32,128,512,1024,4096 "${model[@]}" --dispatch-cast fp8_block
        ;;
    ep-blocks)
        for blocks in 16 32 64 128 132; do
            ours ep-blocks bench ep --graph --tokens 128,512,4096 "${model[@]}" --set ep.blocks=$blocks
        done
        ;;
    ep-engine) # engines move the rows of slotted plans only
        for payload in copy-engine kernels; do
            ours ep-engine bench ep --graph --mode slotted --tokens 128,512,4096 "${model[@]}" --payload $payload
        done
        ;;
    check-shmem) ours check-shmem bench shmem ;;
    check-ccl) ours check-ccl bench ccl --check --replays 100 ;;
    check-ep)
        for mode in slotted compact; do
            for source in window buffer; do
                for form in "" --threads; do
                    # shellcheck disable=SC2086 # an empty form is no argument
                    ours check-ep bench ep --mode $mode --combine-source $source $form --tokens 1,8,128,2048 "${model[@]}" --iters 5
                done
            done
        done
        for codec in fp8_direct fp8_block fp4_block; do
            ours check-ep bench ep --combine-quant $codec --tokens 8,128 "${model[@]}" --iters 5
        done
        ours check-ep bench ep --iters 5
        ;;
    check-nodes)
        ours check-nodes bench ep --nodes 2 --tokens 8,128 "${model[@]}" --iters 5
        ours check-nodes bench ccl --nodes 2 --sizes 4K,1M --iters 5
        # By node: an all_to_all of short parts is packed.
        ours check-nodes bench ccl --nodes 2 --sizes 4K,64K --iters 5 --set 'ccl.across="node"'
        ;;
    *) echo "no step $step" >&2 && exit 2 ;;
    esac
done
cat "$out/steps.txt"
exit $failed
