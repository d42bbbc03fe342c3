"""Keep one engine resident: it loads once, warms up once, and then answers request after request.

python examples/resident_engine.py --repeats 5
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter

from jevify import Noul, Score, Workflow
from jevify.engine import DecisionEngine
from jevify.errors import JevifyError
from jevify.models.catalog import DEFAULT_MODEL

QUESTIONS = Workflow(
    questions={
        "human": Noul(instructions="Does the customer ask to speak with a person?"),
        "severity": Score(
            instructions="How serious is the problem?",
            criteria=["a small annoyance", "the customer is inconvenienced", "money or access is lost"],
        ),
    }
)
MESSAGES = (
    "The box was dented, but the lamp works.",
    "I cannot sign in since Monday. Please call me back, I want to talk to someone.",
    "You charged me twice and nobody answers.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the answers of each message once, the warm latency and the counters; 0, or the error's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, a folder or a hub id")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds over the messages")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    try:
        engine = DecisionEngine.from_pretrained(args.model)
        engine.warmup(questions=QUESTIONS)
    except JevifyError as error:
        print(error, file=sys.stderr)
        return error.exit_code

    times = []
    for repeat in range(args.repeats):
        for message in MESSAGES:
            began = perf_counter()
            answers = engine.decide(message, QUESTIONS)["answers"]
            times.append(1000 * (perf_counter() - began))
            if repeat == 0:
                human, severity = answers["human"]["noul"], answers["severity"]["score"]
                print(f"person asked for {human:.2f}, severity {severity:.2f}: {message}")
    print(f"warm: median {statistics.median(times):.0f} ms of {len(times)} requests")
    for name, value in engine.counters().items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
