"""The ranges that `consume --offsets` accepts, and their offsets in a partition.

start  end  N  -N (the last N)  +N (N after the start)  @TIME        FROM, FROM:TO, :TO, FROM:
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from headrace.cli.errors import InvalidUsageError
from headrace.cli.shared_options import parse_time_ms

FLAG = "--offsets"
PARTITIONS_MAX = 100_000
"""Per topic; far more than a broker supports."""
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,18})", re.ASCII)


class BoundKind(Enum):
    START = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    AFTER_START = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Bound:
    """One side of a range."""

    kind: BoundKind
    number: int = 0

    def offset(self, start: int, end: int, offset_at_time: int | None) -> int:
        """Return the offset of this bound in a partition that has the offsets `start` to `end`."""
        match self.kind:
            case BoundKind.START:
                return start
            case BoundKind.END:
                return end
            case BoundKind.OFFSET:
                return self.number
            case BoundKind.BEFORE_END:
                return max(start, end - self.number)
            case BoundKind.AFTER_START:
                return start + self.number
            case BoundKind.TIME:
                return end if offset_at_time is None else offset_at_time


START, END = Bound(BoundKind.START), Bound(BoundKind.END)


@dataclass(frozen=True, slots=True)
class BoundRange:
    """A range between two bounds; without an upper bound it ends at the current end."""

    begin: Bound = START
    until: Bound | None = None

    @property
    def times_ms(self) -> set[int]:
        """The times whose offsets are needed to resolve this range."""
        bounds = (self.begin, self.until)
        return {bound.number for bound in bounds if bound is not None and bound.kind is BoundKind.TIME}

    def resolve(
        self, start: int, end: int, offsets_at_times: Mapping[int, int | None], *, follow: bool
    ) -> tuple[int, int | None]:
        """Return the first offset and the end of the range in a partition; None if the range has no end."""
        begin = self.begin.offset(start, end, offsets_at_times.get(self.begin.number))
        if self.until is None:
            return begin, None if follow else end
        until = self.until.offset(start, end, offsets_at_times.get(self.until.number))
        return begin, until if follow else min(until, end)


def parse_range(text: str) -> BoundRange:
    """Parse the value of `--offsets`. A time may contain colons, so the longest valid first half is used."""
    if (bound := _bound(text)) is not None:
        return BoundRange(bound)
    for i in reversed([i for i, letter in enumerate(text) if letter == ":"]):
        left, right = text[:i], text[i + 1 :]
        begin = START if left == "" else _bound(left)
        until = None if right == "" else _bound(right)
        if begin is not None and (until is not None or right == ""):
            comparable = until is not None and begin.kind is until.kind in (BoundKind.OFFSET, BoundKind.TIME)
            if until is not None and comparable and begin.number > until.number:
                raise InvalidUsageError(f"invalid {FLAG}: {text!r} ends before it begins")
            return BoundRange(begin, until)
    if text.startswith("@"):
        parse_time_ms(text[1:], FLAG)  # its error describes the time formats
    raise InvalidUsageError(
        f"invalid {FLAG}: expected start, end, 5, -5 (the last 5), +5 (5 after the start), 5:10, :end, "
        f"@2026-11-16T12:00:00Z or @TIME:@TIME, got {text!r}"
    )


def _bound(text: str) -> Bound | None:
    if text in ("start", "end"):
        return START if text == "start" else END
    if match := _NUMBER.fullmatch(text):
        signs = {"": BoundKind.OFFSET, "-": BoundKind.BEFORE_END, "+": BoundKind.AFTER_START}
        return Bound(signs[match["sign"]], int(match["digits"]))
    if text.startswith("@"):
        try:
            return Bound(BoundKind.TIME, parse_time_ms(text[1:], FLAG))
        except InvalidUsageError:
            return None
    return None


def parse_partitions(texts: Iterable[str]) -> set[int]:
    """Parse the values of `--partitions`: 0, 0,2, 1-3."""
    partitions: set[int] = set()
    for part in ",".join(texts).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise InvalidUsageError(f"invalid -p: expected numbers such as 0, 0,2 or 1-3, got {part!r}")
        if dash and int(last) - int(first) >= PARTITIONS_MAX:
            raise InvalidUsageError(f"invalid -p: {part!r} is more than {PARTITIONS_MAX:,} partitions")
        partitions.update(range(int(first), int(last or first) + 1))
    return partitions
