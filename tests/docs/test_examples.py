"""examples/: each program is run unchanged on a new broker, and its records are checked."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.doc_pages import PROJECT
from tests.support.reader import python

EXAMPLES = PROJECT / "examples"
SECONDS_MAX = 150

pytestmark = pytest.mark.timeout(3 * SECONDS_MAX)


@pytest.fixture
def broker():
    with EmbeddedBroker(num_partitions=3) as broker:
        yield broker


def run(name, broker, folder, *before):
    """Copy a program and run it there, far from the settings of this project."""
    shutil.copy(EXAMPLES / name, folder)
    environment = {**os.environ, "BOOTSTRAP": broker.bootstrap, "FOLDER": str(folder / "data")}
    done = subprocess.run(
        [str(python()), *before, name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def records_of(broker, topic):
    with AdminClient(broker.bootstrap) as admin:
        partitions = [
            TopicPartition(topic, description.partition)
            for description in admin.describe_topics([topic])[topic].partitions
        ]
    records = []
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign(partitions, until=fetcher.end_offsets(partitions))
        while not fetcher.is_finished():
            records += fetcher.poll(timeout_ms=1000)
    return records


def test_example_programs_produce_orders_and_bill_them_once(broker, tmp_path):
    assert "10000 orders sent, 0 failed" in run("produce_orders.py", broker, tmp_path)
    assert "10000 invoices written" in run("bill_orders.py", broker, tmp_path)
    assert "0 invoices written" in run("bill_orders.py", broker, tmp_path)
    invoices = records_of(broker, "invoices")
    assert len({record.value for record in invoices}) == len(invoices) == 10_000
    homes = {(record.key, record.partition) for record in invoices}
    assert len(homes) == 100  # records of a customer are in one partition


def test_example_program_sends_from_asyncio(broker, tmp_path):
    assert "1000 events in 3 partitions" in run("async_events.py", broker, tmp_path)
    events = records_of(broker, "events")
    assert len(events) == 1000
    sensor_values = [int(record.value) for record in events if record.key == b"sensor-7"]
    assert sensor_values == list(range(20))


@pytest.mark.slow
def test_example_program_streams_with_spark_and_finds_its_rows_equal(broker, tmp_path):
    pytest.importorskip("pyspark")
    assert run("stream_orders.py", broker, tmp_path).startswith("equal")
    assert len(records_of(broker, "large-orders")) == 10_000


def test_example_tests_pass(broker, tmp_path):
    assert "4 passed" in run("test_shop.py", broker, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
