"""The top-level command group, and `headrace completion`."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem, get_completion_class

from headrace import __version__
from headrace.cli.errors import command_errors

PROGRAM = "headrace"
COMPLETION_VARIABLE = "_HEADRACE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


class CommandInfo(NamedTuple):
    """The module of a command, and its line in `headrace --help`."""

    module: str
    help: str
    section: str


_RECORDS, _CLUSTERS, _SPARK, _DIAGNOSTICS = "Records", "Clusters", "Spark", "Diagnostics"

# A command's module is imported when the command is called: importing all of them takes longer than starting a broker.
_COMMANDS = {
    "produce": CommandInfo("produce", "Write records: lines, JSON or files, optionally in transactions.", _RECORDS),
    "consume": CommandInfo("consume", "Read records: by offset or time, filtered, in several formats.", _RECORDS),
    "topic": CommandInfo("topic", "List, create, describe, alter and delete topics.", _CLUSTERS),
    "group": CommandInfo("group", "Show consumer groups and their lag, reset offsets, delete groups.", _CLUSTERS),
    "txn": CommandInfo("txn", "Show transactions, find hanging ones, abort them.", _CLUSTERS),
    "acl": CommandInfo("acl", "List, add and remove ACLs.", _CLUSTERS),
    "user": CommandInfo("user", "List, add, alter and remove SCRAM users.", _CLUSTERS),
    "quota": CommandInfo("quota", "List, set and remove client quotas.", _CLUSTERS),
    "broker": CommandInfo("broker", "Run a Kafka broker on this machine, and inject faults.", _CLUSTERS),
    "ui": CommandInfo("ui", "Show a cluster in the browser: messages, producers, commits.", _CLUSTERS),
    "demo": CommandInfo("demo", "Deliver a million orders exactly once while processes are killed.", _SPARK),
    "pipeline": CommandInfo("pipeline", "Run a pipeline: a source, SQL, and an exactly-once topic sink.", _SPARK),
    "audit": CommandInfo("audit", "Compare a source with a topic: lost, duplicated, out of order.", _SPARK),
    "verify": CommandInfo("verify", "Check a history of clients: lost, torn, duplicated, skipped.", _DIAGNOSTICS),
    "doctor": CommandInfo("doctor", "Check this machine and the connection to the brokers.", _DIAGNOSTICS),
    "config": CommandInfo("config_show", "Show options, their values and where they come from.", _DIAGNOSTICS),
    "bench": CommandInfo("bench", "Measure the producer, the broker, Spark, the wire format.", _DIAGNOSTICS),
    "completion": CommandInfo("commands", "Print a shell completion script.", _DIAGNOSTICS),
}


class LazyCommandGroup(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"headrace.cli.{_COMMANDS[name].module}"), name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            _raise_unknown_command(args[0])
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command lists of `--help` without importing the commands."""
        width = max(map(len, _COMMANDS))
        for section in (_RECORDS, _CLUSTERS, _SPARK, _DIAGNOSTICS):
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), info.help) for name, info in _COMMANDS.items() if info.section == section]
                )

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without importing the commands."""
        items = [
            CompletionItem(name, help=info.help) for name, info in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return items or super().shell_complete(context, incomplete)


def _raise_unknown_command(name: str) -> NoReturn:
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_COMMANDS)}"
    raise click.UsageError(f"unknown command {name!r}; {hint}")


@click.group(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name=PROGRAM)
def headrace() -> None:
    """Exactly-once delivery from Spark to Kafka, in Python.

    \b
    Without -b, commands use the broker that runs on this machine, or start one and stop it when they end:
      seq 3 | headrace produce numbers && headrace consume numbers

    \b
    Exit codes:
      0    success
      1    failure; one paragraph on stderr gives the cause and a remedy
      2    invalid usage
      3    not found: a topic, group, transaction or broker
      130  interrupted

    Precedence of settings: flags, then -X key=value, then the environment (HEADRACE_LINGER_MS for linger.ms), then the
    file given with --config, then the defaults. `headrace config show` prints the values in effect and their sources.
    """


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@command_errors
def completion(shell: str) -> None:
    """Print the completion script for a SHELL.

    \b
    bash   headrace completion bash > ~/.local/share/bash-completion/completions/headrace
    zsh    headrace completion zsh > ~/.zfunc/_headrace       (with fpath+=~/.zfunc before compinit in ~/.zshrc)
    fish   headrace completion fish > ~/.config/fish/completions/headrace.fish
    once   eval "$(headrace completion bash)"

    \b
    Exit codes: 0 success; 2 invalid usage.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(headrace, {}, PROGRAM, COMPLETION_VARIABLE).source())
