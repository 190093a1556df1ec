"""Keys and values with schemas in `headrace produce` and `headrace consume`: flags, and JSON to and from records.

--value-format avro --schema-registry URL   →  serde options, with those of -X and --config
consume: Record → RecordDecoder → JSON of the value, or an error
produce: line of JSON → the schema's Arrow type → SchemaEncoder → bytes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from headrace.cli.connection import ClusterConnection
from headrace.cli.errors import InvalidUsageError
from headrace.cli.produce_input import InvalidInputError
from headrace.cli.record_json import ParsedRecord, to_json
from headrace.config.registry_options import PREFIX
from headrace.config.serde_options import SERDE_OPTIONS
from headrace.wire.layout import Record

if TYPE_CHECKING:
    from headrace.client.schema_encoder import SchemaEncoder
    from headrace.client.typed_records import RecordDecoder
    from headrace.schema.types import RecordField

R = TypeVar("R")
FORMATS = ("avro", "protobuf", "json")
_FIELDS: tuple[RecordField, ...] = ("key", "value")


def format_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the flags of formats."""
    for flag in (
        click.option("--schema-registry", "registry_url", metavar="URL", help="The schema registry of the formats."),
        click.option("--key-format", type=click.Choice(FORMATS), help="Keys have schemas in the registry."),
        click.option("--value-format", type=click.Choice(FORMATS), help="Values have schemas in the registry."),
    ):
        command = flag(command)
    return command


def serde_options(
    connection: ClusterConnection, registry_url: str | None, formats: Mapping[str, str | None]
) -> dict[str, object]:
    """Return the options of formats: flags, and those of -X, --config and the environment. Empty without a format."""
    given = {name: setting.value for name, setting in connection.given().items()}
    options: dict[str, object] = {
        name: value for name, value in given.items() if name.startswith(PREFIX) or name in SERDE_OPTIONS
    }
    options |= {f"{field}.format": name for field, name in formats.items() if name is not None}
    if registry_url is not None:
        options["schema.registry.url"] = registry_url
    has_format = any(options.get(f"{field}.format", "none") != "none" for field in _FIELDS)
    if has_format and "schema.registry.url" not in options:
        raise InvalidUsageError("--value-format and --key-format need --schema-registry URL")
    if registry_url is not None and not has_format:
        raise InvalidUsageError("--schema-registry needs --value-format or --key-format")
    return options if has_format else {}


# -- consume -----------------------------------------------------------------------------------------


class PrintableRecord(NamedTuple):
    """A record for the formats of `consume`."""

    record: Record
    """With the JSON text of decoded keys and values instead of bytes."""
    fields: dict[str, Any]
    """What JSON output has instead: decoded objects, and errors."""
    errors: list[str]


class TypedOutput:
    """Decodes records for printing, and counts those that it could not decode."""

    def __init__(self, options: Mapping[str, object]) -> None:
        # Imported here and below: pyarrow, which invalid usage and --help should not wait for.
        from headrace.client.typed_records import RecordDecoder

        self._decoder: RecordDecoder = RecordDecoder.from_options(options)
        self._fields = [field for field in _FIELDS if options.get(f"{field}.format", "none") != "none"]
        self.failed_count = 0

    def decode(self, topic: str, partition: int, records: Sequence[Record]) -> list[PrintableRecord]:
        """Decode the records of a partition."""
        from headrace.client.fetch_data import FetchedRecord
        from headrace.client.typed_json import to_plain

        decoded = self._decoder.decode([FetchedRecord(topic, partition, *record) for record in records])
        printable = []
        for record, typed in zip(records, decoded, strict=True):
            fields: dict[str, Any] = {}
            errors: list[str] = []
            for field in self._fields:
                value, error = (typed.key, typed.key_error) if field == "key" else (typed.value, typed.value_error)
                fields[field] = to_plain(value)
                text = None if value is None else json.dumps(fields[field], ensure_ascii=False).encode()
                record = record._replace(key=text) if field == "key" else record._replace(value=text)
                if error is not None:
                    fields[f"{field}_error"] = error.text
                    errors.append(f"{topic}-{partition} at offset {record.offset}: {field}: {error.text}")
            self.failed_count += bool(errors)
            printable.append(PrintableRecord(record, fields, errors))
        return printable


