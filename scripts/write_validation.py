"""Put the table of the committed run of planted faults into docs/validation.md, in the place of the one there.

python scripts/write_validation.py
"""

from pathlib import Path

from jevify.evidence.mutation.table import fault_table, read_mutations

DOCS, RUN = Path("docs/validation.md"), Path("evidence/mutation-cpu.json")
BEFORE = "of the project's list of faults that keep coming back):\n\n"


def main() -> None:
    """Rewrite everything after the sentence that announces the table."""
    text, found, _ = DOCS.read_text(encoding="utf-8").partition(BEFORE)
    if not found:
        raise SystemExit(f"{DOCS}: does not announce the table with {BEFORE.strip()!r}")
    table = "\n".join(fault_table(read_mutations(RUN)))
    DOCS.write_text(f"{text}{found}{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
