"""An existing session, and a new one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

import headrace
from headrace.spark import session
from headrace.spark.errors import SparkError
from headrace.spark.worker_check import check_workers

PROCESS_SECONDS_MAX = 120
CODE = """
import json, os, sys
import headrace.spark
spark = headrace.spark.session(config={"spark.driver.memory": "512m"})
facts = {name: spark.conf.get(name) for name in (
    "spark.ui.enabled", "spark.driver.host", "spark.python.unix.domain.socket.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch")}
facts["python"] = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first()
facts["rows"] = spark.range(10).count()
facts["source"] = spark.read.format("headrace").option("subscribe", "t").option(
    "kafka.bootstrap.servers", "127.0.0.1:1").load().columns
print(json.dumps(facts))
spark.stop()
"""


def test_a_running_session_is_used_unchanged(spark, caplog):
    with caplog.at_level(logging.WARNING, "headrace"):
        active = session(master="local[7]", config={"spark.sql.shuffle.partitions": 3})
    assert active.sparkContext is spark.sparkContext
    assert "Spark is already running on local[2,3]: master='local[7]' has no effect" in caplog.text
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_the_version_of_the_workers_is_checked(spark, monkeypatch):
    check_workers(spark)
    monkeypatch.setattr(headrace, "__version__", "9.9.9")
    with pytest.raises(SparkError, match=r"has headrace .*, the driver 9\.9\.9: install the same version"):
        check_workers(spark)


@pytest.mark.every_run
def test_a_python_worker_is_prepared_for_small_batches(spark):
    """Spark's session here talks to its workers by TCP."""

    def measured(_: int) -> tuple[int, bool]:  # local: pickled by value
        import gc
        import os
        import socket
        import sys

        from headrace.spark.python_process import prepare_process

        prepare_process()
        frame = sys._getframe()
        while frame.f_back is not None and "outfile" not in frame.f_locals:
            frame = frame.f_back
        with socket.socket(fileno=os.dup(frame.f_locals["outfile"].fileno())) as connection:
            is_delayed = not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        return gc.get_freeze_count(), is_delayed

    frozen, is_delayed = spark.sparkContext.parallelize([0], 1).map(measured).first()
    assert frozen > 1000  # the modules of PySpark and headrace
    assert not is_delayed


@pytest.mark.slow
@pytest.mark.timeout(2 * PROCESS_SECONDS_MAX)
def test_a_new_session_is_quiet_and_has_the_format(tmp_path):
    environment = {**os.environ, "PYSPARK_PYTHON": "/no/such/python", "TMPDIR": str(tmp_path)}
    environment.pop("SPARK_LOCAL_IP", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX, env=environment
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["spark.ui.enabled"] == "false"
    assert facts["spark.python.unix.domain.socket.enabled"] == "true"
    assert facts["spark.driver.host"] == "127.0.0.1"
    assert facts["spark.sql.execution.arrow.maxRecordsPerBatch"] == "50000"
    assert (facts["python"], facts["rows"]) == (sys.executable, 10)
    assert facts["source"][:2] == ["key", "value"]
    noise = [line for line in done.stderr.splitlines() if "incubator" not in line]
    assert noise == []
    assert not [*tmp_path.glob("headrace-spark-*")]
