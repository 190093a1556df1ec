"""Faults of brokers of ours: switch them on and off, kill and start brokers of a cluster, and see what that does."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.errors import HeadraceError
from headrace.ui import formatting
from headrace.ui.actions import action_button, in_thread, run_action
from headrace.ui.charts import LineChart
from headrace.ui.fault_form import FaultForm
from headrace.ui.fault_watch import FaultWatch, SeenBroker
from headrace.ui.frame import frame
from headrace.ui.parts import Empty, Problem, Tile, section, tiles
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

EVERY_SECONDS = 1.0
ASK_SECONDS_MAX = 5.0
REQUESTS, FAILED = "requests", "failed"
KILL, START, REMOVE = "Kill", "Start", "Switch off"
_UNKNOWN_BROKER = (
    "Faults can be switched on in brokers of headrace only, and only where this view knows their data folder. Start "
    "the view with the broker (headrace broker start --ui), or name the folder (headrace ui --data-dir FOLDER)."
)


def build(view: View) -> None:
    watch = None if view.control is None else FaultWatch(view.control)

    @ui.page("/faults")
    def faults() -> None:
        with frame(view, "Faults", "/faults") as page:
            if watch is None:
                Empty(_UNKNOWN_BROKER)
                return
            shown = _Faults(view, watch)
            page.live(shown.refresh)
            ui.timer(EVERY_SECONDS, shown.ask)


class _Faults:
    """What is on one open page."""

    def __init__(self, view: View, watch: FaultWatch) -> None:
        self._view = view
        self._watch = watch
        self._seen: tuple[SeenBroker, ...] = ()
        self._wrong: str | None = None
        self._problem = Problem()
        with tiles():
            self._running = Tile("Brokers that run")
            self._rules = Tile("Faults")
            self._hits = Tile("Requests hit", "by the faults below")
            self._failed = Tile("Failed requests")
            self._leaderless = Tile("Partitions without a leader")
        self._form: FaultForm | None = None
        if not view.read_only:
            with section("Switch a fault on"):
                self._form = FaultForm(view, watch, self.ask)
        with section("Faults that are on"):
            self._rule_problem = Problem()
            self._rule_table = self._make_rule_table()
            self._clear = action_button(
                view,
                "Switch all off",
                lambda _: watch.clear(),
                done=lambda count: f"{count} faults are switched off",
            )
        with section("Brokers"):
            self._broker_problem = Problem()
            self._broker_table = self._make_broker_table()
        with section("What it does"):
            self._chart = LineChart("Requests over the last 15 minutes", [REQUESTS, FAILED], "requests/s")

    # -- looking ---------------------------------------------------------------------------------

    async def ask(self) -> None:
        """Ask the brokers themselves, by their side door."""
        try:
            self._seen = await in_thread(ASK_SECONDS_MAX, self._watch.brokers)
            self._wrong = None
        except HeadraceError as error:
            self._wrong = str(error)
        self.refresh()

    def refresh(self) -> None:
        self._problem.tell(self._wrong)
        running = 0 if self._wrong else sum(1 for one in self._seen if one.is_alive)
        self._running.show(f"{running:,} of {len(self._seen):,}" if self._seen else formatting.UNKNOWN)
        rules = [rule for one in self._seen for rule in one.rules]
        spent = sum(1 for rule in rules if rule["spent"])
        self._rules.show(formatting.count(len(rules) - spent, "on"), f"{spent:,} spent" if spent else "")
        self._hits.show(formatting.count(sum(rule["hits"] for rule in rules)))
        counters = self._view.traffic.counters
        self._failed.show(formatting.rate(counters["failed_requests"].last, "requests"))
        topology = self._view.topology.look()
        if topology is not None:
            self._leaderless.show(
                formatting.count(len(topology.leaderless)), f"{len(topology.out_of_sync):,} with replicas out of sync"
            )
        if self._clear is not None:
            self._clear.set_visibility(bool(rules))
        if self._form is not None:
            self._form.offer(self._seen)
        if self._view.traffic.status is not None:
            self._view.traffic.status.look()
        self._chart.show({REQUESTS: counters["requests"].points(), FAILED: counters["failed_requests"].points()})
        self._rule_table.refresh()
        self._broker_table.refresh()

    # -- faults ----------------------------------------------------------------------------------

    def _make_rule_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            items = [(broker, rule) for broker in self._seen for rule in broker.rules]
            found = paged(query, items, lambda item: _rule_row(item[0], item[1], self._view.read_only))
            problems = [one.problem for one in self._seen if one.problem]
            return Rows(found.rows, found.total, "; ".join(problems) or None)

        table = ServerTable(
            "Faults that are on",
            [
                Column("broker", "Where"),
                Column("api", "Request"),
                Column("only", "Only"),
                Column("what", "What happens"),
                Column("often", "How often"),
                Column("hits", "Requests hit", "number"),
                Column("state", "State", "state"),
                Column("remove", "", "action"),
            ],
            rows,
            row_key="key",
            empty="No fault is on: the brokers do what they can.",
        )
        table.on_action("remove", self._remove)
        return table

    async def _remove(self, row: Row) -> None:
        await run_action(
            self._view,
            self._rule_problem,
            lambda _: self._watch.remove(row["broker"], row["id"]),
            what=REMOVE,
            done="The fault is switched off",
        )
        await self.ask()

    # -- brokers ---------------------------------------------------------------------------------

    def _make_broker_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            return paged(query, self._seen, lambda one: _broker_row(one, self._view.read_only, bool(self._wrong)))

        table = ServerTable(
            "Brokers",
            [
                Column("broker", "Broker"),
                Column("state", "State", "state"),
                Column("address", "Address", "mono"),
                Column("pid", "Process", "number"),
                Column("faults", "Faults", "number"),
                Column("act", "", "action"),
            ],
            rows,
            row_key="broker",
            empty="No broker has been seen yet.",
        )
        table.on_action("act", self._kill_or_start)
        return table

    async def _kill_or_start(self, row: Row) -> None:
        broker = next((one for one in self._seen if one.name == row["broker"]), None)
        if broker is None or broker.node_id is None:
            return
        node_id = broker.node_id
        if broker.is_alive:
            await run_action(
                self._view,
                self._broker_problem,
                lambda _: self._watch.kill(node_id),
                what=f"Kill {broker.name}",
                confirm=f"Kill {broker.name} at {broker.address}, as kill -9? Its data stay, and it can be started "
                "again here. What it leads is led by others, where there are copies.",
                done=f"{broker.name} is dead",
            )
        else:
            await run_action(
                self._view,
                self._broker_problem,
                lambda _: self._watch.start(node_id),
                what=f"Start {broker.name}",
                done=f"{broker.name} runs",
            )
        await self.ask()


def _rule_row(broker: SeenBroker, rule: dict[str, Any], read_only: bool) -> Row:
    only = [f"{label} {rule[name]}" for name, label in (("topic", "topic"), ("client_id", "client")) if rule[name]]
    times = "until it is switched off" if rule["count"] is None else f"{rule['count']:,} times"
    chance = "" if rule["probability"] >= 1 else f", with a chance of {rule['probability'] * 100:g} %"
    return {
        "key": f"{broker.name}/{rule['id']}",
        "id": rule["id"],
        "broker": broker.name,
        "api": "any" if rule["api"] == "*" else rule["api"],
        "only": ", ".join(only) or "all",
        "what": _what(rule),
        "often": times + chance,
        "hits": formatting.count(rule["hits"]),
        "state": "spent" if rule["spent"] else "on",
        "state_mark": "○" if rule["spent"] else "●",
        "state_tone": "" if rule["spent"] else "warn",
        "remove": "" if read_only else REMOVE,
    }


def _what(rule: dict[str, Any]) -> str:
    late = [f"{rule['delay_ms']:g} ms late"] if rule["delay_ms"] else []
    ends = {"drop": "never answered", "close": "connection closed", "crash": "the broker dies"}
    how = [text for name, text in ends.items() if rule[name]]
    if rule["error"] is not None:
        how = [str(rule["error"])]
    after = " after the work" if how and rule["when"] == "after" else ""
    return ", ".join(late + how) + after


def _broker_row(one: SeenBroker, read_only: bool, is_lost: bool) -> Row:
    runs = one.is_alive and not is_lost
    may_act = not read_only and not is_lost and one.node_id is not None
    return {
        "broker": one.name,
        "state": "runs" if runs else "down",
        "state_mark": "●" if runs else "✕",
        "state_tone": "good" if runs else "bad",
        "address": one.address,
        "pid": str(one.pid) if runs and one.pid else formatting.UNKNOWN,
        "faults": formatting.count(len(one.rules)) if runs else formatting.UNKNOWN,
        "act": "" if not may_act else KILL if one.is_alive else START,
    }
