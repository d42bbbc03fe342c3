"""Runs a profile scenario: each size in each way under the profiler."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.arm import ArmRun, plain, proven_size
from jevify.evidence.breakdown import breakdown, group_floors, profiled
from jevify.evidence.floor import floor_of, machine_of
from jevify.evidence.kinds.base import Arm, Bench, Case
from jevify.evidence.kinds.decide.summary import sizes
from jevify.evidence.kinds.profile.scenario import ProfileScenario
from jevify.evidence.proof import unproven
from jevify.evidence.stats import median
from jevify.evidence.workload import SizedRequest, sized_requests

_RAN = ("executor", "device", "dtype")


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
    number = scenario.warmup + scenario.repeats
    return sized_requests(case, bench.engine.measure, number=number, seed=scenario.seed)


def _row(scenario: ProfileScenario, bench: Bench, arm: Arm, requests: Sequence[SizedRequest]) -> dict[str, Any]:
    run = ArmRun(arm, None)
    row: dict[str, Any] = {"name": arm.name, "settings": plain(arm.settings)}
    with run.attempt("profile"):
        run.engine = bench.engine.with_settings(**arm.settings)
        for request in requests[: scenario.warmup]:
            proven_size(run.engine.decide(request.context, request.questions), arm, request)
        run.count("before")
        timed = requests[scenario.warmup :]
        kernels = profiled(
            lambda: run.decisions.extend(run.engine.decide(each.context, each.questions) for each in timed)
        )
        run.count("after")
        if not kernels:
            raise JevifyError("the profiler saw nothing run on a GPU")
        if reason := unproven(arm.settings, run.counters["before"], run.counters["after"], len(timed)):
            raise JevifyError(f"not what it says: {reason}")
        size = proven_size(run.decisions[0], arm, timed[0])
        metadata = run.decisions[0]["metadata"]
        machine = machine_of(str(metadata["device"]))
        floor = floor_of(bench.engine.config, [size], machine, str(metadata["dtype"]))
        device = [decision["metadata"]["stages_ms"].get("device") for decision in run.decisions]
        return row | {
            "ran": {key: plain(metadata[key]) for key in _RAN},
            "rows": size.packed_tokens,
            "device_us": None if None in device else round(median(device) * 1e3, 3),
            "floor_us": None if floor is None else round(floor.ms * 1e3, 3),
            **breakdown(kernels, len(timed), group_floors(bench.engine.config, size, machine)),
        }
    return row | {"error": run.error}
