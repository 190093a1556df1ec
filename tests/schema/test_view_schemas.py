"""What the live view shows of schemas, without a browser: decoded messages, versions, and its pages over HTTP."""

from __future__ import annotations

import json
import urllib.request
import uuid

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.fetch_data import FetchedRecord
from headrace.schema import framing
from headrace.ui.schemas import SchemaViewer
from tests.support.avro_types import fastavro_bytes
from tests.support.live_view import LiveView
from tests.support.scripted_registry import SmallRegistry

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
V2 = {"type": "record", "name": "Order", "fields": [*V1["fields"], {"name": "note", "type": "string", "default": ""}]}


@pytest.fixture
def registry():
    server = SmallRegistry()
    for schema in (V1, V2):
        server.add("orders-value", json.dumps(schema))
    server.add("orders-key", '"string"')
    yield server
    server.close()


def viewer(registry):
    return SchemaViewer({"schema.registry.url": registry.url})


def record(value, key=None, headers=()):
    return FetchedRecord("orders", 0, 0, 0, key, value, tuple(headers))


@pytest.mark.behaviour("R04")
def test_each_message_is_decoded_with_its_own_schema(registry):
    payload = fastavro_bytes(V1, {"id": 9})
    guid = framing.encode_guid(registry.guid(1))
    decoded = viewer(registry).decode(
        [
            record(framing.encode_id(1) + fastavro_bytes(V1, {"id": 7}), framing.encode_id(3) + b"\x02k"),
            record(framing.encode_id(2) + fastavro_bytes(V2, {"id": 8, "note": "x"})),
            record(payload, headers=[(framing.SCHEMA_ID_HEADERS["value"], guid)]),
        ]
    )
    assert decoded == [
        {"key": ('"k"', "Avro, schema id 3"), "value": ('{"id": 7}', "Avro, schema id 1")},
        {"value": ('{"id": 8, "note": "x"}', "Avro, schema id 2")},
        {"value": ('{"id": 9}', f"Avro, schema GUID {uuid.UUID(int=1)}")},
    ]


def test_bytes_without_a_known_schema_stay_as_they_are(registry):
    assert (
        viewer(registry).decode(
            [record(b"plain"), record(None), record(b""), record(framing.encode_id(77)), record(b"\0\xff\xff\xff\xff")]
        )
        == [{}] * 5
    )


def test_a_damaged_message_says_why_it_is_not_decoded(registry):
    [decoded] = viewer(registry).decode([record(framing.encode_id(2) + b"\x10")])
    assert decoded["value"].text is None
    assert decoded["value"].note == "schema id 2: field note at byte 6: the value ends too early"


def test_messages_are_not_lost_while_the_registry_is_down(registry):
    registry.is_down = True
    [decoded] = viewer(registry).decode([record(framing.encode_id(2) + b"\x10")])
    assert decoded["value"].text is None
    assert "503" in decoded["value"].note


def test_versions_are_listed_from_the_newest(registry):
    versions = viewer(registry).versions("orders", "value")
    assert [(version.version, version.id) for version in versions] == [(2, 2), (1, 1)]
    assert viewer(registry).versions("nothing", "value") == []


def test_the_schema_page_is_served_with_and_without_a_registry(registry):
    with EmbeddedBroker() as broker:
        for arguments, text in (
            (("--schema-registry", registry.url), "Schema of values"),
            ((), "No schema registry is configured"),
        ):
            with LiveView(broker.bootstrap, *arguments) as view:
                with urllib.request.urlopen(f"{view.url}/topics/orders/schema", timeout=30) as response:
                    content = response.read().decode()
                assert text in content
                with urllib.request.urlopen(f"{view.url}/topics/orders/messages", timeout=30) as response:
                    assert "Read messages" in response.read().decode()
