"""Faults page: inject and remove faults of headrace brokers, kill and start brokers of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from headrace.errors import Code, ConfigError, HeadraceError
from headrace.ui import formatting
from headrace.ui.actions import action_button, button, in_thread, run_action
from headrace.ui.broker_control import BrokerStatus, FaultControl
from headrace.ui.charts import LineChart
from headrace.ui.elements import EmptyNote, Problem, Select, Text, TextField, Tile, form, parse_int, section, tiles
from headrace.ui.frame import frame
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, item_rows, paged
from headrace.ui.view import View
from headrace.wire.api import APIS, api_name

POLL_SECONDS = 1.0
POLL_SECONDS_MAX = 5.0
REQUESTS, FAILED = "requests", "failed"
KILL, START, REMOVE = "Kill", "Start", "Remove"
ALL_BROKERS = "all brokers"
EVERY_REQUEST = "*"
ERROR, DELAY, DROP, CLOSE, CRASH = "error", "delay", "drop", "close", "crash"
_EFFECTS = {
    ERROR: "error response",
    DELAY: "delayed response",
    DROP: "no response",
    CLOSE: "connection closed",
    CRASH: "broker crashes (SIGKILL)",
}
_WHEN = {"before": "before processing", "after": "after processing: only the response is affected"}
_PRESETS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Leader moved", {"api": "Produce", "effect": ERROR, "error": "NOT_LEADER_OR_FOLLOWER", "count": "3"}),
    ("Lost acknowledgement", {"api": "Produce", "effect": CLOSE, "when": "after", "count": "1"}),
    ("Slow disk", {"api": "Produce", "effect": DELAY, "delay": "200"}),
    ("Lost EndTxn response", {"api": "EndTxn", "effect": CLOSE, "when": "after", "count": "1"}),
    (
        "Coordinator loading",
        {"api": "FindCoordinator", "effect": ERROR, "error": "COORDINATOR_NOT_AVAILABLE", "count": "5"},
    ),
)
_NO_CONTROL = (
    "Faults can be injected into headrace brokers only, and the view must know their data folder. Start the view with "
    "the broker (headrace broker start --ui), or name the folder (headrace ui --data-dir FOLDER)."
)


def build(view: View) -> None:
    control = None if view.control is None else FaultControl(view.control)

    @ui.page("/faults")
    def faults() -> None:
        with frame(view, "Faults", "/faults") as page:
            if control is None:
                EmptyNote(_NO_CONTROL)
                return
            content = _FaultsContent(view, control)
            page.live(content.refresh)
            ui.timer(POLL_SECONDS, content.poll)


class _FaultsContent:
    def __init__(self, view: View, control: FaultControl) -> None:
        self._view = view
        self._control = control
        self._brokers: tuple[BrokerStatus, ...] = ()
        self._error: str | None = None
        self._problem = Problem()
        with tiles():
            self._running = Tile("Running brokers")
            self._rules = Tile("Active faults")
            self._hits = Tile("Requests affected", "by the faults below")
            self._failed = Tile("Failed requests")
            self._leaderless = Tile("Leaderless partitions")
        self._form: FaultForm | None = None
        if not view.read_only:
            with section("Inject a fault"):
                self._form = FaultForm(view, control, self.poll)
        with section("Faults"):
            self._rule_problem = Problem()
            self._rule_table = self._make_rule_table()
            self._clear = action_button(
                view,
                "Remove all",
                lambda _: control.clear(),
                done=lambda count: f"{formatting.plural(count, 'fault')} removed",
            )
        with section("Brokers"):
            self._broker_problem = Problem()
            self._broker_table = self._make_broker_table()
        with section("Requests"):
            self._chart = LineChart("Requests, last 15 minutes", [REQUESTS, FAILED], "requests/s")

    # -- state -----------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Fetch the state of all brokers by their control sockets."""
        try:
            self._brokers = await in_thread(POLL_SECONDS_MAX, self._control.brokers)
            self._error = None
        except HeadraceError as error:
            self._error = str(error)
        self.refresh()

    def refresh(self) -> None:
        self._problem.set(self._error)
        running = 0 if self._error else sum(1 for broker in self._brokers if broker.is_alive)
        self._running.show(f"{running:,} of {len(self._brokers):,}" if self._brokers else formatting.UNKNOWN)
        rules = [rule for broker in self._brokers for rule in broker.rules]
        spent = sum(1 for rule in rules if rule["spent"])
        self._rules.show(formatting.count(len(rules) - spent), f"{spent:,} used up" if spent else "")
        self._hits.show(formatting.count(sum(rule["hits"] for rule in rules)))
        counters = self._view.traffic.counters
        self._failed.show(formatting.rate(counters["failed_requests"].last, "requests"))
        topology = self._view.topology.get()
        if topology is not None:
            self._leaderless.show(
                formatting.count(len(topology.leaderless)), f"{len(topology.out_of_sync):,} under-replicated"
            )
        if self._clear is not None:
            self._clear.set_visibility(bool(rules))
        if self._form is not None:
            self._form.offer(self._brokers)
        if self._view.traffic.status is not None:
            self._view.traffic.status.get()
        self._chart.show({REQUESTS: counters["requests"].points(), FAILED: counters["failed_requests"].points()})
        self._rule_table.refresh()
        self._broker_table.refresh()

    # -- faults ----------------------------------------------------------------------------------

    def _make_rule_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            items = [(broker, rule) for broker in self._brokers for rule in broker.rules]
            page = paged(query, items, lambda item: _rule_row(item[0], item[1], self._view.read_only))
            problems = [broker.problem for broker in self._brokers if broker.problem]
            return Rows(page.rows, page.total, "; ".join(problems) or None)

        table = ServerTable(
            "Faults",
            [
                Column("broker", "Broker"),
                Column("api", "API"),
                Column("filter", "Filter"),
                Column("effect", "Effect"),
                Column("frequency", "Frequency"),
                Column("hits", "Requests affected", "number"),
                Column("state", "State", "state"),
                Column("remove", "", "action"),
            ],
            rows,
            row_key="key",
            empty="No faults injected.",
        )
        table.on_action("remove", self._remove)
        return table

    async def _remove(self, row: Row) -> None:
        await run_action(
            self._view,
            self._rule_problem,
            lambda _: self._control.remove(row["broker"], row["id"]),
            name=REMOVE,
            done="Fault removed",
        )
        await self.poll()

    # -- brokers ---------------------------------------------------------------------------------

    def _make_broker_table(self) -> ServerTable:
        table = ServerTable(
            "Brokers",
            [
                Column("broker", "Broker"),
                Column("state", "State", "state"),
                Column("address", "Address", "mono"),
                Column("pid", "Process id", "number"),
                Column("faults", "Faults", "number"),
                Column("action", "", "action"),
            ],
            item_rows(
                lambda: self._brokers,
                lambda broker: _broker_row(broker, self._view.read_only, bool(self._error)),
            ),
            row_key="broker",
            empty="Loading brokers …",
        )
        table.on_action("action", self._kill_or_start)
        return table

    async def _kill_or_start(self, row: Row) -> None:
        broker = next((broker for broker in self._brokers if broker.name == row["broker"]), None)
        if broker is None or broker.node_id is None:
            return
        node_id = broker.node_id
        if broker.is_alive:
            await run_action(
                self._view,
                self._broker_problem,
                lambda _: self._control.kill(node_id),
                name=f"Kill {broker.name}",
                confirm=f"Kill {broker.name} at {broker.address} with SIGKILL? Its data is kept, and it can be started "
                "again here. Partitions with other replicas get another leader.",
                done=f"{broker.name} killed",
            )
        else:
            await run_action(
                self._view,
                self._broker_problem,
                lambda _: self._control.start(node_id),
                name=f"Start {broker.name}",
                done=f"{broker.name} started",
            )
        await self.poll()


