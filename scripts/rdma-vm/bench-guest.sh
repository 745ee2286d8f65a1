#!/bin/sh
# What bench.sh runs in its guest: ranks of the host runtime that count as two machines, those of the first with rxe0 and those of the second
# with rxe1, whose requests threads of the host post. It has busybox alone.
set -u
export HOME=/tmp
settings='--runtime host --nodes 2 --json --set kernels.cache=/kernels --set kernels.compile=deny --set heap.bytes=64MiB
    --set transport.rdma.driver=verbs --set transport.rdma.nics=rxe --set deadline.operation=60s'

now() { cut -d' ' -f1 /proc/uptime; }
step() { echo "rdma-vm: $1, after $(now) s"; }
fail() {
    echo "rdma-vm: $1" >&2
    exit 1
}
# Runs a command on so many ranks, whose rows all have to be verified, and shows what each says.
verified() {
    ranks=$1
    shift
    # shellcheck disable=SC2086 # words
    "$@" --ranks "$ranks" $settings >/tmp/rows 2>/tmp/said || fail "$* ended with $? and says: $(cat /tmp/said)"
    [ -s /tmp/rows ] || fail "$* measured nothing"
    ! grep -v '"verified":true' /tmp/rows || fail "$*: not verified"
    sed 's/"us_p99".*//' /tmp/rows
}

step "routes: each machine has a NIC of its own, and reaches the other through it"
# shellcheck disable=SC2086
anabranch topo --ranks 4 $settings >/tmp/routes 2>/tmp/said || fail "the ranks do not join: $(cat /tmp/said)"
for rank in 0 1 2 3; do
    other=$(((rank + 2) % 4)) nic=rxe$((rank / 2))
    grep -q "\"from\":$rank,\"to\":$other,.*\"transport\":\"rdma\".*of $nic to rank" /tmp/routes ||
        fail "rank $rank does not reach rank $other through $nic: $(cat /tmp/routes)"
done

step "operations of the heap"
verified 2 anabranch bench shmem --bytes 64 --iters 2

step "collectives"
verified 4 anabranch bench ccl --op all_gather,all_reduce,all_to_all --sizes 64K --iters 2

step "dispatch and combine"
verified 4 anabranch bench ep --tokens 8 --hidden 1024 --experts 16 --iters 2

step "a rank that is killed"
# Started apart, as on two machines: nothing but the world itself tells one of the other's end.
ANABRANCH_SECRET="$(cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/uuid | tr -d '\n-')"
export ANABRANCH_SECRET ANABRANCH_BOOTSTRAP=127.0.0.1:29400 ANABRANCH_WORLD_SIZE=2 ANABRANCH_LOCAL_WORLD_SIZE=2
start() {
    # shellcheck disable=SC2086
    ANABRANCH_RANK=$1 ANABRANCH_LOCAL_RANK=$1 anabranch bench-rank ccl --ranks 2 --op all_gather,all_to_all,all_reduce,reduce_scatter --sizes 1K --iters 3 $settings \
        >"/tmp/rows$1" 2>"/tmp/said$1" &
}

start 1
killed=$!
start 0
left=$!
# The first row is there when the second collective begins.
until [ -s /tmp/rows0 ]; do
    kill -0 "$left" 2>/dev/null || fail "the first rank ended early: $(cat /tmp/said0)"
    sleep 0.1
done
kill -KILL "$killed"
begun=$(now)
wait "$left"
status=$?
step "killed at $begun s, the other ended with $status and says: $(cat /tmp/said0)"
[ "$status" -ne 0 ] || fail "nobody was missed"
grep -q "rank 1" /tmp/said0 || fail "the killed rank is not named"
# deadline.operation is 10 s; beside it, the time that the process takes to end on a busy machine.
[ "$(($(now | cut -d. -f1) - ${begun%.*}))" -le 30 ] || fail "it was missed too late"
