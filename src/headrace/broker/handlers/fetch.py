"""Fetch: read record batches.

    authorize, find partitions → read → at least min.bytes? respond : wait in the purgatory → read again → respond

v0-3 get message sets · v4+ isolation levels · v11+ clients may read from followers, and are redirected to the nearest
(KIP-392) · v12+ last fetched epoch · v13+ topic ids · v15+ the broker epoch of a follower.

v7+ have fetch sessions (KIP-227): requests and responses contain only the partitions that have changed. A client
without one, because it wants none or there is no room, sends all partitions each time. Followers read up to the log end
offset, and their fetch offset tells the leader what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker import fetching
from headrace.broker.context import Context, HandlerResult
from headrace.broker.fetch_sessions import NEW_SESSION_EPOCH
from headrace.broker.fetching import NO_REPLICA, FetchLimits, PartitionFetch, Read, Replica
from headrace.broker.log.decompression import OLD_BYTES_MAX, release
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code, DecompressedSizeError, WireError
from headrace.wire import message_sets
from headrace.wire.api.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.wire.api.leaders import LeaderIdAndEpoch
from headrace.wire.compression import ZSTD
from headrace.wire.fields import ZERO_UUID
from headrace.wire.primitives import Buffer
from headrace.wire.records import read_batches

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.follower_sessions import FollowerSession, FollowerSessions
    from headrace.broker.fetch_sessions import ClientSession, FetchSession, SessionKey
    from headrace.wire.layout import BatchHeader, Record

RECORD_BATCHES_MIN_VERSION = 4  # v0-3 get message sets
ZSTD_MIN_VERSION = 10  # KIP-110: older clients cannot decompress it
FETCH_FROM_FOLLOWER_MIN_VERSION = 11
TOPIC_IDS_MIN_VERSION = 13
REPLICA_STATE_MIN_VERSION = 15
HIGH_WATERMARK_MIN_VERSION = 18
NO_HIGH_WATERMARK_UPDATES = 0x7FFFFFFFFFFFFFFF
"""A follower that sends this high watermark does not want responses for mere high watermark changes."""
WAIT_MS_MAX = 10 * 60 * 1000
"""The longest wait of a fetch, whatever its max.wait.ms."""
READ_COMMITTED = 1

_Topics = list[tuple[FetchTopic, list[PartitionFetch]]]


def handle_fetch(broker: Broker, context: Context, request: FetchRequest) -> HandlerResult:
    limits = _limits(broker, context, request)
    if limits.replica is not None and request.session_epoch >= 0:
        sessions = broker.replicas.follower_sessions
        if sessions is not None:
            return _fetch_in_session(broker, context, request, limits, replica=limits.replica, sessions=sessions)
    try:
        session = _client_session(broker, context, request, limits)
    except BrokerError as error:
        return FetchResponse(error_code=error.code)
    if session is not None:
        return _fetch_in_client_session(broker, context, request, limits, session)
    topics = _find_partitions(broker, context, request, limits)
    fetches = [fetch for _, partitions in topics for fetch in partitions]
    reads, is_ready = fetching.read_all(fetches, limits)
    if is_ready or not fetches or request.max_wait_ms <= 0:
        if context.api_version < RECORD_BATCHES_MIN_VERSION:
            return _convert_and_respond(broker, context, topics, reads)
        return _response(context, topics, reads)
    missing_bytes = limits.bytes_min - sum(len(read.data) for read in reads)
    return _wait_and_read(broker, context, request, topics, limits, fetches=fetches, missing_bytes=missing_bytes)


def _limits(broker: Broker, context: Context, request: FetchRequest) -> FetchLimits:
    limit = min(broker.config.of(int, "fetch.max.bytes"), broker.server.response_bytes_max)
    bytes_max = max(min(request.max_bytes, limit), 0)
    bytes_min = min(request.min_bytes, bytes_max)
    if context.api_version < REPLICA_STATE_MIN_VERSION:
        node_id, broker_epoch = request.replica_id, -1
    else:
        node_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    if node_id >= 0:
        return FetchLimits(
            bytes_min, bytes_max, False, Replica(node_id, broker_epoch, broker.replicas.follower_fetched)
        )
    committed_only = request.isolation_level == READ_COMMITTED
    return FetchLimits(
        bytes_min, bytes_max, committed_only, None, context.api_version >= FETCH_FROM_FOLLOWER_MIN_VERSION
    )


def _wait_and_read(
    broker: Broker,
    context: Context,
    request: FetchRequest,
    topics: _Topics,
    limits: FetchLimits,
    *,
    fetches: Sequence[PartitionFetch],
    missing_bytes: int,
) -> Awaitable[FetchResponse]:
    timeout_ms = min(request.max_wait_ms, WAIT_MS_MAX)
    replicas = broker.replicas
    purgatory = replicas.delayed_fetches if limits.replica is None else replicas.delayed_follower_fetches
    waiting = fetching.wait(purgatory, fetches, limits, missing_bytes, timeout_ms)

    async def read_again() -> FetchResponse:
        await waiting
        _recheck_partitions(broker, topics, context)
        reads, _ = fetching.read_all(fetches, limits)
        if context.api_version < RECORD_BATCHES_MIN_VERSION:
            return await _convert_and_respond(broker, context, topics, reads)
        return _response(context, topics, reads)

    return read_again()


# -- sessions of clients -------------------------------------------------------------------------


def _client_session(
    broker: Broker, context: Context, request: FetchRequest, limits: FetchLimits
) -> ClientSession | None:
    """Return the session of a request, with what the request changes; None: without a session."""
    sessions = broker.replicas.client_sessions
    by_id = context.api_version >= TOPIC_IDS_MIN_VERSION
    if request.session_epoch > NEW_SESSION_EPOCH:
        session = sessions.continued(request.session_id, request.session_epoch, by_id=by_id)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.forget((forgotten.topic_id if by_id else forgotten.topic, index))
        if not len(session) and not request.topics:
            sessions.remove(session.id)  # its last partition was removed
            return None
        return session
    sessions.remove(request.session_id)
    if request.session_epoch < NEW_SESSION_EPOCH or not request.topics or limits.replica is not None:
        return None
    count = sum(len(topic.partitions) for topic in request.topics)
    return sessions.begin(count, by_id=by_id, acls_version=broker.catalog.acls.version)


def _fetch_in_client_session(
    broker: Broker, context: Context, request: FetchRequest, limits: FetchLimits, session: ClientSession
) -> HandlerResult:
    requested = []
    for topic in request.topics:
        for part in topic.partitions:
            key = (topic.topic_id if session.by_id else topic.topic, part.partition)
            session.update(key, _partition_fetch(part))
            requested.append(key)

    def read(keys: Iterable[SessionKey]) -> tuple[dict[SessionKey, PartitionFetch], list[Read], bool]:
        session.check_acls(broker.catalog.acls.version)
        finder = _PartitionFinder(broker, context, request, limits)
        due = session.due(keys)
        for key, fetch in due.items():
            finder.find(key[0], fetch)
            session.update(key, fetch)
        return due, *fetching.read_all([*due.values()], limits)

    due, reads, is_ready = read(requested)
    if is_ready or request.max_wait_ms <= 0:
        return _session_response(context, limits, session, due, reads)
    missing_bytes = limits.bytes_min - sum(len(read.data) for read in reads)
    waiting = session.wait(broker.clock, min(request.max_wait_ms, WAIT_MS_MAX), missing_bytes)

    async def read_again() -> FetchResponse:
        try:
            await waiting
        except asyncio.CancelledError:
            broker.replicas.client_sessions.remove(session.id)  # the connection is closed: the client begins another
            raise
        now_due, now_read, _ = read(due)
        return _session_response(context, limits, session, now_due, now_read)

    return read_again()


# -- sessions of followers -----------------------------------------------------------------------


def _fetch_in_session(
    broker: Broker,
    context: Context,
    request: FetchRequest,
    limits: FetchLimits,
    *,
    replica: Replica,
    sessions: FollowerSessions,
) -> HandlerResult:
    """Fetch for a follower: request and response contain only the partitions that have changed."""
    topics = _find_partitions(broker, context, request, limits)
    try:
        session = sessions.find(replica.node_id, request.session_id, request.session_epoch)
    except BrokerError as error:
        return FetchResponse(error_code=error.code)
    for forgotten in request.forgotten_topics_data:
        for index in forgotten.partitions:
            session.forget((forgotten.topic_id, index))
    if context.api_version >= HIGH_WATERMARK_MIN_VERSION and request.topics:
        session.is_prompt = request.topics[0].partitions[0].high_watermark != NO_HIGH_WATERMARK_UPDATES
    requested: list[SessionKey] = []
    for topic, partitions in topics:
        for fetch in partitions:
            requested.append((topic.topic_id, fetch.index))
            session.update(requested[-1], fetch)
    due = session.due(requested)
    reads, is_ready = fetching.read_all([*due.values()], limits)
    if is_ready or request.max_wait_ms <= 0:
        return _session_response(context, limits, session, due, reads)
    waiting = session.wait(broker.clock, min(request.max_wait_ms, WAIT_MS_MAX))
    return _read_after(waiting, context, limits, session, due)


async def _read_after(
    waiting: Awaitable[None],
    context: Context,
    limits: FetchLimits,
    session: FollowerSession,
    due: dict[SessionKey, PartitionFetch],
) -> FetchResponse:
    await waiting
    due = session.due(due)
    reads, _ = fetching.read_all([*due.values()], limits)
    return _session_response(context, limits, session, due, reads)


def _session_response(
    context: Context,
    limits: FetchLimits,
    session: FetchSession,
    due: Mapping[SessionKey, PartitionFetch],
    reads: Sequence[Read],
) -> FetchResponse:
    topics: dict[bytes | str, list[PartitionData]] = {}
    for (topic, _), fetch, read in session.unreported(due, reads, limits.end):
        topics.setdefault(topic, []).append(_partition_response(context.api_version, fetch, read))
    rows = [
        FetchableTopicResponse(topic=topic, partitions=parts)
        if isinstance(topic, str)
        else FetchableTopicResponse(topic_id=topic, partitions=parts)
        for topic, parts in topics.items()
    ]
    return FetchResponse(session_id=session.id, responses=rows)


# -- authorize, find partitions ------------------------------------------------------------------


def _find_partitions(broker: Broker, context: Context, request: FetchRequest, limits: FetchLimits) -> _Topics:
    """Return the partitions of a request, each found and authorized or with the error that prevents reading it."""
    finder = _PartitionFinder(broker, context, request, limits)
    by_id = context.api_version >= TOPIC_IDS_MIN_VERSION
    topics: _Topics = []
    for topic in request.topics:
        fetches = [_partition_fetch(part) for part in topic.partitions]
        for fetch in fetches:
            finder.find(topic.topic_id if by_id else topic.topic, fetch)
        topics.append((topic, fetches))
    return topics


def _partition_fetch(part: FetchPartition) -> PartitionFetch:
    return PartitionFetch(
        part.partition,
        part.fetch_offset,
        part.partition_max_bytes,
        part.current_leader_epoch,
        part.last_fetched_epoch,
        part.log_start_offset,
    )


class _PartitionFinder:
    """Finds and authorizes the partitions of a request."""

    def __init__(self, broker: Broker, context: Context, request: FetchRequest, limits: FetchLimits) -> None:
        self._broker = broker
        self._session = context.session
        self._is_replica = limits.replica is not None
        self._find = broker.replicas.replica if limits.from_follower else broker.replicas.partition
        self._select_replica = broker.replicas.replica_selector if request.rack_id and limits.from_follower else None
        self._rack = request.rack_id
        self._topics: dict[bytes | str, str | BrokerError] = {}

    def find(self, topic: bytes | str, fetch: PartitionFetch) -> None:
        """Set the partition of a fetch, or the error that prevents reading it. `topic` is an id or a name."""
        fetch.partition, fetch.error, fetch.preferred_replica = None, None, NO_REPLICA
        name = self._topics.get(topic)
        if name is None:
            try:
                name = self._readable_topic(topic)
            except BrokerError as error:
                name = error
            self._topics[topic] = name
        if isinstance(name, BrokerError):
            fetch.error = name
            return
        try:
            partition = self._find(name, fetch.index)
            if self._select_replica is not None and partition.is_leader:
                fetch.preferred_replica = self._select_replica(partition, self._rack, fetch.offset)
            fetch.partition = partition
        except BrokerError as error:
            fetch.error = error

    def _readable_topic(self, topic: bytes | str) -> str:
        """Return the name of a topic that the client or follower is authorized to read."""
        authorizer = self._broker.authorizer
        if isinstance(topic, str):
            name = topic
        else:
            known = self._broker.catalog.topics.by_id.get(topic)
            if known is None or topic == ZERO_UUID:
                raise BrokerError(f"unknown topic id {topic.hex()}", code=Code.UNKNOWN_TOPIC_ID)
            name = known.name
        if not self._is_replica:
            authorizer.require(self._session, Operation.READ, Resource.TOPIC, name)
        elif not authorizer.allows(self._session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            raise BrokerError(
                f"{self._session.principal} is not authorized to fetch as a replica",
                code=Code.TOPIC_AUTHORIZATION_FAILED,
            )
        return name


def _recheck_partitions(broker: Broker, topics: _Topics, context: Context) -> None:
    """Fail partitions that were deleted, and perhaps recreated, while the fetch waited."""
    for _, partitions in topics:
        for fetch in partitions:
            if fetch.partition is not None and fetch.partition.is_deleted:
                fetch.partition = None
                by_id = context.api_version >= TOPIC_IDS_MIN_VERSION
                code = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
                fetch.error = BrokerError("the topic was deleted", code=code)


# -- respond -------------------------------------------------------------------------------------


def _response(context: Context, topics: _Topics, reads: Sequence[Read]) -> FetchResponse:
    rows = iter(reads)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_partition_response(context.api_version, fetch, next(rows)) for fetch in partitions],
            )
            for topic, partitions in topics
        ]
    )


def _partition_response(version: int, fetch: PartitionFetch, read: Read) -> PartitionData:
    if version < ZSTD_MIN_VERSION and fetch.partition is not None and fetch.partition.log.config.codec == ZSTD:
        read = replace(read, data=b"", error_code=read.error_code or Code.UNSUPPORTED_COMPRESSION_TYPE)
    error_code, aborted = read.error_code, read.aborted
    response = PartitionData(
        partition_index=fetch.index,
        error_code=error_code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted],
        records=read.data,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        return response.replace(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))
    if read.preferred_replica >= 0:
        return response.replace(preferred_read_replica=read.preferred_replica)
    partition = fetch.partition
    if (
        version >= 12
        and partition is not None
        and error_code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
    ):
        leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        return response.replace(current_leader=leader)
    return response


async def _convert_and_respond(
    broker: Broker, context: Context, topics: _Topics, reads: Sequence[Read]
) -> FetchResponse:
    """Respond to clients older than Kafka 0.11. Conversion decodes every record, so it runs on a thread."""
    loop = asyncio.get_running_loop()
    magic = 0 if context.api_version < 2 else 1
    converted = []
    for fetch, read in zip((fetch for _, partitions in topics for fetch in partitions), reads, strict=True):
        if len(read.data):
            data, error_code = await loop.run_in_executor(
                broker.checking_threads, _as_message_set, read.data, fetch.offset, magic
            )
            read = replace(read, data=data, error_code=error_code)
        converted.append(read)
    return _response(context, topics, converted)


def _as_message_set(data: Buffer, first_offset: int, magic: int) -> tuple[Buffer, int]:
    """Convert batches to a message set for clients older than Kafka 0.11, without control records."""
    batches: list[tuple[BatchHeader, list[Record]]] = []
    try:
        for batch in read_batches(data):
            if batch.header.is_control:
                continue
            if batch.header.codec == ZSTD:  # younger than message sets: it is not converted (KIP-110)
                if not batches:
                    return b"", Code.UNSUPPORTED_COMPRESSION_TYPE
                break
            records = [record for record in batch.records(OLD_BYTES_MAX) if record.offset >= first_offset]
            batches.append((batch.header, records))
        return message_sets.convert_down(batches, magic=magic), Code.NONE
    except DecompressedSizeError:
        return b"", Code.MESSAGE_TOO_LARGE
    except WireError:
        return b"", Code.CORRUPT_MESSAGE
    finally:
        for _, records in batches:
            release(records)
