#!/usr/bin/env python3
"""How large the project is: packages, Rust lines, what a user of the facade links, error variants, hidden modules.

Run from anywhere in a clone: `python3 dev/size.py`, or with `--crates` for a row a package.

Lines of a package are all lines of its .rs files, except folders `tests`, and modules, functions and imports that only
`cfg(test)`, `cfg(loom)` or `cfg(doctest)` compile, in line or in a file of their own: those are lines of tests. "code" leaves out
blank lines and comments. Modules that a cargo feature compiles count only where the feature is on.
"""

import argparse
import json
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CFG = re.compile(r"\s*#!?\[cfg\((.*)\)\]$")
ATTRIBUTE = re.compile(r"\s*(#!?\[|//)")
MODULE = re.compile(r"\s*(?:pub(?:\(\w+\))? )?mod (\w+)(;| \{)")
ONLY_TESTS = re.compile(r"^(all\()?(test|loom|doctest)\b")
LINKS = (("default", []), ("host", ["--no-default-features", "--features", "host"]))


def compiled(cfg: str, features: set[str] | None) -> bool:
    """Whether the conditions of features in `cfg` hold; None: every feature is on, and off too."""
    if features is None or "feature" not in cfg:
        return True
    text = re.sub(r'feature = "([\w-]+)"', lambda name: str(name[1] in features), cfg)
    text = re.sub(r"\b(?!True|False|all|any|not)\w+( = \"\w+\")?\b", "True", text)
    names = {"all": lambda *of: all(of), "any": lambda *of: any(of), "not_": lambda of: not of}
    return eval(text.replace("not(", "not_("), {"__builtins__": {}}, names)  # noqa: S307


def end(lines: list[str], start: int) -> int:
    """The line behind the item that starts at `start`: rustfmt closes it at the indentation of its first line."""
    first = lines[start]
    if first.rstrip().endswith((";", ",", "}")):
        return start + 1
    indent = first[: len(first) - len(first.lstrip())]
    closes = (f"{indent}}}", f"{indent})", f"{indent}]")
    return next(i for i in range(start + 1, len(lines)) if lines[i].startswith(closes)) + 1


class Lines:
    """Line counts of a package under a set of features."""

    def __init__(self, folder: Path, features: set[str] | None):
        self.folder, self.features = folder, features
        self.product, self.code, self.tests = 0, 0, 0
        self.seen: set[Path] = set()
        self.text: list[str] = []
        for top in ("src/lib.rs", "src/main.rs", "build.rs"):
            if (folder / top).is_file():
                self.file(folder / top, False)

    def file(self, path: Path, test: bool) -> None:
        """Counts a file and the modules that it declares."""
        if path in self.seen or path.is_relative_to(self.folder / "tests"):
            return
        self.seen.add(path)
        lines = path.read_text().splitlines()
        inner = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs", "build.rs") else path.with_suffix("")
        self.span(lines, 0, len(lines), path.parent, inner, test)

    def span(self, lines: list[str], at: int, stop: int, here: Path, inner: Path, test: bool) -> None:
        """Counts a part of a file."""
        while at < stop:
            start, cfgs, place = at, [], None
            while at + 1 < stop and ATTRIBUTE.match(lines[at]) and not lines[at].lstrip().startswith("//"):
                if said := CFG.match(lines[at]):
                    cfgs.append(said[1])
                if said := re.match(r'\s*#\[path = "(.*)"\]', lines[at]):
                    place = said[1]
                at = end(lines, at) if lines[at].rstrip().endswith(("(", "[")) else at + 1
            only_tests = test or any(ONLY_TESTS.match(cfg) for cfg in cfgs)
            if not all(compiled(cfg, self.features) for cfg in cfgs):
                at = end(lines, at)
                continue
            if (module := MODULE.match(lines[at])) and module[2] == ";":
                files = [here / place] if place else [inner / f"{module[1]}.rs", inner / module[1] / "mod.rs"]
                self.file(next(file.resolve() for file in files if file.is_file()), only_tests)
                at += 1
            elif only_tests and not test and not lines[start].startswith("#!["):
                at = end(lines, at)
            else:
                at += 1
            self.count(lines[start:at], only_tests)

    def count(self, lines: list[str], test: bool) -> None:
        """Adds lines."""
        if test:
            self.tests += len(lines)
            return
        self.product += len(lines)
        self.code += sum(1 for line in lines if line.strip() and not line.lstrip().startswith("//"))
        self.text += lines


