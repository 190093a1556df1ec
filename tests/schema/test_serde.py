"""Columns of values that name their schema, decoded and encoded with a small registry."""

from __future__ import annotations

import json
import pickle
import random

import pyarrow as pa
import pytest

from headrace import errors
from headrace.client.registry import SchemaRegistryClient
from headrace.client.schema_decoder import UNKNOWN_PER_BATCH_MAX, UNKNOWN_TTL_MS, SchemaDecoder
from headrace.client.schema_encoder import SchemaEncoder
from headrace.client.serde import RowCause, SerdeSettings, registry_from
from headrace.schema import Schema, SchemaFormat, SubjectNameStrategy, framing
from tests.support.avro_types import fastavro_bytes
from tests.support.fake_network import FakeClock
from tests.support.scripted_registry import SmallRegistry

QUICK = {"schema.registry.retries.wait.ms": 1, "schema.registry.max.retries": 1}
V1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}
TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("customer", pa.string())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def server():
    server = SmallRegistry()
    yield server
    server.close()


@pytest.fixture
def registry(server):
    return SchemaRegistryClient(server.url, QUICK)


def settings(**changes) -> SerdeSettings:
    return SerdeSettings("value", SchemaFormat.AVRO, **changes)


def framed(schema_id, schema, value) -> bytes:
    return framing.encode_id(schema_id) + fastavro_bytes(schema, value)


def order(number, schema_id, schema=V1):
    value = {"id": number, "customer": f"c{number}"}
    return framed(schema_id, schema, value | ({"currency": "USD"} if schema is V2 else {}))


@pytest.fixture
def ids(server):
    return [server.add("orders-value", json.dumps(schema)) for schema in (V1, V2)]


def binary(*values):
    return pa.array(values, pa.binary())


# -- decoding ----------------------------------------------------------------------------------------


def test_a_batch_of_one_schema_is_decoded_to_the_latest_type(registry, server, ids):
    decoder = SchemaDecoder(registry, settings(reader="latest"))
    column, row_errors = decoder.decode("orders", binary(order(1, ids[0]), None, order(2, ids[0])))
    column.validate(full=True)
    assert column.type == decoder.arrow_type("orders")
    assert column.to_pylist() == [
        {"id": 1, "customer": "c1", "currency": "EUR"},
        None,
        {"id": 2, "customer": "c2", "currency": "EUR"},
    ]
    assert row_errors == []


def test_rows_of_several_schemas_keep_their_order(registry, ids):
    numbers = random.Random(7).choices([0, 1, None], k=500)
    values = [
        None if number is None else order(row, ids[number], [V1, V2][number]) for row, number in enumerate(numbers)
    ]
    column, row_errors = SchemaDecoder(registry, settings(reader="latest")).decode("orders", binary(*values))
    column.validate(full=True)
    assert row_errors == []
    assert column.to_pylist() == [
        None if number is None else {"id": row, "customer": f"c{row}", "currency": ["EUR", "USD"][number]}
        for row, number in enumerate(numbers)
    ]


def test_a_slice_of_a_column_is_decoded_like_a_copy(registry, ids):
    values = binary(b"junk", order(1, ids[0]), order(2, ids[1], V2), order(3, ids[0]))
    decoder = SchemaDecoder(registry, settings(reader=1))
    assert [row["id"] for row in decoder.decode("orders", values[1:]).column.to_pylist()] == [1, 2, 3]
    assert decoder.decode("orders", values[3:]).column.to_pylist() == [{"id": 3, "customer": "c3"}]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())])
def test_values_may_have_any_binary_type(registry, ids, kind):
    values = binary(order(1, ids[0]), order(2, ids[1], V2), b"\0\0")
    values = values.dictionary_encode() if pa.types.is_dictionary(kind) else values.cast(kind)
    column, row_errors = SchemaDecoder(registry, settings(reader=1)).decode("orders", values)
    assert [row and row["id"] for row in column.to_pylist()] == [1, 2, None]
    assert [error.cause for error in row_errors] == [RowCause.NO_SCHEMA_ID]


