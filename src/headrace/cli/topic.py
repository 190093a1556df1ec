"""headrace topic: list, create, describe, alter, config, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from headrace.cli.settings import key_value
from headrace.cli.tables import table
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.client.admin.topics import TopicAdmin

COUNT_MAX = 2**31 - 1
_REPLICATION_MAX = 2**15 - 1

names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
name_argument = click.argument("name", metavar="TOPIC")


@click.group()
def topic() -> None:
    """List, make, look at, change and delete topics.

    \b
    Exit codes of all of them: 0 done; 1 it failed; 2 wrong usage; 3 there is no such topic, or no broker;
    130 interrupted.
    """


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Those of the brokers' own too, as __consumer_offsets.")
@connection_options
@format_option
@debug_option
@command_errors
def list_(connection: Connection, internal: bool, output_format: str, debug: bool) -> None:
    """Show all topics: partitions, replicas, and bytes on disk (of one replica).

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 no broker; 130 interrupted.
    """
    from headrace.client.facts.topics import listed

    with connection.admin() as admin:
        facts = listed(admin, internal=internal)
    rows = [(f["topic"], f["partitions"], f["replication_factor"], f["size_bytes"]) for f in facts]
    text = table(("topic", "partitions", "replication", "bytes"), rows) if rows else "no topics"
    emit(output_format, {"topics": facts}, text)


@topic.command()
@names_argument
@click.option("-p", "--partitions", type=click.IntRange(1, COUNT_MAX), help="[default: the broker's]")
@click.option("-r", "--replication-factor", type=click.IntRange(1, _REPLICATION_MAX), help="[default: the broker's]")
@click.option("-c", "--topic-config", "configs", metavar="KEY=VALUE", multiple=True, help="An option; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Leave one that is there as it is.")
@connection_options
@format_option
@debug_option
@command_errors
def create(
    connection: Connection,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Make topics.

    \b
    headrace topic create orders -p 6 -c retention.ms=86400000 -c cleanup.policy=compact

    \b
    Exit codes: 0 they are there; 1 it failed; 2 wrong usage; 3 no broker; 130 interrupted.
    """
    from headrace.client.admin import NewTopic
    from headrace.client.admin.topics import BROKERS_DEFAULT

    options = dict(key_value(text, "-c") for text in configs)
    created: list[str] = []
    with connection.admin() as admin:
        for name in dict.fromkeys(names):
            made = NewTopic(name, partitions or BROKERS_DEFAULT, replication_factor or BROKERS_DEFAULT, options)
            try:
                admin.create_topics([made])
                created.append(name)
            except BrokerError as error:
                if error.code != Code.TOPIC_ALREADY_EXISTS:
                    raise CommandError(f"topic {name!r} was not made: {error}{_done(created)}") from error
                if not if_not_exists:
                    raise CommandError(
                        f"topic {name!r} is there already; --if-not-exists lets that pass{_done(created)}"
                    ) from error
    there = [name for name in names if name not in created]
    lines = [f"created {name}" for name in created] + [f"{name} is there already" for name in there]
    emit(output_format, {"created": created, "existed": there}, "\n".join(lines))


def _done(created: list[str]) -> str:
    return f" (made before it: {', '.join(created)})" if created else ""


@topic.command()
@names_argument
@connection_options
@format_option
@debug_option
@command_errors
def describe(connection: Connection, names: tuple[str, ...], output_format: str, debug: bool) -> None:
    """Show the partitions of a TOPIC, and the options that differ from the defaults.

    Offsets are the first one there is and the one that the next record gets; bytes are those on the leader's disk.
    A partition without a leader, or whose leader does not give its offsets within 5 s, is shown as offline.
    With several topics, JSON has a line for each of them.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such topic, or no broker; 130 interrupted.
    """
    from headrace.client.facts.topics import described

    with connection.admin() as admin:
        for name in names:
            with_topic(admin, name)
            facts = described(admin, name)
            emit(output_format, facts, _described(facts))


def _described(facts: dict[str, Any]) -> str:
    heads = ("partition", "leader", "replicas", "isr", "start", "end", "bytes")
    rows = [
        (
            part["partition"],
            _leader_text(part),
            ",".join(map(str, part["replicas"])),
            ",".join(map(str, part["isr"])),
            part["start_offset"],
            part["end_offset"],
            part["size_bytes"],
        )
        for part in facts["partitions"]
    ]
    kind = ", internal" if facts["internal"] else ""
    lines = [f"{facts['topic']} (id {facts['topic_id']}{kind})", table(heads, rows)]
    lines += [f"{name}={value}" for name, value in facts["configs"].items()]
    return "\n".join(lines)


