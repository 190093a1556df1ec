"""One topic: its partitions, who leads them, who is in sync, sizes, options; and changing them."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind, TopicPartition
from headrace.client.admin.topics import TO_THE_END
from headrace.ui import formatting
from headrace.ui.actions import action_button, button, run_action
from headrace.ui.charts import LineChart
from headrace.ui.cluster_feeds import TopicNow, options_feed, topic_feed
from headrace.ui.collector import Feed, Trouble
from headrace.ui.elements import Empty, Problem, TextField, Tile, form, section, tiles, whole_number
from headrace.ui.frame import Page, frame, topic_address
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

PARTITION_COLUMNS = (
    Column("partition", "Partition", "number", sortable=True),
    Column("leader", "Leader", "number", sortable=True),
    Column("replicas", "Replicas", "mono"),
    Column("sync", "In sync", "state"),
    Column("first", "First offset", "number"),
    Column("end", "End offset", "number", sortable=True),
    Column("held", "Held back", "number"),
    Column("rate", "Rate", "number", sortable=True),
    Column("size", "Stored", "number", sortable=True),
    Column("messages", "", "link"),
)


def sub_navigation(name: str, here: str) -> None:
    """The pages of a topic."""
    with ui.element("nav").classes("hr-tabs").props('aria-label="Pages of the topic"'):
        for label, suffix in (("Partitions", ""), ("Messages", "/messages"), ("Produce", "/produce")):
            link = ui.link(label, topic_address(name) + suffix).classes("hr-tab")
            if label == here:
                link.classes("hr-here").props('aria-current="page"')


def build(view: View) -> None:
    @ui.page("/topics/{name}")
    def topic(name: str) -> None:
        with frame(view, f"Topic {name}", "/topics") as page:
            sub_navigation(name, "Partitions")
            problem = Problem()
            missing = Empty(f"There is no topic {name}. The page “Topics” shows those there are, and makes new ones.")
            with ui.element("div") as body:
                shown = _Topic(view, name)

            def refresh() -> None:
                is_missing = is_unknown(view, name, shown.feed.trouble)
                missing.set_visibility(is_missing)
                body.set_visibility(not is_missing)
                trouble = None if is_missing else shown.feed.trouble
                problem.tell(f"Topic {name}: {trouble.text}" if trouble else None)

            page.live(refresh)
            shown.go_live(page)


def is_unknown(view: View, name: str, trouble: Trouble | None) -> bool:
    """Whether there is no such topic: nobody could tell of it, and it is not among those that are known."""
    topology = view.topology.look()
    return trouble is not None and topology is not None and name not in topology.topics


class _Topic:
    """All that is known of a topic."""

    def __init__(self, view: View, name: str) -> None:
        self.feed = topic_feed(view.cluster, name)
        self._figures = _Figures()
        with section("Partitions"):
            self._partitions = ServerTable(
                "Partitions",
                PARTITION_COLUMNS,
                lambda query: _partitions(self.feed, name, query),
                row_key="partition",
                empty="Nothing is known of this topic yet.",
                sort_by="partition",
            )
        with section("Records in"):
            self._chart = LineChart("Records in, the last 15 minutes", ["in"], "records/s")
        self._options = options_section(view, name)
        if not view.read_only:
            changes_section(view, name)

    def go_live(self, page: Page) -> None:
        page.live(self._refresh)
        page.live(self._partitions.refresh)
        page.live(self._options.refresh)

    def _refresh(self) -> None:
        now = self.feed.look()
        if now is not None:
            self._figures.refresh(now)
            self._chart.show({"in": now.written.points()})


class _Figures:
    def __init__(self) -> None:
        with tiles():
            self._records = Tile("Records kept", "by their offsets")
            self._rate = Tile("Records in")
            self._stored = Tile("Stored")
            self._replicas = Tile("Replicas")

    def refresh(self, now: TopicNow) -> None:
        partitions = now.facts["partitions"]
        kept = sum((p["end_offset"] or 0) - (p["start_offset"] or 0) for p in partitions)
        self._records.show(formatting.count(kept), "from first to end offsets")
        self._rate.show(formatting.rate(now.written.last), f"in {formatting.count(len(partitions))} partitions")
        sizes = [p["size_bytes"] for p in partitions if p["size_bytes"] is not None]
        self._stored.show(formatting.size(sum(sizes) if sizes else None), formatting.size_rate(now.stored.last))
        replicas = max((len(p["replicas"]) for p in partitions), default=0)
        self._replicas.show(formatting.count(replicas), f"id {now.facts['topic_id']}")


def _partitions(feed: Feed[TopicNow], name: str, query: Query) -> Rows:
    now = feed.look()
    if now is None:
        return Rows([], 0)

    def row(facts: dict[str, Any]) -> Row:
        number, behind = facts["partition"], [node for node in facts["replicas"] if node not in facts["isr"]]
        end, stable = facts["end_offset"], now.last_stable.get(facts["partition"])
        mark, tone = ("▲", "warn") if behind else ("✔", "good")
        if facts["leader"] is None:
            mark, tone = "✖", "bad"
        return {
            "partition": str(number),
            "leader": "none" if facts["leader"] is None else f"broker {facts['leader']}",
            "replicas": ", ".join(map(str, facts["replicas"])),
            "sync": "all" if not behind else f"without {', '.join(map(str, behind))}",
            "sync_mark": mark,
            "sync_tone": tone,
            "first": formatting.count(facts["start_offset"]),
            "end": formatting.count(end),
            "held": formatting.UNKNOWN if stable is None or end is None else formatting.count(end - stable, "records"),
            "rate": formatting.rate(now.per_partition.get(number)),
            "size": formatting.size(facts["size_bytes"]),
            "messages": "Messages",
            "messages_href": f"{topic_address(name)}/messages?partition={number}",
        }

    return paged(
        query,
        now.facts["partitions"],
        row,
        keys={
            "partition": lambda facts: facts["partition"],
            "leader": lambda facts: -1 if facts["leader"] is None else facts["leader"],
            "end": lambda facts: facts["end_offset"] or 0,
            "rate": lambda facts: now.per_partition.get(facts["partition"], 0.0),
            "size": lambda facts: facts["size_bytes"] or 0,
        },
    )


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
