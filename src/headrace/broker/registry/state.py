"""The state of the registry in memory: what the changes of `_schemas` amount to, with indexes for requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never
from uuid import UUID

from headrace.broker.registry.changes import (
    Change,
    ConfigChange,
    LargestId,
    ModeChange,
    SchemaContent,
    SubjectClearing,
    SubjectDeletion,
    SubjectVersion,
    VersionRemoval,
)
from headrace.schema.types import SchemaReference

VersionKey = tuple[str, int]
"""A subject and a version."""


class RegistryState:
    """Subjects, ids, configurations and modes. Event loop only."""

    def __init__(self) -> None:
        self.largest_id = 0
        self.configs: dict[str | None, dict[str, Any]] = {}  # None: global
        self.modes: dict[str | None, str] = {}
        self._subjects: dict[str, dict[int, SubjectVersion]] = {}
        self._contents: dict[int, SchemaContent] = {}  # by id
        self._ids: dict[SchemaContent, int] = {}
        self._guids: dict[UUID, int] = {}
        self._uses: dict[int, set[VersionKey]] = {}  # the versions with an id
        self._referrers: dict[VersionKey, set[VersionKey]] = {}

    # -- changes ---------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Apply the next change of the topic."""
        match change:
            case SubjectVersion():
                self._put(change)
            case VersionRemoval(subject, version):
                self._remove(subject, version)
            case SubjectDeletion(subject, last_version):
                for each in self.versions(subject):
                    if each.version <= last_version:
                        self._put(replace(each, deleted=True))
            case SubjectClearing(subject):
                for each in self.versions(subject, deleted=True):
                    if each.deleted:
                        self._remove(subject, each.version)
            case ConfigChange(subject, config):
                _set(self.configs, subject, config)
            case ModeChange(subject, mode):
                _set(self.modes, subject, mode)
            case LargestId(schema_id):
                self.largest_id = max(self.largest_id, schema_id)
            case _:
                assert_never(change)

    def _put(self, version: SubjectVersion) -> None:
        self._remove(version.subject, version.version)
        versions = self._subjects.setdefault(version.subject, {})
        versions[version.version] = version
        if next(reversed(versions)) != max(versions):  # a version came back: keep the order
            self._subjects[version.subject] = dict(sorted(versions.items()))
        self.largest_id = max(self.largest_id, version.id)
        if version.id not in self._contents:
            self._contents[version.id] = version.content
            self._guids.setdefault(version.content.guid, version.id)
            self._ids.setdefault(version.content, version.id)
        key = (version.subject, version.version)
        self._uses.setdefault(version.id, set()).add(key)
        for reference in version.content.schema.references:
            self._referrers.setdefault((reference.subject, reference.version), set()).add(key)

    def _remove(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        removed = versions.pop(version, None)
        if removed is None:
            return
        if not versions:
            del self._subjects[subject]
        for target in {(each.subject, each.version) for each in removed.content.schema.references}:
            self._referrers[target].discard((subject, version))
            if not self._referrers[target]:
                del self._referrers[target]
        uses = self._uses[removed.id]
        uses.discard((subject, version))
        if not uses:
            del self._uses[removed.id]
            content = self._contents.pop(removed.id)
            if self._ids.get(content) == removed.id:
                del self._ids[content]
            if self._guids.get(content.guid) == removed.id:
                del self._guids[content.guid]

    # -- look-up ---------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the subjects that have versions; with `deleted`, also those with deleted ones only."""
        return [subject for subject in sorted(self._subjects) if self.versions(subject, deleted=deleted)]

    def versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the versions of a subject in order; with `deleted`, also those that were deleted."""
        return [each for each in self._subjects.get(subject, {}).values() if deleted or not each.deleted]

    def version(self, subject: str, version: int) -> SubjectVersion | None:
        """Return a version, perhaps deleted; None if it is unknown."""
        return self._subjects.get(subject, {}).get(version)

    def content(self, schema_id: int) -> SchemaContent | None:
        return self._contents.get(schema_id)

    def id_of(self, content: SchemaContent) -> int | None:
        """Return the id of a schema, in any subject."""
        return self._ids.get(content)

    def id_of_guid(self, guid: UUID) -> int | None:
        return self._guids.get(guid)

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the versions with an id."""
        versions = (self._subjects[subject][version] for subject, version in sorted(self._uses.get(schema_id, ())))
        return [each for each in versions if deleted or not each.deleted]

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the versions that refer to a version."""
        keys = sorted(self._referrers.get((subject, version), ()))
        versions = (self._subjects[each_subject][each_version] for each_subject, each_version in keys)
        return [each for each in versions if deleted or not each.deleted]

    def target(self, reference: SchemaReference) -> SubjectVersion | None:
        """Return the version that a reference names, perhaps deleted."""
        return self.version(reference.subject, reference.version)


def _set(values: dict[str | None, Any], subject: str | None, value: object) -> None:
    if value is None:
        values.pop(subject, None)
    else:
        values[subject] = value
