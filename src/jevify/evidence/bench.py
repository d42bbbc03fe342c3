"""The benchmark runner: a scenario of any kind in, one result as JSON data out."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from jevify.evidence.environment import environment
from jevify.evidence.kinds import part
from jevify.evidence.kinds.base import Bench, Clock, ModelScenario, Progress, Scenario
from jevify.evidence.resume import check_same, finished_cases, rest_of
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
    store: Callable[[dict[str, Any]], None] = lambda result: None,
    stored: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a scenario and return its result as JSON data; `command` is the line that repeats it.

    `load` gives an engine, for a scenario with a model; every arm is `engine.with_settings(**arm.settings)` on the same
    weights. `clock` counts seconds. A failing arm or case carries an `error` and leaves the others as they are. An
    interrupt ends the run: what is finished is returned with `interrupted` set. What `load` raises passes through.

    `store` is given the result so far after every case, marked as interrupted until the last. `stored` is such a result
    to go on with: its finished cases are kept. Raises InputError when it is of another scenario, source or machine.
    """
    surroundings = environment(command)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": scenario.kind,
        "scenario": scenario.data(),
        "seed": scenario.seed,
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "interrupted": True,
        "environment": surroundings,
        "cases": [],
    }
    if stored is not None:
        check_same(scenario, surroundings, stored)
        resumed = [*stored.get("resumed", []), result["started"]]
        result = {**stored, "cases": finished_cases(stored), "interrupted": True, "resumed": resumed}
    rest = rest_of(scenario, len(result["cases"]))
    interrupted = rest is not None and _run(rest, result, Bench(_engine(scenario, load), clock, progress), store)
    result["interrupted"] = interrupted
    return result


def _engine(scenario: Scenario, load: Callable[[ModelScenario], Any]) -> Any:
    return load(scenario) if isinstance(scenario, ModelScenario) else None


def _run(scenario: Scenario, result: dict[str, Any], bench: Bench, store: Callable[[dict[str, Any]], None]) -> bool:
    """Add the cases of `scenario` to the result; returns whether an interrupt ended it."""

    def keep(case: dict[str, Any]) -> None:
        result["cases"].append({**case, "interrupted": True} if bench.interrupted else case)
        store(result)

    with _quick_collections():
        try:
            part(scenario.kind, "run").run(scenario, bench, keep)
        except KeyboardInterrupt:
            bench.interrupted = True
    return bench.interrupted


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
        for row in case.get("cold", []):
            if "error" in row:
                found.append(f"{where}, {row['name']}, cold: {row['error']}")
    return found
