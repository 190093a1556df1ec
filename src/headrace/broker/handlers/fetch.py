"""Key 1: read records.

    authorise and find → read → enough? answer : wait in the purgatory → read again → answer

v0-3 get message sets, v4 isolation levels, v12 the last fetched epoch, v13 topic ids. There are no fetch sessions: an
answer with session id 0 says so, and clients then name all partitions each time (KIP-227).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker import fetching
from headrace.broker.context import Answer, Context
from headrace.broker.fetching import Limits, Read, Wanted
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.api.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace.wire.primitives import Buffer
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

BATCHES_SINCE = 4  # v0-3 get message sets
TOPIC_IDS_SINCE = 13
WAIT_MS_MAX = 10 * 60 * 1000
"""No client waits longer for an answer: a fetch that asks for more is answered then, with what there is."""
READ_COMMITTED = 1

_Topics = list[tuple[FetchTopic, list[Wanted]]]


def handle(broker: Broker, context: Context, message: FetchRequest) -> Answer:
    if message.session_id and message.session_epoch > 0:
        return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
    topics = _find(broker, context, message)
    wanted = [one for _, partitions in topics for one in partitions]
    most = min(broker.config.of(int, "fetch.max.bytes"), broker.server.answer_bytes_max)
    bytes_max = max(min(message.max_bytes, most), 0)
    limits = Limits(min(message.min_bytes, bytes_max), bytes_max, message.isolation_level == READ_COMMITTED)
    reads, enough = fetching.read_all(wanted, limits)
    if enough or not wanted or message.max_wait_ms <= 0:
        return _answer(context, topics, reads)
    missing_bytes = limits.bytes_min - sum(len(read.data) for read in reads)
    return _wait_and_read(broker, context, message, topics, wanted, limits, missing_bytes)


async def _wait_and_read(
    broker: Broker,
    context: Context,
    message: FetchRequest,
    topics: _Topics,
    wanted: Sequence[Wanted],
    limits: Limits,
    missing_bytes: int,
) -> FetchResponse:
    timeout_ms = min(message.max_wait_ms, WAIT_MS_MAX)
    await fetching.wait(broker.replicas.delayed_fetches, wanted, limits, missing_bytes, timeout_ms)
    _find_again(broker, topics, context)
    reads, _ = fetching.read_all(wanted, limits)
    return _answer(context, topics, reads)


# -- authorise and find --------------------------------------------------------------------------


def _find(broker: Broker, context: Context, message: FetchRequest) -> _Topics:
    """The partitions, each with its right to be read or with the reason why it is not."""
    replica_id = message.replica_id if context.api_version < 15 else message.replica_state.replica_id
    found: _Topics = []
    for topic in message.topics:
        wanted = [
            Wanted(
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                part.current_leader_epoch,
                part.last_fetched_epoch,
            )
            for part in topic.partitions
        ]
        found.append((topic, wanted))
        try:
            name = _readable(broker, context, topic, replica_id)
        except BrokerError as error:
            for one in wanted:
                one.error = error
            continue
        for one in wanted:
            try:
                one.partition = broker.replicas.partition(name, one.index)
            except BrokerError as error:
                one.error = error
    return found


def _readable(broker: Broker, context: Context, topic: FetchTopic, replica_id: int) -> str:
    """The name of a topic that the client may read."""
    name = topic.topic
    if context.api_version >= TOPIC_IDS_SINCE:
        found = broker.catalog.topics.by_id.get(topic.topic_id)
        if found is None or topic.topic_id == ZERO_UUID:
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        name = found.name
    allows, session = broker.authorizer.allows, context.session
    if replica_id >= 0:
        if not allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            raise BrokerError("no right to fetch as a replica", code=Code.TOPIC_AUTHORIZATION_FAILED)
        raise BrokerError(f"broker {replica_id} has no replica of {name}", code=Code.UNKNOWN_LEADER_EPOCH)
    if not allows(session, Operation.READ, Resource.TOPIC, name):
        raise BrokerError(f"no right to read topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
    return name


def _find_again(broker: Broker, topics: _Topics, context: Context) -> None:
    """A partition may have gone while the fetch waited, and another one of its name have come."""
    for _, partitions in topics:
        for one in partitions:
            if one.partition is not None and one.partition.is_deleted:
                one.partition = None
                by_id = context.api_version >= TOPIC_IDS_SINCE
                code = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
                one.error = BrokerError("the topic was deleted", code=code)


# -- answer --------------------------------------------------------------------------------------


def _answer(context: Context, topics: _Topics, reads: Sequence[Read]) -> FetchResponse:
    rows = iter(reads)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_partition(context.api_version, one, next(rows)) for one in partitions],
            )
            for topic, partitions in topics
        ]
    )


def _partition(version: int, wanted: Wanted, read: Read) -> PartitionData:
    data, error_code = read.data, read.error_code
    if version < BATCHES_SINCE and len(data):
        data, error_code = _as_message_set(data, wanted.offset, magic=0 if version < 2 else 1)
    aborted = read.aborted
    answer = PartitionData(
        partition_index=wanted.index,
        error_code=error_code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted],
        records=data,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        return answer.replace(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))
    partition = wanted.partition
    if (
        version >= 12
        and partition is not None
        and error_code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
    ):
        leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        return answer.replace(current_leader=leader)
    return answer


def _as_message_set(data: Buffer, first_offset: int, magic: int) -> tuple[Buffer, int]:
    """Batches as clients from before Kafka 0.11 read them; control records are not for them."""
    from headrace.wire import legacy
    from headrace.wire.records import read_batches

    try:
        batches = [
            (batch.header, [record for record in batch.records() if record.offset >= first_offset])
            for batch in read_batches(data)
            if not batch.header.is_control
        ]
        return legacy.convert_down(batches, magic=magic), Code.NONE
    except WireError:
        return b"", Code.CORRUPT_MESSAGE
