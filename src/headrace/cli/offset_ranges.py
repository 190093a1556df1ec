"""The ranges that `consume --offsets` takes, and what they come to in a partition.

start  end  N  -N (the last N)  +N (N after the start)  @TIME        FROM, FROM:TO, :TO, FROM:
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from headrace.cli.output import WrongUsageError
from headrace.cli.times import parse_time_ms

FLAG = "--offsets"
PARTITIONS_MAX = 100_000
"""Of a topic; far more than a broker has."""
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,18})", re.ASCII)


class Kind(Enum):
    START = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    AFTER_START = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Bound:
    """One side of a range."""

    kind: Kind
    number: int = 0

    def offset(self, start: int, end: int, at_time: int | None) -> int:
        """The offset it means in a partition that has `start` to `end`."""
        match self.kind:
            case Kind.START:
                return start
            case Kind.END:
                return end
            case Kind.OFFSET:
                return self.number
            case Kind.BEFORE_END:
                return max(start, end - self.number)
            case Kind.AFTER_START:
                return start + self.number
            case Kind.TIME:
                return end if at_time is None else at_time


START, END = Bound(Kind.START), Bound(Kind.END)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """From a bound on, up to another one; without that, up to the end as it is now."""

    begin: Bound = START
    until: Bound | None = None

    @property
    def times_ms(self) -> set[int]:
        """The times that offsets have to be found for."""
        return {bound.number for bound in (self.begin, self.until) if bound is not None and bound.kind is Kind.TIME}


def parse_range(text: str) -> OffsetRange:
    """What `--offsets` says. A time may have colons of its own, so the longest first half that makes sense counts."""
    if (bound := _bound(text)) is not None:
        return OffsetRange(bound)
    for i in reversed([i for i, letter in enumerate(text) if letter == ":"]):
        left, right = text[:i], text[i + 1 :]
        begin = START if left == "" else _bound(left)
        until = None if right == "" else _bound(right)
        if begin is not None and (until is not None or right == ""):
            comparable = until is not None and begin.kind is until.kind in (Kind.OFFSET, Kind.TIME)
            if until is not None and comparable and begin.number > until.number:
                raise WrongUsageError(f"{FLAG}: {text!r} ends before it begins")
            return OffsetRange(begin, until)
    if text.startswith("@"):
        parse_time_ms(text[1:], FLAG)  # says what a time looks like
    raise WrongUsageError(
        f"{FLAG}: {text!r} is no range; it may be start, end, 5, -5 (the last 5), +5 (5 after the start), "
        f"5:10, :end, @2026-11-16T12:00:00Z, @TIME:@TIME"
    )


def _bound(text: str) -> Bound | None:
    if text in ("start", "end"):
        return START if text == "start" else END
    if found := _NUMBER.fullmatch(text):
        kind = {"": Kind.OFFSET, "-": Kind.BEFORE_END, "+": Kind.AFTER_START}[found["sign"]]
        return Bound(kind, int(found["digits"]))
    if text.startswith("@"):
        try:
            return Bound(Kind.TIME, parse_time_ms(text[1:], FLAG))
        except WrongUsageError:
            return None
    return None


def parse_partitions(texts: Iterable[str]) -> set[int]:
    """What `--partitions` says: 0, 0,2, 1-3."""
    found: set[int] = set()
    for part in ",".join(texts).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise WrongUsageError(f"-p takes numbers as 0, 0,2 or 1-3, not {part!r}")
        if dash and int(last) - int(first) >= PARTITIONS_MAX:
            raise WrongUsageError(f"-p: {part!r} is more than {PARTITIONS_MAX:,} partitions")
        found.update(range(int(first), int(last or first) + 1))
    return found


def resolved(
    wanted: OffsetRange, start: int, end: int, at_times: Mapping[int, int | None], *, follow: bool
) -> tuple[int, int | None]:
    """First offset and end of what is to be read of a partition; no end: as long as there is more to come."""
    begin = wanted.begin.offset(start, end, at_times.get(wanted.begin.number))
    if wanted.until is None:
        return begin, None if follow else end
    until = wanted.until.offset(start, end, at_times.get(wanted.until.number))
    return begin, until if follow else min(until, end)
