"""One topic: its partitions, who leads them, who is in sync, sizes, options; and changing them."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.addresses import topic_address
from headrace.ui.charts import LineChart
from headrace.ui.collector import Feed, Trouble
from headrace.ui.frame import Page, frame
from headrace.ui.parts import Empty, Problem, Tile, section, tiles
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.topic_changes import changes_section, options_section
from headrace.ui.topic_watch import TopicNow, topic_feed
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
