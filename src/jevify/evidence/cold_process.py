"""The fresh process of a cold measurement: reads a task as JSON on stdin, writes its times as JSON on stdout.

The task: `model`, `device`, `dtype`, `settings` and `rival` of the arm, `context` and `questions`, and `started`, the
time at which the process was started.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    """Import, load, decide twice. Whatever fails ends the process with its traceback."""
    task: dict[str, Any] = json.load(sys.stdin)
    from jevify.engine import DecisionEngine

    imported = time.time()
    engine = DecisionEngine.from_pretrained(
        task["model"], device=task["device"], dtype=task["dtype"], local_files_only=True, **task["settings"]
    )
    if task["rival"] is not None:
        from jevify.evidence.rivals import rival_engine

        engine = rival_engine(task["rival"], engine)
    loaded = time.time()
    decisions, ends = [], []
    for _ in range(2):
        decisions.append(engine.decide(task["context"], task["questions"]))
        ends.append(time.time())
    _prove(decisions[0]["metadata"], task)
    seconds = (imported - task["started"], loaded - imported, ends[0] - loaded, ends[1] - ends[0])
    from jevify.evidence.cold import TIMES

    print(json.dumps(dict(zip(TIMES, (round(value * 1e3, 3) for value in seconds), strict=True))))


def _prove(metadata: dict[str, Any], task: dict[str, Any]) -> None:
    from jevify.evidence.arm import prove_settings
    from jevify.evidence.kinds.base import Arm

    prove_settings(metadata, Arm("cold", task["settings"]))


if __name__ == "__main__":
    main()
