"""Scores of every executor against transformers' logits, and their independence of siblings, neighbours and order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jevify.accel.ops import MODULE_KERNELS
from jevify.decide.executors.base import Executor
from jevify.decide.plan import Branch, RequestPlan
from jevify.evidence.validate import tiny
from jevify.evidence.validate.cases import (
    by_transformers,
    distance,
    forked,
    independent,
    model_of,
    packed,
    plans,
    run,
    small_model,
)
from jevify.evidence.validate.check import Check

Build = Callable[[Any], Executor]

EXECUTORS: dict[str, Build] = {
    "independent": independent,
    "packed": packed,
    "packed-passes": partial(packed, token_budget=16),
    "packed-groups": partial(packed, token_budget=60),
    "forked": forked,
    "forked-one-row": partial(forked, branch_batch_size=1),
    "forked-ungrouped": partial(forked, branch_batch_size=3, length_aware=False),
    "forked-deep-copies": partial(forked, efficient_cache=False),
}
KERNELS: dict[str, Build] = {
    "packed": partial(packed, kernel=True),
    "packed-passes": partial(packed, kernel=True, token_budget=20),
    "packed-fused": partial(packed, kernels=MODULE_KERNELS),
    "forked-shared": partial(forked, share=True, branch_batch_size=3),
    "forked-fused": partial(forked, kernels=MODULE_KERNELS),
}
ISOLATED: dict[str, Build] = {"packed": packed, "forked": forked}


def parity(build: Build, family: str) -> float:
    """Largest distance of a log-probability, all requests in one call."""
    return distance(run(build(model_of(family)), plans()), by_transformers(model_of(family), plans()))


def kernel_parity(build: Build) -> float:
    """The same through Triton kernels."""
    return distance(run(build(small_model("qwen3")), plans()), by_transformers(small_model("qwen3"), plans()))


def float32_oracle(family: str) -> float:
    """The oracle on bf16 weights against the upcast model."""
    low = independent(model_of(family, dtype=torch.bfloat16), float32=True)
    wide = model_of(family, dtype=torch.bfloat16).float()
    return distance(run(low, plans()), by_transformers(wide, plans()))


def siblings(build: Build) -> float:
    """How far a branch moves when its siblings are others, or not there."""
    ragged = plans()[0]
    executor = build(model_of("qwen3"))
    whole = run(executor, [ragged])
    others = plans(seed=4)[0].branches
    gaps = []
    for index, branch in enumerate(ragged.branches):
        changed = tuple(branch if place == index else other for place, other in enumerate(others))
        gaps.append(distance([run(executor, [RequestPlan(ragged.prefix, changed)])[index]], [whole[index]]))
        gaps.append(distance(run(executor, [RequestPlan(ragged.prefix, (branch,))]), [whole[index]]))
    return max(gaps)


def neighbours(build: Build) -> float:
    """How far a request moves when other requests share its call."""
    executor = build(model_of("llama"))
    gaps = []
    for index, plan in enumerate(plans()):
        crowd = plans(seed=6)
        crowd[index] = plan
        begin = sum(len(other.branches) for other in crowd[:index])
        found = run(executor, crowd)[begin : begin + len(plan.branches)]
        gaps.append(distance(found, run(executor, [plan])))
    return max(gaps)


def order(build: Build) -> float:
    """How far requests move when their call lists them the other way round."""
    executor = build(model_of("qwen2"))
    forward = [run(executor, [plan]) for plan in plans()]
    backward = executor_order(executor, plans()[::-1])[::-1]
    return max(distance(found, wanted) for found, wanted in zip(backward, forward, strict=True))


def executor_order(executor: Executor, requests: list[RequestPlan]) -> list[list[list[float]]]:
    """The answers of one call, request by request."""
    found, sizes = run(executor, requests), [len(plan.branches) for plan in requests]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [found[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def repeats(build: Build) -> float:
    """Answers that are not the same bits when asked again, after other requests."""
    executor = build(model_of("qwen3"))
    first = run(executor, plans())
    run(executor, plans(seed=12))
    return sum(one != other for one, other in zip(first, run(executor, plans()), strict=True))


def prefix_unchanged() -> float:
    """How far the second of two equal questions is from the first, each in a forward of its own."""
    branch = Branch((7, 8, 9), ((1,), (2, 3)))
    first, second = run(forked(model_of("llama"), branch_batch_size=1), [RequestPlan((4, 5, 6, 7), (branch, branch))])
    return distance([first], [second])


CHECKS = (
    *(
        Check(f"scores.{name}.{family}", "log_probability", partial(parity, build, family))
        for name, build in EXECUTORS.items()
        for family in tiny.FAMILIES
    ),
    *(
        Check(f"scores.kernel.{name}", "log_probability", partial(kernel_parity, build))
        for name, build in KERNELS.items()
    ),
    *(
        Check(f"scores.float32-oracle.{family}", "log_probability", partial(float32_oracle, family))
        for family in ("llama", "qwen3")
    ),
    *(
        Check(f"isolation.{measure.__name__}.{name}", "isolation", partial(measure, build))
        for measure in (siblings, neighbours, order)
        for name, build in ISOLATED.items()
    ),
    Check("isolation.prefix-unchanged.forked", "isolation", prefix_unchanged),
    *(Check(f"repeats.{name}", "violations", partial(repeats, build)) for name, build in ISOLATED.items()),
)
