"""Topics page: all topics, and a form to create one."""

from __future__ import annotations

from nicegui import ui

from headrace.client.admin import AdminClient, NewTopic, TopicDescription
from headrace.ui import formatting
from headrace.ui.actions import button, run_action
from headrace.ui.elements import Checkbox, Problem, Text, TextField, form, parse_int, section
from headrace.ui.frame import frame, topic_url
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

COLUMNS = (
    Column("topic", "Topic", "link", sortable=True),
    Column("partitions", "Partitions", "number", sortable=True),
    Column("replicas", "Replicas", "number", sortable=True),
    Column("records", "Records written", "number", sortable=True),
    Column("rate", "Records in", "number", sortable=True),
    Column("size", "Size", "number", sortable=True),
    Column("state", "State", "state"),
)
_UNKNOWN_LAST = -1


def build(view: View) -> None:
    @ui.page("/topics")
    def topics() -> None:
        with frame(view, "Topics", "/topics") as page:
            listing = _Listing(view)
            with section("All topics"):
                table = ServerTable(
                    "Topics",
                    COLUMNS,
                    listing.rows,
                    row_key="topic",
                    empty="No topics yet. Create one with the form below, or with `headrace topic create NAME`.",
                    search="topics",
                    sort_by="topic",
                )
                internal = Checkbox(
                    "Show internal topics",
                    on_change=lambda: listing.show_internal(internal.value, table),
                )
            if not view.read_only:
                _creation_form(view)
            page.live(table.refresh)


class _Listing:
    """The rows of the table in one browser."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._internal = False

    def show_internal(self, internal: bool, table: ServerTable) -> None:
        self._internal = internal
        table.refresh()

    def rows(self, query: Query) -> Rows:
        view = self._view
        topology = view.topology.get()
        if topology is None:
            failure = view.topology.failure
            return Rows([], 0, failure.text if failure else None)
        ends, sizes = view.traffic.ends.get(), view.traffic.sizes.get()
        written = {} if ends is None else ends.of_topic
        rates = {} if ends is None else ends.records_per_s
        stored = {} if sizes is None else sizes.of_topic
        items = [topic for topic in topology.topics.values() if self._internal or not topic.internal]

        def row(topic: TopicDescription) -> Row:
            mark, tone, text = _state(topic)
            return {
                "topic": topic.name,
                "topic_href": topic_url(topic.name),
                "partitions": formatting.count(len(topic.partitions)),
                "replicas": formatting.count(_replicas(topic)),
                "records": formatting.count(written.get(topic.name), "records"),
                "rate": formatting.rate(rates.get(topic.name, 0.0) if written else None),
                "size": formatting.size(stored.get(topic.name)),
                "state": text,
                "state_mark": mark,
                "state_tone": tone,
            }

        return paged(
            query,
            items,
            row,
            text=lambda topic: topic.name,
            keys={
                "topic": lambda topic: topic.name,
                "partitions": lambda topic: len(topic.partitions),
                "replicas": _replicas,
                "records": lambda topic: written.get(topic.name, _UNKNOWN_LAST),
                "rate": lambda topic: rates.get(topic.name, 0.0),
                "size": lambda topic: stored.get(topic.name, _UNKNOWN_LAST),
            },
        )


def _replicas(topic: TopicDescription) -> int:
    return max((len(info.replicas) for info in topic.partitions), default=0)


def _state(topic: TopicDescription) -> tuple[str, str, str]:
    leaderless = sum(info.leader < 0 for info in topic.partitions)
    if leaderless:
        return "✖", "bad", f"{leaderless} without a leader"
    behind = sum(len(info.isr) < len(info.replicas) for info in topic.partitions)
    return ("▲", "warn", f"{behind} under-replicated") if behind else ("✔", "good", "in sync")


def _creation_form(view: View) -> None:
    with section("New topic"):
        problem = Problem()
        with form("New topic"):
            name = TextField("Name", placeholder="orders", wide=True)
            partitions = TextField("Partitions", "1", kind="number")
            replicas = TextField("Replicas", "1", kind="number")
            button("Create topic", lambda: create()).classes("hr-primary")
        Text("p", "Configuration is set on the page of the topic.").classes("hr-note")

    async def create() -> None:
        topic = name.value.strip()

        def create_topic(admin: AdminClient) -> str:
            counts = parse_int(partitions.value, "partitions"), parse_int(replicas.value, "replicas")
            admin.create_topics([NewTopic(topic, *counts)])
            return topic

        created = await run_action(view, problem, create_topic, name="Create topic", done=f"Topic {topic} created")
        if created is not None:
            ui.navigate.to(topic_url(created))
