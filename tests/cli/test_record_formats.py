"""headrace produce and consume with schemas: JSON in and out, Avro in the topic."""

from __future__ import annotations

import json

import pytest

from headrace import Producer
from headrace.schema import framing
from tests.support.cli_runner import refused, run_cli
from tests.support.scripted_registry import SmallRegistry
from tests.support.topics import new_topic

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "photo", "type": ["null", "bytes"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
ORDERS = [
    {"id": 1, "amount": "9.50", "at": "2026-03-01T12:00:00Z", "photo": None, "tags": {"a": 1}},
    {"id": 2, "amount": "0.07", "at": "2026-03-01T12:00:01.250000Z", "photo": {"base64": "//4="}, "tags": {}},
]


@pytest.fixture
def registry():
    server = SmallRegistry()
    yield server
    server.close()


@pytest.fixture
def topic(headrace_broker):
    return new_topic(headrace_broker, "cli-formats")


@pytest.fixture
def at(headrace_broker, registry):
    return ("-b", headrace_broker.bootstrap, "--schema-registry", registry.url, "--value-format", "avro")


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.fixture
def produce(tmp_path):
    """Run it with a text in a file."""

    def run(topic, *arguments, text):
        file = tmp_path / "input"
        file.write_text(text)
        return run_cli("produce", topic, file, *arguments)

    return run


@pytest.fixture
def produced(produce):
    def run(*arguments, text):
        done = produce(*arguments, text=text)
        assert done.exit_code == 0, done.output

    return run


def consumed(*arguments):
    done = run_cli("consume", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.behaviour("R04")
def test_lines_of_json_are_sent_as_avro_and_printed_as_json(produced, registry, topic, at, tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    produced(topic, *at, "--schema-file", file, "--register-schema", text=lines(ORDERS[0]))
    produced(topic, *at, text=lines(ORDERS[1], *[ORDERS[0]] * 3))
    assert len(registry.subjects[f"{topic}-value"]) == 1
    expected = [*ORDERS, *[ORDERS[0]] * 3]
    # Arrow's empty map is an empty list, and JSON cannot tell.
    assert [row | {"tags": row["tags"] or {}} for row in consumed(topic, *at)] == expected


def test_json_records_can_be_copied_with_their_types(produced, registry, topic, at, headrace_broker):
    copy = new_topic(headrace_broker, "cli-formats-copy")
    for name in (topic, copy):
        registry.add(f"{name}-value", json.dumps(ORDER))
        registry.add(f"{name}-key", '"string"')
    typed = (*at, "--key-format", "avro", "--format", "json")
    produced(topic, *typed, text=lines({"key": "k1", "value": ORDERS[0]}, {"key": None, "value": None}))
    text = run_cli("consume", topic, *typed).stdout
    produced(copy, *typed, text=text)
    assert [(row["key"], row["value"]) for row in consumed(copy, *typed)] == [("k1", ORDERS[0]), (None, None)]


def test_a_key_for_all_records_is_json(produced, registry, topic, at, headrace_broker):
    registry.add(f"{topic}-value", '"string"')
    registry.add(f"{topic}-key", '"long"')
    produced(topic, *at, "--key-format", "avro", "-k", "7", text='"x"\n')
    [row] = consumed(topic, *at, "--key-format", "avro", "--format", "json")
    assert (row["key"], row["value"]) == (7, "x")


def test_the_reader_may_choose_a_version(produced, registry, topic, at):
    registry.add(f"{topic}-value", json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))
    registry.add(f"{topic}-value", json.dumps(ORDER))
    produced(topic, *at, text=lines(ORDERS[0]))
    assert consumed(topic, *at, "--reader-schema", "1") == [{"id": 1}]


def test_records_that_cannot_be_decoded_are_named(registry, topic, at, headrace_broker):
    registry.add(f"{topic}-value", '"string"')
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        for value in (b"plain", framing.encode_id(1) + b"\x02x", framing.encode_id(99)):
            producer.send(topic, value, partition=0)
    done = run_cli("consume", topic, *at)
    assert done.exit_code == 1
    assert done.stdout == '"x"\n'
    assert f"error: {topic}-0 at offset 0: value: no schema id: expected the magic byte 0" in done.stderr
    assert f"error: {topic}-0 at offset 2: value: schema id 99: " in done.stderr
    assert "2 records could not be decoded" in done.stderr
    rows = [json.loads(line) for line in run_cli("consume", topic, *at, "--format", "json").stdout.splitlines()]
    assert [(row["value"], "value_error" in row) for row in rows] == [(None, True), ("x", False), (None, True)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1', "record 2 of the input: value: "),
        ('{"id": 1, "colour": 2}', "unknown field 'colour'; expected id, amount, at, photo, tags"),
        (json.dumps({**ORDERS[0], "at": "noon"}), "at: expected timestamp"),
        (json.dumps({**ORDERS[0], "id": "x"}), "expected struct"),
        (json.dumps({**ORDERS[0], "id": None}), "field id: null in a field that is not nullable"),
    ],
)
def test_input_that_does_not_fit_is_named_and_what_came_before_is_sent(produce, registry, topic, at, line, message):
    registry.add(f"{topic}-value", json.dumps(ORDER))
    done = produce(topic, *at, text=lines(ORDERS[0]) + line + "\n" + lines(ORDERS[0]))
    assert done.exit_code == 1
    assert "record 2 of the input: value: " in done.output
    assert message in done.output
    assert [row["id"] for row in consumed(topic, *at)] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--value-format", "avro"), "--value-format and --key-format need --schema-registry URL"),
        (("--schema-registry", "http://localhost:1"), "--schema-registry needs --value-format or --key-format"),
    ],
)
def test_formats_and_registry_go_together(arguments, message):
    assert message in refused(2, "consume", "orders", *arguments)


def test_options_of_the_registry_may_be_in_a_file(produced, registry, topic, at, headrace_broker, tmp_path):
    registry.add(f"{topic}-value", '"string"')
    file = tmp_path / "client.properties"
    file.write_text(
        f"bootstrap.servers={headrace_broker.bootstrap}\nvalue.format=avro\nschema.registry.url={registry.url}\n"
    )
    produced(topic, "--config", file, text='"x"\n')
    assert consumed(topic, "--config", file) == ["x"]


@pytest.mark.parametrize(("line", "reason"), [(b"nonsense", "not JSON: "), (b"\xff\xfe1\x00", "not JSON in UTF-8: ")])
def test_a_line_that_is_not_json_is_named_as_such(at, topic, registry, tmp_path, line, reason):
    registry.add(f"{topic}-value", '"long"')
    path = tmp_path / "numbers"
    path.write_bytes(b"5\n" + line + b"\n")
    assert f"record 2 of the input: value: {reason}" in refused(1, "produce", *at, topic, path)
