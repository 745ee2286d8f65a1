"""Differentiable dispatch and combine beside the same layer computed in one place by torch."""

import anabranch
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

RANKS, HIDDEN, EXPERTS, TOP_K, TOKENS = 2, 32, 4, 2, 6


def parameters():
    """The router and the experts, equal on all ranks."""
    generator = torch.Generator().manual_seed(1)
    router = torch.randn(EXPERTS, HIDDEN, generator=generator) / HIDDEN**0.5
    experts = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
    return router.requires_grad_(), experts.requires_grad_()


def tokens(rank):
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(10 + rank)).requires_grad_()


def route(x, router):
    weights, ids = torch.topk(torch.softmax(x @ router.t(), -1), TOP_K)
    return ids, weights


def in_one_place(rank, layers):
    """Output and gradients of a rank's tokens; experts' gradients are of these tokens alone."""
    router, experts = parameters()
    x = start = tokens(rank)
    for _ in range(layers):
        ids, weights = route(x, router)
        each = torch.einsum("eij,tj->tei", experts, x)
        chosen = torch.gather(each, 1, ids[:, :, None].expand(-1, -1, HIDDEN))
        x = torch.tanh((chosen * weights[:, :, None]).sum(1))
    x.square().sum().backward()
    return x.detach(), start.grad, router.grad, experts.grad


