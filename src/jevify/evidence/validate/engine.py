"""An engine as it is configured against the fp32 oracle on the same weights, beside its own noise floor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jevify.evidence.compare import Comparison, compare, probabilities
from jevify.evidence.gates import QualityGate
from jevify.evidence.proof import unproven
from jevify.evidence.validate.check import Outcome
from jevify.evidence.validate.quality import Labelled, label_quality
from jevify.evidence.validate.requests import SHORT, Batch, Request, batches

Progress = Callable[[int, int, str], None]
Decisions = Sequence[Mapping[str, Any]]

_PLAIN: Request = ("Late.", SHORT)


@dataclass(frozen=True)
class Compared:
    """One batch: the engine against the oracle, and, where that was run, against itself at another batch shape.

    near_ties: questions of the oracle whose lead is within twice the engine's measured drift, as (request, question).
    unproven: why its counters do not show that what was asked for ran.
    """

    batch: Batch
    against_oracle: Comparison
    noise: Comparison | None
    near_ties: frozenset[tuple[int, str]]
    unproven: str | None

    @property
    def flips_outside_ties(self) -> int:
        """Questions with another label than the oracle's that are no near tie."""
        return sum((flip.request, flip.question) not in self.near_ties for flip in self.against_oracle.flips)

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "name": self.batch.name,
            "settings": dict(self.batch.settings),
            "against_oracle": _data(self.against_oracle, self.near_ties),
            "noise": None if self.noise is None else _data(self.noise, self.near_ties),
            "near_ties": len(self.near_ties),
            "unproven": self.unproven,
        }


def _data(comparison: Comparison, near_ties: frozenset[tuple[int, str]]) -> dict[str, Any]:
    flips = [{**asdict(flip), "near_tie": (flip.request, flip.question) in near_ties} for flip in comparison.flips]
    return {**asdict(comparison), "flips": flips}


def validate_engine(
    engine: Any, sample: Sequence[Labelled], gate: QualityGate, *, progress: Progress = lambda done, total, text: None
) -> dict[str, Any]:
    """Outcomes (`checks`), batches (`cases`) and label quality (`quality`), as JSON data.

    Warms the engine up, which measures its drift where that is not known.
    """
    engine.warmup()
    drift = engine.decide(*_PLAIN)["metadata"]["drift"]
    todo = batches(engine)
    found = []
    for done, batch in enumerate(todo):
        progress(done, len(todo) + len(sample), batch.name)
        found.append(_compared(engine, batch, drift))
    ours, oracles = [], []
    for done, row in enumerate(sample):
        progress(len(todo) + done, len(todo) + len(sample), "labelled sample")
        ours.append(engine.decide(row.context, row.workflow))
        oracles.append(engine.oracle(row.context, row.workflow))
    progress(len(todo) + len(sample), len(todo) + len(sample), "")
    rows = [*found, *([_sampled(ours, oracles, drift)] if sample else [])]
    outcomes = list(_outcomes(rows, gate))
    quality: dict[str, Any] | None = None
    if sample:
        mine, theirs = label_quality(sample, ours), label_quality(sample, oracles)
        quality = {"engine": asdict(mine), "oracle": asdict(theirs)}
        outcomes += [
            Outcome(f"quality.{name}", abs(getattr(mine, name) - getattr(theirs, name)), f"{name}_change", bound)
            for name in ("accuracy", "nll", "brier", "ece")
            for bound in [getattr(gate, f"{name}_change")]
        ]
    return {
        "checks": [outcome.data() for outcome in outcomes],
        "cases": [row.data() for row in rows],
        "quality": quality,
    }


def _outcomes(rows: Sequence[Compared], gate: QualityGate) -> Iterator[Outcome]:
    questions = sum(row.against_oracle.questions for row in rows)
    flips = sum(len(row.against_oracle.flips) for row in rows)
    outside = questions - sum(len(row.near_ties) for row in rows)
    strays = sum(row.flips_outside_ties for row in rows)
    for row in rows:
        name = f"oracle.{row.batch.name}"
        yield Outcome(name, row.against_oracle.largest_difference, "largest_difference", gate.largest_difference)
        if row.batch.provable:
            idle = float(row.unproven is not None)
            yield Outcome(f"proof.{row.batch.name}", idle, "violations", 0, error=row.unproven)
    yield Outcome("agreement", 1 - flips / questions, "least_agreement", gate.least_agreement, least=True)
    yield Outcome(
        "agreement outside near ties",
        1 - strays / outside if outside else 1.0,
        "least_agreement_outside_near_ties",
        gate.least_agreement_outside_near_ties,
        least=True,
    )


def _compared(engine: Any, batch: Batch, drift: Mapping[str, Any]) -> Compared:
    candidate = engine.with_settings(**batch.settings) if batch.settings else engine
    before = candidate.counters()
    found = _decided(candidate, batch.requests, together=batch.together)
    calls = 1 if batch.together else len(batch.requests)
    reason = unproven(asdict(candidate.settings), before, candidate.counters(), calls)
    oracles = [candidate.oracle(*request) for request in batch.requests]
    noise = _other_shape(candidate, batch.requests)
    return Compared(
        batch,
        compare(_all(oracles), _all(found)),
        compare(_all(noise), _all(found)),
        _ties(drift, oracles),
        reason if batch.provable else None,
    )


def _sampled(ours: Decisions, oracles: Decisions, drift: Mapping[str, Any]) -> Compared:
    batch = Batch("labelled sample", (), together=False, provable=False)
    return Compared(batch, compare(_all(oracles), _all(ours)), None, _ties(drift, oracles), None)


def _decided(engine: Any, requests: Sequence[Request], *, together: bool) -> Decisions:
    if together:
        decisions: Decisions = engine.decide_many(list(requests))
        return decisions
    return [engine.decide(*request) for request in requests]


def _other_shape(engine: Any, requests: Sequence[Request]) -> Decisions:
    """The same code and requests at another batch shape."""
    executor = engine.settings.executor
    if executor == "independent":
        from jevify.evidence.rivals import BatchExecutor

        return _decided(engine.with_executor(BatchExecutor), requests, together=False)
    if executor == "forked":
        size = 1 if engine.settings.branch_batch_size > 1 else 8
        return _decided(engine.with_settings(branch_batch_size=size), requests, together=False)
    return [engine.decide_many([request, request])[0] for request in requests]


def _ties(drift: Mapping[str, Any], oracles: Decisions) -> frozenset[tuple[int, str]]:
    """Questions whose lead under the oracle is within the engine's drift, times the safety that metadata tells of."""
    return frozenset(
        (index, name)
        for index, oracle in enumerate(oracles)
        for name, entry in oracle["metadata"]["questions"].items()
        if drift["nats"] is not None and entry["lead"] is not None and entry["lead"] <= drift["safety"] * drift["nats"]
    )


def _all(decisions: Decisions) -> list[dict[str, dict[str, float]]]:
    return [probabilities(decision) for decision in decisions]
