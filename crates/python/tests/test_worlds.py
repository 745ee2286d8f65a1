"""Joining, leaving, and what goes wrong between."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import anabranch
import numpy
import pytest

RANK_PROGRAM = """
import json, numpy, anabranch
with anabranch.init(set=["heap.bytes=64 MiB"]) as world:
    comm = world.communicator()
    x = numpy.full(1000, world.rank + 1, numpy.float32)
    comm.all_reduce(x).join()
    print(json.dumps([world.rank, world.size, world.local_rank, float(x[0])]), flush=True)
"""


def lines(process):
    """What ranks printed, each as JSON behind the launcher's prefix."""
    found = [line[line.index("[") :] for line in process.stdout.splitlines() if "[" in line]
    return [json.loads(text[text.index("]") + 1 :] if text.startswith("[rank") else text) for text in found]


def test_ranks_as_processes(run_ranks):
    process = run_ranks(RANK_PROGRAM, 3)
    assert process.returncode == 0, process.stderr
    assert sorted(lines(process)) == [[rank, 3, rank, 6.0] for rank in range(3)]


STORE = """
import os, pathlib, signal, sys, time
import anabranch, numpy

class FileStore:
    def __init__(self, folder): self.folder = pathlib.Path(folder)
    def set(self, key, value):
        path = self.folder / key.replace("/", "_")
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").rename(path)
    def get(self, key):
        path = self.folder / key.replace("/", "_")
        while not path.exists(): time.sleep(0.01)
        return path.read_bytes()

rank, size = int(sys.argv[2]), int(sys.argv[3])
settings = {"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.operation": "10 s"}
world = anabranch.init(settings, store=FileStore(sys.argv[1]), rank=rank, world_size=size)
"""


