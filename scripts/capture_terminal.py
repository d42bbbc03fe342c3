"""Draw docs/images/demo.svg: what `jevify --context-file examples/complaint.txt` prints on a terminal."""

import io
import re
from pathlib import Path

from rich.console import Console

from jevify import Workflow
from jevify.cli.render import show
from jevify.engine import DecisionEngine

ROOT = Path(__file__).parent.parent
COMMAND = "jevify --workflow workflow.json --context-file examples/complaint.txt"


def main() -> None:
    """Decide, print into a recording console, and store the drawing without its remote fonts."""
    engine = DecisionEngine.from_pretrained()
    engine.warmup()
    context = (ROOT / "examples" / "complaint.txt").read_text(encoding="utf-8")
    decision = engine.decide(context, Workflow.load(ROOT / "workflow.json"))
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {COMMAND}", highlight=False)
    show(decision, console)
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="jevify"), flags=re.DOTALL)
    (ROOT / "docs" / "images" / "demo.svg").write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
