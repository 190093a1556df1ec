"""headrace ui: the live view in the browser, in the foreground or next to another command."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from headrace.broker.control import read_run_file
from headrace.broker.runners import child_environment, read_line
from headrace.cli.broker_control import data_dir_option, default_data_dir
from headrace.cli.connection import ClusterConnection, connection_options
from headrace.cli.errors import CommandError, InvalidUsageError, command_errors
from headrace.cli.output import debug_option, emit, format_option
from headrace.cli.shared_options import UI_LISTEN_DEFAULT, parse_listen
from headrace.config.registry_options import PREFIX as REGISTRY_PREFIX
from headrace.errors import IllegalStateError
from headrace.producer.options import PRODUCER_OPTIONS

if TYPE_CHECKING:
    from headrace.ui.server import ReadyView

CLIENT_ID = "headrace-ui"
CLUSTER_FOLDER = "cluster"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 8.0


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=UI_LISTEN_DEFAULT,
    show_default=True,
    help="Address to listen on; port 0 selects a free one.",
)
@click.option("--read-only", is_flag=True, help="Disable all changes.")
@click.option(
    "--token",
    metavar="TEXT",
    help="Token required to log in. [default: none on a loopback address; elsewhere one is generated and printed]",
)
@click.option(
    "--schema-registry", "registry_url", metavar="URL", help="Decode messages, and show schemas, with this registry."
)
@data_dir_option
@click.option("--until-stdin-closes", is_flag=True, hidden=True, help="Stop when the parent process has ended.")
@connection_options
@format_option
@debug_option
@command_errors
def ui(
    *,
    connection: ClusterConnection,
    listen: str,
    read_only: bool,
    token: str | None,
    registry_url: str | None,
    data_dir: Path | None,
    until_stdin_closes: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Show a cluster in the browser: topics, messages, producers, transactions, groups, pipelines.

    Prints its address when it is ready, and runs until Ctrl-C. Faults and counters are available for headrace brokers
    on this machine, which are found by their data folder.

    \b
    headrace ui
    headrace ui -b localhost:9092 --read-only
    headrace ui --schema-registry http://localhost:8081
    headrace ui --listen 0.0.0.0:9080 --token "$TOKEN"

    \b
    Exit codes: 0 stopped; 1 failure; 2 invalid usage; 130, 143 ended by a second signal.
    """
    host, port = parse_listen(listen)
    if not host:
        raise InvalidUsageError(f"invalid --listen: expected HOST:PORT, got {listen!r}")
    # Imported here: NiceGUI is an optional dependency.
    try:
        from headrace.ui.server import run
        from headrace.ui.view import ViewOptions
    except ImportError as error:
        if error.name and error.name.startswith("headrace"):
            raise
        raise CommandError(
            f"the live view needs {error.name}, which is not installed: pip install 'headrace[ui]'"
        ) from error
    options = ViewOptions(
        client=replace(connection.client_settings(), client_id=CLIENT_ID),
        producer=connection.options(PRODUCER_OPTIONS),
        host=host,
        port=port,
        read_only=read_only,
        token=token,
        registry=_registry_options(connection, registry_url),
        data_dir=(data_dir.absolute() if data_dir else _find_data_dir(connection.bootstrap)),
    )

    def announce(ready: ReadyView) -> None:
        facts = {"url": ready.url, "login_url": ready.login_url, "pid": ready.pid}
        emit(output_format, facts, f"headrace ui ready: {ready.login_url} (bootstrap.servers={connection.bootstrap})")
        sys.stdout.flush()

    if not debug:
        logging.getLogger("headrace").setLevel(logging.ERROR)  # the pages show the problems of the cluster
    run(options, announce, guard_fd=sys.stdin.fileno() if until_stdin_closes else None)


def _registry_options(connection: ClusterConnection, url: str | None) -> dict[str, object]:
    """Return the `schema.registry.*` options, empty without a URL."""
    given = {name: setting.value for name, setting in connection.given().items() if name.startswith(REGISTRY_PREFIX)}
    options: dict[str, object] = {**given, **({} if url is None else {f"{REGISTRY_PREFIX}url": url})}
    return options if f"{REGISTRY_PREFIX}url" in options else {}


def _find_data_dir(bootstrap: str) -> Path | None:
    """Return the data folder of a broker or cluster with this address, if it runs on a default data folder."""
    addresses = {address.strip() for address in bootstrap.split(",")}
    for folder in (default_data_dir(), default_data_dir().with_name(CLUSTER_FOLDER)):
        run_file = read_run_file(folder.absolute())
        if run_file is None:
            continue
        if addresses & {*str(run_file["bootstrap"]).split(","), *run_file["listeners"].values()}:
            return folder.absolute()
    return None


class ViewProcess:
    """A live view for `broker start --ui` and `demo --ui`.

    It runs in a separate process, to keep it off the broker's event loop, and ends when this process ends: it stops
    when its stdin is closed.
    """

    def __init__(
        self, listen: str, bootstrap: str, data_dir: Path | None, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables` pass client options through the environment, which hides secrets from the process list."""
        folder = () if data_dir is None else ("--data-dir", str(data_dir))
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace", "ui", "-b", bootstrap, "--listen", listen, *folder),
                *("--until-stdin-closes", "--format", "json"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**child_environment(), **(variables or {})},
        )

    def url(self) -> str:
        """Wait until the view is ready, and return its address. The view prints its own errors to stderr."""
        assert self._process.stdout is not None
        line = read_line(self._process.stdout.fileno(), START_SECONDS_MAX)
        if not line:
            failure = "has exited" if line is not None else f"was not ready after {START_SECONDS_MAX:g} s"
            raise IllegalStateError(f"the live view {failure}; start one for the running cluster with `headrace ui`")
        return str(json.loads(line)["login_url"])

    def on_ready(self, callback: Callable[[str], None]) -> None:
        """Call back with the address, from a thread, when the view is ready."""

        def wait() -> None:
            try:
                callback(self.url())
            except IllegalStateError as error:
                click.echo(f"warning: {error}", err=True)

        threading.Thread(target=wait, name="headrace-view", daemon=True).start()

    def close(self) -> None:
        """Stop the view; kill it if that takes too long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