def typed_line(topic: str, partition: int, printable: PrintableRecord, *, is_append_time: bool) -> bytes:
    """Return a decoded record as a line of JSON."""
    content = to_json(topic, partition, printable.record, is_append_time=is_append_time) | printable.fields
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


# -- produce -----------------------------------------------------------------------------------------


class TypedInput:
    """Encodes keys and values that are JSON texts with the schemas of a topic."""

    def __init__(self, topic: str, options: Mapping[str, object]) -> None:
        from headrace.client.schema_encoder import SchemaEncoder
        from headrace.client.serde import SerdeSettings, registry_from

        self._topic = topic
        registry = registry_from(options)
        self._encoders: dict[RecordField, SchemaEncoder] = {}
        for field in _FIELDS:
            settings = SerdeSettings.from_options(options, field)
            if settings is None:
                continue
            if settings.writer is None and settings.auto_register:
                raise InvalidUsageError("schema.auto.register needs a schema: pass --schema-file or --key-schema-file")
            self._encoders[field] = SchemaEncoder(registry, settings)
        self._count = 0

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self._encoders)

    def encode(self, records: list[ParsedRecord]) -> tuple[list[ParsedRecord], InvalidInputError | None]:
        """Return the records before the first one that cannot be encoded, and the error of that one."""
        error: InvalidInputError | None = None
        for field in self._encoders:
            texts = [record.key if field == "key" else record.value for record in records]
            encoded, problem = self.encode_texts(field, texts)
            if problem is not None:
                error = InvalidInputError(f"record {self._count + len(encoded) + 1:,} of the input: {field}: {problem}")
            records = [
                record._replace(key=data) if field == "key" else record._replace(value=data)
                for record, data in zip(records, encoded, strict=False)
            ]
        self._count += len(records)
        return records, error

    def encode_texts(self, field: RecordField, texts: Sequence[bytes | None]) -> tuple[list[bytes | None], str | None]:
        """Return JSON texts as bytes with a schema id, up to the first that does not fit, and what is wrong with it."""
        import pyarrow as pa

        from headrace.client.typed_json import to_row

        encoder = self._encoders[field]
        schema = encoder.topic_schema(self._topic, pa.null())
        data_type = schema.parsed().arrow_type(message=encoder.settings.record_name)
        rows: list[Any] = []
        problem: str | None = None
        for text in texts:
            try:
                rows.append(None if text is None else to_row(_parse_json(text), data_type))
            except (ValueError, RecursionError) as error:
                problem = str(error) or "nested too deeply"
                break
        try:
            column = pa.array(rows, data_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError):
            rows, problem = _fitting(rows, data_type)
            column = pa.array(rows, data_type)
        values, errors = encoder.encode(self._topic, column)
        encoded: list[bytes | None] = values.to_pylist()
        if errors:
            return encoded[: errors[0].row], errors[0].text
        return encoded, problem


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON in UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}; a text needs quotes") from None


def _fitting(rows: list[Any], data_type: Any) -> tuple[list[Any], str]:
    """Return the rows before the first that pyarrow does not take, and what is wrong with that one."""
    import pyarrow as pa

    for index, row in enumerate(rows):
        try:
            pa.array([row], data_type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            return rows[:index], f"expected {data_type}, got {row!r:.200}: {error}"
    raise AssertionError("each row fits, but not all of them")


def read_schema_file(path: Path) -> str:
    """Return the text of a schema file."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidUsageError(f"the schema file {path} cannot be read: {error}") from error
