"""Reading partitions: a consumer without a group.

    assign → positions → Fetch to every leader at once → VisibleBatches → poll: records | poll_arrow: columns

One thread calls; nothing happens between calls but what brokers have on the way already. While the caller decodes what
one poll brought, the next fetch is under way.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from headrace.client.blocking import TRY_AGAIN, BlockingClient, ClientSettings, Pending
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.fetch_data import FetchedRecord, PartitionReader, VisibleBatches, Watermarks, located
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import EARLIEST, LATEST, Isolation, PartitionOffset, by_topic, list_offsets
from headrace.client.requests import Request
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
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic, NodeEndpoint, PartitionData
from headrace.wire.columns import OFFSET_MAX, ArrowDecoder
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch

log = logging.getLogger("headrace.client")

TOPIC_MAY_COME = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID})
NEWEST_BY_NAME = 12  # from 13 on topics go by id
RECREATED_MS_MAX = 2000.0
"""How long a topic may have another id than expected: metadata may be older than the topic that is expected."""
OutOfRange = Literal["error", "earliest", "latest"]


class _Asked(NamedTuple):
    """A fetch that is under way."""

    pending: Pending
    positions: dict[TopicPartition, tuple[PartitionReader, int]]
    names: dict[bytes | None, str]
    """Topics by id: from version 13 on, answers have no names."""


class Fetcher:
    """Reads partitions that it is assigned."""

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
        **options: Any,
    ) -> None:
        """`options` are those of `ClientSettings`. A client that is passed in is not closed with the fetcher.

        `control_batches`: return transaction markers as well. Use `poll_batches` with it, which does not decode them.
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
        self._topic_ids: Mapping[str, bytes] = {}  # expected ids, by topic
        self._in_flight: dict[int, _Asked] = {}  # by node
        self._turns = 0

    # -- where to read -------------------------------------------------------------------------

    def assign(
        self,
        positions: Mapping[TopicPartition, int] | Iterable[TopicPartition],
        until: Mapping[TopicPartition, int] | None = None,
        *,
        check: bool = True,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Read these partitions, and no others, from these offsets on (or EARLIEST, LATEST), by default the earliest.

        `until` gives offsets at which to stop: see `is_finished`. Without `check` nobody is asked whether the
        partitions are there: polling will tell.

        With `topic_ids`, polling raises a BrokerError (Code.INCONSISTENT_TOPIC_ID) instead of reading a topic that has
        another id, that is one that was deleted and created again.
        """
        self._topic_ids = topic_ids or {}
        if not isinstance(positions, Mapping):
            positions = dict.fromkeys(positions, EARLIEST)
        starts = {TopicPartition(*tp): start for tp, start in positions.items()}
        symbolic = {tp: start for tp, start in starts.items() if start < 0}
        found = self._list(symbolic)
        ends = {TopicPartition(*tp): end for tp, end in (until or {}).items()}
        self._partitions = {
            tp: PartitionReader(tp, found[tp].offset if tp in found else start, ends.get(tp, OFFSET_MAX))
            for tp, start in starts.items()
        }
        # Offsets that were given are taken on trust; the topics are not.
        given = [tp for tp in starts if tp not in found]
        if check:
            self._list(dict.fromkeys(given, EARLIEST))
        elif given:
            self._client.cluster({tp.topic for tp in given}, self._client.deadline())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from an offset, or from EARLIEST or LATEST."""
        known = self._known(partition)
        if offset < 0:
            offset = self._list({known.name: offset})[known.name].offset
        # A new state: what is under way for the old one will not fit it.
        self._partitions[known.name] = PartitionReader(known.name, offset, known.until)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read on from the first record of that time or later; where there is none, from the end."""
        names = list(self._partitions) if partitions is None else [TopicPartition(*tp) for tp in partitions]
        for tp, found in self._list(dict.fromkeys(names, timestamp_ms)).items():
            self.seek(tp, found.offset if found.offset >= 0 else LATEST)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to come, or of something before it that is not to be seen."""
        return self._known(partition).position

    def topic_id(self, topic: str) -> bytes | None:
        """The id of a topic as last seen; None if it is unknown or the broker gives none."""
        return self._client.metadata.cluster.topic_id(topic)

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        return self._known(partition).watermarks

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._partitions)

    def is_finished(self) -> bool:
        """True if every partition has come to its end (`until`)."""
        return all(state.is_finished for state in self._partitions.values())

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset there is."""
        found = self._list(dict.fromkeys((TopicPartition(*tp) for tp in partitions), EARLIEST))
        return {tp: offset.offset for tp, offset in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a reader would wait for more: the high watermark, or under read_committed the last stable offset."""
        found = self._list(dict.fromkeys((TopicPartition(*tp) for tp in partitions), LATEST))
        return {tp: offset.offset for tp, offset in found.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        """The first record of a time (in milliseconds) or later; offset -1 where there is none."""
        return self._list({TopicPartition(*tp): time for tp, time in times.items()})

    def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        return list_offsets(self._client, wanted, self._isolation) if wanted else {}

    def _known(self, partition: TopicPartition) -> PartitionReader:
        state = self._partitions.get(TopicPartition(*partition))
        if state is None:
            raise IllegalStateError(f"{TopicPartition(*partition)} is not assigned")
        return state

    # -- reading -------------------------------------------------------------------------------

    def poll(self, timeout_ms: float, records_max: int = 500) -> list[FetchedRecord]:
        """Up to `records_max` records; an empty list if none has come in time."""
        self._fill(timeout_ms)
        out: list[FetchedRecord] = []
        for state in self._by_turn():
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
        """All that has been fetched, in columns: offset, timestamp, key, value, and headers if wanted."""
        taken = self._poll_batches(timeout_ms)
        try:
            return {
                tp: self._columns(self._partitions[tp], start, batches, with_headers)
                for tp, (start, batches) in taken.items()
            }
        except WireError:
            for tp, (start, _) in taken.items():
                self.seek(tp, start)  # nothing of it was handed out
            raise

    def poll_batches(self, timeout_ms: float) -> dict[TopicPartition, list[RecordBatch]]:
        """All that has been fetched, still encoded; the first and last batch may reach beyond what was asked for."""
        return {tp: batches for tp, (_, batches) in self._poll_batches(timeout_ms).items()}

    def _poll_batches(self, timeout_ms: float) -> dict[TopicPartition, tuple[int, list[RecordBatch]]]:
        self._fill(timeout_ms)
        taken: dict[TopicPartition, tuple[int, list[RecordBatch]]] = {}
        for state in self._by_turn():
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

    def _by_turn(self) -> list[PartitionReader]:
        return sorted(self._partitions.values(), key=lambda state: state.turn)

    def _served(self, state: PartitionReader) -> None:
        self._turns += 1
        state.turn = self._turns

    # -- fetching ------------------------------------------------------------------------------

    def _fill(self, timeout_ms: float) -> None:
        """Fetch until there is something to hand out, or the time is up."""
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
        """Ask every leader for what is missing; returns how long until it is worth trying again."""
        cluster = self._client.metadata.cluster
        by_node: defaultdict[int, list[PartitionReader]] = defaultdict(list)
        wait_ms = self._client.settings.request_timeout_ms
        for state in self._by_turn():
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
                    self._client.metadata.request_update()  # it may lead nothing any more
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
                            partition_max_bytes=state.bytes_wanted(self._partition_bytes_max),
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(by_name).items()
            ],
        )
        pending = Pending(node_id)
        for state in states:
            state.in_flight = True
        asked = {state.name: (state, state.position) for state in states}
        self._in_flight[node_id] = _Asked(pending, asked, {topic_id: topic for topic, topic_id in ids.items()})
        low = 4 if self._isolation is Isolation.READ_COMMITTED else 0
        high = FetchRequest.versions.last if all(ids.values()) else NEWEST_BY_NAME
        timeout_ms = self._client.settings.request_timeout_ms + self._max_wait_ms
        self._client.network.send(node_id, Request.of(request, pending.take, timeout_ms, (low, high)), now)

    def _reap(self) -> None:
        """Take what has been answered."""
        for node_id, (pending, asked, names) in list(self._in_flight.items()):
            if pending.response is None:
                continue
            del self._in_flight[node_id]
            for state, _ in asked.values():
                state.in_flight = False
            now = self._clock.monotonic_ms()
            try:
                response = pending.result()
            except ConnectionFailedError:
                self._client.metadata.request_update()
                continue
            for topic in response.responses:
                for answer in topic.partitions:
                    name = topic.topic or names.get(topic.topic_id, "")
                    request = asked.get(TopicPartition(name, answer.partition_index))
                    if request is None:
                        log.warning(
                            "node %d returned partition %d of topic %r (id %s), which was not requested: ignored",
                            node_id,
                            answer.partition_index,
                            name,
                            topic.topic_id.hex(),
                        )
                        continue
                    state, position = request
                    # Unless it was assigned anew, or moved, while the answer was on its way.
                    if self._partitions.get(state.name) is state and state.position == position:
                        self._take(state, answer, response.node_endpoints, now)

    def _take(
        self, state: PartitionReader, answer: PartitionData, endpoints: Sequence[NodeEndpoint], now: float
    ) -> None:
        code = answer.error_code
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._move_into_range(state, answer)
            return
        if code:
            self._client.updater.take_leader(*state.name, answer.current_leader, endpoints)
            self._failed(state, code, now)
            return
        state.failing_since_ms = None
        state.watermarks = Watermarks(answer.log_start_offset, answer.last_stable_offset, answer.high_watermark)
        data = answer.records
        if not data:
            return
        assert isinstance(data, bytes | bytearray | memoryview)
        committed_only = self._isolation is Isolation.READ_COMMITTED
        aborted = (answer.aborted_transactions or ()) if committed_only else None
        state.last_start, state.last_bytes = state.position, len(data)
        state.fetched = fetched = VisibleBatches(data, state.position, aborted, control_batches=self._control_batches)
        if state.next_batch() is None and fetched.is_empty:
            raise RecordTooLargeError(
                f"{state.name} at offset {state.position}: the next batch is larger than partition_bytes_max "
                f"({self._partition_bytes_max} bytes), which this old broker does not exceed: raise it"
            )

    def _move_into_range(self, state: PartitionReader, answer: PartitionData) -> None:
        if self._out_of_range == "error":
            ends = f"it has {answer.log_start_offset} to {answer.high_watermark}" if answer.high_watermark >= 0 else ""
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
        """Try again a little later, at whoever leads then; but not for ever."""
        settings = self._client.settings
        if code not in TRY_AGAIN and code not in TOPIC_MAY_COME:
            raise BrokerError(str(state.name), code=code)
        if state.failing_since_ms is None:
            state.failing_since_ms = now
        elif now - state.failing_since_ms >= min(settings.timeout_ms, ms_max):
            since, state.failing_since_ms = now - state.failing_since_ms, None
            raise BrokerError(f"{state.name} cannot be read for {since:.0f} ms", code=code)
        state.retry_at_ms = now + settings.retry_backoff_ms
        self._client.metadata.request_update()

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
