"""Checks brokers on a damaged data folder: they keep acknowledged records, or report the loss.

The rules:

    refused     a failed start names the damaged file
    changed     no record differs from the acknowledged one, and no aborted record is visible
    silent      missing records are reported in the log, and reading them returns an error; of a compacted topic, a
                warning that names the last segment is enough, because its gap may be right (docs/operations.md)
    deleted     no acknowledged batch that was intact on disk is deleted
    ids         no producer id and epoch is assigned twice, every acknowledged batch is stored, and a repeated batch is
                not stored again
    hang        a read reaches the end, or an error
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import BrokerError, Code, WireError
from headrace.wire.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from headrace.wire.layout import MAGIC_OFFSET, Record
from headrace.wire.records import encode, read_batches
from tests.support.data_dir_brokers import RoutingClient
from tests.support.data_dir_damage import Damage
from tests.support.data_dir_image import GROUP, GROUP_OFFSET, ORDERS, PAYMENTS, PRICES, TRANSACTIONAL_ID, Facts
from tests.support.raw_producer import TIME_MS, RawProducer

VISIBLE = frozenset({"plain", "committed"})
BAD_CHECKSUM = "the checksum is wrong"
COMPACTED_GAP = "compaction has removed the offsets between, or this is damaged"
_FETCHES_MAX = 500


@dataclass
class Reading:
    """The records that a reader got from a partition, and the errors."""

    records: dict[int, tuple[str, str]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # by offset: the error of a fetch there
    end_offset: int = -1  # -1: the end was not reached
    stuck_at: int = -1  # an offset below the end where a fetch returned neither records nor an error


class Check:
    """Collects the rules that were broken."""

    def __init__(self, facts: Facts, damage: Damage, lines: list[str], *, replicated: bool) -> None:
        self._facts = facts
        self._damage = damage
        self._lines = lines
        self._replicated = replicated  # other brokers have all records: none may be lost
        self.broken: list[str] = []

    @property
    def is_named(self) -> bool:
        """Return whether the log names a damaged file."""
        return any(names(line, self._damage) for line in self._lines)

    def refusal(self, error: BaseException) -> None:
        """Check that the error of a failed start names a damaged file."""
        if not names(str(error), self._damage) and not self.is_named:
            self.broken.append(f"refused: the start failed without naming the file: {type(error).__name__}: {error}")

    def everything(self, client: RoutingClient) -> None:
        """Check all rules that clients can observe."""
        for name in sorted(self._facts.records):
            self._compare(name, self._read(client, name, committed=False), committed=False)
        self._producers(client)
        for name in sorted(self._facts.records):
            if name.startswith(ORDERS):
                self._compare(name, self._read(client, name, committed=True), committed=True)
        self._group(client)
        self._writes(client)

    def again(self, client: RoutingClient) -> None:
        """Check the records after a second start."""
        for name in sorted(self._facts.records):
            self._compare(f"{name}", self._read(client, name, committed=False), committed=False, again=True)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, client: RoutingClient, name: str, *, committed: bool) -> Reading:
        """Read a partition like a consumer that continues after an error."""
        topic, _, index = name.rpartition("-")
        expected = sorted(row[0] for row in self._facts.records[name])
        reading = Reading()
        offset = self._facts.start_offsets.get(name, 0)
        for _ in range(_FETCHES_MAX):
            fetched = client.fetch(topic, int(index), offset, committed=committed)
            code = fetched.error_code
            if not code:
                end = fetched.last_stable_offset if committed else fetched.high_watermark
                data = fetched.records or b""
                assert isinstance(data, bytes | bytearray | memoryview)
                if not data:
                    if offset >= end:
                        reading.end_offset = offset
                        return reading
                    reading.stuck_at = offset
                    return reading
                aborted = sorted((row.first_offset, row.producer_id) for row in fetched.aborted_transactions or ())
                try:
                    offset = _add(reading, data, offset, aborted)
                    continue
                except WireError:
                    reading.refused[offset] = BAD_CHECKSUM
            else:
                reading.refused[offset] = Code(code).name
            later = [each for each in expected if each > offset]
            if not later:
                return reading
            offset = later[0]
        self.broken.append(f"hang: {name} is not read to its end after {_FETCHES_MAX} fetches")
        return reading

    def _compare(self, name: str, reading: Reading, *, committed: bool, again: bool = False) -> None:
        how = ("committed records of " if committed else "") + name + (" after a second start" if again else "")
        rows = {row[0]: row for row in self._facts.records[name] if not committed or row[3] in VISIBLE}
        hidden = {row[0] for row in self._facts.records[name]} - rows.keys()
        end_offset = max(row[0] for row in self._facts.records[name]) + 1
        if reading.stuck_at >= 0:
            self.broken.append(f"hang: {how}: a fetch at {reading.stuck_at} returns neither records nor an error")
        missing = []
        for offset, (_, key, value, _) in rows.items():
            record = reading.records.get(offset)
            if record is None:
                missing.append(offset)
            elif record != (key, value) and not (again and self.is_named):
                self.broken.append(f"changed: {how}: offset {offset} is {record}, not {(key, value)}")
        for offset, record in reading.records.items():
            if committed and offset in hidden:
                self.broken.append(f"changed: {how}: offset {offset} is not committed, but visible")
            elif offset not in rows and offset < end_offset and not self._may_reappear(name, offset):
                self.broken.append(f"changed: {how}: offset {offset} was never written, but is {record}")
        if not missing:
            return
        if not self.is_named:
            self.broken.append(f"silent: {how}: offsets {_ranges(missing)} are missing, and no line names the file")
        lost = [offset for offset in missing if 0 <= reading.end_offset <= offset]
        passed = [offset for offset in missing if offset not in reading.refused and offset not in lost]
        if passed and reading.stuck_at < 0 and not again and not self._may_be_compacted(name):
            self.broken.append(f"silent: {how}: offsets {_ranges(passed)} are skipped without an error")
        if lost and self._replicated and not committed:
            self.broken.append(f"spread: {how}: offsets {_ranges(lost)} are lost though two other brokers had them")

    def _may_be_compacted(self, name: str) -> bool:
        """Return whether the log names a gap in the last segment of a compacted topic, which compaction may leave."""
        return name.startswith(PRICES) and any(
            f"/{name}/" in line and COMPACTED_GAP in line and names(line, self._damage) for line in self._lines
        )

    def _may_reappear(self, name: str, offset: int) -> bool:
        """Return whether a deleted record may reappear: after compaction, or DeleteRecords if the log reports it."""
        if name.startswith(PRICES):
            return True
        return name.startswith(PAYMENTS) and offset < self._facts.start_offsets.get(name, 0) and self.is_named

    # -- producers, groups, new records ----------------------------------------------------------

    def _producers(self, client: RoutingClient) -> None:
        """Initialise the transactional producer again: it must get a new epoch."""
        producer = RawProducer(client, ORDERS, TRANSACTIONAL_ID)
        try:
            response = producer.init(patient=False)
            for _ in range(100):
                if response.error_code != Code.CONCURRENT_TRANSACTIONS:
                    break
                response = producer.init(patient=False)
        except BrokerError as error:
            self._add_unless_named(f"no producer id for {TRANSACTIONAL_ID}: {error}")
            return
        if response.error_code:
            self._add_unless_named(f"no producer id for {TRANSACTIONAL_ID}: {Code(response.error_code).name}")
            return
        producer_id, epoch = self._facts.transaction
        if producer.producer_id == producer_id:
            if producer.epoch <= epoch:
                self.broken.append(f"ids: epoch {producer.epoch} of producer {producer_id} is assigned again")
        elif producer.producer_id in self._facts.producer_ids:
            self.broken.append(f"ids: producer id {producer.producer_id} is assigned again")
        elif not self.is_named:
            self.broken.append(f"silent: {TRANSACTIONAL_ID} got a new producer id, and no line names the file")

    def _group(self, client: RoutingClient) -> None:
        request = OffsetFetchRequest(
            group_id=GROUP, topics=[OffsetFetchRequestTopic(name=ORDERS, partition_indexes=[0])]
        )
        try:
            response = client.call(request, 7)
        except BrokerError as error:
            self._add_unless_named(f"no offsets of group {GROUP}: {error}")
            return
        assert isinstance(response, OffsetFetchResponse)
        rows = [row for topic in response.topics for row in topic.partitions]
        if code := response.error_code or rows[0].error_code:
            self._add_unless_named(f"no offsets of group {GROUP}: {Code(code).name}")
        elif rows[0].committed_offset != GROUP_OFFSET and not self.is_named:
            self.broken.append(f"silent: group {GROUP} is at {rows[0].committed_offset}, not at {GROUP_OFFSET}")

    def _writes(self, client: RoutingClient) -> None:
        """Check that new records are stored, and a repeated batch is not."""
        resend, fresh = (base64.b64decode(self._facts.resend[name]) for name in ("data", "next"))
        response = client.produce(ORDERS, resend)
        if not response.error_code and response.base_offset != self._facts.resend["base_offset"] and not self.is_named:
            self.broken.append(
                f"ids: a repeated batch was stored again at {response.base_offset}, "
                f"after {self._facts.resend['base_offset']}"
            )
        self._stored(client, ORDERS, 0, fresh, {"next"}, may_fail=True)
        producer = RawProducer(client, ORDERS)
        init = producer.init(patient=False)
        if init.error_code:
            self._add_unless_named(f"no new producer id: {Code(init.error_code).name}")
            return
        if producer.producer_id in self._facts.producer_ids:
            self.broken.append(f"ids: producer id {producer.producer_id} is assigned again")
        for name in sorted(self._facts.records):
            topic, _, index = name.rpartition("-")
            data = producer.batch(0, b"new") if topic != PRICES else _keyed()
            self._stored(client, topic, int(index), data, {"new"}, may_fail=self.is_named)

    def _stored(
        self, client: RoutingClient, topic: str, partition: int, data: bytes, values: set[str], *, may_fail: bool
    ) -> None:
        response = client.produce(topic, data, partition=partition)
        if response.error_code:
            if not may_fail:
                self._add_unless_named(f"a new batch for {topic}-{partition} gets {Code(response.error_code).name}")
            return
        fetched = client.fetch(topic, partition, response.base_offset, committed=False)
        reading = Reading()
        if not fetched.error_code and isinstance(fetched.records, bytes | bytearray | memoryview):
            _add(reading, fetched.records, response.base_offset, [])
        _, stored = reading.records.get(response.base_offset, ("", ""))
        if stored not in values:
            self.broken.append(
                f"ids: a new batch for {topic}-{partition} is acknowledged at {response.base_offset}, "
                f"but the record there is {stored!r} (error {fetched.error_code})"
            )

    def _add_unless_named(self, what: str) -> None:
        if not self.is_named:
            self.broken.append(f"silent: {what}, and no line names the file")


def names(line: str, damage: Damage) -> bool:
    """Return whether a line names a damaged file, or the partition of a missing folder."""
    for file in damage.files:
        folder = file.parts[1] if len(file.parts) > 2 else ""
        if folder in line and file.name in line:
            return True
    return False


def batches_of(root: Path) -> set[bytes]:
    """Return the batches of all segments below `root`, without the bytes that a broker changes."""
    return {
        bytes(batch.view[MAGIC_OFFSET:])
        for path in root.rglob("*.log")
        for batch in read_batches(path.read_bytes(), partial=True)
    }


def kept_on_disk(root: Path, batches: Iterable[bytes]) -> set[bytes]:
    """Return the batches that are intact in some file below `root`, except files to be deleted."""
    contents = [
        path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(".deleted") and not path.parent.name.endswith("-delete")
    ]
    return {batch for batch in batches if any(batch in content for content in contents)}


def _add(reading: Reading, data: bytes | bytearray | memoryview, offset: int, aborted: list[tuple[int, int]]) -> int:
    """Add the records of a fetch, and return the next offset."""
    inside: set[int] = set()
    after = offset
    for batch in read_batches(bytes(data), partial=True):
        batch.verify()
        while aborted and aborted[0][0] <= batch.header.last_offset:
            inside.add(aborted.pop(0)[1])
        if batch.header.is_control:
            inside.discard(batch.header.producer_id)
        elif not (batch.header.is_transactional and batch.header.producer_id in inside):
            for record in batch.records():
                if record.offset >= offset:
                    reading.records[record.offset] = ((record.key or b"").decode(), (record.value or b"").decode())
        after = batch.header.last_offset + 1
    if after <= offset:
        raise WireError(f"a fetch at {offset} has no complete batch")
    return after


def _ranges(offsets: list[int]) -> str:
    return f"{min(offsets)} to {max(offsets)} ({len(offsets)})"


def _keyed() -> bytes:
    return bytes(encode([Record(0, TIME_MS, b"new", b"new", ())]))
