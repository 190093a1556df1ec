"""headrace topic: list, create, describe, alter, config, delete."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import emit, render_table
from headrace.cli.shared_options import confirm, parse_key_value, yes_option
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.client.admin import configs as config_admin
    from headrace.client.admin import topics as topic_admin
    from headrace.client.queries import topics as topic_queries
else:
    config_admin = LazyModule("headrace.client.admin.configs")
    topic_admin = LazyModule("headrace.client.admin.topics")
    topic_queries = LazyModule("headrace.client.queries.topics")

COUNT_MAX = 2**31 - 1
_REPLICATION_MAX = 2**15 - 1

names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
name_argument = click.argument("name", metavar="TOPIC")


@click.group()
def topic() -> None:
    """List, create, describe, alter and delete topics.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such topic, or no broker;
    130 interrupted.
    """


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets.")
@cluster_command
def list_(connection: ClusterConnection, internal: bool, output_format: str) -> None:
    """List all topics: partitions, replication factor, and bytes on disk (of one replica).

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        facts = topic_queries.topic_summaries(admin, internal=internal)
    rows = [(f["topic"], f["partitions"], f["replication_factor"], f["size_bytes"]) for f in facts]
    text = render_table(("topic", "partitions", "replication", "bytes"), rows) if rows else "no topics"
    emit(output_format, {"topics": facts}, text)


@topic.command()
@names_argument
@click.option(
    "-p", "--partitions", type=click.IntRange(1, COUNT_MAX), help="Number of partitions. [default: the broker's]"
)
@click.option(
    "-r", "--replication-factor", type=click.IntRange(1, _REPLICATION_MAX), help="Replicas. [default: the broker's]"
)
@click.option("-c", "--topic-config", "configs", metavar="KEY=VALUE", multiple=True, help="Topic option; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Accept topics that exist, and leave them unchanged.")
@cluster_command
def create(
    *,
    connection: ClusterConnection,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output_format: str,
) -> None:
    """Create topics.

    \b
    headrace topic create orders -p 6 -c retention.ms=86400000 -c cleanup.policy=compact

    \b
    Exit codes: 0 the topics exist; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    options = dict(parse_key_value(text, "-c") for text in configs)
    created: list[str] = []
    default = topic_admin.BROKERS_DEFAULT
    with connection.admin() as admin:
        for name in dict.fromkeys(names):
            new = topic_admin.NewTopic(name, partitions or default, replication_factor or default, options)
            try:
                admin.create_topics([new])
                created.append(name)
            except BrokerError as error:
                before = f" (created before the error: {', '.join(created)})" if created else ""
                if error.code != Code.TOPIC_ALREADY_EXISTS:
                    raise CommandError(f"creating topic {name!r} failed: {error}{before}") from error
                if not if_not_exists:
                    raise CommandError(
                        f"topic {name!r} already exists; --if-not-exists accepts that{before}"
                    ) from error
    existed = [name for name in names if name not in created]
    lines = [f"created {name}" for name in created] + [f"{name} already exists" for name in existed]
    emit(output_format, {"created": created, "existed": existed}, "\n".join(lines))


@topic.command()
@names_argument
@cluster_command
def describe(connection: ClusterConnection, names: tuple[str, ...], output_format: str) -> None:
    """Show the partitions of a TOPIC, and its options that are not defaults.

    The offsets are the first one and the one of the next record; bytes are those on the leader's disk. A partition
    without a leader, or whose leader does not return its offsets within 5 s, is shown as offline. With several topics,
    JSON has a line for each.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such topic, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        for name in names:
            partition_count(admin, name)
            facts = topic_queries.describe_topic(admin, name)
            emit(output_format, facts, _description(facts))


def _description(facts: dict[str, Any]) -> str:
    headings = ("partition", "leader", "replicas", "isr", "start", "end", "bytes")
    rows = [
        (
            partition["partition"],
            _leader_text(partition),
            ",".join(map(str, partition["replicas"])),
            ",".join(map(str, partition["isr"])),
            partition["start_offset"],
            partition["end_offset"],
            partition["size_bytes"],
        )
        for partition in facts["partitions"]
    ]
    kind = ", internal" if facts["internal"] else ""
    lines = [f"{facts['topic']} (id {facts['topic_id']}{kind})", render_table(headings, rows)]
    lines += [f"{name}={value}" for name, value in facts["configs"].items()]
    return "\n".join(lines)


def _leader_text(partition: dict[str, Any]) -> str:
    leader = "none" if partition["leader"] is None else str(partition["leader"])
    return f"{leader} (offline)" if partition["offline"] else leader


