"""One local Spark session with two cores for the whole run, and helpers for topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_driver import jvm_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SECONDS_MAX = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the start of a JVM during a test, and mark tests as slow.

    Tests with Spark are marked slow unless they are marked `every_run`: `make test` runs `-m "not slow"`.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            if item.get_closest_marker("every_run") is None:
                item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS_MAX))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark. Failpoints are allowed in its workers."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    markers = tmp_path_factory.mktemp("failpoints")
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HEADRACE_FAILPOINTS": "1",
        "HEADRACE_FAILPOINTS_DIR": str(markers),
    }
    session = (
        pyspark_sql.SparkSession.builder.master("local[2,3]")  # a task may fail twice
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", jvm_options())
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.headrace.markers", str(markers))  # for tests that want to look
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
