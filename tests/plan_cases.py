"""Tokenized requests of every shape, and executors over tiny models to run them."""

import math

import pytest
import torch

from jevify.decide.executors.forked import ForkedExecutor
from jevify.decide.executors.independent import IndependentExecutor
from jevify.decide.executors.packed import PackedExecutor
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch, RequestPlan
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.weights import merge


def plans():
    """A request with ragged branches, single tokens and label paths, a lone question, and equal-width branches."""
    generator = torch.Generator().manual_seed(3)

    def tokens(count):
        return tuple(torch.randint(0, 700, (count,), generator=generator).tolist())

    ragged = RequestPlan(
        tokens(19),
        (
            Branch(tokens(9), ((1,), (2,), (3,))),
            Branch(tokens(1), ((4,), (5, 6, 7), (5, 8), (9, 9))),
            Branch(tokens(14), ((10, 11), (12, 13, 14))),
            Branch(tokens(5), ((1,),)),
        ),
    )
    lone = RequestPlan((), (Branch(tokens(11), ((1,), (2, 3))),))
    even = RequestPlan(tokens(4), tuple(Branch(tokens(6), ((1,), (2,))) for _ in range(5)))
    return [ragged, lone, even]


def build(name, model, **options):
    weights = merge(model)
    head = AnswerHead(weights.head, weights.head_bias)
    if name == "packed":
        return PackedExecutor(DenseDecoder(weights), head, token_budget=options.get("token_budget", 8192))
    if name == "forked":
        defaults = {"branch_batch_size": 8, "efficient_cache": True, "length_aware": True, "strict": False}
        return ForkedExecutor(model, head, **{**defaults, **options})
    return IndependentExecutor(model, head, **options)


def relative(scores):
    """Log-probabilities over the options of each branch: what is defined beyond a constant."""
    return [
        [value - math.log(sum(math.exp(other) for other in options)) for value in options]
        for request in scores
        for options in request
    ]


def assert_same(found, wanted, tolerance):
    for ours, theirs in zip(relative(found), relative(wanted), strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)
