#!/usr/bin/env bash
# A benchmark between two hosts of two ranks each: network namespaces joined by a cable, between which NICs in software talk over TCP, or,
# with NIC_DRIVER=libfabric, its provider tcp. Needs root and iproute2.
#
#   scripts/two-hosts-bench.sh PROGRAM bench ep|ccl [ARGUMENT...]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# -lt 3 ] || [ "$2" != bench ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
program=$1
shift 2
name="anabranch$$"
"$here/two-hosts.sh" up "$name"
driver=${NIC_DRIVER:-software}
trap '"$here/two-hosts.sh" down "$name"' EXIT

secret="$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')"
# The namespaces are new, so the port is free.
export ANABRANCH_BOOTSTRAP=10.77.0.1:29400 ANABRANCH_SECRET="$secret" ANABRANCH_WORLD_SIZE=4 ANABRANCH_LOCAL_WORLD_SIZE=2
ranks=()
for rank in 3 2 1 0; do
    host=$([ "$rank" -lt 2 ] && echo a || echo b)
    address=$([ "$host" = a ] && echo 10.77.0.1 || echo 10.77.0.2)
    case $driver in
    software) nic=("transport.rdma.software_address=\"$address\"") ;;
    libfabric) nic=(transport.rdma.fabric_provider=tcp transport.rdma.nics=cable) ;;
    *) echo "NIC_DRIVER=$driver: software or libfabric is allowed" >&2 && exit 2 ;;
    esac
    ANABRANCH_RANK=$rank ANABRANCH_LOCAL_RANK=$((rank % 2)) "$here/two-hosts.sh" "$host" "$name" \
        "$program" bench-rank "$@" --ranks 4 --nodes 2 --set "transport.rdma.driver=$driver" \
        "${nic[@]/#/--set=}" &
    ranks+=($!)
done
failed=0
for rank in "${ranks[@]}"; do wait "$rank" || failed=$?; done
exit "$failed"
