# Every target sets up its own virtual environment in .venv first; `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
MINUTES ?= 10
ARGS   ?=

BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# The environment is rebuilt when the dependencies change, and only then.
KEY   := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.surebound-$(KEY)

SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help
.PHONY: help venv quickstart test lint format audit mutants compat bench compare docs constraints clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## set up .venv with the pinned dependencies (the other targets do it by themselves)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "surebound needs Python 3.11 or later; say which with: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing the pinned dependencies into $(VENV) (once; a few minutes)"
	@# torch first: which build (CPU, CUDA) it is, is decided by the pin and by the configured index alone
	@$(PIP) install "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@rm -f $(VENV)/.surebound-* && touch $@

quickstart: venv  ## train, attack and verify two small networks on the embedded digits; write the report
	@$(BIN)/surebound quickstart --out runs/quickstart $(ARGS)

test: venv  ## run all tests, doctests and the packaging check
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

lint: venv  ## ruff and mypy --strict
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy --no-error-summary

format: venv  ## rewrite the sources in the project's format
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

audit: venv  ## look for a wrong answer: random networks, files and queries (make audit MINUTES=10)
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/surebound audit --minutes $(MINUTES) $(ARGS)

mutants: venv  ## put small faults into a copy of the code, one at a time: do the tests notice?
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m tests.mutants --jobs $(JOBS) $(ARGS)

compat: venv  ## run the core of the tests with other versions (ARGS="--torch 2.12.1 --python python3.12")
	@$(BIN)/python -m tests.compat $(ARGS)

bench: venv  ## measure against plain PyTorch; writes runs/bench.json (ARGS="bounds" runs one file)
	@$(BIN)/python -m benchmarks.run --out runs/bench.json $(ARGS)

compare: venv  ## compare two results of `make bench`: make compare OLD=a.json NEW=b.json
	@$(BIN)/python -m benchmarks.compare $(OLD) $(NEW) $(ARGS)

docs: venv  ## build the documentation site into site/
	@# not -q: it would hide the warnings from --strict
	@set -o pipefail; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | sed '/^INFO/d'

constraints: venv  ## write the versions installed now into constraints.txt
	@{ sed '/^[^#]/d' constraints.txt; \
	   $(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+[a-z0-9.]*$$//' | sort -f; \
	 } > constraints.tmp && mv constraints.tmp constraints.txt

clean:  ## remove what was built (.venv and runs/ stay)
	@rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
