"""Switching a fault on: which requests, what happens to them, and how often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from headrace.errors import Code, ConfigError, HeadraceError
from headrace.ui.actions import button, run_action
from headrace.ui.fault_watch import FaultWatch, SeenBroker
from headrace.ui.fields import Choice, TextField, form
from headrace.ui.parts import Problem, Text
from headrace.ui.view import View
from headrace.wire.api import APIS

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
