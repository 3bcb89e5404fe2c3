# Everything here works from a fresh clone: the first target that needs it creates .venv and installs into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench docs clean

help: ## Print this help
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# Written last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

test: $(READY) ## Run all tests
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

check: $(READY) ## Lint, format, types (mypy --strict), direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

clean: ## Remove .venv, the docs site and every cache
	rm -rf $(VENV) site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
