"""What run.sh boots: `kernel` unpacks the kernel's image, `guest` writes the guest's files as an initial file system.

kernel ROOT TARGET
guest ROOT INIT TARGET [--folder HERE:THERE]... [--set NAME=VALUE]... PROGRAM [ARGUMENT...]

ROOT is the folder into which packages were unpacked.
"""

import argparse
import lzma
import os
import re
import shlex
import stat
import struct
import subprocess
import sys
from pathlib import Path

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "lib64/ld-linux-x86-64.so.2"
# What the programs of the guest's first process are in busybox.
APPLETS = "sh cat cp cut echo grep head insmod kill ln ls mkdir mount poweroff sed seq sleep sync tail test timeout tr uname".split()
# rdma_rxe computes checksums by an algorithm that the kernel looks for by name.
MODULES = ["crc32_generic", "ib_uverbs", "rdma_rxe", "veth"]


def unpacked_kernel(root: Path) -> bytes:
    """The kernel as QEMU starts it soonest: the ELF file inside the bootable image, which then need not unpack itself in the guest."""
    [path] = (root / "boot").glob("vmlinuz-*")
    image = path.read_bytes()
    # Linux' Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length.
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    return image


class Guest:
    """The guest's files: path, mode and contents."""

    def __init__(self, root: Path):
        self.root = root
        self.files: dict[str, tuple[int, bytes]] = {}
        self.put("lib", stat.S_IFLNK | 0o777, b"usr/lib")
        self.put("lib64", stat.S_IFLNK | 0o777, b"usr/lib64")
        for folder in ("proc", "sys", "dev", "tmp", "etc", "run"):
            self.folder(folder)

    def folder(self, place: str):
        if place and place not in self.files:
            self.folder(os.path.dirname(place))
            self.files[place] = (stat.S_IFDIR | 0o755, b"")

    def put(self, place: str, mode: int, contents: bytes):
        place = place.strip("/")
        # The C library's folders are links to those below /usr.
        place = re.sub(r"^(lib|lib64)/", r"usr/\1/", place)
        self.folder(os.path.dirname(place))
        self.files[place] = (mode, contents)

    def copy(self, source: Path, place: str):
        """A file, with the libraries that it names if it is a program or a library."""
        contents = source.read_bytes()
        self.put(place, stat.S_IFREG | (source.stat().st_mode & 0o777), contents)
        if contents.startswith(b"\x7fELF"):
            self.libraries(source)

    def libraries(self, source: Path):
        """The libraries of the packages, or else of this machine, that a file needs, as the packages' loader finds them."""
        search = ":".join(str(self.root / folder) for folder in (LIBRARIES, "lib/x86_64-linux-gnu"))
        command = [str(self.root / LOADER), "--library-path", search, "--list", str(source)]
        listed = subprocess.run(command, capture_output=True, text=True)
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed.stdout, re.MULTILINE):
            place = f"{LIBRARIES}/{os.path.basename(name)}"
            if place not in self.files:
                self.put(place, stat.S_IFREG | 0o755, self.inside(Path(path)).read_bytes())
        missing = re.findall(r"^\s*(\S+) => not found", listed.stdout, re.MULTILINE)
        if missing:
            sys.exit(f"rdma-vm: {source} needs {', '.join(missing)}, which neither the packages nor this machine have")

    def inside(self, path: Path) -> Path:
        """Follows links, those to absolute places inside the packages' folder."""
        while path.is_symlink():
            target = os.readlink(path)
            path = self.root / target.lstrip("/") if target.startswith("/") else path.parent / target
        return path

    def package(self, name: str, place: str):
        """A program of the packages, wherever they put it."""
        for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
            found = self.root / folder / name
            if found.is_symlink() or found.exists():
                return self.copy(self.inside(found), place)
        sys.exit(f"rdma-vm: the packages have no {name}")

    def tree(self, source: Path, place: str):
        if source.is_file():
            return self.copy(source, place)
        if not source.is_dir():
            sys.exit(f"rdma-vm: there is no {source}")
        self.folder(place.strip("/"))
        for path in sorted(source.rglob("*")):
            below = f"{place}/{path.relative_to(source)}"
            if path.is_file():
                self.copy(path, below)
            elif path.is_dir():
                self.folder(below.strip("/"))

    def modules(self):
        """Kernel modules, each behind those that it names as its dependencies."""
        found = {module_name(path): path for path in self.root.glob("lib/modules/**/*.ko*")}
        found |= {module_name(path): path for path in self.root.glob("usr/lib/modules/**/*.ko*")}
        order: list[str] = []

        def add(name: str):
            # What is not there is part of the kernel itself.
            if name in order or name not in found:
                return
            contents = found[name].read_bytes()
            if found[name].suffix == ".xz":
                contents = lzma.decompress(contents)
            depends = re.search(rb"\0depends=([^\0]*)\0", contents)
            for other in depends.group(1).decode().split(",") if depends else []:
                add(other.replace("-", "_"))
            order.append(name)
            self.put(f"modules/{name}.ko", stat.S_IFREG | 0o644, contents)

        for name in MODULES:
            add(name)
        if "rdma_rxe" not in order:
            sys.exit("rdma-vm: the kernel's package has no module rdma_rxe")
        self.put("modules/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in order).encode())

    def write(self, target: Path):
        """As an archive of the "newc" format (Linux' Documentation/driver-api/early-userspace/buffer-format.rst), not compressed:
        unpacking would take the guest longer than reading."""
        with target.open("wb") as out:
            entries = sorted(self.files.items()) + [("TRAILER!!!", (0, b""))]
            for number, (place, (mode, contents)) in enumerate(entries, 1):
                name = place.encode() + b"\0"
                fields = (number, mode, 0, 0, 1, 0, len(contents), 0, 0, 0, 0, len(name), 0)
                head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
                for part in (head, contents):
                    out.write(part + bytes(-len(part) % 4))


def module_name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def guest(root: Path, arguments: list[str]):
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("init", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--folder", action="append", default=[], metavar="HERE:THERE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("program", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)

    files = Guest(root)
    busybox = next(path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists())
    files.copy(busybox, "bin/busybox")
    for applet in APPLETS:
        files.put(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox")
    files.copy(files.inside(root / LOADER), LOADER)
    for program in ("ip", "rdma"):
        files.package(program, f"usr/sbin/{program}")
    # What programs open at run time: the library of verbs, its provider for rxe, and the file that names the provider.
    for name in ("libibverbs.so.1", "libibverbs/librxe-rdmav34.so"):
        path = next((root / LIBRARIES).glob(re.sub(r"rdmav\d+", "rdmav*", name)))
        files.copy(files.inside(path), f"{LIBRARIES}/{os.path.relpath(path, root / LIBRARIES)}")
    files.put("etc/libibverbs.d/rxe.driver", stat.S_IFREG | 0o644, b"driver rxe\n")
    files.modules()
    files.copy(given.init, "init")
    files.copy(given.program, f"run/{given.program.name}")
    for pair in given.folder:
        here, separator, there = pair.rpartition(":")
        if not separator:
            sys.exit(f"rdma-vm: --folder {pair} is not HERE:THERE")
        files.tree(Path(here), there)
    words = [f"/run/{given.program.name}", *given.arguments]
    lines = [f"export {shlex.quote(variable)}\n" for variable in given.set]
    lines.append(f"exec {' '.join(shlex.quote(word) for word in words)}\n")
    files.put("run/command", stat.S_IFREG | 0o644, "".join(lines).encode())
    files.write(given.target)


def main():
    what, root, *rest = sys.argv[1:]
    if what == "kernel":
        Path(rest[0]).write_bytes(unpacked_kernel(Path(root)))
    else:
        guest(Path(root), rest)


if __name__ == "__main__":
    main()