def _leader_text(part: dict[str, Any]) -> str:
    leader = "none" if part["leader"] is None else str(part["leader"])
    return f"{leader} (offline)" if part["offline"] else leader


@topic.command()
@name_argument
@click.option("--partitions", type=click.IntRange(1, COUNT_MAX), required=True, help="How many there are to be.")
@connection_options
@format_option
@debug_option
@command_errors
def alter(connection: Connection, name: str, partitions: int, output_format: str, debug: bool) -> None:
    """Give a TOPIC more partitions. Records that are there stay where they are, but keys may go elsewhere from now on.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such topic, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        before = with_topic(admin, name)
        if partitions == before:
            emit(output_format, {"topic": name, "partitions": before}, f"{name} has {before} partitions already")
            return
        if partitions < before:
            raise CommandError(
                f"topic {name!r} has {before} partitions, and a topic can only grow: not to {partitions}"
            )
        admin.create_partitions({name: partitions})
    emit(output_format, {"topic": name, "partitions": partitions}, f"{name} has {partitions} partitions, had {before}")


@topic.command()
@name_argument
@click.option("--set", "to_set", metavar="KEY=VALUE", multiple=True, help="Set an option; repeatable.")
@click.option("--delete", "to_delete", metavar="KEY", multiple=True, help="Back to the default; repeatable.")
@click.option("--all", "show_all", is_flag=True, help="Show all options, not only those that differ from the defaults.")
@connection_options
@format_option
@debug_option
@command_errors
def config(
    connection: Connection,
    name: str,
    to_set: tuple[str, ...],
    to_delete: tuple[str, ...],
    show_all: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Show the options of a TOPIC with where they come from; with --set or --delete, change them first.

    \b
    headrace topic config orders --set retention.ms=3600000 --delete cleanup.policy

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such topic, or no broker; 130 interrupted.
    """
    from headrace.client.admin import ConfigResource, ResourceKind
    from headrace.client.facts.topics import configs_of

    changes: dict[str, str | None] = dict(key_value(text, "--set") for text in to_set)
    if both := changes.keys() & {*to_delete}:
        raise WrongUsageError(f"--set and --delete both name {', '.join(sorted(both))}; keep one of them")
    changes |= dict.fromkeys(to_delete)
    with connection.admin() as admin:
        with_topic(admin, name)
        if changes:
            admin.alter_configs({ConfigResource(ResourceKind.TOPIC, name): changes})
        entries = configs_of(admin, name)
    shown = entries if show_all else [entry for entry in entries if not entry["is_default"] or entry["name"] in changes]
    rows = [(entry["name"], entry["value"], entry["source"]) for entry in shown]
    text = table(("option", "value", "source"), rows) if rows else "all options have their defaults; --all shows them"
    emit(output_format, {"topic": name, "configs": shown}, text)


@topic.command()
@names_argument
@click.option("--if-exists", is_flag=True, help="Let it pass if one is not there.")
@yes_option
@connection_options
@format_option
@debug_option
@command_errors
def delete(
    connection: Connection, names: tuple[str, ...], if_exists: bool, yes: bool, output_format: str, debug: bool
) -> None:
    """Delete topics and all that is in them. Asks on a terminal; elsewhere --yes is needed.

    \b
    Exit codes: 0 they are gone; 1 it failed, or the answer was no; 2 wrong usage; 3 there is no such topic, or no
    broker; 130 interrupted.
    """
    with connection.admin() as admin:
        there = {*admin.list_topics(internal=True)}
        missing = [name for name in names if name not in there]
        if missing and not if_exists:
            raise _no_topic(missing[0], there)
        wanted = [name for name in dict.fromkeys(names) if name in there]
        if wanted and not is_confirmed(f"Delete {', '.join(wanted)} and all that is in there?", yes):
            raise CommandError("nothing was deleted")
        if wanted:
            admin.delete_topics(wanted)
    lines = [f"deleted {name}" for name in wanted] + [f"{name} was not there" for name in missing]
    emit(output_format, {"deleted": wanted, "missing": missing}, "\n".join(lines))


def with_topic(admin: TopicAdmin, name: str) -> int:
    """How many partitions a topic has; it has to be there."""
    try:
        return len(admin.describe_topics([name])[name].partitions)
    except BrokerError as error:
        if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise _no_topic(name, set(admin.list_topics(internal=True))) from error


def _no_topic(name: str, there: set[str]) -> NotFoundError:
    import difflib

    near = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`headrace topic list` shows those there are."
    return NotFoundError(f"there is no topic {name!r}; {hint}")
