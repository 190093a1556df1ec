"""headrace ui: the live view, in the browser."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import CommandError, WrongUsageError, command_errors, debug_option, emit, format_option
from headrace.cli.running import data_dir_option, default_data_dir
from headrace.cli.ui_option import LISTEN_DEFAULT

if TYPE_CHECKING:
    from headrace.ui.server import ReadyView

CLIENT_ID = "headrace-ui"
CLUSTER_FOLDER = "cluster"


@click.command()
@click.option("--listen", metavar="HOST:PORT", default=LISTEN_DEFAULT, show_default=True, help="Port 0: a free one.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option(
    "--token",
    metavar="TEXT",
    help="Let in only who has it. [default: none on the loopback; elsewhere one is made and printed]",
)
@data_dir_option
@click.option("--until-stdin-closes", is_flag=True, hidden=True, help="Stop when whoever started it has gone.")
@connection_options
@format_option
@debug_option
@command_errors
def ui(
    connection: Connection,
    listen: str,
    read_only: bool,
    token: str | None,
    data_dir: Path | None,
    until_stdin_closes: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Show a cluster in the browser, live: topics, messages, producers, transactions, groups, pipelines.

    When it is ready it prints the address to open. It runs until Ctrl-C. Faults and counters are for brokers of
    headrace on this machine: they are found by their data folder.

    \b
    headrace ui
    headrace ui -b localhost:9092 --read-only
    headrace ui --listen 0.0.0.0:9080 --token "$TOKEN"

    \b
    Exit codes: 0 stopped; 1 it failed; 2 wrong usage; 130, 143 a second signal ended it.
    """
    host, port = _address(listen)
    try:
        from headrace.ui.server import run
        from headrace.ui.view import ViewOptions
    except ImportError as error:
        if error.name and error.name.startswith("headrace"):
            raise
        raise CommandError(
            f"the live view needs {error.name}, which is not installed: pip install 'headrace[ui]'"
        ) from error
    from dataclasses import replace

    from headrace.producer.options import PRODUCER_OPTIONS

    options = ViewOptions(
        client=replace(connection.client_settings(), client_id=CLIENT_ID),
        producer=connection.options(PRODUCER_OPTIONS),
        host=host,
        port=port,
        read_only=read_only,
        token=token,
        data_dir=(data_dir.absolute() if data_dir else _folder_of(connection.bootstrap)),
    )

    def announce(ready: ReadyView) -> None:
        facts = {"url": ready.url, "login_url": ready.login_url, "pid": ready.pid}
        emit(output_format, facts, f"headrace ui ready: {ready.login_url} (bootstrap.servers={connection.bootstrap})")
        sys.stdout.flush()

    if not debug:
        logging.getLogger("headrace").setLevel(logging.ERROR)  # what is wrong with the cluster, the pages tell
    run(options, announce, guard_fd=sys.stdin.fileno() if until_stdin_closes else None)


def _folder_of(bootstrap: str) -> Path | None:
    """The data folder of the broker, or cluster, that was asked for, if it is one that runs in the usual place."""
    from headrace.broker.control import read_run_file

    wanted = {address.strip() for address in bootstrap.split(",")}
    for folder in (default_data_dir(), default_data_dir().with_name(CLUSTER_FOLDER)):
        facts = read_run_file(folder.absolute())
        if facts is not None and wanted & {*str(facts["bootstrap"]).split(","), *facts["listeners"].values()}:
            return folder.absolute()
    return None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise WrongUsageError(f"--listen takes HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)
