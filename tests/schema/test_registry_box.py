"""The schema registry in the broker: its topic, kills, compaction, other writers, and clients of other projects."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker
from headrace.client.registry import SchemaRegistryClient
from headrace.errors import ConfigError, IllegalStateError
from headrace.schema import Schema, SchemaFormat, SchemaReference
from tests.support.waiting import eventually

confluent_kafka = pytest.importorskip("confluent_kafka")

TOPIC = "_schemas"
READ_SECONDS_MAX = 20
COMPACTION_SECONDS_MAX = 30
USER = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
USER_WITH_AGE = USER.replace("]}", ',{"name":"age","type":"int","default":0}]}')
PROTO = 'syntax = "proto3";\n// A user.\nmessage User { string name = 1; }\n'


def call(url: str, path: str, body: object = None, method: str = "GET", **headers: str) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    if data is not None:
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    try:
        with urllib.request.urlopen(request, timeout=READ_SECONDS_MAX) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def read_topic(bootstrap: str) -> list[tuple[Any, Any]]:
    """Return keys and values of the topic as JSON, read by librdkafka."""
    config = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(config)
    try:
        partition = confluent_kafka.TopicPartition(TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=READ_SECONDS_MAX)
        consumer.assign([partition])
        records = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while consumer.position([partition])[0].offset < end:
            assert time.monotonic() < deadline, "the topic was not read in time"
            record = consumer.poll(0.2)
            if record is not None:
                assert record.error() is None, record.error()
                value = record.value()
                records.append((json.loads(record.key()), None if value is None else json.loads(value)))
        return records
    finally:
        consumer.close()


@pytest.fixture
def own():
    """A broker with a registry for one test."""
    with EmbeddedBroker(schema_registry=True) as broker:
        yield broker


def test_the_topic_has_the_records_of_confluents_registry(own):
    client = SchemaRegistryClient(own.schema_registry_url)
    client.register("users-value", Schema(USER))
    client.register("users-proto", Schema(PROTO, SchemaFormat.PROTOBUF, (SchemaReference("u", "users-value", 1),)))
    client.set_compatibility("full", "users-value")
    client.set_compatibility("none")
    client.set_mode("readonly", "users-proto")
    client.set_mode("readwrite", "users-proto")
    client.delete_version("users-proto", 1)
    client.delete_subject("users-value")
    client.delete_version("users-proto", 1, permanent=True)
    schema = {"subject": "users-value", "version": 1, "id": 1, "schema": USER, "deleted": False}
    reference = {"name": "u", "subject": "users-value", "version": 1}
    proto = {
        "subject": "users-proto",
        "version": 1,
        "id": 2,
        "schemaType": "PROTOBUF",
        "references": [reference],
        "schema": PROTO,
    }
    proto_key = {"keytype": "SCHEMA", "subject": "users-proto", "version": 1, "magic": 1}
    mode_key = {"keytype": "MODE", "subject": "users-proto", "magic": 0}
    config_key = {"keytype": "CONFIG", "subject": "users-value", "magic": 0}
    assert read_topic(own.bootstrap) == [
        ({"keytype": "SCHEMA", "subject": "users-value", "version": 1, "magic": 1}, schema),
        (proto_key, {**proto, "deleted": False}),
        (config_key, {"subject": "users-value", "compatibilityLevel": "FULL"}),
        ({"keytype": "CONFIG", "magic": 0}, {"compatibilityLevel": "NONE"}),
        (mode_key, {"subject": "users-proto", "mode": "READONLY"}),
        (mode_key, {"subject": "users-proto", "mode": "READWRITE"}),
        (proto_key, {**proto, "deleted": True}),
        (mode_key, None),
        (
            {"keytype": "DELETE_SUBJECT", "subject": "users-value", "magic": 0},
            {"subject": "users-value", "version": 1},
        ),
        (config_key, None),
        ({"keytype": "NOOP", "magic": 0}, {"id": 2}),
        (proto_key, None),
    ]


@pytest.mark.behaviour("R05")
def test_a_kill_loses_nothing_that_was_acknowledged(own):
    url = own.schema_registry_url
    client = SchemaRegistryClient(url)
    for index in range(30):
        client.register(f"subject-{index % 3}", Schema(USER.replace("User", f"User{index % 5}")))
        client.set_compatibility("NONE", f"subject-{index % 3}")
    client.delete_version("subject-0", 1)
    client.delete_subject("subject-2")
    paths = ("/schemas?deleted=true", "/subjects", "/subjects?deleted=true", "/config/subject-0", "/contexts")
    before = [call(url, path) for path in paths]
    own.kill()
    own.start()
    assert own.schema_registry_url == url
    assert [call(url, path) for path in paths] == before
    assert len(before[0][1]) == 15
    own.restart()
    assert [call(url, path) for path in paths] == before


@pytest.mark.behaviour("R05")
def test_compaction_keeps_the_state_and_ids_are_not_reused(tmp_path):
    options = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "100"}
    with EmbeddedBroker(options, data_dir=tmp_path / "data") as broker:
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "segment.ms": "100",
            "delete.retention.ms": "0",
        }
        broker.create_topic(TOPIC, configs=configs)
        url = broker.start_schema_registry()
        client = SchemaRegistryClient(url)
        client.register("kept-value", Schema(USER))
        client.register("dropped-value", Schema('"string"'))
        client.delete_subject("dropped-value")
        client.delete_subject("dropped-value", permanent=True)

        def is_compacted() -> bool:
            client.set_compatibility("FULL")  # a new segment after segment.ms: only closed ones are compacted
            keys = [(key["keytype"], key.get("subject")) for key, _ in read_topic(broker.bootstrap)]
            return ("SCHEMA", "dropped-value") not in keys

        eventually("the compaction of the topic", is_compacted, COMPACTION_SECONDS_MAX)
        broker.restart()
        client = SchemaRegistryClient(broker.start_schema_registry())
        assert client.get_latest("kept-value").id == 1
        assert client.register("new-value", Schema('"long"')).id == 3


@pytest.mark.parametrize(
    "body",
    [
        {"schema": '{"type":"string","doc":"\ud800"}'},
        {"schema": r'{"type":"string","doc":"\ud800"}'},
        {"schema": r'{"type":"string","title":"\ud800"}', "schemaType": "JSON"},
        {"schema": '"string"', "metadata": {"properties": {"a": "\ud800"}}},
        {"schema": '{"type":"string","maximum":NaN}'},
        {"schema": '{"type":"string","maximum":1e999}'},
    ],
)
def test_a_schema_that_is_not_unicode_or_json_is_refused_and_not_stored(box, subject, body):
    status, error = call(box.schema_registry_url, f"/subjects/{subject}/versions", body, "POST")
    assert status in (400, 422), error
    assert call(box.schema_registry_url, f"/subjects/{subject}/versions")[0] == 404


def test_a_record_that_is_not_unicode_does_not_keep_the_broker_from_starting(own):
    key = {"keytype": "SCHEMA", "subject": "theirs", "version": 1, "magic": 1}
    value = {"subject": "theirs", "version": 1, "id": 1, "schema": '{"type":"string","doc":"\ud800"}'}
    with Producer(bootstrap_servers=own.bootstrap) as producer:
        producer.send(TOPIC, json.dumps(value).encode(), key=json.dumps(key).encode()).result(READ_SECONDS_MAX)
    own.kill()
    own.start()
    client = SchemaRegistryClient(own.schema_registry_url)
    assert client.register("ours", Schema(USER)).id == 1


def test_what_another_registry_writes_to_the_topic_is_served(own):
    url = own.schema_registry_url
    value = {"subject": "theirs", "version": 3, "id": 41, "md5": "x", "schema": '"int"', "deleted": False, "ts": 1}
    records = [
        ({"keytype": "SCHEMA", "subject": "theirs", "version": 3, "magic": 1}, value),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL_TRANSITIVE"}),
        ({"keytype": "ASSOC", "magic": 0}, {"unknown": True}),
    ]
    with Producer(bootstrap_servers=own.bootstrap) as producer:
        for key, content in records:
            producer.send(TOPIC, json.dumps(content).encode(), key=json.dumps(key).encode()).result(READ_SECONDS_MAX)
        producer.send(TOPIC, b"not JSON", key=b"{").result(READ_SECONDS_MAX)
    client = SchemaRegistryClient(url)
    assert client.get_latest("theirs").id == 41
    assert client.get_compatibility() == "FULL_TRANSITIVE"
    assert client.register("ours", Schema('"long"')).id == 42


def test_a_topic_that_is_deleted_and_created_again_starts_empty(own):
    url = own.schema_registry_url
    SchemaRegistryClient(url).register("before", Schema(USER))
    own.delete_topic(TOPIC)
    status, error = call(url, "/subjects")
    assert (status, error["error_code"]) == (500, 50001)
    own.create_topic(TOPIC, configs={"cleanup.policy": "compact"})
    assert call(url, "/subjects") == (200, [])
    assert SchemaRegistryClient(url).register("after", Schema(USER)).id == 1


def test_a_schema_has_one_id_in_all_subjects_and_forms(box, subject):
    url = box.schema_registry_url
    client = SchemaRegistryClient(url)
    user = USER.replace("User", f"U{uuid.uuid4().hex}")
    first = client.register(subject, Schema(user))
    spaced = json.dumps(dict(reversed(json.loads(user).items())), indent=2)
    assert client.register(subject, Schema(spaced)).id == first.id
    other = client.register(f"other-{subject}", Schema(spaced))
    assert (other.id, other.guid) == (first.id, first.guid)
    uses = [{"subject": subject, "version": 1}, {"subject": f"other-{subject}", "version": 1}]
    assert call(url, f"/schemas/ids/{first.id}/versions") == (200, uses)
    proto = client.register(f"proto-{subject}", Schema(PROTO, SchemaFormat.PROTOBUF))
    again = Schema('syntax="proto3"; message User{string name=1;}', SchemaFormat.PROTOBUF)
    assert client.register(f"proto-{subject}", again).id == proto.id
    assert client.get_latest(f"proto-{subject}").schema.text == PROTO  # with its comment


def test_versions_continue_after_a_deletion_and_schemas_return(box, subject):
    client = SchemaRegistryClient(box.schema_registry_url)
    first = client.register(subject, Schema(USER))
    client.delete_version(subject, 1)
    again = SchemaRegistryClient(box.schema_registry_url).register(subject, Schema(USER))
    assert (again.id, again.version) == (first.id, 2)
    assert first.id is not None
    assert client.get_schema(first.id).schema.text == USER


def test_a_referenced_schema_is_not_deleted(box, subject):
    url = box.schema_registry_url
    client = SchemaRegistryClient(url)
    client.register(subject, Schema(USER))
    team = '{"type":"record","name":"Team","fields":[{"name":"lead","type":"User"}]}'
    registered = client.register(f"team-{subject}", Schema(team, references=(SchemaReference("User", subject, 1),)))
    assert call(url, f"/subjects/{subject}/versions/1/referencedby") == (200, [registered.id])
    for path in (f"/subjects/{subject}", f"/subjects/{subject}/versions/1"):
        status, error = call(url, path, method="DELETE")
        assert (status, error["error_code"]) == (422, 42206)
    assert registered.id is not None
    resolved = json.loads(client.get_schema(registered.id, format="resolved").schema.text)
    assert resolved["fields"][0]["type"]["fields"] == [{"name": "name", "type": "string"}]
    missing = Schema(team, references=(SchemaReference("User", subject, 9),))
    status, error = call(
        url, f"/subjects/x-{subject}/versions", {"schema": missing.text, "references": [{"name": "User"}]}, "POST"
    )
    assert (status, error["error_code"]) == (422, 42201)


def test_a_recursive_schema_is_registered_and_compared(box, subject):
    client = SchemaRegistryClient(box.schema_registry_url)
    node = '{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]}]}'
    client.register(subject, Schema(node))
    assert client.check_compatibility(subject, Schema(node.replace("]}", ',{"name":"x","type":"int","default":1}]}')))
    result = client.check_compatibility(subject, Schema(node.replace('["null","N"]', '"N"')))
    assert not result


def test_import_mode_keeps_ids_and_versions(box, subject):
    url = box.schema_registry_url
    path = f"/subjects/{subject}/versions"
    body = {"schema": USER.replace("User", f"U{uuid.uuid4().hex}"), "id": 900_001, "version": 7}
    status, error = call(url, path, body, "POST")
    assert (status, error["error_code"]) == (422, 42205)
    SchemaRegistryClient(url).set_mode("IMPORT", subject)
    assert call(url, path, body, "POST")[1]["id"] == 900_001
    assert call(url, path) == (200, [7])
    status, error = call(url, path, {**body, "schema": '"bytes"'}, "POST")
    assert (status, error["error_code"]) == (422, 42207)


def test_a_repeated_deletion_of_a_subject_covers_all_its_versions(own):
    # Compaction keeps the last deletion only: if it covered less than the first, versions would come back.
    url = own.schema_registry_url
    client = SchemaRegistryClient(url)
    first = client.register("s", Schema(USER))
    client.register("s", Schema(USER_WITH_AGE))
    client.delete_subject("s")
    client.set_mode("IMPORT", "s")
    status, _ = call(url, "/subjects/s/versions", {"schema": USER, "id": first.id, "version": 1}, "POST")
    assert status == 200
    assert client.delete_subject("s") == [1]
    deletions = [value for key, value in read_topic(own.bootstrap) if key["keytype"] == "DELETE_SUBJECT"]
    assert [deletion["version"] for deletion in deletions] == [2, 2]


def test_a_read_only_subject_refuses_changes(box, subject):
    client = SchemaRegistryClient(box.schema_registry_url)
    client.register(subject, Schema(USER))
    client.set_mode("READONLY", subject)
    for path, method in ((f"/subjects/{subject}/versions", "POST"), (f"/subjects/{subject}", "DELETE")):
        status, error = call(box.schema_registry_url, path, {"schema": USER_WITH_AGE}, method)
        assert (status, error["error_code"]) == (422, 42205)
    assert client.get_latest(subject).version == 1


def test_metadata_is_kept_and_finds_a_version(box, subject):
    url = box.schema_registry_url
    for number in (1, 2):
        body = {"schema": USER, "metadata": {"properties": {"major": str(number)}}}
        assert call(url, f"/subjects/{subject}/versions", body, "POST")[1]["version"] == number
    status, version = call(url, f"/subjects/{subject}/metadata?key=major&value=1")
    assert (status, version["version"], version["metadata"]) == (200, 1, {"properties": {"major": "1"}})


@pytest.mark.behaviour("R05")
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_confluents_serializers_and_deserializers_work_end_to_end(box, kind, subject):
    from confluent_kafka.schema_registry import SchemaRegistryClient as ConfluentClient
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic = box.create_topic(subject.removesuffix("-value"))
    context = SerializationContext(topic, MessageField.VALUE)
    with ConfluentClient({"url": box.schema_registry_url}) as client:
        serialize, deserialize, value, plain = codec(kind, client)
        producer = confluent_kafka.Producer({"bootstrap.servers": box.bootstrap})
        producer.produce(topic, serialize(value, context))
        assert producer.flush(READ_SECONDS_MAX) == 0
        config = {"bootstrap.servers": box.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(config)
        try:
            consumer.subscribe([topic])
            record = consumer.poll(READ_SECONDS_MAX)
            assert record is not None
            assert record.error() is None
            assert plain(deserialize(record.value(), context)) == plain(value)
        finally:
            consumer.close()


def codec(kind: str, client: Any) -> tuple[Any, Any, Any, Any]:
    """Return Confluent's serializer and deserializer, a value, and a function that makes values comparable."""
    if kind == "avro":
        from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

        return AvroSerializer(client, USER), AvroDeserializer(client), {"name": "Ann"}, dict
    if kind == "json":
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

        text = '{"title":"User","type":"object","properties":{"name":{"type":"string"}}}'
        return JSONSerializer(text, client), JSONDeserializer(text, schema_registry_client=client), {"name": "A"}, dict
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.Add(user_file())
    message_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("User"))
    options = {"use.deprecated.format": False}
    return (
        ProtobufSerializer(message_type, client, options),
        ProtobufDeserializer(message_type, options, client),
        message_type(name="Ann"),
        lambda each: each.SerializeToString(),
    )


