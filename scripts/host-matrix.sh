#!/usr/bin/env bash
# Dispatch and combine on the host runtime, verified, for many numbers of ranks, as processes and as threads, and for
# every wave width.
#
#   scripts/host-matrix.sh PROGRAM
set -euo pipefail
program=$1
run() { # run ARGUMENTS...: one line a row
    local rows
    rows=$(timeout 300 "$program" bench ep --json --iters 2 "$@") || { echo "FAILED: $*"; return 1; }
    echo "$rows" | python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert rows and all(row["verified"] for row in rows), rows
print(" ".join(sys.argv[1:]), "verified", *("{op} {us_median:.0f} us".format(**row) for row in rows))
' "$@"
}
for ranks in 1 2 3 4 5 7 8 12 16; do
    run --ranks "$ranks"
    run --ranks "$ranks" --threads
done
for wave in 1 4 32 64; do
    run --ranks 4 --wave "$wave"
    run --ranks 4 --wave "$wave" --threads
done
echo "all verified"
