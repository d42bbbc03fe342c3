"""Runs a profile scenario: the stages of each size in each way, then its kernels under the profiler."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.arm import ArmRun, plain
from jevify.evidence.breakdown import breakdown, group_floors, profiled
from jevify.evidence.floor import floor_of, machine_of
from jevify.evidence.kinds.base import Arm, Bench, Case
from jevify.evidence.kinds.decide.summary import sizes
from jevify.evidence.kinds.profile.scenario import ProfileScenario
from jevify.evidence.proof import unproven
from jevify.evidence.stage_table import dominant, stage_table
from jevify.evidence.stats import median
from jevify.evidence.workload import SizedRequest, sized_requests

_RAN = ("executor", "device", "dtype")
_TOLD = ("forward_calls", "samples_ms", "median_ms", "p90_ms", "min_ms", "stages_median_ms", "counters")


def run(scenario: ProfileScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` the stored form of each case; a failing arm or case leaves the others as they are."""
    steps, done = len(scenario.cases) * len(scenario.arms), 0
    for case in scenario.cases:
        result: dict[str, Any] = {"case": asdict(case), "arms": []}
        try:
            requests = _requests(scenario, bench, case)
            result["requests"] = sizes(case, requests)
            for arm in scenario.arms:
                bench.progress(done, steps, arm.name)
                done += 1
                result["arms"].append(_row(scenario, bench, arm, requests))
        except KeyboardInterrupt:
            bench.interrupted = True
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        keep(result)
        if bench.interrupted:
            break


def _requests(scenario: ProfileScenario, bench: Bench, case: Case) -> list[SizedRequest]:
    number = scenario.warmup + scenario.repeats * (2 if _profiles(scenario) else 1)
    # Measured as the first way sees them: it may take longer questions than the engine as it came.
    engine = bench.engine.with_settings(**scenario.arms[0].settings)
    return sized_requests(case, engine.measure, number=number, seed=scenario.seed)


def _profiles(scenario: ProfileScenario) -> bool:
    return scenario.kernels or bool(scenario.trace)


def _row(scenario: ProfileScenario, bench: Bench, arm: Arm, requests: Sequence[SizedRequest]) -> dict[str, Any]:
    run = ArmRun(arm, None)
    row: dict[str, Any] = {"name": arm.name, "settings": plain(arm.settings)}
    with run.attempt("profile"):
        run.engine = bench.engine.with_settings(**arm.settings)
        run.arm = Arm(arm.name, {**arm.settings, "executor": run.engine.settings.executor})
        for request in requests[: scenario.warmup]:
            run.warm(request, bench.clock)
        timed = requests[scenario.warmup :][: scenario.repeats]
        run.count("before")
        for request in timed:
            run.sample(request, bench.clock, keep_decision=False)
        run.count("after")
        row |= _times(run, bench)
        reason = unproven(run.arm.settings, run.counters["before"], run.counters["after"], len(timed))
        if reason:
            run.error = f"not what it says: {reason}"
        if _profiles(scenario):
            row |= _kernels(scenario, bench, run, requests[scenario.warmup + scenario.repeats :])
    return row if run.error is None else row | {"error": run.error}


def _times(run: ArmRun, bench: Bench) -> dict[str, Any]:
    """Stages of the timed decisions, the floor, and what was active."""
    metadata = run.decisions[0]["metadata"]
    floor = floor_of(bench.engine.config, run.sizes[:1], machine_of(str(metadata["device"])), str(metadata["dtype"]))
    stages = stage_table(run.stages_ms)
    told = run.row()
    over = {} if floor is None else {"times_floor": round(told["median_ms"] / floor.ms, 4)}
    active = dict(metadata.get("optimizations", {}))
    active.pop("counters", None)
    reasons = {**active.pop("fallbacks", {}), "shared_attention": active.pop("shared_attention_reason", None)}
    return {
        **{name: told[name] for name in _TOLD},
        "ran": {key: plain(metadata[key]) for key in _RAN},
        "rows": run.sizes[0].packed_tokens,
        "floor_us": None if floor is None else round(floor.ms * 1e3, 3),
        **over,
        "stages": stages,
        "dominant": dominant(stages),
        "active": plain(active),
        "fallbacks": {name: reason for name, reason in reasons.items() if reason},
    }


def _kernels(scenario: ProfileScenario, bench: Bench, run: ArmRun, requests: Sequence[SizedRequest]) -> dict[str, Any]:
    """What `requests` spend on the device under the profiler. Raises JevifyError when it sees nothing."""
    device = str(run.decisions[0]["metadata"]["device"])
    found: list[Any] = []
    kernels = profiled(
        lambda: found.extend(run.engine.decide(each.context, each.questions) for each in requests),
        device,
        Path(scenario.trace) if scenario.trace else None,
    )
    if not kernels:
        raise JevifyError(f"the profiler saw nothing run on {device}")
    if not scenario.kernels:
        return {}
    stages = [decision["metadata"]["stages_ms"].get("device") for decision in found]
    floors = group_floors(bench.engine.config, run.sizes[0], machine_of(device))
    return {
        "device_us": None if None in stages else round(median(stages) * 1e3, 3),
        **breakdown(kernels, len(requests), floors),
    }
