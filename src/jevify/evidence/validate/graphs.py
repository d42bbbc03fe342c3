"""What graphs replay: always the present inputs, kept apart from the next replay, and given back when dropped."""

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jevify.accel.graphs import GraphPool
from jevify.decide.executors.base import Executor
from jevify.decide.plan import RequestPlan
from jevify.evidence.validate.cases import (
    DEVICE,
    by_transformers,
    distance,
    forked,
    graph_pool,
    model_of,
    other_shapes,
    packed,
    plans,
    run,
    small_model,
)
from jevify.evidence.validate.check import Check

# Makes an executor over a model with a pool of graphs.
Build = Callable[[Any, GraphPool], Executor]


def _packed(model: Any, graphs: GraphPool, *, bucketed: bool) -> Executor:
    return packed(model, kernel=True, graphs=graphs, bucketed=bucketed, strict=True)


def _forked(model: Any, graphs: GraphPool, *, share: bool) -> Executor:
    return forked(model, share=share, graphs=graphs, branch_batch_size=3, strict=True)


EXECUTORS: dict[str, Build] = {
    "packed-exact": partial(_packed, bucketed=False),
    "forked-copied": partial(_forked, share=False),
    "forked-shared": partial(_forked, share=True),
}


def _model(family: str) -> Any:
    # What a graph may get stale is in every layer alike.
    return small_model(family, num_hidden_layers=1)


def freshness(build: Build, rounds: Sequence[Sequence[RequestPlan]]) -> float:
    """Largest distance from transformers, a request a call, over rounds that meet graphs captured before."""
    model, graphs = _model("qwen3"), graph_pool()
    executor = build(model, graphs)
    gaps = [distance(run(executor, [plan]), by_transformers(model, [plan])) for requests in rounds for plan in requests]
    counters = graphs.counters()
    if counters["captures"] >= counters["replays"]:
        raise RuntimeError(f"no graph was replayed for other contents: {counters}")
    return max(gaps)


def same_shapes(build: Build) -> float:
    """Other tokens under the shapes captured."""
    return freshness(build, [plans(), plans(seed=7)])


def same_bucket() -> float:
    """Other prefixes, branches and depths under a bucket captured: layout, positions and reads change."""
    return freshness(partial(_packed, bucketed=True), [plans(), other_shapes(), plans(seed=7)])


def kept_apart(build: Build) -> float:
    """Largest distance when one call replays a graph for several requests or batches before any answer is read."""
    model, graphs = _model("qwen2"), graph_pool()
    executor = build(model, graphs)
    requests = [plan for seed in (3, 7) for plan in plans(seed)[2:]]
    return distance(run(executor, requests), by_transformers(model, requests))


def _small_passes(model: Any, graphs: GraphPool) -> Executor:
    return packed(model, kernel=True, graphs=graphs, bucketed=True, strict=True, token_budget=40)


def own_inputs() -> float:
    """Elements of a caller's tensor that its graph wrote or that a later change of it reached."""
    graphs, given = graph_pool(), torch.full((4,), 7, device=DEVICE)
    graphs.run("same", [given], lambda x: x + 1, estimate_bytes=0)
    given.fill_(100)
    fresh = torch.ones(4, dtype=given.dtype, device=DEVICE)
    found = graphs.run("same", [fresh], lambda x: x + 1, estimate_bytes=0)
    assert found is not None
    return float((found != 2).sum() + (given != 100).sum())


def bounds() -> float:
    """Graphs kept beyond `max_graphs`, and evictions that were not of the least recently used."""
    graphs = graph_pool(max_graphs=2)
    one = torch.ones(1, device=DEVICE)
    for key in ("a", "b", "a", "c", "a", "b"):
        graphs.run(key, [one], lambda x: x + 1, estimate_bytes=0)
    counters = graphs.counters()
    return abs(counters["captures"] - 4) + abs(counters["evictions"] - 2) + max(0, counters["resident"] - 2)


def returned() -> float:
    """Tensors of a pool that live on after `clear`: buffers, outputs and what bodies read."""
    model, graphs = _model("qwen2"), graph_pool()
    executor = _packed(model, graphs, bucketed=True)
    run(executor, plans())
    held = [weakref.ref(tensor) for entry in graphs._entries.values() for tensor in (*entry.inputs, entry.output)]
    if not held:
        raise RuntimeError("the pool held no graph")
    graphs.clear()
    gc.collect()
    return sum(reference() is not None for reference in held)


def settled_memory(name: str) -> float:
    """Tensors that stay after each further call of an executor, once the first calls have made theirs."""
    model = model_of("llama")
    executor = packed(model) if name == "packed" else forked(model)
    run(executor, plans())
    before = _living()
    for _ in range(3):
        run(executor, plans())
    return max(0, _living() - before)


def _living() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


CHECKS = (
    *(
        Check(f"replay.same-shapes.{name}", "log_probability", partial(same_shapes, build))
        for name, build in EXECUTORS.items()
    ),
    Check("replay.same-bucket.packed", "log_probability", same_bucket),
    Check("replay.kept-apart.packed", "log_probability", partial(kept_apart, _small_passes)),
    Check("replay.kept-apart.forked", "log_probability", partial(kept_apart, EXECUTORS["forked-copied"])),
    Check("replay.own-inputs", "violations", own_inputs),
    Check("replay.bounds", "violations", bounds),
    Check("memory.graphs-returned", "violations", returned),
    *(Check(f"memory.settled.{name}", "violations", partial(settled_memory, name)) for name in ("packed", "forked")),
)
