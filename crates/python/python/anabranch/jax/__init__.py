"""Collectives inside compiled programs of JAX.

    import anabranch.jax, jax

    with anabranch.jax.Group() as group:              # all devices of this process
        mesh = jax.sharding.Mesh(jax.local_devices(), ("ranks",))
        total = jax.shard_map(group.all_reduce, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False)
        y = jax.jit(total)(x)

The functions are calls of XLA's FFI. They belong inside ``jax.shard_map`` over a mesh of the process's devices in their order, with
``check_vma=False``: there is one rank a device, and each gives its own shard. Outside of it XLA would gather all shards on each device first.
On GPUs a call puts its work on XLA's stream, also while XLA captures a graph. On the CPU it returns when its result is there.

Calls of one group that do not depend on each other may run in any order, which may differ between devices. Order them by their data, or use
a group for each.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy

from .. import _native

_TARGET = "anabranch_collective"
_CALLS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3}
_PLATFORMS = {"host": "cpu", "nvidia": "CUDA", "amd": "ROCM"}
_T = TypeVar("_T")


@functools.cache
def _register(runtime: str) -> None:
    address = ctypes.c_void_p(_native.xla_collective_handler())
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(address), platform=_PLATFORMS[runtime])


class Group:
    """All local devices of JAX as ranks of one world, in the order of ``jax.local_devices()``.

    A context manager: leaving the block leaves the world. Compiled programs that use the group fail from then on.

    Args:
        config: a TOML file, a mapping of settings, or an ``anabranch.Config``. ``device.runtime`` is that of JAX's default backend unless it
            is configured.
        set: further settings, each ``"key=value"``.
        size: the number of devices; all local devices if it is left out.
    """

    def __init__(
        self,
        config: "_native.Config | str | Mapping[str, Any] | None" = None,
        *,
        set: Sequence[str] = (),
        size: int | None = None,
    ) -> None:
        self.size = len(jax.local_devices()) if size is None else size
        self.worlds = _native.join_threads(self.size, config, set=[*set])
        self.runtime = self.worlds[0].runtime
        self._number: int | None = None
        try:
            expected = "cpu" if self.runtime == "host" else "gpu"
            if jax.default_backend() != expected:
                raise ValueError(
                    f"device.runtime is {self.runtime}, and JAX's default backend is {jax.default_backend()}; {expected} is needed"
                )
            _register(self.runtime)
            self._number = _native.xla_register(self._on_all(lambda world: world.communicator()))
        except BaseException:
            self.leave()
            raise

    def _on_all(self, call: Callable[["_native.World"], _T]) -> list[_T]:
        """Runs a collective call on all ranks at once."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(call, self.worlds))

    def leave(self) -> None:
        """Leaves the world. Doing it again does nothing."""
        number, self._number = self._number, None
        if number is not None:
            _native.xla_unregister(number)
        worlds, self.worlds = self.worlds, []
        if worlds:
            with ThreadPoolExecutor(len(worlds)) as pool:
                list(pool.map(lambda world: world.leave(), worlds))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def _call(self, name: str, x: jax.Array, shape: tuple[int, ...], op: str = "sum") -> jax.Array:
        if self._number is None:
            raise RuntimeError("this group was left")
        result = jax.ShapeDtypeStruct(shape, x.dtype)
        call = jax.ffi.ffi_call(_TARGET, result, has_side_effect=True)
        attributes = {"group": self._number, "call": _CALLS[name], "op": _native.xla_operator(op)}
        return call(x, **{key: numpy.int64(value) for key, value in attributes.items()})

    def _parts(self, name: str, x: jax.Array) -> int:
        if x.ndim == 0 or x.shape[0] % self.size:
            raise ValueError(f"{name}: the first dimension of {x.shape} is no multiple of the group's {self.size} ranks")
        return x.shape[0] // self.size

    def all_reduce(self, x: jax.Array, op: str = "sum") -> jax.Array:
        """Reduces ``x`` over the ranks, as ``jax.lax.psum`` does. ``op`` is sum, avg, product, min, max, band, bor or bxor; sum and avg have
        gradients. Sums are added in rank order: the same bits on all ranks and in every run."""
        if op in ("sum", "avg"):
            return _differentiable(self, "all_reduce", "all_reduce", op)(x)
        return self._call("all_reduce", x, x.shape, op)

    def all_gather(self, x: jax.Array) -> jax.Array:
        """Each rank's ``x``, ``[n, ...]``, in rank order: ``[ranks * n, ...]``, as ``jax.lax.all_gather(tiled=True)``."""
        if x.ndim == 0:
            raise ValueError("all_gather: x has no dimension to gather along")
        return _differentiable(self, "all_gather", "reduce_scatter", "sum")(x)

    def reduce_scatter(self, x: jax.Array) -> jax.Array:
        """Sums ``x``, ``[ranks * n, ...]``, over the ranks; rank r gets part r, ``[n, ...]``, as ``jax.lax.psum_scatter(tiled=True)``."""
        self._parts("reduce_scatter", x)
        return _differentiable(self, "reduce_scatter", "all_gather", "sum")(x)

    def all_to_all(self, x: jax.Array) -> jax.Array:
        """Sends part p of ``x``, ``[ranks * n, ...]``, to rank p, and returns the parts received in rank order."""
        self._parts("all_to_all", x)
        return _differentiable(self, "all_to_all", "all_to_all", "sum")(x)

    def _plain(self, name: str, x: jax.Array, op: str) -> jax.Array:
        first = {"all_gather": lambda: x.shape[0] * self.size, "reduce_scatter": lambda: self._parts(name, x)}
        shape = (first[name](), *x.shape[1:]) if name in first else x.shape
        return self._call(name, x, shape, op)


def _differentiable(group: Group, name: str, backward: str, op: str) -> Callable[[jax.Array], jax.Array]:
    """A collective whose gradient is another collective."""

    @jax.custom_vjp
    def call(x: jax.Array) -> jax.Array:
        return group._plain(name, x, op)

    call.defvjp(lambda x: (call(x), None), lambda _, gradient: (group._plain(backward, gradient, op),))
    return call
