"""The options of a topic, and what can be changed of it: options, partitions, records, all of it."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind, TopicPartition
from headrace.client.admin.topics import TO_THE_END
from headrace.ui.actions import action_button, button, run_action
from headrace.ui.collector import Feed
from headrace.ui.fields import TextField, form, whole_number
from headrace.ui.parts import Problem, section
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.topic_watch import options_feed
from headrace.ui.view import View

OPTION_COLUMNS = (
    Column("name", "Option", "mono", sortable=True),
    Column("value", "Value", "mono"),
    Column("source", "Comes from", sortable=True),
    Column("reset", "", "action"),
)
OPTION_ROWS = 10


def options_section(view: View, name: str) -> ServerTable:
    """All options of a topic, and a form to set one."""
    feed = options_feed(view.cluster, name)
    with section("Options"):
        if not view.read_only:
            _option_form(view, name)
        table = ServerTable(
            "Options",
            OPTION_COLUMNS if not view.read_only else OPTION_COLUMNS[:-1],
            lambda query: _options(feed, query),
            row_key="name",
            empty="Nothing is known of its options yet.",
            search="options",
            page_rows=OPTION_ROWS,
        )
        problem = Problem()
        table.on_action("reset", lambda row: _reset(view, problem, name, str(row["name"])))
    return table


def _options(feed: Feed[list[dict[str, Any]]], query: Query) -> Rows:
    entries = feed.look()
    if entries is None:
        return Rows([], 0, feed.trouble.text if feed.trouble else None)

    def row(entry: dict[str, Any]) -> Row:
        return {
            "name": entry["name"],
            "value": "(secret)" if entry["value"] is None else entry["value"],
            "source": "this topic" if not entry["is_default"] else entry["source"].replace("_", " "),
            "reset": "" if entry["is_default"] else "Back to the default",
        }

    rows = paged(
        query,
        sorted(entries, key=lambda entry: entry["is_default"]),
        row,
        keys={"name": lambda entry: entry["name"], "source": lambda entry: entry["source"]},
        text=lambda entry: f"{entry['name']} {entry['value']}",
    )
    return rows._replace(problem=feed.trouble.text if feed.trouble else None)


async def _reset(view: View, problem: Problem, topic: str, option: str) -> None:
    await run_action(
        view,
        problem,
        lambda admin: _set_option(admin, topic, option, None),
        what="Back to the default",
        done=f"{option} is back at its default",
        confirm=f"Set {option} of topic {topic} back to its default? What it keeps may change at once.",
    )


def _option_form(view: View, topic: str) -> None:
    problem = Problem()
    with form("Set an option"):
        name = TextField("Option", placeholder="retention.ms", wide=True)
        value = TextField("Value", wide=True)

        async def change() -> None:
            option, text = name.value.strip(), value.value.strip()
            await run_action(
                view,
                problem,
                lambda admin: _set_option(admin, topic, option, text),
                what="Set the option",
                done=f"{option} is {text}",
            )

        button("Set the option", change).classes("hr-primary")


def _set_option(admin: AdminClient, topic: str, option: str, value: str | None) -> bool:
    admin.alter_configs({ConfigResource(ResourceKind.TOPIC, topic): {option: value}})
    return True


def changes_section(view: View, name: str) -> None:
    with section("Changes"):
        problem = Problem()
        with form("Add partitions"):
            count = TextField("Partitions in all", kind="number")

            async def grow() -> None:
                def do(admin: AdminClient) -> bool:
                    admin.create_partitions({name: whole_number(count.value, "partitions")})
                    return True

                await run_action(
                    view,
                    problem,
                    do,
                    what="Add partitions",
                    done=f"Topic {name} has {count.value} partitions",
                    confirm=f"Let topic {name} have {count.value} partitions? There is no way back, and keys may go to "
                    "other partitions than before.",
                )

            button("Add partitions", grow)
        with ui.element("div").classes("hr-buttons hr-above"):
            action_button(
                view,
                "Delete all records",
                lambda admin: _purge(admin, name),
                confirm=f"Delete all records of topic {name}? This cannot be undone.",
                done=f"The records of {name} are deleted",
            )
            action_button(
                view,
                "Delete the topic",
                lambda admin: _delete(admin, name),
                confirm=f"Delete topic {name} with all its records? This cannot be undone.",
                typed=name,
                done=f"Topic {name} is deleted",
                after=lambda _: ui.navigate.to("/topics"),
            )


def _purge(admin: AdminClient, name: str) -> bool:
    partitions = admin.describe_topics([name])[name].partitions
    admin.delete_records({TopicPartition(name, info.partition): TO_THE_END for info in partitions})
    return True


def _delete(admin: AdminClient, name: str) -> bool:
    admin.delete_topics([name])
    return True
