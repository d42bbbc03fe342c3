"""Time the token-tree attention kernel, tile by tile, on the GPU at hand.

    python scripts/tune_tree_attention.py OUT.json [--heads 12 2 128] [--dtype bfloat16] [--shapes NAME ...] [--quick]

One layer's attention at a time, captured in a CUDA graph and replayed with a cold L2 (`triton.testing.do_bench`),
median of the replays. Beside every tile: the default tile, the reference SDPA calls, and two FlashAttention calls
(shared prefix, then own rows) merged by their log-sum-exp. `floor` is max(FLOPs / rate, bytes / bandwidth) of an H200.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench

from jevify.accel.ops.tree_attention import plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import fused_tree_attention
from jevify.accel.ops.tree_layout import Tile, plan_layout
from jevify.accel.ops.tree_tiles import tile_for, tunable_tiles
from jevify.accel.tree import Pass, TokenTree
from jevify.evidence.floor import H200

# prefix, branches, rows a branch, requests, token budget
SHAPES = {
    "1 question": (100, 1, 50, 1, 10**6),
    "120 + 4 x 70": (120, 4, 70, 1, 10**6),
    "250 + 28 x 80": (250, 28, 80, 1, 10**6),
    "4000 + 8 x 80": (4000, 8, 80, 1, 10**6),
    "8 x 80 behind 4000 carried": (4000, 8, 80, 1, 4000),
    "64 x (120 + 4 x 70)": (120, 4, 70, 64, 10**6),
}


def last_pass(prefix: int, branches: int, rows: int, requests: int, budget: int) -> Pass:
    """The last pass over the tree of a shape."""
    tree = TokenTree()
    for _ in range(requests):
        root = tree.add([0] * prefix)
        for _ in range(branches):
            tree.add([0] * rows, root)
    return tree.passes(budget)[-1]


def milliseconds(run: Callable[[], Any], repeat_ms: int) -> float:
    """Median time of `run` in a graph."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return float(do_bench(graph.replay, warmup=10, rep=repeat_ms, return_mode="median"))


