"""Collectives inside compiled programs of JAX.

    import anabranch.jax, jax
    from jax.sharding import Mesh, PartitionSpec as P

    with anabranch.jax.Group() as group:              # all devices
        def step(x):
            order = group.start("ranks")
            total, order = group.all_reduce(x, order)
            parts, order = group.all_gather(total, order)
            return parts

        mesh = Mesh(jax.devices(), ("ranks",))
        y = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False))(x)
        y.block_until_ready()

The functions are calls of XLA's FFI. They belong inside ``jax.shard_map`` over a mesh of ``jax.devices()`` in their order, with
``check_vma=False``: there is one rank a device, and each gives its own shard. All of them are collective, and so are making and leaving a
group: every process and every device does the same, in the same order.

Every call takes ``order`` and returns the next one. XLA runs calls that do not depend on each other in any order, which may differ between
devices; through ``order`` each call depends on the one before it, in the backward pass too. Give each ``order`` to one call. The gradient with
respect to the first ``order`` is the one after the backward pass. Programs are not ordered by it: one that does not use results of the program
before has to be called after that is done (``jax.block_until_ready``).

On GPUs a call puts its work on XLA's stream. On the CPU it returns when its result is there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy

from .. import _native

_TARGET = "anabranch_collective"
_START = "anabranch_start"
_CALLS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3}
# A collective and its gradient.
_GRADIENTS = {"all_reduce": "all_reduce", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_to_all": "all_to_all"}
_TYPES = (
    ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bool"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_LOG = logging.getLogger("anabranch.jax")
# Milliseconds that a process waits for the address of the first: JAX's own limit for its start.
_PATIENCE = 300_000
_PLATFORMS = {"host": "cpu", "nvidia": "CUDA", "amd": "ROCM"}
_T = TypeVar("_T")


@functools.cache
def _register(target: str, handler: int, runtime: str) -> None:
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(ctypes.c_void_p(handler)), platform=_PLATFORMS[runtime])


@functools.cache
def _register_start(runtime: str) -> None:
    # What a start keeps of an executable is made and dropped with it.
    state, description = (jax.ffi.pycapsule(ctypes.c_void_p(address)) for address in _native.xla_start_state())
    jax.ffi.register_ffi_type(f"{_START}_state", {"type_id": state, "type_info": description}, platform=_PLATFORMS[runtime])
    handler = jax.ffi.pycapsule(ctypes.c_void_p(_native.xla_start_handler()))
    jax.ffi.register_ffi_target(_START, {"instantiate": handler, "execute": handler}, platform=_PLATFORMS[runtime])


class _Store:
    """The key-value store of ``jax.distributed``. JAX has no public name for its client."""

    def __init__(self) -> None:
        from jax._src import distributed

        self._client: Any = distributed.global_state.client

    def set(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, value)

    def get(self, key: str) -> bytes:
        return self._client.blocking_key_value_get_bytes(key, _PATIENCE)


def _join(config: "_native.Config | str | Mapping[str, Any] | None", set: list[str]) -> list["_native.World"]:
    """The ranks of this process: a thread for each of its devices, or one of several processes."""
    devices, processes = jax.devices(), jax.process_count()
    if processes == 1:
        return _native.join_threads(len(devices), config, set=set)
    if len(devices) != processes or len(jax.local_devices()) != 1:
        raise NotImplementedError(
            f"process {jax.process_index()} of {processes} has {len(jax.local_devices())} devices, and all have {len(devices)}; several "
            "processes need exactly one each (local_device_ids of jax.distributed.initialize), and one process may have any number"
        )
    rank = devices.index(jax.local_devices()[0])
    return [_native.init(config, set=set, store=_Store(), name="jax", rank=rank, world_size=len(devices))]


class Group:
    """All devices of JAX as ranks of one world, in the order of ``jax.devices()``.

    They are those of one process, or of several (``jax.distributed.initialize``) that have one each: every process then makes the group.

    A context manager: leaving the block waits for programs that run, and leaves the world. Compiled programs that use the group fail from then
    on.

    Args:
        config: a TOML file, a mapping of settings, or an ``anabranch.Config``. ``device.runtime`` has to fit JAX's default backend: ``host``
            for its CPU, ``nvidia`` or ``amd`` for its GPUs.
        set: further settings, each ``"key=value"``.
    """

    def __init__(
        self,
        config: "_native.Config | str | Mapping[str, Any] | None" = None,
        *,
        set: Sequence[str] = (),
    ) -> None:
        self.worlds = _join(config, [*set])
        self.size = self.worlds[0].size
        self.runtime = self.worlds[0].runtime
        self._number: int | None = None
        self._plans: list[int] = []
        self._dispatches = itertools.count()
        try:
            expected = "cpu" if self.runtime == "host" else "gpu"
            if jax.default_backend() != expected:
                raise ValueError(
                    f"device.runtime is {self.runtime}, and JAX's default backend is {jax.default_backend()}; {expected} is needed"
                )
            _register(_TARGET, _native.xla_collective_handler(), self.runtime)
            _register_start(self.runtime)
            self._number = _native.xla_register(self._on_all(lambda world: world.communicator()))
        except BaseException:
            self.leave()
            raise

    def _on_all(self, call: Callable[["_native.World"], _T]) -> list[_T]:
        """Runs a collective call on all ranks at once."""
        if not self.worlds:
            raise RuntimeError("this group was left")
        with ThreadPoolExecutor(len(self.worlds)) as pool:
            return list(pool.map(call, self.worlds))

    def leave(self) -> None:
        """Leaves the world. Doing it again does nothing."""
        number, self._number = self._number, None
        if number is not None:
            try:
                jax.effects_barrier()
            except Exception as error:
                # The program that failed has reported it, or will where its result is read.
                _LOG.debug("a program failed before its group was left: %s", error)
            for plan in self._plans:
                _native.xla_unregister_plans(plan)
            _native.xla_unregister(number)
        worlds, self.worlds = self.worlds, []
        if worlds:
            with ThreadPoolExecutor(len(worlds)) as pool:
                list(pool.map(lambda world: world.leave(), worlds))

    def _live(self) -> int:
        """The group's number."""
        if self._number is None:
            raise RuntimeError("this group was left")
        return self._number

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def start(self, axis_name: str) -> jax.Array:
        """The first ``order`` of a program. ``axis_name`` is the axis of the mesh that the group is on. A program whose mesh has the devices in
        another order fails here, on all devices, the first time that it runs."""
        # Dispatches count from here on: equal programs are equal text, and one entry of JAX's cache of compiled programs.
        self._dispatches = itertools.count()
        place = jax.lax.axis_index(axis_name).astype(numpy.float32)[None]
        call = jax.ffi.ffi_call(_START, jax.ShapeDtypeStruct((1,), numpy.float32), has_side_effect=True, input_output_aliases={0: 0})
        return call(place, group=numpy.int64(self._live()))

    def all_reduce(self, x: jax.Array, order: jax.Array, op: str = "sum") -> tuple[jax.Array, jax.Array]:
        """Reduces ``x`` over the ranks, as ``jax.lax.psum`` does. ``op`` is sum, avg, product, min, max, band, bor or bxor; sum and avg have
        gradients. An average of integers is rounded towards zero. Sums are added in rank order: the same bits on all ranks and in every run."""
        if op == "avg" and x.dtype == numpy.bool_:
            raise ValueError(f"avg is not defined for {x.dtype}")
        return self._call("all_reduce", x, order, op)

    def all_gather(self, x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Each rank's ``x``, ``[n, ...]``, in rank order: ``[ranks * n, ...]``, as ``jax.lax.all_gather(tiled=True)``."""
        if x.ndim == 0:
            raise ValueError("all_gather: x has no dimension to gather along")
        return self._call("all_gather", x, order, "sum")

    def reduce_scatter(self, x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums ``x``, ``[ranks * n, ...]``, over the ranks; rank r gets part r, ``[n, ...]``, as ``jax.lax.psum_scatter(tiled=True)``."""
        return self._call("reduce_scatter", x, order, "sum")

    def all_to_all(self, x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sends part p of ``x``, ``[ranks * n, ...]``, to rank p, and returns the parts received in rank order."""
        return self._call("all_to_all", x, order, "sum")

    def _shape(self, name: str, x: jax.Array) -> tuple[int, ...]:
        """The result's shape."""
        if name == "all_gather":
            return (x.shape[0] * self.size, *x.shape[1:])
        if name == "all_reduce":
            return x.shape
        if x.ndim == 0 or x.shape[0] % self.size:
            raise ValueError(f"{name}: the first dimension of {x.shape} is no multiple of the group's {self.size} ranks")
        return (x.shape[0] // self.size, *x.shape[1:]) if name == "reduce_scatter" else x.shape

    def _call(self, name: str, x: jax.Array, order: jax.Array, op: str) -> tuple[jax.Array, jax.Array]:
        group = self._live()
        if str(x.dtype) not in _TYPES:
            raise ValueError(f"{name}: elements of {x.dtype} are not supported; supported are {', '.join(_TYPES)}")
        results = (jax.ShapeDtypeStruct(self._shape(name, x), x.dtype), jax.ShapeDtypeStruct((1,), numpy.float32))
        numbers = {"group": group, "call": _CALLS[name], "op": _native.xla_operator(op)}
        attributes = {key: numpy.int64(value) for key, value in numbers.items()}

        @jax.custom_vjp
        def call(x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
            # `order` is handed on as it is, in the same memory.
            target = jax.ffi.ffi_call(_TARGET, results, has_side_effect=True, input_output_aliases={1: 1})
            y, after = target(x, order, **attributes)
            return y, after

        def forward(x: jax.Array, order: jax.Array) -> Any:
            y, after = call(x, order)
            return (y, after), after

        def backward(after: jax.Array, gradients: Any) -> Any:
            if op not in ("sum", "avg"):
                raise NotImplementedError(f"{name} with the operator {op} has no gradient")
            y, later = gradients
            # After the backward pass of later calls, and after this call.
            return self._call(_GRADIENTS[name], y, after + 0 * later, op)

        call.defvjp(forward, backward)
        return call(x, order)
