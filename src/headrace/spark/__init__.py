"""Spark: exactly once into Kafka, and fast out of it.

    DataFrame → sink → task_writer (executors) → committer (driver) → decisions      `format("headrace")`, written
    planning (driver) → reading (executors) → DataFrame                              `format("headrace")`, read
    pipeline_file → Pipeline → progress                                              `headrace pipeline`
    auditing: what was to be sent against what a topic holds                         `headrace audit`
    local_session, java: a session that is ready for all that

The public names; they are imported when first asked for, because PySpark is an extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.auditing import audit
    from headrace.spark.datasource import HeadraceDataSource
    from headrace.spark.local_session import session
    from headrace.spark.pipeline import Pipeline

__all__ = ["HeadraceDataSource", "Pipeline", "audit", "session"]

# No module has the name of what it exports: whoever imported it would put it in the place of the function.
_PLACES = {
    "HeadraceDataSource": "datasource",
    "Pipeline": "pipeline",
    "audit": "auditing",
    "session": "local_session",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
