"""Scores against a full-vocabulary log-softmax."""

import pytest
import torch

from jevify.decide import head as head_module
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch

pytestmark = pytest.mark.cpu


def reference(weight, bias, branch, hidden):
    """Sum of log-softmax over the whole path, fp64."""
    logits = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    logs = logits.log_softmax(-1)
    totals, row = [], 1
    for path in branch.answers:
        total = logs[0, path[0]].item()
        for token in path[1:]:
            total += logs[row, token].item()
            row += 1
        totals.append(total)
    return totals


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_paths_are_scored_up_to_one_constant(dtype, biased, monkeypatch):
    monkeypatch.setattr(head_module, "_VOCABULARY_CHUNK", 7)
    torch.manual_seed(0)
    weight, hidden = torch.randn(50, 12).to(dtype), torch.randn(9, 12).to(dtype)
    bias = torch.randn(50).to(dtype) if biased else None
    branches = [
        Branch((1,), ((3,), (4,))),
        Branch((1,), ((5, 6, 7), (8,), (5, 9))),
        Branch((2,), ((3, 49, 0, 1),)),
    ]
    scores = AnswerHead(weight, bias).score(branches, hidden)
    row = 0
    for branch, found in zip(branches, scores, strict=True):
        wanted = reference(weight, bias, branch, hidden[row : row + branch.rows])
        shift = found[0] - wanted[0]
        assert found == pytest.approx([value + shift for value in wanted], abs=1e-5)
        row += branch.rows
    assert row == 9


def test_selected_rows_are_reused_until_cleared():
    weight = torch.eye(6)
    head = AnswerHead(weight, None)
    branch, hidden = Branch((0,), ((1,), (2,))), torch.arange(6.0)[None]
    assert head.score([branch], hidden) == [[1.0, 2.0]]
    weight.mul_(2)
    assert head.score([branch], hidden) == [[1.0, 2.0]]
    assert (head.counters.hits, head.counters.misses) == (1, 1)
    head.clear()
    assert head.score([branch], hidden) == [[2.0, 4.0]]
    assert (head.counters.hits, head.counters.misses) == (1, 2)


def test_the_cache_is_bounded():
    head = AnswerHead(torch.eye(60), None)
    for token in range(40):
        head.score([Branch((0,), ((token,),))], torch.zeros(1, 60))
    assert len(head._selected) == head_module.CACHED_SELECTIONS


def test_no_leaf_rows_read_no_vocabulary(monkeypatch):
    calls = []
    original = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: calls.append(1) or original(*given))
    head = AnswerHead(torch.randn(50, 8), None)
    none = torch.empty(0, dtype=torch.int32)
    logits, normalizers = head.project(torch.randn(3, 8), head.rows((1, 2)), none)
    assert logits.shape == (3, 2)
    assert normalizers.shape == (0,)
    assert len(calls) == 1
