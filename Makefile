PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := $(VENV)/transformers-5.5.4

.PHONY: help setup demo test test-oldest lint gpu-test bench bench-cuda evidence-mutate evidence-demo docs
.DEFAULT_GOAL := help

help:
	@echo "make demo      set up, pull the embedded model, decide on a real complaint"
	@echo "make test      set up, lint, type-check and run the CPU tests"
	@echo "make gpu-test  run the GPU tests (needs CUDA)"
	@echo "make bench     run the CPU benchmark scenario"
	@echo "make bench-cuda TOKENIZER=FOLDER  make the runs under evidence/ anew (needs CUDA)"
	@echo "make evidence-mutate   plant every fault, and see that validation rejects it"
	@echo "make docs      check the generated tables and build the site into site/"
	@echo "make evidence-demo  profile, bench, validate and report on the embedded model, on a CPU"

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

# The runs under evidence/ that need a GPU. TOKENIZER is a folder with a Qwen tokenizer and its chat template, for
# checkpoints of real shapes and random weights.
CUDA_RUNS := decide-cuda varied-cuda throughput-cuda profile-cuda crossover-cuda kernels-cuda decide-qwen3-cuda \
	decide-llama-cuda decide-rival-cuda
bench-cuda: $(READY)
	test -n "$(TOKENIZER)" || { echo "bench-cuda: say where the tokenizer is, TOKENIZER=FOLDER"; exit 2; }
	for shape in qwen2.5-1.5b qwen3-1.7b llama3.2-1b; do \
		test -d outputs/$$shape || $(BIN)/python scripts/random_checkpoint.py $$shape $(TOKENIZER) outputs/$$shape || exit 1; \
	done
	for name in $(CUDA_RUNS); do $(BIN)/jevify bench $$name --output evidence/$$name.json --force || exit 1; done
	$(BIN)/python scripts/fit_memory.py outputs/qwen2.5-1.5b evidence/memory-4gib.json
	$(BIN)/python scripts/tune_linear.py evidence/linear-products.json

evidence-mutate: $(READY)
	$(BIN)/jevify evidence mutate --output evidence/mutation-cpu.json --force

docs: $(READY)
	$(BIN)/jevify report --update-docs README.md docs/*.md --check
	$(BIN)/mkdocs build --strict

# Profile, bench, validate and report on the embedded model, in ten minutes on two cores.
evidence-demo: $(READY)
	$(BIN)/jevify models pull smollm2-135m
	$(BIN)/python scripts/evidence_demo.py outputs/evidence-demo
