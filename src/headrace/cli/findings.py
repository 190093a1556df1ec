"""What `headrace doctor` finds: one thing looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Status(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is empty where there is nothing to do."""

    check: str
    status: Status
    found: str
    remedy: str = ""

    @property
    def failed(self) -> bool:
        return self.status is Status.FAIL

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "status": self.status.value, "found": self.found, "remedy": self.remedy or None}


def ok(check: str, found: str) -> Finding:
    return Finding(check, Status.OK, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Status.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Status.FAIL, found, remedy)
