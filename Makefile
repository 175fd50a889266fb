# make call    sets everything up, then a scripted caller phones the example clinic (no GPU needed)
# make test    sets up the test tools too, then runs the quick checks and tests
#
# On Linux, PyPI's torch is the CUDA build and brings about 3 GB of NVIDIA libraries. Without a GPU, take the CPU build:
#   make call TORCH_INDEX=https://download.pytorch.org/whl/cpu
# (or export PIP_EXTRA_INDEX_URL yourself). Where pip already knows a CPU wheel, that one wins and nothing is needed.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
TORCH_INDEX ?=
RUNTIME ?= inprocess
PYTEST ?=

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/lock.txt
CODE := $(wildcard chains engines examples benchmarks)

export PYTHONUNBUFFERED := 1
# In tests every library gets one thread: two that take all cores each slow one another down several times.
test test-slow test-all: export OMP_NUM_THREADS := 1
test test-slow test-all: export OMP_WAIT_POLICY := PASSIVE

.PHONY: help setup models setup-dev call test test-slow test-all test-speech test-browser check fix proto bench lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo 'Variables: PYTHON=python3.11  TORCH_INDEX=URL  RUNTIME=inprocess|processes|ray  PYTEST="-k name"'

define pip_install
	echo 'installing $(1) into $(VENV) (details: $(VENV)/pip.log)'
	$(BIN)/python -m pip install --disable-pip-version-check --no-input -c $(LOCK) \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[$(1)]' 2>&1 \
	  | $(BIN)/python requirements/progress.py $(VENV)/pip.log \
	  || { tail -n 5 $(VENV)/pip.log; echo 'pip failed; mend what it says above and run make again'; exit 1; }
endef

$(BIN)/python:
	@python=$$(for name in $(PYTHON) python3; do \
	  "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done) || true; \
	if [ -z "$$python" ]; then \
	  echo "no Python 3.11 or newer: neither '$(PYTHON)' nor python3 is one; install it or run make PYTHON=/path/to/python3.11"; \
	  exit 1; fi; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$$python -m venv' failed; on Debian and Ubuntu install the package python3-venv"; exit 1; }

$(VENV)/.runtime: pyproject.toml $(LOCK) | $(BIN)/python
	@$(call pip_install,speech$(,)llm$(,)wire)
	@touch $@

$(VENV)/.ray: pyproject.toml $(LOCK) | $(VENV)/.runtime
	@$(call pip_install,speech$(,)llm$(,)wire$(,)ray)
	@touch $@

$(VENV)/.dev: pyproject.toml $(LOCK) | $(VENV)/.runtime
	@$(call pip_install,speech$(,)llm$(,)wire$(,)grammar$(,)ray$(,)dev)
	@touch $@

, := ,

setup: $(VENV)/.runtime models ## create .venv and install what a call needs

models: $(VENV)/.runtime
	@$(BIN)/chains fetch-models

setup-dev: $(VENV)/.runtime $(VENV)/.dev models ## the same, and the tools for tests and checks

call: setup $(if $(filter ray,$(RUNTIME)),$(VENV)/.ray) ## phone the example clinic; leaves call.wav, call.json and a page
	@$(BIN)/python -m examples.phone_call.dial --runtime $(RUNTIME)

test: setup-dev test-speech test-browser check ## checks, and every test that takes under 5 seconds
	$(BIN)/python -m pytest -m 'not slow and not gpu' $(PYTEST)

test-all: setup-dev test-speech test-browser check ## every test that this machine can run
	$(BIN)/python -m pytest $(PYTEST)

test-slow: setup-dev test-speech test-browser ## the tests that `make test` leaves out
	$(BIN)/python -m pytest -m 'slow and not gpu' $(PYTEST)

# Recorded human speech for the tests; without apt the tests that hear it are skipped and say so.
test-speech: $(VENV)/.dev
	@if [ -f tests/speech/fetch.py ]; then $(BIN)/python tests/speech/fetch.py; fi

# A browser for the tests of the page; without one they are skipped and say so.
test-browser: $(VENV)/.dev
	@if [ -f tests/browser/fetch.py ]; then $(BIN)/python tests/browser/fetch.py; fi

check: $(VENV)/.dev ## lint, format, types, import contracts
	$(BIN)/ruff check . || { echo 'make fix mends what can be mended by itself'; exit 1; }
	$(BIN)/ruff format --check . || { echo 'make fix formats them'; exit 1; }
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo

fix: $(VENV)/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.dev ## write chains/wire/pb anew from proto/chains/v1
	$(BIN)/python -m grpc_tools.protoc -I chains/wire/pb=proto/chains/v1 --python_out=. --grpc_python_out=. \
	  chains/wire/pb/carrier.proto

bench: setup-dev ## every benchmark, with its table; JSON into build/bench
	@mkdir -p build/bench
	@for file in $(filter-out benchmarks/report.py benchmarks/__init__.py,$(wildcard benchmarks/*.py)); do \
	  $(BIN)/python "$$file" --json "build/bench/$$(basename "$$file" .py).json"; done

lock: | $(BIN)/python ## write requirements/lock.txt anew from a fresh environment
	@rm -rf build/lock && $(BIN)/python -m venv build/lock
	@build/lock/bin/python -m pip install -q --disable-pip-version-check -e '.[speech,llm,wire,grammar,ray,dev]'
	@{ grep '^#' $(LOCK); build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > build/lock.txt
	@mv build/lock.txt $(LOCK) && rm -rf build/lock && git --no-pager diff --stat -- $(LOCK)

clean: ## remove the environment, caches and what runs left behind
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis call.wav call.json clinic.sqlite*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
