"""Batches in a common form, decoded by headrace or by Java, for comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.wire.layout import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, Record
from headrace.wire.records import Marker, RecordBatch, decode_marker
from tests.support.peers.java import JavaRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A decoded batch. A control batch has its marker instead of a record."""

    records: tuple[Record, ...] = ()
    magic: int = 2
    codec: int = 0
    base_offset: int = 0
    last_offset: int = 0
    max_timestamp: int = NO_TIMESTAMP
    append_time: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    leader_epoch: int = NO_LEADER_EPOCH
    transactional: bool = False
    marker: Marker | None = None

    @classmethod
    def of(cls, records: list[Record], **facts: Any) -> Batch:
        """Return the batch that a producer, or with an append time a broker, creates from records."""
        if (append_time := facts.get("append_time", NO_TIMESTAMP)) != NO_TIMESTAMP:
            records = [record._replace(timestamp=append_time) for record in records]
        return cls(
            records=tuple(records),
            base_offset=records[0].offset,
            last_offset=records[-1].offset,
            max_timestamp=max(record.timestamp for record in records),
            **facts,
        )


def read_by_us(batch: RecordBatch) -> Batch:
    """A batch as headrace reads it."""
    header, records = batch.header, batch.records()
    marker = decode_marker(records[0]) if header.is_control else None
    return Batch(
        records=() if marker else tuple(records),
        magic=header.magic,
        codec=header.codec,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        max_timestamp=header.max_timestamp,
        append_time=header.append_time,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
        transactional=header.is_transactional,
        marker=marker,
    )


class JavaBatches:
    """Kafka's Java classes as a writer and reader of batches, by way of files."""

    def __init__(self, java: JavaRunner, source: Path, folder: Path) -> None:
        self._java = java
        self._source = source
        self._folder = folder

    def write(self, jars: Path, batches: Mapping[str, Batch]) -> dict[str, bytes]:
        """The bytes of batches, by name."""
        cases, written = self._folder / "cases.json", self._folder / "written"
        written.mkdir()
        cases.write_text(json.dumps([_to_json(name, batch) for name, batch in batches.items()]))
        self._java(jars, self._source, "write", cases, written)
        return {path.name: path.read_bytes() for path in written.iterdir()}

    def read(self, jars: Path, files: Mapping[str, bytes | memoryview]) -> dict[str, list[Batch] | str]:
        """Let Java decode batches, by name; return the batches, or Java's error message."""
        to_read = self._folder / "to_read"
        to_read.mkdir()
        for name, data in files.items():
            (to_read / name).write_bytes(data)
        reply = json.loads(self._java(jars, self._source, "read", to_read))
        return {
            name: value if isinstance(value, str) else [_from_json(batch) for batch in value]
            for name, value in reply.items()
        }


def _to_json(name: str, batch: Batch) -> dict[str, Any]:
    facts = asdict(replace(batch, records=(), marker=None))
    marker = batch.marker
    return facts | {
        "name": name,
        "timestamp": batch.max_timestamp,
        "committed": None if marker is None else marker.committed,
        "coordinator_epoch": None if marker is None else marker.coordinator_epoch,
        "records": [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _hex(record.key),
                "value": _hex(record.value),
                "headers": [[name, _hex(value)] for name, value in record.headers],
            }
            for record in batch.records
        ],
    }


def _from_json(facts: dict[str, Any]) -> Batch:
    marker = None
    if facts.pop("control"):
        marker = Marker(facts.pop("committed"), facts.pop("coordinator_epoch"))
    records = [
        Record(
            record["offset"],
            record["timestamp"],
            _bytes(record["key"]),
            _bytes(record["value"]),
            tuple((name, _bytes(value)) for name, value in record["headers"]),
        )
        for record in facts.pop("records")
    ]
    return Batch(records=() if marker else tuple(records), marker=marker, **facts)


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
