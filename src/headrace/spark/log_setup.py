"""headrace's log in Spark's Python processes: with time, level, and the sink, batch and task a line belongs to.

    2026-11-17 23:31:05,123 WARNING [sink orders, batch 7, task 3] …

Spark's Python processes do not set up logging. `log_context` does, once for each process: to standard error, which
Spark passes on. Spark can also collect log records in a table (spark.sql.pyspark.worker.logging.enabled), but that of a
streaming query belongs to a copy of the session and cannot be read, so standard error gets all lines in any case.
HEADRACE_LOG in the environment of the process sets the level, by default WARNING.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

LEVEL = "HEADRACE_LOG"
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
WORKER_LOGS = "PYSPARK_SPARK_SESSION_UUID"
"""Set by Spark 4.1 and later in Python processes whose log it collects: the root logger then has Spark's handler."""
_ROOT = "headrace"

_context: dict[str, str] = {}  # Replaced as a whole: a process of Spark runs one task or commit at a time.
_set_up_in: int | None = None  # the process: Spark's daemon forks


@contextlib.contextmanager
def log_context(**values: object) -> Iterator[None]:
    """Log lines of the block, of any thread, belong to these values: `sink="orders", batch=7`."""
    global _context
    set_up_log()
    before, _context = _context, {name: str(value) for name, value in values.items()}
    try:
        yield
    finally:
        _context = before


def set_up_log() -> None:
    """Set up the log of this process of Spark, unless that was done."""
    global _set_up_in
    if _set_up_in == os.getpid():
        return
    is_forked, _set_up_in = _set_up_in is not None, os.getpid()
    root = logging.getLogger(_ROOT)
    level = os.environ.get(LEVEL, "").upper()
    if level in logging.getLevelNamesMapping():
        root.setLevel(level)
    if not is_forked:
        _add_context_to_records()
    if WORKER_LOGS in os.environ or not root.hasHandlers():
        handler = logging.StreamHandler(sys.__stderr__)  # Spark collects what is written to sys.stderr
        handler.setFormatter(_ContextFormatter(LOG_FORMAT))
        root.addHandler(handler)


def show_info(logger: logging.Logger) -> None:
    """Let a logger of the driver show INFO, on standard error if the program has not set up logging."""
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)


def _add_context_to_records() -> None:
    """Add the context to the records of headrace's loggers, where Spark's formatter finds it, too."""
    create = logging.getLogRecordFactory()

    def create_with_context(name: str, *arguments: object, **keywords: object) -> logging.LogRecord:
        record: logging.LogRecord = create(name, *arguments, **keywords)
        if _context and (name == _ROOT or name.startswith(f"{_ROOT}.")):
            record.context = dict(_context)
        return record

    logging.setLogRecordFactory(create_with_context)


class _ContextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        context = getattr(record, "context", None)
        if context:
            record.message = f"[{', '.join(f'{name} {value}' for name, value in context.items())}] {record.message}"
        return super().formatMessage(record)
