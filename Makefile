# Everything is run from here; `make test` and `make lint` set up what is missing by themselves.

PYTHON ?= python3
# Tests start hundreds of Python processes: without cached bytecode, each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
WIRE := src/headrace/wire
DEMO_REPORT ?= build/demo.html
KERNEL_SOURCES := $(wildcard src/headrace/*/*.pyx src/headrace/*/*/*.pyx src/headrace/*/*/*.h src/headrace/*/*/*.pxi $(WIRE)/*.pxd $(WIRE)/*.pxi $(WIRE)/*.h)
# Asked of the file, not of an import: a kernel that does not load has to fail the tests.
KERNEL_EXISTS := ls $(WIRE)/_kernel*.so >/dev/null 2>&1
SPARK := tests/spark tests/docs tests/schema/test_page.py
LIVE_VIEW := tests/ui
SUITES := franz-go librdkafka confluent kafka-python

.PHONY: help setup demo test test-all test-quick test-spark test-many-queries test-ui lint bench \
	bench-wire bench-schema bench-producer bench-consumer bench-broker bench-legacy bench-cluster bench-commit bench-spark bench-spark-long bench-ui bench-revisions faults-producer \
	model model-broker crash-matrix fuzz-wire fuzz-broker fuzz-data-dir mutants simulate simulate-bugs commit-cost chaos chaos-consumer chaos-share verify-clients docs dist test-wheel clean \
	$(SUITES:%=suite-%)

help:
	@echo "make demo | setup | test | test-all | test-quick | test-spark | test-many-queries | test-ui | test-wheel | lint | docs |" \
		"dist | clean"
	@echo "make bench | bench-wire | bench-schema | bench-producer | bench-consumer | bench-broker | bench-legacy | bench-cluster | bench-commit | bench-spark |" \
		"bench-spark-long | bench-ui | bench-revisions"
	@echo "make faults-producer | model | model-broker | crash-matrix | chaos | chaos-consumer | chaos-share | verify-clients | fuzz-wire | fuzz-broker | fuzz-data-dir | mutants | simulate | simulate-bugs |" \
		"commit-cost"
	@echo "make $(SUITES:%=suite-%)" | sed 's/ suite/ | suite/2g'

setup: .venv/.ready .venv/.kernel
	@echo "setup: ready (.venv)"

# A million orders, exactly once, while a worker, the driver and the broker are killed: a minute or two.
# KAFKA=host:port does it on a cluster of yours, whose brokers are left alone. ROWS=100000: fewer orders, or more.
# UI=1 shows it in the browser meanwhile.
demo: .venv/.ready .venv/.kernel
	@$(BIN)/headrace demo --report $(DEMO_REPORT) $(if $(KAFKA),--bootstrap $(KAFKA)) $(if $(ROWS),--rows $(ROWS)) \
		$(if $(UI),--ui)

.venv/.ready: pyproject.toml setup.py tools/setup_env.py
	@$(PYTHON) tools/setup_env.py environment

# Order-only: a renewed environment alone is no reason to compile again.
.venv/.kernel: setup.py $(KERNEL_SOURCES) | .venv/.ready
	@$(BIN)/python tools/setup_env.py kernel

# All tests but the slow ones. Four groups share two cores, because tests mostly wait; the output of a group is printed
# when it is done. Groups are started in this order: the longest first.
TEST_JOBS ?= 4
TEST_GROUPS := broker spark-processes consumers faults ui spark kafka commit units-once schema either cli docs units-compiled units-python
.PHONY: $(TEST_GROUPS:%=test-group-%)
test: .venv/.ready .venv/.kernel
	@echo "test: $(words $(TEST_GROUPS)) groups, at most 15 minutes on two cores; each prints its output when it is done"
	@$(MAKE) --no-print-directory --jobs=$(TEST_JOBS) --keep-going --output-sync=target $(TEST_GROUPS:%=test-group-%)

# Also the slow tests and all cells of the crash matrix: about two hours.
test-all: .venv/.ready .venv/.kernel
	@HEADRACE_CRASH_MATRIX=all $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target \
		NOT_SLOW= $(TEST_GROUPS:%=test-group-%)

# Unit tests: what depends on a kernel runs on both, with a third of the random examples. Three groups share two cores,
# because some tests wait.
test-quick: .venv/.ready .venv/.kernel
	@HEADRACE_QUICK_TESTS=1 $(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target UNITS_NOT_SLOW=1 \
		test-group-units-python test-group-units-compiled test-group-units-once

NOT_SLOW := -m "not slow"
WITH_KERNEL := if $(KERNEL_EXISTS); then export HEADRACE_KERNEL=compiled; else export HEADRACE_KERNEL=python; fi;

# Drivers and clusters as separate processes; the other tests share a session.
SPARK_PROCESSES := $(patsubst %,tests/spark/test_%.py,cluster clusters_page crash_matrix many_queries own_sessions spark_versions)

test-group-spark-processes:
	@$(PYTEST) $(NOT_SLOW) $(SPARK_PROCESSES)

test-group-spark:
	@$(PYTEST) $(NOT_SLOW) tests/spark $(SPARK_PROCESSES:%=--ignore=%)

test-group-docs:
	@$(PYTEST) $(NOT_SLOW) tests/docs

# Our consumers, and the groups of other clients, wait for session timeouts: a half of what there is on both brokers.
CONSUMERS := $(wildcard $(patsubst %,tests/either/test_%.py,consumer* mixed_groups share* streams))

test-group-consumers:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) $(CONSUMERS)

test-group-either:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/either tests/link $(CONSUMERS:%=--ignore=%)

test-group-commit:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/commit tests/simulation

test-group-schema:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/schema

test-group-broker:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/broker

test-group-kafka:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/kafka

test-group-faults:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/faults

test-group-cli:
	@$(WITH_KERNEL) $(PYTEST) $(NOT_SLOW) tests/cli

test-group-ui:
	@$(PYTEST) $(NOT_SLOW) $(LIVE_VIEW)

# Files with tests that run on both kernels; all others run once.
BOTH_KERNELS = $(shell grep -l both_kernels tests/unit/test_*.py)
UNITS_ONCE = $(filter-out $(BOTH_KERNELS),$(wildcard tests/unit/test_*.py))

test-group-units-compiled:
	@if $(KERNEL_EXISTS); then HEADRACE_KERNEL=compiled $(PYTEST) -q $(if $(UNITS_NOT_SLOW),-m "not slow") $(BOTH_KERNELS); \
	else echo "kernel not compiled: testing the Python reference only"; fi

test-group-units-python:
	@only=both_kernels; if ! $(KERNEL_EXISTS); then only="both_kernels or not both_kernels"; fi; \
	HEADRACE_KERNEL=python $(PYTEST) -q -m "($$only)$(if $(UNITS_NOT_SLOW), and not slow)" $(BOTH_KERNELS)

test-group-units-once:
	@$(WITH_KERNEL) $(PYTEST) -q $(if $(UNITS_NOT_SLOW),-m "not slow") $(UNITS_ONCE)

# Real Spark, real brokers, every page of the docs: a quarter of an hour.
test-spark: .venv/.ready .venv/.kernel
	@$(PYTEST) $(SPARK)

# The live view in the system's Chromium; with two thousand topics, and a topic of 2 GB. Pictures go to build/ui.
test-ui: .venv/.ready .venv/.kernel
	@HEADRACE_UI_SHOTS=all $(PYTEST) $(LIVE_VIEW)

# What `make test-spark` does in small: everything that can happen, at every failpoint, on both brokers and on clusters.
crash-matrix: .venv/.ready .venv/.kernel
	@HEADRACE_CRASH_MATRIX=all $(PYTEST) -q -s tests/spark/test_crash_matrix.py tests/spark/test_cluster.py

# What `make test` does in half a minute, in three, on both brokers: five queries in one driver, and kills meanwhile.
test-many-queries: .venv/.ready .venv/.kernel
	@HEADRACE_MANY_QUERIES_SECONDS=180 $(PYTEST) -s tests/spark/test_many_queries.py

lint: .venv/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: bench-wire bench-producer bench-broker

bench-wire: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.wire

# Avro, Protobuf and JSON to and from Arrow columns, beside other libraries; then Avro topics in Spark.
bench-schema: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.schema; first=$$?; $(BIN)/python -m bench.spark_schema && exit $$first

bench-producer: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.producer

bench-consumer: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.consumer

bench-broker: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.broker

bench-cluster: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.cluster

# This tree against another one, in turns: BEFORE=../before, a checkout in which `make setup` has run.
bench-revisions: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.revisions $(BEFORE) $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-legacy: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.legacy

bench-spark: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.spark

# What a commit costs with 10 to 2,000 task transactions, on Apache Kafka and on ours.
bench-commit: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.commit

bench-spark-long: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.spark_long

bench-ui: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.ui
	@$(BIN)/python -m bench.ui_send

# What `make test` does in small: 200 producers and 5 brokers killed, a million records counted.
faults-producer: .venv/.ready .venv/.kernel
	@HEADRACE_FAULT_ROUNDS=200 HEADRACE_FAULT_RECORDS=1000000 $(PYTEST) $(NOT_SLOW) tests/faults

# Brokers of a cluster killed, paused, cut off, for ten minutes. SECONDS=40: for less. SEED=7: these faults.
# CONTROLLER=combined: the first broker is the controller; else the controller is a process of its own, and a victim too.
chaos: .venv/.ready .venv/.kernel
	@rm -rf build/chaos
	@HEADRACE_CHAOS_SECONDS=$(or $(SECONDS),600) HEADRACE_CHAOS_SEED=$(or $(SEED),$$(date +%s)) HEADRACE_CHAOS_FOLDER=build/chaos \
		HEADRACE_CHAOS_CONTROLLER=$(or $(CONTROLLER),separate) $(PYTEST) -q -s --show-capture=no tests/faults/test_chaos.py

# Consume-transform-produce with several workers on such a cluster, for five minutes; workers are victims, too.
# PROTOCOL=consumer: a group of KIP-848.
chaos-consumer: .venv/.ready .venv/.kernel
	@rm -rf build/chaos-consumer
	@HEADRACE_CHAOS_SECONDS=$(or $(SECONDS),300) HEADRACE_CHAOS_SEED=$(or $(SEED),$$(date +%s)) \
		HEADRACE_CHAOS_FOLDER=build/chaos-consumer HEADRACE_CHAOS_PROTOCOL=$(or $(PROTOCOL),classic) \
		$(PYTEST) -q -s --show-capture=no tests/faults/test_chaos_consumer.py

# Members and brokers killed while a share group reads, for three minutes. SECONDS=30: for less. SEED=7: these faults.
chaos-share: .venv/.ready .venv/.kernel
	@HEADRACE_CHAOS_SECONDS=$(or $(SECONDS),180) HEADRACE_CHAOS_SEED=$(or $(SEED),$$(date +%s)) \
		$(PYTEST) -q -s --show-capture=no tests/faults/test_share_chaos.py

# Histories of three clients under faults, on Apache Kafka 3.9 and 4.3 and on ours, checked: 13 runs of half a minute.
# ONLY="librdkafka and kafka-4.3": some of them. SECONDS=10, SEED=7 as above. It keeps the histories.
verify-clients: .venv/.ready .venv/.kernel
	@rm -rf build/verify-clients
	@HEADRACE_VERIFY_CLIENTS=all HEADRACE_CHAOS_SECONDS=$(or $(SECONDS),30) HEADRACE_CHAOS_SEED=$(or $(SEED),$$(date +%s)) \
		HEADRACE_CHAOS_FOLDER=build/verify-clients $(PYTEST) -q -s --show-capture=no tests/faults/test_clients.py \
		$(if $(ONLY),-k "$(ONLY)")

fuzz-wire: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.fuzz_wire

fuzz-broker: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.fuzz_broker

# A thousand damaged data folders, of one broker and of three. SEED=7 CASE=12: this one again.
fuzz-data-dir: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.fuzz_data_dir $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

# Each change of tests/mutants.md to a copy of the tree must make its test fail. ONLY=word: those with it in the title.
mutants: .venv/.ready .venv/.kernel
	@$(BIN)/python tools/mutants.py $(ONLY)

# Brokers, producers and a query in one process, on a simulated clock, network and disk. SEED=n: one seed, with its
# faults. HOURS=n: seeds 1, 2, … until so many hours are simulated, on all cores.
simulate: .venv/.ready .venv/.kernel
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--hours $(or $(HOURS),1)) \
		$(if $(SECONDS),--seconds $(SECONDS))

# Each bug of tests/simulation/bugs.md must be found by the simulation with its seed. ONLY=word, as above.
simulate-bugs: .venv/.ready .venv/.kernel
	@$(BIN)/python tools/mutants.py --list tests/simulation/bugs.md $(ONLY)

# What the model predicts for a commit, and what the simulation and bench-commit measure, as a plot in build/.
commit-cost: .venv/.ready .venv/.kernel
	@$(BIN)/python -m bench.commit_cost

# The model of the commit protocol, checked by TLC, which also has to refute the changes of model/mutations.md.
model: .venv/.ready
	@$(BIN)/python -m tools.model $(if $(ONLY),--only "$(ONLY)")

# The test-suite of another project on Apache Kafka, on one headrace broker and on three, and how its outcomes differ from
# tests/suites/expected. ON="headrace cluster": only there. ONLY="names": some tests. UPDATE=1: write the outcomes.
# SOURCE=folder: a checkout instead of what a package registry has; suite-confluent needs it.
$(SUITES:%=suite-%): suite-%: .venv/.ready .venv/.kernel
	@$(BIN)/python -m tests.suites $* $(if $(SOURCE),--source $(SOURCE)) $(if $(ON),--on $(ON)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(UPDATE),--update)

# What `make test` does in 6,000 steps, in a million. SEED=7: these steps.
model-broker: .venv/.ready .venv/.kernel
	@HEADRACE_MODEL_STEPS=1000000 HEADRACE_MODEL_SEED=$(or $(SEED),$$(date +%s)) \
		$(PYTEST) -s tests/faults/test_broker_model.py -k kills

# Pages to be read from disk. (The variable silences the theme's announcement of its successor.)
docs: .venv/.ready .venv/.kernel
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: build/docs/index.html"

dist: .venv/.ready
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .

# What a user would get: the wheel in an empty environment runs the README and the examples.
test-wheel: dist
	@$(BIN)/python tools/try_wheel.py dist

clean:
	rm -rf .venv build dist src/*.egg-info src/headrace/*/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
