"""Reading partitions: a consumer without a group.

    assign → positions → Fetch to all leaders in parallel → VisibleBatches → poll: records | poll_arrow: columns

It is used by one thread, and works only during calls. While the caller processes the result of a poll, the next fetch
is in flight.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Self, Unpack

import pyarrow as pa

from headrace.client.blocking import TRY_AGAIN, BlockingClient, ClientOptions, ClientSettings, Pending
from headrace.client.connection import Request
from headrace.client.fetch_data import FetchedRecord, PartitionReader, VisibleBatches, Watermarks, located
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import EARLIEST, LATEST, Isolation, PartitionOffset, by_topic, list_offsets
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import (
    BrokerError,
    Code,
    ConfigError,
    ConnectionFailedError,
    IllegalStateError,
    RecordTooLargeError,
    WireError,
)
from headrace.types import TopicPartition
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.wire.api.leaders import NodeEndpoint
from headrace.wire.columns import OFFSET_MAX, ArrowDecoder
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch

log = logging.getLogger("headrace.client")

TOPIC_MAY_COME = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID})
NEWEST_BY_NAME = 12  # From 13 on, requests have topic ids.
RECREATED_MS_MAX = 2000.0
"""How long a topic may have another id than expected: the metadata may be stale."""
OutOfRange = Literal["error", "earliest", "latest"]


class _Fetch(NamedTuple):
    """A fetch in flight."""

    pending: Pending[FetchResponse]
    positions: dict[TopicPartition, tuple[PartitionReader, int]]
    names: dict[bytes | None, str]
    """Topics by id: from version 13 on, responses have no names."""


class Fetcher:
    """Reads the assigned partitions."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | BlockingClient,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        out_of_range: OutOfRange = "error",
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        partition_bytes_max: int = 1024 * 1024,
        control_batches: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ClientOptions],
    ) -> None:
        """A client that is passed in is not closed with the fetcher.

        `control_batches`: return transaction markers, too. Use it with `poll_batches`, which does not decode them.
        """
        if out_of_range not in ("error", "earliest", "latest"):
            raise ConfigError(f"out_of_range: expected error, earliest or latest, got {out_of_range!r}")
        self._owns_client = not isinstance(bootstrap_servers, BlockingClient)
        if isinstance(bootstrap_servers, BlockingClient):
            self._client = bootstrap_servers
        else:
            servers = bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
            self._client = BlockingClient(ClientSettings(servers, **options), clock)
        self._clock = clock
        self._isolation = Isolation.of(isolation)
        self._out_of_range: OutOfRange = out_of_range
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_bytes_max = partition_bytes_max
        self._control_batches = control_batches
        self._partitions: dict[TopicPartition, PartitionReader] = {}
        self._topic_ids: Mapping[str, bytes] = {}  # Expected ids, by topic.
        self._in_flight: dict[int, _Fetch] = {}  # By node.
        self._serves = 0

    # -- assignment and positions --------------------------------------------------------------

    def assign(
        self,
        positions: Mapping[TopicPartition, int] | Iterable[TopicPartition],
        until: Mapping[TopicPartition, int] | None = None,
        *,
        check: bool = True,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Read only these partitions, from these offsets (or EARLIEST, LATEST), by default the earliest.

        `until` has the offsets at which to stop: see `is_finished`. Without `check`, missing partitions are errors of
        `poll` only.

        With `topic_ids`, polling raises a BrokerError (Code.INCONSISTENT_TOPIC_ID) instead of reading a topic that has
        another id, because it was deleted and created again.
        """
        self._topic_ids = topic_ids or {}
        if not isinstance(positions, Mapping):
            positions = dict.fromkeys(positions, EARLIEST)
        starts = {TopicPartition(*tp): start for tp, start in positions.items()}
        symbolic = {tp: start for tp, start in starts.items() if start < 0}
        resolved = self._list(symbolic)
        ends = {TopicPartition(*tp): end for tp, end in (until or {}).items()}
        self._partitions = {
            tp: PartitionReader(tp, resolved[tp].offset if tp in resolved else start, ends.get(tp, OFFSET_MAX))
            for tp, start in starts.items()
        }
        # Explicit offsets are not checked, but their partitions are.
        given = [tp for tp in starts if tp not in resolved]
        if check:
            self._list(dict.fromkeys(given, EARLIEST))
        elif given:
            self._client.cluster({tp.topic for tp in given}, self._client.deadline())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset, or at EARLIEST or LATEST."""
        known = self._known(partition)
        if offset < 0:
            offset = self._list({known.name: offset})[known.name].offset
        # A new reader: a fetch in flight for the old one is discarded.
        self._partitions[known.name] = PartitionReader(known.name, offset, known.until)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record of that time or later, or at the end."""
        names = list(self._partitions) if partitions is None else [TopicPartition(*tp) for tp in partitions]
        for tp, first in self._list(dict.fromkeys(names, timestamp_ms)).items():
            self.seek(tp, first.offset if first.offset >= 0 else LATEST)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record, or of a hidden batch before it."""
        return self._known(partition).position

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic in the metadata; None if it has none."""
        return self._client.metadata.cluster.topic_id(topic)

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        return self._known(partition).watermarks

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._partitions)

    def is_finished(self) -> bool:
        """Return whether every partition has reached its end (`until`)."""
        return all(state.is_finished for state in self._partitions.values())

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets."""
        starts = self._list(dict.fromkeys((TopicPartition(*tp) for tp in partitions), EARLIEST))
        return {tp: start.offset for tp, start in starts.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks; with read_committed, the last stable offsets."""
        ends = self._list(dict.fromkeys((TopicPartition(*tp) for tp in partitions), LATEST))
        return {tp: end.offset for tp, end in ends.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        """Return the first record of a time (in milliseconds) or later; offset -1 if there is none."""
        return self._list({TopicPartition(*tp): time for tp, time in times.items()})

    def _list(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        return list_offsets(self._client, times, self._isolation) if times else {}

    def _known(self, partition: TopicPartition) -> PartitionReader:
        state = self._partitions.get(TopicPartition(*partition))
        if state is None:
            raise IllegalStateError(f"{TopicPartition(*partition)} is not assigned")
        return state

    # -- reading -------------------------------------------------------------------------------

    def poll(self, timeout_ms: float, records_max: int = 500) -> list[FetchedRecord]:
        """Return up to `records_max` records; an empty list on timeout."""
        self._fill(timeout_ms)
        out: list[FetchedRecord] = []
        for state in self._least_recently_served():
            while len(out) < records_max and (batch := state.next_batch()) is not None:
                self._take_records(state, batch, records_max - len(out), out)
        return out

    def _take_records(self, state: PartitionReader, batch: RecordBatch, room: int, out: list[FetchedRecord]) -> None:
        if not state.records:
            state.records = [r for r in self._decode(state, batch) if state.position <= r.offset < state.until]
            state.records.reverse()
        topic, partition = state.name
        while state.records and room:
            record = state.records.pop()
            out.append(FetchedRecord(topic, partition, *record))
            state.position = record.offset + 1
            room -= 1
        if not state.records:
            state.finish_batch()
            self._served(state)

    def poll_arrow(self, timeout_ms: float, *, with_headers: bool = False) -> dict[TopicPartition, pa.RecordBatch]:
        """Return all fetched records as columns: offset, timestamp, key, value, and optionally headers."""
        taken = self._poll_batches(timeout_ms)
        try:
            return {
                tp: self._columns(self._partitions[tp], start, batches, with_headers)
                for tp, (start, batches) in taken.items()
            }
        except WireError:
            for tp, (start, _) in taken.items():
                self.seek(tp, start)  # nothing of it was returned
            raise

    def poll_batches(self, timeout_ms: float) -> dict[TopicPartition, list[RecordBatch]]:
        """Return all fetched batches, encoded. The first and last may have records outside the requested range."""
        return {tp: batches for tp, (_, batches) in self._poll_batches(timeout_ms).items()}

    def _poll_batches(self, timeout_ms: float) -> dict[TopicPartition, tuple[int, list[RecordBatch]]]:
        self._fill(timeout_ms)
        taken: dict[TopicPartition, tuple[int, list[RecordBatch]]] = {}
        for state in self._least_recently_served():
            start, batches = state.position, []
            while (batch := state.next_batch()) is not None:
                batches.append(batch)
                state.finish_batch()
            if batches:
                taken[state.name] = (start, batches)
                self._served(state)
        self._send(self._clock.monotonic_ms())
        return taken

    def _columns(
        self, state: PartitionReader, start: int, batches: list[RecordBatch], with_headers: bool
    ) -> pa.RecordBatch:
        decoder = ArrowDecoder(with_headers=with_headers, bytes_hint=sum(batch.header.size for batch in batches))
        for batch in batches:
            try:
                decoder.add(batch, first_offset=start, end_offset=state.until)
            except WireError as error:
                raise located(error, state.name, batch.header.base_offset) from None
        return decoder.finish()

    def _decode(self, state: PartitionReader, batch: RecordBatch) -> list[Record]:
        try:
            return batch.records()
        except WireError as error:
            raise located(error, state.name, batch.header.base_offset) from None

    def _least_recently_served(self) -> list[PartitionReader]:
        return sorted(self._partitions.values(), key=lambda state: state.last_served)

    def _served(self, state: PartitionReader) -> None:
        self._serves += 1
        state.last_served = self._serves

    # -- fetching ------------------------------------------------------------------------------

    def _fill(self, timeout_ms: float) -> None:
        """Fetch until there is a batch to return, or until the timeout."""
        deadline = self._clock.monotonic_ms() + timeout_ms
        while True:
            self._reap()
            if [state for state in self._partitions.values() if state.next_batch() is not None]:
                return
            now = self._clock.monotonic_ms()
            wait_ms = self._send(now)
            if now >= deadline or self.is_finished():
                self._client.check_open()
                return
            self._client.poll(min(deadline - now, wait_ms))

    def _send(self, now: float) -> float:
        """Send a fetch to every leader without one in flight; returns the time until the next check."""
        cluster = self._client.metadata.cluster
        by_node: defaultdict[int, list[PartitionReader]] = defaultdict(list)
        wait_ms = self._client.settings.request_timeout_ms
        for state in self._least_recently_served():
            if state.in_flight or state.is_finished or state.fetched is not None or state.batch is not None:
                continue
            if now < state.retry_at_ms:
                wait_ms = min(wait_ms, state.retry_at_ms - now)
                continue
            leader = cluster.leader(*state.name)
            if leader == NO_LEADER:
                self._failed(state, Code.UNKNOWN_TOPIC_OR_PARTITION, now)
            elif self._is_recreated(state.name.topic):
                self._failed(state, Code.INCONSISTENT_TOPIC_ID, now, RECREATED_MS_MAX)
            elif leader not in self._in_flight:
                by_node[leader].append(state)
        for node_id, states in by_node.items():
            if self._client.network.is_ready(node_id, now):
                self._send_to(node_id, states, now)
            else:
                if self._client.network.is_backing_off(node_id, now):
                    self._client.metadata.request_update()  # the leaders may have changed
                wait_ms = min(wait_ms, max(1.0, self._client.network.delay_ms(node_id, now)))
        return wait_ms

    def _send_to(self, node_id: int, states: list[PartitionReader], now: float) -> None:
        self._client.metadata.touch({state.name.topic for state in states})
        by_name = {state.name: state for state in states}
        ids = {state.name.topic: self._client.metadata.cluster.topic_id(state.name.topic) for state in states}
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=int(self._isolation),
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=ids[topic] or bytes(16),
                    partitions=[
                        FetchPartition(
                            partition=number,
                            fetch_offset=(state := by_name[TopicPartition(topic, number)]).position,
                            partition_max_bytes=state.fetch_bytes(self._partition_bytes_max),
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(by_name).items()
            ],
        )
        pending: Pending[FetchResponse] = Pending(node_id)
        for state in states:
            state.in_flight = True
        positions = {state.name: (state, state.position) for state in states}
        self._in_flight[node_id] = _Fetch(pending, positions, {topic_id: topic for topic, topic_id in ids.items()})
        low = 4 if self._isolation is Isolation.READ_COMMITTED else 0
        high = FetchRequest.versions.last if all(ids.values()) else NEWEST_BY_NAME
        timeout_ms = self._client.settings.request_timeout_ms + self._max_wait_ms
        self._client.network.send(node_id, Request.of(request, pending.take, timeout_ms, (low, high)), now)

    def _reap(self) -> None:
        """Process the responses that have arrived."""
        for node_id, (pending, positions, names) in list(self._in_flight.items()):
            if pending.response is None:
                continue
            del self._in_flight[node_id]
            for state, _ in positions.values():
                state.in_flight = False
            now = self._clock.monotonic_ms()
            try:
                response = pending.result()
            except ConnectionFailedError:
                self._client.metadata.request_update()
                continue
            for topic in response.responses:
                for data in topic.partitions:
                    name = topic.topic or names.get(topic.topic_id, "")
                    requested = positions.get(TopicPartition(name, data.partition_index))
                    if requested is None:
                        log.warning(
                            "node %d returned partition %d of topic %r (id %s), which was not requested: ignored",
                            node_id,
                            data.partition_index,
                            name,
                            topic.topic_id.hex(),
                        )
                        continue
                    state, position = requested
                    # Unless it was reassigned, or moved, in the meantime.
                    if self._partitions.get(state.name) is state and state.position == position:
                        self._on_fetched(state, data, response.node_endpoints, now)

    def _on_fetched(
        self, state: PartitionReader, data: PartitionData, endpoints: Sequence[NodeEndpoint], now: float
    ) -> None:
        code = data.error_code
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._move_into_range(state, data)
            return
        if code:
            self._client.updater.set_leader(*state.name, data.current_leader, endpoints)
            self._failed(state, code, now)
            return
        state.failing_since_ms = None
        state.watermarks = Watermarks(data.log_start_offset, data.last_stable_offset, data.high_watermark)
        records = data.records
        if not records:
            return
        assert isinstance(records, bytes | bytearray | memoryview)
        committed_only = self._isolation is Isolation.READ_COMMITTED
        aborted = (data.aborted_transactions or ()) if committed_only else None
        state.last_start, state.last_bytes = state.position, len(records)
        state.fetched = fetched = VisibleBatches(
            records, state.position, aborted, control_batches=self._control_batches
        )
        if state.next_batch() is None and fetched.is_empty:
            raise RecordTooLargeError(
                f"{state.name} at offset {state.position}: the next batch is larger than partition_bytes_max "
                f"({self._partition_bytes_max} bytes), which this old broker cannot exceed: raise it"
            )

    def _move_into_range(self, state: PartitionReader, data: PartitionData) -> None:
        if self._out_of_range == "error":
            ends = f"it has {data.log_start_offset} to {data.high_watermark}" if data.high_watermark >= 0 else ""
            raise BrokerError(
                f"{state.name} has no offset {state.position}{'; ' + ends if ends else ''}; seek to another, or set "
                f"out_of_range to earliest or latest",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        self.seek(state.name, EARLIEST if self._out_of_range == "earliest" else LATEST)

    def _is_recreated(self, topic: str) -> bool:
        current = self.topic_id(topic)
        return current is not None and self._topic_ids.get(topic, current) != current

    def _failed(self, state: PartitionReader, code: int, now: float, ms_max: float = math.inf) -> None:
        """Retry later with the current leader, or raise after the timeout."""
        settings = self._client.settings
        if code not in TRY_AGAIN and code not in TOPIC_MAY_COME:
            raise BrokerError(str(state.name), code=code)
        if state.failing_since_ms is None:
            state.failing_since_ms = now
        elif now - state.failing_since_ms >= min(settings.timeout_ms, ms_max):
            since, state.failing_since_ms = now - state.failing_since_ms, None
            raise BrokerError(f"{state.name} could not be read for {since:.0f} ms", code=code)
        state.retry_at_ms = now + settings.retry_backoff_ms
        self._client.metadata.request_update()

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
