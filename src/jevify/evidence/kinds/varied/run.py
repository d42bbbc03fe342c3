"""Runs a varied scenario: each arm alone, over the same requests."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jevify.evidence.arm import DECIMALS, ArmRun, plain, prove_settings, timed_call
from jevify.evidence.kinds.base import Bench
from jevify.evidence.kinds.varied.scenario import VariedArm, VariedScenario
from jevify.evidence.kinds.varied.summary import Sample, break_even, judged, spreads
from jevify.evidence.memory import driver_bytes, release
from jevify.evidence.proof import graph_count, graphs_of
from jevify.evidence.stats import median, p90
from jevify.evidence.traffic import Request, requests_of

_COUNTED = ("captures", "replays", "fallbacks", "evictions")


def run(scenario: VariedScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` the one case, also after an interrupt; a failing arm leaves the others as they are."""
    runner = _Runner(scenario, bench)
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[Sample]] = {}
    for arm in scenario.arms:
        found = _Found()
        rows.append(runner.row(arm, found))
        samples[arm.name] = found.samples
        if bench.interrupted:
            break
    eager = next((arm.name for arm in scenario.arms if not arm.settings.get("cuda_graphs")), "")
    for row in rows:
        if "error" not in row and row["capture_ms"] is not None:
            row["break_even"] = break_even(row["capture_ms"], samples.get(eager, []), samples[row["name"]])
    case: dict[str, Any] = {"case": {"name": "varied requests"}, "arms": rows}
    if scenario.targets is not None:
        case["targets"] = {
            "arm": scenario.target_arm,
            "figures": judged(scenario.targets, next((r for r in rows if r["name"] == scenario.target_arm), None)),
        }
    keep(case)


@dataclass
class _Found:
    """What an arm has measured so far."""

    samples: list[Sample] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, dict[str, Any]] = field(default_factory=dict)
    ran: dict[str, Any] = field(default_factory=dict)
    driver_start: int | None = None
    stopped: bool = False


