"""Ranks that call NCCL as vLLM's pynccl_wrapper.py does: a library by its path, and functions with the types that ctypes is given.

python3 program.py processes|threads LIBRARY RANKS
"""

import ctypes
import multiprocessing
import multiprocessing.connection
import queue
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_void_p

FLOAT, SUM, MAX = 7, 0, 2
SYMMETRIC = 1
COUNT = 301
# Only a hang reaches it, or a busy machine that compiles kernels.
SECONDS = 300


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


OPERATION = [c_int, c_void_p, c_void_p]
REDUCTION = [c_void_p, c_void_p, c_size_t, c_int, c_int]
MESSAGE = [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
# The types of the wrapper: pointers, communicators, windows and streams are void pointers.
FUNCTIONS = {
    "ncclGetErrorString": [c_int],
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclAllReduce": REDUCTION + [c_void_p, c_void_p],
    "ncclReduce": REDUCTION + OPERATION,
    "ncclAllGather": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p],
    "ncclReduceScatter": REDUCTION + [c_void_p, c_void_p],
    "ncclSend": MESSAGE,
    "ncclRecv": MESSAGE,
    "ncclBroadcast": [c_void_p, c_void_p, c_size_t, c_int] + OPERATION,
    "ncclCommDestroy": [c_void_p],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int],
    "ncclCommWindowDeregister": [c_void_p, c_void_p],
    "ncclMemAlloc": [POINTER(c_void_p), c_size_t],
    "ncclMemFree": [c_void_p],
    # In place of CUDA's.
    "anabranchHostSetDevice": [c_int],
    "anabranchHostStreamCreate": [POINTER(c_void_p)],
    "anabranchHostStreamSynchronize": [c_void_p],
    "anabranchHostBeginCapture": [c_void_p],
    "anabranchHostEndCapture": [c_void_p, POINTER(c_int)],
    "anabranchHostGraphLaunch": [c_int, c_void_p],
}


class Nccl:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        self.functions = {}
        for name, arguments in FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = c_char_p if name == "ncclGetErrorString" else c_int
            self.functions[name] = function

    def __call__(self, name, *arguments):
        code = self.functions[name](*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}: {self.text(code)}")

    def text(self, code):
        return self.functions["ncclGetErrorString"](code).decode("utf-8")


def expect(what, found, wanted):
    if list(found) != list(wanted):
        raise RuntimeError(f"{what}: {list(found)[:8]}..., wanted {list(wanted)[:8]}...")


def fails(text, call):
    try:
        call()
    except RuntimeError as error:
        if text in str(error):
            return
        raise
    raise RuntimeError(f"no error: {text}")


