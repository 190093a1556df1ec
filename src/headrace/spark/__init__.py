"""The Spark data source `headrace`: exactly-once writes to Kafka, reads, pipelines and audits.

    DataFrame → sink → task_writer (executors) → committer (driver) → decisions      `format("headrace")`, written
    source, planning (driver) → reading (executors) → DataFrame                      `format("headrace")`, read
    pipeline_file → Pipeline → progress                                              `headrace pipeline`
    query_listener: log, metrics and live view of streaming queries                  `headrace.spark.listener()`
    auditing: compares the rows of a source with the records of a topic              `headrace audit`
    local_session: a Spark session with Java, interpreter and package set up
    session_settings: the settings and the interpreter for a session that you build yourself

Public names are imported on first use, because PySpark is an optional dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.auditing import audit
    from headrace.spark.datasource import HeadraceDataSource
    from headrace.spark.local_session import session
    from headrace.spark.pipeline import Pipeline
    from headrace.spark.query_listener import listener
    from headrace.spark.session_settings import configure

__all__ = ["HeadraceDataSource", "Pipeline", "audit", "configure", "listener", "session"]

# No module has the name of a function that it exports: importing the module would replace the function.
_MODULES = {
    "HeadraceDataSource": "datasource",
    "Pipeline": "pipeline",
    "audit": "auditing",
    "configure": "session_settings",
    "listener": "query_listener",
    "session": "local_session",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
