"""torch's tensors, without torch.distributed."""

import anabranch
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_every_kind_of_element(settings, dtype):
    if dtype == torch.float8_e4m3fn and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch before 2.10 does not share 8-bit floats")

    def work(world):
        x = (torch.arange(64) % 3).to(dtype)
        world.communicator().all_reduce(x, "max").join()
        return x.float().tolist()

    expected = (torch.arange(64) % 3).to(dtype).float().tolist()
    assert anabranch.spawn_threads(work, 2, settings) == (expected, expected)


def test_memory_of_the_heap_is_a_tensor_that_outlives_its_handle(settings):
    """torch frees such a tensor without the interpreter's lock."""

    def work(world):
        comm = world.communicator()
        memory = world.empty((4, 8), torch.bfloat16)
        tensor = torch.from_dlpack(memory)
        tensor.fill_(world.rank + 1)
        comm.all_reduce(memory).join()
        address = memory.data_ptr
        del memory
        assert tensor.data_ptr() == address and (tensor == 3).all()
        del tensor
        return True

    for _ in range(3):
        assert anabranch.spawn_threads(work, 2, settings) == (True, True)


def test_views_are_refused_and_addresses_taken(settings):
    def work(world):
        comm = world.communicator()
        with pytest.raises(anabranch.UsageError, match="tensor is not contiguous"):
            comm.all_reduce(torch.zeros(4, 4).t())
        gradient = torch.zeros(4, requires_grad=True)
        comm.all_reduce((gradient.data_ptr(), (4,), gradient.dtype)).join()

    anabranch.spawn_threads(work, 2, settings)
