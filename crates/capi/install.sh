#!/usr/bin/env bash
# Installs the C interface: crates/capi/install.sh PREFIX. Header, shared and static library, and anabranch.pc, below PREFIX (an absolute path).
# Builds the libraries with cargo, unless FROM is a folder that has them. With DESTDIR the files go below it, for packages.
set -euo pipefail
prefix="${1:?usage: install.sh PREFIX}"
here="$(cd "$(dirname "$0")" && pwd)"
case "$prefix" in /*) ;; *) echo "install.sh: PREFIX is $prefix; an absolute path is needed" >&2; exit 2 ;; esac

version="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")"
if [ -z "${FROM:-}" ]; then
    target="${CARGO_TARGET_DIR:-$here/../../target}"
    cargo build --release --manifest-path "$here/Cargo.toml" --target-dir "$target"
    FROM="$target/release"
fi

to="${DESTDIR:-}$prefix"
install -d "$to/include" "$to/lib/pkgconfig"
install -m 644 "$here/include/anabranch.h" "$to/include/anabranch.h"
install -m 644 "$FROM/libanabranch_capi.a" "$to/lib/libanabranch.a"
install -m 755 "$FROM/libanabranch_capi.so" "$to/lib/libanabranch.so.$version"
# Programs look for the name in the library (build.rs), linkers for the other one.
ln -sf "libanabranch.so.$version" "$to/lib/libanabranch.so.0"
ln -sf libanabranch.so.0 "$to/lib/libanabranch.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/anabranch.pc.in" > "$to/lib/pkgconfig/anabranch.pc"
