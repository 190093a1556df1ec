"""consume --format json | produce --format json copies a topic bit for bit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Producer
from headrace.cli import record_json
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from headrace.wire.layout import Record
from shell import SECONDS_MAX, pipe
from topics import new_topic

PARTITIONS = 3
binary = st.none() | st.binary() | st.text().map(str.encode)
records = st.builds(
    Record,
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(0, 2**63 - 1),
    key=binary,
    value=binary,
    headers=st.lists(st.tuples(st.text(), binary)).map(tuple),
)


@given(records, st.integers(0, 2**31 - 1), st.booleans())
def test_a_line_gives_back_what_made_it(record, partition, is_append_time):
    line = record_json.to_line("t", partition, record, is_append_time=is_append_time)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed = record_json.from_line(line)
    assert parsed == (record.key, record.value, record.headers, partition, record.timestamp)


@given(records)
def test_nothing_is_encoded_twice(record):
    shown = json.loads(record_json.to_line("t", 0, record, is_append_time=False))
    for data, there in ((record.key, shown["key"]), (record.value, shown["value"])):
        try:
            assert there == (None if data is None else data.decode())
        except UnicodeDecodeError:
            assert there.keys() == {"base64"}


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_any_other_line_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"."):
        record_json.from_line(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "a record is an object, and this is a list"),
        ("{}", '"value" is missing'),
        ('{"value": {"a": 1}}', '"value" is an object; it may be a text, null'),
        ('{"value": {"base64": "?"}}', '"value" is no base64'),
        ('{"value": "x", "headers": {"a": "b"}}', '"headers" is an object'),
        ('{"value": "x", "headers": [["a"]]}', "each is [name, value]"),
        ('{"value": "x", "partition": -1}', '"partition" is -1'),
        ('{"value": "x", "timestamp": true}', '"timestamp" is true'),
        ('{"value": "\\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line, said):
    with pytest.raises(ValueError, match=r".") as wrong:
        record_json.from_line(line.encode())
    assert said in str(wrong.value)


SAMPLES: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (None, None, []),
    (b"", b"", []),
    (b"key", None, []),
    (None, b"value", []),
    (b"\xff\x00", bytes(range(256)), [("h", b"\xfe"), ("h", b"\xfe"), ("h", None), ("", b"")]),
    ("schlüssel".encode(), 'line\nbreak\u2028\r\t"quote" \\ \0'.encode(), [("größe", "naïve".encode())]),
    (b"json", b'{"value": {"base64": "bm8="}}', [("x", b'{"base64": ""}')]),
    (b"large", b"0123456789" * 50_000, []),
]


def all_of(bootstrap, topic):
    """Records by partition, as they are."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Fetcher(bootstrap) as fetcher:
        ends = fetcher.end_offsets(partitions)
        fetcher.assign(dict.fromkeys(partitions, 0), ends)
        found = []
        while not fetcher.is_finished():
            found += [record._replace(topic="") for record in fetcher.poll(1000)]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def test_a_topic_is_copied_bit_for_bit(either):
    first, second = (new_topic(either, f"cli-copy-{name}", partitions=PARTITIONS) for name in "ab")
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for number, (key, value, headers) in enumerate(SAMPLES * 3):
            producer.send(
                first,
                value,
                key,
                partition=number % PARTITIONS,
                timestamp_ms=1_700_000_000_000 + number,
                headers=headers,
            )
        producer.flush(SECONDS_MAX)
    done = pipe(
        f"headrace consume {first} --format json -o :end | headrace produce {second} --format json",
        HEADRACE_BOOTSTRAP_SERVERS=either.bootstrap,
    )
    assert done.returncode == 0, done.stderr
    original = all_of(either.bootstrap, first)
    assert len(original) == 3 * len(SAMPLES)
    assert all_of(either.bootstrap, second) == original


def test_a_target_with_fewer_partitions_is_told_of_and_can_be_had(headrace_broker):
    first = new_topic(headrace_broker, "cli-copy-wide", partitions=PARTITIONS)
    narrow = new_topic(headrace_broker, "cli-copy-narrow")
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        producer.send(first, b"x", partition=2).result(SECONDS_MAX)
    at = {"HEADRACE_BOOTSTRAP_SERVERS": headrace_broker.bootstrap}
    copy = f"headrace consume {first} --format json | headrace produce {narrow} --format json"
    refused = pipe(copy, **at)
    assert refused.returncode == 1
    assert b"a record is for partition 2" in refused.stderr
    assert pipe(f"{copy} --ignore-partition", **at).returncode == 0
    assert pipe(f"headrace consume {narrow}", **at).stdout == b"x\n"
