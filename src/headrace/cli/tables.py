"""Tables for people: columns under each other, the same on a terminal and in a file, so that awk can cut them too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_GAP = "  "


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Heads in capitals, then a line for each row. Columns of numbers stand to the right; None is a dash."""
    cells = [[_text(value) for value in row] for row in rows]
    numeric = [
        all(text == "-" or _is_number(text) for text in column) and any(text != "-" for text in column)
        for column in (zip(*cells, strict=True) if cells else [()] * len(heads))
    ]
    lines = [[head.upper() for head in heads], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        _GAP.join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def duration(seconds: float | None) -> str:
    """A span of time in two steps at most: 850 ms, 12.3 s, 4 m 10 s, 3 h 5 m, 2 d 4 h."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for size, inner_size, name, inner in ((60, 1, "m", "s"), (3600, 60, "h", "m"), (86400, 3600, "d", "h")):
        if seconds < size * (60 if size == 60 else 24) or size == 86400:
            return f"{int(seconds // size)} {name} {int(seconds % size // inner_size)} {inner}"
    raise AssertionError(seconds)


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(",", "").lstrip("+-").isdecimal()