def run_with_store(tmp_path, program, size):
    """Runs a program on ranks that a folder brings together; returns each rank's exit status and output."""
    path = tmp_path / "program.py"
    path.write_text(STORE + program)
    start = lambda rank: subprocess.Popen(
        [sys.executable, str(path), str(tmp_path), str(rank), str(size)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ranks = [start(rank) for rank in range(size)]
    return [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks]


def test_a_store_brings_ranks_together(tmp_path):
    program = """
assert world.local_rank == rank
x = numpy.full(10, rank, numpy.int64)
world.communicator().all_reduce(x, "max").join()
assert x[0] == 1
assert world.exchange(bytes([rank])) == [bytes([0]), bytes([1])]
world.barrier()
world.leave()
again = anabranch.init(settings, store=FileStore(sys.argv[1]), rank=rank, world_size=size)
again.barrier()
again.leave()
"""
    for output, status in run_with_store(tmp_path, program, 2):
        assert status == 0, output


def test_a_killed_rank_is_named_by_all_others(tmp_path):
    program = """
comm = world.communicator()
x = numpy.ones(1000, numpy.float32)
start = time.monotonic()
try:
    for _ in range(1000):
        # The others may notice the death while they still wait for the first.
        comm.all_reduce(x).join()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
except anabranch.PeerError as error:
    # The other survivor may have ended by now, and been noticed too.
    assert "rank 1" in str(error) and error.ranks, (error.ranks, str(error))
    assert time.monotonic() - start < 11
    print("named")
"""
    outcomes = run_with_store(tmp_path, program, 3)
    assert [status for _, status in outcomes] == [0, -signal.SIGKILL, 0], outcomes
    assert all("named" in outcomes[rank][0] for rank in (0, 2))


def test_an_exception_ends_the_other_ranks(settings):
    def work(world):
        comm = world.communicator()
        if world.rank == 1:
            raise KeyError("a rank's own mistake")
        comm.all_reduce(numpy.ones(4, numpy.float32)).join()

    start = time.monotonic()
    with pytest.raises(KeyError, match="a rank's own mistake"):
        anabranch.spawn_threads(work, 3, settings)
    assert time.monotonic() - start < 20


def test_the_first_cause_is_raised_with_its_rank(settings):
    def work(world):
        comm = world.communicator()
        x = numpy.ones(4, numpy.float32)
        if world.rank == 2:
            raise LookupError("the cause")
        try:
            comm.all_reduce(x).join()
        except anabranch.PeerError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(LookupError, match="the cause") as failure:
        anabranch.spawn_threads(work, 3, settings)
    assert sys.version_info < (3, 11) or failure.value.__notes__ == ["raised on rank 2 of 3"]


def test_tensors_are_let_go_of(settings):
    """Also those of calls that nobody joined, and those of a world that failed."""
    kept = []

    def work(world, fails):
        x = numpy.ones(1000, numpy.float32)
        kept.append(weakref.ref(x))
        world.communicator().all_reduce(x)
        if fails:
            raise LookupError("a failure")

    anabranch.spawn_threads(lambda world: work(world, False), 2, settings)
    with pytest.raises(LookupError):
        anabranch.spawn_threads(lambda world: work(world, True), 2, settings)
    gc.collect()
    assert [reference() is None for reference in kept] == [True] * 4


def test_a_handler_of_the_log_that_raises_hides_nothing(settings, monkeypatch):
    import logging

    def refuse(record):
        raise ValueError("a handler's own mistake")

    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    logger = logging.getLogger("anabranch.shmem")
    logger.addFilter(refuse)
    try:
        with pytest.raises(LookupError):
            anabranch.spawn_threads(lambda world: {}[world.rank], 2, settings)
    finally:
        logger.removeFilter(refuse)


def test_a_wait_with_a_timeout_says_that_the_work_goes_on(settings):
    def work(world):
        comm = world.communicator()
        if world.rank == 0:
            waiting = comm.barrier()
            with pytest.raises(anabranch.WaitTimeout):
                waiting.join(timeout=0.2)
            waiting.join()
        else:
            time.sleep(1)
            comm.barrier().join()

    anabranch.spawn_threads(work, 2, settings)


def test_a_rank_that_does_not_come_is_named(settings):
    settings["deadline.operation"] = "500 ms"

    def work(world):
        comm = world.communicator()
        if world.rank == 0:
            comm.all_reduce(numpy.ones(4, numpy.float32)).join()
        else:
            time.sleep(2)
            world.check()

    with pytest.raises(anabranch.PeerError, match="rank 1") as failure:
        anabranch.spawn_threads(work, 2, settings)
    assert failure.value.kind == "peer" and failure.value.exit_code == 5


def test_other_threads_run_while_a_rank_waits(settings):
    """A wait must not hold the interpreter's lock."""

    def work(world):
        comm = world.communicator()
        comm.barrier().join()
        if world.rank == 0:
            counted = 0
            done = threading.Event()

            def count():
                nonlocal counted
                while not done.is_set():
                    counted += 1

            thread = threading.Thread(target=count)
            thread.start()
            comm.barrier().join()
            done.set()
            thread.join()
            return counted
        time.sleep(0.5)
        comm.barrier().join()
        return None

    counted, _ = anabranch.spawn_threads(work, 2, settings)
    assert counted > 10_000


JOINING = """
import anabranch

class OneRank:
    def set(self, key, value): pass

world = anabranch.init({"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.rendezvous": "60 s"}, store=OneRank(), rank=0, world_size=2)
"""


THREADS = """
import time, anabranch

def work(world):
    comm = world.communicator()
    comm.barrier().join()
    if world.rank == 0:
        while True:
            comm.barrier().join()
    while True:
        world.check()
        time.sleep(0.1)

anabranch.spawn_threads(work, 2, {"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.operation": "60 s"})
"""


# Rank 1, a process of its own, never dispatches.
CHECKING = """
import os, pathlib, signal, tempfile, time

folder = pathlib.Path(tempfile.mkdtemp())
rank = 0 if os.fork() else 1
if rank == 1:
    signal.alarm(30)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

import anabranch, numpy

class Files:
    def set(self, key, value):
        new = folder / f"new {rank}"
        new.write_bytes(value)
        new.rename(folder / key.replace("/", " "))

    def get(self, key):
        path = folder / key.replace("/", " ")
        while not path.exists():
            time.sleep(0.01)
        return path.read_bytes()

settings = {"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.operation": "60 s"}
world = anabranch.init(settings, store=Files(), rank=rank, world_size=2)
config = anabranch.EpConfig(hidden=16, experts=2, top_k=1, max_tokens=2, dispatch_dtype="float32", combine_dtype="float32")
ep = world.expert_parallel(config)
if rank == 1:
    signal.pause()
ones = lambda columns, dtype: numpy.ones((1, columns), dtype)
sent = ep.dispatch(ones(16, numpy.float32), ones(1, numpy.int32), ones(1, numpy.float32))
ep.check_ids()
"""


@pytest.mark.parametrize("program", [JOINING, THREADS, CHECKING], ids=["joining", "threads", "checking"])
def test_ctrl_c_ends_a_wait(program):
    # A shell's background jobs, and what they start, ignore the signal.
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(4)
    assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - start < 10
    assert "KeyboardInterrupt" in errors and process.returncode != 0


def test_a_forked_process_is_refused_and_ends(settings):
    def work(world):
        comm = world.communicator()
        x = numpy.ones(4, numpy.float32)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                comm.all_reduce(x)
                os.write(writer, b"no error")
            except anabranch.UsageError as error:
                os.write(writer, str(error).encode())
            finally:
                world.leave()
                del comm, world
                gc.collect()
                os.write(writer, b"; left")
                os._exit(0)
        os.waitpid(child, 0)
        world.check()
        text = os.read(reader, 1000).decode()
        comm.all_reduce(x).join()
        return text

    (text,) = anabranch.spawn_threads(work, 1, settings)
    assert "forked" in text and str(os.getpid()) in text and text.endswith("; left")


def test_after_leaving_calls_are_refused(settings):
    kept = []

    def work(world):
        kept.append((world, world.communicator()))

    anabranch.spawn_threads(work, 1, settings)
    world, comm = kept[0]
    with pytest.raises(anabranch.Error):
        comm.all_reduce(numpy.ones(4, numpy.float32))
    with pytest.raises(anabranch.Error):
        world.barrier()


def test_a_hundred_worlds_leave_nothing(settings):
    def work(world):
        comm = world.communicator()
        memory = world.empty(1000, "float32")
        comm.all_reduce(memory).join()

    def resources():
        gc.collect()
        time.sleep(0.2)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    settings["heap.bytes"] = "16 MiB"
    for _ in range(5):
        anabranch.spawn_threads(work, 2, settings)
    before = resources()
    for _ in range(100):
        anabranch.spawn_threads(work, 2, settings)
    after = resources()
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)


def test_settings():
    config = anabranch.Config.load(set=["heap.bytes=64 MiB"], environment=False)
    assert config["heap.bytes"] == "64 MiB" and config["kernels.arch"] is None
    assert ("heap.bytes", '"64 MiB"') in [(key, value) for key, value, _ in config.fields()]
    with pytest.raises(KeyError):
        config["heap.byte"]
    with pytest.raises(anabranch.ConfigError, match="heap.bytes"):
        anabranch.Config.load(set=["heap.byte=1"])
    with pytest.raises(anabranch.ConfigError, match="12 lightyears"):
        anabranch.init({"deadline": {"operation": "12 lightyears"}})
    with pytest.raises(anabranch.UsageError, match="store"):
        anabranch.init({"device.runtime": "host"}, rank=1)


def test_no_launcher_is_an_error_of_the_environment():
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    program = "import anabranch\ntry: anabranch.init()\nexcept anabranch.SetupError as error: print(error)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert "RANK" in result.stdout, result.stderr


def test_the_command():
    def run(*words):
        return subprocess.run([sys.executable, "-m", "anabranch", *words], capture_output=True, text=True, timeout=300)

    assert run("--version").stdout.startswith("anabranch ")
    assert run("config", "show", "--set", "heap.bytes=12 MiB").returncode == 0
    assert run("config", "show", "--set", "heap.byte=12 MiB").returncode == 2
    doctor = run("doctor", "--set", "device.runtime=host")
    assert f"numpy: {numpy.__version__}" in doctor.stdout, doctor.stdout
    bench = run("bench", "ccl", "--ranks", "2", "--sizes", "1K", "--set", "device.runtime=host")
    assert bench.returncode == 0 and "all_reduce" in bench.stdout, bench.stderr


def test_memory_is_shared_without_a_copy(settings):
    def work(world):
        memory = world.empty((4, 3), "float32")
        array = numpy.from_dlpack(memory)
        array[:] = numpy.arange(12).reshape(4, 3)
        assert array.ctypes.data == memory.data_ptr and memory.nbytes == 48 and memory.is_symmetric
        assert (numpy.asarray(memory) == array).all(), "by the array interface"
        part = memory.part(1, 3)
        assert part.shape == (2, 3) and (numpy.from_dlpack(part) == array[1:3]).all()
        with pytest.raises(anabranch.UsageError, match="not within"):
            memory.part(3, 9)
        comm = world.communicator()
        comm.all_reduce(part).join()
        return array.copy(), memory

    base = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
    expected = base.copy()
    expected[1:3] *= 2
    for array, _ in anabranch.spawn_threads(work, 2, settings):
        assert (array == expected).all()

    def found_again(world):
        memory = world.empty((4, 3), "float32", tag="weights")
        array = numpy.from_dlpack(memory)
        array[:] = world.rank + 1
        assert world.locate(array[2:]) == ("weights", 24, [0, 1])
        part = world.symmetric(array[2:])
        assert part.is_symmetric and part.shape == (2, 3) and part.data_ptr == memory.data_ptr + 24
        world.communicator().all_reduce(part).join()
        assert (array[2:] == 3).all() and (array[:2] == world.rank + 1).all()
        other = numpy.zeros(3, numpy.float32)
        assert world.locate(other) is None
        with pytest.raises(anabranch.UsageError, match="outside the heap"):
            world.symmetric(other)
        with pytest.raises(anabranch.UsageError, match='in the allocation "weights"'):
            world.symmetric((memory.data_ptr, (13,), "float32"))

    anabranch.spawn_threads(found_again, 2, settings)

    # bf16 has no word in the array interface.
    def no_word(world):
        memory = world.empty(8, "bfloat16")
        with pytest.raises(AttributeError, match="DLPack"):
            memory.__array_interface__
        assert memory.dtype == "bf16" and memory.__dlpack_device__() == (1, 0)

    anabranch.spawn_threads(no_word, 1, settings)


def test_logs_reach_logging(caplog, settings):
    program = "import logging, anabranch; logging.basicConfig(level='DEBUG')\nanabranch.spawn_threads(lambda world: None, 2, {'device.runtime': 'host', 'heap.bytes': '16 MiB'})"
    environment = {**os.environ, "ANABRANCH_LOG": "debug"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.returncode == 0 and "anabranch." in result.stderr, result.stderr


def test_doctor_names_settings_that_matter():
    from anabranch._doctor import lines

    found = {name: text for _, name, text in lines({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "LD_PRELOAD": "/x/libnccl.so.2"})}
    assert "World.empty" in found["torch's allocator"] and found["LD_PRELOAD"] == "/x/libnccl.so.2"
    assert "torch's allocator" not in {name for _, name, _ in lines({})}
