#!/usr/bin/env bash
# Runs the tests that compare tables with headers of verbs, mlx5 and libfabric on the headers of another release of Debian, which are
# fetched by apt from this machine's Debian mirror and unpacked, not installed.
#
#   scripts/debian-headers.sh RELEASE FOLDER
#
# RELEASE is Debian's name for it (trixie), FOLDER where the headers are kept. Skipped where the machine has no Debian mirror.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# != 2 ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
release=$1
mkdir -p "$2"
folder="$(cd "$2" && pwd)"
include="$folder/root/usr/include"

# The address of Debian's main archive in apt's sources. Apt knows it once it has lists.
address() { apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 2>/dev/null | sed -n 's|^\([^ ]*\) Debian Debian$|\1|p' | head -n 1; }
mirror="$(address)"
if [ -z "$mirror" ] && grep -q '^ID=debian' /etc/os-release; then
    apt-get update -qq
    mirror="$(address)"
fi
keys=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || ! [ -e "$keys" ]; then
    echo "skipped: apt has no Debian mirror here, or there is no $keys"
    exit 0
fi

# A state of its own: the machine's lists and packages stay as they are.
fetch() {
    local options=(-qq -o "Dir::State=$folder/state" -o "Dir::Cache=$folder/cache" -o "Dir::Etc::sourcelist=$folder/sources.list"
        -o Dir::Etc::sourceparts=/dev/null -o Debug::NoLocking=1 -o APT::Sandbox::User= -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
    rm -rf "$folder/root" "$folder/state" "$folder/cache" "$folder"/*.deb
    mkdir -p "$folder"/{root,state/lists/partial,cache/archives/partial}
    echo "deb [signed-by=$keys] $mirror $release main" >"$folder/sources.list"
    apt-get "${options[@]}" update
    (cd "$folder" && apt-get "${options[@]}" download libibverbs-dev libfabric-dev)
    local package
    for package in "$folder"/*.deb; do dpkg-deb --extract "$package" "$folder/root"; done
    rm -rf "$folder/state" "$folder/cache" "$folder"/*.deb
}
[ -e "$folder/complete" ] || fetch
: >"$folder/complete"

# A compiler that looks elsewhere would compare with the machine's own.
export CPATH="$include"
for header in infiniband/mlx5dv.h infiniband/verbs.h rdma/fabric.h; do
    found="$(echo "#include <$header>" | c++ -x c++ -M -)"
    grep -qF "$include/$header" <<<"$found" || { echo "$header of $release is not what the compiler finds: $found" >&2 && exit 1; }
done

cd "$here/.."
# Tests run where they were not filtered away: their number is looked at.
run() {
    local package=$1 filter=$2 count=$3 said
    said="$(cargo test --quiet --package "$package" --lib -- --nocapture "$filter" 2>&1)" || { echo "$said" >&2 && exit 1; }
    grep -q "test result: ok. $count passed" <<<"$said" || { echo "$package: not $count tests of $filter: $said" >&2 && exit 1; }
    ! grep "^skipped" <<<"$said" >&2 || exit 1
    echo "$package: $count tests of $filter pass with the headers of $release"
}
run anabranch-transport-rdma mlx5::library::tests::layouts_are_those 1
run anabranch-transport-rdma verbs::abi 1
run anabranch-transport-ofi types_constants_and_signatures 1