def user_file() -> Any:
    """Return the FileDescriptorProto of a message User with a name."""
    from google.protobuf import descriptor_pb2

    number = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="user.proto", syntax="proto3")
    file.message_type.add(name="User").field.add(
        name="name", number=1, type=number.TYPE_STRING, label=number.LABEL_OPTIONAL, json_name="name"
    )
    return file


def test_a_descriptor_becomes_a_text_and_is_returned_as_a_descriptor(box, subject):
    file = user_file()
    body = {"schemaType": "PROTOBUF", "schema": base64.b64encode(file.SerializeToString()).decode()}
    url = box.schema_registry_url
    schema_id = call(url, f"/subjects/{subject}/versions", body, "POST")[1]["id"]
    assert "string name = 1;" in call(url, f"/schemas/ids/{schema_id}")[1]["schema"]
    text = call(url, f"/schemas/ids/{schema_id}?format=serialized")[1]["schema"]
    returned = type(file)()
    returned.ParseFromString(base64.b64decode(text))
    assert returned.message_type == file.message_type
    assert call(url, f"/subjects/{subject}", body, "POST")[1]["id"] == schema_id


def test_users_have_passwords_and_other_hosts_and_sites_are_refused():
    with EmbeddedBroker({"headrace.schema.registry.users": "ann:secret"}, schema_registry=True) as broker:
        url = broker.schema_registry_url
        assert call(url, "/subjects")[0] == 401
        assert call(url, "/subjects", Authorization="Basic YW5uOndyb25n")[0] == 401
        client = SchemaRegistryClient(url, {"schema.registry.basic.auth.user.info": "ann:secret"})
        assert client.get_subjects() == []
        assert call(url, "/", Host="registry.example.com")[0] == 421
        assert call(url, "/", Origin="http://pages.example.com")[0] == 403


def test_a_registry_is_for_a_standalone_broker_and_a_valid_address():
    with EmbeddedBroker() as broker, pytest.raises(IllegalStateError, match="there is no schema registry"):
        _ = broker.schema_registry_url
    with pytest.raises(ConfigError, match=r"expected HOST:PORT, got 'nowhere'"):
        EmbeddedBroker({"headrace.schema.registry.listener": "nowhere"}).start()
