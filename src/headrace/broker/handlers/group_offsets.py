"""OffsetCommit, OffsetFetch and OffsetDelete: committed offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.broker.catalog.topics import Topic
from headrace.broker.context import Context, HandlerResult
from headrace.broker.groups.commits import NOTHING_COMMITTED, Commit, Fetched
from headrace.broker.groups.group import MemberClaim
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    OffsetResultPartition,
    OffsetResultTopic,
)
from headrace.wire.fields import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- OffsetCommit --------------------------------------------------------------------------------


COMMIT_TOPIC_IDS_MIN_VERSION = 10


async def handle_offset_commit(broker: Broker, context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets of a group.

    v0 without a generation · v1 commit timestamp · v2-4 retention time · v6+ leader epoch · v7+ static members ·
    v9+ GROUP_ID_NOT_FOUND · v10+ topic ids.
    """
    broker.authorizer.require(context.session, Operation.READ, Resource.GROUP, request.group_id)
    unknown_ids: set[bytes] = set()
    if context.api_version >= COMMIT_TOPIC_IDS_MIN_VERSION:
        unknown_ids = {topic.topic_id for topic in request.topics} - broker.catalog.topics.by_id.keys()
        request = request.replace(topics=[_with_topic_name(broker, topic) for topic in request.topics])
    known_topics = ((topic.name, topic.partitions) for topic in request.topics if topic.topic_id not in unknown_ids)
    failed, rows = check_rows(broker, context, known_topics)
    failed |= {
        TopicPartition(topic.name, row.partition_index): Code.UNKNOWN_TOPIC_ID
        for topic in request.topics
        if topic.topic_id in unknown_ids
        for row in topic.partitions
    }
    commits = {
        partition: Commit(
            row.committed_offset,
            row.committed_leader_epoch,
            row.committed_metadata,
            row.commit_timestamp,
            topic.id,
        )
        for partition, (row, topic) in rows.items()
    }
    results: Mapping[TopicPartition, int] = {}
    if commits:
        claim = MemberClaim(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
        try:
            results = await broker.groups.commit(
                request.group_id, claim, commits, retention_ms=request.retention_time_ms, version=context.api_version
            )
        except BrokerError as error:
            results = dict.fromkeys(commits, error.code)
    return _commit_response(request, {**results, **failed})


def _with_topic_name(broker: Broker, topic: OffsetCommitRequestTopic) -> OffsetCommitRequestTopic:
    """Return the row with the name of its topic; with the id as its name if the topic is unknown."""
    known_topic = broker.catalog.topics.by_id.get(topic.topic_id)
    return topic.replace(name=topic.topic_id.hex() if known_topic is None else known_topic.name)


class PartitionRow(Protocol):
    """A row of a request about committed offsets."""

    @property
    def partition_index(self) -> int: ...


R = TypeVar("R", bound=PartitionRow)


def check_rows(
    broker: Broker, context: Context, topics: Iterable[tuple[str, Sequence[R]]]
) -> tuple[dict[TopicPartition, Code], dict[TopicPartition, tuple[R, Topic]]]:
    """Return the error of each partition that is unknown or not authorized, and the other rows with their topics."""
    failed: dict[TopicPartition, Code] = {}
    checked: dict[TopicPartition, tuple[R, Topic]] = {}
    for name, rows in topics:
        authorized = broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, name)
        topic = broker.catalog.topics.by_name.get(name)
        for row in rows:
            partition = TopicPartition(name, row.partition_index)
            if not authorized:
                failed[partition] = Code.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= row.partition_index < len(topic.partitions):
                failed[partition] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                checked[partition] = row, topic
    return failed, checked


