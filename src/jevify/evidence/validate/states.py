"""Hidden states of every packed layout against transformers, one whole path a forward."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from jevify.accel.tree import TokenTree
from jevify.evidence.validate import tiny
from jevify.evidence.validate.cases import DEVICE, VOCABULARY, kernel_attention, model_of, small_model, tensor_distance
from jevify.evidence.validate.check import Check
from jevify.models.lm.dense import DenseDecoder, KeyValues
from jevify.models.lm.weights import merge

# Rows of a pass: everything at once, a few passes, passes that cut every segment, a token at a time.
BUDGETS = {"one-pass": 10_000, "few-passes": 31, "many-passes": 5, "token-by-token": 1}


def ragged_tree() -> TokenTree:
    """Two requests: a prefix with ragged branches and label leaves, and a lone question."""
    generator = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
        return found

    tree = TokenTree()
    root = tree.add(tokens(23))
    branches = [tree.add(tokens(length), root) for length in (7, 1, 30)]
    for length in (1, 2, 5):
        tree.add(tokens(length), branches[0])
    tree.add(tokens(3), branches[2])
    tree.add(tokens(9))
    return tree


@torch.no_grad()
def by_transformers(model: Any, tree: TokenTree) -> Tensor:
    """Hidden states of all segments in order; `model` must be one that was never merged."""
    states = []
    for index, segment in enumerate(tree.segments):
        path = [token for ancestor in tree.path(index) for token in tree.segments[ancestor].tokens]
        hidden = model.base_model(torch.tensor([path], device=DEVICE)).last_hidden_state[0]
        states.append(hidden[-len(segment.tokens) :])
    return torch.cat(states)


def by_passes(model: Any, tree: TokenTree, budget: int, *, kernel: bool = False) -> Tensor:
    """The same from our passes."""
    weights = merge(model)
    decoder = DenseDecoder(weights, attention=kernel_attention(weights) if kernel else None)
    states: list[list[Tensor]] = [[] for _ in tree.segments]
    carried: KeyValues | None = None
    for step in tree.passes(budget):
        hidden, carried = decoder.forward(step, range(len(step.token_ids)), carried)
        for piece in step.pieces:
            states[piece.segment].append(hidden[piece.row : piece.row + piece.length])
    return torch.cat([part for parts in states for part in parts])


def parity(family: str, budget: int) -> float:
    """Largest distance in fp32."""
    tree = ragged_tree()
    return tensor_distance(by_passes(model_of(family), tree, budget), by_transformers(model_of(family), tree))


def kernel_parity(budget: int) -> float:
    """The same with the attention kernel."""
    tree = ragged_tree()
    found = by_passes(small_model("qwen3"), tree, budget, kernel=True)
    return tensor_distance(found, by_transformers(small_model("qwen3"), tree))


def low_precision(family: str) -> float:
    """Our mean error in bf16 over that of transformers in bf16, both against its fp32."""
    tree = ragged_tree()
    exact = by_transformers(model_of(family), tree)
    theirs = by_transformers(model_of(family, dtype=torch.bfloat16), tree)
    ours = by_passes(model_of(family, dtype=torch.bfloat16), tree, 10_000)
    return ((ours.float() - exact).abs().mean() / (theirs.float() - exact).abs().mean()).item()


CHECKS = (
    *(
        Check(f"states.{family}.{layout}", "hidden_state", partial(parity, family, budget))
        for family in tiny.FAMILIES
        for layout, budget in BUDGETS.items()
    ),
    Check("states.kernel.one-pass", "hidden_state", partial(kernel_parity, 10_000)),
    Check("states.kernel.few-passes", "hidden_state", partial(kernel_parity, 31)),
    *(
        Check(f"states.{family}.bfloat16", "low_precision_excess", partial(low_precision, family))
        for family in ("qwen2", "qwen3")
    ),
)
