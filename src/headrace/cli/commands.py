"""The group of all groups."""

from __future__ import annotations

from importlib import import_module

import click

from headrace import __version__

# Group → the module that has it, under the same name, and what it is for. Imported when asked for: a broker starts in
# less time than the imports of all the others would take.
_GROUPS = {
    "broker": ("headrace.cli.broker", "Run a Kafka broker on this machine, and let it fail on demand."),
    "pipeline": ("headrace.cli.pipeline", "Run a pipeline on Spark: a source, SQL, a topic that gets every row once."),
    "audit": ("headrace.cli.audit", "Compare a source with a topic: lost, duplicated, unexpected, out of order."),
}


class LazyGroups(click.Group):
    """Knows its groups by name, and imports the one that is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*_GROUPS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _GROUPS:
            return None
        command: click.Command = getattr(import_module(_GROUPS[name][0]), name)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of `--help`, without importing them all."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _GROUPS.items()])


@click.group(cls=LazyGroups, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="headrace")
def headrace() -> None:
    """Exactly-once delivery from Spark to Kafka, in Python.

    \b
    Exit codes:
      0  done
      1  it could not be done; one paragraph on the standard error says why
      2  the command line makes no sense
      3  there is no broker running where one was expected
    """
