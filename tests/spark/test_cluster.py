"""A Spark standalone cluster, one master and two workers, with Apache Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.crash_columns import EXECUTORS, SPECULATION
from tests.support.crashes import CrashingQuery, open_transactions
from tests.support.spark_cluster import StandaloneCluster
from tests.support.spark_driver import SparkDriver
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

FILES, ROWS = 4, 3000
IDLE_SECONDS_MAX = 60
PROCESS_SECONDS_MAX = 200
REACH_SECONDS_MAX = 120


@pytest.fixture
def cluster(tmp_path):
    pytest.importorskip("pyspark.sql")
    standalone = StandaloneCluster(tmp_path / "cluster", cores=2)
    try:
        yield standalone.start()
    finally:
        standalone.close()


@pytest.mark.behaviour("S05", "S10")
def test_a_worker_is_killed_in_the_middle_of_a_stream_with_speculation(cluster, kafka, tmp_path):
    """With kill -9, it and its executor, while a task is about to report; what it ran is run again elsewhere."""
    topic = new_topic(kafka, "cluster", 3)
    query = CrashingQuery(tmp_path / "query", kafka.bootstrap, topic)
    for _ in range(FILES):
        query.add_file(ROWS, width=100)
    marks = tmp_path / "query" / "failpoints"
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        "sink.id": unique("cluster"),
        "commit.mode": "parallel",
        "headrace.failpoints": f"markers={marks}, task.flushed=hold",
    }
    driver = SparkDriver(tmp_path / "driver", cluster.url, **EXECUTORS, **SPECULATION)
    try:
        driver.open()
        driver.start("query", tmp_path / "query" / "source", tmp_path / "query" / "checkpoint", options, tasks=6)
        eventually("a task that has written", (marks / "task.flushed").exists, REACH_SECONDS_MAX)
        eventually("tasks on every worker", lambda: all(map(cluster.python_workers, cluster.hosts)), REACH_SECONDS_MAX)
        cluster.kill_worker(cluster.hosts[0])
        (marks / "task.flushed.go").touch()  # it may be a file of the other worker
        assert driver.ends_of(["query"]) == {"query": ""}
    finally:
        driver.close()
    assert str(query.audit()) == "clean"
    assert not open_transactions(kafka.bootstrap, topic)
    options = {"isolation": "read_committed", "idle_seconds": IDLE_SECONDS_MAX}
    lines = kafka.console_consume(topic, records_max=FILES * ROWS, **options)
    assert Counter(line.rpartition("\t")[2] for line in lines) == Counter(query.rows)


PIPELINE = """
[source]
format = "headrace"
options = {{ "kafka.bootstrap.servers" = "{bootstrap}", subscribe = "{source}", startingOffsets = "earliest" }}

[[steps]]
name = "records"
sql = "SELECT key, value FROM source"

[sink]
format = "headrace"
checkpoint = "{folder}/checkpoint"

[sink.options]
kafka.bootstrap.servers = "{bootstrap}"
topic = "{target}"
commit.mode = "parallel"

[spark]
master = "{master}"

[spark.config]
spark.driver.host = "127.0.0.1"
spark.driver.bindAddress = "127.0.0.1"
spark.executor.memory = "768m"
"""


@pytest.mark.slow
@pytest.mark.behaviour("S10")
def test_source_pipeline_and_audit_run_on_a_cluster(cluster, kafka, tmp_path):
    from headrace import Producer

    source, target = new_topic(kafka, "here", 3), new_topic(kafka, "there", 2)
    with Producer(bootstrap_servers=kafka.bootstrap) as producer:
        for number in range(ROWS):
            producer.send(source, str(number).encode(), key=str(number % 10).encode())
    file = tmp_path / "pipeline.toml"
    file.write_text(
        PIPELINE.format(bootstrap=kafka.bootstrap, source=source, target=target, folder=tmp_path, master=cluster.url)
    )
    *_, last = headrace("pipeline", "run", str(file), "--format", "json")
    assert (last["event"], last["rows"]) == ("finished", ROWS)
    (report,) = headrace("audit", "--pipeline", str(file), "--format", "json")
    assert (report["matched"], report["topic_rows"]) == (ROWS, ROWS)


def headrace(*arguments):
    """What the command prints, a line of JSON each."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]
