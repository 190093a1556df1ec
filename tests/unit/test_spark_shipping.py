"""Readers and writers in a process with headrace, without it, and with another version. Without a JVM."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

import headrace
from headrace.spark.shipping import Shipped
from headrace.spark.source import StreamReader
from tests.support.other_python import environment_without_headrace

LOAD = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())"
PROCESS_SECONDS_MAX = 60
OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def reader():
    from pyspark.sql.types import BinaryType, StructType

    return StreamReader(OPTIONS, StructType().add("value", BinaryType()))


def test_readers_and_writers_are_shipped():
    from headrace.spark.sink import BatchWriter, StreamWriter
    from headrace.spark.source import BatchReader

    assert all(issubclass(cls, Shipped) for cls in (BatchReader, BatchWriter, StreamReader, StreamWriter))


def test_a_worker_with_headrace_gets_the_object():
    copy = cloudpickle.loads(cloudpickle.dumps((reader(), 1)))[0]
    assert type(copy) is StreamReader
    assert copy.__dict__.keys() == reader().__dict__.keys()


def test_a_worker_without_headrace_names_itself_its_interpreter_and_the_remedy(tmp_path):
    python = environment_without_headrace(tmp_path / "bare")
    done = subprocess.run(
        [python, "-c", LOAD], input=cloudpickle.dumps(reader()), capture_output=True, timeout=PROCESS_SECONDS_MAX
    )
    message = done.stderr.decode().splitlines()[-1]
    assert message.startswith("ImportError: the worker ")
    for part in (str(python), "No module named 'headrace'", f"headrace=={headrace.__version__}", "PYSPARK_PYTHON"):
        assert part in message


def test_a_worker_with_another_version_is_refused(monkeypatch):
    shipped = cloudpickle.dumps(reader())
    monkeypatch.setattr(headrace, "__version__", "0.0.1")
    with pytest.raises(ImportError, match=r"has headrace 0\.0\.1, the driver .*: install the same version"):
        cloudpickle.loads(shipped)
