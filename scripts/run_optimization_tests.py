"""Run the tests of the optimizations: caches, executors, operations, and on a CUDA machine the GPU tests.

python scripts/run_optimization_tests.py [pytest arguments]
"""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
TESTS = ("tests/accel", "tests/models/test_cache.py", "tests/models/test_dense.py", "tests/models/test_weights.py")


def main() -> int:
    """Return pytest's exit code."""
    tests = [*TESTS, "tests/decide/test_executors.py", "tests/decide/test_head.py", "tests/test_engine.py"]
    if torch.cuda.is_available():
        tests.append("tests/gpu")
    return pytest.main(["--rootdir", str(ROOT), *(str(ROOT / test) for test in tests), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
