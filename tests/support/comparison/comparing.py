"""Sends a request to two brokers, and compares the responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.client.admin import AdminClient, TopicPartition
from headrace.wire.api import APIS, api_name, request_class
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.layout import Record
from headrace.wire.records import encode
from headrace.wire.schema import RequestMessage, Struct
from tests.support.peers import librdkafka
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection

KEYS = {api_name(key): key for key in APIS}
TIME = 1_700_000_000_000
NOBODY = "nobody"
ID_OF_NOBODY = bytes(range(16))
ALL_VERSIONS = range(100)
HUNG_UP = "it hung up"

# What brokers may choose, or cannot know of each other.
CHOSEN = frozenset(
    {
        *("throttle_time_ms", "cluster_id", "port", "error_message", "session_id", "log_dir", "total_bytes"),
        *("usable_bytes", "producer_id", "transaction_start_time_ms", "last_timestamp", "member_id", "documentation"),
        *("log_append_time_ms", "topic_id", "synonyms"),
    }
)


class World:
    """A broker, with a topic of two partitions, a group that has committed, and an open transaction."""

    def __init__(self, broker: Broker, topic: str, group: str, transactional_id: str) -> None:
        self.bootstrap, self.topic, self.group, self.transactional_id = broker.bootstrap, topic, group, transactional_id
        self.connection = Connection(broker.bootstrap)
        message = self.connection.call(ApiVersionsRequest(), 0)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in message.api_keys}
        broker.create_topic(topic, 2, {"max.message.bytes": "2000000"})
        records = [Record(n, TIME + n, b"key", b"value", ()) for n in range(10)]
        assert self.connection.produce(topic, encode(records)).error_code == 0
        with AdminClient(broker.bootstrap) as admin:
            self.topic_id = admin.describe_topics([topic])[topic].topic_id.bytes
            admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4})
            self._open = librdkafka.transactional(broker.bootstrap, transactional_id)
            self._open.begin_transaction()
            librdkafka.append(self._open, topic, [Record(0, TIME, None, b"open", ())], partition=1)
            description = admin.describe_transactions([transactional_id])[transactional_id]
            self.transaction = (description.producer_id, description.producer_epoch)
        self.producer_id = self.call("InitProducerId", 4, {"transactional_id": None}).producer_id

    def call(self, name: str, version: int, fields: Mapping[str, Any]) -> Any:
        """Return the response, or that there was none."""
        try:
            return self.connection.call(request(name, version, fields), version)
        except OSError:
            self.connection.close()
            self.connection = Connection(self.bootstrap)
            return HUNG_UP

    def close(self) -> None:
        self._open.abort_transaction(librdkafka.SECONDS_MAX)
        self.connection.close()


class RequestCase(NamedTuple):
    """A request: its name, its fields (without those that a version lacks), and its versions."""

    name: str
    fields: Callable[[World], Mapping[str, Any]]
    versions: range = ALL_VERSIONS

    def compare(self, ours: World, theirs: World) -> list[str]:
        """Return the differences between the responses of two brokers, one line each."""
        key = KEYS[self.name]
        first = max(ours.versions[key][0], theirs.versions[key][0])
        last = min(ours.versions[key][1], theirs.versions[key][1])
        versions = [version for version in range(first, last + 1) if version in self.versions]
        assert versions, f"no version of {self.name} is known to both"
        unequal = []
        for version in versions:
            values = [comparable(world.call(self.name, version, self.fields(world))) for world in (ours, theirs)]
            unequal += [f"{self.name} v{version}{line}" for line in differences(*values)]
        return unequal


def request(name: str, version: int, fields: Mapping[str, Any]) -> RequestMessage[Any]:
    """Return a request from its fields by name; those that the version lacks are left out."""
    message = _struct(request_class(KEYS[name]), version, fields)
    assert isinstance(message, RequestMessage)
    return message


def _struct(cls: type[Struct], version: int, fields: Mapping[str, Any]) -> Struct:
    unknown = fields.keys() - cls.fields.keys()
    assert not unknown, f"{cls.__name__} has no {unknown}"
    values = {}
    for name, value in fields.items():
        field = cls.fields[name]
        if version not in field.versions:
            continue
        if isinstance(field.element, type) and value is not None:
            element = field.element
            is_one = isinstance(value, Mapping)
            value = _struct(element, version, value) if is_one else [_struct(element, version, each) for each in value]
        values[name] = value
    return cls(**values)


def comparable(message: Any, name: str = "") -> Any:
    """Return a response as plain values, without fields that a broker may choose."""
    if name in CHOSEN:
        return ...
    if isinstance(message, Struct):
        return {field: comparable(value, field) for field, value in zip(message.fields, message, strict=False)}
    if isinstance(message, tuple):
        items = [comparable(item) for item in message]
        return sorted(items, key=repr) if items and isinstance(items[0], dict) else items
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    return message


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return the differences between two comparable responses, one line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{path}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{path}[{index}]")]
    return [] if ours == theirs else [f"{path}: ours {ours!r}, Apache's {theirs!r}"]
