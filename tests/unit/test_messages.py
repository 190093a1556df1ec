"""Messages and their frames; invalid bytes and values."""

import copy
import gc
import importlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import errors
from headrace.errors import (
    ERROR_CODES,
    BrokerError,
    ConfigError,
    DeserializationError,
    HeadraceError,
    MalformedError,
    SerializationError,
    UnsupportedVersionError,
    error_name,
)
from headrace.wire import _reference, fields
from headrace.wire.api import APIS, api_name, request_class, response_class
from headrace.wire.api.access import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from headrace.wire.api.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.wire.api.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.api.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.wire.api.transactions import EndTxnRequest
from headrace.wire.fields import ARRAY, STRING, STRUCT
from headrace.wire.frames import (
    RequestHeader,
    decode_correlation_id,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.wire.kernel import kernel
from headrace.wire.primitives import write_uvarint
from headrace.wire.schema import Message, Struct, codec, plan
from tests.support.examples import examples

pytestmark = pytest.mark.both_kernels

_kernel: Any
try:
    _kernel = importlib.import_module("headrace.wire._kernel")
except ImportError:
    _kernel = None

needs_both_kernels = pytest.mark.skipif(_kernel is None, reason="the kernel is not compiled: nothing to compare")

MESSAGES = [cls for key in APIS for cls in (request_class(key), response_class(key))]
every_message = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)

VERSIONS = [(cls, version) for cls in MESSAGES for version in range(cls.versions.first, cls.versions.last + 1)]

INT32_MAX = 2**31 - 1
HOSTILE_INPUT_BYTES = 100
ALLOCATED_BYTES_MAX = 64 * 1024


class Everything(Message, api_key=0, versions="0-2", flexible="2+"):
    """Every kind of field, including those that no message has."""

    flag: bool = fields.boolean()
    tiny: int = fields.int8()
    small: int = fields.int16()
    port: int = fields.uint16()
    number: int = fields.int32()
    mask: int = fields.uint32()
    big: int = fields.int64()
    ratio: float = fields.float64()
    id: bytes = fields.uuid()
    text: str = fields.string()
    blob: bytes = fields.bytes_()
    batch: fields.Records = fields.records_(default=b"")
    numbers: tuple[int, ...] = fields.array(fields.int32)
    texts: tuple[str, ...] = fields.array(fields.string)
    ids: tuple[bytes, ...] = fields.array(fields.uuid)
    blobs: tuple[bytes, ...] = fields.array(fields.bytes_)


def versions_of(cls):
    return range(cls.versions.first, cls.versions.last + 1)


def turning_points(cls):
    """Return the first and last version, and the versions around the first flexible one."""
    return sorted({*cls.versions, cls.flexible.first - 1, cls.flexible.first} & {*versions_of(cls)})


def structs_in(cls: type[Struct], version: int) -> Iterator[type[Struct]]:
    yield cls
    for field in cls.fields.values():
        if isinstance(field.element, type) and version in field.versions:
            yield from structs_in(field.element, version)


def kernels(cls, version, flexible=None):
    described = plan(cls, version, version in cls.flexible if flexible is None else flexible)
    return _reference.MessageCodec(described), _kernel.MessageCodec(described)


def outcome(action, *arguments):
    """Return the result of a call, or the type and offset of its error."""
    try:
        result = action(*arguments)
    except (HeadraceError, ValueError, TypeError) as error:
        return type(error), getattr(error, "offset", None)
    return b"".join(result) if isinstance(result, list) else result


PLENTY = {
    **dict.fromkeys(range(fields.INT8, fields.FLOAT64), 5),
    fields.FLOAT64: 2.5,
    fields.UUID: bytes(range(16)),
    fields.STRING: "grün",
    fields.BYTES: b"\x01\x02",
    fields.RECORDS: b"batch",
}
NOTHING = {
    **dict.fromkeys(range(fields.BOOLEAN, fields.FLOAT64), 0),
    fields.FLOAT64: 0.0,
    fields.UUID: fields.ZERO_UUID,
    fields.STRING: "",
    fields.BYTES: b"",
    fields.RECORDS: b"",
    fields.ARRAY: (),
}


