"""Topic page: partitions, throughput and configuration of a topic, and actions on it."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind, TopicPartition
from headrace.client.admin.topics import TO_THE_END
from headrace.ui import formatting
from headrace.ui.actions import action_button, button, run_action
from headrace.ui.charts import LineChart
from headrace.ui.cluster_feeds import TopicSnapshot, configs_feed, topic_feed
from headrace.ui.collector import Failure, Feed
from headrace.ui.elements import EmptyNote, Problem, TextField, Tile, form, parse_int, section, tiles
from headrace.ui.frame import Page, frame, topic_url
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

PARTITION_COLUMNS = (
    Column("partition", "Partition", "number", sortable=True),
    Column("leader", "Leader", "number", sortable=True),
    Column("replicas", "Replicas", "mono"),
    Column("sync", "In sync", "state"),
    Column("first", "Start offset", "number"),
    Column("end", "End offset", "number", sortable=True),
    Column("beyond_lso", "Beyond LSO", "number"),
    Column("rate", "Records in", "number", sortable=True),
    Column("size", "Size", "number", sortable=True),
    Column("messages", "", "link"),
)
CONFIG_COLUMNS = (
    Column("name", "Configuration", "mono", sortable=True),
    Column("value", "Value", "mono"),
    Column("source", "Source", sortable=True),
    Column("reset", "", "action"),
)
CONFIG_ROWS = 10


def topic_tabs(name: str, here: str) -> None:
    """Build the tabs of a topic."""
    with ui.element("nav").classes("hr-tabs").props('aria-label="Pages of the topic"'):
        for label, suffix in (
            ("Partitions", ""),
            ("Messages", "/messages"),
            ("Schema", "/schema"),
            ("Produce", "/produce"),
        ):
            link = ui.link(label, topic_url(name) + suffix).classes("hr-tab")
            if label == here:
                link.classes("hr-here").props('aria-current="page"')


def build(view: View) -> None:
    @ui.page("/topics/{name}")
    def topic(name: str) -> None:
        with frame(view, f"Topic {name}", "/topics") as page:
            topic_tabs(name, "Partitions")
            problem = Problem()
            missing = EmptyNote(f"Topic {name} does not exist. See “Topics” for all topics, or to create one.")
            with ui.element("div") as body:
                content = _TopicContent(view, name)

            def refresh() -> None:
                is_missing = is_unknown(view, name, content.feed.failure)
                missing.set_visibility(is_missing)
                body.set_visibility(not is_missing)
                failure = None if is_missing else content.feed.failure
                problem.set(f"Topic {name}: {failure.text}" if failure else None)

            page.live(refresh)
            content.go_live(page)


def is_unknown(view: View, name: str, failure: Failure | None) -> bool:
    """Return whether the topic does not exist: its feed failed, and the topology does not contain it."""
    topology = view.topology.get()
    return failure is not None and topology is not None and name not in topology.topics


class _TopicContent:
    def __init__(self, view: View, name: str) -> None:
        self.feed = topic_feed(view.cluster, name)
        self._figures = _Figures()
        with section("Partitions"):
            self._partitions = ServerTable(
                "Partitions",
                PARTITION_COLUMNS,
                lambda query: _partitions(self.feed, name, query),
                row_key="partition",
                empty="Loading partitions …",
                sort_by="partition",
            )
        with section("Records in"):
            self._chart = LineChart("Records in, last 15 minutes", ["in"], "records/s")
        self._configs = configs_section(view, name)
        if not view.read_only:
            actions_section(view, name)

    def go_live(self, page: Page) -> None:
        page.live(self._refresh)
        page.live(self._partitions.refresh)
        page.live(self._configs.refresh)

    def _refresh(self) -> None:
        now = self.feed.get()
        if now is not None:
            self._figures.refresh(now)
            self._chart.show({"in": now.records_in.points()})


class _Figures:
    def __init__(self) -> None:
        with tiles():
            self._records = Tile("Records")
            self._rate = Tile("Records in")
            self._size = Tile("Size")
            self._replicas = Tile("Replicas")

    def refresh(self, now: TopicSnapshot) -> None:
        partitions = now.facts["partitions"]
        retained = sum((p["end_offset"] or 0) - (p["start_offset"] or 0) for p in partitions)
        self._records.show(formatting.count(retained), "end offsets − start offsets")
        self._rate.show(formatting.rate(now.records_in.last), f"in {formatting.count(len(partitions))} partitions")
        sizes = [p["size_bytes"] for p in partitions if p["size_bytes"] is not None]
        self._size.show(formatting.size(sum(sizes) if sizes else None), formatting.size_rate(now.stored_bytes.last))
        replicas = max((len(p["replicas"]) for p in partitions), default=0)
        self._replicas.show(formatting.count(replicas), f"id {now.facts['topic_id']}")


def _partitions(feed: Feed[TopicSnapshot], name: str, query: Query) -> Rows:
    now = feed.get()
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
            "sync": "all" if not behind else f"all but {', '.join(map(str, behind))}",
            "sync_mark": mark,
            "sync_tone": tone,
            "first": formatting.count(facts["start_offset"]),
            "end": formatting.count(end),
            "beyond_lso": formatting.UNKNOWN
            if stable is None or end is None
            else formatting.count(end - stable, "records"),
            "rate": formatting.rate(now.records_per_s.get(number)),
            "size": formatting.size(facts["size_bytes"]),
            "messages": "Messages",
            "messages_href": f"{topic_url(name)}/messages?partition={number}",
        }

    return paged(
        query,
        now.facts["partitions"],
        row,
        keys={
            "partition": lambda facts: facts["partition"],
            "leader": lambda facts: -1 if facts["leader"] is None else facts["leader"],
            "end": lambda facts: facts["end_offset"] or 0,
            "rate": lambda facts: now.records_per_s.get(facts["partition"], 0.0),
            "size": lambda facts: facts["size_bytes"] or 0,
        },
    )


def configs_section(view: View, name: str) -> ServerTable:
    """Build the configuration of a topic and a form to change it."""
    feed = configs_feed(view.cluster, name)
    with section("Configuration"):
        if not view.read_only:
            _config_form(view, name)
        table = ServerTable(
            "Configuration",
            CONFIG_COLUMNS if not view.read_only else CONFIG_COLUMNS[:-1],
            lambda query: _config_rows(feed, query),
            row_key="name",
            empty="Loading the configuration …",
            search="configuration",
            page_rows=CONFIG_ROWS,
        )
        problem = Problem()
        table.on_action("reset", lambda row: _reset(view, problem, name, str(row["name"])))
    return table


def _config_rows(feed: Feed[list[dict[str, Any]]], query: Query) -> Rows:
    entries = feed.get()
    if entries is None:
        return Rows([], 0, feed.failure.text if feed.failure else None)

    def row(entry: dict[str, Any]) -> Row:
        return {
            "name": entry["name"],
            "value": "(sensitive)" if entry["value"] is None else entry["value"],
            "source": "this topic" if not entry["is_default"] else entry["source"].replace("_", " "),
            "reset": "" if entry["is_default"] else "Reset to default",
        }

    rows = paged(
        query,
        sorted(entries, key=lambda entry: entry["is_default"]),
        row,
        keys={"name": lambda entry: entry["name"], "source": lambda entry: entry["source"]},
        text=lambda entry: f"{entry['name']} {entry['value']}",
    )
    return rows._replace(problem=feed.failure.text if feed.failure else None)


async def _reset(view: View, problem: Problem, topic: str, option: str) -> None:
    await run_action(
        view,
        problem,
        lambda admin: _set_config(admin, topic, option, None),
        name="Reset to default",
        done=f"{option} reset to its default",
        confirm=f"Reset {option} of topic {topic} to its default? Records may be deleted at once if retention changes.",
    )


def _config_form(view: View, topic: str) -> None:
    problem = Problem()
    with form("Set configuration"):
        name = TextField("Name", placeholder="retention.ms", wide=True)
        value = TextField("Value", wide=True)

        async def change() -> None:
            option, text = name.value.strip(), value.value.strip()
            await run_action(
                view,
                problem,
                lambda admin: _set_config(admin, topic, option, text),
                name="Set configuration",
                done=f"{option} set to {text}",
            )

        button("Set configuration", change).classes("hr-primary")


def _set_config(admin: AdminClient, topic: str, option: str, value: str | None) -> bool:
    admin.alter_configs({ConfigResource(ResourceKind.TOPIC, topic): {option: value}})
    return True


def actions_section(view: View, name: str) -> None:
    with section("Actions"):
        problem = Problem()
        with form("Add partitions"):
            count = TextField("New number of partitions", kind="number")

            async def add_partitions() -> None:
                def create_partitions(admin: AdminClient) -> bool:
                    admin.create_partitions({name: parse_int(count.value, "partitions")})
                    return True

                await run_action(
                    view,
                    problem,
                    create_partitions,
                    name="Add partitions",
                    done=f"Topic {name} has {count.value} partitions now",
                    confirm=f"Increase topic {name} to {count.value} partitions? This cannot be undone, and keys may "
                    "map to other partitions than before.",
                )

            button("Add partitions", add_partitions)
        with ui.element("div").classes("hr-buttons hr-above"):
            action_button(
                view,
                "Delete all records",
                lambda admin: _delete_records(admin, name),
                confirm=f"Delete all records of topic {name}? This cannot be undone.",
                done=f"Records of {name} deleted",
            )
            action_button(
                view,
                "Delete topic",
                lambda admin: _delete_topic(admin, name),
                confirm=f"Delete topic {name} with all its records? This cannot be undone.",
                typed=name,
                done=f"Topic {name} deleted",
                after=lambda _: ui.navigate.to("/topics"),
            )


def _delete_records(admin: AdminClient, name: str) -> bool:
    partitions = admin.describe_topics([name])[name].partitions
    admin.delete_records({TopicPartition(name, info.partition): TO_THE_END for info in partitions})
    return True


def _delete_topic(admin: AdminClient, name: str) -> bool:
    admin.delete_topics([name])
    return True