@pytest.mark.parametrize("reader", [1, Schema(json.dumps(V1))], ids=["version", "text"])
def test_the_reader_may_be_a_version_or_a_text(registry, ids, reader):
    decoder = SchemaDecoder(registry, settings(reader=reader))
    assert decoder.arrow_type("orders") == TYPE
    assert decoder.decode("orders", binary(order(1, ids[1], V2))).column.to_pylist() == [{"id": 1, "customer": "c1"}]


def test_only_the_chosen_columns_are_decoded(registry, ids):
    decoder = SchemaDecoder(registry, settings(reader="latest"), columns=["currency"])
    assert decoder.arrow_type("orders").names == ["currency"]
    values = binary(order(1, ids[0]), order(2, ids[1], V2))
    assert decoder.decode("orders", values).column.to_pylist() == [{"currency": "EUR"}, {"currency": "USD"}]


def test_without_a_reader_each_value_has_its_own_type(registry, ids):
    decoder = SchemaDecoder(registry, settings())
    values = binary(order(1, ids[0]), order(2, ids[1], V2), b"x")
    assert decoder.decode("orders", values[:1]).column.type == TYPE
    with pytest.raises(errors.SchemaError, match=r"values of topic 'orders' have several types: .*set reader\.schema"):
        decoder.decode("orders", values)
    objects, row_errors = decoder.decode_objects("orders", values)
    assert objects == [{"id": 1, "customer": "c1"}, {"id": 2, "customer": "c2", "currency": "USD"}, None]
    assert [error.row for error in row_errors] == [2]
    with pytest.raises(errors.ConfigError, match="no reader's schema for topic 'orders'"):
        decoder.arrow_type("orders")


def test_bad_rows_are_null_and_name_their_schema_and_cause(registry, server, ids):
    other = server.add("other-value", '{"type": "object"}', "JSON")
    broken = server.add("broken-value", "{")
    foreign = server.add("foreign-value", json.dumps({**V1, "name": "Refund"}))
    values = binary(
        order(1, ids[0]),
        b"plain text",
        b"",
        b"\0\0\0",
        framing.encode_id(77) + b"x",
        order(2, ids[0])[:-1],
        order(3, other),
        order(4, broken),
        order(5, foreign),
        b"\0\xff\xff\xff\xff\0",
        order(6, ids[1], V2),
    )
    column, row_errors = SchemaDecoder(registry, settings(reader=1)).decode("orders", values)
    column.validate(full=True)
    assert [row and row["id"] for row in column.to_pylist()] == [1, *[None] * 9, 6]
    assert [(error.row, error.cause.name, error.schema_id) for error in row_errors] == [
        (1, "NO_SCHEMA_ID", None),
        (2, "NO_SCHEMA_ID", None),
        (3, "NO_SCHEMA_ID", None),
        (4, "UNKNOWN_SCHEMA", 77),
        (5, "INVALID_DATA", ids[0]),
        (6, "OTHER_FORMAT", other),
        (7, "INVALID_SCHEMA", broken),
        (8, "INCOMPATIBLE_SCHEMA", foreign),
        (9, "UNKNOWN_SCHEMA", -1),
    ]
    texts = [str(error) for error in row_errors]
    assert texts[0].startswith("row 1: no schema id: expected the magic byte 0 and four bytes of id, got 70 6c")
    assert "schema id 77: " in texts[3]
    assert "change schema.registry.url" in texts[3]
    assert texts[4] == f"row 5: schema id {ids[0]}: field customer at byte 7: the value ends too early"
    assert "format is json, value.format is avro" in texts[5]


def test_a_batch_of_only_bad_rows_has_the_readers_type(registry, ids):
    decoder = SchemaDecoder(registry, settings(reader=1))
    for values in (binary(b"x", None), binary(None, None), binary(), binary(framing.encode_id(99))):
        column, _ = decoder.decode("orders", values)
        column.validate(full=True)
        assert column.type == TYPE
        assert column.null_count == len(column) == len(values)


def test_an_unknown_id_is_requested_again_only_after_a_while(registry, server, ids):
    clock = FakeClock()
    decoder = SchemaDecoder(registry, settings(reader=1), clock=clock)
    late = len(server.schemas) + 1
    values = binary(order(1, late), order(2, ids[0]), order(3, late))
    for _ in range(3):
        assert len(decoder.decode("orders", values).errors) == 2
    assert server.requests.count(("GET", f"/schemas/ids/{late}")) == 1
    server.add("late-value", json.dumps({**V1, "doc": "late"}))
    clock.advance(UNKNOWN_TTL_MS)
    assert decoder.decode("orders", values).errors == []


