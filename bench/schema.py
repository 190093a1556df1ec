"""`make bench-schema`: Avro, Protobuf and JSON to Arrow columns and back, beside other libraries.

One process on one core. The cases of Protobuf are in schema_protobuf.py, those of single dicts in schema_values.py.

Two records: four columns (long, string, double, timestamp; two of them nullable), and a nested one (record, array of
records, map, enum, decimal, union). fastavro's rows are made into Arrow columns as well for "to Arrow"; the target is
compared with fastavro's decoding alone. Cases of pyruhvro run if it is installed. JSON has the same four columns,
beside Python's json, orjson (both row by row, then to Arrow) and pyarrow's reader of JSON lines.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import io
import json
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.json

from bench.harness import Case, measure, report
from bench.schema_protobuf import protobuf_cases
from bench.schema_values import targets, value_cases
from headrace.schema.avro import AvroDecoder, AvroEncoder
from headrace.schema.json_schema import JsonDecoder, JsonEncoder
from headrace.wire.kernel import KERNEL_NAME

ROWS = 100_000
ROWS_OF_FASTAVRO = 10_000
DECODE_LIMIT_NS = 500  # 2 million records/s
ENCODE_LIMIT_NS = 1e9 / 1.5e6
JSON_LIMIT_NS = 1e9 / 1.5e6
DECODE_RATIO = 5

FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    ],
}
NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Basket",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "address",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Address",
                    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
                },
            ],
        },
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        },
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "note", "type": ["null", "string", "long"]},
    ],
}


def flat_row(chance: random.Random) -> dict[str, Any]:
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=chance.randrange(10**10))
    return {
        "id": chance.randrange(10**9),
        "customer": None if chance.random() < 0.2 else f"customer-{chance.randrange(10**6)}",
        "amount": chance.random() * 1000,
        "at": None if chance.random() < 0.1 else at,
    }


def nested_row(chance: random.Random) -> dict[str, Any]:
    lines = [{"sku": f"sku-{chance.randrange(1000)}", "count": chance.randrange(9)} for _ in range(chance.randrange(5))]
    return {
        "id": chance.randrange(10**9),
        "address": None if chance.random() < 0.3 else {"city": "Reykjavík", "zip": chance.randrange(10**5)},
        "lines": lines,
        "labels": {f"key-{i}": "value" for i in range(chance.randrange(3))},
        "state": chance.choice(["NEW", "PAID", "SENT"]),
        "total": Decimal(chance.randrange(10**9)).scaleb(-2),
        "note": chance.choice([None, "a note", 12345]),
    }


def cases_of(title: str, schema: dict[str, Any], make_row: Callable[[random.Random], dict[str, Any]]) -> list[Case]:
    chance = random.Random(20_26)
    rows = [make_row(chance) for _ in range(ROWS)]
    parsed = fastavro.parse_schema(schema)
    encoded = [_write(parsed, row) for row in rows]
    column = pa.array(encoded, pa.binary())
    decoder = AvroDecoder(json.dumps(schema))
    values, errors = decoder.decode(column)
    assert not errors
    encoder = AvroEncoder(json.dumps(schema), decoder.arrow_type)
    assert encoder.encode(values)[0].equals(column)
    first = AvroDecoder(json.dumps(schema), columns=["id"])
    some, some_rows = encoded[:ROWS_OF_FASTAVRO], rows[:ROWS_OF_FASTAVRO]
    is_flat = schema is FLAT
    cases = [
        Case(f"{title}: decode", lambda: decoder.decode(column), ROWS, DECODE_LIMIT_NS if is_flat else None),
        Case(f"{title}: decode one field", lambda: first.decode(column), ROWS),
        Case(f"{title}: encode", lambda: encoder.encode(values), ROWS, ENCODE_LIMIT_NS if is_flat else None),
        Case(f"{title}: fastavro decode", lambda: [_read(parsed, value) for value in some], len(some)),
        Case(f"{title}: fastavro encode", lambda: [_write(parsed, row) for row in some_rows], len(some)),
    ]
    if is_flat:
        to_arrow = Case(
            f"{title}: fastavro decode to Arrow",
            lambda: pa.array([_read(parsed, value) for value in some], decoder.arrow_type),
            len(some),
        )
        cases.append(to_arrow)
    return [*cases, *_pyruhvro_cases(title, json.dumps(schema), column, values)]


FLAT_JSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": ["string", "null"]},
        "amount": {"type": "number"},
        "at": {"type": ["integer", "null"], "title": "org.apache.kafka.connect.data.Timestamp"},
    },
    "required": ["id", "amount"],
}


def json_cases() -> list[Case]:
    chance = random.Random(20_26)
    rows = [flat_row(chance) for _ in range(ROWS)]
    for row in rows:
        row["at"] = None if row["at"] is None else int(row["at"].timestamp() * 1000)
    encoded = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    column, text = pa.array(encoded, pa.binary()), json.dumps(FLAT_JSON)
    decoder, first, validating = JsonDecoder(text), JsonDecoder(text, columns=["id"]), JsonDecoder(text, validate=True)
    values, errors = decoder.decode(column)
    assert not errors
    encoder = JsonEncoder(text, decoder.arrow_type)
    assert encoder.encode(values)[0].equals(column)
    some, some_rows, some_column = encoded[:ROWS_OF_FASTAVRO], rows[:ROWS_OF_FASTAVRO], column[:ROWS_OF_FASTAVRO]
    plain = pa.struct([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("at", pa.int64())])
    lines = pa.py_buffer(b"\n".join(encoded))
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 24)
    parsing = pyarrow.json.ParseOptions(explicit_schema=pa.schema(list(plain)))
    count = len(some)
    return [
        Case("JSON: decode", lambda: decoder.decode(column), ROWS, JSON_LIMIT_NS),
        Case("JSON: decode one field", lambda: first.decode(column), ROWS),
        Case("JSON: encode", lambda: encoder.encode(values), ROWS, JSON_LIMIT_NS),
        Case("JSON: decode and validate", lambda: validating.decode(some_column), count),
        Case("JSON: json.loads to Arrow", lambda: pa.array([json.loads(v) for v in some], plain), count),
        Case("JSON: orjson.loads to Arrow", lambda: pa.array([orjson.loads(v) for v in some], plain), count),
        Case("JSON: pyarrow.json", lambda: pyarrow.json.read_json(pa.BufferReader(lines), reading, parsing), ROWS),
        Case("JSON: json.dumps", lambda: [json.dumps(row).encode() for row in some_rows], count),
        Case("JSON: orjson.dumps", lambda: [orjson.dumps(row) for row in some_rows], count),
    ]


def _write(schema: Any, row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def _read(schema: Any, value: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def _pyruhvro_cases(title: str, schema: str, column: pa.Array, values: pa.Array) -> list[Case]:
    try:
        pyruhvro = importlib.import_module("pyruhvro")
    except ImportError:
        return []
    cases = []
    encoded = column.to_pylist()  # it takes no Arrow column
    batch = pa.RecordBatch.from_struct_array(values)
    runs: list[tuple[str, Callable[[], object]]] = [
        ("decode", lambda: pyruhvro.deserialize_array(encoded, schema)),
        ("encode", lambda: pyruhvro.serialize_record_batch(batch, schema, 1)),
    ]
    for name, run in runs:
        try:
            run()
        except BaseException as error:  # its panics are BaseExceptions
            print(f"{title}: pyruhvro cannot {name} this record: {type(error).__name__}: {str(error)[:100]}")
        else:
            cases.append(Case(f"{title}: pyruhvro {name}", run, ROWS))
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--values", action="store_true", help="only the cases of single dicts")
    options = parser.parse_args()
    cases: list[Case] = []
    if not options.values:
        cases = [*cases_of("four columns", FLAT, flat_row), *cases_of("nested", NESTED, nested_row)]
        cases += [*protobuf_cases(), *json_cases()]
    avro = {"four fields": (FLAT, flat_row), "nested": (NESTED, nested_row)}
    with value_cases(avro, json.dumps({"title": "Order", **FLAT_JSON}), flat_row) as singles:
        cases = singles if options.values else cases + singles
        measure(cases, options.rounds)
    met = report(f"Avro, Protobuf and JSON, {KERNEL_NAME} kernel, {ROWS:,} records", cases, options.json)
    medians = {case.name: case.median_ns for case in cases}
    for title, ratio, is_met in targets(medians):
        met &= is_met
        if not options.json:
            print(f"{title}: {ratio:.1f} times as fast as Confluent's, target ≥ 1: {'met' if is_met else 'MISSED'}")
    for title in () if options.values else ("four columns", "nested"):
        for what in ("decode", "encode"):
            ratio = medians[f"{title}: fastavro {what}"] / medians[f"{title}: {what}"]
            rate = 1e3 / medians[f"{title}: {what}"]
            target = ""
            if what == "decode" and title == "four columns":
                met &= ratio >= DECODE_RATIO
                target = f", target ≥ {DECODE_RATIO}: {'met' if ratio >= DECODE_RATIO else 'MISSED'}"
            if not options.json:
                print(f"{title}, {what}: {rate:.1f} million records/s, {ratio:.0f} times fastavro{target}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