def given(rank, count):
    """Small whole numbers, so that sums are exact in any order."""
    return [float((rank * 7 + index * 3 + index // 5) % 11) for index in range(count)]


def floats(values):
    return (c_float * len(values))(*values)


def zeros(count):
    return (c_float * count)()


class Rank:
    def __init__(self, nccl, size, number, ids):
        self.nccl, self.size, self.number = nccl, size, number
        nccl("anabranchHostSetDevice", number)
        # Ranks pass the bytes of the id on.
        if number == 0:
            unique_id = UniqueId()
            nccl("ncclGetUniqueId", byref(unique_id))
            for _ in range(size - 1):
                ids.put(bytes(unique_id))
        else:
            unique_id = UniqueId.from_buffer_copy(ids.get(timeout=SECONDS))
        self.comm, self.stream = c_void_p(), c_void_p()
        nccl("ncclCommInitRank", byref(self.comm), size, unique_id, number)
        nccl("anabranchHostStreamCreate", byref(self.stream))

    def call(self, name, *arguments):
        """The communicator and the stream are the last arguments."""
        self.nccl(name, *arguments, self.comm, self.stream)

    def wait(self):
        self.nccl("anabranchHostStreamSynchronize", self.stream)

    def all(self, count):
        return [given(rank, count) for rank in range(self.size)]

    def sums(self, count):
        return [sum(values) for values in zip(*self.all(count))]


def collectives(rank):
    size, me = rank.size, rank.number
    mine, output = floats(given(me, COUNT)), zeros(COUNT)
    rank.call("ncclAllReduce", mine, output, COUNT, FLOAT, SUM)
    rank.wait()
    expect("all_reduce", output, rank.sums(COUNT))
    rank.call("ncclAllReduce", mine, output, COUNT, FLOAT, MAX)
    rank.wait()
    expect("all_reduce of maxima", output, [max(values) for values in zip(*rank.all(COUNT))])
    for root in range(size):
        output = zeros(COUNT)
        rank.call("ncclReduce", mine, output, COUNT, FLOAT, SUM, root)
        rank.wait()
        expect("reduce", output, rank.sums(COUNT) if me == root else zeros(COUNT))
        rank.call("ncclBroadcast", mine, output, COUNT, FLOAT, root)
        rank.wait()
        expect("broadcast", output, given(root, COUNT))
    gathered = zeros(size * COUNT)
    rank.call("ncclAllGather", mine, gathered, COUNT, FLOAT)
    rank.wait()
    expect("all_gather", gathered, sum(rank.all(COUNT), []))
    parts, output = floats(given(me, size * COUNT)), zeros(COUNT)
    rank.call("ncclReduceScatter", parts, output, COUNT, FLOAT, SUM)
    rank.wait()
    expect("reduce_scatter", output, rank.sums(size * COUNT)[me * COUNT : (me + 1) * COUNT])


def groups(rank):
    """vLLM's all_gatherv and reduce_scatterv are groups of broadcasts and of reductions, whose counts differ."""
    size, me = rank.size, rank.number
    counts = [COUNT + 7 * other for other in range(size)]
    starts = [sum(counts[:other]) for other in range(size)]
    mine, gathered = floats(given(me, counts[me])), zeros(sum(counts))
    rank.nccl("ncclGroupStart")
    for root, (start, count) in enumerate(zip(starts, counts)):
        target = ctypes.addressof(gathered) + 4 * start
        rank.call("ncclBroadcast", mine, target, count, FLOAT, root)
    rank.nccl("ncclGroupEnd")
    rank.wait()
    expect("all_gatherv", gathered, sum((given(other, counts[other]) for other in range(size)), []))
    parts, output = floats(given(me, sum(counts))), zeros(counts[me])
    rank.nccl("ncclGroupStart")
    for root, (start, count) in enumerate(zip(starts, counts)):
        source = ctypes.addressof(parts) + 4 * start
        rank.call("ncclReduce", source, output, count, FLOAT, SUM, root)
    rank.nccl("ncclGroupEnd")
    rank.wait()
    expect("reduce_scatterv", output, rank.sums(sum(counts))[starts[me] :][: counts[me]])
    sent = [floats(given(me, COUNT + other)) for other in range(size)]
    received = [zeros(COUNT + me) for _ in range(size)]
    rank.nccl("ncclGroupStart")
    for other in range(size):
        rank.call("ncclSend", sent[other], COUNT + other, FLOAT, other)
        rank.call("ncclRecv", received[other], COUNT + me, FLOAT, other)
    rank.nccl("ncclGroupEnd")
    rank.wait()
    for other in range(size):
        expect(f"the message of rank {other}", received[other], given(other, COUNT + me))
    # Without a group, as between the stages of a pipeline.
    token = floats([41.0])
    if me > 0:
        rank.call("ncclRecv", token, 1, FLOAT, me - 1)
    if me + 1 < size:
        rank.call("ncclSend", token, 1, FLOAT, me + 1)
    rank.wait()
    expect("the pipeline's token", token, [41.0])


def graphs(rank):
    mine, output, graph = zeros(COUNT), zeros(COUNT), c_int(-1)
    # A captured call loads no kernels on the host runtime.
    rank.call("ncclAllReduce", mine, output, COUNT, FLOAT, SUM)
    rank.wait()
    rank.nccl("anabranchHostBeginCapture", rank.stream)
    rank.call("ncclAllReduce", mine, output, COUNT, FLOAT, SUM)
    rank.nccl("anabranchHostEndCapture", rank.stream, byref(graph))
    for step in range(3):
        mine[:] = [value + step for value in given(rank.number, COUNT)]
        rank.nccl("anabranchHostGraphLaunch", graph, rank.stream)
        rank.wait()
        expect("a replayed all_reduce", output, [value + step * rank.size for value in rank.sums(COUNT)])


def windows(rank):
    memory, window = c_void_p(), c_void_p()
    rank.nccl("ncclMemAlloc", byref(memory), 8 * COUNT)
    rank.nccl("ncclCommWindowRegister", rank.comm, memory, 8 * COUNT, byref(window), SYMMETRIC)
    if not window.value:
        raise RuntimeError("memory of ncclMemAlloc is not shared")
    both = (c_float * (2 * COUNT)).from_address(memory.value)
    both[:COUNT] = given(rank.number, COUNT)
    rank.call("ncclAllReduce", memory, memory.value + 4 * COUNT, COUNT, FLOAT, SUM)
    rank.wait()
    expect("all_reduce in a window", both[COUNT:], rank.sums(COUNT))
    rank.nccl("ncclCommWindowDeregister", rank.comm, window)
    rank.nccl("ncclMemFree", memory)


def errors(rank):
    value = floats([1.0])
    fails("ncclSend: 4: invalid argument", lambda: rank.call("ncclSend", value, 1, FLOAT, rank.size))
    fails("ncclAllReduce: 4: invalid argument", lambda: rank.call("ncclAllReduce", None, value, 1, FLOAT, SUM))
    fails("ncclGroupEnd: 5: invalid usage", lambda: rank.nccl("ncclGroupEnd"))
    # The checks of this file, too.
    fails("two numbers", lambda: expect("two numbers", [1.0, 2.0], [1.0, 3.0]))


def work(path, size, number, ids):
    nccl, version = Nccl(path), c_int()
    nccl("ncclGetVersion", byref(version))
    # vLLM splits the decimal digits, and uses windows from 2.27.3 on.
    if version.value < 22703:
        raise RuntimeError(f"the version is {version.value}")
    rank = Rank(nccl, size, number, ids)
    for part in (collectives, groups, graphs, windows, errors):
        part(rank)
    nccl("ncclCommDestroy", rank.comm)
    # One write, so that lines of several ranks do not mix.
    sys.stdout.write(f"rank {number} of {size} passed\n")
    sys.stdout.flush()


def on_processes(path, size):
    context = multiprocessing.get_context("spawn")
    ids = context.Queue()
    ranks = [context.Process(target=work, args=(path, size, number, ids)) for number in range(size)]
    for rank in ranks:
        rank.start()
    running = list(ranks)
    # A rank that fails leaves the others in calls that wait for it.
    while running and not any(rank.exitcode for rank in ranks):
        multiprocessing.connection.wait([rank.sentinel for rank in running])
        running = [rank for rank in running if rank.exitcode is None]
    for rank in running:
        rank.kill()
    return all(rank.exitcode == 0 for rank in ranks)


def on_threads(path, size):
    ids, passed = queue.Queue(), []

    def run(number):
        work(path, size, number, ids)
        passed.append(number)

    ranks = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return len(passed) == size


if __name__ == "__main__":
    kind, library, number_of_ranks = sys.argv[1:]
    run_ranks = {"processes": on_processes, "threads": on_threads}[kind]
    sys.exit(0 if run_ranks(library, int(number_of_ranks)) else 1)
