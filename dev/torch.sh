#!/usr/bin/env bash
# A Python with torch for CPUs, numpy, pytest and pip: packages of another release of Debian, which are fetched by apt from this machine's
# Debian mirror and unpacked, not installed. PyPI's torch is that for CUDA, and larger by several GB.
#
#   dev/torch.sh FOLDER
#
# FOLDER/bin/python is the Python, of a virtual environment: pip installs into FOLDER. Skipped, without FOLDER/bin/python, where the machine has no
# Debian mirror, and while that release, which is not out yet, has no torch that can be installed or one that was not tried.
set -euo pipefail
if [ $# != 1 ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
# Debian 14. The torch of Debian 13 is 2.6.
release=forky
tried='2\.(14|15)\.'
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
root="$folder/root"

skip() {
    rm -f "$folder/bin/python"
    echo "skipped: $1"
    exit 0
}
[ "$(uname -m)" = x86_64 ] || skip "folders of libraries are those of x86-64"
command -v apt-get >/dev/null || skip "there is no apt-get"

# The address of Debian's main archive in apt's sources. Apt knows it once it has lists.
address() { apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 2>/dev/null | sed -n 's|^\([^ ]*\) Debian Debian$|\1|p;T;q' || true; }

# With a state of apt of its own, in which nothing is installed: every dependency is fetched, and the machine's packages stay as they are.
fetch() {
    local mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror="$(address)"
    if [ -z "$mirror" ] && grep -q '^ID=debian' /etc/os-release; then
        apt-get update -qq || skip "apt-get update fails"
        mirror="$(address)"
    fi
    { [ -n "$mirror" ] && [ -e "$keys" ]; } || skip "apt has no Debian mirror here, or there is no $keys"
    local options=(-qq -o "Dir::State=$folder/state" -o "Dir::State::status=$folder/state/status" -o "Dir::Cache=$folder/cache"
        -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Debug::NoLocking=1 -o APT::Sandbox::User=
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=5)
    rm -rf "$folder"/{root,state,cache,bin,lib,pyvenv.cfg,complete}
    mkdir -p "$folder"/{root,state/lists/partial,cache/archives/partial}
    : >"$folder/state/status"
    echo "deb [signed-by=$keys] $mirror $release main" >"$folder/sources.list"
    { apt-get "${options[@]}" update && apt-get "${options[@]}" --yes --no-install-recommends --download-only install \
        python3-torch python3-numpy python3-pytest python3-pip libtorch-dev; } || skip "torch of $release cannot be fetched now"
    local package
    for package in "$folder"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$root"
        rm "$package"
    done
    # Debian's torch has no libuv, which its stores ask for, in torchrun whatever USE_LIBUV says.
    cat >>"$root/usr/lib/python3/dist-packages/torch/distributed/__init__.py" <<'END'

_tcp_store = TCPStore.__init__
TCPStore.__init__ = lambda self, *given, **named: _tcp_store(self, *given, **{**named, "use_libuv": False})
END
    # Headers of Python, for kernels of torch.compile: one names another by its path below /usr/include, where the compiler does not look.
    local headers
    for headers in "$root"/usr/include/python3.*; do ln -sfn ../x86_64-linux-gnu "$headers/x86_64-linux-gnu"; done
    rm -rf "$folder"/{state,cache} "$root"/usr/share/{doc,man,locale}
    echo "$release" >"$folder/complete"
}
[ "$(cat "$folder/complete" 2>/dev/null)" = "$release" ] || fetch

# The release's own loader and C library start its Python, and nothing of that reaches other programs: the compiler stays the machine's.
# Folders of BLAS and LAPACK, which are links where packages are installed.
libraries="$root/usr/lib/x86_64-linux-gnu"
program="$(readlink -f "$root/usr/bin/python3")"
mkdir -p "$folder/bin"
cat >"$folder/bin/python" <<END
#!/bin/sh
exec '$root/usr/lib64/ld-linux-x86-64.so.2' --argv0 '$folder/bin/python' \\
    --library-path '$libraries:$root/usr/lib:$libraries/blas:$libraries/lapack' '$program' "\$@"
END
chmod +x "$folder/bin/python"
cat >"$folder/pyvenv.cfg" <<END
home = $root/usr/bin
include-system-site-packages = true
END
mkdir -p "$folder/lib/$(basename "$program")/site-packages"

version="$("$folder/bin/python" -c 'import torch; print(torch.__version__)')"
grep -qE "^$tried" <<<"$version" || skip "torch $version of $release was not tried yet"

# What is imported here is kept compiled: importing torch takes half the time then.
env -u PYTHONDONTWRITEBYTECODE "$folder/bin/python" - <<'END'
import sys, numpy, pytest, torch, torch._dynamo, torch.distributed.fsdp, torch.distributed.run
assert torch.distributed.is_gloo_available()
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, numpy {numpy.__version__}, pytest {pytest.__version__}: {sys.executable}")
END