class _Runner:
    def __init__(self, scenario: VariedScenario, bench: Bench) -> None:
        self._scenario, self._bench = scenario, bench
        seed, traffic = scenario.seed, scenario.traffic
        self._requests = requests_of(traffic, number=scenario.requests, seed=seed, sample="timed")
        most = max((self._warmups(arm) for arm in scenario.arms), default=0)
        self._warm = requests_of(traffic, number=most, seed=seed, sample="warm-up")
        self._total = sum(self._warmups(arm) + self._timed(arm) for arm in scenario.arms)
        self._done = 0

    def row(self, arm: VariedArm, found: _Found) -> dict[str, Any]:
        """The stored form of an arm, which is cleared away afterwards."""
        run = ArmRun(arm, None)
        row: dict[str, Any] = {"name": arm.name, "settings": dict(arm.settings)}
        try:
            with run.attempt("settings"):
                run.engine = self._bench.engine.with_settings(**arm.settings)
            if run.error is None:
                with run.attempt("run"):
                    self._run(arm, run.engine, found)
        except KeyboardInterrupt:
            self._bench.interrupted = True
        if run.error is None and not found.counters.get("after"):
            run.error = "stopped before the first pass was complete"
        if run.error is None:
            with run.attempt("result"):
                row |= _told(arm, found)
        if run.error is not None:
            row["error"] = run.error
        if run.engine is not None:
            run.engine.clear_optimization_cache()
            release(str(found.ran.get("device", "cpu")))
        return row

    def _run(self, arm: VariedArm, engine: Any, found: _Found) -> None:
        deadline = self._bench.clock() + self._scenario.arm_seconds
        for request in self._warm[: self._warmups(arm)]:
            metadata = self._decide(arm, engine, request)[1]["metadata"]
            found.ran = {key: metadata[key] for key in ("executor", "device", "dtype", "scoring_dtype", "revision")}
        device = str(found.ran.get("device", "cpu"))
        found.driver_start = driver_bytes(device)
        found.counters["before"] = plain(engine.counters())
        for requests in self._passes(arm):
            first = "after" not in found.counters
            times: list[float] = []
            for request in requests:
                if times and self._bench.clock() > deadline:
                    found.stopped = True
                    break
                sample, decision = self._sampled(arm, engine, request)
                times.append(sample.milliseconds)
                if first:
                    found.samples.append(sample)
                    found.ran = {key: decision["metadata"][key] for key in ("executor", "device", "dtype")}
            counters = plain(engine.counters())
            if first:
                found.counters["after"] = counters
            found.counters["end"] = counters
            found.passes.append(
                {
                    "requests": len(times),
                    "median_ms": round(median(times), DECIMALS),
                    "retained_bytes": graphs_of(counters, arm.settings["executor"]).get("retained_bytes"),
                    "driver_bytes": driver_bytes(str(found.ran["device"])),
                }
            )
            if found.stopped:
                break

    def _passes(self, arm: VariedArm) -> Iterator[Sequence[Request]]:
        """The requests once, then as often as the arm takes them, each time in another order."""
        requests = self._requests[: arm.requests]
        yield requests
        draw = random.Random(f"{self._scenario.seed}/order")
        for _ in range(self._scenario.repeats - 1 if arm.grows else 0):
            yield draw.sample(requests, len(requests))

    def _sampled(self, arm: VariedArm, engine: Any, request: Request) -> tuple[Sample, Any]:
        executor = arm.settings["executor"]
        before = engine.counters()
        elapsed, decision = self._decide(arm, engine, request)
        after = engine.counters()
        moved = {name: graph_count(after, executor, name) - graph_count(before, executor, name) for name in _COUNTED}
        rows = after.get(executor, {}).get("last_graph_rows")
        return Sample(
            elapsed, rows, bool(moved["replays"] and not moved["captures"] and not moved["fallbacks"])
        ), decision

    def _decide(self, arm: VariedArm, engine: Any, request: Request) -> tuple[float, Any]:
        self._bench.progress(self._done, self._total, arm.name)
        self._done += 1
        elapsed, decision = timed_call(lambda: engine.decide(*request), self._bench.clock)
        prove_settings(decision["metadata"], arm)
        return elapsed, decision

    def _warmups(self, arm: VariedArm) -> int:
        return self._scenario.warmup if arm.warmup is None else arm.warmup

    def _timed(self, arm: VariedArm) -> int:
        number = len(self._requests[: arm.requests])
        return number * (self._scenario.repeats if arm.grows else 1)


def _told(arm: VariedArm, found: _Found) -> dict[str, Any]:
    executor = arm.settings["executor"]
    before, after, end = (found.counters[when] for when in ("before", "after", "end"))
    moved = {name: graph_count(after, executor, name) - graph_count(before, executor, name) for name in _COUNTED}
    times = [sample.milliseconds for sample in found.samples]
    captures, graphs = graph_count(end, executor, "captures"), graphs_of(end, executor)
    budget = arm.settings.get("graph_budget_mb", 192) * 2**20 if graphs else None
    spent = graphs.get("capture_ms")
    return {
        "ran": plain(found.ran),
        "requests": len(times),
        "stopped": found.stopped,
        "median_ms": round(median(times), DECIMALS),
        "p90_ms": round(p90(times), DECIMALS),
        "graphs": moved,
        "hit_rate": 1 - (moved["captures"] + moved["fallbacks"]) / len(times) if graphs else None,
        "buckets": [asdict(spread) for spread in spreads(found.samples)],
        "budget_bytes": budget,
        "retained_bytes": max((entry["retained_bytes"] or 0 for entry in found.passes), default=0) if graphs else None,
        "driver_bytes": {
            "start": found.driver_start,
            "first_pass": found.passes[0]["driver_bytes"],
            "end": found.passes[-1]["driver_bytes"],
        },
        "capture_ms": round(spent / captures, DECIMALS) if spent is not None and captures else None,
        "break_even": None,
        "passes": found.passes,
        "counters": found.counters,
        "samples_ms": times,
        "graph_rows": [sample.rows for sample in found.samples],
    }
