"""One storage for the weights: nothing derived from it outlives a change of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jevify.engine import DecisionEngine
from jevify.errors import InputError
from jevify.evidence.validate import tiny
from jevify.evidence.validate.answers import CONTEXT, QUESTIONS, by_transformers, engine_over, probability_distance
from jevify.evidence.validate.cases import model_of
from jevify.evidence.validate.check import Check


@torch.no_grad()
def _head(model: Any) -> None:
    model.get_output_embeddings().weight.mul_(-1.7)


@torch.no_grad()
def _layers(model: Any) -> None:
    for layer in model.base_model.layers:
        layer.self_attn.v_proj.weight.mul_(-1.3)
        layer.mlp.up_proj.weight.add_(0.05)


def changed_in_place(change: Callable[[Any], None], executor: str) -> float:
    """Distance from transformers after an in-place change of weights and `clear_optimization_cache`."""
    model = model_of("qwen2")
    engine = engine_over(model, executor=executor)
    before = engine.decide(CONTEXT, QUESTIONS)
    change(model)
    engine.clear_optimization_cache()
    after = engine.decide(CONTEXT, QUESTIONS)
    if not probability_distance(before, after) > 1e-4:
        raise RuntimeError("the change of the weights changed no answer")
    return probability_distance(after, by_transformers(engine, model, CONTEXT, QUESTIONS))


def replaced() -> float:
    """Ways of moving a parameter that the engine goes on with, instead of refusing the model."""
    missed = 0
    for move in (_new_data, _new_parameter, _new_frequencies):
        model = model_of("llama-biased")
        engine = engine_over(model, executor="packed")
        engine.decide(CONTEXT, QUESTIONS)
        move(model)
        try:
            engine.decide(CONTEXT, QUESTIONS)
        except InputError:
            continue
        missed += 1
    return missed


def _new_data(model: Any) -> None:
    weight = model.base_model.layers[1].self_attn.k_proj.weight
    weight.data = weight.data * 2


def _new_parameter(model: Any) -> None:
    model.base_model.norm.weight = torch.nn.Parameter(model.base_model.norm.weight * 2, requires_grad=False)


def _new_frequencies(model: Any) -> None:
    model.base_model.rotary_emb.inv_freq = model.base_model.rotary_emb.inv_freq * 2


def one_storage() -> float:
    """Parameters that merging gave other values, or left outside the merged tensors."""
    model, untouched = model_of("llama-biased"), model_of("llama-biased")
    engine_over(model)
    wrong = sum(
        not torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), untouched.parameters(), strict=True)
    )
    for layer in model.base_model.layers:
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        wrong += len({part.weight.untyped_storage().data_ptr() for part in parts}) - 1
    return wrong


def engines_apart() -> float:
    """How far an engine's answers move when another of other settings on the same model runs between them."""
    model = model_of("qwen3")
    first = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor="packed")
    second = first.with_settings(executor="forked", branch_batch_size=1, temperature=3.0)
    before = first.decide(CONTEXT, QUESTIONS)
    second.decide("Another text.", QUESTIONS)
    return probability_distance(first.decide(CONTEXT, QUESTIONS), before)


CHECKS = (
    *(
        Check(f"weights.changed-in-place.{name}.{executor}", "probability", partial(changed_in_place, change, executor))
        for name, change in (("head", _head), ("layers", _layers))
        for executor in ("packed", "forked", "independent")
    ),
    Check("weights.replaced-is-refused", "violations", replaced),
    Check("weights.one-storage", "violations", one_storage),
    Check("weights.engines-apart", "isolation", engines_apart),
)
