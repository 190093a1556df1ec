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
    """Inject faults into a running broker: errors, delays, lost responses, crashes.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no broker runs on the data folder.
    """


@faults.command()
@click.option("--api", help="API of the requests, by name or key: Produce, end_txn, 26. [default: all]")
@click.option("--topic", help="Only requests for this topic; * and ? are wildcards.")
@click.option("--client-id", help="Only requests of this client; * and ? are wildcards.")
@click.option("--error", metavar="NAME", help="Respond with this Kafka error, such as NOT_LEADER_OR_FOLLOWER.")
@click.option("--delay-ms", type=float, help="Delay the request, alone or before another fault.")
@click.option("--drop", is_flag=True, default=None, help="Do not respond.")
@click.option("--close", is_flag=True, default=None, help="Close the connection.")
@click.option("--crash", is_flag=True, default=None, help="End the broker's process, like kill -9.")
@click.option(
    "--when",
    type=click.Choice(["before", "after"]),
    help="Before the request is processed, or after it, instead of the response. [default: before]",
)
@click.option("--count", type=int, help="Number of requests to fail. [default: until cleared]")
@click.option("--probability", type=float, help="Probability for each request. [default: 1]")
@click.option("--seed", type=int, help="Seed for the probability.")
@data_dir_option
@format_option
@debug_option
@command_errors
def inject(data_dir: Path | None, output_format: str, debug: bool, **given: Any) -> None:
    """Add a fault, which takes effect at once.

    \b
    headrace broker faults inject --api Produce --error NOT_LEADER_OR_FOLLOWER --count 3
    headrace broker faults inject --api EndTxn --close --when after --count 1     # a lost response

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker runs on the data folder.
    """
    rule = call(data_dir, "faults.inject", **{name: value for name, value in given.items() if value is not None})
    emit(output_format, rule, _rule_text(rule))


@faults.command(name="list")
@data_dir_option
@format_option
@debug_option
@command_errors
def list_(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """List the faults, and how many requests each has affected.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker runs on the data folder.
    """
    rules = call(data_dir, "faults.list")
    emit(output_format, {"faults": rules}, "\n".join(map(_rule_text, rules)) or "no faults")


@faults.command()
@click.argument("fault_id", type=int, required=False)
@data_dir_option
@format_option
@debug_option
@command_errors
def clear(fault_id: int | None, data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Remove all faults, or the one with this id.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker runs on the data folder.
    """
    if fault_id is None:
        count = call(data_dir, "faults.clear")
    elif call(data_dir, "faults.remove", id=fault_id):
        count = 1
    else:
        raise CommandError(f"fault {fault_id} does not exist; `headrace broker faults list` shows the existing ones")
    emit(output_format, {"cleared": count}, f"{count} cleared")


def _rule_text(rule: dict[str, Any]) -> str:
    fields = [f"{name}={rule[name]}" for name in _SHOWN if rule[name] not in (None, False, 0)]
    state = ", spent" if rule["spent"] else ""
    return f"{rule['id']}: {rule['api']} {' '.join(fields)} ({rule['hits']} hits{state})"
