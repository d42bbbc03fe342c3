"""Run a benchmark scenario and write its raw run and REPORT.md into a folder.

python scripts/benchmark_optimizations.py [SCENARIO] [--folder outputs/decision-engine/SCENARIO]
"""

import argparse
import sys
from pathlib import Path

from jevify.cli.main import main as jevify
from jevify.evidence.report import markdown
from jevify.evidence.store import read_result


def main() -> int:
    """Return the exit code of `jevify bench`; REPORT.md is written whenever a run was stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="decide-cpu", help="a scenario of benchmarks/")
    parser.add_argument("--folder", type=Path, help="where to write (default: outputs/decision-engine/SCENARIO)")
    args = parser.parse_args()
    folder = args.folder or Path("outputs", "decision-engine", Path(args.scenario).stem)
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "run.json"
    code = jevify(["bench", args.scenario, "--output", str(raw), "--force"])
    if raw.is_file():
        (folder / "REPORT.md").write_text(markdown(read_result(raw)), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