def test_a_topic_full_of_unknown_ids_does_not_flood_the_registry(registry, server, ids):
    decoder = SchemaDecoder(registry, settings(reader=Schema(json.dumps(V1))))
    decoder.decode("orders", binary(order(1, ids[0])))
    unknown = [framing.encode_id(1_000 + number) for number in range(3 * UNKNOWN_PER_BATCH_MAX)]
    before = len(server.requests)
    column, row_errors = decoder.decode("orders", binary(*unknown, order(2, ids[0])))
    assert len(server.requests) - before == UNKNOWN_PER_BATCH_MAX
    assert column[-1]["id"].as_py() == 2  # its schema was known
    assert [error.row for error in row_errors] == [*range(len(unknown))]
    assert {error.cause for error in row_errors} == {RowCause.UNKNOWN_SCHEMA}
    assert "not requested, after 1,000 unknown schema ids in a batch of topic 'orders'" in row_errors[-1].text


def test_known_schemas_need_no_registry(registry, server, ids):
    decoder = SchemaDecoder(registry, settings(reader=1))
    assert decoder.topic_schema("orders").id == ids[0]
    server.is_down = True
    assert decoder.decode("orders", binary(order(2, ids[0]), b"x")).column[0]["id"].as_py() == 2
    with pytest.raises(errors.RegistryUnavailableError):
        decoder.decode("orders", binary(order(3, ids[1], V2)))
    server.is_down = False
    assert decoder.decode("orders", binary(order(3, ids[1], V2))).errors == []


def test_the_readers_schema_of_a_topic_does_not_change(registry, server):
    server.add("orders-value", json.dumps(V1))
    decoder = SchemaDecoder(registry, settings(reader="latest"))
    assert decoder.arrow_type("orders") == TYPE
    newer = server.add("orders-value", json.dumps(V2))
    registry.clear_cache()
    assert decoder.decode("orders", binary(order(1, newer, V2))).column.type == TYPE
    assert SchemaDecoder(registry, settings(reader="latest")).arrow_type("orders") != TYPE


def test_a_pinned_schema_is_pickled_and_needs_no_registry(registry, server, ids):
    driver = SchemaDecoder(registry, settings(reader=1))
    pinned = pickle.loads(pickle.dumps({"orders": driver.topic_schema("orders")}))
    server.is_down = True
    worker = SchemaDecoder(SchemaRegistryClient(server.url, QUICK), settings(reader="latest"), pinned=pinned)
    assert worker.arrow_type("orders") == TYPE


def test_the_schema_id_may_be_in_a_header(registry, server, ids):
    payloads = [fastavro_bytes(V1, {"id": number, "customer": None}) for number in range(3)]
    guid = framing.encode_guid(server.guid(ids[0]))
    name = framing.SCHEMA_ID_HEADERS["value"]
    headers = pa.array(
        [
            [{"key": "trace", "value": b"1"}, {"key": name, "value": b"old"}, {"key": name, "value": guid}],
            None,
            [],
            [{"key": name, "value": b"\1short"}],
            [{"key": name, "value": framing.encode_guid(server.guid(88))}],
            [{"key": "__key_schema_id", "value": guid}],
            [{"key": name, "value": guid}],
        ],
        HEADERS,
    )
    values = binary(payloads[0], order(7, ids[1], V2), b"x", payloads[1], payloads[1], payloads[1], payloads[2])
    decoder = SchemaDecoder(registry, settings(reader=1))
    column, row_errors = decoder.decode("orders", values, headers)
    assert [row and row["id"] for row in column.to_pylist()] == [0, 7, None, None, None, None, 2]
    assert [(error.row, error.cause.name) for error in row_errors] == [
        (2, "NO_SCHEMA_ID"),
        (3, "NO_SCHEMA_ID"),
        (4, "UNKNOWN_SCHEMA"),
        (5, "NO_SCHEMA_ID"),
    ]
    assert row_errors[2].schema_id == server.guid(88)
    assert decoder.decode("orders", values[1:2], headers[1:2]).errors == []
    assert decoder.decode("orders", values[6:], headers[6:]).column[0]["id"].as_py() == 2


