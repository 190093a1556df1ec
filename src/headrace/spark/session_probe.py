"""Starts a Spark session as a user's job would, and prints what it finds: `python -m headrace.spark.session_probe`.

    {"version", "master", "java"} → {"format"} → {"workers"}       one line of JSON each, as soon as it is known

Nothing is configured here: the purpose is to see what the environment leads to. `headrace doctor --spark` reads the
lines.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from headrace.spark.errors import explain
from headrace.spark.worker_check import inspect_workers

TASKS = 2
NOT_FOUND = "DATA_SOURCE_NOT_FOUND"


def planning_interpreter() -> str:
    """Return the interpreter with which the JVM looks up, plans and commits for Python data sources."""
    name = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"
    return shutil.which(name) or name


def probe() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("headrace doctor").config("spark.ui.enabled", "false").getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("OFF")
    assert context._jvm is not None
    java = getattr(context._jvm, "java.lang.System").getProperty("java.version")
    _print(version=spark.version, master=context.master, java=java)
    try:
        options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
        spark.read.format("headrace").options(**options).load()  # this connects to nothing
        _print(format="", interpreter=planning_interpreter())
    except Exception as error:
        problem = NOT_FOUND if NOT_FOUND in str(error) else explain(error)
        _print(format=problem, interpreter=planning_interpreter())
    try:
        _print(workers=inspect_workers(context, TASKS))
    except Exception as error:
        _print(workers=[], problem=explain(error), interpreter=context.pythonExec)
    spark.stop()


def _print(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    try:
        probe()
    except Exception as error:
        _print(problem=explain(error))
        sys.exit(1)