def filled(cls, version):
    """Return a message in which every field of the version differs from its default."""
    return cls(**{name: other_than_default(f, version) for name, f in cls.fields.items() if version in f.versions})


def other_than_default(field, version):
    if field.kind == fields.BOOLEAN:
        return not field.default
    if field.kind == STRUCT:
        return filled(field.element, version)
    if field.kind == ARRAY:
        return (filled(field.element, version) if isinstance(field.element, type) else PLENTY[field.element],)
    return PLENTY[field.kind]


def bare(cls, version):
    """Return the shortest message of the version."""
    live = {name: field for name, field in cls.fields.items() if version in field.versions and field.kind != STRUCT}
    return cls(**{name: NOTHING[field.kind] for name, field in live.items() if field.tag < 0})


# -- the table of messages ---------------------------------------------------------------------


def test_every_api_key_has_a_request_and_a_response_of_the_same_versions():
    for key in APIS:
        request, response = request_class(key), response_class(key)
        assert (request.__name__, response.__name__) == (f"{api_name(key)}Request", f"{api_name(key)}Response")
        assert request.api_key == response.api_key == key
        assert (request.versions, request.flexible) == (response.versions, response.flexible)
    assert [api_name(key) for key in (0, 18, 24)] == ["Produce", "ApiVersions", "AddPartitionsToTxn"]


def test_an_unknown_api_key_stays_a_number_and_has_no_messages():
    assert api_name(4711) == "API_4711"
    with pytest.raises(UnsupportedVersionError, match="4711"):
        request_class(4711)
    with pytest.raises(UnsupportedVersionError, match="4711"):
        response_class(4711)


def test_an_unsupported_version_is_named():
    with pytest.raises(UnsupportedVersionError, match=r"EndTxnRequest has versions 0-5, not 6"):
        EndTxnRequest().encode(6)
    with pytest.raises(UnsupportedVersionError, match=r"versions 0-5, not -1"):
        EndTxnRequest.decode(-1, b"")


# -- encoding and decoding ----------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None, database=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=100))
def test_random_bytes_are_a_message_or_malformed(which, data):
    cls, version = which
    result = outcome(cls.decode, version, data)
    if isinstance(result, cls):
        assert cls.decode(version, result.encode(version)) == result
    else:
        error, offset = result
        assert error is MalformedError
        assert 0 <= offset <= len(data)


def test_nan_survives():
    ratio = Everything.decode(0, Everything(ratio=float("nan")).encode(0)).ratio
    assert ratio != ratio


def test_decoding_a_whole_message_rejects_trailing_bytes():
    data = EndTxnRequest().encode(0)
    with pytest.raises(MalformedError, match="expected EndTxnRequest to end here, 2 bytes are left") as caught:
        EndTxnRequest.decode(0, data + b"xx")
    assert caught.value.offset == len(data)


def test_unknown_tagged_fields_are_kept_and_encoded_again():
    tags = {7: b"seven", 2**31: b""}
    message = ApiVersionsResponse(finalized_features=[FinalizedFeatureKey(name="kraft", tags=tags)], tags=tags)
    data = message.encode(3)
    decoded = ApiVersionsResponse.decode(3, data)
    assert decoded.tags == tags
    assert decoded.finalized_features[0].tags == tags
    assert decoded.encode(3) == data


