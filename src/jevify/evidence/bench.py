"""The benchmark runner: baseline and candidates in turn on the same requests, each held to what it says."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from jevify.evidence.arm import ArmRun, Clock
from jevify.evidence.compare import Probabilities, probabilities
from jevify.evidence.environment import environment
from jevify.evidence.scenario import Case, DecideScenario
from jevify.evidence.store import SCHEMA
from jevify.evidence.summary import compared, sizes
from jevify.evidence.workload import SizedRequest, sized_requests

# Called with the steps done, the steps in all, and what runs now.
Progress = Callable[[int, int, str], None]


def load_engine(scenario: DecideScenario) -> Any:
    """The model of the scenario under an engine with default settings; arms derive theirs from it."""
    from jevify.engine import DecisionEngine

    return DecisionEngine.from_pretrained(scenario.model, device=scenario.device, dtype=scenario.dtype)


def run_benchmark(
    scenario: DecideScenario,
    *,
    command: str,
    load: Callable[[DecideScenario], Any] = load_engine,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total, text: None,
) -> dict[str, Any]:
    """Run a scenario and return its result as JSON data; `command` is the line that repeats it.

    `load` gives an engine; every arm is `engine.with_settings(**arm.settings)` on the same weights. `clock`
    counts seconds. A failing arm or case carries an `error` and leaves the others as they are. An interrupt
    ends the run: what is finished is returned with `interrupted` set. What `load` raises passes through.
    """
    runner = _Runner(scenario, load(scenario), clock, _Steps(scenario, progress))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    surroundings = environment(command)
    cases = []
    with _quick_collections():
        for case in scenario.cases:
            cases.append(runner.run(case))
            if runner.interrupted:
                break
    return {
        "schema": SCHEMA,
        "kind": scenario.kind,
        "scenario": scenario.data(),
        "seed": scenario.seed,
        "command": command,
        "started": started,
        "interrupted": runner.interrupted,
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
    found = []
    for case in result["cases"]:
        where = case_name(case["case"])
        if "error" in case:
            found.append(f"{where}: {case['error']}")
        for row in case.get("arms", []):
            if "error" in row:
                found.append(f"{where}, {row['name']}: {row['error']}")
            elif "error" in (row["quality"] or {}):
                found.append(f"{where}, {row['name']}, quality: {row['quality']['error']}")
    return found


def case_name(case: dict[str, Any]) -> str:
    """A case in a few characters: questions, prefix tokens and question tokens."""
    return f"N={case['questions']} P={case['prefix_tokens']} Q={case['question_tokens']}"


@dataclass
class _Steps:
    """Counts decisions for the progress bar; a failed arm's steps are passed over at the end of its case."""

    scenario: DecideScenario
    progress: Progress
    done: int = 0

    @property
    def of_case(self) -> int:
        rounds = self.scenario.warmup + self.scenario.repeats
        return (rounds + 1) * len(self.scenario.arms) + self.scenario.oracle_requests

    def advance(self, text: str) -> None:
        self.progress(self.done, self.of_case * len(self.scenario.cases), text)
        self.done += 1

    def close_case(self) -> None:
        self.done = -(-self.done // self.of_case) * self.of_case
        self.progress(self.done, self.of_case * len(self.scenario.cases), "")


class _Runner:
    """Runs cases one after another on the engines of one scenario."""

    def __init__(self, scenario: DecideScenario, engine: Any, clock: Clock, steps: _Steps) -> None:
        self._scenario, self._engine, self._clock, self._steps = scenario, engine, clock, steps
        self.interrupted = False

    def run(self, case: Case) -> dict[str, Any]:
        """The stored form of one case."""
        result: dict[str, Any] = {"case": asdict(case)}
        runs: list[ArmRun] = []
        references: list[Probabilities] | str = []
        try:
            runs += self._arms()
            requests = self._requests(case, runs[0])
            result["requests"] = sizes(case, requests)
            judged = self._timed(requests)[: self._scenario.oracle_requests]
            self._rounds(case, runs, requests, len(judged))
            self._memory(case, runs, requests[-1])
            references = self._oracle(case, runs[0], judged)
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        if self.interrupted:
            result["interrupted"] = True
        if self.interrupted or "error" in result:
            _keep_complete_rounds(runs)
        self._steps.close_case()
        if "requests" in result:
            result |= compared(runs, references, self._scenario.seed)
        return result

    def _arms(self) -> list[ArmRun]:
        runs = []
        for arm in self._scenario.arms:
            run = ArmRun(arm, None)
            with run.attempt("settings"):
                run.engine = self._engine.with_settings(**arm.settings)
            runs.append(run)
        return runs

    def _requests(self, case: Case, baseline: ArmRun) -> list[SizedRequest]:
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

    def _rounds(self, case: Case, runs: Sequence[ArmRun], requests: Sequence[SizedRequest], judged: int) -> None:
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

    def _memory(self, case: Case, runs: Sequence[ArmRun], request: SizedRequest) -> None:
        for run in _alive(runs):
            self._steps.advance(f"{case_name(asdict(case))} {run.arm.name} memory")
            with run.attempt("memory"):
                run.measure_memory(request)

    def _oracle(self, case: Case, baseline: ArmRun, requests: Sequence[SizedRequest]) -> list[Probabilities] | str:
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
