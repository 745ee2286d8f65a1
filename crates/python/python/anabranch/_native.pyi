"""Types of the native module. What each call does is in its docstring (``help(anabranch.World)``)."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, TypeVar, final

class _Store(Protocol):
    """A key-value store that all ranks reach: ``torch.distributed.Store``, or anything like it."""

    def set(self, key: str, value: bytes, /) -> Any: ...
    def get(self, key: str, /) -> bytes: ...

# DLPack, __cuda_array_interface__, __array_interface__, Memory, or (address, shape, dtype).
_Tensor = Any
# A name, torch.dtype or numpy.dtype.
_DType = Any
# An address, an object with cuda_stream or __cuda_stream__, or None: the current stream of the tensor's library (torch, cupy).
_Stream = Any
# A name, or ("premul_sum", a number or a tensor of one element).
_Op = str | tuple[str, Any]
_Settings = Config | str | PathLike[str] | Mapping[str, Any] | None
_T = TypeVar("_T")

__all__ = [
    "CombineSent",
    "Communicator",
    "Config",
    "ContiguousExperts",
    "DispatchSent",
    "Dispatched",
    "EpConfig",
    "ExpertMajor",
    "ExpertParallel",
    "LaunchOrder",
    "Memory",
    "Profile",
    "Routing",
    "RowUnpacker",
    "Work",
    "World",
    "flush_logs",
    "init",
    "join_threads",
    "profile",
    "run_command",
    "spawn_threads",
    "raw_call",
    "raw_hold",
    "raw_order",
    "raw_type",
    "xla_collective_handler",
    "xla_combine_handler",
    "xla_dispatch_handler",
    "xla_operator",
    "xla_register",
    "xla_register_plans",
    "xla_start_handler",
    "xla_start_state",
    "xla_unregister",
    "xla_unregister_plans",
]

def init(
    config: _Settings = None,
    *,
    set: Sequence[str] = ...,
    store: _Store | None = None,
    name: str = "world",
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    local_world_size: int | None = None,
) -> World: ...
def spawn_threads(
    work: Callable[[World], _T], ranks: int, config: _Settings = None, *, set: Sequence[str] = ...
) -> tuple[_T, ...]: ...
def join_threads(ranks: int, config: _Settings = None, *, set: Sequence[str] = ...) -> list[World]: ...
def profile(path: str | PathLike[str], world: World | None = None) -> Profile: ...
def raw_type(data_type: _DType) -> int | None: ...
def raw_call(
    communicator: Communicator,
    call: int,
    output: tuple[int | Memory, int],
    input: tuple[int | Memory, int],
    kind: tuple[int, int, int],
    stream: int | None,
    is_kept: bool,
    /,
) -> Work | None: ...
def raw_order(world: World, stream: int, after: int, /) -> None: ...
def raw_hold(world: World, stream: int, object: object, /) -> None: ...
def xla_register(communicators: Sequence[Communicator]) -> int: ...
def xla_unregister(number: int) -> None: ...
def xla_register_plans(
    plans: Sequence[ExpertParallel], layouts: Sequence[ExpertMajor] | None
) -> tuple[int, int]: ...
def xla_unregister_plans(number: int) -> None: ...
def xla_collective_handler() -> int: ...
def xla_start_handler() -> int: ...
def xla_start_state() -> tuple[int, int]: ...
def xla_dispatch_handler() -> int: ...
def xla_combine_handler() -> int: ...
def xla_operator(name: str) -> int: ...
def flush_logs() -> None: ...
def run_command(program: Sequence[str], arguments: Sequence[str]) -> int: ...
@final
class Config:
    @staticmethod
    def load(
        path: str | PathLike[str] | None = None, *, set: Sequence[str] = ..., environment: bool = True
    ) -> Config: ...
    def fields(self) -> list[tuple[str, str, str]]: ...
    def __getitem__(self, key: str, /) -> str | int | float | bool | None: ...

@final
class World:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def runtime(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def device_name(self) -> str: ...
    def empty(
        self, shape: int | Sequence[int], dtype: _DType, *, ranks: Sequence[int] | None = None, tag: str = "memory"
    ) -> Memory: ...
    def locate(self, tensor: _Tensor) -> tuple[str, int, list[int]] | None: ...
    def symmetric(self, tensor: _Tensor) -> Memory: ...
    def communicator(self, ranks: Sequence[int] | None = None, *, shared_blocks: int = 0) -> Communicator: ...
    def launch_order(self) -> LaunchOrder: ...
    def expert_parallel(
        self, config: EpConfig, ranks: Sequence[int] | None = None, *, order: LaunchOrder | None = None
    ) -> ExpertParallel: ...
    def exchange(
        self, data: bytes, *, ranks: Sequence[int] | None = None, tag: str = "exchange"
    ) -> list[bytes]: ...
    def barrier(self, *, ranks: Sequence[int] | None = None, tag: str = "barrier") -> None: ...
    def synchronize(self, stream: _Stream = None, *, timeout: float | None = None) -> None: ...
    def profile(self, path: str | PathLike[str]) -> Profile: ...
    def check(self) -> None: ...
    def poison(self, reason: str) -> None: ...
    def leave(self) -> None: ...
    def __enter__(self) -> World: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...

@final
class Profile:
    def __enter__(self) -> Profile: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...

@final
class Memory:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_symmetric(self) -> bool: ...
    def part(self, start: int, stop: int) -> Memory: ...
    def view(self, dtype: _DType) -> Memory: ...
    @property
    def is_exported(self) -> bool: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

@final
class Communicator:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...
    def all_reduce(
        self, tensor: _Tensor, op: _Op | None = None, *, out: _Tensor | None = None, stream: _Stream = None
    ) -> Work: ...
    def all_reduce_rms_norm(
        self,
        input: _Tensor,
        weight: _Tensor,
        out: _Tensor,
        *,
        epsilon: float = 1e-6,
        residual: _Tensor | None = None,
        kept: _Tensor | None = None,
        scale: _Tensor | None = None,
        scales: _Tensor | None = None,
        group_size: int = 128,
        scale_stride: int | None = None,
        stream: _Stream = None,
    ) -> Work: ...
    def all_gather_into_tensor(
        self, output: _Tensor, input: _Tensor, *, counts: Sequence[int] | None = None, stream: _Stream = None
    ) -> Work: ...
    def reduce_scatter_tensor(
        self,
        output: _Tensor,
        input: _Tensor,
        op: _Op | None = None,
        *,
        counts: Sequence[int] | None = None,
        stream: _Stream = None,
    ) -> Work: ...
    def all_to_all_single(
        self,
        output: _Tensor,
        input: _Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        stream: _Stream = None,
    ) -> Work: ...
    def broadcast(self, tensor: _Tensor, src: int = 0, *, stream: _Stream = None) -> Work: ...
    def reduce(
        self,
        tensor: _Tensor,
        dst: int = 0,
        op: _Op | None = None,
        *,
        out: _Tensor | None = None,
        stream: _Stream = None,
    ) -> Work: ...
    def gather(
        self, tensor: _Tensor, gather_into: _Tensor | None = None, dst: int = 0, *, stream: _Stream = None
    ) -> Work: ...
    def scatter(
        self, tensor: _Tensor, scatter_from: _Tensor | None = None, src: int = 0, *, stream: _Stream = None
    ) -> Work: ...
    def send(self, tensor: _Tensor, dst: int, *, stream: _Stream = None) -> Work: ...
    def recv(self, tensor: _Tensor, src: int, *, stream: _Stream = None) -> Work: ...
    def batch(self, messages: Sequence[tuple[str, _Tensor, int]], *, stream: _Stream = None) -> Work: ...
    def barrier(self, *, stream: _Stream = None) -> Work: ...

@final
class Work:
    def wait_on(self, stream: _Stream = None) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def poll(self) -> bool: ...
    @property
    def sequence(self) -> int: ...
    def describe(self) -> str: ...

@final
class LaunchOrder: ...

@final
class EpConfig:
    def __new__(
        cls,
        *,
        hidden: int,
        experts: int,
        top_k: int,
        max_tokens: int,
        dispatch_dtype: _DType | None = None,
        combine_dtype: _DType | None = None,
        scale_bytes: int = 0,
        max_recv: int = 0,
        mode: str = "auto",
        slots: int | None = None,
        placement: Sequence[Sequence[int]] | None = None,
        combine_source: str = "any",
        combine_codec: str = "none",
        combine_weights: bool = False,
        late_weights: bool = False,
        dispatch_cast: str = "none",
        cast_from: _DType | None = None,
        device_token_count: bool = False,
        id_dtype: _DType | None = None,
        mask_after: float | None = None,
        payload: str = "kernels",
        blocks: int = 0,
        waves_per_block: int = 0,
    ) -> EpConfig: ...
    def fields(self) -> list[tuple[str, str]]: ...

@final
class ExpertParallel:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def rows_capacity(self) -> int: ...
    @property
    def row_stride(self) -> int: ...
    @property
    def heap_bytes(self) -> int: ...
    def experts_on(self, rank: int | None = None) -> list[int]: ...
    def dispatch(
        self,
        x: _Tensor,
        topk_ids: _Tensor,
        topk_weights: _Tensor | None = None,
        scales: _Tensor | None = None,
        *,
        num_tokens: _Tensor | None = None,
        stream: _Stream = None,
    ) -> Dispatched: ...
    def combine(
        self,
        dispatched: Dispatched,
        y: _Tensor | None = None,
        *,
        out: _Tensor,
        out_weights: _Tensor | None = None,
        stream: _Stream = None,
    ) -> None: ...
    def dispatch_send(
        self,
        x: _Tensor,
        topk_ids: _Tensor,
        topk_weights: _Tensor | None = None,
        scales: _Tensor | None = None,
        *,
        num_tokens: _Tensor | None = None,
        stream: _Stream = None,
    ) -> DispatchSent: ...
    def dispatch_recv(self, sent: DispatchSent, *, stream: _Stream = None) -> Dispatched: ...
    def send_weights(self, dispatched: Dispatched, topk_weights: _Tensor, *, stream: _Stream = None) -> None: ...
    def combine_send(
        self, dispatched: Dispatched, y: _Tensor | None = None, *, stream: _Stream = None
    ) -> CombineSent: ...
    def combine_recv(
        self, sent: CombineSent, *, out: _Tensor, out_weights: _Tensor | None = None, stream: _Stream = None
    ) -> None: ...
    def routing(self, dispatched: Dispatched, *, stream: _Stream = None) -> Routing: ...
    @property
    def routing_bytes(self) -> int: ...
    def save_routing(self, dispatched: Dispatched, memory: _Tensor, *, stream: _Stream = None) -> None: ...
    def routing_in(self, memory: _Tensor, tokens: int) -> Routing: ...
    def expert_major(self, *, capacity: int = 0, alignment: int = 1, scale_layout: str = "rows") -> ExpertMajor: ...
    def contiguous(self) -> ContiguousExperts: ...
    def unpacker(self) -> RowUnpacker: ...
    def dispatch_with(
        self,
        routing: Routing,
        x: _Tensor,
        topk_weights: _Tensor | None = None,
        scales: _Tensor | None = None,
        *,
        stream: _Stream = None,
    ) -> Dispatched: ...
    @property
    def mask(self) -> Memory: ...
    def masked(self, *, stream: _Stream = None) -> list[tuple[int, str]]: ...
    def mask_rank(self, rank: int, *, stream: _Stream = None) -> None: ...
    def reset_mask(self, together: Sequence[int], *, timeout: float, stream: _Stream = None) -> None: ...
    def check_ids(self, *, stream: _Stream = None) -> None: ...

@final
class ContiguousExperts:
    def most_places(self, *, alignment: int = 1) -> int: ...
    def dispatch(
        self,
        x: _Tensor,
        topk_ids: _Tensor,
        topk_weights: _Tensor | None = None,
        scales: _Tensor | None = None,
        *,
        rows: _Tensor,
        layout: tuple[_Tensor, _Tensor, _Tensor],
        alignment: int = 1,
        scale_layout: str = "rows",
        zero_padding: bool = False,
        row_scales: _Tensor | None = None,
        row_weights: _Tensor | None = None,
        num_tokens: _Tensor | None = None,
        stream: _Stream = None,
    ) -> Dispatched: ...
    def expand(
        self,
        dispatched: Dispatched,
        rows: _Tensor,
        layout: tuple[_Tensor, _Tensor, _Tensor],
        *,
        alignment: int = 1,
        scale_layout: str = "rows",
        zero_padding: bool = False,
        scales: _Tensor | None = None,
        weights: _Tensor | None = None,
        stream: _Stream = None,
    ) -> None: ...
    def contract(
        self,
        dispatched: Dispatched,
        y: _Tensor,
        slot_map: _Tensor,
        *,
        weights: _Tensor | None = None,
        weighted: bool = True,
        stream: _Stream = None,
    ) -> None: ...

@final
class ExpertMajor:
    @property
    def experts(self) -> list[int]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def rows(self) -> Memory: ...
    @property
    def scales(self) -> Memory | None: ...
    @property
    def counts(self) -> Memory: ...
    @property
    def pairs(self) -> Memory: ...
    @property
    def source_offsets(self) -> Memory: ...
    @property
    def sources(self) -> Memory: ...
    @property
    def weights(self) -> Memory: ...
    @property
    def slot_map(self) -> Memory: ...
    def dispatch(
        self,
        x: _Tensor,
        topk_ids: _Tensor,
        topk_weights: _Tensor | None = None,
        scales: _Tensor | None = None,
        *,
        num_tokens: _Tensor | None = None,
        stream: _Stream = None,
    ) -> Dispatched: ...
    def expand(self, dispatched: Dispatched, *, stream: _Stream = None) -> None: ...
    def contract(
        self,
        dispatched: Dispatched,
        y: _Tensor,
        *,
        weights: _Tensor | None = None,
        out: _Tensor | None = None,
        stream: _Stream = None,
    ) -> None: ...

@final
class Dispatched:
    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> Memory | None: ...
    @property
    def counts(self) -> Memory | None: ...
    @property
    def offsets(self) -> Memory | None: ...
    @property
    def dropped_count(self) -> Memory | None: ...
    @property
    def combine_rows(self) -> Memory | None: ...
    @property
    def late_weights(self) -> Memory | None: ...
    @property
    def combine_weights(self) -> Memory | None: ...
    @property
    def token_numbers(self) -> Memory | None: ...
    @property
    def ids(self) -> Memory | None: ...
    @property
    def weights(self) -> Memory | None: ...
    @property
    def scales(self) -> Memory | None: ...
    def release(self, *, stream: _Stream = None) -> None: ...
    def __enter__(self) -> Dispatched: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...

@final
class DispatchSent: ...

@final
class CombineSent: ...

@final
class RowUnpacker:
    def unpack(
        self,
        dispatched: Dispatched,
        *,
        rows: _Tensor | None = None,
        scales: _Tensor | None = None,
        ids: _Tensor | None = None,
        weights: _Tensor | None = None,
        stream: _Stream = None,
    ) -> None: ...

@final
class Routing:
    @property
    def nbytes(self) -> int: ...
