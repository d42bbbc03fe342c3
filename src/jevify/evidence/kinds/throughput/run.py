"""Runs a throughput scenario: every arm in turn on the same requests."""

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.arm import DECIMALS, ArmRun, plain, prove_settings, timed_call
from jevify.evidence.expected import RequestSize
from jevify.evidence.floor import floor_of, machine_of
from jevify.evidence.kinds.base import Bench
from jevify.evidence.kinds.decide.summary import sizes
from jevify.evidence.kinds.throughput.scenario import ThroughputScenario
from jevify.evidence.stats import median, p90, paired_ratio
from jevify.evidence.targets import held
from jevify.evidence.workload import SizedRequest, sized_requests


def run(scenario: ThroughputScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` the one case, also after an interrupt; a failing arm leaves the others as they are."""
    case: dict[str, Any] = {"case": {"name": f"{scenario.requests} requests at once", **asdict(scenario.case)}}
    runs: list[ArmRun] = []
    try:
        for arm in scenario.arms:
            run = ArmRun(arm, None)
            with run.attempt("settings"):
                run.engine = bench.engine.with_settings(**arm.settings)
            runs.append(run)
        requests = sized_requests(scenario.case, bench.engine.measure, number=scenario.requests, seed=scenario.seed)
        case["requests"] = sizes(scenario.case, requests)
        _rounds(scenario, bench, runs, requests)
    except KeyboardInterrupt:
        bench.interrupted = True
    except Exception as error:
        case["error"] = f"{type(error).__name__}: {error}"
    if bench.interrupted or "error" in case:
        for run in runs:
            run.error = run.error or (
                "stopped before the first timed round was complete" if not run.samples_ms else None
            )
    keep(case | _told(scenario, bench, runs))


def _rounds(
    scenario: ThroughputScenario, bench: Bench, runs: Sequence[ArmRun], requests: Sequence[SizedRequest]
) -> None:
    total, done = (scenario.warmup + scenario.repeats) * len(runs), 0
    for index, batch in enumerate(_reordered(requests, scenario)):
        gc.collect()
        for run in runs:
            bench.progress(done, total, run.arm.name)
            done += 1
            if run.error is not None:
                continue
            with run.attempt("warm-up" if index < scenario.warmup else f"repeat {index - scenario.warmup + 1}"):
                if index == scenario.warmup:
                    run.count("before")
                _one(run, batch, bench, timed=index >= scenario.warmup)
    for run in runs:
        if run.error is None:
            with run.attempt("counters"):
                run.count("after")


def _reordered(requests: Sequence[SizedRequest], scenario: ThroughputScenario) -> Iterator[list[SizedRequest]]:
    """The requests of each round: the words of every context in another order, the first in its place.

    A word is the same tokens wherever it stands, so sizes stay; no prefix is the same as in another round.
    """
    draw = random.Random(f"{scenario.seed}/rounds")
    for _ in range(scenario.warmup + scenario.repeats):
        batch = []
        for request in requests:
            first, *rest = request.context.split(" ")
            batch.append(replace(request, context=" ".join([first, *draw.sample(rest, len(rest))])))
        yield batch


def _one(run: ArmRun, batch: Sequence[SizedRequest], bench: Bench, *, timed: bool) -> None:
    asked = [(request.context, request.questions) for request in batch]
    elapsed, decisions = timed_call(lambda: run.engine.decide_many(asked), bench.clock)
    for decision, request in zip(decisions, batch, strict=True):
        prove_settings(decision["metadata"], run.arm)
        ran = tuple(question["tokens"] for question in decision["metadata"]["questions"].values())
        if ran != request.tokens:
            raise JevifyError(f"questions of {list(ran)} tokens ran, but {list(request.tokens)} were measured")
    if not timed:
        run.warmup_ms.append(elapsed)
        return
    run.samples_ms.append(elapsed)
    run.decisions = [decisions[0]]
    run.sizes = [_size(decision, request) for decision, request in zip(decisions, batch, strict=True)]
    for stage, milliseconds in decisions[0]["metadata"]["stages_ms"].items():
        run.stages_ms.setdefault(stage, []).append(milliseconds)


def _size(decision: Any, request: SizedRequest) -> RequestSize:
    paths = tuple(tuple(question["label_tokens"]) for question in decision["metadata"]["questions"].values())
    return RequestSize(request.shared, request.tokens, paths)


def _told(scenario: ThroughputScenario, bench: Bench, runs: Sequence[ArmRun]) -> dict[str, Any]:
    rows = [_row(scenario, run, runs[0]) for run in runs]
    told: dict[str, Any] = {"arms": rows, "floor": None}
    measured = next((run for run in runs if run.samples_ms and run.error is None), None)
    if measured is not None:
        ran = measured.decisions[0]["metadata"]
        floor = floor_of(bench.engine.config, measured.sizes, machine_of(str(ran["device"])), str(ran["dtype"]))
        if floor is not None:
            told["floor"] = {**floor.data(), "requests_per_second": round(scenario.requests / floor.ms * 1e3, 1)}
    if scenario.target is not None and rows:
        name = scenario.target_arm or rows[-1]["name"]
        figure = next(row for row in rows if row["name"] == name).get("requests_per_second")
        told["targets"] = {
            "arm": name,
            "figures": [held("requests_per_second", scenario.target, figure, least=True)],
        }
    return told


def _row(scenario: ThroughputScenario, run: ArmRun, first: ArmRun) -> dict[str, Any]:
    row: dict[str, Any] = {"name": run.arm.name, "settings": plain(run.arm.settings)}
    if run.error is None:
        with run.attempt("result"):
            rounds = min(len(run.samples_ms), len(first.samples_ms))
            ratio = None
            if run is not first and first.error is None:
                ratio = asdict(paired_ratio(first.samples_ms[:rounds], run.samples_ms[:rounds], seed=scenario.seed))
            typical = median(run.samples_ms)
            return row | {
                **{key: value for key, value in run.row().items() if key not in ("settings", "memory_bytes")},
                "p90_ms": round(p90(run.samples_ms), DECIMALS),
                "requests_per_second": round(scenario.requests / typical * 1e3, 1),
                "ratio": ratio,
            }
    return row | {"error": run.error}
