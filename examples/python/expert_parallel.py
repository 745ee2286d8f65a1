"""A mixture-of-experts layer without a framework: every rank routes tokens to the experts of all ranks.

    python -m anabranch run -n 4 -- python examples/python/expert_parallel.py

Needs numpy. On the host runtime no GPU is needed; on GPUs the arrays would be torch's, JAX's or cupy's.
"""

import anabranch
import numpy

HIDDEN, EXPERTS, TOP_K, TOKENS = 256, 8, 2, 64


def main() -> None:
    with anabranch.init() as world:
        plan = anabranch.EpConfig(
            hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dispatch_dtype="float32", combine_dtype="float32"
        )
        ep = world.expert_parallel(plan)

        random = numpy.random.default_rng(world.rank)
        tokens = random.standard_normal((TOKENS, HIDDEN), numpy.float32)
        ids = numpy.stack([random.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).astype(numpy.int32)
        weights = numpy.full((TOKENS, TOP_K), 1 / TOP_K, numpy.float32)

        # Each token goes once to every rank that owns one of its experts.
        dispatched = ep.dispatch(tokens, ids, weights)
        world.synchronize()

        # The experts of this rank: expert e multiplies by e + 1. Their output lies where the rows came.
        rows, output = numpy.from_dlpack(dispatched.rows), numpy.from_dlpack(dispatched.combine_rows)
        counts, offsets = numpy.from_dlpack(dispatched.counts), numpy.from_dlpack(dispatched.offsets)
        for source, count in enumerate(counts):
            start = ep.row_stride * source if ep.row_stride else offsets[source]
            here = slice(start, start + count)
            factor = numpy.zeros(count, numpy.float32)
            for expert in ep.experts_on():
                chosen = numpy.from_dlpack(dispatched.ids)[here] == expert
                factor += (expert + 1) * (numpy.from_dlpack(dispatched.weights)[here] * chosen).sum(1)
            output[here] = rows[here] * factor[:, None]

        # The outputs of each token come back as one sum.
        result = numpy.empty_like(tokens)
        ep.combine(dispatched, out=result)
        world.synchronize()

        expected = tokens * ((ids + 1) * weights).sum(1)[:, None]
        error = abs(result - expected).max()
        print(f"rank {world.rank}: {counts.sum()} rows for experts {ep.experts_on()}, largest error {error:.1e}")
        assert error < 1e-5


if __name__ == "__main__":
    main()
