"""Validation of whole values, row by row, with the library jsonschema-rs: patterns, ranges, formats, conditions.

It is optional and slow (docs/schemas.md has figures): the codec itself checks the shape of values only.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.schema._json.layout import ErrorCode
from headrace.schema.codec import RowError

_TEXT_CHARS_MAX = 200


class Validator:
    """Validates JSON values with a schema. References are never fetched."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        try:
            library: Any = importlib.import_module("jsonschema_rs")
        except ImportError:
            raise SchemaError(
                "validate=True needs the library jsonschema-rs; install it: pip install 'headrace[json]'"
            ) from None

        def retrieve(uri: str) -> Any:
            for name, reference in references.items():
                if uri == name or uri.endswith(f"/{name}"):
                    return json.loads(reference)
            raise KeyError(f"{uri} is never fetched; add its schema as a reference")

        schema = json.loads(text)
        # Draft-07 is the default of Confluent's serializers, and of json_references.py.
        has_draft = isinstance(schema, dict) and "$schema" in schema
        make = library.validator_for if has_draft else library.Draft7Validator
        try:
            self._validator = make(schema, retriever=retrieve, validate_formats=True)
        except (ValueError, KeyError) as error:
            raise SchemaError(f"invalid JSON schema: {_shorten(str(error))}") from None

    def check(self, values: pa.Array, skip: int) -> tuple[pa.Array, list[RowError]]:
        """Return the values with null instead of those that are not valid, and an error for each of these.

        A value that is not JSON stays: decoding it gives a better error.
        """
        errors = list(self._errors(values, skip))
        if not errors:
            return values, errors
        invalid = {error.row for error in errors}
        mask = pa.array([row in invalid for row in range(len(values))])
        return pc.if_else(mask, pa.scalar(None, values.type), values), errors

    def _errors(self, values: pa.Array, skip: int) -> Iterator[RowError]:
        for row, value in enumerate(values):
            data = value.as_py()
            if data is None:
                continue
            try:
                parsed = json.loads(data[skip:] if isinstance(data, str) else bytes(data[skip:]).decode())
            except (ValueError, RecursionError):
                continue
            error = next(self._validator.iter_errors(parsed), None)
            if error is not None:
                path = ".".join(str(step) for step in error.instance_path)
                where = f"field {path}" if path else "value"
                yield RowError(row, ErrorCode.VALIDATION, -1, path, f"{where}: {_shorten(error.message)}")


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 3]}..."