def _commit_response(request: OffsetCommitRequest, codes: Mapping[TopicPartition, int]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetResultPartition(
                        partition_index=row.partition_index,
                        error_code=codes.get(TopicPartition(topic.name, row.partition_index), Code.NONE),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# -- OffsetFetch ---------------------------------------------------------------------------------


GROUP_ERROR_MIN_VERSION = 2
GROUPS_MIN_VERSION = 8
FETCH_TOPIC_IDS_MIN_VERSION = 10


def handle_offset_fetch(broker: Broker, context: Context, request: OffsetFetchRequest) -> HandlerResult:
    """Return committed offsets of groups.

    v2+ all partitions of a group, group-level error · v5+ leader epoch · v7+ require_stable waits for open transactions
    (KIP-447) · v8+ several groups · v9+ member epochs · v10+ topic ids.
    """
    groups = [
        _fetch_group(broker, context, group, request.require_stable) for group in _requested_groups(context, request)
    ]
    return _fetch_response(context, groups)


def fail_offset_fetch(context: Context, request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    groups = [_failed_group(context, group, code) for group in _requested_groups(context, request)]
    return _fetch_response(context, groups)


def _requested_groups(context: Context, request: OffsetFetchRequest) -> list[OffsetFetchRequestGroup]:
    """Return the groups of a request; before v8 there is one."""
    if context.api_version >= GROUPS_MIN_VERSION:
        return list(request.groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _fetch_group(
    broker: Broker, context: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.GROUP, group.group_id):
        return _failed_group(context, group, Code.GROUP_AUTHORIZATION_FAILED)
    try:
        broker.groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            return _fetch_all(broker, context, group.group_id, require_stable)
        by_id = context.api_version >= FETCH_TOPIC_IDS_MIN_VERSION
        topics = [
            _fetch_topic(broker, context, group.group_id, row, by_id=by_id, require_stable=require_stable)
            for row in group.topics
        ]
    except BrokerError as error:
        return _failed_group(context, group, error.code)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _fetch_topic(
    broker: Broker,
    context: Context,
    group_id: str,
    topic: OffsetFetchRequestTopics,
    *,
    by_id: bool,
    require_stable: bool,
) -> OffsetFetchResponseTopics:
    name = topic.name
    known_topic = broker.catalog.topics.by_id.get(topic.topic_id) if by_id else broker.catalog.topics.by_name.get(name)
    if by_id:
        if known_topic is None:
            return _failed_topic(topic, Code.UNKNOWN_TOPIC_ID)
        name = known_topic.name
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name):
        return _failed_topic(topic, Code.TOPIC_AUTHORIZATION_FAILED)
    topic_id = ZERO_UUID if known_topic is None else known_topic.id
    partitions = [(TopicPartition(name, index), topic_id) for index in topic.partition_indexes]
    fetched = broker.groups.fetch(group_id, partitions, require_stable)
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic.topic_id,
        partitions=[
            _fetched_partition(index, fetched[TopicPartition(name, index)]) for index in topic.partition_indexes
        ],
    )


def _fetch_all(broker: Broker, context: Context, group_id: str, require_stable: bool) -> OffsetFetchResponseGroup:
    """Return all offsets that the client is authorized for; v10+ omits deleted topics, which have no id."""
    by_topic: dict[str, dict[TopicPartition, Fetched]] = {}
    for partition, fetched in broker.groups.fetch_all(group_id, require_stable).items():
        by_topic.setdefault(partition.topic, {})[partition] = fetched
    topics = []
    for name, partitions in by_topic.items():
        known_topic = broker.catalog.topics.by_name.get(name)
        if known_topic is None and context.api_version >= FETCH_TOPIC_IDS_MIN_VERSION:
            continue
        if broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name):
            rows = [_fetched_partition(index, fetched) for (_, index), fetched in partitions.items()]
            topic_id = ZERO_UUID if known_topic is None else known_topic.id
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=rows))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _fetched_partition(index: int, fetched: Fetched) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=fetched.offset,
        committed_leader_epoch=fetched.leader_epoch,
        metadata=fetched.metadata,
        error_code=fetched.error,
    )


def _failed_topic(topic: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    no_offset = NOTHING_COMMITTED._replace(error=Code(code))
    rows = [_fetched_partition(index, no_offset) for index in topic.partition_indexes]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def _failed_group(context: Context, group: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    """Return a group-level error; before v2 it is repeated for each partition."""
    topics = []
    if context.api_version < GROUP_ERROR_MIN_VERSION:
        topics = [_failed_topic(topic, code) for topic in group.topics or ()]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code, topics=topics)


def _fetch_response(context: Context, groups: Sequence[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    """Return the response; before v8 it has the fields of its only group."""
    if context.api_version >= GROUPS_MIN_VERSION:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


# -- OffsetDelete --------------------------------------------------------------------------------


async def handle_offset_delete(broker: Broker, context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets of topics that the group is not subscribed to."""
    if not broker.authorizer.allows(context.session, Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    failed, rows = check_rows(broker, context, ((topic.name, topic.partitions) for topic in request.topics))
    try:
        results = await broker.groups.delete_offsets(request.group_id, list(rows))
    except BrokerError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return _delete_response(request, {**failed, **results})


def _delete_response(request: OffsetDeleteRequest, codes: Mapping[TopicPartition, int]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetResultTopic(
                name=topic.name,
                partitions=[
                    OffsetResultPartition(
                        partition_index=row.partition_index,
                        error_code=codes[TopicPartition(topic.name, row.partition_index)],
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
