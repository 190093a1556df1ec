"""What can go wrong in the sink, as errors that say what to do now.

SinkError
├── PlanError          wrong columns, an unknown topic, no broker: known before anything is written
├── BadRowError        a row that can never be sent
├── NotDecidedError    the batch has no decision: nothing of it will ever be seen; run it again
├── FencedError        another driver has taken over this sink.id; what it has decided stands
├── RepeatedBatchError a batch number or write.id that was decided before comes again with other rows
├── InDoubtError       whether the batch is decided, or all of it seen, is not known yet: the next start finds out
└── LostError          a decided batch that can no longer be carried out: its records are gone from the log
"""

from __future__ import annotations

import re

from headrace.errors import HeadraceError

IDS_REFUSED = "the sink may not use its transactional ids: allow Write and Describe on the prefix of sink.id"
"""What is said to whoever has no right to TRANSACTIONAL_ID, driver or task."""


class SinkError(HeadraceError):
    """The root of the sink's errors."""


class PlanError(SinkError):
    """Known before anything is written."""


class BadRowError(SinkError):
    """A row that can never be sent, and `on.bad.row` is `fail`."""


class NotDecidedError(SinkError):
    """Nothing of the batch will ever be seen. Running it again is safe."""


class FencedError(SinkError):
    """Another driver writes with this sink.id."""


class RepeatedBatchError(SinkError):
    """A batch that was decided before comes again, and is not the same: nothing of it is written."""


class InDoubtError(SinkError):
    """Whether the batch is decided, or all of it seen, is not known.

    Running it again is safe for streams and for writes with write.id: the decision is read first. A write without
    write.id is not recognised, and would deliver its rows again.
    """


class LostError(SinkError):
    """A decided batch whose records are gone."""


def not_sent(topic: str, error: HeadraceError) -> str:
    """Of rows that no broker was asked to take: their topic is unknown, or forbidden, or nobody answers."""
    return f"rows to topic {topic!r} cannot be sent: {error}"


MESSAGE_CHARS_MAX = 2000

_OURS = re.compile(r"^\s*(?:[\w.]+: )?headrace\.[\w.]*?(\w+): (?P<text>.+)$", re.MULTILINE)
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<text>\S.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?P<text>\S.*)$", re.MULTILINE)
_STATE = re.compile(r"\.?\s*SQLSTATE: \w{5}\b.*", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


class SparkError(HeadraceError):
    """Spark could not do what was asked; the message is the first cause."""


def explain(error: BaseException) -> str:
    """The first cause of an error of Spark's, without traces, plans and codes."""
    if isinstance(error, HeadraceError):
        return str(error)
    text = str(error)
    for pattern in (_OURS, _PYTHON, _CAUSE):
        if found := [*pattern.finditer(text)]:
            return _short(found[-1]["text"])
    return _short(text)


def _short(text: str) -> str:
    """Without the condition before it, the state behind it, and the plan below it."""
    head = _STATE.sub("", _CONDITION.sub("", text.strip())).partition("\n")[0].strip().rstrip(";")
    return head if len(head) <= MESSAGE_CHARS_MAX else head[: MESSAGE_CHARS_MAX - 1] + "…"
