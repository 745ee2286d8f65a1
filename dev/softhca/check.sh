#!/usr/bin/env bash
# What `.ci/run` has NICs in software judge: benchmarks between two machines that are none, by the drivers verbs and mlx5, through the
# installed libibverbs and libmlx5; NICs without atomics, in real-time clock mode, or that refuse commands; a killed rank; errors of the NIC
# and one that does not answer; and that a violation of the NIC's protocol is noticed.
#
#   dev/softhca/check.sh PROGRAM KERNELS
#
# PROGRAM is the command `anabranch`, KERNELS a cache of kernels (kernels.cache), to which those are added that it has not.
# Runs all checks, and lists at the end which failed. Skipped where the machine makes no mount namespaces.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# Seconds after which a check counts as hanging.
limit=120

start() {
    local rank=$1
    shift
    ANABRANCH_RANK=$rank ANABRANCH_LOCAL_RANK=$rank "$program" bench-rank ccl --ranks 2 --sizes 1K,64K "${settings[@]}" "$@" \
        >"$work/rows$rank" 2>"$work/said$rank" &
}

# Ranks that are started apart, as on two machines: nothing but the world itself tells one of the other's end.
apart() {
    ANABRANCH_SECRET="$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')"
    # A port that no earlier check has.
    export ANABRANCH_SECRET ANABRANCH_BOOTSTRAP=127.0.0.1:$((29500 + BASHPID % 400)) ANABRANCH_WORLD_SIZE=2 ANABRANCH_LOCAL_WORLD_SIZE=2
}

# Rank 1 is killed while collectives run: rank 0 ends, and names it.
within_killed() {
    apart
    start 1 --op all_gather,all_to_all,all_reduce,reduce_scatter --iters 60
    local killed=$!
    start 0 --op all_gather,all_to_all,all_reduce,reduce_scatter --iters 60
    local left=$! status=0
    # The first row is there when the second collective begins.
    until [ -s "$work/rows0" ]; do
        kill -0 "$left" 2>/dev/null || { echo "rank 0 ended early: $(cat "$work/said0")" && return 1; }
        sleep 0.1
    done
    kill -KILL "$killed"
    local begun=$SECONDS
    wait "$left" || status=$?
    [ "$status" -ne 0 ] || { echo "nobody was missed" && return 1; }
    says 0 "rank 1"
    [ $((SECONDS - begun)) -le 30 ] || { echo "rank 1 was missed after $((SECONDS - begun)) s" && return 1; }
}

# says RANK WORDS...: the error that a rank ended with has all of these.
says() {
    local rank=$1 words error
    shift
    error="$(grep '^anabranch: ' "$work/said$rank")" || { echo "rank $rank has no error: $(cat "$work/said$rank")" && return 1; }
    for words in "$@"; do
        grep -qF -- "$words" <<<"$error" || { echo "rank $rank does not say \"$words\": $(cat "$work/said$rank")" && return 1; }
    done
}

# broken CONTROL WORDS...: rank 1's NIC has the control, by which a request of rank 0's fails: both ranks end, and both errors name rank 0,
# which noticed it, and the queue pair to rank 1, and have these words: rank 1's are those that rank 0 passed on.
broken() {
    local control=$1 failed=0 rank
    shift
    apart
    # The control is of the one command.
    (export "${control?}" && start 1 --iters 200 && wait "$!") &
    local other=$!
    start 0 --iters 200
    local left=$!
    ! wait "$left" || { echo "rank 0 did not fail" && failed=1; }
    ! wait "$other" || { echo "rank 1 did not fail" && failed=1; }
    for rank in 0 1; do
        says "$rank" "rank 0 found" "queue pair" "to rank 1" "$@" || failed=1
    done
    return "$failed"
}

# A NIC that answers with a syndrome from some request on.
within_failing() {
    local syndrome=$1 words=$2
    broken "SOFTHCA_FAIL_FROM=200:$syndrome" "$words" "all_reduce"
}

