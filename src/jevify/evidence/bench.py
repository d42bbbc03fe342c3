"""The benchmark runner: a scenario of any kind in, one result as JSON data out."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from jevify.evidence.environment import environment
from jevify.evidence.kinds import part
from jevify.evidence.kinds.base import Bench, Clock, ModelScenario, Progress, Scenario
from jevify.evidence.store import SCHEMA


def load_engine(scenario: ModelScenario) -> Any:
    """The model of the scenario under an engine with default settings; arms derive theirs from it."""
    from jevify.engine import DecisionEngine

    return DecisionEngine.from_pretrained(scenario.model, device=scenario.device, dtype=scenario.dtype)


def run_benchmark(
    scenario: Scenario,
    *,
    command: str,
    load: Callable[[ModelScenario], Any] = load_engine,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total, text: None,
) -> dict[str, Any]:
    """Run a scenario and return its result as JSON data; `command` is the line that repeats it.

    `load` gives an engine, for a scenario with a model; every arm is `engine.with_settings(**arm.settings)` on the same
    weights. `clock` counts seconds. A failing arm or case carries an `error` and leaves the others as they are. An
    interrupt ends the run: what is finished is returned with `interrupted` set. What `load` raises passes through.
    """
    bench = Bench(load(scenario) if isinstance(scenario, ModelScenario) else None, clock, progress)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    surroundings = environment(command)
    cases: list[dict[str, Any]] = []
    with _quick_collections():
        try:
            part(scenario.kind, "run").run(scenario, bench, cases.append)
        except KeyboardInterrupt:
            bench.interrupted = True
    return {
        "schema": SCHEMA,
        "kind": scenario.kind,
        "scenario": scenario.data(),
        "seed": scenario.seed,
        "command": command,
        "started": started,
        "interrupted": bench.interrupted,
        "environment": surroundings,
        "cases": cases,
    }


@contextmanager
def _quick_collections() -> Iterator[None]:
    """Keep what is loaded out of the collections between rounds: they would take longer than many a round."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def failures(result: dict[str, Any]) -> list[str]:
    """Every failure stored in a result, each with where it happened."""
    name = part(result["kind"], "table").case_name
    found = []
    for case in result["cases"]:
        where = name(case["case"])
        if "error" in case:
            found.append(f"{where}: {case['error']}")
        if "error" in case.get("noise", {}):
            found.append(f"{where}, noise floor: {case['noise']['error']}")
        for row in case.get("arms", []):
            if "error" in row:
                found.append(f"{where}, {row['name']}: {row['error']}")
            elif "error" in (row.get("quality") or {}):
                found.append(f"{where}, {row['name']}, quality: {row['quality']['error']}")
    return found
