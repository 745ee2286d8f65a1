"""The world of torch's groups where something fails."""

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
