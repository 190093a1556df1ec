"""Avro against Java's library: what it reads of our bytes, with any reader's schema, is what we read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.schema.avro import AvroDecoder, AvroEncoder
from tests.support.avro_types import changed_records, fastavro_bytes, record_types
from tests.support.peers import fetched, maven
from tests.support.peers.fetched import DOWNLOAD_SECONDS_MAX
from tests.support.peers.java import JavaRunner

pytestmark = pytest.mark.timeout(DOWNLOAD_SECONDS_MAX)

SOURCE = Path(__file__).parent / "java" / "AvroResolve.java"
AVRO = """\
    <dependency><groupId>org.apache.avro</groupId><artifactId>avro</artifactId><version>1.12.1</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.17</version></dependency>
"""
EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class JavaAvro:
    """A process that reads values with one schema and writes them with another."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", bufsize=1
        )

    def resolve(self, writer: object, reader: object, value: bytes) -> bytes | str:
        """Return the value as Java writes it with the reader's schema, or its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(writer), json.dumps(reader), value.hex(), sep="\t", file=self._process.stdin)
        line = self._process.stdout.readline().rstrip("\n")
        assert self._process.poll() is None, "Java has ended"
        return line if line.startswith("error") else bytes.fromhex(line)

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def java_avro(java: JavaRunner) -> Iterator[JavaAvro]:
    fetched.require("java", "javac")
    jars = fetched.fetched("avro-1.12.1", lambda folder: maven.copy_jars("Avro 1.12.1", AVRO, folder))
    process = JavaAvro(java.command(jars, SOURCE))
    yield process
    process.close()


def ours(writer: object, reader: object, value: bytes) -> pa.Array:
    """Return the value as we read it."""
    column, errors = AvroDecoder(json.dumps(writer), json.dumps(reader)).decode(pa.array([value]))
    assert not errors
    return column


def has_map(schema: object) -> bool:
    """Whether the order of entries may differ: Java reads maps into a HashMap."""
    return '"map"' in json.dumps(schema)


def without_order(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_order(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return sorted((key, repr(without_order(item))) for key, item in value)
        return [without_order(item) for item in value]
    return value


@EXAMPLES
@given(data=st.data())
def test_java_reads_what_is_written_and_writes_the_same_bytes(java_avro, data):
    random_type = data.draw(record_types())
    value = fastavro_bytes(random_type.schema, data.draw(random_type.values)[0])
    column = ours(random_type.schema, random_type.schema, value)
    encoded, errors = AvroEncoder(random_type.text, column.type).encode(column)
    assert not errors
    of_java = java_avro.resolve(random_type.schema, random_type.schema, encoded[0].as_py())
    assert isinstance(of_java, bytes), of_java
    if has_map(random_type.schema):
        read_again = ours(random_type.schema, random_type.schema, of_java)
        assert without_order(read_again.to_pylist()) == without_order(column.to_pylist())
    else:
        assert of_java == encoded[0].as_py()


@EXAMPLES
@given(changed=changed_records())
def test_a_changed_record_is_read_as_java_reads_it(java_avro, changed):
    writer, reader, value = changed
    writer = {**writer, "name": reader["name"]}  # Java uses aliases of fields only if the full names are equal
    encoded = fastavro_bytes(writer, value)
    of_java = java_avro.resolve(writer, reader, encoded)
    assert isinstance(of_java, bytes), of_java
    column = ours(writer, reader, encoded)
    written, errors = AvroEncoder(json.dumps(reader), column.type).encode(column)
    assert not errors
    assert written[0].as_py() == of_java
