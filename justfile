# Short names for the commands of CONTRIBUTING.md. `just` lists them.

default:
    @just --list

# The main job on the host runtime.
bench:
    cargo run --release -- bench ep

test:
    cargo test --workspace

lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Everything that the gate runs.
ci:
    .ci/run
