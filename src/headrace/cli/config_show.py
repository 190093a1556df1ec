"""headrace config show: options, their values and their sources."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from headrace.cli.connection import BOOTSTRAP, ClusterConnection
from headrace.cli.errors import InvalidUsageError, command_errors
from headrace.cli.output import debug_option, emit, format_option, render_table
from headrace.cli.settings import DEFAULT, Setting, merge_settings
from headrace.cli.shared_options import parse_key_value
from headrace.config import Config, Option, Options, read_properties
from headrace.errors import ConfigError
from headrace.producer import settings as producer_settings
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.spark.consumer_options import CONSUMER_OPTIONS

DERIVED = "other options"
CLIENT_ID = "client.id"
LISTENER_PREFIX = "listener.name."
VALUE_CHARACTERS_MAX = 40
PLACEHOLDER_BOOTSTRAP = "nowhere:1"
"""Used without a cluster: options derived from others do not depend on the address."""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option with its value in effect."""

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


def _producer(connection: ClusterConnection) -> list[OptionRow]:
    return _client_rows(connection, PRODUCER_OPTIONS, lambda given: producer_settings.resolve(given))


def _consumer(connection: ClusterConnection) -> list[OptionRow]:
    return _client_rows(connection, CONSUMER_OPTIONS, lambda given: CONSUMER_OPTIONS.resolve(("argument", given)))


def _client_rows(
    connection: ClusterConnection, options: Options, resolve: Callable[[dict[str, str]], Config]
) -> list[OptionRow]:
    """Return the options as a client resolves them: some are derived from others."""
    given = {name: setting.value for name, setting in connection.given().items() if name in options}
    bootstrap = connection.find_bootstrap()
    config = resolve({**given, BOOTSTRAP: bootstrap or PLACEHOLDER_BOOTSTRAP})
    texts = {name: (text, origin) for name, text, origin in config.rows()}
    texts[BOOTSTRAP] = (bootstrap or "", "argument")
    if CLIENT_ID not in given:
        texts[CLIENT_ID] = ("", "default")  # each client generates its own
    return [
        OptionRow(option, texts[name][0], DERIVED if texts[name][1] == "derived" else connection.source_of(name))
        for name, option in options.items()
    ]


_CLIENTS: dict[str, Callable[[ClusterConnection], list[OptionRow]]] = {"producer": _producer, "consumer": _consumer}
# Module and name; a module is imported when its kind is shown, because some import pyarrow.
_OTHERS = {
    "broker": ("headrace.broker.broker_options", "BROKER_OPTIONS"),
    "topic": ("headrace.broker.topic_options", "TOPIC_OPTIONS"),
    "spark-sink": ("headrace.spark.sink_options", "SINK_OPTIONS"),
    "spark-source": ("headrace.spark.source_options", "SOURCE_OPTIONS"),
}
KINDS = (*_CLIENTS, *_OTHERS)


@click.group()
def config() -> None:
    """Show options, their values and where they come from."""


@config.command()
@click.argument("kind", type=click.Choice(KINDS), default="producer")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Bootstrap servers.")
@click.option("-X", "assignments", metavar="KEY=VALUE", multiple=True, help="Set an option; repeatable.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Properties file. [default: $HEADRACE_CONFIG, for producer and consumer]",
)
@click.option("--set", "only_set", is_flag=True, help="Only options that are set, and those derived from them.")
@click.option("--docs", is_flag=True, help="Include the documentation of each option.")
@format_option
@debug_option
@command_errors
def show(
    *,
    kind: str,
    bootstrap: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    only_set: bool,
    docs: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Show every option of a KIND, its value and where it comes from. The default KIND is producer.

    Precedence: flags, then -X, then the environment (HEADRACE_ and the name in capitals, with _ for dots, such as
    HEADRACE_LINGER_MS), then the file, then the default. The environment applies to producer and consumer only. The
    other kinds take -X and --config, for options of `broker start`, `topic create` and Spark's .option(). No cluster
    is contacted; `headrace topic config` shows the options of a topic. Secrets are hidden.

    \b
    headrace config show --set -X linger.ms=50 -X acks=1
    headrace config show broker --config server.properties --set
    headrace config show spark-sink --docs

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage, for example an unknown option or an invalid value.
    """
    rows = _rows(kind, bootstrap, assignments, config_file)
    if only_set:
        rows = [row for row in rows if row.source != DEFAULT]
    facts = {"kind": kind, "options": [row.to_json() for row in rows]}
    emit(output_format, facts, _documentation(rows) if docs else _table(rows))


def _rows(kind: str, bootstrap: str | None, assignments: tuple[str, ...], config_file: Path | None) -> list[OptionRow]:
    if kind in _CLIENTS:
        flags = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
        with ClusterConnection(merge_settings(flags, assignments, config_file)) as connection:
            return _CLIENTS[kind](connection)
    if bootstrap is not None:
        raise InvalidUsageError(f"-b applies to producer and consumer only, not to {kind}")
    module, name = _OTHERS[kind]
    return _other_rows(getattr(import_module(module), name), _layers(assignments, config_file))


def _layers(assignments: Iterable[str], config_file: Path | None) -> list[tuple[str, Mapping[str, str]]]:
    """Return the sources, lowest precedence first."""
    from_file = {} if config_file is None else read_properties(config_file)
    given = dict(parse_key_value(text, "-X") for text in assignments)
    return [(f"file {config_file}", from_file), ("-X", given)]


def _other_rows(options: Options, layers: list[tuple[str, Mapping[str, str]]]) -> list[OptionRow]:
    given: dict[Option, Setting] = {}
    for source, layer in layers:
        for name, value in layer.items():
            option = _option(options, name)
            if option is None:
                raise InvalidUsageError(f"{source}: unknown option {name!r}{options.suggestion(name)}")
            try:
                given[option] = Setting(option.show(option.parse(value)), source)
            except ConfigError as error:
                raise InvalidUsageError(f"{source}: {error}") from error
    known = [
        OptionRow(option, *given.pop(option, Setting(option.show(option.default), DEFAULT)))
        for option in options.values()
    ]
    return [*known, *(OptionRow(option, *setting) for option, setting in given.items())]


def _option(options: Options, name: str) -> Option | None:
    """Return the option of a name, with dots or underscores; also one with a listener prefix (listener.name.…)."""
    if name.startswith(LISTENER_PREFIX):
        near = [option for option in options.values() if name.endswith(f".{option.name}")]
        return replace(max(near, key=lambda option: len(option.name)), name=name) if near else None
    return options.get(name) or options.get(name.replace("_", "."))


def _table(rows: list[OptionRow]) -> str:
    if not rows:
        return "no options set: all have their defaults"
    return render_table(
        ("option", "value", "source"), ((row.option.name, _short(row.value), row.source) for row in rows)
    )


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"


def _documentation(rows: list[OptionRow]) -> str:
    parts = []
    for row in rows:
        option = row.option
        head = f"{option.name}={row.value}  ({row.source}; default {option.show(option.default) or 'not set'})"
        doc = f"{option.doc} Valid values: {option.allowed}."
        if option.no_effect:
            doc += f" No effect in headrace: {option.no_effect}."
        parts.append(head + "\n" + textwrap.indent(textwrap.fill(doc.strip(), 100), "    "))
    return "\n".join(parts)
