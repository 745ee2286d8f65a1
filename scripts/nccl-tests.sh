#!/usr/bin/env bash
# nccl-tests with NCCL and with anabranch's drop-in, from the same binaries: checks every result, and prints both tables beside each other.
#
#   scripts/nccl-tests.sh FOLDER LIBRARY [OUTPUT]
#
# FOLDER has the built programs (nccl-tests/build), LIBRARY is libanabranch_nccl.so, OUTPUT a folder for the logs (default: a new one).
# One process with all GPUs; with programs that are linked with MPI also a process for each GPU. Environment: GPUS (2), FLAGS for the
# programs ("-b 8 -e 1G -f 4 -c 1 -n 20 -w 5" here), PROGRAMS to run fewer ("all_reduce_perf sendrecv_perf"), TIMEOUT in seconds for each (600).
set -uo pipefail
folder=${1:?the folder of the programs}
library=$(realpath "${2:?libanabranch_nccl.so}")
output=${3:-$(mktemp -d)}
gpus=${GPUS:-2}
flags=${FLAGS:--b 8 -e 1G -f 4 -c 1 -n 20 -w 5}
mkdir -p "$output"
programs=${PROGRAMS:-$(cd "$folder" && ls -- *_perf 2>/dev/null)}
[ -n "$programs" ] || { echo "no *_perf in $folder" >&2; exit 2; }
failed=0
for program in $programs; do
    ldd "$folder/$program" | grep -q libnccl || { echo "$program is not linked with libnccl.so: build it without NCCL_STATIC" >&2; exit 2; }
done

# run NAME PRELOAD COMMAND...: the log of a program, whose last line is its exit status.
run() {
    local name=$1 preload=$2
    shift 2
    echo "== $name" >&2
    timeout "${TIMEOUT:-600}" env ${preload:+LD_PRELOAD="$preload"} "$@" >"$output/$name.log" 2>&1
    echo "exit $?" >>"$output/$name.log"
}

for program in $programs; do
    # shellcheck disable=SC2086 # flags are words
    for which in nccl anabranch; do
        preload=
        [ $which = anabranch ] && preload=$library
        run "$program.threads.$which" "$preload" "$folder/$program" $flags -g "$gpus"
        if ldd "$folder/$program" | grep -q libmpi; then
            run "$program.processes.$which" "" mpirun --allow-run-as-root --bind-to none -np "$gpus" ${preload:+-x LD_PRELOAD="$preload"} "$folder/$program" $flags -g 1
        fi
    done
done

python3 - "$output" <<'PY' || failed=1
import pathlib
import sys

def rows(path):
    """(size, type, operator, root) -> time, bus bandwidth and wrong elements, out of place and in place."""
    found, text = {}, path.read_text(errors="replace")
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 9 and words[0].isdigit() and words[1].isdigit():
            found[tuple(words[:1] + words[2:-8])] = (words[-8:-4], words[-4:])
    return found, text

bad = False
for ours in sorted(pathlib.Path(sys.argv[1]).glob("*.anabranch.log")):
    name = ours.name.removesuffix(".anabranch.log")
    mine, text = rows(ours)
    theirs, other = rows(ours.with_name(f"{name}.nccl.log"))
    print(f"\n{name}: busbw GB/s (us)")
    print(f"{'bytes':>12} {'':10} {'NCCL':>18} {'anabranch':>18} {'in place: NCCL':>18} {'anabranch':>18} wrong")
    for key, (out, same) in mine.items():
        cell = lambda four: f"{four[2]} ({four[0]})" if four else "-"
        before = theirs.get(key, (None, None))
        wrong = [four[3] for four in (out, same) if four[3] not in ("0", "N/A")]
        bad |= bool(wrong)
        print(f"{key[0]:>12} {' '.join(key[1:]):10} {cell(before[0]):>18} {cell(out):>18} {cell(before[1]):>18} {cell(same):>18} {' '.join(wrong) or 0}")
    for who, log in (("anabranch", text), ("NCCL", other)):
        status = log.split()[-1] if log.split() else "?"
        if status != "0" or (who == "anabranch" and not mine):
            bad |= who == "anabranch"
            print(f"{who}: exit {status}\n" + "\n".join(log.splitlines()[-12:]))
sys.exit(bad)
PY
echo "logs: $output"
exit $failed
