#!/usr/bin/env bash
# The cases of FlyDSL's sweep of dispatch and combine (its pull request 522) by their names, and the three that it left out, at
# their full size on GPUs: hidden 7168 (fp4: 3584), 32 experts a rank, top-8. Each is judged bit by bit by the program itself.
# Cases that draw whether combine is zero-copy run both ways.
#
#   scripts/ep-cases.sh PROGRAM CONFIG RANKS
#
# PROGRAM is the built `anabranch`, CONFIG a file such as config/h200-4.toml with a heap of 8 GiB. Prints a line a case; exit 1
# when one failed.
set -uo pipefail
program=$1 config=$2 ranks=$3
failed=0

# Says what one run came to: every row verified, or not.
judge() {
    python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin if line.startswith("{")]
wrong = [row for row in rows if not row["verified"]]
times = ", ".join("%s %.1f us" % (row["op"], row["us_median"]) for row in rows)
print("%s (dropped %s)" % (times, rows[0].get("dropped") if rows else "?"))
sys.exit(1 if wrong or not rows else 0)'
}

case_() { # case_ NAME ARGUMENTS...
    local name=$1 said
    shift
    if said=$(timeout 120 "$program" bench ep --config "$config" --ranks "$ranks" --experts $((32 * ranks)) --top-k 8 \
        --graph --json "$@" 2>/tmp/ep-cases.$$ | judge); then
        echo "ok      $name: $said"
    else
        echo "FAILED  $name: $said"
        tail -3 /tmp/ep-cases.$$
        failed=1
    fi
}

refused() { # refused NAME WORDS ARGUMENTS...: an error with these words before anything moves
    local name=$1 words=$2 said
    shift 2
    said=$("$program" bench ep --config "$config" --ranks "$ranks" "$@" 2>&1)
    if [ $? -ne 0 ] && grep -q -- "$words" <<<"$said"; then
        echo "ok      $name: refused: $(grep -m1 -- "$words" <<<"$said")"
    else
        echo "FAILED  $name: $said"
        failed=1
    fi
}

push="--combine-source buffer" pull="--combine-source window"
e4m3fn="--dispatch-dtype float8_e4m3fn" fnuz="--dispatch-dtype float8_e4m3fnuz" fp4="--dispatch-dtype fp4 --hidden 3584"
# shellcheck disable=SC2086 # several arguments in one word
{
    case_ bf16_baseline --tokens 128 $push
    case_ bf16_fp8_direct_cast --tokens 128 --combine-quant fp8_direct
    case_ bf16_zero_copy --tokens 128 $pull
    case_ bf16_std_moe --tokens 128 --layout expert-major
    case_ bf16_baseline_large --tokens 4096 $push
    case_ bf16_fp8_direct_cast_large --tokens 4096 --combine-quant fp8_direct
    case_ float8_e4m3fn_dispatch --tokens 128 $e4m3fn $push
    case_ float8_e4m3fnuz_dispatch --tokens 128 $fnuz $push
    case_ fp4_dispatch --tokens 128 $fp4 $push
    case_ bf16_std_moe_large --tokens 4096 --layout expert-major --expert-capacity 4096
    case_ bf16_recv_cap_token_size --tokens 128 $push --max-recv $((ranks * 128))
    case_ bf16_recv_cap_half --tokens 128 $push --max-recv $((ranks * 64))
    case_ mixed_float8_e4m3fn_dispatch_bf16_combine_zero_copy --tokens 128 $e4m3fn $pull
    case_ mixed_fp4_dispatch_bf16_combine_zero_copy --tokens 128 $fp4 $pull
    case_ mixed_float8_e4m3fn_dispatch_bf16_combine_no_zero_copy --tokens 128 $e4m3fn $push
    for tokens in 4 32 8192; do
        case_ mixed_float8_e4m3fn_dispatch_bf16_combine_bs${tokens}_random_zc:no --tokens $tokens $e4m3fn $push
        case_ mixed_float8_e4m3fn_dispatch_bf16_combine_bs${tokens}_random_zc:yes --tokens $tokens $e4m3fn $pull
    done
    case_ mixed_float8_e4m3fnuz_dispatch_bf16_combine_no_zero_copy --tokens 128 $fnuz $push
    refused bf16_zerocopy_fp8_direct_cast "codec" --tokens 128 $pull --combine-quant fp8_direct
    case_ bf16_recv_cap_min --tokens 128 $push --max-recv "$ranks"
    case_ bf16_forced_hot_spot --tokens 128 $push --routing hot
}
rm -f /tmp/ep-cases.$$
exit $failed
