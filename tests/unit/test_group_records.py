"""The records of __consumer_offsets, byte for byte as in Apache Kafka."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups import records
from headrace.broker.groups.group import Group, GroupMember, GroupState, subscribed_topics_in
from headrace.broker.groups.offsets import Committed
from headrace.errors import MalformedError
from headrace.types import TopicPartition
from headrace.wire.layout import Record

TOPIC_ID = bytes(range(16))


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def decoded(entry: records.KeyValue, offset: int = 0) -> object:
    return records.decode(Record(offset, 0, entry.key, entry.value, ()))


def test_an_offset():
    entry = records.offset_record("g", TopicPartition("t", 3), Committed(100, 4, "note", 1_000))
    assert entry.key == b"\0\1" + string("g") + string("t") + b"\0\0\0\3"
    assert entry.value == b"\0\3" + struct.pack(">qi", 100, 4) + string("note") + struct.pack(">q", 1_000)


def test_an_offset_with_an_expiry_time_has_version_1():
    entry = records.offset_record("g", TopicPartition("t", 3), Committed(100, -1, "", 1_000, 2_000))
    assert entry.value == b"\0\1" + struct.pack(">q", 100) + string("") + struct.pack(">qq", 1_000, 2_000)


def test_an_offset_with_a_topic_id_has_version_4():
    entry = records.offset_record("g", TopicPartition("t", 3), Committed(100, 4, "m", 1_000, topic_id=TOPIC_ID))
    body = struct.pack(">qi", 100, 4) + b"\2m" + struct.pack(">q", 1_000)
    assert entry.value == b"\0\4" + body + b"\1\0\20" + TOPIC_ID


def test_a_group():
    member = GroupMember("m-1", "i", "client", "/host", 30, 10, {"range": b"sub"}, b"asg")
    group = Group("g", GroupState.STABLE, 99, 7, "consumer", "range", "m-1", members={"m-1": member})
    entry = records.group_record(group)
    assert entry.key == b"\0\2" + string("g")
    row = string("m-1") + string("i") + string("client") + string("/host") + struct.pack(">ii", 30, 10)
    row += b"\0\0\0\3sub" + b"\0\0\0\3asg"
    head = string("consumer") + struct.pack(">i", 7) + string("range") + string("m-1") + struct.pack(">q", 99)
    assert entry.value == b"\0\3" + head + b"\0\0\0\1" + row


def test_an_empty_group():
    value = records.group_record(Group("g", state_time_ms=99)).value
    assert value == b"\0\3" + string("") + bytes(4) + b"\xff\xff\xff\xff" + struct.pack(">q", 99) + bytes(4)


def test_tombstones():
    assert records.offset_tombstone("g", TopicPartition("t", 3)).value is None
    assert decoded(records.offset_tombstone("g", TopicPartition("t", 3))) == records.OffsetChange(
        "g", TopicPartition("t", 3), None
    )
    assert decoded(records.group_tombstone("g")) == records.GroupChange("g", None)


@given(
    st.builds(
        Committed,
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.integers(0, 2**62),
        st.just(-1),
        st.sampled_from([bytes(16), TOPIC_ID]),
        st.integers(0, 2**62),
    )
)
def test_an_offset_record_round_trips(committed):
    entry = records.offset_record("g", TopicPartition("t", 3), committed)
    assert decoded(entry, committed.record_offset) == records.OffsetChange("g", TopicPartition("t", 3), committed)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_group_records_of_all_versions_are_decoded(version):
    row = records.MemberMetadata(member_id="m", client_id="c", client_host="h", session_timeout=10, subscription=b"s")
    value = records.GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", leader="m", members=[row]
    )
    key = records.group_tombstone("g").key
    change = decoded(records.KeyValue(key, struct.pack(">h", version) + value.encode(version)))
    assert isinstance(change, records.GroupChange)
    assert change.group is not None
    assert (change.group.state, change.group.generation, change.group.leader_id) == (GroupState.STABLE, 2, "m")
    assert change.group.members["m"].rebalance_timeout_ms == 10  # the session timeout, in versions without it


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_offset_records_of_all_versions_are_decoded(version):
    value = records.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    for kind in (0, 1):
        key = struct.pack(">h", kind) + records.offset_tombstone("g", TopicPartition("t", 1)).key[2:]
        change = decoded(records.KeyValue(key, struct.pack(">h", version) + value.encode(version)))
        assert change == records.OffsetChange("g", TopicPartition("t", 1), Committed(5, -1, "m", 9, record_offset=0))


def test_records_of_other_group_types_are_skipped():
    streams_group_metadata = 17
    assert decoded(records.KeyValue(struct.pack(">h", streams_group_metadata) + string("g"), b"\0\0")) is None


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\1", b"\0\1\0\5ab", b"\0\2\0"])
def test_an_invalid_key_is_rejected(key):
    with pytest.raises(MalformedError):
        records.decode(Record(0, 0, key, None, ()))


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\0" + struct.pack(">i", 2) + string("a") + string("b") + b"\xff\xff\xff\xff", {"a", "b"}),
        (b"\0\3" + struct.pack(">i", 0), set()),
        (b"", None),
        (b"\0\0" + struct.pack(">i", 2) + string("a"), None),
        (b"\0\0" + struct.pack(">i", 2**31 - 1), None),
        (b"\0\0" + struct.pack(">i", 1) + b"\xff\xff", None),
        (b"\0\0" + struct.pack(">i", 1) + b"\0\2\xff\xff", None),
    ],
)
def test_the_topics_of_a_subscription(metadata, topics):
    assert subscribed_topics_in(metadata) == topics
