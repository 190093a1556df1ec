"""headrace demo: deliver orders exactly once while a worker, the driver and the broker are killed.

Progress is a live bar at a terminal, else plain lines; the result is two tables and an HTML report.
"""

from __future__ import annotations

import io
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import click

from headrace.cli import LazyModule
from headrace.cli.connection import BOOTSTRAP, ClusterConnection, assignments_option, config_file_option
from headrace.cli.errors import InvalidUsageError, command_errors
from headrace.cli.output import debug_option, emit, format_option
from headrace.cli.settings import merge_settings, variable_of
from headrace.cli.shared_options import is_loopback, parse_listen, ui_option
from headrace.cli.signals import StopSignals, show_cursor
from headrace.cli.ui import ViewProcess
from headrace.demo.outcome import ROWS_DEFAULT, ROWS_MAX, ROWS_MIN, DemoOutcome, Kill
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.telemetry.sender import check_url

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.demo import demo as demo_steps
    from headrace.demo import demo_run
    from headrace.demo import report as demo_report
    from headrace.demo.cluster import DemoCluster
    from headrace.demo.demo_run import ProgressListener

    class DemoOutput(ProgressListener, Protocol):
        """A listener that restores the terminal when it is closed."""

        def close(self) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, *_: object) -> None: ...

else:
    demo_steps = LazyModule("headrace.demo.demo")
    demo_run = LazyModule("headrace.demo.demo_run")
    demo_report = LazyModule("headrace.demo.report")

EXIT_DIFFERENT = 1
EXIT_STOPPED = 130
REPORT = Path("headrace-demo.html")
_REFRESH_PER_SECOND = 8
_TABLE_WIDTH = 100
_PLAIN_SHARE = 0.1
"""Without a terminal, a line is printed for every tenth of the rows."""


