# make demo | test | check | clean      (a machine with Python 3.11 and make is enough)
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The environment is installed again only when what it is made from changes.
KEY := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
RUN_STAMP := $(VENV)/.installed-run-$(KEY)
DEV_STAMP := $(VENV)/.installed-dev-$(KEY)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# OpenMP threads that spin while they wait take the cores from those that work.
export GOMP_SPINCOUNT := 0

.PHONY: help demo test coverage check format clean
help:
	@echo "make demo     install, then plan and run two checkpoints; writes build/demo/report.html"
	@echo "make test     install, then run the tests"
	@echo "make check    lint, format and types"
	@echo "make clean    remove what the above made"

demo: $(RUN_STAMP)
	$(BIN)/python examples/demo.py

# Two processes, a file of tests to one of them: tests of a file share what they make. Their order
# is that of tests/conftest.py.
test: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

coverage: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage $(VENV)

$(RUN_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "python3 -m venv does not work here: install Debian's python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV): takes a minute or two."
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[run,plots]'
	@rm -f $(VENV)/.installed-*
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(INSTALL) -e '.[run,service,dev]'
	@touch $@