def test_references_are_resolved(registry, server):
    server.add("customer", json.dumps({"type": "record", "name": "Customer", "fields": [{"name": "n", "type": "int"}]}))
    schema = {"type": "record", "name": "O", "fields": [{"name": "c", "type": "Customer"}]}
    reference = {"name": "Customer", "subject": "customer", "version": 1}
    schema_id = server.add("orders-value", json.dumps(schema), references=(reference,))
    decoder = SchemaDecoder(registry, settings(reader="latest"))
    values = binary(framing.encode_id(schema_id) + b"\x06")
    assert decoder.decode("orders", values).column.to_pylist() == [{"c": {"n": 3}}]
    assert pickle.loads(pickle.dumps(decoder.topic_schema("orders"))) == decoder.topic_schema("orders")


def test_a_missing_reader_is_an_exception(registry, server):
    decoder = SchemaDecoder(registry, settings(reader="latest"))
    with pytest.raises(errors.SubjectNotFoundError):
        decoder.arrow_type("nowhere")
    server.add("wrong-value", "{}", "JSON")
    with pytest.raises(errors.SchemaError, match=r"'wrong-value' has a schema of format json, value\.format is avro"):
        decoder.arrow_type("wrong")


# -- encoding ----------------------------------------------------------------------------------------

ORDERS = pa.array([{"id": 1, "customer": "c1"}, None, {"id": 2, "customer": "c2"}], TYPE)


def test_columns_are_written_with_the_latest_version(registry, ids):
    column, row_errors = SchemaEncoder(registry, settings()).encode("orders", ORDERS)
    assert column.to_pylist() == [
        framed(ids[1], V2, {"id": number, "customer": f"c{number}", "currency": "EUR"}) if number else None
        for number in (1, 0, 2)
    ]
    assert row_errors == []


def test_a_version_may_be_chosen_for_writing(registry, ids):
    column, _ = SchemaEncoder(registry, settings(writer=1)).encode("orders", ORDERS)
    assert column[0].as_py() == order(1, ids[0])


def test_a_given_schema_must_be_registered(registry, server, ids):
    given = Schema(json.dumps({**V1, "doc": "new"}))
    with pytest.raises(
        errors.SchemaNotFoundError, match=r"does not have the given schema.*schema\.auto\.register=true"
    ):
        SchemaEncoder(registry, settings(writer=given)).encode("orders", ORDERS)
    column, _ = SchemaEncoder(registry, settings(writer=given, auto_register=True)).encode("orders", ORDERS)
    assert framing.decode(column[0].as_py())[0].id == server.subjects["orders-value"][-1]
    again, _ = SchemaEncoder(registry, settings(writer=given)).encode("orders", ORDERS)
    assert again.equals(column)


def test_a_schema_is_derived_and_registered_only_if_allowed(registry, server):
    with pytest.raises(
        errors.SubjectNotFoundError, match=r"no schema for values of topic 'new\.orders'.*auto\.register"
    ):
        SchemaEncoder(registry, settings()).encode("new.orders", ORDERS)
    encoder = SchemaEncoder(registry, settings(auto_register=True))
    column, _ = encoder.encode("new.orders", ORDERS)
    requests = len(server.requests)
    encoder.encode("new.orders", ORDERS)
    assert len(server.requests) == requests
    [schema_id] = server.subjects["new.orders-value"]
    assert json.loads(server.schemas[schema_id]["schema"])["name"] == "new_orders_value"
    decoder = SchemaDecoder(registry, settings(reader="latest"))
    assert decoder.decode("new.orders", column).column.equals(ORDERS)


def test_subjects_follow_the_strategy(registry, server):
    for strategy in SubjectNameStrategy:
        given = settings(writer=Schema(json.dumps(V1)), auto_register=True, strategy=strategy)
        SchemaEncoder(registry, given).encode("orders", ORDERS)
    assert list(server.subjects) == ["orders-value", "shop.Order", "orders-shop.Order"]
    by_record = settings(reader="latest", strategy=SubjectNameStrategy.RECORD)
    with pytest.raises(errors.ConfigError, match=r"RecordNameStrategy needs the name .* set value\.record\.name"):
        SchemaDecoder(registry, by_record).arrow_type("orders")
    named = settings(reader="latest", strategy=SubjectNameStrategy.RECORD, record_name="shop.Order")
    assert SchemaDecoder(registry, named).arrow_type("anything") == TYPE


