"""Show that a model decides inside a given amount of GPU memory.

    python scripts/fit_memory.py MODEL OUT.json [--gib 4] [--dtype float16]

A per-process cap is put on PyTorch's allocator, so that going over it is an out-of-memory error; then the model is
loaded and decides with every executor, with and without graphs and kernels.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from jevify.engine import DecisionEngine
from jevify.evidence.environment import environment

GIB = 2**30
KERNELS = ("rmsnorm", "swiglu", "rope", "residual_norm")
WAYS = {
    "independent": {"executor": "independent"},
    "forked": {"executor": "forked"},
    "forked, kernels and graphs": {"executor": "forked", "fused_kernels": KERNELS, "cuda_graphs": True},
    "packed": {"executor": "packed"},
    "packed, kernels and graphs": {"executor": "packed", "fused_kernels": KERNELS, "cuda_graphs": True},
}
QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical support", "refunds"]},
    "late": {"type": "noul", "instructions": "Is it late?"},
    "person": {"type": "noul", "instructions": "Does the customer ask for a person?"},
    "mood": {"type": "score", "instructions": "How upset is the customer?", "criteria": ["calm", "upset", "furious"]},
}


def main() -> int:
    """Run every way; 1 when one did not fit."""
    parser = argparse.ArgumentParser(description="Show that a model decides inside a given amount of GPU memory.")
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--dtype", default="float16")
    args = parser.parse_args()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(args.gib * GIB / total)
    engine = DecisionEngine.from_pretrained(args.model, device="cuda", dtype=args.dtype)
    rows = {"load": {"peak_bytes": torch.cuda.max_memory_reserved()}}
    for name, settings in WAYS.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            other = engine.with_settings(**settings)
            for size in (1, 12, 60):
                other.decide("The parcel arrived two days late and the box was torn. " * size, QUESTIONS)
            rows[name] = {"peak_bytes": torch.cuda.max_memory_reserved()}
            graphs = other.counters()[settings["executor"]].get("graphs")
            if graphs:
                rows[name]["graphs"] = {key: graphs[key] for key in ("captures", "replays", "fallbacks")}
            other.clear_optimization_cache()
        except torch.cuda.OutOfMemoryError as error:
            rows[name] = {"error": str(error).splitlines()[0]}
        print(name, rows[name], flush=True)
    command = f"python scripts/fit_memory.py {args.model} {args.output} --gib {args.gib} --dtype {args.dtype}"
    result = {"cap_bytes": int(args.gib * GIB), "dtype": args.dtype, "environment": environment(command), "ways": rows}
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    return int(any("error" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
