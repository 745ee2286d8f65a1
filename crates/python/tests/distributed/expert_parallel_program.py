"""Dispatch and combine as custom ops: opcheck, compiled beside eager, gradients beside the same layer computed in one place."""

import anabranch
import anabranch.torch
import common
import pytest
import torch
import torch.distributed as dist
from anabranch.torch.expert_parallel import ExpertParallel
from common import check

HIDDEN, EXPERTS, TOP_K, MOST = 32, 8, 2, 6


def plan(**options) -> ExpertParallel:
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "top_k": TOP_K, "max_tokens": MOST, "dtype": torch.float32, "capacity": 0, "places": 0}
    return ExpertParallel(anabranch.torch.world(), **(sizes | options))


def parameters(ep: ExpertParallel) -> list[torch.Tensor]:
    """The router, and this rank's experts."""
    generator = torch.Generator().manual_seed(1)
    router = torch.randn(EXPERTS, HIDDEN, generator=generator) / HIDDEN**0.5
    experts = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
    return [router.requires_grad_(), experts[ep.experts_on()].requires_grad_()]


def tokens(rank: int, count: int = MOST) -> torch.Tensor:
    return torch.randn(MOST, HIDDEN, generator=torch.Generator().manual_seed(10 + rank))[:count].clone().requires_grad_()


def route(x, router):
    weights, ids = torch.topk(torch.softmax(x @ router.t(), -1), TOP_K)
    return ids, weights


def by_row(ep, x, router, experts):
    received = ep.dispatch(x, *route(x, router))
    own = torch.tensor(ep.experts_on())
    chosen = ((received.ids[:, :, None] == own) * received.weights[:, :, None]).sum(1)
    each = torch.einsum("eij,tj->tei", experts, received.rows)
    return ep.combine((each * chosen[:, :, None]).sum(1), received)


def by_expert(ep, x, router, experts):
    received = ep.dispatch_experts(x, *route(x, router))
    return ep.combine_experts(torch.einsum("eij,ecj->eci", experts, received.rows), received)


def grouped(ep, x, router, experts):
    received = ep.dispatch_grouped(x, *route(x, router))
    # The expert of each place; places after the last one's are of nobody.
    place = torch.arange(len(received.rows))
    of = (place[:, None] >= received.starts[None, 1:]).sum(1)
    each = torch.einsum("eij,tj->eti", experts, received.rows)
    mine = torch.nn.functional.one_hot(of, len(experts) + 1)[:, :-1].to(x.dtype)
    return ep.combine_grouped((each * mine.t()[:, :, None]).sum(0), received)


def in_one_place(x, router, experts):
    ids, weights = route(x, router)
    each = torch.einsum("eij,tj->tei", experts, x)
    chosen = torch.gather(each, 1, ids[:, :, None].expand(-1, -1, HIDDEN))
    return (chosen * weights[:, :, None]).sum(1)


def gradients(function, x, *others):
    out = torch.tanh(function(x, *others))
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *others])]


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@check
def gradients_equal_those_of_one_place(rank, size, gloo):
    for mode, alignment in (("slotted", 1), ("compact", 4)):
        ep = plan(mode=mode, alignment=alignment)
        router, own = parameters(ep)
        everyone = torch.empty(EXPERTS, HIDDEN, HIDDEN)
        dist.all_gather_into_tensor(everyone, own.detach(), group=gloo)
        expected = gradients(in_one_place, tokens(rank), router, everyone.requires_grad_())
        dist.all_reduce(expected[3], group=gloo)
        for layer in (by_row, by_expert, grouped):
            for _ in range(2):
                given = gradients(lambda *arguments: layer(ep, *arguments), tokens(rank), router, own)
                close(given[:3], expected[:3])
                close(given[3], expected[3][ep.experts_on()])


