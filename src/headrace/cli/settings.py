"""Client options from flags, the environment, a file and the defaults.

    flag  >  -X key=value  >  environment HEADRACE_…  >  file (--config, HEADRACE_CONFIG)  >  default

Unknown options are refused, with the nearest known name: a misspelled option that is ignored is hard to find later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from headrace.cli import LazyModule
from headrace.cli.errors import InvalidUsageError
from headrace.cli.shared_options import parse_key_value
from headrace.client import addresses
from headrace.config import Option, Options, read_properties
from headrace.config.registry_options import REGISTRY_OPTIONS
from headrace.config.serde_options import SERDE_OPTIONS
from headrace.errors import ConfigError
from headrace.producer.options import PRODUCER_OPTIONS

if TYPE_CHECKING:
    from headrace.consumer import options as consumer_options
else:
    consumer_options = LazyModule("headrace.consumer.options")

PREFIX = "HEADRACE_"
FILE_VARIABLE = "HEADRACE_CONFIG"
DEFAULT = "default"

# Options of Kafka's clients that a shared file may contain; only -X refuses them.
_IGNORED_OPTIONS = {
    "auto.offset.reset": "--offsets sets the start, or --from with --group",
    "enable.auto.commit": "--group commits the offsets of printed records",
    "key.deserializer": "keys are read as bytes; --format selects how they are printed",
    "value.deserializer": "values are read as bytes; --format selects how they are printed",
}


class Setting(NamedTuple):
    """The value of an option, and a description of its source."""

    value: str
    source: str


@cache
def client_options() -> Options:
    """Return the options of all clients: producer, consumer, admin, and those of schemas and their registry."""
    consumer = consumer_options.CONSUMER_OPTIONS.items()
    only_consumers = (option for name, option in consumer if name not in PRODUCER_OPTIONS)
    return Options(*PRODUCER_OPTIONS.values(), *only_consumers, *REGISTRY_OPTIONS.values(), *SERDE_OPTIONS.values())


def merge_settings(
    flags: Mapping[str, str],
    assignments: Iterable[str],
    file: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Setting]:
    """Return the options that are set, validated, each from the source with the highest precedence."""
    return dict(_by_precedence(flags, assignments, file, environment))


def _by_precedence(
    flags: Mapping[str, str], assignments: Iterable[str], file: Path | None, environment: Mapping[str, str]
) -> Iterator[tuple[str, Setting]]:
    """Yield all settings, lowest precedence first."""
    yield from _from_file(file, environment)
    yield from _from_environment(environment)
    for text in assignments:
        name, value = parse_key_value(text, "-X")
        if name in _IGNORED_OPTIONS:
            raise InvalidUsageError(f"-X {name} has no effect: {_IGNORED_OPTIONS[name]}")
        yield _validated(name, value, "-X")
    for name, value in flags.items():
        yield _validated(name, value, "flag")


def _from_file(file: Path | None, environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    named_by = "--config"
    if file is None and environment.get(FILE_VARIABLE):
        file, named_by = Path(environment[FILE_VARIABLE]), FILE_VARIABLE
    if file is None:
        return
    try:
        properties = read_properties(file)
    except ConfigError as error:
        raise InvalidUsageError(f"{named_by}: {error}") from error
    for name, value in properties.items():
        if name not in _IGNORED_OPTIONS:
            yield _validated(name, value, f"file {file}")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    """Yield the variables that name an option; warn of those that nearly do, and ignore the rest."""
    variables = sorted(name for name in environment if name.startswith(PREFIX))
    if not variables:
        return
    options = client_options()
    by_variable = {variable_of(option): option for option in options.values()}
    for variable in variables:
        if variable in by_variable:
            yield _validated(by_variable[variable].name, environment[variable], f"environment {variable}")
        elif suggestion := options.suggestion(variable.removeprefix(PREFIX).lower()):
            click.echo(f"warning: environment variable {variable} matches no option{suggestion}", err=True)


def variable_of(option: Option) -> str:
    """Return the name of the environment variable that sets an option."""
    return PREFIX + option.keyword.upper()


def _validated(name: str, value: str, source: str) -> tuple[str, Setting]:
    options = client_options()
    origin = {"-X": f"-X {name}", "flag": "-b"}.get(source, source)
    option = options.get(name) or options.get(name.replace("_", "."))
    if option is None:
        hint = options.suggestion(name) or "; producer, consumer and admin client have no such option"
        raise InvalidUsageError(f"{origin}: unknown option {name!r}{hint}")
    try:
        option.parse(value)
        if option.name == "bootstrap.servers":
            addresses.parse(value)
    except ConfigError as error:
        raise InvalidUsageError(f"{origin}: {error}") from error
    return option.name, Setting(value, source)
