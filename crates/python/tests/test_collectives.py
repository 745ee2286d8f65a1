"""Every collective, beside numpy's result."""

import threading

import anabranch
import numpy
import pytest

RANKS = 4


def on_ranks(work, settings, ranks=RANKS):
    return anabranch.spawn_threads(work, ranks, settings)


def values(rank, *shape, dtype=numpy.float32):
    """Small integers, so that sums are exact in every type."""
    count = int(numpy.prod(shape))
    return ((numpy.arange(count) * 7 + rank * 3) % 11).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "product", "min", "max"])
def test_all_reduce(settings, dtype, op):
    def work(world):
        comm = world.communicator()
        x = values(world.rank, 100, dtype=dtype) % 3
        comm.all_reduce(x, op).join()
        return x

    reduce = {"sum": numpy.add, "product": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum}[op]
    expected = reduce.reduce([values(rank, 100, dtype=dtype) % 3 for rank in range(RANKS)]).astype(dtype)
    for result in on_ranks(work, settings):
        assert (result == expected).all()


def test_all_reduce_into_another_tensor_and_in_the_heap(settings):
    def work(world):
        comm = world.communicator()
        x, out = values(world.rank, 3, 5), numpy.zeros((3, 5), numpy.float32)
        comm.all_reduce(x, out=out).join()
        assert (x == values(world.rank, 3, 5)).all(), "the input is kept"
        heap = world.empty((3, 5), "float32")
        array = numpy.from_dlpack(heap)
        array[:] = x
        comm.all_reduce(heap).join()
        assert (array == out).all()
        return out

    expected = sum(values(rank, 3, 5) for rank in range(RANKS))
    for result in on_ranks(work, settings):
        assert (result == expected).all()


def test_rms_norm_after_a_sum(settings):
    def work(world):
        comm = world.communicator()
        x, residual = values(world.rank, 6, 64), values(9, 6, 64)
        weight, out, kept = values(2, 64) / 4, numpy.zeros((6, 64), numpy.float32), numpy.zeros((6, 64), numpy.float32)
        comm.all_reduce_rms_norm(x, weight, out, epsilon=0.5, residual=residual, kept=kept).join()
        assert (residual == values(9, 6, 64)).all(), "the residual is kept"
        codes, scales = numpy.zeros((6, 64), numpy.uint8), numpy.zeros((2, 8), numpy.float32)
        x = values(world.rank, 6, 64)
        fp8 = (codes.ctypes.data, codes.shape, "float8_e4m3fn")
        comm.all_reduce_rms_norm(x, weight, fp8, epsilon=0.5, residual=residual, scales=scales, group_size=32, scale_stride=8).join()
        assert (residual == kept).all(), "in place of the residual"
        for arguments, words in [
            ({"scale": scales, "scales": scales}, "not both"),
            ({"epsilon": -1.0}, "epsilon is -1"),
            ({"residual": residual[:3]}, r"residual has the shape \[3, 64\]; the input's \[6, 64\] is needed"),
            ({"residual": residual.ravel()[:192]}, "the residual has 192 elements; it must have 384"),
            ({"scales": numpy.zeros((6, 1), numpy.float32), "group_size": 32}, r"\[6, 2\] is needed"),
        ]:
            with pytest.raises(anabranch.UsageError, match=words):
                comm.all_reduce_rms_norm(x, weight, out, **arguments)
        with pytest.raises(anabranch.UsageError, match="must be the weight's 64 elements"):
            comm.all_reduce_rms_norm(x.reshape(12, 32), weight, out)
        return kept, out, scales[:, :6].T

    total = sum(values(rank, 6, 64) for rank in range(RANKS)) + values(9, 6, 64)
    expected = total / numpy.sqrt((total**2).mean(1, keepdims=True) + numpy.float32(0.5)) * (values(2, 64) / 4)
    for kept, out, scales in on_ranks(work, settings):
        assert (kept == total).all()
        numpy.testing.assert_allclose(out, expected, rtol=1e-6)
        numpy.testing.assert_allclose(scales, abs(expected).reshape(6, 2, 32).max(2) / 448, rtol=1e-6)


