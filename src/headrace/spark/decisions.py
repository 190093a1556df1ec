"""Decisions: which batch of which query is decided, and what is left to do for it.

    decision topic (one partition, compacted), key [sink, query]             → the last decision of that query
                                               key [sink, query, "part", n]  → a part of it, if it is too large
                                               key [sink, "holders", 1]      → the runs that have held the sink

A decision is a record, written in the transaction of `sink.id` that also has the inline rows of the batch. The batch is
decided when that transaction is committed, and not before. A decision with very many tasks is several records of that
transaction: its transactions are in parts, and the record of the decision has their number. What is left of it when it
is finished, without the offsets of the tasks, is small.

    Decision.records    a decision as records of the decision topic; Decision.decode is the reverse
    Fingerprint         row count and hash of a batch: tells a replay from another batch with the same number
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.spark.errors import SinkError
from headrace.spark.holders import DriverProcess
from headrace.spark.origins import NOTHING, Coverage
from headrace.types import TopicPartition

VERSION, VERSION_IN_PARTS = 2, 3
"""Version 2 added the fingerprint and the driver. Version 3 has parts, 2 has none. Unknown keys are ignored."""
VERSIONS_READ = (1, VERSION, VERSION_IN_PARTS)
PLAIN_BYTES_MAX = 32 * 1024
"""Larger decisions are compressed: with many tasks and partitions they are long and repetitive."""
COMPRESSION_LEVEL = 1
"""The fastest: higher levels take ten times as long for a fifth less."""
RECORD_BYTES_MAX = 900_000
"""Larger decisions are written in parts. It fits the default of max.message.bytes, with which others create topics."""
INFLATED_BYTES_MAX = 256 * 1024 * 1024
HASH_MODULUS = 1 << 64
ANY_TOPIC, ANY_PARTITION = "", -1
"""Of the span that has only a number of records: the transaction of a finished decision."""

Records = dict[bytes, bytes | None]
"""Records of the decision topic: the last value of each key; None for a tombstone."""


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a transaction in one partition. Other records may be between `first` and `last`."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The transaction of a task: all records acknowledged, left open for the driver to end."""

    id: str
    producer_id: int
    epoch: int
    is_v2: bool
    """Transactions v2 (KIP-890): EndTxn gives the id a new epoch."""
    spans: tuple[Span, ...]

    @property
    def identity(self) -> tuple[str, int, int]:
        """Unique: every transaction gets a new epoch before it begins."""
        return self.id, self.producer_id, self.epoch

    @property
    def record_count(self) -> int:
        return sum(span.count for span in self.spans)

    def without_offsets(self) -> TaskTransaction:
        """Return it with the number of its records only: offsets are for a redo, and it is ended."""
        return replace(self, spans=(Span(ANY_TOPIC, ANY_PARTITION, -1, -1, self.record_count),))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows of a batch and the sum of their hashes (modulo 2^64), independent of their order."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.hash + other.hash) % HASH_MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows with hash {self.hash:016x}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The record that makes a batch decided: all of its rows become visible."""

    sink: str
    query: str
    run: str
    batch: int
    transactions: tuple[TaskTransaction, ...] = ()
    inline_rows: int = 0
    at_ms: int = 0
    is_finished: bool = False
    redone: frozenset[str] = field(default_factory=frozenset)
    """Ids of transactions that expired and whose rows were written again."""
    fingerprint: Fingerprint | None = None
    """None in decisions of version 1."""
    driver: DriverProcess | None = None
    """The driver that decided. None in decisions of version 1."""
    offsets: Coverage = NOTHING
    """Source offsets that the query has covered, including this batch."""
    base: Coverage = NOTHING
    """Source offsets that were skipped in this batch because other queries of the sink had covered them."""
    batch_offsets: Coverage = NOTHING
    """Source offsets of this batch alone. Empty without the option source.offsets."""

    @property
    def rows(self) -> int:
        """All rows of the batch, dead letters included."""
        return self.inline_rows + sum(transaction.record_count for transaction in self.transactions)

    @property
    def unended(self) -> list[TaskTransaction]:
        """The transactions that have to be committed: all but those that were redone."""
        return [transaction for transaction in self.transactions if transaction.id not in self.redone]

    def finished(self) -> Decision:
        transactions = tuple(transaction.without_offsets() for transaction in self.transactions)
        return replace(self, is_finished=True, transactions=transactions)

    def with_redone(self, transaction: TaskTransaction) -> Decision:
        return replace(self, redone=self.redone | {transaction.id})

    def holds(self, transaction: TaskTransaction) -> bool:
        return any(own.identity == transaction.identity for own in self.transactions)

    @property
    def key(self) -> bytes:
        return decision_key(self.sink, self.query)

    def records(self) -> dict[bytes, bytes]:
        """Return the records that are this decision: one, or if that would be too large, its parts and one more."""
        data, bytes_max = self.encode(), RECORD_BYTES_MAX
        part_count = 1
        while len(data) > bytes_max and part_count < len(self.transactions):
            part_count = max(2 * part_count, len(data) // bytes_max + 1)
            step = -(-len(self.transactions) // part_count)
            parts = [
                self._encode_part(self.transactions[start : start + step])
                for start in range(0, len(self.transactions), step)
            ]
            if max(map(len, parts)) <= bytes_max or step == 1:
                records = {part_key(self.key, index): part for index, part in enumerate(parts)}
                return {**records, self.key: self.encode(len(parts))}
        return {self.key: data}

    def encode(self, part_count: int = 0) -> bytes:
        """Return the value of the decision's record. With parts, it has no transactions."""
        fields: dict[str, Any] = {
            "v": VERSION_IN_PARTS if part_count else VERSION,
            "sink": self.sink,
            "query": self.query,
            "run": self.run,
            "batch": self.batch,
            "state": "finished" if self.is_finished else "decided",
            "at": self.at_ms,
            "inline": self.inline_rows,
            "transactions": [] if part_count else [_transaction_json(entry) for entry in self.transactions],
            "redone": sorted(self.redone),
        }
        # Optional keys: decode() has a default for each.
        if part_count:
            fields["parts"] = part_count
        if self.fingerprint is not None:
            fields |= {"rows": self.fingerprint.rows, "hash": f"{self.fingerprint.hash:016x}"}
        if self.driver is not None:
            fields["driver"] = self.driver.to_json()
        if self.offsets.intervals:
            fields["offsets"] = self.offsets.to_json()
        if self.base.intervals:
            fields["base"] = self.base.to_json()
        if self.batch_offsets.intervals:
            fields["batch_offsets"] = self.batch_offsets.to_json()
        return _to_bytes(fields)

    def _encode_part(self, transactions: tuple[TaskTransaction, ...]) -> bytes:
        entries = [_transaction_json(entry) for entry in transactions]
        return _to_bytes({**_identity(self.run, self.batch, self.at_ms), "transactions": entries})

    @classmethod
    def decode(cls, data: bytes, parts: Sequence[bytes] = ()) -> Decision:
        """Decode the value of a decision's record. `parts`: the values of its parts in order, if it has any."""
        try:
            fields = _from_bytes(data)
            version = fields["v"]
            if version not in VERSIONS_READ:
                raise SinkError(
                    f"unsupported decision record: expected version {VERSIONS_READ[-1]} or lower, got {version}; "
                    "use the headrace that wrote it, or a newer one"
                )
            return cls(
                fields["sink"],
                fields["query"],
                fields["run"],
                int(fields["batch"]),
                tuple(_transaction(entry) for entry in _transactions(fields, parts)),
                int(fields["inline"]),
                int(fields["at"]),
                {"finished": True, "decided": False}[fields["state"]],
                frozenset(fields["redone"]),
                Fingerprint(int(fields["rows"]), int(fields["hash"], 16)) if "hash" in fields else None,
                DriverProcess.from_json(fields["driver"]) if "driver" in fields else None,
                Coverage.from_json(fields.get("offsets", {})),
                Coverage.from_json(fields.get("base", {})),
                Coverage.from_json(fields.get("batch_offsets", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise SinkError(f"invalid decision record: {data[:100]!r} ({error!r})") from error


def decision_key(sink: str, query: str) -> bytes:
    return json.dumps([sink, query], separators=(",", ":")).encode()


def part_key(key: bytes, index: int) -> bytes:
    """Return the key of a part of the decision with this key. It has four elements: readers of version 2 skip it."""
    return json.dumps([*json.loads(key), "part", index], separators=(",", ":")).encode()


def part_index(key: bytes) -> int | None:
    """Return the index of the part that has this key; None if it is not the key of a part."""
    match json.loads(key):
        case [str(), str(), "part", int(index)]:
            return index
    return None


def is_part_of(key: bytes, decision: bytes) -> bool:
    """Whether this is the key of a part of the decision with that key."""
    index = part_index(key)
    return index is not None and key == part_key(decision, index)


def parts_of(key: bytes, records: Mapping[bytes, bytes | None]) -> list[bytes]:
    """Return the parts that records have of the decision with this key, in order."""
    parts: list[bytes] = []
    while (value := records.get(part_key(key, len(parts)))) is not None:
        parts.append(value)
    return parts


def _identity(run: str, batch: int, at_ms: int) -> dict[str, Any]:
    """Return what a decision and its parts have in common, and no other decision has."""
    return {"run": run, "batch": batch, "at": at_ms}


def _transactions(fields: dict[str, Any], parts: Sequence[bytes]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = list(fields["transactions"])
    count = int(fields.get("parts", 0))
    identity = _identity(fields["run"], fields["batch"], fields["at"])
    for index in range(count):
        part = _from_bytes(parts[index]) if index < len(parts) else {}
        if any(part.get(name) != value for name, value in identity.items()):
            raise SinkError(
                f"the decision on batch {fields['batch']} of query {fields['query']!r} (sink.id {fields['sink']!r}) is "
                f"incomplete: part {index + 1} of {count} is not in the decision topic. Were records deleted from it? "
                "Compare the rows of this batch with what is in their topics"
            )
        entries += part["transactions"]
    return entries


def _to_bytes(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text if len(text) <= PLAIN_BYTES_MAX else zlib.compress(text, COMPRESSION_LEVEL)


def _from_bytes(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data if data[:1] == b"{" else _inflate(data))
    return fields


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, INFLATED_BYTES_MAX)
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {INFLATED_BYTES_MAX} bytes")
    return text


def _transaction_json(transaction: TaskTransaction) -> dict[str, Any]:
    spans: defaultdict[str, list[list[int]]] = defaultdict(list)
    for span in transaction.spans:
        spans[span.topic].append([span.partition, span.first, span.last, span.count])
    return {
        "id": transaction.id,
        "pid": transaction.producer_id,
        "epoch": transaction.epoch,
        "v2": transaction.is_v2,
        "spans": spans,
    }


def _transaction(fields: dict[str, Any]) -> TaskTransaction:
    spans = tuple(Span(topic, *map(int, row)) for topic, rows in fields["spans"].items() for row in rows)
    return TaskTransaction(fields["id"], int(fields["pid"]), int(fields["epoch"]), bool(fields["v2"]), spans)
