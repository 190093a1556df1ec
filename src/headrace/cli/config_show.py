"""headrace config show: every option, its value, and where that came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from headrace.cli import settings
from headrace.cli.connection import BOOTSTRAP, Connection
from headrace.cli.output import WrongUsageError, command_errors, debug_option, emit, format_option
from headrace.cli.settings import DEFAULT, Setting
from headrace.cli.tables import table
from headrace.config import Config, Option, Options, read_properties
from headrace.errors import ConfigError

DERIVED = "other options"
CLIENT_ID = "client.id"
LISTENER_PREFIX = "listener.name."
VALUE_CHARACTERS_MAX = 40
NOWHERE = "nowhere:1"
"""Stands for the address where there is none: what follows from the other options does not depend on it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An option as it stands."""

    option: Option
    value: str
    source: str

    def to_json(self) -> dict[str, Any]:
        option = self.option
        return {
            "name": option.name,
            "value": self.value or None,
            "source": self.source,
            "default": option.show(option.default) or None,
            "type": option.kind,
            "allowed": option.allowed,
            "importance": option.importance,
            "doc": option.doc or None,
            "no_effect": option.no_effect or None,
        }


def _producer(connection: Connection) -> list[Shown]:
    from headrace.producer.options import PRODUCER_OPTIONS
    from headrace.producer.settings import resolve

    return _of_client(connection, PRODUCER_OPTIONS, lambda given: resolve(given))


def _consumer(connection: Connection) -> list[Shown]:
    from headrace.spark.consumer_options import CONSUMER_OPTIONS

    return _of_client(connection, CONSUMER_OPTIONS, lambda given: CONSUMER_OPTIONS.resolve(("argument", given)))


def _of_client(connection: Connection, options: Options, resolve: Callable[[dict[str, str]], Config]) -> list[Shown]:
    """With what the client would make of it: some options follow from others."""
    given = {name: setting.value for name, setting in connection.given().items() if name in options}
    bootstrap = connection.find_bootstrap()
    config = resolve({**given, BOOTSTRAP: bootstrap or NOWHERE})
    texts = {name: (text, origin) for name, text, origin in config.rows()}
    texts[BOOTSTRAP] = (bootstrap or "", "argument")
    if CLIENT_ID not in given:
        texts[CLIENT_ID] = ("", "default")  # each client makes one up for itself
    return [
        Shown(option, texts[name][0], DERIVED if texts[name][1] == "derived" else connection.source_of(name))
        for name, option in options.items()
    ]


def _broker_options() -> Options:
    from headrace.broker.broker_options import BROKER_OPTIONS

    return BROKER_OPTIONS


def _topic_options() -> Options:
    from headrace.broker.topic_options import TOPIC_OPTIONS

    return TOPIC_OPTIONS


def _sink_options() -> Options:
    from headrace.spark.sink_options import SINK_OPTIONS

    return SINK_OPTIONS


def _source_options() -> Options:
    from headrace.spark.source_options import SOURCE_OPTIONS

    return SOURCE_OPTIONS


_CLIENTS: dict[str, Callable[[Connection], list[Shown]]] = {"producer": _producer, "consumer": _consumer}
_OTHERS: dict[str, Callable[[], Options]] = {
    "broker": _broker_options,
    "topic": _topic_options,
    "spark-sink": _sink_options,
    "spark-source": _source_options,
}
KINDS = (*_CLIENTS, *_OTHERS)


@click.group()
def config() -> None:
    """Show options: their values, where those came from, what they do."""


@config.command()
@click.argument("kind", type=click.Choice(KINDS), default="producer")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Brokers to ask first: bootstrap.servers.")
@click.option("-X", "assignments", metavar="KEY=VALUE", multiple=True, help="An option, by its name; repeatable.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file. [default: $HEADRACE_CONFIG, for producer and consumer]",
)
@click.option("--set", "only_set", is_flag=True, help="Only those that were set, and those that follow from them.")
@click.option("--docs", is_flag=True, help="With what each of them does.")
@format_option
@debug_option
@command_errors
def show(
    kind: str,
    bootstrap: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    only_set: bool,
    docs: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Show every option of a KIND, its value, and where that came from. By default, of a producer.

    What counts more: a flag, then -X, then the environment (HEADRACE_ and the name of the option in capitals, with _
    for dots: HEADRACE_LINGER_MS), then the file, then the default. The environment is for clients: producer and
    consumer. The others take -X and --config, as `broker start`, `topic create` and Spark's .option() would get
    them. Nobody is asked; `headrace topic config` shows what a cluster has. Secrets are hidden.

    \b
    headrace config show --set -X linger.ms=50 -X acks=1
    headrace config show broker --config server.properties --set
    headrace config show spark-sink --docs

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage, as an option that does not exist or a value it cannot have.
    """
    shown = _shown(kind, bootstrap, assignments, config_file)
    if only_set:
        shown = [one for one in shown if one.source != DEFAULT]
    facts = {"kind": kind, "options": [one.to_json() for one in shown]}
    emit(output_format, facts, _documented(shown) if docs else _table(shown))


def _shown(kind: str, bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None) -> list[Shown]:
    if kind in _CLIENTS:
        flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
        with Connection(settings.merged(flags, assignments, config_file)) as connection:
            return _CLIENTS[kind](connection)
    if bootstrap is not None:
        raise WrongUsageError(f"-b is for clients; a {kind} has no such option. Leave it out.")
    return _of_others(_OTHERS[kind](), _layers(assignments, config_file))


def _layers(assignments: Iterable[str], config_file: Path | None) -> list[tuple[str, Mapping[str, str]]]:
    """From what counts least to what counts most."""
    from_file = {} if config_file is None else read_properties(config_file)
    given = dict(settings.key_value(text, "-X") for text in assignments)
    return [(f"file {config_file}", from_file), ("-X", given)]


def _of_others(options: Options, layers: list[tuple[str, Mapping[str, str]]]) -> list[Shown]:
    found: dict[Option, Setting] = {}
    for source, layer in layers:
        for name, value in layer.items():
            option = _option(options, name)
            if option is None:
                raise WrongUsageError(f"{source}: there is no option {name!r} here{options.suggestion(name)}")
            try:
                found[option] = Setting(option.show(option.parse(value)), source)
            except ConfigError as error:
                raise WrongUsageError(f"{source}: {error}") from error
    known = [
        Shown(option, *found.pop(option, Setting(option.show(option.default), DEFAULT))) for option in options.values()
    ]
    return [*known, *(Shown(option, *setting) for option, setting in found.items())]


def _option(options: Options, name: str) -> Option | None:
    """The option of this name, dotted or not; for a broker also one of a single listener (listener.name.…)."""
    if name.startswith(LISTENER_PREFIX):
        near = [option for option in options.values() if name.endswith(f".{option.name}")]
        return replace(max(near, key=lambda option: len(option.name)), name=name) if near else None
    return options.get(name) or options.get(name.replace("_", "."))


def _table(shown: list[Shown]) -> str:
    if not shown:
        return "nothing is set: every option has its default"
    return table(("option", "value", "source"), ((one.option.name, _short(one.value), one.source) for one in shown))


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"


def _documented(shown: list[Shown]) -> str:
    import textwrap

    parts = []
    for one in shown:
        option = one.option
        head = f"{option.name}={one.value}  ({one.source}; default {option.show(option.default) or 'not set'})"
        doc = f"{option.doc} It may be {option.allowed}."
        if option.no_effect:
            doc += f" No effect here: {option.no_effect}."
        parts.append(head + "\n" + textwrap.indent(textwrap.fill(doc.strip(), 100), "    "))
    return "\n".join(parts)
