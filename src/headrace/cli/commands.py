"""The command of all commands."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from headrace import __version__


class Place(NamedTuple):
    """Where a command is, and what it is for."""

    module: str
    about: str
    section: str


_DATA, _CLUSTER, _SPARK, _HELP = "Records", "Clusters", "Spark", "Finding out"

# Each command is in a module of its own, under its own name, and imported when it is asked for: the imports of all of
# them would take longer than a broker takes to start.
_PLACES = {
    "produce": Place("produce", "Write records: lines, JSON or files, with transactions if wanted.", _DATA),
    "consume": Place("consume", "Read records: ranges of offsets and times, filters, formats.", _DATA),
    "topic": Place("topic", "List, make, look at, change and delete topics.", _CLUSTER),
    "group": Place("group", "Look at groups and their lag, reset their offsets, delete them.", _CLUSTER),
    "txn": Place("txn", "Look at transactions, find those that hang, and end them.", _CLUSTER),
    "broker": Place("broker", "Run a Kafka broker on this machine, and let it fail on demand.", _CLUSTER),
    "ui": Place("ui", "Show a cluster in the browser, live: messages, producers, commits.", _CLUSTER),
    "demo": Place("demo", "Deliver a million orders exactly once while things are killed.", _SPARK),
    "pipeline": Place("pipeline", "Run a pipeline: a source, SQL, a topic that gets every row once.", _SPARK),
    "audit": Place("audit", "Compare a source with a topic: lost, duplicated, out of order.", _SPARK),
    "doctor": Place("doctor", "Look for what is missing here, and on the way to a broker.", _HELP),
    "config": Place("config_show", "Show options: their values, where those came from, what they do.", _HELP),
    "bench": Place("bench", "Measure the producer, the broker, Spark, the wire format.", _HELP),
    "completion": Place("completion", "Print what lets a shell complete these commands.", _HELP),
}


class LazyCommands(click.Group):
    """Knows its commands by name, and imports the one that is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*_PLACES]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _PLACES:
            return None
        command: click.Command = getattr(import_module(f"headrace.cli.{_PLACES[name].module}"), name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _PLACES and not args[0].startswith("-"):
            _refuse(args[0])
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The lists of `--help`, without importing them all."""
        width = max(map(len, _PLACES))
        for section in (_DATA, _CLUSTER, _SPARK, _HELP):
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), place.about) for name, place in _PLACES.items() if place.section == section]
                )

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing them all."""
        found = [
            CompletionItem(name, help=place.about) for name, place in _PLACES.items() if name.startswith(incomplete)
        ]
        return found or super().shell_complete(context, incomplete)


def _refuse(name: str) -> NoReturn:
    near = difflib.get_close_matches(name, _PLACES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_PLACES)}."
    raise click.UsageError(f"there is no command {name!r}{hint}")


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="headrace")
def headrace() -> None:
    """Exactly-once delivery from Spark to Kafka, in Python.

    \b
    Without -b, commands use the broker that runs on this machine, or start one for as long as they run:
      seq 3 | headrace produce numbers && headrace consume numbers

    \b
    Exit codes:
      0    done
      1    it failed; one paragraph on the standard error says what, where and what to do
      2    the command line makes no sense
      3    what was asked for is not there: a topic, a group, a transaction, a broker
      130  interrupted

    Settings: a flag counts more than -X key=value, then comes the environment (HEADRACE_LINGER_MS for linger.ms), then
    the file of --config, then the default. `headrace config show` tells what is in effect, and where it came from.
    """
