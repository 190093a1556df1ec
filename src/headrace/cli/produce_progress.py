"""How far `headrace produce` is: a bar or a counter on the terminal, and the line at the end. All on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_SECONDS = 0.1


class ProgressLine:
    """A bar if the size of the input is known, else a counter; nothing if nobody is looking, or somebody types."""

    def __init__(self, total_bytes: int | None, *, is_typed: bool) -> None:
        self._total_bytes = total_bytes
        self._progress: Progress | None = None
        self._shown_at = 0.0
        self._read_bytes = 0
        self._wanted = sys.stderr.isatty() and not is_typed

    def __enter__(self) -> Self:
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

            bar = () if self._total_bytes is None else (BarColumn(bar_width=30), TaskProgressColumn())
            self._progress = Progress(
                SpinnerColumn(), *bar, TextColumn("{task.description}"), console=Console(stderr=True), transient=True
            )
            self._progress.add_task("", total=self._total_bytes)
            self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def advance(self, read_bytes: int, records: int, seconds: float) -> None:
        """So many bytes more were read; so many records were sent in all."""
        self._read_bytes += read_bytes
        if self._progress is None or time.monotonic() - self._shown_at < _REFRESH_SECONDS:
            return
        self._shown_at = time.monotonic()
        rate = records / seconds if seconds else 0.0
        self._progress.update(
            self._progress.task_ids[0],
            completed=self._read_bytes,
            description=f"{records:,} records, {shown_bytes(self._read_bytes)}, {rate:,.0f}/s",
        )


def summary(facts: dict[str, Any]) -> str:
    """The line at the end."""
    seconds = facts["seconds"]
    text = f"sent {count_of(facts['records'], 'record')} ({shown_bytes(facts['bytes'])}) to {facts['topic']}"
    if facts["transactions"] is not None:
        text += f" in {count_of(facts['transactions'], 'transaction')}"
    return f"{text}, {seconds:,.2f} s ({facts['records'] / max(seconds, 1e-9):,.0f} records/s)"


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_bytes(size: int) -> str:
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_each:
            return f"{size / bytes_each:,.1f} {unit}"
    return f"{size} B"


def say(text: str) -> None:
    click.echo(text, err=True)
