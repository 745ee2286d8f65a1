#!/usr/bin/env bash
# Two network namespaces joined by one cable, as two hosts for tests of the rendezvous. Needs root and iproute2.
#
#   two-hosts.sh up NAME       makes the namespaces NAME-a (10.77.0.1, fd77::1) and NAME-b (10.77.0.2, fd77::2); each has an
#                              interface `cable` and, with no cable in it, an interface `spare` (10.78.0.1, 10.78.0.2)
#   two-hosts.sh down NAME     removes them
#   two-hosts.sh a NAME CMD..  runs a command in NAME-a; b likewise
set -euo pipefail

usage() {
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}
[ $# -ge 2 ] || usage
action=$1 name=$2
shift 2

down() {
    # The cable and the spares go with the namespaces.
    for host in a b; do
        ip netns del "$name-$host" 2>/dev/null || true
    done
}

case $action in
up)
    trap down ERR
    ip netns add "$name-a"
    ip netns add "$name-b"
    # Made inside, so that the machine's own namespace never sees it.
    ip -n "$name-a" link add cable type veth peer name cable netns "$name-b"
    number=1
    for host in a b; do
        ip -n "$name-$host" link add spare type dummy 2>/dev/null || ip -n "$name-$host" link add spare type bridge
        for device in lo cable spare; do
            ip -n "$name-$host" link set "$device" up
        done
        ip -n "$name-$host" address add "10.77.0.$number/24" dev cable
        ip -n "$name-$host" -6 address add "fd77::$number/64" dev cable nodad
        ip -n "$name-$host" address add "10.78.0.$number/32" dev spare
        number=$((number + 1))
    done
    ;;
down) down ;;
a | b)
    [ $# -ge 1 ] || usage
    exec ip netns exec "$name-$action" "$@"
    ;;
*) usage ;;
esac
