"""Requests about groups and their coordinators."""

from __future__ import annotations

from typing import Any

from tests.support.comparison.comparing import NOBODY, RequestCase, World

FIRST_VERSIONS = {"OffsetCommit": 2, "OffsetFetch": 1}
"""What Apache Kafka 4 begins with."""

CASES = {
    "a coordinator of groups": RequestCase(
        "FindCoordinator", lambda w: {"key": w.group, "key_type": 0, "coordinator_keys": [w.group]}
    ),
    "a coordinator of transactions": RequestCase(
        "FindCoordinator",
        lambda w: {"key": w.transactional_id, "key_type": 1, "coordinator_keys": [w.transactional_id]},
        range(1, 100),
    ),
    "a coordinator of nothing": RequestCase(
        "FindCoordinator", lambda w: {"key": "", "key_type": 0, "coordinator_keys": [""]}
    ),
    "a coordinator of an unknown kind": RequestCase(
        "FindCoordinator", lambda w: {"key": "x", "key_type": 9, "coordinator_keys": ["x"]}, range(1, 100)
    ),
    "committed offsets": RequestCase("OffsetFetch", lambda w: offset_fetch(w, w.group, [0, 1])),
    "committed offsets of nobody": RequestCase("OffsetFetch", lambda w: offset_fetch(w, NOBODY, [0])),
    "all committed offsets": RequestCase("OffsetFetch", lambda w: offset_fetch(w, w.group, None), range(2, 100)),
    "offsets of a member that is none": RequestCase("OffsetCommit", lambda w: offset_commit(w, w.group, 7, "ghost")),
    "offsets of a group by hand": RequestCase("OffsetCommit", lambda w: offset_commit(w, w.group + "-hand", -1, "")),
    "offsets of a group without a name": RequestCase("OffsetCommit", lambda w: offset_commit(w, "", -1, "")),
    "a heartbeat of a ghost": RequestCase(
        "Heartbeat", lambda w: {"group_id": w.group, "generation_id": 1, "member_id": "ghost"}
    ),
    "a sync of a ghost": RequestCase(
        "SyncGroup", lambda w: {"group_id": NOBODY, "generation_id": 1, "member_id": "ghost"}
    ),
    "a leave of a ghost": RequestCase(
        "LeaveGroup",
        lambda w: {
            "group_id": w.group,
            "member_id": "ghost",
            "members": [{"member_id": "ghost", "group_instance_id": None}],
        },
    ),
    "a join with a session too short": RequestCase("JoinGroup", lambda w: join(w, session_timeout_ms=10)),
    "a join without a name": RequestCase("JoinGroup", lambda w: join(w, group_id="")),
    "a join without protocols": RequestCase("JoinGroup", lambda w: join(w, protocols=[])),
    "a join of a ghost": RequestCase("JoinGroup", lambda w: join(w, member_id="ghost")),
    "described groups": RequestCase(
        "DescribeGroups", lambda w: {"groups": [w.group, NOBODY], "include_authorized_operations": True}
    ),
    "deleted groups": RequestCase("DeleteGroups", lambda w: {"groups_names": [NOBODY, ""]}),
    "deleted offsets": RequestCase(
        "OffsetDelete",
        lambda w: {"group_id": NOBODY, "topics": [{"name": w.topic, "partitions": [{"partition_index": 0}]}]},
    ),
}


def offset_fetch(world: World, group: str, partitions: list[int] | None) -> dict[str, Any]:
    topic = {"name": world.topic, "topic_id": world.topic_id, "partition_indexes": partitions}
    topics = None if partitions is None else [topic]
    by_name = None if partitions is None else [{"name": world.topic, "partition_indexes": partitions}]
    return {"group_id": group, "topics": by_name, "groups": [{"group_id": group, "topics": topics}]}


def offset_commit(world: World, group: str, generation: int, member: str) -> dict[str, Any]:
    partitions = [{"partition_index": n, "committed_offset": 3, "committed_metadata": ""} for n in (0, 9)]
    topic = {"name": world.topic, "topic_id": world.topic_id, "partitions": partitions}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [topic],
    }


def join(world: World, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": world.group + "-join",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **fields,
    }
