"""`make bench-wire`: the cost of a record and a message, compared with kafka-python, aiokafka and kio."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.harness import Case, measure, report
from headrace.wire import columns, frames, records
from headrace.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.kernel import KERNEL_NAME
from headrace.wire.schema import codec

VALUE = b"v" * 100
TIMESTAMP = 1_700_000_000_000
ROWS = 50_000
BATCH_BYTES = 16 * 1024
RECORDS = 1_000


def record_cases() -> list[Case]:
    buffer = bytearray(BATCH_BYTES * 16)

    def append() -> records.OpenBatch:
        batch = records.OpenBatch(buffer)
        add = batch.append
        for _ in range(RECORDS):
            add(TIMESTAMP, None, VALUE)
        return batch

    def append_and_seal() -> memoryview:
        return records.seal(append())

    sealed = bytes(append_and_seal())

    def decode() -> list[Any]:
        return [batch.records() for batch in records.read_batches(sealed)]

    return [
        Case("append, one record", append, RECORDS, limit_ns=120),
        Case("append and seal, one record", append_and_seal, RECORDS),
        Case("decode to objects, one record", decode, RECORDS),
        *_kafka_python_records(),
        *_aiokafka_records(sealed),
    ]


def _kafka_python_records() -> list[Case]:
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    def build() -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES * 16,
        )
        for offset in range(RECORDS):
            builder.append(offset, TIMESTAMP, None, VALUE, [])
        return bytes(builder.build())

    built = build()

    def read() -> list[Any]:
        batch = DefaultRecordBatch(built)
        batch.validate_crc()
        return list(batch)

    return [
        Case("  kafka-python: append and build", build, RECORDS),
        Case("  kafka-python: decode", read, RECORDS),
    ]


def _aiokafka_records(sealed: bytes) -> list[Case]:
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    def build() -> bytes:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES * 16)
        for offset in range(RECORDS):
            builder.append(offset, TIMESTAMP, None, VALUE, [])
        return bytes(builder.build())

    def read() -> list[Any]:
        batch = DefaultRecordBatch(bytearray(sealed))
        batch.validate_crc()
        return list(batch)

    kind = "compiled" if "_crecords" in DefaultRecordBatchBuilder.__module__ else "Python"
    return [
        Case(f"  aiokafka ({kind}): append and build", build, RECORDS),
        Case(f"  aiokafka ({kind}): decode", read, RECORDS),
    ]


def column_cases() -> list[Case]:
    value = pa.array([VALUE] * ROWS, pa.binary())
    key = pa.array([b"key-%06d" % row for row in range(ROWS)], pa.binary())
    spare: list[bytearray] = []

    def encoder(partitions: int, keyed: bool) -> Callable[[], list[memoryview]]:
        positions = columns.partition_for_keys(key, partitions)

        def encode() -> list[memoryview]:
            encoded = columns.encode(
                value,
                key=key if keyed else None,
                partition=positions,
                partition_count=partitions,
                now_ms=TIMESTAMP,
                batch_bytes_max=BATCH_BYTES,
                spare=spare,
            )
            sealed = [records.seal(batch) for batch in encoded]
            spare.extend(batch.buffer for batch in encoded)  # as the producer does when a request is over
            return sealed

        return encode

    log = b"".join(encoder(1, True)())
    spare.clear()

    def decode() -> pa.RecordBatch:
        decoder = columns.ArrowDecoder(bytes_hint=len(log))
        for batch in records.read_batches(log):
            decoder.add(batch)
        return decoder.finish()

    return [
        Case("columns: encode and seal, 1 partition", encoder(1, False), ROWS, limit_ns=45),
        Case("columns: encode and seal, 12 partitions", encoder(12, False), ROWS, limit_ns=45),
        Case("columns: encode and seal, 12 partitions, keyed", encoder(12, True), ROWS),
        Case("columns: murmur2 and partition", lambda: columns.partition_for_keys(key, 12), ROWS),
        Case("columns: hash of rows", lambda: columns.hash_rows("orders", value), ROWS, limit_ns=15),
        Case("columns: hash of rows, keyed", lambda: columns.hash_rows("orders", value, key=key), ROWS, limit_ns=15),
        Case("columns: decode to Arrow, keyed", decode, ROWS, limit_ns=60),
    ]


def message_cases() -> list[Case]:
    version = 12
    batch = bytes(BATCH_BYTES)
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name="orders",
                partition_data=[
                    PartitionProduceData(partition_index=partition, records=batch) for partition in range(10)
                ],
            )
        ],
    )
    metadata = _metadata()
    encoded = metadata.encode(version)
    metadata_codec = codec(MetadataResponse, version)
    return [
        Case(
            "Produce v9 request, 10 × 16 KiB, encode",
            lambda: frames.encode_request(produce, 9, 1, "bench"),
            limit_ns=12_000,
        ),
        Case(
            f"Metadata v{version} response, 10 × 12 partitions, decode",
            lambda: metadata_codec.decode(encoded, 0),
            limit_ns=60_000,
        ),
        Case(f"Metadata v{version} response, encode", lambda: metadata_codec.encode(metadata)),
        *_kio_messages(encoded, version),
        *_kafka_python_messages(encoded, version),
    ]


def _metadata() -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(
            partition_index=partition,
            leader_id=partition % 3,
            leader_epoch=5,
            replica_nodes=(0, 1, 2),
            isr_nodes=(0, 1, 2),
        )
        for partition in range(12)
    ]
    return MetadataResponse(
        cluster_id="Some22CharactersOfId00",
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=9092) for node in range(3)],
        topics=[
            MetadataResponseTopic(name=f"topic-{number}", topic_id=bytes(15) + b"\1", partitions=partitions)
            for number in range(10)
        ],
    )


def _kio_messages(encoded: bytes, version: int) -> list[Case]:
    from importlib import import_module

    from kio.serial import entity_reader

    entity = import_module(f"kio.schema.metadata.v{version}.response").MetadataResponse
    read: Any = entity_reader(entity)
    try:
        read(encoded, 0)
    except TypeError:  # older releases read from a stream
        return [Case("  kio: Metadata response, decode", lambda: read(io.BytesIO(encoded)))]
    return [Case("  kio: Metadata response, decode", lambda: read(encoded, 0))]


def _kafka_python_messages(encoded: bytes, version: int) -> list[Case]:
    from kafka.protocol.metadata import MetadataResponse as Theirs

    return [
        Case("  kafka-python: Metadata response, decode", lambda: Theirs.decode(encoded, version=version)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    cases = [*record_cases(), *column_cases()]
    measure(cases, options.rounds)
    # One message takes microseconds: many of them make a sample.
    messages = message_cases()
    for case in messages:
        case.operations, case.run = 200, _repeat(case.run, 200)
    measure(messages, options.rounds)
    return 0 if report(f"wire, {KERNEL_NAME} kernel", [*cases, *messages], options.json) else 1


def _repeat(run: Callable[[], object], times: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(times):
            run()

    return repeated


if __name__ == "__main__":
    sys.exit(main())
