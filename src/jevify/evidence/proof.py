"""Whether an arm's counters show that what it asked for ran."""

from collections.abc import Mapping
from typing import Any


def unproven(
    settings: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], rounds: int
) -> str | None:
    """Why the engine counters around `rounds` timed decisions do not show the fast path; None when they do.

    With `cuda_graphs` every decision must have replayed a graph, and none may have fallen back. With `fused_kernels`
    each must have launched since the engine was made, and in these rounds launches or replays must have risen: the
    replay of a captured graph launches kernels without counting them.
    """
    if (fallbacks := after.get("fallbacks", 0) - before.get("fallbacks", 0)) > 0:
        return f"{fallbacks} settings fell back in {rounds} timed decisions"
    executor = settings["executor"]
    replays = graph_count(after, executor, "replays") - graph_count(before, executor, "replays")
    if settings.get("cuda_graphs"):
        fell_back = graph_count(after, executor, "fallbacks") - graph_count(before, executor, "fallbacks")
        if fell_back:
            reason = graphs_of(after, executor)["last_fallback"]
            return f"{fell_back} graph fallbacks in {rounds} timed decisions: {reason}"
        if replays < rounds:
            return f"{replays} graphs were replayed in {rounds} timed decisions"
    if kernels := settings.get("fused_kernels"):
        launches = after.get("kernel_launches", {})
        if idle := [name for name in kernels if not launches.get(name)]:
            return f"fused kernels that never launched: {', '.join(idle)}"
        if not replays and sum(launches.values()) <= sum(before.get("kernel_launches", {}).values()):
            return f"no fused kernel was launched in {rounds} timed decisions"
    return None


def graphs_of(counters: Mapping[str, Any], executor: str) -> Mapping[str, Any]:
    """The graph counters of an executor; empty where it has no graphs."""
    found: Mapping[str, Any] = counters.get(executor, {}).get("graphs", {})
    return found


def graph_count(counters: Mapping[str, Any], executor: str, name: str) -> int:
    """One graph counter, 0 where the executor has no graphs."""
    return int(graphs_of(counters, executor).get(name, 0))
