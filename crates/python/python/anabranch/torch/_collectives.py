"""The collectives of a group, under all the names that versions of torch call.

Every microsecond of the host counts here: a call on contiguous tensors makes one native call with numbers, and on GPUs no event unless it is
asynchronous.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import PrefixStore, ReduceOp, Work

from anabranch import _native

from ._messages import Messages
from ._work import Buffers, Completer, HostWork, StreamWork
from ._world import Shared, reported, share

_OPERATORS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
# The library's numbers of operators and calls.
_NUMBERS = {name: _native.xla_operator(name) for name in _OPERATORS.values()}
_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL, _BROADCAST, _REDUCE = range(6)

# An operator: its name, or that of premul_sum with its factor.
Operator = str | tuple[str, Any]
# Contiguous memory of a call: an address or memory of the heap with its elements, and their type.
Operand = tuple[tuple[Any, int], torch.dtype]
# Launches a part of a call on a stream; gives its work if asked to.
Launch = Callable[[int | None, bool], Any]


@functools.cache
def _type(dtype: torch.dtype) -> int:
    """The library's number of an element type."""
    number = _native.raw_type(str(dtype))
    if number is None:
        raise ValueError(f"the library has no elements of {dtype}")
    return number


def _tensor(operand: Operand) -> Any:
    """An operand for the native calls that take tensors."""
    (memory, count), dtype = operand
    return (memory, (count,), str(dtype)) if isinstance(memory, int) else memory.view(dtype)


def _operator(options, buffers: Buffers) -> Operator:
    """The operator of a call in the library's words. A factor on the device stays there: the call reads it in the order of the stream."""
    given = getattr(options, "reduceOp", options)
    if given is None:
        return "sum"
    kind = getattr(given, "op", given)
    name = _OPERATORS.get(kind)
    if name is not None:
        return name
    if kind != ReduceOp.PREMUL_SUM:
        raise NotImplementedError(f"the operator {kind} is not supported")
    factor = given.__getstate__()[1]
    if isinstance(factor, torch.Tensor) and factor.device == buffers.device:
        return ("premul_sum", buffers.input(factor))
    return ("premul_sum", float(factor))


def _first(arguments) -> torch.Tensor | None:
    """The first tensor in nested lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, (list, tuple)) and (found := _first(argument)) is not None:
            return found
    return None


def _only(lists: list, what: str):
    """The one entry of a list that has one entry for each device of the process."""
    if len(lists) != 1:
        raise ValueError(f"{what} has {len(lists)} entries; a rank has one device, so 1 is allowed")
    return lists[0]


def _same_type(*tensors: torch.Tensor) -> None:
    """Refuses tensors of different types, whose bytes would be moved as they are."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise TypeError(f"tensors of one call have the types {[str(tensor.dtype) for tensor in tensors]}; they must be the same")


