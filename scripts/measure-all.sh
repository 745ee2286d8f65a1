#!/usr/bin/env bash
# Tables for the GPUs of this machine, measurements and checks, in steps. A step that fails or takes too long does not stop the others.
#
#   scripts/measure-all.sh PROGRAM CONFIG FOLDER RANKS STEP...
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml, RANKS the number of GPUs.
#
#   doctor        what is installed (text)
#   tune-ccl      writes FOLDER/ccl.toml, the table of collectives
#   tune-ep       writes FOLDER/ep.toml, the table of dispatch and combine
#   p2p           links
#   ccl           collectives by graph replay beside NCCL, which the loader finds, or Python's site-packages have
#   torch         all_reduce of torch's symmetric memory; needs `python3` with torch 2.6 or later
#   ep            dispatch and combine by graph replay, 1 to 4096 tokens
#   ep-forms      rows by expert, and the cast to fp8
#   ep-blocks     dispatch and combine with 16 to 132 blocks
#   ep-engine     rows moved by copy engines, and by kernels
#   check-shmem   every operation of the heap
#   check-ccl     every collective, type and operator; 100 replays of graphs
#   check-ep      modes, sources of combine, threads, codecs, the recorded trace
#   check-nodes   the GPUs as two nodes connected by software NICs; RANKS is 2 or more, and from 3 on also by node
#
# Steps after tune-ccl and tune-ep use the tables in FOLDER, else those built in. The program compares every result with a reference, bit by
# bit; torch-symm-mem.py compares the sums of torch.
#
# FOLDER gets STEP.jsonl, the standard output (JSON lines; text of doctor, tune-ccl and tune-ep), STEP.err, and steps.txt with each step's
# exit status, seconds and command. A further run into FOLDER appends. The exit status is 1 if a step failed, 2 for wrong arguments.
#
# LIMIT is the time limit of one command in seconds (300; a step has 1 to 12 commands), HEAP the heap of tune-ccl and ccl ("4 GiB"); other
# steps take that of CONFIG.
set -uo pipefail
if [ $# -lt 5 ]; then
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
fi
program=$1 config=$2 out=$3 ranks=$4
shift 4
for step in "$@"; do
    grep -q "^#   $step  " "$0" || { echo "no step $step" >&2 && exit 2; }
done
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
    p2p) ours p2p bench p2p ;;
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
        # By node: an all_to_all of short parts is packed. Two ranks are one a node.
        [ "$ranks" -lt 3 ] || ours check-nodes bench ccl --nodes 2 --sizes 4K,64K --iters 5 --set 'ccl.across="node"'
        ;;
    esac
done
cat "$out/steps.txt"
exit $failed
