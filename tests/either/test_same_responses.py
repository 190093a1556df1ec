"""Raw requests in every version of both brokers: headrace responds like Apache Kafka, field by field."""

from __future__ import annotations

import pytest

from tests.support.comparison import admin, data, groups, transactions
from tests.support.comparison.comparing import KEYS, World, comparable, differences
from tests.support.topics import unique

CASES = {**data.CASES, **groups.CASES, **transactions.CASES, **admin.CASES}
JOIN_VERSIONS = range(10)
TELEMETRY = (71, 72)


@pytest.fixture(scope="module")
def worlds(kafka, headrace_broker):
    """Both brokers with the same content: headrace first."""
    names = unique("same"), unique("same-group"), unique("same-txn")
    worlds = [World(broker, *names) for broker in (headrace_broker, kafka)]
    yield worlds
    for world in worlds:
        world.close()


def test_api_versions_are_those_of_apache_kafka(worlds):
    """Except for telemetry (KIP-714), which Apache Kafka advertises only with a plugin that receives it."""
    ours, theirs = (world.versions for world in worlds)
    ours = {key: versions for key, versions in ours.items() if key not in TELEMETRY}
    assert {key: (ours[key], theirs.get(key)) for key in ours if theirs.get(key, (0, -1))[1] != ours[key][1]} == {}
    assert {key: (ours[key], theirs[key]) for key in ours if ours[key][0] > theirs[key][0]} == {}


@pytest.mark.parametrize("about", CASES)
def test_both_brokers_respond_alike(worlds, about):
    unequal = CASES[about].compare(*worlds)
    assert not unequal, "\n".join(unequal)


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_a_group_gets_the_same_responses_in_every_version(worlds, version):
    """Join, sync, heartbeat, commit, leave: in the version of the join, or the nearest one."""
    ours, theirs = (group_responses(world, version) for world in worlds)
    unequal = differences(ours, theirs)
    assert not unequal, "\n".join(unequal)


def group_responses(world, version):
    group, responses = f"{world.group}-{version}", []

    def call(name, fields):
        first, last = world.versions[KEYS[name]]
        response = world.call(name, min(max(version, first, groups.FIRST_VERSIONS.get(name, 0)), last), fields)
        responses.append(comparable(response))
        return response

    joined = call("JoinGroup", groups.join(world, group_id=group))
    if joined.error_code:  # from version 4 on, the first response assigns a member id
        joined = call("JoinGroup", groups.join(world, group_id=group, member_id=joined.member_id))
    responses[-1] = {**responses[-1], "leader": joined.leader == joined.member_id, "members": len(joined.members)}
    member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    call("Heartbeat", member)
    assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
    call("SyncGroup", {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": assignments})
    call("Heartbeat", member)
    call("Heartbeat", {**member, "generation_id": 9})
    call("DescribeGroups", {"groups": [group]})
    call("OffsetCommit", groups.offset_commit(world, group, joined.generation_id, joined.member_id))
    call("OffsetCommit", groups.offset_commit(world, group, joined.generation_id + 1, joined.member_id))
    call("DeleteGroups", {"groups_names": [group]})
    leaving = [{"member_id": joined.member_id, "group_instance_id": None}]
    call("LeaveGroup", {"group_id": group, "member_id": joined.member_id, "members": leaving})
    call("Heartbeat", member)
    call("DescribeGroups", {"groups": [group]})
    call("OffsetFetch", groups.offset_fetch(world, group, [0, 1]))
    call("DeleteGroups", {"groups_names": [group]})
    return responses