@click.command()
@click.option(
    "--rows", type=click.IntRange(ROWS_MIN, ROWS_MAX), default=ROWS_DEFAULT, show_default=True, help="Orders to send."
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT",
    help="Cluster to write to; its brokers are not killed. [default: a broker is started for the demo]",
)
@assignments_option
@config_file_option
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPORT,
    show_default=True,
    help="Path of the HTML report.",
)
@click.option("--view", metavar="URL", help="Live view to report to: the address that `headrace ui` prints.")
@ui_option
@click.option("--keep", is_flag=True, help="Keep the folder with source, checkpoint and logs, and a cluster's topics.")
@format_option
@debug_option
@command_errors
def demo(
    *,
    rows: int,
    bootstrap: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    report: Path,
    view: str | None,
    ui_listen: str | None,
    keep: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Send a million orders to a topic exactly once, while processes are killed.

    A Spark stream reads files and writes to a topic. Meanwhile a Python worker, the driver and the broker are killed
    with SIGKILL; the driver and the broker are restarted. Then every row of the files is compared with every record of
    the topic. It takes a minute or two, and ends with a table and an HTML report. Ctrl-C stops it.

    \b
    headrace demo
    headrace demo --rows 100000 --report /tmp/demo.html
    headrace demo -b localhost:9092

    \b
    Exit codes: 0 every row is in the topic once and in order; 1 it is not, or a step failed; 2 invalid usage;
    3 no broker at -b; 130, 143 stopped by a signal.
    """
    if view is not None:
        check_url(view)
    if view is not None and ui_listen is not None:
        raise InvalidUsageError(
            "--view and --ui are mutually exclusive: --view uses a running live view, --ui starts one"
        )
    if ui_listen is not None and not is_loopback(parse_listen(ui_listen, "--ui")[0]):
        raise InvalidUsageError(f"invalid --ui: expected a loopback address such as 127.0.0.1:PORT, got {ui_listen!r}")
    options = _client_options(bootstrap, assignments, config_file)
    with _listener_for(output_format) as listener, ExitStack() as stack:
        open_view = None if ui_listen is None else partial(_open_view, stack, ui_listen)
        settings = demo_steps.DemoSettings(rows, options, keep, view, open_view)
        demo_ = demo_steps.Demo(settings, listener)

        def abandon() -> None:
            demo_.abandon()
            show_cursor()

        with StopSignals("stopping; press Ctrl-C again to exit now", abandon) as signals:
            try:
                outcome = demo_.run(signals.stop_requested)
            except demo_run.StoppedError as error:
                listener.close()
                click.echo(f"{error}", err=True)
                raise click.exceptions.Exit(EXIT_STOPPED) from error
    demo_report.write_report(outcome, report)
    facts = {**outcome.to_json(), "report": str(report.absolute())}
    if keep:
        facts["folder"] = str(demo_.folder)
    emit(output_format, facts, _outcome_text(outcome, report.absolute(), demo_.folder if keep else None))
    if not outcome.is_equal:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _open_view(stack: ExitStack, listen: str, cluster: DemoCluster) -> str:
    """Start a live view of the demo's cluster, for the length of the demo, and return its address."""
    options = {variable_of(PRODUCER_OPTIONS[name]): value for name, value in cluster.options.items()}
    folder = None if cluster.broker is None else cluster.broker.data_dir
    return stack.enter_context(ViewProcess(listen, cluster.options[BOOTSTRAP], folder, options)).url()


def _client_options(bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None) -> dict[str, str]:
    """Return the options of a cluster that was named and is reachable; a broker that runs here is not used."""
    flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
    with ClusterConnection(merge_settings(flags, assignments, config_file)) as connection:
        if not connection.is_given:
            return {}
        with connection.client():
            return connection.options(PRODUCER_OPTIONS)


# -- progress --------------------------------------------------------------------------------------


def _listener_for(output_format: str) -> DemoOutput:
    """Return a live bar at a terminal, else plain lines; with JSON they go to stderr."""
    if output_format == "json":
        return PlainDemoOutput(to_stderr=True)
    return LiveDemoOutput() if sys.stdout.isatty() else PlainDemoOutput()


class PlainDemoOutput:
    """Prints a line for each event."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self._to_stderr = to_stderr
        self._started_at_s = time.monotonic()
        self._printed_rows = 0

    def step(self, text: str) -> None:
        self._print(text)

    def rows(self, visible: int, total: int) -> None:
        if visible - self._printed_rows >= total * _PLAIN_SHARE:
            self._printed_rows = visible
            self._print(f"{visible:,} of {total:,} rows visible")

    def killed(self, kill: Kill) -> None:
        self._print(_killed_text(kill))

    def recovered(self, kill: Kill) -> None:
        self._print(_recovered_text(kill))

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._started_at_s:5.1f} s  {text}", err=self._to_stderr)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveDemoOutput:
    """Shows a live bar, with the events above it."""

    def __init__(self) -> None:
        # Imported here: only a terminal needs rich.
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._started_at_s = time.monotonic()
        self._refreshed_at_s = 0.0
        self._progress: Progress = Progress(
            SpinnerColumn(),
            # Rich's elapsed time stops when the bar is full, before the audit begins.
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
        if now_s - self._refreshed_at_s < 1 / _REFRESH_PER_SECOND:
            return
        self._refreshed_at_s = now_s
        self._progress.update(
            self._task,
            total=total,
            completed=min(visible, total),
            seen=f"{visible:,} rows visible",
            clock=self._clock(),
        )

    def killed(self, kill: Kill) -> None:
        self._print(f"[bold red]✕[/] {_killed_text(kill)}")

    def recovered(self, kill: Kill) -> None:
        self._print(f"[green]✓[/] {_recovered_text(kill)}")

    def note(self, text: str) -> None:
        self._print(f"[dim]·[/] {text}")

    def _print(self, text: str) -> None:
        self._progress.console.print(f"[dim]{self._clock()}[/] {text}", highlight=False)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started_at_s:5.1f} s"

    def close(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _killed_text(kill: Kill) -> str:
    in_flight = f", {kill.open_records:,} records in flight" if kill.open_records else ""
    return f"killed -9: {kill.what} {kill.pid}{in_flight}; {kill.note}"


def _recovered_text(kill: Kill) -> str:
    return f"new rows {kill.back_s or 0:.1f} s after the {kill.what} was killed"


# -- result ----------------------------------------------------------------------------------------


def _outcome_text(outcome: DemoOutcome, report: Path, folder: Path | None) -> str:
    # Imported here to keep rich out of the start-up.
    from rich.console import Console
    from rich.table import Table

    facts = Table(box=None, show_header=False, padding=(0, 2))
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_column()
    color = "green" if outcome.is_equal else "red"
    for name, value, unit in _facts(outcome):
        is_audited = name in ("lost", "duplicated", "out of order")
        facts.add_row(name, f"[{color}]{value}[/]" if is_audited else value, f"[dim]{unit}[/]")
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
    buffer = io.StringIO()
    console = Console(file=buffer, width=_TABLE_WIDTH, force_terminal=sys.stdout.isatty(), highlight=False)
    verdict = "[bold green]every row once, in order" if outcome.is_equal else "[bold red]source and topic differ"
    console.print(f"\n  {verdict}[/]\n", facts, "", kills, sep="\n")
    lines = [line.rstrip() for line in buffer.getvalue().rstrip().split("\n")]
    lines += ["", f"  report: {report}"]
    return "\n".join([*lines, f"  folder: {folder}"] if folder is not None else lines)


def _facts(outcome: DemoOutcome) -> list[tuple[str, str, str]]:
    audit = outcome.audit
    return [
        ("rows in", f"{outcome.rows_in:,}", ""),
        ("rows visible", f"{outcome.rows_visible:,}", "to a read_committed consumer"),
        ("lost", f"{audit.get('lost', 0):,}", ""),
        ("duplicated", f"{outcome.duplicated:,}", ""),
        ("out of order", f"{audit.get('out_of_order', 0):,}", ""),
        ("rate", f"{outcome.rows_per_second:,.0f}", "rows/s, including kills and restarts"),
        ("rate in a batch", f"{outcome.batch_rows_per_second:,.0f}", "rows/s, median batch"),
        ("batches", f"{outcome.batch_count:,}", f"in {outcome.stream_seconds:.1f} s"),
        ("commit, median", f"{outcome.commit_ms(50):,.1f}", "ms"),
        ("commit, 95 %", f"{outcome.commit_ms(95):,.1f}", "ms"),
    ]
