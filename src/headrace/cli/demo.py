"""headrace demo: every row once, while a worker, the driver and the broker are killed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import BOOTSTRAP, Connection, assignments_option, config_file_option
from headrace.cli.output import WrongUsageError, command_errors, debug_option, emit, format_option
from headrace.cli.settings import merged, variable_of
from headrace.cli.stopping import StopSignals, show_cursor
from headrace.cli.ui_option import LOOPBACK, ui_option
from headrace.demo.orders import ROWS_DEFAULT, ROWS_MAX, ROWS_MIN
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.telemetry.sender import check_url

if TYPE_CHECKING:
    from headrace.demo.cluster import Cluster

EXIT_DIFFERENT = 1
EXIT_STOPPED = 130
REPORT = Path("headrace-demo.html")


@click.command()
@click.option(
    "--rows", type=click.IntRange(ROWS_MIN, ROWS_MAX), default=ROWS_DEFAULT, show_default=True, help="Orders to send."
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT",
    help="A cluster to write to; its brokers are not killed. [default: a broker is started for the demo]",
)
@assignments_option
@config_file_option
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPORT,
    show_default=True,
    help="Where the report goes, an HTML page.",
)
@click.option("--view", metavar="URL", help="A live view to tell of the stream: the address that `headrace ui` prints.")
@ui_option
@click.option("--keep", is_flag=True, help="Keep the folder with source, checkpoint and logs, and a cluster's topics.")
@format_option
@debug_option
@command_errors
def demo(
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
    """Send a million orders to a topic, exactly once, and kill what sends them on the way.

    A Spark stream reads files and writes a topic. In the middle of it a Python worker, the driver and the broker are
    killed with signal 9, and what can be started again is. Then every row of the files is compared with every record
    of the topic. It takes a minute or two; a table and an HTML report say what happened. Ctrl-C stops all of it.

    \b
    headrace demo
    headrace demo --rows 100000 --report /tmp/demo.html
    headrace demo -b localhost:9092

    \b
    Exit codes: 0 every row is there once and in order; 1 it is not, or a step has failed; 2 wrong usage;
    3 no broker answers at -b; 130, 143 stopped by a signal.
    """
    from headrace.cli.demo_output import outcome_text, teller_for
    from headrace.demo.report import write_report
    from headrace.demo.run import Demo, DemoSettings
    from headrace.demo.stage import StoppedError

    if view is not None:
        check_url(view)
    if view is not None and ui_listen is not None:
        raise WrongUsageError("--view and --ui exclude each other: the one names a view, the other opens one")
    if ui_listen is not None and not ui_listen.startswith(LOOPBACK):
        raise WrongUsageError(
            f"--ui: the view of the demo is for this machine only, at 127.0.0.1:PORT, not {ui_listen}"
        )
    options = _client_options(bootstrap, assignments, config_file)
    with teller_for(output_format) as teller, ExitStack() as stack:
        open_view = None if ui_listen is None else partial(_open_view, stack, ui_listen)
        made = Demo(DemoSettings(rows, options, keep, view, open_view), teller)

        def abandon() -> None:
            made.abandon()
            show_cursor()

        with StopSignals("stopping; once more ends it at once", abandon) as signals:
            try:
                outcome = made.run(signals.asked)
            except StoppedError as error:
                teller.close()
                click.echo(f"{error}", err=True)
                raise click.exceptions.Exit(EXIT_STOPPED) from error
    write_report(outcome, report)
    facts = {**outcome.to_json(), "report": str(report.absolute())}
    if keep:
        facts["folder"] = str(made.folder)
    emit(output_format, facts, outcome_text(outcome, report.absolute(), made.folder if keep else None))
    if not outcome.is_equal:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _open_view(stack: ExitStack, listen: str, cluster: Cluster) -> str:
    """A live view of the demo's cluster, for as long as the demo runs."""
    from headrace.cli.view_process import ViewProcess

    options = {variable_of(PRODUCER_OPTIONS[name]): value for name, value in cluster.options.items()}
    folder = None if cluster.broker is None else cluster.broker.data_dir
    return stack.enter_context(ViewProcess(listen, cluster.options[BOOTSTRAP], folder, options)).url()


def _client_options(bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None) -> dict[str, str]:
    """What was set; if that names a cluster, it was reached. A broker that runs here is none of the demo's business."""
    flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
    with Connection(merged(flags, assignments, config_file)) as connection:
        if not connection.is_given:
            return {}
        with connection.client():
            return connection.options(PRODUCER_OPTIONS)
