"""The records of `_schemas`, and the state that they amount to, also after compaction."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

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
    decode,
    encode,
)
from headrace.broker.registry.state import RegistryState
from headrace.schema.types import Schema, SchemaFormat, SchemaReference
from headrace.wire.layout import Record
from tests.support.examples import examples

SUBJECTS = st.sampled_from(["a", "b", "größe/%"])
VERSIONS = st.integers(1, 4)
TEXTS = st.sampled_from(['"int"', '"string"', '{"type":"enum","name":"E","symbols":["ä"]}'])
REFERENCES = st.lists(st.builds(SchemaReference, st.just("r"), SUBJECTS, VERSIONS), max_size=2).map(tuple)
CONTENTS = st.builds(
    SchemaContent,
    st.builds(Schema, TEXTS, st.sampled_from(SchemaFormat), REFERENCES),
    st.sampled_from(["", '{"properties":{"a":"b"}}']),
)
# As in a registry: a schema has one id, and an id one schema.
IDS: dict[SchemaContent, int] = {}
VERSION_CHANGES = st.builds(
    lambda subject, version, content, deleted: SubjectVersion(
        subject, version, IDS.setdefault(content, len(IDS) + 1), content, deleted
    ),
    SUBJECTS,
    VERSIONS,
    CONTENTS,
    st.booleans(),
)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    VERSION_CHANGES,
    st.builds(VersionRemoval, SUBJECTS, VERSIONS),
    st.builds(SubjectDeletion, SUBJECTS, VERSIONS),
    st.builds(ConfigChange, st.none() | SUBJECTS, st.none() | st.just({"compatibilityLevel": "FULL"})),
    st.builds(ModeChange, st.none() | SUBJECTS, st.none() | st.just("IMPORT")),
    st.builds(LargestId, st.integers(1, 500)),
)


UNUSABLE = [
    rb'{"id":1,"schema":"\"string\"\ud800"}',
    rb'{"id":1,"schema":"x","metadata":{"properties":{"a":"\ud800"}}}',
    b'{"id":0,"schema":"x"}',
    b'{"id":2147483648,"schema":"x"}',
]


def replayed(records: list[Record]) -> RegistryState:
    state = RegistryState()
    for record in records:
        change = decode(record)
        assert change is not None
        state.apply(change)
    return state


def with_deletions_of_all_versions(changes: list[Change]) -> list[Change]:
    """Return changes in which the deletion of a subject covers all its versions so far, as a registry writes it."""
    highest: dict[str, int] = {}
    result: list[Change] = []
    for change in changes:
        if isinstance(change, SubjectVersion | SubjectDeletion):
            highest[change.subject] = max(highest.get(change.subject, 0), change.version)
        if isinstance(change, SubjectDeletion):
            change = replace(change, version=highest[change.subject])
        result.append(change)
    return result


def facts(state: RegistryState) -> object:
    """Return what requests can see of a state, except the largest id."""
    subjects = state.subjects(deleted=True)
    versions = [each for subject in subjects for each in state.versions(subject, deleted=True)]
    by_id = {
        each.id: (state.content(each.id), state.uses(each.id, deleted=True), state.id_of(each.content))
        for each in versions
    }
    guids = {each.content.guid: state.id_of_guid(each.content.guid) for each in versions}
    referrers = {
        (subject, version): state.referrers(subject, version, deleted=True)
        for subject in ("a", "b", "größe/%")
        for version in range(1, 5)
    }
    return versions, by_id, guids, referrers, state.configs, state.modes, state.subjects(), subjects


@settings(max_examples=examples(200), deadline=None)
@given(CHANGES)
def test_a_change_is_the_same_after_encoding_and_decoding(change):
    assert decode(encode(change)) == change


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(CHANGES, max_size=25))
def test_compaction_does_not_change_the_state(changes):
    records = [encode(change) for change in with_deletions_of_all_versions(changes)]
    last = {record.key: index for index, record in enumerate(records)}
    compacted = [record for index, record in enumerate(records) if last[record.key] == index]
    assert facts(replayed(compacted)) == facts(replayed(records))


def test_cleared_subjects_lose_their_deleted_versions():
    content = SchemaContent(Schema('"int"'))
    state = RegistryState()
    for change in (
        SubjectVersion("a", 1, 1, content, deleted=True),
        SubjectVersion("a", 2, 1, content),
        SubjectClearing("a"),
    ):
        state.apply(change)
    assert [each.version for each in state.versions("a", deleted=True)] == [2]


def test_records_of_unknown_or_invalid_form_are_skipped():
    keys = [None, b"{", b"[]", b'{"keytype":"NEW","magic":0}', b'{"keytype":"SCHEMA","subject":5,"version":1}']
    keys.append(b"[" * 100_000)
    for key in keys:
        assert decode(Record(0, 0, key, b"{}", ())) is None
    schema_key = json.dumps({"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}).encode()
    for value in (b"{}", b'{"id":"1","schema":"x"}', b'{"id":1,"schema":"x","schemaType":"XML"}', *UNUSABLE):
        assert decode(Record(0, 0, schema_key, value, ())) is None
    assert decode(Record(0, 0, b'{"keytype":"NOOP","magic":0}', None, ())) is None
    assert decode(Record(0, 0, b'{"keytype":"NOOP","magic":0}', b'{"id":2147483648}', ())) is None
    assert decode(Record(0, 0, rb'{"keytype":"MODE","subject":"\ud800","magic":0}', b'{"mode":"IMPORT"}', ())) is None
