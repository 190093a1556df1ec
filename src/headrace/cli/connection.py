"""Which cluster a command talks to, and with which options: -b, -X, --config, HEADRACE_*.

    @click.command()
    @connection_options
    @debug_option
    @command_errors
    def list_(connection: Connection, debug: bool) -> None:
        with connection.admin() as admin:
            ...

Without -b it is the broker that runs on the default data folder; where none runs, one is started for the command
(borrowed_broker.py), when the address is first asked for. What the options come to is in settings.py.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import click

from headrace.cli import settings
from headrace.cli.output import log_to_stderr, quiet_log
from headrace.cli.reaching import dial, explained, make_contact
from headrace.cli.settings import Setting
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.cli.borrowed_broker import BorrowedBroker
    from headrace.client.admin import AdminClient
    from headrace.client.blocking import BlockingClient, ClientSettings
    from headrace.client.fetcher import Fetcher
    from headrace.config import Config, Options
    from headrace.producer.producer import Producer

BOOTSTRAP = "bootstrap.servers"
CLIENT_ID = "headrace-cli"
CLOSE_SECONDS_MAX = 5.0
"""For what is left when a command ends in the middle; one that ends well has waited for everything before."""
RUNNING_BROKER = "the broker that runs here"
STARTED_BROKER = "a broker started for this command"

R = TypeVar("R")


class Connection:
    """The cluster of a command. Options are known at once; a broker is looked for when it is needed."""

    def __init__(self, given: Mapping[str, Setting]) -> None:
        self._given = dict(given)
        self._borrowed: BorrowedBroker | None = None

    # -- options ---------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """host:port, several with commas. May start a broker."""
        if BOOTSTRAP in self._given:
            return self._given[BOOTSTRAP].value
        if self._borrowed is None:
            self._borrowed = _borrow()
        return self._borrowed.bootstrap

    def find_bootstrap(self) -> str | None:
        """The address that was given, or of the broker that runs here; None if there is neither. Starts nothing."""
        if BOOTSTRAP in self._given or self._borrowed is not None:
            return self.bootstrap
        from headrace.cli.borrowed_broker import find
        from headrace.cli.running import default_data_dir

        self._borrowed = find(default_data_dir().absolute())
        return None if self._borrowed is None else self._borrowed.bootstrap

    @property
    def is_given(self) -> bool:
        """Whether the user said which cluster."""
        return BOOTSTRAP in self._given

    def given(self) -> dict[str, Setting]:
        """All that was set, by the names of the options, with where it came from."""
        return dict(self._given)

    def options(self, known: Options | None = None) -> dict[str, str]:
        """Options for a client, with its address: those that were set, and that it knows."""
        found = {name: setting.value for name, setting in self._given.items() if known is None or name in known}
        return {**found, BOOTSTRAP: self.bootstrap}

    def source_of(self, name: str) -> str:
        """Where the value of an option comes from: flag, -X, environment NAME, file PATH, default, …"""
        if name in self._given:
            return self._given[name].source
        if name == BOOTSTRAP and self._borrowed is not None:
            return STARTED_BROKER if self._borrowed.started else RUNNING_BROKER
        return settings.DEFAULT

    # -- clients ---------------------------------------------------------------------------------

    def reading_config(self, **overrides: str) -> Config:
        """The options of a reader, resolved; overrides by their names with underscores."""
        from headrace.spark.consumer_options import CONSUMER_OPTIONS

        named = {str(name): str(value) for name, value in CONSUMER_OPTIONS.named(overrides).items()}
        return CONSUMER_OPTIONS.resolve(("argument", {**self.options(CONSUMER_OPTIONS), **named}))

    def client_settings(self) -> ClientSettings:
        """How to reach the cluster, for clients that ask and wait."""
        from headrace.spark.consumer_options import client_settings

        config = self.reading_config()
        return client_settings(config, config.of(str, "client.id") or CLIENT_ID)

    @contextmanager
    def client(self) -> Iterator[BlockingClient]:
        """A client that has reached the cluster."""
        from headrace.client.blocking import BlockingClient

        bootstrap = self.bootstrap
        dial(bootstrap)
        with explained(bootstrap), BlockingClient(self.client_settings()) as client:
            with quiet_log():
                make_contact(client)
            yield client

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """An admin client that has reached the cluster."""
        from dataclasses import fields

        from headrace.client.admin import AdminClient

        bootstrap, found = self.bootstrap, self.client_settings()
        dial(bootstrap)
        options: dict[str, Any] = {field.name: getattr(found, field.name) for field in fields(found)}
        with explained(bootstrap), AdminClient(**options) as admin:
            with quiet_log():
                make_contact(admin.client)
            yield admin

    def fetcher(self, client: BlockingClient, **overrides: str) -> Fetcher:
        """A reader of partitions, on a client that stays its owner's; `overrides` as of `reading_config`."""
        from headrace.client.fetcher import Fetcher
        from headrace.spark.consumer_options import fetcher_arguments

        return Fetcher(client, **fetcher_arguments(self.reading_config(**overrides)))

    @contextmanager
    def producer(self, overrides: Mapping[str, str] | None = None) -> Iterator[Producer]:
        """A producer of a cluster that was reached; `overrides` by the names of the options.

        It is for who uses it to flush: what is left at the end is waited for a few seconds only.
        """
        from headrace.producer.options import PRODUCER_OPTIONS
        from headrace.producer.producer import Producer

        with self.client():
            pass  # a producer would try for a minute before it told that there is nobody
        with explained(self.bootstrap):
            producer = Producer({**self.options(PRODUCER_OPTIONS), **(overrides or {})})
            try:
                yield producer
            finally:
                producer.close(CLOSE_SECONDS_MAX)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of a broker that was started for this command, or is shared with one that did."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(HeadraceError, OSError):  # it stops by itself
            self.close()


def _borrow() -> BorrowedBroker:
    from headrace.cli.borrowed_broker import find_or_start
    from headrace.cli.running import default_data_dir

    borrowed = find_or_start(default_data_dir())
    if borrowed.started:
        click.echo(
            f"note: no -b, and no broker runs here: started one for this command, with its data in {borrowed.folder}",
            err=True,
        )
    return borrowed


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: transactions are aborted, brokers are let go of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


assignments_option = click.option(
    "-X", "assignments", metavar="KEY=VALUE", multiple=True, help="A client option, by Kafka's name; repeatable."
)
config_file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file of client options. [default: $HEADRACE_CONFIG]",
)


def connection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command -b, -X and --config, and hands it what they come to as `connection`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Brokers to ask first; several with commas. [default: the broker that runs here, else one is started]",
    )
    @assignments_option
    @config_file_option
    @functools.wraps(command)
    def connected(
        *args: Any, bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None, **kwargs: Any
    ) -> R:
        log_to_stderr(bool(kwargs.get("debug")))
        flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
        with _ended_by_sigterm(), Connection(settings.merged(flags, assignments, config_file)) as connection:
            return command(*args, connection=connection, **kwargs)

    return connected
