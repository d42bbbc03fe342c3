"""One arm of one benchmark case: what it was asked, what it proved to have run, and its row of the result."""

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from jevify.decide.settings import DecideSettings
from jevify.errors import JevifyError
from jevify.evidence.expected import RequestSize, expected_forward_calls
from jevify.evidence.kinds.base import Arm, Clock
from jevify.evidence.memory import PeakMemory, peak_memory
from jevify.evidence.stats import median, p90
from jevify.evidence.workload import SizedRequest

T = TypeVar("T")
# Stored samples are in milliseconds with this many decimals; statistics are taken from the stored values.
DECIMALS = 3
# Metadata that a setting of the same name must reappear in.
_PROVEN = ("executor", "attention", "prompt_format", "answer_encoding")
_RAN = (*_PROVEN, "device", "dtype", "scoring_dtype", "revision")


@dataclass
class ArmRun:
    """An arm while it runs. A failure is kept in `error`; from then on the arm is left out of every round.

    `unproven` says why the counters do not show what the arm asked for: a failure too, whose measurements are kept.
    `forward_calls` is how many a decision must make, where that does not follow from the settings.
    """

    arm: Arm
    engine: Any
    error: str | None = None
    unproven: str | None = None
    forward_calls: int | None = None
    warmup_ms: list[float] = field(default_factory=list)
    samples_ms: list[float] = field(default_factory=list)
    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    sizes: list[RequestSize] = field(default_factory=list)
    stages_ms: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    memory: PeakMemory | None = None

    @contextmanager
    def attempt(self, phase: str) -> Iterator[None]:
        """Turn a failure inside the block into this arm's `error`; an interrupt passes through."""
        try:
            yield
        except Exception as error:
            told = str(error) if isinstance(error, JevifyError) else f"{type(error).__name__}: {error}"
            self.error = f"{phase}: {told}"

    def warm(self, request: SizedRequest, clock: Clock) -> None:
        """Run a round whose time is kept apart."""
        elapsed, decision = timed(self.engine, request, clock)
        proven_size(decision, self.arm, request, self.forward_calls)
        self.warmup_ms.append(elapsed)

    def sample(self, request: SizedRequest, clock: Clock, *, keep_decision: bool) -> None:
        """Run a timed round. Raises JevifyError when the engine did not run what the arm says."""
        elapsed, decision = timed(self.engine, request, clock)
        size = proven_size(decision, self.arm, request, self.forward_calls)
        self.samples_ms.append(elapsed)
        self.sizes.append(size)
        for stage, milliseconds in decision["metadata"]["stages_ms"].items():
            self.stages_ms.setdefault(stage, []).append(milliseconds)
        if keep_decision or not self.decisions:
            self.decisions.append(decision)

    def count(self, when: str) -> None:
        """Keep the engine's counters under `when`."""
        self.counters[when] = plain(self.engine.counters())

    def measure_memory(self, request: SizedRequest) -> None:
        """Read the peak memory of one untimed decision."""
        device = self.decisions[0]["metadata"]["device"]
        self.memory = peak_memory(lambda: self.engine.decide(request.context, request.questions), str(device))

    def row(self) -> dict[str, Any]:
        """What is stored of an arm that ran, without what depends on other arms; times in ms."""
        metadata = self.decisions[0]["metadata"]
        return {
            "settings": plain(self.arm.settings),
            "engine_settings": plain(asdict(self.engine.settings)),
            "ran": {key: plain(metadata.get(key)) for key in _RAN},
            "forward_calls": metadata["forward_calls"],
            "warmup_ms": self.warmup_ms,
            "samples_ms": self.samples_ms,
            "median_ms": round(median(self.samples_ms), DECIMALS),
            "p90_ms": round(p90(self.samples_ms), DECIMALS),
            "min_ms": min(self.samples_ms),
            "stages_median_ms": {stage: round(median(values), DECIMALS) for stage, values in self.stages_ms.items()},
            "memory_bytes": asdict(self.memory) if self.memory else None,
            "counters": self.counters,
        }


def timed(engine: Any, request: SizedRequest, clock: Clock) -> tuple[float, Mapping[str, Any]]:
    """`timed_call` of one decision."""
    return timed_call(lambda: engine.decide(request.context, request.questions), clock)


def timed_call(decide: Callable[[], T], clock: Clock) -> tuple[float, T]:
    """Milliseconds of `decide`, and what it returns. Garbage collection is off meanwhile.

    A decision is plain Python numbers, so the device has finished when it returns.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = clock()
        decided = decide()
        end = clock()
    finally:
        if collecting:
            gc.enable()
    return round((end - begin) * 1e3, DECIMALS), decided


def proven_size(
    decision: Mapping[str, Any], arm: Arm, request: SizedRequest, forward_calls: int | None = None
) -> RequestSize:
    """The request's size as it ran. Raises JevifyError when the decision is not the work the arm names.

    forward_calls: how many it must have made, where that does not follow from the settings.
    """
    metadata = decision["metadata"]
    prove_settings(metadata, arm)
    ran = list(metadata["questions"].values())
    tokens = tuple(question["tokens"] for question in ran)
    if tokens != request.tokens:
        raise JevifyError(f"questions of {list(tokens)} tokens ran, but {list(request.tokens)} were measured")
    expected = 0 if metadata["executor"] == "independent" else request.shared
    if (shared := metadata["shared_prefix_tokens"]) != expected:
        raise JevifyError(f"a prefix of {shared} tokens was shared, but {expected} were measured")
    size = RequestSize(request.shared, tokens, tuple(tuple(question["label_tokens"]) for question in ran))
    needed = forward_calls or expected_forward_calls(size, DecideSettings(**arm.settings))
    if needed is not None and metadata["forward_calls"] != needed:
        raise JevifyError(f"{metadata['forward_calls']} forward calls were made; the executor needs {needed}")
    return size


def prove_settings(metadata: Mapping[str, Any], arm: Arm) -> None:
    """Raise JevifyError when the metadata of a decision is not that of the arm's executor and formats."""
    for key in _PROVEN:
        if key == "attention" and metadata["executor"] == "packed":
            continue  # It has its own; the setting acts on the others.
        if (asked := arm.settings.get(key, "auto")) not in ("auto", metadata[key]):
            raise JevifyError(f"{key} {metadata[key]} ran, not {asked}")
    if metadata["generated_tokens"] != 0:
        raise JevifyError(f"{metadata['generated_tokens']} tokens were generated; a decision generates none")


def plain(value: Any) -> Any:
    """The value as JSON data. Raises TypeError or ValueError for what JSON cannot hold."""
    return json.loads(json.dumps(value, allow_nan=False))
