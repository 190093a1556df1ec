"""The settings of Spark with which `format("headrace")` is fast, and the interpreter of its workers: one table.

    session()            uses them for the session that it creates
    configure(builder)   adds them to a session that you build yourself

PySpark is imported in functions: it is an optional dependency.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS_MIN = (4, 1)
"""The first version of Spark that passes the rows of a stream to Python in Arrow batches: streams need it."""
ARROW_ROWS_MAX = 50_000
"""Rows of an Arrow batch between Spark and Python: 50,000 was faster than 10,000 and 200,000."""


class Setting(NamedTuple):
    """A setting of Spark that headrace recommends."""

    name: str
    value: str
    reason: str
    since: tuple[int, int] = (4, 0)
    """The first version of Spark with this setting."""


RECOMMENDED = (
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        str(ARROW_ROWS_MAX),
        "larger batches between Spark and Python: fewer calls for the same rows",
    ),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "no delayed ACK between the JVM and Python: a small task writes in 2 ms instead of 40",
        (4, 1),
    ),
)


def recommended_settings(spark_version: str) -> dict[str, str]:
    """Return the recommended settings that this version of Spark has."""
    version = version_of(spark_version)
    return {setting.name: setting.value for setting in RECOMMENDED if version >= setting.since}


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor version: (4, 1) for `4.1.0.dev2`."""
    numbers = re.findall(r"\d+", text)
    return int(numbers[0]), int(numbers[1])


def interpreter_settings(*, override: bool = False) -> dict[str, str]:
    """Let Spark start its Python workers with this interpreter; return the settings for that.

    The JVM starts two kinds of workers for a Python data source. On the driver, they look the format up, plan and
    commit: with PYSPARK_DRIVER_PYTHON, which the JVM reads from the environment, before any setting. On executors, they
    run tasks: with the same path, unless `spark.sql.execution.pyspark.python` names another. PYSPARK_PYTHON, the
    interpreter of all other tasks, is kept if it is set, because the path may exist on the executors only; `override`
    replaces it.
    """
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if override or not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    return {"spark.sql.execution.pyspark.python": os.environ["PYSPARK_PYTHON"]}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the recommended settings to the builder of a session, and let its workers use this interpreter.

    `configure(SparkSession.builder).master("local[4]").getOrCreate()`: what you set afterwards overrides the settings.
    The interpreter is set in the environment of this process (PYSPARK_DRIVER_PYTHON and, unless it is set,
    PYSPARK_PYTHON): call it before the first session starts the JVM.
    """
    import pyspark

    for name, value in (recommended_settings(pyspark.__version__) | interpreter_settings()).items():
        builder = builder.config(name, value)
    return builder