def test_tagged_fields_with_default_values_are_not_encoded():
    plain = ApiVersionsResponse(finalized_features_epoch=-1).encode(3)
    assert plain == ApiVersionsResponse().encode(3)
    assert plain.endswith(b"\x00")
    assert ApiVersionsResponse(finalized_features_epoch=0).encode(3).endswith(b"\x01\x01\x08" + bytes(8))


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        (b"\x02\x07\x00\x07\x00", "expected a tag above 7, got 7"),
        (b"\x02\x07\x00\x03\x00", "expected a tag above 7, got 3"),
        (b"\x01\x07\x05abcd", "expected 5 bytes of tag 7, 4 left"),
        (b"\x01\x01\x09" + bytes(9), "finalized_features_epoch: expected 9 bytes, read 8"),
    ],
)
def test_tagged_fields_out_of_order_or_of_the_wrong_size_are_malformed(tags, complaint):
    data = ApiVersionsResponse().encode(3)
    assert data.endswith(b"\0")
    with pytest.raises(MalformedError, match=complaint):
        ApiVersionsResponse.decode(3, data[:-1] + tags)


def test_decoding_keeps_no_reference_to_defaults():
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=3))
    data = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])]).encode(12)
    default = PartitionData.fields["diverging_epoch"].default
    gc.collect()  # garbage of earlier tests must not be counted below
    before = sys.getrefcount(default)
    for _ in range(100):
        FetchResponse.decode(12, data)
        with pytest.raises(MalformedError):
            FetchResponse.decode(12, data[:-2])
    gc.collect()
    assert sys.getrefcount(default) == before


# -- invalid bytes -----------------------------------------------------------------


@every_message
def test_a_truncated_message_is_malformed(cls):
    for version in turning_points(cls):
        data = filled(cls, version).encode(version)
        for length in range(len(data)):
            with pytest.raises(
                MalformedError, match=r"expected .*(\d+ left|\d+ bytes are left|ends inside it)"
            ) as caught:
                cls.decode(version, data[:length])
            assert 0 <= caught.value.offset <= length
            assert str(caught.value).endswith(f"(at offset {caught.value.offset})")


def test_a_null_that_the_version_does_not_allow_is_malformed():
    named, unnamed = (MetadataResponse(topics=[MetadataResponseTopic(name=name)]) for name in ("", None))
    data = unnamed.encode(12)
    assert MetadataResponse.decode(12, data) == unnamed
    assert len(named.encode(12)) == len(data)
    with pytest.raises(MalformedError, match=r"MetadataResponseTopic\.name is null, which version 10 does not allow"):
        MetadataResponse.decode(10, data)


def test_a_negative_length_and_bad_utf8_are_malformed():
    start = b"\xff\xfe"
    with pytest.raises(MalformedError, match=r"EndTxnRequest\.transactional_id: expected a length, got -2") as caught:
        EndTxnRequest.decode(0, start + bytes(20))
    assert caught.value.offset == 0
    with pytest.raises(MalformedError, match=r"EndTxnRequest\.transactional_id: expected UTF-8") as caught:
        EndTxnRequest.decode(0, b"\x00\x03a\xff\xff" + bytes(20))
    assert caught.value.offset == 3


def test_a_varint_that_is_too_long_is_malformed():
    for endless in (b"\xff" * 9, b"\xff\xff\xff\xff\x1f"):
        with pytest.raises(MalformedError, match="varint of at most 5 bytes"):
            EndTxnRequest.decode(3, endless)


def array_paths(cls, version):
    """Return the path of each array in a message: field names, the last one of the array."""
    for name, field in cls.fields.items():
        if version not in field.versions:
            continue
        if field.kind == ARRAY:
            yield (name,)
        if isinstance(field.element, type):
            inner = list(array_paths(field.element, version))
            assert field.tag < 0 or not inner, "arrays inside tagged fields: teach `promise` how to reach them"
            yield from ((name, *rest) for rest in inner)


def reach(cls, version, path, change):
    """Return a short message with `change` applied to the struct that has the array at the end of `path`."""
    name, *rest = path
    message = bare(cls, version)
    if not rest:
        return change(message, name)
    field = cls.fields[name]
    child = reach(field.element, version, rest, change)
    return message.replace(**{name: (child,) if field.kind == ARRAY else child})


