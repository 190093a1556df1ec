# Everything is run from here; `make test` and `make lint` set up what is missing by themselves.

PYTHON ?= python3

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
WIRE := src/headrace/wire
KERNEL_SOURCES := $(wildcard src/headrace/*/*.pyx $(WIRE)/*.pxd $(WIRE)/*.pxi $(WIRE)/*.h)
# Asked of the file, not of an import: a kernel that does not load has to fail the tests.
KERNEL_EXISTS := ls $(WIRE)/_kernel*.so >/dev/null 2>&1
ALL_BUT_SPARK := tests --ignore=tests/spark
NO_KERNEL := echo "kernel not compiled: testing the Python reference only"

.PHONY: help setup test test-quick test-spark lint bench bench-wire bench-producer bench-broker bench-legacy faults-producer model-broker \
	fuzz-wire fuzz-broker dist clean

help:
	@echo "make setup | test | test-quick | test-spark | lint | dist | clean"
	@echo "make bench | bench-wire | bench-producer | bench-broker | bench-legacy"
	@echo "make faults-producer | model-broker | fuzz-wire | fuzz-broker"

setup: .venv/.ready .venv/.kernel
	@echo "setup: ready (.venv)"

.venv/.ready: pyproject.toml setup.py tools/setup_env.py
	@$(PYTHON) tools/setup_env.py environment

# Order-only: a renewed environment alone is no reason to compile again.
.venv/.kernel: setup.py $(KERNEL_SOURCES) | .venv/.ready
	@$(BIN)/python tools/setup_env.py kernel

# Everything once, but for Spark, which takes as long again; then the unit layer on the other kernel.
test: .venv/.ready .venv/.kernel
	@if $(KERNEL_EXISTS); then \
		HEADRACE_KERNEL=compiled $(PYTEST) $(ALL_BUT_SPARK) && HEADRACE_KERNEL=python $(PYTEST) tests/unit; \
	else \
		$(NO_KERNEL) && HEADRACE_KERNEL=python $(PYTEST) $(ALL_BUT_SPARK); \
	fi

# Real Spark, real brokers: minutes, and a JVM for each of some tests.
test-spark: .venv/.ready .venv/.kernel
	@$(PYTEST) tests/spark

test-quick: .venv/.ready .venv/.kernel
	@if $(KERNEL_EXISTS); then HEADRACE_KERNEL=compiled $(PYTEST) -q -m "not slow" tests/unit; else $(NO_KERNEL); fi
	@HEADRACE_KERNEL=python $(PYTEST) -q -m "not slow" tests/unit

lint: .venv/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: bench-wire bench-producer bench-broker

bench-wire: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.wire

bench-producer: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.producer

bench-broker: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.broker

bench-legacy: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.legacy

# What `make test` does in small: 200 producers and 5 brokers killed, a million records counted.
faults-producer: .venv/.ready .venv/.kernel
	@HEADRACE_FAULT_ROUNDS=200 HEADRACE_FAULT_RECORDS=1000000 $(PYTEST) tests/faults

fuzz-wire: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.fuzz_wire

fuzz-broker: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.fuzz_broker

# What `make test` does in 10,000 steps, in a million.
model-broker: .venv/.ready .venv/.kernel
	@HEADRACE_MODEL_STEPS=1000000 $(PYTEST) -s tests/faults/test_broker_model.py -k kills

dist: .venv/.ready
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .

clean:
	rm -rf .venv build dist src/*.egg-info src/headrace/*/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
