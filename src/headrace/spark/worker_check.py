"""Looks at the Python of Spark's workers: host, interpreter, and the version of headrace, if there is one.

`session()` checks the workers of a cluster with it, and `headrace doctor --spark` those of a job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import headrace
from headrace.spark.errors import CANNOT_IMPORT, OTHER_VERSION, SparkError, explain

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class WorkerPython(NamedTuple):
    """What a worker runs; `problem` says why it cannot import headrace."""

    host: str
    interpreter: str
    python: str
    headrace: str
    problem: str

    def __str__(self) -> str:
        return f"{self.host} ({self.interpreter}, Python {self.python})"


def inspect_workers(context: SparkContext, tasks: int) -> list[WorkerPython]:
    """Run tasks, and return the different workers that they found."""
    workers = context.parallelize(range(tasks), tasks).map(_inspector()).collect()
    return sorted({WorkerPython(*worker) for worker in workers})


def check_workers(spark: SparkSession) -> None:
    """Raise unless the workers can import this version of headrace."""
    context = spark.sparkContext
    try:
        workers = inspect_workers(context, max(1, context.defaultParallelism))
    except Exception as error:
        raise SparkError(f"running a task on the workers of {context.master} failed: {explain(error)}") from error
    for worker in workers:
        if worker.problem:
            name = f"{worker} of {context.master}"
            raise SparkError(CANNOT_IMPORT.format(worker=name, problem=worker.problem, version=headrace.__version__))
        if worker.headrace != headrace.__version__:
            raise SparkError(OTHER_VERSION.format(worker=worker, other=worker.headrace, version=headrace.__version__))


def _inspector() -> Callable[[int], tuple[str, str, str, str, str]]:
    # Local, so that it is pickled by value: a worker without headrace has to run it.
    def inspect(_: int) -> tuple[str, str, str, str, str]:
        import platform
        import socket
        import sys

        try:
            import headrace
        except ImportError as error:
            version, problem = "", str(error)
        else:
            version, problem = headrace.__version__, ""
        return socket.gethostname(), sys.executable, platform.python_version(), version, problem

    return inspect