@check
def backward_passes_may_be_repeated(rank, size, gloo):
    ep = plan()
    x, (router, *experts) = tokens(rank).requires_grad_(), parameters(ep)
    loss = by_row(ep, x, router, *experts).square().sum()
    first = torch.autograd.grad(loss, experts, retain_graph=True)
    # The gradient of x, and so the combine of the backward dispatch, is never asked for.
    for _ in range(4):
        for one, other in zip(first, torch.autograd.grad(loss, experts, retain_graph=True), strict=True):
            close(one, other)


@check
def compiled_equals_eager(rank, size, gloo):
    ep = plan(name="compiled")
    router, own = parameters(ep)
    for layer in (by_row, by_expert, grouped):

        def step(x, router, own, layer=layer):
            return layer(ep, torch.tanh(layer(ep, x, router, own)), router, own)

        # All layers are one function to the limit of recompilations.
        torch.compiler.reset()
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        # Other counts of tokens are compiled with a symbol for them; a rank without tokens takes part.
        for count in (MOST, MOST - 1, 0 if rank else 3):
            close(gradients(compiled, tokens(rank, count), router, own), gradients(step, tokens(rank, count), router, own))
        with torch.no_grad():
            close(compiled(tokens(rank), router, own), step(tokens(rank), router, own))


@check
def every_op_passes_opcheck(rank, size, gloo):
    ep, ops = plan(id_dtype=torch.int64), torch.ops.anabranch
    router, _ = parameters(ep)
    x = tokens(rank)
    ids, weights = (part.detach() for part in route(x, router))
    sent = (x, ids, weights.requires_grad_(), None, ep.name, True)

    # A routing and a number are those of one dispatch: the check that calls an op twice finds them different, and
    # `compiled_equals_eager` is in its place.
    once = ("test_schema", "test_autograd_registration", "test_faketensor")

    def passed(op, arguments, tests=(*once, "test_aot_dispatch_dynamic")):
        outcome = torch.library.opcheck(op, arguments, test_utils=tests)
        assert set(outcome.values()) == {"SUCCESS"}, outcome

    def fresh(tensor):
        return tensor.detach().clone().requires_grad_(tensor.is_floating_point())

    passed(ops.ep_dispatch.default, sent, once)
    rows, _, _, row_weights, _, link, routing, number = map(fresh, ops.ep_dispatch(*sent))
    passed(ops.ep_combine.default, (rows, link, routing, number, len(x), ep.name))
    passed(ops.ep_dispatch_with.default, (x.detach(), routing, number, ep.name))
    passed(ops.ep_combine_weights.default, (rows.detach(), row_weights.detach(), link.detach(), routing, number, len(x), ep.name))
    passed(ops.ep_dispatch_experts.default, sent, once)
    rows, _, row_weights, _, link, routing, number = map(fresh, ops.ep_dispatch_experts(*sent))
    passed(ops.ep_combine_experts.default, (rows, row_weights, link, routing, number, len(x), ep.name))
    passed(ops.ep_dispatch_experts_with.default, (x.detach(), routing, number, ep.name))
    passed(ops.ep_combine_experts_weights.default, (rows.detach(), row_weights.detach(), link.detach(), routing, number, len(x), ep.name))
    passed(ops.ep_dispatch_grouped.default, sent, once)
    rows, _, row_weights, _, _, slots, link, routing, number = map(fresh, ops.ep_dispatch_grouped(*sent))
    passed(ops.ep_combine_grouped.default, (rows, row_weights, slots, link, routing, number, len(x), ep.name))
    passed(ops.ep_dispatch_grouped_with.default, (x.detach(), routing, number, ep.name))
    gradients = (rows.detach(), row_weights.detach(), slots, link.detach(), routing, number, len(x), ep.name)
    passed(ops.ep_combine_grouped_weights.default, gradients)


