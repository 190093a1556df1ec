"""The demo on the terminal: a bar of rows that readers see, a line for each kill, and the table at the end."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import click

from headrace.demo.outcome import Kill, Outcome

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_PER_SECOND = 8
_TABLE_WIDTH = 100
_PLAIN_SHARE = 0.1
"""Without a terminal there is a line for every tenth of the rows."""


class Shown(Protocol):
    """A teller that leaves the terminal as it was."""

    def step(self, text: str) -> None: ...
    def rows(self, visible: int, total: int) -> None: ...
    def killed(self, kill: Kill) -> None: ...
    def flows(self, kill: Kill) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def teller_for(output_format: str) -> Shown:
    """A live bar if somebody is looking; else lines. With JSON they go to the standard error."""
    if output_format == "json":
        return PlainLines(to_error=True)
    return LiveBar() if sys.stdout.isatty() else PlainLines()


class PlainLines:
    """A line for each thing that happens."""

    def __init__(self, *, to_error: bool = False) -> None:
        self._to_error = to_error
        self._began_s = time.monotonic()
        self._told_rows = 0

    def step(self, text: str) -> None:
        self.say(text)

    def rows(self, visible: int, total: int) -> None:
        if visible - self._told_rows >= total * _PLAIN_SHARE:
            self._told_rows = visible
            self.say(f"{visible:,} of {total:,} rows visible")

    def killed(self, kill: Kill) -> None:
        self.say(killed_text(kill))

    def flows(self, kill: Kill) -> None:
        self.say(flows_text(kill))

    def note(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began_s:5.1f} s  {text}", err=self._to_error)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveBar:
    """One line that moves, and above it what has happened."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._began_s = time.monotonic()
        self._shown_at_s = 0.0
        self._progress: Progress = Progress(
            SpinnerColumn(),
            # Rich's own clock stops when the bar is full, and then the audit begins.
            TextColumn("[dim]{task.fields[clock]}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[seen]}"),
            TextColumn("[dim]{task.description}"),
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, seen="", clock="")

    def step(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def rows(self, visible: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_at_s < 1 / _REFRESH_PER_SECOND:
            return  # it is told much more often than anybody can see
        self._shown_at_s = now_s
        self._progress.update(
            self._task,
            total=total,
            completed=min(visible, total),
            seen=f"{visible:,} rows visible",
            clock=self._clock(),
        )

    def killed(self, kill: Kill) -> None:
        self._print(f"[bold red]✕[/] {killed_text(kill)}")

    def flows(self, kill: Kill) -> None:
        self._print(f"[green]✓[/] {flows_text(kill)}")

    def note(self, text: str) -> None:
        self._print(f"[dim]·[/] {text}")

    def _print(self, text: str) -> None:
        self._progress.console.print(f"[dim]{self._clock()}[/] {text}", highlight=False)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began_s:5.1f} s"

    def close(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def killed_text(kill: Kill) -> str:
    flying = f", {kill.open_records:,} records in flight" if kill.open_records else ""
    return f"killed -9: {kill.what} {kill.pid}{flying}; {kill.note}"


def flows_text(kill: Kill) -> str:
    return f"new rows {kill.back_s or 0:.1f} s after the {kill.what} was killed"


def outcome_text(outcome: Outcome, report: Path, folder: Path | None) -> str:
    """The tables, and where the report is."""
    from rich.console import Console
    from rich.table import Table

    facts = Table(box=None, show_header=False, padding=(0, 2))
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_column()
    wrong = "red" if not outcome.is_equal else "green"
    for name, value, unit in _facts(outcome):
        style = wrong if name in ("lost", "duplicated", "out of order") else ""
        facts.add_row(name, f"[{style}]{value}[/]" if style else value, f"[dim]{unit}[/]")
    kills = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    kills.add_column("killed -9")
    for name in ("pid", "at", "in flight", "new rows after"):
        kills.add_column(name, justify="right")
    kills.add_column("")
    for kill in outcome.kills:
        numbers = ("", "", "", "")
        if kill.is_done:
            numbers = (str(kill.pid), f"{kill.at_s:.1f} s", f"{kill.open_records:,}", f"{kill.back_s or 0:.1f} s")
        kills.add_row(kill.what, *numbers, kill.note)
    console = Console(file=io.StringIO(), width=_TABLE_WIDTH, force_terminal=sys.stdout.isatty(), highlight=False)
    verdict = "[bold green]every row once, in order" if outcome.is_equal else "[bold red]source and topic differ"
    console.print(f"\n  {verdict}[/]\n", facts, "", kills, sep="\n")
    assert isinstance(console.file, io.StringIO)
    tables = [line.rstrip() for line in console.file.getvalue().rstrip().split("\n")]
    lines = [*tables, "", f"  report: {report}"]
    return "\n".join([*lines, f"  folder: {folder}"] if folder is not None else lines)


def _facts(outcome: Outcome) -> list[tuple[str, str, str]]:
    audit = outcome.audit
    return [
        ("rows in", f"{outcome.rows_in:,}", ""),
        ("rows visible", f"{outcome.rows_visible:,}", "to a reader of committed records"),
        ("lost", f"{audit.get('lost', 0):,}", ""),
        ("duplicated", f"{outcome.duplicated:,}", ""),
        ("out of order", f"{audit.get('out_of_order', 0):,}", ""),
        ("rate", f"{outcome.rows_per_second:,.0f}", "rows/s, kills and restarts included"),
        ("rate in a batch", f"{outcome.batch_rows_per_second:,.0f}", "rows/s, the batch in the middle"),
        ("batches", f"{outcome.batch_count:,}", f"in {outcome.stream_seconds:.1f} s"),
        ("commit, median", f"{outcome.commit_ms(50):,.1f}", "ms"),
        ("commit, 95 %", f"{outcome.commit_ms(95):,.1f}", "ms"),
    ]
