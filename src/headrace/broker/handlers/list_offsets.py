"""Key 2: offsets by time, the first and the last one.

    -1 the end (of what is committed, if the client asks for that)   -2 the first   -3 the one with the highest time
    -4 the first on this disk   -5 the last in tiered storage, which there is not   else the first at or after a time

v0 answers with a list, v1 with one offset, v2 knows isolation levels.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.log import FoundOffset, Log
from headrace.broker.log.decompression import Decompression, OffLoopError
from headrace.broker.log.lookup import find_record
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from headrace.wire.layout import NO_TIMESTAMP
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
NOT_AVAILABLE_SINCE = 5  # clients before it do not know OFFSET_NOT_AVAILABLE
READ_COMMITTED = 1
CONSUMER = -1
_NOWHERE = (-1, -1, -1)

_Found = tuple[int, int, int]  # offset, timestamp, leader epoch


def handle(broker: Broker, context: Context, message: ListOffsetsRequest) -> Answer:
    return _answer(_Search(broker), broker, context, message)


async def _answer(
    search: _Search, broker: Broker, context: Context, message: ListOffsetsRequest
) -> ListOffsetsResponse:
    topics = [await _topic(search, broker, context, message, topic) for topic in message.topics]
    return ListOffsetsResponse(topics=topics)


class _Search:
    """Looks for records by time; in large batches in a thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._on_loop = Decompression(broker.decompression_limits, on_loop=True)

    async def first(self, log: Log, timestamp_ms: int) -> FoundOffset | None:
        """The first record of a log with that timestamp or a later one.

        A damaged range directly before it may have had an earlier one: then that is where a reader has to begin, and
        gets the error of the range instead of records that come after others it will never see.
        """
        found = await self.first_readable(log, timestamp_ms)
        damage = log.damage_up_to(log.end_offset if found is None else found.offset)
        if damage is None:
            return found
        offset = max(damage.first_offset, log.start_offset)
        return FoundOffset(offset, timestamp_ms, log.epochs.of(offset))

    async def first_readable(self, log: Log, timestamp_ms: int) -> FoundOffset | None:
        """The first of the records that are not damaged with that timestamp or a later one."""
        first_offset = log.start_offset
        while (batch := log.batch_for_time(timestamp_ms, first_offset)) is not None:
            base_offset = batch.header.base_offset
            if log.damage_up_to(base_offset + 1) is not None:
                return FoundOffset(base_offset, timestamp_ms, batch.header.leader_epoch)
            found = await self._in_batch(batch, timestamp_ms, first_offset)
            if found is not None:
                return found
            first_offset = batch.header.last_offset + 1
            if log.closed:
                raise BrokerError(f"{log.name} was deleted or moved", code=Code.NOT_LEADER_OR_FOLLOWER)
        return None

    async def _in_batch(self, batch: RecordBatch, timestamp_ms: int, first_offset: int) -> FoundOffset | None:
        try:
            try:
                return find_record(batch, timestamp_ms, first_offset, self._on_loop)
            except OffLoopError:
                off_loop = Decompression(self._broker.decompression_limits)
                return await asyncio.get_running_loop().run_in_executor(
                    self._broker.checking_threads, find_record, batch, timestamp_ms, first_offset, off_loop
                )
        except WireError as error:
            raise BrokerError(str(error), code=Code.CORRUPT_MESSAGE) from None


async def _topic(
    search: _Search, broker: Broker, context: Context, message: ListOffsetsRequest, topic: ListOffsetsTopic
) -> ListOffsetsTopicResponse:
    allows, session = broker.authorizer.allows, context.session
    allowed = allows(session, Operation.DESCRIBE, Resource.TOPIC, topic.name) or (
        message.replica_id != CONSUMER and allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    )
    times = Counter(part.partition_index for part in topic.partitions)
    answers = []
    for part in topic.partitions:
        try:
            if not allowed:
                raise BrokerError(code=Code.TOPIC_AUTHORIZATION_FAILED)
            if times[part.partition_index] > 1:
                raise BrokerError("asked for twice", code=Code.INVALID_REQUEST)
            partition = broker.replicas.partition(topic.name, part.partition_index)
            partition.check_epoch(part.current_leader_epoch)
            answers.append(await _partition(search, context.api_version, message, part, partition))
        except BrokerError as error:
            answers.append(ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=error.code))
    return ListOffsetsTopicResponse(name=topic.name, partitions=answers)


async def _partition(
    search: _Search, version: int, message: ListOffsetsRequest, part: ListOffsetsPartition, partition: Partition
) -> ListOffsetsPartitionResponse:
    if version < _SINCE.get(part.timestamp, 0) or part.timestamp < LATEST_TIERED:
        raise BrokerError(f"version {version} has no timestamp {part.timestamp}", code=Code.UNSUPPORTED_VERSION)
    log = partition.log
    end = log.end_offset
    if message.replica_id == CONSUMER:
        end = log.last_stable_offset if message.isolation_level == READ_COMMITTED else log.high_watermark
    offset, timestamp, epoch = await _look_up(search, partition, part.timestamp, end)
    if message.replica_id == CONSUMER and not partition.is_confirmed:
        _check_known(version, part.timestamp, offset)
    if version == 0:
        offsets = [offset] if offset >= 0 and part.max_num_offsets > 0 else []
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, old_style_offsets=offsets)
    if version < 4:
        epoch = -1
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _check_known(version: int, timestamp: int, offset: int) -> None:
    """A new leader may have to hear of followers how much is committed: what was told before must not be taken back."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) or (timestamp != LATEST and offset >= 0):
        return
    code = Code.OFFSET_NOT_AVAILABLE if version >= NOT_AVAILABLE_SINCE else Code.LEADER_NOT_AVAILABLE
    raise BrokerError("the leader is new, and does not know the high watermark yet", code=code)


async def _look_up(search: _Search, partition: Partition, timestamp: int, end: int) -> _Found:
    log = partition.log
    if timestamp == LATEST:
        return end, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1, log.epochs.of(log.start_offset)
    if timestamp == LATEST_TIERED:
        return _NOWHERE
    if timestamp == MAX_TIMESTAMP:
        timestamp = log.max_timestamp
        if timestamp == NO_TIMESTAMP:
            return _NOWHERE
        found = await search.first_readable(log, timestamp)
    else:
        found = await search.first(log, timestamp)
    return _NOWHERE if found is None or found.offset >= end else found
