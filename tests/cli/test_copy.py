"""consume --format json | produce --format json copies a topic exactly."""

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
from tests.support.shell import SECONDS_MAX, pipe
from tests.support.topics import new_topic

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
def test_a_line_is_parsed_back_to_its_record(record, partition, is_append_time):
    line = record_json.to_line("t", partition, record, is_append_time=is_append_time)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed = record_json.from_line(line)
    assert parsed == (record.key, record.value, record.headers, partition, record.timestamp)


@given(records)
def test_nothing_is_encoded_twice(record):
    line = json.loads(record_json.to_line("t", 0, record, is_append_time=False))
    for data, encoded in ((record.key, line["key"]), (record.value, line["value"])):
        try:
            assert encoded == (None if data is None else data.decode())
        except UnicodeDecodeError:
            assert encoded.keys() == {"base64"}


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_any_other_line_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"."):
        record_json.from_line(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "invalid record: expected an object, got an array"),
        ("{}", '"value" is missing'),
        ('{"value": {"a": 1}}', 'invalid "value": expected a string, null or {"base64": "…"}, got an object'),
        ('{"value": {"base64": "?"}}', 'invalid "value": not base64'),
        ('{"value": "x", "headers": {"a": "b"}}', 'invalid "headers": expected a list of [name, value], got an object'),
        ('{"value": "x", "headers": [["a"]]}', 'invalid "headers": expected [name, value], got ["a"]'),
        ('{"value": "x", "partition": -1}', 'invalid "partition": expected an integer of 0 or more, got -1'),
        ('{"value": "x", "timestamp": true}', 'invalid "timestamp": expected an integer of 0 or more, got true'),
        ('{"value": "\\ud800"}', "unpaired surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_an_invalid_line_is_explained(line, message):
    with pytest.raises(ValueError, match=r".") as raised:
        record_json.from_line(line.encode())
    assert message in str(raised.value)


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


def read_all(bootstrap, topic):
    """Return all records, ordered by partition and offset."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Fetcher(bootstrap) as fetcher:
        ends = fetcher.end_offsets(partitions)
        fetcher.assign(dict.fromkeys(partitions, 0), ends)
        records = []
        while not fetcher.is_finished():
            records += [record._replace(topic="") for record in fetcher.poll(1000)]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def test_a_topic_is_copied_exactly(either):
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
    original = read_all(either.bootstrap, first)
    assert len(original) == 3 * len(SAMPLES)
    assert read_all(either.bootstrap, second) == original


def test_a_target_with_fewer_partitions_needs_ignore_partition(headrace_broker):
    first = new_topic(headrace_broker, "cli-copy-wide", partitions=PARTITIONS)
    narrow = new_topic(headrace_broker, "cli-copy-narrow")
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        producer.send(first, b"x", partition=2).result(SECONDS_MAX)
    at = {"HEADRACE_BOOTSTRAP_SERVERS": headrace_broker.bootstrap}
    copy = f"headrace consume {first} --format json | headrace produce {narrow} --format json"
    refused = pipe(copy, **at)
    assert refused.returncode == 1
    assert b"a record has partition 2, but topic" in refused.stderr
    assert pipe(f"{copy} --ignore-partition", **at).returncode == 0
    assert pipe(f"headrace consume {narrow}", **at).stdout == b"x\n"