def test_average_and_scaled_sum(settings):
    def work(world):
        comm = world.communicator()
        average, scaled = values(world.rank, 8), values(world.rank, 8)
        comm.all_reduce(average, "avg").join()
        comm.all_reduce(scaled, ("premul_sum", 0.5)).join()
        by_tensor, factor = values(world.rank, 8), numpy.array([0.5], numpy.float32)
        comm.all_reduce(by_tensor, ("premul_sum", factor)).join()
        assert (by_tensor == scaled).all()
        part = numpy.empty(8 // RANKS, numpy.float32)
        comm.reduce_scatter_tensor(part, values(world.rank, 8), ("premul_sum", factor)).join()
        assert (part == scaled.reshape(RANKS, -1)[world.rank]).all()
        for wrong, message in [(numpy.zeros(2, numpy.float32), "has 2 elements"), (numpy.zeros(1), "allowed is the tensors' f32")]:
            with pytest.raises(anabranch.UsageError, match=message):
                comm.all_reduce(by_tensor, ("premul_sum", wrong))
        whole = numpy.array([-7 - world.rank, 7 + world.rank], numpy.int64)
        rounded = whole.copy()
        comm.all_reduce(rounded, "avg").join()
        mean = (7 * RANKS + sum(range(RANKS))) // RANKS
        assert (rounded == [-mean, mean]).all()
        comm.all_reduce(whole, ("premul_sum", -3)).join()
        with pytest.raises(anabranch.UsageError, match="whole number"):
            comm.all_reduce(whole, ("premul_sum", 0.5))
        return average, scaled

    total = sum(values(rank, 8) for rank in range(RANKS))
    for average, scaled in on_ranks(work, settings):
        assert (average == total / RANKS).all() and (scaled == total * 0.5).all()


def test_gathers_and_scatters(settings):
    def work(world):
        comm = world.communicator()
        own = values(world.rank, 2, 3)
        everything = numpy.zeros((2 * RANKS, 3), numpy.float32)
        comm.all_gather_into_tensor(everything, own).join()

        counts = [rank + 1 for rank in range(RANKS)]
        uneven = numpy.zeros((sum(counts), 3), numpy.float32)
        comm.all_gather_into_tensor(uneven, values(world.rank, counts[world.rank], 3), counts=counts).join()

        part = numpy.zeros((2, 3), numpy.float32)
        comm.reduce_scatter_tensor(part, everything).join()
        uneven_part = numpy.zeros((counts[world.rank], 3), numpy.float32)
        comm.reduce_scatter_tensor(uneven_part, uneven, counts=counts).join()
        first = sum(counts[:world.rank])
        assert (uneven_part == RANKS * uneven[first:first + counts[world.rank]]).all()
        with pytest.raises(anabranch.UsageError, match="this rank's count"):
            comm.reduce_scatter_tensor(part, uneven, counts=[5] * 2 + [0] * (RANKS - 2))

        at_one = numpy.zeros((2 * RANKS, 3), numpy.float32) if world.rank == 1 else None
        comm.gather(own, at_one, dst=1).join()
        back = numpy.zeros((2, 3), numpy.float32)
        comm.scatter(back, at_one, src=1).join()
        assert (back == own).all()

        root = own.copy()
        comm.broadcast(root, src=2).join()
        total = numpy.zeros((2, 3), numpy.float32)
        comm.reduce(own, dst=3, out=total).join()
        return everything, uneven, part, root, total

    everything = numpy.concatenate([values(rank, 2, 3) for rank in range(RANKS)])
    uneven = numpy.concatenate([values(rank, rank + 1, 3) for rank in range(RANKS)])
    for rank, result in enumerate(on_ranks(work, settings)):
        assert (result[0] == everything).all() and (result[1] == uneven).all()
        assert (result[2] == everything[2 * rank : 2 * rank + 2] * RANKS).all()
        assert (result[3] == values(2, 2, 3)).all()
        if rank == 3:
            assert (result[4] == sum(values(other, 2, 3) for other in range(RANKS))).all()


def test_all_to_all(settings):
    def work(world):
        comm = world.communicator()
        sent = values(world.rank, 2 * RANKS, 3)
        received = numpy.zeros_like(sent)
        comm.all_to_all_single(received, sent).join()

        to = [(world.rank + other) % 3 for other in range(RANKS)]
        come = [(other + world.rank) % 3 for other in range(RANKS)]
        uneven = numpy.zeros((sum(come), 3), numpy.float32)
        comm.all_to_all_single(uneven, values(world.rank, sum(to), 3), come, to).join()
        return received, uneven

    for rank, (received, uneven) in enumerate(on_ranks(work, settings)):
        sent = [values(other, 2 * RANKS, 3) for other in range(RANKS)]
        assert (received == numpy.concatenate([rows[2 * rank : 2 * rank + 2] for rows in sent])).all()
        parts = []
        for other in range(RANKS):
            to = [(other + peer) % 3 for peer in range(RANKS)]
            rows = values(other, sum(to), 3)
            parts.append(rows[sum(to[:rank]) : sum(to[: rank + 1])])
        assert (uneven == numpy.concatenate(parts)).all()


def test_messages(settings):
    def work(world):
        comm = world.communicator()
        right, left = (world.rank + 1) % RANKS, (world.rank - 1) % RANKS
        received = numpy.zeros(5, numpy.int32)
        comm.batch([("send", values(world.rank, 5, dtype="int32"), right), ("recv", received, left)]).join()
        if world.rank == 0:
            comm.send(values(9, 4), 1).join()
        other = numpy.zeros(4, numpy.float32)
        if world.rank == 1:
            comm.recv(other, 0).join()
        comm.barrier().join()
        return received, other

    for rank, (received, other) in enumerate(on_ranks(work, settings)):
        assert (received == values((rank - 1) % RANKS, 5, dtype="int32")).all()
        assert rank != 1 or (other == values(9, 4)).all()


def test_groups(settings):
    def work(world):
        ranks = [3, 1] if world.rank % 2 else [0, 2]
        comm = world.communicator(ranks)
        assert comm.ranks == ranks and ranks[comm.rank] == world.rank
        x = numpy.full(3, world.rank, numpy.int32)
        comm.all_reduce(x).join()
        return int(x[0])

    assert on_ranks(work, settings) == (2, 4, 2, 4)


def test_work_says_what_it_is(settings):
    def work(world):
        comm = world.communicator()
        x = values(world.rank, 4)
        first = comm.all_reduce(x)
        first.join(timeout=30)
        second = comm.all_reduce(x)
        second.join()
        assert (first.sequence, second.sequence) == (1, 2) and second.poll()
        return first.describe()

    assert all("all_reduce" in text for text in on_ranks(work, settings, 2))


def test_tensors_that_nobody_holds_stay_valid(settings):
    """The result of a call whose tensor was dropped must not land in memory that something else uses."""

    def work(world):
        comm = world.communicator()
        works = [comm.all_reduce(numpy.full(10_000, float(world.rank), numpy.float32)) for _ in range(50)]
        kept = [numpy.zeros(10_000, numpy.float32) for _ in range(50)]
        for each in works:
            each.join()
        return all((array == 0).all() for array in kept)

    assert on_ranks(work, settings, 2) == (True, True)


class OnGpu:
    """A tensor of a library that knows GPUs alone."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}


class AsCopy:
    """A tensor that is shared as a copy, which dies with its capsule."""

    def __dlpack__(self, **options):
        return numpy.zeros(4, numpy.float32).__dlpack__(max_version=(1, 1), copy=True)

    def __dlpack_device__(self):
        return (1, 0)


class Temporary:
    """A tensor whose capsule alone owns the memory."""

    def __dlpack__(self, **options):
        return numpy.full(1000, 2, numpy.float32).__dlpack__(max_version=(1, 1))

    def __dlpack_device__(self):
        return (1, 0)


def test_a_capsule_is_kept_while_its_memory_is_read(settings):
    def work(world):
        out = numpy.zeros(1000, numpy.float32)
        comm = world.communicator()
        for _ in range(20):
            comm.all_reduce(Temporary(), out=out).join()
            assert (out == 4).all()

    anabranch.spawn_threads(work, 2, settings)


def test_other_threads_read_a_communicator_during_a_refused_call(settings):
    """Neither waits for the other's lock."""

    def work(world):
        comm = world.communicator()
        done = threading.Event()

        def read():
            while not done.is_set():
                repr(comm)

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(200):
            with pytest.raises(anabranch.UsageError):
                comm.all_reduce(numpy.zeros(4, numpy.float32), "band")
        done.set()
        thread.join()

    anabranch.spawn_threads(work, 2, settings)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda comm: comm.all_reduce(numpy.zeros((4, 4), numpy.float32)[:, 1]), "tensor is not contiguous"),
        (lambda comm: comm.all_reduce(numpy.zeros(4, numpy.complex64)), "the element type is \"complex64\""),
        (lambda comm: comm.all_reduce(numpy.zeros(4, ">f4")), "big-endian|cannot be shared"),
        (lambda comm: comm.all_reduce(numpy.float32(3)), "tensor is a scalar of numpy"),
        (lambda comm: comm.all_reduce(numpy.frombuffer(bytes(16), numpy.float32)), "tensor is read-only"),
        (lambda comm: comm.all_reduce((0, (4,), "float32")), "tensor has 4 elements and no address"),
        (lambda comm: comm.all_reduce((64, (2**62, 4), "float32")), "more elements than memory can hold"),
        (lambda comm: comm.all_reduce(OnGpu()), "tensor is on a GPU"),
        (lambda comm: comm.all_reduce(AsCopy()), "shared only as a copy|cannot be shared"),
        (
            lambda comm: comm.all_gather_into_tensor(
                numpy.zeros((4, 4), numpy.float32), numpy.zeros((2, 4), numpy.float32), counts=[2**62, 2]
            ),
            "counts has more elements",
        ),
        (lambda comm: comm.all_reduce(numpy.zeros(4, numpy.float32), "median"), "unknown operator 'median'|\"median\""),
        (lambda comm: comm.all_reduce(numpy.zeros(4, numpy.float32), "premul_sum"), "needs its scalar"),
        (lambda comm: comm.all_reduce(numpy.zeros(4, numpy.float32), "band"), "band"),
        (lambda comm: comm.all_reduce("text"), "tensor is of type str"),
        (lambda comm: comm.broadcast(numpy.zeros(4, numpy.float32), src=7), "src is 7; the group has ranks 0 to 1"),
        (lambda comm: comm.all_gather_into_tensor(numpy.zeros(3, numpy.float32), numpy.zeros(2, numpy.float32)), "output"),
        (lambda comm: comm.all_to_all_single(numpy.zeros(2), numpy.zeros(2), [1, 1]), "or neither"),
        (lambda comm: comm.all_reduce(numpy.zeros(4, numpy.float32), stream=1), "one stream a rank"),
    ],
)
def test_wrong_calls_are_refused_before_anything_moves(settings, call, words):
    def work(world):
        comm = world.communicator()
        with pytest.raises(anabranch.UsageError, match=words):
            call(comm)
        # The communicator goes on.
        x = numpy.ones(4, numpy.float32)
        comm.all_reduce(x).join()
        return float(x[0])

    assert on_ranks(work, settings, 2) == (2.0, 2.0)
