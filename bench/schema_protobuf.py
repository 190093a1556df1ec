"""Cases of `make bench-schema` for Protobuf, beside Google's library (upb) row by row.

The records are those of the Avro cases: four columns, and nested. Google's messages are made into Python objects that
Arrow takes for "decode to Arrow". Cases of ptars and protarrow run if they are installed.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

from bench.harness import Case
from headrace.schema.protobuf import ProtobufDecoder, ProtobufEncoder, parse_schema, to_descriptor

ROWS = 100_000
ROWS_OF_UPB = 10_000
LIMIT_NS = 1e9 / 1.5e6

FLAT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; optional string customer = 2; double amount = 3; google.protobuf.Timestamp at = 4; }
"""
NESTED = """
syntax = "proto3";
message Basket {
  int64 id = 1; Address address = 2; repeated Line lines = 3; map<string, string> labels = 4; State state = 5;
  sint64 total = 6; oneof note { string text = 7; int64 number = 8; }
  message Address { string city = 1; int32 zip = 2; }
  message Line { string sku = 1; int32 count = 2; }
  enum State { NEW = 0; PAID = 1; SENT = 2; }
}
"""


def protobuf_cases() -> list[Case]:
    return [
        *_cases_of("Protobuf, four columns", FLAT, _fill_flat),
        *_cases_of("Protobuf, nested", NESTED, _fill_nested),
    ]


def _fill_flat(message: Any, chance: random.Random) -> None:
    message.id = chance.randrange(10**9)
    if chance.random() >= 0.2:
        message.customer = f"customer-{chance.randrange(10**6)}"
    message.amount = chance.random() * 1000
    if chance.random() >= 0.1:
        message.at.FromMilliseconds(1_704_067_200_000 + chance.randrange(10**10))


def _fill_nested(message: Any, chance: random.Random) -> None:
    message.id = chance.randrange(10**9)
    if chance.random() >= 0.3:
        message.address.city, message.address.zip = "Reykjavík", chance.randrange(10**5)
    for _ in range(chance.randrange(5)):
        message.lines.add(sku=f"sku-{chance.randrange(1000)}", count=chance.randrange(9))
    for index in range(chance.randrange(3)):
        message.labels[f"key-{index}"] = "value"
    message.state = chance.randrange(3)
    message.total = chance.randrange(10**9)
    if chance.random() < 0.3:
        message.text = "a note"
    elif chance.random() < 0.5:
        message.number = 12345


def _cases_of(title: str, text: str, fill: Callable[[Any, random.Random], None]) -> list[Case]:
    schema = parse_schema(text, name=f"{title}.proto")
    pool = descriptor_pool.Default()  # protarrow fails with messages of another pool
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(to_descriptor(schema))
    message_type: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(schema.message().full_name))
    chance = random.Random(20_26)
    encoded = []
    for _ in range(ROWS):
        message = message_type()
        fill(message, chance)
        encoded.append(message.SerializeToString(deterministic=True))
    column = pa.array(encoded, pa.binary())
    decoder = ProtobufDecoder(schema)
    values, errors = decoder.decode(column)
    assert not errors
    encoder = ProtobufEncoder(schema, decoder.arrow_type)
    assert encoder.encode(values)[0].equals(column)
    first = ProtobufDecoder(schema, columns=["id"])
    some = encoded[:ROWS_OF_UPB]
    messages = [message_type.FromString(value) for value in some]
    is_flat = text is FLAT
    cases = [
        Case(f"{title}: decode", lambda: decoder.decode(column), ROWS, LIMIT_NS if is_flat else None),
        Case(f"{title}: decode one field", lambda: first.decode(column), ROWS),
        Case(f"{title}: encode", lambda: encoder.encode(values), ROWS, LIMIT_NS if is_flat else None),
        Case(f"{title}: upb parse", lambda: [message_type.FromString(value) for value in some], len(some)),
        Case(f"{title}: upb serialize", lambda: [message.SerializeToString() for message in messages], len(some)),
    ]
    if is_flat:
        to_arrow = Case(
            f"{title}: upb decode to Arrow",
            lambda: pa.array([_flat_row(message_type.FromString(value)) for value in some], decoder.arrow_type),
            len(some),
        )
        cases.append(to_arrow)
    return [*cases, *_ptars_cases(title, message_type, column), *_protarrow_cases(title, message_type, some)]


def _flat_row(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "customer": message.customer if message.HasField("customer") else None,
        "amount": message.amount,
        "at": message.at.ToMicroseconds() if message.HasField("at") else None,
    }


def _ptars_cases(title: str, message_type: Any, column: pa.Array) -> list[Case]:
    try:
        ptars = importlib.import_module("ptars")
    except ImportError:
        return []
    try:
        handler = ptars.HandlerPool([message_type.DESCRIPTOR.file]).get_for_message(message_type.DESCRIPTOR)
        batch = handler.array_to_record_batch(column)
        handler.record_batch_to_array(batch)
    except BaseException as error:  # its panics are BaseExceptions
        print(f"{title}: ptars cannot decode and encode this record: {type(error).__name__}: {str(error)[:100]}")
        return []
    return [
        Case(f"{title}: ptars decode", lambda: handler.array_to_record_batch(column), ROWS),
        Case(f"{title}: ptars encode", lambda: handler.record_batch_to_array(batch), ROWS),
    ]


def _protarrow_cases(title: str, message_type: Any, encoded: list[bytes]) -> list[Case]:
    try:
        protarrow = importlib.import_module("protarrow")
    except ImportError:
        return []

    def decode() -> pa.RecordBatch:
        return protarrow.messages_to_record_batch([message_type.FromString(value) for value in encoded], message_type)

    def encode() -> list[bytes]:
        messages = protarrow.record_batch_to_messages(batch, message_type)
        return [message.SerializeToString() for message in messages]

    cases = []
    batch = None
    for name, run in (("decode", decode), ("encode", encode)):
        try:
            result = run()
        except Exception as error:
            print(f"{title}: protarrow cannot {name} this record: {type(error).__name__}: {str(error)[:100]}")
            break
        batch = batch or result
        cases.append(Case(f"{title}: protarrow {name}", run, len(encoded)))
    return cases
