"""Output of all commands: text, tables, JSON and the log."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import click

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

_COLUMN_GAP = 2
_NO_VALUE = "-"
_UNLIMITED_WIDTH = 1 << 20

Alignment = Literal["left", "right"]

format_option = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text, or one JSON object per line.",
)
debug_option = click.option("--debug", is_flag=True, help="Print tracebacks and the debug log.")


def emit(output_format: str, value: Any, text: str) -> None:
    """Print a result in the selected format."""
    click.echo(json.dumps(value) if output_format == "json" else text)


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun: "1 record", "2 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as text: at a terminal styled and folded to its width, elsewhere one plain line per row.

    Columns that hold only numbers are right-aligned; None and "" are shown as a dash.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    columns = list(zip(*cells, strict=True)) if cells else [()] * len(headings)
    alignments: list[Alignment] = ["right" if _is_numeric(column) else "left" for column in columns]
    titles = [heading.upper() for heading in headings]
    is_terminal = sys.stdout.isatty()
    # rich takes half a millisecond for a row of four cells. Only a table that is too wide, or has wide or unprintable
    # characters, needs it.
    if all(cell.isascii() and cell.isprintable() for row in cells for cell in row):
        widths = [max(map(len, (title, *column))) for title, column in zip(titles, columns, strict=True)]
        if not is_terminal or sum(widths) + _COLUMN_GAP * len(widths) <= shutil.get_terminal_size().columns:
            lines = [_aligned(row, widths, alignments) for row in (titles, *cells)]
            return "\n".join([click.style(lines[0], bold=True) if is_terminal else lines[0], *lines[1:]])
    return _render_with_rich(titles, alignments, cells, is_terminal=is_terminal)


def _aligned(row: Sequence[str], widths: Sequence[int], alignments: Sequence[Alignment]) -> str:
    parts = zip(row, widths, alignments, strict=True)
    gap = " " * _COLUMN_GAP
    return gap.join(
        cell.rjust(width) if alignment == "right" else cell.ljust(width) for cell, width, alignment in parts
    ).rstrip()


def _render_with_rich(
    titles: Sequence[str], alignments: Sequence[Alignment], cells: Iterable[Sequence[str]], *, is_terminal: bool
) -> str:
    # Imported here to keep rich out of the start-up of commands without such a table.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
    for title, alignment in zip(titles, alignments, strict=True):
        table.add_column(Text(title), justify=alignment, overflow="fold", no_wrap=False)
    for row in cells:
        table.add_row(*map(Text, row))
    buffer = io.StringIO()
    width = None if is_terminal else _UNLIMITED_WIDTH
    Console(file=buffer, width=width, force_terminal=is_terminal, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))


def _cell(value: object) -> str:
    if value is None or value == "":
        return _NO_VALUE
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_numeric(cells: Sequence[str]) -> bool:
    numbers = [cell for cell in cells if cell != _NO_VALUE]
    return bool(numbers) and all(cell.replace(",", "").lstrip("+-").isdecimal() for cell in numbers)


class _WarningHandler(logging.Handler):
    """Prints the warnings of the clients to stderr, each text once."""

    LINES_MAX = 100

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._printed and len(self._printed) < self.LINES_MAX:
            self._printed.add(text)
            click.echo(f"warning: {text}", err=True)


def log_to_stderr(debug: bool) -> None:
    """Print the warnings of the clients; with --debug, the whole log."""
    if debug:
        logging.basicConfig(level=logging.DEBUG, format=LOG_FORMAT)
    elif not any(isinstance(handler, _WarningHandler) for handler in logging.getLogger("headrace").handlers):
        logging.getLogger("headrace").addHandler(_WarningHandler())


@contextmanager
def quiet_log() -> Iterator[None]:
    """Suppress the log, except with --debug, while every failure is raised as an exception anyway."""
    log = logging.getLogger("headrace")
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
