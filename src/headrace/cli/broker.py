"""headrace broker: start, stop, status, repair, faults."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.cli.broker_control import call, data_dir_option, default_data_dir, is_alive
from headrace.cli.broker_start import start
from headrace.cli.errors import EXIT_FAILED, CommandError, command_errors
from headrace.cli.output import debug_option, emit, format_option
from headrace.client.text_formats import format_duration_ms

STOP_SECONDS_MAX = 40.0
"""Slightly more than a broker's own limit for a clean stop."""
LEADERLESS_SHOWN_MAX = 20
STATISTICS_SHOWN_MAX = 10
_POLL_SECONDS = 0.02
_FAULT_FIELDS = (
    "topic",
    "client_id",
    "error",
    "delay_ms",
    "drop",
    "close",
    "crash",
    "when",
    "count",
    "probability",
    "seed",
)


@click.group()
def broker() -> None:
    """Run a Kafka broker on this machine, and inject faults."""


broker.add_command(start)


@broker.command()
@data_dir_option
@format_option
@debug_option
@command_errors
def status(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Show whether a broker runs on a data folder, its address and its problems.

    \b
    Exit codes: 0 it runs; 1 it does not respond; 2 invalid usage; 3 no broker runs on the data folder.
    """
    facts = call(data_dir, "status")
    emit(output_format, facts, "\n".join(_status_lines(facts)))


def _status_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"running for {format_duration_ms(facts['uptime_ms'])}: pid {facts['pid']}, version {facts['version']}"
    yield f"bootstrap.servers={facts['bootstrap']}"
    yield f"data in {facts['data_dir']}"
    yield (
        f"{facts['topics']} topics, {facts['partitions']} partitions, {facts['connections']} connections, "
        f"{facts['faults']} faults"
    )
    problem = (facts.get("catalog") or {}).get("problem")
    if problem:
        yield f"the controller's catalog is rejected: {problem}"
    for row in facts.get("brokers", ()):
        yield f"broker {row['node_id']}: {_process_text(row)}"
        if row.get("catalog_problem"):
            yield f"broker {row['node_id']}: the controller's catalog is rejected: {row['catalog_problem']}"
    if facts.get("controller"):
        yield f"controller: {_process_text(facts['controller'])}"
    leaderless = [str(row["text"]) for row in facts.get("leaderless", ())]
    yield from leaderless[:LEADERLESS_SHOWN_MAX]
    if len(leaderless) > LEADERLESS_SHOWN_MAX:
        yield f"{len(leaderless) - LEADERLESS_SHOWN_MAX} more partitions have no leader; --format json lists all"
    for stray in facts.get("strays", ()):
        yield f"stray folder, kept: {stray['folder']}: {stray['reason']}"
    yield from _statistics_lines(facts)
    for name, count in facts.get("task_failures", {}).items():
        yield f"background task {name} failed {count} times: check the log, and report this"
    for text in facts.get("damaged", ()):
        yield f"damaged: {text}"


def _statistics_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the busiest types of requests and topics, with the rates and times of the last minute."""
    requests = sorted(facts.get("request_statistics", ()), key=lambda row: -row["requests"])
    if requests:
        yield f"{'request':28}{'total':>12}{'per s':>12}{'failed':>10}{'mean ms':>10}{'max ms':>10}"
    for row in requests[:STATISTICS_SHOWN_MAX]:
        times = f"{row['mean_ms']:>10,.2f}{row['max_ms']:>10,.2f}"
        yield f"{row['api']:28}{row['requests']:>12,}{row['requests_per_s']:>12,.1f}{row['failed']:>10,}{times}"
    topics = sorted(facts.get("topic_statistics", ()), key=lambda row: -row["bytes_in"] - row["bytes_out"])
    if topics:
        yield f"{'topic':28}{'records in':>12}{'per s':>12}{'failed':>10}{'MB in':>10}{'MB out':>10}"
    for row in topics[:STATISTICS_SHOWN_MAX]:
        failed, sizes = row["failed_produces"] + row["failed_fetches"], f"{row['bytes_in'] / 1e6:>10,.1f}"
        sizes += f"{row['bytes_out'] / 1e6:>10,.1f}"
        yield f"{row['topic']:28}{row['records_in']:>12,}{row['records_in_per_s']:>12,.1f}{failed:>10,}{sizes}"


def _process_text(row: Mapping[str, object]) -> str:
    state = f"pid {row['pid']}" if row["alive"] else "down"
    return f"{row['bootstrap']}, {state}, data in {row['data_dir']}"


@broker.command()
@data_dir_option
@click.option(
    "--from",
    "sources",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Data folder (or catalog.journal) of another broker of the cluster, to copy the catalog from; repeatable, the "
    "newest one is used.",
)
@click.option(
    "--accept",
    metavar="TOPIC-PARTITION",
    multiple=True,
    help="Folder whose records belong to the topic of its name, despite its partition.metadata; repeatable.",
)
@click.option("--yes", "apply", is_flag=True, help="Apply the actions. [default: only show them]")
@format_option
@debug_option
@command_errors
def repair(
    *,
    data_dir: Path | None,
    sources: tuple[Path, ...],
    accept: tuple[str, ...],
    apply: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Repair a data folder whose catalog is damaged or lost, while no broker runs on it.

    Shows the problems, the losses and the actions; --yes applies the actions, and keeps a copy of the previous
    catalog.journal. No records are deleted. For a single broker, topics missing in the catalog are restored from their
    folders; in a cluster, --from copies the catalog from another broker.

    \b
    Exit codes: 0 nothing to do, or repaired; 1 actions need --yes, or failure; 2 invalid usage.
    """
    # Imported here: the other commands should not load the broker.
    from headrace.broker.repair import repair as repair_folder

    folder = (data_dir or default_data_dir()).absolute()
    plan, copy = repair_folder(folder, [source.absolute() for source in sources], accept, apply=apply)
    facts = {
        "data_dir": str(folder),
        "problems": plan.problems,
        "lost": plan.lost,
        "actions": plan.actions,
        "applied": apply and bool(plan.actions),
        "copy": None if copy is None else str(copy),
    }
    lines = [f"problem: {text}" for text in plan.problems]
    lines += [f"lost: {text}" for text in plan.lost]
    lines += [f"{'done' if apply else 'to do'}: {text}" for text in plan.actions]
    if copy is not None:
        lines.append(f"copy of the previous journal: {copy}")
    if not plan.actions:
        lines.append(f"{folder}: nothing to do")
    elif not apply:
        lines.append("nothing was changed; pass --yes to apply")
    emit(output_format, facts, "\n".join(lines))
    if plan.actions and not apply:
        raise SystemExit(EXIT_FAILED)


@broker.command()
@data_dir_option
@format_option
@debug_option
@command_errors
def stop(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Stop the broker that runs on a data folder, cleanly.

    \b
    Exit codes: 0 stopped; 1 failed to stop; 2 invalid usage; 3 no broker runs on the data folder.
    """
    pid = int(call(data_dir, "status")["pid"])
    call(data_dir, "stop")
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while is_alive(pid):
        if time.monotonic() > deadline:
            raise CommandError(
                f"timed out after {STOP_SECONDS_MAX:g} s waiting for the broker to stop (pid {pid}); end it with "
                f"`kill {pid}`"
            )
        time.sleep(_POLL_SECONDS)
    emit(output_format, {"stopped": pid}, f"the broker (pid {pid}) has stopped")


# -- faults ----------------------------------------------------------------------------------------


@broker.group()
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
    fields = [f"{name}={rule[name]}" for name in _FAULT_FIELDS if rule[name] not in (None, False, 0)]
    state = ", spent" if rule["spent"] else ""
    return f"{rule['id']}: {rule['api']} {' '.join(fields)} ({rule['hits']} hits{state})"
