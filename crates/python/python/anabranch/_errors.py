"""The exceptions of the library."""

from __future__ import annotations


class Error(RuntimeError):
    """Anything that the library reports.

    Attributes:
        kind: ``"config"``, ``"environment"``, ``"compile"``, ``"peer"``, ``"device"`` or ``"usage"``.
        ranks: the ranks that it is about: lost, late, or the ones that refused. Empty where no rank is known.
        exit_code: what the ``anabranch`` command would exit with.
    """

    kind: str = "usage"
    ranks: tuple[int, ...] = ()
    exit_code: int = 1


class ConfigError(Error, ValueError):
    """A setting is wrong, or ranks differ in one."""

    kind = "config"
    exit_code = 2


class SetupError(Error):
    """Something is missing on this machine: a runtime, a compiler, a device, a launcher. ``python -m anabranch doctor`` lists them."""

    kind = "environment"
    exit_code = 3


class CompileError(Error):
    """A kernel does not compile."""

    kind = "compile"
    exit_code = 4


class PeerError(Error):
    """Another rank is lost, late or unreachable; ``ranks`` has which. The world cannot be used any more."""

    kind = "peer"
    exit_code = 5


class PeerTimeout(PeerError, TimeoutError):
    """Another rank did not come within the deadline."""


class DeviceError(Error):
    """The device failed. Leave the world, and end the process."""

    kind = "device"
    exit_code = 6


class UsageError(Error, ValueError):
    """A call with wrong arguments. Nothing has happened."""


class WaitTimeout(Error, TimeoutError):
    """The ``timeout`` of a wait ended. The work goes on, and the world is well."""


_CLASSES = {each.kind: each for each in (ConfigError, SetupError, CompileError, PeerError, DeviceError, UsageError)}


def _make(kind: str, message: str, ranks: tuple[int, ...], timed_out: bool) -> Error:
    error = (PeerTimeout if timed_out else _CLASSES.get(kind, Error))(message)
    error.ranks = ranks
    return error
