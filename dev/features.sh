#!/usr/bin/env bash
# Each cargo feature of the facade alone, and none: the library compiles without a warning. All together: see the lints.
set -euo pipefail
cd "$(dirname "$0")/.."

features=$(cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
facade = next(p for p in json.load(sys.stdin)["packages"] if p["name"] == "anabranch")
print(*(name for name in facade["features"] if name != "default"))')

check() {
    echo "features: $*"
    # Not by RUSTFLAGS, which would build every dependency again.
    local said
    said=$(cargo check --quiet "$@" 2>&1) || { echo "$said"; exit 1; }
    [ -z "$said" ] || { echo "$said"; exit 1; }
}

check -p anabranch --no-default-features
for feature in $features; do
    check -p anabranch --no-default-features --features "$feature"
done
check -p anabranch --no-default-features --features host --tests
check -p anabranch-shmem --no-default-features
