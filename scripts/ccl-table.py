#!/usr/bin/env python3
"""Markdown tables from the JSON lines of `anabranch bench ccl --json --compare nccl,nccl-symmetric`.

    scripts/ccl-table.py BENCH.jsonl [TORCH.jsonl]

TORCH.jsonl is what scripts/torch-symm-mem.py printed; its faster form stands beside all_reduce.
"""
import json
import sys


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.startswith("{")]


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            value = count / unit
            return f"{value:.0f} {name}" if value == int(value) else f"{value:.1f} {name}"
    return f"{count} B"


def number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    measured = rows(sys.argv[1])
    torch = {}
    for row in rows(sys.argv[2]) if len(sys.argv) == 3 else []:
        torch[row["bytes"]] = min(torch.get(row["bytes"], float("inf")), row["us_median"])
    for op in dict.fromkeys(row["op"] for row in measured):
        beside = op == "all_reduce" and torch
        print(f"\n### {op}\n")
        print("| bytes | us | p99 | how, blocks | GB/s bus | of the link | NCCL | NCCL windows |"
              + (" torch |" if beside else "") + " faster by |")
        print("|---|---|---|---|---|---|---|---|" + ("---|" if beside else "") + "---|")
        for row in sorted((row for row in measured if row["op"] == op), key=lambda row: row["bytes"]):
            ours = row["us_median"]
            peers = [row.get("nccl_us"), row.get("nccl_sym_us"), torch.get(row["bytes"]) if beside else None]
            best = min((peer for peer in peers if peer), default=None)
            share = row.get("link_fraction")
            cells = [size(row["bytes"]), number(ours), number(row["us_p99"]), f"{row['algorithm']}, {row['blocks']}",
                     f"{row['busbw']:.0f}" if row["busbw"] >= 1 else "-", f"{share:.0%}" if share else "-",
                     number(peers[0]), number(peers[1])]
            cells += [number(peers[2])] if beside else []
            cells += [f"{best / ours:.2f}" if best else "-"]
            print("| " + " | ".join(cells) + " |")
    if not all(row["verified"] for row in measured):
        sys.exit("some results were not right; see `verified`")


if __name__ == "__main__":
    main()
