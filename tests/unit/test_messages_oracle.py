"""Comparison of encoded messages with two other clients, in every version that they support.

A random message is converted to the other client's class field by field, in wire order; then both encode it, headers
included, and headrace decodes the other's bytes. Three oracles:

    kio                        classes generated from Kafka's schemas; the versions of Kafka 4
    kafka-python               the same schemas, read at run time; the same versions
    kafka-python, older ones   hand-written classes, for the versions that Kafka 4 removed

Differences, and how they are handled:

    unknown tagged fields             not encoded by either: not generated here
    kio: error codes                  only known codes: others are replaced
    kio: points in time               datetimes: times outside the years 1 to 9999 are replaced
    kio: durations of 64 bits         floating point: durations beyond 2**52 ms are replaced
    kio: -1 as a point in time        None
    both: the zero uuid               None
    kafka-python: sets of operations  sets of bit numbers
    kafka-python: a tagged struct     its default is None, independent of the defaults of its fields
    WriteTxnMarkers v0                in none of them
    DescribeLogDirs request v0        only hand-written, with an error: a single partition instead of an array
    InitProducerId v6                 not in headrace: unstable in Kafka 4.3

Both also declare nullable fields, defaults, tags and ignorable fields; they must be equal.
"""

import dataclasses
import datetime
import importlib
import io
import pkgutil
import typing
import uuid

import kafka.protocol
import kafka.protocol.old
import kafka.protocol.old.types as by_hand
import kio.index
import kio.schema.errors
import kio.schema.index
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage
from kio.serial import entity_writer
from kio.static.constants import EntityType

from headrace.errors import ERROR_CODES
from headrace.wire import fields
from headrace.wire.api import APIS, ApiKey, api_name, request_class, response_class
from headrace.wire.fields import ARRAY, BOOLEAN, INT32, RECORDS, STRUCT, UUID, ZERO_UUID
from headrace.wire.frames import encode_request, encode_response
from headrace.wire.schema import Struct

# Once, not on both kernels: test_messages_random.py shows that these encode and decode alike.
pytestmark = pytest.mark.slow

few = settings(max_examples=8, deadline=None, database=None)

SIDES = {"Request": request_class, "Response": response_class}
RENAMED = {"partition_index": "index", "partition_count": "count"}  # ours, if Kafka's name shadows a tuple's method
CORRELATION_IDS = st.integers(-(2**31), 2**31 - 1)
CLIENT_IDS = st.none() | st.text(st.characters(codec="utf-8"), max_size=4)


def ours(key, side):
    return SIDES[side](key)


def live_fields(cls, version):
    return [(name, field) for name, field in cls.fields.items() if version in field.versions]


def frame_of(message, version, correlation_id, client_id):
    if type(message).__name__.endswith("Request"):
        return b"".join(encode_request(message, version, correlation_id, client_id))
    return b"".join(encode_response(message, version, correlation_id))


def combinations(supports):
    """Return every (API key, side, version) that an oracle supports, as test parameters."""
    return [
        pytest.param(key, side, version, id=f"{api_name(key)}{side}-v{version}")
        for key in APIS
        for side in SIDES
        for version in range(ours(key, side).versions.first, ours(key, side).versions.last + 1)
        if supports(key, side, version)
    ]


# -- kio ---------------------------------------------------------------------------------------

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DATETIME_MS = (-62_000_000_000_000, 253_000_000_000_000)  # the years 5 to 9987
DURATION_MS_MAX = 2**52
KIO_ERRORS = [code.value for code in kio.schema.errors.ErrorCode]


def kio_speaks(key, side, version):
    return version in kio.schema.index.schema_name_map.get(ApiKey(key).name.lower(), {})


def kio_class(key, side, version):
    load = {"Request": kio.index.load_request_schema, "Response": kio.index.load_response_schema}[side]
    return load(key, version)


def kio_fields(cls, kio_cls, version):
    """Yield pairs of fields; their names must be equal except for known differences."""
    for (name, field), theirs in zip(live_fields(cls, version), dataclasses.fields(kio_cls), strict=True):
        in_units = theirs.metadata.get("kafka_type", "").startswith(("timedelta", "datetime"))
        expected = name.removesuffix("_ms") if in_units else name
        assert theirs.name in (expected, RENAMED.get(name))
        yield name, field, theirs


