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


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(",", "").lstrip("+-").isdecimal()
