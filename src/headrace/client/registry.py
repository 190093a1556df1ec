"""A client of Confluent's schema registry API, which Apicurio, Karapace and Redpanda have, too.

    SchemaRegistryClient → cache → RegistryHttp (registry_http.py) → JSON → RegisteredSchema

Schemas by id, GUID and version never change, so they are cached until `cache.capacity` is reached; the latest version
of a subject is cached for `latest.cache.ttl.sec`. If the registry is unavailable, the latest version that is known is
used, with a warning.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

from headrace.client.caches import LruCache
from headrace.client.registry_http import RegistryHttp, RegistrySettings
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import (
    ConfigError,
    RegistryError,
    RegistryProtocolError,
    RegistryUnavailableError,
    SchemaDeletedError,
    SchemaError,
    SchemaNotFoundError,
)
from headrace.schema.types import Compatibility, RegisteredSchema, Schema, SchemaFormat, SchemaReference

__all__ = ["RegistrySettings", "SchemaRegistryClient"]

log = logging.getLogger("headrace.registry")

REFERENCE_DEPTH_MAX = 32
REFERENCES_MAX = 1000
"""Schemas that one schema refers to, directly and through others."""
LATEST: Final = "latest"
ALL_VERSIONS = "all"

T = TypeVar("T")


class SchemaRegistryClient:
    """A blocking client of a schema registry. Threads may share it.

    `options` are `schema.registry.*` options; `url` is short for `schema.registry.url`.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        given = dict(options or {})
        if url is not None:
            if "schema.registry.url" in given:
                raise ConfigError("schema.registry.url is given twice, also as the argument url")
            given["schema.registry.url"] = url if isinstance(url, str) else list(url)
        self.settings = RegistrySettings.from_options(given)
        self._http = RegistryHttp(self.settings)
        self._clock = clock
        self._cache = LruCache[tuple[Any, ...], RegisteredSchema](self.settings.cache_capacity)
        # With the time of the response.
        self._latest = LruCache[tuple[Any, ...], tuple[float, RegisteredSchema]](self.settings.cache_capacity)
        self._expired_at_ms = -math.inf  # Latest versions that were cached until then are requested again.

    def __repr__(self) -> str:
        return f"SchemaRegistryClient({', '.join(url.text for url in self.settings.urls)})"

    # -- schemas -----------------------------------------------------------------------------------

    def get_schema(self, schema_id: int, *, subject: str | None = None, format: str | None = None) -> RegisteredSchema:
        """Return the schema with an id. `format`: how the registry writes it, such as `serialized` or `resolved`."""
        key = ("id", schema_id, subject, format)
        if (cached := self._cache.get(key)) is not None:
            return cached
        response = self._request("GET", f"/schemas/ids/{schema_id}", query={"subject": subject, "format": format})
        return self._cache.put(key, _registered(response, id=schema_id, subject=subject))

    def get_schema_by_guid(self, guid: UUID | str, *, format: str | None = None) -> RegisteredSchema:
        """Return the schema with a GUID, as in the headers of records."""
        guid = UUID(str(guid))
        key = ("guid", guid, format)
        if (cached := self._cache.get(key)) is not None:
            return cached
        try:
            response = self._request("GET", f"/schemas/guids/{guid}", query={"format": format})
        except RegistryProtocolError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise SchemaNotFoundError(
                f"schema registry has no schema with GUID {guid}, or no GUIDs at all: new versions of Confluent's "
                f"have them, Apicurio 3.3 has none",
                status=error.status,
            ) from None
        return self._cache.put(key, _registered(response, guid=guid))

    def get_latest(self, subject: str, *, format: str | None = None) -> RegisteredSchema:
        """Return the latest version of a subject; an older one if the registry is unavailable."""
        key = (subject, format)
        if (known := self.known_latest(subject, format=format)) is not None:
            return known
        cached = self._latest.get(key)
        now_ms = self._clock.monotonic_ms()
        try:
            schema = self._get_version(subject, LATEST, format=format)
        except RegistryUnavailableError as error:
            if cached is None:
                raise
            schema = cached[1]
            log.warning("continuing with version %s of subject %s: %s", schema.version, subject, error)
        self._latest.put(key, (now_ms, schema))
        return schema

    def expire_latest(self) -> None:
        """Let `get_latest` request each subject once more, whatever the age of the version in the cache."""
        self._expired_at_ms = self._clock.monotonic_ms()

    def known_latest(self, subject: str, *, format: str | None = None) -> RegisteredSchema | None:
        """Return the latest version of a subject if `get_latest` need not request it."""
        cached = self._latest.get((subject, format))
        if cached is None or cached[0] <= self._expired_at_ms:
            return None
        return cached[1] if self._clock.monotonic_ms() - cached[0] < self.settings.latest_ttl_ms else None

    def get_version(
        self, subject: str, version: int, *, deleted: bool = False, format: str | None = None
    ) -> RegisteredSchema:
        """Return a version of a subject; with `deleted`, also one that was deleted, but not permanently."""
        key = ("version", subject, version, deleted, format)
        if (cached := self._cache.get(key)) is not None:
            return cached
        return self._cache.put(key, self._get_version(subject, version, deleted=deleted, format=format))

    def get_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the versions of a subject; with `deleted`, also those that were deleted, but not permanently."""
        path = f"{_subject_path(subject)}/versions"
        return _list_of(int, self._request("GET", path, query={"deleted": deleted or None}))

    def get_subjects(self, prefix: str | None = None, *, deleted: bool = False) -> list[str]:
        """Return the subjects, or those that start with `prefix`."""
        query = {"subjectPrefix": prefix, "deleted": deleted or None}
        subjects = _list_of(str, self._request("GET", "/subjects", query=query))
        return [subject for subject in subjects if subject.startswith(prefix or "")]  # not all registries filter

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema as the next version of a subject, unless the subject has it, and return it with its id.

        Raises IncompatibleSchemaError, with the registry's words, if the subject's compatibility level forbids it.
        """
        key = ("register", subject, schema, normalize)
        if (cached := self._cache.get(key)) is not None:
            return cached
        path = f"{_subject_path(subject)}/versions"
        response = self._request("POST", path, query={"normalize": normalize or None}, body=_body(schema))
        self._latest.remove(lambda cached: bool(cached[0] == subject))
        response = {**_body(schema), **_object(response)}
        return self._cache.put(key, _registered(response, subject=subject))

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        """Return id and version that a schema has in a subject; raises SchemaNotFoundError if it has none."""
        key = ("lookup", subject, schema, normalize, deleted)
        if (cached := self._cache.get(key)) is not None:
            return cached
        query = {"normalize": normalize or None, "deleted": deleted or None}
        response = self._request("POST", _subject_path(subject), query=query, body=_body(schema))
        # Apicurio leaves the type out.
        response = {"schemaType": schema.format.value, **_object(response)}
        return self._cache.put(key, _registered(response, subject=subject))

    def resolve_references(self, schema: Schema) -> dict[str, Schema]:
        """Return all schemas that a schema refers to, by name: each after those that it refers to itself."""
        resolved: dict[str, Schema] = {}
        sources: dict[str, SchemaReference] = {}
        self._resolve(schema, resolved, sources, 0)
        return resolved

    def _resolve(
        self, schema: Schema, resolved: dict[str, Schema], sources: dict[str, SchemaReference], depth: int
    ) -> None:
        for reference in schema.references:
            source = sources.setdefault(reference.name, reference)
            if source != reference:
                raise SchemaError(
                    f"reference {reference.name!r} is ambiguous: version {source.version} of subject "
                    f"{source.subject!r}, and version {reference.version} of {reference.subject!r}; use one of them in "
                    f"all schemas"
                )
            if reference.name in resolved:
                continue
            if depth == REFERENCE_DEPTH_MAX or len(sources) > REFERENCES_MAX:
                raise SchemaError(
                    f"too many schema references: expected at most {REFERENCES_MAX}, {REFERENCE_DEPTH_MAX} deep, and "
                    f"there are more at {reference.name!r} (version {reference.version} of subject "
                    f"{reference.subject!r})"
                )
            target = self.get_version(reference.subject, reference.version, deleted=True).schema
            self._resolve(target, resolved, sources, depth + 1)
            resolved[reference.name] = target

    # -- compatibility and mode --------------------------------------------------------------------

    def check_compatibility(
        self, subject: str, schema: Schema, *, version: int | str = LATEST, normalize: bool = False
    ) -> Compatibility:
        """Return whether a schema could be registered, else why not, in the registry's words (Apicurio has none).

        `version` is what to compare it with: a number, `latest`, or `all` that the compatibility level names.
        """
        path = f"/compatibility{_subject_path(subject)}/versions"
        if version != ALL_VERSIONS:
            path += f"/{_quoted(str(version))}"
        query = {"verbose": True, "normalize": normalize or None}
        response = _object(self._request("POST", path, query=query, body=_body(schema)))
        messages = response.get("messages") or []
        return Compatibility(_member(bool, response, "is_compatible"), tuple(map(str, messages)))

    def get_compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility level of a subject, or the global one."""
        if subject is None:
            response = self._request("GET", "/config")
        else:
            response = self._request("GET", f"/config/{_quoted(subject)}", query={"defaultToGlobal": True})
        return _member(str, _object(response), "compatibilityLevel")

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the global one, such as `BACKWARD` or `FULL_TRANSITIVE`."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._request("PUT", path, body={"compatibility": level.upper()})

    def get_mode(self, subject: str | None = None) -> str:
        """Return the mode of a subject, or the global one: `READWRITE`, `READONLY` or `IMPORT`."""
        if subject is None:
            response = self._request("GET", "/mode")
        else:
            response = self._request("GET", f"/mode/{_quoted(subject)}", query={"defaultToGlobal": True})
        return _member(str, _object(response), "mode")

    def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """Set the mode of a subject, or the global one."""
        path = "/mode" if subject is None else f"/mode/{_quoted(subject)}"
        self._request("PUT", path, query={"force": force or None}, body={"mode": mode.upper()})

    # -- deletion ----------------------------------------------------------------------------------

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject and return its versions. `permanent` also deletes the schemas; after the first deletion."""
        response = self._request("DELETE", _subject_path(subject), query={"permanent": permanent or None})
        self.clear_cache()
        return _list_of(int, response)

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> int:
        """Delete a version of a subject. `permanent` also deletes the schema; after the first deletion."""
        path = f"{_subject_path(subject)}/versions/{version}"
        response = self._request("DELETE", path, query={"permanent": permanent or None})
        self.clear_cache()
        if not isinstance(response, int):
            raise _unexpected("a version", response)
        return response

    def clear_cache(self) -> None:
        """Forget all schemas."""
        self._cache.clear()
        self._latest.clear()

    # -- requests ----------------------------------------------------------------------------------

    def _request(
        self, method: str, path: str, *, query: Mapping[str, object] | None = None, body: object = None
    ) -> Any:
        return self._http.request(method, path, query=query, body=body)

    def _get_version(
        self, subject: str, version: int | str, *, deleted: bool = False, format: str | None = None
    ) -> RegisteredSchema:
        path = f"{_subject_path(subject)}/versions/{version}"
        try:
            response = self._request("GET", path, query={"deleted": deleted or None, "format": format})
        except SchemaNotFoundError as error:
            if not deleted and version in self._deleted_versions(subject, version):
                raise SchemaDeletedError(
                    f"version {version} of subject {subject!r} was deleted; deleted=True returns it until it is "
                    f"deleted permanently",
                    status=error.status,
                    code=error.code,
                ) from None
            raise
        return _registered(response, subject=subject)

    def _deleted_versions(self, subject: str, version: int | str) -> Iterator[int | str]:
        """Yield what a registry would return if nothing was deleted; nothing if it cannot tell."""
        try:
            versions = self.get_versions(subject, deleted=True)
        except RegistryError:
            return
        if versions and version == LATEST:
            yield LATEST
        yield from versions


