"""The world of torch's groups where something fails, and its settings."""

from datetime import timedelta
from types import SimpleNamespace

import anabranch
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


class World:
    """A world that cannot be left."""

    runtime, device = "host", 0

    def check(self):
        pass

    def leave(self):
        raise anabranch.PeerTimeout("rank 1 is late")


def test_a_group_that_cannot_leave_is_gone():
    from anabranch.torch import _world
    from anabranch.torch._collectives import Collectives

    class Group(Collectives):
        drops = 0

        def __init__(self, shared):
            self._shared, self._is_first = shared, True
            shared.groups.append(self)

        def _flush(self):
            pass

        def drop(self):
            self.drops += 1

    shared = _world.Shared(World(), (0, 1), None)
    _world._current = shared
    group = Group(shared)
    with pytest.raises(torch.distributed.DistBackendError, match="rank 1 is late"):
        group.shutdown()
    assert _world._current is None
    group.shutdown()
    assert group.drops == 1 and not shared.groups


def test_an_asynchronous_call_runs_on_the_stream_of_its_group(monkeypatch):
    """What a GPU would be asked to do, in order; the factor of premul_sum lives as long as the call."""
    from anabranch.torch import _collectives, _work

    asked = []
    for name in ("raw_order", "raw_hold"):
        monkeypatch.setattr(_collectives._native, name, lambda _world, *given, name=name: asked.append((name, *given)))
    native = SimpleNamespace(wait_on=lambda stream: asked.append(("wait_on", stream)))
    monkeypatch.setattr(_collectives._native, "raw_call", lambda *given: asked.append(("call", *given[-2:])) or native)

    class Group(_collectives.Collectives):
        _ranks, _calls, _communicator = (0, 1), 0, SimpleNamespace()
        _side = SimpleNamespace(cuda_stream=9)
        _shared = SimpleNamespace(
            is_gpu=True,
            device=torch.device("cpu"),
            current_stream=lambda: 7,
            world=SimpleNamespace(check=lambda: None),
            heap=SimpleNamespace(located=lambda *_: None),
        )

    # Tensors of the CPU stand for those of a GPU.
    allreduce = Group.allreduce.__wrapped__
    options = torch.distributed.AllreduceOptions()
    options.asyncOp = False
    work = allreduce(Group(), [torch.zeros(4)], options)
    work.wait()
    assert asked == [("call", 7, False)], "no event, and nothing to wait for"
    asked.clear()
    options.asyncOp = True
    work = allreduce(Group(), [torch.zeros(4)], options)
    work.wait()
    assert [entry[:2] for entry in asked] == [("raw_order", 9), ("call", 9), ("raw_hold", 9), ("wait_on", 7)]
    assert asked[0] == ("raw_order", 9, 7) and asked[1] == ("call", 9, True)
    assert not asked[2][2]._kept, "memory is released where the current stream waits"

    factor = torch.ones(())
    buffers = _work.Buffers(torch.device("cpu"))
    operator = SimpleNamespace(op=torch.distributed.ReduceOp.PREMUL_SUM, __getstate__=lambda: (None, factor))
    assert _collectives._operator(SimpleNamespace(reduceOp=operator), buffers) == ("premul_sum", factor)
    assert any(kept is factor for kept in buffers._kept)


@pytest.mark.parametrize(("hip", "runtime"), [(None, "nvidia"), ("7.0", "amd")])
def test_groups_and_buffers_of_deep_ep_choose_the_same_runtime(monkeypatch, hip, runtime):
    from anabranch.compat.deep_ep import _world as buffers
    from anabranch.torch import _world as groups

    asked = []
    monkeypatch.setattr(anabranch, "init", lambda **given: asked.append(given["set"]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", hip, raising=False)
    monkeypatch.setattr(buffers, "_devices", lambda group: {"set": ["device.devices=[0]"]})
    monkeypatch.delenv("ANABRANCH__DEVICE__RUNTIME", raising=False)
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 1, get_group_store=lambda: None)
    options = SimpleNamespace(timeout=timedelta(seconds=5), group_size=1, group_rank=0, store=None)

    def runtimes():
        asked.clear()
        groups._join(options, None)
        buffers._join(group, (0,), 1 << 20)
        return [[entry for entry in settings if entry.startswith("device.runtime=")] for settings in asked]

    assert runtimes() == [[f"device.runtime={runtime}"]] * 2
    monkeypatch.setenv("ANABRANCH__DEVICE__RUNTIME", "host")
    assert runtimes() == [[], []]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("ANABRANCH__DEVICE__RUNTIME")
    assert runtimes() == [[], []]
