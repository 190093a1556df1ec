"""Progress of a pipeline on the terminal: a live line with a bar, plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.spark.progress import BatchProgress, Reporter, Started, Tasks, Totals

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_PER_SECOND = 8


def reporter_for(output_format: str) -> Reporter:
    """JSON if asked for; a live line if somebody is looking; else plain lines."""
    if output_format == "json":
        return JsonLines()
    return LiveLine() if sys.stdout.isatty() else PlainLines()


class JsonLines:
    """An object for each event."""

    wants_tasks = False

    def started(self, what: Started) -> None:
        self._emit("started", {name: value for name, value in what._asdict().items() if value is not None})

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        pass

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._emit("batch", {**batch.to_json(), "total_rows": totals.rows})

    def finished(self, totals: Totals) -> None:
        self._emit("finished", totals.to_json())

    def _emit(self, event: str, facts: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **facts}))


class PlainLines:
    """A line for each batch."""

    wants_tasks = False

    def started(self, what: Started) -> None:
        click.echo(started_text(what))

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        pass

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        click.echo(batch_text(batch, totals))

    def finished(self, totals: Totals) -> None:
        click.echo(finished_text(totals))


class LiveLine:
    """One line that moves: a bar over what is left to read where that is known, else over the tasks of the batch."""

    wants_tasks = True

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._text = ""

    def started(self, what: Started) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        click.echo(started_text(what))
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            # Rich's own clock would stop whenever the bar is full, as it is at the end of every batch.
            TextColumn("{task.fields[share]} {task.fields[seconds]:,.0f} s"),
            TextColumn("{task.description}"),
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
        )
        self._progress.add_task("waiting for the first batch", total=None, share="", seconds=0)
        self._progress.start()

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        # The offsets of whole batches count more; between them the tasks of the batch at hand say how far it is.
        if totals.fraction is None:
            share = f"{tasks.done}/{tasks.all} tasks" if tasks.all else ""
            self._update(total=tasks.all or None, completed=tasks.done, share=share)
        self._update(seconds=totals.seconds)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._text = batch_text(batch, totals)
        if totals.fraction is None:
            self._update(description=self._text)
        else:
            share = f"{totals.fraction:4.0%}"
            self._update(description=self._text, total=1.0, completed=totals.fraction, share=share)

    def finished(self, totals: Totals) -> None:
        self.close()
        if self._text:
            click.echo(self._text)
        click.echo(finished_text(totals))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _update(self, **changes: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **changes)


def started_text(what: Started) -> str:
    if not what.is_stream:
        return f"{what.name}: one batch on {what.master}"
    if what.checkpoint is None:
        return f"{what.name}: a stream on {what.master}, without a checkpoint"
    if what.resumes_after is None:
        return f"{what.name}: a new stream on {what.master}, checkpoint {what.checkpoint}"
    done = f"after batch {what.resumes_after}" if what.resumes_after >= 0 else "at its first batch"
    return f"{what.name}: resuming {done} on {what.master}, from the checkpoint {what.checkpoint}"


def batch_text(batch: BatchProgress, totals: Totals) -> str:
    parts = [
        f"batch {batch.batch}: {batch.rows:,} rows",
        f"{batch.rows_per_second:,.0f} rows/s",
        f"write {batch.write_ms:,} ms",
        f"commit {batch.commit_ms:,} ms",
    ]
    if batch.behind is not None:
        parts.append(f"{batch.behind:,} behind")
    return f"{', '.join(parts)} (total {totals.rows:,} rows)"


def finished_text(totals: Totals) -> str:
    if totals.stopped == "cancelled":
        return "cancelled in the middle of the batch"
    word = "finished" if totals.stopped is None else "stopped"
    batches = f"{totals.batches:,} batch{'' if totals.batches == 1 else 'es'}"
    behind = "" if not totals.behind else f", {totals.behind:,} behind"
    return (
        f"{word}: {totals.rows:,} rows in {batches}, {totals.seconds:,.1f} s "
        f"({totals.rows_per_second:,.0f} rows/s){behind}"
    )
