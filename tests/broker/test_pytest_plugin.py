"""The pytest plug-in, in separate test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_SECONDS_MAX = 50

USES = """
from headrace import Producer

def test_one(kafka_broker, kafka_topic):
    with Producer(bootstrap_servers=kafka_broker.bootstrap) as producer:
        assert producer.send(kafka_topic, b"x").result(20).offset == 0
        assert len(producer.partitions_for("auto-created")) == 3
    open("seen", "a").write(f"{kafka_broker.pid} {kafka_broker.data_dir} {kafka_topic}\\n")

def test_two(kafka_broker, kafka_topic):
    first = open("seen").read().split()
    assert int(first[0]) == kafka_broker.pid
    assert kafka_topic != first[2]
    assert kafka_broker.status()["topics"] == 2  # the one of test_one is gone

def test_that_ends_it(kafka_broker, kafka_topic):
    kafka_broker.kill()
"""
USES_REGISTRY = """
from headrace import Schema, SchemaRegistryClient

def test_it(kafka_broker, schema_registry):
    registry = SchemaRegistryClient(schema_registry)
    registry.register("orders-value", Schema('"string"'))
    kafka_broker.restart()
    assert kafka_broker.schema_registry_url == schema_registry
    registry.clear_cache()
    assert registry.get_subjects() == ["orders-value"]
"""
COSTS_NOTHING = """
import sys

def test_nothing_was_imported():
    assert [name for name in sys.modules if name.startswith("headrace.")] == ["headrace.broker",
        "headrace.broker.pytest_plugin"]
"""


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a folder, as after a new installation of headrace."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_loading(), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)


def _loading() -> list[str]:
    """Load the plug-in also where this environment was made before it had an entry point."""
    from importlib.metadata import entry_points

    known = [point.name for point in entry_points(group="pytest11")]
    return [] if "headrace" in known else ["-p", "headrace.broker.pytest_plugin"]


def test_a_broker_for_the_run_and_a_topic_for_each_test(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nheadrace_broker_options =\n  num.partitions = 3\n")
    done = run_pytest(tmp_path, USES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    pid, data_dir, _ = (tmp_path / "seen").read_text().split()
    assert not Path(data_dir).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_unused_fixtures_import_nothing(tmp_path):
    done = run_pytest(tmp_path, COSTS_NOTHING)
    assert done.returncode == 0, done.stdout + done.stderr


def test_invalid_ini_options_are_reported(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nheadrace_broker_options = nonsense\n")
    done = run_pytest(tmp_path, "def test_it(kafka_broker): pass")
    assert done.returncode != 0
    assert "line 'nonsense': expected key=value" in done.stdout


def test_the_fixtures_are_listed_with_their_docs(tmp_path):
    done = run_pytest(tmp_path, "def test_it(): pass", "--fixtures")
    assert "A Kafka broker in a separate process for the whole run" in done.stdout
    assert "a new, empty topic" in done.stdout
    assert "The URL of a schema registry" in done.stdout


def test_the_schema_registry_is_in_the_broker_of_the_run(tmp_path):
    done = run_pytest(tmp_path, USES_REGISTRY)
    assert done.returncode == 0, done.stdout + done.stderr
