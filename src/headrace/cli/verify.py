"""headrace verify: check a history of clients."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from headrace import verify as checker
from headrace.cli.errors import CommandError, command_errors
from headrace.cli.output import debug_option, emit, format_option

EXIT_ANOMALIES = 1
EXIT_UNKNOWN = 2


class UncheckableError(CommandError):
    """The history cannot be checked, so nothing is known."""

    exit_code = EXIT_UNKNOWN


@click.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--examples", type=click.IntRange(0, 1000), default=20, show_default=True, help="Anomalies shown with evidence."
)
@format_option
@debug_option
@command_errors
def verify(history: Path, as_json: bool, examples: int, output_format: str, debug: bool) -> None:
    """Check a HISTORY: lost, duplicated, torn, aborted or skipped records, and more.

    A history is a file of JSON lines: what producers, consumers, share groups, Spark queries and brokers did, with the
    outcomes as the clients know them. docs/evidence.md describes format and anomalies.

    \b
    headrace verify history.jsonl
    headrace verify history.jsonl --json --examples 3

    \b
    Exit codes: 0 no anomalies; 1 anomalies; 2 unknown: the history is invalid or incomplete, or invalid usage.
    """
    try:
        with _without_collections():
            verdict = checker.check(checker.load_history(history))
    except (checker.InvalidHistoryError, UnicodeDecodeError) as error:
        raise UncheckableError(str(error)) from error
    emit("json" if as_json else output_format, verdict.to_json(examples), verdict.text(examples))
    if not verdict.is_known:
        raise click.exceptions.Exit(EXIT_UNKNOWN)
    if not verdict.is_valid:
        raise click.exceptions.Exit(EXIT_ANOMALIES)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Suspend the garbage collector: there are millions of operations, all of which stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
