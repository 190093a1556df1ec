"""ListOffsets and OffsetForLeaderEpoch: look up offsets by timestamp or leader epoch."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.context import Context, HandlerResult
from headrace.broker.log import Log, OffsetAndTimestamp
from headrace.broker.log.decompression import Decompression, OffLoopError
from headrace.broker.log.log_segments import find_record
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.api.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from headrace.wire.layout import NO_TIMESTAMP
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- ListOffsets ---------------------------------------------------------------------------------


LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_MIN_VERSIONS = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
OFFSET_NOT_AVAILABLE_MIN_VERSION = 5  # older clients get LEADER_NOT_AVAILABLE
READ_COMMITTED = 1
CONSUMER = -1
_UNKNOWN = (-1, -1, -1)

_OffsetTimestampEpoch = tuple[int, int, int]  # offset, timestamp, leader epoch


def handle_list_offsets(broker: Broker, context: Context, request: ListOffsetsRequest) -> HandlerResult:
    """Return the offset of a timestamp, or of one of the special timestamps.

        -1 latest (last stable offset with read_committed) · -2 earliest · -3 record with the highest timestamp ·
        -4 earliest local · -5 latest tiered (always unknown: there is no tiered storage) ·
        otherwise the first record with this timestamp or a later one

    v0 returns a list of offsets, v1+ one offset with its timestamp · v2+ isolation levels · v4+ leader epochs ·
    v7+ -3 · v8+ -4 · v9+ -5.
    """
    return _list_all(_TimestampSearch(broker), broker, context, request)


async def _list_all(
    search: _TimestampSearch, broker: Broker, context: Context, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    topics = [await _list_topic(search, broker, context, request, topic) for topic in request.topics]
    return ListOffsetsResponse(topics=topics)


class _TimestampSearch:
    """Search for records by timestamp; large batches are searched on a thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._on_loop = Decompression(broker.decompression_limits, on_loop=True)

    async def first(self, log: Log, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record of a log with this timestamp or a later one.

        A damaged range directly before it may have contained an earlier one. Then the start of that range is returned:
        the reader gets the error of the range instead of skipping records without notice.
        """
        record = await self.first_readable(log, timestamp_ms)
        damage = log.damage_up_to(log.end_offset if record is None else record.offset)
        if damage is None:
            return record
        offset = max(damage.first_offset, log.start_offset)
        return OffsetAndTimestamp(offset, timestamp_ms, log.epochs.of(offset))

    async def first_readable(self, log: Log, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first undamaged record with this timestamp or a later one."""
        first_offset = log.start_offset
        while (batch := log.segments.batch_for_time(timestamp_ms, first_offset)) is not None:
            base_offset = batch.header.base_offset
            if log.damage_up_to(base_offset + 1) is not None:
                return OffsetAndTimestamp(base_offset, timestamp_ms, batch.header.leader_epoch)
            record = await self._in_batch(batch, timestamp_ms, first_offset)
            if record is not None:
                return record
            first_offset = batch.header.last_offset + 1
            if log.closed:
                raise BrokerError(
                    f"{log.name} was closed during the search: the partition was deleted or moved",
                    code=Code.NOT_LEADER_OR_FOLLOWER,
                )
        return None

    async def _in_batch(self, batch: RecordBatch, timestamp_ms: int, first_offset: int) -> OffsetAndTimestamp | None:
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


async def _list_topic(
    search: _TimestampSearch, broker: Broker, context: Context, request: ListOffsetsRequest, topic: ListOffsetsTopic
) -> ListOffsetsTopicResponse:
    allows, session = broker.authorizer.allows, context.session
    authorized = allows(session, Operation.DESCRIBE, Resource.TOPIC, topic.name) or (
        request.replica_id != CONSUMER and allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    )
    occurrences = Counter(part.partition_index for part in topic.partitions)
    responses = []
    for part in topic.partitions:
        try:
            if not authorized:
                raise BrokerError(code=Code.TOPIC_AUTHORIZATION_FAILED)
            if occurrences[part.partition_index] > 1:
                raise BrokerError(f"duplicate partition {part.partition_index}", code=Code.INVALID_REQUEST)
            partition = broker.replicas.partition(topic.name, part.partition_index)
            partition.check_epoch(part.current_leader_epoch)
            responses.append(await _list_partition(search, context.api_version, request, part, partition))
        except BrokerError as error:
            responses.append(ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=error.code))
    return ListOffsetsTopicResponse(name=topic.name, partitions=responses)


