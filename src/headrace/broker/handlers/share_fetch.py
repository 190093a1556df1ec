"""ShareFetch and ShareAcknowledge: records of share groups (KIP-932).

    check → session → acknowledge what the request acknowledges → fetch → respond

A fetch of a session returns what its partitions have, in turn. The last request of a session (epoch -1) only
acknowledges; what its member has not acknowledged is released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.nodes import node
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.share.fetching import Fetched, ShareFetch, ShareFetchLimits
from headrace.broker.share.in_flight import AcknowledgeType, OffsetRange
from headrace.broker.share.partition import Acknowledgement
from headrace.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, TopicIdPartition
from headrace.errors import BrokerError, Code
from headrace.wire.api.leaders import NodeEndpoint
from headrace.wire.api.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareLeader,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

RENEW_MIN_VERSION = 2
WAIT_MS_MAX = 10 * 60 * 1000
"""The longest wait of a fetch, whatever max.wait.ms it asks for."""
_MOVED = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)

Acknowledged = dict[TopicIdPartition, BrokerError | None]


# -- ShareFetch ----------------------------------------------------------------------------------


async def handle_share_fetch(broker: Broker, context: Context, request: ShareFetchRequest) -> ShareFetchResponse:
    """Acknowledge, acquire and fetch records. v2+ renewal of locks, and a strict limit of records."""
    group_id, _ = _check_member(broker, context, request)
    _check_renewal(request)
    rows = {(topic.topic_id, part.partition_index): part for topic in request.topics for part in topic.partitions}
    acknowledgements = {key: part for key, part in rows.items() if part.acknowledgement_batches}
    session = _find_session(broker, context, request, rows, has_acknowledgements=bool(acknowledgements))
    is_full, epoch = request.share_session_epoch == INITIAL_EPOCH, session.epoch
    acknowledged = await _acknowledge(broker, context, request, acknowledgements)
    fetched: dict[TopicIdPartition, Fetched] = {}
    if request.share_session_epoch != FINAL_EPOCH and not request.is_renew_ack:
        fetched = await _fetch(broker, context, request, session)
        if session.epoch != epoch and broker.share.partitions.sessions.is_current(session):
            return ShareFetchResponse(error_code=Code.INVALID_SHARE_SESSION_EPOCH)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share.partitions.end_session(session)
    response = _fetch_response(broker, context, session, fetched, acknowledged, is_full=is_full)
    return response.replace(acquisition_lock_timeout_ms=broker.share.partitions.settings_of(group_id).lock_ms)


def _check_member(
    broker: Broker, context: Context, request: ShareFetchRequest | ShareAcknowledgeRequest
) -> tuple[str, str]:
    """Return the group and the member of a request, if they are valid and authorized."""
    if request.group_id is None:
        raise BrokerError("Invalid group id in the request.", code=Code.INVALID_REQUEST)
    broker.authorizer.require(context.session, Operation.READ, Resource.GROUP, request.group_id)
    if not request.member_id:
        raise BrokerError("Invalid member id in the request.", code=Code.INVALID_REQUEST)
    return request.group_id, request.member_id


def _check_renewal(request: ShareFetchRequest) -> None:
    """Raise unless a fetch that renews locks fetches nothing (KIP-1222)."""
    if request.is_renew_ack:
        limits = {
            "maxBytes": request.max_bytes,
            "minBytes": request.min_bytes,
            "maxRecords": request.max_records,
            "maxWaitMs": request.max_wait_ms,
        }
        facts = "".join(f"{name} must be set to 0, " for name, value in limits.items() if value)
        if facts:
            raise BrokerError(f"{facts}if isRenewAck is true.", code=Code.INVALID_REQUEST)


def _find_session(
    broker: Broker,
    context: Context,
    request: ShareFetchRequest,
    partitions: Iterable[TopicIdPartition],
    *,
    has_acknowledgements: bool,
) -> ShareSession:
    sessions = broker.share.partitions.sessions
    group_id, member_id, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        if has_acknowledgements:
            raise BrokerError("the first fetch of a session cannot acknowledge records", code=Code.INVALID_REQUEST)
        return sessions.create(group_id, member_id, context.session, partitions)
    session = sessions.find(group_id, member_id, epoch)
    if epoch != FINAL_EPOCH:
        forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        session.update(partitions, forgotten)
    return session


async def _fetch(
    broker: Broker, context: Context, request: ShareFetchRequest, session: ShareSession
) -> dict[TopicIdPartition, Fetched]:
    """Fetch the partitions of a session."""
    results: dict[TopicIdPartition, Fetched] = {}
    partitions: dict[TopicIdPartition, Partition] = {}
    for key in session.partitions:
        try:
            partitions[key] = _readable_partition(broker, context, key)
        except BrokerError as error:
            results[key] = Fetched(error=error)
    bytes_max = min(request.max_bytes, broker.config.of(int, "fetch.max.bytes"), broker.server.response_bytes_max)
    limits = ShareFetchLimits(
        0 if results else min(request.max_wait_ms, WAIT_MS_MAX),
        min(request.min_bytes, bytes_max),
        bytes_max,
        request.max_records,
        request.batch_size,
        request.share_acquire_mode,
    )
    if partitions and bytes_max > 0 and request.max_records > 0:
        fetch = ShareFetch(broker.share.partitions, session, partitions, limits)
        results |= await fetch.run()
    return results


def _readable_partition(broker: Broker, context: Context, key: TopicIdPartition) -> Partition:
    """Return a partition that this broker leads and the client is authorized to read."""
    topic_id, index = key
    topic = broker.catalog.topics.by_id.get(topic_id)
    if topic is None:
        raise BrokerError("This server does not host this topic ID.", code=Code.UNKNOWN_TOPIC_ID)
    broker.authorizer.require(context.session, Operation.READ, Resource.TOPIC, topic.name)
    return broker.replicas.partition(topic.name, index)


def _fetch_response(
    broker: Broker,
    context: Context,
    session: ShareSession,
    fetched: Mapping[TopicIdPartition, Fetched],
    acknowledged: Acknowledged,
    *,
    is_full: bool,
) -> ShareFetchResponse:
    topics: dict[bytes, list[ShareFetchPartitionData]] = {}
    nodes: set[int] = set()
    for key in dict.fromkeys([*fetched, *acknowledged]):
        result = fetched.get(key, Fetched())
        is_new = session.partitions.get(key) is False
        is_due = is_full or is_new or result.acquired or result.error is not None or key in acknowledged
        if not is_due:
            continue
        if key in fetched and key in session.partitions:
            session.partitions[key] = True
        if result.acquired:
            session.delivered(key)
        topics.setdefault(key[0], []).append(_partition_data(broker, key, result, acknowledged.get(key), nodes))
    rows = [ShareFetchableTopicResponse(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()]
    return ShareFetchResponse(responses=rows, node_endpoints=_endpoints(broker, context, nodes))


def _partition_data(
    broker: Broker, key: TopicIdPartition, result: Fetched, acknowledge_error: BrokerError | None, nodes: set[int]
) -> ShareFetchPartitionData:
    data = ShareFetchPartitionData(partition_index=key[1], records=result.data, acquired_records=result.acquired)
    if acknowledge_error is not None:
        data = data.replace(
            acknowledge_error_code=acknowledge_error.code, acknowledge_error_message=str(acknowledge_error.args[0])
        )
    if result.error is None:
        return data
    data = data.replace(error_code=result.error.code, error_message=str(result.error.args[0]))
    return data.replace(current_leader=_leader(broker, key, nodes)) if result.error.code in _MOVED else data


def _leader(broker: Broker, key: TopicIdPartition, nodes: set[int]) -> ShareLeader:
    """Return the leader of a partition that this broker does not lead."""
    topic = broker.catalog.topics.by_id.get(key[0])
    if topic is None or key[1] >= len(topic.partitions):
        return ShareLeader(leader_id=-1, leader_epoch=-1)
    registration = topic.partitions[key[1]]
    if registration.leader >= 0:
        nodes.add(registration.leader)
    return ShareLeader(leader_id=registration.leader, leader_epoch=registration.leader_epoch)


def _endpoints(broker: Broker, context: Context, nodes: Iterable[int]) -> list[NodeEndpoint]:
    rows = []
    for node_id in sorted(nodes):
        try:
            address = node(broker, context.session.listener, node_id)
        except BrokerError:
            continue  # it has just left
        rows.append(NodeEndpoint(node_id=node_id, host=address.host, port=address.port))
    return rows


# -- ShareAcknowledge ----------------------------------------------------------------------------


async def handle_share_acknowledge(
    broker: Broker, context: Context, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Acknowledge acquired records. v2+ renewal of locks."""
    group_id, member_id = _check_member(broker, context, request)
    if request.share_session_epoch == INITIAL_EPOCH:
        raise BrokerError("The share session epoch is invalid.", code=Code.INVALID_SHARE_SESSION_EPOCH)
    session = broker.share.partitions.sessions.find(group_id, member_id, request.share_session_epoch)
    rows = {(topic.topic_id, part.partition_index): part for topic in request.topics for part in topic.partitions}
    acknowledged = await _acknowledge(broker, context, request, rows)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share.partitions.end_session(session)
    topics: dict[bytes, list[ShareAcknowledgePartitionData]] = {}
    nodes: set[int] = set()
    for key, failure in acknowledged.items():
        data = ShareAcknowledgePartitionData(partition_index=key[1])
        if failure is not None:
            data = data.replace(error_code=failure.code, error_message=str(failure.args[0]))
            if failure.code in _MOVED:
                data = data.replace(current_leader=_leader(broker, key, nodes))
        topics.setdefault(key[0], []).append(data)
    responses = [
        ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()
    ]
    return ShareAcknowledgeResponse(
        responses=responses,
        node_endpoints=_endpoints(broker, context, nodes),
        acquisition_lock_timeout_ms=broker.share.partitions.settings_of(group_id).lock_ms,
    )


