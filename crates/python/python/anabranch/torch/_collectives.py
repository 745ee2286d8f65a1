"""The collectives of a group, under all the names that versions of torch call."""

from __future__ import annotations

import functools
import math
import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed import PrefixStore, ReduceOp, Work

from ._work import BatchWork, Buffers, Completer, HostWork, StreamWork
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


def _local(tensor: torch.Tensor) -> tuple:
    """A contiguous tensor as bytes of local memory: any element type can be moved."""
    return (tensor.data_ptr(), (tensor.nbytes,), "uint8")


def _operator(options, device: torch.device) -> str | tuple[str, float | torch.Tensor]:
    """The operator of a call in the library's words. A factor on the device stays there: the call reads it in the order of the stream."""
    given = getattr(options, "reduceOp", options)
    if given is None:
        return "sum"
    kind = getattr(given, "op", given)
    if kind == ReduceOp.PREMUL_SUM:
        factor = given.__getstate__()[1]
        if isinstance(factor, torch.Tensor) and factor.device == device:
            return ("premul_sum", factor.detach())
        return ("premul_sum", float(factor))
    if kind not in _OPERATORS:
        raise NotImplementedError(f"the operator {kind} is not supported")
    return _OPERATORS[kind]


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


def _list(tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _collective(method):
    """A collective: without gradients, and by gloo for CPU tensors of a group on GPUs."""

    @functools.wraps(method)
    def call(self, *arguments, **named):
        if self._shared.is_gpu and (tensor := _first(arguments)) is not None and tensor.device.type == "cpu":
            by_gloo = getattr(self._gloo(), method.__name__, None)
            if by_gloo is None:
                raise NotImplementedError(f"{method.__name__} of CPU tensors is not supported by gloo; give tensors on {self._shared.device}")
            return by_gloo(*arguments, **named)
        with torch.no_grad():
            return method(self, *arguments, **named)

    return call


class Collectives:
    """What both classes of torch share: a communicator, and a method for each collective."""

    def _start(self, options, pg_options) -> None:
        shared, self._is_first = share(options, pg_options)
        self._shared: Shared = shared
        self._size = options.group_size
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
        self._held: list = []
        self._host_group: Any = None
        # Messages between the start and the end of a batch, and their work.
        self._messages: list | None = None
        self._batch: BatchWork | None = None
        self._batch_of: list | None = None
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
        self._held.clear()

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

    def _bytes(self, tensor: torch.Tensor):
        """A contiguous tensor as bytes, symmetric where it is of the heap."""
        return self._shared.heap.located(tensor, self._ranks) or _local(tensor)

    def _operands(self, tensor: torch.Tensor, op: str | tuple[str, float]):
        """A contiguous tensor as elements of a reduction, symmetric where it is of the heap. Complex numbers are pairs."""
        if tensor.is_complex():
            if op not in ("sum", "avg"):
                raise ValueError(f"the operator {op} is not defined for {tensor.dtype}; sum and avg are")
            tensor = torch.view_as_real(tensor)
        located = self._shared.heap.located(tensor, self._ranks)
        return located.view(tensor.dtype) if located else (tensor.data_ptr(), (tensor.numel(),), str(tensor.dtype))

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether :meth:`allocate_tensor` gives memory of this device."""
        return torch.device(device).type == self._shared.device.type

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A one-dimensional tensor in the symmetric heap, for the buffers of FSDP2. Collective: all ranks of the group ask for the same sizes
        and drop the tensors at the same points of the program."""
        with reported():
            return self._shared.heap.pooled(size, dtype, self._ranks)

    def _run(self, launch, result, options=None, *, is_barrier: bool = False) -> Work:
        """Runs ``launch(buffers, stream)``: at once and to its end, or asynchronously if the options say so."""
        shared = self._shared
        if self._communicator is None:
            raise RuntimeError("this process group was destroyed")
        self._flush()
        self._calls += 1
        is_async = getattr(options, "asyncOp", True)
        buffers = Buffers(shared.device)
        if shared.is_gpu:
            self._last = self._run_on_stream(launch, buffers, result, is_async, is_barrier)
            return self._last
        with reported():
            work = HostWork(launch(buffers, None), buffers, result)
        self._last = work
        if is_async:
            self._completer.put(work)
        else:
            work.complete()
            work.wait()
        return work

    def _run_on_stream(self, launch, buffers: Buffers, result, is_async: bool, is_barrier: bool) -> StreamWork:
        shared = self._shared
        stream = torch.cuda.current_stream(shared.device)
        if is_async:
            if self._side is None:
                self._side = torch.cuda.Stream(shared.device, priority=-1)
            self._side.wait_stream(stream)
            stream = self._side
        with torch.cuda.stream(stream) if is_async else nullcontext():
            with reported():
                launch(buffers, stream.cuda_stream)
            buffers.copy_back()
            work = StreamWork(shared, stream, buffers, result, is_barrier)
        # A work that nobody waits for must not free its memory before its end. Works of a capture cannot be asked for their end.
        if is_async and not torch.cuda.is_current_stream_capturing():
            self._held = [(event, kept) for event, kept in self._held if not event.query()]
            self._held.append((work.event, buffers))
        return work

    @_collective
    def allreduce(self, tensors, opts=None) -> Work:
        tensors, op = _list(tensors), _operator(opts, self._shared.device)

        def launch(buffers, stream):
            work = None
            for tensor in tensors:
                operands = self._operands(buffers.output(tensor, is_input=True), op)
                work = self._communicator.all_reduce(operands, op, stream=stream)
            return work

        return self._run(launch, tensors, opts)

    @_collective
    def reduce(self, tensors, opts) -> Work:
        tensors, op = _list(tensors), _operator(opts, self._shared.device)

        def launch(buffers, stream):
            tensor = _only(tensors, "the list of tensors")
            if self._communicator.rank == opts.rootRank:
                operands = self._operands(buffers.output(tensor, is_input=True), op)
            else:
                operands = self._operands(buffers.input(tensor), op)
            return self._communicator.reduce(operands, opts.rootRank, op, stream=stream)

        return self._run(launch, tensors, opts)

    @_collective
    def broadcast(self, tensors, opts) -> Work:
        tensors = _list(tensors)

        def launch(buffers, stream):
            work = None
            for tensor in tensors:
                moved = self._bytes(buffers.output(tensor, is_input=True))
                work = self._communicator.broadcast(moved, opts.rootRank, stream=stream)
            return work

        return self._run(launch, tensors, opts)

    @_collective
    def allgather(self, output_tensors, input_tensors, opts=None) -> Work:
        outputs = _only(output_tensors, "the list of output lists")
        self._check_count(outputs, "output tensors")

        def launch(buffers, stream):
            own = self._bytes(buffers.input(_only(input_tensors, "the list of inputs")))
            everything = self._bytes(buffers.split(outputs))
            counts = [output.nbytes for output in outputs]
            is_uneven = len(set(counts)) > 1
            return self._communicator.all_gather_into_tensor(everything, own, counts=counts if is_uneven else None, stream=stream)

        return self._run(launch, outputs, opts)

    @_collective
    def allgather_into_tensor_coalesced(self, output_tensors, input_tensors, opts=None) -> Work:
        def launch(buffers, stream):
            work = None
            for output, own in zip(output_tensors, input_tensors, strict=True):
                own, everything = self._bytes(buffers.input(own)), self._bytes(buffers.output(output))
                work = self._communicator.all_gather_into_tensor(everything, own, stream=stream)
            return work

        return self._run(launch, list(output_tensors), opts)

    @_collective
    def _allgather_base(self, output, input, opts=None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    @_collective
    def allgather_coalesced(self, output_lists, input_list, opts=None) -> Work:
        # One list a rank, in torch's order; one list an input here.
        lists = list(zip(*output_lists, strict=True))

        def launch(buffers, stream):
            work = None
            for outputs, own in zip(lists, input_list, strict=True):
                own, everything = self._bytes(buffers.input(own)), self._bytes(buffers.split(list(outputs)))
                work = self._communicator.all_gather_into_tensor(everything, own, stream=stream)
            return work

        return self._run(launch, [tensor for outputs in output_lists for tensor in outputs], opts)

    @_collective
    def gather(self, output_tensors, input_tensors, opts) -> Work:
        is_root = self._communicator.rank == opts.rootRank
        outputs = _only(output_tensors, "the list of output lists") if is_root else []
        if is_root:
            self._check_count(outputs, "output tensors")

        def launch(buffers, stream):
            own = self._bytes(buffers.input(_only(input_tensors, "the list of inputs")))
            everything = self._bytes(buffers.split(outputs)) if is_root else None
            return self._communicator.gather(own, everything, opts.rootRank, stream=stream)

        return self._run(launch, outputs, opts)

    @_collective
    def scatter(self, output_tensors, input_tensors, opts) -> Work:
        is_root = self._communicator.rank == opts.rootRank
        inputs = _only(input_tensors, "the list of input lists") if is_root else []
        if is_root:
            self._check_count(inputs, "input tensors")

        def launch(buffers, stream):
            own = self._bytes(buffers.output(_only(output_tensors, "the list of outputs")))
            everything = self._bytes(buffers.join(inputs)) if is_root else None
            return self._communicator.scatter(own, everything, opts.rootRank, stream=stream)

        return self._run(launch, list(output_tensors), opts)

    @_collective
    def reduce_scatter(self, output_tensors, input_tensors, opts=None) -> Work:
        inputs, op = _only(input_tensors, "the list of input lists"), _operator(opts, self._shared.device)
        self._check_count(inputs, "input tensors")
        communicator = self._communicator

        def launch(buffers, stream):
            output = self._operands(buffers.output(_only(output_tensors, "the list of outputs")), op)
            everything = self._operands(buffers.join(inputs), op)
            counts = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in inputs]
            is_uneven = len(set(counts)) > 1
            return communicator.reduce_scatter_tensor(output, everything, op, counts=counts if is_uneven else None, stream=stream)

        return self._run(launch, list(output_tensors), opts)

    @_collective
    def reduce_scatter_tensor_coalesced(self, output_tensors, input_tensors, opts=None) -> Work:
        op = _operator(opts, self._shared.device)

        def launch(buffers, stream):
            work = None
            for output, everything in zip(output_tensors, input_tensors, strict=True):
                everything, output = self._operands(buffers.input(everything), op), self._operands(buffers.output(output), op)
                work = self._communicator.reduce_scatter_tensor(output, everything, op, stream=stream)
            return work

        return self._run(launch, list(output_tensors), opts)

    @_collective
    def _reduce_scatter_base(self, output, input, opts=None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    @_collective
    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None) -> Work:
        def splits(tensor, sizes):
            if not sizes:
                if tensor.dim() and tensor.size(0) % self._size:
                    raise ValueError(f"the first dimension is {tensor.size(0)}, no multiple of the group's {self._size} ranks")
                return [tensor.nbytes // self._size] * self._size
            if len(sizes) != self._size or sum(sizes) != tensor.size(0):
                raise ValueError(f"split sizes {list(sizes)} do not divide {tensor.size(0)} rows among {self._size} ranks")
            row = math.prod(tensor.shape[1:]) * tensor.element_size()
            return [rows * row for rows in sizes]

        def launch(buffers, stream):
            source, target = self._bytes(buffers.input(input)), self._bytes(buffers.output(output))
            sizes = (None, None)
            if output_split_sizes or input_split_sizes:
                sizes = (splits(output, output_split_sizes), splits(input, input_split_sizes))
            return self._communicator.all_to_all_single(target, source, *sizes, stream=stream)

        return self._run(launch, [output], opts)

    @_collective
    def alltoall(self, output_tensors, input_tensors, opts=None) -> Work:
        self._check_count(output_tensors, "output tensors")
        self._check_count(input_tensors, "input tensors")

        def launch(buffers, stream):
            source, target = self._bytes(buffers.join(list(input_tensors))), self._bytes(buffers.split(list(output_tensors)))
            sizes = [[tensor.nbytes for tensor in tensors] for tensors in (output_tensors, input_tensors)]
            return self._communicator.all_to_all_single(target, source, *sizes, stream=stream)

        return self._run(launch, list(output_tensors), opts)

    @_collective
    def barrier(self, opts=None) -> Work:
        def launch(buffers, stream):
            return self._communicator.barrier(stream=stream)

        return self._run(launch, [], opts, is_barrier=True)

    @_collective
    def send(self, tensors, dst, tag=0) -> Work:
        return self._message("send", tensors, dst, tag)

    @_collective
    def recv(self, tensors, src, tag=0) -> Work:
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag=0) -> Work:
        raise NotImplementedError("recv from any rank is not supported by the backend anabranch; give src")

    def monitored_barrier(self, *_arguments, **_named) -> None:
        raise NotImplementedError("monitored_barrier is of gloo; barrier of the backend anabranch names the missing rank too")

    def _message(self, direction: str, tensors, peer: int, tag: int) -> Work:
        if tag != 0:
            raise NotImplementedError(f"tag {tag}: messages of the backend anabranch have no tags; those of a pair arrive in order")
        messages = [(direction, tensor, peer) for tensor in _list(tensors)]
        batch = self._batch_of_caller()
        if batch is not None and batch is not self._batch_of:
            self._flush()
            self._begin()
            self._batch_of = batch
        if self._messages is None or self._batch is None:
            return self._exchange(messages)
        self._messages += messages
        work = self._batch
        if self._batch_of is not None and len(self._messages) == len(self._batch_of):
            self._flush()
        return work

    def _batch_of_caller(self):
        """The list of ``batch_isend_irecv`` above. torch before 2.14 calls a group that is a Python class once for each message, and does
        not say where the batch ends. Messages in both directions have to be launched together: each waits for its peer."""
        frame = sys._getframe(3) if self._is_called_by_message else None
        for _ in range(6):
            if frame is None:
                return None
            if frame.f_code.co_name == "batch_isend_irecv" and frame.f_globals.get("__name__", "").startswith("torch.distributed"):
                return frame.f_locals["p2p_op_list"]
            frame = frame.f_back
        return None

    # Whether torch gives a batch message by message, or between `start_coalescing` and `end_coalescing`.
    _is_called_by_message = False

    def _exchange(self, messages) -> Work:
        tensors = [tensor for _, tensor, _ in messages]

        def launch(buffers, stream):
            moved = []
            for direction, tensor, peer in messages:
                memory = buffers.input(tensor) if direction == "send" else buffers.output(tensor)
                moved.append((direction, _local(memory), peer))
            return self._communicator.batch(moved, stream=stream)

        return self._run(launch, tensors)

    def _begin(self) -> None:
        self._messages, self._batch = [], BatchWork(self._flush)

    def _flush(self) -> None:
        """Launches the messages of a batch."""
        batch, messages = self._batch, self._messages
        self._batch = self._messages = self._batch_of = None
        if batch is not None and messages:
            batch.work = self._exchange(messages)

    def start_coalescing(self, _device=None) -> None:
        """Begins a batch of messages. Collectives run in order."""
        self._flush()
        self._last = None
        self._begin()

    def end_coalescing(self, _device=None) -> Work:
        """Launches the batch, and returns a work that is done when all calls since its start are done."""
        self._flush()
        if self._last is None:
            self._last = HostWork(None, Buffers(self._shared.device), [])
            self._last.complete()
        return self._last

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
    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing
    startCoalescing, endCoalescing = start_coalescing, end_coalescing
    _get_sequence_number_for_group, _set_sequence_number_for_group = getSequenceNumberForGroup, setSequenceNumberForGroup
