"""What the commands that run on Spark share."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

master_option = click.option(
    "--master", metavar="URL", help="Anything that Spark takes for a master: local[4], spark://host:7077, yarn, k8s://…"
)


@contextmanager
def spark_session(name: str, master: str, config: Mapping[str, str], *, debug: bool) -> Iterator[SparkSession]:
    """A session until the end of the block. Errors are told in a paragraph, so Spark's own log is for --debug."""
    from headrace.spark.local_session import session

    if not debug:
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # PySpark's, on the standard error
    spark = session(name, master, config, log_level="WARN" if debug else "OFF")
    try:
        yield spark
    finally:
        spark.stop()
