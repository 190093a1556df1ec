"""The registry in the broker beside Apicurio: same requests, same verdicts, and the differences with their reasons."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.client.registry import SchemaRegistryClient
from headrace.schema import Schema, SchemaFormat
from tests.unit.test_registry_compatibility import AVRO_CASES, JSON_CASES, PROTOBUF_CASES

RESPONSE_SECONDS_MAX = 20
USER = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
USER_WITH_AGE = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"a","type":"int"}]}'


def is_compatible(url: str, format: SchemaFormat, old: str, new: str) -> bool:
    client = SchemaRegistryClient(url, {"schema.registry.max.retries": 0})
    subject = uuid.uuid4().hex
    client.register(subject, Schema(old, format))
    client.set_compatibility("BACKWARD", subject)
    return bool(client.check_compatibility(subject, Schema(new, format)))


def differences(apicurio: str, ours: str, format: SchemaFormat, cases: list[tuple[str, str]]) -> list[int]:
    """Return the numbers of the cases with another verdict."""
    return [
        number
        for number, (old, new) in enumerate(cases)
        if is_compatible(apicurio, format, old, new) != is_compatible(ours, format, old, new)
    ]


def test_avro_verdicts_are_those_of_apicurio(apicurio_registry, box):
    cases = [(json.dumps(old), json.dumps(new)) for old, new, _ in AVRO_CASES]
    assert differences(apicurio_registry.url, box.schema_registry_url, SchemaFormat.AVRO, cases) == []


def test_json_verdicts_are_those_of_apicurio_except_for_known_ones(apicurio_registry, box):
    def closed(node: Any) -> str:
        return json.dumps({"type": "object", "properties": {"p": node}, "additionalProperties": False})

    # Apicurio fails with an internal error on draft 2020-12: it is left out.
    cases = [(closed(old), closed(new)) for old, new, _ in JSON_CASES if "prefixItems" not in str(new)]
    different = differences(apicurio_registry.url, box.schema_registry_url, SchemaFormat.JSON, cases)
    assert [json.loads(cases[number][1])["properties"]["p"] for number in different] == [
        {"const": True},  # 1 became true: Apicurio accepts it
        # Compatible for Confluent, not for Apicurio:
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}},  # a new property that allows everything
        {  # a new required property with a default
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 0}},
            "required": ["b"],
            "additionalProperties": False,
        },
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},  # instead of a string only
        {"type": "string"},  # instead of allOf with a string
    ]


def test_protobuf_verdicts_are_those_of_apicurio_except_for_known_ones(apicurio_registry, box):
    cases = [(old, new) for old, new, _ in PROTOBUF_CASES]
    different = differences(apicurio_registry.url, box.schema_registry_url, SchemaFormat.PROTOBUF, cases)
    reasons = {
        # Apicurio has the rules of another linter. It refuses, and Confluent accepts:
        1: "a field is removed without being reserved",
        2: "a field is renamed",
        4: "string becomes bytes",
        10: "an enum becomes a number",
        12: "a label of a string changes",
        13: "the type of a map's values changes within its group",
        21: "a whole oneof is removed",
        # Apicurio accepts, and Confluent refuses:
        7: "the package changes",
        8: "a message is removed",
        9: "an inner message is removed",
        17: "fields become exclusive",
        19: "a field moves into a oneof that exists",
    }
    assert different == sorted(reasons)


def send(url: str, method: str, path: str, body: object) -> tuple[int, Any]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=RESPONSE_SECONDS_MAX)
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    try:
        connection.request(method, parts.path + path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


REQUESTS = [
    ("GET", "/subjects/S/versions", None),
    ("POST", "/subjects/S/versions", {"schema": USER}),
    ("POST", "/subjects/S/versions", {"schema": USER}),
    ("GET", "/subjects/S/versions", None),
    ("GET", "/subjects/S/versions/1", None),
    ("GET", "/subjects/S/versions/latest", None),
    ("GET", "/subjects/S/versions/1/schema", None),
    ("GET", "/subjects/S/versions/9", None),
    ("GET", "/subjects/none/versions/1", None),
    ("POST", "/subjects/S", {"schema": USER}),
    ("POST", "/subjects/S", {"schema": USER_WITH_AGE}),
    ("POST", "/subjects/none", {"schema": USER}),
    ("POST", "/subjects/S/versions", {"schema": "{"}),
    ("GET", "/schemas/ids/999999", None),
    ("GET", "/schemas/types", None),
    ("PUT", "/config/S", {"compatibility": "BACKWARD"}),
    ("GET", "/config/S", None),
    ("PUT", "/config/S", {"compatibility": "WRONG"}),
    ("POST", "/subjects/S/versions", {"schema": USER_WITH_AGE}),
    ("POST", "/compatibility/subjects/S/versions/latest", {"schema": USER_WITH_AGE}),
    ("POST", "/compatibility/subjects/S/versions", {"schema": USER}),
    ("GET", "/mode", None),
    ("DELETE", "/subjects/S/versions/9", None),
    ("DELETE", "/subjects/S/versions/1", None),
    ("GET", "/subjects/S/versions/1", None),
    ("GET", "/subjects/S/versions", None),
    ("DELETE", "/subjects/none", None),
]


def test_the_same_requests_have_the_same_responses_as_at_apicurio(apicurio_registry, box, subject):
    for method, path, body in REQUESTS:
        path = path.replace("/S", f"/{subject}")
        theirs, ours = (send(url, method, path, body) for url in (apicurio_registry.url, box.schema_registry_url))
        # Ids and words differ; Apicurio has neither GUIDs nor the version of a registration.
        own = ("id", "guid", "message", "normalize", *(("version",) if method == "POST" and "versions" in path else ()))
        assert ours[0] == theirs[0], (method, path, ours, theirs)
        assert _without(ours[1], own) == _without(theirs[1], own), (method, path)


def _without(value: Any, names: tuple[str, ...]) -> Any:
    return {name: item for name, item in value.items() if name not in names} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        # Where Apicurio differs from Confluent's registry, ours does as that one.
        ("GET", "/subjects/S/versions/x", None, (422, 42202)),
        ("GET", "/subjects/S/versions/0", None, (422, 42202)),
        ("POST", "/subjects/S/versions", {"schema": USER, "schemaType": "XML"}, (422, 42201)),
        ("GET", "/config/S", None, (404, 40408)),
        ("GET", "/mode/S", None, (404, 40409)),
        ("PUT", "/mode/S", {"mode": "WRONG"}, (422, 42204)),
        ("DELETE", "/subjects/S?permanent=true", None, (404, 40405)),
        ("DELETE", "/subjects/S/versions/1?permanent=true", None, (404, 40407)),
        ("GET", "/nowhere", None, (404, 404)),
        ("POST", "/config", None, (405, 405)),
        ("PUT", "/config", ["not an object"], (400, 400)),
        ("PUT", "/config/S", {"alias": "other"}, (422, 422)),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": USER}, (422, 42208)),
        ("POST", "/subjects/S/versions", {"schema": json.dumps({"type": "enum", "name": "E"})}, (422, 42201)),
        ("POST", "/subjects/S/versions", {"schema": json.dumps([]) * 100_000}, (422, 42201)),
    ],
)
def test_error_codes_are_those_of_confluents_registry(box, subject, method, path, body, code):
    SchemaRegistryClient(box.schema_registry_url).register(subject, Schema(USER))
    status, error = send(box.schema_registry_url, method, path.replace("/S", f"/{subject}"), body)
    assert (status, error["error_code"]) == code