def _rule_row(broker: BrokerStatus, rule: dict[str, Any], read_only: bool) -> Row:
    filters = [
        f"{label} {rule[name]}" for name, label in (("topic", "topic"), ("client_id", "client id")) if rule[name]
    ]
    times = "until removed" if rule["count"] is None else formatting.plural(rule["count"], "time")
    chance = "" if rule["probability"] >= 1 else f", {rule['probability'] * 100:g} % of requests"
    return {
        "key": f"{broker.name}/{rule['id']}",
        "id": rule["id"],
        "broker": broker.name,
        "api": "any" if rule["api"] == "*" else rule["api"],
        "filter": ", ".join(filters) or "all",
        "effect": _effect(rule),
        "frequency": times + chance,
        "hits": formatting.count(rule["hits"]),
        "state": "used up" if rule["spent"] else "active",
        "state_mark": "○" if rule["spent"] else "●",
        "state_tone": "" if rule["spent"] else "warn",
        "remove": "" if read_only else REMOVE,
    }


def _effect(rule: dict[str, Any]) -> str:
    delay = [f"{rule['delay_ms']:g} ms delay"] if rule["delay_ms"] else []
    names = {"drop": "no response", "close": "connection closed", "crash": "broker crashes"}
    effect = [text for name, text in names.items() if rule[name]]
    if rule["error"] is not None:
        effect = [str(rule["error"])]
    after = " after processing" if effect and rule["when"] == "after" else ""
    return ", ".join(delay + effect) + after


