"""The persisted state of share partitions: merging, records, and the simple assignor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.assignors import AssignableMember
from headrace.broker.groups.share_assignor import assign_simply
from headrace.broker.share import records
from headrace.broker.share.records import ShareUpdateValue
from headrace.broker.share.state import SharePartitionKey, ShareState, merge
from headrace.errors import BrokerError
from headrace.wire.api.share_state import StateBatch

KEY = SharePartitionKey("group:with:colons", bytes(range(16)), 3)
T1, T2 = bytes([1]) * 16, bytes([2]) * 16


def batch(first: int, last: int, state: int, count: int) -> StateBatch:
    return StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)


batches = st.lists(
    st.builds(
        lambda first, size, state, count: batch(first, first + size, state, count),
        st.integers(0, 20),
        st.integers(0, 8),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=6,
)


@given(batches, batches, st.integers(-1, 20))
def test_merged_batches_have_the_furthest_state_of_each_record(current, new, start):
    expected: dict[int, tuple[int, int]] = {}
    for row in [*current, *new]:
        for offset in range(max(row.first_offset, start), row.last_offset + 1):
            rank = (row.delivery_count, row.delivery_state)
            expected[offset] = max(expected.get(offset, rank), rank)
    merged = merge(current, new, start)
    actual = {
        offset: (row.delivery_count, row.delivery_state)
        for row in merged
        for offset in range(row.first_offset, row.last_offset + 1)
    }
    assert actual == expected
    assert sum(row.last_offset - row.first_offset + 1 for row in merged) == len(expected)


def test_the_key_of_a_coordinator_is_parsed_from_the_right():
    assert SharePartitionKey.parse(KEY.coordinator_key) == KEY
    for invalid in ("", "group", "group:x:1", f"group:{'A' * 22}:x", f":{'A' * 22}:1"):
        with pytest.raises(BrokerError):
            SharePartitionKey.parse(invalid)


def test_records_are_decoded_to_what_was_encoded():
    state = ShareState(3, 7, 2, 40, 5, 1_000, 2_000, (batch(41, 45, 2, 1),))
    assert records.decode(records.snapshot_record(KEY, state, 0)) == (KEY, state)
    update = ShareUpdateValue(snapshot_epoch=3, leader_epoch=2, start_offset=42, state_batches=[batch(50, 51, 4, 5)])
    change = records.decode(records.update_record(KEY, update, 0))
    assert change is not None
    assert isinstance(change.value, ShareUpdateValue)
    after = records.apply_update(state, change.value)
    assert (after.start_offset, after.batches) == (42, (batch(42, 45, 2, 1), batch(50, 51, 4, 5)))
    assert records.decode(records.tombstone(KEY, 0)) == (KEY, None)


def members(*names: str, topics: frozenset[bytes] = frozenset({T1}), current=None) -> list[AssignableMember]:
    return [AssignableMember(name, None, topics, (current or {}).get(name, {})) for name in names]


@given(st.integers(1, 12), st.integers(1, 12))
def test_each_partition_has_a_member_and_each_member_a_partition(member_count, partition_count):
    group = members(*(f"m{number:02}" for number in range(member_count)))
    assignment = assign_simply(group, {T1: frozenset(range(partition_count))})
    assigned = [index for rows in assignment.values() for index in rows.get(T1, ())]
    assert set(assigned) == set(range(partition_count))
    assert all(assignment[member.id] for member in group)
    sharing = -(-member_count // partition_count)
    assert max(assigned.count(index) for index in range(partition_count)) <= sharing + 1


def test_members_keep_their_partitions_when_another_joins():
    before = assign_simply(members("a", "b"), {T1: frozenset(range(4))})
    current = {name: {key: frozenset(rows) for key, rows in topics.items()} for name, topics in before.items()}
    after = assign_simply(members("a", "b", "c", current=current), {T1: frozenset(range(4))})
    assert sum(len(rows[T1]) for rows in after.values()) == 4
    assert after["a"][T1] <= before["a"][T1]
    assert after["b"][T1] <= before["b"][T1]


def test_members_get_only_partitions_of_their_topics():
    group = [*members("a"), *members("b", topics=frozenset({T1, T2}))]
    assignment = assign_simply(group, {T1: frozenset({0, 1}), T2: frozenset({0})})
    assert T2 not in assignment["a"]
    assert assignment["b"][T2] == {0}
