"""Spark's errors in one paragraph.

What Spark raises holds stack traces of two languages and the plan of the query. What a person needs is one line of it,
the message of the error that came first.
"""

from __future__ import annotations

import re

from headrace.errors import HeadraceError

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
