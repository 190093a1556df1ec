"""Check traces of the commit protocol (headrace/spark/tracing.py) against its model: TLC has to explain every event.

python -m tools.traces FILE ...    prints which traces are behaviours of the model, and where the others leave it
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.spark.sink_options import SEPARATOR
from headrace.spark.tracing import FENCED, OK, UNKNOWN
from tools.tlc import MODEL, TlcError, run_tlc

Line = dict[str, Any]
Identity = tuple[str, int, int]
HELPER = "helper"
"""Process of a test that takes the sink lock as another process of a run would."""
_CONFIG = """CONSTANTS
    Tasks = {{{tasks}}}
    HasInline = TRUE
    ChunksMax = {chunks}
    WidthMax = 2
    RunsMax = {runs}
    AliveMax = {runs}
    AttemptsMax = 1
    ExpiriesMax = 0
    LockLossesMax = 99
    RestoresMax = 0
    ReopensMax = 99
    MayDie = TRUE
SPECIFICATION TraceSpec
CONSTRAINT Progress
CHECK_DEADLOCK FALSE
"""
_EXPLAINED = re.compile(r'<<"explained", (\d+), (\d+)>>')


@dataclass(slots=True)
class Event:
    """A step of a trace, and the line of the file that it comes from."""

    text: str
    line: Line


@dataclass(slots=True)
class Verdict:
    """How far the model explains a trace."""

    name: str
    events: list[Event]
    explained: int

    @property
    def is_accepted(self) -> bool:
        return self.explained == len(self.events)

    def __str__(self) -> str:
        if self.is_accepted:
            return f"{self.name}: {len(self.events)} events are a behaviour of the model"
        steps = "\n".join(f"    {json.dumps(event.line)}" for event in self.events[: self.explained][-8:])
        return (
            f"{self.name}: event {self.explained + 1} of {len(self.events)} is no step of the model: "
            f"{json.dumps(self.events[self.explained].line)}\n    the steps before it:\n{steps}"
        )


@dataclass(slots=True)
class _Names:
    """The names of a trace as the numbers of the model."""

    runs: dict[str, int] = field(default_factory=dict)
    transactions: dict[Identity, str] = field(default_factory=dict)
    contents: dict[int, list[str]] = field(default_factory=dict)
    tasks: int = 1

    def run(self, name: str) -> int:
        return self.runs.setdefault(name, len(self.runs) + 1)

    def content(self, number: int, rows: str) -> str:
        """Return the interval of a batch; another one if the same number has other rows."""
        known = self.contents.setdefault(number, [])
        if rows not in known:
            known.append(rows)
        return f"<<{number}, {number + 1 + known.index(rows)}>>"

    def add(self, line: Line) -> None:
        """Name the transactions of a batch by the order of its tasks."""
        for task, identity in enumerate(map(_identity, line["transactions"]), start=1):
            self.tasks = max(self.tasks, task)
            self.transactions.setdefault(
                identity,
                f'[run |-> {self.run(line["run"])}, batch |-> {line["batch"] + 1}, task |-> "t{task}", attempt |-> 1]',
            )

    def set_of(self, identities: Iterable[Sequence[Any]]) -> str:
        return _set(self.transactions[_identity(identity)] for identity in identities)

    def with_ids(self, ids: Iterable[str], known: Iterable[Identity]) -> list[Identity]:
        chosen = set(ids)
        return [identity for identity in known if identity[0] in chosen]


def _identity(fields: Sequence[Any]) -> Identity:
    return str(fields[0]), int(fields[1]), int(fields[2])


def _set(items: Iterable[str]) -> str:
    return f"{{{', '.join(sorted(items))}}}"


def events_of(lines: Sequence[Line]) -> tuple[list[Event], _Names]:
    """Translate the lines of a trace to events of the model."""
    names = _Names()
    for line in lines:
        names.run(line["run"])
        if line.get("call") in ("commit", "abort"):
            names.add(line)
    returns = {_key(line): line for line in lines if "return" in line}
    calls = {_key(line): line for line in lines if "call" in line}
    aborting: set[str] = set()
    events: list[Event] = []
    for line in lines:
        is_call = "call" in line
        call, returned = calls[_key(line)], returns.get(_key(line), {"result": UNKNOWN})
        if call["call"] == "abort":
            (aborting.add if is_call else aborting.discard)(line["process"])
        fields = _event(call, returned, names, is_call=is_call, is_aborting=line["process"] in aborting)
        if fields is not None:
            fields = {"run": str(names.run(line["run"])), **fields}
            text = ", ".join(f"{name} |-> {value}" for name, value in fields.items())
            events.append(Event(f"[{text}]", line))
    return events, names


def _key(line: Line) -> tuple[str, int]:
    return line["process"], line["number"]


def _event(call: Line, returned: Line, names: _Names, *, is_call: bool, is_aborting: bool) -> dict[str, str] | None:
    """Return the fields of the event that a line is; None if it says nothing that the model has."""
    is_helper, name, result = call["process"].startswith(HELPER), call["call"], returned["result"]
    if is_helper:
        if is_call or result != OK or name == "read":
            return None
        return {"do": '"steal"', "holds": _bool(name == "hold")}
    if name in ("commit", "abort") and is_call:
        content = names.content(call["batch"], call["rows"])
        transactions = names.set_of(call["transactions"])
        return {"do": f'"{name}"', "batch": str(call["batch"] + 1), "content": content, "transactions": transactions}
    if name in ("write", "hold"):
        return _write(call, result, names, is_call=is_call)
    if name == "end":
        fields = {"transactions": names.set_of(call["transactions"]), "committed": _bool(call["committed"])}
        if is_call:
            return {"do": '"end"', **fields}
        if result != OK:
            return None
        refused = names.set_of(entry for entry in call["transactions"] if entry[0] in returned["refused"])
        return {"do": '"ended"', "refused": refused, **fields}
    if name == "fence":
        return _fence(call, result, names, is_call=is_call)
    if is_call or (result != OK and (name, result) != ("open", FENCED)):
        return None
    if name == "read":
        return {"do": '"abort read"' if is_aborting else '"read"', **_ledger(call, returned, names)}
    if name == "describe":
        known = [entry for entry in returned["open"] if _identity(entry) in names.transactions]
        return {"do": '"describe"', "open": names.set_of(known)}
    if name == "outcome":
        transaction = names.transactions[_identity(call["transaction"])]
        return {"do": '"outcome"', "transaction": transaction, "isVisible": _bool(returned["visible"])}
    done = {"open": "open" if result == OK else "open refused", "commit": "committed", "abort": "aborted"}
    return {"do": f'"{done[name]}"'}


def _bool(value: bool) -> str:
    return "TRUE" if value else "FALSE"


def _write(call: Line, result: str, names: _Names, *, is_call: bool) -> dict[str, str] | None:
    kind, fields = "hold", {}
    if call["call"] == "write":
        decision = call["decision"]
        redone = names.with_ids(decision["redone"], map(_identity, decision["transactions"]))
        kind = "finish" if decision["finished"] and decision["transactions"] else "redo" if redone else "decide"
        fields = {
            "batch": str(decision["batch"] + 1),
            "transactions": names.set_of(decision["transactions"]),
            "redone": names.set_of(redone),
        }
    fields |= {"kind": f'"{kind}"'}
    if is_call:
        return {"do": '"write"', "result": f'"{result}"', **fields}
    does = {OK: '"written"', FENCED: '"write refused"'}
    return {"do": does[result], **fields} if result in does else None


def _fence(call: Line, result: str, names: _Names, *, is_call: bool) -> dict[str, str] | None:
    if not is_call and result != OK:
        return None
    known = names.with_ids(call["ids"], names.transactions)
    unknown = set(call["ids"]) - {identity[0] for identity in known}
    owners = {names.runs.get(key.split(SEPARATOR)[1], 0) for key in unknown}
    return {
        "do": '"fence"' if is_call else '"fenced"',
        "transactions": names.set_of(known),
        "owners": _set(map(str, owners)),
    }


def _ledger(call: Line, returned: Line, names: _Names) -> dict[str, str]:
    holders = ", ".join(str(names.run(run)) for run in returned["holders"])
    if len(returned["decisions"]) > 1:
        raise TlcError(f"a trace of one query is expected, got decisions of several: {returned['decisions']}")
    view = {"batch": "0"}
    for decision in returned["decisions"]:
        redone = names.with_ids(decision["redone"], map(_identity, decision["transactions"]))
        view = {
            "batch": str(decision["batch"] + 1),
            "run": str(names.run(decision["run"])),
            "transactions": names.set_of(decision["transactions"]),
            "redone": names.set_of(redone),
            "isFinished": _bool(decision["finished"]),
        }
    text = ", ".join(f"{name} |-> {value}" for name, value in view.items())
    return {"view": f"[{text}]", "holders": f"<<{holders}>>"}


def check(traces: Mapping[str, Sequence[Line]]) -> list[Verdict]:
    """Replay traces on the model, all in one run of TLC."""
    translated = {name: events_of(lines) for name, lines in traces.items()}
    sequences = ",\n".join(
        "<<" + ",\n  ".join(event.text for event in events) + ">>" for events, _ in translated.values()
    )
    every_name = [names for _, names in translated.values()]
    config = _CONFIG.format(
        tasks=", ".join(f'"t{task}"' for task in range(1, max(names.tasks for names in every_name) + 1)),
        chunks=max(number + 1 + len(rows) for names in every_name for number, rows in names.contents.items()),
        runs=max(len(names.runs) for names in every_name),
    )
    data = f"---- MODULE TraceData ----\nTraces == <<\n{sequences}\n>>\n====\n"
    files = {path.name: path.read_text() for path in MODEL.glob("*.tla")} | {"TraceData.tla": data}
    output = run_tlc(files, "Trace.tla", config, workers=1).output
    explained: dict[int, int] = {}
    for number, count in _EXPLAINED.findall(output):
        explained[int(number)] = max(explained.get(int(number), 0), int(count))
    return [
        Verdict(name, events, explained.get(number, 0))
        for number, (name, (events, _)) in enumerate(translated.items(), start=1)
    ]


def read(path: Path) -> list[Line]:
    """Read a trace; the last line may be cut off, if its process was killed."""
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines]


def main() -> int:
    verdicts = check({path: read(Path(path)) for path in sys.argv[1:]})
    for verdict in verdicts:
        print(verdict)
    accepted = sum(verdict.is_accepted for verdict in verdicts)
    print(f"traces: {accepted} of {len(verdicts)} accepted")
    return 0 if accepted == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
