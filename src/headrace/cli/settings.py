"""Options of the clients, from all the places where a user may put them.

    flag  >  -X key=value  >  environment HEADRACE_…  >  file (--config, HEADRACE_CONFIG)  >  default

An option that no client of ours or of Kafka's has is refused, with the nearest one that exists: a typing mistake that
is passed over in silence is found much later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from headrace.cli.output import WrongUsageError
from headrace.config import Option, Options, read_properties
from headrace.errors import ConfigError

PREFIX = "HEADRACE_"
FILE_VARIABLE = "HEADRACE_CONFIG"
DEFAULT = "default"

# Kafka's clients have them, and a file may be shared with those: refused by -X only.
_OF_OTHER_CLIENTS = {
    "auto.offset.reset": "--offsets says where to begin",
    "enable.auto.commit": "--group commits what was printed",
    "key.deserializer": "keys are bytes here; --format says how they are shown",
    "value.deserializer": "values are bytes here; --format says how they are shown",
}


class Setting(NamedTuple):
    """The value of an option, and where it came from, for people."""

    value: str
    source: str


@cache
def client_options() -> Options:
    """Every option that a client has: producers, readers, the admin client."""
    from headrace.producer.options import PRODUCER_OPTIONS
    from headrace.spark.consumer_options import CONSUMER_OPTIONS

    only_consumers = (option for name, option in CONSUMER_OPTIONS.items() if name not in PRODUCER_OPTIONS)
    return Options(*PRODUCER_OPTIONS.values(), *only_consumers)


def merged(
    flags: Mapping[str, str],
    assignments: Iterable[str],
    file: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Setting]:
    """All that was set, each with the place that counts most; checked."""
    settings: dict[str, Setting] = {}
    for name, setting in _layers(flags, assignments, file, environment):
        settings[name] = setting
    return settings


def _layers(
    flags: Mapping[str, str], assignments: Iterable[str], file: Path | None, environment: Mapping[str, str]
) -> Iterator[tuple[str, Setting]]:
    """From what counts least to what counts most."""
    yield from _from_file(file, environment)
    yield from _from_environment(environment)
    for text in assignments:
        name, value = key_value(text, "-X")
        if name in _OF_OTHER_CLIENTS:
            raise WrongUsageError(f"-X {name} has no effect: {_OF_OTHER_CLIENTS[name]}. Leave it out.")
        yield _checked(name, value, "-X")
    for name, value in flags.items():
        yield _checked(name, value, "flag")


def key_value(text: str, flag: str) -> tuple[str, str]:
    """The two halves of what a flag like -X takes."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise WrongUsageError(f"{flag} takes key=value, not {text!r}")
    return key.strip(), value.strip()


def _from_file(file: Path | None, environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    named_by = "--config"
    if file is None and environment.get(FILE_VARIABLE):
        file, named_by = Path(environment[FILE_VARIABLE]), FILE_VARIABLE
    if file is None:
        return
    try:
        found = read_properties(file)
    except ConfigError as error:
        raise WrongUsageError(f"{named_by}: {error}") from error
    for name, value in found.items():
        if name not in _OF_OTHER_CLIENTS:
            yield _checked(name, value, f"file {file}")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    """Variables that are named as an option is. Others are passed over; one that nearly is an option is told."""
    if not any(name.startswith(PREFIX) for name in environment):
        return
    options = client_options()
    by_variable = {variable_of(option): option for option in options.values()}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        if variable in by_variable:
            yield _checked(by_variable[variable].name, environment[variable], f"environment {variable}")
        elif near := options.suggestion(variable.removeprefix(PREFIX).lower()):
            click.echo(f"warning: the variable {variable} names no option{near}", err=True)


def variable_of(option: Option) -> str:
    """The name of the environment variable that sets an option."""
    return PREFIX + option.keyword.upper()


def _checked(name: str, value: str, source: str) -> tuple[str, Setting]:
    from headrace.client import addresses

    options = client_options()
    where = {"-X": f"-X {name}", "flag": "-b"}.get(source, source)
    option = options.get(name) or options.get(name.replace("_", "."))
    if option is None:
        raise WrongUsageError(
            f"{where}: there is no option {name!r}{options.suggestion(name) or ' of a producer, consumer or admin'}"
        )
    try:
        option.parse(value)
        if option.name == "bootstrap.servers":
            addresses.parse(value)
    except ConfigError as error:
        raise WrongUsageError(f"{where}: {error}") from error
    return option.name, Setting(value, source)
