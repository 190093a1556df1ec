"""The records of consumer groups: bytes as Apache Kafka writes them, older versions of them, and damaged ones."""

from __future__ import annotations

import struct

import pytest

from headrace.broker.groups import records
from headrace.broker.groups.consumer_member import ClassicMetadata, ConsumerMember, MemberState
from headrace.broker.groups.consumer_records import (
    ConsumerChange,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberTarget,
    PartitionMetadata,
    RegexTopics,
    ResolvedRegex,
    TargetEpoch,
)
from headrace.errors import MalformedError
from headrace.wire.layout import Record

TOPIC_ID = bytes(range(16))


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def decoded(key: bytes, value: bytes | None) -> object:
    return records.decode(Record(0, 0, key, value, ()))


MEMBER = ConsumerMember(
    "m",
    "instance",
    "rack",
    "client",
    "/host",
    frozenset({"a", "b"}),
    "c.*",
    30,
    "range",
    ClassicMetadata(10, (("range", b"data"), ("sticky", b""))),
)
CURRENT = ConsumerMember(
    "m",
    epoch=5,
    previous_epoch=4,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned={TOPIC_ID: {0: 2, 3: 5}},
    revoking={TOPIC_ID: {1: 2}},
)
CHANGES: list[ConsumerChange] = [
    GroupEpoch("g", 7, -3),
    GroupEpoch("g", None),
    PartitionMetadata("g", False),
    MemberMetadata("g", "m", MEMBER),
    MemberMetadata("g", "m", ConsumerMember("m")),
    MemberMetadata("g", "m", None),
    TargetEpoch("g", 7, 99),
    TargetEpoch("g", None),
    MemberTarget("g", "m", {TOPIC_ID: frozenset({0, 2})}),
    MemberTarget("g", "m", None),
    MemberAssignment("g", "m", CURRENT),
    MemberAssignment("g", "m", None),
    RegexTopics("g", "c.*", ResolvedRegex(frozenset({"c1", "c2"}), 12, 99)),
    RegexTopics("g", "c.*", None),
]


@pytest.mark.both_kernels
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_is_the_same_after_its_record(change):
    assert decoded(*records.consumer_record(change)) == change


@pytest.mark.both_kernels
@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        (GroupEpoch("g", 7), b"\0\3" + string("g"), b"\0\0" + b"\0\0\0\7" + b"\0"),
        (GroupEpoch("g", 7, 1), b"\0\3" + string("g"), b"\0\0" + b"\0\0\0\7" + b"\1\0\x08" + bytes(7) + b"\1"),
        (TargetEpoch("g", 7), b"\0\6" + string("g"), b"\0\0" + b"\0\0\0\7" + b"\0"),
        (
            MemberTarget("g", "m", {TOPIC_ID: frozenset({2})}),
            b"\0\7" + string("g") + string("m"),
            b"\0\0" + b"\2" + TOPIC_ID + b"\2\0\0\0\2\0" + b"\0",
        ),
        (RegexTopics("g", "c", None), b"\0\x10" + string("g") + string("c"), None),
    ],
)
def test_a_record_has_the_bytes_of_apache_kafka(change, key, value):
    assert records.consumer_record(change) == (key, value)


def test_partitions_of_older_records_have_the_epoch_of_the_member():
    rows = b"\2" + TOPIC_ID + b"\2\0\0\0\1\0"
    value = b"\0\0" + struct.pack(">iib", 6, 5, 0) + rows + b"\1" + b"\0"
    change = decoded(b"\0\x08" + string("g") + string("m"), value)
    assert isinstance(change, MemberAssignment)
    assert change.member is not None
    assert change.member.assigned == {TOPIC_ID: {1: 6}}


def test_a_state_of_a_newer_version_is_unknown():
    value = b"\0\0" + struct.pack(">iib", 6, 5, 9) + b"\1\1\0"
    change = decoded(b"\0\x08" + string("g") + string("m"), value)
    assert isinstance(change, MemberAssignment)
    assert change.member is not None
    assert change.member.state is MemberState.UNKNOWN


def test_partition_metadata_of_kafka_4_0_is_noted():
    assert decoded(b"\0\4" + string("g"), b"\0\0\1\0") == PartitionMetadata("g", True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\3", None),
        (b"\0\3" + string("g"), b""),
        (b"\0\3" + string("g"), b"\0\1\0\0\0\1\0"),
        (b"\0\3" + string("g"), b"\0\0\0"),
        (b"\0\x08" + string("g"), None),
        (b"\0\x10" + string("g") + string("c"), b"\0\0\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_damaged_record_is_rejected(key, value):
    with pytest.raises(MalformedError):
        decoded(key, value)