def struct_in(annotation):
    """Return the dataclass in `X`, `X | None`, `tuple[X, ...]` or a combination of them."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next((struct for part in typing.get_args(annotation) if (struct := struct_in(part))), None)


def kio_twin(message, kio_cls, version):
    """Return the message restricted to what kio supports, as our class and as kio's."""
    mine, theirs = {}, {}
    for name, field, kio_field in kio_fields(type(message), kio_cls, version):
        mine[name], theirs[kio_field.name] = kio_value(getattr(message, name), field, kio_field, version)
    return message.replace(**mine), kio_cls(**theirs)


def kio_value(value, field, kio_field, version):
    kafka_type = kio_field.metadata.get("kafka_type")
    if value is None:
        return None, None
    if field.kind == STRUCT:
        return kio_twin(value, struct_in(kio_field.type), version)
    if field.kind == ARRAY and isinstance(field.element, type):
        twins = [kio_twin(item, struct_in(kio_field.type), version) for item in value]
        return tuple(twin[0] for twin in twins), tuple(twin[1] for twin in twins)
    if field.kind == UUID:
        return value, None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if kafka_type == "error_code":
        value = value if value in KIO_ERRORS else KIO_ERRORS[value % len(KIO_ERRORS)]
        return value, kio.schema.errors.ErrorCode(value)
    if kafka_type == "datetime_i64":
        value = value if DATETIME_MS[0] <= value <= DATETIME_MS[1] else value % DATETIME_MS[1]
        nothing = value == -1 and type(None) in typing.get_args(kio_field.type)
        return value, None if nothing else EPOCH + datetime.timedelta(milliseconds=value)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        value = value if abs(value) < DURATION_MS_MAX else value % DURATION_MS_MAX
        return value, datetime.timedelta(milliseconds=value)
    return value, bytes(value) if isinstance(value, memoryview) else value


def kio_bytes(entity):
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_header(kio_cls, correlation_id, client_id):
    header_cls = kio_cls.__header_schema__
    if kio_cls.__type__ is EntityType.response:
        return header_cls(correlation_id=correlation_id)
    return header_cls(
        request_api_key=kio_cls.__api_key__,
        request_api_version=kio_cls.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )


KIO = combinations(kio_speaks)


@pytest.mark.parametrize(("key", "side", "version"), KIO)
def test_our_bytes_equal_those_of_kio(key, side, version, messages_of):
    cls, kio_cls = ours(key, side), kio_class(key, side, version)

    @few
    @given(messages_of(cls, version), CORRELATION_IDS, CLIENT_IDS)
    def compare(message, correlation_id, client_id):
        message, twin = kio_twin(message, kio_cls, version)
        expected = kio_bytes(twin)
        assert message.encode(version) == expected
        assert cls.decode(version, expected) == message
        frame = kio_bytes(kio_header(kio_cls, correlation_id, client_id)) + expected
        assert frame_of(message, version, correlation_id, client_id) == len(frame).to_bytes(4, "big") + frame

    compare()


def test_kio_declares_the_same_nulls_tags_and_defaults():
    compared = 0
    for parameters in KIO:
        key, side, version = parameters.values
        compared += compare_with_kio(ours(key, side), kio_class(key, side, version), version)
    assert compared > 2500


def compare_with_kio(cls, kio_cls, version):
    compared = 0
    assert kio_cls.__version__ == version
    for name, field, theirs in kio_fields(cls, kio_cls, version):
        path = f"{cls.__name__}.{name} v{version}"
        assert theirs.metadata.get("tag", -1) == field.tag, path
        by_null = field.kind == UUID or theirs.metadata.get("kafka_type") == "datetime_i64"
        if not by_null:
            assert (type(None) in typing.get_args(theirs.type)) == (version in field.nullable), path
        if theirs.default is not dataclasses.MISSING:
            assert kio_value(field.default, field, theirs, version)[1] == theirs.default, path
        compared += 1
        if isinstance(field.element, type):
            compared += compare_with_kio(field.element, struct_in(theirs.type), version)
    return compared