# -- JSON ------------------------------------------------------------------------------------------


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _subject_path(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}"


def _body(schema: Schema) -> dict[str, Any]:
    references = [{"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references]
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.format.value}
    return {**body, "references": references} if references else body


def _registered(
    response: object, *, id: int | None = None, guid: UUID | None = None, subject: str | None = None
) -> RegisteredSchema:
    """Return the schema of a response; what it lacks is what was requested."""
    content = _object(response)
    kind = content.get("schemaType") or SchemaFormat.AVRO.value  # older registries leave it out for Avro
    try:
        format = SchemaFormat(kind)
    except ValueError:
        raise RegistryProtocolError(
            f"unknown schema type in the response of the schema registry: expected "
            f"{', '.join(each.value for each in SchemaFormat)}, got {kind!r}"
        ) from None
    references = tuple(
        SchemaReference(_member(str, each, "name"), _member(str, each, "subject"), _member(int, each, "version"))
        for each in _list_of(dict, content.get("references") or [])
    )
    given_id, given_guid = content.get("id", id), content.get("guid")
    version = content.get("version")
    return RegisteredSchema(
        Schema(_member(str, content, "schema"), format, references),
        id=given_id if isinstance(given_id, int) else None,
        guid=UUID(given_guid) if isinstance(given_guid, str) and _is_uuid(given_guid) else guid,
        subject=str(content["subject"]) if content.get("subject") else subject,
        version=version if isinstance(version, int) else None,
    )


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _object(response: object) -> dict[str, Any]:
    if not isinstance(response, dict):
        raise _unexpected("an object", response)
    return response


def _member(kind: type[T], content: dict[str, Any], name: str) -> T:
    value = content.get(name)
    if not isinstance(value, kind):
        raise _unexpected(f"{name} as {kind.__name__}", content)
    return value


def _list_of(kind: type[T], response: object) -> list[T]:
    if not isinstance(response, list) or not all(isinstance(item, kind) for item in response):
        raise _unexpected(f"a list of {kind.__name__}", response)
    return response


def _unexpected(expected: str, response: object) -> RegistryProtocolError:
    return RegistryProtocolError(
        f"unexpected response of the schema registry: expected {expected}, got {str(response)[:200]!r}"
    )
