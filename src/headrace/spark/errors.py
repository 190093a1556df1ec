"""Errors of the sink, and Spark's errors in one line.

SinkError
├── PlanError          wrong columns, unknown topic, no broker: raised before anything is written
├── BadRowError        a row that can never be sent
├── NotDecidedError    the batch is not decided: nothing of it is visible; run it again
├── FencedError        another run has taken this sink.id over; its decisions stand
├── RepeatedBatchError a batch number or write.id was decided before for other rows
├── InDoubtError       whether the batch is decided, or all of it visible, is not known: the next start finds out
└── LostError          a decided batch that cannot be finished: its records are gone from the log

BadRecordError         a record of the source that cannot be decoded

SparkError             Spark could not run a query, a session or an audit; the message is the first cause
"""

from __future__ import annotations

import re

from headrace.errors import AuthenticationError, HeadraceError, TlsError, UnsupportedVersionError

CANNOT_IMPORT = (
    "the worker {worker} cannot import headrace: {problem}. Install headrace=={version} there, ship it with the job "
    "(spark.archives), or name an interpreter that has it in PYSPARK_PYTHON: see docs/clusters.md"
)
OTHER_VERSION = "the worker {worker} has headrace {other}, the driver {version}: install the same version"
"""Of a worker whose interpreter lacks headrace, or has another version. Filled in where headrace may be missing."""

IDS_NOT_AUTHORIZED = (
    "not authorized to use the transactional ids of the sink: allow Write and Describe on the prefix of sink.id"
)


class SinkError(HeadraceError):
    """Base class of the sink's errors."""


class PlanError(SinkError):
    """Raised before anything is written."""


class BadRowError(SinkError):
    """A row that can never be sent, and `on.bad.row` is `fail`."""


class BadRecordError(HeadraceError):
    """A record whose key or value cannot be decoded by its format, and `on.bad.record` is `fail`."""


class NotDecidedError(SinkError):
    """The batch is not decided: nothing of it is visible. Running it again is safe."""


class FencedError(SinkError):
    """Another run has taken this sink.id over."""


class RepeatedBatchError(SinkError):
    """A batch number or write.id was decided before for other rows: nothing of the batch is visible."""


class InDoubtError(SinkError):
    """Whether the batch is decided, or all of it visible, is not known.

    Running it again is safe for streams and for writes with write.id: they read the decision first. A write without
    write.id is not recognised, and would deliver its rows again.
    """


class LostError(SinkError):
    """A decided batch cannot be finished: its records are gone from the log."""


MISSING_TOPIC = "create it, correct the name, or set topic.create=true"


def not_sent(topic: str, error: HeadraceError, *, is_missing: bool = False) -> str:
    """Return the message for rows that could not be sent: unknown topic, not authorized, or no response."""
    remedy = f". If the topic does not exist: {MISSING_TOPIC}" if is_missing else ""
    return f"rows to topic {topic!r} cannot be sent: {error}{remedy}"


FIRST_CONNECTION_MS_MAX = 5_000.0
"""How long connections may fail when a query is planned. Once it has been connected, a broker may take its time."""


def not_connected(servers: str, error: HeadraceError) -> str:
    """Return the message for a cluster that cannot be used: not reachable, wrong protocol, not authenticated, …"""
    where = f"kafka.bootstrap.servers={servers!r}"
    if isinstance(error, TlsError):
        return f"TLS with {where} failed: {error}"
    if isinstance(error, AuthenticationError):
        return f"authentication with {where} failed: {error}"
    if isinstance(error, UnsupportedVersionError):
        return f"{where} is not supported: {error}"
    end = "" if str(error).endswith(("?", ".")) else "."
    return f"cannot use {where}: {error}{end} Check that the broker runs and that this is its address"


MESSAGE_CHARS_MAX = 2000

_OURS = re.compile(r"^\s*(?:[\w.]+: )?headrace\.[\w.]*?(\w+): (?P<text>.+)$", re.MULTILINE)
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<text>\S.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?P<text>\S.*)$", re.MULTILINE)
_STATE = re.compile(r"\.?\s*SQLSTATE: \w{5}\b.*", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


class SparkError(HeadraceError):
    """Spark failed; the message is the first cause."""


def explain(error: BaseException) -> str:
    """Return the first cause of an error of Spark, without stack traces, plans and error codes."""
    if isinstance(error, HeadraceError):
        return str(error)
    text = str(error)
    for pattern in (_OURS, _PYTHON, _CAUSE):
        if matches := [*pattern.finditer(text)]:
            return _short(matches[-1]["text"])
    return _short(text)


def _short(text: str) -> str:
    """Return the first line, without Spark's error condition, SQLSTATE and plan."""
    head = _STATE.sub("", _CONDITION.sub("", text.strip())).partition("\n")[0].strip().rstrip(";")
    return head if len(head) <= MESSAGE_CHARS_MAX else head[: MESSAGE_CHARS_MAX - 1] + "…"
