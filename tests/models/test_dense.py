"""The packed decoder against transformers, one question at a time."""

import pytest
import torch

import tiny
from jevify.accel.tree import TokenTree
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.weights import merge

pytestmark = pytest.mark.cpu


def ragged_tree(vocabulary=700):
    """Two requests: a prefix with ragged branches and label leaves, and a lone question."""
    generator = torch.Generator().manual_seed(5)

    def tokens(count):
        return torch.randint(0, vocabulary, (count,), generator=generator).tolist()

    tree = TokenTree()
    root = tree.add(tokens(23))
    branches = [tree.add(tokens(length), root) for length in (7, 1, 30)]
    for length in (1, 2, 5):
        tree.add(tokens(length), branches[0])
    tree.add(tokens(3), branches[2])
    tree.add(tokens(9))
    return tree


def reference(model, tree):
    """Hidden states of each segment, from a transformers forward over its whole path."""
    states = []
    for index, segment in enumerate(tree.segments):
        path = [token for ancestor in tree.path(index) for token in tree.segments[ancestor].tokens]
        with torch.no_grad():
            hidden = model.base_model(torch.tensor([path])).last_hidden_state[0]
        states.append(hidden[-len(segment.tokens) :])
    return states


def packed(model, tree, budget):
    """Hidden states of each segment, from our passes."""
    decoder = DenseDecoder(merge(model))
    states = [[] for _ in tree.segments]
    carried = None
    for step in tree.passes(budget):
        hidden, carried = decoder.forward(step, range(len(step.token_ids)), carried)
        for piece in step.pieces:
            states[piece.segment].append(hidden[piece.row : piece.row + piece.length])
    return [torch.cat(parts) for parts in states]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("budget", [10_000, 31, 5, 1])
def test_hidden_states_match_transformers_to_1e_5(family, budget):
    model, tree = tiny.model(family), ragged_tree()
    expected = reference(model, tree)
    for found, wanted in zip(packed(model, tree, budget), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_as_near_to_fp32_as_transformers_does(family, dtype):
    exact = reference(tiny.model(family), tree := ragged_tree())
    model = tiny.model(family, dtype=dtype)
    theirs, ours = reference(model, tree), packed(model, tree, 10_000)

    def error(states):
        return torch.cat([(a.float() - b).abs().flatten() for a, b in zip(states, exact, strict=True)]).mean().item()

    assert error(ours) <= 1.2 * error(theirs)


@pytest.mark.parametrize(
    "changes", [{"num_attention_heads": 3, "hidden_size": 33, "head_dim": 22}, {"num_hidden_layers": 1}]
)
def test_odd_sizes(changes):
    model = tiny.model("qwen3", **changes)
    tree = ragged_tree()
    for found, wanted in zip(packed(model, tree, 17), reference(model, tree), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_only_wanted_rows_come_back():
    model, tree = tiny.model("qwen2"), ragged_tree()
    (step,) = tree.passes(10_000)
    decoder = DenseDecoder(merge(model))
    everything, _ = decoder.forward(step, range(len(step.token_ids)))
    some, carried = decoder.forward(step, [30, 2, 2])
    assert carried is None
    torch.testing.assert_close(some, everything[[30, 2, 2]], atol=1e-5, rtol=0)


def test_a_pass_without_its_carried_rows_is_refused():
    model, tree = tiny.model("llama"), ragged_tree()
    second = tree.passes(31)[1]
    assert second.carried
    with pytest.raises(ValueError, match="carried rows, got 0"):
        DenseDecoder(merge(model)).forward(second, [0])


def test_a_branch_does_not_see_its_sibling():
    model = tiny.model("llama")
    states = []
    for sibling in ([5, 6, 7], [400, 401]):
        tree = TokenTree()
        root = tree.add([1, 2, 3])
        tree.add(sibling, root)
        tree.add([9, 10], root)
        states.append(packed(model, tree, 100)[2])
    torch.testing.assert_close(states[0], states[1], atol=1e-6, rtol=0)
