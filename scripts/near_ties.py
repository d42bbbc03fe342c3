"""Labels of questions built to be near 50 %, whoever shares the batch, with and without `stable`.

python scripts/near_ties.py evidence/near-ties-cpu.json --dtype bfloat16 --device cpu [--model M] [--fast]

About five minutes on two CPU cores with the default model, about a minute on a GPU. Exits with 1 when a stable label
depends on the batch, or an answer that is not flagged is not the oracle's.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jevify.accel.ops import MODULE_KERNELS
from jevify.decide.answers import top_label
from jevify.decide.questions import Choice, Noul, Question, Score
from jevify.decide.request import Combined
from jevify.engine import DecisionEngine
from jevify.evidence.environment import environment
from jevify.models.catalog import DEFAULT_MODEL

SAMPLE = Path(__file__).parent.parent / "benchmarks" / "data" / "sample.jsonl"
LONGEST = 130  # characters of a text
TEXTS = 40
CLOSEST = 24
CONFIRMED = 48  # closest candidates whose lead the oracle measures

WORDINGS: dict[str, Question] = {
    "positive": Noul(instructions="Is this text positive?"),
    "not_positive": Noul(instructions="Is it wrong to call this text positive?"),
    "kind": Choice(instructions="What is the tone of the text?", criteria=["positive", "negative"]),
    "kind_reversed": Choice(instructions="What is the tone of the text?", criteria=["negative", "positive"]),
    "degree": Score(instructions="How strong is the feeling?", criteria=["weak", "moderate", "strong"]),
}
NEIGHBOURS: dict[str, Question] = {
    f"neighbour_{index}": Noul(instructions=f"Does the text mention {what}?")
    for index, what in enumerate(("a person", "a place", "money"))
}

Request = tuple[Any, dict[str, Question]]
Decide = Callable[[list[Request]], list[Mapping[str, Any]]]


def candidates() -> list[Request]:
    """Every wording about every short text of the labelled sample, one question a request."""
    rows = [Combined.parse(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    texts = [row.context for row in rows if len(row.context) <= LONGEST][:TEXTS]
    return [(text, {name: question}) for text in texts for name, question in WORDINGS.items()]


def build(engine: DecisionEngine, ordinary: int) -> tuple[list[Request], list[float], list[Request], list[str]]:
    """The CLOSEST requests by the oracle's lead, their leads, and all requests with an oracle's label, with it.

    ordinary: how many other candidates the oracle answers too, at least, spread over all leads.
    """
    requests = candidates()
    leads = [lead_of(decision) for decision in engine.decide_many(requests)]
    places = sorted(range(len(requests)), key=leads.__getitem__)
    rest = places[CONFIRMED:]
    chosen = places[:CONFIRMED] + rest[:: max(1, len(rest) // ordinary)]
    asked = [requests[place] for place in chosen]
    decisions = [engine.oracle(*request) for request in asked]
    near = sorted(zip(map(lead_of, decisions), range(len(asked)), strict=True))[:CLOSEST]
    print(f"the oracle has answered {len(asked)} of {len(requests)} candidates", flush=True)
    return [asked[place] for _, place in near], [lead for lead, _ in near], asked, [label_of(d) for d in decisions]


def arrangements() -> dict[str, Callable[[Decide, list[Request]], list[Mapping[str, Any]]]]:
    """Ways to ask the same questions: alone, among neighbours about the same text, among other requests."""

    def among(count: int, *, last: bool) -> Callable[[Decide, list[Request]], list[Mapping[str, Any]]]:
        beside = dict(list(NEIGHBOURS.items())[:count])

        def ask(decide: Decide, requests: list[Request]) -> list[Mapping[str, Any]]:
            return [
                decide([(text, {**beside, **question} if last else {**question, **beside})])[0]
                for text, question in requests
            ]

        return ask

    def groups(size: int) -> Callable[[Decide, list[Request]], list[Mapping[str, Any]]]:
        return lambda decide, requests: [
            decision for start in range(0, len(requests), size) for decision in decide(requests[start : start + size])
        ]

    return {
        "alone": groups(1),
        "before 1 neighbour": among(1, last=False),
        "after 3 neighbours": among(3, last=True),
        "5 requests a call": groups(5),
        "all requests in one call": groups(CLOSEST),
    }


def lead_of(decision: Mapping[str, Any]) -> float:
    """The lead of a decision of one question, in nats."""
    [entry] = decision["metadata"]["questions"].values()
    return float(entry["lead"])


def label_of(decision: Mapping[str, Any], name: str | None = None) -> str:
    """The most probable label of a question; of the only one without a name."""
    answers = decision["answers"]
    return top_label(answers[name or next(iter(answers))]["probabilities"])


def labels_by_arrangement(engine: DecisionEngine, requests: list[Request]) -> dict[str, list[str]]:
    """The labels of the requests' own questions in every arrangement."""
    return {
        how: [
            label_of(decision, next(iter(question)))
            for decision, (_, question) in zip(ask(engine.decide_many, requests), requests, strict=True)
        ]
        for how, ask in arrangements().items()
    }