# A NIC that answers nothing from some request on. The deadline ends the operation before the NIC gives up.
within_silent() {
    settings+=(--set deadline.operation=4s)
    broken SOFTHCA_SILENT_FROM=200 "waited " "does not answer" "the oldest is"
}

# Called by itself, among NICs: the driver, and one of the functions above.
if [ "${1:-}" = --within ]; then
    shift
    program=$1 kernels=$2 driver=$3 what=$4
    shift 4
    work="$SOFTHCA_DIR/ranks"
    mkdir "$work"
    settings=(--runtime host --nodes 2 --json --set "kernels.cache=$kernels" --set "transport.rdma.driver=$driver" --set deadline.operation=60s)
    "within_$what" "$@"
    exit
fi

if [ $# != 2 ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
program="$(readlink -e "$1")" kernels="$(realpath -m "$2")"
target="$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")"
(cd "$here" && CARGO_TARGET_DIR="$target" cargo build --release --quiet --package anabranch-softhca)
library="$target/release/libanabranch_softhca.so"
nics() { "$here/run.sh" --library "$library" "$@"; }
status=0
reason="$(nics true 2>&1)" || status=$?
case $status in
0) ;;
77) echo "skipped: $reason" && exit 0 ;;
*) echo "$reason" >&2 && exit "$status" ;;
esac

said="$(mktemp)"
trap 'rm -f "$said"' EXIT
failures=()
# Milliseconds of the clock, and seconds since some.
now() { date +%s%3N; }
seconds_since() {
    local passed=$(($(now) - $1))
    printf '%d.%d' $((passed / 1000)) $((passed % 1000 / 100))
}
# check NAME COMMAND...: runs one, and says how long it took. (Errors do not end what it runs by themselves.)
check() {
    local name=$1 begun result=ok
    begun="$(now)"
    shift
    "$@" >"$said" 2>&1 || result="FAILED ($?)"
    printf '%-48s %s, %s s\n' "$name" "$result" "$(seconds_since "$begun")"
    if [ "$result" != ok ]; then
        failures+=("$name")
        sed 's/^/    /' "$said" | tail -n 20 | cut -c1-2000
    fi
}
# run RANKS ARGUMENT...: the program on two machines by a driver.
run() {
    local ranks=$1
    shift
    nics timeout "$limit" "$program" "$@" --nodes 2 --ranks "$ranks" --runtime host --json --set "kernels.cache=$kernels" \
        --set "transport.rdma.driver=$driver" --set deadline.operation=60s
}
# A benchmark, of which every row is verified.
verified() {
    local rows
    rows="$(run "$@")" || return
    [ -n "$rows" ] || { echo "nothing was measured" && return 1; }
    ! grep -v '"verified":true' <<<"$rows" || return 1
}
# The check of all collectives, some of whose calls went between the machines.
collectives() {
    local rows
    rows="$(run "$@")" || return
    ! grep -v '"verified":true' <<<"$rows" || return 1
    grep -q '"internode":[1-9]' <<<"$rows" || { echo "no call went between the machines: $rows" && return 1; }
}
# Each rank reaches that of the other machine by the driver and the NIC of its own.
routes() {
    local rows words
    rows="$(run 2 topo)" || return
    case $driver in
    verbs) words="queue pairs, posted by the host, by" ;;
    mlx5) words="queue pairs, mlx5, by" ;;
    esac
    grep -q '"from":0,"to":1,.*"transport":"rdma",.* '"$words mlx5_0[: ]" <<<"$rows" &&
        grep -q '"from":1,"to":0,.*"transport":"rdma",.* '"$words mlx5_1[: ]" <<<"$rows" ||
        { echo "$rows" && return 1; }
}
# with CONTROL... -- COMMAND...: a command whose NICs have these controls.
with() {
    (
        while [ "$1" != -- ]; do
            export "${1?}"
            shift
        done
        shift
        "$@"
    )
}
# The least that uses a driver.
brief() { verified 2 bench ccl --op all_gather --sizes 1K --iters 2; }
# An entry with a reserved bit set makes a run fail that is right otherwise.
damaged() {
    local status=0
    SOFTHCA_DAMAGE_ENTRY=10 brief || status=$?
    [ "$status" = 97 ] || { echo "the run ended with $status, not with 97" && return 1; }
}

