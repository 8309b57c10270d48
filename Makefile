# Everything runs in .venv, which the first target that needs it makes; CONSTRAINTS= installs the latest releases there.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
READY := .venv/.ready

# The tests of the core, and what they need beside torch.
CORE := $(addprefix tests/,backends constraints measure test_architecture.py test_combinations.py test_cone.py test_corrector.py test_dcl.py \
  test_distributed.py test_docstrings.py test_files.py test_gem.py test_graphs.py test_modules.py test_packaging.py \
  test_means.py test_misuse.py test_resume.py test_trajectories.py)
CORE_NEEDS := hypothesis numpy pytest quadprog scipy
C_SOURCES := $(wildcard src/congruency/*/*.[ch])
SOURCES := pyproject.toml $(C_SOURCES) $(shell find src -name '*.py')

# Tests that want real data find it here, unless the variable says otherwise.
ifneq ($(wildcard ../shared/data),)
export CONGRUENCY_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo cost-tables readme-table replication test test-browser test-lowest test-torch test-cuda test-no-compiler test-avalanche test-saliency-peers lint docs wheel fuzz bench bench-continual bench-comparison format clean

demo: $(READY)
	$(BIN)/congruency demo

# The tables of docs/cost.md, from benchmarks/results.
cost-tables: $(READY)
	$(BIN)/python docs/making/cost_tables.py

# The README's table of what helps, from docs/results.
readme-table: $(READY)
	$(BIN)/python docs/making/readme_table.py

# The paper's claims judged by docs/results, into docs/results/index.md.
replication: $(READY)
	$(BIN)/python -m replication

test: $(READY)
	$(BIN)/python -m pytest -n 2

# The tests that open a page in Chromium; without it they fail, where `make test` skips them.
test-browser: $(READY)
	CONGRUENCY_REQUIRE_BROWSER=1 $(BIN)/python -m pytest -m browser

# The core on the lowest releases that pyproject.toml accepts. Some have no wheel for Python 3.13: use 3.10 to 3.12.
test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python -m pytest $(CORE)

# The core with plain torch operations in place of the compiled kernels.
test-torch: $(READY)
	CONGRUENCY_KERNELS=torch $(BIN)/python -m pytest -n 2 $(CORE)

# The core on a GPU. Every test is named as it ends, so that a run that is cut off has said what failed; the kernels are
# compiled when they are first used, which takes minutes.
test-cuda: $(READY)
	CONGRUENCY_TEST_DEVICE=cuda $(BIN)/python -m pytest -v $(CORE) \
	  $(addprefix tests/,test_cautious.py test_moving_gradients.py test_update.py test_watch.py)

# The core installed where there is no C compiler.
test-no-compiler: .venv-no-compiler/.ready
	test -z "$$(find .venv-no-compiler -path '*/congruency/*' -name '_native*.so')"
	.venv-no-compiler/bin/python -m pytest $(CORE)

# The plugin for Avalanche, in the environment that has it; `make test` says that it left this file out.
test-avalanche: .venv-avalanche/.ready
	.venv-avalanche/bin/python -m pip install --quiet --constraint constraints.txt pytest
	PYTHONPATH=src .venv-avalanche/bin/python -m pytest tests/integrations/test_integration_avalanche.py

# The saliency metrics beside pysaliency's, in the environment that has it; they want OSIE where CONGRUENCY_DATA points.
test-saliency-peers: .venv-saliency-peers/.ready
	@test -d "$${CONGRUENCY_DATA:-data}/osie" \
	  || { echo "nothing to compare: set CONGRUENCY_DATA to the folder that holds osie/"; exit 1; }
	PYTHONPATH=src .venv-saliency-peers/bin/python -m pytest tests/saliency/test_saliency_peers.py

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
	$(BIN)/python benchmarks/continual_peers.py --data '$(DATA)' --avalanche .venv-avalanche/bin/python --threads 1 \
	  --out benchmarks/results/continual-peers-cpu.json

bench-comparison: $(READY) .venv-avalanche/.ready
	$(BIN)/python -m benchmarks.comparison --avalanche .venv-avalanche/bin/python \
	  --out benchmarks/results/comparison-cpu.json --page docs/comparison.md

# Not editable: a module that was compiled for .venv would be found beside the sources, or in build.
.venv-lowest/.ready: constraints-lowest.txt $(SOURCES)
	rm -rf build
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt . $(CORE_NEEDS)
	@touch $@

.venv-no-compiler/.ready: $(CONSTRAINTS) $(SOURCES)
	rm -rf build
	$(PYTHON) -m venv .venv-no-compiler
	CC=false .venv-no-compiler/bin/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %) . $(CORE_NEEDS)
	@touch $@

.venv-avalanche/.ready: constraints.txt
	$(PYTHON) -m venv .venv-avalanche
	.venv-avalanche/bin/python -m pip install --quiet --constraint constraints.txt avalanche-lib==0.6.0 quadprog torchvision
	@touch $@

.venv-saliency-peers/.ready: constraints.txt
	$(PYTHON) -m venv .venv-saliency-peers
	.venv-saliency-peers/bin/python -m pip install --quiet --constraint constraints.txt pysaliency==0.2.22 \
	  'setuptools<81' 'numpy<2.4' h5py pillow pytest scipy torch torchmetrics
	@touch $@

$(READY): pyproject.toml $(CONSTRAINTS) $(C_SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "congruency needs Python 3.10 or newer; set PYTHON=, as in 'make test PYTHON=python3.12'"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-avalanche .venv-lowest .venv-no-compiler .venv-saliency-peers build dist site src/*.egg-info src/congruency/*/*.so \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis congruency-*/
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