@check
def scales_come_with_their_rows(rank, size, gloo):
    ep = plan(scale_bytes=4)
    value = torch.arange(1, MOST + 1) + 10 * rank
    x, scales = value[:, None].float().expand(-1, HIDDEN), value[:, None].to(torch.uint8).expand(-1, 4)
    ids, weights = torch.arange(MOST * TOP_K).reshape(MOST, TOP_K) % EXPERTS, torch.ones(MOST, TOP_K)
    with torch.no_grad():
        received = ep.dispatch(x, ids, weights, scales)
        assert torch.equal(received.scales.float(), received.rows[:, :4]) and received.rows.any()
        ep.combine(received.rows, received)
        grouped = ep.dispatch_experts(x, ids, weights, scales)
        assert torch.equal(grouped.scales.float(), grouped.rows[:, :, :4]) and grouped.rows.any()
        ep.combine_experts(grouped.rows, grouped)
        placed = ep.dispatch_grouped(x, ids, weights, scales)
        assert torch.equal(placed.scales.float(), placed.rows[:, :4]) and placed.rows.any()
        ep.combine_grouped(placed.rows, placed)


@check
def rows_without_a_place_are_dropped(rank, size, gloo):
    few, whole = plan(places=3, capacity=None), plan(capacity=None)
    router, own = parameters(few)
    x = tokens(rank)
    with torch.no_grad():
        some, every = (ep.dispatch_grouped(x, *route(x, router)) for ep in (few, whole))
        assert torch.equal(some.starts, every.starts.clamp(max=3))
        assert torch.equal(some.counts, some.starts[1:] - some.starts[:-1]) and torch.equal(some.rows, every.rows[:3])
        for ep, received in ((few, some), (whole, every)):
            ep.combine_grouped(received.rows, received)


@check
def places_without_a_row_reach_no_gradient(rank, size, gloo):
    ep = plan(alignment=4)
    router, _ = parameters(ep)
    x, factor = tokens(rank), torch.ones((), requires_grad=True)

    def gradients_with(filling):
        received = ep.dispatch_grouped(x, *route(x, router))
        place = torch.arange(len(received.rows))
        ends = torch.cat((received.starts[:-1] + received.counts, torch.zeros(1, dtype=torch.int32)))
        is_taken = place < ends[torch.searchsorted(received.starts[1:], place.int(), right=True)]
        y = torch.where(is_taken[:, None], received.rows * 2, filling)
        out = ep.combine_grouped(y, received._replace(weights=received.weights * factor))
        return torch.autograd.grad(out.square().sum(), [x, router, factor])

    for given, expected in zip(gradients_with(float("nan")), gradients_with(0.0), strict=True):
        close(given, expected)


@check
def wrong_calls_are_refused(rank, size, gloo):
    ep = plan(name="one")
    x, ids = tokens(rank), torch.zeros(MOST, TOP_K, dtype=torch.int32)
    with pytest.raises(anabranch.UsageError, match="'one' already"):
        plan(name="one")
    with torch.no_grad():
        received = ep.dispatch(x, ids, torch.ones(MOST, TOP_K))
        ep.combine(received.rows, received)
        with pytest.raises(anabranch.UsageError, match="was not saved"):
            ep.combine(received.rows, received)
    without = ExpertParallel(anabranch.torch.world(), hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=MOST, dtype=torch.float32)
    with pytest.raises(anabranch.UsageError, match="no expert-major layout"):
        without.dispatch_experts(x, ids, torch.ones(MOST, TOP_K))
    with pytest.raises(anabranch.UsageError, match="no places for grouped rows"):
        without.dispatch_grouped(x, ids, torch.ones(MOST, TOP_K))
    with pytest.raises(anabranch.UsageError, match="is a Received; a ReceivedGrouped is needed"):
        ep.combine_grouped(received.rows, received)
    for wrong in ({"places": -1}, {"alignment": 3}, {"combine_source": "buffer"}, {"id_dtype": "int64"}):
        with pytest.raises(anabranch.UsageError, match="places|alignment|id_dtype"):
            plan(**wrong)
    if size > 1:
        with pytest.raises(anabranch.UsageError, match="of the group"):
            plan(places=8 + rank)
    name = without.name
    del without
    with pytest.raises(anabranch.UsageError, match="no plan of expert parallelism"):
        torch.ops.anabranch.ep_dispatch(x, ids, torch.ones(MOST, TOP_K), None, name, False)


if __name__ == "__main__":
    common.main()