def promise(cls, version, path, count):
    """Return the bytes of a message up to an array, whose count is `count`, followed by zeros."""
    flexible = version in cls.flexible
    promised = bytearray() if flexible else bytearray(count.to_bytes(4, "big"))
    if flexible:
        write_uvarint(promised, count + 1)

    def untagged(message, name):
        element = message.fields[name].element
        item = bare(element, version) if isinstance(element, type) else NOTHING[element]
        return message.replace(**{name: items * (item,)})

    def tagged(message, name):
        return message.replace(tags={message.fields[name].tag: bytes(promised) + bytes(HOSTILE_INPUT_BYTES // 2)})

    if last_field(cls, path).tag >= 0:
        return reach(cls, version, path, tagged).encode(version)
    items = 1
    single = reach(cls, version, path, untagged).encode(version)
    items = 0
    none = reach(cls, version, path, untagged).encode(version)
    position = next(index for index, byte in enumerate(none) if single[index] != byte) - (0 if flexible else 3)
    return (none[:position] + promised).ljust(HOSTILE_INPUT_BYTES, b"\0")


def last_field(cls, path):
    field = cls.fields[path[0]]
    return field if len(path) == 1 else last_field(field.element, path[1:])


@every_message
def test_an_array_count_beyond_the_bytes_allocates_no_memory(cls, allocated_bytes):
    for version in versions_of(cls):
        codec(cls, version)  # created before measuring
        for path in array_paths(cls, version):
            for count in (INT32_MAX, 10_000_000, 1000, 40):
                data = promise(cls, version, path, count)
                assert len(data) <= HOSTILE_INPUT_BYTES
                cost, error = allocated_bytes(cls.decode, version, data)
                assert cost < ALLOCATED_BYTES_MAX, (version, path, count)
                if count > HOSTILE_INPUT_BYTES:
                    assert f".{path[-1]}: expected {count} items" in str(error)


def test_lengths_beyond_the_bytes_allocate_no_memory(allocated_bytes):
    hostile: list[tuple[type[Message], int, bytes]] = [
        (EndTxnRequest, 0, b"\x7f\xff"),
        (EndTxnRequest, 3, b"\xff\xff\xff\xff\x07"),
        (SaslAuthenticateRequest, 0, b"\x7f\xff\xff\xff"),
        (SaslAuthenticateRequest, 2, b"\xff\xff\xff\xff\x0f"),
        (SaslAuthenticateRequest, 2, b"\x01\xff\xff\xff\xff\x0f"),
        (SaslAuthenticateRequest, 2, b"\x01\x01\x00\xff\xff\xff\xff\x0f"),
    ]
    for cls, version, start in hostile:
        codec(cls, version)
        cost, error = allocated_bytes(cls.decode, version, start.ljust(HOSTILE_INPUT_BYTES, b"\0"))
        assert cost < ALLOCATED_BYTES_MAX
        assert error is not None


# -- invalid values ----------------------------------------------------------------


@every_message
def test_a_value_of_an_absent_field_is_an_error_unless_ignorable(cls):
    for version in versions_of(cls):
        for struct in structs_in(cls, version):
            codec_of_struct = kernel.MessageCodec(plan(struct, version, version in cls.flexible))
            for name, field in struct.fields.items():
                if version in field.versions:
                    continue
                value = other_than_default(field, field.versions.first)
                message = bare(struct, version).replace(**{name: value})
                if field.ignorable:
                    assert codec_of_struct.encode(message) == codec_of_struct.encode(bare(struct, version))
                    continue
                with pytest.raises(UnsupportedVersionError) as caught:
                    codec_of_struct.encode(message)
                complaint = str(caught.value)
                assert complaint.startswith(f"{struct.__name__}.{name} is {value!r}, but version {version} ")
                assert complaint.endswith(f"does not have the field, only versions {field.versions}")


@every_message
def test_none_is_rejected_by_name_if_the_field_is_not_nullable(cls):
    for version in versions_of(cls):
        for struct in structs_in(cls, version):
            codec_of_struct = kernel.MessageCodec(plan(struct, version, version in cls.flexible))
            for name, field in struct.fields.items():
                if version not in field.versions or version in field.nullable:
                    continue
                expected = UnsupportedVersionError if field.kind >= STRING else ValueError
                with pytest.raises(expected, match=rf"{struct.__name__}\.{name} is None"):
                    codec_of_struct.encode(bare(struct, version).replace(**{name: None}))


WRONG: list[tuple[str, Any]] = [
    ("flag", 2),
    ("flag", None),
    ("flag", "yes"),
    ("tiny", 128),
    ("tiny", -129),
    ("small", 2**15),
    ("small", -(2**15) - 1),
    ("port", 2**16),
    ("port", -1),
    ("number", 2**31),
    ("number", -(2**31) - 1),
    ("number", 1.5),
    ("number", "7"),
    ("number", None),
    ("mask", 2**32),
    ("mask", -1),
    ("big", 2**63),
    ("big", -(2**63) - 1),
    ("big", float("nan")),
    ("ratio", None),
    ("ratio", "1.5"),
    ("ratio", 10**400),
    ("id", None),
    ("id", bytes(15)),
    ("id", "a" * 16),
    ("id", bytearray(16)),
    ("text", "x" * 2**15),
    ("text", "ä" * 2**14),
    ("text", b"raw"),
    ("text", "\ud800"),
    ("blob", "text"),
    ("blob", []),
    ("batch", "text"),
    ("batch", 7),
    ("batch", ["text"]),
    ("batch", memoryview(b"abcd").cast("i")),
    ("numbers", [1, 2**31]),
    ("numbers", [1, None]),
    ("texts", ["fine", None]),
    ("texts", ["fine", b"raw"]),
    ("ids", [None]),
    ("blobs", [None]),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!r:.20}" for name, value in WRONG])
def test_a_value_out_of_range_is_rejected_by_name(name, value):
    for version in versions_of(Everything):
        with pytest.raises(ValueError, match=rf"^Everything\.{name} (is|has) "):
            Everything(**{name: value}).encode(version)


def test_the_longest_values_fit():
    extremes = Everything(
        flag=True,
        tiny=-128,
        small=-(2**15),
        port=2**16 - 1,
        number=-(2**31),
        mask=2**32 - 1,
        big=-(2**63),
        text="x" * (2**15 - 1),
        blob=bytes(2**17),
    )
    for version in versions_of(Everything):
        assert Everything.decode(version, extremes.encode(version)) == extremes


@needs_both_kernels
def test_both_kernels_reject_the_same_values_with_the_same_error():
    values = [value for _, value in WRONG]
    for version in versions_of(Everything):
        reference, compiled = kernels(Everything, version)
        for name, field in Everything.fields.items():
            for value in values if field.kind != ARRAY else [[value] for value in values]:
                message = Everything().replace(**{name: value})
                assert outcome(compiled.encode, message) == outcome(reference.encode, message), (name, value)


def test_a_message_of_another_class_is_rejected():
    with pytest.raises(TypeError, match="expected EndTxnRequest, got FetchRequest"):
        codec(EndTxnRequest, 0).encode(FetchRequest())
    with pytest.raises(TypeError, match="expected TopicProduceData, got str"):
        ProduceRequest(topic_data=["topic"]).encode(3)  # type: ignore[list-item]


# -- messages as values ------------------------------------------------------------------------


def test_a_repr_shows_what_differs_from_the_defaults():
    assert repr(EndTxnRequest(producer_id=7)) == "EndTxnRequest(producer_id=7)"
    assert repr(EndTxnRequest(tags={9: b"x"})) == "EndTxnRequest(tags={9: b'x'})"


def test_a_repr_shows_no_secrets():
    secret = b"hunter2"
    upsertion = ScramCredentialUpsertion(name="me", salt=secret, salted_password=secret)
    for message in (
        SaslAuthenticateRequest(auth_bytes=secret),
        SaslAuthenticateResponse(auth_bytes=secret),
        AlterUserScramCredentialsRequest(upsertions=[upsertion]),
    ):
        assert "hunter2" not in repr(message)
        assert "=***" in repr(message)


def test_an_error_about_a_secret_does_not_contain_it():
    with pytest.raises(ValueError, match=r"auth_bytes is of type str: expected bytes") as caught:
        SaslAuthenticateRequest(auth_bytes="hunter2").encode(0)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@every_message
def test_messages_are_immutable_hashable_and_picklable(cls):
    message = filled(cls, cls.versions.last)
    same = filled(cls, cls.versions.last)
    assert message == same
    assert hash(message) == hash(same)
    for twin in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message), message.replace()):
        assert (type(twin), twin) == (cls, message)
    for name in cls.fields:
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    with pytest.raises(AttributeError):
        message.something_else = 1


def test_arrays_become_tuples_and_unknown_names_are_rejected():
    message = ProduceRequest(topic_data=[TopicProduceData(name="t")])
    assert message.topic_data == (TopicProduceData(name="t"),)
    assert message.replace(acks=1).acks == 1
    with pytest.raises(TypeError, match="nonsense"):
        ProduceRequest(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nonsense"):
        message.replace(nonsense=1)


# -- frames ------------------------------------------------------------------------------------


def produce_request(*records):
    partitions = [PartitionProduceData(partition_index=index, records=value) for index, value in enumerate(records)]
    return ProduceRequest(
        acks=-1, timeout_ms=100, topic_data=[TopicProduceData(name="topic", partition_data=partitions)]
    )


@pytest.mark.parametrize("version", [0, 3, 9])
def test_record_batches_are_not_copied_into_the_frame(version):
    whole, first, second, third = b"whole batch", bytearray(b"first"), memoryview(b"second"), b"third"
    parts = encode_request(produce_request(whole, [first, second, third], None, []), version, 1, "me")
    references = [part for part in parts if any(part is buffer for buffer in (whole, first, second, third))]
    assert list(map(id, references)) == list(map(id, (whole, first, second, third)))
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, pos = decode_request_header(frame[4:])
    decoded = decode_request_body(header, frame[4:], pos)
    assert decoded == produce_request(whole, b"firstsecondthird", None, b"")


def test_records_are_views_of_the_bytes_they_came_in():
    data = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(records=b"batch")])]).encode(4)
    records = FetchResponse.decode(4, data).responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    assert bytes(records) == b"batch"


