"""Time every way to multiply a few rows by the weights of a model, on the GPU at hand.

    python scripts/tune_linear.py OUT.json [--products N K BIAS ...] [--seconds 75] [--write]

Ways: the library (`functional.linear`), its path for products with a bias ("lt"), its transposed product ("swapped"),
and the split-K kernel by tile. One graph replays a way over as many copies of the weight as exceed the L2 twice, as the
layers of a model do; the time is that of the graph over the copies, the median of some replays. Tiles that differ from
an fp32 product by more than rounding are dropped. `--write` puts the fastest ways into
src/jevify/accel/ops/linear_tiles.json and leaves what was not measured there as it is.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from jevify.accel.ops.linear import LinearTile, linear_kernel
from jevify.accel.ops.linear_choice import swapped
from jevify.evidence.environment import environment

TABLE = Path("src/jevify/accel/ops/linear_tiles.json")
# Qwen2.5-1.5B as the packed executor merges it: q/k/v, output, gate and up, down.
PRODUCTS = ((2048, 1536, 1), (1536, 1536, 0), (17920, 1536, 0), (1536, 8960, 0))
ROWS = (16, 32, 64, 96, 128, 160, 192, 240, 288, 336, 384, 480)
DTYPE = torch.bfloat16
L2_BYTES, SHARED_BYTES, BANDWIDTH, PROCESSORS = 50e6, 227 * 1024, 4.29e12, 132
WIDE = (
    (16, 64, 128, 4, 4), (32, 64, 128, 4, 4), (64, 64, 128, 4, 4), (64, 128, 64, 4, 4), (64, 128, 128, 4, 3),
    # Three stages let three such programs share a processor: 280 of them are one wave.
    (128, 64, 64, 4, 4), (128, 64, 64, 4, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 256, 64, 8, 3),
)  # fmt: skip
NARROW = (
    (16, 32, 256, 4, 3), (16, 64, 128, 4, 4), (32, 64, 128, 4, 4), (64, 32, 128, 4, 4), (64, 64, 128, 4, 4),
    (128, 32, 128, 4, 3), (128, 64, 64, 4, 4), (128, 128, 64, 8, 3),
)  # fmt: skip
SPLITS = (1, 2, 4, 8)
REPLAYS = 5
# A way must beat the library by this factor to be chosen over it.
MATERIAL = 1.03


def tiles(outputs: int) -> list[LinearTile]:
    """The tiles worth timing for a product of so many outputs."""
    shapes = WIDE if outputs >= 64 * PROCESSORS else NARROW
    splits = (1,) if outputs >= 64 * PROCESSORS else SPLITS
    made = [LinearTile(m, n, k, split, warps, stages) for m, n, k, warps, stages in shapes for split in splits]
    return [tile for tile in made if tile.shared_bytes(DTYPE.itemsize) <= SHARED_BYTES]


def worthwhile(tile: LinearTile, rows: int, outputs: int) -> bool:
    """Whether a tile is no plain waste for so many rows: not mostly padding, no weight read over and over."""
    programs = -(-rows // tile.block_m) * -(-outputs // tile.block_n) * tile.split
    return tile.block_m <= max(2 * rows, 16) and rows <= 4 * tile.block_m and 40 <= programs <= 1_200


def compile_tiles(work: list[tuple[LinearTile, int, int, int]]) -> None:
    """Run tiles once, which leaves the compiled kernels in Triton's cache on disk."""
    for tile, outputs, inner, bias in work:
        x, weight = (torch.zeros(rows, inner, dtype=DTYPE, device="cuda") for rows in (16, outputs))
        try:
            linear_kernel(x, weight, torch.zeros(outputs, dtype=DTYPE, device="cuda") if bias else None, tile)
        except Exception as error:
            print(f"{tile}: {type(error).__name__}", flush=True)


def microseconds(run: Any, weights: list[torch.Tensor]) -> float:
    """Time of one call with a weight that is not in the L2."""
    for weight in weights[:2]:
        run(weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times) * 1e3 / len(weights)


