"""Random messages survive, and both kernels agree on them and on damaged bytes: every message in every version."""

import importlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.wire import _reference
from headrace.wire.api import APIS, request_class, response_class
from headrace.wire.schema import plan

_compiled: Any
try:
    _compiled = importlib.import_module("headrace.wire._kernel")
except ImportError:
    _compiled = None

few = settings(max_examples=6, deadline=None, database=None)
VERSIONS = [
    (cls, version)
    for key in APIS
    for cls in (request_class(key), response_class(key))
    for version in range(cls.versions.first, cls.versions.last + 1)
]


def outcome(action, *arguments):
    """Return the result of a call, or the type and offset of its error."""
    try:
        return action(*arguments)
    except (HeadraceError, ValueError, TypeError) as error:
        return type(error), getattr(error, "offset", None)


# Not `both_kernels`: it uses both in any case, if the kernel is compiled.
@pytest.mark.slow
@pytest.mark.parametrize(("cls", "version"), VERSIONS, ids=[f"{cls.__name__}-v{version}" for cls, version in VERSIONS])
def test_every_message_survives_and_both_kernels_agree_even_on_damaged_bytes(cls, version, messages_of):
    described = plan(cls, version, version in cls.flexible)
    reference = _reference.MessageCodec(described)
    compiled = None if _compiled is None else _compiled.MessageCodec(described)

    @few
    @given(messages_of(cls, version, unknown_tags=True), st.integers(0, 10_000), st.integers(0, 255))
    def compare(message, position, byte):
        data = message.encode(version)
        assert cls.decode(version, data) == message
        assert b"".join(reference.encode(message)) == data
        assert reference.decode_whole(data) == message
        if compiled is None:
            return
        assert b"".join(compiled.encode(message)) == data
        assert compiled.decode_whole(data) == message
        if data:
            damaged = bytearray(data)
            damaged[position % len(data)] = byte
            actual, expected = outcome(compiled.decode_whole, damaged), outcome(reference.decode_whole, damaged)
            assert actual == expected or repr(actual) == repr(expected)  # a damaged float may be NaN
            cut = data[: position % len(data)]
            assert outcome(compiled.decode_whole, cut) == outcome(reference.decode_whole, cut)

    compare()