def test_a_type_that_does_not_fit_is_an_error_before_any_row(registry, ids):
    encoder = SchemaEncoder(registry, settings())
    wrong = pa.struct([("id", pa.string()), ("customer", pa.string())])
    with pytest.raises(
        errors.SchemaError, match=r"values of topic 'orders' cannot be written with schema id 2 \(version 2 of"
    ):
        encoder.prepare("orders", wrong)
    assert encoder.prepare("orders", TYPE).id == ids[1]


def test_rows_that_do_not_fit_are_null_with_an_error(registry, ids):
    nullable = pa.struct([("id", pa.int64()), ("customer", pa.string())])
    column, row_errors = SchemaEncoder(registry, settings(writer=1)).encode(
        "orders", pa.array([{"id": None, "customer": "x"}, {"id": 1, "customer": "c1"}], nullable)
    )
    assert column.to_pylist() == [None, order(1, ids[0])]
    assert [(error.row, error.cause, error.schema_id) for error in row_errors] == [(0, RowCause.INVALID_DATA, ids[0])]
    assert str(row_errors[0]) == "row 0: schema id 1: field id: null in a field that is not nullable"


def test_a_pinned_schema_is_used_for_writing(registry, server, ids):
    pinned = {"orders": SchemaEncoder(registry, settings(writer=1)).prepare("orders", TYPE)}
    server.is_down = True
    worker = SchemaEncoder(
        SchemaRegistryClient(server.url, QUICK), settings(), pinned=pickle.loads(pickle.dumps(pinned))
    )
    assert worker.encode("orders", ORDERS).column[0].as_py() == order(1, ids[0])


# -- options -----------------------------------------------------------------------------------------


def test_options_become_settings():
    options = {
        "value.format": "avro",
        "reader.schema": "3",
        "auto.register.schemas": "true",
        "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        "value.record.name": "shop.Order",
        "key.format": "JSON",
        "key.writer.schema": {"type": "string"},
        "linger.ms": 5,
    }
    value = SerdeSettings.from_options(options, "value")
    assert value == settings(
        reader=3, auto_register=True, strategy=SubjectNameStrategy.RECORD, record_name="shop.Order"
    )
    key = SerdeSettings.from_options(options, "key", default_reader="latest")
    assert key == SerdeSettings(
        "key", SchemaFormat.JSON, "latest", Schema('{"type": "string"}', SchemaFormat.JSON), auto_register=True
    )
    latest = SerdeSettings.from_options({"value.format": "avro", "use.latest.version": True}, "value")
    assert latest is not None
    assert latest.writer == "latest"
    assert SerdeSettings.from_options({}, "value") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value.format": "xml"}, "value.format is 'xml'; it may be none, avro, protobuf, json"),
        ({"reader.schema": "latest"}, "reader.schema is set, but value.format is none"),
        ({"schema.auto.register": True, "auto.register.schemas": True}, "schema.auto.register is given twice"),
        ({"value.format": "avro", "value.subject.name.strategy": "x"}, "it may be TopicNameStrategy, Rec"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(errors.ConfigError, match=message):
        SerdeSettings.from_options(options, "value")


def test_a_format_needs_the_url_of_a_registry():
    with pytest.raises(errors.ConfigError, match=r"schema\.registry\.url is not set"):
        registry_from({"value.format": "avro"})


def test_a_tombstone_is_null_without_an_error_whatever_its_header_has(registry, ids):
    headers = pa.array([[("__value_schema_id", b"junk")], [("__value_schema_id", None)]], HEADERS)
    column, row_errors = SchemaDecoder(registry, settings(reader="latest")).decode(
        "orders", binary(None, None), headers
    )
    assert column.to_pylist() == [None, None]
    assert row_errors == []


@pytest.mark.parametrize("option", ["reader.schema", "writer.schema", "key.reader.schema"])
def test_a_misspelt_latest_is_an_error_that_names_the_choices(option):
    given = {"value.format": "avro", "key.format": "avro", option: "lates"}
    with pytest.raises(errors.ConfigError, match=f"{option} is 'lates'; it may be latest"):
        SerdeSettings.from_options(given, "key" if option.startswith("key") else "value")