def differing(rows: Iterable[tuple[str, ...]]) -> int:
    """How many questions have more than one label."""
    return sum(len(set(row)) > 1 for row in rows)


def show_path(engine: DecisionEngine, near: list[Request], asked: list[Request], wanted: list[str]) -> dict[str, Any]:
    """Run everything on one path and count; `wanted` are the oracle's labels of `asked`, which hold all of `near`."""
    engine.warmup()
    reference = {id(request): label for request, label in zip(asked, wanted, strict=True)}
    truth = tuple(reference[id(request)] for request in near)
    plain = labels_by_arrangement(engine, near)
    stable_engine = engine.with_settings(stable=True)
    stable = labels_by_arrangement(stable_engine, near)
    decisions = engine.decide_many(asked)
    flagged = [next(iter(d["metadata"]["questions"].values()))["near_tie"] is True for d in decisions]
    outside = [
        (label_of(decision), label) for decision, label, tie in zip(decisions, wanted, flagged, strict=True) if not tie
    ]
    return {
        "drift": decisions[0]["metadata"]["drift"],
        "batch_dependent": differing(zip(*plain.values(), strict=True)),
        "batch_dependent_stable": differing(zip(*stable.values(), strict=True)),
        "not_the_oracles": {
            how: sum(found != right for found, right in zip(labels, truth, strict=True))
            for how, labels in plain.items()
        },
        "not_the_oracles_stable": {
            how: sum(found != right for found, right in zip(labels, truth, strict=True))
            for how, labels in stable.items()
        },
        "settled": stable_engine.counters()["settled"],
        "outside_drift": len(outside),
        "outside_drift_as_the_oracle": sum(found == right for found, right in outside),
        "inside_drift": sum(flagged),
        "largest_lead_overturned": max(
            (
                lead_of(decision)
                for decision, label in zip(decisions, wanted, strict=True)
                if label_of(decision) != label
            ),
            default=0.0,
        ),
    }


def main() -> int:
    """Build the set, run the paths, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ordinary", type=int, default=24, help="other candidates to hold against the oracle")
    parser.add_argument("--fast", action="store_true", help="also packed with fused kernels and CUDA graphs")
    args = parser.parse_args()
    paths: dict[str, dict[str, Any]] = {"forked": {"executor": "forked"}, "packed": {"executor": "packed"}}
    if args.fast:
        paths["packed, kernels, graphs"] = {"executor": "packed", "fused_kernels": MODULE_KERNELS, "cuda_graphs": True}
    base = DecisionEngine.from_pretrained(args.model, dtype=args.dtype, device=args.device, executor="packed")
    near, leads, asked, wanted = build(base, args.ordinary)
    print(f"{len(near)} questions with oracle leads of {leads[0]:.5f} to {leads[-1]:.5f} nats", flush=True)
    print(f"{'path':<24}{'drift':>8}{'batch decides':>15}{'stable':>8}{'settled':>9}  outside the drift as the oracle")
    results = {}
    for path, settings in paths.items():
        found = results[path] = show_path(base.with_settings(**settings), near, asked, wanted)
        print(
            f"{path:<24}{found['drift']['nats']:>8.3f}{found['batch_dependent']:>15}"
            f"{found['batch_dependent_stable']:>8}{found['settled']:>9}"
            f"  {found['outside_drift_as_the_oracle']} of {found['outside_drift']}",
            flush=True,
        )
    command = f"python scripts/near_ties.py {args.output} --model {args.model} --dtype {args.dtype}"
    command += f" --device {args.device}" + (" --fast" if args.fast else "")
    command += f" --ordinary {args.ordinary}" if args.ordinary != parser.get_default("ordinary") else ""
    run = {
        "model": args.model,
        "dtype": args.dtype,
        "environment": environment(command),
        "questions": len(near),
        "oracle_leads": leads,
        "paths": results,
    }
    args.output.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    good = all(
        found["batch_dependent_stable"] == 0
        and not any(found["not_the_oracles_stable"].values())
        and found["outside_drift_as_the_oracle"] == found["outside_drift"]
        for found in results.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
