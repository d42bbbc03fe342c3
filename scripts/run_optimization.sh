#!/usr/bin/env bash
# Test the optimizations, then benchmark them, in the project's own environment.
set -euo pipefail
cd "$(dirname "$0")/.."
make setup
.venv/bin/python scripts/run_optimization_tests.py
.venv/bin/python scripts/benchmark_optimizations.py "$@"