@pytest.mark.parametrize("client_id", [None, "", "grün"])
@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_a_flexible_request_header_has_tags(version, client_id):
    message = EndTxnRequest(transactional_id="t", producer_id=5)
    frame = b"".join(encode_request(message, version, 77, client_id))
    raw_id = b"" if client_id is None else client_id.encode()
    length = b"\xff\xff" if client_id is None else len(raw_id).to_bytes(2, "big")
    head = b"\x00\x1a" + version.to_bytes(2, "big") + (77).to_bytes(4, "big") + length + raw_id
    head += b"\0" if version >= 3 else b""
    assert frame == (len(frame) - 4).to_bytes(4, "big") + head + message.encode(version)
    header, pos = decode_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(26, version, 77, client_id)
    assert decode_request_body(header, frame[4:], pos) == message


def test_a_client_id_that_is_too_long_is_rejected():
    with pytest.raises(ValueError, match="client_id has 32768 bytes; the maximum is 32767"):
        encode_request(EndTxnRequest(), 0, 1, "x" * 2**15)


@pytest.mark.parametrize("cls", [response_class(key) for key in APIS], ids=lambda cls: cls.__name__)
def test_a_flexible_response_header_has_tags_except_for_api_versions(cls):
    for version in versions_of(cls):
        message = filled(cls, version)
        body = message.encode(version)
        frame = b"".join(encode_response(message, version, -5))
        flexible = version in cls.flexible and cls is not ApiVersionsResponse
        assert frame[4:] == b"\xff\xff\xff\xfb" + (b"\0" if flexible else b"") + body
        assert decode_correlation_id(frame[4:]) == -5
        assert decode_response(cls.api_key, version, frame[4:]) == (-5, message)


