"""headrace group: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from headrace.cli.confirming import is_confirmed, yes_option
from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import (
    CommandError,
    NotFoundError,
    WrongUsageError,
    command_errors,
    debug_option,
    emit,
    format_option,
)
from headrace.cli.tables import table
from headrace.client.facts.times import duration_ms
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient
    from headrace.client.facts.groups import GroupFacts


@click.group()
def group() -> None:
    """Look at groups and their lag, reset their offsets, delete them.

    \b
    Exit codes of all of them: 0 done; 1 it failed; 2 wrong usage; 3 there is no such group, or no broker;
    130 interrupted.
    """


@group.command(name="list")
@click.option("--state", "states", multiple=True, metavar="NAME", help="Only these: Stable, Empty, …; repeatable.")
@connection_options
@format_option
@debug_option
@command_errors
def list_(connection: Connection, states: tuple[str, ...], output_format: str, debug: bool) -> None:
    """Show all groups: state, type and protocol.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        groups = admin.list_groups(states)
    facts = [
        {"group": one.group_id, "state": one.state, "type": one.type.lower(), "protocol": one.protocol_type}
        for one in groups
    ]
    rows = [tuple(fact.values()) for fact in facts]
    emit(output_format, {"groups": facts}, table(("group", "state", "type", "protocol"), rows) if rows else "no groups")


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--no-time", is_flag=True, help="Leave out the lag in time, which takes a fetch.")
@connection_options
@format_option
@debug_option
@command_errors
def describe(connection: Connection, names: tuple[str, ...], no_time: bool, output_format: str, debug: bool) -> None:
    """Show members, committed offsets, and how far a GROUP is behind: in records and in time.

    The lag in time is the age of the first record that was not consumed: 0 if there is none. Records that were
    deleted before they were read no longer count. With several groups, JSON has a line for each of them.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such group, or no broker; 130 interrupted.
    """
    from headrace.client.facts.lag_times import LagTimes

    with connection.admin() as admin:
        for name in names:
            facts = _found(admin, name)
            if not no_time:
                LagTimes().fill(facts.partitions, admin)
            emit(output_format, facts.to_json(), _described(facts))


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--to", metavar="WHERE", help="earliest, latest, an offset, or @TIME: the first record of then or later.")
@click.option("--shift", type=int, metavar="N", help="Forward by N offsets, or back with a negative N.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Only these, as orders or orders:0,2; repeatable. [default: all that the group has committed]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@connection_options
@format_option
@debug_option
@command_errors
def reset(
    connection: Connection,
    name: str,
    to: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Set the committed offsets of a GROUP that has no members at the moment.

    A table shows what changes; then it asks, at a terminal, or does it, with --yes. Otherwise nothing is changed.
    Offsets stay within what a partition has. A group that does not exist yet is made, if --topic is given.

    \b
    headrace group reset billing --to earliest
    headrace group reset billing --to @2026-11-16T08:00:00Z --topic orders --yes
    headrace group reset billing --shift -100 --topic orders:0,2 --yes

    \b
    Exit codes: 0 done, or nothing was to be done; 1 it failed, as when the group has members; 2 wrong usage;
    3 there is no such group, topic or broker; 130 interrupted.
    """
    from headrace.cli.group_reset import parse_target
    from headrace.cli.partitions import named_partitions
    from headrace.client.facts.groups import look_up
    from headrace.client.facts.resets import plan

    target = parse_target(to, shift)
    with connection.admin() as admin:
        found = look_up(admin, name)
        if found is None and not topics:
            raise no_such_group(name)
        changes = plan(admin, name, found, target, named_partitions(admin, topics) if topics else None)
        facts = [change.to_json() for change in changes]
        rows = [(c.at.topic, c.at.partition, c.before, c.after, c.moved) for c in changes]
        text = table(("topic", "partition", "before", "after", "moved"), rows)
        if output_format == "text":
            click.echo(text)
        applied = not dry_run and _wants_reset(name, yes)
        if applied:
            admin.alter_group_offsets(name, {change.at: change.after for change in changes})
    said = f"{len(changes)} offsets set" if applied else "nothing was changed"
    hint = "" if applied or dry_run else "; --yes applies it"
    emit(output_format, {"group": name, "applied": applied, "offsets": facts}, said + hint)


def _wants_reset(name: str, yes: bool) -> bool:
    """A table that nobody confirms is a dry run: unlike a deletion it has shown something."""
    try:
        return is_confirmed(f"Set these offsets of group {name!r}?", yes)
    except WrongUsageError:
        return False


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@connection_options
@format_option
@debug_option
@command_errors
def delete(connection: Connection, names: tuple[str, ...], yes: bool, output_format: str, debug: bool) -> None:
    """Delete groups that have no members, with all they have committed.

    At a terminal it asks first; elsewhere --yes is needed.

    \b
    Exit codes: 0 done; 1 it failed, as when a group has members, or the answer was no; 2 wrong usage;
    3 there is no such group, or no broker; 130 interrupted.
    """
    what = f"group {names[0]!r}" if len(names) == 1 else f"{len(names)} groups"
    if not is_confirmed(f"Delete {what} and all they have committed?" if len(names) > 1 else f"Delete {what}?", yes):
        raise CommandError("nothing was deleted")
    with connection.admin() as admin:
        for name in names:
            try:
                admin.delete_groups([name])
            except BrokerError as error:
                raise _undeletable(admin, name, error) from error
    emit(output_format, {"deleted": list(names)}, f"{what} deleted")


def _undeletable(admin: AdminClient, name: str, error: BrokerError) -> Exception:
    if error.code == Code.NON_EMPTY_GROUP:
        return CommandError(f"group {name!r} has {_found(admin, name).members_text}: stop them first, then delete it")
    if error.code == Code.GROUP_ID_NOT_FOUND:
        return no_such_group(name)
    return error


def _found(admin: AdminClient, name: str) -> GroupFacts:
    from headrace.client.facts.groups import look_up

    facts = look_up(admin, name)
    if facts is None:
        raise no_such_group(name)
    return facts


def no_such_group(name: str) -> NotFoundError:
    return NotFoundError(f"there is no group {name!r}; `headrace group list` shows those there are")


def _described(facts: GroupFacts) -> str:
    behind = f"{facts.lag:,} records behind"
    if facts.lag_ms is not None:
        behind += f", {duration_ms(facts.lag_ms)}"
    head = f"{facts.name}: {facts.state}, {facts.type}{', ' + facts.assignor if facts.assignor else ''}; {behind}"
    return "\n".join([head, *_partition_lines(facts), *_member_lines(facts)])


def _partition_lines(facts: GroupFacts) -> Iterable[str]:
    if not facts.partitions:
        yield "nothing is committed, and no partition is assigned"
        return
    heads = ("topic", "partition", "committed", "end", "lag", "behind", "client")
    yield table(
        heads,
        (
            (
                one.at.topic,
                one.at.partition,
                one.committed,
                one.end if one.end is not None else "unknown",
                one.lag,
                duration_ms(one.lag_ms),
                None if one.member is None else one.member.client_id,
            )
            for one in facts.partitions
        ),
    )


def _member_lines(facts: GroupFacts) -> Iterable[str]:
    if facts.members is None:
        yield f"members: not shown, for it is a group of the kind {facts.type}"
    elif not facts.members:
        yield "no members"
    else:
        rows = [
            (member.client_id, member.host, member.instance_id, len(member.partitions), member.member_id)
            for member in facts.members
        ]
        yield table(("client", "host", "instance", "partitions", "member"), rows)
