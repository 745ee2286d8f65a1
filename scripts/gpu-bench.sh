#!/usr/bin/env bash
# Everything that only GPUs can show, in one run: doctor, links, dispatch and combine in every form. Each result is
# verified bit by bit by the program itself; the script stops at the first that is not.
#
#   scripts/gpu-bench.sh PROGRAM CONFIG FOLDER [MAX_RANKS]
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml; FOLDER gets one JSON-lines file a step.
set -euo pipefail
program=$1 config=$2 out=$3 most=${4:-4}
mkdir -p "$out"

step() { # step NAME ARGUMENTS...
    local name=$1
    shift
    echo "== $name: $*"
    timeout 120 "$program" "$@" --config "$config" --json >>"$out/$name.jsonl" 2>>"$out/errors.txt" ||
        { echo "FAILED ($?)"; tail -5 "$out/errors.txt"; return 1; }
}

"$program" doctor --config "$config" | tee "$out/doctor.txt" || true
step p2p bench p2p --ranks "$most"
for ranks in $(seq 1 "$most"); do
    for form in "" --threads; do
        # shellcheck disable=SC2086 # an empty form is no argument
        step "ep-trace" bench ep --ranks "$ranks" $form --iters 20
        for mode in "" --graph; do
            # shellcheck disable=SC2086
            step "ep-deepseek" bench ep --ranks "$ranks" $form $mode --tokens 1,8,128,4096 --hidden 7168 --experts 256 --top-k 8
        done
    done
done
echo "all verified"
