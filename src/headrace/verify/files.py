"""History files: JSON lines, one operation each, in the order in which the operations happened.

    {"op":"send","type":"invoke","process":"w","value":"w:1","topic":"t","partition":0,"transaction":"w/1","time":0.5}

Fields without a value are left out. `time` is in seconds from the start; it is for people, the order of the lines
counts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from sys import intern
from types import TracebackType
from typing import Any, Self

from headrace.verify.operations import (
    AcknowledgeOp,
    Action,
    BatchOp,
    InvalidHistoryError,
    Operation,
    Phase,
    ReadOp,
    ReplicaOp,
    SeekOp,
    SendOp,
    StoredBatch,
    TransactionOp,
)

_LINES = 2_000  # parsed at a time
_PHASES = {phase.value: phase for phase in Phase}
_NAMES: dict[type[Operation], str] = {
    SendOp: "send",
    SeekOp: "seek",
    AcknowledgeOp: "acknowledge",
    BatchOp: "batch",
    ReplicaOp: "replica",
}
_RENAMED = {"phase": "type", "time_s": "time"}
_LEFT_OUT = ("action", "committed", "final")


def to_json(operation: Operation) -> str:
    """Return an operation as a line of JSON, without the newline."""
    fields: dict[str, object] = {"op": _name(operation)}
    if isinstance(operation, ReadOp):
        fields["isolation"] = "read_committed" if operation.committed else "read_uncommitted"
    for name, value in zip(operation._fields, operation, strict=True):
        if value is not None and value != () and name not in _LEFT_OUT:
            fields[_RENAMED.get(name, name)] = value
    if isinstance(operation, ReadOp):
        fields["records"] = operation.records
    return json.dumps(fields, separators=(",", ":"))


def _name(operation: Operation) -> str:
    match operation:
        case TransactionOp():
            return operation.action.value
        case ReadOp():
            return "final" if operation.final else "poll"
        case _:
            return _NAMES[type(operation)]


class HistoryWriter:
    """A file of operations, which it stamps with the time. Thread-safe; complete when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x", encoding="utf-8")  # Guarded by _lock.
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def add(self, *operations: Operation) -> None:
        """Write operations without others between them."""
        with self._lock:
            now = round(time.monotonic() - self._start, 6)
            self._file.writelines(f"{to_json(operation._replace(time_s=now))}\n" for operation in operations)

    def flush(self) -> None:
        """Make what was added so far readable."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Write the rest, and close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load_history(path: Path) -> Iterator[Operation]:
    """Yield the operations of a file."""
    with path.open(encoding="utf-8") as lines:
        yield from read_operations(lines, str(path))


def read_operations(lines: Iterable[str], name: str = "history") -> Iterator[Operation]:
    """Yield the operations of JSON lines; an error names the line."""
    number, rest = 0, iter(lines)
    while chunk := list(islice(rest, _LINES)):
        try:
            # One call for all lines takes half the time of a call for each.
            parsed = json.loads(f"[{','.join(line for line in chunk if not line.isspace())}]")
            if not all(type(fields) is dict for fields in parsed):
                raise TypeError("an operation is a JSON object")
            operations = [_operation(fields) for fields in parsed]
        except (ValueError, KeyError, TypeError):
            operations = [_checked(line, f"{name}:{number + n}") for n, line in enumerate(chunk, 1) if line.strip()]
        yield from operations
        number += len(chunk)


def _checked(line: str, position: str) -> Operation:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InvalidHistoryError(f"{position}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidHistoryError(f"{position}: invalid operation: expected a JSON object, got {line.strip()[:40]}")
    name = fields.get("op")
    if name not in _READERS:
        raise InvalidHistoryError(f"{position}: invalid op: expected one of {', '.join(_READERS)}, got {name!r}")
    try:
        return _operation(fields)
    except KeyError as error:
        if error.args[0] == fields.get("type"):
            text = f"invalid type: expected one of {', '.join(_PHASES)}, got {error.args[0]!r}"
            raise InvalidHistoryError(f"{position}: {text}") from None
        raise InvalidHistoryError(f"{position}: {name!r} without field {error}") from None
    except (ValueError, TypeError) as error:
        raise InvalidHistoryError(f"{position}: invalid {name!r}: {error}") from None


def _operation(fields: dict[str, Any]) -> Operation:
    return _READERS[fields["op"]](fields)


def _send(fields: dict[str, Any]) -> SendOp:
    get = fields.get
    return SendOp(
        _PHASES[fields["type"]],
        intern(fields["process"]),
        intern(fields["value"]),
        intern(fields["topic"]),
        get("partition"),
        get("offset"),
        get("transaction"),
        get("time"),
    )


def _transaction(fields: dict[str, Any]) -> TransactionOp:
    get, action = fields.get, Action(fields["op"])
    transaction = None if action is Action.INIT else fields["transaction"]
    return TransactionOp(
        action,
        _PHASES[fields["type"]],
        intern(fields["process"]),
        transaction,
        get("transactional_id"),
        get("producer"),
        get("time"),
    )


def _read(fields: dict[str, Any]) -> ReadOp:
    return ReadOp(
        intern(fields["process"]),
        intern(fields["topic"]),
        fields["partition"],
        _is_committed(fields["isolation"]),
        tuple((offset, intern(value)) for offset, value in fields["records"]),
        fields.get("high_watermark"),
        fields["op"] == "final",
        fields.get("time"),
    )


def _is_committed(isolation: str) -> bool:
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ValueError(f"expected isolation read_committed or read_uncommitted, got {isolation!r}")
    return isolation == "read_committed"


def _seek(fields: dict[str, Any]) -> SeekOp:
    return SeekOp(
        intern(fields["process"]),
        intern(fields["topic"]),
        fields["partition"],
        fields.get("offset"),
        fields.get("time"),
    )


def _acknowledge(fields: dict[str, Any]) -> AcknowledgeOp:
    phase, values = _PHASES[fields["type"]], tuple(fields.get("values", ()))
    return AcknowledgeOp(phase, intern(fields["process"]), fields["group"], values, fields.get("time"))


def _batch(fields: dict[str, Any]) -> BatchOp:
    phase, values = _PHASES[fields["type"]], tuple(fields.get("values", ()))
    return BatchOp(phase, intern(fields["process"]), fields["query"], fields["batch"], values, fields.get("time"))


def _replica(fields: dict[str, Any]) -> ReplicaOp:
    batches = tuple(StoredBatch(*batch) for batch in fields.get("batches", ()))
    return ReplicaOp(fields["broker"], intern(fields["topic"]), fields["partition"], batches, fields.get("time"))


_READERS: dict[str, Callable[[dict[str, Any]], Operation]] = {
    "send": _send,
    **dict.fromkeys((action.value for action in Action), _transaction),
    "poll": _read,
    "final": _read,
    "seek": _seek,
    "acknowledge": _acknowledge,
    "batch": _batch,
    "replica": _replica,
}