@topic.command()
@name_argument
@click.option("--partitions", type=click.IntRange(1, COUNT_MAX), required=True, help="New number of partitions.")
@cluster_command
def alter(connection: ClusterConnection, name: str, partitions: int, output_format: str) -> None:
    """Add partitions to a TOPIC. Existing records are not moved, but keys may map to other partitions from then on.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such topic, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        before = partition_count(admin, name)
        if partitions == before:
            emit(output_format, {"topic": name, "partitions": before}, f"{name} already has {before} partitions")
            return
        if partitions < before:
            raise CommandError(
                f"topic {name!r} has {before} partitions; partitions cannot be removed, got --partitions {partitions}"
            )
        admin.create_partitions({name: partitions})
    emit(output_format, {"topic": name, "partitions": partitions}, f"{name} has {partitions} partitions, had {before}")


@topic.command()
@name_argument
@click.option("--set", "to_set", metavar="KEY=VALUE", multiple=True, help="Set an option; repeatable.")
@click.option("--delete", "to_delete", metavar="KEY", multiple=True, help="Reset an option to its default; repeatable.")
@click.option("--all", "show_all", is_flag=True, help="Also show options with their defaults.")
@cluster_command
def config(
    *,
    connection: ClusterConnection,
    name: str,
    to_set: tuple[str, ...],
    to_delete: tuple[str, ...],
    show_all: bool,
    output_format: str,
) -> None:
    """Show the options of a TOPIC and where they come from; --set and --delete change them first.

    \b
    headrace topic config orders --set retention.ms=3600000 --delete cleanup.policy

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such topic, or no broker; 130 interrupted.
    """
    changes: dict[str, str | None] = dict(parse_key_value(text, "--set") for text in to_set)
    if both := changes.keys() & {*to_delete}:
        raise InvalidUsageError(f"--set and --delete both name {', '.join(sorted(both))}")
    changes |= dict.fromkeys(to_delete)
    with connection.admin() as admin:
        partition_count(admin, name)
        if changes:
            admin.alter_configs({config_admin.ConfigResource(config_admin.ResourceKind.TOPIC, name): changes})
        entries = topic_queries.topic_configs(admin, name)
    shown = entries if show_all else [entry for entry in entries if not entry["is_default"] or entry["name"] in changes]
    rows = [(entry["name"], entry["value"], entry["source"]) for entry in shown]
    defaults_text = "all options have their defaults; --all shows them"
    text = render_table(("option", "value", "source"), rows) if rows else defaults_text
    emit(output_format, {"topic": name, "configs": shown}, text)


@topic.command()
@names_argument
@click.option("--if-exists", is_flag=True, help="Accept topics that do not exist.")
@yes_option
@cluster_command
def delete(
    *,
    connection: ClusterConnection,
    names: tuple[str, ...],
    if_exists: bool,
    yes: bool,
    output_format: str,
) -> None:
    """Delete topics and their records. Asks for confirmation at a terminal; elsewhere --yes is required.

    \b
    Exit codes: 0 deleted; 1 failure, or not confirmed; 2 invalid usage; 3 no such topic, or no broker;
    130 interrupted.
    """
    with connection.admin() as admin:
        existing = {*admin.list_topics(internal=True)}
        missing = [name for name in names if name not in existing]
        if missing and not if_exists:
            raise _unknown_topic(missing[0], existing)
        to_delete = [name for name in dict.fromkeys(names) if name in existing]
        if to_delete and not confirm(f"Delete {', '.join(to_delete)} and all records?", yes):
            raise CommandError("nothing was deleted")
        if to_delete:
            admin.delete_topics(to_delete)
    lines = [f"deleted {name}" for name in to_delete] + [f"{name} does not exist" for name in missing]
    emit(output_format, {"deleted": to_delete, "missing": missing}, "\n".join(lines))


def partition_count(admin: topic_admin.TopicAdmin, name: str) -> int:
    """Return the number of partitions of a topic; raise ResourceNotFoundError if it does not exist."""
    try:
        return len(admin.describe_topics([name])[name].partitions)
    except BrokerError as error:
        if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise _unknown_topic(name, set(admin.list_topics(internal=True))) from error


def _unknown_topic(name: str, existing: set[str]) -> ResourceNotFoundError:
    near = difflib.get_close_matches(name, existing, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`headrace topic list` shows the existing ones"
    return ResourceNotFoundError(f"topic {name!r} does not exist; {hint}")