def ways(rows: int, outputs: int, inner: int, bias: bool) -> dict[str, Any]:
    """Every way by name, each a function of the weight."""
    x = torch.randn(rows, inner, dtype=DTYPE, device="cuda")
    added = torch.randn(outputs, dtype=DTYPE, device="cuda") if bias else None
    found: dict[str, Any] = {
        "library": lambda weight: functional.linear(x, weight, added),
        "swapped": lambda weight: swapped(x, weight, added),
    }
    if not bias:
        zeros = torch.zeros(outputs, dtype=DTYPE, device="cuda")
        found["lt"] = lambda weight: functional.linear(x, weight, zeros)
    weight = torch.randn(outputs, inner, dtype=DTYPE, device="cuda") / inner**0.5
    exact = functional.linear(x.float(), weight.float(), None if added is None else added.float())
    allowed = 2 * float((functional.linear(x, weight, added).float() - exact).abs().max()) + 1e-4
    for tile in tiles(outputs):
        if not worthwhile(tile, rows, outputs):
            continue
        try:
            error = float((linear_kernel(x, weight, added, tile).float() - exact).abs().max())
        except Exception as problem:
            print(f"{tile} at {rows} rows: {type(problem).__name__}: {problem}", flush=True)
            continue
        if not error <= allowed:
            print(f"{tile} at {rows} rows of {outputs}x{inner}: off by {error}, {allowed} allowed", flush=True)
            continue
        numbers = (tile.block_m, tile.block_n, tile.block_k, tile.split, tile.warps, tile.stages)
        found[json.dumps(numbers)] = lambda weight, tile=tile: linear_kernel(x, weight, added, tile)
    return found


def table_of(measured: dict[str, list[dict[str, Any]]]) -> dict[str, list[list[Any]]]:
    """For each product that was reached, the fastest way up to each number of rows.

    The library's, where none is materially faster.
    """
    table = {}
    for product, points in measured.items():
        if not points:
            continue
        steps: list[list[Any]] = []
        for point in points:
            times = point["microseconds"]
            name = min(times, key=times.get)
            if times[name] * MATERIAL > times["library"]:
                name = "library"
            way = json.loads(name) if name.startswith("[") else name
            if steps and steps[-1][1] == way:
                steps[-1][0] = point["rows"]
            else:
                steps.append([point["rows"], way])
        table[product] = steps
    return table


def main() -> None:
    """Compile, time, store."""
    parser = argparse.ArgumentParser(description="Time ways to multiply a few rows by a model's weights.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--products", type=int, nargs="+", help="N K BIAS, any number of times")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    begin = time.perf_counter()
    numbers = args.products or [number for product in PRODUCTS for number in product]
    products = list(zip(*[iter(numbers)] * 3, strict=True))
    work = [(tile, n, k, bias) for n, k, bias in products for tile in tiles(n)]
    with multiprocessing.get_context("spawn").Pool(8) as workers:
        compiling = workers.map_async(compile_tiles, [work[start::8] for start in range(8)], chunksize=1)
        compiling.wait(args.seconds / 2)
        done = "compiled" if compiling.ready() else "stopped compiling"
    print(f"{done} {len(work)} tiles after {time.perf_counter() - begin:.0f} s", flush=True)
    measured: dict[str, list[dict[str, Any]]] = {f"{n}x{k}": [] for n, k, _ in products}
    with torch.inference_mode():
        for n, k, bias in products:
            copies = max(8, int(2 * L2_BYTES / (n * k * DTYPE.itemsize)) + 1)
            weights = [torch.randn(n, k, dtype=DTYPE, device="cuda") for _ in range(copies)]
            for rows in ROWS:
                if time.perf_counter() - begin > args.seconds:
                    print(f"out of time at {rows} rows of {n}x{k}", flush=True)
                    break
                choices = ways(rows, n, k, bool(bias))
                timed = {name: round(microseconds(run, weights), 2) for name, run in choices.items()}
                best = sorted(timed, key=timed.get)[:3]
                floor = n * k * DTYPE.itemsize / BANDWIDTH * 1e6
                point = {
                    "rows": rows,
                    "floor_microseconds": round(floor, 2),
                    "share_of_floor": round(floor / timed[best[0]], 3),
                    "microseconds": timed,
                }
                measured[f"{n}x{k}"].append(point)
                shown = ", ".join(f"{name} {timed[name]}" for name in best)
                print(f"{n}x{k} rows {rows}: library {timed['library']}, best {shown}, floor {floor:.1f}", flush=True)
    command = f"python scripts/tune_linear.py {args.output}{' --write' if args.write else ''}"
    device, dtype = torch.cuda.get_device_name(), str(DTYPE).removeprefix("torch.")
    result = {"device": device, "dtype": dtype, "environment": environment(command), "products": measured}
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    if args.write:
        table = json.loads(TABLE.read_text())
        table.setdefault(device, {}).setdefault(dtype, {}).update(table_of(measured))
        TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
