# Targets for people and for continuous integration. All of them use one virtual environment,
# .venv, which is made again only when pyproject.toml changes.
#
#   make demo    plan and simulate a shipped machine; needs python3 and make, no torch, no GPU
#   make check   the fast part of the tests
#   make test    the whole test suite
#   make lint    formatting, lint rules and types
#   make fuzz    damaged inputs for every reader, resumable in .fuzz (INPUTS=100000 each)
#   make clean   remove what the targets above made

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
MACHINE := topologies/dual_node_nvlink.yaml

.DEFAULT_GOAL := help
.PHONY: help demo check test lint fuzz clean

help:
	@sed -n 's/^#   //p' Makefile

# The package with all that planning, simulating and reports need.
$(VENV)/core.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is missing or older than Python 3.10; name another with: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable '.[report]'
	@touch $@

# The same with torch, the test tools and the linters.
$(VENV)/full.stamp: $(VENV)/core.stamp
	$(PIP) install --quiet --editable '.[test,lint]' '$(TORCH)'
	@touch $@

demo: $(VENV)/core.stamp
	@rm -rf demo && mkdir demo
	@$(BIN)/charm-plan $(MACHINE) -o demo/dual_node_nvlink.plan.json --report demo/report.html > demo/report.txt
	@$(BIN)/charm-plan $(MACHINE) --json > demo/report.json
	@cat demo/report.txt
	@echo
	@echo "This report is in demo/report.txt, the same as JSON in demo/report.json, and as a page in demo/report.html."

check: $(VENV)/full.stamp
	$(BIN)/python -m pytest -m "not slow and not distributed and not packaging"

test: $(VENV)/full.stamp
	$(BIN)/python -m pytest

lint: $(VENV)/full.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

INPUTS ?= 100000
fuzz: $(VENV)/full.stamp
	PYTHONPATH=. $(BIN)/python tests/fuzz/campaign.py --inputs $(INPUTS)

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
