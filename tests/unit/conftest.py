"""Fixtures of unit tests: random messages from their declarations; the peak memory of a call."""

import sys
import tracemalloc
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from headrace.errors import MalformedError
from headrace.wire import fields
from tests.support.examples import DEFAULT_EXAMPLES, IS_QUICK, examples

if IS_QUICK:
    settings.register_profile("quick", max_examples=examples(DEFAULT_EXAMPLES))
    settings.load_profile("quick")

INTEGERS = {
    fields.INT8: (-(2**7), 2**7 - 1),
    fields.INT16: (-(2**15), 2**15 - 1),
    fields.UINT16: (0, 2**16 - 1),
    fields.INT32: (-(2**31), 2**31 - 1),
    fields.UINT32: (0, 2**32 - 1),
    fields.INT64: (-(2**63), 2**63 - 1),
}
SIMPLE = {
    # The extremes, and -1, which means "none" in many fields, more often than by chance.
    **{k: st.one_of(st.sampled_from([*ends, max(-1, ends[0])]), st.integers(*ends)) for k, ends in INTEGERS.items()},
    fields.BOOLEAN: st.booleans(),
    fields.FLOAT64: st.floats(allow_nan=False),  # NaN differs from itself; it has a test of its own
    fields.UUID: st.one_of(st.just(fields.ZERO_UUID), st.binary(min_size=16, max_size=16)),
    fields.STRING: st.text(st.characters(codec="utf-8"), max_size=6),
    fields.BYTES: st.binary(max_size=6),
    fields.RECORDS: st.one_of(st.binary(max_size=6), st.binary(max_size=6).map(lambda data: memoryview(data))),
}
TAG_MAX = 2**32 - 1
ITEMS_MAX = 2


@pytest.fixture(autouse=True)
def _rigs_are_closed():
    yield
    if (log_rig := sys.modules.get("tests.support.log_rig")) is not None:
        log_rig.let_go()
    if (rig := sys.modules.get("tests.support.rig")) is not None:
        rig.close_rigs()


@pytest.fixture
def allocated_bytes():
    """A function that calls another and returns its peak memory and its error."""

    def measure(action, *arguments):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        error = None
        try:
            action(*arguments)
        except MalformedError as malformed:
            error = malformed
        return tracemalloc.get_traced_memory()[1] - before, error

    tracemalloc.start()
    yield measure
    tracemalloc.stop()


@pytest.fixture(scope="session")
def messages_of():
    """`messages_of(cls, version)`: a strategy for messages that the version can express.

    With `unknown_tags`, structs of flexible versions carry tagged fields that nobody has declared.
    """

    def messages(cls, version, *, unknown_tags=False):
        return structs(cls, version, unknown_tags and version in cls.flexible)

    return messages


@cache
def structs(cls, version, unknown_tags):
    live = {name: field for name, field in cls.fields.items() if version in field.versions}
    values = {name: field_values(field, version, unknown_tags) for name, field in live.items()}
    if unknown_tags:
        known = {field.tag for field in live.values()}
        tags = st.integers(0, TAG_MAX).filter(lambda tag: tag not in known)
        values["tags"] = st.none() | st.dictionaries(tags, st.binary(max_size=3), min_size=1, max_size=2)
    return st.builds(cls, **values)


def field_values(field, version, unknown_tags) -> st.SearchStrategy[Any]:
    if field.kind == fields.ARRAY:
        item = (
            structs(field.element, version, unknown_tags) if isinstance(field.element, type) else SIMPLE[field.element]
        )
        values: st.SearchStrategy[Any] = st.lists(item, max_size=ITEMS_MAX)
    elif field.kind == fields.STRUCT:
        values = structs(field.element, version, unknown_tags)
    else:
        values = SIMPLE[field.kind]
    if version in field.nullable:
        values = st.none() | values
    # Whether a tagged field is on the wire hangs on its default: that has to come up, too.
    return values if field.tag < 0 else st.just(field.default) | values
