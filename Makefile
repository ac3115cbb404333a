# Everything is installed into .venv/ and written to var/ (or $UNDERSTUDY_HOME). No root needed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BOOTSTRAP_PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
REPLAY := understudy/simulation/native/build/libreplay.so

export UNDERSTUDY_HOME := $(abspath $(or $(UNDERSTUDY_HOME),var))
export DAGSTER_HOME := $(UNDERSTUDY_HOME)/dagster
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup build demo test test-asan test-torch-versions scripts-table fidelity lint format ui bench \
	lock clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: build ## installs everything into .venv and builds the interceptor

$(INSTALLED): requirements.lock pyproject.toml
	@"$(BOOTSTRAP_PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "make setup: Python 3.11 is needed (found: $(BOOTSTRAP_PYTHON)); name one with BOOTSTRAP_PYTHON=..." >&2; exit 1; }
	@for tool in gcc g++; do command -v $$tool >/dev/null || \
		{ echo "make setup: $$tool is needed to build the interceptor" >&2; exit 1; }; done
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(BOOTSTRAP_PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

build: $(INSTALLED) $(REPLAY) ## builds the interceptor (interceptor_c/build) and the replay engine
	@$(MAKE) --silent --no-print-directory -C interceptor_c PYTHON=$(BIN)/python

$(REPLAY): understudy/simulation/native/replay.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -o $@.tmp $<
	@mv $@.tmp $@

demo: setup ## predicts GPT-2 124M with DDP on 8 H100s
	$(BIN)/understudy predict scenarios/gpt2-124m_ddp8.yaml

test: lint .venv-traceinsight/.installed ## all tests: linters, types, then pytest, which runs the C tests under sanitizers too
	@$(MAKE) --no-print-directory -C interceptor_c tests asan >/dev/null # before two workers ask for it
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15

test-asan: setup ## every script of the tests under AddressSanitizer and UBSan
	SANITIZED_SCRIPTS=all $(BIN)/python -m pytest --numprocesses 2 --durations 15 tests/e2e/test_sanitized.py

test-torch-versions: setup .venv-torch-2.9.1/.installed ## scripts on PyTorch 2.14.1 and 2.9.1, which it downloads (900 MB)
	TORCH_VERSIONS=1 $(BIN)/python -m pytest --numprocesses 2 --durations 15 tests/torch_versions

.venv-torch-%/.installed: tests/torch_versions/torch-%.txt
	"$(BOOTSTRAP_PYTHON)" -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --no-deps -r $<
	@touch $@

# Beside .venv, not in it: with pandas there, every process that uses pyarrow would load it.
.venv-traceinsight/.installed: tests/e2e/traceinsight.txt | setup
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) -r $<
	@touch $@

scripts-table: setup ## measures the scripts of the README's table and writes it anew
	rm -rf var/scripts_table
	SCRIPTS_TABLE=write $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/e2e/test_scripts_*.py
	$(BIN)/python -m tests.e2e.scripts_table

lint: setup ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: setup ## formats the Python code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: setup ## opens the Dagster web page (Ctrl-C ends it)
	$(BIN)/understudy ui

bench: setup ## what interception and replay cost on this machine
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/replay.py

fidelity: setup ## replays public traces of real runs and prints how far off each is
	$(BIN)/python -m benchmarks.fidelity

lock: setup ## resolves the dependencies anew into requirements.lock
	$(BIN)/python .ci/lock.py

clean: ## removes what was built and installed; var/ stays
	rm -rf .venv interceptor_c/build $(dir $(REPLAY)) *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
