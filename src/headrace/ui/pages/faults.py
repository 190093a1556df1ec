"""Faults of brokers of ours: switch them on and off, kill and start brokers of a cluster, and see what that does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from headrace.errors import Code, ConfigError, HeadraceError
from headrace.ui import formatting
from headrace.ui.actions import action_button, button, in_thread, run_action
from headrace.ui.broker_control import FaultWatch, SeenBroker
from headrace.ui.charts import LineChart
from headrace.ui.elements import Choice, Empty, Problem, Text, TextField, Tile, form, section, tiles
from headrace.ui.frame import frame
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View
from headrace.wire.api import APIS

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


ALL_BROKERS = "all brokers"
EVERY_REQUEST = "*"
ERROR, DELAY, DROP, CLOSE, CRASH = "error", "delay", "drop", "close", "crash"
_HOW = {
    ERROR: "is answered with an error",
    DELAY: "is answered late",
    DROP: "is never answered",
    CLOSE: "loses its connection",
    CRASH: "ends the broker's process, as kill -9",
}
_WHEN = {"before": "instead of the work", "after": "after the work: only the answer is spoilt"}
_PRESETS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Leader that moved", {"api": "Produce", "how": ERROR, "error": "NOT_LEADER_OR_FOLLOWER", "count": "3"}),
    ("Lost acknowledgement", {"api": "Produce", "how": CLOSE, "when": "after", "count": "1"}),
    ("Slow disk", {"api": "Produce", "how": DELAY, "delay": "200"}),
    ("Lost end of a transaction", {"api": "EndTxn", "how": CLOSE, "when": "after", "count": "1"}),
    (
        "Coordinator that loads",
        {"api": "FindCoordinator", "how": ERROR, "error": "COORDINATOR_NOT_AVAILABLE", "count": "5"},
    ),
)


class FaultForm:
    """The fields, and the button that switches it on."""

    def __init__(self, view: View, watch: FaultWatch, changed: Callable[[], Awaitable[None]]) -> None:
        self._view = view
        self._watch = watch
        self._changed = changed
        self._names: list[str] = []
        with ui.element("div").classes("hr-buttons hr-actions").props('role="group" aria-label="Examples"'):
            Text("span", "Examples:")
            for name, values in _PRESETS:
                button(name, partial(self._fill, values))
        with form("Which requests"):
            self._where = ui.element("div")
            self._where.set_visibility(False)
            self._broker: Choice | None = None
            apis = sorted(name for name, _ in APIS.values())
            self._api = Choice(
                "A request of the kind", {EVERY_REQUEST: "any", **{name: name for name in apis}}, "Produce"
            )
            self._topic = TextField("about the topic", placeholder="any; * and ? fit all")
            self._client = TextField("of the client.id", placeholder="any; * and ? fit all")
        with form("What happens"):
            self._how = Choice("What happens to it", _HOW, on_change=self._on_how)
            codes = {code.name: code.name for code in sorted(Code, key=lambda code: code.name) if code > 0}
            self._error = Choice("Error", codes, Code.NOT_LEADER_OR_FOLLOWER.name)
            self._delay = TextField("Delay in ms", placeholder="none", kind="number")
            self._when = Choice("When", _WHEN)
            self._count = TextField("How many times", placeholder="until it is removed", kind="number")
            self._chance = TextField("With a chance of %", "100", kind="number")
            button("Switch on", self._inject).classes("hr-primary")
        self._problem = Problem()
        self._on_how()

    def offer(self, brokers: Sequence[SeenBroker]) -> None:
        """Let one of the brokers be chosen, if there are several."""
        names = [broker.name for broker in brokers]
        if names == self._names:
            return
        self._names = names
        self._where.clear()
        self._broker = None
        self._where.set_visibility(len(names) > 1)
        if len(names) > 1:
            with self._where:
                self._broker = Choice("Where", {ALL_BROKERS: ALL_BROKERS, **{name: name for name in names}})

    def _on_how(self) -> None:
        how = self._how.value
        self._error.show(how == ERROR)
        self._when.show(how != DELAY)

    def _fill(self, values: dict[str, str]) -> None:
        self._api.set(values["api"])
        self._how.set(values["how"])
        self._error.set(values.get("error", self._error.value))
        self._delay.set(values.get("delay", ""))
        self._when.set(values.get("when", "before"))
        self._count.set(values.get("count", ""))
        self._on_how()

    async def _inject(self) -> None:
        try:
            fault = self._fault()
        except HeadraceError as error:
            self._problem.tell(f"Switch on: {error}")
            return
        where = ALL_BROKERS if self._broker is None else self._broker.value
        names = self._names if where == ALL_BROKERS else [where]
        crash = "The process ends the moment such a request comes, and what it had not written to disk is lost. Really?"
        await run_action(
            self._view,
            self._problem,
            lambda _: self._watch.inject(names, fault),
            what="Switch on",
            confirm=crash if fault.get(CRASH) else None,
            done="The fault is on",
        )
        await self._changed()

    def _fault(self) -> dict[str, Any]:
        """What the fields say, as the broker takes it; it checks the rest."""
        how = self._how.value
        fault: dict[str, Any] = {"api": self._api.value, "delay_ms": _number(self._delay.value or "0", "Delay in ms")}
        if how == ERROR:
            fault["error"] = self._error.value
        elif how != DELAY:
            fault[how] = True
        if how != DELAY:
            fault["when"] = self._when.value
        if self._topic.value.strip():
            fault["topic"] = self._topic.value.strip()
        if self._client.value.strip():
            fault["client_id"] = self._client.value.strip()
        if self._count.value.strip():
            fault["count"] = int(_number(self._count.value, "How many times"))
        fault["probability"] = _number(self._chance.value or "100", "With a chance of %") / 100
        return fault


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{what}: {text!r} is no number") from None