def flash(step: Pass, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Callable[[], Tensor]:
    """Own rows causally and the shared prefix whole in two varlen calls, merged; for trees of prefixes and branches."""
    own = torch.tensor([0, *(block_stop for block_stop in _stops(step))], dtype=torch.int32, device=q.device)
    longest = int((own[1:] - own[:-1]).max())
    behind = [block for block in step.blocks if block.ancestors]
    start, (prefix_start, prefix_stop) = behind[0].start, behind[0].ancestors[0]
    if any(block.ancestors != behind[0].ancestors for block in behind):
        raise ValueError("needs one shared prefix")
    rows, keys = q.shape[0] - start, prefix_stop - prefix_start
    all_rows, all_keys = (torch.tensor([0, n], dtype=torch.int32, device=q.device) for n in (rows, keys))
    call = torch.ops.aten._flash_attention_forward

    def run() -> Tensor:
        mine = k[step.carried :], v[step.carried :]
        out, lse, *_ = call(q, *mine, own, own, longest, longest, 0.0, True, False, scale=scale)
        shared = k[prefix_start:prefix_stop], v[prefix_start:prefix_stop]
        theirs, their_lse, *_ = call(q[start:], *shared, all_rows, all_keys, rows, keys, 0.0, False, False, scale=scale)
        weight = torch.sigmoid(their_lse.reshape(-1, rows) - lse[:, start:]).T[..., None]
        out[start:] = (weight * theirs + (1 - weight) * out[start:]).to(out.dtype)
        return torch.as_tensor(out)

    return run


def _stops(step: Pass) -> Iterator[int]:
    for block in step.blocks:
        stop = block.start
        for length in block.segments:
            stop += length
            yield stop


def measure(step: Pass, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, quick: bool) -> dict[str, Any]:
    """All timings of one shape, in milliseconds."""
    count, scale, repeat = len(step.token_ids), head_dim**-0.5, 30 if quick else 100
    q = torch.randn(count, heads, head_dim, device="cuda").to(dtype)
    k, v = (torch.randn(step.carried + count, kv_heads, head_dim, device="cuda").to(dtype) for _ in range(2))
    flops = 4 * head_dim * heads * sum(position + 1 for position in step.positions)
    bytes_moved = sum(x.nbytes for x in (q, q, k, v))
    floor = max(flops / H200.rate, bytes_moved / H200.bandwidth) * 1e3
    calls = plan_calls(step.blocks, step.carried, q.device, dtype)
    exact_calls = plan_calls(step.blocks, step.carried, q.device, torch.float64)
    wanted = tree_attention(q.double(), k.double(), v.double(), exact_calls, scale)

    def timed(run: Callable[[], Tensor]) -> dict[str, Any]:
        try:
            error = (run().double() - wanted).abs().max().item()
            took = milliseconds(run, repeat)
        except Exception as failure:  # a tile too large for the device, or an operator this build lacks
            torch.cuda.synchronize()
            return {"failed": f"{type(failure).__name__}: {failure}"[:300]}
        return {"ms": took, "times_floor": took / floor, "tflops": flops / took / 1e9, "error": error}

    def kernel(tile: Tile, processors: int) -> dict[str, Any]:
        begin = time.perf_counter()
        host = plan_layout(step, tile, heads=heads, kv_heads=kv_heads, processors=processors)
        plan_us = (time.perf_counter() - begin) * 1e6
        layout = host.to("cuda")
        found = timed(lambda: fused_tree_attention(q, k, v, layout, scale))
        return {**asdict(tile), "split": layout.shape.parts > 0, "plan_us": plan_us, **found}

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    chosen = tile_for(
        count, max(step.positions) + 1, heads=heads, kv_heads=kv_heads, dtype=dtype, processors=processors
    )
    tiles = tunable_tiles(head_dim=head_dim, group=heads // kv_heads, dtype=dtype)
    if quick:
        tiles = [tile for tile in tiles if tile.stages == 3 and tile.block_n == 64]
    found = []
    for tile in tiles:
        found.append(kernel(tile, 0))
        if plan_layout(step, tile, heads=heads, kv_heads=kv_heads, processors=processors).shape.parts:
            found.append(kernel(tile, processors))
    try:
        flash_run = flash(step, q, k, v, scale)
        flash_found = timed(flash_run)
    except ValueError as failure:
        flash_found = {"failed": str(failure)}
    return {
        "rows": count,
        "carried": step.carried,
        "gflop": flops / 1e9,
        "floor_ms": floor,
        "default": kernel(chosen, processors),
        "sdpa_calls": timed(lambda: tree_attention(q, k, v, calls, scale)),
        "flash_merged": flash_found,
        "tiles": sorted(found, key=lambda row: row.get("ms", float("inf"))),
    }


def main() -> None:
    """Measure the shapes and write OUT after each, so that a run that is cut short keeps what it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--heads", nargs=3, type=int, default=(12, 2, 128), metavar=("Q", "KV", "D"))
    parser.add_argument("--dtype", default="bfloat16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--quick", action="store_true", help="only tiles of 64 keys and three stages")
    options = parser.parse_args()
    heads, kv_heads, head_dim = options.heads
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "heads": options.heads,
        "dtype": options.dtype,
        "shapes": {},
    }
    for name in options.shapes:
        step = last_pass(*SHAPES[name])
        found = measure(step, heads, kv_heads, head_dim, getattr(torch, options.dtype), options.quick)
        result["shapes"][name] = found
        options.out.write_text(json.dumps(result, indent=1))
        print(f"{name}: floor {found['floor_ms'] * 1e3:.1f} us")
        rows = [("default", found["default"]), ("sdpa calls", found["sdpa_calls"]), ("flash", found["flash_merged"])]
        for label, row in rows + [("tile", row) for row in found["tiles"][:5]]:
            print(f"  {label:10} {_line(row)}", flush=True)


def _line(row: dict[str, Any]) -> str:
    tile = "x".join(str(row[key]) for key in ("block_m", "block_n", "warps", "stages")) if "block_m" in row else ""
    if "failed" in row:
        return f"{tile} {row['failed'][:100]}"
    share = f"{row['ms'] * 1e3:8.1f} us  {row['times_floor']:5.2f} x floor  {row['tflops']:6.1f} TFLOP/s"
    return f"{share}  error {row['error']:.1e}  {tile} {'split' if row.get('split') else ''}"


if __name__ == "__main__":
    main()
