PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := $(VENV)/transformers-5.5.4

.PHONY: help setup demo test test-oldest lint gpu-test bench docs
.DEFAULT_GOAL := help

help:
	@echo "make demo      set up, pull the embedded model, decide on a real complaint"
	@echo "make test      set up, lint, type-check and run the CPU tests"
	@echo "make gpu-test  run the GPU tests (needs CUDA)"
	@echo "make bench     run the CPU benchmark scenario"
	@echo "make docs      build the site into site/"

setup: $(READY)

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/jevify models pull smollm2-135m
	$(BIN)/jevify --workflow workflow.json --context-file examples/complaint.txt

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/jevify models pull smollm2-135m
	$(BIN)/python -m pytest -m cpu

# The oldest supported transformers, beside the same torch.
test-oldest: $(READY)
	test -d $(OLDEST) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(OLDEST) \
		transformers==5.5.4
	PYTHONPATH=$(OLDEST) $(BIN)/python -m pytest -m cpu tests/models tests/decide/test_chat.py \
		tests/test_engine.py tests/test_engine_kernels.py

gpu-test: $(READY)
	$(BIN)/python -m pytest -m gpu

bench: $(READY)
	$(BIN)/jevify bench decide-cpu

docs: $(READY)
	$(BIN)/mkdocs build --strict