@pytest.mark.parametrize("mode", ["slotted", "compact"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_layer_and_its_gradients(settings, mode, layers):
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        router, experts = parameters()
        ep = ExpertParallel(
            world,
            hidden=HIDDEN,
            experts=EXPERTS,
            top_k=TOP_K,
            max_tokens=TOKENS,
            dtype=torch.float32,
            id_dtype=torch.int64 if mode == "compact" else torch.int32,
            mode=mode,
        )
        own = torch.tensor(ep.experts_on())
        for _ in range(2):
            router.grad = experts.grad = None
            x = start = tokens(world.rank)
            for _ in range(layers):
                ids, weights = route(x, router)
                received = ep.dispatch(x, ids, weights)
                # [rows, local experts]: the weight of each local expert for a row.
                chosen = (received.ids[:, :, None] == own) * received.weights[:, :, None]
                each = torch.einsum("eij,tj->tei", experts[own], received.rows)
                x = torch.tanh(ep.combine((each * chosen.sum(1)[:, :, None]).sum(1), received))
            x.square().sum().backward()
        return x.detach(), start.grad, router.grad, experts.grad

    results = anabranch.spawn_threads(work, RANKS, settings)
    expected = [in_one_place(rank, layers) for rank in range(RANKS)]
    close = lambda left, right: torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    for result, wanted in zip(results, expected):
        close(result[0], wanted[0])
        close(result[1], wanted[1])
        close(result[2], wanted[2])
    close(sum(result[3] for result in results), sum(wanted[3] for wanted in expected))


def test_a_forward_pass_alone_leaves_slots_free(settings):
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        ep = ExpertParallel(world, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32)
        router, _ = parameters()
        x = tokens(world.rank).detach()
        for _ in range(3):
            ep.dispatch(x, *route(x, router.detach()))
        received = ep.dispatch(x, *route(x, router.detach()))
        out = ep.combine(received.rows, received)
        owners = (route(x, router.detach())[0] * RANKS // EXPERTS).sort(1).values
        copies = 1 + (owners[:, 0] != owners[:, 1]).float()
        torch.testing.assert_close(out, x * copies[:, None])

    anabranch.spawn_threads(work, RANKS, settings)


def test_a_rank_without_rows_takes_part_in_the_backward_pass(settings):
    """Code of experts often skips what no token came to."""
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        ep = ExpertParallel(world, hidden=HIDDEN, experts=EXPERTS, top_k=1, max_tokens=TOKENS, dtype=torch.float32)
        scale = torch.ones((), requires_grad=True)
        x = tokens(world.rank)
        for _ in range(2):
            x.grad = None
            received = ep.dispatch(x, torch.zeros(TOKENS, 1, dtype=torch.int64), torch.ones(TOKENS, 1))
            came = (received.ids[:, 0] == 0).nonzero()[:, 0]
            y = torch.zeros_like(received.rows)
            if len(came):
                y = y.index_add(0, came, received.rows[came] * 3 * scale)
            assert (len(came) > 0) == (world.rank == 0)
            ep.combine(y, received).sum().backward()
            assert (x.grad == 3).all()

    anabranch.spawn_threads(work, RANKS, settings)


def test_a_refused_combine_and_second_derivatives(settings):
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        make = lambda: ExpertParallel(world, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32)
        ep, other = make(), make()
        router, _ = parameters()
        x = tokens(world.rank)
        for _ in range(2):
            received = ep.dispatch(x, *route(x, router))
            with pytest.raises(anabranch.UsageError, match="y has shape"):
                ep.combine(received.rows[:3], received)
            with pytest.raises(anabranch.UsageError, match="another ExpertParallel"):
                other.combine(received.rows, received)
            out = ep.combine(received.rows, received)
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula|does not require grad"):
            gradient.sum().backward()

    anabranch.spawn_threads(work, RANKS, settings)


@pytest.mark.parametrize("mode", ["slotted", "compact"])
def test_combine_multiplies_by_the_weights_that_it_is_given(settings, mode):
    """Weights that change between dispatch and combine, beside a dispatch of the changed ones."""
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        ep = ExpertParallel(
            world, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32, capacity=0, mode=mode
        )
        router, experts = parameters()

        def step(is_late):
            x = tokens(world.rank)
            ids, weights = route(x, router)
            received = ep.dispatch_experts(x, ids, weights if is_late else weights.square())
            y = torch.einsum("eij,ecj->eci", experts[ep.experts_on()], received.rows)
            if is_late:
                # Another dispatch takes the windows.
                ep.dispatch_experts(x.detach(), ids, weights.detach())
                # Not a number at empty places.
                received = received._replace(weights=received.weights.square() + 0 / received.weights)
            for wrong in (received.weights[:, :1], received.weights.double()):
                with pytest.raises(anabranch.UsageError, match=r"received.weights is .*; torch.float32 of shape \(2, 12\) is needed"):
                    ep.combine_experts(y, received._replace(weights=wrong))
            out = ep.combine_experts(y, received)
            return out.detach(), *torch.autograd.grad(out.square().sum(), [x, router, experts])

        late, early = step(True), step(False)
        assert torch.equal(late[0], early[0])
        for mine, wanted in zip(late, early):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)

    anabranch.spawn_threads(work, RANKS, settings)


def test_only_experts_are_trained(settings):
    """A rank without rows takes part in the backward pass, though nothing of its combine's input has a gradient."""
    from anabranch.torch.expert_parallel import ExpertParallel

    def work(world):
        ep = ExpertParallel(
            world, hidden=HIDDEN, experts=EXPERTS, top_k=1, max_tokens=TOKENS, dtype=torch.float32, capacity=0
        )
        ids, weights = torch.zeros(TOKENS, 1, dtype=torch.int64), torch.ones(TOKENS, 1)
        scale = torch.ones((), requires_grad=True)
        for step in range(2):
            received = ep.dispatch(tokens(world.rank).detach(), ids, weights)
            came = (received.ids[:, 0] == 0).nonzero()[:, 0]
            assert (len(came) > 0) == (world.rank == 0)
            y = torch.zeros_like(received.rows)
            ep.combine(y.index_add(0, came, received.rows[came] * scale) if len(came) else y, received).sum().backward()
            grouped = ep.dispatch_experts(tokens(world.rank).detach(), ids, weights)
            y = grouped.rows * scale if grouped.counts.any() else grouped.rows
            ep.combine_experts(y, grouped).sum().backward()
            assert not ep._plan._pending, "an operation that nothing combines holds a slot"
        return scale.grad

    trained, idle = anabranch.spawn_threads(work, RANKS, settings)
    expected = 4 * sum(tokens(rank).detach().sum() for rank in range(RANKS))
    torch.testing.assert_close(trained, expected)
    assert idle is None
