"""headrace group: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import emit, render_table
from headrace.cli.shared_options import confirm, parse_time_ms, parse_topic_partitions, yes_option
from headrace.client.text_formats import format_duration_ms
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient
    from headrace.client.queries import groups
    from headrace.client.queries.groups import GroupOverview, ResetTarget
else:
    groups = LazyModule("headrace.client.queries.groups")


@click.group()
def group() -> None:
    """Show consumer groups and their lag, reset offsets, delete groups.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such group, or no broker;
    130 interrupted.
    """


@group.command(name="list")
@click.option("--state", "states", multiple=True, metavar="NAME", help="Only this state: Stable, Empty, …; repeatable.")
@cluster_command
def list_(connection: ClusterConnection, states: tuple[str, ...], output_format: str) -> None:
    """List all groups: state, type and protocol.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        listings = admin.list_groups(states)
    facts = [
        {
            "group": listing.group_id,
            "state": listing.state,
            "type": listing.type.lower(),
            "protocol": listing.protocol_type,
        }
        for listing in listings
    ]
    rows = [tuple(fact.values()) for fact in facts]
    text = render_table(("group", "state", "type", "protocol"), rows) if rows else "no groups"
    emit(output_format, {"groups": facts}, text)


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--no-time", is_flag=True, help="Do not show the lag in time, which takes a fetch.")
@cluster_command
def describe(
    connection: ClusterConnection,
    names: tuple[str, ...],
    no_time: bool,
    output_format: str,
) -> None:
    """Show the members, committed offsets and lag of a GROUP, in records and in time.

    The lag in time is the age of the first record that was not consumed, or 0 if there is none. Records that were
    deleted before they were read do not count. With several groups, JSON has a line for each.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such group, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        for name in names:
            facts = _existing_group(admin, name)
            if not no_time:
                groups.LagTimes().fill(facts.partitions, admin)
            emit(output_format, facts.to_json(), _description(facts))


@group.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--to", metavar="OFFSET", help="earliest, latest, an offset, or @TIME: the first record at or after that time."
)
@click.option("--shift", type=int, metavar="N", help="Move by N offsets; a negative N moves back.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Only these, such as orders or orders:0,2; repeatable. [default: all partitions with a committed offset]",
)
@click.option("--dry-run", is_flag=True, help="Only show the changes.")
@yes_option
@cluster_command
def reset(
    *,
    connection: ClusterConnection,
    name: str,
    to: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output_format: str,
) -> None:
    """Set the committed offsets of a GROUP without active members.

    Shows a table of the changes, and applies them after confirmation at a terminal, or with --yes. Otherwise nothing
    is changed. Offsets are limited to the range of the partition. With --topic, a new group can be created.

    \b
    headrace group reset billing --to earliest
    headrace group reset billing --to @2026-11-16T08:00:00Z --topic orders --yes
    headrace group reset billing --shift -100 --topic orders:0,2 --yes

    \b
    Exit codes: 0 success, or nothing to change; 1 failure, for example because the group has members;
    2 invalid usage; 3 no such group or topic, or no broker; 130 interrupted.
    """
    target = _parse_target(to, shift)
    with connection.admin() as admin:
        current = groups.find_group(admin, name)
        if current is None and not topics:
            raise _unknown_group(name)
        partitions = parse_topic_partitions(admin, topics) if topics else None
        changes = groups.plan_reset(admin, name, current, target, partitions)
        facts = [change.to_json() for change in changes]
        if output_format == "text":
            rows = [(c.tp.topic, c.tp.partition, c.before, c.after, c.moved) for c in changes]
            click.echo(render_table(("topic", "partition", "before", "after", "moved"), rows))
        applied = not dry_run and _confirm_reset(name, yes)
        if applied:
            admin.alter_group_offsets(name, {change.tp: change.after for change in changes})
    summary = f"{len(changes)} offsets set" if applied else "nothing was changed"
    hint = "" if applied or dry_run else "; pass --yes to apply"
    emit(output_format, {"group": name, "applied": applied, "offsets": facts}, summary + hint)


def _parse_target(to: str | None, shift: int | None) -> ResetTarget:
    if (to is None) == (shift is None):
        raise InvalidUsageError("pass either --to or --shift")
    if to is None:
        return groups.ResetTarget(shift=shift)
    if to in ("earliest", "latest"):
        return groups.ResetTarget(end=to)
    if to.startswith("@"):
        return groups.ResetTarget(time_ms=parse_time_ms(to[1:], "--to"))
    if not to.isdecimal():
        raise InvalidUsageError(f"invalid --to: expected earliest, latest, an offset or @TIME, got {to!r}")
    return groups.ResetTarget(offset=int(to))


def _confirm_reset(name: str, yes: bool) -> bool:
    """Confirm; without a terminal the reset is a dry run, not an error, because the table was shown."""
    try:
        return confirm(f"Set these offsets of group {name!r}?", yes)
    except InvalidUsageError:
        return False


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@cluster_command
def delete(connection: ClusterConnection, names: tuple[str, ...], yes: bool, output_format: str) -> None:
    """Delete groups without active members, and their committed offsets.

    Asks for confirmation at a terminal; elsewhere --yes is required.

    \b
    Exit codes: 0 success; 1 failure, for example because a group has members, or not confirmed; 2 invalid usage;
    3 no such group, or no broker; 130 interrupted.
    """
    label = f"group {names[0]!r}" if len(names) == 1 else f"{len(names)} groups"
    if not confirm(f"Delete {label} and all committed offsets?" if len(names) > 1 else f"Delete {label}?", yes):
        raise CommandError("nothing was deleted")
    with connection.admin() as admin:
        for name in names:
            try:
                admin.delete_groups([name])
            except BrokerError as error:
                raise _delete_error(admin, name, error) from error
    emit(output_format, {"deleted": list(names)}, f"{label} deleted")


def _delete_error(admin: AdminClient, name: str, error: BrokerError) -> Exception:
    if error.code == Code.NON_EMPTY_GROUP:
        members = _existing_group(admin, name).members_text
        return CommandError(f"group {name!r} has {members}: stop them before you delete it")
    if error.code == Code.GROUP_ID_NOT_FOUND:
        return _unknown_group(name)
    return error


def _existing_group(admin: AdminClient, name: str) -> GroupOverview:
    facts = groups.find_group(admin, name)
    if facts is None:
        raise _unknown_group(name)
    return facts


def _unknown_group(name: str) -> ResourceNotFoundError:
    return ResourceNotFoundError(f"group {name!r} does not exist; `headrace group list` shows the existing ones")


def _description(facts: GroupOverview) -> str:
    lag = f"{facts.lag:,} records behind"
    if facts.lag_ms is not None:
        lag += f", {format_duration_ms(facts.lag_ms)}"
    head = f"{facts.name}: {facts.state}, {facts.type}{', ' + facts.assignor if facts.assignor else ''}"
    if facts.epoch is not None:
        head += f", epoch {facts.epoch}"
    head += f"; {lag}"
    return "\n".join([head, *_partition_lines(facts), *_member_lines(facts)])


def _partition_lines(facts: GroupOverview) -> Iterable[str]:
    if not facts.partitions:
        yield "no committed offsets and no assigned partitions"
        return
    rows = [
        (
            partition.tp.topic,
            partition.tp.partition,
            partition.committed,
            partition.end if partition.end is not None else "unknown",
            partition.lag,
            format_duration_ms(partition.lag_ms),
            None if partition.member is None else partition.member.client_id,
        )
        for partition in facts.partitions
    ]
    yield render_table(("topic", "partition", "committed", "end", "lag", "behind", "client"), rows)


def _member_lines(facts: GroupOverview) -> Iterable[str]:
    if facts.members is None:
        yield f"members: not shown for groups of type {facts.type}"
    elif not facts.members:
        yield "no members"
    else:
        rows = [
            (
                member.client_id,
                member.host,
                member.instance_id,
                member.protocol,
                member.epoch,
                len(member.partitions),
                facts.lag_of(member),
                member.member_id,
            )
            for member in facts.members
        ]
        yield render_table(("client", "host", "instance", "protocol", "epoch", "partitions", "lag", "member"), rows)
