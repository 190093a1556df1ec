"""The framing of schema ids, compared with that of Confluent's serializers, for single values and columns."""

from __future__ import annotations

import io
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, SchemaFramingError
from headrace.schema import SubjectNameStrategy, framing

serde = pytest.importorskip("confluent_kafka.schema_registry.common.serde")
registry = pytest.importorskip("confluent_kafka.schema_registry")

IDS = st.integers(0, framing.ID_MAX)
INDEXES = st.lists(st.integers(0, 300), min_size=1, max_size=5)
PAYLOADS = st.binary(max_size=20)
VALUES = st.lists(
    st.none() | st.binary(max_size=8) | st.binary(max_size=8).map(lambda end: b"\0\0\0" + end), max_size=30
)
BINARY_TYPES = st.sampled_from([pa.binary(), pa.large_binary()])


def split_one(value, **options):
    """The reference for columns: id and payload of a value, (None, None) if it is invalid."""
    if value is None or value[:1] != b"\0":
        return None, None
    try:
        schema_id, payload = framing.decode(value, **options)
    except SchemaFramingError:
        return None, None
    return schema_id, bytes(payload)


# -- single values -----------------------------------------------------------------------------------


@pytest.mark.behaviour("R01")
@settings(deadline=None)
@given(IDS, st.none() | INDEXES, PAYLOADS)
def test_a_prefix_has_the_bytes_of_confluents_serializer(schema_id, indexes, payload):
    theirs = serde.SchemaId("AVRO" if indexes is None else "PROTOBUF", schema_id, None, indexes)
    encoded = framing.encode_id(schema_id, indexes)
    assert encoded == theirs.id_to_bytes()
    decoded, rest = framing.decode(encoded + payload, with_message_indexes=indexes is not None)
    assert decoded == (schema_id, None, None if indexes is None else tuple(indexes))
    assert bytes(rest) == payload


@pytest.mark.behaviour("R01")
@settings(deadline=None)
@given(st.uuids(), st.none() | INDEXES)
def test_a_header_has_the_bytes_of_confluents_serializer(guid, indexes):
    theirs = serde.SchemaId("AVRO" if indexes is None else "PROTOBUF", None, str(guid), indexes)
    encoded = framing.encode_guid(guid, indexes)
    assert encoded == theirs.guid_to_bytes()
    decoded, rest = framing.decode(encoded, with_message_indexes=indexes is not None)
    assert decoded == (None, guid, None if indexes is None else tuple(indexes))
    assert not rest


def test_the_headers_have_confluents_names():
    from confluent_kafka import serialization
    from confluent_kafka.schema_registry import header_schema_id_serializer

    for field, name in framing.SCHEMA_ID_HEADERS.items():
        context = serialization.SerializationContext("orders", getattr(serialization.MessageField, field.upper()), [])
        header_schema_id_serializer(b"", context, serde.SchemaId("AVRO", 1, str(UUID(int=7))))
        assert context.headers == [(name, framing.encode_guid(UUID(int=7)))]


@settings(deadline=None)
@given(st.binary(max_size=30), st.booleans())
def test_a_value_is_decoded_as_confluents_or_refused(value, is_protobuf):
    theirs = serde.SchemaId("PROTOBUF" if is_protobuf else "AVRO")
    try:
        expected = theirs.from_bytes(io.BytesIO(value)).read()
    except Exception:
        expected = None
    try:
        decoded, payload = framing.decode(value, with_message_indexes=is_protobuf)
    except SchemaFramingError:
        # Confluent's accepts negative indexes, and varints of any length.
        assert expected is None or (is_protobuf and len(value) > framing.ID_BYTES)
        return
    assert bytes(payload) == expected
    assert decoded.guid == theirs.guid
    if theirs.id is not None:
        assert decoded.id is not None
        assert decoded.id % 2**32 == theirs.id  # ids of Java are signed
    assert decoded.message_indexes == (tuple(theirs.message_indexes) if is_protobuf else None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "got nothing: the value was probably not written with a schema registry's serializer"),
        (b'{"a": 1}', "expected the magic byte 0 and four bytes of id, got 7b 22 61 22 3a"),
        (b"\0\0\0", r"expected at least 5 bytes, got 3 \(00 00 00\)"),
        (b"\1" + bytes(15), "expected at least 17 bytes, got 16"),
    ],
)
def test_a_value_without_prefix_is_an_error_that_shows_its_start(value, problem):
    with pytest.raises(SchemaFramingError, match=problem):
        framing.decode(value)


@pytest.mark.parametrize(
    ("indexes", "problem"),
    [
        (b"", "truncated message indexes"),
        (b"\x04\x02", "truncated message indexes"),
        (b"\x01", "expected 0 to 100 of them, got -1"),
        (b"\xfe\xff\xff\xff\x0f", "of them, got 2147483647"),
        (b"\x02\x01", "expected 0 or more, got -1"),
        (b"\xff" * 6, "more than 5 bytes"),
    ],
)
def test_bad_message_indexes_are_an_error_before_memory_is_used(indexes, problem):
    with pytest.raises(SchemaFramingError, match=problem):
        framing.decode(framing.encode_id(1) + indexes, with_message_indexes=True)