@cache
def rust_lines(folder: Path) -> int:
    """All lines of the .rs files below a folder."""
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.rs") if "target" not in file.parts)


def packages() -> dict[str, Path]:
    """The workspace's packages and their folders."""
    said = subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT)
    return {each["name"]: Path(each["manifest_path"]).parent for each in json.loads(said)["packages"]}


def linked(known: dict[str, Path], arguments: list[str]) -> dict[str, set[str]]:
    """The workspace's crates that the facade links, and the features of each."""
    tree = ["cargo", "tree", "-p", "anabranch", "-e", "normal", "--prefix", "none", "--format", "{p}|{f}", *arguments]
    rows = (line.split("|") for line in subprocess.check_output(tree, cwd=ROOT, text=True).splitlines())
    found = {name.split()[0]: set(features.replace(" (*)", "").split(",")) for name, features in rows}
    return {name: features for name, features in found.items() if name in known}


def variants(text: list[str]) -> int:
    """Variants of the enums named `...Error` in lines."""
    found, inside = 0, False
    for line in text:
        inside = inside and line != "}" or bool(re.match(r"pub(\(crate\))? enum \w*Error\w* \{", line))
        found += inside and bool(re.match(r"    [A-Z]\w*( \{|\(|,)", line))
    return found


def main() -> None:
    """Prints the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--crates", action="store_true", help="also a row a package")
    by_crate = options.parse_args().crates

    known = packages()
    counted = {name: Lines(folder, None) for name, folder in known.items()}
    sets = {name: linked(known, arguments) for name, arguments in LINKS}
    links = {key: {name: Lines(known[name], on) for name, on in crates.items()} for key, crates in sets.items()}
    development = {name for name, folder in known.items() if folder.parent.name == "dev"}
    python = {"anabranch-python"}
    product = set(known) - development - python

    if by_crate:
        print(f"{'package':26} {'lines':>7} {'code':>7} {'tests':>7} {'default':>8} {'host':>7}")
        for name in sorted(known):
            of = [links[key][name].product if name in links[key] else "-" for key in links]
            here = counted[name]
            print(f"{name:26} {here.product:7} {here.code:7} {here.tests:7} {of[0]:>8} {of[1]:>7}")
        print()

    def total(names: set[str], what: str) -> int:
        return sum(getattr(counted[name], what) for name in names)

    folders = {known[name] / "tests" for name in known}
    tests = total(set(known), "tests") + sum(rust_lines(folder) for folder in folders)
    rows = [("packages", f"{len(known)}, of them {len(development)} in dev")]
    for what, names in (("product", product), ("python", python), ("dev", development)):
        rows.append((f"Rust lines, {what}", f"{total(names, 'product'):,} (code {total(names, 'code'):,})"))
    rows.append(("Rust lines, tests", f"{tests:,}"))
    for key, of in links.items():
        all_lines, code = sum(each.product for each in of.values()), sum(each.code for each in of.values())
        rows.append((f"linked by the facade, {key}", f"{all_lines:,} (code {code:,}), {len(of)} crates"))
    text = [line for name in product for line in counted[name].text]
    rows.append(("error variants, product", f"{variants(text)}"))
    hidden = [i for i, line in enumerate(text) if line.strip() == "#[doc(hidden)]"]
    rows.append(("doc(hidden) modules, product", f"{sum(bool(MODULE.match(text[i + 1])) for i in hidden)}"))
    for name, value in rows:
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
