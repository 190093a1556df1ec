"""The operations of the registry: what a request does, with the checks and errors of Confluent's registry.

    register: parse (on a thread) → known? → compatible? (on the thread) → append to _schemas → follow the topic → id

Changes are made one at a time (`_writing`). Each is acknowledged when the topic has it, so it survives a kill of the
broker. Reading never waits: it follows the topic first, which costs nothing if nobody has written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.registry import rest_errors
from headrace.broker.registry.changes import (
    ID_MAX,
    Change,
    ConfigChange,
    LargestId,
    ModeChange,
    SchemaContent,
    SubjectDeletion,
    SubjectVersion,
    VersionRemoval,
    dump,
)
from headrace.broker.registry.compatibility import DEFAULT_LEVEL, CompatibilityLevel, EarlierVersion, check
from headrace.broker.registry.formats import ParsedSchema, parse
from headrace.errors import SchemaError
from headrace.schema.types import Schema, SchemaReference

if TYPE_CHECKING:
    from headrace.broker.registry.schema_log import SchemaLog
    from headrace.broker.registry.state import RegistryState

log = logging.getLogger("headrace.broker.registry")

READWRITE, READONLY, READONLY_OVERRIDE, IMPORT = "READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"
MODES = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT)
REFERENCE_DEPTH_MAX = 32
REFERENCES_MAX = 1_000
"""Schemas that one schema refers to, directly and through others."""
SUBJECT_CHARS_MAX = 1_000
PARSED_MAX = 500
"""Parsed schemas that are kept."""
LATEST = -1
"""The version of a reference that means the latest one."""

_RESERVED_SUBJECTS = ("__GLOBAL", "__EMPTY")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registration:
    """A schema to register, look up or check. `version` and `id` are those of a subject in the mode IMPORT."""

    content: SchemaContent
    normalize: bool = False
    version: int | None = None
    id: int | None = None


class SchemaRegistry:
    """Subjects and schemas. Event loop only, except `_parse`, which runs on the thread."""

    def __init__(self, schema_log: SchemaLog) -> None:
        self._log = schema_log
        self._writing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "headrace-schemas")  # parsing may take long
        self._parsed: OrderedDict[tuple[Schema, tuple[str, ...]], ParsedSchema] = OrderedDict()  # _thread only.

    @property
    def state(self) -> RegistryState:
        """What the topic amounts to; `follow` may replace it."""
        return self._log.state

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def follow(self) -> None:
        """Apply what others have written to the topic."""
        self._log.follow()

    # -- schemas ---------------------------------------------------------------------------------

    async def register(self, subject: str, registration: Registration) -> SubjectVersion:
        """Register a schema as the next version of a subject, unless the subject has it; return its version."""
        check_subject(subject)
        async with self._writing:
            mode = self.mode(subject)
            if mode in (READONLY, READONLY_OVERRIDE):
                raise rest_errors.not_permitted(f"Subject {subject} is in read-only mode")
            content, parsed = await self._prepare(subject, registration)
            known = await self._find(subject, content, parsed)
            if known is not None and registration.id in (None, known.id):
                return known
            if mode == IMPORT:
                version = self._import(subject, content, registration)
            else:
                version = await self._next_version(subject, content, parsed, registration)
            await self._log.append([version])
        stored = self.state.version(subject, version.version)
        return version if stored is None else stored

    async def _next_version(
        self, subject: str, content: SchemaContent, parsed: ParsedSchema, registration: Registration
    ) -> SubjectVersion:
        if registration.id is not None:
            raise rest_errors.not_permitted(
                f"Subject {subject} is not in import mode: leave out the id, or set the mode of the subject to IMPORT"
            )
        earlier = self.state.versions(subject)
        if messages := await self._check(subject, content, parsed, earlier):
            raise rest_errors.incompatible(subject, messages)
        versions = self.state.versions(subject, deleted=True)
        version = versions[-1].version + 1 if versions else 1
        if registration.version not in (None, LATEST, version):
            raise rest_errors.RestError(
                42201, f"Invalid version {registration.version}: the next version of subject '{subject}' is {version}"
            )
        schema_id = self.state.id_of(content) or self.state.largest_id + 1
        if schema_id > ID_MAX:
            raise rest_errors.store_failed(f"all {ID_MAX} ids are used")
        return SubjectVersion(subject, version, schema_id, content)

    def _import(self, subject: str, content: SchemaContent, registration: Registration) -> SubjectVersion:
        """Return the version of a schema with a given id, in the mode IMPORT, without a check of compatibility."""
        schema_id = registration.id
        if schema_id is None:
            raise rest_errors.not_permitted(f"Subject {subject} is in import mode: add the id of the schema")
        if not 0 < schema_id <= ID_MAX or (self.state.content(schema_id) or content) != content:
            raise rest_errors.id_does_not_match(schema_id)
        versions = self.state.versions(subject, deleted=True)
        version = registration.version or (versions[-1].version + 1 if versions else 1)
        if not 0 < version <= rest_errors.VERSION_MAX:
            raise rest_errors.invalid_version(str(version))
        return SubjectVersion(subject, version, schema_id, content)

    async def lookup(self, subject: str, registration: Registration, *, deleted: bool = False) -> SubjectVersion:
        """Return the version that a schema has in a subject."""
        content, parsed = await self._prepare(subject, registration)
        known = await self._find(subject, content, parsed, deleted=deleted)
        if known is None:
            raise self._missing(subject, deleted=deleted) or rest_errors.schema_not_found()
        return known

    async def check_compatibility(
        self, subject: str, registration: Registration, version: int | None = None
    ) -> list[str]:
        """Return why a schema could not be registered. `version` compares it with one version only, -1 the latest."""
        content, parsed = await self._prepare(subject, registration)
        earlier = self.state.versions(subject)
        if version == LATEST:
            earlier = earlier[-1:]
        elif version is not None:
            earlier = [self.version(subject, version)]
        return await self._check(subject, content, parsed, earlier)

    async def rendered(self, content: SchemaContent, format: str) -> SchemaContent:
        """Return a schema with its text in another format, such as `serialized`."""
        if not format:
            return content
        texts = self._resolve(content.schema)
        try:
            text = await self._on_thread(lambda: self._parse(content.schema, texts).rendered(format))
        except SchemaError as error:
            raise rest_errors.invalid_schema(content.schema.format, error) from error
        return _with_text(content, text)

    def version(self, subject: str, version: int, *, deleted: bool = False) -> SubjectVersion:
        """Return a version of a subject, -1 the latest; with `deleted`, also one that was deleted."""
        if version == LATEST:
            versions = self.state.versions(subject, deleted=deleted)
            match = versions[-1] if versions else None
        else:
            match = self.state.version(subject, version)
        if match is None or (match.deleted and not deleted):
            name = "latest" if version == LATEST else version
            raise self._missing(subject, deleted=deleted) or rest_errors.version_not_found(name)
        return match

    def versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        versions = self.state.versions(subject, deleted=deleted)
        if not versions:
            raise rest_errors.subject_not_found(subject)
        return versions

    def _missing(self, subject: str, *, deleted: bool) -> rest_errors.RestError | None:
        return None if self.state.versions(subject, deleted=deleted) else rest_errors.subject_not_found(subject)

    async def _find(
        self, subject: str, content: SchemaContent, parsed: ParsedSchema, *, deleted: bool = False
    ) -> SubjectVersion | None:
        """Return the latest version of a subject that has a schema, perhaps in another form; None if there is none."""
        versions = self.state.versions(subject, deleted=deleted)[::-1]
        equal = next((each for each in versions if each.content == content), None)
        if equal is not None or parsed.identity == content.schema.text:
            return equal
        candidates = [
            (each, self._resolve(each.content.schema))
            for each in versions
            if _with_text(each.content, "") == _with_text(content, "")
        ]

        def find() -> SubjectVersion | None:
            for each, texts in candidates:
                if self._parse(each.content.schema, texts).identity == parsed.identity:
                    return each
            return None

        return await self._on_thread(find)

    # -- parsing and comparing -------------------------------------------------------------------

    async def _prepare(self, subject: str, registration: Registration) -> tuple[SchemaContent, ParsedSchema]:
        """Return the schema as the registry keeps it; raise if it is invalid."""
        self.follow()
        schema = registration.content.schema
        references = tuple(self._settled(reference) for reference in schema.references)
        schema = replace(schema, references=references)
        texts = self._resolve(schema)
        normalize = registration.normalize or bool(self.config(subject).get("normalize"))

        def parsed() -> tuple[str, ParsedSchema]:
            result = self._parse(schema, texts)
            return (result.normalized() if normalize else result.text), result

        try:
            text, result = await self._on_thread(parsed)
        except SchemaError as error:
            raise rest_errors.invalid_schema(schema.format, error) from error
        if normalize:
            references = tuple(sorted(references, key=lambda each: (each.name, each.subject, each.version)))
        schema = Schema(text, schema.format, references)
        return replace(registration.content, schema=schema), result

    async def _check(
        self, subject: str, content: SchemaContent, parsed: ParsedSchema, earlier: Sequence[SubjectVersion]
    ) -> list[str]:
        level = self.level(subject)
        if level is CompatibilityLevel.NONE or not earlier:
            return []
        if not level.is_transitive:
            earlier = earlier[-1:]
        schemas = [(each, self._resolve(each.content.schema)) for each in earlier]
        format = content.schema.format

        def compared() -> list[str]:
            versions = []
            for each, texts in schemas:
                schema = each.content.schema
                parsed_earlier = self._parse(schema, texts) if schema.format is format else None
                versions.append(EarlierVersion(each.version, schema.format, parsed_earlier))
            return check(level, format, parsed, versions)

        try:
            return await self._on_thread(compared)
        except SchemaError as error:
            raise rest_errors.invalid_schema(format, error) from error

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _parse(self, schema: Schema, texts: dict[str, str]) -> ParsedSchema:
        key = (schema, tuple(texts.values()))
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = self._parsed[key] = parse(schema, texts)
            if len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
        else:
            self._parsed.move_to_end(key)
        return parsed

    def _settled(self, reference: SchemaReference) -> SchemaReference:
        """Return a reference with a version, not `latest`."""
        if reference.version != LATEST:
            return reference
        versions = self.state.versions(reference.subject)
        return replace(reference, version=versions[-1].version) if versions else reference

    def _resolve(self, schema: Schema) -> dict[str, str]:
        """Return the texts of all schemas that a schema refers to, by name: each after those that it refers to."""
        texts: dict[str, str] = {}
        self._resolve_into(schema, texts, 0)
        return texts

    def _resolve_into(self, schema: Schema, texts: dict[str, str], depth: int) -> None:
        for reference in schema.references:
            if reference.name in texts:
                continue
            target = self.state.target(reference)
            if target is None:
                raise rest_errors.invalid_schema(
                    schema.format,
                    f"reference '{reference.name}' names version {reference.version} of subject "
                    f"'{reference.subject}', which does not exist: register it first",
                )
            if depth == REFERENCE_DEPTH_MAX or len(texts) >= REFERENCES_MAX:
                raise rest_errors.invalid_schema(
                    schema.format,
                    f"too many references: expected at most {REFERENCES_MAX}, {REFERENCE_DEPTH_MAX} deep, and there "
                    f"are more at '{reference.name}'",
                )
            self._resolve_into(target.content.schema, texts, depth + 1)
            texts[reference.name] = target.content.schema.text

    # -- deletion --------------------------------------------------------------------------------

    async def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        """Delete a version; `permanent` removes one that was deleted before. Return its number."""
        async with self._writing:
            self.follow()
            self._require_writable(subject)
            match = self.version(subject, version, deleted=True)
            if match.deleted and not permanent:
                raise rest_errors.version_deleted(subject, match.version)
            if permanent and not match.deleted:
                raise rest_errors.version_not_deleted(subject, match.version)
            self._require_unreferenced([match])
            changes: list[Change]
            if permanent:
                changes = [LargestId(self.state.largest_id), VersionRemoval(subject, match.version)]
            else:
                changes = [replace(match, deleted=True)]
                if len(self.state.versions(subject)) == 1:
                    changes += self._settings_removal(subject)
            await self._log.append(changes)
            return match.version

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete a subject; `permanent` removes one that was deleted before. Return its versions."""
        async with self._writing:
            self.follow()
            self._require_writable(subject)
            versions = self.state.versions(subject, deleted=True)
            if not versions:
                raise rest_errors.subject_not_found(subject)
            remaining = self.state.versions(subject)
            if permanent and remaining:
                raise rest_errors.subject_not_deleted(subject)
            if not permanent and not remaining:
                raise rest_errors.subject_deleted(subject)
            self._require_unreferenced(versions if permanent else remaining)
            changes: list[Change]
            if permanent:
                removals = [VersionRemoval(subject, each.version) for each in versions]
                changes = [LargestId(self.state.largest_id), *removals]
            else:
                # All versions, also those deleted before: it replaces the record of an earlier deletion.
                changes = [SubjectDeletion(subject, versions[-1].version), *self._settings_removal(subject)]
            await self._log.append(changes)
            return [each.version for each in (versions if permanent else remaining)]

    def _settings_removal(self, subject: str) -> list[Change]:
        """Return the changes that remove configuration and mode of a subject without versions."""
        changes: list[Change] = []
        if subject in self.state.configs:
            changes.append(ConfigChange(subject, None))
        if subject in self.state.modes:
            changes.append(ModeChange(subject, None))
        return changes

    def _require_writable(self, subject: str) -> None:
        if self.mode(subject) in (READONLY, READONLY_OVERRIDE):
            raise rest_errors.not_permitted(f"Subject {subject} is in read-only mode")

    def _require_unreferenced(self, versions: Sequence[SubjectVersion]) -> None:
        for version in versions:
            if self.state.referrers(version.subject, version.version):
                raise rest_errors.reference_exists(version.subject, version.version)

    # -- configuration and modes -----------------------------------------------------------------

    def config(self, subject: str | None = None) -> dict[str, Any]:
        """Return the configuration of a subject with global values as defaults, or the global one."""
        default = {"compatibilityLevel": DEFAULT_LEVEL.value}
        return default | self.state.configs.get(None, {}) | self.state.configs.get(subject, {})

    def level(self, subject: str) -> CompatibilityLevel:
        """Return the compatibility level of a subject."""
        text = self.config(subject)["compatibilityLevel"]
        try:
            return CompatibilityLevel(text)
        except ValueError:  # written by another registry
            log.warning("unknown compatibility level %r of subject %s: using %s", text, subject, DEFAULT_LEVEL.value)
            return DEFAULT_LEVEL

    async def set_config(self, subject: str | None, changes: dict[str, Any]) -> None:
        """Change the configuration of a subject, or the global one; what is not in `changes` stays."""
        async with self._writing:
            self.follow()
            config = self.state.configs.get(subject, {}) | changes
            await self._log.append([ConfigChange(subject, config)])

    async def delete_config(self, subject: str | None) -> dict[str, Any]:
        """Remove the configuration of a subject, or the global one; return what it was."""
        async with self._writing:
            self.follow()
            if subject is not None and subject not in self.state.configs:
                raise rest_errors.config_not_found(subject)
            before = self.config() if subject is None else self.state.configs[subject]
            if subject in self.state.configs:
                await self._log.append([ConfigChange(subject, None)])
            return before

    def mode(self, subject: str | None = None) -> str:
        """Return the mode of a subject, or the global one."""
        general = self.state.modes.get(None, READWRITE)
        return general if general == READONLY_OVERRIDE else self.state.modes.get(subject, general)

    async def set_mode(self, subject: str | None, mode: str, *, force: bool) -> None:
        """Set the mode of a subject, or the global one. IMPORT needs `force` if there are schemas."""
        async with self._writing:
            self.follow()
            if mode == IMPORT and not force and self.mode(subject) != IMPORT:
                subjects = self.state.subjects() if subject is None else [subject]
                if any(self.state.versions(each) for each in subjects):
                    raise rest_errors.not_permitted(
                        "IMPORT needs an empty registry or subject: delete its schemas, or add force=true"
                    )
            await self._log.append([ModeChange(subject, mode)])

    async def delete_mode(self, subject: str) -> str:
        """Remove the mode of a subject; return what it was."""
        async with self._writing:
            self.follow()
            if subject not in self.state.modes:
                raise rest_errors.mode_not_found(subject)
            before = self.state.modes[subject]
            await self._log.append([ModeChange(subject, None)])
            return before


def check_subject(subject: str) -> None:
    """Raise unless a subject may be registered."""
    if not subject or len(subject) > SUBJECT_CHARS_MAX or not subject.isprintable() or subject in _RESERVED_SUBJECTS:
        raise rest_errors.invalid_subject(subject)


def _with_text(content: SchemaContent, text: str) -> SchemaContent:
    return replace(content, schema=replace(content.schema, text=text))


def canonical_json(value: object) -> str:
    """Return metadata or rules as JSON text, the same whatever the order of members; empty if there are none."""
    return dump(_ordered(value)) if value else ""


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        return {name: _ordered(item) for name, item in sorted(value.items())}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
