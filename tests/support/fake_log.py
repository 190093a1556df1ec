"""The partitions of fake brokers, which store and reject batches like real ones.

Sequence numbers are checked as a broker checks them: a producer's batches of a partition in their order, the last five
known again, a new epoch from 0 on. A read of `values` after the test shows what was lost, doubled or out of order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.wire.api.leaders import LeaderIdAndEpoch, NodeEndpoint
from headrace.wire.api.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.wire.layout import NO_SEQUENCE
from headrace.wire.records import RecordBatch, read_batches
from tests.support.fake_network import DISCONNECT, FIRST_PORT, HOST, Sent, Sign

OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, MESSAGE_TOO_LARGE = 45, 47, 10
KNOWN_BATCHES = 5
MASK = 0x7FFFFFFF


@dataclass
class _Writer:
    epoch: int
    last_sequence: int = -1
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=KNOWN_BATCHES))


class FakeLog:
    """All partitions of all topics; the same for all brokers."""

    def __init__(self) -> None:
        self.batches: defaultdict[tuple[str, int], list[RecordBatch]] = defaultdict(list)
        self.batch_bytes_max = 1 << 30
        self.topic_names: dict[bytes, str] = {}
        self._next_offset: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._writers: dict[tuple[str, int, int], _Writer] = {}

    def values(self, partition: int = 0, topic: str = "t") -> list[bytes | None]:
        """Return the stored values, in order."""
        return [record.value for batch in self.batches[topic, partition] for record in batch.records()]

    def forget_writers(self) -> None:
        """Forget a producer, as after its last record was deleted by retention."""
        self._writers.clear()

    # -- replies -------------------------------------------------------------------------------

    def produce(self, sent: Sent) -> ProduceResponse:
        """Store the batches, or return the error of a real broker."""
        return self._respond(sent, lambda topic, partition, records: self._append(topic, partition, records))

    def stored_but_lost(self, sent: Sent) -> Sign:
        """Store, but the response never arrives."""
        self.produce(sent)
        return DISCONNECT

    def _respond(
        self, sent: Sent, outcome: Callable[[str, int, Any], PartitionProduceResponse], **fields: Any
    ) -> ProduceResponse:
        responses = []
        for topic in sent.message.topic_data:
            name = topic.name or self.topic_names[topic.topic_id]
            responses.append(
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[outcome(name, p.partition_index, p.records) for p in topic.partition_data],
                )
            )
        return ProduceResponse(responses=responses, **fields)

    def _append(self, topic: str, partition: int, records: Any) -> PartitionProduceResponse:
        (batch,) = read_batches(bytes(records))
        batch.verify()
        header = batch.header
        assert header.record_count > 0, "an empty batch was sent"
        if len(records) > self.batch_bytes_max:
            return _refused(partition, MESSAGE_TOO_LARGE)
        if header.base_sequence != NO_SEQUENCE:
            writer = self._writers.setdefault(
                (topic, partition, header.producer_id), _Writer(header.producer_epoch, header.base_sequence - 1)
            )
            for first, last, known_offset in writer.batches:
                is_same = (first, last) == (header.base_sequence, _last(header))
                if header.producer_epoch == writer.epoch and is_same:
                    return _stored(partition, known_offset)
            if header.producer_epoch < writer.epoch:
                return _refused(partition, INVALID_PRODUCER_EPOCH)
            expected = 0 if header.producer_epoch > writer.epoch else (writer.last_sequence + 1) & MASK
            if header.base_sequence != expected:
                return _refused(partition, OUT_OF_ORDER_SEQUENCE)
            if header.producer_epoch > writer.epoch:
                writer.batches.clear()
            writer.epoch, writer.last_sequence = header.producer_epoch, _last(header)
            writer.batches.append((header.base_sequence, _last(header), self._next_offset[topic, partition]))
        offset = self._next_offset[topic, partition]
        self.batches[topic, partition].append(batch)
        self._next_offset[topic, partition] += header.record_count
        return _stored(partition, offset)

    def refuse(
        self,
        code: int,
        *,
        message: str | None = None,
        record_errors: dict[int, str | None] | None = None,
        leader: tuple[int, int] | None = None,
        log_start_offset: int = -1,
    ) -> Callable[[Sent], ProduceResponse]:
        """Return a reply with an error code for all partitions."""

        def outcome(topic: str, partition: int, records: Any) -> PartitionProduceResponse:
            return _refused(partition, code).replace(
                error_message=message,
                log_start_offset=log_start_offset,
                record_errors=[
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                    for index, text in (record_errors or {}).items()
                ],
                current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                if leader
                else LeaderIdAndEpoch(),
            )

        endpoints = [NodeEndpoint(node_id=leader[0], host=HOST, port=FIRST_PORT + leader[0])] if leader else []
        return lambda sent: self._respond(sent, outcome, node_endpoints=endpoints)


def _last(header: Any) -> int:
    return int(header.base_sequence + header.record_count - 1) & MASK


def _stored(partition: int, offset: int) -> PartitionProduceResponse:
    return PartitionProduceResponse(partition_index=partition, base_offset=offset)


def _refused(partition: int, code: int) -> PartitionProduceResponse:
    return PartitionProduceResponse(partition_index=partition, error_code=code, base_offset=-1)
