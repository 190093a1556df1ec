"""A producer without client logic: tests choose epoch and sequence, valid or not."""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from headrace.errors import Code
from headrace.wire.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.api.metadata import FindCoordinatorRequest
from headrace.wire.api.produce import PartitionProduceResponse
from headrace.wire.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from headrace.wire.schema import Message, RequestMessage
from tests.support.waiting import eventually

TIME_MS = time.time_ns() // 1_000_000  # old records and new markers would not share a segment
BUSY = {
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}
"""Error codes after which a request is repeated."""
GROUP_KEY, TRANSACTION_KEY = 0, 1

R = TypeVar("R", bound=Message)


class Line(Protocol):
    """The part of a connection that `RawProducer` uses."""

    def call(self, request: RequestMessage[R], version: int) -> R: ...

    def produce(
        self, topic: str, data: bytes, *, version: int, partition: int, transactional_id: str | None
    ) -> PartitionProduceResponse: ...


def plain_batch(*values: bytes, timestamp: int = TIME_MS) -> bytes:
    """Return a batch without a producer id."""
    return bytes(encode([Record(n, timestamp, None, value, ()) for n, value in enumerate(values)]))


class RawProducer:
    """Sends producer requests. Transactions of version 2 add partitions implicitly, and bump the epoch at each end."""

    def __init__(
        self, connection: Line, topic: str, transactional_id: str | None = None, *, transactions: int = 2
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.transactional_id = transactional_id
        self.transactions = transactions
        self.producer_id = -1
        self.epoch = -1

    def init(
        self, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1, patient: bool = True
    ) -> InitProducerIdResponse:
        """Request a producer id and epoch, and use them if the request succeeds."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        if self.transactional_id is not None:
            self.find(self.transactional_id, TRANSACTION_KEY)
        response = self._request(request, 4, patient)
        if response.error_code == 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return response

    def find(self, key: str, kind: int) -> None:
        """Request a coordinator, which creates its topic."""
        self.connection.call(FindCoordinatorRequest(key=key, key_type=kind), 3)

    def batch(
        self, sequence: int, *values: bytes, epoch: int | None = None, transactional: bool | None = None
    ) -> bytes:
        is_transactional = self.transactional_id is not None if transactional is None else transactional
        identity = BatchProducer(self.producer_id, self.epoch if epoch is None else epoch, sequence, is_transactional)
        records = [Record(n, TIME_MS, None, value, ()) for n, value in enumerate(values)]
        return bytes(encode(records, producer=identity))

    def write(
        self,
        sequence: int,
        *values: bytes,
        partition: int = 0,
        epoch: int | None = None,
        transactional: bool | None = None,
        patient: bool = True,
    ) -> PartitionProduceResponse:
        data = self.batch(sequence, *values, epoch=epoch, transactional=transactional)
        return self.send(data, partition, patient=patient)

    def send(self, data: bytes, partition: int, *, patient: bool = True) -> PartitionProduceResponse:
        version = 12 if self.transactions == 2 else 11

        def attempt() -> PartitionProduceResponse | None:
            response = self.connection.produce(
                self.topic, data, version=version, partition=partition, transactional_id=self.transactional_id
            )
            return None if patient and response.error_code in BUSY else response

        return eventually("a response to a produce request", attempt)

    def add(self, *partitions: int, epoch: int | None = None, patient: bool = True) -> list[int]:
        """Add partitions to the transaction (version 1), and return an error code for each."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=partitions)],
        )

        def attempt() -> list[int] | None:
            response = self.connection.call(request, 3)
            ((*results,),) = (topic.results_by_partition for topic in response.results_by_topic_v3_and_below)
            codes = [result.partition_error_code for result in results]
            return None if patient and BUSY.intersection(codes) else codes

        return eventually("a response to AddPartitionsToTxn", attempt)

    def end(self, committed: bool, *, epoch: int | None = None, patient: bool = True) -> EndTxnResponse:
        """End the transaction, and use the next epoch if the response has one."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id or "",
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=committed,
        )
        response = self._request(request, 5 if self.transactions == 2 else 4, patient)
        if response.error_code == 0 and response.producer_id >= 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return response

    def commit_offsets(
        self, group: str, offset: int, *, generation: int = -1, member: str = "", epoch: int | None = None
    ) -> int:
        """Commit an offset of partition 0 with the transaction, and return the error code."""
        self.find(group, GROUP_KEY)
        epoch = self.epoch if epoch is None else epoch
        if self.transactions == 1:
            added = self._request(
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id or "",
                    producer_id=self.producer_id,
                    producer_epoch=epoch,
                    group_id=group,
                ),
                3,
                True,
            )
            if added.error_code:
                return added.error_code
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id or "",
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member,
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )

        def attempt() -> list[int] | None:
            response = self.connection.call(request, 5 if self.transactions == 2 else 3)
            codes = [partition.error_code for topic in response.topics for partition in topic.partitions]
            return None if BUSY.intersection(codes) else codes

        (code,) = eventually("a response to TxnOffsetCommit", attempt)
        return code

    def _request(self, request: RequestMessage[R], version: int, patient: bool) -> R:
        def attempt() -> R | None:
            response = self.connection.call(request, version)
            code: int = getattr(response, "error_code")  # noqa: B009 - all of these have one
            return None if patient and code in BUSY else response

        return eventually(f"a response to {type(request).__name__}", attempt)
