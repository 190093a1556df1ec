"""Key 1: read records.

    authorise and find → read → enough? answer : wait in the purgatory → read again → answer

v0-3 get message sets, v4 isolation levels, v11 may read from followers and be sent to one that is near (KIP-392), v12
has the last fetched epoch, v13 topic ids, v15 the broker epoch of a follower. There are no fetch sessions for clients:
an answer with session id 0 says so, and they then name all partitions each time (KIP-227).

Followers fetch too. They read to the end of the log, and what they ask for says what they have. They have sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker import fetching
from headrace.broker.context import Answer, Context
from headrace.broker.fetching import Limits, Read, Replica, Wanted
from headrace.broker.log.decompression import OLD_BYTES_MAX, release
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code, DecompressedSizeError, WireError
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
    from headrace.broker.cluster.follower_sessions import FollowerSession, FollowerSessions, Place
    from headrace.wire.layout import BatchHeader, Record

BATCHES_SINCE = 4  # v0-3 get message sets
FOLLOWERS_SINCE = 11  # clients of these versions may read from followers
TOPIC_IDS_SINCE = 13
BROKER_EPOCHS_SINCE = 15
WATERMARKS_SINCE = 18
UNINTERESTED = 0x7FFFFFFFFFFFFFFF
"""The high watermark that a follower says it knows if it does not want to hear of others at once."""
WAIT_MS_MAX = 10 * 60 * 1000
"""No client waits longer for an answer: a fetch that asks for more is answered then, with what there is."""
READ_COMMITTED = 1

_Topics = list[tuple[FetchTopic, list[Wanted]]]


def handle(broker: Broker, context: Context, message: FetchRequest) -> Answer:
    limits = _limits(broker, context, message)
    if limits.replica is not None and message.session_epoch >= 0:
        sessions = broker.replicas.follower_sessions
        if sessions is not None:
            return _in_session(broker, context, message, limits, limits.replica, sessions)
    if message.session_id and message.session_epoch > 0:
        return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
    topics = _find(broker, context, message, limits)
    wanted = [one for _, partitions in topics for one in partitions]
    reads, enough = fetching.read_all(wanted, limits)
    if enough or not wanted or message.max_wait_ms <= 0:
        if context.api_version < BATCHES_SINCE:
            return _convert_and_answer(broker, context, topics, reads)
        return _answer(context, topics, reads)
    missing_bytes = limits.bytes_min - sum(len(read.data) for read in reads)
    return _wait_and_read(broker, context, message, topics, wanted, limits, missing_bytes)


def _limits(broker: Broker, context: Context, message: FetchRequest) -> Limits:
    most = min(broker.config.of(int, "fetch.max.bytes"), broker.server.answer_bytes_max)
    bytes_max = max(min(message.max_bytes, most), 0)
    bytes_min = min(message.min_bytes, bytes_max)
    if context.api_version < BROKER_EPOCHS_SINCE:
        node_id, broker_epoch = message.replica_id, -1
    else:
        node_id, broker_epoch = message.replica_state.replica_id, message.replica_state.replica_epoch
    if node_id >= 0:
        return Limits(bytes_min, bytes_max, False, Replica(node_id, broker_epoch, broker.replicas.follower_fetched))
    committed_only = message.isolation_level == READ_COMMITTED
    return Limits(bytes_min, bytes_max, committed_only, None, context.api_version >= FOLLOWERS_SINCE)


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
    replicas = broker.replicas
    purgatory = replicas.delayed_fetches if limits.replica is None else replicas.delayed_follower_fetches
    await fetching.wait(purgatory, wanted, limits, missing_bytes, timeout_ms)
    _find_again(broker, topics, context)
    reads, _ = fetching.read_all(wanted, limits)
    if context.api_version < BATCHES_SINCE:
        return await _convert_and_answer(broker, context, topics, reads)
    return _answer(context, topics, reads)


# -- followers -----------------------------------------------------------------------------------


def _in_session(
    broker: Broker,
    context: Context,
    message: FetchRequest,
    limits: Limits,
    replica: Replica,
    sessions: FollowerSessions,
) -> Answer:
    """A follower names what has changed for it since its last fetch, and is told what has changed here."""
    topics = _find(broker, context, message, limits)
    try:
        session = sessions.find(replica.node_id, message.session_id, message.session_epoch)
    except BrokerError as error:
        return FetchResponse(error_code=error.code)
    for gone in message.forgotten_topics_data:
        for index in gone.partitions:
            session.forget((gone.topic_id, index))
    if context.api_version >= WATERMARKS_SINCE and message.topics:
        session.is_prompt = message.topics[0].partitions[0].high_watermark != UNINTERESTED
    asked = [(topic.topic_id, one.index) for topic, partitions in topics for one in partitions]
    for topic, partitions in topics:
        for one in partitions:
            session.take((topic.topic_id, one.index), one)
    due = session.due(asked)
    reads, enough = fetching.read_all([*due.values()], limits)
    if enough or message.max_wait_ms <= 0:
        return _news(context, session, due, reads)
    return _wait_for_news(broker, context, message, limits, session, due)


async def _wait_for_news(
    broker: Broker,
    context: Context,
    message: FetchRequest,
    limits: Limits,
    session: FollowerSession,
    due: dict[Place, Wanted],
) -> FetchResponse:
    await session.wait(broker.clock, min(message.max_wait_ms, WAIT_MS_MAX))
    due = session.due(due)
    reads, _ = fetching.read_all([*due.values()], limits)
    return _news(context, session, due, reads)


def _news(context: Context, session: FollowerSession, due: dict[Place, Wanted], reads: Sequence[Read]) -> FetchResponse:
    topics: dict[bytes, list[PartitionData]] = {}
    for (topic_id, _), wanted, read in session.news(due, reads):
        topics.setdefault(topic_id, []).append(_partition(context.api_version, wanted, read))
    rows = [FetchableTopicResponse(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()]
    return FetchResponse(session_id=session.id, responses=rows)


# -- authorise and find --------------------------------------------------------------------------


def _find(broker: Broker, context: Context, message: FetchRequest, limits: Limits) -> _Topics:
    """The partitions, each with its right to be read or with the reason why it is not."""
    find = broker.replicas.replica if limits.from_follower else broker.replicas.partition
    near = broker.replicas.nearest if message.rack_id and limits.from_follower else None
    found: _Topics = []
    for topic in message.topics:
        wanted = [
            Wanted(
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                part.current_leader_epoch,
                part.last_fetched_epoch,
                part.log_start_offset,
            )
            for part in topic.partitions
        ]
        found.append((topic, wanted))
        try:
            name = _readable(broker, context, topic, limits)
        except BrokerError as error:
            for one in wanted:
                one.error = error
            continue
        for one in wanted:
            try:
                one.partition = find(name, one.index)
                if near is not None and one.partition.is_leader:
                    one.preferred_replica = near(one.partition, message.rack_id, one.offset)
            except BrokerError as error:
                one.error = error
    return found


def _readable(broker: Broker, context: Context, topic: FetchTopic, limits: Limits) -> str:
    """The name of a topic that the client may read."""
    name = topic.topic
    if context.api_version >= TOPIC_IDS_SINCE:
        found = broker.catalog.topics.by_id.get(topic.topic_id)
        if found is None or topic.topic_id == ZERO_UUID:
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        name = found.name
    allows, session = broker.authorizer.allows, context.session
    if limits.replica is not None:
        if not allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            raise BrokerError("no right to fetch as a replica", code=Code.TOPIC_AUTHORIZATION_FAILED)
        return name
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
    error_code, aborted = read.error_code, read.aborted
    answer = PartitionData(
        partition_index=wanted.index,
        error_code=error_code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted],
        records=read.data,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        return answer.replace(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))
    if read.preferred_replica >= 0:
        return answer.replace(preferred_read_replica=read.preferred_replica)
    partition = wanted.partition
    if (
        version >= 12
        and partition is not None
        and error_code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
    ):
        leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        return answer.replace(current_leader=leader)
    return answer


async def _convert_and_answer(
    broker: Broker, context: Context, topics: _Topics, reads: Sequence[Read]
) -> FetchResponse:
    """Answer clients from before Kafka 0.11. Every record becomes an object on the way: that is for a thread."""
    loop = asyncio.get_running_loop()
    magic = 0 if context.api_version < 2 else 1
    converted = []
    for one, read in zip((one for _, partitions in topics for one in partitions), reads, strict=True):
        if len(read.data):
            data, error_code = await loop.run_in_executor(
                broker.checking_threads, _as_message_set, read.data, one.offset, magic
            )
            read = replace(read, data=data, error_code=error_code)
        converted.append(read)
    return _answer(context, topics, converted)


def _as_message_set(data: Buffer, first_offset: int, magic: int) -> tuple[Buffer, int]:
    """Batches as clients from before Kafka 0.11 read them; control records are not for them."""
    from headrace.wire import legacy
    from headrace.wire.records import read_batches

    batches: list[tuple[BatchHeader, list[Record]]] = []
    try:
        batches = [
            (batch.header, [record for record in batch.records(OLD_BYTES_MAX) if record.offset >= first_offset])
            for batch in read_batches(data)
            if not batch.header.is_control
        ]
        return legacy.convert_down(batches, magic=magic), Code.NONE
    except DecompressedSizeError:
        return b"", Code.MESSAGE_TOO_LARGE
    except WireError:
        return b"", Code.CORRUPT_MESSAGE
    finally:
        for _, records in batches:
            release(records)
