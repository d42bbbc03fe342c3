"""Tokenized requests of every shape, executors over tiny models to run them, and what transformers says of them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from jevify.accel.graphs import CaptureSpace, GraphPool
from jevify.accel.stages import StageTimer
from jevify.decide.executors.base import BranchScores, Executor
from jevify.decide.executors.forked import ForkedExecutor
from jevify.decide.executors.independent import IndependentExecutor
from jevify.decide.executors.packed import PackedExecutor
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch, RequestPlan, Tokens
from jevify.evidence.validate import tiny
from jevify.evidence.validate.host_graphs import HostSpace
from jevify.models.lm.attention import KernelAttention
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.fused import Fusion, model_ops
from jevify.models.lm.shared_prefix import SharedPrefix
from jevify.models.lm.weights import DenseWeights, merge

VOCABULARY = 700
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Log-probabilities over the options of every branch of every request, in order.
LogProbabilities = list[list[float]]


def plans(seed: int = 3) -> list[RequestPlan]:
    """A request with ragged branches, single tokens and label paths, a lone question, and equal-width branches.

    Requests of all seeds have the same shapes.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> Tokens:
        return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())

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


def other_shapes() -> list[RequestPlan]:
    """Requests that fit the buckets of `plans` with other prefixes, branches and depths."""
    ragged, lone, even = plans(seed=9)
    return [
        RequestPlan(ragged.prefix[:5], ragged.branches[1:]),
        RequestPlan(even.prefix, (even.branches[0], ragged.branches[2])),
        RequestPlan(lone.branches[0].tokens, even.branches[:2]),
    ]


def model_of(family: str, **changes: Any) -> Any:
    """A tiny model on the device at hand; the head of "llama-biased" has a bias."""
    made = tiny.model(family, **changes)
    if family == "llama-biased":
        generator = torch.Generator().manual_seed(8)
        bias = torch.randn(made.lm_head.out_features, generator=generator).to(made.dtype)
        made.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return made.to(DEVICE)


def small_model(family: str, **changes: Any) -> Any:
    """A model whose attention the kernel takes, small: without a GPU the interpreter runs every program."""
    sizes = {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    return model_of(family, **{**sizes, "num_hidden_layers": 2, **changes})


def kernel_attention(weights: DenseWeights) -> KernelAttention:
    """The token-tree kernel for `weights`, without a fallback."""
    return KernelAttention(
        heads=weights.heads,
        kv_heads=weights.kv_heads,
        head_dim=weights.head_dim,
        dtype=weights.embedding.dtype,
        device=weights.embedding.device,
        specialize_short=True,
    )


def graph_pool(**bounds: Any) -> GraphPool:
    """CUDA graphs where there is a GPU; elsewhere a space that runs the bodies again."""
    space: Any = CaptureSpace(DEVICE) if DEVICE.type == "cuda" else HostSpace()
    return GraphPool(space, **{"max_graphs": 16, "budget_bytes": 2**30, **bounds})


def packed(model: Any, *, kernel: bool = False, kernels: Sequence[str] = (), **options: Any) -> PackedExecutor:
    """A packed executor over `model`. kernel: attend with the token-tree kernel; kernels: fused ones to use."""
    weights = merge(model)
    decoder = DenseDecoder(weights, model_ops(model, kernels), kernel_attention(weights) if kernel else None)
    return PackedExecutor(decoder, AnswerHead(weights.head, weights.head_bias), **{"token_budget": 8192, **options})


def forked(model: Any, *, share: bool = False, kernels: Sequence[str] = (), **options: Any) -> ForkedExecutor:
    """A forked executor over `model`.

    share: branches read the prefix in place, through the attention kernel; kernels: fused ones to put on the modules.
    """
    weights = merge(model)
    shared = SharedPrefix() if share else None
    settings = {"branch_batch_size": 8, "efficient_cache": True, "length_aware": True, "strict": False}
    return ForkedExecutor(
        model,
        AnswerHead(weights.head, weights.head_bias),
        fusion=Fusion(model, model_ops(model, kernels), shared) if share or kernels else None,
        attention=kernel_attention(weights) if share else None,
        shared=shared,
        **{**settings, **options},
    )


def independent(model: Any, **options: Any) -> IndependentExecutor:
    """The oracle's executor over `model`."""
    weights = merge(model)
    return IndependentExecutor(model, AnswerHead(weights.head, weights.head_bias), **options)


def run(executor: Executor, requests: Sequence[RequestPlan]) -> LogProbabilities:
    """Log-probabilities over the options of each branch, requests in one call."""
    return relative(executor.run(requests, StageTimer()))


def relative(scores: Sequence[BranchScores]) -> LogProbabilities:
    """What is defined of scores beyond a constant a branch."""
    return [_normalized(options) for request in scores for options in request]


@torch.no_grad()
def by_transformers(model: Any, requests: Sequence[RequestPlan]) -> LogProbabilities:
    """The same from the model's own logits, in fp64 from there on: one forward for each option."""
    found = []
    for request in requests:
        for branch in request.branches:
            start = request.prefix + branch.tokens
            found.append(_normalized([_path_likelihood(model, start, path) for path in branch.answers]))
    return found


def _path_likelihood(model: Any, start: Tokens, path: Tokens) -> float:
    ids = torch.tensor([start + path], device=model.device)
    logs: Tensor = model(ids).logits[0].double().log_softmax(-1)
    return sum(logs[len(start) - 1 + index, token].item() for index, token in enumerate(path))


def _normalized(values: Sequence[float]) -> list[float]:
    top = max(values)
    shift = top + math.log(math.fsum(math.exp(value - top) for value in values))
    return [value - shift for value in values]


def distance(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> float:
    """The largest absolute difference; infinite where one is no number. Raises ValueError for unequal lengths."""
    gaps = [
        abs(ours - theirs)
        for mine, other in zip(found, wanted, strict=True)
        for ours, theirs in zip(mine, other, strict=True)
    ]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps)


def tensor_distance(found: Tensor, wanted: Tensor) -> float:
    """As `distance`, of two tensors of one shape."""
    if found.shape != wanted.shape:
        raise ValueError(f"{tuple(found.shape)} cannot be compared with {tuple(wanted.shape)}")
    gap = (found.double() - wanted.double()).abs().max().item()
    return math.inf if math.isnan(gap) else gap
