"""Pictures of a run."""

import json
import os

import anabranch
import pytest

PROGRAM = """
import sys, numpy, anabranch
with anabranch.init(set=["heap.bytes=64 MiB"]) as world:
    comm = world.communicator()
    with anabranch.profile(sys.argv[0] + ".json"):
        comm.all_reduce(numpy.ones(1000, numpy.float32)).join()
"""


def spans(picture, kind):
    return [event for event in picture["traceEvents"] if event.get("cat") == kind]


def test_ranks_write_one_picture(run_ranks, tmp_path):
    process = run_ranks(PROGRAM, 3)
    assert process.returncode == 0, process.stderr
    picture = json.loads((tmp_path / "program.py.json").read_text())
    for kind in ("call", "device"):
        sums = [event for event in spans(picture, kind) if "all_reduce" in (event["name"], event["args"].get("call"))]
        assert sorted(event["pid"] for event in sums) == [0, 1, 2]
        assert all(event["args"]["bytes"] == 4000 for event in sums)


def test_exception_in_the_block_leaves_no_file(settings, tmp_path):
    path = tmp_path / "picture.json"

    def work(world):
        with pytest.raises(ZeroDivisionError):
            with world.profile(path):
                1 // 0
        assert not path.exists()
        world.barrier()
        # The device can be traced again.
        with anabranch.profile(os.fspath(path), world):
            world.communicator().barrier().join()

    anabranch.spawn_threads(work, 2, settings)
    assert spans(json.loads(path.read_text()), "device")


def test_process_without_a_world_is_refused(tmp_path):
    with pytest.raises(anabranch.UsageError, match="in 0 worlds"):
        anabranch.profile(tmp_path / "picture.json")
