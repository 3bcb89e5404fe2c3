# Everything here works from a fresh clone: the first target that needs it creates .venv and installs into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Compiled modules are kept, even where the environment says otherwise: collecting the tests takes 16 s, not 27.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-peers test-portable check format bench docs coverage dist clean

help: ## Print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# Written last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

test: $(READY) ## Run the tests, but for the slow ones
	$(PYTEST) -m "not slow"

test-slow: $(READY) ## Run the slow tests: a Milvus server, many kills, memory, connections
	$(PYTEST) -m slow

test-peers: $(READY) ## Install other evaluation libraries (300 MB) and compare our figures with theirs, 10,000 cases (15 to 30 minutes)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	MAXMATCH_EXAMPLES=10000 $(BIN)/pytest tests/evaluation/test_peers.py tests/evaluation/test_mteb_adapter.py

test-portable: $(READY) ## Run `make test` as on processors without AVX-512 and AVX2, and with four threads (an hour)
	$(BIN)/python tests/portable.py

check: $(READY) ## Lint, format, types (mypy --strict), direction of imports, dead code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

format: $(READY) ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(READY) ## Train three small models on generated scenes and compare them (minutes on two CPU cores)
	$(BIN)/maxmatch demo

bench: $(READY) ## Print the speed table (CPU, and GPU when there is one)
	$(BIN)/python -m benchmarks.matching
	$(BIN)/python -m benchmarks.encoding

docs: $(READY) ## Build the docs site into site/; a broken link, reference or snippet fails it
	$(BIN)/zensical build --strict --clean

# The mathematics only: what is measured here is what a reader has to be able to trust without looking.
CORE := matching losses model.layers evaluation
comma := ,
space := $(subst ,, )
coverage: $(READY) ## Lines that the tests of the mathematics run; fails under 90 %
	$(BIN)/coverage run --source=$(subst $(space),$(comma),$(CORE:%=maxmatch.%)) -m pytest -q tests/matching tests/losses tests/model/test_layers.py tests/evaluation
	$(BIN)/coverage report --skip-covered --show-missing --fail-under=90

dist: $(READY) ## Build wheel and sdist, and check them
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

clean: ## Remove .venv, the docs site and every cache
	rm -rf $(VENV) site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage dist
