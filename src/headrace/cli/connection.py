"""The cluster that a command uses, and the client options for it: -b, -X, --config, HEADRACE_*.

    @click.command()
    @cluster_command
    def list_(connection: ClusterConnection, output_format: str) -> None:
        with connection.admin() as admin:
            ...

Without -b it is the broker that runs on the default data folder. If none runs, one is started for the command when the
address is first needed (broker_control.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from headrace.cli import LazyModule, settings
from headrace.cli.connectivity import check_reachable, explained, fetch_metadata
from headrace.cli.errors import InvalidUsageError, command_errors
from headrace.cli.output import debug_option, format_option, log_to_stderr, quiet_log
from headrace.cli.settings import Setting, merge_settings
from headrace.cli.signals import sigterm_as_exit
from headrace.config import Config, Options
from headrace.errors import ConfigError, HeadraceError
from headrace.producer.options import PRODUCER_OPTIONS

if TYPE_CHECKING:
    from headrace.cli import broker_control
    from headrace.cli.broker_control import LocalBroker
    from headrace.client import admin as client_admin
    from headrace.client import blocking, fetcher
    from headrace.client.admin import AdminClient
    from headrace.client.blocking import BlockingClient, ClientSettings
    from headrace.client.fetcher import Fetcher
    from headrace.consumer import consumer as client_consumer
    from headrace.consumer import options as group_options
    from headrace.consumer.consumer import Consumer
    from headrace.producer import producer as client_producer
    from headrace.producer.producer import Producer
    from headrace.spark import consumer_options
else:
    broker_control = LazyModule("headrace.cli.broker_control")
    blocking = LazyModule("headrace.client.blocking")
    client_admin = LazyModule("headrace.client.admin")
    client_consumer = LazyModule("headrace.consumer.consumer")
    client_producer = LazyModule("headrace.producer.producer")
    consumer_options = LazyModule("headrace.spark.consumer_options")
    fetcher = LazyModule("headrace.client.fetcher")
    group_options = LazyModule("headrace.consumer.options")

BOOTSTRAP = "bootstrap.servers"
CLIENT_ID = "headrace-cli"
CLOSE_SECONDS_MAX = 5.0
"""For unsent records when a command fails; a command that succeeds has flushed before."""
RUNNING_BROKER = "broker on this machine"
STARTED_BROKER = "broker started for this command"

R = TypeVar("R")


class ClusterConnection:
    """The cluster of a command. The options are known at once; a local broker is looked up when it is needed."""

    def __init__(self, given: Mapping[str, Setting]) -> None:
        self._given = dict(given)
        self._local_broker: LocalBroker | None = None

    # -- options ---------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, comma-separated. May start a broker."""
        if BOOTSTRAP in self._given:
            return self._given[BOOTSTRAP].value
        if self._local_broker is None:
            self._local_broker = _find_or_start_broker()
        return self._local_broker.bootstrap

    def find_bootstrap(self) -> str | None:
        """Return the address that was given, or that of the running local broker, or None. Starts nothing."""
        if BOOTSTRAP in self._given or self._local_broker is not None:
            return self.bootstrap
        self._local_broker = broker_control.find_broker(broker_control.default_data_dir().absolute())
        return None if self._local_broker is None else self._local_broker.bootstrap

    @property
    def is_given(self) -> bool:
        """Whether the user has named a cluster."""
        return BOOTSTRAP in self._given

    def given(self) -> dict[str, Setting]:
        """Return the options that are set, with their sources."""
        return dict(self._given)

    def options(self, known: Options | None = None) -> dict[str, str]:
        """Return the options that are set and `known` to a client, with bootstrap.servers."""
        options = {name: setting.value for name, setting in self._given.items() if known is None or name in known}
        return {**options, BOOTSTRAP: self.bootstrap}

    def source_of(self, name: str) -> str:
        """Return where the value of an option comes from: flag, -X, environment NAME, file PATH, default, …"""
        if name in self._given:
            return self._given[name].source
        if name == BOOTSTRAP and self._local_broker is not None:
            return STARTED_BROKER if self._local_broker.started else RUNNING_BROKER
        return settings.DEFAULT

    # -- clients ---------------------------------------------------------------------------------

    def reader_config(self, overrides: Mapping[str, str] | None = None) -> Config:
        """Return the resolved options of readers without a group."""
        known = consumer_options.CONSUMER_OPTIONS
        return known.resolve(("argument", {**self.options(known), **(overrides or {})}))

    def client_settings(self) -> ClientSettings:
        """Return the settings of blocking clients."""
        config = self.reader_config()
        return consumer_options.client_settings(config, config.of(str, "client.id") or CLIENT_ID)

    @contextmanager
    def client(self) -> Iterator[BlockingClient]:
        """Yield a client that has reached the cluster."""
        bootstrap = self.bootstrap
        check_reachable(bootstrap)
        with explained(bootstrap), blocking.BlockingClient(self.client_settings()) as client:
            with quiet_log():
                fetch_metadata(client)
            yield client

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """Yield an admin client that has reached the cluster."""
        bootstrap, client = self.bootstrap, self.client_settings()
        check_reachable(bootstrap)
        options: dict[str, Any] = {field.name: getattr(client, field.name) for field in fields(client)}
        with explained(bootstrap), client_admin.AdminClient(**options) as admin:
            with quiet_log():
                fetch_metadata(admin.client)
            yield admin

    def fetcher(self, client: BlockingClient, overrides: Mapping[str, str]) -> Fetcher:
        """Return a fetcher that uses `client` but does not own it."""
        return fetcher.Fetcher(client, **consumer_options.fetcher_arguments(self.reader_config(overrides)))

    @contextmanager
    def producer(self, overrides: Mapping[str, str] | None = None) -> Iterator[Producer]:
        """Yield a producer for a reachable cluster; `overrides` have the option names with dots.

        The caller flushes: closing waits only a few seconds for unsent records.
        """
        with self.client():
            pass  # A producer would retry for a minute before it reported an unreachable cluster.
        with explained(self.bootstrap):
            producer = client_producer.Producer({**self.options(PRODUCER_OPTIONS), **(overrides or {})})
            try:
                yield producer
            finally:
                producer.close(CLOSE_SECONDS_MAX)

    @contextmanager
    def consumer(self, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[Consumer]:
        """Yield a consumer for a reachable cluster; `defaults` are for options that are not set.

        The caller commits: closing waits only a few seconds.
        """
        options = {**defaults, **self.options(group_options.CONSUMER_OPTIONS), **overrides}
        try:
            consumer = client_consumer.Consumer(options)
        except ConfigError as error:
            raise InvalidUsageError(str(error)) from error
        with explained(self.bootstrap):
            try:
                yield consumer
            finally:
                consumer.close(CLOSE_SECONDS_MAX)

    # -- close -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Release a broker that was started for commands; it stops when the last one has released it."""
        broker, self._local_broker = self._local_broker, None
        if broker is not None:
            broker.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(HeadraceError, OSError):  # The broker stops on its own when its users are gone.
            self.close()


def _find_or_start_broker() -> LocalBroker:
    broker = broker_control.find_or_start_broker(broker_control.default_data_dir())
    if broker.started:
        click.echo(
            f"note: -b is not set and no broker runs here: started one for this command (data in {broker.folder})",
            err=True,
        )
    return broker


assignments_option = click.option(
    "-X", "assignments", metavar="KEY=VALUE", multiple=True, help="Client option with Kafka's name; repeatable."
)
config_file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Properties file with client options. [default: $HEADRACE_CONFIG]",
)


def connection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with -b, -X and --config, passed to it as `connection`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Bootstrap servers, comma-separated. [default: the broker on this machine; if none runs, one is started]",
    )
    @assignments_option
    @config_file_option
    @functools.wraps(command)
    def connected(
        *args: Any, bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None, **kwargs: Any
    ) -> R:
        log_to_stderr(bool(kwargs.get("debug")))
        flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
        with sigterm_as_exit(), ClusterConnection(merge_settings(flags, assignments, config_file)) as connection:
            return command(*args, connection=connection, **kwargs)

    return connected


def cluster_command(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the options of a connection, --format and --debug; its errors become one paragraph."""

    @connection_options
    @format_option
    @debug_option
    @command_errors
    @functools.wraps(command)
    def run(*args: Any, debug: bool, **kwargs: Any) -> R:  # `debug` is for the decorators
        return command(*args, **kwargs)

    return run