async def _acknowledge(
    broker: Broker,
    context: Context,
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    rows: Mapping[TopicIdPartition, ShareFetchPartition | ShareFetchPartition],
) -> Acknowledged:
    """Apply the acknowledgements of a request; return an error or None for each partition."""
    results: Acknowledged = dict.fromkeys(rows)
    may_renew = context.api_version >= RENEW_MIN_VERSION and request.is_renew_ack
    valid: dict[TopicIdPartition, list[Acknowledgement]] = {}
    for key, part in rows.items():
        try:
            _check_batches(part.acknowledgement_batches, may_renew=may_renew)
            _readable_partition(broker, context, key)
            valid[key] = [
                Acknowledgement(OffsetRange(batch.first_offset, batch.last_offset), batch.acknowledge_types)
                for batch in part.acknowledgement_batches
            ]
        except BrokerError as error:
            results[key] = error
    valid = {key: batches for key, batches in valid.items() if batches}
    results |= await broker.share.partitions.acknowledge(request.group_id or "", request.member_id or "", valid)
    return results


def _check_batches(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> None:
    """Raise INVALID_REQUEST unless batches are in order, with one type for all records or one for each."""
    previous_end = -1
    for batch in batches:
        types, count = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if (
            count < 1
            or batch.first_offset <= previous_end
            or len(types) not in (1, count)
            or not all(AcknowledgeType.GAP <= kind <= AcknowledgeType.RENEW for kind in types)
            or (AcknowledgeType.RENEW in types and not may_renew)
        ):
            raise BrokerError(
                "This most likely occurs because of a request being malformed by the client library or the message "
                "was sent to an incompatible broker. See the broker logs for more details.",
                code=Code.INVALID_REQUEST,
            )
        previous_end = batch.last_offset