def _broker_row(broker: BrokerStatus, read_only: bool, is_unreachable: bool) -> Row:
    is_running = broker.is_alive and not is_unreachable
    has_action = not read_only and not is_unreachable and broker.node_id is not None
    return {
        "broker": broker.name,
        "state": "running" if is_running else "down",
        "state_mark": "●" if is_running else "✕",
        "state_tone": "good" if is_running else "bad",
        "address": broker.address,
        "pid": str(broker.pid) if is_running and broker.pid else formatting.UNKNOWN,
        "faults": formatting.count(len(broker.rules)) if is_running else formatting.UNKNOWN,
        "action": "" if not has_action else KILL if broker.is_alive else START,
    }


# -- form ----------------------------------------------------------------------------------------


class FaultForm:
    """The form that injects a fault."""

    def __init__(self, view: View, control: FaultControl, changed: Callable[[], Awaitable[None]]) -> None:
        self._view = view
        self._control = control
        self._changed = changed
        self._names: list[str] = []
        with ui.element("div").classes("hr-buttons hr-actions").props('role="group" aria-label="Examples"'):
            Text("span", "Examples:")
            for name, values in _PRESETS:
                button(name, partial(self._fill, values))
        with form("Requests"):
            self._where = ui.element("div")
            self._where.set_visibility(False)
            self._broker: Select | None = None
            apis = sorted(map(api_name, APIS))
            self._api = Select("API", {EVERY_REQUEST: "any", **{name: name for name in apis}}, "Produce")
            self._topic = TextField("Topic", placeholder="any; wildcards * and ?")
            self._client = TextField("Client id", placeholder="any; wildcards * and ?")
        with form("Fault effect"):
            self._effect = Select("Effect", _EFFECTS, on_change=self._on_effect)
            codes = {code.name: code.name for code in sorted(Code, key=lambda code: code.name) if code > 0}
            self._error = Select("Error", codes, Code.NOT_LEADER_OR_FOLLOWER.name)
            self._delay = TextField("Delay in ms", placeholder="none", kind="number")
            self._when = Select("When", _WHEN)
            self._count = TextField("Number of times", placeholder="until removed", kind="number")
            self._chance = TextField("Probability in %", "100", kind="number")
            button("Inject", self._inject).classes("hr-primary")
        self._problem = Problem()
        self._on_effect()

    def offer(self, brokers: Sequence[BrokerStatus]) -> None:
        """Offer a choice of brokers if there are several."""
        names = [broker.name for broker in brokers]
        if names == self._names:
            return
        self._names = names
        self._where.clear()
        self._broker = None
        self._where.set_visibility(len(names) > 1)
        if len(names) > 1:
            with self._where:
                self._broker = Select("Broker", {ALL_BROKERS: ALL_BROKERS, **{name: name for name in names}})

    def _on_effect(self) -> None:
        effect = self._effect.value
        self._error.show(effect == ERROR)
        self._when.show(effect != DELAY)

    def _fill(self, values: dict[str, str]) -> None:
        self._api.set(values["api"])
        self._effect.set(values["effect"])
        self._error.set(values.get("error", self._error.value))
        self._delay.set(values.get("delay", ""))
        self._when.set(values.get("when", "before"))
        self._count.set(values.get("count", ""))
        self._on_effect()

    async def _inject(self) -> None:
        try:
            fault = self._fault()
        except HeadraceError as error:
            self._problem.set(f"Inject: {error}")
            return
        selected = ALL_BROKERS if self._broker is None else self._broker.value
        names = self._names if selected == ALL_BROKERS else [selected]
        crash = "Crash the broker at the next matching request? Data that was not written to disk is lost."
        await run_action(
            self._view,
            self._problem,
            lambda _: self._control.inject(names, fault),
            name="Inject",
            confirm=crash if fault.get(CRASH) else None,
            done="Fault injected",
        )
        await self._changed()

    def _fault(self) -> dict[str, Any]:
        """Return the fault as arguments of `faults.inject`; the broker validates the rest."""
        effect = self._effect.value
        fault: dict[str, Any] = {"api": self._api.value, "delay_ms": _parse_float(self._delay.value or "0", "delay")}
        if effect == ERROR:
            fault["error"] = self._error.value
        elif effect != DELAY:
            fault[effect] = True
        if effect != DELAY:
            fault["when"] = self._when.value
        if self._topic.value.strip():
            fault["topic"] = self._topic.value.strip()
        if self._client.value.strip():
            fault["client_id"] = self._client.value.strip()
        if self._count.value.strip():
            fault["count"] = parse_int(self._count.value.strip(), "number of times")
        fault["probability"] = _parse_float(self._chance.value or "100", "probability") / 100
        return fault


def _parse_float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"invalid {name}: expected a number, got {text!r}") from None