started="$(now)"
# What is compiled here is no part of a check's time.
check "kernels of both drivers" "$program" jit build --target host --nic posted,mlx5 --set "kernels.cache=$kernels"
within() { nics timeout "$limit" "$here/check.sh" --within "$program" "$kernels" "$driver" "$@"; }
# What mlx5 says of a completion that was overwritten.
flushed=", by QUERY_QP; later requests were flushed, the last at entry"
for driver in verbs mlx5; do
    check "$driver: routes" routes
    check "$driver: bench shmem, 2 ranks" verified 2 bench shmem --bytes 64 --iters 2
    check "$driver: bench ccl, 2 ranks" verified 2 bench ccl --sizes 1K,64K --iters 2
    check "$driver: bench ccl, 4 ranks" verified 4 bench ccl --op all_reduce,all_to_all --sizes 64K --iters 2
    check "$driver: bench ccl --check, 2 ranks" collectives 2 bench ccl --check --replays 20
    check "$driver: bench ep, 2 ranks" verified 2 bench ep --tokens 8 --hidden 1024 --experts 16 --iters 2
    check "$driver: bench ep, 4 ranks" verified 4 bench ep --tokens 8 --hidden 1024 --experts 16 --iters 2
    check "$driver: bench ccl without atomics" with SOFTHCA_ATOMICS=none -- verified 2 bench ccl --sizes 1K,64K --iters 2
    check "$driver: bench ep without atomics" with SOFTHCA_ATOMICS=none -- \
        verified 2 bench ep --tokens 8 --hidden 1024 --experts 16 --iters 2
    check "$driver: a rank that is killed" within killed
    check "$driver: a NIC that does not answer" within silent
    # The words of both drivers, followed by numbers of each: verbs has a status; mlx5 the syndrome, that of the first error.
    for row in "0x12:9:invalid request at the peer" "0x13:10:access refused by the peer's NIC" \
        "0x15:12:transport retries exceeded: the peer's NIC does not answer"; do
        IFS=: read -r syndrome number cause <<<"$row"
        case $driver in
        verbs) numbers="(status $number, vendor syndrome 0x88)" ;;
        mlx5) numbers="(syndrome $syndrome, vendor's 0x88)$flushed" ;;
        esac
        check "$driver: a NIC that answers with $syndrome" within failing "$syndrome" "$cause $numbers"
    done
done
driver=mlx5
check "mlx5: a NIC that cannot report the first error" with SOFTHCA_SYNDROME=none -- within failing 0x13 "(no qp_error_syndrome)"
check "mlx5: real-time clock, Ethernet" with SOFTHCA_CLOCK=real-time -- brief
check "mlx5: real-time clock, InfiniBand" with SOFTHCA_CLOCK=real-time SOFTHCA_LINK=infiniband -- brief
# Where the driver is to be chosen: verbs for a NIC that refuses a command of DEVX, and else mlx5.
driver=auto
for step in query_hca_cap create_qp rts; do
    check "auto: a NIC that refuses DEVX's $step" with "SOFTHCA_REFUSE_DEVX=$step" -- brief
done
check "auto: a NIC that refuses verbs' create_qp" with SOFTHCA_REFUSE_VERBS=create_qp -- brief
driver=verbs
check "an entry that breaks the rules" damaged

if [ ${#failures[@]} -gt 0 ]; then
    echo "softhca: ${#failures[@]} checks failed in $(seconds_since "$started") s: $(printf '%s; ' "${failures[@]}")" >&2
    exit 1
fi
echo "softhca: all checks passed in $(seconds_since "$started") s"
