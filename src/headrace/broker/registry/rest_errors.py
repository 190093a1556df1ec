"""Errors of the REST API: an HTTP status, Confluent's error code, and a message.

Clients depend on the codes, and some on the first words of a message, so both are those of Confluent's registry.
"""

from __future__ import annotations

from headrace.schema.types import SchemaFormat

VERSION_MAX = 2**31 - 1
MESSAGE_CHARS_MAX = 8_000
"""A longer message is cut: a schema may be incompatible in thousands of fields."""

_STATUS_CODES_FROM = 1_000  # smaller error codes are HTTP statuses


class RestError(Exception):
    """A request that failed. The first three digits of the error code are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        cut = message if len(message) <= MESSAGE_CHARS_MAX else f"{message[: MESSAGE_CHARS_MAX - 3]}..."
        super().__init__(cut)
        self.code = code
        self.message = cut

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code if self.code < _STATUS_CODES_FROM else self.code // 100


def subject_not_found(subject: str) -> RestError:
    return RestError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RestError:
    return RestError(40402, f"Version {version} not found.")


def schema_not_found(what: str = "") -> RestError:
    return RestError(40403, f"Schema {what} not found" if what else "Schema not found")


def subject_deleted(subject: str) -> RestError:
    return RestError(40404, f"Subject '{subject}' is deleted already: add permanent=true to delete it permanently")


def subject_not_deleted(subject: str) -> RestError:
    return RestError(40405, f"Subject '{subject}' was not deleted: delete it first, then again with permanent=true")


def version_deleted(subject: str, version: int) -> RestError:
    return RestError(
        40406, f"Subject '{subject}' Version {version} is deleted already: add permanent=true to delete it permanently"
    )


def version_not_deleted(subject: str, version: int) -> RestError:
    return RestError(
        40407,
        f"Subject '{subject}' Version {version} was not deleted: delete it first, then again with permanent=true",
    )


def config_not_found(subject: str) -> RestError:
    return RestError(40408, f"Subject '{subject}' has no compatibility level of its own: the global one applies")


def mode_not_found(subject: str) -> RestError:
    return RestError(40409, f"Subject '{subject}' has no mode of its own: the global one applies")


def incompatible(subject: str, messages: list[str]) -> RestError:
    reasons = "; ".join(messages)
    return RestError(
        409, f"Schema being registered is incompatible with an earlier schema for subject '{subject}': {reasons}"
    )


def invalid_schema(format: SchemaFormat | str, reason: object) -> RestError:
    name = format.value if isinstance(format, SchemaFormat) else format
    return RestError(42201, f"Invalid schema of type {name}: {reason}")


def invalid_version(text: str) -> RestError:
    return RestError(
        42202,
        f"The specified version '{text}' is not a valid version id: expected 1 to {VERSION_MAX}, or latest",
    )


def invalid_level(text: object, levels: str) -> RestError:
    return RestError(42203, f"Invalid compatibility level {text!r}: expected {levels}")


def invalid_mode(text: object, modes: str) -> RestError:
    return RestError(42204, f"Invalid mode {text!r}: expected {modes}")


def not_permitted(reason: str) -> RestError:
    return RestError(42205, reason)


def reference_exists(subject: str, version: int) -> RestError:
    return RestError(
        42206,
        f"version {version} of subject '{subject}' is referred to by other schemas: delete what refers to "
        f"it first (GET /subjects/…/versions/{version}/referencedby)",
    )


def id_does_not_match(schema_id: int) -> RestError:
    return RestError(42207, f"id {schema_id} is the id of another schema: leave it out, or choose another one")


def invalid_subject(subject: str) -> RestError:
    return RestError(
        42208, f"Invalid subject {subject[:100]!r}: expected a name without control characters, not a reserved one"
    )


def too_large(reason: str) -> RestError:
    return RestError(42209, reason)


def store_failed(reason: object) -> RestError:
    return RestError(50001, f"failed to write to the topic of schemas: {reason}")