async def _list_partition(
    search: _TimestampSearch,
    version: int,
    request: ListOffsetsRequest,
    part: ListOffsetsPartition,
    partition: Partition,
) -> ListOffsetsPartitionResponse:
    if version < _MIN_VERSIONS.get(part.timestamp, 0) or part.timestamp < LATEST_TIERED:
        raise BrokerError(
            f"invalid timestamp {part.timestamp} in ListOffsets v{version}", code=Code.UNSUPPORTED_VERSION
        )
    log = partition.log
    end = log.end_offset
    if request.replica_id == CONSUMER:
        end = log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
    offset, timestamp, epoch = await _look_up(search, partition, part.timestamp, end)
    if request.replica_id == CONSUMER and not partition.is_confirmed:
        _check_high_watermark_known(version, part.timestamp, offset)
    if version == 0:
        offsets = [offset] if offset >= 0 and part.max_num_offsets > 0 else []
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, old_style_offsets=offsets)
    if version < 4:
        epoch = -1
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _check_high_watermark_known(version: int, timestamp: int, offset: int) -> None:
    """Raise while a new leader does not know the high watermark: consumers must not see offsets go back (KIP-207)."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) or (timestamp != LATEST and offset >= 0):
        return
    code = Code.OFFSET_NOT_AVAILABLE if version >= OFFSET_NOT_AVAILABLE_MIN_VERSION else Code.LEADER_NOT_AVAILABLE
    raise BrokerError("the new leader does not know the high watermark yet", code=code)


async def _look_up(search: _TimestampSearch, partition: Partition, timestamp: int, end: int) -> _OffsetTimestampEpoch:
    log = partition.log
    if timestamp == LATEST:
        return end, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1, log.epochs.of(log.start_offset)
    if timestamp == LATEST_TIERED:
        return _UNKNOWN
    if timestamp == MAX_TIMESTAMP:
        timestamp = log.segments.max_timestamp
        if timestamp == NO_TIMESTAMP:
            return _UNKNOWN
        record = await search.first_readable(log, timestamp)
    else:
        record = await search.first(log, timestamp)
    return _UNKNOWN if record is None or record.offset >= end else record


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------


def handle_offset_for_leader_epoch(
    broker: Broker, context: Context, request: OffsetForLeaderEpochRequest
) -> HandlerResult:
    """Return the end offset of a leader epoch: consumers and followers detect truncation with it (KIP-101, KIP-320)."""
    allows, session = broker.authorizer.allows, context.session
    results = []
    for topic in request.topics:
        authorized = allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME) or allows(
            session, Operation.DESCRIBE, Resource.TOPIC, topic.topic
        )
        results.append(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end_offset(broker, topic.topic, part, authorized) for part in topic.partitions],
            )
        )
    return OffsetForLeaderEpochResponse(topics=results)


def _epoch_end_offset(broker: Broker, topic: str, part: OffsetForLeaderPartition, authorized: bool) -> EpochEndOffset:
    try:
        if not authorized:
            raise BrokerError(code=Code.TOPIC_AUTHORIZATION_FAILED)
        partition = broker.replicas.partition(topic, part.partition)
        partition.check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.end_of_epoch(part.leader_epoch)
        return EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end_offset)
    except BrokerError as error:
        return EpochEndOffset(partition=part.partition, error_code=error.code)
