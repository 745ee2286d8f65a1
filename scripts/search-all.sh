#!/usr/bin/env bash
# A long search for a seed that breaks a protocol: every protocol, both memory profiles, then whole worlds that are struck at
# every point. Stops at the first failure, whose last line replays it.
#
#   scripts/search-all.sh PROGRAM [SEEDS]
#
# PROGRAM is the built `anabranch`; SEEDS is how many each protocol gets in each profile (60000: more than a million in all).
set -euo pipefail
program=$1 seeds=${2:-60000}

search() {
    echo "== anabranch sim $*"
    "$program" sim "$@" | tail -n 3
}

for protocol in ep barrier stream-signal put-signal put-quiet gather device-barrier atomics ping ccl-fingerprint; do
    search "$protocol" --ranks 3 --seeds "0..$seeds"
    search "$protocol" --ranks 3 --seeds "0..$seeds" --cumulative
done
for protocol in ccl-move ccl-packets ccl-bulk ccl-hops; do
    for form in "" --staged; do
        search "$protocol" --ranks 3 --seeds "0..$((seeds / 6))" $form
        search "$protocol" --ranks 3 --seeds "0..$((seeds / 6))" --cumulative $form
    done
done
search ccl --ranks 4 --rounds 30 --staged --seeds "0..$((seeds / 30))"
search ccl --ranks 4 --rounds 30 --seeds "0..$((seeds / 30))"
search ep --ranks 3 --staged --seeds "0..$((seeds / 3))"
search world --ranks 3 --seeds "0..$((seeds / 20))"
for ranks in 2 3; do
    for sweep in --kill-each --fail-each-call --cut-each; do
        search world --ranks "$ranks" "$sweep" --seeds 0..1
    done
done
search world --ranks 2 --outcomes --fault 'lose:0>1~4' --fault 'lose:1>0~4' --seeds "0..$((seeds / 60))"
search world --ranks 2 --outcomes --fault 'lose:0>1~16:told' --fault 'lose:1>0~16:told' --seeds "0..$((seeds / 60))"
echo "all searched"
