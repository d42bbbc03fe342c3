"""Links of the Markdown files outside the site, whose own links mkdocs checks."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path for folder in (ROOT, ROOT / "benchmarks", ROOT / "benchmarks" / "data") for path in folder.glob("*.md")
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    relative = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in relative if not (document.parent / target).exists()] == []
