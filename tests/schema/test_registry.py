"""The client on Apicurio Registry and on the broker's, with Confluent's client and serializers on the other side."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from headrace import errors
from headrace.client.registry import SchemaRegistryClient
from headrace.schema import RegisteredSchema, Schema, SchemaFormat, SchemaReference, framing

confluent = pytest.importorskip("confluent_kafka.schema_registry")

ORDER = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"id","type":"long"},{"name":"amount","type":"double"}]}'
)
ORDER_WITH_NOTE = ORDER.replace("]}", ',{"name":"note","type":"string","default":""}]}')
ORDER_WITH_CUSTOMER = ORDER.replace("]}", ',{"name":"customer","type":"string"}]}')
SCHEMAS = [
    Schema(ORDER),
    Schema('syntax = "proto3"; package shop; message Order { int64 id = 1; }', SchemaFormat.PROTOBUF),
    Schema('{"type":"object","title":"Order","properties":{"id":{"type":"integer"}}}', SchemaFormat.JSON),
]

REFUSALS = {
    # The messages of a check, and the error of a registration.
    "apicurio": ([], r"Incompatible artifact: .*customer at /fields/2"),
    "headrace": (
        ["READER_FIELD_MISSING_DEFAULT_VALUE at '/fields/2'"],
        r"incompatible with an earlier schema .*field 'customer' of the new schema has no default and is not in "
        r"version 1; give it a default",
    ),
}


@pytest.fixture(scope="module")
def ours(registry):
    return SchemaRegistryClient(registry.url)


@pytest.fixture(scope="module")
def theirs(registry):
    with confluent.SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.mark.behaviour("R01")
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.format.value)
def test_confluents_client_reads_what_ours_registered(ours, theirs, subject, schema):
    registered = ours.register(subject, schema)
    assert ours.register(subject, schema) == registered
    latest = theirs.get_latest_version(subject)
    assert (latest.schema_id, latest.version) == (registered.id, 1)
    assert (latest.schema.schema_str, latest.schema.schema_type) == (schema.text, schema.format.value)
    assert theirs.get_schema(registered.id).schema_str == schema.text


@pytest.mark.behaviour("R01")
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.format.value)
def test_ours_reads_what_confluents_client_registered(ours, theirs, subject, schema):
    schema_id = theirs.register_schema(subject, confluent.Schema(schema.text, schema.format.value))
    latest = ours.get_latest(subject)
    assert latest == RegisteredSchema(schema, schema_id, latest.guid, subject, 1)
    assert ours.get_version(subject, 1) == latest
    assert ours.get_schema(schema_id).schema == schema
    assert ours.get_schema(schema_id, subject=subject).id == schema_id
    assert ours.get_versions(subject) == [1]
    assert subject in ours.get_subjects()
    assert ours.get_subjects(subject[:12]) == [subject]
    known = ours.lookup(subject, schema)
    assert (known.id, known.version, known.schema) == (schema_id, 1, schema)


@pytest.mark.behaviour("R01")
def test_the_framing_is_that_of_confluents_avro_serializer(ours, theirs, subject):
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    order = {"id": 7, "amount": 1.5}
    value = AvroSerializer(theirs, ORDER)(order, context)
    assert value is not None
    schema_id, payload = framing.decode(value)
    assert schema_id.id is not None
    assert schema_id.id == ours.get_latest(subject).id
    assert AvroDeserializer(theirs)(framing.encode_id(schema_id.id) + bytes(payload), context) == order


@pytest.mark.behaviour("R01")
def test_message_indexes_are_those_of_confluents_protobuf_serializer(ours, theirs, subject):
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    values: list[bytes | None] = []
    messages: list[bytes] = []
    types = message_types()
    for name in ("First", "Second", "Second.Inner"):
        message = types[name](id=len(values) + 1)
        values.append(ProtobufSerializer(types[name], theirs, {"use.deprecated.format": False})(message, context))
        messages.append(message.SerializeToString())
    ids, _, payload = framing.split_column(pa.array(values, pa.binary()))
    assert set(ids.to_pylist()) == {ours.get_latest(subject).id}
    indexes, invalid, payload = framing.split_message_indexes(payload)
    assert indexes.to_pylist() == [[0], [1], [1, 1]]
    assert not any(invalid.to_pylist())
    assert payload.to_pylist() == messages


def message_types():
    """Message types of a file: First, Second, Second.Other and Second.Inner, each with a field `id`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{uuid.uuid4().hex}.proto", syntax="proto3")
    number = descriptor_pb2.FieldDescriptorProto
    first, second = file.message_type.add(name="First"), file.message_type.add(name="Second")
    for message in (first, second, second.nested_type.add(name="Other"), second.nested_type.add(name="Inner")):
        message.field.add(name="id", number=1, type=number.TYPE_INT64, label=number.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("First", "Second", "Second.Inner")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


@pytest.mark.behaviour("R01")
def test_an_incompatible_schema_is_refused_in_the_registrys_words(registry, ours, subject):
    ours.set_compatibility("backward", subject)
    assert ours.get_compatibility(subject) == "BACKWARD"
    ours.register(subject, Schema(ORDER))
    assert ours.check_compatibility(subject, Schema(ORDER_WITH_NOTE))
    result = ours.check_compatibility(subject, Schema(ORDER_WITH_CUSTOMER))
    assert not result
    messages, refusal = REFUSALS[registry.name]
    assert [message.split(":")[0] for message in result.messages] == messages
    assert not ours.check_compatibility(subject, Schema(ORDER_WITH_CUSTOMER), version=1)
    with pytest.raises(errors.IncompatibleSchemaError, match=refusal) as caught:
        ours.register(subject, Schema(ORDER_WITH_CUSTOMER))
    assert caught.value.status == 409
    ours.set_compatibility("none", subject)
    assert ours.register(subject, Schema(ORDER_WITH_CUSTOMER)).id is not None
    assert ours.get_versions(subject) == [1, 2]
    assert ours.get_latest(subject).schema.text == ORDER_WITH_CUSTOMER


def test_the_global_level_and_mode_can_be_read(ours, theirs):
    assert ours.get_compatibility() == theirs.get_compatibility()
    assert ours.get_mode() == theirs.get_global_mode()


def test_the_mode_of_a_subject_can_be_changed(ours, theirs, subject):
    ours.register(subject, Schema(ORDER))
    ours.set_mode("readonly", subject)
    assert ours.get_mode(subject) == theirs.get_mode(subject) == "READONLY"


def test_a_schema_that_the_registry_cannot_parse_is_named(ours, subject):
    with pytest.raises(errors.InvalidSchemaError):
        ours.register(subject, Schema('{"type": "recordd"}'))


@pytest.mark.behaviour("R01")
def test_unknown_ids_guids_subjects_and_versions_are_named(registry, ours, subject):
    with pytest.raises(errors.SchemaNotFoundError):
        ours.get_schema(999_999_999)
    with pytest.raises(errors.SubjectNotFoundError):
        ours.get_latest(subject)
    with pytest.raises(errors.SubjectNotFoundError):
        ours.get_versions(subject)
    ours.register(subject, Schema(ORDER))
    with pytest.raises(errors.SchemaNotFoundError):
        ours.get_version(subject, 7)
    with pytest.raises(errors.SchemaNotFoundError):
        ours.lookup(subject, Schema(ORDER_WITH_NOTE))
    text = "or no GUIDs at all" if registry.name == "apicurio" else "not found"
    with pytest.raises(errors.SchemaNotFoundError, match=text):
        ours.get_schema_by_guid(uuid.uuid4())


@pytest.mark.behaviour("R01")
def test_a_deleted_schema_is_named_and_kept_until_it_is_deleted_permanently(ours, subject):
    ours.register(subject, Schema(ORDER))
    ours.register(subject, Schema(ORDER_WITH_NOTE))
    assert ours.get_version(subject, 1).schema.text == ORDER
    assert ours.delete_version(subject, 1) == 1
    assert ours.get_versions(subject) == [2]
    assert ours.get_versions(subject, deleted=True) == [1, 2]
    with pytest.raises(errors.SchemaDeletedError, match=f"version 1 of subject '{subject}' was deleted"):
        ours.get_version(subject, 1)
    assert ours.get_version(subject, 1, deleted=True).schema.text == ORDER
    assert 2 in ours.delete_subject(subject)
    with pytest.raises(errors.SchemaDeletedError):
        ours.get_latest(subject)
    ours.delete_subject(subject, permanent=True)
    with pytest.raises(errors.SubjectNotFoundError):
        ours.get_latest(subject)


@pytest.mark.behaviour("R01")
def test_references_are_resolved_innermost_first(ours, theirs, subject):
    names = [f"{name}-{subject}" for name in ("currency", "money", "invoice")]
    currency = Schema('syntax = "proto3"; message Currency { string code = 1; }', SchemaFormat.PROTOBUF)
    money = Schema(
        'syntax = "proto3"; import "currency.proto"; message Money { int64 cents = 1; Currency unit = 2; }',
        SchemaFormat.PROTOBUF,
        (SchemaReference("currency.proto", names[0], 1),),
    )
    invoice = Schema(
        'syntax = "proto3"; import "money.proto"; message Invoice { Money total = 1; }',
        SchemaFormat.PROTOBUF,
        (SchemaReference("money.proto", names[1], 1),),
    )
    for name, schema in zip(names, (currency, money, invoice), strict=True):
        ours.register(name, schema)
    assert ours.get_latest(names[2]).schema.references == invoice.references
    resolved = ours.resolve_references(ours.get_latest(names[2]).schema)
    assert resolved == {"currency.proto": currency, "money.proto": money}
    assert list(resolved) == ["currency.proto", "money.proto"]
    (reference,) = theirs.get_latest_version(names[2]).schema.references
    assert (reference.name, reference.subject, reference.version) == ("money.proto", names[1], 1)


@pytest.mark.parametrize("name", ["a/b c?d#e", "größe-value", "100%-value"])
def test_subjects_with_special_characters_are_found(ours, theirs, subject, name):
    ours.register(f"{name}{subject}", Schema(ORDER))
    assert ours.get_latest(f"{name}{subject}").subject == f"{name}{subject}"
    assert f"{name}{subject}" in theirs.get_subjects()