def _list(tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _collective(method):
    """A collective: by gloo for CPU tensors of a group on GPUs."""

    @functools.wraps(method)
    def call(self, *arguments, **named):
        if self._shared.is_gpu and (tensor := _first(arguments)) is not None and tensor.is_cpu:
            by_gloo = getattr(self._gloo(), method.__name__, None)
            if by_gloo is None:
                raise NotImplementedError(f"{method.__name__} of CPU tensors is not supported by gloo; give tensors on {self._shared.device}")
            return by_gloo(*arguments, **named)
        return method(self, *arguments, **named)

    return call


class Collectives(Messages):
    """What both classes of torch share: a communicator, and a method for each collective."""

    def _start(self, options, pg_options) -> None:
        shared, self._is_first = share(options, pg_options)
        self._shared: Shared = shared
        self._size, self.name_of_group = options.group_size, options.group_id
        self._store, self._timeout = options.store, options.timeout
        ranks = self._ranks = tuple(options.global_ranks_in_group) or shared.ranks
        try:
            self._communicator: Any = shared.communicator(ranks)
        except BaseException:
            if self._is_first:
                shared.leave()
            raise
        shared.groups.append(self)
        self._completer = Completer(f"anabranch group {options.group_id}")
        self._side: torch.cuda.Stream | None = None
        self._host_group: Any = None
        self._last: Work | None = None
        self._calls = 0

    def _gloo(self):
        """A group for CPU tensors. Collective when it is first called."""
        if self._host_group is None:
            store = PrefixStore("anabranch/gloo", self._store)
            gloo = torch.distributed.ProcessGroupGloo
            self._host_group = gloo(store, self._communicator.rank, self._size, self._timeout)
        return self._host_group

    def drop(self) -> None:
        """Waits for asynchronous works, and drops the communicator."""
        self._completer.stop()
        self._communicator = self._host_group = None

    def shutdown(self) -> None:
        """Drops the communicator; the first group of the process leaves the world. Doing it again does nothing."""
        if self not in self._shared.groups:
            return
        self._flush()
        if self._is_first:
            self._shared.leave()
        else:
            self._shared.groups.remove(self)
            self.drop()

    def abort(self) -> None:
        """Gives the world up: calls of all of its groups raise, here and on the other ranks."""
        if self._communicator is not None:
            self._shared.world.poison("abort() of a process group")
            self._shared.is_aborted |= self._is_first

    def _begin_call(self) -> Buffers:
        """What a call begins with: messages before it are launched."""
        if self._communicator is None:
            raise RuntimeError("this process group was destroyed")
        if self._messages is not None:
            self._flush()
        self._calls += 1
        return Buffers(self._shared.device)

    def _located(self, tensor: torch.Tensor):
        """Where a contiguous tensor is: in memory of the heap, or at an address."""
        return self._shared.heap.located(tensor, self._ranks) or tensor.data_ptr()

    def _bytes(self, tensor: torch.Tensor) -> Operand:
        """A contiguous tensor as bytes: any element type can be moved."""
        return (self._located(tensor), tensor.nbytes), torch.uint8

    def _operands(self, tensor: torch.Tensor, op: Operator) -> Operand:
        """A contiguous tensor as elements of a reduction. Complex numbers are pairs."""
        if tensor.is_complex():
            if op not in ("sum", "avg"):
                raise ValueError(f"the operator {op} is not defined for {tensor.dtype}; sum and avg are")
            tensor = torch.view_as_real(tensor)
        return (self._located(tensor), tensor.numel()), tensor.dtype

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether :meth:`allocate_tensor` gives memory of this device."""
        return torch.device(device).type == self._shared.device.type

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A one-dimensional tensor in the symmetric heap, for the buffers of FSDP2. Collective: all ranks of the group ask for the same sizes
        and drop the tensors at the same points of the program."""
        with reported():
            return self._shared.heap.pooled(size, dtype, self._ranks)

    def _call(self, call: int, output: Operand, source: Operand, op: Operator = "sum", root: int = 0) -> Launch:
        """A call by its number."""
        if output[1] != source[1]:
            raise TypeError(f"the output is of {output[1]} and the input of {source[1]}; they must be the same")
        communicator = self._communicator
        if isinstance(op, str):
            return functools.partial(_native.raw_call, communicator, call, output[0], source[0], (_type(source[1]), _NUMBERS[op], root))
        to, of = _tensor(output), _tensor(source)
        if call == _ALL_REDUCE:
            return lambda stream, _: communicator.all_reduce(of, op, out=to, stream=stream)
        if call == _REDUCE:
            return lambda stream, _: communicator.reduce(of, root, op, out=to, stream=stream)
        return lambda stream, _: communicator.reduce_scatter_tensor(to, of, op, stream=stream)

    def _run(self, calls: list[Launch], buffers: Buffers, result, options=None, *, is_barrier: bool = False) -> Work:
        """Runs the parts of a call: at once and to their end, or asynchronously if the options say so."""
        is_async = getattr(options, "asyncOp", True)
        if self._shared.is_gpu:
            return self._noted(self._run_on_stream(calls, buffers, result, is_async, is_barrier))
        native = None
        with reported():
            for call in calls:
                native = call(None, True)
        work = self._noted(HostWork(native, buffers, result))
        if is_async:
            self._completer.put(work)
        else:
            work.complete()
            work.wait()
        return work

    def _run_on_stream(self, calls: list[Launch], buffers: Buffers, result, is_async: bool, is_barrier: bool) -> StreamWork:
        """Inputs are copied on the current stream. Asynchronous calls have a stream of the group, and an event after the last one."""
        shared, native = self._shared, None
        current = stream = shared.current_stream()
        with reported():
            if is_async:
                if self._side is None:
                    self._side = torch.cuda.Stream(shared.device, priority=-1)
                stream = self._side.cuda_stream
                _native.raw_order(shared.world, stream, current)
            for call in calls:
                native = call(stream, is_async)
        if buffers.has_copies:
            with torch.cuda.stream(self._side if is_async else None):
                buffers.copy_back()
        work = StreamWork(shared, (current, stream), self._side if is_async else None, native, buffers, result, is_barrier)
        if is_async:
            # A work that nobody waits for must not free its memory before its end.
            _native.raw_hold(shared.world, stream, buffers)
        return work

    @_collective
    def allreduce(self, tensors, opts=None) -> Work:
        buffers = self._begin_call()
        tensors, op = _list(tensors), _operator(opts, buffers)
        operands = [self._operands(buffers.output(tensor, is_input=True), op) for tensor in tensors]
        return self._run([self._call(_ALL_REDUCE, of, of, op) for of in operands], buffers, tensors, opts)

    @_collective
    def reduce(self, tensors, opts) -> Work:
        buffers = self._begin_call()
        op, tensor, root = _operator(opts, buffers), _only(_list(tensors), "the list of tensors"), opts.rootRank
        is_root = self._communicator.rank == root
        of = self._operands(buffers.output(tensor, is_input=True) if is_root else buffers.input(tensor), op)
        return self._run([self._call(_REDUCE, of, of, op, root)], buffers, [tensor], opts)

    @_collective
    def broadcast(self, tensors, opts) -> Work:
        buffers, tensors = self._begin_call(), _list(tensors)
        # Not written at the root.
        memory = buffers.input if self._communicator.rank == opts.rootRank else functools.partial(buffers.output, is_input=True)
        operands = [self._bytes(memory(tensor)) for tensor in tensors]
        return self._run([self._call(_BROADCAST, of, of, root=opts.rootRank) for of in operands], buffers, tensors, opts)

    @_collective
    def allgather(self, output_tensors, input_tensors, opts=None) -> Work:
        outputs = _only(output_tensors, "the list of output lists")
        self._check_count(outputs, "output tensors")
        source = _only(input_tensors, "the list of inputs")
        _same_type(source, *outputs)
        buffers, counts = self._begin_call(), [output.nbytes for output in outputs]
        own = self._bytes(buffers.input(source))
        everything, call = self._bytes(buffers.split(outputs)), self._call
        if len(set(counts)) == 1:
            return self._run([call(_ALL_GATHER, everything, own)], buffers, outputs, opts)
        gather = functools.partial(self._communicator.all_gather_into_tensor, _tensor(everything), _tensor(own), counts=counts)
        return self._run([lambda stream, _: gather(stream=stream)], buffers, outputs, opts)

    @_collective
    def allgather_into_tensor_coalesced(self, output_tensors, input_tensors, opts=None) -> Work:
        buffers, pairs = self._begin_call(), list(zip(output_tensors, input_tensors, strict=True))
        for pair in pairs:
            _same_type(*pair)
        operands = [(self._bytes(buffers.output(output)), self._bytes(buffers.input(own))) for output, own in pairs]
        return self._run([self._call(_ALL_GATHER, *pair) for pair in operands], buffers, list(output_tensors), opts)

    @_collective
    def _allgather_base(self, output, input, opts=None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    @_collective
    def allgather_coalesced(self, output_lists, input_list, opts=None) -> Work:
        buffers = self._begin_call()
        # One list a rank, in torch's order; one list an input here.
        lists = list(zip(zip(*output_lists, strict=True), input_list, strict=True))
        for outputs, own in lists:
            _same_type(own, *outputs)
        operands = [(self._bytes(buffers.split(list(outputs))), self._bytes(buffers.input(own))) for outputs, own in lists]
        result = [tensor for outputs in output_lists for tensor in outputs]
        return self._run([self._call(_ALL_GATHER, *pair) for pair in operands], buffers, result, opts)

    @_collective
    def gather(self, output_tensors, input_tensors, opts) -> Work:
        is_root = self._communicator.rank == opts.rootRank
        outputs = _only(output_tensors, "the list of output lists") if is_root else []
        if is_root:
            self._check_count(outputs, "output tensors")
        source = _only(input_tensors, "the list of inputs")
        _same_type(source, *outputs)
        buffers = self._begin_call()
        own = _tensor(self._bytes(buffers.input(source)))
        everything = _tensor(self._bytes(buffers.split(outputs))) if is_root else None
        call = functools.partial(self._communicator.gather, own, everything, opts.rootRank)
        return self._run([lambda stream, _: call(stream=stream)], buffers, outputs, opts)

    @_collective
    def scatter(self, output_tensors, input_tensors, opts) -> Work:
        is_root = self._communicator.rank == opts.rootRank
        inputs = _only(input_tensors, "the list of input lists") if is_root else []
        if is_root:
            self._check_count(inputs, "input tensors")
        output = _only(output_tensors, "the list of outputs")
        _same_type(output, *inputs)
        buffers = self._begin_call()
        own = _tensor(self._bytes(buffers.output(output)))
        everything = _tensor(self._bytes(buffers.join(inputs))) if is_root else None
        call = functools.partial(self._communicator.scatter, own, everything, opts.rootRank)
        return self._run([lambda stream, _: call(stream=stream)], buffers, list(output_tensors), opts)

    @_collective
    def reduce_scatter(self, output_tensors, input_tensors, opts=None) -> Work:
        inputs = _only(input_tensors, "the list of input lists")
        self._check_count(inputs, "input tensors")
        target = _only(output_tensors, "the list of outputs")
        _same_type(target, *inputs)
        buffers = self._begin_call()
        op = _operator(opts, buffers)
        output = self._operands(buffers.output(target), op)
        everything = self._operands(buffers.join(inputs), op)
        counts = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in inputs]
        if len(set(counts)) == 1:
            return self._run([self._call(_REDUCE_SCATTER, output, everything, op)], buffers, list(output_tensors), opts)
        scatter = functools.partial(self._communicator.reduce_scatter_tensor, _tensor(output), _tensor(everything), op, counts=counts)
        return self._run([lambda stream, _: scatter(stream=stream)], buffers, list(output_tensors), opts)

    @_collective
    def reduce_scatter_tensor_coalesced(self, output_tensors, input_tensors, opts=None) -> Work:
        buffers, pairs = self._begin_call(), zip(output_tensors, input_tensors, strict=True)
        op = _operator(opts, buffers)
        operands = [(self._operands(buffers.output(output), op), self._operands(buffers.input(source), op)) for output, source in pairs]
        return self._run([self._call(_REDUCE_SCATTER, *pair, op) for pair in operands], buffers, list(output_tensors), opts)

    @_collective
    def _reduce_scatter_base(self, output, input, opts=None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    @_collective
    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None) -> Work:
        _same_type(output, input)
        sizes = self._split(output, output_split_sizes), self._split(input, input_split_sizes)
        buffers = self._begin_call()
        source, target = self._bytes(buffers.input(input)), self._bytes(buffers.output(output))
        if not output_split_sizes and not input_split_sizes:
            return self._run([self._call(_ALL_TO_ALL, target, source)], buffers, [output], opts)
        exchange = functools.partial(self._communicator.all_to_all_single, _tensor(target), _tensor(source), *sizes)
        return self._run([lambda stream, _: exchange(stream=stream)], buffers, [output], opts)

    def _split(self, tensor: torch.Tensor, sizes) -> list[int]:
        """Bytes of each part of a tensor with these rows."""
        if not sizes:
            if tensor.dim() and tensor.size(0) % self._size:
                raise ValueError(f"the first dimension is {tensor.size(0)}, no multiple of the group's {self._size} ranks")
            return [tensor.nbytes // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != tensor.size(0):
            raise ValueError(f"split sizes {list(sizes)} do not divide {tensor.size(0)} rows among {self._size} ranks")
        row = math.prod(tensor.shape[1:]) * tensor.element_size()
        return [rows * row for rows in sizes]

    @_collective
    def alltoall(self, output_tensors, input_tensors, opts=None) -> Work:
        self._check_count(output_tensors, "output tensors")
        self._check_count(input_tensors, "input tensors")
        _same_type(*output_tensors, *input_tensors)
        buffers = self._begin_call()
        source, target = self._bytes(buffers.join(list(input_tensors))), self._bytes(buffers.split(list(output_tensors)))
        sizes = [[tensor.nbytes for tensor in tensors] for tensors in (output_tensors, input_tensors)]
        exchange = functools.partial(self._communicator.all_to_all_single, _tensor(target), _tensor(source), *sizes)
        return self._run([lambda stream, _: exchange(stream=stream)], buffers, list(output_tensors), opts)

    @_collective
    def barrier(self, opts=None) -> Work:
        buffers, communicator = self._begin_call(), self._communicator
        return self._run([lambda stream, _: communicator.barrier(stream=stream)], buffers, [], opts, is_barrier=True)

    @_collective
    def send(self, tensors, dst, tag=0) -> Work:
        return self._message("send", _list(tensors), dst, tag)

    @_collective
    def recv(self, tensors, src, tag=0) -> Work:
        return self._message("recv", _list(tensors), src, tag)

    def monitored_barrier(self, *_arguments, **_named) -> None:
        raise NotImplementedError("monitored_barrier is of gloo; barrier of the backend anabranch names the missing rank too")

    def getSequenceNumberForGroup(self) -> int:
        """The number of calls. torch compares it between ranks with ``TORCH_DISTRIBUTED_DEBUG=DETAIL``."""
        return self._calls

    def setSequenceNumberForGroup(self) -> None:
        """Nothing: numbers start at 0 on all ranks."""

    def _check_count(self, tensors, what: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{len(tensors)} {what}; the group has {self._size} ranks")

    # The names of torch 2.13 and newer, and those of the coalescing manager.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    allreduce_coalesced = allreduce
    supportsTensorAlloc, allocateTensor = supports_tensor_alloc, allocate_tensor
    _get_sequence_number_for_group, _set_sequence_number_for_group = getSequenceNumberForGroup, setSequenceNumberForGroup
