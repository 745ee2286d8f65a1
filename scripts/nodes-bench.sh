#!/usr/bin/env bash
# What goes between machines, on the GPUs of one machine that are divided into nodes, by NICs in software: kernels on the GPUs write queue
# entries into memory of the host and the software serves them. Every operation of the heap, collectives directly and by node, dispatch
# and combine, as processes and as threads; the program verifies every byte. Goes on after a failure, and ends with how many failed.
#
#   scripts/nodes-bench.sh PROGRAM CONFIG FOLDER RANKS [NODES]
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml; FOLDER gets a JSON-lines file a step; RANKS is the number of GPUs, divided into NODES (2). A first run
# compiles kernels, which kernels.cache keeps (docs/configuration.md).
set -uo pipefail
if [ $# -lt 4 ]; then
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
fi
program=$1 config=$2 out=$3 ranks=$4 nodes=${5:-2} failed=0
mkdir -p "$out"

step() { # step NAME ARGUMENTS...
    local name=$1 form
    shift
    for form in "" --threads; do
        # shellcheck disable=SC2086 # an empty form is no argument
        if timeout 280 "$program" "$@" $form --nodes "$nodes" --ranks "$ranks" --config "$config" --json \
            >"$out/$name$form.jsonl" 2>"$out/$name$form.txt"; then
            echo "$name $form: $(grep -c '"verified":true' "$out/$name$form.jsonl") of $(grep -c . "$out/$name$form.jsonl") rows verified"
        else
            echo "$name $form FAILED ($?): $(tail -n 3 "$out/$name$form.txt")"
            failed=$((failed + 1))
        fi
    done
}

step shmem bench shmem
# By node where one of them has several ranks.
for across in direct auto $([ "$ranks" -gt "$nodes" ] && echo node); do
    step "ccl-$across" bench ccl --op all_reduce,all_gather,all_to_all,broadcast,reduce_scatter --sizes 1K,64K,1M --set "ccl.across=$across"
done
step ep bench ep --tokens 8,128
echo "$failed steps failed"
[ "$failed" -eq 0 ]
