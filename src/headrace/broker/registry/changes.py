"""The records of the topic `_schemas`, in the format of Confluent's registry.

    key                                                                    value
    {"keytype":"SCHEMA","subject":…,"version":…,"magic":1}                 {"subject","version","id","schemaType"?,
                                                                            "references"?,"metadata"?,"ruleSet"?,
                                                                            "schema","deleted"}; null: deleted forever
    {"keytype":"DELETE_SUBJECT","subject":…,"magic":0}                     {"subject","version"}: all up to a version
    {"keytype":"CLEAR_SUBJECT","subject":…,"magic":0}                      {"subject"}: forget what is deleted
    {"keytype":"CONFIG","subject"?:…,"magic":0}                            {"compatibilityLevel", …}; null: removed
    {"keytype":"MODE","subject"?:…,"magic":0}                              {"mode"}; null: removed
    {"keytype":"NOOP","magic":0}                                           ours: {"id"}, the largest id ever given

Other registries ignore the value of a NOOP. Without it, an id could be given twice: when its last schema is deleted
permanently, compaction removes every trace of it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from uuid import UUID, uuid5

from headrace.schema.types import Schema, SchemaFormat, SchemaReference
from headrace.wire.layout import NO_TIMESTAMP, Record

log = logging.getLogger("headrace.broker.registry")

TOPIC = "_schemas"
ID_MAX = 2**31 - 1
_GUIDS = UUID("6d0f6b0e-7c0e-5a57-9d5c-3f7c5d0b8a41")  # the namespace of GUIDs; must never change


@dataclass(frozen=True)
class SchemaContent:
    """What has an id: a schema with its metadata and rules, both as JSON text."""

    schema: Schema
    metadata: str = ""
    rule_set: str = ""

    @cached_property
    def guid(self) -> UUID:
        """An id that follows from the content alone, so that it is the same in every registry of this kind."""
        schema = self.schema
        references = [[each.name, each.subject, each.version] for each in schema.references]
        parts = [schema.format.value, schema.text, references, self.metadata, self.rule_set]
        return uuid5(_GUIDS, dump(parts))


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    content: SchemaContent
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class VersionRemoval:
    """A version that was deleted permanently."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectDeletion:
    """All versions of a subject up to one were deleted."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectClearing:
    """The deleted versions of a subject were removed."""

    subject: str


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The configuration of a subject, or the global one; None: removed."""

    subject: str | None
    config: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The mode of a subject, or the global one; None: removed."""

    subject: str | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class LargestId:
    """The largest id that was ever given."""

    id: int


Change: TypeAlias = (
    SubjectVersion | VersionRemoval | SubjectDeletion | SubjectClearing | ConfigChange | ModeChange | LargestId
)


def dump(value: object) -> str:
    """Return JSON text without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def encode(change: Change, timestamp_ms: int = NO_TIMESTAMP) -> Record:
    """Return the record of a change."""
    key, value = _encode(change)
    encoded = None if value is None else dump(value).encode("utf-8", "surrogatepass")
    return Record(0, timestamp_ms, dump(key).encode("utf-8", "surrogatepass"), encoded, ())


def _encode(change: Change) -> tuple[dict[str, Any], dict[str, Any] | None]:
    match change:
        case SubjectVersion(subject, version):
            return _schema_key(subject, version), _schema_value(change)
        case VersionRemoval(subject, version):
            return _schema_key(subject, version), None
        case SubjectDeletion(subject, version):
            return _key("DELETE_SUBJECT", subject), {"subject": subject, "version": version}
        case SubjectClearing(subject):
            return _key("CLEAR_SUBJECT", subject), {"subject": subject}
        case ConfigChange(subject, config):
            return _key("CONFIG", subject), None if config is None else _with_subject(subject, config)
        case ModeChange(subject, mode):
            return _key("MODE", subject), None if mode is None else _with_subject(subject, {"mode": mode})
        case LargestId(schema_id):
            return _key("NOOP", None), {"id": schema_id}


def _schema_key(subject: str, version: int) -> dict[str, Any]:
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}


def _key(kind: str, subject: str | None) -> dict[str, Any]:
    middle = {} if subject is None else {"subject": subject}
    return {"keytype": kind, **middle, "magic": 0}


def _with_subject(subject: str | None, value: dict[str, Any]) -> dict[str, Any]:
    return value if subject is None else {"subject": subject, **value}


def _schema_value(version: SubjectVersion) -> dict[str, Any]:
    head = {"subject": version.subject, "version": version.version, "id": version.id}
    return {**head, **content_fields(version.content), "deleted": version.deleted}


def content_fields(content: SchemaContent) -> dict[str, Any]:
    """Return the JSON fields of a schema; those that have no value, and the type AVRO, are left out."""
    schema = content.schema
    fields: dict[str, Any] = {}
    if schema.format is not SchemaFormat.AVRO:
        fields["schemaType"] = schema.format.value
    if schema.references:
        fields["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
        ]
    if content.metadata:
        fields["metadata"] = json.loads(content.metadata)
    if content.rule_set:
        fields["ruleSet"] = json.loads(content.rule_set)
    return {**fields, "schema": schema.text}


def decode(record: Record) -> Change | None:
    """Return the change of a record; None if it has none, or is of an unknown kind."""
    try:
        key = json.loads(record.key or b"null")
        value = None if record.value is None else json.loads(record.value)
        return _decode(key, value)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        log.warning("%s: skipping the record at offset %d: %s: %s", TOPIC, record.offset, type(error).__name__, error)
        return None


def _decode(key: dict[str, Any], value: dict[str, Any] | None) -> Change | None:
    kind = key["keytype"]
    subject = key.get("subject")
    if subject is not None:
        subject = _text(subject)
    if kind == "CONFIG":
        return ConfigChange(subject, None if value is None else _without_subject(value))
    if kind == "MODE":
        return ModeChange(subject, None if value is None else _text(value["mode"]))
    if kind == "NOOP":
        return LargestId(_id(value["id"])) if value else None
    if subject is None:
        raise ValueError(f"a {kind} record without a subject")
    if kind == "SCHEMA":
        version = _number(key["version"])
        return VersionRemoval(subject, version) if value is None else _decode_version(subject, version, value)
    if value is None:
        return None
    if kind == "DELETE_SUBJECT":
        return SubjectDeletion(subject, _number(value["version"]))
    if kind == "CLEAR_SUBJECT":
        return SubjectClearing(subject)
    raise ValueError(f"unknown keytype {kind!r}")


def _decode_version(subject: str, version: int, value: dict[str, Any]) -> SubjectVersion:
    references = tuple(
        SchemaReference(_text(each["name"]), _text(each["subject"]), _number(each["version"]))
        for each in value.get("references") or ()
    )
    format = SchemaFormat(value.get("schemaType") or SchemaFormat.AVRO.value)
    content = SchemaContent(
        Schema(_text(value["schema"]), format, references),
        dump(value["metadata"]) if value.get("metadata") else "",
        dump(value["ruleSet"]) if value.get("ruleSet") else "",
    )
    _text(content.metadata + content.rule_set)
    return SubjectVersion(subject, version, _id(value["id"]), content, bool(value.get("deleted")))


def _without_subject(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "subject"}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.100}")
    value.encode()  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected an integer, got {value!r:.100}")
    return value


def _id(value: object) -> int:
    """Return a schema id. A larger one would not fit into a record, and would leave no ids for new schemas."""
    schema_id = _number(value)
    if not 0 < schema_id <= ID_MAX:
        raise ValueError(f"invalid id {schema_id}: expected 1 to {ID_MAX}")
    return schema_id