def test_ids_and_indexes_out_of_range_are_not_encoded():
    for schema_id in (-1, framing.ID_MAX + 1):
        with pytest.raises(ValueError, match="invalid schema id"):
            framing.encode_id(schema_id)
    for indexes in ([-1], [0] * (framing.MESSAGE_DEPTH_MAX + 1)):
        with pytest.raises(ValueError, match="invalid message indexes"):
            framing.encode_id(1, indexes)


# -- columns -----------------------------------------------------------------------------------------


@pytest.mark.behaviour("R01")
@settings(deadline=None)
@given(VALUES, BINARY_TYPES, st.integers(0, 3))
def test_a_column_is_split_like_its_values(values, kind, start):
    column = pa.array(values, kind)[start:]
    ids, invalid, payload = framing.split_column(column)
    expected = [split_one(value) for value in values[start:]]
    assert ids.to_pylist() == [None if one is None else one.id for one, _ in expected]
    assert payload.to_pylist() == [payload for _, payload in expected]
    assert invalid.to_pylist() == [
        value is not None and one is None for value, (one, _) in zip(values[start:], expected, strict=True)
    ]
    assert (ids.type, payload.type) == (pa.int32(), kind)
    ids.validate(full=True)
    payload.validate(full=True)


@settings(deadline=None)
@given(IDS, st.lists(st.none() | PAYLOADS, max_size=20), BINARY_TYPES, st.integers(0, 3))
def test_a_joined_column_is_split_again(schema_id, payloads, kind, start):
    column = pa.array(payloads, kind)[start:]
    joined = framing.join_column(framing.encode_id(schema_id), column)
    prefix = framing.encode_id(schema_id)
    assert joined.to_pylist() == [None if payload is None else prefix + payload for payload in payloads[start:]]
    ids, invalid, payload = framing.split_column(joined)
    assert set(ids.to_pylist()) <= {schema_id, None}
    assert not any(invalid.to_pylist())
    assert payload.equals(column)


@settings(deadline=None)
@given(
    st.lists(
        st.none()
        | st.tuples(INDEXES, PAYLOADS).map(lambda pair: framing.encode_message_indexes(pair[0]) + pair[1])
        | st.binary(max_size=6),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_message_indexes_of_a_column_are_split_like_its_values(payloads, start):
    column = pa.array(payloads, pa.binary())[start:]
    indexes, invalid, rest = framing.split_message_indexes(column)
    expected: list[tuple] = []
    for payload in payloads[start:]:
        try:
            found, size = framing.decode_message_indexes(payload or b"")
            expected.append((list(found), False, payload[size:]))
        except SchemaFramingError:
            expected.append((None, payload is not None, None))
    assert list(zip(indexes.to_pylist(), invalid.to_pylist(), rest.to_pylist(), strict=True)) == expected


def test_more_message_types_than_expected_are_split_as_well():
    lists = [[index] for index in range(3 * framing.INDEX_LISTS_MAX)]
    column = pa.array([framing.encode_message_indexes(indexes) + b"end" for indexes in lists], pa.binary())
    indexes, invalid, rest = framing.split_message_indexes(column)
    assert indexes.to_pylist() == lists
    assert not any(invalid.to_pylist())
    assert set(rest.to_pylist()) == {b"end"}


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.binary(7), pa.dictionary(pa.int32(), pa.binary())])
def test_columns_of_other_binary_types_are_split(kind):
    column = pa.array([b"\0\0\0\0\x07ab", None], pa.binary()).cast(kind)
    ids, _, payload = framing.split_column(column)
    assert (ids.to_pylist(), payload.to_pylist()) == ([7, None], [b"ab", None])


def test_a_column_of_another_type_is_refused():
    with pytest.raises(TypeError, match="column has type int64; expected binary"):
        framing.split_column(pa.array([1]))
    assert framing.split_column(pa.nulls(2)).ids.to_pylist() == [None, None]


# -- subjects ----------------------------------------------------------------------------------------


@pytest.mark.behaviour("R01")
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("TopicNameStrategy", registry.topic_subject_name_strategy),
        ("RecordNameStrategy", registry.record_subject_name_strategy),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", registry.topic_record_subject_name_strategy),
    ],
)
@pytest.mark.parametrize("field", ["key", "value"])
def test_subjects_are_those_of_confluents_strategies(name, theirs, field):
    from confluent_kafka.serialization import SerializationContext

    subject = SubjectNameStrategy.named(name).subject("orders", field, "shop.Order")
    assert subject == theirs(SerializationContext("orders", field), "shop.Order")


def test_a_strategy_that_needs_a_record_name_says_so():
    with pytest.raises(ConfigError, match="RecordNameStrategy needs the name of the record type"):
        SubjectNameStrategy.RECORD.subject("orders", "value")
    with pytest.raises(ConfigError, match=r"expected TopicNameStrategy, .* got 'Mine'"):
        SubjectNameStrategy.named("Mine")