# -- kafka-python ------------------------------------------------------------------------------


def classes_in(package, matches):
    """Return the classes that the modules of a package define."""
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if info.ispkg or "generate_stubs" in info.name:
            continue
        module = importlib.import_module(info.name)
        yield from (
            x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__ and matches(x)
        )


KAFKA_PYTHON_CLASSES = {
    cls.__name__: cls
    for cls in classes_in(kafka.protocol, lambda cls: issubclass(cls, ApiMessage) and cls is not ApiMessage)
}


UNKNOWN_TO_KAFKA_PYTHON = {38, 39, 40, 41, 64, 68, 69, 71, 72, 76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92}
"""Delegation tokens, UnregisterBroker, ConsumerGroupHeartbeat, ConsumerGroupDescribe, telemetry, share groups."""


def kafka_python_class(key, side):
    return KAFKA_PYTHON_CLASSES[api_name(key) + side]


def kafka_python_speaks(key, side, version):
    if key in UNKNOWN_TO_KAFKA_PYTHON:
        return False
    first, last = kafka_python_class(key, side).valid_versions
    return first <= version <= last


def kafka_python_fields(cls, declared, version):
    """Yield pairs of fields; their names must be equal except for known differences."""
    live = [field for field in declared if field.for_version_q(version)]
    for (name, field), theirs in zip(live_fields(cls, version), live, strict=True):
        bits = name.partition("_")[2] if theirs.type_str == "bitfield" else None
        assert theirs.name in (name, RENAMED.get(name), bits)
        yield name, field, theirs


def kafka_python_twin(struct, declared, make, version):
    values = {}
    for name, field, theirs in kafka_python_fields(type(struct), declared, version):
        values[theirs.name] = kafka_python_value(getattr(struct, name), field, theirs, version)
    return make(version=version, **values)


def kafka_python_value(value, field, theirs, version):
    if value is None:
        return None
    if field.kind == STRUCT:
        if field.tag >= 0 and value == field.default:
            return None
        return kafka_python_twin(value, theirs.fields.values(), theirs, version)
    if field.kind == ARRAY and isinstance(field.element, type):
        return [kafka_python_twin(item, theirs.fields.values(), theirs, version) for item in value]
    if field.kind == ARRAY:
        return list(value)
    if field.kind == UUID:
        return None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if theirs.type_str == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    return value


KAFKA_PYTHON = combinations(kafka_python_speaks)


@pytest.mark.parametrize(("key", "side", "version"), KAFKA_PYTHON)
def test_our_bytes_equal_those_of_kafka_python(key, side, version, messages_of):
    cls, their_cls = ours(key, side), kafka_python_class(key, side)

    @few
    @given(messages_of(cls, version), CORRELATION_IDS, CLIENT_IDS)
    def compare(message, correlation_id, client_id):
        twin = kafka_python_twin(message, their_cls.fields.values(), their_cls, version)
        expected = twin.encode(version=version)
        assert message.encode(version) == expected
        assert cls.decode(version, expected) == message
        twin.with_header(correlation_id=correlation_id, client_id=client_id)
        assert frame_of(message, version, correlation_id, client_id) == twin.encode(header=True, framed=True)

    compare()


KAFKA_PYTHON_KINDS = {
    "bool": BOOLEAN,
    "bitfield": INT32,
    "uuid": UUID,
    **{name: getattr(fields, name.upper()) for name in ("int8", "int16", "uint16", "int32", "int64", "float64")},
    **{name: getattr(fields, name.upper()) for name in ("string", "bytes", "records")},
}
# kafka-python changes two defaults of Kafka's schemas for its own use.
KAFKA_PYTHON_DEFAULTS = {"ListOffsetsRequest.replica_id", "CreatePartitionsTopic.assignments"}


def test_kafka_python_declares_the_same_fields():
    compared = 0
    for key in set(APIS) - UNKNOWN_TO_KAFKA_PYTHON:
        for side in SIDES:
            cls, their_cls = ours(key, side), kafka_python_class(key, side)
            assert their_cls.max_version == cls.versions.last or key == ApiKey.INIT_PRODUCER_ID
            for version in range(their_cls.valid_versions[0], cls.versions.last + 1):
                assert their_cls.flexible_version_q(version) == (version in cls.flexible)
                compared += compare_with_kafka_python(cls, their_cls.fields.values(), version)
    assert compared > 2500


