"""Runs a decide scenario: baseline and candidates in turn on the same requests, each held to what it says."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.arm import ArmRun, plain
from jevify.evidence.cold import cold_times
from jevify.evidence.compare import Probabilities, probabilities
from jevify.evidence.floor import Floor, floor_of, machine_of
from jevify.evidence.kinds.base import Bench, Progress
from jevify.evidence.kinds.decide.scenario import DecideScenario, TargetedCase
from jevify.evidence.kinds.decide.summary import case_name, compared, sizes
from jevify.evidence.memory import release
from jevify.evidence.noise import noise_floor
from jevify.evidence.proof import unproven
from jevify.evidence.rivals import rival_engine
from jevify.evidence.targets import judged as judge
from jevify.evidence.workload import SizedRequest, sized_requests


def run(scenario: DecideScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` the stored form of each case; a failing arm or case leaves the others as they are."""
    runner = _Runner(scenario, bench)
    for case in scenario.cases:
        keep(runner.run(case))
        if bench.interrupted:
            break


@dataclass
class _Steps:
    """Counts decisions for the progress bar; a failed arm's steps are passed over at the end of its case."""

    scenario: DecideScenario
    progress: Progress
    done: int = 0

    @property
    def of_case(self) -> int:
        rounds = self.scenario.warmup + self.scenario.repeats
        cold = 1 if self.scenario.cold else 0
        return (rounds + 1 + cold) * len(self.scenario.arms) + self.scenario.oracle_requests

    def advance(self, text: str) -> None:
        self.progress(self.done, self.of_case * len(self.scenario.cases), text)
        self.done += 1

    def close_case(self) -> None:
        self.done = -(-self.done // self.of_case) * self.of_case
        self.progress(self.done, self.of_case * len(self.scenario.cases), "")


class _Runner:
    """Runs cases one after another on the engines of one scenario."""

    def __init__(self, scenario: DecideScenario, bench: Bench) -> None:
        self._scenario, self._bench = scenario, bench
        self._engine, self._clock = bench.engine, bench.clock
        self._steps = _Steps(scenario, bench.progress)

    def run(self, case: TargetedCase) -> dict[str, Any]:
        """The stored form of one case."""
        result: dict[str, Any] = {"case": asdict(case)}
        runs: list[ArmRun] = []
        references: list[Probabilities] | str = []
        floor: Floor | None = None
        try:
            runs += self._arms()
            requests = self._requests(case, runs[0])
            result["requests"] = sizes(case, requests)
            timed = self._timed(requests)
            judged = timed[: self._scenario.oracle_requests]
            self._rounds(case, runs, requests, len(judged))
            self._memory(case, runs, requests[-1])
            references = self._oracle(case, runs[0], judged)
            if self._scenario.noise_floor and runs[0].error is None:
                result["noise"] = noise_floor(runs[0], timed, len(judged), self._clock, self._scenario.seed)
            floor = self._floor(runs)
            if self._scenario.cold:
                result["cold"] = []
                self._cold(case, requests[-1], result["cold"].append)
        except KeyboardInterrupt:
            self._bench.interrupted = True
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        if self._bench.interrupted:
            result["interrupted"] = True
        if self._bench.interrupted or "error" in result:
            _keep_complete_rounds(runs)
        self._steps.close_case()
        if "requests" in result:
            result |= compared(runs, references, floor, self._scenario.seed)
            if case.targets is not None:
                result["targets"] = self._judged(case, result["arms"])
        _clear(runs)
        return result

    def _floor(self, runs: Sequence[ArmRun]) -> Floor | None:
        for run in _alive(runs):
            ran = run.decisions[0]["metadata"]
            return floor_of(self._engine.config, run.sizes[:1], machine_of(str(ran["device"])), str(ran["dtype"]))
        return None

    def _judged(self, case: TargetedCase, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        assert case.targets is not None
        name = self._scenario.target_arm or rows[-1]["name"]
        return {"arm": name, "figures": judge(case.targets, next(row for row in rows if row["name"] == name))}

    def _arms(self) -> list[ArmRun]:
        runs = []
        for arm in self._scenario.arms:
            run = ArmRun(arm, None)
            with run.attempt("settings"):
                run.engine = self._engine.with_settings(**arm.settings)
                if arm.rival is not None:
                    run.engine = rival_engine(arm.rival, run.engine)
                    run.forward_calls = 1
            runs.append(run)
        return runs

    def _requests(self, case: TargetedCase, baseline: ArmRun) -> list[SizedRequest]:
        rounds = self._scenario.warmup + self._scenario.repeats
        engine = baseline.engine or self._engine
        return sized_requests(
            case,
            engine.measure,
            number=rounds if self._scenario.fresh_context else 1,
            seed=self._scenario.seed,
        )

    def _timed(self, requests: Sequence[SizedRequest]) -> Sequence[SizedRequest]:
        """The requests of timed rounds, each once."""
        return requests[self._scenario.warmup :] if self._scenario.fresh_context else requests

    def _rounds(
        self, case: TargetedCase, runs: Sequence[ArmRun], requests: Sequence[SizedRequest], judged: int
    ) -> None:
        """Run every round; the decisions of the first `judged` timed ones are kept for the oracle."""
        for index in range(-self._scenario.warmup, self._scenario.repeats):
            request = requests[self._scenario.warmup + index if self._scenario.fresh_context else 0]
            gc.collect()
            for run in _alive(runs):
                self._steps.advance(f"{case_name(asdict(case))} {run.arm.name}")
                with run.attempt("warm-up" if index < 0 else f"repeat {index + 1}"):
                    if index < 0:
                        run.warm(request, self._clock)
                        continue
                    if index == 0:
                        run.count("before")
                    run.sample(request, self._clock, keep_decision=index < judged)
        for run in _alive(runs):
            with run.attempt("counters"):
                run.count("after")
                run.unproven = self._unproven(run)

    def _unproven(self, run: ArmRun) -> str | None:
        reason = unproven(run.arm.settings, run.counters["before"], run.counters["after"], self._scenario.repeats)
        return None if reason is None else f"not what it says: {reason}"

    def _memory(self, case: TargetedCase, runs: Sequence[ArmRun], request: SizedRequest) -> None:
        for run in _alive(runs):
            self._steps.advance(f"{case_name(asdict(case))} {run.arm.name} memory")
            with run.attempt("memory"):
                run.measure_memory(request)

    def _cold(self, case: TargetedCase, request: SizedRequest, keep: Callable[[dict[str, Any]], None]) -> None:
        scenario = self._scenario
        for arm in scenario.arms:
            self._steps.advance(f"{case_name(asdict(case))} {arm.name} cold")
            task = {"model": scenario.model, "device": scenario.device, "dtype": scenario.dtype, "rival": arm.rival}
            try:
                found = cold_times({**task, "settings": plain(arm.settings)}, request, scenario.cold)
            except JevifyError as error:
                keep({"name": arm.name, "error": str(error)})
            else:
                keep({"name": arm.name, **found})

    def _oracle(
        self, case: TargetedCase, baseline: ArmRun, requests: Sequence[SizedRequest]
    ) -> list[Probabilities] | str:
        """The oracle's probabilities for each request, or why there are none."""
        engine = baseline.engine or self._engine
        found: list[Probabilities] = []
        for request in requests:
            self._steps.advance(f"{case_name(asdict(case))} oracle")
            try:
                found.append(probabilities(engine.oracle(request.context, request.questions)))
            except Exception as error:
                return f"the oracle failed: {type(error).__name__}: {error}"
        return found


def _alive(runs: Sequence[ArmRun]) -> list[ArmRun]:
    return [run for run in runs if run.error is None]


def _clear(runs: Sequence[ArmRun]) -> None:
    """Give back what the engines of a case keep, graphs above all: they share one memory with those of the next."""
    for run in runs:
        if run.engine is not None:
            run.engine.clear_optimization_cache()
    release(str(next((run.decisions[0]["metadata"]["device"] for run in runs if run.decisions), "cpu")))


def _keep_complete_rounds(runs: Sequence[ArmRun]) -> None:
    """After a stop: drop the round in progress, and fail the arms that finished none."""
    alive = _alive(runs)
    complete = min((len(run.samples_ms) for run in alive), default=0)
    for run in alive:
        if not complete:
            run.error = "stopped before the first timed round was complete"
        del run.samples_ms[complete:], run.sizes[complete:]
        for values in run.stages_ms.values():
            del values[complete:]
