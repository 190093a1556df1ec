"""Output of all commands: text, tables and JSON, errors in one paragraph, exit codes."""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import click

from headrace import errors
from headrace.errors import BrokerError, Code, HeadraceError

EXIT_FAILED = 1
EXIT_INVALID_USAGE = 2
EXIT_NOT_RUNNING = EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

_COLUMN_GAP = 2
_NO_VALUE = "-"
_UNLIMITED_WIDTH = 1 << 20
_NOT_FOUND = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.GROUP_ID_NOT_FOUND, Code.TRANSACTIONAL_ID_NOT_FOUND}

P = ParamSpec("P")
R = TypeVar("R")
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


class CommandError(click.ClickException):
    """An error for the user: fact, value and remedy, in one paragraph."""

    exit_code = EXIT_FAILED


class InvalidUsageError(CommandError):
    """An invalid argument, or an invalid option from the environment or a file."""

    exit_code = EXIT_INVALID_USAGE


class ResourceNotFoundError(CommandError):
    """A topic, group or transaction that does not exist."""

    exit_code = EXIT_NOT_FOUND


class BrokerNotRunningError(CommandError):
    """No broker at the address, or on the data folder."""

    exit_code = EXIT_NOT_RUNNING


def command_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: its errors become one paragraph, with a traceback only if --debug is given.

    Ctrl-C exits with 130. A closed pipe (`| head`) exits with 0.
    """

    @functools.wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (KeyboardInterrupt, click.Abort):
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            _redirect_stdout_to_null()
            raise click.exceptions.Exit(0) from None
        except (HeadraceError, OSError, CommandError) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            raise _as_command_error(error) from error

    return checked


def _as_command_error(error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    if isinstance(error, errors.NotFoundError) or (isinstance(error, BrokerError) and error.code in _NOT_FOUND):
        return ResourceNotFoundError(str(error))
    return CommandError(str(error))


def _redirect_stdout_to_null() -> None:
    """Prevent a second BrokenPipeError when the interpreter flushes stdout at exit."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, sys.stdout.fileno())
    os.close(null_fd)


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