def compare_with_kafka_python(cls, declared, version):
    compared = 0
    for name, field, theirs in kafka_python_fields(cls, declared, version):
        path = f"{cls.__name__}.{name} v{version}"
        assert (-1 if theirs.tag is None else theirs.tag) == field.tag, path
        assert theirs.nullable_for_version_q(version) == (version in field.nullable), path
        if field.versions.first > 0:  # a field of all versions never needs to be ignorable
            assert bool(theirs._ignorable) == field.ignorable, path
        if theirs.is_struct() or theirs.is_struct_array():
            assert field.kind == (STRUCT if theirs.is_struct() else ARRAY), path
            compared += compare_with_kafka_python(field.element, theirs.fields.values(), version)
        elif theirs.is_array():
            assert (field.kind, field.element) == (ARRAY, KAFKA_PYTHON_KINDS[theirs.type_str.removeprefix("[]")]), path
        else:
            assert field.kind == KAFKA_PYTHON_KINDS[theirs.type_str], path
        if field.kind not in (STRUCT, RECORDS) and f"{cls.__name__}.{name}" not in KAFKA_PYTHON_DEFAULTS:
            assert kafka_python_value(field.default, field, theirs, version) == (
                theirs.default if theirs.type_str != "bitfield" else {31}
            ), path
        compared += 1
    return compared


# -- kafka-python, older classes ---------------------------------------------------------------------

BY_HAND_CLASSES = {
    (cls.API_KEY, "Request" if cls.is_request() else "Response", cls.API_VERSION): cls
    for cls in classes_in(kafka.protocol.old, lambda cls: isinstance(getattr(cls, "API_KEY", None), int))
}


BY_HAND_WRONGLY = (35, "Request", 0)


def only_by_hand(key, side, version):
    right = (key, side, version) in BY_HAND_CLASSES and (key, side, version) != BY_HAND_WRONGLY
    return right and not kafka_python_speaks(key, side, version)


def values_in_order(struct, version):
    return [plain_value(getattr(struct, name), version) for name, _ in live_fields(type(struct), version)]


def plain_value(value, version):
    if isinstance(value, Struct):
        values = values_in_order(value, version)
        return values[0] if len(values) == 1 else tuple(values)  # a struct of a single field is that field
    if isinstance(value, tuple):
        return [plain_value(item, version) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


BY_HAND = combinations(only_by_hand)


@pytest.mark.parametrize(("key", "side", "version"), BY_HAND)
def test_our_bytes_equal_those_of_kafka_pythons_older_classes(key, side, version, messages_of):
    cls, their_schema = ours(key, side), BY_HAND_CLASSES[key, side, version].SCHEMA
    assert isinstance(their_schema, by_hand.Schema)

    @few
    @given(messages_of(cls, version))
    def compare(message):
        expected = their_schema.encode(values_in_order(message, version))
        assert message.encode(version) == expected
        assert cls.decode(version, expected) == message

    compare()


# -- all oracles -------------------------------------------------------------------------------


def test_all_but_three_message_versions_are_compared():
    """Detects an oracle that supports less than before."""
    counts = len(KIO), len(KAFKA_PYTHON), len(BY_HAND)
    assert all(map(int.__ge__, counts, (466, 466, 41))), f"kio, kafka-python, by hand: {counts}"
    everything = {parameters.id for parameters in combinations(lambda *_: True)}
    compared = {parameters.id for parameters in (*KIO, *KAFKA_PYTHON, *BY_HAND)}
    assert everything - compared == {
        "DescribeLogDirsRequest-v0",
        "WriteTxnMarkersRequest-v0",
        "WriteTxnMarkersResponse-v0",
    }


def test_error_codes_equal_those_of_kio():
    theirs = {code.value: (code.name.upper(), code.retriable) for code in kio.schema.errors.ErrorCode}
    assert {code: (known.name, known.retriable) for code, known in ERROR_CODES.items() if code in theirs} == theirs
