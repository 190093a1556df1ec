"""headrace broker faults: inject, list, clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.broker_control import call, data_dir_option
from headrace.cli.output import CommandError, command_errors, debug_option, emit, format_option

_SHOWN = ("topic", "client_id", "error", "delay_ms", "drop", "close", "crash", "when", "count", "probability", "seed")


@click.group()
def faults() -> None:
    """Let a running broker fail on demand: errors, delays, lost answers, crashes.

    \b
    Exit codes of all of them: 0 done; 1 the broker refused, or does not answer; 2 wrong usage;
    3 no broker runs on the data folder.
    """


@faults.command()
@click.option("--api", help="The requests that fail, by name or key: Produce, end_txn, 26. [default: all]")
@click.option("--topic", help="Only those about this topic; * and ? as in a shell.")
@click.option("--client-id", help="Only those of this client; * and ? as in a shell.")
@click.option("--error", metavar="NAME", help="Answer with this error of Kafka's, as NOT_LEADER_OR_FOLLOWER.")
@click.option("--delay-ms", type=float, help="Let so much time pass, before all else or alone.")
@click.option("--drop", is_flag=True, default=None, help="Never answer.")
@click.option("--close", is_flag=True, default=None, help="Close the connection.")
@click.option("--crash", is_flag=True, default=None, help="End the broker's process at this point, as kill -9 would.")
@click.option(
    "--when",
    type=click.Choice(["before", "after"]),
    help="Before the broker does the work, or after it, instead of the answer. [default: before]",
)
@click.option("--count", type=int, help="How many times. [default: until cleared]")
@click.option("--probability", type=float, help="Each time with this chance. [default: 1]")
@click.option("--seed", type=int, help="The same chances again for the same seed.")
@data_dir_option
@format_option
@debug_option
@command_errors
def inject(data_dir: Path | None, output_format: str, debug: bool, **given: Any) -> None:
    """Add a fault; it works from now on.

    \b
    headrace broker faults inject --api Produce --error NOT_LEADER_OR_FOLLOWER --count 3
    headrace broker faults inject --api EndTxn --close --when after --count 1     # a lost answer

    \b
    Exit codes: 0 done; 1 the broker refused, or does not answer; 2 wrong usage; 3 no broker runs on the data folder.
    """
    rule = call(data_dir, "faults.inject", **{name: value for name, value in given.items() if value is not None})
    emit(output_format, rule, _row(rule))


@faults.command(name="list")
@data_dir_option
@format_option
@debug_option
@command_errors
def list_(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Show the faults, and how many requests each has met.

    \b
    Exit codes: 0 done; 1 the broker refused, or does not answer; 2 wrong usage; 3 no broker runs on the data folder.
    """
    rules = call(data_dir, "faults.list")
    emit(output_format, {"faults": rules}, "\n".join(map(_row, rules)) or "no faults")


@faults.command()
@click.argument("fault_id", type=int, required=False)
@data_dir_option
@format_option
@debug_option
@command_errors
def clear(fault_id: int | None, data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Take away all faults, or the one with this number.

    \b
    Exit codes: 0 done; 1 the broker refused, or does not answer; 2 wrong usage; 3 no broker runs on the data folder.
    """
    if fault_id is None:
        count = call(data_dir, "faults.clear")
    elif call(data_dir, "faults.remove", id=fault_id):
        count = 1
    else:
        raise CommandError(f"there is no fault {fault_id}; `headrace broker faults list` shows those there are.")
    emit(output_format, {"cleared": count}, f"{count} cleared")


def _row(rule: dict[str, Any]) -> str:
    shown = [f"{name}={rule[name]}" for name in _SHOWN if rule[name] not in (None, False, 0)]
    state = ", spent" if rule["spent"] else ""
    return f"{rule['id']}: {rule['api']} {' '.join(shown)} ({rule['hits']} hits{state})"
