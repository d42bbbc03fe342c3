"""Put the points of a crossover run into a file of maps, which decides where shared attention is used.

    jevify bench crossover-cuda --output run.json
    python scripts/write_crossover.py run.json [src/jevify/accel/crossover.json]

Without a file the user's own is written, in the cache folder.
"""

import argparse
from dataclasses import fields
from pathlib import Path

from jevify.accel.crossover import Point, user_file, write_map
from jevify.evidence.store import read_result


def main() -> None:
    """Write the map of the device that the run names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path, nargs="?", default=user_file())
    args = parser.parse_args()
    (case,) = read_result(args.run)["cases"]
    names = {entry.name for entry in fields(Point)}
    points = [Point(**{name: value for name, value in row.items() if name in names}) for row in case["arms"]]
    write_map(args.file, case["case"]["device"], points)
    print(f"{len(points)} points of {case['case']['device']} written to {args.file}")


if __name__ == "__main__":
    main()