def test_tagged_fields_in_a_header_are_skipped():
    request = ApiVersionsRequest(client_software_name="me")
    frame = b"".join(encode_request(request, 3, 1, None))[4:]
    header, pos = decode_request_header(frame)
    assert decode_request_body(header, frame[:pos] + b"\x01\x05\x02ab" + frame[pos + 1 :], pos) == request
    with pytest.raises(MalformedError, match="expected a tagged field of 99 bytes, 2 left") as caught:
        decode_request_body(header, frame[:pos] + b"\x01\x05\x63ab", pos)
    assert caught.value.offset == pos + 2


def test_truncated_or_invalid_headers_are_malformed():
    frame = b"".join(encode_request(MetadataRequest(), 9, 1, "client"))[4:]
    _, pos = decode_request_header(frame)
    for length in range(pos):
        with pytest.raises(MalformedError):
            decode_request_header(frame[:length])
    with pytest.raises(MalformedError, match="got -2"):
        decode_request_header(frame[:8] + b"\xff\xfe")
    with pytest.raises(MalformedError, match="UTF-8"):
        decode_request_header(frame[:8] + b"\x00\x01\xff")
    for length in range(4):
        with pytest.raises(MalformedError, match=f"got {length} bytes"):
            decode_correlation_id(bytes(length))
        with pytest.raises(MalformedError):
            decode_response(12, 0, bytes(length))


