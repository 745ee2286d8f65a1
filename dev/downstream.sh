#!/usr/bin/env bash
# Builds and runs the crates of `examples/` that are outside the workspace, as a user's own would be.
set -euo pipefail
cd "$(dirname "$0")/.."

# Built once and run once.
export CARGO_PROFILE_DEV_DEBUG=0
for crate in downstream-host downstream-transport; do
    cargo run --quiet --manifest-path "examples/$crate/Cargo.toml" --target-dir target/downstream
done
