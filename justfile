# Short names for the commands of CONTRIBUTING.md. `just` lists them.

default:
    @just --list

# The main job on the host runtime.
bench:
    cargo run --release -- bench ep

test:
    cargo test --workspace

# The extended tests too.
test-all:
    cargo test --workspace -- --include-ignored

lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Everything that CI runs.
ci:
    .ci/run