def test_an_unknown_request_is_unsupported():
    with pytest.raises(UnsupportedVersionError, match="99"):
        decode_request_body(RequestHeader(99, 0, 1, None), b"", 0)
    with pytest.raises(UnsupportedVersionError, match="EndTxnRequest has versions 0-5, not 9"):
        decode_request_body(RequestHeader(26, 9, 1, None), b"", 0)


# -- errors ------------------------------------------------------------------------------------


def test_every_error_survives_pickling_with_its_attributes():
    samples = {
        MalformedError: MalformedError("expected 4 bytes, 2 left", offset=17),
        SerializationError: SerializationError("no", topic="t", serializer="StrSerializer", value_type="int"),
        DeserializationError: DeserializationError("no", topic="t", partition=0, offset=7, deserializer="json"),
    }
    tree = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, HeadraceError)]
    assert len(tree) >= 7
    for cls in tree:
        if issubclass(cls, BrokerError):
            continue  # tests/unit/test_errors.py
        error = samples.get(cls) or cls("what happened")
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            twin = pickle.loads(pickle.dumps(error, protocol))
            assert (type(twin), str(twin), twin.args, vars(twin)) == (cls, str(error), error.args, vars(error))
    assert pickle.loads(pickle.dumps(ConfigError())).args == ("",)


def test_a_broker_error_has_the_name_of_its_code_and_is_retriable_or_not():
    error = BrokerError("orders-3", code=6)
    assert (error.name, error.retriable, str(error)) == (
        "NOT_LEADER_OR_FOLLOWER",
        True,
        "NOT_LEADER_OR_FOLLOWER (6): orders-3",
    )
    assert not BrokerError(code=10).retriable
    assert str(BrokerError(code=10)) == "MESSAGE_TOO_LARGE (10)"


def test_an_unknown_error_code_stays_a_number():
    error = BrokerError(code=4711)
    assert (error.name, error.retriable, str(error)) == ("ERROR_4711", False, "ERROR_4711 (4711)")
    assert error_name(-2) == "ERROR_-2"


def test_error_codes_are_consecutive_and_their_names_unique():
    assert list(ERROR_CODES) == list(range(-1, len(ERROR_CODES) - 1))
    assert all(known.code == code for code, known in ERROR_CODES.items())
    assert len({known.name for known in ERROR_CODES.values()}) == len(ERROR_CODES)
