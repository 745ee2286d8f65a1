#!/usr/bin/env bash
# Runs a command that sees ConnectX NICs in software (mlx5_0, mlx5_1, ...) through the installed libibverbs and libmlx5. README.md says more.
#
#   dev/softhca/run.sh [--nics COUNT] [--library FILE] COMMAND [ARGUMENT...]
#
# The exit status is the command's; 97 where the NICs found a violation of their protocol, however the command ended; 77 where the machine
# makes no mount namespaces; 125 for wrong arguments and a library that cannot be built. Needs root, or user namespaces; Debian:
# ibverbs-providers.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
usage() { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2 && exit 125; }

nics=2 library=
while [[ "${1:-}" == --* ]]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --nics) nics=$2 ;;
    --library) library=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[[ $# -ge 1 && "$nics" =~ ^[1-8]$ ]] || usage
if [ -z "$library" ]; then
    target="$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")"
    (cd "$here" && CARGO_TARGET_DIR="$target" cargo build --release --quiet --package anabranch-softhca) || exit 125
    library="$target/release/libanabranch_softhca.so"
fi
[ -e "$library" ] || { echo "softhca: there is no $library" >&2; exit 125; }
library="$(readlink -e "$library")"

# By root at once; else as root of a user namespace.
unshare=(unshare --mount)
[ "$(id -u)" = 0 ] || unshare+=(--map-root-user)
if ! "${unshare[@]}" mount --bind / / 2>/dev/null; then
    echo "softhca: this machine makes no mount namespaces (${unshare[*]})" >&2
    exit 77
fi

# All NICs below one folder meet; it is short, since names of sockets are.
work="$(mktemp -d /tmp/softhca.XXXXXX)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/nics"
"$here/sysfs.sh" "$work/sys" "$nics" "${SOFTHCA_LINK:-ethernet}"
status=0
# shellcheck disable=SC2016 # the inner shell's
SOFTHCA_DIR="$work/nics" "${unshare[@]}" bash -c '
    mount --bind "$1" /sys || exit 125
    export LD_PRELOAD="$2${LD_PRELOAD:+:$LD_PRELOAD}"
    shift 2
    exec "$@"' softhca "$work/sys" "$library" "$@" || status=$?
# The name is that of violations.rs.
if [ -s "$work/nics/violations" ]; then
    echo "softhca: violations of the protocol:" >&2
    cat "$work/nics/violations" >&2
    exit 97
fi
exit "$status"
