# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Tests that want real data find it here, unless the variable says otherwise.
ifneq ($(wildcard ../shared/data),)
export CONGRUENCY_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo replication test test-avalanche lint docs wheel fuzz bench bench-continual bench-comparison format clean

demo: $(READY)
	$(BIN)/congruency demo

# The paper's claims judged by docs/results, into docs/results/index.md.
replication: $(READY)
	$(BIN)/python -m replication

test: $(READY)
	$(BIN)/python -m pytest -n 2

# The plugin for Avalanche, in the environment that has it; `make test` says that it left this file out.
test-avalanche: .venv-avalanche/.ready
	.venv-avalanche/bin/python -m pip install --quiet --constraint constraints.txt pytest
	PYTHONPATH=src .venv-avalanche/bin/python -m pytest tests/integrations/test_integration_avalanche.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A warning is an error; nothing is fetched. The variable silences an advertisement of the theme.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(READY)
	$(BIN)/python -m build --outdir dist

# Hostile input for ten minutes; `make test` has a short form.
fuzz: $(READY)
	$(BIN)/python tests/fuzz/fuzz_long.py --minutes 10 --out benchmarks/results/fuzz.json --page docs/robustness.md

bench: $(READY)
	$(BIN)/congruency bench --out benchmarks/results

# Beside Avalanche, whose dependencies are old: it has an environment of its own. DATA is the folder of data sets.
bench-continual: $(READY) .venv-avalanche/.ready
	$(BIN)/python benchmarks/continual.py --data '$(DATA)' --avalanche .venv-avalanche/bin/python \
	  --out benchmarks/results/continual-cpu.json

bench-comparison: $(READY) .venv-avalanche/.ready
	$(BIN)/python benchmarks/comparison.py --avalanche .venv-avalanche/bin/python \
	  --out benchmarks/results/comparison-cpu.json --page docs/comparison.md

.venv-avalanche/.ready: constraints.txt
	$(PYTHON) -m venv .venv-avalanche
	.venv-avalanche/bin/python -m pip install --quiet --constraint constraints.txt avalanche-lib==0.6.0 quadprog torchvision
	@touch $@

$(READY): pyproject.toml constraints.txt src/congruency/backends/native.c
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
	  || { echo "congruency needs Python 3.10 to 3.13; set PYTHON=, as in 'make test PYTHON=python3.12'"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-avalanche build dist site src/*.egg-info src/congruency/backends/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis congruency-*/
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
